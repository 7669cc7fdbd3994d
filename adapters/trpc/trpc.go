// Package trpc has a sandbox as the code executor and the engine of [trpc.group/trpc-go/trpc-agent-go]:
// code blocks, programs and the files of workspaces are in the sandbox.
//
//	sb, err := sandbox.Create(ctx, sandbox.WithNetworkPolicy(sandbox.DenyAll()))
//	if err != nil {
//		return err
//	}
//	defer sb.Close()
//	agent := llmagent.New("coder", llmagent.WithModel(model), llmagent.WithCodeExecutor(trpc.New(sb, trpc.Options{})))
//
// A workspace is a directory in the sandbox. [NewIsolated] gives each one, and so each session of an
// agent, a sandbox of its own. Programs have the sandbox's environment and none of this program's.
package trpc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"trpc.group/trpc-go/trpc-agent-go/codeexecutor"

	"github.com/seed-1a2d6d8f/sandbox"
)

// Defaults of [Options].
const (
	DefaultRoot    = sandbox.Workspace + "/run"
	DefaultTimeout = 30 * time.Second
	DefaultOutput  = 1 << 20
)

// Options configure an [Executor]. The zero value has the defaults.
type Options struct {
	// Root is the directory of the workspaces in the sandbox, an absolute path. Default [DefaultRoot].
	Root string
	// Timeout is that of a code block, and of a program without one. Default [DefaultTimeout].
	Timeout time.Duration
	// Output bounds stdout and stderr of a program, in bytes each. What is longer is cut, and ends with a
	// line that says so. Default [DefaultOutput].
	Output int
	// FileTime bounds each call that creates workspaces, and stages or collects files. Default 2 minutes.
	FileTime time.Duration
}

// Executor is a [codeexecutor.CodeExecutor] and a [codeexecutor.EngineProvider]; its methods are those of
// the engine's manager, file system and runner. It is safe for concurrent use.
//
// Policies of workspaces and limits of programs are not applied: the sandbox has limits. No path may
// leave its workspace. Links are followed in the sandbox, and no file of this machine is read but those to
// stage. An error of a call that is not about its arguments or its files says that the sandbox failed.
type Executor struct {
	o      Options
	shared *sandbox.Sandbox
	create func(context.Context) (*sandbox.Sandbox, error)

	mu  sync.Mutex
	own map[string]*sandbox.Sandbox // by the path of the workspace
}

var (
	_ codeexecutor.CodeExecutor     = (*Executor)(nil)
	_ codeexecutor.EngineProvider   = (*Executor)(nil)
	_ codeexecutor.WorkspaceManager = (*Executor)(nil)
	_ codeexecutor.WorkspaceFS      = (*Executor)(nil)
	_ codeexecutor.ProgramRunner    = (*Executor)(nil)
)

// New returns an executor whose workspaces are directories of a sandbox, which stays the caller's. Code
// in one workspace can reach the others.
func New(sb *sandbox.Sandbox, o Options) *Executor {
	o.Root = path.Clean(cmp.Or(o.Root, DefaultRoot))
	o.Timeout = cmp.Or(max(o.Timeout, 0), DefaultTimeout)
	o.Output = cmp.Or(max(o.Output, 0), DefaultOutput)
	o.FileTime = cmp.Or(max(o.FileTime, 0), 2*time.Minute)
	return &Executor{o: o, shared: sb}
}

// NewIsolated returns an executor that creates a sandbox for each workspace, such as with
// [sandbox.Pool.Create], and closes it when the workspace is cleaned up. The framework never cleans up
// the workspaces of its sessions: the caller calls [Executor.Close].
func NewIsolated(create func(context.Context) (*sandbox.Sandbox, error), o Options) *Executor {
	e := New(nil, o)
	e.create, e.own = create, map[string]*sandbox.Sandbox{}
	return e
}

// Close closes the sandboxes of workspaces that were not cleaned up. It does nothing to the sandbox of [New].
func (e *Executor) Close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	var errs []error
	for name, sb := range e.own {
		errs = append(errs, sb.Close())
		delete(e.own, name)
	}
	return errors.Join(errs...)
}

// Engine returns the executor as an engine. It starts programs with a clean environment if they ask for
// one, for which the image needs the program "env".
func (e *Executor) Engine() codeexecutor.Engine {
	return codeexecutor.NewEngineWithCapabilities(e, e, e, codeexecutor.Capabilities{Isolation: "container", SupportsCleanEnv: true})
}

// CodeBlockDelimiter returns three backquotes.
func (e *Executor) CodeBlockDelimiter() codeexecutor.CodeBlockDelimiter {
	return codeexecutor.CodeBlockDelimiter{Start: "```", End: "```"}
}

// ExecuteCode runs blocks of Python and Bash, one after the other, in a workspace of their own. Output is
// that of all blocks, with a line for each one that failed. OutputFiles are the files that they left in
// $OUTPUT_DIR.
func (e *Executor) ExecuteCode(ctx context.Context, in codeexecutor.CodeExecutionInput) (out codeexecutor.CodeExecutionResult, err error) {
	ws, err := e.CreateWorkspace(ctx, cmp.Or(in.ExecutionID, "code"), codeexecutor.WorkspacePolicy{})
	if err != nil {
		return out, err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), e.o.FileTime)
		defer cancel()
		err = errors.Join(err, e.Cleanup(ctx, ws))
	}()
	var text strings.Builder
	for i, block := range in.CodeBlocks {
		what, err := e.block(ctx, ws, i, block, &text)
		if err != nil {
			return out, err
		}
		if what != "" {
			fmt.Fprintf(&text, "Error executing code block %d: %s\n", i, what)
		}
	}
	out.Output = text.String()
	out.OutputFiles, err = e.Collect(ctx, ws, []string{codeexecutor.DirOut + "/**"})
	return out, err
}

// block runs a block of code. what is why it failed.
func (e *Executor) block(ctx context.Context, ws codeexecutor.Workspace, i int, block codeexecutor.CodeBlock, text io.Writer) (what string, err error) {
	file, mode, command, args, err := codeexecutor.BuildBlockSpec(i, block)
	if err != nil {
		return err.Error(), nil
	}
	name := path.Join(codeexecutor.InlineSourceDir, file)
	if err := e.PutFiles(ctx, ws, []codeexecutor.PutFile{{Path: name, Content: []byte(block.Code), Mode: mode}}); err != nil {
		return "", err
	}
	out := newOutput(e.o.Output)
	spec := codeexecutor.RunProgramSpec{Cmd: command, Args: append(args, file), Cwd: codeexecutor.InlineSourceDir}
	r, err := e.run(ctx, ws, spec, out, out)
	if _, err := io.WriteString(text, out.String()); err != nil {
		return "", err
	}
	switch {
	case err != nil:
		return "", err
	case r.TimedOut:
		return fmt.Sprintf("timed out after %v", e.o.Timeout), nil
	case r.ExitCode != 0:
		return cmp.Or(strings.TrimSpace(r.Stderr), fmt.Sprintf("exit status %d", r.ExitCode)), nil
	}
	return "", nil
}

// RunProgram runs a program. Its environment is the sandbox's, unless the spec has CleanEnv, with the
// variables of the workspace and of the spec. A program that fails, takes too long or does not exist is no
// error: it has an exit code, 128 + n if signal n ended it, and -1, or 127 with CleanEnv, if it can't be
// started, for which Stderr says why.
func (e *Executor) RunProgram(ctx context.Context, ws codeexecutor.Workspace, spec codeexecutor.RunProgramSpec) (codeexecutor.RunResult, error) {
	stdout, stderr := newOutput(e.o.Output), newOutput(e.o.Output)
	r, err := e.run(ctx, ws, spec, stdout, stderr)
	r.Stdout, r.Stderr = stdout.String(), stderr.String()+r.Stderr
	return r, err
}

// cleanPath is the PATH of a program with a clean environment.
const cleanPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// run runs a program. Stderr of the result is why it can't be started.
func (e *Executor) run(ctx context.Context, ws codeexecutor.Workspace, spec codeexecutor.RunProgramSpec, stdout, stderr io.Writer) (r codeexecutor.RunResult, err error) {
	c, err := e.begin(ctx, ws)
	if err != nil {
		return r, err
	}
	defer c.done()
	cwd, err := c.inside(spec.Cwd)
	if err != nil {
		return r, err
	}
	env, err := c.environment(spec)
	if err == nil {
		err = c.sb.MkdirAll(c.ctx, cwd, 0o755)
	}
	if err != nil {
		return r, err
	}
	cmd := c.sb.Command(ctx, spec.Cmd, spec.Args...)
	cmd.Env = env
	if spec.CleanEnv {
		cmd = c.sb.Command(ctx, "env", append(append([]string{"-i"}, env...), append([]string{spec.Cmd}, spec.Args...)...)...)
	}
	cmd.Dir, cmd.Stdout, cmd.Stderr = cwd, stdout, stderr
	if spec.Stdin != "" {
		cmd.Stdin = strings.NewReader(spec.Stdin)
	}
	if cmd.Timeout = spec.Timeout; cmd.Timeout <= 0 {
		cmd.Timeout = e.o.Timeout
	}
	began := time.Now()
	err = cmd.Run()
	r.Duration = time.Since(began)
	var exit *sandbox.ExitError
	switch {
	case err == nil, errors.Is(err, exec.ErrWaitDelay): // it has left a process
	case errors.Is(err, sandbox.ErrSessionLost):
		return r, err
	case errors.As(err, &exit):
		r.ExitCode, r.TimedOut = exit.ExitCode(), errors.Is(err, sandbox.ErrTimeout)
	case ctx.Err() == nil && (errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission)):
		r.ExitCode, r.Stderr = -1, err.Error()
	default:
		return r, err
	}
	return r, nil
}

// environment is that of a program. It makes the directory of a run.
func (c *call) environment(spec codeexecutor.RunProgramSpec) ([]string, error) {
	if err := c.layout(); err != nil {
		return nil, err
	}
	run, err := c.sb.MkdirTemp(c.ctx, c.dir(codeexecutor.DirRuns), "run_*")
	if err != nil {
		return nil, err
	}
	all := map[string]string{
		codeexecutor.WorkspaceEnvDirKey: c.ws.Path, codeexecutor.EnvRunDir: run,
		codeexecutor.EnvSkillsDir: c.dir(codeexecutor.DirSkills), codeexecutor.EnvWorkDir: c.dir(codeexecutor.DirWork), codeexecutor.EnvOutputDir: c.dir(codeexecutor.DirOut),
	}
	if spec.CleanEnv {
		all["PATH"] = cleanPath
	}
	var env []string
	for k, v := range spec.Env {
		all[k] = v
	}
	for k, v := range all {
		if k == "" || strings.ContainsAny(k, "=\x00") {
			return nil, fmt.Errorf("a variable can't have the name %q", k)
		}
		env = append(env, k+"="+v)
	}
	return env, nil
}

// call is a call about a workspace.
type call struct {
	ctx  context.Context // bounded by Options.FileTime
	done func()
	sb   *sandbox.Sandbox
	ws   codeexecutor.Workspace
}

func (e *Executor) begin(ctx context.Context, ws codeexecutor.Workspace) (*call, error) {
	e.mu.Lock()
	sb := e.shared
	if e.create != nil {
		sb = e.own[ws.Path]
	}
	e.mu.Unlock()
	if name, err := filepath.Rel(e.o.Root, ws.Path); sb == nil || err != nil || !filepath.IsLocal(name) || name == "." || path.Clean(ws.Path) != ws.Path {
		return nil, fmt.Errorf("%q is no workspace of this executor", ws.Path)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, e.o.FileTime, fmt.Errorf("files took longer than %v, which is the limit", e.o.FileTime))
	return &call{ctx, cancel, sb, ws}, nil
}

// dir is a directory of the workspace.
func (c *call) dir(name string) string { return path.Join(c.ws.Path, name) }

// inside is the path of a file of the workspace.
func (c *call) inside(name string) (string, error) {
	full := c.dir(filepath.ToSlash(name))
	if full != c.ws.Path && !strings.HasPrefix(full, c.ws.Path+"/") {
		return "", fmt.Errorf("path escapes workspace: %s", name)
	}
	return full, nil
}

// output keeps the beginning of what is written.
type output struct {
	mu   sync.Mutex
	text strings.Builder
	free int
	cut  int64
}

func newOutput(bytes int) *output { return &output{free: bytes} }

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	n := min(len(p), o.free)
	o.text.Write(p[:n])
	o.free, o.cut = o.free-n, o.cut+int64(len(p)-n)
	return len(p), nil
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.cut == 0 {
		return o.text.String()
	}
	return fmt.Sprintf("%s\n[%d more bytes are left out]\n", o.text.String(), o.cut)
}
