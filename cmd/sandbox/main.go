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
//
// The output of a command in a sandbox is passed through. Messages go to stderr. Exit codes:
//
//	0        success
//	1        failure
//	2        usage: an unknown flag, a missing argument
//	125      run, exec: the sandbox or the engine failed, not the command
//	126      run, exec: the command can't be executed
//	127      run, exec: there is no such command
//	130      interrupted
//	other    run, exec: the command's own, 128+n when signal n ended it
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/seed-1a2d6d8f/sandbox"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// The first signal cancels, and the program cleans up; a second one kills it.
	context.AfterFunc(ctx, stop)
	os.Exit(run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

const (
	codeFailed        = 1
	codeUsage         = 2
	codeSandboxFailed = 125
	codeCannotExecute = 126
	codeNoSuchCommand = 127
	codeInterrupted   = 130
)

// run is main with its environment as parameters; it returns the exit code.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	a := &app{stdin: stdin, stdout: stdout, stderr: stderr, interactive: isTerminal}
	return a.run(ctx, args)
}

func (a *app) run(ctx context.Context, args []string) int {
	stdin, stdout, stderr := a.stdin, a.stdout, a.stderr
	a.bar = &bar{out: stderr, width: func() int { return columns(stderr) }}
	root := a.root()
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	a.bar.clear()
	if a.client != nil {
		err = errors.Join(err, a.client.Close())
	}
	code := a.code(ctx, err)
	var exit *sandbox.ExitError
	switch {
	case err == nil, errors.As(err, &exit) && exit.Unwrap() == nil:
		// The command has printed its own message.
	case code == codeInterrupted:
		fmt.Fprintln(stderr, "sandbox: interrupted")
	default:
		fmt.Fprintln(stderr, graphicLines(err.Error()))
		if hint := hintOf(err); hint != "" {
			fmt.Fprintln(stderr, "sandbox:", hint)
		}
	}
	return code
}

// hintOf says which command helps with an error; empty if none does.
func hintOf(err error) string {
	switch {
	case errors.Is(err, sandbox.ErrSnapshotNotFound):
		return `"sandbox snapshot list" lists the snapshots`
	case errors.Is(err, sandbox.ErrVolumeNotFound):
		return `"sandbox volume list" lists the volumes`
	case errors.Is(err, sandbox.ErrNotFound):
		return `"sandbox list" lists the sandboxes`
	case errors.Is(err, sandbox.ErrVolumeInUse):
		return `"sandbox volume list" says which sandboxes use a volume`
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
	case !a.began:
		return codeUsage
	case errors.As(err, &exit):
		return exit.ExitCode()
	case ctx.Err() != nil:
		return codeInterrupted
	case !a.runs:
		return codeFailed
	case errors.Is(err, exec.ErrNotFound):
		return codeNoSuchCommand
	case errors.As(err, &start), errors.Is(err, fs.ErrPermission):
		return codeCannotExecute
	}
	return codeSandboxFailed
}

// app is the state that the subcommands share.
type app struct {
	stdin          io.Reader
	stdout, stderr io.Writer

	interactive func(stream any) bool // whether stdin can answer a question
	bar         *bar

	host   string
	client *sandbox.Client
	began  bool // a subcommand has started: an error from now on is not about usage
	runs   bool // that subcommand runs a command in a sandbox
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:           "sandbox",
		Short:         "Isolated, disposable Linux environments on a Docker Engine",
		SilenceErrors: true,
		SilenceUsage:  true,
		PersistentPreRunE: func(*cobra.Command, []string) error {
			a.began = true
			return a.connect()
		},
	}
	root.SetGlobalNormalizationFunc(normalize)
	root.PersistentFlags().StringVarP(&a.host, "host", "H", "", "the engine's address: unix://, tcp:// or ssh:// (default DOCKER_HOST, then the current Docker context)")
	root.AddCommand(
		a.createCommand(), a.runCommand(), a.forkCommand(),
		a.listCommand(), a.inspectCommand(), a.logsCommand(), a.egressCommand(),
		a.execCommand(), a.shellCommand(), a.cpCommand(), a.proxyCommand(), a.sshConfigCommand(),
		a.startCommand(), a.stopCommand(), a.updateCommand(), a.networkCommand(), a.deleteCommand(),
		a.snapshotCommand(), a.snapshotsCommand(), a.volumeCommand(), a.pruneCommand(), a.healthCommand())
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
	a.client, err = sandbox.NewClient(opts...)
	return err
}
