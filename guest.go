package sandbox

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
)

// A guestVolume is the guest on one engine: a volume that holds the binary.
type guestVolume struct{ name string }

func (g guestVolume) mount() engine.Mount {
	return engine.Mount{
		Type: "volume", Source: g.name, Target: wire.Dir, ReadOnly: true, NoCopy: true,
		VolumeLabels: guestLabels(time.Time{}),
	}
}

func guestLabels(at time.Time) map[string]string { return record.Base(record.RoleGuest, "", at) }

// helperLabels are those of a container that is needed for a moment. Should it stay, a
// sweep takes it.
func helperLabels(eng *engine.Engine, nonce string) map[string]string {
	l := record.Base(record.RoleHelper, nonce, eng.Now())
	l[record.Until] = eng.Now().Add(5 * time.Minute).UTC().Format(time.RFC3339Nano)
	return l
}

func (c *Client) knownGuest() guestVolume {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.guest
}

func (c *Client) setGuest(g guestVolume) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.guest = g
}

// ensureGuest has the guest on the engine, once for a client. It is shared by all
// sandboxes of an engine, named by its content, and left there.
func (c *Client) ensureGuest(ctx context.Context, eng *engine.Engine, report *reporter) (guestVolume, error) {
	leave, err := c.placing.enter(ctx)
	if err != nil {
		return guestVolume{}, err
	}
	defer leave()
	if g := c.knownGuest(); g != (guestVolume{}) {
		return g, nil
	}
	arch, err := eng.Arch(ctx)
	if err != nil {
		return guestVolume{}, err
	}
	hash, err := guest.Hash(arch)
	if err != nil {
		return guestVolume{}, classify(ErrUnsupported, err)
	}
	report.report(Progress{Step: "guest"})
	g := guestVolume{record.GuestName(hash)}
	if err := placeGuest(ctx, eng, arch, g.name, record.GuestImage(hash)); err != nil {
		return guestVolume{}, fmt.Errorf("place the guest: %w", err)
	}
	c.setGuest(g)
	return g, nil
}

// placeGuest fills the volume from an image that holds nothing but the binary. The
// engine copies it while it creates a container with both, which is never started;
// that container is also how to see that all of the binary is there.
func placeGuest(ctx context.Context, eng *engine.Engine, arch, volume, image string) (err error) {
	size, err := guest.Size(arch)
	if err != nil {
		return err
	}
	_, err = eng.InspectImage(ctx, image)
	if errors.Is(err, engine.ErrNotFound) {
		// Of two who import at once one loses the tag; the engine keeps its image.
		defer func() { err = errors.Join(err, dropUntagged(context.WithoutCancel(ctx), eng)) }()
		err = importGuest(ctx, eng, arch, image)
	}
	if err != nil {
		return err
	}
	got, err := eng.CreateVolume(ctx, volume, guestLabels(eng.Now()))
	if err != nil {
		return err
	}
	if !record.Is(got.Labels, record.RoleGuest) {
		return &record.ForeignError{Kind: "volume", Object: volume}
	}

	nonce := record.NewNonce()
	var u undo
	defer func() { err = errors.Join(err, u.run(ctx)) }()
	id, err := createContainer(ctx, eng, &u, engine.ContainerSpec{
		Name: record.HelperName(nonce), Image: image, Labels: helperLabels(eng, nonce), NetworkMode: "none",
		Entrypoint: []string{wire.Path},
		Mounts:     []engine.Mount{{Type: "volume", Source: volume, Target: wire.Dir}},
	}, nonce)
	if err != nil {
		return err
	}
	for try := 0; ; try++ {
		stat, err := eng.StatPath(ctx, id, wire.Path)
		switch {
		case err == nil && stat.Size == size:
			return nil
		case err != nil && !errors.Is(err, engine.ErrNotFound):
			return err
		case try == 40:
			// Nobody is filling it any more. Write over what there is.
			binary, err := guest.Binary(arch)
			if err != nil {
				return err
			}
			return eng.CopyTo(ctx, id, wire.Dir, guestTar(binary, path.Base(wire.Path)))
		}
		// Another process may be in the middle of it.
		if err := pause(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
}

// importGuest makes an image of the binary alone.
func importGuest(ctx context.Context, eng *engine.Engine, arch, image string) error {
	binary, err := guest.Binary(arch)
	if err != nil {
		return err
	}
	labels := fmt.Sprintf("LABEL %s=true %s=%s %s=%s", record.Managed, record.Role, record.RoleGuest, record.Schema, record.SchemaVersion)
	return eng.ImportImage(ctx, image, guestTar(binary, wire.Path), []string{labels})
}

// dropUntagged removes images of the guest that another import took the tag from. One
// that is in use goes with its user's own call.
func dropUntagged(ctx context.Context, eng *engine.Engine) error {
	ctx, cancel := context.WithTimeout(ctx, closeMargin)
	defer cancel()
	images, err := eng.ListImages(ctx, record.Filter(record.Managed, "true"), record.Filter(record.Role, record.RoleGuest))
	if err != nil {
		return err
	}
	var errs []error
	for _, i := range images {
		if len(i.Tags) > 0 {
			continue
		}
		err := eng.RemoveImage(ctx, i.ID, false)
		if !errors.Is(err, engine.ErrNotFound) && !errors.Is(err, engine.ErrConflict) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// guestTar is an archive of the binary alone.
func guestTar(binary []byte, name string) io.Reader {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	// Nothing here can fail: the header is ours and a buffer takes everything.
	w.WriteHeader(&tar.Header{Name: strings.TrimPrefix(name, "/"), Mode: 0o755, Size: int64(len(binary)), ModTime: time.Unix(0, 0)})
	w.Write(binary)
	w.Close()
	return &b
}
