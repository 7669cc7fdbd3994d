package harness

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/sandboxtools"
)

// ToolOutput is the Output that the tools of a [Conversation] are made with; their CommandTime is [CallBound].
const ToolOutput = 4096

// ToolCall is what a model asks for.
type ToolCall struct {
	Tool string
	Args json.RawMessage
}

// ToolAnswer is what a model gets.
type ToolAnswer struct {
	Text  string
	Error bool // the call went wrong, by the model's own fault
}

// A Caller makes one call of a tool through an adapter. An error is for the program: the model gets
// nothing, since the sandbox failed, or ctx ended.
type Caller func(ctx context.Context, call ToolCall) (ToolAnswer, error)

// Step is one call of a [Conversation].
type Step struct {
	Tool, Args string
	Want       []string // parts of the answer's text
	Error      bool     // the answer is an error
	Cancelled  bool     // the call's context is cancelled once /tmp/reached is there
	Killed     bool     // the session is killed once /tmp/reached is there
	Lost       bool     // the program gets sandbox.ErrSessionLost
}

// Conversation is 20 calls of the tools of package sandboxtools: each one at least once, errors, a
// command that takes too long, too much output, a call that is cancelled, and a session that is killed.
func Conversation() []Step {
	steps := []Step{
		{Tool: "bash", Args: `{"command": "pwd; mkdir src; cd src; export A=kept"}`, Want: []string{"/workspace\n[exit code 0]"}},
		{Tool: "write", Args: `{"path": "src/a.txt", "content": "one\ntwo\ntwo\n"}`, Want: []string{"Wrote 12 bytes to src/a.txt."}},
		{Tool: "read", Args: `{"path": "src/a.txt", "line": 2, "lines": 1}`, Want: []string{"two\n\n[the file goes on]"}},
		{Tool: "edit", Args: `{"path": "src/a.txt", "old": "one", "new": "\u003c1 \u0026 \"ä\"\u003e"}`, Want: []string{"Replaced 1 in src/a.txt."}},
		{Tool: "glob", Args: `{"pattern": "**/*.txt"}`, Want: []string{"src/a.txt"}},
		{Tool: "grep", Args: `{"pattern": "^<1", "path": "src"}`, Want: []string{`src/a.txt:1:<1 & "ä">`}},
		{Tool: "bash", Args: `{"command": "pwd; echo $A; wc -l <a.txt; exit 3"}`, Want: []string{"/workspace/src\nkept\n3\n[exit code 3]"}},
		{Tool: "read", Args: `{"path": "none"}`, Want: []string{"none", "no such file"}, Error: true},
		{Tool: "edit", Args: `{"path": "src/a.txt", "old": "two", "new": "2"}`, Want: []string{"occurs 2 times"}, Error: true},
		{Tool: "glob", Args: `{"pattern": "*", "where": "src"}`, Want: []string{`unknown field "where"`}, Error: true},
		{Tool: "bash", Args: `{"command": "A=lost; sleep 1000", "timeoutMs": 300}`, Want: []string{"[timed out"}},
		{Tool: "bash", Args: `{"command": "echo $A; yes | head -c 3000000; echo last"}`, Want: []string{"kept\ny\n", "last\n[exit code 0]", "bytes in the middle are left out"}},
		{Tool: "bash", Args: `{"command": "yes 0123456789 | head -n 1000 >long; cd; cd /workspace"}`, Want: []string{"[exit code 0]"}},
		{Tool: "read", Args: `{"path": "src/long"}`, Want: []string{"0123456789\n", "[the file goes on]"}},
		{Tool: "bash", Args: `{"command": "exec node -e 'require(\"http\").createServer((q, r) => r.end(\"served \" + q.url)).listen(8080, \"127.0.0.1\", () => require(\"fs\").writeFileSync(\"/tmp/serves\", \"\"))'", "background": true}`, Want: []string{"[running in the background, id "}},
		{Tool: "bash", Args: `{"command": "until test -e /tmp/serves; do sleep 0.05; done"}`, Want: []string{"[exit code 0]"}},
		{Tool: "fetch", Args: `{"port": 8080, "path": "/page?a=1", "headers": [], "body": ""}`, Want: []string{"HTTP/1.1 200 OK\n", "served /page?a=1"}},
		{Tool: "bash", Args: `{"command": "touch /tmp/reached; exec sleep 7777"}`, Cancelled: true},
		{Tool: "bash", Args: `{"command": "echo $A; touch /tmp/reached; sleep 8888"}`, Killed: true, Lost: true},
		{Tool: "bash", Args: `{"command": "echo $A"}`, Lost: true},
	}
	for i := range steps {
		steps[i].Args = complete(steps[i].Tool, steps[i].Args)
	}
	return steps
}

// complete returns arguments with all that the tool's schema requires, as a strict tool gets them.
func complete(tool, args string) string {
	var all map[string]any
	if err := json.Unmarshal([]byte(args), &all); err != nil {
		panic(fmt.Sprintf("%s: %v", args, err))
	}
	for _, t := range sandboxtools.New(nil, sandboxtools.Options{}) {
		var schema struct {
			Properties map[string]struct{ Type any }
		}
		if err := json.Unmarshal(t.Schema, &schema); err != nil {
			panic(fmt.Sprintf("%s: %v", t.Schema, err))
		}
		for name, p := range schema.Properties {
			if _, given := all[name]; t.Name == tool && !given {
				all[name] = nil
				if p.Type == "boolean" {
					all[name] = false
				}
			}
		}
	}
	whole, err := json.Marshal(all)
	if err != nil {
		panic(err)
	}
	return string(whole)
}

var errCancelled = errors.New("the conversation cancels the call")

// Converse makes the calls of the steps in the sandbox, which is not persistent and is dead
// afterwards if a step kills it. No answer is longer than twice [ToolOutput], and a call that is cancelled
// leaves no process.
func Converse(t *testing.T, sb *sandbox.Sandbox, steps []Step, call Caller) {
	t.Helper()
	for i, s := range steps {
		if !converse(t, sb, fmt.Sprintf("call %d, %s %s", i+1, s.Tool, s.Args), s, call) {
			return // what follows depends on it
		}
	}
}

func converse(t *testing.T, sb *sandbox.Sandbox, what string, s Step, call Caller) (ok bool) {
	t.Helper()
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	reached := func() {}
	switch {
	case s.Cancelled:
		reached = func() { cancel(errCancelled) }
	case s.Killed:
		reached = func() {
			if err := NewEngine(t).KillContainer(t.Context(), record.ContainerName(sb.Name()), "SIGKILL"); err != nil {
				t.Errorf("kill the sandbox: %v", err)
			}
		}
	}
	var meanwhile sync.WaitGroup
	if s.Cancelled || s.Killed {
		meanwhile.Go(func() {
			Eventually(t, what+" has begun", func() bool {
				_, err := sb.Stat(t.Context(), "/tmp/reached")
				return err == nil
			})
			reached()
		})
	}
	began := time.Now()
	got, err := call(ctx, ToolCall{s.Tool, json.RawMessage(s.Args)})
	took := time.Since(began)
	meanwhile.Wait()
	missing := slices.DeleteFunc(slices.Clone(s.Want), func(part string) bool { return strings.Contains(got.Text, part) })
	switch {
	case took > CallBound:
		t.Errorf("%s took %v", what, took)
	case s.Cancelled:
		if err == nil {
			t.Errorf("%s is cancelled, and answers %q without an error", what, got.Text)
			return false
		}
		return gone(t, sb, what)
	case s.Lost:
		if !errors.Is(err, sandbox.ErrSessionLost) {
			t.Errorf("%s in a session that was killed: %q, %v, want ErrSessionLost", what, got.Text, err)
		}
	case err != nil:
		t.Errorf("%s: %v", what, err)
	case got.Error != s.Error || len(missing) > 0:
		t.Errorf("%s: %q, an error: %t, want one: %t, with %q", what, got.Text, got.Error, s.Error, missing)
	case len(got.Text) > 2*ToolOutput:
		t.Errorf("%s: an answer of %d bytes", what, len(got.Text))
	default:
		return true
	}
	return s.Lost && !t.Failed()
}

// gone waits until nothing is left of a call that was cancelled.
func gone(t *testing.T, sb *sandbox.Sandbox, what string) bool {
	t.Helper()
	Eventually(t, "no process is left of "+what, func() bool {
		// grep itself has the pattern in its arguments, but not the text.
		out, err := sb.Command(t.Context(), "sh", "-c", `cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\0' ' ' | grep -c 'sleep [7]777'`).Output()
		return ExitCode(err) == 1 && strings.TrimSpace(string(out)) == "0"
	})
	if err := sb.Remove(t.Context(), "/tmp/reached"); err != nil {
		t.Error(err)
		return false
	}
	return true
}

// Model is a model for an agent's loop, which asks it what to do next, while [Converse] asks for one
// call after the other. A test's server of a vendor calls Next for each request.
type Model struct {
	// Run runs the agent until the model is done, or until a call fails that is not the model's fault.
	Run func(ctx context.Context) error

	calls   chan ToolCall
	answers chan ToolAnswer
	done    chan struct{}
	asked   atomic.Bool             // for a call, whose answer is to come
	stop    context.CancelCauseFunc // of the run that is on, or nil
	ended   chan error              // of it
}

// NewModel returns a model for an agent that run runs.
func NewModel(run func(ctx context.Context) error) *Model {
	return &Model{Run: run, calls: make(chan ToolCall), answers: make(chan ToolAnswer), done: make(chan struct{})}
}

// Next returns the next call, or false if the conversation is over: then the model says something that
// ends the run. answer is that of the last call; nil in the first request of a run. ctx is the request's.
func (m *Model) Next(ctx context.Context, answer *ToolAnswer) (ToolCall, bool) {
	if asked := m.asked.Swap(false); asked && answer == nil {
		answer = &ToolAnswer{Text: "[the agent asks again, without an answer]", Error: true}
	}
	if answer != nil {
		select {
		case m.answers <- *answer:
		case <-ctx.Done():
			return ToolCall{}, false
		}
	}
	select {
	case call := <-m.calls:
		m.asked.Store(true)
		return call, true
	case <-m.done:
	case <-ctx.Done():
	}
	return ToolCall{}, false
}

// Call is a [Caller]. It starts a run if none is on. A run ends with the context of a call, and with an
// error of Run, which is that of the call.
func (m *Model) Call(ctx context.Context, call ToolCall) (ToolAnswer, error) {
	if m.stop == nil {
		m.asked.Store(false)
		run, stop := context.WithCancelCause(context.WithoutCancel(ctx))
		m.stop, m.ended = stop, make(chan error, 1)
		go func() { m.ended <- m.Run(run) }()
	}
	defer context.AfterFunc(ctx, func() { m.stop(context.Cause(ctx)) })()
	calls := m.calls
	for {
		select {
		case calls <- call:
			calls = nil
		case answer := <-m.answers:
			return answer, nil
		case err := <-m.ended:
			m.stop(nil)
			m.stop = nil
			if err == nil {
				err = errors.New("the agent ended in the middle of the conversation")
			}
			return ToolAnswer{}, err
		}
	}
}

// End ends the conversation: the model is done, and so is the run, if one is on.
func (m *Model) End(t *testing.T) {
	t.Helper()
	close(m.done)
	if m.stop == nil {
		return
	}
	defer m.stop(nil)
	if err := <-m.ended; err != nil {
		t.Errorf("the agent, at the end of the conversation: %v", err)
	}
}
