package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// program returns a directory with this program as sandbox, for a PATH.
func program(t *testing.T) string {
	t.Helper()
	enginetest.Need(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	script := "#!/bin/sh\n" + asProgram + "=1 exec " + self + ` "$@"` + "\n"
	writeProgram(t, filepath.Join(dir, "sandbox"), script)
	return dir
}

// writeProgram writes a file that is run next. No child that starts meanwhile has it open: the kernel would not run it (ETXTBSY).
func writeProgram(t *testing.T, file, text string) {
	t.Helper()
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	if err := os.WriteFile(file, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
}

// runScript runs a script, with path before the other directories of programs, and returns its output and how it ended.
func runScript(t *testing.T, path, script string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "bash", "-c", script)
	cmd.Env = append(os.Environ(), "PATH="+path+":"+os.Getenv("PATH"))
	cmd.Stdin = strings.NewReader("of the script\n")
	out, err := cmd.Output()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out)) + " code " + cmd.ProcessState.String()
}

// containerOf returns the ID of a sandbox's container, for the docker client.
func containerOf(t *testing.T, sb *sandbox.Sandbox) string {
	t.Helper()
	containers, err := exec.Command("docker", "ps", "-q", "--no-trunc", "--filter", "label=agent-sandbox.name="+sb.Name()).Output()
	if err != nil || len(bytes.Fields(containers)) != 1 {
		t.Fatalf("docker ps: %q, %v", containers, err)
	}
	return strings.TrimSpace(string(containers))
}

// Scripts that call exec do what they do with docker exec: stdin belongs to the script, unless the
// command is to read it; exit codes and what a closed stdout does are the same.
func TestExecInScriptsIsAsDockerExec(t *testing.T) {
	t.Parallel()
	path := program(t)
	sb := harness.Shared(t)
	for _, flag := range []string{"interactive", "tty"} {
		noteFlags([]string{"exec", "--" + flag})
	}
	container := containerOf(t, sb)
	scripts := []string{
		`printf 'a\nb\nc\n' | while read l; do EXEC BOX echo $l; done`,
		`printf 'a\nb\nc\n' | while read l; do EXEC -i BOX echo $l; done`,
		`printf 'a\nb\nc\n' | while read l; do EXEC -i BOX cat; done`,
		`printf 'EXEC BOX true\necho after\n' | bash`,
		`printf 'EXEC BOX cat\necho after\n' | bash`,
		`printf 'EXEC BOX sh -c "exit 9"\necho $?\n' | bash`,
		`echo some | EXEC BOX cat`,
		`echo some | EXEC -i BOX cat`,
		`EXEC -i BOX cat </dev/null`,
		`EXEC -i BOX cat <&-; echo $?`,
		`EXEC BOX cat <&-`,
		`{ sleep 1; echo one; sleep 1; echo two; } | perl -MFcntl -e 'fcntl(STDIN, F_SETFL, O_NONBLOCK); exec @ARGV' EXEC -i BOX cat`,
		`perl -MFcntl -e 'fcntl(STDOUT, F_SETFL, O_WRONLY | O_NONBLOCK); exec @ARGV' EXEC BOX head -c 3000000 /dev/zero | { sleep 1; wc -c; }`,
		`head -c 3000000 /dev/zero | EXEC -i BOX sh -c 'wc -c'`,
		`head -c 3000000 /dev/zero | EXEC -i BOX head -c 5 | wc -c`,
		`EXEC BOX seq 200000 | tail -1`,
		`EXEC BOX yes | head -2`,
		`EXEC BOX sh -c 'yes >&2' 2>&1 | head -1`,
		`EXEC BOX sh -c 'trap "" PIPE; yes 2>/dev/null; exit 0' | head -1`,
		`EXEC BOX sh -c 'exit 3'; echo $?`,
		`EXEC BOX sh -c 'kill -9 $$'; echo $?`,
		`EXEC BOX sh -c 'kill -TERM $$'; echo $?`,
		`EXEC BOX sh -c 'echo out; echo err >&2' 2>/dev/null`,
		`EXEC -e A=1 -w /tmp -u 1000 BOX sh -c 'echo $A $PWD; id -u'`,
		`EXEC -w /none BOX true >/dev/null 2>&1; echo $?`,
		`EXEC -w /etc/passwd BOX true >/dev/null 2>&1; echo $?`,
		`EXEC BOX sh -c 'sleep 1000 >/dev/null 2>&1 & echo started'; echo $?`,
		`a=$(EXEC BOX echo x); echo "$a"`,
		`xargs -n1 sh -c 'EXEC BOX echo $0' <<E
1
2
E`,
		`EXEC -i BOX sh <<E
echo from here
E`,
		`EXEC -w /root -u 1000 BOX true >/dev/null 2>&1; echo $?`,
		`EXEC -u nobody-of-that-name BOX true >/dev/null 2>&1; echo $?`,
		`EXEC -t BOX sh -c 'test -t 0; echo $?; test -t 1; echo $?' </dev/null; echo $?`,
		`EXEC -it BOX echo hi </dev/null; echo $?`,
		`EXEC BOX echo hi >&-; echo $?`,
		`EXEC BOX sh -c 'echo hi; exit 3' >&-; echo $?`,
		`EXEC BOX sh -c 'head -c 300000 /dev/zero; exit 3' >&-; echo $?`,
		`EXEC BOX sh -c 'echo out; echo err >&2; exit 3' 2>&-; echo $?`,
		`EXEC BOX sh -c 'cat; exit 4' <&-; echo $?`,
		`EXEC -i BOX sh -c 'cat; exit 4' <&- >&-; echo $?`,
		`EXEC -i BOX sh -c 'cat; exit 4' <&- >&- 2>&-; echo $?`,
		`EXEC BOX true <&- >&- 2>&-; echo $?`,
		`EXEC BOX env | grep -E '^(USER|PWD)='`,
		`EXEC BOX printf %s $'a\xffb' | od -c`,
		`EXEC -e A=$'a\xffb' BOX printenv A | od -c`,
		`EXEC -w ../tmp BOX pwd 2>&1`,
		`EXEC BOX '' >/dev/null 2>&1; echo $?`,
		`EXEC BOX sh -c 'trap "" HUP; exit 5' <&- >&- 2>&-; echo $?`,
		// A signal that ends neither of the two, nor the command.
		`coproc EXEC -i BOX sh -c "echo ready; read x; exit 4"; P=$COPROC_PID; read l <&${COPROC[0]}; kill -PIPE $P; echo >&${COPROC[1]}; wait $P; echo $?`,
		`coproc EXEC -i BOX sh -c "echo ready; read x; exit 4"; P=$COPROC_PID; read l <&${COPROC[0]}; kill -WINCH $P; kill -CONT $P; echo >&${COPROC[1]}; wait $P; echo $?`,
	}
	for _, seed := range harness.Seeds(1, 20) {
		scripts = append(scripts, randomCalls(seed, 30)...)
	}
	for _, script := range scripts {
		run := func(command, box string) string {
			return runScript(t, path, strings.NewReplacer("EXEC", command, "BOX", box).Replace(script))
		}
		got, want := run("sandbox exec", sb.Name()), run("docker exec", container)
		differs := slices.ContainsFunc([]string{"/root", "-u nobody-", "EXEC -t ", "EXEC -it ", "USER|PWD", `\xff`, "-w ../", "BOX ''"}, func(s string) bool { return strings.Contains(script, s) })
		if (got != want) != differs {
			t.Errorf("%s\nsandbox exec: %q\ndocker exec:  %q\nthey differ according to docs/differences.md: %t", script, got, want, differs)
		}
	}
}

// randomCalls are scripts for bash that call a program with EXEC BOX, its flags between the two, and see what it does with their streams.
func randomCalls(seed uint64, n int) (scripts []string) {
	rnd := rand.New(rand.NewPCG(seed, 34))
	one := func(list ...string) string { return list[rnd.IntN(len(list))] }
	quoted := func(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
	for range n {
		call := "EXEC"
		for _, flag := range []string{"-i", one("-e VALUE=a", "-e VALUE=", "-e 'VALUE= b  c'", "-e VALUE=ü=2", "-e VALUE", "-e UNSET"), one("-u node", "-u 1000:0", "-u 0", "-u node:node"), one("-w /", "-w /tmp", "-w /usr/../etc")} {
			if rnd.IntN(3) == 0 || flag == "-i" && rnd.IntN(2) == 0 {
				call += " " + flag
			}
		}
		call += " BOX sh -c " + quoted(harness.RandomScript(rnd)) + one("", "", " name", " name 'a  b' ''")
		out := one("", "", "", " >&-", " 2>&-", " >/dev/null", " 2>/dev/null", " | cat", " | wc -c", " | head -c 10", " 3>&1 >&2 2>&3", " 2>&1 | wc -c")
		call = one("", "", "env -u HOME ", "timeout 600 ", "setsid -w ", "nice ") + call
		call = one("", "", "", "printf 'a\\nb\\n' | ", "printf 'no end' | ", "head -c 200000 /dev/zero | ", "{ echo one; sleep 0.2; echo two; } | ", "</etc/passwd ", "</dev/null ", "<&- ", "<<<here ") + call
		if strings.HasPrefix(out, " | ") && !strings.Contains(out, "head") { // before head's end, what comes first varies
			call = "{ " + call + "; echo $?; }"
		}
		call += out
		switch rnd.IntN(8) {
		case 0:
			call = `x=$(` + call + `); echo "$? $x"`
		case 1:
			call = "for i in 1 2; do " + call + "; echo $?; done"
		case 2:
			call = "printf '1\\n2\\n' | while read l; do " + call + "; echo $? $l; done"
		case 3:
			call = "if " + call + "; then echo yes; else echo no $?; fi; cat"
		case 4:
			call = "{ " + call + "; } & wait $!; echo $?"
		default:
			call += "; echo $?"
		}
		scripts = append(scripts, "export VALUE=outside; "+call)
	}
	return scripts
}

// Who ends the program ends the command, where docker's lives on, and the code says so.
func TestSignalsToExecAreAsOfDockerExec(t *testing.T) {
	t.Parallel()
	path := program(t)
	sb := harness.Shared(t)
	container := containerOf(t, sb)
	for _, tt := range []struct{ signal, ours, docker string }{
		{"TERM", "130", "0"}, {"INT", "130", "0"}, {"HUP", "130", "129"}, {"KILL", "137", "137"},
	} {
		for _, command := range []struct {
			call, code string
			lives      bool
		}{{"sandbox exec " + sb.Name(), tt.ours, false}, {"docker exec " + container, tt.docker, true}} {
			// The signal may come before docker's client has begun to catch it, until its command has written.
			got := runScript(t, path, `coproc `+command.call+` sh -c 'echo $$; exec sleep 1000'; P=$COPROC_PID; read pid <&${COPROC[0]}; kill -`+tt.signal+` $P; wait $P 2>/dev/null; echo $? $pid`)
			code, pid, _ := strings.Cut(strings.TrimSuffix(got, " code exit status 0"), " ")
			if code != command.code {
				t.Errorf("%s after %s: %q, want code %s", command.call, tt.signal, got, command.code)
			}
			lives := func() bool { return sb.Command(t.Context(), "kill", "-0", pid).Run() == nil }
			if command.lives {
				if !lives() {
					t.Errorf("%s after %s: the command has ended", command.call, tt.signal)
				}
				harness.Run(t, sb, "kill", "-KILL", pid)
			}
			harness.Eventually(t, "the command has ended", func() bool { return !lives() })
		}
	}
}

// Which lines logs prints, and when they were written, is as with docker logs.
func TestLogsInScriptsAreAsOfDockerLogs(t *testing.T) {
	t.Parallel()
	path := program(t)
	noteFlags([]string{"logs", "--tail", "1", "--timestamps"})
	sb := harness.NewSandbox(t, sandbox.WithName(harness.UniqueName(t)), sandbox.WithCommand("sh", "-c", "i=0; while [ $i -lt 60 ]; do echo out $i; i=$((i+1)); done; echo err >&2; exec sleep 1000"))
	container := containerOf(t, sb)
	var times []time.Time
	harness.Eventually(t, "the log is complete", func() bool {
		times = nil
		for l, err := range sb.Logs(t.Context(), sandbox.LogOptions{}) {
			if err != nil {
				t.Fatal(err)
			}
			times = append(times, l.Time)
		}
		return len(times) == 61
	})
	middle := times[30]
	tokyo := middle.In(time.FixedZone("", 9*60*60))
	flags := []string{"", "-t", "--timestamps --tail 3", "--tail all", "--tail -1", "--tail=-7", "--tail 0", "--tail 7", "-n 2", "-n all -t", "--tail 1000", "--since ''"}
	for _, since := range []string{
		"0", "0.5", "1", fmt.Sprint(middle.Unix()), fmt.Sprintf("%d.%09d", middle.Unix(), middle.Nanosecond()), fmt.Sprint(middle.Unix() + 1000),
		"1h", "-1h", "1h30m", middle.Format(time.RFC3339Nano), tokyo.Format(time.RFC3339Nano), tokyo.Format("2006-01-02T15:04:05.999999999"), tokyo.Format("2006-01-02T15:04:05"),
		tokyo.Format("2006-01-02T15:04"), tokyo.Add(time.Hour).Format("2006-01-02T15:04"), tokyo.Format("2006-01-02T15"), tokyo.Format("2006-01-02"), tokyo.AddDate(0, 0, 1).Format("2006-01-02"),
		tokyo.Add(time.Hour).Format("2006-01-02T15:04Z07:00"), tokyo.Format("2006-01-02Z07:00"), "1960-01-01", "2026-13-01", "noon", "-5",
	} {
		flags = append(flags, "--since "+since)
	}
	differ := []string{"--tail some", "--since 7d", "--since 1767323045000", "--until 1h", "--details"} // rows of docs/differences.md
	for _, flag := range slices.Concat(flags, []string{"-n 2 -t --since 0"}, differ) {
		got, want := runScript(t, path, "TZ=Asia/Tokyo sandbox logs "+flag+" "+sb.Name()+" 2>&1 || echo"), runScript(t, path, "TZ=Asia/Tokyo docker logs "+flag+" "+container+" 2>&1 || echo")
		refused := func(s string) bool { return strings.Contains(s, "since") }
		if same := got == want || refused(got) && refused(want); same == slices.Contains(differ, flag) {
			t.Errorf("logs %s = %.200q, with docker %.200q", flag, got, want)
		}
	}
}

// A copy that fails names its target, as it was given, and no file of its own.
func TestErrorsOfCpNameTheTarget(t *testing.T) {
	enginetest.Need(t)
	t.Parallel()
	sb := harness.NewSandbox(t, sandbox.WithName(harness.UniqueName(t)))
	dir := t.TempDir()
	harness.Shell(t, `cd "$0"; mkdir tree; echo f >tree/f; head -c 1000000 /dev/urandom >large`, dir)
	harness.Run(t, sb, "sh", "-c", "mkdir tree; echo f >tree/f; head -c 67000000 /dev/zero >/dev/shm/full")
	box := sb.Name() + ":"
	for i, tt := range []struct{ from, to, names string }{
		{dir + "/large", box + "/proc/nope", "/proc/nope"}, {dir + "/tree", box + "/proc/nope", "/proc/nope"},
		{dir + "/large", box + "/dev/shm/", "/dev/shm/large"}, {dir + "/large", box + "/dev/shm/new", "/dev/shm/new"},
		{box + "tree/f", "/proc/nope", "/proc/nope"}, {box + "tree", "/proc/nope", "/proc/nope"}, {box + "tree/f", "/proc/", "/proc/f"},
		{box + "tree/f", "/proc/nope", "/proc/nope"}, // stopped
	} {
		if i == 7 {
			mustCall(t, "stop", sb.Name())
		}
		code, _, errOut := call(t.Context(), "", "cp", tt.from, tt.to)
		if code != 1 || !strings.Contains(errOut, tt.names+": no ") || strings.Contains(errOut, ".agent-sandbox-") || strings.Contains(errOut, "//") {
			t.Errorf("cp %s %s: code %d, %q, want an error of %s", tt.from, tt.to, code, errOut, tt.names)
		}
	}
}

// A command that leaves a process in the background has succeeded, wherever its output goes. The process ends with exec; docker's
// lives on.
func TestProcessesThatExecLeavesBehind(t *testing.T) {
	t.Parallel()
	path := program(t)
	sb := harness.Shared(t)
	lives := func() bool { return sb.Command(t.Context(), "pgrep", "-fx", "sleep 4713").Run() == nil }
	file := filepath.Join(t.TempDir(), "file")
	for i, script := range []string{
		"sleep 4713 &", "nohup sleep 4713 2>/dev/null &", "setsid sleep 4713 &", "(sleep 4713 &); true",
		"sleep 4713 >/dev/null 2>&1 &", "sleep 4713 2>/dev/null &", "sleep 4713 >/dev/null &",
	} {
		check := func(output, got, want string) {
			if got != want {
				t.Errorf("exec %q %s: %q, want %q", script, output, got, want)
			}
			harness.Eventually(t, "the process has ended", func() bool { return !lives() })
		}
		outputs := []string{"| cat", ">/dev/null", ">" + file, "2>/dev/null", ">&-", "2>&-"}
		if i > 0 {
			outputs = outputs[i%2:][:1]
		}
		for _, output := range outputs {
			check(output, runScript(t, path, "{ sandbox exec "+sb.Name()+" sh -c '"+script+"' || echo $?; } 2>&1 "+output), " code exit status 0")
		}
		code, out := inTerminal(t, nil, "exec", sb.Name(), "sh", "-c", script).end()
		check("on a terminal", fmt.Sprint(code, out), "0")
	}
	if got := runScript(t, path, "docker exec "+containerOf(t, sb)+" sh -c 'sleep 4713 >/dev/null 2>&1 & echo started'"); got != "started code exit status 0" || !lives() {
		t.Errorf("docker exec: %q, want that its process lives on", got)
	}
	harness.Run(t, sb, "pkill", "-fx", "sleep 4713")
}

// Streams that another program makes non-blocking, as it shares them, lose nothing: docker exec ends.
func TestStreamsThatBecomeNonBlocking(t *testing.T) {
	enginetest.Need(t)
	t.Parallel()
	sb := harness.Shared(t)
	pipe := func() (r, w *os.File) {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { r.Close(); w.Close() })
		return r, w
	}
	stdin, in := pipe()
	out, stdout := pipe()
	cmd := exec.CommandContext(t.Context(), filepath.Join(program(t), "sandbox"), "exec", "-i", sb.Name(), "--", "sh", "-c", "echo ready; cat; head -c 3000000 /dev/zero")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, stdout, os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(out)
	for i, want := range []string{"ready", "one", "two"} {
		if line, err := lines.ReadString('\n'); err != nil || line != want+"\n" {
			t.Fatalf("line %d is %q, %v, want %s", i, line, err, want)
		}
		if i == 0 {
			for _, f := range []*os.File{stdin, stdout} {
				if err := unix.SetNonblock(int(f.Fd()), true); err != nil {
					t.Fatal(err)
				}
			}
			stdout.Close()
		}
		if next := []string{"one\n", "two\n", ""}[i]; next != "" {
			if _, err := in.WriteString(next); err != nil {
				t.Fatal(err)
			}
		}
	}
	in.Close()
	time.Sleep(300 * time.Millisecond) // until the pipe is full
	n, err := io.Copy(io.Discard, lines)
	if e := cmd.Wait(); e != nil || err != nil || n != 3000000 {
		t.Errorf("after its lines %d bytes, %v, and exec ends with %v", n, err, e)
	}
}

// A reader that goes away, and a hang-up, leave no sandbox.
func TestRunCleansUpHoweverItEnds(t *testing.T) {
	t.Parallel()
	path := program(t)
	for _, tt := range []struct {
		script string
		code   int
	}{
		{`sandbox run -q -- sh -c 'hostname; exec yes' | head -1; exit ${PIPESTATUS[0]}`, 141},
		{`sandbox run -q -- sh -c 'hostname; trap "" PIPE; yes 2>/dev/null; exit 0' | head -1; exit ${PIPESTATUS[0]}`, 141},
		{`sandbox run -q -- sh -c 'hostname; yes >&2' 2> >(head -1 >/dev/null)`, 141},
		{`coproc sandbox run -q -- sh -c 'hostname; exec sleep 1000'; read id <&${COPROC[0]}; echo $id; kill -HUP $COPROC_PID; wait $COPROC_PID`, codeInterrupted},
		{`coproc sandbox run -q -- sh -c 'hostname; exec sleep 1000'; read id <&${COPROC[0]}; echo $id; kill -TERM $COPROC_PID; wait $COPROC_PID`, codeInterrupted},
	} {
		cmd := exec.CommandContext(t.Context(), "bash", "-c", tt.script)
		cmd.Env = append(os.Environ(), "PATH="+path+":"+os.Getenv("PATH"))
		out, _ := cmd.Output()
		id := strings.TrimSpace(string(out))
		if code := cmd.ProcessState.ExitCode(); code != tt.code {
			t.Errorf("%s: code %d, want %d", tt.script, code, tt.code)
		}
		if held := left(t, "agent-sandbox.id="+id); id == "" || len(held) > 0 {
			t.Errorf("%s: left of %q: %v", tt.script, id, held)
		}
	}
}

// OpenSSH ends its ProxyCommand by a hang-up, about which there is nothing to say.
func TestTheProxyEndsQuietly(t *testing.T) {
	t.Parallel()
	path := program(t)
	sb := harness.Shared(t)
	cmd := exec.CommandContext(t.Context(), path+"/sandbox", "proxy", sb.Name())
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if banner, err := bufio.NewReader(stdout).ReadString('\n'); !strings.HasPrefix(banner, "SSH-2.0-") {
		t.Errorf("the server says %q, %v", banner, err)
	}
	if err := cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil || stderr.Len() > 0 {
		t.Errorf("after a hang-up: %v, %q", err, stderr.String())
	}
}

// nohup's programs go on after a hang-up.
func TestNohupIsRespected(t *testing.T) {
	t.Parallel()
	path := program(t)
	sb := harness.Shared(t)
	cmd := exec.CommandContext(t.Context(), "nohup", path+"/sandbox", "exec", sb.Name(), "--", "sh", "-c", "touch nohup-ready; while ! test -e nohup-go; do sleep 0.05; done; exit 4")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	harness.WaitForFile(t, sb, "/workspace/nohup-ready")
	if err := cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	harness.Write(t, sb, "nohup-go", "")
	cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 4 {
		t.Errorf("code %d, want the command's", code)
	}
}

// firstWrite keeps what is written first, and calls then.
type firstWrite struct {
	text string
	then func()
}

func (f *firstWrite) Write(p []byte) (int, error) {
	if f.text == "" {
		f.text = string(p)
		f.then()
	}
	return len(p), nil
}

// A detached command outlives the program that started it, and is found and ended by its ID.
func TestDetachedCommandsOnTheCommandLine(t *testing.T) {
	enginetest.Need(t)
	t.Parallel()
	name := harness.Shared(t).Name()
	start := func(script string, flags ...string) string {
		t.Helper()
		args := slices.Concat([]string{"exec", "--detach"}, flags, []string{name, "--", "sh", "-c", script})
		return strings.TrimSpace(mustCall(t, args...))
	}
	status := func(id string) (p sandbox.ProcessInfo) {
		t.Helper()
		for _, p := range decoded[[]sandbox.ProcessInfo](t, "processes", "--json", name) {
			if p.ID == id {
				return p
			}
		}
		t.Fatalf("processes does not list %s", id)
		return p
	}
	speaks, stays, obeys := start("echo of the first; exec sleep 1000"), start("exec sleep 1000"), start("trap 'exit 5' USR1 TERM; while :; do sleep 0.1; done")
	late := start("exec sleep 1000", "--timeout", "200ms")
	harness.Eventually(t, "the timeout has passed", func() bool { return status(late).TimedOut })
	for _, id := range []string{speaks, stays, obeys} {
		if !status(id).Running {
			t.Errorf("%s does not run after its exec", id)
		}
	}
	harness.Eventually(t, "logs has the line", func() bool {
		return mustCall(t, "logs", "--command", speaks, name) == "of the first\n"
	})
	// What another command has written since does not count.
	other := start("seq 20")
	harness.Eventually(t, "logs has all lines of another command", func() bool {
		return strings.HasSuffix(mustCall(t, "logs", "--command", other, name), "\n20\n")
	})
	if got := mustCall(t, "logs", "--tail", "1", "--command", speaks, name); got != "of the first\n" {
		t.Errorf("the last line of a command before another one: %q", got)
	}
	if got := mustCall(t, "logs", "--tail", "2", "--command", other, name); got != "19\n20\n" {
		t.Errorf("the last lines of the other command: %q", got)
	}
	ctx, enough := context.WithTimeout(t.Context(), harness.CallBound)
	followed := &firstWrite{then: enough}
	if code := run(ctx, []string{"logs", "--follow", "--tail", "1", "--command", speaks, name}, nil, followed, io.Discard); code != codeInterrupted || followed.text != "of the first\n" {
		t.Errorf("the same with --follow: code %d, %q first", code, followed.text)
	}
	if got := mustCall(t, "logs", "--tail", "2", "--command", "", name); got != "" {
		t.Errorf("the last lines of a main process that has written none: %q", got)
	}
	if got := mustCall(t, "logs", "--command", stays, name); got != "" {
		t.Errorf("logs of a command that says nothing: %q", got)
	}
	if got := decoded[[]map[string]string](t, "kill", "--json", name, speaks, stays); len(got) != 2 || got[0]["id"] != speaks {
		t.Errorf("kill = %v, want both", got)
	}
	mustCall(t, "kill", "-s", "TERM", name, obeys)
	harness.Eventually(t, "all have ended", func() bool {
		a, b, c := status(speaks), status(stays), status(obeys)
		return !a.Running && !b.Running && !c.Running && a.Signal == 9 && b.Signal == 9 && *c.ExitCode == 5
	})
	if code, _, errOut := call(t.Context(), "", "kill", name, "nosuchcommand"); code != 1 || !strings.Contains(errOut, "nosuchcommand") {
		t.Errorf("kill of none: code %d, %q", code, errOut)
	}
	if code, _, errOut := call(t.Context(), "", "exec", name, "--timeout=1s", "--", "sleep", "1000"); code != 127 {
		t.Errorf("a flag after the name: code %d, %q, want that it is the command", code, errOut)
	}
	if code, _, errOut := call(t.Context(), "", "exec", "--timeout=200ms", name, "--", "sleep", "1000"); code != 137 || !strings.Contains(errOut, "Timed out") {
		t.Errorf("exec --timeout: code %d, %q, want 137", code, errOut)
	}
}

// Unknown subcommands are errors, with the one that was probably meant.
func TestUnknownCommandsAreErrors(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"lst"}, 2, `sandbox: unknown command "lst"; did you mean "list"?`},
		{[]string{"volume", "rmm", "x"}, 2, `sandbox volume: unknown command "rmm"`},
		{[]string{"volume", "lst"}, 2, `sandbox volume: unknown command "lst"; did you mean "list"?`},
		{[]string{"nothing-like-it"}, 2, `sandbox: unknown command "nothing-like-it"` + "\n"},
		{[]string{"snapshot", "lst"}, 2, `did you mean "list"?`},
		{[]string{"create", "web"}, 1, `to name the sandbox write --name web`},
		{[]string{"run", "--rm", "--name", "a", "true"}, 2, "--rm"},
		{[]string{"exec", "-d", "-i", "a", "true"}, 2, "detach"},
		{[]string{"cp", "a:f", "-"}, 2, "./-"},
	} {
		enginetest.Need(t)
		code, out, errOut := call(t.Context(), "", tt.args...)
		if code != tt.code || !strings.Contains(errOut, tt.says) || out != "" || strings.Contains(errOut, `\t`) {
			t.Errorf("%v: code %d, %q, stdout %q, want %d and %q", tt.args, code, errOut, out, tt.code, tt.says)
		}
	}
	for _, args := range [][]string{nil, {"volume"}, {"snapshot", "--help"}} {
		if code, out, errOut := call(t.Context(), "", args...); code != 0 || !strings.Contains(out, "Usage:") || errOut != "" {
			t.Errorf("%v: code %d, %q, want the help", args, code, errOut)
		}
	}
}

func TestVersionIsPrinted(t *testing.T) {
	enginetest.Need(t)
	t.Parallel()
	if got := mustCall(t, "--version"); !strings.HasPrefix(got, "sandbox version ") {
		t.Errorf("--version: %q", got)
	}
	if got := mustCall(t, "version"); !strings.Contains(got, "engine  ") || !strings.Contains(got, "API") {
		t.Errorf("version: %q", got)
	}
	var v map[string]string
	if err := json.Unmarshal([]byte(mustCall(t, "version", "--json")), &v); err != nil || v["version"] == "" || v["engine"] == "" {
		t.Errorf("version --json: %v, %v", v, err)
	}
	code, out, _ := call(t.Context(), "", "--host", "unix:///no/such/socket", "version")
	if code != 0 || !strings.Contains(out, "does not answer") {
		t.Errorf("version without an engine: code %d, %q", code, out)
	}
}

// Rows of docs/differences.md.
const (
	rowDotDot  = "`..` behind a link, or behind what is no directory, in a target"
	rowMissing = "missing directories of a target"
	rowLink    = "a link in a directory, whose name the copy into it has"
)

// rowOf returns the row of docs/differences.md that says why copies of from to to, below base, may differ.
func rowOf(base, from, to string) string {
	elements := strings.Split(to, "/")
	for i, element := range elements {
		if st, err := os.Lstat(base + "/" + strings.Join(elements[:i], "/")); element == ".." && (err != nil || !st.IsDir()) {
			return rowDotDot
		}
	}
	isDir := func(name string) bool {
		st, err := os.Stat(base + "/" + name)
		return err == nil && st.IsDir()
	}
	contents := from == "." || strings.HasSuffix(strings.TrimRight(from, "/"), "/.")
	target := path.Clean(to)
	switch slash := strings.HasSuffix(to, "/"); {
	case isDir(target):
		if st, err := os.Lstat(base + "/" + path.Join(target, path.Base(from))); err == nil && st.Mode().Type() == fs.ModeSymlink && !contents {
			return rowLink
		}
	case !isDir(path.Dir(target)), strings.HasSuffix(strings.TrimRight(to, "/"), "/."), slash && !isDir(from):
		return rowMissing
	}
	return ""
}

// cp copies the contents of a directory, and a directory, to where docker cp does.
func TestCopyIsAsDockerCp(t *testing.T) {
	enginetest.Need(t)
	t.Parallel()
	sb := harness.Shared(t)
	container := containerOf(t, sb)
	docs, err := os.ReadFile("../../docs/differences.md")
	if err != nil {
		t.Fatal(err)
	}
	const files = "mkdir -p there src/sub && echo f >src/f && chmod 750 src/f && echo g >src/sub/g && chmod 711 src/sub && echo old >there/old && ln -s src/f link && ln -s src dirlink && ln -s none nowhere && ln -s loop loop && ln -s src/sub deep"
	type pair struct{ from, to, differs string }
	pairs := []pair{
		{"src", "there", ""}, {"src", "new", ""}, {"src", "new/", ""}, {"src/.", "there", ""}, {"src/.", "new", ""}, {"src/", "there", ""}, {"src/", "new", ""}, {"src/", "new/", ""}, {"src/./.", "there", ""},
		{"src/f", "there", ""}, {"src/f", "new", ""}, {"src/f", "there/g", ""}, {".", "there", ""}, {".", "new", ""}, {"src/.", "there/", ""}, {"src/.", "new/", ""}, {"src/sub/..", "there", ""},
		{"link", "there", ""}, {"link", "new", ""}, {"dirlink/", "there", ""}, {"dirlink/.", "new", ""}, {"dirlink", "new/", ""},
		{"src", "src/sub/g/..", rowDotDot}, {"src/f", "deep/..", rowDotDot}, {"src/f", "new/", rowMissing}, {"src", "no/new", rowMissing}, {"src/.", "new/.", rowMissing}, {"link", ".", rowLink}, {"dirlink", ".", rowLink},
	}
	fixed := len(pairs)
	for _, seed := range harness.Seeds(1, 20) {
		rnd := rand.New(rand.NewPCG(seed, 34))
		one := func(list ...string) string { return list[rnd.IntN(len(list))] }
		name := func() string {
			return one("", "", "./", "src/../", "there/./") + one("src", "src/f", "src/sub", "src/sub/g", "there", "there/old", "link", "dirlink", "dirlink/sub", "deep", "nowhere", "loop", "new", "new/er", "src/f/below", ".") +
				one("", "", "/", "/.", "//", "/..", "/./")
		}
		for range harness.Rounds(6, 20) {
			pairs = append(pairs, pair{name(), name(), ""})
		}
	}
	for i, tt := range pairs {
		var results [2][2]string
		for tool := range results {
			base := t.TempDir() + "/t"
			harness.Run(t, sb, "sh", "-c", "rm -rf /t && mkdir /t && cd /t && "+files)
			harness.Shell(t, `mkdir "$0" && cd "$0" && `+files, base)
			if row := rowOf(base, tt.from, tt.to); tt.differs == "" && row != "" && i >= fixed {
				break // on purpose, if they differ at all
			} else if row != tt.differs {
				t.Errorf("cp %s %s may differ as %q, want %q", tt.from, tt.to, row, tt.differs)
			}
			cp := func(from, to string) (failed string) {
				if tool == 0 {
					if code, _, _ := call(t.Context(), "", "-q", "cp", from, to); code != 0 {
						return "fails "
					}
				} else if exec.Command("docker", "cp", "-L", from, to).Run() != nil {
					return "fails "
				}
				return ""
			}
			box := []string{sb.Name(), container}[tool] + ":/t/"
			const list = `find . -printf '%y %m %p %l\n' | sort; find . -type f | sort | xargs tail -v -n +1`
			failed := cp(box+tt.from, base+"/"+tt.to)
			out, err := exec.Command("sh", "-c", `cd "$0" && `+list, base).Output()
			if err != nil {
				t.Fatal(err)
			}
			results[tool][0] = failed + string(out)
			harness.Shell(t, `cd "$0" && rm -rf ./* && `+files, base)
			failed = cp(base+"/"+tt.from, box+tt.to)
			results[tool][1] = failed + harness.Run(t, sb, "sh", "-c", "cd /t; "+list)
		}
		if (results[0] != results[1]) != (tt.differs != "") {
			t.Errorf("cp %s %s (out, in):\nsandbox %q\ndocker  %q\nthey differ according to docs/differences.md: %q", tt.from, tt.to, results[0], results[1], tt.differs)
		}
		if !strings.Contains(string(docs), "\n| "+tt.differs) {
			t.Errorf("docs/differences.md has no row %q", tt.differs)
		}
	}
}

// A name alone is the workspace, whose contents are copied, as docker cp copies those of /workspace/.; what names nothing is refused by both.
func TestCopyOfAWorkspaceIsAsDockerCp(t *testing.T) {
	enginetest.Need(t)
	t.Parallel()
	sb := harness.NewSandbox(t)
	container := containerOf(t, sb)
	for _, tt := range []struct{ from, to, dockers string }{ // dockers is the path for BOX's
		{"BOX:", "DIR/there", "/workspace/."}, {"BOX:.", "DIR/there", "/workspace/."}, {"BOX:./", "DIR/there", "/workspace/."}, {"BOX:", "DIR/new", "/workspace/."}, {"BOX:src", "DIR/there", "/workspace/src"},
		{"BOX:src/.", "DIR/there/", "/workspace/src/."}, {"BOX:src/../.", "DIR/new", "/workspace/src/../."}, {"BOX:f", "DIR", "/workspace/f"}, {"BOX:/none", "DIR", "/none"},
		{"DIR/src/.", "BOX:", "/workspace/."}, {"DIR/src/.", "BOX:.", "/workspace/."}, {"DIR/src", "BOX:", "/workspace/."}, {"DIR/src", "BOX:.", "/workspace/."}, {"DIR/src", "BOX:./", "/workspace/./"},
		{"DIR/f", "BOX:", "/workspace/."}, {"DIR/f", "BOX:g", "/workspace/g"}, {"", "BOX:", "/workspace/."}, {"BOX:f", "", "/workspace/f"}, {"", "", ""}, {":f", "DIR", ":f"}, {"DIR/none", "BOX:", "/workspace/."},
	} {
		var results [2]string
		for i := range results {
			dir, err := filepath.EvalSymlinks(t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			harness.Shell(t, `cd "$0" && mkdir -p there src/sub && echo f >f && echo g >src/sub/g && echo old >there/old`, dir)
			harness.Run(t, sb, "sh", "-c", "cd /workspace && rm -rf ..?* .[!.]* * && mkdir -p src/sub && echo inside >f && echo g >src/sub/h")
			named := func(arg string) string {
				arg = strings.ReplaceAll(arg, "DIR", dir)
				if _, is := strings.CutPrefix(arg, "BOX:"); is && i == 1 {
					return container + ":" + tt.dockers
				}
				return strings.ReplaceAll(arg, "BOX", sb.Name())
			}
			var failed bool
			if i == 0 {
				code, _, _ := call(t.Context(), "", "-q", "cp", named(tt.from), named(tt.to))
				failed = code != 0
			} else {
				failed = exec.Command("docker", "cp", "-L", named(tt.from), named(tt.to)).Run() != nil
			}
			find := "find . -type f -printf '%p %s\\n' -o -printf '%y %p\\n' | sort"
			outside := exec.Command("sh", "-c", find)
			outside.Dir = dir
			files, err := outside.Output()
			if err != nil {
				t.Fatal(err)
			}
			results[i] = fmt.Sprintf("fails %t\n%s\n%s", failed, files, harness.Run(t, sb, "sh", "-c", "cd /workspace && "+find))
		}
		if results[0] != results[1] {
			t.Errorf("cp %q %q\nsandbox: %s\ndocker: %s", tt.from, tt.to, results[0], results[1])
		}
	}
}
