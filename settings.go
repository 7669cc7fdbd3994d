package sandbox

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/plan"
)

// Settings are the settings of a sandbox as one struct, for programs that get them from flags, a
// file or a request, see [WithSettings], and that read them from [Info] and [Status]. A field that is
// nil, or false without being a pointer, is not set. The option of each field documents it.
//
// In JSON, durations are in milliseconds, with the names timeoutMs, idleTimeoutMs and stopTimeoutMs.
type Settings struct {
	// Those up to GPUs are fixed once the sandbox exists: [Sandbox.Update] refuses them.
	Name       *string `json:"name,omitempty"`       // [WithName]
	ID         *string `json:"id,omitempty"`         // [WithID]
	Image      *string `json:"image,omitempty"`      // [WithImage]
	Runtime    *string `json:"runtime,omitempty"`    // [WithRuntime]
	OCIRuntime *string `json:"ociRuntime,omitempty"` // [WithOCIRuntime]
	User       *string `json:"user,omitempty"`       // [WithUser]
	Workdir    *string `json:"workdir,omitempty"`    // [WithWorkdir]

	PidsLimit     *int   `json:"pidsLimit,omitempty"`     // [WithPidsLimit]
	StorageBytes  *int64 `json:"storageBytes,omitempty"`  // [WithStorageSize]
	NewPrivileges bool   `json:"newPrivileges,omitempty"` // [WithNewPrivileges]

	GPUs []string `json:"gpus,omitempty"` // [WithGPUs]

	VCPUs       *float64 `json:"vcpus,omitempty"`       // [WithVCPUs]
	MemoryBytes *int64   `json:"memoryBytes,omitempty"` // [WithMemory]

	Command []string          `json:"command,omitempty"` // [WithCommand]
	Env     map[string]string `json:"env,omitempty"`     // [WithEnv]
	Tags    map[string]string `json:"tags,omitempty"`    // [WithTags]
	Ports   []int             `json:"ports,omitempty"`   // [WithPorts]
	Mounts  []Mount           `json:"mounts,omitempty"`  // [WithMounts]

	Persistent     *bool          `json:"persistent,omitempty"`     // [WithPersistent]
	Timeout        *time.Duration `json:"-"`                        // [WithTimeout]
	IdleTimeout    *time.Duration `json:"-"`                        // [WithIdleTimeout]
	IgnoreDetached bool           `json:"ignoreDetached,omitempty"` // [IgnoreDetached]
	StopTimeout    *time.Duration `json:"-"`                        // [WithStopTimeout]
	Network        *NetworkPolicy `json:"network,omitempty"`        // [WithNetworkPolicy]
}

// WithSettings sets everything that is set in s, as the options of its fields do. In
// [Sandbox.Update] what can't be changed is an [ErrInvalidArgument] that names it, and so is in
// [Pool.Create] what a running sandbox can't get at once.
func WithSettings(s Settings) LiveOption {
	var o settingsOption
	fix(&o, "name", s.Name, WithName)
	fix(&o, "id", s.ID, WithID)
	fix(&o, "image", s.Image, WithImage)
	fix(&o, "runtime", s.Runtime, WithRuntime)
	fix(&o, "ociRuntime", s.OCIRuntime, WithOCIRuntime)
	fix(&o, "user", s.User, WithUser)
	fix(&o, "workdir", s.Workdir, WithWorkdir)
	fix(&o, "pidsLimit", s.PidsLimit, WithPidsLimit)
	fix(&o, "storageBytes", s.StorageBytes, WithStorageSize)
	if s.NewPrivileges {
		fix(&o, "newPrivileges", &s.NewPrivileges, func(bool) MakeOption { return WithNewPrivileges() })
	}
	if s.GPUs != nil {
		fix(&o, "gpus", &s.GPUs, func(devices []string) MakeOption { return WithGPUs(devices...) })
	}
	change(&o, s.VCPUs, WithVCPUs[float64])
	change(&o, s.MemoryBytes, WithMemory)
	changeList(&o, "command", s.Command, WithCommand)
	changeMap(&o, s.Env, WithEnv)
	changeMap(&o, s.Tags, WithTags)
	changeList(&o, "ports", s.Ports, WithPorts)
	changeList(&o, "mounts", s.Mounts, WithMounts)
	change(&o, s.Persistent, WithPersistent)
	change(&o, s.Timeout, WithTimeout)
	change(&o, s.IdleTimeout, WithIdleTimeout)
	if s.IgnoreDetached {
		o.changes = append(o.changes, IgnoreDetached())
	}
	change(&o, s.StopTimeout, WithStopTimeout)
	change(&o, s.Network, WithNetworkPolicy)
	return o
}

// CheckUpdate returns the [ErrInvalidArgument] of a [Sandbox.Update] with these settings, as far as
// it depends neither on the sandbox nor on the client.
func (s Settings) CheckUpdate() error {
	set := &settings{}
	set.MaxPorts = math.MaxInt
	WithSettings(s).applyUpdate(set)
	return fail("settings", "", set.CheckUpdate())
}

// CheckPool is [Settings.CheckUpdate] for [Pool.Create].
func (s Settings) CheckPool() error {
	set := &settings{}
	set.MaxPorts = math.MaxInt
	WithSettings(s).applyPool(set)
	return fail("settings", "", set.CheckUpdate())
}

// A settingsOption is several options.
type settingsOption struct {
	makes   []MakeOption
	fixed   []string // the fields that makes set, as they are in JSON
	changes []ChangeOption
	later   []string // the fields of changes that need another session
}

func fix[V any, O MakeOption](o *settingsOption, field string, v *V, option func(V) O) {
	if v != nil {
		o.makes, o.fixed = append(o.makes, option(*v)), append(o.fixed, field)
	}
}

func change[V any, O ChangeOption](o *settingsOption, v *V, option func(V) O) {
	if v != nil {
		o.changes = append(o.changes, option(*v))
	}
}

func changeList[V any](o *settingsOption, field string, v []V, option func(...V) ChangeOption) {
	if v != nil {
		o.changes, o.later = append(o.changes, option(v...)), append(o.later, field)
	}
}

func changeMap[O ChangeOption](o *settingsOption, v map[string]string, option func(map[string]string) O) {
	if v != nil {
		o.changes = append(o.changes, option(v))
	}
}

func (o settingsOption) applyCreate(s *settings) {
	apply(o.makes, func(o MakeOption) { o.applyCreate(s) })
	apply(o.changes, func(o ChangeOption) { o.applyCreate(s) })
}

func (o settingsOption) applyFork(s *settings) {
	apply(o.makes, func(o MakeOption) { o.applyFork(s) })
	apply(o.changes, func(o ChangeOption) { o.applyFork(s) })
}

func (o settingsOption) applyUpdate(s *settings) {
	if len(o.fixed) > 0 {
		s.problem("Update can't change %s", strings.Join(o.fixed, ", "))
	}
	apply(o.changes, func(o ChangeOption) { o.applyUpdate(s) })
}

func (o settingsOption) applyPool(s *settings) {
	fields := slices.DeleteFunc(slices.Concat(o.fixed, o.later), func(field string) bool { return field == "name" })
	if len(fields) > 0 {
		s.problem("a sandbox of a pool can't get %s any more", strings.Join(fields, ", "))
	}
	o.applyCreate(s)
}

// settingsOf converts the settings of a sandbox that exists.
func settingsOf(p *plan.Sandbox) Settings {
	return Settings{
		Runtime: known(p.Runtime), OCIRuntime: known(p.OCIRuntime), User: known(p.User), Workdir: known(p.Workdir),
		PidsLimit: known(int(p.PidsLimit)), StorageBytes: known(p.StorageBytes), NewPrivileges: p.NewPrivileges, GPUs: p.GPUs,
		VCPUs: known(p.VCPUs), MemoryBytes: known(p.Memory), Command: p.Command, Ports: p.Ports, Mounts: mountsOf(p.Mounts),
		Persistent: p.Persistent, Timeout: &p.Timeout, IdleTimeout: new(p.Idle.Timeout()), IgnoreDetached: p.Idle.IgnoreDetached, StopTimeout: &p.StopTimeout,
	}
}

// known returns nil for a zero value.
func known[V comparable](v V) *V {
	if v == *new(V) {
		return nil
	}
	return &v
}

// settingsJSON are Settings as they are in JSON.
type settingsJSON struct {
	plainSettings
	TimeoutMS     *int64 `json:"timeoutMs,omitempty"`
	IdleTimeoutMS *int64 `json:"idleTimeoutMs,omitempty"`
	StopTimeoutMS *int64 `json:"stopTimeoutMs,omitempty"`
}

type plainSettings Settings

// MarshalJSON encodes the settings with names in lower camel case.
func (s Settings) MarshalJSON() ([]byte, error) {
	ms := func(d *time.Duration) *int64 {
		if d == nil {
			return nil
		}
		return new(d.Milliseconds())
	}
	return json.Marshal(settingsJSON{plainSettings(s), ms(s.Timeout), ms(s.IdleTimeout), ms(s.StopTimeout)})
}

// UnmarshalJSON decodes what MarshalJSON has encoded.
func (s *Settings) UnmarshalJSON(b []byte) error {
	var got settingsJSON
	if err := json.Unmarshal(b, &got); err != nil {
		return err
	}
	*s = Settings(got.plainSettings)
	for _, d := range []struct {
		field string
		ms    *int64
		to    **time.Duration
	}{{"timeoutMs", got.TimeoutMS, &s.Timeout}, {"idleTimeoutMs", got.IdleTimeoutMS, &s.IdleTimeout}, {"stopTimeoutMs", got.StopTimeoutMS, &s.StopTimeout}} {
		if d.ms == nil {
			continue
		}
		const most = math.MaxInt64 / int64(time.Millisecond)
		if *d.ms > most || *d.ms < -most {
			return fmt.Errorf("%s=%d is too large", d.field, *d.ms)
		}
		*d.to = new(time.Duration(*d.ms) * time.Millisecond)
	}
	return nil
}
