package claim_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/claim"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
)

// A fault is what happens to one call of a process.
type fault int

const (
	none      fault = iota
	fails           // without effect
	loses           // the reply: the call had its effect
	dies            // the process, before the call
	diesAfter       // the process, after the call
	refuses         // a creation of what exists by then, as Podman does
	cut             // this call and those of the next minute: they hang, and fail without effect
	late            // the call has its effect a minute later
)

var faults = []fault{fails, loses, dies, diesAfter, refuses, cut, late}

// outage is how long the engine can't be reached, or takes for a call that is late.
const outage = time.Minute

func (f fault) String() string {
	return [...]string{"none", "fails", "loses its reply", "dies before", "dies after", "is refused", "is cut off", "is late"}[f]
}

// A process makes calls that take time, and one of them has a fault. It implements claim.Volumes.
type process struct {
	*memory
	name  string
	fault fault
	at    int           // the number of the call with the fault
	slow  time.Duration // no call takes longer, before its effect and after it

	life context.Context // ends with the process
	die  context.CancelFunc

	mu    sync.Mutex
	rand  *rand.Rand
	calls int
	ids   int
	dying bool      // it dies soon after it has a claim
	until time.Time // when the engine can be reached again
}

func newProcess(ctx context.Context, m *memory, name string, seed uint64, slow time.Duration) *process {
	p := &process{memory: m, name: name, slow: slow, rand: rand.New(rand.NewPCG(seed, uint64(len(name))))}
	for _, c := range name {
		p.rand = rand.New(rand.NewPCG(p.rand.Uint64(), uint64(c)))
	}
	p.life, p.die = context.WithCancel(ctx)
	return p
}

func (p *process) dead() bool { return p.life.Err() != nil }

// random returns a random time of at most d.
func (p *process) random(d time.Duration) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return time.Duration(p.rand.Int64N(int64(d)))
}

// chance is true once in n times.
func (p *process) chance(n int) bool { return p.random(time.Duration(n)) == 0 }

// nonce returns a nonce that no other process has.
func (p *process) nonce() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ids++
	return fmt.Sprintf("%s%d", p.name, p.ids)
}

// latency is short for most calls.
func (p *process) latency() time.Duration {
	if p.chance(8) {
		return p.random(p.slow)
	}
	return p.random(min(50*time.Millisecond, p.slow))
}

// pause waits, and reports whether ctx still goes on.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

// call makes a call that has its effect by do.
func (p *process) call(ctx context.Context, do func() error) error {
	p.mu.Lock()
	p.calls++
	now := none
	if p.calls == p.at {
		now = p.fault
	}
	if now == cut {
		p.until = time.Now().Add(outage)
	}
	hangs := time.Until(p.until)
	p.mu.Unlock()
	if hangs > 0 && !p.dead() {
		if !pause(ctx, hangs) {
			return ctx.Err()
		}
		return fmt.Errorf("%w: it hung", engine.ErrUnavailable)
	}
	if now == dies {
		p.die()
	}
	if p.dead() {
		return fmt.Errorf("%w: the process is dead", engine.ErrUnavailable)
	}
	wait := p.latency()
	if now == late {
		wait, ctx = outage, p.life
	}
	if !pause(ctx, wait) {
		return ctx.Err()
	}
	if now == fails {
		return fmt.Errorf("%w: it failed", engine.ErrUnavailable)
	}
	if p.dead() {
		return fmt.Errorf("%w: the process is dead", engine.ErrUnavailable)
	}
	err := do()
	if now == diesAfter {
		p.die()
	}
	if !pause(ctx, p.latency()) {
		return ctx.Err()
	}
	if now == loses || p.dead() {
		return fmt.Errorf("%w: the reply is lost", engine.ErrUnavailable)
	}
	return err
}

func (p *process) CreateVolume(ctx context.Context, name string, labels map[string]string) (got engine.Volume, err error) {
	err = p.call(ctx, func() (err error) {
		p.mu.Lock()
		refused := p.calls == p.at && p.fault == refuses
		p.mu.Unlock()
		if _, e := p.memory.InspectVolume(ctx, name); e == nil && refused {
			return engine.ErrConflict
		}
		got, err = p.memory.CreateVolume(ctx, name, labels)
		return err
	})
	if err != nil {
		return engine.Volume{}, err
	}
	return got, nil
}

func (p *process) InspectVolume(ctx context.Context, name string) (got engine.Volume, err error) {
	err = p.call(ctx, func() (err error) { got, err = p.memory.InspectVolume(ctx, name); return err })
	if err != nil {
		return engine.Volume{}, err
	}
	return got, nil
}

func (p *process) ListVolumes(ctx context.Context, labels ...string) (got []engine.Volume, err error) {
	err = p.call(ctx, func() (err error) { got, err = p.memory.ListVolumes(ctx, labels...); return err })
	return got, err
}

func (p *process) RemoveVolume(ctx context.Context, name string, force bool) error {
	return p.call(ctx, func() error { return p.memory.RemoveVolume(ctx, name, force) })
}

// persist calls do until it succeeds or the process is dead.
func (p *process) persist(do func() error) {
	for do() != nil && pause(p.life, time.Second) {
	}
}

var _ claim.Volumes = (*process)(nil)
