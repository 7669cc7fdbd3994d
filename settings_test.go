package sandbox_test

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/plan"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// fieldsOfSettings has each field of Settings with a value, and the option that the field is.
var fieldsOfSettings = map[string]struct {
	set    sandbox.Settings
	option sandbox.CreateOption
}{
	"Name":           {sandbox.Settings{Name: new("n")}, sandbox.WithName("n")},
	"ID":             {sandbox.Settings{ID: new("i")}, sandbox.WithID("i")},
	"Image":          {sandbox.Settings{Image: new("image")}, sandbox.WithImage("image")},
	"Runtime":        {sandbox.Settings{Runtime: new("node20")}, sandbox.WithRuntime("node20")},
	"OCIRuntime":     {sandbox.Settings{OCIRuntime: new("runsc")}, sandbox.WithOCIRuntime("runsc")},
	"User":           {sandbox.Settings{User: new("u")}, sandbox.WithUser("u")},
	"Workdir":        {sandbox.Settings{Workdir: new("/w")}, sandbox.WithWorkdir("/w")},
	"PidsLimit":      {sandbox.Settings{PidsLimit: new(99)}, sandbox.WithPidsLimit(99)},
	"StorageBytes":   {sandbox.Settings{StorageBytes: new(int64(1 << 30))}, sandbox.WithStorageSize(1 << 30)},
	"NewPrivileges":  {sandbox.Settings{NewPrivileges: true}, sandbox.WithNewPrivileges()},
	"GPUs":           {sandbox.Settings{GPUs: []string{"all"}}, sandbox.WithGPUs("all")},
	"VCPUs":          {sandbox.Settings{VCPUs: new(0.5)}, sandbox.WithVCPUs(0.5)},
	"MemoryBytes":    {sandbox.Settings{MemoryBytes: new(int64(1 << 30))}, sandbox.WithMemory(1 << 30)},
	"Command":        {sandbox.Settings{Command: []string{"c", "d"}}, sandbox.WithCommand("c", "d")},
	"Env":            {sandbox.Settings{Env: map[string]string{"A": "1"}}, sandbox.WithEnv(map[string]string{"A": "1"})},
	"Tags":           {sandbox.Settings{Tags: map[string]string{"k": "v"}}, sandbox.WithTags(map[string]string{"k": "v"})},
	"Ports":          {sandbox.Settings{Ports: []int{}}, sandbox.WithPorts([]int{}...)},
	"Mounts":         {sandbox.Settings{Mounts: []sandbox.Mount{{Volume: "v", Target: "/v"}}}, sandbox.WithMounts(sandbox.Mount{Volume: "v", Target: "/v"})},
	"Persistent":     {sandbox.Settings{Persistent: new(false)}, sandbox.WithPersistent(false)},
	"Timeout":        {sandbox.Settings{Timeout: new(time.Duration(0))}, sandbox.WithTimeout(0)},
	"IdleTimeout":    {sandbox.Settings{IdleTimeout: new(time.Minute)}, sandbox.WithIdleTimeout(time.Minute)},
	"IgnoreDetached": {sandbox.Settings{IgnoreDetached: true}, sandbox.IgnoreDetached()},
	"StopTimeout":    {sandbox.Settings{StopTimeout: new(time.Second)}, sandbox.WithStopTimeout(time.Second)},
	"Network":        {sandbox.Settings{Network: new(sandbox.DenyAll())}, sandbox.WithNetworkPolicy(sandbox.DenyAll())},
}

// Each field is its option, in Create, in Fork and, unless it is fixed, in Update.
func TestEachFieldOfSettingsIsItsOption(t *testing.T) {
	t.Parallel()
	for i := range reflect.TypeFor[sandbox.Settings]().NumField() {
		field := reflect.TypeFor[sandbox.Settings]().Field(i).Name
		name, _, _ := strings.Cut(reflect.TypeFor[sandbox.Settings]().Field(i).Tag.Get("json"), ",")
		test, listed := fieldsOfSettings[field]
		if !listed {
			t.Errorf("%s is no field of this test", field)
			continue
		}
		want, all := sandbox.PlanOf(test.option), sandbox.WithSettings(test.set)
		if diff := cmp.Diff(plan.Sandbox{}, want); diff == "" {
			t.Errorf("the option of %s sets nothing", field)
		}
		for call, got := range map[string]plan.Sandbox{"Create": sandbox.PlanOf(all), "Fork": sandbox.ForkOf(all)} {
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s with %s (-want +got):\n%s", call, field, diff)
			}
		}
		got := sandbox.UpdateOf(all)
		if _, can := test.option.(sandbox.UpdateOption); can && len(got.Problems) == 0 {
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("Update with %s (-want +got):\n%s", field, diff)
			}
		} else if err := got.CheckUpdate(); !errors.Is(err, sandbox.ErrInvalidArgument) || !strings.HasSuffix(err.Error(), "Update can't change "+name) {
			t.Errorf("Update with %s = %v, want an ErrInvalidArgument that names it", field, err)
		}
	}
	if got := sandbox.PlanOf(sandbox.WithSettings(sandbox.Settings{})); !cmp.Equal(plan.Sandbox{}, got) {
		t.Errorf("no settings set %+v", got)
	}
}

// Which settings are fixed is a promise, too.
func TestUpdateRefusesSettingsThatAreFixed(t *testing.T) {
	t.Parallel()
	var refused []string
	for i := range reflect.TypeFor[sandbox.Settings]().NumField() {
		field := reflect.TypeFor[sandbox.Settings]().Field(i).Name
		if err := fieldsOfSettings[field].set.CheckUpdate(); errors.Is(err, sandbox.ErrInvalidArgument) && strings.Contains(err.Error(), "can't change") {
			refused = append(refused, field)
		} else if err != nil && field != "IgnoreDetached" { // which needs another one
			t.Errorf("CheckUpdate with %s = %v", field, err)
		}
	}
	want := []string{"Name", "ID", "Image", "Runtime", "OCIRuntime", "User", "Workdir", "PidsLimit", "StorageBytes", "NewPrivileges", "GPUs"}
	if diff := cmp.Diff(want, refused); diff != "" {
		t.Errorf("settings that Update refuses (-want +got):\n%s", diff)
	}
}

// What is wrong in settings is said as of options, before anything else.
func TestSettingsAreChecked(t *testing.T) {
	t.Parallel()
	_, err := harness.Nowhere(t).Create(t.Context(), sandbox.WithSettings(sandbox.Settings{
		Name: new(""), VCPUs: new(0.0), MemoryBytes: new(int64(1)), Command: []string{}, IgnoreDetached: true, Network: &sandbox.NetworkPolicy{Allow: []string{"a b"}},
	}))
	for _, say := range []string{"WithName: ", "WithVCPUs: ", "WithMemory: ", "WithCommand: ", "IgnoreDetached: ", "WithNetworkPolicy: "} {
		if !errors.Is(err, sandbox.ErrInvalidArgument) || !strings.Contains(err.Error(), say) {
			t.Errorf("Create = %v, want an ErrInvalidArgument with %q", err, say)
		}
	}
}

// The settings of a sandbox make another one like it, as a struct and in JSON.
func TestSettingsOfASandboxMakeAnother(t *testing.T) {
	t.Parallel()
	was := plan.Sandbox{
		Runtime: "node20", OCIRuntime: "runsc", User: "u", Workdir: "/w", PidsLimit: 99, StorageBytes: 1 << 30, NewPrivileges: true, GPUs: []string{"0"}, VCPUs: 0.5, Memory: 1 << 30,
		Command: []string{"c"}, Ports: []int{80}, Persistent: new(true), Timeout: time.Hour, StopTimeout: 2 * time.Second,
	}
	was.Idle.TimeoutMS, was.Idle.IgnoreDetached = 60_000, true
	text, err := json.Marshal(sandbox.SettingsOf(&was))
	if err != nil {
		t.Fatal(err)
	}
	var set sandbox.Settings
	if err := json.Unmarshal(text, &set); err != nil {
		t.Fatal(err)
	}
	got := sandbox.PlanOf(sandbox.WithSettings(set))
	got.Given = 0
	if diff := cmp.Diff(was, got); diff != "" {
		t.Errorf("a sandbox with the settings %s (-want +got):\n%s", text, diff)
	}
	if err := json.Unmarshal([]byte(`{"timeoutMs": 9223372036854775807}`), &set); err == nil || !strings.Contains(err.Error(), "timeoutMs") {
		t.Errorf("a timeout that is too long: %v", err)
	}
}
