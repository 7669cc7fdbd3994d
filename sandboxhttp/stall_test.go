package sandboxhttp_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/sandboxhttp"
	"github.com/seed-1a2d6d8f/sandbox/sandboxtest"
)

// half sends half the body of a request on a connection of its own, and returns the answer.
func half(t *testing.T, server, method, path string) (status int, f failure) {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimSuffix(strings.TrimPrefix(server, "http://"), "/v1"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(5 * time.Minute))
	fmt.Fprintf(conn, "%s %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{", method, path)
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatalf("%s %s with half a body: no answer: %v", method, path, err)
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(&f); err != nil {
		t.Errorf("%s %s: %v", method, path, err)
	}
	return resp.StatusCode, f
}

// A request whose JSON does not come to its end is refused. This test runs alone: it changes the
// timeouts.
func TestStalledBodyIsRefused(t *testing.T) {
	t.Cleanup(sandboxhttp.ShortTimeouts(200 * time.Millisecond))
	s := httptest.NewServer(sandboxhttp.Handler(nowhere(t), sandboxhttp.WithoutAuthorization()))
	defer s.Close()
	if status, f := half(t, s.URL, "POST", "/sandboxes"); status != 408 || f.Error.Code != "timeout" {
		t.Errorf("half a body: %d %+v, want 408 and timeout", status, f)
	}
}

// A client that stops reading the output of a command, or sending a file, is given up.
func testStalled(t *testing.T, sb *sandbox.Sandbox) {
	t.Cleanup(sandboxhttp.ShortTimeouts(2 * time.Second))
	a := newAPI(t)
	t.Run("Reader", func(t *testing.T) {
		a := a
		a.t = t
		resp := a.send("POST", "/sandboxes/"+sb.Name()+"/exec", strings.NewReader(`{"command": ["sh", "-c", "echo $$; exec yes"]}`), "Content-Type", "application/json")
		defer resp.Body.Close()
		var pid string
		for d := json.NewDecoder(resp.Body); !strings.Contains(pid, "\n"); {
			var e execEvent
			if err := d.Decode(&e); err != nil {
				t.Fatal(err)
			}
			pid += e.Text
		}
		pid, _, _ = strings.Cut(pid, "\n")
		awaitEnd(t, sb, pid)
	})
	t.Run("TerminalWithUnreadInput", func(t *testing.T) {
		a := a
		a.t = t
		s := a.openTerminal(sb, `{"command": ["sh", "-c", "stty raw; echo pid=$$.; exec sleep 1000"]}`)
		s.event()
		s.await(".")
		_, pid, _ := strings.Cut(s.seen.String(), "pid=")
		pid = strings.TrimSuffix(strings.TrimSpace(pid), ".")
		// The client waits at some time, since the command does not read, and then gives up, which closes the connection.
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		sent := make(chan int)
		go func() {
			n := 0
			for input := make([]byte, 64<<10); n < 1<<10 && s.conn.Write(ctx, websocket.MessageBinary, input) == nil; n++ {
			}
			sent <- n
		}()
		for ctx.Err() == nil {
			if err := sb.Command(t.Context(), "test", "-e", "/proc/"+pid).Run(); err != nil && ctx.Err() == nil {
				t.Errorf("the command whose client waits has ended: %v", err)
				break
			}
		}
		if n := <-sent; n == 1<<10 {
			t.Error("64 MiB of input were taken that nobody reads")
		}
		s.conn.CloseNow()
		awaitEnd(t, sb, pid)
	})
	t.Run("QuietCommand", func(t *testing.T) {
		a := a
		a.t = t
		for accept, beat := range map[string]string{"": `{"event":"idle"}`, "text/event-stream": ":"} {
			resp := a.send("POST", "/sandboxes/"+sb.Name()+"/exec", strings.NewReader(`{"command": ["sleep", "1000"]}`), "Content-Type", "application/json", "Accept", accept)
			for lines := bufio.NewScanner(resp.Body); ; {
				if !lines.Scan() {
					t.Errorf("%q: no heartbeat: %v", accept, lines.Err())
					break
				}
				if lines.Text() == beat {
					break
				}
			}
			resp.Body.Close()
		}
	})
	t.Run("Upload", func(t *testing.T) {
		if status, f := half(t, a.url, "PUT", "/v1/sandboxes/"+sb.Name()+"/files?path=f"); status != 408 || f.Error.Code != "timeout" {
			t.Errorf("half a file: %d %+v, want 408 and timeout", status, f)
		}
		if got := sandboxtest.Run(t, sb, "ls", "-A"); got != "large\n" {
			t.Errorf("after half a file the workspace has %q", got)
		}
	})
}

// slow is a client that reads 64 KiB within each deadline.
type slow struct {
	*httptest.ResponseRecorder
	left int
}

func (s *slow) SetWriteDeadline(time.Time) error {
	s.left = 64 << 10
	return nil
}

func (s *slow) Write(b []byte) (int, error) {
	n := min(len(b), s.left)
	s.left -= n
	s.ResponseRecorder.Write(b[:n])
	if n < len(b) {
		return n, os.ErrDeadlineExceeded
	}
	return n, nil
}

// A long answer comes to its end, however long that takes, if its client goes on reading.
func TestSlowReaderGetsAllOfAnAnswer(t *testing.T) {
	h := sandboxhttp.Handler(nowhere(t), sandboxhttp.WithoutAuthorization())
	w := &slow{ResponseRecorder: httptest.NewRecorder()}
	h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "GET", "/openapi.json", nil))
	if want := w.Header().Get("Content-Length"); fmt.Sprint(w.Body.Len()) != want || w.Body.Len() <= 64<<10 {
		t.Errorf("a client that reads slowly got %d of %s bytes, which are more than 64 KiB", w.Body.Len(), want)
	}
}
