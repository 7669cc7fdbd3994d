package sandboxtools_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/sandboxtools"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }

type object = map[string]any

// kit calls tools by their names.
type kit struct {
	t     *testing.T
	tools []sandboxtools.Tool
}

func (k kit) call(ctx context.Context, name string, args object) (sandboxtools.Result, error) {
	k.t.Helper()
	body, err := json.Marshal(args)
	if err != nil {
		k.t.Fatal(err)
	}
	return k.tool(name).Call(ctx, body)
}

func (k kit) tool(name string) sandboxtools.Tool {
	k.t.Helper()
	i := slices.IndexFunc(k.tools, func(t sandboxtools.Tool) bool { return t.Name == name })
	if i < 0 {
		k.t.Fatalf("there is no tool %q", name)
	}
	return k.tools[i]
}

func (k kit) must(name string, args object) sandboxtools.Result {
	k.t.Helper()
	r, err := k.call(k.t.Context(), name, args)
	if err != nil {
		k.t.Fatalf("%s %v: %v", name, args, err)
	}
	return r
}

// bash checks the text of a command's result.
func (k kit) bash(command, want string) {
	k.t.Helper()
	if got := k.must("bash", object{"command": command}).Text; got != want {
		k.t.Errorf("bash %q: %q, want %q", command, got, want)
	}
}

func (k kit) refused(name string, args object, want string) {
	k.t.Helper()
	if r, err := k.call(k.t.Context(), name, args); err == nil || !strings.Contains(err.Error(), want) {
		k.t.Errorf("%s %v: %q, %v, want an error with %q", name, args, r.Text, err, want)
	}
}

func TestSchemasAreWithinBothStrictSubsets(t *testing.T) {
	t.Parallel()
	union := 0
	for _, tool := range sandboxtools.New(nil, sandboxtools.Options{}) {
		n, err := harness.CheckStrict(tool.Schema)
		if err != nil {
			t.Errorf("%s: %v\n%s", tool.Name, err, tool.Schema)
		}
		union += n
		if _, err := tool.Call(t.Context(), nil); err == nil {
			t.Errorf("%s without a sandbox: no error", tool.Name)
		}
	}
	if union == 0 || union > 16 {
		t.Errorf("%d properties may be null, want 1 to 16, which Anthropic takes", union)
	}
}

func TestCheckStrictRefuses(t *testing.T) {
	t.Parallel()
	for schema, want := range map[string]string{
		`{"type":"object","properties":{},"required":[]}`:                                                                                        "additionalProperties",
		`{"type":"object","properties":{"a":{"type":"string"}},"required":[],"additionalProperties":false}`:                                      "those required",
		`{"type":"object","properties":{"a":{"type":"date"}},"required":["a"],"additionalProperties":false}`:                                     `the type "date"`,
		`{"type":"object","properties":{"a":{"type":"string","minLength":1}},"required":["a"],"additionalProperties":false}`:                     `"minLength"`,
		`{"type":"object","properties":{"a":{"type":["array","null"],"items":{"type":"string"}}},"required":["a"],"additionalProperties":false}`: "no plain array",
		`{"type":"array","items":{"type":"string"}}`:                                                                                             "the root",
	} {
		if _, err := harness.CheckStrict(json.RawMessage(schema)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", schema, err, want)
		}
	}
}

// One sandbox has all of it, so that the test is cheap.
func TestToolsInASandbox(t *testing.T) {
	enginetest.Need(t)
	t.Parallel()
	sb := harness.NewSandbox(t)
	k := kit{t, sandboxtools.New(sb, sandboxtools.Options{Output: 4096, CommandTime: harness.CallBound})}
	shellKeepsItsState(t, k)
	shellWithAnEnvironment(t, k, sb)
	shellIsBounded(t, k)
	commandsInTheBackground(t, k)
	filesAreRegular(t, k)
	filesAreFound(t, k, sb)
	serversAreFetched(t, k)
	argumentsAreChecked(k)
	shellWithoutBash(k)
	sandboxThatDies(t, k, sb)
}

func shellKeepsItsState(t *testing.T, k kit) {
	k.bash("pwd; exit 3", "/workspace\n[exit code 3]")
	k.bash(`mkdir -p "a b"; cd "a b"; export A="1
'2"; B=3; f() { echo "f $B"; }`, "[exit code 0]")
	k.bash(`pwd; echo "$A"; f; sh -c 'echo "<$B>"'`, "/workspace/a b\n1\n'2\nf 3\n<>\n[exit code 0]")
	k.bash(`tr '\0' '\n' < /proc/$$/cmdline | grep -c '^declare'`, "0\n[exit code 1]") // what others inside can read
	k.bash("echo out; echo err >&2; false", "out\nerr\n[exit code 1]")
	// A command that ends too early keeps what it did before, and shows nothing of the shell's own.
	for command, want := range map[string]string{"if": "syntax error: unexpected end of file", "B=3\necho 'x": "matching `''", "B=3\necho \"x": "matching `\"'", "B=3\n[[ a": "expected", "echo a\\": "a\\"} {
		if got := k.must("bash", object{"command": command}).Text; !strings.Contains(got, want) || strings.Contains(got, "BASH_") || strings.Count(got, "\n") > 2 {
			t.Errorf("bash %q: %q, want %q alone", command, got, want)
		}
	}
	k.bash("set -v; true", "[exit code 0]")
	k.bash("f; rm -r ../'a b'", "f 3\n[exit code 0]")
	k.bash("pwd", "[the directory /workspace/a b is gone: the command runs in /workspace]\n/workspace\n[exit code 0]")
	k.bash("pwd; f", "/workspace\nf 3\n[exit code 0]")
	if got := k.must("bash", object{"command": "pwd; echo $A$B", "restart": true}); got.Text != "/workspace\n\n[exit code 0]" {
		t.Errorf("after a restart: %q", got.Text)
	}
	if got := k.must("bash", object{"restart": true, "command": nil}); got.Text != "The shell is a new one." {
		t.Errorf("a restart alone: %q", got.Text)
	}
	k.bash("X=$(head -c 600000 /dev/zero | tr '\\0' x)", "[exit code 0]\n[the shell's variables have more than 512000 bytes: they stay as they were before the command]")
	k.bash("echo ${#X}", "0\n[exit code 0]")
	k.bash(`X=$(yes "x'" | head -c 200000); for i in {1..2000}; do eval "f$i() { echo a function of that is as long as many others are; }"; done; cd /tmp`, "[exit code 0]")
	k.bash("pwd; echo ${#X}; f2000", "/tmp\n200000\na function of that is as long as many others are\n[exit code 0]")
	k.must("bash", object{"restart": true})
	k.bash("export Y=5", "[exit code 0]")
	if got := k.must("bash", object{"command": "Y=6; sleep 1000", "timeoutMs": 500}).Command; got.Status != sandboxtools.TimedOut || *got.ExitCode != 137 {
		t.Errorf("a command that takes too long: %+v", got)
	}
	k.bash("echo $Y; cd /", "5\n[exit code 0]")

	shellKeepsOddStates(k)
	shellIsFoundByNoCommand(k)

	// Another call ends the command that runs.
	ended := make(chan error, 1)
	go func() {
		_, err := k.call(context.Background(), "bash", object{"command": "echo >/tmp/runs; sleep 1000"})
		ended <- err
	}()
	harness.Eventually(t, "the command runs", func() bool {
		r, err := k.call(t.Context(), "glob", object{"pattern": "runs", "path": "/tmp"})
		return err == nil && len(r.Paths) == 1
	})
	k.must("bash", object{"restart": true})
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "restarted") {
		t.Errorf("the command that a restart ended: %v", err)
	}
	k.bash("pwd", "/workspace\n[exit code 0]")
}

const stateLost = "\n[the command replaced the shell, or its EXIT trap and then exited: directory, variables and functions stay as they were before it]"

// Whatever the state is, the next command begins in it.
func shellKeepsOddStates(k kit) {
	show := `X=${X:-none}; builtin pwd; builtin echo "$X"; f ok`
	f := `; f() { builtin echo "$@"; }`
	for _, tt := range []struct{ command, result string }{
		{"IFS=,; cd /tmp; X=5" + f, ""},
		{"IFS=:; cd /tmp; X=5" + f, ""},
		{"IFS=5; cd /tmp; X=5" + f, ""},
		{"IFS=; cd /tmp; X=5" + f, ""},
		{"trap 'echo bye' EXIT; cd /tmp; X=5" + f, "bye\n"},
		{"set -euf; set -o pipefail; cd /tmp; X=5" + f, ""},
		{"set -x; cd /tmp; X=5; { set +x; } 2>/dev/null" + f, "+++ cd /tmp\n+++ X=5\n"},
		{"cd /tmp; X=5; shopt -s extglob\nf() { case $1 in @(ok|b)) builtin echo ok;; esac; }", ""},
		{`cd() { builtin cd "$@" && ls -d /; }; cd /tmp; X=5` + f, "/\n"},
		{"cd /tmp; X=5; declare() { echo declare; }; compgen() { echo compgen; }; printf() { echo printf; }; read() { echo read; }; shopt() { echo shopt; }" + f, ""},
		{"cd /tmp; X=5; eval() { echo eval; }; unset() { echo unset; }; exec() { echo exec; }; trap() { echo trap; }; exit() { echo exit; }; set() { echo set; }; pwd() { echo pwd; }" + f, ""},
		{"cd /etc; cd /tmp; X=5; f() ( builtin cd - >/dev/null; case $PWD in /etc) builtin echo ok;; esac )", ""},
	} {
		k.must("bash", object{"restart": true})
		k.bash(tt.command, tt.result+"[exit code 0]")
		for range 2 {
			k.bash(show, "/tmp\n5\nok\n[exit code 0]")
		}
	}
	k.must("bash", object{"restart": true})
	k.bash("cd /tmp; X=5; builtin() { echo mine; }; (exit 3)", "[exit code 3]")
	for range 2 {
		k.bash("pwd; echo $X; builtin pwd; (exit 4)", "/tmp\n5\nmine\n[exit code 4]")
	}
	k.bash("set -e; declare() { echo declare; }; unset() { echo unset; }; cd /", "[exit code 0]")
	k.bash("pwd; builtin pwd", "/\nmine\n[exit code 0]")
	k.must("bash", object{"restart": true})
	k.bash("cd /tmp; builtin() { echo mine; }; exit 3", "[exit code 3]")
	k.bash("pwd; builtin pwd; unset -f builtin", "/tmp\nmine\n[exit code 0]")
	k.bash("builtin echo theirs", "theirs\n[exit code 0]")
	k.must("bash", object{"restart": true})
	k.bash("cd /tmp; X=5; builtin exit 3", "[exit code 3]")
	k.bash("pwd; echo $X; (exit 4)", "/tmp\n5\n[exit code 4]")
	k.bash("cd /etc; exec echo replaced", "replaced\n[exit code 0]"+stateLost)
	k.bash("cd /etc; trap 'echo bye' EXIT; exit 3", "bye\n[exit code 3]"+stateLost)
	k.bash("pwd; echo $X", "/tmp\n5\n[exit code 0]")
	k.must("bash", object{"restart": true})
}

// A command that looks for processes by their arguments finds neither the shell that runs it nor, by what they do, those of
// commands in the background.
func shellIsFoundByNoCommand(k kit) {
	id := k.must("bash", object{"command": ": one-server; sleep 4711; :", "background": true}).Command.ID
	k.bash("until pgrep -xf 'sleep 4711' >/dev/null; do sleep 0.1; done; pgrep -f one-server || pkill -f one-server; echo $# after", "0 after\n[exit code 0]")
	k.bash("pkill -xf 'sleep 4711'", "[exit code 0]")
	k.must("bash", object{"id": id, "timeoutMs": harness.CallBound / time.Millisecond})
}

// shellWithAnEnvironment begins with variables of the sandbox, of which one makes bash complain whenever it starts.
func shellWithAnEnvironment(t *testing.T, k kit, sb *sandbox.Sandbox) {
	update := func(opts ...sandbox.UpdateOption) {
		t.Helper()
		if err := sb.Update(t.Context(), opts...); err != nil {
			t.Fatal(err)
		}
	}
	update(sandbox.WithEnv(map[string]string{"LC_ALL": "nonesuch", "V": "1", "W": "2", "U": "3"}))
	k.bash("cd /tmp; X=5; unset V; export -n W; U=4; f() { echo hi $X; }; export -f f", "[exit code 0]")
	for range 2 {
		k.bash("pwd; echo $X ${V-unset} $W $U; env | grep -E '^(V|W|U)='; bash -c f 2>/dev/null", "/tmp\n5 unset 2 4\nU=4\nhi\n[exit code 0]")
	}
	update(sandbox.WithEnv(map[string]string{"Y": "6"}))
	k.bash("echo $Y ${V-unset}; V=7", "6 unset\n[exit code 0]")
	k.bash("echo $V; env | grep -E '^V='", "7\n[exit code 1]")
	update(sandbox.WithoutEnv("LC_ALL", "V", "W", "U", "Y"))
	k.must("bash", object{"restart": true})
}

// sh keeps its directory and the variables that are exported.
func shellWithoutBash(k kit) {
	k.bash(`rm "$(command -v bash)"; cd /`, "[exit code 0]")
	k.must("bash", object{"restart": true})
	k.bash("echo $BASH_VERSION; cd /tmp; export X=5", "\n[exit code 0]")
	k.bash("pwd; echo $X; set -euf; IFS=,; trap 'echo bye' EXIT; export X=6; cd /etc", "/tmp\n5\nbye\n[exit code 0]")
	k.bash("pwd; echo $X; exit 3", "/etc\n6\n[exit code 3]")
	k.bash("cd /tmp; exec echo replaced", "replaced\n[exit code 0]"+stateLost)
	k.bash("pwd; mkdir /tmp/gone; cd /tmp/gone; rmdir /tmp/gone", "/etc\n[exit code 0]")
	k.bash("pwd", "[the directory /tmp/gone is gone: the command runs in /workspace]\n/workspace\n[exit code 0]")
	k.bash("pwd", "/workspace\n[exit code 0]")
}

func shellIsBounded(t *testing.T, k kit) {
	got := k.must("bash", object{"command": "echo first; head -c 33554432 /dev/zero | tr '\\0' x; echo; echo last"}).Command
	if !strings.HasPrefix(got.Output, "first\nxxx") || !strings.HasSuffix(got.Output, "xxx\nlast\n") || len(got.Output) > 5000 || got.OmittedBytes != 1<<25+12-4096 {
		t.Errorf("a flood: %d bytes without %d", len(got.Output), got.OmittedBytes)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("nobody waits any more")
	go func() {
		harness.Eventually(t, "the command runs", func() bool {
			r, err := k.call(context.Background(), "glob", object{"pattern": "cancelled", "path": "/tmp"})
			return err == nil && len(r.Paths) == 1
		})
		cancel(why)
	}()
	if _, err := k.call(ctx, "bash", object{"command": "echo >/tmp/cancelled; exec sleep 7777"}); !errors.Is(err, why) {
		t.Errorf("a call that is cancelled: %v", err)
	}
	harness.Eventually(t, "the cancelled command is gone", func() bool {
		return !strings.Contains(k.must("bash", object{"command": `for f in /proc/[0-9]*/cmdline; do tr '\0' ' ' <$f 2>/dev/null; done`}).Text, "sleep 7777 ")
	})
	k.refused("bash", object{"command": "true", "timeoutMs": int64(harness.CallBound/time.Millisecond) + 1}, "the limit")
	k.refused("bash", object{"command": strings.Repeat("x", 200<<10)}, "write it to a file")
	k.refused("bash", object{"command": "echo a\x00b"}, "a zero byte")
	k.refused("bash", object{"command": ""}, "no command")
	k.refused("bash", object{"command": "true", "id": "a"}, "only argument")
}

func commandsInTheBackground(t *testing.T, k kit) {
	k.bash("mkdir -p bg; cd bg; export G=hello", "[exit code 0]")
	got := k.must("bash", object{"command": "pwd; echo $G; until test -e ../go; do sleep 0.1; done; echo over; exit 5", "background": true})
	if got.Command.Status != sandboxtools.Running || got.Command.ExitCode != nil || got.Text != "[running in the background, id "+got.Command.ID+"]" {
		t.Errorf("a command in the background: %q, %+v", got.Text, got.Command)
	}
	id := got.Command.ID
	harness.Eventually(t, "its output", func() bool {
		r := k.must("bash", object{"id": id})
		return r.Command.Status == sandboxtools.Running && r.Command.Output == "/workspace/bg\nhello\n"
	})
	k.bash("touch ../go; cd ..", "[exit code 0]")
	for _, wait := range []time.Duration{harness.CallBound, 0} {
		r := k.must("bash", object{"id": id, "timeoutMs": wait / time.Millisecond})
		if want := "/workspace/bg\nhello\nover\n[exit code 5]"; r.Text != want || r.Command.Status != sandboxtools.Exited || r.Command.ExitCode == nil || *r.Command.ExitCode != 5 {
			t.Errorf("after its end: %q, %+v, want %q", r.Text, r.Command, want)
		}
	}
	// After its end all of the output is there: what the sandbox still keeps of it, and not what the log has got so far.
	id = k.must("bash", object{"command": "sleep 1000 & seq 2000000; echo last", "background": true}).Command.ID
	harness.Eventually(t, "the end of a flood", func() bool { return k.must("bash", object{"id": id}).Command.Status == sandboxtools.Exited })
	r := k.must("bash", object{"id": id})
	if got := r.Command; !strings.HasPrefix(got.Output, "[...]\n") || !strings.HasSuffix(r.Text, "2000000\nlast\n[exit code 0] [14884805 bytes in the middle are left out]") || got.OmittedBytes != 14888896+5-4096 {
		t.Errorf("after the end of a flood: %d bytes without %d, %q", len(got.Output), got.OmittedBytes, got.Output[max(0, len(got.Output)-50):])
	}
	k.bash("pkill -xf 'sleep 1000'", "[exit code 0]")
	// Both streams are in the order written.
	id = k.must("bash", object{"command": "for i in $(seq 300); do echo o$i; echo e$i >&2; done", "background": true}).Command.ID
	var both strings.Builder
	for i := range 300 {
		fmt.Fprintf(&both, "o%d\ne%[1]d\n", i+1)
	}
	if r := k.must("bash", object{"id": id, "timeoutMs": harness.CallBound / time.Millisecond}); r.Command.Output != both.String() {
		t.Errorf("two streams: %q", r.Command.Output)
	}
	k.refused("bash", object{"id": "nonesuch"}, "no command")
}

func filesAreRegular(t *testing.T, k kit) {
	k.must("write", object{"path": "new/run.sh", "content": "echo one two two\n", "executable": true})
	k.bash("new/run.sh", "one two two\n[exit code 0]")
	if got := k.must("edit", object{"path": "new/run.sh", "old": "one", "new": "1"}); got.Text != "Replaced 1 in new/run.sh." {
		t.Errorf("edit: %q", got.Text)
	}
	k.refused("edit", object{"path": "new/run.sh", "old": "two", "new": "2"}, "2 times")
	k.refused("edit", object{"path": "new/run.sh", "old": "three", "new": "2"}, "does not occur")
	k.refused("edit", object{"path": "new/run.sh", "old": "", "new": "2"}, "empty")
	k.must("edit", object{"path": "new/run.sh", "old": "two", "new": "2", "all": true})
	k.bash("new/run.sh", "1 2 2\n[exit code 0]")
	k.must("write", object{"path": "long", "content": strings.Repeat("0123456789\n", 1000)})
	if got := k.must("read", object{"path": "long"}); len(got.Text) != 4096+len("\n[the file goes on]") || !got.More {
		t.Errorf("read: %d bytes, more %t", len(got.Text), got.More)
	}
	if got := k.must("read", object{"path": "long", "line": 1000, "lines": 5}); got.Text != "0123456789\n" || got.More {
		t.Errorf("read of the last line: %q, %t", got.Text, got.More)
	}
	k.refused("read", object{"path": "long", "line": 2000}, "1000 lines")
	k.refused("read", object{"path": "long", "line": -1}, "tail")
	k.refused("read", object{"path": "long", "lines": -10}, "tail")
	k.must("edit", object{"path": "new/run.sh", "old": "2 2", "new": "2 2"})
	k.bash("new/run.sh", "1 2 2\n[exit code 0]")
	k.refused("edit", object{"path": "new/run.sh", "old": "three", "new": "three"}, "does not occur")
	// Lines that end with CR LF stay so, and are found by a text that a model gives; in a file with both they have to be told.
	for _, tt := range []struct{ content, old, new, want string }{
		{"a\r\nb\r\nc", "a\nb", "A\nB\nb", "A\r\nB\r\nb\r\nc"},
		{"a\r\nb\r\nc", "b", "b\nb2", "a\r\nb\r\nb2\r\nc"},
		{"a\r\nb\r\nc", "\r\nb", "\nB", "a\nB\r\nc"},
		{"a\r\nb\nc", "b\nc", "B\nC", "a\r\nB\nC"},
		{"\ufeffa\r\n", "a\n", "b\n", "\ufeffb\r\n"},
	} {
		k.must("write", object{"path": "crlf", "content": tt.content})
		k.must("edit", object{"path": "crlf", "old": tt.old, "new": tt.new})
		if got := k.must("read", object{"path": "crlf"}).Text; got != tt.want {
			t.Errorf("%q with %q for %q is %q, want %q", tt.content, tt.new, tt.old, got, tt.want)
		}
	}
	if _, err := k.call(t.Context(), "read", object{"path": "long", "line": 1001}); err != nil {
		t.Errorf("read at the end: %v", err)
	}
	if _, err := k.call(t.Context(), "read", object{"path": "long", "line": 1002}); !errors.Is(err, io.EOF) {
		t.Errorf("read beyond the end: %v, want EOF", err)
	}
	k.bash("mkfifo pipe; ln -s /dev/zero zero; mkdir dir; head -c 8388609 /dev/zero | tr '\\0' x >big; truncate -s 4G holes; printf '\\377' >binary", "[exit code 0]")
	for _, file := range []string{"zero", "pipe", "dir", "/dev/null"} {
		for tool, args := range map[string]object{"read": {"line": 2}, "edit": {"old": "a", "new": "b"}, "write": {"content": "text"}} {
			args["path"] = file
			if _, err := k.call(t.Context(), tool, args); err == nil || !strings.Contains(err.Error(), "is not a regular file") && !strings.Contains(err.Error(), "is a directory") {
				t.Errorf("%s of %s: %v, want a refusal", tool, file, err)
			}
		}
	}
	k.refused("edit", object{"path": "big", "old": "x", "new": "y", "all": true}, "too large to edit")
	k.refused("read", object{"path": "holes", "line": 2}, "more than 268435456 bytes")
	k.refused("read", object{"path": "binary"}, "not a text file")
	k.bash("rm -r pipe zero dir big holes binary long new bg go", "[exit code 0]")
}

func filesAreFound(t *testing.T, k kit, sb *sandbox.Sandbox) {
	k.bash("mkdir -p s/t/u s/.git s/many 's/{b}'; touch 's/{b}/{u{,'; cd s; echo 'a needle' >t/u/a.go; echo needle | tee b.go c.txt .git/d.go >/dev/null; mkfifo t/pipe.go; cd many; seq 1001 | xargs touch; cd ../..", "[exit code 0]")
	for pattern, want := range map[string][]string{
		"*.go":      {"s/b.go"},
		"**/*.go":   {"s/b.go", "s/t/pipe.go", "s/t/u/a.go"},
		"t/**":      {"s/t", "s/t/pipe.go", "s/t/u", "s/t/u/a.go"},
		"**/u/*":    {"s/t/u/a.go"},
		"[bc].*":    {"s/b.go", "s/c.txt"},
		"nothing/*": nil,

		"{*.{go,txt},t/{pipe,u/[!b]}*}": {"s/b.go", "s/c.txt", "s/t/pipe.go", "s/t/u/a.go"},
		"{b.go,a.{b,c,}}":               {"s/b.go"},
		"[!b].*":                        {"s/c.txt"},
		"{b}/{u{,":                      {"s/{b}/{u{,"},
		`{b}/\{[u]{\{\,,x}`:             {"s/{b}/{u{,"},
	} {
		if got := k.must("glob", object{"pattern": pattern, "path": "s"}); !cmp.Equal(got.Paths, want) || got.More {
			t.Errorf("glob %s: %q, want %q", pattern, got.Paths, want)
		}
	}
	if got := k.must("glob", object{"pattern": "s/many/*"}); !got.More || len(got.Paths) < 100 || len(got.Paths) > 1000 || len(got.Text) > 4200 {
		t.Errorf("glob of 1001 files: %d, more %t, %d bytes", len(got.Paths), got.More, len(got.Text))
	}
	k.refused("glob", object{"pattern": "../*"}, "leaves the directory")
	k.refused("glob", object{"pattern": "["}, "syntax error")
	k.refused("glob", object{"pattern": "a/{b,../../c}"}, "leaves the directory")
	k.refused("glob", object{"pattern": "{a,/etc/*}"}, "relative to path")
	k.refused("glob", object{"pattern": strings.Repeat("{a,b}", 8)}, "more than 200 alternatives")
	k.refused("glob", object{"pattern": strings.Repeat("{", 1001)}, "more than 1000 bytes")
	got := k.must("grep", object{"pattern": `\bneedle$`, "path": "s", "files": "*.go"})
	want := []sandboxtools.Match{{Path: "s/b.go", Line: 1, Text: "needle"}, {Path: "s/t/u/a.go", Line: 1, Text: "a needle"}}
	if !cmp.Equal(got.Matches, want) || got.Text != "s/b.go:1:needle\ns/t/u/a.go:1:a needle" || got.More {
		t.Errorf("grep: %q, %v", got.Text, got.Matches)
	}
	if got := k.must("grep", object{"pattern": "needle", "path": "s/c.txt"}); len(got.Matches) != 1 || got.Matches[0].Path != "s/c.txt" {
		t.Errorf("grep of a file: %v", got.Matches)
	}
	for files, want := range map[string]string{"t/**/*.go": "s/t/u/a.go:1:a needle", "**/[bc].*": "s/b.go:1:needle\ns/c.txt:1:needle", "t/*": "[no lines found]", "{c.*,t/**/[!b].go}": "s/c.txt:1:needle\ns/t/u/a.go:1:a needle"} {
		if got := k.must("grep", object{"pattern": "needle", "path": "s", "files": files}); got.Text != want {
			t.Errorf("grep in %s: %q, want %q", files, got.Text, want)
		}
	}
	// All lines of a text file are searched, however long they are and whatever their encoding; a zero byte says that it is none.
	k.bash(`cd s; printf 'a needle\n\xe9 needle\r\nneedle\xe9' >latin; { head -c 2000000 /dev/zero | tr '\0' x; printf 'é needle\nneedle\n'; } >long; printf 'needle\n\0' >none; cd ..`, "[exit code 0]")
	got = k.must("grep", object{"pattern": `(?:^|[a\x{FFFD}é] )needle\x{FFFD}?$`, "path": "s", "files": "{latin,long,none}"})
	want = []sandboxtools.Match{{Path: "s/latin", Line: 1, Text: "a needle"}, {Path: "s/latin", Line: 2, Text: "\uFFFD needle"}, {Path: "s/latin", Line: 3, Text: "needle\uFFFD"},
		{Path: "s/long", Line: 1, Text: strings.Repeat("x", 500)}, {Path: "s/long", Line: 2, Text: "needle"}}
	if !cmp.Equal(got.Matches, want) || got.More {
		t.Errorf("grep of odd files: %v, want %v, more %t", got.Matches, want, got.More)
	}
	k.bash("yes n | head -n 201 >s/f", "[exit code 0]")
	if got := k.must("grep", object{"pattern": "^n$", "path": "s"}); len(got.Matches) != 200 || !got.More {
		t.Errorf("grep of 201 lines: %d, more %t", len(got.Matches), got.More)
	}
	if got := k.must("grep", object{"pattern": "nowhere", "path": "s"}); got.Text != "[no lines found]" {
		t.Errorf("grep of nothing: %q", got.Text)
	}
	wide := kit{t, sandboxtools.New(sb, sandboxtools.Options{Output: 1 << 20})}
	if got := wide.must("grep", object{"pattern": "^n$", "path": "s"}); len(got.Matches) != 201 || got.More {
		t.Errorf("grep of 201 lines with room for them: %d, more %t", len(got.Matches), got.More)
	}
	if got := wide.must("glob", object{"pattern": "s/many/*"}); len(got.Paths) != 1001 || got.More {
		t.Errorf("glob of 1001 files with room for them: %d, more %t", len(got.Paths), got.More)
	}
	k.refused("grep", object{"pattern": "("}, "missing closing")
	k.bash("rm -r s", "[exit code 0]")
}

func serversAreFetched(t *testing.T, k kit) {
	k.must("write", object{"path": "server.js", "content": `require("http").createServer((q, r) => {
	if (q.url === "/flood") { r.end("y".repeat(100000)); return }
	if (q.url === "/away") { r.writeHead(302, {Location: "http://192.0.2.1/"}); r.end(); return }
	let body = ""; q.on("data", d => body += d); q.on("end", () => r.end([q.method, q.url, q.headers["x-a"], q.headers.host, body].join(" ")))
}).listen(8080, "127.0.0.1")`})
	k.must("bash", object{"command": "exec node server.js", "background": true})
	harness.Eventually(t, "the server answers", func() bool {
		_, err := k.call(t.Context(), "fetch", object{"port": 8080})
		return err == nil
	})
	got := k.must("fetch", object{"port": 8080, "path": "/x?y=1", "method": "POST", "headers": []string{"X-A: b"}, "body": "data"})
	if !strings.HasPrefix(got.Text, "HTTP/1.1 200 OK\n") || !strings.HasSuffix(got.Text, "\n\nPOST /x?y=1 b localhost:8080 data") {
		t.Errorf("fetch: %q", got.Text)
	}
	if got := k.must("fetch", object{"port": 8080, "path": "/flood"}); !got.More || len(got.Text) > 6000 {
		t.Errorf("fetch of much: %d bytes, more %t", len(got.Text), got.More)
	}
	if got := k.must("fetch", object{"port": 8080, "path": "/away"}); !strings.HasPrefix(got.Text, "HTTP/1.1 302") {
		t.Errorf("fetch of a redirect: %q", got.Text)
	}
	k.refused("fetch", object{"port": 9, "headers": []string{}}, "nothing listens")
	k.refused("fetch", object{"port": 0}, "1 to 65535")
	k.refused("fetch", object{"port": 80, "path": "@192.0.2.1/"}, "slash")
}

func argumentsAreChecked(k kit) {
	k.refused("read", object{"path": "a", "file": "b"}, `unknown field "file"`)
	k.refused("read", object{"path": 5}, "cannot unmarshal")
	// A whole number is one however it is written.
	k.must("bash", object{"command": "seq 4 >four", "timeoutMs": json.RawMessage(fmt.Sprintf("%d.0", harness.CallBound.Milliseconds()))})
	if got := k.must("read", object{"path": "four", "line": json.RawMessage("2.0"), "lines": json.RawMessage("20e-1")}); got.Text != "2\n3\n\n[the file goes on]" {
		k.t.Errorf("read of two lines: %q", got.Text)
	}
	k.refused("read", object{"path": "four", "line": 1.5}, "1.5 is not a whole number")
	k.refused("read", object{"path": "four", "line": 1e300}, "too large")
	k.refused("read", object{"path": "four", "line": "1"}, "cannot unmarshal string")
	k.refused("fetch", object{"port": json.RawMessage("9.0")}, "nothing listens on port 9 ")
	// What was forgotten is not taken for an empty text.
	k.must("write", object{"path": "kept", "content": "old"})
	k.refused("write", object{"path": "kept"}, "the argument content is missing")
	k.refused("write", object{"path": "kept", "content": nil}, "the argument content is missing")
	k.refused("edit", object{"path": "kept", "old": "old"}, "the argument new is missing")
	k.refused("read", object{}, "the argument path is missing")
	k.refused("write", object{"path": "", "content": ""}, "the argument path is missing")
	// A shell would expand it, and the tools do not.
	for tool, args := range map[string]object{"read": {"path": "~/a"}, "edit": {"path": "~/a", "old": "a", "new": "b"}, "write": {"path": "~/a", "content": ""},
		"grep": {"path": "~", "pattern": "a"}, "glob": {"path": "~/a", "pattern": "*"}} {
		k.refused(tool, args, "is not expanded")
	}
	k.refused("glob", object{"pattern": "~/*.go"}, "is not expanded")
	k.bash("ls -d '~'", "ls: cannot access '~': No such file or directory\n[exit code 2]")
	k.must("write", object{"path": "./~/a", "content": ""})
	k.bash("rm -r './~'", "[exit code 0]")
	k.bash("cat kept; rm kept four", "old\n[exit code 0]")
	for _, tool := range k.tools {
		if _, err := tool.Call(k.t.Context(), json.RawMessage(`{} {}`)); err == nil || !strings.Contains(err.Error(), "more than one") {
			k.t.Errorf("%s of two values: %v", tool.Name, err)
		}
	}
}

func sandboxThatDies(t *testing.T, k kit, sb *sandbox.Sandbox) {
	stopped := make(chan error, 1)
	go func() {
		harness.WaitForFile(t, sb, "/tmp/dies")
		stopped <- harness.Second(sb.Stop(context.Background()))
	}()
	got := k.must("bash", object{"command": "echo before; touch /tmp/dies; sleep 1000"}).Command
	if got.Status != sandboxtools.SessionLost || !strings.Contains(got.Reason, "stopped") || !strings.HasPrefix(got.Output, "before\n") {
		t.Errorf("a command whose session ended: %+v", got)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	if _, err := k.call(t.Context(), "bash", object{"command": "true"}); !errors.Is(err, sandbox.ErrSessionLost) {
		t.Errorf("the next command: %v, want ErrSessionLost", err)
	}
}

func TestAConversation(t *testing.T) {
	enginetest.Need(t)
	t.Parallel()
	sb := harness.NewSandbox(t)
	k := kit{t, sandboxtools.New(sb, sandboxtools.Options{Output: harness.ToolOutput, CommandTime: harness.CallBound})}
	steps := harness.Conversation()
	called := map[string]int{}
	for _, s := range steps {
		called[s.Tool]++
	}
	if len(steps) != 20 || len(called) != len(k.tools) {
		t.Errorf("a conversation of %d calls: %v, want 20, of all %d tools", len(steps), called, len(k.tools))
	}
	agent := func(ctx context.Context, m *harness.Model) error {
		var last *harness.ToolAnswer
		for {
			call, more := m.Next(ctx, last)
			if !more {
				return ctx.Err()
			}
			text, failed, err := k.tool(call.Tool).Answer(ctx, call.Args)
			if err != nil {
				return err
			}
			last = &harness.ToolAnswer{Text: text, Error: failed}
		}
	}
	var m *harness.Model
	m = harness.NewModel(func(ctx context.Context) error { return agent(ctx, m) })
	harness.Converse(t, sb, steps, m.Call)
	m.End(t)
}

// A sandbox that does not answer holds no tool for longer than a command, and output is reported.
func TestToolsEndInTime(t *testing.T) {
	enginetest.Need(t)
	t.Parallel()
	sb := harness.NewSandbox(t)
	var reported atomic.Int64
	k := kit{t, sandboxtools.New(sb, sandboxtools.Options{CommandTime: 3 * time.Second, Report: func(_ context.Context, p []byte) { reported.Add(int64(len(p))) }})}
	if err := sb.WriteFile(t.Context(), "file", []byte("text"), 0o644); err != nil {
		t.Fatal(err)
	}
	eng := harness.NewEngine(t)
	id := record.ContainerName(sb.Name())
	harness.Pause(t, eng, id)
	results := make(chan string)
	calls := map[string]object{
		"bash": {"command": "true"}, "read": {"path": "file"}, "edit": {"path": "file", "old": "a", "new": "b"},
		"write": {"path": "file", "content": "x"}, "glob": {"pattern": "*"}, "fetch": {"port": 80},
	}
	for tool, args := range calls {
		go func() {
			_, err := k.call(context.Background(), tool, args)
			results <- fmt.Sprintf("%s: %v", tool, err)
		}()
	}
	for range calls {
		if got := <-results; !strings.Contains(got, "took longer than 3s") {
			t.Errorf("in a sandbox that is paused %s, want the limit", got)
		}
	}
	if err := eng.UnpauseContainer(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, "a command runs again, and its output is reported", func() bool {
		_, err := k.call(t.Context(), "bash", object{"command": "echo 12345"})
		return err == nil && reported.Load() >= 6
	})
}
