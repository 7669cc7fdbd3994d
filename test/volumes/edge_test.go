package volumes_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// The workspace of another sandbox is shared, and stays with the
// one whose it is.
func TestWorkspaceOfAnotherSandboxIsShared(t *testing.T) {
	t.Parallel()
	c := harness.NewClient(t)
	owner := harness.CreateWith(t, c, nil)
	work := "agent-sandbox-" + owner.ID()
	harness.Run(t, owner, "sh", "-c", "echo one > f")
	look := harness.CreateWith(t, c, []sandbox.Mount{{Volume: work, Target: "/theirs", Mode: sandbox.RO}})
	if got := harness.Run(t, look, "sh", "-c", "cat /theirs/f; touch /theirs/g 2>&1 || true"); !strings.HasPrefix(got, "one") || !strings.Contains(got, "Read-only file system") {
		t.Errorf("in a workspace attached read-only there is %q", got)
	}
	write := harness.CreateWith(t, c, []sandbox.Mount{{Volume: work, Target: "/theirs"}})
	harness.Run(t, write, "sh", "-c", "echo two > /theirs/f")
	for _, sb := range []*sandbox.Sandbox{owner, look} {
		if got := harness.Run(t, sb, "sh", "-c", "cat /theirs/f 2>/dev/null || cat f"); got != "two" {
			t.Errorf("%s reads %q of what another wrote", sb.Name(), got)
		}
	}
	if v := volume(t, c, work); len(v.Sandboxes) != 3 || v.Role != "workspace" {
		t.Errorf("the workspace is listed as %+v, want three sandboxes", v)
	}
	report, err := write.Delete(t.Context(), sandbox.DeleteOptions{Volumes: true})
	if err != nil {
		t.Fatalf("Delete: %v", err)
	}
	users := []string{owner.Name(), look.Name()}
	if users[0] > users[1] {
		users[0], users[1] = users[1], users[0]
	}
	if want := "volume " + work + ": preserved (still referenced by " + strings.Join(users, ", ") + ")"; !strings.Contains(report.String(), want) {
		t.Errorf("the report is\n%s\nwant in it\n%s", report, want)
	}
	if got := harness.Run(t, owner, "cat", "f"); got != "two" {
		t.Errorf("afterwards its owner reads %q", got)
	}
}

// is reports whether a request is that call; path is without the version.
func is(r *http.Request, method, path string) bool {
	return r.Method == method && strings.HasSuffix(r.URL.Path, path)
}

// The engine would silently make a volume that is to be attached and is
// not there.
func TestMissingVolumeIsNotMadeByAttachingIt(t *testing.T) {
	t.Parallel()
	eng := harness.NewEngine(t)
	missing := "agent-sandbox-" + harness.UniqueName(t)
	gone := func(when string) {
		t.Helper()
		if v, err := eng.InspectVolume(t.Context(), missing); !errors.Is(err, engine.ErrNotFound) {
			t.Errorf("%s the volume is %+v, %v, want there to be none", when, v, err)
		}
	}
	c := harness.NewClient(t, sandbox.WithHost(harness.InFront(t, func(_ http.ResponseWriter, r *http.Request) bool {
		var made struct{ Name string }
		if r.Method == "POST" {
			body, err := io.ReadAll(r.Body)
			r.Body = io.NopCloser(bytes.NewReader(body))
			if json.Unmarshal(body, &made); !record.IsSweepName(made.Name) { // a sweep may be due just now
				t.Errorf("before it was refused there was the call %s with %q, %v", r.URL.Path, body, err)
			}
		}
		return false
	}, nil)))
	_, err := c.Create(t.Context(), sandbox.WithMounts(sandbox.Mount{Volume: missing, Target: "/x"}))
	if !errors.Is(err, sandbox.ErrVolumeNotFound) || !strings.Contains(err.Error(), missing) || !strings.Contains(err.Error(), "/x") {
		t.Errorf("Create with a volume that is missing: %v, want ErrVolumeNotFound, the volume and the target", err)
	}
	gone("after Create with a missing volume")

	// Now it goes after it was looked at, and before the container is made.
	labels := record.Base(record.RoleRWCopy, record.NewNonce(), eng.Now())
	labels[record.ID] = missing
	if _, err := eng.CreateVolume(t.Context(), missing, labels); err != nil {
		t.Fatal(err)
	}
	name := harness.UniqueName(t)
	harness.Remove(t, harness.NewClient(t), name)
	c = harness.NewClient(t, sandbox.WithHost(harness.InFront(t, func(_ http.ResponseWriter, r *http.Request) bool {
		if is(r, "POST", "/containers/create") && r.URL.Query().Get("name") == record.ContainerName(name) {
			if err := eng.RemoveVolume(context.Background(), missing, false); err != nil {
				t.Errorf("remove the volume: %v", err)
			}
		}
		return false
	}, nil)))
	_, err = c.Create(t.Context(), sandbox.WithName(name), sandbox.WithMounts(sandbox.Mount{Volume: missing, Target: "/x"}))
	if !errors.Is(err, sandbox.ErrVolumeNotFound) {
		t.Errorf("Create with a volume that goes meanwhile: %v, want ErrVolumeNotFound", err)
	}
	gone("after Create with a volume that went")
	if left := harness.Objects(t, eng, harness.Named(name)); len(left) > 0 {
		t.Errorf("left of it: %q", left)
	}
}

// A copy of many files can be cancelled between any two, and leaves nothing.
func TestCancelledMountLeavesNothing(t *testing.T) {
	eng := harness.NewEngine(t)
	dir := t.TempDir()
	harness.Shell(t, `cd "$0"; for d in $(seq 60); do mkdir $d; (cd $d; seq 500 | xargs touch); done`, dir)
	harness.BothWays(t, func(t *testing.T, c *sandbox.Client) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		name := harness.UniqueName(t)
		harness.Remove(t, harness.NewClient(t), name)
		var seen int64
		_, err := c.Create(ctx, sandbox.WithName(name), sandbox.WithMounts(sandbox.Mount{Source: dir, Target: "/data"}),
			sandbox.WithProgress(func(p sandbox.Progress) {
				if p.Step == "copy" && p.Files > 0 {
					seen = p.Files
					cancel()
				}
			}))
		if !errors.Is(err, context.Canceled) {
			t.Errorf("Create that is cancelled after %d files of its copy: %v", seen, err)
		}
		if left := harness.Objects(t, eng, harness.Named(name)); len(left) > 0 {
			t.Errorf("left of it: %q", left)
		}
	})
}

// A user that no passwd file knows writes in the copy what belongs to it.
func TestCopyIsForUsersWithoutAName(t *testing.T) {
	t.Parallel()
	dir := harness.HostDir(t, map[string]string{"f": "x"})
	harness.Shell(t, `cd "$0"; chown -R 12345:54321 .; chmod 700 .`, dir)
	sb := harness.CreateWith(t, harness.NewClient(t), []sandbox.Mount{{Source: dir, Target: "/data"}}, sandbox.WithUser("12345:54321"))
	if got := harness.Run(t, sb, "sh", "-c", "id -u; cat /data/f; echo y > /data/g; stat -c %u:%g /data /data/f /data/g | uniq"); got != "12345\nx12345:54321" {
		t.Errorf("in the copy the user sees %q", got)
	}
}

// What the engine makes above a target is root's.
func TestParentsOfATargetAreRoots(t *testing.T) {
	t.Parallel()
	sb := harness.CreateWith(t, harness.NewClient(t), []sandbox.Mount{{Source: t.TempDir(), Target: "/not/yet/there"}}, sandbox.WithUser("node"))
	if got := harness.Run(t, sb, "stat", "-c", "%U %a", "/not", "/not/yet"); got != "root 755\nroot 755" {
		t.Errorf("the directories above a target are %q", got)
	}
}

// What is gone is not found, and forced it is not either.
func TestDeletedVolumeIsNotFound(t *testing.T) {
	t.Parallel()
	c := harness.NewClient(t)
	name := orphan(t, "rwcopy", time.Hour)
	if report, err := c.DeleteVolume(t.Context(), name, sandbox.DeleteVolumeOptions{}); err != nil || report.String() != "volume "+name+": deleted" {
		t.Fatalf("DeleteVolume of an orphan: %v\n%s", err, report)
	}
	for what, opts := range map[string]sandbox.DeleteVolumeOptions{"": {}, " with Force": {Force: true}} {
		report, err := c.DeleteVolume(t.Context(), name, opts)
		var e *sandbox.Error
		if !errors.Is(err, sandbox.ErrVolumeNotFound) || !errors.As(err, &e) || e.StatusCode() != 404 || len(report.Volumes) != 0 {
			t.Errorf("DeleteVolume%s of what is gone: %v, %q, want ErrVolumeNotFound and 404", what, err, report)
		}
	}
}

// What happens between the look and the removal is the engine's to judge.
func TestVolumeThatIsTakenMeanwhileIsInUse(t *testing.T) {
	t.Parallel()
	eng := harness.NewEngine(t)
	foreign := enginetest.NewForeign(t)
	name, stranger := orphan(t, "rwcopy", time.Hour), "stranger-"+foreign.Suffix
	t.Cleanup(func() { eng.RemoveContainer(context.Background(), stranger, true) })
	meanwhile := func(do func() error) *sandbox.Client {
		var once sync.Once
		return harness.NewClient(t, sandbox.WithHost(harness.InFront(t, func(_ http.ResponseWriter, r *http.Request) bool {
			if is(r, "DELETE", "/volumes/"+name) {
				once.Do(func() {
					if err := do(); err != nil {
						t.Errorf("meanwhile: %v", err)
					}
				})
			}
			return false
		}, nil)))
	}
	taking := meanwhile(func() error {
		_, err := eng.CreateContainer(context.Background(), engine.ContainerSpec{Name: stranger, Image: foreign.Image, Cmd: []string{"/never"},
			Mounts: []engine.Mount{{Type: "volume", Source: name, Target: "/x", NoCopy: true}}})
		return err
	})
	_, err := taking.DeleteVolume(t.Context(), name, sandbox.DeleteVolumeOptions{Force: true})
	if !errors.Is(err, sandbox.ErrVolumeInUse) || !strings.Contains(err.Error(), "used by container "+stranger+", which is not a sandbox") {
		t.Errorf("DeleteVolume of what a stranger took meanwhile: %v, want ErrVolumeInUse and the stranger", err)
	}
	report, err := taking.CleanupOrphanedVolumes(t.Context(), harness.Cleanup(name))
	if !errors.Is(err, sandbox.ErrVolumeInUse) || len(report.Removed) > 0 || len(report.Failed) != 1 || report.FreedBytes != 0 {
		t.Errorf("CleanupOrphanedVolumes of what a stranger uses: %+v, %v", report, err)
	}
	if _, err := eng.InspectVolume(t.Context(), name); err != nil {
		t.Errorf("the volume: %v", err)
	}
	if err := eng.RemoveContainer(t.Context(), stranger, true); err != nil {
		t.Fatal(err)
	}
	going := meanwhile(func() error { return eng.RemoveVolume(context.Background(), name, false) })
	if _, err := going.DeleteVolume(t.Context(), name, sandbox.DeleteVolumeOptions{}); !errors.Is(err, sandbox.ErrVolumeNotFound) {
		t.Errorf("DeleteVolume of what somebody removed meanwhile: %v, want ErrVolumeNotFound", err)
	}
}

// Of a volume with another driver the size is unknown, which is no reason to warn,
// and it can't be used yet.
func TestVolumeOfAnotherDriverHasNoSize(t *testing.T) {
	t.Parallel()
	name := orphan(t, "rwcopy", time.Hour)
	c := harness.NewClient(t, sandbox.WithHost(harness.InFront(t, func(http.ResponseWriter, *http.Request) bool { return false }, func(r *http.Response) error {
		if !strings.HasSuffix(r.Request.URL.Path, "/volumes") && !strings.HasSuffix(r.Request.URL.Path, "/volumes/"+name) {
			return nil
		}
		body, err := io.ReadAll(r.Body)
		body = bytes.ReplaceAll(body, []byte(`"Driver":"local"`), []byte(`"Driver":"other"`))
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
		r.Header.Del("Content-Length")
		return err
	})))
	if v := volume(t, c, name); v.SizeBytes != sandbox.UnknownSize || v.Size != "unknown" || v.Warning != "" {
		t.Errorf("a volume of another driver is listed as %+v", v)
	}
	_, err := c.Create(t.Context(), sandbox.WithMounts(sandbox.Mount{Volume: name, Target: "/x"}))
	if !errors.Is(err, sandbox.ErrUnsupported) || !strings.Contains(err.Error(), `"other"`) {
		t.Errorf("Create with a volume of another driver: %v, want ErrUnsupported that names it", err)
	}
}

// While a sandbox is being made its volumes have no container, and are not orphans.
func TestVolumesOfASandboxBeingMadeAreNoOrphans(t *testing.T) {
	t.Parallel()
	name := harness.UniqueName(t)
	there, goOn := make(chan struct{}), make(chan struct{})
	var once sync.Once
	slow := harness.NewClient(t, sandbox.WithHost(harness.InFront(t, func(_ http.ResponseWriter, r *http.Request) bool {
		if is(r, "POST", "/containers/create") && r.URL.Query().Get("name") == record.ContainerName(name) {
			once.Do(func() {
				close(there)
				<-goOn
			})
		}
		return false
	}, nil)))
	c := harness.NewClient(t)
	harness.Remove(t, c, name)
	result := make(chan error, 1)
	go func() {
		sb, err := slow.Create(context.Background(), sandbox.WithName(name), sandbox.WithID(name),
			sandbox.WithMounts(sandbox.Mount{Source: harness.HostDir(t, map[string]string{"f": "x"}), Target: "/data"}))
		if err == nil {
			err = sb.Command(context.Background(), "test", "-e", "/data/f").Run()
			sb.Detach()
		}
		result <- err
	}()
	<-there
	list, err := c.ListVolumes(t.Context())
	if err != nil {
		t.Errorf("ListVolumes: %v", err)
	}
	var names []string
	for _, v := range list {
		if !strings.HasPrefix(v.Name, "agent-sandbox-"+name) {
			continue
		}
		names = append(names, v.Name)
		if v.Orphaned || !v.InUse || v.State() != "in use" {
			t.Errorf("a volume of a sandbox that is being made is listed as %+v", v)
		}
		if _, err := c.DeleteVolume(t.Context(), v.Name, sandbox.DeleteVolumeOptions{Force: true}); !errors.Is(err, sandbox.ErrVolumeInUse) || !strings.Contains(err.Error(), "being made") {
			t.Errorf("DeleteVolume of it, with Force: %v, want ErrVolumeInUse", err)
		}
	}
	if len(names) != 2 {
		t.Errorf("the sandbox has the volumes %q, want two", names)
	}
	if report, err := c.CleanupOrphanedVolumes(t.Context(), harness.Cleanup(names...)); err != nil || len(report.Removed) > 0 {
		t.Errorf("CleanupOrphanedVolumes of them: %+v, %v, want nothing removed", report, err)
	}
	close(goOn)
	if err := <-result; err != nil {
		t.Errorf("the sandbox that was being made: %v", err)
	}
}

// A volume is as old as its label says, whatever is written into it.
func TestVolumeKeepsItsAge(t *testing.T) {
	t.Parallel()
	c, eng := harness.NewClient(t), harness.NewEngine(t)
	sb := harness.Shared(t)
	name := "agent-sandbox-" + sb.ID()
	before := volume(t, c, name).CreatedAt
	got, err := eng.InspectVolume(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	label, err := time.Parse(time.RFC3339Nano, got.Labels[record.CreatedAt])
	if err != nil || !before.Equal(label) || before.Nanosecond() == 0 {
		t.Errorf("the volume is from %v, its label says %v, %v", before, label, err)
	}
	// The engine's time is that of the directory, to the second.
	harness.Eventually(t, "a write to the volume is seen in the engine's own time, or never", func() bool {
		harness.Run(t, sb, "sh", "-c", "touch age; rm age")
		now, err := eng.InspectVolume(t.Context(), name)
		return err != nil || !now.CreatedAt.Equal(got.CreatedAt) || time.Since(got.CreatedAt) > 5*time.Second
	})
	if after := volume(t, c, name).CreatedAt; !after.Equal(before) {
		t.Errorf("after a write the volume is from %v, before from %v", after, before)
	}
}

// Sizes don't need the engine's own disk usage, which fails when two ask at
// once, and a list is a list without them.
func TestManyAskForSizesAtOnce(t *testing.T) {
	t.Parallel()
	name := orphan(t, "rwcopy", time.Hour)
	proxy := enginetest.NewProxy(t)
	proxy.Arm(0, enginetest.None, nil)
	clients := []*sandbox.Client{harness.NewClient(t, sandbox.WithHost(proxy.Host())), harness.NewClient(t)}
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			list, err := clients[i%2].ListVolumes(t.Context())
			if err != nil {
				t.Errorf("ListVolumes: %v", err)
			}
			for _, v := range list {
				if v.Name == name && (v.SizeBytes != 0 || v.Size != "0 B") {
					t.Errorf("an empty volume is listed as %+v", v)
				}
			}
		})
	}
	all.Wait()
	for _, call := range proxy.Calls() {
		if strings.Contains(call, "/system/df") {
			t.Errorf("the engine was asked %s", call)
		}
	}

	refused := harness.NewClient(t, sandbox.WithHost(harness.InFront(t, func(w http.ResponseWriter, r *http.Request) bool {
		if !is(r, "POST", "/containers/create") || !strings.HasPrefix(r.URL.Query().Get("name"), "agent-sandbox-helper.") {
			return false
		}
		harness.Refuse(w, "no helper today")
		return true
	}, nil)))
	if v := volume(t, refused, name); v.SizeBytes != sandbox.UnknownSize || v.Size != "unknown" || v.Warning != "" {
		t.Errorf("without helpers a volume is listed as %+v, want its size unknown", v)
	}
	report, err := refused.CleanupOrphanedVolumes(t.Context(), harness.Cleanup(name))
	if err != nil || len(report.Removed) != 1 || report.FreedBytes != 0 {
		t.Errorf("CleanupOrphanedVolumes without sizes: %+v, %v, want it removed and nothing counted", report, err)
	}
	if text, err := json.Marshal(report); err != nil || !strings.Contains(string(text), name) {
		t.Errorf("the report as JSON: %s, %v", text, err)
	}
}
