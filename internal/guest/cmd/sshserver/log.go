//go:build linux

package sshserver

import (
	"bytes"
	"fmt"
	"sync"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

const (
	// logRate (bytes a second) and logBurst (bytes) bound what commands write to the log,
	// which the engine processes outside of the sandbox's limits. The rest waits in the
	// ring, as far as there is room.
	logRate  = 4 << 20
	logBurst = 8 << 20
	// logPatience is how long the keeper waits for the log of a command that has ended.
	logPatience = 2 * time.Second
	// logQuiet is how long the beginning of a line waits for more: it may be a question.
	logQuiet = 500 * time.Millisecond
)

// containerLog writes the output of a command to the container's log.
type containerLog struct {
	out  [2]int // descriptors, by stream
	head string // of a frame, up to the flag
	rate budget

	mu   sync.Mutex
	part [2]bytes.Buffer // of the last line, what is not written
	open [2]bool         // its beginning is written
}

// budget is a token bucket of bytes.
type budget struct {
	left float64
	last time.Time
}

// take waits until n more bytes may be written.
func (b *budget) take(n int) {
	now := time.Now()
	if b.last.IsZero() {
		b.left, b.last = logBurst, now
	}
	b.left = min(b.left+now.Sub(b.last).Seconds()*logRate, logBurst) - float64(n)
	b.last = now
	if b.left < 0 {
		time.Sleep(time.Duration(-b.left / logRate * float64(time.Second)))
	}
}

// follow writes the ring to the log until it ends.
func (l *containerLog) follow(r *ring) {
	f := r.follow()
	quiet := time.AfterFunc(logQuiet, l.flush)
	defer quiet.Stop()
	var missed int64
	for {
		stream, data, ok := f.next()
		if ok {
			l.rate.take(len(data))
		}
		l.mu.Lock()
		if missed != f.dropped {
			text := fmt.Sprintf("[%d bytes of output came too fast for the log]", f.dropped-missed)
			missed = f.dropped
			l.write(1, []byte(text), wire.LogWhole)
		}
		if !ok {
			break
		}
		l.add(int(stream-streamOut), data)
		l.mu.Unlock()
		quiet.Reset(logQuiet)
	}
	defer l.mu.Unlock()
	for i := range l.part {
		if l.part[i].Len() > 0 || l.open[i] {
			l.write(i, l.part[i].Bytes(), wire.LogWhole)
			l.part[i].Reset()
		}
	}
}

// flush writes the beginnings of lines, but for half a character and half an end of line.
func (l *containerLog) flush() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.part {
		text := l.part[i].Bytes()
		text = bytes.TrimSuffix(text[:wholeRunes(text)], []byte("\r"))
		if len(text) > 0 {
			l.write(i, text, wire.LogPart)
			l.part[i].Next(len(text))
		}
	}
}

// add splits data of a stream into lines, and lines into frames.
func (l *containerLog) add(stream int, data []byte) {
	room := wire.MaxLogFrame - len(l.head) - len(". \n")
	part := &l.part[stream]
	for len(data) > 0 {
		line, rest, end := bytes.Cut(data, []byte("\n"))
		if n := room - part.Len(); len(line) > n {
			part.Write(line[:n])
			data = data[n:]
			// The engine replaces what is not UTF-8 in an entry, so half a character waits.
			full := part.Bytes()
			whole := wholeRunes(full)
			l.write(stream, full[:whole], wire.LogPart)
			part.Next(whole)
			continue
		}
		part.Write(line)
		data = rest
		if end {
			l.write(stream, bytes.TrimSuffix(part.Bytes(), []byte("\r")), wire.LogWhole)
			part.Reset()
		}
	}
}

// wholeRunes returns how much of text is before a character that has only begun.
func wholeRunes(text []byte) int {
	for i := len(text) - 1; i >= 0 && i > len(text)-utf8.UTFMax; i-- {
		if utf8.RuneStart(text[i]) {
			if !utf8.FullRune(text[i:]) {
				return i
			}
			break
		}
	}
	return len(text)
}

// write writes one frame by one system call. A log that nobody reads blocks this command's
// log, and no other.
func (l *containerLog) write(stream int, text []byte, flag byte) {
	l.open[stream] = flag == wire.LogPart
	frame := make([]byte, 0, len(l.head)+len(text)+3)
	frame = append(append(frame, l.head...), flag, ' ')
	frame = append(append(frame, text...), '\n')
	for {
		_, err := unix.Write(l.out[stream], frame)
		switch err {
		case unix.EINTR:
			continue
		case unix.EAGAIN: // the main process may have made it so
			time.Sleep(10 * time.Millisecond)
			continue
		}
		return
	}
}

// loggable reports whether an ID can be in a frame.
func loggable(id string) bool {
	for _, c := range []byte(id) {
		if c <= ' ' || c > '~' {
			return false
		}
	}
	return id != "" && len(id) <= wire.MaxLogID
}

// log starts to write the output of d to the container's log, if the keeper has it. The
// channel is closed when all of it is written.
func (k *keeper) log(d *detached) <-chan struct{} {
	done := make(chan struct{})
	if !loggable(d.command.Request().ID) {
		close(done)
		return done
	}
	l := &containerLog{out: [2]int{1, 2}, head: wire.LogMark + d.command.Request().ID + " "}
	go func() {
		defer close(done)
		l.follow(d.ring)
	}()
	return done
}
