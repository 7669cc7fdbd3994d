package sandboxhttp

import (
	"errors"
	"math"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
)

// WithHostFiles permits requests that name files of this machine or the engine's: mounts of
// directories, directories as sources, repositories that are not cloned over https or http. Who
// may mount a directory of the engine's machine can do everything there. Default: such requests
// get status 403.
func WithHostFiles() Option {
	return func(c *config) { c.hostFiles = true }
}

// WithSourceAddresses bounds the servers that the sources and images of requests come from, as
// [sandbox.WithSourceAddresses] does: to those with public addresses, and those in also. Default: any
// server that this machine, and the engine's, can reach, so that clients can make both connect there.
func WithSourceAddresses(also ...netip.Prefix) Option {
	bound := sandbox.WithSourceAddresses(also...)
	return func(c *config) { c.bound = bound }
}

var errHostFiles = &statusError{
	http.StatusForbidden, "forbidden",
	"the server does not permit mounts and sources that are files of its machine: see sandboxhttp.WithHostFiles",
}

// changes are the settings that create, fork and update can set. Those that are absent, or
// null, are not set.
type changes struct {
	Command        []string               `json:"command"`
	Env            map[string]string      `json:"env"`
	Tags           map[string]string      `json:"tags"`
	Ports          []int                  `json:"ports"`
	VCPUs          *float64               `json:"vcpus"`
	MemoryBytes    *int64                 `json:"memoryBytes"`
	TimeoutMS      *int64                 `json:"timeoutMs"`
	IdleTimeoutMS  *int64                 `json:"idleTimeoutMs"`
	IgnoreDetached bool                   `json:"ignoreDetached"`
	StopTimeoutMS  *int64                 `json:"stopTimeoutMs"`
	Network        *sandbox.NetworkPolicy `json:"network"`
	Persistent     *bool                  `json:"persistent"`
	Mounts         []sandbox.Mount        `json:"mounts"`
}

// duration is a number of milliseconds as a duration.
func duration(field string, ms int64) (time.Duration, error) {
	const most = math.MaxInt64 / int64(time.Millisecond)
	if ms > most || ms < -most {
		return 0, invalid("%s=%d is too large", field, ms)
	}
	return time.Duration(ms) * time.Millisecond, nil
}

func (c *changes) options(hostFiles bool) (opts []sandbox.ChangeOption, err error) {
	var errs []error
	add := func(o sandbox.ChangeOption) { opts = append(opts, o) }
	addTime := func(field string, ms *int64, option func(time.Duration) sandbox.ChangeOption) {
		if ms != nil {
			d, err := duration(field, *ms)
			errs = append(errs, err)
			add(option(d))
		}
	}
	if c.Command != nil {
		add(sandbox.WithCommand(c.Command...))
	}
	if c.Env != nil {
		add(sandbox.WithEnv(c.Env))
	}
	if c.Tags != nil {
		add(sandbox.WithTags(c.Tags))
	}
	if c.Ports != nil {
		add(sandbox.WithPorts(c.Ports...))
	}
	if c.VCPUs != nil {
		add(sandbox.WithVCPUs(*c.VCPUs))
	}
	if c.MemoryBytes != nil {
		add(sandbox.WithMemory(*c.MemoryBytes))
	}
	addTime("timeoutMs", c.TimeoutMS, sandbox.WithTimeout)
	addTime("stopTimeoutMs", c.StopTimeoutMS, sandbox.WithStopTimeout)
	addTime("idleTimeoutMs", c.IdleTimeoutMS, sandbox.WithIdleTimeout)
	if c.IgnoreDetached {
		add(sandbox.IgnoreDetached())
	}
	if c.Network != nil {
		add(sandbox.WithNetworkPolicy(*c.Network))
	}
	if c.Persistent != nil {
		add(sandbox.WithPersistent(*c.Persistent))
	}
	if c.Mounts != nil {
		for _, m := range c.Mounts {
			if m.Source != "" && !hostFiles {
				return nil, errHostFiles
			}
		}
		add(sandbox.WithMounts(c.Mounts...))
	}
	return opts, errors.Join(errs...)
}

// makes are the settings that create and fork can set.
type makes struct {
	changes
	Name          *string `json:"name"`
	ID            *string `json:"id"`
	Image         *string `json:"image"`
	Runtime       *string `json:"runtime"`
	OCIRuntime    *string `json:"ociRuntime"`
	User          *string `json:"user"`
	Workdir       *string `json:"workdir"`
	PidsLimit     *int    `json:"pidsLimit"`
	StorageBytes  *int64  `json:"storageBytes"`
	NewPrivileges bool    `json:"newPrivileges"`
}

func (m *makes) options(hostFiles bool) ([]sandbox.MakeOption, error) {
	shared, err := m.changes.options(hostFiles)
	if err != nil {
		return nil, err
	}
	// No request has a handle that the sandbox could live with.
	opts := []sandbox.MakeOption{sandbox.WithPersistent(true)}
	for _, o := range shared {
		opts = append(opts, o)
	}
	for _, text := range []struct {
		value  *string
		option func(string) sandbox.MakeOption
	}{
		{m.Name, sandbox.WithName}, {m.ID, sandbox.WithID}, {m.Image, sandbox.WithImage}, {m.Runtime, sandbox.WithRuntime},
		{m.OCIRuntime, sandbox.WithOCIRuntime}, {m.User, sandbox.WithUser}, {m.Workdir, sandbox.WithWorkdir},
	} {
		if text.value != nil {
			opts = append(opts, text.option(*text.value))
		}
	}
	if m.PidsLimit != nil {
		opts = append(opts, sandbox.WithPidsLimit(*m.PidsLimit))
	}
	if m.StorageBytes != nil {
		opts = append(opts, sandbox.WithStorageSize(*m.StorageBytes))
	}
	if m.NewPrivileges {
		opts = append(opts, sandbox.WithNewPrivileges())
	}
	return opts, nil
}

// removals are the settings that fork and update can take away.
type removals struct {
	WithoutEnv    []string `json:"withoutEnv"`
	WithoutTags   []string `json:"withoutTags"`
	WithoutMounts []string `json:"withoutMounts"`
}

func (m *removals) options() (opts []sandbox.RemoveOption) {
	for _, removal := range []struct {
		keys   []string
		option func(...string) sandbox.RemoveOption
	}{{m.WithoutEnv, sandbox.WithoutEnv}, {m.WithoutTags, sandbox.WithoutTag}, {m.WithoutMounts, sandbox.WithoutMount}} {
		if len(removal.keys) > 0 {
			opts = append(opts, removal.option(removal.keys...))
		}
	}
	return opts
}

type createRequest struct {
	makes
	Source *sourceRequest `json:"source"`
}

func (c *createRequest) options(hostFiles bool) (opts []sandbox.CreateOption, err error) {
	shared, err := c.makes.options(hostFiles)
	if err != nil {
		return nil, err
	}
	for _, o := range shared {
		opts = append(opts, o)
	}
	if c.Source == nil {
		return opts, nil
	}
	source, err := c.Source.source(hostFiles)
	return append(opts, sandbox.WithSource(source)), err
}

type forkRequest struct {
	makes
	removals
	Count *int `json:"count"`
}

func (f *forkRequest) options(hostFiles bool) (opts []sandbox.ForkOption, err error) {
	shared, err := f.makes.options(hostFiles)
	for _, o := range shared {
		opts = append(opts, o)
	}
	for _, o := range f.removals.options() {
		opts = append(opts, o)
	}
	return opts, err
}

type updateRequest struct {
	changes
	removals
}

func (u *updateRequest) options(hostFiles bool) (opts []sandbox.UpdateOption, err error) {
	shared, err := u.changes.options(hostFiles)
	for _, o := range shared {
		opts = append(opts, o)
	}
	for _, o := range u.removals.options() {
		opts = append(opts, o)
	}
	if err == nil && len(opts) == 0 {
		err = invalid("the body has no change")
	}
	return opts, err
}

// sourceRequest is the first content of a workspace. It has exactly one field.
type sourceRequest struct {
	Git *struct {
		URL      string `json:"url"`
		Revision string `json:"revision"`
		Depth    int    `json:"depth"`
		Username string `json:"username"`
		Password string `json:"password"`
	} `json:"git"`
	Tarball *struct {
		URL   string `json:"url"`
		Strip int    `json:"strip"`
	} `json:"tarball"`
	Snapshot  *string `json:"snapshot"`
	Directory *string `json:"directory"`
}

func (s *sourceRequest) source(hostFiles bool) (sandbox.Source, error) {
	var sources []sandbox.Source
	if g := s.Git; g != nil {
		if !remote(g.URL) && !hostFiles {
			return nil, errHostFiles
		}
		sources = append(sources, sandbox.Git{URL: g.URL, Revision: g.Revision, Depth: g.Depth, Username: g.Username, Password: g.Password})
	}
	if s.Tarball != nil {
		sources = append(sources, sandbox.Tarball{URL: s.Tarball.URL, Strip: s.Tarball.Strip})
	}
	if s.Snapshot != nil {
		sources = append(sources, sandbox.FromSnapshot(*s.Snapshot))
	}
	if s.Directory != nil {
		if !hostFiles {
			return nil, errHostFiles
		}
		sources = append(sources, sandbox.Dir(*s.Directory))
	}
	if len(sources) != 1 {
		return nil, invalid("source has exactly one of git, tarball, snapshot and directory")
	}
	return sources[0], nil
}

// remote reports whether a repository is fetched without files and keys of this machine.
func remote(address string) bool {
	scheme, _, ok := strings.Cut(address, "://")
	return ok && (strings.EqualFold(scheme, "https") || strings.EqualFold(scheme, "http"))
}
