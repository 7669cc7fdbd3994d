package eino_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/cloudwego/eino/adk"
	"github.com/cloudwego/eino/adk/middlewares/filesystem"
	"github.com/cloudwego/eino/components/model"
	"github.com/cloudwego/eino/compose"
	"github.com/cloudwego/eino/schema"
	"github.com/google/go-cmp/cmp"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/adapters/eino"
	"github.com/seed-1a2d6d8f/sandbox/sandboxtools"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }

// scripted is a model that makes calls, one after the other, and keeps what it gets.
type scripted struct {
	calls   []schema.FunctionCall
	answers []string
}

func (s *scripted) Generate(ctx context.Context, in []*schema.Message, _ ...model.Option) (*schema.Message, error) {
	if last := in[len(in)-1]; last.Role == schema.Tool {
		s.answers = append(s.answers, last.Content)
	}
	if len(s.answers) == len(s.calls) {
		return schema.AssistantMessage("done", nil), nil
	}
	return calls(fmt.Sprint(len(s.answers)), s.calls[len(s.answers)]), nil
}

func (s *scripted) Stream(ctx context.Context, in []*schema.Message, o ...model.Option) (*schema.StreamReader[*schema.Message], error) {
	m, err := s.Generate(ctx, in, o...)
	return schema.StreamReaderFromArray([]*schema.Message{m}), err
}

func (s *scripted) WithTools([]*schema.ToolInfo) (model.ToolCallingChatModel, error) { return s, nil }

func calls(id string, f schema.FunctionCall) *schema.Message {
	return schema.AssistantMessage("", []schema.ToolCall{{ID: id, Type: "function", Function: f}})
}

// talking is a model that says what the harness tells it to.
type talking struct {
	scripted
	*harness.Model
	tools []*schema.ToolInfo
}

func (m *talking) WithTools(tools []*schema.ToolInfo) (model.ToolCallingChatModel, error) {
	m.tools = tools
	return m, nil
}

func (m *talking) Generate(ctx context.Context, in []*schema.Message, _ ...model.Option) (*schema.Message, error) {
	var last *harness.ToolAnswer
	if l := in[len(in)-1]; l.Role == schema.Tool {
		text, failed := strings.CutPrefix(l.Content, eino.ErrorPrefix)
		last = &harness.ToolAnswer{Text: text, Error: failed}
	}
	call, more := m.Next(ctx, last)
	switch {
	case more:
		return calls("id", schema.FunctionCall{Name: call.Tool, Arguments: string(call.Args)}), nil
	case ctx.Err() != nil:
		return nil, ctx.Err()
	}
	return schema.AssistantMessage("done", nil), nil
}

// run runs an agent to its end.
func run(ctx context.Context, m model.ToolCallingChatModel, streaming bool, c adk.ChatModelAgentConfig) error {
	c.Name, c.Description, c.Instruction, c.Model, c.MaxIterations = "coder", "writes code", "work", m, 100
	agent, err := adk.NewChatModelAgent(ctx, &c)
	if err != nil {
		return err
	}
	events := adk.NewRunner(ctx, adk.RunnerConfig{Agent: agent, EnableStreaming: streaming}).Query(ctx, "work")
	for event, ok := events.Next(); ok; event, ok = events.Next() {
		if event.Err != nil {
			return event.Err
		}
	}
	return nil
}

func TestConversationOfAnAgent(t *testing.T) {
	t.Parallel()
	sb := harness.NewSandbox(t)
	tools := eino.NewTools(sb, sandboxtools.Options{Output: harness.ToolOutput, CommandTime: harness.CallBound})
	m := &talking{}
	m.Model = harness.NewModel(func(ctx context.Context) error {
		return run(ctx, m, false, adk.ChatModelAgentConfig{ToolsConfig: adk.ToolsConfig{ToolsNodeConfig: compose.ToolsNodeConfig{Tools: tools}}})
	})
	harness.Converse(t, sb, harness.Conversation(), m.Model.Call)
	m.End(t)
}

func TestSchemasArriveWhole(t *testing.T) {
	t.Parallel()
	tools := eino.NewTools(nil, sandboxtools.Options{})
	for i, want := range sandboxtools.New(nil, sandboxtools.Options{}) {
		info, err := tools[i].Info(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		s, err := info.ParamsOneOf.ToJSONSchema()
		if err != nil {
			t.Fatal(err)
		}
		body, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		var x, y any
		if err := errors.Join(json.Unmarshal(body, &x), json.Unmarshal(want.Schema, &y)); err != nil {
			t.Fatal(err)
		}
		if !cmp.Equal(x, y) || info.Name != want.Name || info.Desc != want.Description {
			t.Errorf("%s (-want +got):\n%s", info.Name, cmp.Diff(y, x))
		}
	}
}

// An agent of the framework's middleware, with both kinds of shells.
func TestAgentWithFilesAndAShell(t *testing.T) {
	t.Parallel()
	sb := harness.NewSandbox(t)
	o := eino.Options{CommandTime: harness.CallBound}
	for name, backend := range map[string]filesystem.Backend{"shell": eino.NewShell(sb, o), "streaming": eino.NewStreamingShell(sb, o)} {
		dir := "/workspace/" + name
		script := &scripted{calls: []schema.FunctionCall{
			{Name: "write_file", Arguments: `{"file_path": "` + dir + `/a.txt", "content": "one\ntwo"}`},
			{Name: "write_file", Arguments: `{"file_path": "` + dir + `/a.txt", "content": "other"}`},
			{Name: "read_file", Arguments: `{"file_path": "` + dir + `/none", "offset": 0, "limit": 0}`},
			{Name: "read_file", Arguments: `{"file_path": "` + dir + `/a.txt", "offset": 1, "limit": 5}`},
			{Name: "edit_file", Arguments: `{"file_path": "` + dir + `/a.txt", "old_string": "two", "new_string": "2"}`},
			{Name: "grep", Arguments: `{"pattern": "2", "output_mode": "content", "path": "` + dir + `"}`},
			{Name: "glob", Arguments: `{"pattern": "` + dir + `/*.txt", "path": ""}`},
			{Name: "ls", Arguments: `{"path": "` + dir + `"}`},
			{Name: "execute", Arguments: `{"command": "cd ` + dir + `; cat a.txt; exit 3"}`},
			{Name: "execute", Arguments: `{"command": "pwd"}`},
			{Name: "execute", Arguments: `{"command": "true"}`},
		}}
		files, err := filesystem.NewMiddleware(t.Context(), &filesystem.Config{Backend: backend})
		if err != nil {
			t.Fatal(err)
		}
		c := adk.ChatModelAgentConfig{Middlewares: []adk.AgentMiddleware{files, eino.ErrorsAsText()}}
		if err := run(t.Context(), script, name == "streaming", c); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		want := []string{
			"Updated file " + dir + "/a.txt", eino.ErrorPrefix + ".*exists", eino.ErrorPrefix + ".*no such file", "     2\ttwo",
			"Successfully replaced the string in '" + dir + "/a.txt'", dir + "/a.txt:2:2\n", dir + "/a.txt", dir + "/a.txt",
			"one\n2\n[Command failed with exit code 3]", dir + "\n", "[Command executed successfully with no output]",
		}
		if len(script.answers) != len(want) {
			t.Fatalf("%s: %q, want %q", name, script.answers, want)
		}
		for i, w := range want {
			begin, rest, _ := strings.Cut(w, ".*")
			if got := script.answers[i]; !strings.HasPrefix(got, begin) || !strings.Contains(got, rest) || rest == "" && got != w {
				t.Errorf("%s: %s: %q, want %q", name, script.calls[i].Name, got, w)
			}
		}
	}
	// Without the middleware the first error ends the run.
	files, err := filesystem.NewMiddleware(t.Context(), &filesystem.Config{Backend: eino.NewBackend(sb, o)})
	if err != nil {
		t.Fatal(err)
	}
	script := &scripted{calls: []schema.FunctionCall{{Name: "read_file", Arguments: `{"file_path": "/none"}`}}}
	if err := run(t.Context(), script, false, adk.ChatModelAgentConfig{Middlewares: []adk.AgentMiddleware{files}}); err == nil {
		t.Error("an error does not end the run")
	}
	if err := sb.Close(); err != nil {
		t.Fatal(err)
	}
	script = &scripted{calls: script.calls}
	err = run(t.Context(), script, false, adk.ChatModelAgentConfig{Middlewares: []adk.AgentMiddleware{files, eino.ErrorsAsText()}})
	if !errors.Is(err, sandbox.ErrClosed) && !errors.Is(err, sandbox.ErrSessionLost) {
		t.Errorf("a run whose sandbox is gone: %v", err)
	}
}

func TestStreamsAreBoundedAndEnd(t *testing.T) {
	t.Parallel()
	sb := harness.NewSandbox(t)
	shell := eino.NewStreamingShell(sb, eino.Options{Output: 5000, CommandTime: harness.CallBound})
	read := func(ctx context.Context, command string, until func(string) bool) (text string, truncated bool, code int, err error) {
		sr, err := shell.ExecuteStreaming(ctx, &filesystemExecute{Command: command})
		if err != nil {
			t.Fatal(err)
		}
		defer sr.Close()
		code = -1
		for {
			r, err := sr.Recv()
			if err == io.EOF {
				return text, truncated, code, nil
			}
			if err != nil {
				return text, truncated, code, err
			}
			text, truncated = text+r.Output, truncated || r.Truncated
			if r.ExitCode != nil {
				code = *r.ExitCode
			}
			if until != nil && until(text) {
				return text, truncated, code, nil
			}
		}
	}
	text, truncated, code, err := read(t.Context(), "echo first; yes | head -c 3000000; exit 4", nil)
	if err != nil || len(text) != 5000 || !strings.HasPrefix(text, "first\ny\n") || !truncated || code != 4 {
		t.Errorf("a flood: %d bytes, truncated %t, exit code %d, %v", len(text), truncated, code, err)
	}
	// Output arrives before the end: the command waits for what is done when it does.
	_, _, _, err = read(t.Context(), "echo waits; exec sleep 7777", func(s string) bool { return s == "waits\n" })
	if err != nil {
		t.Errorf("the first output: %v", err)
	}
	harness.Eventually(t, "the command whose stream is closed is gone", func() bool {
		out, err := sb.Command(t.Context(), "sh", "-c", `cat /proc/[0-9]*/cmdline | tr '\0' ' ' | grep -c 'sleep [7]777'`).Output()
		return harness.ExitCode(err) == 1 && strings.TrimSpace(string(out)) == "0"
	})
	ctx, cancel := context.WithCancel(t.Context())
	_, _, _, err = read(ctx, "echo waits; exec sleep 1000", func(s string) bool { cancel(); return false })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("a call that is cancelled: %v", err)
	}
	_, _, _, err = read(t.Context(), "echo waits; exec sleep 1000", func(s string) bool {
		if err := sb.Close(); err != nil {
			t.Error(err)
		}
		return false
	})
	if !errors.Is(err, sandbox.ErrSessionLost) && !errors.Is(err, sandbox.ErrClosed) {
		t.Errorf("a command whose session ends: %v", err)
	}
}
