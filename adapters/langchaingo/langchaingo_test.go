package langchaingo_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/tmc/langchaingo/agents"
	"github.com/tmc/langchaingo/chains"
	"github.com/tmc/langchaingo/llms"
	"github.com/tmc/langchaingo/llms/fake"
	"github.com/tmc/langchaingo/schema"
	"github.com/tmc/langchaingo/tools"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/adapters/langchaingo"
	"github.com/seed-1a2d6d8f/sandbox/sandboxtools"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }

var options = sandboxtools.Options{Output: harness.ToolOutput, CommandTime: harness.CallBound}

// model is a model that calls functions, and says what the harness tells it to.
type model struct {
	*harness.Model
	requests int
}

func (m *model) Call(ctx context.Context, prompt string, o ...llms.CallOption) (string, error) {
	return "", errors.New("this model has messages alone")
}

func (m *model) GenerateContent(ctx context.Context, messages []llms.MessageContent, o ...llms.CallOption) (*llms.ContentResponse, error) {
	var last *harness.ToolAnswer
	message := messages[len(messages)-1]
	if r, ok := message.Parts[len(message.Parts)-1].(llms.ToolCallResponse); ok {
		text, failed := strings.CutPrefix(r.Content, langchaingo.ErrorPrefix)
		last = &harness.ToolAnswer{Text: text, Error: failed}
	}
	call, more := m.Next(ctx, last)
	choice := &llms.ContentChoice{Content: "done"}
	if more {
		args := string(call.Args)
		if m.requests++; m.requests%2 == 0 { // as the schema says that the agent gives to models
			wrapped, err := json.Marshal(map[string]string{"__arg1": args})
			if err != nil {
				return nil, err
			}
			args = string(wrapped)
		}
		choice.ToolCalls = []llms.ToolCall{{ID: fmt.Sprint(m.requests), Type: "function", FunctionCall: &llms.FunctionCall{Name: call.Tool, Arguments: args}}}
	} else if err := ctx.Err(); err != nil {
		return nil, err
	}
	return &llms.ContentResponse{Choices: []*llms.ContentChoice{choice}}, nil
}

func TestConversationOfAnAgent(t *testing.T) {
	t.Parallel()
	sb := harness.NewSandbox(t)
	m := &model{}
	executor := agents.NewExecutor(agents.NewOpenAIFunctionsAgent(m, langchaingo.New(sb, options)), agents.WithMaxIterations(100))
	m.Model = harness.NewModel(func(ctx context.Context) error {
		_, err := chains.Run(ctx, executor, "work")
		return err
	})
	harness.Converse(t, sb, harness.Conversation(), m.Model.Call)
	m.End(t)
}

func TestAgentThatWritesText(t *testing.T) {
	t.Parallel()
	sb := harness.NewSandbox(t)
	llm := fake.NewFakeLLM([]string{
		"Thought: look\nAction: bash\nAction Input: { echo 'a \"b\"'; cd /tmp; }",
		"Action: bash\nAction Input: {\"command\": \"pwd >where; exit 3\"}",
		"Action: read\nAction Input: where",
		"Action: read\nAction Input: {\"path\": \"/tmp/where\"}",
		"Action: bash\nAction Input: true",
		"Final Answer: done",
	})
	agent := agents.NewOneShotAgent(llm, langchaingo.New(sb, options))
	executor := agents.NewExecutor(agent, agents.WithMaxIterations(10), agents.WithReturnIntermediateSteps())
	out, err := chains.Call(t.Context(), executor, map[string]any{"input": "work"})
	if err != nil {
		t.Fatal(err)
	}
	steps, _ := out["intermediateSteps"].([]schema.AgentStep)
	want := []string{"a \"b\"\n[exit code 0]", "[exit code 3]", langchaingo.ErrorPrefix + "the arguments of the tool read: ", "/tmp\n", "[exit code 0]"}
	if len(steps) != len(want) {
		t.Fatalf("steps: %q, want %q", steps, want)
	}
	for i, s := range steps {
		if !strings.HasPrefix(s.Observation, want[i]) {
			t.Errorf("observation %d: %q, want %q", i, s.Observation, want[i])
		}
	}
}

func TestDescriptionsHaveTheSchema(t *testing.T) {
	t.Parallel()
	all := langchaingo.New(nil, sandboxtools.Options{})
	for i, tool := range sandboxtools.New(nil, sandboxtools.Options{}) {
		got := all[i]
		if got.Name() != tool.Name || !strings.Contains(got.Description(), tool.Description) || !strings.HasSuffix(got.Description(), ": "+string(tool.Schema)) {
			t.Errorf("%s: %s", got.Name(), got.Description())
		}
		if text := strings.Contains(got.Description(), "plain text"); text != (tool.Name == "bash") {
			t.Errorf("%s takes plain text: %t", tool.Name, text)
		}
	}
}

func TestLostSandboxEndsTheRun(t *testing.T) {
	t.Parallel()
	sb := harness.NewSandbox(t)
	all := langchaingo.New(sb, options)
	if err := sb.Close(); err != nil {
		t.Fatal(err)
	}
	llm := fake.NewFakeLLM([]string{"Action: bash\nAction Input: true"})
	_, err := chains.Run(t.Context(), agents.NewExecutor(agents.NewOneShotAgent(llm, all)), "work")
	if !errors.Is(err, sandbox.ErrClosed) && !errors.Is(err, sandbox.ErrSessionLost) {
		t.Errorf("a run whose sandbox is gone: %v", err)
	}
}

var _ []tools.Tool = langchaingo.New(nil, sandboxtools.Options{})
