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

	"golang.org/x/sync/semaphore"

	"github.com/seed-1a2d6d8f/sandbox"
)

// heartbeat is the interval of comments on an idle stream. They keep proxies from closing it,
// and detect clients that have gone. Only tests change it.
var heartbeat = 15 * time.Second

// writeTimeout bounds the write of a log's events to a slow client.
const writeTimeout = 30 * time.Second

// maxQueued bounds the text of the lines that wait for a slow client, in bytes.
const maxQueued = 256 << 10

// LogsHandler serves the log of a sandbox (see [sandbox.Sandbox.Logs]) as Server-Sent
// Events, at the path of [sandbox.Status].LogsEndpoint: GET …/{name}/logs, by name or ID. It
// can be mounted below any prefix, or at a pattern with the wildcard {name}:
//
//	mux.Handle("GET /sandboxes/{name}/logs", sandboxhttp.LogsHandler(client))
//
// Each line is an event "stdout" or "stderr" with an id and the line as its data, in which
// bytes that are not UTF-8 are replaced. A client that reconnects with the id of its last
// event (Last-Event-ID), as browsers do by themselves, gets the lines after it. The end of
// the session is an event "end" with the reason as data; an error while reading the log is
// an event "failed" with the cause. Browsers reconnect after either: while the sandbox is
// stopped and there are no new lines, the response is 204, which makes them stop. An idle
// stream gets a comment every 15 s.
//
// Query parameters: tail=100 for the last lines only, follow=0 to end at the current end of
// the log, since=2006-01-02T15:04:05Z, and command=ID for the lines of one detached command,
// which are then those that tail counts.
// Errors are JSON: 404 "Sandbox not found" if there is no such sandbox, and 400 for a
// malformed query.
//
// Reading a log never resumes a sandbox. The caller closes the client. Hosts and origins are
// checked as those of [Handler], and [WithAuthorize] is asked for the action "readLogs".
func LogsHandler(client *sandbox.Client, opts ...Option) http.Handler {
	c := configured(opts)
	serve := serveLogs(client)
	return guard{c, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := nameOf(r)
		if name == "" {
			refuse(w, http.StatusNotFound, "Not found")
			return
		}
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			refuse(w, http.StatusMethodNotAllowed, "Method not allowed")
			return
		}
		err := c.check(r, Action{Name: "readLogs", Sandbox: name})
		if err == nil {
			err = c.checkQuery(r, logsQuery)
		}
		if err == nil {
			r.SetPathValue("name", name)
			err = serve(w, r)
		}
		if err != nil {
			fail(w, err)
		}
	})}
}

// logsQuery are the parameters of a log.
var logsQuery = []string{"tail", "follow", "since", "command"}

// serveLogs returns the route of the log of the sandbox {name}.
func serveLogs(client *sandbox.Client) func(http.ResponseWriter, *http.Request) error {
	return func(w http.ResponseWriter, r *http.Request) error {
		name := r.PathValue("name")
		options, after, err := parse(r)
		if err != nil {
			return err
		}
		sb, err := client.Get(r.Context(), name, sandbox.WithoutResume())
		if err != nil {
			return readable(err)
		}
		defer sb.Detach()
		st, err := sb.Summary(r.Context())
		if err != nil {
			return err
		}
		live := st.State == sandbox.StateRunning || st.State == sandbox.StatePaused
		s := newStream(w, options, after)
		if live || after.zero() {
			s.open()
		}
		if r.Method == http.MethodHead {
			return nil
		}
		s.serve(r.Context(), sb, options)
		return nil
	}
}

// nameOf returns the wildcard {name}, or else the path element before /logs.
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

// position is a position in one stream of a log: after the n-th line with a time, from 1. A
// line whose time is before that of the line ahead of it counts with the later time. Between
// the two streams times are not in order: the engine takes them before it merges the lines.
type position struct {
	time time.Time
	n    int
}

// has reports whether q is at or before p.
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

// disorder is far more than one stream lags behind the other in the engine, and than most
// lines take from their beginning to their end.
const disorder = 10 * time.Second

// place is a client's place in a log: its text is the id of an event.
type place struct{ stdout, stderr position }

func (p place) zero() bool { return p == place{} }

func (p *place) of(stream string) *position {
	if stream == sandbox.Stderr {
		return &p.stderr
	}
	return &p.stdout
}

// since returns the time to read from to reach p again, including lines that began before.
func (p place) since() time.Time {
	first := p.stdout.time
	if p.stderr.time.Before(first) {
		first = p.stderr.time
	}
	return first.Add(-disorder)
}

// placeAt is the place before the first line from t on, in both streams.
func placeAt(t time.Time) place { return place{position{time: t}, position{time: t}} }

// add advances p past a line, and returns the line's position.
func (p *place) add(l sandbox.LogLine) position {
	own := p.of(l.Stream)
	if l.Time.After(own.time) {
		*own = position{time: l.Time}
	}
	own.n++
	at := *own
	// The last line of a quiet stream may be far back: don't make since read from there.
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
			return o, after, invalid("tail=%q is not a number of lines", s)
		}
		if o.Tail = n; n == 0 {
			o.Tail = -1 // none
		}
	}
	if s := q.Get("follow"); s != "" {
		if o.Follow, err = strconv.ParseBool(s); err != nil {
			return o, after, invalid("follow=%q is neither 1 nor 0", s)
		}
	}
	if s := q.Get("since"); s != "" {
		if o.Since, err = time.Parse(time.RFC3339Nano, s); err != nil {
			return o, after, invalid("since=%q is not a time such as 2006-01-02T15:04:05Z", s)
		}
	}
	if id := q.Get("command"); id != "" {
		o.Command = &id
	}
	// An id in another format is from another server behind the same address: ignore it.
	if p, ok := parsePlace(r.Header.Get("Last-Event-ID")); ok {
		after = p
		o.Since, o.Tail = p.since(), 0
	}
	return o, after, nil
}

// stream is one response.
type stream struct {
	sender
	after place // the client has the lines up to here
	last  place // the lines up to here were read
	tail  bool  // the first line is still to come, and earlier ones are not wanted
}

func newStream(w http.ResponseWriter, o sandbox.LogOptions, after place) *stream {
	return &stream{sender: newSender(w, eventStream, writeTimeout), after: after, last: placeAt(o.Since), tail: o.Tail != 0}
}

// serve sends the log until it ends or the client disconnects.
func (s *stream) serve(ctx context.Context, sb *sandbox.Sandbox, o sandbox.LogOptions) {
	ctx, cancel := context.WithCancel(ctx)
	type item struct {
		line sandbox.LogLine
		err  error
	}
	lines := make(chan item, 64)
	queued := semaphore.NewWeighted(maxQueued)
	var reader sync.WaitGroup
	reader.Go(func() {
		defer close(lines)
		for line, err := range sb.Logs(ctx, o) {
			if queued.Acquire(ctx, weight(line)) != nil {
				return
			}
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
	defer s.close()
	for {
		var err error
		select {
		case <-ctx.Done():
			return
		case <-beat.C:
			s.beat()
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
			queued.Release(weight(i.line))
			if len(lines) == 0 || len(s.buf) > 64<<10 {
				err = s.flush()
			}
		}
		if err != nil {
			return
		}
	}
}

// weight is what a line counts of maxQueued.
func weight(l sandbox.LogLine) int64 { return min(int64(len(l.Text))+1, maxQueued) }

// line adds the event of a line, unless the client has it.
func (s *stream) line(l sandbox.LogLine) {
	if s.tail {
		s.last, s.tail = placeAt(l.Time), false
	}
	if at := s.last.add(l); s.after.of(l.Stream).has(at) {
		return
	}
	s.open()
	s.event(l.Stream, s.last.String(), l.Text)
}

// end sends the event of the session's end, with the reason.
func (s *stream) end(ctx context.Context, sb *sandbox.Sandbox) {
	if !s.opened {
		s.w.WriteHeader(http.StatusNoContent) // keeps a browser from reconnecting
		return
	}
	why := string(sandbox.StateRunning)
	if st, err := sb.Summary(ctx); errors.Is(err, sandbox.ErrNotFound) {
		why = "deleted"
	} else if err == nil && st.State == sandbox.StateStopped {
		why = st.Reason
	}
	s.event("end", "", why)
	s.flush()
}
