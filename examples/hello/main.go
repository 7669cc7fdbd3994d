// Hello runs one command in a sandbox of its own.
package main

import (
	"context"
	"fmt"
	"log"

	"github.com/seed-1a2d6d8f/sandbox"
)

func main() {
	if err := run(context.Background()); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) error {
	sb, err := sandbox.Create(ctx)
	if err != nil {
		return err
	}
	defer sb.Close() // and nothing is left of it

	out, err := sb.Command(ctx, "node", "-e", "console.log(6*7)").Output()
	if err != nil {
		return err
	}
	fmt.Printf("Node says %s", out)
	return nil
}
