package sandbox_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

func TestParseMountTakesASourceATargetAndAMode(t *testing.T) {
	for spec, want := range map[string]sandbox.Mount{
		"/src:/dst":           {Source: "/src", Target: "/dst", Mode: sandbox.RWCopy},
		"/src:/dst:ro":        {Source: "/src", Target: "/dst", Mode: sandbox.RO},
		"/src:/dst:rw":        {Source: "/src", Target: "/dst", Mode: sandbox.RW},
		"/src:/dst:rwcopy":    {Source: "/src", Target: "/dst", Mode: sandbox.RWCopy},
		"./a dir:/some where": {Source: "./a dir", Target: "/some where", Mode: sandbox.RWCopy},
		"/src:" + strings.Repeat("/"+longName, 15): {Source: "/src", Target: strings.Repeat("/"+longName, 15), Mode: sandbox.RWCopy},
		"/ü:/ö": {Source: "/ü", Target: "/ö", Mode: sandbox.RWCopy},
	} {
		got, err := sandbox.ParseMount(spec)
		if err != nil {
			t.Errorf("ParseMount(%q): %v", spec, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("ParseMount(%q) (-want +got):\n%s", spec, diff)
		}
	}
}

// longName is as long as a file's name can be.
var longName = strings.Repeat("n", 255)

func TestParseMountRefusesWhatIsNoMount(t *testing.T) {
	for spec, want := range map[string]string{
		"":                     "source:target[:ro|rw|rwcopy]",
		"/src":                 "source:target[:ro|rw|rwcopy]",
		"/src:":                "source:target[:ro|rw|rwcopy]",
		":/dst":                "source:target[:ro|rw|rwcopy]",
		"/src:/dst:ro:extra":   "source:target[:ro|rw|rwcopy]",
		"/a:b:/dst:rw":         "source:target[:ro|rw|rwcopy]",
		"/src:/dst:":           "ro, rw or rwcopy",
		"/src:/dst:xx":         "ro, rw or rwcopy",
		"/src:/dst:RW":         "ro, rw or rwcopy",
		"/src:dst":             "not an absolute path",
		"/src:/":               "root",
		"/src:/a/..":           "root",
		"/src:/workspace":      "reserved for the sandbox volume",
		"/src:/workspace/":     "reserved for the sandbox volume",
		"/src:/proc/x":         "/proc is not for mounts",
		"/src:/sys":            "/sys is not for mounts",
		"/src:/a/../dev/shm":   "/dev is not for mounts",
		"/src:/.agent-sandbox": "/.agent-sandbox is not for mounts",
		"/src:/a/" + strings.Repeat("n", 256) + "/b": "too long",
		"/src:/" + strings.Repeat("ö", 128):          "too long",
		"/src:" + strings.Repeat("/"+longName, 16):   "too long",
		`C:\src:/dst`: "Windows path",
		"C:/src:/dst": "Windows path",
	} {
		_, err := sandbox.ParseMount(spec)
		if !errors.Is(err, sandbox.ErrInvalidArgument) || !strings.Contains(err.Error(), want) {
			t.Errorf("ParseMount(%q): got %v, want ErrInvalidArgument with %q", spec, err, want)
		}
	}
}

func TestParseVolumeMountTakesANameATargetAndAMode(t *testing.T) {
	for spec, want := range map[string]sandbox.Mount{
		"vol:/dst":    {Volume: "vol", Target: "/dst", Mode: sandbox.RW},
		"vol:/dst:rw": {Volume: "vol", Target: "/dst", Mode: sandbox.RW},
		"vol:/dst:ro": {Volume: "vol", Target: "/dst", Mode: sandbox.RO},
	} {
		got, err := sandbox.ParseVolumeMount(spec)
		if err != nil {
			t.Errorf("ParseVolumeMount(%q): %v", spec, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("ParseVolumeMount(%q) (-want +got):\n%s", spec, diff)
		}
	}
}

func TestParseVolumeMountRefusesWhatIsNoVolume(t *testing.T) {
	for spec, want := range map[string]string{
		"":                                 "name:target[:rw|ro]",
		"vol":                              "name:target[:rw|ro]",
		"vol:":                             "name:target[:rw|ro]",
		"vol:/dst:rw:x":                    "name:target[:rw|ro]",
		"vol:/dst:rwcopy":                  "rw or ro",
		"vol:/dst:":                        "rw or ro",
		"vol:dst":                          "not an absolute path",
		"vol/sub:/dst":                     "can't be mounted alone",
		"../containers/x:/dst":             "not a volume's name",
		"Vol:/dst":                         "not a volume's name",
		strings.Repeat("v", 129) + ":/dst": "not a volume's name",
	} {
		_, err := sandbox.ParseVolumeMount(spec)
		if !errors.Is(err, sandbox.ErrInvalidArgument) || !strings.Contains(err.Error(), want) {
			t.Errorf("ParseVolumeMount(%q): got %v, want ErrInvalidArgument with %q", spec, err, want)
		}
	}
}

func TestMountTellsItsThreeKindsApart(t *testing.T) {
	const control = ", by which the sandbox can control an engine, and with it the engine's machine"
	for _, tt := range []struct {
		mount sandbox.Mount
		want  string
	}{
		{sandbox.Mount{Source: "/s", Target: "/t", Mode: sandbox.RO}, "/t: bind of /s (ro)"},
		{sandbox.Mount{Source: "/s", Target: "/t", Mode: sandbox.RW}, "/t: bind of /s (rw)"},
		{sandbox.Mount{Source: "/var/run/docker.sock", Target: "/t", Mode: sandbox.RO}, "/t: bind of /var/run/docker.sock (ro)" + control},
		{sandbox.Mount{Source: "/home/u/.docker/run/docker.sock", Target: "/t", Mode: sandbox.RW}, "/t: bind of /home/u/.docker/run/docker.sock (rw)" + control},
		{sandbox.Mount{Source: "/", Target: "/t", Mode: sandbox.RO}, "/t: bind of / (ro)" + control},
		{sandbox.Mount{Source: "/run/", Target: "/t", Mode: sandbox.RO}, "/t: bind of /run/ (ro)" + control},
		{sandbox.Mount{Source: "/runs", Target: "/t", Mode: sandbox.RO}, "/t: bind of /runs (ro)"},
		{sandbox.Mount{Source: "/s", Target: "/t"}, "/t: rwcopy snapshot of /s"},
		{sandbox.Mount{Volume: "v", Target: "/t"}, "/t: existing volume v (rw)"},
		{sandbox.Mount{Volume: "v", Target: "/t", Mode: sandbox.RO}, "/t: existing volume v (ro)"},
	} {
		if got := tt.mount.String(); got != tt.want {
			t.Errorf("%#v.String() = %q, want %q", tt.mount, got, tt.want)
		}
	}
}

// refused checks that Create with the mounts is refused with ErrInvalidArgument and every
// one of the texts, before any call to an engine.
func refused(t *testing.T, mounts []sandbox.Mount, want ...string) {
	t.Helper()
	proxy := enginetest.NewProxy(t)
	proxy.Arm(0, enginetest.None, nil)
	c := harness.Unconnected(t, sandbox.WithHost(proxy.Host()))
	_, err := c.Create(t.Context(), sandbox.WithMounts(mounts...))
	if !errors.Is(err, sandbox.ErrInvalidArgument) {
		t.Errorf("Create with %v: got %v, want ErrInvalidArgument", mounts, err)
		return
	}
	for _, w := range want {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("Create with %v: got %v, want %q in it", mounts, err, w)
		}
	}
	if n := proxy.Count(); n != 0 {
		t.Errorf("Create with %v made %d engine calls, want 0: %q", mounts, n, proxy.Calls())
	}
}

// All complaints come at once.
func TestMountsAreCheckedBeforeAnyEngineCall(t *testing.T) {
	dir := t.TempDir()
	refused(t, []sandbox.Mount{{Source: dir}, {Source: dir, Target: "rel"}, {Volume: "v", Target: "/"}, {Source: dir, Target: "/workspace/."}},
		`target "" is not an absolute path`, `target "rel" is not an absolute path`, "root of the sandbox", "reserved for the sandbox volume")
	refused(t, []sandbox.Mount{{Source: dir, Target: "/data"}, {Volume: "v", Target: "/data/"}, {Source: dir, Target: "/x/../data"}}, `duplicate mount target "/data"`)
	refused(t, []sandbox.Mount{{Target: "/a"}, {Source: dir, Volume: "v", Target: "/b"}}, "neither a source nor a volume", "both a source")
	refused(t, []sandbox.Mount{{Source: dir, Target: "/a", Mode: "RW"}, {Volume: "v", Target: "/b", Mode: sandbox.RWCopy}}, "use ro, rw or rwcopy", "not for a volume")
	refused(t, []sandbox.Mount{{Source: dir, Target: "/proc"}, {Source: dir, Target: "/dev/x"}, {Source: dir, Target: "/.agent-sandbox/x"}},
		"/proc is not", "/dev is not", "/.agent-sandbox is not")
	refused(t, []sandbox.Mount{{Volume: "../containers/x", Target: "/a"}, {Volume: "Aa", Target: "/b"}, {Volume: "v/sub", Target: "/c"}},
		`"../containers/x" is not a volume's name`, `"Aa" is not`, "can't be mounted alone")
	refused(t, []sandbox.Mount{{Source: "/a\x00b", Target: "/a"}, {Source: "/\xff", Target: "/b"}, {Source: dir, Target: "/\xff"}}, "NUL", "UTF-8")
}

func TestCopySourceMustBeADirectory(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	refused(t, []sandbox.Mount{{Source: file, Target: "/data"}}, "must be a directory", "for a file")
	refused(t, []sandbox.Mount{{Source: "/", Target: "/data"}}, "whole file system")
	c := harness.Unconnected(t, sandbox.WithHost("unix:///nonexistent"))
	_, err := c.Create(t.Context(), sandbox.WithMounts(sandbox.Mount{Source: filepath.Join(dir, "none"), Target: "/data"}))
	if !errors.Is(err, fs.ErrNotExist) || !errors.Is(err, sandbox.ErrInvalidArgument) {
		t.Errorf("Create with a source that is missing: got %v, want fs.ErrNotExist and ErrInvalidArgument", err)
	}
}

// A source on the engine's machine need not exist on this one.
func TestSourceOfABindMustExist(t *testing.T) {
	none := filepath.Join(t.TempDir(), "none")
	for _, mode := range []sandbox.MountMode{sandbox.RO, sandbox.RW} {
		refused(t, []sandbox.Mount{{Source: none, Target: "/data", Mode: mode}}, `mount at "/data"`, none, "no such file", "Mount.Remote")
		_, err := harness.Nowhere(t).Create(t.Context(), sandbox.WithMounts(sandbox.Mount{Source: none, Target: "/data", Mode: mode, Remote: true}))
		if !errors.Is(err, sandbox.ErrEngineUnavailable) {
			t.Errorf("Create with a source on the engine's machine = %v, want nothing but a missing engine", err)
		}
	}
}
