package engine_test

import (
	"fmt"
	"net/http"
	"testing"

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
