//go:build linux

package egress

import (
	"context"
	"errors"
	"net"
	"slices"
	"sort"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/cmd/proc"
	"github.com/seed-1a2d6d8f/sandbox/internal/policy"
)

const (
	// lookupTime bounds a lookup. The next server, or the same again, is asked when one has not
	// answered for dnsDelay; its answer counts all the same. dnsRounds is how often each is
	// asked. tcpTime bounds an answer over TCP. Once there is part of one, a whole one has
	// partTime: musl waits for 5 s in all.
	lookupTime = 10 * time.Second
	dnsDelay   = time.Second
	dnsRounds  = 3
	tcpTime    = 2 * time.Second
	partTime   = 3 * time.Second
	// maxLookups bounds the pending lookups. Those that begin in a second are lookupRate, after
	// as many as lookupBurst at once; others wait for up to lookupWait.
	maxLookups  = 64
	lookupRate  = 100
	lookupBurst = 300
	lookupWait  = 3 * time.Second
	// maxDNSConns bounds the TCP connections of the filter.
	maxDNSConns = 32
	// maxDatagram bounds a message over UDP: what every path carries in one packet.
	maxDatagram = 1232
	// Bounds of the cache: answers, and how long they and empty ones are kept.
	maxAnswers  = 512
	answerTime  = time.Minute
	noneTime    = 5 * time.Second
	answerBytes = 8 << 10 // larger ones are not cached
)

// forwardedTypes are the types that are queried under every policy that allows the name.
var forwardedTypes = []dnsmessage.Type{
	dnsmessage.TypeA, dnsmessage.TypeAAAA, dnsmessage.TypeCNAME, dnsmessage.TypeSRV, dnsmessage.TypeTXT, dnsmessage.TypeMX,
}

// emptyTypes have no records here: they have keys that hide the name of a TLS connection.
var emptyTypes = []dnsmessage.Type{dnsmessage.TypeHTTPS, dnsmessage.TypeSVCB}

// compressedTypes are obsolete, and the only ones whose records may have compressed names, which
// depend on the rest of the message (RFC 3597), beside those that package dnsmessage knows.
var compressedTypes = []dnsmessage.Type{3, 4, 7, 8, 9, dnsmessage.TypeMINFO} // MD, MF, MB, MG, MR

// forwards reports whether a type is queried: where all names are allowed, every type of records.
func (s *activePolicy) forwards(t dnsmessage.Type) bool {
	records := t != 0 && t != dnsmessage.TypeOPT && (t < 128 || t > 255) // the others include zone transfers and ANY
	return slices.Contains(forwardedTypes, t) ||
		s.rules.Open() && records && !slices.Contains(emptyTypes, t) && !slices.Contains(compressedTypes, t)
}

// serveUDP answers queries over UDP.
func (r *resolver) serveUDP(conn *net.UDPConn) {
	buf := make([]byte, 4096)
	for {
		n, client, err := conn.ReadFromUDPAddrPort(buf)
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			proc.AcceptPause()
			continue
		}
		q, refused := readQuery(buf[:n])
		if refused != nil {
			if len(refused) > 0 {
				conn.WriteToUDPAddrPort(refused, client)
			}
			continue
		}
		s := r.enforcer.active.Load()
		// A query without a lookup takes no goroutine: a flood of them costs little.
		if a, done := r.decide(s, q); done {
			conn.WriteToUDPAddrPort(q.reply(s, a, q.datagram), client)
			continue
		}
		go func() {
			conn.WriteToUDPAddrPort(q.reply(s, r.resolve(s, q), q.datagram), client)
		}()
	}
}

// serveTCP answers queries over TCP.
func (r *resolver) serveTCP(listener *net.TCPListener) {
	slots := make(chan struct{}, maxDNSConns)
	for {
		slots <- struct{}{} // meanwhile the kernel holds those that come
		conn, err := listener.AcceptTCP()
		if err != nil {
			<-slots
			if errors.Is(err, net.ErrClosed) {
				return
			}
			proc.AcceptPause()
			continue
		}
		go func() {
			defer func() { <-slots }()
			defer conn.Close()
			r.converse(conn)
		}()
	}
}

func (r *resolver) converse(conn *net.TCPConn) {
	for range 100 {
		conn.SetDeadline(time.Now().Add(10 * time.Second))
		message, err := readDNS(conn)
		if err != nil {
			return
		}
		q, refused := readQuery(message)
		if refused == nil {
			s := r.enforcer.active.Load()
			a, done := r.decide(s, q)
			if !done {
				a = r.resolve(s, q)
			}
			refused = q.reply(s, a, 1<<16-1)
		}
		if len(refused) == 0 || writeDNS(conn, refused) != nil {
			return
		}
	}
}

// query is a client's question.
type query struct {
	head     dnsmessage.Header
	question dnsmessage.Question
	edns     bool
	datagram int // the largest answer over UDP
}

func (q *query) name() string { return strings.TrimSuffix(q.question.Name.String(), ".") }

// readQuery reads a client's message. refused is the answer to one that is no plain
// question, empty if it gets none.
func readQuery(message []byte) (q *query, refused []byte) {
	var p dnsmessage.Parser
	h, err := p.Start(message)
	if err != nil || h.Response {
		return nil, []byte{}
	}
	q = &query{head: h, datagram: 512}
	questions, err := p.AllQuestions()
	if h.OpCode != 0 {
		return nil, q.refuse(dnsmessage.RCodeNotImplemented)
	}
	if err != nil || len(questions) != 1 {
		return nil, q.refuse(dnsmessage.RCodeFormatError)
	}
	q.question = questions[0]
	if q.question.Class != dnsmessage.ClassINET {
		return nil, q.refuse(dnsmessage.RCodeRefused)
	}
	if p.SkipAllAnswers() == nil && p.SkipAllAuthorities() == nil {
		for {
			head, err := p.AdditionalHeader()
			if err != nil {
				break
			}
			if head.Type == dnsmessage.TypeOPT {
				q.edns = true
				q.datagram = min(max(int(head.Class), 512), maxDatagram)
			}
			if p.SkipAdditional() != nil {
				break
			}
		}
	}
	return q, nil
}

func (q *query) refuse(rcode dnsmessage.RCode) []byte {
	b := dnsmessage.NewBuilder(nil, dnsmessage.Header{ID: q.head.ID, Response: true, OpCode: q.head.OpCode, RecursionDesired: q.head.RecursionDesired, RCode: rcode})
	message, err := b.Finish()
	if err != nil {
		return []byte{}
	}
	return message
}

// decide answers a query that needs no lookup.
func (r *resolver) decide(s *activePolicy, q *query) (a answer, done bool) {
	if s.version == 0 {
		return answer{rcode: dnsmessage.RCodeServerFailure}, true
	}
	name := q.name()
	rule, ok := s.rules.Name(name)
	if !ok && s.rules.Open() { // also what is no host's name, such as the root
		rule, ok = policy.Name{Pattern: policy.Any}, true
	}
	if !ok {
		r.enforcer.log.add(decision{name: name, protocol: "dns", rule: string(s.unnamed())})
		return answer{rcode: dnsmessage.RCodeNameError}, true
	}
	r.enforcer.log.add(decision{name: name, protocol: "dns", rule: rule.Pattern, allowed: true})
	switch t := q.question.Type; {
	case s.forwards(t):
		return answer{}, false
	case slices.Contains(emptyTypes, t):
		return answer{}, true
	}
	return answer{rcode: dnsmessage.RCodeNotImplemented}, true
}

func (r *resolver) resolve(s *activePolicy, q *query) answer {
	ctx, cancel := context.WithTimeout(context.Background(), lookupTime)
	defer cancel()
	a, err := r.lookup(ctx, s, q.name(), q.question.Type)
	if err != nil {
		return answer{rcode: dnsmessage.RCodeServerFailure}
	}
	return a
}

// reply encodes the answer to a question, truncated if it is larger than limit.
func (q *query) reply(s *activePolicy, a answer, limit int) []byte {
	write := func(records []dnsmessage.Resource, truncated bool) []byte {
		b := dnsmessage.NewBuilder(nil, dnsmessage.Header{
			ID: q.head.ID, Response: true, RecursionDesired: q.head.RecursionDesired, RecursionAvailable: !a.poor, // without it glibc takes nothing for no answer, and musl for one
			RCode: a.rcode, Truncated: truncated,
		})
		b.EnableCompression()
		err := errors.Join(b.StartQuestions(), b.Question(q.question), b.StartAnswers())
		left := uint32(max(time.Until(a.until), 0) / time.Second)
		for _, record := range records {
			record.Header.TTL = min(record.Header.TTL, left)
			err = errors.Join(err, addRecord(&b, record))
		}
		if q.edns {
			var head dnsmessage.ResourceHeader
			err = errors.Join(err, b.StartAdditionals(), head.SetEDNS0(maxDatagram, dnsmessage.RCodeSuccess, false), b.OPTResource(head, dnsmessage.OPTResource{}))
		}
		message, e := b.Finish()
		if err != nil || e != nil {
			return q.refuse(dnsmessage.RCodeServerFailure)
		}
		return message
	}
	var records []dnsmessage.Resource
	for _, record := range a.records {
		if addr := addrOf(record); addr.IsValid() && !s.resolvesTo(addr) {
			continue
		}
		if lower(record.Header.Name.String()) == lower(q.question.Name.String()) {
			record.Header.Name = q.question.Name // spelled otherwise, it would not be compressed
		}
		records = append(records, record)
	}
	message := write(records, false)
	// Clients without TCP, as those of musl before 1.2.4, take what fits.
	if len(message) > limit {
		n := sort.Search(len(records), func(n int) bool { return len(write(records[:n+1], true)) > limit })
		message = write(records[:n], true)
	}
	return message
}

func addRecord(b *dnsmessage.Builder, r dnsmessage.Resource) error {
	switch body := r.Body.(type) {
	case *dnsmessage.AResource:
		return b.AResource(r.Header, *body)
	case *dnsmessage.AAAAResource:
		return b.AAAAResource(r.Header, *body)
	case *dnsmessage.CNAMEResource:
		return b.CNAMEResource(r.Header, *body)
	case *dnsmessage.SRVResource:
		return b.SRVResource(r.Header, *body)
	case *dnsmessage.TXTResource:
		return b.TXTResource(r.Header, *body)
	case *dnsmessage.MXResource:
		return b.MXResource(r.Header, *body)
	case *dnsmessage.NSResource:
		return b.NSResource(r.Header, *body)
	case *dnsmessage.PTRResource:
		return b.PTRResource(r.Header, *body)
	case *dnsmessage.SOAResource:
		return b.SOAResource(r.Header, *body)
	case *dnsmessage.UnknownResource:
		return b.UnknownResource(r.Header, *body)
	}
	return nil
}
