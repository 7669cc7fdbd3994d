// Package store uses the engine as the only store of state. It finds, lists and removes the
// objects of sandboxes, and takes over from processes that died in the middle of a change.
package store

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/bound"
	"github.com/seed-1a2d6d8f/sandbox/internal/claim"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/errdefs"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/internal/trace"
)

// Store is the state on one engine.
type Store struct {
	Engine *engine.Engine
	Log    *slog.Logger
	// Refill goes on with a rollback of a process that died, see [Refill]. nonce is that of the
	// operation.
	Refill func(ctx context.Context, rec record.Sandbox, nonce string) error
	// Empty removes the files of a mount, see [Store.removeVolume]. Its Target is left open.
	Empty func(ctx context.Context, m engine.Mount) error
	// Cluster is what the engine has in common with others, or nil.
	Cluster Cluster

	watch  claim.Watch
	silent sync.Map // objects that the engine did not answer for in a sweep, with the time

	mu       sync.Mutex
	swept    time.Time          // when this client last asked whether to sweep
	endSweep context.CancelFunc // of the sweep in the background; nil if there is none
	sweeps   sync.WaitGroup
	closed   bool
}

// A Cluster is several engines on which a name is one sandbox's, and each of which has a limit for what
// runs on it.
type Cluster interface {
	// Claim takes the name of a sandbox whose marker is on this engine. If another engine has a
	// sandbox of that name, or may have one, the error is [ErrNameTaken].
	Claim(ctx context.Context, rec record.Sandbox) error
	// Free gives the name back if it is this sandbox's.
	Free(ctx context.Context, rec record.Sandbox) error
	// DeleteLater notes the deletion of a sandbox on this engine, which does not answer, and returns the
	// cause of that with what becomes of the deletion.
	DeleteLater(ctx context.Context, rec record.Sandbox, what record.Deletion, cause error) error
	// Room fails with [errdefs.NoCapacity] unless the sandbox, with such limits, fits beside the
	// others that run on this engine or are being created there. Of several that are being created,
	// whose containers exist, those that were begun first have precedence.
	Room(ctx context.Context, rec record.Sandbox, nanoCPUs, memory int64) error
	// Settle says for the marker of a move whether the sandbox counts on the node that it was moved to. If
	// it does, Settle has removed it from the other one. Otherwise the move can't take place any more.
	Settle(ctx context.Context, m record.Marker) (moved bool, err error)
	// Sweep frees the names that were taken for this engine, and of whose sandboxes it has nothing.
	Sweep(ctx context.Context) error
	// CopyImage copies an image to this engine from another one that has it and for which fits returns
	// true, once for all that ask at the same time, and calls from with the other one's name. If there
	// is none the error is [errdefs.ImageNotFound].
	CopyImage(ctx context.Context, ref string, fits func(engine.Image) bool, from func(node string)) (engine.Image, error)
}

// Close ends the sweep that runs in the background, if there is one, and waits for that.
func (s *Store) Close() {
	s.mu.Lock()
	s.closed = true
	if s.endSweep != nil {
		s.endSweep()
	}
	s.mu.Unlock()
	s.sweeps.Wait()
}

// isDead reports whether the holder of a marker has died, see [claim.Watch].
func (s *Store) isDead(m record.Marker) bool { return s.watch.Dead(m, s.Engine.Now()) }

// A pace is the pauses between looks at what another process does with a sandbox, which get
// longer. From the first one to end they are a span.
type pace struct {
	name  string // of the sandbox
	began time.Time
	next  time.Duration
	span  *trace.Span
}

func newPace(name string, first time.Duration) *pace {
	return &pace{name: name, began: time.Now(), next: first}
}

// end is meant to be deferred, as [trace.Span.End] is.
func (p *pace) end(err *error) { p.span.End(err) }

func (p *pace) sleep(ctx context.Context) error {
	if p.span == nil {
		_, p.span = trace.Start(ctx, trace.Other, trace.Name(p.name))
	}
	wait := p.next
	p.next = min(2*wait, 250*time.Millisecond)
	if time.Since(p.began) > claim.Lease {
		wait = time.Second
	}
	return bound.Sleep(ctx, wait)
}

// Holder describes this process for people who read a marker.
var Holder = sync.OnceValue(func() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("process %d on %s", os.Getpid(), host)
})

type creatingKey struct{}

// WithCreating marks the context of a hook that runs during the creation of the sandbox, so
// that finding the sandbox does not wait for the hook itself.
func WithCreating(ctx context.Context, sandbox string) context.Context {
	return context.WithValue(ctx, creatingKey{}, sandbox)
}

func isCreating(ctx context.Context, sandbox string) bool { return ctx.Value(creatingKey{}) == sandbox }

// Classify returns err with the class of package fault that follows from an error of the
// engine or a record. An error that has a class keeps it.
func Classify(err error) error {
	if err == nil || errdefs.Known(err) {
		return err
	}
	var foreign *record.ForeignError
	var held *claim.TakenError
	switch {
	case errors.As(err, &foreign):
		return errdefs.Classify(errdefs.Foreign, err)
	case errors.As(err, &held):
		return errdefs.Classify(errdefs.Exists, err)
	case errors.Is(err, engine.ErrUnavailable), errors.Is(err, claim.ErrLost):
		return errdefs.Classify(errdefs.EngineUnavailable, err)
	case errors.Is(err, engine.ErrInvalid):
		return errdefs.Classify(errdefs.InvalidArgument, err)
	case errors.Is(err, engine.ErrUnsupported):
		return errdefs.Classify(errdefs.Unsupported, err)
	}
	return err
}
