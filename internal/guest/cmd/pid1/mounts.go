//go:build linux

package pid1

import (
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/cmd/proc"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// mountTable has the mounts of a namespace, in the order in which they were made.
type mountTable []proc.Mount

// readOnly reports whether the topmost mount at a path is read-only.
func (t mountTable) readOnly(at string) (is bool) {
	for _, m := range t {
		if m.At == at {
			is = slices.Contains(m.Options, "ro")
		}
	}
	return is
}

// checkConfig is check for the mounts of a wire.Init in JSON.
func (t mountTable) checkConfig(config string) error {
	var conf wire.Init
	if err := json.Unmarshal([]byte(config), &conf); err != nil {
		return err
	}
	return t.check(conf.Mounts)
}

// check fails unless each mount is where it has to be, with its own volume, and is covered by no
// other one, and unless the sandbox's volumes are mounted nowhere else.
func (t mountTable) check(mounts []wire.Mount) error {
	where := map[string][]string{} // the targets of each volume
	var dirs []string              // the targets of directories, below which their machine's mounts are, too
	for _, m := range mounts {
		if m.Volume != "" {
			where[m.Volume] = append(where[m.Volume], m.Target)
		} else {
			dirs = append(dirs, m.Target)
		}
		if err := t.checkOne(m); err != nil {
			return err
		}
	}
	for _, m := range t {
		below := func(dir string) bool { return strings.HasPrefix(m.At, dir+"/") }
		if targets := where[volumeOf(m)]; targets != nil && !slices.Contains(targets, m.At) && !slices.ContainsFunc(dirs, below) {
			return fmt.Errorf("volume %s is mounted at %s and belongs at %s", volumeOf(m), m.At, strings.Join(targets, ", "))
		}
	}
	return nil
}

// checkOne checks that a mount is there and uncovered. It may cover another one: the engine makes a
// volume of its own where an image declares one by a relative path.
func (t mountTable) checkOne(want wire.Mount) error {
	i := -1
	for j, m := range t {
		if m.At == want.Target {
			i = j
		}
	}
	if i < 0 {
		return fmt.Errorf("nothing is mounted at %s", want.Target)
	}
	if is := volumeOf(t[i]); want.Volume != "" && is != "" && is != want.Volume {
		return fmt.Errorf("volume %s is mounted at %s in place of %s", is, want.Target, want.Volume)
	}
	for _, m := range t[i+1:] {
		if strings.HasPrefix(want.Target, m.At+"/") {
			return fmt.Errorf("the mount at %s is covered by another one at %s", want.Target, m.At)
		}
	}
	return nil
}

// volumeOf returns the name of the volume that is mounted, as far as the mount tells: engines keep
// those of their local driver in directories …/NAME/_data. A volume that is a file system of its own
// shows no name.
func volumeOf(m proc.Mount) string {
	if path.Base(m.Root) != "_data" {
		return ""
	}
	return path.Base(path.Dir(m.Root))
}
