package sandboxhttp

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
)

// events sends what happens to sandboxes, as Server-Sent Events, until the client disconnects.
func (h *handler) events(w http.ResponseWriter, r *http.Request) error {
	list, err := listOptions(r.URL.Query())
	if err != nil {
		return err
	}
	o := sandbox.WatchOptions{ListOptions: list}
	if o.Denied, err = flag(r, "denied", false); err != nil {
		return err
	}
	s := newSender(w, eventStream, writeTimeout)
	if r.Method == http.MethodHead { // its answer would have no end either
		s.open()
		return nil
	}
	ctx, cancel := context.WithCancel(r.Context())
	type item struct {
		event sandbox.Event
		err   error
	}
	items := make(chan item)
	var watching sync.WaitGroup
	watching.Go(func() {
		defer close(items)
		for e, err := range h.client.Watch(ctx, o) {
			select {
			case items <- item{e, err}:
			case <-ctx.Done():
				return
			}
		}
	})
	defer watching.Wait()
	defer cancel()
	beat := time.NewTicker(heartbeat)
	defer beat.Stop()
	defer s.close()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-beat.C:
			s.beat()
		case i, more := <-items:
			switch {
			case !more || ctx.Err() != nil:
				return nil
			case i.err != nil && !s.opened:
				return i.err
			case i.err != nil:
				_, f := explain(i.err)
				s.object("failed", failed{f})
				s.flush()
				return nil
			}
			s.object(string(i.event.Kind), i.event)
		}
		if s.flush() != nil {
			return nil
		}
	}
}
