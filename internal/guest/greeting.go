package guest

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/errdefs"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// NotGuestError is the error of a connection to something else than the guest: the OCI runtime,
// which could not start it, prints its message on the same stream.
type NotGuestError struct {
	Output string // the beginning of what was printed, as it is
	err    error
}

func (e *NotGuestError) Error() string {
	return "something else than the guest answers: " + errdefs.Printable(strings.TrimSpace(e.Output))
}

func (e *NotGuestError) Unwrap() error { return e.err }

const (
	// maxGreeting bounds what is kept of the output before the handshake, in bytes.
	maxGreeting = 1 << 10
	// greetingTime bounds the wait for the rest of a message.
	greetingTime = time.Second
)

// greeting is the beginning of what the other side sent.
type greeting struct {
	mu   sync.Mutex
	text []byte
}

func (g *greeting) add(b []byte) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.text = append(g.text, b[:min(len(b), maxGreeting-len(g.text))]...)
}

func (g *greeting) String() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return string(g.text)
}

// isGuest reports whether the other side is the guest.
func (g *greeting) isGuest() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return bytes.HasPrefix(g.text, []byte(wire.GreetingPrefix)) || bytes.Contains(g.text, []byte("\n"+wire.GreetingPrefix))
}

// explain returns the error of a handshake with what came in its place.
func (s *stream) explain(err error) error {
	if s.isGuest() || s.greeting.String() == "" {
		return err
	}
	// The handshake ended within the message. Nobody else reads.
	defer time.AfterFunc(greetingTime, func() { s.Close() }).Stop()
	io.Copy(io.Discard, io.LimitReader(s, maxGreeting))
	return &NotGuestError{s.greeting.String(), fmt.Errorf("handshake: %w", err)}
}
