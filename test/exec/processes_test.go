package exec_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// detached starts a detached command and returns its ID.
func detached(t *testing.T, sb *sandbox.Sandbox, set func(*sandbox.Cmd), argv ...string) string {
	t.Helper()
	cmd := sb.Command(t.Context(), argv[0], argv[1:]...)
	cmd.Detached = true
	if set != nil {
		set(cmd)
	}
	if err := cmd.Start(); err != nil {
		t.Fatalf("start %q: %v", argv, err)
	}
	return cmd.ID()
}

// processesOf returns the processes that a client of its own lists, by ID.
func processesOf(t *testing.T, name string) (list []sandbox.ProcessInfo, byID map[string]sandbox.ProcessInfo) {
	t.Helper()
	sb, err := harness.NewClient(t).Get(t.Context(), name, sandbox.WithoutResume())
	if err != nil {
		t.Fatal(err)
	}
	defer sb.Detach()
	list, err = sb.Processes(t.Context())
	if err != nil {
		t.Fatalf("Processes: %v", err)
	}
	byID = map[string]sandbox.ProcessInfo{}
	for _, p := range list {
		byID[p.ID] = p
	}
	return list, byID
}

// ending says how a command ended.
func ending(p sandbox.ProcessInfo) string {
	if p.ExitCode == nil {
		return fmt.Sprintf("running %v", p.Running)
	}
	return fmt.Sprintf("running %v, exit code %d, signal %d, timed out %v, with times %v", p.Running, *p.ExitCode, p.Signal, p.TimedOut, !p.EndedAt.Before(p.StartedAt))
}

// Detached commands are listed while they run and after their end, and their exit codes outlive
// the session and the container.
func TestDetachedCommandsAreListed(t *testing.T) {
	t.Parallel()
	sb := harness.NewSandbox(t, sandbox.WithName(harness.UniqueName(t)), harness.Quick)
	if list, _ := processesOf(t, sb.Name()); len(list) != 0 {
		t.Errorf("a new sandbox has %+v", list)
	}
	failed := detached(t, sb, func(c *sandbox.Cmd) { c.Dir = "/tmp"; c.User = "1000:1000" }, "sh", "-c", "exit 7", "s3cret")
	timed := detached(t, sb, func(c *sandbox.Cmd) { c.Timeout = 100 * time.Millisecond }, "sleep", "1000")
	running := detached(t, sb, nil, "sleep", "infinity")
	long := detached(t, sb, nil, "sh", "-c", "exit 0", "x"+strings.Repeat("é", 5000), "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "13", "14", "15", "16")
	harness.Eventually(t, "the others have ended", func() bool {
		_, all := processesOf(t, sb.Name())
		return all[failed].ExitCode != nil && all[timed].ExitCode != nil && all[long].ExitCode != nil
	})
	list, all := processesOf(t, sb.Name())
	if len(list) != 4 || list[0].ID != failed || list[3].ID != long {
		t.Errorf("the list is %+v", list)
	}
	if p := all[failed]; ending(p) != "running false, exit code 7, signal 0, timed out false, with times true" || p.Dir != "/tmp" || p.User != "1000:1000" ||
		p.Path != "sh" || fmt.Sprint(p.Args) != "[sh -c exit 7 s3cret]" || time.Since(p.StartedAt) > time.Hour {
		t.Errorf("the failed one is %+v, %s", p, ending(p))
	}
	if p := all[timed]; ending(p) != "running false, exit code 137, signal 9, timed out true, with times true" {
		t.Errorf("the one that timed out is %+v, %s", p, ending(p))
	}
	if p := all[running]; ending(p) != "running true" || !p.EndedAt.IsZero() {
		t.Errorf("the one that runs is %+v, %s", p, ending(p))
	}
	if p := all[long]; len(p.Args) != wire.MaxProcessArgs || p.Args[3] != "x"+strings.Repeat("é", wire.MaxProcessText/2-1) {
		t.Errorf("the one with many long arguments has %d, %q", len(p.Args), p.Args)
	}

	if _, err := sb.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	past := func(when string) {
		t.Helper()
		list, all := processesOf(t, sb.Name())
		if text := fmt.Sprintf("%+v", list); len(list) != 4 || strings.Contains(text, "s3cret") {
			t.Errorf("%s the list is %s", when, text)
		}
		if p := all[failed]; ending(p) != "running false, exit code 7, signal 0, timed out false, with times true" || p.Args != nil || p.Dir != "/tmp" || p.Path != "sh" {
			t.Errorf("%s the failed one is %+v, %s", when, p, ending(p))
		}
		if p := all[running]; p.Running {
			t.Errorf("%s the one that ran is %+v, %s", when, p, ending(p))
		}
	}
	past("after Stop")
	if st := harness.Inspect(t, sb.Name()); st.State != sandbox.StateStopped {
		t.Errorf("Processes resumed the sandbox: it is %s", st.State)
	}
	harness.Update(t, sb, sandbox.WithEnv(map[string]string{"A": "1"})) // needs a new container
	if _, err := sb.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	past("in the next session")
	cmd, err := sb.Process(t.Context(), failed)
	if err != nil {
		t.Fatalf("Process of an earlier session: %v", err)
	}
	out, err := cmd.Output()
	if harness.ExitCode(err) != 7 || len(out) != 0 || cmd.Path != "sh" {
		t.Errorf("Output of %q of an earlier session: %q, %v; want exit code 7", cmd.Path, out, err)
	}
	if _, err := sb.Process(t.Context(), "nosuchid"); !errors.Is(err, sandbox.ErrProcessNotFound) {
		t.Errorf("Process of no command: %v", err)
	}
	fork, err := harness.NewClient(t).Fork(t.Context(), sb.Name())
	if err != nil {
		t.Fatal(err)
	}
	harness.Remove(t, harness.NewClient(t), fork.Name())
	defer fork.Detach()
	if list, _ := processesOf(t, fork.Name()); len(list) != 0 {
		t.Errorf("a fork has the commands of its source: %+v", list)
	}
}

// PID 1 has no time to write anything when the engine kills the session.
func TestExitCodesOutliveASessionThatIsKilled(t *testing.T) {
	t.Parallel()
	sb := harness.NewSandbox(t, sandbox.WithName(harness.UniqueName(t)), harness.Quick)
	running := detached(t, sb, nil, "sleep", "infinity")
	failed := detached(t, sb, nil, "sh", "-c", "exit 7")
	killed := detached(t, sb, nil, "sh", "-c", "kill -9 $$")
	harness.Eventually(t, "two of them have ended", func() bool {
		_, all := processesOf(t, sb.Name())
		return all[failed].ExitCode != nil && all[killed].ExitCode != nil
	})
	if err := harness.NewEngine(t).KillContainer(t.Context(), "agent-sandbox-"+sb.Name(), "KILL"); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, "the session has ended", func() bool { return harness.Inspect(t, sb.Name()).State == sandbox.StateStopped })
	check := func(when string) {
		t.Helper()
		_, all := processesOf(t, sb.Name())
		for id, want := range map[string]string{
			failed:  "running false, exit code 7, signal 0, timed out false, with times true",
			killed:  "running false, exit code 137, signal 9, timed out false, with times true",
			running: "running false", // it is not known how it ended
		} {
			if p, listed := all[id]; !listed || ending(p) != want {
				t.Errorf("%s %q is %s, listed: %v; want %s", when, p.Path, ending(p), listed, want)
			}
		}
	}
	check("after the session was killed")
	if _, err := sb.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	check("in the next session")
}

// What root inside makes of the record misleads nobody but itself.
func TestRecordOfProcessesIsHostile(t *testing.T) {
	t.Parallel()
	sb := harness.NewSandbox(t, sandbox.WithName(harness.UniqueName(t)), harness.Quick)
	known := detached(t, sb, nil, "true")
	// The keeper writes the record once more when the command ends.
	harness.Eventually(t, "the command has ended", func() bool {
		_, all := processesOf(t, sb.Name())
		return all[known].ExitCode != nil
	})
	many := `{"id":"a","sandbox":"` + sb.ID() + `","path":"\u001b[2J","args":["` + strings.Repeat("x", 1000) + `"],"live":true},`
	for name, script := range map[string]string{
		"a FIFO":           "mkfifo RECORD",
		"a link":           "ln -s /etc/shadow RECORD",
		"a directory":      "mkdir RECORD",
		"an endless file":  "truncate -s 1T RECORD",
		"no JSON":          "echo '[{' >RECORD",
		"another shape":    `echo '[{"id":{"x":1}}]' >RECORD`,
		"a huge list":      "cat >RECORD; exec </dev/null",
		"an odd ID":        `echo '[{"id":"../x","sandbox":"` + sb.ID() + `"}]' >RECORD`,
		"another's record": `echo '[{"id":"b","sandbox":"other"}]' >RECORD`,
	} {
		t.Run(name, func(t *testing.T) {
			cmd := sb.Command(t.Context(), "sh", "-ec", strings.ReplaceAll("rm -rf RECORD; "+script, "RECORD", wire.ProcessesFile))
			cmd.Stdin = strings.NewReader("[" + strings.Repeat(many, 1000) + strings.TrimSuffix(many, ",") + "]")
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			if _, all := processesOf(t, sb.Name()); all[known].ID != known || len(all) > 2 {
				t.Errorf("while it runs the list is %+v", all)
			}
			if _, err := sb.Stop(t.Context()); err != nil {
				t.Fatal(err)
			}
			list, err := sb.Processes(t.Context())
			if len(list) > 1 {
				t.Errorf("the stopped sandbox has %d processes, %v", len(list), err)
			}
			for _, p := range list {
				if p.Running || p.ID != "a" || len(strings.Join(p.Args, "")) > wire.MaxProcessText {
					t.Errorf("the stopped sandbox has %+v", p)
				}
			}
			if strings.Contains(fmt.Sprint(err), "root:") || errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("Processes: %v", err)
			}
			// A keeper that finds the file starts all the same.
			known = detached(t, sb, nil, "true")
			if _, all := processesOf(t, sb.Name()); all[known].ID != known {
				t.Errorf("a command after that is not listed: %+v", all)
			}
		})
	}
}

// The record of detached commands is what is kept of a container without other files of its own,
// also where the engine has to commit it.
func TestDetachedCommandsAreListedAfterACommit(t *testing.T) {
	t.Parallel()
	sb := harness.NewSandbox(t, sandbox.WithName(harness.UniqueName(t)))
	id := detached(t, sb, nil, "sh", "-c", "exit 7")
	harness.Eventually(t, "the command has ended", func() bool {
		_, all := processesOf(t, sb.Name())
		return all[id].ExitCode != nil
	})
	if _, err := sb.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	harness.Update(t, sb, sandbox.WithEnv(map[string]string{"A": "1"})) // needs a new container
	other, err := harness.NewClient(t, harness.Behind(t, harness.WithoutLayers)).Get(t.Context(), sb.Name())
	if err != nil {
		t.Fatal(err)
	}
	defer other.Detach()
	if list, all := processesOf(t, sb.Name()); len(list) != 1 || all[id].ExitCode == nil || *all[id].ExitCode != 7 {
		t.Errorf("in the next container the list is %+v", list)
	}
}
