//go:build linux

package proc

import (
	"os"
	"path/filepath"
	"testing"
)

func TestOOMKillsAreFoundInBothVersionsOfCgroups(t *testing.T) {
	t.Parallel()
	const (
		v1 = "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"
		v2 = "low 0\nhigh 0\nmax 12\noom 5\noom_kill 3\noom_group_kill 7\n"
	)
	for name, tt := range map[string]struct {
		own   string            // /proc/self/cgroup
		files map[string]string // below /sys/fs/cgroup
		want  uint64
	}{
		"1, mounted from the container's own":  {"11:cpu,cpuacct:/docker/x\n5:memory:/docker/x\n0::/docker/x\n", map[string]string{"memory/memory.oom_control": v1}, 3},
		"1, mounted from the machine's root":   {"5:memory:/docker/x\n", map[string]string{"memory/memory.oom_control": "oom_kill 900\n", "memory/docker/x/memory.oom_control": v1}, 3},
		"1, memory beside another controller":  {"5:hugetlb,memory:/\n", map[string]string{"memory/memory.oom_control": v1}, 3},
		"2, with a namespace":                  {"0::/\n", map[string]string{"memory.events": v2}, 3},
		"2, without one":                       {"0::/system.slice/docker-x.scope\n", map[string]string{"system.slice/docker-x.scope/memory.events": v2}, 3},
		"both, with memory in 1":               {"0::/x\n5:memory:/x\n", map[string]string{"memory/x/memory.oom_control": v1}, 3},
		"no controller of memory":              {"0::/\n5:cpu:/\n", map[string]string{"cpu/memory.events": v2}, 0},
		"a kernel without the counter":         {"5:memory:/\n", map[string]string{"memory/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\n"}, 0},
		"no cgroups at all":                    {"", nil, 0},
		"something else in the file":           {"0::/\n", map[string]string{"memory.events": "oom_kill many\n"}, 0},
		"a path that leads out of the mount":   {"0::/../..\n", map[string]string{"memory.events": v2}, 3},
		"nothing mounted, as without /sys/fs/": {"5:memory:/docker/x\n0::/docker/x\n", nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			for file, text := range tt.files {
				file = filepath.Join(root, file)
				if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			kills := findOOMKills(root, []byte(tt.own))
			if kills.file != nil {
				defer kills.file.Close()
			}
			if got := kills.count(); got != tt.want {
				t.Errorf("count = %d, want %d", got, tt.want)
			}
		})
	}
}

func TestOOMKillsAreReadAnew(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(root, "memory.events"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("oom_kill 1\n")
	kills := findOOMKills(root, []byte("0::/\n"))
	defer kills.file.Close()
	for _, want := range []uint64{1, 22} {
		if got := kills.count(); got != want {
			t.Errorf("count = %d, want %d", got, want)
		}
		write("oom 1\noom_kill 22\n")
	}
}
