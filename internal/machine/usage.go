package machine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/bound"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
)

// The engine's own disk usage leaves out every volume that has options, as ours have to be
// safe from "docker volume prune", and an old engine takes seconds to sum up all images and
// containers first. So a helper measures. It mounts the directory of the engine's volumes
// read-only, not the volumes: a mounted volume could not be deleted meanwhile.
const (
	// measureBatch is how many volumes one helper measures: their paths are its arguments.
	measureBatch = 4000
	// measureConcurrency is how many helpers measure at once, for one client.
	measureConcurrency = 2
	// countConcurrency is how many sessions count their own files at once, for one client.
	countConcurrency = 8
)

// sharedSizes are results that concurrent callers share: each may use what was measured since
// it asked. However many ask, they so start about as many measurements as run at once.
type sharedSizes struct {
	mu     sync.Mutex
	asking int
	got    map[string]sharedSize
}

type sharedSize struct {
	began time.Time
	bytes int64
}

// ask returns the time from which on results are new enough. The caller calls done.
func (s *sharedSizes) ask() (asked time.Time, done func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asking++
	return time.Now(), func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.asking--; s.asking == 0 {
			s.got = nil // the next caller needs a new measurement
		}
	}
}

func (s *sharedSizes) since(key string, asked time.Time) (bytes int64, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	got, ok := s.got[key]
	return got.bytes, ok && got.began.After(asked)
}

func (s *sharedSizes) put(key string, began time.Time, bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.got == nil {
		s.got = map[string]sharedSize{}
	}
	s.got[key] = sharedSize{began, bytes}
}

// Size is the size of a volume in bytes: of its own files, and of those of a snapshot that it shares.
// -1 is unknown.
type Size struct{ Own, Shared int64 }

// Sizes returns the sizes of volumes, by name. It leaves out those that can't be measured: a list
// without sizes is better than none.
func (m *Machine) Sizes(ctx context.Context, volumes []engine.Volume) map[string]Size {
	own, shared, dirs := map[string]string{}, map[string]string{}, map[string]string{}
	for _, v := range volumes {
		if !record.IsData(v.Name, v.Labels) || v.Driver != "local" || !path.IsAbs(v.Mountpoint) {
			continue
		}
		own[v.Name] = v.Mountpoint
		if o, is := v.Overlay(); is {
			own[v.Name], shared[v.Name] = o.Upper, o.Lower
			dirs[o.Lower] = o.Lower
		}
		dirs[own[v.Name]] = own[v.Name]
	}
	measured := m.sizesOf(ctx, slices.Sorted(maps.Keys(dirs)))
	sizes := map[string]Size{}
	for name, dir := range own {
		n, known := measured[dir]
		if !known {
			continue
		}
		size := Size{Own: n}
		if lower := shared[name]; lower != "" {
			size.Shared = -1
			if n, known := measured[lower]; known {
				size.Shared = n
			}
		}
		sizes[name] = size
	}
	return sizes
}

// sizesOf returns the sizes of directories of the engine's volumes.
func (m *Machine) sizesOf(ctx context.Context, dirs []string) map[string]int64 {
	sizes := map[string]int64{}
	if len(dirs) == 0 {
		return sizes
	}
	asked, done := m.sizes.ask()
	defer done()
	release, err := m.measuring.Acquire(ctx)
	if err != nil {
		return sizes
	}
	defer release()
	dirs = slices.DeleteFunc(dirs, func(dir string) bool {
		n, ok := m.sizes.since(dir, asked)
		if ok {
			sizes[dir] = n
		}
		return ok
	})
	for some := range slices.Chunk(dirs, measureBatch) {
		if err := m.measure(ctx, some, sizes); err != nil && ctx.Err() == nil {
			m.Log.Warn("sizes of volumes are unknown", "error", err)
		}
	}
	return sizes
}

// measure adds the sizes of directories on the engine's machine.
func (m *Machine) measure(ctx context.Context, dirs []string, sizes map[string]int64) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var got wire.Sizes
	began := time.Now()
	err := m.query(ctx, func(spec *engine.ContainerSpec) {
		spec.Entrypoint = append(spec.Entrypoint, wire.VerbDu)
		roots := map[string]string{} // mount points in the helper, by the engine's directories
		for _, dir := range dirs {
			// …/volumes/<name>/_data
			own, data := path.Split(dir)
			root := path.Dir(path.Clean(own))
			if roots[root] == "" {
				roots[root] = "/volumes/" + strconv.Itoa(len(roots))
				spec.Mounts = append(spec.Mounts, engine.Mount{Type: "bind", Source: root, Target: roots[root], ReadOnly: true})
			}
			spec.Entrypoint = append(spec.Entrypoint, path.Join(roots[root], path.Base(own), data))
		}
	}, &got)
	if err != nil {
		return err
	}
	if len(got.Bytes) != len(dirs) {
		return fmt.Errorf("%d sizes for %d directories", len(got.Bytes), len(dirs))
	}
	for i, n := range got.Bytes {
		if n >= 0 {
			sizes[dirs[i]] = n
			m.sizes.put(dirs[i], began, n)
		}
	}
	return nil
}

// Usage is a session's use of resources at one moment. The root package documents its fields.
type Usage struct {
	CPUPercent                   float64
	MemoryBytes, MemoryLimit     int64
	Processes                    int
	NetworkReceived, NetworkSent int64
}

// CPU use is computed from two samples that are at least cpuSample apart. The first may be that of
// the call before, if it is not older than sampleAge.
const (
	cpuSample = 100 * time.Millisecond
	sampleAge = 30 * time.Second
)

// samples are the last samples of containers, by their IDs.
type samples struct {
	mu   sync.Mutex
	last map[string]sample
	kept int // how many there were when the old ones were last forgotten
}

type sample struct {
	at time.Time
	engine.Stats
}

// before returns a container's last sample if there is one to compute from now.
func (s *samples) before(id string) (engine.Stats, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	last, ok := s.last[id]
	age := time.Since(last.at)
	return last.Stats, ok && age >= cpuSample && age <= sampleAge
}

// put keeps a container's sample, and forgets those that are too old.
func (s *samples) put(id string, stats engine.Stats) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last == nil {
		s.last = map[string]sample{}
	}
	s.last[id] = sample{time.Now(), stats}
	if len(s.last) > 2*s.kept {
		maps.DeleteFunc(s.last, func(_ string, old sample) bool { return time.Since(old.at) > sampleAge })
		s.kept = max(64, len(s.last))
	}
}

// UsageOf returns a container's use of resources, or nil when it does not run or the
// engine can't measure it.
func (m *Machine) UsageOf(ctx context.Context, id string) (*Usage, error) {
	first, ok := m.samples.before(id)
	if !ok {
		var err error
		if first, ok, err = m.sample(ctx, id); err != nil || !ok {
			return nil, err
		}
		if err := bound.Sleep(ctx, cpuSample); err != nil {
			return nil, err
		}
	}
	last, ok, err := m.sample(ctx, id)
	if err != nil || !ok {
		return nil, err
	}
	m.samples.put(id, last)
	if last.Tasks == 0 {
		return nil, nil // without cgroups the engine measures its machine
	}
	u := &Usage{
		MemoryBytes: last.Memory, MemoryLimit: last.Limit, Processes: int(last.Tasks),
		NetworkReceived: last.Received, NetworkSent: last.Sent,
	}
	if passed := last.Read.Sub(first.Read); passed > 0 {
		u.CPUPercent = max(0, 100*float64(last.CPU-first.CPU)/float64(passed))
	}
	return u, nil
}

// sample takes one sample. ok is false if the container does not run.
func (m *Machine) sample(ctx context.Context, id string) (got engine.Stats, ok bool, err error) {
	got, ok, err = m.Engine.Stats(ctx, id)
	// Engines answer with these while the container changes its state.
	if errors.Is(err, engine.ErrNotFound) || errors.Is(err, engine.ErrConflict) {
		return got, false, nil
	}
	if err != nil && !errors.Is(err, engine.ErrUnavailable) {
		// Podman has no class of error for it.
		if now, lookErr := m.Engine.InspectContainer(ctx, id); lookErr == nil && now.State != engine.StateRunning && now.State != engine.StatePaused {
			return got, false, nil
		}
	}
	return got, ok, err
}

// usageConcurrency is how many containers are measured at once. Most of the time they wait: Docker 20.10
// answers once a second for each container.
const usageConcurrency = 256

// UsageOfEach is UsageOf for several containers, by their IDs. It leaves out those without usage.
func (m *Machine) UsageOfEach(ctx context.Context, ids []string) (map[string]Usage, error) {
	all, places := map[string]Usage{}, bound.NewSemaphore(usageConcurrency)
	var mu sync.Mutex
	var failed error
	var measuring sync.WaitGroup
	for _, id := range ids {
		release, err := places.Acquire(ctx)
		if err != nil {
			mu.Lock()
			failed = errors.Join(failed, err)
			mu.Unlock()
			break
		}
		measuring.Go(func() {
			defer release()
			u, err := m.UsageOf(ctx, id)
			mu.Lock()
			defer mu.Unlock()
			if u != nil {
				all[id] = *u
			}
			failed = errors.Join(failed, err)
		})
	}
	measuring.Wait()
	return all, failed
}

// WorkspaceSize measures the workspace from within the session, which is cheaper than a
// helper.
func (m *Machine) WorkspaceSize(ctx context.Context, container string, rec record.Sandbox) (int64, error) {
	asked, done := m.sizes.ask()
	defer done()
	release, err := m.counting.Acquire(ctx)
	if err != nil {
		return 0, err
	}
	defer release()
	key := "container " + container
	if n, ok := m.sizes.since(key, asked); ok {
		return n, nil
	}
	began := time.Now()
	// As root, to size files of all users. It so begins with NET_ADMIN, as a connection does: the engine's
	// exec can't leave a capability out.
	stream, err := m.Engine.Exec(ctx, container, engine.ExecSpec{
		Argv: []string{GuestPath(rec.Settings), wire.VerbDu, record.Workspace}, User: "0:0", Dir: "/",
		Check: func(ctx context.Context) error { return m.Store.CheckCopied(ctx, rec.Name) },
	})
	if err != nil {
		return 0, err
	}
	defer stream.Close()
	defer context.AfterFunc(ctx, func() { stream.Close() })()
	var got wire.Sizes
	if err := json.NewDecoder(io.LimitReader(stream, 1<<10)).Decode(&got); err != nil {
		return 0, err
	}
	if len(got.Bytes) != 1 || got.Bytes[0] < 0 {
		return 0, errors.New("the guest could not measure the workspace")
	}
	m.sizes.put(key, began, got.Bytes[0])
	return got.Bytes[0], nil
}
