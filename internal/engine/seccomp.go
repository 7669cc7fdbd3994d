package engine

import (
	"context"
	"slices"
	"strconv"
	"strings"
)

// familiesRefused is the first API version whose engines refuse AF_VSOCK by default: 23.
const familiesRefused = 42

// seccompOptions are values for ContainerSpec.SecurityOpt; empty is the engine's choice.
type seccompOptions struct{ latest, trusted string }

// SeccompOption returns what to give as one of ContainerSpec.SecurityOpt so that a
// container can't make sockets of the family AF_VSOCK, which lead to the hypervisor and
// which no network namespace holds. It is the default profile of the engines of today,
// about 14 kB. It is empty, and the engine's own profile the best there is, where that
// refuses them already, where somebody chose a profile for the engine, and where it has
// no seccomp. The engine is asked once.
func (e *Engine) SeccompOption(ctx context.Context) (string, error) {
	minor, ok := strings.CutPrefix(e.APIVersion(), "1.")
	if n, err := strconv.Atoi(minor); !ok || err == nil && n >= familiesRefused {
		return "", nil
	}
	o, err := e.seccompOptions(ctx)
	return o.latest, err
}

// TrustedSeccomp returns what to give as one of ContainerSpec.SecurityOpt to a container
// that runs programs of ours alone. What they never do is refused, as by the engine's own
// profile: changes of the machine, of mounts and namespaces, a look into other processes.
// The rest is allowed, where that profile lists some 350 calls for three architectures,
// which takes the runtime 10 to 20 ms of each start to compile. It is empty where the
// engine has no seccomp. The engine is asked once.
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

// trustedSeccomp has no architecture, which is the machine's own: calls of any other end
// the program.
const trustedSeccomp = `{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"action":"SCMP_ACT_ERRNO","names":[` +
	`"acct","add_key","bpf","clock_adjtime","clock_settime","delete_module","finit_module","fsconfig","fsmount","fsopen","fspick",` +
	`"init_module","io_uring_enter","io_uring_register","io_uring_setup","ioperm","iopl","kcmp","kexec_file_load","kexec_load","keyctl",` +
	`"lookup_dcookie","mount","mount_setattr","move_mount","move_pages","name_to_handle_at","open_by_handle_at","open_tree",` +
	`"perf_event_open","personality","pivot_root","process_madvise","process_vm_readv","process_vm_writev","ptrace","quotactl","reboot",` +
	`"request_key","setdomainname","sethostname","setns","settimeofday","swapoff","swapon","umount2","unshare","userfaultfd","vhangup"]}]}`
