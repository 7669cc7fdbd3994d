package main

import (
	"strings"
	"testing"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// A verb that reads makes no more calls of the engine than it needs, and measures nothing that it does not print: neither CPU time nor
// the size of a workspace.
func TestReadsMakeTheCallsThatTheyNeed(t *testing.T) {
	t.Parallel()
	p := enginetest.NewProxy(t)
	c := harness.NewClient(t)
	sb := harness.CreateWith(t, c, nil, sandbox.WithCommand("sh", "-c", "echo line; exec sleep 1000"))
	harness.SnapshotOf(t, c, sb, sandbox.SnapshotOptions{})
	for _, tt := range []struct {
		args     string
		calls    int
		measures bool
	}{
		{"version", 4, false}, {"list", 6, false}, {"list --json", 6, false}, {"snapshot list", 2, false}, {"snapshot list --sandbox NAME", 2, false}, {"snapshot tree", 3, false},
		{"volume list", 12, true}, // orphans of other tests make "volume orphans" measure
		{"inspect NAME", 11, true}, {"network NAME", 8, false}, {"network check --sandbox NAME example.org", 8, false}, {"logs NAME", 6, false}, {"logs --tail 1 NAME", 6, false},
		// These two ask PID 1: they connect to it by an exec.
		{"processes NAME", 10, true}, {"egress NAME", 10, true},
	} {
		args := append([]string{"-H", p.Host()}, strings.Fields(strings.ReplaceAll(tt.args, "NAME", sb.Name()))...)
		fewest := 0 // calls of the client's in the background may come into it
		var requests []string
		for i := range 3 {
			p.Arm(0, enginetest.None, nil)
			if code, _, errOut := call(t.Context(), "", args...); code != 0 {
				t.Errorf("%q: code %d, %q", args, code, errOut)
			}
			if n := p.Count(); i == 0 || n < fewest {
				fewest, requests = n, p.Requests()
			}
		}
		all := strings.Join(requests, "\n\t")
		if fewest > tt.calls {
			t.Errorf("%s makes %d calls, want %d\n\t%s", tt.args, fewest, tt.calls, all)
		}
		if measured := strings.Contains(all, "/stats") || strings.Contains(all, "/exec") || strings.Contains(all, "agent-sandbox-helper"); measured != tt.measures {
			t.Errorf("%s measures: %t, want %t\n\t%s", tt.args, measured, tt.measures, all)
		}
	}
}
