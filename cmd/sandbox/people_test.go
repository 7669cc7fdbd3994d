package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

func TestDetailsAreForPeople(t *testing.T) {
	t.Parallel()
	st := sandbox.Status{Reason: "timeout", Source: "directory /src", Workspace: sandbox.Volume{Name: "w", Size: "1.0 KB", SharedBytes: 2048}}
	st.Name, st.ID, st.State, st.Image, st.Location = "n\x1b[2J", "id", sandbox.StateStopped, "node:20", "local"
	st.CreatedAt = time.Now().Add(-time.Hour)
	st.Ports = map[uint16]netip.AddrPort{80: netip.MustParseAddrPort("127.0.0.1:8080")}
	st.Settings = sandbox.Settings{Workdir: new("/workspace"), VCPUs: new(1.5), MemoryBytes: new(int64(2 << 30)), PidsLimit: new(1), Persistent: new(true),
		StopTimeout: new(time.Minute), Mounts: []sandbox.Mount{{Source: "/a", Target: "/x", Mode: sandbox.RO}, {Volume: "v", Target: "/y", Mode: sandbox.RW}}}
	st.Pending = []string{"env", "ports"}
	var out bytes.Buffer
	if err := printDetails(&out, st); err != nil {
		t.Fatal(err)
	}
	var lines []string
	for line := range strings.Lines(out.String()) {
		lines = append(lines, strings.Join(strings.Fields(line), " "))
	}
	want := []string{`Name "n\x1b[2J"`, "ID id", "Status stopped (timeout)", "Created " + at(st.CreatedAt) + " (60m ago)", "Engine local", "Image node:20",
		"Source directory /src", "User root", "Directory /workspace", "Limits 1.5 CPUs, 2.0 GB of memory, 1 process", "Timeouts 1m0s to stop", "Kept until it is deleted",
		"Network deny-all", "Ports 127.0.0.1:8080->80", "Workspace volume w, 1.0 KB and 2.0 KB shared with a snapshot",
		"Mounts /x: bind of /a (ro)", "/y: existing volume v (rw)", "Next session env, ports"}
	if diff := cmp.Diff(want, lines); diff != "" {
		t.Errorf("details (-want +got):\n%s", diff)
	}
}

// Errors name flags, where the library names options, and every line says who speaks.
func TestErrorsAreInTheCommandLinesWords(t *testing.T) {
	t.Parallel()
	err := errors.Join(errors.New("WithPorts: 99999 is not a port\nWithVCPUs and WithOther"), errors.New("sandbox: create: WithStopTimeout: 0"))
	const want = "sandbox: --port: 99999 is not a port\nsandbox: --vcpus and WithOther\nsandbox: create: --stop-timeout: 0"
	if got := errorText(err); got != want {
		t.Errorf("errorText = %q, want %q", got, want)
	}
}

// A hint names the sandbox, and there is none of a session that ended during a call.
func TestHintsNameTheSandbox(t *testing.T) {
	enginetest.Need(t)
	t.Parallel()
	if got := hintsOf(&sandbox.Error{Op: "processes", Name: "box", Err: sandbox.ErrNotRunning}); !slices.Equal(got, []string{"start it with sandbox start box"}) {
		t.Errorf("of a stopped sandbox: %q", got)
	}
	for what, err := range map[string]error{
		"without a name":         fmt.Errorf("it ends: %w", sandbox.ErrNotRunning),
		"of none without a name": fmt.Errorf("it ends: %w", sandbox.ErrNotFound),
	} {
		if got := hintsOf(err); got != nil {
			t.Errorf("%s: %q, want none", what, got)
		}
	}
	code, _, errOut := call(t.Context(), "", "--quiet", "run", "--timeout", "1s", "--", "sleep", "1000")
	if code == 0 || strings.Count(errOut, "\n") != 1 || strings.Contains(errOut, "sandbox start") {
		t.Errorf("run whose session ends: code %d, %q, want the error alone", code, errOut)
	}
}

// Every option of the library that a flag sets has the flag's name in errors.
func TestOptionsHaveTheNamesOfFlags(t *testing.T) {
	t.Parallel()
	api, err := os.ReadFile("../../testdata/api/sandbox.txt")
	if err != nil {
		t.Fatal(err)
	}
	// What no flag sets, and what this program gives rightly.
	const others = " WithAudit WithAuthorities WithDNS WithEmulation WithID WithLimits WithLogger WithNewPrivileges WithNodeHost WithOvercommit WithProgress" +
		" WithRegistryAuth WithRuntimes WithSettings WithSourceAddresses WithTransform WithoutResume WithoutStop "
	names := map[string]bool{}
	verbs(func(c *cobra.Command) {
		for _, set := range []*pflag.FlagSet{c.LocalFlags(), c.PersistentFlags()} {
			set.VisitAll(func(f *pflag.Flag) { names["--"+f.Name] = true })
		}
	})
	for _, m := range regexp.MustCompile(`(?m)^func (With\w+)\(`).FindAllSubmatch(api, -1) {
		option := string(m[1])
		flag, _, _ := strings.Cut(flagOf[option], ",")
		if known := names[flag] || flag == "COMMAND"; known == strings.Contains(others, " "+option+" ") {
			t.Errorf("errors call %s %q, which is a flag: %v", option, flagOf[option], known)
		}
	}
}

// A wrong value is a matter of usage in each verb, found before the engine is asked, and no error names what
// the caller has not written.
func TestWrongValuesAreUsage(t *testing.T) {
	t.Parallel()
	for what, args := range map[string][]string{
		"a port": {"create", "--port", "99999"}, "memory": {"create", "--memory", "1k"}, "a policy": {"create", "--network", "deny"},
		"two sources": {"run", "--git", "x", "--from", ".", "--", "true"},
		"no change":   {"update", "x"}, "a name": {"inspect", "../x"}, "two paths": {"cp", "a", "b"}, "depth alone": {"create", "--depth", "1"},
		"a mount": {"create", "--mount", "x"}, "a role": {"volume", "cleanup", "--role", "x", "--yes"},
		"a port of run": {"run", "--port", "99999", "--", "true"}, "CPUs of run": {"run", "--vcpus", "-1", "--", "true"}, "a name of exec": {"exec", "../x", "true"},
		"a name of shell": {"shell", "../x"}, "a signal": {"kill", "-s", "NONE", "x", "y"}, "a policy of a sandbox": {"network", "x", "deny"}, "a template": {"list", "--format", "{{"},
		"no interval": {"top", "--interval", "0s"}, "a time": {"logs", "--since", "noon", "x"}, "limits of an agent": {"mcp", "--count", "0"}, "an address": {"serve", "--listen", "x"},
		"a variable without a name": {"exec", "-e", "=s3cr3t", "x", "true"}, "an empty variable": {"exec", "-e", "", "x", "true"}, "a line break in a variable's name": {"shell", "-e", "s3cr3t\ns3cr3t", "x"},
		"a variable of run": {"run", "-e", "=s3cr3t", "--", "true"}, "a variable of create": {"create", "-e", ""}, "a variable of fork": {"fork", "-e", "=s3cr3t", "x"},
		"a variable of update": {"update", "-e", "", "x"}, "a negative time": {"exec", "--timeout", "-1s", "x", "true"},
		"a negative expiry": {"snapshot", "create", "--expiry", "-1s", "x"},
		"an empty command":  {"exec", "x", "--", ""}, "an empty command of run": {"run", "--", ""}, "an empty command of a detached one": {"exec", "-d", "x", ""},
		"an empty source": {"create", "--from", ""}, "an empty repository": {"run", "--git", "", "--", "true"}, "an empty archive": {"create", "--tarball="}, "an empty snapshot": {"create", "--snapshot", ""},
		"an empty path": {"cp", "", "x:/y"}, "an empty target": {"cp", "x:/y", ""}, "an empty image of an agent": {"mcp", "--image", ""},
		"no token file": {"serve", "--token-file", ""}, "no socket": {"serve", "--socket", ""}, "no host": {"serve", "--allow-host", ""}, "no domain": {"serve", "--preview-domain", ""},
		"a host with a space": {"serve", "--allow-host", "a b"}, "a URL for a host": {"serve", "--allow-host", "http://x"}, "a host of two": {"serve", "--allow-host", "ok.test,x..y"},
		"a domain with a space": {"serve", "--preview-domain", "a b"}, "a URL for a domain": {"serve", "--preview-domain", "http://x"}, "a domain with a port": {"serve", "--preview-domain", "localhost:80"},
		"an address for a domain": {"serve", "--preview-domain", "127.0.0.1"}, "a domain like a flag": {"serve", "--preview-domain", "-x"}, "a verb behind --": {"--", "list"},
		"a policy and a sandbox": {"network", "check", "--policy", "deny-all", "--sandbox", "a", "x"},
	} {
		code, _, errOut := call(t.Context(), "", append([]string{"-H", "unix:///nowhere.sock"}, args...)...)
		if code != codeUsage || strings.Contains(errOut, "With") || strings.Contains(errOut, `create "`) || strings.Contains(errOut, "nowhere") || strings.Contains(errOut, "s3cr3t") {
			t.Errorf("%s: code %d, %q", what, code, errOut)
		}
		for line := range strings.Lines(errOut) {
			if !strings.HasPrefix(line, "sandbox: ") {
				t.Errorf("%s: the line %q does not say who speaks", what, line)
			}
		}
	}
}

// Who is at a terminal is asked before something is lost, and a script is not.
func TestLossIsConfirmedOnATerminal(t *testing.T) {
	t.Parallel()
	for what, test := range map[string]struct {
		yes, interactive bool
		answer           string
		want             error
		asks             string
	}{
		"yes":      {interactive: true, answer: "y\n", asks: "sandbox a, its volumes\nsandbox b, its volumes\nDelete for good? [y/n] "},
		"no":       {interactive: true, answer: "n\n", want: errCancelled, asks: "sandbox a, its volumes\nsandbox b, its volumes\nDelete for good? [y/n] "},
		"--yes":    {interactive: true, yes: true},
		"a script": {answer: "n\n"},
	} {
		var out bytes.Buffer
		a := &app{stdin: strings.NewReader(test.answer), stderr: &out, interactive: func(any) bool { return test.interactive }}
		if err := a.confirmLoss(t.Context(), test.yes, "sandbox, its volumes", []string{"a", "b"}); !errors.Is(err, test.want) || out.String() != test.asks {
			t.Errorf("%s: %v, asked %q, want %v, %q", what, err, out.String(), test.want, test.asks)
		}
	}
}

// Every verb that changes something says so in a line, which --quiet leaves out.
func TestVerbsSayWhatTheyDid(t *testing.T) {
	enginetest.Need(t)
	t.Parallel()
	name := harness.UniqueName(t)
	removeAtEnd(t, name)
	mustCall(t, "create", "--name", name)
	for _, args := range [][]string{{"describe", name, name}, {"fork", name, "--name", name + "-2"}} {
		if code := run(t.Context(), args, nil, full{}, io.Discard); code != codeFailed {
			t.Errorf("%q to a full disk: code %d, want %d", args, code, codeFailed)
		}
	}
	mustCall(t, "delete", "--delete-volumes", name+"-2") // it was made
	file := harness.HostDir(t, map[string]string{"f": "12345"}) + "/f"
	id := strings.TrimSpace(mustCall(t, "snapshot", "create", name))
	for _, test := range []struct {
		want string
		args []string
	}{
		{"copied 1 file and 0 directories, 5 B", []string{"cp", file, name + ":f"}},
		{"sandbox " + name + ": updated; from the next session: ports", []string{"update", "--port", "8080", name}},
		{"sandbox " + name + ": network policy deny-all", []string{"network", name, "deny-all"}},
		{"sandbox " + name + ": stopped", []string{"stop", name}},
		{"sandbox " + name + ": running", []string{"start", name}},
		{"sandbox " + name + ": updated", []string{"update", "--tag", "a=b", name}},
		{"sandbox " + name + ": its files are those of snapshot " + id, []string{"rollback", "--yes", name, id}},
		{name, []string{"list", "--quiet", "--prefix", name}},
		{id, []string{"snapshot", "list", "--quiet", "--sandbox", name}},
		{"snapshot " + id + ": deleted", []string{"snapshot", "delete", "--yes", id}},
	} {
		if code, out, errOut := call(t.Context(), "", test.args...); code != 0 || out != test.want+"\n" {
			t.Errorf("%q: code %d, %q, want %q; stderr %q", test.args, code, out, test.want, errOut)
		}
	}
	for _, verb := range []string{"stop", "start"} {
		if out := mustCall(t, verb, name); out != "" {
			t.Errorf("%s --quiet says %q", verb, out)
		}
	}
	code, out, _ := call(t.Context(), "", "describe", name)
	if code != 0 || !strings.Contains(out, "Network") || !strings.Contains(out, name) {
		t.Errorf("describe: code %d, %q", code, out)
	}
	if code, out, errOut := call(t.Context(), "", "inspect", name, name+"-none", name); code != codeFailed || strings.Count(out, `"logsEndpoint"`) != 2 || !strings.Contains(errOut, name+"-none") {
		t.Errorf("inspect of three: code %d, %q, %q", code, out, errOut)
	}
	if out := mustCall(t, "describe", "--json", name); !strings.HasPrefix(out, "[") {
		t.Errorf("describe --json: %q", out)
	}
	workspace := details(t, name).Workspace.Name
	if code, out, _ := call(t.Context(), "", "delete", "--yes", name); code != 0 || !strings.HasPrefix(out, fmt.Sprintf("sandbox %s: deleted\nvolume ", name)) {
		t.Errorf("delete: code %d, %q", code, out)
	}
	if out := mustCall(t, "volume", "delete", "--yes", workspace); out != "volume "+workspace+": deleted\n" {
		t.Errorf("volume delete: %q", out)
	}
}
