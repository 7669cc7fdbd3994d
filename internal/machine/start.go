package machine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/bound"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/errdefs"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/internal/source"
	"github.com/seed-1a2d6d8f/sandbox/internal/store"
	"github.com/seed-1a2d6d8f/sandbox/internal/trace"
)

// busyTimeout is how long a start waits for busy volumes, see [engine.ErrBusy]: containers that begin
// keep copies of mounts, on a busy engine for many seconds.
const busyTimeout = 30 * time.Second

// Start starts the container of a sandbox, after it has checked the files that mislead a start. When
// that fails it places the guest again and retries: the guest's volume is the one thing a
// container needs that is not its own.
func (m *Machine) Start(ctx context.Context, name string, layer OwnLayer) error {
	got, err := m.Store.Locate(ctx, name)
	if errors.Is(err, engine.ErrNotFound) {
		return errdefs.NotFound
	}
	if err != nil {
		return err
	}
	if got.State == engine.StatePaused {
		return m.Store.Unpause(ctx, got)
	}
	start := func() error {
		if got.State != engine.StateRunning {
			if err := m.checkFiles(ctx, got, layer); err != nil {
				return err
			}
		}
		return m.Engine.StartContainer(ctx, got.ID)
	}
	for began := time.Now(); ; {
		err = start()
		if !errors.Is(err, engine.ErrBusy) || time.Since(began) > busyTimeout {
			break
		}
		if e := bound.Sleep(ctx, store.PollEvery); e != nil {
			return errors.Join(e, err)
		}
	}
	if err == nil || ctx.Err() != nil || errors.Is(err, engine.ErrUnavailable) {
		return err
	}
	if now, e := m.Engine.InspectContainer(ctx, got.ID); errors.Is(e, engine.ErrNotFound) || e == nil && store.BeingRemoved(now) {
		// Another process is deleting it, or has replaced it.
		if next, e := m.Store.Locate(ctx, name); e == nil && next.ID != got.ID && next.Labels[record.Nonce] == got.Labels[record.Nonce] {
			return m.Start(ctx, name, OwnLayer{})
		}
		return errdefs.NotFound
	}
	if errdefs.Known(err) {
		return err // of the check
	}
	m.setGuest(Guest{})
	if _, e := m.EnsureGuest(ctx, &Reporter{}); e != nil {
		return errors.Join(err, e)
	}
	if start() == nil {
		return nil
	}
	return fmt.Errorf("start container %s: %w", got.Name, engine.ExplainKeys(err))
}

// EnsureImage returns the image, and pulls it, without the slot, if it is missing or, unless
// emulated is set, is there for another platform than the engine's. One that can't be pulled is copied from
// another engine of the cluster. The registry is within from as far as this
// machine can tell: it is the engine that connects to it, by its own DNS, and follows its redirects.
func (m *Machine) EnsureImage(ctx context.Context, ref string, emulated bool, from *source.Bounds, slot *Slot, report *Reporter) (engine.Image, error) {
	img, found := m.Engine.InspectImage(ctx, ref)
	if found == nil && !emulated {
		found = m.CheckPlatform(ctx, ref, img)
	}
	missing := errors.Is(found, engine.ErrNotFound)
	if !missing && !errors.Is(found, errdefs.Unsupported) {
		return img, found
	}
	if host := engine.Registry(ref); host != "" {
		if _, err := from.Resolve(ctx, host); err != nil {
			return img, fmt.Errorf("pull %s: %w", ref, err)
		}
	}
	err := m.pullImage(ctx, ref, slot, report)
	if err == nil {
		img, err = m.Engine.InspectImage(ctx, ref)
	} else if missing && m.Store.Cluster != nil && ctx.Err() == nil {
		copied, copyErr := m.copyImage(ctx, ref, emulated, slot, report)
		if copyErr == nil {
			return copied, nil
		}
		err = fmt.Errorf("%w; %w", err, copyErr)
	}
	switch {
	case err == nil && !emulated:
		return img, m.CheckPlatform(ctx, ref, img)
	case err == nil, ctx.Err() != nil, errors.Is(err, engine.ErrUnavailable):
		return img, err
	case missing:
		return img, fmt.Errorf("%w: %s is not on the engine and pulling it failed: %w", errdefs.ImageNotFound, ref, err)
	}
	return img, fmt.Errorf("%w; pulling it failed: %w", found, err)
}

func (m *Machine) pullImage(ctx context.Context, ref string, slot *Slot, report *Reporter) error {
	report.Report(Progress{Step: "image", Text: "pulling " + ref})
	var layers pullProgress
	return slot.Without(ctx, func() error {
		return trace.Do(ctx, trace.Pull, func(ctx context.Context) error {
			return m.Engine.PullImage(ctx, ref, func(e engine.PullEvent) {
				current, total := layers.add(e)
				report.Report(Progress{Step: "image", Text: e.Status, Current: current, Total: total})
			})
		}, trace.Image(ref))
	})
}

// copyImage copies the image from another engine of the cluster.
func (m *Machine) copyImage(ctx context.Context, ref string, emulated bool, slot *Slot, report *Reporter) (img engine.Image, err error) {
	err = slot.Without(ctx, func() (err error) {
		img, err = m.Store.Cluster.CopyImage(ctx, ref, func(img engine.Image) bool {
			return emulated || m.CheckPlatform(ctx, ref, img) == nil
		}, func(node string) {
			report.Report(Progress{Step: "image", Text: "copying " + ref + " from node " + node})
		})
		return err
	})
	return img, err
}

// CheckPlatform returns errdefs.Unsupported for an image whose programs the engine's machine does
// not run without emulation. Engines with containerd's image store describe an image that they
// have for other platforms only, or of which they lack a part, as one without a platform and layers.
func (m *Machine) CheckPlatform(ctx context.Context, ref string, img engine.Image) error {
	if img.Arch == "" && img.Layers > 0 {
		return nil
	}
	arch, err := m.Engine.Arch(ctx)
	if err != nil {
		return err
	}
	of := img.OS + "/" + img.Arch
	switch {
	case img.Arch == "":
		of = "another platform, or incomplete"
	case img.Arch == arch, arch == "amd64" && img.Arch == "386", arch == "arm64" && img.Arch == "arm":
		return nil
	}
	return fmt.Errorf("%w: image %s is for %s, and the engine for linux/%s: see WithEmulation", errdefs.Unsupported, ref, of, arch)
}

// pullProgress adds up the layers of a pull.
type pullProgress struct{ layers map[string]engine.PullEvent }

func (p *pullProgress) add(e engine.PullEvent) (current, total int64) {
	if p.layers == nil {
		p.layers = map[string]engine.PullEvent{}
	}
	if e.Layer != "" && e.Total > 0 {
		p.layers[e.Layer] = e
	}
	for _, l := range p.layers {
		current += l.Current
		total += l.Total
	}
	return current, total
}
