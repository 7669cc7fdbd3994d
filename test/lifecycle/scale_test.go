package lifecycle_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// engineWith is an engine with n stopped sandboxes, each of which was updated.
func engineWith(t *testing.T, n int) *enginetest.Fake {
	t.Helper()
	f := enginetest.NewFake(t)
	made := time.Now().Add(-time.Hour)
	for i := range n {
		rec := record.Sandbox{ID: fmt.Sprintf("id%d", i), Name: fmt.Sprintf("name%d", i), Nonce: record.NewNonce(), CreatedAt: made,
			Persistent: true, ControlKey: make([]byte, 32), Settings: record.SandboxSettings{Image: "image", Network: "allow-all"}}
		labels, err := rec.Labels()
		if err != nil {
			t.Fatal(err)
		}
		workspace := record.WorkspaceName(rec.ID)
		f.AddContainer(record.ContainerName(rec.Name), enginetest.FakeContainer{
			ID: fmt.Sprintf("%064x", i), Image: "image", State: "exited", Labels: labels, Volumes: map[string]string{"/workspace": workspace}})
		f.AddVolume(workspace, rec.VolumeLabels(record.RoleWorkspace))
		for rev := 1; rev <= 2; rev++ {
			l := record.Base(record.RoleRevision, record.NewNonce(), made)
			l[record.ID], l[record.Name], l[record.Of], l[record.Settings] = rec.ID, rec.Name, rec.Nonce, `{"tags": {"a": "b"}}`
			f.AddVolume(fmt.Sprintf("%s.rev-%d", workspace, rev), l)
		}
	}
	return f
}

const sweepVolume = "agent-sandbox-sweep.S"

// asksForTurn reports whether a call asks who sweeps.
func asksForTurn(call string) bool { return strings.HasPrefix(call, "GET /volumes/"+sweepVolume) }

// cost is what a verb costs the engine.
type cost struct {
	calls []string
	bytes int64
}

// costs uses sandboxes of an engine with n of them, and more.
func costs(t *testing.T, n int) map[string]cost {
	f := engineWith(t, n)
	// Another client makes the sweeps of the next hour.
	for minute := range int64(60) {
		f.AddVolume(fmt.Sprint(sweepVolume, time.Now().Unix()/60+minute), nil)
	}
	c := harness.NewClient(t, sandbox.WithHost(f.Host()))
	ctx := t.Context()
	// A list asks for the turn to sweep, once a minute.
	if _, err := c.List(ctx, sandbox.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, "the client has asked for its turn", func() bool {
		calls, _ := f.Take()
		return slices.ContainsFunc(calls, asksForTurn)
	})
	var sb *sandbox.Sandbox
	missing := func(err error) error {
		if !errors.Is(err, sandbox.ErrNotFound) {
			return fmt.Errorf("got %v, want ErrNotFound", err)
		}
		return nil
	}
	all := map[string]cost{}
	for _, step := range []struct {
		verb string
		do   func() error
	}{
		{"List", func() error { return harness.Second(c.List(ctx, sandbox.ListOptions{})) }},
		{"Get", func() (err error) { sb, err = c.Get(ctx, "name1", sandbox.WithoutResume()); return err }},
		{"Get by ID", func() error { return harness.Second(c.Get(ctx, "id1", sandbox.WithoutResume())) }},
		{"Get of none", func() error { return missing(harness.Second(c.Get(ctx, "none", sandbox.WithoutResume()))) }},
		{"Update", func() error { return sb.Update(ctx, sandbox.WithTags(map[string]string{"a": "c"})) }},
		{"Stop", func() error { return harness.Second(sb.Stop(ctx)) }},
		{"Close", func() error { return sb.Close() }},
		{"Delete", func() error { return harness.Second(c.Delete(ctx, "name0", sandbox.DeleteOptions{})) }},
		{"DeleteVolume", func() error {
			return harness.Second(c.DeleteVolume(ctx, record.WorkspaceName("id0"), sandbox.DeleteVolumeOptions{}))
		}},
		{"Delete with volumes", func() error {
			return harness.Second(c.Delete(context.WithoutCancel(ctx), "name1", sandbox.DeleteOptions{Volumes: true}))
		}},
	} {
		f.Take()
		began := time.Now()
		if err := step.do(); err != nil {
			t.Errorf("%s among %d sandboxes: %v", step.verb, n, err)
		}
		calls, bytes := f.Take()
		calls = slices.DeleteFunc(calls, asksForTurn)
		t.Logf("%6d sandboxes: %-20s %3d calls, %9d bytes, %v", n, step.verb, len(calls), bytes, time.Since(began).Round(time.Microsecond))
		all[step.verb] = cost{calls, bytes}
	}
	return all
}

// With ten thousand sandboxes and thirty thousand volumes on the engine, or a tenth of them in a
// plain run, what is about one of them makes the same calls as with two, and as many bytes come back.
func TestCostsDoNotGrowWithTheEngine(t *testing.T) {
	t.Parallel()
	n := harness.Rounds(1_000, 10_000)
	few, many := costs(t, 2), costs(t, n)
	for verb, got := range many {
		listing := slices.ContainsFunc(got.calls, func(call string) bool { return slices.Contains(lists, call) })
		if verb == "List" {
			if !listing || len(got.calls) != 2 {
				t.Errorf("List calls %q, want two lists", got.calls)
			}
			continue
		}
		want := few[verb]
		if listing || len(got.calls) != len(want.calls) || got.bytes > want.bytes+want.bytes/10 {
			t.Errorf("%s: %d calls, %d bytes among %d sandboxes, and %d and %d among two; calls: %q", verb, len(got.calls), got.bytes, n, len(want.calls), want.bytes, got.calls)
		}
	}
}
