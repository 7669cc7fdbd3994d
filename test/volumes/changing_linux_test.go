package volumes_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// A file that never stands still is named, and nothing is left.
func TestFileThatChangesUnderTheCopyIsNamed(t *testing.T) {
	dir := harness.HostDir(t, map[string]string{"still": "x"})
	busy := filepath.Join(dir, "busy")
	// It takes so long that the writer comes in between also on a busy machine.
	if err := os.WriteFile(busy, make([]byte, 256<<20), 0o644); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	f, err := os.OpenFile(busy, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	// On a busy machine a thread of ordinary priority may not run in all the time that a copy takes; and
	// the kernel makes those who write wait for the disk, but not those who set times.
	for _, change := range []func(n int){
		func(n int) { f.WriteAt([]byte(fmt.Sprint(n)), 1000) },
		func(n int) { os.Chtimes(busy, time.Time{}, time.Unix(int64(n), 0)) },
	} {
		wg.Go(func() {
			runtime.LockOSThread() // and the thread ends with this function
			if err := unix.Setpriority(unix.PRIO_PROCESS, 0, -20); err != nil {
				t.Error(err)
			}
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				case <-time.After(time.Millisecond):
					change(n)
				}
			}
		})
	}
	defer wg.Wait()
	defer close(stop)
	eng := harness.NewEngine(t)
	harness.BothWays(t, func(t *testing.T, c *sandbox.Client) {
		name := harness.UniqueName(t)
		harness.Remove(t, c, name)
		_, err := c.Create(t.Context(), sandbox.WithName(name), sandbox.WithMounts(sandbox.Mount{Source: dir, Target: "/data"}))
		var path *fs.PathError
		if !errors.As(err, &path) || path.Path != busy || !strings.Contains(err.Error(), "changed while it was copied") {
			t.Errorf("Create with a source that changes: %v", err)
		}
		if left := harness.Objects(t, eng, harness.Named(name)); len(left) > 0 {
			t.Errorf("left of it: %q", left)
		}
	})
}
