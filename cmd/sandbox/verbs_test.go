package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

var update = flag.Bool("update", false, "rewrite testdata/help.txt, and the session in docs/cli.md")

// TestHelp compares the help of every subcommand with a file, so that a change of a flag or a
// text is seen for what it is.
func TestHelp(t *testing.T) {
	var got bytes.Buffer
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		c.InitDefaultHelpFlag()
		fmt.Fprintf(&got, "=== %s\n", c.CommandPath())
		c.SetOut(&got)
		if err := c.Help(); err != nil {
			t.Error(err)
		}
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	root := newApp(nil, io.Discard, io.Discard).root()
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	walk(root)
	const file = "testdata/help.txt"
	if *update {
		if err := os.WriteFile(file, got.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got.String()); diff != "" {
		t.Errorf("go test ./cmd/sandbox -run TestHelp -update rewrites %s, which differs:\n%s", file, diff)
	}
}

func TestConfirmationTakesOnlyYesAndNo(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	for what, test := range map[string]struct {
		yes, interactive bool
		stdin            io.Reader
		says             string // of the error; empty for none
		asked            int
	}{
		"y":               {interactive: true, stdin: strings.NewReader("y\n"), asked: 1},
		"yes":             {interactive: true, stdin: strings.NewReader("YES\n"), asked: 1},
		"n":               {interactive: true, stdin: strings.NewReader("n\n"), says: "cancelled", asked: 1},
		"no":              {interactive: true, stdin: strings.NewReader(" no \n"), says: "cancelled", asked: 1},
		"asked again":     {interactive: true, stdin: strings.NewReader("yep\n\ny\n"), asked: 3},
		"end":             {interactive: true, stdin: strings.NewReader(""), says: "ended", asked: 1},
		"end in a line":   {interactive: true, stdin: strings.NewReader("y"), says: "ended", asked: 1},
		"broken":          {interactive: true, stdin: iotest.ErrReader(broken), says: "broken", asked: 1},
		"no terminal":     {stdin: strings.NewReader("y\n"), says: "--yes"},
		"--yes":           {yes: true, interactive: true, stdin: strings.NewReader("n\n")},
		"--yes in a pipe": {yes: true, stdin: strings.NewReader("")},
	} {
		var out bytes.Buffer
		a := &app{stdin: test.stdin, stderr: &out, interactive: func(any) bool { return test.interactive }}
		err := a.confirm(t.Context(), test.yes, "a mount\x1b[2J", "Go on?")
		if (err == nil) != (test.says == "") || err != nil && !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: error %v, want %q", what, err, test.says)
		}
		if got := strings.Count(out.String(), "Go on?"); got != test.asked {
			t.Errorf("%s: asked %d times, want %d", what, got, test.asked)
		}
		if strings.Contains(out.String(), "\x1b") {
			t.Errorf("%s: %q controls the terminal", what, out.String())
		}
	}
}

// A signal ends a question that nobody answers.
func TestConfirmationEndsWithItsContext(t *testing.T) {
	t.Parallel()
	r, w := io.Pipe()
	defer w.Close()
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(10*time.Millisecond, cancel)
	a := &app{stdin: r, stderr: io.Discard, interactive: func(any) bool { return true }}
	if err := a.confirm(ctx, false, "", ""); !errors.Is(err, context.Canceled) {
		t.Errorf("confirm = %v, want the context's error", err)
	}
}

func TestFlagValues(t *testing.T) {
	t.Setenv("FROM_HERE", "here")
	for text, want := range map[string]time.Duration{"7d": 7 * 24 * time.Hour, "0d": 0, "90s": 90 * time.Second, "1h30m": 90 * time.Minute, "7d12h": 180 * time.Hour, "1d1h1.5s": 25*time.Hour + 1500*time.Millisecond} {
		var d duration
		if err := d.Set(text); err != nil || time.Duration(d) != want {
			t.Errorf("duration %q = %v, %v, want %v", text, time.Duration(d), err, want)
		}
	}
	for _, text := range []string{"", "d", "1.5d", "-1d", "99999999d", "7", "7 d", "1d2", "1d-2h", "1d+2h", "2h1d", "1d1d", "1d 2h", "65535d2562047h"} {
		if err := new(duration).Set(text); err == nil {
			t.Errorf("duration %q: no error", text)
		}
	}
	for text, want := range map[string]int64{"512": 512 << 20, "512m": 512 << 20, "2g": 2 << 30, "2GiB": 2 << 30, "64k": 64 << 10, "10b": 10, "0": 0} {
		var n size
		if err := n.Set(text); err != nil || int64(n) != want {
			t.Errorf("size %q = %d, %v, want %d", text, n, err, want)
		}
	}
	for _, text := range []string{"", "g", "-1", "1.5g", "1t", "9999999999999g", "1 g", "0x10"} {
		if err := new(size).Set(text); err == nil {
			t.Errorf("size %q: no error", text)
		}
	}
	variables := env{"A=1", "B=x=y", "EMPTY=", "FROM_HERE", "NOT_SET_ANYWHERE"}
	want := map[string]string{"A": "1", "B": "x=y", "EMPTY": "", "FROM_HERE": "here"}
	if diff := cmp.Diff(want, variables.variables()); diff != "" {
		t.Errorf("variables: %s", diff)
	}
}

func TestRemoteMountsAreBinds(t *testing.T) {
	t.Parallel()
	f := settingsFlags{mounts: []string{"/a:/a:ro", "/b:/b:rw", "/c:/c"}, volumes: []string{"v:/d"}, remote: true}
	mounts, err := f.mounted()
	var remote []bool
	for _, m := range mounts {
		remote = append(remote, m.Remote)
	}
	if diff := cmp.Diff([]bool{true, true, false, false}, remote); err != nil || diff != "" {
		t.Errorf("mounts %v, %v: remote %s", mounts, err, diff)
	}
}

func TestPathsInSandboxes(t *testing.T) {
	t.Parallel()
	for arg, want := range map[string][2]string{
		"build:dist/app.js": {"build", "dist/app.js"}, "build:/etc/hosts": {"build", "/etc/hosts"}, "build:": {"build", "."},
		"build:a:b": {"build", "a:b"}, "./a:b": {"", "./a:b"}, "/a:b": {"", "/a:b"}, "a": {"", "a"}, ":a": {"", ":a"},
	} {
		if name, path := splitPath(arg); name != want[0] || path != want[1] {
			t.Errorf("splitPath(%q) = %q, %q, want %q", arg, name, path, want)
		}
	}
}

func TestSinceIsATimeOrADuration(t *testing.T) {
	t.Parallel()
	zone := time.FixedZone("", 2*60*60)
	now := time.Date(2026, 1, 8, 12, 0, 0, 0, zone)
	for text, want := range map[string]time.Time{
		"": {}, "10m": now.Add(-10 * time.Minute), "7d": now.AddDate(0, 0, -7), "7d12h": now.Add(-180 * time.Hour), "-5m": now.Add(5 * time.Minute), "0s": now,
		"0": time.Unix(0, 0), "1767323045": time.Unix(1767323045, 0), "1767323045.25": time.Unix(1767323045, 250_000_000), "1767323045.0000000019": time.Unix(1767323045, 1),
		"2026-01-02T03:04:05Z": time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), "2026-01-02T03:04:05.5-01:00": time.Date(2026, 1, 2, 4, 4, 5, 500_000_000, time.UTC),
		"2026-01-02": time.Date(2026, 1, 2, 0, 0, 0, 0, zone), "2026-01-02Z": time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC), "2026-01-02T03": time.Date(2026, 1, 2, 3, 0, 0, 0, zone),
		"2026-01-02T03:04": time.Date(2026, 1, 2, 3, 4, 0, 0, zone), "2026-01-02T03:04+01:00": time.Date(2026, 1, 2, 2, 4, 0, 0, time.UTC),
		"2026-01-02T03:04:05": time.Date(2026, 1, 2, 3, 4, 5, 0, zone), "2026-01-02T03:04:05.000000001": time.Date(2026, 1, 2, 3, 4, 5, 1, zone),
	} {
		if got, err := sinceTime(text, now); err != nil || !got.Equal(want) {
			t.Errorf("since %q = %v, %v, want %v", text, got, err, want)
		}
	}
}

func TestBarFitsTheTerminal(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		p     sandbox.Progress
		width int
		want  string
	}{
		{sandbox.Progress{Step: "copy", Current: 1 << 29, Total: 1 << 30, Files: 3}, 80, "[##########..........] 512.0 MB of 1.0 GB  copy  3 files"},
		{sandbox.Progress{Step: "copy", Current: 2 << 30, Total: 1 << 30}, 80, "[####################] 2.0 GB of 1.0 GB  copy"},
		{sandbox.Progress{Step: "source", Current: 999}, 80, "999 B  source"},
		{sandbox.Progress{Step: "image", Text: "a\x1b[2J"}, 80, `image: "a\x1b[2J"`},
		{sandbox.Progress{Step: "image", Text: "日本語の画像"}, 12, "image: 日本"},
		{sandbox.Progress{Step: "image", Text: "日本語の画像"}, 11, "image: 日"},
		{sandbox.Progress{Step: "image", Text: "e\u0301a"}, 10, "image: e\u0301a"},
		{sandbox.Progress{Step: "image", Text: "e\u0301a"}, 9, "image: e\u0301"},
		{sandbox.Progress{Step: "image", Current: 1<<20 - 1}, 80, "1.0 MB  image"},
		{sandbox.Progress{Step: "image"}, 0, ""},
	} {
		if got := barText(test.p, test.width); got != test.want {
			t.Errorf("barText(%+v, %d) = %q, want %q", test.p, test.width, got, test.want)
		}
	}
}

func TestProgressIsALineOrLines(t *testing.T) {
	t.Parallel()
	width := func() int { return 80 }
	for what, test := range map[string]struct {
		width func() int
		quiet bool
		want  string
	}{
		"terminal": {width, false, "\r\x1b[K[##########..........] 1 B of 2 B  image: pulling x" +
			"\r\x1b[Ksource: a clone\r\x1b[Kstart\r\x1b[Ksandbox: container: a warning\n\r\x1b[Kcopy\r\x1b[K"},
		"pipe":  {nil, false, "sandbox: image: pulling x\nsandbox: source: a clone\nsandbox: container: a warning\nsandbox: copy\n"},
		"quiet": {nil, true, "sandbox: container: a warning\n"},
	} {
		var out bytes.Buffer
		p := &progress{out: &out, width: test.width, quiet: test.quiet}
		p.show(sandbox.Progress{Step: "image", Text: "pulling x", Current: 1, Total: 2})
		p.show(sandbox.Progress{Step: "source", Text: "a clone"})
		p.show(sandbox.Progress{Step: "start"})
		p.show(sandbox.Progress{Step: "container", Text: "a warning"})
		p.show(sandbox.Progress{Step: "copy"})
		p.show(sandbox.Progress{Step: "copy", Current: 7}) // too soon
		p.clear()
		p.clear()
		if got := out.String(); got != test.want {
			t.Errorf("%s: printed %q, want %q", what, got, test.want)
		}
	}
}

func TestSSHConfigQuotesItsCommand(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{"/usr/bin/sandbox": "/usr/bin/sandbox", "/a b/$x": "'/a b/$x'", "/a'b": `'/a'\''b'`, "/100%": "/100%%"} {
		if got := sshQuote(text); got != want {
			t.Errorf("sshQuote(%q) = %s, want %s", text, got, want)
		}
	}
	if got := mustCall(t, "ssh-config"); !strings.HasPrefix(got, "Host *.sandbox\n\tProxyCommand /") || !strings.Contains(got, " proxy %n\n") {
		t.Errorf("ssh-config = %q", got)
	}
}

func TestHealthWithoutAnEngineSaysWhatToDo(t *testing.T) {
	t.Parallel()
	_, out, _ := call(t.Context(), "", "-H", "unix:///nowhere.sock", "health")
	for _, want := range []string{"What to do  ", "/nowhere.sock", "DOCKER_HOST"} {
		if !strings.Contains(out, want) {
			t.Errorf("health = %q, want %q in it", out, want)
		}
	}
}

// A sandbox's life by the subcommands.
func TestVerbs(t *testing.T) {
	enginetest.Story(t)
	t.Parallel()
	name := harness.UniqueName(t)
	fork := name + "-fork"
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), []byte("from here\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	removeAtEnd(t, fork, name)

	code, _, errOut := call(t.Context(), "", "create", "--name", name, "--mount", dir+":/copied")
	if code != codeFailed || !strings.Contains(errOut, "--yes") {
		t.Fatalf("create with a mount and without a terminal: code %d, %q, want the hint to use --yes", code, errOut)
	}
	if held := left(t, "agent-sandbox.name="+name); len(held) > 0 {
		t.Fatalf("left of what was not confirmed: %v", held)
	}
	got := mustCall(t, "create", "--name", name, "--mount", dir+":/copied", "--yes", "-e", "GREETING=hello", "--tag", "a=b", "--port", "3000",
		"--memory", "512m", "--timeout", "1d", "--idle-timeout", "2d", "--", "sh", "-c", "echo main $GREETING; echo trouble >&2; exec sleep 1000")
	if got != name+"\n" {
		t.Errorf("create = %q, want the name", got)
	}
	list := mustCall(t, "list", "--tag", "a=b", "--prefix", name)
	header, row, _ := strings.Cut(list, "\n")
	if fields := strings.Fields(header); cmp.Diff([]string{"NAME", "ID", "STATUS", "IMAGE", "CREATED", "LOCATION", "PORTS", "TAGS"}, fields) != "" {
		t.Errorf("list has the columns %v", fields)
	}
	for _, want := range []string{name, "running", "node:20-bookworm", "local", "->3000", "a=b"} {
		if !strings.Contains(row, want) {
			t.Errorf("list says %q, want %s in it", row, want)
		}
	}
	if got := mustCall(t, "exec", name, "--", "sh", "-c", "cat /copied/file; echo $GREETING"); got != "from here\nhello\n" {
		t.Errorf("exec: %q", got)
	}
	if got := mustCall(t, "exec", "-e", "GREETING=once", "-u", "1000:1000", "-w", "/copied", name, "--", "sh", "-c", "echo $GREETING; id -u; cat file"); got != "once\n1000\nfrom here\n" {
		t.Errorf("exec with a user: %q", got)
	}
	if got := mustCall(t, "exec", "--workdir", "/copied", name, "--", "pwd"); got != "/copied\n" {
		t.Errorf("exec --workdir /copied -- pwd = %q", got)
	}
	if code, out, errOut := call(t.Context(), "echo in a shell\nexit 3\n", "shell", name); code != 3 || out != "in a shell\n" || errOut != "" {
		t.Errorf("shell: code %d, %q, %q", code, out, errOut)
	}
	harness.Eventually(t, "the log has both streams", func() bool {
		_, out, errOut := call(t.Context(), "", "logs", name)
		return out == "main hello\n" && errOut == "trouble\n"
	})
	var lines []sandbox.LogLine
	for line := range strings.Lines(mustCall(t, "logs", "--json", "--since", "1h", name)) {
		var e sandbox.LogLine
		if err := json.Unmarshal([]byte(line), &e); err != nil || e.Time.IsZero() {
			t.Errorf("logs --json: %q, %v", line, err)
		}
		lines = append(lines, e)
	}
	if len(lines) != 2 {
		t.Errorf("logs --json: %+v, want two lines", lines)
	}
	if got := mustCall(t, "logs", "--tail", "0", name); got != "" {
		t.Errorf("logs --tail 0 = %q", got)
	}

	if got := mustCall(t, "cp", filepath.Join(dir, "file"), name+":sub/"); got != "" {
		t.Errorf("cp = %q", got)
	}
	mustCall(t, "cp", filepath.Join(dir, "file"), name+":")
	mustCall(t, "cp", dir, name+":sub")
	if got, want := mustCall(t, "exec", name, "--", "cat", "file", "sub/"+filepath.Base(dir)+"/file"), "from here\nfrom here\n"; got != want {
		t.Errorf("copies in directories have %q, want %q", got, want)
	}
	mustCall(t, "stop", name)
	for _, args := range [][]string{{"cp", name + ":sub/file", t.TempDir()}, {"cp", name + ":sub", filepath.Join(dir, "tree")}} {
		if code, out, errOut := call(t.Context(), "", args...); code != 0 || !strings.HasPrefix(out, "copied ") || !strings.Contains(errOut, "the sandbox is stopped: fractions of seconds") {
			t.Errorf("%q of a stopped sandbox: code %d, %q, %q, want what is not copied", args, code, out, errOut)
		}
	}
	if b, err := os.ReadFile(filepath.Join(dir, "tree", "file")); err != nil || string(b) != "from here\n" {
		t.Errorf("a copy of a copy has %q, %v", b, err)
	}
	mustCall(t, "update", name, "--tag", "a=c", "--idle-timeout", "1h", "--memory", "256m", "-e", "GREETING=bye", "--", "sh", "-c", "echo other $GREETING")
	mustCall(t, "start", name)
	harness.Eventually(t, "the new main process has spoken", func() bool {
		_, out, _ := call(t.Context(), "", "logs", name)
		return strings.Contains(out, "other bye\n")
	})
	var st map[string]any
	if err := json.Unmarshal([]byte(mustCall(t, "inspect", name)), &st); err != nil {
		t.Fatal(err)
	}
	workspace, _ := st["workspace"].(map[string]any)
	used, _ := st["usage"].(map[string]any)
	settings, _ := st["settings"].(map[string]any)
	if st["status"] != "running" || used["memoryLimit"] != float64(256<<20) || workspace["size"] == "" || st["logsEndpoint"] == "" || st["expiresAt"] == nil ||
		settings["idleTimeoutMs"] != float64((time.Hour).Milliseconds()) {
		t.Errorf("inspect = %v", st)
	}
	if fmt.Sprint(settings["command"], st["env"], st["pending"]) != "[sh -c echo other $GREETING] [GREETING] <nil>" {
		t.Errorf("inspect: the settings are %v", st)
	}
	sb, err := harness.NewClient(t).Get(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	cmd := sb.Command(t.Context(), "sh", "-c", "exit 3")
	cmd.Detached = true
	if err := cmd.Run(); harness.ExitCode(err) != 3 {
		t.Error(err)
	}
	sb.Detach()
	if got := mustCall(t, "processes", name); !strings.Contains(got, cmd.ID()) || !strings.Contains(got, "exited (3)") || !strings.Contains(got, "sh -c exit 3") {
		t.Errorf("processes = %s", got)
	}
	if got := mustCall(t, "processes", "--json", name); !strings.Contains(got, `"exitCode": 3`) {
		t.Errorf("processes --json = %s", got)
	}
	mustCall(t, "update", name, "--without-env", "GREETING", "--without-tag", "a", "--persistent")
	if got := mustCall(t, "inspect", name); strings.Contains(got, `"GREETING"`) || strings.Contains(got, `"tags"`) || !strings.Contains(got, `"persistent": true`) {
		t.Errorf("inspect after settings were taken away = %s", got)
	}

	id := strings.TrimSpace(mustCall(t, "snapshot", "create", "--name", "first", "--expiry", "7d", name))
	removeSnapshotAtEnd(t, id)
	if got := mustCall(t, "snapshot", "tree"); !strings.Contains(got, "sandbox  "+name+"  ") || !strings.Contains(got, "\n  snapshot  "+id+"  first  "+name+"  ") {
		t.Errorf("snapshot tree = %q, want %s below %s in it", got, id, name)
	}
	var tree []map[string]any
	if err := json.Unmarshal([]byte(mustCall(t, "snapshot", "tree", "--json")), &tree); err != nil || len(tree) == 0 || tree[0]["kind"] == nil || tree[0]["children"] == nil {
		t.Errorf("snapshot tree --json = %v, %v", tree, err)
	}
	var shown map[string]any
	if err := json.Unmarshal([]byte(mustCall(t, "snapshot", "show", id)), &shown); err != nil || shown["id"] != id || shown["name"] != "first" {
		t.Errorf("snapshot show = %v, %v", shown, err)
	}
	if got := mustCall(t, "snapshot", "list", "--sandbox", name); !strings.Contains(got, id) {
		t.Errorf("snapshot list = %q", got)
	}
	mustCall(t, "exec", name, "--", "sh", "-c", "echo later >later")
	if got := mustCall(t, "rollback", name, id); got != "" {
		t.Errorf("rollback = %q", got)
	}
	if got := mustCall(t, "exec", name, "--", "sh", "-c", "cat sub/file; ls later 2>/dev/null || echo none"); got != "from here\nnone\n" {
		t.Errorf("after the rollback: %q", got)
	}
	if got := mustCall(t, "snapshot", "delete", id); got != "" {
		t.Errorf("snapshot delete = %q", got)
	}

	if got := mustCall(t, "fork", name, "--name", fork, "-u", "1000:1000", "--", "sleep", "1000"); got != fork+"\n" {
		t.Errorf("fork = %q", got)
	}
	if got := mustCall(t, "exec", fork, "--", "sh", "-c", "id -u; cat sub/file"); got != "1000\nfrom here\n" {
		t.Errorf("in the fork: %q", got)
	}
	got = mustCall(t, "delete", fork)
	if strings.Count(got, ": preserved\n") != 2 || strings.Count(got, "\n") != 2 {
		t.Errorf("delete = %q, want the workspace and the copy preserved", got)
	}
	var volumes []sandbox.Volume
	if err := json.Unmarshal([]byte(mustCall(t, "volume", "orphans", "--json")), &volumes); err != nil {
		t.Fatal(err)
	}
	var ours []string
	for _, v := range volumes {
		if strings.Contains(got, v.Name) {
			ours = append(ours, v.Name)
		}
	}
	if len(ours) != strings.Count(got, "\n") {
		t.Errorf("volume orphans lists %v of the volumes in %q", ours, got)
	}
	cleanup := []string{"volume", "cleanup", "--min-age", "0s"}
	for _, v := range ours {
		cleanup = append(cleanup, "--name", v)
	}
	if code, out, errOut := call(t.Context(), "y\n", cleanup...); code != codeFailed || !strings.Contains(errOut, "--yes") || out != "" {
		t.Errorf("volume cleanup without a terminal: code %d, %q, %q", code, out, errOut)
	}
	if got := mustCall(t, append(cleanup, "--dry-run")...); !strings.Contains(got, "would free ") {
		t.Errorf("volume cleanup --dry-run = %q", got)
	}
	if got := mustCall(t, append(cleanup, "--yes")...); strings.Count(got, ": deleted\n") != len(ours) || !strings.Contains(got, "freed ") {
		t.Errorf("volume cleanup --yes = %q", got)
	}

	table := mustCall(t, "volume", "list")
	if !strings.Contains(table, name) || !strings.Contains(table, dir) {
		t.Errorf("volume list = %q, want the sandbox and the source of its copy", table)
	}
	if health := mustCall(t, "health"); !strings.Contains(health, "Network policies") {
		t.Errorf("health = %q", health)
	}
	if code, got, errs := call(t.Context(), "", "conform", "--only", "get or create", "--oci-runtime", "runc"); code != 0 || errs != "get or create, concurrently: works\n" ||
		!strings.Contains(got, "get or create, concurrently  works") {
		t.Errorf("conform --only \"get or create\": code %d, %q, %q", code, got, errs)
	}
	code, out, _ := call(t.Context(), "", "rm", "--delete-volumes", name, "no-such-sandbox")
	if code != codeFailed || strings.Count(out, ": deleted\n") != 3 {
		t.Errorf("rm of two, of which there is one: code %d, %q", code, out)
	}
	if held := left(t, "agent-sandbox.name="+name); len(held) > 0 {
		t.Errorf("left after rm --volumes: %v", held)
	}
}
