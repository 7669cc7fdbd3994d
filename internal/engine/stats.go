package engine

import (
	"context"
	"encoding/json"
	"io"
	"time"

	"github.com/docker/docker/api/types/container"
)

// Stats is what a container's processes were using at one moment.
type Stats struct {
	Read   time.Time     // when, by the engine's clock
	CPU    time.Duration // CPU time since the container's start
	Memory int64         // bytes, without what the kernel would give back at once
	Limit  int64         // of memory, in bytes
	Tasks  int64         // processes and threads
	// Received and Sent are bytes over all of the container's networks.
	Received, Sent int64
}

// Stats takes one sample. ok is false when the container does not run: the engine
// then answers with nothing but zeros, or with nothing at all when it ends just then.
// Engines older than 20.10 take a second or two.
func (e *Engine) Stats(ctx context.Context, id string) (s Stats, ok bool, err error) {
	if err := checkName("container", id); err != nil {
		return s, false, err
	}
	resp, err := e.cli.ContainerStatsOneShot(ctx, id)
	if err != nil {
		return s, false, e.fail(ctx, err)
	}
	defer resp.Body.Close()
	var r container.StatsResponse
	switch err := json.NewDecoder(resp.Body).Decode(&r); {
	case err == io.EOF: // a reply that is whole and empty: it ended just now
		return s, false, nil
	case err != nil:
		return s, false, e.fail(ctx, err)
	}
	if r.Read.IsZero() || r.CPUStats.CPUUsage.TotalUsage == 0 {
		return s, false, nil
	}
	s = Stats{
		Read: r.Read, CPU: time.Duration(r.CPUStats.CPUUsage.TotalUsage),
		Memory: int64(r.MemoryStats.Usage), Limit: int64(r.MemoryStats.Limit), Tasks: int64(r.PidsStats.Current),
	}
	// Cached files count as used until somebody needs the room: cgroup v1 and v2 tell
	// how much of it is idle under names of their own.
	for _, key := range []string{"total_inactive_file", "inactive_file"} {
		if idle, is := r.MemoryStats.Stats[key]; is {
			s.Memory = max(0, s.Memory-int64(idle))
			break
		}
	}
	for _, n := range r.Networks {
		s.Received += int64(n.RxBytes)
		s.Sent += int64(n.TxBytes)
	}
	return s, true, nil
}
