package engine

import (
	"context"

	"github.com/docker/docker/api/types/events"
)

// An Event is a change of the state of a container.
type Event struct {
	Labels         map[string]string // all that the container has
	Started, Ended bool              // or it is another
}

// Events calls fn for each change of the state of a container with these labels. ready is called once the engine sends events. Events returns when ctx ends
// or the engine's stream breaks: what happens from then on is missed.
func (e *Engine) Events(ctx context.Context, labels []string, ready func(), fn func(Event)) error {
	args := labelFilter(labels)
	args.Add("type", string(events.ContainerEventType))
	for _, action := range []events.Action{events.ActionCreate, events.ActionStart, events.ActionDie, events.ActionDestroy, events.ActionRename, events.ActionPause, events.ActionUnPause} {
		args.Add("event", string(action))
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// It returns once the engine has answered, or with an error in its channel.
	messages, errs := e.cli.Events(ctx, events.ListOptions{Filters: args})
	select {
	case err := <-errs:
		return e.fail(ctx, err)
	default:
		ready()
	}
	for {
		select {
		case err := <-errs:
			return e.fail(ctx, err)
		case m := <-messages:
			fn(Event{m.Actor.Attributes, m.Action == events.ActionStart, m.Action == events.ActionDie})
		}
	}
}
