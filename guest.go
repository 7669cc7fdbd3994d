package sandbox

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"strings"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
)

// A guestVolume is the guest on one engine: a volume that holds the binary, and the
// image it was filled from.
type guestVolume struct{ name, image string }

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
	g := guestVolume{record.GuestName(hash), record.GuestImage(hash)}
	if err := placeGuest(ctx, eng, arch, g.name, g.image); err != nil {
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
		err = loadGuest(ctx, eng, arch, image)
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
			return eng.CopyTo(ctx, id, wire.Dir, bytes.NewReader(guestTar(entry{path.Base(wire.Path), 0o755, binary})))
		}
		// Another process may be in the middle of it.
		if err := pause(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
}

// loadGuest makes an image of the binary alone. Its ID follows from its content, so
// any number may do it at once and there is one image.
func loadGuest(ctx context.Context, eng *engine.Engine, arch, ref string) error {
	binary, err := guest.Binary(arch)
	if err != nil {
		return err
	}
	layer := guestTar(entry{wire.Path, 0o755, binary})
	labels := record.Base(record.RoleGuest, "", time.Time{})
	config, err := json.Marshal(map[string]any{
		"architecture": arch, "os": "linux", "created": time.Time{},
		"config": map[string]any{"Labels": labels},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{fmt.Sprintf("sha256:%x", sha256.Sum256(layer))}},
	})
	if err != nil {
		return err
	}
	manifest, err := json.Marshal([]map[string]any{{
		"Config": "config.json", "RepoTags": []string{ref}, "Layers": []string{"layer.tar"},
	}})
	if err != nil {
		return err
	}
	archive := guestTar(entry{"layer.tar", 0o644, layer}, entry{"config.json", 0o644, config}, entry{"manifest.json", 0o644, manifest})
	return eng.LoadImage(ctx, bytes.NewReader(archive))
}

type entry struct {
	name    string
	mode    int64
	content []byte
}

// guestTar is an archive of files, the same for the same files.
func guestTar(files ...entry) []byte {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range files {
		// Nothing here can fail: the headers are ours and a buffer takes everything.
		w.WriteHeader(&tar.Header{Name: strings.TrimPrefix(f.name, "/"), Mode: f.mode, Size: int64(len(f.content)), ModTime: time.Unix(0, 0)})
		w.Write(f.content)
	}
	w.Close()
	return b.Bytes()
}
