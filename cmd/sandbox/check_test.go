package main

import (
	"strings"
	"testing"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

func TestNetworkCheckNamesTheRule(t *testing.T) {
	enginetest.Need(t)
	t.Parallel()
	code, out, errOut := call(t.Context(), "", "network", "check", "--json", "--policy", "allow=*.github.com subnets.allow=10.1.0.0/16", "api.github.com", "example.com:80", "10.1.2.3:22", "[::1]:22")
	want := `[{"host":"api.github.com","port":443,"allowed":true,"rule":"*.github.com"},{"host":"example.com","port":80,"allowed":false,"rule":"name"},` +
		`{"host":"10.1.2.3","port":22,"allowed":true,"rule":"subnets.allow"},{"host":"::1","port":22,"allowed":false,"rule":"protected"}]`
	if got := strings.Join(strings.Fields(out), ""); code != 1 || got != want || !strings.Contains(errOut, "does not allow") {
		t.Errorf("network check: code %d, %s, %q, want 1 and %s", code, got, errOut, want)
	}
	sb := harness.NewSandbox(t, sandbox.WithNetworkPolicy(sandbox.PublicOnly()))
	if out := mustCall(t, "network", "check", "--sandbox", sb.Name(), "example.com"); !strings.Contains(out, "allowed") || !strings.Contains(out, "open") {
		t.Errorf("network check of a sandbox: %q", out)
	}
	for _, args := range [][]string{{"a.test"}, {"--policy", "nonsense", "a.test"}, {"--policy", "allow-all", "a.test:http"}, {"--policy", "allow-all", "--sandbox", sb.Name(), "a.test"}, {"--policy", "allow-all"}} {
		if code, _, errOut := call(t.Context(), "", append([]string{"network", "check"}, args...)...); code == 0 || errOut == "" {
			t.Errorf("network check %q: code %d, %q, want an error", args, code, errOut)
		}
	}
}
