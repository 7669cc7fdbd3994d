package sandbox_test

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
)

// C8.1.
func TestHealthyEngineTellsItsVersion(t *testing.T) {
	h, err := newClient(t).CheckHealth(t.Context())
	if err != nil || !h.Healthy || h.Guidance != "" {
		t.Fatalf("CheckHealth = %+v, %v; want a healthy engine", h, err)
	}
	if h.Version == "" || h.APIVersion == "" || h.Kernel == "" || h.CPUs < 1 || h.Memory < 1 || h.Host == "" {
		t.Errorf("CheckHealth = %+v; want versions and sizes", h)
	}
}

// C8.2.
func TestMissingEngineIsGuidance(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "none.sock")
	h, err := newClient(t, sandbox.WithHost("unix://"+socket)).CheckHealth(t.Context())
	if err != nil || h.Healthy {
		t.Fatalf("CheckHealth = %+v, %v; want an unhealthy engine and no error", h, err)
	}
	for _, word := range []string{socket, "DOCKER_HOST"} {
		if !strings.Contains(h.Guidance, word) {
			t.Errorf("Guidance %q does not mention %s", h.Guidance, word)
		}
	}
}

// C8: bounded, also with a socket that accepts and never answers.
func TestHungEngineIsGuidanceInTime(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	began := time.Now()
	h, err := newClient(t, sandbox.WithHost("tcp://"+l.Addr().String())).CheckHealth(t.Context())
	if err != nil || h.Healthy || h.Guidance == "" {
		t.Errorf("CheckHealth = %+v, %v; want guidance", h, err)
	}
	if d := time.Since(began); d > 15*time.Second {
		t.Errorf("it took %v, and 5 s are the limit", d)
	}
}

func TestHealthEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := newClient(t).CheckHealth(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("CheckHealth = %v, want context.Canceled", err)
	}
}
