package sandboxhttp_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
)

// A dashboard sees what others do.
func TestEventsOverHTTP(t *testing.T) {
	enginetest.Need(t)
	t.Parallel()
	a := newAPI(t)
	a.call("GET", "/events?tag=x", "", 400, nil)
	a.call("GET", "/events?status=running", "", 400, nil)
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
