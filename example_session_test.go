package sandbox_test

import (
	"context"
	"fmt"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
)

// A program follows what a server inside writes, until it has seen enough.
func ExampleSandbox_Logs() {
	ctx := context.Background()
	sb, err := sandbox.Create(ctx, sandbox.WithCommand("sh", "-c", "echo listening; echo careful >&2; exec sleep 1000"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sb.Close()
	for line, err := range sb.Logs(ctx, sandbox.LogOptions{Tail: 100, Follow: true}) {
		if err != nil {
			fmt.Println(err)
			return
		}
		if line.Stream == sandbox.Stdout {
			fmt.Println(line.Text)
			break
		}
	}
	// Output: listening
}

// A platform gives a sandbox more room, another label and more time, while it runs.
func ExampleSandbox_Update() {
	ctx := context.Background()
	sb, err := sandbox.Create(ctx, sandbox.WithTimeout(time.Minute), sandbox.WithMemory(128<<20))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sb.Close()
	err = sb.Update(ctx, sandbox.WithMemory(256<<20), sandbox.WithTags(map[string]string{"plan": "large"}))
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := sb.ExtendTimeout(ctx, time.Hour); err != nil {
		fmt.Println(err)
		return
	}
	st, err := sb.Status(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(st.Usage.MemoryLimit>>20, "MiB", st.Tags["plan"], st.ExpiresAt.Sub(st.StartedAt))
	// Output: 256 MiB large 1h1m0s
}
