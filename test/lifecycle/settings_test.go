package lifecycle_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// listed returns what List shows of a sandbox.
func listed(t *testing.T, name string) sandbox.Info {
	t.Helper()
	list, err := harness.NewClient(t).List(t.Context(), sandbox.ListOptions{Prefix: name})
	if err != nil || len(list) != 1 {
		t.Fatalf("List: %+v, %v; want one sandbox", list, err)
	}
	return list[0]
}

// What options set can be read back by any client, the environment without its values.
func TestSettingsAreReadBack(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	name := harness.UniqueName(t)
	sb := harness.NewSandbox(t, sandbox.WithName(name), sandbox.WithRuntime("node20"), sandbox.WithIdleTimeout(time.Hour), sandbox.IgnoreDetached(), sandbox.WithVCPUs(0.5), sandbox.WithMemory(256<<20), sandbox.WithPidsLimit(300),
		sandbox.WithUser("1000:1000"), sandbox.WithWorkdir("/work"), sandbox.WithCommand("sleep", "infinity"),
		sandbox.WithTimeout(time.Hour), sandbox.WithStopTimeout(2*time.Second), sandbox.WithEnv(map[string]string{"TOKEN": "s3cret", "A": "1"}),
		sandbox.WithMounts(sandbox.Mount{Source: dir, Target: "/data", Mode: sandbox.RO}), sandbox.WithPorts(8080), sandbox.WithNewPrivileges())
	want := sandbox.Settings{
		Runtime: new("node20"), IdleTimeout: new(time.Hour), IgnoreDetached: true, User: new("1000:1000"), Workdir: new("/work"), Command: []string{"sleep", "infinity"},
		VCPUs: new(0.5), MemoryBytes: new(int64(256 << 20)), PidsLimit: new(300), OCIRuntime: new("runc"), NewPrivileges: true, Persistent: new(true),
		Timeout: new(time.Hour), StopTimeout: new(2 * time.Second), Ports: []int{8080}, Mounts: []sandbox.Mount{{Source: dir, Target: "/data", Mode: sandbox.RO}},
	}
	env, pending := []string{"A", "TOKEN"}, []string(nil)
	check := func(when string) {
		t.Helper()
		for call, st := range map[string]sandbox.Status{"Status": harness.Status(t, sb), "Inspect": harness.Inspect(t, name)} {
			if diff := cmp.Diff(want, st.Settings) + cmp.Diff(env, st.Env) + cmp.Diff(pending, st.Pending); diff != "" {
				t.Errorf("%s %s (-want +got):\n%s", call, when, diff)
			}
			if text, err := json.Marshal(st); err != nil || strings.Contains(string(text), "s3cret") {
				t.Errorf("%s %s shows the value of a variable, or %v: %s", call, when, err, text)
			}
		}
		want := want
		want.VCPUs, want.MemoryBytes, want.PidsLimit, want.OCIRuntime = nil, nil, nil, nil
		pending := pending[:min(len(pending), 4)] // without the timeouts, which are last
		i := listed(t, name)
		if diff := cmp.Diff(want, i.Settings) + cmp.Diff(pending, i.Pending); diff != "" {
			t.Errorf("List %s (-want +got):\n%s", when, diff)
		}
	}
	check("of a new sandbox")

	harness.Update(t, sb, sandbox.WithVCPUs(0.25), sandbox.WithMemory(128<<20))
	want.VCPUs, want.MemoryBytes = new(0.25), new(int64(128<<20))
	check("after an update of the limits")

	harness.Update(t, sb, sandbox.WithIdleTimeout(2*time.Hour))
	want.IdleTimeout, want.IgnoreDetached = new(2*time.Hour), false
	check("after an update of the idle timeout")

	harness.Update(t, sb, sandbox.WithTimeout(time.Minute), sandbox.WithStopTimeout(time.Second), sandbox.WithEnv(map[string]string{"B": "2"}),
		sandbox.WithCommand("sleep", "1000"), sandbox.WithPorts(), sandbox.WithMounts())
	want.Timeout, want.StopTimeout, env, want.Command = new(time.Minute), new(time.Second), []string{"A", "B", "TOKEN"}, []string{"sleep", "1000"}
	want.Ports, want.Mounts = nil, nil
	pending = []string{"command", "env", "mounts", "ports", "stopTimeout", "timeout"}
	check("after an update for the next session")

	if err := sb.ExtendTimeout(t.Context(), time.Minute); err != nil {
		t.Fatal(err)
	}
	check("after the running session was extended")

	harness.Update(t, sb, sandbox.WithTimeout(time.Hour), sandbox.WithStopTimeout(2*time.Second))
	want.Timeout, want.StopTimeout, pending = new(time.Hour), new(2*time.Second), []string{"command", "env", "mounts", "ports"}
	check("with the timeouts that the session has")

	if _, err := sb.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	check("of the stopped sandbox")
	if _, err := sb.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	pending = nil
	check("in the next session")
}

// variable is the value of an environment variable of commands, or "none".
func variable(t *testing.T, sb *sandbox.Sandbox, key string) string {
	t.Helper()
	return harness.Run(t, sb, "sh", "-c", `echo "${`+key+`-none}"`)
}

// Single variables, tags and mounts are taken away, and the rest stays.
func TestUpdateTakesAway(t *testing.T) {
	t.Parallel()
	dir, other := t.TempDir(), t.TempDir()
	sb := harness.NewSandbox(t, sandbox.WithName(harness.UniqueName(t)), harness.Quick, sandbox.WithEnv(map[string]string{"A": "1", "B": "2", "NODE_VERSION": "mine"}),
		sandbox.WithTags(map[string]string{"a": "1", "b": "2"}),
		sandbox.WithMounts(sandbox.Mount{Source: dir, Target: "/data", Mode: sandbox.RO}, sandbox.Mount{Source: other, Target: "/copy"}))
	copied := harness.CopiedVolume(t, sb, "/copy")
	harness.Write(t, sb, "/copy/file", "from inside")
	harness.Update(t, sb, sandbox.WithEnv(map[string]string{"C": "3", "D": "4"}))
	harness.Update(t, sb, sandbox.WithoutEnv("A", "D", "NODE_VERSION", "PATH", "NOT_SET"), sandbox.WithoutTag("a", "none"), sandbox.WithoutMount("/data/", "/nothing"), sandbox.WithTimeout(time.Hour))
	check := func(when string) {
		t.Helper()
		if got, want := variable(t, sb, "A")+variable(t, sb, "D")+variable(t, sb, "B")+variable(t, sb, "C"), "nonenone23"; got != want {
			t.Errorf("%s A, D, B and C are %s, want %s", when, got, want)
		}
		if got := variable(t, sb, "NODE_VERSION"); got == "mine" || got == "none" {
			t.Errorf("%s the image's NODE_VERSION is %q", when, got)
		}
		st := harness.Inspect(t, sb.Name())
		if diff := cmp.Diff([]string{"B", "C"}, st.Env); diff != "" {
			t.Errorf("%s the variables are (-want +got):\n%s", when, diff)
		}
		if diff := cmp.Diff(map[string]string{"b": "2"}, st.Tags); diff != "" {
			t.Errorf("%s the tags are (-want +got):\n%s", when, diff)
		}
		if diff := cmp.Diff([]sandbox.Mount{{Source: other, Volume: copied, Target: "/copy", Mode: sandbox.RWCopy}}, st.Settings.Mounts); diff != "" {
			t.Errorf("%s the mounts are (-want +got):\n%s", when, diff)
		}
	}
	check("after Update")
	if _, err := sb.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := sb.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	check("in the next session")
	if got := harness.Read(t, sb, "/copy/file"); got != "from inside" {
		t.Errorf("the copy that stayed has %q", got)
	}
	if len(sb.Mounts()) != 1 {
		t.Errorf("the mounts are %v, want the copy alone", sb.Mounts())
	}
	// What was taken away can be set again.
	harness.Update(t, sb, sandbox.WithEnv(map[string]string{"A": "again"}))
	if got := variable(t, sb, "A"); got != "again" {
		t.Errorf("A set again is %q", got)
	}
}

// A sandbox becomes persistent under another handle: Close of the one that created it keeps it, and its
// session goes on without that one's lease.
func TestSandboxBecomesPersistent(t *testing.T) {
	t.Parallel()
	c := harness.NewClient(t)
	sb, err := c.Create(t.Context(), harness.Quick)
	if err != nil {
		t.Fatal(err)
	}
	harness.Remove(t, c, sb.Name())
	harness.Write(t, sb, "file", "kept")
	other, err := harness.NewClient(t).Get(t.Context(), sb.ID())
	if err != nil {
		t.Fatal(err)
	}
	defer other.Detach()
	lease := func() time.Duration {
		t.Helper()
		reply, err := harness.AskPID1(t.Context(), harness.NewEngine(t), sb.Name(), wire.Control{Op: wire.OpStatus})
		if err != nil {
			t.Fatal(err)
		}
		return reply.LeaseLeft
	}
	if lease() == 0 {
		t.Fatal("a sandbox that is not persistent has no lease")
	}
	harness.Update(t, other, sandbox.WithPersistent(true))
	harness.Eventually(t, "the session has no lease", func() bool { return lease() == 0 })
	time.Sleep(11 * time.Second) // in which the handle that created it renewed the lease before
	harness.Eventually(t, "the session has no lease", func() bool { return lease() == 0 })
	if st := harness.Inspect(t, sb.Name()); !*st.Settings.Persistent || st.Pending != nil {
		t.Errorf("the settings are %+v", st.Settings)
	}
	if err := sb.Close(); err != nil {
		t.Fatal(err)
	}
	harness.Sweep(t)
	if st := harness.Inspect(t, other.Name()); st.State != sandbox.StateStopped {
		t.Errorf("after Close it is %s", st.State)
	}
	if got := harness.Read(t, other, "file"); got != "kept" {
		t.Errorf("its file has %q", got)
	}
	harness.Run(t, other, "true") // resumes it
	if lease() != 0 {
		t.Error("the next session has a lease")
	}
}

// A persistent sandbox that is made not persistent ends with the handle that did so.
func TestSandboxBecomesTransient(t *testing.T) {
	t.Parallel()
	sb := harness.NewSandbox(t, sandbox.WithName(harness.UniqueName(t)), harness.Quick)
	harness.Update(t, sb, sandbox.WithPersistent(false))
	if st := harness.Inspect(t, sb.Name()); *st.Settings.Persistent || st.State != sandbox.StateRunning {
		t.Errorf("it is %s, and its settings are %+v", st.State, st.Settings)
	}
	reply, err := harness.AskPID1(t.Context(), harness.NewEngine(t), sb.Name(), wire.Control{Op: wire.OpStatus})
	if err != nil || reply.LeaseLeft == 0 {
		t.Errorf("PID 1 says %+v, %v; want a lease", reply, err)
	}
	if err := sb.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := harness.NewClient(t).Inspect(t.Context(), sb.Name()); !errors.Is(err, sandbox.ErrNotFound) {
		t.Errorf("Inspect after Close: %v, want ErrNotFound", err)
	}
}

// A sweep keeps a sandbox that became persistent and whose session then ended by its timeout.
func TestSweepKeepsWhatBecamePersistent(t *testing.T) {
	t.Parallel()
	var sb *sandbox.Sandbox
	harness.Patiently(t, 4*time.Second, func(timeout time.Duration) (err error) {
		began := time.Now()
		if sb, err = harness.TrySandbox(t, harness.Quick, sandbox.WithTimeout(timeout)); err != nil {
			return err
		}
		err = sb.Update(t.Context(), sandbox.WithPersistent(true))
		if took := time.Since(began); err == nil && took >= timeout {
			return fmt.Errorf("it was updated after %v: its session may have ended before", took)
		}
		return err
	})
	harness.Eventually(t, "its session has ended", func() bool { return harness.Inspect(t, sb.ID()).State == sandbox.StateStopped })
	harness.Sweep(t)
	if st := harness.Inspect(t, sb.ID()); st.Reason != "timeout" || !*st.Settings.Persistent {
		t.Errorf("after a sweep it is %s because of %q, persistent: %v", st.State, st.Reason, *st.Settings.Persistent)
	}
}
