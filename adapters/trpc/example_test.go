package trpc_test

import (
	"context"
	"fmt"
	"log"

	"trpc.group/trpc-go/trpc-agent-go/agent/llmagent"
	"trpc.group/trpc-go/trpc-agent-go/event"
	"trpc.group/trpc-go/trpc-agent-go/model"
	"trpc.group/trpc-go/trpc-agent-go/runner"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/adapters/trpc"
)

func ExampleNew() {
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
	var m model.Model = &scripted{lines: []string{"```bash\necho $((6*7))\n```", "done"}} // any model
	agent := llmagent.New("coder", llmagent.WithModel(m), llmagent.WithCodeExecutor(trpc.New(sb, trpc.Options{})))
	r := runner.NewRunner("app", agent)
	defer r.Close()
	events, err := r.Run(ctx, "user", "session", model.NewUserMessage("What is 6*7?"))
	if err != nil {
		log.Fatal(err)
	}
	for e := range events {
		if e.ContainsTag(event.CodeExecutionResultTag) {
			fmt.Print(e.Choices[0].Message.Content)
		}
	}
	// Output:
	// Code execution result:
	// 42
}
