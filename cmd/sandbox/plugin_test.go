package main

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// docker is a command of the machine's docker, whose one plug-in is this program.
func docker(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	config := t.TempDir()
	if err := os.Mkdir(filepath.Join(config, "cli-plugins"), 0o755); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(self, filepath.Join(config, "cli-plugins", plugin)); err != nil {
		t.Fatal(err)
	}
	c := exec.CommandContext(t.Context(), "docker", args...)
	c.Env = append(os.Environ(), "DOCKER_CONFIG="+config, asProgram+"=1")
	c.WaitDelay = harness.CallBound
	return c
}

func TestDockerRunsSandbox(t *testing.T) {
	enginetest.Need(t)
	t.Parallel()
	var info struct {
		ClientInfo struct{ Plugins []map[string]any }
	}
	out, err := docker(t, "info", "--format", "{{json .}}").Output()
	if err != nil || json.Unmarshal(out, &info) != nil {
		t.Fatalf("docker info: %v, %s", err, out)
	}
	i := slices.IndexFunc(info.ClientInfo.Plugins, func(p map[string]any) bool { return p["Name"] == "sandbox" })
	if i < 0 || info.ClientInfo.Plugins[i]["Err"] != nil || info.ClientInfo.Plugins[i]["SchemaVersion"] != "0.1.0" {
		t.Fatalf("the plug-ins of docker: %v", info.ClientInfo.Plugins)
	}
	c := docker(t, "--log-level", "error", "sandbox", "run", "--quiet", "-i", "--", "sh", "-c", "cat; echo err >&2; exit 7")
	c.Stdin = strings.NewReader("input")
	var stdout, stderr bytes.Buffer
	c.Stdout, c.Stderr = &stdout, &stderr
	if err := c.Run(); c.ProcessState.ExitCode() != 7 || stdout.String() != "input" || stderr.String() != "err\n" {
		t.Errorf("docker sandbox run: %v, %q, %q", err, stdout.String(), stderr.String())
	}
	// Flags of docker choose the engine.
	out, err = docker(t, "--host", "unix:///none.sock", "sandbox", "list").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "/none.sock") {
		t.Errorf("docker --host sandbox list: %v, %s", err, out)
	}
	out, err = docker(t, "--context", "none", "sandbox", "list").CombinedOutput()
	if err == nil || !strings.Contains(string(out), `none`) {
		t.Errorf("docker --context sandbox list: %v, %s", err, out)
	}
	out, err = docker(t, "__complete", "sandbox", "ver").Output()
	if err != nil || !strings.HasPrefix(string(out), "version\t") {
		t.Errorf("completion: %v, %q", err, out)
	}
}

// Docker passes no signal on to a plug-in, but closes a connection.
func TestDockerEndsSandbox(t *testing.T) {
	enginetest.Need(t)
	t.Parallel()
	name := harness.UniqueName(t)
	client := harness.NewClient(t)
	c := docker(t, "sandbox", "run", "--quiet", "--tag", "test="+name, "--", "sh", "-c", "echo runs; exec sleep 1000")
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var stderr bytes.Buffer
	c.Stderr = &stderr
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	tagged := func() []sandbox.Info {
		all, err := client.List(t.Context(), sandbox.ListOptions{Tags: map[string]string{"test": name}})
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	line := make([]byte, 5)
	if n, err := io.ReadFull(out, line); err != nil || string(line) != "runs\n" {
		t.Fatalf("docker sandbox run wrote %q: %v, %v, %q", line[:n], err, c.Wait(), &stderr)
	}
	if len(tagged()) != 1 {
		t.Errorf("the sandbox of docker sandbox run: %v", tagged())
	}
	if err := c.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := c.Wait(); err == nil {
		t.Error("docker sandbox run that gets a signal: exit code 0")
	}
	harness.Eventually(t, "its sandbox is gone", func() bool {
		return len(tagged()) == 0
	})
}

func TestPluginNeedsItsName(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]bool{"/usr/libexec/docker/cli-plugins/docker-sandbox": true, "sandbox": false, "docker-sandboxes": false} {
		if isPlugin(name) != want {
			t.Errorf("%s is a plug-in: %t, want %t", name, !want, want)
		}
	}
	if code, _, errOut := call(t.Context(), "", "docker-cli-plugin-metadata"); code != codeUsage {
		t.Errorf("sandbox docker-cli-plugin-metadata: %d, %s", code, errOut)
	}
	for _, args := range [][]string{nil, {"ls"}, {"--tlscacert", "a", "sandbox", "list"}, {"--host"}} {
		if got, err := pluginArgs(args); err == nil {
			t.Errorf("%q is taken as %q", args, got)
		}
	}
}
