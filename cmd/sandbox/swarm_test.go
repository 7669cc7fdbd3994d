package main

import (
	"strings"
	"testing"

	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
)

func TestPlacementTakesASwarm(t *testing.T) {
	enginetest.Need(t)
	t.Parallel()
	for _, args := range [][]string{{"create", "--placement", "node.role==manager"}, {"run", "--placement", "node.role==manager", "--", "true"}} {
		if code, _, errOut := call(t.Context(), "", args...); code == 0 || !strings.Contains(errOut, "--placement: the client is not for a swarm, see --swarm") {
			t.Errorf("%q: code %d, %q, want an error that names --swarm", args, code, errOut)
		}
	}
	for _, args := range [][]string{{"node", "list"}, {"node", "ls", "--json"}, {"move", "a", "node2"}, {"move", "--json", "a", "node2"}, {"node", "list", "--format", "{{.Name}}"}} {
		if code, _, errOut := call(t.Context(), "", args...); code == 0 || !strings.Contains(errOut, "--swarm") {
			t.Errorf("%q: code %d, %q, want an error that names --swarm", args, code, errOut)
		}
	}
	if out := mustCall(t, "--swarm", "ssh-config"); !strings.Contains(out, " --swarm proxy %n") {
		t.Errorf("ssh-config: %q", out)
	}
}
