package harness

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"strings"
	"sync"
	"testing"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
)

// Behind is an option for a client of an engine that is another one than the real one:
// one without what a Proxy takes from it.
func Behind(t *testing.T, less ...func(*enginetest.Proxy)) sandbox.ClientOption {
	t.Helper()
	p := enginetest.NewProxy(t)
	for _, f := range less {
		f(p)
	}
	return sandbox.WithHost(p.Host())
}

// Engines that lack something, see [Behind].
var (
	WithoutLayers   = (*enginetest.Proxy).HideLayers     // forks go by commit
	WithoutOverlays = (*enginetest.Proxy).RefuseOverlays // what a snapshot has is copied
	WithoutHolds    = (*enginetest.Proxy).PartNetworks   // the engine pauses what is copied
	WithoutFilter   = (*enginetest.Proxy).FilterNothing  // no network policy can be enforced
	Elsewhere       = (*enginetest.Proxy).RunElsewhere   // on another machine: directories are copied through the client
)

// InFront is an engine that the real one is behind. before sees each request and returns
// true when it has answered it itself; after, which may be nil, may change each reply.
func InFront(t *testing.T, before func(http.ResponseWriter, *http.Request) bool, after func(*http.Response) error) (host string) {
	t.Helper()
	enginetest.Need(t)
	network, address, _ := strings.Cut(enginetest.EngineHost(), "://")
	var mu sync.Mutex
	var behind []net.Conn
	through := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.Out.URL.Scheme, r.Out.URL.Host = "http", "engine" },
		Transport: &http.Transport{DisableKeepAlives: true, DisableCompression: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, address)
			if err == nil {
				mu.Lock()
				defer mu.Unlock()
				behind = append(behind, conn)
			}
			return conn, err
		}},
		ModifyResponse: after,
	}
	front := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !before(w, r) {
			through.ServeHTTP(w, r)
		}
	}))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	front.Listener.Close()
	front.Listener = l
	front.Start()
	t.Cleanup(func() {
		front.Close()
		// The engine keeps a stream to a container that was never started for good.
		mu.Lock()
		defer mu.Unlock()
		for _, conn := range behind {
			conn.Close()
		}
	})
	return "tcp://" + l.Addr().String()
}

// Refuse answers as the engine does when it can't.
// Refuse is the engine's reply to a request that it refuses.
func Refuse(w http.ResponseWriter, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusInternalServerError)
	json.NewEncoder(w).Encode(map[string]string{"message": message})
}

// BothWays runs a test with the engine copying by itself, and with the copy going through
// this process.
func BothWays(t *testing.T, test func(t *testing.T, c *sandbox.Client)) {
	t.Run("beside", func(t *testing.T) { test(t, NewClient(t)) })
	t.Run("streamed", func(t *testing.T) {
		test(t, NewClient(t, Behind(t, Elsewhere)))
	})
}
