package main

import (
	"bytes"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// A session is the program in a pseudo-terminal, of which the test has the other side.
type session struct {
	t    *testing.T
	cmd  *exec.Cmd
	tty  *os.File
	done chan struct{} // all output has been read

	awaited int // so much of the output await has found

	mu   sync.Mutex
	text bytes.Buffer
}

// inTerminal starts the program in a terminal of 30 rows and 100 columns. Variables are added to
// the environment.
func inTerminal(t *testing.T, variables []string, args ...string) *session {
	t.Helper()
	enginetest.Need(t)
	noteFlags(args)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return anyInTerminal(t, append(variables, asProgram+"=1"), self, args...)
}

// anyInTerminal is inTerminal for another program.
func anyInTerminal(t *testing.T, variables []string, program string, args ...string) *session {
	t.Helper()
	s := &session{t: t, cmd: exec.CommandContext(t.Context(), program, args...), done: make(chan struct{})}
	s.cmd.Env = append(append(os.Environ(), "TERM=xterm", "NO_COLOR="), variables...)
	var err error
	if s.tty, err = pty.StartWithSize(s.cmd, &pty.Winsize{Rows: 30, Cols: 100}); err != nil {
		t.Fatal(err)
	}
	// The package has made it blocking: a close would wait for the Read.
	if err := unix.SetNonblock(int(s.tty.Fd()), true); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(s.done)
		for b := make([]byte, 4096); ; {
			n, err := s.tty.Read(b)
			s.mu.Lock()
			s.text.Write(b[:n])
			s.mu.Unlock()
			if err != nil {
				return // EIO, when the program and its children have ended
			}
		}
	}()
	t.Cleanup(func() {
		s.cmd.Process.Kill()
		s.tty.Close()
		<-s.done
	})
	return s
}

func (s *session) output() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// await waits until the program has printed text after what was awaited before.
func (s *session) await(text string) {
	s.t.Helper()
	over, at := false, -1
	harness.Eventually(s.t, "the program has printed "+text+" or ended", func() bool {
		select {
		case <-s.done:
			over = true
		default:
		}
		at = strings.Index(s.output()[s.awaited:], text)
		return over || at >= 0
	})
	if at < 0 {
		s.t.Fatalf("it has printed %q, and after the first %d bytes not %q", s.output(), s.awaited, text)
	}
	s.awaited += at + len(text)
}

func (s *session) types(keys string) {
	s.t.Helper()
	if _, err := s.tty.WriteString(keys); err != nil {
		s.t.Fatal(err)
	}
}

// end waits for the end of the program.
func (s *session) end() (code int, text string) {
	s.t.Helper()
	select {
	case <-s.done:
	case <-time.After(harness.CallBound):
		s.t.Fatalf("it does not end; it has printed %q", s.output())
	}
	var exit *exec.ExitError
	if err := s.cmd.Wait(); err != nil && !errors.As(err, &exit) {
		s.t.Fatal(err)
	}
	return s.cmd.ProcessState.ExitCode(), s.output()
}

// Mounts of each kind are shown as what they are, and only yes creates the sandbox.
func TestConfirmationInATerminal(t *testing.T) {
	enginetest.Need(t)
	t.Parallel()
	dir, volume := t.TempDir(), preservedVolume(t)
	for what, test := range map[string]struct {
		keys string
		code int
		says string
		made bool
	}{
		"yes":    {"y\r", 0, "[y/n]", true},
		"no":     {"no\r", codeFailed, "cancelled", false},
		"end":    {"\x04", codeFailed, "the input ended", false},
		"ctrl-c": {"\x03", codeInterrupted, "interrupted", false},
	} {
		// A sandbox is removed with the volume, so not before the others' ends.
		name := harness.UniqueName(t)
		removeAtEnd(t, name)
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			s := inTerminal(t, nil, "create", "--name", name, "--mount", dir+":/copied", "--mount", dir+":/read:ro", "--mount", dir+":/write:rw", "--volume", volume+":/kept")
			s.await("[y/n]")
			s.types(test.keys)
			code, out := s.end()
			if code != test.code || !strings.Contains(out, test.says) {
				t.Errorf("code %d, %q, want %d and %q", code, out, test.code, test.says)
			}
			want := "/copied: rwcopy snapshot of " + dir + "\r\n/read: bind of " + dir + " (ro)\r\n/write: bind of " + dir + " (rw)\r\n/kept: existing volume " + volume + " (rw)\r\n"
			if !strings.HasPrefix(out, want) {
				t.Errorf("the confirmation is %q, want %q", out, want)
			}
			if held := left(t, "agent-sandbox.name="+name); (len(held) > 0) != test.made {
				t.Errorf("the engine has %v", held)
			}
		})
	}
}

// What would be lost is named, and nothing is asked of the engine before the answer.
func TestLossIsConfirmedInATerminal(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"volume", "delete", "a"}, {"snapshot", "delete", "a"}, {"rollback", "a", "b"}, {"delete", "--delete-volumes", "a"}, {"delete", "--snapshots", "a"},
	} {
		s := inTerminal(t, []string{"DOCKER_HOST=unix:///nowhere.sock"}, args...)
		s.await("Delete for good? [y/n]")
		s.types("n\r")
		code, out := s.end()
		if code != codeFailed || !strings.Contains(out, "sandbox: cancelled\r\n") || strings.Contains(out, "nowhere") {
			t.Errorf("%q: code %d, %q", args, code, out)
		}
	}
}

// The line with the progress is gone before the command or the name is printed, and does not come
// back to erase what they wrote.
func TestProgressInATerminal(t *testing.T) {
	enginetest.Need(t)
	t.Parallel()
	dir := harness.HostDir(t, map[string]string{"file": "from here"})
	code, out := inTerminal(t, nil, "run", "--from", dir, "--", "cat", "file").end()
	if code != 0 || !strings.Contains(out, "\r\x1b[Ksource: ") || !strings.HasSuffix(out, "\r\x1b[Kfrom here") {
		t.Errorf("run --from: code %d, %q, want the progress, then what the file has", code, out)
	}
	if code, out := inTerminal(t, nil, "run", "--quiet", "--from", dir, "--", "cat", "file").end(); code != 0 || out != "from here" {
		t.Errorf("run --quiet --from: code %d, %q, want what the file has", code, out)
	}
	repository := t.TempDir()
	harness.Shell(t, `cd "$0" && git init -q -b main . && echo cloned >file && git add . && git -c user.email=a@b.test -c user.name=a commit -q -m one`, repository)
	code, out = inTerminal(t, nil, "run", "--git", repository, "--", "cat", "file").end()
	if code != 0 || !strings.Contains(out, "\r\x1b[Ksource: git "+repository) || !strings.HasSuffix(out, "\r\x1b[Kcloned\r\n") {
		t.Errorf("run --git: code %d, %q, want the progress, then what the file has", code, out)
	}
	source, fork := harness.NewSandbox(t), harness.UniqueName(t)
	removeAtEnd(t, fork)
	if code, out := inTerminal(t, nil, "fork", source.Name(), "--name", fork).end(); code != 0 || !strings.Contains(out, "\r\x1b[Kcopy") || !strings.HasSuffix(out, "\r\x1b[K"+fork+"\r\n") {
		t.Errorf("fork: code %d, %q, want the progress, then the name", code, out)
	}
	// A pull, which fails at once.
	const image = "127.0.0.1:1/none:latest"
	if code, out := inTerminal(t, nil, "create", "--image", image).end(); code != codeFailed || !strings.Contains(out, "\r\x1b[Kimage: pulling "+image+"\r\x1b[K") || !strings.Contains(out, "\r\x1b[Ksandbox: create: ") {
		t.Errorf("create --image %s: code %d, %q", image, code, out)
	}
	if code, _, errOut := call(t.Context(), "", "create", "--image", image); code != codeFailed || !strings.Contains(errOut, "sandbox: image: pulling "+image+"\n") || !strings.Contains(errOut, "\nsandbox: create: ") {
		t.Errorf("create --image %s in a pipe: code %d, %q", image, code, errOut)
	}
	name := harness.Shared(t).Name()
	if code, out, errOut := call(t.Context(), "", "cp", dir, name+":/tmp/"+record.NewID()); code != 0 || out != "copied 1 file and 1 directory, 9 B\n" || errOut != "sandbox: copy\n" {
		t.Errorf("cp in a pipe: code %d, %q, %q", code, out, errOut)
	}
	if code, out := inTerminal(t, nil, "cp", dir, name+":/tmp/"+record.NewID()).end(); code != 0 || !strings.Contains(out, "\r\x1b[Kcopy") || !strings.HasSuffix(out, "\r\x1b[Kcopied 1 file and 1 directory, 9 B\r\n") {
		t.Errorf("cp: code %d, %q, want the progress, and then what was copied", code, out)
	}
}

// The first Ctrl-C ends the command, removes the sandbox, and says so.
func TestCtrlCCleansUp(t *testing.T) {
	enginetest.Need(t)
	t.Parallel()
	t.Run("run", func(t *testing.T) {
		t.Parallel()
		s := inTerminal(t, nil, "run", "-q", "--", "sh", "-c", "hostname; echo ready; sleep 1000")
		s.await("ready")
		s.types("\x03")
		code, out := s.end()
		id, _, _ := strings.Cut(out, "\r\n")
		if code != codeInterrupted || !strings.HasSuffix(out, "sandbox: interrupted\r\n") {
			t.Errorf("code %d, %q", code, out)
		}
		if held := left(t, "agent-sandbox.id="+id); id == "" || len(held) > 0 {
			t.Errorf("left of %q: %v", id, held)
		}
	})
	t.Run("create", func(t *testing.T) {
		t.Parallel()
		asked, over := make(chan bool), make(chan bool)
		server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			close(asked)
			<-over
		}))
		defer server.Close()
		defer close(over)
		name := harness.UniqueName(t)
		removeAtEnd(t, name)
		s := inTerminal(t, nil, "create", "--name", name, "--tarball", server.URL)
		<-asked // the sandbox is half created
		s.types("\x03")
		if code, out := s.end(); code != codeInterrupted || !strings.HasSuffix(out, "sandbox: interrupted\r\n") {
			t.Errorf("code %d, %q", code, out)
		}
		if held := left(t, "agent-sandbox.name="+name); len(held) > 0 {
			t.Errorf("left of %q: %v", name, held)
		}
	})
	t.Run("exec", func(t *testing.T) {
		t.Parallel()
		sb := harness.Shared(t)
		file := "/tmp/" + record.NewID()
		s := inTerminal(t, nil, "exec", sb.Name(), "--", "sh", "-c", "echo $$ >"+file+"; echo ready; sleep 1000")
		s.await("ready")
		s.types("\x03")
		if code, out := s.end(); code != codeInterrupted || !strings.HasSuffix(out, "sandbox: interrupted\r\n") {
			t.Errorf("code %d, %q", code, out)
		}
		harness.Eventually(t, "the command has ended", func() bool {
			return sb.Command(t.Context(), "sh", "-c", "kill -0 $(cat "+file+")").Run() != nil
		})
	})
}

func TestExecInATerminal(t *testing.T) {
	enginetest.Need(t)
	t.Parallel()
	name := harness.Shared(t).Name()
	t.Run("size", func(t *testing.T) {
		t.Parallel()
		s := inTerminal(t, nil, "exec", "-t", name, "--", "sh", "-c", `stty size; echo $TERM; while [ "$(stty size)" = "30 100" ]; do sleep 0.05; done; stty size`)
		s.await("30 100\r\nxterm\r\n")
		if err := pty.Setsize(s.tty, &pty.Winsize{Rows: 40, Cols: 120}); err != nil {
			t.Fatal(err)
		}
		if code, out := s.end(); code != 0 || !strings.HasSuffix(out, "40 120\r\n") {
			t.Errorf("code %d, %q, want the new size", code, out)
		}
	})
	t.Run("keys", func(t *testing.T) {
		t.Parallel()
		s := inTerminal(t, nil, "exec", "--tty", name, "--", "sh", "-c", `trap "echo trapped; exit 5" INT; echo ready; while :; do sleep 0.05; done`)
		mode := func() unix.Termios {
			m, err := unix.IoctlGetTermios(int(s.tty.Fd()), unix.TCGETS)
			if err != nil {
				t.Fatal(err)
			}
			return *m
		}
		s.await("ready")
		if mode().Lflag&unix.ISIG != 0 {
			t.Error("the terminal is not raw while the command has it")
		}
		s.types("\x03")
		s.await("trapped")
		harness.Eventually(t, "the terminal is as it was", func() bool { return mode().Lflag&(unix.ISIG|unix.ECHO|unix.ICANON) == unix.ISIG|unix.ECHO|unix.ICANON })
		if code, out := s.end(); code != 5 {
			t.Errorf("code %d, %q, want the command's own 5", code, out)
		}
	})
	t.Run("none", func(t *testing.T) {
		t.Parallel()
		if code, out := inTerminal(t, nil, "exec", name, "tty").end(); code != 1 || out != "not a tty\r\n" {
			t.Errorf("without --tty: code %d, %q", code, out)
		}
	})
	t.Run("run", func(t *testing.T) {
		t.Parallel()
		if code, out := inTerminal(t, nil, "run", "-q", "-t", "--", "tty").end(); code != 0 || !strings.HasPrefix(out, "/dev/pts/") {
			t.Errorf("run -t: code %d, %q", code, out)
		}
	})
}

// What a command on a terminal sees of the keys, and the terminal of the command, is as with docker exec.
func TestExecOnATerminalIsAsDockerExec(t *testing.T) {
	enginetest.Need(t)
	t.Parallel()
	sb := harness.Shared(t)
	container := containerOf(t, sb)
	const detach = "ctrl-P ctrl-Q" // a row of docs/differences.md
	for _, tt := range []struct {
		what, script string
		keys         []string // each is typed once the text before its colon is there, after that of the key before
	}{
		{"modes", "stty -g; tty | cut -c1-8; test -t 0 && test -t 1 && test -t 2; echo $?", nil},
		{"the environment", "echo $TERM $COLUMNS $LINES", nil},
		{"lines", "echo out; echo err >&2; printf 'a\\nb\\r\\n'; seq 3", nil},
		{"much", "seq 30000 | md5sum; seq 30000", nil},
		{"the code", "exit 7", nil},
		{"its death", "kill -9 $$", nil},
		{"echo", "echo ready; read l; echo got $l", []string{"ready:abc\r"}},
		{"no echo", "stty -echo; echo ready; read l; echo got $l", []string{"ready:abc\r"}},
		{"erase and kill", "echo ready; read l; echo got $l", []string{"ready:wrong\x15abx\x7fc\r"}},
		{"wide characters", "echo ready; read l; echo got $l", []string{"ready:äö日本\r"}},
		{"ctrl-C", "echo ready; exec sleep 1000", []string{"ready:\x03"}},
		{"ctrl-C that is caught", "trap 'echo caught; exit 5' INT; echo ready; while :; do sleep 0.05; done", []string{"ready:\x03"}},
		{"ctrl-\\", "ulimit -c 0; echo ready; exec sleep 1000", []string{"ready:\x1c"}},
		{"ctrl-D", "echo ready; cat; echo after", []string{"ready:ab\r", "ab\r\nab\r\n:cd", "cd:\x04", "cd:\x04"}},
		{"ctrl-D at once", "echo ready; exec cat", []string{"ready:\x04"}},
		{"ctrl-Z that stops nothing", "echo ready; read l; echo got $l", []string{"ready:\x1a", "^Z:x\r"}},
		{"ctrl-Z of a job", `until [ "$(stty size)" = "30 100" ]; do sleep 0.05; done; PS1='at work> ' exec bash --norc --noprofile -i`, []string{
			// bash itself echoes what is typed after its prompt, and the terminal what is typed before.
			"at work> :sh -c \"printf 'run%s' ning; exec sleep 1000\"\r", "running:\x1a",
			"Stopped", "at work> :disown 2>/dev/null; echo d''one\r", "done", "at work> :exit 6\r",
		}},
		{"ctrl-S and ctrl-Q", "echo ready; read l; echo got $l", []string{"ready:\x13\x11abc\r"}},
		{"raw", "stty raw -echo; echo ready; head -c 4 | od -c", []string{"ready:\x03\x04\x1a\x1c"}},
		{"ctrl-P", "stty raw -echo; echo ready; head -c 2 | od -c", []string{"ready:\x10x"}},
		{detach, "stty raw -echo; echo ready; head -c 2 | od -c", []string{"ready:\x10\x11"}},
	} {
		run := func(s *session) (code int, text string) {
			for _, k := range tt.keys {
				after, keys, _ := strings.Cut(k, ":")
				s.await(after)
				s.types(keys)
			}
			return s.end()
		}
		code, got := run(inTerminal(t, nil, "exec", "-it", sb.Name(), "sh", "-c", tt.script))
		wantCode, want := run(anyInTerminal(t, nil, "docker", "exec", "-it", container, "sh", "-c", tt.script))
		if differs := tt.what == detach; (code != wantCode || got != want) != differs {
			t.Errorf("%s (%s):\nsandbox exec: %d, %q\ndocker exec:  %d, %q", tt.what, tt.script, code, got, wantCode, want)
		}
	}
}

// The end of a terminal ends the command on it. docker's is not told of it, and lives on.
func TestHangUpOfTheTerminalIsNotAsOfDockerExec(t *testing.T) {
	enginetest.Need(t)
	t.Parallel()
	sb := harness.Shared(t)
	for _, flags := range [][]string{{"exec"}, {"exec", "-i"}, {"exec", "-it"}} {
		for _, lives := range []bool{false, true} {
			file := "/tmp/" + record.NewID()
			script := []string{"sh", "-c", "trap '' HUP; echo $$ >" + file + "; echo ready; exec sleep 1000"}
			var s *session
			if lives {
				s = anyInTerminal(t, nil, "docker", slices.Concat(flags, []string{containerOf(t, sb)}, script)...)
			} else {
				s = inTerminal(t, nil, slices.Concat(flags, []string{sb.Name()}, script)...)
			}
			s.await("ready")
			s.tty.Close()
			<-s.done
			s.cmd.Wait()
			alive := func() bool { return sb.Command(t.Context(), "sh", "-c", "kill -0 $(cat "+file+")").Run() == nil }
			if lives {
				if !alive() {
					t.Errorf("docker %v: the command has ended", flags)
				}
				harness.Run(t, sb, "sh", "-c", "kill -9 $(cat "+file+")")
			}
			harness.Eventually(t, "the command has ended", func() bool { return !alive() })
		}
	}
}

func TestShellInATerminal(t *testing.T) {
	enginetest.Need(t)
	t.Parallel()
	s := inTerminal(t, nil, "shell", "-e", "PS1=ask> ", "-w", "/tmp", "-u", "1000:1000", harness.Shared(t).Name())
	s.types("echo $((6*7)) $(id -u) $(pwd)\r")
	s.await("42 1000 /tmp")
	s.types("tty\r")
	s.await("/dev/pts/")
	s.types("exit 3\r")
	if code, out := s.end(); code != 3 {
		t.Errorf("code %d, %q, want the shell's own 3", code, out)
	}
}

func TestColoursRespectNoColor(t *testing.T) {
	enginetest.Need(t)
	t.Parallel()
	name := harness.UniqueName(t)
	removeAtEnd(t, name)
	mustCall(t, "create", "--name", name)
	mustCall(t, "stop", name)
	for _, test := range []struct {
		variable string
		coloured bool
	}{{"NO_COLOR=", true}, {"NO_COLOR=1", false}, {"TERM=dumb", false}} {
		code, out := inTerminal(t, []string{test.variable}, "list", "--prefix", name).end()
		header, row, _ := strings.Cut(out, "\r\n")
		bold, dim := strings.HasPrefix(header, "\x1b[1mNAME "), strings.HasPrefix(row, "\x1b[2m"+name)
		if code != 0 || bold != test.coloured || dim != test.coloured || strings.Contains(out, "\x1b") != test.coloured {
			t.Errorf("list with %s: code %d, %q, want colours %t", test.variable, code, out, test.coloured)
		}
	}
}

// What a sandbox says does not control the terminal, and is unchanged elsewhere.
func TestOutputOfSandboxesIsEscapedOnATerminal(t *testing.T) {
	enginetest.Need(t)
	t.Parallel()
	name := harness.UniqueName(t)
	removeAtEnd(t, name)
	const hostile = "\x1b]0;owned\x07\u009b2J\u202e"
	mustCall(t, "create", "--name", name, "--tag", "k="+hostile, "--", "printf", "%s\n", hostile)
	harness.Eventually(t, "the log has it", func() bool {
		_, out, _ := call(t.Context(), "", "logs", name)
		return out == hostile+"\n"
	})
	for _, args := range [][]string{{"logs", name}, {"logs", "--json", name}, {"list", "--prefix", name}, {"list", "--json", "--prefix", name}, {"inspect", name}, {"processes", name}} {
		code, out := inTerminal(t, []string{"NO_COLOR=1"}, args...).end()
		if code != 0 || strings.ContainsAny(out, "\x1b\x07\u009b\u202e") {
			t.Errorf("%v: code %d, %q controls the terminal", args, code, out)
		}
		if args[0] != "processes" && !strings.Contains(out, "owned") {
			t.Errorf("%v: %q does not have the text", args, out)
		}
	}
	s := inTerminal(t, nil, "logs", "--follow", "--timestamps", name)
	s.await(`Z \x1b]0;owned\a`)
	mustCall(t, "stop", name)
	if code, out := s.end(); code != 0 || strings.Contains(out, "\x1b") {
		t.Errorf("logs --follow: code %d, %q", code, out)
	}
}

// A second signal ends the program at once, whatever it waits for.
func TestSecondSignalKills(t *testing.T) {
	enginetest.Need(t)
	t.Parallel()
	proxy := enginetest.NewProxy(t)
	s := inTerminal(t, nil, "-H", proxy.Host(), "run", "-q", "--", "sh", "-c", "echo ready; sleep 1000")
	s.await("ready")
	proxy.StallAll(true) // the removal hangs
	defer proxy.StallAll(false)
	s.types("\x03")
	harness.Eventually(t, "the program has ended", func() bool {
		s.types("\x03")
		select {
		case <-s.done:
			return true
		default:
			return false
		}
	})
	if s.end(); s.cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGINT {
		t.Errorf("it ended with %v, want the signal", s.cmd.ProcessState)
	}
}
