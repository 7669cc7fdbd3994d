// Osexec runs the cases of its standard input by os/exec, and prints their results.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"

	"github.com/seed-1a2d6d8f/sandbox/test/exec/cases"
)

type command struct{ *exec.Cmd }

func (c command) Kill() error                { return c.Process.Kill() }
func (c command) Signal(sig os.Signal) error { return c.Process.Signal(sig) }

func (c command) Kept(err error) []byte {
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.Stderr
	}
	return nil
}

func run(ctx context.Context, c cases.Case, in io.Reader, out, err io.Writer) cases.Command {
	if c.Timeout != 0 {
		var cancel func()
		ctx, cancel = context.WithTimeout(ctx, c.Timeout)
		context.AfterFunc(ctx, cancel)
	}
	cmd := exec.CommandContext(ctx, "/bin/true")
	if c.Act == "cancel-softly" {
		cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	}
	cmd.Path, cmd.Args, cmd.Dir, cmd.WaitDelay = c.Path, c.Args, c.Dir, c.WaitDelay
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, out, err
	if c.Env != nil {
		cmd.Env = append(os.Environ(), c.Env...)
	}
	if !strings.Contains(c.Path, "/") {
		found := exec.CommandContext(ctx, c.Path)
		cmd.Path, cmd.Err = found.Path, found.Err
	}
	return command{cmd}
}

func main() {
	var all []cases.Case
	if err := json.NewDecoder(os.Stdin).Decode(&all); err != nil {
		log.Fatal(err)
	}
	results := make([]cases.Result, len(all))
	var running sync.WaitGroup
	slots := make(chan struct{}, 12)
	for i, c := range all {
		running.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			results[i] = cases.Run(c, "os/exec", run)
		})
	}
	running.Wait()
	if err := json.NewEncoder(os.Stdout).Encode(results); err != nil {
		log.Fatal(err)
	}
}
