//go:build linux

package sshserver

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/cmd/proc"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// controlChannel connects the client to PID 1.
func controlChannel(nc ssh.NewChannel) {
	conn, err := dialControl()
	if err != nil {
		reject(nc, proc.StartErrorf(wire.KindOther, "PID 1: %v", err))
		return
	}
	join(nc, conn, func() {})
}

// controlPatience is how long PID 1 may take to listen, in a session that has just
// started on a busy machine.
const controlPatience = 5 * time.Second

// dialControl is connectControl for a PID 1 that may not listen yet.
func dialControl() (conn *net.UnixConn, err error) {
	for begin := time.Now(); ; time.Sleep(5 * time.Millisecond) {
		conn, err = connectControl()
		if !errors.Is(err, unix.ECONNREFUSED) || time.Since(begin) > controlPatience {
			return conn, err
		}
	}
}

// connectControl connects to PID 1. Any process can bind the name of its socket should PID 1 lose it,
// but none can have its PID.
func connectControl() (*net.UnixConn, error) {
	conn, err := proc.ConnectControl()
	if err != nil {
		return nil, err
	}
	peer, err := peerOf(conn)
	if err == nil && peer.Pid != 1 {
		err = fmt.Errorf("process %d has taken the control socket", peer.Pid)
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// errRefused is the error of a server that PID 1 does not answer.
var errRefused = errors.New("serve: PID 1 does not answer")

// enter asks PID 1 whether the session takes a new server. If the session is ending it returns with
// which code. A PID 1 that does not listen yet sees this process if the session ends.
func enter() (ending int, err error) {
	for begin := time.Now(); time.Since(begin) < controlPatience; time.Sleep(5 * time.Millisecond) {
		answer, err := askEnter()
		switch {
		case err == nil && answer == wire.EnterYes:
			return 0, nil
		case err == nil:
			return strconv.Atoi(strings.TrimSuffix(answer, "\n"))
		case errors.Is(err, unix.ECONNREFUSED):
			if init, ok := proc.Find(1); !ok || init.Exits() {
				return 0, errRefused
			}
			return 0, nil
		}
		// PID 1 has closed the connection, as it does while others inside open many.
	}
	return 0, errRefused
}

func askEnter() (answer string, err error) {
	conn, err := connectControl()
	if err != nil {
		return "", err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(controlPatience))
	if _, err := io.WriteString(conn, wire.EnterRequest); err != nil {
		return "", err
	}
	r := bufio.NewReaderSize(conn, 1024)
	if _, err := wire.ReadLine(r, wire.MaxControlLine); err != nil { // the challenge
		return "", err
	}
	return r.ReadString('\n')
}

const forwardSize = 64 << 10

// forwardBuffers are for copies between a channel and a connection.
var forwardBuffers = sync.Pool{New: func() any { return new([forwardSize]byte) }}

// join copies between a new channel and a connection until both have ended. It calls heard for
// what the client sends.
func join(nc ssh.NewChannel, conn *net.UnixConn, heard func()) {
	defer conn.Close()
	ch, reqs, err := nc.Accept()
	if err != nil {
		return
	}
	defer ch.Close()
	var in sync.WaitGroup
	in.Go(func() {
		io.Copy(struct{ io.Writer }{conn}, hearing{ch, heard})
		conn.CloseWrite()
	})
	go func() {
		ssh.DiscardRequests(reqs)
		conn.Close() // the client closed the channel
	}()
	buf := forwardBuffers.Get().(*[forwardSize]byte)
	defer forwardBuffers.Put(buf)
	io.CopyBuffer(struct{ io.Writer }{ch}, struct{ io.Reader }{conn}, buf[:])
	ch.Close()
	in.Wait()
}

// hearing is a stream with a function that is called for its data.
type hearing struct {
	io.Reader
	heard func()
}

func (h hearing) Read(b []byte) (int, error) {
	n, err := h.Reader.Read(b)
	if n > 0 {
		h.heard()
	}
	return n, err
}

// peerOf returns the credentials of the peer: for a client, those of the listener.
func peerOf(conn syscall.Conn) (*unix.Ucred, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	var cred *unix.Ucred
	if ctlErr := raw.Control(func(fd uintptr) {
		cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); ctlErr != nil {
		return nil, ctlErr
	}
	return cred, err
}
