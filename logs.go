package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
)

// The streams of a [LogLine].
const (
	Stdout = "stdout"
	Stderr = "stderr"
)

// LogOptions say which part of a log to read. The zero value is all that is kept.
type LogOptions struct {
	// Tail is how many of the last lines to begin with; 0 is all of them, and a
	// negative one none, for who follows. Of lines longer than 16 KiB each 16 KiB
	// count as one.
	Tail int
	// Follow goes on with new lines until the session ends.
	Follow bool
	// Since leaves out what was written before. Zero leaves out nothing.
	Since time.Time
}

// LogLine is one line of a log.
type LogLine struct {
	// Stream is "stdout" or "stderr".
	Stream string
	// Time is when the line, or its first 16 KiB, reached the engine.
	Time time.Time
	// Text is the line without its end, as it was written: it need not be UTF-8.
	Text string
}

// maxLogLine bounds what one line may take in memory.
const maxLogLine = 16 << 20

// Logs reads what the main process ([WithCommand]) has written, in this session and
// those before, oldest first, each stream in the order it was written. The engine
// keeps the last 30 MB. A stopped sandbox can be read and is not resumed; one without
// a main process has nothing to say. Lines longer than 16 MiB come in pieces.
//
// An error is the last thing that the sequence yields. With [LogOptions.Follow] it
// ends without one when the session does, and with [ErrEngineUnavailable] when the
// engine was lost. ctx bounds all of it. Leaving the loop lets go of everything; the
// sequence may be ranged over again and then reads anew.
func (s *Sandbox) Logs(ctx context.Context, o LogOptions) iter.Seq2[LogLine, error] {
	return func(yield func(LogLine, error) bool) {
		if err := s.logs(ctx, o, func(l LogLine) bool { return yield(l, nil) }); err != nil {
			yield(LogLine{}, fail("logs", s.rec.Name, err))
		}
	}
}

func (s *Sandbox) logs(ctx context.Context, o LogOptions, yield func(LogLine) bool) error {
	if err := s.usable(); err != nil {
		return err
	}
	got, err := s.current(ctx)
	if err != nil {
		return err
	}
	log, err := s.eng.ReadLog(ctx, got.ID, engine.LogSpec{Tail: o.Tail, Follow: o.Follow, Since: o.Since})
	if errors.Is(err, engine.ErrNotFound) {
		return ErrNotFound
	}
	if err != nil {
		return err
	}
	defer log.Close()
	var out, errs lineBuffer
	for {
		p, err := log.Next()
		if err != nil {
			if !out.rest(Stdout, yield) || !errs.rest(Stderr, yield) {
				return nil
			}
			switch {
			case ctx.Err() != nil:
				return cancelled(ctx)
			case !errors.Is(err, io.EOF):
				return fmt.Errorf("read the log: %w", err)
			case o.Follow && hasSession(got):
				return s.sessionOver(ctx, got)
			}
			return nil
		}
		b, stream := &out, Stdout
		if p.Stderr {
			b, stream = &errs, Stderr
		}
		if line, whole := b.add(p); whole {
			line.Stream = stream
			if !yield(line) {
				return nil
			}
		}
	}
}

// lineBuffer puts a line together again.
type lineBuffer struct {
	begun bool
	time  time.Time
	text  []byte
}

func (b *lineBuffer) add(p engine.LogPiece) (LogLine, bool) {
	if !b.begun {
		if p.End { // as nearly all of them
			return LogLine{Time: p.Time, Text: string(p.Text)}, true
		}
		b.begun, b.time = true, p.Time
	}
	b.text = append(b.text, p.Text...)
	if !p.End && len(b.text) < maxLogLine {
		return LogLine{}, false
	}
	line := LogLine{Time: b.time, Text: string(b.text)}
	*b = lineBuffer{}
	return line, true
}

// rest yields a line that never ended.
func (b *lineBuffer) rest(stream string, yield func(LogLine) bool) bool {
	if !b.begun {
		return true
	}
	line := LogLine{Stream: stream, Time: b.time, Text: string(b.text)}
	*b = lineBuffer{}
	return yield(line)
}

// sessionEnds is how much later than the end of its log the engine may say that a
// session has ended.
const sessionEnds = 10 * time.Second

// sessionOver returns nil when the session is over, which its log's end alone does not
// say: an engine that goes away ends it, too.
func (s *Sandbox) sessionOver(ctx context.Context, was engine.Container) error {
	for deadline := time.Now().Add(sessionEnds); ; {
		got, err := s.eng.InspectContainer(ctx, record.ContainerName(s.rec.Name))
		switch {
		case errors.Is(err, engine.ErrNotFound):
			return nil // removed
		case err != nil:
			return fmt.Errorf("the log ended and so may have the session: %w", err)
		case got.ID != was.ID || !got.StartedAt.Equal(was.StartedAt) || !hasSession(got):
			return nil
		case time.Now().After(deadline):
			return classify(ErrEngineUnavailable, errors.New("the engine ended the log, and the session goes on"))
		}
		if err := pause(ctx, stillThere); err != nil {
			return err
		}
	}
}
