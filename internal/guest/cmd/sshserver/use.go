//go:build linux

package sshserver

import (
	"encoding/binary"
	"io"
	"os"
	"sync"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/cmd/proc"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// use notes when the clients of this process use the session, for PID 1's idle timeout. That a
// client is connected is no use.
type use struct {
	request string // wire.UseRequest or wire.UseDetachedRequest
	first   sync.Once

	mu     sync.Mutex
	last   time.Duration // since boot
	active uint64
	file   *os.File // of PID 1, nil before it gave one
}

// begin notes a use that goes on until end.
func (u *use) begin() { u.note(1) }

func (u *use) end() { u.note(^uint64(0)) }

// goesOn reports whether a use has begun that has not ended.
func (u *use) goesOn() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.active > 0
}

// touch notes a use that is over already.
func (u *use) touch() { u.note(0) }

func (u *use) note(more uint64) {
	u.first.Do(func() { go u.register() })
	u.mu.Lock()
	defer u.mu.Unlock()
	u.last = proc.BootTime()
	u.active += more
	u.write()
}

// write is called with mu.
func (u *use) write() {
	if u.file == nil {
		return
	}
	var b [wire.UseSize]byte
	binary.NativeEndian.PutUint64(b[:], uint64(u.last))
	binary.NativeEndian.PutUint64(b[8:], u.active)
	u.file.WriteAt(b[:], 0)
}

// register gets the file from PID 1, on a connection that lasts as long as this process. It tries
// again for as long as that takes.
func (u *use) register() {
	for wait := 10 * time.Millisecond; u.tryRegister() != nil; wait = min(2*wait, time.Minute) {
		time.Sleep(wait)
	}
}

func (u *use) tryRegister() error {
	conn, err := connectControl()
	if err != nil {
		return err
	}
	fds, err := askPID1(conn, u.request, 1)
	if err != nil {
		conn.Close()
		return err
	}
	conn.SetDeadline(time.Time{})
	u.mu.Lock()
	u.file = os.NewFile(uintptr(fds[0]), "uses")
	u.write()
	u.mu.Unlock()
	// PID 1 may be out of resources for a moment, or may refuse: nothing is sent on it.
	conn.Read(make([]byte, 1))
	conn.Close()
	u.mu.Lock()
	u.file.Close()
	u.file = nil
	u.mu.Unlock()
	return io.EOF
}
