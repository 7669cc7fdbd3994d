// Package langchaingo has the tools of package sandboxtools as those of
// [github.com/tmc/langchaingo]: an agent works in a sandbox.
//
//	sb, err := sandbox.Create(ctx, sandbox.WithNetworkPolicy(sandbox.DenyAll()))
//	if err != nil {
//		return err
//	}
//	defer sb.Close()
//	agent := agents.NewOneShotAgent(llm, langchaingo.New(sb, sandboxtools.Options{}))
//	answer, err := chains.Run(ctx, agents.NewExecutor(agent, agents.WithMaxIterations(50)), "fix the test")
//
// The tools and their limits are those of sandboxtools. Agents of langchaingo tell a model no more
// about a tool than its name and description, and get one string from it: see [Tool.Call].
package langchaingo

import (
	"context"
	"encoding/json"
	"strings"

	"github.com/tmc/langchaingo/tools"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/sandboxtools"
)

// New returns the tools for a sandbox, which stays the caller's. They have one shell, as those of
// [sandboxtools.New] have. Each one is a [Tool].
func New(sb *sandbox.Sandbox, o sandboxtools.Options) []tools.Tool {
	var all []tools.Tool
	for _, t := range sandboxtools.New(sb, o) {
		all = append(all, Tool{t})
	}
	return all
}

// Tool is one tool of [New]. It is safe for concurrent use.
type Tool struct{ tool sandboxtools.Tool }

var _ tools.Tool = Tool{}

// Name returns the tool's name: bash, read, write, edit, glob, grep or fetch.
func (t Tool) Name() string { return t.tool.Name }

// Description tells a model what the tool does, and the JSON Schema of its input.
func (t Tool) Description() string {
	text := t.tool.Description + " The input is a JSON object with this schema"
	if t.tool.Name == shell {
		text += ", or the command alone, as plain text"
	}
	return text + ": " + string(t.tool.Schema)
}

// shell is the tool that takes plain text.
const shell = "bash"

// ErrorPrefix begins what [Tool.Call] returns if the call went wrong by the model's own fault.
const ErrorPrefix = "error: "

// Call calls the tool. The input is a JSON object that fits the schema in the description. The tool
// bash takes any other text, too, and runs it as a command.
//
// What went wrong by the model's own fault is returned as text with [ErrorPrefix], so that the model
// can try again. An error ends the agent's run: the sandbox failed, or ctx has ended, see the errors in
// the documentation of package sandboxtools.
func (t Tool) Call(ctx context.Context, input string) (string, error) {
	args := json.RawMessage(strings.TrimSpace(input))
	if t.tool.Name == shell && !(json.Valid(args) && strings.HasPrefix(string(args), "{")) {
		var err error
		if args, err = json.Marshal(map[string]string{"command": string(args)}); err != nil {
			return "", err
		}
	}
	text, failed, err := t.tool.Answer(ctx, args)
	if failed {
		text = ErrorPrefix + text
	}
	return text, err
}
