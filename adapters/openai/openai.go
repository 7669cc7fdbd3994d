// Package openai gives a model of OpenAI a sandbox to work in: the tools of package sandboxtools and the
// Responses API's shell, with OpenAI's client, github.com/openai/openai-go/v3.
//
//	tools := sandboxopenai.New(sb, sandboxtools.Options{})
//	response, err := tools.Respond(ctx, &client.Responses, responses.ResponseNewParams{
//		Model: model,
//		Input: responses.ResponseNewParamsInputUnion{OfString: openai.String("Make the tests pass.")},
//		Tools: append(tools.Functions(), sandboxopenai.Shell()),
//	})
//
// For a loop of the program's own there is [Tools.Call], for the sessions of agents [Tools.Handlers]. An
// error that the model can do something about is an output for it. Other errors are the program's: the
// sandbox failed, with [sandbox.ErrSessionLost], say, and the model reads nothing of it.
package openai

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/packages/param"
	"github.com/openai/openai-go/v3/responses"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/sandboxtools"
)

// Tools are the tools in one sandbox. They may be called concurrently.
type Tools struct {
	sb     *sandbox.Sandbox
	limits sandboxtools.Options
	all    []sandboxtools.Tool
}

// New returns the tools for the sandbox, which stays the caller's. The functions share one shell; each
// command of the shell tool has one of its own.
func New(sb *sandbox.Sandbox, o sandboxtools.Options) *Tools {
	return &Tools{sb: sb, limits: o, all: sandboxtools.New(sb, o)}
}

// Functions are the definitions of the tools of package sandboxtools, as strict functions.
func (t *Tools) Functions() (functions []responses.ToolUnionParam) {
	for _, tool := range t.all {
		function := responses.ToolParamOfFunction(tool.Name, schema(tool), true)
		function.OfFunction.Description = openai.String(tool.Description)
		functions = append(functions, function)
	}
	return functions
}

// Shell is the definition of the shell tool that runs in the sandbox instead of at OpenAI.
func Shell() responses.ToolUnionParam {
	local := responses.LocalEnvironmentParam{}
	return responses.ToolUnionParam{OfShell: &responses.FunctionShellToolParam{
		Environment: responses.FunctionShellToolEnvironmentUnionParam{OfLocal: &local},
	}}
}

// Respond asks the model, runs what it calls, and so on until it calls nothing more, or ctx ends. It
// returns the last response, which may be incomplete. params has the tools: those of [Tools.Functions]
// and [Shell]. Calls of other functions get an error as their output.
//
// Responses follow each other by their IDs. With params.Store false the input repeats all that was
// before, and with params.Conversation OpenAI has it already.
func (t *Tools) Respond(ctx context.Context, service *responses.ResponseService, params responses.ResponseNewParams, opts ...option.RequestOption) (*responses.Response, error) {
	before := params.Input.OfInputItemList
	if text := params.Input.OfString; !param.IsOmitted(text) {
		message := responses.ResponseInputItemParamOfMessage(text.Value, responses.EasyInputMessageRoleUser)
		message.OfMessage.Type = responses.EasyInputMessageTypeMessage
		before = responses.ResponseInputParam{message}
	}
	for {
		response, err := service.New(ctx, params, opts...)
		if err != nil || response.Status != responses.ResponseStatusCompleted {
			return response, err
		}
		outputs, err := t.answer(ctx, response.Output)
		if err != nil || len(outputs) == 0 {
			return response, err
		}
		switch {
		case !param.IsOmitted(params.Store) && !params.Store.Value:
			for _, item := range response.Output {
				before = append(before, param.Override[responses.ResponseInputItemUnionParam](json.RawMessage(item.RawJSON())))
			}
			before = append(before, outputs...)
			outputs = before
		case param.IsOmitted(params.Conversation):
			params.PreviousResponseID = openai.String(response.ID)
		}
		params.Input = responses.ResponseNewParamsInputUnion{OfInputItemList: outputs}
	}
}

// answer returns the outputs of all calls of a response.
func (t *Tools) answer(ctx context.Context, items []responses.ResponseOutputItemUnion) (outputs responses.ResponseInputParam, err error) {
	for _, item := range items {
		output, ours, err := t.Call(ctx, item)
		switch {
		case err != nil:
			return nil, err
		case ours:
			outputs = append(outputs, output)
		case item.Type == "function_call":
			outputs = append(outputs, functionOutput(item.CallID, fmt.Sprintf("Error: there is no function %q", item.Name)))
		}
	}
	return outputs, nil
}

// Call runs what an item of a response calls, and returns the output for the next request. ours is false
// if the item is no call of these tools; a shell that runs at OpenAI is none. An error is for the program
// alone.
func (t *Tools) Call(ctx context.Context, item responses.ResponseOutputItemUnion) (output responses.ResponseInputItemUnionParam, ours bool, err error) {
	switch item.Type {
	case "function_call":
		call := item.AsFunctionCall()
		for _, tool := range t.all {
			if tool.Name == call.Name {
				text, err := run(ctx, tool, json.RawMessage(call.Arguments))
				return functionOutput(call.CallID, text), true, err
			}
		}
	case "shell_call":
		if call := item.AsShellCall(); call.Environment.Type != "container_reference" {
			output, err := t.shell(ctx, call)
			return responses.ResponseInputItemUnionParam{OfShellCallOutput: output}, true, err
		}
	}
	return output, false, nil
}

// run returns the text of a function's output, which has no other mark of an error.
func run(ctx context.Context, tool sandboxtools.Tool, args json.RawMessage) (string, error) {
	text, failed, err := tool.Answer(ctx, args)
	if failed {
		text = "Error: " + text
	}
	return text, err
}

func functionOutput(call, text string) responses.ResponseInputItemUnionParam {
	output := responses.ResponseInputItemParamOfFunctionCallOutput(text)
	output.OfFunctionCallOutput.CallID = openai.String(call)
	return output
}

// schema is a tool's schema in the client's type, which is the caller's.
func schema(t sandboxtools.Tool) (s map[string]any) {
	_ = json.Unmarshal(t.Schema, &s) // a constant, which a test compares
	return s
}

// AgentFunctions are the definitions of the tools of package sandboxtools for an agent.
func (t *Tools) AgentFunctions() (functions []openai.AgentToolParamUnion) {
	for _, tool := range t.all {
		functions = append(functions, openai.AgentToolParamUnion{OfParamFunction: &openai.AgentToolParamFunction{
			Name: tool.Name, Description: tool.Description, Parameters: schema(tool),
		}})
	}
	return functions
}

// Handlers are the ToolHandlers of an agent's session whose agent has [Tools.AgentFunctions], and a context
// for the stream that calls them. When the sandbox fails, the context ends and so does the stream,
// before the model reads about it, and [context.Cause] has the error. The caller calls stop afterwards.
func (t *Tools) Handlers(ctx context.Context) (stream context.Context, handlers map[string]openai.AgentToolHandler, stop context.CancelFunc) {
	stream, cancel := context.WithCancelCause(ctx)
	handlers = map[string]openai.AgentToolHandler{}
	for _, tool := range t.all {
		handlers[tool.Name] = func(ctx context.Context, args map[string]any) (any, error) {
			body, err := json.Marshal(args)
			if err != nil {
				return nil, err
			}
			text, err := run(ctx, tool, body)
			if err != nil {
				cancel(err) // nothing, if the stream has ended
				return nil, err
			}
			return text, nil
		}
	}
	return stream, handlers, func() { cancel(nil) }
}
