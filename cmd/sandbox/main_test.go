package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"unicode"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// TestMain is the program itself in a process that a test starts.
func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
	}
	completionTime = harness.CallBound
	harness.Main(m, flagsWithoutTest)
}

const asProgram = "SANDBOX_TEST_AS_PROGRAM"

// call runs the program in this process.
func call(ctx context.Context, stdin string, args ...string) (code int, stdout, stderr string) {
	noteFlags(args)
	var out, errOut bytes.Buffer
	code = run(ctx, args, strings.NewReader(stdin), &out, &errOut)
	return code, out.String(), errOut.String()
}

// mustCall is call for what has to succeed without a message.
func mustCall(t *testing.T, args ...string) string {
	t.Helper()
	if lists := slices.Contains(args, "list") || args[0] == "processes"; !lists || slices.Contains(args, "--json") { // of lists it prints names alone
		args = append([]string{"--quiet"}, args...)
	}
	code, out, errOut := call(t.Context(), "", args...)
	if code != 0 || errOut != "" {
		t.Fatalf("sandbox %s: code %d, stderr %q, want 0 and none", strings.Join(args, " "), code, errOut)
	}
	return out
}

// removeAtEnd removes sandboxes with their volumes when the test ends.
func removeAtEnd(t *testing.T, names ...string) {
	t.Helper()
	c := harness.NewClient(t)
	for _, name := range names {
		harness.Remove(t, c, name)
	}
}

func removeSnapshotAtEnd(t *testing.T, id string) {
	t.Helper()
	c := harness.NewClient(t)
	t.Cleanup(func() {
		if err := c.DeleteSnapshot(context.Background(), id); err != nil && !errors.Is(err, sandbox.ErrSnapshotNotFound) {
			t.Error(err)
		}
	})
}

// preservedVolume is the workspace of a sandbox that was deleted. Tests call it before they have
// sandboxes removed that attach it.
func preservedVolume(t *testing.T) string {
	t.Helper()
	name := harness.UniqueName(t)
	c := harness.NewClient(t)
	removeAtEnd(t, name)
	sb, err := c.Create(t.Context(), sandbox.WithName(name))
	if err != nil {
		t.Fatal(err)
	}
	report, err := sb.Delete(t.Context(), sandbox.DeleteOptions{})
	if err != nil {
		t.Fatal(err)
	}
	volume := report.Volumes[0].Name
	t.Cleanup(func() {
		if _, err := c.DeleteVolume(context.Background(), volume, sandbox.DeleteVolumeOptions{}); err != nil && !errors.Is(err, sandbox.ErrVolumeNotFound) {
			t.Error(err)
		}
	})
	return volume
}

func left(t *testing.T, label string) []string {
	t.Helper()
	lines, err := enginetest.Leftovers(enginetest.WithLabel(label))
	if err != nil {
		t.Fatal(err)
	}
	return lines
}

func TestRunLeavesNothingButTheExitCode(t *testing.T) {
	enginetest.Story(t)
	t.Parallel()
	code, out, errOut := call(t.Context(), "in", "run", "-i", "--rm", "-e", "GREETING=hello", "--", "sh", "-c",
		`hostname; echo "$GREETING $(cat)"; echo careful >&2; exit 7`)
	id, rest, _ := strings.Cut(out, "\n")
	if code != 7 || rest != "hello in\n" || errOut != "careful\n" {
		t.Errorf("run: code %d, stdout %q, stderr %q, want 7, hello in, careful", code, out, errOut)
	}
	if held := left(t, "agent-sandbox.id="+id); id == "" || len(held) > 0 {
		t.Errorf("left of %q after run: %v", id, held)
	}
}

func TestNamedSandboxIsUsedAgainAndRemoved(t *testing.T) {
	enginetest.Need(t)
	t.Parallel()
	name := harness.UniqueName(t)
	removeAtEnd(t, name)

	mustCall(t, "run", "--name", name, "--", "sh", "-c", "echo kept > file")
	mustCall(t, "stop", name)
	if got := mustCall(t, "exec", name, "--", "cat", "file"); got != "kept\n" {
		t.Errorf("exec cat file = %q, want kept", got)
	}

	var list []map[string]any
	if err := json.Unmarshal([]byte(mustCall(t, "list", "--json", "--prefix", name)), &list); err != nil {
		t.Fatalf("list --json: %v", err)
	}
	if len(list) != 1 || list[0]["name"] != name || list[0]["status"] != "running" {
		t.Errorf("list --json --prefix %s = %v, want it alone and running", name, list)
	}
	if table := mustCall(t, "list", "--status", "running"); !strings.Contains(table, name) {
		t.Errorf("list = %q, want %s in it", table, name)
	}

	mustCall(t, "stop", name)
	var status map[string]any
	if err := json.Unmarshal([]byte(mustCall(t, "inspect", name)), &status); err != nil {
		t.Fatalf("inspect: %v", err)
	}
	if status["status"] != "stopped" || status["reason"] != "stopped" {
		t.Errorf("inspect after stop = %v, want it stopped, and the reason", status)
	}
	if got := mustCall(t, "rm", "--delete-volumes", name); !strings.HasSuffix(got, ": deleted\n") {
		t.Errorf("rm --delete-volumes = %q, want its volume deleted", got)
	}
	if held := left(t, "agent-sandbox.name="+name); len(held) > 0 {
		t.Errorf("left after rm --volumes: %v", held)
	}
}

// Mounts are confirmed when a sandbox is created with them, and not when it exists.
func TestRunConfirmsTheMountsOfANewSandbox(t *testing.T) {
	enginetest.Need(t)
	t.Parallel()
	name, dir := harness.UniqueName(t), t.TempDir()
	removeAtEnd(t, name)
	refused := func(what, host string) {
		t.Helper()
		code, _, errOut := call(t.Context(), "", "-H", host, "run", "--name", name, "--mount", dir+":/copied", "--", "true")
		if code == 0 || !strings.Contains(errOut, "--yes") {
			t.Errorf("run of %s: code %d, %q, want the hint to use --yes", what, code, errOut)
		}
		if held := left(t, "agent-sandbox.name="+name); len(held) > 0 {
			t.Errorf("run of %s left %v", what, held)
		}
	}
	var finds, creates atomic.Int32 // since the sandbox exists
	finds.Store(-1 << 20)
	host := harness.InFront(t, func(_ http.ResponseWriter, r *http.Request) bool {
		switch {
		case strings.HasSuffix(r.URL.Path, "/containers/create"):
			creates.Add(1)
		case strings.HasSuffix(r.URL.Path, "/containers/agent-sandbox-"+name+"/json") && finds.Add(1) == 2:
			mustCall(t, "delete", "--delete-volumes", name)
		}
		return false
	}, nil)
	refused("a new sandbox", host)
	if n := creates.Load(); n > 0 {
		t.Errorf("%d containers were created before the confirmation", n)
	}
	mustCall(t, "create", "--name", name)
	if code, _, errOut := call(t.Context(), "", "run", "--name", name, "--mount", dir+":/copied", "--", "true"); code != 0 || !strings.Contains(errOut, "not applied: mounts") {
		t.Errorf("run of a sandbox that exists: code %d, %q, want 0 and what is not applied", code, errOut)
	}
	finds.Store(0)
	refused("a sandbox that is deleted after it was found", host)
	if finds.Load() < 2 || creates.Load() == 0 {
		t.Errorf("the sandbox was looked for %d times and created %d times: it was not deleted in between", finds.Load(), creates.Load())
	}
}

func TestExitCodes(t *testing.T) {
	t.Parallel()
	over, cancel := context.WithCancel(t.Context())
	cancel()
	tests := map[string]struct {
		ctx  context.Context
		args []string
		want int
		says string
	}{
		"signal":             {nil, []string{"run", "--", "sh", "-c", "kill -9 $$"}, 137, ""},
		"missing program":    {nil, []string{"run", "--", "no-such-program"}, 127, "no-such-program"},
		"not executable":     {nil, []string{"run", "--", "/etc/passwd"}, 126, "permission denied"},
		"bad option":         {nil, []string{"run", "--vcpus", "-1", "--", "true"}, 2, "--vcpus"},
		"stray revision":     {nil, []string{"run", "--revision", "v1", "--", "true"}, 2, "--git"},
		"stray strip":        {nil, []string{"run", "--strip", "1", "--", "true"}, 2, "--tarball"},
		"two sources":        {nil, []string{"run", "--git", "/a", "--from", "/b", "--", "true"}, 2, "git"},
		"bad source":         {nil, []string{"run", "--git", "ftp://u:s3cr3t@h/a", "--", "true"}, 2, `scheme "ftp"`},
		"exec in nothing":    {nil, []string{"exec", "no-such-sandbox", "--", "true"}, 125, "Sandbox not found"},
		"inspect of none":    {nil, []string{"inspect", "no-such-sandbox"}, 1, "Sandbox not found"},
		"remove of none":     {nil, []string{"rm", "no-such-sandbox"}, 1, "Sandbox not found"},
		"snapshot of none":   {nil, []string{"snapshot", "create", "no-such-sandbox"}, 1, "Sandbox not found"},
		"logs of none":       {nil, []string{"logs", "no-such-sandbox"}, 1, "sandbox list"},
		"show of none":       {nil, []string{"snapshot", "show", "nosuchsnapsh"}, 1, "sandbox snapshot list"},
		"volume of none":     {nil, []string{"volume", "delete", "agent-sandbox-nosuchvolume"}, 1, "sandbox volume list"},
		"unused persistence": {nil, []string{"create", "--persistent=false"}, 2, "sandbox run"},
		"forked to be gone":  {nil, []string{"fork", "a", "--persistent=false"}, 2, "sandbox run"},
		"copy to nowhere":    {nil, []string{"cp", "a", "b"}, 2, "NAME:PATH"},
		"copy to a ~":        {nil, []string{"cp", "/etc/passwd", "a:~/b"}, 2, "an absolute path"},
		"copy of a ~":        {nil, []string{"cp", "a:~", "b"}, 2, "an absolute path"},
		"copy between two":   {nil, []string{"cp", "a:b", "c:d"}, 2, "of this machine"},
		"update of nothing":  {nil, []string{"update", "a"}, 2, "no change"},
		"bad mount":          {nil, []string{"create", "--mount", "/a", "-y"}, 2, "source:target"},
		"bad mode":           {nil, []string{"create", "--mount", "/a:/b:RW", "-y"}, 2, "rwcopy"},
		"bad volume mode":    {nil, []string{"create", "--volume", "a:/b:rwcopy", "-y"}, 2, "rwcopy"},
		"bad memory":         {nil, []string{"create", "--memory", "2x"}, 2, "2x"},
		"bad days":           {nil, []string{"create", "--timeout", "-1d"}, 2, "-1"},
		"bad time":           {nil, []string{"logs", "--since", "noon", "a"}, 2, "noon"},
		"two processes":      {nil, []string{"fork", "a", "b", "--", "c"}, 2, "one NAME"},
		"no such snapshot":   {nil, []string{"snapshot", "rm", "nosuchsnapsh"}, 1, "nosuchsnapsh"},
		"run of no snapshot": {nil, []string{"run", "--snapshot", "nosuchsnapsh", "--", "true"}, 125, "nosuchsnapsh"},
		"fork of none":       {nil, []string{"fork", "no-such-sandbox"}, 1, "Sandbox not found"},
		"no forks":           {nil, []string{"fork", "--count", "0", "a"}, 2, "0 forks"},
		"run of no image":    {nil, []string{"run", "--image", "Not An Image", "--", "true"}, 2, "Not An Image"},
		"no image":           {nil, []string{"create", "--image", "Not An Image"}, 2, "Not An Image"},
		"image and runtime":  {nil, []string{"create", "--image", "a", "--runtime", "node20"}, 2, "cannot be used together"},
		"fork of no runtime": {nil, []string{"fork", "--runtime", "cobol85", "a"}, 2, "cobol85"},
		"storage":            {nil, []string{"create", "--storage", "1k"}, 2, "--storage"},
		"storage of run":     {nil, []string{"run", "--storage", "1k", "--", "true"}, 2, "--storage"},
		"storage of fork":    {nil, []string{"fork", "--storage", "1k", "a"}, 2, "--storage"},
		"bad list":           {nil, []string{"snapshot", "list", "--sandbox", "../x"}, 2, "../x"},
		"no engine":          {nil, []string{"-H", "unix:///nowhere.sock", "list"}, 1, "/nowhere.sock"},
		"health of no host":  {nil, []string{"-H", "unix:///nowhere.sock", "health"}, 1, "can't be used"},
		"unconfirmed update": {nil, []string{"update", "a", "--mount", t.TempDir() + ":/a"}, 1, "--yes"},
		"no command":         {nil, []string{"run"}, 2, "arg"},
		"unknown flag":       {nil, []string{"list", "--colour"}, 2, "--colour"},
		"unknown verb":       {nil, []string{"destroy"}, 2, "destroy"},
		"help of unknown":    {nil, []string{"help", "volume", "destroy"}, 2, `volume: unknown command "destroy"`},
		"unknown shell":      {nil, []string{"completion", "tcsh"}, 2, "tcsh"},
		"interrupted":        {over, []string{"list"}, 130, "interrupted"},
		"interrupted run":    {over, []string{"run", "--", "true"}, 130, "interrupted"},
		"help is no error":   {nil, []string{"--help"}, 0, ""},
		"help without verb":  {nil, nil, 0, ""},
	}
	// Those that a real engine has its say in.
	asks := regexp.MustCompile("^(signal|missing program|not executable|no image|.* (of|in) (none|nothing|no snapshot|no image))$")
	for what, test := range tests {
		t.Run(what, func(t *testing.T) {
			if asks.MatchString(what) {
				enginetest.Need(t)
			}
			t.Parallel()
			ctx := test.ctx
			if ctx == nil {
				ctx = t.Context()
			}
			code, _, errOut := call(ctx, "", test.args...)
			if code != test.want || !strings.Contains(errOut, test.says) || (test.says == "") != (errOut == "") {
				t.Errorf("code %d, stderr %q, want %d and %q", code, errOut, test.want, test.says)
			}
		})
	}
}

// full is an output that has no space left.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, syscall.ENOSPC }

// Output that can't be written is a failure, of help, too.
func TestOutputThatIsNotWrittenIsAFailure(t *testing.T) {
	t.Parallel()
	for _, line := range []string{"version", "version --json", "--version", "--help", "", "help", "help list", "list --help", "volume", "completion bash", "completion", "completion zsh"} {
		var errOut bytes.Buffer
		args := append([]string{"-H", "unix:///nowhere.sock"}, strings.Fields(line)...)
		if code := run(t.Context(), args, nil, full{}, &errOut); code != codeFailed || errOut.String() != "sandbox: no space left on device\n" {
			t.Errorf("%q: code %d, %q, want %d and the error", line, code, errOut.String(), codeFailed)
		}
	}
}

func TestRunWithASource(t *testing.T) {
	enginetest.Need(t)
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), []byte("from here"), 0o644); err != nil {
		t.Fatal(err)
	}
	if got := mustCall(t, "run", "--from", dir, "--", "cat", "file"); got != "from here" {
		t.Errorf("run --from = %q", got)
	}
	archive, err := exec.Command("tar", "-czf", "-", "-C", filepath.Dir(dir), filepath.Base(dir)).Output()
	if err != nil {
		t.Fatal(err)
	}
	code, out, errOut := call(t.Context(), string(archive), "run", "-q", "--tarball", "-", "--strip", "1", "--", "cat", "file")
	if code != 0 || out != "from here" || errOut != "" {
		t.Errorf("run --tarball - = %d, %q, %q", code, out, errOut)
	}
}

// The suffix that ssh_config recognises sandboxes by is not part of the name, and what is no
// name gets no further.
func TestProxyTakesAHostName(t *testing.T) {
	t.Parallel()
	for host, want := range map[string]string{
		"build-42":            `get "build-42"`,
		"build-42.sandbox":    `get "build-42"`,
		"a.sandbox.sandbox":   `get "a.sandbox"`,
		"$(touch x).sandbox":  `"$(touch x)" is not a sandbox's name`,
		"../containers/x":     `"../containers/x" is not a sandbox's name`,
		".sandbox":            `"" is not a sandbox's name`,
		"x\x1b[2Jy.sandbox":   `is not a sandbox's name`,
		"`touch x`.sandbox":   "is not a sandbox's name",
		"build-42.sandbox\nx": "is not a sandbox's name",
	} {
		code, out, errOut := call(t.Context(), "", "-H", "unix:///nowhere.sock", "proxy", host)
		wantCode := codeFailed
		if strings.HasSuffix(want, "name") {
			wantCode = codeUsage
		}
		if code != wantCode || out != "" || !strings.Contains(errOut, want) {
			t.Errorf("proxy %q: code %d, stdout %q, stderr %q; want %s", host, code, out, errOut, want)
		}
		if i := strings.IndexFunc(strings.ReplaceAll(strings.TrimSuffix(errOut, "\n"), "\nsandbox: ", ""), unicode.IsControl); i >= 0 {
			t.Errorf("proxy %q: stderr %q controls the terminal", host, errOut)
		}
	}
}

// What a sandbox or an image says can't control the terminal, nor forge rows of a table.
func TestTablesAreGraphic(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"plain, wide: 日本 é":           "plain, wide: 日本 é",
		"\x1b]0;pwned\x07\x1b[2J":     `"\x1b]0;pwned\a\x1b[2J"`,
		"a\tb":                        `"a\tb"`,
		"a\nNAME  running":            `"a\nNAME  running"`,
		"\u202egnp.exe":               `"\u202egnp.exe"`,
		"\u200b":                      `"\u200b"`,
		"\x9b31m":                     `"\x9b31m"`,
		"\u009b31m":                   `"\u009b31m"`,
		"quotes \" alone change none": "quotes \" alone change none",
	} {
		if got := graphic(text); got != want {
			t.Errorf("graphic(%q) = %s, want %s", text, got, want)
		}
		var out bytes.Buffer
		err := printTable(&out, "IMAGE\tTAGS", []string{text}, func(s string) []any { return []any{s, tagList(map[string]string{s: s})} })
		rows := strings.Split(out.String(), "\n")
		if err != nil || len(rows) != 3 || !strings.HasPrefix(rows[1], want+"  ") || !strings.HasSuffix(rows[1], want+"="+want) {
			t.Errorf("printTable of %q: %v, %q", text, err, out.String())
		}
	}
	if got := graphicLines("one\n\x1b[2J\nthree"); got != "one\n\"\\x1b[2J\"\nthree" {
		t.Errorf("graphicLines: %q", got)
	}
}

func TestPrune(t *testing.T) {
	enginetest.Need(t)
	eng, err := engine.Open(t.Context(), engine.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer eng.Close()
	for _, flags := range [][]string{nil, {"--json"}} {
		old := record.GuestName("old-" + record.NewID())
		if _, err := eng.CreateVolume(t.Context(), old, record.Base(record.RoleGuest, "", eng.Now())); err != nil {
			t.Fatal(err)
		}
		want := "volume " + old + ": removed\n"
		if flags != nil {
			want = `"volume ` + old + `"`
		}
		if got := mustCall(t, append([]string{"prune"}, flags...)...); !strings.Contains(got, want) {
			t.Errorf("prune %v = %q, want %q in it", flags, got, want)
		}
	}
}

func TestForksAndSnapshots(t *testing.T) {
	enginetest.Need(t)
	t.Parallel()
	name := harness.UniqueName(t)
	removeAtEnd(t, name, name+"-f-1", name+"-f-2")
	mustCall(t, "run", "--name", name, "--", "sh", "-c", "echo kept > file; echo kept > /etc/file")
	id := strings.TrimSpace(mustCall(t, "snapshot", "create", "--name", name, "--expiry", "24h", "--keep-last", "3", name))
	removeSnapshotAtEnd(t, id)

	var list []map[string]any
	if err := json.Unmarshal([]byte(mustCall(t, "snapshot", "list", "--json", "--sandbox", name, "--name", name)), &list); err != nil {
		t.Fatalf("snapshots --json: %v", err)
	}
	if len(list) != 1 || list[0]["id"] != id || list[0]["sandbox"] != name || list[0]["expiresAt"] == nil {
		t.Errorf("snapshots --json of %s = %v, want %s alone", name, list, id)
	}
	if got := mustCall(t, "snapshot", "list", "--sandbox", name); strings.Count(got, "\n") != 2 || !strings.Contains(got, id) {
		t.Errorf("snapshots = %q, want %s alone", got, id)
	}
	mustCall(t, "exec", name, "--", "sh", "-c", "echo changed > file; echo changed > /etc/file")
	if got := mustCall(t, "run", "--snapshot", id, "--", "cat", "file", "/etc/file"); got != "kept\nkept\n" {
		t.Errorf("run --snapshot: %q, want what it held", got)
	}
	if got := mustCall(t, "snapshot", "rm", id); got != "" {
		t.Errorf("snapshots rm = %q", got)
	}

	if got, want := mustCall(t, "fork", "--name", name+"-f", "--count", "2", name), name+"-f-1\n"+name+"-f-2\n"; got != want {
		t.Fatalf("fork --count 2 = %q, want %q", got, want)
	}
	if got := mustCall(t, "exec", name+"-f-2", "--", "cat", "file", "/etc/file"); got != "changed\nchanged\n" {
		t.Errorf("a fork has %q", got)
	}
	code, out, errOut := call(t.Context(), "", "fork", name)
	fork := strings.TrimSpace(out)
	if code != 0 || !strings.Contains(errOut, "sandbox: copy\n") {
		t.Errorf("fork in a pipe: code %d, %q, want a line for the copy", code, errOut)
	}
	removeAtEnd(t, fork)
	var status map[string]any
	if err := json.Unmarshal([]byte(mustCall(t, "inspect", fork)), &status); err != nil {
		t.Fatalf("inspect: %v", err)
	}
	if status["status"] != "running" || status["source"] != "fork of "+name {
		t.Errorf("inspect of a fork = %v", status)
	}
}
