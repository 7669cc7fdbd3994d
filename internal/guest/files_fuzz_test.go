package guest

import (
	"strings"
	"testing"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// FuzzFileReplies: whatever the file server says of a directory, no name leads out of
// it, and no error is taken for a success.
func FuzzFileReplies(f *testing.F) {
	p := wire.Pack{}
	p.Uint(0)
	p.Info(wire.FileInfo{Name: "../x", Mode: 0o100644})
	f.Add(byte(wire.FileOK), []byte(p))
	f.Add(byte(wire.FileFailed), []byte{2})
	f.Add(byte(wire.FileFailed), []byte{0})
	f.Fuzz(func(t *testing.T, kind byte, message []byte) {
		u, err := fileReply{kind, message}.open()
		if kind != wire.FileOK && err == nil {
			t.Fatalf("kind %d is no error", kind)
		}
		list, _, err := infos(u, err)
		for _, i := range list {
			if err == nil && (i.Name == "" || i.Name == "." || i.Name == ".." || strings.ContainsAny(i.Name, "/\x00")) {
				t.Fatalf("an entry named %q", i.Name)
			}
			_ = GoMode(i.Mode)
		}
	})
}
