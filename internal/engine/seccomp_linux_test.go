package engine_test

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"slices"
	"testing"

	"github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// The profile of sandboxes is the default of current engines, cut.
func TestTheProfileOfSandboxesIsTheDefaultCut(t *testing.T) {
	const file = "seccomp.json"
	want, err := json.Marshal(cut(seccomp.DefaultProfile()))
	if err != nil {
		t.Fatal(err)
	}
	want = append(want, '\n')
	if *update {
		if err := os.WriteFile(file, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(file); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s is not what this test makes of the default profile (%v): go test ./internal/engine -run %s -update", file, err, t.Name())
	}
}

// cut removes what no sandbox has use for from a profile.
func cut(p *seccomp.Seccomp) *seccomp.Seccomp {
	families := map[string][]uint64{"socket": {unix.AF_UNIX, unix.AF_INET, unix.AF_INET6, unix.AF_NETLINK}, "socketpair": {unix.AF_UNIX}}
	capabilities := []string{"CAP_SYS_CHROOT"} // of those that rules are for
	architectures := map[string]specs.Arch{"amd64": specs.ArchX86_64, "arm64": specs.ArchAARCH64}

	p.ArchMap = slices.DeleteFunc(p.ArchMap, func(a seccomp.Architecture) bool {
		return a.Arch != architectures["amd64"] && a.Arch != architectures["arm64"]
	})
	var rules []*seccomp.Syscall
	for _, rule := range p.Syscalls {
		if in := rule.Includes; in != nil && (!subset(in.Caps, capabilities) || len(in.Arches) > 0 && architectures[in.Arches[0]] == "" && !slices.Contains(in.Arches, "arm64")) {
			continue
		}
		rule.Names = slices.DeleteFunc(rule.Names, func(call string) bool { return families[call] != nil || call == "socketcall" })
		rule.Includes, rule.Excludes = without(rule.Includes), nil
		if len(rule.Names) > 0 {
			rules = append(rules, rule)
		}
	}
	for _, call := range slices.Sorted(maps.Keys(families)) {
		for _, family := range families[call] {
			rules = append(rules, &seccomp.Syscall{LinuxSyscall: specs.LinuxSyscall{
				Names: []string{call}, Action: specs.ActAllow, Args: []specs.LinuxSeccompArg{{Value: family, Op: specs.OpEqualTo}},
			}})
		}
	}
	// Without a rule of its own it would be allowed for socket and socketpair, by libseccomp, whatever their
	// families are. Programs that know ENOSYS go on with these calls themselves.
	enosys := uint(unix.ENOSYS)
	rules = append(rules, &seccomp.Syscall{LinuxSyscall: specs.LinuxSyscall{Names: []string{"socketcall"}, Action: specs.ActErrno, ErrnoRet: &enosys}})
	p.Syscalls = rules
	return p
}

// without is what is left of a condition when the sandbox's capabilities are known.
func without(f *seccomp.Filter) *seccomp.Filter {
	if f == nil || len(f.Arches) == 0 && f.MinKernel == nil {
		return nil
	}
	return &seccomp.Filter{Arches: f.Arches, MinKernel: f.MinKernel}
}

func subset(some, all []string) bool {
	return !slices.ContainsFunc(some, func(s string) bool { return !slices.Contains(all, s) })
}
