package eino

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os/exec"
	"path"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/sandboxtools"
)

// CommandOutput is the type of commandline.CommandOutput of eino-ext.
type CommandOutput interface {
	~struct {
		Stdout   string
		Stderr   string
		ExitCode int
	}
}

// Operator is a sandbox as the Operator of [github.com/cloudwego/eino-ext/components/tool/commandline], for
// its editor and its executor of Python. This package does not import that module, so its type is an
// argument:
//
//	editor, err := commandline.NewStrReplaceEditor(ctx, &commandline.EditorConfig{
//		Operator: eino.NewOperator[commandline.CommandOutput](sb, eino.Options{}),
//	})
//
// Paths are relative to the sandbox's working directory. It is safe for concurrent use.
type Operator[T CommandOutput] struct {
	sb *sandbox.Sandbox
	o  Options
}

// NewOperator returns an operator on a sandbox, which stays the caller's.
func NewOperator[T CommandOutput](sb *sandbox.Sandbox, o Options) *Operator[T] {
	o.Output = cmp.Or(max(o.Output, 0), DefaultOutput)
	o.CommandTime = cmp.Or(max(o.CommandTime, 0), sandboxtools.DefaultCommandTime)
	return &Operator[T]{sb, o}
}

// ReadFile returns the content of a regular file. It is an error if that is longer than Options.Output.
func (p *Operator[T]) ReadFile(ctx context.Context, name string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, p.o.CommandTime)
	defer cancel()
	info, err := p.sb.Stat(ctx, name)
	switch {
	case err != nil:
		return "", err
	case !info.Mode().IsRegular():
		return "", fmt.Errorf("%s is not a regular file", name)
	}
	f, err := p.sb.Open(ctx, name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	defer context.AfterFunc(ctx, func() { f.Close() })()
	text, err := io.ReadAll(io.LimitReader(f, int64(p.o.Output)+1))
	if err == nil && len(text) > p.o.Output {
		err = fmt.Errorf("%s has more than %d bytes: %w", name, p.o.Output, sandbox.ErrTooLarge)
	}
	if err != nil {
		return "", err
	}
	return string(text), nil
}

// WriteFile writes a whole file, and makes the directories that it is in.
func (p *Operator[T]) WriteFile(ctx context.Context, name, content string) error {
	ctx, cancel := context.WithTimeout(ctx, p.o.CommandTime)
	defer cancel()
	if err := p.sb.MkdirAll(ctx, path.Dir(name), 0o755); err != nil {
		return err
	}
	return p.sb.WriteFile(ctx, name, []byte(content), 0o644)
}

// IsDirectory reports whether the file is a directory. That there is none is an error.
func (p *Operator[T]) IsDirectory(ctx context.Context, name string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, p.o.CommandTime)
	defer cancel()
	info, err := p.sb.Stat(ctx, name)
	return err == nil && info.IsDir(), err
}

// Exists reports whether there is such a file.
func (p *Operator[T]) Exists(ctx context.Context, name string) (bool, error) {
	_, err := p.IsDirectory(ctx, name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// RunCommand runs a program, without a shell. A program that fails is no error. Of stdout and stderr it
// returns the first Options.Output bytes each, and of a program that takes too long the exit code 137.
func (p *Operator[T]) RunCommand(ctx context.Context, command []string) (*T, error) {
	if len(command) == 0 {
		return nil, errors.New("there is no command")
	}
	cmd := p.sb.Command(ctx, command[0], command[1:]...)
	stdout, stderr := head{free: p.o.Output}, head{free: p.o.Output}
	cmd.Stdout, cmd.Stderr, cmd.Timeout = &stdout, &stderr, p.o.CommandTime
	err := cmd.Run()
	var exit *sandbox.ExitError
	code := 0
	switch {
	case errors.Is(err, exec.ErrWaitDelay): // it has left a process
	case errors.Is(err, sandbox.ErrSessionLost), err != nil && !errors.As(err, &exit):
		return nil, err
	case exit != nil:
		code = exit.ExitCode()
	}
	return &T{Stdout: string(stdout.text), Stderr: string(stderr.text), ExitCode: code}, nil
}

// head keeps the beginning of output.
type head struct {
	text []byte
	free int
}

func (h *head) Write(p []byte) (int, error) {
	n := min(len(p), h.free)
	h.text, h.free = append(h.text, p[:n]...), h.free-n
	return len(p), nil
}
