package provision

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/errdefs"
	"github.com/seed-1a2d6d8f/sandbox/internal/machine"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/internal/transfer"
)

// Rollback replaces the files of a sandbox by those of a snapshot, and ends its session. A
// *claim.TakenError says that another process is changing the sandbox.
//
// It makes a new container, as [Remake] does, with the snapshot's files. The removal of the old
// container commits the rollback. Until then nothing is overwritten, and a takeover from
// a dead process reverts the rollback. Then the volumes get their files from the snapshot, which
// never changes: the next user of the sandbox repeats that if it was not finished. The new container
// takes the sandbox's name last; until then no call gets the files, see [store.Store.Locate].
func Rollback(ctx context.Context, m *machine.Machine, rec record.Sandbox, id string, report *machine.Reporter) error {
	return change(ctx, m, rec, report, func(ctx context.Context, rec record.Sandbox, got engine.Container, op string) error {
		slot, err := m.Slot(ctx, report)
		if err != nil {
			return err
		}
		defer slot.Release()
		b, err := rebuild(ctx, m, rec, got, op, report)
		if err != nil {
			return err
		}
		b.slot = slot
		o := FromSnapshot(id)
		if err := o.prepareRollback(ctx, b); err != nil {
			return err
		}
		report.Report(machine.Progress{Step: "container", Text: "a new one with the files of snapshot " + id})
		if err := b.makeNext(ctx, got, machine.Layer{}, o); err != nil {
			return errors.Join(fmt.Errorf("make a new container: %w", err), b.undo.Run(ctx))
		}
		err = m.Store.CommitRollback(ctx, rec, func(ctx context.Context, rec record.Sandbox) error { return transfer.Refill(ctx, m, rec, op, report) })
		if err != nil {
			return err
		}
		if now, err := m.Store.Locate(ctx, rec.Name); err != nil || now.Labels[record.By] != op {
			return errors.Join(errors.New("its container was replaced during the call"), err)
		}
		m.Store.DropImageOf(ctx, got)
		return nil
	})
}

// prepareRollback checks that the snapshot fits the sandbox, and sets the image and what the
// record says about the origin of its files.
func (o *Stored) prepareRollback(ctx context.Context, b *Build) (err error) {
	if o.rec, err = b.Store.FindSnapshot(ctx, o.rec.ID); err != nil {
		return err
	}
	if err := o.checkTargets(b.mounted); err != nil {
		return err
	}
	b.addDeclared(o.rec.Trees)
	if err := o.checkTrees(ctx, b, func(record.Tree, engine.Volume) {}); err != nil {
		return err
	}
	for _, r := range o.rollbackOf(b.Record.ID, b.mounted).Refills {
		if r.To == "" {
			continue // does not exist yet
		}
		if err := b.Store.CheckSoleUser(ctx, r.To, b.Record); err != nil {
			return err
		}
	}
	s := &b.Record.Settings
	s.Image, s.Snapshot, s.ForkOf = o.rec.Image, o.rec.ID, ""
	if err := o.setImage(ctx, b); err != nil {
		return err
	}
	return b.place(ctx, b.image.ID) // with those of addDeclared
}

// addDeclared adds those volumes of trees that the image declared and that the sandbox lacks.
func (b *Build) addDeclared(trees []record.Tree) {
	for _, t := range trees {
		at := func(m record.Mount) bool { return m.Target == t.Target }
		if t.Declared && !slices.ContainsFunc(b.mounted, at) {
			b.mounted = append(b.mounted, record.Mount{Target: t.Target, Mode: record.RWCopy, Declared: true})
		}
	}
}

// checkTargets fails if the snapshot has other directories than the workspace and the copies of a
// sandbox with these mounts.
func (o *Stored) checkTargets(mounts []record.Mount) error {
	var has, missing, more []string
	for _, m := range mounts {
		if m.Mode != record.RWCopy {
			continue
		}
		has = append(has, m.Target)
		if !slices.ContainsFunc(o.rec.Trees, func(t record.Tree) bool { return t.Target == m.Target }) {
			missing = append(missing, m.Target)
		}
	}
	for _, t := range o.rec.Trees {
		hidden := slices.ContainsFunc(mounts, func(m record.Mount) bool { return m.Target == t.Target })
		if t.Target != "" && t.Target != record.Workspace && !slices.Contains(has, t.Target) && (hidden || !t.Declared) {
			more = append(more, t.Target)
		}
	}
	var differences []error
	if len(missing) > 0 {
		differences = append(differences, errdefs.Invalid("snapshot %s has no files for the sandbox's copies at %s", o.rec.ID, strings.Join(missing, ", ")))
	}
	if len(more) > 0 {
		differences = append(differences, errdefs.Invalid("the sandbox has no copies at %s, where snapshot %s has files", strings.Join(more, ", "), o.rec.ID))
	}
	return errors.Join(differences...)
}

// rollback returns which volumes get files of the snapshot, once all of them exist.
func (o *Stored) rollback(b *Build) *record.Rollback { return o.rollbackOf(b.Record.ID, b.mounted) }

func (o *Stored) rollbackOf(sandboxID string, mounts []record.Mount) *record.Rollback {
	r := &record.Rollback{Snapshot: o.rec.ID}
	for _, t := range o.rec.Trees {
		if t.Target == record.Workspace {
			r.Refills = append(r.Refills, record.Refill{From: t.Volume, To: record.WorkspaceName(sandboxID)})
		}
		for _, m := range mounts {
			if m.Mode == record.RWCopy && m.Target == t.Target {
				r.Refills = append(r.Refills, record.Refill{From: t.Volume, To: m.Volume})
			}
		}
	}
	return r
}

// copyLayer copies the snapshot's files outside of volumes to a new container of its image.
func (o *Stored) copyLayer(ctx context.Context, b *Build, id string) error {
	made, err := b.Engine.InspectContainer(ctx, id)
	if err != nil {
		return err
	}
	jobs, _, err := o.jobs(ctx, b, made)
	if err != nil {
		return err
	}
	k := transfer.NewCopier(b.Machine, b.Record.Name, b.op, b.report)
	b.undo.Add("helper", k.Helper.Undo.Run)
	if err := k.Copy(ctx, slices.DeleteFunc(jobs, func(j transfer.Job) bool { return !j.Layer })); err != nil {
		return err
	}
	return o.recheck(ctx, b)
}
