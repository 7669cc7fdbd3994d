//go:build linux

package egress

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/net/http/httpguts"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
	"github.com/seed-1a2d6d8f/sandbox/internal/policy"
)

// activePolicy is a policy in force. It is immutable.
type activePolicy struct {
	version  int64
	rules    *policy.Rules
	protect  []netip.Prefix
	upstream []netip.Addr            // from the owner
	six      bool                    // the sandbox has IPv6
	secrets  map[string]*wire.Secret // by the pattern of the names
	roots    string
	ca       string // that the sandbox is to trust
}

func newPolicy(b *wire.Begin) (*activePolicy, error) {
	if len(b.Protect) > wire.MaxProtect {
		return nil, fmt.Errorf("%d protected subnets, at most %d are allowed", len(b.Protect), wire.MaxProtect)
	}
	if err := checkServers(b.Upstream); err != nil {
		return nil, err
	}
	p, err := b.Policy.Canon()
	if err != nil {
		return nil, err
	}
	own := ownNetworks()
	s := &activePolicy{version: b.Version, protect: b.Protect, upstream: b.Upstream, roots: b.Roots, secrets: make(map[string]*wire.Secret)}
	if err := s.addSecrets(p, b.Secrets); err != nil {
		return nil, err
	}
	s.six = slices.ContainsFunc(own, func(n netip.Prefix) bool { return n.Addr().Is6() && !n.Addr().IsLinkLocalUnicast() })
	s.rules, err = p.Compile(append(own, s.protect...)...)
	return s, err
}

// checkServers returns an error if an address can't be a DNS server's.
func checkServers(all []netip.Addr) error {
	if len(all) > wire.MaxUpstream {
		return fmt.Errorf("%d DNS servers, at most %d are allowed", len(all), wire.MaxUpstream)
	}
	for _, a := range all {
		if !a.IsValid() || a.Zone() != "" || a.IsUnspecified() || a.IsMulticast() || a.Is4In6() {
			return fmt.Errorf("%q can't be a DNS server", a)
		}
	}
	return nil
}

// addSecrets adds secrets for names that have none yet.
func (s *activePolicy) addSecrets(p policy.Policy, secrets []wire.Secret) error {
	size := 0
	for _, secret := range secrets {
		if len(secret.Headers) > wire.MaxSecretHeaders {
			return fmt.Errorf("the names %q have %d headers, at most %d are allowed", secret.Pattern, len(secret.Headers), wire.MaxSecretHeaders)
		}
		for name, value := range secret.Headers {
			if size += len(name) + len(value); size > wire.MaxSecretBytes {
				return fmt.Errorf("the headers are too large: at most %d bytes are allowed", wire.MaxSecretBytes)
			}
			if !httpguts.ValidHeaderFieldName(name) || !httpguts.ValidHeaderFieldValue(value) {
				return fmt.Errorf("the names %q have an invalid header", secret.Pattern)
			}
		}
		named := slices.ContainsFunc(p.Allow, func(n policy.Name) bool { return n.Transform && n.Pattern == secret.Pattern })
		if _, have := s.secrets[secret.Pattern]; named && !have && (len(secret.Headers) > 0 || secret.Hook) {
			s.secrets[secret.Pattern] = &secret
		}
	}
	return nil
}

// resolvesTo reports whether a name may resolve to an address. None may to this host, where
// this process listens.
func (s *activePolicy) resolvesTo(a netip.Addr) bool {
	a = a.Unmap()
	return s.rules.Into(a) && !a.IsLoopback() && !a.IsUnspecified() && !a.IsMulticast()
}

// unnamed returns why a name without a rule is not allowed.
func (s *activePolicy) unnamed() policy.Verdict {
	if s.rules.Resolves() {
		return policy.ByName
	}
	return policy.Closed
}

// plan decides by what a client sent first.
func (s *activePolicy) plan(h hello, err error) route {
	no := route{rule: string(s.unnamed())}
	if errors.Is(err, errUnclear) || errors.Is(err, errTooMuch) {
		no.rule = ruleUnclear
	}
	if err != nil || h.name == "" {
		return no
	}
	rule, ok := s.rules.Name(h.name)
	if !ok {
		return no
	}
	r := route{allowed: true, rule: rule.Pattern}
	if rule.Transform {
		// Only TLS that the injector ends can be transformed, and without its secret a
		// name is not allowed.
		r.inject = true
		if !h.tls || h.postgres || s.secrets[rule.Pattern] == nil {
			return route{rule: rule.Pattern, refused: true}
		}
	}
	return r
}

// allowsFlow reports whether the policy allows an established flow.
func (s *activePolicy) allowsFlow(f *flow) bool {
	if f.addr.IsValid() && s.rules.Addr(f.addr).Reaches() {
		return true
	}
	rule, ok := s.rules.Name(f.name)
	if !ok || rule.Transform != f.inject || f.inject && s.secrets[rule.Pattern] == nil {
		return false
	}
	return !f.addr.IsValid() || s.resolvesTo(f.addr)
}

// route is the decision on a connection.
type route struct {
	allowed bool
	rule    string
	refused bool // by its name, whatever the address is
	inject  bool // PID 1 speaks TLS with the client
	direct  bool // to the address that the client chose
}
