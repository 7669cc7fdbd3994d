//go:build linux

package sshserver

import (
	"sync"
)

// Streams of a ring.
const (
	streamOut byte = 1
	streamErr byte = 2
)

const (
	// ringBytes is how much of the end of a detached command's output is kept.
	ringBytes = 8 << 20
	// ringMemory bounds the memory for it, when output comes in tiny pieces from both
	// streams by turns.
	ringMemory = 2 * ringBytes
	chunkMin   = 256
	chunkMax   = 64 << 10
	chunkCost  = 64 // of a chunk's own bookkeeping
)

// ring keeps the end of a command's output, stdout and stderr in the order they were read.
// Writing never waits; a follower that is too slow misses bytes and counts them.
type ring struct {
	mu     sync.Mutex
	moved  sync.Cond // bytes were added, the end came, or a follower gave up
	chunks []chunk
	first  int64 // position of the first byte kept
	end    int64 // position after the last one
	memory int
	closed bool
}

// chunk is a run of one stream. Bytes in it never change, so followers may hold parts of
// data while more is appended.
type chunk struct {
	stream byte
	start  int64
	data   []byte
}

func newRing() *ring {
	r := new(ring)
	r.moved.L = &r.mu
	return r
}

// to returns a writer to one stream of r. It never fails.
func (r *ring) to(stream byte) ringWriter { return ringWriter{r, stream} }

type ringWriter struct {
	r      *ring
	stream byte
}

func (w ringWriter) Write(p []byte) (int, error) {
	w.r.write(w.stream, p)
	return len(p), nil
}

func (r *ring) write(stream byte, p []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(p) > 0 {
		last := len(r.chunks) - 1
		if last < 0 || r.chunks[last].stream != stream || len(r.chunks[last].data) == cap(r.chunks[last].data) {
			size := max(chunkMin, min(len(p), chunkMax))
			if last >= 0 && r.chunks[last].stream == stream {
				// The same stream again: fewer and larger chunks.
				size = max(size, min(2*cap(r.chunks[last].data), chunkMax))
			}
			r.chunks = append(r.chunks, chunk{stream: stream, start: r.end, data: make([]byte, 0, size)})
			r.memory += size + chunkCost
			last++
		}
		c := &r.chunks[last]
		n := min(len(p), cap(c.data)-len(c.data))
		c.data = append(c.data, p[:n]...)
		r.end += int64(n)
		p = p[n:]
		r.trim()
	}
	r.moved.Broadcast()
}

// trim drops the oldest bytes until what is left is within the bounds.
func (r *ring) trim() {
	gone := 0
	for gone < len(r.chunks)-1 && (r.memory > ringMemory || r.end-r.chunks[gone+1].start >= ringBytes) {
		r.memory -= cap(r.chunks[gone].data) + chunkCost
		r.chunks[gone].data = nil
		gone++
	}
	r.chunks = r.chunks[gone:]
	r.first = max(r.chunks[0].start, r.end-ringBytes)
}

// close marks the end of the output.
func (r *ring) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	r.moved.Broadcast()
}

// ended reports whether all output has been written.
func (r *ring) ended() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.closed
}

// size returns the memory that r takes.
func (r *ring) size() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.memory
}

// follower reads a ring from its first byte kept.
type follower struct {
	r       *ring
	pos     int64
	dropped int64
	gone    bool // guarded by r.mu
}

func (r *ring) follow() *follower { return &follower{r: r} }

// next waits for bytes that f has not had. ok is false at the end, or once f was
// cancelled. data must not be changed.
func (f *follower) next() (stream byte, data []byte, ok bool) {
	r := f.r
	r.mu.Lock()
	defer r.mu.Unlock()
	for f.pos == r.end && !r.closed && !f.gone {
		r.moved.Wait()
	}
	if f.gone || f.pos == r.end {
		return 0, nil, false
	}
	if f.pos < r.first {
		f.dropped += r.first - f.pos
		f.pos = r.first
	}
	// The chunk with pos: the last that starts at or before it.
	low, high := 0, len(r.chunks)
	for high-low > 1 {
		if mid := (low + high) / 2; r.chunks[mid].start <= f.pos {
			low = mid
		} else {
			high = mid
		}
	}
	c := r.chunks[low]
	data = c.data[f.pos-c.start:]
	f.pos += int64(len(data))
	return c.stream, data, true
}

// cancel makes next return, now and from then on.
func (f *follower) cancel() {
	f.r.mu.Lock()
	defer f.r.mu.Unlock()
	f.gone = true
	f.r.moved.Broadcast()
}
