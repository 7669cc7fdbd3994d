package machine

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/bound"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/errdefs"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/internal/store"
)

// A Guest is our program on an engine: a volume with the binary, and the image it was
// filled from. Seccomp is the profile of what it runs, as an option of the engine; empty is the
// engine's own.
type Guest struct{ volume, image, seccomp string }

// SecurityOpt returns the security options of a sandbox's container.
func (g Guest) SecurityOpt() []string {
	if g.seccomp == "" {
		return nil
	}
	return []string{"seccomp=" + g.seccomp}
}

// Mount returns the mount of the guest in a container, at dir.
func (g Guest) Mount(dir string) engine.Mount {
	return engine.Mount{
		Type: "volume", Source: g.volume, Target: dir, ReadOnly: true, NoCopy: true,
		VolumeLabels: guestLabels(time.Time{}),
	}
}

// NewGuestDir returns a directory for the guest in one container. It is random: nothing in the
// container can have a link that leads there.
func NewGuestDir() string { return wire.Dir + "-" + record.NewNonce() }

// guestDir returns the directory of the guest in a sandbox's present container.
func guestDir(s record.SandboxSettings) string { return cmp.Or(s.Guest, wire.Dir) }

// GuestPath returns the guest's path in a sandbox's present container.
func GuestPath(s record.SandboxSettings) string { return path.Join(guestDir(s), wire.Program) }

func guestLabels(at time.Time) map[string]string { return record.Base(record.RoleGuest, "", at) }

func (m *Machine) knownGuest() Guest {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.guest
}

func (m *Machine) setGuest(g Guest) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.guest = g
}

// EnsureGuest places the guest on the engine, once for a client, and reads it there once for a
// process. All sandboxes of the engine share it. It is named by its content and stays there.
func (m *Machine) EnsureGuest(ctx context.Context, report *Reporter) (Guest, error) {
	release, err := m.placing.Acquire(ctx)
	if err != nil {
		return Guest{}, err
	}
	defer release()
	if g := m.knownGuest(); g != (Guest{}) {
		return g, nil
	}
	arch, hash, err := m.guestHash(ctx)
	if err != nil {
		return Guest{}, err
	}
	profile, err := m.Engine.SandboxSeccomp(ctx)
	if err != nil {
		return Guest{}, err
	}
	report.Report(Progress{Step: "guest"})
	g := Guest{volume: record.GuestName(hash), image: record.GuestImage(hash), seccomp: profile}
	var file entry
	if m.Engine.Podman() && profile != "" { // it takes the path of a file of its machine, and no profile
		file = profileFile(profile)
	}
	dir, err := m.placeGuest(ctx, arch, g.volume, g.image, file)
	if err != nil {
		return Guest{}, fmt.Errorf("place the guest: %w", err)
	}
	if file.name != "" {
		g.seccomp = path.Join(dir, file.name)
	}
	m.setGuest(g)
	return g, nil
}

// guestHash returns the platform of the engine and the hash of the guest for it.
func (m *Machine) guestHash(ctx context.Context) (arch, hash string, err error) {
	if arch, err = m.Engine.Arch(ctx); err != nil {
		return "", "", err
	}
	if hash, err = guest.Hash(arch); err != nil {
		return "", "", errdefs.Classify(errdefs.Unsupported, err)
	}
	return arch, hash, nil
}

// guestImage returns the name of the image that helpers are made from, which may be missing.
func (m *Machine) guestImage(ctx context.Context) (string, error) {
	_, hash, err := m.guestHash(ctx)
	return record.GuestImage(hash), err
}

// profileFile returns the file for a seccomp profile in the guest's volume. Other versions of this
// package may have another one there.
func profileFile(profile string) entry {
	content := []byte(profile)
	return entry{fmt.Sprintf("seccomp-%.6x.json", sha256.Sum256(content)), 0o644, content}
}

// placeGuest places the guest in the volume, with the file if that is not empty, and returns the
// volume's directory on the engine's machine.
func (m *Machine) placeGuest(ctx context.Context, arch, volume, image string, file entry) (dir string, err error) {
	_, err = m.Engine.InspectImage(ctx, image)
	if errors.Is(err, engine.ErrNotFound) {
		err = m.loadGuest(ctx, arch, image)
	}
	if err != nil {
		return "", err
	}
	got, err := m.Engine.CreateVolume(ctx, volume, guestLabels(m.Engine.Now()))
	if err != nil {
		return "", err
	}
	if !record.Is(got.Labels, record.RoleGuest) {
		return "", &record.ForeignError{Kind: "volume", Object: volume}
	}
	if _, done := verified.Load(m.place(got)); !done {
		err = m.fillGuest(ctx, arch, got, image, file)
	}
	return got.Mountpoint, err
}

// fillGuest fills the volume from an image that holds the binary alone. The engine copies
// it when it creates a container with both. That container is never started, and serves to
// check that the copy is complete.
func (m *Machine) fillGuest(ctx context.Context, arch string, volume engine.Volume, image string, file entry) (err error) {
	size, err := guest.Size(arch)
	if err != nil {
		return err
	}
	nonce := record.NewNonce()
	var u store.Undo
	defer func() { err = errors.Join(err, u.Run(ctx)) }()
	id, err := m.Store.CreateContainer(ctx, &u, engine.ContainerSpec{
		Name: record.HelperName(nonce), Image: image, Labels: m.Store.HelperLabels(nonce), NetworkMode: "none",
		Entrypoint: []string{wire.Path},
		Mounts:     []engine.Mount{{Type: "volume", Source: volume.Name, Target: wire.Dir}},
	}, nonce)
	if err != nil {
		return err
	}
	if err := m.completeGuest(ctx, id, arch, size); err != nil {
		return err
	}
	sum, err := guest.Sum(arch)
	if err != nil {
		return err
	}
	if err := m.verifyFile(ctx, id, wire.Path, sum, func() error { return m.writeGuest(ctx, id, arch) }); err != nil {
		return err
	}
	if file.name != "" {
		sum := fmt.Sprintf("%x", sha256.Sum256(file.content))
		write := func() error { return m.writeFile(ctx, id, file) }
		if err := m.verifyFile(ctx, id, path.Join(wire.Dir, file.name), sum, write); err != nil {
			return err
		}
	}
	verified.Store(m.place(volume), nil)
	return nil
}

// completeGuest waits until the binary in a container is complete, which another process may
// be copying. If that process has died it writes the binary.
func (m *Machine) completeGuest(ctx context.Context, id, arch string, size int64) error {
	try := 0
	return bound.Poll(ctx, store.PollEvery, func() (done bool, err error) {
		stat, err := m.Engine.StatPath(ctx, id, wire.Path)
		switch {
		case err == nil && stat.Size == size:
			return true, nil
		case err != nil && !errors.Is(err, engine.ErrNotFound):
			return true, err
		case try == 40:
			return true, m.writeGuest(ctx, id, arch)
		}
		try++
		return false, nil
	})
}

func (m *Machine) writeGuest(ctx context.Context, id, arch string) error {
	binary, err := guest.Binary(arch)
	if err != nil {
		return err
	}
	return m.writeFile(ctx, id, entry{path.Base(wire.Path), 0o755, binary})
}

// writeFile writes a file of the guest's volume. Podman fails ("file exists") if another program writes
// the same one at that moment: one of them succeeds with each try.
func (m *Machine) writeFile(ctx context.Context, id string, file entry) error {
	for try := 1; ; try++ {
		err := m.Engine.CopyTo(ctx, id, wire.Dir, bytes.NewReader(guestTar(file)))
		if err == nil || try == 5 || errors.Is(err, engine.ErrUnavailable) || bound.Sleep(ctx, store.PollEvery) != nil {
			return err
		}
	}
}

// verified are the guests' volumes that this process has read and found to hold the guest, by
// place: reading one takes a container and transfers the binary, some 10 MB.
var verified sync.Map

// place is one volume of one engine.
func (m *Machine) place(volume engine.Volume) [3]string {
	return [...]string{m.Engine.Key(), volume.Name, volume.Labels[record.CreatedAt]}
}

// verifyFile compares a whole file of the guest's volume, in a container, with what it has to be, and
// writes it if it differs. Anybody who may write to the engine's volumes can change it.
func (m *Machine) verifyFile(ctx context.Context, id, name, sum string, write func() error) error {
	got, err := m.sumOf(ctx, id, name)
	if err == nil && got != sum {
		if got != "" {
			m.Log.Warn("a file of the guest's volume had another content and is written again", "file", path.Base(name))
		}
		if err = write(); err == nil {
			got, err = m.sumOf(ctx, id, name)
		}
	}
	if err == nil && got != sum {
		err = fmt.Errorf("the guest's volume does not hold %s: another program changes it", path.Base(name))
	}
	return err
}

// sumOf returns the SHA-256 of a file in a container, empty if there is none.
func (m *Machine) sumOf(ctx context.Context, id, name string) (string, error) {
	files, content, header, err := m.Engine.OpenArchive(ctx, id, name)
	if errors.Is(err, engine.ErrNotFound) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	defer files.Close()
	if header.Typeflag != tar.TypeReg {
		return "other", nil
	}
	hash := sha256.New()
	if _, err := io.Copy(hash, content); err != nil {
		return "", err
	}
	return fmt.Sprintf("%x", hash.Sum(nil)), nil
}

// loadGuest loads an image of the binary alone. Its ID follows from its content, so
// concurrent loads result in one image.
func (m *Machine) loadGuest(ctx context.Context, arch, ref string) error {
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
	return m.Engine.LoadImage(ctx, bytes.NewReader(archive))
}

type entry struct {
	name    string
	mode    int64
	content []byte
}

// guestTar returns an archive of the files. The same files give the same archive.
func guestTar(files ...entry) []byte {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range files {
		// Nothing here can fail: the headers are valid and a buffer accepts everything.
		w.WriteHeader(&tar.Header{Name: strings.TrimPrefix(f.name, "/"), Mode: f.mode, Size: int64(len(f.content)), ModTime: time.Unix(0, 0)})
		w.Write(f.content)
	}
	w.Close()
	return b.Bytes()
}

// PruneGuests removes guests of other versions, and reports each. The engine keeps those in
// use; a check before would miss a sandbox that is created in between.
func (m *Machine) PruneGuests(ctx context.Context, volumes []engine.Volume, report func(string, error)) error {
	_, hash, err := m.guestHash(ctx)
	if err != nil {
		return err
	}
	try := func(object string, err error) {
		if !errors.Is(err, engine.ErrNotFound) && !errors.Is(err, engine.ErrConflict) {
			report(object, err)
		}
	}
	for _, v := range volumes {
		if record.Is(v.Labels, record.RoleGuest) && v.Name != record.GuestName(hash) {
			try("volume "+v.Name, m.Engine.RemoveVolume(ctx, v.Name, false))
		}
	}
	images, err := m.Engine.ListImages(ctx, record.Filter(record.Managed, "true"), record.Filter(record.Role, record.RoleGuest))
	if err != nil {
		return err
	}
	for _, i := range images {
		ref := i.ID
		if len(i.Tags) > 0 {
			ref = i.Tags[0]
		}
		if !slices.Contains(i.Tags, record.GuestImage(hash)) {
			try("image "+ref, m.Engine.RemoveImage(ctx, ref, false))
		}
	}
	return nil
}
