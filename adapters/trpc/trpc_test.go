package trpc_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"trpc.group/trpc-go/trpc-agent-go/agent"
	"trpc.group/trpc-go/trpc-agent-go/agent/llmagent"
	"trpc.group/trpc-go/trpc-agent-go/codeexecutor"
	"trpc.group/trpc-go/trpc-agent-go/event"
	"trpc.group/trpc-go/trpc-agent-go/model"
	"trpc.group/trpc-go/trpc-agent-go/runner"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/adapters/trpc"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }

// scripted is a model that says one thing after the other, and keeps the results of its calls. What
// begins with a brace is a call of workspace_exec.
type scripted struct {
	lines   []string
	said    int
	results []string
}

func (s *scripted) Info() model.Info { return model.Info{Name: "scripted"} }

func (s *scripted) GenerateContent(ctx context.Context, in *model.Request) (<-chan *model.Response, error) {
	if last := in.Messages[len(in.Messages)-1]; last.Role == model.RoleTool {
		s.results = append(s.results, last.Content)
	}
	line := s.lines[s.said]
	s.said++
	m := model.Message{Role: model.RoleAssistant, Content: line}
	if strings.HasPrefix(line, "{") {
		m = model.Message{Role: model.RoleAssistant, ToolCalls: []model.ToolCall{{ID: fmt.Sprint(s.said), Type: "function", Function: model.FunctionDefinitionParam{Name: "workspace_exec", Arguments: []byte(line)}}}}
	}
	out := make(chan *model.Response, 1)
	out <- &model.Response{Object: model.ObjectTypeChatCompletion, Done: true, Choices: []model.Choice{{Message: m}}}
	close(out)
	return out, nil
}

// run runs an agent of the framework in a session, and returns what its code printed.
func run(ctx context.Context, m model.Model, e *trpc.Executor, session string) (printed []string, err error) {
	a := llmagent.New("coder", llmagent.WithModel(m), llmagent.WithCodeExecutor(e), llmagent.WithWorkspaceExecSurfaceEnabled(true))
	r := runner.NewRunner("app", a)
	defer r.Close()
	events, err := r.Run(ctx, "user", session, model.NewUserMessage("work"), agent.WithRequestID(session))
	if err != nil {
		return nil, err
	}
	for ev := range events {
		if ev.Error != nil {
			err = errors.New(ev.Error.Message)
		}
		if ev.ContainsTag(event.CodeExecutionResultTag) {
			printed = append(printed, ev.Choices[0].Message.Content)
		}
	}
	return printed, err
}

func TestAgentWorksInASandbox(t *testing.T) {
	t.Parallel()
	sb := harness.NewSandbox(t)
	e := trpc.New(sb, trpc.Options{Output: 3000})
	m := &scripted{lines: []string{
		`{"command": "echo one >out/a; echo $A; pwd", "env": {"A": "b"}}`,
		`{"command": "cat; cat out/a; exit 3", "stdin": "input\n", "cwd": "."}`,
		`{"command": "sleep 1000", "timeout_sec": 1}`,
		`{"command": "yes | head -c 1000000"}`,
		"```bash\nexpr 6 '*' 7; touch $OUTPUT_DIR/made\n```",
		"done",
	}}
	printed, err := run(t.Context(), m, e, "s1")
	if err != nil || len(m.results) != 4 || len(printed) != 1 {
		t.Fatalf("results %q, printed %q, %v", m.results, printed, err)
	}
	for i, want := range [][]string{{`b\n/workspace/run/ws_`, `"exit_code":0`}, {`input\none\n`, `"exit_code":3`}, {`"exit_code":137`}, {`y\ny\n`, "[997000 more bytes are left out]"}} {
		for _, part := range want {
			if !strings.Contains(m.results[i], part) || len(m.results[i]) > 7000 {
				t.Errorf("result %d: %.300q, want %q", i, m.results[i], part)
			}
		}
	}
	if !strings.Contains(printed[0], "out/made") {
		t.Errorf("the code: %q", printed)
	}
	// The session's workspace stays, the one of the code does not.
	dirs, err := sb.ReadDir(t.Context(), trpc.DefaultRoot)
	if err != nil || len(dirs) != 1 {
		t.Errorf("workspaces: %v, %v", dirs, err)
	}
}

func TestIsolatedSessions(t *testing.T) {
	t.Parallel()
	c := harness.NewClient(t)
	var made []*sandbox.Sandbox
	e := trpc.NewIsolated(func(ctx context.Context) (*sandbox.Sandbox, error) {
		sb, err := c.Create(ctx)
		if err == nil {
			made = append(made, sb)
			harness.Remove(t, c, sb.Name())
		}
		return sb, err
	}, trpc.Options{})
	for _, session := range []string{"s1", "s2"} {
		m := &scripted{lines: []string{`{"command": "ls /tmp; hostname >/tmp/` + session + `"}`, "done"}}
		if _, err := run(t.Context(), m, e, session); err != nil || len(m.results) != 1 || strings.Contains(m.results[0], "s1") {
			t.Errorf("session %s: %q, %v", session, m.results, err)
		}
	}
	out, err := e.ExecuteCode(t.Context(), codeexecutor.CodeExecutionInput{CodeBlocks: []codeexecutor.CodeBlock{{Code: "hostname", Language: "sh"}}})
	if err != nil || out.Output == "" || len(made) != 3 {
		t.Fatalf("code: %+v, %v, in %d sandboxes", out, err, len(made))
	}
	left := func() (names []string) {
		for _, sb := range made {
			if _, err := c.Inspect(t.Context(), sb.Name()); err == nil {
				names = append(names, sb.Name())
			}
		}
		return names
	}
	if got := left(); !slices.Equal(got, []string{made[0].Name(), made[1].Name()}) {
		t.Errorf("sandboxes of the sessions: %q", got)
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
	if got := left(); len(got) > 0 {
		t.Errorf("left after Close: %q", got)
	}
}

func TestExecuteCode(t *testing.T) {
	t.Parallel()
	sb := harness.NewSandbox(t)
	e := trpc.New(sb, trpc.Options{Output: 100})
	out, err := e.ExecuteCode(t.Context(), codeexecutor.CodeExecutionInput{CodeBlocks: []codeexecutor.CodeBlock{
		{Language: "bash", Code: "echo a; echo b >&2; exit 4"}, {Language: "javascript", Code: "1"},
		{Language: "bash", Code: "yes | head -c 300"}, {Language: "bash", Code: "echo x >$OUTPUT_DIR/f"},
	}})
	want := "a\nb\nError executing code block 0: exit status 4\nError executing code block 1: unsupported language: javascript\n" +
		strings.Repeat("y\n", 50) + "\n[200 more bytes are left out]\n"
	if err != nil || out.Output != want || len(out.OutputFiles) != 1 || out.OutputFiles[0].Name != "out/f" || out.OutputFiles[0].Content != "x\n" {
		t.Errorf("%q, %+v, %v, want %q", out.Output, out.OutputFiles, err, want)
	}
	out, err = trpc.New(sb, trpc.Options{Timeout: 2 * time.Second}).ExecuteCode(t.Context(), codeexecutor.CodeExecutionInput{CodeBlocks: []codeexecutor.CodeBlock{{Language: "sh", Code: "sleep 1000"}}})
	if want := "Error executing code block 0: timed out after 2s\n"; err != nil || out.Output != want {
		t.Errorf("%q, %v, want %q", out.Output, err, want)
	}
}

func TestWorkspacesKeepFilesInside(t *testing.T) {
	t.Parallel()
	sb := harness.NewSandbox(t)
	eng := trpc.New(sb, trpc.Options{}).Engine()
	ctx := t.Context()
	ws, err := eng.Manager().CreateWorkspace(ctx, "a", codeexecutor.WorkspacePolicy{})
	if err != nil {
		t.Fatal(err)
	}
	host := t.TempDir()
	for what, err := range map[string]error{
		"PutFiles":            eng.FS().PutFiles(ctx, ws, []codeexecutor.PutFile{{Path: "a/../../x"}}),
		"StageDirectory":      eng.FS().StageDirectory(ctx, ws, host, "../x", codeexecutor.StageOptions{}),
		"StageInputs":         eng.FS().StageInputs(ctx, ws, []codeexecutor.InputSpec{{From: "workspace://out", To: "../x", Mode: "link"}}),
		"StageInputs from":    eng.FS().StageInputs(ctx, ws, []codeexecutor.InputSpec{{From: "workspace://../../etc", To: "x"}}),
		"RunProgram":          harness.Second(eng.Runner().RunProgram(ctx, ws, codeexecutor.RunProgramSpec{Cmd: "true", Cwd: ".."})),
		"Cleanup":             eng.Manager().Cleanup(ctx, codeexecutor.Workspace{Path: "/workspace"}),
		"Cleanup of the root": eng.Manager().Cleanup(ctx, codeexecutor.Workspace{Path: trpc.DefaultRoot}),
		"Cleanup of another":  eng.Manager().Cleanup(ctx, codeexecutor.Workspace{Path: ws.Path + "/../.."}),
	} {
		if err == nil {
			t.Errorf("%s leaves the workspace", what)
		}
	}
	script := "ln -s /etc/hostname out/away; ln -s / out/root; mkfifo out/pipe; ln -s loop out/loop; ln -s nowhere out/broken; echo x >work/w; ln -s ../work/w out/w; mkdir out/d; ln -s .. out/d/up; ln -s $PWD/work/w out/d/abs"
	if r, err := eng.Runner().RunProgram(ctx, ws, codeexecutor.RunProgramSpec{Cmd: "sh", Args: []string{"-c", script}}); err != nil || r.ExitCode != 0 {
		t.Fatal(r, err)
	}
	files, err := eng.FS().Collect(ctx, ws, []string{"out/**", "out/root/etc/hostname", "out/d/up/w", "../../../etc/hostname"})
	if err != nil || len(files) != 1 || files[0].Name != "work/w" {
		t.Errorf("Collect: %+v, %v", files, err)
	}
	out, err := eng.FS().CollectOutputs(ctx, ws, codeexecutor.OutputSpec{Globs: []string{"out/**", "out/root/etc/hostname"}})
	var names []string
	for _, f := range out.Files {
		names = append(names, f.Name)
	}
	if slices.Sort(names); err != nil || !slices.Equal(names, []string{"out/d/abs", "out/w"}) {
		t.Errorf("CollectOutputs: %q, %v", names, err)
	}
}

func TestCleanEnvironment(t *testing.T) {
	t.Parallel()
	eng := trpc.New(harness.NewSandbox(t, sandbox.WithEnv(map[string]string{"SECRET": "s"})), trpc.Options{}).Engine()
	if !eng.Describe().SupportsCleanEnv {
		t.Error("no clean environment")
	}
	ws, err := eng.Manager().CreateWorkspace(t.Context(), "a", codeexecutor.WorkspacePolicy{})
	if err != nil {
		t.Fatal(err)
	}
	for clean, want := range map[bool][]string{
		true:  {"A", "OUTPUT_DIR", "PATH", "RUN_DIR", "SKILLS_DIR", "WORKSPACE_DIR", "WORK_DIR"},
		false: {"SECRET", "HOME", "A"},
	} {
		r, err := eng.Runner().RunProgram(t.Context(), ws, codeexecutor.RunProgramSpec{Cmd: "env", Env: map[string]string{"A": "1\nB=2"}, CleanEnv: clean})
		var names []string
		for line := range strings.Lines(r.Stdout) {
			if name, _, ok := strings.Cut(line, "="); ok && name != "B" {
				names = append(names, name)
			}
		}
		slices.Sort(names)
		missing := slices.DeleteFunc(slices.Clone(want), func(n string) bool { return slices.Contains(names, n) })
		if err != nil || len(missing) > 0 || clean && len(names) != len(want) {
			t.Errorf("clean %t: %q, %v, want %q", clean, names, err, want)
		}
	}
	if _, err := eng.Runner().RunProgram(t.Context(), ws, codeexecutor.RunProgramSpec{Cmd: "env", Env: map[string]string{"A=B": "1"}, CleanEnv: true}); err == nil {
		t.Error("a variable whose name has =")
	}
}

func TestMetadataOfTheSandboxIsBounded(t *testing.T) {
	t.Parallel()
	sb := harness.NewSandbox(t)
	eng := trpc.New(sb, trpc.Options{}).Engine()
	ws, err := eng.Manager().CreateWorkspace(t.Context(), "a", codeexecutor.WorkspacePolicy{})
	if err != nil {
		t.Fatal(err)
	}
	harness.Run(t, sb, "truncate", "-s", "8G", ws.Path+"/"+codeexecutor.MetaFileName)
	if _, err := eng.FS().CollectOutputs(t.Context(), ws, codeexecutor.OutputSpec{Globs: []string{"out/*"}}); err != nil {
		t.Fatal(err)
	}
	var md codeexecutor.WorkspaceMetadata
	if err := json.Unmarshal([]byte(harness.Read(t, sb, ws.Path+"/"+codeexecutor.MetaFileName)), &md); err != nil || len(md.Outputs) != 1 {
		t.Errorf("the metadata afterwards: %+v, %v", md, err)
	}
	harness.Run(t, sb, "sh", "-c", "cd "+ws.Path+"; rm metadata.json; mkfifo metadata.json")
	if err := eng.FS().StageInputs(t.Context(), ws, nil); err == nil || !strings.Contains(err.Error(), "regular") {
		t.Errorf("metadata that is a pipe: %v", err)
	}
}

func TestCallsEndWithTheirContextAndTheSandbox(t *testing.T) {
	t.Parallel()
	sb := harness.NewSandbox(t)
	e := trpc.New(sb, trpc.Options{})
	ws, err := e.CreateWorkspace(t.Context(), "a", codeexecutor.WorkspacePolicy{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := e.RunProgram(ctx, ws, codeexecutor.RunProgramSpec{Cmd: "sh", Args: []string{"-c", "touch /tmp/runs; exec sleep 7777"}, Timeout: time.Hour})
		ended <- err
	}()
	harness.WaitForFile(t, sb, "/tmp/runs")
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("a program that is cancelled: %v", err)
	}
	harness.Eventually(t, "the program is gone", func() bool {
		return sb.Command(t.Context(), "sh", "-c", `! cat /proc/[0-9]*/cmdline | tr '\0' ' ' | grep -q 'sleep [7]777'`).Run() == nil
	})
	go func() {
		_, err := e.RunProgram(t.Context(), ws, codeexecutor.RunProgramSpec{Cmd: "sh", Args: []string{"-c", "touch /tmp/again; exec sleep 7777"}, Timeout: time.Hour})
		ended <- err
	}()
	harness.WaitForFile(t, sb, "/tmp/again")
	if _, err := sb.Stop(t.Context()); err != nil {
		t.Error(err)
	}
	if err := <-ended; !errors.Is(err, sandbox.ErrSessionLost) {
		t.Errorf("a program whose session ends: %v", err)
	}
	if _, err := e.ExecuteCode(t.Context(), codeexecutor.CodeExecutionInput{}); err == nil {
		t.Error("code in a sandbox that is gone")
	}
}
