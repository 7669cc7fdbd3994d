//go:build linux

package guest_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// What a client has half written has a name where the file system knows no files without
// one. It goes with the client, whichever way that goes, and the old file stays.
func TestHalfWrittenFilesGoWithTheirClient(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"it closes its files", "it is killed", "the session ends"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			names := func() (all []string) {
				list, err := os.ReadDir(dir)
				if err != nil {
					t.Fatal(err)
				}
				for _, e := range list {
					all = append(all, e.Name())
				}
				return all
			}
			if err := os.WriteFile(filepath.Join(dir, "f"), []byte("old"), 0o644); err != nil {
				t.Fatal(err)
			}
			b := newBox(t, wire.Init{})
			conn, _ := serve(t, append([]string{"env", noTmpfileEnv + "=1"}, b.in(binary, wire.VerbServe)...)...)
			// As the client's Files does, but for where the program is.
			files, err := conn.Exec(t.Context(), wire.Exec{Path: wire.Self, Args: []string{wire.Program, wire.VerbFiles}, Stdin: true})
			if err != nil {
				t.Fatal(err)
			}
			call := func(op byte, fill func(*wire.Pack)) uint64 {
				t.Helper()
				request := wire.NewFrame(64)
				fill(&request)
				if _, err := files.Stdin().Write(request.End(7, op)); err != nil {
					t.Fatal(err)
				}
				_, kind, reply, err := wire.ReadFrame(files.Stdout())
				if err != nil || kind != wire.FileOK {
					t.Fatalf("operation %d: %d %x, %v", op, kind, reply, err)
				}
				return wire.NewUnpack(reply).Uint()
			}
			at := func(name string) func(*wire.Pack) {
				return func(p *wire.Pack) { p.String(filepath.Join(dir, name)); p.Int(0o644) }
			}
			write := func(h uint64) {
				call(wire.FileWrite, func(p *wire.Pack) { p.Uint(h); p.Int(0); p.Bytes([]byte("half")) })
			}
			whole := call(wire.FileBegin, at("whole"))
			write(whole)
			call(wire.FileCommit, func(p *wire.Pack) { p.Uint(whole) })
			for _, name := range []string{"f", "new"} {
				write(call(wire.FileBegin, at(name)))
			}
			if got := names(); len(got) != 4 || !strings.HasPrefix(got[0], ".agent-sandbox-") {
				t.Fatalf("meanwhile there is %q; want two temporary names: it proves nothing", got)
			}
			switch how {
			case "it closes its files":
				files.Close()
			case "it is killed":
				conn.Close()
			case "the session ends":
				b.cmd.Process.Signal(unix.SIGTERM)
				if code := b.code(); code != wire.CodeStopped {
					t.Errorf("exit code %d, want %d", code, wire.CodeStopped)
				}
			}
			eventually(t, "the temporary names are gone", func() bool { return len(names()) == 2 })
			if got, err := os.ReadFile(filepath.Join(dir, "f")); string(got) != "old" || err != nil {
				t.Errorf("f holds %q, %v", got, err)
			}
		})
	}
}
