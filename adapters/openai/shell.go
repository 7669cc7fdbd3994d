package openai

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/responses"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/sandboxtools"
)

// maxCommands bounds the commands of one call.
const maxCommands = 100

// shell runs the commands of a call, one after the other.
func (t *Tools) shell(ctx context.Context, call responses.ResponseFunctionShellToolCall) (*responses.ResponseInputItemShellCallOutputParam, error) {
	limit := cmp.Or(max(t.limits.CommandTime, 0), sandboxtools.DefaultCommandTime)
	if asked := call.Action.TimeoutMs; asked > 0 && asked < limit.Milliseconds() {
		limit = time.Duration(asked) * time.Millisecond
	}
	size := max(cmp.Or(t.limits.Output, sandboxtools.DefaultOutput), sandboxtools.MinOutput)
	output := &responses.ResponseInputItemShellCallOutputParam{CallID: call.CallID}
	if asked := call.Action.MaxOutputLength; asked > 0 {
		output.MaxOutputLength = openai.Int(asked)
		size = int(min(int64(size), asked))
	}
	for i, command := range call.Action.Commands {
		if i == maxCommands {
			output.Output = append(output.Output, result("", fmt.Sprintf("a call runs at most %d commands", maxCommands), 1))
			break
		}
		one, err := t.command(ctx, command, limit, size)
		if err != nil {
			return nil, fmt.Errorf("the shell: %w", err)
		}
		output.Output = append(output.Output, one)
	}
	return output, nil
}

type commandOutput = responses.ResponseFunctionShellCallOutputContentParam

func result(stdout, stderr string, code int) commandOutput {
	var o commandOutput
	o.Stdout, o.Stderr = stdout, stderr
	o.Outcome.OfExit = &responses.ResponseFunctionShellCallOutputContentOutcomeExitParam{ExitCode: int64(code)}
	return o
}

const (
	maxCommand = 100 << 10       // bytes: the kernel takes 128 KiB in one argument
	grace      = 3 * time.Second // how much longer than a command an answer of the sandbox may take

	// bash runs a script in bash if the image has it. The command is in the environment, since `pkill -f` would find the
	// shell itself by a word of its arguments.
	bash       = `if command -v bash >/dev/null 2>&1; then exec bash -c "$0"; fi; exec sh -c "$0"`
	commandEnv = "SANDBOX_SHELL_COMMAND"
	script     = `eval "unset ` + commandEnv + `; $` + commandEnv + `"`
)

// command runs one command. An error is for the program.
func (t *Tools) command(ctx context.Context, command string, limit time.Duration, size int) (commandOutput, error) {
	if t.sb == nil {
		return commandOutput{}, errors.New("there is no sandbox")
	}
	if len(command) > maxCommand || strings.IndexByte(command, 0) >= 0 {
		return result("", fmt.Sprintf("the command has more than %d bytes, or a zero byte: write it to a file and run that", maxCommand), 126), nil
	}
	bounded, cancel := context.WithTimeout(ctx, limit+grace)
	defer cancel()
	stdout, stderr := &output{half: size/2 + 1}, &output{half: size/2 + 1}
	cmd := t.sb.Command(bounded, "sh", "-c", bash, script)
	cmd.Env = []string{commandEnv + "=" + command}
	cmd.Stdout, cmd.Stderr, cmd.Timeout = stdout, stderr, limit
	err := cmd.Run()
	var exit *sandbox.ExitError
	switch {
	case ctx.Err() != nil:
		return commandOutput{}, context.Cause(ctx)
	case errors.Is(err, sandbox.ErrSessionLost), errors.Is(err, sandbox.ErrEngineUnavailable), errors.Is(err, sandbox.ErrClosed):
		return commandOutput{}, err
	case errors.Is(err, sandbox.ErrTimeout), bounded.Err() != nil:
		o := commandOutput{}
		o.Stdout, o.Stderr = fit(stdout, stderr, size)
		o.Outcome.OfTimeout = new(responses.NewResponseFunctionShellCallOutputContentOutcomeTimeoutParam())
		return o, nil
	case err != nil && !errors.As(err, &exit) && !errors.Is(err, exec.ErrWaitDelay):
		return result("", err.Error(), 126), nil // such as a working directory that is gone
	}
	code := 0
	if exit != nil {
		code = exit.ExitCode()
		if exit.OutOfMemory {
			fmt.Fprint(stderr, "\n[the kernel killed the command, or a process of it, for memory]\n")
		}
	}
	out, errs := fit(stdout, stderr, size)
	return result(out, errs, code), nil
}

// fit returns both streams in at most size bytes. Each may have what the other does not need.
func fit(stdout, stderr *output, size int) (string, string) {
	errs := stderr.text(max(size/2, size-stdout.len()))
	return stdout.text(size - len(errs)), errs
}

// output keeps the first and the last half of a stream.
type output struct {
	half        int
	first, last []byte
	omitted     bool
}

func (o *output) Write(p []byte) (int, error) {
	n := len(p)
	free := min(o.half-len(o.first), len(p))
	o.first, p = append(o.first, p[:free]...), p[free:]
	if len(p) > o.half {
		p, o.omitted = p[len(p)-o.half:], true
	}
	o.last = append(o.last, p...)
	if more := len(o.last) - o.half; more > 0 {
		o.last = append(o.last[:0], o.last[more:]...)
		o.omitted = true
	}
	return n, nil
}

func (o *output) len() int { return len(o.first) + len(o.last) }

const gap = "\n[...]\n"

// text is the stream in at most n bytes, without its middle if it has more.
func (o *output) text(n int) string {
	all := append(o.first[:len(o.first):len(o.first)], o.last...)
	if !o.omitted && len(all) <= n {
		return valid(all)
	}
	half := (n - len(gap)) / 2
	if half <= 0 {
		return valid(all[:min(n, len(all))])
	}
	return valid(all[:half]) + gap + valid(all[len(all)-half:])
}

// valid is text in UTF-8 that is not longer.
func valid(p []byte) string { return strings.ToValidUTF8(string(p), "?") }
