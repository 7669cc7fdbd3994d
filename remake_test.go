package sandbox_test

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
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
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
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

// layers are the images that belong to the sandbox alone.
func layers(t testing.TB, eng *engine.Engine, name string) []engine.Image {
	t.Helper()
	got, err := eng.InspectContainer(context.Background(), "agent-sandbox-"+name)
	if err != nil {
		t.Fatal(err)
	}
	images, err := eng.ListImages(context.Background(), "agent-sandbox.nonce="+got.Labels["agent-sandbox.nonce"])
	if err != nil {
		t.Fatal(err)
	}
	return images
}

// Shows 5; S4.1: a port that is added to a stopped sandbox is there in the next session,
// and so is all that was in the sandbox, inside and outside of its workspace.
func TestAChangedPortKeepsEveryFile(t *testing.T) {
	t.Parallel()
	changedPort(t, 200<<20, "%T@", newClient(t))
}

// E92: and on an engine that has to commit those files, but for parts of seconds.
func TestAChangedPortKeepsEveryFileByCommit(t *testing.T) {
	t.Parallel()
	c := newClient(t, behind(t, withoutLayers))
	changedPort(t, 1<<20, "%Ts", c)
}

func changedPort(t *testing.T, size int, times string, c *sandbox.Client) {
	ofTree := strings.ReplaceAll(ofTree, "%Ts", times)
	sb := newSandbox(t, sandbox.WithName(uniqueName(t)), sandbox.WithEnv(map[string]string{"SECRET": "s3cret"}),
		sandbox.WithTags(map[string]string{"k": "v"}), sandbox.WithVCPUs(0.7), sandbox.WithPidsLimit(300))
	run(t, sb, "sh", "-c", aTree, "sh", fmt.Sprint(size))
	before := run(t, sb, "sh", "-c", ofTree)
	if _, err := sb.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	update(t, sb, sandbox.WithPorts(3000))
	began := time.Now()
	other, err := c.Get(t.Context(), sb.Name())
	if err != nil {
		t.Fatal(err)
	}
	defer other.Detach()
	t.Logf("with these files the session began after %v", time.Since(began).Round(time.Millisecond))
	if after := run(t, sb, "sh", "-c", ofTree); after != before {
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
	if got := run(t, sb, "sh", "-c", "echo $SECRET"); got != "s3cret" {
		t.Errorf("the environment has %q", got)
	}
	if st := inspect(t, sb.Name()); st.Image != sandbox.DefaultImage || st.ID != sb.ID() || st.Tags["k"] != "v" || st.CreatedAt.After(began) {
		t.Errorf("it tells of itself %+v", st.Info)
	}
	eng := directly(t)
	got, err := eng.InspectContainer(t.Context(), "agent-sandbox-"+sb.Name())
	if err != nil || got.NanoCPUs != 7e8 || got.PidsLimit != 300 || got.Memory == 0 {
		t.Errorf("limits %d, %d, %d, %v", got.NanoCPUs, got.PidsLimit, got.Memory, err)
	}

	// E92: the image that holds the files has neither our labels nor the environment.
	images := layers(t, eng, sb.Name())
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
	if _, err := sb.Delete(t.Context(), sandbox.PreserveVolumes(false)); err != nil {
		t.Fatal(err)
	}
	if _, err := eng.InspectImage(t.Context(), images[0].ID); !errors.Is(err, engine.ErrNotFound) {
		t.Errorf("after Delete the image is still there: %v", err)
	}
}

// smallImage imports an image with next to nothing in it: on some storage drivers a
// commit walks through all that an image has.
func smallImage(t *testing.T, changes ...string) string {
	t.Helper()
	eng := directly(t)
	ref := "agent-sandbox-test:" + uniqueName(t)
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	w.WriteHeader(&tar.Header{Name: "srv/", Typeflag: tar.TypeDir, Mode: 0o755})
	w.Close()
	if err := eng.ImportImage(t.Context(), ref, &b, changes); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := eng.RemoveImage(context.Background(), ref, false); err != nil {
			t.Errorf("RemoveImage: %v", err)
		}
	})
	return ref
}

// putFiles writes files outside of volumes and in the workspace, and readFiles tells of them.
func putFiles(ctx context.Context, sb *sandbox.Sandbox, text string) error {
	for _, name := range []string{"/srv/data/file", "/workspace/file"} {
		err := errors.Join(sb.MkdirAll(ctx, filepath.Dir(name), 0o750), sb.WriteFile(ctx, name, []byte(text), 0o600),
			sb.Chown(ctx, name, 12, 34), sb.Chmod(ctx, name, fs.ModeSetuid|0o751))
		if err != nil {
			return err
		}
	}
	return nil
}

func readFiles(ctx context.Context, sb *sandbox.Sandbox) (string, error) {
	var all strings.Builder
	for _, name := range []string{"/srv/data", "/srv/data/file", "/workspace/file"} {
		st, err := sb.Stat(ctx, name)
		if err != nil {
			return "", err
		}
		owner, _ := st.Sys().(*sandbox.FileStat)
		fmt.Fprintln(&all, name, st.Mode(), owner.UID, owner.GID)
		if !st.IsDir() {
			b, err := sb.ReadFile(ctx, name)
			if err != nil {
				return "", err
			}
			fmt.Fprintf(&all, "%q\n", b)
		}
	}
	return all.String(), nil
}

// changed is the fault loop's operation: the start of a session that takes a new container.
func changed(t *testing.T) operation {
	image := smallImage(t)
	port := func(x *trial) int { return 1000 + 10*x.k + int(x.fault) }
	var was sync.Map // what each stand's files are
	return again(operation{
		arrange: func(x *trial) {
			x.name = x.kept
			ctx := context.Background()
			sb, err := x.clean.GetOrCreate(ctx, x.name, sandbox.WithImage(image), quick)
			if err != nil {
				x.Fatal(err)
			}
			defer sb.Detach()
			if err := putFiles(ctx, sb, x.Name()); err != nil {
				x.Fatal(err)
			}
			files, err := readFiles(ctx, sb)
			if err != nil {
				x.Fatal(err)
			}
			was.Store(x.kept, files)
			if _, err := sb.Stop(ctx); err != nil {
				x.Fatal(err)
			}
			if err := sb.Update(ctx, sandbox.WithPorts(port(x))); err != nil {
				x.Fatal(err)
			}
		},
		open: handle,
		act: func(ctx context.Context, x *trial) error {
			_, err := x.sb.Start(ctx)
			return err
		},
		done: func(x *trial) {
			x.is(sandbox.StateRunning)
			ctx, cancel := context.WithTimeout(context.Background(), callBound)
			defer cancel()
			files, err := readFiles(ctx, x.sb)
			if want, _ := was.Load(x.kept); err != nil || files != want {
				x.Errorf("%s: the files are\n%s\n%v, want\n%s", x.where(), files, err, want)
			}
			if _, err := x.sb.Port(ctx, port(x)); err != nil {
				x.Errorf("%s: it returned nil and port %d: %v", x.where(), port(x), err)
			}
		},
		after: func(x *trial) {
			for _, left := range objects(x, x.eng, named(x.name)) {
				if strings.Contains(left, ".N (") || strings.Contains(left, ".U (") || strings.Contains(left, "pending") {
					x.Errorf("%s: left: %s", x.where(), left)
				}
			}
			if images := layers(x, x.eng, x.name); len(images) > 1 {
				x.Errorf("%s: images %+v", x.where(), images)
			}
		},
	})
}

// Shows 5: whatever the engine has done and not told while a container is replaced,
// nothing is lost, and the same start without a fault does it.
func TestAChangedContainerSurvivesALostReplyOfAnyCall(t *testing.T) {
	testPlan(t, changed(t), stands, func(_ int, call string) []enginetest.Fault {
		if isRead(call) {
			return nil
		}
		return []enginetest.Fault{enginetest.LoseReply}
	})
}

// A change that fails clears what it made, and nothing that a snapshot holds, also where
// that was made by a change of the same sandbox.
func TestAChangeThatFailsLeavesWhatASnapshotHolds(t *testing.T) {
	t.Parallel()
	c, eng := newClient(t, behind(t, withoutLayers, withoutOverlays)), directly(t)
	sb := createWith(t, c, nil)
	change := func(port int) error {
		t.Helper()
		run(t, sb, "sh", "-c", fmt.Sprintf("echo %d >/etc/b", port))
		if _, err := sb.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
		update(t, sb, sandbox.WithPorts(port))
		_, err := sb.Start(t.Context())
		return err
	}
	if err := change(3000); err != nil {
		t.Fatal(err)
	}
	snap := snapshotOf(t, c, sb)
	held := "agent-sandbox-snapshot:" + snap.ID
	if images := layers(t, eng, sb.Name()); len(images) != 1 || !slices.Contains(images[0].Tags, held) {
		t.Fatalf("images of the sandbox: %+v, want one that is the snapshot's, too", images)
	}
	if err := change(4000); err != nil {
		t.Fatal(err)
	}
	other := createWith(t, c, nil)
	volume := "agent-sandbox-" + other.ID()
	if _, err := other.Delete(t.Context()); err != nil {
		t.Fatal(err)
	}
	update(t, sb, sandbox.WithMounts(sandbox.Mount{Volume: volume, Target: "/v", Mode: sandbox.RW}))
	if err := eng.RemoveVolume(t.Context(), volume, false); err != nil {
		t.Fatal(err)
	}
	if err := change(5000); !errors.Is(err, sandbox.ErrVolumeNotFound) {
		t.Fatalf("Start without a volume that is to be attached = %v", err)
	}
	if image, err := eng.InspectImage(t.Context(), held); err != nil {
		t.Errorf("the image of the snapshot: %+v, %v", image, err)
	}
	made := createWith(t, c, nil, sandbox.WithSource(sandbox.FromSnapshot(snap.ID)))
	if out := run(t, made, "cat", "/etc/b"); out != "3000" {
		t.Errorf("what was made of the snapshot has %q", out)
	}
}

// Shows 5: and with every fault in every call.
func TestAChangedContainerSurvivesAFaultInAnyCallSoak(t *testing.T) {
	soak(t)
	testFaults(t, changed(t))
}

func init() {
	// starter starts the session of a sandbox when it is told to.
	roles["starter"] = func(args []string) error {
		ctx := context.Background()
		c, err := sandbox.NewClient(sandbox.WithHost(args[0]))
		if err != nil {
			return err
		}
		sb, err := c.Get(ctx, args[1], sandbox.WithoutResume())
		if err != nil {
			return err
		}
		fmt.Println("ready")
		if _, err := fmt.Scanln(); err != nil && err.Error() != "unexpected newline" {
			return err
		}
		_, err = sb.Start(ctx)
		return err
	}
}

// Shows 5: a program that is killed at any engine call of the replacement leaves a
// sandbox that the next caller gets whole, with what was changed.
func TestAChangedContainerSurvivesTheDeathOfWhoStartsIt(t *testing.T) {
	t.Parallel()
	eng, image := directly(t), smallImage(t)
	// Each has a sandbox of its own: a dead one's claim lasts for as long as its lease.
	trial := func(t *testing.T, k int, call string) (calls []string) {
		c := newClient(t)
		sb, err := c.Create(t.Context(), sandbox.WithName(uniqueName(t)), sandbox.WithImage(image), quick)
		if err != nil {
			t.Fatal(err)
		}
		remove(t, c, sb.Name())
		defer sb.Detach()
		if err := putFiles(t.Context(), sb, t.Name()); err != nil {
			t.Fatal(err)
		}
		before, err := readFiles(t.Context(), sb)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := sb.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
		update(t, sb, sandbox.WithPorts(3000))
		proxy := enginetest.NewProxy(t)
		cmd := process(t, "starter", proxy.Host(), sb.Name())
		cmd.Stderr = nil
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		bufio.NewReader(out).ReadString('\n')
		fault := enginetest.Cancel
		if k == 0 {
			fault = enginetest.None
		}
		proxy.Arm(k, fault, func() { cmd.Process.Kill() })
		in.Write([]byte("\n"))
		err = cmd.Wait()
		calls = proxy.Calls()
		proxy.Disarm()
		if (err != nil) != (k > 0) {
			t.Errorf("killed at call %d, %s: %v", k, call, err)
		}
		began := time.Now()
		again, err := newClient(t).Get(t.Context(), sb.Name())
		if err != nil {
			t.Fatalf("Get after a death at call %d, %s: %v", k, call, err)
		}
		defer again.Detach()
		t.Logf("Get after a death at call %d, %s: %v", k, call, time.Since(began).Round(time.Millisecond))
		if after, err := readFiles(t.Context(), again); err != nil || after != before {
			t.Errorf("the files were\n%s\nand are\n%s\n%v", before, after, err)
		}
		if _, err := again.Port(t.Context(), 3000); err != nil {
			t.Error(err)
		}
		if list, err := c.List(t.Context(), sandbox.NamePrefix(sb.Name())); err != nil || len(list) != 1 {
			t.Errorf("List: %+v, %v, want one", list, err)
		}
		if images := layers(t, eng, sb.Name()); len(images) > 1 {
			t.Errorf("images %+v, want one at most", images)
		}
		for _, left := range objects(t, eng, named(sb.Name())) {
			if strings.Contains(left, ".N (") || strings.Contains(left, ".U (") || strings.Contains(left, "pending") {
				t.Errorf("left: %s", left)
			}
		}
		return calls
	}
	calls := trial(t, 0, "")
	t.Logf("calls: %q", calls)
	for i, call := range calls {
		// The others are for the soak test: each waits for a lease.
		some := strings.HasPrefix(call, "DELETE /containers") || strings.Contains(call, "/rename")
		if some || os.Getenv("SANDBOX_SOAK") != "" {
			t.Run(fmt.Sprintf("%02d", i+1), func(t *testing.T) {
				t.Parallel()
				trial(t, i+1, call)
			})
		}
	}
}

// S4.1: the main process, its environment and the mounts are those of the next session;
// commands have the environment at once, whoever runs them, and no label says it.
func TestMainProcessMountsAndEnvironmentCanBeUpdated(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), []byte("one"), 0o644); err != nil {
		t.Fatal(err)
	}
	copied := sandbox.Mount{Source: dir, Target: "/copied", Mode: sandbox.RWCopy}
	sb := newSandbox(t, sandbox.WithName(uniqueName(t)), sandbox.WithEnv(map[string]string{"OLD": "1", "BOTH": "1"}), sandbox.WithPorts(3000))
	script := "echo main $OLD $BOTH $NEW > /workspace/said; cat /copied/file >> /workspace/said; exec sleep 1000"
	update(t, sb, sandbox.WithCommand("sh", "-c", script), sandbox.WithMounts(copied), sandbox.WithPorts(),
		sandbox.WithEnv(map[string]string{"BOTH": "2", "NEW": "tell-nobody"}))
	for _, v := range revisions(t, sb.ID()) {
		if strings.Contains(fmt.Sprint(v.Labels), "tell-nobody") {
			t.Errorf("a label says the environment: %v", v.Labels)
		}
	}
	other, err := newClient(t).Get(t.Context(), sb.Name())
	if err != nil {
		t.Fatal(err)
	}
	defer other.Detach()
	for _, h := range []*sandbox.Sandbox{sb, other} {
		if got := run(t, h, "sh", "-c", "echo $OLD $BOTH $NEW; ls /copied 2>&1; true"); !strings.HasPrefix(got, "1 2 tell-nobody\nls:") {
			t.Errorf("in the running session: %q", got)
		}
	}
	if _, err := sb.Port(t.Context(), 3000); err != nil {
		t.Errorf("the running session's port: %v", err)
	}
	said := func() string {
		var got string
		eventually(t, "the main process has spoken", func() bool {
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
	if got := run(t, sb, "sh", "-c", "echo $OLD $BOTH $NEW; echo two > /copied/file"); got != "1 2 tell-nobody" {
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
	remove := func() { directly(t).RemoveVolume(context.Background(), kept[0].Volume, false) }
	defer remove()
	update(t, sb, sandbox.WithMounts(copied), sandbox.WithEnv(map[string]string{"NEW": "again"}))
	session(t, sb)
	if got := run(t, sb, "sh", "-c", "cat /copied/file; echo $OLD $BOTH $NEW"); got != "two\n1 2 again" {
		t.Errorf("a copy that was given again has %q", got)
	}
	update(t, sb, sandbox.WithMounts())
	session(t, sb)
	if got := sb.Mounts(); len(got) != 0 {
		t.Errorf("mounts %v, want none", got)
	}
	if _, err := directly(t).InspectVolume(t.Context(), kept[0].Volume); err != nil {
		t.Errorf("the copy that was taken away: %v", err)
	}
	// What can't be had stops no more than the start.
	update(t, sb, sandbox.WithMounts(sandbox.Mount{Source: "/no/such/directory", Target: "/gone", Mode: sandbox.RO}))
	if _, err := sb.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := sb.Start(t.Context()); err == nil {
		t.Error("Start with a mount that is not there: no error")
	}
	update(t, sb, sandbox.WithMounts())
	if got := run(t, sb, "cat", "said"); got == "" {
		t.Error("nothing is left of the workspace")
	}
}

// The volumes that an image asks for go with the sandbox's files, and with the sandbox.
func TestVolumesThatAnImageAsksForStay(t *testing.T) {
	t.Parallel()
	sb := newSandbox(t, sandbox.WithName(uniqueName(t)), sandbox.WithImage(smallImage(t, "VOLUME /asked")))
	if err := sb.WriteFile(t.Context(), "/asked/file", []byte("here"), 0o644); err != nil {
		t.Fatal(err)
	}
	for port := range 2 {
		update(t, sb, sandbox.WithPorts(3000+port))
		session(t, sb)
		if b, err := sb.ReadFile(t.Context(), "/asked/file"); err != nil || string(b) != "here" {
			t.Errorf("the file is %q, %v", b, err)
		}
	}
	got, err := directly(t).InspectContainer(t.Context(), "agent-sandbox-"+sb.Name())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := sb.Delete(t.Context(), sandbox.PreserveVolumes(false)); err != nil {
		t.Fatal(err)
	}
	for _, m := range got.Mounts {
		if _, err := directly(t).InspectVolume(t.Context(), m.Name); m.Target == "/asked" && !errors.Is(err, engine.ErrNotFound) {
			t.Errorf("after Delete volume %s: %v", m.Name, err)
		}
	}
}
