package security_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/internal/gittest"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// evil is the program of testdata, as it is and as an image's /bin/evil.
var evil = sync.OnceValues(func() ([]byte, error) { return harness.BuildProgram("evil", runtime.GOARCH) })

// program is the evil program under a name.
func program(t *testing.T, name string) harness.TarMember {
	t.Helper()
	b, err := evil()
	if err != nil {
		t.Fatal(err)
	}
	m := harness.TarFile(name, string(b))
	m.Mode = 0o755
	return m
}

// image imports an image of these files, with the evil program beside them.
func image(t *testing.T, members ...harness.TarMember) string {
	t.Helper()
	return harness.Image(t, harness.Tar(t, append(members, program(t, "bin/evil"))...))
}

// evilDir is a directory whose file guest is the evil program.
func evilDir(t *testing.T) string {
	t.Helper()
	b, err := evil()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "guest"), b, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// neverEvil fails if the evil program has run in a container of the sandbox.
func neverEvil(t *testing.T, name string) {
	t.Helper()
	log, err := harness.NewEngine(t).Logs(t.Context(), record.ContainerName(name), engine.LogSpec{})
	if errors.Is(err, engine.ErrNotFound) {
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	text, err := io.ReadAll(log)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(text, []byte("EVIL")) {
		t.Errorf("a program of the tenant ran as PID 1: %q", text)
	}
}

// sound checks that the sandbox's session is one of ours.
func sound(t *testing.T, sb *sandbox.Sandbox) {
	t.Helper()
	neverEvil(t, sb.Name())
	if out, err := sb.Command(t.Context(), "/bin/evil", "true").CombinedOutput(); err != nil {
		t.Errorf("a command: %v, %q", err, out)
	}
}

const guestDir = "/.agent-sandbox"

// Whatever brings a link into a sandbox, no mount goes by it to where the guest was in every
// sandbox, or to another place that is not for mounts.
func TestNoLinkLeadsAMountAstray(t *testing.T) {
	t.Parallel()
	plain := image(t)
	linked := func(name, to string) string { return image(t, harness.TarLink(name, to)) }
	mount := func(target string) sandbox.ChangeOption {
		return sandbox.WithMounts(sandbox.Mount{Source: evilDir(t), Target: target})
	}
	create := func(opts ...sandbox.CreateOption) func(*testing.T, *sandbox.Client, string) (*sandbox.Sandbox, error) {
		return func(t *testing.T, c *sandbox.Client, name string) (*sandbox.Sandbox, error) {
			return c.Create(t.Context(), append(opts, harness.Quick, sandbox.WithName(name))...)
		}
	}
	// within makes a sandbox with links that root inside made.
	within := func(t *testing.T, c *sandbox.Client, links ...string) *sandbox.Sandbox {
		sb := harness.CreateWith(t, c, nil, sandbox.WithImage(plain))
		for i := 0; i < len(links); i += 2 {
			if err := sb.Symlink(t.Context(), links[i+1], links[i]); err != nil {
				t.Fatal(err)
			}
		}
		return sb
	}
	tarball := func(members ...harness.TarMember) sandbox.CreateOption {
		file := filepath.Join(t.TempDir(), "source.tar")
		if err := os.WriteFile(file, harness.Tar(t, members...), 0o600); err != nil {
			t.Fatal(err)
		}
		return sandbox.WithSource(sandbox.Tarball{Path: file})
	}
	repo := t.TempDir()
	if err := os.Symlink(guestDir, filepath.Join(repo, "cache")); err != nil {
		t.Fatal(err)
	}
	gittest.Run(t, repo, "init", "-q")
	gittest.Run(t, repo, "add", "-A")
	gittest.Run(t, repo, "commit", "-q", "-m", "a link")
	type way struct {
		what string
		want string // of the error
		make func(*testing.T, *sandbox.Client, string) (*sandbox.Sandbox, error)
	}
	ways := []way{
		{"an image's target", "is not for mounts", create(sandbox.WithImage(linked("data", guestDir)), mount("/data"))},
		{"an image's target by a chain", "/data", create(sandbox.WithImage(image(t, harness.TarLink("data", "a"), harness.TarLink("a", "srv/../b"), harness.TarLink("b", ".."+guestDir))), mount("/data"))},
		{"an image's directory on the way", "is not for mounts", create(sandbox.WithImage(linked("a", "/")), mount("/a/.agent-sandbox/x"))},
		{"an image's workspace", "is not for mounts", create(sandbox.WithImage(linked("workspace", guestDir)), tarball(program(t, "guest")))},
		{"an image's link to the workspace", "reserved for the sandbox volume", create(sandbox.WithImage(linked("data", "workspace")), mount("/data"))},
		{"an image's link to the root", "is the root of the sandbox", create(sandbox.WithImage(linked("data", "/")), mount("/data"))},
		{"an image's link to devices", "/dev is not for mounts", create(sandbox.WithImage(linked("data", "/dev/x")), mount("/data"))},
		{"an image's link to another target", "the same directory", create(sandbox.WithImage(linked("data", "other")), sandbox.WithMounts(
			sandbox.Mount{Source: evilDir(t), Target: "/data"}, sandbox.Mount{Source: t.TempDir(), Target: "/other"}))},
		{"an image's loop", "", create(sandbox.WithImage(image(t, harness.TarLink("data", "loop"), harness.TarLink("loop", "data"))), mount("/data"))},
		{"a tarball's link below the workspace", "and no mount follows it", create(sandbox.WithImage(plain), tarball(harness.TarLink("cache", guestDir)), mount("/workspace/cache"))},
		{"a repository's link below the workspace", "and no mount follows it", create(sandbox.WithImage(plain), sandbox.WithSource(sandbox.Git{URL: "file://" + repo}), mount("/workspace/cache"))},
		{"a copied directory's link", "and no mount follows it", func(t *testing.T, c *sandbox.Client, name string) (*sandbox.Sandbox, error) {
			dir := t.TempDir()
			if err := os.Symlink(guestDir, filepath.Join(dir, "in")); err != nil {
				t.Fatal(err)
			}
			return c.Create(t.Context(), sandbox.WithImage(plain), harness.Quick, sandbox.WithName(name), sandbox.WithMounts(
				sandbox.Mount{Source: dir, Target: "/data"}, sandbox.Mount{Source: evilDir(t), Target: "/data/in"}))
		}},
		{"a volume's link", "and no mount follows it", func(t *testing.T, c *sandbox.Client, name string) (*sandbox.Sandbox, error) {
			from := harness.CreateWith(t, c, []sandbox.Mount{{Source: t.TempDir(), Target: "/data"}}, sandbox.WithImage(plain))
			if err := from.Symlink(t.Context(), guestDir, "/data/in"); err != nil {
				t.Fatal(err)
			}
			return c.Create(t.Context(), sandbox.WithImage(plain), harness.Quick, sandbox.WithName(name), sandbox.WithMounts(
				sandbox.Mount{Volume: harness.CopiedVolume(t, from, "/data"), Target: "/data"}, sandbox.Mount{Source: evilDir(t), Target: "/data/in"}))
		}},
		{"a link to the running guest", "and no mount follows it", func(t *testing.T, c *sandbox.Client, name string) (*sandbox.Sandbox, error) {
			sb := harness.CreateWith(t, c, []sandbox.Mount{{Source: evilDir(t), Target: "/a/b"}}, sandbox.WithImage(plain))
			if err := errors.Join(sb.Rename(t.Context(), "/a", "/c"), sb.Mkdir(t.Context(), "/a", 0o755),
				sb.Symlink(t.Context(), path.Dir(harness.Raw(t, sb).Config.Entrypoint[0]), "/a/b")); err != nil {
				t.Fatal(err)
			}
			return restart(t, sb)
		}},
	}
	// What is copied from one container to another is so in two ways.
	copies := []way{
		{"a link of the layer, by Update", "and no mount follows it", func(t *testing.T, c *sandbox.Client, _ string) (*sandbox.Sandbox, error) {
			sb := within(t, c, "/data", guestDir)
			if err := sb.Update(t.Context(), mount("/data")); err != nil {
				return sb, err
			}
			return restart(t, sb)
		}},
		{"a link of the layer, by Fork", "and no mount follows it", func(t *testing.T, c *sandbox.Client, name string) (*sandbox.Sandbox, error) {
			return c.Fork(t.Context(), within(t, c, "/data", guestDir).Name(), sandbox.WithName(name), mount("/data"))
		}},
		{"a link of a snapshot", "and no mount follows it", func(t *testing.T, c *sandbox.Client, name string) (*sandbox.Sandbox, error) {
			snap := harness.SnapshotOf(t, c, within(t, c, "/data", guestDir), sandbox.SnapshotOptions{})
			return c.Create(t.Context(), sandbox.WithSource(sandbox.FromSnapshot(snap.ID)), harness.Quick, sandbox.WithName(name), mount("/data"))
		}},
		{"a link in the workspace, by Update", "and no mount follows it", func(t *testing.T, c *sandbox.Client, _ string) (*sandbox.Sandbox, error) {
			sb := within(t, c, "/workspace/cache", guestDir)
			if err := sb.Update(t.Context(), mount("/workspace/cache")); err != nil {
				return sb, err
			}
			return restart(t, sb)
		}},
		{"a link in the workspace, by Fork", "and no mount follows it", func(t *testing.T, c *sandbox.Client, name string) (*sandbox.Sandbox, error) {
			return c.Fork(t.Context(), within(t, c, "/workspace/cache", guestDir).Name(), sandbox.WithName(name), mount("/workspace/cache"))
		}},
		{"a link in the workspace of a snapshot", "and no mount follows it", func(t *testing.T, c *sandbox.Client, name string) (*sandbox.Sandbox, error) {
			snap := harness.SnapshotOf(t, c, within(t, c, "/workspace/cache", guestDir), sandbox.SnapshotOptions{})
			return c.Create(t.Context(), sandbox.WithSource(sandbox.FromSnapshot(snap.ID)), harness.Quick, sandbox.WithName(name), mount("/workspace/cache"))
		}},
	}
	// A layer that is committed is an image, whose links are resolved.
	committed := slices.Clone(copies)
	for i := range committed[:3] {
		committed[i].want = "is not for mounts"
	}
	if !harness.Soaking() {
		committed = committed[:3] // a workspace is no part of a layer
	}
	for _, engine := range []struct {
		what string
		opts []sandbox.ClientOption
		ways []way
	}{
		{"layers on disk", nil, slices.Concat(ways, copies)},
		{"layers by commit", []sandbox.ClientOption{harness.Behind(t, harness.WithoutLayers)}, committed},
	} {
		for _, tt := range engine.ways {
			t.Run(tt.what+", "+engine.what, func(t *testing.T) {
				t.Parallel()
				c, name := harness.NewClient(t, engine.opts...), harness.UniqueName(t)
				harness.Remove(t, c, name)
				sb, err := tt.make(t, c, name)
				if sb != nil {
					name = sb.Name()
					t.Cleanup(func() { sb.Detach() })
				}
				neverEvil(t, name)
				if !notFollowed(err) && (err == nil || tt.want != "" && (!errors.Is(err, sandbox.ErrInvalidArgument) || !strings.Contains(err.Error(), tt.want))) {
					t.Errorf("got %v, want ErrInvalidArgument with %q", err, tt.want)
				}
			})
		}
	}
}

// notFollowed reports whether err is that of an engine that follows no such link: it looks at none of the files then.
func notFollowed(err error) bool {
	return errors.Is(err, sandbox.ErrInvalidArgument) && strings.Contains(err.Error(), "this engine does not follow")
}

// restart ends a sandbox's session and begins another one.
func restart(t *testing.T, sb *sandbox.Sandbox) (*sandbox.Sandbox, error) {
	t.Helper()
	if _, err := sb.Stop(t.Context()); err != nil {
		t.Fatalf("Stop: %v", err)
	}
	_, err := sb.Start(t.Context())
	return sb, err
}

// Links that lead to where a mount may be work as they do in any container. Engines that make mounts with Go's os.Root refuse
// those that lead to nothing; the error says so.
func TestMountsFollowHarmlessLinks(t *testing.T) {
	t.Parallel()
	ref := image(t, harness.TarLink("data", "srv/data"), harness.TarFile("srv/data/own", ""), harness.TarLink("var/run", "../run"),
		harness.TarFile("run/own", ""), harness.TarLink("dangling", "nowhere/yet"), harness.TarLink("workspace", "srv/w"),
		harness.TarFile("srv/w/own", ""), harness.TarLink(guestDir[1:], "opt/g"), program(t, "opt/g/guest"))
	dir := harness.HostDir(t, map[string]string{"file": "here"})
	mounts := []sandbox.Mount{{Source: dir, Target: "/data"}, {Source: dir, Target: "/var/run/x"}}
	paths := []string{"/data", "/srv/data", "/run/x", "/var/run/x"}
	c, name := harness.NewClient(t), harness.UniqueName(t)
	harness.Remove(t, c, name)
	sb, err := c.Create(t.Context(), sandbox.WithImage(ref), sandbox.WithName(name), harness.Quick,
		sandbox.WithMounts(append(mounts, sandbox.Mount{Source: dir, Target: "/dangling"})...))
	if notFollowed(err) {
		sb = harness.CreateWith(t, c, mounts, sandbox.WithImage(ref))
	} else if err != nil {
		t.Fatalf("Create: %v", err)
	} else {
		defer sb.Detach()
		paths = append(paths, "/nowhere/yet")
	}
	for range 2 {
		sound(t, sb)
		for _, at := range paths {
			if got := harness.Read(t, sb, at+"/file"); got != "here" {
				t.Errorf("%s: %q", at, got)
			}
		}
		harness.Write(t, sb, "/srv/w/kept", "in the workspace")
		if got := harness.Read(t, sb, "/workspace/kept"); got != "in the workspace" {
			t.Errorf("workspace: %q", got)
		}
		if _, err := restart(t, sb); err != nil {
			t.Fatalf("Start: %v", err)
		}
	}
}

// Another sandbox that shares a directory swaps a link in it between the look and the start: PID 1 runs nothing where a mount
// is not in its place, and no mount is over the guest, since the path is a new one.
func TestALinkSwappedBeforeTheStart(t *testing.T) {
	t.Parallel()
	ref := image(t)
	shared := t.TempDir()
	cache := filepath.Join(shared, "cache")
	eng := harness.NewEngine(t)
	var mu sync.Mutex
	link := "" // nothing is swapped
	host := harness.InFront(t, func(_ http.ResponseWriter, r *http.Request) bool {
		mu.Lock()
		defer mu.Unlock()
		if id, is := strings.CutSuffix(r.URL.Path, "/start"); is && link != "" {
			got, err := eng.InspectContainer(r.Context(), path.Base(id))
			if err != nil || !record.Is(got.Labels, record.RoleSandbox) {
				return false // a helper's
			}
			os.RemoveAll(cache)
			if err := os.Symlink(link, cache); err != nil {
				t.Error(err)
			}
		}
		return false
	}, nil)
	c := harness.NewClient(t, sandbox.WithHost(host))
	sb := harness.CreateWith(t, c, []sandbox.Mount{{Source: shared, Target: "/shared", Mode: sandbox.RW}, {Source: evilDir(t), Target: "/shared/cache", Mode: sandbox.RO}}, sandbox.WithImage(ref))
	sound(t, sb)
	for _, to := range append(harness.EveryNth(3, []string{guestDir, "/etc", "/srv"}), path.Dir(harness.Raw(t, sb).Config.Entrypoint[0])) {
		mu.Lock()
		link = to
		mu.Unlock()
		_, err := restart(t, sb)
		neverEvil(t, sb.Name())
		if err == nil {
			_, err = sb.Command(t.Context(), "/bin/evil", "true").Output()
		}
		if err == nil {
			t.Errorf("with a link to %s a command ran", to)
		} else if !notFollowed(err) && !strings.Contains(err.Error(), "nothing is mounted at /shared/cache") {
			t.Logf("with a link to %s: %v", to, err)
		}
		mu.Lock()
		link = ""
		os.Remove(cache)
		mu.Unlock()
		if _, err := restart(t, sb); err != nil {
			t.Fatalf("Start without a link: %v", err)
		}
		sound(t, sb)
	}
}

// PID 1 itself refuses a path by which others could take its place.
func TestPID1ChecksItsOwnPlace(t *testing.T) {
	t.Parallel()
	like := harness.Raw(t, harness.Shared(t))
	eng := harness.NewEngine(t)
	got, err := eng.InspectContainer(t.Context(), like.ID)
	if err != nil {
		t.Fatal(err)
	}
	dir := path.Dir(like.Config.Entrypoint[0])
	volume := ""
	for _, m := range got.Mounts {
		if m.Target == dir {
			volume = m.Name
		}
	}
	ref := image(t, harness.TarLink("linked", "opt/g"), harness.TarFile("opt/g/x", ""))
	for _, tt := range []struct {
		what, mount, path string
		writable, runs    bool
		mounts            []wire.Mount // that it has to find
		want              string
	}{
		{what: "as ever", mount: dir, path: dir, runs: true},
		{what: "a link", mount: "/linked", path: "/linked", want: "symbolic link"},
		{what: "deeper", mount: "/opt/sub", path: "/opt/sub", want: "directory of the root"},
		{what: "writable", mount: dir, path: dir, writable: true, want: "read-only"},
		{what: "with its mounts", mount: dir, path: dir, mounts: []wire.Mount{{Target: dir, Volume: volume}}, runs: true},
		{what: "without a mount", mount: dir, path: dir, mounts: []wire.Mount{{Target: "/data"}}, want: "nothing is mounted at /data"},
		{what: "with another volume", mount: dir, path: dir, mounts: []wire.Mount{{Target: dir, Volume: "another"}}, want: "in place of another"},
		{what: "with a volume elsewhere", mount: dir, path: dir, mounts: []wire.Mount{{Target: "/etc/hosts", Volume: volume}}, want: "belongs at /etc/hosts"},
	} {
		t.Run(tt.what, func(t *testing.T) {
			t.Parallel()
			var conf wire.Init
			if err := json.Unmarshal([]byte(like.Config.Entrypoint[2]), &conf); err != nil {
				t.Fatal(err)
			}
			conf.Mounts, conf.Workspace = tt.mounts, wire.Workspace{}
			config, err := json.Marshal(conf)
			if err != nil {
				t.Fatal(err)
			}
			id := harness.StartContainer(t, eng, engine.ContainerSpec{
				Name: "pid1-" + record.NewID(), Image: ref, NetworkMode: "none", CapAdd: []string{"NET_ADMIN"}, User: "0:0",
				Entrypoint: []string{tt.path + "/guest", "init", string(config)},
				Mounts:     []engine.Mount{{Type: "volume", Source: volume, Target: tt.mount, ReadOnly: !tt.writable, NoCopy: true}},
			})
			if tt.runs {
				time.Sleep(time.Second)
				if now, err := eng.InspectContainer(t.Context(), id); err != nil || now.State != engine.StateRunning {
					t.Errorf("it is %s (%d), %v", now.State, now.ExitCode, err)
				}
				return
			}
			if code := enginetest.Exited(t, id); code != 122 {
				t.Errorf("exit code %d, want 122", code)
			}
			log, err := eng.Logs(t.Context(), id, engine.LogSpec{})
			if err != nil {
				t.Fatal(err)
			}
			defer log.Close()
			if text, _ := io.ReadAll(log); !bytes.Contains(text, []byte(tt.want)) {
				t.Errorf("the log has %q, want %q", text, tt.want)
			}
		})
	}
}
