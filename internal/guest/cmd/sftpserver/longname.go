//go:build linux

package sftpserver

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// recent is how old a file is of which ls shows the time of day, and not the year.
const recent = 365 * 24 * time.Hour / 2

// longName is a line about a file, as of ls -l: clients show it.
func longName(name string, st *unix.Stat_t, users, groups map[uint32]string) string {
	at, layout := time.Unix(st.Mtim.Sec, 0), "Jan _2  2006"
	if age := time.Since(at); age >= 0 && age < recent {
		layout = "Jan _2 15:04"
	}
	return fmt.Sprintf("%s %4d %-8s %-8s %8d %s %s", modeText(st.Mode), st.Nlink, nameOf(users, st.Uid), nameOf(groups, st.Gid),
		st.Size, at.Format(layout), name)
}

func nameOf(names map[uint32]string, id uint32) string {
	if name := names[id]; name != "" {
		return name
	}
	return fmt.Sprint(id)
}

// modeText is the mode as ls shows it.
func modeText(mode uint32) string {
	kinds := map[uint32]byte{unix.S_IFDIR: 'd', unix.S_IFLNK: 'l', unix.S_IFCHR: 'c', unix.S_IFBLK: 'b', unix.S_IFIFO: 'p', unix.S_IFSOCK: 's', unix.S_IFREG: '-'}
	text := []byte("?rwxrwxrwx")
	if kind, ok := kinds[mode&unix.S_IFMT]; ok {
		text[0] = kind
	}
	for i := range 9 {
		if mode&(1<<(8-i)) == 0 {
			text[1+i] = '-'
		}
	}
	for _, special := range [...]struct {
		bit     uint32
		at      int
		on, off byte // with execution and without
	}{{unix.S_ISUID, 3, 's', 'S'}, {unix.S_ISGID, 6, 's', 'S'}, {unix.S_ISVTX, 9, 't', 'T'}} {
		switch {
		case mode&special.bit == 0:
		case text[special.at] == 'x':
			text[special.at] = special.on
		default:
			text[special.at] = special.off
		}
	}
	return string(text)
}
