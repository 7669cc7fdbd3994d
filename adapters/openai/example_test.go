package openai_test

import (
	"context"
	"fmt"
	"log"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/responses"

	"github.com/seed-1a2d6d8f/sandbox"
	sandboxopenai "github.com/seed-1a2d6d8f/sandbox/adapters/openai"
	"github.com/seed-1a2d6d8f/sandbox/sandboxtools"
)

func ExampleTools_Respond() {
	ctx := context.Background()
	sb, err := sandbox.Create(ctx, sandbox.WithNetworkPolicy(sandbox.DenyAll()))
	if err != nil {
		log.Fatal(err)
	}
	defer sb.Close()
	client := openai.NewClient()
	tools := sandboxopenai.New(sb, sandboxtools.Options{})
	response, err := tools.Respond(ctx, &client.Responses, responses.ResponseNewParams{
		Model: "gpt-5.1",
		Input: responses.ResponseNewParamsInputUnion{OfString: openai.String("Which version of Node.js is there?")},
		Tools: append(tools.Functions(), sandboxopenai.Shell()),
	})
	if err != nil {
		log.Fatal(err) // the sandbox failed, or OpenAI
	}
	fmt.Println(response.OutputText())
}

func ExampleTools_Handlers() {
	ctx := context.Background()
	sb, err := sandbox.Create(ctx, sandbox.WithNetworkPolicy(sandbox.DenyAll()))
	if err != nil {
		log.Fatal(err)
	}
	defer sb.Close()
	client := openai.NewClient()
	// The session's agent has the functions of tools.AgentFunctions.
	tools := sandboxopenai.New(sb, sandboxtools.Options{})
	run, handlers, stop := tools.Handlers(ctx)
	defer stop()
	stream := client.Beta.Agents.Sessions.Stream(run, "session_…", openai.AgentSessionStreamParams{
		Input: "Which version of Node.js is there?", ToolHandlers: handlers,
	})
	defer stream.Close()
	for stream.Next() {
		if event := stream.Current(); event.Type == "agent.session.turn.output_text.delta" {
			fmt.Print(event.AsAgentSessionTurnOutputTextDelta().Delta)
		}
	}
	if failure := context.Cause(run); failure != nil {
		log.Fatal(failure) // the sandbox failed
	}
	if err := stream.Err(); err != nil {
		log.Fatal(err)
	}
}
