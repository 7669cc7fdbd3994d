package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
)

// MountMode says what may be done with a mount, and whose files it shows.
type MountMode string

// The modes of a mount.
const (
	// RO shows a directory or volume read-only.
	RO MountMode = "ro"
	// RW shows it read-write: what the sandbox changes is changed.
	RW MountMode = "rw"
	// RWCopy copies a directory into a new volume when the sandbox is made, and shows
	// that read-write. The directory itself is never changed, and what happens to it
	// later is not seen inside.
	RWCopy MountMode = "rwcopy"
)

// A Mount shows a directory, a copy of one, or a volume at a path in the sandbox.
type Mount struct {
	// Source is a directory on this machine; a relative path is made absolute when the
	// sandbox is. With RO and RW the engine mounts it, so the engine has to run here or
	// see the same path.
	Source string
	// Volume is a volume of this library's, see [ListVolumes], to be attached instead of
	// a Source. It outlives the sandbox unless [PreserveVolumes] says otherwise. Of a
	// sandbox that exists it is also the volume that an RWCopy was copied into, beside
	// its Source.
	Volume string
	// Target is an absolute path in the sandbox. /workspace itself is taken; below it is
	// fine. A target inside another one hides what that has there.
	Target string
	// Mode is [RWCopy] if it is empty and there is a Source, and [RW] for a Volume.
	Mode MountMode
}

// String tells what is mounted where, for people.
func (m Mount) String() string {
	switch {
	case m.mode() == RWCopy && m.Source != "":
		return fmt.Sprintf("%s: rwcopy snapshot of %s", m.Target, m.Source)
	case m.Volume != "":
		return fmt.Sprintf("%s: existing volume %s (%s)", m.Target, m.Volume, m.mode())
	}
	return fmt.Sprintf("%s: bind of %s (%s)", m.Target, m.Source, m.mode())
}

func (m Mount) mode() MountMode {
	switch {
	case m.Mode != "":
		return m.Mode
	case m.Volume != "":
		return RW
	}
	return RWCopy
}

const (
	mountFormat  = "source:target[:ro|rw|rwcopy]"
	volumeFormat = "name:target[:rw|ro]"
)

// ParseMount reads a mount of a directory as command lines have it,
// source:target[:ro|rw|rwcopy]; the mode is rwcopy when it is left out. A source with a
// colon in it can't be written this way: use a [Mount]. The target is checked, the
// source is not looked at.
func ParseMount(spec string) (Mount, error) {
	m := Mount{Mode: RWCopy}
	rest := spec
	drive := ""
	if regexp.MustCompile(`^[A-Za-z]:[\\/]`).MatchString(spec) {
		if runtime.GOOS == "windows" {
			drive, rest = spec[:2], spec[2:]
		} else if strings.Contains(spec[2:], ":/") {
			return Mount{}, fail("parse mount", spec, invalid("a Windows path on %s: the source is a directory of this machine", runtime.GOOS))
		}
	}
	parts := strings.Split(rest, ":")
	if len(parts) < 2 || len(parts) > 3 || parts[0] == "" || parts[1] == "" {
		return Mount{}, fail("parse mount", spec, invalid("a mount is written %s", mountFormat))
	}
	m.Source, m.Target = drive+parts[0], parts[1]
	var mode error
	if len(parts) == 3 {
		if m.Mode = MountMode(parts[2]); m.Mode == "" {
			mode = errors.New(`mode ""; there is ro, rw, rwcopy`)
		}
	}
	if err := errors.Join(mode, checkMode(m), checkTarget(m.Target)); err != nil {
		return Mount{}, fail("parse mount", spec, classify(ErrInvalidArgument, err))
	}
	return m, nil
}

// ParseVolumeMount reads a mount of a volume as command lines have it,
// name:target[:rw|ro]; the mode is rw when it is left out. The target is checked, the
// volume is not looked for.
func ParseVolumeMount(spec string) (Mount, error) {
	m := Mount{Mode: RW}
	parts := strings.Split(spec, ":")
	if len(parts) < 2 || len(parts) > 3 || parts[0] == "" || parts[1] == "" {
		return Mount{}, fail("parse volume mount", spec, invalid("a volume is written %s", volumeFormat))
	}
	m.Volume, m.Target = parts[0], parts[1]
	var mode error
	if len(parts) == 3 {
		if m.Mode = MountMode(parts[2]); m.Mode == "" {
			mode = errors.New(`mode ""; there is rw, ro`)
		}
	}
	if err := errors.Join(mode, checkMode(m), checkVolume(m.Volume), checkTarget(m.Target)); err != nil {
		return Mount{}, fail("parse volume mount", spec, classify(ErrInvalidArgument, err))
	}
	return m, nil
}

func checkMode(m Mount) error {
	switch m.mode() {
	case RO, RW:
		return nil
	case RWCopy:
		if m.Volume == "" {
			return nil
		}
		return fmt.Errorf("mode %q is not for a volume; there is rw, ro", m.Mode)
	}
	if m.Volume != "" {
		return fmt.Errorf("mode %q; there is rw, ro", m.Mode)
	}
	return fmt.Errorf("mode %q; there is ro, rw, rwcopy", m.Mode)
}

// reservedTargets are not for mounts, nor is anything below them.
var reservedTargets = []string{"/proc", "/sys", "/dev", wire.Dir}

func checkTarget(target string) error {
	if !path.IsAbs(target) {
		return fmt.Errorf("target %q is not an absolute path", target)
	}
	if strings.ContainsRune(target, 0) || !utf8.ValidString(target) {
		return fmt.Errorf("target %q: a path has no NUL, and the engine takes UTF-8 alone", target)
	}
	clean := path.Clean(target)
	switch {
	case clean == "/":
		return fmt.Errorf("target %q is the root of the sandbox", target)
	case clean == Workspace:
		return fmt.Errorf("target %q is reserved for the sandbox volume", target)
	}
	for _, r := range reservedTargets {
		if clean == r || strings.HasPrefix(clean, r+"/") {
			return fmt.Errorf("target %q: %s is not for mounts", target, r)
		}
	}
	return nil
}

// checkVolume is for every volume name that a caller passes in.
func checkVolume(name string) error {
	if name, sub, found := strings.Cut(name, "/"); found && record.ValidVolume(name) {
		return fmt.Errorf("volume %q: a directory of a volume (%q) can't be mounted alone", name, sub)
	}
	if !record.ValidVolume(name) {
		return fmt.Errorf("%q is not a volume's name: it takes %s", name, record.VolumeRule)
	}
	return nil
}

// resolve completes a mount: defaults, clean and absolute paths.
func (m Mount) resolve() (Mount, error) {
	m.Mode = m.mode()
	switch {
	case m.Source == "" && m.Volume == "":
		return m, fmt.Errorf("mount at %q has neither a source nor a volume", m.Target)
	case m.Source != "" && m.Volume != "":
		return m, fmt.Errorf("mount at %q has both a source, %q, and a volume, %q", m.Target, m.Source, m.Volume)
	}
	err := errors.Join(checkMode(m), checkTarget(m.Target))
	m.Target = path.Clean(m.Target)
	if m.Volume != "" {
		return m, errors.Join(err, checkVolume(m.Volume))
	}
	if strings.ContainsRune(m.Source, 0) || !utf8.ValidString(m.Source) {
		return m, errors.Join(err, fmt.Errorf("source %q: a path has no NUL, and the engine takes UTF-8 alone", m.Source))
	}
	// A path of the engine's machine may look absolute there alone.
	if !path.IsAbs(m.Source) {
		abs, e := filepath.Abs(m.Source)
		if e != nil {
			return m, errors.Join(err, e)
		}
		m.Source = abs
	}
	if m.Mode == RWCopy {
		err = errors.Join(err, checkCopySource(m.Source))
	}
	return m, err
}

func checkCopySource(dir string) error {
	dir = filepath.Clean(dir)
	if dir == filepath.VolumeName(dir)+string(filepath.Separator) {
		return fmt.Errorf("source %q is a whole file system: name a directory in it", dir)
	}
	st, err := os.Stat(dir)
	if err != nil {
		return fmt.Errorf("source: %w", err)
	}
	if !st.IsDir() {
		return fmt.Errorf("source %q must be a directory: for a file, mount the directory it is in, or write it with the sandbox's file calls", dir)
	}
	return nil
}

// resolveMounts completes mounts and returns every complaint.
func resolveMounts(mounts []Mount) ([]Mount, []error) {
	var (
		out      []Mount
		problems []error
	)
	for _, m := range mounts {
		m, err := m.resolve()
		if err != nil {
			problems = append(problems, err)
		}
		if i := slices.IndexFunc(out, func(o Mount) bool { return o.Target == m.Target }); i >= 0 && m.Target != "." {
			problems = append(problems, fmt.Errorf("target %q is there twice", m.Target))
		}
		out = append(out, m)
	}
	return out, problems
}

// WithMounts shows directories, copies of directories and volumes in the sandbox, beside
// the workspace, which is always there. Given more than once, mounts add up. The default
// mode of a directory, [RWCopy], copies it before anything runs in the sandbox: mode,
// owner by number, times, links, extended attributes and holes are kept, nothing is
// filtered, and sockets and devices are left out and reported as [Progress]. A file that
// is being changed while it is copied fails the call, and so does one that can't be read.
//
// A volume that is attached must be one of [ListVolumes]. The workspace of another
// sandbox may be attached, too, and is then shared with it.
func WithMounts(mounts ...Mount) ChangeOption {
	mounts = slices.Clone(mounts)
	return changeOption{changeMounts, func(s *settings) { s.mounts = append(s.mounts, mounts...) }}
}

// A Plan is what is about to be made.
type Plan struct {
	Name, ID, Image string
	// Mounts are complete: absolute sources, clean targets, modes.
	Mounts []Mount
}

// String tells of each mount on a line of its own.
func (p Plan) String() string {
	lines := make([]string, len(p.Mounts))
	for i, m := range p.Mounts {
		lines[i] = m.String()
	}
	return strings.Join(lines, "\n")
}

// WithConfirm asks fn before anything is made. When it returns an error nothing is, and
// the call returns that error. [GetOrCreate] asks only when it is about to make the
// sandbox; another may be faster all the same.
func WithConfirm(fn func(Plan) error) MakeOption {
	return makeOption(func(s *settings) { s.confirm = fn })
}

// confirmed asks the caller, if that is wanted.
func (s *settings) confirmed() error {
	if s.confirm == nil {
		return nil
	}
	plan := Plan{Name: s.name, ID: s.id, Image: s.image, Mounts: slices.Clone(s.mounts)}
	if err := s.confirm(plan); err != nil {
		return fmt.Errorf("not confirmed: %w", err)
	}
	return nil
}

// Mounts returns what is mounted in the sandbox beside its workspace, in the order it was
// asked for. What [Sandbox.Update] changed of it is told from the next session on.
func (s *Sandbox) Mounts() []Mount {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.mounts)
}

// mountsOf reads the mounts of a sandbox from its record, or from its container if the
// record is older than that.
func mountsOf(rec record.Sandbox, got engine.Container) []Mount {
	var mounts []Mount
	for _, m := range rec.Settings.Mounts {
		mounts = append(mounts, Mount{Source: m.Source, Volume: m.Volume, Target: m.Target, Mode: MountMode(m.Mode)})
	}
	if mounts != nil {
		return mounts
	}
	for _, m := range got.Mounts {
		if m.Target == Workspace || m.Target == wire.Dir {
			continue
		}
		mode := RO
		if m.RW {
			mode = RW
		}
		switch m.Type {
		case "bind":
			mounts = append(mounts, Mount{Source: m.Source, Target: m.Target, Mode: mode})
		case "volume":
			if !record.OurName(m.Name) {
				continue // the image asked for it
			}
			mounts = append(mounts, Mount{Volume: m.Name, Target: m.Target, Mode: mode})
		}
	}
	slices.SortFunc(mounts, func(a, b Mount) int { return strings.Compare(a.Target, b.Target) })
	return mounts
}

// checkAttached looks at the volumes that are to be attached before anything is made:
// the engine would make a new one under the name of one that is missing.
func checkAttached(ctx context.Context, eng *engine.Engine, mounts []Mount) error {
	var errs []error
	for _, m := range mounts {
		if m.Source != "" {
			continue
		}
		if _, err := findVolume(ctx, eng, m.Volume); err != nil {
			if !errors.Is(err, ErrVolumeNotFound) && !errors.Is(err, ErrUnsupported) {
				return err
			}
			errs = append(errs, fmt.Errorf("mount at %q: %w", m.Target, err))
		}
	}
	return errors.Join(errs...)
}

// copies makes the volumes that directories are to be copied into.
func (b *build) copies(ctx context.Context) error {
	for i, m := range b.mounted {
		if m.Mode == RWCopy && (m.Volume == "" || b.s.origin != nil) {
			role := record.RoleRWCopy
			if m.Volume != "" {
				role = record.RoleFork // of a copy that another sandbox has
			}
			name := record.VolumeName(b.rec.ID, role, m.Target, b.op)
			b.undo.add("volume "+name, func(ctx context.Context) error {
				return removeVolume(ctx, b.eng, name, b.rec.Nonce)
			})
			labels := b.rec.VolumeLabels(role)
			labels[record.CreatedBy], labels[record.Source] = role, m.Source
			if b.op != b.rec.Nonce {
				labels[record.By] = b.op
			}
			got, err := b.volume(ctx, name, m.Target, labels)
			if err != nil {
				return fmt.Errorf("make volume %s: %w", name, err)
			}
			if got.Labels[record.Nonce] != b.rec.Nonce {
				return &record.ForeignError{Kind: "volume", Object: name}
			}
			if role == record.RoleFork {
				b.forked = append(b.forked, transfer{what: m.Target, from: tree{volume: m.Volume}, to: tree{volume: name}, labels: labels})
			} else {
				b.fills = append(b.fills, fill{dir: m.Source, volume: name})
			}
			m.Volume = name
			b.mounted[i] = m
		}
		b.rec.Settings.Mounts = append(b.rec.Settings.Mounts,
			record.Mount{Source: m.Source, Volume: m.Volume, Target: m.Target, Mode: string(m.Mode)})
	}
	return nil
}

// mounts are the container's beside the workspace and the guest. Should the engine make
// a volume because it has just gone, the nonce of what is being done tells.
func (b *build) mounts() []engine.Mount {
	var mounts []engine.Mount
	for _, m := range b.mounted {
		e := engine.Mount{Type: "bind", Source: m.Source, Target: m.Target, ReadOnly: m.Mode == RO}
		if m.Volume != "" {
			e.Type, e.Source, e.NoCopy = "volume", m.Volume, true
			e.VolumeLabels = record.With(b.rec.VolumeLabels(record.RoleRWCopy), record.Nonce, b.op)
		}
		mounts = append(mounts, e)
	}
	return mounts
}

// attached registers the undo of volumes that the engine could make in place of attached
// ones; those that are there have another nonce and are never touched.
func (b *build) attached() {
	for _, m := range b.mounted {
		if m.Source == "" {
			b.undo.add("volume "+m.Volume, func(ctx context.Context) error {
				return removeVolume(ctx, b.eng, m.Volume, b.op)
			})
		}
	}
}

// below returns the names in the workspace that mounts need.
func below(mounts []Mount) (names []string) {
	for _, m := range mounts {
		if rel, is := strings.CutPrefix(m.Target, Workspace+"/"); is {
			name, _, _ := strings.Cut(rel, "/")
			names = append(names, name)
		}
	}
	return names
}

// nested reports whether something is mounted inside a copy, which the workspace is, too,
// when it has a source.
func nested(mounts []Mount, source bool) bool {
	return source && len(below(mounts)) > 0 || slices.ContainsFunc(mounts, func(outer Mount) bool {
		return outer.Mode == RWCopy && slices.ContainsFunc(mounts, func(inner Mount) bool {
			return strings.HasPrefix(inner.Target, outer.Target+"/")
		})
	})
}

// stillAttached looks again once the container holds the attached volumes.
func (b *build) stillAttached(ctx context.Context) error {
	for _, m := range b.mounted {
		if m.Source != "" {
			continue
		}
		v, err := findVolume(ctx, b.eng, m.Volume)
		if err != nil {
			return err
		}
		if v.Labels[record.Nonce] == b.op {
			return fmt.Errorf("%w: %s was removed meanwhile", ErrVolumeNotFound, m.Volume)
		}
	}
	return nil
}
