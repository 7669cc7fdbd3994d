package exec_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// newLogged is a sandbox whose main process is the script.
func newLogged(t *testing.T, script string) *sandbox.Sandbox {
	t.Helper()
	return harness.NewSandbox(t, sandbox.WithName(harness.UniqueName(t)), sandbox.WithCommand("sh", "-c", script))
}

// readLog reads until the log ends or, with n, after n lines.
func readLog(t *testing.T, sb *sandbox.Sandbox, o sandbox.LogOptions, n int) []sandbox.LogLine {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	var lines []sandbox.LogLine
	for l, err := range sb.Logs(ctx, o) {
		if err != nil {
			t.Fatalf("Logs(%+v) after %d lines: %v", o, len(lines), err)
		}
		if lines = append(lines, l); len(lines) == n {
			break
		}
	}
	return lines
}

// Both streams, each line with its time.
func TestLogsTellStdoutFromStderr(t *testing.T) {
	t.Parallel()
	before := time.Now().Add(-time.Second)
	sb := newLogged(t, "echo a; echo b >&2; exec sleep 1000")
	lines := readLog(t, sb, sandbox.LogOptions{Follow: true}, 2)
	slices.SortFunc(lines, func(a, b sandbox.LogLine) int { return strings.Compare(a.Stream, b.Stream) })
	if len(lines) != 2 || lines[0].Stream != "stderr" || lines[0].Text != "b" || lines[1].Stream != "stdout" || lines[1].Text != "a" {
		t.Fatalf("Logs = %+v", lines)
	}
	for _, l := range lines {
		if l.Time.Before(before) || l.Time.After(time.Now().Add(time.Second)) {
			t.Errorf("%q was written at %v", l.Text, l.Time)
		}
	}
}

// The last hundred lines, then new ones.
func TestLogsTailThenFollow(t *testing.T) {
	t.Parallel()
	sb := newLogged(t, `i=1; while [ $i -le 150 ]; do echo line $i; i=$((i+1)); done
		while [ ! -e /workspace/go ]; do sleep 0.02; done; echo new; exec sleep 1000`)
	harness.Eventually(t, "150 lines are there", func() bool { return len(readLog(t, sb, sandbox.LogOptions{}, 0)) == 150 })
	n := 0
	proxy := enginetest.NewProxy(t)
	same, err := harness.NewClient(t, sandbox.WithHost(proxy.Host())).Get(t.Context(), sb.Name())
	if err != nil {
		t.Fatal(err)
	}
	defer same.Detach()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	for l, err := range same.Logs(ctx, sandbox.LogOptions{Tail: 100, Follow: true}) {
		if err != nil {
			t.Fatal(err)
		}
		n++
		if want := fmt.Sprintf("line %d", 50+n); n <= 100 && l.Text != want {
			t.Fatalf("line %d of the tail is %q, want %q", n, l.Text, want)
		}
		if n == 100 {
			harness.Run(t, sb, "touch", "/workspace/go")
		}
		if n == 101 {
			if l.Text != "new" {
				t.Errorf("after the tail: %q, want new", l.Text)
			}
			break
		}
	}
	if n != 101 {
		t.Errorf("the log ended after %d lines", n)
	}
	if all := proxy.Requests(); !slices.ContainsFunc(all, func(r string) bool {
		return strings.Contains(r, "/logs?") && strings.Contains(r, "follow=1") && strings.Contains(r, "tail=100")
	}) {
		t.Errorf("requests %q, want one with follow=1 and tail=100", all)
	}
	if got := readLog(t, sb, sandbox.LogOptions{Tail: 1}, 0); len(got) != 1 || got[0].Text != "new" {
		t.Errorf("Tail 1: %+v", got)
	}
	if got := readLog(t, sb, sandbox.LogOptions{Tail: -1}, 0); len(got) != 0 {
		t.Errorf("Tail -1: %+v", got)
	}
	all := readLog(t, sb, sandbox.LogOptions{}, 0)
	if got := readLog(t, sb, sandbox.LogOptions{Since: all[150].Time}, 0); len(got) != 1 || got[0].Text != "new" {
		t.Errorf("Since the last line: %+v", got)
	}
}

// Lines longer than what the engine keeps in one piece come back whole, also when the
// other stream writes in between and when they never end.
func TestLogsPutLongLinesTogether(t *testing.T) {
	t.Parallel()
	sb := newLogged(t, `head -c 200000 /dev/zero | tr '\0' x; echo end
		echo
		head -c 40000 /dev/zero | tr '\0' y; sleep 0.2; echo between >&2; sleep 0.2; head -c 40000 /dev/zero | tr '\0' z; echo
		printf 'no end'; sleep 0.2; echo done >&2`)
	var out, errs []string
	read := func() {
		out, errs = nil, nil
		for _, l := range readLog(t, sb, sandbox.LogOptions{}, 0) {
			if l.Stream == sandbox.Stderr {
				errs = append(errs, l.Text)
			} else {
				out = append(out, l.Text)
			}
		}
	}
	harness.Eventually(t, "the main process has written all", func() bool {
		read()
		return len(errs) == 2
	})
	// The engine waits for the rest of a line, until there can be none.
	if _, err := sb.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if read(); len(out) != 4 {
		t.Fatalf("%d lines on stdout, want 4", len(out))
	}
	for i, want := range []string{
		strings.Repeat("x", 200000) + "end", "", strings.Repeat("y", 40000) + strings.Repeat("z", 40000), "no end",
	} {
		if out[i] != want {
			t.Errorf("line %d has %d bytes (%.20q…), want %d (%.20q…)", i, len(out[i]), out[i], len(want), want)
		}
	}
	if !slices.Equal(errs, []string{"between", "done"}) {
		t.Errorf("stderr: %q", errs)
	}
}

// The log of a stopped sandbox is there, from all its sessions, and reading it
// starts nothing.
func TestLogsOfAStoppedSandbox(t *testing.T) {
	t.Parallel()
	sb := newLogged(t, "echo session; exec sleep 1000")
	readLog(t, sb, sandbox.LogOptions{Follow: true}, 1)
	if _, err := sb.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := sb.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	readLog(t, sb, sandbox.LogOptions{Follow: true}, 2)
	if _, err := sb.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, follow := range []bool{false, true} {
		if got := readLog(t, sb, sandbox.LogOptions{Follow: follow}, 0); len(got) != 2 {
			t.Errorf("Logs of a stopped sandbox, Follow %v: %+v, want a line of each session", follow, got)
		}
	}
	if st := harness.Inspect(t, sb.Name()); st.State != sandbox.StateStopped {
		t.Errorf("reading the log started it: it is %s", st.State)
	}
}

// What is in the log is what was written: by the main process and by a command, on both streams, in several sessions, with lines of
// any length, characters of one to four bytes, and a last line that has no end.
func TestLogsAreWhatWasWritten(t *testing.T) {
	t.Parallel()
	for _, seed := range harness.Seeds(3, 100) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			logsAreWhatWasWritten(t, rand.New(rand.NewPCG(seed, 34)))
		})
	}
}

// written is a text of some lines. Those of the main process are in ASCII where they are so long that the engine cuts them.
func written(g *rand.Rand, main bool) string {
	var b strings.Builder
	for range 1 + g.IntN(12) {
		length, alphabet := []int{0, 1, 50, 4095, 4096, 4200, 16383, 16384, 16385, 40000}[g.IntN(10)], []string{"x", "é", "€", "😀"}
		if main && length > 16000 {
			alphabet = alphabet[:1]
		}
		for line := 0; line < length; {
			c := alphabet[g.IntN(len(alphabet))]
			b.WriteString(c)
			line += len(c)
		}
		b.WriteByte('\n')
	}
	if g.IntN(3) > 0 {
		return b.String() + []string{"no end", "kein Ende: ü", strings.Repeat("y", 16390)}[g.IntN(3)]
	}
	return b.String()
}

func logsAreWhatWasWritten(t *testing.T, g *rand.Rand) {
	sb := newLogged(t, `cd /workspace; until rm go 2>/dev/null; do sleep 0.02; done; cat out; cat err >&2; touch done; exec sleep 1000`)
	want := map[string][]string{}
	note := func(who, text string) {
		lines := strings.Split(text, "\n")
		if lines[len(lines)-1] == "" {
			lines = lines[:len(lines)-1]
		}
		want[who] = append(want[who], lines...)
	}
	for session := range 3 {
		ends := false
		if session > 0 {
			if _, err := sb.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		for _, stream := range []string{"err", "out"} {
			text := written(g, true)
			note("std"+stream+" of main", text)
			ends = strings.HasSuffix(text, "\n")
			harness.Write(t, sb, "/workspace/"+stream, text)
		}
		// The command first: its lines would come in the middle of one of the main process's that has no end.
		text := written(g, false)
		harness.Write(t, sb, "/workspace/command", text)
		cmd := sb.Command(t.Context(), "sh", "-c", "cat /workspace/command; cat /workspace/command >&2")
		cmd.Detached = true
		if err := cmd.Run(); err != nil {
			t.Fatal(err)
		}
		note("stdout of "+cmd.ID(), text)
		note("stderr of "+cmd.ID(), text)
		harness.Write(t, sb, "/workspace/go", "")
		harness.WaitForFile(t, sb, "/workspace/done")
		if ends { // else it would come within a line of the main process
			late := sb.Command(t.Context(), "sh", "-c", "echo late")
			late.Detached = true
			if err := late.Run(); err != nil {
				t.Fatal(err)
			}
			note("stdout of "+late.ID(), "late\n")
		}
		harness.Run(t, sb, "rm", "/workspace/done")
		if session < 2 {
			if _, err := sb.Stop(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := sb.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := map[string][]string{}
	for _, l := range readLog(t, sb, sandbox.LogOptions{}, 0) {
		who := l.Stream + " of " + cmp.Or(l.Command, "main")
		got[who] = append(got[who], l.Text)
	}
	for who, lines := range want {
		if len(got[who]) != len(lines) {
			t.Errorf("%s: %d lines, want %d", who, len(got[who]), len(lines))
		}
		for i := range min(len(lines), len(got[who])) {
			if lines[i] != got[who][i] {
				t.Errorf("%s: line %d of %d bytes is %d bytes, or others: %.60q…%q", who, i, len(lines[i]), len(got[who][i]), got[who][i], tail(got[who][i]))
				break
			}
		}
	}
	for who := range got {
		if want[who] == nil {
			t.Errorf("%s was not written: %q", who, got[who])
		}
	}
}

// Where a log is not what was written: rows of docs/differences.md.
func TestLogsAreNotWhatWasWritten(t *testing.T) {
	t.Parallel()
	sb := newLogged(t, `cd /workspace; printf 'a\377b\n'; head -c 16383 /dev/zero | tr '\0' x; echo é; printf 'no end, session %s' "$(cat session 2>/dev/null)"; touch done; exec sleep 1000`)
	text := func() (main, commands []string) {
		for _, l := range readLog(t, sb, sandbox.LogOptions{}, 0) {
			if l.Command == "" {
				main = append(main, strings.ReplaceAll(l.Text, strings.Repeat("x", 16383), "16383 x"))
			} else {
				commands = append(commands, l.Text)
			}
		}
		return main, commands
	}
	for session := range 3 {
		if session > 0 {
			if _, err := sb.Stop(t.Context()); err != nil {
				t.Fatal(err)
			}
			if _, err := sb.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		harness.WaitForFile(t, sb, "/workspace/done")
		harness.Run(t, sb, "sh", "-c", fmt.Sprintf("rm done; echo %d >session", session+2))
		cmd := sb.Command(t.Context(), "printf", `command\r\n`)
		cmd.Detached = true
		if err := cmd.Run(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := sb.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	main, commands := text()
	const cut = "16383 x\uFFFD\uFFFD"
	if want := []string{"a\uFFFDb", cut, "no end, session a\uFFFDb", cut, "no end, session 2", "a\uFFFDb", cut, "no end, session 3"}; !slices.Equal(main, want) {
		t.Errorf("the main process: %q, want %q", main, want)
	}
	if want := []string{"command", "command", "command"}; !slices.Equal(commands, want) {
		t.Errorf("commands: %q, want %q", commands, want)
	}
}

// What the main process wrote is what "docker logs" has, for each choice of lines.
func TestLogsAreThoseOfDockerLogs(t *testing.T) {
	t.Parallel()
	sb := newLogged(t, `i=0; while [ $i -lt 60 ]; do echo "out $i é"; [ $((i % 3)) != 0 ] || echo "err $i" >&2; [ $((i % 20)) != 0 ] || echo; i=$((i+1)); done; printf 'no end'; touch /workspace/done; exec sleep 1000`)
	harness.WaitForFile(t, sb, "/workspace/done")
	for _, session := range []string{"running", "stopped"} {
		if session == "stopped" {
			if _, err := sb.Stop(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		var all []sandbox.LogLine
		harness.Eventually(t, "the log is complete", func() bool {
			all = readLog(t, sb, sandbox.LogOptions{}, 0)
			return len(all) >= 83 // without the line that has no end yet
		})
		times := []time.Time{{}, all[0].Time, all[30].Time, all[30].Time.Add(1), all[len(all)-1].Time, time.Now()}
		for _, tail := range []int{0, 1, 7, 1000} {
			for _, since := range times {
				for _, follow := range []bool{false, true} {
					args := []string{"logs", "--timestamps"}
					if tail > 0 {
						args = append(args, "--tail", strconv.Itoa(tail))
					}
					if !since.IsZero() {
						args = append(args, "--since", since.Format(time.RFC3339Nano))
					}
					if follow && session == "stopped" {
						args = append(args, "--follow")
					}
					docker := exec.CommandContext(t.Context(), "docker", append(args, "agent-sandbox-"+sb.Name())...)
					docker.Env = append(os.Environ(), "DOCKER_HOST="+enginetest.EngineHost())
					var want, got [2]strings.Builder
					docker.Stdout, docker.Stderr = &want[0], &want[1]
					if err := docker.Run(); err != nil {
						t.Fatalf("%q: %v", args, err)
					}
					lines := 0                          // all
					if follow && session == "running" { // which has no end
						if lines = strings.Count(want[0].String()+want[1].String(), "\n"); lines == 0 {
							continue
						}
					}
					for _, l := range readLog(t, sb, sandbox.LogOptions{Tail: tail, Since: since, Follow: follow}, lines) {
						to := &got[0]
						if l.Stream == sandbox.Stderr {
							to = &got[1]
						}
						fmt.Fprintf(to, "%s %s\n", l.Time.UTC().Format("2006-01-02T15:04:05.000000000Z"), l.Text)
					}
					for i, stream := range []string{"stdout", "stderr"} {
						if a, b := strings.TrimSuffix(want[i].String(), "\n"), strings.TrimSuffix(got[i].String(), "\n"); a != b {
							t.Errorf("%s, Follow %t, docker %q: %s is\n%s\nwant\n%s", session, follow, args, stream, b, a)
						}
					}
				}
			}
		}
	}
}

func tail(s string) string { return s[max(0, len(s)-30):] }

// Detached commands are in the log, each line under its command's ID, and stay
// there when the session is over.
func TestLogsHaveDetachedCommands(t *testing.T) {
	t.Parallel()
	sb := newLogged(t, `printf 'main without '; sleep 3; echo end; exec sleep 1000`)
	long := strings.Repeat("0123456789", 5000)
	cmd := sb.Command(t.Context(), "sh", "-c", "echo one; echo two >&2; echo "+long+"; echo; printf 'no end'")
	cmd.Detached = true
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	var out, errs, main []string
	read := func() {
		out, errs, main = nil, nil, nil
		for _, l := range readLog(t, sb, sandbox.LogOptions{}, 0) {
			switch {
			case l.Command == "":
				main = append(main, l.Text)
			case l.Command != cmd.ID():
				t.Errorf("a line of %q: %+v", l.Command, l)
			case l.Stream == sandbox.Stderr:
				errs = append(errs, l.Text)
			default:
				out = append(out, l.Text)
			}
		}
	}
	harness.Eventually(t, "all is in the log", func() bool {
		read()
		return len(out) == 4 && len(errs) == 1 && len(main) == 1 && main[0] == "main without end"
	})
	if _, err := sb.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	read()
	if want := []string{"one", long, "", "no end"}; !slices.Equal(out, want) {
		t.Errorf("stdout of the command: %.100q", out)
	}
	if !slices.Equal(errs, []string{"two"}) || !slices.Equal(main, []string{"main without end"}) {
		t.Errorf("stderr of the command %q, main process %q", errs, main)
	}
}

// Root inside can put anything into the log, but nothing that stops its reader.
func TestLogsSurviveWrongFrames(t *testing.T) {
	t.Parallel()
	sb := newLogged(t, `m=$(printf '\036agent-sandbox '); for f in "$m" "$m." "$m x" "$m x." "${m}x ? y" "$m  . y" "${m}id . fine"; do echo "$f"; done; echo last; exec sleep 1000`)
	var all []sandbox.LogLine
	harness.Eventually(t, "all is in the log", func() bool {
		all = readLog(t, sb, sandbox.LogOptions{}, 0)
		return len(all) > 0 && all[len(all)-1].Text == "last"
	})
	if len(all) != 8 || all[6].Command != "id" || all[6].Text != "fine" {
		t.Errorf("Logs = %+v", all)
	}
	for _, l := range all[:6] {
		if l.Command != "" || !strings.HasPrefix(l.Text, "\x1e") {
			t.Errorf("a frame that is none: %+v", l)
		}
	}
}

// Ten followers end without an error when the session is stopped under them, with
// all its last words.
func TestLogsFollowersEndWithTheSession(t *testing.T) {
	t.Parallel()
	sb := newLogged(t, "exec 2>/dev/null; trap 'echo bye; exit' TERM; echo hello; while :; do sleep 0.02; done")
	var following, done sync.WaitGroup
	for range 10 {
		following.Add(1)
		done.Go(func() {
			var got []string
			for l, err := range sb.Logs(t.Context(), sandbox.LogOptions{Follow: true}) {
				if err != nil {
					t.Errorf("Logs: %v", err)
				}
				if got = append(got, l.Text); len(got) == 1 {
					following.Done()
				}
			}
			if !slices.Equal(got, []string{"hello", "bye"}) {
				t.Errorf("followed %q, want hello and bye", got)
			}
		})
	}
	following.Wait()
	if _, err := sb.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	done.Wait()
}

// An engine that goes away is an error, not the end of the log.
func TestLogsTellOfALostEngine(t *testing.T) {
	t.Parallel()
	proxy := enginetest.NewProxy(t)
	made := newLogged(t, "echo hello; exec sleep 1000")
	sb, err := harness.NewClient(t, sandbox.WithHost(proxy.Host())).Get(t.Context(), made.Name())
	if err != nil {
		t.Fatal(err)
	}
	defer sb.Detach()
	var last error
	n := 0
	for _, err := range sb.Logs(t.Context(), sandbox.LogOptions{Follow: true}) {
		if n++; n == 1 {
			proxy.Refuse(true)
			proxy.CloseAll()
		}
		last = err
	}
	if n != 2 || !errors.Is(last, sandbox.ErrEngineUnavailable) {
		t.Errorf("after the engine went away Logs yielded %d times, at last %v; want ErrEngineUnavailable", n, last)
	}
}

// The caller's context ends a log that says nothing.
func TestLogsEndWithTheContext(t *testing.T) {
	t.Parallel()
	sb := harness.NewSandbox(t, sandbox.WithName(harness.UniqueName(t)))
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(300*time.Millisecond, cancel)
	var last error
	for l, err := range sb.Logs(ctx, sandbox.LogOptions{Follow: true}) {
		if err == nil {
			t.Errorf("a sandbox without a main process wrote %+v", l)
		}
		last = err
	}
	if !errors.Is(last, context.Canceled) {
		t.Errorf("Logs ended with %v, want context.Canceled", last)
	}
	if got := readLog(t, sb, sandbox.LogOptions{}, 0); len(got) != 0 {
		t.Errorf("Logs = %+v", got)
	}
}

// Without a sandbox there is no log.
func TestLogsOfADeletedSandbox(t *testing.T) {
	t.Parallel()
	sb := harness.NewSandbox(t, sandbox.WithName(harness.UniqueName(t)))
	if _, err := harness.NewClient(t).Delete(t.Context(), sb.Name(), sandbox.DeleteOptions{Volumes: true}); err != nil {
		t.Fatal(err)
	}
	for _, err := range sb.Logs(t.Context(), sandbox.LogOptions{}) {
		if !errors.Is(err, sandbox.ErrNotFound) {
			t.Errorf("Logs: %v, want ErrNotFound", err)
		}
	}
}

// Ten followers see all that is written, each stream in its order, until the
// session is stopped under them, and then let go of everything.
func TestLogsFollowersSeeAllInOrder(t *testing.T) {
	t.Parallel()
	followers(t, 5*time.Second)
}

// The same for a minute.
func TestLogsFollowersSeeAllInOrderSoak(t *testing.T) {
	harness.Soak(t)
	followers(t, time.Minute)
}

func followers(t *testing.T, length time.Duration) {
	sb := newLogged(t, "i=0; while :; do i=$((i+1)); echo $i; echo $i >&2; sleep 0.002; done")
	const n = 10
	var last [n]map[string]int
	pprof.Do(t.Context(), pprof.Labels("trial", t.Name()), func(ctx context.Context) {
		c, err := harness.Open()
		if err != nil {
			t.Fatal(err)
		}
		same, err := c.Get(ctx, sb.Name())
		if err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		for i := range last {
			last[i] = map[string]int{}
			all.Go(func() {
				for l, err := range same.Logs(ctx, sandbox.LogOptions{Follow: true}) {
					if err != nil {
						t.Errorf("Logs: %v", err)
						return
					}
					if last[i][l.Stream]++; l.Text != strconv.Itoa(last[i][l.Stream]) {
						t.Errorf("line %d of %s is %q", last[i][l.Stream], l.Stream, l.Text)
						return
					}
				}
			})
		}
		time.Sleep(length) // while they follow
		if _, err := same.Stop(ctx); err != nil {
			t.Error(err)
		}
		all.Wait()
		same.Detach()
		c.Close()
	})
	if left := harness.LabelledGoroutines(t.Name(), 2*time.Minute); left != "" {
		t.Errorf("goroutines are left:\n%s", left)
	}
	want := map[string]int{}
	for _, l := range readLog(t, sb, sandbox.LogOptions{}, 0) {
		want[l.Stream]++
	}
	for i := range last {
		if !maps.Equal(last[i], want) || want[sandbox.Stdout] < 5 {
			t.Errorf("a follower saw %v lines of %v", last[i], want)
		}
	}
	t.Logf("%d followers saw %v lines each in %v", n, want, length)
}

// Of a million lines the last hundred come as soon as the engine has them, each
// stream is in its order, and ten followers lose nothing of what comes then.
func TestLogsOfAMillionLinesSoak(t *testing.T) {
	harness.Soak(t)
	sb := newLogged(t, `seq 500000 & seq 500000 >&2; wait; echo last; while [ ! -e /workspace/go ]; do sleep 0.05; done
		i=0; while [ $i -lt 20000 ]; do echo new $i; i=$((i+1)); done; exec sleep 1000`)
	// The engine reads the streams beside each other: the last line of all is of either.
	ends := map[string]string{sandbox.Stdout: "last", sandbox.Stderr: "500000"}
	for l, err := range sb.Logs(t.Context(), sandbox.LogOptions{Follow: true}) {
		if err != nil {
			t.Fatal(err)
		}
		if l.Text == ends[l.Stream] {
			delete(ends, l.Stream)
		}
		if len(ends) == 0 {
			break
		}
	}
	eng := harness.NewEngine(t)
	for range 3 {
		begin := time.Now()
		log, err := eng.ReadLog(t.Context(), "agent-sandbox-"+sb.Name(), engine.LogSpec{Tail: 100, Follow: true})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := log.Next(); err != nil {
			t.Fatal(err)
		}
		own := time.Since(begin)
		log.Close()
		begin = time.Now()
		readLog(t, sb, sandbox.LogOptions{Tail: 100, Follow: true}, 1)
		t.Logf("the first of the last 100 lines took %v, and the engine itself %v", time.Since(begin), own)
	}
	// The engine has forgotten the oldest.
	last := map[string]int{}
	for _, l := range readLog(t, sb, sandbox.LogOptions{}, 0) {
		n, err := strconv.Atoi(l.Text)
		if before, ok := last[l.Stream]; l.Text != "last" && (err != nil || ok && n != before+1) {
			t.Fatalf("after %d on %s comes %q", before, l.Stream, l.Text)
		}
		last[l.Stream] = max(n, last[l.Stream])
	}
	if last[sandbox.Stdout] != 500000 || last[sandbox.Stderr] != 500000 {
		t.Errorf("the streams end with %v", last)
	}
	var following, all sync.WaitGroup
	for range 10 {
		following.Add(1)
		all.Go(func() {
			n := -1
			there := sync.OnceFunc(following.Done)
			defer there()
			for l, err := range sb.Logs(t.Context(), sandbox.LogOptions{Tail: 1, Follow: true}) {
				if err != nil {
					t.Errorf("after %d lines: %v", n, err)
					return
				}
				if want := fmt.Sprint("new ", n); n >= 0 && l.Text != want {
					t.Errorf("line %q, want %q", l.Text, want)
					return
				}
				there()
				if n++; n == 20000 {
					return
				}
			}
		})
	}
	following.Wait()
	harness.Run(t, sb, "touch", "/workspace/go")
	all.Wait()
}

// The engine rotates the log and forgets the oldest. What it keeps is read in order and without a
// gap, whole lines of the main process and of detached commands, however they lie across its files.
func TestLogsOfARotatedLog(t *testing.T) {
	t.Parallel()
	const long = 40_000 // more than two pieces of the engine's
	sb := newLogged(t, fmt.Sprintf(`node -e 'for (let i = 0; i < 1100; i++) require("fs").writeSync(1, i + ":" + "x".repeat(%d) + "\n")'; exec sleep 1000`, long))
	harness.Eventually(t, "the last line of the main process", func() bool {
		return lastNumber(readLog(t, sb, sandbox.LogOptions{Tail: 4}, 0)) == 1099
	})
	cmd := sb.Command(t.Context(), "seq", "1", "2000")
	cmd.Detached = true
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	var main, command []int
	harness.Eventually(t, "the last line of the command", func() bool {
		main, command = nil, nil
		for i, l := range readLog(t, sb, sandbox.LogOptions{}, 0) {
			number, rest, whole := strings.Cut(l.Text, ":")
			n, err := strconv.Atoi(number)
			switch {
			case l.Command != "" && err == nil:
				command = append(command, n)
			case whole && err == nil && len(rest) == long:
				main = append(main, n)
			case i == 0 && strings.Trim(l.Text, "x") == "": // of the oldest line the engine may have forgotten the beginning
			default:
				t.Fatalf("line %d is %.60q, %d bytes", i, l.Text, len(l.Text))
			}
		}
		return len(command) == 2000
	})
	if len(main) < 450 || len(main) == 1100 || main[len(main)-1] != 1099 || !consecutive(main) || !consecutive(command) {
		t.Errorf("of the main process there are %d lines, of the command %d, not all in order to the last", len(main), len(command))
	}
}

// lastNumber is that of the last line that has one, -1 for none.
func lastNumber(lines []sandbox.LogLine) int {
	for _, l := range slices.Backward(lines) {
		if number, _, whole := strings.Cut(l.Text, ":"); whole {
			if n, err := strconv.Atoi(number); err == nil {
				return n
			}
		}
	}
	return -1
}

func consecutive(list []int) bool {
	for i, n := range list {
		if n != list[0]+i {
			return false
		}
	}
	return true
}
