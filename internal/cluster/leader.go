package cluster

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/bound"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
)

// electionTime bounds how long calls wait for the managers to elect a leader. It begins with the first call
// that finds none: later ones don't wait anew.
const electionTime = 10 * time.Second

// leaderless is since when, and until when, calls have found no leader.
type leaderless struct {
	mu          sync.Mutex
	first, last time.Time
}

// missing notes that there is no leader, and returns for how long that has been known.
func (l *leaderless) missing() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if now.Sub(l.last) > electionTime {
		l.first = now // nobody has asked since: there may have been one
	}
	l.last = now
	return now.Sub(l.first)
}

func (l *leaderless) found() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last = time.Time{}
}

// ask calls fn with the engine of a manager: the client's own, and if that does not answer, or has no
// leader, another one. An engine says that it has no leader once it has had none for 10 s. While half of the
// managers' engines don't answer there will be none, so nobody waits.
func ask[T any](ctx context.Context, e *Engines, fn func(*engine.Engine) (T, error)) (T, error) {
	for {
		got, err := fn(e.self.client.Engine)
		if !errors.Is(err, engine.ErrUnavailable) || ctx.Err() != nil {
			if !errors.Is(err, engine.ErrUnavailable) {
				e.leader.found()
			}
			return got, err
		}
		answer := 0 // managers without a leader
		if errors.Is(err, engine.ErrNoLeader) {
			answer++
		}
		others := e.otherManagers()
		for _, m := range others {
			l, unreached := m.connect(ctx)
			if unreached != nil {
				continue
			}
			other, otherErr := fn(l.Engine)
			if !errors.Is(otherErr, engine.ErrUnavailable) {
				e.leader.found()
				return other, otherErr
			}
			if errors.Is(otherErr, engine.ErrNoLeader) {
				answer++
				if !errors.Is(err, engine.ErrNoLeader) {
					err = errors.Join(otherErr, err) // the own one does not run, and the others elect a leader
				}
			}
		}
		quorum := len(others) == 0 || 2*answer > len(others)+1 // a new client with Options.Host knows no managers
		if !errors.Is(err, engine.ErrNoLeader) || !quorum || e.leader.missing() > electionTime {
			return got, fmt.Errorf("ask a manager of the swarm: %w", err)
		}
		if waitErr := bound.Sleep(ctx, 200*time.Millisecond); waitErr != nil {
			return got, errors.Join(waitErr, err)
		}
	}
}

// otherManagers returns the managers beside the client's own, as they were when nodes were last listed, or the own one knows them.
func (e *Engines) otherManagers() (some []*member) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, n := range e.nodes {
		if m := e.members[n.ID]; n.Manager && m != e.self {
			some = append(some, m)
		}
	}
	return some
}
