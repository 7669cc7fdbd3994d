// Package sandboxtools is a set of tools for a language model that works in a sandbox: a shell,
// files, searches, and the servers that run inside. It depends on no vendor: a [Tool] has a name, a
// description, a JSON Schema and a function, which an adapter to a vendor's client or to a framework
// passes on.
//
//	tools := sandboxtools.New(sb, sandboxtools.Options{})
//	result, err := tools[0].Call(ctx, json.RawMessage(`{"command": "go test ./..."}`))
//
// An error of Call is for the model to read, unless errors.Is finds [sandbox.ErrSessionLost],
// [sandbox.ErrEngineUnavailable], [sandbox.ErrClosed] or the end of the caller's context: then the
// sandbox failed, not the model. It is [io.EOF] if a file ends before the first line to read. A command
// that exits with another code than 0 is a result, not an error.
//
// Each call is bounded in time and in the bytes that it returns, and ends with its context. Files
// are regular files alone: devices and pipes have no end, or wait for somebody.
package sandboxtools

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
)

// Defaults of [Options].
const (
	DefaultCommandTime = 2 * time.Minute
	DefaultOutput      = 32 << 10
)

// MinOutput is the least [Options].Output, in bytes.
const MinOutput = 1 << 10

// Options limit what one call may take. The zero value has the defaults.
type Options struct {
	// CommandTime bounds each call, and each command that does not run in the background. Default
	// [DefaultCommandTime]. A model may ask for less.
	CommandTime time.Duration
	// Output bounds the text of a result, in bytes. Default [DefaultOutput], at least [MinOutput].
	Output int
	// Report, if not nil, gets all output of the commands that the tool "bash" waits for, as it
	// arrives. ctx is that of the Call. It must not block, nor keep the slice.
	Report func(ctx context.Context, output []byte)
}

func (o Options) complete() Options {
	o.CommandTime = cmp.Or(max(o.CommandTime, 0), DefaultCommandTime)
	o.Output = max(cmp.Or(o.Output, DefaultOutput), MinOutput)
	return o
}

// Tool is one tool. It is safe for concurrent use.
type Tool struct {
	// Name is the tool's name: bash, read, write, edit, glob, grep or fetch.
	Name string
	// Description tells a model what the tool does, and its limits.
	Description string
	// Schema is the JSON Schema of the arguments, an object. It is within the strict subsets of
	// OpenAI and Anthropic: all properties are required, and those with a default may be null. Call
	// takes arguments that lack them, too, and those that may be false or empty.
	Schema json.RawMessage
	// ReadOnly means that the tool changes nothing in the sandbox.
	ReadOnly bool

	call func(context.Context, json.RawMessage) (Result, error)
}

// Call calls the tool with arguments in JSON. Arguments that do not fit the schema are an error
// that says what is wrong with them.
func (t Tool) Call(ctx context.Context, args json.RawMessage) (Result, error) {
	return t.call(ctx, args)
}

// Answer is Call for an adapter to a model's client or to a framework. text is what the model gets;
// failed means that the call went wrong, and that text says why. An err is for the program and not for
// the model: see the errors of the package's documentation. It is [sandbox.ErrSessionLost], too, if the
// session ended during a command.
func (t Tool) Answer(ctx context.Context, args json.RawMessage) (text string, failed bool, err error) {
	r, err := t.Call(ctx, args)
	switch {
	case err == nil && r.Command != nil && r.Command.Status == SessionLost:
		return "", false, fmt.Errorf("the tool %s: %w: %s", t.Name, sandbox.ErrSessionLost, r.Command.Reason)
	case err == nil:
		return r.Text, false, nil
	case ctx.Err() != nil, errors.Is(err, sandbox.ErrSessionLost), errors.Is(err, sandbox.ErrEngineUnavailable), errors.Is(err, sandbox.ErrClosed):
		return "", false, fmt.Errorf("the tool %s: %w", t.Name, err)
	}
	return err.Error(), true, nil
}

// Result is what a call returned. Text is all of it, for a model; the other fields are the same as
// values, for programs.
type Result struct {
	Text string `json:"text"`
	// More means that there is more than the result has: lines of a file, matches, paths.
	More bool `json:"more,omitempty"`
	// Command is how a command went, by the tool "bash".
	Command *Command `json:"command,omitempty"`
	// Matches are the lines that the tool "grep" found.
	Matches []Match `json:"matches,omitempty"`
	// Paths are the files that the tool "glob" found.
	Paths []string `json:"paths,omitempty"`
}

// Command is how a command went.
type Command struct {
	// ID is that of a command in the background.
	ID string `json:"id,omitempty"`
	// Status is [Running], [Exited], [TimedOut] or [SessionLost].
	Status string `json:"status"`
	// ExitCode is nil while the command runs, and if it is not known how it ended.
	ExitCode *int `json:"exitCode,omitempty"`
	// Output is stdout and stderr, in the order written, without what is left out in the middle, and before
	// the last 8 MiB of a command in the background that has ended. In JSON
	// it is left out if it is empty, as of a command that has just begun in the background.
	Output string `json:"output,omitempty"`
	// OmittedBytes is how much that is.
	OmittedBytes int64 `json:"omittedBytes,omitempty"`
	// OutOfMemory is that of [sandbox.ExitError].
	OutOfMemory bool `json:"outOfMemory,omitempty"`
	// Reason says why the session ended, if Status is SessionLost.
	Reason string `json:"reason,omitempty"`
}

// What Command.Status is.
const (
	Running     = "running"
	Exited      = "exited"
	TimedOut    = "timed out"
	SessionLost = "session lost" // during the command
)

// Match is one line that matches.
type Match struct {
	Path string `json:"path"`
	Line int    `json:"line"` // from 1
	Text string `json:"text"` // the beginning of the line, at most 500 bytes
}

// New returns the tools for a sandbox, which stays the caller's; so do the commands in the
// background, which end with its session. The tools have one shell: each New has its own. With nil
// there are the names, descriptions and schemas alone, and a Call returns an error.
func New(sb *sandbox.Sandbox, o Options) []Tool {
	s := &set{sb: sb, limits: o.complete()}
	sh := &shell{set: s, turn: make(chan struct{}, 1)}
	return []Tool{sh.tool(), s.readTool(), s.writeTool(), s.editTool(), s.globTool(), s.grepTool(), s.fetchTool()}
}

// set is the tools of one sandbox.
type set struct {
	sb     *sandbox.Sandbox
	limits Options
}

// property is one argument of a tool.
type property struct {
	name, kind  string
	optional    bool // it may be null
	description string
}

// schema returns the schema of an object. The order of the properties is that in which a model
// writes them.
func schema(properties ...property) json.RawMessage {
	var fields, required bytes.Buffer
	for i, p := range properties {
		var kind any = p.kind
		if p.optional {
			kind = []string{p.kind, "null"}
		}
		value := struct {
			Type        any            `json:"type"`
			Description string         `json:"description"`
			Items       map[string]any `json:"items,omitempty"`
		}{kind, p.description, nil}
		if p.kind == "array" {
			value.Items = map[string]any{"type": "string"}
		}
		if i > 0 {
			fields.WriteByte(',')
			required.WriteByte(',')
		}
		body, _ := json.Marshal(value) // of strings, which can't fail
		fmt.Fprintf(&fields, "%q:%s", p.name, body)
		fmt.Fprintf(&required, "%q", p.name)
	}
	return json.RawMessage(fmt.Sprintf(`{"type":"object","properties":{%s},"required":[%s],"additionalProperties":false}`, &fields, &required))
}

// define makes a tool of fn, which is bounded in time.
func define[In any](s *set, t Tool, fn func(context.Context, In) (Result, error)) Tool {
	t.call = func(ctx context.Context, args json.RawMessage) (Result, error) {
		if s.sb == nil {
			return Result{}, errors.New("the tool has no sandbox")
		}
		var in In
		if err := decode(args, &in); err != nil {
			return Result{}, fmt.Errorf("the arguments of the tool %s: %w", t.Name, err)
		}
		late := fmt.Errorf("it took longer than %v, which is the limit", s.limits.CommandTime)
		bounded, cancel := context.WithTimeoutCause(ctx, s.limits.CommandTime+grace, late)
		defer cancel()
		out, err := fn(bounded, in)
		if err != nil && bounded.Err() != nil {
			err = context.Cause(bounded)
		}
		return out, err
	}
	return t
}

// whole is a whole number, which JSON may write as 60000.0 or 6e4, too: some clients have no other numbers.
type whole int64

const maxWhole = 1 << 53 // beyond, such numbers are not exact

func (w *whole) UnmarshalJSON(text []byte) error {
	var n float64
	if err := json.Unmarshal(text, &n); err != nil {
		return err
	}
	if n != math.Trunc(n) || math.Abs(n) > maxWhole {
		return fmt.Errorf("%s is not a whole number, or too large", text)
	}
	*w = whole(n)
	return nil
}

// grace is how much longer than a command a call may take: the sandbox ends the command.
const grace = 3 * time.Second

// decode reads arguments. What is null is as if it were left out.
func decode(args json.RawMessage, in any) error {
	if len(bytes.TrimSpace(args)) == 0 {
		args = json.RawMessage("{}")
	}
	d := json.NewDecoder(bytes.NewReader(args))
	d.DisallowUnknownFields()
	if err := d.Decode(in); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("there is more than one JSON value")
	}
	return nil
}
