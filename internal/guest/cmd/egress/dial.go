//go:build linux

package egress

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// attemptDelay is how long an address has to answer before the next is tried, too
	// (RFC 8305, section 5).
	attemptDelay = 250 * time.Millisecond
	// maxAttempts bounds the attempts of all connections beyond the first of each.
	maxAttempts = 256
)

// inOrder returns addresses in the order in which to try them: the one that the client chose, if
// it is among them, then the families in turn (RFC 8305, section 4), beginning with that of the
// client's choice.
func inOrder(addrs []netip.Addr, chosen netip.Addr) []netip.Addr {
	var same, other []netip.Addr
	seen := make(map[netip.Addr]bool)
	for _, a := range addrs {
		switch {
		case seen[a]:
		case a.Is6() != chosen.Is6():
			other = append(other, a)
		case a == chosen:
			same = slices.Insert(same, 0, a)
		default:
			same = append(same, a)
		}
		seen[a] = true
	}
	var out []netip.Addr
	for i := range max(len(same), len(other)) {
		out = append(append(out, same[min(i, len(same)):min(i+1, len(same))]...), other[min(i, len(other)):min(i+1, len(other))]...)
	}
	return out
}

// dialAny connects to the first of the addresses that answers. The error is the one that says most,
// with its address.
func (e *Enforcer) dialAny(ctx context.Context, addrs []netip.Addr, port uint16) (net.Conn, netip.Addr, error) {
	at := race[net.Conn]{
		n: len(addrs), delay: attemptDelay, slots: e.attempts,
		try: func(ctx context.Context, i int) (net.Conn, error) {
			return e.dial(ctx, "tcp", netip.AddrPortFrom(addrs[i], port))
		},
		discard: func(late net.Conn) { late.Close() },
	}
	conn, i, errs := at.run(ctx)
	if errs == nil {
		return conn, addrs[i], nil
	}
	i = 0
	for other, err := range errs {
		if says(err) > says(errs[i]) {
			i = other
		}
	}
	return nil, addrs[i], cmp.Or(errs[i], context.DeadlineExceeded)
}

// dialName connects to a host by its name, for a client that chose the address to. The decision d gets
// the address, and what became of the connection.
func (e *Enforcer) dialName(ctx context.Context, s *activePolicy, to netip.Addr, d *decision) (net.Conn, error) {
	found := e.resolver.addrs(ctx, s, d.name)
	defer found.cancel()
	var failed error
	for addrs := found.next(); len(addrs) > 0; addrs = found.next() {
		conn, addr, err := e.dialAny(ctx, inOrder(addrs, to), d.port)
		if err == nil {
			d.addr, d.failure = addr, ""
			return conn, nil
		}
		if failed == nil || says(err) > says(failed) {
			d.addr, d.failure, failed = addr, failureOf(err), err
		}
	}
	switch {
	case failed != nil:
	case found.refused.IsValid():
		d.addr, d.rule, d.allowed = found.refused, string(s.rules.Addr(found.refused)), false
		failed = errNoAddress
	default:
		d.failure = failedLookup
		failed = errors.Join(append(found.errs, errNoAddress)...)
	}
	return nil, failed
}

// errNoAddress is the error of a name that has no address that the policy allows.
var errNoAddress = errors.New("no allowed address")

// What became of an allowed connection, in the log.
const (
	failedLookup      = "lookup"      // the name has no address, or no DNS server answered
	failedUnreachable = "unreachable" // there is no way to the address
	failedTimeout     = "timeout"     // the server did not answer
	failedRefused     = "refused"     // nothing listens on the port
	failedOther       = "failed"
)

// failures are in the order of what they say: a server that refuses exists.
var failures = []string{"", failedOther, failedTimeout, failedUnreachable, failedRefused}

func says(err error) int { return slices.Index(failures, failureOf(err)) }

// failureOf returns what the log says of an error of dialAny.
func failureOf(err error) string {
	switch {
	case err == nil:
		return ""
	case errors.Is(err, unix.ECONNREFUSED):
		return failedRefused
	case errors.Is(err, unix.EHOSTUNREACH), errors.Is(err, unix.ENETUNREACH), errors.Is(err, unix.EADDRNOTAVAIL):
		return failedUnreachable
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled), errors.Is(err, unix.ETIMEDOUT):
		return failedTimeout
	}
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		return failedTimeout
	}
	return failedOther
}
