package fork_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/bound"
	"github.com/seed-1a2d6d8f/sandbox/internal/claim"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// recordOf is a snapshot's record on the engine.
func recordOf(t *testing.T, eng *engine.Engine, id string) record.SnapshotRecord {
	t.Helper()
	v, err := eng.InspectVolume(t.Context(), record.SnapshotName(id))
	if err != nil {
		t.Fatal(err)
	}
	rec, ok := record.DecodeSnapshot(v.Name, v.Labels)
	if !ok {
		t.Fatalf("the record of snapshot %s can't be read: %v", id, v.Labels)
	}
	return rec
}

func fromSnap(snap sandbox.Snapshot) sandbox.CreateOption {
	return sandbox.WithSource(sandbox.FromSnapshot(snap.ID))
}

// A sandbox that changed nothing outside of its volumes leaves nothing to copy there; what
// it did change comes along, however small.
func TestSnapshotCopiesNoLayerThatIsAsItWas(t *testing.T) {
	t.Parallel()
	eng := harness.NewEngine(t)
	proxy := enginetest.NewProxy(t)
	c := harness.NewClient(t, sandbox.WithHost(proxy.Host()))
	// What is made of a snapshot, and whether a helper copied something for it.
	made := func(snap sandbox.Snapshot) (*sandbox.Sandbox, bool) {
		t.Helper()
		proxy.Arm(0, enginetest.None, nil)
		sb := harness.CreateWith(t, c, nil, fromSnap(snap))
		return sb, slices.ContainsFunc(proxy.Requests(), func(call string) bool { return strings.Contains(call, "create?name=agent-sandbox-helper.") })
	}
	layer := func(snap sandbox.Snapshot) bool {
		return slices.ContainsFunc(recordOf(t, eng, snap.ID).Trees, func(tree record.Tree) bool { return tree.Target == "" })
	}
	source := harness.CreateWith(t, c, []sandbox.Mount{{Source: harness.HostDir(t, map[string]string{"f": "copied"}), Target: "/c"}})
	harness.Run(t, source, "sh", "-c", "echo work >w")
	snap := harness.SnapshotOf(t, c, source, sandbox.SnapshotOptions{})
	if layer(snap) {
		t.Errorf("the snapshot of a sandbox that changed nothing has %+v", recordOf(t, eng, snap.ID).Trees)
	}
	sb, helped := made(snap)
	if out := harness.Run(t, sb, "cat", "w", "/c/f"); out != "work\ncopied" || helped {
		t.Errorf("made of it: %q, by a helper: %v", out, helped)
	}
	for change, show := range map[string][2]string{
		"rm /etc/motd":      {"ls /etc/motd 2>&1 || true", "ls: cannot access '/etc/motd': No such file or directory"},
		"chmod 711 /":       {"stat -c %a /", "711"},
		"mkdir -m 750 /new": {"stat -c %a /new", "750"},
	} {
		source := harness.CreateWith(t, c, nil)
		harness.Run(t, source, "sh", "-ec", change)
		snap := harness.SnapshotOf(t, c, source, sandbox.SnapshotOptions{})
		if !layer(snap) {
			t.Errorf("after %q the snapshot has no files of the container", change)
		}
		sb, _ := made(snap)
		if out := harness.Run(t, sb, "sh", "-c", show[0]); out != show[1] {
			t.Errorf("after %q what is made of the snapshot says %q, want %q", change, out, show[1])
		}
	}
}

// A source that the engine has paused, and that somebody unpauses in the middle, is copied once
// more, even where the fork was being started already.
func TestForkOfASourceThatDoesNotStandStill(t *testing.T) {
	t.Parallel()
	eng := harness.NewEngine(t)
	proxy := enginetest.NewProxy(t)
	proxy.PartNetworks()
	c := harness.NewClient(t, sandbox.WithHost(proxy.Host()))
	source := harness.CreateWith(t, c, nil)
	harness.Run(t, source, "sh", "-c", "echo w >/workspace/w; echo b >/etc/b")
	var once error
	proxy.ArmAt("/unpause", enginetest.Cancel, func() {
		once = eng.UnpauseContainer(context.Background(), record.ContainerName(source.Name()))
		if err := source.WriteFile(context.Background(), "w", []byte("again"), 0o644); err != nil {
			once = errors.Join(once, err)
		}
	})
	fork := forked(t, c, source.Name())
	if once != nil || !proxy.Fired() {
		t.Fatalf("the source was not unpaused by another: %v", once)
	}
	if out := harness.Run(t, fork, "sh", "-c", "cat /workspace/w /etc/b"); out != "againb" {
		t.Errorf("the fork has %q", out)
	}
	if st, err := source.Status(t.Context()); err != nil || st.State != sandbox.StateRunning {
		t.Errorf("the source is %v, %v", st.State, err)
	}
}

// A caller who goes while the engine tags the snapshot's image, which takes a moment on some
// engines, leaves no tag: the undo comes after it.
func TestCancelledSnapshotLeavesNoTag(t *testing.T) {
	t.Parallel()
	eng := harness.NewEngine(t)
	proxy := enginetest.NewProxy(t)
	c := harness.NewClient(t, sandbox.WithHost(proxy.Host()))
	source, err := c.Get(t.Context(), stock(t).Name(), sandbox.WithoutResume())
	if err != nil {
		t.Fatalf("Get: %v", err)
	}
	t.Cleanup(func() { source.Detach() })
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	returned := make(chan struct{})
	proxy.ArmAt("/tag", enginetest.Cancel, func() {
		cancel()
		select {
		case <-returned:
		case <-time.After(bound.CancelGrace / 2):
		}
	})
	snap, err := source.Snapshot(ctx, sandbox.SnapshotOptions{})
	close(returned)
	if !errors.Is(err, context.Canceled) || !proxy.Fired() {
		t.Fatalf("a snapshot that is cancelled during its last call: %+v, %v", snap, err)
	}
	_, id, _ := strings.Cut(proxy.Requests()[slices.IndexFunc(proxy.Requests(), func(call string) bool { return strings.Contains(call, "/tag?") })], "&tag=")
	if image, err := eng.InspectImage(t.Context(), record.SnapshotImage(id)); !errors.Is(err, engine.ErrNotFound) {
		t.Errorf("its tag %s afterwards: %v, %v, want none", id, image.Tags, err)
	}
}

// An expired snapshot stays for as long as something uses its files, and no longer. A volume that a
// deleted sandbox leaves uses them, too: attached to another sandbox it has them.
func TestExpiredSnapshotStaysWhileItsFilesAreUsed(t *testing.T) {
	t.Parallel()
	c, eng := harness.NewClient(t), harness.NewEngine(t)
	snap := harness.SnapshotOf(t, c, stock(t), sandbox.SnapshotOptions{Expiry: time.Hour})
	sb := madeBesideSweeps(t, c, eng, snap)
	wantStartsBesideCopiesOfMounts(t, c, sb)

	expire(t, eng, snap)
	if _, err := c.Prune(t.Context()); err != nil {
		t.Error(err)
	}
	if out := harness.Run(t, sb, "cat", "below"); out != "below" {
		t.Errorf("the sandbox made from an expired snapshot has %q", out)
	}
	recordOf(t, eng, snap.ID)

	harness.Run(t, sb, "sh", "-c", "echo above >above; echo more >>below")
	volume := record.WorkspaceName(sb.ID())
	if _, err := sb.Delete(t.Context(), sandbox.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := c.DeleteSnapshot(t.Context(), snap.ID); !errors.Is(err, sandbox.ErrSnapshotInUse) || !strings.Contains(err.Error(), volume) {
		t.Errorf("DeleteSnapshot below a volume that was preserved = %v", err)
	}
	again := harness.CreateWith(t, c, []sandbox.Mount{{Volume: volume, Target: "/old", Mode: sandbox.RO}})
	if out := harness.Run(t, again, "sh", "-c", "cd /old && cat *"); out != "above\nbelow\nmore" {
		t.Errorf("attached again it has %q", out)
	}
	if _, err := again.Delete(t.Context(), sandbox.DeleteOptions{Volumes: true}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.DeleteVolume(t.Context(), volume, sandbox.DeleteVolumeOptions{}); err != nil && !errors.Is(err, sandbox.ErrVolumeNotFound) {
		t.Fatal(err)
	}
	harness.Eventually(t, "an expired snapshot without users is swept", func() bool {
		harness.Sweep(t)
		return len(leftOf(t, eng, snap, sb)) == 0
	})
}

// expire has a snapshot expire an hour ago.
func expire(t *testing.T, eng *engine.Engine, snap sandbox.Snapshot) {
	t.Helper()
	rec := recordOf(t, eng, snap.ID)
	rec.ExpiresAt = time.Now().Add(-time.Hour)
	labels, err := rec.Labels()
	if err != nil {
		t.Fatal(err)
	}
	name := record.SnapshotName(snap.ID)
	if err := eng.RemoveVolume(t.Context(), name, false); err != nil {
		t.Fatal(err)
	}
	if _, err := eng.CreateVolume(t.Context(), name, labels); err != nil {
		t.Fatal(err)
	}
}

// wantNothingOf looks for what was a snapshot's, and a sandbox's that was made of it.
func wantNothingOf(t *testing.T, eng *engine.Engine, snap sandbox.Snapshot, made ...*sandbox.Sandbox) {
	t.Helper()
	if left := leftOf(t, eng, snap, made...); len(left) > 0 {
		t.Errorf("left of snapshot %s: %q", snap.ID, left)
	}
}

func leftOf(t *testing.T, eng *engine.Engine, snap sandbox.Snapshot, made ...*sandbox.Sandbox) (left []string) {
	t.Helper()
	ids := []string{snap.ID}
	for _, sb := range made {
		ids = append(ids, sb.ID())
	}
	for _, id := range ids {
		volumes, err := eng.ListVolumes(t.Context(), record.Filter(record.Managed, "true"), record.Filter(record.ID, id))
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range volumes {
			left = append(left, v.Name)
		}
	}
	image := record.SnapshotImage(snap.ID)
	if _, err := eng.InspectImage(t.Context(), image); err == nil {
		left = append(left, image)
	} else if !errors.Is(err, engine.ErrNotFound) {
		t.Fatal(err)
	}
	return left
}

// The engine's list of volumes is not of one moment: it may lack a snapshot's record, or a volume
// over its files, and yet not have the marker any more under which they were created.
func madeBesideSweeps(t *testing.T, c *sandbox.Client, eng *engine.Engine, snap sandbox.Snapshot) *sandbox.Sandbox {
	t.Helper()
	lacks := []string{record.SnapshotName(snap.ID)}
	behind := harness.NewClient(t, sandbox.WithHost(harness.InFront(t, func(http.ResponseWriter, *http.Request) bool { return false }, func(resp *http.Response) error {
		if !strings.HasSuffix(resp.Request.URL.Path, "/volumes") {
			return nil
		}
		var list struct{ Volumes []map[string]any }
		if err := json.NewDecoder(resp.Body).Decode(&list); err != nil {
			return err
		}
		resp.Body.Close()
		list.Volumes = slices.DeleteFunc(list.Volumes, func(v map[string]any) bool { return slices.Contains(lacks, v["Name"].(string)) })
		b, err := json.Marshal(list)
		resp.Body, resp.ContentLength = io.NopCloser(bytes.NewReader(b)), int64(len(b))
		resp.Header.Set("Content-Length", strconv.Itoa(len(b)))
		return err
	})))
	prune := func() {
		t.Helper()
		if _, err := behind.Prune(t.Context()); err != nil {
			t.Errorf("Prune: %v", err)
		}
	}
	prune()
	sb := harness.CreateWith(t, c, nil, fromSnap(snap))
	if got := harness.Read(t, sb, "below"); got != "below\n" {
		t.Errorf("after a sweep the snapshot has %q", got)
	}
	workspace := record.WorkspaceName(sb.ID())
	if v, err := eng.InspectVolume(t.Context(), workspace); err != nil || v.Labels[record.Snapshot] != snap.ID {
		t.Fatalf("the workspace is no volume over the snapshot's files: %+v, %v", v, err)
	}
	lacks = []string{workspace}
	prune()
	upper, work := record.OverlayNames(workspace)
	for _, name := range []string{upper, work} {
		if _, err := eng.InspectVolume(t.Context(), name); err != nil {
			t.Errorf("after a sweep the sandbox lacks a part of its workspace: %v", err)
		}
	}
	return sb
}

// The image that a snapshot's files were committed to goes with the last sandbox that was
// made from it, also when the snapshot went before.
func TestCommittedSnapshotImageGoesWithItsLastUser(t *testing.T) {
	t.Parallel()
	c, eng := harness.NewClient(t, harness.Behind(t, harness.WithoutLayers, harness.WithoutOverlays)), harness.NewEngine(t)
	source := harness.CreateWith(t, c, nil, sandbox.WithImage(harness.SmallImage(t)))
	harness.Write(t, source, "/srv/b", "b")
	snap := harness.SnapshotOf(t, c, source, sandbox.SnapshotOptions{})
	one, two := harness.CreateWith(t, c, nil, fromSnap(snap)), harness.CreateWith(t, c, nil, fromSnap(snap))
	if err := c.DeleteSnapshot(t.Context(), snap.ID); err != nil {
		t.Fatalf("DeleteSnapshot: %v", err)
	}
	for _, sb := range []*sandbox.Sandbox{one, two} {
		if _, err := c.Prune(t.Context()); err != nil {
			t.Error(err)
		}
		if out := harness.Read(t, sb, "/srv/b"); out != "b" {
			t.Errorf("what was made of it has %q", out)
		}
		if _, err := sb.Delete(t.Context(), sandbox.DeleteOptions{Volumes: true}); err != nil {
			t.Fatal(err)
		}
	}
	wantNothingOf(t, eng, snap, one, two)
}

// The files that a sandbox got with a new container may be all that a snapshot of it needs.
// They stay for as long as the snapshot, also when the sandbox is gone.
func TestPruneLeavesAnImageThatASnapshotHolds(t *testing.T) {
	t.Parallel()
	c, eng := harness.NewClient(t, harness.Behind(t, harness.WithoutLayers, harness.WithoutOverlays)), harness.NewEngine(t)
	before := harness.CreateWith(t, c, nil, sandbox.WithImage(harness.SmallImage(t)))
	harness.Write(t, before, "/srv/b", "b")
	got, err := eng.InspectContainer(t.Context(), record.ContainerName(before.Name()))
	if err != nil {
		t.Fatal(err)
	}
	// As a change commits them, an hour ago. Like that it has a marker, so that nobody else
	// prunes them meanwhile.
	marker, nonce := harness.UniqueName(t), record.NewNonce()
	mine, err := claim.Try(t.Context(), eng, marker, nonce, "a test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(mine.Stop)
	ref := record.LayerImage(nonce)
	image, err := eng.CommitContainer(t.Context(), got.ID, ref, record.Base(record.RoleLayer, nonce, eng.Now().Add(-time.Hour)))
	if err != nil {
		t.Fatal(err)
	}
	source := harness.CreateWith(t, c, nil, sandbox.WithImage(image.ID))
	snap := harness.SnapshotOf(t, c, source, sandbox.SnapshotOptions{})
	if held, err := eng.InspectImage(t.Context(), record.SnapshotImage(snap.ID)); err != nil || held.ID != image.ID {
		t.Fatalf("the snapshot's image is %s, %v, want %s, which its sandbox was made from", held.ID, err, image.ID)
	}
	mine.Stop()
	if err := claim.Drop(t.Context(), eng, marker, nonce, ""); err != nil {
		t.Fatal(err)
	}
	prune := func() {
		t.Helper()
		if report, err := c.Prune(t.Context()); err != nil {
			t.Errorf("Prune = %v, %v", report, err)
		}
	}
	prune()
	if held, err := eng.InspectImage(t.Context(), ref); err != nil || held.ID != image.ID {
		t.Errorf("after Prune the image of a sandbox that is there is %s, %v, want %s", held.ID, err, image.ID)
	}
	if _, err := source.Delete(t.Context(), sandbox.DeleteOptions{Volumes: true}); err != nil {
		t.Fatal(err)
	}
	prune()
	made := harness.CreateWith(t, c, nil, fromSnap(snap))
	if out := harness.Read(t, made, "/srv/b"); out != "b" {
		t.Errorf("what was made of the snapshot has %q", out)
	}
	if _, err := made.Delete(t.Context(), sandbox.DeleteOptions{Volumes: true}); err != nil {
		t.Fatal(err)
	}
	if err := c.DeleteSnapshot(t.Context(), snap.ID); err != nil {
		t.Errorf("DeleteSnapshot: %v", err)
	}
	prune()
	for _, ref := range []string{image.ID, ref} {
		if _, err := eng.InspectImage(t.Context(), ref); !errors.Is(err, engine.ErrNotFound) {
			t.Errorf("the image %s: %v, want none when nobody needs it", ref, err)
		}
	}
	wantNothingOf(t, eng, snap, source, made)
}

// Who makes a sandbox from a snapshot that is being deleted has all of it, or hears that
// there is none; and nothing is left of either.
func TestSnapshotThatIsDeletedMeanwhile(t *testing.T) {
	t.Parallel()
	sharing(t, func(t *testing.T, c *sandbox.Client, _ bool) {
		eng := harness.NewEngine(t)
		snap := harness.SnapshotOf(t, c, stock(t), sandbox.SnapshotOptions{})
		var wg sync.WaitGroup
		var mu sync.Mutex
		var made []*sandbox.Sandbox
		begun := make(chan struct{})
		begin := sync.OnceFunc(func() { close(begun) })
		for i := range 2 {
			name := harness.UniqueName(t)
			harness.Remove(t, c, name)
			at := []string{"container", "start"}[i%2]
			wg.Go(func() {
				defer begin()
				sb, err := c.Create(t.Context(), sandbox.WithName(name), harness.Quick, fromSnap(snap), sandbox.WithProgress(func(p sandbox.Progress) {
					if p.Step == at {
						begin()
					}
				}))
				switch {
				case err == nil:
					mu.Lock()
					defer mu.Unlock()
					made = append(made, sb)
				case !errors.Is(err, sandbox.ErrSnapshotNotFound) && !errors.Is(err, sandbox.ErrImageNotFound) && !errors.Is(err, sandbox.ErrVolumeNotFound):
					t.Errorf("Create from a snapshot that goes = %v", err)
				}
			})
		}
		wg.Go(func() {
			<-begun
			if err := c.DeleteSnapshot(t.Context(), snap.ID); err != nil && !errors.Is(err, sandbox.ErrSnapshotInUse) {
				t.Errorf("DeleteSnapshot = %v", err)
			}
		})
		wg.Wait()
		for _, sb := range made {
			if out := harness.Run(t, sb, "sh", "-c", "cat below /etc/b"); out != "below\nb" {
				t.Errorf("what was made has %q", out)
			}
			if _, err := sb.Delete(t.Context(), sandbox.DeleteOptions{Volumes: true}); err != nil {
				t.Error(err)
			}
		}
		if err := c.DeleteSnapshot(t.Context(), snap.ID); err != nil && !errors.Is(err, sandbox.ErrSnapshotNotFound) {
			t.Errorf("DeleteSnapshot at last = %v", err)
		}
		harness.Eventually(t, "nothing is left of the snapshot", func() bool {
			harness.Sweep(t)
			return len(leftOf(t, eng, snap)) == 0
		})
	})
}

// A volume that shares a snapshot's files is an overlay, which the kernel does not mount
// again before every copy of the mount before is gone: containers that begin have some.
func wantStartsBesideCopiesOfMounts(t *testing.T, c *sandbox.Client, sb *sandbox.Sandbox) {
	t.Helper()
	for what, do := range map[string]func() error{
		"Start": func() error { _, err := sb.Start(t.Context()); return err },
		"Fork": func() error { // whose helper mounts it
			fork, err := c.Fork(t.Context(), sb.Name())
			if err == nil {
				_, err = fork.Delete(t.Context(), sandbox.DeleteOptions{Volumes: true})
			}
			return err
		},
	} {
		if _, err := sb.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		copies := exec.Command("unshare", "--mount", "--propagation", "private", "sh", "-c", "echo; exec sleep 3")
		out, err := copies.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := copies.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := out.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		if _, err := sb.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := do(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		copies.Wait()
	}
	if out := harness.Run(t, sb, "cat", "below"); out != "below" {
		t.Errorf("it has %q", out)
	}
}
