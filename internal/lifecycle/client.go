// Package lifecycle is a sandbox from its creation to its deletion, and one handle on it:
// the connection to its guest, the start of its sessions, its lease, its changes.
package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/bound"
	"github.com/seed-1a2d6d8f/sandbox/internal/claim"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/errdefs"
	"github.com/seed-1a2d6d8f/sandbox/internal/machine"
	"github.com/seed-1a2d6d8f/sandbox/internal/plan"
	"github.com/seed-1a2d6d8f/sandbox/internal/provision"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/internal/store"
	"github.com/seed-1a2d6d8f/sandbox/internal/trace"
	"github.com/seed-1a2d6d8f/sandbox/internal/transfer"
)

// A Client creates sandboxes on one engine and opens handles on them.
type Client struct {
	Machine *machine.Machine
	Store   *store.Store // that of Machine, and so on
	Engine  *engine.Engine
	Log     *slog.Logger

	Location string            // of the engine, for people
	MaxPorts int               // that a sandbox may publish; 0 is the default
	Runtimes map[string]string // images by runtime, beside those that every client knows
	Limits   Limits
	Audit    *slog.Logger // gets a record of each command; nil for none
}

// New returns a client on a machine. maxPorts and limits are its fields.
func New(m *machine.Machine, maxPorts int, limits Limits) *Client {
	m.Store.Refill = func(ctx context.Context, rec record.Sandbox, nonce string) error {
		return transfer.Refill(ctx, m, rec, nonce, &machine.Reporter{})
	}
	return &Client{Machine: m, Store: m.Store, Engine: m.Engine, Log: m.Log, Location: m.Engine.Location(), MaxPorts: maxPorts, Limits: limits}
}

// Limits bound what a sandbox can make this program hold. All are set. The root package
// documents them under the same names.
type Limits struct {
	ReadFile, Output int64
	ReadDir          int
}

// A Hook is called with a handle on a running sandbox.
type Hook func(context.Context, *Handle) error

// CreateOptions say which sandbox to create, and what to call meanwhile.
type CreateOptions struct {
	Plan     plan.Sandbox
	OnCreate []Hook
	OnResume []Hook
	Report   *machine.Reporter
}

// Create creates a sandbox. Its files come from an origin if that is not nil.
func (c *Client) Create(ctx context.Context, o *CreateOptions, from provision.Origin) (*Handle, error) {
	c.Store.SweepInTurn()
	if id := o.Plan.Snapshot; id != "" {
		from = provision.FromSnapshot(id)
	}
	for {
		b, err := c.prepare(ctx, o, from)
		if err != nil {
			return nil, err
		}
		h, err := c.finishCreate(ctx, o, b, func(ctx context.Context) error { return c.start(ctx, b, o.Report, b.Fill) })
		if again, err := tryAgain(ctx, err); !again {
			return h, err
		}
	}
}

// tryAgain reports whether a build is made in another way after err, and if not, with which error
// the call fails.
func tryAgain(ctx context.Context, err error) (bool, error) {
	switch {
	case !errors.Is(err, provision.ErrTryAgain):
		return false, err
	case ctx.Err() != nil:
		return false, fmt.Errorf("%w: %w", errdefs.Cancelled(ctx), err)
	}
	return true, nil
}

// prepare returns a build after [provision.Build.Prepare].
func (c *Client) prepare(ctx context.Context, o *CreateOptions, from provision.Origin) (b *provision.Build, err error) {
	err = c.claimName(ctx, o.Plan.Name, o.Plan.ID, func() (err error) {
		if err := c.Store.CheckAttached(ctx, o.Plan.Mounts); err != nil {
			return err
		}
		b, err = c.tryPrepare(ctx, o, from)
		return err
	})
	return b, err
}

// claimName calls try, which claims the name for a sandbox with that ID, if both are available: see
// [store.Store.Available]. It takes over from a creator of the name that died, and calls try again.
func (c *Client) claimName(ctx context.Context, name, id string, try func() error) error {
	for {
		if err := c.Store.Available(ctx, name, id); err != nil {
			return err
		}
		err := try()
		var held *claim.TakenError
		if !errors.As(err, &held) {
			return err
		}
		switch m, found, err := claim.FindMarker(ctx, c.Engine, name); {
		case err != nil:
			return err
		case found && !m.Expired(c.Engine.Now()):
			return fmt.Errorf("%w: %w", store.ErrNameTaken, held)
		case found:
			if err := c.Store.AwaitTakeOver(ctx, name); err != nil {
				return err
			}
		}
		if err := bound.Sleep(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
}

// tryPrepare is one try of prepare.
func (c *Client) tryPrepare(ctx context.Context, o *CreateOptions, from provision.Origin) (*provision.Build, error) {
	slot, err := c.Machine.Slot(ctx, o.Report)
	if err != nil {
		return nil, err
	}
	defer slot.Release()
	b := provision.New(c.Machine, o.Plan, from, len(o.OnCreate) > 0, o.Report)
	if err := b.Prepare(ctx, slot); err != nil {
		return nil, errors.Join(err, b.Undo(ctx))
	}
	return b, nil
}

// start starts the first session of a build, after fill.
func (c *Client) start(ctx context.Context, b *provision.Build, report *machine.Reporter, fill func(context.Context) error) error {
	slot, err := c.Machine.Slot(ctx, report)
	if err != nil {
		return err
	}
	defer slot.Release()
	if err := fill(ctx); err != nil {
		return err
	}
	return b.Start(ctx, slot)
}

// finishCreate starts the first session, calls the hooks and commits the build. After a
// failure or a panic it undoes the build.
func (c *Client) finishCreate(caller context.Context, o *CreateOptions, b *provision.Build, start func(context.Context) error) (h *Handle, err error) {
	ctx, release := b.Bind(caller)
	defer release()
	done := false
	defer func() {
		if done {
			return
		}
		if h != nil {
			h.release()
		}
		if (errors.Is(err, errdefs.NotRunning) || errors.Is(err, ErrNoSession)) && caller.Err() == nil {
			err = c.withLog(caller, b.Record, err) // before the undo removes the container
		}
		err = errors.Join(err, b.Undo(caller))
		h = nil
	}()
	if err := start(ctx); err != nil {
		return nil, err
	}
	got, err := b.Container(ctx)
	if err != nil {
		return nil, err
	}
	h = c.handle(b.Record, got, o.OnResume, o.Report)
	h.owner, h.first = !b.Record.Persistent, true
	h.setSecrets(1, o.Plan.Secrets)
	h.keepLease() // the copies may take longer than a lease lasts
	if err := b.WaitFilled(); err != nil {
		return h, err
	}
	if err := h.connectIfNeeded(ctx, b.Record, got, firstStart); err != nil {
		return h, err
	}
	if err := h.checkMainStarted(ctx); err != nil {
		return h, err
	}
	for _, fn := range o.OnCreate {
		err := trace.Do(store.WithCreating(ctx, b.Record.Name), trace.Hook, func(ctx context.Context) error { return fn(ctx, h) }, h.Trace()...)
		if err != nil {
			return h, fmt.Errorf("OnCreate: %w", err)
		}
	}
	if len(o.OnCreate) > 0 && ctx.Err() == nil {
		if _, err := h.Current(store.WithCreating(ctx, b.Record.Name)); errors.Is(err, errdefs.NotFound) {
			return h, fmt.Errorf("OnCreate has deleted the sandbox: %w", errdefs.NotFound)
		} else if err != nil {
			return h, err
		}
	}
	if ctx.Err() != nil {
		return h, errdefs.Cancelled(ctx)
	}
	if err := b.Commit(ctx); err != nil {
		return h, err
	}
	done = true
	return h, nil
}

// GetOrCreate returns the sandbox of that name, and creates it if there is none.
func (c *Client) GetOrCreate(ctx context.Context, o *CreateOptions) (*Handle, error) {
	for {
		h, err := c.Get(ctx, o.Plan.Name, GetOptions{OnResume: o.OnResume, Report: o.Report, Secrets: o.Plan.Secrets, Wanted: &o.Plan})
		if !errors.Is(err, errdefs.NotFound) {
			return h, err
		}
		h, err = c.Create(ctx, o, nil)
		if !errors.Is(err, store.ErrNameTaken) {
			return h, err
		}
		// Another caller creates it, which Get waits for.
		if err := bound.Sleep(ctx, 20*time.Millisecond); err != nil {
			return nil, err
		}
	}
}

// GetOptions say how to open a handle on an existing sandbox.
type GetOptions struct {
	OnResume      []Hook
	WithoutResume bool
	NeverResume   bool // no call on the handle starts a session either
	Report        *machine.Reporter
	Secrets       []plan.Secret // what transforms of the sandbox's policy are to set
	Wanted        *plan.Sandbox // the settings that the sandbox would have been made with, or nil
	Strict        bool          // a secret for what the policy does not transform is an error
}

// Get opens a handle on the sandbox of that name or ID, and resumes it if it is stopped.
func (c *Client) Get(ctx context.Context, nameOrID string, o GetOptions) (*Handle, error) {
	rec, got, err := c.Store.AwaitCreated(ctx, nameOrID)
	if err != nil {
		return nil, err
	}
	h := c.handle(rec, got, o.OnResume, o.Report)
	h.neverResume = o.NeverResume
	opened := false
	defer func() { // OnResume may panic
		if !opened {
			h.release()
		}
	}()
	if o.Wanted != nil {
		if err := h.compare(got, o.Wanted, o.Report); err != nil {
			return nil, err
		}
	}
	if err := h.open(ctx, got, o); err != nil {
		return nil, err
	}
	opened = true
	return h, nil
}

// compare fails if a network policy was given and another one is in force, which might permit more.
// Other settings that were given and differ are reported.
func (h *Handle) compare(got engine.Container, wanted *plan.Sandbox, report *machine.Reporter) error {
	rec := h.known()
	if now := rec.Network().Policy; wanted.Has(plan.Network) && now != wanted.Network.String() {
		return errdefs.Classify(errdefs.Exists, fmt.Errorf("the sandbox exists with the network policy %q, not %q: change it with Update, or leave the policy out", now, wanted.Network))
	}
	if names := wanted.Differences(rec, got); len(names) > 0 {
		text := "the sandbox exists with other settings than those given, which are not applied: " + strings.Join(names, ", ")
		h.c.Log.Warn(text, "sandbox", rec.Name)
		report.Report(machine.Progress{Step: "settings", Text: text})
	}
	return nil
}

func (h *Handle) open(ctx context.Context, got engine.Container, o GetOptions) error {
	if err := h.acceptSecrets(o.Secrets, o.Strict); err != nil || o.WithoutResume || o.NeverResume {
		return err
	}
	if got.State != engine.StateRunning {
		o.Report.Report(machine.Progress{Step: "start", Text: "resuming"})
		return h.resume(ctx)
	}
	// Another process may have died while starting it.
	return h.connectIfNeeded(ctx, h.Record(), got, wasRunning)
}

// The last lines of a container's log, and the bytes of these, that an error repeats.
const (
	shownLines = 10
	shownBytes = 1 << 10
)

// withLog returns err with the end of the container's log, if the container has ended.
func (c *Client) withLog(ctx context.Context, rec record.Sandbox, err error) error {
	got, e := c.Engine.InspectContainer(ctx, record.ContainerName(rec.Name))
	if e != nil || got.Labels[record.Nonce] != rec.Nonce || got.State != engine.StateExited {
		return err
	}
	log, e := c.Engine.ReadLog(ctx, got.ID, engine.LogSpec{Tail: shownLines})
	if e != nil {
		return err
	}
	defer log.Close()
	var text []byte
	for piece, e := log.Next(); e == nil; piece, e = log.Next() {
		text = append(text, piece.Text...)
		if piece.End {
			text = append(text, '\n')
		}
		text = text[max(0, len(text)-shownBytes):]
	}
	if len(text) == 0 {
		return err
	}
	return fmt.Errorf("%w: its log ends with %q", err, text)
}
