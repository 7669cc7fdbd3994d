package examples_test

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
)

// said is what each program in examples prints, among other things.
var said = map[string][]string{
	"allowlist": {
		"nice-sum: https://evil.test/ can't be reached: ENOTFOUND\n", "nice-sum: http://192.0.2.66/ can't be reached: ", "the package works: 42\n",
		"allowed: tcp registry.test ", "blocked: dns evil.test (name), ", "blocked: tcp  192.0.2.66:80 (name), ",
	},
	"coding-agent": {"3 tests fail\n", "  4 tests fail: the turn is taken back\n", "  0 tests fail\nsum.js is now:\n", "Number(n)"},
	"evaluator": {
		`"verdict":"out of memory","exitCode":137`, `"verdict":"timeout","exitCode":137`,
		`{"correct":2,"failed":1,"out of memory":1,"timeout":1,"too much output":1,"wrong":1}` + "\n",
	},
	"fork-fanout": {"prepared once: snapshot ", " is the best of 8: ", "kept as fork-fanout-best:\n", "pack.js\n"},
	"hello":       {"Node says 42\n"},
	"offline":     {"it says: 6*7 is 42; could tell nobody: ECONNREFUSED\n", "blocked: tcp to 192.0.2.99 port 80, "},
	"quickstart":  {"read Bergen, january\n", "says: Bergen is the wettest, 402 mm in the two months\n", "\nsandboxes on the engine: "},
	"rl-rollouts": {"6 rollouts, 2 repeated, mean reward 0."},
	"secret":      {"the API says: hello, ada\n", "the token is in what can be read inside: false\n", "another name: sandbox: exec "},
	"volumes": {
		"the file on the host still says: on the host\n", "orphaned: a copy of ", "the file in the volume says: changed inside\n", ": preserved\n", ": deleted\n",
	},
}

// arguments are of programs that do less in a plain run. Another try has those of patient, if there are any: a
// busy machine takes seconds to start Node.
var (
	arguments = map[string][]string{"evaluator": {"-n", "7", "-limit", "8s"}, "rl-rollouts": {"-n", "6"}}
	patient   = map[string][]string{"evaluator": {"-n", "7", "-limit", "120s"}, "rl-rollouts": arguments["rl-rollouts"], "offline": {}}
)

// Every program in examples runs as it is, without the internet, and prints what it says it does.
func TestExamplesRun(t *testing.T) {
	enginetest.Need(t)
	t.Parallel()
	const root = "../../examples"
	bin := t.TempDir()
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", bin, root+"/...").CombinedOutput(); err != nil {
		t.Fatalf("go build %s/...: %v\n%s", root, err, out)
	}
	programs, err := filepath.Glob(root + "/*/main.go")
	if err != nil || len(programs) < len(said) {
		t.Fatalf("the programs are %q, %v: want one for each of the %d that are known", programs, err, len(said))
	}
	for _, file := range programs {
		name := filepath.Base(filepath.Dir(file))
		if own, _ := filepath.Glob(filepath.Join(filepath.Dir(file), "*_test.go")); len(own) > 0 {
			continue // it runs until it is stopped
		}
		if name == "cluster" {
			continue // it takes a swarm: test/cluster runs it
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if len(said[name]) == 0 {
				t.Fatalf("what does examples/%s print?", name)
			}
			problem := runExample(t, name, filepath.Join(bin, name), arguments[name])
			if args, again := patient[name]; again && problem != "" {
				t.Logf("another try, after %s", problem)
				problem = runExample(t, name, filepath.Join(bin, name), args)
			}
			if problem != "" {
				t.Error(problem)
			}
		})
	}
}

// runExample runs an example, and returns what is wrong with it.
func runExample(t *testing.T, name, program string, args []string) (problem string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), program, args...).CombinedOutput()
	if err != nil {
		return fmt.Sprintf("examples/%s: %v\n%s", name, err, out)
	}
	for _, want := range said[name] {
		if !strings.Contains(string(out), want) {
			return fmt.Sprintf("examples/%s does not print %q:\n%s", name, want, out)
		}
	}
	return ""
}
