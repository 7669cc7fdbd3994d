package engine

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// The engine sends stdout and stderr over one connection in frames: one byte for the stream,
// three zero bytes, four for the length, then the payload.
const (
	frameHeader = 8
	demuxBuffer = 64 << 10

	streamStdin  = 0 // the engine's documentation allows it for stdout
	streamStdout = 1
	streamStderr = 2
	streamEngine = 3 // an error message of the engine
)

// frameError is a malformed frame.
type frameError struct {
	stream byte
	text   string // the first bytes, which may be a message of the engine
}

func (e *frameError) Error() string {
	return fmt.Sprintf("malformed frame of kind %d: %.512q", e.stream, e.text)
}

// demux reads stdout from a stream of frames, and copies stderr to a writer on the way. It
// is not safe for concurrent use.
type demux struct {
	r      *bufio.Reader
	stderr io.Writer
	left   uint32 // of the current stdout frame
	err    error  // sticky
}

// newDemux reads frames from r. stderr may be nil.
func newDemux(r io.Reader, stderr io.Writer) *demux {
	if stderr == nil {
		stderr = io.Discard
	}
	return &demux{r: bufio.NewReaderSize(r, demuxBuffer), stderr: stderr}
}

// Read reads stdout. It returns io.EOF when the stream ends between two
// frames, and io.ErrUnexpectedEOF when it ends within one.
func (d *demux) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for d.err == nil && d.left == 0 {
		d.err = d.next()
	}
	if d.err != nil {
		return 0, d.err
	}
	if uint64(len(p)) > uint64(d.left) {
		p = p[:d.left]
	}
	n, err := d.r.Read(p)
	d.left -= uint32(n)
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	d.err = err
	if n > 0 {
		return n, nil
	}
	return 0, err
}

// next reads a frame's header, and the whole frame unless it is stdout.
func (d *demux) next() error {
	// Peek, unlike ReadFull, allocates nothing.
	h, err := d.r.Peek(frameHeader)
	if err != nil {
		if errors.Is(err, io.EOF) && len(h) > 0 {
			return io.ErrUnexpectedEOF
		}
		return err
	}
	stream, size := h[0], binary.BigEndian.Uint32(h[4:])
	if h[1]|h[2]|h[3] != 0 {
		text, _ := d.r.Peek(d.r.Buffered())
		return &frameError{stream: stream, text: string(text[:min(len(text), 512)])}
	}
	if _, err := d.r.Discard(frameHeader); err != nil {
		return err
	}
	switch stream {
	case streamStdin, streamStdout:
		d.left = size
		return nil
	case streamStderr:
		return d.copy(d.stderr, size)
	case streamEngine:
		var text tail
		if err := d.copy(&text, size); err != nil {
			return err
		}
		return &StatusError{Message: text.String()}
	}
	return &frameError{stream: stream}
}

// copy writes size bytes to w directly from the buffer.
func (d *demux) copy(w io.Writer, size uint32) error {
	for size > 0 {
		if _, err := d.r.Peek(1); err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return err
		}
		b, _ := d.r.Peek(int(min(uint32(d.r.Buffered()), size)))
		if _, err := w.Write(b); err != nil {
			return err
		}
		size -= uint32(len(b))
		if _, err := d.r.Discard(len(b)); err != nil {
			return err
		}
	}
	return nil
}
