package sandbox_test

import (
	"context"
	"fmt"

	"github.com/seed-1a2d6d8f/sandbox"
)

// A dashboard shows what each sandbox of a team uses.
func ExampleListUsage() {
	ctx := context.Background()
	sb, err := sandbox.Create(ctx, sandbox.WithTags(map[string]string{"team": "dashboard"}))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sb.Close()
	all, err := sandbox.ListUsage(ctx, sandbox.ListOptions{Tags: map[string]string{"team": "dashboard"}})
	if err != nil {
		fmt.Println(err)
		return
	}
	u := all[sb.ID()]
	fmt.Println(len(all), u.MemoryBytes > 0, u.MemoryLimit>>20)
	// Output: 1 true 2048
}

// A form offers what a sandbox can be created with.
func ExampleGetDefaults() {
	d, err := sandbox.GetDefaults(context.Background())
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(*d.Settings.Image, *d.Settings.VCPUs, *d.Settings.MemoryBytes>>20, d.Runtimes["node22"], d.MaxPorts)
	// Output: node:20-bookworm 1 2048 node:22-bookworm 4
}
