//go:build linux

package guest_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/nettest"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest"
)

// listener accepts connections on the machine, which is what the guest under test is
// inside of.
func listener(t testing.TB, network string) net.Listener {
	t.Helper()
	address := "127.0.0.1:0"
	if network == "unix" {
		dir, err := os.MkdirTemp("", "d") // a socket's path is short
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.RemoveAll(dir) })
		address = filepath.Join(dir, "s")
	}
	l, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// pair is a dialled connection and the one that its server got.
func pair(t testing.TB, c *guest.Conn, l net.Listener) (client, server net.Conn) {
	t.Helper()
	client, err := c.DialContext(context.Background(), l.Addr().Network(), l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	server, err = l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		client.Close()
		server.Close()
	})
	return client, server
}

// It has no other test of the package beside it, because nettest gives each of its parts a minute.
func TestDialledConnectionIsANetConn(t *testing.T) {
	c, _ := serve(t)
	for _, network := range []string{"tcp", "unix"} {
		l := listener(t, network)
		t.Run(network, func(t *testing.T) {
			nettest.TestConn(t, func() (net.Conn, net.Conn, func(), error) {
				client, err := c.DialContext(context.Background(), network, l.Addr().String())
				if err != nil {
					return nil, nil, nil, err
				}
				server, err := l.Accept()
				return client, server, func() { client.Close(); server.Close() }, err
			})
		})
	}
}

func TestDialledConnectionTellsBothAddresses(t *testing.T) {
	t.Parallel()
	c, _ := serve(t)
	for _, network := range []string{"tcp", "unix"} {
		client, server := pair(t, c, listener(t, network))
		if got, want := client.RemoteAddr().String(), server.LocalAddr().String(); got != want {
			t.Errorf("%s: RemoteAddr() = %s, want %s", network, got, want)
		}
		if got, want := client.LocalAddr().String(), server.RemoteAddr().String(); got != want {
			t.Errorf("%s: LocalAddr() = %s, want %s", network, got, want)
		}
		if got := client.RemoteAddr().Network(); got != network {
			t.Errorf("RemoteAddr().Network() = %s, want %s", got, network)
		}
	}
}

func TestEachDirectionEndsByItself(t *testing.T) {
	t.Parallel()
	c, _ := serve(t)
	for _, network := range []string{"tcp", "unix"} {
		client, server := pair(t, c, listener(t, network))
		io.WriteString(client, "question")
		if err := client.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
			t.Fatalf("CloseWrite: %v", err)
		}
		if got, err := io.ReadAll(server); string(got) != "question" || err != nil {
			t.Errorf("%s: the server read %q, %v, want question to its end", network, got, err)
		}
		io.WriteString(server, "answer")
		server.Close()
		if got, err := io.ReadAll(client); string(got) != "answer" || err != nil {
			t.Errorf("%s: the client read %q, %v, want answer to its end", network, got, err)
		}
		if _, err := client.Write([]byte("more")); !errors.Is(err, syscall.EPIPE) {
			t.Errorf("%s: Write after CloseWrite = %v, want EPIPE", network, err)
		}
	}
}

func TestWhatWasWrittenBeforeCloseArrives(t *testing.T) {
	t.Parallel()
	c, _ := serve(t)
	client, server := pair(t, c, listener(t, "tcp"))
	want := make([]byte, 1<<20)
	rand.Read(want)
	if _, err := client.Write(want); err != nil {
		t.Fatal(err)
	}
	if err := client.Close(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(server); !bytes.Equal(got, want) || err != nil {
		t.Errorf("the server read %d bytes, %v, want the %d that were written before Close", len(got), err, len(want))
	}
}

func TestResetInsideIsAReset(t *testing.T) {
	t.Parallel()
	c, _ := serve(t)
	client, server := pair(t, c, listener(t, "tcp"))
	server.(*net.TCPConn).SetLinger(0)
	server.Close()
	if _, err := io.ReadAll(client); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("read from a server that reset: %v, want ECONNRESET", err)
	}
}

func TestLostConnectionIsNotTheEndOfData(t *testing.T) {
	t.Parallel()
	c, cmd := serve(t)
	client, server := pair(t, c, listener(t, "tcp"))
	io.WriteString(server, "half of it")
	if _, err := io.ReadFull(client, make([]byte, 4)); err != nil {
		t.Fatal(err)
	}
	cmd.Process.Kill()
	if _, err := io.ReadAll(client); !errors.Is(err, guest.ErrConnectionLost) || !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("read over a guest that was killed: %v, want ErrConnectionLost and ECONNRESET", err)
	}
	eventually(t, "writing fails, too", func() bool {
		_, err := client.Write([]byte("x"))
		return err != nil
	})
}

func TestClosingTheConnectionEndsItsDials(t *testing.T) {
	t.Parallel()
	c, _ := serve(t)
	client, server := pair(t, c, listener(t, "tcp"))
	// Nobody reads, until every buffer is full.
	server.SetWriteDeadline(time.Now().Add(500 * time.Millisecond))
	if _, err := server.Write(make([]byte, 64<<20)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("64 MiB that nobody reads: %v", err)
	}
	c.Close()
	if _, err := io.Copy(io.Discard, client); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("read after Conn.Close = %v, want ECONNRESET", err)
	}
}

func TestDialErrorsAreThoseOfPackageNet(t *testing.T) {
	t.Parallel()
	c, _ := serve(t)
	l := listener(t, "tcp")
	closed := l.Addr().String()
	l.Close()
	var dns *net.DNSError
	for _, tt := range []struct {
		network, address string
		is               func(error) bool
	}{
		{"tcp", closed, func(err error) bool { return errors.Is(err, syscall.ECONNREFUSED) }},
		{"tcp", "localhost:1", func(err error) bool { return errors.Is(err, syscall.ECONNREFUSED) }},
		{"unix", "/nowhere", func(err error) bool { return errors.Is(err, syscall.ENOENT) && errors.Is(err, os.ErrNotExist) }},
		{"tcp", "no-such-host.invalid:80", func(err error) bool { return errors.As(err, &dns) }},
		{"udp", closed, func(err error) bool { return errors.As(err, new(net.UnknownNetworkError)) }},
		{"tcp", "no port", func(err error) bool { return errors.As(err, new(*net.AddrError)) }},
		{"tcp", "127.0.0.1:99999", func(err error) bool { return errors.As(err, new(*net.AddrError)) }},
		{"unix", "", func(err error) bool { return errors.As(err, new(*net.AddrError)) }},
	} {
		conn, err := c.DialContext(context.Background(), tt.network, tt.address)
		if err == nil {
			conn.Close()
		}
		var op *net.OpError
		if !errors.As(err, &op) || op.Op != "dial" || op.Net != tt.network || !tt.is(err) {
			t.Errorf("DialContext(%s, %s) = %v, want another error", tt.network, tt.address, err)
		}
	}
}

func TestDialEndsWithItsContext(t *testing.T) {
	t.Parallel()
	c, _ := serve(t)
	// Nobody accepts, and once the backlog is full the kernel lets connections wait.
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(fd)
	if err := errors.Join(syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}), syscall.Listen(fd, 0)); err != nil {
		t.Fatal(err)
	}
	sa, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	address := fmt.Sprintf("127.0.0.1:%d", sa.(*syscall.SockaddrInet4).Port)
	for range 10 {
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		defer cancel()
		conn, err := c.DialContext(ctx, "tcp", address)
		if err == nil {
			defer conn.Close()
			continue
		}
		var ne net.Error
		if !errors.Is(err, context.DeadlineExceeded) || !errors.As(err, &ne) || !ne.Timeout() {
			t.Errorf("DialContext = %v, want the deadline, and a timeout to package net", err)
		}
		return
	}
	t.Fatal("every dial was accepted")
}

func TestListensTellsWithoutConnecting(t *testing.T) {
	t.Parallel()
	c, _ := serve(t)
	l := listener(t, "tcp")
	port := uint16(l.Addr().(*net.TCPAddr).Port)
	if got, err := c.PortListens(context.Background(), port); !got || err != nil {
		t.Errorf("Listens(%d) = %v, %v, want true", port, got, err)
	}
	l.(*net.TCPListener).SetDeadline(time.Now().Add(50 * time.Millisecond))
	if conn, err := l.Accept(); err == nil {
		conn.Close()
		t.Error("Listens made a connection, which a server of one client would take for its own")
	}
	l.Close()
	if got, err := c.PortListens(context.Background(), port); got || err != nil {
		t.Errorf("Listens(%d) after the listener was closed = %v, %v, want false", port, got, err)
	}
}

func TestManyBytesArriveUnchangedBothWays(t *testing.T) {
	t.Parallel()
	c, _ := serve(t)
	client, server := pair(t, c, listener(t, "tcp"))
	const size = 32 << 20
	type result struct {
		sum string
		err error
	}
	pour := func(w net.Conn) chan result {
		out := make(chan result, 1)
		go func() {
			h := sha256.New()
			_, err := io.CopyN(io.MultiWriter(w, h), rand.Reader, size)
			w.(interface{ CloseWrite() error }).CloseWrite()
			out <- result{fmt.Sprintf("%x", h.Sum(nil)), err}
		}()
		return out
	}
	drink := func(r net.Conn) chan result {
		out := make(chan result, 1)
		go func() {
			h := sha256.New()
			_, err := io.Copy(h, r)
			out <- result{fmt.Sprintf("%x", h.Sum(nil)), err}
		}()
		return out
	}
	there, back := drink(server), drink(client)
	sentThere, sentBack := pour(client), pour(server)
	for _, way := range [][2]result{{<-sentThere, <-there}, {<-sentBack, <-back}} {
		if way[0] != way[1] || way[0].err != nil {
			t.Errorf("sent %v, received %v", way[0], way[1])
		}
	}
}
