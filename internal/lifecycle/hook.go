package lifecycle

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/bound"
	"github.com/seed-1a2d6d8f/sandbox/internal/errdefs"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
	"github.com/seed-1a2d6d8f/sandbox/internal/plan"
)

// deciding is the handle deciding on requests of the sandbox, by the functions of its secrets.
type deciding struct {
	conn    *guest.Conn
	version int64 // of the policy
	done    <-chan struct{}
	stop    func()
}

// decideOn makes the handle decide on requests to the names of those secrets that have a function,
// for a version of the policy. The session need not have it yet.
func (h *Handle) decideOn(ctx context.Context, conn *guest.Conn, version int64, secrets []plan.Secret) error {
	does := map[string]func(*http.Request) error{}
	for _, x := range secrets {
		if x.Do != nil {
			does[x.Sent.Pattern] = x.Do
		}
	}
	h.mu.Lock()
	was := h.deciding
	h.mu.Unlock()
	if len(does) == 0 || was != nil && was.conn == conn && was.version == version && !was.ended() {
		return nil
	}
	hook := wire.Hook{Version: version, Patterns: slices.Sorted(maps.Keys(does))}
	done, stop, err := conn.Hook(ctx, ed25519.NewKeyFromSeed(h.Record().ControlKey), hook, func(ctx context.Context, req wire.HookRequest) wire.HookReply {
		changes, how := h.decide(ctx, does[req.Pattern], req)
		if how != "" {
			h.c.Log.Warn("a request of the sandbox is not sent: its Transform.Do refused it", "sandbox", h.Record().Name, "names", errdefs.Printable(req.Pattern), "how", how)
		}
		return wire.HookReply{Header: changes, Failed: how != "", Late: how == noAnswer || how == tooMany}
	})
	if err != nil {
		return err
	}
	now := &deciding{conn: conn, version: version, done: done, stop: stop}
	h.mu.Lock()
	was, h.deciding = h.deciding, now
	h.mu.Unlock()
	if was != nil {
		was.stop()
	}
	h.keepDeciding(now)
	return nil
}

func (d *deciding) ended() bool {
	select {
	case <-d.done:
		return true
	default:
		return false
	}
}

// keepDeciding connects again when the connection is lost, since no call may come that would.
func (h *Handle) keepDeciding(d *deciding) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.released {
		return
	}
	h.work.Add(1)
	go func() {
		defer h.work.Done()
		select {
		case <-d.done:
		case <-h.life.Done():
			return
		}
		for wait := time.Second; h.isDeciding(d) && bound.Sleep(h.life, wait) == nil; wait = min(2*wait, 30*time.Second) {
			conn, err := h.ConnectRunning(h.life)
			if errors.Is(err, ErrNoSession) || errors.Is(err, errdefs.NotFound) || errors.Is(err, errdefs.Closed) {
				return // whoever starts the next session connects to it
			}
			if err == nil && conn == d.conn { // only the way to PID 1 was lost
				err = h.decideOn(h.life, conn, d.version, h.secretsFor(d.version))
			}
			if err == nil {
				return
			}
		}
	}()
}

func (h *Handle) isDeciding(d *deciding) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.deciding == d
}

// How no decision was made in time.
const (
	noAnswer = "it did not return in time"
	tooMany  = "too many calls of it have not returned"
)

// decide calls a function of the caller for one request, and returns the headers to change, or
// how it refused the request. It never waits for longer than ctx.
func (h *Handle) decide(ctx context.Context, do func(*http.Request) error, req wire.HookRequest) (changes map[string][]string, how string) {
	if do == nil {
		return nil, "it is unknown"
	}
	r, err := requestOf(ctx, req)
	if err != nil {
		return nil, "the request is malformed"
	}
	select {
	case h.does <- struct{}{}:
	case <-ctx.Done():
		return nil, tooMany
	}
	result := make(chan string, 1)
	go func() {
		defer func() { <-h.does }()
		how := "it panicked, or ended its goroutine"
		defer func() {
			recover() // a panic may contain secrets, and is of one request
			result <- how
		}()
		err := do(r)
		switch {
		case err != nil:
			how = "it returned an error"
		case r.Method != req.Method || r.URL == nil || r.URL.String() != req.URL || r.Host != req.Host:
			how = "it changed the method, the URL or the host"
		default:
			how = ""
		}
	}()
	select {
	case how = <-result:
	case <-ctx.Done():
		return nil, noAnswer
	}
	if how != "" {
		return nil, how
	}
	changes = map[string][]string{}
	for name, values := range r.Header {
		if !slices.Equal(values, req.Header[name]) {
			changes[name] = values
		}
	}
	for name := range req.Header {
		if _, kept := r.Header[name]; !kept {
			changes[name] = nil
		}
	}
	for name, values := range changes {
		for _, value := range append([]string{""}, values...) {
			if plan.CheckHeader(name, value) != nil {
				return nil, "it set a header that can't be set"
			}
		}
	}
	return changes, ""
}

func requestOf(ctx context.Context, req wire.HookRequest) (*http.Request, error) {
	r, err := http.NewRequestWithContext(ctx, req.Method, "https://"+req.Host, bytes.NewReader(req.Body))
	if err != nil {
		return nil, err
	}
	// As a server reads it: a query may have a #.
	if r.URL, err = url.ParseRequestURI(req.URL); err != nil {
		return nil, err
	}
	if r.URL.String() != req.URL {
		return nil, errors.New("the URL is not canonical")
	}
	r.Host, r.Header = req.Host, http.Header(req.Header).Clone()
	if r.Header == nil {
		r.Header = http.Header{}
	}
	if req.More {
		r.Body, r.GetBody, r.ContentLength = io.NopCloser(longBody{}), nil, -1
	}
	return r, nil
}

// longBody is a body that is not here.
type longBody struct{}

func (longBody) Read([]byte) (int, error) {
	return 0, errdefs.Invalid("the request's body is longer than the %d bytes that a Transform.Do can read", wire.MaxHookBody)
}
