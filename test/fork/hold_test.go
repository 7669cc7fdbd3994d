package fork_test

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// pauses returns the calls by which the engine was to pause a container.
func pauses(p *enginetest.Proxy) (calls []string) {
	for _, call := range p.Calls() {
		if strings.HasSuffix(call, "/pause") {
			calls = append(calls, call)
		}
	}
	return calls
}

// The engine pauses nothing for a commit, whether for forks or for a snapshot: a pause that meets an
// exec can be for good. forkedWhile sees the same of a single fork, [TestMarksOfALayerAreKept] of
// copied files.
func TestCommitsDoNotPause(t *testing.T) {
	t.Parallel()
	proxy := enginetest.NewProxy(t)
	proxy.HideLayers()
	c := harness.NewClient(t, sandbox.WithHost(proxy.Host()))
	source := harness.CreateWith(t, c, nil, sandbox.WithImage(harness.SmallImage(t)))
	harness.Write(t, source, "/srv/b", "b") // there is something to commit
	proxy.Arm(0, enginetest.None, nil)
	forkedN(t, c, source.Name(), 1)
	harness.SnapshotOf(t, c, source, sandbox.SnapshotOptions{})
	if calls := pauses(proxy); len(calls) > 0 {
		t.Errorf("the engine was asked for %q", calls)
	}
	if !slices.ContainsFunc(proxy.Calls(), func(call string) bool { return strings.HasSuffix(call, "/commit") }) {
		t.Errorf("there was no commit: %q", proxy.Calls())
	}
}

// An engine that can't pause, as one without cgroups, copies what is stopped. Of a sandbox that runs
// and whose processes can't be held it says that.
func TestForkOnAnEngineThatCannotPause(t *testing.T) {
	t.Parallel()
	const reason = "cannot toggle freezer: cgroups not configured for container"
	proxy := enginetest.NewProxyTo(t, harness.InFront(t, func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.HasSuffix(r.URL.Path, "/pause") {
			return false
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusInternalServerError)
		_ = json.NewEncoder(w).Encode(map[string]string{"message": reason})
		return true
	}, nil))
	proxy.PartNetworks()
	c := harness.NewClient(t, sandbox.WithHost(proxy.Host()))
	source := harness.CreateWith(t, c, nil)
	_, err := c.Fork(t.Context(), source.Name())
	if !errors.Is(err, sandbox.ErrUnsupported) || !strings.Contains(err.Error(), reason) || !strings.Contains(err.Error(), "stop it first") || strings.Contains(err.Error(), "unpaused while") {
		t.Errorf("Fork of a running sandbox = %v; want ErrUnsupported with what the engine says", err)
	}
	if _, err := source.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	forked(t, c, source.Name())
}

// forkedWhile forks a source by commit, and calls during while its processes are held for the first
// time.
func forkedWhile(t *testing.T, source *sandbox.Sandbox, during func()) *sandbox.Sandbox {
	t.Helper()
	proxy := enginetest.NewProxy(t)
	proxy.HideLayers()
	harness.Run(t, source, "touch", "/etc/b") // there is something to commit
	c := harness.NewClient(t, sandbox.WithHost(proxy.Host()))
	proxy.ArmAt("/commit", enginetest.Cancel, during)
	fork := forked(t, c, source.Name())
	if !proxy.Fired() {
		t.Fatalf("there was no commit: %q", proxy.Calls())
	}
	if calls := pauses(proxy); len(calls) > 0 {
		t.Errorf("the engine was asked for %q", calls)
	}
	return fork
}

// What the handle writes and starts during a hold comes after it, and PID 1 answers meanwhile, on a
// new connection, too. A hold lasts for as long as a commit does, although nobody may be silent for
// that long.
func TestHandleDuringAHold(t *testing.T) {
	t.Parallel()
	c := harness.NewClient(t)
	source := harness.CreateWith(t, c, nil, sandbox.WithTimeout(time.Hour))
	another, err := harness.NewClient(t).Get(t.Context(), source.Name(), sandbox.WithoutResume())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { another.Detach() })
	file, err := source.OpenFile(t.Context(), "open", 0x42, 0o644) // O_RDWR, O_CREATE
	if err != nil {
		t.Fatal(err)
	}
	var waiting sync.WaitGroup
	fork := forkedWhile(t, source, func() {
		ended := make(chan string, 3)
		for what, f := range map[string]func() error{
			"a replaced file": func() error { return source.WriteFile(t.Context(), "w", []byte("w"), 0o644) },
			"an open file":    func() error { _, err := io.WriteString(file, "x"); return err },
			"a command":       func() error { return source.Command(t.Context(), "touch", "/workspace/c").Run() },
		} {
			waiting.Go(func() {
				if err := f(); err != nil {
					t.Errorf("%s: %v", what, err)
				}
				ended <- what
			})
		}
		for _, sb := range []*sandbox.Sandbox{source, another} {
			if err := sb.ExtendTimeout(t.Context(), time.Minute); err != nil {
				t.Errorf("ExtendTimeout during a hold: %v", err)
			}
		}
		select {
		case what := <-ended:
			t.Errorf("%s did not wait for the end of the hold", what)
		case <-time.After(wire.HoldSilence + time.Second): // for them to end, if they could
		}
	})
	waiting.Wait()
	const show = "cd /workspace; ls; cat open"
	if out := harness.Run(t, fork, "sh", "-c", show); out != "open" {
		t.Errorf("the fork has %q", out)
	}
	if out := harness.Run(t, source, "sh", "-c", show); out != "c\nopen\nw\nx" {
		t.Errorf("the source has %q", out)
	}
	if err := file.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	foreignExecDuringAHold(t, source)
}

// What somebody else executes during a hold is noticed, and the source is copied again. What was
// committed before goes.
func foreignExecDuringAHold(t *testing.T, source *sandbox.Sandbox) {
	t.Helper()
	eng := harness.NewEngine(t)
	strange := harness.StrayImages(t, eng)
	fork := forkedWhile(t, source, func() {
		stream, err := eng.Exec(t.Context(), record.ContainerName(source.Name()), engine.ExecSpec{Argv: []string{"sh", "-c", "echo again >/workspace/w; rm /etc/b"}})
		if err != nil {
			t.Errorf("exec: %v", err)
			return
		}
		defer stream.Close()
		io.Copy(io.Discard, stream)
	})
	if out := harness.Run(t, fork, "sh", "-c", "cat /workspace/w; ls /etc/b 2>&1 || true"); !strings.HasPrefix(out, "again\n") || !strings.Contains(out, "No such file") {
		t.Errorf("the fork has %q", out)
	}
	if _, err := fork.Delete(t.Context(), sandbox.DeleteOptions{Volumes: true}); err != nil {
		t.Errorf("Delete: %v", err)
	}
	harness.NoImages(t, eng, strange) // neither that of the first try
}

// A program whose own timer continues it whenever it is stopped can't be held: then the engine pauses the
// sandbox, which nothing inside undoes.
func TestSourceThatCanNotBeHeld(t *testing.T) {
	t.Parallel()
	proxy := enginetest.NewProxy(t)
	c := harness.NewClient(t, sandbox.WithHost(proxy.Host()))
	source := harness.CreateWith(t, c, nil)
	start := func() *sandbox.Cmd {
		t.Helper()
		program := source.Command(t.Context(), "perl", "-e", `
my ($create, $set) = `+"`uname -m`"+` =~ /x86/ ? (222, 223) : (107, 110);
$SIG{CONT} = sub {};
for my $i (1..20) { # a stop that meets the signal of a timer takes it away for good
	my ($cont, $timer) = (18, pack("q", 0));
	syscall($create, 1, my $event = pack("qllx48", 0, $cont, 0), $timer) == 0 or die $!;
	my $ns = 1000000 + $i * 37000;
	syscall($set, unpack("q", $timer), 0, my $every = pack("q4", 0, $ns, 0, $ns), 0) == 0 or die $!;
}
$| = 1; print "on\n"; select(undef, undef, undef, 0.01) while 1`)
		out, err := program.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := program.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := out.Read(make([]byte, 3)); err != nil {
			t.Fatal(err)
		}
		return program
	}
	// On a busy machine the program may get no CPU while it is to be held, and then it is: the next
	// try has another one beside it.
	for try := 1; len(pauses(proxy)) == 0; try++ {
		if try > 12 {
			t.Fatal("the engine never paused it")
		}
		program := start()
		defer program.Wait()
		defer program.Kill()
		harness.Run(t, forked(t, c, source.Name()), "true")
	}
	if st, err := c.Inspect(t.Context(), source.Name()); err != nil || st.State != sandbox.StateRunning {
		t.Errorf("the source is %v, %v", st.State, err)
	}
}

// Programs that read lines notice nothing of a hold: neither a shell whose job is in the foreground,
// nor one that would run a handler when a job of its own stops. Only who handles SIGCONT is told.
func TestProgramsDuringAHold(t *testing.T) {
	t.Parallel()
	proxy := enginetest.NewProxy(t)
	c := harness.NewClient(t, sandbox.WithHost(proxy.Host()))
	source := harness.CreateWith(t, c, nil, sandbox.WithUser("root"))
	type program struct {
		name, typed string // typed before the hold, to begin with
		argv        []string
		pipes       bool // instead of a terminal
		told        bool
		in          io.WriteCloser
		out         io.Reader
		seen        string
	}
	expect := func(p *program, text string) {
		t.Helper()
		for buf := make([]byte, 4096); !strings.Contains(p.seen, text); {
			n, err := p.out.Read(buf)
			p.seen += string(buf[:n])
			if err != nil {
				t.Fatalf("%s: %v after %q, want %q", p.name, err, p.seen, text)
			}
		}
	}
	const echo = `sed -u s/^/got-/`
	bash := []string{"bash", "--norc", "-i"}
	programs := []*program{
		{name: "bash with a job", argv: bash, typed: echo + "\n"},
		{name: "bash with a pipeline", argv: bash, typed: "cat | " + echo + "\n"},
		{name: "bash with a handler for its jobs", argv: []string{"bash", "-mc", "trap 'echo changed' CHLD; " + echo}},
		{name: "script", argv: []string{"script", "-qc", echo, "/dev/null"}},
		{name: "su with a terminal", argv: []string{"su", "--pty", "node", "-c", echo}},
		{name: "bash that reads with a timeout", argv: []string{"bash", "-c", "while read -t 60 line; do echo got-$line; done; echo changed"}, pipes: true},
		{name: "bash that handles SIGCONT", argv: []string{"bash", "-c", "trap 'echo changed' CONT; while read line; do echo got-$line; done"}, pipes: true, told: true},
		{name: "node", argv: []string{"node", "-e", `process.stdin.on("data", d => process.stdout.write("got-" + d)).on("error", e => console.log("changed", e))`}, pipes: true},
		{name: "node that handles SIGCONT", argv: []string{"node", "-e", `process.stdin.on("data", d => process.stdout.write("got-" + d)); process.on("SIGCONT", () => console.log("changed"))`}, pipes: true, told: true},
		{name: "perl that waits for its child to stop", argv: []string{"perl", "-e", `use POSIX ":sys_wait_h"; exec qw(` + echo + `) unless my $pid = fork; waitpid($pid, WUNTRACED); print "changed\n"`}, pipes: true},
	}
	for _, p := range programs {
		cmd := source.Command(t.Context(), p.argv[0], p.argv[1:]...)
		cmd.TTY, cmd.Timeout = !p.pipes, harness.CallBound
		var err error
		if p.in, err = cmd.StdinPipe(); err != nil {
			t.Fatal(err)
		}
		if p.out, err = cmd.StdoutPipe(); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatalf("%s: %v", p.name, err)
		}
		t.Cleanup(func() {
			_ = cmd.Kill() // it may have ended
			_ = cmd.Wait()
		})
		io.WriteString(p.in, p.typed+"before\n")
		expect(p, "got-before")
	}
	// On a busy machine they may not stand still in time, and then the engine pauses them.
	for try, paused := 1, -1; len(pauses(proxy)) != paused; try++ {
		if try > 8 {
			t.Fatal("they were never held")
		}
		paused = len(pauses(proxy))
		forked(t, c, source.Name())
	}
	for _, p := range programs {
		io.WriteString(p.in, "after\n")
		expect(p, "got-after")
		if p.told {
			expect(p, "changed")
		} else if strings.Contains(p.seen, "changed") || strings.Contains(p.seen, "Stopped") {
			t.Errorf("%s noticed the hold: %q", p.name, p.seen)
		}
		t.Logf("%s: %q", p.name, p.seen)
	}
}

// A source that is stopped and started during each try of a copy is busy: a conflict, and no fault of the library's.
func TestForkOfASourceThatNeverStaysIsAConflict(t *testing.T) {
	t.Parallel()
	source := harness.CreateWith(t, harness.NewClient(t), nil)
	proxy := enginetest.NewProxyTo(t, harness.InFront(t, func(_ http.ResponseWriter, r *http.Request) bool {
		if strings.HasSuffix(r.URL.Path, "/pause") {
			if err := errors.Join(harness.Second(source.Stop(r.Context())), harness.Second(source.Start(r.Context()))); err != nil {
				t.Errorf("stop and start the source: %v", err)
			}
		}
		return false
	}, nil))
	proxy.PartNetworks() // a hold would notice at once
	c := harness.NewClient(t, sandbox.WithHost(proxy.Host()))
	for what, do := range map[string]func() error{
		"Fork": func() error { return harness.Second(c.Fork(t.Context(), source.Name())) },
		"Snapshot": func() error {
			sb, err := c.Get(t.Context(), source.Name())
			if err != nil {
				return err
			}
			defer sb.Detach()
			return harness.Second(sb.Snapshot(t.Context(), sandbox.SnapshotOptions{}))
		},
	} {
		err := do()
		var e *sandbox.Error
		if !errors.As(err, &e) || e.StatusCode() != http.StatusConflict || !errors.Is(err, syscall.EBUSY) || !strings.Contains(err.Error(), "started, stopped or unpaused while") {
			t.Errorf("%s = %v, want EBUSY, which is a conflict", what, err)
		}
	}
}
