package sandbox_test

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
)

// roles are programs that tests run as processes of their own: this test binary,
// started again with roleVar set. See process.
var roles = map[string]func(args []string) error{}

// atEnd is called after the last test, for what tests share.
var atEnd []func()

const roleVar = "SANDBOX_TEST_ROLE"

// TestMain gives the engine back as it found it, or fails. On an engine that others
// use at the same time SANDBOX_TEST_SHARED=1 makes what is left a remark.
func TestMain(m *testing.M) {
	if role := os.Getenv(roleVar); role != "" {
		if err := roles[role](os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	stop := enginetest.Watch()
	before, err := left()
	if err != nil {
		fmt.Fprintln(os.Stderr, "the tests need a Docker Engine; `make test` starts one:", err)
		os.Exit(1)
	}
	if p := flag.Lookup("test.parallel"); p.Value.String() == strconv.Itoa(runtime.GOMAXPROCS(0)) {
		p.Value.Set("8") // tests wait for the engine, mostly, and not for a CPU
	}
	code := m.Run()
	for _, f := range atEnd {
		f()
	}
	if code == 0 {
		code = leaks(before)
	}
	stop()
	if code == 0 {
		code = goroutines()
	}
	os.Exit(code)
}

func left() ([]string, error) { return enginetest.Leftovers(enginetest.IgnoreGuest()) }

func leaks(before []string) int {
	known := map[string]bool{}
	for _, l := range before {
		known[l] = true
	}
	var now []string
	for deadline := time.Now().Add(15 * time.Second); ; time.Sleep(200 * time.Millisecond) {
		all, err := left()
		now = nil
		for _, l := range all {
			if !known[l] {
				now = append(now, l)
			}
		}
		if err == nil && len(now) == 0 {
			return 0
		}
		if time.Now().After(deadline) {
			fmt.Fprintf(os.Stderr, "left on the engine (%v):\n\t%s\n", err, strings.Join(now, "\n\t"))
			if os.Getenv("SANDBOX_TEST_SHARED") != "" {
				return 0
			}
			return 1
		}
	}
}

func goroutines() int {
	if err := sandbox.CloseDefaultClient(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if err := goleak.Find(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// newClient is a client of the test's own.
func newClient(t *testing.T, opts ...sandbox.ClientOption) *sandbox.Client {
	t.Helper()
	c, err := sandbox.NewClient(opts...)
	if err != nil {
		t.Fatalf("NewClient: %v", err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("Client.Close: %v", err)
		}
	})
	return c
}

// uniqueName is a name that no other test has.
func uniqueName(t *testing.T) string {
	t.Helper()
	return "t-" + record.NewID()
}

// newSandbox makes a sandbox that is removed with all it has when the test ends.
func newSandbox(t *testing.T, opts ...sandbox.CreateOption) *sandbox.Sandbox {
	t.Helper()
	c := newClient(t)
	sb, err := c.Create(t.Context(), opts...)
	if err != nil {
		t.Fatalf("Create: %v", err)
	}
	remove(t, c, sb.Name())
	t.Cleanup(func() { sb.Detach() })
	return sb
}

// remove has a sandbox of that name, if there is one, and its volumes removed when the
// test ends. It runs on a context of its own, since the test's is over by then.
func remove(t *testing.T, c *sandbox.Client, name string) {
	t.Helper()
	t.Cleanup(func() { removeNow(t, c, name) })
}
