package lifecycle

import (
	"context"
	"errors"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/seed-1a2d6d8f/sandbox/internal/claim"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/errdefs"
	"github.com/seed-1a2d6d8f/sandbox/internal/machine"
	"github.com/seed-1a2d6d8f/sandbox/internal/plan"
	"github.com/seed-1a2d6d8f/sandbox/internal/provision"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/internal/transfer"
)

// Fork creates a sandbox with the files and settings of another one. The options override the
// settings.
func (c *Client) Fork(ctx context.Context, source string, o *CreateOptions) (*Handle, error) {
	from, err := provision.NewLive(ctx, c.Machine, source)
	if err != nil {
		return nil, err
	}
	return c.fork(ctx, from, o)
}

// Fork is [Client.Fork] of the handle's sandbox.
func (h *Handle) Fork(ctx context.Context, o *CreateOptions) (*Handle, error) {
	from, err := h.live(ctx)
	if err != nil {
		return nil, err
	}
	return h.c.fork(ctx, from, o)
}

// live returns the handle's sandbox as a source of files. There is none if another sandbox has its
// name by now.
func (h *Handle) live(ctx context.Context) (*provision.Live, error) {
	from, err := provision.NewLive(ctx, h.c.Machine, h.Record().Name)
	if err == nil && from.Record.ID != h.Record().ID {
		return nil, errdefs.NotFound
	}
	return from, err
}

func (c *Client) fork(ctx context.Context, from *provision.Live, o *CreateOptions) (*Handle, error) {
	if o.Plan.Has(plan.Image) {
		from.WithoutUser()
	}
	if err := o.Plan.Inherit(from.Plan); err != nil {
		return nil, err
	}
	return c.Create(ctx, o, from)
}

// A Fork is one of several forks, or its error, and its name.
type Fork struct {
	Handle *Handle
	Name   string
	Err    error
}

// ForkN creates n sandboxes with the files that another one has at one moment. It returns n
// results, or none if the files could not be copied.
func (c *Client) ForkN(ctx context.Context, source string, n int, o *CreateOptions) ([]Fork, error) {
	from, err := provision.NewLive(ctx, c.Machine, source)
	if err != nil {
		return nil, err
	}
	return c.forkN(ctx, from, n, o)
}

// ForkN is [Client.ForkN] of the handle's sandbox.
func (h *Handle) ForkN(ctx context.Context, n int, o *CreateOptions) ([]Fork, error) {
	from, err := h.live(ctx)
	if err != nil {
		return nil, err
	}
	return h.c.forkN(ctx, from, n, o)
}

func (c *Client) forkN(ctx context.Context, from *provision.Live, n int, o *CreateOptions) (results []Fork, err error) {
	files := transfer.NewSnapshotFiles(c.Machine, from.Record, from.Container, from.Image, from.Plan.Mounts, o.Report)
	if o.Plan.Has(plan.Image) {
		from.WithoutUser()
		files.Check = func(ctx context.Context, got engine.Container) error { return from.CheckNoFiles(ctx, c.Machine, got) }
	}
	var forks []fork
	defer func() {
		shared := slices.ContainsFunc(forks, func(f fork) bool { return f.err == nil && f.build.SharesFiles() })
		err = errors.Join(err, files.Release(ctx, shared))
	}()
	if err := files.Create(ctx); err != nil {
		return nil, err
	}
	inherited := *from.Plan
	inherited.Mounts = files.Mounts()
	forks = make([]fork, n)
	for i := range forks {
		forks[i].request = *o
		forks[i].request.Report = o.Report.Branch()
		forks[i].request.Plan = *o.Plan.Numbered(i + 1)
		forks[i].err = forks[i].request.Plan.Inherit(&inherited)
	}
	forEach(forks, func(f *fork) { f.build, f.err = c.prepare(ctx, &f.request, provision.FromFiles(files.Record)) })
	c.fillMany(ctx, forks)
	forEach(forks, func(f *fork) { f.started = c.start(ctx, f.build, f.request.Report, f.fill) })
	// Each takes a connection, which costs the engine a fifth of a start.
	forEach(forks, func(f *fork) {
		f.handle, f.err = c.finishCreate(ctx, &f.request, f.build, func(context.Context) error { return f.started })
		again := false
		if again, f.err = tryAgain(ctx, f.err); again {
			f.handle, f.err = c.Create(ctx, &f.request, provision.FromFiles(files.Record))
		}
	})
	for _, f := range forks {
		results = append(results, Fork{f.handle, f.request.Plan.Name, f.err})
	}
	return results, nil
}

// fork is one of several.
type fork struct {
	request CreateOptions
	build   *provision.Build
	filled  bool
	started error
	handle  *Handle
	err     error
}

func (f *fork) fill(ctx context.Context) error {
	if f.filled {
		return nil
	}
	return f.build.Fill(ctx)
}

// forEach runs a step for all forks that have not failed, concurrently.
func forEach(forks []fork, step func(*fork)) {
	var g errgroup.Group
	for i := range forks {
		if forks[i].err == nil {
			g.Go(func() error { step(&forks[i]); return nil })
		}
	}
	g.Wait()
}

// fillBatch is how many sandboxes one helper fills, with two or three mounts each.
const fillBatch = 32

// fillMany fills forks, many with one helper. If that fails they are filled one by one later.
func (c *Client) fillMany(ctx context.Context, forks []fork) {
	var prepared []*fork
	for i := range forks {
		if forks[i].err == nil {
			prepared = append(prepared, &forks[i])
		}
	}
	for some := range slices.Chunk(prepared, fillBatch) {
		var builds []*provision.Build
		for _, f := range some {
			builds = append(builds, f.build)
		}
		err := provision.FillMany(ctx, builds)
		if err != nil && ctx.Err() == nil {
			c.Log.Warn("forks are filled one by one", "sandbox", builds[0].Record.Name, "error", err)
		}
		for _, f := range some {
			f.filled = err == nil
		}
	}
}

// Snapshot stores the present files of the sandbox. keep, if it is not 0, is how many of its
// snapshots stay.
func (h *Handle) Snapshot(ctx context.Context, name string, expiry time.Duration, keep int, report *machine.Reporter) (record.SnapshotRecord, error) {
	from, err := h.live(ctx)
	if err != nil {
		return record.SnapshotRecord{}, err
	}
	files := transfer.NewSnapshotFiles(h.c.Machine, from.Record, from.Container, from.Image, from.Plan.Mounts, report)
	files.Record.Name = name
	if expiry > 0 {
		files.Record.ExpiresAt = files.Record.CreatedAt.Add(expiry)
	}
	err = files.Create(ctx)
	if err == nil {
		err = files.Commit(ctx)
	}
	if err != nil {
		return files.Record, errors.Join(err, files.Undo(ctx))
	}
	if keep > 0 {
		if err := h.c.Store.KeepLast(ctx, h.Record().ID, keep); err != nil {
			h.c.Log.Warn("older snapshots stay", "sandbox", h.Record().Name, "error", err)
		}
	}
	return files.Record, nil
}

// Rollback replaces the files of the sandbox by those of a snapshot. A session that runs ends, and
// another one is started, also if the rollback fails after the session has ended, unless ctx has
// ended, too.
func (h *Handle) Rollback(ctx context.Context, id string) error {
	for {
		if err := h.CheckUsable(); err != nil {
			return err
		}
		was, err := h.awaitUnpaused(ctx)
		if err != nil {
			return err
		}
		err = provision.Rollback(ctx, h.c.Machine, h.known(), id, h.report)
		var held *claim.TakenError
		if errors.As(err, &held) {
			if err := h.c.Store.AwaitChange(ctx, h.Record().Name); err != nil {
				return err
			}
			continue
		}
		if !was.HasSession() || err != nil && ctx.Err() != nil {
			return err
		}
		return errors.Join(err, h.resumeEnded(ctx, was))
	}
}

// resumeAttempts is how often a session is started that other clients' changes end at once.
const resumeAttempts = 4

// resumeEnded starts a session if the one of was has ended.
func (h *Handle) resumeEnded(ctx context.Context, was engine.Container) error {
	for try := 1; ; try++ {
		got, err := h.Current(ctx)
		if err != nil || got.ID == was.ID && got.HasSession() && got.StartedAt.Equal(was.StartedAt) {
			return err
		}
		h.stopLease()
		h.dropConn()
		err = h.resume(ctx)
		if !errors.Is(err, errdefs.NotRunning) || try == resumeAttempts {
			return err
		}
		// Another rollback has ended the session that was just started.
		if err := h.c.Store.AwaitChange(ctx, h.Record().Name); err != nil {
			return err
		}
	}
}
