package engine

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/url"
	"slices"
	"strings"

	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/swarm"
)

// ErrNoLeader: the managers of the swarm have no leader, or this one can't reach it: they are
// electing one, or too few of them run. It comes with [ErrUnavailable].
var ErrNoLeader = errors.New("the swarm has no leader: its managers are electing one, or too few of them run")

// A Node is a machine of a swarm, as its managers know it.
type Node struct {
	ID       string
	Name     string // the host name, and the beginning of the ID if several have it
	Hostname string
	Addr     string // as the managers see it
	Manager  bool
	State    string // ready, down, unknown or disconnected
	Message  string // why it is in that state
	OS, Arch string
	NanoCPUs int64
	Memory   int64

	Availability string // active, pause or drain

	Labels       map[string]string
	EngineLabels map[string]string
}

// Down reports whether the managers don't hear from the node. After an election all nodes are "unknown" for
// seconds.
func (n Node) Down() bool { return n.State == string(swarm.NodeStateDown) }

// Active reports whether the node takes new work: it is neither paused nor drained.
func (n Node) Active() bool { return n.Availability == string(swarm.NodeAvailabilityActive) }

// SwarmNode returns this engine's own node, with an ID if it is in a swarm, and the other managers that it
// knows of. Of those there are the addresses only, and they count as down.
func (e *Engine) SwarmNode(ctx context.Context) (own Node, managers []Node, err error) {
	var info struct{ Swarm swarm.Info }
	if err := e.get(ctx, "/info", &info); err != nil {
		return own, nil, e.fail(ctx, err)
	}
	for _, p := range info.Swarm.RemoteManagers {
		if addr, _, err := net.SplitHostPort(p.Addr); err == nil && p.NodeID != info.Swarm.NodeID {
			managers = append(managers, Node{ID: p.NodeID, Addr: addr, Manager: true, State: string(swarm.NodeStateDown)})
		}
	}
	return Node{ID: info.Swarm.NodeID, Manager: info.Swarm.ControlAvailable}, managers, nil
}

// Nodes lists the nodes of the swarm that this engine is a manager of, by name and ID.
func (e *Engine) Nodes(ctx context.Context) ([]Node, error) {
	list, err := e.cli.NodeList(ctx, swarm.NodeListOptions{})
	if err != nil {
		return nil, e.failSwarm(ctx, err)
	}
	nodes := make([]Node, 0, len(list))
	for _, n := range list {
		d := n.Description
		nodes = append(nodes, Node{
			ID: n.ID, Name: d.Hostname, Hostname: d.Hostname, Addr: n.Status.Addr, Manager: n.Spec.Role == swarm.NodeRoleManager,
			State: string(n.Status.State), Message: n.Status.Message, Availability: string(n.Spec.Availability), OS: d.Platform.OS, Arch: d.Platform.Architecture,
			NanoCPUs: d.Resources.NanoCPUs, Memory: d.Resources.MemoryBytes, Labels: n.Spec.Labels, EngineLabels: d.Engine.Labels,
		})
	}
	for i, n := range nodes {
		if slices.ContainsFunc(nodes, func(o Node) bool { return o.Hostname == n.Hostname && o.ID != n.ID }) {
			nodes[i].Name += "-" + n.ID[:min(6, len(n.ID))]
		}
	}
	slices.SortFunc(nodes, func(a, b Node) int { return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(a.ID, b.ID)) })
	return nodes, nil
}

// An Entry is an object in the swarm's store, of which there is one of each name: a config.
type Entry struct {
	ID, Name string
	Version  uint64 // which every change of the labels raises
	Labels   map[string]string
}

// CreateEntry creates an entry. If the name is taken the error is [ErrConflict].
func (e *Engine) CreateEntry(ctx context.Context, name string, labels map[string]string) error {
	// A config has data, at least a byte.
	_, err := e.cli.ConfigCreate(ctx, swarm.ConfigSpec{Annotations: swarm.Annotations{Name: name, Labels: labels}, Data: []byte("-")})
	return e.failSwarm(ctx, err)
}

// FindEntry returns the entry of that name.
func (e *Engine) FindEntry(ctx context.Context, name string) (Entry, error) {
	c, _, err := e.cli.ConfigInspectWithRaw(ctx, name)
	if err != nil {
		return Entry{}, e.failSwarm(ctx, err)
	}
	if c.Spec.Name != name { // the beginning of an ID is a reference, too
		return Entry{}, &classed{class: ErrNotFound, text: "config " + name + " not found", err: ErrNotFound}
	}
	return entryOf(c), nil
}

func entryOf(c swarm.Config) Entry {
	return Entry{ID: c.ID, Name: c.Spec.Name, Version: c.Version.Index, Labels: c.Spec.Labels}
}

// UpdateEntry replaces the labels of an entry that was found, unless they were replaced since. A
// config's name and data never change.
func (e *Engine) UpdateEntry(ctx context.Context, was Entry, labels map[string]string) error {
	spec := swarm.ConfigSpec{Annotations: swarm.Annotations{Name: was.Name, Labels: labels}}
	return e.failSwarm(ctx, e.cli.ConfigUpdate(ctx, was.ID, swarm.Version{Index: was.Version}, spec))
}

// ListEntries lists the entries with these labels.
func (e *Engine) ListEntries(ctx context.Context, labels ...string) ([]Entry, error) {
	f := filters.NewArgs()
	for _, l := range labels {
		f.Add("label", l)
	}
	list, err := e.cli.ConfigList(ctx, swarm.ConfigListOptions{Filters: f})
	if err != nil {
		return nil, e.failSwarm(ctx, err)
	}
	entries := make([]Entry, 0, len(list))
	for _, c := range list {
		if hasLabels(c.Spec.Labels, labels) {
			entries = append(entries, entryOf(c))
		}
	}
	return entries, nil
}

// RemoveEntry removes the entry with that ID, and never a later one of its name.
func (e *Engine) RemoveEntry(ctx context.Context, id string) error {
	return e.failSwarm(ctx, e.cli.ConfigRemove(ctx, id))
}

// failSwarm is fail for a call that the managers answer. That they have no leader, or don't hear from
// it, comes as an internal error of which only the text differs.
func (e *Engine) failSwarm(ctx context.Context, err error) error {
	if err = e.fail(ctx, err); err == nil || ctx.Err() != nil {
		return err
	}
	text := err.Error()
	for _, sign := range []string{"does not have a leader", "context deadline exceeded", "raft: ", "lost leader", "not currently the leader"} {
		if strings.Contains(text, sign) {
			return &classed{class: ErrUnavailable, text: ErrNoLeader.Error(), err: errors.Join(ErrNoLeader, opaque(text))}
		}
	}
	return err
}

// Beside connects to another engine in the way that e was connected to: with its scheme, user, port
// and TLS settings, and by ssh if e is behind a socket of this machine. addr is the host's address.
func (e *Engine) Beside(ctx context.Context, addr string, o Options) (*Engine, error) {
	ep := e.ep
	u := *ep.url
	if ep.local() {
		ep.scheme, ep.tls, u = "ssh", nil, url.URL{Scheme: "ssh"}
	}
	u.Host = addr
	if strings.Contains(addr, ":") {
		u.Host = "[" + addr + "]"
	}
	if port := ep.port(); port != "" {
		u.Host = net.JoinHostPort(addr, port)
	}
	ep.url, ep.addr = &u, u.Host
	return open(ctx, []place{{source: "the node's address", endpoint: ep, host: ep.display()}}, o)
}

// port is the port of the address, also if that is a default; "" for a socket and the default of ssh.
func (ep endpoint) port() string {
	if ep.local() {
		return ""
	}
	if _, port, err := net.SplitHostPort(ep.addr); err == nil {
		return port
	}
	return ""
}
