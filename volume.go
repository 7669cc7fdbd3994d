package sandbox

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/cluster"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/errdefs"
	"github.com/seed-1a2d6d8f/sandbox/internal/lifecycle"
	"github.com/seed-1a2d6d8f/sandbox/internal/machine"
	"github.com/seed-1a2d6d8f/sandbox/internal/plan"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/internal/store"
	"github.com/seed-1a2d6d8f/sandbox/internal/trace"
)

// MountMode says whether a mount is writable and whether it is a copy.
type MountMode string

// The modes of a mount.
const (
	// RO mounts a directory or volume read-only.
	RO MountMode = record.RO
	// RW mounts it read-write: changes inside change the original.
	RW MountMode = record.RW
	// RWCopy copies a directory into a new volume when the sandbox is created, and mounts
	// that read-write. The directory never changes, and later changes to it do not appear
	// inside.
	RWCopy MountMode = record.RWCopy
)

// A Mount mounts a directory, a copy of a directory, or a volume in the sandbox.
type Mount struct {
	// Source is a directory on this machine; with RO and RW also a file or a socket, which
	// is mounted over a file of the image, or a new one. A relative path is made absolute when
	// the sandbox is created. With RO and RW the engine mounts it, so the engine must run on
	// this machine: if the path does not exist, or the engine sees something else there, the
	// call fails, see Remote. Git does not work below a worktree or a submodule, whose
	// repository is elsewhere, unless that is mounted at its own path. Files keep their owners' numbers: git refuses
	// a repository of another user than its own ("dubious ownership") if safe.directory in the sandbox's git configuration lacks it.
	Source string `json:"source,omitempty"`
	// Remote says that Source is an absolute path on the engine's machine, which need not
	// exist on this one. It is for RO and RW with an engine that is elsewhere, in a virtual
	// machine (Docker Desktop, which shares directories of this machine) or outside of the
	// container that this program runs in.
	Remote bool `json:"remote,omitempty"`
	// Volume is a volume of [ListVolumes] to attach, instead of Source. It is preserved
	// when the sandbox is deleted, unless [DeleteOptions] say otherwise. In
	// [Sandbox.Mounts] it is also, with an RWCopy and beside its Source, the volume that
	// contains the copy: see [WithMounts].
	Volume string `json:"volume,omitempty"`
	// Target is an absolute path in the sandbox. Symbolic links of the image on its way are
	// resolved when the sandbox is created; in [Sandbox.Mounts] there are none. /workspace, /etc, /etc/passwd and /etc/group are reserved, paths below
	// directories of these are allowed; /proc, /sys, /dev and what begins with
	// /.agent-sandbox are reserved with all below. A mount inside another one hides the
	// files at its target.
	Target string `json:"target"`
	// Mode is [RWCopy] by default with a Source, and [RW] with a Volume.
	Mode MountMode `json:"mode,omitempty"`
}

// Kind returns "bind" for a directory or file that the engine mounts, "copy" for a copy of a
// directory, in a volume of the sandbox, and "volume" for an attached volume.
func (m Mount) Kind() string {
	switch {
	case plan.ModeOf(m.record()) == record.RWCopy:
		return "copy"
	case m.Volume != "":
		return "volume"
	}
	return "bind"
}

// String describes the mount, for people.
func (m Mount) String() string {
	switch {
	case m.Kind() == "copy" && m.Source != "":
		return fmt.Sprintf("%s: rwcopy snapshot of %s", m.Target, m.Source)
	case m.Volume != "":
		return fmt.Sprintf("%s: existing volume %s (%s)", m.Target, m.Volume, MountMode(plan.ModeOf(m.record())))
	}
	text := fmt.Sprintf("%s: bind of %s (%s)", m.Target, m.Source, MountMode(plan.ModeOf(m.record())))
	if plan.ReachesEngine(m.Source) {
		text += ", by which the sandbox can control an engine, and with it the engine's machine"
	}
	return text
}

// WithMounts mounts directories, copies of directories and volumes in the sandbox, in
// addition to the workspace. Several calls add up. The default mode of a directory is
// [RWCopy]: it is copied before anything runs in the sandbox. Permissions, numeric
// owners, times, links, extended attributes and holes are kept. No file is filtered, but
// sockets and devices are left out: [Sandbox.Copied] lists them. If a file can't be read, or
// changes during the copy, the call fails.
//
// An attached volume must be one of [ListVolumes]. The workspace of another sandbox can
// be attached too; the two then share it.
//
// It takes what [Sandbox.Mounts] returns. Such a mount of a copy has both a Source and a Volume, and
// is not copied again: its volume is attached, except in an [Sandbox.Update] of the copy's own sandbox,
// which keeps it.
func WithMounts(mounts ...Mount) ChangeOption {
	var all []record.Mount
	for _, m := range mounts {
		all = append(all, m.record())
	}
	return option{plan.Mounts, func(s *settings) { s.Mounts = append(s.Mounts, all...) }}
}

// Mounts returns the mounts of the sandbox, without the workspace and the volumes that its image
// declares, in the order given. After [Sandbox.Update] it returns the previous mounts until the next session.
func (s *Sandbox) Mounts() []Mount { return mountsOf(s.h.Mounts()) }

const (
	mountFormat  = "source:target[:ro|rw|rwcopy]"
	volumeFormat = "name:target[:rw|ro]"
)

// ParseMount parses a mount of a directory in command line syntax,
// source:target[:ro|rw|rwcopy]. The default mode is rwcopy. A source that contains a
// colon needs a [Mount]. The target is validated; whether the source exists is not
// checked.
func ParseMount(spec string) (Mount, error) {
	m := Mount{Mode: RWCopy}
	rest := spec
	drive := ""
	if regexp.MustCompile(`^[A-Za-z]:[\\/]`).MatchString(spec) {
		if runtime.GOOS == "windows" {
			drive, rest = spec[:2], spec[2:]
		} else if strings.Contains(spec[2:], ":/") {
			return Mount{}, fail("parse mount", spec, errdefs.Invalid("a Windows path on %s: the source is a directory of this machine", runtime.GOOS))
		}
	}
	parts := strings.Split(rest, ":")
	if len(parts) < 2 || len(parts) > 3 || parts[0] == "" || parts[1] == "" {
		return Mount{}, fail("parse mount", spec, errdefs.Invalid("the format of a mount is %s", mountFormat))
	}
	m.Source, m.Target = drive+parts[0], parts[1]
	var mode error
	if len(parts) == 3 {
		if m.Mode = MountMode(parts[2]); m.Mode == "" {
			mode = errors.New(`mode "": use ro, rw or rwcopy`)
		}
	}
	if err := errors.Join(mode, plan.CheckMode(m.record()), plan.CheckTarget(m.Target)); err != nil {
		return Mount{}, fail("parse mount", spec, errdefs.Classify(ErrInvalidArgument, err))
	}
	return m, nil
}

// ParseVolumeMount parses a mount of a volume in command line syntax,
// name:target[:rw|ro]. The default mode is rw. The target is validated; whether the
// volume exists is not checked.
func ParseVolumeMount(spec string) (Mount, error) {
	m := Mount{Mode: RW}
	parts := strings.Split(spec, ":")
	if len(parts) < 2 || len(parts) > 3 || parts[0] == "" || parts[1] == "" {
		return Mount{}, fail("parse volume mount", spec, errdefs.Invalid("the format of a volume mount is %s", volumeFormat))
	}
	m.Volume, m.Target = parts[0], parts[1]
	var mode error
	if len(parts) == 3 {
		if m.Mode = MountMode(parts[2]); m.Mode == "" {
			mode = errors.New(`mode "": use rw or ro`)
		}
	}
	if err := errors.Join(mode, plan.CheckMode(m.record()), plan.CheckVolume(m.Volume), plan.CheckTarget(m.Target)); err != nil {
		return Mount{}, fail("parse volume mount", spec, errdefs.Classify(ErrInvalidArgument, err))
	}
	return m, nil
}

func (m Mount) record() record.Mount {
	return record.Mount{Source: m.Source, Volume: m.Volume, Target: m.Target, Mode: string(m.Mode), Remote: m.Remote}
}

func mountsOf(in []record.Mount) (out []Mount) {
	for _, m := range in {
		if m.Declared {
			continue // no option asked for it
		}
		if m.Source == "" && m.Mode == record.RWCopy { // of an early snapshot, which did not record it
			m.Mode = record.RW
		}
		out = append(out, Mount{Source: m.Source, Volume: m.Volume, Target: m.Target, Mode: MountMode(m.Mode), Remote: m.Remote})
	}
	return out
}

// A Volume contains files of sandboxes: a workspace, a copy of a directory, or a directory that an
// image declares as a volume.
type Volume struct {
	Name string `json:"name"`
	// Role is "workspace", "rwcopy", "fork" or "image".
	Role string `json:"role"`
	// SizeBytes is the size of the volume's own files, which its deletion frees, or [UnknownSize].
	SizeBytes int64 `json:"sizeBytes"`
	// SharedBytes is the size of the files of a snapshot, or of a [ForkN], that the volume shares
	// with it and other volumes. Some of them may be changed or deleted in the volume. 0 if it
	// shares none, or [UnknownSize].
	SharedBytes int64 `json:"sharedBytes,omitempty"`
	// Size is SizeBytes for people, such as "1.5 MB", or "unknown".
	Size string `json:"size"`
	// Sandboxes are the names of the sandboxes, in any state, that mount the volume.
	Sandboxes []string  `json:"sandboxes"`
	CreatedAt time.Time `json:"createdAt"`
	// CreatedBy is "rwcopy" or "fork" for a copy of a directory, and Source that directory;
	// "image" for a directory that an image declares as a volume, and Source its path in the
	// sandbox. Otherwise they are empty.
	CreatedBy string `json:"createdBy,omitempty"`
	Source    string `json:"source,omitempty"`
	// InUse means that a sandbox mounts the volume, or that one is being created with it.
	InUse bool `json:"inUse"`
	// Orphaned means that no sandbox uses the volume.
	Orphaned bool `json:"orphaned"`
	// Warning is not empty if the volume's own files use more than 10 GB of disk.
	Warning string `json:"warning,omitempty"`
}

// State is "orphaned" or "in use".
func (v Volume) State() string {
	if v.Orphaned {
		return "orphaned"
	}
	return "in use"
}

// UnknownSize is the size in bytes of a volume whose size the engine does not know: -1.
const UnknownSize int64 = -1

// ListVolumes lists the volumes that contain sandboxes' files, by name: volumes of
// existing sandboxes, those that their images declare among them, and volumes preserved from deleted ones. To measure the sizes the
// engine reads every file of all its volumes.
func ListVolumes(ctx context.Context) ([]Volume, error) {
	return defaultClient().ListVolumes(ctx)
}

// ListVolumes is [ListVolumes] on the client's engine.
func (c *Client) ListVolumes(ctx context.Context) (_ []Volume, err error) {
	ctx, span := trace.Start(ctx, "sandbox.list_volumes")
	defer span.End(&err)
	defer wrap(&err, "list volumes", "")
	volumes, missing, err := eachEngine(ctx, c, func(ctx context.Context, l *lifecycle.Client) ([]Volume, error) {
		all, err := l.Store.List(ctx)
		if err != nil {
			return nil, err
		}
		sizes := l.Machine.Sizes(ctx, all.Volumes)
		if ctx.Err() != nil {
			return nil, errdefs.Cancelled(ctx)
		}
		return volumesOf(all, sizes), nil
	})
	return c.byName(volumes, missing, err)
}

// byName returns volumes of several engines by name, and the errors of nodes that did not answer.
func (c *Client) byName(volumes []Volume, missing []cluster.Missing, err error) ([]Volume, error) {
	if err != nil {
		return nil, err
	}
	if c.swarm != nil {
		slices.SortStableFunc(volumes, func(a, b Volume) int { return strings.Compare(a.Name, b.Name) })
	}
	return volumes, cluster.Unanswered(missing)
}

// volumesOf returns the volumes that contain users' files, by name.
func volumesOf(all store.Inventory, sizes map[string]machine.Size) []Volume {
	users := map[string][]string{}
	for _, got := range all.Containers {
		if !got.IsSandbox {
			continue
		}
		for _, m := range got.Container.Mounts {
			if m.Type == "volume" && !slices.Contains(users[m.Name], got.Record.Name) {
				users[m.Name] = append(users[m.Name], got.Record.Name)
			}
		}
	}
	volumes := []Volume{}
	for _, got := range all.Volumes {
		if !record.IsData(got.Name, got.Labels) {
			continue
		}
		v := newVolume(got, sizes)
		v.Sandboxes = append(v.Sandboxes, users[v.Name]...)
		slices.Sort(v.Sandboxes)
		v.InUse = len(v.Sandboxes) > 0 || all.InUse(got)
		v.Orphaned = !v.InUse
		volumes = append(volumes, v)
	}
	return volumes
}

// newVolume converts an engine's volume, with its size if sizes has it.
func newVolume(got engine.Volume, sizes map[string]machine.Size) Volume {
	v := Volume{
		Name: got.Name, Role: got.Labels[record.Role], Sandboxes: []string{},
		CreatedAt: got.CreatedAt, CreatedBy: got.Labels[record.CreatedBy], Source: got.Labels[record.Source],
	}
	if v.Role == "" {
		v.Role = record.RoleWorkspace
	}
	// On older engines the engine's time changes when files are written.
	if t, err := time.Parse(time.RFC3339Nano, got.Labels[record.CreatedAt]); err == nil {
		v.CreatedAt = t
	}
	size, known := sizes[got.Name]
	if !known {
		size.Own = UnknownSize
		if _, shares := got.Overlay(); shares {
			size.Shared = UnknownSize
		}
	}
	v.setSize(size)
	return v
}

func (v *Volume) setSize(n machine.Size) {
	v.SizeBytes, v.SharedBytes, v.Size, v.Warning = n.Own, n.Shared, sizeText(n.Own), ""
	if n.Own > largeVolume {
		v.Warning = fmt.Sprintf("disk usage is %s, more than %s", v.Size, sizeText(largeVolume))
	}
}

// largeVolume is the largest size of a volume without a warning.
const largeVolume = 10 << 30

// sizeText formats a size for people: base 1024, one decimal.
func sizeText(n int64) string {
	switch {
	case n < 0:
		return "unknown"
	case n < 1024:
		return fmt.Sprintf("%d B", n)
	}
	size := float64(n)
	for _, unit := range []string{"KB", "MB", "GB", "TB"} {
		size /= 1024
		if size < 1023.95 { // larger would print as 1024.0
			return fmt.Sprintf("%.1f %s", size, unit)
		}
	}
	return fmt.Sprintf("%.1f PB", size/1024)
}

// DeleteVolume deletes a volume of [ListVolumes] permanently. While sandboxes mount it,
// running or not, the error is [ErrVolumeInUse], unless o.Force is set; while another
// container does, always. The report lists the volume, and the other volumes of the
// sandboxes that were deleted.
func DeleteVolume(ctx context.Context, name string, o DeleteVolumeOptions) (DeleteReport, error) {
	return defaultClient().DeleteVolume(ctx, name, o)
}

// DeleteVolume is [DeleteVolume] on the client's engine.
func (c *Client) DeleteVolume(ctx context.Context, name string, o DeleteVolumeOptions) (report DeleteReport, err error) {
	ctx, span := trace.Start(ctx, "sandbox.delete_volume")
	defer span.End(&err)
	defer wrap(&err, "delete volume", name)
	if err := plan.CheckVolume(name); err != nil {
		return DeleteReport{}, errdefs.Classify(ErrInvalidArgument, err)
	}
	err = c.withVolume(ctx, name, func(l *lifecycle.Client) error {
		outcomes, sandboxes, err := l.Store.DeleteVolume(ctx, name, o.Force)
		report = deleteReport(outcomes, sandboxes)
		return err
	})
	return report, err
}

// DeleteVolumeOptions configure [DeleteVolume].
type DeleteVolumeOptions struct {
	// Force first deletes the sandboxes that mount the volume; their other volumes are preserved.
	// It never deletes a container that is not a sandbox.
	Force bool
}

// DeleteReport lists what a deletion did with each volume, in a stable order.
type DeleteReport struct {
	Volumes []VolumeOutcome `json:"volumes"`
	// Sandboxes are the names of the sandboxes that [DeleteVolume] deleted by
	// force.
	Sandboxes []string `json:"sandboxes,omitempty"`
	// Snapshots are the sandbox's snapshots, the newest first, if [DeleteOptions.Snapshots] is set.
	Snapshots []SnapshotOutcome `json:"snapshots,omitempty"`
}

// String returns one line for each volume and each snapshot.
func (r DeleteReport) String() string {
	var lines []string
	for _, o := range r.Volumes {
		lines = append(lines, o.String())
	}
	for _, o := range r.Snapshots {
		lines = append(lines, o.String())
	}
	return strings.Join(lines, "\n")
}

func deleteReport(outcomes []store.Outcome, sandboxes []string) DeleteReport {
	r := DeleteReport{Volumes: []VolumeOutcome{}, Sandboxes: sandboxes}
	for _, o := range outcomes {
		r.Volumes = append(r.Volumes, VolumeOutcome(o))
	}
	return r
}

// VolumeOutcome says what a deletion did with one volume.
type VolumeOutcome struct {
	Name   string `json:"name"`
	Status string `json:"status"`           // "preserved", "deleted" or "delete-failed"
	Reason string `json:"reason,omitempty"` // one line; may be empty unless the deletion failed
}

// The values of [VolumeOutcome.Status].
const (
	VolumePreserved    = store.Preserved
	VolumeDeleted      = store.Deleted
	VolumeDeleteFailed = store.DeleteFailed
)

func (o VolumeOutcome) String() string { return outcomeText("volume "+o.Name, o.Status, o.Reason) }

// SnapshotOutcome says what a deletion did with one snapshot. Status has one of the values that it has
// in a [VolumeOutcome].
type SnapshotOutcome struct {
	ID     string `json:"id"`
	Status string `json:"status"`
	Reason string `json:"reason,omitempty"` // one line; empty if it was deleted
}

func (o SnapshotOutcome) String() string {
	return outcomeText("snapshot "+o.ID, o.Status, o.Reason)
}

func outcomeText(object, status, reason string) string {
	reason = strings.Join(strings.Fields(reason), " ")
	switch {
	case status == VolumeDeleteFailed:
		return fmt.Sprintf("%s: delete failed: %s", object, reason)
	case reason != "":
		return fmt.Sprintf("%s: %s (%s)", object, status, reason)
	}
	return fmt.Sprintf("%s: %s", object, status)
}

// OrphanedVolumes lists the volumes that no sandbox uses. It changes nothing.
func OrphanedVolumes(ctx context.Context) ([]Volume, error) {
	return defaultClient().OrphanedVolumes(ctx)
}

// OrphanedVolumes is [OrphanedVolumes] on the client's engine.
func (c *Client) OrphanedVolumes(ctx context.Context) (_ []Volume, err error) {
	ctx, span := trace.Start(ctx, "sandbox.orphaned_volumes")
	defer span.End(&err)
	defer wrap(&err, "list orphaned volumes", "")
	volumes, missing, err := eachEngine(ctx, c, func(ctx context.Context, l *lifecycle.Client) ([]Volume, error) {
		return orphanedVolumes(ctx, l, CleanupOptions{})
	})
	return c.byName(volumes, missing, err)
}

// orphanedVolumes returns the orphaned volumes that o selects, with their sizes.
func orphanedVolumes(ctx context.Context, l *lifecycle.Client, o CleanupOptions) ([]Volume, error) {
	all, err := l.Store.List(ctx)
	if err != nil {
		return nil, err
	}
	now := l.Engine.Now()
	orphans := slices.DeleteFunc(volumesOf(all, nil), func(v Volume) bool { return !v.Orphaned || !o.selects(v, now) })
	if len(orphans) == 0 {
		return orphans, nil
	}
	orphaned := map[string]bool{}
	for _, v := range orphans {
		orphaned[v.Name] = true
	}
	sizes := l.Machine.Sizes(ctx, slices.DeleteFunc(all.Volumes, func(v engine.Volume) bool { return !orphaned[v.Name] }))
	if ctx.Err() != nil {
		return nil, errdefs.Cancelled(ctx)
	}
	for i, v := range orphans {
		if n, known := sizes[v.Name]; known {
			orphans[i].setSize(n)
		}
	}
	return orphans, nil
}

// CleanupOrphanedVolumes removes the volumes of [OrphanedVolumes] permanently, including
// volumes that a deletion preserved. The options restrict it. If one can't be removed the
// others still are. The report lists each, also if there is an error.
func CleanupOrphanedVolumes(ctx context.Context, o CleanupOptions) (CleanupReport, error) {
	return defaultClient().CleanupOrphanedVolumes(ctx, o)
}

// CleanupOrphanedVolumes is [CleanupOrphanedVolumes] on the client's engine.
func (c *Client) CleanupOrphanedVolumes(ctx context.Context, o CleanupOptions) (report CleanupReport, err error) {
	ctx, span := trace.Start(ctx, "sandbox.cleanup_orphaned_volumes")
	defer span.End(&err)
	defer wrap(&err, "clean up volumes", "")
	report = CleanupReport{Removed: []string{}, Failed: []VolumeOutcome{}, DryRun: o.DryRun}
	if err := o.check(); err != nil {
		return report, err
	}
	if choose := o.Select; choose != nil {
		var turn sync.Mutex
		o.Select = func(v Volume) bool {
			turn.Lock()
			defer turn.Unlock()
			return choose(v)
		}
	}
	orphans, missing, err := eachEngine(ctx, c, func(ctx context.Context, l *lifecycle.Client) (some []orphan, _ error) {
		volumes, err := orphanedVolumes(ctx, l, o)
		for _, v := range volumes {
			some = append(some, orphan{v, l})
		}
		return some, err
	})
	if err != nil {
		return report, err
	}
	if c.swarm != nil {
		slices.SortStableFunc(orphans, func(a, b orphan) int { return strings.Compare(a.Name, b.Name) })
	}
	return report, errors.Join(cleanUp(ctx, orphans, o, &report), cluster.Unanswered(missing))
}

// An orphan is an orphaned volume with the client of its engine.
type orphan struct {
	Volume
	l *lifecycle.Client
}

func cleanUp(ctx context.Context, orphans []orphan, o CleanupOptions, report *CleanupReport) error {
	if o.Confirm != nil {
		volumes := make([]Volume, 0, len(orphans))
		for _, v := range orphans {
			volumes = append(volumes, v.Volume)
		}
		if err := o.Confirm(volumes); err != nil {
			return fmt.Errorf("not confirmed: %w", err)
		}
	}
	var errs []error
	for _, v := range orphans {
		var err error
		if !o.DryRun {
			err = v.l.Store.RemoveUnusedVolume(ctx, v.Name)
		}
		switch {
		case errors.Is(err, ErrVolumeNotFound):
			continue // another process removed it
		case err != nil:
			report.Failed = append(report.Failed, VolumeOutcome{v.Name, VolumeDeleteFailed, err.Error()})
			errs = append(errs, fmt.Errorf("volume %s: %w", v.Name, err))
			if ctx.Err() != nil {
				return errors.Join(errs...)
			}
			continue
		}
		report.Removed = append(report.Removed, v.Name)
		report.FreedBytes += max(v.SizeBytes, 0)
	}
	return errors.Join(errs...)
}

// CleanupOptions restrict [CleanupOrphanedVolumes]. The zero value removes every orphaned volume.
type CleanupOptions struct {
	// Roles are the roles of the volumes to remove, see [Volume.Role]; empty is all.
	Roles []string
	// Select, if not nil, decides about each orphaned volume, whose size is unknown then. It is
	// a function and no list of names, because an empty list would be taken for all.
	Select func(Volume) bool
	// MinAge keeps volumes that were created less than this time ago.
	MinAge time.Duration
	// DryRun removes nothing. The report lists what would be removed.
	DryRun bool
	// Confirm, if not nil, is called with the volumes that are about to be removed. If it returns
	// an error nothing is removed, and the call returns that error.
	Confirm func([]Volume) error
}

func (o CleanupOptions) check() error {
	var errs []error
	for _, r := range o.Roles {
		if r != "workspace" && r != "rwcopy" && r != "fork" && r != "image" {
			errs = append(errs, errdefs.Invalid("role %q: use workspace, rwcopy, fork or image", r))
		}
	}
	if o.MinAge < 0 {
		errs = append(errs, errdefs.Invalid("CleanupOptions.MinAge: %v is negative", o.MinAge))
	}
	return errors.Join(errs...)
}

func (o CleanupOptions) selects(v Volume, now time.Time) bool {
	return (len(o.Roles) == 0 || slices.Contains(o.Roles, v.Role)) && now.Sub(v.CreatedAt) >= o.MinAge &&
		(o.Select == nil || o.Select(v))
}

// CleanupReport lists what a clean-up did.
type CleanupReport struct {
	// Removed are the names of the removed volumes; of a dry run, those that would be
	// removed.
	Removed []string `json:"removed"`
	// FreedBytes is the size of their own files, see [Volume], without volumes of unknown size.
	FreedBytes int64 `json:"freedBytes"`
	// Failed are the volumes that could not be removed, and why.
	Failed []VolumeOutcome `json:"failed"`
	DryRun bool            `json:"dryRun"`
}

// String returns one line for each volume.
func (r CleanupReport) String() string {
	var lines []string
	for _, name := range r.Removed {
		status := VolumeDeleted
		if r.DryRun {
			status = "would be deleted"
		}
		lines = append(lines, VolumeOutcome{Name: name, Status: status}.String())
	}
	for _, o := range r.Failed {
		lines = append(lines, o.String())
	}
	return strings.Join(lines, "\n")
}
