package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/bound"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/errdefs"
	"github.com/seed-1a2d6d8f/sandbox/internal/lifecycle"
	"github.com/seed-1a2d6d8f/sandbox/internal/plan"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/internal/store"
)

// Create creates a sandbox, on the node that has the most room for it.
func (e *Engines) Create(ctx context.Context, o *lifecycle.CreateOptions) (*lifecycle.Handle, error) {
	if e.o == nil {
		if len(o.Plan.Placement) > 0 {
			return nil, errdefs.Invalid("WithPlacement: the client is not for a swarm, see WithSwarm")
		}
		return e.own.Create(ctx, o, nil)
	}
	var taken error
	var look sync.WaitGroup
	look.Go(func() { taken = e.checkFree(ctx, &o.Plan) })
	some, err := e.candidates(ctx, &o.Plan, false)
	look.Wait()
	if taken != nil {
		if len(some) > 0 {
			some[0].end(o.Plan.Name, false)
		}
		return nil, taken
	}
	for try := 1; err == nil; try++ {
		var h *lifecycle.Handle
		if h, err = createOn(ctx, some, o); !errors.Is(err, errdefs.NoCapacity) || try == placeTries {
			return h, err
		}
		// Others took the room at the same moment.
		if err := bound.Sleep(ctx, time.Duration(50+rand.N(200))*time.Millisecond); err != nil {
			return nil, err
		}
		some, err = e.candidates(ctx, &o.Plan, true)
	}
	return nil, err
}

// placeTries is how often a create looks for a node.
const placeTries = 4

// createOn creates a sandbox on the first of the nodes that has room. The error is errdefs.NoCapacity
// if none has, or if some have not and the others did not answer.
func createOn(ctx context.Context, some []*member, o *lifecycle.CreateOptions) (*lifecycle.Handle, error) {
	var full []error
	for _, m := range some {
		l, err := m.connect(ctx)
		if err != nil {
			m.end(o.Plan.Name, false)
			full = append(full, err)
			continue
		}
		m.begin(o.Plan.Name, loadOf(&o.Plan))
		h, err := createNoted(ctx, m, l, o)
		switch {
		case err == nil:
			m.e.remember(o.Plan.Name, m)
			return h, nil
		case !errors.Is(err, errdefs.NoCapacity):
			return nil, m.explainCreate(err)
		}
		full = append(full, err)
	}
	return nil, errors.Join(full...)
}

// createNoted creates a sandbox that the node counts meanwhile.
func createNoted(ctx context.Context, m *member, l *lifecycle.Client, o *lifecycle.CreateOptions) (h *lifecycle.Handle, err error) {
	defer func() { m.end(o.Plan.Name, h != nil) }() // also when a hook panics
	return l.Create(ctx, o, nil)
}

// explainCreate adds the node's name to an error that another node might not have.
func (m *member) explainCreate(err error) error {
	if errors.Is(err, errdefs.Exists) || errors.Is(err, errdefs.InvalidArgument) {
		return err
	}
	return fmt.Errorf("node %s: %w", m.last().Name, err)
}

// GetOrCreate returns the sandbox of that name, and creates it if there is none.
func (e *Engines) GetOrCreate(ctx context.Context, o *lifecycle.CreateOptions) (h *lifecycle.Handle, err error) {
	if e.o == nil && len(o.Plan.Placement) == 0 {
		return e.own.GetOrCreate(ctx, o)
	}
	for {
		err := e.On(ctx, o.Plan.Name, func(l *lifecycle.Client) (err error) {
			h, err = l.Get(ctx, o.Plan.Name, lifecycle.GetOptions{OnResume: o.OnResume, Report: o.Report, Secrets: o.Plan.Secrets, Wanted: &o.Plan})
			return err
		})
		if !errors.Is(err, errdefs.NotFound) {
			return h, err
		}
		h, err = e.Create(ctx, o)
		if !errors.Is(err, store.ErrNameTaken) {
			return h, err
		}
		// Another caller creates it, which Get waits for.
		if err := bound.Sleep(ctx, 20*time.Millisecond); err != nil {
			return nil, err
		}
	}
}

// A candidate is a node that a sandbox may be placed on.
type candidate struct {
	m     *member
	n     engine.Node
	share float64 // of what it may give, with the new sandbox
	lack  error   // why the sandbox can't be there
}

// sampled is how many nodes a create asks for their load: a random choice of those that match.
const sampled = 16

// alike is by how much two shares may differ for the nodes to be alike. Of such nodes a random one is
// first, or all who create at the same time would take the same one.
const alike = 0.02

// candidates returns the nodes that the sandbox fits on, the one with the most room first, which has begun
// to count it. now says that sandboxes are counted now, and not some moments ago.
func (e *Engines) candidates(ctx context.Context, p *plan.Sandbox, now bool) ([]*member, error) {
	some, err := e.matching(ctx, p)
	if err != nil {
		return nil, err
	}
	rand.Shuffle(len(some), func(i, j int) { some[i], some[j] = some[j], some[i] })
	some = some[:min(len(some), sampled)]
	var counts sync.WaitGroup
	for i, c := range some {
		counts.Go(func() { some[i].lack = c.m.count(ctx, now) })
	}
	counts.Wait()
	fit, full := e.choose(some, p)
	switch {
	case len(fit) > 0:
		return fit, nil
	case ctx.Err() != nil:
		return nil, errdefs.Cancelled(ctx)
	case !now: // a session may have ended since
		return e.candidates(ctx, p, true)
	}
	return nil, noRoom(loadOf(p), full...)
}

// choose orders the candidates by their load, and begins to count the sandbox on the first one. Of the
// others it says what they lack.
func (e *Engines) choose(some []candidate, p *plan.Sandbox) (fit []*member, full []string) {
	e.placing.Lock()
	defer e.placing.Unlock()
	for i, c := range some {
		with, limit := c.m.taken().plus(loadOf(p)), c.m.limit()
		some[i].share = with.share(limit) + alike*rand.Float64()
		if c.lack == nil && !with.fits(limit) {
			some[i].lack = useOf(c.n, c.m.taken(), limit)
		}
	}
	slices.SortStableFunc(some, func(a, b candidate) int { return cmp.Compare(a.share, b.share) })
	for _, c := range some {
		if c.lack != nil {
			full = append(full, c.lack.Error())
			continue
		}
		if len(fit) == 0 {
			c.m.begin(p.Name, loadOf(p))
		}
		fit = append(fit, c.m)
	}
	return fit, full
}

// matching returns the nodes that take new work, fulfil the constraints and have the volumes that the
// sandbox needs. If there is none the error says why.
func (e *Engines) matching(ctx context.Context, p *plan.Sandbox) ([]candidate, error) {
	all, err := e.all(ctx)
	if err != nil {
		return nil, err
	}
	near, err := e.near(ctx, p)
	if err != nil {
		return nil, err
	}
	var some []candidate
	var not []string
	small := 0
	for _, m := range all {
		n := m.last()
		switch {
		case near != nil && !slices.Contains(near, m):
			not = append(not, n.Name+" lacks a volume, a snapshot or a directory of the sandbox")
		case !plan.Matches(n, p.Placement):
			not = append(not, n.Name+" does not match "+strings.Join(p.Placement, ", "))
		case n.Down():
			not = append(not, n.Name+" is down")
		case !n.Active():
			not = append(not, n.Name+" is paused or drained")
		case int64(p.VCPUs*1e9) > n.NanoCPUs:
			small++
			not = append(not, fmt.Sprintf("%s has %v CPUs", n.Name, float64(n.NanoCPUs)/1e9))
		default:
			some = append(some, candidate{m: m, n: n})
		}
	}
	switch {
	case len(some) > 0:
		return some, nil
	case small == len(all):
		return nil, errdefs.Invalid("WithVCPUs: %v is more than any node has: %s", p.VCPUs, strings.Join(not, "; "))
	}
	return nil, fmt.Errorf("%w: %s", errdefs.NoCapacity, strings.Join(not, "; "))
}

// near returns the nodes that have what the sandbox needs and what is on some nodes only: a snapshot,
// volumes, a directory of this machine. It is nil if all nodes do.
func (e *Engines) near(ctx context.Context, p *plan.Sandbox) ([]*member, error) {
	var volumes []string
	if p.Snapshot != "" {
		volumes = append(volumes, record.SnapshotName(p.Snapshot))
	}
	for _, m := range p.Mounts {
		if m.Volume != "" {
			volumes = append(volumes, m.Volume)
		}
	}
	if p.GivenID {
		some, err := e.holders(ctx, []string{record.WorkspaceName(p.ID)})
		if err != nil {
			return nil, err
		}
		if len(some) > 0 {
			volumes = append(volumes, record.WorkspaceName(p.ID)) // it is adopted
		}
	}
	if len(volumes) > 0 {
		some, err := e.holders(ctx, volumes)
		if err != nil {
			return nil, err
		}
		if len(some) == 0 {
			return e.noneNear(ctx, p, volumes)
		}
		return some, nil
	}
	if len(plan.LocalBinds(p.Mounts)) > 0 {
		return []*member{e.self}, nil // which checks that it is this machine
	}
	return nil, nil
}

// noneNear is near if no node has all of the volumes: they are on different nodes, or one is missing,
// which is an error on any node.
func (e *Engines) noneNear(ctx context.Context, p *plan.Sandbox, volumes []string) ([]*member, error) {
	for _, v := range volumes {
		some, err := e.holders(ctx, []string{v})
		if err != nil {
			return nil, err
		}
		if len(some) == 0 {
			return []*member{e.self}, nil
		}
	}
	return nil, errdefs.Invalid("no node has all volumes and snapshots of the sandbox: %s", strings.Join(volumes, ", "))
}
