package sandbox

import (
	"context"
	"iter"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/lifecycle"
	"github.com/seed-1a2d6d8f/sandbox/internal/trace"
)

// The values of [LogLine.Stream].
const (
	Stdout = "stdout"
	Stderr = "stderr"
)

// LogOptions select the part of a log to read. The zero value selects all that is kept.
type LogOptions struct {
	// Tail is how many of the last lines to start with. 0 is all; negative is none, which
	// is useful with Follow. Each started 16 KiB of a longer line counts as one line.
	Tail int
	// Follow continues with new lines until the session ends.
	Follow bool
	// Since skips lines written earlier. Zero skips nothing.
	Since time.Time
}

// LogLine is one line of a log.
type LogLine struct {
	// Stream is "stdout" or "stderr".
	Stream string `json:"stream"`
	// Time is when the line, or its first 16 KiB, reached the engine.
	Time time.Time `json:"time"`
	// Text is the line without its end. The engine may have replaced bytes that are not
	// UTF-8, and in lines of the main process characters across a multiple of 16 KiB. It
	// keeps back what the main process has written of a line until the line, 16 KiB of it, or
	// the session ends.
	Text string `json:"text"`
	// Command is the ID of the detached command that wrote the line (see [Cmd.ID]); empty
	// for the main process.
	Command string `json:"command,omitempty"`
}

// Logs reads the output of the main process ([WithCommand]) and of detached commands, of
// this session and earlier ones, oldest first; each stream of each process is in the
// order written. The engine keeps the last 30 MB. A stopped sandbox is not resumed. Lines
// longer than 16 MiB are split, and so are lines that are incomplete while all incomplete
// lines together have 32 MiB. If a detached command writes more than 4 MiB/s for long,
// lines may be missing, and the log says so. Programs inside write the log themselves, so
// do not trust its content.
//
// With [LogOptions.Follow], lines may be missing while a main process writes tens of
// megabytes at once: engines as old as 20.10 lose a follower's position when they rotate
// the log. Reading again returns all that is kept.
//
// The last value of the sequence has the error, if any. With Follow the sequence ends
// without an error when the session ends, and with [ErrEngineUnavailable] if the
// connection to the engine is lost: it is asked for an answer every 10 s, and has 10 s for
// it. ctx bounds the whole sequence. Leaving the loop releases all resources. Ranging over
// the sequence again reads again.
func (s *Sandbox) Logs(ctx context.Context, o LogOptions) iter.Seq2[LogLine, error] {
	return func(yield func(LogLine, error) bool) {
		var err error
		ctx, span := trace.Start(ctx, "sandbox.logs", s.h.Trace()...)
		defer span.End(&err) // also if yield panics
		err = s.h.Logs(ctx, lifecycle.LogOptions(o), func(l lifecycle.LogLine) bool { return yield(LogLine(l), nil) })
		if err != nil {
			yield(LogLine{}, fail("logs", s.Name(), err))
		}
	}
}
