package lifecycle_test

import (
	"errors"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

func TestStatus(t *testing.T) {
	t.Parallel()
	sb := harness.NewSandbox(t, sandbox.WithName(harness.UniqueName(t)), sandbox.WithMemory(256<<20), sandbox.WithVCPUs(0.5))
	t.Run("what the session uses", func(t *testing.T) { testUsage(t, sb) })
	t.Run("the size of the workspace", func(t *testing.T) { testWorkspaceSize(t, sb) }) // which stops it
	t.Run("of a stopped sandbox", func(t *testing.T) { testStatusOfStopped(t, sb) })
}

// What a session uses, its memory limit and its processes.
func testUsage(t *testing.T, sb *sandbox.Sandbox) {
	busy := sb.Command(t.Context(), "sh", "-c", "while :; do :; done")
	if err := busy.Start(); err != nil {
		t.Fatal(err)
	}
	st, err := sb.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	u := st.Usage
	if u == nil {
		t.Fatal("Status.Usage of a running sandbox is nil")
	}
	if u.MemoryLimit != 256<<20 || u.MemoryBytes <= 0 || u.MemoryBytes > u.MemoryLimit {
		t.Errorf("memory %d of %d, want a limit of %d", u.MemoryBytes, u.MemoryLimit, 256<<20)
	}
	if u.Processes < 3 || u.Processes > 200 {
		t.Errorf("%d processes; there are PID 1, the server and a shell", u.Processes)
	}
	if u.NetworkReceived < 0 || u.NetworkSent < 0 {
		t.Errorf("network bytes %d and %d", u.NetworkReceived, u.NetworkSent)
	}
	if want := "/sandboxes/" + sb.ID() + "/logs"; st.LogsEndpoint != want {
		t.Errorf("LogsEndpoint %q, want %q", st.LogsEndpoint, want)
	}
	if st.State != sandbox.StateRunning || st.Reason != "" || st.Uptime <= 0 || !st.ExpiresAt.IsZero() {
		t.Errorf("Status = %+v", st)
	}
	// A loop with half a CPU to itself: that it is seen at all is what counts here.
	harness.Eventually(t, "a busy loop shows as CPU use", func() bool {
		st, err := sb.Status(t.Context())
		return err == nil && st.Usage != nil && st.Usage.CPUPercent > 2 && st.Usage.CPUPercent < 200
	})
	busy.Signal(syscall.SIGKILL)
	busy.Wait()
}

// A stopped sandbox has no usage, and asking for it is no error.
func testStatusOfStopped(t *testing.T, sb *sandbox.Sandbox) {
	for _, st := range []sandbox.Status{harness.Inspect(t, sb.Name()), harness.Inspect(t, sb.ID())} {
		if st.Usage != nil || st.Uptime != 0 || st.State != sandbox.StateStopped || st.Reason != "stopped" || st.StartedAt.IsZero() {
			t.Errorf("Inspect of a stopped sandbox = %+v", st)
		}
		if st.LogsEndpoint == "" {
			t.Error("a stopped sandbox has no logs endpoint")
		}
	}
	if st := harness.Inspect(t, sb.Name()); st.State != sandbox.StateStopped {
		t.Errorf("Inspect resumed the sandbox: it is %s", st.State)
	}
}

// The size of the workspace, for people as well, with and without a session.
func testWorkspaceSize(t *testing.T, sb *sandbox.Sandbox) {
	harness.Run(t, sb, "sh", "-c", "head -c 1572864 /dev/urandom >/workspace/file; mkdir /workspace/dir; echo >/tmp/outside")
	check := func() {
		t.Helper()
		w := harness.Inspect(t, sb.Name()).Workspace
		if w.Name != "agent-sandbox-"+sb.ID() || w.SizeBytes < 1572864 || w.SizeBytes > 1700000 || w.Size != "1.5 MB" || w.Warning != "" {
			t.Errorf("Workspace = %+v, want 1.5 MB", w)
		}
		if !slices.Equal(w.Sandboxes, []string{sb.Name()}) || !w.InUse || w.Orphaned {
			t.Errorf("Workspace = %+v, in use by the sandbox alone", w)
		}
	}
	check()
	if _, err := sb.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	check()
}

// No such sandbox is a 404, a name that can't be one an invalid argument.
func TestInspectSaysThatASandboxIsNotFound(t *testing.T) {
	t.Parallel()
	_, err := harness.NewClient(t).Inspect(t.Context(), harness.UniqueName(t))
	var e *sandbox.Error
	if !errors.Is(err, sandbox.ErrNotFound) || !errors.As(err, &e) || e.StatusCode() != 404 || !strings.Contains(err.Error(), "Sandbox not found") {
		t.Errorf("Inspect of a missing sandbox: %v", err)
	}
	if _, err := harness.NewClient(t).Inspect(t.Context(), "../x"); !errors.Is(err, sandbox.ErrInvalidArgument) {
		t.Errorf("Inspect(%q): %v, want ErrInvalidArgument", "../x", err)
	}
}

// The newest first; tags must all hold, the prefix and the state narrow further.
func TestListTellsOfEverySandbox(t *testing.T) {
	t.Parallel()
	c := harness.NewClient(t)
	prefix := harness.UniqueName(t)
	began := time.Now().Add(-time.Minute)
	create := func(suffix, color, size string) *sandbox.Sandbox {
		t.Helper()
		return harness.NewSandbox(t, sandbox.WithName(prefix+suffix), sandbox.WithTags(map[string]string{"color": color, "size=é": size}))
	}
	running, stopped, paused := create("-a", "red", ""), create("-b", "red", "xl"), create("-c", "blue", "s")
	if _, err := stopped.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	harness.Pause(t, harness.NewEngine(t), record.ContainerName(paused.Name()))
	list, err := c.List(t.Context(), sandbox.ListOptions{Prefix: prefix})
	if err != nil || len(list) != 3 {
		t.Fatalf("List = %+v, %v; want three", list, err)
	}
	for i, want := range []struct {
		sb    *sandbox.Sandbox
		state sandbox.State
	}{{paused, "paused"}, {stopped, "stopped"}, {running, "running"}} {
		got := list[i]
		if got.ID != want.sb.ID() || got.Name != want.sb.Name() || got.State != want.state || got.Location != "local" || got.Image != sandbox.DefaultImage {
			t.Errorf("List[%d] = %+v; want %s, %s", i, got, want.sb.Name(), want.state)
		}
		if got.CreatedAt.Before(began) || got.CreatedAt.After(time.Now().Add(time.Minute)) {
			t.Errorf("List[%d].CreatedAt = %v", i, got.CreatedAt)
		}
	}
	for _, test := range []struct {
		what string
		opts sandbox.ListOptions
		want []string
	}{
		{"newest first", sandbox.ListOptions{}, []string{"-c", "-b", "-a"}},
		{"one tag", sandbox.ListOptions{Tags: map[string]string{"color": "red"}}, []string{"-b", "-a"}},
		{"two tags", sandbox.ListOptions{Tags: map[string]string{"color": "red", "size=é": "xl"}}, []string{"-b"}},
		{"an empty value", sandbox.ListOptions{Tags: map[string]string{"size=é": ""}}, []string{"-a"}},
		{"a missing key", sandbox.ListOptions{Tags: map[string]string{"shape": ""}}, []string{}},
		{"state", sandbox.ListOptions{States: []sandbox.State{sandbox.StateRunning}}, []string{"-a"}},
		{"state in words", sandbox.ListOptions{States: []sandbox.State{"running"}}, []string{"-a"}},
		{"another state", sandbox.ListOptions{States: []sandbox.State{sandbox.StateStopped}}, []string{"-b"}},
		{"states", sandbox.ListOptions{States: []sandbox.State{sandbox.StatePaused, sandbox.StateStopped}}, []string{"-c", "-b"}},
		{"states that none has", sandbox.ListOptions{States: []sandbox.State{sandbox.StateCreating, sandbox.StateError}}, []string{}},
		{"state and tag", sandbox.ListOptions{States: []sandbox.State{sandbox.StateRunning}, Tags: map[string]string{"size=é": "xl"}}, []string{}},
		{"a longer prefix", sandbox.ListOptions{Prefix: prefix + "-b"}, []string{"-b"}},
	} {
		if test.opts.Prefix == "" {
			test.opts.Prefix = prefix
		}
		list, err := c.List(t.Context(), test.opts)
		got := []string{}
		for _, i := range list {
			got = append(got, strings.TrimPrefix(i.Name, prefix))
		}
		if err != nil || !slices.Equal(got, test.want) {
			t.Errorf("List by %s = %q, %v; want %q", test.what, got, err, test.want)
		}
	}
}

func TestListRefusesWhatNoSandboxHas(t *testing.T) {
	t.Parallel()
	c := harness.NewClient(t)
	for _, states := range [][]sandbox.State{{"runing"}, {""}} {
		if _, err := c.List(t.Context(), sandbox.ListOptions{States: states}); !errors.Is(err, sandbox.ErrInvalidArgument) {
			t.Errorf("List by a state that does not exist: %v, want ErrInvalidArgument", err)
		}
	}
}

// However many ask for the size of a workspace at once, few helpers and few processes in the
// sandbox measure it: callers share what was measured since they asked.
func TestSizesAreSharedByThoseWhoAskAtOnce(t *testing.T) {
	t.Parallel()
	const callers = 40
	for name, test := range map[string]struct {
		stopped  bool
		measures *regexp.Regexp
		most     int64 // three times what runs at once, the third for those who hear late that they may, and what places the guest
	}{
		"stopped": {true, regexp.MustCompile(`^POST .*/containers/create$`), 8},
		"running": {false, regexp.MustCompile(`^POST .*/containers/[^/]+/exec$`), 24},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sb := harness.NewSandbox(t, sandbox.WithName(harness.UniqueName(t)), harness.Quick)
			harness.Write(t, sb, "file", strings.Repeat("x", 1<<20))
			if test.stopped {
				if _, err := sb.Stop(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			var asked, measured atomic.Int64
			all := make(chan struct{})
			host := harness.InFront(t, func(_ http.ResponseWriter, r *http.Request) bool {
				call := r.Method + " " + r.URL.Path
				if strings.HasSuffix(call, "/volumes/agent-sandbox-"+sb.ID()) && asked.Add(1) == callers {
					close(all)
				}
				if test.measures.MatchString(call) {
					measured.Add(1)
					select { // until everybody has asked
					case <-all:
					case <-r.Context().Done():
					}
				}
				return false
			}, nil)
			c := harness.NewClient(t, sandbox.WithHost(host))
			var done sync.WaitGroup
			for range callers {
				done.Go(func() {
					st, err := c.Inspect(t.Context(), sb.Name())
					if err != nil || st.Workspace.SizeBytes < 1<<20 {
						t.Errorf("Inspect: %d bytes, %v; want a megabyte or more", st.Workspace.SizeBytes, err)
					}
				})
			}
			done.Wait()
			if n := measured.Load(); n == 0 || n > test.most {
				t.Errorf("%d callers started %d measurements, want 1 to %d", callers, n, test.most)
			}
		})
	}
}

// A sandbox that was measured a moment ago takes one call of the engine, and its use of the CPU is the
// mean since then, as the engine counts it.
func TestUsageGoesOnFromTheOneBefore(t *testing.T) {
	t.Parallel()
	proxy := enginetest.NewProxy(t)
	c := harness.NewClient(t, sandbox.WithHost(proxy.Host()))
	sb := harness.NewSandbox(t)
	busy := sb.Command(t.Context(), "sh", "-c", "while :; do :; done")
	if err := busy.Start(); err != nil {
		t.Fatal(err)
	}
	defer busy.Wait()
	defer busy.Kill()
	eng := harness.NewEngine(t)
	sample := func() engine.Stats {
		s, ok, err := eng.Stats(t.Context(), record.ContainerName(sb.Name()))
		if err != nil || !ok {
			t.Fatalf("Stats: %v, %v", ok, err)
		}
		return s
	}
	measure := func() (u sandbox.Usage, samples int) {
		proxy.Arm(0, enginetest.None, nil)
		all, err := c.ListUsage(t.Context(), sandbox.ListOptions{Prefix: sb.Name()})
		if err != nil || len(all) != 1 {
			t.Fatalf("ListUsage: %+v, %v, want one", all, err)
		}
		for _, call := range proxy.Calls() {
			if strings.HasSuffix(call, "/stats") {
				samples++
			}
		}
		return all[sb.ID()], samples
	}
	if _, n := measure(); n != 2 {
		t.Errorf("the first time it takes %d samples, want 2", n)
	}
	from := sample()
	for sample().CPU < from.CPU+time.Second { // much longer than between two samples
		time.Sleep(10 * time.Millisecond)
	}
	u, n := measure()
	to := sample()
	if n != 1 {
		t.Errorf("the second time it takes %d samples, want 1", n)
	}
	// What it used between the two, over a time that is a little longer or shorter.
	if want := 100 * float64(to.CPU-from.CPU) / float64(to.Read.Sub(from.Read)); u.CPUPercent < want/2 || u.CPUPercent > 2*want {
		t.Errorf("it uses %.0f%% of a CPU, want about %.0f%%", u.CPUPercent, want)
	}
}
