package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/seed-1a2d6d8f/sandbox"
)

func (a *app) execCommand() *cobra.Command {
	var (
		p   process
		tty bool
	)
	c := &cobra.Command{
		Use:               "exec [flags] NAME [--] COMMAND [ARG...]",
		Short:             "Run a command in an existing sandbox, resumed if it is stopped",
		Args:              cobra.MinimumNArgs(2),
		ValidArgsFunction: a.oneSandbox,
		RunE: func(c *cobra.Command, args []string) error {
			a.runs = true
			name, argv := args[0], args[1:]
			if argv[0] == "--" {
				argv = argv[1:]
			}
			if len(argv) == 0 {
				return fmt.Errorf("sandbox: exec %q: no command", name)
			}
			sb, err := a.client.Get(c.Context(), name)
			if err != nil {
				return err
			}
			return a.after(a.execute(c.Context(), sb, &p, tty, argv), sb.Detach())
		},
	}
	p.flags(c, "the command")
	ttyFlag(c, &tty)
	return c
}

// after returns the command's error, which decides the exit code, and otherwise that of
// closing the sandbox.
func (a *app) after(err, closing error) error {
	if err != nil && closing != nil {
		fmt.Fprintln(a.stderr, graphicLines(closing.Error()))
		return err
	}
	return cmp.Or(err, closing)
}

// execute runs a command with our stdin, stdout and stderr.
func (a *app) execute(ctx context.Context, sb *sandbox.Sandbox, p *process, tty bool, argv []string) error {
	a.progress.clear() // what follows is the command's output
	cmd := sb.Command(ctx, argv[0], argv[1:]...)
	cmd.Env, cmd.Dir, cmd.User = p.env.list(), p.dir, p.user
	cmd.Stdin, cmd.Stdout, cmd.Stderr = a.stdin, a.stdout, a.stderr
	in, ok := a.stdin.(*os.File)
	if !tty || !ok || !term.IsTerminal(int(in.Fd())) {
		return cmd.Run()
	}
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
			a.runs = true
			sb, err := a.client.Get(c.Context(), args[0])
			if err != nil {
				return err
			}
			shell := []string{"sh", "-c", "command -v bash >/dev/null && exec bash; exec sh"}
			return a.after(a.execute(c.Context(), sb, &p, true, shell), sb.Detach())
		},
	}
	p.flags(c, "the shell")
	return c
}
