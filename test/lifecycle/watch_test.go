package lifecycle_test

import (
	"context"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// A watching collects the events of a client.
type watching struct {
	t      *testing.T
	cancel context.CancelFunc
	done   chan error

	mu     sync.Mutex
	events []sandbox.Event
}

func watch(t *testing.T, c *sandbox.Client, o sandbox.WatchOptions) *watching {
	ctx, cancel := context.WithCancel(t.Context())
	w := &watching{t: t, cancel: cancel, done: make(chan error, 1)}
	go func() {
		for e, err := range c.Watch(ctx, o) {
			if err != nil {
				w.done <- err
				return
			}
			w.mu.Lock()
			w.events = append(w.events, e)
			w.mu.Unlock()
		}
		w.done <- nil
	}()
	t.Cleanup(cancel)
	return w
}

// until waits until there are n events, and returns their kinds.
func (w *watching) until(n int) (kinds []sandbox.EventKind) {
	w.t.Helper()
	for end := time.Now().Add(harness.CallBound); ; time.Sleep(20 * time.Millisecond) {
		w.mu.Lock()
		kinds = nil
		for _, e := range w.events {
			kinds = append(kinds, e.Kind)
		}
		kinds = slices.Compact(kinds) // a connection is tried again
		w.mu.Unlock()
		if len(kinds) >= n {
			return kinds
		}
		if time.Now().After(end) {
			w.t.Fatalf("the events are %q, want %d", kinds, n)
		}
	}
}

func TestWatchTellsWhatHappens(t *testing.T) {
	t.Parallel()
	// Connections to the engine's events pass through here, and break when told.
	var mu sync.Mutex
	var streams []io.Closer
	host := harness.InFront(t, func(http.ResponseWriter, *http.Request) bool { return false }, func(r *http.Response) error {
		if strings.HasSuffix(r.Request.URL.Path, "/events") {
			mu.Lock()
			defer mu.Unlock()
			streams = append(streams, r.Body)
		}
		return nil
	})
	c := harness.NewClient(t, sandbox.WithHost(host))
	ctx, tags := t.Context(), map[string]string{"watched": t.Name()}
	w := watch(t, c, sandbox.WatchOptions{ListOptions: sandbox.ListOptions{Tags: tags}, Denied: true})
	w.until(1)
	other := harness.NewSandbox(t) // has no such tag
	sb := harness.NewSandbox(t, sandbox.WithTags(tags), sandbox.WithPersistent(true), sandbox.WithNetworkPolicy(sandbox.DenyAll()))
	w.until(3)
	if err := sb.Command(ctx, "node", "-e", "require('net').connect(80, '192.0.2.1').on('error', () => {})").Run(); err != nil {
		t.Fatal(err)
	}
	w.until(4)
	if _, err := sb.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	w.until(5)
	if _, err := sb.Start(ctx); err != nil {
		t.Fatal(err)
	}
	w.until(6)
	mu.Lock()
	for _, s := range streams {
		s.Close()
	}
	mu.Unlock()
	w.until(7)
	if _, err := sb.Delete(ctx, sandbox.DeleteOptions{Volumes: true}); err != nil {
		t.Fatal(err)
	}
	got := w.until(9)
	want := []sandbox.EventKind{
		sandbox.EventSync, sandbox.EventCreated, sandbox.EventStarted, sandbox.EventDenied, sandbox.EventStopped, sandbox.EventStarted,
		sandbox.EventSync, sandbox.EventStopped, sandbox.EventDeleted,
	}
	if !slices.Equal(got, want) {
		t.Errorf("the events are %q, want %q", got, want)
	}
	for _, e := range w.events {
		if e.Kind != sandbox.EventSync && (e.ID != sb.ID() || e.Name != sb.Name()) || e.ID == other.ID() || (e.Kind == sandbox.EventDenied) != (e.Egress != nil) {
			t.Errorf("an event: %+v", e)
		}
	}
	w.cancel()
	if err := <-w.done; err == nil {
		t.Error("the sequence ended without an error when its context had")
	}
}
