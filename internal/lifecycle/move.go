package lifecycle

import (
	"context"
	"errors"

	"github.com/seed-1a2d6d8f/sandbox/internal/claim"
	"github.com/seed-1a2d6d8f/sandbox/internal/machine"
	"github.com/seed-1a2d6d8f/sandbox/internal/provision"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
)

// A Switch makes the moved sandbox the one that counts, see [provision.Journey].
type Switch func(ctx context.Context, was, now record.Sandbox, previous string) (moved bool, err error)

// Move moves a sandbox that does not run from this client's node to that of another client.
func (c *Client) Move(ctx context.Context, to *Client, node string, rec record.Sandbox, s Switch, report *machine.Reporter) error {
	for {
		rec, got, err := c.Store.AwaitCreated(ctx, rec.Name)
		if err != nil {
			return err
		}
		if !got.HasSession() && rec.Outdated() {
			// Its container gets the changes here: then all that is to be moved is in it.
			err = provision.Remake(ctx, c.Machine, rec, "", report)
		} else {
			err = provision.Move(ctx, rec, provision.Journey{From: c.Machine, To: to.Machine, Node: node, Switch: s, Report: report})
		}
		var held *claim.TakenError
		switch {
		case errors.As(err, &held):
			if err := c.Store.AwaitChange(ctx, rec.Name); err != nil {
				return err
			}
			if err := to.Store.AwaitChange(ctx, rec.Name); err != nil {
				return err
			}
		case err != nil || !rec.Outdated() || got.HasSession():
			return err
		}
	}
}
