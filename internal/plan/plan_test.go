package plan_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-1a2d6d8f/sandbox/internal/errdefs"
	"github.com/seed-1a2d6d8f/sandbox/internal/plan"
	"github.com/seed-1a2d6d8f/sandbox/internal/policy"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
)

func TestCompleteFillsInDefaults(t *testing.T) {
	t.Parallel()
	defaults := plan.Sandbox{
		Image: plan.DefaultImage, VCPUs: plan.DefaultVCPUs, Memory: plan.MemoryPerVCPU, PidsLimit: plan.DefaultPidsLimit,
		Workdir: record.Workspace, StopTimeout: plan.DefaultStopTimeout, Persistent: new(false), Network: policy.Policy{Mode: policy.AllowAll},
	}
	for name, test := range map[string]struct {
		give plan.Sandbox
		want func(*plan.Sandbox) // changes the defaults
	}{
		"nothing":   {plan.Sandbox{}, func(*plan.Sandbox) {}},
		"named":     {plan.Sandbox{Name: "a"}, func(s *plan.Sandbox) { s.Persistent = new(true) }},
		"transient": {plan.Sandbox{Name: "a", Persistent: new(false)}, func(*plan.Sandbox) {}},
		"CPUs":      {plan.Sandbox{VCPUs: 1.5}, func(s *plan.Sandbox) { s.VCPUs, s.Memory = 1.5, 3<<30 }},
		"memory":    {plan.Sandbox{Memory: 1 << 30}, func(s *plan.Sandbox) { s.Memory = 1 << 30 }},
		"their runtime": {plan.Sandbox{Runtime: "ours", Runtimes: map[string]string{"ours": "i"}}, func(s *plan.Sandbox) {
			s.Runtime, s.Runtimes, s.Image = "ours", map[string]string{"ours": "i"}, "i"
		}},
		"overridden": {plan.Sandbox{Runtime: "node20", Runtimes: map[string]string{"node20": "i"}}, func(s *plan.Sandbox) {
			s.Runtime, s.Runtimes, s.Image = "node20", map[string]string{"node20": "i"}, "i"
		}},
		"deny all":   {plan.Sandbox{Network: policy.Policy{Mode: policy.DenyAll}}, func(s *plan.Sandbox) { s.Network.Mode = policy.DenyAll }},
		"the others": {plan.Sandbox{Workdir: "/w", PidsLimit: 7, StopTimeout: time.Second}, func(s *plan.Sandbox) { s.Workdir, s.PidsLimit, s.StopTimeout = "/w", 7, time.Second }},
		"mounts": {plan.Sandbox{Mounts: []record.Mount{{Volume: "v", Target: "/a/../b/"}, {Source: "/", Target: "/c", Mode: record.RO}}}, func(s *plan.Sandbox) {
			s.Mounts = []record.Mount{{Volume: "v", Target: "/b", Mode: record.RW}, {Source: "/", Target: "/c", Mode: record.RO}}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, want := test.give, defaults
			test.want(&want)
			if err := got.Complete(); err != nil {
				t.Fatal(err)
			}
			if !record.ValidName(got.ID) || got.Name != got.ID && got.Name != test.give.Name {
				t.Errorf("Complete made the name %q and the ID %q", got.Name, got.ID)
			}
			got.ID, got.Name = "", ""
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("Complete (-want +got):\n%s", diff)
			}
		})
	}
}

// Callers name runtimes, so each keeps its image.
func TestRuntimesHaveTheirImages(t *testing.T) {
	t.Parallel()
	for runtime, image := range map[string]string{
		"debian": "debian:bookworm", "go1.26": "golang:1.26-bookworm",
		"node20": "node:20-bookworm", "node22": "node:22-bookworm", "node24": "node:24-bookworm",
		"python3.12": "python:3.12-bookworm", "python3.13": "python:3.13-bookworm",
	} {
		s := plan.Sandbox{Runtime: runtime}
		if err := s.Complete(); err != nil || s.Image != image || s.Runtime != runtime {
			t.Errorf("Complete with the runtime %s: image %q, runtime %q, %v; want %q", runtime, s.Image, s.Runtime, err, image)
		}
	}
}

func TestCompleteReturnsAllProblemsAtOnce(t *testing.T) {
	t.Parallel()
	s := plan.Sandbox{
		ID: "An ID", Name: "A Name", Image: "i", Runtime: "perl4", Runtimes: map[string]string{"ours": "i"}, Snapshot: "a-snapshot",
		Env: map[string]string{"": "x", "LONG": strings.Repeat("s3cret", 1<<15)}, Tags: map[string]string{"": "v"},
		Ports: []int{0, 8080, 8080, 1, 2}, Mounts: []record.Mount{{Volume: "v", Target: "/x"}, {Target: "/x"}, {Volume: "v", Target: "/proc/x"}},
		Problems: []error{errors.New("an option's own")},
	}
	err := s.Complete()
	if !errors.Is(err, errdefs.InvalidArgument) {
		t.Fatalf("Complete: %v, want an InvalidArgument", err)
	}
	for _, want := range []string{
		`"An ID"`, `"A Name"`, "cannot be used together", `"perl4" is not known: use one of debian, go1.26, node20, node22, node24, ours, python3.12, python3.13`, "its own image", `variable ""`, `variable "LONG"`, `tag ""`,
		"5 ports", "0 is not a port", "duplicate port 8080", "neither a source nor a volume", `duplicate mount target "/x"`, "/proc is not for mounts", "an option's own",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("Complete does not complain of %s:\n%v", want, err)
		}
	}
	if strings.Contains(err.Error(), "s3cret") {
		t.Error("Complete repeats the value of an environment variable")
	}
}

// A reference to a snapshot's image would be another's files without the snapshot's record.
func TestImagesOfTheLibraryAreRefused(t *testing.T) {
	t.Parallel()
	for image, want := range map[string]bool{
		"agent-sandbox-snapshot:abc":                               false,
		"agent-sandbox-snapshot":                                   false,
		"library/agent-sandbox-snapshot:abc":                       false,
		"docker.io/library/agent-sandbox-snapshot:abc":             false,
		"index.docker.io/library/agent-sandbox-snapshot:abc":       false,
		"docker.io/agent-sandbox-layer:abc":                        false,
		"agent-sandbox-guest:abc":                                  false,
		"agent-sandbox-snapshot@sha256:" + strings.Repeat("0", 64): false,
		"agent-sandbox-snapshots:abc":                              true,
		"example.com/agent-sandbox-snapshot:abc":                   true,
		"sha256:" + strings.Repeat("0", 64):                        true,
		"node:20-bookworm":                                         true,
	} {
		s := plan.Sandbox{Image: image}
		err := s.Complete()
		if (err == nil) != want || err != nil && !strings.Contains(err.Error(), "FromSnapshot") {
			t.Errorf("Complete with the image %q: %v, want allowed: %v", image, err, want)
		}
	}
	fork := plan.Sandbox{}
	if err := fork.Inherit(&plan.Sandbox{Image: "agent-sandbox-snapshot:abc", Persistent: new(true)}); err != nil {
		t.Errorf("Inherit: %v", err)
	}
}

func TestForkInheritsWhatIsNotGiven(t *testing.T) {
	t.Parallel()
	source := func() *plan.Sandbox {
		return &plan.Sandbox{
			Name: "source", ID: "id", Image: "i", Runtime: "node20", User: "u", Workdir: "/w", Command: []string{"c"},
			Env: map[string]string{"A": "1"}, Tags: map[string]string{"k": "v"}, Ports: []int{1, 2, 3, 4, 5}, VCPUs: 2, Memory: 5 << 30,
			Persistent: new(true), PidsLimit: 9, OCIRuntime: "runsc", NewPrivileges: true, StorageBytes: 1 << 30, GPUs: []string{"all"}, Timeout: time.Hour, StopTimeout: time.Minute,
			Idle:    record.Idle{TimeoutMS: 60_000, IgnoreDetached: true},
			Network: policy.Policy{Mode: policy.DenyAll}, Mounts: []record.Mount{{Source: "/no/such/directory", Volume: "copy", Target: "/m", Mode: record.RWCopy}},
		}
	}
	for name, test := range map[string]struct {
		give plan.Sandbox
		want func(fork *plan.Sandbox) // changes what the source has
	}{
		"everything": {plan.Sandbox{}, func(f *plan.Sandbox) { f.MaxPorts, f.Persistent = 5, new(false) }},
		"nothing": {plan.Sandbox{
			User: "v", Workdir: "/x", Command: []string{"d"}, Env: map[string]string{"B": "2"}, Tags: map[string]string{}, Ports: []int{6}, VCPUs: 1,
			PidsLimit: 8, OCIRuntime: "kata", Timeout: time.Minute, StopTimeout: time.Second, Idle: record.Idle{TimeoutMS: 1}, Persistent: new(false), Network: policy.Policy{Mode: policy.AllowAll},
			Given: plan.Tags | plan.CPUs | plan.Timeout | plan.StopTimeout | plan.Idle | plan.Env | plan.Ports | plan.Mounts | plan.Command | plan.Network,
		}, func(f *plan.Sandbox) {
			f.User, f.Workdir, f.Command, f.Env, f.Tags, f.Ports = "v", "/x", []string{"d"}, map[string]string{"B": "2"}, map[string]string{}, []int{6}
			f.VCPUs, f.Memory, f.PidsLimit, f.OCIRuntime, f.Timeout, f.StopTimeout = 1, plan.MemoryPerVCPU, 8, "kata", time.Minute, time.Second
			f.Idle = record.Idle{TimeoutMS: 1}
			f.Persistent, f.Network.Mode, f.Mounts = new(false), policy.AllowAll, nil
		}},
		"all but the memory": {plan.Sandbox{Memory: 1 << 30, Given: plan.Memory}, func(f *plan.Sandbox) { f.MaxPorts, f.Memory, f.Persistent = 5, 1<<30, new(false) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, want := test.give, source()
			test.want(want)
			if err := got.Inherit(source()); err != nil {
				t.Fatal(err)
			}
			if got.ID == want.ID || got.Name != got.ID {
				t.Errorf("the fork is %q with the ID %q", got.Name, got.ID)
			}
			got.ID, got.Name, got.Given = want.ID, want.Name, 0
			if diff := cmp.Diff(want, &got); diff != "" {
				t.Errorf("Inherit (-want +got):\n%s", diff)
			}
		})
	}
	transient := source()
	transient.Persistent = new(false)
	named := plan.Sandbox{Name: "a"}
	if err := named.Inherit(transient); err != nil || !*named.Persistent {
		t.Errorf("a named fork of a sandbox that is not persistent: %v, persistent %v, want true", err, *named.Persistent)
	}
}

func TestWhatIsTakenAwayIsChecked(t *testing.T) {
	t.Parallel()
	s := plan.Sandbox{
		Env: map[string]string{"A": "s3cret"}, Tags: map[string]string{"t": "v"}, Mounts: []record.Mount{{Volume: "v", Target: "/m"}}, Given: plan.Mounts,
		Without: plan.Removals{Env: []string{"A", "B=", ""}, Tags: []string{"t", ""}, Mounts: []string{"/m/", "relative", "/workspace"}},
	}
	err := s.CheckUpdate()
	if !errors.Is(err, errdefs.InvalidArgument) {
		t.Fatalf("CheckUpdate: %v, want an InvalidArgument", err)
	}
	for _, want := range []string{
		`variable "A" is both set and taken away`, `WithoutEnv: environment variable "B="`, `WithoutEnv: environment variable ""`,
		`tag "t" is both set and taken away`, "WithoutTag: the key is empty",
		`mount at "/m/" is both set and taken away`, `WithoutMount: target "relative"`, `WithoutMount: target "/workspace"`,
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("CheckUpdate does not complain of %s:\n%v", want, err)
		}
	}
	if strings.Contains(err.Error(), "s3cret") {
		t.Error("CheckUpdate repeats the value of an environment variable")
	}
	fork := plan.Sandbox{Without: plan.Removals{Env: []string{"A"}, Tags: []string{"t"}, Mounts: []string{"/m/"}}}
	from := plan.Sandbox{Persistent: new(true), Env: map[string]string{"A": "1", "B": "2"}, Tags: map[string]string{"t": "v"}, Mounts: []record.Mount{{Volume: "v", Target: "/m"}}}
	if err := fork.Inherit(&from); err != nil || len(fork.Env) != 1 || len(fork.Tags) != 0 || len(fork.Mounts) != 0 {
		t.Errorf("Inherit: %v, with the variables %v, the tags %v and the mounts %v", err, fork.Env, fork.Tags, fork.Mounts)
	}
	if len(from.Env) != 2 || len(from.Mounts) != 1 {
		t.Errorf("Inherit changed the source: %+v", from)
	}
}

func TestNestedMounts(t *testing.T) {
	t.Parallel()
	rwcopy := record.Mount{Source: "/s", Target: "/a", Mode: record.RWCopy}
	volume := func(target string) record.Mount {
		return record.Mount{Volume: "v", Target: target, Mode: record.RW}
	}
	for name, test := range map[string]struct {
		mounts []record.Mount
		filled bool
		want   bool
	}{
		"none":                         {nil, true, false},
		"beside a copy":                {[]record.Mount{rwcopy, volume("/ab")}, true, false},
		"in a copy":                    {[]record.Mount{rwcopy, volume("/a/b")}, false, true},
		"in a copy that comes later":   {[]record.Mount{volume("/a/b/c"), rwcopy}, false, true},
		"in a volume":                  {[]record.Mount{volume("/a"), volume("/a/b")}, true, false},
		"in a writable bind mount":     {[]record.Mount{{Source: "/s", Target: "/a", Mode: record.RW}, volume("/a/b")}, false, true},
		"in a read-only bind mount":    {[]record.Mount{{Source: "/s", Target: "/a", Mode: record.RO}, volume("/a/b")}, false, false},
		"in an empty workspace":        {[]record.Mount{volume("/workspace/a")}, false, false},
		"in a workspace with a source": {[]record.Mount{volume("/workspace/a")}, true, true},
	} {
		if got := plan.Nested("/workspace", test.mounts, test.filled); got != test.want {
			t.Errorf("%s: Nested returns %v", name, got)
		}
	}
	mounts := []record.Mount{volume("/workspace/a/b"), volume("/workspaces/c"), volume("/workspace/d")}
	if got := plan.BelowWorkspace("/workspace", mounts); !slices.Equal(got, []string{"a", "d"}) {
		t.Errorf("BelowWorkspace: %q, want a and d", got)
	}
}

func TestRemoteIsForBindMounts(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		mount record.Mount
		say   string
	}{
		{record.Mount{Source: "/s", Target: "/t", Mode: record.RO, Remote: true}, ""},
		{record.Mount{Source: "/s", Target: "/t", Mode: record.RW, Remote: true}, ""},
		{record.Mount{Source: "/", Target: "/t", Remote: true}, "ro or rw"},
		{record.Mount{Volume: "v", Target: "/t", Remote: true}, "ro or rw"},
		{record.Mount{Source: "s", Target: "/t", Mode: record.RO, Remote: true}, "not an absolute path"},
	} {
		s := plan.Sandbox{Mounts: []record.Mount{test.mount}}
		err := s.Complete()
		if (err == nil) != (test.say == "") || err != nil && !strings.Contains(err.Error(), test.say) {
			t.Errorf("%+v: %v, want an error with %q", test.mount, err, test.say)
		}
	}
}

func TestNamesOfGPUs(t *testing.T) {
	t.Parallel()
	for names, ok := range map[string]bool{
		"all": true, "0": true, "0,1": true, "GPU-3a23c669-1f69-c64e-cf85-44e9b07e7a2a": true, "nvidia.com/gpu=0": true, "amd.com/gpu=all,0": true,
		"": false, "all,0": false, "0,0": false, "a b": false, "-\n": false, "\"": false, strings.Repeat("x", 257): false,
	} {
		if err := plan.CheckGPUs(strings.Split(names, ",")); (err == nil) != ok {
			t.Errorf("CheckGPUs(%q) = %v", names, err)
		}
	}
	if err := plan.CheckGPUs(nil); err == nil {
		t.Error("CheckGPUs takes no names at all")
	}
}
