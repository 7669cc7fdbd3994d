package trees_test

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/trees"
)

// A file or a directory that this process may not read is named.
func TestWhatCannotBeReadIsNamed(t *testing.T) {
	for _, name := range []string{"d/f", "d"} {
		dir := fill(t, 1, "d/f")
		path := filepath.Join(dir, name)
		if err := errors.Join(os.Chown(path, 12345, 12345), os.Chmod(path, 0)); err != nil {
			t.Fatal(err)
		}
		sent := make(chan error)
		go func() {
			runtime.LockOSThread() // for good: the thread ends with the goroutine
			header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
			var caps [2]unix.CapUserData
			err := unix.Capset(&header, &caps[0]) // root may read everything
			if err == nil {
				err = trees.New(t.Context(), io.Discard).Send(0, dir)
			}
			sent <- err
		}()
		err := <-sent
		var p *fs.PathError
		if !errors.Is(err, fs.ErrPermission) || !errors.As(err, &p) || p.Path != path {
			t.Errorf("Send with an unreadable %s = %v, want fs.ErrPermission about %s", name, err, path)
		}
	}
}
