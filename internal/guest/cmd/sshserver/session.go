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

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/accounts"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/cmd/proc"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// channelSession is RFC 4254's channel for a command, a shell or a subsystem, as
// OpenSSH's clients open it.
const channelSession = "session"

const (
	// maxEnv bounds the variables that a client sets, names and values together.
	maxEnv = 256 << 10
	// hangUpTime is how long commands have to end by SIGHUP when their client is gone.
	hangUpTime = time.Second
)

// sshSession is one session channel. It is served as sshd serves it: the command is read by
// a shell, and processes that have gone into the background outlive it.
type sshSession struct {
	server  *server
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
	session := &sshSession{server: s, ch: ch}
	for r := range reqs {
		ok, then := session.request(r.Type, r.Payload)
		if r.WantReply {
			r.Reply(ok, nil)
		}
		if then != nil {
			go then()
		}
	}
	// The client has closed the channel, or is gone.
	if session.cmd != nil {
		session.cmd.HangUp()
	}
}

// request carries out one request. then is called after the reply, unless nil.
func (s *sshSession) request(kind string, payload []byte) (ok bool, then func()) {
	switch kind {
	case "pty-req":
		req, err := decodeTerminal(payload)
		if err != nil || s.begun {
			return false, nil
		}
		s.tty = &req
		return true, nil
	case "env":
		kv, err := decodeEnv(payload)
		if s.envSize += len(kv); err != nil || s.begun || s.envSize > maxEnv {
			return false, nil
		}
		s.env = append(s.env, kv)
		return true, nil
	case "shell":
		return s.start("")
	case "exec":
		command, err := decodeString(payload)
		if err != nil || command == "" {
			return false, nil
		}
		return s.start(command)
	case "subsystem":
		if name, err := decodeString(payload); err != nil || name != wire.VerbSFTP {
			return false, nil
		}
		s.tty = nil
		return s.launch(wire.Exec{Path: wire.Self, Args: []string{wire.Program, wire.VerbSFTP}})
	case "window-change":
		size, err := decodeWindow(payload)
		if err == nil && s.cmd != nil {
			s.cmd.Resize(size)
		}
		return err == nil, nil
	case "signal":
		name, err := decodeString(payload)
		n := signalNumber(name)
		return err == nil && n != 0 && s.cmd != nil && s.cmd.Signal(n, false), nil
	}
	return false, nil
}

// start runs a command by the user's shell, or the shell itself. It is no login shell:
// those replace the image's PATH.
func (s *sshSession) start(command string) (bool, func()) {
	id, err := proc.LookupUser(s.server.conf.User)
	if err != nil {
		return s.fail(proc.StartErrorf(wire.KindUser, "%v", err))
	}
	shell := shellOf(id)
	s.env = append(s.env, "SHELL="+shell)
	req := wire.Exec{Path: shell, Args: []string{path.Base(shell)}}
	if command != "" {
		req.Args = append(req.Args, "-c", command)
	}
	return s.launch(req)
}

// shellOf returns the user's own shell, or /bin/sh if that does not exist or refuses logins.
func shellOf(id accounts.User) string {
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

func (s *sshSession) launch(req wire.Exec) (bool, func()) {
	if s.begun {
		return false, nil
	}
	s.begun = true
	req.User, req.Dir, req.Stdin = s.server.conf.User, s.server.conf.Dir, true
	req.NewPrivileges = s.server.conf.NewPrivileges
	env := os.Environ()
	if !s.server.conf.Home {
		env = slices.DeleteFunc(env, func(kv string) bool { return strings.HasPrefix(kv, "HOME=") })
	}
	req.Env = append(env, s.env...)
	if s.tty != nil {
		req.TTY, req.Size = true, s.tty.size
		req.Env = append(req.Env, "TERM="+s.tty.term)
	}
	if refused := s.server.admit(); refused != nil {
		return s.fail(refused)
	}
	s.server.use.begin()
	cmd, refused := proc.Start(s.server.reaper, req)
	if refused != nil {
		s.server.use.end()
		s.server.leave()
		return s.fail(refused)
	}
	s.cmd = cmd
	return true, s.run
}

// fail accepts the request and prints why nothing runs: a refusal would carry no text.
func (s *sshSession) fail(why *wire.StartError) (bool, func()) {
	s.begun = true
	code := 255
	switch why.Kind {
	case wire.KindNotFound:
		code = proc.ExitNotFound
	case wire.KindPermission:
		code = proc.ExitNotExecutable
	}
	return true, func() {
		fmt.Fprintf(s.ch.Stderr(), "sandbox: %s\r\n", why.Message)
		s.end(wire.Exit{Code: code})
	}
}

func (s *sshSession) run() {
	defer s.server.leave()
	defer s.server.use.end()
	go s.cmd.Feed(s.ch)
	s.end(s.cmd.Run(s.ch, s.ch.Stderr()))
}

func (s *sshSession) end(exit wire.Exit) {
	s.ch.CloseWrite()
	if name, ok := signalNames[syscall.Signal(exit.Signal)]; ok {
		s.ch.SendRequest("exit-signal", false, ssh.Marshal(struct {
			Signal   string
			Core     bool
			Message  string
			Language string
		}{Signal: name}))
	} else {
		s.ch.SendRequest("exit-status", false, ssh.Marshal(struct{ Code uint32 }{uint32(exit.Code)}))
	}
	s.ch.Close()
}

// hangUp waits a moment for commands whose client has gone. Children that still run then
// die with this process.
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

// decodeTerminal reads pty-req. It ignores the modes: a new terminal's are good enough.
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

// signalNumber returns 0 for an unknown name.
func signalNumber(name string) syscall.Signal {
	for n, known := range signalNames {
		if name == known {
			return n
		}
	}
	return 0
}
