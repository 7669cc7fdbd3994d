//go:build linux

package copytree

import (
	"encoding/json"
	"os"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// Sizes prints the total size of the files in each directory, as a line of JSON.
func Sizes(dirs []string) error {
	sizes := wire.Sizes{Bytes: make([]int64, len(dirs))}
	next := make(chan int)
	var wg sync.WaitGroup
	for range max(2, runtime.NumCPU()) {
		wg.Go(func() {
			for i := range next {
				sizes.Bytes[i] = sizeOf(dirs[i])
			}
		})
	}
	for i := range dirs {
		next <- i
	}
	close(next)
	wg.Wait()
	return json.NewEncoder(os.Stdout).Encode(sizes)
}

// sizeOf adds up the files of a tree, each once however many names it has, or returns
// -1 when it can't see all of it.
func sizeOf(dir string) int64 {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1
	}
	d := usage{seen: map[inode]bool{}, mount: mountOf(fd)}
	if err := d.walk(fd); err != nil {
		return -1
	}
	return d.bytes
}

type usage struct {
	bytes int64
	seen  map[inode]bool // files with several names
	mount uint64
}

// mountOf returns the ID of a mount, 0 when the kernel has none. It tells a volume from
// what is mounted in it, which may be of the same file system.
func mountOf(fd int) uint64 {
	var st unix.Statx_t
	if unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_MNT_ID, &st) != nil || st.Mask&unix.STATX_MNT_ID == 0 {
		return 0
	}
	return st.Mnt_id
}

// walk adds what is below an open directory, and closes it. It skips what is removed
// meanwhile.
func (d *usage) walk(fd int) error {
	defer unix.Close(fd)
	if mountOf(fd) != d.mount {
		return nil
	}
	entries, err := readDir(fd)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.kind != unix.DT_DIR {
			var st unix.Stat_t
			err := unix.Fstatat(fd, e.name, &st, unix.AT_SYMLINK_NOFOLLOW)
			if err == unix.ENOENT {
				continue
			}
			if err != nil {
				return err
			}
			if st.Mode&unix.S_IFMT != unix.S_IFDIR {
				key := inode{st.Dev, st.Ino}
				if st.Nlink < 2 || !d.seen[key] {
					d.bytes += st.Size
				}
				if st.Nlink > 1 {
					d.seen[key] = true
				}
				continue
			}
		}
		sub, err := unix.Openat(fd, e.name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err == unix.ENOENT || err == unix.ENOTDIR || err == unix.ELOOP {
			continue
		}
		if err != nil {
			return err
		}
		if err := d.walk(sub); err != nil {
			return err
		}
	}
	return nil
}
