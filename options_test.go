package sandbox_test

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

func TestOptionsThatCannotBeRightAreRefused(t *testing.T) {
	t.Parallel()
	c := harness.Nowhere(t)
	six := map[string]string{"1": "", "2": "", "3": "", "4": "", "5": "", "6": ""}
	for _, tt := range []struct {
		option sandbox.CreateOption
		say    string
	}{
		{sandbox.WithName(""), "WithName: the name is empty"},
		{sandbox.WithID(""), "WithID: the ID is empty"},
		{sandbox.WithImage(""), "WithImage: the image is empty"},
		{sandbox.WithRuntime(""), "WithRuntime: the identifier is empty"},
		{sandbox.WithRuntime("cobol85"), `runtime "cobol85" is not known: use one of debian, go1.26, node20`},
		{sandbox.WithEnv(map[string]string{"": "b"}), `environment variable ""`},
		{sandbox.WithEnv(map[string]string{"a=b": "c"}), `environment variable "a=b"`},
		{sandbox.WithEnv(map[string]string{"a\x00": "c"}), `environment variable "a\x00"`},
		{sandbox.WithEnv(map[string]string{"a\nb": "c"}), `environment variable "a\nb"`},
		{sandbox.WithEnv(map[string]string{"a": "b\x00"}), "contains a NUL byte"},
		{sandbox.WithEnv(map[string]string{"a": strings.Repeat("x", 128<<10)}), "Linux takes less than 128 KiB"},
		{sandbox.WithTags(six), "6 tags: use at most 5"},
		{sandbox.WithTags(map[string]string{"": "x"}), `tag ""="x"`},
		{sandbox.WithTags(map[string]string{"k": "\xff"}), `tag "k"="\xff"`},
		{sandbox.WithVCPUs(0), "WithVCPUs: 0 CPUs"},
		{sandbox.WithVCPUs(-1), "WithVCPUs: -1 CPUs"},
		{sandbox.WithVCPUs(0.001), "WithVCPUs: 0.001 CPUs"},
		{sandbox.WithVCPUs(math.NaN()), "WithVCPUs: NaN CPUs"},
		{sandbox.WithVCPUs(math.Inf(1)), "WithVCPUs: +Inf CPUs"},
		{sandbox.WithMemory(0), "WithMemory: 0 bytes"},
		{sandbox.WithMemory(-1), "WithMemory: -1 bytes"},
		{sandbox.WithMemory(24<<20 - 1), "at least 25165824"},
		{sandbox.WithPidsLimit(0), "WithPidsLimit: 0: use 32 to 4194304"},
		{sandbox.WithPidsLimit(31), "WithPidsLimit: 31:"},
		{sandbox.WithPidsLimit(4<<20 + 1), "WithPidsLimit: 4194305:"},
		{sandbox.WithUser(""), `WithUser: "" is not user or user:group`},
		{sandbox.WithUser("a:b:c"), `WithUser: "a:b:c"`},
		{sandbox.WithUser("a\n"), `WithUser: "a\n"`},
		{sandbox.WithUser("a\x00"), `WithUser: "a\x00"`},
		{sandbox.WithUser("\xff"), `WithUser: "\xff": the engine takes UTF-8 alone`},
		{sandbox.WithWorkdir(""), `WithWorkdir: "" is not an absolute path`},
		{sandbox.WithWorkdir("rel"), `WithWorkdir: "rel"`},
		{sandbox.WithWorkdir("/a\x00"), `WithWorkdir: "/a\x00"`},
		{sandbox.WithWorkdir("/a\xff"), `WithWorkdir: "/a\xff" is not UTF-8`},
		{sandbox.WithWorkdir("/" + strings.Repeat("n", 256)), `too long: a path has at most 4095 bytes, and each name in it 255`},
		{sandbox.WithWorkdir(strings.Repeat("/n", 2048)), `too long: a path has at most 4095 bytes`},
		{sandbox.WithEnv(map[string]string{"a": "b\xff"}), `environment variable "a": key and value must be UTF-8`},
		{sandbox.WithEnv(map[string]string{"a\xff": "b"}), `environment variable "a\xff": key and value must be UTF-8`},
		{sandbox.WithCommand(), "WithCommand: there is no program"},
		{sandbox.WithCommand(""), "WithCommand: there is no program"},
		{sandbox.WithCommand("a", "b\x00"), `WithCommand: "b\x00" contains a NUL byte`},
		{sandbox.WithTimeout(-time.Second), "WithTimeout: -1s"},
		{sandbox.WithTimeout(time.Microsecond), "WithTimeout: 1µs"},
		{sandbox.WithIdleTimeout(-time.Second), "WithIdleTimeout: -1s"},
		{sandbox.WithIdleTimeout(time.Microsecond), "WithIdleTimeout: 1µs"},
		{sandbox.IgnoreDetached(), "IgnoreDetached: it needs WithIdleTimeout"},
		{sandbox.WithStopTimeout(0), "WithStopTimeout: 0s"},
		{sandbox.WithStopTimeout(-time.Second), "WithStopTimeout: -1s"},
		{sandbox.WithStopTimeout(1500 * time.Millisecond), "WithStopTimeout: 1.5s"},
	} {
		sb, err := c.Create(t.Context(), tt.option)
		if sb != nil || !errors.Is(err, sandbox.ErrInvalidArgument) || !strings.Contains(err.Error(), tt.say) {
			t.Errorf("Create = %v, %v; want ErrInvalidArgument with %q", sb, err, tt.say)
		}
		if _, err := c.GetOrCreate(t.Context(), "name", tt.option); tt.say != "WithName: the name is empty" && !errors.Is(err, sandbox.ErrInvalidArgument) {
			t.Errorf("GetOrCreate = %v; want ErrInvalidArgument with %q", err, tt.say)
		}
	}
}

// The edges that are still right, as far as the engine need not be asked.
func TestOptionsAtTheirLimitsAreTaken(t *testing.T) {
	t.Parallel()
	c := harness.Nowhere(t)
	for i, opt := range []sandbox.CreateOption{
		sandbox.WithRuntime("node20"),
		sandbox.WithEnv(map[string]string{"a": strings.Repeat("x", 128<<10-3)}),
		sandbox.WithEnv(map[string]string{"a": "", "b": "=", "c": "\n'\"$(x)"}),
		sandbox.WithEnv(nil),
		sandbox.WithTags(map[string]string{"1": "", "2": "", "3": "", "4": "", "5": ""}),
		sandbox.WithVCPUs(0.01),
		sandbox.WithMemory(24 << 20),
		sandbox.WithPidsLimit(32), sandbox.WithPidsLimit(4 << 20),
		sandbox.WithUser("1000:1000"),
		sandbox.WithWorkdir("/"),
		sandbox.WithCommand("a", ""),
		sandbox.WithTimeout(0),
		sandbox.WithTimeout(time.Millisecond),
		sandbox.WithIdleTimeout(0),
		sandbox.WithIdleTimeout(time.Millisecond),
		sandbox.WithStopTimeout(time.Second),
		sandbox.OnCreate(nil), sandbox.OnResume(nil), sandbox.WithProgress(nil), nil,
	} {
		if _, err := c.Create(t.Context(), opt); !errors.Is(err, sandbox.ErrEngineUnavailable) {
			t.Errorf("option %d: Create = %v; want no complaint but that there is no engine", i, err)
		}
	}
}

func TestImageAndRuntimeExcludeEachOther(t *testing.T) {
	t.Parallel()
	_, err := harness.Nowhere(t).Create(t.Context(), sandbox.WithImage("a"), sandbox.WithRuntime("node20"))
	if !errors.Is(err, sandbox.ErrInvalidArgument) || !strings.Contains(err.Error(), "cannot be used together") {
		t.Errorf("Create = %v; want that they cannot be used together", err)
	}
}

// A runtime that nobody knows is answered with all that there are, this client's own too.
func TestRuntimesOfTheClient(t *testing.T) {
	t.Parallel()
	runtimes := map[string]string{"ours": "registry.example/ours:1"}
	c, err := sandbox.NewClient(sandbox.WithHost("unix:///nowhere.sock"), sandbox.WithRuntimes(runtimes))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	clear(runtimes)
	_, err = c.Create(t.Context(), sandbox.WithRuntime("cobol"))
	if !errors.Is(err, sandbox.ErrInvalidArgument) || !strings.Contains(err.Error(), "node24, ours, python3.12") {
		t.Errorf("Create = %v, want the list of runtimes", err)
	}
	if _, err := c.Create(t.Context(), sandbox.WithRuntime("ours")); !errors.Is(err, sandbox.ErrEngineUnavailable) {
		t.Errorf("Create with the client's runtime = %v, want nothing but a missing engine", err)
	}
}

func TestAllComplaintsComeAtOnce(t *testing.T) {
	t.Parallel()
	_, err := harness.Nowhere(t).Create(t.Context(), sandbox.WithVCPUs(0), sandbox.WithMemory(1), sandbox.WithName("UPPER"), sandbox.WithID("../x"),
		sandbox.WithUser(""), sandbox.WithWorkdir("rel"), sandbox.WithRuntime("x"), sandbox.WithEnv(map[string]string{"=": ""}))
	for _, say := range []string{"WithVCPUs", "WithMemory", `"UPPER"`, `"../x"`, "WithUser", "WithWorkdir", "runtime", "environment"} {
		if err == nil || !strings.Contains(err.Error(), say) {
			t.Errorf("Create = %v; want a complaint about %s too", err, say)
		}
	}
}

// A name given twice is one name.
func TestGetOrCreateTakesOneName(t *testing.T) {
	t.Parallel()
	for _, other := range []string{"b", "UPPER", ""} {
		_, err := harness.Nowhere(t).GetOrCreate(t.Context(), "a", sandbox.WithName(other))
		if !errors.Is(err, sandbox.ErrInvalidArgument) || !strings.Contains(err.Error(), "WithName") {
			t.Errorf("GetOrCreate of a with WithName(%q) = %v, want ErrInvalidArgument", other, err)
		}
	}
	if _, err := harness.Nowhere(t).GetOrCreate(t.Context(), "a", sandbox.WithName("a")); !errors.Is(err, sandbox.ErrEngineUnavailable) {
		t.Errorf("GetOrCreate of a with WithName(a) = %v, want that it goes to the engine", err)
	}
}

func TestOptionsHaveNoOrder(t *testing.T) {
	t.Parallel()
	for _, opts := range [][]sandbox.CreateOption{
		{sandbox.WithVCPUs(2), sandbox.WithMemory(100 << 20)},
		{sandbox.WithMemory(100 << 20), sandbox.WithVCPUs(2)},
	} {
		if vcpus, memory, err := sandbox.LimitsOf(opts...); vcpus != 2 || memory != 100<<20 || err != nil {
			t.Errorf("LimitsOf = %v, %v, %v; want 2 CPUs and 100 MiB", vcpus, memory, err)
		}
	}
	// Of two that set the same thing the later one wins.
	if vcpus, _, err := sandbox.LimitsOf(sandbox.WithVCPUs(2), sandbox.WithVCPUs(3)); vcpus != 3 || err != nil {
		t.Errorf("LimitsOf = %v, %v; want the later 3", vcpus, err)
	}
}

// A sandbox has 2048 MiB for each CPU, unless told otherwise, and so 2 GB at 1 and 4 at 2.
func TestMemoryComesWithCPUs(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		opts   []sandbox.CreateOption
		vcpus  float64
		memory int64
	}{
		{nil, 1, 2147483648},
		{[]sandbox.CreateOption{sandbox.WithVCPUs(1)}, 1, 2147483648},
		{[]sandbox.CreateOption{sandbox.WithVCPUs(2)}, 2, 4294967296},
		{[]sandbox.CreateOption{sandbox.WithVCPUs(4)}, 4, 8589934592},
		{[]sandbox.CreateOption{sandbox.WithVCPUs(0.5)}, 0.5, 1073741824},
		{[]sandbox.CreateOption{sandbox.WithVCPUs(2), sandbox.WithMemory(2048 << 20)}, 2, 2147483648},
		{[]sandbox.CreateOption{sandbox.WithMemory(64 << 20)}, 1, 64 << 20},
		{[]sandbox.CreateOption{sandbox.WithVCPUs(0.01)}, 0.01, 24 << 20}, // the least
	} {
		if vcpus, memory, err := sandbox.LimitsOf(tt.opts...); vcpus != tt.vcpus || memory != tt.memory || err != nil {
			t.Errorf("LimitsOf = %v, %v, %v; want %v, %v", vcpus, memory, err, tt.vcpus, tt.memory)
		}
	}
}

// Options are checked before anything happens: the engine is not even connected to.
func TestNothingHappensBeforeOptionsAreChecked(t *testing.T) {
	t.Parallel()
	proxy := enginetest.NewProxy(t)
	c := harness.Unconnected(t, sandbox.WithHost(proxy.Host()))
	called := false
	_, err := c.Create(t.Context(), sandbox.WithVCPUs(0),
		sandbox.WithProgress(func(sandbox.Progress) { called = true }),
		sandbox.OnCreate(func(context.Context, *sandbox.Sandbox) error { called = true; return nil }))
	if !errors.Is(err, sandbox.ErrInvalidArgument) || called || proxy.Count() != 0 {
		t.Errorf("Create = %v with %d engine calls (%q), a function called: %v; want none of it", err, proxy.Count(), proxy.Calls(), called)
	}
}

// What the caller does with a map after giving it changes nothing.
func TestOptionsKeepCopiesOfMaps(t *testing.T) {
	t.Parallel()
	env := map[string]string{"GOOD": "1"}
	opt := sandbox.WithEnv(env)
	env["="] = "bad"
	if _, _, err := sandbox.LimitsOf(opt); err != nil {
		t.Errorf("LimitsOf = %v; the option took a later change of the map", err)
	}
}

func TestClientOptionsAreChecked(t *testing.T) {
	t.Parallel()
	for say, opt := range map[string]sandbox.ClientOption{
		"WithHost":                       sandbox.WithHost(""),
		"WithLogger":                     sandbox.WithLogger(nil),
		"WithLimits":                     sandbox.WithLimits(sandbox.Limits{Creates: -1}),
		`WithRuntimes: identifier "a b"`: sandbox.WithRuntimes(map[string]string{"a b": "i"}),
		`WithRuntimes: "a" has no image`: sandbox.WithRuntimes(map[string]string{"a": ""}),
	} {
		if _, err := sandbox.NewClient(opt); !errors.Is(err, sandbox.ErrInvalidArgument) || !strings.Contains(err.Error(), say) {
			t.Errorf("NewClient = %v; want ErrInvalidArgument about %s", err, say)
		}
	}
}

// An unknown state is not silently an empty list.
func TestListOptionsAreChecked(t *testing.T) {
	t.Parallel()
	c := harness.Nowhere(t)
	_, err := c.List(t.Context(), sandbox.ListOptions{States: []sandbox.State{sandbox.StateRunning, "runing"}})
	if say := `state "runing"`; !errors.Is(err, sandbox.ErrInvalidArgument) || !strings.Contains(err.Error(), say) {
		t.Errorf("List = %v; want ErrInvalidArgument about %s", err, say)
	}
}
