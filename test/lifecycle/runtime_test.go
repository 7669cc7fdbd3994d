package lifecycle_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// runtimeMessage is longer than the line that the guest would begin with.
var runtimeMessage = "OCI runtime exec failed: exec failed: unable to start container process: error executing setns process: " +
	strings.Repeat("exit status 1: ", 15) + "resource busy: unknown"

// outOfKeys is its message when the user of the containers has no kernel key left.
const outOfKeys = "OCI runtime exec failed: exec failed: unable to start container process: " +
	"unable to join session keyring: unable to create session key: disk quota exceeded"

// failingExecs is an engine whose runtime fails to start the first n execs: it prints its message in
// place of their output, and they end with that exit code.
func failingExecs(t *testing.T, n, exitCode int, message string) (host string, failed *atomic.Int64) {
	t.Helper()
	failed = new(atomic.Int64)
	return harness.InFront(t, func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.Contains(r.URL.Path, "/exec/") || failed.Load() > int64(n) {
			return false
		}
		if strings.HasSuffix(r.URL.Path, "/json") {
			fmt.Fprintf(w, `{"Running":false,"ExitCode":%d}`, exitCode)
			return true
		}
		if !strings.HasSuffix(r.URL.Path, "/start") || failed.Add(1) > int64(n) {
			return false
		}
		conn, buf, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return true
		}
		defer conn.Close()
		frame := binary.BigEndian.AppendUint32([]byte{1, 0, 0, 0}, uint32(len(message)+2))
		fmt.Fprintf(buf, "HTTP/1.1 101 UPGRADED\r\nContent-Type: application/vnd.docker.raw-stream\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n%s%s\r\n", frame, message)
		buf.Flush()
		return true
	}, nil), failed
}

// An exec that the runtime failed to start has started nothing, so the next try may do.
func TestConnectionOutlivesAFailureOfTheRuntime(t *testing.T) {
	t.Parallel()
	sb := harness.CreateWith(t, harness.NewClient(t), nil)
	host, failed := failingExecs(t, 3, 126, runtimeMessage)
	there, err := harness.NewClient(t, sandbox.WithHost(host)).Get(t.Context(), sb.Name(), sandbox.WithoutResume())
	if err != nil {
		t.Fatal(err)
	}
	defer there.Detach()
	if err := there.Command(t.Context(), "true").Run(); err != nil || failed.Load() < 3 {
		t.Errorf("a command after %d failures of the runtime: %v, want none after 3", failed.Load(), err)
	}
}

// When it stays so the error says why, with the runtime's own words.
func TestFailureOfTheRuntimeIsInTheError(t *testing.T) {
	t.Parallel()
	sb := harness.CreateWith(t, harness.NewClient(t), nil)
	for _, test := range []struct {
		code    int
		message string
		tries   int64 // at most
		engine  bool  // it counts as the engine's failure
		advice  string
	}{
		{126, runtimeMessage, 1 << 20, true, ""},
		{127, runtimeMessage, 2, false, ""},
		{128, outOfKeys, 2, false, "kernel.keys.maxkeys"},
	} {
		t.Run(fmt.Sprint(test.code), func(t *testing.T) {
			t.Parallel()
			host, failed := failingExecs(t, 1<<20, test.code, test.message)
			there, err := harness.NewClient(t, sandbox.WithHost(host)).Get(t.Context(), sb.Name(), sandbox.WithoutResume())
			if err != nil {
				t.Fatal(err)
			}
			defer there.Detach()
			err = there.Command(t.Context(), "true").Run()
			if err == nil || !strings.Contains(err.Error(), test.message) || !strings.Contains(err.Error(), fmt.Sprintf("exit code %d", test.code)) ||
				!strings.Contains(err.Error(), test.advice) || errors.Is(err, sandbox.ErrEngineUnavailable) != test.engine {
				t.Errorf("a command: %v, want the runtime's message and exit code", err)
			}
			if n := failed.Load(); n > test.tries {
				t.Errorf("%d tries, want at most %d", n, test.tries)
			}
		})
	}
}
