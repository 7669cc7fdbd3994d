package sandbox_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
)

// example returns a name that no other run of the examples uses.
func example(name string) string { return fmt.Sprintf("example-%s-%d", name, os.Getpid()) }

// forget removes what an example keeps.
func forget(name string) {
	_, err := sandbox.Delete(context.Background(), name, sandbox.DeleteOptions{Volumes: true})
	if err != nil && !errors.Is(err, sandbox.ErrNotFound) {
		fmt.Println(err)
	}
}

func Example() {
	ctx := context.Background()
	sb, err := sandbox.Create(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sb.Close()

	out, err := sb.Command(ctx, "node", "-e", "console.log(6*7)").Output()
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%s", out)
	// Output: 42
}

// Everything has a default. Options come in any order, and all of their complaints
// come at once, before anything has happened.
func ExampleCreate() {
	ctx := context.Background()
	sb, err := sandbox.Create(ctx,
		sandbox.WithImage("node:20-bookworm"),
		sandbox.WithVCPUs(0.5),
		sandbox.WithMemory(512<<20),
		sandbox.WithEnv(map[string]string{"GREETING": "hello"}),
		sandbox.WithTags(map[string]string{"team": "docs"}),
		sandbox.WithTimeout(10*time.Minute))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sb.Close()

	out, err := sb.Command(ctx, "sh", "-c", `echo "$GREETING from $PWD"`).Output()
	fmt.Printf("%s%v\n", out, err)

	_, err = sandbox.Create(ctx, sandbox.WithName("Not A Name"), sandbox.WithVCPUs(-1))
	fmt.Println(errors.Is(err, sandbox.ErrInvalidArgument))
	// Output:
	// hello from /workspace
	// <nil>
	// true
}

// A sandbox with a name keeps its files when it is closed. Whoever gets it later, also
// in another program, finds them and a new session.
func ExampleGet() {
	ctx := context.Background()
	name := example("get")
	defer forget(name)

	sb, err := sandbox.Create(ctx, sandbox.WithName(name))
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := sb.Command(ctx, "sh", "-c", "echo kept > notes").Run(); err != nil {
		fmt.Println(err)
	}
	if err := sb.Close(); err != nil {
		fmt.Println(err)
	}

	sb, err = sandbox.Get(ctx, name)
	if errors.Is(err, sandbox.ErrNotFound) {
		fmt.Println("somebody deleted it")
		return
	}
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sb.Close()
	out, err := sb.Command(ctx, "cat", "notes").Output()
	fmt.Printf("%s%v\n", out, err)
	// Output:
	// kept
	// <nil>
}

// Any number of callers, in any number of processes, get the same sandbox. One of them
// makes it.
func ExampleGetOrCreate() {
	ctx := context.Background()
	name := example("shared")
	defer forget(name)

	var wg sync.WaitGroup
	ids := make([]string, 4)
	for i := range ids {
		wg.Go(func() {
			sb, err := sandbox.GetOrCreate(ctx, name)
			if err != nil {
				fmt.Println(err)
				return
			}
			defer sb.Detach() // others use it: do not end its session
			ids[i] = sb.ID()
		})
	}
	wg.Wait()
	fmt.Println(ids[0] != "", ids[0] == ids[1], ids[0] == ids[2], ids[0] == ids[3])
	// Output: true true true true
}

// OnCreate prepares a sandbox once, before anybody else can get it. When it fails,
// there is no sandbox.
func ExampleOnCreate() {
	ctx := context.Background()
	name := example("prepared")
	defer forget(name)

	prepare := func(ctx context.Context, sb *sandbox.Sandbox) error {
		fmt.Println("preparing")
		return sb.Command(ctx, "npm", "init", "--yes").Run()
	}
	for range 2 {
		sb, err := sandbox.GetOrCreate(ctx, name, sandbox.OnCreate(prepare))
		if err != nil {
			fmt.Println(err)
			return
		}
		out, err := sb.Command(ctx, "ls").Output()
		fmt.Printf("%s", out)
		if err := errors.Join(err, sb.Detach()); err != nil {
			fmt.Println(err)
		}
	}
	// Output:
	// preparing
	// package.json
	// package.json
}

// A Cmd is used as the one of os/exec is.
func ExampleSandbox_Command() {
	ctx := context.Background()
	sb, err := sandbox.Create(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sb.Close()

	cmd := sb.Command(ctx, "sort", "-n")
	cmd.Env = []string{"LC_ALL=C"}
	cmd.Dir = "/tmp"
	cmd.Stdin = strings.NewReader("12\n3\n")
	cmd.Stdout = os.Stdout
	if err := cmd.Run(); err != nil {
		fmt.Println(err)
	}

	err = sb.Command(ctx, "sh", "-c", "exit 3").Run()
	if exit := (*sandbox.ExitError)(nil); errors.As(err, &exit) {
		fmt.Println("exit code", exit.ExitCode())
	}
	err = sb.Command(ctx, "no-such-program").Run()
	fmt.Println("not found:", errors.Is(err, exec.ErrNotFound))

	quick, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	err = sb.Command(quick, "sleep", "60").Run() // and everything it started is killed
	fmt.Println("too slow:", errors.Is(err, context.DeadlineExceeded))
	// Output:
	// 3
	// 12
	// exit code 3
	// not found: true
	// too slow: true
}

// Output can be read while the command runs.
func ExampleCmd_StdoutPipe() {
	ctx := context.Background()
	sb, err := sandbox.Create(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sb.Close()

	cmd := sb.Command(ctx, "seq", "3")
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := cmd.Start(); err != nil {
		fmt.Println(err)
		return
	}
	lines := bufio.NewScanner(stdout)
	for lines.Scan() {
		fmt.Println("line", lines.Text())
	}
	if err := errors.Join(lines.Err(), cmd.Wait()); err != nil {
		fmt.Println(err)
	}
	// Output:
	// line 1
	// line 2
	// line 3
}

// A detached command goes on when the handle, or the whole program, is gone. By its ID
// any other handle finds it, with the output so far, what still comes, and its exit.
func ExampleSandbox_Process() {
	ctx := context.Background()
	name := example("server")
	defer forget(name)

	sb, err := sandbox.Create(ctx, sandbox.WithName(name))
	if err != nil {
		fmt.Println(err)
		return
	}
	cmd := sb.Command(ctx, "sh", "-c", "echo started; sleep 1; echo done; exit 5")
	cmd.Detached = true
	if err := cmd.Start(); err != nil {
		fmt.Println(err)
	}
	id := cmd.ID() // to be remembered by whoever comes back
	if err := sb.Detach(); err != nil {
		fmt.Println(err)
	}

	sb, err = sandbox.Get(ctx, name)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sb.Close()
	again, err := sb.Process(ctx, id)
	if err != nil {
		fmt.Println(err)
		return
	}
	out, err := again.Output()
	fmt.Printf("%s%d bytes are lost\n", out, again.Dropped())
	if exit := (*sandbox.ExitError)(nil); errors.As(err, &exit) {
		fmt.Println("exit code", exit.ExitCode())
	}
	// Output:
	// started
	// done
	// 0 bytes are lost
	// exit code 5
}

// Volumes are kept unless they are to go, too.
func ExampleDelete() {
	ctx := context.Background()
	name := example("deleted")
	defer forget(name)

	sb, err := sandbox.Create(ctx, sandbox.WithName(name))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sb.Close()

	report, err := sandbox.Delete(ctx, name, sandbox.DeleteOptions{Volumes: true})
	if err != nil {
		fmt.Println(err)
	}
	for _, v := range report.Volumes {
		fmt.Println(v.Name == "agent-sandbox-"+sb.ID(), v.Status)
	}
	_, err = sandbox.Inspect(ctx, name)
	fmt.Println(errors.Is(err, sandbox.ErrNotFound))
	// Output:
	// true deleted
	// true
}

// Tags find the sandboxes that belong together.
func ExampleList() {
	ctx := context.Background()
	job := fmt.Sprint(os.Getpid())
	for range 2 {
		sb, err := sandbox.Create(ctx, sandbox.WithTags(map[string]string{"job": job}))
		if err != nil {
			fmt.Println(err)
			return
		}
		defer sb.Close()
	}

	running, err := sandbox.List(ctx, sandbox.ListOptions{Tags: map[string]string{"job": job}, States: []sandbox.State{sandbox.StateRunning}})
	if err != nil {
		fmt.Println(err)
	}
	for _, i := range running {
		fmt.Println(i.State, i.Image)
	}
	// Output:
	// running node:20-bookworm
	// running node:20-bookworm
}
