// Package enginetest supports tests that need a real Docker Engine: a proxy
// in front of it that makes faults ([Proxy]), the engine's contents before and
// after ([Take]), and things that are somebody else's ([NewForeign]). Only
// tests import it.
package enginetest

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// Fault is what happens to one call of the engine.
type Fault int

// The faults a [Proxy] makes.
const (
	// None lets the call pass.
	None Fault = iota
	// RefuseBefore closes the connection before the engine sees the call.
	RefuseBefore
	// LoseReply lets the engine carry the call out, drops its reply and closes
	// the connection.
	LoseReply
	// CutReply sends the reply's headers and about half its body, or half its
	// status line where it has no body, and closes the connection. A stream is
	// cut at its first piece.
	CutReply
	// Cancel calls the armed function when the call arrives, and then forwards
	// the call and its reply as if nothing were.
	Cancel
	// Stall holds the call, and never answers.
	Stall
	// CutStream lets the reply pass, and closes the stream that follows it at the engine's first byte.
	CutStream
)

var faultNames = [...]string{"none", "refuse before", "lose reply", "cut reply", "cancel", "stall", "cut stream"}

// String names the fault.
func (f Fault) String() string {
	if f < 0 || int(f) >= len(faultNames) {
		return fmt.Sprintf("Fault(%d)", int(f))
	}
	return faultNames[f]
}

// Faults are the four that every call should survive.
var Faults = []Fault{RefuseBefore, LoseReply, CutReply, Cancel}

// Proxy stands between a client and the real engine. It reads every HTTP
// request, numbers it, and can fail any one of them. It is safe for
// concurrent use.
type Proxy struct {
	t        testing.TB
	path     string
	upstream func() (net.Conn, error)

	conns sync.WaitGroup

	mu      sync.Mutex
	ln      net.Listener
	open    map[net.Conn]struct{}
	count   int
	calls   []string
	targets []string
	made    map[string]bool // names of containers that were asked for, of all time
	at      int
	ending  string // of the calls of which the nth is to be at
	nth     int
	fault   Fault
	onFault func()
	until   context.Context // no fault happens once it has ended; nil for ever
	fired   int             // which call had the fault, 0 for none
	closed  bool
	trips   *Trips // nil unless they are counted

	streams, all    chan struct{} // closed when the stall of streams, or of everything, is over; nil without
	opened, stalled int           // streams so far, and when they were stalled

	// What it makes of the engine, see rewrite.go.
	hideLayers, refuseOverlays bool
	memoryLate                 int
	partNetworks               bool
	filterNothing              bool
	bootID                     string          // of this machine, if the engine is to be elsewhere
	overlays                   []string        // volumes
	overlaid                   []string        // containers with such volumes
	overlaidRequests           []*http.Request // for such containers
}

// NewProxy starts a proxy in front of the engine that DOCKER_HOST names
// (unix:// or tcp://), or of the default socket. It ends with the test.
func NewProxy(t testing.TB) *Proxy {
	t.Helper()
	return NewProxyTo(t, EngineHost())
}

// NewProxyTo is [NewProxy] in front of host, unix:// or tcp://.
func NewProxyTo(t testing.TB, host string) *Proxy {
	t.Helper()
	network, addr := splitHost(t, host)
	// Not t.TempDir: a socket's path may have 107 bytes, and that has the
	// test's name in it.
	dir, err := os.MkdirTemp("", "ep")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{
		t: t, path: filepath.Join(dir, "s"), open: map[net.Conn]struct{}{}, made: map[string]bool{},
		upstream: func() (net.Conn, error) { return net.Dial(network, addr) },
	}
	if err := p.listen(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.stop()
		_ = os.RemoveAll(dir)
	})
	return p
}

// EngineHost is the address of the engine under test: DOCKER_HOST, or the default socket.
func EngineHost() string {
	if host := os.Getenv("DOCKER_HOST"); host != "" {
		return host
	}
	return "unix:///var/run/docker.sock"
}

func splitHost(t testing.TB, host string) (network, addr string) {
	t.Helper()
	network, addr, _ = strings.Cut(host, "://")
	if network != "unix" && network != "tcp" {
		t.Fatalf("enginetest reaches an engine through unix:// or tcp://, not %q", host)
	}
	return network, addr
}

// Host is the proxy's address, as DOCKER_HOST takes it.
func (p *Proxy) Host() string { return "unix://" + p.path }

// Arm makes call number k, counted from 1 from now on, fail with f. onFault,
// which may be nil, is called as that call arrives. A k of 0 only counts.
func (p *Proxy) Arm(k int, f Fault, onFault func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.count, p.calls, p.targets = 0, nil, nil
	p.at, p.ending, p.fault, p.onFault, p.until, p.fired = k, "", f, onFault, nil, 0
}

// ArmUntil is Arm for a call that arrives before ctx ends: what its caller does afterwards, to undo
// what it did, has no fault.
func (p *Proxy) ArmUntil(ctx context.Context, k int, f Fault, onFault func()) {
	p.Arm(k, f, onFault)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.until = ctx
}

// ArmAt is Arm for the first call whose name, as in [Proxy.Calls], ends so.
func (p *Proxy) ArmAt(ending string, f Fault, onFault func()) { p.ArmAtNth(1, ending, f, onFault) }

// ArmAtNth is Arm for the n-th call, counted from 1, whose name ends so.
func (p *Proxy) ArmAtNth(n int, ending string, f Fault, onFault func()) {
	p.Arm(0, f, onFault)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.nth, p.ending = n, ending
}

// Disarm lets every call pass from now on. Counts stay until the next Arm.
func (p *Proxy) Disarm() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.at, p.ending, p.onFault = 0, "", nil
}

// Stall makes call number k hang: it is never answered.
func (p *Proxy) Stall(k int) { p.Arm(k, Stall, nil) }

// StallStreams holds the bytes of all streams that there are, such as those of execs, in both
// directions and without closing anything, as a network does that forgets connections.
// StallStreams(false) lets them go on.
func (p *Proxy) StallStreams(on bool) {
	p.stall(&p.streams, on)
	p.mu.Lock()
	defer p.mu.Unlock()
	if on {
		p.stalled = p.opened
	}
}

// StallAll is StallStreams for calls, too: nothing is answered, and calls made meanwhile never
// reach the engine.
func (p *Proxy) StallAll(on bool) {
	p.stall(&p.all, on)
	p.StallStreams(on)
}

func (p *Proxy) stall(over *chan struct{}, on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case on && *over == nil && !p.closed:
		*over = make(chan struct{})
	case !on && *over != nil:
		close(*over)
		*over = nil
	}
}

// awaitStall waits for the end of a stall, and reports whether there was one.
func (p *Proxy) awaitStall(over *chan struct{}) bool {
	p.mu.Lock()
	wait := *over
	p.mu.Unlock()
	if wait == nil {
		return false
	}
	<-wait
	return true
}

// stalling is a direction of the stream of that number, which StallStreams can hold.
type stalling struct {
	p      *Proxy
	number int
	io.Reader
}

func (s stalling) Read(b []byte) (int, error) {
	n, err := s.Reader.Read(b)
	s.p.mu.Lock()
	old := s.number <= s.p.stalled
	s.p.mu.Unlock()
	if old {
		s.p.awaitStall(&s.p.streams)
	}
	return n, err
}

// Count is the number of calls since the last Arm.
func (p *Proxy) Count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.count
}

// Calls names the calls since the last Arm, such as "POST /containers/create".
func (p *Proxy) Calls() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.calls)
}

// Requests are the calls since the last Arm with their queries, such as
// "POST /containers/x/stop?t=30".
func (p *Proxy) Requests() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.targets)
}

// Made reports whether a client of the proxy has asked for a container of that name, ever.
func (p *Proxy) Made(name string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.made[name]
}

// Fired reports whether the armed fault has happened.
func (p *Proxy) Fired() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.fired > 0
}

// FiredAt is the number of the call that had the armed fault, or 0.
func (p *Proxy) FiredAt() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.fired
}

// CloseAll cuts every connection, as an engine does that dies.
func (p *Proxy) CloseAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.open {
		_ = c.Close()
	}
}

// Refuse makes the engine look down: connections are cut and no new one is
// accepted, though the socket's file stays. Refuse(false) brings it back.
func (p *Proxy) Refuse(down bool) {
	p.t.Helper()
	p.mu.Lock()
	ln := p.ln
	p.mu.Unlock()
	switch {
	case down && ln != nil:
		_ = ln.Close()
		p.mu.Lock()
		p.ln = nil
		p.mu.Unlock()
		p.CloseAll()
	case !down && ln == nil:
		_ = os.Remove(p.path)
		if err := p.listen(); err != nil {
			p.t.Errorf("proxy: %v", err)
		}
	}
}

func (p *Proxy) listen() error {
	ln, err := net.Listen("unix", p.path)
	if err != nil {
		return err
	}
	ln.(*net.UnixListener).SetUnlinkOnClose(false)
	p.mu.Lock()
	p.ln = ln
	p.mu.Unlock()
	p.conns.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			p.conns.Go(func() { p.serve(c) })
		}
	})
	return nil
}

func (p *Proxy) stop() {
	p.mu.Lock()
	p.closed = true
	ln := p.ln
	p.mu.Unlock()
	if ln != nil {
		_ = ln.Close()
	}
	p.StallAll(false)
	p.CloseAll()
	p.conns.Wait()
}

// track makes c one of the connections CloseAll cuts.
func (p *Proxy) track(c net.Conn) (untrack func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		_ = c.Close()
	}
	p.open[c] = struct{}{}
	return func() {
		_ = c.Close()
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.open, c)
	}
}

var versionRE = regexp.MustCompile(`^/v[0-9.]+/`)

// arrive numbers a call and says what is to happen to it.
func (p *Proxy) arrive(req *http.Request) Fault {
	p.mu.Lock()
	p.count++
	p.calls = append(p.calls, req.Method+" "+versionRE.ReplaceAllString(req.URL.Path, "/"))
	p.targets = append(p.targets, req.Method+" "+versionRE.ReplaceAllString(req.URL.RequestURI(), "/"))
	if name := req.URL.Query().Get("name"); name != "" && strings.HasSuffix(req.URL.Path, "/containers/create") {
		p.made[name] = true
	}
	if p.ending != "" && strings.HasSuffix(p.calls[p.count-1], p.ending) {
		if p.nth--; p.nth == 0 {
			p.at, p.ending = p.count, ""
		}
	}
	f, onFault := None, func() {}
	if p.at != 0 && p.count == p.at && (p.until == nil || p.until.Err() == nil) {
		f, p.fired = p.fault, p.count
		if p.onFault != nil {
			onFault = p.onFault
		}
	}
	p.mu.Unlock()
	onFault()
	return f
}

// serve passes the requests of one connection on, each side having its own
// to the engine, until either ends.
func (p *Proxy) serve(down net.Conn) {
	defer p.track(down)()
	up, err := p.upstream()
	if err != nil {
		return
	}
	defer p.track(up)()
	l := &link{proxy: p, down: down, up: up, downR: bufio.NewReader(down), upR: bufio.NewReader(up), trips: p.newTrips()}
	for {
		req, err := http.ReadRequest(l.downR)
		if err != nil {
			return
		}
		if p.awaitStall(&p.all) {
			return
		}
		l.trips.message(req.Method + " " + req.URL.Path)
		fault := p.arrive(req)
		switch fault {
		case RefuseBefore:
			return
		case Stall:
			_, _ = io.Copy(io.Discard, l.downR)
			return
		}
		refusal, err := p.request(req)
		if err != nil {
			return
		}
		if refusal != nil {
			if fault == None || fault == Cancel {
				_, _ = io.Copy(io.Discard, req.Body)
				_ = refusal.Write(down)
			}
			return
		}
		if !l.exchange(req, fault) {
			return
		}
	}
}

// link is a client's connection and the engine's that belongs to it.
type link struct {
	proxy      *Proxy
	down, up   net.Conn
	downR, upR *bufio.Reader
	trips      *tripsOn
}

// exchange forwards one request and its reply. It reports whether another
// may follow.
func (l *link) exchange(req *http.Request, fault Fault) (more bool) {
	sent := make(chan error, 1)
	go func() {
		err := req.Write(l.up)
		if err != nil {
			// The client left in the middle of its body: so must we, or the
			// engine waits for the rest, holding its locks.
			_ = l.up.Close()
		}
		sent <- err
	}()
	resp, err := readFinal(l.upR, req)
	if err != nil {
		l.close()
		<-sent
		return false
	}
	if req.Method == http.MethodHead && resp.ContentLength < 0 {
		resp.ContentLength = 0 // else Write would close the connection
	}
	l.trips.reply()
	hijacked := resp.StatusCode == http.StatusSwitchingProtocols
	if err := l.proxy.reply(req, resp); err != nil {
		l.close()
		<-sent
		return false
	}
	switch fault {
	case LoseReply:
		if !hijacked {
			_, _ = io.Copy(io.Discard, resp.Body)
		}
		err = errFault
	case CutReply:
		_, _ = l.down.Write(half(resp))
		err = errFault
	default:
		err = resp.Write(l.down)
	}
	_ = resp.Body.Close()
	if err != nil {
		l.close()
		<-sent
		return false
	}
	if hijacked {
		<-sent
		if fault == CutStream {
			_, _ = l.upR.Peek(1)
			l.close()
			return false
		}
		l.pipe()
		return false
	}
	select {
	case err := <-sent:
		return err == nil && !resp.Close && !req.Close
	case <-time.After(time.Second):
		// The engine has answered without reading it all.
		l.close()
		<-sent
		return false
	}
}

var errFault = errors.New("fault")

// readFinal skips replies such as 100 Continue.
func readFinal(r *bufio.Reader, req *http.Request) (*http.Response, error) {
	for {
		resp, err := http.ReadResponse(r, req)
		if err != nil || resp.StatusCode >= 200 || resp.StatusCode == http.StatusSwitchingProtocols {
			return resp, err
		}
	}
}

// half is what a reply cut in the middle has sent.
func half(resp *http.Response) []byte {
	head, err := httputil.DumpResponse(resp, false)
	if err != nil {
		return nil
	}
	line := bytes.Index(head, []byte("\r\n")) / 2
	if resp.Body == nil || resp.StatusCode == http.StatusSwitchingProtocols {
		return head[:line]
	}
	if resp.ContentLength < 0 {
		piece := make([]byte, 4<<10)
		n, _ := resp.Body.Read(piece)
		if n == 0 {
			return head
		}
		return append(fmt.Appendf(head, "%x\r\n", n), piece[:n/2]...)
	}
	body, _ := io.ReadAll(resp.Body)
	if len(body) == 0 {
		return head[:line]
	}
	return append(head, body[:len(body)/2]...)
}

// pipe copies both ways, half-closing as the ends do.
func (l *link) pipe() {
	var g sync.WaitGroup
	l.proxy.mu.Lock()
	l.proxy.opened++
	n := l.proxy.opened
	l.proxy.mu.Unlock()
	g.Go(func() { copyHalf(l.up, l.trips.fromClient(stalling{l.proxy, n, l.downR})) })
	copyHalf(l.down, l.trips.fromEngine(stalling{l.proxy, n, l.proxy.output(l.upR)}, l.down))
	// The engine has said its last word: what the client still sends is for
	// nobody.
	l.close()
	g.Wait()
}

func copyHalf(dst net.Conn, src io.Reader) {
	_, _ = io.Copy(dst, src)
	if c, ok := dst.(interface{ CloseWrite() error }); ok {
		_ = c.CloseWrite()
	}
}

func (l *link) close() {
	_ = l.down.Close()
	_ = l.up.Close()
}

// httpClient speaks to the real engine, past any proxy.
func httpClient(t testing.TB) *http.Client {
	t.Helper()
	return clientTo(t, EngineHost())
}

// clientTo speaks to the engine at host.
func clientTo(t testing.TB, host string) *http.Client {
	t.Helper()
	network, addr := splitHost(t, host)
	tr := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, addr)
		},
		DisableKeepAlives: true,
	}
	return &http.Client{Transport: tr}
}
