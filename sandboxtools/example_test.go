package sandboxtools_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/sandboxtools"
)

func ExampleNew() {
	ctx := context.Background()
	sb, err := sandbox.Create(ctx, sandbox.WithNetworkPolicy(sandbox.DenyAll()))
	if err != nil {
		log.Fatal(err)
	}
	defer sb.Close()
	for _, tool := range sandboxtools.New(sb, sandboxtools.Options{}) {
		if tool.Name != "bash" { // a model chooses, by Description and Schema
			continue
		}
		result, err := tool.Call(ctx, json.RawMessage(`{"command": "cd /tmp && echo $PWD"}`))
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(result.Text)
	}
	// Output:
	// /tmp
	// [exit code 0]
}
