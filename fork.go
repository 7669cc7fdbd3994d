package sandbox

import (
	"context"
	"errors"

	"github.com/seed-1a2d6d8f/sandbox/internal/fault"
	"github.com/seed-1a2d6d8f/sandbox/internal/lifecycle"
)

// Fork creates a sandbox with the current files of another one, and starts its session.
// It copies the container's own files, the workspace and every copy of a directory;
// attached volumes and mounted directories are shared. Later changes to the copied files
// in one of the two do not appear in the other.
//
// The new sandbox has the settings of the source, as last updated ([Sandbox.Update]).
// Each option replaces the source's value as a whole: [WithTags] all tags, [WithEnv] all
// variables, [WithMounts] all mounts. The name and the ID are new, by the rules of
// [Create]. With [WithName] it is persistent, otherwise if the source is, unless
// [WithPersistent] says otherwise. Values that a policy's transforms set are not stored
// and so not inherited: [WithNetworkPolicy] sets them again.
//
// The source may be running or stopped, persistent or not, and keeps its state. A running
// source is paused while its files are copied. If this process dies meanwhile, the first
// [Get], [List] or command 30 s later unpauses it; earlier ones wait. A source that was
// already paused stays paused. Sockets, files on a tmpfs and processes are not copied.
//
// Engines that do not show a container's own files on their disk commit them, if there
// are any. That takes about 5 s for a gigabyte, and keeps times to the second and, of the
// extended attributes, only capabilities.
func Fork(ctx context.Context, source string, opts ...ForkOption) (*Sandbox, error) {
	return defaultClient().Fork(ctx, source, opts...)
}

// Fork is the package's [Fork] on the client's engine.
func (c *Client) Fork(ctx context.Context, source string, opts ...ForkOption) (_ *Sandbox, err error) {
	defer wrap(&err, "fork", source)
	l, o, err := c.forkOrder(ctx, source, opts, 0)
	if err != nil {
		return nil, err
	}
	defer o.Report.Silence()
	h, err := l.Fork(ctx, source, o)
	return newSandbox(h), err
}

// forkOrder validates the options before it connects. n is the number of forks of
// [Client.ForkN], which can't share an ID, or 0.
func (c *Client) forkOrder(ctx context.Context, source string, opts []ForkOption, n int) (*lifecycle.Client, *lifecycle.CreateOptions, error) {
	if err := checkName(source); err != nil {
		return nil, nil, err
	}
	s := c.settings()
	apply(opts, func(o ForkOption) { o.applyFork(s) })
	if s.ID != "" && n > 0 {
		return nil, nil, fault.Invalid("WithID: %d sandboxes can't have one ID", n)
	}
	if err := s.Numbered(n).Complete(); err != nil {
		return nil, nil, err
	}
	l, err := c.connect(ctx)
	return l, s.order(), err
}

// A ForkResult is the result for one of the sandboxes of [ForkN]: the sandbox, which the
// caller closes, or the error.
type ForkResult struct {
	Sandbox *Sandbox
	Err     error
}

// ForkN creates n forks of the same moment, as [Fork] does, at most 256: the source is
// paused once and its files are copied once; the new sandboxes share them if the engine
// can mount overlays. With [WithName] the names get the suffixes -1, -2 …; [WithID] is an
// error.
//
// If one fork fails the others are still created. There are n results, or none if the
// source's files could not be copied; the error joins those of the results.
func ForkN(ctx context.Context, source string, n int, opts ...ForkOption) ([]ForkResult, error) {
	return defaultClient().ForkN(ctx, source, n, opts...)
}

// ForkN is the package's [ForkN] on the client's engine.
func (c *Client) ForkN(ctx context.Context, source string, n int, opts ...ForkOption) (_ []ForkResult, err error) {
	defer wrap(&err, "fork", source)
	if n < 1 || n > maxForks {
		return nil, fault.Invalid("%d forks; one call makes 1 to %d", n, maxForks)
	}
	l, o, err := c.forkOrder(ctx, source, opts, n)
	if err != nil {
		return nil, err
	}
	defer o.Report.Silence()
	made, err := l.ForkN(ctx, source, n, o)
	var results []ForkResult
	for _, r := range made {
		results = append(results, ForkResult{newSandbox(r.Handle), fail("fork", r.Name, r.Err)})
		err = errors.Join(err, results[len(results)-1].Err)
	}
	return results, err
}

// maxForks bounds one ForkN, so that a mistyped number does not fill an engine.
const maxForks = 256
