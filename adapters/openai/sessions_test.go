package openai_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/openai/openai-go/v3"

	"github.com/seed-1a2d6d8f/sandbox"
	sandboxopenai "github.com/seed-1a2d6d8f/sandbox/adapters/openai"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// sessions is the vendor's service of agents' sessions, with a model.
type sessions struct {
	t       *testing.T
	model   *harness.Model
	answers chan harness.ToolAnswer
	events  atomic.Int64
}

func (s *sessions) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.Method == http.MethodPost:
		s.input(w, r)
	case strings.HasSuffix(r.URL.Path, "/events"):
		s.stream(w, r)
	default:
		writeJSON(w, object{"id": "session", "status": "idle"})
	}
}

// stream sends one turn: the calls of the model, and the end after the last one.
func (s *sessions) stream(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	id := func() string { return fmt.Sprintf("e_%d", s.events.Add(1)) }
	turn := id()
	send := func(kind string, event object) {
		event["type"], event["event_id"], event["turn_id"] = "agent.session."+kind, id(), turn
		body, _ := json.Marshal(event)
		fmt.Fprintf(w, "data: %s\n\n", body)
		w.(http.Flusher).Flush()
	}
	send("turn.created", object{"turn": object{"id": turn, "subagent_id": nil}})
	var answer *harness.ToolAnswer
	for {
		call, more := s.model.Next(r.Context(), answer)
		if !more {
			break
		}
		item := id()
		send("turn.item.added", object{"item": object{
			"id": item, "type": "function_call", "turn_id": turn, "call_id": "call_" + item, "name": call.Tool, "arguments": call.Args, "status": "in_progress",
		}})
		select {
		case a := <-s.answers:
			answer = &a
		case <-r.Context().Done():
			return
		}
	}
	send("turn.completed", object{})
	send("idle", object{"session": object{"status": "idle"}})
}

// input takes a message, or the result of a call.
func (s *sessions) input(w http.ResponseWriter, r *http.Request) {
	var req openai.BetaAgentSessionEventNewParams
	if err := json.NewDecoder(r.Body).Decode(&req); err != nil || len(req.Events) != 1 {
		s.t.Errorf("%d events, %v", len(req.Events), err)
	} else if result := req.Events[0].OfParamAgentSessionInputToolResult; result != nil {
		text, failed := strings.CutPrefix(result.Output.OfString.Value, "Error: ")
		if !result.Success {
			s.t.Errorf("the result of a call: %+v", result)
		}
		s.answers <- harness.ToolAnswer{Text: text, Error: failed}
	}
	w.WriteHeader(http.StatusNoContent)
}

// session returns a model whose runs are turns of a session.
func session(t *testing.T, sb *sandbox.Sandbox) *harness.Model {
	s := &sessions{t: t, answers: make(chan harness.ToolAnswer, 1)}
	c := client(t, s.ServeHTTP)
	tools := sandboxopenai.New(sb, limits)
	s.model = harness.NewModel(func(ctx context.Context) error {
		ctx, handlers, stop := tools.Handlers(ctx)
		defer stop()
		stream := c.Beta.Agents.Sessions.Stream(ctx, "session", openai.AgentSessionStreamParams{Input: "Begin.", ToolHandlers: handlers})
		defer stream.Close()
		for stream.Next() {
		}
		if failure := context.Cause(ctx); failure != nil {
			return failure
		}
		return stream.Err()
	})
	return s.model
}

func TestASessionHasAConversation(t *testing.T) {
	t.Parallel()
	sb := harness.NewSandbox(t)
	model := session(t, sb)
	harness.Converse(t, sb, harness.Conversation(), model.Call)
	model.End(t)
	sb = harness.NewSandbox(t)
	model = session(t, sb)
	harness.Converse(t, sb, harness.Conversation()[:1], model.Call)
	model.End(t) // by the model
}
