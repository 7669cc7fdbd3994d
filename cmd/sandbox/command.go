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

// process says how to run a command in a sandbox.
type process struct {
	env  []string
	dir  string
	user string
	tty  bool
}

func (p *process) flags(c *cobra.Command) {
	c.Flags().StringArrayVarP(&p.env, "env", "e", nil, "set an environment variable of the command: KEY=VALUE")
	c.Flags().StringVarP(&p.dir, "dir", "w", "", "the command's directory (default /workspace)")
	c.Flags().StringVarP(&p.user, "user", "u", "", "who runs the command: USER or USER:GROUP (default the image's)")
	c.Flags().BoolVarP(&p.tty, "tty", "t", false, "run it on a terminal, if stdin is one")
	// What follows the command is the command's.
	c.Flags().SetInterspersed(false)
}

func (a *app) runCommand() *cobra.Command {
	var (
		p           process
		name, image string
		vcpus       float64
		memory      int64
		timeout     time.Duration
		network     string
		files       source
	)
	c := &cobra.Command{
		Use:   "run [flags] [--] COMMAND [ARG...]",
		Short: "Run a command in a sandbox of its own",
		Long: `Run a command in a sandbox of its own, which is gone afterwards with everything in it.

With --name it is the sandbox of that name, made when there is none; it stays, and its
session goes on until "sandbox stop". The other flags then only matter when it is made.`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, argv []string) (err error) {
			a.runs = true
			ctx := c.Context()
			opts := []sandbox.CreateOption{sandbox.WithProgress(a.progress())}
			set := c.Flags().Changed
			if set("image") {
				opts = append(opts, sandbox.WithImage(image))
			}
			if set("vcpus") {
				opts = append(opts, sandbox.WithVCPUs(vcpus))
			}
			if set("memory") {
				opts = append(opts, sandbox.WithMemory(memory<<20))
			}
			if set("timeout") {
				opts = append(opts, sandbox.WithTimeout(timeout))
			}
			source, err := files.source(c.InOrStdin())
			if err != nil {
				return err
			}
			if source != nil {
				opts = append(opts, sandbox.WithSource(source))
			}
			if set("network") {
				policy, err := sandbox.ParseNetworkPolicy(network)
				if err != nil {
					return err
				}
				opts = append(opts, sandbox.WithNetworkPolicy(policy))
			}
			if set("name") {
				sb, err := a.client.GetOrCreate(ctx, name, opts...)
				if err != nil {
					return err
				}
				return a.after(a.execute(ctx, sb, &p, argv), sb.Detach())
			}
			sb, err := a.client.Create(ctx, opts...)
			if err != nil {
				return err
			}
			return a.after(a.execute(ctx, sb, &p, argv), sb.Close())
		},
	}
	p.flags(c)
	c.Flags().StringVar(&name, "name", "", "use the sandbox of that name, and keep it")
	c.Flags().StringVar(&image, "image", sandbox.DefaultImage, "the image, pulled when the engine does not have it")
	c.Flags().Float64Var(&vcpus, "vcpus", sandbox.DefaultVCPUs, "the number of CPUs it may use")
	c.Flags().Int64Var(&memory, "memory", 0, "the memory it may use, in MiB (default 2048 for each CPU)")
	c.Flags().DurationVar(&timeout, "timeout", 0, "end the session after this long, such as 10m (default never)")
	c.Flags().StringVar(&network, "network", "allow-all", networkHelp)
	files.flags(c)
	return c
}

// source is where the workspace's files come from.
type source struct {
	git, revision, tarball, dir, snapshot string
	depth, strip                          int
}

func (s *source) flags(c *cobra.Command) {
	c.Flags().StringVar(&s.git, "git", "", "begin with a clone of this repository: a URL, in which others on this machine can see a password, or an absolute path")
	c.Flags().StringVar(&s.revision, "revision", "", "the branch, tag or commit to clone (default the repository's HEAD)")
	c.Flags().IntVar(&s.depth, "depth", 0, "how many commits of history to clone (default all)")
	c.Flags().StringVar(&s.tarball, "tarball", "", "begin with what is in this archive: a URL, a file, or - for stdin")
	c.Flags().IntVar(&s.strip, "strip", 0, "take so many leading elements off the archive's names")
	c.Flags().StringVar(&s.dir, "from", "", "begin with a copy of this directory")
	c.Flags().StringVar(&s.snapshot, "snapshot", "", "begin with the files of this snapshot, and its image")
}

// source is nil when no flag names one.
func (s *source) source(stdin io.Reader) (sandbox.Source, error) {
	given := 0
	for _, flag := range []string{s.git, s.tarball, s.dir, s.snapshot} {
		if flag != "" {
			given++
		}
	}
	switch {
	case given > 1:
		return nil, errors.New("a sandbox begins with one of --git, --tarball, --from and --snapshot")
	case s.git == "" && (s.revision != "" || s.depth != 0):
		return nil, errors.New("--revision and --depth go with --git")
	case s.tarball == "" && s.strip != 0:
		return nil, errors.New("--strip goes with --tarball")
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
		Short: "Run a command in a sandbox that exists, resumed if it is stopped",
		Args:  cobra.MinimumNArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			a.runs = true
			name, argv := args[0], args[1:]
			if argv[0] == "--" {
				argv = argv[1:]
			}
			if len(argv) == 0 {
				return fmt.Errorf("sandbox: exec %q: there is no command", name)
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

// after makes one error of a command's and of letting go of its sandbox: the command's
// is the one that decides about the exit code.
func (a *app) after(err, closing error) error {
	if err != nil && closing != nil {
		fmt.Fprintln(a.stderr, closing)
		return err
	}
	return cmp.Or(err, closing)
}

// execute runs a command with our own input and output.
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
	// From here on the keys, Ctrl-C too, are the command's.
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
		// Not every system tells when a window changes, so look.
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

// follower returns a function that gives cmd the size of our terminal when it changed.
func follower(cmd *sandbox.Cmd, in *os.File) func() {
	var cols, rows int
	return func() {
		c, r, err := term.GetSize(int(in.Fd()))
		if err != nil || c == cols && r == rows {
			return
		}
		cols, rows = c, r
		cmd.Resize(uint16(rows), uint16(cols)) // of a command that just ended: no matter
	}
}

// progress says on stderr what takes long: pulling an image.
func (a *app) progress() func(sandbox.Progress) {
	var last string
	return func(p sandbox.Progress) {
		if p.Step != "image" || !strings.HasPrefix(p.Text, "pulling ") || p.Text == last {
			return
		}
		last = p.Text
		fmt.Fprintln(a.stderr, "sandbox:", p.Text)
	}
}
