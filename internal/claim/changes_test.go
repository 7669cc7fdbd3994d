package claim_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/claim"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
)

// A history is what writers of one record were told that they changed.
type history struct {
	*memory

	mu       sync.Mutex
	made     map[string]bool // the tags of changes that succeeded
	problems []string
}

func (h *history) snapshot() map[string]bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return maps.Clone(h.made)
}

func (h *history) problem(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.problems = append(h.problems, fmt.Sprintf(format, args...))
}

// check looks for changes that were made before.
func (h *history) check(what string, before map[string]bool, r record.Sandbox) {
	for tag := range before {
		if r.Tags[tag] == "" {
			h.problem("%s has revision %d without %s", what, r.Revision.N, tag)
		}
	}
}

// settledAfter is the age at which a sweep removes revisions, longer than any search takes here.
const settledAfter = 10 * time.Minute

// write has a process change the record, which it may know as it was long ago, and read it.
func (h *history) write(p *process, r record.Sandbox, rounds int) {
	old := r
	for range rounds {
		nap := p.random(5 * time.Second)
		if p.chance(4) {
			nap = p.random(3 * settledAfter)
		}
		if !pause(p.life, nap) {
			return
		}
		if p.chance(5) {
			r = old // another handle, which was opened earlier
		}
		if p.chance(3) {
			old = r
		}
		before, key := h.snapshot(), p.nonce()
		if p.chance(2) {
			if now, err := claim.Latest(p.life, p, r); err == nil {
				h.check(p.name+" reads and", before, now)
				r = now
			}
			continue
		}
		if p.chance(6) {
			if now, err := claim.Revise(p.life, p, r, func(*record.Changes) bool { return false }); err != nil || now.Revision.N != r.Revision.N {
				h.problem("%s changes nothing: revision %d of %d, %v", p.name, now.Revision.N, r.Revision.N, err)
			}
		}
		now, err := claim.Revise(p.life, p, r, tag(key, "set"))
		if err != nil {
			continue // nobody knows
		}
		r = now
		h.check(p.name+" writes and", before, r)
		if r.Tags[key] != "set" {
			h.problem("%s wrote %s, and it is not there", p.name, key)
		}
		h.mu.Lock()
		h.made[key] = true
		h.mu.Unlock()
	}
}

// sweep removes superseded revisions until the process ends.
func (h *history) sweep(p *process) {
	for pause(p.life, settledAfter/2) {
		vols, err := p.ListVolumes(p.life)
		if err != nil {
			continue
		}
		for _, line := range claim.SupersededRevisions(vols, p.Now(), settledAfter) {
			for _, name := range line {
				if p.RemoveVolume(p.life, name, false) != nil {
					break
				}
			}
		}
	}
}

func (tr trial) write(t *testing.T) (calls int) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		h := &history{memory: newMemory(), made: map[string]bool{"first": true}}
		r := someSandbox()
		early := r
		early.Nonce = "early" // an earlier sandbox with this ID left its revisions
		for n := range 2 {
			early = revise(t, h.memory, early, tag("early", fmt.Sprint(n)))
		}
		for n := range 3 {
			r = revise(t, h.memory, r, tag("first", fmt.Sprint(n)))
		}
		if latest(t, h.memory, someSandbox()).Tags["early"] != "" {
			t.Error("a revision of an earlier sandbox counts")
		}
		var writers, sweepers sync.WaitGroup
		var first *process
		for _, name := range []string{"a", "b", "c"} {
			p := newProcess(ctx, h.memory, name, tr.seed, tr.slow)
			if first == nil {
				first = p
				p.fault, p.at = tr.fault, tr.at
			}
			writers.Go(func() { h.write(p, someSandbox(), 10) })
		}
		sweeper := newProcess(ctx, h.memory, "sweeper", tr.seed, tr.slow)
		sweepers.Go(func() { h.sweep(sweeper) })
		writers.Wait()
		calls = first.calls
		time.Sleep(3 * settledAfter)
		cancel()
		sweepers.Wait()
		last := latest(t, h.memory, someSandbox())
		h.check("the end", h.made, last)
		vols, _ := h.ListVolumes(context.Background())
		if all := claim.ReadRevisions(vols).Of(someSandbox()); all.Revision.N != last.Revision.N || !maps.Equal(all.Tags, last.Tags) {
			h.problem("a list says revision %d, and Latest says %d", all.Revision.N, last.Revision.N)
		}
		if err := claim.DropRevisions(context.Background(), h.memory, someSandbox()); err != nil || len(h.names()) > 0 {
			h.problem("DropRevisions: %v, left %v", err, h.names())
		}
		slices.Sort(h.problems)
		for _, p := range slices.Compact(h.problems) {
			t.Errorf("%+v: %s", tr, p)
		}
	})
	return calls
}

// Three processes change a record and read it, some of them from what they knew long ago, while a sweep
// removes what nobody should need. Each call of one of them has a fault once: who reads finds all
// changes that had been made when it began.
func TestNoChangeIsLost(t *testing.T) {
	t.Parallel()
	trials := 0
	for seed := range uint64(2) {
		tr := trial{seed: seed, slow: 2 * time.Second}
		calls := tr.write(t)
		for tr.at = 1; tr.at <= calls && !t.Failed(); tr.at++ {
			for _, tr.fault = range faults[:4] {
				tr.write(t)
				trials++
			}
		}
	}
	t.Logf("%d trials", trials)
}
