package harness

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/claim"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
	"github.com/seed-1a2d6d8f/sandbox/internal/machine"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/internal/store"
)

// AskPID1 makes one request to PID 1 of the sandbox's session. It uses no handle, because
// a handle would start the session.
func AskPID1(ctx context.Context, eng *engine.Engine, name string, req wire.Control) (wire.Reply, error) {
	got, err := eng.InspectContainer(ctx, record.ContainerName(name))
	if err != nil {
		return wire.Reply{}, err
	}
	rec, _ := record.Decode(got.Labels)
	stream, err := eng.Exec(ctx, got.ID, engine.ExecSpec{Argv: []string{machine.GuestPath(rec.Settings), wire.VerbServe}, User: "0:0", Dir: "/", Stdin: true})
	if err != nil {
		return wire.Reply{}, err
	}
	conn, err := guest.Dial(ctx, stream)
	if err != nil {
		return wire.Reply{}, err
	}
	defer conn.Close()
	return conn.Control(ctx, ed25519.NewKeyFromSeed(rec.ControlKey), req)
}

// LeaseOf is how long the lease of the sandbox's session lasts; 0 is none.
func LeaseOf(t *testing.T, eng *engine.Engine, name string) time.Duration {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Second) {
		reply, err := AskPID1(t.Context(), eng, name, wire.Control{Op: wire.OpStatus})
		if err == nil {
			return reply.LeaseLeft
		}
		// On a busy engine an exec can fail though the container runs.
		got, e := eng.InspectContainer(t.Context(), record.ContainerName(name))
		if e != nil || got.State != engine.StateRunning || time.Now().After(deadline) {
			t.Fatalf("ask PID 1 of %s: %v; its container is %s (%d), %v", name, err, got.State, got.ExitCode, e)
		}
	}
}

// Renewed waits until a handle has renewed the lease of each of these sandboxes' sessions.
func Renewed(t *testing.T, eng *engine.Engine, names ...string) {
	t.Helper()
	left := map[string]time.Duration{}
	for deadline := time.Now().Add(CallBound); ; time.Sleep(2 * time.Second) {
		names = slices.DeleteFunc(names, func(name string) bool {
			was, seen := left[name]
			left[name] = LeaseOf(t, eng, name)
			return seen && left[name] > was
		})
		if len(names) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the leases of %q are not renewed: they have %v left", names, left)
		}
	}
}

// inspectRaw is what the engine says of a sandbox's container.
type inspectRaw struct {
	ID     string
	Config struct {
		Image       string
		StopSignal  string
		StopTimeout int
		Healthcheck struct{ Test []string }
		Entrypoint  []string
		Env         []string
		Labels      map[string]string
	}
	HostConfig struct {
		NanoCPUs, Memory, MemorySwap, PidsLimit int64
		RestartPolicy                           struct{ Name string }
		CapAdd, CapDrop                         []string
		Privileged                              bool
	}
	State struct {
		Status     string
		ExitCode   int
		StartedAt  string
		FinishedAt time.Time
		OOMKilled  bool
	}
}

// Raw is what the engine says of the sandbox's container.
func Raw(t *testing.T, sb *sandbox.Sandbox) (r inspectRaw) {
	t.Helper()
	enginetest.Get(t, "/containers/"+record.ContainerName(sb.Name())+"/json", &r)
	return r
}

// How long a test waits, on the slowest of machines.
const (
	CallBound = 5 * time.Minute // for an operation, whatever happens to one of its calls
	GoneBound = 2 * time.Minute // for what an operation leaves to others
)

// Late is what may outlive its trial, as long as a lease, and no longer.
type Late struct {
	mu    sync.Mutex
	names []string
	until time.Time // when what they left is over
}

// WithoutMounts is the entrypoint of a sandbox's container for PID 1 of a container that lacks the sandbox's mounts.
func WithoutMounts(t *testing.T, entrypoint []string) []string {
	t.Helper()
	var boot wire.Init
	if err := json.Unmarshal([]byte(entrypoint[2]), &boot); err != nil {
		t.Fatal(err)
	}
	boot.Mounts = nil
	config, err := json.Marshal(boot)
	if err != nil {
		t.Fatal(err)
	}
	return append(slices.Clone(entrypoint[:2]), string(config))
}

// Pause pauses a container. A busy runtime may fail to freeze its processes, and does it when asked again.
func Pause(t *testing.T, eng *engine.Engine, container string) {
	t.Helper()
	Eventually(t, container+" is paused", func() bool { return eng.PauseContainer(t.Context(), container) == nil })
}

// NewEngine is a connection to the engine beside the library.
func NewEngine(t *testing.T) *engine.Engine {
	t.Helper()
	enginetest.Need(t)
	eng, err := engine.Open(t.Context(), engine.Options{})
	if err != nil {
		t.Fatalf("engine.Open: %v", err)
	}
	t.Cleanup(func() { eng.Close() })
	return eng
}

// StartContainer starts a container beside the library's, and removes it when the test ends.
func StartContainer(t *testing.T, eng *engine.Engine, spec engine.ContainerSpec) (id string) {
	t.Helper()
	id, err := eng.CreateContainer(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := eng.RemoveContainer(context.Background(), id, true); err != nil {
			t.Error(err)
		}
	})
	if err := eng.StartContainer(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	return id
}

// Objects names what the engine has of a sandbox, whatever its state.
func Objects(t testing.TB, eng *engine.Engine, label string) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	labels := []string{record.Filter(record.Managed, "true"), label}
	containers, err := eng.ListContainers(ctx, engine.Filter{Labels: labels})
	if err != nil {
		t.Fatalf("list containers: %v", err)
	}
	volumes, err := eng.ListVolumes(ctx, labels...)
	if err != nil {
		t.Fatalf("list volumes: %v", err)
	}
	var found []string
	for _, got := range containers {
		found = append(found, fmt.Sprintf("container %s (%s)", got.Name, got.State))
	}
	for _, v := range volumes {
		found = append(found, "volume "+v.Name)
	}
	return found
}

// Named is the filter for what belongs to the sandbox of that name.
func Named(name string) string { return record.Filter(record.Name, name) }

// NewStore is what a client keeps of the engine at host, "" for the engine of the tests.
func NewStore(t testing.TB, host string) *store.Store {
	t.Helper()
	s, err := openStore(host)
	if err != nil {
		t.Fatalf("engine.Open: %v", err)
	}
	t.Cleanup(func() { s.Engine.Close() })
	return s
}

func openStore(host string) (*store.Store, error) {
	eng, err := engine.Open(context.Background(), engine.Options{Host: host})
	if err != nil {
		return nil, err
	}
	return &store.Store{Engine: eng, Log: slog.New(slog.DiscardHandler)}, nil
}

// Sweep removes what crashed programs left, at once and not when it is due.
func Sweep(t testing.TB) {
	t.Helper()
	s := NewStore(t, "")
	sweepNow(t, s)
	s.Engine.Close()
}

func sweepNow(t testing.TB, s *store.Store) {
	t.Helper()
	if err := sweepOf(s); err != nil {
		t.Fatalf("list for a sweep: %v", err)
	}
}

func sweepOf(s *store.Store) error {
	all, err := s.List(context.Background())
	if err == nil {
		s.Sweep(context.Background(), all, nil)
	}
	return err
}

// Gone checks that nothing of the sandbox is left, after one sweep at the most.
func Gone(t testing.TB, clean *sandbox.Client, eng *engine.Engine, name string) bool {
	t.Helper()
	if len(Objects(t, eng, Named(name))) == 0 {
		return true
	}
	// Another client's sweep may be at the same object just now. One that takes half of a sweep's time may have
	// left some to the next, as on a busy machine.
	complete := false
	for deadline := time.Now().Add(GoneBound); ; time.Sleep(50 * time.Millisecond) {
		if !complete {
			began := time.Now()
			sweepNow(t, &store.Store{Engine: eng, Log: slog.New(slog.DiscardHandler)})
			complete = time.Since(began) < 10*time.Second
		}
		left := Objects(t, eng, Named(name))
		if len(left) == 0 {
			return true
		}
		if time.Now().After(deadline) {
			t.Errorf("left of %q after a sweep: %s", name, strings.Join(left, ", "))
			return false
		}
	}
}

// Add notes what is left from now on.
func (l *Late) Add(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.names = append(l.names, name)
	l.until = time.Now().Add(claim.Lease + time.Second)
}

// Check waits until the leases are over and sees everything go in one sweep.
func (l *Late) Check(t *testing.T, clean *sandbox.Client, eng *engine.Engine) {
	t.Helper()
	for deadline := time.Now().Add(claim.Lease + GoneBound); ; time.Sleep(200 * time.Millisecond) {
		var living []string // one whose start failed is left for the sweep
		for _, name := range l.names {
			got, err := eng.InspectContainer(context.Background(), record.ContainerName(name))
			if errors.Is(err, engine.ErrNotFound) || err == nil && !got.HasSession() && got.State != engine.StateRemoving {
				continue
			}
			living = append(living, fmt.Sprintf("%s (%s, %v)", name, got.State, err))
		}
		if len(living) == 0 && time.Now().After(l.until) {
			break
		}
		if time.Now().After(deadline) {
			t.Errorf("%v after their handles: %q still run", claim.Lease+GoneBound, living)
			break
		}
	}
	for _, name := range l.names {
		Gone(t, clean, eng, name)
		RemoveNow(t, clean, name)
	}
}

// NoHelpers checks that no helper container stays that was made since then and is mine by its
// name or by the name of its sandbox, which may be empty. Those of others come and go, and a
// program that another test kills leaves one until a sweep.
func NoHelpers(t *testing.T, eng *engine.Engine, since time.Time, mine func(name, of string) bool) {
	t.Helper()
	helper := record.Filter(record.Role, record.RoleHelper)
	list, err := eng.ListContainers(t.Context(), engine.Filter{Labels: []string{helper}})
	if err != nil {
		t.Fatalf("list helpers: %v", err)
	}
	for deadline := time.Now().Add(GoneBound); ; time.Sleep(50 * time.Millisecond) {
		list = slices.DeleteFunc(list, func(got engine.Container) bool {
			_, err := eng.InspectContainer(t.Context(), got.ID)
			return errors.Is(err, engine.ErrNotFound) || got.CreatedAt.Before(since.Add(-2*time.Second)) || !mine(got.Name, got.Labels[record.Name])
		})
		if len(list) == 0 {
			return
		}
		if time.Now().After(deadline) {
			for _, got := range list {
				t.Errorf("helper %s of %q, %v, is left", got.Name, got.Labels[record.Name], got.CreatedAt)
			}
			return
		}
	}
}

// StrayImages are images that we made of sandboxes that are gone.
func StrayImages(t *testing.T, eng *engine.Engine) (refs []string) {
	t.Helper()
	images, err := eng.ListImages(t.Context())
	if err != nil {
		t.Fatalf("list images: %v", err)
	}
	for _, image := range images {
		unused := func() bool {
			users, err := eng.ListContainers(t.Context(), engine.Filter{Labels: []string{OfNonce(image.Labels[record.Nonce])}})
			return err == nil && len(users) == 0
		}
		if len(image.Tags) == 0 && record.Is(image.Labels, record.RoleLayer, record.RoleFrozen) && unused() {
			refs = append(refs, image.ID)
		}
		for _, ref := range image.Tags {
			if id, is := strings.CutPrefix(ref, record.SnapshotImage("")); is {
				if _, err := eng.InspectVolume(t.Context(), record.FrozenName(id, 0)); errors.Is(err, engine.ErrNotFound) {
					refs = append(refs, ref)
				}
			}
			if record.IsLayer(ref) && unused() {
				refs = append(refs, ref)
			}
		}
	}
	return refs
}

// NoImages checks that there are no stray images but those there were before. An image
// comes before what it is for, and goes after that.
func NoImages(t *testing.T, eng *engine.Engine, before []string) {
	t.Helper()
	left := slices.DeleteFunc(StrayImages(t, eng), func(ref string) bool { return slices.Contains(before, ref) })
	for deadline := time.Now().Add(GoneBound); len(left) > 0; time.Sleep(100 * time.Millisecond) {
		now := StrayImages(t, eng)
		left = slices.DeleteFunc(left, func(ref string) bool { return !slices.Contains(now, ref) })
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Errorf("images are left: %q", left)
			return
		}
	}
}

// OfNonce is the filter for what was made under that nonce.
func OfNonce(nonce string) string { return record.Filter(record.Nonce, nonce) }

// Layers are the images that belong to the sandbox alone.
func Layers(t testing.TB, eng *engine.Engine, name string) []engine.Image {
	t.Helper()
	got, err := eng.InspectContainer(context.Background(), "agent-sandbox-"+name)
	if err != nil {
		t.Fatal(err)
	}
	images, err := eng.ListImages(context.Background(), "agent-sandbox.nonce="+got.Labels["agent-sandbox.nonce"])
	if err != nil {
		t.Fatal(err)
	}
	return images
}

// Image imports an archive as an image, which is removed when the test ends.
func Image(t *testing.T, content []byte, changes ...string) (ref string) {
	t.Helper()
	eng := NewEngine(t)
	ref = "agent-sandbox-test:" + UniqueName(t)
	if err := eng.ImportImage(t.Context(), ref, bytes.NewReader(content), changes); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := eng.RemoveImage(ctx, ref, true); err != nil {
			t.Errorf("remove image: %v", err)
		}
	})
	return ref
}

// SmallImage imports an image with next to nothing in it: on some storage drivers a
// commit walks through all that an image has.
func SmallImage(t *testing.T, changes ...string) string {
	t.Helper()
	eng := NewEngine(t)
	ref := "agent-sandbox-test:" + UniqueName(t)
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	w.WriteHeader(&tar.Header{Name: "srv/", Typeflag: tar.TypeDir, Mode: 0o755})
	w.Close()
	if err := eng.ImportImage(t.Context(), ref, &b, changes); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := eng.RemoveImage(context.Background(), ref, false); err != nil {
			t.Errorf("RemoveImage: %v", err)
		}
	})
	return ref
}
