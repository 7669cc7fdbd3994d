//go:build linux

package proc

import (
	"os"
	"strconv"
	"strings"
	"sync"
)

// oomTags identify the command that an orphan descends from. A daemon leaves its parents,
// its session and its process group, but inherits its OOM score. Each running command has a
// score of its own, a little above childOOMScore, and keeps it after its end until another one needs it.
// A process that changes its score escapes until the connection ends.
type oomTags struct {
	mu    sync.Mutex // also held from setting our own score until the fork has copied it
	used  [maxOOMTags]bool
	turns [maxOOMTags]int // how often each was taken
	last  int
	file  *os.File
}

// maxOOMTags bounds the commands with a tag at a time, and with it how much their scores
// differ: by 12.8% of the memory.
const maxOOMTags = 128

// oomTag is the score of one command's processes; 0 is none. turn tells it from those that had the score before.
type oomTag struct{ score, turn int }

// fork tags the process that fork starts.
func (t *oomTags) fork(fork func() (int, error)) (oomTag, int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	got := t.take()
	if got.score != 0 && t.set(got.score) {
		defer t.set(childOOMScore)
	}
	pid, err := fork()
	if err != nil {
		t.put(got)
		got = oomTag{}
	}
	return got, pid, err
}

// take goes round, so that the tag of a command that left daemons behind is reused late.
func (t *oomTags) take() oomTag {
	for range maxOOMTags {
		t.last = (t.last + 1) % maxOOMTags
		if !t.used[t.last] {
			t.used[t.last] = true
			t.turns[t.last]++
			return oomTag{childOOMScore + 1 + t.last, t.turns[t.last]}
		}
	}
	return oomTag{}
}

func (t *oomTags) put(one oomTag) {
	if one.score != 0 {
		t.used[one.score-childOOMScore-1] = false
	}
}

// has reports whether no other command has had the score since.
func (t *oomTags) has(one oomTag) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return one.score != 0 && t.turns[one.score-childOOMScore-1] == one.turn
}

// release frees a tag for another command.
func (t *oomTags) release(one oomTag) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.put(one)
}

func (t *oomTags) set(score int) bool {
	if t.file == nil {
		f, err := os.OpenFile("/proc/self/oom_score_adj", os.O_WRONLY, 0)
		if err != nil {
			return false
		}
		t.file = f
	}
	_, err := t.file.WriteAt([]byte(strconv.Itoa(score)), 0)
	return err == nil
}

// marks reports whether a process has this tag.
func (t oomTag) marks(pid int) bool {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/oom_score_adj")
	return err == nil && strings.TrimSpace(string(text)) == strconv.Itoa(t.score)
}
