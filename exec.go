package sandbox

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/bound"
	"github.com/seed-1a2d6d8f/sandbox/internal/errdefs"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
	"github.com/seed-1a2d6d8f/sandbox/internal/lifecycle"
	"github.com/seed-1a2d6d8f/sandbox/internal/plan"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/internal/store"
	"github.com/seed-1a2d6d8f/sandbox/internal/trace"
)

// DefaultWaitDelay, 1 s, is how long output may stay open after a command's exit without
// [Cmd.WaitDelay].
const DefaultWaitDelay = time.Second

// KeptOutput, 8 MiB, is how much of a detached command's latest output is kept for
// reattaching: stdout and stderr together.
const KeptOutput = 8 << 20

// Cmd is a command in a sandbox, used like [exec.Cmd]: set its fields, then call
// [Cmd.Run], [Cmd.Output], or [Cmd.Start] and [Cmd.Wait]. No shell is involved. A Cmd is
// used once, and its fields must not change after Start.
type Cmd struct {
	// Path is the program. If it has no slash it is looked up in the PATH of the
	// command's environment.
	Path string
	// Args are the arguments, with the program's name as Args[0]. If it is empty there is no
	// other than Path.
	Args []string
	// Env adds "key=value" entries to the sandbox's environment; the last entry for a key
	// wins. PWD is the working directory unless there is an entry for it.
	Env []string
	// Dir is the working directory. Default: the sandbox's ([WithWorkdir]), to which a relative
	// path is relative.
	Dir string
	// User runs the command, in the form of [WithUser]. Default: the sandbox's user.
	User string
	// Stdin is the command's input; nil is empty, on a terminal, too. It is read ahead of the
	// command. Copying ends with the command, but a Read that blocks keeps its goroutine until
	// it returns, and what it returns is lost. Only the Cmd that started a detached command can
	// give it input.
	Stdin io.Reader
	// Stdout and Stderr receive the output; nil is /dev/null inside. If a Write fails, the
	// stream is closed inside, too: the command's next write ends it by SIGPIPE, or fails. That
	// of a detached command is discarded. If they are the same writer
	// the command has one stream for both, in the order written, and at most one
	// goroutine at a time calls Write. A command of [Sandbox.Process] that was started with
	// two writers keeps two streams: one writer then gets both in the order of arrival. The
	// streams share a connection: if a Write of one does not return, or nobody reads its pipe, the
	// other one stops, too, once about 2 MiB wait.
	Stdout, Stderr io.Writer
	// TTY runs the command on a terminal, of 24 rows and 80 columns unless [Cmd.Resize]
	// was called before. All output goes to Stdout.
	TTY bool
	// Timeout kills the command and all processes it started. It is enforced inside the
	// sandbox, even if this program has ended. The error is [ErrTimeout] and an
	// *[ExitError] with code 137. 0 is no timeout.
	Timeout time.Duration
	// WaitDelay bounds how long Wait continues after the command's exit while its
	// background processes hold the output open. Then the output is cut, and Wait returns
	// [exec.ErrWaitDelay] if the command succeeded. What they write afterwards is discarded;
	// they end with the handle. Default [DefaultWaitDelay]; if negative, Wait waits for the
	// end of the output.
	//
	// It also bounds, a second later, how long Wait continues while a Write of Stdout or
	// Stderr does not return: always after a command that was killed, by whatever, and
	// otherwise if WaitDelay is positive.
	WaitDelay time.Duration
	// Detached lets the command outlive ctx, the handle and the program: it runs until it
	// exits or the session ends. [Sandbox.Process] finds it by [Cmd.ID]. The last
	// [KeptOutput] bytes of its output are kept. Of the commands that ended, the latest
	// 64 are kept, with at most 64 MiB of output together.
	Detached bool

	h        *lifecycle.Handle
	ctx      context.Context
	id       string
	attached *guest.Process // by Process, not by Start
	past     *wire.Exit     // of a command of an earlier session, by Process
	proc     *guest.Process
	conn     *guest.Conn // by which it was started or found
	size     wire.Size

	copies     sync.WaitGroup
	copyErr    error
	copyMu     sync.Mutex
	cut        atomic.Bool                   // the output was lost
	released   atomic.Bool                   // the connection to the command was closed
	stdin      chan error                    // the result of copying Stdin
	pipes      []*io.PipeReader              // of Stdin
	outs       []*outputPipe                 // of Stdout and Stderr
	live       atomic.Pointer[guest.Process] // proc, for the pipes
	receivers  []*receiver
	killed     chan struct{} // closed by Kill
	killing    sync.Once
	watched    chan struct{} // closed when watch has returned
	keepOutput func() bool   // after it the end of ctx no longer cuts the output
	started    bool          // Start was called, with any result
	waited     bool
	dropped    int64

	audit   *slog.Logger // see [WithAudit]
	span    *trace.Span  // from Start to Wait, for a detached command only its Start; nil otherwise
	began   time.Time
	in, out atomic.Int64 // bytes that were copied
}

// Command returns a command to run in the sandbox; name is looked up in PATH. ctx bounds
// the command: when it ends, the command and all processes it started are killed, and
// Wait returns the context's cause. Starting the command resumes a stopped persistent
// sandbox.
func (s *Sandbox) Command(ctx context.Context, name string, args ...string) *Cmd {
	return &Cmd{Path: name, Args: append([]string{name}, args...), h: s.h, ctx: ctx, id: record.NewID(), killed: make(chan struct{}), audit: s.h.Client().Audit}
}

// Process returns a detached command by its ID, from any handle in any process. Its Path,
// Args, Dir and User are those it was started with. [Cmd.Output], [Cmd.Run] and
// [Cmd.Wait] return the kept output, the output still to come, and the exit; ctx bounds
// them but not the command. Process waits for a command that is just being started. Of a
// command of an earlier session there is the exit alone, without Args and output, if it is
// known: see [Sandbox.Processes]. Otherwise the error is [ErrProcessNotFound].
func (s *Sandbox) Process(ctx context.Context, id string) (_ *Cmd, err error) {
	c := &Cmd{h: s.h, ctx: ctx, id: id, Detached: true, killed: make(chan struct{}), audit: s.h.Client().Audit}
	ctx, span := trace.Start(ctx, "sandbox.process", s.h.Trace()...)
	defer span.End(&err)
	if err := s.h.CheckUsable(); err != nil {
		return nil, c.fail(err)
	}
	if !record.ValidName(id) {
		return nil, c.fail(errdefs.Invalid("%q is not the ID of a command", id))
	}
	conn, err := s.h.Connect(ctx)
	if err != nil {
		return nil, c.fail(err)
	}
	c.conn = conn
	p, err := conn.Attach(ctx, id)
	if start := (*wire.StartError)(nil); errors.As(err, &start) && start.Kind == wire.KindUnknownProcess && c.findPast() {
		return c, nil
	}
	if err != nil {
		return nil, c.fail(c.notStarted(err, c.Dir))
	}
	c.attached = p
	was := p.Started().Exec
	c.Path, c.Args, c.Dir, c.User, c.TTY, c.Timeout = was.Program(), was.Args, was.Dir, was.User, was.TTY, was.Timeout
	return c, nil
}

// findPast finds the exit of a command that the session does not keep.
func (c *Cmd) findPast() bool {
	all, err := c.h.Processes(c.ctx)
	if err != nil {
		return false
	}
	for _, p := range all {
		if p.ID == c.id && p.Exit != nil {
			c.past, c.Path, c.Dir, c.User = p.Exit, p.Path, p.Dir, p.User
			return true
		}
	}
	return false
}

// ID returns the command's ID, by which [Sandbox.Process] finds a detached command.
func (c *Cmd) ID() string { return c.id }

// String returns the command line, for people and not for a shell.
func (c *Cmd) String() string {
	if len(c.Args) == 0 {
		return c.Path
	}
	return strings.Join(append([]string{c.Path}, c.Args[1:]...), " ")
}

// Run starts the command and waits for it.
func (c *Cmd) Run() error {
	if err := c.Start(); err != nil {
		return err
	}
	return c.Wait()
}

// Output runs the command and returns its stdout. If Stderr is nil an *[ExitError]
// contains the beginning and the end of its stderr.
//
// If the output is longer than [Limits].Output, 256 MiB by default, Output kills the command
// and returns the output up to the limit and [ErrTooLarge]; a detached command is not killed.
// Use [Cmd.Stdout] or [Cmd.StdoutPipe] for output of any length.
func (c *Cmd) Output() ([]byte, error) {
	if c.Stdout != nil {
		return nil, c.fail(errors.New("field Stdout is already set"))
	}
	if c.h == nil {
		return nil, c.fail(errNotMade)
	}
	out := boundedOutput{limit: c.h.Client().Limits.Output}
	c.Stdout = &out
	var kept *excerpt
	if c.Stderr == nil {
		kept = &excerpt{}
		c.Stderr = kept
	}
	err := c.Run()
	var exit *ExitError
	if kept != nil && errors.As(err, &exit) {
		exit.Stderr = kept.bytes()
	}
	return out.buf.Bytes(), err
}

// CombinedOutput runs the command and returns its stdout and stderr, in the order
// written (see [Cmd.Stdout] for one of [Sandbox.Process]), with the limit of [Cmd.Output].
func (c *Cmd) CombinedOutput() ([]byte, error) {
	if c.Stdout != nil || c.Stderr != nil {
		return nil, c.fail(errors.New("field Stdout or Stderr is already set"))
	}
	if c.h == nil {
		return nil, c.fail(errNotMade)
	}
	out := boundedOutput{limit: c.h.Client().Limits.Output}
	c.Stdout, c.Stderr = &out, &out
	err := c.Run()
	return out.buf.Bytes(), err
}

// boundedOutput keeps what is written to it. A write beyond the limit fails with
// errdefs.TooLarge, which ends the command.
type boundedOutput struct {
	buf   bytes.Buffer
	limit int64
}

func (b *boundedOutput) Write(p []byte) (int, error) {
	n := int(min(int64(len(p)), b.limit-int64(b.buf.Len())))
	b.buf.Write(p[:n])
	if n < len(p) {
		return n, fmt.Errorf("%w: the output has more than %d bytes: see Limits.Output", errdefs.TooLarge, b.limit)
	}
	return n, nil
}

// StdinPipe returns a pipe to the command's input. Closing it ends the input. Once the command has
// ended, writes fail with [io.ErrClosedPipe].
func (c *Cmd) StdinPipe() (io.WriteCloser, error) {
	if c.attached != nil || c.past != nil {
		return nil, c.fail(errNoInput)
	}
	if c.Stdin != nil || c.proc != nil {
		return nil, c.fail(errors.New("field Stdin is already set, or the command has started"))
	}
	r, w := io.Pipe()
	c.Stdin = r
	c.pipes = append(c.pipes, r)
	return w, nil
}

// StdoutPipe returns a pipe from the command's stdout. Read it to its end before Wait, while another
// goroutine reads stderr if that has a pipe, too, or close it: as with os/exec, the command's next
// write then ends it by SIGPIPE, or fails. A detached command goes on.
func (c *Cmd) StdoutPipe() (io.ReadCloser, error) {
	return c.outPipe(&c.Stdout, "Stdout", wire.StreamStdout)
}

// StderrPipe returns a pipe from the command's stderr, like [Cmd.StdoutPipe].
func (c *Cmd) StderrPipe() (io.ReadCloser, error) {
	return c.outPipe(&c.Stderr, "Stderr", wire.StreamStderr)
}

func (c *Cmd) outPipe(field *io.Writer, name string, stream int) (io.ReadCloser, error) {
	if *field != nil || c.proc != nil {
		return nil, c.fail(fmt.Errorf("field %s is already set, or the command has started", name))
	}
	r, w := io.Pipe()
	*field = w
	p := &outputPipe{PipeReader: r, c: c, stream: stream}
	c.outs = append(c.outs, p)
	return p, nil
}

var (
	errNotMade = errdefs.Invalid("the Cmd is not one of Sandbox.Command or Sandbox.Process")
	errNoInput = errdefs.Invalid("field Stdin: only the Cmd that started a detached command can give it input")
)

// Start starts the command and returns when it runs. If there is no such program the
// error is [exec.ErrNotFound]; if it may not be executed, [fs.ErrPermission]. If the context ends
// meanwhile, a command that has started is killed, also a detached one.
func (c *Cmd) Start() error {
	if c.h == nil {
		return c.abort(errNotMade)
	}
	if err := c.h.CheckUsable(); err != nil {
		return c.abort(err)
	}
	if c.proc != nil || c.started {
		return c.fail(errors.New("already started"))
	}
	c.started = true
	if c.Stdin != nil && (c.attached != nil || c.past != nil) {
		return c.abort(errNoInput)
	}
	if c.ctx.Err() != nil {
		return c.abort(errdefs.Cancelled(c.ctx))
	}
	if c.past != nil {
		c.abort(io.EOF) // pipes have no output
		return nil
	}
	var ctx context.Context
	ctx, c.span = trace.Start(c.ctx, "sandbox.command", c.h.Trace()...)
	c.began = time.Now()
	if c.proc = c.attached; c.proc == nil {
		if err := c.start(ctx); err != nil {
			err = c.abort(err)
			c.end(err)
			return err
		}
	}
	c.watched = make(chan struct{})
	go c.watch()
	// A guest that says that the command has ended need not end its output.
	c.keepOutput = context.AfterFunc(c.ctx, func() {
		<-c.watched
		c.release()
	})
	c.copyStreams()
	c.attach()
	if c.Detached && c.attached == nil { // it may never be waited for
		var started error
		c.span.End(&started)
		c.span = nil
	}
	return nil
}

// end reports a command that has ended, with the error of Wait, or that did not start.
func (c *Cmd) end(err error) {
	code, known := 0, err == nil
	if exit, ok := errors.AsType[*ExitError](err); ok {
		code, known = exit.ExitCode(), true
	}
	if known {
		c.span.Set(trace.ExitCode(code))
	}
	c.span.End(&err)
	c.span = nil
	if c.audit == nil {
		return
	}
	rec := c.h.Record()
	attrs := []slog.Attr{
		slog.String("sandbox", rec.Name), slog.String("id", rec.ID), slog.String("command", c.id),
		slog.String("user", cmp.Or(c.User, rec.Settings.User, "root")), slog.String("program", c.Path), slog.Int("args", max(len(c.Args)-1, 0)),
		slog.Bool("detached", c.Detached), slog.Duration("duration", time.Since(c.began)), slog.Int64("in", c.in.Load()), slog.Int64("out", c.out.Load()),
	}
	if known {
		attrs = append(attrs, slog.Int("exit", code))
	} else {
		attrs = append(attrs, slog.String("error", trace.ErrorType(err)))
	}
	c.audit.LogAttrs(c.ctx, slog.LevelInfo, "command", attrs...)
}

func (c *Cmd) start(ctx context.Context) error {
	if err := c.check(); err != nil {
		return err
	}
	conn, err := c.h.Connect(ctx)
	if err != nil {
		return err
	}
	c.conn = conn
	settings := c.h.Record().Settings
	req := wire.Exec{
		ID: c.id, Path: c.Path, Args: c.Args, Dir: c.Dir, User: c.User,
		Stdin: c.Stdin != nil, TTY: c.TTY, Size: c.size, Merge: c.merged(),
		Stdout: c.sink(c.Stdout, wire.StreamStdout), Stderr: c.sink(c.Stderr, wire.StreamStderr),
		NewPrivileges: settings.NewPrivileges, Detached: c.Detached, Timeout: c.Timeout, WaitDelay: c.waitDelay(),
	}
	if c.Detached {
		req.Sandbox = c.h.Record().ID
	}
	base := c.h.Workdir()
	if req.Dir == "" {
		req.Dir = base
	} else if !strings.HasPrefix(req.Dir, "/") {
		req.Dir = base + "/" + req.Dir
	}
	req.Env = c.environ(path.Clean(req.Dir))
	if len(req.Args) == 0 {
		req.Args = []string{c.Path}
	}
	if req.User == "" {
		req.User = settings.User
	}
	if c.TTY && c.size == (wire.Size{}) {
		req.Size = wire.Size{Rows: 24, Cols: 80}
	}
	c.proc, err = conn.Exec(ctx, req)
	if err != nil {
		c.proc = nil
		return c.notStarted(err, req.Dir)
	}
	return nil
}

func (c *Cmd) check() error {
	var problems []error
	if c.Path == "" {
		problems = append(problems, errors.New("there is no program"))
	}
	for _, a := range append([]string{c.Path, c.Dir, c.User}, c.Args...) {
		if strings.ContainsRune(a, 0) {
			problems = append(problems, fmt.Errorf("%q contains a NUL byte", a))
		}
	}
	for i, kv := range c.Env {
		k, v, ok := strings.Cut(kv, "=")
		if !ok { // perhaps a secret that lost its key
			problems = append(problems, fmt.Errorf("field Env: entry %d is not key=value", i))
		} else if err := plan.CheckEnv(k, v); err != nil {
			problems = append(problems, err)
		}
	}
	if c.Timeout < 0 {
		problems = append(problems, fmt.Errorf("field Timeout: %v is negative", c.Timeout))
	}
	if len(problems) > 0 {
		return errdefs.Classify(ErrInvalidArgument, errors.Join(problems...))
	}
	return nil
}

// environ merges the environments, in increasing priority: image, sandbox, update, the directory as
// PWD, command.
func (c *Cmd) environ(dir string) []string {
	env, added := c.h.Environ()
	at := map[string]int{}
	for i, kv := range env {
		k, _, _ := strings.Cut(kv, "=")
		at[k] = i
	}
	var over []string
	for k, v := range added {
		over = append(over, k+"="+v)
	}
	over = append(over, "PWD="+dir)
	for _, kv := range append(over, c.Env...) {
		k, _, _ := strings.Cut(kv, "=")
		if i, ok := at[k]; ok {
			env[i] = kv
			continue
		}
		at[k] = len(env)
		env = append(env, kv)
	}
	return env
}

func (c *Cmd) notStarted(err error, dir string) error {
	var start *wire.StartError
	switch {
	case errors.As(err, &start) && start.Kind == wire.KindStopping && c.ctx.Err() == nil:
		return c.h.ExplainLost(c.ctx, err)
	case errors.As(err, &start):
		return lifecycle.StartError(c.Path, dir, start)
	case c.ctx.Err() != nil:
		return errdefs.Cancelled(c.ctx)
	case errors.Is(err, guest.ErrConnectionLost):
		return c.explainLost(err)
	}
	return err
}

// killGrace is how long a killed command may take until its end is reported.
const killGrace = 800 * time.Millisecond

// watch ends the wait when the context ends, and kills the command unless it is detached.
func (c *Cmd) watch() {
	defer close(c.watched)
	select {
	case <-c.proc.Done():
		return
	case <-c.ctx.Done():
	}
	if !c.Detached {
		ctx, cancel := bound.Outlive(c.ctx, killGrace)
		defer cancel()
		go c.proc.Signal(ctx, int(syscall.SIGKILL), true)
		select {
		case <-c.proc.Done():
			return
		case <-ctx.Done():
		}
	}
	c.release()
}

// release closes the connection to the command: a detached one goes on.
func (c *Cmd) release() {
	c.released.Store(true)
	c.proc.Close()
}

// Wait waits until the command has exited and its output is copied. It returns an
// *[ExitError] if the exit code is not 0, and the context's cause if ctx ended. If the session
// ended meanwhile the error is [ErrSessionLost], and an *[ExitError] as well if it is known how
// the command ended.
func (c *Cmd) Wait() error {
	if c.proc == nil && c.attached != nil {
		if err := c.Start(); err != nil {
			return err
		}
	}
	if c.proc == nil && c.past == nil {
		return c.fail(errors.New("not started"))
	}
	if c.waited {
		return c.fail(errors.New("Wait was already called"))
	}
	c.waited = true
	if c.past != nil {
		return c.failure(*c.past, nil)
	}
	err := c.wait()
	c.end(err)
	return err
}

func (c *Cmd) wait() error {
	complete := c.awaitOutput()
	exit, err := c.ending(complete)
	<-c.watched
	c.keepOutput()
	c.closePipes()
	var inErr error
	if c.stdin != nil {
		select {
		case inErr = <-c.stdin:
		case <-time.After(c.stdinGrace()):
		}
	}
	c.release()
	c.dropped = exit.Dropped
	c.copyMu.Lock()
	outErr := c.copyErr
	c.copyMu.Unlock()

	if errors.Is(outErr, errdefs.TooLarge) {
		return c.fail(outErr)
	}
	if err != nil {
		if c.ctx.Err() != nil {
			return c.fail(errdefs.Cancelled(c.ctx))
		}
		return c.fail(c.explainLost(err))
	}
	if c.ctx.Err() != nil && (c.cut.Load() || !complete || exit.Signal != 0 && !c.Detached) {
		return c.fail(errdefs.Cancelled(c.ctx))
	}
	if err := c.failure(exit, outErr); err != nil {
		return err
	}
	switch {
	case outErr != nil:
		return c.fail(outErr)
	case inErr != nil:
		return c.fail(inErr)
	case exit.WaitDelay:
		return c.fail(exec.ErrWaitDelay)
	}
	return nil
}

// explainLost returns the error of a command whose connection was lost. Whoever kills the guest's server kills the command,
// too, as with kill -9 -1: then it is the command that failed, and not the engine.
func (c *Cmd) explainLost(err error) error {
	why := c.h.ExplainLost(c.ctx, err)
	if !errors.Is(why, errdefs.EngineUnavailable) || errors.Is(why, errdefs.SessionLost) {
		return why
	}
	if killed := c.h.CheckServer(c.ctx, c.conn); errors.Is(killed, lifecycle.ErrServerKilled) {
		return c.failure(wire.Exit{Code: 128 + int(syscall.SIGKILL), Signal: int(syscall.SIGKILL)}, killed)
	}
	return why
}

// failure returns the error of a command that ended so, or nil. A writer that failed may be why.
func (c *Cmd) failure(exit wire.Exit, outErr error) error {
	if exit.Code == 0 && exit.Signal == 0 && !exit.TimedOut {
		return nil
	}
	e := exitError(c.Path, c.h.Record().Name, exit)
	e.err = cmp.Or(c.lostSession(exit), outErr)
	if exit.TimedOut {
		e.err = ErrTimeout
	}
	return e
}

// lostSession returns the error of a session whose end has ended the command so, or nil.
func (c *Cmd) lostSession(exit wire.Exit) error {
	select {
	case <-c.killed:
		return nil
	default:
	}
	switch {
	case exit.TimedOut, exit.OutOfMemory && !exit.Ending:
		return nil
	case c.past != nil && exit.Ending:
		return errdefs.Lost("it was ending", errdefs.SessionLost, errdefs.NotRunning)
	case c.past != nil:
		return nil
	}
	return c.h.ExplainExit(c.ctx, exit)
}

// stdinGrace is how long a Read of Stdin may take to return after the command's exit.
func (c *Cmd) stdinGrace() time.Duration {
	if c.WaitDelay > 0 {
		return c.WaitDelay
	}
	return 100 * time.Millisecond
}

// Dropped returns, after Wait, how many bytes of a detached command's output this reader
// missed, because the command wrote more than [KeptOutput] before they were read.
func (c *Cmd) Dropped() int64 { return c.dropped }

// Pid returns the command's process ID inside the sandbox, or 0 before Start.
func (c *Cmd) Pid() int {
	switch {
	case c.proc != nil:
		return c.proc.Started().Pid
	case c.attached != nil:
		return c.attached.Started().Pid
	}
	return 0
}

// ParseSignal returns the signal of a name of Linux, with or without SIG in front and in any case, or
// of its number there: "TERM", "sigusr1", "RTMIN+1", "9". Other text is an [ErrInvalidArgument]. [Cmd.Signal]
// takes the signal on all systems.
func ParseSignal(text string) (os.Signal, error) {
	sig, err := guest.ParseSignal(text)
	return sig, fail("parse signal", "", err)
}

// Signal sends a signal of package syscall to the command's process group. On all systems
// it arrives as the Linux signal of that name; the numbers 32 to 64 are Linux' real-time signals, and
// 0 sends nothing. If the command has ended the error is [os.ErrProcessDone]. The command's context bounds the call, and 30 s
// do, or 10 s if that context has ended. Then the error is [ErrEngineUnavailable], and the
// signal may still arrive.
func (c *Cmd) Signal(sig os.Signal) error { return c.signal(sig, false) }

// Kill kills the command and all processes it started. It is bounded like [Cmd.Signal].
// After it Wait returns even if a Write of Stdout or Stderr does not. Of a detached command that has
// ended it kills what the command left behind. If nothing is left the error is [os.ErrProcessDone].
func (c *Cmd) Kill() error {
	if c.proc != nil || c.attached != nil {
		c.killing.Do(func() { close(c.killed) })
	}
	return c.signal(os.Kill, true)
}

func (c *Cmd) signal(sig os.Signal, tree bool) error {
	if c.process() == nil {
		return c.fail(errors.New("not started"))
	}
	n, err := guest.LinuxSignal(sig)
	if err != nil {
		return c.fail(err)
	}
	return c.fail(c.request(tree, func(ctx context.Context, p *guest.Process) error { return p.Signal(ctx, n, tree) }))
}

// process returns the command inside, nil before Start.
func (c *Cmd) process() *guest.Process { return cmp.Or(c.proc, c.attached) }

// Resize sets the size of the command's terminal. It may be called before Start. It is
// bounded like [Cmd.Signal].
func (c *Cmd) Resize(rows, cols uint16) error {
	c.size = wire.Size{Rows: rows, Cols: cols}
	if c.process() == nil {
		return nil
	}
	return c.fail(c.request(false, func(ctx context.Context, p *guest.Process) error { return p.Resize(ctx, c.size) }))
}

const (
	// requestTimeout bounds a request about a running command.
	requestTimeout = 30 * time.Second
	// lateRequest bounds one about a command whose context has ended.
	lateRequest = 10 * time.Second
)

// request makes a request about the running command. A detached command can outlive its
// context and Wait, which close the connection to it: then it is found again by its ID, and so it is for a
// request about what is left of it.
func (c *Cmd) request(left bool, do func(context.Context, *guest.Process) error) error {
	ctx, limit := c.ctx, requestTimeout
	late := ctx.Err() != nil
	if late {
		ctx, limit = context.WithoutCancel(ctx), lateRequest
	}
	err := bound.Within(ctx, limit, "the guest did not answer", func(ctx context.Context) error {
		if !c.Detached || !left && (!late && !c.released.Load() || c.ended()) {
			return do(ctx, c.process())
		}
		conn, err := c.h.ConnectRunning(ctx)
		if errors.Is(err, lifecycle.ErrNoSession) {
			if c.ended() {
				return os.ErrProcessDone
			}
			return fmt.Errorf("%w: %w", guest.ErrConnectionLost, err)
		}
		if err != nil {
			return err
		}
		p, err := conn.AttachQuietly(ctx, c.id)
		if start, ok := errors.AsType[*wire.StartError](err); ok && start.Kind == wire.KindUnknownProcess {
			return os.ErrProcessDone
		}
		if err != nil {
			return err
		}
		defer p.Close()
		return do(ctx, p)
	})
	if errors.Is(err, guest.ErrConnectionLost) {
		if ctx.Err() != nil { // its end has closed the connection
			return errdefs.Cancelled(ctx)
		}
		return c.h.ExplainLost(ctx, err)
	}
	return err
}

// ended reports whether it is known how the command ended.
func (c *Cmd) ended() bool {
	select {
	case <-c.process().Done():
		_, err := c.process().Wait()
		return err == nil
	default:
		return false
	}
}

func (c *Cmd) fail(err error) error {
	if _, ok := err.(*ExitError); ok || err == nil { // an ExitError names the command itself
		return err
	}
	if c.Path != "" {
		var notFound *exec.Error
		if !errors.As(err, &notFound) { // its text names the program
			err = fmt.Errorf("%s: %w", errdefs.Printable(c.Path), store.Classify(err))
		}
	}
	name := ""
	if c.h != nil {
		name = c.h.Record().Name
	}
	return fail("exec", name, err)
}

// ExitError reports a command that ran and failed.
type ExitError struct {
	// Signal is the signal that ended the command, nil if it exited.
	Signal os.Signal
	// OutOfMemory means that the kernel killed a process of the sandbox for memory while the command
	// ran, and that SIGKILL ended the command, or that its exit code is 137, as a shell exits whose
	// command SIGKILL ended. The kernel does not say which process it killed: several commands that die
	// by SIGKILL at such a time all have it. Programs that handle the death of a process of theirs exit
	// with other codes, and do not have it. It is known with cgroup 1 and 2; always false with gVisor,
	// and with engines that limit no memory.
	OutOfMemory bool
	// Stderr is the beginning and the end of the command's stderr, 32 KiB each, if it was
	// run by [Cmd.Output] and Stderr was nil.
	Stderr []byte

	cmd, sandbox string
	code         int
	err          error
}

func exitError(program, sandbox string, exit wire.Exit) *ExitError {
	e := &ExitError{cmd: program, sandbox: sandbox, code: exit.Code, OutOfMemory: exit.OutOfMemory}
	if exit.Signal != 0 {
		e.Signal = guest.HostSignal(exit.Signal)
	}
	return e
}

// ExitCode returns the exit code, or 128 + n if signal n ended the command.
func (e *ExitError) ExitCode() int { return e.code }

func (e *ExitError) Error() string {
	how := fmt.Sprintf("exit status %d", e.code)
	if e.Signal != nil {
		how = "signal: " + e.Signal.String()
	}
	if e.OutOfMemory {
		how = "out of memory (" + how + ")"
	}
	if e.err != nil {
		how = e.err.Error() + " (" + how + ")"
	}
	return fmt.Sprintf("sandbox: exec %q: %s: %s", e.sandbox, errdefs.Printable(e.cmd), how)
}

// Unwrap returns [ErrTimeout] if [Cmd.Timeout] ended the command, an [ErrSessionLost] if the end of
// the session did, or else the error of a writer that failed, which ends a command that writes on.
func (e *ExitError) Unwrap() error { return e.err }

// excerpt keeps the beginning and the end of what is written to it.
type excerpt struct {
	head, tail []byte
	omitted    int64
}

const excerptSize = 32 << 10

func (x *excerpt) Write(p []byte) (int, error) {
	n := len(p)
	if room := excerptSize - len(x.head); room > 0 {
		k := min(room, len(p))
		x.head = append(x.head, p[:k]...)
		p = p[k:]
	}
	x.tail = append(x.tail, p...)
	// The tail may grow to twice its size, so that each byte is moved at most once.
	if over := len(x.tail) - excerptSize; over > excerptSize {
		x.omitted += int64(over)
		x.tail = append(x.tail[:0], x.tail[over:]...)
	}
	return n, nil
}

func (x *excerpt) bytes() []byte {
	if over := len(x.tail) - excerptSize; over > 0 {
		x.omitted += int64(over)
		x.tail = x.tail[over:]
	}
	if x.omitted == 0 {
		return append(x.head, x.tail...)
	}
	return slices.Concat(x.head, fmt.Appendf(nil, "\n... omitting %d bytes ...\n", x.omitted), x.tail)
}

// ProcessInfo describes a detached command in [Sandbox.Processes].
type ProcessInfo struct {
	// ID is [Cmd.ID], which [Sandbox.Process] takes.
	ID string `json:"id"`
	// Path is the program. Args are the first 16 arguments, with the program's name; they are
	// known of commands of the running session alone, since they may be secret. Texts are cut
	// to 256 bytes.
	Path string   `json:"path"`
	Args []string `json:"args,omitempty"`
	Dir  string   `json:"workdir,omitempty"`
	User string   `json:"user,omitempty"`
	// StartedAt and EndedAt are by the clock of the engine's machine. EndedAt is zero while
	// the command runs, and if it is not known when it ended.
	StartedAt time.Time `json:"startedAt"`
	EndedAt   time.Time `json:"endedAt,omitzero"`
	Running   bool      `json:"running"`
	// ExitCode is the exit code, or 128 + n if signal n ended the command. Nil while it runs,
	// and if it is not known how it ended, as after a session that was killed.
	ExitCode *int `json:"exitCode,omitempty"`
	// Signal is the number, on Linux, of the signal that ended the command; 0 if it exited.
	Signal int `json:"signal,omitempty"`
	// TimedOut means that [Cmd.Timeout] ended the command.
	TimedOut bool `json:"timedOut,omitempty"`
	// OutOfMemory is [ExitError.OutOfMemory].
	OutOfMemory bool `json:"outOfMemory,omitempty"`
}

// Processes lists the latest 256 detached commands ([Cmd.Detached]) of the running session and of
// earlier ones, in the order in which they started. It does not wait for them, and does not resume
// a stopped sandbox. The sandbox's files have the record of earlier sessions, without arguments;
// root inside can change it, so do not trust it. A new container, after [Sandbox.Update], may not
// have it, and a fork does not list its source's commands.
func (s *Sandbox) Processes(ctx context.Context) (_ []ProcessInfo, err error) {
	ctx, span := trace.Start(ctx, "sandbox.processes", s.h.Trace()...)
	defer span.End(&err)
	defer wrap(&err, "processes", s.Name())
	got, err := s.h.Processes(ctx)
	list := []ProcessInfo{}
	for _, p := range got {
		info := ProcessInfo{ID: p.ID, Path: p.Path, Args: p.Args, Dir: p.Dir, User: p.User, StartedAt: p.Started, EndedAt: p.Ended, Running: p.Live}
		if p.Exit != nil {
			info.ExitCode, info.Signal, info.TimedOut, info.OutOfMemory = new(p.Exit.Code), p.Exit.Signal, p.Exit.TimedOut, p.Exit.OutOfMemory
		}
		list = append(list, info)
	}
	return list, err
}
