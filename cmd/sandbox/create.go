package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"

	"github.com/spf13/cobra"

	"github.com/seed-1a2d6d8f/sandbox"
)

// errLasting is what create and fork say, whose program ends before the sandbox is used.
var errLasting = usagef("--persistent=false: the sandbox would be removed when this command ends; see \"sandbox run\"")

func (a *app) createCommand() *cobra.Command {
	var (
		f      createFlags
		p      process
		asJSON bool
	)
	c := &cobra.Command{
		Use:   "create [flags] [-- COMMAND [ARG...]]",
		Short: "Create a sandbox, and print its name",
		Long: `Create a sandbox, and print its name. COMMAND is its main process, which each session starts,
and whose output "sandbox logs" prints. The session runs until "sandbox stop"; the sandbox is
kept until "sandbox delete".`,
		RunE: func(c *cobra.Command, argv []string) error {
			if f.transient() {
				return errLasting
			}
			catchBrokenPipes()
			set, err := f.settings(c, argv)
			if err != nil {
				return err
			}
			p.settings(c, &set)
			set.Persistent = new(true)
			opts, err := f.options(a, c, set)
			if err != nil {
				return err
			}
			if err := f.confirm(a, c, confirmCreate); err != nil {
				return err
			}
			sb, err := a.client.Create(c.Context(), opts...)
			if len(argv) == 1 && c.ArgsLenAtDash() < 0 && !c.Flags().Changed("name") && errors.Is(err, exec.ErrNotFound) {
				err = fmt.Errorf("%w; to name the sandbox write --name %s", err, argv[0])
			}
			if err != nil {
				return err
			}
			return a.made(c, asJSON, false, sb)
		},
	}
	p.flags(c, "the sandbox's commands")
	f.flags(a, c)
	jsonFlag(c, &asJSON)
	bySubject(c)
	c.Flags().SetInterspersed(false) // flags after the command belong to the command
	return c
}

// made prints the names of new sandboxes, or their details, and lets go of them. In JSON several
// are an array.
func (a *app) made(c *cobra.Command, asJSON, several bool, made ...*sandbox.Sandbox) error {
	a.progress.clear()
	var (
		details []sandbox.Status
		errs    []error
	)
	for i, sb := range made {
		if i == 0 { // others share its files
			a.leftOut(sb.Copied())
		}
		if asJSON {
			if st, err := sb.Status(c.Context()); err != nil {
				errs = append(errs, err)
			} else {
				details = append(details, st)
			}
		} else {
			_, err := fmt.Fprintln(a.stdout, sb.Name())
			errs = append(errs, err)
		}
		errs = append(errs, sb.Detach())
	}
	switch {
	case asJSON && several:
		errs = append(errs, printJSONList(a.stdout, details))
	case len(details) > 0:
		errs = append(errs, printJSON(a.stdout, details[0]))
	}
	return errors.Join(errs...)
}

func (a *app) runCommand() *cobra.Command {
	var (
		f  createFlags
		p  process
		x  execution
		rm bool
	)
	c := &cobra.Command{
		Use:   "run [flags] [--] COMMAND [ARG...]",
		Short: "Run a command in a new sandbox",
		Long: `Run a command in a new sandbox, and delete the sandbox and its files afterwards. As with
"docker run", the command reads stdin only with --interactive, or on a terminal with --tty.

With --name use the sandbox of that name, or create it. It is kept, and its session runs
until "sandbox stop". --env, --workdir, --user, --interactive and --tty are those of the command.
The other flags only apply when the sandbox is created: if it exists, a --network that is not in
force is an error, and others that differ are named.`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, argv []string) error {
			a.runsCommand()
			if rm && c.Flags().Changed("name") {
				return usageError{errors.New("run: --rm: a sandbox with a --name is kept; see \"sandbox delete\"")}
			}
			if argv[0] == "" {
				return usageError{fmt.Errorf("sandbox: run: %w", errEmptyCommand)}
			}
			set, err := f.settings(c, nil)
			if err != nil {
				return err
			}
			opts, err := f.options(a, c, set)
			if err != nil {
				return err
			}
			if set.Name != nil {
				sb, err := a.getOrCreate(c, &f, opts)
				if err != nil {
					return err
				}
				a.leftOut(sb.Copied())
				return a.after(a.execute(c.Context(), sb, &p, x, argv), sb.Detach())
			}
			if err := f.confirm(a, c, confirmCreate); err != nil {
				return err
			}
			sb, err := a.client.Create(c.Context(), opts...)
			if err != nil {
				return err
			}
			a.leftOut(sb.Copied())
			return a.after(a.execute(c.Context(), sb, &p, x, argv), sb.Close())
		},
	}
	p.flags(c, "the command")
	x.flags(c)
	c.Flags().BoolVar(&rm, "rm", false, "")
	c.Flags().MarkHidden("rm") // what run does anyway, for fingers that know docker run
	f.flags(a, c)
	bySubject(c)
	return c
}

// getOrCreate returns the sandbox with the name of the flags, or creates it. Mounts are confirmed
// only then. If another program deletes the sandbox after it was found here, the question comes
// before anything runs in the new one, which a no removes.
func (a *app) getOrCreate(c *cobra.Command, f *createFlags, opts []sandbox.CreateOption) (*sandbox.Sandbox, error) {
	sb, err := a.client.Get(c.Context(), *f.set.Name, sandbox.WithoutResume())
	switch {
	case errors.Is(err, sandbox.ErrNotFound):
		if err := f.confirm(a, c, confirmCreate); err != nil {
			return nil, err
		}
	case err != nil:
		return nil, err
	default:
		if err := sb.Detach(); err != nil {
			return nil, err
		}
		opts = append(opts, sandbox.OnCreate(func(context.Context, *sandbox.Sandbox) error { return f.confirm(a, c, confirmCreate) }))
	}
	return a.client.GetOrCreate(c.Context(), *f.set.Name, opts...)
}

func (a *app) forkCommand() *cobra.Command {
	var (
		f      settingsFlags
		p      process
		rm     removalFlags
		count  int
		asJSON bool
	)
	c := &cobra.Command{
		Use:   "fork [flags] NAME [-- COMMAND [ARG...]]",
		Short: "Create a sandbox with the current files of another one, and print its name",
		Long: `Create a sandbox with the current files and the settings of another one, and print its name.
COMMAND is another main process. The session runs until "sandbox stop"; the sandbox is kept
until "sandbox delete".`,
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: a.oneSandbox,
		RunE: func(c *cobra.Command, args []string) error {
			if f.transient() {
				return errLasting
			}
			catchBrokenPipes()
			argv, err := mainProcess(c, args)
			if err != nil {
				return err
			}
			set, err := f.settings(c, argv)
			if err != nil {
				return err
			}
			p.settings(c, &set)
			set.Persistent = new(true)
			opts := []sandbox.ForkOption{sandbox.WithProgress(a.progress.show), sandbox.WithSettings(set)}
			for _, o := range rm.options() {
				opts = append(opts, o)
			}
			if err := f.confirm(a, c, confirmCreate); err != nil {
				return err
			}
			if !c.Flags().Changed("count") {
				sb, err := a.client.Fork(c.Context(), args[0], opts...)
				if err != nil {
					return err
				}
				return a.made(c, asJSON, false, sb)
			}
			forks, err := a.client.ForkN(c.Context(), args[0], count, opts...)
			var made []*sandbox.Sandbox
			for _, f := range forks {
				if f.Sandbox != nil {
					made = append(made, f.Sandbox)
				}
			}
			return errors.Join(a.made(c, asJSON, true, made...), err)
		},
	}
	p.flags(c, "the sandbox's commands")
	f.makes(a, c, "", "another image, for a sandbox without files of its own outside of volumes")
	rm.flags(c)
	c.Flags().IntVar(&count, "count", 0, "create this many with the same files; -1, -2 … is appended to the name")
	jsonFlag(c, &asJSON)
	bySubject(c)
	return c
}

// mainProcess returns the arguments after "--", which come after one name.
func mainProcess(c *cobra.Command, args []string) ([]string, error) {
	dash := c.ArgsLenAtDash()
	if dash < 0 {
		dash = len(args)
	}
	if dash != 1 {
		return nil, usagef("%s: accepts one NAME, and a command after --", c.Name())
	}
	return args[dash:], nil
}
