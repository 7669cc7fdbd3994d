package sandboxhttp_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/seed-1a2d6d8f/sandbox"
)

// A screen is a client's side of a terminal.
type screen struct {
	t    *testing.T
	ctx  context.Context
	conn *websocket.Conn
	seen strings.Builder
}

func (a api) openTerminal(sb *sandbox.Sandbox, first string) *screen {
	a.t.Helper()
	ctx, cancel := context.WithTimeout(a.t.Context(), 5*time.Minute)
	a.t.Cleanup(cancel)
	conn, _, err := websocket.Dial(ctx, a.url+"/sandboxes/"+sb.Name()+"/terminal", nil)
	if err != nil {
		a.t.Fatal(err)
	}
	a.t.Cleanup(func() { conn.CloseNow() })
	s := &screen{t: a.t, ctx: ctx, conn: conn}
	s.write(websocket.MessageText, first)
	return s
}

func (s *screen) write(kind websocket.MessageType, text string) {
	s.t.Helper()
	if err := s.conn.Write(s.ctx, kind, []byte(text)); err != nil {
		s.t.Fatal(err)
	}
}

// event reads until the next event, and adds the output before it to seen.
func (s *screen) event() (e execEvent) {
	s.t.Helper()
	for {
		kind, data, err := s.conn.Read(s.ctx)
		if err != nil {
			s.t.Fatalf("after %q: %v", s.seen.String(), err)
		}
		if kind == websocket.MessageText {
			if err := json.Unmarshal(data, &e); err != nil {
				s.t.Fatalf("%s: %v", data, err)
			}
			return e
		}
		s.seen.Write(data)
	}
}

// await reads output until it contains a text.
func (s *screen) await(text string) {
	s.t.Helper()
	for !strings.Contains(s.seen.String(), text) {
		kind, data, err := s.conn.Read(s.ctx)
		if err != nil || kind != websocket.MessageBinary {
			s.t.Fatalf("after %q: %v %s, %v; want %q", s.seen.String(), kind, data, err, text)
		}
		s.seen.Write(data)
	}
}

func (a api) testTerminal(sb *sandbox.Sandbox) {
	t := a.t
	s := a.openTerminal(sb, `{"command": ["sh"], "env": {"PS1": "> "}, "rows": 30, "cols": 100}`)
	if e := s.event(); e.Event != "started" {
		t.Fatalf("the first event is %+v", e)
	}
	s.write(websocket.MessageBinary, "stty size\n")
	s.await("30 100")
	s.write(websocket.MessageText, `{"rows": 41, "cols": 121}`)
	s.write(websocket.MessageBinary, "stty size\n")
	s.await("41 121")
	// A shell of its own, since dash forgets a signal that arrives between its fork and the exec of a command.
	s.write(websocket.MessageBinary, "sh -c \"echo ru''nning; exec sleep 1000\"\n")
	s.await("running\r\n")
	s.write(websocket.MessageBinary, "\x03") // Ctrl-C
	s.await("^C\r\n> ")
	s.write(websocket.MessageBinary, "echo $?.; exit 3\n")
	if e := s.event(); e.Event != "exit" || e.ExitCode != 3 || !strings.Contains(s.seen.String(), "130.") {
		t.Errorf("ended with %+v after %q", e, s.seen.String())
	}
	if _, _, err := s.conn.Read(s.ctx); websocket.CloseStatus(err) != websocket.StatusNormalClosure {
		t.Errorf("after the end: %v, want a normal closure", err)
	}

	s = a.openTerminal(sb, `{"command": ["sh", "-c", "echo pid=$$.; exec sleep 1000"]}`)
	s.event()
	s.await(".")
	_, pid, _ := strings.Cut(s.seen.String(), "pid=")
	s.conn.CloseNow()
	awaitEnd(t, sb, strings.TrimSuffix(strings.TrimSpace(pid), "."))

	for first, code := range map[string]string{
		`{"command": ["no-such-program"]}`:   "command_not_found",
		`{"command": ["sh"], "stdin": "x"}`:  "invalid_argument",
		`{"command": ["sh"], "shell": true}`: "invalid_argument",
		`{"command": []}`:                    "invalid_argument",
		`["sh"]`:                             "invalid_argument",
	} {
		s := a.openTerminal(sb, first)
		if e := s.event(); e.Event != "failed" || e.Error.Code != code {
			t.Errorf("%s: %+v, want it failed with %s", first, e, code)
		}
	}
}
