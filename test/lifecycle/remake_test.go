package lifecycle_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// aTree makes files of every kind outside of volumes and in the workspace.
const aTree = `set -e
for d in /srv/data /workspace/data; do
	mkdir -p $d/sub
	head -c "$1" /dev/urandom > $d/large
	echo text > $d/file; chmod 4751 $d/file; chown 12:34 $d/sub
	ln $d/file $d/hard; ln -s ../file $d/sub/link; mkfifo $d/fifo
	touch -d '2020-02-03 04:05:06' $d/file $d/sub $d/large $d/fifo $d
	touch -h -d '2021-02-03 04:05:06' $d/sub/link
done
rm /etc/motd; chmod 700 /opt`

// ofTree tells of every file with mode, owner, time, links and content.
const ofTree = `find /srv/data /workspace/data /opt -printf '%p %y %m %U:%G %Ts %s %n %l\n' | sort; ls -d /etc/motd 2>&1
find /srv/data /workspace/data -type f -exec sha256sum {} + | sort -k 2`

func session(t *testing.T, sb *sandbox.Sandbox) {
	t.Helper()
	if _, err := sb.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := sb.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// A port that is added to a stopped sandbox is there in the next session,
// and so is all that was in the sandbox, inside and outside of its workspace.
func TestAChangedPortKeepsEveryFile(t *testing.T) {
	t.Parallel()
	changedPort(t, harness.Rounds(20, 200)<<20, "%T@", harness.NewClient(t))
}

// The same on an engine that has to commit those files, but for parts of seconds.
func TestAChangedPortKeepsEveryFileByCommit(t *testing.T) {
	t.Parallel()
	c := harness.NewClient(t, harness.Behind(t, harness.WithoutLayers))
	changedPort(t, 1<<20, "%Ts", c)
}

func changedPort(t *testing.T, size int, times string, c *sandbox.Client) {
	ofTree := strings.ReplaceAll(ofTree, "%Ts", times)
	sb := harness.NewSandbox(t, sandbox.WithName(harness.UniqueName(t)), sandbox.WithEnv(map[string]string{"SECRET": "s3cret"}),
		sandbox.WithTags(map[string]string{"k": "v"}), sandbox.WithVCPUs(0.7), sandbox.WithPidsLimit(300))
	harness.Run(t, sb, "sh", "-c", aTree, "sh", fmt.Sprint(size))
	before := harness.Run(t, sb, "sh", "-c", ofTree)
	if _, err := sb.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	harness.Update(t, sb, sandbox.WithPorts(3000))
	began := time.Now()
	other, err := c.Get(t.Context(), sb.Name())
	if err != nil {
		t.Fatal(err)
	}
	defer other.Detach()
	t.Logf("with these files the session began after %v", time.Since(began).Round(time.Millisecond))
	if after := harness.Run(t, sb, "sh", "-c", ofTree); after != before {
		t.Errorf("the files were\n%s\nand are\n%s", before, after)
	}
	server := sb.Command(t.Context(), "node", "-e", "require('http').createServer((q,r)=>r.end('hello')).listen(3000)")
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { server.Kill(); server.Wait() }()
	if err := sb.WaitPort(t.Context(), 3000); err != nil {
		t.Fatal(err)
	}
	at, err := sb.Port(t.Context(), 3000)
	if err != nil {
		t.Fatal(err)
	}
	reply, err := http.Get("http://" + at.String())
	if err != nil {
		t.Fatal(err)
	}
	reply.Body.Close()
	if got := harness.Run(t, sb, "sh", "-c", "echo $SECRET"); got != "s3cret" {
		t.Errorf("the environment has %q", got)
	}
	if st := harness.Inspect(t, sb.Name()); st.Image != sandbox.DefaultImage || st.ID != sb.ID() || st.Tags["k"] != "v" || st.CreatedAt.After(began) {
		t.Errorf("it tells of itself %+v", st.Info)
	}
	eng := harness.NewEngine(t)
	got, err := eng.InspectContainer(t.Context(), "agent-sandbox-"+sb.Name())
	if err != nil || got.NanoCPUs != 7e8 || got.PidsLimit != 300 || got.Memory == 0 {
		t.Errorf("limits %d, %d, %d, %v", got.NanoCPUs, got.PidsLimit, got.Memory, err)
	}

	// The image that holds the files has neither our labels nor the environment.
	images := harness.Layers(t, eng, sb.Name())
	if times == "%T@" {
		if len(images) > 0 {
			t.Errorf("images of the sandbox: %+v, want none", images)
		}
		return
	}
	if len(images) != 1 {
		t.Fatalf("images of the sandbox: %+v, want one", images)
	}
	image, err := eng.InspectImage(t.Context(), images[0].ID)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(fmt.Sprint(image.Env, image.Labels), "s3cret") || image.Labels["agent-sandbox.id"] != "" || image.Labels["agent-sandbox.tag.k"] != "" || image.Labels["agent-sandbox.control-key"] != "" {
		t.Errorf("the image has environment %q and labels %q", image.Env, image.Labels)
	}
	if _, err := sb.Delete(t.Context(), sandbox.DeleteOptions{Volumes: true}); err != nil {
		t.Fatal(err)
	}
	if _, err := eng.InspectImage(t.Context(), images[0].ID); !errors.Is(err, engine.ErrNotFound) {
		t.Errorf("after Delete the image is still there: %v", err)
	}
}

// A change that fails clears what it made, and nothing that a snapshot holds, also where
// that was made by a change of the same sandbox.
func TestAChangeThatFailsLeavesWhatASnapshotHolds(t *testing.T) {
	t.Parallel()
	c, eng := harness.NewClient(t, harness.Behind(t, harness.WithoutLayers, harness.WithoutOverlays)), harness.NewEngine(t)
	sb := harness.CreateWith(t, c, nil, sandbox.WithImage(harness.SmallImage(t)))
	change := func(port int) error {
		t.Helper()
		harness.Write(t, sb, "/srv/b", fmt.Sprint(port))
		if _, err := sb.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
		harness.Update(t, sb, sandbox.WithPorts(port))
		_, err := sb.Start(t.Context())
		return err
	}
	if err := change(3000); err != nil {
		t.Fatal(err)
	}
	snap := harness.SnapshotOf(t, c, sb, sandbox.SnapshotOptions{})
	held := "agent-sandbox-snapshot:" + snap.ID
	if images := harness.Layers(t, eng, sb.Name()); len(images) != 1 || !slices.Contains(images[0].Tags, held) {
		t.Fatalf("images of the sandbox: %+v, want one that is the snapshot's, too", images)
	}
	if err := change(4000); err != nil {
		t.Fatal(err)
	}
	other := harness.CreateWith(t, c, nil)
	volume := "agent-sandbox-" + other.ID()
	if _, err := other.Delete(t.Context(), sandbox.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	harness.Update(t, sb, sandbox.WithMounts(sandbox.Mount{Volume: volume, Target: "/v", Mode: sandbox.RW}))
	if err := eng.RemoveVolume(t.Context(), volume, false); err != nil {
		t.Fatal(err)
	}
	if err := change(5000); !errors.Is(err, sandbox.ErrVolumeNotFound) {
		t.Fatalf("Start without a volume that is to be attached = %v", err)
	}
	if image, err := eng.InspectImage(t.Context(), held); err != nil {
		t.Errorf("the image of the snapshot: %+v, %v", image, err)
	}
	made := harness.CreateWith(t, c, nil, sandbox.WithSource(sandbox.FromSnapshot(snap.ID)))
	if out := harness.Read(t, made, "/srv/b"); out != "3000" {
		t.Errorf("what was made of the snapshot has %q", out)
	}
}

// The main process, its environment and the mounts are those of the next session;
// commands have the environment at once, whoever runs them, and no label says it.
func TestMainProcessMountsAndEnvironmentCanBeUpdated(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), []byte("one"), 0o644); err != nil {
		t.Fatal(err)
	}
	copied := sandbox.Mount{Source: dir, Target: "/copied", Mode: sandbox.RWCopy}
	sb := harness.NewSandbox(t, sandbox.WithName(harness.UniqueName(t)), sandbox.WithEnv(map[string]string{"OLD": "1", "BOTH": "1"}), sandbox.WithPorts(3000))
	script := "echo main $OLD $BOTH $NEW > /workspace/said; cat /copied/file >> /workspace/said; exec sleep 1000"
	harness.Update(t, sb, sandbox.WithCommand("sh", "-c", script), sandbox.WithMounts(copied), sandbox.WithPorts(),
		sandbox.WithEnv(map[string]string{"BOTH": "2", "NEW": "tell-nobody"}))
	for _, v := range revisions(t, sb.ID()) {
		if strings.Contains(fmt.Sprint(v.Labels), "tell-nobody") {
			t.Errorf("a label says the environment: %v", v.Labels)
		}
	}
	other, err := harness.NewClient(t).Get(t.Context(), sb.Name())
	if err != nil {
		t.Fatal(err)
	}
	defer other.Detach()
	for _, h := range []*sandbox.Sandbox{sb, other} {
		if got := harness.Run(t, h, "sh", "-c", "echo $OLD $BOTH $NEW; ls /copied 2>&1; true"); !strings.HasPrefix(got, "1 2 tell-nobody\nls:") {
			t.Errorf("in the running session: %q", got)
		}
	}
	if _, err := sb.Port(t.Context(), 3000); err != nil {
		t.Errorf("the running session's port: %v", err)
	}
	said := func() string {
		var got string
		harness.Eventually(t, "the main process has spoken", func() bool {
			b, _ := sb.ReadFile(t.Context(), "said")
			got = string(b)
			return strings.HasPrefix(got, "main") && strings.Count(got, "\n") == 1 && !strings.HasSuffix(got, "\n")
		})
		return got
	}
	session(t, sb)
	if got := said(); got != "main 1 2 tell-nobody\none" {
		t.Errorf("the main process of the next session says %q", got)
	}
	if got := harness.Run(t, sb, "sh", "-c", "echo $OLD $BOTH $NEW; echo two > /copied/file; echo here > kept"); got != "1 2 tell-nobody" {
		t.Errorf("a command of the next session says %q", got)
	}
	if _, err := sb.Port(t.Context(), 3000); !errors.Is(err, sandbox.ErrInvalidArgument) {
		t.Errorf("a port that was taken away: %v, want ErrInvalidArgument", err)
	}
	// A copy that is there stays; one that is taken away is preserved.
	kept := sb.Mounts()
	if len(kept) != 1 || kept[0].Volume == "" {
		t.Fatalf("mounts %v", kept)
	}
	remove := func() { harness.NewEngine(t).RemoveVolume(context.Background(), kept[0].Volume, false) }
	defer remove()
	harness.Update(t, sb, sandbox.WithMounts(copied), sandbox.WithEnv(map[string]string{"NEW": "again"}))
	session(t, sb)
	if got := harness.Run(t, sb, "sh", "-c", "cat /copied/file; echo $OLD $BOTH $NEW"); got != "two\n1 2 again" {
		t.Errorf("a copy that was given again has %q", got)
	}
	harness.Update(t, sb, sandbox.WithMounts())
	session(t, sb)
	if got := sb.Mounts(); len(got) != 0 {
		t.Errorf("mounts %v, want none", got)
	}
	if _, err := harness.NewEngine(t).InspectVolume(t.Context(), kept[0].Volume); err != nil {
		t.Errorf("the copy that was taken away: %v", err)
	}
	// What can't be had stops no more than the start.
	gone := filepath.Join(t.TempDir(), "gone")
	if err := os.Mkdir(gone, 0o755); err != nil {
		t.Fatal(err)
	}
	harness.Update(t, sb, sandbox.WithMounts(sandbox.Mount{Source: gone, Target: "/gone", Mode: sandbox.RO}))
	if err := os.Remove(gone); err != nil {
		t.Fatal(err)
	}
	if _, err := sb.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := sb.Start(t.Context()); err == nil {
		t.Error("Start with a mount that is not there: no error")
	}
	harness.Update(t, sb, sandbox.WithMounts())
	if got := harness.Run(t, sb, "cat", "kept"); got != "here" {
		t.Errorf("what is left in the workspace is %q", got)
	}
}

// The volumes that an image asks for go with the sandbox's files, and with the sandbox.
func TestVolumesThatAnImageAsksForStay(t *testing.T) {
	t.Parallel()
	sb := harness.NewSandbox(t, sandbox.WithName(harness.UniqueName(t)), sandbox.WithImage(harness.SmallImage(t, "VOLUME /asked")))
	if err := sb.WriteFile(t.Context(), "/asked/file", []byte("here"), 0o644); err != nil {
		t.Fatal(err)
	}
	for port := range 2 {
		harness.Update(t, sb, sandbox.WithPorts(3000+port))
		session(t, sb)
		if b, err := sb.ReadFile(t.Context(), "/asked/file"); err != nil || string(b) != "here" {
			t.Errorf("the file is %q, %v", b, err)
		}
	}
	got, err := harness.NewEngine(t).InspectContainer(t.Context(), "agent-sandbox-"+sb.Name())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := sb.Delete(t.Context(), sandbox.DeleteOptions{Volumes: true}); err != nil {
		t.Fatal(err)
	}
	for _, m := range got.Mounts {
		if _, err := harness.NewEngine(t).InspectVolume(t.Context(), m.Name); m.Target == "/asked" && !errors.Is(err, engine.ErrNotFound) {
			t.Errorf("after Delete volume %s: %v", m.Name, err)
		}
	}
}

// The rename that ends a replacement may take effect after who asked for it has gone. Then the one
// container has both names in turn, and is not its own predecessor.
func TestRenameThatEndsLateLosesNothing(t *testing.T) {
	t.Parallel()
	c, eng := harness.NewClient(t), harness.NewEngine(t)
	sb := harness.CreateWith(t, c, nil)
	if _, err := sb.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	got, err := eng.InspectContainer(t.Context(), record.ContainerName(sb.Name()))
	if err != nil {
		t.Fatal(err)
	}
	rec, _ := record.Decode(got.Labels)
	if err := eng.RenameContainer(t.Context(), got.ID, record.NextName(sb.Name())); err != nil {
		t.Fatal(err)
	}
	var late sync.Once
	host := harness.InFront(t, func(_ http.ResponseWriter, r *http.Request) bool {
		if strings.HasSuffix(r.URL.Path, "/containers/"+record.ContainerName(sb.Name())+"/json") {
			late.Do(func() {
				if err := eng.RenameContainer(context.Background(), got.ID, record.ContainerName(sb.Name())); err != nil {
					t.Error(err)
				}
			})
		}
		return false
	}, nil)
	if err := harness.NewStore(t, host).FinishReplacement(t.Context(), rec, nil); err != nil {
		t.Error(err)
	}
	if now, err := eng.InspectContainer(t.Context(), record.ContainerName(sb.Name())); err != nil || now.ID != got.ID {
		t.Errorf("the container: %q, %v; want %q", now.ID, err, got.ID)
	}
}
