package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// noted are the flags that tests have given, as "sandbox create --name".
var noted sync.Map

func noteFlags(args []string) {
	root := newApp(nil, io.Discard, io.Discard).root()
	c, rest, err := root.Find(args)
	if err != nil || c.ParseFlags(rest) != nil {
		return
	}
	c.Flags().Visit(func(f *pflag.Flag) { noted.Store(c.CommandPath()+" --"+f.Name, true) })
}

// flagsWithoutTest fails for flags that no test of a full run has given.
func flagsWithoutTest() error {
	if testing.Short() || flag.Lookup("test.run").Value.String() != "" || flag.Lookup("test.skip").Value.String() != "" {
		return nil
	}
	var without []string
	eachCommand(newApp(nil, io.Discard, io.Discard).root(), func(c *cobra.Command) {
		c.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
			name := c.CommandPath() + " --" + f.Name
			if _, given := noted.Load(name); !given && !f.Hidden && f.Name != "help" {
				without = append(without, name)
			}
		})
	})
	if len(without) > 0 {
		return errors.New("no test gives these flags:\n\t" + strings.Join(without, "\n\t"))
	}
	return nil
}

func eachCommand(c *cobra.Command, fn func(*cobra.Command)) {
	fn(c)
	for _, sub := range c.Commands() {
		eachCommand(sub, fn)
	}
}

// What prints something of its own prints JSON, too.
func TestEveryVerbHasJSON(t *testing.T) {
	t.Parallel()
	others := []string{"sandbox exec", "sandbox run", "sandbox shell", "sandbox proxy", "sandbox ssh-config", "sandbox serve", "sandbox mcp"}
	eachCommand(newApp(nil, io.Discard, io.Discard).root(), func(c *cobra.Command) {
		if path := c.CommandPath(); c.Runnable() && !isGroup(c) && !slices.Contains(others, path) && c.Flags().Lookup("json") == nil {
			t.Errorf("%s has no --json", path)
		}
	})
}

// create, run and fork have one set of flags.
func TestCreateRunAndForkShareFlags(t *testing.T) {
	t.Parallel()
	shared := []string{"name", "image", "runtime", "mount", "volume", "port", "env", "tag", "vcpus", "memory", "timeout", "idle-timeout", "persistent", "user", "workdir", "network", "yes"}
	sources := []string{"git", "revision", "depth", "tarball", "strip", "from", "snapshot"}
	root := newApp(nil, io.Discard, io.Discard).root()
	for verb, want := range map[string][]string{"create": append(sources, shared...), "run": append(sources, shared...), "fork": shared} {
		c, _, err := root.Find([]string{verb})
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range want {
			if c.Flags().Lookup(name) == nil {
				t.Errorf("sandbox %s has no --%s", verb, name)
			}
		}
	}
}

// What is no mount is refused before the engine is asked.
func TestMountsAreCheckedFirst(t *testing.T) {
	t.Parallel()
	dir, file := t.TempDir(), filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for what, test := range map[string]struct {
		args []string
		says string
	}{
		"no target":                 {[]string{"--mount", dir}, "source:target[:ro|rw|rwcopy]"},
		"four parts":                {[]string{"--mount", dir + ":/a:ro:x"}, "source:target[:ro|rw|rwcopy]"},
		"unknown mode":              {[]string{"--mount", dir + ":/a:xx"}, "ro, rw or rwcopy"},
		"upper case":                {[]string{"--mount", dir + ":/a:RW"}, "ro, rw or rwcopy"},
		"empty mode":                {[]string{"--mount", dir + ":/a:"}, "ro, rw or rwcopy"},
		"no target of a volume":     {[]string{"--volume", "v"}, "name:target[:rw|ro]"},
		"copy of a volume":          {[]string{"--volume", "agent-sandbox-x:/a:rwcopy"}, "rw"},
		"relative":                  {[]string{"--mount", dir + ":a"}, `"a"`},
		"of a volume":               {[]string{"--volume", "agent-sandbox-x:a"}, `"a"`},
		"root":                      {[]string{"--mount", dir + ":/"}, `"/"`},
		"twice":                     {[]string{"--mount", dir + ":/a", "--mount", dir + ":/a/"}, "/a"},
		"of both kinds":             {[]string{"--mount", dir + ":/a", "--volume", "agent-sandbox-x:/b/../a"}, "/a"},
		"the workspace":             {[]string{"--mount", dir + ":/workspace"}, "reserved"},
		"missing":                   {[]string{"--mount", dir + "/none:/a"}, "no such file or directory"},
		"a file":                    {[]string{"--mount", file + ":/a"}, "must be a directory"},
		"all complaints at once":    {[]string{"--mount", dir + ":/a:xx", "--volume", "v"}, "name:target[:rw|ro]"},
		"the name is checked, too":  {[]string{"--mount", dir + ":/a", "--name", "../x"}, "../x"},
		"the port is checked, too":  {[]string{"--mount", dir + ":/a", "--port", "70000"}, "70000"},
		"the tag is checked, too":   {[]string{"--mount", dir + ":/a", "--tag", "=x"}, "tag"},
		"the GPUs are checked, too": {[]string{"--mount", dir + ":/a", "--gpus", "all,0"}, "--gpus: all stands alone"},
		"the limit is checked, too": {[]string{"--mount", dir + ":/a", "--vcpus", "0"}, "--vcpus"},
	} {
		for _, verb := range [][]string{{"create"}, {"run"}, {"fork", "a"}} {
			args := append(append([]string{"-H", "unix:///nowhere.sock"}, verb[0]), test.args...)
			if args = append(append(args, "--yes"), verb[1:]...); verb[0] == "run" {
				args = append(args, "--", "true")
			}
			code, _, errOut := call(t.Context(), "", args...)
			// A fork completes its settings with those of its source, and so asks for that first.
			later := verb[0] == "fork" && strings.Contains(errOut, "/nowhere.sock")
			if code != codeUsage || !strings.Contains(errOut, test.says) && !later {
				t.Errorf("%s: %s: code %d, %q, want %q", what, verb[0], code, errOut, test.says)
			}
			if strings.Contains(errOut, "/nowhere.sock") && !later {
				t.Errorf("%s: %s: the engine was asked first: %q", what, verb[0], errOut)
			}
		}
	}
}

// Every setting that create, run and fork have in common.
func TestFlagsOfCreateRunAndFork(t *testing.T) {
	enginetest.Need(t)
	t.Parallel()
	t.Run("source", func(t *testing.T) {
		source := harness.UniqueName(t)
		removeAtEnd(t, source)
		dir := t.TempDir()
		mustCall(t, "create", "--name", source, "-e", "OLD=1", "--tag", "old=1", "--mount", dir+":/old", "-y")
		if code, _, errOut := call(t.Context(), "", "fork", "--image", "Not An Image", source); code != codeUsage || !strings.Contains(errOut, "Not An Image") {
			t.Errorf("fork --image: code %d, %q", code, errOut)
		}
		for _, verb := range []string{"create", "run", "fork"} {
			t.Run(verb, func(t *testing.T) {
				t.Parallel()
				checkFlags(t, verb, source, dir)
			})
		}
	})
}

func checkFlags(t *testing.T, verb, source, dir string) {
	name := harness.UniqueName(t)
	removeAtEnd(t, name)
	args := []string{
		"-q", verb, "--name", name, "--port", "3000,8080", "-e", "A=1", "--env", "HOME", "--tag", "k=v", "--vcpus", "0.5", "--memory", "300m",
		"--timeout", "7d", "--idle-timeout", "2d", "--stop-timeout", "3s", "-u", "1000:1000", "--workdir", "/tmp", "--network", "deny-all", "--oci-runtime", "runc",
		"--pids-limit", "200", "--persistent=true", "--mount", dir + ":/copy", "--mount", dir + ":/read:ro", "--mount", dir + ":/write:rw", "--remote-mounts", "-y",
	}
	switch verb {
	case "fork":
		args = append(args, "--without-env", "OLD", "--without-tag", "old", "--without-mount", "/old", source, "--", "sleep", "1000")
	case "create":
		args = append(args, "--runtime", "node20", "--json", "--", "sleep", "1000")
	case "run":
		args = append(args, "--runtime", "node20", "--", "sh", "-c", "echo $A $HOME; id -u; pwd")
	}
	code, out, errOut := call(t.Context(), "", args...)
	if code != 0 || errOut != "" {
		t.Fatalf("sandbox %s: code %d, %q", strings.Join(args, " "), code, errOut)
	}
	switch verb {
	case "run":
		if want := "1 " + os.Getenv("HOME") + "\n1000\n/tmp\n"; out != want {
			t.Errorf("run = %q, want %q", out, want)
		}
	case "create":
		var st sandbox.Status
		if err := json.Unmarshal([]byte(out), &st); err != nil || st.Name != name || st.State != sandbox.StateRunning {
			t.Errorf("create --json = %s, %v", out, err)
		}
	case "fork":
		if out != name+"\n" {
			t.Errorf("fork = %q, want the name", out)
		}
	}
	var st sandbox.Status
	if err := json.Unmarshal([]byte(mustCall(t, "inspect", "--json", name)), &st); err != nil {
		t.Fatal(err)
	}
	set := st.Settings
	var modes []string
	for _, m := range set.Mounts {
		modes = append(modes, fmt.Sprintf("%s %s %s %t", m.Kind(), m.Target, m.Mode, m.Remote))
	}
	got := map[string]any{
		"runtime": value(set.Runtime), "ports": set.Ports, "env": st.Env, "tags": st.Tags, "vcpus": *set.VCPUs, "memory": *set.MemoryBytes, "timeout": *set.Timeout,
		"idle": *set.IdleTimeout, "stop": *set.StopTimeout, "network": st.Network.String(), "oci": *set.OCIRuntime, "pids": *set.PidsLimit, "persistent": *set.Persistent,
		"user": value(set.User), "workdir": *set.Workdir, "command": set.Command, "mounts": modes, "published": slices.Sorted(maps.Keys(st.Ports)),
	}
	want := map[string]any{
		"runtime": "node20", "ports": []int{3000, 8080}, "env": []string{"A", "HOME"}, "tags": map[string]string{"k": "v"}, "vcpus": 0.5, "memory": int64(300 << 20),
		"timeout": 7 * 24 * time.Hour, "idle": 48 * time.Hour, "stop": 3 * time.Second, "network": "deny-all", "oci": "runc", "pids": 200, "persistent": true,
		"user": "1000:1000", "workdir": "/tmp", "command": []string{"sleep", "1000"}, "mounts": []string{"copy /copy rwcopy false", "bind /read ro true", "bind /write rw true"},
		"published": []uint16{3000, 8080},
	}
	if verb == "fork" { // with another image it takes long: the engine compares all files
		want["runtime"] = ""
	}
	if verb == "run" { // --env, --workdir and --user are those of the command alone
		maps.Copy(want, map[string]any{"env": []string(nil), "user": "", "workdir": "/workspace", "command": []string(nil)})
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("inspect after %s (-want +got):\n%s", verb, diff)
	}
}

// Each source of the first files, and what excludes it.
func TestFlagsOfSources(t *testing.T) {
	enginetest.Need(t)
	t.Parallel()
	repository := t.TempDir()
	harness.Shell(t, `cd "$0" && git init -q -b main . && git config user.email a@b.test && git config user.name a &&
		echo one >file && git add . && git commit -q -m one && git tag v1 && echo two >file && git commit -q -a -m two`, repository)
	archive := filepath.Join(t.TempDir(), "a.tar")
	if err := exec.Command("tar", "-cf", archive, "-C", filepath.Dir(repository), filepath.Base(repository)+"/file").Run(); err != nil {
		t.Fatal(err)
	}
	name := harness.UniqueName(t)
	removeAtEnd(t, name)
	if got := mustCall(t, "create", "--name", name, "--git", repository, "--revision", "v1", "--depth", "1"); got != name+"\n" {
		t.Errorf("create --git = %q", got)
	}
	if got := mustCall(t, "exec", name, "cat", "file"); got != "one\n" {
		t.Errorf("the clone of v1 has %q", got)
	}
	for depth, want := range map[string]string{"0": "2\n", "1": "1\n"} {
		if got := mustCall(t, "run", "--git", repository, "--depth", depth, "--", "git", "rev-list", "--count", "HEAD"); got != want {
			t.Errorf("with --depth %s the clone has %q commits, want %q", depth, got, want)
		}
	}
	id := strings.TrimSpace(mustCall(t, "snapshot", "create", name))
	removeSnapshotAtEnd(t, id)
	for what, flags := range map[string][]string{
		"git": {"--git", repository, "--revision", "v1", "--depth", "1"}, "snapshot": {"--snapshot", id},
		"tarball": {"--tarball", archive, "--strip", "1"}, "directory": {"--from", repository},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			want := "two\n"
			if what == "git" || what == "snapshot" {
				want = "one\n"
			}
			code, out, errOut := call(t.Context(), "", append(append([]string{"run"}, flags...), "--", "cat", "file")...)
			if code != 0 || out != want {
				t.Errorf("run %v: code %d, %q, want %q", flags, code, out, want)
			}
			// Stderr is no terminal: a line says what is cloned or copied.
			if !strings.HasPrefix(errOut, "sandbox: source: ") && !strings.HasPrefix(errOut, "sandbox: copy\n") && what != "snapshot" || strings.Contains(errOut, "\x1b") {
				t.Errorf("run %v prints %q", flags, errOut)
			}
			if what == "git" || what == "snapshot" {
				return
			}
			made := harness.UniqueName(t)
			removeAtEnd(t, made)
			mustCall(t, append([]string{"create", "--name", made}, flags...)...)
			if got := mustCall(t, "exec", made, "cat", "file"); got != want {
				t.Errorf("create %v has %q, want %q", flags, got, want)
			}
		})
	}
}

// The least memory that is accepted is enough for a session.
func TestTheLeastMemoryIsEnough(t *testing.T) {
	enginetest.Need(t)
	t.Parallel()
	for size := 1; ; size++ {
		code, out, errOut := call(t.Context(), "", "run", "-q", "--memory", fmt.Sprintf("%dm", size), "--", "sh", "-c", "echo runs")
		if code == codeUsage && size < 64 {
			continue
		}
		if code != 0 || out != "runs\n" {
			t.Errorf("--memory %dm: code %d, %q, %q", size, code, out, errOut)
		}
		return
	}
}

// Flags whose effect no other test sees.
func TestFlagsOfOneSandbox(t *testing.T) {
	enginetest.Need(t)
	t.Parallel()
	orphan := preservedVolume(t)
	name := harness.UniqueName(t)
	removeAtEnd(t, name)
	mustCall(t, "create", "--name", name, "--", "sh", "-c", "echo one; echo two; exec sleep 1000")
	harness.Eventually(t, "the log has both lines", func() bool { return mustCall(t, "logs", name) == "one\ntwo\n" })
	if got := mustCall(t, "logs", "--tail", "1", name); got != "two\n" {
		t.Errorf("logs --tail 1 = %q, want the last line", got)
	}
	if got := mustCall(t, "logs", "--since", time.Now().Add(time.Hour).Format(time.RFC3339), name); got != "" {
		t.Errorf("logs since in an hour = %q, want none", got)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	mustCall(t, "cp", "-u", "1234:1235", file, name+":/tmp/file")
	if got := mustCall(t, "exec", name, "--", "stat", "-c", "%u:%g", "/tmp/file"); got != "1234:1235\n" {
		t.Errorf("a file copied with -u 1234:1235 is owned by %q", got)
	}
	first := strings.TrimSpace(mustCall(t, "snapshot", "create", name))
	removeSnapshotAtEnd(t, first)
	last := strings.TrimSpace(mustCall(t, "snapshot", "create", "--keep-last", "1", name))
	removeSnapshotAtEnd(t, last)
	if got := mustCall(t, "snapshot", "list", "--sandbox", name); strings.Contains(got, first) || !strings.Contains(got, last) {
		t.Errorf("snapshot list after one with --keep-last 1 = %q, want %s alone", got, last)
	}
	if got := mustCall(t, "volume", "cleanup", "--yes", "--min-age", "1d", "--name", orphan); got != "freed 0 B\n" || !listed(t, orphan).Orphaned {
		t.Errorf("volume cleanup --min-age 1d of a new volume = %q, want it to stay", got)
	}
}
