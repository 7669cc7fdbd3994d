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
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
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

// errCopied says that the sandbox is paused because it is being copied.
var errCopied = errors.New("the sandbox is being copied")

// linked returns the living connection or makes one, for all who ask at once. For a copy
// of the sandbox it waits as long as that takes.
func (s *Sandbox) linked(ctx context.Context) (*guest.Conn, error) {
	for {
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
		if err == nil {
			return got.(*guest.Conn), nil
		}
		if !errors.Is(err, errCopied) {
			return nil, err
		}
		if err := s.c.awaitThaw(ctx, s.eng, s.rec.Name); err != nil {
			return nil, err
		}
	}
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

// dial starts the guest's server in the sandbox, connects to it and sees to it that the
// session has begun.
func (s *Sandbox) dial(ctx context.Context) (*guest.Conn, error) {
	var conn *guest.Conn
	for began, try := time.Now(), 0; ; try++ {
		var err error
		if conn, err = s.greet(ctx); err == nil {
			break
		}
		lost := errors.Is(err, guest.ErrConnectionLost)
		var no *unreached
		if ctx.Err() != nil || errors.Is(err, engine.ErrUnavailable) || !lost && !errors.As(err, &no) {
			return nil, err
		}
		// Not running, or not the container any more: look, and try the one there is.
		got, e := s.current(ctx)
		switch {
		case e != nil:
			return nil, e
		case got.State == engine.StatePaused:
			if _, found, e := record.LookPause(ctx, s.eng, s.rec.Name); e == nil && found {
				return nil, errCopied
			}
			if got, e = s.current(ctx); e != nil {
				return nil, e
			}
		}
		if got.State != engine.StateRunning {
			return nil, fmt.Errorf("%w: it is %s", errNoSession, stateOf(got.State))
		}
		switch {
		case try == 0:
		case !lost && !errors.Is(err, engine.ErrConflict) && !errors.Is(err, engine.ErrNotFound):
			return nil, err
		case time.Since(began) > lostTime:
			return nil, classify(ErrEngineUnavailable, err)
		default:
			// To the engine a session that has just ended still runs for a moment.
			if err := pause(ctx, stillThere); err != nil {
				return nil, err
			}
		}
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

// unreached says that the guest could not be connected to.
type unreached struct{ error }

func (e *unreached) Unwrap() error { return e.error }

// greet connects to the guest and has the session begin.
func (s *Sandbox) greet(ctx context.Context) (*guest.Conn, error) {
	s.mu.Lock()
	container := s.container
	s.mu.Unlock()
	conn, err := dialGuest(ctx, s.eng, container)
	if err != nil {
		return nil, &unreached{err}
	}
	// It may have been paused since, by a copier who died.
	conn.OnSilence(func(ctx context.Context) { s.c.awaitThaw(ctx, s.eng, s.rec.Name) })
	err = s.lay(ctx, conn)
	if err == nil {
		_, err = s.beginOn(ctx, conn)
	}
	if err != nil {
		conn.Close()
		return nil, err
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
		} else {
			err = fmt.Errorf("%w: %w", guest.ErrConnectionLost, err) // it ended before it was there
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

// unlink forgets a connection that is lost, before it has told everybody.
func (s *Sandbox) unlink(conn *guest.Conn) {
	s.mu.Lock()
	if s.link == conn {
		s.link = nil
	}
	s.mu.Unlock()
	conn.Close()
}

// lostTime bounds the search for why a connection ended: an engine that is busy takes
// seconds to tell that a container has exited.
const lostTime = 20 * time.Second

// lost explains why a connection ended under a command.
func (s *Sandbox) lost(ctx context.Context, err error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lostTime)
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
