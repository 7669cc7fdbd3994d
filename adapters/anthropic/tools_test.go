package anthropic_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/anthropics/anthropic-sdk-go"
	"github.com/anthropics/anthropic-sdk-go/option"
	"github.com/google/go-cmp/cmp"

	"github.com/seed-1a2d6d8f/sandbox"
	sandboxanthropic "github.com/seed-1a2d6d8f/sandbox/adapters/anthropic"
	"github.com/seed-1a2d6d8f/sandbox/sandboxtools"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

var limits = sandboxtools.Options{Output: harness.ToolOutput, CommandTime: harness.CallBound}

// object is JSON that a server writes.
type object = map[string]any

func writeJSON(w http.ResponseWriter, body any) {
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(body)
}

// client is the vendor's client of a server that is a handler.
func client(t *testing.T, h http.Handler) anthropic.Client {
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	return anthropic.NewClient(option.WithBaseURL(srv.URL), option.WithAPIKey("key"), option.WithMaxRetries(0), option.WithHTTPClient(srv.Client()))
}

// messages is the vendor's Messages API with a model.
func messages(t *testing.T, model *harness.Model) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var req anthropic.BetaMessageNewParams
		if err := json.NewDecoder(r.Body).Decode(&req); err != nil || len(req.Messages) == 0 || len(req.Tools) != 7 {
			t.Errorf("%s: a request with %d messages and %d tools, %v", r.URL, len(req.Messages), len(req.Tools), err)
		}
		var answer *harness.ToolAnswer
		last := req.Messages[len(req.Messages)-1].Content[0]
		if result := last.OfToolResult; result != nil {
			answer = &harness.ToolAnswer{Text: result.Content[0].OfText.Text, Error: result.IsError.Value}
		}
		content, reason := object{"type": "text", "text": "Done."}, "end_turn"
		if call, more := model.Next(r.Context(), answer); more {
			block, err := json.Marshal(anthropic.BetaToolUseBlockParam{ID: fmt.Sprintf("toolu_%d", len(req.Messages)), Name: call.Tool, Input: call.Args})
			if err = errors.Join(err, json.Unmarshal(block, &content)); err != nil {
				t.Error(err)
			}
			reason = "tool_use"
		}
		writeJSON(w, object{
			"id": "msg", "type": "message", "role": "assistant", "model": req.Model, "content": []any{content},
			"stop_reason": reason, "usage": object{"input_tokens": 1, "output_tokens": 1},
		})
	})
}

// run returns a model whose runs are those of a tool runner.
func run(t *testing.T, sb *sandbox.Sandbox) *harness.Model {
	var c anthropic.Client
	model := harness.NewModel(func(ctx context.Context) error {
		ctx, tools, stop := sandboxanthropic.Tools(ctx, sb, limits)
		defer stop()
		message, err := c.Beta.Messages.NewToolRunner(tools, anthropic.BetaToolRunnerParams{BetaMessageNewParams: anthropic.BetaMessageNewParams{
			Model: "a-model", MaxTokens: 100, Messages: []anthropic.BetaMessageParam{anthropic.NewBetaUserMessage(anthropic.NewBetaTextBlock("Begin."))},
		}}).RunToCompletion(ctx)
		if failure := context.Cause(ctx); failure != nil {
			return failure
		}
		if err == nil && message.StopReason != anthropic.BetaStopReasonEndTurn {
			err = fmt.Errorf("the last message: %s", message.RawJSON())
		}
		return err
	})
	c = client(t, messages(t, model))
	return model
}

func TestARunnerHasAConversation(t *testing.T) {
	t.Parallel()
	sb := harness.NewSandbox(t)
	steps := harness.Conversation()
	for i := range steps {
		if steps[i].Error { // as the runner has it
			steps[i].Want = append(steps[i].Want, "Error: ")
		}
	}
	model := run(t, sb)
	harness.Converse(t, sb, steps, model.Call)
	model.End(t)
	model = run(t, harness.NewSandbox(t))
	harness.Converse(t, sb, steps[:1], model.Call)
	model.End(t) // by the model
}

func TestDefinitionsAreThoseOfTheTools(t *testing.T) {
	t.Parallel()
	_, tools, stop := sandboxanthropic.Tools(t.Context(), nil, limits)
	defer stop()
	sessions := sandboxanthropic.Sessions{Options: limits}
	for _, tools := range [][]anthropic.BetaTool{tools, sessions.Tools(nil)} {
		for i, want := range sandboxtools.New(nil, limits) {
			schema, err := json.Marshal(tools[i].InputSchema())
			var got, wanted object
			if err := errors.Join(err, json.Unmarshal(schema, &got), json.Unmarshal(want.Schema, &wanted)); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(wanted, got); diff != "" || tools[i].Name() != want.Name || tools[i].Description() != want.Description {
				t.Errorf("%s is %s, %q: %s", want.Name, tools[i].Name(), tools[i].Description(), diff)
			}
		}
	}
}
