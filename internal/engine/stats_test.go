package engine_test

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
)

func TestStatsCountWhatAContainerUses(t *testing.T) {
	t.Parallel()
	e := open(t)
	id, _ := start(t, e, engine.ContainerSpec{Cmd: []string{"wait", "x"}, Memory: 64 << 20})
	s, ok, err := e.Stats(t.Context(), id)
	if err != nil || !ok {
		t.Fatalf("Stats = %+v, %v, %v", s, ok, err)
	}
	if s.Read.IsZero() || s.CPU <= 0 || s.Memory <= 0 || s.Limit != 64<<20 || s.Tasks < 1 {
		t.Errorf("Stats = %+v", s)
	}
}

func TestStatsOfAContainerThatDoesNotRun(t *testing.T) {
	t.Parallel()
	e := open(t)
	id, _ := create(t, e, engine.ContainerSpec{Cmd: []string{"wait", "x"}})
	if s, ok, err := e.Stats(t.Context(), id); err != nil || ok {
		t.Errorf("Stats = %+v, %v, %v; want nothing and no error", s, ok, err)
	}
	_, _, err := e.Stats(t.Context(), "enginetest-nobody")
	wantClass(t, "Stats of a missing container", err, engine.ErrNotFound)
}

// A cached file is not memory in use, whichever control groups the engine has.
func TestStatsLeaveOutIdleFiles(t *testing.T) {
	t.Parallel()
	for key, want := range map[string]int64{"total_inactive_file": 700, "inactive_file": 700, "other": 1000} {
		host := fakeEngine(t, func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprintf(w, `{"read":"2026-01-01T00:00:00Z","cpu_stats":{"cpu_usage":{"total_usage":5}},"memory_stats":{"usage":1000,"stats":{%q:300}}}`, key)
		})
		s, ok, err := openAt(t, host).Stats(t.Context(), "x")
		if err != nil || !ok || s.Memory != want {
			t.Errorf("with %s: Stats = %+v, %v, %v; want memory %d", key, s, ok, err, want)
		}
	}
}

// The reply of an engine on control groups v2, with the fields that its API documents for them.
func TestStatsOfControlGroupsV2(t *testing.T) {
	t.Parallel()
	const reply = `{
		"name": "/x", "id": "x", "read": "2026-01-01T00:00:00.5Z", "preread": "0001-01-01T00:00:00Z", "num_procs": 0, "storage_stats": {},
		"pids_stats": {"current": 7, "limit": 4096},
		"blkio_stats": {
			"io_service_bytes_recursive": [{"major": 254, "minor": 0, "op": "read", "value": 4096}], "io_serviced_recursive": null,
			"io_queue_recursive": null, "io_service_time_recursive": null, "io_wait_time_recursive": null, "io_merged_recursive": null,
			"io_time_recursive": null, "sectors_recursive": null
		},
		"cpu_stats": {
			"cpu_usage": {"total_usage": 1500000, "usage_in_kernelmode": 500000, "usage_in_usermode": 1000000},
			"system_cpu_usage": 90000000000, "online_cpus": 2,
			"throttling_data": {"periods": 9, "throttled_periods": 1, "throttled_time": 4000}
		},
		"precpu_stats": {"cpu_usage": {"total_usage": 0, "usage_in_kernelmode": 0, "usage_in_usermode": 0}, "throttling_data": {}},
		"memory_stats": {
			"usage": 50000000, "limit": 67108864,
			"stats": {
				"active_anon": 20000000, "active_file": 10000000, "anon": 20000000, "file": 30000000, "inactive_anon": 0,
				"inactive_file": 20000000, "kernel_stack": 98304, "pgfault": 12000, "slab": 700000, "sock": 0, "unevictable": 0
			}
		},
		"networks": {"eth0": {"rx_bytes": 300, "tx_bytes": 20}, "eth1": {"rx_bytes": 5, "tx_bytes": 1}}
	}`
	host := fakeEngine(t, func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, reply) })
	got, ok, err := openAt(t, host).Stats(t.Context(), "x")
	want := engine.Stats{
		Read: time.Date(2026, 1, 1, 0, 0, 0, 5e8, time.UTC), CPU: 1500 * time.Microsecond,
		Memory: 30_000_000, Limit: 64 << 20, Tasks: 7, Received: 305, Sent: 21,
	}
	if diff := cmp.Diff(want, got); err != nil || !ok || diff != "" {
		t.Errorf("Stats: %v, %v; -want +got:\n%s", ok, err, diff)
	}
}

// What ends between two looks has no usage, and is no failure of the engine's.
func TestStatsOfWhatEndsMeanwhile(t *testing.T) {
	t.Parallel()
	host := fakeEngine(t, func(w http.ResponseWriter, r *http.Request) {})
	if s, ok, err := openAt(t, host).Stats(t.Context(), "x"); err != nil || ok {
		t.Errorf("Stats = %+v, %v, %v; want none", s, ok, err)
	}
	host = fakeEngine(t, func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, `{"read":"20`) })
	_, _, err := openAt(t, host).Stats(t.Context(), "x")
	wantClass(t, "Stats of a reply that breaks off", err, engine.ErrUnavailable)
}
