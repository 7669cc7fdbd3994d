package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/lifecycle"
	"github.com/seed-1a2d6d8f/sandbox/internal/plan"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
)

// Settings are what the options of [Create] or [Fork] have set, as last changed by
// [Sandbox.Update]: those of the next session. Pending names the ones that the present
// session does not have yet. The image, tags and network policy are in [Info] and [Status].
type Settings struct {
	// Runtime is that of [WithRuntime], empty with [WithImage].
	Runtime string `json:"runtime,omitempty"`
	// User is the user of commands; empty is root.
	User    string `json:"user,omitempty"`
	Workdir string `json:"workdir"`
	// Command is the main process, with its arguments. Nil without one.
	Command []string `json:"command,omitempty"`
	// VCPUs, MemoryBytes, PidsLimit, OCIRuntime and Env are empty in [List], which does not
	// inspect each sandbox: only the container has them, so that a record of this package never
	// differs from what the engine enforces, and changed variables are recorded encrypted. Of
	// limits, 0 is none, which an engine has that can't limit.
	VCPUs       float64 `json:"vcpus,omitempty"`
	MemoryBytes int64   `json:"memoryBytes,omitempty"`
	PidsLimit   int64   `json:"pidsLimit,omitempty"`
	// OCIRuntime is the one that the container has, also if [WithOCIRuntime] was not given.
	OCIRuntime string `json:"ociRuntime,omitempty"`
	// Env are the names of the variables of [WithEnv], sorted. Their values are not shown.
	Env []string `json:"env,omitempty"`
	// StorageBytes is the limit of [WithStorageSize]; 0 is none.
	StorageBytes  int64 `json:"storageBytes,omitempty"`
	NewPrivileges bool  `json:"newPrivileges,omitempty"`
	Persistent    bool  `json:"persistent"`
	// IdleTimeout is that of [WithIdleTimeout], and IgnoreDetached its option. Timeout,
	// IdleTimeout and StopTimeout are timeoutMs, idleTimeoutMs and stopTimeoutMs in JSON, in
	// milliseconds. A Timeout or IdleTimeout of 0 is none.
	Timeout        time.Duration `json:"-"`
	IdleTimeout    time.Duration `json:"-"`
	IgnoreDetached bool          `json:"ignoreDetached,omitempty"`
	StopTimeout    time.Duration `json:"-"`
	// Ports are the ports to publish; [Info.Ports] are those that are published.
	Ports []int `json:"ports,omitempty"`
	// Mounts are without the workspace. Those of the present session are [Sandbox.Mounts].
	Mounts []Mount `json:"mounts,omitempty"`
	// Pending names the settings that Update changed and that wait for the next session,
	// sorted: "command", "env" (commands have it), "mounts", "ports", "stopTimeout" (Stop and
	// Close have it) or "timeout". [List] does not know of the timeouts.
	Pending []string `json:"pending,omitempty"`
}

// settingsJSON are Settings as they are in JSON.
type settingsJSON struct {
	plainSettings
	TimeoutMS     int64 `json:"timeoutMs"`
	IdleTimeoutMS int64 `json:"idleTimeoutMs"`
	StopTimeoutMS int64 `json:"stopTimeoutMs"`
}

type plainSettings Settings

// MarshalJSON encodes the settings with names in lower camel case.
func (s Settings) MarshalJSON() ([]byte, error) {
	return json.Marshal(settingsJSON{plainSettings(s), s.Timeout.Milliseconds(), s.IdleTimeout.Milliseconds(), s.StopTimeout.Milliseconds()})
}

// UnmarshalJSON decodes what MarshalJSON has encoded.
func (s *Settings) UnmarshalJSON(b []byte) error {
	var got settingsJSON
	err := json.Unmarshal(b, &got)
	*s = Settings(got.plainSettings)
	s.Timeout, s.StopTimeout = time.Duration(got.TimeoutMS)*time.Millisecond, time.Duration(got.StopTimeoutMS)*time.Millisecond
	s.IdleTimeout = time.Duration(got.IdleTimeoutMS) * time.Millisecond
	return err
}

// settingsOf converts the settings of a sandbox's next session.
func settingsOf(p *plan.Sandbox, rec record.Sandbox, got engine.Container) Settings {
	return Settings{
		Runtime: p.Runtime, User: p.User, Workdir: p.Workdir, Command: p.Command, VCPUs: p.VCPUs, MemoryBytes: p.Memory,
		PidsLimit: p.PidsLimit, OCIRuntime: p.OCIRuntime, Env: slices.Sorted(maps.Keys(p.Env)), StorageBytes: p.StorageBytes,
		NewPrivileges: p.NewPrivileges, Persistent: *p.Persistent, Timeout: p.Timeout, StopTimeout: p.StopTimeout,
		IdleTimeout: p.Idle.Timeout(), IgnoreDetached: p.Idle.IgnoreDetached,
		Ports: p.Ports, Mounts: mountsOf(p.Mounts), Pending: rec.PendingChanges(got.StartedAt),
	}
}

// inspectSettings returns the settings of a sandbox whose container was inspected. What can't be
// read is left out.
func inspectSettings(ctx context.Context, l *lifecycle.Client, rec record.Sandbox, got engine.Container) Settings {
	// The variables of the image are not of WithEnv.
	image, err := l.Engine.InspectImage(ctx, got.ImageID)
	p, e := plan.FromRecord(rec, got, image)
	if e != nil {
		p = plan.Recorded(rec)
	} else if err != nil {
		p.Env = nil
	}
	if err = errors.Join(err, e); err != nil && ctx.Err() == nil {
		l.Log.Warn("not all settings could be read", "sandbox", rec.Name, "error", err)
	}
	return settingsOf(p, rec, got)
}
