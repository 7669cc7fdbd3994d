package engine

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/docker/docker/client"

	"github.com/seed-1a2d6d8f/sandbox/internal/bound"
)

// sshTarget is an engine reached by running "docker system dial-stdio" on its
// machine.
type sshTarget struct {
	user, host, port, socket string
}

var (
	sshWordRE   = regexp.MustCompile(`^[A-Za-z0-9_.@:%\[\]][A-Za-z0-9_.@:%\[\]-]*$`)
	sshSocketRE = regexp.MustCompile(`^/[A-Za-z0-9_./-]+$`)
)

func parseSSH(u *url.URL) (sshTarget, error) {
	t := sshTarget{user: u.User.Username(), host: u.Hostname(), port: u.Port()}
	if _, has := u.User.Password(); has {
		return t, invalid("the ssh:// host has a password: use a key or an agent")
	}
	// ssh would take a word with a leading dash for an option.
	if !sshWordRE.MatchString(t.host) {
		return t, invalid("invalid ssh host name %q", t.host)
	}
	if t.user != "" && !sshWordRE.MatchString(t.user) {
		return t, invalid("invalid ssh user name %q", t.user)
	}
	if t.port != "" {
		if n, err := strconv.ParseUint(t.port, 10, 16); err != nil || n == 0 {
			return t, invalid("invalid port %q", t.port)
		}
	}
	if u.RawQuery != "" || u.Fragment != "" {
		return t, invalid("the ssh:// host has a query or fragment")
	}
	if u.Path != "" && u.Path != "/" {
		// The remote shell interprets this word, so allow no special characters.
		if !sshSocketRE.MatchString(u.Path) {
			return t, invalid("invalid socket path %q for ssh", u.Path)
		}
		t.socket = u.Path
	}
	return t, nil
}

// login is the part of ssh's command line that says where to, and as whom.
func (t sshTarget) login() []string {
	var argv []string
	if t.user != "" {
		argv = append(argv, "-l", t.user)
	}
	if t.port != "" {
		argv = append(argv, "-p", t.port)
	}
	return append(argv, "--", t.host)
}

// argv is ssh's command line. No local shell interprets it. ssh ends a connection whose server is
// silent for (CountMax+1) × Interval.
func (t sshTarget) argv(options ...string) []string {
	argv := []string{"-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=6", "-o", "ServerAliveCountMax=2"}
	for _, o := range options {
		argv = append(argv, "-o", o)
	}
	argv = append(append(append(argv, "-T"), t.login()...), "docker")
	if t.socket != "" {
		argv = append(argv, "--host", "unix://"+t.socket)
	}
	return append(argv, "system", "dial-stdio")
}

// An sshDialer makes connections to one engine. Each has an ssh process of its own, which is a
// session of a master's connection if there are masters.
type sshDialer struct {
	target     sshTarget
	timeout    time.Duration // of one handshake
	handshakes chan struct{} // holds one element for each in progress
	shares     func() bool   // whether to make masters
	alone      atomic.Bool   // masters can't have sockets

	mu      sync.Mutex
	masters []*sshMaster // those that new sessions may use
}

const (
	// maxHandshakes leaves room for other clients: sshd drops some connections when ten are
	// being authenticated (MaxStartups).
	maxHandshakes = 4
	// maxPooled are the handshakes of connections for calls. The others are for execs, which wait
	// for one of their own.
	maxPooled = 2
	// maxRefusals is how often a handshake that the server refused is repeated, within 6 s.
	maxRefusals = 5
)

func newSSHDialer(u *url.URL, timeout time.Duration) (*sshDialer, error) {
	target, err := parseSSH(u)
	return &sshDialer{
		target: target, timeout: timeout, handshakes: make(chan struct{}, maxHandshakes), shares: sync.OnceValue(target.shares),
	}, err
}

// errUnwanted is the error of a dial that nobody waits for any more.
var errUnwanted = errors.New("no call waits for a connection")

// pooled is dial for the connections of calls, of which queue is how many wait for one. The
// transport dials for each, but most take one that becomes free before: so many calls at once make
// few connections. Their number has no limit, since calls such as a log that is followed keep
// theirs, and others must not wait for them.
func pooled(dial func(context.Context) (net.Conn, error), queue *atomic.Int64) func(context.Context) (net.Conn, error) {
	slots := make(chan struct{}, maxPooled)
	return func(ctx context.Context) (net.Conn, error) {
		select {
		case slots <- struct{}{}:
			defer func() { <-slots }()
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if queue.Load() == 0 {
			return nil, errUnwanted
		}
		return dial(ctx)
	}
}

// dial returns a connection that the engine has answered on. Nothing but a ping was sent before,
// so a handshake that the server refuses can be repeated.
func (d *sshDialer) dial(ctx context.Context) (net.Conn, error) {
	wait := 100 * time.Millisecond
	for try := 0; ; try++ {
		conn, err := d.handshake(ctx)
		if err == nil {
			return conn, nil
		}
		var refused *sshError
		if !errors.As(err, &refused) || !refused.beforeKeys() || try == maxRefusals {
			return nil, err
		}
		wait *= 2
		if bound.Sleep(ctx, wait-rand.N(wait/2)) != nil {
			return nil, err
		}
	}
}

func (d *sshDialer) handshake(ctx context.Context) (*sshConn, error) {
	select {
	case d.handshakes <- struct{}{}:
		defer func() { <-d.handshakes }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	own, cancel := context.WithTimeoutCause(ctx, d.timeout, &timeoutError{after: d.timeout})
	defer cancel()
	return d.session(own)
}

// connect starts ssh, and returns when the engine has answered.
func (t sshTarget) connect(ctx context.Context, options ...string) (*sshConn, error) {
	conn, err := t.start(ctx, t.argv(options...))
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	err = ping(conn)
	if !stop() {
		err = context.Cause(ctx)
	}
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	return conn, nil
}

// ping makes one request on a new connection, to which any reply of the engine is fine.
func ping(conn net.Conn) error {
	req, err := http.NewRequest(http.MethodGet, "http://"+client.DummyHost+"/_ping", nil)
	if err != nil {
		return err
	}
	if err := req.Write(conn); err != nil {
		// The reason is what ssh has written.
		var b [1]byte
		if _, e := conn.Read(b[:]); e != nil {
			err = e
		}
		return err
	}
	r := bufio.NewReader(conn)
	resp, err := http.ReadResponse(r, req)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, io.LimitReader(resp.Body, 1<<20))
	if err == nil && (resp.Close || r.Buffered() > 0) {
		err = errNotAnEngine
	}
	return err
}

// start starts ssh.
func (t sshTarget) start(ctx context.Context, argv []string) (*sshConn, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	// Not CommandContext: the connection outlives ctx, which bounds the dial.
	cmd := exec.Command("ssh", argv...)
	cmd.SysProcAttr = ownSession()
	c := &sshConn{cmd: cmd, host: t.host, told: make(chan struct{})}
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	if c.in, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if c.out, err = cmd.StdoutPipe(); err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		defer close(c.told)
		_, _ = io.Copy(&c.stderr, stderr)
	}()
	return c, nil
}

// sshConn is a connection over an ssh process's stdin and stdout.
type sshConn struct {
	cmd    *exec.Cmd
	host   string
	in     io.WriteCloser
	out    io.ReadCloser
	stderr tail
	told   chan struct{} // closed at the end of stderr
	closed func()        // after the process has ended; may be nil

	closing  sync.Once
	waiting  sync.Once
	waitErr  error
	received bool // by Read alone
}

func (c *sshConn) Read(p []byte) (int, error) {
	n, err := c.out.Read(p)
	c.received = c.received || n > 0
	if err == nil || n > 0 {
		return n, nil
	}
	if errors.Is(err, io.EOF) && !c.received {
		// ssh never connected, and its stderr says why.
		return 0, c.explain()
	}
	return n, err
}

// explain waits for ssh to end and returns its message.
func (c *sshConn) explain() error {
	select {
	case <-c.told:
	case <-time.After(time.Second): // a control master has it, too
	}
	err := c.wait()
	text := strings.TrimSpace(c.stderr.String())
	if text == "" && err != nil {
		text = err.Error()
	}
	return &sshError{c.host, text}
}

// sshError is the message of an ssh that ended without a connection.
type sshError struct{ host, text string }

func (e *sshError) Error() string { return fmt.Sprintf("ssh %s: %s: %v", e.host, e.text, io.EOF) }

func (e *sshError) Unwrap() error { return io.EOF }

// beforeKeys reports whether the server closed the connection before the key exchange, as one
// with too many connections does. ssh has no other sign of it than its text.
func (e *sshError) beforeKeys() bool { return strings.Contains(e.text, "exchange_identification: ") }

func (c *sshConn) Write(p []byte) (int, error) {
	n, err := c.in.Write(p)
	if err != nil && errors.Is(err, os.ErrClosed) {
		err = net.ErrClosed
	}
	return n, err
}

// CloseWrite ends the stream to the engine.
func (c *sshConn) CloseWrite() error { return c.in.Close() }

// Close ends ssh and waits for it.
func (c *sshConn) Close() error {
	c.closing.Do(func() {
		_ = c.in.Close()
		_ = c.out.Close()
		_ = c.cmd.Process.Kill()
		_ = c.wait()
		if c.closed != nil {
			c.closed()
		}
	})
	return nil
}

// wait waits until ssh has ended, though others may still have its pipes.
func (c *sshConn) wait() error {
	c.waiting.Do(func() { c.waitErr = c.cmd.Wait() })
	return c.waitErr
}

func (c *sshConn) LocalAddr() net.Addr              { return sshAddr("local") }
func (c *sshConn) RemoteAddr() net.Addr             { return sshAddr(c.host) }
func (c *sshConn) SetDeadline(time.Time) error      { return os.ErrNoDeadline }
func (c *sshConn) SetReadDeadline(time.Time) error  { return os.ErrNoDeadline }
func (c *sshConn) SetWriteDeadline(time.Time) error { return os.ErrNoDeadline }

type sshAddr string

func (a sshAddr) Network() string { return "ssh" }
func (a sshAddr) String() string  { return string(a) }

// tail keeps the last 4 KiB written to it.
type tail struct {
	mu  sync.Mutex
	buf []byte
}

const tailSize = 4 << 10

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := len(p)
	if n > tailSize {
		p = p[n-tailSize:]
	}
	if over := len(t.buf) + len(p) - tailSize; over > 0 {
		t.buf = append(t.buf[:0], t.buf[over:]...)
	}
	t.buf = append(t.buf, p...)
	return n, nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(bytes.ToValidUTF8(t.buf, []byte("\uFFFD")))
}
