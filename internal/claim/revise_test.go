package claim_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/claim"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
)

func someSandbox() record.Sandbox {
	return record.Sandbox{ID: "abc", Name: "n", Nonce: "made", Tags: map[string]string{"as": "made"},
		Settings: record.SandboxSettings{TimeoutMS: 1000, StopTimeoutMS: 2000}}
}

// tag sets a tag beside those there are.
func tag(key, value string) func(*record.Changes) bool {
	return func(c *record.Changes) bool {
		tags := map[string]string{}
		if c.Tags != nil {
			maps.Copy(tags, *c.Tags)
		}
		tags[key] = value
		c.Tags = &tags
		return true
	}
}

func revise(t *testing.T, v claim.Volumes, r record.Sandbox, change func(*record.Changes) bool) record.Sandbox {
	t.Helper()
	r, err := claim.Revise(t.Context(), v, r, change)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func latest(t *testing.T, v claim.Volumes, r record.Sandbox) record.Sandbox {
	t.Helper()
	r, err := claim.Latest(t.Context(), v, r)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// Of any number of concurrent changes none is lost: all revisions are of one line.
func TestRevisionsOfManyWritersAddUp(t *testing.T) {
	t.Parallel()
	m := newMemory()
	var all sync.WaitGroup
	for w := range 8 {
		all.Go(func() {
			r := someSandbox()
			for n := range 20 {
				r = revise(t, m, r, tag(fmt.Sprintf("%d-%d", w, n), "set"))
			}
		})
	}
	all.Wait()
	r := latest(t, m, someSandbox())
	// A writer that two others overtook may have had to come again, so there can be more.
	n := r.Revision.N
	if len(r.Tags) != 8*20 || n < 8*20 {
		t.Errorf("160 changes by 8 writers: revision %d with %d of them", n, len(r.Tags))
	}
	if err := claim.DropRevisions(t.Context(), m, r); err != nil || len(m.vols) > 0 {
		t.Errorf("DropRevisions: %v, left %v", err, m.vols)
	}
}

// A writer that slept since before others made and removed its number sees that it is
// late, and comes after them.
func TestLateWriterComesAfterTheOthers(t *testing.T) {
	t.Parallel()
	m := newMemory()
	r := revise(t, m, someSandbox(), tag("a", "1"))
	for n := range 5 {
		revise(t, m, latest(t, m, r), tag("b", fmt.Sprint(n)))
	}
	late := revise(t, m, r, tag("a", "2")) // on top of number 1
	if late.Revision.N != 7 || late.Tags["a"] != "2" || late.Tags["b"] != "4" {
		t.Errorf("the late writer made revision %d with %v, want 7 with a=2 and b=4", late.Revision.N, late.Tags)
	}
	if got := latest(t, m, someSandbox()); !maps.Equal(got.Tags, late.Tags) {
		t.Errorf("Latest: %v, want %v", got.Tags, late.Tags)
	}
}

// A reader that finds no first revision asks for nothing else.
func TestLatestWithoutRevisionsIsOneCall(t *testing.T) {
	t.Parallel()
	v := &counted{memory: newMemory()}
	r := latest(t, v, someSandbox())
	if r.Revision.N != 0 || r.Tags["as"] != "made" || r.Timeout() != time.Second || r.StopTimeout() != 2*time.Second || v.calls.Load() != 1 {
		t.Errorf("Latest without a revision: %+v in %d calls", r, v.calls.Load())
	}
}

// counted counts calls, and lists among them.
type counted struct {
	*memory
	calls, lists atomic.Int64
}

func (c *counted) CreateVolume(ctx context.Context, name string, labels map[string]string) (engine.Volume, error) {
	c.calls.Add(1)
	return c.memory.CreateVolume(ctx, name, labels)
}

func (c *counted) RemoveVolume(ctx context.Context, name string, force bool) error {
	c.calls.Add(1)
	return c.memory.RemoveVolume(ctx, name, force)
}

func (c *counted) InspectVolume(ctx context.Context, name string) (engine.Volume, error) {
	c.calls.Add(1)
	return c.memory.InspectVolume(ctx, name)
}

func (c *counted) ListVolumes(ctx context.Context, labels ...string) ([]engine.Volume, error) {
	c.calls.Add(1)
	c.lists.Add(1)
	return c.memory.ListVolumes(ctx, labels...)
}

// A sandbox that had the ID before has no say in this one.
func TestRevisionsOfAnEarlierSandboxDoNotCount(t *testing.T) {
	t.Parallel()
	m := newMemory()
	old := someSandbox()
	old.Nonce = "earlier"
	for range 3 {
		old = revise(t, m, old, tag("old", "yes"))
	}
	if got := latest(t, m, someSandbox()); got.Tags["old"] != "" {
		t.Errorf("Latest of a new sandbox with an old ID: %v", got.Tags)
	}
	revise(t, m, someSandbox(), tag("new", "yes"))
	got := latest(t, m, someSandbox())
	if got.Tags["new"] != "yes" || got.Tags["old"] != "" {
		t.Errorf("after its own revision: %v", got.Tags)
	}
	if all := claim.ReadRevisions(slices.Collect(maps.Values(m.vols))).Of(someSandbox()); !maps.Equal(all.Tags, got.Tags) {
		t.Errorf("in a list of all: %v, want %v", all.Tags, got.Tags)
	}
}

func TestRevisionNeverTakesAForeignVolume(t *testing.T) {
	t.Parallel()
	m := newMemory()
	m.CreateVolume(t.Context(), "agent-sandbox-abc.rev-1", map[string]string{"mine": "yes"})
	_, err := claim.Revise(t.Context(), m, someSandbox(), tag("a", "b"))
	var foreign *record.ForeignError
	if !errors.As(err, &foreign) {
		t.Errorf("Revise: %v, want a ForeignError", err)
	}
	if err := claim.DropRevisions(t.Context(), m, someSandbox()); err != nil || len(m.vols) != 1 {
		t.Errorf("DropRevisions: %v, left %v", err, m.vols)
	}
	if got := latest(t, m, someSandbox()); got.Revision.N != 0 {
		t.Errorf("Latest read a foreign volume as revision %d", got.Revision.N)
	}
	other := newMemory()
	r := revise(t, other, someSandbox(), tag("a", "b"))
	labels := maps.Clone(other.vols["agent-sandbox-abc.rev-1"].Labels)
	labels[record.Role] = "workspace"
	other.CreateVolume(t.Context(), "agent-sandbox-abc.rev-9", labels)
	all := slices.Collect(maps.Values(other.vols))
	if got := claim.ReadRevisions(all).Of(someSandbox()); got.Revision.N != 1 || !maps.Equal(got.Tags, r.Tags) {
		t.Errorf("a list has revision %d with %v, want 1 with %v", got.Revision.N, got.Tags, r.Tags)
	}
	if got := claim.OrphanedRevisions(all, nil, other.Now().Add(time.Hour), time.Minute); !slices.Equal(got, []string{"agent-sandbox-abc.rev-1"}) {
		t.Errorf("OrphanedRevisions = %v, want the revision alone", got)
	}
	if got := claim.SupersededRevisions(all, other.Now().Add(time.Hour), time.Minute); len(got) > 0 {
		t.Errorf("SupersededRevisions = %v, want none", got)
	}
}

func TestDamagedRevisionIsReadAsNoChange(t *testing.T) {
	t.Parallel()
	m := newMemory()
	revise(t, m, someSandbox(), tag("a", "b"))
	m.vols["agent-sandbox-abc.rev-1"].Labels[record.Settings] = "{"
	got := latest(t, m, someSandbox())
	if got.Revision.N != 1 || got.Tags["as"] != "made" {
		t.Errorf("Latest: %+v, want number 1 and the tags as made", got)
	}
	if got = revise(t, m, got, tag("c", "d")); got.Revision.N != 2 || got.Tags["c"] != "d" {
		t.Errorf("the next one: %+v", got)
	}
}

func TestRevisionIsBounded(t *testing.T) {
	t.Parallel()
	m := newMemory()
	_, err := claim.Revise(t.Context(), m, someSandbox(), tag("a", strings.Repeat("x", record.MaxLabels)))
	if err == nil || !strings.Contains(err.Error(), "tags") || len(m.vols) > 0 {
		t.Errorf("Revise with endless tags: %v, made %d volumes", err, len(m.vols))
	}
}

// A change that is not recorded is an error, whichever call fails.
func TestErrorsOfARevisionAreReturned(t *testing.T) {
	t.Parallel()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	earlier := someSandbox()
	earlier.Nonce = "earlier"
	for what, test := range map[string]struct {
		ctx    context.Context
		broken broken
		first  record.Sandbox // whose revision is there
		want   error
	}{
		"the creation": {t.Context(), broken{creations: true}, record.Sandbox{}, errBroken},
		"the look at the revision that came first":          {t.Context(), broken{inspections: true}, someSandbox(), errBroken},
		"the context, after another revision":               {ended, broken{}, someSandbox(), context.Canceled},
		"the removal of the revision of an earlier sandbox": {t.Context(), broken{removals: true}, earlier, errBroken},
	} {
		b := test.broken
		b.memory = newMemory()
		if test.first.ID != "" {
			revise(t, b.memory, test.first, tag("a", "b"))
		}
		before, r := b.names(), someSandbox()
		got, err := claim.Revise(test.ctx, &b, r, tag("c", "d"))
		if !errors.Is(err, test.want) || got.Tags["c"] != "" || !slices.Equal(b.names(), before) {
			t.Errorf("%s: %v with tags %v, volumes %v of %v; want %v and no change", what, err, got.Tags, b.names(), before, test.want)
		}
	}
	b := broken{memory: newMemory(), lists: true}
	if err := claim.DropRevisionsOf(t.Context(), &b, "made"); !errors.Is(err, errBroken) {
		t.Errorf("DropRevisionsOf without a list: %v, want %v", err, errBroken)
	}
}

func TestStrayRevisionsAreOldAndOfNobody(t *testing.T) {
	t.Parallel()
	m := newMemory()
	revise(t, m, someSandbox(), tag("a", "b"))
	vols := slices.Collect(maps.Values(m.vols))
	for _, test := range []struct {
		alive map[string]bool
		after time.Duration
		want  int
	}{{nil, 2 * time.Minute, 1}, {nil, 0, 0}, {map[string]bool{"made": true}, 2 * time.Minute, 0}} {
		if got := claim.OrphanedRevisions(vols, test.alive, m.Now().Add(test.after), time.Minute); len(got) != test.want {
			t.Errorf("alive %v, %v later: %v", test.alive, test.after, got)
		}
	}
}

// Which end a session has, by what the record says of it.
func TestExpiryOfASession(t *testing.T) {
	t.Parallel()
	began := time.Unix(1_700_000_000, 5)
	hour, none := int64(3_600_000), int64(0)
	for what, test := range map[string]struct {
		changes record.Changes
		want    time.Time
		untold  bool
	}{
		"as made":         {record.Changes{}, began.Add(time.Second), false},
		"a new timeout":   {record.Changes{TimeoutMS: &hour}, began.Add(time.Hour), true},
		"no timeout":      {record.Changes{TimeoutMS: &none}, time.Time{}, true},
		"the session's":   {record.Changes{TimeoutMS: &hour, Session: &record.Session{StartedAt: began, ExpiresAt: began.Add(9)}}, began.Add(9), false},
		"another session": {record.Changes{Session: &record.Session{StartedAt: began.Add(1), ExpiresAt: began}}, began.Add(time.Second), false},
		"a session's no":  {record.Changes{Session: &record.Session{StartedAt: began}}, time.Time{}, false},
	} {
		r := someSandbox().With(record.Revision{N: 1, Changes: test.changes})
		if got := r.ExpiresAt(began); !got.Equal(test.want) || r.TimeoutsPending(began) != test.untold {
			t.Errorf("%s: expires at %v, untold %v; want %v, %v", what, got, r.TimeoutsPending(began), test.want, test.untold)
		}
	}
}

// However many revisions there were, and whatever a sweep left of them, readers and writers find
// the latest by few inspections and no list.
func TestRevisionsAreFoundWithoutAList(t *testing.T) {
	t.Parallel()
	v := &counted{memory: newMemory()}
	r := someSandbox()
	for n := range 300 {
		if n%7 == 3 {
			r = someSandbox() // another process, which has to read first
		}
		r = revise(t, v, r, tag("n", fmt.Sprint(n)))
		if n%50 == 49 {
			vols, _ := v.memory.ListVolumes(t.Context())
			for _, line := range claim.SupersededRevisions(vols, v.Now().Add(time.Hour), time.Minute) {
				for _, name := range line {
					v.RemoveVolume(t.Context(), name, false)
				}
			}
			if most := 2*9 + 1; len(v.vols) > most {
				t.Errorf("after a sweep %d volumes are left of %d revisions, want at most %d", len(v.vols), r.Revision.N, most)
			}
		}
		for _, from := range []record.Sandbox{someSandbox(), r} {
			v.calls.Store(0)
			if got := latest(t, v, from); got.Revision.N != r.Revision.N || got.Tags["n"] != fmt.Sprint(n) {
				t.Fatalf("Latest after %d changes, from %d: revision %d of %v, want %d", n+1, from.Revision.N, got.Revision.N, got.Tags, r.Revision.N)
			}
			// Whoever knows the latest asks for the next, and whether the known one is still there.
			if most := 2; n > 0 && n%2 == 0 && from.Revision.N == r.Revision.N && int(v.calls.Load()) > most {
				t.Errorf("Latest of revision %d, which is known, took %d calls, want %d", r.Revision.N, v.calls.Load(), most)
			}
			if v.calls.Load() > 20 {
				t.Errorf("Latest of revision %d took %d calls", r.Revision.N, v.calls.Load())
			}
		}
	}
	if err := claim.DropRevisions(t.Context(), v, r); err != nil || len(v.vols) > 0 {
		t.Errorf("DropRevisions = %v, left %d volumes", err, len(v.vols))
	}
	if v.lists.Load() > 0 {
		t.Errorf("%d lists, want none", v.lists.Load())
	}
}

// No reader sees an older revision than there was when it began, while others write.
func TestReadersNeverGoBack(t *testing.T) {
	t.Parallel()
	m := newMemory()
	var known, done atomic.Int64
	var all sync.WaitGroup
	for range 3 {
		all.Go(func() {
			defer done.Add(1)
			r := someSandbox()
			for range 150 {
				r = revise(t, m, r, tag("a", "b"))
				for old := known.Load(); old < int64(r.Revision.N) && !known.CompareAndSwap(old, int64(r.Revision.N)); old = known.Load() {
				}
			}
		})
	}
	for range 4 {
		all.Go(func() {
			r := someSandbox()
			for done.Load() < 3 {
				began := known.Load()
				fresh, kept := latest(t, m, someSandbox()), latest(t, m, r)
				if int64(fresh.Revision.N) < began || int64(kept.Revision.N) < began {
					t.Errorf("read revisions %d and %d, when there was %d before", fresh.Revision.N, kept.Revision.N, began)
				}
				if fresh.Revision.N%5 == 0 {
					r = kept
				}
			}
		})
	}
	all.Wait()
}
