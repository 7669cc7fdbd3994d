//go:build linux

package guest_test

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
	"github.com/seed-1a2d6d8f/sandbox/internal/policy"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

func newKey(t testing.TB) (ed25519.PublicKey, ed25519.PrivateKey) {
	t.Helper()
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	return public, private
}

func TestInitRefusesToBeAnyoneElse(t *testing.T) {
	t.Parallel()
	out, err := exec.Command(binary, wire.VerbInit, "{}").CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != wire.CodeFailed {
		t.Errorf("guest init as an ordinary process: %v, %s", err, out)
	}
}

func TestStopIsPrompt(t *testing.T) {
	t.Parallel()
	b := newBox(t, wire.Init{Grace: time.Hour})
	conn := b.serve()
	run(t, conn, wire.Exec{Args: []string{"true"}})
	begin := time.Now()
	b.cmd.Process.Signal(unix.SIGTERM)
	if code := b.code(); code != wire.CodeStopped { // and it waits for no grace
		t.Errorf("exit code %d, want %d", code, wire.CodeStopped)
	}
	t.Logf("stopped in %v", time.Since(begin))
}

func TestStopWaitsForCommands(t *testing.T) {
	t.Parallel()
	b := newBox(t, wire.Init{})
	conn := b.serve()
	p, err := conn.Exec(t.Context(), wire.Exec{Args: sh("trap 'echo bye; exit 7' TERM; echo ready; while :; do sleep 0.01; done")})
	if err != nil {
		t.Fatal(err)
	}
	// A stopped process gets its SIGTERM only when it goes on.
	stopped, err := conn.Exec(t.Context(), wire.Exec{Args: sh("echo ready; kill -STOP $$; sleep 1000")})
	if err != nil {
		t.Fatal(err)
	}
	newTail(stopped.Stdout()).until(t, "ready")
	out := newTail(p.Stdout())
	out.until(t, "ready")
	b.cmd.Process.Signal(unix.SIGTERM)
	out.until(t, "bye")
	if exit, err := p.Wait(); err != nil || exit.Code != 7 {
		t.Errorf("exit %+v, %v: want 7", exit, err)
	}
	if exit, err := stopped.Wait(); err != nil || exit.Code != 143 {
		t.Errorf("stopped process: exit %+v, %v", exit, err)
	}
	if code := b.code(); code != wire.CodeStopped {
		t.Errorf("exit code %d, want %d", code, wire.CodeStopped)
	}
}

// Whoever changes the network could get out in whatever time is left, so there is none.
func TestSessionEndsAtOnceWhenItsNetworkIsChanged(t *testing.T) {
	t.Parallel()
	b := newBox(t, wire.Init{Grace: time.Hour})
	p, err := b.serve().Exec(t.Context(), wire.Exec{Args: sh("trap '' TERM; echo ready; while :; do sleep 1000; done")})
	if err != nil {
		t.Fatal(err)
	}
	newTail(p.Stdout()).until(t, "ready")
	argv := b.enter("net", "ip", "addr", "add", "10.1.1.1/24", "dev", "lo")
	if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if code := b.code(); code != wire.CodeChanged {
		t.Errorf("exit code %d, want %d", code, wire.CodeChanged)
	}
	if !strings.Contains(b.out.String(), "another process has changed an address") {
		t.Errorf("PID 1 said %q", b.out)
	}
}

func TestPID1OutlivesEverySignalFromInside(t *testing.T) {
	t.Parallel()
	public, private := newKey(t)
	b := newBox(t, wire.Init{ControlKey: public})
	conn := b.serve()
	for range 3 {
		got := run(t, conn, wire.Exec{Args: self("signals")})
		if !strings.HasPrefix(got.stdout, "sent ") || atoi(t, got.stdout[5:]) < 3*3*64 {
			t.Fatalf("the attack itself failed: %q %q %+v", got.stdout, got.stderr, got.exit)
		}
		if _, err := conn.Control(t.Context(), private, wire.Control{Op: wire.OpStatus}); err != nil {
			t.Fatalf("Control after the attack: %v", err)
		}
	}
	// From outside only SIGTERM means anything.
	for n := unix.Signal(1); n <= 64; n++ {
		if n != unix.SIGKILL && n != unix.SIGSTOP && n != unix.SIGTERM {
			b.cmd.Process.Signal(n)
		}
	}
	if _, err := conn.Control(t.Context(), private, wire.Control{Op: wire.OpStatus}); err != nil {
		t.Fatalf("Control after signals from outside: %v", err)
	}
	b.cmd.Process.Signal(unix.SIGTERM)
	if code := b.code(); code != wire.CodeStopped {
		t.Errorf("exit code %d, want %d", code, wire.CodeStopped)
	}
}

func TestRootInsideCannotLookIntoTheGuest(t *testing.T) {
	t.Parallel()
	b := newBox(t, wire.Init{})
	got := run(t, b.serve(), wire.Exec{Args: self("pry")})
	tried := map[string]int{}
	for line := range strings.Lines(got.stdout) {
		f := strings.Fields(line)
		if len(f) != 3 {
			t.Fatalf("line %q", line)
		}
		tried[f[0]]++
		// On a process of its own everything works: the attempts are real. Whoever
		// starves serve of resources hurts what it serves, itself included.
		want := "refused"
		if f[0] == "own" || f[0] == "serve" && strings.HasPrefix(f[1], "prlimit") {
			want = "done"
		}
		if f[2] != want {
			t.Errorf("on %s: %s was %s, want %s", f[0], f[1], f[2], want)
		}
	}
	if tried["1"] < 13 || tried["1"] != tried["own"] || tried["serve"] != tried["own"] {
		t.Errorf("attempts: %v (%s)", tried, got.stderr)
	}
}

func TestExhaustedDescriptorsDoNotKillPID1(t *testing.T) {
	public, private := newKey(t)
	b := newBox(t, wire.Init{ControlKey: public, Lease: time.Hour}, nofileEnv+"=32")
	conn := b.serve()
	var attack []*guest.Process
	for range 4 {
		p, err := conn.Exec(t.Context(), wire.Exec{Args: self("flood")})
		if err != nil {
			t.Fatal(err)
		}
		newTail(p.Stdout()).until(t, "flooding")
		attack = append(attack, p)
	}
	fds := fmt.Sprintf("/proc/%d/fd", b.cmd.Process.Pid)
	eventually(t, "PID 1 has no descriptor left", func() bool {
		open, err := os.ReadDir(fds)
		return err == nil && len(open) >= 32
	})
	run(t, conn, wire.Exec{Args: sh("setsid -f true")}) // it reaps without descriptors
	for _, p := range attack {
		p.Close()
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	if _, err := conn.Control(ctx, private, wire.Control{Op: wire.OpStatus}); err != nil {
		t.Errorf("Control afterwards: %v", err)
	}
	b.cmd.Process.Signal(unix.SIGTERM)
	if code := b.code(); code != wire.CodeStopped {
		t.Errorf("exit code %d, want %d", code, wire.CodeStopped)
	}
}

func TestOrphansAreReaped(t *testing.T) {
	t.Parallel()
	b := newBox(t, wire.Init{})
	for range 5 {
		argv := b.in("/bin/sh", "-c", "for i in 1 2 3 4 5 6; do setsid -f sleep 0.0$i; done")
		if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	pid := b.cmd.Process.Pid
	eventually(t, "PID 1 has no children", func() bool { return len(children(t, pid)) == 0 })
}

// shortLease makes the session's lease shorter than the one that it began with, which may have been long
// enough for a start that takes its time. A renewal alone shortens none.
func shortLease(t *testing.T, conn *guest.Conn, private ed25519.PrivateKey, lease time.Duration) error {
	t.Helper()
	for _, c := range []wire.Control{{Op: wire.OpRelease}, {Op: wire.OpLease, Lease: lease}} {
		reply, err := conn.Control(t.Context(), private, c)
		if err != nil {
			return err
		}
		if reply.LeaseLeft > lease {
			t.Fatalf("Control(%s): %+v", c.Op, reply)
		}
	}
	return nil
}

// leasedBox is a box whose lease is short once it runs.
func leasedBox(t *testing.T, lease time.Duration) (b *box, conn *guest.Conn, private ed25519.PrivateKey, err error) {
	t.Helper()
	public, private := newKey(t)
	b = newBox(t, wire.Init{ControlKey: public, Lease: time.Hour})
	conn = b.serve()
	return b, conn, private, shortLease(t, conn, private, lease)
}

func TestLeaseEndsTheSession(t *testing.T) {
	t.Parallel()
	harness.Patiently(t, 3*time.Second, func(lease time.Duration) error {
		public, private := newKey(t)
		b := newBox(t, wire.Init{ControlKey: public, Lease: time.Hour, Grace: 50 * time.Millisecond})
		conn := b.serve()
		// One that doesn't care is killed when the grace is over.
		stubborn, err := conn.Exec(t.Context(), wire.Exec{Args: sh("trap '' TERM; echo ready; while :; do sleep 0.01; done")})
		if err != nil {
			t.Fatal(err)
		}
		newTail(stubborn.Stdout()).until(t, "ready")
		if err := shortLease(t, conn, private, lease); err != nil {
			return err
		}
		begin := time.Now()
		for range 8 {
			reply, err := conn.Control(t.Context(), private, wire.Control{Op: wire.OpLease, Lease: lease})
			if err != nil {
				return err
			}
			if reply.LeaseLeft <= 0 || reply.LeaseLeft > lease {
				t.Fatalf("LeaseLeft %v", reply.LeaseLeft)
			}
			time.Sleep(lease / 4)
		}
		if code := b.code(); code != wire.CodeLease { // in time, which code bounds
			t.Errorf("exit code %d, want %d", code, wire.CodeLease)
		}
		if lived := time.Since(begin); lived < 2*lease {
			t.Errorf("it ended after %v, in spite of renewals", lived)
		}
		return nil
	})
}

// A lease that came through a server ends soon after that one has, however it ended, and those of others last on.
func TestLeaseEndsSoonAfterItsServer(t *testing.T) {
	t.Parallel()
	public, private := newKey(t)
	b := newBox(t, wire.Init{ControlKey: public, Lease: time.Hour})
	watch, closed, killed := b.serve(), b.serve(), b.serve()
	if _, err := watch.Control(t.Context(), private, wire.Control{Op: wire.OpRelease}); err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		conn         *guest.Conn
		lease, alone time.Duration
	}{{killed, 5 * time.Hour, 4 * time.Hour}, {closed, 3 * time.Hour, 2 * time.Hour}, {watch, time.Hour, 30 * time.Minute}} {
		if _, err := x.conn.Control(t.Context(), private, wire.Control{Op: wire.OpLease, Lease: x.lease, Alone: x.alone}); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "all servers are connected, beside the connections of their requests", func() bool { return b.controlled() == 6 })
	between := func(when string, low, high time.Duration) {
		t.Helper()
		eventually(t, fmt.Sprintf("%s the lease has between %v and %v left", when, low, high), func() bool {
			reply, err := watch.Control(t.Context(), private, wire.Control{Op: wire.OpStatus})
			if err != nil {
				t.Fatal(err)
			}
			return reply.LeaseLeft > low && reply.LeaseLeft <= high
		})
	}
	between("with all servers", 4*time.Hour, 5*time.Hour)
	closed.Close()
	between("without one that has not the longest", 4*time.Hour, 5*time.Hour)
	shell, err := killed.Exec(t.Context(), wire.Exec{Args: sh("read now; kill -9 $PPID"), Stdin: true})
	if err != nil {
		t.Fatal(err)
	}
	shell.Stdin().Close()
	<-killed.Done()
	between("once the server has died", 3*time.Hour, 4*time.Hour)
	if _, err := watch.Control(t.Context(), private, wire.Control{Op: wire.OpRelease}); err != nil {
		t.Fatal(err)
	}
	watch.Control(t.Context(), private, wire.Control{Op: wire.OpLease, Lease: time.Hour, Alone: 100 * time.Millisecond})
	between("with the last server", 30*time.Minute, time.Hour)
	watch.Close()
	if code := b.code(); code != wire.CodeLease {
		t.Errorf("without a server it ended with %d, want %d", code, wire.CodeLease)
	}
}

// PID 1 may close the connection on which it would see a server's end. The server connects again.
func TestLeaseEndsSoonAfterAServerThatPID1Disconnected(t *testing.T) {
	t.Parallel()
	public, private := newKey(t)
	b := newBox(t, wire.Init{ControlKey: public, Lease: time.Hour})
	conn := b.serve()
	attack, attacker := serve(t, b.in(binary, wire.VerbServe)...)
	eventually(t, "both servers are connected to PID 1", func() bool { return b.controlled() == 2 })
	var crowd []*guest.Process // each process may have 8 connections without a signature, and all of them 64
	for range 10 {
		p, err := attack.Exec(t.Context(), wire.Exec{Args: self("flood")})
		if err != nil {
			t.Fatal(err)
		}
		newTail(p.Stdout()).until(t, "flooding")
		crowd = append(crowd, p)
	}
	for _, p := range crowd {
		p.Close()
	}
	attack.Close()
	_ = attacker.Wait() // however it ends
	if _, err := conn.Control(t.Context(), private, wire.Control{Op: wire.OpRelease}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the server is connected, beside the connection of its requests", func() bool { return b.controlled() == 2 })
	if _, err := conn.Control(t.Context(), private, wire.Control{Op: wire.OpLease, Lease: time.Hour, Alone: 100 * time.Millisecond}); err != nil {
		t.Fatal(err)
	}
	conn.Close()
	if code := b.code(); code != wire.CodeLease {
		t.Errorf("it ended with %d, want %d", code, wire.CodeLease)
	}
}

func TestReleasedLeaseNeverEnds(t *testing.T) {
	t.Parallel()
	harness.Patiently(t, 3*time.Second, func(lease time.Duration) error {
		b, conn, private, err := leasedBox(t, lease)
		if err != nil {
			return err
		}
		for _, late := range []wire.Control{{Op: wire.OpRelease, ID: "its own"}, {Op: wire.OpLease, Lease: lease, ID: "its own"}} {
			reply, err := conn.Control(t.Context(), private, late)
			if err != nil {
				return err
			}
			if reply.LeaseLeft != 0 {
				t.Fatalf("Control(%s): %+v", late.Op, reply)
			}
		}
		select {
		case <-b.end:
			t.Errorf("ended with %d", b.code())
		case <-time.After(lease + lease/2):
		}
		// And a new one counts again.
		if _, err := conn.Control(t.Context(), private, wire.Control{Op: wire.OpLease, Lease: lease, ID: "another"}); err != nil {
			t.Error(err)
		}
		if code := b.code(); code != wire.CodeLease {
			t.Errorf("exit code %d, want %d", code, wire.CodeLease)
		}
		return nil
	})
}

func TestTimeoutEndsTheSession(t *testing.T) {
	t.Parallel()
	public, private := newKey(t)
	const timeout = time.Hour
	conn := newBox(t, wire.Init{ControlKey: public, Timeout: timeout, Lease: time.Hour}).serve()
	reply, err := conn.Control(t.Context(), private, wire.Control{Op: wire.OpStatus})
	if err != nil || reply.TimeLeft <= 0 || reply.TimeLeft > timeout || reply.LeaseLeft < time.Minute {
		t.Errorf("Control: %+v, %v", reply, err)
	}
	// Long enough to be seen to start.
	if code := newBox(t, wire.Init{ControlKey: public, Timeout: 20 * time.Second, Lease: time.Hour}).code(); code != wire.CodeTimeout {
		t.Errorf("exit code %d, want %d", code, wire.CodeTimeout)
	}
}

func TestLeaseHasALastChanceAfterAFreeze(t *testing.T) {
	t.Parallel()
	harness.Patiently(t, 3*time.Second, func(lease time.Duration) error {
		b, conn, private, err := leasedBox(t, lease)
		if err != nil {
			return err
		}
		b.cmd.Process.Signal(unix.SIGSTOP) // from outside it counts
		time.Sleep(lease + lease/3 + 200*time.Millisecond)
		begin := time.Now()
		b.cmd.Process.Signal(unix.SIGCONT)
		reply, err := conn.Control(t.Context(), private, wire.Control{Op: wire.OpLease, Lease: time.Hour})
		if err != nil {
			return fmt.Errorf("renewal %v after the freeze: %w", time.Since(begin), err)
		}
		if reply.LeaseLeft < time.Minute {
			t.Fatalf("renewal after the freeze: %+v", reply)
		}
		select {
		case <-b.end:
			t.Errorf("ended with %d", b.code())
		case <-time.After(lease):
		}
		return nil
	})
}

func TestExtensionCountsOnce(t *testing.T) {
	t.Parallel()
	public, private := newKey(t)
	b := newBox(t, wire.Init{ControlKey: public, Timeout: time.Hour})
	conn := b.serve()
	extend := func(id string, by time.Duration) time.Duration {
		t.Helper()
		reply, err := conn.Control(t.Context(), private, wire.Control{Op: wire.OpExtend, ID: id, Timeout: by})
		if err != nil {
			t.Fatal(err)
		}
		if used := reply.Timeout - reply.TimeLeft; used <= 0 || used > 30*time.Minute {
			t.Errorf("%v are left of %v", reply.TimeLeft, reply.Timeout)
		}
		return reply.Timeout
	}
	for _, step := range []struct {
		id   string
		want time.Duration
	}{{"a", 2 * time.Hour}, {"a", 2 * time.Hour}, {"b", 3 * time.Hour}, {"a", 3 * time.Hour}} {
		if got := extend(step.id, time.Hour); got != step.want {
			t.Errorf("after extension %q the timeout is %v, want %v", step.id, got, step.want)
		}
	}
	// Far more than a century changes nothing but does no harm.
	if got := extend("c", 1<<63-1); got < 90*365*24*time.Hour {
		t.Errorf("after an endless extension the timeout is %v", got)
	}
	for _, bad := range []wire.Control{{Op: wire.OpExtend, ID: "d"}, {Op: wire.OpExtend, Timeout: 1}, {Op: wire.OpExtend, ID: "d", Timeout: -1}} {
		if _, err := conn.Control(t.Context(), private, bad); err == nil {
			t.Errorf("%+v was taken", bad)
		}
	}
}

func TestControlWantsTheRightKey(t *testing.T) {
	t.Parallel()
	public, private := newKey(t)
	_, wrong := newKey(t)
	b := newBox(t, wire.Init{ControlKey: public, Lease: time.Hour})
	conn := b.serve()
	for range 3 {
		if _, err := conn.Control(t.Context(), wrong, wire.Control{Op: wire.OpRelease}); err == nil || !strings.Contains(err.Error(), "wrong signature") {
			t.Errorf("Control with another key: %v", err)
		}
		reply, err := conn.Control(t.Context(), private, wire.Control{Op: wire.OpStatus})
		if err != nil || reply.LeaseLeft == 0 {
			t.Errorf("Control: %+v, %v", reply, err)
		}
	}
	if _, err := conn.Control(t.Context(), private, wire.Control{Op: "no-such"}); err == nil || !strings.Contains(err.Error(), "unknown operation") {
		t.Errorf("unknown operation: %v", err)
	}
	if _, err := conn.Control(t.Context(), private, wire.Control{Op: wire.OpLease, Lease: -1}); err == nil {
		t.Error("a negative lease was taken")
	}
	if _, err := conn.Control(t.Context(), nil, wire.Control{Op: wire.OpStatus}); err == nil {
		t.Error("Control without a key succeeded")
	}

	keyless := newBox(t, wire.Init{})
	if _, err := keyless.serve().Control(t.Context(), private, wire.Control{Op: wire.OpStatus}); err == nil || !strings.Contains(err.Error(), "no control key") {
		t.Errorf("Control of a session without a key: %v", err)
	}
}

func TestAFloodOfTheControlSocketLocksNobodyOut(t *testing.T) {
	public, private := newKey(t)
	b := newBox(t, wire.Init{ControlKey: public, Lease: time.Hour})
	attack := b.serve()
	for range 2 {
		p, err := attack.Exec(t.Context(), wire.Exec{Args: self("flood")})
		if err != nil {
			t.Fatal(err)
		}
		newTail(p.Stdout()).until(t, "flooding")
		defer p.Close()
	}
	worst := time.Duration(0)
	for range 3 {
		conn := b.serve()
		for range 5 {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			begin := time.Now()
			if _, err := conn.Control(ctx, private, wire.Control{Op: wire.OpLease, Lease: time.Hour}); err != nil {
				t.Errorf("Control: %v", err)
			}
			worst = max(worst, time.Since(begin))
			cancel()
		}
	}
	t.Logf("slowest request %v; PID 1 has %s", worst, memoryOf(b.cmd.Process.Pid))
}

// memoryOf is what /proc says of a process's memory.
func memoryOf(pid int) string {
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			return strings.TrimSpace(rest)
		}
	}
	return "?"
}

func TestPID1IsSmall(t *testing.T) {
	t.Parallel()
	public, private := newKey(t)
	b := newBox(t, wire.Init{ControlKey: public, Main: &wire.Exec{Args: []string{"sleep", "1000"}}})
	conn := b.serve()
	begin(t, conn, private, policy.AllowAll)
	for range 50 {
		run(t, conn, wire.Exec{Args: []string{"true"}})
	}
	text := memoryOf(b.cmd.Process.Pid)
	t.Logf("PID 1 has %s", text)
	if kb := atoi(t, strings.TrimSuffix(text, " kB")); kb > 14<<10 { // 11 MiB at rest, and a thread more for each call that the kernel is slow to answer
		t.Errorf("PID 1 has %s, want at most 14 MiB", text)
	}
}

func TestNobodyInsideHasForbiddenCapabilities(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for d := dir; d != "/"; d = filepath.Dir(d) {
		if st, err := os.Stat(d); err == nil && st.Mode()&0o001 == 0 {
			os.Chmod(d, 0o755)
		}
	}
	cat, err := os.ReadFile("/bin/cat")
	if err != nil {
		t.Fatal(err)
	}
	program := func(name string, mode uint32) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, cat, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := unix.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	setuid := program("setuid", 0o4755)
	// Version 2 of security.capability, effective, with NET_ADMIN and KILL; and one
	// with KILL alone, which shows that such files work here.
	forbidden, allowed := program("forbidden", 0o755), program("allowed", 0o755)
	for path, caps := range map[string]byte{forbidden: 1<<5 | 1<<4, allowed: 1 << 5} {
		attr := make([]byte, 20)
		attr[0], attr[3] = 1, 2 // effective; version 2
		attr[4] = caps & (1 << 5)
		attr[5] = caps & (1 << 4) // bit 12
		if err := unix.Setxattr(path, "security.capability", attr, 0); err != nil {
			t.Fatal(err)
		}
	}

	public, private := newKey(t)
	b := newBox(t, wire.Init{ControlKey: public, Main: &wire.Exec{Args: sh("grep ^Cap /proc/self/status; echo; grep ^Sig[BI] /proc/self/status; cat /proc/self/oom_score_adj; ps -o pid=,sid= -p $$; grep ^THP /proc/self/status"), Env: []string{"PATH=/bin:/usr/bin"}}})
	conn := b.serve()
	begin(t, conn, private, policy.AllowAll)
	for _, tt := range []struct {
		name string
		req  wire.Exec
		uid  string // effective
	}{
		{"root", wire.Exec{Args: []string{"cat", "/proc/self/status"}}, "0"},
		{"nobody", wire.Exec{Args: []string{"cat", "/proc/self/status"}, User: "nobody"}, "65534"},
		{"set-user-ID root", wire.Exec{Args: []string{setuid, "/proc/self/status"}, User: "nobody", NewPrivileges: true}, "0"},
		{"set-user-ID root without new privileges", wire.Exec{Args: []string{setuid, "/proc/self/status"}, User: "nobody"}, "65534"},
		{"file capability", wire.Exec{Args: []string{allowed, "/proc/self/status"}, User: "nobody", NewPrivileges: true}, "65534"},
	} {
		got := run(t, conn, tt.req)
		if !strings.Contains(got.stdout, "\t"+tt.uid+"\t"+tt.uid+"\t"+tt.uid+"\nGid") {
			t.Errorf("%s: effective user is not %s: %.300s", tt.name, tt.uid, got.stdout)
		}
		checkCaps(t, got.stdout)
		if tt.name == "file capability" && !strings.Contains(got.stdout, "CapEff:\t0000000000000020") {
			t.Errorf("a file capability does nothing here: %.600s", got.stdout)
		}
	}
	if _, err := conn.Exec(t.Context(), wire.Exec{Args: []string{forbidden, "/proc/self/status"}, User: "nobody"}); kindOf(err) != wire.KindPermission {
		t.Errorf("a file with NET_ADMIN: %v, want a refusal", err)
	}

	eventually(t, "the main process has spoken", func() bool { return strings.Count(b.out.String(), "\n") >= 11 })
	caps, rest, _ := strings.Cut(b.out.String(), "\n\n")
	checkCaps(t, caps)
	f := strings.Fields(rest)
	want := []string{"SigBlk:", "0000000000000000", "SigIgn:", "0000000000000000", "500", f[5], f[5], "THP_enabled:", "1"}
	if diff := cmp.Diff(want, f); diff != "" {
		t.Errorf("the main process's signals, OOM score, PID and session, and whether it may have huge pages (-want +got):\n%s", diff)
	}
	if got := run(t, conn, wire.Exec{Args: []string{"grep", "^THP", "/proc/1/status", "/proc/self/status"}}).stdout; got != "/proc/1/status:THP_enabled:\t0\n/proc/self/status:THP_enabled:\t1\n" {
		t.Errorf("huge pages of PID 1 and of a command: %q", got)
	}
}

func TestMainProcess(t *testing.T) {
	t.Parallel()
	public, private := newKey(t)
	status := func(main *wire.Exec) (*box, func() *wire.MainStatus) {
		b := newBox(t, wire.Init{ControlKey: public, Main: main})
		conn := b.serve()
		begin(t, conn, private, policy.AllowAll)
		return b, func() *wire.MainStatus {
			reply, err := conn.Control(t.Context(), private, wire.Control{Op: wire.OpStatus})
			if err != nil {
				t.Fatal(err)
			}
			return reply.Main
		}
	}
	b, ask := status(&wire.Exec{Args: sh("echo out; echo err >&2; id -u; pwd; echo $A; exit 5"), Dir: "/usr", User: "nobody", Env: []string{"A=x y"}})
	eventually(t, "the main process has ended", func() bool { return ask().Exit != nil })
	if got := ask(); got.Exit.Code != 5 || got.Pid == 0 {
		t.Errorf("status %+v %+v", got, got.Exit)
	}
	eventually(t, "its output has come", func() bool { return b.out.String() == "out\nerr\n65534\n/usr\nx y\n" })
	if !b.alive() {
		t.Error("the session ended with its main process")
	}

	_, ask = status(&wire.Exec{Args: []string{"sleep", "1000"}})
	if got := ask(); got == nil || got.Exit != nil || got.Start != nil || got.Pid == 0 {
		t.Errorf("a running main process: %+v", got)
	}
	_, ask = status(nil)
	if got := ask(); got != nil {
		t.Errorf("no main process: %+v", got)
	}
	for kind, req := range map[string]*wire.Exec{
		wire.KindNotFound:   {Args: []string{"no-such-program"}},
		wire.KindPermission: {Args: []string{"/etc/passwd"}},
		wire.KindUser:       {Args: []string{"true"}, User: "no-such-user"},
		wire.KindDirectory:  {Args: []string{"true"}, Dir: "/no/such/dir"},
	} {
		_, ask := status(req)
		if got := ask(); got == nil || got.Start == nil || got.Start.Kind != kind {
			t.Errorf("want kind %s: %+v", kind, got)
		}
	}
}

// Where no policy can be enforced nothing begins, and the reason is told, except that a sandbox
// without a network has the policy that denies all.
func TestWithoutAFilterNothingBegins(t *testing.T) {
	t.Parallel()
	for _, device := range []string{"x0", ""} {
		public, private := newKey(t)
		b := newBox(t, wire.Init{ControlKey: public, Main: &wire.Exec{Args: sh("echo it runs")}}, weakEnv+"=1", deviceEnv+"="+device)
		conn := b.serve()
		begin := func(version int64, mode policy.Mode) (wire.Reply, error) {
			return conn.Control(t.Context(), private, wire.Control{Op: wire.OpBegin, Begin: &wire.Begin{Version: version, Policy: policy.Policy{Mode: mode}}})
		}
		refused := func(mode policy.Mode, version int64) {
			t.Helper()
			reply, err := begin(version+1, mode)
			if err == nil || reply.Refused != wire.RefusedUnsupported || reply.Network == nil || reply.Network.Version != version || !strings.Contains(reply.Error, "nftables") {
				t.Errorf("with device %q, begin %s: %+v, %v", device, mode, reply, err)
			}
		}
		refused(policy.AllowAll, 0)
		refused(policy.Custom, 0)
		if out := b.out.String(); out != "" {
			t.Errorf("it said %q", out)
		}
		if device != "" {
			refused(policy.DenyAll, 0)
			continue
		}
		if reply, err := begin(1, policy.DenyAll); err != nil || reply.Network.Version != 1 {
			t.Errorf("without a device, begin %s: %+v, %v", policy.DenyAll, reply, err)
		}
		eventually(t, "the main process has spoken", func() bool { return b.out.String() == "it runs\n" })
		refused(policy.AllowAll, 1)
	}
}

// The main process waits for a policy, and only a large one needs a second round trip.
func TestMainWaitsForTheBegin(t *testing.T) {
	t.Parallel()
	public, private := newKey(t)
	b := newBox(t, wire.Init{ControlKey: public, Main: &wire.Exec{Args: sh("echo it runs"), Env: []string{}}})
	conn := b.serve()
	reply, err := conn.Control(t.Context(), private, wire.Control{Op: wire.OpNetwork})
	if err != nil || reply.Network == nil || reply.Network.Version != 0 {
		t.Fatalf("%+v, %v", reply, err)
	}
	if out := b.out.String(); out != "" {
		t.Errorf("before it has begun: %q", out)
	}
	p := policy.Policy{Mode: policy.Custom}
	for i := range policy.MaxEntries {
		p.Allow = append(p.Allow, policy.Name{Pattern: fmt.Sprintf("%s%d.example.com", strings.Repeat("a", 40), i)})
	}
	other := b.serve()
	reply, err = other.Control(t.Context(), private, wire.Control{Op: wire.OpBegin, Begin: &wire.Begin{Version: 7, Policy: p}})
	if err != nil || reply.Network.Version != 7 {
		t.Fatalf("%+v, %v", reply, err)
	}
	eventually(t, "the main process has spoken", func() bool { return b.out.String() == "it runs\n" })
	reply, err = conn.Control(t.Context(), private, wire.Control{Op: wire.OpBegin, Begin: &wire.Begin{Version: 6, Policy: policy.Policy{Mode: policy.AllowAll}}})
	if err == nil || reply.Refused != wire.RefusedStale || reply.Network.Version != 7 {
		t.Errorf("an older policy: %+v, %v", reply, err)
	}
}

func TestControlRefusesAnImpostor(t *testing.T) {
	t.Parallel()
	_, private := newKey(t)
	// Without PID 1 of ours the name is free for all in this network namespace.
	argv := []string{"unshare", "--net", os.Args[0], helperVerb, "impostor", binary, wire.VerbServe}
	conn, _ := serve(t, argv...)
	_, err := conn.Control(t.Context(), private, wire.Control{Op: wire.OpStatus})
	if err == nil || !strings.Contains(err.Error(), "taken the control socket") {
		t.Errorf("Control: %v", err)
	}
}

// impostor listens in PID 1's place once serve has begun: a serve that finds one before ends.
func impostor(args []string) error {
	serve := exec.Command(args[0], args[1:]...)
	serve.Stdin, serve.Stdout, serve.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := serve.Start(); err != nil {
		return err
	}
	for begun := ""; begun != os.DevNull; {
		time.Sleep(time.Millisecond)
		begun, _ = os.Readlink(fmt.Sprintf("/proc/%d/fd/0", serve.Process.Pid))
	}
	if _, err := net.Listen("unix", wire.ControlSocket); err != nil {
		return err
	}
	return serve.Wait()
}

// What begins after the end of the session has begun serves nobody, so PID 1 can tell what the session has left.
func TestNoServerBeginsAtTheEnd(t *testing.T) {
	t.Parallel()
	b := newBox(t, wire.Init{})
	p, err := b.serve().Exec(t.Context(), wire.Exec{Args: sh("trap 'echo bye' TERM; echo ready; read -r line; while :; do sleep 0.01; done"), Stdin: true})
	if err != nil {
		t.Fatal(err)
	}
	out := newTail(p.Stdout())
	out.until(t, "ready")
	b.cmd.Process.Signal(unix.SIGTERM)
	if _, err := io.WriteString(p.Stdin(), "\n"); err != nil {
		t.Fatal(err)
	}
	out.until(t, "bye")
	argv := b.in(binary, wire.VerbServe)
	late := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
	in, err := late.StdinPipe() // open, as a client's is
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	said, err := late.CombinedOutput()
	if code, refused := wire.EndCode(late.ProcessState.ExitCode()); !refused || code != wire.CodeStopped || len(said) != 0 {
		t.Errorf("a server that began at the end: %v, %q, want the exit code for %d", err, said, wire.CodeStopped)
	}
	p.Signal(t.Context(), int(unix.SIGKILL), false)
	if _, err := p.Wait(); err != nil {
		t.Error(err)
	}
	if code := b.code(); code != wire.CodeStopped {
		t.Errorf("exit code %d, want %d", code, wire.CodeStopped)
	}
}
