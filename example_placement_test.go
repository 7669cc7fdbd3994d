package sandbox_test

import (
	"context"
	"fmt"

	"github.com/seed-1a2d6d8f/sandbox"
)

// A sandbox on a node of a swarm that has a label.
func ExampleWithPlacement() {
	ctx := context.Background()
	build := func() error {
		c, err := sandbox.NewClient(sandbox.WithHost("ssh://ops@manager1"), sandbox.WithSwarm())
		if err != nil {
			return err
		}
		defer c.Close()
		sb, err := c.Create(ctx, sandbox.WithName("build-42"), sandbox.WithPlacement("node.labels.gpu==true"))
		if err != nil {
			return err
		}
		defer sb.Close()
		fmt.Println(sb.Name())
		return nil
	}
	if err := build(); err != nil {
		fmt.Println(err)
	}
}
