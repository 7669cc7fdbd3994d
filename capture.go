package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
)

// A tree is a directory on the engine's machine: a volume, or a container's own layer.
type tree struct {
	volume string
	dir    string // of a layer
	merged string // of a layer that is in use, see engine.Container
}

// A transfer copies one tree into another, which is new.
type transfer struct {
	what     string // for people: "workspace"
	from, to tree
	layer    bool
	inlay    *inlay            // takes a layer in the place of to
	root     bool              // only what the directory itself has beside its contents
	mounts   []string          // of a layer, see wire.CopyJob
	again    bool              // what an earlier try left goes first
	labels   map[string]string // of the volume it goes to
}

// layerOf is the own layer of a container.
func layerOf(got engine.Container) tree {
	t := tree{dir: got.Upper}
	if hasSession(got) || got.State == engine.StatePaused {
		t.merged = got.Merged
	}
	return t
}

// A capture copies what a sandbox, or a snapshot, holds at one moment. Its helpers carry
// the nonce of what is being made of it.
type capture struct {
	helper
	name  string      // of what is being made
	layer wire.Copied // what the layers came to
	last  wire.Copied // what all of it came to
}

func (c *Client) capture(eng *engine.Engine, name, nonce string, report *reporter) *capture {
	return &capture{helper: helper{c: c, eng: eng, nonce: nonce, report: report}, name: name}
}

// spec is a helper that has the trees of ts.
func (k *capture) spec(ts []transfer, wait bool) (engine.ContainerSpec, error) {
	spec := k.helper.spec()
	spec.Labels[record.Name] = k.name
	told := wire.Copy{Wait: wait}
	for i, t := range ts {
		job := wire.CopyJob{From: fillFrom(i), To: fillTo(i), Layer: t.layer, Root: t.root, Mounts: t.mounts, Again: t.again}
		from := engine.Mount{Type: "volume", Source: t.from.volume, Target: job.From, ReadOnly: true, NoCopy: true,
			// Should it have just gone the engine makes one, which these tell.
			VolumeLabels: record.Base(record.RoleHelper, k.nonce, k.eng.Now())}
		if t.from.volume == "" {
			from = engine.Mount{Type: "bind", Source: t.from.dir, Target: job.From, ReadOnly: true}
		}
		if t.inlay != nil {
			job.To, job.Pack = "", true
		}
		to := engine.Mount{Type: "volume", Source: t.to.volume, Target: job.To, NoCopy: true, VolumeLabels: t.labels}
		if t.to.volume == "" {
			to = engine.Mount{Type: "bind", Source: t.to.dir, Target: job.To}
		}
		spec.Mounts = append(spec.Mounts, from)
		if t.inlay == nil {
			spec.Mounts = append(spec.Mounts, to)
		}
		if t.from.merged != "" {
			job.Sync = "/copy/sync/" + strconv.Itoa(i)
			spec.Mounts = append(spec.Mounts, engine.Mount{Type: "bind", Source: t.from.merged, Target: job.Sync, ReadOnly: true})
		}
		if t.layer {
			spec.CapAdd = []string{"SYS_ADMIN"} // overlayfs' own attributes are for it alone
		}
		told.Jobs = append(told.Jobs, job)
	}
	arg, err := json.Marshal(told)
	spec.Entrypoint = append(spec.Entrypoint, wire.VerbCopy, string(arg))
	return spec, err
}

// copy copies everything. With a freeze it calls that first, when there is a helper that is
// ready to begin. With a layered it calls that when all layers are there.
func (k *capture) copy(ctx context.Context, ts []transfer, freeze func() error, layered func()) error {
	if layered == nil {
		layered = func() {}
	}
	layered = sync.OnceFunc(layered)
	if !slices.ContainsFunc(ts, func(t transfer) bool { return t.layer }) {
		layered()
	}
	if len(ts) == 0 {
		if freeze != nil {
			return freeze()
		}
		return nil
	}
	spec, err := k.spec(ts, freeze != nil)
	if err != nil {
		return err
	}
	from := map[string]bool{}
	for _, t := range ts {
		if name := t.from.volume; name != "" && !from[name] {
			from[name] = true
			k.undo.add("volume "+name, func(ctx context.Context) error { return removeVolume(ctx, k.eng, name, k.nonce) })
		}
	}
	var last wire.Copied
	err = k.converse(ctx, spec, freeze != nil, nil, func(line []byte, w io.Writer) (bool, error) {
		last = wire.Copied{}
		if err := json.Unmarshal(line, &last); err != nil {
			return false, err
		}
		if last.Ready {
			if err := freeze(); err != nil {
				return false, err
			}
			_, err := w.Write([]byte{'\n'})
			if err != nil && ctx.Err() != nil {
				err = cancelled(ctx)
			}
			return false, err
		}
		if last.Layers {
			k.layer = last
			for _, t := range ts {
				if t.inlay != nil {
					t.inlay.put(last.Layer)
				}
			}
			layered()
		}
		k.report.report(Progress{Step: "copy", Current: last.Bytes, Files: last.Files})
		return last.Done, nil
	})
	if err != nil {
		return err
	}
	if e := last.Error; e != nil && e.Unfit {
		return fmt.Errorf("%w: %w", errUnfit, e)
	} else if e != nil {
		return fmt.Errorf("copy %s: %s: %w", ts[e.Job].what, path.Join("/", string(e.Path)), e)
	}
	k.last = last
	if text := skippedText(last); text != "" {
		k.c.log.Warn("not everything was copied", "sandbox", k.name, "what", text)
		k.report.report(Progress{Step: "copy", Text: text, Current: last.Bytes, Files: last.Files})
	}
	for _, name := range slices.Sorted(maps.Keys(from)) {
		v, err := k.eng.InspectVolume(ctx, name)
		if errors.Is(err, engine.ErrNotFound) || err == nil && v.Labels[record.Nonce] == k.nonce {
			return fmt.Errorf("%w: %s was removed while it was copied", ErrVolumeNotFound, name)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// errUnfit says that a layer can't be an inlay.
var errUnfit = errors.New("the layer of the container can't be packed")

// errMoved says that a sandbox was started, stopped or unpaused while it was captured.
var errMoved = errors.New("it was started, stopped or unpaused while it was copied")

// stillTries is how often a sandbox is copied that does not stand still.
const stillTries = 3

// still calls do with the sandbox at a standstill: paused, if it runs, from when do calls
// the function it is given until do returns. What is not running is left alone, and what
// somebody else has paused stays paused. When the sandbox did not stand still after all
// do is called once more, or that is errMoved after so many tries.
func (c *Client) still(ctx context.Context, eng *engine.Engine, rec record.Sandbox, tries int, do func(ctx context.Context, got engine.Container, again bool, freeze func() error) error) error {
	for try := 1; ; try++ {
		got, err := captured(ctx, eng, rec)
		if err != nil {
			return err
		}
		p := &standstill{c: c, eng: eng, rec: rec, id: got.ID, before: got.State}
		err = do(ctx, got, try > 1, func() error { return p.freeze(ctx, got) })
		kept, thawed := p.thaw(ctx)
		if thawed != nil || ctx.Err() != nil {
			return errors.Join(err, thawed)
		}
		// Should it have failed because the sandbox has changed, that is what to say.
		now, lost := captured(ctx, eng, rec)
		if lost != nil {
			return errors.Join(lost, err)
		}
		moved := errors.Is(err, errMoved) || !kept || now.ID != got.ID || !now.StartedAt.Equal(got.StartedAt) || now.State != p.before
		if !moved {
			return err
		}
		if try == tries {
			return errors.Join(errMoved, err)
		}
	}
}

// captured looks at the container of the sandbox that is captured.
func captured(ctx context.Context, eng *engine.Engine, rec record.Sandbox) (engine.Container, error) {
	got, err := locate(ctx, eng, rec.Name)
	if errors.Is(err, engine.ErrNotFound) {
		return got, fmt.Errorf("%w: %s was deleted meanwhile", ErrNotFound, rec.Name)
	}
	if err != nil {
		return got, err
	}
	if r, ok := record.Decode(got.Labels); !ok || r.ID != rec.ID || got.State == engine.StateRemoving {
		return got, fmt.Errorf("%w: %s was deleted meanwhile", ErrNotFound, rec.Name)
	}
	return got, nil
}

// standstill is a sandbox that stands still because we paused it. While it does a marker
// says so, for whoever finds it when we are gone.
type standstill struct {
	c      *Client
	eng    *engine.Engine
	rec    record.Sandbox
	id     string
	nonce  string
	claim  *record.Claim
	before string // the state it had
	mine   bool   // we may have paused it
	sure   bool   // and have
}

// pauseTimeout bounds the engine's own part in a pause.
const pauseTimeout = 30 * time.Second

func (p *standstill) freeze(ctx context.Context, got engine.Container) error {
	if got.State != engine.StateRunning {
		return nil
	}
	p.nonce = record.PauseNonce(p.rec)
	for {
		var err error
		p.claim, err = settle(ctx, func(ctx context.Context) (*record.Claim, error) {
			return record.TryPause(ctx, p.eng, p.rec, p.nonce, holder())
		})
		var held *record.HeldError
		if err == nil {
			break
		}
		if !errors.As(err, &held) {
			return err
		}
		if err := p.c.awaitThaw(ctx, p.eng, p.rec.Name); err != nil {
			return err
		}
	}
	// A pause that is given up may still come about after we have looked for it.
	own, cancel := context.WithTimeout(context.WithoutCancel(ctx), pauseTimeout)
	defer cancel()
	p.mine = true
	err := p.pause(own)
	switch {
	case errors.Is(err, engine.ErrConflict), errors.Is(err, engine.ErrNotFound):
		p.mine = false // it has stopped, or somebody else has paused it
		return fmt.Errorf("%w: %w", errMoved, err)
	case err != nil:
		return fmt.Errorf("pause %s: %w", p.rec.Name, err)
	}
	p.sure = true
	return nil
}

// pauseTries is how often a pause is tried that the runtime could not bring about, which
// happens on a busy machine.
const pauseTries = 8

func (p *standstill) pause(ctx context.Context) error {
	for try := 0; ; try++ {
		err := p.eng.PauseContainer(ctx, p.id)
		if err == nil || errors.Is(err, engine.ErrConflict) || errors.Is(err, engine.ErrNotFound) || errors.Is(err, engine.ErrUnavailable) || try == pauseTries {
			return err
		}
		if e := pause(ctx, stillThere<<(try/2)); e != nil {
			return errors.Join(err, e)
		}
		if now, e := captured(ctx, p.eng, p.rec); e != nil || now.State == engine.StatePaused {
			return e
		} else if now.State != engine.StateRunning {
			return fmt.Errorf("%w: %w", errMoved, err)
		}
	}
}

// thaw lets the sandbox go on, if we paused it, and reports whether it has stood still
// until now. It may be called often. Should the engine be out of reach the marker stays,
// and says so to whoever comes next.
func (p *standstill) thaw(ctx context.Context) (kept bool, err error) {
	if p.nonce == "" {
		return true, nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
	defer cancel()
	kept = true
	if p.mine {
		if kept, err = p.unpause(ctx); err != nil {
			err = fmt.Errorf("%s may be paused still: %w", p.rec.Name, err)
		}
		p.mine = err != nil
	}
	if p.claim != nil {
		p.claim.Stop()
		p.claim = nil
	}
	if err == nil {
		err = engine.Insist(ctx, func() error { return record.DropPause(ctx, p.eng, p.rec, p.nonce) })
	}
	if err == nil {
		p.nonce = ""
	}
	return kept, err
}

func (p *standstill) unpause(ctx context.Context) (kept bool, err error) {
	if !p.sure {
		// The engine may be about to do what we had no answer to.
		if err := pause(ctx, settleTime); err != nil {
			return false, err
		}
	}
	first := true
	err = engine.Insist(ctx, func() error {
		did, err := letGo(ctx, p.eng, p.id)
		kept = did || err == nil && !first // it may have been the try before
		first = false
		return err
	})
	return kept, err
}

// letGo unpauses a container, if it is paused, and reports whether it was.
func letGo(ctx context.Context, eng *engine.Engine, id string) (was bool, err error) {
	for began := time.Now(); ; {
		err := eng.UnpauseContainer(ctx, id)
		switch {
		case err == nil:
			return true, nil
		case errors.Is(err, engine.ErrUnavailable):
			return false, err
		case errors.Is(err, engine.ErrConflict), errors.Is(err, engine.ErrNotFound):
			return false, nil
		}
		// The old engines have no word of their own for what is not paused, and to them
		// what has just ended is paused for a moment more.
		got, e := eng.InspectContainer(ctx, id)
		if errors.Is(e, engine.ErrNotFound) || e == nil && got.State != engine.StatePaused {
			return false, nil
		}
		if e != nil || time.Since(began) > lostTime {
			return false, errors.Join(err, e)
		}
		if e := pause(ctx, stillThere); e != nil {
			return false, errors.Join(err, e)
		}
	}
}

// unpause lets a paused session go on. One that is being copied does so by itself.
func (c *Client) unpause(ctx context.Context, eng *engine.Engine, got engine.Container) error {
	if rec, ok := record.Decode(got.Labels); ok && record.ValidName(rec.Name) {
		if err := c.awaitThaw(ctx, eng, rec.Name); err != nil {
			return err
		}
	}
	now, err := eng.InspectContainer(ctx, got.ID)
	if err != nil || now.State == engine.StateRunning {
		return err
	}
	_, err = letGo(ctx, eng, got.ID)
	return err
}

// awaitThaw returns when nobody has paused the sandbox to copy it. What one who died has
// left paused it lets go on.
func (c *Client) awaitThaw(ctx context.Context, eng *engine.Engine, name string) error {
	for {
		m, found, err := record.LookPause(ctx, eng, name)
		var foreign *record.ForeignError
		switch {
		case errors.As(err, &foreign):
			return nil
		case err != nil:
			return err
		case !found:
			return nil
		case m.Expired(eng.Now()):
			if err := c.takeOver(ctx, eng, m); err != nil {
				return err
			}
		}
		if err := pause(ctx, stillThere); err != nil {
			return err
		}
	}
}

// letGoOn unpauses the sandbox that the marker of a dead process is about.
func letGoOn(ctx context.Context, eng *engine.Engine, m record.Marker) error {
	name, of, _ := m.Pauses()
	if !record.ValidName(name) {
		return nil
	}
	got, err := eng.InspectContainer(ctx, record.ContainerName(name))
	if errors.Is(err, engine.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if rec, ok := record.Decode(got.Labels); !ok || rec.Nonce != of || got.State != engine.StatePaused {
		return nil
	}
	_, err = letGo(ctx, eng, got.ID)
	return err
}
