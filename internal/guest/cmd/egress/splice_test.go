//go:build linux

package egress

import (
	"bytes"
	"crypto/rand"
	"io"
	"net"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// A user who has many pipes gets small ones. Connections then do without, and carry the same bytes.
func TestSpliceWithoutRoomForPipes(t *testing.T) {
	t.Parallel()
	text := make([]byte, 8<<20)
	rand.Read(text)
	for what, full := range map[string]bool{"with room": false, "without": true} {
		failed := make(chan string)
		go func() {
			runtime.LockOSThread() // for good: the thread ends with the goroutine
			failed <- carries(text, full)
		}()
		if why := <-failed; why != "" {
			t.Errorf("%s: %s", what, why)
		}
	}
}

// carries sends text through splice as another user, who has as many pipes as they may, or none.
func carries(text []byte, full bool) (failed string) {
	uid := uintptr(54_321)
	if full {
		uid++
	}
	if _, _, err := unix.RawSyscall(unix.SYS_SETRESUID, uid, uid, uid); err != 0 {
		return "setresuid: " + err.Error()
	}
	for full {
		pipe, ok := newPipe()
		if !ok {
			break
		}
		defer closePipe(pipe)
		if _, err := unix.FcntlInt(uintptr(pipe[0]), unix.F_SETPIPE_SZ, 1<<20); err != nil && err != unix.EPERM {
			return "F_SETPIPE_SZ: " + err.Error()
		}
	}
	client, from, err := connection()
	if err != nil {
		return err.Error()
	}
	to, server, err := connection()
	if err != nil {
		return err.Error()
	}
	defer server.Close()
	go func() {
		client.Write(text)
		client.Close()
	}()
	got := make(chan []byte)
	go func() {
		all, _ := io.ReadAll(server)
		got <- all
	}()
	if pipe, ok := newPipe(); ok == full {
		return "newPipe does not say whether there is room"
	} else if ok {
		closePipe(pipe)
	}
	err = splice(to, from)
	to.Close()
	from.Close()
	if all := <-got; err != nil || !bytes.Equal(all, text) {
		return "splice has lost bytes"
	}
	return ""
}

// connection returns both ends of one over loopback.
func connection() (*net.TCPConn, *net.TCPConn, error) {
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return nil, nil, err
	}
	defer l.Close()
	one, err := net.DialTCP("tcp", nil, l.Addr().(*net.TCPAddr))
	if err != nil {
		return nil, nil, err
	}
	other, err := l.AcceptTCP()
	return one, other, err
}
