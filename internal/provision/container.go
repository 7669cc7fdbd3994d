package provision

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/bound"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/errdefs"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
	"github.com/seed-1a2d6d8f/sandbox/internal/machine"
	"github.com/seed-1a2d6d8f/sandbox/internal/plan"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/internal/store"
)

const (
	// LeaseTime is how long PID 1 of a sandbox that is not persistent goes on before its handle has
	// connected, and after that connection has ended; it then waits a third more, 30 s in total.
	LeaseTime = 22500 * time.Millisecond

	logMaxSize  = "10m"
	logMaxFiles = 3
)

// makeContainer creates the container. Its name is the lock: from here on the sandbox's name
// is ours on this engine, or the build fails.
func (b *Build) makeContainer(ctx context.Context) error {
	b.report.Report(machine.Progress{Step: "container"})
	spec, err := b.spec()
	if err != nil {
		return err
	}
	b.undoAttached()
	for {
		_, err = b.Store.CreateContainer(ctx, &b.undo, spec, b.Record.Nonce)
		if engine.RefusesCPULimit(err) && spec.NanoCPUs != 0 && !b.Plan.Has(plan.CPUs) {
			b.Log.Warn("the sandbox has no limit of CPUs: the engine can't limit them", "sandbox", b.Record.Name, "error", err)
			b.report.Report(machine.Progress{Step: "container", Text: "without a limit of CPUs, which this engine can't limit"})
			spec.NanoCPUs = 0
			continue
		}
		if !errors.Is(err, engine.ErrConflict) {
			break
		}
		if err := b.Store.NameTaken(ctx, b.Record.Name); err != nil {
			return err
		}
		// The container of that name is being removed, or gone since.
		if err := bound.Sleep(ctx, store.PollEvery); err != nil {
			return err
		}
	}
	if errors.Is(err, engine.ErrNotFound) {
		err = b.imageMissing(ctx, spec.Image, err)
	}
	if err != nil {
		return fmt.Errorf("make container %s: %w", spec.Name, err)
	}
	if b.adopted {
		// Two sandboxes may adopt one workspace at the same time: each checks after it has mounted it.
		users, err := b.Engine.ListContainers(ctx, engine.Filter{Volume: record.WorkspaceName(b.Record.ID)})
		if err != nil {
			return err
		}
		if len(users) > 1 {
			return fmt.Errorf("%w: ID %q is being adopted twice", errdefs.Exists, b.Record.ID)
		}
	}
	if cluster := b.Store.Cluster; cluster != nil {
		if err := cluster.Room(ctx, b.Record, spec.NanoCPUs, spec.Memory); err != nil {
			return err
		}
	}
	return b.recheckAttached(ctx)
}

// spec returns the container to create.
func (b *Build) spec() (engine.ContainerSpec, error) {
	b.Record.Settings.User, b.Record.Settings.Guest = b.user(), machine.NewGuestDir()
	labels, err := b.Record.Labels()
	if err != nil {
		return engine.ContainerSpec{}, errdefs.Invalid("%w", err)
	}
	record.Mask(labels, b.image.Labels)
	key := ed25519.NewKeyFromSeed(b.Record.ControlKey)
	boot := wire.Init{
		ControlKey: key.Public().(ed25519.PublicKey),
		Timeout:    b.Plan.Timeout,
		Grace:      b.Plan.StopTimeout,
		Idle:       wire.Idle{Timeout: b.Plan.Idle.Timeout(), IgnoreDetached: b.Plan.Idle.IgnoreDetached, Version: b.Plan.Idle.Version},
		Ports:      b.Record.Settings.Ports,
	}
	if !b.Record.Persistent {
		boot.Lease = LeaseTime
	}
	user := b.Record.Settings.User
	boot.Workspace = wire.Workspace{Path: b.placed[0], User: user, Mounts: plan.BelowWorkspace(b.placed[0], b.mounted)}
	boot.Mounts = b.bootMounts()
	if len(b.Plan.Command) > 0 {
		boot.Main = &wire.Exec{Args: b.Plan.Command, Dir: b.Plan.Workdir, User: user, NewPrivileges: b.Record.Settings.NewPrivileges}
		isHome := func(kv string) bool { return strings.HasPrefix(kv, "HOME=") }
		boot.Home = slices.ContainsFunc(b.image.Env, isHome) || slices.ContainsFunc(b.env(), isHome)
	}
	config, err := json.Marshal(boot)
	if err != nil {
		return engine.ContainerSpec{}, err
	}
	return engine.ContainerSpec{
		Warn: func(warning string) {
			b.Log.Warn("the engine warns of a sandbox's container", "sandbox", b.Record.Name, "warning", warning)
			b.report.Report(machine.Progress{Step: "container", Text: warning})
		},
		Name:        record.ContainerName(b.Record.Name),
		Image:       b.base,
		Hostname:    b.Record.Name,
		User:        "0:0", // PID 1; commands run as the sandbox's user
		WorkingDir:  b.Plan.Workdir,
		Entrypoint:  []string{machine.GuestPath(b.Record.Settings), wire.VerbInit, string(config)},
		Env:         b.env(),
		Labels:      labels,
		NanoCPUs:    int64(b.Plan.VCPUs * 1e9),
		Memory:      b.Plan.Memory,
		MemorySwap:  b.Plan.Memory,
		PidsLimit:   b.Plan.PidsLimit,
		Storage:     b.Plan.StorageBytes,
		Runtime:     b.Plan.OCIRuntime,
		GPUs:        b.Plan.GPUs,
		Ports:       b.Record.Settings.Ports,
		DNS:         b.Machine.DNS(),
		NetworkMode: b.networkMode,
		Mounts: append([]engine.Mount{
			{Type: "volume", Source: record.WorkspaceName(b.Record.ID), Target: b.placed[0],
				NoCopy: !slices.Contains(b.fresh, b.placed[0]), VolumeLabels: b.Record.VolumeLabels(record.RoleWorkspace)},
			b.guest.Mount(b.Record.Settings.Guest),
		}, b.mounts()...),
		// PID 1 keeps NET_ADMIN for itself and drops it from everything it starts.
		CapAdd:      []string{"NET_ADMIN"},
		CapDrop:     []string{"NET_RAW", "MKNOD"},
		SecurityOpt: b.guest.SecurityOpt(),
		StopSignal:  "SIGTERM",
		StopTimeout: b.Plan.StopTimeout,
		LogMaxSize:  logMaxSize,
		LogMaxFiles: logMaxFiles,
	}, nil
}

// user returns the user that commands run as: the caller's choice, else the image's.
func (b *Build) user() string {
	if b.Plan.User != "" {
		return b.Plan.User
	}
	return b.image.User
}

func (b *Build) env() []string {
	var env []string
	for _, k := range slices.Sorted(maps.Keys(b.Plan.Env)) {
		env = append(env, k+"="+b.Plan.Env[k])
	}
	return env
}

// mounts returns the container's mounts beside the workspace and the guest. A volume that was
// removed meanwhile, and that the engine therefore creates, has the nonce op.
func (b *Build) mounts() []engine.Mount {
	var mounts []engine.Mount
	for _, m := range b.mounted {
		e := engine.Mount{Type: "bind", Source: m.Source, Target: m.Target, ReadOnly: m.Mode == record.RO}
		if m.Volume != "" {
			e.Type, e.Source, e.NoCopy = "volume", m.Volume, !slices.Contains(b.fresh, m.Target)
			e.VolumeLabels = record.With(b.Record.VolumeLabels(record.RoleRWCopy), record.Nonce, b.op)
		}
		mounts = append(mounts, e)
	}
	return mounts
}

// undoAttached registers the undo of volumes that the engine creates in place of attached ones
// that are missing. Existing ones have another nonce and are never removed.
func (b *Build) undoAttached() {
	for _, m := range b.mounted {
		if m.Attached() {
			b.undo.Add("volume "+m.Volume, func(ctx context.Context) error {
				return b.Store.RemoveVolume(ctx, m.Volume, b.op)
			})
		}
	}
}

// recheckAttached fails if an attached volume was removed before the container held it.
func (b *Build) recheckAttached(ctx context.Context) error {
	for _, m := range b.mounted {
		if !m.Attached() {
			continue
		}
		v, err := b.Store.FindVolume(ctx, m.Volume)
		if err != nil {
			return err
		}
		if v.Labels[record.Nonce] == b.op {
			return fmt.Errorf("%w: %s was removed during the call", errdefs.VolumeNotFound, m.Volume)
		}
	}
	return nil
}

// imageMissing explains why the engine found no image for a container: it was removed, maybe with
// the snapshot that it is of, or, on engines with containerd's image store, is there for another
// platform.
func (b *Build) imageMissing(ctx context.Context, ref string, err error) error {
	switch img, e := b.Engine.InspectImage(ctx, ref); {
	case errors.Is(e, engine.ErrNotFound):
		if o, stored := b.origin.(*Stored); stored && o.recorded {
			if e := o.recheck(ctx, b); e != nil {
				return e
			}
		}
		return fmt.Errorf("%w: %s was removed during the call: %w", errdefs.ImageNotFound, ref, err)
	case e != nil:
		return errors.Join(err, e)
	default:
		return errors.Join(b.Machine.CheckPlatform(ctx, ref, img), err)
	}
}
