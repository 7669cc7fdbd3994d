// Package transfer copies files on the engine's machine: directories of this machine into
// volumes, and volumes and containers' own layers into others. It pauses a sandbox while its
// files are copied, and keeps a consistent copy of them as a snapshot.
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

	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/fault"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
	"github.com/seed-1a2d6d8f/sandbox/internal/machine"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
)

// A Tree is a directory on the engine's machine: a volume, or a container's own layer.
type Tree struct {
	Volume string
	Dir    string // of a layer
	merged string // of a layer that is in use, see engine.Container
}

// A Job copies one tree into another, which is new.
type Job struct {
	What     string // for people: "workspace"
	From, To Tree
	Layer    bool
	Root     bool              // only the attributes of the directory itself
	Mounts   []string          // of a layer, see wire.CopyJob
	Check    []string          // of a layer, see wire.CopyJob and [Copier.Plain]
	omit     []string          // see wire.CopyJob
	Again    bool              // removes what an earlier try left
	Labels   map[string]string // of the target volume
}

// LayerJob copies the own layer of a container to another one.
func LayerJob(from, to engine.Container) Job {
	j := Job{What: "files of the container", To: Tree{Dir: to.Upper}, Layer: true}
	j.readLayer(from)
	return j
}

// readLayer makes a container's own layer what is copied, without the mount point of the guest,
// which has another name in every container.
func (j *Job) readLayer(from engine.Container) {
	j.From, j.omit = Tree{Dir: from.Upper}, nil
	if from.HasSession() || from.State == engine.StatePaused {
		j.From.merged = from.Merged
	}
	for _, m := range from.Mounts {
		if strings.HasPrefix(m.Target, wire.Dir) {
			j.omit = append(j.omit, strings.TrimPrefix(m.Target, "/"))
		}
	}
}

// A Copier copies the files of a sandbox, or of a snapshot, with a helper.
type Copier struct {
	*machine.Helper
	name string // of the sandbox that is being created
	last wire.Copied
}

// NewCopier returns a copier for the sandbox of that name. Its helpers carry the nonce of
// the operation.
func NewCopier(m *machine.Machine, name, nonce string, report *machine.Reporter) *Copier {
	return &Copier{Helper: m.NewHelper(nonce, report), name: name}
}

// spec returns a helper with the mounts of the jobs.
func (k *Copier) spec(jobs []Job, wait bool) (engine.ContainerSpec, error) {
	spec := k.Helper.Spec()
	spec.Labels[record.Name] = k.name
	order := wire.Copy{Wait: wait}
	for i, t := range jobs {
		job := wire.CopyJob{From: fillFrom(i), To: fillTo(i), Layer: t.Layer, Root: t.Root, Mounts: t.Mounts, Omit: t.omit, Check: t.Check, Again: t.Again}
		from := engine.Mount{Type: "volume", Source: t.From.Volume, Target: job.From, ReadOnly: true, NoCopy: true,
			// If it was just removed the engine creates one with these labels.
			VolumeLabels: record.Base(record.RoleHelper, k.Nonce, k.Engine.Now())}
		if t.From.Volume == "" {
			from = engine.Mount{Type: "bind", Source: t.From.Dir, Target: job.From, ReadOnly: true}
		}
		to := engine.Mount{Type: "volume", Source: t.To.Volume, Target: job.To, NoCopy: true, VolumeLabels: t.Labels}
		if t.To.Volume == "" {
			to = engine.Mount{Type: "bind", Source: t.To.Dir, Target: job.To}
		}
		spec.Mounts = append(spec.Mounts, from, to)
		if t.From.merged != "" {
			job.Sync = "/copy/sync/" + strconv.Itoa(i)
			spec.Mounts = append(spec.Mounts, engine.Mount{Type: "bind", Source: t.From.merged, Target: job.Sync, ReadOnly: true})
		}
		if t.Layer {
			spec.CapAdd = append(spec.CapAdd, "SYS_ADMIN", "MKNOD") // for overlayfs' own attributes and whiteouts
		}
		order.Jobs = append(order.Jobs, job)
	}
	arg, err := json.Marshal(order)
	spec.Entrypoint = append(spec.Entrypoint, wire.VerbCopy, string(arg))
	return spec, err
}

// Copy runs the jobs. If pause is not nil it is called before, when the helper is ready.
func (k *Copier) Copy(ctx context.Context, jobs []Job, pause func() error) error {
	if len(jobs) == 0 {
		if pause != nil {
			return pause()
		}
		return nil
	}
	spec, err := k.spec(jobs, pause != nil)
	if err != nil {
		return err
	}
	var sources []string
	for _, t := range jobs {
		if name := t.From.Volume; name != "" && !slices.Contains(sources, name) {
			sources = append(sources, name)
			k.Undo.Add("volume "+name, func(ctx context.Context) error { return k.RemoveVolume(ctx, name, k.Nonce) })
		}
	}
	var last wire.Copied
	err = k.RunInteractive(ctx, spec, pause != nil, nil, func(line []byte, w io.Writer) (bool, error) {
		last = wire.Copied{}
		if err := json.Unmarshal(line, &last); err != nil {
			return false, err
		}
		if last.Ready {
			return false, release(ctx, w, pause)
		}
		k.Report.Report(machine.Progress{Step: "copy", Current: last.Bytes, Files: last.Files})
		return last.Done, nil
	})
	if err != nil {
		return err
	}
	if e := last.Error; e != nil {
		return fmt.Errorf("copy %s: %s: %w", jobs[e.Job].What, path.Join("/", string(e.Path)), e)
	}
	k.last = last
	reportSkipped(k.Helper, k.name, "copy", last)
	return k.checkSources(ctx, sources)
}

// OwnLayer returns what is known of a container's layer after a Copy, whose jobs from first on
// were these.
func (k *Copier) OwnLayer(first int, jobs []Job) machine.OwnLayer {
	for i, j := range jobs {
		if !j.Layer {
			continue
		}
		if first+i < len(k.last.Roots) && k.last.Roots[first+i].Plain {
			return machine.OwnLayer{Plain: j.Check}
		}
		return machine.OwnLayer{}
	}
	return machine.OwnLayer{Pristine: true} // no job wrote to it
}

// release pauses the sandbox and lets a helper that waits for that begin.
func release(ctx context.Context, helper io.Writer, pause func() error) error {
	if err := pause(); err != nil {
		return err
	}
	_, err := helper.Write([]byte{'\n'})
	if err != nil && ctx.Err() != nil {
		err = fault.Cancelled(ctx)
	}
	return err
}

// checkSources fails if a volume was removed before the helper mounted it: then the engine
// created an empty one, with the helper's nonce.
func (k *Copier) checkSources(ctx context.Context, names []string) error {
	slices.Sort(names)
	for _, name := range names {
		v, err := k.Engine.InspectVolume(ctx, name)
		if errors.Is(err, engine.ErrNotFound) || err == nil && v.Labels[record.Nonce] == k.Nonce {
			return fmt.Errorf("%w: %s was removed while it was copied", fault.VolumeNotFound, name)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
