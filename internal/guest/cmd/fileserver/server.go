//go:build linux

package fileserver

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// server carries out file operations for one client, as the user it runs as.
type server struct {
	in     *os.File
	out    sync.Mutex
	failed bool // standard output is gone

	slots     chan struct{}  // one for each pending request
	replacing sync.WaitGroup // requests that replace a file

	mu      sync.Mutex
	last    uint64
	handles map[uint64]*handle
}

const (
	maxHandles  = 4096 // open files of one client
	maxRequests = 1024 // pending at once; one may block, on a pipe say
	// replaceTime bounds the replacements that are pending when the client is gone. One
	// whose target is a pipe may take for ever.
	replaceTime = time.Second
)

// Run serves requests on standard input until it ends, or SIGTERM comes. Requests that
// replace a file are completed, uncommitted replacements are discarded.
func Run() error {
	// Only a descriptor that does not block can be given up in the middle of a read.
	unix.SetNonblock(unix.Stdin, true)
	s := &server{in: os.NewFile(uintptr(unix.Stdin), "requests"), handles: map[uint64]*handle{}, slots: make(chan struct{}, maxRequests)}
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM)
	defer stop()
	defer s.abandon()
	context.AfterFunc(ctx, func() { s.in.SetReadDeadline(time.Unix(1, 0)) })
	in := bufio.NewReaderSize(s.in, 64<<10)
	for {
		id, op, message, err := wire.ReadFrame(in)
		if err == io.EOF || ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		s.start(id, op, wire.NewUnpack(message))
	}
}

// start carries a request out in the background, unless too many are pending.
func (s *server) start(id uint32, op byte, u *wire.Unpack) {
	select {
	case s.slots <- struct{}{}:
	default:
		s.reply(id, nil, unix.EAGAIN)
		return
	}
	replaces := op == wire.FileReplace || op == wire.FileBegin || op == wire.FileCommit
	if replaces {
		s.replacing.Add(1)
	}
	go func() {
		defer func() { <-s.slots }()
		out, err := s.do(op, u)
		if replaces {
			s.replacing.Done()
		}
		s.reply(id, out, err)
	}()
}

// abandon waits for pending replacements, and discards those not committed.
func (s *server) abandon() {
	replaced := make(chan struct{})
	go func() { s.replacing.Wait(); close(replaced) }()
	select {
	case <-replaced:
	case <-time.After(replaceTime):
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, h := range s.handles {
		if h.pending != nil {
			h.pending.discard()
		}
	}
}

func (s *server) reply(id uint32, out wire.Pack, err error) {
	kind := byte(wire.FileOK)
	if err != nil {
		kind = wire.FileFailed
		out = wire.NewFrame(8)
		out.Uint(uint64(errnoOf(err)))
	}
	s.out.Lock()
	defer s.out.Unlock()
	if s.failed {
		return
	}
	if _, err := os.Stdout.Write(out.End(id, kind)); err != nil {
		s.failed = true
		s.in.Close()
	}
}

// errnoOf returns the number of an error, EIO for one that has none.
func errnoOf(err error) syscall.Errno {
	if errno, ok := errors.AsType[syscall.Errno](err); ok && errno != 0 {
		return errno
	}
	switch {
	case errors.Is(err, wire.ErrFrame), errors.Is(err, os.ErrInvalid):
		return unix.EINVAL
	case errors.Is(err, os.ErrClosed):
		return unix.EBADF
	case errors.Is(err, os.ErrExist):
		return unix.EEXIST
	}
	return unix.EIO
}

// do carries out one request.
func (s *server) do(op byte, u *wire.Unpack) (wire.Pack, error) {
	if f, ok := handleOps[op]; ok {
		id := u.Uint()
		if u.Err() != nil {
			return nil, u.Err()
		}
		return f(s, id, u)
	}
	path, err := pathOf(u)
	if err != nil {
		return nil, err
	}
	if f, ok := pathOps[op]; ok {
		return f(s, path, u)
	}
	return nil, unix.ENOSYS
}

// pathOf reads a path, which the kernel would take for a shorter one with a NUL in it.
func pathOf(u *wire.Unpack) (string, error) {
	path := u.String()
	if u.Err() != nil || strings.IndexByte(path, 0) >= 0 {
		return "", unix.EINVAL
	}
	return path, nil
}
