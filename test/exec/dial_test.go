package exec_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// fiveServers listen inside: HTTP on 3000, an echo behind an HTTP upgrade on 3001, a
// plain echo on 3002 and on a unix socket, and on 3003 one that takes 2 s to come up.
const fiveServers = `
const http = require("http"), net = require("net"), crypto = require("crypto");
http.createServer((q, s) => s.end("http " + q.url)).listen(3000);
http.createServer().on("upgrade", (q, c) => {
  const key = crypto.createHash("sha1").update(q.headers["sec-websocket-key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest("base64");
  c.write("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: " + key + "\r\n\r\n");
  c.on("data", d => { // one short text frame from the client, sent back without its mask
    const n = d[1] & 127, mask = d.subarray(2, 6), text = Buffer.alloc(n);
    for (let i = 0; i < n; i++) text[i] = d[6 + i] ^ mask[i % 4];
    c.write(Buffer.concat([Buffer.from([0x81, n]), text]));
  });
}).listen(3001);
const echo = () => net.createServer({allowHalfOpen: true}, c => c.pipe(c));
echo().listen(3002);
echo().listen("/tmp/echo.sock");
setTimeout(() => echo().listen(3003), 2000);
`

// withServers is a sandbox in which the five servers run, or will.
func withServers(t *testing.T) *sandbox.Sandbox {
	t.Helper()
	sb := harness.NewSandbox(t, sandbox.WithPorts(3000, 3001, 3002, 3003), sandbox.WithCommand("node", "-e", fiveServers))
	for _, port := range []int{3000, 3001, 3002} {
		if err := sb.WaitPort(t.Context(), port); err != nil {
			t.Fatalf("WaitPort(%d): %v", port, err)
		}
	}
	return sb
}

// echoed sends a line and checks that it comes back, and then the end of data.
func echoed(t *testing.T, conn net.Conn, line string) {
	t.Helper()
	conn.SetDeadline(time.Now().Add(5 * time.Minute))
	if _, err := io.WriteString(conn, line); err != nil {
		t.Errorf("Write: %v", err)
		return
	}
	if err := conn.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
		t.Errorf("CloseWrite: %v", err)
	}
	if got, err := io.ReadAll(conn); string(got) != line || err != nil {
		t.Errorf("the echo of %q is %q, %v", line, got, err)
	}
}

// websocket greets the server on conn and has a message echoed.
func websocket(t *testing.T, conn net.Conn, text string) {
	t.Helper()
	conn.SetDeadline(time.Now().Add(5 * time.Minute))
	fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n")
	r := bufio.NewReader(conn)
	resp, err := http.ReadResponse(r, nil)
	if err != nil {
		t.Errorf("upgrade: %v", err)
		return
	}
	if got, want := resp.Header.Get("Sec-Websocket-Accept"), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="; resp.StatusCode != 101 || got != want {
		t.Errorf("upgrade: %s, accept %q, want 101 and %q", resp.Status, got, want)
	}
	frame := append([]byte{0x81, 0x80 | byte(len(text)), 1, 2, 3, 4}, text...)
	for i := range text {
		frame[6+i] ^= byte(1 + i%4)
	}
	conn.Write(frame)
	got := make([]byte, 2+len(text))
	if _, err := io.ReadFull(r, got); err != nil || string(got[2:]) != text {
		t.Errorf("WebSocket echo of %q = %q, %v", text, got, err)
	}
}

func TestFiveServersInside(t *testing.T) {
	t.Parallel()
	sb := withServers(t)
	dial := func(network, address string) func(*testing.T) net.Conn {
		return func(t *testing.T) net.Conn {
			conn, err := sb.DialContext(t.Context(), network, address)
			if err != nil {
				t.Fatalf("DialContext(%s, %s): %v", network, address, err)
			}
			t.Cleanup(func() { conn.Close() })
			return conn
		}
	}
	published := func(port int) func(*testing.T) net.Conn {
		return func(t *testing.T) net.Conn {
			at, err := sb.Port(t.Context(), port)
			if err != nil {
				t.Fatalf("Port(%d): %v", port, err)
			}
			conn, err := net.Dial("tcp", at.String())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { conn.Close() })
			return conn
		}
	}
	t.Run("HTTP by DialContext", func(t *testing.T) {
		web := &http.Client{Transport: &http.Transport{DialContext: sb.DialContext}}
		defer web.CloseIdleConnections()
		for i := range 20 {
			if got, want := fetch(t, web, fmt.Sprintf("http://localhost:3000/%d", i)), fmt.Sprintf("http /%d", i); got != want {
				t.Errorf("GET = %q, want %q", got, want)
			}
		}
	})
	t.Run("HTTP by published port", func(t *testing.T) {
		at, err := sb.Port(t.Context(), 3000)
		if err != nil {
			t.Fatal(err)
		}
		web := &http.Client{Transport: &http.Transport{}}
		defer web.CloseIdleConnections()
		if got := fetch(t, web, "http://"+at.String()+"/y"); got != "http /y" {
			t.Errorf("GET = %q, want http /y", got)
		}
	})
	t.Run("WebSocket by DialContext", func(t *testing.T) { websocket(t, dial("tcp", "localhost:3001")(t), "hello") })
	t.Run("WebSocket by published port", func(t *testing.T) { websocket(t, published(3001)(t), "hello") })
	t.Run("TCP by DialContext", func(t *testing.T) { echoed(t, dial("tcp", "localhost:3002")(t), "hello") })
	t.Run("tcp4 by DialContext", func(t *testing.T) { echoed(t, dial("tcp4", "127.0.0.1:3002")(t), "hello") })
	t.Run("TCP by published port", func(t *testing.T) { echoed(t, published(3002)(t), "hello") })
	t.Run("unix socket by DialContext", func(t *testing.T) { echoed(t, dial("unix", "/tmp/echo.sock")(t), "hello") })
	t.Run("own name by DialContext", func(t *testing.T) { echoed(t, dial("tcp", sb.Name()+":3002")(t), "hello") })
	t.Run("the one that comes up late", func(t *testing.T) {
		if err := sb.WaitPort(t.Context(), 3003); err != nil {
			t.Fatal(err)
		}
		echoed(t, dial("tcp", "localhost:3003")(t), "hello")
		echoed(t, published(3003)(t), "hello")
	})
	t.Run("200 at once", func(t *testing.T) {
		begin := time.Now()
		var all sync.WaitGroup
		for i := range 200 {
			all.Go(func() {
				conn, err := sb.DialContext(t.Context(), "tcp", "localhost:3002")
				if err != nil {
					t.Errorf("dial %d: %v", i, err)
					return
				}
				defer conn.Close()
				echoed(t, conn, strings.Repeat(fmt.Sprint("line ", i, "\n"), 500))
			})
		}
		all.Wait()
		t.Logf("200 dials, each with an echo of some kilobytes: %v", time.Since(begin))
	})
}

func TestMuchGoesThroughOneDial(t *testing.T) {
	t.Parallel()
	pour(t, 128<<20)
}

func TestSoakAHundredTimesAsMuchGoesThroughOneDial(t *testing.T) {
	harness.Soak(t)
	pour(t, 10<<30)
}

// pour has a server inside send so many bytes and counts what comes.
func pour(t *testing.T, size int64) {
	t.Helper()
	sb := harness.Shared(t)
	server := sb.Command(t.Context(), "node", "-e", `
		const b = Buffer.alloc(1 << 20, 7), size = +process.argv[1];
		require("net").createServer(c => {
			let left = size;
			const more = () => { for (; left > 0; left -= b.length) if (!c.write(b)) { left -= b.length; return c.once("drain", more) } c.end() };
			more();
		}).listen(4004)`, fmt.Sprint(size))
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		server.Kill()
		server.Wait()
	}()
	if err := sb.WaitPort(t.Context(), 4004); err != nil {
		t.Fatal(err)
	}
	conn, err := sb.DialContext(t.Context(), "tcp", "localhost:4004")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	begin := time.Now()
	n, err := io.Copy(io.Discard, conn)
	if n != size || err != nil {
		t.Errorf("received %d bytes, %v, want %d", n, err, size)
	}
	t.Logf("%d MB/s", n/1e6*int64(time.Second)/int64(time.Since(begin)))
}

func TestDialIsRefusedAsPackageNetRefuses(t *testing.T) {
	t.Parallel()
	sb := harness.Shared(t)
	for _, test := range []struct {
		network, address string
		want             error
	}{
		{"tcp", "localhost:1", syscall.ECONNREFUSED},
		{"tcp", "127.0.0.1:1", syscall.ECONNREFUSED},
		{"unix", "/tmp/no-such.sock", syscall.ENOENT},
		{"udp", "localhost:1", sandbox.ErrInvalidArgument},
		{"tcp", "localhost", sandbox.ErrInvalidArgument},
	} {
		conn, err := sb.DialContext(t.Context(), test.network, test.address)
		if err == nil {
			conn.Close()
		}
		var op *net.OpError
		var own *sandbox.Error
		if !errors.Is(err, test.want) || !errors.As(err, &op) || !errors.As(err, &own) {
			t.Errorf("DialContext(%s, %s) = %v, want %v in a *net.OpError in an *Error", test.network, test.address, err, test.want)
		}
	}
	var dns *net.DNSError
	if _, err := sb.DialContext(t.Context(), "tcp", "no-such-host.invalid:80"); !errors.As(err, &dns) {
		t.Errorf("dial of an unknown name = %v, want a *net.DNSError", err)
	}
}

func TestDialResumesAStoppedSandbox(t *testing.T) {
	t.Parallel()
	sb := harness.NewSandbox(t, sandbox.WithName(harness.UniqueName(t)), sandbox.WithStopTimeout(time.Second))
	if _, err := sb.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := sb.DialContext(t.Context(), "tcp", "localhost:1"); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("dial into a stopped sandbox = %v, want it resumed, and the refusal", err)
	}
}

func TestDialledConnectionsEndWithTheHandle(t *testing.T) {
	t.Parallel()
	sb := withServers(t)
	conn, err := sb.DialContext(t.Context(), "tcp", "localhost:3002")
	if err != nil {
		t.Fatal(err)
	}
	if err := sb.Detach(); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("Read after Detach = %v, want ECONNRESET", err)
	}
	if _, err := sb.DialContext(t.Context(), "tcp", "localhost:3002"); !errors.Is(err, sandbox.ErrClosed) {
		t.Errorf("dial after Detach = %v, want ErrClosed", err)
	}
}

func TestDialContextBoundsTheDialOnly(t *testing.T) {
	t.Parallel()
	sb := withServers(t)
	ctx, cancel := context.WithCancel(t.Context())
	conn, err := sb.DialContext(ctx, "tcp", "localhost:3002")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	cancel()
	echoed(t, conn, "still here")
	if _, err := sb.DialContext(ctx, "tcp", "localhost:3002"); !errors.Is(err, context.Canceled) {
		t.Errorf("dial on an ended context = %v, want it cancelled", err)
	}
}
