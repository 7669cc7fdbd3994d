package network_test

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// A change in a running session ends what is not allowed any more, also where
// it was never filtered, and keeps what is.
func TestLiveUpdateEndsAndKeeps(t *testing.T) {
	t.Parallel()
	l := theLab(t)
	sb := l.sandbox(t)
	raw := "tcp," + netip.AddrPortFrom(l.evil, 9000).String() + ",-"
	good := "tls," + netip.AddrPortFrom(l.good, 9443).String() + ",good.lab.test"
	wild := "tls," + netip.AddrPortFrom(l.good, 9443).String() + ",a.wild.lab.test"

	direct := l.hold(t, sb, raw, good)
	if got := direct.say("a"); got != "a a" {
		t.Fatalf("under allow-all: %q", got)
	}
	setPolicy(t, sb, "allow=good.lab.test,*.wild.lab.test")
	hits := l.watchOpen(t, sb)
	// The one to a name that is allowed, too: it did not go by its name.
	if got := direct.say("b"); got != "gone gone" {
		t.Errorf("after allow-all became names: %q; want both gone", got)
	}
	if got := hits(); len(got) > 0 {
		t.Errorf("and yet %q arrived", got)
	}

	byName := l.hold(t, sb, good, wild)
	if got := byName.say("c"); got != "c c" {
		t.Fatalf("by names: %q", got)
	}
	setPolicy(t, sb, "allow=good.lab.test")
	if got := byName.say("d"); got != "d gone" {
		t.Errorf("after one name went: %q; want the other kept", got)
	}
	// A change that is no change to it, and one that is a mistake.
	setPolicy(t, sb, "allow=good.lab.test,evil.lab.test subnets.allow=%s", l.evil)
	if got := byName.say("e"); got != "e gone" {
		t.Errorf("after more was allowed: %q", got)
	}
	bad := sandbox.NetworkPolicy{Allow: []string{"not a name"}, Subnets: sandbox.Subnets{Deny: []string{"10.0.0.0/99"}}}
	if err := sb.Update(t.Context(), sandbox.WithNetworkPolicy(bad)); !errors.Is(err, sandbox.ErrInvalidArgument) {
		t.Errorf("Update with mistakes: %v", err)
	}
	if got := byName.say("f"); got != "f gone" {
		t.Errorf("after a mistake: %q", got)
	}
	subnet := l.hold(t, sb, raw)
	if got := subnet.say("g"); got != "g" {
		t.Fatalf("by its subnet: %q", got)
	}
	setPolicy(t, sb, "allow=good.lab.test subnets.allow=%s,10.9.8.0/24", l.evil)
	if got := subnet.say("h"); got != "h" {
		t.Errorf("the subnet stayed: %q", got)
	}
	setPolicy(t, sb, "allow=good.lab.test subnets.allow=%s subnets.deny=%s", l.evil, l.evil)
	hits = l.watchOpen(t, sb)
	if got := subnet.say("i") + " " + byName.say("i"); got != "gone i gone" {
		t.Errorf("the subnet was denied: %q", got)
	}
	if got := hits(); strings.Contains(strings.Join(got, " "), l.evil.String()) {
		t.Errorf("and yet %q arrived", got)
	}
	setPolicy(t, sb, "deny-all")
	hits = l.watchOpen(t, sb)
	if got := byName.say("j"); got != "gone gone" {
		t.Errorf("under deny-all: %q", got)
	}
	if got := hits(); len(got) > 0 {
		t.Errorf("and yet %q arrived", got)
	}
}

// rounds is how often tests of the start start.
func rounds() int { return harness.Rounds(2, 50) }

// spinner is a main program that dials out without a moment's rest from its first
// instruction on.
func (l *lab) spinner() sandbox.CreateOption {
	args := []string{"/probe", "spin"}
	for _, a := range []netip.Addr{l.evil, l.good, l.private, l.dns} {
		args = append(args, netip.AddrPortFrom(a, 9000).String(), netip.AddrPortFrom(a, 443).String())
	}
	return sandbox.WithCommand(args...)
}

// spun waits until the main program of the session has made so many rounds, of all
// sessions that there were.
func spun(t *testing.T, sb *sandbox.Sandbox, sessions int) {
	t.Helper()
	harness.Eventually(t, "the program dials out", func() bool {
		n := 0
		for line, err := range sb.Logs(t.Context(), sandbox.LogOptions{}) {
			if err != nil {
				t.Fatalf("Logs: %v", err)
			}
			if line.Text == "round" {
				n++
			}
		}
		return n >= sessions
	})
}

// A policy holds from the first instruction of every session. The program is
// one whose first instructions dial out, in a loop; nothing of it ever arrives. Under
// allow-all it does, at once.
func TestFirstInstruction(t *testing.T) {
	t.Parallel()
	l := theLab(t)
	control := l.sandbox(t, sandbox.WithName(harness.UniqueName(t)), l.spinner())
	hits := l.watch(t, control)
	harness.Eventually(t, "the program's packets arrive under allow-all", func() bool { return len(hits()) > 4 })
	nothingOutlivesPID1(t, l, control)
	policies := []string{"deny-all", "allow=good.lab.test"}
	for i := range rounds() {
		text := policies[i%len(policies)]
		c := l.client(t)
		sent := l.watchStart(t)
		sb, err := c.Create(t.Context(), sandbox.WithName(harness.UniqueName(t)), sandbox.WithImage(l.image), l.spinner(), sandbox.WithNetworkPolicy(networkPolicy(t, text)))
		if err != nil {
			t.Fatalf("Create: %v", err)
		}
		spun(t, sb, 1)
		if got := sent(sb); len(got) > 0 {
			t.Errorf("start %d, %s: %q arrived", i, text, got)
		}
		harness.RemoveNow(t, c, sb.Name())
		sb.Detach()
	}
	sb := l.sandbox(t, sandbox.WithName(harness.UniqueName(t)), l.spinner(), sandbox.WithNetworkPolicy(sandbox.DenyAll()), sandbox.WithStopTimeout(time.Second))
	spun(t, sb, 1)
	for i := range rounds() {
		if _, err := sb.Stop(t.Context()); err != nil {
			t.Fatalf("Stop: %v", err)
		}
		sent := l.watchStart(t)
		if _, err := sb.Start(t.Context()); err != nil {
			t.Fatalf("Start: %v", err)
		}
		spun(t, sb, 2+i)
		if got := sent(sb); len(got) > 0 {
			t.Errorf("restart %d: %q arrived", i, got)
		}
	}
}

// A policy that is changed while the sandbox is stopped holds in its next session,
// before anything runs; and one that was set survives, whoever starts it.
func TestPolicyOfAStoppedSandbox(t *testing.T) {
	t.Parallel()
	l := theLab(t)
	sb := l.sandbox(t, sandbox.WithName(harness.UniqueName(t)), l.spinner(), sandbox.WithStopTimeout(time.Second))
	hits := l.watch(t, sb)
	harness.Eventually(t, "the program's packets arrive under allow-all", func() bool { return len(hits()) > 4 })
	spun(t, sb, 1) // its log has what is counted below
	if _, err := sb.Stop(t.Context()); err != nil {
		t.Fatalf("Stop: %v", err)
	}
	setPolicy(t, sb, "allow=good.lab.test")
	sent := l.watchStart(t)
	other, err := l.client(t).Get(t.Context(), sb.Name()) // which resumes it
	if err != nil {
		t.Fatalf("Get: %v", err)
	}
	t.Cleanup(func() { other.Detach() })
	spun(t, other, 2)
	if got := sent(other); len(got) > 0 {
		t.Errorf("%q arrived", got)
	}
	out := l.try(t, other, tried{"allowed", "tls", netip.AddrPortFrom(l.good, 443).String(), "good.lab.test"}, tried{"not", "tls", netip.AddrPortFrom(l.evil, 443).String(), "evil.lab.test"})
	if out["allowed"].Err != "" || out["not"].Err == "" {
		t.Errorf("after the start: %+v", out)
	}
	// Nor when the engine starts it by itself: then nothing runs until it has begun.
	if _, err := sb.Stop(t.Context()); err != nil {
		t.Fatalf("Stop: %v", err)
	}
	eng := harness.NewEngine(t)
	sent = l.watchStart(t)
	if err := eng.StartContainer(t.Context(), record.ContainerName(sb.Name())); err != nil {
		t.Fatal(err)
	}
	out = l.try(t, other, tried{"allowed", "tls", netip.AddrPortFrom(l.good, 443).String(), "good.lab.test"})
	spun(t, other, 3)
	to := netip.AddrPortFrom(l.good, 443).String()
	want := []string{"tcp " + to, "tcp+ " + to}
	if diff := cmp.Diff(want, sent(other)); diff != "" || out["allowed"].Err != "" {
		t.Errorf("started by the engine: arrived (-want +got):\n%s%+v", diff, out)
	}
}

// Fails closed: without PID 1 there is nothing left that could send.
func nothingOutlivesPID1(t *testing.T, l *lab, sb *sandbox.Sandbox) {
	t.Helper()
	addresses := l.addresses(t, sb)
	if err := harness.NewEngine(t).KillContainer(context.Background(), record.ContainerName(sb.Name()), "KILL"); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, "it has stopped", func() bool { return harness.Status(t, sb).State == sandbox.StateStopped })
	last := func() (at time.Time) {
		for key, when := range l.look(t) {
			if source, _, _ := strings.Cut(key, " "); source == addresses[0] && when.After(at) {
				at = when
			}
		}
		return at
	}
	before := last()
	if before.IsZero() {
		t.Error("nothing had arrived before: the program proves nothing")
	}
	// Unless the address is another's by now.
	if after := last(); after.After(before) && !enginetest.AddressTaken(t, addresses[0]) {
		t.Errorf("packets arrive from a sandbox whose PID 1 was killed, %v after others", after.Sub(before))
	}
}
