package trees

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// noBlock keeps a pipe in a file's place from blocking who opens it.
const noBlock = syscall.O_NONBLOCK | syscall.O_NOFOLLOW

func identify(info fs.FileInfo) (id fileID, several bool) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return id, false
	}
	return fileID{uint64(st.Dev), st.Ino}, st.Nlink > 1
}

func owner(info fs.FileInfo, h *tar.Header) {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		h.Uid, h.Gid = int(st.Uid), int(st.Gid)
		h.AccessTime = time.Unix(st.Atim.Unix())
	}
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

const seekData, seekHole = 3, 4

// dataPieces returns where a file has data.
func dataPieces(f *os.File, info fs.FileInfo) ([]piece, error) {
	size := info.Size()
	whole := []piece{{0, size}}
	if size == 0 {
		return nil, nil
	}
	if st, ok := info.Sys().(*syscall.Stat_t); !ok || st.Blocks*512 >= size {
		return whole, nil
	}
	var pieces []piece
	for at := int64(0); at < size; {
		data, err := f.Seek(at, seekData)
		if errors.Is(err, syscall.ENXIO) {
			break // nothing but a hole
		}
		if err != nil || len(pieces) == maxPieces {
			return whole, nil
		}
		if data >= size {
			break
		}
		hole, err := f.Seek(data, seekHole)
		if err != nil {
			return whole, nil
		}
		hole = min(hole, size)
		pieces = append(pieces, piece{data, hole - data})
		at = hole
	}
	_, err := f.Seek(0, io.SeekStart)
	return pieces, err
}
