// Package sandboxhttp serves sandboxes over HTTP, for platforms that are built on
// package sandbox. It does not authenticate anybody: put that in front of it.
package sandboxhttp

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
)

// heartbeat is how often a silent stream shows that it lives, so that nobody between
// the two ends closes it, and a client that has gone is noticed.
const heartbeat = 15 * time.Second

// writeTimeout is how long a client may keep one event waiting.
const writeTimeout = 30 * time.Second

// LogsHandler serves the log of a sandbox (see [sandbox.Sandbox.Logs]) as Server-Sent
// Events, at the path that [sandbox.Status].LogsEndpoint names: GET …/{name}/logs, by
// name or ID. It can be mounted below any prefix, or at a pattern with the wildcard
// {name}:
//
//	mux.Handle("GET /sandboxes/{name}/logs", sandboxhttp.LogsHandler(client))
//
// Each line is an event "stdout" or "stderr" with the line as its data, where bytes
// that are not UTF-8 are replaced, and an id. A client that comes back with the id of
// the last event it had, as browsers do by themselves (Last-Event-ID), gets what comes
// after it. When the session ends there is an event "end" with the reason as data, and
// when the log can't be read on an event "failed" with the cause. A browser would then
// connect again; it is told to stop (204) while the sandbox is stopped and there is
// nothing new for it. Silence is broken by a comment every 15 s.
//
// The query can have tail=100, for the last lines only, follow=0 to end where the log
// does now, since=2006-01-02T15:04:05Z, and command=ID for the lines of one detached
// command alone. A sandbox that does not exist is 404,
// "Sandbox not found", as JSON; a query that makes no sense is 400.
//
// Reading a log never resumes a sandbox. The client is the caller's to close.
func LogsHandler(client *sandbox.Client) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			fail(w, http.StatusMethodNotAllowed, "Method not allowed")
			return
		}
		name := nameOf(r)
		if name == "" {
			fail(w, http.StatusNotFound, "Not found")
			return
		}
		options, after, err := parse(r)
		if err != nil {
			fail(w, http.StatusBadRequest, err.Error())
			return
		}
		sb, err := client.Get(r.Context(), name, sandbox.WithoutResume())
		if err != nil {
			refuse(w, err)
			return
		}
		defer sb.Detach()
		st, err := client.Inspect(r.Context(), name)
		if err != nil {
			refuse(w, err)
			return
		}
		live := st.State == sandbox.StateRunning || st.State == sandbox.StatePaused
		s := newStream(w, options, after)
		s.command = r.URL.Query().Get("command")
		if live || after.zero() {
			s.open()
		}
		if r.Method == http.MethodHead {
			return
		}
		s.serve(r.Context(), sb, options)
	})
}

// nameOf is the wildcard {name}, else what stands before /logs.
func nameOf(r *http.Request) string {
	if name := r.PathValue("name"); name != "" {
		return name
	}
	rest, ok := strings.CutSuffix(r.URL.Path, "/logs")
	if !ok {
		return ""
	}
	return rest[strings.LastIndexByte(rest, '/')+1:]
}

// position is a place in one stream of a log: after the n-th line of a time, from 1.
// A line that began before the one ahead of it counts as of that one's time. Between the
// two streams times jump back and forth: the engine takes them before it puts the lines
// in a row.
type position struct {
	time time.Time
	n    int
}

func (p position) has(q position) bool {
	return q.time.Before(p.time) || q.time.Equal(p.time) && q.n <= p.n
}

func (p position) String() string { return fmt.Sprintf("%d.%d", p.time.UnixNano(), p.n) }

func parsePosition(s string) (p position, ok bool) {
	nanos, n, found := strings.Cut(s, ".")
	at, err := strconv.ParseInt(nanos, 10, 64)
	if err != nil || !found {
		return p, false
	}
	if p.n, err = strconv.Atoi(n); err != nil || p.n < 0 {
		return p, false
	}
	p.time = time.Unix(0, at)
	return p, true
}

// disorder is far more than the engine's copying of one stream lags behind the other's,
// and than most lines take from their beginning to their end.
const disorder = 10 * time.Second

// place is where a client is in a log: the id of an event.
type place struct{ stdout, stderr position }

func (p place) zero() bool { return p == place{} }

func (p *place) of(stream string) *position {
	if stream == sandbox.Stderr {
		return &p.stderr
	}
	return &p.stdout
}

// since is where to read from to come to p again, with lines that began before it.
func (p place) since() time.Time {
	first := p.stdout.time
	if p.stderr.time.Before(first) {
		first = p.stderr.time
	}
	return first.Add(-disorder)
}

// from is the place from which on every line comes, of either stream.
func from(t time.Time) place { return place{position{time: t}, position{time: t}} }

// add takes a line that was read, and returns its position.
func (p *place) add(l sandbox.LogLine) position {
	own := p.of(l.Stream)
	if l.Time.After(own.time) {
		*own = position{time: l.Time}
	}
	own.n++
	at := *own
	// What a stream that says little has said last would be far back to look for.
	for _, other := range []*position{&p.stdout, &p.stderr} {
		if past := l.Time.Add(-disorder); other.time.Before(past) {
			*other = position{time: past}
		}
	}
	return at
}

func (p place) String() string { return p.stdout.String() + "-" + p.stderr.String() }

func parsePlace(s string) (p place, ok bool) {
	stdout, stderr, found := strings.Cut(s, "-")
	var outOK, errOK bool
	p.stdout, outOK = parsePosition(stdout)
	p.stderr, errOK = parsePosition(stderr)
	return p, found && outOK && errOK
}

func parse(r *http.Request) (o sandbox.LogOptions, after place, err error) {
	o.Follow = true
	q := r.URL.Query()
	if s := q.Get("tail"); s != "" && s != "all" {
		n, err := strconv.Atoi(s)
		if err != nil || n < 0 {
			return o, after, fmt.Errorf("tail=%q is not a number of lines", s)
		}
		if o.Tail = n; n == 0 {
			o.Tail = -1 // none
		}
	}
	if s := q.Get("follow"); s != "" {
		if o.Follow, err = strconv.ParseBool(s); err != nil {
			return o, after, fmt.Errorf("follow=%q is neither 1 nor 0", s)
		}
	}
	if s := q.Get("since"); s != "" {
		if o.Since, err = time.Parse(time.RFC3339Nano, s); err != nil {
			return o, after, fmt.Errorf("since=%q is not a time such as 2006-01-02T15:04:05Z", s)
		}
	}
	// An id that is not ours comes from another server behind the same address: then
	// the client begins again.
	if p, ok := parsePlace(r.Header.Get("Last-Event-ID")); ok {
		after = p
		o.Since, o.Tail = p.since(), 0
	}
	return o, after, nil
}

// stream is one response.
type stream struct {
	w       http.ResponseWriter
	out     *http.ResponseController
	after   place  // what the client has already
	command string // whose lines alone it wants
	last    place  // what was read
	tail    bool   // nothing was yet, and what is earlier than the first line is not wanted
	opened  bool
	buf     []byte
}

func newStream(w http.ResponseWriter, o sandbox.LogOptions, after place) *stream {
	return &stream{w: w, out: http.NewResponseController(w), after: after, last: from(o.Since), tail: o.Tail != 0}
}

func (s *stream) open() {
	if s.opened {
		return
	}
	s.opened = true
	h := s.w.Header()
	h.Set("Content-Type", "text/event-stream; charset=utf-8")
	h.Set("Cache-Control", "no-cache, no-transform")
	h.Set("X-Accel-Buffering", "no") // nginx would collect what is to be seen at once
	s.w.WriteHeader(http.StatusOK)
	s.out.Flush()
}

// serve sends the log until it ends or the client has gone.
func (s *stream) serve(ctx context.Context, sb *sandbox.Sandbox, o sandbox.LogOptions) {
	ctx, cancel := context.WithCancel(ctx)
	type item struct {
		line sandbox.LogLine
		err  error
	}
	lines := make(chan item, 64)
	var reader sync.WaitGroup
	reader.Go(func() {
		defer close(lines)
		for line, err := range sb.Logs(ctx, o) {
			select {
			case lines <- item{line, err}:
			case <-ctx.Done():
				return
			}
		}
	})
	defer reader.Wait()
	defer cancel()
	beat := time.NewTicker(heartbeat)
	defer beat.Stop()
	// The connection may serve another request after this one.
	defer s.out.SetWriteDeadline(time.Time{})
	for {
		var err error
		select {
		case <-ctx.Done():
			return
		case <-beat.C:
			s.buf = append(s.buf[:0], ":\n\n"...)
			err = s.flush()
		case i, more := <-lines:
			switch {
			case !more:
				s.end(ctx, sb)
				return
			case i.err != nil:
				if ctx.Err() == nil {
					s.open()
					s.event("failed", "", i.err.Error())
					s.flush()
				}
				return
			}
			s.line(i.line)
			if len(lines) == 0 || len(s.buf) > 64<<10 {
				err = s.flush()
			}
		}
		if err != nil {
			return
		}
	}
}

// line takes one line, unless the client has it.
func (s *stream) line(l sandbox.LogLine) {
	if s.tail {
		s.last, s.tail = from(l.Time), false
	}
	if at := s.last.add(l); s.after.of(l.Stream).has(at) {
		return
	}
	if s.command != "" && l.Command != s.command {
		return
	}
	s.open()
	s.event(l.Stream, s.last.String(), l.Text)
}

// end tells that there is no more to come, and why.
func (s *stream) end(ctx context.Context, sb *sandbox.Sandbox) {
	if !s.opened {
		s.w.WriteHeader(http.StatusNoContent) // tells a browser not to come back
		return
	}
	why := string(sandbox.StateRunning)
	if st, err := sb.Status(ctx); errors.Is(err, sandbox.ErrNotFound) {
		why = "deleted"
	} else if err == nil && st.State == sandbox.StateStopped {
		why = st.Reason
	}
	s.event("end", "", why)
	s.flush()
}

func (s *stream) event(kind, id, data string) {
	s.buf = append(s.buf, "event: "...)
	s.buf = append(s.buf, kind...)
	if id != "" {
		s.buf = append(s.buf, "\nid: "...)
		s.buf = append(s.buf, id...)
	}
	data = strings.ToValidUTF8(data, "\uFFFD")
	// A carriage return ends a line of this protocol, and one at the very end is part
	// of the line's end.
	data = strings.TrimSuffix(data, "\r")
	for part := range strings.SplitSeq(strings.ReplaceAll(data, "\n", "\r"), "\r") {
		s.buf = append(s.buf, "\ndata: "...)
		s.buf = append(s.buf, part...)
	}
	s.buf = append(s.buf, "\n\n"...)
}

func (s *stream) flush() error {
	if len(s.buf) == 0 {
		return nil
	}
	s.open()
	// Not every ResponseWriter has deadlines; without one the connection's own decide.
	_ = s.out.SetWriteDeadline(time.Now().Add(writeTimeout))
	_, err := s.w.Write(s.buf)
	s.buf = s.buf[:0]
	return errors.Join(err, s.out.Flush())
}
