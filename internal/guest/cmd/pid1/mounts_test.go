//go:build linux

package pid1

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/cmd/proc"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// A table is what a session must find, and what it must not begin with.
func TestMountsAreWhereTheyBelong(t *testing.T) {
	t.Parallel()
	const (
		root      = "900 800 0:50 / / rw,relatime - overlay overlay rw,lowerdir=l,upperdir=u\n"
		procfs    = "901 900 0:51 / /proc rw - proc proc rw\n"
		workspace = "902 900 8:1 /var/lib/docker/volumes/box/_data /workspace rw,relatime - ext4 /dev/vda rw\n"
		data      = "903 900 8:1 /var/lib/docker/volumes/box-copy/_data /data/with\\040space rw - ext4 /dev/vda rw\n"
		bind      = "904 902 8:1 /home/me/project /workspace/src ro - ext4 /dev/vda rw\n"
		overlaid  = "905 900 0:60 / /shared rw - overlay overlay rw,upperdir=x\n"
		hosts     = "906 900 8:1 /var/lib/docker/containers/c/hosts /etc/hosts rw - ext4 /dev/vda rw\n"
		device    = "907 900 0:70 / /opt/driver ro - tmpfs tmpfs ro\n"
	)
	config, err := json.Marshal(wire.Init{Mounts: []wire.Mount{
		{Target: "/workspace", Volume: "box"}, {Target: "/data/with space", Volume: "box-copy"}, {Target: "/workspace/src"}, {Target: "/shared", Volume: "box-share"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		what, table, want string
	}{
		{"all of them", root + procfs + workspace + data + overlaid + bind + hosts, ""},
		{"a directory's own mounts", root + procfs + workspace + data + overlaid + bind + strings.Replace(data, " /data", " /workspace/src/var/merged/data", 1), ""},
		{"others beside", root + procfs + workspace + data + overlaid + device + bind + hosts, ""},
		{"one is missing", root + workspace + data + bind, "nothing is mounted at /shared"},
		{"one is elsewhere", root + workspace + strings.Replace(data, "/data/with\\040space", "/etc", 1) + overlaid + bind, "nothing is mounted at /data/with space"},
		{"one is elsewhere, too", root + workspace + data + strings.Replace(data, "/data/with\\040space", "/etc", 1) + overlaid + bind, "box-copy is mounted at /etc and belongs at"},
		{"another volume", root + strings.Replace(workspace, "/box/", "/box-copy/", 1) + data + overlaid + bind, "in place of box"},
		{"over another one", root + strings.Replace(workspace, "/box/", "/anonymous/", 1) + workspace + data + overlaid + bind, ""},
		{"below another one", root + workspace + strings.Replace(workspace, "/box/", "/anonymous/", 1) + data + overlaid + bind, "in place of box"},
		{"covered by its parent", root + bind + workspace + data + overlaid, "/workspace/src is covered by another one at /workspace"},
		{"covered by a mount of nobody's", root + workspace + data + overlaid + bind + strings.Replace(device, "/opt/driver", "/data", 1), "covered by another one at /data"},
	} {
		err := mountTable(proc.ParseMounts(tt.table)).checkConfig(string(config))
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s: %v, want %q", tt.what, err, tt.want)
		}
	}
	if table := mountTable(proc.ParseMounts(root + bind + workspace)); !table.readOnly("/workspace/src") || table.readOnly("/workspace") || table.readOnly("/elsewhere") {
		t.Error("readOnly is wrong")
	}
}
