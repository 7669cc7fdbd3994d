package exec_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

func init() {
	// commands NAME starts an attached and a detached command, says so, and waits to be
	// killed.
	harness.AddRole("commands", func(args []string) error {
		ctx := context.Background()
		sb, err := sandbox.Get(ctx, args[0])
		if err != nil {
			return err
		}
		attached := sb.Command(ctx, "sleep", "100001")
		if err := attached.Start(); err != nil {
			return err
		}
		detached := sb.Command(ctx, "sh", "-c", "echo early; while ! test -e go; do sleep 0.02; done; echo late; exit 7")
		detached.Detached = true
		if err := detached.Start(); err != nil {
			return err
		}
		fmt.Println(attached.Pid(), detached.ID())
		select {}
	})
	// reattach NAME ID prints what a detached command wrote and how it ended.
	harness.AddRole("reattach", func(args []string) error {
		ctx := context.Background()
		sb, err := sandbox.Get(ctx, args[0])
		if err != nil {
			return err
		}
		defer sb.Detach()
		cmd, err := sb.Process(ctx, args[1])
		if err != nil {
			return err
		}
		out, err := cmd.Output()
		fmt.Printf("%s%s%v", out, cmd, harness.ExitCode(err))
		return nil
	})
}

func sh(t *testing.T, sb *sandbox.Sandbox, script string) *sandbox.Cmd {
	t.Helper()
	return sb.Command(t.Context(), "sh", "-c", script)
}

// Commands: argv is never parsed by a shell.
func TestArgumentsArriveAsTheyAre(t *testing.T) {
	t.Parallel()
	args := []string{"", " ", "a b", "$HOME", "`id`", "$(id)", "a\nb", "'", `"`, `\`, "*", "~", ";", "&&", "--", "-n", "ünï", "\xff\xfe", "\x01", "!", "{a,b}", strings.Repeat("x", 64<<10)}
	cmd := harness.Shared(t).Command(t.Context(), "printf", append([]string{`%s\0`}, args...)...)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("printf: %v", err)
	}
	if diff := cmp.Diff(args, strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")); diff != "" {
		t.Errorf("arguments (-given +arrived):\n%s", diff)
	}
}

// Commands: Args[0] is the program's own name, and Path what is run.
func TestArgsZeroIsTheNameOnly(t *testing.T) {
	t.Parallel()
	cmd := harness.Shared(t).Command(t.Context(), "/bin/bash", "-c", "echo $0")
	cmd.Args = []string{"another", "-c", "ps -o args= -p $$; true"}
	if out, err := cmd.Output(); err != nil || !strings.HasPrefix(string(out), "another -c") {
		t.Errorf("Output = %q, %v; want another", out, err)
	}
}

// Commands: the last of a key wins, and what is not set stays.
func TestEnvAddsToTheSandboxes(t *testing.T) {
	t.Parallel()
	cmd := sh(t, harness.Shared(t), `printf '%s|%s|%s|%s' "$A" "$EMPTY" "${EMPTY-unset}" "$HOME"`)
	big := strings.Repeat("v", 100<<10)
	cmd.Env = []string{"A=1", "A=" + big, "EMPTY="}
	if out, err := cmd.Output(); err != nil || string(out) != big+"|||/root" {
		t.Errorf("Output = %d bytes, %v", len(out), err)
	}
}

// Commands: the command's directory, else the sandbox's, else /workspace.
func TestDirectory(t *testing.T) {
	t.Parallel()
	away := harness.NewSandbox(t, sandbox.WithWorkdir("/srv/deep/er"))
	harness.Run(t, away, "mkdir", "-p", "sub")
	for _, tt := range []struct {
		sb        *sandbox.Sandbox
		dir, want string
	}{
		{harness.Shared(t), "", "/workspace"},
		{harness.Shared(t), "/tmp", "/tmp"},
		{harness.Shared(t), "..", "/"},
		{harness.Shared(t), ".", "/workspace"},
		{away, "", "/srv/deep/er"},
		{away, "sub", "/srv/deep/er/sub"},
		{away, "/tmp", "/tmp"},
	} {
		cmd := tt.sb.Command(t.Context(), "pwd", "-P")
		cmd.Dir = tt.dir
		if out, err := cmd.Output(); err != nil || string(out) != tt.want+"\n" {
			t.Errorf("Dir %q: pwd = %q, %v; want %s", tt.dir, out, err, tt.want)
		}
	}
}

// The error of a directory that is not there names it, also if it is the sandbox's own.
func TestMissingDirectoryIsNamed(t *testing.T) {
	t.Parallel()
	sb := harness.NewSandbox(t, sandbox.WithWorkdir("/srv/gone"))
	harness.Run(t, sb, "rmdir", "/srv/gone")
	for dir, want := range map[string]string{"": "/srv/gone", "sub": "/srv/gone/sub", "/nowhere": "/nowhere"} {
		cmd := sb.Command(t.Context(), "true")
		cmd.Dir = dir
		err := cmd.Run()
		var path *fs.PathError
		if !errors.As(err, &path) || path.Op != "chdir" || path.Path != want || !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("Dir %q: %v, want that there is no %s", dir, err, want)
		}
	}
}

// Commands: what can't start says why, in Go's own terms.
func TestCommandsThatCannotStart(t *testing.T) {
	t.Parallel()
	sb := harness.Shared(t)
	for _, tt := range []struct {
		name string
		set  func(c *sandbox.Cmd)
		want error
		say  string
	}{
		{"no-such-program", nil, exec.ErrNotFound, `"no-such-program"`},
		{"/no/such/program", nil, exec.ErrNotFound, "/no/such/program"},
		{"true", func(c *sandbox.Cmd) { c.Env = []string{"PATH=/nowhere"} }, exec.ErrNotFound, "true"},
		{"/etc/passwd", nil, fs.ErrPermission, "/etc/passwd"},
		{"/workspace", nil, fs.ErrPermission, "/workspace"},
		{"true", func(c *sandbox.Cmd) { c.Dir = "/no/such/dir" }, fs.ErrNotExist, "/no/such/dir"},
		{"true", func(c *sandbox.Cmd) { c.Dir = "/etc/passwd" }, nil, "/etc/passwd"},
		{"true", func(c *sandbox.Cmd) { c.User = "nobody-here" }, sandbox.ErrInvalidArgument, "nobody-here"},
		{"true", func(c *sandbox.Cmd) { c.User = "0:nogroup-here" }, sandbox.ErrInvalidArgument, "nogroup-here"},
		{"", nil, sandbox.ErrInvalidArgument, "no program"},
		{"a\x00b", nil, sandbox.ErrInvalidArgument, "NUL"},
		{"true", func(c *sandbox.Cmd) { c.Args = []string{"true", "\x00"} }, sandbox.ErrInvalidArgument, "NUL"},
		{"true", func(c *sandbox.Cmd) { c.Dir = "/\x00" }, sandbox.ErrInvalidArgument, "NUL"},
		{"true", func(c *sandbox.Cmd) { c.User = "\x00" }, sandbox.ErrInvalidArgument, "NUL"},
		{"true", func(c *sandbox.Cmd) { c.Env = []string{"A=1", "novalue"} }, sandbox.ErrInvalidArgument, "entry 1 is not key=value"},
		{"true", func(c *sandbox.Cmd) { c.Env = []string{"=x"} }, sandbox.ErrInvalidArgument, "key"},
		{"true", func(c *sandbox.Cmd) { c.Env = []string{"A=\x00"} }, sandbox.ErrInvalidArgument, "NUL"},
		{"true", func(c *sandbox.Cmd) { c.Env = []string{"A=" + strings.Repeat("x", 128<<10)} }, sandbox.ErrInvalidArgument, "128 KiB"},
		{"true", func(c *sandbox.Cmd) { c.Args = []string{"true", strings.Repeat("x", 128<<10)} }, sandbox.ErrInvalidArgument, "argument list too long"},
		{"true", func(c *sandbox.Cmd) { c.Args = []string{"true", strings.Repeat("x", 128<<10)} }, syscall.E2BIG, "argument list too long"},
		{"true", func(c *sandbox.Cmd) { c.Args = slices.Repeat([]string{"true", strings.Repeat("x", 100<<10)}, 30) }, syscall.E2BIG, "argument list too long"},
		{"true", func(c *sandbox.Cmd) { c.Args = slices.Repeat([]string{"true", strings.Repeat("x", 100<<10)}, 400) }, syscall.E2BIG, "argument list too long"},
		{"true", func(c *sandbox.Cmd) { c.Env = []string{"A=" + strings.Repeat("x", 128<<10)} }, syscall.E2BIG, "argument list too long"},
		{"true", func(c *sandbox.Cmd) { c.Timeout = -1 }, sandbox.ErrInvalidArgument, "Timeout"},
	} {
		cmd := sb.Command(t.Context(), tt.name)
		if tt.set != nil {
			tt.set(cmd)
		}
		err := cmd.Run()
		var e *sandbox.Error
		if err == nil || tt.want != nil && !errors.Is(err, tt.want) || !strings.Contains(err.Error(), tt.say) || !errors.As(err, &e) || e.Op != "exec" || e.Name != sb.Name() {
			t.Errorf("%q: Run = %v; want %v with %q", tt.name, err, tt.want, tt.say)
		}
	}
}

// Commands: a program needs a directory that its user may enter, and its own bits.
func TestPermissionIsTheUsers(t *testing.T) {
	t.Parallel()
	sb, dir := ownDir(t)
	harness.Run(t, sb, "sh", "-c", `cd "$0"; mkdir -m 700 mine; cp /bin/true mine/; cp /bin/true here; chmod 700 here`, dir)
	for what, set := range map[string]func(*sandbox.Cmd){
		"a directory": func(c *sandbox.Cmd) { c.Dir = dir + "/mine" },
		"a program":   func(c *sandbox.Cmd) { c.Path = dir + "/here" },
	} {
		cmd := sb.Command(t.Context(), "true")
		cmd.User = "node"
		set(cmd)
		if err := cmd.Run(); err == nil || what == "a program" && !errors.Is(err, fs.ErrPermission) {
			t.Errorf("%s of another: Run = %v; want a refusal", what, err)
		}
	}
}

// Commands: exit codes are the program's.
func TestExitCodes(t *testing.T) {
	t.Parallel()
	sb := harness.Shared(t)
	for _, code := range []int{1, 2, 42, 126, 127, 128, 137, 255} {
		err := sh(t, sb, fmt.Sprintf("exit %d", code)).Run()
		var exit *sandbox.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != code || exit.Signal != nil {
			t.Errorf("exit %d: Run = %v; want that code and no signal", code, err)
		} else if want := fmt.Sprintf("sandbox: exec %q: sh: exit status %d", sb.Name(), code); exit.Error() != want {
			t.Errorf("it reads %q, want %q", exit.Error(), want)
		}
	}
	if err := sh(t, sb, "exit 0").Run(); err != nil {
		t.Errorf("exit 0: Run = %v", err)
	}
}

// Commands: a signal is 128+n and named, whoever sent it.
func TestSignalDeaths(t *testing.T) {
	t.Parallel()
	sb := harness.Shared(t)
	for sig, code := range map[syscall.Signal]int{syscall.SIGINT: 130, syscall.SIGKILL: 137, syscall.SIGTERM: 143, syscall.SIGUSR1: 138, syscall.SIGSEGV: 139, 34: 162, 64: 192} {
		own := sh(t, sb, fmt.Sprintf("kill -%d $$", sig)).Run()
		cmd := sb.Command(t.Context(), "sleep", "1000")
		if err := cmd.Start(); err != nil {
			t.Fatalf("Start: %v", err)
		}
		if err := cmd.Signal(syscall.Signal(0)); err != nil {
			t.Errorf("Signal 0: %v", err)
		}
		if err := cmd.Signal(sig); err != nil {
			t.Errorf("Signal: %v", err)
			cmd.Kill()
		}
		for _, err := range []error{own, cmd.Wait()} {
			var exit *sandbox.ExitError
			if !errors.As(err, &exit) || exit.ExitCode() != code || exit.Signal != sig || !strings.Contains(err.Error(), "signal: ") {
				t.Errorf("%v: got %v; want code %d and the signal", sig, err, code)
			}
		}
		if err := cmd.Signal(sig); !errors.Is(err, os.ErrProcessDone) {
			t.Errorf("Signal to a command that ended = %v; want os.ErrProcessDone", err)
		}
		if err := cmd.Signal(syscall.Signal(0)); !errors.Is(err, os.ErrProcessDone) {
			t.Errorf("Signal 0 to a command that ended = %v; want os.ErrProcessDone", err)
		}
	}
}

// Signals go to the whole group.
func TestSignalReachesTheGroup(t *testing.T) {
	t.Parallel()
	cmd := sh(t, harness.Shared(t), "sleep 1000 | sleep 1000; echo never")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatalf("Start: %v", err)
	}
	if err := cmd.Signal(syscall.SIGTERM); err != nil {
		t.Errorf("Signal: %v", err)
	}
	if got, err := io.ReadAll(out); len(got) > 0 || err != nil {
		t.Errorf("output %q, %v", got, err)
	}
	if err := cmd.Wait(); harness.ExitCode(err) != 143 {
		t.Errorf("Wait = %v; want 143", err)
	}
}

// alive says whether a process of that argument list lives in the sandbox.
func alive(t *testing.T, sb *sandbox.Sandbox, argv string) bool {
	t.Helper()
	out, err := sb.Command(context.WithoutCancel(t.Context()), "ps", "-eo", "args=").Output()
	if err != nil {
		t.Fatalf("ps: %v", err)
	}
	for line := range strings.Lines(string(out)) {
		if strings.TrimSpace(line) == argv {
			return true
		}
	}
	return false
}

// unique is a number of seconds that nobody else sleeps.
func unique() string { return strconv.Itoa(1e6 + rand.IntN(1e9)) }

// Commands: the whole process group dies, and a child that left it by setsid.
func TestCancelKillsEverything(t *testing.T) {
	t.Parallel()
	sb := harness.Shared(t)
	group, session := unique(), unique()
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	cmd := sb.Command(ctx, "sh", "-c", "sleep "+group+" & setsid sleep "+session+" & trap '' TERM INT; wait")
	if err := cmd.Start(); err != nil {
		t.Fatalf("Start: %v", err)
	}
	harness.Eventually(t, "both run", func() bool { return alive(t, sb, "sleep "+group) && alive(t, sb, "sleep "+session) })
	cause := errors.New("the user pressed stop")
	began := time.Now()
	cancel(cause)
	err := cmd.Wait()
	if d := time.Since(began); d > time.Minute {
		t.Errorf("Wait took %v after the cancel", d)
	}
	var exit *sandbox.ExitError
	if !errors.Is(err, cause) || !errors.Is(err, context.Canceled) || errors.As(err, &exit) {
		t.Errorf("Wait = %v; want the cause and context.Canceled", err)
	}
	harness.Eventually(t, "all are dead", func() bool { return !alive(t, sb, "sleep "+group) && !alive(t, sb, "sleep "+session) })
	if d := time.Since(began); d > time.Minute {
		t.Errorf("they died after %v", d)
	}
}

// A context that has ended starts nothing; a deadline is named as such.
func TestEndedContextStartsNothing(t *testing.T) {
	t.Parallel()
	sb := harness.Shared(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	cmd := sb.Command(ctx, "sleep", "1000")
	if err := cmd.Run(); !errors.Is(err, context.Canceled) || cmd.Pid() != 0 {
		t.Errorf("Run = %v with PID %d; want context.Canceled", err, cmd.Pid())
	}
	ctx, cancel = context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	err := sb.Command(ctx, "sleep", "1000").Run()
	var e *sandbox.Error
	if !errors.Is(err, context.DeadlineExceeded) || !errors.As(err, &e) || e.StatusCode() != 504 {
		t.Errorf("Run = %v; want context.DeadlineExceeded", err)
	}
}

// A command that ended by itself keeps its result, whatever happens to ctx later.
func TestCancelAfterTheEndChangesNothing(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cmd := harness.Shared(t).Command(ctx, "sh", "-c", "exit 3")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatalf("Start: %v", err)
	}
	io.ReadAll(out)
	harness.Eventually(t, "it has ended", func() bool { return cmd.Signal(syscall.SIGCONT) != nil })
	cancel()
	if err := cmd.Wait(); harness.ExitCode(err) != 3 {
		t.Errorf("Wait = %v; want exit code 3", err)
	}
}

// Commands: Timeout holds inside the sandbox.
func TestTimeoutEndsTheCommand(t *testing.T) {
	t.Parallel()
	sb := harness.Shared(t)
	for _, detached := range []bool{false, true} {
		mark := unique()
		cmd := sh(t, sb, "setsid sleep "+mark+" & echo begun; trap '' TERM; wait")
		cmd.Timeout, cmd.Detached = 500*time.Millisecond, detached
		began := time.Now()
		out, err := cmd.Output()
		var exit *sandbox.ExitError
		if !errors.Is(err, sandbox.ErrTimeout) || !errors.As(err, &exit) || exit.ExitCode() != 137 || exit.Signal != syscall.SIGKILL || string(out) != "begun\n" {
			t.Errorf("detached %v: Output = %q, %v; want ErrTimeout and 137", detached, out, err)
		}
		if errors.Is(err, context.DeadlineExceeded) || time.Since(began) > time.Minute {
			t.Errorf("detached %v: %v after %v", detached, err, time.Since(began))
		}
		harness.Eventually(t, "its child is dead", func() bool { return !alive(t, sb, "sleep "+mark) })
	}
}

// Commands: Timeout of a detached command holds though nobody is there.
func TestTimeoutOfADetachedCommandNeedsNobody(t *testing.T) {
	t.Parallel()
	made := harness.NewSandbox(t, sandbox.WithName(harness.UniqueName(t)))
	cmd := sh(t, made, "echo begun; sleep 1000")
	cmd.Timeout, cmd.Detached = 500*time.Millisecond, true
	if err := cmd.Start(); err != nil {
		t.Fatalf("Start: %v", err)
	}
	id := cmd.ID()
	if err := made.Detach(); err != nil {
		t.Fatalf("Detach: %v", err)
	}
	sb, err := harness.NewClient(t).Get(t.Context(), made.Name())
	if err != nil {
		t.Fatalf("Get: %v", err)
	}
	defer sb.Detach()
	again, err := sb.Process(t.Context(), id)
	if err != nil {
		t.Fatalf("Process: %v", err)
	}
	if out, err := again.Output(); !errors.Is(err, sandbox.ErrTimeout) || harness.ExitCode(err) != 137 || string(out) != "begun\n" {
		t.Errorf("Output = %q, %v; want ErrTimeout and 137", out, err)
	}
}

// Commands: the end of Stdin is the command's end of input.
func TestStdinHalfCloses(t *testing.T) {
	t.Parallel()
	sb := harness.Shared(t)
	for _, tt := range []struct {
		argv     []string
		in, want string
	}{
		{[]string{"sort"}, "b\na\n", "a\nb\n"},
		{[]string{"cat"}, "\x00\xff", "\x00\xff"},
		{[]string{"cat"}, "", ""},
		{[]string{"head", "-c1"}, strings.Repeat("x", 1<<20), "x"},
		{[]string{"true"}, strings.Repeat("x", 1<<20), ""},
	} {
		cmd := sb.Command(t.Context(), tt.argv[0], tt.argv[1:]...)
		cmd.Stdin = strings.NewReader(tt.in)
		if out, err := cmd.Output(); err != nil || string(out) != tt.want {
			t.Errorf("%q: Output = %q, %v; want %q", tt.argv, out, err, tt.want)
		}
	}
	// Without Stdin there is an empty one.
	if out, err := sb.Command(t.Context(), "cat").Output(); err != nil || len(out) != 0 {
		t.Errorf("without Stdin: Output = %q, %v", out, err)
	}
}

// StdinPipe, with output while input is still open.
func TestPipesTalkBothWays(t *testing.T) {
	t.Parallel()
	cmd := sh(t, harness.Shared(t), `while read x; do echo "got $x"; echo "err $x" >&2; done; echo end`)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	errs, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatalf("Start: %v", err)
	}
	outs, errss := bufio.NewReader(out), bufio.NewReader(errs)
	for i := range 3 {
		fmt.Fprintln(in, i)
		if got, err := outs.ReadString('\n'); got != fmt.Sprintf("got %d\n", i) {
			t.Errorf("stdout: %q, %v", got, err)
		}
		if got, err := errss.ReadString('\n'); got != fmt.Sprintf("err %d\n", i) {
			t.Errorf("stderr: %q, %v", got, err)
		}
	}
	if err := in.Close(); err != nil {
		t.Error(err)
	}
	if got, err := io.ReadAll(outs); string(got) != "end\n" || err != nil {
		t.Errorf("the end: %q, %v", got, err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("Wait: %v", err)
	}
	if _, err := in.Write([]byte("x")); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("a write afterwards: %v; want io.ErrClosedPipe", err)
	}
}

// A pipe of a command that can't start ends, with the reason.
func TestPipesOfACommandThatCannotStartEnd(t *testing.T) {
	t.Parallel()
	cmd := harness.Shared(t).Command(t.Context(), "no-such-program")
	in, _ := cmd.StdinPipe()
	out, _ := cmd.StdoutPipe()
	if err := cmd.Start(); !errors.Is(err, exec.ErrNotFound) {
		t.Fatalf("Start = %v", err)
	}
	if _, err := in.Write([]byte("x")); err == nil {
		t.Error("its stdin takes input")
	}
	if _, err := io.ReadAll(out); err == nil {
		t.Error("its stdout ends as if it had run")
	}
}

// Commands: 100 MiB each way, byte for byte, though the reader pauses; and so on both
// streams at once.
func TestBulkIsExactUnderBackpressure(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		size int
		argv []string
	}{{100 << 20, []string{"cat"}}, {10 << 20, []string{"tee", "/dev/stderr"}}} {
		in := sha256.New()
		cmd := harness.Shared(t).Command(t.Context(), tt.argv[0], tt.argv[1:]...)
		cmd.Stdin = io.TeeReader(io.LimitReader(rand.NewChaCha8([32]byte{1}), int64(tt.size)), in)
		outs := []*pausing{{h: sha256.New(), every: tt.size / 5}}
		cmd.Stdout = outs[0]
		if len(tt.argv) > 1 {
			outs = append(outs, &pausing{h: sha256.New(), every: tt.size / 3})
			cmd.Stderr = outs[1]
		}
		if err := cmd.Run(); err != nil {
			t.Fatalf("%q: Run: %v", tt.argv, err)
		}
		want := fmt.Sprintf("%x", in.Sum(nil))
		for i, got := range outs {
			if sum := fmt.Sprintf("%x", got.h.Sum(nil)); got.n != tt.size || sum != want || got.pauses < 2 {
				t.Errorf("%q, stream %d: %d bytes, hash %s, %d pauses; want %d, %s", tt.argv, i+1, got.n, sum, got.pauses, tt.size, want)
			}
		}
	}
}

// pausing is a reader of output that stops now and then.
type pausing struct {
	h      hash.Hash
	n      int
	every  int
	pauses int
}

func (p *pausing) Write(b []byte) (int, error) {
	if p.n/p.every != (p.n+len(b))/p.every {
		time.Sleep(100 * time.Millisecond) // the pause itself, not a wait for something
		p.pauses++
	}
	p.n += len(b)
	return p.h.Write(b)
}

// Commands: stdout and stderr stay apart, and together keep their order.
func TestStreams(t *testing.T) {
	t.Parallel()
	sb := harness.Shared(t)
	script := `for i in 1 2 3; do printf "o$i"; printf "e$i" >&2; done`
	var out, errs bytes.Buffer
	cmd := sh(t, sb, script)
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil || out.String() != "o1o2o3" || errs.String() != "e1e2e3" {
		t.Errorf("apart: %q, %q, %v", out.String(), errs.String(), err)
	}
	if got, err := sh(t, sb, script).CombinedOutput(); err != nil || string(got) != "o1e1o2e2o3e3" {
		t.Errorf("CombinedOutput = %q, %v; want them in order", got, err)
	}
	if err := sh(t, sb, script).Run(); err != nil {
		t.Errorf("discarded: %v", err)
	}
	cmd = sh(t, sb, script)
	cmd.Stdout = &out
	if _, err := cmd.Output(); err == nil {
		t.Error("Output with Stdout set: no error")
	}
	if _, err := cmd.CombinedOutput(); err == nil {
		t.Error("CombinedOutput with Stdout set: no error")
	}
	if _, err := cmd.StdoutPipe(); err == nil {
		t.Error("StdoutPipe with Stdout set: no error")
	}
}

// Output's error carries what was written to stderr, the middle left out.
func TestOutputKeepsStderrForTheError(t *testing.T) {
	t.Parallel()
	sb := harness.Shared(t)
	var exit *sandbox.ExitError
	out, err := sh(t, sb, "echo out; echo why >&2; exit 2").Output()
	if !errors.As(err, &exit) || string(exit.Stderr) != "why\n" || string(out) != "out\n" {
		t.Errorf("Output = %q, %v", out, err)
	}
	_, err = sh(t, sb, "echo first >&2; head -c 1000000 /dev/zero >&2; echo last >&2; exit 2").Output()
	if !errors.As(err, &exit) || !bytes.HasPrefix(exit.Stderr, []byte("first\n")) || !bytes.HasSuffix(exit.Stderr, []byte("last\n")) || len(exit.Stderr) > 70<<10 || !bytes.Contains(exit.Stderr, []byte("omitting")) {
		t.Errorf("Output = %v with %d bytes of stderr; want its beginning and end", err, len(exit.Stderr))
	}
}

// Commands: a terminal, its size, and all output on Stdout.
func TestTerminal(t *testing.T) {
	t.Parallel()
	sb := harness.Shared(t)
	tty := func(script string) *sandbox.Cmd {
		cmd := sh(t, sb, script)
		cmd.TTY = true
		return cmd
	}
	if out, err := tty("stty size; tty; test -t 2 && echo all >&2; echo $TERM").Output(); err != nil || !strings.HasPrefix(string(out), "24 80\r\n/dev/pts/") || !strings.Contains(string(out), "all\r\n") {
		t.Errorf("a terminal: %q, %v", out, err)
	}
	cmd := tty("stty size")
	if err := cmd.Resize(50, 132); err != nil {
		t.Errorf("Resize before Start: %v", err)
	}
	if out, err := cmd.Output(); err != nil || string(out) != "50 132\r\n" {
		t.Errorf("size %q, %v; want 50 132", out, err)
	}
	cmd = tty("trap 'stty size; exit 0' WINCH; echo ready; while :; do sleep 0.05; done")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatalf("Start: %v", err)
	}
	r := bufio.NewReader(out)
	if line, err := r.ReadString('\n'); line != "ready\r\n" {
		t.Fatalf("it said %q, %v", line, err)
	}
	if err := cmd.Resize(10, 20); err != nil {
		t.Errorf("Resize: %v", err)
	}
	if rest, err := io.ReadAll(r); string(rest) != "10 20\r\n" || err != nil {
		t.Errorf("after Resize it said %q, %v", rest, err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("Wait: %v", err)
	}
	// Typing: the terminal echoes, and its end-of-file character is the end of input.
	cmd = tty("cat")
	cmd.Stdin = strings.NewReader("typed\n")
	if out, err := cmd.Output(); err != nil || !strings.HasSuffix(string(out), "typed\r\n") {
		t.Errorf("cat on a terminal: %q, %v", out, err)
	}
	// Without Stdin the input is empty, also of a detached command.
	for _, detached := range []bool{false, true} {
		cmd = tty("read line; echo got $?")
		cmd.Detached, cmd.Timeout = detached, 20*time.Second
		if out, err := cmd.Output(); err != nil || string(out) != "got 1\r\n" {
			t.Errorf("a terminal without Stdin (detached %v): %q, %v", detached, out, err)
		}
	}
}

// As with os/exec, writes to a command that has ended fail, also before Wait.
func TestWritesToACommandThatHasEnded(t *testing.T) {
	t.Parallel()
	cmd := harness.Shared(t).Command(t.Context(), "true")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	failed := make(chan error, 1)
	go func() {
		for {
			if _, err := io.WriteString(in, "x\n"); err != nil {
				failed <- err
				return
			}
		}
	}()
	select {
	case err := <-failed:
		if !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("Write: %v, want io.ErrClosedPipe", err)
		}
	case <-time.After(harness.GoneBound):
		t.Error("Write blocks")
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("Wait: %v", err)
	}
}

// Commands: a background child that keeps stdout open ends as os/exec would.
func TestOutputHeldOpenIsCutAfterWaitDelay(t *testing.T) {
	t.Parallel()
	sb := harness.NewSandbox(t)
	for what, cut := range map[string]func(c *sandbox.Cmd){
		"by default":  func(*sandbox.Cmd) {},
		"in 100 ms":   func(c *sandbox.Cmd) { c.WaitDelay = 100 * time.Millisecond },
		"as detached": func(c *sandbox.Cmd) { c.Detached = true },
	} {
		cmd := sh(t, sb, "echo before; sleep 1000 & echo after")
		cut(cmd)
		began := time.Now()
		out, err := cmd.Output()
		if !errors.Is(err, exec.ErrWaitDelay) || string(out) != "before\nafter\n" || time.Since(began) > time.Minute {
			t.Errorf("%s: Output = %q, %v after %v; want all of it and exec.ErrWaitDelay", what, out, err, time.Since(began))
		}
	}
	// A failed command says that it failed, not that it was cut.
	if err := sh(t, sb, "sleep 1000 & exit 3").Run(); harness.ExitCode(err) != 3 || errors.Is(err, exec.ErrWaitDelay) {
		t.Errorf("Run = %v; want exit code 3", err)
	}
	// Negative waits for the end of output.
	cmd := sh(t, sb, "(sleep 1.5; echo late) & echo early")
	cmd.WaitDelay = -1
	if out, err := cmd.Output(); err != nil || string(out) != "early\nlate\n" {
		t.Errorf("without a limit: Output = %q, %v", out, err)
	}
}

// Errors of the caller's own streams come back, and the command is not stuck.
func TestStreamErrorsComeBack(t *testing.T) {
	t.Parallel()
	sb := harness.Shared(t)
	broken := errors.New("broken stream")
	cmd := sb.Command(t.Context(), "cat")
	cmd.Stdin = io.MultiReader(strings.NewReader("some"), iotest.ErrReader(broken))
	if out, err := cmd.Output(); !errors.Is(err, broken) || string(out) != "some" {
		t.Errorf("a broken reader: Output = %q, %v; want the reader's error", out, err)
	}
	cmd = sb.Command(t.Context(), "head", "-c", "10000000", "/dev/zero")
	cmd.Stdout = writerFunc(func([]byte) (int, error) { return 0, broken })
	if err := cmd.Run(); !errors.Is(err, broken) {
		t.Errorf("a broken writer: Run = %v; want the writer's error", err)
	}
	// A reader that never returns does not keep Wait from it.
	r, w := io.Pipe()
	defer w.Close()
	cmd = sb.Command(t.Context(), "true")
	cmd.Stdin = r
	if err := cmd.Run(); err != nil {
		t.Errorf("a reader that blocks: Run = %v", err)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// A Cmd is used once.
func TestCmdIsUsedOnce(t *testing.T) {
	t.Parallel()
	cmd := harness.Shared(t).Command(t.Context(), "true")
	if err := cmd.Wait(); err == nil {
		t.Error("Wait before Start: no error")
	}
	if err := cmd.Signal(syscall.SIGTERM); err == nil {
		t.Error("Signal before Start: no error")
	}
	if err := cmd.Run(); err != nil {
		t.Errorf("Run: %v", err)
	}
	if err := cmd.Start(); err == nil {
		t.Error("Start again: no error")
	}
	if err := cmd.Wait(); err == nil {
		t.Error("Wait again: no error")
	}
	if _, err := cmd.StdinPipe(); err == nil {
		t.Error("StdinPipe after Start: no error")
	}
}

func TestCmdTellsWhatItIs(t *testing.T) {
	t.Parallel()
	sb := harness.Shared(t)
	cmd := sb.Command(t.Context(), "sh", "-c", "echo $$")
	if got := cmd.String(); got != "sh -c echo $$" || cmd.Pid() != 0 || !record.ValidName(cmd.ID()) {
		t.Errorf("String %q, PID %d, ID %q", got, cmd.Pid(), cmd.ID())
	}
	out, err := cmd.Output()
	if err != nil || strings.TrimSpace(string(out)) != strconv.Itoa(cmd.Pid()) {
		t.Errorf("its PID is %s, %v; Pid says %d", out, err, cmd.Pid())
	}
	if other := sb.Command(t.Context(), "sh"); other.ID() == cmd.ID() {
		t.Error("two commands have one ID")
	}
	if got := (&sandbox.Cmd{Path: "a"}).String(); got != "a" {
		t.Errorf("String = %q", got)
	}
}

// Commands: it survives Detach and its client's death; another process gets all of its
// output and its end. Its client's other commands die.
func TestDetachedCommandOutlivesItsClient(t *testing.T) {
	t.Parallel()
	sb := harness.NewSandbox(t, sandbox.WithName(harness.UniqueName(t)))
	client := harness.Process(t, "commands", sb.Name())
	said, err := client.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := client.Start(); err != nil {
		t.Fatal(err)
	}
	var pid int
	var id string
	_, err = fmt.Fscan(said, &pid, &id)
	client.Process.Kill()
	client.Wait()
	if err != nil {
		t.Fatalf("the client said nothing: %v", err)
	}
	harness.Eventually(t, "the client's other command is dead", func() bool { return !alive(t, sb, "sleep 100001") })

	reattached := harness.Process(t, "reattach", sb.Name(), id)
	var got bytes.Buffer
	reattached.Stdout = &got
	if err := reattached.Start(); err != nil {
		t.Fatal(err)
	}
	// Here, too, and so far and live in turn.
	cmd, err := sb.Process(t.Context(), id)
	if err != nil {
		t.Fatalf("Process: %v", err)
	}
	if cmd.Path != "sh" || len(cmd.Args) != 3 || cmd.ID() != id || !cmd.Detached || cmd.Pid() == 0 {
		t.Errorf("Process = %+v; want what was started", cmd)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatalf("Start: %v", err)
	}
	r := bufio.NewReader(out)
	if line, err := r.ReadString('\n'); line != "early\n" {
		t.Errorf("so far: %q, %v", line, err)
	}
	harness.Run(t, sb, "touch", "go")
	if line, err := r.ReadString('\n'); line != "late\n" {
		t.Errorf("live: %q, %v", line, err)
	}
	if err := cmd.Wait(); harness.ExitCode(err) != 7 {
		t.Errorf("Wait = %v; want exit code 7", err)
	}
	if err := reattached.Wait(); err != nil {
		t.Errorf("another process: %v", err)
	}
	if !strings.HasPrefix(got.String(), "early\nlate\nsh -c ") || !strings.HasSuffix(got.String(), "7") {
		t.Errorf("another process got %q", got.String())
	}
	// And after the fact, any number of times.
	for range 2 {
		cmd, err := sb.Process(t.Context(), id)
		if err != nil {
			t.Fatalf("Process afterwards: %v", err)
		}
		if out, err := cmd.Output(); string(out) != "early\nlate\n" || harness.ExitCode(err) != 7 {
			t.Errorf("afterwards: %q, %v", out, err)
		}
	}
}

// The end of a context, and Detach, leave a detached command alone; Kill does not.
func TestDetachedCommandIsLeftAlone(t *testing.T) {
	t.Parallel()
	sb := harness.Shared(t)
	ctx, cancel := context.WithCancel(t.Context())
	mark := unique()
	cmd := sb.Command(ctx, "sleep", mark)
	cmd.Detached = true
	if err := cmd.Start(); err != nil {
		t.Fatalf("Start: %v", err)
	}
	cancel()
	if err := cmd.Wait(); !errors.Is(err, context.Canceled) {
		t.Errorf("Wait = %v; want context.Canceled", err)
	}
	if !alive(t, sb, "sleep "+mark) {
		t.Error("it died with its context")
	}
	again, err := sb.Process(t.Context(), cmd.ID())
	if err != nil {
		t.Fatalf("Process: %v", err)
	}
	if err := again.Kill(); err != nil {
		t.Errorf("Kill: %v", err)
	}
	if err := again.Wait(); harness.ExitCode(err) != 137 {
		t.Errorf("Wait = %v; want 137", err)
	}
}

// The end of a context, and a Wait that returns before the command ends, close the connection to a detached command.
// Signals find it again.
func TestSignalsReachADetachedCommandAfterItsContext(t *testing.T) {
	t.Parallel()
	sb := harness.Shared(t)
	for _, attached := range []bool{false, true} {
		for _, wait := range []bool{false, true} {
			ctx, cancel := context.WithCancel(t.Context())
			cmd := sb.Command(ctx, "sleep", "60")
			if attached {
				id := detached(t, sb, nil, "sleep", "60")
				var err error
				if cmd, err = sb.Process(ctx, id); err != nil {
					t.Fatal(err)
				}
			}
			cmd.Detached = true
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			cancel()
			if wait {
				if err := cmd.Wait(); !errors.Is(err, context.Canceled) {
					t.Errorf("Wait: %v, want context.Canceled", err)
				}
			}
			if err := cmd.Signal(syscall.SIGTERM); err != nil {
				t.Errorf("attached %v, waited %v: Signal: %v", attached, wait, err)
			}
			again, err := sb.Process(t.Context(), cmd.ID())
			if err != nil {
				t.Fatal(err)
			}
			if err := again.Wait(); harness.ExitCode(err) != 143 {
				t.Errorf("attached %v, waited %v: it ended with %v, want exit code 143", attached, wait, err)
			}
			if err := cmd.Kill(); !errors.Is(err, os.ErrProcessDone) {
				t.Errorf("attached %v, waited %v: Kill after its end: %v, want os.ErrProcessDone", attached, wait, err)
			}
		}
	}
	loud := sb.Command(t.Context(), "sh", "-c", "head -c 2000000 /dev/zero; sleep 1000")
	loud.Detached = true
	loud.Stdout = writerFunc(func([]byte) (int, error) { return 0, os.ErrInvalid })
	if err := loud.Start(); err != nil {
		t.Fatal(err)
	}
	if err := loud.Kill(); err != nil {
		t.Errorf("Kill of a command whose writer failed: %v", err)
	}
	if err := loud.Wait(); harness.ExitCode(err) != 137 {
		t.Errorf("Wait: %v, want exit code 137", err)
	}
}

// Kill ends what a detached command left behind, also when it is long known how the command ended.
func TestKillOfADetachedCommandThatHasEnded(t *testing.T) {
	t.Parallel()
	sb := harness.Shared(t)
	for _, wait := range []bool{false, true} {
		mark := unique()
		cmd, err := sb.Process(t.Context(), detached(t, sb, nil, "sh", "-c", "sleep "+mark+" >/dev/null 2>&1 &"))
		if err != nil {
			t.Fatal(err)
		}
		if wait {
			if err := cmd.Wait(); err != nil {
				t.Errorf("Wait: %v", err)
			}
		}
		harness.Eventually(t, "the command has ended, and left a process", func() bool {
			_, all := processesOf(t, sb.Name())
			return all[cmd.ID()].ExitCode != nil && alive(t, sb, "sleep "+mark)
		})
		if err := cmd.Kill(); err != nil || alive(t, sb, "sleep "+mark) {
			t.Errorf("waited %v: Kill: %v, want nil and no process", wait, err)
		}
		if err := cmd.Kill(); !errors.Is(err, os.ErrProcessDone) {
			t.Errorf("waited %v: Kill again: %v, want os.ErrProcessDone", wait, err)
		}
	}
}

// As with os/exec a Start that fails leaves nothing that runs, whenever its context ends.
func TestStartOfADetachedCommandThatIsCancelledLeavesNothing(t *testing.T) {
	t.Parallel()
	sb := harness.Shared(t)
	mark, failed := unique(), 0
	var started []*sandbox.Cmd
	harness.Run(t, sb, "true")
	for i := range 40 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*50*time.Microsecond)
		cmd := sb.Command(ctx, "sleep", mark)
		cmd.Detached = true
		switch err := cmd.Start(); {
		case errors.Is(err, context.DeadlineExceeded):
			failed++
		case err != nil:
			t.Errorf("Start: %v", err)
		default:
			started = append(started, cmd)
		}
		cancel()
	}
	for _, cmd := range started {
		if err := cmd.Kill(); err != nil {
			t.Errorf("Kill: %v", err)
		}
	}
	if failed < 2 {
		t.Errorf("%d of 40 starts failed: it proves nothing", failed)
	}
	harness.Eventually(t, "none of them runs", func() bool { return !alive(t, sb, "sleep "+mark) })
}

// Commands: what is kept of the output is bounded, and what is lost is counted.
func TestKeptOutputIsBounded(t *testing.T) {
	t.Parallel()
	sb := harness.Shared(t)
	const size = sandbox.KeptOutput + 3<<20
	cmd := sb.Command(t.Context(), "sh", "-c", fmt.Sprintf("echo first; head -c %d /dev/zero; echo last", size))
	cmd.Detached = true
	if err := cmd.Run(); err != nil {
		t.Fatalf("Run: %v", err)
	}
	again, err := sb.Process(t.Context(), cmd.ID())
	if err != nil {
		t.Fatalf("Process: %v", err)
	}
	out, err := again.Output()
	if err != nil || !bytes.HasSuffix(out, []byte("\x00last\n")) || bytes.HasPrefix(out, []byte("first")) || len(out) > sandbox.KeptOutput {
		t.Errorf("Output: %d bytes, %v; want the last of them, at most %d", len(out), err, sandbox.KeptOutput)
	}
	if total := int64(size + len("first\nlast\n")); again.Dropped()+int64(len(out)) != total || again.Dropped() == 0 {
		t.Errorf("%d bytes and %d dropped; want %d in all", len(out), again.Dropped(), total)
	}
}

// Commands: an ID that nobody knows.
func TestUnknownProcessIsNotFound(t *testing.T) {
	t.Parallel()
	sb := harness.Shared(t)
	attached := sb.Command(t.Context(), "true")
	if err := attached.Run(); err != nil {
		t.Fatalf("Run: %v", err)
	}
	for _, id := range []string{record.NewID(), attached.ID()} {
		_, err := sb.Process(t.Context(), id)
		var e *sandbox.Error
		if !errors.Is(err, sandbox.ErrProcessNotFound) || errors.Is(err, sandbox.ErrNotFound) || !errors.As(err, &e) || e.StatusCode() != 404 {
			t.Errorf("Process = %v; want ErrProcessNotFound", err)
		}
	}
}

// Commands: 64 at once work, each with its own output, and no zombie remains.
func TestManyAtOnceLeaveNoZombie(t *testing.T) {
	t.Parallel()
	sb := harness.Shared(t)
	var wg sync.WaitGroup
	for i := range 64 {
		wg.Go(func() {
			cmd := sb.Command(t.Context(), "sh", "-c", fmt.Sprintf("cat; (sleep 0.0%d &) ; exit %d", i%10, i))
			cmd.Stdin = strings.NewReader(strconv.Itoa(i))
			cmd.WaitDelay = -1
			if out, err := cmd.Output(); string(out) != strconv.Itoa(i) || harness.ExitCode(err) != i {
				t.Errorf("number %d: %q, %v", i, out, err)
			}
		})
	}
	wg.Wait()
	harness.Eventually(t, "no zombie is left", func() bool {
		return harness.Run(t, sb, "sh", "-c", "grep -l '^State:.Z' /proc/[0-9]*/status 2>/dev/null || true") == ""
	})
}

// Commands: when the container is killed under a command, it says so promptly.
func TestKilledSandboxEndsItsCommands(t *testing.T) {
	t.Parallel()
	eng := harness.NewEngine(t)
	for what, tt := range map[string]struct {
		do   func(t *testing.T, container string) error
		want error
	}{
		"killed":  {func(t *testing.T, ref string) error { return eng.KillContainer(t.Context(), ref, "KILL") }, sandbox.ErrNotRunning},
		"stopped": {func(t *testing.T, ref string) error { return eng.StopContainer(t.Context(), ref, 0) }, sandbox.ErrNotRunning},
		"removed": {func(t *testing.T, ref string) error { return eng.RemoveContainer(t.Context(), ref, true) }, sandbox.ErrNotFound},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			sb := harness.NewSandbox(t, sandbox.WithName(harness.UniqueName(t)))
			t.Cleanup(func() { eng.RemoveVolume(context.Background(), record.WorkspaceName(sb.ID()), false) })
			var ended atomic.Bool
			var wg sync.WaitGroup
			began := make(chan time.Time, 1)
			for _, detached := range []bool{false, true} {
				cmd := sb.Command(t.Context(), "sleep", "1000")
				cmd.Detached = detached
				if err := cmd.Start(); err != nil {
					t.Fatalf("Start: %v", err)
				}
				wg.Go(func() {
					err := cmd.Wait()
					if !ended.Load() {
						t.Errorf("Wait returned before the end: %v", err)
					}
					if !errors.Is(err, tt.want) {
						t.Errorf("detached %v: Wait = %v; want %v", detached, err, tt.want)
					}
				})
			}
			ended.Store(true)
			began <- time.Now()
			if err := tt.do(t, record.ContainerName(sb.Name())); err != nil {
				t.Errorf("the end: %v", err)
			}
			wg.Wait()
			if d := time.Since(<-began); d > time.Minute {
				t.Errorf("it took %v", d)
			}
		})
	}
}

// Commands: a cut connection is the engine's failure, and the next command works.
func TestCutConnectionIsNamedAndMadeAgain(t *testing.T) {
	t.Parallel()
	proxy := enginetest.NewProxy(t)
	made := harness.NewSandbox(t, sandbox.WithName(harness.UniqueName(t)))
	sb, err := harness.NewClient(t, sandbox.WithHost(proxy.Host())).Get(t.Context(), made.Name())
	if err != nil {
		t.Fatalf("Get: %v", err)
	}
	defer sb.Detach()
	mark := unique()
	cmd := sb.Command(t.Context(), "sleep", mark)
	if err := cmd.Start(); err != nil {
		t.Fatalf("Start: %v", err)
	}
	began := time.Now()
	proxy.CloseAll()
	if err := cmd.Wait(); !errors.Is(err, sandbox.ErrEngineUnavailable) || time.Since(began) > time.Minute {
		t.Errorf("Wait = %v after %v; want ErrEngineUnavailable", err, time.Since(began))
	}
	if got := harness.Run(t, sb, "echo", "again"); got != "again" {
		t.Errorf("the next command says %q", got)
	}
	harness.Eventually(t, "the cut command is dead", func() bool { return !alive(t, made, "sleep "+mark) })
}

// A handle that is closed under a command ends it.
func TestCloseEndsCommands(t *testing.T) {
	t.Parallel()
	made, c := harness.NewSandbox(t, sandbox.WithName(harness.UniqueName(t))), harness.NewClient(t)
	for what, end := range map[string]func(*sandbox.Sandbox) error{"Close": (*sandbox.Sandbox).Close, "Detach": (*sandbox.Sandbox).Detach} {
		sb, err := c.Get(t.Context(), made.Name())
		if err != nil {
			t.Fatalf("Get: %v", err)
		}
		cmd := sb.Command(t.Context(), "sleep", "1000")
		if err := cmd.Start(); err != nil {
			t.Fatalf("Start: %v", err)
		}
		if err := end(sb); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if err := cmd.Wait(); !errors.Is(err, sandbox.ErrClosed) {
			t.Errorf("%s under a command: Wait = %v; want ErrClosed", what, err)
		}
	}
}

// Commands: a command on a stopped persistent sandbox resumes it, once for all.
func TestCommandResumesAStoppedSandboxOnce(t *testing.T) {
	t.Parallel()
	made := harness.NewSandbox(t, sandbox.WithName(harness.UniqueName(t)))
	var resumed atomic.Int32
	sb, err := harness.NewClient(t).Get(t.Context(), made.Name(), sandbox.OnResume(func(ctx context.Context, sb *sandbox.Sandbox) error {
		resumed.Add(1)
		return sb.Command(ctx, "touch", "resumed").Run() // it runs already
	}))
	if err != nil {
		t.Fatalf("Get: %v", err)
	}
	defer sb.Detach()
	if _, err := sb.Stop(t.Context()); err != nil {
		t.Fatalf("Stop: %v", err)
	}
	// One that gives up takes nothing from the others.
	early, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	var wg sync.WaitGroup
	wg.Go(func() { sb.Command(early, "true").Run() })
	for range 20 {
		wg.Go(func() {
			if err := sb.Command(t.Context(), "test", "-e", "resumed").Run(); err != nil {
				t.Errorf("Run: %v", err)
			}
		})
	}
	wg.Wait()
	if resumed.Load() != 1 {
		t.Errorf("OnResume was called %d times, want once", resumed.Load())
	}
}

// A sandbox that is not persistent is not resumed by a command.
func TestCommandDoesNotResumeWhatIsNotPersistent(t *testing.T) {
	t.Parallel()
	sb := harness.NewSandbox(t)
	if _, err := sb.Stop(t.Context()); err != nil {
		t.Fatalf("Stop: %v", err)
	}
	if err := sb.Command(t.Context(), "true").Run(); !errors.Is(err, sandbox.ErrNotRunning) {
		t.Errorf("Run = %v; want ErrNotRunning", err)
	}
	if _, err := sb.Start(t.Context()); err != nil {
		t.Errorf("Start: %v", err)
	}
	harness.Run(t, sb, "true")
}

// The user's files are theirs, and so is a new workspace.
func TestUser(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ user, id, home string }{
		{"node", "uid=1000(node) gid=1000(node) groups=1000(node)", "/home/node"},
		{"1000", "uid=1000(node) gid=1000(node) groups=1000(node)", "/home/node"},
		{"node:staff", "uid=1000(node) gid=50(staff) groups=50(staff)", "/home/node"},
		{"4242:4343", "uid=4242 gid=4343 groups=4343", "/"},
		{"4242", "uid=4242 gid=0(root) groups=0(root)", "/"},
	} {
		t.Run(tt.user, func(t *testing.T) {
			t.Parallel()
			sb := harness.NewSandbox(t, sandbox.WithUser(tt.user), sandbox.WithCommand("sh", "-c", "id > main; mv main main.done"))
			if got := harness.Run(t, sb, "id"); got != tt.id {
				t.Errorf("id = %q, want %q", got, tt.id)
			}
			harness.WaitForFile(t, sb, "main.done")
			if got := harness.Run(t, sb, "cat", "main.done"); got != tt.id {
				t.Errorf("the main process's id = %q, want %q", got, tt.id)
			}
			owner := harness.Run(t, sb, "sh", "-c", "touch x && stat -c %u:%g x . && echo $HOME")
			uid, gid := between(tt.id, "uid=", "( "), between(tt.id, "gid=", "( ")
			if want := uid + ":" + gid + "\n" + uid + ":" + gid + "\n" + tt.home; owner != want {
				t.Errorf("a new file, the workspace and HOME are %q, want %q", owner, want)
			}
			// A command may be another's.
			cmd := sb.Command(t.Context(), "id", "-u")
			cmd.User = "root"
			if out, err := cmd.Output(); err != nil || string(out) != "0\n" {
				t.Errorf("as root: %q, %v", out, err)
			}
			if err := sb.Command(t.Context(), "touch", "/etc/x").Run(); err == nil {
				t.Error("it may write in /etc")
			}
		})
	}
}

// Users and groups whose names are numbers, numbers with zeros and signs, several names for one number.
// A row of docs/differences.md has whose HOME a name gets.
func TestUsersAreThoseOfDockerExec(t *testing.T) {
	t.Parallel()
	sb := harness.NewSandbox(t)
	names := []string{"ann", "bob", "2001", "2002", "2003", "02001", "+2002", "-1", "2147483648"}
	ids := []string{"2001", "2002", "2003", "02001", "+2002", "2004"}
	for _, seed := range harness.Seeds(2, 40) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		one := func(list ...string) string { return list[rnd.IntN(len(list))] }
		groups := []string{"ann", "bob", "staff"}
		script := `echo "$(id -u) $(id -g) $(sed -n 's/^Groups:\s*//p' /proc/self/status | tr ' ' '\n' | sort -un | tr '\n' ' ')$HOME"`
		if seed%2 == 1 { // the runtime takes the number of a further group for a name
			groups, script = names, `echo "$(id -u) $(id -g) $HOME"`
		}
		passwd, group := "root:x:0:0::/root:/bin/sh\n2001:x:0:0::/:/bin/sh\n", "root:x:0:\n"
		for i := range 6 {
			passwd += fmt.Sprintf("%s:x:%s:%s::/home/%d:/bin/sh\n", one(names...), one(ids...), one(ids...), i)
			group += fmt.Sprintf("%s:x:%s:%s,%s\n", one(groups...), one(ids...), one(names...), one(names...))
		}
		for name, content := range map[string]string{"/etc/passwd": passwd, "/etc/group": group} {
			if err := sb.WriteFile(t.Context(), name, []byte(content), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		specs := append([]string{"", ":", ":2002", "2001:", "2147483647", "4294967294", "2004"}, names...)
		for range 5 {
			specs = append(specs, one(names...)+":"+one(append(groups, ids...)...))
		}
		for _, spec := range specs {
			docker := exec.CommandContext(t.Context(), "docker", "exec", "-u", spec, record.ContainerName(sb.Name()), "sh", "-c", script)
			docker.Env = append(os.Environ(), "DOCKER_HOST="+enginetest.EngineHost())
			want, dockerErr := docker.Output()
			cmd := sb.Command(t.Context(), "sh", "-c", script)
			cmd.User = spec
			got, err := cmd.Output()
			if user, _, _ := strings.Cut(spec, ":"); user == "ann" || user == "bob" {
				got, want = got[:max(0, bytes.IndexByte(got, '/'))], want[:max(0, bytes.IndexByte(want, '/'))]
			}
			if (err == nil) != (dockerErr == nil) || err == nil && string(got) != string(want) {
				t.Errorf("seed %d, user %q: %q (%v), docker exec: %q (%v)\n%s\n%s", seed, spec, got, err, want, dockerErr, passwd, group)
			}
		}
	}
}

func between(s, from, ends string) string {
	_, s, _ = strings.Cut(s, from)
	if i := strings.IndexAny(s, ends); i >= 0 {
		s = s[:i]
	}
	return s
}

// A user has the groups that /etc/group gives them.
func TestSupplementaryGroups(t *testing.T) {
	t.Parallel()
	sb := harness.Shared(t)
	harness.Run(t, sb, "sh", "-c", "echo 'extra:x:5005:someone,games' >> /etc/group")
	cmd := sb.Command(t.Context(), "id", "-G")
	cmd.User = "games" // as nobody else does
	if out, err := cmd.Output(); err != nil || string(out) != "60 5005\n" {
		t.Errorf("groups %q, %v; want 60 5005", out, err)
	}
}

// A command ends with its context also where the sandbox was paused under it, for good.
func TestContextEndsACommandOfAPausedSandbox(t *testing.T) {
	t.Parallel()
	sb, eng := harness.NewSandbox(t), harness.NewEngine(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cmd := sb.Command(ctx, "sh", "-c", "echo ready; exec sleep 1000")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, len("ready\n"))); err != nil {
		t.Fatal(err)
	}
	container := record.ContainerName(sb.Name())
	harness.Pause(t, eng, container)
	t.Cleanup(func() { eng.UnpauseContainer(context.Background(), container) })
	cancel()
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case err := <-ended:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("Wait: %v, want Canceled", err)
		}
	case <-time.After(harness.CallBound):
		t.Error("Wait does not return after the end of its context")
	}
	if err := eng.UnpauseContainer(t.Context(), container); err != nil {
		t.Fatal(err)
	}
	if got := harness.Run(t, sb, "echo", "on"); got != "on" {
		t.Errorf("a command once it goes on said %q", got)
	}
}
