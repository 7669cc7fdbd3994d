package sandbox_test

import (
	"context"
	"fmt"

	"github.com/seed-1a2d6d8f/sandbox"
)

// The nodes of a swarm, with the room that they have.
func ExampleClient_Nodes() {
	ctx := context.Background()
	c, err := sandbox.NewClient(sandbox.WithHost("ssh://ops@manager1"), sandbox.WithSwarm())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	nodes, err := c.Nodes(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, n := range nodes {
		fmt.Println(n.Name, n.State, n.FreeCPUs, n.FreeMemory>>30, n.Error)
	}
}
