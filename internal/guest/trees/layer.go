package trees

import (
	"io/fs"
	"maps"
	"slices"
	"strings"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// Names with which storage drivers outside of the kernel mark a directory that hides that
// of the image: as a file in it, or a device. Any other name that begins like them is one
// of theirs, or made to look like it.
const (
	Opaque       = ".wh..wh..opq"
	OpaqueDevice = ".wh..opq"
	driverName   = ".wh."
)

// overlays are what the attributes of overlayfs in its three kinds begin with.
var overlays = []string{"trusted.overlay.", "user.overlay.", "user.fuseoverlayfs."}

// Driver reports whether an extended attribute of a layer is one that storage drivers, and
// SELinux, set.
func Driver(attribute string) bool {
	return attribute == "security.selinux" || slices.ContainsFunc(overlays, func(p string) bool { return strings.HasPrefix(attribute, p) })
}

// kept are those of a file's extended attributes that go with it.
func (t *Writer) kept(had map[string]string) map[string]string {
	maps.DeleteFunc(had, func(key, _ string) bool {
		name, _ := strings.CutPrefix(key, wire.TreeXattr)
		return strings.HasPrefix(name, "trusted.") || t.layer && Driver(name)
	})
	return had
}

// overlay returns one of overlayfs' own attributes of a file.
func overlay(had map[string]string, name string) (value string, there bool) {
	for _, p := range overlays {
		if value, there = had[wire.TreeXattr+p+name]; there {
			return value, true
		}
	}
	return "", false
}

// driverOnly reports whether what is in a layer is elsewhere, in part or under another
// name.
func driverOnly(had map[string]string) bool {
	_, moved := overlay(had, "redirect")
	_, empty := overlay(had, "metacopy")
	_, other := had[wire.TreeXattr+"user.containers.override_stat"] // owner and mode, of drivers without root
	return moved || empty || other
}

// opaque marks a directory of a layer that hides the image's, and returns its entries
// without what says so.
func (t *Writer) opaque(had map[string]string, entries []fs.DirEntry, marks map[string]string) ([]fs.DirEntry, error) {
	if driverOnly(had) {
		return nil, ErrUnfit
	}
	switch value, there := overlay(had, "opaque"); {
	case !there:
	case value != "y":
		return nil, ErrUnfit // a kind of a later kernel
	default:
		marks[wire.TreeOpaque] = "1"
	}
	entries = slices.DeleteFunc(entries, func(e fs.DirEntry) bool {
		is := e.Name() == Opaque || e.Name() == OpaqueDevice
		if is {
			marks[wire.TreeOpaque] = "1"
		}
		return is
	})
	if slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return strings.HasPrefix(e.Name(), driverName) }) {
		return nil, ErrUnfit
	}
	return entries, nil
}
