package sandboxhttp

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
)

// handleIdle is how long a handle is kept after its last use. To connect to a sandbox costs an
// exec of the engine, which the next request saves.
const handleIdle = 10 * time.Second

// handles are the handles on sandboxes that requests share.
type handles struct {
	client *sandbox.Client
	opts   []sandbox.GetOption

	mu   sync.Mutex
	open map[string]*handle // by the sandbox's ID
}

func newHandles(client *sandbox.Client, opts ...sandbox.GetOption) *handles {
	return &handles{client: client, opts: append(opts, sandbox.WithoutResume()), open: map[string]*handle{}}
}

// A handle is shared by the requests that use a sandbox at the same time or soon after one
// another.
type handle struct {
	*sandbox.Sandbox
	of     *handles
	users  int
	ended  bool
	idle   *time.Timer
	inside *http.Transport // of Preview
	single *http.Transport // with a new connection for each request
}

// get returns a handle on a sandbox, which is not resumed. The caller calls its done.
func (h *handles) get(ctx context.Context, name string) (*handle, error) {
	// Always look: another sandbox may have the name by now.
	sb, err := h.client.Get(ctx, name, h.opts...)
	if err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	have := h.open[sb.ID()]
	if have == nil {
		have = &handle{Sandbox: sb, of: h}
		h.open[sb.ID()] = have
	} else {
		sb.Detach() // has not connected
		if have.idle != nil {
			have.idle.Stop()
		}
	}
	have.users++
	return have, nil
}

// checked returns the error of a use of the handle. If the sandbox is not where it was the next user
// gets another handle: it may have been moved to another node.
func (s *handle) checked(err error) error {
	if errors.Is(err, sandbox.ErrNotFound) {
		s.forget()
	}
	return err
}

// forget makes the next user get another handle.
func (s *handle) forget() {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	if s.of.open[s.ID()] == s {
		delete(s.of.open, s.ID())
	}
}

// done releases the handle. After the last user it is kept for a while.
func (s *handle) done() {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	if s.users--; s.users == 0 {
		s.idle = time.AfterFunc(handleIdle, s.end)
	}
}

// end detaches the handle, unless it is used again.
func (s *handle) end() {
	s.of.mu.Lock()
	if s.users > 0 || s.ended {
		s.of.mu.Unlock()
		return
	}
	s.ended = true
	if s.of.open[s.ID()] == s { // it may be forgotten, and another one have its place
		delete(s.of.open, s.ID())
	}
	s.of.mu.Unlock()
	if s.inside != nil {
		s.inside.CloseIdleConnections()
	}
	s.Detach()
}
