//go:build linux

package copytree

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/cmd/proc"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// Names with which storage drivers outside of the kernel mark a directory that hides that
// of the image: as a file in it, or a device.
const (
	opaqueFile   = ".wh..wh..opq"
	opaqueDevice = ".wh..opq"
)

// overlays are what the attributes of overlayfs in its three kinds begin with.
var overlays = []string{"trusted.overlay.", "user.overlay.", "user.fuseoverlayfs."}

// driver reports whether an extended attribute of a layer is one that storage drivers, and
// SELinux, set.
func driver(attribute string) bool {
	return attribute == "security.selinux" || slices.ContainsFunc(overlays, func(p string) bool { return strings.HasPrefix(attribute, p) })
}

// bare reports whether a layer is as the engine made it: a root with the engine's mode and
// owner, which holds nothing but empty directories to mount something on. In doubt it is
// not: a root with an attribute that storage drivers don't set, or with an unknown name.
func bare(fd int, st *unix.Stat_t, mounts []string) (bool, error) {
	if st.Mode&0o7777 != 0o755 || st.Uid != 0 || st.Gid != 0 {
		return false, nil
	}
	if attrs, err := ownXattrs(fd); err != nil || len(attrs) > 0 {
		return false, err
	}
	entries, err := readDir(fd)
	if err != nil {
		return false, err
	}
	if _, err := unix.Seek(fd, 0, io.SeekStart); err != nil { // it is read again
		return false, err
	}
	for _, e := range entries {
		if !slices.Contains(mounts, e.name) {
			return false, nil
		}
		dir, err := unix.Openat(fd, e.name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err == unix.ENOTDIR || err == unix.ELOOP {
			return false, nil // a file's mount point, or a file in its place
		}
		if err != nil {
			return false, err
		}
		inside, err := readDir(dir)
		if e := unix.Close(dir); err == nil {
			err = e
		}
		if err != nil {
			return false, err
		}
		// Directories that the engine mounts something on are marked when they are made.
		if slices.ContainsFunc(inside, func(e entry) bool { return e.name != opaqueFile && e.name != opaqueDevice }) {
			return false, nil
		}
	}
	return true, nil
}

// Layer prints where this container's own layer is.
func Layer() error {
	root, err := rootMount()
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(wire.Layer{Upper: root.upper()})
}

// VolatileRoot reports whether what changes in / is lost with the container.
func VolatileRoot() (bool, error) {
	root, err := rootMount()
	return root.volatile(), err
}

// mount is what a mount says of its file system.
type mount struct{ kind, options string }

// volatile reports whether the file system is one of the OCI runtime itself, which keeps what
// changes as long as the container runs: gVisor by default shows an overlay that writes to no directory.
func (m mount) volatile() bool { return m.kind == "overlay" && m.upper() == "" }

// upper returns the directory that an overlay writes to, as it was named by who mounted it.
func (m mount) upper() (dir string) {
	if m.kind != "overlay" {
		return ""
	}
	for option := range strings.SplitSeq(m.options, ",") {
		if d, is := strings.CutPrefix(option, "upperdir="); is {
			dir = escaped.Replace(d)
		}
	}
	return dir
}

// escaped are the characters that the kernel escapes in the options of a file system.
var escaped = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\054`, ",", `\134`, `\`)

// rootMount returns what is mounted on /.
func rootMount() (root mount, err error) {
	all, err := proc.Mounts()
	return rootOf(all), err
}

func rootOf(all []proc.Mount) (root mount) {
	for _, m := range all {
		if m.At == "/" {
			root = mount{m.Kind, m.Super} // the last mount hides those before
		}
	}
	return root
}

// openLayers opens the layers that jobs have by their marks, and takes all others away from this
// container. It fails where overlayfs' own attributes can't be copied.
func openLayers(spec *wire.Copy) error {
	if err := chooseLayers(spec); err != nil {
		return err
	}
	root, err := rootMount()
	for _, job := range spec.Jobs {
		if err == nil && job.Layer && job.To != "" {
			err = root.showsMarks(job.To)
		}
	}
	return err
}

// probe is an attribute that nothing has.
const probe = "trusted.overlay.sandbox-probe"

// showsMarks fails if this program, whose root the mount is, can't set and list overlayfs' own
// attributes of a directory. In a user namespace they are hidden: a copy would lose them, and with
// them what hides files of the image. An overlay that was mounted in one has attributes of users.
func (m mount) showsMarks(dir string) error {
	if m.kind != "overlay" || slices.Contains(strings.Split(m.options, ","), "userxattr") {
		return nil
	}
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.Fsetxattr(fd, probe, []byte("y"), 0); err != nil {
		return fmt.Errorf("attributes of overlayfs can't be set: %w", err)
	}
	names := make([]byte, 64<<10)
	n, err := unix.Flistxattr(fd, names)
	if e := unix.Fremovexattr(fd, probe); err == nil {
		err = e
	}
	if err == nil && !slices.Contains(strings.Split(string(names[:n]), "\x00"), probe) {
		err = errors.New("attributes of overlayfs don't show")
	}
	return err
}

// chooseLayers is openLayers without a look at what they are for.
func chooseLayers(spec *wire.Copy) error {
	if spec.Layers == "" {
		return nil
	}
	var marks []string
	var paths []*string
	for i := range spec.Jobs {
		job := &spec.Jobs[i]
		if job.FromMark != "" {
			marks, paths = append(marks, job.FromMark), append(paths, &job.From)
		}
		if job.ToMark != "" {
			marks, paths = append(marks, job.ToMark), append(paths, &job.To)
		}
	}
	found, err := findLayers(spec.Layers, spec.LayerName, marks)
	if err != nil {
		return err
	}
	for i, entry := range found {
		fd, err := unix.Open(path.Join(spec.Layers, entry, spec.LayerName), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		*paths[i] = fmt.Sprintf("/proc/self/fd/%d", fd)
	}
	return unix.Unmount(spec.Layers, unix.MNT_DETACH)
}

// findLayers returns for each mark the only entry of dir whose directory name has a directory of
// that name.
func findLayers(dir, name string, marks []string) ([]string, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	entries, err := d.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	found := make([]string, len(marks))
	for i, mark := range marks {
		for _, e := range entries {
			info, err := os.Lstat(path.Join(dir, e, name, mark))
			switch {
			case err != nil || !info.IsDir():
			case found[i] != "":
				return nil, fmt.Errorf("several layers have %s", mark)
			default:
				found[i] = e
			}
		}
		if found[i] == "" {
			return nil, fmt.Errorf("no layer has %s", mark)
		}
	}
	return found, nil
}
