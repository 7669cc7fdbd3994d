package anthropic_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/anthropics/anthropic-sdk-go"
	"github.com/anthropics/anthropic-sdk-go/lib/environments"
	"github.com/anthropics/anthropic-sdk-go/tools/agenttoolset"

	"github.com/seed-1a2d6d8f/sandbox"
	sandboxanthropic "github.com/seed-1a2d6d8f/sandbox/adapters/anthropic"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// environment is the vendor's service of self-hosted environments with one session at a time, in which
// a model calls the tools of agent_toolset_20260401, and fetch.
type environment struct {
	t       *testing.T
	model   *harness.Model
	answers chan harness.ToolAnswer
	calls   atomic.Int64
}

func (e *environment) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if got := r.Header.Get("Authorization"); got != "Bearer env_key" {
		e.t.Errorf("%s: the credential %q", r.URL, got)
	}
	switch {
	case strings.HasSuffix(r.URL.Path, "/heartbeat"):
		writeJSON(w, object{"last_heartbeat": "2026-05-11T12:00:00Z", "lease_extended": true, "state": "active", "ttl_seconds": 30, "type": "work_heartbeat"})
	case strings.HasSuffix(r.URL.Path, "/stop"):
		w.WriteHeader(http.StatusNoContent)
	case strings.HasSuffix(r.URL.Path, "/events/stream"):
		e.stream(w, r)
	case strings.HasSuffix(r.URL.Path, "/events") && r.Method == http.MethodPost:
		e.result(r)
		writeJSON(w, object{"type": "send_session_events"})
	case strings.HasSuffix(r.URL.Path, "/events"):
		writeJSON(w, object{"data": []any{}, "has_more": false})
	default:
		writeJSON(w, object{"id": "sesn_1", "agent": object{"skills": []any{}}})
	}
}

// stream sends the calls of the model, and the end of the session after the last one.
func (e *environment) stream(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	send := func(kind string, event object) {
		event["type"], event["id"], event["processed_at"] = kind, fmt.Sprintf("evt_%d", e.calls.Add(1)), "2026-05-11T12:00:00Z"
		body, _ := json.Marshal(event)
		fmt.Fprintf(w, "event: %s\ndata: %s\n\n", kind, body)
		w.(http.Flusher).Flush()
	}
	select {
	case <-e.answers: // the worker posts also the result of a call that it cancelled
	default:
	}
	var answer *harness.ToolAnswer
	for {
		call, more := e.model.Next(r.Context(), answer)
		if !more {
			send("session.status_terminated", object{})
			return
		}
		kind := "agent.tool_use"
		if call.Tool == "fetch" {
			kind = "agent.custom_tool_use"
		}
		send(kind, object{"name": call.Tool, "input": vendorInput(e.t, call)})
		select {
		case a := <-e.answers:
			answer = &a
		case <-r.Context().Done():
			return
		}
	}
}

// vendorInput is the input of agent_toolset_20260401 for a call.
func vendorInput(t *testing.T, call harness.ToolCall) any {
	var args object
	if err := json.Unmarshal(call.Args, &args); err != nil {
		t.Fatal(err)
	}
	if args["file_path"] != nil {
		return args // it is one already
	}
	var in any
	text := func(name string) string { s, _ := args[name].(string); return s }
	switch call.Tool {
	case "read":
		read := anthropic.BetaManagedAgentsAgentToolset20260401ReadInput{FilePath: text("path")}
		if line, is := args["line"].(float64); is {
			read.ViewRange = []int64{int64(line), int64(line + args["lines"].(float64) - 1)}
		}
		in = object{"file_path": read.FilePath, "view_range": read.ViewRange}
	case "write":
		in = object{"file_path": text("path"), "content": text("content")}
	case "edit":
		in = object{"file_path": text("path"), "old_string": text("old"), "new_string": text("new"), "replace_all": false}
	case "bash":
		if limit, is := args["timeoutMs"]; is {
			delete(args, "timeoutMs")
			args["timeout_ms"] = limit
		}
		in = args
	default:
		in = args
	}
	return in
}

// result takes the result of a tool from a request.
func (e *environment) result(r *http.Request) {
	var req anthropic.BetaSessionEventSendParams
	if err := json.NewDecoder(r.Body).Decode(&req); err != nil || len(req.Events) != 1 {
		e.t.Errorf("%d events, %v", len(req.Events), err)
		return
	}
	var a harness.ToolAnswer
	switch event := req.Events[0]; {
	case event.OfUserToolResult != nil:
		a = harness.ToolAnswer{Text: event.OfUserToolResult.Content[0].OfText.Text, Error: event.OfUserToolResult.IsError.Value}
	case event.OfUserCustomToolResult != nil:
		a = harness.ToolAnswer{Text: event.OfUserCustomToolResult.Content[0].OfText.Text, Error: event.OfUserCustomToolResult.IsError.Value}
	default:
		e.t.Error("no result of a tool")
	}
	select {
	case e.answers <- a:
	case <-r.Context().Done():
	}
}

// serve returns a model whose runs are sessions of a worker, which is given the tools.
func serve(t *testing.T, sessions *sandboxanthropic.Sessions) *harness.Model {
	e := &environment{t: t, answers: make(chan harness.ToolAnswer, 1)}
	worker := environments.NewEnvironmentWorker(client(t, e), environments.EnvironmentWorkerOptions{
		EnvironmentID: "env_1", EnvironmentKey: "env_key", Workdir: t.TempDir(), ToolsFunc: sessions.Tools, Logger: slog.New(slog.DiscardHandler),
	})
	e.model = harness.NewModel(func(ctx context.Context) error {
		err := worker.HandleItem(ctx, environments.HandleItemOptions{WorkID: "work_1", EnvironmentID: "env_1", SessionID: "sesn_1"})
		return errors.Join(err, context.Cause(ctx))
	})
	return e.model
}

func TestAWorkerHasAConversation(t *testing.T) {
	t.Parallel()
	sb := harness.NewSandbox(t)
	failures := make(chan error, 10)
	model := serve(t, &sandboxanthropic.Sessions{
		Options: limits,
		Create: func(context.Context, *agenttoolset.AgentToolContext) (*sandbox.Sandbox, error) {
			return sb, nil
		},
		Failed: func(err error) { failures <- err },
	})
	// The end of a session removes the sandbox: a call that is cancelled has a test of its own.
	steps := slices.DeleteFunc(harness.Conversation(), func(s harness.Step) bool { return s.Cancelled })
	read := func(lines, want string, failed bool) harness.Step {
		return harness.Step{Tool: "read", Args: `{"file_path": "src/a.txt", "view_range": ` + lines + `}`, Want: []string{want}, Error: failed}
	}
	steps = slices.Insert(steps, 4, read("[2, -1]", "two\ntwo\n", false), read("[0, 2]", "\">\ntwo\n\n[the file goes on]", false),
		read("null", "two\ntwo\n", false), read("[1]", `unknown field "view_range"`, true))
	harness.Converse(t, sb, steps, func(ctx context.Context, call harness.ToolCall) (harness.ToolAnswer, error) {
		a, err := model.Call(ctx, call)
		select {
		case failure := <-failures:
			if !a.Error || strings.Contains(a.Text, "sandbox:") || strings.Contains(a.Text, "killed") {
				t.Errorf("the model gets %+v", a)
			}
			return a, failure
		default:
			return a, err
		}
	})
	model.End(t)
	if _, err := harness.NewClient(t).Inspect(t.Context(), sb.Name()); !errors.Is(err, sandbox.ErrNotFound) {
		t.Errorf("after the session: %v, want ErrNotFound", err)
	}
	if len(failures) > 0 {
		t.Errorf("a failure too many: %v", <-failures)
	}
}

func TestEachSessionHasASandboxOfThePool(t *testing.T) {
	t.Parallel()
	c := harness.NewClient(t)
	pool, err := c.NewPool(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := pool.Close(); err != nil {
			t.Error(err)
		}
	})
	var names []string
	var last atomic.Pointer[sandbox.Sandbox]
	model := serve(t, &sandboxanthropic.Sessions{
		Options: limits,
		Create: func(ctx context.Context, env *agenttoolset.AgentToolContext) (*sandbox.Sandbox, error) {
			if len(names) == 2 {
				return nil, errors.New("there are two")
			}
			sb, err := pool.Create(ctx)
			if err == nil {
				names = append(names, sb.Name())
				last.Store(sb)
			}
			return sb, err
		},
		Failed: func(err error) {
			if err.Error() != "there are two" {
				t.Error(err)
			}
		},
	})
	bash := func(ctx context.Context, command string) (harness.ToolAnswer, error) {
		args, _ := json.Marshal(object{"command": command})
		return model.Call(ctx, harness.ToolCall{Tool: "bash", Args: args})
	}
	a, err := bash(t.Context(), "echo >kept; env; cat /proc/*/environ")
	if err != nil || a.Error || strings.Contains(a.Text, "env_key") || strings.Contains(a.Text, "ANTHROPIC") || !strings.Contains(a.Text, "PATH=") {
		t.Errorf("the environment: %+v, %v", a, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		harness.WaitForFile(t, last.Load(), "/tmp/runs")
		cancel()
	}()
	if _, err := bash(ctx, "touch /tmp/runs; sleep 7777"); !errors.Is(err, context.Canceled) {
		t.Errorf("a session that is cancelled: %v", err)
	}
	if a, err := bash(t.Context(), "ls kept"); err != nil || !strings.Contains(a.Text, "[exit code 2]") {
		t.Errorf("in another session: %+v, %v", a, err)
	}
	model.End(t)
	for _, name := range names {
		if _, err := harness.NewClient(t).Inspect(t.Context(), name); !errors.Is(err, sandbox.ErrNotFound) {
			t.Errorf("the sandbox of a session that is over: %v, want ErrNotFound", err)
		}
	}
	if len(names) != 2 {
		t.Errorf("%d sandboxes in two sessions", len(names))
	}
}

// A session without a sandbox, and one whose tools are not called.
func TestASandboxThatCannotBeCreated(t *testing.T) {
	t.Parallel()
	why := errors.New("no room")
	var created int
	var failures []error
	sessions := sandboxanthropic.Sessions{
		Create: func(context.Context, *agenttoolset.AgentToolContext) (*sandbox.Sandbox, error) {
			created++
			return nil, why
		},
		Failed: func(err error) { failures = append(failures, err) },
	}
	tools := sessions.Tools(nil)
	if agenttoolset.CloseAll(tools); created > 0 || len(failures) > 0 {
		t.Errorf("a session without a call: %d sandboxes, %v", created, failures)
	}
	if _, err := tools[0].Execute(t.Context(), json.RawMessage(`{"command": "true"}`)); err == nil || len(failures) != 1 || !errors.Is(failures[0], sandbox.ErrClosed) {
		t.Errorf("a call after the session: %v, %v", err, failures)
	}
	_, err := sessions.Tools(nil)[0].Execute(t.Context(), json.RawMessage(`{"command": "true"}`))
	if err == nil || errors.Is(err, why) || len(failures) != 2 || !errors.Is(failures[1], why) || created != 1 {
		t.Errorf("a call without a sandbox: %v, %v", err, failures)
	}
}
