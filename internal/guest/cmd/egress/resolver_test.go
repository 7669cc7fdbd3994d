//go:build linux

package egress

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/seed-1a2d6d8f/sandbox/internal/policy"
)

// dnsServer is how a DNS server behaves.
type dnsServer struct {
	name string
	// udp and tcp return the answer to a query, nil for none. tcp nil: nothing listens.
	udp, tcp func(q dnsQuery) []byte
	// musl is whether musl 1.2.5 resolves a name by such a server alone, by its source
	// (res_msend.c): it sends no EDNS, passes over REFUSED, and takes the truncated answer if
	// TCP fails.
	musl bool
	// denies is whether it says that there is no such name, or no address of it.
	denies bool
}

// dnsQuery is a query that a server got.
type dnsQuery struct {
	*query
	message []byte
}

// answerWith returns an answer with n addresses, from 192.0.2.1.
func (q dnsQuery) answerWith(n int, change func(*dnsmessage.Header)) []byte {
	h := dnsmessage.Header{ID: q.head.ID, Response: true, RecursionDesired: true, RecursionAvailable: true}
	if change != nil {
		change(&h)
	}
	b := dnsmessage.NewBuilder(nil, h)
	b.EnableCompression()
	b.StartQuestions()
	b.Question(q.question)
	b.StartAnswers()
	for i := range n {
		if q.question.Type == dnsmessage.TypeA {
			b.AResource(dnsmessage.ResourceHeader{Name: q.question.Name, Class: q.question.Class, TTL: 30}, dnsmessage.AResource{A: [4]byte{192, 0, 2, byte(i + 1)}})
		}
	}
	message, _ := b.Finish()
	return message
}

func rcode(code dnsmessage.RCode) func(dnsQuery) []byte {
	return func(q dnsQuery) []byte {
		return q.answerWith(0, func(h *dnsmessage.Header) { h.RCode = code })
	}
}

// dnsServers are the kinds of servers that sandboxes meet.
func dnsServers() []dnsServer {
	answers := func(q dnsQuery) []byte { return q.answerWith(2, nil) }
	silent := func(dnsQuery) []byte { return nil }
	truncates := func(q dnsQuery) []byte { return q.answerWith(1, func(h *dnsmessage.Header) { h.Truncated = true }) }
	withoutEDNS := func(other func(dnsQuery) []byte) func(dnsQuery) []byte {
		return func(q dnsQuery) []byte {
			if q.edns {
				return other(q)
			}
			return answers(q)
		}
	}
	return []dnsServer{
		{"answers", answers, answers, true, false},
		{"has no TCP", answers, nil, true, false},
		{"is silent", silent, nil, false, false},
		{"is not there", nil, nil, false, false},
		{"refuses", rcode(dnsmessage.RCodeRefused), nil, false, false},
		{"fails", rcode(dnsmessage.RCodeServerFailure), nil, false, false},
		{"implements nothing", rcode(dnsmessage.RCodeNotImplemented), nil, false, false},
		{"takes EDNS for an error", withoutEDNS(rcode(dnsmessage.RCodeFormatError)), answers, true, false},
		{"says of EDNS the header alone", withoutEDNS(func(q dnsQuery) []byte {
			return slices.Concat(q.message[:2], []byte{0x80, byte(dnsmessage.RCodeFormatError)}, make([]byte, 8))
		}), nil, true, false},
		{"does not implement EDNS", withoutEDNS(rcode(dnsmessage.RCodeNotImplemented)), nil, true, false},
		{"fails by EDNS", withoutEDNS(rcode(dnsmessage.RCodeServerFailure)), nil, true, false},
		{"refuses EDNS", withoutEDNS(rcode(dnsmessage.RCodeRefused)), nil, true, false},
		{"drops EDNS", withoutEDNS(silent), nil, true, false},
		{"truncates", truncates, answers, true, false},
		{"truncates and has no TCP", truncates, nil, true, false},
		{"truncates and is silent by TCP", truncates, silent, true, false},
		{"truncates within a record", func(q dnsQuery) []byte {
			whole := q.answerWith(2, func(h *dnsmessage.Header) { h.Truncated = true })
			return whole[:len(whole)-3]
		}, answers, true, false},
		{"takes three seconds", func(q dnsQuery) []byte { time.Sleep(3 * time.Second); return answers(q) }, nil, true, false},
		{"does not resolve", func(q dnsQuery) []byte {
			return q.answerWith(0, func(h *dnsmessage.Header) { h.RecursionAvailable = false })
		}, nil, false, false},
		{"knows no such name", rcode(dnsmessage.RCodeNameError), nil, false, true},
		{"has no address for it", func(q dnsQuery) []byte { return q.answerWith(0, nil) }, nil, false, true},
	}
}

// serveDNS runs a server at an address of a namespace.
func (s dnsServer) serve(t *testing.T, ns *netns, addr string) {
	t.Helper()
	ns.ip("addr add " + addr + "/32 dev lo")
	answer := func(f func(dnsQuery) []byte, message []byte) []byte {
		q, refused := readQuery(message)
		if refused != nil {
			return nil
		}
		return f(dnsQuery{q, message})
	}
	if s.udp != nil {
		var conn net.PacketConn
		var err error
		ns.do(func() { conn, err = net.ListenPacket("udp", addr+":53") })
		if err != nil {
			t.Fatal(err)
		}
		var answering sync.WaitGroup
		answering.Go(func() {
			for {
				buf := make([]byte, 4096)
				n, from, err := conn.ReadFrom(buf)
				if err != nil {
					return
				}
				answering.Go(func() {
					if a := answer(s.udp, buf[:n]); a != nil {
						conn.WriteTo(a, from)
					}
				})
			}
		})
		t.Cleanup(func() { conn.Close(); answering.Wait() })
	}
	if s.tcp == nil {
		return
	}
	var listener net.Listener
	var err error
	ns.do(func() { listener, err = net.Listen("tcp", addr+":53") })
	if err != nil {
		t.Fatal(err)
	}
	var answering sync.WaitGroup
	answering.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			answering.Go(func() {
				defer conn.Close()
				for {
					message, err := readDNS(conn)
					if err != nil {
						return
					}
					if a := answer(s.tcp, message); a != nil {
						writeDNS(conn, a)
					}
				}
			})
		}
	})
	t.Cleanup(func() { listener.Close(); answering.Wait() })
}

// byGlibc resolves a name with the C library of this machine.
func byGlibc(t *testing.T, ns *netns, dir string, servers []string) string {
	text := "options timeout:4 attempts:2\n"
	for _, s := range servers {
		text += "nameserver " + s + "\n"
	}
	file := filepath.Join(dir, strings.Join(servers, "-"))
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Error(err)
	}
	const run = `mount --bind "$0" "$(readlink -f /etc/resolv.conf)" && exec timeout 12 getent ahostsv4 a.example.com` // it waits for an answer over TCP for ever
	var out []byte
	var err error
	ns.aside(func() { out, err = exec.Command("unshare", "--mount", "sh", "-c", run, file).Output() })
	if _, none := errors.AsType[*exec.ExitError](err); err != nil && !none {
		t.Errorf("getent: %v", err)
	}
	var addrs []string
	for line := range strings.Lines(string(out)) {
		addrs = append(addrs, strings.Fields(line)[0])
	}
	slices.Sort(addrs)
	return strings.Join(slices.Compact(addrs), " ")
}

// The resolver of PID 1 stands for those of C libraries: where these resolve a name, so does it,
// whatever servers there are.
func TestTheResolverIsAsPatientAsCLibraries(t *testing.T) {
	ns := newNetns(t)
	r := newResolver(&Enforcer{dialer: func(ctx context.Context, d net.Dialer, network, addr string) (conn net.Conn, err error) {
		err = net.ErrClosed
		ns.aside(func() { conn, err = d.DialContext(ctx, network, addr) })
		return conn, err
	}})
	kinds := dnsServers()
	addrs := make([]string, len(kinds))
	for i, s := range kinds {
		addrs[i] = fmt.Sprintf("203.0.113.%d", 100+i)
		s.serve(t, ns, addrs[i])
	}
	var rows [][]int
	for i := range kinds {
		rows = append(rows, []int{i})
	}
	random := rand.New(rand.NewPCG(53, 1))
	for range 40 {
		row := random.Perm(len(kinds))[:2+random.IntN(2)]
		rows = append(rows, row)
	}
	dir := t.TempDir()
	resolved := make([]string, len(rows))
	var all sync.WaitGroup
	q := dnsmessage.Question{Name: dnsmessage.MustNewName("a.example.com."), Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}
	// differs tries a row, and says how it differs.
	differs := func(n int, row []int) string {
		var servers []netip.Addr
		var texts, names []string
		for _, i := range row {
			servers, texts, names = append(servers, netip.MustParseAddr(addrs[i])), append(texts, addrs[i]), append(names, kinds[i].name)
		}
		ctx, cancel := context.WithTimeout(t.Context(), lookupTime)
		defer cancel()
		began := time.Now()
		a, _, err := r.query(ctx, servers, q)
		took := time.Since(began)
		var got []string
		for _, record := range a.records {
			got = append(got, addrOf(record).String())
		}
		ours, glibc := strings.Join(got, " "), byGlibc(t, ns, dir, texts)
		resolved[n] = fmt.Sprintf("%-70s %-22q glibc %-22q %v", strings.Join(names, ", "), ours, glibc, took.Round(10*time.Millisecond))
		last := kinds[row[len(row)-1]]
		// As for musl, that a name does not exist counts from any server.
		denied := slices.ContainsFunc(row, func(i int) bool { return kinds[i].denies })
		if ours == "" && (glibc != "" && !denied || len(row) == 1 && last.musl) || len(row) == 1 && glibc != "" && ours != glibc {
			return fmt.Sprintf("a server that %s: %q, %v; glibc: %q, musl: %t", strings.Join(names, ", then one that "), ours, err, glibc, last.musl)
		}
		return ""
	}
	differ := make([]string, len(rows))
	for n, row := range rows {
		all.Go(func() { differ[n] = differs(n, row) })
	}
	all.Wait()
	for n, row := range rows {
		// Both have time limits, which a busy machine exceeds for one of them: a difference shows again, alone.
		for try := 0; differ[n] != "" && try < 3; try++ {
			t.Log(differ[n])
			differ[n] = differs(n, row)
		}
		if differ[n] != "" {
			t.Error(differ[n])
		}
	}
	t.Log("\n" + strings.Join(resolved, "\n"))
}

// Many that ask the same at once are one query.
func TestTheSameQuestionIsAskedOnce(t *testing.T) {
	ns := newNetns(t)
	e := &Enforcer{}
	e.dialer = func(ctx context.Context, d net.Dialer, network, addr string) (conn net.Conn, err error) {
		err = net.ErrClosed
		ns.aside(func() { conn, err = d.DialContext(ctx, network, addr) })
		return conn, err
	}
	r := newResolver(e)
	var asked atomic.Int64
	goOn := make(chan struct{})
	dnsServer{udp: func(q dnsQuery) []byte {
		asked.Add(1)
		<-goOn
		return q.answerWith(1, nil)
	}}.serve(t, ns, "203.0.113.100")
	rules, err := policy.Policy{Mode: policy.PublicOnly}.Compile()
	if err != nil {
		t.Fatal(err)
	}
	s := &activePolicy{version: 1, rules: rules, upstream: []netip.Addr{netip.MustParseAddr("203.0.113.100")}}
	var all sync.WaitGroup
	var answered atomic.Int64
	errs := make([]error, 1000)
	for i := range errs {
		all.Go(func() {
			defer answered.Add(1)
			_, errs[i] = r.lookup(t.Context(), s, []string{"a.example.com", "A.example.com."}[i%2], dnsmessage.TypeA)
		})
	}
	for waiting := 0; waiting < len(errs); time.Sleep(time.Millisecond) {
		if n := answered.Load(); n > 0 {
			t.Errorf("%d had an answer before there was one", n)
			break
		}
		r.mu.Lock()
		waiting = 0
		for _, f := range r.flights {
			waiting += f.waiting
		}
		r.mu.Unlock()
	}
	close(goOn)
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
	if n := asked.Load(); n > dnsRounds {
		t.Errorf("asked %d times", n)
	}
}
