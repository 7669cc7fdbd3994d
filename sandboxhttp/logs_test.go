package sandboxhttp_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
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
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
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

// The last hundred lines as events of both streams, new ones after
// them, and a client that comes back gets the rest.
func TestLogsAreServerSentEvents(t *testing.T) {
	enginetest.Need(t)
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
	// The field's own tool shows each line as it is written.
	curl := exec.CommandContext(t.Context(), "curl", "-sN", s.URL+st.LogsEndpoint+"?tail=1")
	out, err := curl.StdoutPipe()
	if err == nil {
		err = curl.Start()
	}
	if err != nil {
		t.Fatalf("curl, which ci/clients installs: %v", err)
	}
	if last, _ := events(t, out, 1); len(last) != 1 {
		t.Errorf("curl shows %+v, want one line", last)
	}
	if err := sb.Command(t.Context(), "touch", "/workspace/go").Run(); err != nil {
		t.Fatal(err)
	}
	if more, _ := events(t, out, 1); len(more) != 1 || more[0].kind != "stdout" || more[0].id == "" || more[0].data != "new" {
		t.Errorf("curl then shows %+v, want new", more)
	}
	curl.Process.Kill()
	curl.Wait()
	if more, _ := events(t, resp.Body, 1); len(more) != 1 || more[0].data != "new" {
		t.Errorf("after the tail came %+v, want new", more)
	}

	// By name, below a prefix, from where it was.
	resp = get(t, s.URL+"/api/"+sb.Name()+"/logs?follow=0", got[90].id)
	rest, _ := events(t, resp.Body, 0)
	if want := 9 + 1 + 1; len(rest) != want || rest[0].data != got[91].data || rest[want-2].data != "new" || rest[want-1].kind != "end" {
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

// What can't be served is said in the status and in JSON.
func TestLogsRefuse(t *testing.T) {
	enginetest.Need(t)
	t.Parallel()
	s := serve(t)
	for path, want := range map[string]struct {
		code int
		text string
	}{
		"/sandboxes/no-such-sandbox/logs":            {404, "Sandbox not found"},
		"/sandboxes/UPPER/logs":                      {404, "Sandbox not found"},
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

// page reads a log as a program in a browser does, and tells what it saw once the browser
// has given up to ask for more.
const page = `<script>
const seen = [], source = new EventSource("/sandboxes/%s/logs");
let opened = 0;
source.onopen = () => opened++;
for (const kind of ["stdout", "stderr", "end", "failed"])
	source.addEventListener(kind, e => {
		if (seen.push({Kind: kind, ID: e.lastEventId, Data: e.data}) == 1) fetch("/first", {method: "POST"});
	});
source.onerror = () => {
	if (source.readyState == EventSource.CLOSED)
		fetch("/seen", {method: "POST", body: JSON.stringify({Opened: opened, Seen: seen})});
};
</script>`

// cut is a response whose connection breaks once it has sent some events and one has arrived: those on
// their way are lost.
type cut struct {
	http.ResponseWriter
	after   int
	arrived <-chan struct{}
	gone    <-chan struct{} // closed when the browser does not wait any more
}

func (c *cut) Unwrap() http.ResponseWriter { return c.ResponseWriter }

func (c *cut) Write(b []byte) (int, error) {
	if c.after <= 0 {
		select {
		case <-c.arrived:
		case <-c.gone:
		}
		panic(http.ErrAbortHandler)
	}
	c.after -= bytes.Count(b, []byte("event: "))
	return c.ResponseWriter.Write(b)
}

// A browser's EventSource has every line once, over a connection that breaks,
// and asks no more when the sandbox is stopped.
func TestLogsInABrowser(t *testing.T) {
	enginetest.Need(t)
	t.Parallel()
	sb := sandboxtest.New(t, sandbox.WithCommand("sh", "-c", "i=0; while [ ! -e /workspace/enough ]; do echo $i; echo $i >&2; i=$((i+1)); sleep 0.02; done; touch /workspace/said; exec sleep 1000"))
	c, err := sandbox.NewClient()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	type report struct {
		Opened int
		Seen   []struct{ Kind, ID, Data string }
	}
	reports := make(chan report, 1)
	var asked atomic.Int32
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprintf(w, page, sb.Name())
	})
	logs := sandboxhttp.LogsHandler(c)
	back, first := make(chan struct{}), make(chan struct{})
	mux.HandleFunc("POST /first", func(http.ResponseWriter, *http.Request) { close(first) })
	mux.HandleFunc("GET /sandboxes/{name}/logs", func(w http.ResponseWriter, r *http.Request) {
		switch asked.Add(1) {
		case 1:
			w = &cut{w, 30, first, r.Context().Done()}
		case 2:
			if r.Header.Get("Last-Event-ID") == "" {
				t.Error("it comes back without Last-Event-ID")
			}
			close(back)
		}
		logs.ServeHTTP(w, r)
	})
	mux.HandleFunc("POST /seen", func(w http.ResponseWriter, r *http.Request) {
		var got report
		if err := json.NewDecoder(r.Body).Decode(&got); err != nil {
			t.Errorf("the page says: %v", err)
		}
		reports <- got
	})
	s := httptest.NewServer(mux)
	defer s.Close()

	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	browse(t, s.URL)
	select {
	case <-back:
	case <-ctx.Done():
		t.Fatalf("the browser asked %d times for the log", asked.Load())
	}
	if err := sb.Command(ctx, "touch", "/workspace/enough").Run(); err != nil {
		t.Fatal(err)
	}
	for sb.Command(ctx, "test", "-e", "/workspace/said").Run() != nil && ctx.Err() == nil {
		time.Sleep(20 * time.Millisecond)
	}
	if _, err := sb.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	var got report
	select {
	case got = <-reports:
	case <-ctx.Done():
		t.Fatalf("the browser has not given up, after %d requests", asked.Load())
	}
	// An engine may end a log before its last lines are out: another request has those.
	if got.Opened < 2 || int(asked.Load()) != got.Opened+1 {
		t.Errorf("it opened %d streams with %d requests, want at least 2 and the one that is told to stop", got.Opened, asked.Load())
	}
	next := map[string]int{}
	for i, e := range got.Seen {
		switch {
		case e.Kind == "end" && e.Data == "stopped" && (i == len(got.Seen)-1 || got.Opened > 2):
		case e.Data != strconv.Itoa(next[e.Kind]) || e.ID == "":
			t.Fatalf("event %d is %+v, want line %d of its stream", i, e, next[e.Kind])
		}
		next[e.Kind]++
	}
	want := map[string]int{"end": got.Opened - 1} // but for the one whose connection broke
	for _, l := range read(t, sb) {
		want[l.Stream]++
	}
	if !maps.Equal(next, want) || want["stderr"] < 30 {
		t.Errorf("it saw %v of %v", next, want)
	}
}

// browse opens a page in a tab, which ends with the test.
func browse(t *testing.T, url string) {
	t.Helper()
	browser, err := sharedBrowser()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := chromedp.NewContext(browser, chromedp.WithNewBrowserContext())
	t.Cleanup(cancel)
	if err := chromedp.Do(ctx, chromedp.Navigate(url)); err != nil {
		t.Fatal(err)
	}
}
