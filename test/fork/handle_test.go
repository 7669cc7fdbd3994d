package fork_test

import (
	"errors"
	"testing"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// What a handle forks is its sandbox, by the rules of its client, and never another one of that name.
func TestHandleForksItsSandbox(t *testing.T) {
	t.Parallel()
	image := harness.SmallImage(t)
	c := harness.NewClient(t, sandbox.WithLimits(sandbox.Limits{Ports: 1}), sandbox.WithRuntimes(map[string]string{"ours": image}))
	source := harness.CreateWith(t, c, nil)
	harness.Write(t, source, "file", "f")
	check := func(what string, forks []sandbox.ForkResult, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		for _, f := range forks {
			harness.Remove(t, c, f.Sandbox.Name())
			t.Cleanup(func() { f.Sandbox.Detach() })
			if st := harness.Status(t, f.Sandbox); harness.Read(t, f.Sandbox, "file") != "f" || st.Image != image || st.Source != "fork of "+source.Name() {
				t.Errorf("%s is of %s and came from %q", what, st.Image, st.Source)
			}
		}
	}
	fork, err := source.Fork(t.Context(), sandbox.WithRuntime("ours"))
	check("Fork", []sandbox.ForkResult{{Sandbox: fork}}, err)
	forks, err := source.ForkN(t.Context(), 2, sandbox.WithRuntime("ours"))
	check("ForkN", forks, err)
	if len(forks) != 2 {
		t.Errorf("ForkN of 2 returned %d results", len(forks))
	}

	wantErrors := func(what string, sb *sandbox.Sandbox, want error, opts ...sandbox.ForkOption) {
		t.Helper()
		if _, err := sb.Fork(t.Context(), opts...); !errors.Is(err, want) {
			t.Errorf("Fork %s = %v, want %v", what, err, want)
		}
		if _, err := sb.ForkN(t.Context(), 2, opts...); !errors.Is(err, want) {
			t.Errorf("ForkN %s = %v, want %v", what, err, want)
		}
	}
	wantErrors("with more ports than its client allows", source, sandbox.ErrInvalidArgument, sandbox.WithPorts(1, 2))
	if _, err := source.ForkN(t.Context(), 0); !errors.Is(err, sandbox.ErrInvalidArgument) {
		t.Errorf("ForkN of 0 = %v, want ErrInvalidArgument", err)
	}
	harness.RemoveNow(t, harness.NewClient(t), source.Name())
	other, err := c.Create(t.Context(), sandbox.WithName(source.Name()), harness.Quick)
	if err != nil {
		t.Fatalf("Create: %v", err)
	}
	defer other.Detach()
	wantErrors("while another sandbox has the name", source, sandbox.ErrNotFound)
	harness.RemoveNow(t, c, other.Name())
	wantErrors("of a sandbox that is gone", source, sandbox.ErrNotFound)
	if err := source.Detach(); err != nil {
		t.Fatal(err)
	}
	wantErrors("of a handle that is closed", source, sandbox.ErrClosed)
}
