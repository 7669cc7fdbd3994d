package sandbox_test

import (
	"encoding/json"
	"net/netip"
	"reflect"
	"testing"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
)

// The names in JSON are a contract.
func TestResultsHaveStableNamesInJSON(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	status := sandbox.Status{
		Info: sandbox.Info{
			ID: "i", Name: "n", State: sandbox.Running, Image: "im", CreatedAt: at, Location: "local", Tags: map[string]string{"a": "b"},
			Ports: map[uint16]netip.AddrPort{80: netip.MustParseAddrPort("127.0.0.1:4000")},
		},
		Source: "s", Reason: "r", StartedAt: at, Uptime: 1500 * time.Millisecond, ExpiresAt: at, Usage: &sandbox.Usage{CPUPercent: 1.5},
		Workspace: sandbox.Volume{Name: "v", Sandboxes: []string{}}, Network: sandbox.DenyAll(), Egress: &sandbox.EgressCount{Allowed: 1}, LogsEndpoint: "/l",
	}
	const (
		info = `"id":"i","name":"n","status":"running","image":"im","createdAt":"2026-01-02T03:04:05.000000006Z","location":"local",` +
			`"tags":{"a":"b"},"ports":{"80":"127.0.0.1:4000"}`
		usage  = `{"cpuPercent":1.5,"memoryBytes":0,"memoryLimit":0,"processes":0,"networkReceived":0,"networkSent":0}`
		volume = `{"name":"v","role":"","sizeBytes":0,"size":"","sandboxes":[],"createdAt":"0001-01-01T00:00:00Z","inUse":false,"orphaned":false}`
	)
	for want, v := range map[string]any{
		"{" + info + "}": status.Info,
		"{" + info + `,"source":"s","reason":"r","startedAt":"2026-01-02T03:04:05.000000006Z","expiresAt":"2026-01-02T03:04:05.000000006Z","workspace":` +
			volume + `,"usage":` + usage + `,"network":"deny-all","egress":{"allowed":1,"blocked":0},"logsEndpoint":"/l","uptimeMs":1500}`: status,
		`{"name":"v","status":"deleted"}`: sandbox.VolumeOutcome{Name: "v", Status: sandbox.VolumeDeleted},
		`{"id":"i","sandbox":"s","sandboxId":"si","createdAt":"0001-01-01T00:00:00Z","sizeBytes":1,"image":"im"}`: sandbox.Snapshot{
			ID: "i", Sandbox: "s", SandboxID: "si", SizeBytes: 1, Image: "im",
		},
	} {
		if got, err := json.Marshal(v); err != nil || string(got) != want {
			t.Errorf("%T is\n%s, %v, want\n%s", v, got, err, want)
		}
	}
	text, err := json.Marshal(status)
	if err != nil {
		t.Fatal(err)
	}
	var back sandbox.Status
	if err := json.Unmarshal(text, &back); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(status, back) {
		t.Errorf("decoded it is %+v, want %+v", back, status)
	}
}

// X20.
func TestStatesOfTheEngineHaveOneWord(t *testing.T) {
	for word, want := range map[string]sandbox.State{
		"created": sandbox.StateCreating, "running": sandbox.StateRunning, "restarting": sandbox.StateRunning, "paused": sandbox.StatePaused,
		"exited": sandbox.StateStopped, "removing": sandbox.StateStopped, "dead": sandbox.StateError, "new in some version": sandbox.StateError,
	} {
		if got := sandbox.StateOf(word); got != want {
			t.Errorf("%s is %q, want %q", word, got, want)
		}
	}
}
