// Package exec has the names of package os/exec that its tests use, for commands in a sandbox.
package exec

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/seed-1a2d6d8f/sandbox"
)

// Sandbox is where commands run.
var Sandbox *sandbox.Sandbox

var ErrWaitDelay = exec.ErrWaitDelay

// Cmd has the fields of os/exec.Cmd. Cancel is not called: the context's end kills.
type Cmd struct {
	Path           string
	Args, Env      []string
	Dir            string
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Cancel         func() error
	Process        *Process
	ProcessState   *ProcessState

	ctx context.Context
	cmd *sandbox.Cmd
}

type Process struct {
	Pid int
	cmd *sandbox.Cmd
}

func (p *Process) Kill() error { return p.cmd.Kill() }

type ProcessState struct{ code int }

func (s *ProcessState) Pid() int { return 0 }

func (s *ProcessState) ExitCode() int {
	if s == nil {
		return -1
	}
	return s.code
}

// ExitError is a sandbox.ExitError with the text of os/exec's.
type ExitError struct {
	*sandbox.ExitError
	Stderr []byte
}

func (e *ExitError) Error() string {
	text := e.ExitError.Error()
	if _, how, ok := strings.Cut(text, Sandbox.Name()+`": `); ok {
		_, text, _ = strings.Cut(how, ": ")
	}
	return text
}

func Command(name string, args ...string) *Cmd {
	return CommandContext(context.Background(), name, args...)
}

func CommandContext(ctx context.Context, name string, args ...string) *Cmd {
	return &Cmd{Path: name, Args: append([]string{name}, args...), ctx: ctx}
}

func (c *Cmd) real() *sandbox.Cmd {
	if c.cmd == nil && c.ctx == nil {
		c.cmd = new(sandbox.Cmd)
	}
	if c.cmd == nil {
		c.cmd = Sandbox.Command(c.ctx, c.Path)
	}
	return c.cmd
}

// given gives the fields to the command.
func (c *Cmd) given() *sandbox.Cmd {
	r := c.real()
	r.Path, r.Args, r.Env, r.Dir = c.Path, c.Args, c.Env, c.Dir
	for _, f := range []struct {
		to   *io.Writer
		from io.Writer
	}{{&r.Stdout, c.Stdout}, {&r.Stderr, c.Stderr}} {
		if f.from != nil {
			*f.to = f.from
		}
	}
	if c.Stdin != nil {
		r.Stdin = c.Stdin
	}
	return r
}

func (c *Cmd) Start() error {
	err := c.given().Start()
	if err == nil {
		c.Process = &Process{c.cmd.Pid(), c.cmd}
	}
	return err
}

func (c *Cmd) Wait() error { return c.ended(c.real().Wait()) }

func (c *Cmd) Run() error {
	if err := c.Start(); err != nil {
		return err
	}
	return c.Wait()
}

func (c *Cmd) Output() ([]byte, error) {
	b, err := c.given().Output()
	return b, c.ended(err)
}

func (c *Cmd) CombinedOutput() ([]byte, error) {
	b, err := c.given().CombinedOutput()
	return b, c.ended(err)
}

// ended notes how a command ended, as os/exec does.
func (c *Cmd) ended(err error) error {
	exit, ok := errors.AsType[*sandbox.ExitError](err)
	switch {
	case err == nil:
		c.ProcessState = &ProcessState{}
	case ok:
		c.ProcessState = &ProcessState{exit.ExitCode()}
		return &ExitError{exit, exit.Stderr}
	}
	return err
}

func (c *Cmd) StdinPipe() (io.WriteCloser, error) { return c.real().StdinPipe() }
func (c *Cmd) StdoutPipe() (io.ReadCloser, error) { return c.real().StdoutPipe() }
func (c *Cmd) StderrPipe() (io.ReadCloser, error) { return c.real().StderrPipe() }

func (c *Cmd) String() string {
	return strings.Join(append([]string{c.Path}, c.Args[1:]...), " ")
}

// Environ returns what the fields add to the environment.
func (c *Cmd) Environ() []string {
	if c.Env != nil {
		return append([]string{}, c.Env...)
	}
	dir, _ := filepath.Abs(c.Dir)
	return []string{"PWD=" + dir}
}

// LookPath finds nothing: the programs are in the sandbox.
func LookPath(string) (string, error) { return "", os.ErrNotExist }
