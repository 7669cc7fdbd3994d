package exec_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/test/exec/cases"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// A Cmd does what os/exec does with the same command inside: streams, pipes, ends, errors and what
// the processes see. What differs on purpose is a row of the documentation.
func TestCmdIsAsOSExec(t *testing.T) {
	t.Parallel()
	sb := harness.NewSandbox(t)
	program, err := harness.BuildProgram("osexec", runtime.GOARCH)
	if err != nil {
		t.Fatal(err)
	}
	if err := sb.WriteFile(t.Context(), "/usr/local/bin/osexec", program, 0o755); err != nil {
		t.Fatal(err)
	}
	harness.Run(t, sb, "sh", "-c", `mkdir -p dir dir/sub && ln -s dir link && touch plain && printf '#!/bin/sh\necho ran\n' >dir/ok
		printf '#!/bin/sh\r\necho ran\r\n' >crlf; printf '#!/no/such/interpreter -x\n' >lost; printf '#!\n' >nameless; printf 'echo no line\n' >lineless
		printf '#!./dir/ok\n' >through; : >empty; chmod 755 dir/ok crlf lost nameless lineless through empty; ln -s loop loop`)

	seed := harness.Seeds(1, 1)[0]
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("SANDBOX_SEED=%d", seed)
		}
	})
	all := append(fixedCases(), generatedCases(rand.New(rand.NewPCG(seed, 1)), harness.Rounds(100, 3000))...)
	text, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	var want []cases.Result
	reference := sb.Command(t.Context(), "osexec")
	reference.Stdin = bytes.NewReader(text)
	reference.Stderr = os.Stderr
	out, err := reference.Output()
	if err != nil || json.Unmarshal(out, &want) != nil || len(want) != len(all) {
		t.Fatalf("os/exec inside: %v\n%s", err, out)
	}

	make := func(ctx context.Context, c cases.Case, in io.Reader, out, err io.Writer) cases.Command {
		cmd := sb.Command(ctx, c.Path)
		cmd.Args, cmd.Env, cmd.Dir, cmd.WaitDelay, cmd.Timeout = c.Args, c.Env, c.Dir, c.WaitDelay, c.Timeout
		cmd.Stdin, cmd.Stdout, cmd.Stderr = in, out, err
		return command{cmd}
	}
	sb.Command(t.Context(), "pkill", "-KILL", "sleep").Run() // what os/exec has left
	got := runAll(all, func(c cases.Case) cases.Result { return cases.Run(c, "Cmd", make) })
	rows := differences(t, "os/exec")
	if left, err := sb.Command(t.Context(), "pgrep", "-fax", "sleep 1000").Output(); len(left) > 0 {
		t.Errorf("commands that were ended have left (%v):\n%s", err, left)
	}
	used := map[string]bool{}
	for i, c := range all {
		for by, result := range map[string]cases.Result{"os/exec": want[i], "Cmd": got[i]} {
			if result.Wait == "hangs" && c.Hangs != by {
				t.Errorf("%+v hangs by %s", c, by)
			}
		}
		diff := cmp.Diff(want[i], got[i])
		if c.Differs != "" {
			used[c.Differs] = used[c.Differs] || diff != ""
			continue
		}
		if diff != "" {
			t.Errorf("%+v\n(-os/exec +Cmd):\n%s", c, diff)
		}
	}
	for row := range used {
		if !rows[row] {
			t.Errorf("docs/differences.md has no row %q", row)
		}
	}
	for row, differs := range used {
		if !differs {
			t.Errorf("no case differs as the row %q says", row)
		}
	}
}

// command is a Cmd as a [cases.Command].
type command struct{ *sandbox.Cmd }

func (c command) Kept(err error) []byte {
	if exit, ok := errors.AsType[*sandbox.ExitError](err); ok {
		return exit.Stderr
	}
	return nil
}

// runAll runs the cases, several at a time.
func runAll(all []cases.Case, run func(cases.Case) cases.Result) []cases.Result {
	results := make([]cases.Result, len(all))
	var running sync.WaitGroup
	slots := make(chan struct{}, 12)
	for i, c := range all {
		running.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			results[i] = run(c)
		})
	}
	running.Wait()
	return results
}

// differences returns the first cells of the table in a section of docs/differences.md.
func differences(t *testing.T, section string) map[string]bool {
	t.Helper()
	text, err := os.ReadFile("../../docs/differences.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "\n## "+section+"\n")
	rest, _, _ = strings.Cut(rest, "\n## ")
	rows := map[string]bool{}
	for line := range strings.SplitSeq(rest, "\n") {
		if cell, ok := strings.CutPrefix(line, "| "); ok {
			cell, _, _ = strings.Cut(cell, " |")
			rows[strings.TrimSpace(cell)] = true
		}
	}
	return rows
}

// Rows of docs/differences.md.
const (
	rowDelay   = "`WaitDelay` 0"
	rowFiles   = "an `*os.File` as Stdout or Stderr"
	rowUnread  = "a stream that nobody reads, while the other one is read"
	rowRest    = "an `*os.File` as Stdin"
	rowInput   = "a `Stdin` whose Read blocks"
	rowContext = "the end of the context"
	rowPath    = "a program, named by its path, or an interpreter that does not exist"
	rowPATH    = "`PATH`"
	rowEnv     = "an entry of `Env` without `=`"
	rowPWD     = "`PWD`"
	rowKill    = "`Kill`, `Timeout`"
	rowFields  = "`Cancel`, `Process`, `ProcessState`, `ExtraFiles`, `SysProcAttr`, `Err`"
)

// untilBlocked waits, in a shell, until its last background process has ended or is blocked: it has written nothing for half a second.
const untilBlocked = `p=$!; a=-; until b=$(cat /proc/$p/io 2>/dev/null); [ ! -e /proc/$p ] || { [ "$a" = "$b" ] && grep -q "^State:.[SZ]" /proc/$p/status 2>/dev/null; }; do a=$b; sleep 0.5; done; `

// fixedCases are those that no combination of kinds makes.
func fixedCases() []cases.Case {
	big := strings.Repeat("x", 128<<10)
	with := func(c cases.Case, change func(*cases.Case)) cases.Case { change(&c); return c }
	program := func(path string, args ...string) cases.Case {
		return cases.Case{Name: path, Path: path, Args: append([]string{path}, args...), Call: "start"}
	}
	all := []cases.Case{
		with(program("/bin/echo"), func(c *cases.Case) { c.Args = nil; c.Stdout = "buffer" }),
		with(program("/bin/echo"), func(c *cases.Case) { c.Args = []string{}; c.Stdout = "buffer" }),
		with(program("/bin/sh", "-c", "echo $0"), func(c *cases.Case) { c.Args[0] = "other"; c.Stdout = "buffer" }),
		program(""),
		with(program(""), func(c *cases.Case) { c.Args = nil }),
		program("no-such-program"),
		with(program("/no/such/program"), func(c *cases.Case) { c.Differs = rowPath }),
		with(program("./no-such-program"), func(c *cases.Case) { c.Differs = rowPath }),
		program("/workspace/plain"),
		program("/workspace/dir"),
		with(program("/workspace/plain/x"), func(c *cases.Case) { c.Differs = rowPath }),
		with(program("/workspace/loop"), func(c *cases.Case) { c.Call = "start" }),
		program("/workspace/" + strings.Repeat("n", 300)),
		program("/workspace/dir/ok"),
		with(program("./ok"), func(c *cases.Case) { c.Dir = "/workspace/dir"; c.Stdout = "buffer" }),
		with(program("dir/ok"), func(c *cases.Case) { c.Dir = "/workspace"; c.Stdout = "buffer" }),
		with(program("/workspace/through"), func(c *cases.Case) { c.Stdout = "buffer"; c.Dir = "/workspace" }),
		with(program("/workspace/crlf"), func(c *cases.Case) { c.Differs = rowPath }),
		with(program("/workspace/lost"), func(c *cases.Case) { c.Differs = rowPath }),
		program("/workspace/nameless"),
		program("/workspace/lineless"),
		program("/workspace/empty"),
		with(program("true"), func(c *cases.Case) { c.Args = []string{"true", big} }),
		with(program("true"), func(c *cases.Case) { c.Args = []string{"true", big[1:]} }),
		with(program("true"), func(c *cases.Case) { c.Env = []string{"A=" + big} }),
		with(program("env"), func(c *cases.Case) {
			c.Env = []string{"A=1", "A=2", "B=", "PATH=/nowhere:/bin:/usr/bin"}
			c.Stdout = ""
		}),
		with(program("true"), func(c *cases.Case) { c.Env = []string{"novalue"}; c.Differs = rowEnv }),
		with(program("true"), func(c *cases.Case) { c.Env = []string{"A=\x00"}; c.Call = "start" }),
		with(program("true"), func(c *cases.Case) { c.Args = []string{"true", "\x00"} }),
		with(program("sh", "-c", "echo ran"), func(c *cases.Case) { c.Env = []string{"PATH=/nowhere"}; c.Stdout = "buffer"; c.Differs = rowPATH }),
	}
	for _, dir := range []string{"/workspace/dir", "/workspace/link", "/", "/workspace/dir/../dir/./sub", "dir", "link", ".", "..", "/no/such", "/workspace/plain", "/workspace/plain/x", "/workspace/loop", "/" + strings.Repeat("n", 300)} {
		all = append(all, with(cases.Shell("Dir", `echo "$PWD"; pwd; pwd -P`), func(c *cases.Case) { c.Dir = dir; c.Stdout = "buffer"; c.Call = "start" }),
			with(cases.Shell("Dir with Env", `echo "$PWD"; pwd -P`), func(c *cases.Case) {
				c.Dir = dir
				c.Env = []string{"PWD=/tmp"}
				c.Stdout = "buffer"
				c.Call = "start"
			}))
	}
	all = append(all, with(program("/usr/bin/printenv", "PWD"), func(c *cases.Case) { c.Dir, c.Stdout = "/workspace/dir", "buffer" }),
		with(program("/usr/bin/printenv", "PWD"), func(c *cases.Case) {
			c.Dir, c.Env, c.Stdout, c.Differs = "/workspace/dir", []string{"A=1"}, "buffer", rowPWD
		}),
		with(cases.Shell("a file, all of which is read", "cat"), func(c *cases.Case) { c.Stdin, c.Stdout = "file", "buffer" }),
		with(cases.Shell("a file, some of which is read", "head -c 3"), func(c *cases.Case) { c.Stdin, c.Stdout, c.Differs = "file", "buffer", rowRest }),
		with(cases.Shell("stdout is read after stderr", "head -c 1500000 /dev/zero 2>/dev/null & "+untilBlocked+"exec seq 3000 >&2"), func(c *cases.Case) {
			c.Call, c.Stdout, c.Stderr = "start", "pipe-last", "pipe"
		}),
		with(cases.Shell("stdout is read after stderr", "head -c 8000000 /dev/zero 2>/dev/null & "+untilBlocked+"exec seq 300000 >&2"), func(c *cases.Case) {
			c.Call, c.Stdout, c.Stderr, c.Differs, c.Hangs = "start", "pipe-last", "pipe", rowUnread, "Cmd"
		}))
	for _, act := range []string{"wait-first", "twice", "start-again", "pipes-again", "pipes-late"} {
		all = append(all, with(cases.Shell(act, "cat; echo out"), func(c *cases.Case) { c.Call = "start"; c.Act = act; c.Stdin = "text"; c.Stdout = "buffer" }))
	}
	// A context that ends before, during and after the command.
	all = append(all, with(cases.Shell("cancelled before", "echo ran"), func(c *cases.Case) { c.Call, c.Act, c.Stdout = "start", "cancel-before", "buffer" }),
		with(cases.Shell("past its deadline", "echo ran"), func(c *cases.Case) { c.Deadline, c.Stdout = -1, "buffer" }),
		with(cases.Shell("past its deadline", "echo ran"), func(c *cases.Case) { c.Call, c.Deadline = "output", -1 }))
	for _, script := range []string{"echo out", "exit 3", "kill -9 $$"} {
		all = append(all, with(cases.Shell("cancelled after", script), func(c *cases.Case) { c.Call, c.Act, c.Stdout = "start", "cancel-after", "buffer" }))
	}
	for range 10 {
		all = append(all, with(cases.Shell("cancelled meanwhile", "exec sleep 1000"), func(c *cases.Case) { c.Call, c.Act = "start", "cancel-during" }))
	}
	// Which calls refuse which fields.
	for _, call := range []string{"run", "start", "output", "combined"} {
		for _, streams := range [][2]string{{"buffer", ""}, {"", "buffer"}, {"buffer", "same"}, {"pipe-after", ""}, {"", "pipe-after"}, {"", ""}} {
			for _, act := range []string{"", "twice", "pipes-set"} {
				all = append(all, with(cases.Shell(fmt.Sprint(call, streams, act), "echo out; echo err >&2; exit 3"), func(c *cases.Case) {
					c.Call, c.Stdin, c.Stdout, c.Stderr, c.Act = call, "empty", streams[0], streams[1], act
				}))
			}
		}
	}
	// What an ExitError keeps of stderr.
	for _, n := range []int{0, 1, 32<<10 - 1, 32 << 10, 32<<10 + 1, 64<<10 - 1, 64 << 10, 64<<10 + 1, 64<<10 + 9, 96 << 10, 128<<10 + 7, 1 << 20} {
		for _, end := range []string{"exit 3", "kill -9 $$", "exit 0"} {
			all = append(all, with(cases.Shell("stderr of an error", fmt.Sprintf("seq 1000000 | head -c %d >&2; echo out; %s", n, end)), func(c *cases.Case) { c.Call = "output" }))
		}
	}
	for _, in := range []string{"pipe", "pipe-closed"} {
		for _, script := range []string{"cat", "head -c 3", "exec cat >&2"} {
			all = append(all, with(cases.Shell("StdinPipe", script), func(c *cases.Case) {
				c.Call, c.Stdin, c.Stdout, c.Stderr = "start", in, "pipe", "pipe"
			}))
		}
	}
	// Streams that nobody takes any more: the command notices.
	for _, out := range []string{"failing", "failing-late", "short", "pipe-closed", "pipe-ten"} {
		for _, script := range []string{"exec yes", "yes; echo $? >&2", "trap '' PIPE; yes 2>/dev/null; echo $? >&2"} {
			all = append(all,
				with(cases.Shell("stdout is "+out, script), func(c *cases.Case) { c.Call, c.Stdout, c.Stderr = "start", out, "buffer" }),
				with(cases.Shell("stderr is "+out, "exec 3>&1 >&2 2>&3; "+script), func(c *cases.Case) { c.Call, c.Stdout, c.Stderr = "start", "buffer", out }))
		}
	}
	all = append(all, with(cases.Shell("closed before the first write", "sleep 0.1; echo x; echo $? >&2"), func(c *cases.Case) { c.Call, c.Stdout, c.Stderr = "start", "pipe-closed", "buffer" }))
	// Kill and the context, whatever the streams do.
	for _, act := range []string{"kill", "cancel", "term"} {
		for _, out := range []string{"", "buffer", "file", "slow", "blocking"} {
			for _, script := range []string{"exec sleep 1000", "exec yes"} {
				c := with(cases.Shell(act, script), func(c *cases.Case) { c.Call, c.Act, c.Stdout = "start", act, out })
				switch {
				case act == "cancel":
					c.Differs, c.Hangs = rowContext, "os/exec" // in a Write that blocks
				case script == "exec yes" && out != "":
					continue // what arrives varies
				}
				all = append(all, c)
			}
		}
	}
	// Background processes with each stream held: until they end, or far beyond a delay that a busy machine keeps.
	for _, held := range []string{"", ">/dev/null", "2>/dev/null", ">/dev/null 2>&1"} {
		for _, streams := range [][2]string{{"", ""}, {"buffer", ""}, {"", "buffer"}, {"buffer", "same"}, {"buffer", "buffer"}, {"file", "file"}} {
			for delay, sleep := range map[time.Duration]string{0: "sleep 2 ", 3 * time.Second: "sleep 300 "} {
				for _, exit := range []string{"", "; exit 3"} {
					if exit != "" && (held != "" || delay != 0) {
						continue
					}
					c := with(cases.Shell("background", sleep+held+" & echo out; echo err >&2"+exit), func(c *cases.Case) {
						c.Call, c.Stdout, c.Stderr, c.WaitDelay = "run", streams[0], streams[1], delay
					})
					holds := streams[0] != "" && !strings.Contains(" "+held, " >") || streams[1] != "" && streams[1] != "same" && !strings.Contains(held, "2>") || streams[1] == "same" && held != ">/dev/null 2>&1"
					switch {
					case holds && streams[0] == "file" && exit == "":
						c.Differs = rowFiles
					case holds && delay == 0 && exit == "":
						c.Differs = rowDelay
					}
					all = append(all, c)
				}
			}
		}
	}
	for _, delay := range []time.Duration{0, 2 * time.Second} {
		for _, in := range []string{"blocking", "blocking-late"} {
			all = append(all, with(cases.Shell("a Stdin that blocks", "exit 0"), func(c *cases.Case) { c.Stdin, c.WaitDelay, c.Differs, c.Hangs = in, delay, rowInput, "os/exec" }))
		}
	}
	return append(all, endings()...)
}

// endings are the ways to end a command that does not end by itself, which may have left others that hold its output.
func endings() []cases.Case {
	var all []cases.Case
	for _, script := range []string{"exec sleep 1000", "sleep 1000", "trap '' TERM INT HUP; sleep 1000; :", "kill -STOP $$", "setsid sleep 1000; :", "sleep 1000 >/dev/null 2>&1 & wait", "trap 'exit 4' TERM; sleep 1000 & wait"} {
		alone := script == "exec sleep 1000" || script == "kill -STOP $$" || strings.Contains(script, ">/dev/null")
		for _, act := range []string{"kill", "kill-beside", "kill-twice", "cancel", "cancel-beside", "cancel-softly", "timeout", "deadline"} {
			for _, out := range []string{"", "buffer", "pipe"} {
				for _, delay := range []time.Duration{0, 2 * time.Second} {
					c := cases.Shell(act+" "+script, script)
					c.Call, c.Act, c.Stdout, c.WaitDelay = "start", act, out, delay
					switch act {
					case "timeout":
						c.Timeout = time.Second
					case "deadline":
						c.Deadline = time.Second
					}
					switch held := !alone && out != "" && (out == "pipe" || delay == 0); {
					case held && (out == "pipe" || act != "kill" && act != "timeout"):
						continue // os/exec hangs, as it does in those that are left
					case act == "cancel-softly":
						c.Differs, c.Hangs = rowFields, "os/exec" // SIGTERM waits while a process is stopped
					case strings.HasPrefix(act, "cancel"), act == "deadline":
						c.Differs = rowContext
					case held:
						c.Differs, c.Hangs = rowKill, "os/exec"
					}
					all = append(all, c)
				}
			}
		}
	}
	return all
}

// generatedCases combine scripts with kinds of streams and ways to call. The scripts write so much,
// or so little, that what is on its way changes nothing.
func generatedCases(r *rand.Rand, n int) []cases.Case {
	one := func(list ...string) string { return list[r.IntN(len(list))] }
	var all []cases.Case
	for range n {
		c := cases.Shell("", one(
			"true", "exit 3", "exit 255", "kill -9 $$", "kill -TERM $$", "kill -SEGV $$", "kill -USR1 $$", "echo out; echo err >&2; exit 2", "cat", "cat >&2", "cat; exit 1",
			"head -c 5", "read l; echo $l", "echo out; kill -PIPE $$", "head -c 300000 /dev/zero; printf end >&2", "exec 1>&-; echo x", "head -c 1 <&- 2>/dev/null; echo $?",
			"readlink /proc/self/fd/0 | cut -d: -f1", "test -p /dev/stdin && cat || echo none", "ulimit -c; echo $-", "printf '%s|' \"$0\" \"$@\"", "sh -c 'echo a; echo b >&2; exit 7'",
		))
		c.Stdin = one("", "", "empty", "text", "large", "bytes", "half", "with-end", "slow", "nothing-first", "failing", "failing-eof", "failing-closed", "failing-late", "failing-with")
		if strings.HasPrefix(c.Stdin, "failing") && !strings.HasPrefix(c.Args[2], "cat") {
			c.Stdin = "text" // whether its error comes before the command's end varies
		}
		c.Stdout = one("", "buffer", "buffer", "file", "slow", "pipe")
		c.Stderr = one("", "buffer", "same", "file", "slow", "pipe")
		c.Call = one("run", "start", "output", "combined")
		c.Timeout = []time.Duration{0, 0, time.Hour}[r.IntN(3)]
		c.Deadline = []time.Duration{0, 0, time.Hour}[r.IntN(3)]
		if c.Call == "output" || c.Call == "combined" {
			c.Stdout, c.Stderr = "", ""
		}
		if c.Stderr == "same" && (c.Stdout == "" || c.Stdout == "pipe" || c.Stdout == "file") {
			c.Stderr = "buffer"
		}
		if r.IntN(4) == 0 {
			c.WaitDelay = 5 * time.Second
		}
		if r.IntN(4) == 0 {
			c.Args = append(c.Args, "name", one("", " ", "$HOME", "ünï", "-n"), strings.Repeat("y", r.IntN(3000)))
		}
		c.Name = fmt.Sprintf("%s <%s >%s 2>%s %s", c.Args[2], c.Stdin, c.Stdout, c.Stderr, c.Call)
		all = append(all, c)
	}
	return all
}
