package sandboxhttp_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/sandboxhttp"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// A request makes no more calls of the engine than it needs, and measures nothing that it does not report: a container's CPU time, for which
// an engine may wait a second, and a workspace's size, which takes a command in the sandbox or a helper.
func TestRequestsMakeTheCallsThatTheyNeed(t *testing.T) {
	t.Parallel()
	p := enginetest.NewProxy(t)
	c := harness.NewClient(t, sandbox.WithHost(p.Host()))
	s := httptest.NewServer(sandboxhttp.Handler(c, sandboxhttp.WithoutAuthorization()))
	t.Cleanup(s.Close)
	sb := harness.CreateWith(t, c, nil, sandbox.WithCommand("sh", "-c", "echo line; exec sleep 1000"))
	snap := harness.SnapshotOf(t, c, sb, sandbox.SnapshotOptions{})
	send := func(method, path, body string) func(context.Context) error {
		return func(ctx context.Context) error {
			req, err := http.NewRequestWithContext(ctx, method, s.URL+strings.NewReplacer("{name}", sb.Name(), "{id}", snap.ID).Replace(path), strings.NewReader(body))
			if err != nil {
				return err
			}
			if body != "" {
				req.Header.Set("Content-Type", "application/json")
			}
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			if body, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode >= 300 {
				return fmt.Errorf("%s, %v\n%s", resp.Status, err, body)
			}
			return nil
		}
	}
	read := func(ctx context.Context) error {
		got, err := c.Get(ctx, sb.Name(), sandbox.WithoutResume())
		if err != nil {
			return err
		}
		defer got.Detach()
		for _, err := range got.Logs(ctx, sandbox.LogOptions{}) {
			if err != nil {
				return err
			}
		}
		return nil
	}
	type test struct {
		what     string
		do       func(context.Context) error
		calls    int
		measures bool
	}
	route := func(path string, calls int, measures bool) test {
		return test{"GET " + path, send("GET", path, ""), calls, measures}
	}
	check := func(tests []test) {
		t.Helper()
		for _, tt := range tests {
			fewest := 0 // calls of the client's in the background may come into it
			var requests []string
			for i := range 3 {
				p.Arm(0, enginetest.None, nil)
				if err := tt.do(t.Context()); err != nil {
					t.Fatalf("%s: %v", tt.what, err)
				}
				if n := p.Count(); i == 0 || n < fewest {
					fewest, requests = n, p.Requests()
				}
			}
			all := strings.Join(requests, "\n\t")
			t.Logf("%s: %d calls", tt.what, fewest)
			if fewest > tt.calls {
				t.Errorf("%s makes %d calls, want %d\n\t%s", tt.what, fewest, tt.calls, all)
			}
			if measured := strings.Contains(all, "/stats") || strings.Contains(all, "/exec") || strings.Contains(all, "agent-sandbox-helper"); measured != tt.measures {
				t.Errorf("%s measures: %t, want %t\n\t%s", tt.what, measured, tt.measures, all)
			}
		}
	}
	check([]test{
		route("/healthz", 0, false), route("/health", 3, false), route("/openapi.json", 0, false), route("/defaults", 3, false),
		route("/network/check?policy=public-only&host=a&port=1", 0, false),
		route("/sandboxes", 2, false), route("/usage?prefix={name}", 4, true), route("/snapshots", 1, false), route("/snapshots/tree", 2, false), route("/snapshots/{id}", 2, false),
		route("/volumes", 5, true), // orphans of other tests make /volumes/orphans measure
		route("/sandboxes/{name}", 9, true), route("/sandboxes/{name}/network/check?host=a&port=1", 7, false),
		route("/sandboxes/{name}/logs?follow=0", 13, false), route("/sandboxes/{name}/logs?follow=0&tail=1", 13, false),
		{"Get and Logs", read, 5, false},
		// The connection to the guest is there from the first one on.
		route("/sandboxes/{name}/egress", 4, false), route("/sandboxes/{name}/processes", 4, false),
		route("/sandboxes/{name}/files/list?path=/etc", 3, false), route("/sandboxes/{name}/files?path=/etc/hostname", 3, false), route("/sandboxes/{name}/archive?path=/opt", 3, false),
	})
	if _, err := sb.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	check([]test{
		route("/sandboxes/{name}", 7, true), route("/sandboxes/{name}/logs", 13, false), {"Get and Logs of a stopped one", read, 5, false},
	})
	// Changes answer with what is set. A start connects to the guest by an exec.
	created, forked := harness.UniqueName(t), harness.UniqueName(t)
	for _, change := range [][3]string{
		{"POST", "/sandboxes", `{"stopTimeoutMs": 1000, "name": "` + created + `"}`}, {"POST", "/sandboxes/{name}/fork", `{"name": "` + forked + `"}`},
		{"DELETE", "/sandboxes/" + created + "?preserveVolume=false"}, {"DELETE", "/sandboxes/" + forked + "?preserveVolume=false"},
		{"POST", "/sandboxes/{name}/start"}, {"PATCH", "/sandboxes/{name}", `{"tags": {"k": "v"}}`}, {"POST", "/sandboxes/{name}/stop"}, {"PATCH", "/sandboxes/{name}", `{"tags": {"k": "w"}}`},
	} {
		measured := ""
		once := change[1] == "/sandboxes" || strings.HasSuffix(change[1], "/fork") || change[0] == "DELETE"
		for range 3 { // helpers of the client's in the background may come into it
			p.Arm(0, enginetest.None, nil)
			if err := send(change[0], change[1], change[2])(t.Context()); err != nil {
				t.Fatalf("%q: %v", change, err)
			}
			measured = strings.Join(p.Requests(), "\n\t")
			if !strings.Contains(measured, "/stats") && (once || !strings.Contains(measured, "agent-sandbox-helper")) {
				measured = ""
			}
			if once || measured == "" {
				break
			}
		}
		if measured != "" {
			t.Errorf("%q measures\n\t%s", change, measured)
		}
	}
}
