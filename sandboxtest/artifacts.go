package sandboxtest

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"testing"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
)

const (
	keepTimeout = 30 * time.Second // for all artifacts of a sandbox
	keptLines   = 100_000          // of its log, the last ones
	keptFiles   = 10_000           // of its workspace
)

// keep writes what explains a failure to the test's artifacts. What can't be had is logged: the
// test has failed for another reason.
func (on engine) keep(t testing.TB, sb *sandbox.Sandbox) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), keepTimeout)
	defer cancel()
	// The test may have closed its handle, and a stopped sandbox is to stay so.
	sb, err := on.get(ctx, sb.ID(), sandbox.WithoutResume())
	if errors.Is(err, sandbox.ErrNotFound) {
		return // the test deleted it
	}
	if err != nil {
		t.Logf("artifacts of a sandbox: %v", err)
		return
	}
	defer sb.Detach()
	dir := filepath.Join(t.ArtifactDir(), sb.Name())
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Logf("artifacts of sandbox %s: %v", sb.Name(), err)
		return
	}
	for _, a := range []struct {
		name  string
		write func(context.Context, io.Writer, *sandbox.Sandbox) error
	}{{"status.json", on.writeStatus}, {"log.txt", writeLog}, {"egress.txt", writeEgress}, {"files.txt", writeFiles}} {
		if err := writeFile(filepath.Join(dir, a.name), func(w io.Writer) error { return a.write(ctx, w, sb) }); err != nil {
			t.Logf("artifacts of sandbox %s: %s: %v", sb.Name(), a.name, err)
		}
	}
	t.Logf("status, log, egress and a listing of sandbox %s are in %s", sb.Name(), dir)
}

// writeFile creates a file with what write writes.
func writeFile(name string, write func(io.Writer) error) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	w := bufio.NewWriter(f)
	return errors.Join(write(w), w.Flush(), f.Close())
}

func (on engine) writeStatus(ctx context.Context, w io.Writer, sb *sandbox.Sandbox) error {
	st, err := on.inspect(ctx, sb.ID())
	if err != nil {
		return err
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(st)
}

func writeLog(ctx context.Context, w io.Writer, sb *sandbox.Sandbox) error {
	for line, err := range sb.Logs(ctx, sandbox.LogOptions{Tail: keptLines}) {
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(w, "%s %s %s\n", line.Time.Format(time.RFC3339Nano), line.Stream, line.Text); err != nil {
			return err
		}
	}
	return nil
}

// writeEgress writes a line for each destination of the current session.
func writeEgress(ctx context.Context, w io.Writer, sb *sandbox.Sandbox) error {
	list, err := sb.Egress(ctx)
	if errors.Is(err, sandbox.ErrNotRunning) {
		_, err = fmt.Fprintln(w, "the sandbox has no session")
		return err
	}
	for _, e := range list {
		outcome := "blocked"
		if e.Allowed {
			outcome = "allowed"
		}
		if e.Failure != "" {
			outcome += " (" + e.Failure + ")"
		}
		// The sandbox chose the name.
		fmt.Fprintf(w, "%s %s %q %v port %d %s rule %q count %d\n", e.Last.Format(time.RFC3339Nano), outcome, e.Name, e.Address, e.Port, e.Protocol, e.Rule, e.Count)
	}
	return err
}

// writeFiles writes a line for each file of the workspace, a directory before what is in it.
func writeFiles(ctx context.Context, w io.Writer, sb *sandbox.Sandbox) error {
	left := keptFiles
	var walk func(dir string) error
	walk = func(dir string) error {
		entries, err := sb.ReadDir(ctx, dir)
		if errors.Is(err, fs.ErrNotExist) {
			return nil // a process has removed it meanwhile
		}
		for _, d := range entries {
			if left--; left < 0 {
				_, err := fmt.Fprintf(w, "… and more than these %d\n", keptFiles)
				return errors.Join(err, errEnough)
			}
			name := path.Join(dir, d.Name())
			info, err := d.Info()
			if err != nil {
				return err
			}
			if _, err := fmt.Fprintf(w, "%s %10d %s %q\n", info.Mode(), info.Size(), info.ModTime().Format(time.RFC3339), name); err != nil {
				return err
			}
			if d.IsDir() {
				if err := walk(name); err != nil {
					return err
				}
			}
		}
		return err
	}
	err := walk(sandbox.Workspace)
	if errors.Is(err, errEnough) {
		return nil
	}
	return err
}

// errEnough ends a listing.
var errEnough = errors.New("enough")
