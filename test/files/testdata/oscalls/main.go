// Command oscalls carries out file calls of package os, one for each JSON value on standard input,
// and prints the result of each as a line of JSON.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/test/files/steps"
)

// A Call is one call. Name and Other are paths.
type Call struct {
	Op, Name, Other string
	N, M            int64
}

func main() {
	syscall.Umask(0o22)
	in, out := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		var c Call
		if err := in.Decode(&c); err == io.EOF {
			return
		} else if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		value, err := do(c)
		out.Encode(value + "|" + class(err))
	}
}

func class(err error) string {
	var errno syscall.Errno
	switch {
	case err == nil:
		return ""
	case errors.As(err, &errno):
		return errno.Error()
	}
	for _, known := range []error{io.EOF, fs.ErrExist, fs.ErrNotExist, fs.ErrPermission, fs.ErrInvalid} {
		if errors.Is(err, known) {
			return known.Error()
		}
	}
	return "another error"
}

func describe(info fs.FileInfo, err error) (string, error) {
	if err != nil {
		return "", err
	}
	st := info.Sys().(*syscall.Stat_t)
	size := info.Size()
	if info.IsDir() {
		size = 0
	}
	return fmt.Sprintf("%s %v %d of %d:%d %d names", info.Name(), info.Mode(), size, st.Uid, st.Gid, st.Nlink), nil
}

func do(c Call) (string, error) {
	switch c.Op {
	case "ReadFile":
		b, err := os.ReadFile(c.Name)
		return string(b), err
	case "WriteFile", "WriteFrom":
		if err := renew(c.Name); err != nil {
			return "", err
		}
		return "", os.WriteFile(c.Name, []byte("written"), fs.FileMode(c.N)&0o777|special(c.N))
	case "Mkdir":
		return "", os.Mkdir(c.Name, fs.FileMode(c.N)&0o777|special(c.N))
	case "MkdirAll":
		return "", os.MkdirAll(c.Name, fs.FileMode(c.N)&0o777|special(c.N))
	case "Remove":
		return "", os.Remove(c.Name)
	case "RemoveAll":
		return "", os.RemoveAll(c.Name)
	case "Rename":
		return "", os.Rename(c.Name, c.Other)
	case "Symlink":
		return "", os.Symlink(c.Other, c.Name)
	case "Readlink":
		return os.Readlink(c.Name)
	case "Chmod":
		return "", os.Chmod(c.Name, fs.FileMode(c.N)&0o777|special(c.N))
	case "Chown":
		return "", os.Chown(c.Name, int(c.N), int(c.M))
	case "Lchown":
		return "", os.Lchown(c.Name, int(c.N), int(c.M))
	case "Chtimes":
		return "", os.Chtimes(c.Name, time.Unix(c.N, 5), time.Unix(c.M, 7))
	case "Truncate":
		return "", os.Truncate(c.Name, c.N)
	case "Stat":
		return describe(os.Stat(c.Name))
	case "Lstat":
		return describe(os.Lstat(c.Name))
	case "ReadDir":
		list, err := os.ReadDir(c.Name)
		var names []string
		for _, d := range list {
			names = append(names, d.Name()+" "+d.Type().String())
		}
		return strings.Join(names, ","), err
	case "OpenFile":
		f, err := os.OpenFile(c.Name, int(c.N), fs.FileMode(c.M))
		if err != nil {
			return "", err
		}
		defer f.Close()
		b := make([]byte, 5)
		n, readErr := f.Read(b)
		m, writeErr := f.Write([]byte("new"))
		return fmt.Sprintf("read %q %s, wrote %d %s", b[:n], class(readErr), m, class(writeErr)), nil
	case "Use":
		f, err := os.OpenFile(c.Name, int(c.N), fs.FileMode(c.M))
		if err != nil {
			return "", err
		}
		defer f.Close()
		return steps.Use(f, c.Other, class), nil
	}
	return "", errors.New("no such call")
}

// renew does to a file, before package os writes to it, what docs/differences.md has in its row WriteFile: a new
// file is put in its place, for which the directory must be writable, and which becomes the writer's if it
// can't be given away. Where another user's file can't be replaced, for the sticky bit, nothing is done.
func renew(name string) error {
	f, err := os.OpenFile(name, os.O_WRONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return nil
	}
	file, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
	if err != nil {
		return err
	}
	st, temp := info.Sys().(*syscall.Stat_t), filepath.Join(filepath.Dir(file), ".renewed")
	if err := os.WriteFile(temp, nil, 0o600); err != nil {
		return err
	}
	if os.Chown(temp, int(st.Uid), int(st.Gid)) != nil {
		os.Chown(temp, -1, int(st.Gid))
	}
	if err := os.Chmod(temp, info.Mode()); err != nil {
		return err
	}
	if os.Rename(temp, file) != nil {
		return os.Remove(temp)
	}
	return nil
}

// special are the bits beyond permissions, as package os has them.
func special(n int64) (mode fs.FileMode) {
	for bit, m := range map[int64]fs.FileMode{0o4000: fs.ModeSetuid, 0o2000: fs.ModeSetgid, 0o1000: fs.ModeSticky} {
		if n&bit != 0 {
			mode |= m
		}
	}
	return mode
}
