package network_test

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// Whatever the sandbox does to exhaust PID 1, what is denied stays denied,
// what is allowed works again once it stops, the session goes on, takes commands, and
// stops on time.
func TestExhaustingPID1OpensNothing(t *testing.T) {
	t.Parallel()
	for _, flood := range []struct {
		kind  string
		count int
	}{
		{kind: "silent", count: 2000},
		{kind: "open", count: 2000},
		{kind: "slow", count: 500},
		{kind: "big", count: 100},
		{kind: "headers", count: 100},
		{kind: "dns", count: 8},
	} {
		t.Run(flood.kind, func(t *testing.T) {
			t.Parallel()
			l := theLab(t)
			on := func(a netip.Addr, port uint16) string { return netip.AddrPortFrom(a, port).String() }
			sb := l.sandbox(t, sandbox.WithNetworkPolicy(networkPolicy(t, "allow=*.good.lab.test,good.lab.test")), sandbox.WithPorts(3000), sandbox.WithName(harness.UniqueName(t)))
			began := harness.Status(t, sb).StartedAt
			denied := []tried{
				{"TLS", "tls", on(l.evil, 443), "evil.lab.test"}, {"other SNI", "tls", on(l.good, 8443), "evil.lab.test"}, {"HTTP", "http", on(l.evil, 80), "evil.lab.test"},
				{"TCP", "tcp", on(l.evil, 9000), ""}, {"UDP", "udp", on(l.evil, 9000), ""}, {"DNS", "dns", on(l.evil, 53), "flood-" + flood.kind + ".evil.lab.test"},
				{"private", "tcp", on(l.private, 9000), ""},
			}
			allowed := tried{"allowed", "tls", on(l.good, 8443), "good.lab.test"}
			if got := l.try(t, sb, allowed); got["allowed"].Err != "" {
				t.Fatalf("before: %+v", got)
			}
			// A packet of that try which comes late on a busy machine is none of the flood's.
			harness.Eventually(t, "nothing more comes of that", func() bool {
				hits := l.watch(t, sb)
				time.Sleep(500 * time.Millisecond)
				return len(hits()) == 0
			})

			hits := l.watch(t, sb)
			to, want := on(l.good, 443), []string(nil)
			switch flood.kind {
			case "dns":
				to = on(l.evil, 53)
			case "headers":
				to = on(l.good, 80)
			case "open":
				want = append(want, "tcp "+to)
			}
			cmd := sb.Command(t.Context(), "/probe", "flood", flood.kind, "5", strconv.Itoa(flood.count), to, "good.lab.test")
			out := make(chan string, 1)
			go func() {
				var stderr bytes.Buffer
				cmd.Stderr = &stderr
				said, err := cmd.Output()
				out <- fmt.Sprintf("%s %v %s", strings.TrimSpace(string(said)), err, stderr.String())
			}()
			for done := false; !done; {
				select {
				case said := <-out:
					n, err, _ := strings.Cut(said, " ")
					if begun, _ := strconv.Atoi(n); begun < flood.count || !strings.HasPrefix(err, "<nil>") {
						t.Errorf("the flood began %s", said)
					}
					t.Logf("%s: %s", flood.kind, said)
					done = true
				default:
					for name, o := range l.try(t, sb, denied...) {
						if o.Err == "" {
							t.Errorf("%s meanwhile: %+v", name, o)
						}
					}
				}
			}
			if diff := cmp.Diff(want, hits()); diff != "" {
				t.Errorf("what arrived (-want +got):\n%s", diff)
			}
			harness.Eventually(t, "what is allowed works again", func() bool { return l.try(t, sb, allowed)["allowed"].Err == "" })
			if l.asked(t, "flood-"+flood.kind+".evil.lab.test") {
				t.Error("an unlisted name was asked for")
			}
			// The owner's word comes through, and the session ends in time.
			setPolicy(t, sb, "deny-all")
			if got := l.try(t, sb, allowed); got["allowed"].Err == "" {
				t.Errorf("under deny-all: %+v", got)
			}
			if st := harness.Status(t, sb); st.State != sandbox.StateRunning || !st.StartedAt.Equal(began) {
				t.Errorf("it is %+v; want the session of %v", st, began)
			}
			// Its own exit, and not the engine's when the grace is over.
			ctx, cancel := context.WithTimeout(t.Context(), harness.CallBound)
			defer cancel()
			if _, err := sb.Stop(ctx); err != nil {
				t.Errorf("Stop: %v", err)
			}
			if code, _ := wire.EndCode(harness.Raw(t, sb).State.ExitCode); code != wire.CodeStopped {
				t.Errorf("PID 1 ended with %d, want %d", code, wire.CodeStopped)
			}
		})
	}
}

// /etc/hosts and /etc/resolv.conf belong to root inside, and count for nothing,
// not in this session and not in the next one, when PID 1 starts with what was left
// there.
func TestFilesOfTheResolverCountForNothing(t *testing.T) {
	t.Parallel()
	l := theLab(t)
	c := harness.NewClient(t) // which asks the engine for its servers
	sb, err := c.Create(t.Context(), sandbox.WithName(harness.UniqueName(t)), sandbox.WithImage(l.image), sandbox.WithStopTimeout(time.Second))
	if err != nil {
		t.Fatalf("Create: %v", err)
	}
	harness.Remove(t, c, sb.Name())
	t.Cleanup(func() { sb.Detach() })
	forge := func() {
		t.Helper()
		for name, text := range map[string]string{
			"/etc/resolv.conf": fmt.Sprintf("nameserver %s\noptions timeout:1 attempts:1\n", l.evil),
			"/etc/hosts":       fmt.Sprintf("127.0.0.1 localhost\n%s good.lab.test a.good.lab.test\n", l.evil),
		} {
			if err := sb.WriteFile(t.Context(), name, []byte(text), 0o644); err != nil {
				t.Fatalf("WriteFile: %v", err)
			}
		}
	}
	forge()
	own := tried{"own resolver", "resolve", "", "b.good.lab.test"}
	byHosts := tried{"by hosts", "fetch", "", "https://good.lab.test/"}
	// They do count for programs under allow-all: the attempts are real ones.
	e53, e443 := "udp "+netip.AddrPortFrom(l.evil, 53).String(), "tcp "+netip.AddrPortFrom(l.evil, 443).String()
	l.arrivals(t, "allow-all", sb, []tried{own, byHosts}, e443, e53)
	for range harness.Rounds(1, 2) {
		// PID 1 asks the engine's servers, which know no name of the lab's.
		setPolicy(t, sb, "allow=*.good.lab.test,good.lab.test")
		l.arrivals(t, "by name", sb, []tried{own, byHosts, {"by name", "tls", netip.AddrPortFrom(l.evil, 443).String(), "good.lab.test"}})
		setPolicy(t, sb, "public-only")
		l.arrivals(t, "public-only", sb, []tried{own})
		setPolicy(t, sb, "allow=*.good.lab.test,good.lab.test")
		if _, err := sb.Stop(t.Context()); err != nil {
			t.Fatalf("Stop: %v", err)
		}
		if _, err := sb.Start(t.Context()); err != nil {
			t.Fatalf("Start: %v", err)
		}
		l.arrivals(t, "after a restart", sb, []tried{own, byHosts, {"by name", "tls", netip.AddrPortFrom(l.evil, 443).String(), "good.lab.test"}})
		forge()
	}
	// With the servers that the owner names the same goes to the right place.
	sb, err = l.client(t).Get(t.Context(), sb.Name())
	if err != nil {
		t.Fatalf("Get: %v", err)
	}
	t.Cleanup(func() { sb.Detach() })
	setPolicy(t, sb, "allow=good.lab.test")
	got := l.arrivals(t, "with the lab's servers", sb, []tried{byHosts}, "tcp "+netip.AddrPortFrom(l.good, 443).String())
	if got["by hosts"].Err != "" {
		t.Errorf("with the lab's servers: %+v", got)
	}
}
