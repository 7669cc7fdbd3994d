//go:build linux

package egress

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
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
	// denies is whether it says that there is no such name, or no address of it.
	denies bool
}

// dnsQuery is a query that a server got.
type dnsQuery struct {
	*query
	message []byte
}

// answerWith returns an answer with n addresses, from 192.0.2.1 or 2001:db8::1.
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
	head := dnsmessage.ResourceHeader{Name: q.question.Name, Class: q.question.Class, TTL: 30}
	for i := range n {
		switch q.question.Type {
		case dnsmessage.TypeA:
			b.AResource(head, dnsmessage.AResource{A: [4]byte{192, 0, 2, byte(i + 1)}})
		case dnsmessage.TypeAAAA:
			b.AAAAResource(head, dnsmessage.AAAAResource{AAAA: [16]byte{0x20, 0x01, 0x0d, 0xb8, 15: byte(i + 1)}})
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
	// forAAAA answers these queries otherwise.
	forAAAA := func(other func(dnsQuery) []byte) func(dnsQuery) []byte {
		return func(q dnsQuery) []byte {
			if q.question.Type == dnsmessage.TypeAAAA {
				return other(q)
			}
			return answers(q)
		}
	}
	return []dnsServer{
		{"answers", answers, answers, false},
		{"has no TCP", answers, nil, false},
		{"is silent", silent, nil, false},
		{"is not there", nil, nil, false},
		{"refuses", rcode(dnsmessage.RCodeRefused), nil, false},
		{"fails", rcode(dnsmessage.RCodeServerFailure), nil, false},
		{"implements nothing", rcode(dnsmessage.RCodeNotImplemented), nil, false},
		{"takes EDNS for an error", withoutEDNS(rcode(dnsmessage.RCodeFormatError)), answers, false},
		{"says of EDNS the header alone", withoutEDNS(func(q dnsQuery) []byte {
			return slices.Concat(q.message[:2], []byte{0x80, byte(dnsmessage.RCodeFormatError)}, make([]byte, 8))
		}), nil, false},
		{"does not implement EDNS", withoutEDNS(rcode(dnsmessage.RCodeNotImplemented)), nil, false},
		{"fails by EDNS", withoutEDNS(rcode(dnsmessage.RCodeServerFailure)), nil, false},
		{"refuses EDNS", withoutEDNS(rcode(dnsmessage.RCodeRefused)), nil, false},
		{"drops EDNS", withoutEDNS(silent), nil, false},
		{"truncates", truncates, answers, false},
		{"truncates and has no TCP", truncates, nil, false},
		{"truncates and is silent by TCP", truncates, silent, false},
		{"truncates within a record", func(q dnsQuery) []byte {
			whole := q.answerWith(2, func(h *dnsmessage.Header) { h.Truncated = true })
			return whole[:len(whole)-3]
		}, answers, false},
		{"takes three seconds", func(q dnsQuery) []byte { time.Sleep(3 * time.Second); return answers(q) }, nil, false},
		{"does not resolve", func(q dnsQuery) []byte {
			return q.answerWith(0, func(h *dnsmessage.Header) { h.RecursionAvailable = false })
		}, nil, false},
		{"knows no such name", rcode(dnsmessage.RCodeNameError), nil, true},
		{"has no address for it", func(q dnsQuery) []byte { return q.answerWith(0, nil) }, nil, true},
		{"has no AAAA", forAAAA(func(q dnsQuery) []byte { return q.answerWith(0, nil) }), nil, true},
		{"drops AAAA", forAAAA(silent), nil, false},
		{"denies the name for AAAA", forAAAA(rcode(dnsmessage.RCodeNameError)), nil, true},
		{"fails for AAAA", forAAAA(rcode(dnsmessage.RCodeServerFailure)), nil, false},
		{"refuses AAAA", forAAAA(rcode(dnsmessage.RCodeRefused)), nil, false},
		{"does not implement AAAA", forAAAA(rcode(dnsmessage.RCodeNotImplemented)), nil, false},
		{"truncates AAAA and has no TCP", forAAAA(truncates), nil, false},
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

// PID 1's queries and those of clients never share a port: the kernel takes them for one flow.
func TestQueriesHavePortsOfTheirOwn(t *testing.T) {
	l := newLab(t)
	l.begin(1, parse(t, "allow=a.example.com"))
	// A client has asked the same server from every port that the kernel gives.
	b := dnsmessage.NewBuilder(nil, dnsmessage.Header{ID: 7})
	b.StartQuestions()
	b.Question(dnsmessage.Question{Name: dnsmessage.MustNewName("evil.test."), Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET})
	message, err := b.Finish()
	if err != nil {
		t.Fatal(err)
	}
	l.inside.do(func() {
		const first, last = 40000, 40999 // those of Linux take a test too long
		if err := os.WriteFile("/proc/sys/net/ipv4/ip_local_port_range", fmt.Append(nil, first, " ", last), 0); err != nil {
			t.Error(err)
			return
		}
		for port := first; port <= last; port++ {
			conn, err := net.DialUDP("udp", &net.UDPAddr{IP: net.ParseIP(insideAddr), Port: port}, &net.UDPAddr{IP: net.ParseIP(resolverIP), Port: 53})
			if err != nil {
				t.Error(err)
				return
			}
			conn.SetDeadline(time.Now().Add(5 * time.Minute))
			conn.Write(message)
			_, err = conn.Read(make([]byte, 512))
			conn.Close()
			if err != nil {
				t.Errorf("port %d: %v", port, err)
				return
			}
		}
	})
	l.took()
	if got := l.lookup(resolverIP, "a.example.com", dnsmessage.TypeA); got != alphaAddr {
		t.Errorf("a name: %q", got)
	}
	if hits := l.took(); !slices.Equal(hits, []string{"dns a.example.com"}) {
		t.Errorf("it took the queries %q", hits)
	}
}

func TestServersThatCantBeAskedAreSkipped(t *testing.T) {
	t.Parallel()
	const text = "nameserver fe80::1%eth0\nnameserver ::\nnameserver 0.0.0.0\nnameserver ff02::fb\nnameserver 224.0.0.251\nnameserver none\nnameserver\n" +
		"search example.com\nnameserver 192.0.2.53\nnameserver ::ffff:192.0.2.54\nnameserver 2001:db8::53\nnameserver fe80::53\n"
	got := nameservers(text)
	var want []netip.Addr
	for _, a := range []string{"192.0.2.53", "192.0.2.54", "2001:db8::53", "fe80::53"} {
		want = append(want, netip.MustParseAddr(a))
	}
	if !slices.Equal(got, want) || checkServers(got) != nil {
		t.Errorf("the servers are %v, want %v", got, want)
	}
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
