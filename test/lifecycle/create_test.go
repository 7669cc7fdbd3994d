package lifecycle_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

const (
	oddValue  = "spaces, \"quotes\", $HOME, `id`\nand = a line"
	showsVars = `printf '%s|%s|%s|%s' "$NODE_VERSION" "$A" "$B" "$ODD"`
)

// ofTags are tags of every kind. No other sandbox has the value of "id".
var ofTags = map[string]string{"k": "v", "with=equals": "a=b,c", "ünï": "中 \"x\"", "empty": "", "id": "not " + record.NewID()}

// withOptions is a running sandbox that tests of different options share. Its main process writes a file, and ends.
var withOptions = harness.Sharing(sandbox.WithRuntime("node20"), sandbox.WithMemory(2048<<20), sandbox.WithVCPUs(2), sandbox.WithTags(ofTags),
	sandbox.WithEnv(map[string]string{"A": "sandbox", "B": "sandbox", "ODD": oddValue, "NODE_VERSION": "mine"}),
	sandbox.WithCommand("sh", "-c", showsVars+" > main && mv main main.done; exit 3"), harness.Quick)

// One volume of its own, named by the ID, whatever else is mounted.
func TestEverySandboxHasAWorkspaceVolume(t *testing.T) {
	t.Parallel()
	sb, eng := harness.Shared(t), harness.NewEngine(t)
	name := "agent-sandbox-" + sb.ID()
	v, err := eng.InspectVolume(t.Context(), name)
	if err != nil {
		t.Fatalf("inspect volume %s: %v", name, err)
	}
	for key, want := range map[string]string{"agent-sandbox.managed": "true", "agent-sandbox.role": "workspace", "agent-sandbox.id": sb.ID()} {
		if v.Labels[key] != want {
			t.Errorf("label %s is %q, want %q", key, v.Labels[key], want)
		}
	}
	all, err := eng.ListVolumes(t.Context(), record.Filter("agent-sandbox.id", sb.ID()))
	if err != nil || len(all) != 1 {
		t.Errorf("volumes with its ID: %+v, %v; want one", all, err)
	}
	got, err := eng.InspectContainer(t.Context(), "agent-sandbox-"+sb.Name())
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(got.Mounts, func(m engine.MountPoint) bool { return m.Target == "/workspace" })
	if i < 0 {
		t.Fatalf("mounts %+v; want one at /workspace", got.Mounts)
	}
	if m := got.Mounts[i]; m.Type != "volume" || m.Name != name || !m.RW {
		t.Errorf("/workspace is %+v; want volume %s, read-write", m, name)
	}
}

func TestWorkspaceIsWritable(t *testing.T) {
	t.Parallel()
	sb := harness.Shared(t)
	dir := "/workspace/" + record.NewID()
	harness.Run(t, sb, "mkdir", dir)
	harness.Run(t, sb, "touch", dir+"/x")
	harness.Run(t, sb, "rm", "-r", dir)
	harness.Run(t, sb, "grep", "-E", "^(/dev[^ ]*|tmpfs) /workspace [^ ]* rw,", "/proc/mounts") // tmpfs if the engine's data is in memory
}

// An image that is on the engine is not pulled.
func TestNameAloneGivesTheDefaults(t *testing.T) {
	t.Parallel()
	proxy := enginetest.NewProxy(t)
	c := harness.NewClient(t, sandbox.WithHost(proxy.Host()))
	name := harness.UniqueName(t)
	harness.Remove(t, harness.NewClient(t), name)
	sb, err := c.Create(t.Context(), sandbox.WithName(name))
	if err != nil {
		t.Fatalf("Create: %v", err)
	}
	defer sb.Detach()
	r := harness.Raw(t, sb)
	if r.Config.Image != "node:20-bookworm" || r.HostConfig.NanoCPUs != 1e9 || r.HostConfig.Memory != 2147483648 {
		t.Errorf("image %q, %d nano-CPUs, %d bytes; want node:20-bookworm, 1 CPU, 2048 MiB", r.Config.Image, r.HostConfig.NanoCPUs, r.HostConfig.Memory)
	}
	if slices.Contains(proxy.Calls(), "POST /images/create") {
		t.Errorf("an image was pulled: %q", proxy.Calls())
	}
	st, err := sb.Status(t.Context())
	if err != nil || st.Name != name || st.Image != sandbox.DefaultImage {
		t.Errorf("Status = %+v, %v", st, err)
	}
}

// Swap goes with memory.
func TestLimitsReachTheEngine(t *testing.T) {
	t.Parallel()
	h := harness.Raw(t, withOptions(t)).HostConfig
	if h.Memory != 2147483648 || h.NanoCPUs != 2000000000 || h.MemorySwap != h.Memory || h.PidsLimit <= 0 {
		t.Errorf("limits %+v; want 2147483648 bytes with no swap, 2000000000 nano-CPUs and a limit of processes", h)
	}
}

// An error has the engine's own words, and nothing is left.
func TestMoreCPUsThanThereAreIsInvalid(t *testing.T) {
	t.Parallel()
	c, name := harness.NewClient(t), harness.UniqueName(t)
	_, err := c.Create(t.Context(), sandbox.WithName(name), sandbox.WithVCPUs(100000))
	if !errors.Is(err, sandbox.ErrInvalidArgument) || !strings.Contains(err.Error(), "CPUs") {
		t.Errorf("Create = %v; want ErrInvalidArgument with what the engine says", err)
	}
	if left := harness.Objects(t, harness.NewEngine(t), harness.Named(name)); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

// replaced changes the replies to some requests.
func replaced(pattern, by, path string) func(*http.Response) error {
	return func(r *http.Response) error {
		if !strings.HasSuffix(r.Request.URL.Path, path) {
			return nil
		}
		body, err := io.ReadAll(r.Body)
		body = regexp.MustCompile(pattern).ReplaceAll(body, []byte(by))
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
		r.Header.Set("Content-Length", strconv.Itoa(len(body)))
		return err
	}
}

// An engine without root may have no controller for CPUs, or no cgroups at all. The default limits
// are what it can do; a limit that was asked for is refused.
func TestLimitsOfAnEngineThatHasNone(t *testing.T) {
	t.Parallel()
	enginetest.Need(t)
	const noCPUs = "NanoCPUs can not be set, as your kernel does not support CPU CFS scheduler or the cgroup is not mounted"
	host := harness.InFront(t, func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.HasSuffix(r.URL.Path, "/containers/create") {
			return false
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		if !bytes.Contains(body, []byte(`"NanoCpus":0`)) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusBadRequest)
			_ = json.NewEncoder(w).Encode(map[string]string{"message": noCPUs})
			return true
		}
		return false
	}, replaced(`"Warnings":[^]]*`, `"Warnings":["a warning"`, "/containers/create"))
	c, name := harness.NewClient(t, sandbox.WithHost(host)), harness.UniqueName(t)
	harness.Remove(t, c, name)
	if _, err := c.Create(t.Context(), sandbox.WithName(name), sandbox.WithVCPUs(1)); !errors.Is(err, sandbox.ErrInvalidArgument) || !strings.Contains(err.Error(), noCPUs) {
		t.Errorf("Create with a limit of CPUs = %v; want ErrInvalidArgument with what the engine says", err)
	}
	var said []string
	sb, err := c.Create(t.Context(), sandbox.WithName(name), harness.Quick, sandbox.WithProgress(func(p sandbox.Progress) { said = append(said, p.Text) }))
	if err != nil {
		t.Fatal(err)
	}
	defer sb.Detach()
	if all := strings.Join(said, "\n"); !strings.Contains(all, "without a limit of CPUs") || !strings.Contains(all, "a warning") {
		t.Errorf("progress = %q; want a word that there is no limit of CPUs, and the engine's warning", all)
	}

	passes := func(http.ResponseWriter, *http.Request) bool { return false }
	bare := harness.NewClient(t, sandbox.WithHost(harness.InFront(t, passes, replaced(`"CgroupDriver":"[a-z]*"`, `"CgroupDriver":"none"`, "/info"))))
	for what, opt := range map[string]sandbox.CreateOption{"CPUs": sandbox.WithVCPUs(1), "memory": sandbox.WithMemory(1 << 30), "processes": sandbox.WithPidsLimit(100)} {
		if _, err := bare.Create(t.Context(), opt); !errors.Is(err, sandbox.ErrUnsupported) || !strings.Contains(err.Error(), "no cgroups") {
			t.Errorf("Create with a limit of %s = %v; want ErrUnsupported", what, err)
		}
	}
	same, err := bare.Get(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	defer same.Detach()
	if err := same.Update(t.Context(), sandbox.WithMemory(1<<30)); !errors.Is(err, sandbox.ErrUnsupported) {
		t.Errorf("Update of a limit = %v; want ErrUnsupported", err)
	}
	if s, err := bare.CheckSupport(t.Context()); err != nil || !errors.Is(s.Limits, sandbox.ErrUnsupported) {
		t.Errorf("CheckSupport = %+v, %v; want Limits to be an ErrUnsupported", s, err)
	}
}

// A working directory has no place at or below a file of the image: that is the caller's mistake.
func TestWorkingDirectoryAtAFileIsAnInvalidArgument(t *testing.T) {
	t.Parallel()
	c, image := harness.NewClient(t), harness.Image(t, harness.Tar(t, harness.TarFile("workspace", "x")))
	for dir, opt := range map[string]sandbox.CreateOption{
		"/etc/passwd": sandbox.WithWorkdir("/etc/passwd"), "/etc/passwd/a/b": sandbox.WithWorkdir("/etc/passwd/a/b"), "/workspace": sandbox.WithImage(image),
	} {
		name := harness.UniqueName(t)
		harness.Remove(t, c, name)
		sb, err := c.Create(t.Context(), sandbox.WithName(name), harness.Quick, opt)
		if sb != nil {
			sb.Detach()
		}
		if !errors.Is(err, sandbox.ErrInvalidArgument) || !strings.Contains(err.Error(), `"`+dir+`"`) || strings.Contains(err.Error(), "merged") {
			t.Errorf("Create with the working directory %s = %v, want ErrInvalidArgument and its name", dir, err)
		}
	}
}

// The bounds of processes are those that the kernel takes, and with which a sandbox works.
func TestSandboxWorksAtTheBoundsOfProcesses(t *testing.T) {
	t.Parallel()
	for _, n := range []int{32, 4 << 20} {
		sb := harness.NewSandbox(t, sandbox.WithName(harness.UniqueName(t)), harness.Quick, sandbox.WithPidsLimit(n))
		first := sb.Command(t.Context(), "sh", "-c", "echo ready >ready; cat")
		in, err := first.StdinPipe()
		if err == nil {
			err = first.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		harness.WaitForFile(t, sb, "ready")
		if got := harness.Run(t, sb, "sh", "-c", "echo second | cat"); got != "second" {
			t.Errorf("with %d processes a second command wrote %q", n, got)
		}
		harness.Write(t, sb, "f", "written")
		if got := harness.Read(t, sb, "f"); got != "written" {
			t.Errorf("with %d processes a file has %q", n, got)
		}
		if err := errors.Join(in.Close(), first.Wait()); err != nil {
			t.Errorf("with %d processes the first command: %v", n, err)
		}
	}
}

// What a sandbox's container is beyond that: readable by foreign tools, no restarts, no
// privileges, and no health check of the image's beside PID 1's rules.
func TestContainerIsMadeForASession(t *testing.T) {
	t.Parallel()
	r := harness.Raw(t, harness.Shared(t))
	if r.Config.StopSignal != "SIGTERM" || r.Config.StopTimeout != 30 {
		t.Errorf("stop signal %q after %d s; want SIGTERM and 30", r.Config.StopSignal, r.Config.StopTimeout)
	}
	if p := r.HostConfig.RestartPolicy.Name; p != "" && p != "no" {
		t.Errorf("restart policy %q; want none", p)
	}
	if diff := cmp.Diff([]string{"NONE"}, r.Config.Healthcheck.Test); diff != "" {
		t.Errorf("health check (-want +got):\n%s", diff)
	}
	if r.HostConfig.Privileged || !cmp.Equal(r.HostConfig.CapAdd, []string{"NET_ADMIN"}) && !cmp.Equal(r.HostConfig.CapAdd, []string{"CAP_NET_ADMIN"}) {
		t.Errorf("privileged %v, capabilities added %q; want NET_ADMIN alone", r.HostConfig.Privileged, r.HostConfig.CapAdd)
	}
}

func TestCreateReturnsARunningSession(t *testing.T) {
	t.Parallel()
	sb := harness.Shared(t)
	if st, err := sb.Status(t.Context()); err != nil || st.State != sandbox.StateRunning || st.StartedAt.IsZero() || st.Reason != "" {
		t.Errorf("Status = %+v, %v; want running", st, err)
	}
}

// A client's own runtime is its image, and its name is read back.
func TestRuntimeOfTheClientIsItsImage(t *testing.T) {
	t.Parallel()
	image := harness.SmallImage(t)
	c := harness.NewClient(t, sandbox.WithRuntimes(map[string]string{"ours": image}))
	sb := harness.CreateWith(t, c, nil, sandbox.WithRuntime("ours"))
	if got := harness.Raw(t, sb).Config.Image; got != image {
		t.Errorf("the container has the image %q, want %q", got, image)
	}
	if st := harness.Inspect(t, sb.Name()); *st.Settings.Runtime != "ours" || st.Image != image {
		t.Errorf("Inspect by another client: runtime %q, image %q; want ours and %q", *st.Settings.Runtime, st.Image, image)
	}
}

func TestFailedCreateReturnsNoHandle(t *testing.T) {
	t.Parallel()
	if sb, err := harness.Nowhere(t).Create(t.Context()); sb != nil || !errors.Is(err, sandbox.ErrEngineUnavailable) {
		t.Errorf("Create = %v, %v; want nil and ErrEngineUnavailable", sb, err)
	}
}

// A sandbox without a name is named by its ID, which is its own.
func TestUnnamedSandboxIsNamedByItsID(t *testing.T) {
	t.Parallel()
	a, b := harness.Shared(t), withOptions(t)
	if a.Name() != a.ID() || b.Name() != b.ID() || a.ID() == b.ID() || len(b.ID()) != 12 || !record.ValidName(b.ID()) {
		t.Errorf("names %q, %q; IDs %q, %q", a.Name(), b.Name(), a.ID(), b.ID())
	}
	if got := harness.Run(t, b, "hostname"); got != b.Name() {
		t.Errorf("hostname is %q, want %q", got, b.Name())
	}
}

func TestRuntimeChoosesTheImage(t *testing.T) {
	t.Parallel()
	sb := withOptions(t)
	if got := harness.Raw(t, sb).Config.Image; got != "node:20-bookworm" {
		t.Errorf("image %q, want node:20-bookworm", got)
	}
	if got := harness.Run(t, sb, "node", "-p", "process.version.split('.')[0]"); got != "v20" {
		t.Errorf("node is %s", got)
	}
}

// The environment of a command overrides that of the sandbox, which overrides that of the image: for commands and the main process.
func TestEnvironmentIsImageThenSandboxThenCommand(t *testing.T) {
	t.Parallel()
	image, err := harness.NewEngine(t).InspectImage(t.Context(), sandbox.DefaultImage)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(image.Env, func(kv string) bool { return strings.HasPrefix(kv, "NODE_VERSION=") }) {
		t.Fatalf("the image's environment has no NODE_VERSION: %q", image.Env)
	}
	sb := withOptions(t)
	cmd := sb.Command(t.Context(), "sh", "-c", showsVars)
	cmd.Env = []string{"B=first", "B=command"}
	if out, err := cmd.Output(); err != nil || string(out) != "mine|sandbox|command|"+oddValue {
		t.Errorf("a command sees %q, %v", out, err)
	}
	harness.Eventually(t, "the main process has written", func() bool { return sb.Command(t.Context(), "test", "-e", "main.done").Run() == nil })
	if got := harness.Run(t, sb, "cat", "main.done"); got != "mine|sandbox|sandbox|"+oddValue {
		t.Errorf("the main process sees %q", got)
	}
	if got := harness.Run(t, harness.Shared(t), "sh", "-c", "echo $NODE_VERSION"); !slices.Contains(image.Env, "NODE_VERSION="+got) {
		t.Errorf("without the sandbox's NODE_VERSION it is %q, want the image's of %q", got, image.Env)
	}
}

func TestTagsComeBackAndFilter(t *testing.T) {
	t.Parallel()
	c := harness.NewClient(t)
	sb, tags := withOptions(t), ofTags
	if st, err := sb.Status(t.Context()); err != nil {
		t.Error(err)
	} else if diff := cmp.Diff(tags, st.Tags); diff != "" {
		t.Errorf("tags (-want +got):\n%s", diff)
	}
	for _, tt := range []struct {
		opts sandbox.ListOptions
		want bool
	}{
		{sandbox.ListOptions{Tags: map[string]string{"id": tags["id"]}}, true},
		{sandbox.ListOptions{Tags: map[string]string{"id": tags["id"], "empty": ""}}, true},
		{sandbox.ListOptions{Tags: map[string]string{"id": tags["id"], "k": "w"}}, false},
		{sandbox.ListOptions{Tags: map[string]string{"id": tags["id"], "absent": ""}}, false},
	} {
		got, err := c.List(t.Context(), tt.opts)
		if found := len(got) == 1 && got[0].ID == sb.ID(); err != nil || found != tt.want || len(got) > 1 {
			t.Errorf("List = %+v, %v; want it: %v", got, err, tt.want)
		}
	}
}

func TestPersistenceDecidesWhatCloseLeaves(t *testing.T) {
	t.Parallel()
	for what, tt := range map[string]struct {
		opts    func(name string) []sandbox.CreateOption
		kept    bool
		stopped bool // when it is closed
	}{
		"named": {func(name string) []sandbox.CreateOption {
			return []sandbox.CreateOption{sandbox.WithName(name)}
		}, true, false},
		"unnamed": {func(name string) []sandbox.CreateOption {
			return []sandbox.CreateOption{sandbox.WithID(name)}
		}, false, false},
		"named, not persistent": {func(name string) []sandbox.CreateOption {
			return []sandbox.CreateOption{sandbox.WithPersistent(false), sandbox.WithName(name)}
		}, false, true},
		"unnamed, persistent": {func(name string) []sandbox.CreateOption {
			return []sandbox.CreateOption{sandbox.WithPersistent(true), sandbox.WithID(name)}
		}, true, true},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			c, eng, name := harness.NewClient(t), harness.NewEngine(t), harness.UniqueName(t)
			harness.Remove(t, c, name)
			sb, err := c.Create(t.Context(), tt.opts(name)...)
			if err != nil {
				t.Fatalf("Create: %v", err)
			}
			harness.Run(t, sb, "touch", "kept")
			// Stop and Start on the handle that made it keep the files in any case.
			if _, err := sb.Stop(t.Context()); err != nil {
				t.Errorf("Stop: %v", err)
			}
			if _, err := sb.Start(t.Context()); err != nil {
				t.Errorf("Start: %v", err)
			}
			if got := harness.Run(t, sb, "ls"); got != "kept" {
				t.Errorf("after Stop and Start there is %q", got)
			}
			if tt.stopped {
				if _, err := sb.Stop(t.Context()); err != nil {
					t.Errorf("Stop: %v", err)
				}
			}
			if err := sb.Close(); err != nil {
				t.Errorf("Close: %v", err)
			}
			left := harness.Objects(t, eng, harness.Named(name))
			if kept := len(left) == 2; kept != tt.kept || !kept && len(left) > 0 {
				t.Errorf("Close left %q; want it kept: %v", left, tt.kept)
			}
		})
	}
}

// Cancelled at any step it leaves nothing, though the undo begins with a
// context that has ended.
func TestCancelledCreateLeavesNothing(t *testing.T) {
	t.Parallel()
	eng := harness.NewEngine(t)
	stopped := errors.New("the user pressed stop")
	for _, when := range []string{"before", "container", "start", "OnCreate", "the removal"} {
		t.Run(when, func(t *testing.T) {
			t.Parallel()
			proxy := enginetest.NewProxy(t)
			c, name := harness.NewClient(t, sandbox.WithHost(proxy.Host())), harness.UniqueName(t)
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			if when == "before" {
				cancel(stopped)
			}
			opts := []sandbox.CreateOption{
				sandbox.WithName(name),
				sandbox.WithProgress(func(p sandbox.Progress) {
					if p.Step == when {
						cancel(stopped)
					}
				}),
				sandbox.OnCreate(func(ctx context.Context, sb *sandbox.Sandbox) error {
					if err := sb.Command(ctx, "touch", "x").Run(); err != nil {
						t.Errorf("a command in OnCreate: %v", err)
					}
					switch when {
					case "OnCreate":
						cancel(stopped)
					case "the removal":
						proxy.Arm(2, enginetest.Cancel, func() { cancel(stopped) })
						return stopped
					default:
						t.Error("OnCreate was called")
					}
					return nil
				}),
			}
			sb, err := c.Create(ctx, opts...)
			if sb != nil || !errors.Is(err, stopped) || when != "the removal" && !errors.Is(err, context.Canceled) {
				t.Errorf("Create = %v, %v; want context.Canceled and its cause", sb, err)
			}
			if when == "the removal" && !proxy.Fired() {
				t.Error("the undo made no second call")
			}
			if left := harness.Objects(t, eng, harness.Named(name)); len(left) > 0 {
				t.Errorf("left: %q", left)
			}
		})
	}
}

// The image is looked for before anything is made.
func TestMissingImageIsNamedAndLeavesNothing(t *testing.T) {
	t.Parallel()
	c, name := harness.NewClient(t), harness.UniqueName(t)
	image := "127.0.0.1:1/no/such:image"
	_, err := c.Create(t.Context(), sandbox.WithName(name), sandbox.WithImage(image))
	var e *sandbox.Error
	if !errors.Is(err, sandbox.ErrImageNotFound) || !strings.Contains(err.Error(), image) || !strings.Contains(err.Error(), "127.0.0.1:1") || !errors.As(err, &e) || e.StatusCode() != 404 {
		t.Errorf("Create = %v; want ErrImageNotFound that names the image, with what the pull said", err)
	}
	if left := harness.Objects(t, harness.NewEngine(t), harness.Named(name)); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

// A stranger's volume with the name of a workspace is not adopted.
func TestForeignVolumeIsNotAdopted(t *testing.T) {
	t.Parallel()
	c, eng, id, name := harness.NewClient(t), harness.NewEngine(t), record.NewID(), harness.UniqueName(t)
	labels := map[string]string{"somebody": "else"}
	v, err := eng.CreateVolume(t.Context(), "agent-sandbox-"+id, labels)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := eng.RemoveVolume(context.Background(), v.Name, false); err != nil {
			t.Error(err)
		}
	})
	_, err = c.Create(t.Context(), sandbox.WithName(name), sandbox.WithID(id))
	if !errors.Is(err, sandbox.ErrForeign) || !strings.Contains(err.Error(), v.Name) {
		t.Errorf("Create = %v; want ErrForeign that names the volume", err)
	}
	if left := harness.Objects(t, eng, harness.Named(name)); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
	if got, err := eng.InspectVolume(t.Context(), v.Name); err != nil || !cmp.Equal(got.Labels, labels) {
		t.Errorf("the volume is now %+v, %v", got, err)
	}
}

// The engine would take megabytes of labels.
func TestTagsTooLargeAreInvalid(t *testing.T) {
	t.Parallel()
	c, name := harness.NewClient(t), harness.UniqueName(t)
	_, err := c.Create(t.Context(), sandbox.WithName(name), sandbox.WithTags(map[string]string{"k": strings.Repeat("x", record.MaxLabels)}))
	if !errors.Is(err, sandbox.ErrInvalidArgument) || !strings.Contains(err.Error(), "labels") {
		t.Errorf("Create = %v; want ErrInvalidArgument that says what is too large", err)
	}
	if left := harness.Objects(t, harness.NewEngine(t), harness.Named(name)); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

// That the engine started a container does not say that the main process runs.
func TestMainProcessThatCannotStartFailsCreate(t *testing.T) {
	t.Parallel()
	c, eng := harness.NewClient(t), harness.NewEngine(t)
	for program, want := range map[string]error{"no-such-program": exec.ErrNotFound, "/etc/passwd": fs.ErrPermission} {
		name := harness.UniqueName(t)
		_, err := c.Create(t.Context(), sandbox.WithName(name), sandbox.WithCommand(program))
		if !errors.Is(err, want) || !strings.Contains(err.Error(), program) {
			t.Errorf("Create with %s = %v; want %v", program, err, want)
		}
		if left := harness.Objects(t, eng, harness.Named(name)); len(left) > 0 {
			t.Errorf("left: %q", left)
		}
	}
}

// A Create whose session ends in the middle tells how, and the end of its log, which the undo removes.
func TestFailedCreateTellsTheEndOfTheLog(t *testing.T) {
	t.Parallel()
	c, eng := harness.NewClient(t), harness.NewEngine(t)
	_, err := c.Create(t.Context(), harness.Quick, sandbox.WithCommand("sh", "-c", `printf '\033the reason\n' >&2; exec sleep 600`),
		sandbox.OnCreate(func(ctx context.Context, sb *sandbox.Sandbox) error {
			for _, err := range sb.Logs(ctx, sandbox.LogOptions{Follow: true}) {
				if err != nil {
					return err
				}
				break
			}
			if err := eng.KillContainer(ctx, record.ContainerName(sb.Name()), "KILL"); err != nil {
				return err
			}
			return sb.Command(ctx, "true").Run()
		}))
	if !errors.Is(err, sandbox.ErrNotRunning) || !strings.Contains(err.Error(), `its log ends with "\x1bthe reason\n"`) {
		t.Errorf("Create = %v; want ErrNotRunning with the log", err)
	}
}

// A session outlives its main process.
func TestSessionOutlivesItsMainProcess(t *testing.T) {
	t.Parallel()
	sb := withOptions(t)
	harness.Eventually(t, "the main process has run", func() bool { return sb.Command(t.Context(), "test", "-e", "main.done").Run() == nil })
	harness.Eventually(t, "it has ended", func() bool { return sb.Command(t.Context(), "pgrep", "-x", "sh").Run() != nil })
	if st, err := sb.Status(t.Context()); err != nil || st.State != sandbox.StateRunning {
		t.Errorf("Status = %+v, %v; want running", st, err)
	}
}
