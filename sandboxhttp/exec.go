package sandboxhttp

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/seed-1a2d6d8f/sandbox"
)

// stallTimeout is how long a client may read or send nothing of a command or a file. Only tests
// change it.
var stallTimeout = 5 * time.Minute

// execRequest describes a command.
type execRequest struct {
	Command   []string          `json:"command"`
	Env       map[string]string `json:"env"`
	Workdir   string            `json:"workdir"`
	User      string            `json:"user"`
	TimeoutMS int64             `json:"timeoutMs"`
	Stdin     string            `json:"stdin"`
	Detached  bool              `json:"detached"`
	Wait      bool              `json:"wait"`
}

// checkEnv checks the names of variables: cmd makes one text of a name and its value.
func (e *execRequest) checkEnv() error {
	for key := range e.Env {
		if key == "" || strings.ContainsAny(key, "=\r\n\x00") {
			return invalid("env: %q is not the name of a variable: it is not empty and has no =, line break or NUL", key)
		}
	}
	return nil
}

// cmd returns the command. ctx bounds it.
func (e *execRequest) cmd(ctx context.Context, sb *handle) (*sandbox.Cmd, error) {
	if len(e.Command) == 0 {
		return nil, invalid("command is empty: it is the program and its arguments")
	}
	timeout, err := duration("timeoutMs", e.TimeoutMS)
	if err != nil {
		return nil, err
	}
	// A session of before an update, by another handle, may have another environment.
	if _, err := sb.Start(ctx); err != nil {
		return nil, err
	}
	cmd := sb.Command(ctx, e.Command[0], e.Command[1:]...)
	cmd.Dir, cmd.User, cmd.Timeout = e.Workdir, e.User, timeout
	for _, key := range slices.Sorted(maps.Keys(e.Env)) {
		cmd.Env = append(cmd.Env, key+"="+e.Env[key])
	}
	return cmd, nil
}

// execEvent is an event of a command.
type execEvent struct {
	// Event is "started", "stdout", "stderr", "exit" or "failed", or in a line of JSON "idle", which
	// says nothing but keeps proxies from closing a quiet connection.
	Event string `json:"event"`
	// ID is that of a detached command, in "started".
	ID string `json:"id,omitempty"`
	// Text is output, or Base64 if that is not UTF-8.
	Text   string `json:"text,omitempty"`
	Base64 []byte `json:"base64,omitempty"`
	// ExitCode, Signal, TimedOut and OutOfMemory are in "exit", as in sandbox.ProcessInfo.
	ExitCode    *int `json:"exitCode,omitempty"`
	Signal      int  `json:"signal,omitempty"`
	TimedOut    bool `json:"timedOut,omitempty"`
	OutOfMemory bool `json:"outOfMemory,omitempty"`
	// Error is in "failed": it is unknown how the command ended. In "exit" it says why the session
	// ended, if that ended the command.
	Error *failure `json:"error,omitempty"`
}

// exited returns the event for the result of a command's Wait.
func exited(err error) execEvent {
	code, exit := 0, (*sandbox.ExitError)(nil)
	switch {
	case errors.As(err, &exit):
		code = exit.ExitCode()
		e := execEvent{Event: "exit", ExitCode: &code, TimedOut: errors.Is(exit, sandbox.ErrTimeout), OutOfMemory: exit.OutOfMemory}
		if errors.Is(exit, sandbox.ErrSessionLost) {
			_, f := explain(exit)
			e.Error = &f
		}
		if s, ok := exit.Signal.(syscall.Signal); ok {
			e.Signal = int(s)
		}
		return e
	case err == nil, errors.Is(err, exec.ErrWaitDelay): // its children held the output open
		return execEvent{Event: "exit", ExitCode: &code}
	}
	_, f := explain(err)
	return execEvent{Event: "failed", Error: &f}
}

func (h *handler) exec(w http.ResponseWriter, r *http.Request) error {
	var req execRequest
	if err := decode(w, r, &req); err != nil {
		return err
	}
	if req.Detached && req.Stdin != "" {
		return invalid("a detached command has no stdin")
	}
	if req.Detached && req.Wait {
		return invalid("wait: nobody waits for a detached command")
	}
	if err := req.checkEnv(); err != nil {
		return err
	}
	return h.use(r, func(sb *handle) error {
		if req.Detached {
			return startDetached(w, r, sb, &req)
		}
		if req.Wait {
			return runToEnd(w, r, sb, &req)
		}
		return run(w, r, sb, &req)
	})
}

func startDetached(w http.ResponseWriter, r *http.Request, sb *handle, req *execRequest) error {
	cmd, err := req.cmd(r.Context(), sb)
	if err != nil {
		return err
	}
	cmd.Detached = true
	if err := cmd.Start(); err != nil {
		return err
	}
	answer(w, http.StatusAccepted, execEvent{Event: "started", ID: cmd.ID()})
	return nil
}

// execResult is a command that has ended. The fields of execEvent mean the same here.
type execResult struct {
	ExitCode     int      `json:"exitCode"`
	Stdout       string   `json:"stdout"`
	Stderr       string   `json:"stderr"`
	StdoutBase64 []byte   `json:"stdoutBase64,omitempty"` // instead of Stdout that is not UTF-8
	StderrBase64 []byte   `json:"stderrBase64,omitempty"`
	DroppedBytes int64    `json:"droppedBytes,omitempty"` // of output beyond sandbox.KeptOutput of each stream
	Signal       int      `json:"signal,omitempty"`
	TimedOut     bool     `json:"timedOut,omitempty"`
	OutOfMemory  bool     `json:"outOfMemory,omitempty"`
	Error        *failure `json:"error,omitempty"`
}

// runToEnd answers when a command has ended, with its output.
func runToEnd(w http.ResponseWriter, r *http.Request, sb *handle, req *execRequest) error {
	cmd, err := req.cmd(r.Context(), sb)
	if err != nil {
		return err
	}
	var stdout, stderr latest
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(req.Stdin), &stdout, &stderr
	err = cmd.Run()
	e := exited(err)
	if e.ExitCode == nil {
		return err
	}
	result := execResult{ExitCode: *e.ExitCode, Signal: e.Signal, TimedOut: e.TimedOut, OutOfMemory: e.OutOfMemory, Error: e.Error}
	result.Stdout, result.StdoutBase64 = stdout.text()
	result.Stderr, result.StderrBase64 = stderr.text()
	result.DroppedBytes = stdout.dropped + stderr.dropped
	answer(w, http.StatusOK, result)
	return nil
}

// latest keeps the latest sandbox.KeptOutput bytes that are written to it.
type latest struct {
	kept    []byte // up to twice as many
	dropped int64
}

func (l *latest) Write(p []byte) (int, error) {
	l.kept = append(l.kept, p...)
	if len(l.kept) > 2*sandbox.KeptOutput {
		l.cut()
	}
	return len(p), nil
}

// cut drops what is too old.
func (l *latest) cut() {
	if old := len(l.kept) - sandbox.KeptOutput; old > 0 {
		l.kept = l.kept[:copy(l.kept, l.kept[old:])]
		l.dropped += int64(old)
	}
}

// text returns what is kept, as text or as bytes that are none. The cut splits no character of a text.
func (l *latest) text() (string, []byte) {
	l.cut()
	whole := l.kept
	for l.dropped > 0 && len(whole) > 0 && len(l.kept)-len(whole) < utf8.UTFMax-1 && !utf8.RuneStart(whole[0]) {
		whole = whole[1:]
	}
	if !utf8.Valid(whole) {
		return "", l.kept
	}
	l.dropped += int64(len(l.kept) - len(whole))
	return string(whole), nil
}

// run sends the events of a command.
func run(w http.ResponseWriter, r *http.Request, sb *handle, req *execRequest) error {
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	cmd, err := req.cmd(ctx, sb)
	if err != nil {
		return err
	}
	kind := jsonLines
	if strings.Contains(r.Header.Get("Accept"), "text/event-stream") {
		kind = eventStream
	}
	s := &execStream{sender: newSender(w, kind, stallTimeout), cancel: cancel}
	defer s.close()
	stdout, stderr := &output{s: s, name: sandbox.Stdout}, &output{s: s, name: sandbox.Stderr}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(req.Stdin), stdout, stderr
	// Output waits for the event of the start.
	s.mu.Lock()
	err = cmd.Start()
	if err == nil {
		s.send(execEvent{Event: "started"})
	}
	s.mu.Unlock()
	if err != nil {
		return err
	}
	beats, end := context.WithCancel(ctx)
	var beating sync.WaitGroup
	beating.Go(func() { s.beatUntil(beats) })
	err = cmd.Wait()
	end()
	beating.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	stdout.rest()
	stderr.rest()
	s.send(exited(err))
	return nil
}

// An execStream sends events from several goroutines.
type execStream struct {
	mu sync.Mutex // guards the following
	sender

	cancel context.CancelCauseFunc // of the command
}

// send sends an event. If the client does not take it, the command ends. The caller holds mu.
func (s *execStream) send(e execEvent) error {
	s.object(e.Event, e)
	err := s.flush()
	if err != nil {
		s.cancel(err)
	}
	return err
}

func (s *execStream) beatUntil(ctx context.Context) {
	tick := time.NewTicker(heartbeat)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			s.mu.Lock()
			s.beat()
			if err := s.flush(); err != nil {
				s.cancel(err)
			}
			s.mu.Unlock()
		}
	}
}

// An output sends what a command writes to one of its streams.
type output struct {
	s    *execStream
	name string
	part []byte // the beginning of a character
}

func (o *output) Write(b []byte) (int, error) {
	o.s.mu.Lock()
	defer o.s.mu.Unlock()
	text := append(o.part, b...)
	whole := len(text) - partial(text)
	o.part = slices.Clone(text[whole:])
	if whole == 0 {
		return len(b), nil
	}
	if err := o.s.send(outputEvent(o.name, text[:whole])); err != nil {
		return 0, err
	}
	return len(b), nil
}

// rest sends the trailing bytes that do not complete a character in UTF-8.
func (o *output) rest() {
	if len(o.part) > 0 {
		o.s.send(outputEvent(o.name, o.part))
	}
}

func outputEvent(name string, data []byte) execEvent {
	if utf8.Valid(data) {
		return execEvent{Event: name, Text: string(data)}
	}
	return execEvent{Event: name, Base64: data}
}

// partial returns how many bytes at the end of b are the beginning of a character.
func partial(b []byte) int {
	for n := 1; n < utf8.UTFMax && n <= len(b); n++ {
		if last := b[len(b)-n:]; utf8.RuneStart(last[0]) {
			if utf8.FullRune(last) {
				return 0
			}
			return n
		}
	}
	return 0
}
