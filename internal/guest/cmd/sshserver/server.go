//go:build linux

package sshserver

import (
	"crypto/ed25519"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/crypto/ssh"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/cmd/proc"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// maxRunning bounds the commands of one server.
const maxRunning = 4096

// server serves commands on connections: one for serve, any number for keep.
type server struct {
	config *ssh.ServerConfig // of standard SSH; nil for the client of this module
	conf   wire.Serve        // of standard sessions
	reaper *proc.Reaper
	keeper *keeper // nil in serve, which takes no detached commands
	gate   gate    // closed during a hold, in serve

	latest  atomic.Pointer[ssh.Conn] // the latest connection
	tidying atomic.Int32             // commands that clean up when their client is gone
	use     use

	mu       sync.Mutex
	running  int
	stopping bool
	drained  chan struct{}  // closed when stopping and nothing runs
	sessions sync.WaitGroup // of standard SSH, until their commands have heard that the client is gone
}

func newServer() *server {
	s := &server{reaper: proc.NewReaper(), drained: make(chan struct{})}
	s.use.request = wire.UseRequest
	return s
}

// standard makes s a server of standard SSH, with the host key of that seed.
func (s *server) standard(seed []byte) error {
	signer, err := ssh.NewSignerFromSigner(ed25519.NewKeyFromSeed(seed))
	if err != nil {
		return err
	}
	s.config = s.serverConfig()
	s.config.AddHostKey(signer)
	return nil
}

// serverConfig has the algorithms of x/crypto that are not weak, for clients that lack the first ones: libssh2 and paramiko have no
// AES-GCM, and Dropbear needs a MAC without "etm". Left out are SHA-1, groups that the client proposes, and ChaCha20: who has it has
// AES in CTR mode, too, and OpenSSH would prefer it, which is slower.
func (s *server) serverConfig() *ssh.ServerConfig {
	login := func(c ssh.ConnMetadata) (*ssh.Permissions, error) {
		if _, err := s.login(c.User()); err != nil {
			return nil, &ssh.BannerError{Err: err, Message: "sandbox: " + err.Error() + "\r\n"}
		}
		return nil, nil
	}
	return &ssh.ServerConfig{
		Config: ssh.Config{
			// OpenSSH warns when the first is missing.
			KeyExchanges: []string{
				ssh.KeyExchangeMLKEM768X25519, ssh.KeyExchangeCurve25519,
				ssh.KeyExchangeECDHP256, ssh.KeyExchangeECDHP384, ssh.KeyExchangeECDHP521,
				ssh.KeyExchangeDH16SHA512, ssh.KeyExchangeDH14SHA256,
			},
			Ciphers: []string{ssh.CipherAES128GCM, ssh.CipherAES256GCM, ssh.CipherAES128CTR, ssh.CipherAES192CTR, ssh.CipherAES256CTR},
			MACs:    []string{ssh.HMACSHA256ETM, ssh.HMACSHA512ETM, ssh.HMACSHA256, ssh.HMACSHA512},
		},
		// Who has the connection may do all. Clients that insist on a key or a password succeed with any.
		NoClientAuth:         true,
		NoClientAuthCallback: login,
		PasswordCallback:     func(c ssh.ConnMetadata, _ []byte) (*ssh.Permissions, error) { return login(c) },
		PublicKeyCallback:    func(c ssh.ConnMetadata, _ ssh.PublicKey) (*ssh.Permissions, error) { return login(c) },
		KeyboardInteractiveCallback: func(c ssh.ConnMetadata, _ ssh.KeyboardInteractiveChallenge) (*ssh.Permissions, error) {
			return login(c)
		},
		// OpenSSH's client sends eow@openssh.com only to its like, and asyncssh and WinSCP have the paths of a link in OpenSSH's order
		// only there.
		ServerVersion: "SSH-2.0-OpenSSH_9.2 sandbox",
	}
}

// login returns the user of a session, as Exec.User, for the name that the client sent.
func (s *server) login(name string) (user string, err error) {
	if name == "" || name == s.conf.Caller {
		return s.conf.User, nil
	}
	if own, err := proc.LookupUser(s.conf.User); err == nil && own.Name == name {
		return s.conf.User, nil
	}
	_, err = proc.LookupUser(name)
	return name, err
}

// admit counts a command that is about to start, or returns why it must not.
func (s *server) admit() *wire.StartError {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopping {
		return proc.StartErrorf(wire.KindStopping, "the session is ending")
	}
	if s.running >= maxRunning {
		return proc.StartErrorf(wire.KindResources, "%d commands are running", s.running)
	}
	s.running++
	return nil
}

func (s *server) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running--; s.stopping && s.running == 0 {
		close(s.drained)
	}
}

// stop refuses new commands. drained is closed when the last one has ended.
func (s *server) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopping {
		return
	}
	s.stopping = true
	if s.running == 0 {
		close(s.drained)
	}
}

// isStopping reports whether the session is ending.
func (s *server) isStopping() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stopping
}

// endsDuring reports whether the session was ending when a command ended so. One that fails by
// itself may do so because of PID 1's SIGTERM before this process has handled its own, so PID 1 is
// asked.
func (s *server) endsDuring(exit wire.Exit) bool {
	if s.isStopping() || exit.Code == 0 || exit.Signal != 0 {
		return s.isStopping()
	}
	answer, err := askEnter()
	return err == nil && answer != wire.EnterYes
}

// serve serves conn until it ends.
func (s *server) serve(conn net.Conn) error {
	sc, chans, reqs, err := s.accept(conn)
	if err != nil {
		return fmt.Errorf("handshake: %w", err)
	}
	s.latest.Store(&sc)
	parts := &parts{held: make(map[string][]byte)}
	go parts.receive(reqs)
	for nc := range chans {
		go s.channel(nc, parts)
	}
	return sc.Wait()
}

func (s *server) accept(conn net.Conn) (ssh.Conn, <-chan ssh.NewChannel, <-chan *ssh.Request, error) {
	if s.config == nil {
		return wire.ServerConn(conn)
	}
	return ssh.NewServerConn(conn, s.config)
}

// client returns the connection that serve serves, nil before its handshake.
func (s *server) client() requester {
	if sc := s.latest.Load(); sc != nil {
		return *sc
	}
	return nil
}

func (s *server) channel(nc ssh.NewChannel, parts *parts) {
	switch kind := nc.ChannelType(); {
	case kind == wire.ChannelExec:
		s.exec(nc, parts)
	case kind == wire.ChannelProcess && s.keeper != nil:
		s.keeper.attach(nc)
	case kind == wire.ChannelProcesses && s.keeper != nil:
		s.keeper.processes(nc)
	case kind == wire.ChannelControl && s.keeper == nil:
		controlChannel(nc)
	case kind == wire.ChannelKeep && s.keeper == nil:
		s.keepChannel(nc)
	case kind == wire.ChannelDial && s.keeper == nil:
		s.dial(nc)
	case kind == wire.ChannelListens && s.keeper == nil:
		s.use.touch()
		serveListens(nc)
	case (kind == channelDirectTCP || kind == channelDirectUnix) && s.keeper == nil:
		s.direct(nc)
	case kind == channelSession && s.keeper == nil:
		s.serveSession(nc)
	default:
		nc.Reject(ssh.UnknownChannelType, fmt.Sprintf("unknown channel type %q", kind))
	}
}

func reject(nc ssh.NewChannel, why *wire.StartError) {
	text, _ := json.Marshal(why)
	nc.Reject(ssh.ConnectionFailed, string(text))
}

// exec starts a command before it accepts the channel, so that a client has its answer in
// one round trip.
func (s *server) exec(nc ssh.NewChannel, parts *parts) {
	req, refused := decodeExec(nc.ExtraData(), parts)
	if refused == nil && req.Detached != (s.keeper != nil) {
		refused = proc.StartErrorf(wire.KindOther, "detached commands belong to the keeper, others don't")
	}
	if refused == nil {
		refused = s.admit()
	}
	if refused != nil {
		reject(nc, refused)
		return
	}
	if s.keeper != nil {
		s.use.begin()
		s.keeper.start(s, nc, req) // leaves when the command has ended
		return
	}
	defer s.leave()
	served := req.ServesFiles()
	if !served {
		s.use.begin()
		defer s.use.end()
	}
	leave := s.gate.enter()
	c, refused := proc.Start(s.reaper, req)
	leave()
	if refused != nil {
		reject(nc, refused)
		return
	}
	ch, reqs, err := nc.Accept()
	if err != nil {
		c.Kill()
		c.Run(io.Discard, io.Discard)
		return
	}
	sendRequest(ch, wire.RequestStarted, wire.Started{Pid: c.PID(), Exec: wire.Exec{ID: req.ID}})
	var answering sync.Mutex
	go func() {
		obey(c, reqs, &answering)
		// The client gave up, or is gone.
		select {
		case <-c.Done():
		default:
			c.Abandon()
		}
	}()
	if c.TidiesUp() {
		s.tidying.Add(1)
		defer s.tidying.Add(-1)
	}
	input := io.Reader(ch)
	if served {
		input = hearing{ch, s.use.touch} // each request is a use
	}
	go c.Feed(input)
	go announceExit(c, ch, c.Done())
	exit := c.Run(ch, ch.Stderr())
	exit.Ending = s.endsDuring(exit)
	answering.Lock()
	defer answering.Unlock()
	sendRequest(ch, wire.RequestExit, exit)
	ch.Close()
}

func decodeExec(extra []byte, parts *parts) (req wire.Exec, refused *wire.StartError) {
	if ref, ok := strings.CutPrefix(string(extra), wire.PartsPrefix); ok {
		extra = parts.take(ref)
	}
	if err := json.Unmarshal(extra, &req); err != nil {
		return req, proc.StartErrorf(wire.KindArguments, "malformed request: %v", err)
	}
	if req.Timeout < 0 || req.WaitDelay < 0 {
		return req, proc.StartErrorf(wire.KindArguments, "negative timeout or wait delay")
	}
	return req, nil
}
