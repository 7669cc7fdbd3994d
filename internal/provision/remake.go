package provision

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/seed-1a2d6d8f/sandbox/internal/claim"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/errdefs"
	"github.com/seed-1a2d6d8f/sandbox/internal/machine"
	"github.com/seed-1a2d6d8f/sandbox/internal/plan"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/internal/store"
	"github.com/seed-1a2d6d8f/sandbox/internal/transfer"
)

// Outdated reports whether the next session needs another container than got. It does if the settings
// have changed since got was created. It also does if got has run and has a mount below another one
// that others may change: their symbolic link could lead that mount to the guest's path while the
// container starts, and a new container has a path that nobody knows.
func Outdated(ctx context.Context, m *machine.Machine, rec record.Sandbox, got engine.Container) (bool, error) {
	if rec.Outdated() || got.StartedAt.IsZero() {
		return rec.Outdated(), nil
	}
	if machine.NeedsLayer(got) && !machine.LeftPlain(got) {
		// Where the layer can't be looked at, the new container's image can.
		if layer, err := m.LayerOf(ctx, got); err != nil || layer == (machine.Layer{}) {
			return true, err
		}
	}
	for _, outer := range got.Mounts {
		if !slices.ContainsFunc(got.Mounts, func(inner engine.MountPoint) bool { return strings.HasPrefix(inner.Target, outer.Target+"/") }) {
			continue
		}
		if outer.Name == "" {
			return true, nil
		}
		users, err := m.Engine.ListContainers(ctx, engine.Filter{Volume: outer.Name})
		if err != nil || len(users) > 1 {
			return true, err
		}
	}
	return false, nil
}

// Remake replaces the container of a sandbox that does not run by one with its latest changes
// and the same files. A container without changes is replaced if it has the ID anew. A
// *claim.TakenError says that another process is changing the sandbox.
//
// The new container is complete before the old one is removed, and then takes its name. So
// there is always a complete one, and [store.Store.FinishReplacement] finds it.
func Remake(ctx context.Context, m *machine.Machine, rec record.Sandbox, anew string, report *machine.Reporter) error {
	return change(ctx, m, rec, report, func(ctx context.Context, rec record.Sandbox, got engine.Container, op string) error {
		if got.HasSession() {
			return nil
		}
		if outdated, err := Outdated(ctx, m, rec, got); err != nil || !outdated && got.ID != anew {
			return err
		}
		report.Report(machine.Progress{Step: "container", Text: "a new one for what was changed"})
		layer, err := m.LayerOf(ctx, got)
		if err != nil {
			return err
		}
		for {
			b, err := rebuild(ctx, m, rec, got, op, report)
			if err != nil {
				return err
			}
			err = b.makeNext(ctx, got, layer, nil)
			if err != nil {
				undoErr := b.undo.Run(ctx)
				if errors.Is(err, transfer.ErrNoLayer) && undoErr == nil && ctx.Err() == nil {
					m.Log.Warn("files outside of volumes are committed", "sandbox", rec.Name, "error", err)
					layer = machine.Layer{}
					continue
				}
				return errors.Join(fmt.Errorf("make a new container: %w", err), undoErr)
			}
			if err := m.Store.FinishReplacement(ctx, rec, nil); err != nil {
				return err
			}
			b.Store.DropImageOf(ctx, got)
			return nil
		}
	})
}

// change calls do with the latest record of a sandbox and its present container, while nobody
// else changes or deletes the sandbox. op is the nonce of the change.
func change(ctx context.Context, m *machine.Machine, rec record.Sandbox, report *machine.Reporter,
	do func(ctx context.Context, rec record.Sandbox, got engine.Container, op string) error) error {
	return changeUnder(ctx, m, rec, m.Store.Hold, report, do)
}

// changeUnder is change with another kind of [store.Store.Hold].
func changeUnder(ctx context.Context, m *machine.Machine, rec record.Sandbox, hold func(context.Context, record.Sandbox) (*claim.Claim, string, error),
	report *machine.Reporter, do func(ctx context.Context, rec record.Sandbox, got engine.Container, op string) error) (err error) {
	mine, op, err := hold(ctx, rec)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Store.Release(ctx, rec, mine, op, err)) }()
	if mine != nil {
		var release func()
		ctx, release = mine.Bind(ctx)
		defer release()
	}
	refill := func(ctx context.Context, rec record.Sandbox) error { return transfer.Refill(ctx, m, rec, op, report) }
	if err := m.Store.FinishReplacement(ctx, rec, refill); err != nil {
		return err
	}
	got, err := m.Store.Locate(ctx, rec.Name)
	if errors.Is(err, engine.ErrNotFound) {
		return errdefs.NotFound
	}
	if err != nil {
		return err
	}
	made, ok := store.SandboxOf(got)
	if !ok || made.Nonce != rec.Nonce || store.BeingRemoved(got) {
		return errdefs.NotFound
	}
	if rec, err = claim.Latest(ctx, m.Engine, made); err != nil {
		return err
	}
	return do(ctx, rec, got, op)
}

// rebuild returns a build of the container with the latest changes.
func rebuild(ctx context.Context, m *machine.Machine, rec record.Sandbox, got engine.Container, op string, report *machine.Reporter) (*Build, error) {
	image, err := m.Store.ImageOf(ctx, got)
	if err != nil {
		return nil, err
	}
	p, err := plan.FromRecord(rec, got, image)
	if err != nil {
		return nil, err
	}
	if err := m.Store.CheckAttached(ctx, p.Mounts); err != nil {
		return nil, err
	}
	b := &Build{Machine: m, Store: m.Store, Engine: m.Engine, Log: m.Log, Plan: *p, report: report, op: op, image: image}
	b.mounted = plan.WithDeclared(p.Mounts, image.Volumes)
	b.Record = rec.Merged()
	b.Record.By, b.Record.Previous = op, store.Fingerprint(got)
	s := &b.Record.Settings
	s.Mounts, s.Declared, s.Rollback = nil, nil, nil // the build writes them
	if err := b.place(ctx, image.ID); err != nil {
		return nil, err
	}
	if got.NetworkMode == "none" {
		b.networkMode = got.NetworkMode
	}
	b.guest, err = m.EnsureGuest(ctx, report)
	return b, err
}

// makeNext creates the replacement of got, complete except for its name. Its own files are those
// of a snapshot if that is not nil, otherwise those of got: copied from its layer, or committed if
// that is the zero Layer.
func (b *Build) makeNext(ctx context.Context, got engine.Container, layer machine.Layer, snapshot *Stored) error {
	if err := b.makeCopyVolumes(ctx); err != nil {
		return err
	}
	if snapshot != nil {
		b.Record.Settings.Rollback = snapshot.rollback(b)
	}
	g, fctx := errgroup.WithContext(ctx)
	copies, check := b.filler(), b.filler()
	b.undo.Add("helper", copies.Helper.Undo.Run)
	b.undo.Add("helper", check.Helper.Undo.Run)
	g.Go(func() error { return check.CheckBinds(fctx, plan.LocalBinds(b.mounted)) })
	g.Go(func() error { return copies.Directories(fctx, b.dirs) })
	onDisk := layer != (machine.Layer{})
	from := b.base
	switch {
	case snapshot != nil:
	case onDisk:
		from = b.sameImage(got)
	default:
		g.Go(func() (err error) {
			if from, err = b.layer(fctx, got, true); err != nil {
				return err
			}
			return b.placeAgain(fctx, from)
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	spec, err := b.nextSpec(got, from)
	if err != nil {
		return err
	}
	b.undoAttached()
	id, err := b.Store.CreateContainer(ctx, &b.undo, spec, b.Record.Nonce)
	if err != nil {
		return err
	}
	if err := b.recheckAttached(ctx); err != nil {
		return err
	}
	switch {
	case snapshot != nil:
		err = snapshot.copyLayer(ctx, b, id)
	case onDisk:
		err = b.copyLayer(ctx, got, layer, id)
	}
	if err != nil {
		return err
	}
	// Under this name FinishReplacement uses it.
	return b.Engine.RenameContainer(ctx, id, record.NextName(b.Record.Name))
}

// nextSpec returns the replacement of got, from an image.
func (b *Build) nextSpec(got engine.Container, from string) (engine.ContainerSpec, error) {
	spec, err := b.spec()
	if err != nil {
		return spec, err
	}
	spec.Name, spec.Image = record.UnfinishedName(b.Record.Name), from
	spec.NanoCPUs = got.NanoCPUs // exactly
	return spec, nil
}

// copyLayer copies a container's own files to a new one of the same image, on the engine's
// disk. That loses none of them, and adds no layer to an image.
func (b *Build) copyLayer(ctx context.Context, got engine.Container, layer machine.Layer, id string) error {
	made, err := b.Engine.InspectContainer(ctx, id)
	if err != nil {
		return err
	}
	to, err := b.Machine.FreshLayer(ctx, made)
	if err != nil {
		return err
	}
	k := transfer.NewCopier(b.Machine, b.Record.Name, b.op, b.report)
	b.undo.Add("helper", k.Helper.Undo.Run)
	return k.Copy(ctx, []transfer.Job{transfer.LayerJob(got, layer, to)})
}

// sameImage returns the image of a container, by its name if it still has that.
func (b *Build) sameImage(got engine.Container) string {
	if slices.Contains(b.image.Tags, got.Image) {
		return got.Image
	}
	return got.ImageID
}

// layer returns an image with the files of a container: the container's own image if they do
// not differ. processes says whether the record of its processes is one of them.
func (b *Build) layer(ctx context.Context, got engine.Container, processes bool) (string, error) {
	ref := record.LayerImage(b.op)
	b.undo.Add("image "+ref, b.dropLayer)
	labels := record.Base(record.RoleLayer, b.Record.Nonce, b.Engine.Now())
	labels[record.By] = b.op
	id, err := transfer.Commit(ctx, b.Machine, got, b.image, ref, labels, processes, b.report)
	if id == "" {
		return b.sameImage(got), err
	}
	return ref, err
}

// dropLayer removes the image that layer has made.
func (b *Build) dropLayer(ctx context.Context) error {
	return b.Store.Uncommit(ctx, record.LayerImage(b.op), b.Record.Nonce)
}
