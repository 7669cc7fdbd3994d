package network_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// way is a way out, and what of it arrives in the lab under each policy: the packet that
// is logged, or "" for none.
type way struct {
	tried
	open   string // under allow-all, where it shows that the attempt is a real one
	public string // under public-only; "=" as under allow-all
	custom string // under names alone
	subnet string // under names, an allowed subnet and a denied one
	// fails says that the attempt ends with an error although it arrives, as one does
	// that has no answer; answers that it does not although nothing arrives.
	fails, answers []string
	silent         bool // nothing of it may ever arrive, under any policy
}

// ways are all ways out of a sandbox that are known.
func (l *lab) ways() []way {
	on := func(a netip.Addr, port uint16) string { return netip.AddrPortFrom(a, port).String() }
	g443, e443 := "tcp "+on(l.good, 443), "tcp "+on(l.evil, 443)
	w := func(name, kind, to, as string) tried { return tried{name, kind, to, as} }
	meta := netip.MustParseAddr("169.254.169.254")
	sctp := way{tried: w("SCTP", "sctp", on(l.evil, 9000), ""), open: "ip132 " + l.evil.String(), public: "=", subnet: "ip132 " + l.evil.String()}
	if fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_SCTP); err == nil {
		unix.Close(fd)
	} else {
		sctp = way{tried: sctp.tried, silent: true} // this kernel has none
	}
	return []way{
		// Names that are allowed.
		{tried: w("allowed name, 443", "tls", on(l.good, 443), "good.lab.test"), open: g443, public: "=", custom: g443},
		{tried: w("allowed name, 8443", "tls", on(l.good, 8443), "good.lab.test"), open: "tcp " + on(l.good, 8443), public: "=", custom: "tcp " + on(l.good, 8443)},
		{tried: w("allowed name, HTTP/2", "h2", on(l.good, 443), "good.lab.test"), open: g443, public: "=", custom: g443},
		{tried: w("allowed name, HTTP", "http", on(l.good, 80), "good.lab.test"), open: "tcp " + on(l.good, 80), public: "=", custom: "tcp " + on(l.good, 80)},
		{tried: w("allowed name in capitals", "tls", on(l.good, 443), "GOOD.Lab.Test"), open: g443, public: "=", custom: g443},
		{tried: w("allowed name, CNAME", "tls", on(l.good, 443), "cname.good.lab.test"), open: g443, public: "=", custom: g443},
		{tried: w("wildcard", "tls", on(l.good, 443), "a.wild.lab.test"), open: g443, public: "=", custom: g443},
		{tried: w("wildcard, deep", "tls", on(l.good, 443), "a.b.c.wild.lab.test"), open: g443, public: "=", custom: g443},
		{tried: w("Postgres with TLS", "postgres", on(l.good, 5432), "good.lab.test"), open: "tcp " + on(l.good, 5432), public: "=", custom: "tcp " + on(l.good, 5432)},
		{tried: w("hello in pieces", "fragments", on(l.good, 443), "good.lab.test"), open: g443, public: "=", custom: g443},
		// Names that are not, and what has none.
		{tried: w("unlisted name", "tls", on(l.evil, 443), "evil.lab.test"), open: e443, public: "=", subnet: e443},
		{tried: w("unlisted name, HTTP", "http", on(l.evil, 80), "evil.lab.test"), open: "tcp " + on(l.evil, 80), public: "=", subnet: "tcp " + on(l.evil, 80)},
		{tried: w("unlisted name, Postgres", "postgres", on(l.evil, 5432), "evil.lab.test"), open: "tcp " + on(l.evil, 5432), public: "=", subnet: "tcp " + on(l.evil, 5432)},
		{tried: w("no SNI", "tls", on(l.good, 8443), ""), open: "tcp " + on(l.good, 8443), public: "="},
		{tried: w("Host is an address", "http", on(l.good, 80), on(l.good, 80)), open: "tcp " + on(l.good, 80), public: "="},
		{tried: w("apex of a wildcard", "tls", on(l.evil, 8443), "wild.lab.test"), open: "tcp " + on(l.evil, 8443), public: "=", subnet: "tcp " + on(l.evil, 8443)},
		{tried: w("allowed address, other SNI", "tls", on(l.good, 443), "evil.lab.test"), open: g443, public: "="},
		// The name picks the destination, not the client.
		{tried: w("allowed SNI, other address", "tls", on(l.evil, 443), "good.lab.test"), open: e443, public: "=", custom: g443, subnet: e443},
		{tried: w("allowed Host, other address", "http", on(l.evil, 80), "good.lab.test"), open: "tcp " + on(l.evil, 80), public: "=", custom: "tcp " + on(l.good, 80), subnet: "tcp " + on(l.evil, 80)},
		{tried: w("metadata address, allowed SNI", "tls", on(meta, 443), "good.lab.test"), custom: g443},
		// Protocols that name nobody.
		{tried: w("ssh to an allowed address", "ssh", on(l.good, 22), ""), open: "tcp " + on(l.good, 22), public: "="},
		{tried: w("unknown protocol", "tcp", on(l.good, 9000), ""), open: "tcp " + on(l.good, 9000), public: "="},
		{tried: w("ssh", "ssh", on(l.evil, 22), ""), open: "tcp " + on(l.evil, 22), public: "=", subnet: "tcp " + on(l.evil, 22)},
		{tried: w("data in the first packet", "fastopen", on(l.evil, 9000), ""), open: "tcp " + on(l.evil, 9000), public: "=", subnet: "tcp " + on(l.evil, 9000)},
		{tried: w("UDP to an allowed address", "udp", on(l.good, 9000), ""), open: "udp " + on(l.good, 9000), public: "="},
		{tried: w("UDP", "udp", on(l.evil, 9000), ""), open: "udp " + on(l.evil, 9000), public: "=", subnet: "udp " + on(l.evil, 9000)},
		{tried: w("QUIC", "udp", on(l.good, 443), ""), open: "udp " + on(l.good, 443), public: "="},
		{tried: w("NTP", "udp", on(l.good, 123), ""), open: "udp " + on(l.good, 123), public: "="},
		{tried: w("multicast DNS's port", "udp", on(l.good, 5353), ""), open: "udp " + on(l.good, 5353), public: "="},
		{tried: w("ICMP echo", "icmp", l.good.String(), ""), open: "icmp8 " + l.good.String(), public: "="},
		{tried: w("ICMP echo to a subnet", "icmp", l.evil.String(), ""), open: "icmp8 " + l.evil.String(), public: "=", subnet: "icmp8 " + l.evil.String()},
		{tried: w("UDP-Lite", "udplite", on(l.good, 9000), ""), open: "ip136 " + l.good.String(), public: "="},
		sctp,
		// Protected addresses, by number and behind a name that is allowed.
		{tried: w("private address", "tcp", on(l.private, 9000), ""), open: "tcp " + on(l.private, 9000)},
		{tried: w("private address, UDP", "udp", on(l.private, 9000), ""), open: "udp " + on(l.private, 9000)},
		{tried: w("private address, ICMP", "icmp", l.private.String(), ""), open: "icmp8 " + l.private.String()},
		{tried: w("name that leads to a private address", "tls", on(l.private, 443), "private.wild.lab.test"), open: "tcp " + on(l.private, 443)},
		{tried: w("name that leads to a private address, another asked", "tls", on(l.good, 8443), "private.wild.lab.test"), open: "tcp " + on(l.good, 8443), public: "="},
		{tried: w("metadata address", "http", on(meta, 80), on(meta, 80)), silent: true},
		{tried: w("metadata address, UDP", "udp", on(meta, 9000), ""), silent: true},
		{tried: w("name that leads to the metadata address", "tls", on(meta, 443), "meta.wild.lab.test"), silent: true},
		{tried: w("name that leads to the machine", "tls", on(l.evil, 8443), "host.wild.lab.test"), open: "tcp " + on(l.evil, 8443), public: "=", subnet: "tcp " + on(l.evil, 8443)},
		{tried: w("name that leads to this host", "tls", on(l.good, 8443), "self.wild.lab.test"), open: "tcp " + on(l.good, 8443), public: "="},
		{tried: w("name that leads to the engine's resolver", "tls", on(l.good, 8443), "engine.wild.lab.test"), open: "tcp " + on(l.good, 8443), public: "="},
		// DNS. What is answered comes from PID 1, unless allow-all.
		{tried: w("DNS, listed name", "dns", on(l.dns, 53), "good.lab.test"), answers: []string{"public", "custom"}},
		{tried: w("DNS, listed name, from another", "dns", on(l.evil, 53), "a.wild.lab.test"), open: "udp " + on(l.evil, 53), answers: []string{"public", "custom"}},
		{tried: w("DNS by TCP, listed name, from another", "dns-tcp", on(l.evil, 53), "b.wild.lab.test"), open: "tcp " + on(l.evil, 53), answers: []string{"public", "custom"}},
		{tried: w("DNS, TXT of a listed name", "dns-txt", on(l.dns, 53), "good.lab.test"), answers: []string{"public", "custom", "subnet"}},
		{tried: w("DNS, HTTPS record of a listed name", "dns-https", on(l.evil, 53), "good.lab.test"), open: "udp " + on(l.evil, 53)},
		{tried: w("DNS, metadata behind a listed name", "dns", on(l.evil, 53), "meta.wild.lab.test"), open: "udp " + on(l.evil, 53)},
		{tried: w("DNS, unlisted name", "dns", on(l.evil, 53), "tunnel-1.evil.lab.test"), open: "udp " + on(l.evil, 53), fails: []string{"open"}},
		{tried: w("DNS by TCP, unlisted name", "dns-tcp", on(l.evil, 53), "tunnel-2.evil.lab.test"), open: "tcp " + on(l.evil, 53), fails: []string{"open"}},
		{tried: w("DNS at an allowed address, unlisted name", "dns", on(l.good, 53), "tunnel-3.evil.lab.test"), open: "udp " + on(l.good, 53), fails: []string{"open"}},
		{tried: w("DNS at a private address, unlisted name", "dns", on(l.private, 53), "tunnel-4.evil.lab.test"), open: "udp " + on(l.private, 53), fails: []string{"open"}},
		{tried: w("DNS at the engine's resolver, unlisted name", "dns", "127.0.0.11:53", "tunnel-5.evil.lab.test"), silent: true},
		{tried: w("DNS by the sandbox's own resolver, unlisted name", "resolve", "", "tunnel-6.evil.lab.test"), silent: true},
		{tried: w("DNS over TLS", "dns-tls", on(l.good, 853), "tunnel-7.evil.lab.test"), open: "tcp " + on(l.good, 853), public: "=", fails: []string{"open", "public"}},
		// What it takes capabilities for, other users, other devices.
		{tried: w("SOCK_RAW", "raw", on(l.evil, 9000), ""), silent: true},
		{tried: w("AF_PACKET", "packet", on(l.evil, 9000), ""), silent: true},
		{tried: w("AF_PACKET past the queue", "packet-past", on(l.evil, 9000), ""), silent: true},
		{tried: w("SO_MARK", "tcp-mark", on(l.evil, 9000), ""), silent: true},
		{tried: w("AF_VSOCK", "vsock", "", ""), silent: true},
		{tried: w("AF_XDP", "xdp", "", ""), silent: true},
		{tried: w("another user", "as-nobody", on(l.good, 9000), ""), open: "tcp " + on(l.good, 9000), public: "="},
		{tried: w("SO_BINDTODEVICE", "tcp-device", on(l.good, 9000), ""), open: "tcp " + on(l.good, 9000), public: "="},
		{tried: w("SO_BINDTODEVICE, UDP", "udp-device", on(l.good, 9000), ""), open: "udp " + on(l.good, 9000), public: "="},
		{tried: w("SO_BINDTODEVICE to the loopback", "tcp-lo", on(l.good, 9000), ""), silent: true},
		// PID 1's own doors, dialled directly.
		{tried: w("the proxy itself", "tls", "127.0.0.1:15001", "good.lab.test"), silent: true},
		{tried: w("the proxy itself, HTTP", "http", "127.0.0.1:15001", "good.lab.test"), silent: true},
		{tried: w("the DNS filter itself", "dns", "127.0.0.1:15053", "good.lab.test"), silent: true},
		{tried: w("the DNS filter itself by TCP", "dns-tcp", "127.0.0.1:15053", "good.lab.test"), silent: true},
	}
}

// Each way out is tried under each policy, the policy
// being changed while the sandbox runs; what arrives in the lab is exactly what should.
// Under allow-all the same attempts arrive, so that they are known to be real ones.
func TestWaysOutUnderEachPolicy(t *testing.T) {
	t.Parallel()
	l := theLab(t)
	names := "allow=good.lab.test,cname.good.lab.test,*.wild.lab.test"
	policies := []struct {
		name, text string
		arrives    func(way) string
	}{
		{"open", "allow-all", func(w way) string { return w.open }},
		{"custom", names, func(w way) string { return w.custom }},
		{"subnet", fmt.Sprintf("%s subnets.allow=%s subnets.deny=%s", names, l.evil, l.good), func(w way) string { return w.subnet }},
		{"deny", "deny-all", func(way) string { return "" }},
		{"public", "public-only", func(w way) string {
			if w.public == "=" {
				return w.open
			}
			return w.public
		}},
		{"custom again", names, func(w way) string { return w.custom }},
	}
	ways := l.ways()
	var attempts []tried
	for _, w := range ways {
		attempts = append(attempts, w.tried)
	}
	sb := l.sandbox(t, sandbox.WithPorts(3000))
	pings := mayPing(t, sb)
	for _, p := range policies {
		if err := sb.Update(t.Context(), sandbox.WithNetworkPolicy(networkPolicy(t, p.text))); err != nil {
			t.Fatalf("Update to %s: %v", p.text, err)
		}
		hits := l.watch(t, sb)
		got := l.try(t, sb, attempts...)
		arrived := hits()
		mode := strings.Fields(p.name)[0]
		var expected []string
		for _, w := range ways {
			t.Run(p.name+"/"+w.Name, func(t *testing.T) {
				want := p.arrives(w)
				if w.Kind == "icmp" && !pings {
					want = ""
				}
				if want != "" {
					expected = append(expected, want)
					if !slices.Contains(arrived, want) {
						t.Errorf("%s did not arrive: %+v", want, got[w.Name])
					}
				}
				succeeds := want != "" && !slices.Contains(w.fails, mode) || slices.Contains(w.answers, mode)
				if mode == "open" && w.Kind == "resolve" || w.Kind == "udplite" || w.Kind == "sctp" || strings.HasPrefix(w.Kind, "dns") && strings.HasPrefix(w.To, l.dns.String()) && mode == "open" {
					return // what becomes of it is not for the policy to say
				}
				if o := got[w.Name]; (o.Err == "") != succeeds {
					t.Errorf("%+v; want success: %v", o, succeeds)
				}
			})
		}
		slices.Sort(expected)
		if diff := cmp.Diff(slices.Compact(expected), arrived); diff != "" {
			t.Errorf("%s: what arrived (-want +got):\n%s", p.name, diff)
		}
		if p.name != "open" {
			continue
		}
		for _, w := range ways {
			if w.open == "" && !w.silent && w.custom == "" && len(w.answers) == 0 {
				t.Errorf("%s: nothing shows that it is a real attempt", w.Name)
			}
		}
	}
}

// A policy that lists nothing allows nothing, and the ready ones are what they are called.
func TestPoliciesPrintAsTheyAreParsed(t *testing.T) {
	t.Parallel()
	for want, p := range map[string]sandbox.NetworkPolicy{
		"allow-all":   sandbox.AllowAll(),
		"public-only": sandbox.PublicOnly(),
		"deny-all":    sandbox.DenyAll(),
		"allow=*.example.com,xn--bcher-kva.example subnets.allow=10.0.0.0/8,fd00::1/128 subnets.deny=10.1.0.0/16 resolve-into=192.168.0.0/16": {
			Allow:       []string{"BÜCHER.example.", "*.Example.com", "*.example.com"},
			Subnets:     sandbox.Subnets{Allow: []string{"10.1.2.3/8", "fd00::1"}, Deny: []string{"10.1.0.0/17", "10.1.128.0/17"}},
			ResolveInto: []string{"192.168.0.0/16"},
		},
	} {
		if got := p.String(); got != want || fmt.Sprint(p) != want {
			t.Errorf("String: %q, want %q", got, want)
		}
		back, err := sandbox.ParseNetworkPolicy(want)
		if err != nil || back.String() != want {
			t.Errorf("ParseNetworkPolicy(%q) = %v, %v", want, back, err)
		}
		text, err := json.Marshal(map[string]any{"network": p})
		if err != nil || string(text) != fmt.Sprintf("{%q:%q}", "network", want) {
			t.Errorf("as JSON: %s, %v", text, err)
		}
	}
	if got := (sandbox.NetworkPolicy{}).String(); got != "deny-all" {
		t.Errorf("the zero policy is %q, want deny-all", got)
	}
	ready := sandbox.AllowAll()
	ready.Subnets.Deny = []string{"10.0.0.0/8"}
	if err := ready.Check(); !errors.Is(err, sandbox.ErrInvalidArgument) {
		t.Errorf("allow-all with a list: %v, want ErrInvalidArgument", err)
	}
}

// Every mistake of a policy is named before anything is made, with those of the other
// options; an engine is not even looked for.
func TestPolicyMistakesAreAllNamed(t *testing.T) {
	t.Parallel()
	c := harness.Unconnected(t, sandbox.WithHost("unix:///nowhere.sock"))
	_, err := c.Create(t.Context(), sandbox.WithName("Bad"), sandbox.WithNetworkPolicy(sandbox.NetworkPolicy{
		Allow:       []string{"a b", "10.0.0.1", ""},
		Subnets:     sandbox.Subnets{Allow: []string{"10.0.0.0/40"}, Deny: []string{"all"}},
		ResolveInto: []string{"x"},
		Transform: map[string]sandbox.Transform{
			"*":           {},
			"t.example":   {SetHeaders: sandbox.Headers{"Bad Header": "s3cret", "Host": "s3cret", "X": "s3cret\r\nY: 1"}},
			"T.example.":  {},
			"u.example":   {SetHeaders: sandbox.Headers{"X": strings.Repeat("s3cret", 20000)}},
			"v..example":  {},
			"w.example":   {SetHeaders: sandbox.Headers{"X": "s3cret "}},
			"many.exampl": {SetHeaders: many(17)},
		},
	}))
	for _, complaint := range []string{
		`"Bad"`, `"a b"`, `"10.0.0.1"`, `""`, `"10.0.0.0/40"`, `"all"`, `"x"`, `"*"`, `"Bad Header"`, `"Host"`, `"X"`, "control character",
		`"T.example." and "t.example"`, "65536", `"v..example"`, "a space", "17 headers",
	} {
		if !errors.Is(err, sandbox.ErrInvalidArgument) || !strings.Contains(err.Error(), complaint) {
			t.Errorf("Create: %v, want ErrInvalidArgument with %s", err, complaint)
		}
	}
	if strings.Contains(err.Error(), "s3cret") {
		t.Errorf("the error tells a secret: %v", err)
	}
	if _, err := c.Get(t.Context(), "x", sandbox.WithTransform(map[string]sandbox.Transform{"a.example": {SetHeaders: sandbox.Headers{"": ""}}})); !errors.Is(err, sandbox.ErrInvalidArgument) {
		t.Errorf("Get with a bad transform: %v, want ErrInvalidArgument", err)
	}
	if _, err := c.Get(t.Context(), "x", sandbox.WithTransform(map[string]sandbox.Transform{"a b": {}})); !errors.Is(err, sandbox.ErrInvalidArgument) {
		t.Errorf("Get with a transform of no name: %v, want ErrInvalidArgument", err)
	}
	if _, err := sandbox.ParseNetworkPolicy("deny"); !errors.Is(err, sandbox.ErrInvalidArgument) {
		t.Errorf("ParseNetworkPolicy: %v, want ErrInvalidArgument", err)
	}
}

func many(n int) sandbox.Headers {
	h := sandbox.Headers{}
	for i := range n {
		h[fmt.Sprintf("X-%d", i)] = "s3cret"
	}
	return h
}

// What a transform sets is not printed, however one tries.
func TestTransformsPrintNoSecret(t *testing.T) {
	t.Parallel()
	p := sandbox.NetworkPolicy{Transform: map[string]sandbox.Transform{"api.example": {SetHeaders: sandbox.Headers{"Authorization": "s3cret"}}}}
	var out bytes.Buffer
	for _, v := range []any{
		p, &p, p.Transform, p.Transform["api.example"], p.Transform["api.example"].SetHeaders, []any{p}, struct{ P sandbox.NetworkPolicy }{p},
		sandbox.Status{Network: p}, sandbox.WithNetworkPolicy(p),
	} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%d", "%x", "%X", "%t", "%T"} {
			fmt.Fprintf(&out, verb+"\n", v)
		}
		text, err := json.Marshal(v)
		fmt.Fprintln(&out, string(text), err)
		slog.New(slog.NewTextHandler(&out, nil)).Info("x", "v", v)
		slog.New(slog.NewJSONHandler(&out, nil)).Info("x", "v", v)
	}
	all := out.String()
	for _, form := range []string{"s3cret", fmt.Sprintf("%x", "s3cret"), fmt.Sprintf("%X", "s3cret"), "115 51", "czNjcmV0"} {
		if i := strings.Index(all, form); i >= 0 {
			t.Errorf("printed: %s", all[max(0, i-200):i+20])
		}
	}
	if !strings.Contains(all, "Authorization") || !strings.Contains(all, "transform=api.example") {
		t.Error("names of headers are printed nowhere: was anything?")
	}
}
