package network_test

import (
	"io"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// dockerExec runs a program in a sandbox as "docker exec" does, with all capabilities of the
// container, and returns what it says until it ends.
func dockerExec(t *testing.T, sb *sandbox.Sandbox, argv ...string) string {
	t.Helper()
	s, err := harness.NewEngine(t).Exec(t.Context(), record.ContainerName(sb.Name()), engine.ExecSpec{Argv: argv})
	if err != nil {
		t.Fatalf("exec %q: %v", argv, err)
	}
	defer s.Close()
	out, err := io.ReadAll(s)
	if err != nil {
		t.Fatalf("exec %q: %v", argv, err)
	}
	return string(out)
}

// A process that the engine starts in a sandbox has NET_ADMIN. If it changes the rules or the
// network the session ends, and nothing gets out that the policy denies. Where the kernel
// lets only PID 1 change its rules, the attempt is refused, and the session goes on.
func TestNetworkChangedFromOutsideEndsTheSession(t *testing.T) {
	t.Parallel()
	l := theLab(t)
	owned := []string{"delete-table", "flush-table", "accept-in-table"}
	for _, kind := range append(owned, "table", "link", "link-down", "link-flap", "address", "route", "rule", "queue") {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			sb := l.sandbox(t, sandbox.WithNetworkPolicy(sandbox.DenyAll()))
			addresses := l.addresses(t, sb)
			before := l.look(t)
			out := dockerExec(t, sb, "/probe", "tamper", kind, netip.AddrPortFrom(l.evil, 9000).String())
			began, over := time.Now(), time.Time{}
			refused := strings.HasPrefix(out, "refused: ") && strings.Contains(strings.Join(owned, " "), kind)
			if !refused {
				var st sandbox.Status
				harness.Eventually(t, "the session ends", func() bool {
					st = harness.Inspect(t, sb.Name())
					return st.State == sandbox.StateStopped
				})
				over = harness.Raw(t, sb).State.FinishedAt // its address is another's then
				t.Logf("exec ended, and %v later the session; it said %q", time.Since(began), out)
				if st.Reason != "network changed" {
					t.Errorf("the session ended: %q, want network changed", st.Reason)
				}
				if log := containerLog(t, sb); !strings.Contains(log, "another process has changed") {
					t.Errorf("the log says %q", log)
				}
			} else if o := l.try(t, sb, tried{"out", "tcp", netip.AddrPortFrom(l.evil, 9000).String(), ""})["out"]; o.Err == "" {
				t.Errorf("after %q: %+v", out, o)
			}
			got := l.from(t, addresses, func(key string, last time.Time) bool {
				return last.After(before[key]) && (over.IsZero() || last.Before(over))
			})
			if len(got) > 0 {
				t.Errorf("reached: %q", got)
			}
		})
	}
}

// containerLog is the container's log.
func containerLog(t *testing.T, sb *sandbox.Sandbox) string {
	t.Helper()
	var all strings.Builder
	for line, err := range sb.Logs(t.Context(), sandbox.LogOptions{}) {
		if err != nil {
			t.Fatalf("Logs: %v", err)
		}
		all.WriteString(line.Text + "\n")
	}
	return all.String()
}

// Who only looks changes nothing, and finds the mark of PID 1's own packets. It allows what
// names could lead to, if there are names, and nothing that is protected. The session can't
// notice that.
func TestMarkOfPID1AllowsWhatNamesMay(t *testing.T) {
	t.Parallel()
	l := theLab(t)
	sb := l.sandbox(t)
	to := func(a netip.Addr) string { return netip.AddrPortFrom(a, 9000).String() }
	for _, tt := range []struct {
		policy string
		to     netip.Addr
		want   []string
	}{
		{"deny-all", l.evil, nil},
		{"public-only", l.private, nil},
		{"allow=good.lab.test", l.private, nil},
		{"allow=good.lab.test", l.evil, []string{"tcp " + to(l.evil), "udp " + to(l.evil)}},
		{"allow=good.lab.test subnets.deny=" + l.evil.String(), l.evil, nil},
	} {
		setPolicy(t, sb, "%s", tt.policy)
		hits := l.watch(t, sb)
		if out := dockerExec(t, sb, "/probe", "tamper", "mark", to(tt.to)); out != "done\n" {
			t.Errorf("%s: %q", tt.policy, out)
		}
		if got := hits(); strings.Join(got, ", ") != strings.Join(tt.want, ", ") {
			t.Errorf("%s: with the mark %q arrived, want %q", tt.policy, got, tt.want)
		}
	}
	if st := harness.Status(t, sb); st.State != sandbox.StateRunning {
		t.Errorf("the session ended: %q", st.Reason)
	}
}

// A session goes on when a process from outside changes nothing, and through updates of its
// policy, however large.
func TestSessionOutlivesExecsAndUpdates(t *testing.T) {
	t.Parallel()
	l := theLab(t)
	sb := l.sandbox(t)
	began := harness.Status(t, sb).StartedAt
	var many strings.Builder
	for i := range 1000 {
		if i > 0 {
			many.WriteString(",")
		}
		many.WriteString(netip.AddrFrom4([4]byte{11, byte(i >> 6), byte(i << 2), 0}).String() + "/25")
	}
	for _, policy := range []string{"deny-all", "subnets.deny=" + many.String() + " allow=good.lab.test", "allow-all"} {
		setPolicy(t, sb, "%s", policy)
		dockerExec(t, sb, "/probe", "tamper", "nothing", netip.AddrPortFrom(l.evil, 9000).String())
	}
	if st := harness.Status(t, sb); !st.StartedAt.Equal(began) || st.State != sandbox.StateRunning {
		t.Errorf("%+v; want the session of %v", st, began)
	}
}
