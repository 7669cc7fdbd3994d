package sandbox_test

import (
	"errors"
	"testing"

	"github.com/seed-1a2d6d8f/sandbox"
)

func TestPolicySaysWhatItAllows(t *testing.T) {
	t.Parallel()
	lists := sandbox.NetworkPolicy{
		Allow:   []string{"example.com", "*.github.com", "*.api.github.com"},
		Subnets: sandbox.Subnets{Allow: []string{"10.1.0.0/16", "2001:db8::/32"}, Deny: []string{"10.1.2.0/24", "203.0.113.0/24"}},
	}
	for _, tt := range []struct {
		policy  sandbox.NetworkPolicy
		host    string
		allowed bool
		rule    string
	}{
		{sandbox.AllowAll(), "example.com", true, "open"}, {sandbox.AllowAll(), "10.0.0.1", true, "open"}, {sandbox.AllowAll(), "169.254.169.254", false, "protected"},
		{sandbox.PublicOnly(), "example.com", true, "open"}, {sandbox.PublicOnly(), "9.9.9.9", true, "open"}, {sandbox.PublicOnly(), "10.0.0.1", false, "protected"},
		{sandbox.PublicOnly(), "::1", false, "protected"}, {sandbox.PublicOnly(), "::ffff:10.0.0.1", false, "protected"},
		{sandbox.DenyAll(), "example.com", false, "closed"}, {sandbox.DenyAll(), "9.9.9.9", false, "closed"}, {sandbox.NetworkPolicy{}, "9.9.9.9", false, "closed"},
		{lists, "example.com", true, "example.com"}, {lists, "EXAMPLE.com.", true, "example.com"}, {lists, "a.example.com", false, "name"},
		{lists, "a.github.com", true, "*.github.com"}, {lists, "x.api.github.com", true, "*.api.github.com"}, {lists, "github.com", false, "name"},
		{lists, "10.1.3.1", true, "subnets.allow"}, {lists, "10.1.2.1", false, "subnets.deny"}, {lists, "10.2.0.1", false, "protected"}, {lists, "9.9.9.9", false, "name"},
		{lists, "203.0.113.9", false, "subnets.deny"}, {lists, "[2001:db8::1]", true, "subnets.allow"},
		{sandbox.NetworkPolicy{Subnets: sandbox.Subnets{Allow: []string{"9.9.9.9"}}}, "example.com", false, "closed"},
		{sandbox.NetworkPolicy{Allow: []string{"*"}, Subnets: sandbox.Subnets{Deny: []string{"9.9.9.9"}}}, "9.9.9.9", false, "subnets.deny"},
		{sandbox.NetworkPolicy{Allow: []string{"*"}}, "example.com", true, "open"},
		{sandbox.NetworkPolicy{Transform: map[string]sandbox.Transform{"t.test": {SetHeaders: sandbox.Headers{"A": "b"}}}}, "t.test", true, "t.test"},
	} {
		allowed, rule, err := tt.policy.Allows(tt.host, 443)
		if allowed != tt.allowed || rule != tt.rule || err != nil {
			t.Errorf("%v: Allows(%q) = %t, %q, %v, want %t, %q", tt.policy, tt.host, allowed, rule, err, tt.allowed, tt.rule)
		}
	}
	for _, tt := range []struct {
		policy sandbox.NetworkPolicy
		host   string
		port   int
	}{
		{sandbox.AllowAll(), "", 443}, {sandbox.AllowAll(), "a b", 443}, {sandbox.AllowAll(), "*.example.com", 443}, {sandbox.AllowAll(), "a.test", 0}, {sandbox.AllowAll(), "a.test", 65536},
		{sandbox.NetworkPolicy{Allow: []string{"a b"}}, "a.test", 443},
	} {
		if allowed, _, err := tt.policy.Allows(tt.host, tt.port); allowed || !errors.Is(err, sandbox.ErrInvalidArgument) {
			t.Errorf("%v: Allows(%q, %d) = %t, %v, want ErrInvalidArgument", tt.policy, tt.host, tt.port, allowed, err)
		}
	}
}
