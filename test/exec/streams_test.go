package exec_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// stuck is a writer whose first Write does not return before the test ends.
func stuck(t *testing.T) (w io.Writer, begun <-chan struct{}) {
	began, free := make(chan struct{}), make(chan struct{})
	t.Cleanup(func() { close(free) })
	first := true
	return writerFunc(func(b []byte) (int, error) {
		if first {
			first = false
			close(began)
		}
		<-free
		return len(b), nil
	}), began
}

// Whatever a stream does, Kill, Timeout and the context end Wait.
func TestWaitEndsWhateverAStreamDoes(t *testing.T) {
	t.Parallel()
	sb := harness.Shared(t)
	killed := func(err error) bool { return harness.ExitCode(err) == 137 }
	for what, streams := range map[string]func(t *testing.T, c *sandbox.Cmd) <-chan struct{}{
		"a writer that blocks": func(t *testing.T, c *sandbox.Cmd) (begun <-chan struct{}) {
			c.Stdout, begun = stuck(t)
			return begun
		},
		"one for both streams that blocks": func(t *testing.T, c *sandbox.Cmd) (begun <-chan struct{}) {
			c.Stdout, begun = stuck(t)
			c.Stderr = c.Stdout
			return begun
		},
		"a stderr that blocks": func(t *testing.T, c *sandbox.Cmd) (begun <-chan struct{}) {
			c.Args[2] = "exec yes >&2"
			c.Stderr, begun = stuck(t)
			return begun
		},
		"a pipe that nobody reads": func(t *testing.T, c *sandbox.Cmd) <-chan struct{} {
			if _, err := c.StdoutPipe(); err != nil {
				t.Fatal(err)
			}
			return nil
		},
		"a pipe of which some was read": func(t *testing.T, c *sandbox.Cmd) <-chan struct{} {
			r, err := c.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			read := make(chan struct{})
			go func() {
				defer close(read)
				r.Read(make([]byte, 10))
			}()
			return read
		},
	} {
		for how, end := range map[string]struct {
			prepare func(c *sandbox.Cmd)
			end     func(c *sandbox.Cmd, cancel func())
			right   func(err error) bool
		}{
			"Kill":                       {nil, func(c *sandbox.Cmd, _ func()) { c.Kill() }, killed},
			"SIGKILL":                    {nil, func(c *sandbox.Cmd, _ func()) { c.Signal(syscall.SIGKILL) }, killed},
			"Timeout":                    {func(c *sandbox.Cmd) { c.Timeout = time.Second }, nil, func(err error) bool { return killed(err) && errors.Is(err, sandbox.ErrTimeout) }},
			"a context":                  {nil, func(_ *sandbox.Cmd, cancel func()) { cancel() }, func(err error) bool { return errors.Is(err, context.Canceled) }},
			"WaitDelay":                  {func(c *sandbox.Cmd) { c.WaitDelay = 50 * time.Millisecond }, func(c *sandbox.Cmd, _ func()) { c.Signal(syscall.SIGTERM) }, func(err error) bool { return harness.ExitCode(err) == 143 }},
			"Kill of a detached command": {func(c *sandbox.Cmd) { c.Detached = true }, func(c *sandbox.Cmd, _ func()) { c.Kill() }, killed},
		} {
			t.Run(what+", "+how, func(t *testing.T) {
				t.Parallel()
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				cmd := sb.Command(ctx, "sh", "-c", "exec yes")
				if end.prepare != nil {
					end.prepare(cmd)
				}
				begun := streams(t, cmd)
				if err := cmd.Start(); err != nil {
					t.Fatal(err)
				}
				if begun != nil {
					<-begun
				}
				waited := make(chan error, 1)
				go func() { waited <- cmd.Wait() }()
				if end.end != nil {
					end.end(cmd, cancel)
				}
				select {
				case err := <-waited:
					if !end.right(err) {
						t.Errorf("Wait = %v", err)
					}
				case <-time.After(harness.GoneBound):
					t.Error("Wait does not return")
				}
			})
		}
	}
}

// No Write begins after Wait has returned, and a command that ended by itself waits for a slow writer.
func TestASlowWriterLosesNothing(t *testing.T) {
	t.Parallel()
	sb := harness.Shared(t)
	n := 0
	cmd := sb.Command(t.Context(), "head", "-c", "1000000", "/dev/zero")
	cmd.Stdout = writerFunc(func(b []byte) (int, error) {
		time.Sleep(70 * time.Millisecond)
		n += len(b)
		return len(b), nil
	})
	if err := cmd.Run(); err != nil || n != 1000000 {
		t.Errorf("Run = %v, and %d bytes", err, n)
	}
}

// Wait closes the pipe of StdinPipe, which is no error of the command.
func TestACommandNeedNotReadItsStdinPipe(t *testing.T) {
	t.Parallel()
	sb := harness.Shared(t)
	for range harness.Rounds(50, 1000) {
		cmd := sb.Command(t.Context(), "true")
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		wrote := make(chan struct{})
		go func() {
			defer close(wrote)
			io.WriteString(in, "text")
		}()
		if err := cmd.Wait(); err != nil {
			t.Fatalf("Wait = %v", err)
		}
		<-wrote
	}
}

// ownDir makes a directory in the shared sandbox for the test alone.
func ownDir(t *testing.T) (sb *sandbox.Sandbox, dir string) {
	t.Helper()
	sb, dir = harness.Shared(t), "/workspace/"+harness.UniqueName(t)
	harness.Run(t, sb, "mkdir", dir)
	t.Cleanup(func() {
		if err := sb.Command(context.WithoutCancel(t.Context()), "rm", "-rf", dir).Run(); err != nil {
			t.Errorf("remove %s: %v", dir, err)
		}
	})
	return sb, dir
}

// As by os/exec, nobody waits for a background process whose output nobody wants. One whose output is cut lives on, and
// writes on.
func TestBackgroundProcessesLiveOn(t *testing.T) {
	t.Parallel()
	sb, dir := ownDir(t)
	// It writes more than a pipe holds, so that it notices if nobody reads.
	const busy = `(while ! test -e go; do sleep 0.05; done; i=0; while [ $i -lt 100 ]; do head -c 2000 /dev/zero || exit; i=$((i+1)); done; echo >&2 end && touch done%d)`
	var none, buf, both strings.Builder
	for i, tt := range []struct {
		what, script string
		set          func(*sandbox.Cmd)
		want         error
	}{
		{"nil", busy + " &", func(*sandbox.Cmd) {}, nil},
		{"nil, nohup", "nohup sh -c '" + busy + "' &", func(*sandbox.Cmd) {}, nil},
		{"nil, of its own session", "setsid sh -c '" + busy + "' &", func(*sandbox.Cmd) {}, nil},
		{"nil, twice removed", "(" + busy + " &); true", func(*sandbox.Cmd) {}, nil},
		{"stderr alone", busy + " &", func(c *sandbox.Cmd) { c.Stderr = &none }, exec.ErrWaitDelay},
		{"stdout", busy + " &", func(c *sandbox.Cmd) { c.Stdout = &buf }, exec.ErrWaitDelay},
		{"both in one", busy + " &", func(c *sandbox.Cmd) { c.Stdout, c.Stderr = &both, &both }, exec.ErrWaitDelay},
		{"detached", busy + " &", func(c *sandbox.Cmd) { c.Detached = true }, exec.ErrWaitDelay},
	} {
		cmd := sh(t, sb, fmt.Sprintf(tt.script, i))
		cmd.Dir = dir
		tt.set(cmd)
		if err := cmd.Run(); !errors.Is(err, tt.want) {
			t.Errorf("%s: Run = %v, want %v", tt.what, err, tt.want)
		}
	}
	harness.Run(t, sb, "touch", dir+"/go")
	for i := range 8 {
		harness.WaitForFile(t, sb, fmt.Sprintf("%s/done%d", dir, i))
	}
}

// Who stops reading a detached command's output does not end it.
func TestADetachedCommandOutlivesItsReaders(t *testing.T) {
	t.Parallel()
	sb, dir := ownDir(t)
	cmd := sh(t, sb, "while ! test -e go; do echo line; sleep 0.02; done; exit 4")
	cmd.Detached, cmd.Dir = true, dir
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, 10)); err != nil {
		t.Fatal(err)
	}
	out.Close()
	again, err := sb.Process(t.Context(), cmd.ID())
	if err != nil {
		t.Fatal(err)
	}
	again.Stdout = writerFunc(func([]byte) (int, error) {
		sb.WriteFile(t.Context(), dir+"/go", nil, 0o644)
		return 0, os.ErrInvalid
	})
	if err := again.Wait(); harness.ExitCode(err) != 4 || !errors.Is(err, os.ErrInvalid) {
		t.Errorf("Wait of Process = %v, want exit code 4 and the writer's error", err)
	}
	if err := cmd.Wait(); harness.ExitCode(err) != 4 {
		t.Errorf("Wait = %v, want exit code 4", err)
	}
}

// A Cmd that can't do what is asked of it says so.
func TestACmdThatCannotWorkSaysSo(t *testing.T) {
	t.Parallel()
	var zero sandbox.Cmd
	if err := zero.Run(); !errors.Is(err, sandbox.ErrInvalidArgument) {
		t.Errorf("Run of a zero Cmd: %v", err)
	}
	for what, call := range map[string]func(c *sandbox.Cmd) error{
		"Start": (*sandbox.Cmd).Start, "Wait": (*sandbox.Cmd).Wait, "Kill": (*sandbox.Cmd).Kill,
		"Output":         func(c *sandbox.Cmd) error { return harness.Second(c.Output()) },
		"CombinedOutput": func(c *sandbox.Cmd) error { return harness.Second(c.CombinedOutput()) },
		"Signal":         func(c *sandbox.Cmd) error { return c.Signal(syscall.SIGTERM) },
	} {
		if err := call(&sandbox.Cmd{Path: "true"}); err == nil {
			t.Errorf("%s of a Cmd that Command did not make: no error", what)
		}
	}
	sb := harness.Shared(t)
	first := sb.Command(t.Context(), "cat")
	first.Detached = true
	in, err := first.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Start(); err != nil {
		t.Fatal(err)
	}
	defer first.Wait()
	defer in.Close()
	again, err := sb.Process(t.Context(), first.ID())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := again.StdinPipe(); !errors.Is(err, sandbox.ErrInvalidArgument) {
		t.Errorf("StdinPipe of Process: %v, want ErrInvalidArgument", err)
	}
	again.Stdin = strings.NewReader("lost")
	if err := again.Run(); !errors.Is(err, sandbox.ErrInvalidArgument) || !strings.Contains(err.Error(), "Stdin") {
		t.Errorf("Run of Process with Stdin: %v, want ErrInvalidArgument", err)
	}
}

// A script whose interpreter is not there says which.
func TestMissingInterpreterIsNamed(t *testing.T) {
	t.Parallel()
	sb, dir := ownDir(t)
	harness.Run(t, sb, "mkdir", dir+"/bin")
	for i, tt := range []struct{ first, say string }{
		{"#!/bin/sh\r\n", `its interpreter "/bin/sh\r" does not exist: the line ends with CR LF, not LF`},
		{"#!/usr/bin/env bash\r\n", ""}, // env says it
		{"#! /no/such/python -x\n", `its interpreter "/no/such/python" does not exist`},
		{"#!/no/such/python -x\r\n", `its interpreter "/no/such/python" does not exist: the line ends with CR LF, not LF`},
		{"#!/no/such/interpreter \n", `its interpreter "/no/such/interpreter" does not exist`},
	} {
		name := fmt.Sprint("script", i)
		harness.Write(t, sb, dir+"/bin/"+name, tt.first+"echo ran\r\n")
		harness.Run(t, sb, "chmod", "755", dir+"/bin/"+name)
		for _, path := range []string{dir + "/bin/" + name, "bin/" + name, name} {
			cmd := sb.Command(t.Context(), path)
			cmd.Dir, cmd.Env = dir, []string{"PATH=" + dir + "/bin:/bin:/usr/bin"}
			err := cmd.Run()
			if tt.say == "" {
				if harness.ExitCode(err) != 127 {
					t.Errorf("%q by %s: %v", tt.first, path, err)
				}
				continue
			}
			if !errors.Is(err, exec.ErrNotFound) || !errors.Is(err, os.ErrNotExist) || !strings.HasSuffix(err.Error(), tt.say) || strings.Count(err.Error(), name) != 1 {
				t.Errorf("%q by %s: %v, want %s", tt.first, path, err, tt.say)
			}
		}
	}
}
