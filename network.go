package sandbox

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
	"github.com/seed-1a2d6d8f/sandbox/internal/policy"
)

// A NetworkPolicy says what a sandbox may reach. [AllowAll], [PublicOnly] and [DenyAll]
// are three that are ready; any other is made of lists, and what is in none of them is
// not reached. So the zero NetworkPolicy, which lists nothing, is DenyAll.
//
//	sandbox.NetworkPolicy{Allow: []string{"registry.npmjs.org", "*.github.com"}}
//
// Denied subnets come first, then allowed subnets, then what is protected, then names.
// Protected are private, link-local, carrier and multicast addresses, the networks the
// sandbox is in, and the engine's machine. All of it holds for IPv4 and IPv6, TCP, UDP
// and everything else, for root inside, from the first instruction on.
//
// Each list takes up to 1,000 entries, and the textual form of all, see
// [NetworkPolicy.String], 128 KiB.
type NetworkPolicy struct {
	// Allow lists domain names that may be reached, on every port, by TCP: by TLS with
	// the name as its SNI, HTTP with the name as its Host, and Postgres with TLS. PID 1
	// looks the name up itself and connects to what it finds. Other protocols by name,
	// such as SSH, are not possible: use Subnets. In a name, "*" as the first label
	// stands for one or more labels, elsewhere for exactly one: "*.example.com" is
	// "a.example.com" and "a.b.example.com", not "example.com". "*" alone is every name
	// and every public address, by any protocol. An address is never a name. Names
	// that are not listed are not even looked up.
	Allow []string
	// Subnets are reached, or not, by address.
	Subnets Subnets
	// ResolveInto lists subnets, protected ones, that the names in Allow may lead to: a
	// registry in a private network. They are not open by themselves.
	ResolveInto []string
	// Transform sets headers in requests to names, which are thereby allowed, too: for
	// secrets that the sandbox can use and never see. Keys are as in Allow. See
	// [Transform].
	Transform map[string]Transform

	mode policy.Mode // of the ready ones
}

// Subnets are lists of IPv4 and IPv6 subnets in CIDR notation, or single addresses.
type Subnets struct {
	// Allow is reached by any protocol, protected or not.
	Allow []string
	// Deny is never reached, whatever else allows it.
	Deny []string
}

// A Transform changes the requests to a name. PID 1 ends the sandbox's TLS connection
// with a certificate of an authority of the sandbox's own, which the sandbox is made to
// trust, changes the requests and sends them on over TLS, where it verifies the server.
// Requests without TLS to such a name are refused.
//
// What it sets stays in the memory of the program that set it and of the sandbox's PID 1,
// and is never printed by this package. It is not stored: when a session is begun by a
// program that was not given it, the name can't be reached until a program gives it by
// [Sandbox.Update], [WithTransform] or [GetOrCreate].
type Transform struct {
	// SetHeaders are headers that every request gets, instead of those of the same name
	// that it may have: at most 16, and 64 KiB in all of a policy.
	SetHeaders Headers
}

// Headers are HTTP headers. They print as their names alone.
type Headers map[string]string

// AllowAll is the policy without [WithNetworkPolicy]: everything may be reached but the
// link-local and other addresses at which clouds tell machines their secrets. Other
// sandboxes are out of reach, since nothing comes in but by published ports.
func AllowAll() NetworkPolicy { return NetworkPolicy{mode: policy.AllowAll} }

// PublicOnly is the public internet, by any protocol, and nothing that is protected (see
// [NetworkPolicy]). DNS is answered by PID 1.
func PublicOnly() NetworkPolicy { return NetworkPolicy{mode: policy.PublicOnly} }

// DenyAll is no network. Published ports answer all the same, and so do
// [Sandbox.DialContext], commands and files.
func DenyAll() NetworkPolicy { return NetworkPolicy{mode: policy.DenyAll} }

// ParseNetworkPolicy reads what [NetworkPolicy.String] writes: allow-all, public-only,
// deny-all, or lists in any order.
//
//	allow=*.example.com,example.org subnets.allow=10.1.0.0/16 subnets.deny=10.1.2.0/24 resolve-into=10.2.0.0/16
//
// transform= lists names whose requests are transformed; what is set is not in the text.
func ParseNetworkPolicy(text string) (NetworkPolicy, error) {
	p, err := policy.Parse(text)
	if err != nil {
		return NetworkPolicy{}, fail("parse network policy", "", classify(ErrInvalidArgument, err))
	}
	return networkPolicyOf(p), nil
}

// networkPolicyOf is a policy as the public has it.
func networkPolicyOf(p policy.Policy) NetworkPolicy {
	n := NetworkPolicy{}
	if p.Mode != policy.Custom {
		n.mode = p.Mode
		return n
	}
	for _, name := range p.Allow {
		if !name.Transform {
			n.Allow = append(n.Allow, name.Pattern)
			continue
		}
		if n.Transform == nil {
			n.Transform = map[string]Transform{}
		}
		n.Transform[name.Pattern] = Transform{}
	}
	texts := func(in []netip.Prefix) (out []string) {
		for _, f := range in {
			out = append(out, f.String())
		}
		return out
	}
	n.Subnets = Subnets{Allow: texts(p.Subnets.Allow), Deny: texts(p.Subnets.Deny)}
	n.ResolveInto = texts(p.ResolveInto)
	return n
}

// Check returns every mistake in the policy, each named, as an [ErrInvalidArgument]:
// Create and Update do the same before anything else.
func (p NetworkPolicy) Check() error {
	if _, _, err := p.compile(); err != nil {
		return fail("network policy", "", classify(ErrInvalidArgument, err))
	}
	return nil
}

// String is the policy in its textual form, which [ParseNetworkPolicy] reads: in lower
// case, in ASCII, sorted, with subnets merged. What a Transform sets is not in it. A
// policy with a mistake has none, and says so.
func (p NetworkPolicy) String() string {
	c, _, err := p.compile()
	if err != nil {
		return "invalid network policy"
	}
	return c.String()
}

// LogValue is String.
func (p NetworkPolicy) LogValue() slog.Value { return slog.StringValue(p.String()) }

// MarshalText is String, for JSON among others.
func (p NetworkPolicy) MarshalText() ([]byte, error) {
	c, _, err := p.compile()
	if err != nil {
		return nil, fail("network policy", "", classify(ErrInvalidArgument, err))
	}
	return []byte(c.String()), nil
}

// UnmarshalText is [ParseNetworkPolicy].
func (p *NetworkPolicy) UnmarshalText(text []byte) error {
	parsed, err := ParseNetworkPolicy(string(text))
	if err == nil {
		*p = parsed
	}
	return err
}

// String is the names of the headers.
func (h Headers) String() string {
	return fmt.Sprintf("%v", slices.Sorted(maps.Keys(h)))
}

// Format writes String, whatever the verb.
func (h Headers) Format(f fmt.State, _ rune) { io.WriteString(f, h.String()) }

// LogValue is String.
func (h Headers) LogValue() slog.Value { return slog.StringValue(h.String()) }

// MarshalJSON writes the names of the headers, without what they are set to.
func (h Headers) MarshalJSON() ([]byte, error) {
	return json.Marshal(slices.Sorted(maps.Keys(h)))
}

// compile checks the policy and parts it into what is stored and what is not.
func (p NetworkPolicy) compile() (policy.Policy, []wire.Secret, error) {
	var problems []error
	c := policy.Policy{Mode: cmp.Or(p.mode, policy.Custom)}
	for _, name := range p.Allow {
		c.Allow = append(c.Allow, policy.Name{Pattern: name})
	}
	var secrets []wire.Secret
	for _, name := range slices.Sorted(maps.Keys(p.Transform)) {
		c.Allow = append(c.Allow, policy.Name{Pattern: name, Transform: true})
	}
	subnets := func(list string, in []string) (out []netip.Prefix) {
		for _, s := range in {
			f, err := policy.ParsePrefix(s)
			if err != nil {
				problems = append(problems, fmt.Errorf("%s: %w", list, err))
				continue
			}
			out = append(out, f)
		}
		return out
	}
	c.Subnets.Allow = subnets("subnets.allow", p.Subnets.Allow)
	c.Subnets.Deny = subnets("subnets.deny", p.Subnets.Deny)
	c.ResolveInto = subnets("resolve-into", p.ResolveInto)
	c, err := c.Canon()
	if err != nil {
		problems = append(problems, err)
	}
	secrets, err = secretsOf(p.Transform)
	if err != nil {
		problems = append(problems, err)
	}
	return c, secrets, errors.Join(problems...)
}

// secretsOf is what transforms set, by the name's pattern in canonical form. Its errors
// name headers and never repeat what they are set to.
func secretsOf(transforms map[string]Transform) ([]wire.Secret, error) {
	var problems []error
	var secrets []wire.Secret
	size := 0
	seen := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(transforms)) {
		canon, err := policy.Policy{Mode: policy.Custom, Allow: []policy.Name{{Pattern: name}}}.Canon()
		if err != nil {
			continue // the policy's own check says so
		}
		pattern := canon.Allow[0].Pattern
		if was, twice := seen[pattern]; twice {
			problems = append(problems, fmt.Errorf("transform: %q and %q are the same name", was, name))
		}
		seen[pattern] = name
		headers := transforms[name].SetHeaders
		if len(headers) == 0 {
			continue
		}
		if len(headers) > wire.MaxSecretHeaders {
			problems = append(problems, fmt.Errorf("transform of %q: %d headers; there may be %d", name, len(headers), wire.MaxSecretHeaders))
		}
		for _, key := range slices.Sorted(maps.Keys(headers)) {
			size += len(key) + len(headers[key])
			if err := checkHeader(key, headers[key]); err != nil {
				problems = append(problems, fmt.Errorf("transform of %q: %w", name, err))
			}
		}
		secrets = append(secrets, wire.Secret{Pattern: pattern, Headers: maps.Clone(headers)})
	}
	if size > wire.MaxSecretBytes {
		problems = append(problems, fmt.Errorf("transform: headers of %d bytes; there may be %d", size, wire.MaxSecretBytes))
	}
	return secrets, errors.Join(problems...)
}

// framing are headers that say where a message ends and which server it is for.
var framing = []string{"host", "content-length", "transfer-encoding", "connection", "upgrade", "te", "trailer", "keep-alive", "proxy-connection"}

// checkHeader never repeats a value.
func checkHeader(key, value string) error {
	token := func(r rune) bool {
		return 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || strings.ContainsRune("!#$%&'*+-.^_`|~", r)
	}
	switch {
	case key == "" || strings.ContainsFunc(key, func(r rune) bool { return !token(r) }):
		return fmt.Errorf("%q is not the name of a header", key)
	case slices.Contains(framing, strings.ToLower(key)):
		return fmt.Errorf("header %q is the connection's own and can't be set", key)
	case strings.ContainsFunc(value, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }):
		return fmt.Errorf("header %q: the value has a control character", key)
	case strings.TrimSpace(value) != value:
		return fmt.Errorf("header %q: the value begins or ends with a space", key)
	}
	return nil
}

// WithNetworkPolicy sets what the sandbox may reach. Default [AllowAll]. It holds from
// the first instruction of every session; in [Sandbox.Update] it changes the running
// session, too, in one step: connections that the new policy does not allow are closed,
// those that it allows stay, and nothing gets through in between.
//
// The policy is enforced by the sandbox's PID 1 in the kernel. Where the engine's kernel
// or runtime can't, making or starting the sandbox fails with [ErrUnsupported].
func WithNetworkPolicy(p NetworkPolicy) ChangeOption {
	compiled, secrets, err := p.compile()
	return changeOption{changeNetwork, func(s *settings) {
		if err != nil {
			s.problems = append(s.problems, fmt.Errorf("WithNetworkPolicy: %w", err))
		}
		s.network, s.secrets = compiled, secrets
	}}
}

// WithTransform gives the session what is set in requests to those names that the
// sandbox's policy transforms, which is not stored; see [Transform]. A name that has it
// already keeps what it has; a name that is not transformed is an [ErrInvalidArgument].
func WithTransform(transforms map[string]Transform) GetOption {
	secrets, err := secretsOf(transforms)
	return getOption(func(s *settings) {
		if err != nil {
			s.problems = append(s.problems, fmt.Errorf("WithTransform: %w", err))
		}
		s.secrets, s.given = secrets, s.given|changeNetwork
	})
}

// Egress is one kind of connection or lookup that a sandbox has tried in its present
// session, and what became of it.
type Egress struct {
	// Name is what was asked for, when that is known: in a lookup, by TLS or by HTTP.
	Name string
	// Address and Port are where it went or would have gone. A lookup has none.
	Address netip.Addr
	Port    uint16
	// Protocol is "tcp", "udp", "icmp", "dns" for a lookup, or a number.
	Protocol string
	// Rule is what decided: a pattern of [NetworkPolicy.Allow], "subnets.allow",
	// "subnets.deny", "protected", "open" where the policy allows every public address,
	// "name" where only a name could have, "closed" where nothing could.
	Rule    string
	Allowed bool
	// Count is how often, First and Last when for the first and the last time.
	Count       int64
	First, Last time.Time
}

// EgressCount counts the decisions of a session's PID 1.
type EgressCount struct{ Allowed, Blocked int64 }

// Egress tells what the sandbox tried to reach in its present session, the latest last:
// blocked connections and lookups, so that one learns what to allow, and allowed ones
// that went by name. What the kernel refused by itself follows within a second or two.
// At most 512 kinds are kept; the longest not seen make room. Without a session the error
// is [ErrNotRunning]; none is started.
func (s *Sandbox) Egress(ctx context.Context) ([]Egress, error) {
	list, err := s.egress(ctx)
	return list, fail("egress", s.rec.Name, err)
}

func (s *Sandbox) egress(ctx context.Context) ([]Egress, error) {
	if err := s.usable(); err != nil {
		return nil, err
	}
	got, err := s.thawed(ctx)
	if err != nil {
		return nil, err
	}
	if got.State != engine.StateRunning {
		return nil, fmt.Errorf("%w: it is %s", ErrNotRunning, stateOf(got.State))
	}
	conn, err := s.linked(ctx)
	if errors.Is(err, errNoSession) {
		return nil, fmt.Errorf("%w: %w", ErrNotRunning, err)
	}
	if err != nil {
		return nil, err
	}
	reply, err := s.askOn(ctx, conn, wire.Control{Op: wire.OpEgress})
	switch {
	case reply.Network == nil && err != nil && ctx.Err() == nil:
		return nil, classify(ErrUnsupported, err)
	case err != nil:
		return nil, err
	case reply.Egress == nil:
		return nil, nil
	}
	list := make([]Egress, 0, len(reply.Egress.Entries))
	for _, e := range reply.Egress.Entries {
		list = append(list, Egress(e))
	}
	slices.SortStableFunc(list, func(a, b Egress) int { return a.Last.Compare(b.Last) })
	return list, nil
}
