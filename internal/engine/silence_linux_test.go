package engine_test

import (
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TCP gives a peer up that sends no sign of life for 20 s, whether or not something waits for its
// acknowledgement, so a call that is repeated once on a new connection fails within 30 s.
func TestConnectionsOverTCPNoticeASilentPeer(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Api-Version", "1.41") }))
	t.Cleanup(s.Close)
	conn, err := openAt(t, "tcp://"+s.Listener.Addr().String()).Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	option := func(level, opt int) (n int) {
		t.Helper()
		if e := raw.Control(func(fd uintptr) { n, err = unix.GetsockoptInt(int(fd), level, opt) }); e != nil || err != nil {
			t.Fatalf("getsockopt: %v, %v", e, err)
		}
		return n
	}
	if option(unix.SOL_SOCKET, unix.SO_KEEPALIVE) != 1 {
		t.Error("keepalives are off")
	}
	idle, interval, count := option(unix.IPPROTO_TCP, unix.TCP_KEEPIDLE), option(unix.IPPROTO_TCP, unix.TCP_KEEPINTVL), option(unix.IPPROTO_TCP, unix.TCP_KEEPCNT)
	if got := idle + interval*count; got != 20 {
		t.Errorf("an idle connection is given up after %d + %d × %d = %d s, want 20", idle, count, interval, got)
	}
	if got := time.Duration(option(unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT)) * time.Millisecond; got != 20*time.Second {
		t.Errorf("what is sent waits %v for its acknowledgement, want 20s", got)
	}
}
