package openai_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/responses"

	"github.com/seed-1a2d6d8f/sandbox"
	sandboxopenai "github.com/seed-1a2d6d8f/sandbox/adapters/openai"
	"github.com/seed-1a2d6d8f/sandbox/sandboxtools"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// respond is the vendor's Responses API with a model. A call of the tool "shell" has an action as its
// arguments, and the items of the output, in JSON, as its answer.
func respond(t *testing.T, model *harness.Model) http.HandlerFunc {
	n := 0
	return func(w http.ResponseWriter, r *http.Request) {
		var req responses.ResponseNewParams
		if err := json.NewDecoder(r.Body).Decode(&req); err != nil || len(req.Tools) != 8 {
			t.Errorf("%s: a request with %d tools, %v", r.URL, len(req.Tools), err)
		}
		call, more := model.Next(r.Context(), answerOf(t, req))
		n++
		item := object{"id": "item", "type": "message", "role": "assistant", "status": "completed", "content": []any{object{"type": "output_text", "text": "Done."}}}
		switch id := fmt.Sprintf("call_%d", n); {
		case !more:
		case call.Tool == "shell":
			item = object{"id": "item", "type": "shell_call", "call_id": id, "status": "completed", "action": call.Args, "environment": object{"type": "local"}}
		default:
			item = object{"id": "item", "type": "function_call", "call_id": id, "status": "completed", "name": call.Tool, "arguments": string(call.Args)}
		}
		reasoning := object{"id": "rs", "type": "reasoning", "summary": []any{}}
		writeJSON(w, object{"id": fmt.Sprintf("resp_%d", n), "object": "response", "status": "completed", "model": "a-model", "output": []any{reasoning, item}})
	}
}

// answerOf is the output of the last call in a request.
func answerOf(t *testing.T, req responses.ResponseNewParams) *harness.ToolAnswer {
	items := req.Input.OfInputItemList
	if len(items) == 0 {
		return nil
	}
	stateless := !req.Store.Value && req.Store.Valid()
	if chained := req.PreviousResponseID.Valid(); chained == stateless || chained && len(items) != 1 {
		t.Errorf("a request with %d items after the response %q", len(items), req.PreviousResponseID.Value)
	}
	if stateless && (items[0].OfMessage == nil || len(items)%3 != 1 || items[len(items)-3].OfReasoning == nil) {
		t.Errorf("the input of %d items does not repeat all", len(items))
	}
	switch last := items[len(items)-1]; {
	case last.OfFunctionCallOutput != nil:
		text, failed := strings.CutPrefix(last.OfFunctionCallOutput.Output.OfString.Value, "Error: ")
		return &harness.ToolAnswer{Text: text, Error: failed}
	case last.OfShellCallOutput != nil:
		var text strings.Builder
		size := 0
		for _, o := range last.OfShellCallOutput.Output {
			one, err := json.Marshal(o)
			if err != nil {
				t.Error(err)
			}
			text.Write(one)
			size = max(size, len(o.Stdout)+len(o.Stderr))
		}
		if limit := last.OfShellCallOutput.MaxOutputLength; limit.Valid() && (size > int(limit.Value) || size < int(limit.Value)*9/10) {
			t.Errorf("an output of %d bytes, want the last of %d", size, limit.Value)
		}
		return &harness.ToolAnswer{Text: text.String()}
	}
	body, _ := json.Marshal(req.Input)
	t.Errorf("the last item is no output: %s", body)
	return nil
}

// run returns a model whose runs are those of Respond.
func run(t *testing.T, sb *sandbox.Sandbox, params responses.ResponseNewParams) *harness.Model {
	tools := sandboxopenai.New(sb, limits)
	params.Model, params.Tools = "a-model", append(tools.Functions(), sandboxopenai.Shell())
	params.Input.OfString = openai.String("Begin.")
	var c *openai.Client
	model := harness.NewModel(func(ctx context.Context) error {
		response, err := tools.Respond(ctx, &c.Responses, params)
		if err == nil && response.OutputText() != "Done." {
			err = fmt.Errorf("the last response: %s", response.RawJSON())
		}
		return err
	})
	c = client(t, respond(t, model))
	return model
}

func TestFunctionsInAConversation(t *testing.T) {
	t.Parallel()
	sb := harness.NewSandbox(t)
	steps := harness.Conversation()
	steps = slices.Insert(steps, 3, harness.Step{Tool: "none", Args: `{}`, Want: []string{"no function"}, Error: true})
	model := run(t, sb, responses.ResponseNewParams{})
	harness.Converse(t, sb, steps, model.Call)
	model.End(t)
	sb = harness.NewSandbox(t)
	model = run(t, sb, responses.ResponseNewParams{Store: openai.Bool(false)})
	harness.Converse(t, sb, steps[:5], model.Call)
	model.End(t) // by the model
}

func TestTheShellInAConversation(t *testing.T) {
	t.Parallel()
	sb := harness.NewSandbox(t)
	model := run(t, sb, responses.ResponseNewParams{})
	shell := func(args string, want ...string) harness.Step {
		return harness.Step{Tool: "shell", Args: args, Want: want}
	}
	cancelled, killed, dead := shell(`{"commands": ["touch /tmp/reached; exec sleep 7777"]}`), shell(`{"commands": ["true", "touch /tmp/reached; sleep 8888"]}`), shell(`{"commands": ["true"]}`)
	cancelled.Cancelled, killed.Killed, killed.Lost, dead.Lost = true, true, true, true
	// One limit is for a command that never ends and for one that does, which takes its time on a slow machine.
	const limited = `{"outcome":{"type":"timeout"},"stderr":"","stdout":"begun\n"}{"outcome":{"exit_code":0,"type":"exit"},"stderr":"","stdout":"next\n"}`
	harness.Patiently(t, 500*time.Millisecond, func(limit time.Duration) error {
		args := fmt.Sprintf(`{"commands": ["echo begun; sleep 1000", "echo next"], "timeout_ms": %d}`, limit.Milliseconds())
		got, err := model.Call(t.Context(), harness.ToolCall{Tool: "shell", Args: json.RawMessage(args)})
		if err != nil {
			t.Fatalf("shell %s: %v", args, err)
		}
		if got.Text != limited {
			return fmt.Errorf("shell %s: %q, want %q", args, got.Text, limited)
		}
		return nil
	})
	harness.Converse(t, sb, []harness.Step{
		shell(`{"commands": ["pwd; echo err >&2; exit 3", "echo ${BASH_VERSION:0:1} two; cd /; export A=1", "pwd; echo $A"]}`,
			`{"outcome":{"exit_code":3,"type":"exit"},"stderr":"err\n","stdout":"/workspace\n"}{"outcome":{"exit_code":0,"type":"exit"},"stderr":"","stdout":"5 two\n"}{"outcome":{"exit_code":0,"type":"exit"},"stderr":"","stdout":"/workspace\n\n"}`),
		shell(`{"commands": ["pgrep -f one-server || pkill -f one-server; echo $# after ${SANDBOX_SHELL_COMMAND-}"]}`, `"stdout":"0 after\n"`),
		shell(`{"commands": ["echo first; yes | head -c 3000000; echo last"], "max_output_length": 500}`, `"stdout":"first\ny\n`, `\n[...]\n`, `last\n"}`),
		shell(`{"commands": ["echo first; yes | head -c 3000000; yes e | head -c 3000000 >&2; echo over >&2"], "max_output_length": 500}`, `"stdout":"first\ny\n`, `over\n","stdout"`),
		shell(`{"commands": ["echo first; yes | head -c 3000000; echo last"]}`, `"stdout":"first\ny\n`, `last\n"}`),
		shell(`{"commands": ["`+strings.Repeat("x", 200<<10)+`"]}`, `{"exit_code":126`, `write it to a file`),
		shell(`{"commands": ["`+strings.Repeat(`true","`, 100)+`echo not"]}`, `at most 100 commands`),
		cancelled, killed, dead,
	}, model.Call)
	model.End(t)
	sb = harness.NewSandbox(t)
	model = run(t, sb, responses.ResponseNewParams{Store: openai.Bool(false)})
	harness.Converse(t, sb, []harness.Step{shell(`{"commands": ["rm -r /workspace 2>/dev/null; pwd"]}`, "/workspace")}, model.Call)
	model.End(t)
}

// What is not for these tools is left to the program.
func TestCallsOfOthersAreNotAnswered(t *testing.T) {
	t.Parallel()
	tools := sandboxopenai.New(nil, limits)
	for text, ours := range map[string]bool{
		`{"type": "function_call", "name": "bash", "arguments": "{}", "call_id": "1"}`:                                                                  true,
		`{"type": "function_call", "name": "mine", "arguments": "{}", "call_id": "1"}`:                                                                  false,
		`{"type": "shell_call", "call_id": "1", "action": {"commands": []}, "environment": {"type": "local"}}`:                                          true,
		`{"type": "shell_call", "call_id": "1", "action": {"commands": ["true"]}, "environment": {"type": "container_reference", "container_id": "2"}}`: false,
		`{"type": "message", "content": []}`: false,
	} {
		var item responses.ResponseOutputItemUnion
		if err := json.Unmarshal([]byte(text), &item); err != nil {
			t.Fatal(err)
		}
		if _, got, err := tools.Call(t.Context(), item); got != ours || err != nil {
			t.Errorf("%s: %t, %v, want %t", text, got, err, ours)
		}
	}
}

func TestDefinitionsAreThoseOfTheTools(t *testing.T) {
	t.Parallel()
	tools := sandboxopenai.New(nil, limits)
	functions, ofAgents := tools.Functions(), tools.AgentFunctions()
	for i, want := range sandboxtools.New(nil, limits) {
		f, a := functions[i].OfFunction, ofAgents[i].OfParamFunction
		body, err := json.Marshal(f.Parameters)
		if _, strict := harness.CheckStrict(body); strict != nil || !f.Strict.Value {
			t.Errorf("%s: strict %t, %v", want.Name, f.Strict.Value, strict)
		}
		var schema object
		if err := errors.Join(err, json.Unmarshal(want.Schema, &schema)); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]object{schema, schema}, []object{f.Parameters, a.Parameters}); diff != "" || f.Name != want.Name || a.Name != want.Name ||
			f.Description.Value != want.Description || a.Description != want.Description {
			t.Errorf("%s: %+v, %+v: %s", want.Name, f, a, diff)
		}
	}
}
