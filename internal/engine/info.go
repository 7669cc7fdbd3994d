package engine

import (
	"context"
	"slices"
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
	Runtimes        []string
	DefaultRuntime  string
	SecurityOptions []string
	Rootless        bool
}

// Info describes the engine. It takes two calls.
func (e *Engine) Info(ctx context.Context) (Info, error) {
	var (
		info    system.Info
		version types.Version
	)
	g, gctx := errgroup.WithContext(ctx)
	// Not the client's Info: it drops the cause of a truncated reply.
	g.Go(func() error { return e.fail(ctx, e.get(gctx, "/info", &info)) })
	g.Go(func() (err error) { version, err = e.cli.ServerVersion(gctx); return e.fail(ctx, err) })
	if err := g.Wait(); err != nil {
		return Info{}, err
	}
	e.arch.Store(&version.Arch)
	i := Info{
		Version: version.Version, APIVersion: e.APIVersion(), MaxAPIVersion: version.APIVersion,
		OS: info.OperatingSystem, OSType: info.OSType, Arch: version.Arch, Kernel: info.KernelVersion, Name: info.Name,
		NCPU: info.NCPU, MemTotal: info.MemTotal, StorageDriver: info.Driver, CgroupVersion: info.CgroupVersion,
		DefaultRuntime: info.DefaultRuntime, SecurityOptions: info.SecurityOptions,
		Rootless: slices.ContainsFunc(info.SecurityOptions, func(s string) bool { return strings.Contains(s, "name=rootless") }),
	}
	for name := range info.Runtimes {
		i.Runtimes = append(i.Runtimes, name)
	}
	slices.Sort(i.Runtimes)
	return i, nil
}

// CheckNetworks lists the networks, and reports only whether the engine answered: engines up to
// 20.10.26 can deadlock (moby#46661), and then still answer other calls.
func (e *Engine) CheckNetworks(ctx context.Context) error {
	var networks []struct{}
	return e.fail(ctx, e.get(ctx, "/networks", &networks))
}

// Arch is the engine's architecture as a GOARCH. It is cached.
func (e *Engine) Arch(ctx context.Context) (string, error) {
	if arch := e.arch.Load(); arch != nil {
		return *arch, nil
	}
	v, err := e.cli.ServerVersion(ctx)
	if err != nil {
		return "", e.fail(ctx, err)
	}
	e.arch.Store(&v.Arch)
	return v.Arch, nil
}
