// Package fantasy gives the agents of charm.land/fantasy a sandbox to work in: the tools of package
// sandboxtools as its AgentTools.
//
//	ctx, tools, stop := sandboxfantasy.Tools(ctx, sb, sandboxtools.Options{})
//	defer stop()
//	result, err := fantasy.NewAgent(model, fantasy.WithTools(tools...)).Generate(ctx, fantasy.AgentCall{Prompt: "Make the tests pass."})
//	if failure := context.Cause(ctx); failure != nil {
//		err = failure // the sandbox failed, or ctx ended
//	}
package fantasy

import (
	"context"
	"encoding/json"

	"charm.land/fantasy"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/sandboxtools"
)

// Tools returns the tools for the sandbox, which stays the caller's, and a context for the agent that calls
// them. When the sandbox fails, the context ends and so does the agent, before the model reads about it,
// and [context.Cause] has the error, such as [sandbox.ErrSessionLost]: the agent's Generate itself returns
// no error then, but the last step. The caller calls stop after the run.
//
// The tools may be called concurrently. They share one shell. An agent that streams runs those that change
// nothing side by side.
func Tools(ctx context.Context, sb *sandbox.Sandbox, o sandboxtools.Options) (run context.Context, tools []fantasy.AgentTool, stop context.CancelFunc) {
	run, cancel := context.WithCancelCause(ctx)
	for _, t := range sandboxtools.New(sb, o) {
		tools = append(tools, &tool{tool: t, fail: cancel})
	}
	return run, tools, func() { cancel(nil) }
}

// tool is a fantasy.AgentTool.
type tool struct {
	tool    sandboxtools.Tool
	fail    func(error) // ends the run
	options fantasy.ProviderOptions
}

// Info returns values that are the caller's: an agent normalizes the schema in place.
func (t *tool) Info() fantasy.ToolInfo {
	var schema struct {
		Properties map[string]any `json:"properties"`
		Required   []string       `json:"required"`
	}
	_ = json.Unmarshal(t.tool.Schema, &schema) // a constant, which a test compares
	return fantasy.ToolInfo{
		Name: t.tool.Name, Description: t.tool.Description, Parallel: t.tool.ReadOnly,
		Parameters: schema.Properties, Required: schema.Required,
	}
}

// Run returns an error only for the program: it ends the agent's run.
func (t *tool) Run(ctx context.Context, call fantasy.ToolCall) (fantasy.ToolResponse, error) {
	text, failed, err := t.tool.Answer(ctx, json.RawMessage(call.Input))
	switch {
	case err != nil:
		t.fail(err) // nothing, if ctx has ended
		return fantasy.ToolResponse{}, err
	case failed:
		return fantasy.NewTextErrorResponse(text), nil
	}
	return fantasy.NewTextResponse(text), nil
}

// ProviderOptions returns what SetProviderOptions was given.
func (t *tool) ProviderOptions() fantasy.ProviderOptions { return t.options }

// SetProviderOptions sets options for the model's provider. It is for the time before the tool is used.
func (t *tool) SetProviderOptions(o fantasy.ProviderOptions) { t.options = o }
