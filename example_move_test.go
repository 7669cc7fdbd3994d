package sandbox_test

import (
	"context"
	"fmt"
	"log"

	"github.com/seed-1a2d6d8f/sandbox"
)

func ExampleClient_Move() {
	ctx := context.Background()
	c, err := sandbox.NewClient(sandbox.WithHost("ssh://ops@manager1"), sandbox.WithSwarm())
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	report, err := c.Move(ctx, "build-42", "node7")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("moved from", report.From, "to", report.To)
}
