package sandbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
)

// remakeTimeout bounds a session's start when it takes a new container first, which
// may be slow in what the old one holds.
const remakeTimeout = time.Hour

// locate returns the container of the sandbox of that name. While one is put in the
// place of another there is a moment when only the next one is there.
func locate(ctx context.Context, eng *engine.Engine, name string) (engine.Container, error) {
	var got engine.Container
	err := engine.ErrNotFound
	for _, ref := range []string{record.ContainerName(name), record.NextName(name), record.ContainerName(name)} {
		next, e := eng.InspectContainer(ctx, ref)
		if e != nil && !errors.Is(e, engine.ErrNotFound) {
			return next, e
		}
		if e == nil {
			got, err = next, nil
			if !leaving(got) {
				break
			}
		}
	}
	return got, err
}

// leaving reports whether the engine is removing a container, or has tried to.
func leaving(got engine.Container) bool {
	return got.State == engine.StateRemoving || got.State == engine.StateDead
}

// isNext reports whether a container is still to take its sandbox's name.
func isNext(got engine.Container, rec record.Sandbox) bool {
	return got.Name == record.NextName(rec.Name)
}

// isUnfinished reports whether a container is still to get the files of a sandbox's.
func isUnfinished(got engine.Container) bool {
	rec, ok := record.Decode(got.Labels)
	return ok && got.Name == record.UnfinishedName(rec.Name)
}

// previous tells one state of a stopped container from all others. A session changes it.
func previous(got engine.Container) string {
	return got.ID + " " + got.FinishedAt.UTC().Format(time.RFC3339Nano)
}

// remake gives a sandbox that does not run the container that its changes ask for, with
// the files of the one it has. A *record.HeldError says that somebody else is at it.
//
// The new one is complete before the old one goes, and takes its name then: so whenever
// this ends there is one that has everything, and settleNext finds it.
func (c *Client) remake(ctx context.Context, eng *engine.Engine, rec record.Sandbox, report *reporter) (err error) {
	claim, op, err := c.hold(ctx, eng, rec)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.release(ctx, eng, rec, claim, op, err)) }()
	if err := c.settleNext(ctx, eng, rec); err != nil {
		return err
	}
	// Now nobody else changes the container, and what is seen of it holds.
	got, err := locate(ctx, eng, rec.Name)
	if errors.Is(err, engine.ErrNotFound) {
		return ErrNotFound
	}
	if err != nil {
		return err
	}
	made, ok := record.Decode(got.Labels)
	if !ok || made.Nonce != rec.Nonce || leaving(got) {
		return ErrNotFound
	}
	if rec, err = record.Latest(ctx, eng, made); err != nil || !rec.Outdated() || hasSession(got) {
		return err
	}
	report.report(Progress{Step: "container", Text: "a new one for what was changed"})
	b, err := c.rebuild(ctx, eng, rec, got, op, report)
	if err != nil {
		return err
	}
	if err := b.next(ctx, got); err != nil {
		return errors.Join(fmt.Errorf("make the container anew: %w", err), b.undo.run(ctx))
	}
	if err := c.settleNext(ctx, eng, rec); err != nil {
		return err
	}
	if err := dropImage(ctx, eng, got.Image); err != nil {
		c.log.Warn("an image is left for Prune", "image", got.Image, "error", err)
	}
	return nil
}

// hold keeps others from making, changing or deleting the sandbox meanwhile.
func (c *Client) hold(ctx context.Context, eng *engine.Engine, rec record.Sandbox) (*record.Claim, string, error) {
	op := record.NewNonce()
	claim, err := settle(ctx, func(ctx context.Context) (*record.Claim, error) {
		return record.TryHold(ctx, eng, rec, op, holder())
	})
	var held *record.HeldError
	switch {
	case err == nil:
		return claim, op, nil
	case errors.As(err, &held) && held.Marker.Nonce == rec.Nonce && ctx.Value(building{}) == rec.Name:
		return nil, op, nil // it is being made, by whom this is called
	case !errors.As(err, &held):
		err = errors.Join(err, c.release(ctx, eng, rec, nil, op, err))
	}
	return nil, op, err
}

// release ends hold. What could not be done to its end, which cause may say, is tried once
// more, and left to whoever comes next when it can't.
func (c *Client) release(ctx context.Context, eng *engine.Engine, rec record.Sandbox, claim *record.Claim, op string, cause error) error {
	own, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
	defer cancel()
	var err error
	if cause != nil && claim != nil {
		err = engine.Insist(own, func() error { return c.settleChange(own, eng, rec, op) })
	}
	if claim != nil {
		claim.Stop()
	}
	if err != nil {
		return err // the marker says so
	}
	err = engine.Insist(own, func() error { return record.Drop(own, eng, rec.Name, op) })
	if err != nil && cause == nil {
		c.log.Warn("a marker is left for the next sweep", "sandbox", rec.Name, "error", err)
		return nil
	}
	return err
}

// settleHeld waits until nobody makes, changes or deletes the sandbox of that name, and
// ends what somebody dead was about.
func (c *Client) settleHeld(ctx context.Context, eng *engine.Engine, name string) error {
	for wait := 10 * time.Millisecond; ; wait = min(2*wait, 250*time.Millisecond) {
		m, found, err := record.Look(ctx, eng, name)
		if err != nil || !found {
			return err
		}
		if m.Expired(eng.Now()) {
			if err := c.takeOver(ctx, eng, m); err != nil {
				return err
			}
		}
		if err := pause(ctx, wait); err != nil {
			return err
		}
	}
}

// settleChange completes a change that ended early, or takes it back, and clears what it
// made in vain.
func (c *Client) settleChange(ctx context.Context, eng *engine.Engine, rec record.Sandbox, op string) error {
	if err := c.settleNext(ctx, eng, rec); err != nil {
		return err
	}
	volumes, err := eng.ListVolumes(ctx, record.Filter(record.Managed, "true"), record.Filter(record.By, op))
	if err != nil {
		return err
	}
	var errs []error
	for _, v := range volumes {
		if record.IsData(v.Name, v.Labels) {
			if err := dropVolume(ctx, eng, v.Name); !errors.Is(err, ErrVolumeInUse) {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(append(errs, dropLayers(ctx, eng, record.Filter(record.Nonce, rec.Nonce)))...)
}

// settleStray settles the next container of a sandbox that nobody holds.
func (c *Client) settleStray(ctx context.Context, eng *engine.Engine, rec record.Sandbox) error {
	claim, op, err := c.hold(ctx, eng, rec)
	var held *record.HeldError
	if errors.As(err, &held) {
		return nil
	}
	if err != nil {
		return err
	}
	err = c.settleChange(ctx, eng, rec, rec.By)
	return errors.Join(err, c.release(ctx, eng, rec, claim, op, err))
}

// settleNext has the sandbox's next container take the place of the one before, if there
// is one. It goes itself when that one had another session since it was copied. Only one
// that has hold may call it.
func (c *Client) settleNext(ctx context.Context, eng *engine.Engine, rec record.Sandbox) error {
	// One that was not finished has nothing that the old one has not.
	if err := removeContainer(ctx, eng, record.UnfinishedName(rec.Name), rec.Nonce); err != nil {
		return err
	}
	for first := true; ; first = false {
		if !first {
			if err := pause(ctx, stillThere); err != nil {
				return err
			}
		}
		next, err := eng.InspectContainer(ctx, record.NextName(rec.Name))
		if errors.Is(err, engine.ErrNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		made, ok := record.Decode(next.Labels)
		if !ok || made.Nonce != rec.Nonce {
			return &record.ForeignError{Kind: "container", Object: next.Name}
		}
		got, err := eng.InspectContainer(ctx, record.ContainerName(rec.Name))
		switch {
		case errors.Is(err, engine.ErrNotFound):
			if err := eng.RenameContainer(ctx, next.ID, record.ContainerName(rec.Name)); err != nil && !errors.Is(err, engine.ErrNotFound) && !errors.Is(err, engine.ErrConflict) {
				return err
			}
			continue
		case err != nil:
			return err
		}
		if before, ok := record.Decode(got.Labels); !ok || before.Nonce != rec.Nonce {
			return &record.ForeignError{Kind: "container", Object: got.Name}
		}
		was := got
		if leaving(got) || !hasSession(got) && previous(got) == made.Previous {
			if got.State == engine.StateRemoving {
				continue
			}
		} else {
			was = next
		}
		// The engine has the last word: it does not remove a container that has just
		// been started.
		_, err = settle(ctx, func(ctx context.Context) (struct{}, error) {
			return struct{}{}, eng.RemoveContainer(ctx, was.ID, was.State == engine.StateDead)
		})
		if err != nil && !errors.Is(err, engine.ErrNotFound) && !errors.Is(err, engine.ErrConflict) {
			return err
		}
	}
}

// rebuild is a build of the container that the record asks for.
func (c *Client) rebuild(ctx context.Context, eng *engine.Engine, rec record.Sandbox, got engine.Container, op string, report *reporter) (*build, error) {
	image, err := eng.InspectImage(ctx, got.ImageID)
	if err != nil {
		return nil, fmt.Errorf("the image of the container: %w", err)
	}
	s, err := settingsOf(rec, got, image)
	if err != nil {
		return nil, err
	}
	if err := checkAttached(ctx, eng, s.mounts); err != nil {
		return nil, err
	}
	b := &build{c: c, eng: eng, s: s, mounted: slices.Clone(s.mounts), report: report, op: op, image: image}
	b.rec = rec.Folded()
	b.rec.By, b.rec.Previous = op, previous(got)
	b.rec.Settings.Mounts = nil // the build writes it
	if b.guest, err = c.ensureGuest(ctx, eng, report); err != nil {
		return nil, err
	}
	if b.seccomp, err = eng.SeccompOption(ctx); err != nil {
		return nil, err
	}
	return b, nil
}

// settingsOf returns what a sandbox would be made with to be as it is, or as its next
// session is to be.
func settingsOf(rec record.Sandbox, got engine.Container, image engine.Image) (*settings, error) {
	folded := rec.Folded().Settings
	s := &settings{
		name: rec.Name, id: rec.ID, image: folded.Image, runtime: folded.Runtime,
		user: folded.User, workdir: folded.Workdir, command: folded.Command, tags: rec.Tags,
		vcpus: float64(got.NanoCPUs) / 1e9, memory: got.Memory, pidsLimit: got.PidsLimit,
		persistent: &rec.Persistent, ociRuntime: got.Runtime,
		timeout: rec.Timeout(), stopTimeout: stopTimeout(rec), env: map[string]string{},
	}
	for _, p := range folded.Ports {
		s.ports = append(s.ports, int(p))
	}
	for _, kv := range got.Env {
		if k, v, ok := strings.Cut(kv, "="); ok && !slices.Contains(image.Env, kv) {
			s.env[k] = v
		}
	}
	env, err := rec.NewEnv()
	if err != nil {
		return nil, err
	}
	for k, v := range env {
		s.env[k] = v
	}
	has := rec.Settings.Mounts
	if rec.Revision.Changes.Mounts == nil {
		s.mounts = mountsOf(rec, got)
		return s, nil
	}
	for _, m := range *rec.Revision.Changes.Mounts {
		// A copy that is there already stays.
		if i := slices.IndexFunc(has, m.Same); i >= 0 {
			m = has[i]
		}
		s.mounts = append(s.mounts, Mount{Source: m.Source, Volume: m.Volume, Target: m.Target, Mode: MountMode(m.Mode)})
	}
	return s, nil
}

// next makes the container that is to take the place of got, complete but for its name.
func (b *build) next(ctx context.Context, got engine.Container) error {
	if err := b.copies(ctx); err != nil {
		return err
	}
	g, fctx := errgroup.WithContext(ctx)
	copies := b.filler()
	b.undo.add("helper", copies.undo.run)
	g.Go(func() error { return copies.run(fctx, b.fills) })
	onDisk := got.Upper != "" && !b.c.commits
	from := b.sameImage(got)
	if !onDisk {
		g.Go(func() (err error) {
			from, err = b.layer(fctx, got)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	for _, m := range got.Mounts {
		// A volume that nobody named, because the image asked for it.
		if m.Type == "volume" && m.Name != "" && !record.OurName(m.Name) && !slices.ContainsFunc(b.mounted, func(o Mount) bool { return o.Target == m.Target }) {
			b.rec.Settings.Unnamed = append(b.rec.Settings.Unnamed, m.Name)
		}
	}
	spec, err := b.spec()
	if err != nil {
		return err
	}
	spec.Name, spec.Image = record.UnfinishedName(b.rec.Name), from
	spec.NanoCPUs = got.NanoCPUs // exactly
	for _, m := range got.Mounts {
		if slices.Contains(b.rec.Settings.Unnamed, m.Name) {
			spec.Mounts = append(spec.Mounts, engine.Mount{Type: "volume", Source: m.Name, Target: m.Target, ReadOnly: !m.RW, NoCopy: true})
		}
	}
	b.attached()
	id, err := createContainer(ctx, b.eng, &b.undo, spec, b.rec.Nonce)
	if err != nil {
		return err
	}
	if err := b.stillAttached(ctx); err != nil {
		return err
	}
	if onDisk {
		if err := b.copyLayer(ctx, got, id); err != nil {
			return err
		}
	}
	// Only now does it count.
	return b.eng.RenameContainer(ctx, id, record.NextName(b.rec.Name))
}

// copyLayer copies a container's own files to a new one of the same image, on the engine's
// disk. Nothing of them is lost that way, and no image gets another layer.
func (b *build) copyLayer(ctx context.Context, got engine.Container, id string) error {
	made, err := b.eng.InspectContainer(ctx, id)
	if err != nil {
		return err
	}
	k := b.c.capture(b.eng, b.rec.Name, b.op, b.report)
	b.undo.add("helper", k.undo.run)
	return k.copy(ctx, []transfer{{what: "files of the container", from: layerOf(got), to: tree{dir: made.Upper}, layer: true}}, nil, nil)
}

// sameImage is the image of a container, by its name while it has that.
func (b *build) sameImage(got engine.Container) string {
	if slices.Contains(b.image.Tags, got.Image) {
		return got.Image
	}
	return got.ImageID
}

// layer returns an image with the files of a container: its own when they are as they
// were in that.
func (b *build) layer(ctx context.Context, got engine.Container) (string, error) {
	diff, err := b.eng.DiffContainer(ctx, got.ID)
	if err != nil {
		return "", err
	}
	if clean(diff, got) {
		return b.sameImage(got), nil
	}
	ref := record.LayerImage(b.op)
	b.undo.add("image "+ref, func(ctx context.Context) error { return uncommit(ctx, b.eng, ref, b.rec.Nonce) })
	labels := record.Base(record.RoleLayer, b.rec.Nonce, b.eng.Now())
	labels[record.By] = b.op
	_, err = commit(ctx, b.eng, got, b.image, ref, labels)
	return ref, err
}

// commit makes the image ref of a container and its image.
func commit(ctx context.Context, eng *engine.Engine, got engine.Container, image engine.Image, ref string, labels map[string]string) (engine.Image, error) {
	made, err := settle(ctx, func(ctx context.Context) (engine.Image, error) {
		if image.Layers >= maxLayers {
			return eng.FlattenContainer(ctx, got.ID, ref, labels)
		}
		return eng.CommitContainer(ctx, got.ID, ref, labels)
	})
	if err != nil {
		return made, err
	}
	return made, engine.Insist(ctx, func() error { return dropUntagged(ctx, eng, labels[record.Nonce]) })
}

// uncommit takes back a commit that may have been made in part.
func uncommit(ctx context.Context, eng *engine.Engine, ref, nonce string) error {
	return errors.Join(dropLayer(ctx, eng, ref), dropUntagged(ctx, eng, nonce))
}

// dropUntagged removes the images that a commit leaves without a name: when it was made
// again, because its reply was lost, or could not remove what it came by.
func dropUntagged(ctx context.Context, eng *engine.Engine, nonce string) error {
	images, err := eng.ListImages(ctx, record.Filter(record.Managed, "true"), record.Filter(record.Nonce, nonce))
	if err != nil {
		return err
	}
	var errs []error
	for _, i := range images {
		if len(i.Tags) == 0 {
			errs = append(errs, dropLayer(ctx, eng, i.ID))
		}
	}
	return errors.Join(errs...)
}

// maxLayers is when the layers of a container's image are made one. The engine refuses
// the 125th, and starts get slower long before.
const maxLayers = 64

// clean reports whether what differs in a container is only where others are mounted.
func clean(diff []engine.Change, got engine.Container) bool {
	return !slices.ContainsFunc(diff, func(c engine.Change) bool {
		return c.Kind != engine.Added || c.Path != wire.Dir && !slices.ContainsFunc(got.Mounts, func(m engine.MountPoint) bool { return m.Target == c.Path })
	})
}

// dropLayer removes an image of ours unless somebody uses it.
func dropLayer(ctx context.Context, eng *engine.Engine, ref string) error {
	err := eng.RemoveImage(ctx, ref, false)
	if errors.Is(err, engine.ErrNotFound) || errors.Is(err, engine.ErrConflict) {
		return nil
	}
	return err
}

// dropImage removes the image of a container that is gone, if it was made for containers
// alone and no other has it.
func dropImage(ctx context.Context, eng *engine.Engine, ref string) error {
	if over, err := overSnapshot(ctx, eng, ref); err != nil || !over && !record.IsLayer(ref) {
		return err
	}
	return dropLayer(ctx, eng, ref)
}

// overSnapshot reports whether a reference is that of a snapshot that is gone.
func overSnapshot(ctx context.Context, eng *engine.Engine, ref string) (bool, error) {
	id, is := record.SnapshotOfImage(ref)
	if !is {
		return false, nil
	}
	// The record is made before the marker goes.
	if _, marked, err := record.Look(ctx, eng, record.SnapshotMarker(id)); err != nil || marked {
		return false, err
	}
	_, err := findSnapshot(ctx, eng, id)
	if errors.Is(err, ErrSnapshotNotFound) {
		return true, nil
	}
	return false, err
}

// dropLayers removes those images of ours with a label that nobody uses.
func dropLayers(ctx context.Context, eng *engine.Engine, label string) error {
	images, err := eng.ListImages(ctx, record.Filter(record.Managed, "true"), record.Filter(record.Role, record.RoleLayer), label)
	if err != nil {
		return err
	}
	var errs []error
	for _, i := range images {
		refs, err := spare(ctx, eng, i)
		errs = append(errs, err)
		for _, ref := range refs {
			errs = append(errs, dropLayer(ctx, eng, ref))
		}
	}
	return errors.Join(errs...)
}

// spare are what an image is to be removed by, unless a snapshot has it. Then it keeps all
// its names, since the engine takes one away that a container has when there is another.
func spare(ctx context.Context, eng *engine.Engine, i engine.Image) ([]string, error) {
	for _, tag := range i.Tags {
		if _, is := record.SnapshotOfImage(tag); is {
			if over, err := overSnapshot(ctx, eng, tag); err != nil || !over {
				return nil, err
			}
		}
	}
	if len(i.Tags) == 0 {
		return []string{i.ID}, nil
	}
	return i.Tags, nil
}
