package main

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// others are what the engine and the kernel put in every container.
var others = []string{"/proc", "/sys", "/dev", "/etc/hosts", "/etc/hostname", "/etc/mtab", "/etc/resolv.conf", "/run", "/tree", "/.dockerenv"}

// list prints a line with all there is to know of each file in the directories: list DIR...
func list(dirs []string) error {
	first := map[string]string{} // the first name of a file with several, by device and inode
	var errs []error
	for _, dir := range dirs {
		errs = append(errs, filepath.WalkDir(dir, func(name string, _ fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if slices.Contains(others, name) || strings.HasPrefix(name, "/.agent-sandbox") {
				return skip(name)
			}
			line, err := describe(name, first)
			if err == nil && line != "" {
				_, err = fmt.Printf("%q %s\n", name, line)
			}
			return err
		}))
	}
	return errors.Join(errs...)
}

func skip(name string) error {
	if st, err := os.Lstat(name); err != nil || !st.IsDir() {
		return err
	}
	return fs.SkipDir
}

func describe(name string, first map[string]string) (string, error) {
	st, err := os.Lstat(name)
	if err != nil {
		return "", err
	}
	if st.Mode()&fs.ModeSocket != 0 {
		return "", nil // no copy has sockets
	}
	own := st.Sys().(*syscall.Stat_t)
	line := fmt.Sprintf("%v %d:%d", st.Mode(), own.Uid, own.Gid)
	if name != "/" && name != "/etc" { // the engine makes files of its own there
		line += " " + st.ModTime().UTC().Format("2006-01-02T15:04:05.999999999")
	}
	if !st.IsDir() {
		id := fmt.Sprint(own.Dev, " ", own.Ino)
		if own.Nlink > 1 {
			if first[id] == "" {
				first[id] = name
			}
			line += fmt.Sprintf(" %d links, the first %q", own.Nlink, first[id])
		}
	}
	switch {
	case st.Mode()&fs.ModeSymlink != 0:
		to, err := os.Readlink(name)
		return line + fmt.Sprintf(" to %q", to), err
	case st.Mode().IsRegular():
		line += fmt.Sprintf(" %d bytes", st.Size())
		if own.Blocks*512 < st.Size()/2 {
			line += ", sparse"
		}
		f, err := os.Open(name)
		if err != nil {
			return "", err
		}
		defer f.Close()
		h := sha256.New()
		if _, err := io.Copy(h, f); err != nil {
			return "", err
		}
		line += fmt.Sprintf(" %x", h.Sum(nil)[:8])
	}
	attrs, err := attributes(name)
	return line + attrs, err
}

// attributes describes extended attributes other than those that storage drivers make.
func attributes(name string) (text string, err error) {
	names := make([]byte, 64<<10)
	n, err := unix.Llistxattr(name, names)
	if err != nil {
		if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EPERM) {
			err = nil
		}
		return "", err
	}
	var keys []string
	for key := range bytes.SplitSeq(names[:n], []byte{0}) {
		if k := string(key); k != "" && !strings.HasPrefix(k, "trusted.") && !strings.HasPrefix(k, "user.fuseoverlayfs.") && !strings.HasPrefix(k, "user.containers.") {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	for _, k := range keys {
		value := make([]byte, 64<<10)
		n, err := unix.Lgetxattr(name, k, value)
		if err != nil {
			return "", err
		}
		text += fmt.Sprintf(" %s=%x", k, sha256.Sum256(value[:n]))
	}
	return text, nil
}
