// Package cases runs the same cases by os/exec and by sandbox.Cmd, and notes what a caller and the
// processes see. A program that runs them by os/exec inside a sandbox and a test that runs them by
// sandbox.Cmd outside use it.
package cases

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing/iotest"
	"time"
)

// Case is one command, with all that a caller does to it.
type Case struct {
	Name string
	// Differs names the row of docs/differences.md if the results differ on purpose.
	Differs string
	// Hangs is "os/exec" or "Cmd" if that one may never end, on purpose.
	Hangs string

	Path   string
	Args   []string // nil is nil
	Env    []string
	Dir    string
	Stdin  string // a kind of reader, see stdin
	Stdout string // a kind of writer, see observer.output
	Stderr string
	// Call is run, output, combined, or start, which is Start and Wait with Act between them.
	Call      string
	Act       string
	WaitDelay time.Duration
	Timeout   time.Duration // Cmd.Timeout, which is os/exec's context with a deadline
	Deadline  time.Duration // of the context of both
}

// Shell returns a case that runs a script.
func Shell(name, script string) Case {
	return Case{Name: name, Path: "/bin/sh", Args: []string{"sh", "-c", script}, Call: "run"}
}

// Command is a command of either package.
type Command interface {
	Start() error
	Wait() error
	Run() error
	Output() ([]byte, error)
	CombinedOutput() ([]byte, error)
	StdinPipe() (io.WriteCloser, error)
	StdoutPipe() (io.ReadCloser, error)
	StderrPipe() (io.ReadCloser, error)
	Kill() error
	Signal(os.Signal) error
	// Kept returns the Stderr of the package's ExitError.
	Kept(err error) []byte
}

// Make returns a command with the fields of a case and these streams.
type Make func(ctx context.Context, c Case, in io.Reader, out, err io.Writer) Command

// Result is what was observed.
type Result struct {
	Start, Wait string            `json:",omitempty"` // classes of errors
	Out, Err    string            `json:",omitempty"`
	Notes       map[string]string `json:",omitempty"` // of other calls
}

// ErrBroken is the error of readers and writers that fail.
var ErrBroken = errors.New("broken stream")

// Hanging is how long a case that may never end is waited for, and Patience how long any other is, on however busy a machine.
const (
	Hanging  = 20 * time.Second
	Patience = 5 * time.Minute
)

// Class says of which kind an error is.
func Class(err error) string {
	if err == nil {
		return "nil"
	}
	var exit interface {
		error
		ExitCode() int
	}
	if errors.As(err, &exit) {
		text := exit.Error()
		if i := strings.LastIndex(text, "signal: "); i >= 0 {
			text = strings.TrimSuffix(text[i:], ")")
			return strings.TrimSuffix(text, " (core dumped)")
		}
		return fmt.Sprint("exit ", exit.ExitCode())
	}
	var kinds []string
	for _, k := range []struct {
		name string
		err  error
	}{
		{"ErrWaitDelay", exec.ErrWaitDelay}, {"exec.ErrNotFound", exec.ErrNotFound}, {"fs.ErrNotExist", fs.ErrNotExist},
		{"fs.ErrPermission", fs.ErrPermission}, {"E2BIG", syscall.E2BIG}, {"ENOTDIR", syscall.ENOTDIR}, {"ENOEXEC", syscall.ENOEXEC},
		{"ELOOP", syscall.ELOOP}, {"ENAMETOOLONG", syscall.ENAMETOOLONG},
		{"broken stream", ErrBroken}, {"short write", io.ErrShortWrite}, {"context.Canceled", context.Canceled}, {"context.DeadlineExceeded", context.DeadlineExceeded},
		{"os.ErrClosed", os.ErrClosed}, {"os.ErrProcessDone", os.ErrProcessDone}, {"unexpected EOF", io.ErrUnexpectedEOF}, {"closed pipe", io.ErrClosedPipe},
	} {
		if errors.Is(err, k.err) {
			kinds = append(kinds, k.name)
		}
	}
	if kinds == nil {
		return "error"
	}
	return strings.Join(kinds, "+")
}

// content names bytes: short texts as they are.
func content(b []byte) string {
	if len(b) <= 100 {
		return fmt.Sprintf("%q", b)
	}
	return fmt.Sprintf("%d bytes %x", len(b), sha256.Sum256(b))
}

type observer struct {
	c    Case
	cmd  Command
	res  Result
	mu   sync.Mutex
	wait sync.WaitGroup // readers of pipes
	free chan struct{}  // closed when writers and readers that block may return
	rest *os.File       // a file that is Stdin
	errs chan struct{}  // closed when StderrPipe has been read
}

func (o *observer) note(what, result string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.res.Notes == nil {
		o.res.Notes = map[string]string{}
	}
	o.res.Notes[what] = result
}

// Run runs a case by one of the two, "os/exec" or "Cmd". A hang is a result.
func Run(c Case, by string, make Make) Result {
	o := &observer{c: c, free: newSignal(), errs: newSignal()}
	ended := newSignal()
	go func() {
		defer close(ended)
		o.run(make)
	}()
	bound := Patience
	if c.Hangs == by {
		bound = Hanging
	}
	select {
	case <-ended:
	case <-time.After(bound):
		close(o.free)
		if o.cmd != nil {
			o.cmd.Kill() // what holds its output may go on
		}
		return Result{Wait: "hangs"}
	}
	close(o.free)
	return o.res
}

// newSignal returns a channel to close: make is the name of an argument.
func newSignal() chan struct{} { return make(chan struct{}) }

func (o *observer) run(make Make) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if o.c.Deadline != 0 {
		ctx, cancel = context.WithTimeout(ctx, o.c.Deadline)
		defer cancel()
	}
	out, err := o.output("stdout", o.c.Stdout), o.output("stderr", o.c.Stderr)
	if o.c.Stderr == "same" {
		err = out
	}
	o.cmd = make(ctx, o.c, o.stdin(), writerOf(out), writerOf(err))
	o.pipes()
	if o.c.Act == "pipes-set" {
		o.openSet()
	}
	switch o.c.Call {
	case "output", "combined":
		o.collect()
	default:
		o.call(cancel)
	}
	o.wait.Wait()
	if o.rest != nil {
		b, err := io.ReadAll(o.rest)
		o.note("rest of Stdin", content(b)+" "+Class(errors.Join(err, o.rest.Close())))
	}
	if out != nil {
		o.res.Out = out.seen()
	}
	if err != nil && o.c.Stderr != "same" {
		o.res.Err = err.seen()
	}
}

// openSet opens pipes of streams that are set.
func (o *observer) openSet() {
	if o.c.Stdin != "" {
		_, err := o.cmd.StdinPipe()
		o.note("StdinPipe of a Stdin that is set", Class(err))
	}
	if o.c.Stdout != "" {
		_, err := o.cmd.StdoutPipe()
		o.note("StdoutPipe of a Stdout that is set", Class(err))
	}
	if o.c.Stderr != "" {
		_, err := o.cmd.StderrPipe()
		o.note("StderrPipe of a Stderr that is set", Class(err))
	}
}

// collect calls Output or CombinedOutput.
func (o *observer) collect() {
	call := o.cmd.Output
	if o.c.Call == "combined" {
		call = o.cmd.CombinedOutput
	}
	b, err := call()
	o.res.Wait = Class(err)
	o.note("output", content(b))
	o.note("stderr of the error", content(o.cmd.Kept(err)))
	if o.c.Act == "twice" {
		_, err := call()
		o.note("the same again", Class(err))
	}
}

func (o *observer) call(cancel func()) {
	if o.c.Call == "run" {
		o.res.Wait = Class(o.cmd.Run())
		return
	}
	switch o.c.Act {
	case "wait-first":
		o.note("Wait before Start", Class(o.cmd.Wait()))
	case "cancel-before":
		cancel()
	case "cancel-during":
		go cancel()
		err := o.cmd.Start()
		if err == nil {
			err = o.cmd.Wait()
		}
		if class := Class(err); class != "context.Canceled" && class != "signal: killed" {
			o.res.Wait = class
		}
		return
	}
	started := o.cmd.Start()
	o.res.Start = Class(started)
	if started != nil {
		o.note("Start after a failed Start", Class(o.cmd.Start()))
		o.note("Wait after a failed Start", Class(o.cmd.Wait()))
		return
	}
	o.act(cancel)
	o.res.Wait = Class(o.cmd.Wait())
	switch o.c.Act {
	case "twice":
		o.note("Start after Wait", Class(o.cmd.Start()))
		o.note("Wait after Wait", Class(o.cmd.Wait()))
		o.note("Kill after Wait", Class(o.cmd.Kill()))
		o.note("Signal after Wait", Class(o.cmd.Signal(syscall.SIGTERM)))
	case "cancel-after":
		cancel()
		o.note("Wait after the end of the context", Class(o.cmd.Wait()))
		o.note("Kill after the end of the context", Class(o.cmd.Kill()))
	case "pipes-late":
		_, e := o.cmd.StdoutPipe()
		o.note("StdoutPipe after Wait", Class(e))
		_, e = o.cmd.StdinPipe()
		o.note("StdinPipe after Wait", Class(e))
	}
}

// act does what a caller does between Start and Wait.
func (o *observer) act(cancel func()) {
	switch o.c.Act {
	case "kill":
		o.note("Kill", Class(o.cmd.Kill()))
	case "kill-beside":
		o.wait.Go(func() { o.note("Kill", Class(o.cmd.Kill())) })
	case "cancel", "cancel-softly":
		cancel()
	case "cancel-beside":
		go cancel()
	case "kill-twice":
		o.note("Kill", Class(o.cmd.Kill()))
		if err := o.cmd.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) { // it may have ended
			o.note("Kill again", Class(err))
		}
	case "term":
		o.note("Signal", Class(o.cmd.Signal(syscall.SIGTERM)))
	case "start-again":
		o.note("Start again", Class(o.cmd.Start()))
	case "pipes-again":
		_, e := o.cmd.StdoutPipe()
		o.note("StdoutPipe after Start", Class(e))
		_, e = o.cmd.StderrPipe()
		o.note("StderrPipe after Start", Class(e))
		_, e = o.cmd.StdinPipe()
		o.note("StdinPipe after Start", Class(e))
	}
}

// stdin returns the reader of a kind.
func (o *observer) stdin() io.Reader {
	switch o.c.Stdin {
	case "", "pipe", "pipe-closed":
		return nil
	case "empty":
		return strings.NewReader("")
	case "text":
		return strings.NewReader("some\ninput\n")
	case "file":
		f, err := os.CreateTemp("", "stdin")
		if err != nil {
			panic(err)
		}
		defer os.Remove(f.Name())
		f.WriteString("some\ninput\n")
		f.Seek(0, io.SeekStart)
		o.rest = f
		return f
	case "large":
		return bytes.NewReader(bytes.Repeat([]byte("0123456789abcde\n"), 1<<16))
	case "bytes":
		return iotest.OneByteReader(strings.NewReader(strings.Repeat("a byte at a time\n", 300)))
	case "half":
		return iotest.HalfReader(bytes.NewReader(bytes.Repeat([]byte("0123456789abcde\n"), 1<<14)))
	case "with-end": // the end comes with the last bytes
		return iotest.DataErrReader(strings.NewReader("some\ninput\n"))
	case "slow":
		pause := reader(func([]byte) (int, error) { time.Sleep(20 * time.Millisecond); return 0, io.EOF })
		return io.MultiReader(pause, strings.NewReader("late\n"), pause, strings.NewReader("later\n"))
	case "nothing-first": // a Read may return nothing
		n := 0
		return io.MultiReader(reader(func([]byte) (int, error) {
			if n++; n < 3 {
				return 0, nil
			}
			return 0, io.EOF
		}), strings.NewReader("some\n"))
	case "failing-late":
		return io.MultiReader(bytes.NewReader(bytes.Repeat([]byte("0123456789abcde\n"), 1<<15)), failing{ErrBroken})
	case "failing-with":
		return iotest.DataErrReader(io.MultiReader(strings.NewReader("some\n"), failing{ErrBroken}))
	case "blocking-late":
		return io.MultiReader(strings.NewReader("some\n"), reader(func([]byte) (int, error) { <-o.free; return 0, io.EOF }))
	case "failing":
		return io.MultiReader(strings.NewReader("some\n"), failing{ErrBroken})
	case "failing-eof": // an error that is no end
		return io.MultiReader(strings.NewReader("some\n"), failing{fmt.Errorf("%w: %w", ErrBroken, io.EOF)})
	case "failing-closed":
		return io.MultiReader(strings.NewReader("some\n"), failing{fmt.Errorf("%w: %w", ErrBroken, io.ErrClosedPipe)})
	case "blocking":
		return reader(func([]byte) (int, error) { <-o.free; return 0, io.EOF })
	}
	panic("no kind of stdin: " + o.c.Stdin)
}

type reader func([]byte) (int, error)

func (r reader) Read(b []byte) (int, error) { return r(b) }

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// output is a writer that knows what it got.
type output struct {
	write func([]byte) (int, error) // nil for a file
	file  *os.File
	mu    sync.Mutex
	got   []byte
	quiet bool // what it got varies
}

func (w *output) Write(b []byte) (int, error) {
	w.mu.Lock()
	w.got = append(w.got, b...)
	w.mu.Unlock()
	return w.write(b)
}

func (w *output) seen() string {
	if w.quiet {
		return ""
	}
	if w.file != nil {
		b, err := os.ReadFile(w.file.Name())
		w.file.Close()
		os.Remove(w.file.Name())
		return content(b) + " " + Class(err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return content(w.got)
}

func writerOf(w *output) io.Writer {
	switch {
	case w == nil:
		return nil
	case w.file != nil:
		return w.file
	}
	return w
}

// output returns the writer of a kind: nil for a pipe, which pipes opens.
func (o *observer) output(name, kind string) *output {
	took := func(b []byte) (int, error) { return len(b), nil }
	switch kind {
	case "", "same", "pipe", "pipe-closed", "pipe-ten", "pipe-after", "pipe-last":
		return nil
	case "buffer":
		return &output{write: took}
	case "slow":
		return &output{write: func(b []byte) (int, error) { time.Sleep(20 * time.Millisecond); return len(b), nil }}
	case "failing":
		return &output{quiet: true, write: func([]byte) (int, error) { return 0, ErrBroken }}
	case "failing-late":
		n := 0
		return &output{quiet: true, write: func(b []byte) (int, error) {
			if n += len(b); n > 1000 {
				return 0, ErrBroken
			}
			return len(b), nil
		}}
	case "short":
		return &output{quiet: true, write: func(b []byte) (int, error) { return len(b) - 1, nil }}
	case "blocking":
		return &output{quiet: true, write: func(b []byte) (int, error) { <-o.free; return len(b), nil }}
	case "file":
		f, err := os.CreateTemp("", name)
		if err != nil {
			panic(err)
		}
		return &output{file: f}
	}
	panic("no kind of output: " + kind)
}

// pipes opens the pipes of a case and starts what uses them.
func (o *observer) pipes() {
	if o.c.Stdin == "pipe" || o.c.Stdin == "pipe-closed" {
		w, err := o.cmd.StdinPipe()
		o.note("StdinPipe", Class(err))
		if o.c.Stdin == "pipe-closed" {
			o.note("close StdinPipe", Class(w.Close()))
		} else {
			o.wait.Go(func() {
				_, err := io.WriteString(w, "some\ninput\n")
				o.note("write to StdinPipe", Class(err))
				o.note("close StdinPipe", Class(w.Close()))
			})
		}
	}
	for _, p := range []struct {
		name, kind string
		open       func() (io.ReadCloser, error)
	}{{"StdoutPipe", o.c.Stdout, o.cmd.StdoutPipe}, {"StderrPipe", o.c.Stderr, o.cmd.StderrPipe}} {
		if !strings.HasPrefix(p.kind, "pipe") {
			continue
		}
		r, err := p.open()
		o.note(p.name, Class(err))
		o.read(p.name, p.kind, r)
	}
}

// read uses a pipe as its kind says.
func (o *observer) read(name, kind string, r io.ReadCloser) {
	switch kind {
	case "pipe-after":
		o.cmd = readsLast{o.cmd, func() {
			_, err := r.Read(make([]byte, 1))
			o.note("read "+name+" after Wait", Class(err))
			o.note("close "+name+" after Wait", Class(r.Close()))
		}}
	case "pipe-closed":
		o.note("close "+name, Class(r.Close()))
		_, err := r.Read(make([]byte, 1))
		o.note("read closed "+name, Class(err))
		o.note("close closed "+name, Class(r.Close()))
	case "pipe-ten":
		o.wait.Go(func() {
			b := make([]byte, 10)
			_, err := io.ReadFull(r, b)
			o.note("read ten of "+name, content(b)+" "+Class(err))
			o.note("close "+name, Class(r.Close()))
		})
	case "pipe", "pipe-last":
		got := make(chan struct{})
		o.wait.Go(func() {
			defer close(got)
			if kind == "pipe-last" {
				<-o.errs
			}
			if name == "StderrPipe" {
				defer close(o.errs)
			}
			b, err := io.ReadAll(r)
			o.note("read "+name, content(b)+" "+Class(err))
		})
		o.cmd = waitsFirst{o.cmd, got}
	}
}

// waitsFirst reads a pipe to its end before Wait, as the documentation demands.
type waitsFirst struct {
	Command
	got chan struct{}
}

func (w waitsFirst) Wait() error {
	<-w.got
	return w.Command.Wait()
}

func (w waitsFirst) Run() error {
	if err := w.Start(); err != nil {
		return err
	}
	return w.Wait()
}

// readsLast reads a pipe after Wait.
type readsLast struct {
	Command
	read func()
}

func (w readsLast) Wait() error {
	err := w.Command.Wait()
	w.read()
	return err
}
