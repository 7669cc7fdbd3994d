//go:build linux

package egress

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/cmd/proc"
)

const (
	// dnsTime is what one server gets to answer, and dnsTries how often each is asked.
	dnsTime  = 2 * time.Second
	dnsTries = 2
	// maxLookups bounds the lookups under way, and lookupRate those begun in a second.
	maxLookups = 64
	lookupRate = 500
	// maxDNSConns bounds the TCP connections of the filter.
	maxDNSConns = 32
	// maxDatagram is what a message over UDP may take: what every path carries.
	maxDatagram = 1232
	// Of what is remembered: how many answers, and how long at most.
	maxAnswers  = 512
	answerTime  = time.Minute
	noneTime    = 5 * time.Second
	answerBytes = 8 << 10 // larger ones are not remembered
)

// answer is what a server said of a name: the records that the filter lets through.
type answer struct {
	rcode   dnsmessage.RCode
	records []dnsmessage.Resource
	until   time.Time
}

// resolver asks DNS servers, on its own: neither /etc/hosts nor /etc/resolv.conf of the
// sandbox, which belong to root inside, count here.
type resolver struct {
	enforcer *Enforcer

	mu     sync.Mutex
	known  map[dnsmessage.Question]answer
	second int64 // of the rate
	begun  int
	places chan struct{}
}

func newResolver(g *Enforcer) *resolver {
	return &resolver{enforcer: g, known: make(map[dnsmessage.Question]answer), places: make(chan struct{}, maxLookups)}
}

// forget drops what is remembered.
func (r *resolver) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.known)
}

var errBusy = errors.New("too many lookups")

// lookup asks for the records of a name, which must be allowed.
func (r *resolver) lookup(ctx context.Context, s *activePolicy, name string, kind dnsmessage.Type) (answer, error) {
	full, err := dnsmessage.NewName(strings.TrimSuffix(strings.ToLower(name), ".") + ".")
	if err != nil {
		return answer{}, err
	}
	q := dnsmessage.Question{Name: full, Type: kind, Class: dnsmessage.ClassINET}
	r.mu.Lock()
	got, ok := r.known[q]
	r.mu.Unlock()
	if ok && time.Now().Before(got.until) {
		return got, nil
	}
	if !r.enter() {
		return answer{}, errBusy
	}
	defer func() { <-r.places }()
	err = errors.New("there is no DNS server")
	for range dnsTries {
		for _, server := range r.enforcer.servers(s) {
			if ctx.Err() != nil {
				return answer{}, ctx.Err()
			}
			var size int
			if got, size, err = r.ask(ctx, server, q); err == nil {
				r.remember(q, got, size)
				return got, nil
			}
		}
	}
	return answer{}, err
}

func (r *resolver) enter() bool {
	r.mu.Lock()
	if now := time.Now().Unix(); now != r.second {
		r.second, r.begun = now, 0
	}
	r.begun++
	busy := r.begun > lookupRate
	r.mu.Unlock()
	if busy {
		return false
	}
	select {
	case r.places <- struct{}{}:
		return true
	default:
		return false
	}
}

func (r *resolver) remember(q dnsmessage.Question, a answer, size int) {
	if size > answerBytes {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.known) >= maxAnswers {
		now := time.Now()
		for q, a := range r.known {
			if now.After(a.until) || len(r.known) >= maxAnswers {
				delete(r.known, q)
			}
		}
	}
	r.known[q] = a
}

// ask asks one server, by UDP and where that is not enough by TCP. A server on this host
// is asked by TCP alone: anyone inside could send datagrams in its name.
func (r *resolver) ask(ctx context.Context, server netip.Addr, q dnsmessage.Question) (answer, int, error) {
	ctx, cancel := context.WithTimeout(ctx, dnsTime)
	defer cancel()
	id := uint16(rand.Uint32())
	b := dnsmessage.NewBuilder(nil, dnsmessage.Header{ID: id, RecursionDesired: true})
	b.EnableCompression()
	var edns dnsmessage.ResourceHeader
	err := errors.Join(b.StartQuestions(), b.Question(q), b.StartAdditionals(),
		edns.SetEDNS0(maxDatagram, dnsmessage.RCodeSuccess, false), b.OPTResource(edns, dnsmessage.OPTResource{}))
	if err != nil {
		return answer{}, 0, err
	}
	query, err := b.Finish()
	if err != nil {
		return answer{}, 0, err
	}
	for _, network := range []string{"udp", "tcp"} {
		if network == "udp" && server.IsLoopback() {
			continue
		}
		message, err := r.exchange(ctx, network, server, query, id)
		if err != nil {
			return answer{}, 0, err
		}
		a, more, err := readAnswer(message, q)
		if err != nil {
			return answer{}, 0, err
		}
		if !more || network == "tcp" {
			return a, len(message), nil
		}
	}
	panic("unreachable")
}

func (r *resolver) exchange(ctx context.Context, network string, server netip.Addr, query []byte, id uint16) ([]byte, error) {
	conn, err := r.enforcer.dial(ctx, network, netip.AddrPortFrom(server, 53))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	deadline, _ := ctx.Deadline()
	conn.SetDeadline(deadline)
	if network == "tcp" {
		if err := writeDNS(conn, query); err != nil {
			return nil, err
		}
		return readDNS(conn)
	}
	if _, err := conn.Write(query); err != nil {
		return nil, err
	}
	buf := make([]byte, 4096)
	for {
		n, err := conn.Read(buf)
		if err != nil {
			return nil, err
		}
		if n >= 2 && binary.BigEndian.Uint16(buf) == id {
			return buf[:n], nil
		}
	}
}

// Messages over TCP have their length in front.
func writeDNS(w io.Writer, message []byte) error {
	_, err := w.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(message))), message...))
	return err
}

func readDNS(r io.Reader) ([]byte, error) {
	var size [2]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return nil, err
	}
	message := make([]byte, binary.BigEndian.Uint16(size[:]))
	_, err := io.ReadFull(r, message)
	return message, err
}

var errAnswer = errors.New("the answer is not one to this question")

// readAnswer reads a server's answer; more says that it was cut.
func readAnswer(message []byte, q dnsmessage.Question) (a answer, more bool, err error) {
	var p dnsmessage.Parser
	h, err := p.Start(message)
	if err != nil {
		return a, false, err
	}
	asked, err := p.AllQuestions()
	if err != nil {
		return a, false, err
	}
	if !h.Response || len(asked) != 1 || asked[0].Type != q.Type || asked[0].Class != q.Class || !strings.EqualFold(asked[0].Name.String(), q.Name.String()) {
		return a, false, errAnswer
	}
	if h.RCode != dnsmessage.RCodeSuccess && h.RCode != dnsmessage.RCodeNameError {
		return a, false, fmt.Errorf("the server says %v", h.RCode)
	}
	if h.Truncated {
		return a, true, nil
	}
	a.rcode = h.RCode
	keep := answerTime
	for {
		head, err := p.AnswerHeader()
		if err == dnsmessage.ErrSectionDone {
			break
		}
		if err != nil {
			return a, false, err
		}
		if head.Class != dnsmessage.ClassINET || !slices.Contains(forwardedTypes, head.Type) {
			if err := p.SkipAnswer(); err != nil {
				return a, false, err
			}
			continue
		}
		record, err := p.Answer()
		if err != nil {
			return a, false, err
		}
		keep = min(keep, time.Duration(record.Header.TTL)*time.Second)
		a.records = append(a.records, record)
	}
	if len(a.records) == 0 {
		keep = noneTime
	}
	a.until = time.Now().Add(keep)
	return a, false, nil
}

// forwardedTypes are the types that are asked for and answered. The others are empty: HTTPS and
// SVCB bring keys that hide the name of a TLS connection.
var forwardedTypes = []dnsmessage.Type{
	dnsmessage.TypeA, dnsmessage.TypeAAAA, dnsmessage.TypeCNAME, dnsmessage.TypeSRV, dnsmessage.TypeTXT, dnsmessage.TypeMX,
}

// addrOf is the address in a record, or none.
func addrOf(r dnsmessage.Resource) netip.Addr {
	switch body := r.Body.(type) {
	case *dnsmessage.AResource:
		return netip.AddrFrom4(body.A)
	case *dnsmessage.AAAAResource:
		return netip.AddrFrom16(body.AAAA)
	}
	return netip.Addr{}
}

// addrs are the addresses of a name that a policy lets it lead to, those of the wanted
// family first. refused is one that it does not.
func (r *resolver) addrs(ctx context.Context, s *activePolicy, name string, six bool) (good []netip.Addr, refused netip.Addr, err error) {
	kinds := []dnsmessage.Type{dnsmessage.TypeA}
	if s.six {
		kinds = append(kinds, dnsmessage.TypeAAAA)
	}
	answers, errs := make([]answer, len(kinds)), make([]error, len(kinds))
	var all sync.WaitGroup
	for i, kind := range kinds[1:] {
		all.Go(func() { answers[i+1], errs[i+1] = r.lookup(ctx, s, name, kind) })
	}
	answers[0], errs[0] = r.lookup(ctx, s, name, kinds[0])
	all.Wait()
	if six {
		slices.Reverse(answers)
	}
	for _, a := range answers {
		for _, record := range a.records {
			addr := addrOf(record)
			switch {
			case !addr.IsValid():
			case s.resolvesTo(addr):
				good = append(good, addr)
			default:
				refused = addr
			}
		}
	}
	if len(good) == 0 && !refused.IsValid() {
		err = errors.Join(errs...)
	}
	return good, refused, err
}

// resolvesTo reports whether a name may lead to an address. None leads to this host, where
// the resolver's own servers are.
func (s *activePolicy) resolvesTo(a netip.Addr) bool {
	a = a.Unmap()
	return s.rules.Into(a) && !a.IsLoopback() && !a.IsUnspecified() && !a.IsMulticast()
}

// dial connects with the mark that only this process can set.
func (g *Enforcer) dial(ctx context.Context, network string, to netip.AddrPort) (net.Conn, error) {
	d := net.Dialer{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		if e := c.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, int(int32(g.mark)))
		}); e != nil {
			return e
		}
		return err
	}}
	if g.dialer != nil {
		return g.dialer(ctx, d, network, to.String())
	}
	return d.DialContext(ctx, network, to.String())
}

// serveUDP answers what is asked over UDP.
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
		// What needs no lookup needs no goroutine: a flood of it costs little.
		if a, done := r.decide(s, q); done {
			conn.WriteToUDPAddrPort(q.reply(s, a, q.datagram), client)
			continue
		}
		go func() {
			conn.WriteToUDPAddrPort(q.reply(s, r.resolve(s, q), q.datagram), client)
		}()
	}
}

// serveTCP answers what is asked over TCP.
func (r *resolver) serveTCP(listener *net.TCPListener) {
	places := make(chan struct{}, maxDNSConns)
	for {
		conn, err := listener.AcceptTCP()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			proc.AcceptPause()
			continue
		}
		select {
		case places <- struct{}{}:
		default:
			reset(conn)
			continue
		}
		go func() {
			defer func() { <-places }()
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

// query is what a client asked.
type query struct {
	head     dnsmessage.Header
	question dnsmessage.Question
	edns     bool
	datagram int // what it takes over UDP
}

func (q *query) name() string { return strings.TrimSuffix(q.question.Name.String(), ".") }

// readQuery reads a client's message. refused is the answer to one that is not a plain
// question, and empty where none is to be given.
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

// decide answers where no server has to be asked.
func (r *resolver) decide(s *activePolicy, q *query) (a answer, done bool) {
	if s.version == 0 {
		return answer{rcode: dnsmessage.RCodeServerFailure}, true
	}
	name := q.name()
	rule, ok := s.rules.Name(name)
	if !ok {
		r.enforcer.log.add(decision{name: name, protocol: "dns", rule: string(s.unnamed())})
		return answer{rcode: dnsmessage.RCodeNameError}, true
	}
	r.enforcer.log.add(decision{name: name, protocol: "dns", rule: rule.Pattern, allowed: true})
	return answer{}, !slices.Contains(forwardedTypes, q.question.Type)
}

func (r *resolver) resolve(s *activePolicy, q *query) answer {
	ctx, cancel := context.WithTimeout(context.Background(), dnsTries*dnsTime)
	defer cancel()
	a, err := r.lookup(ctx, s, q.name(), q.question.Type)
	if err != nil {
		return answer{rcode: dnsmessage.RCodeServerFailure}
	}
	return a
}

// reply writes the answer to a question, of at most so many bytes.
func (q *query) reply(s *activePolicy, a answer, most int) []byte {
	write := func(records []dnsmessage.Resource, truncated bool) []byte {
		b := dnsmessage.NewBuilder(nil, dnsmessage.Header{
			ID: q.head.ID, Response: true, RecursionDesired: q.head.RecursionDesired, RecursionAvailable: true,
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
		if addr := addrOf(record); !addr.IsValid() || s.resolvesTo(addr) {
			records = append(records, record)
		}
	}
	message := write(records, false)
	if len(message) > most {
		message = write(nil, true)
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
	}
	return nil
}
