package sandboxhttp_test

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/sandboxhttp"
)

// failure is the JSON of an error.
type failure struct {
	Error struct{ Code, Message string }
}

// Requests that a browser sends for a page of somebody else don't get as far as the engine,
// which here does not exist: what gets there is a 503.
func TestRequestsForPagesOfOthersAreRefused(t *testing.T) {
	t.Parallel()
	c, err := sandbox.NewClient(sandbox.WithHost("unix:///nowhere.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	trusting := http.NewCrossOriginProtection()
	if err := trusting.AddTrustedOrigin("https://console.example"); err != nil {
		t.Fatal(err)
	}
	listed := []sandboxhttp.Option{sandboxhttp.WithHosts("Sandboxes.Example.", "other.example:8080")}
	trusted := []sandboxhttp.Option{sandboxhttp.WithCrossOriginProtection(trusting)}
	upgrade := func(header ...string) []string {
		return append(header, "Upgrade", "websocket", "Connection", "Upgrade", "Sec-WebSocket-Version", "13", "Sec-WebSocket-Key", "AAAAAAAAAAAAAAAAAAAAAA==")
	}
	const passes = "nowhere.sock"
	for _, test := range []struct {
		method, path, host string
		header             []string // key, value, …
		opts               []sandboxhttp.Option
		want               string // of the error
	}{
		{"GET", "/sandboxes", "localhost", nil, nil, passes},
		{"GET", "/sandboxes", "LocalHost.:8080", nil, nil, passes},
		{"GET", "/sandboxes", "app.localhost:1", nil, nil, passes},
		{"GET", "/sandboxes", "127.0.0.1:8080", nil, nil, passes},
		{"GET", "/sandboxes", "192.0.2.1", nil, nil, passes},
		{"GET", "/sandboxes", "[::1]", nil, nil, passes},
		{"GET", "/sandboxes", "[::1]:8080", nil, nil, passes},
		{"GET", "/sandboxes", "evil.test", nil, nil, "WithHosts"},
		{"GET", "/sandboxes", "evil.test:8080", nil, nil, "WithHosts"},
		{"GET", "/sandboxes", "localhost.evil.test", nil, nil, "WithHosts"},
		{"GET", "/sandboxes", "notlocalhost", nil, nil, "WithHosts"},
		{"GET", "/sandboxes", "127.0.0.1.evil.test", nil, nil, "WithHosts"},
		{"GET", "/sandboxes", "", nil, nil, "WithHosts"},
		{"GET", "/sandboxes/x/logs", "evil.test", nil, nil, "WithHosts"},
		{"DELETE", "/sandboxes/x?preserveVolume=false", "evil.test", nil, nil, "WithHosts"},
		{"GET", "/sandboxes", "sandboxes.example", nil, listed, passes},
		{"GET", "/sandboxes", "SANDBOXES.example:443", nil, listed, passes},
		{"GET", "/sandboxes", "other.example", nil, listed, passes},
		{"GET", "/sandboxes", "localhost", nil, listed, passes},
		{"GET", "/sandboxes", "a.sandboxes.example", nil, listed, "WithHosts"},
		{"POST", "/sandboxes/x/stop", "localhost", nil, nil, passes},
		{"POST", "/sandboxes/x/stop", "localhost", []string{"Sec-Fetch-Site", "same-origin"}, nil, passes},
		{"POST", "/sandboxes/x/stop", "localhost:80", []string{"Origin", "http://localhost:80"}, nil, passes},
		{"POST", "/sandboxes/x/stop", "localhost", []string{"Sec-Fetch-Site", "cross-site"}, nil, "WithCrossOriginProtection"},
		{"POST", "/sandboxes/x/start", "localhost", []string{"Origin", "https://evil.test"}, nil, "WithCrossOriginProtection"},
		{"DELETE", "/sandboxes/x", "127.0.0.1", []string{"Origin", "null"}, nil, "WithCrossOriginProtection"},
		{"POST", "/sandboxes/x/stop", "localhost", []string{"Origin", "https://console.example", "Sec-Fetch-Site", "cross-site"}, trusted, passes},
		{"POST", "/sandboxes/x/stop", "localhost", []string{"Origin", "https://evil.test", "Sec-Fetch-Site", "cross-site"}, trusted, "WithCrossOriginProtection"},
		{"GET", "/sandboxes/x/terminal", "localhost", upgrade(), nil, passes},
		{"GET", "/sandboxes/x/terminal", "localhost:80", upgrade("Origin", "http://localhost:80"), nil, passes},
		{"GET", "/sandboxes/x/terminal", "localhost", upgrade("Origin", "https://evil.test"), nil, "WithCrossOriginProtection"},
		{"GET", "/sandboxes/x/terminal", "localhost:80", upgrade("Origin", "http://localhost:81"), nil, "WithCrossOriginProtection"},
		{"GET", "/sandboxes/x/terminal", "localhost", upgrade("Sec-Fetch-Site", "same-site"), nil, "WithCrossOriginProtection"},
		{"GET", "/sandboxes/x/terminal", "evil.test", upgrade(), nil, "WithHosts"},
		{"GET", "/sandboxes/x/terminal", "localhost", upgrade("Origin", "https://console.example"), trusted, passes},
	} {
		test.opts = append(test.opts, sandboxhttp.WithoutAuthorization())
		for name, handler := range map[string]http.Handler{"Handler": sandboxhttp.Handler(c, test.opts...), "LogsHandler": sandboxhttp.LogsHandler(c, test.opts...)} {
			if name == "LogsHandler" && !strings.HasSuffix(test.path, "/logs") {
				continue
			}
			received := context.WithValue(t.Context(), http.LocalAddrContextKey, &net.TCPAddr{}) // as by a server
			r := httptest.NewRequestWithContext(received, test.method, test.path, nil)
			r.Host = test.host
			for i := 0; i < len(test.header); i += 2 {
				r.Header.Set(test.header[i], test.header[i+1])
			}
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, r)
			want := http.StatusForbidden
			if test.want == passes {
				want = http.StatusServiceUnavailable
			}
			var failure failure
			if err := json.NewDecoder(w.Body).Decode(&failure); err != nil || w.Code != want || !strings.Contains(failure.Error.Message, test.want) {
				t.Errorf("%s: %s %s for host %q with %q: %d %+v (%v), want %d %q", name, test.method, test.path, test.host, test.header, w.Code, failure.Error, err, want, test.want)
			}
		}
	}
}
