package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/bound"
	"github.com/seed-1a2d6d8f/sandbox/internal/claim"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/errdefs"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
)

// FindVolume returns a data volume by its name.
func (s *Store) FindVolume(ctx context.Context, name string) (engine.Volume, error) {
	v, err := s.Engine.InspectVolume(ctx, name)
	switch {
	case errors.Is(err, engine.ErrNotFound):
		return v, fmt.Errorf("%w: there is no volume %s", errdefs.VolumeNotFound, name)
	case err != nil:
		return v, err
	case !record.IsData(v.Name, v.Labels):
		return v, fmt.Errorf("%w: volume %s is not tracked: it is not a sandbox volume", errdefs.VolumeNotFound, name)
	case v.Driver != "" && v.Driver != "local":
		return v, errdefs.Classify(errdefs.Unsupported, fmt.Errorf("volume %s has driver %q, and only local ones can be used", name, v.Driver))
	}
	return v, nil
}

// volumeUsers are the users of a volume.
type volumeUsers struct {
	sandboxes []record.Sandbox
	running   bool               // one of the sandboxes is
	foreign   []string           // containers that are not ours
	transient []engine.Container // those that will soon be gone: helpers, and those being removed
}

// users returns who mounts a volume.
func (st *Store) users(ctx context.Context, volume string) (u volumeUsers, err error) {
	list, err := st.Engine.ListContainers(ctx, engine.Filter{Volume: volume})
	if err != nil {
		return u, err
	}
	for _, got := range list {
		rec, ok := SandboxOf(got)
		switch {
		case got.State == engine.StateRemoving, record.Is(got.Labels, record.RoleHelper), isUnfinished(got, rec):
			u.transient = append(u.transient, got)
		case ok:
			// A sandbox has two while its container is replaced.
			if !slices.ContainsFunc(u.sandboxes, func(s record.Sandbox) bool { return s.ID == rec.ID }) {
				u.sandboxes = append(u.sandboxes, rec)
			}
			u.running = u.running || got.State == engine.StateRunning || got.State == engine.StatePaused || got.State == engine.StateRestarting
		default:
			u.foreign = append(u.foreign, got.Name)
		}
	}
	slices.SortFunc(u.sandboxes, func(a, b record.Sandbox) int { return strings.Compare(a.Name, b.Name) })
	return u, nil
}

// CheckSoleUser fails with a errdefs.VolumeInUse if others than the sandbox mount its volume.
func (s *Store) CheckSoleUser(ctx context.Context, volume string, rec record.Sandbox) error {
	users, err := s.users(ctx, volume)
	if err != nil {
		return err
	}
	users.sandboxes = slices.DeleteFunc(users.sandboxes, func(o record.Sandbox) bool { return o.ID == rec.ID })
	users.running = users.running && len(users.sandboxes) > 0
	return users.checkUnused(volume)
}

// transients describes the containers that should have gone.
func (u *volumeUsers) transients() string {
	var all []string
	for _, got := range u.transient {
		of, text := got.Labels[record.Name], "container "+got.Name
		if record.Is(got.Labels, record.RoleHelper) {
			text = "a helper container"
		}
		if record.ValidName(of) {
			text += " of sandbox " + of
		}
		all = append(all, text+" ("+got.State+")")
	}
	return strings.Join(all, ", ")
}

// checkPending fails if a live process creates or deletes the volume's sandbox.
func (s *Store) checkPending(ctx context.Context, v engine.Volume) error {
	name := v.Labels[record.Name]
	if !record.ValidName(name) {
		return nil
	}
	m, found, err := claim.FindMarker(ctx, s.Engine, name)
	var foreign *record.ForeignError
	if errors.As(err, &foreign) {
		return nil
	}
	if err == nil && found && m.Nonce == v.Labels[record.Nonce] && !m.Expired(s.Engine.Now()) {
		err = &inUse{text: fmt.Sprintf("volume %s belongs to sandbox %s, which is being made or deleted", v.Name, name)}
	}
	return err
}

// names returns the names of the sandboxes that mount the volume.
func (u *volumeUsers) names() []string {
	var names []string
	for _, s := range u.sandboxes {
		names = append(names, s.Name)
	}
	return names
}

// inUse is a errdefs.VolumeInUse that says who the users are.
type inUse struct {
	text  string
	users volumeUsers
}

func (e *inUse) Error() string { return e.text }

func (e *inUse) Unwrap() error { return errdefs.VolumeInUse }

// checkUnused returns the error for deleting the volume while it has users.
func (u *volumeUsers) checkUnused(volume string) error {
	names := strings.Join(u.names(), ", ")
	switch {
	case len(u.foreign) > 0:
		return &inUse{fmt.Sprintf("volume %s is used by container %s, which is not a sandbox", volume, strings.Join(u.foreign, ", ")), *u}
	case u.running:
		return &inUse{fmt.Sprintf("%v: volume %s is referenced by sandboxes %s", errdefs.VolumeInUse, volume, names), *u}
	case names != "":
		return &inUse{fmt.Sprintf("volume %s is referenced by sandboxes %s", volume, names), *u}
	}
	return nil
}

// DeleteVolume deletes a volume; with force it first deletes the sandboxes that mount it. It
// returns the outcome for that volume, then for the other volumes of those sandboxes, and
// the names of the deleted sandboxes.
func (s *Store) DeleteVolume(ctx context.Context, name string, force bool) (outcomes []Outcome, sandboxes []string, err error) {
	v, err := s.FindVolume(ctx, name)
	if err != nil {
		return []Outcome{}, nil, err
	}
	own := Outcome{Name: name, Status: Deleted}
	defer func() {
		if err != nil {
			own.Status, own.Reason = DeleteFailed, err.Error()
		}
		outcomes = append([]Outcome{own}, outcomes...)
	}()
	if err := s.checkPending(ctx, v); err != nil {
		return nil, nil, err
	}
	err = s.removeUnused(ctx, v)
	var used *inUse
	if !force || !errors.As(err, &used) || len(used.users.foreign) > 0 || len(used.users.sandboxes) == 0 {
		return nil, nil, err
	}
	for _, rec := range used.users.sandboxes {
		others, err := s.Delete(ctx, rec, KeepVolumes)
		if err != nil && !errors.Is(err, errdefs.NotFound) {
			err = fmt.Errorf("delete sandbox %s: %w", rec.Name, err)
			if len(sandboxes) > 0 {
				err = fmt.Errorf("%w; already deleted: %s", err, strings.Join(sandboxes, ", "))
			}
			return outcomes, sandboxes, err
		}
		if err == nil {
			sandboxes = append(sandboxes, rec.Name)
		}
		for _, o := range others {
			if o.Name != name && !slices.ContainsFunc(outcomes, func(p Outcome) bool { return p.Name == o.Name }) {
				outcomes = append(outcomes, o)
			}
		}
	}
	return outcomes, sandboxes, s.removeUnused(ctx, v)
}

// overlayParts returns the names of the volumes that a volume is made of, if it is an overlay.
func (s *Store) overlayParts(ctx context.Context, v engine.Volume) []string {
	if !record.ValidVolume(v.Name) || v.Labels[record.Snapshot] == "" {
		return nil
	}
	upper, work := record.OverlayNames(v.Name)
	parts := []string{upper, work}
	var looks sync.WaitGroup
	for i, part := range parts {
		looks.Go(func() {
			if v, err := s.Engine.InspectVolume(ctx, part); err != nil || !record.Is(v.Labels, record.RoleOverlay) {
				parts[i] = ""
			}
		})
	}
	looks.Wait()
	return slices.DeleteFunc(parts, func(part string) bool { return part == "" })
}

// dropOverlay removes the parts of an overlay that is gone, and the files below it if nobody
// shares them any more and they are no recorded snapshot, which are those of a ForkN: to know
// the sharers takes a list. Failures are left to the next sweep.
func (s *Store) dropOverlay(ctx context.Context, snapshot string, parts []string) {
	if len(parts) == 0 {
		return
	}
	for _, part := range parts {
		s.removeVolume(ctx, part)
	}
	if _, err := s.FindSnapshot(ctx, snapshot); !errors.Is(err, errdefs.SnapshotNotFound) {
		return
	}
	if all, err := s.List(ctx); err == nil {
		for id, nonce := range all.orphanedFiles() {
			s.dropSnapshotFiles(ctx, id, nonce)
		}
	}
}

// transientTimeout bounds the wait for containers that should soon be gone. A helper of a program
// that was killed goes when that program's lease is over.
const transientTimeout = claim.Lease + 20*time.Second

// releaseTimeout bounds the wait for volumes of a removed container: the engine releases them after
// it has taken the container off its list. A busy engine takes longer than a second, also for a
// helper that it removes by itself.
const releaseTimeout = 10 * time.Second

// RemoveUnusedVolume removes a volume unless it is in use, and waits for containers that
// will soon be gone. The engine decides: users may have come or gone since any check of ours.
//
// The engine holds its lock on all volumes while it deletes the files, so that other calls
// may wait: 2 s for 50,000 files on 20.10. To empty the volume in a helper first would avoid
// that, but only the engine checks for users and removes in one step: a new user would get
// the volume without its files.
func (s *Store) RemoveUnusedVolume(ctx context.Context, name string) error {
	v, err := s.Engine.InspectVolume(ctx, name)
	if errors.Is(err, engine.ErrNotFound) {
		return removedByAnother(name)
	}
	if err != nil {
		return err
	}
	return s.removeUnused(ctx, v)
}

func removedByAnother(volume string) error {
	return fmt.Errorf("%w: another process removed %s", errdefs.VolumeNotFound, volume)
}

// removeUnused is RemoveUnusedVolume for a volume whose labels are known.
func (s *Store) removeUnused(ctx context.Context, v engine.Volume) error {
	name := v.Name
	lostReplies, try, began := 0, -1, time.Now()
	used := began // when a container that will soon be gone was seen last
	var parts []string
	var look sync.WaitGroup
	look.Go(func() { parts = s.overlayParts(ctx, v) })
	defer look.Wait()
	return bound.Poll(ctx, PollEvery, func() (done bool, err error) {
		try++
		err = bound.Finish(ctx, func(ctx context.Context) error { return s.removeVolume(ctx, name) })
		switch {
		case err == nil, errors.Is(err, engine.ErrNotFound) && lostReplies > 0:
			look.Wait()
			s.dropOverlay(ctx, v.Labels[record.Snapshot], parts)
			return true, nil
		case errors.Is(err, engine.ErrNotFound):
			return true, removedByAnother(name)
		case errors.Is(err, engine.ErrUnavailable) && lostReplies < 3:
			lostReplies++
			return false, nil
		case !errors.Is(err, engine.ErrConflict):
			return true, err
		}
		users, e := s.users(ctx, name)
		if e == nil {
			e = users.checkUnused(name)
		}
		if len(users.transient) > 0 {
			used = time.Now()
		}
		switch {
		case e != nil || try == 0 || try%20 != 0:
		case len(users.transient) == 0 && time.Since(used) < releaseTimeout:
		case len(users.transient) == 0:
			e = &inUse{text: fmt.Sprintf("volume %s: %v", name, err)}
		case time.Since(began) > transientTimeout:
			e = &inUse{text: fmt.Sprintf("volume %s is used by %s", name, users.transients())}
		default:
			for _, got := range users.transient {
				if record.Is(got.Labels, record.RoleHelper) {
					e = errors.Join(e, s.dropIdleHelper(ctx, got))
				}
			}
		}
		return false, e
	})
}

// CheckAttached checks the volumes to attach before anything is created: the engine would
// create a volume that is missing.
func (s *Store) CheckAttached(ctx context.Context, mounts []record.Mount) error {
	var errs []error
	for _, m := range mounts {
		if !m.Attached() {
			continue
		}
		if _, err := s.FindVolume(ctx, m.Volume); err != nil {
			if !errors.Is(err, errdefs.VolumeNotFound) && !errors.Is(err, errdefs.Unsupported) {
				return err
			}
			errs = append(errs, fmt.Errorf("mount at %q: %w", m.Target, err))
		}
	}
	return errors.Join(errs...)
}
