// Package transfer copies files on the engine's machine: directories of this machine into
// volumes, and volumes and containers' own layers into others. No process of a sandbox runs while
// its files are copied, and a consistent copy of them is kept as a snapshot.
package transfer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/errdefs"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
	"github.com/seed-1a2d6d8f/sandbox/internal/machine"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/internal/trace"
)

// A Tree is a directory on the engine's machine: a volume, or a container's own layer.
type Tree struct {
	Volume string
	Layer  machine.Layer
}

// A Job copies one tree into another, which is new.
type Job struct {
	What     string // for people: "workspace"
	From, To Tree
	Layer    bool
	Root     bool              // only the attributes of the directory itself
	Mounts   []string          // of a layer, see wire.CopyJob
	Check    []wire.PathCheck  // of a layer, see wire.CopyJob and [Copier.OwnLayer]
	omit     []string          // see wire.CopyJob
	Again    bool              // the helper empties To before it copies
	Labels   map[string]string // of the target volume
}

// place returns where the files are in a sandbox.
func (j Job) place() string {
	switch {
	case j.Layer:
		return "/"
	case path.IsAbs(j.What):
		return j.What
	case j.What == "workspace":
		return record.Workspace
	}
	return "" // it is on its own
}

// ErrNoLayer is the error of a container's own layer that is not where it was expected. Nothing
// was copied.
var ErrNoLayer = errors.New("the container's own layer is not found")

// LayerJob copies the own layer of a container to another one.
func LayerJob(from engine.Container, layer, to machine.Layer) Job {
	j := Job{What: "files of the container", To: Tree{Layer: to}, Layer: true}
	j.readLayer(from, layer)
	return j
}

// readLayer makes a container's own layer what is copied, without the mount point of the guest,
// which has another name in every container.
func (j *Job) readLayer(from engine.Container, layer machine.Layer) {
	if !from.HasSession() && from.State != engine.StatePaused {
		layer.Merged = ""
	}
	j.From, j.omit = Tree{Layer: layer}, nil
	for _, m := range from.Mounts {
		if strings.HasPrefix(m.Target, wire.Dir) {
			j.omit = append(j.omit, strings.TrimPrefix(m.Target, "/"))
		}
	}
}

// A Copier copies the files of a sandbox, or of a snapshot, with a helper.
type Copier struct {
	Helper *machine.Helper
	name   string // of the sandbox that is being created
	last   wire.Copied
	from   []string // volumes that it reads
}

// NewCopier returns a copier for the sandbox of that name. Its helpers carry the nonce of
// the operation.
func NewCopier(m *machine.Machine, name, nonce string, report *machine.Reporter) *Copier {
	return &Copier{Helper: m.NewHelper(nonce, report), name: name}
}

// newSpec returns a helper without mounts.
func (k *Copier) newSpec() engine.ContainerSpec {
	spec := k.Helper.Spec()
	spec.Labels[record.Name] = k.name
	return spec
}

// spec returns a helper with the mounts of the jobs.
func (k *Copier) spec(jobs []Job, q *quiesce) (engine.ContainerSpec, error) {
	spec := k.newSpec()
	var order wire.Copy
	if q != nil {
		q.join(&spec, &order)
	}
	m := newJobMounts(k.Helper, &spec, &order)
	for i, t := range jobs {
		if t.From == (Tree{}) || t.To == (Tree{}) {
			return spec, ErrNoLayer
		}
		job := wire.CopyJob{From: fillFrom(i), To: fillTo(i), Layer: t.Layer, Root: t.Root, Mounts: t.Mounts, Omit: t.omit, Check: t.Check, Again: t.Again}
		m.from(i, t, &job)
		m.to(t, &job)
		m.add(t, job)
	}
	return spec, m.finish()
}

// jobMounts mounts the trees of jobs in a helper.
type jobMounts struct {
	helper *machine.Helper
	spec   *engine.ContainerSpec
	order  *wire.Copy
	all    engine.Mount // the layers of all containers, if a job's has to be found
}

func newJobMounts(h *machine.Helper, spec *engine.ContainerSpec, order *wire.Copy) *jobMounts {
	return &jobMounts{helper: h, spec: spec, order: order, all: engine.Mount{Type: "bind", Target: machine.LayersDir, ReadOnly: true}}
}

// from mounts the tree that the i-th job reads.
func (m *jobMounts) from(i int, t Job, job *wire.CopyJob) {
	switch from := t.From; {
	case from.Volume != "":
		m.spec.Mounts = append(m.spec.Mounts, engine.Mount{Type: "volume", Source: from.Volume, Target: job.From, ReadOnly: true, NoCopy: true,
			// If it was just removed the engine creates one with these labels.
			VolumeLabels: record.Base(record.RoleHelper, m.helper.Nonce, m.helper.Machine.Engine.Now())})
	case from.Layer.Dir != "":
		m.spec.Mounts = append(m.spec.Mounts, engine.Mount{Type: "bind", Source: from.Layer.Dir, Target: job.From, ReadOnly: true})
	default:
		m.all.Source, m.order.LayerName, job.FromMark = from.Layer.Root, from.Layer.Name, from.Layer.Mark
	}
	if merged := t.From.Layer.Merged; merged != "" {
		job.Sync = "/copy/sync/" + strconv.Itoa(i)
		m.spec.Mounts = append(m.spec.Mounts, engine.Mount{Type: "bind", Source: merged, Target: job.Sync, ReadOnly: true})
	}
}

// to mounts the tree that a job writes.
func (m *jobMounts) to(t Job, job *wire.CopyJob) {
	switch to := t.To; {
	case to.Volume != "":
		m.spec.Mounts = append(m.spec.Mounts, engine.Mount{Type: "volume", Source: to.Volume, Target: job.To, NoCopy: true, VolumeLabels: t.Labels})
	case to.Layer.Dir != "":
		m.spec.Mounts = append(m.spec.Mounts, engine.Mount{Type: "bind", Source: to.Layer.Dir, Target: job.To})
	default:
		m.all.Source, m.order.LayerName, job.ToMark = to.Layer.Root, to.Layer.Name, to.Layer.Mark
		m.all.ReadOnly = false
	}
}

func (m *jobMounts) add(t Job, job wire.CopyJob) {
	if t.Layer {
		m.spec.CapAdd = append(m.spec.CapAdd, "SYS_ADMIN", "MKNOD") // for overlayfs' own attributes and whiteouts
		m.spec.MachineUsers = true
	}
	m.order.Jobs = append(m.order.Jobs, job)
}

// finish makes the order the helper's.
func (m *jobMounts) finish() error {
	if m.all.Source != "" {
		m.order.Layers = m.all.Target
		m.spec.Mounts = append(m.spec.Mounts, m.all)
	}
	arg, err := json.Marshal(m.order)
	m.spec.Entrypoint = append(m.spec.Entrypoint, wire.VerbCopy, string(arg))
	return err
}

// Copy runs the jobs.
func (k *Copier) Copy(ctx context.Context, jobs []Job) error {
	if len(jobs) == 0 {
		return nil
	}
	if err := k.run(ctx, jobs, nil); err != nil {
		return err
	}
	return k.checkSources(ctx)
}

// run runs the jobs, and quiesces the sandbox for them unless q is nil.
func (k *Copier) run(ctx context.Context, jobs []Job, q *quiesce) (err error) {
	ctx, span := trace.Start(ctx, trace.Copy)
	defer span.End(&err)
	spec, err := k.spec(jobs, q)
	if err != nil {
		return err
	}
	k.undoSources(jobs)
	beating, stop := context.WithCancel(ctx)
	var beats sync.WaitGroup
	defer func() { stop(); beats.Wait() }()
	var to io.Writer // that beats go to
	var last wire.Copied
	err = k.Helper.RunInteractive(ctx, spec, q != nil, nil, func(line []byte, w io.Writer) (bool, error) {
		last = wire.Copied{}
		if err := json.Unmarshal(line, &last); err != nil {
			return false, err
		}
		switch {
		case last.Ready && q != nil:
			if w != to {
				to = w
				beats.Go(func() { beat(beating, w) })
			}
			answer, err := q.answer(ctx, k, last)
			return false, tell(ctx, w, answer, err)
		case last.Lingers && q != nil:
			return false, tell(ctx, w, []byte{'\n'}, q.then())
		}
		k.Helper.Report.Report(machine.Progress{Step: "copy", Current: last.Bytes, Files: last.Files})
		return last.Done, nil
	})
	switch {
	case errors.Is(err, machine.ErrHelperNotStarted) && findsLayers(spec) && engine.IsMountError(err):
		return fmt.Errorf("%w: %w", ErrNoLayer, err) // they are elsewhere for the engine
	case err != nil:
		return err
	case last.Moved != "":
		return fmt.Errorf("%w: %q", errMoved, last.Moved)
	case last.Error != nil && last.Error.NoLayer:
		return fmt.Errorf("%w: %w", ErrNoLayer, last.Error)
	case last.Error != nil:
		return fmt.Errorf("copy %s: %s: %w", jobs[last.Error.Job].What, path.Join("/", string(last.Error.Path)), last.Error)
	}
	k.last = last
	reportCopied(k.Helper, k.name, "copy", reportOf(last, func(job int) string { return jobs[job].place() }))
	return nil
}

// undoSources registers the removal of volumes that the engine creates in place of missing ones.
func (k *Copier) undoSources(jobs []Job) {
	for _, t := range jobs {
		if name := t.From.Volume; name != "" && !slices.Contains(k.from, name) {
			k.from = append(k.from, name)
			k.Helper.Undo.Add("volume "+name, func(ctx context.Context) error { return k.Helper.Machine.Store.RemoveVolume(ctx, name, k.Helper.Nonce) })
		}
	}
}

// beat tells a helper that its caller lives, until ctx ends.
func beat(ctx context.Context, helper io.Writer) {
	tick := time.NewTicker(wire.HoldSilence / 5)
	defer tick.Stop()
	for {
		if _, err := io.WriteString(helper, wire.CopyBeat); err != nil {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// findsLayers reports whether a helper has to find layers among all.
func findsLayers(spec engine.ContainerSpec) bool {
	return slices.ContainsFunc(spec.Mounts, func(m engine.Mount) bool { return m.Target == machine.LayersDir })
}

// tell writes a line to a helper that waits for it, unless err says that there is none.
func tell(ctx context.Context, helper io.Writer, line []byte, err error) error {
	if err != nil {
		return err
	}
	if _, err = helper.Write(line); err != nil && ctx.Err() != nil {
		err = errdefs.Cancelled(ctx)
	}
	return err
}

// OwnLayer returns what is known of a container's layer after a Copy, whose jobs from first on
// were these.
func (k *Copier) OwnLayer(first int, jobs []Job) machine.OwnLayer {
	for i, j := range jobs {
		if !j.Layer {
			continue
		}
		if first+i < len(k.last.Roots) && k.last.Roots[first+i].Plain {
			return machine.OwnLayer{Plain: true}
		}
		return machine.OwnLayer{}
	}
	return machine.OwnLayer{Pristine: true} // no job wrote to it
}

// checkSources fails if a volume was removed before the helper mounted it: then the engine
// created an empty one, with the helper's nonce.
func (k *Copier) checkSources(ctx context.Context) error {
	slices.Sort(k.from)
	for _, name := range k.from {
		v, err := k.Helper.Machine.Engine.InspectVolume(ctx, name)
		if errors.Is(err, engine.ErrNotFound) || err == nil && v.Labels[record.Nonce] == k.Helper.Nonce {
			return fmt.Errorf("%w: %s was removed while it was copied", errdefs.VolumeNotFound, name)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
