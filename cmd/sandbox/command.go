package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/seed-1a2d6d8f/sandbox"
)

func (a *app) execCommand() *cobra.Command {
	var (
		p process
		x execution
	)
	c := &cobra.Command{
		Use:   "exec [flags] NAME [--] COMMAND [ARG...]",
		Short: "Run a command in an existing sandbox, resumed if it is stopped",
		Long: `Run a command in an existing sandbox, resumed if it is stopped. As with "docker exec", the command
reads stdin only with --interactive, or on a terminal with --tty.

Processes that it leaves in the background end when this program does. With --detach the command
itself runs until it exits or the session ends: its ID is printed, "sandbox processes" lists it,
"sandbox logs" has its output, and "sandbox kill" ends it.`,
		Args:              cobra.MinimumNArgs(2),
		ValidArgsFunction: a.oneSandbox,
		RunE: func(c *cobra.Command, args []string) error {
			a.runsCommand()
			name, argv := args[0], args[1:]
			if argv[0] == "--" {
				argv = argv[1:]
			}
			switch {
			case len(argv) == 0:
				return usageError{fmt.Errorf("sandbox: exec %q: no command", name)}
			case argv[0] == "":
				return usageError{fmt.Errorf("sandbox: exec %q: %w", name, errEmptyCommand)}
			case x.timeout < 0:
				return usagef("sandbox: exec %q: --timeout: %v is negative", name, time.Duration(x.timeout))
			case x.detach && (x.interactive || x.tty):
				return usageError{errors.New("sandbox: exec: --detach: the command can't read stdin, so that --interactive and --tty are of no use")}
			}
			sb, err := a.client.Get(c.Context(), name)
			if err != nil {
				return err
			}
			return a.after(a.execute(c.Context(), sb, &p, x, argv), sb.Detach())
		},
	}
	p.flags(c, "the command")
	x.flags(c)
	c.Flags().BoolVarP(&x.detach, "detach", "d", false, "start the command, print its ID, and let it run")
	c.Flags().Var(&x.timeout, "timeout", "kill the command after this time (default never)")
	return c
}

var errEmptyCommand = errors.New("the name of the command is empty")

// execution is how a command runs.
type execution struct {
	interactive bool // it reads our stdin
	tty         bool // on a terminal, if stdin is one
	detach      bool
	timeout     duration
}

func (x *execution) flags(c *cobra.Command) {
	c.Flags().BoolVarP(&x.interactive, "interactive", "i", false, "let the command read stdin")
	c.Flags().BoolVarP(&x.tty, "tty", "t", false, "allocate a terminal, if stdin is one, and let the command read it")
	c.Flags().SetInterspersed(false) // flags after the command belong to the command
}

// runsCommand notes that the exit code is that of a command in a sandbox. A stdout or stderr that
// nobody reads is an error from now on, where SIGPIPE would end this program before it has cleaned up.
func (a *app) runsCommand() {
	a.runs = true
	catchBrokenPipes()
}

// catchBrokenPipes makes a write to a closed pipe an error of the write.
func catchBrokenPipes() { signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) }

// after returns the command's error, which decides the exit code, and otherwise that of
// closing the sandbox.
func (a *app) after(err, closing error) error {
	if err != nil && closing != nil {
		fmt.Fprintln(a.stderr, graphicLines(errorText(closing)))
		return err
	}
	return cmp.Or(err, closing)
}

// execute runs a command with our stdout and stderr.
func (a *app) execute(ctx context.Context, sb *sandbox.Sandbox, p *process, x execution, argv []string) error {
	a.progress.clear() // what follows is the command's output
	a.executes = true
	cmd := sb.Command(ctx, argv[0], argv[1:]...)
	cmd.Env, cmd.Dir, cmd.User, cmd.Timeout = p.env.list(), p.dir, p.user, time.Duration(x.timeout)
	if x.detach {
		return a.detach(cmd)
	}
	cmd.Stdout, cmd.Stderr = patient{a.stdout}, patient{a.stderr}
	in, ok := a.stdin.(*os.File)
	tty := x.tty && ok && term.IsTerminal(int(in.Fd()))
	if x.interactive || tty {
		cmd.Stdin = patient{a.stdin}
	}
	var err error
	if tty {
		err = a.onTerminal(ctx, cmd, in)
	} else {
		err = cmd.Run()
	}
	if errors.Is(err, exec.ErrWaitDelay) {
		return nil // it succeeded, and left processes in the background
	}
	return err
}

// detach starts a command that outlives this program, and prints its ID.
func (a *app) detach(cmd *sandbox.Cmd) error {
	cmd.Detached = true
	if err := cmd.Start(); err != nil {
		return err
	}
	_, err := fmt.Fprintln(a.stdout, cmd.ID())
	return err
}

// onTerminal runs a command on a terminal that does what ours does.
func (a *app) onTerminal(ctx context.Context, cmd *sandbox.Cmd, in *os.File) error {
	cmd.TTY = true
	if kind := os.Getenv("TERM"); kind != "" {
		cmd.Env = append([]string{"TERM=" + kind}, cmd.Env...)
	}
	// From here on all keys, including Ctrl-C, go to the command.
	before, err := term.MakeRaw(int(in.Fd()))
	if err != nil {
		return err
	}
	defer term.Restore(int(in.Fd()), before)
	follow, stop := context.WithCancel(ctx)
	defer stop()
	resize := follower(cmd, in)
	resize()
	if err := cmd.Start(); err != nil {
		return err
	}
	go func() {
		// Not every system signals a change of the window's size, so poll.
		for tick := time.NewTicker(250 * time.Millisecond); ; {
			select {
			case <-follow.Done():
				tick.Stop()
				return
			case <-tick.C:
				resize()
			}
		}
	}()
	return cmd.Wait()
}

// follower returns a function that resizes cmd's terminal if ours has changed.
func follower(cmd *sandbox.Cmd, in *os.File) func() {
	var cols, rows int
	return func() {
		c, r, err := term.GetSize(int(in.Fd()))
		if err != nil || c == cols && r == rows {
			return
		}
		cols, rows = c, r
		cmd.Resize(uint16(rows), uint16(cols)) // fails only if the command has just ended
	}
}

func (a *app) shellCommand() *cobra.Command {
	var p process
	c := &cobra.Command{
		Use:   "shell [flags] NAME",
		Short: "Open a shell in a sandbox, resumed if it is stopped",
		Long: `Open a shell in a sandbox, resumed if it is stopped: bash if the sandbox has it, otherwise sh.
If stdin is not a terminal the shell reads commands from it.`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.oneSandbox,
		RunE: func(c *cobra.Command, args []string) error {
			a.runsCommand()
			sb, err := a.client.Get(c.Context(), args[0])
			if err != nil {
				return err
			}
			shell := []string{"sh", "-c", "command -v bash >/dev/null && exec bash; exec sh"}
			return a.after(a.execute(c.Context(), sb, &p, execution{interactive: true, tty: true}, shell), sb.Detach())
		},
	}
	p.flags(c, "the shell")
	return c
}
