package sandbox

import (
	"context"

	"github.com/seed-1a2d6d8f/sandbox/internal/machine"
	"github.com/seed-1a2d6d8f/sandbox/internal/trace"
)

// A MoveReport says what [Client.Move] did. Its JSON is the output of the sandbox command.
type MoveReport struct {
	From string `json:"from"` // the name of the node that the sandbox was on
	To   string `json:"to"`   // and of the one that it is on
	// Snapshots are the IDs of the sandbox's snapshots, which stay on From.
	Snapshots []string `json:"snapshots"`
}

// Move moves a stopped sandbox to another node of the client's swarm, by the node's name or ID: its
// workspace, its copies of directories, the container's own files, its settings, tags and times. They are
// streamed through this program, and so is the image if the node lacks it. Its ID and its name stay. On
// the node that it is on already nothing happens.
//
// Until the end the sandbox is where it was, and complete there. If this program dies, the sandbox is
// complete on one of the two nodes, and what is left on the other one is removed by the next call that
// asks for the sandbox, or by a sweep. A sandbox that another program starts meanwhile is not moved.
// Handles of other programs on it end with [ErrNotFound]; [Get] finds it.
//
// Snapshots stay where they are, with their IDs, and so a rollback to them is not possible any
// more; sandboxes can be made from them. The log of earlier sessions is not moved, and sockets and
// devices are not.
//
// The error is [ErrVolumeInUse] if the sandbox runs or is paused, [ErrInvalidArgument] if there is no such node, or
// if the sandbox mounts a directory of its node or an attached volume, [ErrEngineUnavailable] if the node
// is down, [ErrNoCapacity] if it is paused or drained or has no room for a session, and [ErrUnsupported]
// without [WithSwarm] or if the nodes have different storage drivers.
func (c *Client) Move(ctx context.Context, nameOrID, node string) (report MoveReport, err error) {
	ctx, span := trace.Start(ctx, "sandbox.move", trace.Source(nameOrID))
	defer span.End(&err)
	defer wrap(&err, "move", nameOrID)
	report.Snapshots = []string{}
	if err := checkName(nameOrID); err != nil {
		return report, err
	}
	e, err := c.connect(ctx)
	if err != nil {
		return report, err
	}
	did, err := e.Move(ctx, nameOrID, node, &machine.Reporter{})
	if err != nil {
		return report, err
	}
	report.From, report.To, report.Snapshots = did.From, did.To, append(report.Snapshots, did.Snapshots...)
	return report, nil
}
