package provision

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/seed-1a2d6d8f/sandbox/internal/bound"
	"github.com/seed-1a2d6d8f/sandbox/internal/claim"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/errdefs"
	"github.com/seed-1a2d6d8f/sandbox/internal/machine"
	"github.com/seed-1a2d6d8f/sandbox/internal/plan"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/internal/store"
	"github.com/seed-1a2d6d8f/sandbox/internal/transfer"
)

// A Journey is a move of a sandbox from one engine to another one.
type Journey struct {
	From, To *machine.Machine
	Node     string // that From is, for whoever has to settle the move
	// Switch makes the sandbox now, on To, the one that counts, in place of was, whose container is in
	// the state previous, and removes that one. If it did not, because was has changed since, moved is
	// false. After [store.ErrUnsettled] nobody knows.
	Switch func(ctx context.Context, was, now record.Sandbox, previous string) (moved bool, err error)
	Report *machine.Reporter
}

// Move moves a sandbox that does not run, with its volumes and the container's own files. A
// *claim.TakenError says that another process is changing it.
//
// Until Switch the sandbox is complete where it was, and afterwards where it was moved. There are markers
// on both engines meanwhile. Who finds them after this process has died removes the other one, see
// [store.Cluster]. A start is not kept away: one that comes before Switch has removed the container
// wins, and the move fails.
func Move(ctx context.Context, rec record.Sandbox, j Journey) error {
	hold := func(ctx context.Context, rec record.Sandbox) (*claim.Claim, string, error) {
		return j.From.Store.HoldMove(ctx, rec, j.Node)
	}
	return changeUnder(ctx, j.From, rec, hold, j.Report, func(ctx context.Context, rec record.Sandbox, got engine.Container, op string) error {
		if err := movable(rec, got); err != nil {
			return err
		}
		slot, err := j.To.Slot(ctx, j.Report)
		if err != nil {
			return err
		}
		defer slot.Release()
		b, err := j.arrive(ctx, rec, got)
		if err == nil {
			err = b.receive(ctx, j, rec, got, op)
		}
		moved := false
		if err == nil {
			moved, err = j.Switch(ctx, rec, b.Record, store.Fingerprint(got))
		}
		switch {
		case errors.Is(err, store.ErrUnsettled):
			b.claim.Stop()
			b.release()
			return err
		case !moved:
			if err == nil {
				err = started(rec)
			}
			return errors.Join(err, b.Undo(ctx))
		}
		if commitErr := b.Commit(ctx); commitErr != nil {
			b.Log.Warn("a marker is left for the next sweep", "sandbox", rec.Name, "error", commitErr)
		}
		return err
	})
}

// movable fails if the sandbox runs, or has something that is its node's.
func movable(rec record.Sandbox, got engine.Container) error {
	if got.HasSession() {
		return fmt.Errorf("%w: %q is %s: stop it first", errdefs.VolumeInUse, rec.Name, store.StateOf(got.State))
	}
	for _, m := range rec.Settings.Mounts {
		switch {
		case m.Attached():
			return errdefs.Invalid("volume %s at %s is attached, and stays on its node: take the mount away (WithoutMount), or use a copy", m.Volume, m.Target)
		case m.Mode != record.RWCopy:
			return errdefs.Invalid("%s, mounted at %s, is a directory of its node's machine: take the mount away (WithoutMount), or use a copy", m.Source, m.Target)
		}
	}
	return nil
}

// started is the error of a sandbox that another caller started while it was being moved.
func started(rec record.Sandbox) error {
	return fmt.Errorf("%w: %q was started during the call", errdefs.VolumeInUse, rec.Name)
}

// arrive returns a build of the sandbox on the other engine, with another nonce, under a marker. The
// build is never nil.
func (j Journey) arrive(ctx context.Context, rec record.Sandbox, got engine.Container) (*Build, error) {
	m := j.To
	b := &Build{Machine: m, Store: m.Store, Engine: m.Engine, Log: m.Log, report: j.Report, op: record.NewNonce()}
	b.Record = rec.Merged()
	b.Record.Nonce, b.Record.By, b.Record.Previous, b.Record.Revision = b.op, b.op, "", record.Revision{}
	b.Record.Settings.Network = rec.Network().Policy
	b.undo.AddGuard(fmt.Sprintf("pending marker of %q", rec.Name), func(ctx context.Context) error {
		return claim.Drop(ctx, b.Engine, rec.Name, b.op, "")
	})
	var err error
	b.claim, err = bound.FinishCall(ctx, func(ctx context.Context) (*claim.Claim, error) {
		return claim.TryMoveHere(ctx, b.Engine, rec.Name, b.op, rec.Nonce, j.Node, store.Holder())
	})
	if err != nil {
		return b, err
	}
	if err := m.Store.NameTaken(ctx, rec.Name); err != nil {
		return b, err
	}
	if b.image, err = j.image(ctx, got); err != nil {
		return b, fmt.Errorf("the image of the container: %w", err)
	}
	p, err := plan.FromRecord(rec, got, b.image)
	if err != nil {
		return b, err
	}
	b.Plan, b.base, b.mounted = *p, b.sameImage(got), plan.WithDeclared(p.Mounts, b.image.Volumes)
	s := &b.Record.Settings
	s.Mounts, s.Declared, s.Rollback = nil, nil, nil // makeCopyVolumes writes them
	if err := b.place(ctx, b.image.ID); err != nil {
		return b, err
	}
	if got.NetworkMode == "none" {
		b.networkMode = got.NetworkMode
	}
	b.guest, err = m.EnsureGuest(ctx, j.Report)
	return b, err
}

// image returns the image of the container on the other engine, which gets it from a node that has it.
func (j Journey) image(ctx context.Context, got engine.Container) (engine.Image, error) {
	img, err := j.To.Engine.InspectImage(ctx, got.ImageID)
	if !errors.Is(err, engine.ErrNotFound) {
		return img, err
	}
	same := func(img engine.Image) bool { return img.ID == got.ImageID }
	note := func(node string) {
		j.Report.Report(machine.Progress{Step: "image", Text: "copying " + got.Image + " from node " + node})
	}
	if _, ofSnapshot := record.SnapshotOfImage(got.Image); engine.IsTag(got.Image) && !ofSnapshot {
		// With its tag, unless that is another image's by now.
		if img, err := j.To.Store.Cluster.CopyImage(ctx, got.Image, same, note); err == nil && same(img) {
			return img, nil
		}
	}
	return j.To.Store.Cluster.CopyImage(ctx, got.ImageID, same, note)
}

// receive makes the volumes and the container, and streams their files.
func (b *Build) receive(ctx context.Context, j Journey, rec record.Sandbox, got engine.Container, op string) error {
	ctx, b.release = b.claim.Bind(ctx)
	jobs, err := b.makeVolumesOf(ctx, j.From, rec, got)
	if err != nil {
		return err
	}
	layer, err := j.From.LayerOf(ctx, got)
	if err != nil {
		return err
	}
	spec, err := b.spec()
	if err != nil {
		return err
	}
	spec.NanoCPUs = got.NanoCPUs // exactly
	id, err := b.Store.CreateContainer(ctx, &b.undo, spec, b.Record.Nonce)
	if err != nil {
		return fmt.Errorf("make container %s: %w", spec.Name, err)
	}
	made, err := b.Engine.InspectContainer(ctx, id)
	if err != nil {
		return err
	}
	to, err := b.Machine.FreshLayer(ctx, made)
	if err != nil {
		return err
	}
	if layer == (machine.Layer{}) || to == (machine.Layer{}) {
		return fmt.Errorf("%w: a storage driver of one of the nodes keeps files outside of volumes in no overlay", errdefs.Unsupported)
	}
	if err := j.sameDriver(ctx); err != nil {
		return err
	}
	if _, err := j.From.EnsureGuest(ctx, j.Report); err != nil {
		return err
	}
	sender := transfer.NewCopier(j.From, rec.Name, op, j.Report)
	receiver := transfer.NewCopier(j.To, rec.Name, b.op, j.Report)
	b.undo.Add("helper", receiver.Helper.Undo.Run)
	err = sender.Stream(ctx, receiver, append(jobs, transfer.LayerJob(got, layer, to)))
	if err = errors.Join(err, sender.Helper.Undo.Run(ctx)); err != nil {
		return err
	}
	now, err := j.From.Engine.InspectContainer(ctx, got.ID)
	if err == nil && (now.HasSession() || store.Fingerprint(now) != store.Fingerprint(got)) {
		err = started(rec)
	}
	return err
}

// sameDriver fails if the two engines mark in different ways what is deleted of an image.
func (j Journey) sameDriver(ctx context.Context) error {
	from, err := j.From.Engine.StorageDriver(ctx)
	if err != nil {
		return err
	}
	to, err := j.To.Engine.StorageDriver(ctx)
	if err == nil && from != to {
		err = fmt.Errorf("%w: the nodes have different storage drivers, %s and %s", errdefs.Unsupported, from, to)
	}
	return err
}

// makeVolumesOf makes volumes like those that are the sandbox's own on another engine, with the same
// names, and returns the copies of their files.
func (b *Build) makeVolumesOf(ctx context.Context, from *machine.Machine, rec record.Sandbox, got engine.Container) (jobs []transfer.Job, err error) {
	for _, m := range got.Mounts {
		if m.Type != "volume" || strings.HasPrefix(m.Name, record.GuestName("")) {
			continue
		}
		v, err := from.Engine.InspectVolume(ctx, m.Name)
		if err != nil {
			return nil, err
		}
		if !record.IsData(v.Name, v.Labels) {
			continue
		}
		if slices.ContainsFunc(jobs, func(j transfer.Job) bool { return j.To.Volume == v.Name }) {
			continue
		}
		labels := record.With(v.Labels, record.Nonce, b.Record.Nonce)
		delete(labels, record.By)
		delete(labels, record.Snapshot) // its files are its own there
		if _, err := b.Store.MakeVolume(ctx, &b.undo, v.Name, labels, nil); err != nil {
			return nil, err
		}
		what := m.Target
		if v.Name == record.WorkspaceName(rec.ID) {
			what = "workspace"
		}
		jobs = append(jobs, transfer.Job{What: what, From: transfer.Tree{Volume: v.Name}, To: transfer.Tree{Volume: v.Name}, Labels: labels})
	}
	return jobs, b.makeCopyVolumes(ctx)
}
