package sandbox

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// healthTimeout bounds CheckHealth, so that a hung engine is an answer too.
const healthTimeout = 5 * time.Second

// Health tells whether an engine answers and what it is.
type Health struct {
	Healthy bool
	// Host is where the engine was reached, without credentials.
	Host string
	// Version is the engine's, and APIVersion what is spoken with it.
	Version, APIVersion string
	// OS, Arch (as GOARCH) and Kernel are those of the engine's machine, and so are
	// CPUs and Memory, in bytes.
	OS, Arch, Kernel string
	CPUs             int
	Memory           int64
	StorageDriver    string
	CgroupVersion    string
	Runtimes         []string
	Rootless         bool
	// Guidance says what was tried and what to do when the engine is not healthy.
	Guidance string
}

// CheckHealth asks the engine how it is, for at most 5 s. An engine that does not
// answer is a Health with Guidance, not an error: the error is only ever the end of
// ctx.
func CheckHealth(ctx context.Context) (Health, error) { return defaultClient().CheckHealth(ctx) }

// CheckHealth is [CheckHealth] on the client's engine.
func (c *Client) CheckHealth(ctx context.Context) (Health, error) {
	ask, cancel := context.WithTimeout(ctx, healthTimeout)
	defer cancel()
	h, err := c.health(ask)
	switch {
	case ctx.Err() != nil:
		return Health{}, fail("check health", "", cancelled(ctx))
	case err == nil:
		h.Healthy = true
		return h, nil
	}
	h.Guidance = guidance(h, err)
	return h, nil
}

func (c *Client) health(ctx context.Context) (Health, error) {
	h := Health{Host: c.host}
	eng, err := c.engine(ctx)
	if err != nil {
		return h, err
	}
	h.Host = eng.Host()
	// Asked beside the rest: an engine that is slow with that is not one that has locked up.
	networks := make(chan error, 1)
	go func() { networks <- eng.Networks(ctx) }()
	i, err := eng.Info(ctx)
	if err != nil {
		return h, err
	}
	h.Version, h.APIVersion = i.Version, i.APIVersion
	h.OS, h.Arch, h.Kernel, h.CPUs, h.Memory = i.OS, i.Arch, i.Kernel, i.NCPU, i.MemTotal
	h.StorageDriver, h.CgroupVersion, h.Runtimes, h.Rootless = i.StorageDriver, i.CgroupVersion, i.Runtimes, i.Rootless
	if i.OSType != "" && i.OSType != "linux" {
		return h, fmt.Errorf("the engine runs %s containers; sandboxes are Linux: switch it to Linux containers", i.OSType)
	}
	if err := <-networks; errors.Is(err, context.DeadlineExceeded) {
		return h, fmt.Errorf("the engine says what it is, but not what networks it has, and will start no container: " +
			"it has locked up, as those up to 20.10.26 can (moby#46661). Restart it")
	} else if err != nil {
		return h, err
	}
	return h, nil
}

// Support tells what sandboxes can have on an engine. What is nil can be had; else it
// is an [ErrUnsupported] that says why not.
type Support struct {
	// NetworkPolicy is for every policy but [AllowAll], in the engine's default OCI
	// runtime.
	NetworkPolicy error
	// Reflink is for copies that share their blocks with what they were made from, within
	// the disk that holds the engine's volumes. Without, forks and copies of large files
	// take the time and the room of all their bytes.
	Reflink error
	// Runtimes are the names that [WithOCIRuntime] takes.
	Runtimes []string
}

// CheckSupport tries out what sandboxes can have on the engine.
func CheckSupport(ctx context.Context) (Support, error) { return defaultClient().CheckSupport(ctx) }

// CheckSupport is [CheckSupport] on the client's engine. It takes a container, for some
// tenths of a second; what that found counts for 10 minutes.
func (c *Client) CheckSupport(ctx context.Context) (Support, error) {
	s, err := c.support(ctx)
	return s, fail("check support", "", err)
}

func (c *Client) support(ctx context.Context) (Support, error) {
	eng, err := c.engine(ctx)
	if err != nil {
		return Support{}, err
	}
	i, err := eng.Info(ctx)
	if err != nil {
		return Support{}, err
	}
	got, err := probe(ctx, c, eng, &c.able, func(spec *engine.ContainerSpec) {
		own := c.knownGuest().mount() // a volume that is there
		own.ReadOnly = false
		spec.Mounts = []engine.Mount{own}
		spec.CapAdd = []string{"NET_ADMIN"}
		spec.Entrypoint = append(spec.Entrypoint, wire.VerbTry, wire.Dir)
	})
	if err != nil {
		return Support{}, err
	}
	s := Support{Runtimes: i.Runtimes}
	if got.Policy != "" {
		s.NetworkPolicy = &refusal{wire.RefusedUnsupported, got.Policy}
	}
	if got.Reflink != "" {
		s.Reflink = fmt.Errorf("%w: files in the engine's volumes can't share blocks: %s: it takes a disk with XFS or Btrfs, say", ErrUnsupported, got.Reflink)
	}
	return s, nil
}

// guidance says what to do about err. Where the connection itself failed, engine has
// said so in detail.
func guidance(h Health, err error) string {
	var unreachable *engine.UnreachableError
	if errors.As(err, &unreachable) {
		return unreachable.Error()
	}
	var b strings.Builder
	where := h.Host
	if where == "" {
		where = "the engine that DOCKER_HOST or the current Docker context names"
	}
	if errors.Is(err, context.DeadlineExceeded) {
		fmt.Fprintf(&b, "%s did not answer within %v: it may hang. Look at its log, and restart it if need be", where, healthTimeout)
	} else {
		fmt.Fprintf(&b, "%s: %v", where, err)
	}
	b.WriteString(". To use another engine set DOCKER_HOST; a local one needs permission to open its socket (group docker)")
	return b.String()
}
