package sandbox_test

import (
	"context"
	"fmt"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
)

// The pool's sandboxes have run their preparation before anybody asks for one.
func ExampleNewPool() {
	ctx := context.Background()
	prepare := func(ctx context.Context, sb *sandbox.Sandbox) error {
		return sb.WriteFile(ctx, "dependencies", []byte("installed"), 0o644)
	}
	pool, err := sandbox.NewPool(ctx, 2, sandbox.OnCreate(prepare))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer pool.Close()

	sb, err := pool.Create(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sb.Close()
	out, err := sb.ReadFile(ctx, "dependencies")
	fmt.Println(string(out), err)
	// Output: installed <nil>
}

// A sandbox of a pool gets settings of its own when it is handed over.
func ExamplePool_Create() {
	ctx := context.Background()
	client, err := sandbox.NewClient()
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()
	pool, err := client.NewPool(ctx, 1)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer pool.Close()

	sb, err := pool.Create(ctx, sandbox.WithEnv(map[string]string{"TASK": "42"}), sandbox.WithNetworkPolicy(sandbox.DenyAll()), sandbox.WithTimeout(time.Hour))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sb.Close()
	out, err := sb.Command(ctx, "printenv", "TASK").Output()
	fmt.Print(string(out))
	fmt.Println(err, pool.Stats().Size)
	// Output:
	// 42
	// <nil> 1
}
