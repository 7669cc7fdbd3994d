package sandboxtest_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
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

func TestSandboxOfAPoolEndsWithItsTest(t *testing.T) {
	enginetest.Need(t)
	t.Parallel()
	var ids []string
	t.Run("tests", func(t *testing.T) {
		pool := sandboxtest.NewPool(t, 1)
		for range 2 {
			t.Run("one", func(t *testing.T) {
				sb := pool.New(t, sandbox.WithEnv(map[string]string{"A": "1"}))
				ids = append(ids, sb.ID())
				if got := sandboxtest.Run(t, sb, "printenv", "A"); got != "1\n" {
					t.Errorf("printenv A = %q", got)
				}
			})
		}
	})
	for _, id := range ids {
		if lines := left(t, id); len(lines) > 0 {
			t.Errorf("left of %s: %q", id, lines)
		}
	}
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
			_, err := sb.Delete(ctx, sandbox.DeleteOptions{Volumes: true})
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
	skipped  string
	cleanups []func()
}

func (j *judged) Failed() bool { return j.verdict != "" }

func (j *judged) Skipf(format string, args ...any) {
	j.skipped = fmt.Sprintf(format, args...)
	panic(j)
}

func (j *judged) Helper()           {}
func (j *judged) Cleanup(fn func()) { j.cleanups = append(j.cleanups, fn) }

func (j *judged) Errorf(format string, args ...any) { j.verdict += fmt.Sprintf(format, args...) }

func (j *judged) Fatalf(format string, args ...any) {
	j.Errorf(format, args...)
	panic(j)
}

// judge runs fn and its cleanups as a test and returns what made it fail.
func judge(t *testing.T, fn func(testing.TB)) string { return judgeAll(t, fn).verdict }

func judgeAll(t *testing.T, fn func(testing.TB)) *judged {
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
	return j
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

// A test that fails keeps what its sandbox did, whatever state that is in; one that passes keeps
// nothing.
func TestArtifactsOfAFailure(t *testing.T) {
	enginetest.Need(t)
	t.Parallel()
	use := func(t testing.TB, sb *sandbox.Sandbox) {
		sandboxtest.Run(t, sb, "sh", "-c", `mkdir -p out/deep; echo text >out/deep/file; touch "$(printf 'a\033b')"; node -e 'fetch("http://192.0.2.99/").catch(e => 0)'`)
		cmd := sb.Command(t.Context(), "sh", "-c", "echo said; echo careful >&2")
		cmd.Detached = true
		if err := cmd.Run(); err != nil {
			t.Fatalf("%v", err)
		}
	}
	for what, test := range map[string]struct {
		fails  bool
		end    func(testing.TB, *sandbox.Sandbox) error
		kept   bool
		egress string
	}{
		"passed":  {},
		"running": {true, nil, true, `blocked "" 192.0.2.99 port 80 tcp`},
		"stopped": {true, func(t testing.TB, sb *sandbox.Sandbox) error { _, err := sb.Stop(t.Context()); return err }, true, "no session"},
		"closed":  {true, func(_ testing.TB, sb *sandbox.Sandbox) error { return sb.Close() }, true, "no session"},
		"deleted": {true, func(t testing.TB, sb *sandbox.Sandbox) error {
			_, err := sb.Delete(t.Context(), sandbox.DeleteOptions{Volumes: true})
			return err
		}, false, ""},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			dir, id := t.ArtifactDir(), ""
			judge(t, func(j testing.TB) {
				sb := sandboxtest.New(j, sandbox.WithPersistent(true), sandbox.WithNetworkPolicy(sandbox.DenyAll()))
				id = sb.ID()
				use(j, sb)
				if test.end != nil {
					if err := test.end(j, sb); err != nil {
						t.Fatal(err)
					}
				}
				if test.fails {
					j.Errorf("it fails")
				}
			})
			if held := left(t, id); len(held) > 0 {
				t.Errorf("left after the test: %v", held)
			}
			if _, err := os.Stat(filepath.Join(dir, id)); (err == nil) != test.kept {
				t.Fatalf("the artifacts: %v, want them %t", err, test.kept)
			}
			if !test.kept {
				return
			}
			for name, want := range map[string][]string{
				"log.txt":     {" stdout said\n", " stderr careful\n"},
				"egress.txt":  {test.egress},
				"files.txt":   {`"/workspace/out"`, `5 `, `"/workspace/out/deep/file"`, `"/workspace/a\x1bb"`},
				"status.json": {`"id": "` + id + `"`, `"network": "deny-all"`},
			} {
				text, err := os.ReadFile(filepath.Join(dir, id, name))
				for _, w := range want {
					if err != nil || !strings.Contains(string(text), w) {
						t.Errorf("%s is %q, %v, want %q in it", name, text, err, w)
					}
				}
			}
		})
	}
}

// The sandbox and its removal are of the client's engine.
func TestWithClient(t *testing.T) {
	enginetest.Need(t)
	t.Parallel()
	proxy := enginetest.NewProxy(t)
	client, err := sandbox.NewClient(sandbox.WithHost(proxy.Host()))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	var id string
	if verdict := judge(t, func(j testing.TB) {
		sb := sandboxtest.New(j, sandboxtest.WithClient(client), sandbox.WithPersistent(true))
		id = sb.ID()
		if err := sb.Close(); err != nil { // so that its removal needs the client
			t.Error(err)
		}
		proxy.Arm(0, enginetest.None, nil)
	}); verdict != "" {
		t.Errorf("the test failed: %s", verdict)
	}
	if !slices.ContainsFunc(proxy.Calls(), func(c string) bool { return strings.HasPrefix(c, "DELETE /containers/") }) {
		t.Errorf("the removal made other calls of the engine: %q", proxy.Calls())
	}
	if held := left(t, id); len(held) > 0 {
		t.Errorf("left after the test: %v", held)
	}
	nowhere, err := sandbox.NewClient(sandbox.WithHost("unix://" + t.TempDir() + "/none.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer nowhere.Close()
	if verdict := judge(t, func(j testing.TB) { sandboxtest.New(j, sandboxtest.WithClient(nowhere)) }); !strings.Contains(verdict, "none.sock") {
		t.Errorf("New without the client's engine failed the test with %q", verdict)
	}
}

// Only who asks for it is skipped without an engine.
func TestSkipWithoutEngine(t *testing.T) {
	if os.Getenv("SANDBOXTEST_NO_ENGINE") != "" {
		j := judgeAll(t, func(j testing.TB) { sandboxtest.SkipWithoutEngine(j) })
		if !strings.Contains(j.skipped, "none.sock") || j.verdict != "" {
			t.Errorf("without an engine: skipped with %q, failed with %q", j.skipped, j.verdict)
		}
		if verdict := judge(t, func(j testing.TB) { sandboxtest.New(j) }); !strings.Contains(verdict, "none.sock") {
			t.Errorf("New without an engine failed the test with %q", verdict)
		}
		return
	}
	enginetest.Need(t)
	t.Parallel()
	if j := judgeAll(t, func(j testing.TB) { sandboxtest.SkipWithoutEngine(j) }); j.skipped != "" || j.verdict != "" {
		t.Errorf("with an engine: skipped with %q, failed with %q", j.skipped, j.verdict)
	}
	// The default client is one for a process.
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self, "-test.run", "^TestSkipWithoutEngine$")
	cmd.Env = append(os.Environ(), "SANDBOXTEST_NO_ENGINE=1", "DOCKER_HOST=unix://"+t.TempDir()+"/none.sock")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
