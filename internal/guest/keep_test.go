//go:build linux

package guest_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// kept is how much output of a detached command is kept at least and at most.
const kept = 8 << 20

func TestDetachedCommandSurvivesItsClient(t *testing.T) {
	t.Parallel()
	b := newBox(t, wire.Init{})
	first, cmd := serve(t, b.in(binary, wire.VerbServe)...)
	req := wire.Exec{
		ID: "job", Args: sh(`echo $$; echo early >&2; while ! test -e "$F"; do sleep 0.01; done; echo late; exit 3`),
		Env: []string{"F=" + t.TempDir() + "/go"}, Dir: "/usr", Detached: true,
	}
	p, err := first.Exec(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	out := newTail(p.Stdout())
	pid := out.until(t, "\n")
	if got := p.Started(); got.Exec.ID != "job" || fmt.Sprint(got.Pid) != pid {
		t.Errorf("Started %+v, and it says its PID is %s", got, pid)
	}
	first.Close()
	cmd.Wait()
	if _, err := p.Wait(); !errors.Is(err, guest.ErrConnectionLost) {
		t.Errorf("Wait after Close: %v", err)
	}

	second := b.serve()
	q, err := second.Attach(t.Context(), "job")
	if err != nil {
		t.Fatal(err)
	}
	if got := q.Started(); got.Exec.Dir != "/usr" || !slices.Equal(got.Exec.Args, req.Args) || got.Exec.Env != nil || fmt.Sprint(got.Pid) != pid {
		t.Errorf("Started of the attached: %+v", got)
	}
	run(t, second, wire.Exec{Args: []string{"touch", strings.TrimPrefix(req.Env[0], "F=")}})
	if got := finish(t, q); got.stdout != pid+"\nlate\n" || got.stderr != "early\n" || got.exit.Code != 3 || got.exit.Dropped != 0 {
		t.Errorf("attached: %q %q %+v", got.stdout, got.stderr, got.exit)
	}

	// After the fact, too, and as often as one likes.
	third := b.serve()
	for range 3 {
		q, err := third.Attach(t.Context(), "job")
		if err != nil {
			t.Fatal(err)
		}
		if got := finish(t, q); got.stdout != pid+"\nlate\n" || got.exit.Code != 3 {
			t.Errorf("after the end: %q %+v", got.stdout, got.exit)
		}
	}
	if _, err := third.Attach(t.Context(), "no-such"); kindOf(err) != wire.KindUnknownProcess {
		t.Errorf("Attach to nothing: %v", err)
	}
	if _, err := third.Exec(t.Context(), req); kindOf(err) != wire.KindArguments {
		t.Errorf("a second command with the same ID: %v", err)
	}
	b.cmd.Process.Signal(unix.SIGTERM)
	if code := b.code(); code != wire.CodeStopped {
		t.Errorf("exit code %d", code)
	}
}

func TestDetachedCommandsWithoutIDsGetTheirOwn(t *testing.T) {
	t.Parallel()
	conn := newBox(t, wire.Init{}).serve()
	seen := map[string]bool{}
	for range 3 {
		got := run(t, conn, wire.Exec{Args: []string{"true"}, Detached: true})
		id := got.started.Exec.ID
		if id == "" || seen[id] {
			t.Errorf("ID %q", id)
		}
		seen[id] = true
	}
	// What can't start leaves no trace.
	for range 2 {
		if _, err := conn.Exec(t.Context(), wire.Exec{ID: "x", Args: []string{"no-such-program"}, Detached: true}); kindOf(err) != wire.KindNotFound {
			t.Errorf("Exec: %v", err)
		}
	}
}

func TestASlowFollowerMissesBytesAndKnowsIt(t *testing.T) {
	t.Parallel()
	conn := newBox(t, wire.Init{}).serve()
	const size = 40 << 20
	// More than the window, the pipes and what is kept can hold, read by nobody.
	p, err := conn.Exec(t.Context(), wire.Exec{ID: "loud", Args: sh(fmt.Sprintf("head -c %d /dev/zero; echo end >&2", size)), Detached: true})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "it ends, whoever reads", func() bool {
		return !alivePidInside(t, conn, p.Started().Pid)
	})
	got := finish(t, p)
	if n := int64(len(got.stdout)); n+int64(len(got.stderr))+got.exit.Dropped != size+4 || got.exit.Dropped == 0 || n < kept-4 {
		t.Errorf("got %d and %d bytes, dropped %d: want %d in all, %d kept", n, len(got.stderr), got.exit.Dropped, size+4, kept)
	}
	// One that comes later has exactly what is kept.
	q, err := conn.Attach(t.Context(), "loud")
	if err != nil {
		t.Fatal(err)
	}
	got = finish(t, q)
	if n := len(got.stdout) + len(got.stderr); n != kept || got.exit.Dropped != size+4-kept || got.stderr != "end\n" {
		t.Errorf("later: %d bytes, stderr %q, dropped %d: want %d and %d", n, got.stderr, got.exit.Dropped, kept, size+4-kept)
	}
}

func alivePidInside(t *testing.T, conn *guest.Conn, pid int) bool {
	return run(t, conn, wire.Exec{Args: []string{"test", "-e", fmt.Sprintf("/proc/%d", pid)}}).exit.Code == 0
}

func TestFollowersAllGetEverything(t *testing.T) {
	t.Parallel()
	b := newBox(t, wire.Init{})
	conn := b.serve()
	p, err := conn.Exec(t.Context(), wire.Exec{ID: "c", Args: []string{"cat"}, Stdin: true, Detached: true})
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Repeat("0123456789abcdef", 100_000)
	var wg sync.WaitGroup
	for range 4 {
		q, err := b.serve().Attach(t.Context(), "c")
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			if got := finish(t, q); got.stdout != text || got.exit.Code != 0 {
				t.Errorf("a follower got %d bytes, %+v", len(got.stdout), got.exit)
			}
		})
	}
	wg.Go(func() {
		io.Copy(p.Stdin(), bytes.NewReader([]byte(text)))
		p.Stdin().Close()
	})
	if got := finish(t, p); got.stdout != text {
		t.Errorf("the starter got %d bytes", len(got.stdout))
	}
	wg.Wait()
}

func TestDetachedInputEndsWithItsStarter(t *testing.T) {
	t.Parallel()
	b := newBox(t, wire.Init{})
	first := b.serve()
	p, err := first.Exec(t.Context(), wire.Exec{ID: "c", Args: []string{"cat"}, Stdin: true, Detached: true})
	if err != nil {
		t.Fatal(err)
	}
	io.WriteString(p.Stdin(), "hello")
	newTail(p.Stdout()).until(t, "hello")
	p.Close()
	q, err := b.serve().Attach(t.Context(), "c")
	if err != nil {
		t.Fatal(err)
	}
	if got := finish(t, q); got.stdout != "hello" || got.exit.Code != 0 {
		t.Errorf("got %q, %+v", got.stdout, got.exit)
	}
}

func TestDetachedTimeoutAndSignals(t *testing.T) {
	t.Parallel()
	b := newBox(t, wire.Init{})
	conn := b.serve()
	p, err := conn.Exec(t.Context(), wire.Exec{ID: "t", Args: sh("setsid -f sleep 1000; sleep 1000"), Timeout: 100 * time.Millisecond, Detached: true})
	if err != nil {
		t.Fatal(err)
	}
	p.Close()
	q, err := conn.Attach(t.Context(), "t")
	if err != nil {
		t.Fatal(err)
	}
	if got := finish(t, q).exit; !got.TimedOut || got.Code != 137 {
		t.Errorf("exit %+v, want TimedOut", got)
	}
	eventually(t, "none of its processes is left", func() bool {
		return atoi(t, run(t, conn, wire.Exec{Args: sh("cat /proc/[0-9]*/comm 2>/dev/null | grep -cx sleep")}).stdout) == 0
	})

	if _, err := conn.Exec(t.Context(), wire.Exec{ID: "s", Args: []string{"sleep", "1000"}, Detached: true}); err != nil {
		t.Fatal(err)
	}
	q, err = b.serve().Attach(t.Context(), "s")
	if err != nil {
		t.Fatal(err)
	}
	if err := q.Signal(t.Context(), 15, false); err != nil {
		t.Error(err)
	}
	if got := finish(t, q).exit; got.Code != 143 {
		t.Errorf("exit %+v, want 143", got)
	}
}

// What a command that has ended left behind is killed by its ID, whatever has come since.
func TestKillOfWhatADetachedCommandLeft(t *testing.T) {
	t.Parallel()
	conn := newBox(t, wire.Init{}).serve()
	kill := func(id string) error {
		p, err := conn.AttachQuietly(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		return p.Signal(t.Context(), int(unix.SIGKILL), true)
	}
	alive := func(what string) bool {
		return run(t, conn, wire.Exec{Args: []string{"pgrep", "-fx", what}}).exit.Code == 0
	}
	for n, script := range []string{
		"%s >/dev/null 2>&1 &", "nohup %s >/dev/null 2>&1 &", "setsid -f %s >/dev/null 2>&1", // a group of the command's, and one of its own
	} {
		id, left := fmt.Sprint("left", n), fmt.Sprintf("sleep 100%d", n)
		run(t, conn, wire.Exec{ID: id, Args: sh(fmt.Sprintf(script, left)), Detached: true})
		other, err := conn.Exec(t.Context(), wire.Exec{ID: "other" + id, Args: []string{"cat"}, Stdin: true, Detached: true})
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, fmt.Sprintf("%q leaves a process", script), func() bool { return alive(left) })
		if err := kill(id); err != nil || alive(left) {
			t.Errorf("%q: kill: %v, it lives: %t", script, err, alive(left))
		}
		if err := kill(id); !errors.Is(err, os.ErrProcessDone) {
			t.Errorf("%q: a second kill: %v, want os.ErrProcessDone", script, err)
		}
		other.Stdin().Close()
		if got := finish(t, other).exit; got.Code != 0 {
			t.Errorf("%q: another command ended with %+v", script, got)
		}
	}
}

// A process that has the number of a command that has ended is no part of it, nor is its group.
func TestKillOfACommandWhoseNumberIsAnothers(t *testing.T) {
	t.Parallel()
	b := newBox(t, wire.Init{})
	conn := b.serve()
	pid := run(t, conn, wire.Exec{ID: "ended", Args: []string{"true"}, Detached: true}).started.Pid
	argv := b.enter("pid,mnt", "/bin/sh", "-c", fmt.Sprintf(`
		until echo %d >/proc/sys/kernel/ns_last_pid; setsid sleep 1000 & [ $! = %d ]; do kill $!; wait $!; done # a thread may be faster
		until [ "$(cut -d' ' -f6 /proc/$!/stat)" = $! ]; do sleep 0.01; done
		echo ready; read x; kill $!; wait $!; echo $?`, pid-1, pid))
	other := exec.Command(argv[0], argv[1:]...)
	stdin, err := other.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := other.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	out := newTail(stdout)
	out.until(t, "\n")
	p, err := conn.AttachQuietly(t.Context(), "ended")
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if err := p.Signal(t.Context(), int(unix.SIGKILL), true); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("kill: %v, want os.ErrProcessDone", err)
	}
	stdin.Close()
	if code := out.until(t, "\n"); code != "143" {
		t.Errorf("the other process ended with %s, want 143, of its own SIGTERM", code)
	}
	if err := other.Wait(); err != nil {
		t.Error(err)
	}
}

func TestStopLetsDetachedCommandsFinish(t *testing.T) {
	t.Parallel()
	b := newBox(t, wire.Init{})
	conn := b.serve()
	p, err := conn.Exec(t.Context(), wire.Exec{Args: sh("trap 'echo bye; exit 7' TERM; echo ready; while :; do sleep 0.01; done"), Detached: true})
	if err != nil {
		t.Fatal(err)
	}
	newTail(p.Stdout()).until(t, "ready")
	conn.Close() // nobody follows
	b.cmd.Process.Signal(unix.SIGTERM)
	if code := b.code(); code != wire.CodeStopped {
		t.Errorf("exit code %d", code)
	}
}

func TestTheKeeperIsStartedOnce(t *testing.T) {
	t.Parallel()
	b := newBox(t, wire.Init{})
	var wg sync.WaitGroup
	for i := range 8 {
		conn := b.serve()
		for j := range 4 {
			wg.Go(func() {
				id := fmt.Sprintf("%d.%d", i, j)
				p, err := conn.Exec(t.Context(), wire.Exec{ID: id, Args: []string{"echo", id}, Detached: true})
				if err != nil {
					t.Error(err)
					return
				}
				if got := finish(t, p); got.stdout != id+"\n" {
					t.Errorf("got %q", got.stdout)
				}
			})
		}
	}
	wg.Wait()
	conn := b.serve()
	for i := range 8 {
		if _, err := conn.Attach(t.Context(), fmt.Sprintf("%d.3", i)); err != nil {
			t.Error(err)
		}
	}
	// Those that came too late are gone.
	eventually(t, "one keeper is left", func() bool {
		got := run(t, conn, wire.Exec{Args: sh(`for f in /proc/[0-9]*/cmdline; do tr '\0' ' ' < $f; echo; done 2>/dev/null | grep -c 'guest kee[p]'`)})
		return atoi(t, got.stdout) == 1
	})
}

func TestOldDetachedCommandsAreForgotten(t *testing.T) {
	t.Parallel()
	conn := newBox(t, wire.Init{}).serve()
	for i := range 70 {
		run(t, conn, wire.Exec{ID: fmt.Sprint(i), Args: []string{"true"}, Detached: true})
	}
	if _, err := conn.Attach(t.Context(), "0"); kindOf(err) != wire.KindUnknownProcess {
		t.Errorf("the oldest is still known: %v", err)
	}
	if _, err := conn.Attach(t.Context(), "69"); err != nil {
		t.Errorf("the latest: %v", err)
	}
}

func TestAKilledKeeperIsReplaced(t *testing.T) {
	t.Parallel()
	conn := newBox(t, wire.Init{}).serve()
	p, err := conn.Exec(t.Context(), wire.Exec{ID: "a", Args: []string{"sleep", "1000"}, Detached: true})
	if err != nil {
		t.Fatal(err)
	}
	run(t, conn, wire.Exec{Args: sh(`for d in /proc/[0-9]*; do case $(tr '\0' ' ' < $d/cmdline) in *guest' 'kee[p]*) kill -9 ${d#/proc/};; esac; done`)})
	if _, err := p.Wait(); !errors.Is(err, guest.ErrConnectionLost) {
		t.Errorf("Wait: %v", err)
	}
	if conn.Err() != nil {
		t.Errorf("the connection went with it: %v", conn.Err())
	}
	eventually(t, "a new keeper serves", func() bool {
		p, err := conn.Exec(t.Context(), wire.Exec{Args: []string{"true"}, Detached: true})
		if err != nil {
			return false
		}
		finish(t, p)
		return true
	})
}

func TestOnlyRootReachesTheKeeper(t *testing.T) {
	t.Parallel()
	b := newBox(t, wire.Init{})
	conn := b.serve()
	run(t, conn, wire.Exec{Args: []string{"true"}, Detached: true})
	if _, err := exec.LookPath("python3"); err != nil {
		t.Fatal(err)
	}
	script := `
import socket
s = socket.socket(socket.AF_UNIX)
s.connect("\0agent-sandbox/keep")
print(len(s.recv(10)))`
	for user, want := range map[string]string{"nobody": "0\n", "root": "10\n"} {
		got := run(t, conn, wire.Exec{Args: []string{"python3", "-c", script}, User: user})
		if got.stdout != want {
			t.Errorf("%s read %q (%s), want %q", user, got.stdout, got.stderr, want)
		}
	}
}

// The keeper's name is bound before anybody runs inside, so nobody can keep detached commands
// from starting.
func TestNobodyTakesTheKeepersName(t *testing.T) {
	t.Parallel()
	b := newBox(t, wire.Init{})
	conn := b.serve()
	script := `
import socket
s = socket.socket(socket.AF_UNIX)
try:
	s.bind("\0agent-sandbox/keep")
	print("taken")
except OSError as e:
	print(e.strerror)`
	for _, user := range []string{"nobody", "root"} {
		if got := run(t, conn, wire.Exec{Args: []string{"python3", "-c", script}, User: user}); got.stdout != "Address already in use\n" {
			t.Errorf("%s: %q %s", user, got.stdout, got.stderr)
		}
	}
	if got := run(t, conn, wire.Exec{Args: []string{"echo", "kept"}, Detached: true}); got.stdout != "kept\n" {
		t.Errorf("a detached command says %q", got.stdout)
	}
}

// PID 1 and the programs that serve it hold no directory that the image or the caller chose.
func TestPID1IsInTheRootDirectory(t *testing.T) {
	t.Parallel()
	b := newBox(t, wire.Init{})
	if dir, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", b.cmd.Process.Pid)); err != nil || dir != "/" {
		t.Errorf("its directory is %q, %v", dir, err)
	}
}
