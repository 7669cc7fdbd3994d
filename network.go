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
	"net"
	"net/http"
	"net/netip"
	"slices"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/errdefs"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
	"github.com/seed-1a2d6d8f/sandbox/internal/lifecycle"
	"github.com/seed-1a2d6d8f/sandbox/internal/plan"
	"github.com/seed-1a2d6d8f/sandbox/internal/policy"
	"github.com/seed-1a2d6d8f/sandbox/internal/trace"
)

// A NetworkPolicy says what a sandbox may connect to. [AllowAll], [PublicOnly] and
// [DenyAll] are predefined. Any other policy is made of lists, and denies what no list
// allows. So the zero NetworkPolicy equals DenyAll.
//
//	sandbox.NetworkPolicy{Allow: []string{"registry.npmjs.org", "*.github.com"}}
//
// The order of evaluation is: denied subnets, allowed subnets, protected addresses,
// names. Protected are private, link-local, carrier and multicast addresses, the
// sandbox's own networks, and the engine's machine. The policy applies to IPv4 and IPv6,
// to TCP, UDP and all other protocols, and to root inside, from the first instruction on.
//
// Each list has at most 1,000 entries, and the textual form of the policy, see
// [NetworkPolicy.String], at most 128 KiB.
type NetworkPolicy struct {
	// Allow lists domain names. They may be reached on every port by TCP: by TLS with the
	// name as its SNI, HTTP with the name as its Host, and Postgres with TLS. PID 1
	// resolves the name and connects to the result. Other protocols, such as SSH, can't
	// be allowed by name: use Subnets. "*" as the first label stands for one or more
	// labels, elsewhere for exactly one: "*.example.com" matches "a.example.com" and
	// "a.b.example.com", but not "example.com". "*" alone allows every name and every
	// public address, by any protocol. Addresses are not names. Names that are not listed
	// are not resolved.
	Allow []string
	// Subnets are allowed or denied by address.
	Subnets Subnets
	// ResolveInto lists protected subnets that the names in Allow may resolve to, such as
	// the subnet of a registry in a private network. It does not allow these subnets by itself.
	ResolveInto []string
	// Transform sets headers in requests to names, and allows these names: for secrets
	// that the sandbox can use but not read, unless the server sends them back. Keys are
	// patterns as in Allow.
	Transform map[string]Transform

	mode policy.Mode // of a predefined policy
}

// Subnets are lists of IPv4 and IPv6 subnets in CIDR notation, or single addresses.
type Subnets struct {
	// Allow lists what may be reached by any protocol, even if protected.
	Allow []string
	// Deny lists what may never be reached, whatever else allows it.
	Deny []string
}

// A Transform changes the requests to a name. PID 1 terminates the sandbox's TLS
// connection, with a certificate of the sandbox's own authority, which the sandbox is set
// up to trust. It changes the requests and sends them on over TLS, where it verifies the
// server. Requests to the name without TLS are refused, and so are the methods CONNECT,
// TRACE and TRACK, and requests without a path.
//
// Answers are not changed, but for the reason in an HTTP/1 status line, which is that of
// its number, and for the header Alt-Svc, which is removed. A server that sends back what it was sent, such as an echo service or a page
// that shows a failed request, gives the values to the sandbox: set headers only for
// servers that don't.
//
// The values stay in the memory of the program that set them and of the sandbox's PID 1,
// and this package never prints them. They are not stored: if a program without them
// starts a session, the name can't be reached until a program sets them by
// [Sandbox.Update], [WithTransform] or [GetOrCreate].
type Transform struct {
	// SetHeaders are set in every request and replace headers of the same name: at most
	// 16, and at most 64 KiB in all transforms of a policy.
	SetHeaders Headers
	// Do, if not nil, is called in this program for each request before it is sent to the
	// server, after SetHeaders are set: for signatures and tokens that expire. It may read the
	// request, which comes from code in the sandbox, and its Body, up to 512 KiB; reading the
	// body of a longer one is an error. It may change the Header: set, replace and remove
	// headers, at most 16 values of 64 KiB together, but none that delimits the message or
	// selects the server, such as Host and Content-Length. If it changes the method, the URL
	// or the host, returns an error, or panics, the request is not sent. Other changes have no
	// effect.
	//
	// Do is called concurrently, for up to 16 requests of a session at a time. The request's
	// context ends after 10 s, also when this program closes the handle; a Do that goes on
	// then is not waited for. PID 1 reads the body, or the first 512 KiB of it, before Do is
	// called, so Do does not work for a request that sends more of its body after an answer.
	//
	// It fails closed. If Do refuses, the sandbox gets the status 502; if no program with a
	// handle that has a Do for the name runs, or Do takes longer than 10 s, 503. [Sandbox.Egress]
	// lists both with the rule "transform". If several handles have a Do for the
	// name, in any programs, the one of the newest handle is called, or of the next when that
	// is closed. Errors are not logged, since they could contain secrets.
	Do func(*http.Request) error `json:"-"`
}

// String returns the names of the headers, and whether there is a Do.
func (t Transform) String() string {
	if t.Do != nil {
		return "{" + t.SetHeaders.String() + " Do}"
	}
	return "{" + t.SetHeaders.String() + "}"
}

// Format writes String for every verb.
func (t Transform) Format(f fmt.State, _ rune) { io.WriteString(f, t.String()) }

// Headers are HTTP headers. Only their names are printed.
type Headers map[string]string

// AllowAll is the default policy: it allows everything but link-local and other addresses
// at which clouds serve machine credentials, and the IPv6 addresses that translators turn
// into these. Other sandboxes can't be reached either, since they refuse their neighbours
// in the engine's networks.
func AllowAll() NetworkPolicy { return NetworkPolicy{mode: policy.AllowAll} }

// PublicOnly allows the public internet, by any protocol, and nothing protected (see
// [NetworkPolicy]). PID 1 answers DNS queries.
//
// The engine's machine is a virtual machine on Docker Desktop, and a network namespace on a
// rootless engine: the host's own public address is not protected there. To deny it use the
// equal policy NetworkPolicy{Allow: []string{"*"}} with the address in Subnets.Deny.
func PublicOnly() NetworkPolicy { return NetworkPolicy{mode: policy.PublicOnly} }

// DenyAll allows no outgoing connection. Published ports, [Sandbox.DialContext], commands
// and files still work.
func DenyAll() NetworkPolicy { return NetworkPolicy{mode: policy.DenyAll} }

// WithNetworkPolicy sets what the sandbox may connect to. Default [AllowAll]. The policy
// applies from the first instruction of every session. [Sandbox.Update] also changes it
// in the running session, atomically: connections that the new policy denies are closed,
// the others stay, and nothing gets through in between.
//
// The sandbox's PID 1 enforces the policy in the kernel. If the engine's kernel or
// runtime does not support that, creating or starting the sandbox fails with
// [ErrUnsupported].
func WithNetworkPolicy(p NetworkPolicy) LiveOption {
	compiled, secrets, err := p.compile()
	return option{plan.Network, func(s *settings) {
		if err != nil {
			s.problem("WithNetworkPolicy: %w", err)
		}
		s.Network, s.Secrets = compiled, secrets
	}}
}

// WithTransform sets the headers for names that the sandbox's policy transforms, which
// are not stored, in the session; see [Transform]. A name that already has headers keeps
// them. A name that the policy does not transform is an [ErrInvalidArgument].
func WithTransform(transforms map[string]Transform) GetOption {
	secrets, err := secretsOf(transforms)
	return option{apply: func(s *settings) {
		if err != nil {
			s.problem("WithTransform: %w", err)
		}
		for _, name := range slices.Sorted(maps.Keys(transforms)) {
			if _, err := canonicalPattern(name); err != nil {
				s.problem("WithTransform: %w", err)
			}
		}
		s.Secrets = secrets
	}}
}

// ParseNetworkPolicy parses the text that [NetworkPolicy.String] returns: allow-all,
// public-only, deny-all, or lists in any order.
//
//	allow=*.example.com,example.org subnets.allow=10.1.0.0/16 subnets.deny=10.1.2.0/24 resolve-into=10.2.0.0/16
//
// transform= lists names whose requests are transformed; the text does not contain the
// values.
func ParseNetworkPolicy(text string) (NetworkPolicy, error) {
	p, err := policy.Parse(text)
	if err != nil {
		return NetworkPolicy{}, fail("parse network policy", "", errdefs.Classify(ErrInvalidArgument, err))
	}
	return networkPolicyOf(p), nil
}

// Check validates the policy and returns all problems as one [ErrInvalidArgument]. Create
// and Update do the same before anything else.
func (p NetworkPolicy) Check() error {
	if _, _, err := p.compile(); err != nil {
		return fail("network policy", "", errdefs.Classify(ErrInvalidArgument, err))
	}
	return nil
}

// Allows reports whether the policy allows a connection to a host (a domain name or an address) on a
// TCP port, and the rule that decides, as [Egress.Rule] names it. Nothing is looked up and nothing
// runs. A name that is allowed can be reached if it resolves to addresses that are neither denied nor
// protected, and by the protocols that [NetworkPolicy.Allow] lists unless the rule is "open". Each sandbox
// protects the engine's machine, too: Allows does not know its addresses. A policy, host or port that is
// not valid is an [ErrInvalidArgument].
func (p NetworkPolicy) Allows(host string, port int) (allowed bool, rule string, err error) {
	compiled, _, err := p.compile()
	if err == nil {
		allowed, rule, err = compiled.Allows(host, port)
	}
	if err != nil {
		return false, "", fail("network policy", "", errdefs.Classify(ErrInvalidArgument, err))
	}
	return allowed, rule, nil
}

// String returns the textual form of the policy, which [ParseNetworkPolicy] parses: lower
// case, ASCII, sorted, with subnets merged. It does not contain the values of a
// Transform. For an invalid policy it returns "invalid network policy".
func (p NetworkPolicy) String() string {
	c, _, err := p.compile()
	if err != nil {
		return "invalid network policy"
	}
	return c.String()
}

// LogValue returns String.
func (p NetworkPolicy) LogValue() slog.Value { return slog.StringValue(p.String()) }

// MarshalText returns String, for JSON among others.
func (p NetworkPolicy) MarshalText() ([]byte, error) {
	c, _, err := p.compile()
	if err != nil {
		return nil, fail("network policy", "", errdefs.Classify(ErrInvalidArgument, err))
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

// String returns the names of the headers.
func (h Headers) String() string {
	return fmt.Sprintf("%v", slices.Sorted(maps.Keys(h)))
}

// Format writes String for every verb.
func (h Headers) Format(f fmt.State, _ rune) { io.WriteString(f, h.String()) }

// LogValue returns String.
func (h Headers) LogValue() slog.Value { return slog.StringValue(h.String()) }

// MarshalJSON returns the names of the headers, without the values.
func (h Headers) MarshalJSON() ([]byte, error) {
	return json.Marshal(slices.Sorted(maps.Keys(h)))
}

// compile validates the policy and splits it into the part that is stored and the
// secrets.
func (p NetworkPolicy) compile() (policy.Policy, []plan.Secret, error) {
	var problems []error
	c := policy.Policy{Mode: cmp.Or(p.mode, policy.Custom)}
	for _, name := range p.Allow {
		c.Allow = append(c.Allow, policy.Name{Pattern: name})
	}
	var secrets []plan.Secret
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
	secrets = slices.DeleteFunc(secrets, func(x plan.Secret) bool { return len(x.Sent.Headers) == 0 && !x.Sent.Hook }) // set later
	if err != nil {
		problems = append(problems, err)
	}
	return c, secrets, errors.Join(problems...)
}

// networkPolicyOf converts a compiled policy to its public form.
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

// canonicalPattern returns the canonical form of a name or pattern of a policy.
func canonicalPattern(name string) (string, error) {
	canon, err := policy.Policy{Mode: policy.Custom, Allow: []policy.Name{{Pattern: name}}}.Canon()
	if err != nil {
		return "", err
	}
	return canon.Allow[0].Pattern, nil
}

// secretsOf returns the headers that transforms set, by the canonical pattern of the
// name. Its errors never contain header values.
func secretsOf(transforms map[string]Transform) ([]plan.Secret, error) {
	var problems []error
	var secrets []plan.Secret
	size := 0
	seen := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(transforms)) {
		pattern, err := canonicalPattern(name)
		if err != nil {
			continue // reported by the check of the names
		}
		if was, twice := seen[pattern]; twice {
			problems = append(problems, fmt.Errorf("transform: %q and %q are the same name", was, name))
		}
		seen[pattern] = name
		headers := transforms[name].SetHeaders
		if len(headers) > wire.MaxSecretHeaders {
			problems = append(problems, fmt.Errorf("transform of %q: %d headers: use at most %d", name, len(headers), wire.MaxSecretHeaders))
		}
		for _, key := range slices.Sorted(maps.Keys(headers)) {
			size += len(key) + len(headers[key])
			if err := plan.CheckHeader(key, headers[key]); err != nil {
				problems = append(problems, fmt.Errorf("transform of %q: %w", name, err))
			}
		}
		do := transforms[name].Do
		secrets = append(secrets, plan.Secret{Sent: wire.Secret{Pattern: pattern, Headers: maps.Clone(headers), Hook: do != nil}, Do: do})
	}
	if size > wire.MaxSecretBytes {
		problems = append(problems, fmt.Errorf("transform: headers of %d bytes: use at most %d", size, wire.MaxSecretBytes))
	}
	return secrets, errors.Join(problems...)
}

// Egress describes one kind of connection or lookup that the sandbox attempted in the
// current session, and the decision.
type Egress struct {
	// Name is the requested name, if known: from a lookup, TLS or HTTP.
	Name string `json:"name,omitempty"`
	// Address and Port are the destination. Lookups have none.
	Address netip.Addr `json:"address,omitzero"`
	Port    uint16     `json:"port,omitempty"`
	// Protocol is "tcp", "udp", "icmp", "dns" for a lookup, or a protocol number.
	Protocol string `json:"protocol"`
	// Rule is what decided: a pattern of [NetworkPolicy.Allow], "subnets.allow",
	// "subnets.deny", "protected", "transform" if a [Transform.Do] did not let a request pass,
	// "open" if the policy allows every public address,
	// "name" if only a name could have allowed it, "closed" if nothing could, "busy" if PID 1
	// had too many connections to serve this one, whatever the policy says of it, "unclear" if an
	// HTTP request could be for more than one host, or its headers are larger than 64 KiB.
	Rule    string `json:"rule"`
	Allowed bool   `json:"allowed"`
	// Failure is why an allowed connection through PID 1 did not come about: "refused" if
	// nothing listens on the port, "timeout" if the server did not answer, "unreachable" if there
	// is no way to it, "lookup" if the name has no address or no DNS server answered, "failed"
	// otherwise. Programs inside see a reset in all these cases.
	Failure string `json:"failure,omitempty"`
	// Count is the number of attempts, First and Last the times of the first and the
	// last.
	Count int64     `json:"count"`
	First time.Time `json:"first"`
	Last  time.Time `json:"last"`
}

// EgressCount counts the decisions of a session's PID 1.
type EgressCount struct {
	Allowed int64 `json:"allowed"`
	Blocked int64 `json:"blocked"`
}

// Egress lists what the sandbox attempted to reach in the current session, latest last:
// blocked connections and lookups, which show what a policy lacks, and allowed ones by
// name. Packets that the kernel refused appear within a second or two. At most 512 kinds
// are kept; the least recent are dropped. Without a session the error is [ErrNotRunning],
// and none is started.
func (s *Sandbox) Egress(ctx context.Context) (_ []Egress, err error) {
	ctx, span := trace.Start(ctx, "sandbox.egress", s.h.Trace()...)
	defer span.End(&err)
	defer wrap(&err, "egress", s.Name())
	entries, err := s.h.Egress(ctx)
	if entries == nil || err != nil {
		return nil, err
	}
	list := make([]Egress, 0, len(entries))
	for _, e := range entries {
		list = append(list, Egress(e))
	}
	return list, nil
}

// DialContext connects to an address inside the sandbox, like [net.Dialer.DialContext].
// network is tcp, tcp4, tcp6 or unix. Names are resolved inside, and no port needs to be
// published. It can be the DialContext of an [net/http.Transport]. To servers on Unix
// sockets the client is root.
//
// ctx bounds the dial only. Several thousand connections may be open at once; each has
// deadlines, and CloseWrite ends one direction. All end with the handle. errors.Is and
// errors.As find the errors of package net, such as syscall.ECONNREFUSED and
// [*net.OpError]. A stopped persistent sandbox is resumed.
func (s *Sandbox) DialContext(ctx context.Context, network, address string) (_ net.Conn, err error) {
	ctx, span := trace.Start(ctx, "sandbox.dial", s.h.Trace()...)
	defer span.End(&err)
	defer wrap(&err, "dial", s.Name())
	return s.h.Dial(ctx, network, address)
}

// Port returns the address, on the engine's machine, of a port published by [WithPorts].
// It changes with each session, so every call looks it up. For a port that was not
// published the error is [ErrInvalidArgument]; without a session it is [ErrNotRunning],
// and none is started.
func (s *Sandbox) Port(ctx context.Context, port int) (_ netip.AddrPort, err error) {
	ctx, span := trace.Start(ctx, "sandbox.port", s.h.Trace()...)
	defer span.End(&err)
	defer wrap(&err, "port", s.Name())
	return s.h.Port(ctx, port)
}

// WaitPort waits until a program in the sandbox listens on the TCP port, published or
// not. It makes no connection to the port. If the main process ([WithCommand]) fails
// first, the error wraps its *[ExitError]; if the session ends, it is [ErrNotRunning];
// otherwise ctx bounds the wait.
func (s *Sandbox) WaitPort(ctx context.Context, port int) (err error) {
	ctx, span := trace.Start(ctx, "sandbox.wait_for_port", s.h.Trace()...)
	defer span.End(&err)
	defer wrap(&err, "wait for port", s.Name())
	err = s.h.WaitPort(ctx, port)
	if ended, ok := errors.AsType[*lifecycle.MainFailedError](err); ok {
		err = fmt.Errorf("%w: %w", err, exitError(ended.Program, s.Name(), ended.Exit))
	}
	return err
}

// SSH returns a connection to an SSH server in the sandbox, for any SSH client: OpenSSH,
// with the command "sandbox proxy" as its ProxyCommand, or golang.org/x/crypto/ssh. SSH
// sessions run in the sandbox's directory and with its environment, as the user that the
// client names, see [Cmd.User]. They run as the sandbox's user if the client names nobody, or the
// user that runs this program, which is what clients send by default. The
// server requires no key or password from the owner of the connection. The host key is
// constant as long as the sandbox exists.
//
// The server supports commands, shells, terminals, sftp with the extensions of OpenSSH, and
// forwarding to TCP ports and Unix sockets inside, but no forwarding from the sandbox. When
// the connection ends its commands get SIGHUP; background processes continue until the
// session ends. Otherwise it behaves as sshd does; docs/differences.md says where it does not.
//
// ctx bounds the connecting only. The caller closes the connection; closing the handle
// closes it too. A stopped persistent sandbox is resumed.
func (s *Sandbox) SSH(ctx context.Context) (_ net.Conn, err error) {
	ctx, span := trace.Start(ctx, "sandbox.ssh", s.h.Trace()...)
	defer span.End(&err)
	defer wrap(&err, "ssh", s.Name())
	return s.h.SSH(ctx)
}
