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
	"testing/synctest"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/claim"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
)

// memory is the engine's volumes as the marker needs them: making one that exists
// returns the old one. What the engine really does is tested on one, in the root.
type memory struct {
	mu   sync.Mutex
	vols map[string]engine.Volume
	step atomic.Int64 // by which the engine's clock was set
}

func newMemory() *memory { return &memory{vols: map[string]engine.Volume{}} }

func (m *memory) CreateVolume(_ context.Context, name string, labels map[string]string) (engine.Volume, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if v, ok := m.vols[name]; ok {
		return v, nil
	}
	m.vols[name] = engine.Volume{Name: name, Labels: maps.Clone(labels)}
	return m.vols[name], nil
}

func (m *memory) InspectVolume(_ context.Context, name string) (engine.Volume, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if v, ok := m.vols[name]; ok {
		return v, nil
	}
	return engine.Volume{}, engine.ErrNotFound
}

func (m *memory) ListVolumes(_ context.Context, labels ...string) (vs []engine.Volume, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, v := range m.vols {
		if !slices.ContainsFunc(labels, func(l string) bool {
			k, want, _ := strings.Cut(l, "=")
			return v.Labels[k] != want
		}) {
			vs = append(vs, v)
		}
	}
	return vs, nil
}

func (m *memory) RemoveVolume(_ context.Context, name string, _ bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.vols[name]; !ok {
		return engine.ErrNotFound
	}
	delete(m.vols, name)
	return nil
}

func (m *memory) Now() time.Time { return time.Now().Add(time.Duration(m.step.Load())) }

func (m *memory) names() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Sorted(maps.Keys(m.vols))
}

func TestOneOfManyClaims(t *testing.T) {
	m := newMemory()
	var won atomic.Int32
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			c, err := claim.Try(t.Context(), m, "x", record.NewNonce(), fmt.Sprint(i))
			var held *claim.TakenError
			switch {
			case err == nil:
				won.Add(1)
				c.Stop()
			case !errors.As(err, &held) || held.Marker.Nonce == "":
				t.Errorf("Try = %v, want a TakenError with the winner's nonce", err)
			}
		})
	}
	wg.Wait()
	if won.Load() != 1 {
		t.Errorf("%d of 50 claimed it", won.Load())
	}
}

func TestLivingCreatorKeepsItsClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		c, err := claim.Try(t.Context(), m, "x", "mine", "me")
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * claim.Lease) // in the bubble's own time
		got, found, err := claim.FindMarker(t.Context(), m, "x")
		if err != nil || !found || got.Expired(m.Now()) {
			t.Errorf("after 20 leases Look = %+v, %v, %v; want one that has not expired", got, found, err)
		}
		if n := len(m.names()); n > 3 {
			t.Errorf("%d volumes are in use for one claim: %v", n, m.names())
		}
		if err := c.Commit(t.Context()); err != nil {
			t.Errorf("Commit = %v", err)
		}
		if err := c.DropRenewals(t.Context()); err != nil || len(m.names()) != 0 {
			t.Errorf("after Commit there is %v (%v)", m.names(), err)
		}
	})
}

func TestDeadCreatorIsTakenOverOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		c, err := claim.Try(t.Context(), m, "x", "dead", "me")
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * claim.Lease) // it was renewed before it died
		c.Stop()
		time.Sleep(claim.Lease + time.Second)
		dead, found, err := claim.FindMarker(t.Context(), m, "x")
		if err != nil || !found || !dead.Expired(m.Now()) {
			t.Fatalf("Look = %+v, %v, %v; want an expired one", dead, found, err)
		}
		var cleared atomic.Int32
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				err := claim.TakeOver(t.Context(), m, dead, fmt.Sprint("n", i), "", func(context.Context) error {
					cleared.Add(1)
					time.Sleep(time.Second)
					return nil
				})
				if err != nil {
					t.Errorf("TakeOver = %v", err)
				}
			})
		}
		wg.Wait()
		if cleared.Load() != 1 || len(m.names()) != 0 {
			t.Errorf("cleared %d times, left %v; want once and nothing", cleared.Load(), m.names())
		}
		if err := c.Commit(t.Context()); err == nil {
			t.Error("the dead creator could still commit")
		}
	})
}

// A taker that looked long ago must not clear what a new creator makes.
func TestStaleTakeoverLeavesTheNextCreator(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		old := record.Marker{Name: "x", Nonce: "old"}
		c, err := claim.Try(t.Context(), m, "x", "new", "me")
		if err != nil {
			t.Fatal(err)
		}
		defer c.Stop()
		err = claim.TakeOver(t.Context(), m, old, "late", "", func(context.Context) error {
			t.Error("it cleared")
			return nil
		})
		if err != nil {
			t.Errorf("TakeOver = %v", err)
		}
		if got, found, _ := claim.FindMarker(t.Context(), m, "x"); !found || got.Nonce != "new" {
			t.Errorf("Look = %+v, %v; want the new creator's", got, found)
		}
	})
}

func TestFailedClearKeepsTheMarker(t *testing.T) {
	m := newMemory()
	m.CreateVolume(t.Context(), "agent-sandbox-pending.x", map[string]string{record.Managed: "true",
		record.Role: record.RolePending, record.Name: "x", record.Nonce: "dead"})
	dead, _, _ := claim.FindMarker(t.Context(), m, "x")
	want := errors.New("stuck")
	if err := claim.TakeOver(t.Context(), m, dead, "n", "", func(context.Context) error { return want }); !errors.Is(err, want) {
		t.Errorf("TakeOver = %v, want %v", err, want)
	}
	if got := m.names(); !slices.Equal(got, []string{"agent-sandbox-pending.x"}) {
		t.Errorf("there is %v, want the marker alone", got)
	}
}

func TestForeignVolumeIsNotAMarker(t *testing.T) {
	m := newMemory()
	m.CreateVolume(t.Context(), "agent-sandbox-pending.x", nil)
	var foreign *record.ForeignError
	if _, err := claim.Try(t.Context(), m, "x", "n", ""); !errors.As(err, &foreign) {
		t.Errorf("Try = %v, want a ForeignError", err)
	}
	if _, found, err := claim.FindMarker(t.Context(), m, "x"); !errors.As(err, &foreign) || found {
		t.Errorf("FindMarker = %v, %v, want a ForeignError", found, err)
	}
	if err := claim.Drop(t.Context(), m, "x", "", ""); err != nil || len(m.names()) != 1 {
		t.Errorf("Drop = %v, left %v; want the foreign volume untouched", err, m.names())
	}
}

func TestStrayRenewalsAreFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		c, err := claim.Try(t.Context(), m, "x", "n", "")
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(claim.Lease)
		c.Stop()
		if err := c.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		vols, _ := m.ListVolumes(t.Context())
		if stray := claim.ExpiredLeftovers(vols, m.Now()); len(stray) != 0 {
			t.Errorf("Stray = %v while the lease may still be somebody's", stray)
		}
		time.Sleep(2 * claim.Lease)
		if stray := claim.ExpiredLeftovers(vols, m.Now()); !slices.Equal(stray, m.names()) || len(stray) == 0 {
			t.Errorf("Stray = %v, want %v", stray, m.names())
		}
	})
}

// A marker is found, renewed, committed and dropped by inspections, however old it is: a list of
// all volumes is slow where there are many.
func TestMarkersNeedNoList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &counted{memory: newMemory()}
		for round := range 2 {
			c, err := claim.Try(t.Context(), v, "x", "mine", "me")
			if err != nil {
				t.Fatal(err)
			}
			for range 40 {
				time.Sleep(claim.Lease / 4)
				if got, found, err := claim.FindMarker(t.Context(), v, "x"); err != nil || !found || got.Expired(v.Now()) {
					t.Errorf("FindMarker = %+v, %v, %v; want one that has not expired", got, found, err)
				}
				vols, _ := v.memory.ListVolumes(t.Context())
				if got := claim.Markers(vols); len(got) != 1 || got[0].Expired(v.Now()) {
					t.Errorf("Markers of a list = %+v, want one that has not expired", got)
				}
			}
			if round == 0 {
				err = errors.Join(c.Commit(t.Context()), c.DropRenewals(t.Context()))
			} else {
				c.Stop()
				err = claim.Drop(t.Context(), v, "x", "mine", "")
			}
			if err != nil || len(v.names()) > 0 || v.lists.Load() > 0 {
				t.Errorf("round %d: %v, left %v, after %d lists", round, err, v.names(), v.lists.Load())
			}
		}
	})
}

// When the renewals of a claim fail, its context ends with ErrLost, and Commit fails with it.
func TestLostClaimIsNotCommitted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		silent := &silentVolumes{memory: m}
		c, err := claim.Try(t.Context(), silent, "x", "mine", "me")
		if err != nil {
			t.Fatal(err)
		}
		bound, release := c.Bind(t.Context())
		defer release()
		time.Sleep(2 * claim.Lease)
		if bound.Err() != nil {
			t.Fatalf("while the claim is renewed its context has ended: %v", context.Cause(bound))
		}
		silent.now.Store(true)
		time.Sleep(claim.Lease + time.Second)
		if cause := context.Cause(bound); !errors.Is(cause, claim.ErrLost) {
			t.Errorf("a lease after the last renewal the cause is %v, want ErrLost", cause)
		}
		dead, _, err := claim.FindMarker(t.Context(), m, "x")
		if err != nil {
			t.Fatal(err)
		}
		err = claim.TakeOver(t.Context(), m, dead, "next", "", func(context.Context) error {
			silent.now.Store(false)
			if err := c.Commit(t.Context()); !errors.Is(err, claim.ErrLost) {
				t.Errorf("Commit while another process clears = %v, want ErrLost", err)
			}
			return nil
		})
		if err != nil || len(m.names()) > 0 {
			t.Errorf("TakeOver = %v, left %v", err, m.names())
		}
	})
}

// silentVolumes does not answer while now is set.
type silentVolumes struct {
	*memory
	now atomic.Bool
}

func (s *silentVolumes) CreateVolume(ctx context.Context, name string, labels map[string]string) (engine.Volume, error) {
	if s.now.Load() {
		<-ctx.Done()
		return engine.Volume{}, ctx.Err()
	}
	return s.memory.CreateVolume(ctx, name, labels)
}

// Setting the engine's clock ends no lease.
func TestStepOfTheClockExpiresNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		c, err := claim.Try(t.Context(), m, "x", "mine", "me")
		if err != nil {
			t.Fatal(err)
		}
		var w claim.Watch
		dead := func() bool {
			t.Helper()
			got, found, err := claim.FindMarker(t.Context(), m, "x")
			if err != nil || !found {
				t.Fatalf("FindMarker = %v, %v", found, err)
			}
			return w.Dead(got, m.Now())
		}
		for range 10 {
			m.step.Add(int64(time.Hour))
			for range 40 { // 20 s
				if dead() {
					t.Fatal("the holder of a marker that it renews counts as dead")
				}
				time.Sleep(time.Second / 2)
			}
		}
		c.Stop()
		time.Sleep(claim.Lease + time.Second)
		if dead() {
			t.Error("the holder counts as dead at the first look")
		}
		time.Sleep(claim.ConfirmAfter)
		if !dead() {
			t.Errorf("the holder of a marker that nobody has renewed for %v does not count as dead", claim.ConfirmAfter)
		}
	})
}

func TestOneOfManySweeps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		for range 3 {
			won := ""
			for i := range 20 {
				nonce := fmt.Sprint(i)
				if ok, err := claim.TrySweep(t.Context(), m, nonce, ""); err != nil {
					t.Fatal(err)
				} else if ok && won != "" {
					t.Errorf("both %s and %s are to sweep", won, nonce)
				} else if ok {
					won = nonce
				}
			}
			if won == "" {
				t.Error("nobody is to sweep")
			}
			time.Sleep(record.SweepEvery)
		}
		if ok, err := claim.TrySweep(t.Context(), m, "early", ""); !ok || err != nil {
			t.Errorf("TrySweep = %v, %v", ok, err)
		}
		if err := claim.GiveUpSweep(t.Context(), m, "early"); err != nil {
			t.Error(err)
		}
		if ok, err := claim.TrySweep(t.Context(), m, "next", ""); !ok || err != nil {
			t.Errorf("TrySweep after another client gave up = %v, %v, want true", ok, err)
		}
		vols, _ := m.ListVolumes(t.Context())
		if past := claim.PastSweeps(vols, m.Now()); len(past) != len(vols)-1 || len(vols) != 4 {
			t.Errorf("of %d sweeps %v are past", len(vols), past)
		}
	})
}

// losing loses the reply to the first removal.
type losing struct {
	*memory
	lost bool
}

func (l *losing) RemoveVolume(ctx context.Context, name string, force bool) error {
	err := l.memory.RemoveVolume(ctx, name, force)
	if err == nil && !l.lost {
		l.lost = true
		return engine.ErrUnavailable
	}
	return err
}

func TestRepeatedDropKeepsAnothersClaim(t *testing.T) {
	m := &losing{memory: newMemory()}
	c, err := claim.Try(t.Context(), m, "x", "mine", "me")
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Drop(t.Context()); !errors.Is(err, engine.ErrUnavailable) {
		t.Fatalf("Drop with a lost reply = %v, want ErrUnavailable", err)
	}
	other, err := claim.Try(t.Context(), m, "x", "theirs", "other")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Stop()
	if err := c.Drop(t.Context()); err != nil {
		t.Errorf("Drop again = %v", err)
	}
	if got, found, err := claim.FindMarker(t.Context(), m, "x"); err != nil || !found || got.Nonce != "theirs" {
		t.Errorf("FindMarker = %+v, %v, %v; want the other's", got, found, err)
	}
}

// A deletion has the nonce of its sandbox, so it may find the marker that an earlier one left,
// which has expired: others may take that over at any time.
func TestClaimOfAnOldMarkerKeepsAnothersClaim(t *testing.T) {
	for name, end := range map[string]func(*claim.Claim, context.Context) error{"Commit": (*claim.Claim).Commit, "Drop": (*claim.Claim).Drop} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newMemory()
				dead, err := claim.Try(t.Context(), m, "x", "mine", "me")
				if err != nil {
					t.Fatal(err)
				}
				dead.Stop()
				time.Sleep(2 * claim.Lease)
				c, err := claim.Try(t.Context(), m, "x", "mine", "me")
				if err != nil {
					t.Fatal(err)
				}
				old, _, err := claim.FindMarker(t.Context(), m, "x")
				if err != nil {
					t.Fatal(err)
				}
				nothing := func(context.Context) error { return nil }
				if err := claim.TakeOver(t.Context(), m, old, "theirs", "other", nothing); err != nil {
					t.Fatal(err)
				}
				other, err := claim.Try(t.Context(), m, "x", "theirs", "other")
				if err != nil {
					t.Fatal(err)
				}
				defer other.Stop()
				err = end(c, t.Context())
				if got, found, _ := claim.FindMarker(t.Context(), m, "x"); !found || got.Nonce != "theirs" {
					t.Errorf("after %s (%v) the marker is %+v, %v; want the other's", name, err, got, found)
				}
			})
		})
	}
}

// strict refuses to make a volume that exists, as Podman does when two calls make it at once.
type strict struct{ *memory }

func (s strict) CreateVolume(ctx context.Context, name string, labels map[string]string) (engine.Volume, error) {
	if _, err := s.InspectVolume(ctx, name); err == nil {
		return engine.Volume{}, errors.New("volume already exists")
	}
	return s.memory.CreateVolume(ctx, name, labels)
}

func TestRefusedClaimIsHeld(t *testing.T) {
	m := strict{newMemory()}
	c, err := claim.Try(t.Context(), m, "x", "theirs", "other")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Stop()
	var held *claim.TakenError
	if _, err := claim.Try(t.Context(), m, "x", "mine", "me"); !errors.As(err, &held) || held.Marker.Nonce != "theirs" {
		t.Errorf("Try = %v, want a TakenError with the other's nonce", err)
	}
}

// Of several deletions of a sandbox one has the claim, though all have the sandbox's nonce.
func TestOneDeletionHasTheClaim(t *testing.T) {
	t.Parallel()
	m := newMemory()
	rec := record.Sandbox{Name: "x", Nonce: "n"}
	creator, err := claim.Try(t.Context(), m, "x", "n", "the creator")
	if err != nil {
		t.Fatal(err)
	}
	creator.Stop()
	over, err := claim.TryDelete(t.Context(), m, rec, "1", "first")
	if err != nil {
		t.Fatalf("TryDelete of what is being created: %v", err)
	}
	if err := over.Drop(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time as after a lost reply
		first, err := claim.TryDelete(t.Context(), m, rec, "1", "first")
		if err != nil {
			t.Fatalf("TryDelete: %v", err)
		}
		defer first.Stop()
	}
	var held *claim.TakenError
	if _, err := claim.TryDelete(t.Context(), m, rec, "2", "second"); !errors.As(err, &held) || !held.Marker.Deletes {
		t.Errorf("TryDelete of what is being deleted: %v, want a TakenError", err)
	}
}

// A creator that gives up, and repeats that after a lost reply, keeps the marker of whoever deletes what
// it had made, and the marker's renewals.
func TestDropKeepsTheMarkerOfADeletion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		deletion, err := claim.TryDelete(t.Context(), m, record.Sandbox{Name: "x", Nonce: "n"}, "by", "a deletion")
		if err != nil {
			t.Fatal(err)
		}
		defer deletion.Stop()
		time.Sleep(claim.Lease)
		synctest.Wait() // for a renewal of this moment
		before := m.names()
		if err := claim.Drop(t.Context(), m, "x", "n", ""); err != nil || !slices.Equal(m.names(), before) || len(before) < 2 {
			t.Errorf("Drop by the creator: %v, it leaves %q of %q", err, m.names(), before)
		}
		if err := deletion.Drop(t.Context()); err != nil || len(m.names()) > 0 {
			t.Errorf("Drop by the deletion: %v, it leaves %q", err, m.names())
		}
	})
}

// What an error says of who has the name.
func TestHeldErrorSaysWhatIsDone(t *testing.T) {
	for want, m := range map[string]record.Marker{
		`"x" is being made by me`:                 {Name: "x", Holder: "me"},
		`"x" is being changed by me`:              {Name: "x", Holder: "me", Of: "n"},
		`"x" is being deleted by another process`: {Name: "x", Deletes: true},
		`"x" is being moved by me`:                {Name: "x", Holder: "me", From: "n"},
	} {
		if got := (&claim.TakenError{Marker: m}).Error(); got != want {
			t.Errorf("%+v: %s, want %s", m, got, want)
		}
	}
}

// A marker that somebody removed by hand is no claim any more, whether it was renewed or not.
func TestCommitNeedsTheMarker(t *testing.T) {
	for _, age := range []time.Duration{0, claim.Lease} {
		synctest.Test(t, func(t *testing.T) {
			m := newMemory()
			c, err := claim.Try(t.Context(), m, "x", "mine", "me")
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(age)
			if err := m.RemoveVolume(t.Context(), record.MarkerName("x"), false); err != nil {
				t.Fatal(err)
			}
			if err := c.Commit(t.Context()); !errors.Is(err, claim.ErrLost) {
				t.Errorf("Commit without the marker, after %v: %v, want ErrLost", age, err)
			}
		})
	}
}

// A claim that lapsed while nobody took over leaves its marker when it is committed: if its holder dies now,
// the marker says what it made.
func TestCommitOfALapsedClaimLeavesTheMarker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		silent := &silentVolumes{memory: newMemory()}
		c, err := claim.Try(t.Context(), silent, "x", "mine", "me")
		if err != nil {
			t.Fatal(err)
		}
		silent.now.Store(true)
		time.Sleep(claim.Lease)
		if err := c.Commit(t.Context()); !errors.Is(err, claim.ErrLost) || !slices.Contains(silent.names(), record.MarkerName("x")) {
			t.Errorf("Commit = %v, left %v; want ErrLost and the marker", err, silent.names())
		}
	})
}

// slowVolumes is the engine that answers a second after a call, whether or not its context has ended.
type slowVolumes struct {
	*memory
	busy atomic.Int32
}

func (s *slowVolumes) CreateVolume(ctx context.Context, name string, labels map[string]string) (engine.Volume, error) {
	s.busy.Add(1)
	defer s.busy.Add(-1)
	time.Sleep(time.Second)
	return s.memory.CreateVolume(ctx, name, labels)
}

// No renewal is made after Stop has returned.
func TestStopWaitsForARenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &slowVolumes{memory: newMemory()}
		c, err := claim.Try(t.Context(), v, "x", "mine", "me")
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(claim.Lease/3 + time.Second/2)
		before := v.busy.Load()
		c.Stop()
		if after := v.busy.Load(); before != 1 || after != 0 {
			t.Errorf("%d calls before Stop and %d after it, want 1 and 0", before, after)
		}
	})
}

// broken fails all calls of one kind.
type broken struct {
	*memory
	creations, inspections, lists, removals bool
}

func (b *broken) CreateVolume(ctx context.Context, name string, labels map[string]string) (engine.Volume, error) {
	if b.creations {
		return engine.Volume{}, errBroken
	}
	return b.memory.CreateVolume(ctx, name, labels)
}

var errBroken = fmt.Errorf("%w: it is broken", engine.ErrUnavailable)

func (b *broken) InspectVolume(ctx context.Context, name string) (engine.Volume, error) {
	if b.inspections {
		return engine.Volume{}, errBroken
	}
	return b.memory.InspectVolume(ctx, name)
}

func (b *broken) ListVolumes(ctx context.Context, labels ...string) ([]engine.Volume, error) {
	if b.lists {
		return nil, errBroken
	}
	return b.memory.ListVolumes(ctx, labels...)
}

func (b *broken) RemoveVolume(ctx context.Context, name string, force bool) error {
	if b.removals {
		return errBroken
	}
	return b.memory.RemoveVolume(ctx, name, force)
}

// What the engine does not answer, or does not do, is an error, and nothing counts as absent or removed.
func TestErrorsOfTheEngineAreReturned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &broken{memory: newMemory()}
		c, err := claim.Try(t.Context(), b, "x", "mine", "me")
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(claim.Lease)
		c.Stop()
		b.inspections = true
		if _, found, err := claim.FindMarker(t.Context(), b, "x"); !errors.Is(err, errBroken) || found {
			t.Errorf("FindMarker = %v, %v, want the engine's error", found, err)
		}
		if err := c.Commit(t.Context()); !errors.Is(err, errBroken) {
			t.Errorf("Commit = %v, want the engine's error", err)
		}
		if err := claim.Drop(t.Context(), b, "x", "mine", ""); !errors.Is(err, errBroken) {
			t.Errorf("Drop = %v, want the engine's error", err)
		}
		b.inspections, b.removals = false, true
		before := b.names()
		if err := claim.Drop(t.Context(), b, "x", "mine", ""); !errors.Is(err, errBroken) || !slices.Equal(b.names(), before) {
			t.Errorf("Drop = %v, left %v of %v; want the engine's error and all", err, b.names(), before)
		}
		time.Sleep(claim.Lease)
		dead, _, err := claim.FindMarker(t.Context(), b, "x")
		if err != nil {
			t.Fatal(err)
		}
		b.creations, b.removals = true, false
		err = claim.TakeOver(t.Context(), b, dead, "theirs", "other", func(context.Context) error { t.Error("it cleans up"); return nil })
		if !errors.Is(err, errBroken) {
			t.Errorf("TakeOver = %v, want the engine's error", err)
		}
	})
}

// A claim of short life takes no call for renewals: an empty sandbox is made in a few calls.
func TestShortClaimTakesFewCalls(t *testing.T) {
	for what, end := range map[string]func(*claim.Claim, context.Context, claim.Volumes) error{
		"Commit": func(c *claim.Claim, ctx context.Context, _ claim.Volumes) error {
			return errors.Join(c.Commit(ctx), c.DropRenewals(ctx))
		},
		"Claim.Drop": func(c *claim.Claim, ctx context.Context, _ claim.Volumes) error { return c.Drop(ctx) },
		"Drop": func(c *claim.Claim, ctx context.Context, v claim.Volumes) error {
			c.Stop()
			return claim.Drop(ctx, v, "x", "mine", "")
		},
	} {
		v := &counted{memory: newMemory()}
		c, err := claim.Try(t.Context(), v, "x", "mine", "me")
		if err != nil {
			t.Fatal(err)
		}
		want := 2 // creation and removal
		if what == "Drop" {
			want = 3 // which does not know whose the marker is
		}
		if err := end(c, t.Context(), v); err != nil || len(v.names()) > 0 || int(v.calls.Load()) != want {
			t.Errorf("%s: %v, left %v after %d calls, want %d", what, err, v.names(), v.calls.Load(), want)
		}
	}
}

// A marker that is not expired any more, since the clock was set back, has to be watched anew.
func TestWatchBeginsAnewAfterAStepOfTheClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w claim.Watch
		m := record.Marker{Name: "x", Nonce: "n", Until: time.Now()}
		early, late := m.Until.Add(-time.Minute), m.Until.Add(time.Minute)
		for i, step := range []struct {
			now  time.Time
			dead bool
		}{{late, false}, {late, true}, {early, false}, {late, false}, {late, true}} {
			if got := w.Dead(m, step.now); got != step.dead {
				t.Errorf("look %d, at %v: dead %v, want %v", i, step.now, got, step.dead)
			}
			time.Sleep(claim.ConfirmAfter)
		}
	})
}

// The volume of a sweep says for people who makes it, and until when.
func TestSweepSaysWhoMakesIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		if mine, err := claim.TrySweep(t.Context(), m, "n", "me"); err != nil || !mine {
			t.Fatalf("TrySweep = %v, %v", mine, err)
		}
		vols, _ := m.ListVolumes(t.Context())
		until, err := time.Parse(time.RFC3339Nano, vols[0].Labels[record.Until])
		if left := until.Sub(m.Now()); err != nil || left <= 0 || left > record.SweepEvery || vols[0].Labels[record.Holder] != "me" {
			t.Errorf("the labels are %v, %v", vols[0].Labels, err)
		}
	})
}
