package enginetest_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
)

func TestMain(m *testing.M) {
	code := m.Run()
	if err := goleak.Find(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// upstream is a server that counts, and answers by path.
type upstream struct {
	host string
	seen chan string
}

func newUpstream(t *testing.T) *upstream {
	t.Helper()
	dir, err := os.MkdirTemp("", "up")
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	u := &upstream{host: "unix://" + ln.Addr().String(), seen: make(chan string, 100)}
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		u.seen <- r.Method + " " + r.URL.Path + " " + string(b)
		switch {
		case strings.HasSuffix(r.URL.Path, "/chunked"):
			for range 3 {
				_, _ = io.WriteString(w, "piece")
				_ = http.NewResponseController(w).Flush()
			}
		case strings.HasSuffix(r.URL.Path, "/raw"):
			w.Header().Set("Upgrade", "tcp")
			w.Header().Set("Connection", "Upgrade")
			w.WriteHeader(http.StatusSwitchingProtocols)
			c, rw, err := http.NewResponseController(w).Hijack()
			if err != nil {
				return
			}
			defer c.Close()
			_, _ = io.Copy(c, rw)
		case strings.HasSuffix(r.URL.Path, "/empty"):
			w.WriteHeader(http.StatusNoContent)
		default:
			_, _ = io.WriteString(w, "0123456789")
		}
	})}
	done := make(chan struct{})
	go func() { defer close(done); _ = srv.Serve(ln) }()
	t.Cleanup(func() {
		_ = srv.Close()
		<-done
		_ = os.RemoveAll(dir)
	})
	return u
}

func clientOf(t *testing.T, host string) *http.Client {
	t.Helper()
	addr := strings.TrimPrefix(host, "unix://")
	tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", addr)
	}}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

func post(c *http.Client, path, body string) (string, error) {
	resp, err := c.Post("http://engine"+path, "text/plain", struct{ io.Reader }{strings.NewReader(body)})
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return string(b), err
}

func TestProxyPassesCallsAndCountsThem(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	p := enginetest.NewProxyTo(t, u.host)
	c := clientOf(t, p.Host())
	p.Arm(0, enginetest.None, nil)
	for path, want := range map[string]string{"/v1.41/a?x=1": "0123456789", "/b/chunked": "piecepiecepiece", "/empty": ""} {
		if got, err := post(c, path, "body"); got != want || err != nil {
			t.Errorf("post %s = %q, %v, want %q", path, got, err, want)
		}
		if got := <-u.seen; !strings.HasSuffix(got, " body") {
			t.Errorf("the engine saw %q", got)
		}
	}
	resp, err := c.Head("http://engine/head")
	if err != nil || resp.ContentLength != 10 {
		t.Errorf("Head = %+v, %v", resp, err)
	}
	if p.Count() != 4 || len(p.Calls()) != 4 || p.Calls()[3] != "HEAD /head" {
		t.Errorf("counted %d: %q", p.Count(), p.Calls())
	}
	p.Arm(0, enginetest.None, nil)
	if _, err := post(c, "/v1.41/a?x=1", ""); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"POST /a"}, p.Calls()); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
}

func TestProxyFaults(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		fault enginetest.Fault
		path  string
		seen  bool
		body  string
	}{
		{enginetest.RefuseBefore, "/a", false, ""},
		{enginetest.LoseReply, "/a", true, ""},
		{enginetest.LoseReply, "/b/chunked", true, ""},
		{enginetest.CutReply, "/a", true, "01234"},
		{enginetest.CutReply, "/empty", true, ""},
	} {
		t.Run(c.fault.String()+c.path, func(t *testing.T) {
			u := newUpstream(t)
			p := enginetest.NewProxyTo(t, u.host)
			cl := clientOf(t, p.Host())
			var called atomic.Int32
			p.Arm(2, c.fault, func() { called.Add(1) })
			if _, err := post(cl, "/first", ""); err != nil {
				t.Fatalf("the call before: %v", err)
			}
			<-u.seen
			got, err := post(cl, c.path, "body")
			if err == nil || got != c.body {
				t.Errorf("post = %q, %v, want %q and an error", got, err, c.body)
			}
			if seen := len(u.seen) == 1; seen != c.seen {
				t.Errorf("the engine saw the call: %v, want %v", seen, c.seen)
			}
			if called.Load() != 1 || !p.Fired() {
				t.Errorf("called %d times, fired %v", called.Load(), p.Fired())
			}
			if _, err := post(cl, "/after", ""); err != nil {
				t.Errorf("the call after: %v", err)
			}
		})
	}
}

func TestProxyArmedAtACallOfThatName(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	p := enginetest.NewProxyTo(t, u.host)
	cl := clientOf(t, p.Host())
	var called atomic.Int32
	p.ArmAt("/a", enginetest.RefuseBefore, func() { called.Add(1) })
	for i, path := range []string{"/first", "/v1.41/a", "/x/a"} {
		if _, err := post(cl, path, ""); (err != nil) != (i == 1) {
			t.Errorf("post %s: %v", path, err)
		}
	}
	if called.Load() != 1 || !p.Fired() || p.Count() != 3 {
		t.Errorf("called %d times, fired %v, calls %q", called.Load(), p.Fired(), p.Calls())
	}
}

func TestProxyCutsAStreamWithinItsFirstPiece(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	p := enginetest.NewProxyTo(t, u.host)
	p.Arm(1, enginetest.CutReply, nil)
	got, err := post(clientOf(t, p.Host()), "/chunked", "")
	if !errors.Is(err, io.ErrUnexpectedEOF) || !strings.HasPrefix("piecepiecepiece", got) || len(got) > 7 {
		t.Errorf("post = %q, %v", got, err)
	}
}

func TestProxyCancelStillDeliversTheCall(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	p := enginetest.NewProxyTo(t, u.host)
	ctx, cancel := context.WithCancel(t.Context())
	p.Arm(1, enginetest.Cancel, cancel)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://engine/a", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := clientOf(t, p.Host()).Do(req)
	if err == nil {
		_ = resp.Body.Close()
	}
	if got := <-u.seen; got != "POST /a " {
		t.Errorf("the engine saw %q", got)
	}
	if ctx.Err() == nil {
		t.Error("not cancelled")
	}
}

func TestProxyStallsUntilTheClientGoes(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	p := enginetest.NewProxyTo(t, u.host)
	p.Stall(1)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://engine/a", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := clientOf(t, p.Host()).Do(req); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Do = %v", err)
	}
	if len(u.seen) != 0 {
		t.Error("the engine saw the call")
	}
}

func TestProxyRefusesWhileDown(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	p := enginetest.NewProxyTo(t, u.host)
	c := clientOf(t, p.Host())
	for range 2 {
		p.Refuse(true)
		if _, err := post(c, "/a", ""); err == nil {
			t.Error("an engine that is down answered")
		}
		p.Refuse(false)
		if _, err := post(c, "/a", ""); err != nil {
			t.Errorf("an engine that is back: %v", err)
		}
	}
}

// dialRaw makes an upgraded connection.
func dialRaw(t *testing.T, host string) (*net.UnixConn, *bufio.Reader) {
	t.Helper()
	c, err := net.Dial("unix", strings.TrimPrefix(host, "unix://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_, _ = io.WriteString(c, "POST /v1.41/exec/x/raw HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: tcp\r\nContent-Length: 2\r\n\r\n{}")
	br := bufio.NewReader(c)
	resp, err := http.ReadResponse(br, nil)
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols || resp.Header.Get("Upgrade") != "tcp" {
		t.Fatalf("upgrade: %+v, %v", resp, err)
	}
	return c.(*net.UnixConn), br
}

func TestProxyKeepsUpgradedStreams(t *testing.T) {
	t.Parallel()
	p := enginetest.NewProxyTo(t, newUpstream(t).host)
	c, br := dialRaw(t, p.Host())
	if _, err := io.WriteString(c, "there and back"); err != nil {
		t.Fatal(err)
	}
	if err := c.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(br); string(got) != "there and back" || err != nil {
		t.Errorf("read %q, %v", got, err)
	}
	c, br = dialRaw(t, p.Host())
	p.CloseAll()
	_, _ = io.WriteString(c, "x")
	if got, _ := io.ReadAll(br); len(got) != 0 {
		t.Errorf("read %q of a cut stream", got)
	}
}

func TestEngineThatLocksUpIsTold(t *testing.T) {
	u := newUpstream(t)
	p := enginetest.NewProxyTo(t, u.host)
	t.Setenv("DOCKER_HOST", p.Host())
	p.Arm(3, enginetest.Stall, nil)
	if !enginetest.LockedUp(t.Context(), time.Millisecond, time.Second) {
		t.Error("an engine that answers no more has not locked up")
	}
	if n := p.Count(); n != 3 {
		t.Errorf("it was asked %d times, and answered twice", n)
	}

	// Down is not locked up: tests take engines down.
	p.Refuse(true)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if enginetest.LockedUp(ctx, time.Millisecond, time.Minute) {
		t.Error("an engine that is down has locked up")
	}
}

func TestForeignObjectsAreSeenAndChecked(t *testing.T) {
	t.Parallel()
	f := enginetest.NewForeign(t)
	f.Check(t)
	lines := strings.Join(enginetest.Take(t).Lines(), "\n")
	for _, name := range append(f.Volumes, f.Containers...) {
		if !strings.Contains(lines, " "+name) {
			t.Errorf("Take does not list %s:\n%s", name, lines)
		}
	}
	only := enginetest.Take(t, enginetest.WithLabel(enginetest.ForeignLabel+"="+f.Suffix)).Lines()
	// All but one volume, and the image, whose label its containers inherit.
	if want := len(f.Volumes) - 1 + len(f.Containers) + 1; len(only) != want {
		t.Errorf("Take by label = %q, want %d objects", only, want)
	}
}

func TestTouchedForeignObjectIsReported(t *testing.T) {
	t.Parallel()
	f := enginetest.NewForeign(t)
	before := enginetest.Take(t, enginetest.WithLabel(enginetest.ForeignLabel+"="+f.Suffix))
	rename := func(from, to string) {
		t.Helper()
		resp, err := clientOf(t, enginetest.EngineHost()).Post("http://engine/containers/"+from+"/rename?name="+to, "", nil)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
	}
	rename(f.Victim, f.Victim+"x")
	r := &recorder{TB: t}
	f.Check(r)
	if !r.failed {
		t.Error("Check did not notice a renamed container")
	}
	now := enginetest.Take(t, enginetest.WithLabel(enginetest.ForeignLabel+"="+f.Suffix))
	want := []string{"~ container " + f.Victim + " (created) is now container " + f.Victim + "x (created)"}
	if diff := cmp.Diff(want, before.Diff(now)); diff != "" {
		t.Errorf("Diff (-want +got):\n%s", diff)
	}
	rename(f.Victim+"x", f.Victim)
	if diff := before.Diff(enginetest.Take(t, enginetest.WithLabel(enginetest.ForeignLabel+"="+f.Suffix))); len(diff) > 0 {
		t.Errorf("Diff of what is as it was = %q", diff)
	}
}

// recorder is a test that may fail.
type recorder struct {
	testing.TB
	failed bool
}

func (r *recorder) Helper()               {}
func (r *recorder) Errorf(string, ...any) { r.failed = true }

// engineOf is a server that says of every container that its files are on the disk, makes
// containers, and echoes the bodies that it is sent.
func engineOf(t *testing.T) (host string, seen func() string) {
	t.Helper()
	var mu sync.Mutex
	var all strings.Builder
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		mu.Lock()
		fmt.Fprintf(&all, "%s %s %s\n", r.Method, r.URL.Path, b)
		mu.Unlock()
		switch {
		case strings.HasSuffix(r.URL.Path, "/containers/create"):
			w.WriteHeader(http.StatusCreated)
			_, _ = io.WriteString(w, `{"Id":"made"}`)
		case strings.HasSuffix(r.URL.Path, "/info"):
			_, _ = io.WriteString(w, `{"Driver":"overlayfs","NCPU":2}`)
		case strings.HasSuffix(r.URL.Path, "/json"):
			_, _ = io.WriteString(w, `{"Id":"made","GraphDriver":{"Name":"overlay2","Data":{"UpperDir":"/u","MergedDir":"/m","ID":"i"}},"Size":12345678901234567890}`)
		}
	}))
	t.Cleanup(srv.Close)
	return "tcp://" + srv.Listener.Addr().String(), func() string {
		mu.Lock()
		defer mu.Unlock()
		return all.String()
	}
}

func TestProxyHidesLayers(t *testing.T) {
	host, _ := engineOf(t)
	p := enginetest.NewProxyTo(t, host)
	c := clientOf(t, p.Host())
	describe := func(what string) string {
		t.Helper()
		resp, err := c.Get("http://engine/v1.41/" + what)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("%s, %v", resp.Status, err)
		}
		return string(b)
	}
	if got := describe("containers/made/json"); !strings.Contains(got, "UpperDir") {
		t.Errorf("as it is: %s", got)
	}
	if got := describe("info"); !strings.Contains(got, "overlayfs") {
		t.Errorf("the engine as it is: %s", got)
	}
	p.HideLayers()
	if got := describe("info"); !strings.Contains(got, `"Driver":"vfs"`) || !strings.Contains(got, `"NCPU":2`) {
		t.Errorf("the engine without layers: %s", got)
	}
	if got := describe("containers/made/json"); strings.Contains(got, "Dir") || !strings.Contains(got, `"ID":"i"`) || !strings.Contains(got, "12345678901234567890") {
		t.Errorf("without its layer: %s", got)
	}
}

func TestProxyRefusesOverlays(t *testing.T) {
	host, seen := engineOf(t)
	p := enginetest.NewProxyTo(t, host)
	c := clientOf(t, p.Host())
	start := func(volume string) int {
		t.Helper()
		for _, call := range [][2]string{{"/v1.41/volumes/create", volume}, {"/v1.41/containers/create", `{"HostConfig":{"Mounts":[{"Source":"v"}]}}`}} {
			if _, err := post(c, call[0], call[1]); err != nil {
				t.Fatal(err)
			}
		}
		resp, err := c.Post("http://engine/v1.41/containers/made/start", "", nil)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		return resp.StatusCode
	}
	const overlay, plain = `{"Name":"v","DriverOpts":{"type":"overlay"}}`, `{"Name":"v"}`
	if got := start(overlay); got != http.StatusOK {
		t.Errorf("with overlays: %d", got)
	}
	p.RefuseOverlays()
	if got := start(plain); got != http.StatusOK {
		t.Errorf("a volume of another kind: %d", got)
	}
	before := strings.Count(seen(), "/start")
	if got := start(overlay); got != http.StatusInternalServerError || strings.Count(seen(), "/start") != before {
		t.Errorf("without overlays: %d, and the engine saw\n%s", got, seen())
	}
}

func TestProxyIsElsewhere(t *testing.T) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		t.Fatal(err)
	}
	boot := strings.TrimSpace(string(id))
	host, seen := engineOf(t)
	p := enginetest.NewProxyTo(t, host)
	p.RunElsewhere()
	if _, err := post(clientOf(t, p.Host()), "/containers/create", `{"Cmd":["`+boot+`"]}`); err != nil {
		t.Fatal(err)
	}
	if got := seen(); strings.Contains(got, boot) || !strings.Contains(got, `{"Cmd":["00000000-`) {
		t.Errorf("the engine saw %q", got)
	}
	u := newUpstream(t)
	p = enginetest.NewProxyTo(t, u.host)
	p.RunElsewhere()
	conn, r := dialRaw(t, p.Host())
	fmt.Fprintf(conn, "said %s\n", boot)
	if line, err := r.ReadString('\n'); err != nil || line != "said 00000000-0000-4000-8000-000000000000\n" {
		t.Errorf("a container says %q, %v", line, err)
	}
}
