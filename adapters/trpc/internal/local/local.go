// Package local has the names of the framework's package codeexecutor/local, so that the framework's own
// tests of its workspaces run against ours, see TestFrameworksTests. Its workspaces are in a directory that
// this machine and the sandbox have at the same path, since those tests look at files with package os.
package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"trpc.group/trpc-go/trpc-agent-go/codeexecutor"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/adapters/trpc"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// Main runs the tests in a sandbox.
func Main(m *testing.M) {
	root, err := os.MkdirTemp("", "trpc-")
	var c *sandbox.Client
	var sb *sandbox.Sandbox
	if err == nil {
		c, err = sandbox.NewClient()
	}
	if err == nil {
		sb, err = c.Create(context.Background(), sandbox.WithMounts(sandbox.Mount{Source: root, Target: root, Mode: sandbox.RW}))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	executor = trpc.New(sb, trpc.Options{Root: root + "/run"})
	harness.AtEnd(func() { sb.Close(); c.Close() })
	harness.Main(m, func() error { return os.RemoveAll(root) })
}

var executor *trpc.Executor

// Runtime is ours.
type Runtime struct {
	*trpc.Executor
	readOnly bool
}

// StageDirectory has the option of a runtime that makes all copies read-only.
func (r *Runtime) StageDirectory(ctx context.Context, ws codeexecutor.Workspace, src, to string, o codeexecutor.StageOptions) error {
	o.ReadOnly = o.ReadOnly || r.readOnly
	return r.Executor.StageDirectory(ctx, ws, src, to, o)
}

// PutDirectory is StageDirectory without options.
func (r *Runtime) PutDirectory(ctx context.Context, ws codeexecutor.Workspace, src, to string) error {
	return r.StageDirectory(ctx, ws, src, to, codeexecutor.StageOptions{})
}

// ExecuteInline has the output of ExecuteCode, which is that of both streams.
func (r *Runtime) ExecuteInline(ctx context.Context, id string, blocks []codeexecutor.CodeBlock, _ time.Duration) (codeexecutor.RunResult, error) {
	out, err := r.ExecuteCode(ctx, codeexecutor.CodeExecutionInput{CodeBlocks: blocks, ExecutionID: id})
	return codeexecutor.RunResult{Stdout: out.Output, Stderr: out.Output}, err
}

// PathListSeparator is that of Linux.
func (r *Runtime) PathListSeparator() string { return ":" }

// Option is an option of a runtime.
type Option func(*Runtime) error

// Mode is how a runtime chooses directories.
type Mode int

// WorkspaceModeTrustedLocal is what ours does not have: a workspace at a path of the caller's.
const WorkspaceModeTrustedLocal Mode = 1

// NewRuntime returns a runtime.
func NewRuntime(string) *Runtime { return &Runtime{Executor: executor} }

// NewRuntimeWithOptions returns a runtime.
func NewRuntimeWithOptions(_ string, opts ...Option) *Runtime {
	r := NewRuntime("")
	for _, o := range opts {
		if o(r) != nil {
			return &Runtime{Executor: trpc.NewIsolated(func(context.Context) (*sandbox.Sandbox, error) { return nil, errors.ErrUnsupported }, trpc.Options{})}
		}
	}
	return r
}

// WithReadOnlyStagedSkill makes all copies read-only.
func WithReadOnlyStagedSkill(on bool) Option {
	return func(r *Runtime) error { r.readOnly = on; return nil }
}

// WithInputsHostBase is not there.
func WithInputsHostBase(string) Option { return func(*Runtime) error { return errors.ErrUnsupported } }

// WithRuntimeWorkspaceMode is not there.
func WithRuntimeWorkspaceMode(Mode) Option {
	return func(*Runtime) error { return errors.ErrUnsupported }
}
