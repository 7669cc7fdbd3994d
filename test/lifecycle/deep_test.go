package lifecycle_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// The engine holds a file for each level of a tree that it removes, so there are trees that it
// can't remove, and everybody inside can make one. Nothing of them is left all the same.
func TestTreesThatTheEngineCannotRemoveGo(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	d := enginetest.NewDaemon(t)
	content, err := harness.BuildPrograms("deep")
	if err != nil {
		t.Fatal(err)
	}
	eng := engineAt(t, d.Host())
	if err := eng.ImportImage(ctx, "sandbox-test-deep", bytes.NewReader(content), nil); err != nil {
		t.Fatal(err)
	}
	c := harness.NewClient(t, sandbox.WithHost(d.Host()))
	d.LimitFiles(1000)
	mount := sandbox.Mount{Source: t.TempDir(), Target: "/tmp/copy", Mode: sandbox.RWCopy}
	options := []sandbox.CreateOption{sandbox.WithImage("sandbox-test-deep"), sandbox.WithMounts(mount), harness.Quick}
	dig := func(sb *sandbox.Sandbox, dirs ...string) {
		t.Helper()
		if out, err := sb.Command(ctx, "/deep", append([]string{"3000"}, dirs...)...).CombinedOutput(); err != nil {
			t.Fatalf("deep: %v\n%.200s", err, out)
		}
	}
	create := func(dirs ...string) *sandbox.Sandbox {
		t.Helper()
		sb, err := c.Create(ctx, append(options, sandbox.WithName(harness.UniqueName(t)))...)
		if err != nil {
			t.Fatal(err)
		}
		dig(sb, dirs...)
		return sb
	}
	remove := func(sb *sandbox.Sandbox) error {
		return harness.Second(sb.Delete(ctx, sandbox.DeleteOptions{Volumes: true, Snapshots: true}))
	}
	all := []string{"/workspace", "/tmp/copy", "/tmp"}
	for _, tt := range []struct {
		name string
		run  func() error
	}{
		{"Delete", func() error { return remove(create(all...)) }},
		{"DeleteVolume", func() error {
			sb := create("/workspace")
			report, err := sb.Delete(ctx, sandbox.DeleteOptions{})
			for _, v := range report.Volumes {
				err = errors.Join(err, harness.Second(c.DeleteVolume(ctx, v.Name, sandbox.DeleteVolumeOptions{})))
			}
			return err
		}},
		{"Close", func() error {
			sb, err := c.Create(ctx, options...)
			if err != nil {
				return err
			}
			dig(sb, all...)
			return sb.Close()
		}},
		{"an update with a new container", func() error {
			sb := create("/tmp")
			if _, err := sb.Stop(ctx); err != nil {
				return err
			}
			return errors.Join(sb.Update(ctx, sandbox.WithEnv(map[string]string{"A": "b"})), harness.Second(sb.Start(ctx)), remove(sb))
		}},
		{"a fork and a snapshot", func() error {
			sb := create("/workspace", "/tmp/copy")
			fork, err := c.Fork(ctx, sb.Name(), harness.Quick)
			if err != nil {
				return err
			}
			_, err = sb.Snapshot(ctx, sandbox.SnapshotOptions{})
			return errors.Join(err, remove(fork), remove(sb))
		}},
		{"a failed Create", func() error {
			failed := errors.New("failed on purpose")
			_, err := c.Create(ctx, append(options, sandbox.OnCreate(func(ctx context.Context, sb *sandbox.Sandbox) error {
				dig(sb, all...)
				return failed
			}))...)
			if !errors.Is(err, failed) || strings.Contains(err.Error(), "left behind") {
				return err
			}
			return nil
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if err := tt.run(); err != nil {
				t.Errorf("%.500v", err)
			}
			if left := harness.Objects(t, eng, "agent-sandbox.id"); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		})
	}
}
