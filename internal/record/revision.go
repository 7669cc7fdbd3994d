package record

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

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

const revision = ".rev-"

// RevisionName is the name of the volume of a sandbox's nth revision.
func RevisionName(id string, n int) string { return WorkspaceName(id) + revision + strconv.Itoa(n) }

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

// RevisionLabels encodes rev, which follows the revision with the nonce base.
func (r Sandbox) RevisionLabels(rev Revision, base string, now time.Time) (map[string]string, error) {
	text, err := json.Marshal(rev.Changes)
	if err != nil {
		return nil, err
	}
	l := Base(RoleRevision, rev.Nonce, now)
	l[ID], l[Name], l[Of], l[After], l[Settings] = r.ID, r.Name, r.Nonce, base, string(text)
	return l, checkSize(l)
}

// RevisionOf reads a volume of that name as a revision of r. ok is false when it is not one: an earlier
// sandbox may have had the ID.
func (r Sandbox) RevisionOf(object string, labels map[string]string) (rev Revision, ok bool) {
	if !Is(labels, RoleRevision) || labels[ID] != r.ID || labels[Of] != r.Nonce {
		return rev, false
	}
	n, ok := RevisionNumber(object, labels)
	if !ok {
		return rev, false
	}
	rev.N = n
	if json.Unmarshal([]byte(labels[Settings]), &rev.Changes) != nil {
		rev.Changes = Changes{} // damaged, but its number is taken
	}
	rev.Nonce = labels[Nonce]
	return rev, true
}

// RevisionNumber reads the number of a revision from its name.
func RevisionNumber(object string, labels map[string]string) (n int, ok bool) {
	s, is := strings.CutPrefix(object, WorkspaceName(labels[ID])+revision)
	if !is {
		return 0, false
	}
	n, err := strconv.Atoi(s)
	return n, err == nil && n >= 1 && RevisionName(labels[ID], n) == object
}
