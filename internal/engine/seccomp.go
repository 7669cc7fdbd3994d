package engine

import (
	"context"
	"slices"
	"strconv"
	"strings"
)

// vsockDenied is the first minor API version whose engines (23) deny AF_VSOCK by default.
const vsockDenied = 42

// seccompOptions are values for ContainerSpec.SecurityOpt; empty is the engine's profile.
type seccompOptions struct{ latest, trusted string }

// SeccompOption returns a value for ContainerSpec.SecurityOpt that denies sockets of the
// family AF_VSOCK, which reach the hypervisor past any network namespace. It is the default
// profile of current engines, about 14 kB. It is empty, for the engine's own profile, if that
// denies them already, if the engine is configured with a profile, or if it has no seccomp.
// The result is cached.
func (e *Engine) SeccompOption(ctx context.Context) (string, error) {
	minor, ok := strings.CutPrefix(e.APIVersion(), "1.")
	if n, err := strconv.Atoi(minor); !ok || err == nil && n >= vsockDenied {
		return "", nil
	}
	o, err := e.seccompOptions(ctx)
	return o.latest, err
}

// TrustedSeccomp returns a value for ContainerSpec.SecurityOpt for a container that runs our
// own programs only. Like the engine's profile it denies changes of the machine, mounts and
// namespaces, and access to other processes. It allows the rest: the engine's profile lists
// some 350 calls for three architectures, and the runtime takes 10 to 20 ms of each start to
// compile it. It is empty if the engine has no seccomp. The result is cached.
func (e *Engine) TrustedSeccomp(ctx context.Context) (string, error) {
	o, err := e.seccompOptions(ctx)
	return o.trusted, err
}

func (e *Engine) seccompOptions(ctx context.Context) (o seccompOptions, err error) {
	if known := e.seccomp.Load(); known != nil {
		return *known, nil
	}
	info, err := e.Info(ctx)
	if err != nil {
		return o, err
	}
	if slices.ContainsFunc(info.SecurityOptions, func(s string) bool { return strings.HasPrefix(s, "name=seccomp") }) {
		o.trusted = "seccomp=" + trustedSeccomp
	}
	if slices.ContainsFunc(info.SecurityOptions, func(s string) bool { return s == "name=seccomp,profile=default" || s == "name=seccomp,profile=builtin" }) {
		if o.latest, err = defaultSeccomp(); err != nil {
			return o, err
		}
	}
	e.seccomp.Store(&o)
	return o, nil
}

// trustedSeccomp names no architecture, which means the machine's own: a system call of
// another one kills the program.
const trustedSeccomp = `{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"action":"SCMP_ACT_ERRNO","names":[` +
	`"acct","add_key","bpf","clock_adjtime","clock_settime","delete_module","finit_module","fsconfig","fsmount","fsopen","fspick",` +
	`"init_module","io_uring_enter","io_uring_register","io_uring_setup","ioperm","iopl","kcmp","kexec_file_load","kexec_load","keyctl",` +
	`"lookup_dcookie","mount","mount_setattr","move_mount","move_pages","name_to_handle_at","open_by_handle_at","open_tree",` +
	`"perf_event_open","personality","pivot_root","process_madvise","process_vm_readv","process_vm_writev","ptrace","quotactl","reboot",` +
	`"request_key","setdomainname","sethostname","setns","settimeofday","swapoff","swapon","umount2","unshare","userfaultfd","vhangup"]}]}`
