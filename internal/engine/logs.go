package engine

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"slices"
	"strconv"
	"time"

	"github.com/docker/docker/api/types/container"
)

// LogSpec selects a part of a container's log.
type LogSpec struct {
	Tail           int  // last lines; zero means all, negative only new ones
	Follow         bool // continue until the container stops
	Stdout, Stderr bool // neither means both
	Timestamps     bool // RFC 3339 with nanoseconds before each line
	Since          time.Time
}

// Logs streams the output of the container's main process, in the engine's frames of stdout
// and stderr (see demux.go), or raw if the container has a TTY. ctx bounds the stream; the
// caller closes it.
func (e *Engine) Logs(ctx context.Context, id string, s LogSpec) (io.ReadCloser, error) {
	if err := checkName("container", id); err != nil {
		return nil, err
	}
	both := !s.Stdout && !s.Stderr
	o := container.LogsOptions{
		ShowStdout: s.Stdout || both, ShowStderr: s.Stderr || both,
		Timestamps: s.Timestamps, Follow: s.Follow, Tail: "all",
	}
	switch {
	case s.Tail > 0:
		o.Tail = strconv.Itoa(s.Tail)
	case s.Tail < 0:
		o.Tail = "0"
	}
	if !s.Since.IsZero() {
		o.Since = s.Since.UTC().Format(time.RFC3339Nano)
	}
	rc, err := e.cli.ContainerLogs(ctx, id, o)
	if err != nil {
		return nil, e.fail(ctx, err)
	}
	return &reply{ctx: ctx, e: e, rc: rc}, nil
}

// LogPiece is one entry of a container's log: a line, or a part of one. The engine splits
// lines after 16 KiB.
type LogPiece struct {
	Stderr bool
	Time   time.Time // zero if the engine gave none
	Text   []byte    // without the end of line; valid until the next piece
	End    bool      // it is the end of its line
	// Broken says that its line has no end: the container stopped before. The next piece begins
	// another one.
	Broken bool
}

// logPieceSize is the least size of a piece whose line goes on. Only at the end of a stream are
// smaller ones stored, and only by Docker: Podman stores what it reads.
const logPieceSize = 16 << 10

// LogReader reads the log of a container without a TTY, entry by entry. It is not safe
// for concurrent use.
type LogReader struct {
	ctx context.Context
	e   *Engine
	rc  io.ReadCloser
	r   *bufio.Reader
	buf []byte
}

// maxLogFrame is far more than any engine's entry.
const maxLogFrame = 4 << 20

// ReadLog is [Engine.Logs] entry by entry, each with its time. The caller closes it.
func (e *Engine) ReadLog(ctx context.Context, id string, s LogSpec) (*LogReader, error) {
	s.Timestamps = true
	rc, err := e.Logs(ctx, id, s)
	if err != nil {
		return nil, err
	}
	return &LogReader{ctx: ctx, e: e, rc: rc, r: bufio.NewReaderSize(rc, demuxBuffer)}, nil
}

// Close ends the reading.
func (l *LogReader) Close() error { return l.rc.Close() }

// Next waits for the next entry. The error is io.EOF if the stream ends between two entries,
// at the end of the container or because the engine closed it.
func (l *LogReader) Next() (LogPiece, error) {
	p, err := l.next()
	if err != nil && err != io.EOF {
		err = l.e.fail(l.ctx, err)
	}
	return p, err
}

func (l *LogReader) next() (LogPiece, error) {
	var h [frameHeader]byte
	if _, err := io.ReadFull(l.r, h[:]); err != nil {
		return LogPiece{}, err
	}
	size := binary.BigEndian.Uint32(h[4:])
	if h[1]|h[2]|h[3] != 0 || h[0] > streamEngine || size > maxLogFrame {
		return LogPiece{}, &frameError{stream: h[0]}
	}
	l.buf = slices.Grow(l.buf[:0], int(size))[:size]
	if _, err := io.ReadFull(l.r, l.buf); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return LogPiece{}, err
	}
	if h[0] == streamEngine {
		return LogPiece{}, &StatusError{Message: string(l.buf)}
	}
	p := LogPiece{Stderr: h[0] == streamStderr}
	p.Text, p.End = bytes.CutSuffix(l.buf, []byte("\n"))
	if stamp, text, ok := bytes.Cut(p.Text, []byte(" ")); ok {
		if t, err := time.Parse(time.RFC3339Nano, string(stamp)); err == nil {
			p.Time, p.Text = t, text
		}
	}
	p.Broken = !p.End && len(p.Text) < logPieceSize && !l.e.podman.Load()
	return p, nil
}
