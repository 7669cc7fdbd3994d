//go:build linux

package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// giveStdio sends the container's stdout and stderr to a process of root's.
func giveStdio(conn *os.File) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return
	}
	raw.Control(func(fd uintptr) {
		peer, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
		if err != nil || peer.Uid != 0 {
			return
		}
		unix.Sendmsg(int(fd), []byte{'\n'}, unix.UnixRights(1, 2), nil, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
	})
}

// stdioTimeout bounds what starting a keeper waits for PID 1.
const stdioTimeout = 2 * time.Second

// askStdio asks PID 1 for the container's stdout and stderr. The caller closes them.
func askStdio() (files [2]int, err error) {
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Net: "unix", Name: wire.ControlSocket})
	if err != nil {
		return files, err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(stdioTimeout))
	if peer, err := peerOf(conn); err != nil || peer.Pid != 1 {
		return files, errors.New("the control socket is not PID 1's")
	}
	if _, err := io.WriteString(conn, wire.StdioRequest); err != nil {
		return files, err
	}
	// First comes the challenge, a line of text, and then a byte with the rights. The
	// kernel ends a read where rights begin to be part of it, or after them.
	data, rights := make([]byte, 1024), make([]byte, unix.CmsgSpace(2*4))
	for {
		n, rn, _, _, err := conn.ReadMsgUnix(data, rights)
		if err != nil {
			return files, err
		}
		if n == 0 {
			return files, errors.New("PID 1 gives none")
		}
		if rn > 0 {
			return parseStdio(rights[:rn])
		}
	}
}

func parseStdio(rights []byte) (files [2]int, err error) {
	msgs, err := unix.ParseSocketControlMessage(rights)
	if err != nil || len(msgs) != 1 {
		return files, errors.Join(err, errors.New("PID 1 sent something else"))
	}
	fds, err := unix.ParseUnixRights(&msgs[0])
	if err != nil {
		return files, err
	}
	if len(fds) != len(files) {
		for _, fd := range fds {
			unix.Close(fd)
		}
		return files, fmt.Errorf("PID 1 sent %d descriptors", len(fds))
	}
	return [2]int(fds), nil
}

const (
	// logRate and logBurst bound, in bytes a second and bytes, what commands write to
	// the log: the engine works on it outside of the sandbox's limits. What is more
	// stays in the ring, as far as there is room.
	logRate  = 4 << 20
	logBurst = 8 << 20
	// logPatience is how long the keeper waits for the log when it ends.
	logPatience = 2 * time.Second
)

// jobLog writes the output of a command to the container's log.
type jobLog struct {
	out  [2]int // descriptors, by stream
	head string // of a frame, up to the flag
	part [2]bytes.Buffer
	rate budget
}

// budget is what may be written, a bucket that fills with time.
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

// follow writes what is in the ring until it ends.
func (l *jobLog) follow(r *ring) {
	f := r.follow()
	var missed int64
	for {
		stream, data, ok := f.next()
		if missed != f.dropped {
			text := fmt.Sprintf("[%d bytes of output came too fast for the log]", f.dropped-missed)
			missed = f.dropped
			l.write(1, []byte(text), wire.LogWhole)
		}
		if !ok {
			break
		}
		l.rate.take(len(data))
		l.add(int(stream-streamOut), data)
	}
	for i := range l.part {
		if l.part[i].Len() > 0 {
			l.write(i, l.part[i].Bytes(), wire.LogWhole)
		}
	}
}

// add cuts data of a stream into lines, and lines into frames.
func (l *jobLog) add(stream int, data []byte) {
	room := wire.MaxLogFrame - len(l.head) - len(". \n")
	part := &l.part[stream]
	for len(data) > 0 {
		line, rest, end := bytes.Cut(data, []byte("\n"))
		if n := room - part.Len(); len(line) > n {
			part.Write(line[:n])
			data = data[n:]
			l.write(stream, part.Bytes(), wire.LogPart)
			part.Reset()
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

// write writes one frame at once. A log that nobody reads blocks it, and so this
// command's log alone.
func (l *jobLog) write(stream int, text []byte, flag byte) {
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

// loggable says whether an ID can stand in a frame.
func loggable(id string) bool {
	for _, c := range []byte(id) {
		if c <= ' ' || c > '~' {
			return false
		}
	}
	return id != "" && len(id) <= wire.MaxLogID
}

// log starts to write p's output to the container's log, where the keeper has it. What
// it returns is closed when all of it is there.
func (k *keeper) log(p *kept) <-chan struct{} {
	done := make(chan struct{})
	if !k.logs || !loggable(p.req.ID) {
		close(done)
		return done
	}
	l := &jobLog{out: [2]int{1, 2}, head: wire.LogMark + p.req.ID + " "}
	go func() {
		defer close(done)
		l.follow(p.ring)
	}()
	return done
}
