package sandboxhttp

import (
	"maps"
	"math"
	"net/http"
	"net/netip"
	"reflect"
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

// WithPools serves requests to create a sandbox from these pools, by the image that the request names,
// or [sandbox.DefaultImage] if it names none. The image is also the pool's, and the pool stays the
// caller's. A request that sets what [sandbox.Pool.Create] does not take gets a sandbox that
// is created for it. Default: all requests do.
func WithPools(pools map[string]*sandbox.Pool) Option {
	pools = maps.Clone(pools)
	return func(c *config) { c.pools = pools }
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
	"the server does not permit mounts and sources that are files of its machine: see --host-files of \"sandbox serve\", or sandboxhttp.WithHostFiles",
}

// settings are the settings of a request. Those that are absent, or null, are not set.
type settings struct {
	plainSettings
	TimeoutMS     *int64 `json:"timeoutMs"`
	IdleTimeoutMS *int64 `json:"idleTimeoutMs"`
	StopTimeoutMS *int64 `json:"stopTimeoutMs"`
}

// plainSettings lack the method by which [sandbox.Settings] are decoded: it would be that of every
// request that has them, and takes unknown fields.
type plainSettings sandbox.Settings

// duration is a number of milliseconds as a duration.
func duration(field string, ms int64) (time.Duration, error) {
	const most = math.MaxInt64 / int64(time.Millisecond)
	if ms > most || ms < -most {
		return 0, invalid("%s=%d is too large", field, ms)
	}
	return time.Duration(ms) * time.Millisecond, nil
}

// checked returns the settings, unless they need files that requests may not name.
func (s *settings) checked(hostFiles bool) (sandbox.Settings, error) {
	set := sandbox.Settings(s.plainSettings)
	for _, m := range set.Mounts {
		if m.Source != "" && !hostFiles {
			return set, errHostFiles
		}
	}
	for _, t := range []struct {
		field string
		ms    *int64
		to    **time.Duration
	}{{"timeoutMs", s.TimeoutMS, &set.Timeout}, {"idleTimeoutMs", s.IdleTimeoutMS, &set.IdleTimeout}, {"stopTimeoutMs", s.StopTimeoutMS, &set.StopTimeout}} {
		if t.ms == nil {
			continue
		}
		d, err := duration(t.field, *t.ms)
		if err != nil {
			return set, err
		}
		*t.to = &d
	}
	return set, nil
}

// made returns the option for the settings of a new sandbox.
func (s *settings) made(hostFiles bool) (sandbox.ChangeOption, error) {
	set, err := s.checked(hostFiles)
	if set.Persistent == nil {
		set.Persistent = new(true) // no request has a handle that the sandbox could live with
	}
	return sandbox.WithSettings(set), err
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
	settings
	Source    *sourceRequest `json:"source"`
	Placement []string       `json:"placement"`
}

func (c *createRequest) options(hostFiles bool) ([]sandbox.CreateOption, error) {
	set, err := c.made(hostFiles)
	opts := []sandbox.CreateOption{set}
	if len(c.Placement) > 0 {
		opts = append(opts, sandbox.WithPlacement(c.Placement...))
	}
	if err != nil || c.Source == nil {
		return opts, err
	}
	source, err := c.Source.source(hostFiles)
	return append(opts, sandbox.WithSource(source)), err
}

// pooled returns the pool whose sandboxes the request can get, with its settings, or nil.
func (c *createRequest) pooled(pools map[string]*sandbox.Pool, hostFiles bool) (*sandbox.Pool, sandbox.Settings) {
	set, err := c.checked(hostFiles)
	if set.Persistent == nil {
		set.Persistent = new(true) // as in made
	}
	image := sandbox.DefaultImage
	if set.Image != nil {
		image = *set.Image
	}
	set.Image = nil
	if err != nil || c.Source != nil || len(c.Placement) > 0 || set.CheckPool() != nil {
		return nil, set
	}
	return pools[image], set
}

type forkRequest struct {
	settings
	removals
	Count *int `json:"count"`
}

func (f *forkRequest) options(hostFiles bool) ([]sandbox.ForkOption, error) {
	set, err := f.made(hostFiles)
	opts := []sandbox.ForkOption{set}
	for _, o := range f.removals.options() {
		opts = append(opts, o)
	}
	return opts, err
}

type updateRequest struct {
	settings
	removals
}

func (u *updateRequest) options(hostFiles bool) (opts []sandbox.UpdateOption, err error) {
	set, err := u.checked(hostFiles)
	if err != nil {
		return nil, err
	}
	for _, o := range u.removals.options() {
		opts = append(opts, o)
	}
	if len(opts) == 0 && reflect.ValueOf(set).IsZero() {
		return nil, invalid("the body has no change")
	}
	return append(opts, sandbox.WithSettings(set)), set.CheckUpdate()
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
