package fantasy_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"charm.land/fantasy"
	"charm.land/fantasy/providers/openaicompat"
	"github.com/google/go-cmp/cmp"

	"github.com/seed-1a2d6d8f/sandbox"
	sandboxfantasy "github.com/seed-1a2d6d8f/sandbox/adapters/fantasy"
	"github.com/seed-1a2d6d8f/sandbox/sandboxtools"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }

var limits = sandboxtools.Options{Output: harness.ToolOutput, CommandTime: harness.CallBound}

type object = map[string]any

// agent returns a model behind the Chat Completions API, whose runs are those of an agent.
func agent(t *testing.T, sb *sandbox.Sandbox) *harness.Model {
	var model *harness.Model
	var failed bool // the last result; its text has no mark of it
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var req struct {
			Messages []struct{ Role, Content string }
			Tools    []object
		}
		if err := json.NewDecoder(r.Body).Decode(&req); err != nil || len(req.Tools) != 7 {
			t.Errorf("%s: a request with %d tools, %v", r.URL, len(req.Tools), err)
		}
		var answer *harness.ToolAnswer
		if last := req.Messages[len(req.Messages)-1]; last.Role == "tool" {
			answer = &harness.ToolAnswer{Text: last.Content, Error: failed}
		}
		message, reason := object{"role": "assistant", "content": "Done."}, "stop"
		if call, more := model.Next(r.Context(), answer); more {
			message = object{"role": "assistant", "tool_calls": []any{object{
				"id": fmt.Sprintf("call_%d", len(req.Messages)), "type": "function", "function": object{"name": call.Tool, "arguments": string(call.Args)},
			}}}
			reason = "tool_calls"
		}
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(object{
			"id": "c", "object": "chat.completion", "model": "a-model", "choices": []any{object{"index": 0, "message": message, "finish_reason": reason}},
			"usage": object{"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
		})
	}))
	t.Cleanup(srv.Close)
	provider, err := openaicompat.New(openaicompat.WithBaseURL(srv.URL), openaicompat.WithAPIKey("key"), openaicompat.WithHTTPClient(srv.Client()))
	if err != nil {
		t.Fatal(err)
	}
	language, err := provider.LanguageModel(t.Context(), "a-model")
	if err != nil {
		t.Fatal(err)
	}
	prepare := func(ctx context.Context, o fantasy.PrepareStepFunctionOptions) (context.Context, fantasy.PrepareStepResult, error) {
		if len(o.Steps) > 0 {
			_, failed = fantasy.AsToolResultOutputType[fantasy.ToolResultOutputContentError](o.Steps[len(o.Steps)-1].Content.ToolResults()[0].Result)
		}
		return ctx, fantasy.PrepareStepResult{Messages: o.Messages}, nil
	}
	model = harness.NewModel(func(ctx context.Context) error {
		ctx, tools, stop := sandboxfantasy.Tools(ctx, sb, limits)
		defer stop()
		a := fantasy.NewAgent(language, fantasy.WithTools(tools...), fantasy.WithPrepareStep(prepare))
		result, err := a.Generate(ctx, fantasy.AgentCall{Prompt: "Begin."})
		if failure := context.Cause(ctx); failure != nil {
			return failure
		}
		if err == nil && result.Response.Content.Text() != "Done." {
			err = fmt.Errorf("the last message: %v", result.Response.Content)
		}
		return err
	})
	return model
}

func TestAnAgentHasAConversation(t *testing.T) {
	t.Parallel()
	sb := harness.NewSandbox(t)
	model := agent(t, sb)
	harness.Converse(t, sb, harness.Conversation(), model.Call)
	model.End(t)
	model = agent(t, harness.NewSandbox(t))
	harness.Converse(t, sb, harness.Conversation()[:1], model.Call)
	model.End(t) // by the model
}

func TestInfoIsThatOfTheTools(t *testing.T) {
	t.Parallel()
	_, tools, stop := sandboxfantasy.Tools(t.Context(), nil, limits)
	defer stop()
	for i, want := range sandboxtools.New(nil, limits) {
		info := tools[i].Info()
		var schema object
		if err := json.Unmarshal(want.Schema, &schema); err != nil {
			t.Fatal(err)
		}
		var required []any
		for _, name := range info.Required {
			required = append(required, name)
		}
		got := object{"type": "object", "properties": info.Parameters, "required": required, "additionalProperties": false}
		if diff := cmp.Diff(schema, got); diff != "" || info.Name != want.Name || info.Description != want.Description || info.Parallel != want.ReadOnly {
			t.Errorf("%s: %+v: %s", want.Name, info, diff)
		}
		info.Parameters["more"] = true
		if tools[i].Info().Parameters["more"] != nil {
			t.Errorf("%s: callers share the schema", want.Name)
		}
		options := fantasy.ProviderOptions{}
		tools[i].SetProviderOptions(options)
		if tools[i].ProviderOptions() == nil {
			t.Errorf("%s has lost its provider's options", want.Name)
		}
	}
}
