//go:build linux

package egress

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// answer holds the records of a server's answer that the filter lets through.
type answer struct {
	rcode   dnsmessage.RCode
	records []dnsmessage.Resource
	until   time.Time
}

// resolver queries DNS servers. It uses neither /etc/hosts nor /etc/resolv.conf of the
// sandbox, which root inside can change.
type resolver struct {
	enforcer *Enforcer

	mu      sync.Mutex
	cache   map[dnsmessage.Question]answer
	second  int64 // for which started counts
	started int
	slots   chan struct{}
}

func newResolver(e *Enforcer) *resolver {
	return &resolver{enforcer: e, cache: make(map[dnsmessage.Question]answer), slots: make(chan struct{}, maxLookups)}
}

// forget empties the cache.
func (r *resolver) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.cache)
}

var errBusy = errors.New("too many lookups")

// lookup returns the records of a name, which the policy must allow.
func (r *resolver) lookup(ctx context.Context, s *activePolicy, name string, kind dnsmessage.Type) (answer, error) {
	full, err := dnsmessage.NewName(strings.TrimSuffix(strings.ToLower(name), ".") + ".")
	if err != nil {
		return answer{}, err
	}
	q := dnsmessage.Question{Name: full, Type: kind, Class: dnsmessage.ClassINET}
	r.mu.Lock()
	got, ok := r.cache[q]
	r.mu.Unlock()
	if ok && time.Now().Before(got.until) {
		return got, nil
	}
	if !r.enter() {
		return answer{}, errBusy
	}
	defer func() { <-r.slots }()
	err = errors.New("no DNS server")
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
		r.second, r.started = now, 0
	}
	r.started++
	busy := r.started > lookupRate
	r.mu.Unlock()
	if busy {
		return false
	}
	select {
	case r.slots <- struct{}{}:
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

// ask queries one server, by UDP and, if the answer is truncated, by TCP. A server on this
// host is queried by TCP alone: any process inside could forge its datagrams.
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

var errAnswer = errors.New("the answer is to another question")

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
	if !h.Response || len(asked) != 1 || asked[0].Type != q.Type || asked[0].Class != q.Class || !strings.EqualFold(asked[0].Name.String(), q.Name.String()) {
		return a, false, errAnswer
	}
	if h.RCode != dnsmessage.RCodeSuccess && h.RCode != dnsmessage.RCodeNameError {
		return a, false, fmt.Errorf("server: %v", h.RCode)
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

// addrs returns the addresses of a name that a policy lets it resolve to, those of the
// wanted family first. refused is an address that it does not.
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
