package transfer

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/seed-1a2d6d8f/sandbox/internal/archive"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/errdefs"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/trees"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
	"github.com/seed-1a2d6d8f/sandbox/internal/machine"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/internal/source"
	"github.com/seed-1a2d6d8f/sandbox/internal/trace"
)

// A Directory is a directory of this machine to copy into a new volume.
type Directory struct {
	Dir, Volume string
	Target      string      // where the volume is in the sandbox
	role        string      // of the volume; empty for RoleRWCopy
	owner       *wire.Owner // of all files; nil keeps the owners
	again       bool        // the volume may have a part of them
}

// fillFrom and fillTo are the mount points of the i-th copy in a helper.
func fillFrom(i int) string { return "/copy/from/" + strconv.Itoa(i) }

func fillTo(i int) string { return "/copy/to/" + strconv.Itoa(i) }

// A Filler fills the volumes of a sandbox that is being created.
type Filler struct {
	Helper *machine.Helper
	For    record.Sandbox
	Owner  wire.Owner // of the workspace's files
	From   *source.Bounds
	step   string // of the reported progress
}

// Directories copies every directory into its volume. The engine copies those that it sees
// at the same path; the rest is streamed through this process, with the same result.
func (f *Filler) Directories(ctx context.Context, dirs []Directory) error {
	f.step = "copy"
	return f.fill(ctx, dirs)
}

func (f *Filler) fill(ctx context.Context, fills []Directory) (err error) {
	if len(fills) == 0 {
		return nil
	}
	ctx, span := trace.Start(ctx, trace.Copy)
	defer span.End(&err)
	for _, fill := range fills {
		if text := source.RepositoryElsewhere(fill.Dir); text != "" {
			f.Helper.Machine.Log.Warn("git will not work in the copy", "sandbox", f.For.Name, "what", text)
			f.Report(text)
			lost := archive.Report{Below: fill.Target}
			lost.Skip("", text)
			f.Helper.Report.AddCopied(lost)
		}
	}
	if ids := f.identities(fills); ids != nil {
		if fills, err = f.copyOnEngine(ctx, fills, ids); err != nil || len(fills) == 0 {
			return err
		}
	}
	return f.sendDirectories(ctx, fills)
}

// identities returns the identities of the directories, or nil if the engine can't copy
// them. It may be on another machine, in a virtual one, or see other files at the same path
// than this process does, so its helper copies only directories of these identities.
func (f *Filler) identities(fills []Directory) []wire.Identity {
	if f.Helper.Machine.OtherKernel() {
		return nil
	}
	ids := make([]wire.Identity, len(fills))
	for i, fill := range fills {
		id, err := identify(fill.Dir)
		if err != nil {
			return nil // sendDirectories reports the error
		}
		ids[i] = id
	}
	return ids
}

// CheckBinds fails if the engine sees other files at the sources of bind mounts than this process
// does. Its machine may be another one that has the same path.
func (f *Filler) CheckBinds(ctx context.Context, binds []record.Mount) error {
	if len(binds) == 0 {
		return nil
	}
	spec := f.spec(nil)
	var order wire.Copy
	for i, m := range binds {
		id, err := identify(m.Source)
		if err != nil {
			return fmt.Errorf("%w (here: %w)", notLocal(m), err)
		}
		if f.Helper.Machine.OtherKernel() {
			return notLocal(m)
		}
		spec.Mounts = append(spec.Mounts, engine.Mount{Type: "bind", Source: m.Source, Target: fillFrom(i), ReadOnly: true})
		order.Jobs = append(order.Jobs, wire.CopyJob{From: fillFrom(i), Is: &id})
	}
	last, err := f.copy(ctx, spec, order, nil)
	if errors.Is(err, machine.ErrHelperNotStarted) && engine.IsMountError(err) {
		err = errdefs.Classify(errdefs.InvalidArgument, err) // the engine has no such directory
	}
	if err != nil {
		return fmt.Errorf("compare the mounts with this machine's files: %w", err)
	}
	if e := last.Error; e != nil {
		return fmt.Errorf("mount at %q: compare %s with this machine's: %w", binds[e.Job].Target, binds[e.Job].Source, e)
	}
	if last.Boot != order.Jobs[0].Is.Boot {
		f.Helper.Machine.SetOtherKernel()
	}
	var errs []error
	for _, i := range last.Elsewhere {
		errs = append(errs, notLocal(binds[i]))
	}
	return errors.Join(errs...)
}

// notLocal returns the error of a bind mount whose source is not this machine's.
func notLocal(m record.Mount) error {
	return errdefs.Invalid("mount at %q: what the engine sees at %s is not what this program sees there: use rwcopy to copy this machine's, or set Mount.Remote to mount the engine's", m.Target, m.Source)
}

// spec returns a helper that mounts the volumes to fill.
func (f *Filler) spec(fills []Directory) engine.ContainerSpec {
	spec := f.Helper.Spec()
	spec.Labels[record.ID], spec.Labels[record.Name] = f.For.ID, f.For.Name
	for i, fill := range fills {
		spec.Mounts = append(spec.Mounts, engine.Mount{Type: "volume", Source: fill.Volume, Target: fillTo(i), NoCopy: true,
			VolumeLabels: f.For.VolumeLabels(cmp.Or(fill.role, record.RoleRWCopy))})
	}
	return spec
}

// copyOnEngine copies with a helper that mounts the directories, and returns those that
// have to be streamed.
func (f *Filler) copyOnEngine(ctx context.Context, fills []Directory, ids []wire.Identity) (rest []Directory, err error) {
	slot, err := f.Helper.Machine.Slot(ctx, f.Helper.Report)
	if err != nil {
		return nil, err
	}
	defer slot.Release()
	spec := f.spec(fills)
	var order wire.Copy
	for i, fill := range fills {
		spec.Mounts = append(spec.Mounts, engine.Mount{Type: "bind", Source: fill.Dir, Target: fillFrom(i), ReadOnly: true})
		order.Jobs = append(order.Jobs, wire.CopyJob{From: fillFrom(i), To: fillTo(i), Is: &ids[i], Owner: fill.owner})
	}
	last, err := f.copy(ctx, spec, order, nil)
	if errors.Is(err, machine.ErrHelperNotStarted) {
		// The engine has no such directory, or shows none to a container.
		f.Helper.Machine.Log.Debug("directories are streamed: the engine can't mount them", "sandbox", f.For.Name, "error", err)
		return fills, f.Helper.Undo.Run(ctx) // the helper may have been created
	}
	if err != nil {
		return nil, err
	}
	if last.Error != nil && last.Error.Denied {
		// Root in the engine's user namespace, or of another client of a network file system, may not read what the caller may.
		f.Helper.Machine.Log.Debug("directories are streamed: the engine may not read a file", "sandbox", f.For.Name, "error", copyFailed(fills, last.Error))
		for _, fill := range fills {
			fill.again = true
			rest = append(rest, fill)
		}
		return rest, nil
	}
	if last.Error != nil {
		return nil, copyFailed(fills, last.Error)
	}
	f.copied(fills, last)
	if last.Boot != ids[0].Boot {
		f.Helper.Machine.SetOtherKernel()
	}
	for _, i := range last.Elsewhere {
		rest = append(rest, fills[i])
	}
	return rest, nil
}

// sendDirectories streams the directories to a helper.
func (f *Filler) sendDirectories(ctx context.Context, fills []Directory) error {
	return f.send(ctx, fills, func(to *trees.Writer) error {
		for i, fill := range fills {
			if err := to.Send(i, fill.Dir); err != nil {
				return err
			}
		}
		return nil
	})
}

// send streams trees to a helper, which creates them in the volumes.
func (f *Filler) send(ctx context.Context, fills []Directory, write func(*trees.Writer) error) error {
	order := wire.Copy{Stream: true}
	for i, fill := range fills {
		order.Jobs = append(order.Jobs, wire.CopyJob{To: fillTo(i), Owner: fill.owner, Again: fill.again})
	}
	var to *trees.Writer
	last, err := f.copy(ctx, f.spec(fills), order, func(w io.Writer) error {
		buffered := bufio.NewWriterSize(w, 256<<10)
		to = trees.New(ctx, buffered)
		if err := write(to); err != nil {
			return err
		}
		if err := to.Close(); err != nil {
			return err
		}
		if err := buffered.Flush(); err != nil {
			return &trees.StreamError{Err: err}
		}
		return nil
	})
	if err != nil {
		return err
	}
	if last.Error != nil {
		return copyFailed(fills, last.Error)
	}
	last.Losses.Count += to.Losses.Count
	last.Losses.First = append(last.Losses.First, to.Losses.First...)
	f.copied(fills, last)
	return nil
}

// copy runs a helper that copies, and returns its last report.
func (f *Filler) copy(ctx context.Context, spec engine.ContainerSpec, order wire.Copy, feed func(io.Writer) error) (last wire.Copied, err error) {
	arg, err := json.Marshal(order)
	if err != nil {
		return last, err
	}
	spec.Entrypoint = append(spec.Entrypoint, wire.VerbCopy, string(arg))
	err = f.Helper.Run(ctx, spec, feed, func(line []byte) (bool, error) {
		last = wire.Copied{}
		if err := json.Unmarshal(line, &last); err != nil {
			return false, err
		}
		f.Helper.Report.Report(machine.Progress{Step: f.step, Current: last.Bytes, Files: last.Files})
		return last.Done, nil
	})
	if err == nil && last.Error != nil && ctx.Err() != nil {
		err = errdefs.Cancelled(ctx) // the reason for the end of its input
	}
	return last, err
}

func copyFailed(fills []Directory, e *wire.CopyError) error {
	file := filepath.Join(fills[e.Job].Dir, filepath.FromSlash(string(e.Path)))
	return &fs.PathError{Op: "copy", Path: file, Err: e}
}

// copied reports a copy of directories.
func (f *Filler) copied(fills []Directory, last wire.Copied) {
	reportCopied(f.Helper, f.For.Name, f.step, reportOf(last, func(job int) string { return fills[job].Target }))
}

// reportOf returns what a helper has copied. target returns where the files of a job are in the
// sandbox.
func reportOf(last wire.Copied, target func(job int) string) archive.Report {
	report := archive.Report{Files: last.Files, Dirs: last.Dirs, Bytes: last.Bytes}
	for _, loss := range last.Losses.First {
		report.Below = target(loss.Job)
		report.Skip(string(loss.Path), loss.Reason)
	}
	report.More += last.Losses.Count - int64(len(last.Losses.First))
	return report
}

// reportCopied reports what was copied, and logs what was left out, if anything.
func reportCopied(h *machine.Helper, sandbox, step string, report archive.Report) {
	h.Report.AddCopied(report)
	if len(report.Skipped) == 0 && report.More == 0 {
		return
	}
	var names []string
	for i, s := range report.Skipped {
		if i == maxNamed {
			names = append(names, "…")
			break
		}
		names = append(names, fmt.Sprintf("%s (%s)", s.Path, s.Reason))
	}
	text := fmt.Sprintf("left out or changed, %d: %s", int64(len(report.Skipped))+report.More, strings.Join(names, ", "))
	h.Machine.Log.Warn("not everything was copied", "sandbox", sandbox, "what", text)
	h.Report.Report(machine.Progress{Step: step, Text: text, Current: report.Bytes, Files: report.Files})
}

// maxNamed is how many files the text of a Progress names.
const maxNamed = 10

// Source fills the workspace, if there is a source.
func (f *Filler) Source(ctx context.Context, from source.Source) error {
	if from == nil {
		return nil
	}
	f.step = "source"
	f.Report(from.String())
	if err := from.Fill(ctx, f); err != nil {
		return fmt.Errorf("source: %w", err)
	}
	return nil
}

// Dir implements [source.Target].
func (f *Filler) Dir(ctx context.Context, dir string) error {
	return f.fill(ctx, []Directory{f.workspace(dir)})
}

// Stream implements [source.Target].
func (f *Filler) Stream(ctx context.Context, what string, write func(*trees.Writer) error) error {
	return f.send(ctx, []Directory{f.workspace(what)}, write)
}

// Place implements [source.Target].
func (f *Filler) Place() string { return record.Workspace }

// Bounds implements [source.Target].
func (f *Filler) Bounds() *source.Bounds { return f.From }

// Report implements [source.Target].
func (f *Filler) Report(text string) {
	f.Helper.Report.Report(machine.Progress{Step: f.step, Text: text})
}

// workspace returns a copy into the workspace, owned by the sandbox's user.
func (f *Filler) workspace(dir string) Directory {
	return Directory{Dir: dir, Volume: record.WorkspaceName(f.For.ID), Target: record.Workspace, role: record.RoleWorkspace, owner: &f.Owner}
}

// LeftOut implements [source.Target].
func (f *Filler) LeftOut(report archive.Report) {
	report.Files, report.Dirs, report.Bytes = 0, 0, 0 // the helper has counted them
	reportCopied(f.Helper, f.For.Name, f.step, report)
}
