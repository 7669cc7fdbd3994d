package engine

import (
	"context"
	"encoding/json"
	"io"
	"time"

	"github.com/docker/docker/api/types/container"
)

// Stats is the resource usage of a container at one moment.
type Stats struct {
	Read   time.Time     // when, by the engine's clock
	CPU    time.Duration // CPU time since the container's start
	Memory int64         // bytes, without inactive file cache
	Limit  int64         // of memory, in bytes
	Tasks  int64         // processes and threads
	// Received and Sent are bytes over all of the container's networks.
	Received, Sent int64
}

// Stats takes one sample. ok is false if the container does not run: the engine then answers
// with zeros, or with an empty reply if the container ends meanwhile. Docker 20.10 answers once a second
// for each container, older engines after a second or two.
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
	case err == io.EOF: // an empty reply
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
	// Usage includes file cache, which the kernel can reclaim. These are the names of its
	// inactive part in cgroup v1 and v2.
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
