package engine_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
)

func execute(t testing.TB, e *engine.Engine, id string, s engine.ExecSpec) *engine.Stream {
	t.Helper()
	st, err := e.Exec(t.Context(), id, s)
	if err != nil {
		t.Fatalf("Exec(%q): %v", s.Argv, err)
	}
	t.Cleanup(func() { _ = st.Close() })
	return st
}

func TestExecKeepsOutputApartAndTellsTheCode(t *testing.T) {
	t.Parallel()
	e := open(t)
	id, _ := start(t, e, engine.ContainerSpec{})
	st := execute(t, e, id, engine.ExecSpec{Argv: []string{"/tool", "exit", "42"}})
	if got := readAll(t, st); got != "out" || st.Stderr() != "err" {
		t.Errorf("stdout %q, stderr %q, want out and err", got, st.Stderr())
	}
	if code, err := st.ExitCode(t.Context()); code != 42 || err != nil {
		t.Errorf("ExitCode = %d, %v, want 42", code, err)
	}
	if n, err := st.Read(make([]byte, 1)); n != 0 || err != io.EOF {
		t.Errorf("Read after the end = %d, %v, want io.EOF", n, err)
	}
}

func TestExecTakesUserAndDir(t *testing.T) {
	t.Parallel()
	e := open(t)
	id, _ := start(t, e, engine.ContainerSpec{Env: []string{"B=container"}})
	for _, c := range []struct {
		s    engine.ExecSpec
		want string
	}{
		{engine.ExecSpec{}, "1000 /tmp image container\n"},
		{engine.ExecSpec{User: "0", Dir: "/etc"}, "0 /etc image container\n"},
	} {
		c.s.Argv = []string{"/tool", "who"}
		if got := readAll(t, execute(t, e, id, c.s)); got != c.want {
			t.Errorf("Exec(%+v) = %q, want %q", c.s, got, c.want)
		}
	}
}

func TestExecStreamsBothWays(t *testing.T) {
	t.Parallel()
	e := open(t)
	id, _ := start(t, e, engine.ContainerSpec{})
	st := execute(t, e, id, engine.ExecSpec{Argv: []string{"/tool", "cat"}, Stdin: true})
	in := make([]byte, 20<<20+7)
	_, _ = rand.Read(in)
	sent := make(chan error, 1)
	go func() {
		_, err := io.Copy(st, bytes.NewReader(in))
		sent <- errors.Join(err, st.CloseWrite())
	}()
	h := sha256.New()
	n, err := io.Copy(h, st)
	if err != nil || n != int64(len(in)) {
		t.Errorf("read %d bytes, %v, want %d", n, err, len(in))
	}
	if err := <-sent; err != nil {
		t.Errorf("write: %v", err)
	}
	if want := sha256.Sum256(in); !bytes.Equal(h.Sum(nil), want[:]) {
		t.Error("what came back is not what went in")
	}
	if !strings.HasPrefix(st.Stderr(), "copied 20971527") {
		t.Errorf("stderr %q", st.Stderr())
	}
}

func TestStderrIsKeptToItsLast4KiB(t *testing.T) {
	t.Parallel()
	e := open(t)
	id, _ := start(t, e, engine.ContainerSpec{})
	st := execute(t, e, id, engine.ExecSpec{Argv: []string{"/tool", "spam", "8"}})
	n, err := io.Copy(io.Discard, st)
	if n != 8<<20 || err != nil {
		t.Errorf("read %d bytes, %v, want %d", n, err, 8<<20)
	}
	if got := st.Stderr(); len(got) != 4<<10 || !strings.HasSuffix(got, "eee\n") {
		t.Errorf("kept %d bytes of stderr", len(got))
	}
}

func TestMissingProgramEndsTheExec(t *testing.T) {
	t.Parallel()
	e := open(t)
	id, _ := start(t, e, engine.ContainerSpec{})
	st := execute(t, e, id, engine.ExecSpec{Argv: []string{"/no/such/program"}})
	_, _ = io.Copy(io.Discard, st)
	if code, err := st.ExitCode(t.Context()); err != nil || (code != 126 && code != 127) {
		t.Errorf("ExitCode = %d, %v, want 126 or 127", code, err)
	}
}

func TestExitCodeOfARunningCommandIsConflict(t *testing.T) {
	t.Parallel()
	e := open(t)
	id, _ := start(t, e, engine.ContainerSpec{})
	st := execute(t, e, id, engine.ExecSpec{Argv: []string{"/tool", "wait"}})
	if _, err := io.ReadFull(st, make([]byte, len("ready\n"))); err != nil {
		t.Fatal(err)
	}
	_, err := st.ExitCode(t.Context())
	wantClass(t, "ExitCode", err, engine.ErrConflict)
}

func TestExecInAPausedContainerIsConflict(t *testing.T) {
	t.Parallel()
	e := open(t)
	id, _ := start(t, e, engine.ContainerSpec{})
	if err := e.PauseContainer(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	_, err := e.Exec(t.Context(), id, engine.ExecSpec{Argv: []string{"/tool", "who"}})
	wantClass(t, "Exec", err, engine.ErrConflict)
}

func TestClosedStreamSaysSo(t *testing.T) {
	t.Parallel()
	e := open(t)
	id, _ := start(t, e, engine.ContainerSpec{})
	st := execute(t, e, id, engine.ExecSpec{Argv: []string{"/tool", "cat"}, Stdin: true})
	reading := make(chan error, 1)
	go func() {
		_, err := st.Read(make([]byte, 1))
		reading <- err
	}()
	for range 2 {
		if err := st.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	}
	if err := <-reading; !errors.Is(err, net.ErrClosed) {
		t.Errorf("Read under way = %v, want net.ErrClosed", err)
	}
	if _, err := st.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Write = %v, want net.ErrClosed", err)
	}
	if err := st.CloseWrite(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("CloseWrite = %v, want net.ErrClosed", err)
	}
}

func TestStreamOutlivesTheContextOfItsStart(t *testing.T) {
	t.Parallel()
	e := open(t)
	id, _ := start(t, e, engine.ContainerSpec{})
	ctx, cancel := context.WithCancel(t.Context())
	st, err := e.Exec(ctx, id, engine.ExecSpec{Argv: []string{"/tool", "cat"}, Stdin: true})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	cancel()
	if _, err := io.WriteString(st, "still here"); err != nil {
		t.Fatalf("Write: %v", err)
	}
	if err := st.CloseWrite(); err != nil {
		t.Fatalf("CloseWrite: %v", err)
	}
	if got := readAll(t, st); got != "still here" {
		t.Errorf("read %q", got)
	}
}

func TestStallingStartEndsWithItsContext(t *testing.T) {
	enginetest.Need(t)
	t.Parallel()
	p := enginetest.NewProxy(t)
	e := openAt(t, p.Host())
	id, _ := start(t, e, engine.ContainerSpec{})
	for k := 1; k <= 2; k++ {
		for limit := 300 * time.Millisecond; ; limit *= 2 {
			p.Stall(k)
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			_, err := e.Exec(ctx, id, engine.ExecSpec{Argv: []string{"/tool", "who"}})
			cancel()
			wantClass(t, "Exec", err, context.DeadlineExceeded)
			if p.Fired() {
				break
			}
			if limit > time.Minute {
				t.Fatalf("call %d of Exec did not happen: %q", k, p.Calls())
			}
		}
	}
}

// awaitOutput waits until the program has said that it runs: before, an engine may say that it has
// ended.
func awaitOutput(t *testing.T, st io.Reader) {
	t.Helper()
	if _, err := io.ReadFull(st, make([]byte, len("ready\n"))); err != nil {
		t.Fatal(err)
	}
}

func TestCutStreamIsUnavailable(t *testing.T) {
	enginetest.Need(t)
	t.Parallel()
	p := enginetest.NewProxy(t)
	e := openAt(t, p.Host())
	id, _ := start(t, e, engine.ContainerSpec{})
	st := execute(t, e, id, engine.ExecSpec{Argv: []string{"/tool", "cat"}, Stdin: true})
	if _, err := io.WriteString(st, "x"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(st, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	// The connections go, and the engine still answers: only asking it tells
	// a cut from an end. Its own side of the stream has closed the command's
	// stdin, so the command may be over by then.
	p.CloseAll()
	if _, err := io.Copy(io.Discard, st); err != nil {
		wantClass(t, "Read", err, engine.ErrUnavailable)
	}
	eventually(t, "writing to a cut stream fails", func() bool {
		_, err := io.WriteString(st, "x")
		if err != nil {
			wantClass(t, "Write", err, engine.ErrUnavailable)
		}
		return err != nil
	})

	st = execute(t, e, id, engine.ExecSpec{Argv: []string{"/tool", "stubborn"}})
	awaitOutput(t, st)
	p.CloseAll()
	_, err := io.Copy(io.Discard, st)
	wantClass(t, "Read of a command that runs on", err, engine.ErrUnavailable)

	st = execute(t, e, id, engine.ExecSpec{Argv: []string{"/tool", "stubborn"}})
	awaitOutput(t, st)
	p.Refuse(true)
	_, err = io.Copy(io.Discard, st)
	wantClass(t, "Read with the engine down", err, engine.ErrUnavailable)
	p.Refuse(false)
	if _, err := e.Info(t.Context()); err != nil {
		t.Errorf("Info of an engine that is back: %v", err)
	}
}

func TestStreamEndsWithItsContainer(t *testing.T) {
	t.Parallel()
	e := open(t)
	for what, end := range map[string]func(id string) error{
		"kill":   func(id string) error { return e.KillContainer(t.Context(), id, "SIGKILL") },
		"remove": func(id string) error { return e.RemoveContainer(t.Context(), id, true) },
	} {
		id, _ := start(t, e, engine.ContainerSpec{})
		st := execute(t, e, id, engine.ExecSpec{Argv: []string{"/tool", "wait"}})
		if _, err := io.ReadFull(st, make([]byte, len("ready\n"))); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if err := end(id); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if _, err := io.Copy(io.Discard, st); err != nil {
			t.Errorf("%s: Read = %v, want the end", what, err)
		}
		code, err := st.ExitCode(t.Context())
		if err != nil {
			wantClass(t, what+": ExitCode", err, engine.ErrNotFound)
		} else if code != 137 {
			t.Errorf("%s: ExitCode = %d, want 137", what, code)
		}
	}
}
