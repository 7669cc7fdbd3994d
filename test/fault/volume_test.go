package fault_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// kept makes, past the proxy, n volumes without a sandbox, and one sandbox's ID for all.
func (x *trial) orphans(n int, role string) (names []string) {
	x.Helper()
	rec := record.Sandbox{ID: x.name, Name: x.name, Nonce: record.NewNonce(), CreatedAt: x.eng.Now(), Persistent: true}
	for i := range n {
		name := record.VolumeName(x.name, role, fmt.Sprint("/", i), rec.Nonce)
		if _, err := x.eng.CreateVolume(context.Background(), name, rec.VolumeLabels(role)); err != nil {
			x.Fatalf("make an orphan: %v", err)
		}
		names = append(names, name)
	}
	return names
}

// ofID are the volumes of the trial's ID.
func (x *trial) ofID() (names []string) {
	for _, o := range harness.Objects(x, x.eng, record.Filter(record.ID, x.name)) {
		if name, is := strings.CutPrefix(o, "volume "); is {
			names = append(names, name)
		}
	}
	return names
}

func (x *trial) dropOrphans() {
	for _, name := range x.ofID() {
		x.eng.RemoveVolume(context.Background(), name, false)
	}
}

// Two copies and an attached volume, which no undo removes.
func TestCreateWithMountsSurvivesAFaultInAnyCall(t *testing.T) {
	dir := harness.HostDir(t, map[string]string{"f": "x", "d/g": "y"})
	attached := func(x *trial) string { return "agent-sandbox-kept" + x.name }
	opts := func(x *trial) []sandbox.CreateOption {
		return append(plain(x), sandbox.WithMounts(
			sandbox.Mount{Source: dir, Target: "/a"}, sandbox.Mount{Source: filepath.Join(dir, "d"), Target: "/b"},
			sandbox.Mount{Volume: attached(x), Target: "/c"}))
	}
	op := creation(opts, create)
	op.arrange = func(x *trial) {
		labels := record.Base(record.RoleRWCopy, record.NewNonce(), x.eng.Now())
		labels[record.ID] = "kept" + x.name
		if _, err := x.eng.CreateVolume(context.Background(), attached(x), labels); err != nil {
			x.Fatalf("make the volume to attach: %v", err)
		}
		x.Cleanup(func() { x.eng.RemoveVolume(context.Background(), attached(x), false) })
	}
	op.done = func(x *trial) {
		x.usable()
		ctx, cancel := context.WithTimeout(context.Background(), harness.CallBound)
		defer cancel()
		if out, err := x.sb.Command(ctx, "cat", "/a/f", "/a/d/g", "/b/g").Output(); string(out) != "xyy" {
			x.Errorf("%s: it returned nil and the copies hold %q, %v", x.where(), out, err)
		}
	}

	op.after = func(x *trial) {
		there := func(when string) bool {
			v, err := x.eng.InspectVolume(context.Background(), attached(x))
			if err != nil || v.Labels[record.ID] != "kept"+x.name {
				x.Errorf("%s: %s the attached volume is %v, %v", x.where(), when, v.Labels, err)
			}
			return err == nil
		}
		if !there("after it") {
			return
		}
		if x.err == nil {
			if _, err := x.clean.Delete(context.Background(), x.name, sandbox.DeleteOptions{}); err != nil {
				x.Errorf("Delete: %v", err)
			}
			x.err = errors.New("deleted")
			x.dropOrphansOf(x.name)
			x.nothing()
			return
		}
		x.nothing()
		if !x.retry {
			return
		}
		sb, err := x.clean.Create(context.Background(), opts(x)...)
		if err != nil {
			x.Errorf("after %s the same Create: %v", x.where(), err)
			return
		}
		sb.Detach()
		if _, err := x.clean.Delete(context.Background(), x.name, sandbox.DeleteOptions{}); err != nil {
			x.Errorf("Delete: %v", err)
		}
		x.dropOrphansOf(x.name)
		there("after the next")
	}
	testFaultsAtEvery(t, 14, op) // most are those of every create
}

// dropOrphansOf removes the volumes that a deleted sandbox of that name left.
func (x *trial) dropOrphansOf(name string) {
	for _, o := range harness.Objects(x, x.eng, harness.Named(name)) {
		if v, is := strings.CutPrefix(o, "volume "); is {
			x.eng.RemoveVolume(context.Background(), v, false)
		}
	}
}

// Two sandboxes refer to the volume that is deleted by force.
func TestDeleteVolumeWithForceSurvivesAFaultInAnyCall(t *testing.T) {
	testFaultsAtEvery(t, 5, operation{
		arrange: func(x *trial) {
			v := x.orphans(1, record.RoleRWCopy)[0]
			x.volume = v
			for _, suffix := range []string{"-a", "-b"} {
				// Never started: that is all the same here, and quicker.
				rec := record.Sandbox{ID: x.name + suffix, Name: x.name + suffix, Nonce: record.NewNonce(), CreatedAt: x.eng.Now(), Persistent: true}
				labels, err := rec.Labels()
				if err == nil {
					_, err = x.eng.CreateContainer(context.Background(), engine.ContainerSpec{
						Name: record.ContainerName(rec.Name), Image: sandbox.DefaultImage, Labels: labels,
						Mounts: []engine.Mount{{Type: "volume", Source: v, Target: "/v", NoCopy: true}},
					})
				}
				if err != nil {
					x.Fatalf("make a user of the volume: %v", err)
				}
			}
		},
		act: func(ctx context.Context, x *trial) error {
			report, err := x.c.DeleteVolume(ctx, x.volume, sandbox.DeleteVolumeOptions{Force: true})
			if err != nil && (len(report.Volumes) == 0 || report.Volumes[0].Status != sandbox.VolumeDeleteFailed) && len(x.proxy.Calls()) > 3 {
				x.Errorf("%s: it returned %v and the report is %q", x.where(), err, report)
			}
			return err
		},
		done: func(x *trial) {
			x.aside(func() {
				for _, suffix := range []string{"", "-a", "-b"} {
					for _, o := range harness.Objects(x, x.eng, harness.Named(x.name+suffix)) {
						if o == "volume "+x.volume || strings.HasPrefix(o, "container") {
							x.Errorf("%s: it returned nil and there is %s", x.where(), o)
						}
					}
				}
			})
		},
		failed: func(x *trial) {
			x.aside(func() {
				_, err := x.clean.DeleteVolume(context.Background(), x.volume, sandbox.DeleteVolumeOptions{Force: true})
				if err != nil && !errors.Is(err, sandbox.ErrVolumeNotFound) {
					x.Errorf("after %s the same call: %v", x.where(), err)
				}
			})
		},
		after: func(x *trial) {
			for _, suffix := range []string{"-a", "-b"} {
				harness.RemoveNow(x.T, x.clean, x.name+suffix)
				x.dropOrphansOf(x.name + suffix)
			}
			x.dropOrphans()
			x.nothing()
		},
	})
}

// What one run could not remove is reported, and the next one removes it.
func TestCleanupSurvivesAFaultInAnyCall(t *testing.T) {
	ours := func(x *trial) (list []string) {
		x.aside(func() { list = x.ofID() })
		return list
	}
	testFaultsAtEvery(t, 9, operation{
		arrange: func(x *trial) { x.orphans(10, record.RoleFork) },
		act: func(ctx context.Context, x *trial) error {
			before := ours(x)
			report, err := x.c.CleanupOrphanedVolumes(ctx, harness.Cleanup(before...))
			left := ours(x)
			if len(report.Removed)+len(left) < len(before) {
				x.Errorf("%s: of %d volumes %d are left, and the report says\n%s", x.where(), len(before), len(left), report)
			}
			if err == nil && (len(left) > 0 || len(report.Failed) > 0) {
				x.Errorf("%s: it returned nil, %d volumes are left and the report says\n%s", x.where(), len(left), report)
			}
			return err
		},
		failed: func(x *trial) {
			if before := ours(x); len(before) > 0 {
				var report sandbox.CleanupReport
				var err error
				x.aside(func() {
					report, err = x.clean.CleanupOrphanedVolumes(context.Background(), harness.Cleanup(before...))
				})
				if err != nil || len(report.Removed) != len(before) {
					x.Errorf("after %s the next run: %v\n%s", x.where(), err, report)
				}
			}
		},
		after: func(x *trial) {
			x.dropOrphans()
			x.nothing()
		},
	})
}
