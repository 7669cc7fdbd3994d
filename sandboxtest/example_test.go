package sandboxtest_test

import (
	"testing"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/sandboxtest"
)

func TestReport(t *testing.T) {
	sb := sandboxtest.New(t)
	if got := sandboxtest.Run(t, sb, "node", "-p", "6*7"); got != "42\n" {
		t.Errorf("node -p 6*7 = %q, want 42", got)
	}
}

// t is what go test passes to a test: the examples below are parts of tests.
var t *testing.T

// The sandbox has options, and is removed when the test ends.
func ExampleNew() {
	sb := sandboxtest.New(t, sandbox.WithRuntime("python3.13"), sandbox.WithNetworkPolicy(sandbox.DenyAll()))
	if got := sandboxtest.Run(t, sb, "python3", "-c", "print(6*7)"); got != "42\n" {
		t.Errorf("python3 printed %q, want 42", got)
	}
}

// Subtests get sandboxes that run already.
func ExampleNewPool() {
	pool := sandboxtest.NewPool(t, 2)
	for _, expr := range []string{"6*7", "42"} {
		t.Run(expr, func(t *testing.T) {
			sb := pool.New(t, sandbox.WithEnv(map[string]string{"EXPR": expr}))
			if got := sandboxtest.Run(t, sb, "sh", "-c", `node -p "$EXPR"`); got != "42\n" {
				t.Errorf("node printed %q, want 42", got)
			}
		})
	}
}

// A command that fails fails the test, with what it wrote to stderr.
func ExampleRun() {
	sb := sandboxtest.New(t, sandbox.WithSource(sandbox.Dir("testdata/project")))
	sandboxtest.Run(t, sb, "npm", "test")
}

// A test that may be left out where there is no engine says so.
func ExampleSkipWithoutEngine() {
	sandboxtest.SkipWithoutEngine(t)
	sandboxtest.New(t)
}

// The sandboxes of a test are on another engine.
func ExampleWithClient() {
	client, err := sandbox.NewClient(sandbox.WithHost("ssh://builder@engine.example.com"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() }) // after the sandbox is removed
	sandboxtest.New(t, sandboxtest.WithClient(client))
}

// An engine is tried before it is relied on.
func ExampleConform() {
	client, err := sandbox.NewClient()
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	sandboxtest.Conform(t, client)
}
