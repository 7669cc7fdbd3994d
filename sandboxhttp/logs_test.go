package sandboxhttp_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/sandboxhttp"
	"github.com/seed-1a2d6d8f/sandbox/sandboxtest"
)

// event is one Server-Sent Event, read as its specification says.
type event struct{ kind, id, data string }

// events reads a stream until it ends or n have come.
func events(t *testing.T, r io.Reader, n int) (all []event, comments int) {
	t.Helper()
	var e event
	data := []string{}
	for s := bufio.NewScanner(r); s.Scan(); {
		field, value, _ := strings.Cut(s.Text(), ":")
		value = strings.TrimPrefix(value, " ")
		switch {
		case s.Text() == "":
			if len(data) > 0 {
				e.data = strings.Join(data, "\n")
				if all = append(all, e); len(all) == n {
					return all, comments
				}
			}
			e, data = event{}, data[:0]
		case field == "":
			comments++
		case field == "event":
			e.kind = value
		case field == "id":
			e.id = value
		case field == "data":
			data = append(data, value)
		}
	}
	return all, comments
}

// serve serves the logs of the engine's sandboxes.
func serve(t *testing.T) *httptest.Server {
	t.Helper()
	c, err := sandbox.NewClient()
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /sandboxes/{name}/logs", sandboxhttp.LogsHandler(c))
	mux.Handle("/api/", http.StripPrefix("/api", sandboxhttp.LogsHandler(c)))
	s := httptest.NewServer(mux)
	t.Cleanup(func() { s.Close(); c.Close() })
	return s
}

func get(t *testing.T, url, last string) *http.Response {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if last != "" {
		req.Header.Set("Last-Event-ID", last)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	return resp
}

// C7, C7.2, X10: the last hundred lines as events of both streams, new ones after
// them, and a client that comes back gets the rest.
func TestLogsAreServerSentEvents(t *testing.T) {
	t.Parallel()
	sb := sandboxtest.New(t, sandbox.WithCommand("sh", "-c", `i=1; while [ $i -le 150 ]; do echo line $i; i=$((i+1)); done
		while [ ! -e /workspace/rest ]; do sleep 0.02; done; echo error >&2; printf 'a\rb\r\n'; while [ ! -e /workspace/go ]; do sleep 0.02; done; echo new; exec sleep 1000`))
	s := serve(t)
	st, err := sb.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// The engine copies the two streams by themselves: in the log one can overtake the other.
	for len(read(t, sb)) < 150 {
		time.Sleep(20 * time.Millisecond)
	}
	if err := sb.Command(t.Context(), "touch", "/workspace/rest").Run(); err != nil {
		t.Fatal(err)
	}
	for len(read(t, sb)) < 152 {
		time.Sleep(20 * time.Millisecond)
	}

	resp := get(t, s.URL+st.LogsEndpoint+"?tail=100", "")
	if resp.StatusCode != 200 || !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		t.Fatalf("%s, %v", resp.Status, resp.Header)
	}
	got, _ := events(t, resp.Body, 100)
	if len(got) != 100 || got[0] != (event{"stdout", got[0].id, "line 53"}) {
		t.Fatalf("%d events, first %+v; want line 53 of 152", len(got), got[0])
	}
	if !slices.ContainsFunc(got, func(e event) bool { return e.kind == "stderr" && e.data == "error" }) ||
		!slices.ContainsFunc(got, func(e event) bool { return e.kind == "stdout" && e.data == "a\nb" }) {
		t.Errorf("the last events are %+v", got[96:])
	}
	if err := sb.Command(t.Context(), "touch", "/workspace/go").Run(); err != nil {
		t.Fatal(err)
	}
	if more, _ := events(t, resp.Body, 1); len(more) != 1 || more[0].data != "new" {
		t.Errorf("after the tail came %+v, want new", more)
	}

	// By name, below a prefix, from where it was.
	resp = get(t, s.URL+"/api/"+sb.Name()+"/logs?follow=0", got[90].id)
	rest, _ := events(t, resp.Body, 0)
	if want := 9 + 1 + 1; len(rest) != want || rest[0] != got[91] || rest[want-2].data != "new" || rest[want-1].kind != "end" {
		t.Errorf("after event 91 came %+v", rest)
	}

	if _, err := sb.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	// Nothing new, and nothing to come.
	if resp := get(t, s.URL+st.LogsEndpoint, rest[len(rest)-2].id); resp.StatusCode != http.StatusNoContent {
		t.Errorf("back at a stopped sandbox: %s, want 204", resp.Status)
	}
	resp = get(t, s.URL+st.LogsEndpoint+"?tail=1", "")
	if end, _ := events(t, resp.Body, 0); len(end) != 2 || end[0].data != "new" || end[1] != (event{"end", "", "stopped"}) {
		t.Errorf("the log of a stopped sandbox: %+v", end)
	}
}

func read(t *testing.T, sb *sandbox.Sandbox) (lines []sandbox.LogLine) {
	t.Helper()
	for l, err := range sb.Logs(t.Context(), sandbox.LogOptions{}) {
		if err != nil {
			t.Fatal(err)
		}
		lines = append(lines, l)
	}
	return lines
}

// C6.2: what can't be served is said in the status and in JSON.
func TestLogsRefuse(t *testing.T) {
	t.Parallel()
	s := serve(t)
	for path, want := range map[string]struct {
		code int
		text string
	}{
		"/sandboxes/no-such-sandbox/logs":            {404, "Sandbox not found"},
		"/sandboxes/UPPER/logs":                      {400, "Invalid argument"},
		"/sandboxes/no-such-sandbox/logs?tail=x":     {400, "tail"},
		"/sandboxes/no-such-sandbox/logs?tail=-1":    {400, "tail"},
		"/sandboxes/no-such-sandbox/logs?follow=yes": {400, "follow"},
		"/sandboxes/no-such-sandbox/logs?since=now":  {400, "since"},
		"/api/x/other": {404, "Not found"},
	} {
		resp := get(t, s.URL+path, "")
		body, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != want.code || !strings.Contains(string(body), want.text) || resp.Header.Get("Content-Type") != "application/json" {
			t.Errorf("GET %s: %s, %s; want %d with %q", path, resp.Status, body, want.code, want.text)
		}
	}
	resp, err := http.Post(s.URL+"/api/x/logs", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	if resp.Body.Close(); resp.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("POST: %s", resp.Status)
	}
}

// C7: the field's own tool shows each line as it is written.
func TestLogsWithCurl(t *testing.T) {
	t.Parallel()
	curl, err := exec.LookPath("curl")
	if err != nil {
		t.Fatal("there is no curl; ci/clients installs it")
	}
	sb := sandboxtest.New(t, sandbox.WithCommand("sh", "-c", "i=0; while :; do echo tick $i; i=$((i+1)); sleep 0.1; done"))
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, curl, "-sN", fmt.Sprintf("%s/sandboxes/%s/logs", serve(t).URL, sb.Name()))
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	got, _ := events(t, out, 5)
	cmd.Process.Kill()
	cmd.Wait()
	for i, e := range got {
		if e.data != fmt.Sprint("tick ", i) || e.kind != "stdout" || e.id == "" {
			t.Errorf("event %d is %+v", i, e)
		}
	}
	if len(got) != 5 {
		t.Errorf("curl showed %d events, want 5", len(got))
	}
}
