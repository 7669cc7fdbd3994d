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
	"github.com/seed-1a2d6d8f/sandbox/internal/machine"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// lists are the calls that take longer the more the engine holds.
var lists = []string{"GET /containers/json", "GET /volumes", "GET /images/json", "GET /system/df"}

// swept returns a client behind a proxy that has had its turn to sweep.
func swept(t *testing.T) (*sandbox.Client, *enginetest.Proxy) {
	t.Helper()
	p := enginetest.NewProxy(t)
	c := harness.NewClient(t, sandbox.WithHost(p.Host()))
	if _, err := c.List(t.Context(), sandbox.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	settled := func() bool {
		n := p.Count()
		time.Sleep(time.Second)
		return n == p.Count() && slices.ContainsFunc(p.Calls(), func(call string) bool { return strings.Contains(call, "/volumes/agent-sandbox-sweep.") })
	}
	harness.Eventually(t, "no sweep is under way", settled)
	return c, p
}

// What a program has found out about an engine and an image it does not ask again, whichever client asks.
func TestClientsShareWhatIsKnownOfTheEngine(t *testing.T) {
	t.Parallel()
	p := enginetest.NewProxy(t)
	for i := range 3 {
		if i == 2 {
			machine.Forget(p.Host())
		}
		before := len(p.Calls())
		sb, err := harness.NewClient(t, sandbox.WithHost(p.Host())).Create(t.Context(), sandbox.WithNetworkPolicy(sandbox.PublicOnly()), sandbox.WithUser("node"), harness.Quick)
		if err != nil {
			t.Fatal(err)
		}
		if err := sb.Close(); err != nil {
			t.Fatal(err)
		}
		made := 0
		for _, call := range p.Calls()[before:] {
			if strings.HasPrefix(call, "POST /containers/create") {
				made++
			}
		}
		if alone := made == 1; alone != (i == 1) {
			t.Errorf("Create of client %d made %d containers", i, made)
		}
	}
}

// What is about one sandbox, volume or snapshot costs as much with ten thousand others as with
// none: it makes no call that lists. The exceptions are those of the package's documentation: they
// need users that only a list has, or volumes that no container mounts. What the engine has refused to remove is also followed by a
// list, which says who uses it.
func TestOperationsOnOneSandboxListNothing(t *testing.T) {
	t.Parallel()
	turn := time.Now() // of the client's last sweep
	c, p := swept(t)
	name := harness.UniqueName(t)
	ctx := t.Context()
	var sb, again, fork *sandbox.Sandbox
	var snap sandbox.Snapshot
	var volumes []string
	missing := func(err error) error {
		if !errors.Is(err, sandbox.ErrNotFound) && !errors.Is(err, sandbox.ErrVolumeNotFound) {
			return fmt.Errorf("got %v, want one of not found", err)
		}
		return nil
	}
	exceptions := []string{"GetSnapshot", "DeleteSnapshot", "Rollback", "Delete of the forks of a ForkN", "Delete of an updated one"}
	names := []string{name, name + "-got", name + "-fork", name + "-made", name + "-n-1", name + "-n-2"}
	for _, n := range names {
		harness.Remove(t, c, n)
	}
	for _, step := range []struct {
		verb string
		do   func() error
	}{
		{"Create", func() (err error) {
			sb, err = c.Create(ctx, sandbox.WithName(name), harness.Quick, sandbox.WithCommand("sleep", "1000"),
				sandbox.WithMounts(sandbox.Mount{Source: harness.HostDir(t, map[string]string{"f": "x"}), Target: "/c"}))
			return err
		}},
		{"Create of a name that is taken", func() error {
			_, err := c.Create(ctx, sandbox.WithName(name))
			if !errors.Is(err, sandbox.ErrExists) {
				return fmt.Errorf("got %v, want ErrExists", err)
			}
			return nil
		}},
		{"a command", func() error { return sb.Command(ctx, "true").Run() }},
		{"WriteFile", func() error { return sb.WriteFile(ctx, "f", []byte("x"), 0o644) }},
		{"Get", func() (err error) { again, err = c.Get(ctx, name); return err }},
		{"Get by ID", func() error { _, err := c.Get(ctx, sb.ID()); return err }},
		{"Get of none", func() error { return missing(harness.Second(c.Get(ctx, name+"-none"))) }},
		{"Inspect", func() error { return harness.Second(c.Inspect(ctx, name)) }},
		{"Inspect of none", func() error { return missing(harness.Second(c.Inspect(ctx, name+"-none"))) }},
		{"Status", func() error { return harness.Second(sb.Status(ctx)) }},
		{"ExtendTimeout", func() error { return sb.ExtendTimeout(ctx, time.Hour) }},
		{"Egress", func() error { return harness.Second(sb.Egress(ctx)) }},
		{"Processes", func() error { return harness.Second(sb.Processes(ctx)) }},
		{"Logs", func() (err error) {
			for _, e := range sb.Logs(ctx, sandbox.LogOptions{}) {
				err = errors.Join(err, e)
			}
			return err
		}},
		{"GetOrCreate that gets", func() error { return harness.Second(c.GetOrCreate(ctx, name)) }},
		{"GetOrCreate that creates", func() error {
			got, err := c.GetOrCreate(ctx, name+"-got", harness.Quick)
			if err != nil {
				return err
			}
			return got.Close()
		}},
		{"Delete of a persistent one", func() error {
			return harness.Second(c.Delete(ctx, name+"-got", sandbox.DeleteOptions{Volumes: true}))
		}},
		{"Delete of none", func() error { return missing(harness.Second(c.Delete(ctx, name+"-none", sandbox.DeleteOptions{}))) }},
		{"Update", func() error { return sb.Update(ctx, sandbox.WithTags(map[string]string{"a": "b"})) }},
		{"Update again, by another handle", func() error {
			return again.Update(ctx, sandbox.WithEnv(map[string]string{"A": "b"}), sandbox.WithNetworkPolicy(sandbox.DenyAll()))
		}},
		{"Status after updates", func() error { return harness.Second(sb.Status(ctx)) }},
		{"Stop", func() error { return harness.Second(sb.Stop(ctx)) }},
		{"Start that replaces the container", func() error { return harness.Second(sb.Start(ctx)) }},
		{"a command after it", func() error { return sb.Command(ctx, "true").Run() }},
		{"Fork", func() (err error) { fork, err = c.Fork(ctx, name, sandbox.WithName(name+"-fork")); return err }},
		{"Snapshot", func() (err error) { snap, err = sb.Snapshot(ctx, sandbox.SnapshotOptions{}); return err }},
		{"GetSnapshot", func() error { return harness.Second(c.GetSnapshot(ctx, snap.ID)) }},
		{"Create from a snapshot", func() error {
			made, err := c.Create(ctx, sandbox.WithName(name+"-made"), sandbox.WithSource(sandbox.FromSnapshot(snap.ID)), harness.Quick)
			if err != nil {
				return err
			}
			return made.Detach()
		}},
		{"Delete of what shares a snapshot", func() error {
			return harness.Second(c.Delete(ctx, name+"-made", sandbox.DeleteOptions{Volumes: true}))
		}},
		{"Rollback", func() error { return sb.Rollback(ctx, snap.ID) }},
		{"ForkN", func() error {
			results, err := c.ForkN(ctx, name, 2, sandbox.WithName(name+"-n"), harness.Quick)
			for _, r := range results {
				err = errors.Join(err, r.Err)
			}
			return err
		}},
		{"Delete of the forks of a ForkN", func() error {
			return errors.Join(harness.Second(c.Delete(ctx, name+"-n-1", sandbox.DeleteOptions{Volumes: true})),
				harness.Second(c.Delete(ctx, name+"-n-2", sandbox.DeleteOptions{Volumes: true})))
		}},
		{"Delete that preserves", func() error {
			report, err := fork.Delete(ctx, sandbox.DeleteOptions{})
			for _, v := range report.Volumes {
				volumes = append(volumes, v.Name)
			}
			return err
		}},
		{"DeleteVolume", func() (err error) {
			for _, v := range volumes {
				err = errors.Join(err, harness.Second(c.DeleteVolume(ctx, v, sandbox.DeleteVolumeOptions{})))
			}
			return err
		}},
		{"DeleteVolume of none", func() error {
			return missing(harness.Second(c.DeleteVolume(ctx, volumes[0], sandbox.DeleteVolumeOptions{})))
		}},
		{"Close", func() error { return errors.Join(again.Close(), sb.Close()) }},
		{"an unnamed one", func() error {
			one, err := c.Create(ctx, harness.Quick)
			if err != nil {
				return err
			}
			return one.Close()
		}},
		{"Delete of an updated one", func() error {
			return harness.Second(c.Delete(ctx, name, sandbox.DeleteOptions{Volumes: true}))
		}},
		{"DeleteSnapshot", func() error { return c.DeleteSnapshot(context.WithoutCancel(ctx), snap.ID) }},
	} {
		p.Arm(0, enginetest.None, nil)
		if err := step.do(); err != nil {
			t.Fatalf("%s: %v", step.verb, err)
		}
		// One of them sweeps, which lists, whenever it is time again.
		sweeps := time.Since(turn) >= record.SweepEvery
		for _, request := range p.Requests() {
			call, _, _ := strings.Cut(request, "?")
			switch {
			case !slices.Contains(lists, call) || slices.Contains(exceptions, step.verb):
			case sweeps:
				turn = time.Now()
			default:
				t.Errorf("%s lists: %s", step.verb, request)
			}
		}
		t.Logf("%s: %d calls", step.verb, p.Count())
	}
	for _, left := range harness.Objects(t, harness.NewEngine(t), harness.Named(name)) {
		if strings.Contains(left, "agent-sandbox-snap-") {
			t.Errorf("the forks are gone, and %s, which they shared, is left", left)
		}
	}
}

// A List lists, and does nothing else: what it finds left over is for a sweep in the background.
func TestListMakesTwoCalls(t *testing.T) {
	t.Parallel()
	c, p := swept(t)
	p.Arm(0, enginetest.None, nil)
	if _, err := c.List(t.Context(), sandbox.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	if calls := p.Calls(); len(calls) != 2 {
		t.Errorf("List calls %q, want two calls", calls)
	}
}
