package sandbox

import (
	"context"
	"maps"
	"math"
	"slices"

	"github.com/seed-1a2d6d8f/sandbox/internal/cluster"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/errdefs"
	"github.com/seed-1a2d6d8f/sandbox/internal/machine"
	"github.com/seed-1a2d6d8f/sandbox/internal/trace"
)

// A Node is a machine of a swarm, as its managers know it.
type Node struct {
	// ID is the node's ID in the swarm, and Name its host name, which need not be unique.
	ID   string `json:"id"`
	Name string `json:"name"`
	// Addr is its IP address as the managers see it.
	Addr string `json:"addr"`
	// Manager reports whether it is a manager of the swarm.
	Manager bool `json:"manager"`
	// Labels are those that docker node update has set.
	Labels map[string]string `json:"labels,omitempty"`
}

func nodeOf(n engine.Node) Node {
	return Node{ID: n.ID, Name: n.Hostname, Addr: n.Addr, Manager: n.Manager, Labels: maps.Clone(n.Labels)}
}

// NodeStatus is a node with its state, and with the room that it has for sandboxes.
type NodeStatus struct {
	Node
	// State is that of the node as the managers hear from it: "ready", "down", "unknown" for moments after
	// the election of a leader, or "disconnected".
	State string `json:"state"`
	// Availability is what docker node update has set: "active", "pause" or "drain". Only an active node
	// gets new sandboxes; those that it has go on in any case.
	Availability string `json:"availability"`
	// CPUs and Memory, in bytes, are what the limits of its sandboxes may be together, see
	// [WithOvercommit]. The others are the sums of the limits of those that run or are being created, and
	// what is free: below zero if another client allows more. They are zero if Error is not empty.
	CPUs       float64 `json:"cpus"`
	UsedCPUs   float64 `json:"usedCpus"`
	FreeCPUs   float64 `json:"freeCpus"`
	Memory     int64   `json:"memoryBytes"`
	UsedMemory int64   `json:"usedMemoryBytes"`
	FreeMemory int64   `json:"freeMemoryBytes"`
	// Error says why the node's engine did not answer. It is empty if it did.
	Error string `json:"error,omitempty"`
}

// Nodes lists the nodes of the client's swarm, by name, and asks each for what runs there. A node that
// does not answer is in the list, with an Error. Without [WithSwarm] the error is [ErrUnsupported].
func (c *Client) Nodes(ctx context.Context) (nodes []NodeStatus, err error) {
	ctx, span := trace.Start(ctx, "sandbox.nodes")
	defer span.End(&err)
	defer wrap(&err, "nodes", "")
	e, err := c.connect(ctx)
	if err != nil {
		return nil, err
	}
	all, err := e.Nodes(ctx)
	if err != nil {
		return nil, err
	}
	nodes = make([]NodeStatus, 0, len(all))
	for _, s := range all {
		n := NodeStatus{Node: nodeOf(s.Node), State: s.Node.State, Availability: s.Node.Availability}
		if s.Err != nil {
			n.Error = s.Err.Error()
		} else {
			n.CPUs, n.UsedCPUs, n.FreeCPUs = float64(s.NanoCPUs)/1e9, float64(s.UsedNanoCPUs)/1e9, float64(s.NanoCPUs-s.UsedNanoCPUs)/1e9
			n.Memory, n.UsedMemory, n.FreeMemory = s.Memory, s.UsedMemory, s.Memory-s.UsedMemory
		}
		nodes = append(nodes, n)
	}
	return nodes, nil
}

// A SwarmOption configures [WithSwarm].
type SwarmOption func(*swarmSettings) error

type swarmSettings struct{ o cluster.Options }

// The overcommit without [WithOvercommit].
const (
	defaultOvercommitCPU    = 4
	defaultOvercommitMemory = 1
)

// WithSwarm makes the client work on all nodes of the Docker Swarm whose manager it connects to: by
// [WithHost], else DOCKER_HOST or the current Docker context. The calls are those of a client of one
// engine. docs/cluster.md says how to set a swarm up.
//
// [Create], [GetOrCreate] and a [Pool] place a sandbox on the node with the most room among those that
// are up, active, match [WithPlacement], and have the snapshot, the attached volumes or the preserved
// workspace that it needs. A directory of this machine is mounted on the node of the client's own
// engine, copies of one anywhere. A fork is on the node of its source. A sandbox stays on its node: what
// is on a node is not available while the node is down, and is not started elsewhere. A node
// that lacks an image pulls it; one that can't be pulled is streamed from a node that has it through this
// program.
//
// A node takes sandboxes while the sum of the limits of those that run or are being created there is at
// most four times its CPUs and once its memory, see [WithOvercommit]. Other sandboxes take no room. If
// no node has room the error is [ErrNoCapacity], also of [Get], [Sandbox.Start] and other calls that
// start a session, and of a [Sandbox.Update] to higher limits: these look at the sandbox's node alone.
// Two sessions that start at the same moment may exceed the limit by one; two creates don't.
//
// A name is unique in the swarm, whose managers store it. While half of them don't run, calls that need
// the list of nodes, or the node of a sandbox that this client has not found before, fail with
// [ErrEngineUnavailable], after 10 s in which the managers may elect a leader; handles go on. A call about a sandbox on a node that does not answer fails with
// [ErrEngineUnavailable] and the node's name. [List] lists such sandboxes as [StateUnreachable]; other
// lists, [Prune] and [CleanupOrphanedVolumes] do what they can on the other nodes and return an error as
// well. Calls about a volume or a snapshot ask all nodes; if several have a volume of that name one of
// them is used.
//
// Limits and settings of the client are for each node, and [CheckHealth] and [CheckSupport] are about
// the client's own engine. Published ports are on the loopback address of their node.
func WithSwarm(opts ...SwarmOption) ClientOption {
	opts = slices.Clone(opts)
	return func(c *Client) error {
		s := swarmSettings{o: cluster.Options{CPUs: defaultOvercommitCPU, Memory: defaultOvercommitMemory}}
		for _, o := range opts {
			if err := o(&s); err != nil {
				return err
			}
		}
		c.swarm = &s.o
		return nil
	}
}

// WithNodeHost says how the engines of nodes are reached: fn returns the address of a node's engine, as
// for [WithHost], or "" for the default. It may be called concurrently.
//
// Default: the way that the client's own engine is reached, with the node's address, so
// ssh://user@address, or tcp://address:port with the same TLS settings; ssh://address if the client's
// own engine is behind a socket of this machine. The node of the client's own engine is always reached
// by the connection to it.
func WithNodeHost(fn func(Node) string) SwarmOption {
	return func(s *swarmSettings) error {
		if fn == nil {
			return errdefs.Invalid("WithNodeHost: the function is nil")
		}
		s.o.Host = func(n engine.Node) string { return fn(nodeOf(n)) }
		return nil
	}
}

// WithOvercommit sets how many times its CPUs and its memory the sandboxes of a node may have together,
// by their limits ([WithVCPUs], [WithMemory]). Sandboxes without a limit count as nothing. Default 4 for
// CPUs, which most sandboxes use for moments only, and 1 for memory: with the default limits a node has
// room for a sandbox for every 2 GiB of its memory. All clients of a swarm should use the same.
func WithOvercommit(cpu, memory float64) SwarmOption {
	return func(s *swarmSettings) error {
		for _, f := range []float64{cpu, memory} {
			if !(f > 0) || math.IsInf(f, 0) || f > 1000 {
				return errdefs.Invalid("WithOvercommit: %v: use a number above 0 and up to 1000", f)
			}
		}
		s.o.CPUs, s.o.Memory = cpu, memory
		return nil
	}
}

// WithPlacement restricts the nodes of a swarm that the sandbox may be on, by constraints in the
// syntax of docker service create --constraint, all of which must match: "node.labels.gpu==true",
// "node.hostname!=manager1", "node.platform.arch==x86_64". The attributes are node.id, node.hostname,
// node.role, node.ip, node.platform.os, node.platform.arch, node.labels.NAME and engine.labels.NAME.
// If no node matches the error is [ErrNoCapacity]; without [WithSwarm] it is [ErrInvalidArgument].
// Default: any node.
func WithPlacement(constraints ...string) CreateOption {
	constraints = slices.Clone(constraints)
	return option{apply: func(s *settings) { s.Placement = constraints }}
}

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
