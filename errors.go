package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"

	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
)

// The errors a caller branches on, with [errors.Is]. What the engine said stays
// reachable behind them.
var (
	// ErrNotFound says that there is no sandbox of that name or ID. Status code 404.
	ErrNotFound error = &sentinel{"Sandbox not found", 404}
	// ErrExists says that the name or ID is taken by another sandbox. 409.
	ErrExists error = &sentinel{"Sandbox already exists", 409}
	// ErrForeign says that a name is held by something this library did not make, and
	// will therefore never touch. 409.
	ErrForeign error = &sentinel{"Name is held by something that is not a sandbox", 409}
	// ErrInvalidArgument says that an option or a name can't be right. Nothing has
	// happened. 400.
	ErrInvalidArgument error = &sentinel{"Invalid argument", 400}
	// ErrVolumeInUse says that a volume can't be deleted while sandboxes refer to it. 409.
	ErrVolumeInUse error = &sentinel{"Volume is in use by running sandbox", 409}
	// ErrVolumeNotFound says that there is no such volume of ours. 404.
	ErrVolumeNotFound error = &sentinel{"Volume not found", 404}
	// ErrSnapshotNotFound says that there is no such snapshot. 404.
	ErrSnapshotNotFound error = &sentinel{"Snapshot not found", 404}
	// ErrSnapshotInUse says that volumes share a snapshot's files. 409.
	ErrSnapshotInUse error = &sentinel{"Snapshot is in use", 409}
	// ErrProcessNotFound says that no detached command of that ID is known in the
	// session: it never was, the session has ended since, or too many ended after it. 404.
	ErrProcessNotFound error = &sentinel{"Process not found", 404}
	// ErrImageNotFound says that the image is neither on the engine nor to be pulled. 404.
	ErrImageNotFound error = &sentinel{"Image not found", 404}
	// ErrEngineUnavailable says that the Docker Engine could not be reached, or was
	// lost during the call. 503.
	ErrEngineUnavailable error = &sentinel{"Docker Engine unavailable", 503}
	// ErrUnsupported says that this engine can't do what was asked. 501.
	ErrUnsupported error = &sentinel{"Not supported by this engine", 501}
	// ErrNotRunning says that the sandbox has no session and the call does not start one. 409.
	ErrNotRunning error = &sentinel{"Sandbox is not running", 409}
	// ErrClosed says that the handle was closed or detached. 409.
	ErrClosed error = &sentinel{"Sandbox handle is closed", 409}
	// ErrTimeout says that a timeout set by an option or a field passed, not the
	// caller's context. 504.
	ErrTimeout error = &sentinel{"Timed out", 504}
)

type sentinel struct {
	text string
	code int
}

func (e *sentinel) Error() string { return e.text }

// Error is what every call of this package returns when it fails: where it happened
// and why.
type Error struct {
	Op   string // the verb: "create", "get", "exec" …
	Name string // the sandbox, volume or snapshot it was about; may be empty
	Err  error
}

func (e *Error) Error() string {
	if e.Name == "" {
		return fmt.Sprintf("sandbox: %s: %v", e.Op, e.Err)
	}
	return fmt.Sprintf("sandbox: %s %q: %v", e.Op, e.Name, e.Err)
}

func (e *Error) Unwrap() error { return e.Err }

// StatusCode returns the HTTP status that fits the error: 404 for what is not found,
// files too, 403 for files that may not be touched, 409 for conflicts, 400 for invalid
// arguments, 503 for an engine out of reach, 504 for timeouts, 501 for what is not
// supported, 499 for a caller that went away, else 500.
func (e *Error) StatusCode() int {
	var s *sentinel
	switch {
	case errors.As(e.Err, &s):
		return s.code
	case errors.Is(e.Err, context.DeadlineExceeded):
		return ErrTimeout.(*sentinel).code
	case errors.Is(e.Err, context.Canceled):
		return 499
	case errors.Is(e.Err, fs.ErrNotExist):
		return 404
	case errors.Is(e.Err, fs.ErrPermission):
		return 403
	case errors.Is(e.Err, fs.ErrExist):
		return 409
	}
	return 500
}

// fail wraps err once, at the exported edge.
func fail(op, name string, err error) error {
	if err == nil {
		return nil
	}
	var already *Error
	if errors.As(err, &already) && already.Op == op && already.Name == name {
		return err
	}
	return &Error{Op: op, Name: name, Err: translate(err)}
}

// classified adds a sentinel to an error without repeating its text.
type classified struct {
	class error
	err   error
}

func (e *classified) Error() string   { return e.class.Error() + ": " + e.err.Error() }
func (e *classified) Unwrap() []error { return []error{e.class, e.err} }

func classify(class, err error) error { return &classified{class, err} }

// translate turns the classes of the rooms below into the sentinels above.
func translate(err error) error {
	var s *sentinel
	if errors.As(err, &s) {
		return err
	}
	var foreign *record.ForeignError
	var held *record.HeldError
	switch {
	case errors.As(err, &foreign):
		return classify(ErrForeign, err)
	case errors.As(err, &held):
		return classify(ErrExists, err)
	case errors.Is(err, engine.ErrUnavailable):
		return classify(ErrEngineUnavailable, err)
	case errors.Is(err, engine.ErrInvalid):
		return classify(ErrInvalidArgument, err)
	case errors.Is(err, engine.ErrUnsupported):
		return classify(ErrUnsupported, err)
	}
	return err
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrInvalidArgument, fmt.Errorf(format, args...))
}

// cancelled returns why ctx ended, as its canceller said it.
func cancelled(ctx context.Context) error {
	if cause := context.Cause(ctx); cause != ctx.Err() {
		return fmt.Errorf("%w: %w", ctx.Err(), cause)
	}
	return ctx.Err()
}

// startError says in Go's own terms why a command did not start.
func startError(path, dir string, e *wire.StartError) error {
	switch e.Kind {
	case wire.KindNotFound:
		return &exec.Error{Name: path, Err: exec.ErrNotFound}
	case wire.KindPermission:
		return &exec.Error{Name: path, Err: fs.ErrPermission}
	case wire.KindDirectory:
		return &os.PathError{Op: "chdir", Path: dir, Err: fmt.Errorf("%w: %s", fs.ErrNotExist, e.Message)}
	case wire.KindUser, wire.KindArguments:
		return classify(ErrInvalidArgument, e)
	case wire.KindUnknownProcess:
		return ErrProcessNotFound
	case wire.KindStopping:
		return classify(ErrNotRunning, e)
	}
	return &exec.Error{Name: path, Err: e}
}
