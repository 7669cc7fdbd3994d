//go:build linux

package main

import (
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// badges tell whose command an orphan was. A daemon leaves its parents, its session
// and its process group, but it keeps what it was never aware of having: its OOM
// score. Each running command has one of its own, a little above childOOMScore, which
// all that it starts inherit. A process that changes its score gets away until the
// connection ends.
type badges struct {
	mu   sync.Mutex // also held from setting our own score to the fork that copies it
	used [maxBadges]bool
	last int
	file *os.File
}

// maxBadges bounds the commands that have a badge at once, and with it how much more
// likely one dies of memory pressure than another: by 12.8% of the memory.
const maxBadges = 128

// badge is the score of one command's processes; 0 is none.
type badge int

// stamp gives the processes that fork makes a badge.
func (b *badges) stamp(fork func() (int, error)) (badge, int, error) {
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
func (b *badges) take() badge {
	for range maxBadges {
		b.last = (b.last + 1) % maxBadges
		if !b.used[b.last] {
			b.used[b.last] = true
			return badge(childOOMScore + 1 + b.last)
		}
	}
	return 0
}

func (b *badges) put(one badge) {
	if one != 0 {
		b.used[int(one)-childOOMScore-1] = false
	}
}

// release frees a badge for another command.
func (b *badges) release(one badge) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.put(one)
}

func (b *badges) set(score int) bool {
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

// worn says whether a process has this badge.
func (b badge) worn(pid int) bool {
	if b == 0 {
		return false
	}
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/oom_score_adj")
	return err == nil && strings.TrimSpace(string(text)) == strconv.Itoa(int(b))
}

// ticks is now, as the start times of processes are counted.
func ticks() uint64 {
	const perSecond = 100 // USER_HZ, on every architecture of ours
	return uint64(boottime() / (time.Second / perSecond))
}
