//go:build linux

package sshserver

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

func FuzzDecodeExec(f *testing.F) {
	for _, req := range []wire.Exec{
		{Args: []string{"a", "\xff"}, Env: []string{"A=\xfe"}, Dir: "/x\xfd", User: "u", ID: "i"},
		{Args: []string{"a"}, TTY: true, Size: wire.Size{Rows: 1, Cols: 2}, Timeout: 5, Stdin: true},
	} {
		b, _ := json.Marshal(req)
		f.Add(b)
	}
	f.Add([]byte(`{"args":[{"bytes":"AA=="}],"dir":{"bytes":null},"timeout":-1}`))
	f.Add([]byte("#12345678"))
	f.Fuzz(func(t *testing.T, extra []byte) {
		req, refused := decodeExec(extra, &parts{held: map[string][]byte{}})
		if refused != nil {
			return
		}
		// What is understood survives another trip.
		b, err := json.Marshal(req)
		if err != nil {
			t.Fatalf("%+v: %v", req, err)
		}
		var again wire.Exec
		if err := json.Unmarshal(b, &again); err != nil {
			t.Fatalf("%s: %v", b, err)
		}
		c, err := json.Marshal(again)
		if err != nil || !bytes.Equal(b, c) {
			t.Errorf("%s became %s (%v)", b, c, err)
		}
	})
}

func TestPartsAreBounded(t *testing.T) {
	t.Parallel()
	p := &parts{held: make(map[string][]byte)}
	part := make([]byte, 8+wire.MaxPart)
	n := 0
	for p.add(part) {
		n++
	}
	if n*wire.MaxPart > wire.MaxParts || p.size != 0 || len(p.held) != 0 {
		t.Errorf("%d parts taken, %d bytes held after that", n, p.size)
	}
	p.add([]byte("aaaaaaaa1"))
	p.add([]byte("bbbbbbbbx"))
	p.add([]byte("aaaaaaaa2"))
	if got := string(p.take("aaaaaaaa")); got != "12" || p.size != 1 {
		t.Errorf("took %q, %d bytes left", got, p.size)
	}
	if p.add([]byte("short")) || p.take("zzzzzzzz") != nil {
		t.Error("nonsense was taken")
	}
}
