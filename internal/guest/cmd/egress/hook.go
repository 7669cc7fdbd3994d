//go:build linux

package egress

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"

	"golang.org/x/net/http/httpguts"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// maxDeciders bounds the clients that decide on requests.
const maxDeciders = 64

// hooks has clients outside decide on requests. The zero value has none, and lets none through.
type hooks struct {
	mu       sync.Mutex
	deciders []*decider // oldest first
	slots    chan struct{}
}

// HookConn is a connection to a client that decides on requests.
type HookConn interface {
	io.Writer
	SetWriteDeadline(time.Time) error
	Close() error
}

// decider is one client.
type decider struct {
	hook *wire.Hook
	conn HookConn
	gone chan struct{} // closed when it is

	mu      sync.Mutex
	last    uint64
	waiting map[uint64]chan *wire.HookReply
}

// hookError is why a request is not sent, and the status of the answer.
type hookError struct {
	status int
	text   string
}

func (e *hookError) Error() string { return e.text }

var (
	errUndecided = &hookError{http.StatusServiceUnavailable, "the program that decides on requests to this name does not run, or does not answer"}
	errDeclined  = &hookError{http.StatusBadGateway, "the program that decides on requests to this name has refused this one"}
	errBody      = &hookError{http.StatusBadGateway, "the request's body could not be read"}
)

// Hook has the client of conn decide on requests until it is gone. r reads from conn.
func (e *Enforcer) Hook(conn HookConn, r *bufio.Reader, h *wire.Hook) {
	d := &decider{hook: h, conn: conn, gone: make(chan struct{}), waiting: make(map[uint64]chan *wire.HookReply)}
	if !e.hooks.add(d) {
		return
	}
	defer e.hooks.remove(d)
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, wire.MaxFriendLine)
	for lines.Scan() {
		reply := new(wire.HookReply)
		if json.Unmarshal(lines.Bytes(), reply) != nil {
			return
		}
		d.answer(reply)
	}
}

func (h *hooks) add(d *decider) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.deciders) >= maxDeciders {
		return false
	}
	h.deciders = append(h.deciders, d)
	return true
}

func (h *hooks) remove(d *decider) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.deciders = slices.DeleteFunc(h.deciders, func(other *decider) bool { return other == d })
	close(d.gone)
}

// find returns the latest client for a name that is not one of tried.
func (h *hooks) find(version int64, pattern string, tried []*decider) *decider {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, d := range slices.Backward(h.deciders) {
		if d.hook.Version == version && slices.Contains(d.hook.Patterns, pattern) && !slices.Contains(tried, d) {
			return d
		}
	}
	return nil
}

// slot waits for one of the requests that are decided at a time.
func (h *hooks) slot(ctx context.Context) (release func(), err error) {
	h.mu.Lock()
	if h.slots == nil {
		h.slots = make(chan struct{}, wire.MaxHooks)
	}
	slots := h.slots
	h.mu.Unlock()
	select {
	case slots <- struct{}{}:
		return func() { <-slots }, nil
	case <-ctx.Done():
		return nil, errUndecided
	}
}

// decide has a client decide on a request, and returns it as it is to be sent. A client that goes
// away makes room for another one that decides on the same names.
func (h *hooks) decide(r *http.Request, version int64, pattern string) (*http.Request, error) {
	ctx, cancel := context.WithTimeout(r.Context(), wire.HookTime)
	defer cancel()
	if h.find(version, pattern, nil) == nil {
		return r, errUndecided
	}
	release, err := h.slot(ctx)
	if err != nil {
		return r, err
	}
	defer release()
	out := r.Clone(r.Context())
	out.Trailer = r.Trailer // which has its values once the body is read
	body, more, err := takeBody(ctx, out)
	if err != nil {
		return r, err
	}
	to := *r.URL
	to.Host = r.Host // without the port that is usual
	header := r.Header.Clone()
	if header.Get("User-Agent") == "" {
		delete(header, "User-Agent") // an empty one is there so that package http adds none, and is not sent
	}
	req := wire.HookRequest{Pattern: pattern, Method: r.Method, URL: to.String(), Host: r.Host, Header: header, Body: body, More: more}
	var tried []*decider
	for {
		d := h.find(version, pattern, tried)
		if d == nil {
			return r, errUndecided
		}
		reply, err := d.ask(ctx, req)
		switch {
		case errors.Is(err, io.EOF):
			tried = append(tried, d)
			continue
		case err != nil:
			return r, err
		case reply.Late:
			return r, errUndecided
		case reply.Failed || !setHeaders(out.Header, reply.Header):
			return r, errDeclined
		}
		return out, nil
	}
}

// takeBody returns the body of a request, which keeps it, and whether it is longer than a client
// gets.
func takeBody(ctx context.Context, r *http.Request) (body []byte, more bool, err error) {
	if r.Body == nil || r.Body == http.NoBody {
		return nil, false, nil
	}
	read := make(chan []byte, 1)
	go func() { // it ends with the handler of the request
		defer close(read)
		if b, err := io.ReadAll(io.LimitReader(r.Body, wire.MaxHookBody+1)); err == nil {
			read <- b
		}
	}()
	ok := false
	select {
	case body, ok = <-read:
	case <-ctx.Done():
	}
	if !ok {
		return nil, false, errBody
	}
	if len(body) > wire.MaxHookBody {
		r.Body = struct {
			io.Reader
			io.Closer
		}{io.MultiReader(bytes.NewReader(body), r.Body), r.Body}
		return nil, true, nil
	}
	r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
	r.Body, _ = r.GetBody()
	if len(r.Trailer) > 0 {
		return body, false, nil // they need a length that is not said beforehand
	}
	if r.ContentLength = int64(len(body)); len(body) == 0 {
		r.Body, r.GetBody = http.NoBody, nil
	}
	return body, false, nil
}

// setHeaders changes the headers of a request, unless that is out of bounds.
func setHeaders(in http.Header, change map[string][]string) bool {
	size, n := 0, 0
	for name, values := range change {
		if !httpguts.ValidHeaderFieldName(name) {
			return false
		}
		for _, value := range values {
			size, n = size+len(name)+len(value), n+1
			if !httpguts.ValidHeaderFieldValue(value) {
				return false
			}
		}
	}
	if n > wire.MaxSecretHeaders || size > wire.MaxSecretBytes {
		return false
	}
	for name, values := range change {
		in.Del(name)
		for _, value := range values {
			in.Add(name, value)
		}
	}
	return true
}

// ask sends a request to the client. The error is io.EOF if it is gone.
func (d *decider) ask(ctx context.Context, req wire.HookRequest) (*wire.HookReply, error) {
	answered := make(chan *wire.HookReply, 1)
	if err := d.send(req, answered); err != nil {
		return nil, io.EOF
	}
	select {
	case reply := <-answered:
		return reply, nil
	case <-d.gone:
		return nil, io.EOF
	case <-ctx.Done():
		return nil, errUndecided
	}
}

func (d *decider) send(req wire.HookRequest, answered chan *wire.HookReply) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.last++
	req.ID = d.last
	line, err := json.Marshal(req)
	if err != nil {
		return err
	}
	if len(line) >= wire.MaxFriendLine {
		answered <- &wire.HookReply{Failed: true}
		return nil
	}
	// Those that nobody answers make room for the latest.
	delete(d.waiting, d.last-4*wire.MaxHooks)
	d.waiting[req.ID] = answered
	d.conn.SetWriteDeadline(time.Now().Add(wire.HookTime))
	if _, err := d.conn.Write(append(line, '\n')); err != nil {
		d.conn.Close() // half a line may have been sent
		return err
	}
	return nil
}

func (d *decider) answer(reply *wire.HookReply) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if answered := d.waiting[reply.ID]; answered != nil {
		delete(d.waiting, reply.ID)
		answered <- reply
	}
}
