package engine

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

// An sshMaster is an ssh process with a control socket, over whose connection other ssh processes
// have their sessions. Its own session pinged the engine, and carries nothing else: ssh ends it,
// and itself after the last of the others, when stdin ends. So it never outlives this program.
type sshMaster struct {
	ready  chan struct{} // closed when socket and err are set
	socket string        // empty where there are no masters: each session connects by itself
	err    error
	dir    string // of the socket; used by run alone
	end    context.CancelFunc
	ended  chan struct{} // closed when the process and the socket's directory are gone

	sessions int // by the dialer's mutex; those that wait until it is ready count
}

const (
	// maxSessions of a master and its own are less than sshd's MaxSessions, 10: sshd counts a
	// session until its program there has ended. If it refuses one, ssh connects anew for that.
	maxSessions = 8
	// maxSocketPath leaves 17 of 103 bytes, the fewest of any system, to the suffix that ssh
	// appends while it binds.
	maxSocketPath = 86

	socketDirs    = "sandbox-ssh-*"
	socketName    = "s"
	configTimeout = 5 * time.Second
)

// session makes a connection. When the last one of a master is closed the master ends.
func (d *sshDialer) session(ctx context.Context) (*sshConn, error) {
	m := d.claim()
	conn, err := m.connect(ctx, d.target)
	if err != nil {
		d.release(m)
		return nil, err
	}
	conn.closed = func() {
		if d.release(m) {
			<-m.ended
		}
	}
	return conn, nil
}

func (m *sshMaster) connect(ctx context.Context, target sshTarget) (*sshConn, error) {
	select {
	case <-m.ready:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	switch {
	case m.err != nil:
		return nil, m.err
	case m.socket == "":
		return target.connect(ctx)
	}
	return target.connect(ctx, "ControlMaster=no", "ControlPath="+m.socket)
}

// claim counts a session of the first master that has room for one, or of a new one.
func (d *sshDialer) claim() *sshMaster {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, m := range d.masters {
		if m.sessions < maxSessions {
			m.sessions++
			return m
		}
	}
	// No context of a caller's: others may wait for it, too.
	ctx, end := context.WithCancel(context.Background())
	m := &sshMaster{ready: make(chan struct{}), end: end, ended: make(chan struct{}), sessions: 1}
	d.masters = append(d.masters, m)
	go d.run(ctx, m)
	return m
}

// release ends the master if that session was its last.
func (d *sshDialer) release(m *sshMaster) (last bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	m.sessions--
	if last = m.sessions == 0; last {
		d.forget(m)
		m.end()
	}
	return last
}

// forget keeps new sessions from the master. The caller has the mutex.
func (d *sshDialer) forget(m *sshMaster) {
	d.masters = slices.DeleteFunc(d.masters, func(other *sshMaster) bool { return other == m })
}

// retire keeps new sessions from all masters of now.
func (d *sshDialer) retire() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.masters = nil
}

// run is a master's life.
func (d *sshDialer) run(ctx context.Context, m *sshMaster) {
	defer close(m.ended)
	conn := d.start(ctx, m)
	close(m.ready)
	if conn != nil {
		stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
		defer stop()
		_ = conn.wait()
	}
	d.mu.Lock()
	d.forget(m)
	d.mu.Unlock()
	if m.dir != "" {
		_ = os.RemoveAll(m.dir)
	}
}

// start returns nil if no process runs.
func (d *sshDialer) start(ctx context.Context, m *sshMaster) *sshConn {
	if m.dir = d.makeSocketDir(); m.dir == "" {
		return nil
	}
	socket := filepath.Join(m.dir, socketName)
	ctx, cancel := context.WithTimeoutCause(ctx, d.timeout, &timeoutError{after: d.timeout})
	defer cancel()
	conn, err := d.target.connect(ctx, "ControlMaster=yes", "ControlPath="+socket, "ControlPersist=no")
	var failed *sshError
	switch {
	case err == nil:
		m.socket = socket
	case errors.As(err, &failed) && strings.Contains(failed.text, socket):
		d.alone.Store(true) // the file system has no sockets, or no links
	default:
		m.err = err
	}
	return conn
}

// makeSocketDir makes a directory of this user's alone. It returns "" where there are no masters.
func (d *sshDialer) makeSocketDir() string {
	if d.alone.Load() || !d.shares() {
		return ""
	}
	parent, err := filepath.Abs(os.TempDir())
	if err != nil {
		return ""
	}
	dir, err := os.MkdirTemp(parent, socketDirs)
	if err != nil {
		return ""
	}
	// ssh would expand % and ${ in it.
	if len(filepath.Join(dir, socketName)) > maxSocketPath || !sshSocketRE.MatchString(dir) {
		_ = os.Remove(dir)
		return ""
	}
	return dir
}

// shares reports whether to make masters: ssh can, and its configuration names none.
func (t sshTarget) shares() bool {
	if runtime.GOOS == "windows" { // its ssh has no control sockets
		return false
	}
	removeOldDirs()
	ctx, cancel := context.WithTimeout(context.Background(), configTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, "ssh", append([]string{"-G"}, t.login()...)...)
	cmd.SysProcAttr = ownSession()
	cmd.WaitDelay = time.Second
	config, err := cmd.Output()
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(config)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == "controlpath" && f[1] != "none" {
			return false
		}
	}
	return true
}

// removeOldDirs removes the directories of programs that were killed. Their ssh has removed its
// socket. One that has a socket, or anything else, stays.
func removeOldDirs() {
	dirs, _ := filepath.Glob(filepath.Join(os.TempDir(), socketDirs))
	for _, dir := range dirs {
		info, err := os.Lstat(dir)
		if err == nil && info.IsDir() && time.Since(info.ModTime()) > time.Hour { // else a master may be about to bind
			_ = os.Remove(dir)
		}
	}
}
