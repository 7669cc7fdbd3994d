package sandboxhttp

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"time"
)

// The content types of streams of events.
const (
	eventStream = "text/event-stream; charset=utf-8"
	jsonLines   = "application/x-ndjson"
)

// A sender sends a response in pieces, and waits for a client that reads slowly: only what is
// not flushed is in memory.
type sender struct {
	w       http.ResponseWriter
	out     *http.ResponseController
	kind    string        // the content type
	timeout time.Duration // of one flush
	opened  bool
	buf     []byte
}

func newSender(w http.ResponseWriter, kind string, timeout time.Duration) sender {
	return sender{w: w, out: http.NewResponseController(w), kind: kind, timeout: timeout}
}

// open sends the header.
func (s *sender) open() {
	if s.opened {
		return
	}
	s.opened = true
	h := s.w.Header()
	h.Set("Content-Type", s.kind)
	h.Set("Cache-Control", "no-cache, no-transform")
	h.Set("X-Accel-Buffering", "no") // keeps nginx from buffering events
	protect(h)
	s.w.WriteHeader(http.StatusOK)
	s.out.Flush()
}

// event adds a Server-Sent Event.
func (s *sender) event(kind, id, data string) {
	s.buf = append(s.buf, "event: "...)
	s.buf = append(s.buf, kind...)
	if id != "" {
		s.buf = append(s.buf, "\nid: "...)
		s.buf = append(s.buf, id...)
	}
	data = strings.ToValidUTF8(data, "\uFFFD")
	// A carriage return ends a line in this protocol. One at the very end belongs to the line's
	// own end, "\r\n".
	data = strings.TrimSuffix(data, "\r")
	for part := range strings.SplitSeq(strings.ReplaceAll(data, "\n", "\r"), "\r") {
		s.buf = append(s.buf, "\ndata: "...)
		s.buf = append(s.buf, part...)
	}
	s.buf = append(s.buf, "\n\n"...)
}

// object adds an event whose data is JSON: a Server-Sent Event, or a line.
func (s *sender) object(kind string, v any) {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err) // it is one of this package
	}
	if s.kind == eventStream {
		s.event(kind, "", string(data))
		return
	}
	s.buf = append(append(s.buf, data...), '\n')
}

// beat adds a comment, or a line that says nothing, which keeps proxies from closing an idle stream.
func (s *sender) beat() {
	if s.kind == eventStream {
		s.buf = append(s.buf, ":\n\n"...)
	} else {
		s.object("idle", execEvent{Event: "idle"})
	}
}

func (s *sender) flush() error {
	if len(s.buf) == 0 {
		return nil
	}
	s.open()
	// Not every ResponseWriter has deadlines; the server's own remain.
	_ = s.out.SetWriteDeadline(time.Now().Add(s.timeout))
	_, err := s.w.Write(s.buf)
	if s.buf = s.buf[:0]; cap(s.buf) > 1<<20 {
		s.buf = nil // of one long line
	}
	return errors.Join(err, s.out.Flush())
}

// close resets the deadline for the next request on the connection.
func (s *sender) close() { _ = s.out.SetWriteDeadline(time.Time{}) }
