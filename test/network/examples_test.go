package network_test

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
)

// Shows 7: the examples of network policies run as they are, without the internet, and
// tell what they say they tell.
func TestNetworkExamplesRun(t *testing.T) {
	enginetest.Need(t)
	t.Parallel()
	for name, want := range map[string][]string{
		"offline": {"it says: 6*7 is 42; could tell nobody: ECONNREFUSED\n", "blocked: tcp to 192.0.2.99 port 80, "},
		"allowlist": {
			"nice-sum: https://evil.test/ can't be reached: ENOTFOUND\n", "nice-sum: http://192.0.2.66/ can't be reached: ", "the package works: 42\n",
			"allowed: tcp registry.test ", "blocked: dns evil.test (name), ", "blocked: tcp  192.0.2.66:80 (name), ",
		},
		"secret": {"the API says: hello, ada\n", "the token is in what can be read inside: false\n", "another name: sandbox: exec "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out, err := exec.CommandContext(t.Context(), "go", "run", "../../examples/"+name).CombinedOutput()
			if err != nil {
				t.Fatalf("go run ../../examples/%s: %v\n%s", name, err, out)
			}
			for _, w := range want {
				if !strings.Contains(string(out), w) {
					t.Errorf("it does not say %q:\n%s", w, out)
				}
			}
		})
	}
}
