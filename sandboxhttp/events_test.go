package sandboxhttp_test

import (
	"bufio"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
)

// heads asks for the heads of paths on one connection: the server waits for the end of an answer before it
// takes the next request.
func (a api) heads(paths ...string) {
	a.t.Helper()
	conn, err := net.Dial("tcp", strings.TrimSuffix(strings.TrimPrefix(a.url, "http://"), "/v1"))
	if err != nil {
		a.t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(5 * time.Minute))
	r := bufio.NewReader(conn)
	for _, path := range paths {
		io.WriteString(conn, "HEAD /v1"+path+" HTTP/1.1\r\nHost: localhost\r\n\r\n")
		resp, err := http.ReadResponse(r, &http.Request{Method: http.MethodHead})
		if err != nil || resp.StatusCode != 200 {
			a.t.Fatalf("HEAD %s: %v, %v", path, resp, err)
		}
	}
}

// A dashboard sees what others do.
func TestEventsOverHTTP(t *testing.T) {
	enginetest.Need(t)
	t.Parallel()
	a := newAPI(t)
	a.call("GET", "/events?tag=x", "", 400, nil)
	a.call("GET", "/events?status=running", "", 400, nil)
	a.heads("/events", "/healthz")
	resp := a.send("GET", "/events?tag=events=one", nil)
	defer resp.Body.Close()
	if got := resp.Header.Get("Content-Type"); !strings.HasPrefix(got, "text/event-stream") {
		t.Fatalf("GET /events: %s %q", resp.Status, got)
	}
	first, _ := events(t, resp.Body, 1)
	var sb struct{ ID string }
	a.call("POST", "/sandboxes", `{"stopTimeoutMs": 1000, "tags": {"events": "one"}}`, 201, &sb)
	a.remove(sb.ID)
	a.call("DELETE", "/sandboxes/"+sb.ID+"?preserveVolume=false", "", 200, nil)
	next, _ := events(t, resp.Body, 4)
	for i, want := range []string{"sync", "created", "started", "stopped", "deleted"} {
		got := append(first, next...)
		var e struct{ Event, ID string }
		if len(got) <= i || got[i].kind != want || json.Unmarshal([]byte(got[i].data), &e) != nil || e.Event != want || (i > 0) != (e.ID == sb.ID) {
			t.Fatalf("events %+v, want %s as number %d", got, want, i)
		}
		openAPI(t).schema(t, "components", "schemas", "Event")
	}
}
