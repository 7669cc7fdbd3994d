package anthropic

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	"github.com/anthropics/anthropic-sdk-go"
	"github.com/anthropics/anthropic-sdk-go/tools/agenttoolset"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/sandboxtools"
)

// Sessions gives each session of a self-hosted environment a sandbox of its own. It is for the worker
// of lib/environments:
//
//	sessions := sandboxanthropic.Sessions{Create: func(ctx context.Context, _ *agenttoolset.AgentToolContext) (*sandbox.Sandbox, error) {
//		return pool.Create(ctx)
//	}}
//	worker := environments.NewEnvironmentWorker(client, environments.EnvironmentWorkerOptions{
//		EnvironmentID: id, EnvironmentKey: key, ToolsFunc: sessions.Tools,
//	})
//
// The tools are bash, read, write, edit, glob and grep with the arguments of agent_toolset_20260401, which
// an agent has without further definitions, and fetch, for an agent with a custom tool of that name.
// They take the arguments of package sandboxtools, too.
//
// The skills and the memories of a session are in directories of the worker, and not in the sandbox.
// Create may copy the skills.
type Sessions struct {
	// Create creates the sandbox of a session when the first tool is called, or takes it from a pool.
	// It has to be a sandbox that is removed when it is closed, without a name, say, because the
	// session closes it at its end. env has the worker's directories. ctx is that of the first call,
	// which the worker limits to two minutes. Required.
	Create func(ctx context.Context, env *agenttoolset.AgentToolContext) (*sandbox.Sandbox, error)
	// Options limit what one call may take.
	Options sandboxtools.Options
	// Failed, if not nil, gets the errors of sandboxes that could not be created, that failed, or that
	// could not be removed: the worker has no place for them. A worker can't end a session for the
	// error of a tool either, so the model gets a text without the reason. Failed is called by several
	// sessions at once.
	Failed func(err error)
}

// errNoSandbox is what a model gets instead of an error of the sandbox.
var errNoSandbox = errors.New("the sandbox of this session is not available: no tool can be used any more")

// Tools is a ToolsFunc of environments.EnvironmentWorkerOptions. The worker closes the tools at the end of
// the session, which removes the sandbox.
func (s *Sessions) Tools(env *agenttoolset.AgentToolContext) (tools []anthropic.BetaTool) {
	one := &session{Sessions: s, env: env}
	for i, t := range sandboxtools.New(nil, s.Options) {
		tools = append(tools, &sessionTool{Tool: t, session: one, index: i})
	}
	return tools
}

// session is one session and its sandbox.
type session struct {
	*Sessions
	env *agenttoolset.AgentToolContext

	mu    sync.Mutex
	sb    *sandbox.Sandbox // nil until the first call
	tools []sandboxtools.Tool
	over  bool
}

// open returns the tools in the sandbox.
func (s *session) open(ctx context.Context) ([]sandboxtools.Tool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return nil, fmt.Errorf("the session is over: %w", sandbox.ErrClosed)
	}
	if s.sb == nil {
		sb, err := s.Create(ctx, s.env)
		if err != nil {
			return nil, err
		}
		s.sb, s.tools = sb, sandboxtools.New(sb, s.Options)
	}
	return s.tools, nil
}

func (s *session) failed(err error) {
	if s.Failed != nil {
		s.Failed(err)
	}
}

// Close removes the sandbox. It is idempotent: the worker closes each tool.
func (s *session) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over = true; s.sb == nil {
		return nil
	}
	err := s.sb.Close()
	s.sb, s.tools = nil, nil
	if err != nil {
		s.failed(err)
	}
	return err
}

// sessionTool is a tool of a session.
type sessionTool struct {
	sandboxtools.Tool // without a sandbox
	*session
	index int // of the same tool with one
}

func (t *sessionTool) Name() string                                    { return t.Tool.Name }
func (t *sessionTool) Description() string                             { return t.Tool.Description }
func (t *sessionTool) InputSchema() anthropic.BetaToolInputSchemaParam { return inputSchema(t.Tool) }

// Execute returns an error for the model, without what is for the program.
func (t *sessionTool) Execute(ctx context.Context, input json.RawMessage) ([]anthropic.BetaToolResultBlockParamContentUnion, error) {
	tools, err := t.open(ctx)
	if err != nil {
		t.failed(err)
		return nil, errNoSandbox
	}
	text, failed, err := tools[t.index].Answer(ctx, arguments(input))
	switch {
	case err == nil:
		return result(text, failed, nil)
	case ctx.Err() != nil:
		return nil, context.Cause(ctx) // by the worker
	}
	t.failed(err)
	return nil, errNoSandbox
}

// renamed are the arguments of agent_toolset_20260401 that have other names in package sandboxtools.
var renamed = map[string]string{
	"file_path": "path", "old_string": "old", "new_string": "new", "replace_all": "all", "timeout_ms": "timeoutMs",
}

// arguments are those of package sandboxtools for an input. One that is no object stays as it is.
func arguments(input json.RawMessage) json.RawMessage {
	var args map[string]json.RawMessage
	if json.Unmarshal(input, &args) != nil {
		return input
	}
	for from, to := range renamed {
		if value, is := args[from]; is {
			delete(args, from)
			args[to] = value
		}
	}
	var lines []int // the first and the last; a last one below the first is the end of the file
	if value, is := args["view_range"]; is && json.Unmarshal(value, &lines) == nil && (len(lines) == 2 || bytes.Equal(value, []byte("null"))) {
		delete(args, "view_range")
		if len(lines) == 2 {
			args["line"], args["lines"] = number(lines[0]), number(max(lines[1]-max(lines[0], 1)+1, 0))
		}
	}
	out, err := json.Marshal(args)
	if err != nil {
		return input
	}
	return out
}

func number(n int) json.RawMessage { return json.RawMessage(fmt.Sprint(n)) }
