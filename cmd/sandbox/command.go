package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/seed-1a2d6d8f/sandbox"
)

// process are the flags of a command to run.
type process struct {
	env  []string
	dir  string
	user string
	tty  bool
}

func (p *process) flags(c *cobra.Command) {
	c.Flags().StringArrayVarP(&p.env, "env", "e", nil, "set an environment variable of the command: KEY=VALUE")
	c.Flags().StringVarP(&p.dir, "dir", "w", "", "the command's directory (default /workspace)")
	c.Flags().StringVarP(&p.user, "user", "u", "", "the user: USER or USER:GROUP (default the image's)")
	c.Flags().BoolVarP(&p.tty, "tty", "t", false, "allocate a terminal, if stdin is one")
	// Flags after the command belong to the command.
	c.Flags().SetInterspersed(false)
}

// runFlags are the flags of "sandbox run" that make a sandbox.
type runFlags struct {
	name, image, network string
	vcpus                float64
	memory               int64
	timeout              time.Duration
	source               source
}

func (f *runFlags) flags(c *cobra.Command) {
	c.Flags().StringVar(&f.name, "name", "", "use the sandbox of that name, and keep it")
	c.Flags().StringVar(&f.image, "image", sandbox.DefaultImage, "the image, pulled if the engine does not have it")
	c.Flags().Float64Var(&f.vcpus, "vcpus", sandbox.DefaultVCPUs, "the number of CPUs")
	c.Flags().Int64Var(&f.memory, "memory", 0, "the memory limit, in MiB (default 2048 for each CPU)")
	c.Flags().DurationVar(&f.timeout, "timeout", 0, "end the session after this time, such as 10m (default never)")
	c.Flags().StringVar(&f.network, "network", "allow-all", networkHelp)
	f.source.flags(c)
}

// options returns an option for each flag that was given.
func (f *runFlags) options(c *cobra.Command) ([]sandbox.CreateOption, error) {
	var opts []sandbox.CreateOption
	given := c.Flags().Changed
	if given("image") {
		opts = append(opts, sandbox.WithImage(f.image))
	}
	if given("vcpus") {
		opts = append(opts, sandbox.WithVCPUs(f.vcpus))
	}
	if given("memory") {
		opts = append(opts, sandbox.WithMemory(f.memory<<20))
	}
	if given("timeout") {
		opts = append(opts, sandbox.WithTimeout(f.timeout))
	}
	if given("network") {
		policy, err := sandbox.ParseNetworkPolicy(f.network)
		if err != nil {
			return nil, err
		}
		opts = append(opts, sandbox.WithNetworkPolicy(policy))
	}
	source, err := f.source.source(c.InOrStdin())
	if source != nil {
		opts = append(opts, sandbox.WithSource(source))
	}
	return opts, err
}

func (a *app) runCommand() *cobra.Command {
	var (
		p process
		f runFlags
	)
	c := &cobra.Command{
		Use:   "run [flags] [--] COMMAND [ARG...]",
		Short: "Run a command in a new sandbox",
		Long: `Run a command in a new sandbox, and delete the sandbox and its files afterwards.

With --name use the sandbox of that name, or create it. It is kept, and its session runs
until "sandbox stop". The other flags only apply when it is created.`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, argv []string) error {
			a.runs = true
			opts, err := f.options(c)
			if err != nil {
				return err
			}
			opts = append(opts, sandbox.WithProgress(a.progress()))
			if c.Flags().Changed("name") {
				sb, err := a.client.GetOrCreate(c.Context(), f.name, opts...)
				if err != nil {
					return err
				}
				return a.after(a.execute(c.Context(), sb, &p, argv), sb.Detach())
			}
			sb, err := a.client.Create(c.Context(), opts...)
			if err != nil {
				return err
			}
			return a.after(a.execute(c.Context(), sb, &p, argv), sb.Close())
		},
	}
	p.flags(c)
	f.flags(c)
	return c
}

// source are the flags for the workspace's first files.
type source struct {
	git, revision, tarball, dir, snapshot string
	depth, strip                          int
}

func (s *source) flags(c *cobra.Command) {
	c.Flags().StringVar(&s.git, "git", "", "start with a clone of this repository: a URL (other users of this machine can see a password in it) or an absolute path")
	c.Flags().StringVar(&s.revision, "revision", "", "the branch, tag or commit to clone (default the repository's HEAD)")
	c.Flags().IntVar(&s.depth, "depth", 0, "the number of commits of history to clone (default all)")
	c.Flags().StringVar(&s.tarball, "tarball", "", "start with the files of this archive: a URL, a file, or - for stdin")
	c.Flags().IntVar(&s.strip, "strip", 0, "remove this many leading elements from the archive's names")
	c.Flags().StringVar(&s.dir, "from", "", "start with a copy of this directory")
	c.Flags().StringVar(&s.snapshot, "snapshot", "", "start with the files and the image of this snapshot")
}

// source returns nil if no flag names a source.
func (s *source) source(stdin io.Reader) (sandbox.Source, error) {
	given := 0
	for _, flag := range []string{s.git, s.tarball, s.dir, s.snapshot} {
		if flag != "" {
			given++
		}
	}
	switch {
	case given > 1:
		return nil, errors.New("--git, --tarball, --from and --snapshot exclude each other")
	case s.git == "" && (s.revision != "" || s.depth != 0):
		return nil, errors.New("--revision and --depth need --git")
	case s.tarball == "" && s.strip != 0:
		return nil, errors.New("--strip needs --tarball")
	case s.git != "":
		return sandbox.Git{URL: s.git, Revision: s.revision, Depth: s.depth}, nil
	case s.tarball == "-":
		return sandbox.Tarball{Reader: stdin, Strip: s.strip}, nil
	case strings.Contains(s.tarball, "://"):
		return sandbox.Tarball{URL: s.tarball, Strip: s.strip}, nil
	case s.tarball != "":
		return sandbox.Tarball{Path: s.tarball, Strip: s.strip}, nil
	case s.dir != "":
		return sandbox.Dir(s.dir), nil
	case s.snapshot != "":
		return sandbox.FromSnapshot(s.snapshot), nil
	}
	return nil, nil
}

func (a *app) execCommand() *cobra.Command {
	var p process
	c := &cobra.Command{
		Use:   "exec [flags] NAME [--] COMMAND [ARG...]",
		Short: "Run a command in an existing sandbox, resumed if it is stopped",
		Args:  cobra.MinimumNArgs(2),
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
			return a.after(a.execute(c.Context(), sb, &p, argv), sb.Detach())
		},
	}
	p.flags(c)
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
func (a *app) execute(ctx context.Context, sb *sandbox.Sandbox, p *process, argv []string) error {
	cmd := sb.Command(ctx, argv[0], argv[1:]...)
	cmd.Env, cmd.Dir, cmd.User = p.env, p.dir, p.user
	cmd.Stdin, cmd.Stdout, cmd.Stderr = a.stdin, a.stdout, a.stderr
	in, ok := a.stdin.(*os.File)
	if !p.tty || !ok || !term.IsTerminal(int(in.Fd())) {
		return cmd.Run()
	}
	cmd.TTY = true
	cmd.Env = append([]string{"TERM=" + os.Getenv("TERM")}, cmd.Env...)
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

// progress reports pulls of images on stderr: they take long.
func (a *app) progress() func(sandbox.Progress) {
	var last string
	return func(p sandbox.Progress) {
		if p.Step != "image" || !strings.HasPrefix(p.Text, "pulling ") || p.Text == last {
			return
		}
		last = p.Text
		fmt.Fprintln(a.stderr, "sandbox:", graphic(p.Text))
	}
}
