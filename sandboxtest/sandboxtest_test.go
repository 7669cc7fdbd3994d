package sandboxtest_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/sandboxtest"
)

// TestMain does not wait for an engine that has locked up.
func TestMain(m *testing.M) {
	enginetest.LeaveOut("^TestReport$") // which the README shows
	stop := enginetest.Watch()
	m.Run()
	stop()
}

// left lists what the engine holds of a sandbox.
func left(t *testing.T, id string) []string {
	t.Helper()
	lines, err := enginetest.Leftovers(enginetest.WithLabel("agent-sandbox.id=" + id))
	if err != nil {
		t.Fatal(err)
	}
	return lines
}

func TestSandboxEndsWithItsTest(t *testing.T) {
	enginetest.Need(t)
	t.Parallel()
	name := "sandboxtest-" + strings.ToLower(rand.Text()[:8])
	// What a test may do with its sandbox before it ends.
	tests := map[string]struct {
		opts []sandbox.CreateOption
		use  func(context.Context, *sandbox.Sandbox) error
	}{
		"used": {use: func(ctx context.Context, sb *sandbox.Sandbox) error {
			// It ignores SIGTERM: the test's end is not to wait 30 s for it.
			cmd := sb.Command(ctx, "sh", "-c", "trap '' TERM; while :; do sleep 1; done")
			cmd.Detached = true
			return cmd.Start()
		}},
		"closed":  {use: func(_ context.Context, sb *sandbox.Sandbox) error { return sb.Close() }},
		"stopped": {use: func(ctx context.Context, sb *sandbox.Sandbox) error { _, err := sb.Stop(ctx); return err }},
		"deleted": {use: func(ctx context.Context, sb *sandbox.Sandbox) error {
			_, err := sb.Delete(ctx, sandbox.PreserveVolumes(false))
			return err
		}},
		"named and detached": {
			opts: []sandbox.CreateOption{sandbox.WithName(name)},
			use:  func(_ context.Context, sb *sandbox.Sandbox) error { return sb.Detach() },
		},
	}
	for what, test := range tests {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			var id string
			t.Run("inner", func(t *testing.T) {
				sb := sandboxtest.New(t, test.opts...)
				id = sb.ID()
				if held := left(t, id); len(held) == 0 {
					t.Fatalf("the engine holds nothing of %s while its test runs", id)
				}
				if err := test.use(t.Context(), sb); err != nil {
					t.Fatal(err)
				}
			})
			if held := left(t, id); len(held) > 0 {
				t.Errorf("left after the test: %v", held)
			}
		})
	}
}

func TestRunReturnsStdoutAlone(t *testing.T) {
	enginetest.Story(t)
	t.Parallel()
	sb := sandboxtest.New(t)
	if got := sandboxtest.Run(t, sb, "sh", "-c", "echo out; echo err >&2"); got != "out\n" {
		t.Errorf("Run = %q, want %q", got, "out\n")
	}
}

// judged is a test that may fail without failing ours.
type judged struct {
	testing.TB
	verdict  string
	cleanups []func()
}

func (j *judged) Helper()           {}
func (j *judged) Cleanup(fn func()) { j.cleanups = append(j.cleanups, fn) }

func (j *judged) Errorf(format string, args ...any) { j.verdict += fmt.Sprintf(format, args...) }

func (j *judged) Fatalf(format string, args ...any) {
	j.Errorf(format, args...)
	panic(j)
}

// judge runs fn and its cleanups as a test and returns what made it fail.
func judge(t *testing.T, fn func(testing.TB)) string {
	j := &judged{TB: t}
	func() {
		defer func() {
			if r := recover(); r != nil && r != any(j) {
				panic(r)
			}
		}()
		fn(j)
	}()
	for _, cleanup := range slices.Backward(j.cleanups) {
		cleanup()
	}
	return j.verdict
}

func TestRunFailsTheTestWithStderr(t *testing.T) {
	enginetest.Need(t)
	t.Parallel()
	sb := sandboxtest.New(t)
	verdict := judge(t, func(t testing.TB) { sandboxtest.Run(t, sb, "sh", "-c", "echo $((6*7)) >&2; exit 3") })
	for _, want := range []string{"exit status 3", "\n42\n", "sh -c echo"} {
		if !strings.Contains(verdict, want) {
			t.Errorf("Run of a failing command failed the test with %q, want it to say %q", verdict, want)
		}
	}
}

func TestNewFailsTheTestWithoutSandbox(t *testing.T) {
	t.Parallel()
	verdict := judge(t, func(t testing.TB) { sandboxtest.New(t, sandbox.WithRuntime("cobol85")) })
	if !strings.Contains(verdict, `runtime "cobol85"`) {
		t.Errorf("New with an unknown runtime failed the test with %q", verdict)
	}
}

func TestNewFailsTheTestForWhatItCannotRemove(t *testing.T) {
	enginetest.Need(t)
	t.Parallel()
	eng, err := engine.Open(t.Context(), engine.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { eng.Close() })
	var volume string
	verdict := judge(t, func(j testing.TB) {
		sb := sandboxtest.New(j)
		volume = "agent-sandbox-" + sb.ID()
		// Somebody else's container holds the workspace.
		id, err := eng.CreateContainer(t.Context(), engine.ContainerSpec{
			Name: "foreign-" + sb.ID(), Image: sandbox.DefaultImage, NetworkMode: "none",
			Mounts: []engine.Mount{{Type: "volume", Source: volume, Target: "/held"}},
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			ctx := context.WithoutCancel(t.Context())
			if err := eng.RemoveContainer(ctx, id, true); err != nil {
				t.Error(err)
			}
			if err := eng.RemoveVolume(ctx, volume, false); err != nil {
				t.Error(err)
			}
		})
	})
	if !strings.Contains(verdict, volume) {
		t.Errorf("a volume that can't be removed failed the test with %q, want it to name %s", verdict, volume)
	}
}
