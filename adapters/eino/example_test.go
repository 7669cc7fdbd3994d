package eino_test

import (
	"context"
	"fmt"
	"log"

	"github.com/cloudwego/eino/adk"
	"github.com/cloudwego/eino/adk/middlewares/filesystem"
	"github.com/cloudwego/eino/schema"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/adapters/eino"
)

func ExampleNewShell() {
	ctx := context.Background()
	client, err := sandbox.NewClient()
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	sb, err := client.Create(ctx, sandbox.WithNetworkPolicy(sandbox.DenyAll()))
	if err != nil {
		log.Fatal(err)
	}
	defer sb.Close()
	files, err := filesystem.NewMiddleware(ctx, &filesystem.Config{Backend: eino.NewShell(sb, eino.Options{})})
	if err != nil {
		log.Fatal(err)
	}
	agent, err := adk.NewChatModelAgent(ctx, &adk.ChatModelAgentConfig{
		Name: "coder", Description: "writes code", Instruction: "You work in a sandbox.",
		Model: &scripted{calls: []schema.FunctionCall{ // any model.ToolCallingChatModel
			{Name: "write_file", Arguments: `{"file_path": "/workspace/a.js", "content": "console.log(6*7)"}`},
			{Name: "execute", Arguments: `{"command": "node a.js"}`},
		}},
		Middlewares: []adk.AgentMiddleware{files, eino.ErrorsAsText()},
	})
	if err != nil {
		log.Fatal(err)
	}
	events := adk.NewRunner(ctx, adk.RunnerConfig{Agent: agent}).Query(ctx, "Write a program and run it.")
	for event, ok := events.Next(); ok; event, ok = events.Next() {
		if event.Err != nil {
			log.Fatal(event.Err)
		}
		if m := event.Output.MessageOutput; m.Role == schema.Tool {
			fmt.Println(m.ToolName+":", m.Message.Content)
		}
	}
	// Output:
	// write_file: Updated file /workspace/a.js
	// execute: 42
}
