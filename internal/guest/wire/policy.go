package wire

import (
	"net/netip"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/policy"
)

// How a session begins.
//
// PID 1 starts locked: before it has any child, and before it listens for control, it
// applies DenyAll with Init.Ports open from outside. Nothing in its arguments can loosen
// that. The main process does not start, and neither the DNS filter nor the proxy
// answers, until OpBegin has been carried out. Commands are not held back: whoever
// connects asks OpNetwork, and sends OpBegin when that does not say the version there is,
// before anything else.
//
// OpBegin carries a Begin. PID 1 compares its Version with that of the policy it
// enforces, which is 0 while it is locked:
//
//   - higher: the whole Begin is carried out. The rules change in one transaction of the
//     kernel; what of the live connections the new policy does not allow is closed, what
//     it allows stays; secrets are replaced by those that came. Only then does PID 1
//     answer, and Reply.Network.Version is the new one. The first time the main process
//     is started after that, and the answer does not wait for it: OpStatus does, and also
//     waits for the OpBegin itself.
//   - the same: nothing changes, but Secrets fill in names that have none yet; Protect
//     and Upstream count when the earlier ones were empty. It is no error.
//   - lower: refused as RefusedStale, and nothing changes. Reply.Network tells what counts.
//
// When a policy can't be applied PID 1 keeps the previous policy, or is locked where it can't
// be sure of that, and refuses with RefusedUnsupported (the kernel or the runtime can't)
// or RefusedPolicy (this policy can't be: it is not canonical, or too large).
//
// When PID 1 can't lock at its start, it stays, starts nothing, and refuses OpBegin with
// RefusedUnsupported and the reason; the owner ends the session.
//
// Timeout and Grace of Begin replace those of Init; only the first Begin of a session counts.
const (
	OpNetwork = "network" // nothing but what every Reply tells; answered at once, also while locked
	OpBegin   = "begin"   // Control.Begin
	OpEgress  = "egress"  // Reply.Egress: the record of decisions
	OpHook    = "hook"    // Control.Hook; after the reply the connection is for HookRequest and HookReply
)

// Hook says that the client of a connection decides on requests to names whose Secret has Hook.
// PID 1 sends it each as a line, a HookRequest, and the client answers with a HookReply in any
// order. It counts for one version of the policy alone.
type Hook struct {
	Version  int64    `json:"version"`
	Patterns []string `json:"patterns"`
}

// HookRequest is a request as PID 1 is about to send it to the server. It comes from inside.
type HookRequest struct {
	ID      uint64              `json:"id"`
	Pattern string              `json:"pattern"`
	Method  string              `json:"method"`
	URL     string              `json:"url"`
	Host    string              `json:"host"`
	Header  map[string][]string `json:"header,omitempty"`
	Body    []byte              `json:"body,omitempty"`
	// More says that the body is longer than MaxHookBody; Body is empty then.
	More bool `json:"more,omitempty"`
}

// HookReply is the decision on the request of that ID.
type HookReply struct {
	ID uint64 `json:"id"`
	// Header is what to change: values replace those that the request has, none removes them.
	Header map[string][]string `json:"header,omitempty"`
	Failed bool                `json:"failed,omitempty"` // the request is not to be sent
	Late   bool                `json:"late,omitempty"`   // nor if there was no decision in time
}

// Bounds of hooks: the length of a body in a HookRequest, the requests that one client, and one
// session, decide on at a time, and how long PID 1 waits for a decision. MaxHookPatterns bounds
// Hook.Patterns.
const (
	MaxHookBody     = 512 << 10
	MaxHooks        = 16
	MaxHookPatterns = 1000
	HookTime        = 10 * time.Second
)

// Begin has the settings of a session. PID 1 needs them before it runs anything of its owner's.
type Begin struct {
	Timeout time.Duration `json:"timeout,omitempty"`
	Grace   time.Duration `json:"grace,omitempty"`

	Version int64         `json:"version"` // of the policy, from 1 up
	Policy  policy.Policy `json:"policy"`  // in canonical form
	// Protect are the addresses of the engine's machine: further arguments of
	// policy.Compile, as are the networks of the sandbox's own interfaces, which PID 1
	// sees itself. Empty when the policy does not need them.
	Protect []netip.Prefix `json:"protect,omitempty"`
	// Upstream are the DNS servers to ask. The owner leaves it empty only where names are not
	// filtered. Then programs ask those in /etc/resolv.conf themselves. Servers on a protected address are used all the same; under AllowAll
	// port 53 of one that is link-local is open for everybody.
	Upstream []netip.Addr `json:"upstream,omitempty"`
	// Secrets are for the names whose rule says Transform. A name without one is denied.
	Secrets []Secret `json:"secrets,omitempty"`
	// Roots are certificates, in PEM, that servers of these names may be signed by beside
	// those of the public authorities that PID 1 has with it.
	Roots string `json:"roots,omitempty"`
}

// Secret is what PID 1 sets in requests to names that fall under Pattern. It is never
// logged, and leaves PID 1 for the server alone.
type Secret struct {
	Pattern string            `json:"pattern"` // equal to that of a policy.Name
	Headers map[string]string `json:"headers"`
	// Hook says that a client decides on each request, see OpHook. Without one none is sent.
	Hook bool `json:"hook,omitempty"`
}

// Refusals: Reply.Refused of an OpBegin that has an Error.
const (
	RefusedStale       = "stale"
	RefusedUnsupported = "unsupported"
	RefusedPolicy      = "policy"
)

// Network is in every Reply of a guest that enforces policies, refusals included.
type Network struct {
	Version int64 `json:"version"` // 0: not begun
	// Missing are patterns that are transformed and have no secret.
	Missing []string `json:"missing,omitempty"`
	// Allowed and Blocked count decisions of this session.
	Allowed int64 `json:"allowed,omitempty"`
	Blocked int64 `json:"blocked,omitempty"`
	// CA is the certificate, in PEM, that the sandbox is to trust for names that are
	// transformed; empty without any.
	CA string `json:"ca,omitempty"`
}

// EgressLog is the record of a session's decisions: at most MaxEgress entries, of which
// the one not seen for longest makes room. Connections that differ in nothing but their
// time are one entry. Those that the kernel decides without PID 1 are in it where the
// kernel tells of them: refused ones are, allowed ones need not be.
type EgressLog struct {
	Entries []Egress `json:"entries,omitempty"`
	Dropped int64    `json:"dropped,omitempty"` // entries that made room
}

// Egress is one kind of decision.
type Egress struct {
	Name     string     `json:"name,omitempty"`   // as the client asked for it; DNS, SNI, Host
	Address  netip.Addr `json:"address,omitzero"` // that was dialled, or would have been; none for a lookup
	Port     uint16     `json:"port,omitempty"`
	Protocol string     `json:"protocol"` // "tcp", "udp", "icmp", "dns", or a number
	Rule     string     `json:"rule"`     // the pattern, or a policy.Verdict
	Allowed  bool       `json:"allowed"`
	Failure  string     `json:"failure,omitempty"` // why an allowed connection did not come about
	Count    int64      `json:"count"`
	First    time.Time  `json:"first"`
	Last     time.Time  `json:"last"`
}

// MaxEgress bounds the record of decisions, and MaxEgressName the names in it: longer
// ones are cut.
const (
	MaxEgress     = 512
	MaxEgressName = 253
)

// MaxFriendLine bounds a line, in both directions, once a connection to PID 1 has proved
// itself with a valid signature; before that it is MaxControlLine. A full policy with
// its secrets needs more than a stranger is granted.
const MaxFriendLine = 1 << 20

// Bounds of what a Begin carries, checked by the owner and by PID 1.
const (
	MaxUpstream      = 8
	MaxProtect       = 256
	MaxSecretHeaders = 16       // of one pattern
	MaxSecretBytes   = 64 << 10 // of all names and values of a policy's headers
)

// Probe is what VerbProbe prints, as one line: the addresses of the interfaces it sees and
// the DNS servers of its own /etc/resolv.conf. A helper in the engine's own network shows
// the machine's addresses, one in the default bridge the servers that containers get.
type Probe struct {
	Addresses []netip.Addr `json:"addresses,omitempty"`
	Servers   []netip.Addr `json:"servers,omitempty"`
}

// Abilities is what VerbTry prints, as one line.
type Abilities struct {
	Policy   string `json:"policy,omitempty"`   // why no network policy can be enforced, if so
	Reflink  string `json:"reflink,omitempty"`  // why files can't share blocks, if so
	Volatile bool   `json:"volatile,omitempty"` // changes of the container's own files end with it
}
