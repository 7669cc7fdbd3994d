package sandbox

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
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
	return h, nil
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
