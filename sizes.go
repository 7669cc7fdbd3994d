package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path"
	"strconv"
	"strings"
	"sync"

	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
)

// The engine's own disk usage leaves out every volume that has options, as ours have to
// keep "docker volume prune" away, and an old one takes seconds for all images and
// containers first. So a helper looks: it sees the directory that the engine keeps its
// volumes in, read-only, and not the volumes, since mounting one would keep it from being
// deleted meanwhile.

// maxMeasured is how many volumes one helper is given: their paths are its arguments.
const maxMeasured = 4000

// sizing shares helpers: who asks while one is at work shares the next.
type sizing struct {
	mu   sync.Mutex
	now  *measurement
	next *measurement
}

// A measurement is made on a context that ends when nobody waits for it any more.
type measurement struct {
	ctx     context.Context
	cancel  context.CancelFunc
	waiting int
	dirs    map[string]string // of each volume, on the engine's machine
	done    chan struct{}
	sizes   map[string]int64
	err     error
}

// sizes returns what the files of volumes have, by name, measured after the call began.
// What can't be told is not in it: a list without sizes is better than none.
func (c *Client) sizes(ctx context.Context, eng *engine.Engine, volumes []engine.Volume) map[string]int64 {
	dirs := map[string]string{}
	for _, v := range volumes {
		if record.IsData(v.Name, v.Labels) && v.Driver == "local" && path.IsAbs(v.Mountpoint) {
			dirs[v.Name] = v.Mountpoint
		}
	}
	for _, v := range volumes {
		// What stands on a snapshot's files has taken what it has of its own.
		if of, is := record.OverlayOf(v.Name); is && strings.HasSuffix(v.Name, ".U") && dirs[of] != "" {
			dirs[of] = v.Mountpoint
		}
	}
	if len(dirs) == 0 {
		return nil
	}
	m := c.sizing.join(ctx, dirs, func(ctx context.Context, dirs map[string]string) (map[string]int64, error) {
		return c.measure(ctx, eng, dirs)
	})
	defer c.sizing.leave(m)
	select {
	case <-m.done:
	case <-ctx.Done():
		return nil
	}
	if m.err != nil && ctx.Err() == nil {
		c.log.Warn("sizes of volumes are unknown", "error", m.err)
	}
	return m.sizes
}

func (s *sizing) join(ctx context.Context, dirs map[string]string, measure func(context.Context, map[string]string) (map[string]int64, error)) *measurement {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.next
	if m != nil {
		maps.Copy(m.dirs, dirs)
	} else {
		m = &measurement{done: make(chan struct{}), dirs: maps.Clone(dirs)}
		m.ctx, m.cancel = context.WithCancel(context.WithoutCancel(ctx))
		before := s.now
		if before == nil {
			s.now = m
		} else {
			s.next = m
		}
		go func() {
			if before != nil {
				<-before.done // by then it has made m the present one, which nobody joins
			}
			m.sizes, m.err = measure(m.ctx, m.dirs)
			s.mu.Lock()
			if s.now == m {
				s.now, s.next = s.next, nil
			}
			s.mu.Unlock()
			close(m.done)
		}()
	}
	m.waiting++
	return m
}

// leave ends one caller's interest. The last one ends the measurement and sees it end,
// unless that has to wait for another's.
func (s *sizing) leave(m *measurement) {
	s.mu.Lock()
	m.waiting--
	last, running := m.waiting == 0, s.now == m
	if last && s.next == m {
		s.next = nil // nobody may join what is given up
	}
	s.mu.Unlock()
	if last {
		m.cancel()
		if running {
			<-m.done
		}
	}
}

// measure sizes the directories with as many helpers as they need.
func (c *Client) measure(ctx context.Context, eng *engine.Engine, dirs map[string]string) (map[string]int64, error) {
	sizes := map[string]int64{}
	var names []string
	var errs []error
	flush := func() {
		if len(names) > 0 {
			errs = append(errs, c.measureSome(ctx, eng, names, dirs, sizes))
			names = nil
		}
	}
	for name := range dirs {
		if names = append(names, name); len(names) == maxMeasured {
			flush()
		}
	}
	flush()
	return sizes, errors.Join(errs...)
}

func (c *Client) measureSome(ctx context.Context, eng *engine.Engine, names []string, dirs map[string]string, sizes map[string]int64) (err error) {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if _, err := c.ensureGuest(ctx, eng, &reporter{}); err != nil {
		return err
	}
	h := helper{c: c, eng: eng, nonce: record.NewNonce(), report: &reporter{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, h.undo.run(ctx))
		}
	}()
	spec := h.spec()
	spec.Entrypoint = append(spec.Entrypoint, wire.VerbDu)
	roots := map[string]string{} // where each directory of the engine's is in the helper
	for _, name := range names {
		// …/volumes/<name>/_data
		own, data := path.Split(dirs[name])
		root := path.Dir(path.Clean(own))
		if roots[root] == "" {
			roots[root] = "/volumes/" + strconv.Itoa(len(roots))
			spec.Mounts = append(spec.Mounts, engine.Mount{Type: "bind", Source: root, Target: roots[root], ReadOnly: true})
		}
		spec.Entrypoint = append(spec.Entrypoint, path.Join(roots[root], path.Base(own), data))
	}
	var got wire.Sizes
	err = h.follow(ctx, spec, nil, func(line []byte) (bool, error) { return true, json.Unmarshal(line, &got) })
	if err != nil {
		return err
	}
	if len(got.Bytes) != len(names) {
		return fmt.Errorf("%d sizes for %d volumes", len(got.Bytes), len(names))
	}
	for i, n := range got.Bytes {
		if n >= 0 {
			sizes[names[i]] = n
		}
	}
	return nil
}

// sizeText is a size for people: base 1024, one decimal.
func sizeText(n int64) string {
	switch {
	case n < 0:
		return "unknown"
	case n < 1024:
		return fmt.Sprintf("%d B", n)
	}
	size := float64(n)
	for _, unit := range []string{"KB", "MB", "GB", "TB"} {
		size /= 1024
		if size < 1023.95 { // what would be printed as 1024.0
			return fmt.Sprintf("%.1f %s", size, unit)
		}
	}
	return fmt.Sprintf("%.1f PB", size/1024)
}
