package anthropic_test

import (
	"context"
	"fmt"
	"log"

	"github.com/anthropics/anthropic-sdk-go"
	"github.com/anthropics/anthropic-sdk-go/lib/environments"
	"github.com/anthropics/anthropic-sdk-go/tools/agenttoolset"

	"github.com/seed-1a2d6d8f/sandbox"
	sandboxanthropic "github.com/seed-1a2d6d8f/sandbox/adapters/anthropic"
	"github.com/seed-1a2d6d8f/sandbox/sandboxtools"
)

func ExampleTools() {
	ctx := context.Background()
	sb, err := sandbox.Create(ctx, sandbox.WithNetworkPolicy(sandbox.DenyAll()))
	if err != nil {
		log.Fatal(err)
	}
	defer sb.Close()
	run, tools, stop := sandboxanthropic.Tools(ctx, sb, sandboxtools.Options{})
	defer stop()
	client := anthropic.NewClient()
	message, err := client.Beta.Messages.NewToolRunner(tools, anthropic.BetaToolRunnerParams{
		BetaMessageNewParams: anthropic.BetaMessageNewParams{
			Model:     anthropic.ModelClaudeOpus4_6,
			MaxTokens: 4096,
			Messages:  []anthropic.BetaMessageParam{anthropic.NewBetaUserMessage(anthropic.NewBetaTextBlock("Which version of Node.js is there?"))},
		},
	}).RunToCompletion(run)
	if failure := context.Cause(run); failure != nil {
		err = failure // the sandbox failed
	}
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(message.Content[0].Text)
}

func ExampleSessions() {
	ctx := context.Background()
	pool, err := sandbox.NewPool(ctx, 2, sandbox.WithNetworkPolicy(sandbox.DenyAll()))
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	sessions := sandboxanthropic.Sessions{
		Create: func(ctx context.Context, _ *agenttoolset.AgentToolContext) (*sandbox.Sandbox, error) {
			return pool.Create(ctx)
		},
		Failed: func(err error) { log.Print(err) },
	}
	worker := environments.NewEnvironmentWorker(anthropic.NewClient(), environments.EnvironmentWorkerOptions{
		EnvironmentID:  "env_…",
		EnvironmentKey: "the key, which no sandbox gets",
		ToolsFunc:      sessions.Tools,
	})
	if err := worker.Run(ctx); err != nil {
		log.Fatal(err)
	}
}
