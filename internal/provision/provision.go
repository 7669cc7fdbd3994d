// Package provision creates a sandbox's container and volumes, or replaces them, in one
// transaction: each step registers its undo before it runs, and a failure leaves nothing.
package provision

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/seed-1a2d6d8f/sandbox/internal/bound"
	"github.com/seed-1a2d6d8f/sandbox/internal/claim"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/errdefs"
	"github.com/seed-1a2d6d8f/sandbox/internal/machine"
	"github.com/seed-1a2d6d8f/sandbox/internal/plan"
	"github.com/seed-1a2d6d8f/sandbox/internal/policy"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/internal/store"
	"github.com/seed-1a2d6d8f/sandbox/internal/transfer"
)

// A Build creates one sandbox. Its steps are [Build.Prepare], [Build.Fill], [Build.Start],
// [Build.WaitFilled] and [Build.Commit], in this order; after a failure [Build.Undo] reverts all
// of them.
type Build struct {
	Machine *machine.Machine
	Store   *store.Store // that of Machine, and so on
	Engine  *engine.Engine
	Log     *slog.Logger

	Plan   plan.Sandbox
	Record record.Sandbox

	origin       Origin // of its files, or nil
	claim        *claim.Claim
	image        engine.Image
	base         string // the image to create the container from
	guest        machine.Guest
	op           string // nonce of the operation; of the sandbox, when that is created
	usualUser    string // of the origin, which is not checked
	networkMode  string // the engine's default, or "none"
	ownLayer     machine.OwnLayer
	shares       bool           // some volumes are overlays over files of the origin
	adopted      bool           // the workspace existed and stays after an Undo
	mounted      []record.Mount // with the volumes that copies go to, and the image's
	placed       []string       // where the workspace and what is mounted are, see place
	fresh        []string       // targets of volumes that the engine fills from the image
	imageID      string         // of the image to create the container from
	dirs         []transfer.Directory
	forked       []transfer.Job // of copies of another sandbox's copies
	visibleEarly bool           // others may see the sandbox before Commit
	undo         store.Undo
	report       *machine.Reporter
	slot         *machine.Slot // of the step that runs

	release     func()       // ends the context of Prepare
	filled      func() error // waits for the copies into the volumes
	stopFilling func()
}

// New returns a build of the sandbox p. visibleEarly says that others may change the sandbox
// before Commit.
func New(m *machine.Machine, p plan.Sandbox, from Origin, visibleEarly bool, report *machine.Reporter) *Build {
	seed := make([]byte, ed25519.SeedSize)
	rand.Read(seed)
	b := &Build{Machine: m, Store: m.Store, Engine: m.Engine, Log: m.Log, Plan: p, origin: from, visibleEarly: visibleEarly, mounted: slices.Clone(p.Mounts), report: report}
	b.Record = record.Sandbox{
		ID: p.ID, Name: p.Name, Nonce: record.NewNonce(), CreatedAt: m.Engine.Now(),
		Tags: p.Tags, Persistent: *p.Persistent, ControlKey: seed,
		Settings: record.SandboxSettings{
			Image: p.Image, Runtime: p.Runtime, User: p.User, Workdir: p.Workdir, Command: p.Command,
			TimeoutMS: p.Timeout.Milliseconds(), StopTimeoutMS: p.StopTimeout.Milliseconds(),
			NewPrivileges: p.NewPrivileges, StorageBytes: p.StorageBytes, GPUs: p.GPUs, Pooled: p.Pooled,
			Ports: p.Published(), Network: p.Network.String(),
		},
	}
	if p.Idle != (record.Idle{}) {
		b.Record.Settings.Idle = &p.Idle
	}
	if p.Source != nil {
		b.Record.Settings.Source = p.Source.String()
	}
	b.op = b.Record.Nonce
	return b
}

// Prepare creates everything except the session: the volumes, which directories are being
// copied into when it returns, and the container. A *claim.TakenError says that another
// process is creating a sandbox of that name.
func (b *Build) Prepare(ctx context.Context, slot *machine.Slot) error {
	b.slot = slot
	if err := b.claimAndShare(ctx); err != nil {
		return err
	}
	ctx, b.release = b.claim.Bind(ctx) // until Commit or Undo: copies go on after Prepare
	for _, step := range []func(context.Context) error{b.makeVolumes, b.beforeContainer, b.makeAndFill} {
		if err := step(ctx); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return errdefs.Cancelled(ctx)
		}
	}
	return nil
}

// Bind returns a context that also ends when the claim on the name is lost, because the engine
// did not answer to its renewals: then another process may remove the sandbox. The caller calls
// release.
func (b *Build) Bind(ctx context.Context) (_ context.Context, release func()) {
	return b.claim.Bind(ctx)
}

// Commit makes the sandbox visible to everyone. From then on Undo has nothing to do.
func (b *Build) Commit(ctx context.Context) error {
	if err := b.claim.Commit(ctx); err != nil {
		return err
	}
	b.release()
	b.undo.Forget()
	if err := b.claim.DropRenewals(context.WithoutCancel(ctx)); err != nil {
		b.Log.Warn("a renewed marker is left for the next sweep", "sandbox", b.Record.Name, "error", err)
	}
	return nil
}

// Undo removes everything that was created.
func (b *Build) Undo(ctx context.Context) error {
	if b.stopFilling != nil {
		b.stopFilling()
		b.filled() // before the undo removes its helpers
	}
	if b.claim != nil {
		b.claim.Stop()
	}
	if b.release != nil {
		b.release()
	}
	return b.undo.Run(ctx)
}

// SharesFiles reports whether volumes of the sandbox are overlays over files of its origin.
func (b *Build) SharesFiles() bool { return b.shares }

// claimAndShare runs claimName and prepareShared at once.
func (b *Build) claimAndShare(ctx context.Context) error {
	own, cancel := context.WithCancel(ctx)
	defer cancel()
	shared := make(chan error, 1)
	go func() { shared <- b.prepareShared(own) }()
	if err := b.claimName(ctx); err != nil {
		cancel() // the holder of the name prepares the same
		<-shared
		return err
	}
	return <-shared
}

// claimName claims the name among the processes that create sandboxes.
func (b *Build) claimName(ctx context.Context) error {
	b.undo.AddGuard(fmt.Sprintf("pending marker of %q", b.Record.Name), func(ctx context.Context) error {
		return claim.Drop(ctx, b.Engine, b.Record.Name, b.Record.Nonce, "")
	})
	b.undo.Add(fmt.Sprintf("revisions of %q", b.Record.Name), func(ctx context.Context) error {
		if !b.visibleEarly {
			return nil // nobody else could have made one
		}
		return claim.DropRevisions(ctx, b.Engine, b.Record)
	})
	var err error
	b.claim, err = bound.FinishCall(ctx, func(ctx context.Context) (*claim.Claim, error) {
		return claim.Try(ctx, b.Engine, b.Record.Name, b.Record.Nonce, store.Holder())
	})
	cluster := b.Store.Cluster
	if err != nil || cluster == nil {
		return err
	}
	// After the marker: whoever finds the name taken finds the marker or the container on this engine.
	b.undo.AddGuard(fmt.Sprintf("entry of %q", b.Record.Name), func(ctx context.Context) error { return cluster.Free(ctx, b.Record) })
	return cluster.Claim(ctx, b.Record)
}

// prepareShared prepares what sandboxes share and what may be slow, before any object of this
// sandbox but its marker exists.
func (b *Build) prepareShared(ctx context.Context) error {
	if err := errors.Join(b.checkRuntime(ctx), b.checkStorage(ctx), b.checkLimits(ctx)); err != nil {
		return err
	}
	if b.Plan.Source != nil {
		if err := b.Plan.Source.Ready(); err != nil {
			return err
		}
	}
	if b.origin != nil {
		if err := b.origin.prepare(ctx, b); err != nil {
			return err
		}
	}
	g, ctx := errgroup.WithContext(ctx)
	if b.base == "" {
		g.Go(func() (err error) {
			if b.image, err = b.Machine.EnsureImage(ctx, b.Plan.Image, b.Plan.Emulated, b.Plan.From, b.slot, b.report); err != nil {
				return err
			}
			b.base = b.image.Ref
			return b.placeFirst(ctx)
		})
	} else {
		g.Go(func() error { return b.placeFirst(ctx) })
	}
	g.Go(func() (err error) {
		b.guest, err = b.Machine.EnsureGuest(ctx, b.report)
		return err
	})
	return g.Wait()
}

// checkRuntime fails if the engine lacks the chosen OCI runtime, or if sandboxes can't be run by
// it. One under which no policy can be enforced runs sandboxes that have no network.
func (b *Build) checkRuntime(ctx context.Context) error {
	runtime := b.Plan.OCIRuntime
	if runtime == "" {
		return nil
	}
	info, err := b.Engine.Info(ctx)
	if err != nil {
		return err
	}
	if !slices.Contains(info.Runtimes, runtime) {
		return fmt.Errorf("%w: it has no OCI runtime %q, only %s", errdefs.Unsupported, runtime, strings.Join(info.Runtimes, ", "))
	}
	if runtime == "runc" {
		return nil
	}
	can, err := b.Machine.Abilities(ctx, runtime)
	if err != nil {
		return fmt.Errorf("try OCI runtime %q: %w", runtime, err)
	}
	if can.Policy != nil && b.Plan.Network.Mode == policy.DenyAll && len(b.Record.Settings.Ports) == 0 {
		b.networkMode, can.Policy = "none", nil
	}
	return errors.Join(can.Layer, can.Policy)
}

// checkStorage fails if the engine's storage driver can't limit a container's own layer. That
// overlay2 also needs project quotas shows when the container is created.
func (b *Build) checkStorage(ctx context.Context) error {
	if b.Plan.StorageBytes == 0 {
		return nil
	}
	info, err := b.Engine.Info(ctx)
	if err != nil {
		return err
	}
	if !slices.Contains([]string{"overlay2", "btrfs", "zfs", "devicemapper"}, info.StorageDriver) {
		return fmt.Errorf("%w: WithStorageSize: its storage driver %s limits no container", errdefs.Unsupported, info.StorageDriver)
	}
	return nil
}

// checkLimits fails if a limit was asked for that the engine would not enforce. The default limits
// protect the machine as far as the engine can.
func (b *Build) checkLimits(ctx context.Context) error {
	if !b.Plan.Has(plan.CPUs|plan.Memory) && b.Plan.PidsLimit == plan.DefaultPidsLimit {
		return nil
	}
	cpus := 0.0
	if b.Plan.Has(plan.CPUs) {
		cpus = b.Plan.VCPUs
	}
	return machine.Limits(ctx, b.Engine, cpus)
}

// makeAndFill creates the container, and starts to fill the volumes in the background, so that
// the copies take little time of their own.
func (b *Build) makeAndFill(ctx context.Context) error {
	if err := b.makeContainer(ctx); err != nil {
		return err
	}
	copies, source, check := b.filler(), b.filler(), b.filler()
	if b.Plan.Source != nil {
		var err error
		if source.Owner, err = b.Machine.LookupOwner(ctx, b.imageID, b.user()); err != nil {
			return err
		}
	}
	b.undo.Add("helper", copies.Helper.Undo.Run)
	b.undo.Add("helper", source.Helper.Undo.Run)
	b.undo.Add("helper", check.Helper.Undo.Run)
	own, stop := context.WithCancel(ctx)
	fills, own := errgroup.WithContext(own)
	fills.Go(func() error {
		if err := copies.Directories(own, b.dirs); err != nil {
			return fmt.Errorf("fill volume: %w", err)
		}
		return nil
	})
	fills.Go(func() error { return check.CheckBinds(own, plan.LocalBinds(b.mounted)) })
	fills.Go(func() error { return source.Source(own, b.Plan.Source) })
	b.stopFilling, b.filled = stop, sync.OnceValue(fills.Wait)
	return nil
}

// Fill copies the files of the origin.
func (b *Build) Fill(ctx context.Context) error {
	if b.origin == nil {
		b.ownLayer.Pristine = true
		return nil
	}
	return b.origin.fill(ctx, b)
}

// Start starts the first session. Copies into the volumes may go on meanwhile, since nobody
// connects before the marker is removed. But a main process would see an incomplete copy, and
// the start creates the mount points of nested mounts in the volumes: such a start waits for
// the copies, without the slot.
//
// After Start the session may have ended already, see [Build.Container].
func (b *Build) Start(ctx context.Context, slot *machine.Slot) error {
	if len(b.Plan.Command) > 0 || plan.Nested(b.placed[0], b.mounted, b.Plan.Source != nil || b.origin != nil) {
		if err := slot.Without(ctx, b.WaitFilled); err != nil {
			return err
		}
	}
	if err := b.checkUser(ctx); err != nil {
		return err
	}
	b.report.Report(machine.Progress{Step: "start"})
	wait := b.Machine.Prefetch(ctx, b.Plan.Network)
	defer wait()
	return b.Machine.Start(ctx, b.Record.Name, b.ownLayer)
}

// checkUser fails if commands are to run as a user that the container lacks, whether the caller or the
// image chose it. OnCreate may create it.
func (b *Build) checkUser(ctx context.Context) error {
	user := b.user()
	if user == "" || user == b.usualUser || b.visibleEarly {
		return nil
	}
	err := b.Machine.CheckUser(ctx, record.ContainerName(b.Record.Name), b.imageID, user, b.ownLayer)
	switch {
	case err == nil:
		return nil
	case b.Plan.User == "":
		return fmt.Errorf("the image's user %q: %w: choose another one with WithUser", user, err)
	}
	return fmt.Errorf("user %q: %w", user, err)
}

// WaitFilled waits for the copies into the volumes.
func (b *Build) WaitFilled() error {
	defer b.stopFilling()
	return b.filled()
}

func (b *Build) beforeContainer(ctx context.Context) error {
	if b.origin == nil {
		return nil
	}
	return b.origin.beforeContainer(ctx, b)
}

// Container returns the new container, which must be running.
func (b *Build) Container(ctx context.Context) (engine.Container, error) {
	got, err := b.Engine.InspectContainer(ctx, record.ContainerName(b.Record.Name))
	if err != nil {
		return got, err
	}
	if got.Labels[record.Nonce] != b.Record.Nonce {
		return got, fmt.Errorf("%w: the container was replaced while it was being made", errdefs.Exists)
	}
	if got.State != engine.StateRunning {
		return got, fmt.Errorf("%w: the container exited during its start: %s", errdefs.NotRunning, store.ReasonOf(got))
	}
	return got, nil
}

// filler returns a helper that fills volumes of the sandbox.
func (b *Build) filler() *transfer.Filler {
	return &transfer.Filler{Helper: b.Machine.NewHelper(b.op, b.report), For: b.Record, From: b.Plan.From}
}
