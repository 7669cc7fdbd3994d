package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/claim"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/errdefs"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
)

// Locate returns the container of the sandbox of that name. While a container is replaced
// there is a moment when only its replacement exists. Locate waits until the volumes have all
// files of a snapshot that the sandbox is being rolled back to, and goes on with that for a
// process that died.
func (s *Store) Locate(ctx context.Context, name string) (engine.Container, error) {
	for {
		got, err := s.locate(ctx, name)
		rec, ok := SandboxOf(got)
		if err != nil || !ok || !isHalfRolledBack(got, rec) {
			return got, err
		}
		if !isCreating(ctx, name) { // its marker stays until this call returns
			err = s.AwaitChange(ctx, name)
		}
		if err == nil {
			err = s.finishOrphan(ctx, rec, true)
		}
		if err != nil {
			return got, fmt.Errorf("finish the rollback to snapshot %s: %w", rec.Settings.Rollback.Snapshot, err)
		}
	}
}

// isHalfRolledBack reports whether the volumes of a sandbox with this container may have files
// of two moments, given that it has no other.
func isHalfRolledBack(got engine.Container, rec record.Sandbox) bool {
	return IsNext(got, rec) && rec.Settings.Rollback != nil
}

// locate is Locate for a caller that does not use the files.
func (s *Store) locate(ctx context.Context, name string) (engine.Container, error) {
	var got engine.Container
	err := engine.ErrNotFound
	for _, ref := range []string{record.ContainerName(name), record.NextName(name), record.ContainerName(name)} {
		next, e := s.Engine.InspectContainer(ctx, ref)
		if e != nil && !errors.Is(e, engine.ErrNotFound) {
			return next, e
		}
		if e == nil {
			got, err = next, nil
			if !BeingRemoved(got) {
				break
			}
		}
	}
	return got, err
}

// BeingRemoved reports whether the engine is removing a container, or has failed to.
func BeingRemoved(got engine.Container) bool {
	return got.State == engine.StateRemoving || got.State == engine.StateDead
}

// IsNext reports whether a container is a replacement that has not taken its sandbox's name.
func IsNext(got engine.Container, rec record.Sandbox) bool {
	return got.Name == record.NextName(rec.Name)
}

// isUnfinished reports whether a container is a replacement without its files.
func isUnfinished(got engine.Container, rec record.Sandbox) bool {
	return got.Name == record.UnfinishedName(rec.Name)
}

// SandboxOf reads the record of a container, if it is a sandbox's. One that a user created
// from an image of a sandbox inherits the labels, but not the name.
func SandboxOf(got engine.Container) (record.Sandbox, bool) {
	rec, ok := record.Decode(got.Labels)
	if name, is := record.NameOf(got.Name); ok && is && rec.Settings.Pooled && mounts(got, record.WorkspaceName(rec.ID)) {
		rec.Name = name
	}
	return rec, ok && (got.Name == record.ContainerName(rec.Name) || IsNext(got, rec))
}

// mounts reports whether a container mounts the volume.
func mounts(got engine.Container, volume string) bool {
	return slices.ContainsFunc(got.Mounts, func(m engine.MountPoint) bool { return m.Type == "volume" && m.Name == volume })
}

// Find returns the sandbox of that name, else of that ID, with its latest revision.
func (s *Store) Find(ctx context.Context, nameOrID string) (record.Sandbox, engine.Container, error) {
	rec, got, err := s.findContainer(ctx, nameOrID)
	if err != nil {
		return rec, got, err
	}
	rec, err = claim.Latest(ctx, s.Engine, rec)
	return rec, got, err
}

// findContainer is Find without the latest revision. nameOrID is never used as a reference
// to a container, which Docker would also match with the beginning of a container's ID.
func (s *Store) findContainer(ctx context.Context, nameOrID string) (record.Sandbox, engine.Container, error) {
	inspect := func(name string, is func(record.Sandbox) bool) (record.Sandbox, engine.Container, error) {
		got, err := s.locate(ctx, name)
		if err != nil {
			return record.Sandbox{}, got, err
		}
		rec, ok := SandboxOf(got)
		if !ok || rec.Name != name || !is(rec) {
			return rec, got, engine.ErrNotFound
		}
		return rec, got, nil
	}
	rec, got, err := inspect(nameOrID, func(r record.Sandbox) bool { return r.Name == nameOrID })
	if !errors.Is(err, engine.ErrNotFound) {
		return rec, got, err
	}
	isID := func(r record.Sandbox) bool { return r.ID == nameOrID }
	// The workspace is named by the ID; its label has the name of the sandbox that created it.
	vol, volErr := s.Engine.InspectVolume(ctx, record.WorkspaceName(nameOrID))
	if volErr != nil && !errors.Is(volErr, engine.ErrNotFound) {
		return rec, got, volErr
	}
	if volErr == nil && record.Is(vol.Labels, record.RoleWorkspace) && record.ValidName(vol.Labels[record.Name]) {
		rec, got, err = inspect(vol.Labels[record.Name], isID)
		if !errors.Is(err, engine.ErrNotFound) {
			return rec, got, err
		}
	}
	// The engine keeps a workspace while its sandbox exists.
	if volErr != nil {
		return record.Sandbox{}, engine.Container{}, errdefs.NotFound
	}
	// A workspace that was preserved, or that another sandbox adopted since: it has the name of
	// the earlier one. Or one of a sandbox that got its name from a pool. Only the engine's list tells.
	list, err := s.Engine.ListContainers(ctx, engine.Filter{Labels: []string{
		record.Filter(record.Managed, "true"), record.Filter(record.ID, nameOrID)}})
	if err != nil {
		return rec, got, err
	}
	for _, l := range list {
		if r, ok := SandboxOf(l); ok && isID(r) && record.ValidName(r.Name) {
			rec, got, err = inspect(r.Name, isID)
			if !errors.Is(err, engine.ErrNotFound) {
				return rec, got, err
			}
		}
	}
	return record.Sandbox{}, engine.Container{}, goneError(vol, vol.Labels[record.Name], nameOrID)
}

// Gone returns the errdefs.NotFound of a sandbox that has no container any more.
func (s *Store) Gone(ctx context.Context, rec record.Sandbox) error {
	vol, err := s.Engine.InspectVolume(ctx, record.WorkspaceName(rec.ID))
	if err != nil {
		return errdefs.NotFound
	}
	users, err := s.Engine.ListContainers(ctx, engine.Filter{Volume: vol.Name})
	if err != nil {
		return err
	}
	for _, got := range users {
		r, ok := record.Decode(got.Labels)
		if ours := strings.HasPrefix(got.Name, record.ContainerName("")); ok && !ours && r.Nonce == rec.Nonce && !BeingRemoved(got) {
			return fmt.Errorf("%w: its container was renamed to %s: \"docker rename %s %s\" makes it the sandbox again",
				errdefs.NotFound, got.Name, got.Name, record.ContainerName(rec.Name))
		}
	}
	return goneError(vol, rec.Name, rec.ID)
}

// goneError says how to use the workspace that a deletion, or another tool, has left.
func goneError(workspace engine.Volume, name, id string) error {
	if !record.Is(workspace.Labels, record.RoleWorkspace) || !record.ValidName(name) {
		return errdefs.NotFound
	}
	return fmt.Errorf("%w: its workspace, volume %s, is still there: Create with WithName(%q) and WithID(%q) makes a sandbox with it",
		errdefs.NotFound, workspace.Name, name, id)
}

// AwaitCreated is Find after the creation of the sandbox has finished.
func (s *Store) AwaitCreated(ctx context.Context, nameOrID string) (_ record.Sandbox, _ engine.Container, err error) {
	wait := newPace(nameOrID, 20*time.Millisecond)
	defer wait.end(&err)
	for {
		rec, got, err := s.findContainer(ctx, nameOrID)
		name := rec.Name
		if errors.Is(err, errdefs.NotFound) {
			name = nameOrID // its container may not exist yet
		} else if err != nil {
			return rec, got, err
		}
		// The revision and the marker at once, after the container: if there is no marker now, the
		// container was complete.
		var m record.Marker
		var found bool
		var lookErr error
		var look sync.WaitGroup
		look.Go(func() { m, found, lookErr = claim.FindMarker(ctx, s.Engine, name) })
		if err == nil {
			rec, err = claim.Latest(ctx, s.Engine, rec)
		}
		look.Wait()
		if err != nil && !errors.Is(err, errdefs.NotFound) {
			return rec, got, err
		}
		var foreign *record.ForeignError
		switch {
		case errors.As(lookErr, &foreign):
			// A user's volume with the name of a marker is no marker.
			return rec, got, err
		case lookErr != nil:
			return rec, got, lookErr
		case !found, isCreating(ctx, name):
			return rec, got, err
		case !s.isDead(m):
		case m.Of != "", m.Moves():
			if err := s.TakeOver(ctx, m); err != nil {
				return rec, got, err
			}
		default:
			return rec, got, fmt.Errorf("%w: its creation was abandoned by %s", errdefs.NotFound, m.Holder)
		}
		if err := wait.sleep(ctx); err != nil {
			return rec, got, err
		}
	}
}

// ErrNameTaken is the errdefs.Exists after which GetOrCreate tries Get again.
var ErrNameTaken = fmt.Errorf("%w", errdefs.Exists)

// Available reports why the name or the ID can't be used for a new sandbox. The ID is empty if the
// sandbox has it already.
func (s *Store) Available(ctx context.Context, name, id string) error {
	// All at once: most names are free. A name that is another sandbox's ID, or an ID that is
	// another's name, would hide it.
	var nameErr, idErr, hiddenErr error
	var looks sync.WaitGroup
	looks.Go(func() { nameErr = s.NameTaken(ctx, name) })
	if name != id {
		looks.Go(func() { hiddenErr = s.checkNotID(ctx, name) })
	}
	if name != id && id != "" {
		looks.Go(func() { idErr = s.NameTaken(ctx, id) })
	}
	looks.Wait()
	if nameErr != nil {
		if !errors.Is(nameErr, errdefs.Exists) {
			return nameErr
		}
		// A dead creator's container is no sandbox: the claim will find its marker.
		if m, found, e := claim.FindMarker(ctx, s.Engine, name); e != nil || !found || !m.Expired(s.Engine.Now()) {
			return errors.Join(ErrNameTaken, e)
		}
	}
	if hiddenErr != nil {
		return hiddenErr
	}
	if errors.Is(idErr, errdefs.Exists) {
		return fmt.Errorf("%w: ID %q is another sandbox's name", errdefs.Exists, id)
	}
	return idErr
}

// checkNotID fails if the name is the ID of another sandbox.
func (s *Store) checkNotID(ctx context.Context, name string) error {
	workspace, err := s.Engine.InspectVolume(ctx, record.WorkspaceName(name))
	switch {
	case errors.Is(err, engine.ErrNotFound):
		return nil
	case err != nil:
		return err
	case !record.Is(workspace.Labels, record.RoleWorkspace):
		return nil
	}
	rec, _, err := s.findContainer(ctx, name)
	if errors.Is(err, errdefs.NotFound) || err == nil && (rec.ID != name || rec.Name == name) {
		return nil
	}
	if err != nil {
		return err
	}
	return fmt.Errorf("%w: %q is the ID of sandbox %q", errdefs.Exists, name, rec.Name)
}

// NameTaken returns errdefs.Exists, or a *record.ForeignError, if the container name of a
// sandbox is in use. It may miss a replacement that takes the name at this moment: then
// another process holds the marker of the name, and creating the container fails.
func (s *Store) NameTaken(ctx context.Context, name string) error {
	var got, next engine.Container
	var err, nextErr error
	var looks sync.WaitGroup
	looks.Go(func() { next, nextErr = s.Engine.InspectContainer(ctx, record.NextName(name)) })
	got, err = s.Engine.InspectContainer(ctx, record.ContainerName(name))
	looks.Wait()
	if errors.Is(err, engine.ErrNotFound) || err == nil && BeingRemoved(got) && nextErr == nil {
		got, err = next, nextErr
	}
	switch {
	case errors.Is(err, engine.ErrNotFound):
		return nil
	case err != nil:
		return err
	case got.Labels[record.Managed] != "true":
		return &record.ForeignError{Kind: "container", Object: got.Name}
	case got.State == engine.StateRemoving:
		return nil
	}
	return errdefs.Exists
}

// Recheck returns the present container of a sandbox that is being copied.
func (s *Store) Recheck(ctx context.Context, rec record.Sandbox) (engine.Container, error) {
	got, err := s.Locate(ctx, rec.Name)
	if errors.Is(err, engine.ErrNotFound) {
		return got, fmt.Errorf("%w: %s was deleted during the call", errdefs.NotFound, rec.Name)
	}
	if err != nil {
		return got, err
	}
	if r, ok := record.Decode(got.Labels); !ok || r.ID != rec.ID || got.State == engine.StateRemoving {
		return got, fmt.Errorf("%w: %s was deleted during the call", errdefs.NotFound, rec.Name)
	}
	return got, nil
}
