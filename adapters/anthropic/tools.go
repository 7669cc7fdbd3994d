// Package anthropic gives a Claude model a sandbox to work in: the tools of package sandboxtools as
// tools of Anthropic's client, github.com/anthropics/anthropic-sdk-go.
//
// With the client's tool runner, in a sandbox that is the caller's:
//
//	ctx, tools, stop := sandboxanthropic.Tools(ctx, sb, sandboxtools.Options{})
//	defer stop()
//	message, err := client.Beta.Messages.NewToolRunner(tools, params).RunToCompletion(ctx)
//	if failure := context.Cause(ctx); failure != nil {
//		err = failure // the sandbox failed, or ctx ended
//	}
//
// With the client's worker for self-hosted environments [Sessions] gives each session a sandbox of its
// own. The worker has the credentials, and the sandbox gets none of them.
package anthropic

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/anthropics/anthropic-sdk-go"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/sandboxtools"
)

// Tools returns the tools for the sandbox, which stays the caller's, and a context for the runner
// that calls them. A runner gives every error of a tool to the model; so when the sandbox fails, the
// context ends, which ends the runner before the model reads about it, and [context.Cause] has the
// error, such as [sandbox.ErrSessionLost]. The caller calls stop after the run.
//
// The tools may be called concurrently. They share one shell.
func Tools(ctx context.Context, sb *sandbox.Sandbox, o sandboxtools.Options) (run context.Context, tools []anthropic.BetaTool, stop context.CancelFunc) {
	run, cancel := context.WithCancelCause(ctx)
	for _, t := range sandboxtools.New(sb, o) {
		tools = append(tools, &tool{Tool: t, fail: cancel})
	}
	return run, tools, func() { cancel(nil) }
}

// tool is a tool in one sandbox.
type tool struct {
	sandboxtools.Tool
	fail func(error) // ends the run
}

func (t *tool) Name() string                                    { return t.Tool.Name }
func (t *tool) Description() string                             { return t.Tool.Description }
func (t *tool) InputSchema() anthropic.BetaToolInputSchemaParam { return inputSchema(t.Tool) }

// Execute returns an error for the model, or the one that ended the run.
func (t *tool) Execute(ctx context.Context, input json.RawMessage) ([]anthropic.BetaToolResultBlockParamContentUnion, error) {
	text, failed, err := t.Answer(ctx, input)
	if err != nil && ctx.Err() == nil {
		t.fail(err)
	}
	return result(text, failed, err)
}

// result is what Execute returns for an answer.
func result(text string, failed bool, err error) ([]anthropic.BetaToolResultBlockParamContentUnion, error) {
	switch {
	case err != nil:
		return nil, err
	case failed:
		return nil, errors.New(text)
	}
	return []anthropic.BetaToolResultBlockParamContentUnion{{OfText: &anthropic.BetaTextBlockParam{Text: text}}}, nil
}

// inputSchema is a tool's schema in the client's type.
func inputSchema(t sandboxtools.Tool) (s anthropic.BetaToolInputSchemaParam) {
	_ = s.UnmarshalJSON(t.Schema) // a constant, which a test compares
	return s
}
