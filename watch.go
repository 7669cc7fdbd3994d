package sandbox

import (
	"context"
	"errors"
	"iter"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/bound"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/errdefs"
	"github.com/seed-1a2d6d8f/sandbox/internal/lifecycle"
	"github.com/seed-1a2d6d8f/sandbox/internal/trace"
)

// EventKind says what happened to a sandbox.
type EventKind string

// The kinds of events.
const (
	EventCreated EventKind = "created" // it can be used; it is either running, and EventStarted follows, or stopped
	EventStarted EventKind = "started" // its session started
	EventStopped EventKind = "stopped" // its session ended
	EventDeleted EventKind = "deleted" // it is there no more
	EventDenied  EventKind = "denied"  // its network policy did not let it connect, see Event.Egress

	// EventSync is the first event, and the first after events may have been missed, because the
	// connection to an engine was lost: what List returns from now on, later events add to. Sandboxes
	// that were created, deleted, started or stopped meanwhile have their events, with the time at
	// which they were noticed; what was undone meanwhile has none.
	EventSync EventKind = "sync"
)

// Event is something that happened to a sandbox.
type Event struct {
	Kind EventKind `json:"event"`
	// Time is when it was noticed, by this machine's clock.
	Time time.Time `json:"time"`
	// ID, Name and Tags are the sandbox's. An EventSync has none.
	ID   string            `json:"id,omitempty"`
	Name string            `json:"name,omitempty"`
	Tags map[string]string `json:"tags,omitempty"`
	// Egress is what an EventDenied is about. Its Count is of the session so far.
	Egress *Egress `json:"egress,omitempty"`
}

// WatchOptions select events. The zero value selects those of all sandboxes but EventDenied.
type WatchOptions struct {
	ListOptions
	// Denied adds EventDenied. For it each running sandbox is asked for its connections every 5 s,
	// without resuming it. An idle timeout may count that as a use.
	Denied bool
}

const (
	watchRest    = 10 * time.Second       // between looks at an engine that reports no change
	watchPending = 500 * time.Millisecond // while a sandbox is being created
	watchRetry   = time.Second            // before a lost connection is made again
	watchDenied  = 5 * time.Second
)

// Watch returns what happens to the sandboxes of the client's engine from now on, beginning with an
// EventSync. States of [WatchOptions] are not used. It follows the engine's own events and connects again
// when they break off: then an EventSync says that some may have been missed. A change that is undone
// within a moment may have no events. Events of one sandbox are in order.
//
// The sequence ends when ctx does or the client is closed, with the error as its last value. Leaving
// the loop releases all resources. Ranging over it again watches again. A loop that is slow delays
// later events, and loses none but those that are undone meanwhile.
func (c *Client) Watch(ctx context.Context, o WatchOptions) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		var err error
		ctx, span := trace.Start(ctx, "sandbox.watch")
		defer span.End(&err) // also if yield panics
		if err := o.check(); err != nil {
			yield(Event{}, fail("watch", "", err))
			return
		}
		if len(o.States) > 0 {
			yield(Event{}, fail("watch", "", errdefs.Invalid("WatchOptions: States is for List")))
			return
		}
		ctx, cancel := context.WithCancel(ctx)
		w := &watcher{c: c, o: o, wake: make(chan struct{}, 1), following: map[*lifecycle.Client]bool{}, ended: map[string]bool{}, restarted: map[string]bool{}, denied: map[string]time.Time{}}
		defer w.work.Wait()
		defer cancel()
		err = w.run(ctx, func(e Event) bool { return yield(e, nil) })
		if errors.Is(err, errLeft) {
			err = nil
		} else if err != nil {
			yield(Event{}, fail("watch", "", err))
		}
	}
}

// Watch is [Client.Watch] with the default client.
func Watch(ctx context.Context, o WatchOptions) iter.Seq2[Event, error] {
	return defaultClient().Watch(ctx, o)
}

// errLeft: the caller has left the loop.
var errLeft = errors.New("left")

// A watcher compares what there is whenever an engine reports a change, so that an event is never about
// a container that is only part of a change, such as one that replaces another.
type watcher struct {
	c    *Client
	o    WatchOptions
	work sync.WaitGroup
	wake chan struct{}

	mu        sync.Mutex
	following map[*lifecycle.Client]bool
	ended     map[string]bool // the sandboxes whose session has ended, unless that was seen in a look
	restarted map[string]bool // those of them that have a new one
	missed    bool            // changes since the last look

	known  map[string]Info // by ID
	looked time.Time       // when connections were last asked for
	denied map[string]time.Time
}

func (w *watcher) run(ctx context.Context, yield func(Event) bool) error {
	for {
		if err := w.follow(ctx); err != nil {
			return err
		}
		w.mu.Lock()
		missed := w.missed
		w.missed = false
		w.mu.Unlock()
		infos, err := w.c.List(ctx, w.o.ListOptions)
		switch {
		case errors.Is(err, ErrClosed), ctx.Err() != nil, err != nil && w.known == nil:
			return errors.Join(err, context.Cause(ctx))
		case err != nil:
			w.lose()
		default:
			if !w.compare(infos, missed, yield) {
				return errLeft
			}
		}
		wait := watchRest
		if err != nil || slices.ContainsFunc(infos, func(i Info) bool { return i.State == StateCreating }) {
			wait = watchPending
		}
		if w.o.Denied {
			if !w.askDenied(ctx, infos, yield) {
				return errLeft
			}
			wait = min(wait, watchDenied)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-w.wake:
		case <-time.After(wait):
		}
	}
}

// lose notes that changes may have been missed.
func (w *watcher) lose() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.missed = true
}

func (w *watcher) change(id string, e engine.Event) {
	w.mu.Lock()
	switch {
	case e.Ended:
		w.ended[id] = true
	case e.Started && w.ended[id]:
		w.restarted[id] = true
	}
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default: // it has been woken
	}
}

// hasRestarted reports whether a sandbox has got a new session without a look in between.
func (w *watcher) hasRestarted(id string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.restarted[id]
}

// noticed forgets the changes of a sandbox whose events are there.
func (w *watcher) noticed(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.ended, id)
	delete(w.restarted, id)
}

// follow follows the changes of engines that are new, and waits for these, so that no change is
// missed between them and the first look.
func (w *watcher) follow(ctx context.Context) error {
	clients, _, err := eachEngine(ctx, w.c, func(_ context.Context, l *lifecycle.Client) ([]*lifecycle.Client, error) {
		return []*lifecycle.Client{l}, nil
	})
	if err != nil && w.known == nil || errors.Is(err, ErrClosed) {
		return err
	}
	for _, l := range clients {
		w.mu.Lock()
		is := w.following[l]
		w.following[l] = true
		w.mu.Unlock()
		if is {
			continue
		}
		ready := make(chan struct{})
		w.work.Go(func() {
			var once sync.Once
			for ctx.Err() == nil {
				l.Store.Events(ctx, func() {
					first := false
					once.Do(func() { close(ready); first = true })
					if !first {
						w.change("", engine.Event{}) // a look, for what was missed
					}
				}, w.change)
				w.lose()
				once.Do(func() { close(ready) })
				bound.Sleep(ctx, watchRetry)
			}
		})
		select {
		case <-ready:
		case <-ctx.Done():
		}
	}
	return nil
}

// compare yields what has changed since the last look.
func (w *watcher) compare(infos []Info, missed bool, yield func(Event) bool) bool {
	now := map[string]Info{}
	first := w.known == nil
	if (first || missed) && !yield(Event{Kind: EventSync, Time: time.Now()}) {
		return false
	}
	send := func(i Info, kinds ...EventKind) bool {
		if len(kinds) > 0 {
			w.noticed(i.ID)
		}
		for _, kind := range kinds {
			if !yield(Event{Kind: kind, Time: time.Now(), ID: i.ID, Name: i.Name, Tags: maps.Clone(i.Tags)}) {
				return false
			}
		}
		return true
	}
	for _, i := range slices.Backward(infos) { // the oldest first
		was, had := w.known[i.ID]
		if i.State == StateCreating || i.State == StateUnreachable {
			if had {
				now[i.ID] = was
			}
			continue
		}
		now[i.ID] = i
		var kinds []EventKind
		switch up := hasSession(i); {
		case !had && up:
			kinds = []EventKind{EventCreated, EventStarted}
		case !had:
			kinds = []EventKind{EventCreated}
		case hasSession(was) && up && w.hasRestarted(i.ID):
			kinds = []EventKind{EventStopped, EventStarted}
		case hasSession(was) && !up:
			kinds = []EventKind{EventStopped}
		case !hasSession(was) && up:
			kinds = []EventKind{EventStarted}
		}
		if !first && !send(i, kinds...) {
			return false
		}
	}
	for id, was := range w.known {
		if _, still := now[id]; still {
			continue
		}
		kinds := []EventKind{EventDeleted}
		if hasSession(was) {
			kinds = []EventKind{EventStopped, EventDeleted}
		}
		delete(w.denied, id)
		if !send(was, kinds...) {
			return false
		}
	}
	w.known = now
	return true
}

func hasSession(i Info) bool { return i.State == StateRunning || i.State == StatePaused }

// askDenied yields the connections that policies did not allow since the last look.
func (w *watcher) askDenied(ctx context.Context, infos []Info, yield func(Event) bool) bool {
	if time.Since(w.looked) < watchDenied {
		return true
	}
	begin := w.looked.IsZero()
	w.looked = time.Now()
	for _, i := range infos {
		if i.State != StateRunning {
			continue
		}
		last, seen := w.denied[i.ID]
		for _, e := range w.egressOf(ctx, i.ID) {
			if e.Allowed || !e.Last.After(last) {
				continue
			}
			if e.Last.After(w.denied[i.ID]) {
				w.denied[i.ID] = e.Last
			}
			if begin && !seen { // from before
				continue
			}
			if !yield(Event{Kind: EventDenied, Time: time.Now(), ID: i.ID, Name: i.Name, Tags: maps.Clone(i.Tags), Egress: &e}) {
				return false
			}
		}
	}
	return true
}

// egressOf returns nothing for a sandbox that does not answer: it may have ended.
func (w *watcher) egressOf(ctx context.Context, id string) []Egress {
	ctx, cancel := context.WithTimeout(ctx, watchDenied)
	defer cancel()
	sb, err := w.c.Get(ctx, id, NeverResume())
	if err != nil {
		return nil
	}
	defer sb.Detach()
	list, _ := sb.Egress(ctx)
	return list
}
