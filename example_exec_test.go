package sandbox_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// existing is the name of a sandbox that the examples find on the engine.
var existing = sync.OnceValue(func() string {
	name := example("existing")
	sb, err := sandbox.Create(context.Background(), sandbox.WithName(name))
	if err != nil {
		fmt.Println(err)
		return name
	}
	harness.AtEnd(func() { forget(name) })
	sb.Detach()
	return name
})

// The exit code of a command that fails is in its error.
func ExampleCmd_Run() {
	ctx := context.Background()
	sb, err := sandbox.Get(ctx, existing())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sb.Detach()
	err = sb.Command(ctx, "sh", "-c", "exit 3").Run()
	var exit *sandbox.ExitError
	if errors.As(err, &exit) {
		fmt.Println("exit code", exit.ExitCode())
	}
	// Output: exit code 3
}

// A snippet that nobody trusts, with limits and a time.
func ExampleExitError() {
	ctx := context.Background()
	sb, err := sandbox.Create(ctx,
		sandbox.WithImage("node:20-bookworm"), // or WithRuntime("python3.13"), WithRuntime("go1.26")
		sandbox.WithVCPUs(0.5),
		sandbox.WithMemory(256<<20),
		sandbox.WithPidsLimit(64),
		sandbox.WithNetworkPolicy(sandbox.DenyAll()))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sb.Close()

	cmd := sb.Command(ctx, "node", "-e", "while (true) {}")
	cmd.Timeout = 2 * time.Second
	err = cmd.Run()
	var exit *sandbox.ExitError
	switch {
	case errors.Is(err, sandbox.ErrTimeout):
		fmt.Println("it took too long")
	case errors.As(err, &exit) && exit.OutOfMemory:
		fmt.Println("it used too much memory")
	case errors.As(err, &exit):
		fmt.Println("it failed with exit code", exit.ExitCode())
	case errors.Is(err, exec.ErrWaitDelay):
		fmt.Println("it succeeded, and left a process in the background")
	case err != nil:
		fmt.Println("it may be none of its fault:", err)
	}
	// Output: it took too long
}

// Stdout and stderr in the order in which the command wrote them.
func ExampleCmd_CombinedOutput() {
	ctx := context.Background()
	sb, err := sandbox.Get(ctx, existing())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sb.Detach()
	out, err := sb.Command(ctx, "sh", "-c", "echo out; echo err >&2").CombinedOutput()
	fmt.Printf("%s%v\n", out, err)
	// Output:
	// out
	// err
	// <nil>
}

// A command reads what the program writes, until the program closes the pipe.
func ExampleCmd_StdinPipe() {
	ctx := context.Background()
	sb, err := sandbox.Get(ctx, existing())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sb.Detach()
	cmd := sb.Command(ctx, "sort", "-n")
	cmd.Stdout = os.Stdout
	in, err := cmd.StdinPipe()
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := cmd.Start(); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Fprintln(in, 12)
	fmt.Fprintln(in, 3)
	if err := in.Close(); err != nil {
		fmt.Println(err)
	}
	if err := cmd.Wait(); err != nil {
		fmt.Println(err)
	}
	// Output:
	// 3
	// 12
}

// A server is asked to end, and ends in its own way.
func ExampleCmd_Signal() {
	ctx := context.Background()
	sb, err := sandbox.Get(ctx, existing())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sb.Detach()
	cmd := sb.Command(ctx, "sh", "-c", "trap 'exit 5' TERM; echo ready >&2; while :; do sleep 0.1; done")
	messages, err := cmd.StderrPipe()
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := cmd.Start(); err != nil {
		fmt.Println(err)
		return
	}
	if _, err := io.ReadFull(messages, make([]byte, len("ready\n"))); err != nil {
		fmt.Println(err)
	}
	fmt.Println(cmd.Pid() > 1) // inside
	if err := cmd.Signal(syscall.SIGTERM); err != nil {
		fmt.Println(err)
		cmd.Kill()
	}
	var exit *sandbox.ExitError
	if err := cmd.Wait(); errors.As(err, &exit) {
		fmt.Println("exit code", exit.ExitCode())
	}
	// Output:
	// true
	// exit code 5
}

// A program with a terminal is told its size, and when that changes.
func ExampleCmd_Resize() {
	ctx := context.Background()
	sb, err := sandbox.Get(ctx, existing())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sb.Detach()
	cmd := sb.Command(ctx, "stty", "size")
	cmd.TTY = true
	cmd.Stdout = os.Stdout
	if err := cmd.Resize(40, 120); err != nil { // before Start: the size it starts with
		fmt.Println(err)
		return
	}
	if err := cmd.Run(); err != nil {
		fmt.Println(err)
	}
	// Output: 40 120
}

// As with os/exec, an exit code other than 0 is an error that has the end of stderr.
func ExampleCmd_Output() {
	ctx := context.Background()
	sb, err := sandbox.Create(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sb.Close()

	out, err := sb.Command(ctx, "sh", "-c", "echo result; echo trouble >&2; exit 3").Output()
	fmt.Printf("%s", out)
	if exit, ok := errors.AsType[*sandbox.ExitError](err); ok {
		fmt.Printf("%d %s", exit.ExitCode(), exit.Stderr)
	}
	// Output:
	// result
	// 3 trouble
}

// Text of a user becomes a signal, by its name or number of Linux.
func ExampleParseSignal() {
	sig, err := sandbox.ParseSignal("term")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(sig)
	// Output: terminated
}
