package claim_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/claim"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
)

// A model is what processes make under claims of one name: files, and a container, whose name is
// a lock of its own. It notes what must not happen.
type model struct {
	*memory
	clockSet bool // the engine's clock is set in the middle
	late     bool // a call has its effect so late that two may hold the name: then at most one commits

	mu        sync.Mutex
	problems  []string
	holdings  []*holding
	container string          // its nonce, "" for none
	files     map[string]bool // by nonce
	committed map[string]bool // Commit was called
	visible   map[string]bool // Commit succeeded
	deletions map[string]bool // of that nonce may have begun
	cleaning  int
	sweepers  map[string]int // by the volume
}

// A holding is a claim that a process has.
type holding struct {
	p     *process
	c     *claim.Claim
	nonce string
	bound context.Context
	over  bool // it was given back, or is being
}

func (h *holding) live() bool { return !h.over && !h.p.dead() && h.bound.Err() == nil }

func (w *model) problem(format string, args ...any) {
	w.problems = append(w.problems, fmt.Sprintf(format, args...))
}

// took notes a new claim, and that nobody else may have one.
func (w *model) took(h *holding) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, other := range w.holdings {
		if other.live() && !h.p.dead() && !w.late {
			w.problem("%s holds the name for %s, and so does %s for %s", h.p.name, h.nonce, other.p.name, other.nonce)
		}
	}
	w.holdings = append(w.holdings, h)
}

func (w *model) end(h *holding) {
	w.mu.Lock()
	defer w.mu.Unlock()
	h.over = true
}

// locked calls f under the lock.
func (w *model) locked(f func() error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return f()
}

var errExists = errors.New("there is another container")

// churn has a process create and delete what has the name, in turn with others.
func (w *model) churn(p *process, d time.Duration) {
	var watch claim.Watch
	for began := time.Now(); time.Since(began) < d && !p.dead(); {
		if p.chance(4) {
			w.sweep(p)
		}
		w.mu.Lock()
		there := w.container
		w.mu.Unlock()
		m, found, err := claim.FindMarker(p.life, p, "x")
		switch {
		case err != nil:
		case found:
			w.wait(p, &watch, m)
		case there != "":
			w.delete(p, &watch, there)
		default:
			w.create(p, &watch)
		}
		pause(p.life, p.random(5*time.Second))
	}
}

// wait takes over from a dead holder, or waits a little.
func (w *model) wait(p *process, watch *claim.Watch, m record.Marker) {
	if !watch.Dead(m, p.Now()) {
		pause(p.life, 3*time.Second)
		return
	}
	claim.TakeOver(p.life, p, m, p.nonce(), p.name, func(ctx context.Context) error { return w.cleanUp(ctx, p, m.Nonce) })
}

// cleanUp removes what a dead holder made.
func (w *model) cleanUp(ctx context.Context, p *process, nonce string) error {
	w.locked(func() error {
		for _, h := range w.holdings {
			if h.nonce == nonce && h.live() && !w.late {
				w.problem("%s cleans up %s, which %s holds", p.name, nonce, h.p.name)
			}
		}
		if w.visible[nonce] && !w.deletions[nonce] {
			w.problem("%s cleans up %s, which was committed", p.name, nonce)
		}
		if w.cleaning++; w.cleaning > 1 && !w.clockSet && !w.late {
			w.problem("%s cleans up, and so does another", p.name)
		}
		return nil
	})
	defer w.locked(func() error { w.cleaning--; return nil })
	pause(ctx, p.random(8*time.Second))
	return w.remove(ctx, p, nonce)
}

func (w *model) remove(ctx context.Context, p *process, nonce string) error {
	if err := p.call(ctx, func() error {
		return w.locked(func() error {
			if w.container == nonce {
				w.container = ""
			}
			return nil
		})
	}); err != nil {
		return err
	}
	return p.call(ctx, func() error { return w.locked(func() error { delete(w.files, nonce); return nil }) })
}

func (w *model) create(p *process, watch *claim.Watch) {
	nonce := p.nonce()
	c, err := claim.Try(p.life, p, "x", nonce, p.name)
	if errors.Is(err, engine.ErrUnavailable) && p.chance(2) && pause(p.life, p.random(40*time.Second)) {
		c, err = claim.Try(p.life, p, "x", nonce, p.name) // the one before may have had its effect
	}
	if w.refused(p, watch, err) {
		return
	}
	if err != nil && !errors.Is(err, engine.ErrUnavailable) && p.life.Err() == nil {
		w.locked(func() error { w.problem("%s is not told who has the name: %v", p.name, err); return nil })
	}
	if err != nil {
		p.persist(func() error { return claim.Drop(p.life, p, "x", nonce, "") })
		return
	}
	bound, release := c.Bind(p.life)
	defer release()
	h := &holding{p: p, c: c, nonce: nonce, bound: bound}
	w.took(h)
	if p.dying {
		time.AfterFunc(p.random(20*time.Second), p.die)
	}
	err = p.call(bound, func() error { return w.locked(func() error { w.files[nonce] = true; return nil }) })
	if err == nil {
		err = p.call(bound, func() error {
			return w.locked(func() error {
				if w.container != "" {
					return errExists
				}
				w.container = nonce
				return nil
			})
		})
	}
	work := 80 * time.Second
	if p.chance(3) {
		work = 2 * time.Second
	}
	pause(bound, p.random(work))
	if bound.Err() != nil && p.chance(2) {
		pause(p.life, p.random(2*claim.Lease)) // a program need not notice the loss at once
	}
	w.end(h)
	if err == nil && !p.chance(4) {
		w.locked(func() error { w.committed[nonce] = true; return nil })
		if err = c.Commit(p.life); err == nil {
			w.locked(func() error {
				w.visible[nonce] = true
				if (w.container != nonce || !w.files[nonce]) && !w.deletions[nonce] {
					w.problem("%s committed %s, which somebody removes", p.name, nonce)
				}
				return nil
			})
			if err := c.DropRenewals(p.life); err == nil {
				vols, _ := w.memory.ListVolumes(p.life, record.Filter(record.Nonce, nonce), record.Filter(record.Role, record.RolePending))
				w.locked(func() error {
					if len(vols) > 0 && !w.deletions[nonce] {
						w.problem("%s committed %s, and leaves %s", p.name, nonce, vols[0].Name)
					}
					return nil
				})
			}
			return
		}
	}
	if p.chance(2) {
		pause(p.life, p.random(claim.Lease))
	}
	c.Stop()
	p.persist(func() error { return w.remove(p.life, p, nonce) })
	p.persist(func() error { return c.Drop(p.life) })
}

// refused waits if err says that another process has the name.
func (w *model) refused(p *process, watch *claim.Watch, err error) bool {
	held, is := errors.AsType[*claim.TakenError](err)
	if is {
		w.wait(p, watch, held.Marker)
	}
	return is
}

func (w *model) delete(p *process, watch *claim.Watch, nonce string) {
	by := p.nonce()
	w.locked(func() error { w.deletions[nonce] = true; return nil })
	c, err := claim.TryDelete(p.life, p, record.Sandbox{Name: "x", Nonce: nonce}, by, p.name)
	if w.refused(p, watch, err) {
		return
	}
	if err != nil {
		p.persist(func() error { return claim.Drop(p.life, p, "x", nonce, by) })
		return
	}
	bound, release := c.Bind(p.life)
	defer release()
	h := &holding{p: p, c: c, nonce: nonce, bound: bound}
	w.took(h)
	pause(bound, p.random(40*time.Second))
	err = w.remove(bound, p, nonce)
	for err != nil && pause(bound, time.Second) {
		err = w.remove(bound, p, nonce)
	}
	w.end(h)
	if err != nil {
		c.Stop() // who finds the marker removes the rest
		return
	}
	p.persist(func() error { return c.Drop(p.life) })
}

// sweep takes the turn of a sweep, and sometimes gives it up.
func (w *model) sweep(p *process) {
	nonce := p.nonce()
	mine, err := claim.TrySweep(p.life, p, nonce, p.name)
	if err != nil || !mine || w.late {
		return
	}
	var turn string
	vols, _ := w.memory.ListVolumes(p.life, record.Filter(record.Nonce, nonce))
	for _, v := range vols {
		turn = v.Name
	}
	w.locked(func() error {
		if w.sweepers[turn]++; turn == "" || w.sweepers[turn] > 1 {
			w.problem("%s sweeps in the turn %q, and so does another", p.name, turn)
		}
		return nil
	})
	if !p.chance(2) {
		return
	}
	w.locked(func() error { w.sweepers[turn]--; return nil })
	err = claim.GiveUpSweep(p.life, p, nonce)
	if err == nil && !w.clockSet && w.taken(turn, nonce) {
		w.locked(func() error { w.problem("%s gave its sweep up, and still has it", p.name); return nil })
	}
}

func (w *model) taken(turn, nonce string) bool {
	v, _ := w.memory.InspectVolume(context.Background(), turn)
	return v.Labels[record.Nonce] == nonce
}

// finish takes over what is left, by a process without faults, and looks at what it leaves.
func (w *model) finish(p *process) {
	var watch claim.Watch
	began := time.Now()
	for limit := 5 * time.Minute; ; {
		m, found, err := claim.FindMarker(p.life, p, "x")
		if err != nil {
			w.problem("FindMarker: %v", err)
			return
		}
		if !found {
			break
		}
		if left := time.Until(began.Add(limit)); left < 0 {
			w.problem("after %v the marker of %s is still there: %+v", limit, m.Nonce, m)
			return
		}
		if until := m.Until.Sub(p.Now()); until > 2*claim.Lease { // by a clock that was set back since
			pause(p.life, until)
			began = began.Add(until)
		}
		w.wait(p, &watch, m)
	}
	pause(p.life, 3*claim.Lease)
	vols, _ := w.memory.ListVolumes(p.life)
	gone := slices.Concat(claim.ExpiredLeftovers(vols, p.Now().Add(time.Hour)), claim.PastSweeps(vols, p.Now().Add(time.Hour)))
	for _, v := range vols {
		if !slices.Contains(gone, v.Name) {
			w.problem("%s is left, and is no leftover", v.Name)
		}
	}
	for nonce := range w.files {
		if nonce != w.container {
			w.problem("files of %s are left without a container", nonce)
		}
	}
	if c := w.container; c != "" && !w.committed[c] && !w.deletions[c] {
		w.problem("the container of %s is left, which nobody has committed", c)
	}
	for nonce := range w.visible {
		if w.container != nonce && !w.deletions[nonce] {
			w.problem("%s was committed, and is gone", nonce)
		}
	}
}

// A trial is one run of processes that compete for a name.
type trial struct {
	seed  uint64
	fault fault
	at    int
	set   time.Duration // the engine's clock is set by that in the middle
	slow  time.Duration
}

func (tr trial) run(t *testing.T) (calls int) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		w := &model{memory: newMemory(), clockSet: tr.set != 0, late: tr.fault == late, files: map[string]bool{}, committed: map[string]bool{}, visible: map[string]bool{},
			deletions: map[string]bool{}, sweepers: map[string]int{}}
		var all sync.WaitGroup
		var first *process
		for _, name := range []string{"a", "b", "c", "d"} {
			p := newProcess(ctx, w.memory, name, tr.seed, tr.slow)
			late := p.random(5 * time.Second)
			switch name {
			case "a":
				first = p
				p.fault, p.at = tr.fault, tr.at
			case "d": // for others to take over from
				p.dying, late = true, 0
			}
			all.Go(func() {
				time.Sleep(late)
				w.churn(p, 3*time.Minute)
			})
		}
		if tr.set != 0 {
			all.Go(func() {
				time.Sleep(time.Duration(tr.seed%90) * time.Second)
				w.step.Add(int64(tr.set))
			})
		}
		all.Wait()
		calls = first.calls
		w.finish(newProcess(ctx, w.memory, "z", tr.seed, tr.slow))
		cancel()
		for _, h := range w.holdings {
			h.c.Stop()
		}
		for _, p := range w.problems {
			t.Errorf("%+v: %s", tr, p)
		}
	})
	return calls
}

// some returns the seeds below n: in a plain run every third, beginning with another one in every run.
func some(n uint64) (seeds []uint64) {
	step := uint64(3)
	if os.Getenv("SANDBOX_SOAK") != "" {
		step = 1
	}
	for seed := rand.Uint64N(step); seed < n; seed += step {
		seeds = append(seeds, seed)
	}
	return seeds
}

// Four processes create and delete in turn, and one of them dies while it holds the name. Each call of another has a fault
// once, or the clock is set: never do two hold the name, nothing is lost, and it ends.
func TestNeverTwoHolders(t *testing.T) {
	t.Parallel()
	trials := 0
	for _, seed := range some(4) {
		tr := trial{seed: seed, slow: 8 * time.Second}
		calls := tr.run(t)
		for tr.at = 1; tr.at <= calls && !t.Failed(); tr.at++ {
			for _, tr.fault = range faults {
				tr.run(t)
				trials++
			}
		}
	}
	for _, seed := range some(40) {
		tr := trial{seed: 100 + seed, slow: 8 * time.Second}
		calls := tr.run(t)
		for tr.at = 1 + int(seed%3); tr.at <= calls && !t.Failed(); tr.at += 3 {
			for _, tr.fault = range []fault{loses, cut, late} {
				tr.run(t)
				trials++
			}
		}
	}
	for _, seed := range some(200) {
		for _, set := range []time.Duration{-10 * time.Minute, -20 * time.Second, 20 * time.Second, time.Hour} {
			if t.Failed() {
				return
			}
			trial{seed: seed, set: set, slow: 500 * time.Millisecond}.run(t)
			trials++
		}
	}
	t.Logf("%d trials", trials)
}
