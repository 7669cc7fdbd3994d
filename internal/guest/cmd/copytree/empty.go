//go:build linux

package copytree

import (
	"fmt"
	"io"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// Empty removes all that a directory contains, however deep it is, and prints an empty object.
func Empty(args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("%s takes a directory", wire.VerbEmpty)
	}
	root, err := unix.Open(args[0], unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(root)
	if err := (&emptying{root: root, buf: make([]byte, 64<<10)}).run(); err != nil {
		return err
	}
	_, err = fmt.Println("{}")
	return err
}

// emptying empties a directory without following links. It moves the directories that it meets to
// the top, so that it has two of them open at a time, and names of one element.
type emptying struct {
	root  int
	buf   []byte
	moved int // names that it gave to directories
}

func (e *emptying) run() error {
	for {
		// Each round reads from the beginning, since it adds to the directory as well.
		if _, err := unix.Seek(e.root, 0, io.SeekStart); err != nil {
			return err
		}
		entries, err := readSome(e.root, e.buf)
		if err != nil || len(entries) == 0 {
			return err
		}
		for _, entry := range entries {
			if err := e.remove(entry); err != nil {
				return fmt.Errorf("remove %.100q: %w", entry.name, err)
			}
		}
	}
}

// remove removes an entry at the top.
func (e *emptying) remove(entry entry) error {
	if entry.kind != unix.DT_DIR {
		err := unix.Unlinkat(e.root, entry.name, 0)
		if err == nil || err == unix.ENOENT || err != unix.EISDIR && err != unix.EPERM {
			return ignoreGone(err)
		}
		// Some file systems don't say what an entry is.
	}
	dir, err := unix.Openat(e.root, entry.name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return ignoreGone(err)
	}
	err = e.clear(dir)
	if err := unix.Close(dir); err != nil {
		return err
	}
	if err != nil {
		return err
	}
	return ignoreGone(unix.Unlinkat(e.root, entry.name, unix.AT_REMOVEDIR))
}

// clear removes the files of a directory, and moves its directories to the top.
func (e *emptying) clear(dir int) error {
	buf := make([]byte, 64<<10)
	for {
		if _, err := unix.Seek(dir, 0, io.SeekStart); err != nil {
			return err
		}
		entries, err := readSome(dir, buf)
		if err != nil || len(entries) == 0 {
			return err
		}
		for _, entry := range entries {
			err := unix.Unlinkat(dir, entry.name, 0)
			if err == unix.EISDIR || err == unix.EPERM && entry.kind == unix.DT_DIR {
				err = e.lift(dir, entry.name)
			}
			if ignoreGone(err) != nil {
				return fmt.Errorf("remove %.100q: %w", entry.name, err)
			}
		}
	}
}

// lift moves a directory to the top, under a name that is free there.
func (e *emptying) lift(dir int, name string) error {
	for {
		e.moved++
		err := unix.Renameat2(dir, name, e.root, ".removed-"+strconv.Itoa(e.moved), unix.RENAME_NOREPLACE)
		if err != unix.EEXIST {
			return err
		}
	}
}

func ignoreGone(err error) error {
	if err == unix.ENOENT {
		return nil
	}
	return err
}
