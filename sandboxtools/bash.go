package sandboxtools

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
)

const (
	maxPart    = 100 << 10 // bytes: the kernel takes 128 KiB in one variable
	maxCommand = maxPart
	maxState   = 5 * maxPart
)

// shell is a shell that outlives its commands: each one is a shell process of its own that begins in
// the state in which the last one ended. So no command can get stuck in it, answer for another one,
// or take it along when it is killed.
type shell struct {
	*set
	turn chan struct{} // has an element while a command runs

	mu    sync.Mutex
	state string                  // a script that restores it
	end   context.CancelCauseFunc // of the command that runs
}

// start runs a script of the environment, in bash if the image has it. Script, command and the state to restore are no
// arguments: any user inside can read those, and `pkill -f` would find the shell itself by a word of its command.
const start = `if command -v bash >/dev/null 2>&1; then exec bash -c "$0"; fi; exec sh -c "$0"`

const restore = `eval "$` + scriptEnv + `"`

const (
	scriptEnv  = "SANDBOX_SHELL"
	commandEnv = "SANDBOX_SHELL_COMMAND"
	stateEnv   = "SANDBOX_SHELL_STATE" // and a number, for each part
)

// stateMark is the line above the state. What shells and the dynamic linker write to stderr when they start is before it.
const stateMark = "# the state of the shell"

// environment is the variables for start. The output of both streams of the command is on stdout. wait says whether the shell
// writes its new state to stderr.
func environment(command, state string, wait bool) []string {
	script := session
	if wait {
		script = "BASH_wait=yes\n" + script
	}
	env := []string{scriptEnv + "=" + script, commandEnv + "=" + command}
	for i := range maxState / maxPart {
		part := state[:min(len(state), maxPart)]
		state = state[len(part):]
		env = append(env, fmt.Sprintf("%s%d=%s", stateEnv, i, part))
	}
	return env
}

// hide takes a function of the name "builtin" away, which the state has as a text to be defined by the command. In POSIX
// mode no function hides unset.
const hide = `case ${BASH_builtin-} in "") BASH_builtin=$(POSIXLY_CORRECT=; unset -f declare; declare -f builtin) && { POSIXLY_CORRECT=; unset -f builtin; unset POSIXLY_CORRECT; };; esac`

// A restored function may have the name of a builtin, so that bash is asked for the builtin itself. A state of bash begins with
// its options, which decide how functions are parsed, and ends with the functions, so that none takes part in restoring it. It
// unsets what its own shell got from the environment, of which the variables that follow are what was left. The
// state is written after the command, since that may set an EXIT trap of its own, and by a trap if the command exits. Variables
// whose names begin with BASH are not part of it, nor is _, which would have the whole last one. What follows the command has been
// parsed with it: bash takes what it parses after an unfinished quote for a part of that.
const session = `case ${BASH_wait-} in yes) exec 3>&2 2>&1;; *) exec 2>&1;; esac
BASH_dir=$PWD
BASH_do=$` + commandEnv + `
BASH_state=${` + stateEnv + `0-}${` + stateEnv + `1-}${` + stateEnv + `2-}${` + stateEnv + `3-}${` + stateEnv + `4-}
unset ` + scriptEnv + " " + commandEnv + " " + stateEnv + "0 " + stateEnv + "1 " + stateEnv + "2 " + stateEnv + "3 " + stateEnv + `4
BASH_env=$(compgen -e 2>/dev/null)
eval "$BASH_state" 2>/dev/null
BASH_state=
case $BASH_VERSION in "")
	cd -- "$PWD" 2>/dev/null || { echo "[the directory $PWD is gone: the command runs in $BASH_dir]"; cd -- "$BASH_dir"; }
	case ${BASH_wait-} in "") eval "$BASH_do"; exit;; esac
	BASH_keep='{ case ${BASH_kept-} in "") BASH_kept=1; ( echo "` + stateMark + `"; export -p ) >&3;; esac; } 2>/dev/null'
	trap "$BASH_keep" EXIT
	eval "$BASH_do" 3>&-
	{ BASH_code=$?; set +xv; eval "$BASH_keep"; } 2>/dev/null
	exit "$BASH_code";;
esac
BASH_do=${BASH_builtin:+$BASH_builtin; BASH_builtin=; }$BASH_do
case ${BASH_wait-} in "") builtin eval "$BASH_do"; { BASH_code=$?; ` + hide + `; } 2>/dev/null; builtin exit "$BASH_code";; esac
BASH_keep='{ case ${BASH_kept-} in "") BASH_kept=1; ` + hide + `
	( builtin set +e
	builtin echo "` + stateMark + `"
	builtin shopt -p
	BASH_dir=$(builtin pwd)
	builtin printf "cd -- %q || builtin echo %q\"\$PWD]\"\n" "$BASH_dir" "[the directory $BASH_dir is gone: the command runs in "
	builtin echo "$BASH_env" | while IFS= builtin read -r BASH_name; do
		case $BASH_name in BASH*|PWD|_|"") ;; *) builtin echo "unset -v $BASH_name";; esac
	done
	builtin compgen -v | while IFS= builtin read -r BASH_name; do
		case $BASH_name in BASH*|PWD|_) ;; *) builtin declare -p "$BASH_name";; esac
	done
	builtin declare -f
	builtin declare -Fx | while IFS= builtin read -r BASH_name; do builtin echo "builtin $BASH_name"; done
	case $BASH_builtin in "builtin ("*) builtin printf "BASH_builtin=%q\n" "$BASH_builtin";; esac ) >&3;;
esac; } 2>/dev/null'
builtin trap "$BASH_keep" EXIT
{
	builtin eval "$BASH_do" 3>&-
	{ BASH_code=$?; ` + hide + `; builtin set +xv; builtin eval "$BASH_keep"; } 2>/dev/null
	builtin exit "$BASH_code"
}`

// bashInput is the input of the tool "bash".
type bashInput struct {
	Command    string `json:"command"`
	Background bool   `json:"background"`
	ID         string `json:"id"`
	TimeoutMS  whole  `json:"timeoutMs"`
	Restart    bool   `json:"restart"`
}

func (s *shell) tool() Tool {
	return define(s.set, Tool{
		Name: "bash",
		Description: fmt.Sprintf("Run a command in a shell (bash, or sh if there is no bash) and wait for it, %v at most. The working directory, variables and functions "+
			"stay for the next call; one command runs at a time. There is no input. The result has stdout and stderr, without the middle if they are longer than %d bytes, and "+
			"the exit code. A command in the background goes on after the call, and the result has its id: call the tool with the id alone for its output so far and whether it runs.",
			s.limits.CommandTime, s.limits.Output),
		Schema: schema(
			property{"command", "string", true, "the command; null with restart or id"},
			property{"background", "boolean", false, "whether to go on without waiting for the command"},
			property{"id", "string", true, "read the output of this command in the background instead"},
			property{"timeoutMs", "integer", true, fmt.Sprintf("kill the command after this many milliseconds; with id, wait so long for its end; at most %d", s.limits.CommandTime.Milliseconds())},
			property{"restart", "boolean", false, "whether to end the command that runs and begin with a new shell, before the command if there is one"},
		),
	}, s.call)
}

func (s *shell) call(ctx context.Context, in bashInput) (Result, error) {
	limit := s.limits.CommandTime
	if in.TimeoutMS < 0 || int64(in.TimeoutMS) > limit.Milliseconds() {
		return Result{}, fmt.Errorf("timeoutMs %d is not allowed: %d is the limit", in.TimeoutMS, limit.Milliseconds())
	}
	if in.TimeoutMS > 0 {
		limit = time.Duration(in.TimeoutMS) * time.Millisecond
	}
	switch {
	case in.ID != "" && (in.Command != "" || in.Restart || in.Background):
		return Result{}, errors.New("id has to be the only argument beside timeoutMs")
	case in.ID != "":
		return s.look(ctx, in.ID, time.Duration(in.TimeoutMS)*time.Millisecond)
	case in.Command == "" && !in.Restart:
		return Result{}, errors.New("there is no command")
	case strings.IndexByte(in.Command, 0) >= 0:
		return Result{}, errors.New("the command has a zero byte: write it to a file and run that")
	case len(in.Command) > maxCommand:
		return Result{}, fmt.Errorf("the command has more than %d bytes: write it to a file and run that", maxCommand)
	}
	if in.Restart {
		s.restart()
	}
	switch {
	case in.Command == "":
		return Result{Text: "The shell is a new one."}, nil
	case in.Background:
		return s.leave(ctx, in.Command)
	}
	return s.run(ctx, in.Command, limit)
}

var errRestarted = errors.New("the shell was restarted")

// restart ends the command that runs, and forgets the state.
func (s *shell) restart() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state = ""
	if s.end != nil {
		s.end(errRestarted)
		s.end = nil // it leaves no state
	}
}

// begin waits until no other command runs. The caller calls done with the new state; "" keeps the last.
func (s *shell) begin(ctx context.Context) (_ context.Context, state string, done func(state string), err error) {
	select {
	case s.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, "", nil, context.Cause(ctx)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.end = cancel
	return ctx, s.state, func(state string) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.end != nil && state != "" {
			s.state = state
		}
		s.end = nil
		cancel(nil)
		<-s.turn
	}, nil
}

func (s *shell) run(ctx context.Context, command string, limit time.Duration) (Result, error) {
	ctx, state, done, err := s.begin(ctx)
	if err != nil {
		return Result{}, err
	}
	var after bounded
	defer func() { done(after.state()) }()
	out := &output{max: s.limits.Output}
	if s.limits.Report != nil {
		out.report = func(p []byte) { s.limits.Report(ctx, p) }
	}
	cmd := s.sb.Command(ctx, "sh", "-c", start, restore)
	cmd.Env = environment(command, state, true)
	cmd.Stdout, cmd.Stderr, cmd.Timeout = out, &after, limit
	err = cmd.Run()
	if ctx.Err() != nil {
		return Result{}, context.Cause(ctx)
	}
	var exit *sandbox.ExitError
	if err != nil && !errors.As(err, &exit) && !errors.Is(err, exec.ErrWaitDelay) {
		return Result{}, err
	}
	code := 0
	c := &Command{Status: Exited, ExitCode: &code}
	if exit != nil {
		code, c.OutOfMemory = exit.ExitCode(), exit.OutOfMemory
		switch {
		case errors.Is(exit, sandbox.ErrSessionLost):
			c.Status, c.ExitCode, c.Reason = SessionLost, nil, exit.Unwrap().Error()
			after.kept.Reset() // it may be a part
		case errors.Is(err, sandbox.ErrTimeout):
			c.Status = TimedOut
			after.kept.Reset()
		}
	}
	c.Output, c.OmittedBytes = out.text()
	r := Result{Text: c.text(), Command: c}
	if after.over {
		r.Text += fmt.Sprintf("\n[the shell's variables have more than %d bytes: they stay as they were before the command]", maxState)
	} else if after.state() == "" && c.Status == Exited {
		r.Text += "\n[the command replaced the shell, or its EXIT trap and then exited: directory, variables and functions stay as they were before it]"
	}
	return r, nil
}

// text is the output, and below it what a model has to know.
func (c *Command) text() string {
	note := ""
	switch {
	case c.Status == Running:
		note = fmt.Sprintf("[running in the background, id %s]", c.ID)
	case c.Status == SessionLost:
		note = "[session lost: " + c.Reason + "]"
	case c.Status == TimedOut:
		note = "[timed out: the command was killed; the shell is as before it]"
	case c.ExitCode == nil:
		note = "[ended; the exit code is not known]"
	default:
		note = fmt.Sprintf("[exit code %d]", *c.ExitCode)
	}
	if c.OutOfMemory {
		note += " [the kernel killed it, or a process of it, for memory]"
	}
	if c.OmittedBytes > 0 {
		note += fmt.Sprintf(" [%d bytes in the middle are left out]", c.OmittedBytes)
	}
	if c.Output == "" {
		return note
	}
	return strings.TrimSuffix(c.Output, "\n") + "\n" + note
}

// leave starts a command in the background. It begins in the state of the last command that has ended.
func (s *shell) leave(ctx context.Context, command string) (Result, error) {
	s.mu.Lock()
	state := s.state
	s.mu.Unlock()
	cmd := s.sb.Command(ctx, "sh", "-c", start, restore)
	cmd.Env = environment(command, state, false)
	cmd.Detached = true
	if err := cmd.Start(); err != nil {
		return Result{}, err
	}
	c := &Command{ID: cmd.ID(), Status: Running}
	return Result{Text: c.text(), Command: c}, nil
}

// look returns the output of a command in the background, after its end if that comes in time.
func (s *shell) look(ctx context.Context, id string, wait time.Duration) (Result, error) {
	p, err := s.process(ctx, id)
	if err != nil {
		return Result{}, err
	}
	if !p.Running {
		wait = s.limits.CommandTime
	}
	out := &output{max: s.limits.Output}
	ended, dropped := false, int64(0)
	if wait > 0 {
		ended, dropped, err = s.await(ctx, id, wait, out)
		if err == nil && dropped > 0 && p.Running { // anywhere in it: what is kept is read once more
			out = &output{max: s.limits.Output}
			ended, dropped, err = s.await(ctx, id, s.limits.CommandTime, out)
		}
		if err == nil && p.Running {
			p, err = s.process(ctx, id)
		}
		if err != nil {
			return Result{}, err
		}
	}
	if !ended || out.total == 0 { // it runs, or nothing but its exit is known
		out = &output{max: s.limits.Output}
		for line, err := range s.sb.Logs(ctx, sandbox.LogOptions{}) {
			if err != nil {
				return Result{}, err
			}
			if line.Command == id {
				fmt.Fprintln(out, line.Text)
			}
		}
	}
	c := &Command{ID: id, Status: Exited, ExitCode: p.ExitCode, OutOfMemory: p.OutOfMemory}
	if p.Running {
		c.Status = Running
	}
	c.Output, c.OmittedBytes = out.text()
	if dropped > 0 {
		c.Output, c.OmittedBytes = "[...]\n"+c.Output, c.OmittedBytes+dropped
	}
	return Result{Text: c.text(), Command: c}, nil
}

// process describes a command in the background.
func (s *shell) process(ctx context.Context, id string) (sandbox.ProcessInfo, error) {
	all, err := s.sb.Processes(ctx)
	if err != nil {
		return sandbox.ProcessInfo{}, err
	}
	i := slices.IndexFunc(all, func(p sandbox.ProcessInfo) bool { return p.ID == id })
	if i < 0 {
		return sandbox.ProcessInfo{}, fmt.Errorf("there is no command in the background with the id %q", id)
	}
	return all[i], nil
}

// await waits for the end of a command in the background, and writes what the sandbox keeps of its output to out. dropped is
// how many bytes are no longer kept, before those. Both are of use only once the command has ended.
func (s *shell) await(ctx context.Context, id string, limit time.Duration, out io.Writer) (ended bool, dropped int64, err error) {
	short, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	cmd, err := s.sb.Process(short, id)
	if err == nil {
		cmd.Stdout, cmd.Stderr = out, out
		err = cmd.Run()
	}
	var exit *sandbox.ExitError
	switch {
	case errors.Is(err, sandbox.ErrProcessNotFound), short.Err() != nil && ctx.Err() == nil:
		return false, 0, nil
	case err == nil, errors.As(err, &exit), errors.Is(err, exec.ErrWaitDelay):
		return true, cmd.Dropped(), nil
	}
	return false, 0, err
}

// bounded keeps what a shell writes to stderr, unless it is too long.
type bounded struct {
	kept bytes.Buffer
	over bool
}

func (b *bounded) Write(p []byte) (int, error) {
	if b.over = b.over || b.kept.Len()+len(p) > maxState; !b.over {
		b.kept.Write(p)
	}
	return len(p), nil
}

// state is "" if there is none, or if it is too long or can't be in the environment.
func (b *bounded) state() string {
	_, state, _ := strings.Cut(b.kept.String(), stateMark+"\n")
	if b.over || strings.IndexByte(state, 0) >= 0 {
		return ""
	}
	return state
}
