//go:build linux

package proc

import (
	"os"
	"strconv"
	"strings"
	"sync"
)

// oomTags tell whose command an orphan was. A daemon leaves its parents, its session
// and its process group, but it keeps what it was never aware of having: its OOM
// score. Each running command has one of its own, a little above childOOMScore, which
// all that it starts inherit. A process that changes its score gets away until the
// connection ends.
type oomTags struct {
	mu   sync.Mutex // also held from setting our own score to the fork that copies it
	used [maxOOMTags]bool
	last int
	file *os.File
}

// maxOOMTags bounds the commands that have a badge at once, and with it how much more
// likely one dies of memory pressure than another: by 12.8% of the memory.
const maxOOMTags = 128

// oomTag is the score of one command's processes; 0 is none.
type oomTag int

// fork gives the processes that fork makes a badge.
func (b *oomTags) fork(fork func() (int, error)) (oomTag, int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	got := b.take()
	if got != 0 && b.set(int(got)) {
		defer b.set(childOOMScore)
	}
	pid, err := fork()
	if err != nil {
		b.put(got)
		got = 0
	}
	return got, pid, err
}

// take goes round, so that a badge whose command left daemons behind rests for long.
func (b *oomTags) take() oomTag {
	for range maxOOMTags {
		b.last = (b.last + 1) % maxOOMTags
		if !b.used[b.last] {
			b.used[b.last] = true
			return oomTag(childOOMScore + 1 + b.last)
		}
	}
	return 0
}

func (b *oomTags) put(one oomTag) {
	if one != 0 {
		b.used[int(one)-childOOMScore-1] = false
	}
}

// release frees a badge for another command.
func (b *oomTags) release(one oomTag) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.put(one)
}

func (b *oomTags) set(score int) bool {
	if b.file == nil {
		f, err := os.OpenFile("/proc/self/oom_score_adj", os.O_WRONLY, 0)
		if err != nil {
			return false
		}
		b.file = f
	}
	_, err := b.file.WriteAt([]byte(strconv.Itoa(score)), 0)
	return err == nil
}

// marks says whether a process has this badge.
func (b oomTag) marks(pid int) bool {
	if b == 0 {
		return false
	}
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/oom_score_adj")
	return err == nil && strings.TrimSpace(string(text)) == strconv.Itoa(int(b))
}
