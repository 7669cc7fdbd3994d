package network_test

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// setPolicy changes the policy of a sandbox.
func setPolicy(t *testing.T, sb *sandbox.Sandbox, format string, args ...any) {
	t.Helper()
	text := fmt.Sprintf(format, args...)
	if err := sb.Update(t.Context(), sandbox.WithNetworkPolicy(networkPolicy(t, text))); err != nil {
		t.Fatalf("Update to %s: %v", text, err)
	}
}

// arrivals makes attempts and checks which of them arrive, each as "KIND DESTINATION".
func (l *lab) arrivals(t *testing.T, what string, sb *sandbox.Sandbox, attempts []tried, want ...string) map[string]outcome {
	t.Helper()
	hits := l.watch(t, sb)
	got := l.try(t, sb, attempts...)
	if !mayPing(t, sb) {
		want = slices.DeleteFunc(want, func(what string) bool { return strings.HasPrefix(what, "icmp") })
	}
	slices.Sort(want)
	if diff := cmp.Diff(want, hits()); diff != "" {
		t.Errorf("%s: what arrived (-want +got):\n%s%+v", what, diff, got)
	}
	return got
}

// mayPing reports whether the engine lets the groups of a sandbox send echo requests. With userns-remap
// it does not.
func mayPing(t *testing.T, sb *sandbox.Sandbox) bool {
	t.Helper()
	return strings.HasPrefix(harness.Read(t, sb, "/proc/sys/net/ipv4/ping_group_range"), "0\t")
}

// deviceOf returns the name of the sandbox's device with an address in the /64 of six.
func deviceOf(t *testing.T, sb *sandbox.Sandbox, six netip.Addr) string {
	t.Helper()
	prefix := six.As16()
	for line := range strings.Lines(harness.Read(t, sb, "/proc/net/if_inet6")) {
		if fields := strings.Fields(line); strings.HasPrefix(fields[0], hex.EncodeToString(prefix[:8])) {
			return fields[len(fields)-1]
		}
	}
	t.Fatalf("no device has an address in the network of %v", six)
	return ""
}

// linkLocal is the link-local address that follows from an Ethernet address.
func linkLocal(t *testing.T, mac string) netip.Addr {
	t.Helper()
	m, err := net.ParseMAC(mac)
	if err != nil {
		t.Fatal(err)
	}
	return netip.AddrFrom16([16]byte{0xfe, 0x80, 8: m[0] ^ 2, m[1], m[2], 0xff, 0xfe, m[3], m[4], m[5]})
}

// The metadata address as a neighbour, on a network that the sandbox is
// connected to, and IPv6: as strict as IPv4, link-local neighbours included, and no
// forged flow passes for an answer.
func TestAttachedNetworks(t *testing.T) {
	t.Parallel()
	l := theLab(t)
	sb := l.sandbox(t, sandbox.WithPorts(3000))
	six := netip.AddrFrom16([16]byte{0xfd, 0x77, byte(rand.Uint32()), byte(rand.Uint32()), byte(rand.Uint32()), byte(rand.Uint32()), 15: 0xfe})
	meta := netip.MustParseAddr("169.254.169.254")
	network := enginetest.NewNetwork(t, netip.MustParsePrefix("169.254.169.0/24"), netip.PrefixFrom(six, 64).Masked())
	enginetest.Connect(t, network, l.id, meta, six)
	// In a session that runs it would be a change of the network, which ends the session.
	if _, err := sb.Stop(t.Context()); err != nil {
		t.Fatalf("Stop: %v", err)
	}
	enginetest.Connect(t, network, record.ContainerName(sb.Name()), netip.Addr{}, netip.Addr{})
	if _, err := sb.Start(t.Context()); err != nil {
		t.Fatalf("Start: %v", err)
	}
	var lab struct {
		NetworkSettings struct {
			Networks map[string]struct{ MacAddress string }
		}
	}
	enginetest.Get(t, "/containers/"+l.id+"/json", &lab)
	neighbour := linkLocal(t, lab.NetworkSettings.Networks[network].MacAddress)
	device := deviceOf(t, sb, six)
	on := func(a netip.Addr, port int) string { return netip.AddrPortFrom(a, uint16(port)).String() }

	four := []tried{
		{"metadata", "http", on(meta, 80), on(meta, 80)}, {"metadata TLS", "tls", on(meta, 443), "good.lab.test"},
		{"metadata UDP", "udp", on(meta, 9000), ""}, {"metadata ICMP", "icmp", meta.String(), ""},
		{"metadata by its device", "tcp-on", on(meta, 9000), device}, {"metadata DNS", "dns", on(meta, 53), "evil.lab.test"},
	}
	ofFour := []string{
		"tcp " + on(meta, 80), "tcp " + on(meta, 443), "udp " + on(meta, 9000), "icmp8 " + meta.String(), "tcp " + on(meta, 9000),
	}
	sixes := []tried{
		{"TCP", "tcp", on(six, 9000), ""}, {"TLS", "tls", on(six, 443), "evil.lab.test"}, {"HTTP", "http", on(six, 80), "evil.lab.test"},
		{"UDP", "udp", on(six, 9000), ""}, {"ICMP", "icmp", six.String(), ""},
		{"by its device", "tcp-on", on(six, 9000), device},
	}
	ofSix := []string{"tcp " + on(six, 9000), "tcp " + on(six, 443), "tcp " + on(six, 80), "udp " + on(six, 9000), "icmp128 " + six.String()}
	dns := []tried{{"DNS", "dns", on(six, 53), "evil.lab.test"}, {"DNS by TCP", "dns-tcp", on(six, 53), "evil.lab.test"}}
	forged := []tried{{"forged answer", "freebind", on(six, 9000), ""}}
	next := []tried{{"neighbour", "tcp", "[" + neighbour.String() + "%" + device + "]:9000", ""}, {"neighbour UDP", "udp", "[" + neighbour.String() + "%" + device + "]:9000", ""}}
	all := slices.Concat(four, sixes, dns, forged, next)

	// IPv6 arrives, so that the attempts are real; the metadata address is closed all the
	// same, and so are link-local neighbours.
	setPolicy(t, sb, "allow-all")
	harness.Eventually(t, "IPv6 works", func() bool { return l.try(t, sb, sixes[0])["TCP"].Err == "" })
	l.arrivals(t, "allow-all", sb, slices.Concat(four, sixes, dns, next), slices.Concat(ofSix, []string{"udp " + on(six, 53), "tcp " + on(six, 53)})...)

	// Both open by their subnets alone.
	setPolicy(t, sb, "subnets.allow=%s,fe80::/10", meta)
	l.arrivals(t, "allowed neighbours", sb, slices.Concat(four, sixes, dns, next), slices.Concat(ofFour,
		[]string{"tcp " + netip.AddrPortFrom(neighbour, 9000).String(), "udp " + netip.AddrPortFrom(neighbour, 9000).String()})...)
	setPolicy(t, sb, "subnets.allow=%s", six)
	l.arrivals(t, "allowed IPv6", sb, slices.Concat(four, sixes, dns, forged), ofSix...)
	setPolicy(t, sb, "subnets.allow=fd00::/8 subnets.deny=%s", six)
	l.arrivals(t, "denied in allowed IPv6", sb, all)

	for _, closed := range []string{"deny-all", "public-only", "allow=*", "allow=good.lab.test,evil.lab.test"} {
		setPolicy(t, sb, "%s", closed)
		if closed == "allow=good.lab.test,evil.lab.test" {
			// The names lead out by IPv4, whatever address was asked for.
			l.arrivals(t, closed, sb, slices.Concat(dns, forged, next, four[2:], sixes[3:]))
			l.arrivals(t, closed+", redirected from IPv6", sb, sixes[1:2], "tcp "+on(l.evil, 443))
			continue
		}
		l.arrivals(t, closed, sb, all)
	}
}

// attemptIn makes the attempts in a container of the lab's image.
func attemptIn(t *testing.T, eng *engine.Engine, container string, attempts ...tried) map[string]outcome {
	t.Helper()
	in, err := json.Marshal(attempts)
	if err != nil {
		t.Fatal(err)
	}
	s, err := eng.Exec(t.Context(), container, engine.ExecSpec{Argv: []string{"/probe", "try"}, Stdin: true})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := s.Write(in); err != nil {
		t.Fatal(err)
	}
	s.CloseWrite()
	out, err := io.ReadAll(s)
	if err != nil {
		t.Fatal(err)
	}
	return outcomes(t, out)
}

// The control of the attempts that take NET_RAW: beside the very same PID 1,
// locked, in a container that keeps it, frames get out past every rule. What goes
// through the kernel does not, there either.
func TestNetRawWouldLeak(t *testing.T) {
	t.Parallel()
	l := theLab(t)
	sb := l.sandbox(t, sandbox.WithNetworkPolicy(sandbox.DenyAll()))
	attempts := []tried{
		{"frame", "packet", netip.AddrPortFrom(l.evil, 9001).String(), ""}, {"frame past the queue", "packet-past", netip.AddrPortFrom(l.evil, 9002).String(), ""},
		{"TCP", "tcp", netip.AddrPortFrom(l.evil, 9000).String(), ""}, {"UDP", "udp", netip.AddrPortFrom(l.evil, 9000).String(), ""},
	}
	xdp := tried{"AF_XDP", "xdp", "", ""}
	l.arrivals(t, "a sandbox", sb, attempts)

	var like struct {
		Config     struct{ Entrypoint, Cmd []string }
		HostConfig struct {
			Mounts []struct{ Type, Source, Target string }
		}
	}
	enginetest.Get(t, "/containers/"+record.ContainerName(sb.Name())+"/json", &like)
	spec := engine.ContainerSpec{
		Name: "net-raw-" + record.NewID(), Image: l.image, Entrypoint: harness.WithoutMounts(t, like.Config.Entrypoint), Cmd: like.Config.Cmd, NetworkMode: "bridge",
		CapAdd: []string{"NET_ADMIN", "NET_RAW"},
	}
	for _, m := range like.HostConfig.Mounts {
		if strings.HasPrefix(m.Target, "/.agent-sandbox") {
			spec.Mounts = append(spec.Mounts, engine.Mount{Type: m.Type, Source: m.Source, Target: m.Target, ReadOnly: true, NoCopy: true})
		}
	}
	eng := harness.NewEngine(t)
	id := harness.StartContainer(t, eng, spec)
	// Locked: TCP from there arrives until PID 1 has come that far.
	tryThere := func(attempts ...tried) map[string]outcome { return attemptIn(t, eng, id, attempts...) }
	harness.Eventually(t, "PID 1 has locked the network", func() bool { return tryThere(attempts[2])["TCP"].Err != "" })
	before := l.look(t)
	got := tryThere(attempts...)
	after := l.look(t)
	var arrived []string
	for _, a := range containerAddresses(t, id) {
		for key, last := range after {
			if what, ok := strings.CutPrefix(key, a+" "); ok && last.After(before[key]) {
				arrived = append(arrived, what)
			}
		}
	}
	slices.Sort(arrived)
	// A kernel without AF_XDP has none for the sandbox either.
	if here, there := l.try(t, sb, xdp)["AF_XDP"].Err, tryThere(xdp)["AF_XDP"].Err; here != "operation not permitted" && here != there || there == "operation not permitted" {
		t.Errorf("AF_XDP: %q in the sandbox and %q with NET_RAW", here, there)
	}
	want := []string{"udp " + netip.AddrPortFrom(l.evil, 9001).String(), "udp " + netip.AddrPortFrom(l.evil, 9002).String()}
	if diff := cmp.Diff(want, arrived); diff != "" {
		t.Errorf("with NET_RAW the frames, and they alone, must get out (-want +got):\n%s%+v", diff, got)
	}
}

// onMachine listens in the network of the engine's machine, and returns a function that returns how
// many connections have come, and at which addresses they can come.
func (l *lab) onMachine(t *testing.T) (connections func() int, at []netip.AddrPort) {
	t.Helper()
	s, err := l.eng.Exec(t.Context(), l.machine(t), engine.ExecSpec{Argv: []string{"/probe", "count"}, Stdin: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	lines := json.NewDecoder(s)
	if err := lines.Decode(&at); err != nil {
		t.Fatalf("the addresses of the machine: %v", err)
	}
	return func() (n int) {
		t.Helper()
		if _, err := io.WriteString(s, "\n"); err != nil {
			t.Fatal(err)
		}
		if err := lines.Decode(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}, at
}

// machine starts a container in the network of the engine's machine, for attemptIn. The test itself
// may be elsewhere.
func (l *lab) machine(t *testing.T) string {
	t.Helper()
	return harness.StartContainer(t, l.eng, engine.ContainerSpec{
		Name: "probe-" + record.NewID(), Image: l.image, Entrypoint: []string{"/probe", "listen", "0"}, NetworkMode: "host",
	})
}

// Services of the engine's machine, on the bridge and on its other addresses,
// public ones too.
func TestTheMachineIsOutOfReach(t *testing.T) {
	t.Parallel()
	l := theLab(t)
	connections, addrs := l.onMachine(t)
	var attempts []tried
	for _, a := range addrs {
		attempts = append(attempts, tried{a.Addr().String(), "tcp", a.String(), ""})
	}
	sb := l.sandbox(t)
	check := func(policy string, want bool) {
		t.Helper()
		setPolicy(t, sb, "%s", policy)
		before := connections()
		for name, o := range l.try(t, sb, attempts...) {
			if (o.Err == "") != want {
				t.Errorf("%s: %s: %+v; want success: %v", policy, name, o, want)
			}
		}
		if n := connections() - before; (n > 0) != want {
			t.Errorf("%s: %d connections arrived", policy, n)
		}
	}
	check("allow-all", true)
	check("public-only", false)
	check("allow=*", false)
	check("allow=good.lab.test", false)
	check("deny-all", false)
	check(fmt.Sprintf("subnets.allow=%s", strings.Join(func() (all []string) {
		for _, a := range attempts {
			all = append(all, a.Name)
		}
		return all
	}(), ",")), true)
}

// Nothing comes into a sandbox but by its published ports; these answer
// under deny-all, and DialContext works. They answer the engine's machine, no other
// sandbox, under any policy of either.
func TestWhatComesIn(t *testing.T) {
	t.Parallel()
	l := theLab(t)
	server := l.sandbox(t, sandbox.WithPorts(3000), sandbox.WithCommand("/probe", "listen", "3000", "4000"), sandbox.WithNetworkPolicy(sandbox.DenyAll()))
	if err := server.WaitPort(t.Context(), 3000); err != nil {
		t.Fatalf("WaitPort: %v", err)
	}
	talk := func(c net.Conn, err error) error {
		if err != nil {
			return err
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(5 * time.Minute))
		if _, err := io.WriteString(c, "hello\n"); err != nil {
			return err
		}
		b := make([]byte, 6)
		if _, err = io.ReadFull(c, b); err == nil && !bytes.Equal(b, []byte("hello\n")) {
			err = fmt.Errorf("it says %q", b)
		}
		return err
	}
	published, err := server.Port(t.Context(), 3000)
	if err != nil {
		t.Fatalf("Port: %v", err)
	}
	for _, policy := range []string{"deny-all", "allow=good.lab.test", "public-only", "allow-all"} {
		setPolicy(t, server, "%s", policy)
		if err := talk(net.Dial("tcp", published.String())); err != nil {
			t.Errorf("%s: the published port: %v", policy, err)
		}
		for _, at := range []string{"localhost:3000", "localhost:4000"} {
			if err := talk(server.DialContext(t.Context(), "tcp", at)); err != nil {
				t.Errorf("%s: DialContext %s: %v", policy, at, err)
			}
		}
	}
	// What is published is TCP: UDP of the same number is not, under no policy.
	if o := l.try(t, server, tried{"UDP", "udp", "127.0.0.1:3000", ""})["UDP"]; o.Err != "" {
		t.Errorf("UDP inside: %+v; the attempts from outside prove nothing", o)
	}
	ip := l.addresses(t, server)[0]
	machine := l.machine(t)
	for _, policy := range []string{"deny-all", "allow-all", "allow=good.lab.test"} {
		setPolicy(t, server, "%s", policy)
		for name, o := range attemptIn(t, l.eng, machine, tried{"of the published number", "udp", ip + ":3000", ""}, tried{"of another", "udp", ip + ":4000", ""}) {
			if o.Err == "" {
				t.Errorf("%s: a UDP port %s answers to the machine: %+v", policy, name, o)
			}
		}
	}
	// From the bridge, for the machine or another sandbox.
	got := attemptIn(t, l.eng, machine, tried{"published", "tcp", ip + ":3000", ""}, tried{"other", "tcp", ip + ":4000", ""})
	if got["published"].Err != "" {
		t.Errorf("the published port by the container's address: %+v", got["published"])
	}
	if got["other"].Err == "" {
		t.Errorf("a port that is not published answers to the machine: %+v", got["other"])
	}
	other := l.sandbox(t)
	attempts := []tried{{"published", "tcp", ip + ":3000", ""}, {"not published", "tcp", ip + ":4000", ""}, {"UDP", "udp", ip + ":4000", ""}, {"UDP of the same number", "udp", ip + ":3000", ""}, {"ICMP", "icmp", ip, ""}}
	// The attempts are real ones: what listens without a policy of ours is reached.
	if o := l.try(t, other, tried{"lab", "tcp", netip.AddrPortFrom(l.private, 9000).String(), ""})["lab"]; o.Err != "" {
		t.Errorf("a neighbour that is no sandbox: %+v", o)
	}
	for _, servers := range []string{"allow-all", "deny-all"} {
		setPolicy(t, server, "%s", servers)
		for _, policy := range []string{"allow-all", "subnets.allow=" + ip, "public-only", "allow=*", "deny-all", "allow=good.lab.test"} {
			setPolicy(t, other, "%s", policy)
			for name, o := range l.try(t, other, attempts...) {
				if o.Err == "" {
					t.Errorf("from another under %s to one under %s: %s: %+v; want it refused", policy, servers, name, o)
				}
			}
		}
	}
}
