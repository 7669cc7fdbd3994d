package exec_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

func TestWrongPortsAreRefusedBeforeAnyEngineCall(t *testing.T) {
	t.Parallel()
	for what, test := range map[string]struct {
		ports []int
		limit int
		says  []string
	}{
		"a fifth":          {[]int{1, 2, 3, 4, 5}, 0, []string{"5 ports: use at most 4"}},
		"one over a limit": {[]int{1, 2, 3}, 2, []string{"3 ports: use at most 2"}},
		"nought":           {[]int{0}, 0, []string{"0 is not a port"}},
		"below nought":     {[]int{-80}, 0, []string{"-80 is not a port"}},
		"too high":         {[]int{70000}, 0, []string{"70000 is not a port"}},
		"twice":            {[]int{80, 81, 80}, 0, []string{"duplicate port 80"}},
		"PID 1's":          {[]int{15001, 80, 15053}, 0, []string{"port 15001 is taken", "port 15053 is taken"}},
		"all at once":      {[]int{0, 70000, 80, 80, 81}, 0, []string{"0 is not", "70000 is not", "duplicate port 80", "5 ports"}},
	} {
		// There is no engine: whoever calls one fails in another way.
		c := harness.Unconnected(t, sandbox.WithHost("unix:///nowhere.sock"), sandbox.WithLimits(sandbox.Limits{Ports: test.limit}))
		for verb, create := range map[string]func() (*sandbox.Sandbox, error){
			"Create": func() (*sandbox.Sandbox, error) { return c.Create(t.Context(), sandbox.WithPorts(test.ports...)) },
			"GetOrCreate": func() (*sandbox.Sandbox, error) {
				return c.GetOrCreate(t.Context(), "x", sandbox.WithPorts(test.ports...))
			},
		} {
			_, err := create()
			if !errors.Is(err, sandbox.ErrInvalidArgument) {
				t.Errorf("%s with %s: %v, want ErrInvalidArgument", verb, what, err)
				continue
			}
			for _, s := range test.says {
				if !strings.Contains(err.Error(), s) {
					t.Errorf("%s with %s: %q, want it to say %q", verb, what, err, s)
				}
			}
		}
	}
}

func TestLimitsMayAllowMorePorts(t *testing.T) {
	t.Parallel()
	c := harness.NewClient(t, sandbox.WithLimits(sandbox.Limits{Ports: 15}))
	var ports []int
	for p := range 15 {
		ports = append(ports, 3000+p)
	}
	sb, err := c.Create(t.Context(), sandbox.WithPorts(ports...))
	if err != nil {
		t.Fatal(err)
	}
	harness.Remove(t, c, sb.Name())
	t.Cleanup(func() { sb.Detach() })
	seen := map[netip.AddrPort]bool{}
	for _, p := range ports {
		at, err := sb.Port(t.Context(), p)
		if err != nil || !at.Addr().IsLoopback() || at.Port() == 0 || seen[at] {
			t.Errorf("Port(%d) = %v, %v, want an address of its own on 127.0.0.1", p, at, err)
		}
		seen[at] = true
	}
	if _, err := sandbox.NewClient(sandbox.WithLimits(sandbox.Limits{Ports: -1})); !errors.Is(err, sandbox.ErrInvalidArgument) {
		t.Errorf("Limits{Ports: -1}: %v, want ErrInvalidArgument", err)
	}
}

// webServer answers what it is asked with the text.
func webServer(port, text string) []string {
	return []string{"node", "-e", `require("http").createServer((q, s) => s.end(process.argv[2] + q.url)).listen(+process.argv[1])`, port, text}
}

func fetch(t *testing.T, c *http.Client, url string) string {
	t.Helper()
	resp, err := c.Get(url)
	if err != nil {
		t.Fatalf("GET %s: %v", url, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("GET %s: %v", url, err)
	}
	return string(body)
}

func TestPublishedPortIsReachedAndFollowsTheSession(t *testing.T) {
	t.Parallel()
	sb := harness.NewSandbox(t, sandbox.WithName(harness.UniqueName(t)), sandbox.WithStopTimeout(time.Second),
		sandbox.WithPorts(3000, 8080), sandbox.WithCommand(webServer("3000", "hello")...))
	web := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	look := func() netip.AddrPort {
		t.Helper()
		if err := sb.WaitPort(t.Context(), 3000); err != nil {
			t.Fatalf("WaitPort: %v", err)
		}
		at, err := sb.Port(t.Context(), 3000)
		if err != nil {
			t.Fatalf("Port(3000): %v", err)
		}
		if got := fetch(t, web, "http://"+at.String()+"/x"); got != "hello/x" {
			t.Errorf("GET at the published port = %q, want hello/x", got)
		}
		st, err := sb.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		other, err := sb.Port(t.Context(), 8080)
		if err != nil {
			t.Fatalf("Port(8080): %v", err)
		}
		want := map[uint16]netip.AddrPort{3000: at, 8080: other}
		if diff := cmp.Diff(want, st.Ports, cmpopts.EquateComparable(netip.AddrPort{})); diff != "" {
			t.Errorf("Status.Ports (-want +got):\n%s", diff)
		}
		return at
	}
	before := look()
	if _, err := sb.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if at, err := sb.Port(t.Context(), 3000); !errors.Is(err, sandbox.ErrNotRunning) {
		t.Errorf("Port of a stopped sandbox = %v, %v, want ErrNotRunning", at, err)
	}
	// Somebody else takes the old address meanwhile, as somebody will.
	l, err := net.Listen("tcp", before.String())
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, err := sb.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if after := look(); after == before {
		t.Errorf("Port after Stop and Start = %v, as before, want where it is now", after)
	}
}

func TestPortThatIsNotPublishedSaysWhatIs(t *testing.T) {
	t.Parallel()
	sb := harness.NewSandbox(t, sandbox.WithPorts(3000))
	for p, want := range map[int]string{3001: "[3000]", 0: "0 is not a port", 70000: "70000 is not a port", -1: "-1 is not a port"} {
		_, err := sb.Port(t.Context(), p)
		if !errors.Is(err, sandbox.ErrInvalidArgument) || !strings.Contains(err.Error(), want) {
			t.Errorf("Port(%d) = %v, want ErrInvalidArgument with %q", p, err, want)
		}
	}
}

func TestWaitPortWaitsForWhoListens(t *testing.T) {
	t.Parallel()
	sb := harness.Shared(t)
	for _, test := range []struct{ what, port, listen string }{
		{"all addresses", "4001", `listen(4001)`},
		{"IPv4", "4002", `listen(4002, "0.0.0.0")`},
		{"localhost only", "4003", `listen(4003, "127.0.0.1")`},
	} {
		begin := time.Now()
		server := sb.Command(t.Context(), "node", "-e", `setTimeout(() => require("net").createServer(() => {}).`+test.listen+`, 2000)`)
		if err := server.Start(); err != nil {
			t.Fatal(err)
		}
		port := map[string]int{"4001": 4001, "4002": 4002, "4003": 4003}[test.port]
		ctx, cancel := context.WithTimeout(t.Context(), harness.CallBound)
		if err := sb.WaitPort(ctx, port); err != nil {
			t.Errorf("%s: WaitPort: %v", test.what, err)
		}
		cancel()
		if took := time.Since(begin); took < 2*time.Second {
			t.Errorf("%s: WaitPort took %v for a server that listens after 2 s", test.what, took)
		}
		conn, err := sb.DialContext(t.Context(), "tcp", "localhost:"+test.port)
		if err != nil {
			t.Errorf("%s: dial after WaitPort: %v", test.what, err)
		} else {
			conn.Close()
		}
		server.Kill()
		server.Wait()
	}
}

func TestWaitPortLeavesTheFirstConnectionToTheClient(t *testing.T) {
	t.Parallel()
	sb := harness.Shared(t)
	once := sb.Command(t.Context(), "node", "-e", `
		const s = require("net").createServer(c => { c.end("the only one"); s.close() }).listen(4000)`)
	if err := once.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		once.Kill()
		once.Wait()
	}()
	if err := sb.WaitPort(t.Context(), 4000); err != nil {
		t.Fatal(err)
	}
	conn, err := sb.DialContext(t.Context(), "tcp", "localhost:4000")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if got, err := io.ReadAll(conn); string(got) != "the only one" || err != nil {
		t.Errorf("read %q, %v, want what the server has for its one client", got, err)
	}
}

func TestWaitPortTellsOfTheMainProcessThatDied(t *testing.T) {
	t.Parallel()
	for what, test := range map[string]struct {
		script string
		code   int
	}{
		"exit":   {"sleep 0.5; exit 3", 3},
		"signal": {"sleep 0.5; kill -9 $$", 137},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			sb := harness.NewSandbox(t, sandbox.WithCommand("sh", "-c", test.script))
			err := sb.WaitPort(t.Context(), 3000)
			var exit *sandbox.ExitError
			if !errors.As(err, &exit) || exit.ExitCode() != test.code || !strings.Contains(err.Error(), "3000") {
				t.Errorf("WaitPort = %v, want the main process's exit code %d and the port", err, test.code)
			}
		})
	}
}

func TestWaitPortOutlivesALauncher(t *testing.T) {
	t.Parallel()
	sb := harness.NewSandbox(t, sandbox.WithCommand("sh", "-c", `(sleep 1; exec node -e 'require("net").createServer().listen(3000)') &`))
	if err := sb.WaitPort(t.Context(), 3000); err != nil {
		t.Errorf("WaitPort for the server of a main process that ended well: %v", err)
	}
}

func TestWaitPortEndsWithItsContext(t *testing.T) {
	t.Parallel()
	sb := harness.Shared(t)
	for _, p := range []int{3000, 15001, 15053} { // on the latter two listens PID 1 alone
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		if err := sb.WaitPort(ctx, p); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), strconv.Itoa(p)) {
			t.Errorf("WaitPort = %v, want the deadline and port %d", err, p)
		}
		patient, cancel := context.WithTimeout(t.Context(), harness.CallBound)
		defer cancel()
		if conn, err := sb.DialContext(patient, "tcp", "localhost:"+strconv.Itoa(p)); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("DialContext to port %d = %v, %v, want ECONNREFUSED", p, conn, err)
		}
	}
	for _, p := range []int{0, 70000} {
		if err := sb.WaitPort(t.Context(), p); !errors.Is(err, sandbox.ErrInvalidArgument) {
			t.Errorf("WaitPort(%d) = %v, want ErrInvalidArgument", p, err)
		}
	}
}

func TestWaitPortEndsWithTheSession(t *testing.T) {
	t.Parallel()
	sb := harness.NewSandbox(t, sandbox.WithName(harness.UniqueName(t)), sandbox.WithStopTimeout(time.Second))
	waited := make(chan error, 1)
	if _, err := sb.DialContext(t.Context(), "tcp", "localhost:1"); err == nil {
		t.Fatal("something listens on port 1")
	}
	go func() { waited <- sb.WaitPort(t.Context(), 3000) }()
	other, err := harness.NewClient(t).Get(t.Context(), sb.Name())
	if err != nil {
		t.Fatal(err)
	}
	defer other.Detach()
	time.Sleep(200 * time.Millisecond) // let it be in the middle of waiting; any moment is good
	if _, err := other.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-waited; !errors.Is(err, sandbox.ErrNotRunning) {
		t.Errorf("WaitPort when the session ended = %v, want ErrNotRunning", err)
	}
}

// refusing is an engine whose first n starts of a container fail as they do when a
// port of the host is taken.
func refusing(t *testing.T, n int64) (host string) {
	t.Helper()
	var left atomic.Int64
	left.Store(n)
	return harness.InFront(t, func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.Contains(r.URL.Path, "/containers/") || !strings.HasSuffix(r.URL.Path, "/start") || left.Add(-1) < 0 {
			return false
		}
		harness.Refuse(w, "driver failed programming external connectivity on endpoint x: Bind for 127.0.0.1:49153 failed: port is already allocated")
		return true
	}, nil)
}

func TestHostPortThatIsTakenNamesItselfAndLeavesNothing(t *testing.T) {
	t.Parallel()
	name := harness.UniqueName(t)
	c := harness.NewClient(t, sandbox.WithHost(refusing(t, 1000)))
	harness.Remove(t, c, name)
	_, err := c.Create(t.Context(), sandbox.WithName(name), sandbox.WithPorts(3000))
	if err == nil || !strings.Contains(err.Error(), "127.0.0.1:49153") || !strings.Contains(err.Error(), "already allocated") {
		t.Errorf("Create when a port of the host is taken = %v, want the port in it", err)
	}
	if held, err := enginetest.Leftovers(enginetest.WithLabel("agent-sandbox.name=" + name)); err != nil || len(held) > 0 {
		t.Errorf("left of it: %v, %v, want nothing", held, err)
	}
}

func TestHostPortThatWasTakenIsExchanged(t *testing.T) {
	t.Parallel()
	c := harness.NewClient(t, sandbox.WithHost(refusing(t, 1)))
	sb, err := c.Create(t.Context(), sandbox.WithPorts(3000))
	if err != nil {
		t.Fatalf("Create when the first port the engine chose is taken: %v, want another chosen", err)
	}
	harness.Remove(t, c, sb.Name())
	t.Cleanup(func() { sb.Detach() })
	if at, err := sb.Port(t.Context(), 3000); err != nil || at.Port() == 0 {
		t.Errorf("Port = %v, %v", at, err)
	}
}
