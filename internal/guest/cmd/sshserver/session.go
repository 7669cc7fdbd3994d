//go:build linux

package sshserver

import (
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/cmd/proc"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// channelSession is RFC 4254's channel for a command, a shell or a subsystem, as
// OpenSSH's clients open it.
const channelSession = "session"

const (
	// maxEnv bounds what a client may set, names and values together.
	maxEnv = 256 << 10
	// hangUpTime is what commands get to heed SIGHUP when their client is gone.
	hangUpTime = time.Second
)

// sshSession is one session channel. It is served as sshd serves it: the command is read by
// a shell, and processes that have gone into the background outlive the visit.
type sshSession struct {
	s       *server
	ch      ssh.Channel
	begun   bool
	env     []string
	envSize int
	tty     *terminalRequest
	cmd     *proc.Command // nil before it runs
}

func (s *server) serveSession(nc ssh.NewChannel) {
	ch, reqs, err := nc.Accept()
	if err != nil {
		return
	}
	v := &sshSession{s: s, ch: ch}
	for r := range reqs {
		ok, then := v.request(r.Type, r.Payload)
		if r.WantReply {
			r.Reply(ok, nil)
		}
		if then != nil {
			go then()
		}
	}
	// The client has closed the channel, or is gone.
	if v.cmd != nil {
		v.cmd.HangUp()
	}
}

// request carries one request out, and returns what is to follow the answer.
func (v *sshSession) request(kind string, payload []byte) (ok bool, then func()) {
	switch kind {
	case "pty-req":
		req, err := decodeTerminal(payload)
		if err != nil || v.begun {
			return false, nil
		}
		v.tty = &req
		return true, nil
	case "env":
		kv, err := decodeEnv(payload)
		if v.envSize += len(kv); err != nil || v.begun || v.envSize > maxEnv {
			return false, nil
		}
		v.env = append(v.env, kv)
		return true, nil
	case "shell":
		return v.start("")
	case "exec":
		command, err := decodeString(payload)
		if err != nil || command == "" {
			return false, nil
		}
		return v.start(command)
	case "subsystem":
		if name, err := decodeString(payload); err != nil || name != wire.VerbSFTP {
			return false, nil
		}
		v.tty = nil
		return v.launch(wire.Exec{Path: proc.SelfPath, Args: []string{wire.Path, wire.VerbSFTP}})
	case "window-change":
		size, err := decodeWindow(payload)
		if err == nil && v.cmd != nil {
			v.cmd.Resize(size)
		}
		return err == nil, nil
	case "signal":
		name, err := decodeString(payload)
		n := signalNumber(name)
		return err == nil && n != 0 && v.cmd != nil && v.cmd.Signal(n, false), nil
	}
	return false, nil
}

// start runs a command by the user's shell; without one the shell itself, which is not
// a login shell: those set PATH anew and would lose the image's.
func (v *sshSession) start(command string) (bool, func()) {
	id, err := proc.LookupUser(v.s.conf.User)
	if err != nil {
		return v.fail(proc.StartErrorf(wire.KindUser, "%v", err))
	}
	shell := shellOf(id)
	v.env = append(v.env, "SHELL="+shell)
	req := wire.Exec{Path: shell, Args: []string{path.Base(shell)}}
	if command != "" {
		req.Args = append(req.Args, "-c", command)
	}
	return v.launch(req)
}

// shellOf is the user's own shell, unless there is none or one that turns users away.
func shellOf(id proc.User) string {
	const usual = "/bin/sh"
	switch path.Base(id.Shell) {
	case ".", "/", "nologin", "false", "true", "sync":
		return usual
	}
	if unix.Access(id.Shell, unix.X_OK) != nil {
		return usual
	}
	return id.Shell
}

func (v *sshSession) launch(req wire.Exec) (bool, func()) {
	if v.begun {
		return false, nil
	}
	v.begun = true
	req.User, req.Dir, req.Stdin = v.s.conf.User, v.s.conf.Dir, true
	env := os.Environ()
	if !v.s.conf.Home {
		env = slices.DeleteFunc(env, func(kv string) bool { return strings.HasPrefix(kv, "HOME=") })
	}
	req.Env = append(env, v.env...)
	if v.tty != nil {
		req.TTY, req.Size = true, v.tty.size
		req.Env = append(req.Env, "TERM="+v.tty.term)
	}
	if refused := v.s.admit(); refused != nil {
		return v.fail(refused)
	}
	cmd, refused := proc.Start(v.s.reaper, req)
	if refused != nil {
		v.s.leave()
		return v.fail(refused)
	}
	v.cmd = cmd
	return true, v.run
}

// fail tells the client's user why nothing runs: a request that is merely refused
// has no words.
func (v *sshSession) fail(why *wire.StartError) (bool, func()) {
	v.begun = true
	code := 255
	switch why.Kind {
	case wire.KindNotFound:
		code = proc.ExitNotFound
	case wire.KindPermission:
		code = proc.ExitNotExecutable
	}
	return true, func() {
		fmt.Fprintf(v.ch.Stderr(), "sandbox: %s\r\n", why.Message)
		v.end(wire.Exit{Code: code})
	}
}

func (v *sshSession) run() {
	defer v.s.leave()
	go v.cmd.Feed(v.ch)
	v.end(v.cmd.Run(v.ch, v.ch.Stderr()))
}

func (v *sshSession) end(exit wire.Exit) {
	v.ch.CloseWrite()
	if name, ok := signalNames[syscall.Signal(exit.Signal)]; ok {
		v.ch.SendRequest("exit-signal", false, ssh.Marshal(struct {
			Signal   string
			Core     bool
			Message  string
			Language string
		}{Signal: name}))
	} else {
		v.ch.SendRequest("exit-status", false, ssh.Marshal(struct{ Code uint32 }{uint32(exit.Code)}))
	}
	v.ch.Close()
}

// hangUp waits a moment for commands whose client has gone. What still runs then as
// our own child is killed by our end.
func (s *server) hangUp() {
	select {
	case <-s.drained:
	case <-time.After(hangUpTime):
	}
}

type terminalRequest struct {
	term string
	size wire.Size
}

// decodeTerminal reads pty-req. Of the modes that follow a new terminal's own are
// good enough.
func decodeTerminal(payload []byte) (terminalRequest, error) {
	var msg struct {
		Term                      string
		Cols, Rows, Width, Height uint32
		Modes                     string
	}
	if err := ssh.Unmarshal(payload, &msg); err != nil {
		return terminalRequest{}, err
	}
	if strings.IndexByte(msg.Term, 0) >= 0 {
		return terminalRequest{}, fmt.Errorf("terminal %q", msg.Term)
	}
	return terminalRequest{term: msg.Term, size: cells(msg.Rows, msg.Cols)}, nil
}

func decodeWindow(payload []byte) (wire.Size, error) {
	var msg struct{ Cols, Rows, Width, Height uint32 }
	err := ssh.Unmarshal(payload, &msg)
	return cells(msg.Rows, msg.Cols), err
}

func cells(rows, cols uint32) wire.Size {
	const most = 1<<16 - 1
	return wire.Size{Rows: uint16(min(rows, most)), Cols: uint16(min(cols, most))}
}

func decodeEnv(payload []byte) (string, error) {
	var msg struct{ Name, Value string }
	if err := ssh.Unmarshal(payload, &msg); err != nil {
		return "", err
	}
	if msg.Name == "" || strings.ContainsAny(msg.Name, "=\x00") || strings.IndexByte(msg.Value, 0) >= 0 {
		return "", fmt.Errorf("environment variable %q", msg.Name)
	}
	return msg.Name + "=" + msg.Value, nil
}

func decodeString(payload []byte) (string, error) {
	var msg struct{ Text string }
	err := ssh.Unmarshal(payload, &msg)
	return msg.Text, err
}

// signalNames are the signals that RFC 4254 names.
var signalNames = map[syscall.Signal]string{
	unix.SIGABRT: "ABRT", unix.SIGALRM: "ALRM", unix.SIGFPE: "FPE", unix.SIGHUP: "HUP",
	unix.SIGILL: "ILL", unix.SIGINT: "INT", unix.SIGKILL: "KILL", unix.SIGPIPE: "PIPE",
	unix.SIGQUIT: "QUIT", unix.SIGSEGV: "SEGV", unix.SIGTERM: "TERM", unix.SIGUSR1: "USR1",
	unix.SIGUSR2: "USR2",
}

// signalNumber is 0 for a name that is not known.
func signalNumber(name string) syscall.Signal {
	for n, known := range signalNames {
		if name == known {
			return n
		}
	}
	return 0
}
