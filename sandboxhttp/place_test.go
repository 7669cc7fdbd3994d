package sandboxhttp

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
)

// sent is what of a log a client gets that comes with an id, each event with its own.
func sent(t *testing.T, log []sandbox.LogLine, id, query string) (lines, ids []string) {
	t.Helper()
	r := httptest.NewRequest(http.MethodGet, "/any/logs?"+query, nil)
	r.Header.Set("Last-Event-ID", id)
	o, after, err := parse(r)
	if err != nil {
		t.Fatal(err)
	}
	if o.Tail > 0 {
		log = log[max(0, len(log)-o.Tail):]
	}
	w := httptest.NewRecorder()
	s := newStream(w, o, after)
	for _, l := range log {
		if !l.Time.Before(o.Since) {
			s.line(l)
		}
	}
	if err := s.flush(); err != nil {
		t.Fatal(err)
	}
	for e := range strings.SplitSeq(strings.TrimSuffix(w.Body.String(), "\n\n"), "\n\n") {
		if e == "" {
			continue
		}
		var kind, id, data string
		if _, err := fmt.Sscanf(e, "event: %s\nid: %s\ndata: %s", &kind, &id, &data); err != nil {
			t.Fatalf("%q: %v", e, err)
		}
		lines, ids = append(lines, data), append(ids, id)
	}
	return lines, ids
}

// The engine takes a line's time before it puts it in a row with the other stream's, and
// a line that takes long has the time of its beginning: a client that comes back after
// any event of any connection has every line once all the same.
func TestTimesThatGoBackAreNoPlaceToLoseOrRepeatLines(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	var log []sandbox.LogLine
	line := func(stream string, at time.Duration) {
		log = append(log, sandbox.LogLine{Stream: stream, Time: start.Add(at), Text: fmt.Sprint(len(log))})
	}
	const out, err = sandbox.Stdout, sandbox.Stderr
	line(out, 1)
	line(out, 5)
	line(err, 3) // earlier than one before
	line(err, 4)
	line(out, 5) // at the same time
	line(out, 5)
	line(err, 5)
	line(out, 2) // that took long
	line(out, 9)
	line(out, 7*time.Second)
	line(out, time.Hour) // the other stream has nothing for long
	line(out, time.Hour+2)
	line(err, time.Hour+1)
	line(err, time.Hour+3)
	for _, query := range []string{"", "tail=100", "since=2026-01-02T03:04:00Z"} {
		all, ids := sent(t, log, "", query)
		if len(all) != len(log) {
			t.Fatalf("%q: %v of %d lines", query, all, len(log))
		}
		for i, id := range ids {
			rest, ids := sent(t, log, id, query)
			if !slices.Equal(rest, all[i+1:]) {
				t.Errorf("%q: after %s, line %d, came %v", query, id, i, rest)
				continue
			}
			for j, id := range ids {
				if rest, _ := sent(t, log, id, query); !slices.Equal(rest, all[i+j+2:]) {
					t.Errorf("%q: after %s, line %d, by way of %d, came %v", query, id, i+1+j, i, rest)
				}
			}
		}
	}
}

func TestATailDoesNotGrowBackwards(t *testing.T) {
	t.Parallel()
	var log []sandbox.LogLine
	for i := range 6 {
		log = append(log, sandbox.LogLine{
			Stream: []string{sandbox.Stderr, sandbox.Stdout}[i/3], Time: time.Unix(int64(i+1), 0), Text: fmt.Sprint(i),
		})
	}
	lines, ids := sent(t, log, "", "tail=2")
	if len(lines) != 2 {
		t.Fatalf("tail=2: %v", lines)
	}
	if rest, _ := sent(t, log, ids[0], "tail=2"); !slices.Equal(rest, []string{"5"}) {
		t.Errorf("after the first of the last two came %v", rest)
	}
}
