package record

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/policy"
)

// A Revision is what has changed of a sandbox since it was made: all of it, so that
// the highest one alone tells. The zero Revision is none.
//
// Revisions are volumes numbered from 1. Whoever makes the next number has the turn;
// the others read it and try again on top. The first one stays for as long as the
// sandbox does: a reader that does not find it need not look for more, which is one
// cheap call whatever else is on the engine.
type Revision struct {
	N       int
	Changes Changes

	Nonce string // of the operation that made it
}

// Changes are what a revision says. Nil is as it was made.
type Changes struct {
	Network *Network `json:"network,omitempty"`

	TimeoutMS     *int64             `json:"timeout_ms,omitempty"`
	StopTimeoutMS *int64             `json:"stop_timeout_ms,omitempty"`
	Tags          *map[string]string `json:"tags,omitempty"`
	// What follows waits for the next session, whose container is made anew for it; see
	// Outdated. Of the environment only the main process has to wait.
	Ports   *[]uint16 `json:"ports,omitempty"`
	Mounts  *[]Mount  `json:"mounts,omitempty"` // a copy's volume is still to be made
	Command *[]string `json:"command,omitempty"`
	Env     *Env      `json:"env,omitempty"`
	// Session is about one session whose end is not what the rest of the record says.
	Session *Session `json:"session,omitempty"`
}

// Session is known by when it started, as the engine tells it.
type Session struct {
	StartedAt time.Time `json:"started_at"`
	ExpiresAt time.Time `json:"expires_at,omitzero"` // zero is never
}

// StaleError says that another revision came first. Read it and try again.
type StaleError struct{ ID string }

func (e *StaleError) Error() string { return "the record of " + e.ID + " was changed meanwhile" }

const revision = ".rev-"

func revisionName(id string, n int) string { return WorkspaceName(id) + revision + strconv.Itoa(n) }

// With returns r as rev has it.
func (r Sandbox) With(rev Revision) Sandbox {
	r.Revision = rev
	if rev.Changes.Tags != nil {
		r.Tags = maps.Clone(*rev.Changes.Tags)
	}
	return r
}

// Timeout is that of the sessions to come.
func (r Sandbox) Timeout() time.Duration {
	ms := r.Settings.TimeoutMS
	if c := r.Revision.Changes.TimeoutMS; c != nil {
		ms = *c
	}
	return time.Duration(ms) * time.Millisecond
}

// StopTimeout is what processes get between SIGTERM and SIGKILL; 0 when the record
// does not say.
func (r Sandbox) StopTimeout() time.Duration {
	ms := r.Settings.StopTimeoutMS
	if c := r.Revision.Changes.StopTimeoutMS; c != nil {
		ms = *c
	}
	return time.Duration(ms) * time.Millisecond
}

// ExpiresAt is when the session that started then ends by its timeout; zero is never.
func (r Sandbox) ExpiresAt(started time.Time) time.Time {
	if s := r.Revision.Changes.Session; s != nil && s.StartedAt.Equal(started) {
		return s.ExpiresAt
	}
	if d := r.Timeout(); d > 0 {
		return started.Add(d)
	}
	return time.Time{}
}

// Untold reports whether PID 1 of the session that started then may not know of the
// changes yet: it was told at the start what the sandbox was made with.
func (r Sandbox) Untold(started time.Time) bool {
	c := r.Revision.Changes
	if c.Session != nil && c.Session.StartedAt.Equal(started) {
		return false
	}
	return c.TimeoutMS != nil && *c.TimeoutMS != r.Settings.TimeoutMS ||
		c.StopTimeoutMS != nil && *c.StopTimeoutMS != r.Settings.StopTimeoutMS
}

// Outdated reports whether the container was made before some change that it takes
// another container for.
func (r Sandbox) Outdated() bool {
	c := r.Revision.Changes
	return c.Ports != nil && !slices.Equal(*c.Ports, r.Settings.Ports) ||
		c.Command != nil && !slices.Equal(*c.Command, r.Settings.Command) ||
		c.Mounts != nil && !slices.EqualFunc(*c.Mounts, r.Settings.Mounts, Mount.Same) ||
		c.Env != nil && c.Env.ID != r.Settings.Env
}

// Same reports whether two mounts are asked for in the same words.
func (m Mount) Same(o Mount) bool {
	return m.Source == o.Source && m.Target == o.Target && m.Mode == o.Mode && (m.Source != "" || m.Volume == o.Volume)
}

// Folded is r as a new container has it, but for its mounts.
func (r Sandbox) Folded() Sandbox {
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
	s.Network = cmp.Or(s.Network, string(policy.AllowAll)) // its PID 1 is of this version
	return r
}

func (r Sandbox) revisionLabels(rev Revision, base string, now time.Time) (map[string]string, error) {
	text, err := json.Marshal(rev.Changes)
	if err != nil {
		return nil, err
	}
	l := Base(RoleRevision, rev.Nonce, now)
	l[ID], l[Name], l[Of], l[After], l[Settings] = r.ID, r.Name, r.Nonce, base, string(text)
	size := 0
	for k, v := range l {
		size += len(k) + len(v)
	}
	if size > MaxLabels {
		return nil, fmt.Errorf("the record takes %d bytes of labels, more than %d: shorten tags, environment or command", size, MaxLabels)
	}
	return l, nil
}

// revisionOf reads a volume as a revision of r. ok is false when it is not one: a
// sandbox before it may have had its ID.
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
		rev.Changes = Changes{} // damaged; its number counts all the same
	}
	rev.Nonce = v.Labels[Nonce]
	return rev, true
}

// Revisions are the latest revisions among many volumes.
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

// Of returns r with its revision.
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

// Revise makes the revision after r's own, with change applied to a copy of its
// changes, and returns r with it. When another came first it reads that one and tries
// again, so change may be called often and must not mind that what it sets is set
// already. A change that returns false is not needed.
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

// commit makes the volume of rev, and then looks whether it was its turn.
func (r Sandbox) commit(ctx context.Context, v Volumes, rev Revision) error {
	labels, err := r.revisionLabels(rev, r.Revision.Nonce, v.Now())
	if err != nil {
		return err
	}
	name := revisionName(r.ID, rev.N)
	var got engine.Volume
	// A reply that was lost comes again: making the same volume once more returns it.
	err = engine.Insist(ctx, func() (err error) {
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
			// Of a sandbox that had the ID before: it speaks for nobody.
			if err := remove(ctx, v, name); err != nil {
				return err
			}
		}
		return &StaleError{r.ID}
	}
	// A slow writer may have made a number again that others have left behind. So look
	// once more: if there are higher ones, the next must have come from this one.
	var all []engine.Volume
	err = engine.Insist(ctx, func() (err error) {
		all, err = revisions(ctx, v, r.ID)
		return err
	})
	if err != nil {
		return err
	}
	ours, followed := true, false
	var lower []string
	for _, vol := range all {
		other, ok := r.revisionOf(vol)
		switch {
		case !ok:
		case other.N == rev.N+1 && vol.Labels[After] == rev.Nonce:
			followed = true
		case other.N > rev.N && rev.N > 1: // the first one is never left behind
			ours = false
		case other.N < rev.N-1 && other.N > 1:
			// Not the one before: somebody may be in the middle of a list.
			lower = append(lower, vol.Name)
		}
	}
	if !ours && !followed {
		return errors.Join(&StaleError{r.ID}, remove(ctx, v, name))
	}
	// What stays is removed by the next revision, or with the sandbox.
	for _, name := range lower {
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
	// The first one last: without it nobody looks for the others.
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

// DropRevisionsOf removes all revisions of the sandbox that was made with nonce.
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

// StrayRevisions returns the names of those revisions among vols that belong to no
// sandbox in alive, a set of creation nonces, and are older than age.
func StrayRevisions(vols []engine.Volume, alive map[string]bool, now time.Time, age time.Duration) []string {
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
