package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/client"

	"github.com/seed-1a2d6d8f/sandbox/internal/bound"
)

// The error classes. Every error of this package matches at most one of them with
// [errors.Is], and wraps the engine's own error. An error without a class is an internal
// one of the engine, or a caller's cancellation, which matches [context.Canceled] or
// [context.DeadlineExceeded].
var (
	// ErrNotFound: there is no such container, volume, image, exec or path.
	ErrNotFound = errors.New("not found")
	// ErrConflict: the name is taken, or the object is in use or in a state
	// that does not allow the call.
	ErrConflict = errors.New("conflict")
	// ErrInvalid: an argument is malformed. Names are checked before any call.
	ErrInvalid = errors.New("invalid argument")
	// ErrUnavailable: the engine could not be reached, or the connection broke: the call
	// may or may not have taken effect.
	ErrUnavailable = errors.New("engine unavailable")
	// ErrForbidden: the engine, or a registry, denies access to this caller.
	ErrForbidden = errors.New("forbidden")
	// ErrUnsupported: this engine cannot do it.
	ErrUnsupported = errors.New("not supported by the engine")
	// ErrBusy: a volume can't be mounted yet, because its previous mount is still being
	// unmounted.
	ErrBusy = errors.New("busy")
)

// StatusError is an error reply of the engine.
type StatusError struct {
	Status  int    // HTTP status
	Message string // the engine's message
}

// Error is the engine's own message.
func (e *StatusError) Error() string { return e.Message }

// NoImageError reports that a container could not be created because the engine does not
// have the image. It matches [ErrNotFound].
type NoImageError struct{ Ref string }

// Error names the image.
func (e *NoImageError) Error() string { return fmt.Sprintf("no such image %q", e.Ref) }

// Is reports whether target is [ErrNotFound].
func (e *NoImageError) Is(target error) bool { return target == ErrNotFound }

// RemovalInProgressError reports that another call is removing the container, which will
// soon be gone. It matches [ErrConflict].
type RemovalInProgressError struct{ Ref string }

// Error names the container.
func (e *RemovalInProgressError) Error() string {
	return fmt.Sprintf("container %q is already being removed", e.Ref)
}

// Is reports whether target is [ErrConflict].
func (e *RemovalInProgressError) Is(target error) bool { return target == ErrConflict }

// IsMountError reports whether err says that a volume could not be mounted. The engine has no
// other sign of it than its text.
func IsMountError(err error) bool {
	return err != nil && strings.Contains(strings.ToLower(err.Error()), "mount")
}

// OutOfKeys reports whether err says that the kernel has no key left for a container's user, of which
// each process that the OCI runtime starts takes one. With userns-remap and without root all
// containers have the same user, and the kernel's default is 200 keys.
func OutOfKeys(err error) bool {
	return err != nil && strings.Contains(err.Error(), "create session key: disk quota exceeded")
}

// ExplainKeys adds to such an error what to do.
func ExplainKeys(err error) error {
	if !OutOfKeys(err) {
		return err
	}
	return fmt.Errorf("%w: the user of the engine's containers has no kernel key left: run fewer sandboxes, or raise the sysctl kernel.keys.maxkeys on its machine", err)
}

// Retry calls fn, and again up to four times within a second while it fails with
// [ErrUnavailable].
func Retry(ctx context.Context, fn func() error) error {
	for wait := 50 * time.Millisecond; ; wait *= 2 {
		err := fn()
		if !errors.Is(err, ErrUnavailable) || wait > 400*time.Millisecond {
			return err
		}
		if bound.Sleep(ctx, wait) != nil {
			return err
		}
	}
}

// RetryCall is [Retry] for a call that returns a value.
func RetryCall[T any](ctx context.Context, call func() (T, error)) (got T, err error) {
	err = Retry(ctx, func() (err error) {
		got, err = call()
		return err
	})
	return got, err
}

// classed is an error with its class.
type classed struct {
	class error
	text  string
	err   error
}

func (e *classed) Error() string   { return e.text }
func (e *classed) Unwrap() []error { return []error{e.class, e.err} }

func invalid(format string, args ...any) error {
	return &classed{class: ErrInvalid, text: fmt.Sprintf(format, args...), err: ErrInvalid}
}

// canceled is a cancellation by the caller. It matches the context's error and its cause,
// and not the transport's error.
type canceled struct{ err, cause error }

func (e *canceled) Error() string   { return e.cause.Error() }
func (e *canceled) Unwrap() []error { return []error{e.err, e.cause} }

// transportError marks the error of a request without a reply. Its text is neutral on
// purpose: the Docker client searches error texts for some words, and would drop the cause.
type transportError struct{ err error }

func (e *transportError) Error() string { return "no reply from the engine" }
func (e *transportError) Unwrap() error { return e.err }

// opaque has the text of an error but not its identity: a dial's own timeout matches
// context.DeadlineExceeded, which must mean the caller's deadline.
type opaque string

func (e opaque) Error() string { return string(e) }

// timeoutError reports that an engine accepted a connection and did not answer.
type timeoutError struct{ after time.Duration }

func (e *timeoutError) Error() string { return fmt.Sprintf("no answer within %v", e.after) }

// done is ctx.Err, but also covers a deadline that has passed before the context's timer
// fires: a dial has a timer of its own for the deadline, which may be first.
func done(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if d, ok := ctx.Deadline(); ok && !time.Now().Before(d) {
		return context.DeadlineExceeded
	}
	return nil
}

// fail classifies err. ctx is the caller's.
func (e *Engine) fail(ctx context.Context, err error) error {
	if err == nil || hasClass(err) {
		return err
	}
	broken := isBroken(err)
	if ctxErr := done(ctx); ctxErr != nil {
		cause := context.Cause(ctx)
		if cause == nil {
			cause = ctxErr
		}
		if broken || errors.Is(err, ctxErr) || errors.Is(err, cause) {
			return &canceled{err: ctxErr, cause: cause}
		}
	}
	if broken {
		return unavailable(e.Host(), err)
	}
	if err = refused(err); e.podman.Load() && !hasClass(err) {
		err = podmanClass(err)
	}
	return err
}

func hasClass(err error) bool {
	for _, class := range []error{ErrNotFound, ErrConflict, ErrInvalid, ErrUnavailable, ErrForbidden, ErrUnsupported, ErrBusy} {
		if errors.Is(err, class) {
			return true
		}
	}
	var c *canceled
	return errors.As(err, &c)
}

// IsInternal reports whether err is an answer of the engine without a class: it tried and failed.
func IsInternal(err error) bool {
	var status *StatusError
	var plain *plainError
	return err != nil && !hasClass(err) && (errors.As(err, &status) || errors.As(err, &plain))
}

// OwnMistake returns the error of a call whose arguments are this program's own: without the class of
// an [ErrInvalid], which says that the caller's are wrong.
func OwnMistake(err error) error {
	var c *classed
	if !errors.As(err, &c) || c.class != ErrInvalid {
		return err
	}
	return &plainError{text: err.Error(), err: c.err}
}

// unavailable wraps the error of a broken connection to host.
func unavailable(host string, err error) error {
	text := err.Error()
	if te := (*transportError)(nil); errors.As(err, &te) {
		text = te.err.Error()
		err = te.err
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		err = opaque(text)
	}
	return &classed{class: ErrUnavailable, text: fmt.Sprintf("engine at %s: %s", host, text), err: err}
}

// isBroken reports whether err is a connection's error and not the engine's answer.
func isBroken(err error) bool {
	for _, e := range []error{
		io.EOF, io.ErrUnexpectedEOF, io.ErrClosedPipe, net.ErrClosed, errNotAnEngine,
		syscall.ECONNRESET, syscall.ECONNREFUSED, syscall.EPIPE,
	} {
		if errors.Is(err, e) {
			return true
		}
	}
	var (
		transport *transportError
		timeout   *timeoutError
		network   net.Error
		frame     *frameError
		syntax    *json.SyntaxError
	)
	return client.IsErrConnectionFailed(err) || errors.As(err, &transport) || errors.As(err, &timeout) ||
		errors.As(err, &network) || errors.As(err, &frame) || errors.As(err, &syntax)
}

// refused classifies an error reply, and reduces it to the engine's message.
func refused(err error) error {
	var status *StatusError
	if errors.As(err, &status) {
		if class := classOfStatus(status.Status); class != nil {
			return &classed{class: class, text: status.Message, err: err}
		}
		return err
	}
	for _, c := range []struct {
		is    func(error) bool
		class error
	}{
		{cerrdefs.IsNotFound, ErrNotFound},
		{cerrdefs.IsConflict, ErrConflict},
		{cerrdefs.IsAlreadyExists, ErrConflict},
		{cerrdefs.IsFailedPrecondition, ErrConflict},
		{cerrdefs.IsNotModified, ErrConflict},
		{cerrdefs.IsUnauthorized, ErrForbidden},
		{cerrdefs.IsPermissionDenied, ErrForbidden},
		{cerrdefs.IsNotImplemented, ErrUnsupported},
		{cerrdefs.IsUnavailable, ErrUnavailable},
		{cerrdefs.IsInvalidArgument, ErrInvalid},
		{cerrdefs.IsOutOfRange, ErrInvalid},
	} {
		if c.is(err) {
			return &classed{class: c.class, text: plain(err), err: err}
		}
	}
	return &plainError{text: plain(err), err: err}
}

// plainError is an error without class, with the engine's message as its text.
type plainError struct {
	text string
	err  error
}

func (e *plainError) Error() string { return e.text }
func (e *plainError) Unwrap() error { return e.err }

func classOfStatus(status int) error {
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden:
		return ErrForbidden
	case http.StatusNotFound:
		return ErrNotFound
	case http.StatusConflict, http.StatusPreconditionFailed:
		return ErrConflict
	case http.StatusNotImplemented, http.StatusMethodNotAllowed:
		return ErrUnsupported
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return ErrUnavailable
	}
	if status >= 400 && status < 500 {
		return ErrInvalid
	}
	return nil
}

// plain is the engine's message, without the prefixes of the client.
func plain(err error) string {
	for {
		next := errors.Unwrap(err)
		if next == nil {
			return err.Error()
		}
		err = next
	}
}

// checkStatus turns an error reply into a [*StatusError], and closes it.
func checkStatus(resp *http.Response) error {
	if resp.StatusCode < 400 {
		return nil
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return err
	}
	var reply struct{ Message string }
	if json.Unmarshal(body, &reply) != nil || reply.Message == "" {
		reply.Message = strings.TrimSpace(string(body))
	}
	if reply.Message == "" {
		reply.Message = resp.Status
	}
	return &StatusError{Status: resp.StatusCode, Message: reply.Message}
}
