//go:build linux

package sshserver

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
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
	// exitTime is how long the end of the output waits for the command's own.
	exitTime = 200 * time.Millisecond
)

// sshSession is one session channel. It is served as sshd serves it: the command is read by
// a shell, and processes that have gone into the background outlive it.
type sshSession struct {
	server  *server
	client  ssh.ConnMetadata
	ch      ssh.Channel
	begun   bool
	env     []string
	envSize int
	tty     *terminalRequest
	cmd     *proc.Command // nil before it runs
	warning string        // about where it runs
	// answering is held from the beginning of a request until its reply: a signal may end the command,
	// and the reply comes before the end.
	answering sync.Mutex
}

func (s *server) serveSession(nc ssh.NewChannel) {
	ch, reqs, err := nc.Accept()
	if err != nil {
		return
	}
	s.sessions.Add(1)
	defer s.sessions.Done()
	session := &sshSession{server: s, client: *s.latest.Load(), ch: ch}
	for r := range reqs {
		session.answering.Lock()
		ok, then := session.request(r.Type, r.Payload)
		if r.WantReply {
			r.Reply(ok, nil)
		}
		session.answering.Unlock()
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
		if err != nil || s.begun || s.tty != nil {
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
		return s.start()
	case "exec":
		command, err := decodeString(payload)
		if err != nil {
			return false, nil
		}
		return s.start("-c", command)
	case "subsystem":
		if name, err := decodeString(payload); err != nil || name != wire.VerbSFTP {
			return false, nil
		}
		s.tty = nil
		return s.launch(func(accounts.User) wire.Exec {
			return wire.Exec{Path: wire.Self, Args: []string{wire.Program, wire.VerbSFTP}}
		})
	case "window-change":
		size, err := decodeWindow(payload)
		switch {
		case err != nil:
			return false, nil
		case s.cmd != nil:
			s.cmd.Resize(size)
		case s.tty != nil:
			s.tty.size = size
		}
		return true, nil
	case "eow@openssh.com": // the client's output is closed
		return s.cmd != nil && s.tty == nil && s.cmd.CloseOutput(wire.StreamStdout), nil
	case "break":
		return s.cmd != nil && s.cmd.Break(), nil
	case "signal":
		name, err := decodeString(payload)
		n := signalNumber(name)
		return err == nil && n != 0 && s.cmd != nil && s.cmd.Signal(n, false), nil
	}
	return false, nil
}

// start runs the user's shell with arguments. It is no login shell: those replace the image's PATH.
func (s *sshSession) start(args ...string) (bool, func()) {
	return s.launch(func(id accounts.User) wire.Exec {
		shell := shellOf(id)
		return wire.Exec{Path: shell, Args: append([]string{path.Base(shell)}, args...)}
	})
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

// launch starts what request returns for the session's user.
func (s *sshSession) launch(request func(accounts.User) wire.Exec) (bool, func()) {
	if s.begun {
		return false, nil
	}
	s.begun = true
	name, err := s.server.login(s.client.User())
	if err != nil {
		return s.fail(proc.StartErrorf(wire.KindUser, "%v", err))
	}
	id, err := proc.LookupUser(name)
	if err != nil {
		return s.fail(proc.StartErrorf(wire.KindUser, "%v", err))
	}
	req := request(id)
	req.User, req.Dir, req.Stdin, req.Detached = name, s.directory(id), true, true // it may outlive this process
	req.NewPrivileges = s.server.conf.NewPrivileges
	req.Env = s.environment(name, id)
	if s.tty != nil {
		req.TTY, req.Size, req.Modes, req.TTYVariable = true, s.tty.size, s.tty.modes, "SSH_TTY"
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

// directory returns where a session of the user begins: as with sshd in the root directory, with a warning, if it can't enter its own.
func (s *sshSession) directory(id accounts.User) string {
	dir := cmp.Or(s.server.conf.Dir, "/")
	if err := proc.CanEnter(dir, id); err != nil && dir != "/" {
		s.warning = fmt.Sprintf("sandbox: directory %q: %v; this session begins in \"/\"", dir, err)
		return "/"
	}
	return dir
}

// environment returns the container's variables, the client's, and those that sshd sets, with its words for a client without an
// address. Shells read their files by them: bash reads ~/.bashrc for a command of sshd's.
func (s *sshSession) environment(name string, id accounts.User) []string {
	env := os.Environ()
	other := name != s.server.conf.User
	drop := func(variable string) {
		env = slices.DeleteFunc(env, func(kv string) bool { return strings.HasPrefix(kv, variable+"=") })
	}
	if !s.server.conf.Home || other {
		drop("HOME")
	}
	if other {
		drop("USER")
		drop("LOGNAME")
	}
	if id.Name != "" {
		env = slices.Insert(env, 0, "LOGNAME="+id.Name) // what comes later counts
	}
	env = append(env, s.env...)
	env = append(env, "SHELL="+shellOf(id), "SSH_CLIENT=UNKNOWN 65535 65535", "SSH_CONNECTION=UNKNOWN 65535 UNKNOWN 65535")
	if s.tty != nil {
		env = append(env, "TERM="+cmp.Or(s.tty.term, "dumb")) // as bash has it if there is none
	}
	return env
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
	switch {
	case s.warning == "":
	case s.tty != nil:
		fmt.Fprintf(s.ch, "%s\r\n", s.warning)
	default:
		fmt.Fprintf(s.ch.Stderr(), "%s\n", s.warning)
	}
	go s.feed()
	told := make(chan struct{})
	go func() {
		defer close(told)
		<-s.cmd.Exited()
		s.sendExit(s.cmd.Exit()) // those in the background may hold the output for long
	}()
	go func() {
		<-s.cmd.Drained()
		// PuTTY and Dropbear leave at the end of the output, with the exit status that they have.
		select {
		case <-told:
		case <-time.After(exitTime):
		}
		s.ch.CloseWrite()
	}()
	s.cmd.Run(s.ch, s.ch.Stderr())
	<-told
	s.ch.Close()
}

// feed passes the client's input on, for as long as the command reads it. The rest is dropped: a client may want to have sent all
// before it reads. OpenSSH's stop sending when they hear of it.
func (s *sshSession) feed() {
	if s.cmd.Feed(s.ch) {
		return
	}
	if strings.HasPrefix(string(s.client.ClientVersion()), "SSH-2.0-OpenSSH") {
		s.ch.SendRequest("eow@openssh.com", false, nil)
	}
	io.Copy(io.Discard, s.ch)
}

func (s *sshSession) end(exit wire.Exit) {
	s.ch.CloseWrite()
	s.sendExit(exit)
	s.ch.Close()
}

func (s *sshSession) sendExit(exit wire.Exit) {
	s.answering.Lock()
	defer s.answering.Unlock()
	if exit.Signal == 0 {
		s.ch.SendRequest("exit-status", false, ssh.Marshal(struct{ Code uint32 }{uint32(exit.Code)}))
		return
	}
	name, ok := signalNames[syscall.Signal(exit.Signal)]
	if !ok {
		name = "SIG@openssh.com"
	}
	s.ch.SendRequest("exit-signal", false, ssh.Marshal(struct {
		Signal   string
		Core     bool
		Message  string
		Language string
	}{Signal: name}))
}

// hangUp waits a moment for commands whose client has gone. Those that ignore SIGHUP outlive this process, as with sshd.
func (s *server) hangUp() {
	select {
	case <-s.drained: // the client may still be there
		return
	default:
	}
	enough := time.After(hangUpTime)
	heard := make(chan struct{})
	go func() { s.sessions.Wait(); close(heard) }()
	select {
	case <-heard:
	case <-enough: // one may hang in a file system that does
	}
	select {
	case <-s.drained:
	case <-enough:
	}
}

type terminalRequest struct {
	term  string
	size  wire.Size
	modes []byte
}

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
	return terminalRequest{term: msg.Term, size: terminalSize(msg.Rows, msg.Cols, msg.Width, msg.Height), modes: []byte(msg.Modes)}, nil
}

func decodeWindow(payload []byte) (wire.Size, error) {
	var msg struct{ Cols, Rows, Width, Height uint32 }
	err := ssh.Unmarshal(payload, &msg)
	return terminalSize(msg.Rows, msg.Cols, msg.Width, msg.Height), err
}

func terminalSize(rows, cols, width, height uint32) wire.Size {
	short := func(n uint32) uint16 { return uint16(min(n, 1<<16-1)) }
	return wire.Size{Rows: short(rows), Cols: short(cols), Width: short(width), Height: short(height)}
}

func decodeEnv(payload []byte) (string, error) {
	var msg struct{ Name, Value string }
	if err := ssh.Unmarshal(payload, &msg); err != nil {
		return "", err
	}
	if msg.Name == "" || strings.ContainsAny(msg.Name, "=\x00\r\n") || strings.IndexByte(msg.Value, 0) >= 0 {
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
