// Package errdefs defines the errors that callers branch on.
package errdefs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"
)

// The classes of errors, each with its HTTP status code. The root package exports them
// with the prefix Err and documents them.
var (
	NotFound          error = &class{"Sandbox not found", 404}
	Exists            error = &class{"Sandbox already exists", 409}
	Foreign           error = &class{"Name is held by something that is not a sandbox", 409}
	InvalidArgument   error = &class{"Invalid argument", 400}
	VolumeInUse       error = &class{"Volume is in use by running sandbox", 409}
	VolumeNotFound    error = &class{"Volume not found", 404}
	SnapshotNotFound  error = &class{"Snapshot not found", 404}
	SnapshotInUse     error = &class{"Snapshot is in use", 409}
	ProcessNotFound   error = &class{"Process not found", 404}
	ImageNotFound     error = &class{"Image not found", 404}
	EngineUnavailable error = &class{"Docker Engine unavailable", 503}
	Unsupported       error = &class{"Not supported by this engine", 501}
	NotRunning        error = &class{"Sandbox is not running", 409}
	SessionLost       error = &class{"Session lost", 409}
	Closed            error = &class{"Sandbox handle is closed", 409}
	Timeout           error = &class{"Timed out", 504}
	TooLarge          error = &class{"Too large", 413}
	NoCapacity        error = &class{"No capacity", 503}
)

type class struct {
	text string
	code int
}

func (e *class) Error() string { return e.text }

// Known reports whether err has one of the classes.
func Known(err error) bool {
	var c *class
	return errors.As(err, &c)
}

// Type returns the class of err as an identifier, such as "sandbox_not_found", or "" if it
// has none.
func Type(err error) string {
	var c *class
	if errors.As(err, &c) {
		return strings.ReplaceAll(strings.ToLower(c.text), " ", "_")
	}
	return ""
}

// kernel has the HTTP status codes of the kernel's errors.
var kernel = map[syscall.Errno]int{
	syscall.EINVAL: 400, syscall.EISDIR: 400, syscall.ENOTDIR: 400, syscall.ELOOP: 400, syscall.ENAMETOOLONG: 400, syscall.EXDEV: 400, syscall.ENOEXEC: 400,
	syscall.EROFS: 403, syscall.EBUSY: 409, syscall.ETXTBSY: 409, syscall.EFBIG: 413, syscall.ENOSPC: 507, syscall.EDQUOT: 507,
}

// StatusCode returns the HTTP status code for err: that of its class, else 504 for a
// deadline, 499 for a cancelled context, 404, 403 or 409 for an error of package fs, 409 for a process that has ended, that of the
// kernel's error, else 500.
func StatusCode(err error) int {
	var c *class
	var e syscall.Errno
	switch {
	case errors.As(err, &c):
		return c.code
	case errors.Is(err, context.DeadlineExceeded):
		return Timeout.(*class).code
	case errors.Is(err, context.Canceled):
		return 499
	case errors.Is(err, fs.ErrNotExist):
		return 404
	case errors.Is(err, fs.ErrPermission):
		return 403
	case errors.Is(err, fs.ErrExist), errors.Is(err, os.ErrProcessDone):
		return 409
	case errors.As(err, &e) && kernel[e] != 0:
		return kernel[e]
	}
	return 500
}

// classified adds a class to an error.
type classified struct {
	class error
	err   error
}

func (e *classified) Error() string   { return e.class.Error() + ": " + e.err.Error() }
func (e *classified) Unwrap() []error { return []error{e.class, e.err} }

// Classify returns err with a class.
func Classify(class, err error) error { return &classified{class, err} }

// lost is the error of a session that has ended.
type lost struct {
	why    string
	causes []error
}

func (e *lost) Error() string   { return SessionLost.Error() + ": " + e.why }
func (e *lost) Unwrap() []error { return e.causes }

// Lost returns a [SessionLost] that says why. causes, of which SessionLost is one, are in the order of
// their precedence for [StatusCode] and [Type].
func Lost(why string, causes ...error) error { return &lost{why, causes} }

// Invalid returns an [InvalidArgument] with a formatted cause.
func Invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %w", InvalidArgument, fmt.Errorf(format, args...))
}

// Cancelled returns the error of a call whose context has ended, with its cause if it has one.
func Cancelled(ctx context.Context) error {
	if cause := context.Cause(ctx); cause != ctx.Err() {
		return fmt.Errorf("%w: %w", ctx.Err(), cause)
	}
	return ctx.Err()
}
