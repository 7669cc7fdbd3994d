package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/docker/docker/api/types"

	"github.com/seed-1a2d6d8f/sandbox/internal/bound"
)

// In containerd before 1.6.22, and 1.7.0 to 1.7.2, a pause that meets the start of an exec in the
// same container never ends: the frozen start holds a lock that the unpause waits for (containerd
// commit 5cd6210ad). With these versions, a client that starts an exec looks for a pause after it
// has created the exec and before it starts it. A client that pauses announces that first, and then
// waits for the execs that have been created. One of the two sees the other.

// startBound is how long a pause waits for an exec that was created and is not being started: the
// client may have died. Between its two calls a client makes one other.
var startBound = 2 * time.Second

// PauseLocks reports whether a pause must not meet the start of an exec. It is cached.
func (e *Engine) PauseLocks(ctx context.Context) (bool, error) {
	v, err := e.serverVersion(ctx)
	return err == nil && containerdLocks(v), err
}

func containerdLocks(v types.Version) bool {
	for _, c := range v.Components {
		var major, minor, patch int
		if c.Name != "containerd" {
			continue
		}
		// Versions are such as "v1.7.27" and "1.6.20~ds1".
		if n, _ := fmt.Sscanf(c.Version, "v%d.%d.%d", &major, &minor, &patch); n < 3 {
			if n, _ := fmt.Sscanf(c.Version, "%d.%d.%d", &major, &minor, &patch); n < 3 {
				return false
			}
		}
		return major < 1 || major == 1 && (minor < 6 || minor == 6 && patch < 22 || minor == 7 && patch < 3)
	}
	return false
}

// awaitStarts waits until every exec of the container that was created has started or ended, or
// its client has let startBound pass.
func (e *Engine) awaitStarts(ctx context.Context, container string) error {
	var c struct{ ExecIDs []string }
	if err := e.fail(ctx, e.get(ctx, "/containers/"+container+"/json", &c)); err != nil {
		return err
	}
	deadline := time.Now().Add(startBound)
	for _, id := range c.ExecIDs {
		for {
			// Running is set before the start, Pid after it.
			var exec struct {
				Pid      int
				ExitCode *int
			}
			if checkName("exec", id) != nil {
				break
			}
			err := e.fail(ctx, e.get(ctx, "/exec/"+id+"/json", &exec))
			if errors.Is(err, ErrNotFound) {
				break
			}
			if err != nil {
				return err
			}
			if exec.Pid != 0 || exec.ExitCode != nil || time.Now().After(deadline) {
				break
			}
			if bound.Sleep(ctx, 10*time.Millisecond) != nil {
				return e.fail(ctx, ctx.Err())
			}
		}
	}
	return nil
}
