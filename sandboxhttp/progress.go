package sandboxhttp

import (
	"context"
	"net/http"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
)

// createEvent is an event of a creation whose client asked for its progress.
type createEvent struct {
	// Event is "progress", "created" or "failed", or "idle", which says nothing but keeps proxies from
	// closing a quiet connection.
	Event    string            `json:"event"`
	Progress *sandbox.Progress `json:"progress,omitempty"`
	Sandbox  *sandbox.Status   `json:"sandbox,omitempty"`
	// Error and Status, that of an answer without events, are in "failed".
	Error  *failure `json:"error,omitempty"`
	Status int      `json:"status,omitempty"`
}

// sendCreation creates a sandbox, and sends its steps and the result as lines of JSON. The client that
// goes cancels it.
func sendCreation(w http.ResponseWriter, r *http.Request, create func(context.Context, func(sandbox.Progress)) (*sandbox.Sandbox, error)) error {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	steps, done := make(chan sandbox.Progress, 1), make(chan createEvent, 1)
	go func() {
		done <- created(ctx, r, func() (*sandbox.Sandbox, error) {
			return create(ctx, func(p sandbox.Progress) {
				select {
				case <-steps: // the latest step counts
				default:
				}
				steps <- p
			})
		})
	}()
	s := newSender(w, jsonLines, stallTimeout)
	defer s.close()
	tick := time.NewTicker(heartbeat)
	defer tick.Stop()
	for {
		select {
		case p := <-steps:
			s.object("progress", createEvent{Event: "progress", Progress: &p})
		case <-tick.C:
			s.beat()
		case last := <-done:
			select {
			case p := <-steps: // it came before
				s.object("progress", createEvent{Event: "progress", Progress: &p})
			default:
			}
			s.object(last.Event, last)
			s.flush()
			return nil
		}
		if s.flush() != nil {
			cancel()
		}
	}
}

// created returns the event for the result of a creation.
func created(ctx context.Context, r *http.Request, create func() (*sandbox.Sandbox, error)) createEvent {
	sb, err := create()
	var st sandbox.Status
	if err == nil {
		defer sb.Detach()
		st, err = sb.Summary(ctx)
	}
	if err != nil {
		status, f := explain(err)
		return createEvent{Event: "failed", Error: &f, Status: status}
	}
	st = located(r, st)
	return createEvent{Event: "created", Sandbox: &st}
}
