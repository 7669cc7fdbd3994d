package sandbox

import (
	"context"
	"errors"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
)

// A ForkResult is one of the sandboxes that [ForkN] was to make: the sandbox, which is
// the caller's to close, or why there is none.
type ForkResult struct {
	Sandbox *Sandbox
	Err     error
}

// ForkN is [Fork] n times over, of one moment: the source is paused once and its files
// are copied once, and the new sandboxes share them where the engine can mount overlays.
// With [WithName] their names are that with -1, -2 … behind it; [WithID] is an error.
//
// One that can't be made does not keep the others. There are n results, or none when the
// source could not be captured; the error joins theirs.
func ForkN(ctx context.Context, source string, n int, opts ...ForkOption) ([]ForkResult, error) {
	return defaultClient().ForkN(ctx, source, n, opts...)
}

// ForkN is the package's [ForkN] on the client's engine.
func (c *Client) ForkN(ctx context.Context, source string, n int, opts ...ForkOption) ([]ForkResult, error) {
	results, err := c.forkN(ctx, source, n, opts)
	return results, fail("fork", source, err)
}

func (c *Client) forkN(ctx context.Context, source string, n int, opts []ForkOption) (results []ForkResult, err error) {
	if n < 1 || n > maxForks {
		return nil, invalid("%d forks; there may be 1 to %d", n, maxForks)
	}
	all, o, err := c.forking(ctx, source, opts, n)
	if err != nil {
		return nil, err
	}
	// However many are made at once, their progress comes one call at a time.
	told := &reporter{fn: all.progress}
	defer told.silence()
	all.progress = told.report
	z := c.newFrozen(o)
	z.report.fn = told.report
	// What nobody shares in the end goes.
	defer func() { err = errors.Join(err, z.letGo(ctx)) }()
	if err := z.make(ctx, false); err != nil {
		return nil, err
	}
	from := *o.settings
	from.mounts = z.mounts()
	results = make([]ForkResult, n)
	parts := make(chan *part, n)
	made := make(chan struct{})
	defer close(made)
	var g errgroup.Group
	g.Go(func() error { c.spread(ctx, o.eng, &z.report, parts, n); return nil })
	for i := range n {
		g.Go(func() error {
			part := &part{in: parts, done: make(chan error, 1)}
			defer part.leave()
			s := all.numbered(i + 1)
			err := s.inherit(&from)
			if err == nil {
				s.origin, s.together = &stored{rec: z.rec, part: part}, made
				results[i].Sandbox, err = c.create(ctx, s)
			}
			results[i].Err = fail("fork", s.name, err)
			return nil
		})
	}
	g.Wait()
	for _, r := range results {
		err = errors.Join(err, r.Err)
	}
	return results, err
}

// maxForks bounds one ForkN, so that a slip of the pen does not fill an engine.
const maxForks = 256

// mounts are the source's, with frozen copies in the place of its own.
func (z *frozen) mounts() []Mount {
	mounts := slices.Clone(z.from.settings.mounts)
	for i, m := range mounts {
		for _, t := range z.rec.Trees {
			if m.Mode == RWCopy && m.Volume != "" && t.Target == m.Target {
				mounts[i].Volume = t.Volume
			}
		}
	}
	return mounts
}

// letGo drops the marker, and the files that nobody shares.
func (z *frozen) letGo(ctx context.Context) error {
	if z.claim != nil {
		z.claim.Stop()
	}
	own, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
	defer cancel()
	var on []engine.Volume
	err := engine.Insist(own, func() (err error) {
		on, err = z.eng.ListVolumes(own, record.Filter(record.Managed, "true"), record.Filter(record.Snapshot, z.rec.ID))
		return err
	})
	if err != nil {
		return err // the marker has whoever finds it do the rest
	}
	if len(on) == 0 {
		return z.undo.run(ctx)
	}
	ref := record.SnapshotImage(z.rec.ID)
	return errors.Join(
		engine.Insist(own, func() error { return dropLayer(own, z.eng, ref) }),
		engine.Insist(own, func() error {
			return record.Drop(own, z.eng, record.SnapshotMarker(z.rec.ID), z.rec.Nonce)
		}))
}

// A part is what one of several sandboxes is to get of the files that all of them get.
type part struct {
	in    chan<- *part // gets each part once
	once  sync.Once
	name  string // of the sandbox
	nonce string // of its making
	ts    []transfer
	done  chan error
}

// leave says that the sandbox gets nothing from what is put into all at once.
func (p *part) leave() { p.once.Do(func() { p.in <- p }) }

// join waits until ts have been copied with what the others get, or could not be; what
// has been tried once is not tried again. Whoever waits leaves its place to another.
func (p *part) join(ctx context.Context, b *build, ts []transfer) (tried bool, err error) {
	if p == nil {
		return false, nil
	}
	p.once.Do(func() {
		if len(ts) > 0 {
			tried = true
			p.name, p.nonce, p.ts = b.rec.Name, b.rec.Nonce, ts
		}
		p.in <- p
	})
	if !tried {
		return false, nil
	}
	b.place.leave()
	err = <-p.done
	return true, errors.Join(err, b.place.enter(ctx))
}

// maxParts is how many sandboxes one helper fills, which has two or three mounts for each.
const maxParts = 32

// spread fills n sandboxes, as many with one helper as can be, once all of them are there
// or can't be made.
func (c *Client) spread(ctx context.Context, eng *engine.Engine, report *reporter, in <-chan *part, n int) {
	var all []*part
	for range n {
		if p := <-in; len(p.ts) > 0 {
			all = append(all, p)
		}
	}
	for some := range slices.Chunk(all, maxParts) {
		var ts []transfer
		for _, p := range some {
			ts = append(ts, p.ts...)
		}
		k := c.capture(eng, some[0].name, some[0].nonce, report)
		err := k.copy(ctx, ts, nil, nil)
		if err != nil {
			err = errors.Join(err, k.undo.run(ctx))
		}
		for _, p := range some {
			p.done <- err
		}
	}
}
