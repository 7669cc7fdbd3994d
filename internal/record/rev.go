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
// read it and try again. The first one is kept as long as the sandbox: a reader that does
// not find it, with one cheap call, knows that there are none.
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
	Tags          *map[string]string `json:"tags,omitempty"`
	// These apply from the next session on, which gets a new container; see Outdated. Commands
	// get a new environment at once, the main process does not.
	Ports   *[]uint16 `json:"ports,omitempty"`
	Mounts  *[]Mount  `json:"mounts,omitempty"` // the volume of a copy does not exist yet
	Command *[]string `json:"command,omitempty"`
	Env     *Env      `json:"env,omitempty"`
	// Session overrides the end of one session.
	Session *Session `json:"session,omitempty"`
}

// Session is one session's own end. The engine's start time identifies the session.
type Session struct {
	StartedAt time.Time `json:"started_at"`
	ExpiresAt time.Time `json:"expires_at,omitzero"` // zero is never
	Reason    string    `json:"reason,omitempty"`    // why it ended, if the engine can't tell
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

// Timeout returns the timeout of future sessions.
func (r Sandbox) Timeout() time.Duration {
	return changed(r.Revision.Changes.TimeoutMS, r.Settings.TimeoutMS)
}

// StopTimeout returns the time between SIGTERM and SIGKILL, 0 if the record has none.
func (r Sandbox) StopTimeout() time.Duration {
	return changed(r.Revision.Changes.StopTimeoutMS, r.Settings.StopTimeoutMS)
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
func (r Sandbox) Outdated() bool {
	c := r.Revision.Changes
	return c.Ports != nil && !slices.Equal(*c.Ports, r.Settings.Ports) ||
		c.Command != nil && !slices.Equal(*c.Command, r.Settings.Command) ||
		c.Mounts != nil && !slices.EqualFunc(*c.Mounts, r.Settings.Mounts, Mount.Same) ||
		c.Env != nil && c.Env.ID != r.Settings.Env
}

// Same reports whether two mounts were requested alike. The volume of a copy is ignored:
// each container has its own.
func (m Mount) Same(o Mount) bool {
	return m.Source == o.Source && m.Target == o.Target && m.Mode == o.Mode && (m.Source != "" || m.Volume == o.Volume)
}

// Merged returns r for a new container, with all changes but those of mounts moved into its
// settings.
func (r Sandbox) Merged() Sandbox {
	c, s := r.Revision.Changes, &r.Settings
	s.TimeoutMS, s.StopTimeoutMS = r.Timeout().Milliseconds(), r.StopTimeout().Milliseconds()
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
	n, is := strings.CutPrefix(v.Name, WorkspaceName(r.ID)+revision)
	if !is || !Is(v.Labels, RoleRevision) || v.Labels[ID] != r.ID || v.Labels[Of] != r.Nonce {
		return rev, false
	}
	var err error
	if rev.N, err = strconv.Atoi(n); err != nil || rev.N < 1 || revisionName(r.ID, rev.N) != v.Name {
		return rev, false
	}
	if json.Unmarshal([]byte(v.Labels[Settings]), &rev.Changes) != nil {
		rev.Changes = Changes{} // damaged, but its number is taken
	}
	rev.Nonce = v.Labels[Nonce]
	return rev, true
}

// Revisions are the latest revisions by sandbox.
type Revisions map[string]Revision

func revisionKey(id, of string) string { return id + " " + of }

// ReadRevisions reads a list of all managed volumes, or of all revisions.
func ReadRevisions(vols []engine.Volume) Revisions {
	all := Revisions{}
	for _, v := range vols {
		if !Is(v.Labels, RoleRevision) {
			continue
		}
		rev, ok := (Sandbox{ID: v.Labels[ID], Nonce: v.Labels[Of]}).revisionOf(v)
		if key := revisionKey(v.Labels[ID], v.Labels[Of]); ok && rev.N > all[key].N {
			all[key] = rev
		}
	}
	return all
}

// Of returns r with its latest revision.
func (all Revisions) Of(r Sandbox) Sandbox { return r.With(all[revisionKey(r.ID, r.Nonce)]) }

// Latest returns r with its latest revision.
func Latest(ctx context.Context, v Volumes, r Sandbox) (Sandbox, error) {
	first, err := v.InspectVolume(ctx, revisionName(r.ID, 1))
	if errors.Is(err, engine.ErrNotFound) {
		return r.With(Revision{}), nil
	}
	if err != nil {
		return r, err
	}
	if _, ok := r.revisionOf(first); !ok {
		return r.With(Revision{}), nil
	}
	vols, err := revisions(ctx, v, r.ID)
	if err != nil {
		return r, err
	}
	return ReadRevisions(append(vols, first)).Of(r), nil
}

func revisions(ctx context.Context, v Volumes, id string) ([]engine.Volume, error) {
	return v.ListVolumes(ctx, Filter(Role, RoleRevision), Filter(ID, id))
}

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

// confirm checks that a volume that commit made is the latest revision, and removes older
// ones. A slow writer may have made a number again that was used and removed: then there
// are higher ones, and the next does not follow this one.
func (r Sandbox) confirm(ctx context.Context, v Volumes, rev Revision) error {
	var all []engine.Volume
	err := engine.Retry(ctx, func() (err error) {
		all, err = revisions(ctx, v, r.ID)
		return err
	})
	if err != nil {
		return err
	}
	latest, followed := true, false
	var old []string
	for _, vol := range all {
		other, ok := r.revisionOf(vol)
		switch {
		case !ok:
		case other.N == rev.N+1 && vol.Labels[After] == rev.Nonce:
			followed = true
		case other.N > rev.N && rev.N > 1: // the first one is never removed, so never made again
			latest = false
		case other.N < rev.N-1 && other.N > 1:
			// The one just before stays: a reader may be in the middle of a list.
			old = append(old, vol.Name)
		}
	}
	if !latest && !followed {
		return errors.Join(&StaleError{r.ID}, remove(ctx, v, revisionName(r.ID, rev.N)))
	}
	// Whatever can't be removed now goes with the next revision, or with the sandbox.
	for _, name := range old {
		v.RemoveVolume(ctx, name, false)
	}
	return nil
}

// DropRevisions removes all revisions of r.
func DropRevisions(ctx context.Context, v Volumes, r Sandbox) error {
	if _, err := v.InspectVolume(ctx, revisionName(r.ID, 1)); errors.Is(err, engine.ErrNotFound) {
		return nil
	} else if err != nil {
		return err
	}
	all, err := revisions(ctx, v, r.ID)
	if err != nil {
		return err
	}
	// The first one last: readers look for the others only if it exists.
	slices.SortFunc(all, func(a, b engine.Volume) int {
		return cmp.Or(len(b.Name)-len(a.Name), strings.Compare(b.Name, a.Name))
	})
	var errs []error
	for _, vol := range all {
		if vol.Labels[Of] == r.Nonce {
			errs = append(errs, remove(ctx, v, vol.Name))
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
