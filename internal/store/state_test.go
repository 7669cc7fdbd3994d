package store

import (
	"testing"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
)

// Why a session ended, as PID 1's exit code and the engine tell it.
func TestReasonTellsTheEndsApart(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		code int
		oom  bool
		ran  time.Duration
		text string
		want string
	}{
		{code: 143, want: "stopped"},
		{code: 143, oom: true, want: "stopped"}, // a command ran out of memory, earlier
		{code: 137, want: "stopped"},            // it took the whole stop timeout
		{code: 137, oom: true, want: "out of memory"},
		{code: 124, want: "timeout"},
		{code: 124, oom: true, want: "timeout"},
		{code: 120, want: "idle timeout"},
		{code: 123, want: "abandoned"},
		{code: 121, want: "network changed"},
		{code: 2, want: "exit code 2"}, // as listed, without times
		{code: 2, ran: time.Hour, want: "exit code 2"},
		{code: 2, ran: time.Millisecond, want: "stopped"},
		{code: 1, ran: time.Millisecond, want: "exit code 1"},
		{code: 128, text: "no such device", want: "no such device"},
	} {
		ended := engine.Container{State: engine.StateExited, ExitCode: test.code, OOMKilled: test.oom, Error: test.text}
		if test.ran > 0 {
			ended.StartedAt = time.Unix(1e9, 0)
			ended.FinishedAt = ended.StartedAt.Add(test.ran)
		}
		if got := ReasonOf(ended); got != test.want {
			t.Errorf("exit code %d, out of memory %v, engine's error %q: reason %q, want %q", test.code, test.oom, test.text, got, test.want)
		}
	}
}
