package guest

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"testing"

	"github.com/seed-1a2d6d8f/sandbox/internal/errdefs"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

func FuzzDecodeStartError(f *testing.F) {
	f.Add(`{"kind":"not-found","message":"x"}`)
	f.Add(`{"kind":1}`)
	f.Add("null")
	f.Add("\x1b[2J\n")
	f.Add(`{"kind":"other","message":"\u001b]0;x\u0007"}`)
	f.Fuzz(func(t *testing.T, message string) {
		e := decodeStartError(message)
		if e == nil || e.Kind == "" {
			t.Fatalf("%q: %+v", message, e)
		}
		if text := e.Error(); errdefs.Printable(text) != text || len(text) > maxQuoted {
			t.Errorf("%q: the error is %q", message, text)
		}
	})
}

// maxQuoted bounds a text of the guest once it is quoted: 4 bytes for each of a byte that is not
// UTF-8.
const maxQuoted = len("the guest refused: ") + 4*maxSaid + 2

func FuzzInbox(f *testing.F) {
	started, _ := json.Marshal(wire.Started{Pid: 5, Exec: wire.Exec{Args: []string{"\xff"}}})
	exit, _ := json.Marshal(wire.Exit{Code: 137, Signal: 9})
	f.Add(started[:9], started[9:], exit)
	f.Add([]byte{}, []byte(`{"pid":-1}`), []byte(`{"code":256}`))
	f.Fuzz(func(t *testing.T, part, rest, exit []byte) {
		var in inbox
		in.take(wire.RequestPart, part)
		if msg, err := in.take(wire.RequestStarted, rest); err == nil && msg.(*wire.Started).Pid <= 0 {
			t.Errorf("%q %q: %+v", part, rest, msg)
		}
		if msg, err := in.take(wire.RequestExit, exit); err == nil {
			if e := msg.(*wire.Exit); e.Code < 0 || e.Code > 255 || e.Signal < 0 || e.Signal > 64 || e.Dropped < 0 {
				t.Errorf("%q: %+v", exit, e)
			}
		}
		if msg, err := in.take("unknown", exit); msg != nil || err != nil {
			t.Errorf("an unknown request: %v, %v", msg, err)
		}
	})
}

func FuzzReadControl(f *testing.F) {
	f.Add([]byte(`{"nonce":"AAAA"}` + "\n" + `{"error":"x"}` + "\n"))
	f.Add([]byte("null\n[]\n\n"))
	f.Add(append(bytes.Repeat([]byte("x"), 5000), '\n'))
	f.Fuzz(func(t *testing.T, said []byte) {
		lines := bytes.Count(said, []byte("\n"))
		r := bufio.NewReader(bytes.NewReader(said))
		for n := 0; ; n++ {
			var reply wire.Reply
			err := readControl(r, &reply)
			if err == io.EOF {
				return
			}
			if n >= lines {
				t.Fatalf("%q: %d answers, and %v, of %d lines", said, n+1, err, lines)
			}
		}
	})
}

// A line without an end is not read without end.
func TestControlAnswersAreBounded(t *testing.T) {
	endless := &countless{}
	if err := readControl(bufio.NewReader(endless), new(wire.Reply)); err == nil || endless.n > 2*wire.MaxFriendLine+4096 {
		t.Errorf("readControl of an endless line: %v after %d bytes, want an error after %d", err, endless.n, wire.MaxFriendLine)
	}
}

// countless counts what is read of it.
type countless struct{ n int }

func (c *countless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	c.n += len(p)
	return len(p), nil
}

func TestMessagesInPartsAreBounded(t *testing.T) {
	var in inbox
	part := make([]byte, wire.MaxPart)
	for n := 0; ; n += len(part) {
		if _, err := in.take(wire.RequestPart, part); err != nil {
			return
		}
		if n > wire.MaxParts {
			t.Fatal("no bound")
		}
	}
}
