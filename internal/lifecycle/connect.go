package lifecycle

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/bound"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/errdefs"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
	"github.com/seed-1a2d6d8f/sandbox/internal/machine"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/internal/store"
	"github.com/seed-1a2d6d8f/sandbox/internal/trace"
)

// connectTimeout bounds a connection to the guest, which costs one exec of the engine.
const connectTimeout = 30 * time.Second

// ErrNoSession is the error of a sandbox that exists and does not run.
var ErrNoSession = errors.New("the sandbox has no session")

// Connect returns the connection to the guest. It resumes a persistent sandbox that is
// stopped.
func (h *Handle) Connect(ctx context.Context) (*guest.Conn, error) {
	before := h.lastResumption()
	for try := 0; ; try++ {
		conn, err := h.ConnectRunning(ctx)
		if err == nil {
			err = h.finishResumption(ctx, before)
		}
		if !errors.Is(err, ErrNoSession) {
			return conn, err
		}
		if !h.known().Persists() || try == 2 {
			return nil, fmt.Errorf("%w: %w", errdefs.NotRunning, err)
		}
		if err := h.resume(ctx); err != nil {
			return nil, err
		}
	}
}

// ConnectRunning returns the connection to the guest, and makes it if there is none, once for
// concurrent callers. It waits for a copy of the sandbox to end.
func (h *Handle) ConnectRunning(ctx context.Context) (*guest.Conn, error) {
	for {
		h.mu.Lock()
		conn := h.conn
		h.mu.Unlock()
		if conn != nil && !conn.Useless() {
			return conn, nil
		}
		var got any
		err := trace.Do(ctx, trace.Connect, func(ctx context.Context) (err error) {
			got, err = h.share(ctx, "connect", connectTimeout, func(ctx context.Context) (any, error) {
				return h.dial(ctx)
			})
			return err
		}, h.Trace()...)
		if err == nil {
			return got.(*guest.Conn), nil
		}
		if !errors.Is(err, store.ErrCopied) {
			return nil, err
		}
		if err := h.c.Store.AwaitUnpause(ctx, h.Record().Name); err != nil {
			return nil, err
		}
	}
}

// share runs fn once for all concurrent callers of a key, on a context of its own: the end of
// one caller's context does not affect the others. A caller that joined an earlier call does not
// get its error, which may be of a moment before this one, such as that the engine was not running:
// fn is called once more for those callers.
func (h *Handle) share(ctx context.Context, key string, d time.Duration, fn func(context.Context) (any, error)) (any, error) {
	got, joined, err := h.join(ctx, key, d, fn)
	if err != nil && joined && ctx.Err() == nil {
		got, _, err = h.join(ctx, key, d, fn)
	}
	return got, err
}

// join runs fn, or waits for the call of it that runs: then joined is true.
func (h *Handle) join(ctx context.Context, key string, d time.Duration, fn func(context.Context) (any, error)) (got any, joined bool, err error) {
	h.mu.Lock()
	// A handle in the middle of its own Detach or resume still needs its connection.
	if h.released {
		h.mu.Unlock()
		return nil, false, errdefs.Closed
	}
	h.work.Add(1)
	h.mu.Unlock()
	own := false
	result := h.flights.DoChan(key, func() (got any, err error) {
		own = true
		ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
		defer cancel()
		defer context.AfterFunc(h.life, cancel)()
		err = bound.Within(ctx, d, "the guest did not answer", func(ctx context.Context) error {
			got, err = fn(ctx)
			return err
		})
		return got, err
	})
	select {
	case r := <-result:
		h.work.Done()
		return r.Val, !own, r.Err
	case <-ctx.Done():
		// The call goes on for other callers; release waits for it.
		go func() {
			<-result
			h.work.Done()
		}()
		return nil, false, errdefs.Cancelled(ctx)
	}
}

// dial starts the guest's server in the sandbox, connects to it and begins the session. It
// tries again while the engine reports the container as running.
func (h *Handle) dial(ctx context.Context) (*guest.Conn, error) {
	for began, try := time.Now(), 0; ; try++ {
		conn, err := h.handshake(ctx)
		if err == nil {
			return h.setConn(conn)
		}
		lost := errors.Is(err, guest.ErrConnectionLost)
		var unreachable *unreachableError
		if ctx.Err() != nil || errors.Is(err, store.ErrCopied) || errors.Is(err, engine.ErrUnavailable) || !lost && !errors.As(err, &unreachable) {
			return nil, err
		}
		if err := h.checkRunning(ctx); err != nil {
			return nil, err
		}
		switch {
		case try == 0: // it may be another container by now
		case !lost && !errors.Is(err, engine.ErrConflict) && !errors.Is(err, engine.ErrNotFound):
			return nil, err
		case time.Since(began) > exitReportTimeout:
			return nil, errdefs.Classify(errdefs.EngineUnavailable, err)
		default:
			// The engine reports a session that has just ended as running for a moment.
			if err := bound.Sleep(ctx, store.PollEvery); err != nil {
				return nil, err
			}
		}
	}
}

// checkRunning fails with [store.ErrCopied] or ErrNoSession if the present container does not run.
func (h *Handle) checkRunning(ctx context.Context) error {
	got, err := h.Current(ctx)
	if err == nil && got.State == engine.StatePaused {
		if err := h.c.Store.CheckCopied(ctx, h.Record().Name); errors.Is(err, store.ErrCopied) {
			return err
		}
		got, err = h.Current(ctx)
	}
	if err == nil && got.State != engine.StateRunning {
		err = fmt.Errorf("%w: it is %s", ErrNoSession, store.StateOf(got.State))
		if got.State == engine.StateExited {
			err = errdefs.Lost(h.endOf(ctx, got), ErrNoSession, errdefs.SessionLost)
		}
	}
	return err
}

// setConn makes conn the handle's connection, in place of a lost one.
func (h *Handle) setConn(conn *guest.Conn) (*guest.Conn, error) {
	h.mu.Lock()
	if h.released {
		h.mu.Unlock()
		conn.Close()
		return nil, errdefs.Closed
	}
	old := h.conn
	h.conn = conn
	h.mu.Unlock()
	if old != nil {
		old.Close()
	}
	return conn, nil
}

// unreachableError is the error of a guest that could not be connected to.
type unreachableError struct{ error }

func (e *unreachableError) Unwrap() error { return e.error }

// A connection that is not made after anotherConnect is tried once more beside the first attempt, up to
// connectAttempts of them. An exec that hangs, as on a connection that a network has forgotten, would
// last until the lease is over.
const (
	anotherConnect  = 8 * time.Second
	connectAttempts = 3
)

// handshake connects to the guest and begins the session. It takes the first attempt that succeeds.
func (h *Handle) handshake(ctx context.Context) (*guest.Conn, error) {
	type result struct {
		conn *guest.Conn
		err  error
	}
	ctx, cancel := context.WithCancel(ctx)
	results := make(chan result)
	made, running := 0, 0
	attempt := func() {
		made++
		running++
		go func() {
			conn, err := h.attempt(ctx)
			results <- result{conn, err}
		}()
	}
	attempt()
	again := time.NewTicker(anotherConnect)
	defer again.Stop()
	for {
		select {
		case <-again.C:
			if made < connectAttempts {
				attempt()
			}
		case got := <-results:
			if running--; got.err != nil && running > 0 {
				continue
			}
			cancel()
			h.work.Go(func() {
				for ; running > 0; running-- {
					if late := <-results; late.err == nil {
						late.conn.Close()
					}
				}
			})
			return got.conn, got.err
		}
	}
}

// attempt is one attempt of handshake.
func (h *Handle) attempt(ctx context.Context) (*guest.Conn, error) {
	h.mu.Lock()
	container, guestPath := h.container, machine.GuestPath(h.made.Settings)
	h.mu.Unlock()
	// The record is read during the handshake, and not before the guest's server has started:
	// see connectIfNeeded.
	var rec record.Sandbox
	var recErr error
	var read sync.WaitGroup
	conn, err := h.dialGuest(ctx, container, guestPath, func() {
		read.Go(func() { rec, recErr = h.Refresh(ctx) })
	})
	if err == nil {
		conn.OpenControl(ctx)
	}
	read.Wait()
	if err == nil && recErr != nil {
		conn.Close()
		return nil, recErr
	}
	if errors.Is(err, errdefs.SessionLost) { // it is ending
		return nil, err
	}
	if err != nil {
		return nil, &unreachableError{err}
	}
	conn.KeepAlive(h.checkSilence)
	reply, err := h.beginSessionWith(ctx, conn, rec)
	if err == nil {
		err = h.applyIdle(ctx, conn, reply)
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// lostAfter is how long a guest may be silent if its container runs and no new connection to it can
// be made: it may have too little CPU time to answer.
const lostAfter = time.Minute

// checkSilence is called while the guest does not answer. It returns why the connection is
// useless, or nil to wait on, which it does for a sandbox that is paused.
func (h *Handle) checkSilence(ctx context.Context, silent time.Duration) error {
	limit := guest.Keepalive.Answer
	own, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if silent < limit {
		// A copier that died may have left it paused.
		h.c.Store.AwaitUnpause(own, h.Record().Name)
		return nil
	}
	var got engine.Container
	err := h.answerBefore(own, func() (err error) { got, err = h.Current(own); return err })
	switch {
	case errors.Is(err, errNoAnswer):
		return errdefs.Classify(errdefs.EngineUnavailable, fmt.Errorf("neither the guest nor the engine has answered for %v", silent.Round(time.Second)))
	case errors.Is(err, errdefs.NotFound):
		return err
	case err != nil:
		return nil
	}
	switch got.State {
	case engine.StatePaused:
		h.c.Store.AwaitUnpause(own, h.Record().Name)
		return nil
	case engine.StateRunning:
	default:
		return fmt.Errorf("%w: it is %s", errdefs.NotRunning, store.StateOf(got.State))
	}
	// Either the guest is slow or the connection is dead. A new connection tells them apart.
	h.mu.Lock()
	path := machine.GuestPath(h.made.Settings)
	h.mu.Unlock()
	another, err := h.dialGuest(own, got.ID, path, func() {})
	if err != nil && silent < lostAfter {
		return nil
	}
	if err == nil {
		another.Close()
	}
	return fmt.Errorf("nothing has arrived on it for %v", silent.Round(time.Second))
}

// errNoAnswer is the error of an engine that has not answered in time.
var errNoAnswer = errors.New("the engine does not answer")

// answerBefore repeats ask while the engine does not answer, until ctx ends. ask uses the same ctx.
func (h *Handle) answerBefore(ctx context.Context, ask func() error) error {
	for {
		err := ask()
		if err == nil || errors.Is(err, errdefs.NotFound) || ctx.Err() == nil && !errors.Is(err, engine.ErrUnavailable) {
			return err
		}
		// This machine may have slept, and its network takes a moment.
		if bound.Sleep(ctx, time.Second) != nil {
			h.c.Engine.DropIdle()
			return errNoAnswer
		}
	}
}

// dialGuest starts the guest's server, calls started, and connects to it.
func (h *Handle) dialGuest(ctx context.Context, container, path string, started func()) (*guest.Conn, error) {
	stream, err := h.c.Engine.Exec(ctx, container, engine.ExecSpec{
		Argv: []string{path, wire.VerbServe}, User: "0:0", Dir: "/", Stdin: true, Check: h.checkCopied,
	})
	if err != nil {
		return nil, err
	}
	started()
	conn, err := guest.Dial(ctx, stream)
	if err != nil {
		return nil, fmt.Errorf("connect to the guest: %w", notConnected(ctx, stream, err))
	}
	return conn, nil
}

func (h *Handle) checkCopied(ctx context.Context) error {
	return h.c.Store.CheckCopied(ctx, h.Record().Name)
}

// exitNotFound is the exit code of an exec whose program does not exist.
const exitNotFound = 127

// notConnected returns why a guest's server, or the OCI runtime that was to start it, ended before
// the handshake. The error is guest.ErrConnectionLost if the next try may succeed: nothing ran.
func notConnected(ctx context.Context, stream *engine.Stream, err error) error {
	code := 0
	if ctx.Err() == nil {
		if code, _ = stream.ExitCode(ctx); code != 0 {
			err = fmt.Errorf("%w (exit code %d)", err, code)
		}
	}
	if ending, refused := wire.EndCode(code); refused {
		return endingError(wire.Reply{Ending: ending})
	}
	// A guest that can't start, such as one without a process to spare, prints all its stacks.
	if stderr, _, _ := strings.Cut(strings.TrimSpace(stream.Stderr()), "\n"); stderr != "" {
		return fmt.Errorf("%w: the guest's stderr: %q", err, stderr)
	}
	if code == exitNotFound || engine.OutOfKeys(err) {
		return engine.ExplainKeys(err)
	}
	return fmt.Errorf("%w: %w", guest.ErrConnectionLost, err)
}

// dropConn closes the connection to the guest; commands that are not detached end.
func (h *Handle) dropConn() {
	h.mu.Lock()
	conn := h.conn
	h.conn = nil
	h.mu.Unlock()
	if conn != nil {
		conn.Close()
	}
}

// dropLost forgets a connection that is known to be lost.
func (h *Handle) dropLost(conn *guest.Conn) {
	h.mu.Lock()
	if h.conn == conn {
		h.conn = nil
	}
	h.mu.Unlock()
	conn.Close()
}

// exitReportTimeout bounds the wait for an engine to report that a container has exited: a
// busy one takes seconds.
const exitReportTimeout = 20 * time.Second

// ExplainLost returns why a connection ended during a call: [errdefs.SessionLost] if the session has
// ended, or the engine can't be asked.
func (h *Handle) ExplainLost(ctx context.Context, err error) error {
	if errors.Is(err, errdefs.EngineUnavailable) && h.CheckUsable() == nil {
		return lostEngineOf(err) // the engine was asked
	}
	var why error
	late := bound.Detached(ctx, exitReportTimeout, "the connection to it was lost, and the engine did not answer", func(ctx context.Context) error {
		why = h.explainLost(ctx, err)
		return ctx.Err()
	})
	if late != nil && errors.Is(why, context.DeadlineExceeded) {
		return lostEngineOf(late)
	}
	return why
}

// lostEngineOf returns the error of a session whose engine can't be asked.
func lostEngineOf(err error) error {
	return errdefs.Lost(err.Error(), errdefs.EngineUnavailable, errdefs.SessionLost, err)
}

func (h *Handle) explainLost(ctx context.Context, err error) error {
	for {
		if e := h.CheckUsable(); e != nil {
			return fmt.Errorf("%w: %w", e, err)
		}
		got, e := h.Current(ctx)
		switch {
		case errors.Is(e, errdefs.NotFound):
			return errdefs.Lost("the sandbox was removed", errdefs.SessionLost, e, err)
		case errors.Is(e, engine.ErrUnavailable):
			return lostEngineOf(e)
		case e != nil:
			return fmt.Errorf("%w: %w", e, err)
		case got.State == engine.StatePaused:
			return fmt.Errorf("%w: it is %s: %w", errdefs.NotRunning, store.StateOf(got.State), err)
		case got.State != engine.StateRunning:
			return errdefs.Lost(h.endOf(ctx, got), errdefs.SessionLost, errdefs.NotRunning, err)
		}
		// The engine reports a session that has just ended as running for a moment, and PID 1 of one
		// that is ending still answers.
		conn, e := h.ConnectRunning(ctx)
		if e == nil {
			var ending error
			if ending, e = h.askEnding(ctx, conn); ending != nil {
				h.dropLost(conn) // a server that nobody needs would hold up the session's end
				return ending
			}
		}
		switch {
		case errors.Is(e, engine.ErrUnavailable):
			return lostEngineOf(e)
		case errors.Is(e, errdefs.SessionLost) && !errors.Is(e, ErrNoSession):
			return e // it is ending
		case e == nil, errors.Is(e, errdefs.Unsupported):
			return errdefs.Classify(errdefs.EngineUnavailable, fmt.Errorf("the connection to it was lost: %w", err))
		}
		if e := bound.Sleep(ctx, store.PollEvery); e != nil {
			return e
		}
	}
}

// outOfMemoryTime bounds the wait for the engine to hear that a container ran out of memory, which on a busy machine can be
// after it has heard of the end.
const outOfMemoryTime = time.Second

// endOf says how the session of a container has ended.
func (h *Handle) endOf(ctx context.Context, got engine.Container) string {
	reason := ""
	if rec, err := h.Refresh(ctx); err == nil {
		reason = rec.Reason(got.StartedAt)
	}
	if reason == "" && got.Memory > 0 && got.ExitCode == 128+int(syscall.SIGKILL) && !got.OOMKilled {
		waiting, cancel := context.WithTimeout(ctx, outOfMemoryTime)
		defer cancel()
		bound.Poll(waiting, store.PollEvery, func() (bool, error) {
			now, err := h.Current(waiting)
			got.OOMKilled = err == nil && now.OOMKilled && now.StartedAt.Equal(got.StartedAt)
			return got.OOMKilled, err
		})
	}
	return fmt.Sprintf("it ended (%s)", cmp.Or(reason, store.ReasonOf(got)))
}

// askEnding asks PID 1 whether the session is ending, and returns why as a [errdefs.SessionLost], or nil.
func (h *Handle) askEnding(ctx context.Context, conn *guest.Conn) (ending, err error) {
	reply, err := h.requestOn(ctx, conn, wire.Control{Op: wire.OpNetwork})
	if err != nil || reply.Ending == 0 {
		return nil, err
	}
	return endingError(reply), nil
}

// endingError is the error of a call to a session that PID 1 is ending.
func endingError(reply wire.Reply) error {
	reason := store.ReasonOf(engine.Container{ExitCode: reply.Ending})
	return errdefs.Lost(fmt.Sprintf("it is ending (%s)", reason), errdefs.SessionLost, errdefs.NotRunning)
}

// askTimeout bounds a question to PID 1 about a command that has ended.
const askTimeout = 5 * time.Second

// ExplainExit returns why the session has ended, or is ending, as a [errdefs.SessionLost], if that may be
// why a command has failed so, and otherwise nil. The command may have ended before the session: then its
// own end was a signal that PID 1 or the engine sends.
func (h *Handle) ExplainExit(ctx context.Context, exit wire.Exit) error {
	if !exit.Ending && exit.Signal != int(syscall.SIGTERM) && exit.Signal != int(syscall.SIGKILL) || h.CheckUsable() != nil {
		return nil
	}
	h.mu.Lock()
	conn := h.conn
	h.mu.Unlock()
	var ending error
	err := guest.ErrConnectionLost
	if conn != nil {
		err = bound.Detached(ctx, askTimeout, "PID 1 did not answer", func(ctx context.Context) (err error) {
			ending, err = h.askEnding(ctx, conn)
			return err
		})
	}
	if ending == nil && (exit.Ending || errors.Is(err, guest.ErrConnectionLost)) {
		if lost := h.ExplainLost(ctx, err); errors.Is(lost, errdefs.SessionLost) {
			ending = lost
		}
	}
	return ending
}

// ErrServerKilled says that the guest's server was killed, as root in the sandbox can do with kill -9 -1.
var ErrServerKilled = errors.New("the guest's server was killed by SIGKILL")

// CheckServer returns ErrServerKilled if that is why a connection was lost.
func (h *Handle) CheckServer(ctx context.Context, lost *guest.Conn) error {
	stream, ok := lost.Transport().(*engine.Stream)
	if !ok {
		return nil
	}
	return bound.Detached(ctx, askTimeout, "the engine did not say how the guest's server ended", func(ctx context.Context) error {
		for {
			code, err := stream.ExitCode(ctx)
			switch {
			case err == nil && code == 128+int(syscall.SIGKILL):
				return ErrServerKilled
			case !errors.Is(err, engine.ErrConflict): // it does not run any more
				return err
			}
			if err := bound.Sleep(ctx, store.PollEvery); err != nil {
				return err
			}
		}
	})
}

// StartError returns the error of package os or os/exec for a command that did not start.
func StartError(path, dir string, e *wire.StartError) error {
	why := &startCause{text: e.Message, causes: []error{e}}
	if _, text, ok := strings.Cut(e.Message, fmt.Sprintf("%q: ", path)); ok {
		why.text = text // exec.Error names the program itself
	}
	if e.Errno != 0 {
		why.causes = append(why.causes, guest.Errno(e.Errno))
	}
	switch e.Kind {
	case wire.KindNotFound:
		if e.Errno == 0 { // in no directory of PATH
			return &exec.Error{Name: path, Err: exec.ErrNotFound}
		}
		why.causes = append(why.causes, exec.ErrNotFound)
	case wire.KindPermission:
		why.causes = append(why.causes, fs.ErrPermission)
	case wire.KindDirectory:
		if e.Errno == 0 {
			return &os.PathError{Op: "chdir", Path: dir, Err: fmt.Errorf("%w: %s", fs.ErrNotExist, e.Message)}
		}
		return &os.PathError{Op: "chdir", Path: dir, Err: guest.Errno(e.Errno)}
	case wire.KindUser, wire.KindArguments:
		return errdefs.Classify(errdefs.InvalidArgument, e)
	case wire.KindUnknownProcess:
		return errdefs.ProcessNotFound
	case wire.KindStopping:
		return errdefs.Lost(e.Message, errdefs.SessionLost, errdefs.NotRunning, e)
	}
	return &exec.Error{Name: path, Err: why}
}

// startCause is why a program could not be executed.
type startCause struct {
	text   string
	causes []error
}

func (c *startCause) Error() string   { return c.text }
func (c *startCause) Unwrap() []error { return c.causes }
