package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/docker/docker/api/types"
	"github.com/docker/docker/api/types/system"
	"golang.org/x/sync/errgroup"
)

// Info describes an engine.
type Info struct {
	Version         string // of the engine, such as "28.5.2"
	APIVersion      string // negotiated
	MaxAPIVersion   string // the newest it supports
	OS              string // of its machine, such as "Debian GNU/Linux 12 (bookworm)"
	OSType          string // "linux" or "windows"
	Arch            string // as GOARCH
	Kernel          string
	Name            string // host name of its machine
	NCPU            int
	MemTotal        int64  // bytes
	StorageDriver   string // such as "overlay2"
	CgroupVersion   string // "1" or "2"
	CgroupDriver    string // "none" if the engine can't limit resources
	Runtimes        []string
	DefaultRuntime  string
	SecurityOptions []string
	Rootless        bool
	Podman          bool
	Components      map[string]string // versions of what [Advisories] are about
}

// CheckVersion returns an error if the engine is known not to do what sandboxes need.
func (i Info) CheckVersion() error {
	major, _, _ := strings.Cut(i.Version, ".")
	if n, err := strconv.Atoi(major); !i.Podman || err != nil || n >= 5 {
		return nil
	}
	text := fmt.Sprintf("Podman %s: it reports conflicts and missing objects in ways that can't be distinguished from other errors; use Podman 5", i.Version)
	return &classed{class: ErrUnsupported, text: text, err: errors.New(text)}
}

// Info describes the engine. It takes two calls.
func (e *Engine) Info(ctx context.Context) (Info, error) {
	var (
		version types.Version
		info    struct {
			system.Info
			CPUQuota *bool `json:"CpuCfsQuota"` // told apart from one that is missing
		}
	)
	g, gctx := errgroup.WithContext(ctx)
	// Not the client's Info: it drops the cause of a truncated reply.
	g.Go(func() error { return e.fail(ctx, e.get(gctx, "/info", &info)) })
	g.Go(func() (err error) { version, err = e.cli.ServerVersion(gctx); return e.fail(ctx, err) })
	if err := g.Wait(); err != nil {
		return Info{}, err
	}
	e.version.Store(&version)
	e.limits.Store(&limits{none: info.CgroupDriver == "none", noCPUs: info.CPUQuota != nil && !*info.CPUQuota, ncpu: info.NCPU})
	e.driver.Store(&info.Driver)
	i := Info{
		Version: version.Version, APIVersion: e.APIVersion(), MaxAPIVersion: version.APIVersion,
		OS: info.OperatingSystem, OSType: info.OSType, Arch: version.Arch, Kernel: info.KernelVersion, Name: info.Name,
		NCPU: info.NCPU, MemTotal: info.MemTotal, StorageDriver: info.Driver, CgroupVersion: info.CgroupVersion, CgroupDriver: info.CgroupDriver,
		DefaultRuntime: info.DefaultRuntime, SecurityOptions: info.SecurityOptions,
		Rootless: slices.ContainsFunc(info.SecurityOptions, func(s string) bool { return strings.Contains(s, "name=rootless") }),
		Podman:   e.podman.Load(),
	}
	i.Components = components(version)
	for name := range info.Runtimes {
		i.Runtimes = append(i.Runtimes, name)
	}
	slices.Sort(i.Runtimes)
	return i, nil
}

// components returns the versions of an engine's components that it tells.
func components(v types.Version) map[string]string {
	all := map[string]string{componentKernel: v.KernelVersion}
	if name, ok := strings.CutPrefix(v.Platform.Name, componentDesktop+" "); ok {
		all[componentDesktop] = name
	}
	for _, c := range v.Components {
		switch {
		case c.Name == "Engine": // Podman's has another name, and other holes
			all[componentEngine] = c.Version
		case c.Name == componentContainerd, c.Name == componentRunc:
			all[c.Name] = c.Version
		case strings.HasPrefix(c.Version, "runc version "): // Podman's OCI runtime, a line for each of its own components
			first, _, _ := strings.Cut(c.Version, "\n")
			all[componentRunc] = strings.TrimPrefix(first, "runc version ")
		}
	}
	return all
}

// StorageDriver returns the engine's storage driver, such as "overlay2". It is cached.
func (e *Engine) StorageDriver(ctx context.Context) (string, error) {
	if driver := e.driver.Load(); driver != nil {
		return *driver, nil
	}
	info, err := e.Info(ctx)
	return info.StorageDriver, err
}

// limits are what an engine can limit.
type limits struct {
	none, noCPUs bool
	ncpu         int
}

// CheckLimits returns an [ErrUnsupported] if the engine takes limits and does not enforce them: of
// memory and processes, and with cpus above 0 of CPUs. More CPUs than its machine has are
// [ErrInvalid]: Podman takes them. What the engine can do is cached.
func (e *Engine) CheckLimits(ctx context.Context, cpus float64) error {
	known := e.limits.Load()
	if known == nil {
		if _, err := e.Info(ctx); err != nil {
			return err
		}
		known = e.limits.Load()
	}
	text := ""
	switch {
	case known.none:
		text = "the engine enforces no limits of CPUs, memory or processes, since it has no cgroups: without root it takes cgroup v2 and systemd"
	case cpus > 0 && known.noCPUs:
		text = "the engine enforces no limits of CPUs, since it lacks that controller of cgroups: without root it has to be delegated to the engine's user"
	case known.ncpu > 0 && cpus > float64(known.ncpu):
		return invalid("%v CPUs are more than the %d of the engine's machine", cpus, known.ncpu)
	default:
		return nil
	}
	return &classed{class: ErrUnsupported, text: text, err: errors.New(text)}
}

// RefusesCPULimit reports whether a container was refused because the engine can't limit CPUs:
// one without root whose user has not been given that controller.
func RefusesCPULimit(err error) bool {
	return err != nil && !errors.Is(err, ErrUnavailable) && strings.Contains(err.Error(), "CPU CFS scheduler")
}

// CheckNetworks lists the networks, and reports only whether the engine answered: engines up to
// 20.10.26 can deadlock (moby#46661), and then still answer other calls.
func (e *Engine) CheckNetworks(ctx context.Context) error {
	var networks []struct{}
	return e.fail(ctx, e.get(ctx, "/networks", &networks))
}

// Arch is the engine's architecture as a GOARCH. It is cached.
func (e *Engine) Arch(ctx context.Context) (string, error) {
	v, err := e.serverVersion(ctx)
	return v.Arch, err
}

func (e *Engine) serverVersion(ctx context.Context) (types.Version, error) {
	if v := e.version.Load(); v != nil {
		return *v, nil
	}
	v, err := e.cli.ServerVersion(ctx)
	if err != nil {
		return v, e.fail(ctx, err)
	}
	e.version.Store(&v)
	return v, nil
}
