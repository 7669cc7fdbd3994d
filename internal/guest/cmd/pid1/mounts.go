//go:build linux

package pid1

import (
	"encoding/json"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// mountTable has the mounts of a namespace, in the order in which they were made.
type mountTable []mountEntry

// A mountEntry is a line of /proc/self/mountinfo.
type mountEntry struct {
	root    string // of the mount, within its file system
	at      string // where it is mounted
	options []string
}

// readMounts reads the mounts of this process.
func readMounts() (mountTable, error) {
	text, err := os.ReadFile("/proc/self/mountinfo")
	return parseMounts(string(text)), err
}

// unescape replaces the characters that the kernel escapes in mountinfo.
var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

func parseMounts(text string) (t mountTable) {
	for line := range strings.Lines(text) {
		// ID, parent, device, root, mount point, options
		if f := strings.Fields(line); len(f) > 5 {
			t = append(t, mountEntry{unescape.Replace(f[3]), unescape.Replace(f[4]), strings.Split(f[5], ",")})
		}
	}
	return t
}

// readOnly reports whether the topmost mount at a path is read-only.
func (t mountTable) readOnly(at string) (is bool) {
	for _, m := range t {
		if m.at == at {
			is = slices.Contains(m.options, "ro")
		}
	}
	return is
}

// check fails unless each mount of a wire.Init is where it has to be, with its own volume, and is
// covered by no other one, and unless the sandbox's volumes are mounted nowhere else.
func (t mountTable) check(config string) error {
	var conf wire.Init
	if err := json.Unmarshal([]byte(config), &conf); err != nil {
		return err
	}
	where := map[string][]string{} // the targets of each volume
	var dirs []string              // the targets of directories, below which their machine's mounts are, too
	for _, m := range conf.Mounts {
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
		below := func(dir string) bool { return strings.HasPrefix(m.at, dir+"/") }
		if targets := where[m.volume()]; targets != nil && !slices.Contains(targets, m.at) && !slices.ContainsFunc(dirs, below) {
			return fmt.Errorf("volume %s is mounted at %s and belongs at %s", m.volume(), m.at, strings.Join(targets, ", "))
		}
	}
	return nil
}

// checkOne checks that a mount is there and uncovered. It may cover another one: the engine makes a
// volume of its own where an image declares one by a relative path.
func (t mountTable) checkOne(want wire.Mount) error {
	i := -1
	for j, m := range t {
		if m.at == want.Target {
			i = j
		}
	}
	if i < 0 {
		return fmt.Errorf("nothing is mounted at %s", want.Target)
	}
	if is := t[i].volume(); want.Volume != "" && is != "" && is != want.Volume {
		return fmt.Errorf("volume %s is mounted at %s in place of %s", is, want.Target, want.Volume)
	}
	for _, m := range t[i+1:] {
		if strings.HasPrefix(want.Target, m.at+"/") {
			return fmt.Errorf("the mount at %s is covered by another one at %s", want.Target, m.at)
		}
	}
	return nil
}

// volume returns the name of the volume that is mounted, as far as the mount tells: engines keep
// those of their local driver in directories …/NAME/_data. A volume that is a file system of its own
// shows no name.
func (m mountEntry) volume() string {
	if path.Base(m.root) != "_data" {
		return ""
	}
	return path.Base(path.Dir(m.root))
}
