package sandbox

import (
	"errors"
	"fmt"

	"github.com/seed-1a2d6d8f/sandbox/internal/errdefs"
	"github.com/seed-1a2d6d8f/sandbox/internal/store"
)

// The errors that a caller branches on, with [errors.Is]. The engine's own error stays in
// the chain. The number is the HTTP status of [Error.StatusCode].
var (
	// ErrNotFound means that no sandbox has this name or ID. 404.
	ErrNotFound error = errdefs.NotFound
	// ErrExists means that another sandbox has this name or ID. 409.
	ErrExists error = errdefs.Exists
	// ErrForeign means that an object that this library did not create has this name. The
	// library never changes such objects. 409.
	ErrForeign error = errdefs.Foreign
	// ErrInvalidArgument means that an option or a name is invalid. Nothing has changed.
	// 400.
	ErrInvalidArgument error = errdefs.InvalidArgument
	// ErrVolumeInUse means that containers use the volume, so it can't be deleted. 409.
	ErrVolumeInUse error = errdefs.VolumeInUse
	// ErrVolumeNotFound means that no volume of this library has this name. 404.
	ErrVolumeNotFound error = errdefs.VolumeNotFound
	// ErrSnapshotNotFound means that no snapshot has this ID. 404.
	ErrSnapshotNotFound error = errdefs.SnapshotNotFound
	// ErrSnapshotInUse means that volumes share the snapshot's files, so it can't be
	// deleted. 409.
	ErrSnapshotInUse error = errdefs.SnapshotInUse
	// ErrProcessNotFound means that the session knows no detached command with this ID.
	// There never was one, its session has ended, or later commands displaced it
	// ([Cmd.Detached]). 404.
	ErrProcessNotFound error = errdefs.ProcessNotFound
	// ErrImageNotFound means that the engine neither has the image nor can pull it. 404.
	ErrImageNotFound error = errdefs.ImageNotFound
	// ErrEngineUnavailable means that the Docker Engine can't be reached, that the connection
	// to it was lost during the call, or that the engine or the sandbox did not answer within a
	// limit of this package. The text names the limit. 503.
	ErrEngineUnavailable error = errdefs.EngineUnavailable
	// ErrUnsupported means that this engine lacks a feature that the call needs. 501.
	ErrUnsupported error = errdefs.Unsupported
	// ErrNotRunning means that the sandbox has no session and the call does not start
	// one. 409.
	ErrNotRunning error = errdefs.NotRunning
	// ErrSessionLost means that the session of a call has ended, or that its engine can't be reached any
	// more. The text says why: "stopped" (by whoever), "timeout",
	// "idle timeout", "out of memory" and the other values of [Status].Reason, that the sandbox
	// was removed, or what is wrong with the engine. It is [ErrNotRunning], [ErrNotFound] or
	// [ErrEngineUnavailable] as well. A call on a handle that this program has closed is
	// [ErrClosed] instead. 409, for the engine 503.
	ErrSessionLost error = errdefs.SessionLost
	// ErrClosed means that the handle was closed or detached, or the client closed. 409.
	ErrClosed error = errdefs.Closed
	// ErrTimeout means that a timeout of an option or a field has passed, and not the context's.
	// 504.
	ErrTimeout error = errdefs.Timeout
	// ErrTooLarge means that a sandbox has more than this program accepts from it: a file, a
	// directory, the output of a command or a tree. The text names the limit: a field of
	// [Limits] or [CopyOptions]. 413.
	ErrTooLarge error = errdefs.TooLarge
	// ErrNoCapacity means that no node of a swarm that may have the sandbox has room for it, see
	// [WithSwarm]. The text says what each lacks. 503.
	ErrNoCapacity error = errdefs.NoCapacity
)

// Error is the type of the errors of this package: the operation, its subject and the
// cause. A command that fails returns an [ExitError] instead.
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

// StatusCode returns the HTTP status for the error: 400 for invalid arguments and for paths that are not
// what the call needs ([syscall.EISDIR], [syscall.ENOTDIR], [syscall.ENAMETOOLONG] and their like), 403 for
// files without permission and file systems that are read-only, 404 for missing objects and files, 409 for
// conflicts, for what is busy ([syscall.EBUSY]) and for commands that have ended ([os.ErrProcessDone]), 413
// for exceeded limits, 499 if the caller's context was cancelled, 501 for unsupported features, 503 if the
// engine is unavailable, 504 for timeouts, 507 for file systems that are full, otherwise 500.
func (e *Error) StatusCode() int { return errdefs.StatusCode(e.Err) }

// fail wraps err once, where the exported call returns it.
func fail(op, name string, err error) error {
	if err == nil {
		return nil
	}
	var already *Error
	if errors.As(err, &already) && already.Op == op && already.Name == name {
		return err
	}
	return &Error{Op: op, Name: name, Err: store.Classify(err)}
}

// wrap is fail for a named result, to be deferred.
func wrap(err *error, op, name string) { *err = fail(op, name, *err) }
