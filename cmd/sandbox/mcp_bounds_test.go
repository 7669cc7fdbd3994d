package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// initialize is the first line of an agent.
const initialize = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"test","version":"1"}}}` + "\n"

// rawAgent is an agent that need not read what it is sent.
type rawAgent struct {
	t      *testing.T
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stdout *bufio.Reader
	pipe   *os.File // what stdout reads
}

func newRawAgent(t *testing.T, flags ...string) *rawAgent {
	t.Helper()
	args := append([]string{"mcp"}, flags...)
	noteFlags(args)
	a := &rawAgent{t: t, cmd: exec.Command(os.Args[0], args...)}
	a.cmd.Env, a.cmd.Stderr = append(os.Environ(), asProgram+"=1"), os.Stderr
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	a.cmd.Stdout, a.pipe, a.stdout = w, r, bufio.NewReader(r)
	if a.stdin, err = a.cmd.StdinPipe(); err == nil {
		err = a.cmd.Start()
	}
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		r.Close()
		_ = a.cmd.Process.Kill() // it has usually ended
		_ = a.cmd.Wait()
	})
	a.send(strings.TrimSpace(initialize))
	a.answer()
	a.send(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	return a
}

func (a *rawAgent) send(line string) {
	a.t.Helper()
	if _, err := fmt.Fprintln(a.stdin, line); err != nil {
		a.t.Fatal(err)
	}
}

func (a *rawAgent) call(tool string, args object) {
	a.t.Helper()
	a.request(strconv.Quote(tool), tool, args)
}

// request calls a tool with that ID, in JSON.
func (a *rawAgent) request(id, tool string, args object) {
	a.t.Helper()
	body, err := json.Marshal(object{"jsonrpc": "2.0", "id": json.RawMessage(id), "method": "tools/call", "params": object{"name": tool, "arguments": args, "_meta": object{"progressToken": 1}}})
	if err != nil {
		a.t.Fatal(err)
	}
	a.send(string(body))
}

// create makes a sandbox and returns its name.
func (a *rawAgent) create() string {
	a.t.Helper()
	a.call("sandbox_create", object{})
	got := a.answer()
	for got.Method != "" { // progress of a creation that takes its time
		got = a.answer()
	}
	return got.Result.StructuredContent.Name
}

func (a *rawAgent) answer() (got struct {
	Method string
	Result struct{ StructuredContent struct{ Name string } }
}) {
	a.t.Helper()
	line, err := a.stdout.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &got)
	}
	if err != nil {
		a.t.Fatal(err)
	}
	return got
}

// Whatever the calls do that run when an agent leaves, its sandboxes go.
func TestAgentThatLeavesInTheMiddleLeavesNothing(t *testing.T) {
	enginetest.Need(t)
	t.Parallel()
	flood := object{"command": "yes $(seq 1000)"}
	for _, tt := range []struct {
		name  string
		tool  string
		args  object
		first bool // wait for a message of the call
		leave func(a *rawAgent) error
	}{
		{"a command runs", "bash", object{"command": "sleep 1000"}, false, func(a *rawAgent) error { return a.stdin.Close() }},
		{"nobody reads the answers", "bash", flood, true, func(a *rawAgent) error { return a.stdin.Close() }},
		{"the answers have nowhere to go", "bash", flood, true, func(a *rawAgent) error { return a.pipe.Close() }},
		{"a signal comes", "bash", flood, true, func(a *rawAgent) error { return a.cmd.Process.Signal(os.Interrupt) }},
		{"a sandbox is being made", "sandbox_create", object{}, false, func(a *rawAgent) error { return a.stdin.Close() }},
		{"a fork is being made", "sandbox_fork", object{}, false, func(a *rawAgent) error { return a.stdin.Close() }},
		{"a snapshot is being taken", "sandbox_snapshot", object{}, false, func(a *rawAgent) error { return a.stdin.Close() }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := newRawAgent(t, "--output", "16m")
			name := a.create()
			info, err := harness.NewClient(t).Inspect(t.Context(), name)
			if err != nil {
				t.Fatal(err)
			}
			if tt.tool != "sandbox_create" {
				tt.args["sandbox"] = name
			}
			a.call(tt.tool, tt.args)
			if tt.first {
				a.answer()
			}
			if err := tt.leave(a); err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 1)
			go func() { ended <- a.cmd.Wait() }()
			select {
			case <-ended: // whatever its exit code is
			case <-time.After(harness.CallBound):
				t.Fatal("the server does not end")
			}
			if held := left(t, "agent-sandbox.id="+info.ID); len(held) > 0 {
				t.Errorf("left: %v", held)
			}
		})
	}
}

// A cancellation ends the request that has its ID, whatever the ID looks like, and no other.
func TestCancellationsEndTheirRequests(t *testing.T) {
	enginetest.Need(t)
	t.Parallel()
	a := newRawAgent(t, "--command-timeout", "1h")
	name := a.create()
	next := func() (id, line string) {
		t.Helper()
		text, err := a.stdout.ReadString('\n')
		var answer struct{ ID json.RawMessage }
		if err == nil {
			err = json.Unmarshal([]byte(text), &answer)
		}
		if err != nil {
			t.Fatal(err)
		}
		return string(answer.ID), text
	}
	for _, id := range []string{"1", "1.5", "1e400", "9007199254740993", `"1"`, `""`} {
		a.request(id, "bash", object{"sandbox": name, "command": "echo runs; exec sleep 1000"})
		if got, line := next(); got != "" || !strings.Contains(line, "runs") { // progress
			t.Fatalf("%s: %s", id, line)
		}
		for _, another := range []string{`"another"`, "2", "null", id} {
			a.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":` + another + `}}`)
		}
		if got, line := next(); got != id || !strings.Contains(line, "cancel") {
			t.Errorf("the request %s: %s", id, line)
		}
	}
}

// An agent that closes its side right after its requests gets the answers.
func TestAgentThatClosesItsSideIsAnswered(t *testing.T) {
	t.Parallel()
	for what, test := range map[string]struct {
		input string
		want  []string
	}{
		"initialize": {initialize, []string{`"serverInfo"`, `"tools":{}`}},
		"a list, too": {initialize + `{"jsonrpc":"2.0","method":"notifications/initialized"}` + "\n" + `{"jsonrpc":"2.0","id":"a","method":"tools/list"}` + "\n",
			[]string{`"serverInfo"`, `"sandbox_create"`}},
	} {
		for range 10 { // an end that comes too early is seen in some of them
			cmd := exec.Command(os.Args[0], "-H", "unix:///nowhere.sock", "mcp")
			cmd.Env, cmd.Stdin = append(os.Environ(), asProgram+"=1"), strings.NewReader(test.input)
			out, err := cmd.Output()
			for _, want := range test.want {
				if err != nil || !strings.Contains(string(out), want) {
					t.Fatalf("%s: %v, %q, want %q", what, err, out, want)
				}
			}
		}
	}
}

// An agent that sends what is no message is answered with an error, and served further.
func TestAgentIsServedAfterWhatIsNoMessage(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 17<<20)
	var input strings.Builder
	var want []string
	for _, tt := range []struct{ line, id, code string }{
		{"hello", "null", "-32700"},
		{`{"jsonrpc":"2.0","id":1,`, "null", "-32700"},
		{`{"jsonrpc":"2.0","id":2,"method":"ping"}{"jsonrpc":"2.0","id":3,"method":"ping"}`, "null", "-32700"},
		{"[]", "null", "-32600"},
		{"[5]", "null", "-32600"},
		{"5", "null", "-32600"},
		{"null", "null", "-32600"},
		{`{"id":4,"method":"ping"}`, "4", "-32600"},
		{`{"jsonrpc":"2.0","id":"five","method":6}`, `"five"`, "-32600"},
		{`{"jsonrpc":"2.0","id":{},"method":"ping"}`, "null", "-32600"},
		{`{"jsonrpc":"2.0","id":7,"method":"ping","params":{"id":8,"content":"` + long + `"}}`, "7", "-32600"},
		{`{"method":"ping","params":{"id":8,"content":"` + long + `"},"jsonrpc":"2.0","id":"nine"}`, `"nine"`, "-32600"},
		{`{"params":{"content":"` + long + `","id":10}}`, "null", "-32600"},
		{long, "null", "-32600"},
		{"  ", "", ""},
		{` {"jsonrpc":"2.0","id":11,"method":"ping"} ` + "\r", "11", ""},
		{`[{"jsonrpc":"2.0","id":12,"method":"ping"}]`, "12", ""},
		{`[{"jsonrpc":"2.0","id":13,"method":"ping"},{"jsonrpc":"2.0","id":13,"method":"ping"}]`, "13", ""},
		{"", "13", ""}, // each of the two requests has its answer
		{`{"jsonrpc":"2.0","id":null,"method":"ping"}`, "null", "-32600"},
		{`{"jsonrpc":"2.0","id":14,"method":"notifications/cancelled","params":{"requestId":1}}`, "14", "-32600"},
		{`{"jsonrpc":"2.0","id":15,"method":"initialize","params":{}}`, "15", "-32600"}, // the second one
		{`{"jsonrpc":"2.0","id":1.5,"method":"ping"}`, "1.5", ""},
		{`{"jsonrpc":"2.0","id":1e400,"method":"ping"}`, "1e400", ""},
		{`{"jsonrpc":"2.0","id":-9007199254740993,"method":"ping"}`, "-9007199254740993", ""},
		{`{"jsonrpc":"2.0","id":9223372036854775808,"method":"nope"}`, "9223372036854775808", "-32601"},
		{`{"jsonrpc":"2.0","id":"","method":"ping"}`, `""`, ""},
		{`{"jsonrpc":"2.0","id":"1","method":"ping"}`, `"1"`, ""},
		{"\ufeff" + `{"jsonrpc":"2.0","id":16,"method":"ping"}`, "16", ""},
		{`{"id":18,"result":{}}`, "18", "-32600"}, // an answer that is none
		{`{"jsonrpc":"2.0","id":{},"result":{}}`, "null", "-32600"},
	} {
		input.WriteString(tt.line + "\n")
		if tt.id != "" {
			want = append(want, strings.TrimSpace(tt.id+" "+tt.code))
		}
	}
	cmd := exec.Command(os.Args[0], "-H", "unix:///nowhere.sock", "mcp")
	cmd.Env, cmd.Stdin = append(os.Environ(), asProgram+"=1"), strings.NewReader(initialize+input.String())
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v, after %q", err, out)
	}
	var got []string
	for line := range strings.Lines(string(out)) {
		var answer struct {
			ID    json.RawMessage
			Error struct{ Code json.RawMessage }
		}
		if err := json.Unmarshal([]byte(line), &answer); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if id := string(answer.ID); id != "0" {
			got = append(got, strings.TrimSpace(id+" "+string(answer.Error.Code)))
		}
	}
	slices.Sort(got) // answers may overtake each other
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("answers (-want +got):\n%s", diff)
	}
}
