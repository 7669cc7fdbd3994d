// Package trace reports calls, and what they wait for, to OpenTelemetry: a span and a duration for
// each, by the global providers. Without any they cost next to nothing. No attribute has a secret,
// an argument of a command, or the text of an error.
package trace

import (
	"context"
	"errors"
	"io/fs"
	"os/exec"
	"sync"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/seed-1a2d6d8f/sandbox/internal/errdefs"
)

const scope = "github.com/seed-1a2d6d8f/sandbox"

// The waits of calls. Names of spans of calls are "sandbox." and the verb.
const (
	Slot    = "sandbox.wait.slot"    // for one of Limits.Creates
	Pull    = "sandbox.wait.pull"    // for an image
	Copy    = "sandbox.wait.copy"    // for files on the engine's machine
	Pause   = "sandbox.wait.pause"   // for the engine to pause a source
	Other   = "sandbox.wait.other"   // for another caller to create, change or copy the sandbox, or until it is certain that it died
	Connect = "sandbox.wait.connect" // for a connection to the guest
	Hook    = "sandbox.wait.hook"    // for a function of the caller
)

// Hold is the span of the time in which the processes of a sandbox are held while it is copied.
const Hold = "sandbox.hold"

// Attr is an attribute of a span.
type Attr = attribute.KeyValue

// Name is the name of a sandbox, or the name or ID that a call was given.
func Name(name string) Attr { return attribute.String("sandbox.name", name) }

// Source is the name or ID of the sandbox that is forked.
func Source(name string) Attr { return attribute.String("sandbox.source", name) }

// ID is the ID of a sandbox.
func ID(id string) Attr { return attribute.String("sandbox.id", id) }

// Container is the engine's ID of a container.
func Container(id string) Attr { return attribute.String("container.id", id) }

// Image is the reference of an image.
func Image(ref string) Attr { return attribute.String("container.image.name", ref) }

// ExitCode is the exit code of a command.
func ExitCode(code int) Attr { return attribute.Int("process.exit.code", code) }

// A Span is a call, or a wait, that has not ended. The nil Span does nothing.
type Span struct {
	ctx   context.Context
	span  trace.Span
	name  string
	began time.Time
}

// Start begins a span within that of ctx, and returns it with the context for what it includes.
func Start(ctx context.Context, name string, attrs ...Attr) (context.Context, *Span) {
	s := &Span{name: name, began: time.Now()}
	s.ctx, s.span = otel.Tracer(scope).Start(ctx, name, trace.WithAttributes(attrs...))
	return s.ctx, s
}

// Set adds attributes.
func (s *Span) Set(attrs ...Attr) {
	if s != nil {
		s.span.SetAttributes(attrs...)
	}
}

// End ends the span, which failed if *err is not nil then. It is meant to be deferred.
func (s *Span) End(err *error) {
	if s == nil {
		return
	}
	attrs := []Attr{attribute.String("sandbox.operation", s.name)}
	if *err != nil {
		kind := attribute.String("error.type", ErrorType(*err))
		attrs = append(attrs, kind)
		s.span.SetAttributes(kind)
		s.span.SetStatus(codes.Error, "") // the text may have what the caller's functions say
	}
	durations().Record(s.ctx, time.Since(s.began).Seconds(), metric.WithAttributes(attrs...))
	s.span.End()
}

// Do calls fn in a span.
func Do(ctx context.Context, name string, fn func(context.Context) error, attrs ...Attr) (err error) {
	ctx, s := Start(ctx, name, attrs...)
	defer s.End(&err)
	return fn(ctx)
}

// durations follows the global provider, also one that is set later.
var durations = sync.OnceValue(func() metric.Float64Histogram {
	h, err := otel.Meter(scope).Float64Histogram("sandbox.operation.duration", metric.WithUnit("s"),
		metric.WithDescription("Duration of calls of the package, and of what they wait for"))
	if err != nil {
		otel.Handle(err)
	}
	return h
})

// ErrorType returns the class of an error.
func ErrorType(err error) string {
	var exit interface{ ExitCode() int }
	switch {
	case errors.As(err, &exit):
		return "exit"
	case errors.Is(err, context.Canceled):
		return "canceled"
	case errors.Is(err, context.DeadlineExceeded):
		return "deadline_exceeded"
	}
	kind := errdefs.Type(err)
	switch {
	case kind != "":
		return kind
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, exec.ErrNotFound):
		return "not_exist"
	case errors.Is(err, fs.ErrPermission):
		return "permission"
	}
	return "_OTHER" // by the semantic conventions
}
