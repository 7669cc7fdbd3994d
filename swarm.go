package sandbox

import (
	"maps"
	"math"
	"slices"

	"github.com/seed-1a2d6d8f/sandbox/internal/cluster"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/errdefs"
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
// is on a node is not available while the node is down, and is not started elsewhere. Nodes share no
// images: each pulls those that it lacks.
//
// A node takes sandboxes while the sum of the limits of those that run or are being created there is at
// most four times its CPUs and once its memory, see [WithOvercommit]. Other sandboxes take no room. If
// no node has room the error is [ErrNoCapacity], also of [Get], [Sandbox.Start] and other calls that
// start a session, and of a [Sandbox.Update] to higher limits: these look at the sandbox's node alone.
// Two sessions that start at the same moment may exceed the limit by one; two creates don't.
//
// A name is unique in the swarm, whose managers store it. While more than half of them don't run,
// calls that need a name or the list of nodes fail with [ErrEngineUnavailable], after 10 s in which they
// may elect a leader; handles go on. A call about a sandbox on a node that does not answer fails with
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
