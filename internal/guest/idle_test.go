//go:build linux

package guest_test

import (
	"crypto/ed25519"
	"fmt"
	"net"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// idleLeft returns how long the session lives if nobody uses it, 0 while it is used.
func idleLeft(t *testing.T, conn *guest.Conn, key ed25519.PrivateKey) time.Duration {
	t.Helper()
	reply, err := conn.Control(t.Context(), key, wire.Control{Op: wire.OpNetwork})
	if err != nil || reply.Idle == nil {
		t.Fatalf("Control: %+v, %v", reply, err)
	}
	return reply.Idle.Left
}

func TestSessionEndsWithoutUse(t *testing.T) {
	t.Parallel()
	public, private := newKey(t)
	b := newBox(t, wire.Init{ControlKey: public, Idle: wire.Idle{Timeout: time.Hour}, Lease: time.Hour})
	conn := b.serve()
	if _, err := conn.Control(t.Context(), private, wire.Control{Op: wire.OpIdle, Idle: &wire.Idle{Timeout: 2 * time.Second, Version: 1}}); err != nil {
		t.Fatal(err)
	}
	// An open connection, a lease that is renewed and requests for the status are no uses.
	for ended := false; !ended; {
		_, err := conn.Control(t.Context(), private, wire.Control{Op: wire.OpLease, Lease: time.Hour})
		ended = err != nil
	}
	if code := b.code(); code != wire.CodeIdle {
		t.Errorf("exit code %d, want %d", code, wire.CodeIdle)
	}
}

// What lasts is a use while it lasts, and what is short makes the time count anew.
func TestUsesOfASession(t *testing.T) {
	t.Parallel()
	public, private := newKey(t)
	b := newBox(t, wire.Init{ControlKey: public, Idle: wire.Idle{Timeout: time.Hour}})
	conn := b.serve()
	left := func() time.Duration { return idleLeft(t, conn, private) }

	before := left()
	if after := left(); before <= 0 || before > time.Hour || after >= before {
		t.Fatalf("%v are left, and then %v: requests to PID 1 are no use", before, after)
	}
	anew := func(what string, do func()) {
		t.Helper()
		var before time.Duration
		eventually(t, "some time has passed", func() bool { before = left(); return before < time.Hour-200*time.Millisecond })
		eventually(t, "the time counts anew after "+what, func() bool { do(); return left() > before })
	}
	lasts := func(what string, end func()) {
		t.Helper()
		eventually(t, what+" is a use", func() bool { return left() == 0 })
		end()
		eventually(t, what+" has ended", func() bool { return left() > 0 })
	}
	anew("a command", func() { run(t, conn, wire.Exec{Args: []string{"true"}}) })
	p, err := conn.Exec(t.Context(), wire.Exec{Args: []string{"sleep", "1000"}})
	if err != nil {
		t.Fatal(err)
	}
	lasts("a command", func() { p.Close() })

	files, err := conn.Files(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	if left() == 0 {
		t.Error("an open file server is a use")
	}
	for range 2 {
		anew("a call for files", func() { files.Readlink(t.Context(), "/proc/self") })
	}
	socket := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	dialled, err := conn.DialContext(t.Context(), "unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	lasts("a connection", func() { dialled.Close() })
	anew("a look for a port", func() { conn.PortListens(t.Context(), 1) })

	// That of a client whose server is killed has ended, too.
	other := b.serve()
	if _, err := other.Exec(t.Context(), wire.Exec{Args: []string{"sleep", "1000"}}); err != nil {
		t.Fatal(err)
	}
	lasts("a command of another client", func() { other.Exec(t.Context(), wire.Exec{Args: sh("kill -9 $PPID")}) })

	d, err := conn.Exec(t.Context(), wire.Exec{ID: "d", Args: []string{"sleep", "1000"}, Detached: true})
	if err != nil {
		t.Fatal(err)
	}
	lasts("a detached command", func() { d.Signal(t.Context(), 9, false) })
}

func TestDetachedCommandsMayBeIgnored(t *testing.T) {
	t.Parallel()
	public, private := newKey(t)
	b := newBox(t, wire.Init{ControlKey: public, Idle: wire.Idle{Timeout: time.Hour, Version: 1}})
	conn := b.serve()
	if _, err := conn.Exec(t.Context(), wire.Exec{ID: "d", Args: []string{"sleep", "1000"}, Detached: true}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the detached command is a use", func() bool { return idleLeft(t, conn, private) == 0 })
	idle := &wire.Idle{Timeout: 2 * time.Second, IgnoreDetached: true, Version: 2}
	reply, err := conn.Control(t.Context(), private, wire.Control{Op: wire.OpIdle, Idle: idle})
	if err != nil || reply.Idle == nil || reply.Idle.Version != 2 || reply.Idle.Left <= 0 {
		t.Errorf("Control: %+v, %v", reply, err)
	}
	if code := b.code(); code != wire.CodeIdle {
		t.Errorf("exit code %d, want %d", code, wire.CodeIdle)
	}
}

func TestNewerIdleTimeoutReplacesTheOlder(t *testing.T) {
	t.Parallel()
	public, private := newKey(t)
	b := newBox(t, wire.Init{ControlKey: public})
	conn := b.serve()
	for _, step := range []struct {
		idle wire.Idle
		want time.Duration
	}{
		{wire.Idle{Timeout: 2 * time.Hour, Version: 2}, 2 * time.Hour},
		{wire.Idle{Timeout: 3 * time.Hour, Version: 1}, 2 * time.Hour},
		{wire.Idle{Timeout: 1<<63 - 1, Version: 3}, 100 * 365 * 24 * time.Hour},
		{wire.Idle{Version: 4}, 0},
	} {
		reply, err := conn.Control(t.Context(), private, wire.Control{Op: wire.OpIdle, Idle: &step.idle})
		if err != nil || reply.Idle == nil || reply.Idle.Left.Round(time.Minute) != step.want {
			t.Errorf("%+v: %+v, %v; want %v left", step.idle, reply.Idle, err, step.want)
		}
	}
	for _, bad := range []*wire.Idle{nil, {Timeout: -1, Version: 9}, {Timeout: 1}} {
		if _, err := conn.Control(t.Context(), private, wire.Control{Op: wire.OpIdle, Idle: bad}); err == nil {
			t.Errorf("%+v was taken", bad)
		}
	}
}

// Nobody can use a session that is frozen.
func TestFrozenTimeIsNoIdleTime(t *testing.T) {
	t.Parallel()
	public, private := newKey(t)
	const idle = 10 * time.Second
	b := newBox(t, wire.Init{ControlKey: public, Idle: wire.Idle{Timeout: time.Hour}})
	conn := b.serve()
	if _, err := conn.Control(t.Context(), private, wire.Control{Op: wire.OpIdle, Idle: &wire.Idle{Timeout: idle, Version: 1}}); err != nil {
		t.Fatal(err)
	}
	b.cmd.Process.Signal(unix.SIGSTOP) // from outside it counts
	time.Sleep(idle + time.Second)
	b.cmd.Process.Signal(unix.SIGCONT)
	if left := idleLeft(t, conn, private); left < idle/4 {
		t.Errorf("after the freeze %v are left of %v", left, idle)
	}
	if code := b.code(); code != wire.CodeIdle {
		t.Errorf("exit code %d, want %d", code, wire.CodeIdle)
	}
}

// Others than root can't keep the session in use by what only servers may say.
func TestOnlyRootTellsOfUses(t *testing.T) {
	t.Parallel()
	public, private := newKey(t)
	b := newBox(t, wire.Init{ControlKey: public, Idle: wire.Idle{Timeout: time.Hour}})
	conn := b.serve()
	for user, want := range map[string]string{"0": "1", "65534": "0"} {
		got := run(t, conn, wire.Exec{Args: self("claim", user)})
		if got.stdout != want {
			t.Errorf("user %s got %q descriptors (%s), want %s", user, got.stdout, got.stderr, want)
		}
	}
	eventually(t, "nothing is in use", func() bool { return idleLeft(t, conn, private) > 0 })
}

// claimUse asks PID 1, as a user, for what a server writes its uses into, and prints how many
// descriptors came.
func claimUse(user string) error {
	if err := unix.Setuid(int(atoiOr0(user))); err != nil {
		return err
	}
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Net: "unix", Name: wire.ControlSocket})
	if err != nil {
		return err
	}
	if _, err := conn.Write([]byte(wire.UseRequest)); err != nil {
		return err
	}
	for data, rights := make([]byte, 1024), make([]byte, 64); ; {
		n, rn, _, _, err := conn.ReadMsgUnix(data, rights)
		switch {
		case rn > 0:
			fmt.Print(1)
			return nil
		case err != nil || n == 0:
			fmt.Print(0)
			return nil
		}
	}
}
