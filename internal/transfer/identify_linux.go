package transfer

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

var bootID = sync.OnceValues(func() (string, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(id)), err
})

// identify returns what distinguishes a directory from every other that a helper may see at
// its path.
func identify(dir string) (wire.Identity, error) {
	boot, err := bootID()
	if err != nil {
		return wire.Identity{}, err
	}
	st, err := os.Stat(dir)
	if err != nil {
		return wire.Identity{}, err
	}
	sys, ok := st.Sys().(*syscall.Stat_t)
	if !ok {
		return wire.Identity{}, fmt.Errorf("%s: no inode", dir)
	}
	return wire.Identity{Boot: boot, Dev: uint64(sys.Dev), Ino: sys.Ino, UID: sys.Uid, GID: sys.Gid}, nil
}
