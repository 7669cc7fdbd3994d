//go:build linux

package guest_test

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// binary is the guest, built from the tree under test.
var binary string

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == helperVerb {
		helper(os.Args[2:])
	}
	_ = flag.Set("test.parallel", "8") // they wait for leases and deadlines, mostly; who runs them may say otherwise
	dir, err := os.MkdirTemp("", "guest")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	binary = filepath.Join(dir, "guest")
	build := exec.Command("go", "build", "-o", binary, "./cmd")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "%v\n%s", err, out)
		os.Exit(1)
	}
	// The user switching tests execute nothing of dir, but its parents must be open.
	os.Chmod(dir, 0o755)
	code := m.Run()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.RemoveAll(dir)
	os.Exit(code)
}

// pipes joins a process's stdin and stdout.
type pipes struct {
	io.ReadCloser
	w io.WriteCloser
}

func (p pipes) Write(b []byte) (int, error) { return p.w.Write(b) }
func (p pipes) Close() error {
	p.w.Close()
	return p.ReadCloser.Close()
}

// serve starts `guest serve`, by argv if given, and connects to it.
func serve(t testing.TB, argv ...string) (*guest.Conn, *exec.Cmd) {
	t.Helper()
	if argv == nil {
		argv = []string{binary, wire.VerbServe}
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stderr = os.Stderr
	// Pipes of our own: Wait must not close them under the connection.
	inR, inW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	outR, outW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdin, cmd.Stdout = inR, outW
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	inR.Close()
	outW.Close()
	conn, err := guest.Dial(context.Background(), pipes{outR, inW})
	if err != nil {
		cmd.Wait()
		t.Fatal(err)
	}
	t.Cleanup(func() {
		conn.Close()
		cmd.Wait()
	})
	return conn, cmd
}
