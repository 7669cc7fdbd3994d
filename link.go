package sandbox

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// connectTimeout bounds a connection to the guest, which costs one exec of the engine.
const connectTimeout = 30 * time.Second

// errNoSession says that the sandbox is there and its session is not.
var errNoSession = errors.New("the sandbox has no session")

// connect returns the handle's connection to the guest. A persistent sandbox that was
// stopped is resumed for it.
func (s *Sandbox) connect(ctx context.Context) (*guest.Conn, error) {
	for try := 0; ; try++ {
		conn, err := s.linked(ctx)
		if !errors.Is(err, errNoSession) {
			return conn, err
		}
		if !s.rec.Persistent || try == 2 {
			return nil, fmt.Errorf("%w: %w", ErrNotRunning, err)
		}
		if err := s.resume(ctx); err != nil {
			return nil, err
		}
	}
}

// linked returns the living connection or makes one, for all who ask at once.
func (s *Sandbox) linked(ctx context.Context) (*guest.Conn, error) {
	s.mu.Lock()
	if conn := s.link; conn != nil {
		select {
		case <-conn.Done():
		default:
			s.mu.Unlock()
			return conn, nil
		}
	}
	s.mu.Unlock()
	got, err := s.share(ctx, "connect", connectTimeout, func(ctx context.Context) (any, error) {
		return s.dial(ctx)
	})
	if err != nil {
		return nil, err
	}
	return got.(*guest.Conn), nil
}

// share runs fn once for all concurrent callers of a key, on a context of its own:
// the end of one caller does not take the result from the others.
func (s *Sandbox) share(ctx context.Context, key string, d time.Duration, fn func(context.Context) (any, error)) (any, error) {
	s.mu.Lock()
	// A handle in the middle of its own Detach or resume still needs its connection.
	if s.released {
		s.mu.Unlock()
		return nil, ErrClosed
	}
	s.work.Add(1)
	s.mu.Unlock()
	result := s.flights.DoChan(key, func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), d)
		defer cancel()
		defer context.AfterFunc(s.life, cancel)()
		return fn(ctx)
	})
	select {
	case r := <-result:
		s.work.Done()
		return r.Val, r.Err
	case <-ctx.Done():
		// release waits for what goes on without us.
		go func() {
			<-result
			s.work.Done()
		}()
		return nil, cancelled(ctx)
	}
}

// dial starts the guest's server in the sandbox and connects to it.
func (s *Sandbox) dial(ctx context.Context) (*guest.Conn, error) {
	s.mu.Lock()
	container := s.container
	s.mu.Unlock()
	conn, err := dialGuest(ctx, s.eng, container)
	if err != nil && ctx.Err() == nil && !errors.Is(err, engine.ErrUnavailable) {
		// Not running, or not the container any more: look, and try the one there is.
		got, e := s.current(ctx)
		switch {
		case e != nil:
			return nil, e
		case got.State != engine.StateRunning:
			return nil, fmt.Errorf("%w: it is %s", errNoSession, stateOf(got.State))
		}
		conn, err = dialGuest(ctx, s.eng, got.ID)
	}
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	if s.released {
		s.mu.Unlock()
		conn.Close()
		return nil, ErrClosed
	}
	old := s.link
	s.link = conn
	s.mu.Unlock()
	if old != nil {
		old.Close()
	}
	return conn, nil
}

func dialGuest(ctx context.Context, eng *engine.Engine, container string) (*guest.Conn, error) {
	stream, err := eng.Exec(ctx, container, engine.ExecSpec{
		Argv: []string{wire.Path, wire.VerbServe}, User: "0:0", Dir: "/", Stdin: true,
	})
	if err != nil {
		return nil, err
	}
	conn, err := guest.Dial(ctx, stream)
	if err != nil {
		if said := strings.TrimSpace(stream.Stderr()); said != "" {
			err = fmt.Errorf("%w: the guest said: %q", err, said)
		}
		return nil, fmt.Errorf("connect to the guest: %w", err)
	}
	return conn, nil
}

// dropLink closes the connection to the guest; commands that are not detached end.
func (s *Sandbox) dropLink() {
	s.mu.Lock()
	conn := s.link
	s.link = nil
	s.mu.Unlock()
	if conn != nil {
		conn.Close()
	}
}

// lost explains why a connection ended under a command.
func (s *Sandbox) lost(ctx context.Context, err error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	for alive := false; !alive; {
		if e := s.usable(); e != nil {
			return fmt.Errorf("%w: %w", e, err)
		}
		got, e := s.current(ctx)
		switch {
		case errors.Is(e, ErrNotFound):
			return fmt.Errorf("%w: it was removed meanwhile: %w", e, err)
		case e != nil:
			return fmt.Errorf("%w: %w", e, err)
		case got.State != engine.StateRunning:
			return fmt.Errorf("%w: the session ended meanwhile (%s): %w", ErrNotRunning, ended(got), err)
		}
		// To the engine a session that has just ended still runs for a moment. One that
		// takes a new connection does.
		_, e = s.linked(ctx)
		alive = e == nil || errors.Is(e, engine.ErrUnavailable) || pause(ctx, stillThere) != nil
	}
	return classify(ErrEngineUnavailable, fmt.Errorf("the connection to it was lost: %w", err))
}
