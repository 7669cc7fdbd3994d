package lifecycle_test

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

func TestHealthyEngineTellsItsVersion(t *testing.T) {
	h, err := harness.NewClient(t).CheckHealth(t.Context())
	if err != nil || !h.Healthy || h.Guidance != "" {
		t.Fatalf("CheckHealth = %+v, %v; want a healthy engine", h, err)
	}
	if h.Version == "" || h.APIVersion == "" || h.Kernel == "" || h.CPUs < 1 || h.Memory < 1 || h.Host == "" {
		t.Errorf("CheckHealth = %+v; want versions and sizes", h)
	}
}

func TestMissingEngineIsGuidance(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "none.sock")
	h, err := harness.Unconnected(t, sandbox.WithHost("unix://"+socket)).CheckHealth(t.Context())
	if err != nil || h.Healthy {
		t.Fatalf("CheckHealth = %+v, %v; want an unhealthy engine and no error", h, err)
	}
	for _, word := range []string{socket, "DOCKER_HOST"} {
		if !strings.Contains(h.Guidance, word) {
			t.Errorf("Guidance %q does not mention %s", h.Guidance, word)
		}
	}
}

// CheckHealth is bounded, also with a socket that accepts and never answers.
func TestHungEngineIsGuidanceInTime(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	began := time.Now()
	h, err := harness.Unconnected(t, sandbox.WithHost("tcp://"+l.Addr().String())).CheckHealth(t.Context())
	if err != nil || h.Healthy || h.Guidance == "" {
		t.Errorf("CheckHealth = %+v, %v; want guidance", h, err)
	}
	if d := time.Since(began); d > time.Minute {
		t.Errorf("it took %v, and 5 s are the limit", d)
	}
}

// An engine that has locked up says what it is, and starts nothing.
func TestEngineThatHasLockedUpIsGuidance(t *testing.T) {
	t.Parallel()
	p := enginetest.NewProxy(t)
	c := harness.NewClient(t, sandbox.WithHost(p.Host()))
	p.ArmAt("/networks", enginetest.Stall, nil)
	h, err := c.CheckHealth(t.Context())
	if err != nil || h.Healthy || h.Version == "" || !strings.Contains(h.Guidance, "locked up") || !strings.Contains(h.Guidance, "Restart") {
		t.Errorf("CheckHealth = %+v, %v; want guidance to restart it", h, err)
	}
	if h, err := c.CheckHealth(t.Context()); err != nil || !h.Healthy {
		t.Errorf("CheckHealth afterwards = %+v, %v", h, err)
	}
}

// What is said can be had, and what is not cannot.
func TestSupportIsWhatSandboxesCanHave(t *testing.T) {
	t.Parallel()
	c := harness.NewClient(t)
	got, err := c.CheckSupport(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	sb := harness.NewSandbox(t, sandbox.WithNetworkPolicy(sandbox.DenyAll()))
	if got.NetworkPolicy != nil {
		t.Errorf("no network policies here, says CheckSupport: %v; and there is one", got.NetworkPolicy)
	}
	err = sb.Command(t.Context(), "sh", "-c", "head -c 65536 /dev/zero >a && cp --reflink=always a b").Run()
	if (got.Reflink == nil) != (err == nil) || got.Reflink != nil && !errors.Is(got.Reflink, sandbox.ErrUnsupported) {
		t.Errorf("CheckSupport says of reflinks %v, and cp %v", got.Reflink, err)
	}
	if !slices.Contains(got.Runtimes, "runc") {
		t.Errorf("runtimes %q, without runc", got.Runtimes)
	}

	p := enginetest.NewProxy(t)
	c = harness.NewClient(t, sandbox.WithHost(p.Host()))
	if _, err := c.CheckSupport(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.Arm(0, enginetest.None, nil)
	if again, err := c.CheckSupport(t.Context()); err != nil || (again.Reflink == nil) != (got.Reflink == nil) {
		t.Errorf("CheckSupport again = %+v, %v; want %+v", again, err, got)
	}
	for _, call := range p.Calls() {
		if strings.HasPrefix(call, "POST") {
			t.Errorf("it was tried out again: %s", call)
		}
	}
}

// How files come into forks and sandboxes from snapshots; of overlays the first one that can't be
// mounted tells.
func TestSupportTellsHowFilesAreCopied(t *testing.T) {
	t.Parallel()
	proxy := enginetest.NewProxy(t)
	proxy.HideLayers()
	proxy.RefuseOverlays()
	c, direct := harness.NewClient(t, sandbox.WithHost(proxy.Host())), harness.NewClient(t)
	if s, err := direct.CheckSupport(t.Context()); err != nil || s.Layers != nil || s.SharedFiles != nil {
		t.Errorf("CheckSupport = %+v, %v; want layers and shared files", s, err)
	}
	if s, err := c.CheckSupport(t.Context()); err != nil || !errors.Is(s.Layers, sandbox.ErrUnsupported) || s.SharedFiles != nil {
		t.Errorf("CheckSupport with another storage driver = %+v, %v; want Layers to be an ErrUnsupported", s, err)
	}
	source := harness.CreateWith(t, direct, nil)
	harness.CreateWith(t, c, nil, sandbox.WithSource(sandbox.FromSnapshot(harness.SnapshotOf(t, c, source, sandbox.SnapshotOptions{}).ID)))
	if s, err := c.CheckSupport(t.Context()); err != nil || !errors.Is(s.SharedFiles, sandbox.ErrUnsupported) {
		t.Errorf("CheckSupport after an overlay was refused = %+v, %v; want SharedFiles to be an ErrUnsupported", s, err)
	}
}

func TestHealthEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := harness.NewClient(t).CheckHealth(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("CheckHealth = %v, want context.Canceled", err)
	}
}
