package fork_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// spoil changes, removes and adds files in the container and in each volume.
const spoil = `
for d in /var/tree /workspace/tree '/the copy'; do
	echo other >"$d/empty"; chmod 600 "$d/empty"; chown 9:9 "$d/empty"; rm -r "$d/sub"; mkdir "$d/more"; echo x >"$d/more/x"
	touch -d @1000000000 "$d/empty" "$d/more/x"
done
echo x >/workspace/new; chmod 711 /workspace '/the copy'; chown 7:8 /workspace
echo later >/etc/b; rm /etc/b2; echo here >/etc/motd; rm /usr/share/doc/new; echo y >/usr/share/doc/new; echo z >/usr/share/doc/z; mkdir /usr/share/info; echo x >/opt/new; chmod 700 /var/tmp
# A storage driver outside of the kernel shows another time until it has the file from the kernel's cache.
touch -d @1000000000 /etc/b /etc/motd /usr/share/doc/new /usr/share/doc/z /opt/new`

// volumesOf are the names of the volumes that a sandbox's container mounts.
func volumesOf(t *testing.T, eng *engine.Engine, sb *sandbox.Sandbox) (names []string) {
	t.Helper()
	got, err := eng.InspectContainer(t.Context(), record.ContainerName(sb.Name()))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range got.Mounts {
		if m.Type == "volume" {
			names = append(names, m.Name)
		}
	}
	slices.Sort(names)
	return names
}

// A rolled back sandbox has all files of the snapshot and no others, with modes, owners and
// times, and its name, ID, settings and volumes.
func TestRollbackGivesBackEverything(t *testing.T) {
	t.Parallel()
	byCommit(t, func(t *testing.T, c *sandbox.Client, exact bool) {
		eng := harness.NewEngine(t)
		sb := grow(t, c, sandbox.WithTags(map[string]string{"a": "b"}), sandbox.WithEnv(map[string]string{"E": "e"}),
			sandbox.WithVCPUs(0.5), sandbox.WithUser("root"), sandbox.WithPidsLimit(500), sandbox.WithTimeout(time.Hour))
		want, roots := files(t, sb, exact), harness.Run(t, sb, "stat", "-c", "%n %a %u:%g %Y", "/workspace", "/the copy")
		snap := harness.SnapshotOf(t, c, sb, sandbox.SnapshotOptions{})
		volumes, was := volumesOf(t, eng, sb), harness.Status(t, sb)
		harness.Run(t, sb, "sh", "-ec", spoil)
		sleeper := sb.Command(t.Context(), "sleep", "1000")
		if err := sleeper.Start(); err != nil {
			t.Fatal(err)
		}
		if err := sb.Rollback(t.Context(), snap.ID); err != nil {
			t.Fatalf("Rollback: %v", err)
		}
		if err := sleeper.Wait(); err == nil {
			t.Error("a command survived the rollback")
		}
		now := harness.Status(t, sb)
		if now.State != sandbox.StateRunning || !now.StartedAt.After(was.StartedAt) {
			t.Errorf("after the rollback it is %s, started at %v; before at %v", now.State, now.StartedAt, was.StartedAt)
		}
		if diff := cmp.Diff(want, files(t, sb, exact)); diff != "" {
			t.Errorf("files (-snapshot +rolled back):\n%s", diff)
		}
		if got := harness.Run(t, sb, "stat", "-c", "%n %a %u:%g %Y", "/workspace", "/the copy"); got != roots {
			t.Errorf("the roots of the volumes are\n%s\nwant\n%s", got, roots)
		}
		if got := harness.Run(t, sb, "ls", "/workspace"); got != "tree" {
			t.Errorf("/workspace has %q", got)
		}
		if got := harness.Run(t, sb, "ls", "/opt"); got != "" {
			t.Errorf("/opt has %q", got)
		}
		if got := harness.Run(t, sb, "printenv", "E"); got != "e" {
			t.Errorf("E is %q", got)
		}
		if diff := cmp.Diff(volumes, volumesOf(t, eng, sb)); diff != "" {
			t.Errorf("volumes (-before +after):\n%s", diff)
		}
		is := harness.Inspect(t, sb.Name())
		if is.ID != was.ID || is.Name != was.Name || is.Tags["a"] != "b" || is.Image != was.Image || !is.CreatedAt.Equal(was.CreatedAt) {
			t.Errorf("after the rollback: %+v\nbefore: %+v", is.Info, was.Info)
		}
		if diff := cmp.Diff(was.Settings, is.Settings); diff != "" {
			t.Errorf("settings (-before +after the rollback):\n%s", diff)
		}
		if !exact {
			return // forks of forks by commit are those of chainOfForks
		}
		fork := forked(t, c, sb.Name())
		if diff := cmp.Diff(want, files(t, fork, exact)); diff != "" {
			t.Errorf("a fork's files (-snapshot +fork):\n%s", diff)
		}
		again := harness.SnapshotOf(t, c, sb, sandbox.SnapshotOptions{})
		if again.Parent != snap.ID {
			t.Errorf("a later snapshot's parent is %q, want %q", again.Parent, snap.ID)
		}
		// It can be repeated, and the snapshot is as it was.
		harness.Run(t, sb, "sh", "-ec", spoil)
		if err := sb.Rollback(t.Context(), snap.ID); err != nil {
			t.Fatalf("Rollback: %v", err)
		}
		if diff := cmp.Diff(want, files(t, sb, exact)); diff != "" {
			t.Errorf("files after a second rollback:\n%s", diff)
		}
	})
}

// A stopped sandbox stays stopped, and its files are those of the snapshot at once. What was
// updated since stays updated.
func TestRollbackOfAStoppedSandbox(t *testing.T) {
	t.Parallel()
	c := harness.NewClient(t)
	sb := harness.CreateWith(t, c, nil)
	harness.Write(t, sb, "f", "old")
	snap := harness.SnapshotOf(t, c, sb, sandbox.SnapshotOptions{})
	harness.Write(t, sb, "f", "new")
	if _, err := sb.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	harness.Update(t, sb, sandbox.WithPorts(1234))
	if err := sb.Rollback(t.Context(), snap.ID); err != nil {
		t.Fatalf("Rollback: %v", err)
	}
	// Its new container never ran.
	if st := harness.Status(t, sb); st.State != sandbox.StateStopped || !st.StartedAt.IsZero() || !st.EndedAt.IsZero() {
		t.Errorf("after the rollback it is %s, started at %v, ended at %v; want it stopped and no times", st.State, st.StartedAt, st.EndedAt)
	}
	if got := harness.Read(t, sb, "f"); got != "old" {
		t.Errorf("f of the stopped sandbox is %q", got)
	}
	if _, err := sb.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := harness.Run(t, sb, "cat", "f"); got != "old" {
		t.Errorf("f is %q", got)
	}
	if _, err := sb.Port(t.Context(), 1234); err != nil {
		t.Errorf("the updated port: %v", err)
	}
	// A later change of the container takes nothing of the rollback along.
	harness.Run(t, sb, "sh", "-c", "echo -n newer >f")
	if _, err := sb.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	harness.Update(t, sb, sandbox.WithPorts(1235))
	if _, err := sb.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := harness.Run(t, sb, "cat", "f"); got != "newer" {
		t.Errorf("after a later update f is %q", got)
	}
}

// An attached volume is not rolled back, and one of its own that another sandbox has attached keeps it
// from being so. What does not fit is refused before anything happens: the session goes on.
func TestRollbackLeavesSharedVolumesAndWhatDoesNotFit(t *testing.T) {
	t.Parallel()
	c := harness.NewClient(t)
	owner := harness.CreateWith(t, c, nil)
	sb := harness.CreateWith(t, c, []sandbox.Mount{{Volume: record.WorkspaceName(owner.ID()), Target: "/shared"},
		{Source: harness.HostDir(t, map[string]string{"f": "f"}), Target: "/copied"}})
	harness.Run(t, sb, "sh", "-c", "echo old >/shared/f; echo old >f")
	snap, owners := harness.SnapshotOf(t, c, sb, sandbox.SnapshotOptions{}), harness.SnapshotOf(t, c, owner, sandbox.SnapshotOptions{})
	harness.Run(t, sb, "sh", "-c", "echo new >/shared/f; echo new >f")
	was := harness.Status(t, owner).StartedAt
	for _, refused := range []struct {
		sb   *sandbox.Sandbox
		to   string
		want error
		says string
	}{
		{owner, owners.ID, sandbox.ErrVolumeInUse, sb.Name()},
		{sb, owners.ID, sandbox.ErrInvalidArgument, "no files for the sandbox's copies at /copied"},
		{owner, snap.ID, sandbox.ErrInvalidArgument, "the sandbox has no copies at /copied"},
		{owner, "nosuchsnapsh", sandbox.ErrSnapshotNotFound, ""},
		{owner, "../x", sandbox.ErrInvalidArgument, ""},
	} {
		if err := refused.sb.Rollback(t.Context(), refused.to); !errors.Is(err, refused.want) || !strings.Contains(err.Error(), refused.says) {
			t.Errorf("Rollback to %s = %v, want %v and %q", refused.to, err, refused.want, refused.says)
		}
	}
	if st := harness.Status(t, owner); !st.StartedAt.Equal(was) {
		t.Errorf("a refused rollback started another session: %v, before %v", st.StartedAt, was)
	}
	if err := sb.Rollback(t.Context(), snap.ID); err != nil {
		t.Fatalf("Rollback: %v", err)
	}
	if got := harness.Run(t, sb, "cat", "f", "/shared/f"); got != "old\nnew" {
		t.Errorf("the files are %q", got)
	}
	if got := harness.Run(t, owner, "cat", "f"); got != "new" {
		t.Errorf("the refused rollback left %q", got)
	}
	for _, sb := range []*sandbox.Sandbox{sb, owner} {
		if _, err := c.Delete(t.Context(), sb.Name(), sandbox.DeleteOptions{Volumes: true}); err != nil {
			t.Fatal(err)
		}
	}
	if err := owner.Rollback(t.Context(), owners.ID); !errors.Is(err, sandbox.ErrNotFound) {
		t.Errorf("Rollback of a deleted sandbox = %v", err)
	}
}

// interrupt leaves a sandbox that was rolled back as a process leaves it that dies when its rollback
// is committed and no volume has been filled.
func interrupt(t *testing.T, eng *engine.Engine, sb *sandbox.Sandbox) {
	t.Helper()
	harness.Run(t, sb, "sh", "-c", "echo half >f; echo half >h")
	if _, err := sb.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := eng.RenameContainer(t.Context(), record.ContainerName(sb.Name()), record.NextName(sb.Name())); err != nil {
		t.Fatal(err)
	}
}

// Nobody gets to see the files of a rollback that is not complete: whoever uses the sandbox
// completes it, and its snapshot can't be deleted before.
func TestRollbackIsCompletedBeforeAnyUse(t *testing.T) {
	t.Parallel()
	c, eng := harness.NewClient(t), harness.NewEngine(t)
	sb := harness.CreateWith(t, c, nil)
	harness.Run(t, sb, "sh", "-c", "echo old | tee f >/etc/f")
	snap := harness.SnapshotOf(t, c, sb, sandbox.SnapshotOptions{})
	harness.Run(t, sb, "sh", "-c", "echo new | tee f >/etc/f; echo new >g")
	if err := sb.Rollback(t.Context(), snap.ID); err != nil {
		t.Fatalf("Rollback: %v", err)
	}
	for name, use := range map[string]func(t *testing.T) string{
		"file of a stopped sandbox": func(t *testing.T) string { return harness.Read(t, sb, "f") },
		"command":                   func(t *testing.T) string { return harness.Run(t, sb, "cat", "f") },
		"fork":                      func(t *testing.T) string { return harness.Run(t, forked(t, c, sb.ID()), "cat", "f") },
		"snapshot": func(t *testing.T) string {
			return harness.Run(t, harness.CreateWith(t, c, nil, fromSnap(harness.SnapshotOf(t, c, sb, sandbox.SnapshotOptions{}))), "cat", "f")
		},
	} {
		t.Run(name, func(t *testing.T) {
			interrupt(t, eng, sb)
			if err := c.DeleteSnapshot(t.Context(), snap.ID); !errors.Is(err, sandbox.ErrSnapshotInUse) || !strings.Contains(err.Error(), sb.Name()) {
				t.Errorf("DeleteSnapshot = %v", err)
			}
			harness.Sweep(t)
			if got := strings.TrimSpace(use(t)); got != "old" {
				t.Errorf("f is %q", got)
			}
			if _, err := eng.InspectContainer(t.Context(), record.ContainerName(sb.Name())); err != nil {
				t.Errorf("the container's name: %v", err)
			}
			if got := harness.Run(t, sb, "ls"); got != "f" {
				t.Errorf("the workspace has %q", got)
			}
		})
	}
	interrupt(t, eng, sb)
	wantNoCompletion(t, c, eng, sb, snap)
}

// A sandbox whose rollback can't be completed, because somebody removed the snapshot's files by
// hand, says so and can be deleted.
func wantNoCompletion(t *testing.T, c *sandbox.Client, eng *engine.Engine, sb *sandbox.Sandbox, snap sandbox.Snapshot) {
	t.Helper()
	if err := eng.RemoveVolume(t.Context(), record.FrozenName(snap.ID, 0), true); err != nil {
		t.Fatal(err)
	}
	if _, err := sb.ReadFile(t.Context(), "f"); !errors.Is(err, sandbox.ErrSnapshotNotFound) || !strings.Contains(err.Error(), snap.ID) {
		t.Errorf("ReadFile = %v", err)
	}
	if err := sb.Command(t.Context(), "true").Run(); !errors.Is(err, sandbox.ErrSnapshotNotFound) {
		t.Errorf("a command = %v", err)
	}
	report, err := c.Delete(t.Context(), sb.Name(), sandbox.DeleteOptions{Volumes: true, Snapshots: true})
	if err != nil || len(report.Volumes) != 1 || len(report.Snapshots) != 1 || report.Snapshots[0].Status != sandbox.VolumeDeleted {
		t.Errorf("Delete = %+v, %v", report, err)
	}
	if !harness.Gone(t, c, eng, sb.Name()) {
		t.Error("something is left")
	}
}

// A deletion takes the snapshots of its sandbox along, but not those of others, nor one that
// another sandbox stands on.
func TestDeleteWithSnapshots(t *testing.T) {
	t.Parallel()
	sharing(t, func(t *testing.T, c *sandbox.Client, shares bool) {
		sb := harness.CreateWith(t, c, nil)
		used, unused, others := harness.SnapshotOf(t, c, sb, sandbox.SnapshotOptions{}), harness.SnapshotOf(t, c, sb, sandbox.SnapshotOptions{}), harness.SnapshotOf(t, c, stock(t), sandbox.SnapshotOptions{})
		user := harness.CreateWith(t, c, nil, sandbox.WithSource(sandbox.FromSnapshot(used.ID)))
		kept, err := c.Delete(t.Context(), user.Name(), sandbox.DeleteOptions{})
		if err != nil || kept.Snapshots != nil {
			t.Fatalf("Delete without snapshots = %+v, %v", kept, err)
		}
		t.Cleanup(func() {
			c.DeleteVolume(context.Background(), record.WorkspaceName(user.ID()), sandbox.DeleteVolumeOptions{})
		})
		report, err := sb.Delete(t.Context(), sandbox.DeleteOptions{Volumes: true, Snapshots: true})
		if err != nil {
			t.Fatalf("Delete: %v", err)
		}
		status := map[bool]string{true: sandbox.VolumePreserved, false: sandbox.VolumeDeleted}[shares]
		if r := report.Snapshots; len(r) != 2 || r[0].ID != unused.ID || r[0].Status != sandbox.VolumeDeleted || r[1].ID != used.ID || r[1].Status != status {
			t.Errorf("the report is %+v", r)
		}
		if text := report.String(); !strings.Contains(text, "snapshot "+unused.ID+": deleted") {
			t.Errorf("the report reads %q", text)
		}
		there := func(id string) bool {
			_, err := c.GetSnapshot(t.Context(), id)
			if err != nil && !errors.Is(err, sandbox.ErrSnapshotNotFound) {
				t.Errorf("GetSnapshot: %v", err)
			}
			return err == nil
		}
		if there(unused.ID) || there(used.ID) != shares || !there(others.ID) {
			t.Errorf("there are: unused %v, used %v, another's %v", there(unused.ID), there(used.ID), there(others.ID))
		}
		if shares {
			if snap, err := c.GetSnapshot(t.Context(), used.ID); err != nil || !slices.Contains(snap.Volumes, record.WorkspaceName(user.ID())) {
				t.Errorf("GetSnapshot = %+v, %v", snap, err)
			}
			if _, err := c.DeleteVolume(t.Context(), record.WorkspaceName(user.ID()), sandbox.DeleteVolumeOptions{}); err != nil {
				t.Error(err)
			}
			if err := c.DeleteSnapshot(t.Context(), used.ID); err != nil {
				t.Error(err)
			}
		}
	})
}

// Whoever rolls back, writes, resumes and forks at the same moment: the files are all of one
// moment.
func TestRollbacksAtOnce(t *testing.T) {
	t.Parallel()
	c, other := harness.NewClient(t), harness.NewClient(t)
	sb := harness.CreateWith(t, c, nil)
	second, err := other.Get(t.Context(), sb.Name())
	if err != nil {
		t.Fatal(err)
	}
	defer second.Detach()
	const put = "for f in /etc/f /workspace/f; do echo %s >$f; done"
	var snaps []sandbox.Snapshot
	for _, text := range []string{"first", "second"} {
		harness.Run(t, sb, "sh", "-c", fmt.Sprintf(put, text))
		snaps = append(snaps, harness.SnapshotOf(t, c, sb, sandbox.SnapshotOptions{}))
	}
	whole := func(what, out string) {
		t.Helper()
		if lines := strings.Fields(out); len(lines) != 2 || lines[0] != lines[1] {
			t.Errorf("%s has %q", what, out)
		}
	}
	rounds := harness.Rounds(1, 5)
	var work errgroup.Group
	for i, handle := range []*sandbox.Sandbox{sb, second} {
		work.Go(func() error {
			for range rounds {
				if err := handle.Rollback(t.Context(), snaps[i].ID); err != nil {
					return fmt.Errorf("Rollback: %w", err)
				}
			}
			return nil
		})
	}
	work.Go(func() error {
		for i := range rounds {
			fork, err := c.Fork(t.Context(), sb.Name(), harness.Quick)
			if err != nil {
				t.Logf("Fork %d: %v", i, err) // the source may never stand still
				continue
			}
			out, err := fork.Command(t.Context(), "cat", "/etc/f", "/workspace/f").Output()
			if err != nil {
				t.Errorf("in fork %d: %v", i, err)
			}
			whole("a fork", string(out))
			_, err = fork.Delete(t.Context(), sandbox.DeleteOptions{Volumes: true})
			if err != nil {
				return err
			}
		}
		return nil
	})
	done := make(chan struct{})
	var resumes sync.WaitGroup
	resumes.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
				_ = second.Command(t.Context(), "true").Run() // its session may end
			}
		}
	})
	if err := work.Wait(); err != nil {
		t.Error(err)
	}
	close(done)
	resumes.Wait()
	whole("the sandbox", harness.Run(t, sb, "cat", "/etc/f", "/workspace/f"))
}
