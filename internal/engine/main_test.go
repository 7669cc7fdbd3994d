package engine_test

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
)

// Everything the tests make carries the run's label.
var (
	runID    = strings.ToLower(rand.Text()[:12])
	runKey   = "enginetest.run"
	runLabel = runKey + "=" + runID
	image    = "enginetest-engine:" + runID
)

func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == "ssh" {
		os.Exit(fakeSSH())
	}
	if os.Getenv(unprivilegedHost) != "" {
		os.Exit(openUnprivileged())
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	flag.Parse()
	if testing.Short() { // no test needs an engine, see enginetest.Need
		return quietly(m.Run())
	}
	stop := enginetest.Watch()
	if err := makeImage(); err != nil {
		fmt.Fprintln(os.Stderr, "make the tests' image:", err)
		return 1
	}
	code := m.Run()
	if err := dropImage(); err != nil {
		fmt.Fprintln(os.Stderr, "remove the tests' image:", err)
		code = 1
	}
	left, err := enginetest.Leftovers(enginetest.WithLabel(runLabel))
	if err != nil || len(left) > 0 {
		fmt.Fprintln(os.Stderr, "left on the engine:", left, err)
		code = 1
	}
	stop()
	return quietly(code)
}

// quietly fails when a goroutine is left.
func quietly(code int) int {
	if err := goleak.Find(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	return code
}

func makeImage() error {
	dir, err := os.MkdirTemp("", "tool")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	e, err := engine.Open(context.Background(), engine.Options{})
	if err != nil {
		return err
	}
	defer e.Close()
	arch, err := e.Arch(context.Background())
	if err != nil {
		return err
	}
	build := exec.Command("go", "build", "-ldflags=-s -w", "-o", filepath.Join(dir, "tool"), "./testdata/tool")
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch)
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	tool, err := os.ReadFile(filepath.Join(dir, "tool"))
	if err != nil {
		return err
	}
	b := tarball(file{"tool", 0o755, string(tool)}, file{"etc/passwd", 0o644, "root:x:0:0::/:/\nuser:x:1000:1000::/:/\n"}, file{"tmp/keep", 0o644, ""})
	return e.ImportImage(context.Background(), image, bytes.NewReader(b), []string{
		"LABEL " + runLabel, `ENTRYPOINT ["/tool"]`, `CMD ["wait"]`, "ENV A=image", "USER user", "WORKDIR /tmp",
	})
}

func dropImage() error {
	e, err := engine.Open(context.Background(), engine.Options{})
	if err != nil {
		return err
	}
	defer e.Close()
	// Also those of commits that ended after the test that gave them up.
	left, err := e.ListImages(context.Background(), runLabel)
	if err != nil {
		return err
	}
	for _, i := range left {
		if err := e.RemoveImage(context.Background(), i.ID, true); err != nil && !errors.Is(err, engine.ErrNotFound) {
			return err
		}
	}
	return nil
}

type file struct {
	name    string
	mode    int64
	content string
}

func tarball(files ...file) []byte {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range files {
		_ = w.WriteHeader(&tar.Header{Name: f.name, Mode: f.mode, Size: int64(len(f.content)), ModTime: time.Unix(1e9, 0)})
		_, _ = w.Write([]byte(f.content))
	}
	_ = w.Close()
	return b.Bytes()
}

func open(t testing.TB) *engine.Engine {
	t.Helper()
	enginetest.Need(t)
	return openAt(t, "")
}

func openAt(t testing.TB, host string) *engine.Engine {
	t.Helper()
	e, err := engine.Open(t.Context(), engine.Options{Host: host})
	if err != nil {
		t.Fatalf("Open(%q): %v", host, err)
	}
	t.Cleanup(func() { _ = e.Close() })
	return e
}

// unique is a name for something of this test's.
func unique() string { return "enginetest-" + strings.ToLower(rand.Text()[:12]) }

func labels() map[string]string { return map[string]string{runKey: runID} }

// create makes a container that the test's end removes.
func create(t testing.TB, e *engine.Engine, s engine.ContainerSpec) (id, name string) {
	t.Helper()
	if s.Name == "" {
		s.Name = unique()
	}
	if s.Image == "" {
		s.Image = image
	}
	if s.Labels == nil {
		s.Labels = labels()
	}
	if s.NetworkMode == "" {
		s.NetworkMode = "none"
	}
	id, err := e.CreateContainer(t.Context(), s)
	if err != nil {
		t.Fatalf("CreateContainer(%q): %v", s.Name, err)
	}
	t.Cleanup(func() { dropContainer(t, id) })
	return id, s.Name
}

// start makes a container that runs.
func start(t testing.TB, e *engine.Engine, s engine.ContainerSpec) (id, name string) {
	t.Helper()
	id, name = create(t, e, s)
	if err := e.StartContainer(t.Context(), id); err != nil {
		t.Fatalf("StartContainer: %v", err)
	}
	return id, name
}

func dropContainer(t testing.TB, ref string) {
	t.Helper()
	cleanly(t, func(ctx context.Context, e *engine.Engine) error { return e.RemoveContainer(ctx, ref, true) })
}

func dropVolume(t testing.TB, name string) {
	t.Helper()
	cleanly(t, func(ctx context.Context, e *engine.Engine) error { return e.RemoveVolume(ctx, name, true) })
}

// cleanly removes something with an engine of its own, whatever became of the
// test's.
func cleanly(t testing.TB, remove func(context.Context, *engine.Engine) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	e, err := engine.Open(ctx, engine.Options{Host: realHost})
	if err != nil {
		t.Errorf("clean up: %v", err)
		return
	}
	defer e.Close()
	for {
		err := remove(ctx, e)
		if errors.Is(err, engine.ErrConflict) && ctx.Err() == nil {
			// A removal under way, or a volume's container is on its way out.
			time.Sleep(50 * time.Millisecond)
			continue
		}
		if err != nil && !errors.Is(err, engine.ErrNotFound) {
			t.Errorf("clean up: %v", err)
		}
		return
	}
}

// realHost is the engine under test, remembered before tests change the
// environment.
var realHost = os.Getenv("DOCKER_HOST")

// dialEngine connects to the real engine's socket.
func dialEngine() (net.Conn, error) {
	host := realHost
	if host == "" {
		host = "unix:///var/run/docker.sock"
	}
	network, addr, _ := strings.Cut(host, "://")
	return net.Dial(network, addr)
}

func volume(t testing.TB, e *engine.Engine) engine.Volume {
	t.Helper()
	v, err := e.CreateVolume(t.Context(), unique(), labels())
	if err != nil {
		t.Fatalf("CreateVolume: %v", err)
	}
	t.Cleanup(func() { dropVolume(t, v.Name) })
	return v
}

var classes = map[string]error{
	"not found": engine.ErrNotFound, "conflict": engine.ErrConflict, "invalid": engine.ErrInvalid,
	"unavailable": engine.ErrUnavailable, "forbidden": engine.ErrForbidden, "unsupported": engine.ErrUnsupported,
	"canceled": context.Canceled, "deadline": context.DeadlineExceeded,
}

// wantClass checks that err is of class and of no other.
func wantClass(t testing.TB, what string, err, class error) {
	t.Helper()
	if err == nil {
		t.Errorf("%s: got no error, want %v", what, class)
		return
	}
	for name, c := range classes {
		if got, want := errors.Is(err, c), c == class; got != want {
			t.Errorf("%s: errors.Is(%v, %s) = %v, want %v", what, err, name, got, want)
		}
	}
}

// eventually waits for a state.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(5 * time.Minute); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("still not: %s", what)
		}
	}
}

func readAll(t testing.TB, r io.Reader) string {
	t.Helper()
	b, err := io.ReadAll(r)
	if err != nil {
		t.Fatalf("read: %v", err)
	}
	return string(b)
}
