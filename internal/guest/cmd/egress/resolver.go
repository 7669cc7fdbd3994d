//go:build linux

package egress

import (
	"bytes"
	"cmp"
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
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"
)

// answer holds the records of a server's answer that the filter lets through.
type answer struct {
	rcode   dnsmessage.RCode
	records []dnsmessage.Resource
	until   time.Time
	poor    bool // it is nothing, of a server that does not resolve
}

// resolver queries DNS servers. It uses neither /etc/hosts nor /etc/resolv.conf of the
// sandbox, which root inside can change.
type resolver struct {
	enforcer *Enforcer

	mu      sync.Mutex
	cache   map[dnsmessage.Question]answer
	flights map[dnsmessage.Question]*flight
	next    time.Time     // when the next lookup may begin, if there were many
	slots   chan struct{} // of pending lookups
}

// flight is a pending lookup, which all that ask the same wait for.
type flight struct {
	waiting int
	cancel  context.CancelFunc
	done    chan struct{} // closed when the following are set
	answer  answer
	err     error
}

func newResolver(e *Enforcer) *resolver {
	return &resolver{enforcer: e, cache: make(map[dnsmessage.Question]answer), flights: make(map[dnsmessage.Question]*flight), slots: make(chan struct{}, maxLookups)}
}

// forget empties the cache. Pending lookups are not for those who ask later.
func (r *resolver) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.cache)
	clear(r.flights)
}

var (
	errBusy  = errors.New("too many lookups")
	errNoDNS = errors.New("no DNS server")
)

// lookup returns the records of a name, which the policy must allow.
func (r *resolver) lookup(ctx context.Context, s *activePolicy, name string, kind dnsmessage.Type) (answer, error) {
	full, err := dnsmessage.NewName(strings.TrimSuffix(lower(name), ".") + ".")
	if err != nil {
		return answer{}, err
	}
	q := dnsmessage.Question{Name: full, Type: kind, Class: dnsmessage.ClassINET}
	r.mu.Lock()
	got, ok := r.cache[q]
	if ok && time.Now().Before(got.until) {
		r.mu.Unlock()
		return got, nil
	}
	f, ok := r.flights[q]
	if !ok {
		f = r.begin(s, q)
	}
	f.waiting++
	r.mu.Unlock()
	select {
	case <-f.done:
		return f.answer, f.err
	case <-ctx.Done():
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if f.waiting--; f.waiting == 0 {
		r.end(q, f)
		f.cancel()
	}
	return answer{}, ctx.Err()
}

// begin starts a lookup. The caller holds mu.
func (r *resolver) begin(s *activePolicy, q dnsmessage.Question) *flight {
	ctx, cancel := context.WithTimeout(context.Background(), lookupTime)
	f := &flight{cancel: cancel, done: make(chan struct{})}
	r.flights[q] = f
	go func() {
		defer cancel()
		got, size, err := r.query(ctx, r.enforcer.servers(s), q)
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.end(q, f) && err == nil {
			r.remember(q, got, size)
		}
		f.answer, f.err = got, err
		close(f.done)
	}()
	return f
}

// end reports whether the lookup is the present one of its question, which has none then.
func (r *resolver) end(q dnsmessage.Question, f *flight) bool {
	present := r.flights[q] == f
	if present {
		delete(r.flights, q)
	}
	return present
}

// enter waits until a lookup may begin.
func (r *resolver) enter(ctx context.Context) error {
	const interval = time.Second / lookupRate
	r.mu.Lock()
	now := time.Now()
	if earliest := now.Add(-lookupBurst * interval); r.next.Before(earliest) {
		r.next = earliest
	}
	wait := r.next.Sub(now)
	if wait > lookupWait {
		r.mu.Unlock()
		return errBusy
	}
	r.next = r.next.Add(interval)
	r.mu.Unlock()
	if wait > 0 {
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	select {
	case r.slots <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// query asks the servers until one answers. It is as patient as the resolvers of C libraries, for
// which it stands: glibc waits 5 s for a server, musl asks all at once, and both take an answer of
// any.
func (r *resolver) query(ctx context.Context, servers []netip.Addr, q dnsmessage.Question) (answer, int, error) {
	if len(servers) == 0 {
		return answer{}, 0, errNoDNS
	}
	if err := r.enter(ctx); err != nil {
		return answer{}, 0, err
	}
	defer func() { <-r.slots }()
	type whole struct {
		answer
		size int
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	part := sync.OnceFunc(func() { time.AfterFunc(partTime, cancel) })
	at := race[whole]{
		n: dnsRounds * len(servers), delay: dnsDelay,
		try: func(ctx context.Context, i int) (whole, error) {
			// Old servers, and what is before them, may drop what has EDNS.
			got, size, err := r.ask(ctx, servers[i%len(servers)], q, i < len(servers), part)
			return whole{got, size}, err
		},
	}
	got, _, errs := at.run(ctx)
	if errs == nil {
		return got.answer, got.size, nil
	}
	err := error(context.DeadlineExceeded)
	var best *poorAnswer
	for _, e := range errs {
		if poor, ok := errors.AsType[*poorAnswer](e); ok && (best == nil || len(best.records) < len(poor.records)) {
			best = poor
		}
		err = cmp.Or(e, err)
	}
	if best != nil {
		return best.answer, 0, nil
	}
	return answer{}, 0, err
}

// poorAnswer is one to use if no server has a better one: the part that came over UDP where TCP
// does not work, or nothing, of a server that does not resolve.
type poorAnswer struct{ answer }

func (*poorAnswer) Error() string { return "the answer is not whole" }

// remember caches an answer. The caller holds mu.
func (r *resolver) remember(q dnsmessage.Question, a answer, size int) {
	if size > answerBytes {
		return
	}
	if len(r.cache) >= maxAnswers {
		now := time.Now()
		for q, a := range r.cache {
			if now.After(a.until) || len(r.cache) >= maxAnswers {
				delete(r.cache, q)
			}
		}
	}
	r.cache[q] = a
}

// ask queries one server, by UDP and, if the answer is truncated, by TCP; part is called if there is
// part of one. A server on this host is queried by TCP alone: any process inside could forge its datagrams.
func (r *resolver) ask(ctx context.Context, server netip.Addr, q dnsmessage.Question, edns bool, part func()) (answer, int, error) {
	query, err := newQuery(q, edns)
	if err != nil {
		return answer{}, 0, err
	}
	var cut answer
	if !server.IsLoopback() {
		got, size, more, err := r.exchange(ctx, "udp", server, query, q)
		if edns && errors.Is(err, errRefuses) { // it may not know EDNS
			return r.ask(ctx, server, q, false, part)
		}
		if !more || err != nil {
			return got, size, err
		}
		cut = got
		if len(cut.records) > 0 {
			part()
		}
	}
	ctx, cancel := context.WithTimeout(ctx, tcpTime)
	defer cancel()
	got, size, _, err := r.exchange(ctx, "tcp", server, query, q)
	if edns && errors.Is(err, errRefuses) {
		return r.ask(ctx, server, q, false, part)
	}
	if err != nil && len(cut.records) > 0 {
		cut.until = time.Now().Add(noneTime)
		return answer{}, 0, &poorAnswer{cut}
	}
	return got, size, err
}

// newQuery returns a query with a random ID.
func newQuery(q dnsmessage.Question, edns bool) ([]byte, error) {
	b := dnsmessage.NewBuilder(nil, dnsmessage.Header{ID: uint16(rand.Uint32()), RecursionDesired: true})
	b.EnableCompression()
	err := errors.Join(b.StartQuestions(), b.Question(q))
	if edns {
		var head dnsmessage.ResourceHeader
		err = errors.Join(err, b.StartAdditionals(), head.SetEDNS0(maxDatagram, dnsmessage.RCodeSuccess, false), b.OPTResource(head, dnsmessage.OPTResource{}))
	}
	query, finish := b.Finish()
	return query, errors.Join(err, finish)
}

// Ports of queries over UDP.
const (
	firstPort = 16384
	endPort   = 32768
)

// dial connects to a server, over UDP from a port that the kernel gives nobody else by itself. It
// tracks flows by addresses and ports alone: from the port of a client's query to the same server,
// which it redirects, that of this process would be redirected to itself, and the other way round a
// client's query would be refused, for as long as the kernel remembers the other one.
func (r *resolver) dial(ctx context.Context, network string, to netip.AddrPort) (conn net.Conn, err error) {
	if network == "udp" {
		for range 8 { // some may be taken
			from := &net.UDPAddr{Port: firstPort + rand.IntN(endPort-firstPort)}
			if conn, err = r.enforcer.dialFrom(ctx, from, network, to); !errors.Is(err, unix.EADDRINUSE) {
				return conn, err
			}
		}
	}
	return r.enforcer.dial(ctx, network, to)
}

// exchange sends a query and returns the answer to it, passing over what is none.
func (r *resolver) exchange(ctx context.Context, network string, server netip.Addr, query []byte, q dnsmessage.Question) (a answer, size int, more bool, err error) {
	conn, err := r.dial(ctx, network, netip.AddrPortFrom(server, 53))
	if err != nil {
		return a, 0, false, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })()
	var buf []byte
	read := func() ([]byte, error) { return readDNS(conn) }
	if network == "udp" {
		buf = make([]byte, 4096)
		read = func() ([]byte, error) {
			n, err := conn.Read(buf)
			return buf[:n], err
		}
		_, err = conn.Write(query)
	} else {
		err = writeDNS(conn, query)
	}
	for err == nil {
		var message []byte
		if message, err = read(); err != nil {
			break
		}
		if len(message) < 2 || !bytes.Equal(message[:2], query[:2]) {
			continue
		}
		a, more, err = readAnswer(message, q)
		if err == nil || !errors.Is(err, errAnswer) {
			return a, len(message), more, err
		}
		err = nil
	}
	return a, 0, false, err
}

// writeDNS writes a message as it is over TCP, after its length.
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

var (
	errAnswer  = errors.New("the answer is to another question")
	errRefuses = errors.New("the server does not answer the question")
)

// lower maps ASCII letters alone: the other bytes of a label may be any.
func lower(name string) string {
	b := []byte(name)
	for i, c := range b {
		if 'A' <= c && c <= 'Z' {
			b[i] += 'a' - 'A'
		}
	}
	return string(b)
}

// readAnswer reads a server's answer; more reports that it is truncated.
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
	good := h.RCode == dnsmessage.RCodeSuccess || h.RCode == dnsmessage.RCodeNameError
	switch {
	case !h.Response:
		return a, false, errAnswer
	case len(asked) == 0 && !good: // some repeat no question that they can't read
	case len(asked) != 1 || asked[0].Type != q.Type || asked[0].Class != q.Class || !strings.EqualFold(asked[0].Name.String(), q.Name.String()):
		return a, false, errAnswer
	}
	if !good {
		return a, false, fmt.Errorf("%w: %v", errRefuses, h.RCode)
	}
	a.rcode = h.RCode
	keep := answerTime
	for {
		head, err := p.AnswerHeader()
		if err == dnsmessage.ErrSectionDone {
			break
		}
		if err != nil {
			return a.orCut(h, err)
		}
		if head.Class != dnsmessage.ClassINET || head.Type != q.Type && !slices.Contains(forwardedTypes, head.Type) {
			if err := p.SkipAnswer(); err != nil {
				return a.orCut(h, err)
			}
			continue
		}
		record, err := p.Answer()
		if err != nil {
			return a.orCut(h, err)
		}
		keep = min(keep, time.Duration(record.Header.TTL)*time.Second)
		a.records = append(a.records, record)
	}
	if len(a.records) == 0 {
		keep = noneTime
	}
	a.until = time.Now().Add(keep)
	if len(a.records) == 0 && h.RCode == dnsmessage.RCodeSuccess && !h.Truncated && !h.Authoritative && !h.RecursionAvailable {
		a.poor = true
		return answer{}, false, &poorAnswer{a}
	}
	return a, h.Truncated, nil
}

// orCut returns what could be read of an answer: a truncated one may end anywhere.
func (a answer) orCut(h dnsmessage.Header, err error) (answer, bool, error) {
	if h.Truncated {
		return a, true, nil
	}
	return a, false, err
}

// addrOf returns the address in a record, or the zero Addr.
func addrOf(r dnsmessage.Resource) netip.Addr {
	switch body := r.Body.(type) {
	case *dnsmessage.AResource:
		return netip.AddrFrom4(body.A)
	case *dnsmessage.AAAAResource:
		return netip.AddrFrom16(body.AAAA)
	}
	return netip.Addr{}
}

// lookups are those of a name's addresses, one for each family.
type lookups struct {
	policy  *activePolicy
	cancel  context.CancelFunc
	results chan addrResult
	pending int

	refused netip.Addr // an address that the policy does not let the name resolve to
	errs    []error
}

type addrResult struct {
	records []dnsmessage.Resource
	err     error
}

// addrs begins to look up the addresses of a name. The caller calls cancel.
func (r *resolver) addrs(ctx context.Context, s *activePolicy, name string) *lookups {
	kinds := []dnsmessage.Type{dnsmessage.TypeA}
	if s.six {
		kinds = append(kinds, dnsmessage.TypeAAAA)
	}
	l := &lookups{policy: s, results: make(chan addrResult, len(kinds)), pending: len(kinds)}
	ctx, l.cancel = context.WithCancel(ctx)
	for _, kind := range kinds {
		go func() {
			a, err := r.lookup(ctx, s, name, kind)
			l.results <- addrResult{a.records, err}
		}()
	}
	return l
}

// next returns the addresses that the policy lets the name resolve to. Some servers answer for one
// family late or never: its addresses come from the next call. No address is left once there is
// none in a result.
func (l *lookups) next() (good []netip.Addr) {
	var late <-chan time.Time
	for l.pending > 0 {
		select {
		case <-late:
			return good
		case got := <-l.results:
			l.pending--
			l.errs = append(l.errs, got.err)
			for _, record := range got.records {
				switch addr := addrOf(record); {
				case !addr.IsValid():
				case l.policy.resolvesTo(addr):
					good = append(good, addr)
				default:
					l.refused = addr
				}
			}
		}
		if len(good) > 0 && late == nil {
			late = time.After(attemptDelay)
		}
	}
	return good
}
