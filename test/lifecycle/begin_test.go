package lifecycle_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/claim"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// version is that of the policy that PID 1 enforces; 0 is none yet.
func version(t *testing.T, name string) int64 {
	t.Helper()
	reply, err := harness.AskPID1(t.Context(), harness.NewEngine(t), name, wire.Control{Op: wire.OpNetwork})
	if err != nil || reply.Network == nil {
		t.Fatalf("ask PID 1 of %q: %+v, %v", name, reply, err)
	}
	return reply.Network.Version
}

// recorded is the policy of the sandbox's record, with its version.
func recorded(t *testing.T, name string) record.Network {
	t.Helper()
	eng := harness.NewEngine(t)
	got, err := eng.InspectContainer(t.Context(), record.ContainerName(name))
	if err != nil {
		t.Fatal(err)
	}
	rec, _ := record.Decode(got.Labels)
	if rec, err = claim.Latest(t.Context(), eng, rec); err != nil {
		t.Fatal(err)
	}
	return rec.Network()
}

// outside is a server on the engine's machine, and a program that says "reached" when it
// reaches it from inside through the default route.
func outside(t *testing.T) (argv []string) {
	t.Helper()
	l, err := net.Listen("tcp4", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	const try = `
		const hex = require("fs").readFileSync("/proc/net/route", "utf8").split("\n").map(l => l.split("\t")).find(f => f[1] === "00000000")[2];
		const host = hex.match(/../g).reverse().map(b => parseInt(b, 16)).join(".");
		const s = require("net").connect(+process.argv[1], host);
		s.on("connect", () => { console.log("reached"); process.exit(); });
		s.on("error", e => { console.log(e.code); process.exit(); });
		setTimeout(() => { console.log("silence"); process.exit(); }, 5000);`
	return []string{"node", "-e", try, strconv.Itoa(l.Addr().(*net.TCPAddr).Port)}
}

// mainRuns reports whether the main process, "sleep 1234", is there. It asks from within
// by the engine, and not by a handle.
func mainRuns(t *testing.T, name string) bool {
	t.Helper()
	eng := harness.NewEngine(t)
	stream, err := eng.Exec(t.Context(), record.ContainerName(name), engine.ExecSpec{
		Argv: []string{"sh", "-c", "pgrep -fx 'sleep 1234' || true; echo looked"}, User: "0:0", Dir: "/"})
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	var text strings.Builder
	buf := make([]byte, 1<<10)
	for {
		n, err := stream.Read(buf)
		text.Write(buf[:n])
		if err != nil {
			break
		}
	}
	if !strings.Contains(text.String(), "looked") {
		t.Fatalf("could not look for the main process: %q", text.String())
	}
	return strings.TrimSpace(text.String()) != "looked"
}

// A session that something else started, or whose starter died before it said what counts,
// is locked and has no main process, until a handle comes by.
func TestSessionWaitsForItsPolicy(t *testing.T) {
	t.Parallel()
	sb := harness.NewSandbox(t, sandbox.WithName(harness.UniqueName(t)), sandbox.WithCommand("sleep", "1234"), sandbox.WithNetworkPolicy(sandbox.AllowAll()))
	if v := version(t, sb.Name()); v != 1 || !mainRuns(t, sb.Name()) {
		t.Fatalf("after Create PID 1 enforces version %d", v)
	}
	reach := outside(t)
	if got := harness.Run(t, sb, reach...); got != "reached" {
		t.Fatalf("under allow-all the engine's machine is not reached: %s", got)
	}
	if _, err := sb.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	eng := harness.NewEngine(t)
	if err := eng.StartContainer(t.Context(), record.ContainerName(sb.Name())); err != nil {
		t.Fatal(err)
	}
	// The answer to a connection shows that PID 1 is set up and has nothing else to do.
	if v := version(t, sb.Name()); v != 0 {
		t.Fatalf("a session that nobody began enforces version %d", v)
	}
	if mainRuns(t, sb.Name()) {
		t.Error("the main process runs before the session has begun")
	}
	stream, err := eng.Exec(t.Context(), record.ContainerName(sb.Name()), engine.ExecSpec{Argv: reach, User: "0:0", Dir: "/"})
	if err != nil {
		t.Fatal(err)
	}
	said := make([]byte, 64)
	n, _ := stream.Read(said)
	stream.Close()
	if got := strings.TrimSpace(string(said[:n])); got == "reached" || got == "" {
		t.Errorf("from a session that nobody began the engine's machine: %q", got)
	}

	other, err := harness.NewClient(t).Get(t.Context(), sb.Name())
	if err != nil {
		t.Fatal(err)
	}
	defer other.Detach()
	if v := version(t, sb.Name()); v != 1 {
		t.Errorf("after Get PID 1 enforces version %d, want 1", v)
	}
	harness.Eventually(t, "the main process runs", func() bool { return mainRuns(t, sb.Name()) })
	if got := harness.Run(t, other, reach...); got != "reached" {
		t.Errorf("after Get: %s", got)
	}
}

func init() {
	// killed starter resumes a sandbox through an engine whose proxy never answers an exec: it
	// starts the session and is killed before the session has begun.
	harness.AddRole("killed starter", func(args []string) error {
		c, err := harness.Open(sandbox.WithHost(args[1]))
		if err != nil {
			return err
		}
		_, err = c.Get(context.Background(), args[0])
		return err
	})
}

// A process that is killed between the start of a session and its beginning leaves it
// locked, and the next one to come has it begin.
func TestNextOneBeginsWhatAKilledStarterLeft(t *testing.T) {
	t.Parallel()
	sb := harness.NewSandbox(t, sandbox.WithName(harness.UniqueName(t)), sandbox.WithCommand("sleep", "1234"))
	if _, err := sb.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	proxy := enginetest.NewProxy(t)
	stalled := make(chan struct{})
	proxy.ArmAt("/exec", enginetest.Stall, func() { close(stalled) })
	starter := harness.StartProcess(t, "killed starter", sb.Name(), proxy.Host())
	select {
	case <-stalled:
	case <-time.After(harness.CallBound):
		t.Fatal("Get of a stopped sandbox has made no exec")
	}
	harness.Kill(starter)
	proxy.Disarm()
	if version(t, sb.Name()) != 0 || mainRuns(t, sb.Name()) {
		t.Fatal("the session went on without its starter")
	}
	other, err := harness.NewClient(t).Get(t.Context(), sb.Name())
	if err != nil {
		t.Fatal(err)
	}
	defer other.Detach()
	if v := version(t, sb.Name()); v != 1 {
		t.Errorf("after Get PID 1 enforces version %d, want 1", v)
	}
	harness.Eventually(t, "the main process runs", func() bool { return mainRuns(t, sb.Name()) })
}

// An update counts at once, in sessions to come, for other processes, and also in one
// that was started with other tools.
func TestUpdatedPolicyCounts(t *testing.T) {
	t.Parallel()
	sb := harness.NewSandbox(t, sandbox.WithName(harness.UniqueName(t)))
	reach := outside(t)
	check := func(sb *sandbox.Sandbox, when string, want bool) {
		t.Helper()
		if got := harness.Run(t, sb, reach...); (got == "reached") != want {
			t.Errorf("%s: %s, want it reached: %v", when, got, want)
		}
	}
	check(sb, "as made", true)
	harness.Update(t, sb, sandbox.WithNetworkPolicy(sandbox.DenyAll()))
	check(sb, "after an update to deny-all", false)
	if got := harness.Inspect(t, sb.Name()).Network.String(); got != "deny-all" {
		t.Errorf("Status.Network: %s", got)
	}
	if err := sb.Update(t.Context(), sandbox.WithNetworkPolicy(sandbox.NetworkPolicy{Allow: []string{"a b"}})); !errors.Is(err, sandbox.ErrInvalidArgument) {
		t.Errorf("Update with an invalid policy: %v", err)
	}
	check(sb, "after an invalid update", false)
	if _, err := sb.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := sb.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	check(sb, "in the next session", false)

	if _, err := sb.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	harness.Update(t, sb, sandbox.WithNetworkPolicy(sandbox.AllowAll()))
	if st := harness.Inspect(t, sb.Name()); st.State != sandbox.StateStopped || st.Network.String() != "allow-all" {
		t.Errorf("updated while stopped: %s, %s", st.State, st.Network)
	}
	harness.Update(t, sb, sandbox.WithNetworkPolicy(sandbox.PublicOnly()))
	if err := harness.NewEngine(t).StartContainer(t.Context(), record.ContainerName(sb.Name())); err != nil {
		t.Fatal(err)
	}
	other, err := harness.NewClient(t).Get(t.Context(), sb.Name())
	if err != nil {
		t.Fatal(err)
	}
	defer other.Detach()
	check(other, "public-only, the engine's machine being private, in a session started with other tools", false)
	// The kernel tells of what it refused a moment later.
	harness.Eventually(t, "what was blocked is on record", func() bool {
		list, err := other.Egress(t.Context())
		if err != nil {
			t.Fatalf("Egress: %v", err)
		}
		return slices.ContainsFunc(list, func(e sandbox.Egress) bool {
			return !e.Allowed && e.Protocol == "tcp" && e.Address.Is4() && e.Rule == "protected" && e.Count > 0 && !e.Last.IsZero()
		})
	})
	if st, err := other.Status(t.Context()); err != nil || st.Egress == nil || st.Egress.Blocked == 0 {
		t.Errorf("Status of a connected handle: %+v, %v; want blocked connections counted", st.Egress, err)
	}
	if _, err := sb.Egress(t.Context()); err != nil {
		t.Errorf("Egress of the other handle: %v", err)
	}
	harness.Update(t, other, sandbox.WithNetworkPolicy(sandbox.NetworkPolicy{Subnets: sandbox.Subnets{Allow: []string{"0.0.0.0/0"}}}))
	check(other, "allowed by its address", true)
	check(sb, "for the other handle", true)
}

// A policy takes effect also where the session can't be told: it is recorded, the session is
// ended by the engine alone, and the next one has it. Where that is not wanted, or the policy
// allows more than any, Update fails and nothing is changed.
func TestPolicyEndsASessionThatCantBeReached(t *testing.T) {
	t.Parallel()
	eng := harness.NewEngine(t)
	inside := func(t *testing.T, name, script string) {
		t.Helper()
		s, err := eng.Exec(t.Context(), record.ContainerName(name), engine.ExecSpec{Argv: []string{"sh", "-c", script}, User: "0:0", Dir: "/"})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		if _, err := io.Copy(io.Discard, s); err != nil {
			t.Fatal(err)
		}
	}
	pause := func(t *testing.T, sb *sandbox.Sandbox) {
		t.Helper()
		harness.Pause(t, eng, record.ContainerName(sb.Name()))
		t.Cleanup(func() { eng.UnpauseContainer(context.Background(), record.ContainerName(sb.Name())) })
	}
	exhaust := func(t *testing.T, sb *sandbox.Sandbox) {
		t.Helper()
		cmd := sb.Command(t.Context(), "node", "-e", `const {spawn} = require("child_process")
			setInterval(() => { for (let i = 0; i < 99; i++) try { spawn("sleep", ["1000"]).on("error", () => {}) } catch {} }, 20)`)
		cmd.Detached = true
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		harness.Eventually(t, "the sandbox is at its process limit", func() bool {
			got, _, err := eng.Stats(t.Context(), record.ContainerName(sb.Name()))
			return err == nil && got.Tasks == pidsLimit
		})
	}
	silence := func(t *testing.T, sb *sandbox.Sandbox) {
		t.Helper()
		got, err := eng.InspectContainer(t.Context(), record.ContainerName(sb.Name()))
		if err != nil {
			t.Fatal(err)
		}
		// Nobody in the container can stop PID 1, but this machine can.
		if out, err := exec.Command("kill", "-STOP", strconv.Itoa(got.Pid)).CombinedOutput(); err != nil {
			t.Fatalf("stop PID 1: %v: %s", err, out)
		}
	}
	freeze := func(t *testing.T, sb *sandbox.Sandbox) {
		t.Helper()
		inside(t, sb.Name(), `for p in /proc/[0-9]*; do tr "\\0" " " < $p/cmdline | grep -q "gues[t] serve" && kill -STOP ${p#/proc/}; done; true`)
	}
	for name, test := range map[string]struct {
		prepare func(*testing.T, *sandbox.Sandbox)
		other   bool  // the update is that of a client which is not connected yet
		want    error // of updates that are refused before one takes effect; nil: there are none
		live    bool  // it takes effect in the session, which is not ended
	}{
		"at the process limit":              {prepare: exhaust, other: true, want: errAny},
		"paused":                            {prepare: pause, other: true, want: sandbox.ErrNotRunning},
		"paused, connected":                 {prepare: pause},
		"PID 1 that does not answer":        {prepare: silence},
		"a connection that does not answer": {prepare: freeze, live: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sb := harness.NewSandbox(t, sandbox.WithName(harness.UniqueName(t)), sandbox.WithPidsLimit(pidsLimit),
				sandbox.WithNetworkPolicy(sandbox.NetworkPolicy{Subnets: sandbox.Subnets{Allow: []string{"0.0.0.0/0"}}}))
			try := outside(t)
			if got := harness.Run(t, sb, try...); got != "reached" {
				t.Fatalf("before the update: %s", got)
			}
			get := func() *sandbox.Sandbox {
				if !test.other {
					return sb
				}
				other, err := harness.NewClient(t).Get(t.Context(), sb.Name(), sandbox.WithoutResume())
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { other.Detach() })
				return other
			}
			test.prepare(t, sb)
			ctx, cancel := context.WithTimeout(t.Context(), harness.CallBound)
			defer cancel()
			if test.want != nil {
				for _, opts := range [][]sandbox.UpdateOption{
					{sandbox.WithNetworkPolicy(sandbox.DenyAll()), sandbox.WithoutStop()}, {sandbox.WithNetworkPolicy(sandbox.AllowAll())},
				} {
					refusedPolicy(t, sb.Name(), get().Update(ctx, opts...), test.want)
				}
			}
			if err := get().Update(ctx, sandbox.WithNetworkPolicy(sandbox.DenyAll())); err != nil {
				t.Fatalf("Update: %v", err)
			}
			state, reason := sandbox.StateStopped, "network policy"
			if test.live {
				state, reason = sandbox.StateRunning, ""
				if got := harness.Run(t, sb, try...); got == "reached" {
					t.Error("the session reaches what deny-all forbids")
				}
			}
			st := harness.Inspect(t, sb.Name())
			if st.State != state || st.Reason != reason || st.Network.String() != "deny-all" {
				t.Errorf("after Update: %s by %q under %s; want %s, %q, deny-all", st.State, st.Reason, st.Network, state, reason)
			}
			if _, err := sb.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := harness.Run(t, sb, try...); got == "reached" {
				t.Error("the next session reaches what deny-all forbids")
			}
			if _, err := sb.Stop(t.Context()); err != nil {
				t.Fatal(err)
			}
			if st := harness.Inspect(t, sb.Name()); st.Reason != "stopped" {
				t.Errorf("the next session ended by %q, want stopped", st.Reason)
			}
		})
	}
}

// refusedPolicy checks that an update of the policy failed, and changed neither the record nor the
// session.
func refusedPolicy(t *testing.T, name string, err, want error) {
	t.Helper()
	if err == nil || want != errAny && !errors.Is(err, want) {
		t.Errorf("Update: %v, want %v", err, want)
	}
	if strings.Contains(fmt.Sprint(err), "goroutine") {
		t.Errorf("Update repeats the stacks of the guest: %v", err)
	}
	if got := recorded(t, name); got.Version != 1 {
		t.Errorf("after the update that failed the record says %+v, want the first version", got)
	}
	got, err := harness.NewEngine(t).InspectContainer(t.Context(), record.ContainerName(name))
	if err != nil || !got.HasSession() {
		t.Errorf("after the update that failed the session is %s, %v", got.State, err)
	}
}

// pidsLimit leaves room for a node and little else.
const pidsLimit = 64

// errAny stands for any error.
var errAny = errors.New("an error")

// Of several who change the policy at once the last one in the record is in force, and no
// Update that returned is of an older one than what is enforced.
func testConcurrentPolicyUpdates(t *testing.T, sb *sandbox.Sandbox) {
	was := version(t, sb.Name())
	var all sync.WaitGroup
	var returned atomic.Int64
	for i := range 4 {
		other, err := harness.NewClient(t).Get(t.Context(), sb.Name())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { other.Detach() })
		all.Go(func() {
			for n := range harness.Rounds(3, 6) {
				p := sandbox.NetworkPolicy{Subnets: sandbox.Subnets{Allow: []string{fmt.Sprintf("10.%d.%d.0/24", i, n)}}}
				if err := other.Update(t.Context(), sandbox.WithNetworkPolicy(p)); err != nil {
					t.Errorf("Update: %v", err)
					return
				}
				returned.Add(1)
			}
		})
	}
	all.Wait()
	want := recorded(t, sb.Name())
	if got := version(t, sb.Name()); got != want.Version || got != was+returned.Load() {
		t.Errorf("PID 1 enforces version %d; the record says %+v after %d updates", got, want, returned.Load())
	}
}

// Sandboxes that are resumed and updated at the same time end with what the record says,
// whoever comes first.
func TestResumeAndPolicyUpdateAtOnce(t *testing.T) {
	t.Parallel()
	sb := harness.NewSandbox(t, sandbox.WithName(harness.UniqueName(t)), sandbox.WithCommand("sleep", "1234"), harness.Quick)
	for n := range harness.Rounds(2, 20) {
		if _, err := sb.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
		var both sync.WaitGroup
		for _, do := range []func(*sandbox.Sandbox) error{
			func(sb *sandbox.Sandbox) error { _, err := sb.Start(t.Context()); return err },
			func(sb *sandbox.Sandbox) error {
				time.Sleep(time.Duration(n) * 50 * time.Millisecond) // not a wait for something: another moment of the start in every round
				return sb.Update(t.Context(), sandbox.WithNetworkPolicy([]sandbox.NetworkPolicy{sandbox.DenyAll(), sandbox.AllowAll()}[n%2]))
			},
		} {
			other, err := harness.NewClient(t).Get(t.Context(), sb.Name(), sandbox.WithoutResume())
			if err != nil {
				t.Fatal(err)
			}
			both.Go(func() {
				if err := do(other); err != nil {
					t.Error(err)
				}
				other.Detach()
			})
		}
		both.Wait()
		if want, got := recorded(t, sb.Name()), version(t, sb.Name()); got != want.Version || want.Version != int64(n+2) {
			t.Errorf("round %d: PID 1 enforces version %d, the record says %+v", n, got, want)
		}
	}
}

// PID 1 can't be taken back to an older policy.
func testOldVersionIsRefused(t *testing.T, sb *sandbox.Sandbox) {
	harness.Update(t, sb, sandbox.WithNetworkPolicy(sandbox.DenyAll()))
	latest := version(t, sb.Name())
	begin := &wire.Begin{Version: latest - 1}
	begin.Policy.Mode = "allow-all"
	reply, err := harness.AskPID1(t.Context(), harness.NewEngine(t), sb.Name(), wire.Control{Op: wire.OpBegin, Begin: begin})
	if err == nil || reply.Refused != wire.RefusedStale || reply.Network == nil || reply.Network.Version != latest {
		t.Errorf("version %d after %d: %+v, %v; want it refused as stale", latest-1, latest, reply, err)
	}
}

// remade replaces the sandbox's stopped container by one that change made of it, as
// another version of this package, or another engine, would have made it.
func remade(t *testing.T, name string, change func(*engine.ContainerSpec)) {
	t.Helper()
	eng := harness.NewEngine(t)
	got, err := eng.InspectContainer(t.Context(), record.ContainerName(name))
	if err != nil {
		t.Fatal(err)
	}
	spec := engine.ContainerSpec{
		Name: record.ContainerName(name), Image: got.Image, User: "0:0", Entrypoint: got.Entrypoint, Env: got.Env, Labels: got.Labels,
		CapAdd: []string{"NET_ADMIN"}, CapDrop: []string{"NET_RAW", "MKNOD"}, StopSignal: "SIGTERM", StopTimeout: time.Second,
	}
	for _, m := range got.Mounts {
		spec.Mounts = append(spec.Mounts, engine.Mount{Type: m.Type, Source: m.Name, Target: m.Target, ReadOnly: !m.RW, NoCopy: true})
	}
	change(&spec)
	if err := eng.RemoveContainer(t.Context(), got.ID, true); err != nil {
		t.Fatal(err)
	}
	if _, err := eng.CreateContainer(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
}

// Without the means to enforce a policy a session is refused, with what is missing, and does not
// run on. Without a policy in its record it allows all, and its policy can't be changed.
func TestUnenforceablePolicyAndNoPolicy(t *testing.T) {
	t.Parallel()
	sb := harness.NewSandbox(t, sandbox.WithName(harness.UniqueName(t)), sandbox.WithCommand("sleep", "1234"))
	if _, err := sb.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	remade(t, sb.Name(), func(spec *engine.ContainerSpec) {
		spec.CapAdd, spec.CapDrop = nil, []string{"NET_RAW", "MKNOD", "NET_ADMIN"}
	})
	_, err := harness.NewClient(t).Get(t.Context(), sb.Name())
	if !errors.Is(err, sandbox.ErrUnsupported) || !strings.Contains(err.Error(), "nftables") {
		t.Errorf("Get where nothing can be enforced: %v, want ErrUnsupported that says what it takes", err)
	}
	if st := harness.Inspect(t, sb.Name()); st.State != sandbox.StateStopped {
		t.Errorf("afterwards it is %s", st.State)
	}
	remade(t, sb.Name(), func(spec *engine.ContainerSpec) {
		was := spec.Labels[record.Settings]
		spec.Labels[record.Settings] = strings.Replace(was, `"network":"allow-all",`, "", 1)
		if spec.Labels[record.Settings] == was {
			t.Fatalf("the record has no policy to take out: %s", was)
		}
	})
	other, err := harness.NewClient(t).Get(t.Context(), sb.Name())
	if err != nil {
		t.Fatal(err)
	}
	defer other.Detach()
	if got := harness.Run(t, other, outside(t)...); got != "reached" {
		t.Errorf("the engine's machine: %s, want it reached", got)
	}
	if st, err := other.Status(t.Context()); err != nil || st.Network.String() != "allow-all" {
		t.Errorf("Status: %s, %v", st.Network, err)
	}
	if err := other.Update(t.Context(), sandbox.WithNetworkPolicy(sandbox.DenyAll())); !errors.Is(err, sandbox.ErrUnsupported) {
		t.Errorf("Update: %v, want ErrUnsupported", err)
	}
}

// What transforms set is in the memory of whoever gave it and of PID 1. Another process
// that has the session begin does not have it, and the name is denied until somebody
// gives it; nothing in the engine tells it.
func TestSecretsAreGivenAgainAndStoredNowhere(t *testing.T) {
	t.Parallel()
	const secret = "s3cr3t-of-the-test"
	secrets := map[string]sandbox.Transform{"Api.example": {SetHeaders: sandbox.Headers{"Authorization": secret}}}
	p := sandbox.NetworkPolicy{Allow: []string{"b.example"}, Transform: secrets}
	sb := harness.NewSandbox(t, sandbox.WithName(harness.UniqueName(t)), sandbox.WithNetworkPolicy(p))
	lacks := func(when string, want bool) {
		t.Helper()
		reply, err := harness.AskPID1(t.Context(), harness.NewEngine(t), sb.Name(), wire.Control{Op: wire.OpNetwork})
		if err != nil || reply.Network == nil || reply.Network.Version == 0 {
			t.Fatalf("%s: %+v, %v", when, reply.Network, err)
		}
		if got := slices.Equal(reply.Network.Missing, []string{"api.example"}); got != want || !want && reply.Network.Missing != nil {
			t.Errorf("%s PID 1 lacks %q, want it to lack the secret: %v", when, reply.Network.Missing, want)
		}
	}
	// A process of its own, as far as a client is one.
	get := func(opts ...sandbox.GetOption) {
		t.Helper()
		other, err := harness.NewClient(t).Get(t.Context(), sb.Name(), opts...)
		if err != nil {
			t.Fatal(err)
		}
		defer other.Detach()
		harness.Run(t, other, "true")
	}
	stop := func() {
		t.Helper()
		if _, err := sb.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	lacks("after Create", false)
	stop()
	get()
	lacks("resumed without it", true)
	get(sandbox.WithTransform(secrets))
	lacks("after Get with it", false)
	stop()
	other, err := harness.NewClient(t).GetOrCreate(t.Context(), sb.Name(), sandbox.WithNetworkPolicy(p))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Detach()
	lacks("after GetOrCreate with it", false)
	stop()
	if _, err := sb.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	lacks("resumed by the handle that made it", false)

	// What was given for one policy is not used for another.
	harness.Update(t, other, sandbox.WithNetworkPolicy(sandbox.NetworkPolicy{Transform: map[string]sandbox.Transform{"api.example": {}}}))
	lacks("after an update without it", true)
	harness.Run(t, sb, "true")
	stop()
	harness.Run(t, sb, "true")
	lacks("resumed by the handle that had it for the policy before", true)
	harness.Update(t, sb, sandbox.WithNetworkPolicy(p))
	lacks("after an update with it", false)
	for _, set := range []sandbox.Transform{{SetHeaders: sandbox.Headers{"X": secret}}, {}} {
		other, err := harness.NewClient(t).Get(t.Context(), sb.Name(), sandbox.WithTransform(map[string]sandbox.Transform{"b.example": set}))
		if err == nil {
			other.Detach()
		}
		if !errors.Is(err, sandbox.ErrInvalidArgument) || strings.Contains(err.Error(), secret) {
			t.Errorf("Get with a transform of a name that is not transformed, %d headers: %v, want ErrInvalidArgument", len(set.SetHeaders), err)
		}
	}
	get(sandbox.WithTransform(map[string]sandbox.Transform{"api.example": {}}))

	eng := harness.NewEngine(t)
	got, err := eng.InspectContainer(t.Context(), record.ContainerName(sb.Name()))
	if err != nil {
		t.Fatal(err)
	}
	if all := fmt.Sprintf("%+v", got); strings.Contains(all, secret) || !strings.Contains(all, "transform=api.example") {
		t.Errorf("the container tells the secret, or not the name: %s", all)
	}
	if all := fmt.Sprintf("%+v", revisions(t, sb.ID())); strings.Contains(all, secret) || !strings.Contains(all, "transform=api.example") {
		t.Errorf("the revisions tell the secret, or not the name: %s", all)
	}
	if out := harness.Run(t, sb, "sh", "-c", "cat /proc/*/environ /proc/*/cmdline | tr '\\0' '\\n'; env"); strings.Contains(out, secret) {
		t.Error("a process inside can read it")
	}
}
