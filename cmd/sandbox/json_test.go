package main

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// decoded is the JSON that a subcommand prints, which has the fields of T and no others.
func decoded[T any](t *testing.T, args ...string) (v T) {
	t.Helper()
	out := mustCall(t, args...)
	d := json.NewDecoder(strings.NewReader(out))
	d.DisallowUnknownFields()
	if err := d.Decode(&v); err != nil || d.More() {
		t.Fatalf("sandbox %s is no JSON of a %T: %v\n%s", strings.Join(args, " "), v, err, out)
	}
	return v
}

// What the verbs print as JSON is what the library returns, under its names.
func TestJSONIsTheLibrarysOwn(t *testing.T) {
	enginetest.Need(t)
	t.Parallel()
	volume, name := preservedVolume(t), harness.UniqueName(t)
	removeAtEnd(t, name, name+"-f", name+"-n-1", name+"-n-2")
	dir := harness.HostDir(t, map[string]string{"file": "text"})

	if st := decoded[sandbox.Status](t, "create", "--json", "--name", name, "--network", "deny-all", "--port", "3000"); st.Name != name || st.State != sandbox.StateRunning || st.LogsEndpoint == "" {
		t.Errorf("create: %+v", st)
	}
	if list := decoded[[]sandbox.Info](t, "list", "--json", "--status", "running", "--prefix", name); len(list) != 1 || list[0].Ports[3000].Port() == 0 {
		t.Errorf("list: %+v", list)
	}
	if r := decoded[sandbox.CopyReport](t, "cp", "--json", "-u", "1000:1000", dir, name+":/tmp/copied"); r.Files != 1 {
		t.Errorf("cp: %+v", r)
	}
	mustCall(t, "exec", name, "--", "node", "-e", "fetch('http://192.0.2.99/').catch(e => 0)")
	if list := decoded[[]sandbox.Egress](t, "egress", "--json", name); len(list) != 1 || list[0].Allowed || list[0].Port != 80 {
		t.Errorf("egress: %+v", list)
	}
	if table := mustCall(t, "egress", name); !strings.Contains(table, "  blocked  ") || !strings.Contains(table, "192.0.2.99:80") {
		t.Errorf("egress = %s", table)
	}
	if n := decoded[map[string]string](t, "network", "--json", name); !reflect.DeepEqual(n, map[string]string{"network": "deny-all"}) {
		t.Errorf("network: %v", n)
	}
	if st := decoded[sandbox.Status](t, "network", "--json", name, "allow=example.com"); st.Network.String() != "allow=example.com" {
		t.Errorf("network with a policy: %v", st.Network)
	}
	if got := mustCall(t, "network", name); got != "allow=example.com\n" {
		t.Errorf("network = %q", got)
	}
	changes := []string{"--vcpus", "0.5", "--memory", "600m", "--timeout", "1d", "--idle-timeout", "1h", "--stop-timeout", "5s", "--network", "public-only", "--tag", "a=b", "-e", "A=1", "--port", "4000"}
	if st := decoded[sandbox.Status](t, append([]string{"update", "--json", name}, changes...)...); *st.Settings.MemoryBytes != 600<<20 || st.Tags["a"] != "b" || st.Network.String() != "public-only" {
		t.Errorf("update: %+v", st)
	}
	for _, args := range [][]string{
		{"--mount", dir + ":/there", "--yes"}, {"--mount", dir + ":/there:ro", "--remote-mounts", "--volume", volume + ":/kept", "-y"}, {"--without-mount", "/there", "--without-mount", "/kept"},
	} {
		st := decoded[sandbox.Status](t, append([]string{"update", "--json", name}, args...)...)
		if want := args[0] == "--mount"; (len(st.Settings.Mounts) > 0 && st.Settings.Mounts[0].Target == "/there") != want {
			t.Errorf("update %v: the mounts are %v", args, st.Settings.Mounts)
		}
	}
	snap := decoded[sandbox.Snapshot](t, "snapshot", "create", "--json", "--name", "first", "--keep-last", "2", "--expiry", "7d", name)
	removeSnapshotAtEnd(t, snap.ID)
	if snap.Sandbox != name || snap.ExpiresAt.Sub(snap.CreatedAt).Hours() != 7*24 {
		t.Errorf("snapshot create: %+v", snap)
	}
	snap.Copied = nil // only its creation tells
	if shown := decoded[sandbox.Snapshot](t, "snapshot", "show", "--json", snap.ID); !reflect.DeepEqual(shown, snap) {
		t.Errorf("snapshot show: %+v, want %+v", shown, snap)
	}
	if list := decoded[[]sandbox.Snapshot](t, "snapshot", "list", "--json", "--sandbox", name, "--name", "first"); len(list) != 1 || !reflect.DeepEqual(list[0], snap) {
		t.Errorf("snapshot list: %+v", list)
	}
	if st := decoded[sandbox.Status](t, "rollback", "--json", name, snap.ID); st.Name != name || st.State != sandbox.StateRunning {
		t.Errorf("rollback: %+v", st)
	}
	// Another policy than the existing sandbox has is an error, and says how to change it.
	if code, _, errOut := call(t.Context(), "", "run", "--name", name, "--network", "allow-all", "--", "true"); code != codeSandboxFailed ||
		!strings.Contains(errOut, `not "allow-all": change it, or leave --network out`+"\n"+"sandbox: see sandbox network "+name+",") || strings.Contains(errOut, "Update") {
		t.Errorf("run with another policy: code %d, %q", code, errOut)
	}
	if st := decoded[sandbox.Status](t, "fork", "--json", "--name", name+"-f", name); st.Source != "fork of "+name {
		t.Errorf("fork: %+v", st)
	}
	if list := decoded[[]sandbox.Status](t, "fork", "--json", "--count", "2", "--name", name+"-n", name); len(list) != 2 || list[1].Name != name+"-n-2" {
		t.Errorf("fork --count 2: %+v", list)
	}
	if done := decoded[[]map[string]string](t, "snapshot", "delete", "--json", snap.ID); !reflect.DeepEqual(done, []map[string]string{{"id": snap.ID, "status": "deleted"}}) {
		t.Errorf("snapshot delete: %v", done)
	}
	second := decoded[sandbox.Snapshot](t, "snapshot", "create", "--json", name).ID
	removeSnapshotAtEnd(t, second)
	if done := decoded[[]deletion](t, "delete", "--json", "--delete-volumes", "--snapshots", name); len(done) != 1 || done[0].Name != name || len(done[0].Volumes) != 1 ||
		done[0].Volumes[0].Status != "deleted" || len(done[0].Snapshots) != 1 || done[0].Snapshots[0].ID != second || done[0].Snapshots[0].Status != "deleted" {
		t.Errorf("delete: %+v", done)
	}
	if health := decoded[map[string]any](t, "health", "--json"); health["healthy"] != true || health["apiVersion"] == nil || health["networkPolicy"] == nil || health["storageDriver"] == nil {
		t.Errorf("health: %v", health)
	}
	if tree := decoded[[]map[string]any](t, "snapshot", "tree", "--json"); tree == nil {
		t.Error("snapshot tree is null")
	}
	decoded[[]sandbox.Volume](t, "volume", "orphans", "--json")
	code, out, _ := call(t.Context(), "", "conform", "--json", "--image", sandbox.DefaultImage, "--only", "no such check")
	if code != 0 || !strings.Contains(out, `"results": [`) {
		t.Errorf("conform --json: code %d, %s", code, out)
	}
}

// JSON has no character that controls a terminal, and says the same.
func TestJSONIsGraphic(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"plain 日本 é", "\x1b]0;\x07", "\u009b2J", "\u202e", "\u200b", "\x7f", "\U000e0001\U0001f600", "a\nb\tc", `<&">`} {
		var out bytes.Buffer
		if err := printJSON(&out, []string{text}); err != nil {
			t.Fatal(err)
		}
		var got []string
		if err := json.Unmarshal(out.Bytes(), &got); err != nil || got[0] != text {
			t.Errorf("%q became %s: %q, %v", text, out.String(), got, err)
		}
		if graphicLines(out.String()) != out.String() {
			t.Errorf("%q became %q, which is not graphic", text, out.String())
		}
	}
}

// A volume that is too large is warned of, beside what is printed.
func TestLargeVolumesAreWarnedOf(t *testing.T) {
	t.Parallel()
	v := sandbox.Volume{Name: "agent-sandbox-a", Size: "12.0 GB", SizeBytes: 12 << 30, Warning: "disk usage is 12.0 GB, more than 10.0 GB"}
	var out, errOut bytes.Buffer
	a := newApp(nil, &out, &errOut)
	if err := a.printStatus(sandbox.Status{Workspace: v}); err != nil {
		t.Fatal(err)
	}
	if err := a.printVolumes([]sandbox.Volume{v, {Name: "agent-sandbox-b"}}); err != nil {
		t.Fatal(err)
	}
	const want = "sandbox: volume agent-sandbox-a: disk usage is 12.0 GB, more than 10.0 GB\n"
	if errOut.String() != want+want || strings.Count(out.String(), `"warning": "disk usage`) != 1 || !strings.Contains(out.String(), "12.0 GB  ") {
		t.Errorf("printed %q and the warnings %q, want %q twice", out.String(), errOut.String(), want)
	}
}

func TestEmptyListIsAnArray(t *testing.T) {
	for _, items := range [][]string{nil, {}} {
		var out strings.Builder
		if err := printJSONList(&out, items); err != nil || out.String() != "[]\n" {
			t.Errorf("an empty list in JSON is %q, %v", out.String(), err)
		}
	}
}
