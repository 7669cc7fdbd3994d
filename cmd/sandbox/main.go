// Sandbox creates, lists and uses sandboxes from the command line.
//
//	sandbox run -- node -e 'console.log(6*7)'     in a new sandbox, deleted afterwards
//	sandbox create --name build --mount .:/src    one that is kept
//	sandbox exec build -- npm test
//	sandbox shell build
//	sandbox cp build:dist/app.js .
//	sandbox logs -f build
//	sandbox list
//	sandbox fork build --name other               with its current files
//	sandbox snapshot create build                 prints an ID
//	sandbox run --snapshot ID -- npm test
//	sandbox ssh-config >> ~/.ssh/config           for ssh, scp, sftp, rsync, git
//	sandbox stop build
//	sandbox delete --delete-volumes build
//	sandbox volume list
//	sandbox prune                                 remove leftovers of crashed programs
//	sandbox mcp                                   serve an agent by the Model Context Protocol
//
// The output of a command in a sandbox is passed through. Messages go to stderr. Exit codes:
//
//	0        success
//	1        failure
//	2        usage: an unknown command or flag, a missing argument, a wrong value
//	125      run, exec: the sandbox or the engine failed, not the command
//	126      run, exec: the command can't be executed
//	127      run, exec: there is no such command
//	130      interrupted
//	141      nobody reads the output any more
//	other    run, exec: the command's own, 128+n when signal n ended it
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/seed-1a2d6d8f/sandbox"
)

func main() {
	ends := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) { // as it is by nohup
		ends = append(ends, syscall.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(context.Background(), ends...)
	defer stop()
	// The first signal cancels, and the program cleans up; a second one kills it.
	context.AfterFunc(ctx, stop)
	call := run
	if isPlugin(os.Args[0]) {
		call = asPlugin
	}
	os.Exit(call(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

const (
	codeFailed        = 1
	codeUsage         = 2
	codeSandboxFailed = 125
	codeCannotExecute = 126
	codeNoSuchCommand = 127
	codeInterrupted   = 130
	codeBrokenPipe    = 141 // as a shell says of a program that SIGPIPE ends
)

// run is main with its environment as parameters; it returns the exit code.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	return newApp(stdin, stdout, stderr).run(ctx, args)
}

func newApp(stdin io.Reader, stdout, stderr io.Writer) *app {
	return &app{stdin: stdin, stdout: stdout, stderr: stderr, interactive: isTerminal, progress: newProgress(stderr)}
}

func (a *app) run(ctx context.Context, args []string) int {
	stderr := a.stderr
	root := a.root()
	ownBashCompletion(root)
	checkHelp(root)
	root.SetArgs(args)
	called, err := root.ExecuteContextC(ctx)
	a.progress.clear()
	if a.help.err != nil {
		err, a.began = a.help.err, true
	}
	if a.client != nil {
		err = errors.Join(err, a.client.Close())
	}
	code := a.code(ctx, err)
	var exit *sandbox.ExitError
	switch {
	case err == nil, errors.As(err, &exit) && exit.Unwrap() == nil && !exit.OutOfMemory, brokenPipe(err):
		// The command has printed its own message, or nobody wants to read more.
	case code == codeInterrupted:
		fmt.Fprintln(stderr, "sandbox: interrupted")
	case errors.Is(err, errCancelled):
		fmt.Fprintln(stderr, "sandbox: cancelled")
	default:
		fmt.Fprintln(stderr, graphicLines(errorText(err)))
		hints := hintsOf(err)
		if code == codeUsage {
			hints = append(hints, "see "+called.CommandPath()+" --help")
		}
		for _, hint := range hints {
			fmt.Fprintln(stderr, "sandbox:", hint)
		}
	}
	return code
}

// errorText is an error for people: each line says who speaks, and flags have their own names rather
// than those of the library's options.
func errorText(err error) string {
	lines := strings.Split(err.Error(), "\n")
	for i, line := range lines {
		if !strings.HasPrefix(line, "sandbox: ") {
			line = "sandbox: " + line
		}
		lines[i] = option.ReplaceAllStringFunc(line, func(name string) string { return cmp.Or(flagOf[name], name) })
		lines[i] = strings.Replace(lines[i], "change it with Update, or leave the policy out", "change it, or leave --network out", 1)
	}
	return strings.Join(lines, "\n")
}

// option finds the names of the library's options in a text.
var option = regexp.MustCompile(`\bWith(out)?[A-Z][A-Za-z]+\b`)

// flagOf has the flag for each of the library's options that may be wrong.
var flagOf = map[string]string{
	"WithCommand": "COMMAND", "WithEnv": "--env", "WithHost": "--host", "WithIdleTimeout": "--idle-timeout", "WithImage": "--image",
	"WithGPUs": "--gpus", "WithMemory": "--memory", "WithMounts": "--mount", "WithName": "--name", "WithNetworkPolicy": "--network", "WithOCIRuntime": "--oci-runtime", "WithPlacement": "--placement", "WithSwarm": "--swarm",
	"WithPersistent": "--persistent", "WithPidsLimit": "--pids-limit", "WithPorts": "--port", "WithRuntime": "--runtime",
	"WithSource": "--git, --tarball, --from or --snapshot", "WithStopTimeout": "--stop-timeout", "WithStorageSize": "--storage",
	"WithTags": "--tag", "WithTimeout": "--timeout", "WithUser": "--user", "WithVCPUs": "--vcpus", "WithWorkdir": "--workdir",
	"WithoutEnv": "--without-env", "WithoutMount": "--without-mount", "WithoutTag": "--without-tag",
}

// hintsOf says for each of the joined errors which command helps, if one does.
func hintsOf(err error) (hints []string) {
	if all, joined := err.(interface{ Unwrap() []error }); joined {
		for _, err := range all.Unwrap() {
			hints = append(hints, hintsOf(err)...)
		}
		slices.Sort(hints)
		return slices.Compact(hints)
	}
	if hint := hintOf(err); hint != "" {
		hints = []string{hint}
	}
	return hints
}

func hintOf(err error) string {
	var name, op string
	if e := (*sandbox.Error)(nil); errors.As(err, &e) {
		name, op = e.Name, e.Op
	}
	switch {
	case errors.Is(err, sandbox.ErrSessionLost), name == "" && (errors.Is(err, sandbox.ErrNotFound) || errors.Is(err, sandbox.ErrNotRunning)):
		return "" // it was there, and the error says why it is not any more
	case errors.Is(err, sandbox.ErrNotFound):
		return fmt.Sprintf("there is no sandbox %q; see sandbox list", name)
	case errors.Is(err, sandbox.ErrVolumeNotFound):
		return "there is no such volume; see sandbox volume list"
	case errors.Is(err, sandbox.ErrSnapshotNotFound):
		return "there is no such snapshot; see sandbox snapshot list"
	case errors.Is(err, sandbox.ErrVolumeInUse):
		return "see sandbox volume list for the sandboxes that use a volume"
	case errors.Is(err, sandbox.ErrSnapshotInUse):
		return "see sandbox snapshot tree for what was made of a snapshot"
	case errors.Is(err, sandbox.ErrExists) && op == "get or create": // and another policy than the one that is asked for
		return fmt.Sprintf("see sandbox network %s, which prints the policy or changes it", name)
	case errors.Is(err, sandbox.ErrExists):
		return "see sandbox list for the names that are taken"
	case errors.Is(err, sandbox.ErrNotRunning):
		return fmt.Sprintf("start it with sandbox start %s", name)
	case errors.Is(err, sandbox.ErrUnsupported):
		return "see sandbox health for what the engine supports"
	}
	return ""
}

// code returns the exit code for the error of a subcommand.
func (a *app) code(ctx context.Context, err error) int {
	var exit *sandbox.ExitError
	var start *exec.Error
	switch {
	case err == nil:
		return 0
	case errors.As(err, new(usageError)), !a.began:
		return codeUsage
	case errors.As(err, &exit):
		return exit.ExitCode()
	case brokenPipe(err):
		return codeBrokenPipe
	case ctx.Err() != nil:
		return codeInterrupted
	case errors.Is(err, sandbox.ErrInvalidArgument) && !a.executes:
		return codeUsage
	case errors.Is(err, errCancelled), !a.runs:
		return codeFailed
	case errors.Is(err, exec.ErrNotFound):
		return codeNoSuchCommand
	case errors.As(err, &start), errors.Is(err, fs.ErrPermission), noDirectory(err):
		return codeCannotExecute
	}
	return codeSandboxFailed
}

// noDirectory reports whether a command has no directory to run in.
func noDirectory(err error) bool {
	at, ok := errors.AsType[*fs.PathError](err)
	return ok && at.Op == "chdir"
}

// brokenPipe reports whether nobody reads our stdout or stderr any more.
func brokenPipe(err error) bool {
	broken, ok := errors.AsType[*fs.PathError](err)
	return ok && broken.Err == syscall.EPIPE && (broken.Path == os.Stdout.Name() || broken.Path == os.Stderr.Name())
}

// usageError is an error of usage that is found once the flags have been read.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// group makes a command that only has subcommands refuse others, and print its help without one.
func group(c *cobra.Command) {
	c.Args = func(c *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		return unknownCommand(c, args[0])
	}
	c.RunE = func(c *cobra.Command, _ []string) error { return c.Help() }
	c.Annotations = map[string]string{annotationGroup: "yes"}
}

func unknownCommand(c *cobra.Command, name string) error {
	return fmt.Errorf("%s: unknown command %q%s", c.CommandPath(), name, suggestion(c, name))
}

// checkHelp makes "help" refuse what is no command.
func checkHelp(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	help, _, err := root.Find([]string{"help"})
	if err != nil {
		panic(err)
	}
	help.Args = func(_ *cobra.Command, args []string) error {
		c, rest, err := root.Find(args)
		if err == nil && len(rest) > 0 {
			err = unknownCommand(c, rest[0])
		}
		return err
	}
}

// checked keeps the first error of a writer, which the library for commands ignores when it prints help.
type checked struct {
	io.Writer
	err error
}

func (w *checked) Write(p []byte) (int, error) {
	n, err := w.Writer.Write(p)
	w.err = cmp.Or(w.err, err)
	return n, err
}

const annotationGroup = "group"

func isGroup(c *cobra.Command) bool { return c.Annotations[annotationGroup] != "" }

// app is the state that the subcommands share.
type app struct {
	stdin          io.Reader
	stdout, stderr io.Writer

	help checked // stdout, as the library for commands uses it

	interactive func(stream any) bool // whether stdin can answer a question
	progress    *progress

	swarm    bool
	host     string
	client   *sandbox.Client
	began    bool // a subcommand has started: an error from now on is not about usage
	runs     bool // that subcommand runs a command in a sandbox
	executes bool // and has the sandbox to run it in
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:           "sandbox",
		Short:         "Isolated, disposable Linux environments on a Docker Engine",
		Version:       version(),
		SilenceErrors: true,
		SilenceUsage:  true,
		PersistentPreRunE: func(c *cobra.Command, _ []string) error {
			if err := c.ValidateFlagGroups(); err != nil { // which cobra does later
				return err
			}
			a.began = true
			if c.Name() == cobra.ShellCompRequestCmd || c.Name() == cobra.ShellCompNoDescRequestCmd || isGroup(c) {
				return nil // it has not parsed --host yet, or prints its help
			}
			return a.connect()
		},
	}
	group(root)
	root.SetFlagErrorFunc(flagError)
	root.PersistentFlags().StringVarP(&a.host, "host", "H", "", "the engine's address: unix://, tcp:// or ssh:// (default DOCKER_HOST, then the current Docker context)")
	root.PersistentFlags().BoolVar(&a.swarm, "swarm", false, "use all nodes of the Docker Swarm whose manager the engine is")
	root.PersistentFlags().BoolVarP(&a.progress.quiet, "quiet", "q", false, "don't print progress, nor what was done; of lists, print names alone")
	root.SetIn(a.stdin)
	a.help.Writer = a.stdout
	root.SetOut(&a.help)
	root.SetErr(a.stderr)
	a.addGroups(root)
	return root
}

// connect makes the client, if there is none yet. It connects with its first call.
func (a *app) connect() (err error) {
	if a.client != nil {
		return nil
	}
	var opts []sandbox.ClientOption
	if a.host != "" {
		opts = append(opts, sandbox.WithHost(a.host))
	}
	if a.swarm {
		opts = append(opts, sandbox.WithSwarm())
	}
	a.client, err = sandbox.NewClient(opts...)
	return err
}
