package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// Completions have the names on the engine.
func TestCompletionKnowsTheEngine(t *testing.T) {
	enginetest.Need(t)
	t.Parallel()
	name := harness.UniqueName(t)
	removeAtEnd(t, name)
	mustCall(t, "create", "--name", name)
	id := strings.TrimSpace(mustCall(t, "snapshot", "create", name))
	removeSnapshotAtEnd(t, id)
	stopped := "s-" + name
	removeAtEnd(t, stopped)
	mustCall(t, "create", "--name", stopped)
	mustCall(t, "stop", stopped)
	volume := preservedVolume(t)
	prefix := name[:len(name)-2]
	for _, test := range []struct {
		args string // the last one is incomplete
		want string // one of the completions; empty if there is none
	}{
		{"stop " + prefix, name}, {"stop other " + prefix, name}, {"stop " + name + " " + prefix, ""}, {"exec " + prefix, name}, {"inspect " + prefix, name},
		{"inspect " + name + " " + prefix, ""}, {"network " + prefix, name}, {"network " + name + " ", "deny-all"}, {"egress " + prefix, name}, {"proxy " + prefix, name},
		{"cp " + prefix, name + ":"}, {"cp . " + prefix, name + ":"}, {"logs -f " + prefix, name}, {"rollback " + prefix, name},
		{"rollback " + name + " " + id[:6], id}, {"snapshot show " + id[:6], id}, {"snapshot delete " + id[:6], id}, {"run --snapshot " + id[:6], id},
		{"snapshot list --sandbox " + prefix, name}, {"snapshot create " + prefix, name}, {"volume delete " + volume[:20], volume}, {"create --volume " + volume[:20], volume},
		{"volume cleanup --name " + volume[:20], volume}, {"volume cleanup --role ", "rwcopy"}, {"list --status ", "paused"}, {"create --network ", "public-only"},
		{"create --im", "--image"}, {"volume o", "orphans"}, {"create --runtime py", "python3.13"}, {"run --runtime node2", "node22"}, {"run --image node:20", "node:20-bookworm"},
		{"create --oci-runtime r", "runc"}, {"start " + prefix, ""}, {"start " + stopped[:len(stopped)-1], stopped}, {"stop " + stopped[:len(stopped)-1], ""}, {"list --format ", "json"},
	} {
		args := strings.Split(test.args, " ")
		code, out, _ := call(t.Context(), "", append([]string{"__complete"}, args...)...)
		var words []string
		for line := range strings.Lines(out) {
			word, _, _ := strings.Cut(strings.TrimSpace(line), "\t")
			words = append(words, word)
		}
		found := len(words) > 1 // the last line is a directive
		if test.want != "" {
			found = strings.Contains("\n"+strings.Join(words, "\n")+"\n", "\n"+test.want+"\n")
		}
		if code != 0 || found != (test.want != "") {
			t.Errorf("completions of %q: code %d, %q, want %q", test.args, code, words, test.want)
		}
	}
}

// A snapshot's ID says nothing, so its name and its sandbox are beside it.
func TestCompletionDescribesSnapshots(t *testing.T) {
	enginetest.Need(t)
	t.Parallel()
	name := harness.UniqueName(t)
	removeAtEnd(t, name)
	mustCall(t, "create", "--name", name)
	id := strings.TrimSpace(mustCall(t, "snapshot", "create", "--name", "tested", name))
	removeSnapshotAtEnd(t, id)
	if _, out, _ := call(t.Context(), "", "__complete", "rollback", name, ""); !strings.Contains(out, id+"\ttested of "+name+", ") {
		t.Errorf("completions of a snapshot: %q, want %s with its name and its sandbox", out, id)
	}
}

// Without an engine a completion is empty, and prints nothing to the line that is edited.
func TestCompletionWithoutAnEngine(t *testing.T) {
	t.Parallel()
	code, out, _ := call(t.Context(), "", "__complete", "-H", "unix:///nowhere.sock", "stop", "a")
	if code != 0 || out != ":1\n" {
		t.Errorf("completion: code %d, %q, want the directive of an error alone", code, out)
	}
}

// Each shell loads its script, and completes a line by it.
func TestCompletionScripts(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(self, filepath.Join(dir, "sandbox")); err != nil {
		t.Fatal(err)
	}
	for shell, program := range map[string][]string{
		"bash": {"bash", "-ec", `
			source /dev/stdin
			COMP_WORDS=(sandbox volume o) COMP_CWORD=2 COMP_LINE="sandbox volume o" COMP_POINT=16 COMP_TYPE=9
			compopt() { :; } # there is no line to edit
			_sandbox
			echo "${COMPREPLY[@]}"`},
		// The function that shows completions prints them, since there is no line to edit.
		"zsh": {"zsh", "-fec", `
			autoload -Uz compinit; compinit -u -D
			source /dev/stdin
			[ "$_comps[sandbox]" = _sandbox ]
			_describe() { print -rl -- "${(@)completions%%:*}"; }
			words=(sandbox volume o) CURRENT=3
			_sandbox`},
		"fish": {"fish", "-N", "-c", `
			source -
			complete -C "sandbox volume o" | cut -f 1`},
	} {
		if _, err := exec.LookPath(shell); err != nil && testing.Short() {
			continue
		} else if err != nil {
			t.Fatalf("there is no %s; ci/clients installs it", shell)
		}
		cmd := exec.Command(program[0], program[1:]...)
		cmd.Env = append(os.Environ(), asProgram+"=1", "PATH="+dir+":"+os.Getenv("PATH"), "HOME="+dir)
		cmd.Stdin = strings.NewReader(mustCall(t, "completion", shell))
		if shell != "fish" { // whose check of syntax takes files alone
			check := exec.Command(shell, "-n", "/dev/stdin")
			check.Stdin = strings.NewReader(mustCall(t, "completion", shell))
			if out, err := check.CombinedOutput(); err != nil || len(out) > 0 {
				t.Errorf("%s -n: %v, %s", shell, err, out)
			}
		}
		if out, err := cmd.Output(); err != nil || strings.TrimSpace(string(out)) != "orphans" {
			t.Errorf("%s completes \"sandbox volume o\" to %q, %v, want orphans", shell, out, err)
		}
	}
}
