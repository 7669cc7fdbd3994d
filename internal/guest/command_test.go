//go:build linux

package guest_test

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

func TestArgumentsArriveByteForByte(t *testing.T) {
	t.Parallel()
	conn, _ := serve(t)
	args := []string{"printf", "%s|", "", " ", "a b", `"q"`, "'s'", "$HOME", "`x`", "a\nb", "\\n", "*", "é", "\xff\xfe", "<&>\u2028", "--", "-n", ";"}
	got := run(t, conn, wire.Exec{Args: args})
	if want := strings.Join(args[2:], "|") + "|"; got.stdout != want {
		t.Errorf("printf wrote %q, want %q", got.stdout, want)
	}
	if diff := cmp.Diff(args, got.started.Exec.Args); diff != "" {
		t.Errorf("Started().Exec.Args (-want +got):\n%s", diff)
	}
}

func TestEnvironmentIsWhatWasAskedForPlusDefaults(t *testing.T) {
	t.Parallel()
	conn, _ := serve(t)
	host, _ := os.Hostname()
	got := run(t, conn, wire.Exec{Args: []string{"env", "-0"}, Env: []string{"A=1", "B=x\ny", "A=2", "C=", "D=\xff", "bare"}})
	lines := strings.Split(strings.TrimSuffix(got.stdout, "\x00"), "\x00")
	slices.Sort(lines)
	want := []string{
		"A=2", "B=x\ny", "C=", "D=\xff", "HOME=/root", "HOSTNAME=" + host,
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "USER=root",
	}
	if diff := cmp.Diff(want, lines); diff != "" {
		t.Errorf("env (-want +got):\n%s", diff)
	}
	given := []string{"HOME=/h", "HOSTNAME=n", "PATH=/bin:/usr/bin", "USER=u"}
	got = run(t, conn, wire.Exec{Args: []string{"env", "-0"}, Env: given})
	if want := strings.Join(given, "\x00") + "\x00"; got.stdout != want {
		t.Errorf("env wrote %q, want what was given, %q", got.stdout, want)
	}
}

func TestDirectoryAndRelativePrograms(t *testing.T) {
	t.Parallel()
	conn, _ := serve(t)
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "sub", "here"), []byte("#!/bin/sh\npwd\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		req  wire.Exec
		want string
	}{
		{"default", wire.Exec{Args: []string{"pwd"}}, "/"},
		{"given", wire.Exec{Args: []string{"pwd"}, Dir: dir}, dir},
		{"relative program", wire.Exec{Args: []string{"./sub/here"}, Dir: dir}, dir},
		{"relative PATH", wire.Exec{Args: []string{"here"}, Dir: dir, Env: []string{"PATH=/nowhere:sub:/bin"}}, dir},
		{"empty PATH element", wire.Exec{Args: []string{"here"}, Dir: dir + "/sub", Env: []string{"PATH=:/bin:/usr/bin"}}, dir + "/sub"},
	} {
		if got := run(t, conn, tt.req); strings.TrimSpace(got.stdout) != tt.want {
			t.Errorf("%s: ran in %q, want %q (stderr %q)", tt.name, got.stdout, tt.want, got.stderr)
		}
	}
}

func TestWhatCannotStartSaysWhy(t *testing.T) {
	t.Parallel()
	conn, _ := serve(t)
	dir := t.TempDir()
	os.Chmod(dir, 0o755)
	file := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		os.Chmod(path, mode)
		return path
	}
	plain := file("plain", "x", 0o644)
	rootOnly := file("root-only", "#!/bin/sh\n", 0o700)
	noInterpreter := file("no-interpreter", "#!/no/such/thing\n", 0o755)
	noFormat := file("no-format", "\x00\x01\x02", 0o755)
	closed := filepath.Join(dir, "closed")
	os.Mkdir(closed, 0o700)
	// A directory of the program's name must not hide the program.
	os.MkdirAll(filepath.Join(dir, "bin", "true"), 0o755)

	for _, tt := range []struct {
		name string
		req  wire.Exec
		kind string
	}{
		{"unknown name", wire.Exec{Args: []string{"no-such-program"}}, wire.KindNotFound},
		{"unknown path", wire.Exec{Args: []string{"/no/such/program"}}, wire.KindNotFound},
		{"below a file", wire.Exec{Args: []string{plain + "/x"}}, wire.KindNotFound},
		{"not in its own PATH", wire.Exec{Args: []string{"sh"}, Env: []string{"PATH=/nowhere"}}, wire.KindNotFound},
		{"missing interpreter", wire.Exec{Args: []string{noInterpreter}}, wire.KindNotFound},
		{"not executable", wire.Exec{Args: []string{plain}}, wire.KindPermission},
		{"not executable in PATH", wire.Exec{Args: []string{"plain"}, Env: []string{"PATH=" + dir}}, wire.KindPermission},
		{"a directory", wire.Exec{Args: []string{dir}}, wire.KindPermission},
		{"root's alone", wire.Exec{Args: []string{rootOnly}, User: "65534:65534"}, wire.KindPermission},
		{"unknown format", wire.Exec{Args: []string{noFormat}}, wire.KindOther},
		{"no directory", wire.Exec{Args: []string{"true"}, Dir: "/no/such/dir"}, wire.KindDirectory},
		{"a file as directory", wire.Exec{Args: []string{"true"}, Dir: plain}, wire.KindDirectory},
		{"root's directory", wire.Exec{Args: []string{"true"}, Dir: closed, User: "65534:65534"}, wire.KindDirectory},
		{"unknown user", wire.Exec{Args: []string{"true"}, User: "no-such-user"}, wire.KindUser},
		{"unknown group", wire.Exec{Args: []string{"true"}, User: "0:no-such-group"}, wire.KindUser},
		{"nothing", wire.Exec{}, wire.KindArguments},
		{"empty name", wire.Exec{Args: []string{""}}, wire.KindArguments},
		{"NUL", wire.Exec{Args: []string{"true", "a\x00b"}}, wire.KindArguments},
		{"argument too long", wire.Exec{Args: []string{"true", strings.Repeat("x", 200<<10)}}, wire.KindArguments},
		{"arguments too long", wire.Exec{Args: slices.Repeat([]string{"true", strings.Repeat("x", 100<<10)}, 30)}, wire.KindArguments},
		{"far too long", wire.Exec{Args: slices.Repeat([]string{"true", strings.Repeat("x", 100<<10)}, 400)}, wire.KindArguments},
		{"detached in the wrong place", wire.Exec{Args: []string{"true"}, Timeout: -1}, wire.KindArguments},
	} {
		_, err := conn.Exec(t.Context(), tt.req)
		if got := kindOf(err); got != tt.kind {
			t.Errorf("%s: kind %q, want %q (%.200v)", tt.name, got, tt.kind, err)
		}
	}
	got := run(t, conn, wire.Exec{Args: []string{"true"}, Env: []string{"PATH=" + dir + "/bin:/bin:/usr/bin"}})
	if got.exit.Code != 0 {
		t.Errorf("a directory hid the program: %+v", got.exit)
	}
}

func TestLargeArgumentsFit(t *testing.T) {
	t.Parallel()
	conn, _ := serve(t)
	args := []string{"sh", "-c", `echo $#; printf %s "$@" | sha256sum`, "sh"}
	h := sha256.New()
	for i := range 12 {
		a := strings.Repeat(strconv.Itoa(i%10), 100<<10)
		args = append(args, a)
		io.WriteString(h, a)
	}
	got := run(t, conn, wire.Exec{Args: args})
	if want := fmt.Sprintf("12\n%x  -\n", h.Sum(nil)); got.stdout != want {
		t.Errorf("got %q %q, want %q", got.stdout, got.stderr, want)
	}
}

func TestExitCodesAndSignals(t *testing.T) {
	t.Parallel()
	conn, _ := serve(t)
	for _, code := range []int{0, 1, 3, 127, 255} {
		got := run(t, conn, wire.Exec{Args: sh(fmt.Sprintf("exit %d", code))}).exit
		if got.Code != code || got.Signal != 0 {
			t.Errorf("exit %d: got %+v", code, got)
		}
	}
	for _, n := range []int{2, 9, 15, 6} {
		p, err := conn.Exec(t.Context(), wire.Exec{Args: []string{"sleep", "1000"}})
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Signal(t.Context(), n, false); err != nil {
			t.Errorf("Signal(%d): %v", n, err)
		}
		if got := finish(t, p).exit; got.Code != 128+n || got.Signal != n {
			t.Errorf("signal %d: got %+v, want code %d", n, got, 128+n)
		}
		if err := p.Signal(t.Context(), n, false); !errors.Is(err, os.ErrProcessDone) {
			t.Errorf("Signal after the end: %v, want %v", err, os.ErrProcessDone)
		}
	}
}

func TestNoSignalIsBlockedOrIgnored(t *testing.T) {
	t.Parallel()
	// The shell ignores two signals, as nohup does, and serve inherits that.
	conn, _ := serve(t, "sh", "-c", `trap '' INT HUP PIPE USR1; exec "$0" serve`, binary)
	got := run(t, conn, wire.Exec{Args: []string{"grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status"}})
	want := "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n"
	if got.stdout != want {
		t.Errorf("got %q, want %q", got.stdout, want)
	}
}

func TestStdinHalfCloses(t *testing.T) {
	t.Parallel()
	conn, _ := serve(t)
	p, err := conn.Exec(t.Context(), wire.Exec{Args: sh("cat; echo done; echo err >&2"), Stdin: true})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(p.Stdin(), "hello "); err != nil {
		t.Fatal(err)
	}
	if err := p.Stdin().Close(); err != nil {
		t.Fatal(err)
	}
	got := finish(t, p)
	if got.stdout != "hello done\n" || got.stderr != "err\n" {
		t.Errorf("stdout %q stderr %q", got.stdout, got.stderr)
	}
	if _, err := io.WriteString(p.Stdin(), "x"); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("Write after the end: %v, want %v", err, io.ErrClosedPipe)
	}
	if got := run(t, conn, wire.Exec{Args: sh("readlink /proc/self/fd/0")}); got.stdout != "/dev/null\n" {
		t.Errorf("without Stdin it is %q", got.stdout)
	}
}

func TestStdinThatNobodyReadsEndsWithTheCommand(t *testing.T) {
	t.Parallel()
	conn, _ := serve(t)
	p, err := conn.Exec(t.Context(), wire.Exec{Args: sh("exec <&-; sleep 0.05"), Stdin: true})
	if err != nil {
		t.Fatal(err)
	}
	_, err = io.Copy(p.Stdin(), endless{})
	if !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("Copy to a command that is gone: %v, want %v", err, io.ErrClosedPipe)
	}
	finish(t, p)
}

type endless struct{}

func (endless) Read(b []byte) (int, error) { return len(b), nil }

func TestBulkBothWaysIsExact(t *testing.T) {
	t.Parallel()
	const size = 100 << 20
	conn, _ := serve(t)
	p, err := conn.Exec(t.Context(), wire.Exec{Args: sh("tee /dev/stderr"), Stdin: true})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	in, out, errs := sha256.New(), sha256.New(), sha256.New()
	wg.Go(func() {
		defer p.Stdin().Close()
		src := io.LimitReader(rand.Reader, size)
		if _, err := io.Copy(p.Stdin(), io.TeeReader(src, in)); err != nil {
			t.Error(err)
		}
	})
	// Readers that pause, at different places.
	slow := func(h io.Writer, r io.Reader, every int) {
		buf := make([]byte, 100_000)
		for i := 1; ; i++ {
			n, err := r.Read(buf)
			h.Write(buf[:n])
			if err == io.EOF {
				return
			}
			if err != nil {
				t.Error(err)
				return
			}
			if i%every == 0 {
				time.Sleep(10 * time.Millisecond)
			}
		}
	}
	wg.Go(func() { slow(out, p.Stdout(), 500) })
	wg.Go(func() { slow(errs, p.Stderr(), 311) })
	wg.Wait()
	if exit, err := p.Wait(); err != nil || exit.Code != 0 {
		t.Errorf("exit %+v, %v", exit, err)
	}
	if string(in.Sum(nil)) != string(out.Sum(nil)) || string(in.Sum(nil)) != string(errs.Sum(nil)) {
		t.Errorf("%d bytes came back changed", size)
	}
}

func TestAReaderThatStopsStopsTheCommandOnly(t *testing.T) {
	t.Parallel()
	conn, _ := serve(t)
	p, err := conn.Exec(t.Context(), wire.Exec{Args: []string{"head", "-c", "20000000", "/dev/zero"}, WaitDelay: 50 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	// Others go on, and nothing of the first is lost, though its delay is long over.
	for range 20 {
		if got := run(t, conn, wire.Exec{Args: []string{"echo", "hi"}}); got.stdout != "hi\n" {
			t.Fatalf("got %q", got.stdout)
		}
	}
	got := finish(t, p)
	if len(got.stdout) != 20000000 || got.exit.WaitDelay {
		t.Errorf("%d bytes, exit %+v", len(got.stdout), got.exit)
	}
}

func TestTheCutLosesNothingThatWasWritten(t *testing.T) {
	t.Parallel()
	conn, _ := serve(t)
	// A bit more than the window, and less than a pipe holds beside it: the rest waits in the pipe while
	// nobody reads, and the background process holds it open beyond the delay.
	const size = 2<<20 + 60<<10
	delay := 50 * time.Millisecond
	p, err := conn.Exec(t.Context(), wire.Exec{
		Args: sh(fmt.Sprintf("sleep 1000 & head -c %d /dev/zero", size)), WaitDelay: delay,
	})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the command is dead", func() bool { return !alivePid(p.Started().Pid) })
	time.Sleep(2 * delay)
	if got := finish(t, p); len(got.stdout) != size || !got.exit.WaitDelay {
		t.Errorf("%d bytes of %d, exit %+v", len(got.stdout), size, got.exit)
	}
}

func TestOutputHeldOpenIsCutAfterWaitDelay(t *testing.T) {
	t.Parallel()
	conn, _ := serve(t)
	got := run(t, conn, wire.Exec{Args: sh("sleep 1000 & echo $!"), WaitDelay: 20 * time.Millisecond})
	if !got.exit.WaitDelay || got.exit.Code != 0 {
		t.Errorf("exit %+v, want WaitDelay and code 0", got.exit)
	}
	if pid := atoi(t, got.stdout); !alivePid(pid) {
		t.Errorf("the background process %d is gone before its connection", pid)
	}
	// A background process that never stops writing is no different.
	got = run(t, conn, wire.Exec{Args: sh("yes & exit 4"), WaitDelay: 20 * time.Millisecond})
	if !got.exit.WaitDelay || got.exit.Code != 4 {
		t.Errorf("exit %+v, want WaitDelay and code 4", got.exit)
	}
	// Without a delay it is waited for.
	got = run(t, conn, wire.Exec{Args: sh("(sleep 0.1; echo late) & echo early")})
	if got.stdout != "early\nlate\n" || got.exit.WaitDelay {
		t.Errorf("got %q, %+v", got.stdout, got.exit)
	}
}

func TestMergedOutputKeepsItsOrder(t *testing.T) {
	t.Parallel()
	conn, _ := serve(t)
	got := run(t, conn, wire.Exec{Args: sh("for i in 1 2 3 4 5; do echo o$i; echo e$i >&2; done"), Merge: true})
	if want := "o1\ne1\no2\ne2\no3\ne3\no4\ne4\no5\ne5\n"; got.stdout != want || got.stderr != "" {
		t.Errorf("got %q and %q, want %q", got.stdout, got.stderr, want)
	}
}

// family starts processes in every relation to their command, prints their PIDs and
// waits.
const family = `
sleep 1000 & echo $!
setsid sleep 1000 & echo $!
setsid sh -c 'sleep 1000 & echo $!; setsid sleep 1000 & echo $!; trap "" TERM; wait' &
(trap "" TERM INT HUP; sleep 1000 & echo $!; wait) &
(sleep 1000 & echo $!) &
wait
sleep 1000
`

func readPids(t *testing.T, r io.Reader, n int) (pids []int) {
	t.Helper()
	var line strings.Builder
	for len(pids) < n {
		var b [1]byte
		if _, err := io.ReadFull(r, b[:]); err != nil {
			t.Fatal(err)
		}
		if b[0] != '\n' {
			line.WriteByte(b[0])
			continue
		}
		pids = append(pids, atoi(t, line.String()))
		line.Reset()
	}
	return pids
}

func TestTheWholeTreeDies(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		end  func(*guest.Conn, *guest.Process)
		lost bool
	}{
		{"signal", func(_ *guest.Conn, p *guest.Process) { p.Signal(t.Context(), 9, true) }, false},
		{"close", func(_ *guest.Conn, p *guest.Process) { p.Close() }, true},
		{"connection", func(c *guest.Conn, _ *guest.Process) { c.Close() }, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			conn, _ := serve(t)
			p, err := conn.Exec(t.Context(), wire.Exec{Args: sh(family)})
			if err != nil {
				t.Fatal(err)
			}
			pids := append(readPids(t, p.Stdout(), 6), p.Started().Pid)
			tt.end(conn, p)
			exit, err := p.Wait()
			if tt.lost != errors.Is(err, guest.ErrConnectionLost) || !tt.lost && exit.Code != 137 {
				t.Errorf("Wait: %+v, %v", exit, err)
			}
			eventually(t, "all are dead", func() bool { return !slices.ContainsFunc(pids, alivePid) })
		})
	}
}

func TestDaemonsDieWithTheirCommand(t *testing.T) {
	t.Parallel()
	conn, _ := serve(t)
	// The intermediate parents are gone, the session and the group are new: only what
	// a process inherits without knowing tells whose it is.
	p, err := conn.Exec(t.Context(), wire.Exec{Args: sh(`setsid -f sh -c 'echo $$; exec sleep 1000'; sleep 1000`)})
	if err != nil {
		t.Fatal(err)
	}
	pids := readPids(t, p.Stdout(), 1)
	other, err := conn.Exec(t.Context(), wire.Exec{Args: sh(`setsid -f sh -c 'echo $$; exec sleep 1000'; sleep 1000`)})
	if err != nil {
		t.Fatal(err)
	}
	others := readPids(t, other.Stdout(), 1)
	if err := p.Signal(t.Context(), 9, true); err != nil {
		t.Fatal(err)
	}
	finish(t, p)
	eventually(t, "the daemon is dead", func() bool { return !alivePid(pids[0]) })
	if !alivePid(others[0]) || !alivePid(other.Started().Pid) {
		t.Error("another command's processes died too")
	}
}

func TestTimeoutKillsTheTree(t *testing.T) {
	t.Parallel()
	conn, _ := serve(t)
	var pids []int
	// On a slow machine it may begin too late, and has more time the next time.
	for limit := time.Second; len(pids) < 7; limit *= 4 {
		got := run(t, conn, wire.Exec{Args: sh(family), Timeout: limit})
		if !got.exit.TimedOut || got.exit.Code != 137 || got.exit.Signal != 9 {
			t.Errorf("exit %+v, want TimedOut and 137", got.exit)
		}
		pids = []int{got.started.Pid}
		for pid := range strings.Lines(got.stdout) {
			pids = append(pids, atoi(t, pid))
		}
		if len(pids) < 7 && limit > time.Minute {
			t.Fatalf("the command has printed %q within %v", got.stdout, limit)
		}
	}
	eventually(t, "all are dead", func() bool { return !slices.ContainsFunc(pids, alivePid) })
}

func TestAForkBombDies(t *testing.T) {
	for name, bomb := range map[string]string{
		"sleeps":              `bomb() { sleep 1000 & bomb & bomb & wait; }; bomb`,
		"uses the CPUs":       `bomb() { while :; do :; done & bomb & bomb & while :; do :; done; }; bomb`,
		"without its parents": `bomb() { (bomb &); (bomb &); while :; do :; done; }; bomb & bomb`,
		"in many groups":      `set -m; bomb() { bomb & bomb & while :; do :; done; }; bomb & bomb`,
	} {
		t.Run(name, func(t *testing.T) {
			b := newBox(t, wire.Init{})
			conn := b.serve()
			p, err := conn.Exec(t.Context(), wire.Exec{Args: []string{"bash", "-c", "ulimit -u 100; " + bomb}, User: "54321:54321"})
			if err != nil {
				t.Fatal(err)
			}
			eventually(t, "many processes", func() bool { return countOf(t, conn, "54321") > 60 })
			p.Close()
			eventually(t, "none of them is left", func() bool { return countOf(t, conn, "54321") == 0 })
		})
	}
}

// countOf counts a user's processes by asking inside.
func countOf(t *testing.T, conn *guest.Conn, uid string) int {
	t.Helper()
	got := run(t, conn, wire.Exec{Args: sh("cat /proc/[0-9]*/status 2>/dev/null | grep -c '^Uid:.*" + uid + "'")})
	return atoi(t, got.stdout)
}

func TestTerminal(t *testing.T) {
	t.Parallel()
	conn, _ := serve(t)
	p, err := conn.Exec(t.Context(), wire.Exec{
		Args: sh(`trap 'stty size' WINCH; stty size; echo $TERM; tty -s && echo terminal; ps -o pid=,sid=,tpgid= -p $$; while ! read line; do :; done; echo "got $line"`),
		TTY:  true, Stdin: true, Size: wire.Size{Rows: 33, Cols: 111},
	})
	if err != nil {
		t.Fatal(err)
	}
	out := newTail(p.Stdout())
	out.until(t, "33 111")
	out.until(t, "xterm")
	out.until(t, "terminal")
	pid := strconv.Itoa(p.Started().Pid)
	out.until(t, "\n")
	line := strings.Fields(out.until(t, "\n"))
	if want := []string{pid, pid, pid}; !slices.Equal(line, want) {
		t.Errorf("pid, session, foreground group: %v, want %v", line, want)
	}
	if err := p.Resize(t.Context(), wire.Size{Rows: 50, Cols: 200}); err != nil {
		t.Fatal(err)
	}
	out.until(t, "50 200")
	io.WriteString(p.Stdin(), "input\n")
	out.until(t, "got input")
	if exit, err := p.Wait(); err != nil || exit.Code != 0 {
		t.Errorf("exit %+v, %v", exit, err)
	}

	// End of input is the terminal's end of file.
	p, err = conn.Exec(t.Context(), wire.Exec{Args: []string{"cat"}, TTY: true, Stdin: true})
	if err != nil {
		t.Fatal(err)
	}
	io.WriteString(p.Stdin(), "abc")
	p.Stdin().Close()
	if got := finish(t, p); got.exit.Code != 0 || !strings.Contains(got.stdout, "abc") {
		t.Errorf("cat: %+v, %q", got.exit, got.stdout)
	}

	// Programs close their output before they exit, to see whether it was written.
	p, err = conn.Exec(t.Context(), wire.Exec{Args: sh("echo said; exec <&- >&- 2>&-; sleep 0.3; exit 7"), TTY: true, Stdin: true})
	if err != nil {
		t.Fatal(err)
	}
	if got := finish(t, p); got.exit.Code != 7 || !strings.Contains(got.stdout, "said") {
		t.Errorf("a shell that has closed its terminal: %+v, %q", got.exit, got.stdout)
	}

	// Ctrl-C is a signal.
	p, err = conn.Exec(t.Context(), wire.Exec{Args: sh("echo ready; exec sleep 1000"), TTY: true, Stdin: true})
	if err != nil {
		t.Fatal(err)
	}
	out = newTail(p.Stdout())
	out.until(t, "ready")
	io.WriteString(p.Stdin(), "\x03")
	if exit, err := p.Wait(); err != nil || exit.Code != 130 {
		t.Errorf("after Ctrl-C: %+v, %v", exit, err)
	}
}

type tail struct {
	r   io.Reader
	buf string
}

func newTail(r io.Reader) *tail { return &tail{r: r} }

// until reads up to and including text and returns what came before it.
func (l *tail) until(t *testing.T, text string) string {
	t.Helper()
	for {
		if before, after, ok := strings.Cut(l.buf, text); ok {
			l.buf = after
			return before
		}
		b := make([]byte, 4096)
		n, err := l.r.Read(b)
		l.buf += string(b[:n])
		if err != nil {
			t.Fatalf("waiting for %q: %v, after %q", text, err, l.buf)
		}
	}
}

func TestManyAtOnce(t *testing.T) {
	t.Parallel()
	conn, _ := serve(t)
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() {
			in := strings.Repeat(strconv.Itoa(i)+" ", 50_000)
			p, err := conn.Exec(context.Background(), wire.Exec{Args: sh(fmt.Sprintf("cat; exit %d", i)), Stdin: true})
			if err != nil {
				t.Error(err)
				return
			}
			go func() {
				io.WriteString(p.Stdin(), in)
				p.Stdin().Close()
			}()
			if got := finish(t, p); got.stdout != in || got.exit.Code != i {
				t.Errorf("command %d: %d bytes, exit %+v", i, len(got.stdout), got.exit)
			}
		})
	}
	wg.Wait()
}

func TestUserSwitching(t *testing.T) {
	t.Parallel()
	conn, _ := serve(t)
	for _, tt := range []struct{ user, want string }{
		{"", "0:0: /root root"},
		{"root", "0:0: /root root"},
		{"nobody", "65534:65534: /nonexistent nobody"},
		{"nobody:daemon", "65534:1: /nonexistent nobody"},
		{"54321", "54321:0: / "},
		{"54321:54322", "54321:54322: / "},
		{"0:5", "0:5: /root root"},
	} {
		got := run(t, conn, wire.Exec{Args: sh(`echo "$(id -u):$(id -g): $HOME $USER"`), User: tt.user})
		if strings.TrimSuffix(got.stdout, "\n") != tt.want {
			t.Errorf("user %q: got %q, want %q", tt.user, got.stdout, tt.want)
		}
		got = run(t, conn, wire.Exec{Args: sh(`echo a > /dev/stdout; echo b > /dev/stderr`), User: tt.user})
		if got.stdout != "a\n" || got.stderr != "b\n" {
			t.Errorf("user %q can't open its own output again: %q %q", tt.user, got.stdout, got.stderr)
		}
	}
}

func TestChildrenHaveNoForbiddenCapability(t *testing.T) {
	t.Parallel()
	conn, _ := serve(t)
	got := run(t, conn, wire.Exec{Args: []string{"grep", "^Cap", "/proc/self/status"}})
	checkCaps(t, got.stdout)
	if got := run(t, conn, wire.Exec{Args: []string{"cat", "/proc/self/oom_score_adj"}}); atoi(t, got.stdout) < 500 {
		t.Errorf("oom_score_adj is %q", got.stdout)
	}
}

// checkCaps reads the Cap lines of a status file.
func checkCaps(t *testing.T, status string) {
	t.Helper()
	const forbidden = 1<<12 | 1<<13 | 1<<27 // NET_ADMIN, NET_RAW, MKNOD
	seen := 0
	for line := range strings.Lines(status) {
		name, hex, ok := strings.Cut(strings.TrimSpace(line), ":")
		if !ok || !strings.HasPrefix(name, "Cap") {
			continue
		}
		set, err := strconv.ParseUint(strings.TrimSpace(hex), 16, 64)
		if err != nil {
			t.Fatal(err)
		}
		seen++
		if set&forbidden != 0 {
			t.Errorf("%s is %x: has what is forbidden", name, set)
		}
		if name == "CapBnd" && set == 0 {
			t.Errorf("CapBnd is empty: this proves nothing")
		}
	}
	if seen != 5 {
		t.Errorf("%d capability sets in %q", seen, status)
	}
}

func TestServeLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	conn, cmd := serve(t)
	// Orphans fall to serve, which must not let them become zombies.
	got := run(t, conn, wire.Exec{Args: sh(`for i in 1 2 3 4 5 6 7 8; do setsid -f sleep 0.0$i; done`)})
	if got.exit.Code != 0 {
		t.Fatal(got.exit)
	}
	eventually(t, "no child is left", func() bool { return len(children(t, cmd.Process.Pid)) == 0 })
}

func TestKilledServeTakesItsCommandsAlong(t *testing.T) {
	t.Parallel()
	conn, cmd := serve(t)
	p, err := conn.Exec(t.Context(), wire.Exec{Args: []string{"sleep", "1000"}})
	if err != nil {
		t.Fatal(err)
	}
	cmd.Process.Kill()
	if _, err := p.Wait(); !errors.Is(err, guest.ErrConnectionLost) {
		t.Errorf("Wait: %v, want %v", err, guest.ErrConnectionLost)
	}
	if _, err := io.ReadAll(p.Stdout()); !errors.Is(err, guest.ErrConnectionLost) {
		t.Errorf("Read: %v, want %v", err, guest.ErrConnectionLost)
	}
	<-conn.Done()
	if !errors.Is(conn.Err(), guest.ErrConnectionLost) {
		t.Errorf("Err: %v", conn.Err())
	}
	if _, err := conn.Exec(t.Context(), wire.Exec{Args: []string{"true"}}); !errors.Is(err, guest.ErrConnectionLost) {
		t.Errorf("Exec: %v, want %v", err, guest.ErrConnectionLost)
	}
	eventually(t, "the command is dead", func() bool { return !alivePid(p.Started().Pid) })
}

func TestSigtermLetsCommandsFinish(t *testing.T) {
	t.Parallel()
	conn, cmd := serve(t)
	p, err := conn.Exec(t.Context(), wire.Exec{Args: []string{"cat"}, Stdin: true})
	if err != nil {
		t.Fatal(err)
	}
	cmd.Process.Signal(unix.SIGTERM)
	eventually(t, "new commands are refused", func() bool {
		q, err := conn.Exec(t.Context(), wire.Exec{Args: []string{"true"}})
		if err == nil {
			finish(t, q)
			return false
		}
		if kindOf(err) != wire.KindStopping {
			t.Fatalf("Exec: %v", err)
		}
		return true
	})
	io.WriteString(p.Stdin(), "last words")
	p.Stdin().Close()
	if got := finish(t, p); got.stdout != "last words" || got.exit.Code != 0 {
		t.Errorf("got %q, %+v", got.stdout, got.exit)
	}
	<-conn.Done()
}

func TestCancelledStartKillsWhatStarted(t *testing.T) {
	t.Parallel()
	conn, cmd := serve(t)
	for i := range 40 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*100*time.Microsecond)
		if p, err := conn.Exec(ctx, wire.Exec{Args: []string{"sleep", "1000"}}); err == nil {
			p.Close()
		} else if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Exec: %v", err)
		}
		cancel()
	}
	eventually(t, "no child is left", func() bool { return len(children(t, cmd.Process.Pid)) == 0 })
}

func TestDialGivesUp(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	r, w := io.Pipe()
	if _, err := guest.Dial(ctx, pipes{r, w}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Dial to nobody: %v, want %v", err, context.DeadlineExceeded)
	}
	r, w = io.Pipe()
	r2, w2 := io.Pipe()
	go io.Copy(io.Discard, r)
	go func() {
		io.WriteString(w2, strings.Repeat("this is not SSH\r\n", 1000))
		w2.Close()
	}()
	if _, err := guest.Dial(t.Context(), pipes{r2, w}); err == nil {
		t.Error("Dial to something else succeeded")
	}
}

func TestEmbeddedBinaries(t *testing.T) {
	t.Parallel()
	for _, arch := range []string{"amd64", "arm64"} {
		b, err := guest.Binary(arch)
		if err != nil {
			t.Fatal(err)
		}
		hash, _ := guest.Hash(arch)
		size, _ := guest.Size(arch)
		if got := fmt.Sprintf("%x", sha256.Sum256(b))[:12]; got != hash || int64(len(b)) != size || string(b[:4]) != "\x7fELF" {
			t.Errorf("%s: hash %s size %d, want %s and %d", arch, got, len(b), hash, size)
		}
	}
	if _, err := guest.Binary("mips"); err == nil || !strings.Contains(err.Error(), `"mips"`) {
		t.Errorf("Binary(mips): %v", err)
	}
}

// A guest that is frozen says nothing: whoever waits for it can see to that.
func TestSilenceOfAFrozenGuest(t *testing.T) {
	t.Parallel()
	conn, cmd := serve(t)
	conn.KeepAlive(func(context.Context, time.Duration) error {
		if err := cmd.Process.Signal(unix.SIGCONT); err != nil {
			t.Error(err)
		}
		return nil
	})
	if err := cmd.Process.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	p, err := conn.Exec(ctx, wire.Exec{Args: []string{"true"}})
	if err != nil {
		t.Fatalf("Exec on a guest that is frozen: %v", err)
	}
	if _, err := p.Wait(); err != nil {
		t.Errorf("Wait: %v", err)
	}
}

// What serves a connection ends with it, also while commands of it are about to start.
func TestAnEndAmidManyStarts(t *testing.T) {
	t.Parallel()
	for round := range 25 {
		conn, cmd := serve(t)
		var starts sync.WaitGroup
		for range 16 {
			starts.Go(func() {
				if p, err := conn.Exec(t.Context(), wire.Exec{Args: []string{"sleep", "1000"}}); err == nil {
					p.Wait()
				}
			})
		}
		time.Sleep(time.Duration(round) * 800 * time.Microsecond)
		conn.Close()
		starts.Wait()
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			cmd.Wait()
		}()
		select {
		case <-ended:
		case <-time.After(5 * time.Minute):
			t.Errorf("round %d: serve goes on without its client", round)
			for _, pid := range childrenOf(cmd.Process.Pid) {
				unix.Kill(pid, unix.SIGKILL)
			}
			cmd.Process.Kill()
			<-ended
			return
		}
	}
}
