package archive

import (
	"bytes"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// A read-only file keeps its attributes, whoever unpacks it: only its owner's write
// permission lets one be set.
func TestReadOnlyFileKeepsAttributes(t *testing.T) {
	dir, err := os.MkdirTemp("", "archive") // t.TempDir is below a directory for its owner alone
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	h := file(".")
	h.Mode, h.PAXRecords = 0o444, map[string]string{recordXattr + "user.a": "b"}
	in, target := bytes.NewReader(archiveOf(t, h, end())), filepath.Join(dir, "f")
	var report Report
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		if os.Getuid() == 0 {
			unix.Setfsgid(65534)
			unix.Setfsuid(65534)
		}
		report, err = Unpack(t.Context(), in, target, Friendly, Options{Complete: true})
	}()
	<-done
	if err != nil || len(report.Skipped) > 0 {
		t.Fatalf("Unpack: %+v, %v; want nothing skipped", report, err)
	}
	value := make([]byte, 8)
	if n, err := unix.Getxattr(target, "user.a", value); err != nil || string(value[:max(n, 0)]) != "b" {
		t.Errorf("user.a is %q, %v; want b", value[:max(n, 0)], err)
	}
	if info, err := os.Stat(target); err != nil || info.Mode().Perm() != 0o444 {
		t.Errorf("the mode is %v, %v; want 0444", info, err)
	}
}
