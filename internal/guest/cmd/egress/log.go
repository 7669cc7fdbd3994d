//go:build linux

package egress

import (
	"container/list"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// decisionLog counts what was allowed and what was blocked. It holds at most wire.MaxEgress
// different decisions.
type decisionLog struct {
	mu      sync.Mutex
	byKind  map[decision]*list.Element // of *wire.Egress
	recent  list.List                  // the latest first
	dropped int64
	allowed int64
	blocked int64
}

// decision is the key of an entry.
type decision struct {
	name     string
	addr     netip.Addr
	port     uint16
	protocol string
	rule     string
	allowed  bool
	failure  string // why an allowed connection did not come about
}

func (e *decisionLog) add(d decision) {
	if len(d.name) > wire.MaxEgressName {
		d.name = d.name[:wire.MaxEgressName]
	}
	now := time.Now()
	e.mu.Lock()
	defer e.mu.Unlock()
	if d.allowed {
		e.allowed++
	} else {
		e.blocked++
	}
	if have, ok := e.byKind[d]; ok {
		entry := have.Value.(*wire.Egress)
		entry.Count++
		entry.Last = now
		e.recent.MoveToFront(have)
		return
	}
	if e.byKind == nil {
		e.byKind = make(map[decision]*list.Element)
	}
	if e.recent.Len() >= wire.MaxEgress {
		oldest := e.recent.Back()
		delete(e.byKind, kindOf(oldest.Value.(*wire.Egress)))
		e.recent.Remove(oldest)
		e.dropped++
	}
	d.name = strings.Clone(d.name) // it may be part of a large buffer
	e.byKind[d] = e.recent.PushFront(&wire.Egress{
		Name: d.name, Address: d.addr, Port: d.port, Protocol: d.protocol, Rule: d.rule, Allowed: d.allowed, Failure: d.failure,
		Count: 1, First: now, Last: now,
	})
}

func kindOf(e *wire.Egress) decision {
	return decision{e.Name, e.Address, e.Port, e.Protocol, e.Rule, e.Allowed, e.Failure}
}

func (e *decisionLog) counts() (allowed, blocked int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.allowed, e.blocked
}

// entries returns the log, the latest decision first.
func (e *decisionLog) entries() *wire.EgressLog {
	e.mu.Lock()
	defer e.mu.Unlock()
	log := &wire.EgressLog{Dropped: e.dropped}
	for at := e.recent.Front(); at != nil; at = at.Next() {
		log.Entries = append(log.Entries, *at.Value.(*wire.Egress))
	}
	return log
}
