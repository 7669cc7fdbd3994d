package plan

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/internal/source"
)

// ModeOf returns a mount's mode, or the default for its kind.
func ModeOf(m record.Mount) string {
	switch {
	case m.Mode != "":
		return m.Mode
	case m.Volume != "":
		return record.RW
	}
	return record.RWCopy
}

// CheckMode returns why a mount can't have its mode.
func CheckMode(m record.Mount) error {
	switch ModeOf(m) {
	case record.RO, record.RW:
		return nil
	case record.RWCopy:
		if m.Volume == "" || m.Source != "" {
			return nil
		}
		return fmt.Errorf("mode %q is not for a volume: use rw or ro", m.Mode)
	}
	if m.Volume != "" {
		return fmt.Errorf("mode %q: use rw or ro", m.Mode)
	}
	return fmt.Errorf("mode %q: use ro, rw or rwcopy", m.Mode)
}

// checkRemote returns why a mount can't be of the engine's machine.
func checkRemote(m record.Mount) error {
	switch {
	case !m.Remote:
		return nil
	case m.Volume != "" || ModeOf(m) == record.RWCopy:
		return fmt.Errorf("mount at %q: Remote is for a directory with mode ro or rw", m.Target)
	case !path.IsAbs(m.Source):
		return fmt.Errorf("mount at %q: source %q is on the engine's machine and not an absolute path", m.Target, m.Source)
	}
	return nil
}

// LocalBinds returns the bind mounts of directories that have to be this machine's.
func LocalBinds(mounts []record.Mount) (binds []record.Mount) {
	for _, m := range mounts {
		if m.Source != "" && m.Mode != record.RWCopy && !m.Remote && !m.Existing {
			binds = append(binds, m)
		}
	}
	return binds
}

// reservedTargets can't be mounted over, nor can anything below them.
var reservedTargets = []string{"/proc", "/sys", "/dev"}

// accountFiles are read by the engine at each start of a container, in its own layer.
var accountFiles = []string{"/etc", "/etc/passwd", "/etc/group"}

// PATH_MAX, with the NUL at the end, and NAME_MAX of linux/limits.h.
const (
	pathMax = 4096
	nameMax = 255
)

// CheckLength returns an error for a path that is too long for Linux.
func CheckLength(name string) error {
	if len(name) >= pathMax || slices.ContainsFunc(strings.Split(name, "/"), func(name string) bool { return len(name) > nameMax }) {
		return fmt.Errorf("%.64q… is too long: a path has at most %d bytes, and each name in it %d", name, pathMax-1, nameMax)
	}
	return nil
}

// CheckTarget returns why nothing can be mounted at a path in the sandbox.
func CheckTarget(target string) error {
	if !path.IsAbs(target) {
		return fmt.Errorf("target %q is not an absolute path", target)
	}
	if strings.ContainsRune(target, 0) || !utf8.ValidString(target) {
		return fmt.Errorf("target %q: a path has no NUL, and the engine takes UTF-8 alone", target)
	}
	clean := path.Clean(target)
	if err := CheckLength(clean); err != nil {
		return fmt.Errorf("target %w", err)
	}
	switch {
	case clean == "/":
		return fmt.Errorf("target %q is the root of the sandbox", target)
	case clean == record.Workspace:
		return fmt.Errorf("target %q is reserved for the sandbox volume", target)
	}
	if strings.HasPrefix(clean, wire.Dir) {
		return fmt.Errorf("target %q: %s is not for mounts", target, wire.Dir)
	}
	if slices.Contains(accountFiles, clean) {
		return fmt.Errorf("target %q: the engine itself reads the sandbox's account files there", target)
	}
	for _, r := range reservedTargets {
		if clean == r || strings.HasPrefix(clean, r+"/") {
			return fmt.Errorf("target %q: %s is not for mounts", target, r)
		}
	}
	return nil
}

// engineSockets are where engines listen. Whoever can connect to one is root on its machine, also
// through a read-only mount.
var engineSockets = []string{"/run/docker.sock", "/var/run/docker.sock", "/run/containerd/containerd.sock", "/var/run/containerd/containerd.sock",
	"/run/podman/podman.sock", "/var/run/podman/podman.sock", "/run/crio/crio.sock", "/var/run/crio/crio.sock"}

// ReachesEngine reports whether a mounted file or directory is, or has, the socket of an engine, as
// far as its name tells.
func ReachesEngine(source string) bool {
	clean := path.Clean(source)
	return slices.ContainsFunc(engineSockets, func(socket string) bool {
		return path.Base(socket) == path.Base(clean) || strings.HasPrefix(socket, strings.TrimSuffix(clean, "/")+"/")
	})
}

// CheckVolume checks a volume name that a caller passes in.
func CheckVolume(name string) error {
	if name, sub, found := strings.Cut(name, "/"); found && record.ValidVolume(name) {
		return fmt.Errorf("volume %q: a directory of a volume (%q) can't be mounted alone", name, sub)
	}
	if !record.ValidVolume(name) {
		return fmt.Errorf("%q is not a volume's name: use %s", name, record.VolumeRule)
	}
	return nil
}

// completeMount fills in defaults, and makes paths clean and absolute.
func completeMount(m record.Mount) (record.Mount, error) {
	m.Mode = ModeOf(m)
	switch {
	case m.Source == "" && m.Volume == "":
		return m, fmt.Errorf("mount at %q has neither a source nor a volume", m.Target)
	case m.Source != "" && m.Volume != "" && m.Mode != record.RWCopy:
		return m, fmt.Errorf("mount at %q has both a source, %q, and a volume, %q", m.Target, m.Source, m.Volume)
	}
	err := errors.Join(CheckMode(m), checkRemote(m), CheckTarget(m.Target))
	m.Target = path.Clean(m.Target)
	if m.Volume != "" {
		return m, errors.Join(err, CheckVolume(m.Volume))
	}
	if strings.ContainsRune(m.Source, 0) || !utf8.ValidString(m.Source) {
		return m, errors.Join(err, fmt.Errorf("source %q: a path has no NUL, and the engine takes UTF-8 alone", m.Source))
	}
	// A path of the engine's machine may look absolute there alone.
	if !path.IsAbs(m.Source) {
		abs, e := filepath.Abs(m.Source)
		if e != nil {
			return m, errors.Join(err, e)
		}
		m.Source = abs
	}
	switch {
	case m.Mode == record.RWCopy:
		err = errors.Join(err, source.CheckDir(m.Source))
	case len(LocalBinds([]record.Mount{m})) > 0:
		if _, e := os.Stat(m.Source); e != nil {
			err = errors.Join(err, fmt.Errorf("mount at %q: source: %w: set Mount.Remote to mount what is on the engine's machine", m.Target, e))
		}
	}
	return m, err
}

// attachCopies makes those of mounts that are copies of directories, as a sandbox has them, into
// mounts of their volumes. The own copies of the sandbox stay copies.
func attachCopies(mounts, own []record.Mount) []record.Mount {
	mounts = slices.Clone(mounts)
	for i, m := range mounts {
		kept := slices.IndexFunc(own, func(o record.Mount) bool {
			return o.Mode == record.RWCopy && o.Volume == m.Volume && o.Target == m.Target && (o.Source == "" || m.Source != "")
		})
		switch {
		case m.Volume == "":
		case kept >= 0:
			mounts[i] = own[kept]
		case m.Source != "":
			mounts[i].Source, mounts[i].Mode = "", record.RW
		}
	}
	return mounts
}

// declared returns the volumes that a sandbox has of its image's, except where one of mounts is.
func declared(rec record.Sandbox, mounts []record.Mount) (volumes []record.Mount) {
	for _, m := range rec.Settings.Declared {
		m.Declared = true
		volumes = append(volumes, m)
	}
	return slices.DeleteFunc(volumes, func(m record.Mount) bool { return hasTarget(mounts, m.Target) })
}

func hasTarget(mounts []record.Mount, target string) bool {
	return slices.ContainsFunc(mounts, func(m record.Mount) bool { return m.At(target) })
}

// WithDeclared returns mounts with those volumes that an image declares and that none of mounts
// hides: copies without a source, which the engine fills from the image.
func WithDeclared(mounts []record.Mount, volumes []string) []record.Mount {
	mounts = slices.Clone(mounts)
	for _, target := range volumes {
		// The engine mounts a volume of its own at a path that is not absolute, and then ours over it.
		if target = path.Join("/", target); target != "/" && target != record.Workspace && !hasTarget(mounts, target) {
			mounts = append(mounts, record.Mount{Target: target, Mode: record.RWCopy, Declared: true})
		}
	}
	return mounts
}

// requested returns mounts as the record has those of an update: the volume of a copy is not in it,
// since a new container may have another.
func requested(mounts []record.Mount) []record.Mount {
	mounts = append([]record.Mount{}, mounts...) // not nil, which is no change
	for i, m := range mounts {
		if m.Source != "" {
			mounts[i].Volume = ""
		}
	}
	return mounts
}

// completeMounts completes mounts and returns all problems.
func completeMounts(mounts []record.Mount) (out []record.Mount, problems []error) {
	for _, m := range mounts {
		m, err := completeMount(m)
		if err != nil {
			problems = append(problems, err)
		}
		if i := slices.IndexFunc(out, func(o record.Mount) bool { return o.Target == m.Target }); i >= 0 && m.Target != "." {
			problems = append(problems, fmt.Errorf("duplicate mount target %q", m.Target))
		}
		out = append(out, m)
	}
	return out, problems
}

// BelowWorkspace returns the names in the workspace, which is mounted at a path, that are needed as
// mount points.
func BelowWorkspace(workspace string, mounts []record.Mount) (names []string) {
	for _, m := range mounts {
		if rel, is := strings.CutPrefix(m.Target, workspace+"/"); is {
			name, _, _ := strings.Cut(rel, "/")
			names = append(names, name)
		}
	}
	return names
}

// Nested reports whether a mount is below a copy, or below a bind mount that the engine makes its
// mount point in. The workspace counts as a copy if it is filled.
func Nested(workspace string, mounts []record.Mount, filled bool) bool {
	return filled && len(BelowWorkspace(workspace, mounts)) > 0 || slices.ContainsFunc(mounts, func(outer record.Mount) bool {
		return (outer.Mode == record.RWCopy || outer.Mode == record.RW && outer.Source != "") && slices.ContainsFunc(mounts, func(inner record.Mount) bool {
			return strings.HasPrefix(inner.Target, outer.Target+"/")
		})
	})
}
