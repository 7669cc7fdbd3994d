package record

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/policy"
)

// A Revision holds all changes of a sandbox since it was made, so that only the highest one
// counts. The zero Revision is none.
//
// Revisions are volumes numbered from 1. Whoever creates the next number wins; the others
// read it and try again.
//
// A reader finds the highest number n without a list of all volumes of the engine, which is
// slow where there are many: it inspects 1, 2, 4 and so on up to a number that does not exist,
// and from the last one that does it goes on with half the step, and again. That only takes
// the powers of two up to n, and of the other numbers those that consist of the leading bits
// of n. A sweep removes the rest, which is [SupersededRevisions].
type Revision struct {
	N       int
	Changes Changes

	Nonce string // of the operation that made it
}

// Changes are the contents of a revision. A nil field is unchanged.
type Changes struct {
	Network *Network `json:"network,omitempty"`

	TimeoutMS     *int64             `json:"timeout_ms,omitempty"`
	StopTimeoutMS *int64             `json:"stop_timeout_ms,omitempty"`
	Idle          *Idle              `json:"idle,omitempty"`
	Tags          *map[string]string `json:"tags,omitempty"`
	Persistent    *bool              `json:"persistent,omitempty"`
	// These apply from the next session on, which gets a new container; see Outdated. Commands
	// get a new environment at once, the main process does not.
	Ports   *[]uint16 `json:"ports,omitempty"`
	Mounts  *[]Mount  `json:"mounts,omitempty"` // the volume of a copy does not exist yet
	Command *[]string `json:"command,omitempty"`
	Env     *Env      `json:"env,omitempty"`
	// Session overrides the end of one session.
	Session *Session `json:"session,omitempty"`
}

// Idle is the idle timeout. Unlike the other timeouts it also changes for a running session, whose
// PID 1 accepts none with a lower Version than it has.
type Idle struct {
	TimeoutMS      int64 `json:"timeout_ms"` // 0 is none
	IgnoreDetached bool  `json:"ignore_detached,omitempty"`
	Version        int64 `json:"version,omitempty"` // 0 is the one that the sandbox was made with
}

// Timeout is TimeoutMS.
func (i Idle) Timeout() time.Duration { return time.Duration(i.TimeoutMS) * time.Millisecond }

// Session is one session's own end. The engine's start time identifies the session.
type Session struct {
	StartedAt time.Time `json:"started_at"`
	ExpiresAt time.Time `json:"expires_at,omitzero"` // zero is never
	Reason    string    `json:"reason,omitempty"`    // why it ended, if the engine can't tell
	// TimeoutMS and StopTimeoutMS are those of the session, nil if they are the sandbox's.
	TimeoutMS     *int64 `json:"timeout_ms,omitempty"`
	StopTimeoutMS *int64 `json:"stop_timeout_ms,omitempty"`
}

// ReasonPolicy is the reason of a session that was ended because it could not be given a new
// network policy.
const ReasonPolicy = "network policy"

// StaleError reports that another revision came first. Read it and try again.
type StaleError struct{ ID string }

func (e *StaleError) Error() string { return "the record of " + e.ID + " changed concurrently" }

const revision = ".rev-"

func revisionName(id string, n int) string { return WorkspaceName(id) + revision + strconv.Itoa(n) }

// With returns r with rev applied.
func (r Sandbox) With(rev Revision) Sandbox {
	r.Revision = rev
	if rev.Changes.Tags != nil {
		r.Tags = maps.Clone(*rev.Changes.Tags)
	}
	return r
}

// Persists reports whether the sandbox is persistent, with all changes. Persistent is the setting
// of its container: PID 1 of one that is not persistent starts with a lease.
func (r Sandbox) Persists() bool {
	if p := r.Revision.Changes.Persistent; p != nil {
		return *p
	}
	return r.Persistent
}

// Timeout returns the timeout of future sessions.
func (r Sandbox) Timeout() time.Duration {
	return changed(r.Revision.Changes.TimeoutMS, r.Settings.TimeoutMS)
}

// StopTimeout returns the time between SIGTERM and SIGKILL, 0 if the record has none.
func (r Sandbox) StopTimeout() time.Duration {
	return changed(r.Revision.Changes.StopTimeoutMS, r.Settings.StopTimeoutMS)
}

// Idle returns the idle timeout.
func (r Sandbox) Idle() Idle {
	if i := cmp.Or(r.Revision.Changes.Idle, r.Settings.Idle); i != nil {
		return *i
	}
	return Idle{}
}

// IdlePending reports whether the container starts with another idle timeout than the record's.
func (r Sandbox) IdlePending() bool {
	made := Idle{}
	if r.Settings.Idle != nil {
		made = *r.Settings.Idle
	}
	return made != r.Idle()
}

func changed(change *int64, ms int64) time.Duration {
	if change != nil {
		ms = *change
	}
	return time.Duration(ms) * time.Millisecond
}

// ExpiresAt returns when the timeout ends the session that started then; zero is never.
func (r Sandbox) ExpiresAt(started time.Time) time.Time {
	if s := r.Revision.Changes.Session; s != nil && s.StartedAt.Equal(started) {
		return s.ExpiresAt
	}
	if d := r.Timeout(); d > 0 {
		return started.Add(d)
	}
	return time.Time{}
}

// Reason returns why the session that started then ended, if that is recorded.
func (r Sandbox) Reason(started time.Time) string {
	if s := r.Revision.Changes.Session; s != nil && s.StartedAt.Equal(started) {
		return s.Reason
	}
	return ""
}

// TimeoutsPending reports whether PID 1 of the session that started then may still have the timeouts
// that the container was made with, and not the changed ones.
func (r Sandbox) TimeoutsPending(started time.Time) bool {
	c := r.Revision.Changes
	if c.Session != nil && c.Session.StartedAt.Equal(started) {
		return false
	}
	return c.TimeoutMS != nil && *c.TimeoutMS != r.Settings.TimeoutMS ||
		c.StopTimeoutMS != nil && *c.StopTimeoutMS != r.Settings.StopTimeoutMS
}

// Outdated reports whether a change since the container was made needs a new container.
func (r Sandbox) Outdated() bool { return len(r.outdated()) > 0 || r.Persists() != r.Persistent }

// outdated returns the names of the settings that a new container is needed for.
func (r Sandbox) outdated() (names []string) {
	c := r.Revision.Changes
	if c.Command != nil && !slices.Equal(*c.Command, r.Settings.Command) {
		names = append(names, "command")
	}
	if c.Env != nil && c.Env.ID != r.Settings.Env {
		names = append(names, "env")
	}
	if c.Mounts != nil && !slices.EqualFunc(*c.Mounts, r.Settings.Mounts, Mount.Same) {
		names = append(names, "mounts")
	}
	if c.Ports != nil && !slices.Equal(*c.Ports, r.Settings.Ports) {
		names = append(names, "ports")
	}
	return names
}

// PendingChanges returns the names of the settings that changed and that only the session after
// the one that started then gets.
func (r Sandbox) PendingChanges(started time.Time) []string {
	names := r.outdated()
	s := r.Revision.Changes.Session
	if s == nil || !s.StartedAt.Equal(started) {
		return names
	}
	if s.StopTimeoutMS != nil && *s.StopTimeoutMS != r.StopTimeout().Milliseconds() {
		names = append(names, "stopTimeout")
	}
	if s.TimeoutMS != nil && *s.TimeoutMS != r.Timeout().Milliseconds() {
		names = append(names, "timeout")
	}
	return names
}

// Same reports whether two mounts were requested alike. The volume of a copy is ignored:
// each container has its own.
func (m Mount) Same(o Mount) bool {
	return m.Source == o.Source && (m.At(o.Target) || o.At(m.Target)) && m.Mode == o.Mode && (m.Source != "" || m.Volume == o.Volume)
}

// Attached reports whether the mount is a volume that the caller attaches.
func (m Mount) Attached() bool { return m.Source == "" && m.Mode != RWCopy }

// At reports whether a mount is at a target, by that name or the one that was requested.
func (m Mount) At(target string) bool { return target == m.Target || target == m.As && target != "" }

// Merged returns r for a new container, with all changes but those of mounts moved into its
// settings.
func (r Sandbox) Merged() Sandbox {
	c, s := r.Revision.Changes, &r.Settings
	r.Persistent = r.Persists()
	s.TimeoutMS, s.StopTimeoutMS = r.Timeout().Milliseconds(), r.StopTimeout().Milliseconds()
	s.Idle = cmp.Or(c.Idle, s.Idle)
	if c.Ports != nil {
		s.Ports = slices.Clone(*c.Ports)
	}
	if c.Command != nil {
		s.Command = slices.Clone(*c.Command)
	}
	if c.Env != nil {
		s.Env = c.Env.ID
	}
	s.Network = cmp.Or(s.Network, string(policy.AllowAll)) // the new container's PID 1 enforces policies
	return r
}

func (r Sandbox) revisionLabels(rev Revision, base string, now time.Time) (map[string]string, error) {
	text, err := json.Marshal(rev.Changes)
	if err != nil {
		return nil, err
	}
	l := Base(RoleRevision, rev.Nonce, now)
	l[ID], l[Name], l[Of], l[After], l[Settings] = r.ID, r.Name, r.Nonce, base, string(text)
	return l, checkSize(l)
}

// revisionOf reads a volume as a revision of r. ok is false when it is not one: an earlier
// sandbox may have had the ID.
func (r Sandbox) revisionOf(v engine.Volume) (rev Revision, ok bool) {
	if !Is(v.Labels, RoleRevision) || v.Labels[ID] != r.ID || v.Labels[Of] != r.Nonce {
		return rev, false
	}
	n, ok := revisionNumber(v)
	if !ok {
		return rev, false
	}
	rev.N = n
	if json.Unmarshal([]byte(v.Labels[Settings]), &rev.Changes) != nil {
		rev.Changes = Changes{} // damaged, but its number is taken
	}
	rev.Nonce = v.Labels[Nonce]
	return rev, true
}

// revisionNumber reads the number of a revision from its name.
func revisionNumber(v engine.Volume) (n int, ok bool) {
	s, is := strings.CutPrefix(v.Name, WorkspaceName(v.Labels[ID])+revision)
	if !is {
		return 0, false
	}
	n, err := strconv.Atoi(s)
	return n, err == nil && n >= 1 && revisionName(v.Labels[ID], n) == v.Name
}

// Revisions are the latest revisions by sandbox.
type Revisions map[string]Revision

func revisionKey(id, of string) string { return id + " " + of }

// ReadRevisions reads a list of all managed volumes, or of all revisions.
func ReadRevisions(vols []engine.Volume) Revisions {
	type numbered struct {
		n   int
		vol engine.Volume
	}
	latest := map[string]numbered{}
	for _, v := range vols {
		if !Is(v.Labels, RoleRevision) {
			continue
		}
		key := revisionKey(v.Labels[ID], v.Labels[Of])
		if n, ok := revisionNumber(v); ok && n > latest[key].n {
			latest[key] = numbered{n, v}
		}
	}
	all := make(Revisions, len(latest))
	for key, l := range latest {
		all[key], _ = Sandbox{ID: l.vol.Labels[ID], Nonce: l.vol.Labels[Of]}.revisionOf(l.vol)
	}
	return all
}

// Of returns r with its latest revision.
func (all Revisions) Of(r Sandbox) Sandbox { return r.With(all[revisionKey(r.ID, r.Nonce)]) }

// Latest returns r with its latest revision. It takes fewer calls if r has a recent one.
func Latest(ctx context.Context, v Volumes, r Sandbox) (Sandbox, error) {
	if r.Revision.N > 1 {
		if rev, found, err := r.searchFrom(ctx, v, r.Revision.N); err != nil || found {
			return r.With(rev), err
		}
	}
	rev, _, err := r.searchFrom(ctx, v, 1)
	if err != nil {
		return r, err
	}
	return r.With(rev), nil
}

// revisionAt returns the revision of that number, if there is one.
func (r Sandbox) revisionAt(ctx context.Context, v Volumes, n int) (rev Revision, found bool, err error) {
	vol, err := v.InspectVolume(ctx, revisionName(r.ID, n))
	if errors.Is(err, engine.ErrNotFound) {
		return Revision{}, false, nil
	}
	if err != nil {
		return Revision{}, false, err
	}
	rev, found = r.revisionOf(vol)
	return rev, found, nil
}

// searchFrom finds the latest revision, given that there has been one of the number from. It
// finds none if that one is gone.
func (r Sandbox) searchFrom(ctx context.Context, v Volumes, from int) (latest Revision, found bool, err error) {
	latest.N = from
	if from == 1 {
		if latest, found, err = r.revisionAt(ctx, v, 1); err != nil || !found {
			return Revision{}, false, err
		}
	}
	step := lowBit(from)
	for up := true; up || step > 0; {
		next, found, err := r.revisionAt(ctx, v, latest.N+step)
		switch {
		case err != nil:
			return Revision{}, false, err
		case found && up:
			latest, step = next, lowBit(next.N)
			continue
		case found:
			latest = next
		}
		up, step = false, step/2
	}
	if from == 1 {
		return latest, true, nil
	}
	// A sweep removes lower numbers first: as long as this one is there, none was missed.
	first, found, err := r.revisionAt(ctx, v, from)
	if latest.N == from {
		latest = first
	}
	return latest, found, err
}

// lowBit returns the lowest bit of n that is set. n is superseded, for readers, once there is
// a revision n + lowBit(n).
func lowBit(n int) int { return n & -n }

// Revise makes the revision after r's own, with change applied to a copy of its changes,
// and returns r with it. When another revision came first it reads that one and tries
// again, so change may be called more than once and must be idempotent. If change returns
// false, Revise returns r unchanged.
func Revise(ctx context.Context, v Volumes, r Sandbox, change func(*Changes) bool) (Sandbox, error) {
	for {
		next := Revision{N: r.Revision.N + 1, Changes: r.Revision.Changes, Nonce: NewNonce()}
		if !change(&next.Changes) {
			return r, nil
		}
		err := r.commit(ctx, v, next)
		if err == nil {
			return r.With(next), nil
		}
		var stale *StaleError
		if !errors.As(err, &stale) {
			return r, err
		}
		if r, err = Latest(ctx, v, r); err != nil {
			return r, err
		}
		if ctx.Err() != nil {
			return r, context.Cause(ctx)
		}
	}
}

// commit makes the volume of rev, or fails with a *StaleError if another revision came first.
func (r Sandbox) commit(ctx context.Context, v Volumes, rev Revision) error {
	labels, err := r.revisionLabels(rev, r.Revision.Nonce, v.Now())
	if err != nil {
		return err
	}
	name := revisionName(r.ID, rev.N)
	var got engine.Volume
	// Safe to repeat when a reply is lost: creating the volume again returns it.
	err = engine.Retry(ctx, func() (err error) {
		got, err = v.CreateVolume(ctx, name, labels)
		return err
	})
	if err != nil {
		return err
	}
	if got.Labels[Nonce] != rev.Nonce {
		switch {
		case !Is(got.Labels, RoleRevision):
			return &ForeignError{"volume", name}
		case got.Labels[Of] != r.Nonce:
			// It belonged to an earlier sandbox with this ID.
			if err := remove(ctx, v, name); err != nil {
				return err
			}
		}
		return &StaleError{r.ID}
	}
	return r.confirm(ctx, v, rev)
}

// confirm checks that a volume that commit made is the latest revision. A slow writer may have
// made a number again that was used and removed: then there are higher ones, and the next
// does not follow this one.
func (r Sandbox) confirm(ctx context.Context, v Volumes, rev Revision) error {
	return engine.Retry(ctx, func() error {
		latest, _, err := r.searchFrom(ctx, v, 1)
		if err != nil {
			return err
		}
		if latest.N > rev.N && rev.N > 1 { // the first one is never removed, so never made again
			next, err := v.InspectVolume(ctx, revisionName(r.ID, rev.N+1))
			if err != nil && !errors.Is(err, engine.ErrNotFound) {
				return err
			}
			if _, is := r.revisionOf(next); err != nil || !is || next.Labels[After] != rev.Nonce {
				return errors.Join(&StaleError{r.ID}, remove(ctx, v, revisionName(r.ID, rev.N)))
			}
		}
		return nil
	})
}

// DropRevisions removes the revisions of r, the first one last: readers look for the others
// only if it exists. A sweep removes what it does not find.
func DropRevisions(ctx context.Context, v Volumes, r Sandbox) error {
	latest, err := Latest(ctx, v, r.With(Revision{}))
	if err != nil {
		return err
	}
	var errs []error
	for n := latest.Revision.N; n > 0; {
		_, found, err := r.revisionAt(ctx, v, n)
		if err == nil && found {
			err = remove(ctx, v, revisionName(r.ID, n))
		}
		errs = append(errs, err)
		switch {
		case found || err != nil:
			n--
		case n == lowBit(n):
			n /= 2
		default:
			n -= lowBit(n) // the next lower number that a sweep leaves
		}
	}
	return errors.Join(errs...)
}

// DropRevisionsOf removes all revisions of the sandbox with this creation nonce.
func DropRevisionsOf(ctx context.Context, v Volumes, nonce string) error {
	all, err := v.ListVolumes(ctx, Filter(Role, RoleRevision), Filter(Of, nonce))
	if err != nil {
		return err
	}
	var errs []error
	for _, vol := range all {
		if OurName(vol.Name) && Is(vol.Labels, RoleRevision) {
			errs = append(errs, remove(ctx, v, vol.Name))
		}
	}
	return errors.Join(errs...)
}

// OrphanedRevisions returns the names of those revisions among vols that belong to no
// sandbox in alive, a set of creation nonces, and are older than age.
func OrphanedRevisions(vols []engine.Volume, alive map[string]bool, now time.Time, age time.Duration) []string {
	var names []string
	for _, v := range vols {
		if !Is(v.Labels, RoleRevision) || !OurName(v.Name) || alive[v.Labels[Of]] {
			continue
		}
		if made, err := time.Parse(time.RFC3339Nano, v.Labels[CreatedAt]); err == nil && now.Sub(made) < age {
			continue
		}
		names = append(names, v.Name)
	}
	return names
}

// SupersededRevisions returns the names of those revisions among vols that no search inspects
// any more, and has not for that time: a search takes less. They have to be removed in this
// order, see [Latest], and those of a sandbox after one that can't be removed have to stay.
func SupersededRevisions(vols []engine.Volume, now time.Time, age time.Duration) [][]string {
	lines := map[string]map[int]string{}
	settled := map[string]int{} // the latest revision of that age
	for _, v := range vols {
		if !Is(v.Labels, RoleRevision) {
			continue
		}
		rev, ok := (Sandbox{ID: v.Labels[ID], Nonce: v.Labels[Of]}).revisionOf(v)
		if !ok {
			continue
		}
		key := revisionKey(v.Labels[ID], v.Labels[Of])
		if lines[key] == nil {
			lines[key] = map[int]string{}
		}
		lines[key][rev.N] = v.Name
		if made, err := time.Parse(time.RFC3339Nano, v.Labels[CreatedAt]); err == nil && now.Sub(made) > age {
			settled[key] = max(settled[key], rev.N)
		}
	}
	var all [][]string
	for key, line := range lines {
		var old []string
		for _, n := range slices.Sorted(maps.Keys(line)) {
			if n != lowBit(n) && n+lowBit(n) <= settled[key] {
				old = append(old, line[n])
			}
		}
		if len(old) > 0 {
			all = append(all, old)
		}
	}
	return all
}
