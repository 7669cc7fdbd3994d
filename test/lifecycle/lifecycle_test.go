package lifecycle_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

func init() {
	// inside NAME ARGV… resumes a sandbox, prints what a command in it prints, and lets
	// go of it.
	harness.AddRole("inside", func(args []string) error {
		ctx := context.Background()
		sb, err := sandbox.Get(ctx, args[0])
		if err != nil {
			return err
		}
		cmd := sb.Command(ctx, args[1], args[2:]...)
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		return errors.Join(cmd.Run(), sb.Detach())
	})
}

// fillTree makes a bit of everything in the workspace, and listTree prints all that a
// file system knows of it.
const (
	fillTree = `set -e
mkdir -p dir/sub empty 'with space'
printf 'some\000content\n' > dir/file; chmod 0640 dir/file; chown 1234:4321 dir/file; touch -d '2001-02-03 04:05:06.789' dir/file
head -c 1000000 /dev/urandom > dir/sub/big
ln -s ../dir/file dir/link; ln -s /nowhere dangling; ln dir/file hard
chmod 2750 empty; chown 7:8 empty; printf x > 'with space/ünï'; chmod 4755 'with space/ünï'; : > .hidden`
	listTree = `find . -printf '%P %y %m %U %G %s %T@ %n %l\n' | sort; find . -type f -exec sha256sum {} + | sort`
)

// Everything about every file, also for another process, after Close.
func TestFilesSurviveStopAndClose(t *testing.T) {
	t.Parallel()
	sb := harness.NewSandbox(t, sandbox.WithName(harness.UniqueName(t)))
	harness.Run(t, sb, "sh", "-c", fillTree)
	before := harness.Run(t, sb, "sh", "-c", listTree)
	if state, err := sb.Stop(t.Context()); state != "stopped" || err != nil {
		t.Fatalf("Stop = %q, %v", state, err)
	}
	if state, err := sb.Start(t.Context()); state != sandbox.StateRunning || err != nil {
		t.Fatalf("Start = %q, %v", state, err)
	}
	if diff := cmp.Diff(before, harness.Run(t, sb, "sh", "-c", listTree)); diff != "" || strings.Count(before, "\n") < 12 {
		t.Errorf("the workspace after Stop and Start (-before +after):\n%s", diff)
	}
	if err := sb.Close(); err != nil {
		t.Fatalf("Close: %v", err)
	}
	out, err := harness.Process(t, "inside", sb.Name(), "sh", "-c", listTree).Output()
	if err != nil {
		t.Fatalf("the other process: %v", err)
	}
	if diff := cmp.Diff(before, strings.TrimSpace(string(out))); diff != "" {
		t.Errorf("the workspace in another process (-before +after):\n%s", diff)
	}
}

// Start of a running sandbox is no restart.
func TestStartOfARunningSandboxChangesNothing(t *testing.T) {
	t.Parallel()
	sb := harness.Shared(t)
	before := harness.Status(t, sb)
	if state, err := sb.Start(t.Context()); state != "running" || err != nil {
		t.Errorf("Start = %q, %v; want running", state, err)
	}
	if after := harness.Status(t, sb); !after.StartedAt.Equal(before.StartedAt) || before.StartedAt.IsZero() {
		t.Errorf("StartedAt was %v and is %v", before.StartedAt, after.StartedAt)
	}
}

// stubborn is a main process that does not mind SIGTERM.
var stubborn = sandbox.WithCommand("sh", "-c", "trap '' TERM; touch /workspace/up; while :; do sleep 0.1; done")

// Commands get SIGTERM too, detached or not.
func TestStopLetsTheMainProcessAndCommandsFinish(t *testing.T) {
	t.Parallel()
	sb := harness.NewSandbox(t, sandbox.WithName(harness.UniqueName(t)),
		sandbox.WithCommand("sh", "-c", "trap 'sleep 0.3; echo bye > /workspace/bye; exit 0' TERM; touch /workspace/up; while :; do sleep 0.05; done"))
	harness.WaitForFile(t, sb, "up")
	for _, name := range []string{"attached", "detached"} {
		cmd := sb.Command(t.Context(), "sh", "-c", "trap 'touch "+name+".told; exit 0' TERM; touch "+name+".up; while :; do sleep 0.05; done")
		cmd.Detached = name == "detached"
		if err := cmd.Start(); err != nil {
			t.Fatalf("Start: %v", err)
		}
		harness.WaitForFile(t, sb, name+".up")
	}
	began := time.Now()
	if state, err := sb.Stop(t.Context()); state != sandbox.StateStopped || err != nil {
		t.Errorf("Stop = %q, %v", state, err)
	}
	if d := time.Since(began); d > time.Minute {
		t.Errorf("Stop took %v", d)
	}
	if code := harness.Raw(t, sb).State.ExitCode; code == 137 {
		t.Errorf("exit code %d: it was killed", code)
	}
	if got := harness.Run(t, sb, "cat", "bye"); got != "bye" {
		t.Errorf("its last words are %q", got)
	}
	if got := harness.Run(t, sb, "sh", "-c", "ls *.told"); got != "attached.told\ndetached.told" {
		t.Errorf("SIGTERM reached %q", got)
	}
}

func TestStopKillsWhatIgnoresIt(t *testing.T) {
	t.Parallel()
	sb := harness.NewSandbox(t, sandbox.WithStopTimeout(time.Second), stubborn)
	harness.WaitForFile(t, sb, "up")
	began := time.Now()
	if state, err := sb.Stop(t.Context()); state != sandbox.StateStopped || err != nil {
		t.Errorf("Stop = %q, %v", state, err)
	}
	if d := time.Since(began); d < time.Second || d > time.Minute {
		t.Errorf("Stop took %v, want a little more than 1s", d)
	}
	if code := harness.Raw(t, sb).State.ExitCode; code != 137 {
		t.Errorf("exit code %d, want 137", code)
	}
}

// A stop takes 30 s at most, unless told otherwise.
func TestStopGrantsThirtySeconds(t *testing.T) {
	t.Parallel()
	proxy := enginetest.NewProxy(t)
	c := harness.NewClient(t, sandbox.WithHost(proxy.Host()))
	sb, err := c.Create(t.Context())
	if err != nil {
		t.Fatalf("Create: %v", err)
	}
	defer sb.Close()
	for _, want := range []string{"t=30", "t=7"} {
		proxy.Arm(0, enginetest.None, nil)
		if _, err := sb.Stop(t.Context()); err != nil {
			t.Errorf("Stop: %v", err)
		}
		if !slices.ContainsFunc(proxy.Requests(), func(r string) bool { return strings.HasSuffix(r, "/stop?"+want) }) {
			t.Errorf("requests %q; want a stop with %s", proxy.Requests(), want)
		}
		if want == "t=7" {
			break
		}
		harness.Update(t, sb, sandbox.WithStopTimeout(7*time.Second))
		if _, err := sb.Start(t.Context()); err != nil {
			t.Fatalf("Start: %v", err)
		}
	}
}

// A list is right while sandboxes go.
func TestListWhileSandboxesGo(t *testing.T) {
	t.Parallel()
	c := harness.NewClient(t)
	prefix := harness.UniqueName(t)
	var going sync.WaitGroup
	for i := range 2 {
		sb := harness.NewSandbox(t, sandbox.WithName(fmt.Sprint(prefix, i)), harness.Quick)
		going.Go(func() {
			if _, err := sb.Delete(t.Context(), sandbox.DeleteOptions{Volumes: true}); err != nil {
				t.Errorf("Delete: %v", err)
			}
		})
	}
	gone := make(chan struct{})
	go func() { going.Wait(); close(gone) }()
	for last := false; !last; {
		select {
		case <-gone:
			last = true
		default:
		}
		list, err := c.List(t.Context(), sandbox.ListOptions{Prefix: prefix})
		if err != nil || last && len(list) > 0 {
			t.Errorf("List = %v, %v; all are gone: %v", list, err, last)
		}
	}
}

// Deletion stops what runs, and not with SIGKILL.
func TestDeleteLetsTheMainProcessFinish(t *testing.T) {
	t.Parallel()
	sb := harness.NewSandbox(t, sandbox.WithName(harness.UniqueName(t)),
		sandbox.WithCommand("sh", "-c", "trap 'sleep 0.3; echo bye > /workspace/bye; exit 0' TERM; touch /workspace/up; while :; do sleep 0.05; done"))
	harness.Eventually(t, "the main process is up", func() bool {
		_, err := sb.Stat(t.Context(), "/workspace/up")
		return err == nil
	})
	if _, err := sb.Delete(t.Context(), sandbox.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	heir := harness.NewSandbox(t, sandbox.WithName(harness.UniqueName(t)), sandbox.WithID(sb.ID()))
	if got, err := heir.ReadFile(t.Context(), "bye"); string(got) != "bye\n" {
		t.Errorf("the last word of the main process: %q, %v", got, err)
	}
}

func TestEmptyListIsNotNil(t *testing.T) {
	t.Parallel()
	list, err := harness.NewClient(t).List(t.Context(), sandbox.ListOptions{Prefix: harness.UniqueName(t)})
	if err != nil || list == nil || len(list) != 0 {
		t.Errorf("List = %#v, %v; want an empty slice", list, err)
	}
}

// Close ends the session however the scope ends.
func TestDeferredCloseStopsTheSandbox(t *testing.T) {
	t.Parallel()
	c, name := harness.NewClient(t), harness.UniqueName(t)
	harness.Remove(t, c, name)
	for how, end := range map[string]func(){
		"return": func() {},
		"panic":  func() { panic("x") },
	} {
		func() {
			defer func() { recover() }()
			sb, err := c.GetOrCreate(context.Background(), name)
			if err != nil {
				t.Errorf("GetOrCreate: %v", err)
				return
			}
			defer sb.Close()
			end()
		}()
		if st := harness.Inspect(t, name); st.State != sandbox.StateStopped || st.Reason != "stopped" {
			t.Errorf("after a scope that ends by %s it is %+v; want stopped, and there", how, st)
		}
	}
}

// Whatever happened before, Close is nil, soon, and stays so.
func TestCloseIsNilWhateverHappenedBefore(t *testing.T) {
	t.Parallel()
	for what, before := range map[string]func(t *testing.T, sb *sandbox.Sandbox, eng *engine.Engine){
		"Close":  func(t *testing.T, sb *sandbox.Sandbox, _ *engine.Engine) { sb.Close() },
		"Detach": func(t *testing.T, sb *sandbox.Sandbox, _ *engine.Engine) { sb.Detach() },
		"Stop":   func(t *testing.T, sb *sandbox.Sandbox, _ *engine.Engine) { sb.Stop(t.Context()) },
		"a command": func(t *testing.T, sb *sandbox.Sandbox, _ *engine.Engine) {
			sb.Command(t.Context(), "sleep", "1000").Start()
		},
		"Delete": func(t *testing.T, sb *sandbox.Sandbox, _ *engine.Engine) {
			if _, err := sb.Delete(t.Context(), sandbox.DeleteOptions{Volumes: true}); err != nil {
				t.Errorf("Delete: %v", err)
			}
		},
		"a removal by hand": func(t *testing.T, sb *sandbox.Sandbox, eng *engine.Engine) {
			if err := eng.RemoveContainer(t.Context(), record.ContainerName(sb.Name()), true); err != nil {
				t.Error(err)
			}
			if err := eng.RemoveVolume(t.Context(), record.WorkspaceName(sb.ID()), false); err != nil {
				t.Error(err)
			}
		},
		"a pause": func(t *testing.T, sb *sandbox.Sandbox, eng *engine.Engine) {
			harness.Pause(t, eng, record.ContainerName(sb.Name()))
		},
	} {
		for _, persistent := range []bool{true, false} {
			if !harness.Soaking() && persistent == (what == "Detach" || what == "Stop" || what == "a command") {
				continue // each is tried with one of both
			}
			t.Run(fmt.Sprintf("%s, persistent %v", what, persistent), func(t *testing.T) {
				t.Parallel()
				c, name := harness.NewClient(t), harness.UniqueName(t)
				harness.Remove(t, c, name)
				ctx, cancel := context.WithCancel(t.Context())
				sb, err := c.Create(ctx, sandbox.WithName(name), sandbox.WithPersistent(persistent))
				if err != nil {
					t.Fatalf("Create: %v", err)
				}
				cancel() // the creating context: Close does not care
				before(t, sb, harness.NewEngine(t))
				began := time.Now()
				var wg sync.WaitGroup
				for range 4 {
					wg.Go(func() {
						if err := sb.Close(); err != nil {
							t.Errorf("Close = %v", err)
						}
					})
				}
				wg.Wait()
				if d := time.Since(began); d > time.Minute {
					t.Errorf("Close took %v", d)
				}
				if err := sb.Close(); err != nil {
					t.Errorf("Close again = %v", err)
				}
				if err := sb.Detach(); err != nil {
					t.Errorf("Detach after Close = %v", err)
				}
				want := sandbox.ErrClosed
				if what == "Delete" {
					want = sandbox.ErrNotFound
				}
				if _, err := sb.Status(t.Context()); !errors.Is(err, want) {
					t.Errorf("Status after Close = %v; want %v", err, want)
				}
			})
		}
	}
}

// Whichever comes first, it ends closed and, as Close came last, stopped.
func TestCloseWhileStartRuns(t *testing.T) {
	t.Parallel()
	c, name := harness.NewClient(t), harness.UniqueName(t)
	harness.Remove(t, c, name)
	sb, err := c.Create(t.Context(), sandbox.WithName(name))
	if err != nil {
		t.Fatalf("Create: %v", err)
	}
	for range harness.Rounds(1, 10) {
		if _, err := sb.Stop(t.Context()); err != nil {
			t.Fatalf("Stop: %v", err)
		}
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := sb.Start(t.Context()); err != nil && !errors.Is(err, sandbox.ErrClosed) && !errors.Is(err, context.Canceled) {
				t.Errorf("Start = %v; want nil, or that it is closed", err)
			}
		})
		wg.Go(func() {
			if err := sb.Close(); err != nil {
				t.Errorf("Close = %v", err)
			}
		})
		wg.Wait()
		if st, err := c.Inspect(t.Context(), name); err != nil || st.State != sandbox.StateStopped {
			t.Errorf("afterwards it is %+v, %v; want stopped", st, err)
		}
		if sb, err = c.Get(t.Context(), name); err != nil {
			t.Fatalf("Get: %v", err)
		}
	}
	sb.Detach()
}

// Methods of a closed handle say so, all of them.
func TestClosedHandleSaysSo(t *testing.T) {
	t.Parallel()
	sb := harness.NewSandbox(t, sandbox.WithName(harness.UniqueName(t)), sandbox.WithPorts(3000))
	cmd := sb.Command(t.Context(), "true")
	if err := sb.Detach(); err != nil {
		t.Fatalf("Detach: %v", err)
	}
	if err := cmd.Run(); !errors.Is(err, sandbox.ErrClosed) {
		t.Errorf("Run of a command made before = %v; want ErrClosed", err)
	}
	for call, do := range handleCalls(t) {
		if err := do(sb); !errors.Is(err, sandbox.ErrClosed) {
			t.Errorf("%s = %v; want ErrClosed", call, err)
		}
	}
}

// handleCalls are the calls that need a sandbox behind the handle. It publishes port 3000.
func handleCalls(t *testing.T) map[string]func(*sandbox.Sandbox) error {
	ctx, dir := t.Context(), t.TempDir()
	return map[string]func(sb *sandbox.Sandbox) error{
		"Start":       func(sb *sandbox.Sandbox) error { return harness.Second(sb.Start(ctx)) },
		"Stop":        func(sb *sandbox.Sandbox) error { return harness.Second(sb.Stop(ctx)) },
		"Status":      func(sb *sandbox.Sandbox) error { return harness.Second(sb.Status(ctx)) },
		"Command":     func(sb *sandbox.Sandbox) error { return sb.Command(ctx, "true").Run() },
		"Process":     func(sb *sandbox.Sandbox) error { return harness.Second(sb.Process(ctx, "x")) },
		"Delete":      func(sb *sandbox.Sandbox) error { return harness.Second(sb.Delete(ctx, sandbox.DeleteOptions{})) },
		"DialContext": func(sb *sandbox.Sandbox) error { return harness.Second(sb.DialContext(ctx, "tcp", "localhost:1")) },
		"Port":        func(sb *sandbox.Sandbox) error { return harness.Second(sb.Port(ctx, 3000)) },
		"WaitPort":    func(sb *sandbox.Sandbox) error { return sb.WaitPort(ctx, 3000) },
		"ReadFile":    func(sb *sandbox.Sandbox) error { return harness.Second(sb.ReadFile(ctx, "/etc/hostname")) },
		"WriteFile":   func(sb *sandbox.Sandbox) error { return sb.WriteFile(ctx, "x", nil, 0o644) },
		"CopyIn": func(sb *sandbox.Sandbox) error {
			return harness.Second(sb.CopyIn(ctx, dir, "x", sandbox.CopyOptions{}))
		},
		"CopyOut": func(sb *sandbox.Sandbox) error {
			return harness.Second(sb.CopyOut(ctx, "/etc/hostname", dir+"/", sandbox.CopyOptions{}))
		},
	}
}

// A failure that defer drops is told to the logger.
func TestFailedCloseIsReturnedAndLogged(t *testing.T) {
	t.Parallel()
	proxy := enginetest.NewProxy(t)
	var log lockedBuffer
	c := harness.NewClient(t, sandbox.WithHost(proxy.Host()), sandbox.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
	name := harness.UniqueName(t)
	harness.Remove(t, harness.NewClient(t), name)
	sb, err := c.Create(t.Context(), sandbox.WithName(name))
	if err != nil {
		t.Fatalf("Create: %v", err)
	}
	proxy.Refuse(true)
	err = sb.Close()
	proxy.Refuse(false)
	if !errors.Is(err, sandbox.ErrEngineUnavailable) || sb.Close() != err {
		t.Errorf("Close = %v, then %v; want ErrEngineUnavailable twice", err, sb.Close())
	}
	if got := log.String(); !strings.Contains(got, "level=ERROR") || !strings.Contains(got, name) {
		t.Errorf("logged: %q; want the failure", got)
	}
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// Get of a running sandbox is the same session, and that of a stopped one another.
func TestGetResumesAStoppedSandbox(t *testing.T) {
	t.Parallel()
	c := harness.NewClient(t)
	made := harness.NewSandbox(t, sandbox.WithName(harness.UniqueName(t)))
	before := harness.Status(t, made)
	same, err := c.Get(t.Context(), made.Name(), sandbox.OnResume(func(context.Context, *sandbox.Sandbox) error {
		t.Error("OnResume was called")
		return nil
	}))
	if err != nil {
		t.Fatalf("Get: %v", err)
	}
	if after := harness.Status(t, same); !after.StartedAt.Equal(before.StartedAt) {
		t.Errorf("StartedAt was %v and is %v", before.StartedAt, after.StartedAt)
	}
	same.Detach()
	stop := func() {
		t.Helper()
		if _, err := made.Stop(t.Context()); err != nil {
			t.Fatalf("Stop: %v", err)
		}
	}
	stop()
	if st, err := c.Inspect(t.Context(), made.Name()); err != nil || st.State != sandbox.StateStopped {
		t.Errorf("Inspect = %+v, %v; want stopped: it must not resume", st, err)
	}
	left, err := c.Get(t.Context(), made.Name(), sandbox.WithoutResume())
	if err != nil || harness.Status(t, left).State != sandbox.StateStopped {
		t.Errorf("Get without resuming = %v, %v; want stopped", left, err)
	}
	left.Detach()
	for _, ref := range []string{made.Name(), made.ID()} {
		resumed := 0
		sb, err := c.Get(t.Context(), ref, sandbox.OnResume(func(ctx context.Context, sb *sandbox.Sandbox) error {
			resumed++
			return sb.Command(ctx, "true").Run()
		}))
		if err != nil {
			t.Fatalf("Get(%q): %v", ref, err)
		}
		if st := harness.Status(t, sb); st.State != sandbox.StateRunning || sb.ID() != made.ID() || resumed != 1 {
			t.Errorf("Get(%q): %+v, resumed %d times; want %s running, resumed once", ref, st, resumed, made.ID())
		}
		sb.Detach()
		stop()
	}
	// OnResume may refuse, and the session goes on.
	broken := errors.New("broken")
	if _, err := c.Get(t.Context(), made.Name(), sandbox.OnResume(func(context.Context, *sandbox.Sandbox) error { return broken })); !errors.Is(err, broken) {
		t.Errorf("Get = %v; want OnResume's error", err)
	}
	if st := harness.Status(t, made); st.State != sandbox.StateRunning {
		t.Errorf("the sandbox is %s; want running", st.State)
	}
}

// The message of ErrNotFound is exactly this one.
func TestMissingSandboxIsNotFound(t *testing.T) {
	t.Parallel()
	for call, do := range takers(harness.NewClient(t)) {
		if strings.HasPrefix(call, "Create") || call == "GetOrCreate" {
			continue
		}
		err := do(t.Context(), harness.UniqueName(t))
		var e *sandbox.Error
		if !errors.Is(err, sandbox.ErrNotFound) || !strings.Contains(err.Error(), "Sandbox not found") || !errors.As(err, &e) || e.StatusCode() != 404 {
			t.Errorf("%s = %v; want Sandbox not found, 404", call, err)
		}
	}
}

// Of many callers one creates.
func TestGetOrCreateCreatesOnce(t *testing.T) {
	t.Parallel()
	c, name := harness.NewClient(t), harness.UniqueName(t)
	harness.Remove(t, c, name)
	var created atomic.Int32
	var ids [8]string
	onCreate := sandbox.OnCreate(func(ctx context.Context, sb *sandbox.Sandbox) error {
		created.Add(1)
		return sb.Command(ctx, "touch", "made").Run() // it runs already
	})
	var wg sync.WaitGroup
	for i := range ids {
		wg.Go(func() {
			sb, err := c.GetOrCreate(t.Context(), name, onCreate)
			if err != nil {
				t.Errorf("GetOrCreate: %v", err)
				return
			}
			ids[i] = sb.ID()
			if created.Load() != 1 {
				t.Errorf("it returned before OnCreate was done")
			}
			if err := sb.Command(t.Context(), "test", "-e", "made").Run(); err != nil {
				t.Errorf("what OnCreate made: %v", err)
			}
			sb.Detach()
		})
	}
	wg.Wait()
	for _, id := range ids {
		if id != ids[0] {
			t.Errorf("IDs %q; want one", ids)
		}
	}
	sb, err := c.GetOrCreate(t.Context(), name, onCreate)
	if err != nil || created.Load() != 1 {
		t.Fatalf("one more GetOrCreate: %v; OnCreate was called %d times, want once", err, created.Load())
	}
	sb.Detach()
}

// A volume that exists keeps its labels, whoever asks for others.
func TestWorkspaceKeepsItsLabels(t *testing.T) {
	t.Parallel()
	eng := harness.NewEngine(t)
	name := record.WorkspaceName(harness.Shared(t).ID())
	before, err := eng.InspectVolume(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	got, err := eng.CreateVolume(t.Context(), name, map[string]string{record.Managed: "true", record.Name: "another"})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before.Labels, got.Labels); diff != "" {
		t.Errorf("labels changed (-was +is):\n%s", diff)
	}
}

// Delete is for good, and preserves the workspace unless told otherwise.
func TestDeletedSandboxIsGone(t *testing.T) {
	t.Parallel()
	c, eng := harness.NewClient(t), harness.NewEngine(t)
	for _, preserve := range []bool{true, false} {
		name := harness.UniqueName(t)
		harness.Remove(t, c, name)
		sb, err := c.Create(t.Context(), sandbox.WithName(name), sandbox.WithPorts(3000))
		if err != nil {
			t.Fatalf("Create: %v", err)
		}
		other, err := c.Get(t.Context(), name)
		if err != nil {
			t.Fatalf("Get: %v", err)
		}
		harness.Run(t, sb, "sh", "-c", "echo mine > file")
		want := sandbox.VolumeOutcome{Name: "agent-sandbox-" + sb.ID(), Status: "preserved"}
		if !preserve {
			want.Status = "deleted"
		}
		report, err := sb.Delete(t.Context(), sandbox.DeleteOptions{Volumes: !preserve})
		if diff := cmp.Diff(sandbox.DeleteReport{Volumes: []sandbox.VolumeOutcome{want}}, report); err != nil || diff != "" {
			t.Errorf("Delete: %v; report (-want +got):\n%s", err, diff)
		}
		if got := report.String(); got != "volume "+want.Name+": "+want.Status {
			t.Errorf("the report reads %q", got)
		}
		for call, do := range takers(c) {
			if strings.HasPrefix(call, "Create") || call == "GetOrCreate" {
				continue
			}
			for _, ref := range []string{name, sb.ID()} {
				if err := do(t.Context(), ref); !errors.Is(err, sandbox.ErrNotFound) {
					t.Errorf("%s of %q = %v; want ErrNotFound", call, ref, err)
				}
			}
		}
		if list, err := c.List(t.Context(), sandbox.ListOptions{Prefix: name}); err != nil || len(list) != 0 {
			t.Errorf("List = %+v, %v; want none", list, err)
		}
		for call, do := range handleCalls(t) {
			for i, h := range []*sandbox.Sandbox{sb, other} {
				if err := do(h); !errors.Is(err, sandbox.ErrNotFound) {
					t.Errorf("%s on handle %d = %v; want ErrNotFound", call, i, err)
				}
			}
		}
		for _, h := range []*sandbox.Sandbox{sb, other} {
			if err := h.Close(); err != nil {
				t.Errorf("Close = %v", err)
			}
		}
		// The name is free, and the ID adopts what was preserved.
		again, err := c.Create(t.Context(), sandbox.WithName(name), sandbox.WithID(sb.ID()))
		if err != nil {
			t.Fatalf("Create again: %v", err)
		}
		out, _ := again.Command(t.Context(), "cat", "file").Output()
		if kept := string(out) == "mine\n"; kept != preserve {
			t.Errorf("preserve %v, and the file is %q", preserve, out)
		}
		again.Detach()
		if left := harness.Objects(t, eng, harness.Named(name)); len(left) != 2 {
			t.Errorf("it has %q; want a container and a volume", left)
		}
	}
}

func TestStopOfWhatDoesNotRunIsNil(t *testing.T) {
	t.Parallel()
	c, eng := harness.NewClient(t), harness.NewEngine(t)
	made := harness.NewSandbox(t, sandbox.WithName(harness.UniqueName(t)))
	harness.Pause(t, eng, record.ContainerName(made.Name()))
	unstarted := harness.UniqueName(t)
	handMade(t, eng, record.ContainerName(unstarted), unstarted, record.NewID())
	for _, tt := range []struct{ what, name string }{{"paused", made.Name()}, {"stopped", made.Name()}, {"created", unstarted}} {
		sb, err := c.Get(t.Context(), tt.name, sandbox.WithoutResume())
		if err != nil {
			t.Fatalf("Get: %v", err)
		}
		began := time.Now()
		if state, err := sb.Stop(t.Context()); state != sandbox.StateStopped || err != nil || time.Since(began) > time.Minute {
			t.Errorf("Stop of what is %s = %q, %v after %v", tt.what, state, err, time.Since(began))
		}
		sb.Detach()
	}
}

// The longest stop timeout that there can be is waited for: what Close adds to it is no time that has passed.
func TestCloseWithTheLongestStopTimeout(t *testing.T) {
	t.Parallel()
	longest := time.Duration(math.MaxInt64).Truncate(time.Second)
	sb := harness.NewSandbox(t, sandbox.WithName(harness.UniqueName(t)), sandbox.WithPersistent(false), sandbox.WithStopTimeout(longest))
	if err := sb.Close(); err != nil {
		t.Fatalf("Close = %v", err)
	}
	if _, err := harness.NewClient(t).Inspect(t.Context(), sb.Name()); !errors.Is(err, sandbox.ErrNotFound) {
		t.Errorf("after Close: Inspect = %v, want ErrNotFound", err)
	}
}

// A program without a handler for SIGTERM would be deaf to it as PID 1.
func TestSandboxStopsAtOnce(t *testing.T) {
	t.Parallel()
	sb := harness.NewSandbox(t, sandbox.WithStopTimeout(2*time.Minute), sandbox.WithCommand("tail", "-f", "/dev/null"))
	began := time.Now()
	if _, err := sb.Stop(t.Context()); err != nil {
		t.Errorf("Stop: %v", err)
	}
	if d := time.Since(began); d > time.Minute {
		t.Errorf("Stop took %v", d)
	}
}

// No SIGTERM is lost that comes while PID 1 is still starting, when the kernel
// drops what it has no handler for.
func TestStopRightAfterStartIsHeard(t *testing.T) {
	t.Parallel()
	sb := harness.NewSandbox(t, sandbox.WithName(harness.UniqueName(t)), sandbox.WithStopTimeout(30*time.Second))
	for range harness.Rounds(2, 20) {
		if _, err := sb.Stop(t.Context()); err != nil {
			t.Fatalf("Stop: %v", err)
		}
		if code := harness.Raw(t, sb).State.ExitCode; code == 137 {
			t.Errorf("exit code %d: it was killed, half a minute later", code)
		}
		if _, err := sb.Start(t.Context()); err != nil {
			t.Fatalf("Start: %v", err)
		}
	}
}

// The caller goes, the session ends all the same.
func TestStopGoesOnWithoutItsCaller(t *testing.T) {
	t.Parallel()
	sb := harness.NewSandbox(t, sandbox.WithStopTimeout(20*time.Second), sandbox.WithCommand("sh", "-c", "trap 'echo asked' TERM; touch /workspace/up; while :; do sleep 0.1; done"))
	harness.WaitForFile(t, sb, "up")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	asked := make(chan time.Time, 1)
	go func() { // the caller goes once the main process was asked to end
		for range sb.Logs(t.Context(), sandbox.LogOptions{Follow: true}) {
			break
		}
		asked <- time.Now()
		cancel()
	}()
	if _, err := sb.Stop(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Stop = %v; want context.Canceled", err)
	}
	if d := time.Since(<-asked); d > 15*time.Second {
		t.Errorf("Stop returned %v after its caller had gone; want it at once", d)
	}
	harness.Eventually(t, "it is stopped", func() bool { return harness.Status(t, sb).State == sandbox.StateStopped })
}

// Get goes by the container's own name, and List shows both.
func TestTwoContainersWithOneNameLabel(t *testing.T) {
	t.Parallel()
	c, eng := harness.NewClient(t), harness.NewEngine(t)
	name, id, fakeID := harness.UniqueName(t), record.NewID(), record.NewID()
	handMade(t, eng, record.ContainerName(name), name, id)
	handMade(t, eng, record.ContainerName(name+"-copy"), name, fakeID)
	if st, err := c.Inspect(t.Context(), name); err != nil || st.ID != id {
		t.Errorf("Inspect = %+v, %v; want %s", st, err, id)
	}
	for _, ref := range []string{name + "-copy", fakeID} {
		if st, err := c.Inspect(t.Context(), ref); !errors.Is(err, sandbox.ErrNotFound) {
			t.Errorf("Inspect(%q) = %+v, %v; want ErrNotFound", ref, st, err)
		}
	}
	list, err := c.List(t.Context(), sandbox.ListOptions{Prefix: name})
	if err != nil || len(list) != 2 {
		t.Errorf("List = %+v, %v; want both", list, err)
	}
}

// An image made of a sandbox has its labels, and so has a stranger's container
// made of that.
func TestContainerOfAnImageOfASandboxIsNoSandbox(t *testing.T) {
	t.Parallel()
	c, eng := harness.NewClient(t), harness.NewEngine(t)
	sb := harness.NewSandbox(t, sandbox.WithName(harness.UniqueName(t)))
	image, stranger := "enginetest-commit:"+record.NewID(), "stranger-"+record.NewID()
	enginetest.Post(t, "/commit?container="+record.ContainerName(sb.Name())+"&repo="+url.QueryEscape(strings.Split(image, ":")[0])+"&tag="+strings.Split(image, ":")[1], map[string]any{})
	t.Cleanup(func() {
		if err := eng.RemoveImage(context.Background(), image, true); err != nil {
			t.Error(err)
		}
	})
	enginetest.Post(t, "/containers/create?name="+stranger, map[string]any{"Image": image})
	t.Cleanup(func() {
		if err := eng.RemoveContainer(context.Background(), stranger, true); err != nil {
			t.Error(err)
		}
	})
	got, err := eng.InspectContainer(t.Context(), stranger)
	if err != nil || got.Labels[record.Name] != sb.Name() {
		t.Fatalf("the stranger has the labels %v (%v); the case is not what it should be", got.Labels, err)
	}
	list, err := c.List(t.Context(), sandbox.ListOptions{Prefix: sb.Name()})
	if err != nil || len(list) != 1 {
		t.Errorf("List = %+v, %v; want the sandbox alone", list, err)
	}
	if _, err := c.Delete(t.Context(), sb.Name(), sandbox.DeleteOptions{Volumes: true}); err != nil {
		t.Errorf("Delete: %v", err)
	}
	for _, ref := range []string{sb.Name(), sb.ID(), stranger} {
		if _, err := c.Inspect(t.Context(), ref); !errors.Is(err, sandbox.ErrNotFound) {
			t.Errorf("Inspect(%q) = %v; want ErrNotFound", ref, err)
		}
	}
	if _, err := eng.InspectContainer(t.Context(), stranger); err != nil {
		t.Errorf("the stranger: %v", err)
	}
}

// `docker container prune` takes stopped sandboxes, and leaves their files.
func TestPrunedSandboxLeavesItsWorkspace(t *testing.T) {
	t.Parallel()
	c, eng := harness.NewClient(t), harness.NewEngine(t)
	sb := harness.NewSandbox(t, sandbox.WithName(harness.UniqueName(t)))
	harness.Run(t, sb, "touch", "kept")
	if _, err := sb.Stop(t.Context()); err != nil {
		t.Fatalf("Stop: %v", err)
	}
	filters, err := json.Marshal(map[string][]string{"label": {record.Filter(record.Name, sb.Name())}})
	if err != nil {
		t.Fatal(err)
	}
	enginetest.Post(t, "/containers/prune?filters="+url.QueryEscape(string(filters)), nil)
	if _, err := c.Get(t.Context(), sb.Name()); !errors.Is(err, sandbox.ErrNotFound) {
		t.Errorf("Get = %v; want ErrNotFound", err)
	}
	_, startErr := sb.Start(t.Context())
	_, getErr := c.Get(t.Context(), sb.ID())
	wayBack := fmt.Sprintf("Create with WithName(%q) and WithID(%q)", sb.Name(), sb.ID())
	for call, err := range map[string]error{"Start": startErr, "Get by the ID": getErr} {
		if !errors.Is(err, sandbox.ErrNotFound) || !strings.Contains(err.Error(), wayBack) {
			t.Errorf("%s = %v; want ErrNotFound that says %s", call, err, wayBack)
		}
	}
	if _, err := eng.InspectVolume(t.Context(), record.WorkspaceName(sb.ID())); err != nil {
		t.Errorf("its workspace: %v", err)
	}
	again, err := c.Create(t.Context(), sandbox.WithName(sb.Name()), sandbox.WithID(sb.ID()))
	if err != nil {
		t.Fatalf("Create with its ID: %v", err)
	}
	defer again.Detach()
	if got := harness.Run(t, again, "ls"); got != "kept" {
		t.Errorf("the adopted workspace has %q", got)
	}

	// So does one without a name: Close can't know that no Delete has preserved it.
	sb = harness.NewSandbox(t)
	if _, err := sb.Stop(t.Context()); err != nil {
		t.Fatalf("Stop: %v", err)
	}
	workspace := record.WorkspaceName(sb.ID())
	t.Cleanup(func() { eng.RemoveVolume(context.Background(), workspace, false) })
	if err := eng.RemoveContainer(t.Context(), record.ContainerName(sb.Name()), false); err != nil {
		t.Fatal(err)
	}
	if err := sb.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	orphans, err := c.OrphanedVolumes(t.Context())
	if err != nil || !slices.ContainsFunc(orphans, func(v sandbox.Volume) bool { return v.Name == workspace }) {
		t.Errorf("the workspace of one without a name is not among the orphans %+v, %v", orphans, err)
	}
}

// A sandbox that OnCreate deletes was not created: whoever asked for it gets an error and no handle,
// and the name is free.
func TestOnCreateThatDeletesItsSandboxFailsTheCreation(t *testing.T) {
	t.Parallel()
	c, eng := harness.NewClient(t), harness.NewEngine(t)
	deletes := map[string]func(ctx context.Context, sb *sandbox.Sandbox) error{
		"by its handle": func(ctx context.Context, sb *sandbox.Sandbox) error {
			return harness.Second(sb.Delete(ctx, sandbox.DeleteOptions{}))
		},
		"by its name": func(ctx context.Context, sb *sandbox.Sandbox) error {
			return harness.Second(c.Delete(ctx, sb.Name(), sandbox.DeleteOptions{Volumes: true}))
		},
		"by the engine": func(ctx context.Context, sb *sandbox.Sandbox) error {
			return eng.RemoveContainer(ctx, record.ContainerName(sb.Name()), true)
		},
	}
	at, row := harness.Every(2), 0 // in a plain run each way in one of both calls
	for what, del := range deletes {
		for call, create := range map[string]func(name string, hook sandbox.CreateOption) (*sandbox.Sandbox, error){
			"Create": func(name string, hook sandbox.CreateOption) (*sandbox.Sandbox, error) {
				return c.Create(t.Context(), sandbox.WithName(name), harness.Quick, hook)
			},
			"GetOrCreate": func(name string, hook sandbox.CreateOption) (*sandbox.Sandbox, error) {
				return c.GetOrCreate(t.Context(), name, harness.Quick, hook)
			},
		} {
			if row++; !at(row) {
				continue
			}
			t.Run(call+" "+what, func(t *testing.T) {
				t.Parallel()
				name := harness.UniqueName(t)
				harness.Remove(t, c, name)
				sb, err := create(name, sandbox.OnCreate(del))
				if sb != nil || !errors.Is(err, sandbox.ErrNotFound) || !strings.Contains(err.Error(), "OnCreate") {
					t.Errorf("%s = %v, %v, want ErrNotFound", call, sb, err)
				}
				if left := harness.Objects(t, eng, harness.Named(name)); len(left) > 0 {
					t.Errorf("left are %q", left)
				}
			})
		}
	}
}

// "docker rename" takes the container's name away, which makes it the sandbox. The handle says how to give it back, and not that
// another sandbox could have the workspace.
func TestRenamedContainerIsFoundByItsHandle(t *testing.T) {
	t.Parallel()
	c, eng := harness.NewClient(t), harness.NewEngine(t)
	ctx, sb := t.Context(), harness.CreateWith(t, c, nil)
	mine, other := record.ContainerName(sb.Name()), "renamed-"+sb.Name()
	if err := eng.RenameContainer(ctx, mine, other); err != nil {
		t.Fatal(err)
	}
	_, err := sb.Status(ctx)
	if wayBack := "docker rename " + other + " " + mine; !errors.Is(err, sandbox.ErrNotFound) || !strings.Contains(err.Error(), wayBack) {
		t.Errorf("Status after a renaming: %v, want ErrNotFound and %q", err, wayBack)
	}
	if err := eng.RenameContainer(ctx, other, mine); err != nil {
		t.Fatal(err)
	}
	if st, err := sb.Status(ctx); err != nil || st.State != sandbox.StateRunning {
		t.Errorf("Status with the name again: %v, %v", st.State, err)
	}
}
