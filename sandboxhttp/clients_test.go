package sandboxhttp_test

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/sandboxtest"
)

// eachLine calls fn with each line until it returns false.
func eachLine(r io.Reader, fn func(string) bool) {
	for s := bufio.NewScanner(r); s.Scan() && fn(s.Text()); {
	}
}

// Clients that read nothing, and clients that go, cost nothing. This test runs alone: it
// measures the program and changes its timeouts.
func TestManyClients(t *testing.T) {
	enginetest.Need(t)
	sb := sandboxtest.New(t, sandbox.WithCommand("sh", "-c", "yes 'a line of the log, which is longer than most' | head -c 8000000; echo; echo ready; exec sleep 1000"))
	a := newAPI(t)
	for ready := false; !ready; time.Sleep(20 * time.Millisecond) {
		for l, err := range sb.Logs(t.Context(), sandbox.LogOptions{Tail: 1}) {
			ready = err == nil && l.Text == "ready"
		}
	}
	sandboxtest.Run(t, sb, "truncate", "-s", "4G", "large")
	t.Run("SlowReaders", func(t *testing.T) { a := a; a.t = t; a.testSlowReaders(sb) })
	t.Run("Clients", func(t *testing.T) { a := a; a.t = t; a.testClients(sb) })
	t.Run("Stalled", func(t *testing.T) { testStalled(t, sb) })
}

// requests are one of each kind whose answer has no end, or a late one.
func (a api) requests(ctx context.Context, sb *sandbox.Sandbox, logs string) []*http.Request {
	a.t.Helper()
	var all []*http.Request
	for _, r := range []struct{ method, path, body string }{
		{"GET", logs, ""},
		{"POST", "/exec", `{"command": ["yes", "and no"]}`},
		{"GET", "/files?path=large", ""},
	} {
		req, err := http.NewRequestWithContext(ctx, r.method, a.url+"/sandboxes/"+sb.Name()+r.path, strings.NewReader(r.body))
		if err != nil {
			a.t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		all = append(all, req)
	}
	return all
}

// begin sends n requests of each kind, and reads some bytes of the answers.
func (a api) begin(ctx context.Context, client *http.Client, sb *sandbox.Sandbox, n int, logs string) (bodies []io.ReadCloser) {
	a.t.Helper()
	var (
		mu  sync.Mutex
		all sync.WaitGroup
	)
	for range n {
		for _, req := range a.requests(ctx, sb, logs) {
			all.Go(func() {
				resp, err := client.Do(req)
				if err != nil {
					a.t.Errorf("%s: %v", req.URL, err)
					return
				}
				if _, err := io.CopyN(io.Discard, resp.Body, 1000); err != nil || resp.StatusCode != 200 {
					a.t.Errorf("%s: %s, %v", req.URL, resp.Status, err)
				}
				mu.Lock()
				defer mu.Unlock()
				bodies = append(bodies, resp.Body)
			})
		}
	}
	all.Wait()
	return bodies
}

func (a api) testSlowReaders(sb *sandbox.Sandbox) {
	t := a.t
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	client := &http.Client{Transport: &http.Transport{}}
	before := heap()
	const each = 2
	bodies := a.begin(ctx, client, sb, each, "/logs")
	// Without back-pressure this is enough for gigabytes. The window of an SSH channel is 2 MiB.
	limit := int64(len(bodies)) * 4 << 20
	most := uint64(0)
	for began := time.Now(); time.Since(began) < 3*time.Second; time.Sleep(100 * time.Millisecond) {
		most = max(most, heap())
	}
	if grown := int64(most) - int64(before); grown > limit {
		t.Errorf("%d clients that read nothing hold %d MiB, want at most %d", len(bodies), grown>>20, limit>>20)
	} else {
		t.Logf("%d clients that read nothing hold %d KiB", len(bodies), grown>>10)
	}
	// Those that go on reading get more.
	for _, b := range bodies {
		if _, err := io.CopyN(io.Discard, b, 4<<20); err != nil {
			t.Errorf("a client that reads again: %v", err)
		}
		b.Close()
	}
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc + m.StackInuse
}

func (a api) testClients(sb *sandbox.Sandbox) {
	t := a.t
	start := time.Now()
	before := goleak.IgnoreCurrent()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	client := &http.Client{Transport: &http.Transport{}}
	const each = 8
	bodies := a.begin(ctx, client, sb, each, "/logs?tail=100")
	if len(bodies) < 3*each {
		t.Errorf("%d of %d clients were served", len(bodies), 3*each)
	}
	t.Logf("served after %v", time.Since(start))
	cancel()
	for _, b := range bodies {
		b.Close()
	}
	client.CloseIdleConnections()
	var err error
	for end := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		if err = goleak.Find(before); err == nil || time.Now().After(end) {
			break
		}
	}
	t.Logf("gone after %v", time.Since(start))
	if err != nil {
		t.Errorf("a minute after %d clients have gone: %v", 3*each, err)
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		out := sandboxtest.Run(t, sb, "sh", "-c", "grep -lsz '^yes$' /proc/[0-9]*/cmdline | wc -l")
		if strings.TrimSpace(out) == "0" {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("commands that still run: %s", out)
		}
	}
}
