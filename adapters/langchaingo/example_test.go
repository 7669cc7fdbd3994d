package langchaingo_test

import (
	"context"
	"fmt"
	"log"

	"github.com/tmc/langchaingo/agents"
	"github.com/tmc/langchaingo/chains"
	"github.com/tmc/langchaingo/llms/fake"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/adapters/langchaingo"
	"github.com/seed-1a2d6d8f/sandbox/sandboxtools"
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
	model := fake.NewFakeLLM([]string{ // any llms.Model
		"Action: bash\nAction Input: echo $((6*7)) > answer",
		"Action: read\nAction Input: {\"path\": \"answer\"}",
		"Final Answer: it is done",
	})
	agent := agents.NewOneShotAgent(model, langchaingo.New(sb, sandboxtools.Options{}))
	said, err := chains.Run(ctx, agents.NewExecutor(agent, agents.WithMaxIterations(10)), "Write 6*7 to a file.")
	if err != nil {
		log.Fatal(err)
	}
	answer, err := sb.ReadFile(ctx, "answer")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s: %s", said, answer)
	// Output: it is done: 42
}
