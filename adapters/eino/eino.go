// Package eino has a sandbox as what agents of [github.com/cloudwego/eino] work with: tools, and the
// backend of its file system middleware with a shell.
//
//	sb, err := sandbox.Create(ctx, sandbox.WithNetworkPolicy(sandbox.DenyAll()))
//	if err != nil {
//		return err
//	}
//	defer sb.Close()
//	files, err := filesystem.NewMiddleware(ctx, &filesystem.Config{Backend: eino.NewShell(sb, eino.Options{})})
//	agent, err := adk.NewChatModelAgent(ctx, &adk.ChatModelAgentConfig{
//		Name: "coder", Description: "writes code", Model: model,
//		Middlewares: []adk.AgentMiddleware{files, eino.ErrorsAsText()},
//	})
//
// [NewTools] has the tools of package sandboxtools instead, which need no [ErrorsAsText]. [NewOperator] is
// for the tools of eino-ext.
package eino

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/cloudwego/eino/adk"
	"github.com/cloudwego/eino/components/tool"
	"github.com/cloudwego/eino/compose"
	"github.com/cloudwego/eino/schema"
	"github.com/eino-contrib/jsonschema"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/sandboxtools"
)

// NewTools returns the tools of [sandboxtools.New] for an agent. Each one is a [Tool]. The sandbox
// stays the caller's.
func NewTools(sb *sandbox.Sandbox, o sandboxtools.Options) []tool.BaseTool {
	var all []tool.BaseTool
	for _, t := range sandboxtools.New(sb, o) {
		all = append(all, Tool{t})
	}
	return all
}

// Tool is one tool of [NewTools]. It is safe for concurrent use.
type Tool struct{ tool sandboxtools.Tool }

var _ tool.InvokableTool = Tool{}

// Info returns the tool's name, description and schema.
func (t Tool) Info(context.Context) (*schema.ToolInfo, error) {
	s := &jsonschema.Schema{}
	if err := json.Unmarshal(t.tool.Schema, s); err != nil {
		return nil, err
	}
	return &schema.ToolInfo{Name: t.tool.Name, Desc: t.tool.Description, ParamsOneOf: schema.NewParamsOneOfByJSONSchema(s)}, nil
}

// ErrorPrefix begins what a model gets if a call went wrong by its own fault.
const ErrorPrefix = "error: "

// InvokableRun calls the tool. What went wrong by the model's own fault is returned as text with
// [ErrorPrefix]. An error ends the agent's run: the sandbox failed, or ctx has ended.
func (t Tool) InvokableRun(ctx context.Context, argumentsInJSON string, _ ...tool.Option) (string, error) {
	text, failed, err := t.tool.Answer(ctx, json.RawMessage(argumentsInJSON))
	if failed {
		text = ErrorPrefix + text
	}
	return text, err
}

// ErrorsAsText returns a middleware that gives errors of an agent's tools to its model, as text with
// [ErrorPrefix]; without it the first one ends the run, such as that a file does not exist. Errors of the
// sandbox and of the end of the context still do. It applies to all tools of the agent that return text,
// also those that have nothing to do with a sandbox.
func ErrorsAsText() adk.AgentMiddleware {
	return adk.AgentMiddleware{WrapToolCall: compose.ToolMiddleware{
		Invokable: func(next compose.InvokableToolEndpoint) compose.InvokableToolEndpoint {
			return func(ctx context.Context, in *compose.ToolInput) (*compose.ToolOutput, error) {
				out, err := next(ctx, in)
				if err == nil || fatal(ctx, err) {
					return out, err
				}
				return &compose.ToolOutput{Result: ErrorPrefix + err.Error()}, nil
			}
		},
		Streamable: func(next compose.StreamableToolEndpoint) compose.StreamableToolEndpoint {
			return func(ctx context.Context, in *compose.ToolInput) (*compose.StreamToolOutput, error) {
				out, err := next(ctx, in)
				if err == nil || fatal(ctx, err) {
					return out, err
				}
				return &compose.StreamToolOutput{Result: schema.StreamReaderFromArray([]string{ErrorPrefix + err.Error()})}, nil
			}
		},
	}}
}

// fatal reports whether an error is not the model's fault.
func fatal(ctx context.Context, err error) bool {
	_, interrupt := compose.IsInterruptRerunError(err)
	return ctx.Err() != nil || interrupt || errors.Is(err, sandbox.ErrSessionLost) || errors.Is(err, sandbox.ErrEngineUnavailable) || errors.Is(err, sandbox.ErrClosed)
}

// lost is the error of a command whose session ended.
func lost(c *sandboxtools.Command) error {
	return fmt.Errorf("%w: %s", sandbox.ErrSessionLost, c.Reason)
}
