package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"strings"
	"testing"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
)

// call runs the program in this process.
func call(ctx context.Context, stdin string, args ...string) (code int, stdout, stderr string) {
	var out, errOut bytes.Buffer
	code = run(ctx, args, strings.NewReader(stdin), &out, &errOut)
	return code, out.String(), errOut.String()
}

// mustCall is call for what has to succeed in silence.
func mustCall(t *testing.T, args ...string) string {
	t.Helper()
	code, out, errOut := call(t.Context(), "", args...)
	if code != 0 || errOut != "" {
		t.Fatalf("sandbox %s: code %d, stderr %q, want 0 and none", strings.Join(args, " "), code, errOut)
	}
	return out
}

func left(t *testing.T, label string) []string {
	t.Helper()
	lines, err := enginetest.Leftovers(enginetest.WithLabel(label))
	if err != nil {
		t.Fatal(err)
	}
	return lines
}

func TestRunLeavesNothingButTheExitCode(t *testing.T) {
	t.Parallel()
	code, out, errOut := call(t.Context(), "in", "run", "-e", "GREETING=hello", "--", "sh", "-c",
		`hostname; echo "$GREETING $(cat)"; echo careful >&2; exit 7`)
	id, rest, _ := strings.Cut(out, "\n")
	if code != 7 || rest != "hello in\n" || errOut != "careful\n" {
		t.Errorf("run: code %d, stdout %q, stderr %q, want 7, hello in, careful", code, out, errOut)
	}
	if held := left(t, "agent-sandbox.id="+id); id == "" || len(held) > 0 {
		t.Errorf("left of %q after run: %v", id, held)
	}
}

func TestNamedSandboxIsUsedAgainAndRemoved(t *testing.T) {
	t.Parallel()
	name := "cmd-" + strings.ToLower(rand.Text()[:8])
	t.Cleanup(func() { sandbox.Delete(context.WithoutCancel(t.Context()), name, sandbox.PreserveVolumes(false)) })

	mustCall(t, "run", "--name", name, "--", "sh", "-c", "echo kept > file")
	mustCall(t, "stop", name)
	if got := mustCall(t, "exec", name, "--", "cat", "file"); got != "kept\n" {
		t.Errorf("exec cat file = %q, want kept", got)
	}

	var list []map[string]any
	if err := json.Unmarshal([]byte(mustCall(t, "list", "--json", "--prefix", name)), &list); err != nil {
		t.Fatalf("list --json: %v", err)
	}
	if len(list) != 1 || list[0]["name"] != name || list[0]["state"] != "running" {
		t.Errorf("list --json --prefix %s = %v, want it alone and running", name, list)
	}
	if table := mustCall(t, "list", "--state", "running"); !strings.Contains(table, name) {
		t.Errorf("list = %q, want %s in it", table, name)
	}

	mustCall(t, "stop", name)
	var status map[string]any
	if err := json.Unmarshal([]byte(mustCall(t, "inspect", name)), &status); err != nil {
		t.Fatalf("inspect: %v", err)
	}
	if status["state"] != "stopped" || status["reason"] != "stopped" {
		t.Errorf("inspect after stop = %v, want it stopped, and the reason", status)
	}
	if got := mustCall(t, "rm", "--volumes", name); !strings.HasSuffix(got, ": deleted\n") {
		t.Errorf("rm --volumes = %q, want its volume deleted", got)
	}
	if held := left(t, "agent-sandbox.name="+name); len(held) > 0 {
		t.Errorf("left after rm --volumes: %v", held)
	}
}

func TestExitCodes(t *testing.T) {
	t.Parallel()
	over, cancel := context.WithCancel(t.Context())
	cancel()
	tests := map[string]struct {
		ctx  context.Context
		args []string
		want int
		says string
	}{
		"signal":            {nil, []string{"run", "--", "sh", "-c", "kill -9 $$"}, 137, ""},
		"missing program":   {nil, []string{"run", "--", "no-such-program"}, 127, "no-such-program"},
		"not executable":    {nil, []string{"run", "--", "/etc/passwd"}, 126, "permission denied"},
		"bad option":        {nil, []string{"run", "--vcpus", "-1", "--", "true"}, 125, "WithVCPUs"},
		"exec in nothing":   {nil, []string{"exec", "no-such-sandbox", "--", "true"}, 125, "Sandbox not found"},
		"inspect of none":   {nil, []string{"inspect", "no-such-sandbox"}, 1, "Sandbox not found"},
		"remove of none":    {nil, []string{"rm", "no-such-sandbox"}, 1, "Sandbox not found"},
		"no engine":         {nil, []string{"-H", "unix:///nowhere.sock", "list"}, 1, "/nowhere.sock"},
		"no command":        {nil, []string{"run"}, 2, "arg"},
		"unknown flag":      {nil, []string{"list", "--colour"}, 2, "--colour"},
		"unknown verb":      {nil, []string{"destroy"}, 2, "destroy"},
		"interrupted":       {over, []string{"list"}, 130, "interrupted"},
		"interrupted run":   {over, []string{"run", "--", "true"}, 130, "interrupted"},
		"help is no error":  {nil, []string{"--help"}, 0, ""},
		"help without verb": {nil, nil, 0, ""},
	}
	for what, test := range tests {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			ctx := test.ctx
			if ctx == nil {
				ctx = t.Context()
			}
			code, _, errOut := call(ctx, "", test.args...)
			if code != test.want || !strings.Contains(errOut, test.says) || (test.says == "") != (errOut == "") {
				t.Errorf("code %d, stderr %q, want %d and %q", code, errOut, test.want, test.says)
			}
		})
	}
}
