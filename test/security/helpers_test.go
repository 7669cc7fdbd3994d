package security_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// created is a container as a client asks for it.
type created struct {
	Image           string
	Entrypoint      []string
	NetworkDisabled bool
	Labels          map[string]string
	HostConfig      struct {
		CapAdd, CapDrop, SecurityOpt  []string
		Memory, MemorySwap, PidsLimit int64
		ReadonlyRootfs                bool
		NetworkMode                   string
	}
}

// helpers returns a client and the helpers that it asks for.
func helpers(t *testing.T) (*sandbox.Client, func() []created) {
	t.Helper()
	var mu sync.Mutex
	var all []created
	eng := harness.NewEngine(t)
	host := harness.InFront(t, func(_ http.ResponseWriter, r *http.Request) bool {
		if id, is := strings.CutSuffix(r.URL.Path, "/start"); is {
			if got, err := eng.InspectContainer(r.Context(), path.Base(id)); err == nil && record.Is(got.Labels, record.RoleHelper) && !strings.HasPrefix(got.Image, "agent-sandbox-guest:") {
				t.Errorf("a helper of image %s is started", got.Image)
			}
			return false
		}
		if path.Base(r.URL.Path) != "create" || path.Base(path.Dir(r.URL.Path)) != "containers" {
			return false
		}
		body, err := io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(body))
		var c created
		if err := json.Unmarshal(body, &c); err != nil {
			t.Errorf("a create: %v", err)
		}
		mu.Lock()
		defer mu.Unlock()
		if err == nil && record.Is(c.Labels, record.RoleHelper) {
			all = append(all, c)
		}
		return false
	}, nil)
	return harness.NewClient(t, sandbox.WithHost(host)), func() []created {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(all)
	}
}

// A source's files are given to a user of the image by a helper that has nothing of the image in
// it.
func TestHelpersRunNothingOfAnImage(t *testing.T) {
	t.Parallel()
	b, err := evil()
	if err != nil {
		t.Fatal(err)
	}
	dir := harness.HostDir(t, map[string]string{"file": "mine"})
	if err := os.WriteFile(filepath.Join(dir, "guest"), b, 0o755); err != nil {
		t.Fatal(err)
	}
	ref := image(t, harness.TarLink("copy/from/0", guestDir), harness.TarLink("copy/to/0", guestDir), program(t, "opt/guest"),
		harness.TarFile("etc/passwd", "root:x:0:0::/:\nann:x:1234:2345::/:\n"), harness.TarFile("etc/group", "staff:x:3456:\n"))
	for user, owner := range map[string]sandbox.FileStat{
		"ann": {UID: 1234, GID: 2345}, "ann:staff": {UID: 1234, GID: 3456}, "1234": {UID: 1234, GID: 2345}, "77": {UID: 77}, "77:88": {UID: 77, GID: 88},
	} {
		t.Run(user, func(t *testing.T) {
			t.Parallel()
			c, asked := helpers(t)
			sb := harness.CreateWith(t, c, nil, sandbox.WithImage(ref), sandbox.WithUser(user), sandbox.WithSource(sandbox.Dir(dir)))
			st, err := sb.Stat(t.Context(), "/workspace/file")
			if err != nil {
				t.Fatal(err)
			}
			if got := *st.Sys().(*sandbox.FileStat); got.UID != owner.UID || got.GID != owner.GID {
				t.Errorf("the file is %d:%d's, want %d:%d", got.UID, got.GID, owner.UID, owner.GID)
			}
			if len(asked()) == 0 {
				t.Error("no helper")
			}
			for _, h := range asked() {
				if len(h.Entrypoint) > 1 && !strings.HasPrefix(h.Image, "agent-sandbox-guest:") {
					t.Errorf("a helper of image %s", h.Image)
				}
			}
		})
	}
	t.Run("nobody", func(t *testing.T) {
		t.Parallel()
		c, name := harness.NewClient(t), harness.UniqueName(t)
		harness.Remove(t, c, name)
		_, err := c.Create(t.Context(), sandbox.WithName(name), sandbox.WithImage(ref), sandbox.WithUser("bob"), sandbox.WithSource(sandbox.Dir(dir)))
		if err == nil || !strings.Contains(err.Error(), `no user "bob"`) {
			t.Errorf("Create for a user that is not there: %v", err)
		}
	})
}

// What a helper may do, were it to run a program of a tenant's.
func TestHelpersAreConfined(t *testing.T) {
	t.Parallel()
	c, asked := helpers(t)
	sb := harness.CreateWith(t, c, []sandbox.Mount{{Source: harness.HostDir(t, map[string]string{"f": ""}), Target: "/data"}})
	fork, err := c.Fork(t.Context(), sb.Name())
	if err != nil {
		t.Fatal(err)
	}
	harness.Remove(t, c, fork.Name())
	fork.Detach()
	if _, err := c.ListVolumes(t.Context()); err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, h := range asked() {
		if len(h.Entrypoint) < 2 {
			continue // it is never started: the engine fills a volume from its image
		}
		host := h.HostConfig
		if !slices.Equal(host.CapDrop, []string{"ALL"}) || host.Memory <= 0 || host.MemorySwap != host.Memory || host.PidsLimit <= 0 ||
			!host.ReadonlyRootfs || !slices.Contains(host.SecurityOpt, "no-new-privileges") {
			t.Errorf("a helper of %+v", host)
		}
		what, _ := json.Marshal(append(host.CapAdd, host.SecurityOpt...))
		asksPID1 := strings.HasPrefix(host.NetworkMode, "container:")
		if seen[string(what)] || !h.NetworkDisabled && !asksPID1 {
			continue
		}
		seen[string(what)] = true
		eng := harness.NewEngine(t)
		id := harness.StartContainer(t, eng, engine.ContainerSpec{
			Name: "confined-" + record.NewID(), Image: image(t, harness.TarFile("copy/to/0/x", "")), Entrypoint: []string{"/bin/evil", "attack"}, User: "0:0", NetworkDisabled: true,
			ReadonlyRootfs: true, Tmpfs: map[string]string{"/copy/to/0": ""}, CapDrop: host.CapDrop, CapAdd: host.CapAdd, SecurityOpt: host.SecurityOpt, PidsLimit: host.PidsLimit, Memory: host.Memory,
		})
		enginetest.Exited(t, id)
		if eng.Podman() {
			continue // its own profile holds: it takes another one as a file of its machine only
		}
		log, err := eng.Logs(t.Context(), id, engine.LogSpec{})
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(log)
		log.Close()
		if slices.Contains(host.CapAdd, "CAP_MKNOD") { // a layer may have devices of its image; no container can open them
			text = bytes.ReplaceAll(text, []byte("open: a device"), nil)
		}
		if asksPID1 { // in the sandbox's own network, by a socket without a file
			text = bytes.ReplaceAll(text, []byte("open: a socket of unix"), nil)
		}
		if err != nil || bytes.Contains(text, []byte("open:")) || !bytes.Contains(text, []byte("that is all")) {
			t.Errorf("with %v: %q, %v", host.CapAdd, text, err)
		}
	}
	if len(seen) < 2 {
		t.Errorf("%d kinds of helpers", len(seen))
	}
}

// For Status a process of the guest measures the workspace from inside. It drops the container's
// capabilities before it reads anything.
func TestTheSizeIsMeasuredWithoutPrivileges(t *testing.T) {
	t.Parallel()
	sb := harness.NewSandbox(t, harness.Quick)
	harness.Run(t, sb, "node", "-e", `for (let i = 0; i < 60000; i++) require("fs").writeFileSync("/workspace/" + i, "x")`)
	watch := sb.Command(t.Context(), "bash", "-c", `while [ ! -e /tmp/end ]; do for p in /proc/[0-9]*; do
		case "$(tr '\0' ' ' <$p/cmdline)" in *"/guest du "*) echo $p $(grep CapEff $p/status);; esac; done 2>/dev/null; done`)
	var out bytes.Buffer
	watch.Stdout = &out
	if err := watch.Start(); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if st := harness.Status(t, sb); st.Workspace.SizeBytes <= 0 {
			t.Errorf("the workspace has %d bytes", st.Workspace.SizeBytes)
		}
	}
	harness.Run(t, sb, "touch", "/tmp/end")
	if err := watch.Wait(); err != nil {
		t.Fatal(err)
	}
	last := map[string]string{} // capabilities by process
	for line := range strings.Lines(out.String()) {
		if f := strings.Fields(line); len(f) == 3 {
			last[f[0]] = f[2]
		}
	}
	if len(last) == 0 {
		t.Errorf("no process of the guest was seen: %q", out.String())
	}
	for process, caps := range last {
		if set, err := strconv.ParseUint(caps, 16, 64); err != nil || set&(1<<12) != 0 {
			t.Errorf("%s has the capabilities %s, %v", process, caps, err)
		}
	}
}
