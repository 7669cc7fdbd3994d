package sandbox

import (
	"context"
	"errors"

	"github.com/seed-1a2d6d8f/sandbox/internal/errdefs"
	"github.com/seed-1a2d6d8f/sandbox/internal/lifecycle"
	"github.com/seed-1a2d6d8f/sandbox/internal/trace"
)

// Fork creates a sandbox with the current files of another one, and starts its session.
// It copies the container's own files, the workspace and every copy of a directory;
// attached volumes and mounted directories are shared. Later changes to the copied files
// in one of the two do not appear in the other.
//
// The new sandbox has the settings of the source, as last updated ([Sandbox.Update]).
// Each option replaces the source's value as a whole: [WithTags] all tags, [WithEnv] all
// variables, [WithMounts] all mounts. [WithoutTag], [WithoutEnv] and [WithoutMount] take single
// ones away. [WithImage] and [WithRuntime] give the fork another image, with the source's
// volumes, if nothing else of the source's files differs from its own image; otherwise the error
// is [ErrInvalidArgument] and names the first paths. The other image then sets the user,
// unless [WithUser] does. The name and the ID are new, by the rules of
// [Create]: with [WithName] it is persistent, without a name it is not, whatever the source is, unless
// [WithPersistent] says otherwise. Values that a policy's transforms set are not stored
// and so not inherited: [WithNetworkPolicy] sets them again.
//
// The source may be running or stopped, persistent or not, and keeps its state. The processes
// of a running source are stopped while its files are copied, and go on 10 s later at most if
// this process dies meanwhile. Where they can't be stopped the engine pauses the source; if
// this process dies then, the first [Get], [List] or command 30 s later unpauses it, and
// earlier ones wait. A source that was already paused stays paused. Sockets, files on a tmpfs
// and processes are not copied.
//
// An engine with another storage driver than an overlay commits the container's own files, if there
// are any, before the processes go on. That takes about 5 s for a gigabyte. Times are kept to the
// second, and of the extended attributes only capabilities.
func Fork(ctx context.Context, source string, opts ...ForkOption) (*Sandbox, error) {
	return defaultClient().Fork(ctx, source, opts...)
}

// Fork is the package's [Fork] on the client's engine.
func (c *Client) Fork(ctx context.Context, source string, opts ...ForkOption) (_ *Sandbox, err error) {
	ctx, span := trace.Start(ctx, "sandbox.fork", trace.Source(source))
	defer span.End(&err)
	defer wrap(&err, "fork", source)
	o, err := c.forkOrder(source, opts, 0)
	if err != nil {
		return nil, err
	}
	defer o.Report.Silence()
	var h *lifecycle.Handle
	err = c.withSandbox(ctx, source, func(l *lifecycle.Client) (err error) {
		h, err = l.Fork(ctx, source, o)
		return err
	})
	return traced(span, h), err
}

// Fork is the package's [Fork] of this sandbox. The handle is not changed, and the caller closes the
// new one.
func (s *Sandbox) Fork(ctx context.Context, opts ...ForkOption) (_ *Sandbox, err error) {
	ctx, span := trace.Start(ctx, "sandbox.fork", trace.Source(s.Name()))
	defer span.End(&err)
	defer wrap(&err, "fork", s.Name())
	o, err := s.forkOrder(opts, 0)
	if err != nil {
		return nil, err
	}
	defer o.Report.Silence()
	h, err := s.h.Fork(ctx, o)
	return traced(span, h), err
}

// forkOrder validates the options. n is the number of forks of
// [Client.ForkN], or 0.
func (c *Client) forkOrder(source string, opts []ForkOption, n int) (*lifecycle.CreateOptions, error) {
	if err := checkName(source); err != nil {
		return nil, err
	}
	return c.settings().fork(opts, n)
}

func (s *Sandbox) forkOrder(opts []ForkOption, n int) (*lifecycle.CreateOptions, error) {
	o, err := settingsOn(s.h.Client()).fork(opts, n)
	if err != nil {
		return nil, err
	}
	return o, s.h.CheckUsable()
}

// fork applies the options of n forks, which can't share an ID, or of one if n is 0.
func (s *settings) fork(opts []ForkOption, n int) (*lifecycle.CreateOptions, error) {
	apply(opts, func(o ForkOption) { o.applyFork(s) })
	if s.ID != "" && n > 0 {
		return nil, errdefs.Invalid("WithID: %d sandboxes can't have one ID", n)
	}
	return s.request(), s.Numbered(n).Complete()
}

// A ForkResult is the result for one of the sandboxes of [ForkN]: the sandbox, which the
// caller closes, or the error.
type ForkResult struct {
	Sandbox *Sandbox
	Err     error
}

// ForkN creates n forks of the same moment, as [Fork] does, at most 256: the source's
// processes are stopped once and its files are copied once; the new sandboxes share them if
// the engine can mount overlays. With [WithName] the names get the suffixes -1, -2 …; [WithID] is an
// error.
//
// If one fork fails the others are still created. There are n results, or none if the
// source's files could not be copied. The error joins the errors of the results.
func ForkN(ctx context.Context, source string, n int, opts ...ForkOption) ([]ForkResult, error) {
	return defaultClient().ForkN(ctx, source, n, opts...)
}

// ForkN is the package's [ForkN] on the client's engine.
func (c *Client) ForkN(ctx context.Context, source string, n int, opts ...ForkOption) (_ []ForkResult, err error) {
	ctx, span := trace.Start(ctx, "sandbox.fork_n", trace.Source(source))
	defer span.End(&err)
	defer wrap(&err, "fork", source)
	if err := checkForks(n); err != nil {
		return nil, err
	}
	o, err := c.forkOrder(source, opts, n)
	if err != nil {
		return nil, err
	}
	defer o.Report.Silence()
	var made []lifecycle.Fork
	err = c.withSandbox(ctx, source, func(l *lifecycle.Client) (err error) {
		made, err = l.ForkN(ctx, source, n, o)
		return err
	})
	return forkResults(made, err)
}

// ForkN is the package's [ForkN] of this sandbox. The handle is not changed, and the caller closes
// the new ones.
func (s *Sandbox) ForkN(ctx context.Context, n int, opts ...ForkOption) (_ []ForkResult, err error) {
	ctx, span := trace.Start(ctx, "sandbox.fork_n", trace.Source(s.Name()))
	defer span.End(&err)
	defer wrap(&err, "fork", s.Name())
	if err := checkForks(n); err != nil {
		return nil, err
	}
	o, err := s.forkOrder(opts, n)
	if err != nil {
		return nil, err
	}
	defer o.Report.Silence()
	return forkResults(s.h.ForkN(ctx, n, o))
}

func forkResults(made []lifecycle.Fork, err error) (results []ForkResult, _ error) {
	for _, r := range made {
		results = append(results, ForkResult{newSandbox(r.Handle), fail("fork", r.Name, r.Err)})
		err = errors.Join(err, results[len(results)-1].Err)
	}
	return results, err
}

// maxForks bounds one ForkN, so that a mistyped number does not fill an engine.
const maxForks = 256

func checkForks(n int) error {
	if n < 1 || n > maxForks {
		return errdefs.Invalid("%d forks; one call makes 1 to %d", n, maxForks)
	}
	return nil
}
