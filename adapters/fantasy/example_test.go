package fantasy_test

import (
	"context"
	"fmt"
	"log"

	"charm.land/fantasy"
	"charm.land/fantasy/providers/openaicompat"

	"github.com/seed-1a2d6d8f/sandbox"
	sandboxfantasy "github.com/seed-1a2d6d8f/sandbox/adapters/fantasy"
	"github.com/seed-1a2d6d8f/sandbox/sandboxtools"
)

func ExampleTools() {
	ctx := context.Background()
	sb, err := sandbox.Create(ctx, sandbox.WithNetworkPolicy(sandbox.DenyAll()))
	if err != nil {
		log.Fatal(err)
	}
	defer sb.Close()
	provider, err := openaicompat.New(openaicompat.WithBaseURL("http://localhost:11434/v1"))
	if err != nil {
		log.Fatal(err)
	}
	model, err := provider.LanguageModel(ctx, "a-model")
	if err != nil {
		log.Fatal(err)
	}
	run, tools, stop := sandboxfantasy.Tools(ctx, sb, sandboxtools.Options{})
	defer stop()
	result, err := fantasy.NewAgent(model, fantasy.WithTools(tools...)).Generate(run, fantasy.AgentCall{Prompt: "Which version of Node.js is there?"})
	if failure := context.Cause(run); failure != nil {
		err = failure // the sandbox failed
	}
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(result.Response.Content.Text())
}
