package lifecycle_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

const idleOfUsers = 5 * time.Second

func init() {
	// idle-user uses a sandbox with an idle timeout by a command, says so, and waits to be
	// killed. With "detached" it leaves one in it, which is no use of this sandbox.
	harness.AddRole("idle-user", func(args []string) error {
		ctx := context.Background()
		sb, err := sandbox.GetOrCreate(ctx, args[0], sandbox.WithIdleTimeout(idleOfUsers), sandbox.IgnoreDetached(), harness.Quick)
		if err != nil {
			return err
		}
		cmd := sb.Command(ctx, "sh", "-c", "date >>/workspace/uses; echo used; exec sleep 1000")
		cmd.Detached = args[1] == "detached"
		out, err := cmd.StdoutPipe()
		if err != nil {
			return err
		}
		if err := cmd.Start(); err != nil {
			return err
		}
		if _, err := out.Read(make([]byte, 4)); err != nil {
			return err
		}
		fmt.Println("ready")
		select {}
	})
}

// inUse returns a function that fails the test if the session that a sandbox has now is not its
// session any more, and returns its age otherwise. It asks the engine alone.
func inUse(t *testing.T, name string) (uptime func() time.Duration) {
	t.Helper()
	eng, started := harness.NewEngine(t), time.Time{}
	uptime = func() time.Duration {
		t.Helper()
		got, err := eng.InspectContainer(t.Context(), record.ContainerName(name))
		if err != nil {
			t.Fatal(err)
		}
		if got.State != engine.StateRunning || !started.IsZero() && !got.StartedAt.Equal(started) {
			t.Fatalf("in use, it is %s, with %+v", got.State, harness.Inspect(t, name))
		}
		started = got.StartedAt
		return eng.Now().Sub(started)
	}
	uptime()
	return uptime
}

// The session outlives each of its users but the last, and ends though none of them does that.
func TestIdleTimeoutHoldsWhenUsersAreKilled(t *testing.T) {
	t.Parallel()
	name := harness.UniqueName(t)
	c := harness.NewClient(t)
	harness.Remove(t, c, name)
	var kills []func()
	for _, how := range []string{"detached", "command", "command", "command"} {
		user := harness.Process(t, "idle-user", name, how)
		said := lines(t, user)
		if err := user.Start(); err != nil {
			t.Fatal(err)
		}
		kill := func() {
			user.Process.Kill()
			for range said {
			}
			user.Wait()
		}
		defer kill()
		if line := <-said; line != "ready" {
			t.Fatalf("the user said %q", line)
		}
		kills = append(kills, kill)
	}
	uptime := inUse(t, name)
	for _, kill := range kills[:3] {
		kill()
	}
	held, err := c.Get(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	harness.Eventually(t, "the session is older than its idle timeout", func() bool { return uptime() > 2*idleOfUsers })
	last := harness.NewEngine(t).Now()
	kills[3]()
	st, end := ended(t, name)
	if st.Reason != "idle timeout" || st.State != sandbox.StateStopped || *st.Settings.IdleTimeout != idleOfUsers {
		t.Errorf("Inspect: %s, %q, idle timeout %v", st.State, st.Reason, *st.Settings.IdleTimeout)
	}
	if !st.EndedAt.Equal(end) {
		t.Errorf("Inspect says that it ended at %v, want %v, as the engine says", st.EndedAt, end)
	}
	if after := end.Sub(last); after < idleOfUsers-100*time.Millisecond {
		t.Errorf("it ended %v after its last use, want %v", after, idleOfUsers)
	}
	// The handle that was open all the time resumes it.
	if got := harness.Run(t, held, "wc", "-l", "/workspace/uses"); got != "4 /workspace/uses" {
		t.Errorf("files after the idle timeout: %q", got)
	}
	st = harness.Status(t, held)
	if left := st.IdleExpiresAt.Sub(harness.NewEngine(t).Now()); st.Reason != "" || !st.EndedAt.IsZero() || left > idleOfUsers || st.IdleExpiresAt.IsZero() {
		t.Errorf("the next session: reason %q, ended at %v, idle in %v, want up to %v", st.Reason, st.EndedAt, left, idleOfUsers)
	}
}

// A published port is used from outside, without a handle.
func TestConnectionsToPublishedPortsAreUses(t *testing.T) {
	t.Parallel()
	const idle = 5 * time.Second
	sb := harness.NewSandbox(t, sandbox.WithName(harness.UniqueName(t)), sandbox.WithIdleTimeout(idle), sandbox.WithPorts(3000), harness.Quick,
		sandbox.WithCommand("node", "-e", `
			const server = require("http").createServer((_, a) => a.end("hello"));
			server.keepAliveTimeout = 3600e3; server.listen(3000);
			setInterval(() => require("http").get("http://localhost:3000/", a => a.resume()), 200)`))
	if err := sb.WaitPort(t.Context(), 3000); err != nil {
		t.Fatal(err)
	}
	addr, err := sb.Port(t.Context(), 3000)
	if err != nil {
		t.Fatal(err)
	}
	uptime := inUse(t, sb.Name())
	// Short ones, and then one that is silent.
	each := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	harness.Eventually(t, "requests have kept it", func() bool {
		answer, err := each.Get("http://" + addr.String())
		if err != nil {
			t.Fatalf("%v, with the sandbox %+v", err, harness.Inspect(t, sb.Name()))
		}
		answer.Body.Close()
		return uptime() > 2*idle
	})
	conn, err := net.Dial("tcp", addr.String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	harness.Eventually(t, "a connection has kept it", func() bool { return uptime() > 4*idle })
	conn.Close()
	// The program inside connects to the port on and on.
	if st, _ := ended(t, sb.Name()); st.Reason != "idle timeout" {
		t.Errorf("reason %q, want idle timeout", st.Reason)
	}
}

func TestIdleTimeoutIsUpdatedAtOnce(t *testing.T) {
	t.Parallel()
	c := harness.NewClient(t)
	sb := harness.NewSandbox(t, sandbox.WithName(harness.UniqueName(t)), harness.Quick)
	left := func() time.Duration {
		t.Helper()
		st := harness.Status(t, sb)
		if st.IdleExpiresAt.IsZero() {
			return 0
		}
		return st.IdleExpiresAt.Sub(harness.NewEngine(t).Now()).Round(time.Minute)
	}
	harness.Run(t, sb, "true")
	if got := left(); got != 0 {
		t.Errorf("without an idle timeout it is idle in %v", got)
	}
	other, err := c.Get(t.Context(), sb.Name())
	if err != nil {
		t.Fatal(err)
	}
	defer other.Detach()
	for i, by := range []*sandbox.Sandbox{sb, other, sb} {
		want := time.Duration(i+1) * time.Hour
		harness.Update(t, by, sandbox.WithIdleTimeout(want))
		if got := left(); got != want {
			t.Errorf("after the update by handle %d it is idle in %v, want %v", i, got, want)
		}
	}
	st := harness.Inspect(t, sb.Name())
	var fields struct{ Settings struct{ IdleTimeoutMs int64 } }
	text, err := json.Marshal(st)
	if err == nil {
		err = json.Unmarshal(text, &fields)
	}
	if err != nil || *st.Settings.IdleTimeout != 3*time.Hour || fields.Settings.IdleTimeoutMs != (3*time.Hour).Milliseconds() || !st.IdleExpiresAt.IsZero() {
		t.Errorf("Inspect: %s, %v", text, err)
	}

	fork, err := c.Fork(t.Context(), sb.Name(), sandbox.WithName(harness.UniqueName(t)), harness.Quick)
	if err != nil {
		t.Fatal(err)
	}
	harness.Remove(t, c, fork.Name())
	defer fork.Close()
	if st := harness.Inspect(t, fork.Name()); *st.Settings.IdleTimeout != 3*time.Hour {
		t.Errorf("the fork's idle timeout is %v", *st.Settings.IdleTimeout)
	}

	// Of a stopped sandbox it applies to the next session, which nobody needs to use for that.
	if _, err := sb.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	harness.Update(t, sb, sandbox.WithIdleTimeout(5*time.Second))
	if _, err := sb.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if st, _ := ended(t, sb.Name()); st.Reason != "idle timeout" {
		t.Errorf("reason %q, want idle timeout", st.Reason)
	}
}
