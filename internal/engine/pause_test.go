package engine_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
)

func TestContainerdsWhosePausesLock(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]bool{
		"1.6.20~ds1": true, "v1.6.21": true, "1.4.13": true, "1.7.0": true, "v1.7.2": true, "1.5.18~ds1": true, "0.2.9": true,
		"1.6.22": false, "v1.6.33": false, "1.7.3": false, "v1.7.27": false, "2.1.4": false, "v2.0.0-rc.1": false, "": false, "unknown": false,
	} {
		if got := engine.ContainerdLocks(version); got != want {
			t.Errorf("of containerd %q: %v, want %v", version, got, want)
		}
	}
}

// Where a pause must not meet a start, it waits for one that comes, whoever starts an exec looks
// first, and neither waits for a client that is gone.
func TestAPauseAndAStartGoByTurns(t *testing.T) {
	enginetest.Need(t)
	p := enginetest.NewProxy(t)
	e := openAt(t, p.Host())
	e.SetContainerd("1.6.20")
	id, _ := start(t, e, engine.ContainerSpec{})
	calls := func(part string) int {
		return slices.IndexFunc(p.Calls(), func(call string) bool { return strings.Contains(call, part) })
	}
	// An engine learns of a pause and of its end once more, from the runtime, and until then may
	// undo what a later call has noted.
	settled := func(what string, call func() error) {
		t.Helper()
		err := call()
		for until := time.Now().Add(time.Minute); err != nil && time.Now().Before(until); err = call() {
			time.Sleep(10 * time.Millisecond)
		}
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	pauseAndUnpause := func() {
		t.Helper()
		settled("pause", func() error { return e.PauseContainer(t.Context(), id) })
		settled("unpause", func() error { return e.UnpauseContainer(t.Context(), id) })
	}

	engine.SetStartBound(t, time.Hour)
	p.Arm(0, enginetest.None, nil)
	created, goOn, started := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	spec := engine.ExecSpec{Argv: []string{"/tool", "exit", "0"}, Check: func(context.Context) error {
		close(created)
		<-goOn
		return nil
	}}
	go func() {
		st, err := e.Exec(t.Context(), id, spec)
		if err == nil {
			err = st.Close()
		}
		started <- err
	}()
	<-created
	paused := make(chan struct{})
	go func() {
		defer close(paused)
		pauseAndUnpause()
	}()
	for calls("GET /exec/") < 0 {
		time.Sleep(time.Millisecond)
	}
	close(goOn)
	if err := <-started; err != nil {
		t.Errorf("Exec: %v", err)
	}
	<-paused
	if a, b := calls("/start"), calls("/pause"); a < 0 || b < a {
		t.Errorf("the pause did not wait for the start: %q", p.Calls())
	}

	p.Arm(0, enginetest.None, nil)
	later := errors.New("later")
	spec.Check = func(context.Context) error { return later }
	settled("Exec before a pause", func() error {
		if _, err := e.Exec(t.Context(), id, spec); !errors.Is(err, later) {
			return fmt.Errorf("%w, want %v", err, later)
		}
		return nil
	})
	if calls("/start") >= 0 {
		t.Errorf("an exec was started before a pause: %q", p.Calls())
	}
	engine.SetStartBound(t, 50*time.Millisecond)
	pauseAndUnpause() // though that one never starts

	e.SetContainerd("1.6.22")
	var st *engine.Stream
	settled("Exec where nothing locks", func() (err error) {
		st, err = e.Exec(t.Context(), id, spec)
		return err
	})
	if t.Failed() {
		t.FailNow()
	}
	if err := st.Close(); err != nil {
		t.Error(err)
	}
}
