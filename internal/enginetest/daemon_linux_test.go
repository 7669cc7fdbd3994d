package enginetest

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Overlays of others can be mounted again while there is an engine of a test's own.
func TestDaemonKeepsNoOverlays(t *testing.T) {
	Need(t)
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	for _, name := range []string{"lower", "upper", "work", "all"} {
		if err := os.Mkdir(at(name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	options := "index=on,lowerdir=" + at("lower") + ",upperdir=" + at("upper") + ",workdir=" + at("work")
	mount := func() error { return unix.Mount("overlay", at("all"), "overlay", 0, options) }
	unmount := func() {
		if err := unix.Unmount(at("all"), 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := mount(); err != nil {
		t.Fatal(err)
	}
	NewDaemon(t)
	unmount()
	// A container that another test starts has a copy of all mounts for a moment.
	err := mount()
	for deadline := time.Now().Add(5 * time.Minute); errors.Is(err, unix.EBUSY) && time.Now().Before(deadline); err = mount() {
		time.Sleep(100 * time.Millisecond)
	}
	if err != nil {
		t.Fatalf("mount it again: %v", err)
	}
	unmount()
}
