//go:build linux

package egress

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/seed-1a2d6d8f/sandbox/internal/policy"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// libcs are the compilers of the C libraries that are compared.
var libcs = map[string][]string{"glibc": {"gcc"}, "musl": {"musl-gcc", "-static"}}

// resolvers are programs that resolve names, each by one of the C libraries.
type resolvers struct {
	ns    *netns
	dir   string
	slots chan struct{} // of those that run
}

func newResolvers(t *testing.T, ns *netns) *resolvers {
	r := &resolvers{ns, t.TempDir(), make(chan struct{}, 100)}
	for libc, compiler := range libcs {
		args := append(slices.Clone(compiler[1:]), "-o", filepath.Join(r.dir, libc), "testdata/resolve.c")
		if out, err := exec.Command(compiler[0], args...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s (ci/cc and ci/clients install it)", compiler[0], err, out)
		}
	}
	return r
}

// resolution is what a program gets for a name.
type resolution struct {
	failed string // the error
	canon  string
	addrs  []string
}

// again is the error of a library that got no answer, as the programs of this test print it.
const again = "AGAIN"

func (r resolution) String() string {
	return strings.TrimSpace(r.failed + r.canon + " " + strings.Join(r.addrs, " "))
}

// resolve resolves a name by a C library with a resolv.conf. The family is "4", "6" or "0" for both.
func (r *resolvers) resolve(libc, family, name, conf string) resolution {
	r.slots <- struct{}{}
	defer func() { <-r.slots }()
	file, err := os.CreateTemp(r.dir, "resolv")
	if err != nil {
		r.ns.t.Error(err)
		return resolution{}
	}
	file.WriteString(conf)
	file.Close()
	var out []byte
	r.ns.aside(func() { out, err = exec.Command(filepath.Join(r.dir, libc), file.Name(), family, name).Output() })
	lines := strings.Fields(string(out))
	exit, fails := errors.AsType[*exec.ExitError](err)
	switch {
	case err == nil && len(lines) > 1:
		slices.Sort(lines[1:])
		return resolution{canon: lines[0], addrs: slices.Compact(lines[1:])}
	case fails && exit.ExitCode() == 1:
		return resolution{failed: strings.TrimSpace(string(out))}
	case fails && exit.ExitCode() == -1: // of its own SIGALRM
		return resolution{failed: again}
	}
	r.ns.t.Errorf("%s: %v: %q", libc, err, out)
	return resolution{}
}

// servedBy returns a resolv.conf.
func servedBy(servers ...string) string {
	return "nameserver " + strings.Join(servers, "\nnameserver ") + "\n"
}

// serveResolver runs PID 1's resolver at an address of a namespace, with these servers.
func serveResolver(t *testing.T, ns *netns, addr string, rules *policy.Rules, servers ...string) {
	t.Helper()
	e := &Enforcer{dialer: func(ctx context.Context, d net.Dialer, network, addr string) (conn net.Conn, err error) {
		err = net.ErrClosed
		ns.aside(func() { conn, err = d.DialContext(ctx, network, addr) })
		return conn, err
	}}
	e.resolver = newResolver(e)
	s := &activePolicy{version: 1, rules: rules}
	for _, a := range servers {
		s.upstream = append(s.upstream, netip.MustParseAddr(a))
	}
	e.active.Store(s)
	ns.ip("addr add " + addr + "/32 dev lo")
	var udp net.PacketConn
	var tcp net.Listener
	var err error
	ns.do(func() {
		if udp, err = net.ListenPacket("udp", addr+":53"); err == nil {
			tcp, err = net.Listen("tcp", addr+":53")
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() { e.resolver.serveUDP(udp.(*net.UDPConn)) })
	serving.Go(func() { e.resolver.serveTCP(tcp.(*net.TCPListener)) })
	t.Cleanup(func() { udp.Close(); tcp.Close(); serving.Wait() })
}

// The resolver of PID 1 stands for those of C libraries: where these resolve a name by themselves, so
// do they by way of it, whatever servers there are, and get no address less.
func TestTheResolverIsAsPatientAsCLibraries(t *testing.T) {
	ns := newNetns(t)
	kinds := dnsServers()
	addrs := make([]string, len(kinds))
	for i, s := range kinds {
		addrs[i] = fmt.Sprintf("203.0.113.%d", 100+i)
		s.serve(t, ns, addrs[i])
	}
	rules, err := policy.Policy{Mode: policy.PublicOnly}.Compile()
	if err != nil {
		t.Fatal(err)
	}
	programs := newResolvers(t, ns)
	type row struct {
		libc, family, via string
		kinds             []int // of the servers
	}
	var rows []row
	sets := 0
	add := func(kinds []int, asked ...string) {
		via := fmt.Sprintf("198.51.%d.%d", 100+sets/250, 1+sets%250)
		sets++
		var servers []string
		for _, k := range kinds {
			servers = append(servers, addrs[k])
		}
		serveResolver(t, ns, via, rules, servers...)
		for libc := range libcs {
			for _, family := range asked {
				rows = append(rows, row{libc, family, via, kinds})
			}
		}
	}
	for i := range kinds {
		add([]int{i}, "0", "4", "6")
	}
	kind := func(name string) int {
		return slices.IndexFunc(kinds, func(s dnsServer) bool { return s.name == name })
	}
	silent, poor := kind("truncates and is silent by TCP"), kind("does not resolve")
	add([]int{silent, silent, silent}, "0")
	add([]int{poor, silent}, "4")
	for _, seed := range harness.Seeds(1, 5) {
		random := rand.New(rand.NewPCG(53, seed))
		for range 40 {
			add(random.Perm(len(kinds))[:2+random.IntN(2)], []string{"0", "4", "6"}[random.IntN(3)])
		}
	}
	type results struct{ direct, via resolution }
	got := make([]results, len(rows))
	try := func(n int) {
		var servers []string
		for _, k := range rows[n].kinds {
			servers = append(servers, addrs[k])
		}
		var both sync.WaitGroup
		both.Go(func() {
			got[n].direct = programs.resolve(rows[n].libc, rows[n].family, "a.example.com", servedBy(servers...))
		})
		both.Go(func() {
			got[n].via = programs.resolve(rows[n].libc, rows[n].family, "a.example.com", servedBy(rows[n].via))
		})
		both.Wait()
	}
	serves := strings.Fields("192.0.2.1 192.0.2.2 2001:db8::1 2001:db8::2")
	alone := map[string]resolution{} // by way of PID 1, with one server: by C library, family and its name
	// good reports whether a row is as it should be. Those of one server come first.
	good := func(n int) bool {
		r, direct, via := rows[n], got[n].direct, got[n].via
		// musl 1.2.3 goes on to read behind the end of a record that is cut.
		direct.addrs = slices.DeleteFunc(slices.Clone(direct.addrs), func(a string) bool { return !slices.Contains(serves, a) })
		lacks := slices.ContainsFunc(direct.addrs, func(a string) bool { return !slices.Contains(via.addrs, a) })
		if is := kinds[r.kinds[0]].name; len(r.kinds) == 1 {
			alone[r.libc+r.family+is] = via
			// PID 1 may have the rest, or have the part, and wait for longer.
			better := strings.HasPrefix(is, "truncates") || len(via.addrs) > 0 && direct.failed == again
			return direct.String() == via.String() || better && !lacks
		}
		resolves, answers, denied := len(direct.addrs) > 0, false, false
		for _, k := range r.kinds {
			by := alone[r.libc+r.family+kinds[k].name]
			resolves = resolves || len(by.addrs) > 0
			answers = answers || by.failed != again
			denied = denied || kinds[k].denies
		}
		if denied { // a denial counts from any server
			return !answers || via.failed != again
		}
		return len(via.addrs) > 0 || !resolves
	}
	var all sync.WaitGroup
	for n := range rows {
		all.Go(func() { try(n) })
	}
	all.Wait()
	var log strings.Builder
	for n, r := range rows {
		var names []string
		for _, k := range r.kinds {
			names = append(names, kinds[k].name)
		}
		said := func() string {
			return fmt.Sprintf("%s, family %s, a server that %s: directly %q, by way of PID 1 %q", r.libc, r.family, strings.Join(names, ", then one that "), got[n].direct, got[n].via)
		}
		// All have time limits, which a busy machine exceeds for one of them: a difference shows again, alone.
		for tries := 0; !good(n) && tries < 3; tries++ {
			t.Log(said())
			try(n)
		}
		if !good(n) {
			t.Error(said())
		}
		fmt.Fprintln(&log, said())
	}
	t.Log("\n" + log.String())
}

// zone is what a DNS server knows: for each name its addresses, or the name that it is an alias of.
type zone map[string][]string

// answer answers as servers do: with what fits into limit bytes, and the mark that there is more.
func (z zone) answer(q dnsQuery, limit int) []byte {
	write := func(all []dnsmessage.Resource, rcode dnsmessage.RCode, truncated bool) []byte {
		b := dnsmessage.NewBuilder(nil, dnsmessage.Header{ID: q.head.ID, Response: true, RecursionDesired: true, RecursionAvailable: true, RCode: rcode, Truncated: truncated})
		b.EnableCompression()
		b.StartQuestions()
		b.Question(q.question)
		b.StartAnswers()
		for _, r := range all {
			addRecord(&b, r)
		}
		if q.edns {
			var head dnsmessage.ResourceHeader
			b.StartAdditionals()
			head.SetEDNS0(maxDatagram, dnsmessage.RCodeSuccess, false)
			b.OPTResource(head, dnsmessage.OPTResource{})
		}
		message, _ := b.Finish()
		return message
	}
	var all []dnsmessage.Resource
	rcode := dnsmessage.RCodeSuccess
	for name := q.question.Name; ; {
		records, known := z[strings.TrimSuffix(strings.ToLower(name.String()), ".")]
		if !known {
			rcode = dnsmessage.RCodeNameError
			break
		}
		head := dnsmessage.ResourceHeader{Name: name, Class: dnsmessage.ClassINET, TTL: 30}
		alias := dnsmessage.Name{}
		for _, text := range records {
			switch addr, err := netip.ParseAddr(text); {
			case err != nil:
				alias = dnsmessage.MustNewName(text + ".")
				all = append(all, dnsmessage.Resource{Header: head, Body: &dnsmessage.CNAMEResource{CNAME: alias}})
			case addr.Is4() && q.question.Type == dnsmessage.TypeA:
				all = append(all, dnsmessage.Resource{Header: head, Body: &dnsmessage.AResource{A: addr.As4()}})
			case addr.Is6() && q.question.Type == dnsmessage.TypeAAAA:
				all = append(all, dnsmessage.Resource{Header: head, Body: &dnsmessage.AAAAResource{AAAA: addr.As16()}})
			}
		}
		if alias.Length == 0 {
			break
		}
		name = alias
	}
	message := write(all, rcode, false)
	for n := len(all); len(message) > limit; n-- {
		message = write(all[:n], rcode, true)
	}
	return message
}

// server serves a zone.
func (z zone) server() dnsServer {
	return dnsServer{
		udp: func(q dnsQuery) []byte { return z.answer(q, q.datagram) },
		tcp: func(q dnsQuery) []byte { return z.answer(q, 1<<16-1) },
	}
}

// Programs get the same for every name, whether they ask the servers or PID 1 does: aliases, many
// addresses and none, names that search domains complete. A name that the policy does not allow does
// not exist, and an answer has no address that the policy does not allow.
func TestCLibrariesGetTheSameByWayOfPID1(t *testing.T) {
	ns := newNetns(t)
	programs := newResolvers(t, ns)
	long := strings.Repeat(strings.Repeat("l", 63)+".", 3) + strings.Repeat("m", 49) + ".example.com"
	for i, seed := range harness.Seeds(1, 20) {
		random := rand.New(rand.NewPCG(1035, seed))
		all := zone{long: {"192.0.2.1"}, "xn--mnchen-3ya.example.com": {"192.0.2.1", "2001:db8::1"}, "in_side.example.com": {"10.1.2.3", "192.0.2.1", "fd00::1"}, "only.private.example.com": {"10.1.2.3"}}
		names := []string{"none.example.com", "evil.test", "outside.test", "x"}
		for n := range 12 {
			name := fmt.Sprintf("n%d.example.com", n)
			names = append(names, name, fmt.Sprint("n", n))
			switch random.IntN(4) {
			case 0: // to one before it, so that none is its own alias
				all[name] = []string{[]string{"outside.test", "gone.example.com", fmt.Sprintf("n%d.example.com", random.IntN(n+1)-1), "only.private.example.com", long}[random.IntN(5)]}
			default:
				for _, family := range []string{"192.0.2.%d", "2001:db8::%x"} {
					for a := range []int{0, 0, 1, 2, 3, 30}[random.IntN(6)] {
						all[name] = append(all[name], fmt.Sprintf(family, a+1))
					}
				}
				if all[name] == nil {
					all[name] = []string{}
				}
			}
		}
		all["outside.test"] = []string{"192.0.2.7", "2001:db8::7"}
		names = slices.AppendSeq(names, maps.Keys(all))
		for j, text := range []string{"public-only", "allow=*.example.com", "allow=*.example.com subnets.deny=192.0.2.2 resolve-into=10.0.0.0/8", "deny-all"} {
			rules, err := parse(t, text).Compile()
			if err != nil {
				t.Fatal(err)
			}
			s := &activePolicy{rules: rules}
			allowed := zone{} // what there is under the policy
			for name, records := range all {
				allowed[name] = slices.DeleteFunc(slices.Clone(records), func(r string) bool {
					a, err := netip.ParseAddr(r)
					return err == nil && !s.resolvesTo(a)
				})
			}
			asIf := allowed.server()
			for _, f := range []*func(dnsQuery) []byte{&asIf.udp, &asIf.tcp} {
				answer := *f
				*f = func(q dnsQuery) []byte {
					if _, ok := rules.Name(q.name()); !ok {
						return rcode(dnsmessage.RCodeNameError)(q)
					}
					return answer(q)
				}
			}
			world, model, via := fmt.Sprintf("203.0.%d.%d", i, 1+j), fmt.Sprintf("203.0.%d.%d", i, 101+j), fmt.Sprintf("203.0.%d.%d", i, 201+j)
			all.server().serve(t, ns, world)
			asIf.serve(t, ns, model)
			serveResolver(t, ns, via, rules, world)
			var asking sync.WaitGroup
			for range 40 {
				libc, family, name := []string{"glibc", "musl"}[random.IntN(2)], []string{"0", "4", "6"}[random.IntN(3)], names[random.IntN(len(names))]
				switch random.IntN(6) {
				case 0:
					name += "."
				case 1:
					name = strings.ToUpper(name)
				}
				options := []string{"", "search example.com\n", "search corp.test example.com\noptions ndots:3\n", "search sub.example.com test\n", "options edns0\n", "options use-vc\n"}[random.IntN(6)]
				asking.Go(func() {
					got := programs.resolve(libc, family, name, options+servedBy(via)).String()
					want := programs.resolve(libc, family, name, options+servedBy(model)).String()
					if got != want {
						t.Errorf("seed %d, %q, %s, family %s, %q, options %q: %q, want %q", seed, text, libc, family, name, options, got, want)
					}
				})
			}
			asking.Wait()
		}
	}
}
