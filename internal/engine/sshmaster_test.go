package engine_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
)

// isVolume answers each call with a volume.
func isVolume(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"Name":"v"}`) }

// Where ssh can't share connections, or its user has configured how, each connection is an ssh
// with the options it always had.
func TestSSHWithoutMasters(t *testing.T) {
	const plain = "-o ConnectTimeout=10 -o ServerAliveInterval=6 -o ServerAliveCountMax=2 -T -- example.com docker system dial-stdio"
	for name, c := range map[string]struct {
		key, value string
		masters    int // tried
	}{
		"the user has a control master":       {sshConfig, "controlpath /run/user/1000/cm-%C", 0},
		"an ssh without -G":                   {sshConfig, "fail", 0},
		"the path of the socket is long":      {"TMPDIR", strings.Repeat("x", 60), 0},
		"ssh would expand the socket's path":  {"TMPDIR", "%h", 0},
		"there is no directory for it":        {"TMPDIR", "missing", 0},
		"the file system has no such sockets": {sshMaster, "bind", 1},
	} {
		t.Run(name, func(t *testing.T) {
			args := withSSH(t, fakeEngine(t, isVolume))
			tmp := socketDirs(t)
			if c.key == "TMPDIR" {
				c.value = filepath.Join(tmp, c.value)
				if !strings.HasSuffix(c.value, "missing") {
					if err := os.Mkdir(c.value, 0o700); err != nil {
						t.Fatal(err)
					}
				}
			}
			t.Setenv(c.key, c.value)
			e := openAt(t, "ssh://example.com")
			for range 2 {
				conn, err := e.Dial(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
			}
			lines := started(t, args, "dial-stdio")
			if n := len(started(t, args, "ControlMaster=yes")); n != c.masters {
				t.Errorf("%d masters were started, want %d", n, c.masters)
			}
			if diff := cmp.Diff([]string{plain, plain, plain}, lines[c.masters:]); diff != "" {
				t.Errorf("ssh's arguments (-want +got):\n%s", diff)
			}
			if n := len(started(t, args, "-G")); n != 1 {
				t.Errorf("ssh -G ran %d times, want once", n)
			}
		})
	}
}

// "none" is how some versions of ssh print that there is no control path.
func TestNoControlPathOfTheUsers(t *testing.T) {
	args := withSSH(t, fakeEngine(t, isVolume))
	t.Setenv(sshConfig, "controlpath none")
	openAt(t, "ssh://example.com")
	if n := len(started(t, args, "ControlMaster=yes")); n != 1 {
		t.Errorf("%d masters were started, want 1", n)
	}
}

// The last session of a master ends it, and nothing is left.
func TestSSHMasterEndsWithItsSessions(t *testing.T) {
	args, tmp := withSSH(t, fakeEngine(t, isVolume)), socketDirs(t)
	e := openAt(t, "ssh://example.com")
	var conns []net.Conn
	for range 16 {
		conn, err := e.Dial(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, conn)
	}
	// The pool has one.
	if diff := cmp.Diff([]int{8, 8, 1}, e.SSHSessions()); diff != "" {
		t.Errorf("sessions of the masters (-want +got):\n%s", diff)
	}
	dirs, err := os.ReadDir(tmp)
	if err != nil || len(dirs) != 3 {
		t.Errorf("directories of sockets: %v, %v, want 3", dirs, err)
	}
	for _, dir := range dirs {
		if info, err := dir.Info(); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("%v, %v, want it for the user alone", info, err)
		}
	}
	_ = conns[0].Close()
	another, err := e.Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]int{8, 8, 1}, e.SSHSessions()); diff != "" {
		t.Errorf("sessions of the masters once one was closed and one was made (-want +got):\n%s", diff)
	}
	// Connections in use survive Close.
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(another, "GET /_ping HTTP/1.0\r\n\r\n"); err != nil {
		t.Errorf("Write: %v", err)
	}
	if b, err := io.ReadAll(another); err != nil || !strings.HasPrefix(string(b), "HTTP/1.0 200") {
		t.Errorf("a connection in use has read %q, %v once the engine was closed", b, err)
	}
	for _, conn := range append(conns, another) {
		_ = conn.Close()
	}
	if left, err := os.ReadDir(tmp); err != nil || len(left) > 0 {
		t.Errorf("left when the last connection was closed: %v, %v", left, err)
	}
	if n := len(started(t, args, "ControlMaster=yes")); n != 3 {
		t.Errorf("%d masters were started, want 3", n)
	}
}

// After the way to the engine was lost the next connection has a new master.
func TestDropIdleRetiresSSHMasters(t *testing.T) {
	args := withSSH(t, fakeEngine(t, isVolume))
	e := openAt(t, "ssh://example.com")
	conn, err := e.Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	e.DropIdle()
	if _, err := e.InspectVolume(t.Context(), "v"); err != nil {
		t.Fatal(err)
	}
	if n := len(started(t, args, "ControlMaster=yes")); n != 2 {
		t.Errorf("%d masters were started, want 2", n)
	}
}

// Several dials wait for one master. A caller's context ends its own alone, and the last one ends
// the master.
func TestSSHMasterIsMadeOnce(t *testing.T) {
	args := withSSH(t, fakeEngine(t, isVolume))
	tmp := socketDirs(t)
	e := openAt(t, "ssh://example.com")
	e.DropIdle()
	t.Setenv(sshMaster, "wait")
	type dial struct {
		cancel context.CancelFunc
		err    chan error
	}
	var dials []dial
	for range 3 {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		err := make(chan error, 1)
		go func() { _, e := e.Dial(ctx); err <- e }()
		dials = append(dials, dial{cancel, err})
	}
	for waiting := 3; waiting > 0; waiting-- {
		eventually(t, "the dials wait for one master", func() bool { return slices.Equal(e.SSHSessions(), []int{waiting}) })
		eventually(t, "it was started", func() bool { return len(started(t, args, "ControlMaster=yes")) == 2 })
		dials[waiting-1].cancel()
		if err := <-dials[waiting-1].err; !errors.Is(err, context.Canceled) {
			t.Errorf("Dial = %v, want the context's error", err)
		}
	}
	eventually(t, "the last one has ended it", func() bool {
		left, err := os.ReadDir(tmp)
		return err == nil && len(left) == 0
	})
	if n := len(started(t, args, "ControlMaster=yes")); n != 2 {
		t.Errorf("%d masters were started, want 2", n)
	}
}

// Directories of programs that were killed are removed an hour later, but for those with a socket, or with what is not ours.
func TestOldSocketDirectoriesAreRemoved(t *testing.T) {
	withSSH(t, fakeEngine(t, isVolume))
	tmp := socketDirs(t)
	make := func(name, file string, age time.Duration) {
		dir := filepath.Join(tmp, name)
		err := os.Mkdir(dir, 0o700)
		if file != "" {
			err = errors.Join(err, os.WriteFile(filepath.Join(dir, file), nil, 0o600))
		}
		at := time.Now().Add(-age)
		if err := errors.Join(err, os.Chtimes(dir, at, at)); err != nil {
			t.Fatal(err)
		}
	}
	make("sandbox-ssh-1", "", 2*time.Hour)
	make("sandbox-ssh-2", "s", 2*time.Hour)
	make("sandbox-ssh-3", "", 0)
	make("other", "", 2*time.Hour)
	e, err := engine.Open(t.Context(), engine.Options{Host: "ssh://example.com"})
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	left, err := filepath.Glob(filepath.Join(tmp, "*"))
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"other", "sandbox-ssh-2", "sandbox-ssh-3"}
	for i, name := range want {
		want[i] = filepath.Join(tmp, name)
	}
	if diff := cmp.Diff(want, left); diff != "" {
		t.Errorf("left in the directory for temporary files (-want +got):\n%s", diff)
	}
}
