package sandbox

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"path"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/seed-1a2d6d8f/sandbox/internal/errdefs"
	"github.com/seed-1a2d6d8f/sandbox/internal/lifecycle"
	"github.com/seed-1a2d6d8f/sandbox/internal/machine"
	"github.com/seed-1a2d6d8f/sandbox/internal/plan"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
)

// Defaults, each with the option that changes it.
const (
	// DefaultImage, node:20-bookworm, is the image without [WithImage] or [WithRuntime].
	DefaultImage = plan.DefaultImage
	// DefaultVCPUs, 1, is the CPU limit without [WithVCPUs].
	DefaultVCPUs = plan.DefaultVCPUs
	// MemoryPerVCPU, 2048 MiB in bytes, is the memory limit for each virtual CPU without
	// [WithMemory].
	MemoryPerVCPU int64 = plan.MemoryPerVCPU
	// DefaultStopTimeout, 30 s, is the time between SIGTERM and SIGKILL without
	// [WithStopTimeout].
	DefaultStopTimeout = plan.DefaultStopTimeout
	// DefaultPidsLimit, 4,096, bounds the processes and threads of a sandbox without
	// [WithPidsLimit].
	DefaultPidsLimit = plan.DefaultPidsLimit
	// Workspace, /workspace, is where the workspace volume is mounted, and the working
	// directory without [WithWorkdir].
	Workspace = record.Workspace

	maxVCPUs   = 1 << 20 // more would overflow the memory limit
	minStorage = 1 << 20 // less leaves no room for the engine's own directories
	minPids    = 32      // PID 1 and two servers have about 24 threads
	maxPids    = 4 << 20 // the kernel's bound of process IDs

	maxStopTimeout = 100 * 365 * 24 * time.Hour // what is added to it does not overflow
)

// A CreateOption configures [Create] and [GetOrCreate]. Options have no side effects and
// may be given in any order; of two that set the same thing the later one wins. All are
// validated before anything is created, and the error lists all problems.
type CreateOption interface{ applyCreate(*settings) }

// A GetOption configures [Get].
type GetOption interface{ applyGet(*settings) }

// A ForkOption configures [Fork] and [ForkN].
type ForkOption interface{ applyFork(*settings) }

// A MakeOption configures every call that creates a sandbox.
type MakeOption interface {
	CreateOption
	ForkOption
}

// A LifecycleOption configures the calls that return a handle: those that create a
// sandbox, and [Get].
type LifecycleOption interface {
	CreateOption
	ForkOption
	GetOption
}

// An UpdateOption configures [Sandbox.Update].
type UpdateOption interface{ applyUpdate(*settings) }

// A ChangeOption configures both the creation of a sandbox and [Sandbox.Update].
type ChangeOption interface {
	CreateOption
	ForkOption
	UpdateOption
}

// A PoolOption configures [Pool.Create].
type PoolOption interface{ applyPool(*settings) }

// A LiveOption is a [ChangeOption] that applies to a running sandbox at once, so that [Pool.Create]
// accepts it, too.
type LiveOption interface {
	ChangeOption
	PoolOption
}

// A NameOption is a [MakeOption] that [Pool.Create] accepts, too.
type NameOption interface {
	MakeOption
	PoolOption
}

// A RemoveOption takes something away from the settings that a sandbox has: in
// [Sandbox.Update], or in those that a fork gets from its source. There is nothing to take
// away from a new sandbox, so [Create] does not accept it.
type RemoveOption interface {
	ForkOption
	UpdateOption
}

// WithName names the sandbox, so that [Get] finds it, and makes it persistent unless
// [WithPersistent] says otherwise. A name has 1 to 63 characters of a-z, 0-9, _, . and -,
// and starts with a letter or a digit. It is unique on an engine. Default: the sandbox's
// ID.
func WithName(name string) NameOption {
	return option{apply: func(s *settings) {
		if name == "" {
			s.problem("WithName: the name is empty; omit the option to generate one")
		}
		s.Name = name
	}}
}

// WithID sets the sandbox's ID, which names its workspace volume, agent-sandbox-<id>. The
// rule for names applies. With the ID of a deleted sandbox the new sandbox adopts the preserved
// workspace, and the preserved volumes that both images declare.
// Default: 12 random base32 characters.
func WithID(id string) MakeOption {
	return option{apply: func(s *settings) {
		if id == "" {
			s.problem("WithID: the ID is empty; omit the option to generate one")
		}
		s.ID = id
	}}
}

// WithImage sets the image. The engine pulls it if it does not have it, or has it for another platform
// (see [WithEmulation]). Any Linux image works; it needs no shell. Default [DefaultImage]. It can't be
// combined with [WithRuntime]. Files that the image has at /workspace are copied into the new workspace,
// with their owners and permissions, unless the workspace has a [Source] or [WithID] adopts it. Images
// that this package makes for itself, such as the images of snapshots, are refused: see [FromSnapshot].
//
// [Fork] accepts it if the source has no files of its own outside of volumes.
func WithImage(ref string) MakeOption {
	return option{plan.Image, func(s *settings) {
		if ref == "" {
			s.problem("WithImage: the image is empty")
		}
		s.Image = ref
	}}
}

// WithEmulation accepts an image for another platform than the engine's, for a machine that
// emulates it, such as Docker Desktop's. Default: such an image is pulled for the engine's
// platform, and if that is not possible the call is [ErrUnsupported].
func WithEmulation() CreateOption {
	return option{apply: func(s *settings) { s.Emulated = true }}
}

// WithRuntime sets the image by the identifier of a runtime: "node20", "node22", "node24",
// "python3.12", "python3.13", "go1.26" or "debian", which are Docker's official images on
// Debian 12, or one of [WithRuntimes]. It can't be combined with [WithImage].
func WithRuntime(id string) MakeOption {
	return option{plan.Image, func(s *settings) {
		if id == "" {
			s.problem("WithRuntime: the identifier is empty")
		}
		s.Runtime = id
	}}
}

// WithEnv adds environment variables, in UTF-8, for the main process and every command. They
// override the image's; [Cmd.Env] overrides them, and takes other bytes, too. Anyone who may
// inspect the container on the engine can read them.
func WithEnv(env map[string]string) LiveOption {
	env = maps.Clone(env)
	return option{plan.Env, func(s *settings) {
		if s.Env == nil {
			s.Env = map[string]string{}
		}
		maps.Copy(s.Env, env)
	}}
}

// WithoutEnv takes variables of [WithEnv] away. A variable that the image has too gets the image's
// value again. A variable that is not set is no error. The value can be read in the container
// until the next session.
func WithoutEnv(keys ...string) RemoveOption {
	keys = slices.Clone(keys)
	return option{plan.Removed, func(s *settings) { s.Without.Env = append(s.Without.Env, keys...) }}
}

// WithoutTag takes tags away. A tag that the sandbox does not have is no error.
func WithoutTag(keys ...string) RemoveOption {
	keys = slices.Clone(keys)
	return option{plan.Removed, func(s *settings) { s.Without.Tags = append(s.Without.Tags, keys...) }}
}

// WithoutMount takes the mounts at these targets away. Their volumes are preserved, those that were
// created for the sandbox until its other volumes are deleted. A target without a mount is no error.
func WithoutMount(targets ...string) RemoveOption {
	targets = slices.Clone(targets)
	return option{plan.Removed, func(s *settings) { s.Without.Mounts = append(s.Without.Mounts, targets...) }}
}

// WithTags adds up to 5 key-value pairs, by which [List] finds the sandbox. Keys are
// not empty; keys and values are any UTF-8.
func WithTags(tags map[string]string) LiveOption {
	tags = maps.Clone(tags)
	return option{plan.Tags, func(s *settings) {
		if s.Tags == nil {
			s.Tags = map[string]string{}
		}
		maps.Copy(s.Tags, tags)
	}}
}

// WithPorts publishes TCP ports of the sandbox on 127.0.0.1 of the engine's machine, at
// most 4 unless [Limits] says otherwise; 15001 and 15053 are PID 1's own. Each session publishes them on new free ports,
// which [Sandbox.Port] returns. Servers inside must listen on all addresses or the
// container's own, not on localhost alone; [Sandbox.DialContext] reaches those too,
// without published ports.
func WithPorts(ports ...int) ChangeOption {
	ports = slices.Clone(ports)
	return option{plan.Ports, func(s *settings) { s.Ports = ports }}
}

// WithVCPUs limits the sandbox to n CPUs, which may be a fraction, and its memory to 2048
// MiB for each unless [WithMemory] says otherwise. Default 1. More CPUs than the
// engine's machine has are [ErrInvalidArgument]. Some engines can't limit CPUs, see [Support.Limits]:
// there the option is [ErrUnsupported], and a sandbox without it has no limit.
func WithVCPUs[N int | float64](n N) LiveOption {
	return option{plan.CPUs, func(s *settings) {
		s.VCPUs = float64(n)
		if !(s.VCPUs >= 0.01 && s.VCPUs <= maxVCPUs) { // also NaN
			s.problem("WithVCPUs: %v CPUs: use 0.01 to %d", n, maxVCPUs)
			s.VCPUs = 1
		}
	}}
}

// WithMemory limits the sandbox's memory, in bytes, at least 24 MiB, which a session takes where the
// kernel gives programs huge pages unasked, as Debian's does. There is no swap in addition. Default
// 2048 MiB for each virtual CPU.
func WithMemory(bytes int64) LiveOption {
	return option{plan.Memory, func(s *settings) {
		s.Memory = bytes
		if bytes < plan.MinMemory {
			s.problem("WithMemory: %d bytes: use at least %d", bytes, plan.MinMemory)
		}
	}}
}

// WithPidsLimit limits how many processes and threads the sandbox has at once, including about
// 20 of the guest's own; from 32 to 4,194,304. Default [DefaultPidsLimit].
func WithPidsLimit(n int) MakeOption {
	return option{apply: func(s *settings) {
		if n < minPids || n > maxPids {
			s.problem("WithPidsLimit: %d: use %d to %d", n, minPids, maxPids)
		}
		s.PidsLimit = int64(n)
	}}
}

// WithOCIRuntime runs the sandbox with another container runtime of the engine, such as
// "runsc" (gVisor), see [Health.Runtimes]. If the engine does not have it the error is
// [ErrUnsupported]. Default: the engine's default.
//
// A runtime other than runc is tried in a container of some tenths of a second, and the result
// used for 10 minutes. A runtime without nftables, such as gVisor's, takes [DenyAll] and no [WithPorts]:
// the sandbox then has no network at all, and [Sandbox.DialContext] still reaches its servers. Other
// policies are [ErrUnsupported], and so is a runtime that loses files outside of volumes at the
// end of a session, as gVisor's does without its flag --overlay2=none.
func WithOCIRuntime(name string) MakeOption {
	return option{apply: func(s *settings) {
		if name == "" {
			s.problem("WithOCIRuntime: the name is empty; omit the option for the engine's default")
		}
		s.OCIRuntime = name
	}}
}

// WithStorageSize limits what the sandbox writes outside of its volumes, in bytes: its
// container's own layer, at least 1 MiB. The workspace and other volumes are not limited.
// The engine's storage driver must have quotas: overlay2, on XFS mounted with pquota, btrfs
// or zfs. With another driver the error is [ErrUnsupported], and without pquota it is the engine's
// own. Default: no limit but the engine's disk.
func WithStorageSize(bytes int64) MakeOption {
	return option{apply: func(s *settings) {
		if bytes < minStorage {
			s.problem("WithStorageSize: %d bytes: use at least %d", bytes, minStorage)
		}
		s.StorageBytes = bytes
	}}
}

// WithGPUs gives the sandbox GPUs of the engine's machine: "all" alone, the indexes or UUIDs of NVIDIA's,
// or names of the Container Device Interface such as "nvidia.com/gpu=0", which take Docker 25. Whoever
// is in the sandbox then talks to the GPU's driver, which is part of the machine's kernel. An engine
// without them, or without the vendor's container toolkit, is an [ErrUnsupported]. Default: none.
func WithGPUs(devices ...string) MakeOption {
	return option{apply: func(s *settings) {
		if err := plan.CheckGPUs(devices); err != nil {
			s.problem("WithGPUs: %v", err)
		}
		s.GPUs = slices.Clone(devices)
	}}
}

// WithNewPrivileges lets programs give commands of users other than root more privileges:
// sudo, su and other setuid programs, and those with file capabilities. Default: they can't
// (no_new_privs of the Linux kernel), so that a user of [WithUser] or [Cmd.User] is not
// root inside.
func WithNewPrivileges() MakeOption {
	return option{apply: func(s *settings) { s.NewPrivileges = true }}
}

// WithUser sets the user of commands and the main process: a name or number, optionally
// with a group after a colon, looked up inside the sandbox. The user owns a new
// workspace, unless the image has files there. A name that the sandbox does not have fails the call, unless [OnCreate] is
// given, which may create the user; a number, at most 2147483647, is an ID and need not be listed. Programs such as sudo
// don't work for a user other than root, unless [WithNewPrivileges] is given. Default: the
// image's user, otherwise root.
func WithUser(user string) MakeOption {
	return option{apply: func(s *settings) {
		if user == "" || strings.ContainsAny(user, "\x00\n") || strings.Count(user, ":") > 1 {
			s.problem("WithUser: %q is not user or user:group", user)
		} else if !utf8.ValidString(user) {
			s.problem("WithUser: %q: the engine takes UTF-8 alone", user)
		}
		s.User = user
	}}
}

// WithWorkdir sets the working directory of commands without [Cmd.Dir]. It is an absolute
// path in UTF-8 and is created if it does not exist. Default /workspace.
func WithWorkdir(dir string) MakeOption {
	return option{apply: func(s *settings) {
		if !path.IsAbs(dir) || strings.ContainsRune(dir, 0) {
			s.problem("WithWorkdir: %q is not an absolute path", dir)
		} else if !utf8.ValidString(dir) {
			s.problem("WithWorkdir: %q is not UTF-8", dir)
		} else if err := plan.CheckLength(path.Clean(dir)); err != nil {
			s.problem("WithWorkdir: %v", err)
		}
		s.Workdir = path.Clean(dir)
	}}
}

// WithCommand sets the main process, which each session starts. Its output is the
// sandbox's log. The session continues after the main process exits. The first argument
// is the program, looked up in PATH; no shell is involved. If it can't be started
// [Create] fails.
func WithCommand(argv ...string) ChangeOption {
	argv = slices.Clone(argv)
	return option{plan.Command, func(s *settings) {
		if len(argv) == 0 || argv[0] == "" {
			s.problem("WithCommand: there is no program")
		}
		for _, a := range argv {
			if strings.ContainsRune(a, 0) {
				s.problem("WithCommand: %q contains a NUL byte", a)
			}
		}
		s.Command = argv
	}}
}

// WithPersistent decides how long the sandbox's files are kept. A persistent sandbox
// keeps them until [Delete]; that is the default with [WithName]. A sandbox that is not
// persistent exists as long as the handle that created it: on [Sandbox.Close], or 30 s
// after the handle's process died, the session ends and everything that the sandbox owns
// is removed. If its machine or network failed, and the engine does not notice that, it takes up to 8 min.
//
// [Sandbox.Update] changes it: a sandbox that is no longer persistent then exists as long as
// the handle of that call.
func WithPersistent(persistent bool) LiveOption {
	return option{plan.Persistence, func(s *settings) { s.Persistent = &persistent }}
}

// WithTimeout ends each session gracefully d after its start, even if the program that
// started it has ended. The sandbox is stopped; it is deleted only if it is not
// persistent. 0, the default, is no timeout. d is in whole milliseconds; a fraction is an
// error.
func WithTimeout(d time.Duration) LiveOption {
	return option{plan.Timeout, func(s *settings) {
		if d < 0 || d%time.Millisecond != 0 {
			s.problem("WithTimeout: %v is not a whole number of milliseconds from 0 up", d)
		}
		s.Timeout = d
	}}
}

// WithIdleTimeout ends a session gracefully when nobody has used it for d, even if the program
// that started it has ended. The sandbox is stopped, as by [WithTimeout], and the next use resumes
// it if it is persistent. 0, the default, is no idle timeout. d is in whole milliseconds; a
// fraction is an error. [Sandbox.Update] changes it in the running session at once, where the time
// counts anew; a paused session gets it when a handle next connects to it.
//
// Uses are commands, SSH sessions and connections of [Sandbox.DialContext] for as long as they
// last, calls that read or write files, and connections from outside to published ports. A
// detached command is a use, too, unless [IgnoreDetached] is given. An open handle is no use, and neither
// are its lease, [Sandbox.Status] and the main process ([WithCommand]). After connections to
// published ports the session may end an eighth of d later. Time in which the session is paused
// or the engine's machine sleeps does not count, but for up to an eighth of d each time.
//
// A use that begins at the moment at which the session ends can fail with [ErrNotRunning], as with
// any end of a session. Root inside can pretend to use the session: what bounds hostile code is
// WithTimeout.
func WithIdleTimeout(d time.Duration) LiveOption {
	return option{plan.Idle, func(s *settings) {
		if d < 0 || d%time.Millisecond != 0 {
			s.problem("WithIdleTimeout: %v is not a whole number of milliseconds from 0 up", d)
		}
		s.Idle.TimeoutMS = d.Milliseconds()
	}}
}

// IgnoreDetached lets the idle timeout end a session while detached commands run. A client that sends
// input to such a command, or reads its output, uses the session all the same. It needs [WithIdleTimeout] in
// the same call, which otherwise lets detached commands keep the session.
func IgnoreDetached() LiveOption {
	return option{apply: func(s *settings) { s.Idle.IgnoreDetached = true }}
}

// WithStopTimeout sets the time between SIGTERM and SIGKILL at the end of a session, in
// whole seconds. Default 30 s. A longer time than 100 years is 100 years.
func WithStopTimeout(d time.Duration) LiveOption {
	return option{plan.StopTimeout, func(s *settings) {
		if d < time.Second || d%time.Second != 0 {
			s.problem("WithStopTimeout: %v is not a whole number of seconds from 1 up", d)
		}
		s.StopTimeout = min(d, maxStopTimeout)
	}}
}

// OnCreate calls fn once, with the new, running sandbox, before [Create] or [GetOrCreate]
// returns and before any other caller gets the sandbox. If fn fails or panics the sandbox
// is removed. Several functions are called in the order given.
func OnCreate(fn func(context.Context, *Sandbox) error) MakeOption {
	return option{apply: func(s *settings) {
		if fn != nil {
			s.onCreate = append(s.onCreate, hook(fn))
		}
	}}
}

// OnResume calls fn each time this handle starts a session of a stopped sandbox: in [Get], in
// [Sandbox.Start] or on a first command. fn runs on the goroutine of that call and with its
// context, may use the sandbox, and may close or delete it. Calls on the handle that began
// before fn was called and use the new session wait for fn; later ones do not, so fn may use
// any context. If fn fails they fail; the session continues. If the context ends before fn
// has returned, the next call on the handle calls fn.
func OnResume(fn func(context.Context, *Sandbox) error) LifecycleOption {
	return option{apply: func(s *settings) {
		if fn != nil {
			s.onResume = append(s.onResume, hook(fn))
		}
	}}
}

// WithoutResume makes [Get] leave a stopped sandbox stopped.
func WithoutResume() GetOption {
	return option{apply: func(s *settings) { s.withoutResume = true }}
}

// NeverResume makes [Get] leave a stopped sandbox stopped, as [WithoutResume] does, and the
// handle too: a call on it that needs a session, or would start one, fails with
// [ErrNotRunning] if there is none.
func NeverResume() GetOption {
	return option{apply: func(s *settings) { s.neverResume = true }}
}

// WithoutStop makes [Sandbox.Update] return an error if it can't reach the running session
// to apply a network policy. Default: it records the policy and ends the session.
func WithoutStop() UpdateOption {
	return option{apply: func(s *settings) { s.KeepSession = true }}
}

// WithProgress calls fn with the steps of a long call, such as pulling an image. It is
// called from another goroutine, one call at a time, and not after the call has returned.
// fn must not block.
func WithProgress(fn func(Progress)) LifecycleOption {
	return option{apply: func(s *settings) { s.progress = fn }}
}

// Progress is one step of a long call.
type Progress struct {
	// Step is the current step: "image", "guest", "container", "copy", "source", "commit"
	// or "start"; "wait" while as many sandboxes are being created as [Limits].Creates
	// permits. "settings" names options that [GetOrCreate] does not apply.
	Step string `json:"step"`
	// Text is a detail for people; it may be empty.
	Text string `json:"text,omitempty"`
	// Current and Total count bytes. Total is 0 while it is unknown.
	Current int64 `json:"current,omitempty"`
	Total   int64 `json:"total,omitempty"`
	// Files counts the copied files, in the steps "copy" and "source".
	Files int64 `json:"files,omitempty"`
}

// settings collect what the options of one call set.
type settings struct {
	plan.Sandbox
	from          Source // of WithSource
	progress      func(Progress)
	onCreate      []lifecycle.Hook
	onResume      []lifecycle.Hook
	withoutResume bool
	neverResume   bool
}

func (c *Client) settings() *settings {
	s := &settings{}
	s.MaxPorts, s.Runtimes = c.limits.Ports, c.runtimes
	return s
}

// settingsOn returns the empty settings of a call on a handle.
func settingsOn(l *lifecycle.Client) *settings {
	s := &settings{}
	s.MaxPorts, s.Runtimes = l.MaxPorts, l.Runtimes
	return s
}

// problem records that an option is invalid.
func (s *settings) problem(format string, args ...any) {
	s.Problems = append(s.Problems, fmt.Errorf(format, args...))
}

// request returns the settings in the form that package lifecycle takes.
func (s *settings) request() *lifecycle.CreateOptions {
	return &lifecycle.CreateOptions{Plan: s.Sandbox, OnCreate: s.onCreate, OnResume: s.onResume, Report: newReporter(s.progress)}
}

func newReporter(fn func(Progress)) *machine.Reporter {
	if fn == nil {
		return &machine.Reporter{}
	}
	return machine.NewReporter(func(p machine.Progress) { fn(Progress(p)) })
}

// hook converts a function of the caller.
func hook(fn func(context.Context, *Sandbox) error) lifecycle.Hook {
	return func(ctx context.Context, h *lifecycle.Handle) error { return fn(ctx, newSandbox(h)) }
}

// option implements every option that sets something of a sandbox. The interface that a
// function returns it as decides which calls accept it.
type option struct {
	what  plan.Change // the setting that Update can change, or 0
	apply func(*settings)
}

func (o option) set(s *settings) {
	s.Given |= o.what
	o.apply(s)
}

func (o option) applyCreate(s *settings) { o.set(s) }
func (o option) applyGet(s *settings)    { o.set(s) }
func (o option) applyFork(s *settings)   { o.set(s) }
func (o option) applyUpdate(s *settings) { o.set(s) }
func (o option) applyPool(s *settings)   { o.set(s) }

// apply calls fn with each option that is not nil.
func apply[O any](opts []O, fn func(O)) {
	for _, o := range opts {
		if any(o) != nil {
			fn(o)
		}
	}
}

// checkName checks every name or ID that a caller passes. The Docker client cleans paths,
// so "../containers/x" would address an object of another kind.
func checkName(nameOrID string) error {
	if !record.ValidName(nameOrID) {
		return errdefs.Invalid("%q is not a sandbox's name or ID: use %s", nameOrID, record.NameRule)
	}
	return nil
}

// Settings are the settings of a sandbox as one struct, for programs that get them from flags, a
// file or a request, see [WithSettings], and that read them from [Info] and [Status]. A field that is
// nil, or false without being a pointer, is not set. The option of each field documents it.
//
// In JSON, durations are in milliseconds, with the names timeoutMs, idleTimeoutMs and stopTimeoutMs.
type Settings struct {
	// Those up to GPUs are fixed once the sandbox exists: [Sandbox.Update] refuses them.
	Name       *string `json:"name,omitempty"`       // [WithName]
	ID         *string `json:"id,omitempty"`         // [WithID]
	Image      *string `json:"image,omitempty"`      // [WithImage]
	Runtime    *string `json:"runtime,omitempty"`    // [WithRuntime]
	OCIRuntime *string `json:"ociRuntime,omitempty"` // [WithOCIRuntime]
	User       *string `json:"user,omitempty"`       // [WithUser]
	Workdir    *string `json:"workdir,omitempty"`    // [WithWorkdir]

	PidsLimit     *int   `json:"pidsLimit,omitempty"`     // [WithPidsLimit]
	StorageBytes  *int64 `json:"storageBytes,omitempty"`  // [WithStorageSize]
	NewPrivileges bool   `json:"newPrivileges,omitempty"` // [WithNewPrivileges]

	GPUs []string `json:"gpus,omitempty"` // [WithGPUs]

	VCPUs       *float64 `json:"vcpus,omitempty"`       // [WithVCPUs]
	MemoryBytes *int64   `json:"memoryBytes,omitempty"` // [WithMemory]

	Command []string          `json:"command,omitempty"` // [WithCommand]
	Env     map[string]string `json:"env,omitempty"`     // [WithEnv]
	Tags    map[string]string `json:"tags,omitempty"`    // [WithTags]
	Ports   []int             `json:"ports,omitempty"`   // [WithPorts]
	Mounts  []Mount           `json:"mounts,omitempty"`  // [WithMounts]

	Persistent     *bool          `json:"persistent,omitempty"`     // [WithPersistent]
	Timeout        *time.Duration `json:"-"`                        // [WithTimeout]
	IdleTimeout    *time.Duration `json:"-"`                        // [WithIdleTimeout]
	IgnoreDetached bool           `json:"ignoreDetached,omitempty"` // [IgnoreDetached]
	StopTimeout    *time.Duration `json:"-"`                        // [WithStopTimeout]
	Network        *NetworkPolicy `json:"network,omitempty"`        // [WithNetworkPolicy]
}

// WithSettings sets everything that is set in s, as the options of its fields do. In
// [Sandbox.Update] what can't be changed is an [ErrInvalidArgument] that names it, and so is in
// [Pool.Create] what a running sandbox can't get at once.
func WithSettings(s Settings) LiveOption {
	var o settingsOption
	fix(&o, "name", s.Name, WithName)
	fix(&o, "id", s.ID, WithID)
	fix(&o, "image", s.Image, WithImage)
	fix(&o, "runtime", s.Runtime, WithRuntime)
	fix(&o, "ociRuntime", s.OCIRuntime, WithOCIRuntime)
	fix(&o, "user", s.User, WithUser)
	fix(&o, "workdir", s.Workdir, WithWorkdir)
	fix(&o, "pidsLimit", s.PidsLimit, WithPidsLimit)
	fix(&o, "storageBytes", s.StorageBytes, WithStorageSize)
	if s.NewPrivileges {
		fix(&o, "newPrivileges", &s.NewPrivileges, func(bool) MakeOption { return WithNewPrivileges() })
	}
	if s.GPUs != nil {
		fix(&o, "gpus", &s.GPUs, func(devices []string) MakeOption { return WithGPUs(devices...) })
	}
	change(&o, s.VCPUs, WithVCPUs[float64])
	change(&o, s.MemoryBytes, WithMemory)
	changeList(&o, "command", s.Command, WithCommand)
	changeMap(&o, s.Env, WithEnv)
	changeMap(&o, s.Tags, WithTags)
	changeList(&o, "ports", s.Ports, WithPorts)
	changeList(&o, "mounts", s.Mounts, WithMounts)
	change(&o, s.Persistent, WithPersistent)
	change(&o, s.Timeout, WithTimeout)
	change(&o, s.IdleTimeout, WithIdleTimeout)
	if s.IgnoreDetached {
		o.changes = append(o.changes, IgnoreDetached())
	}
	change(&o, s.StopTimeout, WithStopTimeout)
	change(&o, s.Network, WithNetworkPolicy)
	return o
}

// CheckUpdate returns the [ErrInvalidArgument] of a [Sandbox.Update] with these settings, as far as
// it depends neither on the sandbox nor on the client.
func (s Settings) CheckUpdate() error {
	set := &settings{}
	set.MaxPorts = math.MaxInt
	WithSettings(s).applyUpdate(set)
	return fail("settings", "", set.CheckUpdate())
}

// CheckPool is [Settings.CheckUpdate] for [Pool.Create].
func (s Settings) CheckPool() error {
	set := &settings{}
	set.MaxPorts = math.MaxInt
	WithSettings(s).applyPool(set)
	return fail("settings", "", set.CheckUpdate())
}

// A settingsOption is several options.
type settingsOption struct {
	makes   []MakeOption
	fixed   []string // the fields that makes set, as they are in JSON
	changes []ChangeOption
	later   []string // the fields of changes that need another session
}

func fix[V any, O MakeOption](o *settingsOption, field string, v *V, option func(V) O) {
	if v != nil {
		o.makes, o.fixed = append(o.makes, option(*v)), append(o.fixed, field)
	}
}

func change[V any, O ChangeOption](o *settingsOption, v *V, option func(V) O) {
	if v != nil {
		o.changes = append(o.changes, option(*v))
	}
}

func changeList[V any](o *settingsOption, field string, v []V, option func(...V) ChangeOption) {
	if v != nil {
		o.changes, o.later = append(o.changes, option(v...)), append(o.later, field)
	}
}

func changeMap[O ChangeOption](o *settingsOption, v map[string]string, option func(map[string]string) O) {
	if v != nil {
		o.changes = append(o.changes, option(v))
	}
}

func (o settingsOption) applyCreate(s *settings) {
	apply(o.makes, func(o MakeOption) { o.applyCreate(s) })
	apply(o.changes, func(o ChangeOption) { o.applyCreate(s) })
}

func (o settingsOption) applyFork(s *settings) {
	apply(o.makes, func(o MakeOption) { o.applyFork(s) })
	apply(o.changes, func(o ChangeOption) { o.applyFork(s) })
}

func (o settingsOption) applyUpdate(s *settings) {
	if len(o.fixed) > 0 {
		s.problem("Update can't change %s", strings.Join(o.fixed, ", "))
	}
	apply(o.changes, func(o ChangeOption) { o.applyUpdate(s) })
}

func (o settingsOption) applyPool(s *settings) {
	fields := slices.DeleteFunc(slices.Concat(o.fixed, o.later), func(field string) bool { return field == "name" })
	if len(fields) > 0 {
		s.problem("a sandbox of a pool can't get %s any more", strings.Join(fields, ", "))
	}
	o.applyCreate(s)
}

// settingsOf converts the settings of a sandbox that exists.
func settingsOf(p *plan.Sandbox) Settings {
	return Settings{
		Runtime: known(p.Runtime), OCIRuntime: known(p.OCIRuntime), User: known(p.User), Workdir: known(p.Workdir),
		PidsLimit: known(int(p.PidsLimit)), StorageBytes: known(p.StorageBytes), NewPrivileges: p.NewPrivileges, GPUs: p.GPUs,
		VCPUs: known(p.VCPUs), MemoryBytes: known(p.Memory), Command: p.Command, Ports: p.Ports, Mounts: mountsOf(p.Mounts),
		Persistent: p.Persistent, Timeout: &p.Timeout, IdleTimeout: new(p.Idle.Timeout()), IgnoreDetached: p.Idle.IgnoreDetached, StopTimeout: &p.StopTimeout,
	}
}

// known returns nil for a zero value.
func known[V comparable](v V) *V {
	if v == *new(V) {
		return nil
	}
	return &v
}

// settingsJSON are Settings as they are in JSON.
type settingsJSON struct {
	plainSettings
	TimeoutMS     *int64 `json:"timeoutMs,omitempty"`
	IdleTimeoutMS *int64 `json:"idleTimeoutMs,omitempty"`
	StopTimeoutMS *int64 `json:"stopTimeoutMs,omitempty"`
}

type plainSettings Settings

// MarshalJSON encodes the settings with names in lower camel case.
func (s Settings) MarshalJSON() ([]byte, error) {
	ms := func(d *time.Duration) *int64 {
		if d == nil {
			return nil
		}
		return new(d.Milliseconds())
	}
	return json.Marshal(settingsJSON{plainSettings(s), ms(s.Timeout), ms(s.IdleTimeout), ms(s.StopTimeout)})
}

// UnmarshalJSON decodes what MarshalJSON has encoded.
func (s *Settings) UnmarshalJSON(b []byte) error {
	var got settingsJSON
	if err := json.Unmarshal(b, &got); err != nil {
		return err
	}
	*s = Settings(got.plainSettings)
	for _, d := range []struct {
		field string
		ms    *int64
		to    **time.Duration
	}{{"timeoutMs", got.TimeoutMS, &s.Timeout}, {"idleTimeoutMs", got.IdleTimeoutMS, &s.IdleTimeout}, {"stopTimeoutMs", got.StopTimeoutMS, &s.StopTimeout}} {
		if d.ms == nil {
			continue
		}
		const most = math.MaxInt64 / int64(time.Millisecond)
		if *d.ms > most || *d.ms < -most {
			return fmt.Errorf("%s=%d is too large", d.field, *d.ms)
		}
		*d.to = new(time.Duration(*d.ms) * time.Millisecond)
	}
	return nil
}
