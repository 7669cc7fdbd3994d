package engine

import (
	"context"
	_ "embed"
	"encoding/json"
	"slices"
	"strings"
)

// sandboxSeccomp is the profile of sandboxes. A test makes it from the default of current engines.
//
//go:embed seccomp.json
var sandboxSeccomp string

// seccompOptions are profiles; empty is the engine's own.
type seccompOptions struct {
	sandbox string
	trusted map[Trusted]string // as values for ContainerSpec.SecurityOpt
}

// Trusted says what a container that runs our own programs may do beside what all of these may.
type Trusted struct {
	Sockets  Sockets
	Unmounts bool // take away mounts of its own
}

// Sockets are those that a container may open.
type Sockets int

// What a container may open: none, those of the family AF_UNIX, or all.
const (
	NoSockets Sockets = iota
	LocalSockets
	AllSockets
)

// SandboxSeccomp returns the seccomp profile of sandboxes, 7 kB. It is the default profile of current
// engines without the calls that take capabilities which no sandbox has, and with sockets of the families
// AF_UNIX, AF_INET, AF_INET6 and AF_NETLINK only: others have been the way to many holes of the
// kernel, and AF_VSOCK reaches the hypervisor past any network namespace. The call socketcall(2) of 32-bit
// x86 programs is denied (ENOSYS), since the family is in memory, which no filter reads.
//
// It is empty if the engine is configured with a profile of its own, which then holds, and if it has no
// seccomp. The result is cached.
func (e *Engine) SandboxSeccomp(ctx context.Context) (string, error) {
	o, err := e.seccompOptions(ctx)
	return o.sandbox, err
}

// TrustedSeccomp returns a value for ContainerSpec.SecurityOpt for a container that runs our
// own programs only. Like the engine's profile it denies changes of the machine, mounts and
// namespaces, and access to other processes; it also denies what may does not have. It allows the
// rest: the engine's profile lists some 350 calls for three architectures, and the runtime takes
// 10 to 20 ms of each start to compile it. It is empty if the engine has no seccomp. The result is
// cached.
func (e *Engine) TrustedSeccomp(ctx context.Context, may Trusted) (string, error) {
	o, err := e.seccompOptions(ctx)
	return o.trusted[may], err
}

func (e *Engine) seccompOptions(ctx context.Context) (o seccompOptions, err error) {
	if known := e.seccomp.Load(); known != nil {
		return *known, nil
	}
	info, err := e.Info(ctx)
	if err != nil {
		return o, err
	}
	return e.seccompOf(ctx, info)
}

// seccompOf is seccompOptions for an engine that is described already.
func (e *Engine) seccompOf(ctx context.Context, info Info) (o seccompOptions, err error) {
	own, err := e.ownSeccomp(ctx, info)
	if err != nil {
		return o, err
	}
	if info.hasSeccomp() && !own {
		o.sandbox = strings.TrimSpace(sandboxSeccomp)
	}
	if info.hasSeccomp() && !info.Podman { // which takes the path of a file of its machine, and no profile
		o.trusted = map[Trusted]string{}
		for _, sockets := range []Sockets{NoSockets, LocalSockets, AllSockets} {
			for _, unmounts := range []bool{false, true} {
				may := Trusted{sockets, unmounts}
				o.trusted[may] = "seccomp=" + trustedSeccomp(may)
			}
		}
	}
	e.seccomp.Store(&o)
	return o, nil
}

// hasSeccomp reports whether the engine filters the system calls of containers.
func (i Info) hasSeccomp() bool {
	return slices.ContainsFunc(i.SecurityOptions, func(s string) bool { return strings.HasPrefix(s, seccompName) })
}

// seccompName begins the security option that says which profile containers have by default.
const seccompName = "name=seccomp"

// ownSeccomp reports whether an engine was configured with a profile. Docker calls its own one default or,
// from 23 on, builtin; unconfined is none, which Docker Desktop has. Podman says that of any, and which one it is in its own API only.
func (e *Engine) ownSeccomp(ctx context.Context, info Info) (bool, error) {
	if !info.Podman {
		return !slices.ContainsFunc(info.SecurityOptions, func(s string) bool {
			return s == seccompName || slices.Contains([]string{"default", "builtin", "unconfined"}, strings.TrimPrefix(s, seccompName+",profile="))
		}), nil
	}
	var podman struct {
		Host struct {
			Security struct {
				SeccompProfilePath string `json:"seccompProfilePath"`
			} `json:"security"`
		} `json:"host"`
	}
	if err := e.fail(ctx, e.get(ctx, "../v4.0.0/libpod/info", &podman)); err != nil {
		return false, err
	}
	const packaged = "/usr/share/containers/seccomp.json"
	at := podman.Host.Security.SeccompProfilePath
	return at != "" && at != packaged, nil
}

// trustedSeccomp returns a profile for a container that may do this. It names no architecture, which
// means the machine's own: a system call of another one kills the program.
func trustedSeccomp(may Trusted) string {
	const errnoENOSYS = 38
	type arg struct {
		Index    uint   `json:"index"`
		Value    uint64 `json:"value"`
		ValueTwo uint64 `json:"valueTwo"`
		Op       string `json:"op"`
	}
	type rule struct {
		Names    []string `json:"names"`
		Action   string   `json:"action"`
		ErrnoRet *uint    `json:"errnoRet,omitempty"`
		Args     []arg    `json:"args,omitempty"`
	}
	const deny = "SCMP_ACT_ERRNO"
	enosys := uint(errnoENOSYS)
	rules := []rule{
		{Names: trustedDenied, Action: deny},
		// Its flags are in memory, which no filter reads. Programs go on with clone.
		{Names: []string{"clone3"}, Action: deny, ErrnoRet: &enosys},
	}
	for _, flag := range namespaceFlags {
		rules = append(rules, rule{Names: []string{"clone"}, Action: deny, Args: []arg{{Value: flag, ValueTwo: flag, Op: "SCMP_CMP_MASKED_EQ"}}})
	}
	create := rule{Names: []string{"socket", "socketpair"}, Action: deny}
	if !may.Unmounts {
		rules = append(rules, rule{Names: []string{"umount2"}, Action: deny})
	}
	switch may.Sockets {
	case LocalSockets:
		const afUnix = 1
		create.Args = []arg{{Value: afUnix, Op: "SCMP_CMP_NE"}}
		fallthrough
	case NoSockets:
		rules = append(rules, create)
	}
	text, err := json.Marshal(map[string]any{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": rules})
	if err != nil {
		panic(err) // of constants
	}
	return string(text)
}

// namespaceFlags are the flags of clone(2) for mount, cgroup, UTS, IPC, user, PID and network
// namespaces.
var namespaceFlags = []uint64{0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000}

var trustedDenied = []string{
	"acct", "add_key", "bpf", "clock_adjtime", "clock_settime", "delete_module", "finit_module", "fsconfig", "fsmount", "fsopen", "fspick",
	"init_module", "io_uring_enter", "io_uring_register", "io_uring_setup", "ioperm", "iopl", "kcmp", "kexec_file_load", "kexec_load", "keyctl",
	"lookup_dcookie", "mount", "mount_setattr", "move_mount", "move_pages", "name_to_handle_at", "open_by_handle_at", "open_tree",
	"perf_event_open", "personality", "pivot_root", "process_madvise", "process_vm_readv", "process_vm_writev", "ptrace", "quotactl", "reboot",
	"request_key", "setdomainname", "sethostname", "setns", "settimeofday", "swapoff", "swapon", "unshare", "userfaultfd", "vhangup",
}
