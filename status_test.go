package sandbox_test

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/claim"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

var update = flag.Bool("update", false, "rewrite testdata/results.json")

// The names in JSON are a contract: testdata/results.json has each result with all its fields
// set. A new field belongs there, and a name never changes.
func TestResultsHaveStableNamesInJSON(t *testing.T) {
	all := map[string]any{}
	for _, v := range []any{
		&sandbox.Info{}, &sandbox.Status{}, &sandbox.Settings{}, &sandbox.Volume{}, &sandbox.Mount{}, &sandbox.Usage{}, &sandbox.Snapshot{}, &sandbox.SnapshotNode{},
		&sandbox.VolumeOutcome{}, &sandbox.DeleteReport{}, &sandbox.CleanupReport{}, &sandbox.MoveReport{}, &sandbox.PruneReport{}, &sandbox.CopyReport{},
		&sandbox.LogLine{}, &sandbox.ProcessInfo{}, &sandbox.Egress{}, &sandbox.Health{},
		&sandbox.NodeStatus{}, &sandbox.Progress{}, &sandbox.CopyStatus{}, &sandbox.FileStat{}, &sandbox.Defaults{},
	} {
		setFields(t, reflect.ValueOf(v).Elem())
		all[strings.TrimPrefix(fmt.Sprintf("%T", v), "*sandbox.")] = v
		text, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		back := reflect.New(reflect.TypeOf(v).Elem()).Interface()
		if err := json.Unmarshal(text, back); err != nil || !reflect.DeepEqual(v, back) {
			t.Errorf("decoded it is %+v, %v, want %+v", back, err, v)
		}
	}
	got, err := json.MarshalIndent(all, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	const file = "testdata/results.json"
	if *update {
		if err := os.WriteFile(file, append(got, '\n'), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)+"\n"); diff != "" {
		t.Errorf("go test -run TestResultsHaveStableNamesInJSON -update . rewrites %s, which differs (-want +got):\n%s", file, diff)
	}
}

func TestSupportInJSONHasTheReasons(t *testing.T) {
	for _, test := range []struct {
		support sandbox.Support
		want    string
	}{
		{sandbox.Support{NetworkPolicy: errors.New("no nftables"), Reflink: errors.New("ext4"), Limits: errors.New("no cgroups"), Runtimes: []string{"runc", "runsc"}},
			`{"networkPolicy":"no nftables","reflink":"ext4","limits":"no cgroups","runtimes":["runc","runsc"]}`},
		{sandbox.Support{Runtimes: []string{"runc"}}, `{"runtimes":["runc"]}`},
	} {
		if got, err := json.Marshal(test.support); err != nil || string(got) != test.want {
			t.Errorf("got %s, %v, want %s", got, err, test.want)
		}
	}
}

// setFields gives every exported field of v a value.
func setFields(t *testing.T, v reflect.Value) {
	t.Helper()
	for _, known := range []any{
		time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC), 1500 * time.Millisecond, netip.MustParseAddr("192.0.2.1"),
		netip.MustParseAddrPort("127.0.0.1:4000"), sandbox.DenyAll(),
		[]*sandbox.SnapshotNode{{Kind: sandbox.SandboxKind, Children: []*sandbox.SnapshotNode{}}}, // of a SnapshotNode, too
	} {
		if v.Type() == reflect.TypeOf(known) {
			v.Set(reflect.ValueOf(known))
			return
		}
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			setFields(t, v.Field(i))
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		setFields(t, v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		setFields(t, v.Index(0))
	case reflect.Map:
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		setFields(t, key)
		setFields(t, value)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, value)
	case reflect.String:
		v.SetString("s")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Float64:
		v.SetFloat(1.5)
	case reflect.Int, reflect.Int64:
		v.SetInt(2)
	case reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(3)
	default:
		t.Fatalf("no value for a %v", v.Type())
	}
}

func TestStatesOfTheEngineHaveOneWord(t *testing.T) {
	for word, want := range map[string]sandbox.State{
		"created": sandbox.StateCreating, "running": sandbox.StateRunning, "restarting": sandbox.StateRunning, "paused": sandbox.StatePaused,
		"exited": sandbox.StateStopped, "removing": sandbox.StateStopped, "dead": sandbox.StateError, "new in some version": sandbox.StateError,
		"initialized": sandbox.StateCreating, "stopping": sandbox.StateRunning, "stopped": sandbox.StateStopped, // Podman's
	} {
		if got := sandbox.StateOf(word); got != want {
			t.Errorf("%s is %q, want %q", word, got, want)
		}
	}
}

func TestListReportsASandboxThatIsBeingDeletedAsItIs(t *testing.T) {
	t.Parallel()
	fake := enginetest.NewFake(t)
	eng, err := engine.Open(t.Context(), engine.Options{Host: fake.Host()})
	if err != nil {
		t.Fatal(err)
	}
	defer eng.Close()
	claims := map[string]func(record.Sandbox) (*claim.Claim, error){
		"made": func(r record.Sandbox) (*claim.Claim, error) {
			return claim.Try(t.Context(), eng, r.Name, r.Nonce, "test")
		},
		"deleted": func(r record.Sandbox) (*claim.Claim, error) {
			return claim.TryDelete(t.Context(), eng, r, "by", "test")
		},
	}
	for name, take := range claims {
		rec := record.Sandbox{ID: "id-" + name, Name: name, Nonce: record.NewNonce(), CreatedAt: time.Now(), ControlKey: make([]byte, 32),
			Settings: record.SandboxSettings{Image: "image", Network: "allow-all"}}
		labels, err := rec.Labels()
		if err != nil {
			t.Fatal(err)
		}
		fake.AddContainer(record.ContainerName(name), enginetest.FakeContainer{ID: rec.ID, State: "running", Labels: labels})
		held, err := take(rec)
		if err != nil {
			t.Fatal(err)
		}
		defer held.Stop()
	}
	list, err := harness.Unconnected(t, sandbox.WithHost(fake.Host())).List(t.Context(), sandbox.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]sandbox.State{}
	for _, i := range list {
		got[i.Name] = i.State
	}
	want := map[string]sandbox.State{"made": sandbox.StateCreating, "deleted": sandbox.StateRunning}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("List while sandboxes are made and deleted (-want +got):\n%s", diff)
	}
}
