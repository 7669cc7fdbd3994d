package trees

import (
	"archive/tar"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

func owner(info fs.FileInfo, h *tar.Header) {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		h.Uid, h.Gid = int(st.Uid), int(st.Gid)
		h.AccessTime = time.Unix(st.Atim.Unix())
	}
}

// isWhiteout reports whether a file of a layer says that the image's is deleted.
func isWhiteout(info fs.FileInfo) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && st.Mode&syscall.S_IFMT == syscall.S_IFCHR && st.Rdev == 0
}

// xattrs returns the extended attributes of an open file as records, ACLs and
// capabilities among them.
func xattrs(f *os.File) map[string]string {
	records := map[string]string{}
	name := fmt.Sprintf("/proc/self/fd/%d", f.Fd())
	n, err := syscall.Listxattr(name, nil)
	if err != nil || n == 0 {
		return records
	}
	list := make([]byte, n)
	if n, err = syscall.Listxattr(name, list); err != nil {
		return records
	}
	value := make([]byte, 64<<10) // the most there may be
	for key := range strings.SplitSeq(strings.TrimRight(string(list[:n]), "\x00"), "\x00") {
		if n, err := syscall.Getxattr(name, key, value); err == nil {
			records[wire.TreeXattr+key] = string(value[:n])
		}
	}
	return records
}
