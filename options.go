package sandbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
	"github.com/seed-1a2d6d8f/sandbox/internal/policy"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
)

// Defaults, each with the option that changes it.
const (
	// DefaultImage is what a sandbox is made from without [WithImage] or [WithRuntime].
	DefaultImage = "node:20-bookworm"
	// DefaultVCPUs is the CPU limit without [WithVCPUs].
	DefaultVCPUs = 1
	// MemoryPerVCPU is the memory, in bytes, that comes with each virtual CPU unless
	// [WithMemory] says otherwise: 2048 MiB.
	MemoryPerVCPU int64 = 2048 << 20
	// DefaultStopTimeout is what processes get between SIGTERM and SIGKILL without
	// [WithStopTimeout].
	DefaultStopTimeout = 30 * time.Second
	// DefaultPidsLimit is how many processes and threads a sandbox may have without
	// [WithPidsLimit].
	DefaultPidsLimit = 4096
	// Workspace is where the workspace volume is mounted, and where commands run
	// without [WithWorkdir].
	Workspace = "/workspace"

	maxTags     = 5
	maxPorts    = 4
	maxEnvValue = 128 << 10 // Linux' MAX_ARG_STRLEN: longer ones start nothing
	minMemory   = 6 << 20   // the engine's own lower bound
	maxVCPUs    = 1 << 20   // what comes with more would overflow
	minPids     = 16        // PID 1 and a server, with their threads
)

// runtimes are the identifiers WithRuntime knows.
var runtimes = map[string]string{"node20": "node:20-bookworm"}

// A CreateOption configures [Create] and [GetOrCreate]. Options are pure and may be
// given in any order; of two that set the same thing the later one wins. All are
// checked before anything happens, and every complaint is reported at once.
type CreateOption interface{ applyCreate(*settings) }

// A GetOption configures [Get].
type GetOption interface{ applyGet(*settings) }

// A ForkOption configures [Fork] and [ForkN].
type ForkOption interface{ applyFork(*settings) }

// A MakeOption configures every call that makes a sandbox.
type MakeOption interface {
	CreateOption
	ForkOption
}

// A LifecycleOption configures the calls that may resume a sandbox: making and
// getting one.
type LifecycleOption interface {
	CreateOption
	ForkOption
	GetOption
}

// A ProgressOption configures those calls and [Sandbox.Snapshot].
type ProgressOption interface {
	LifecycleOption
	SnapshotOption
}

// An UpdateOption configures [Sandbox.Update].
type UpdateOption interface{ applyUpdate(*settings) }

// A ChangeOption configures both creating a sandbox and changing it later, see
// [Sandbox.Update].
type ChangeOption interface {
	CreateOption
	ForkOption
	UpdateOption
}

// settings is what options add up to.
type settings struct {
	name, id       string
	image, runtime string
	user, workdir  string
	command        []string
	env            map[string]string
	tags           map[string]string
	ports          []int
	maxPorts       int // the client's limit; 0 is the default
	vcpus          float64
	memory         int64
	persistent     *bool
	pidsLimit      int64
	ociRuntime     string
	timeout        time.Duration
	stopTimeout    time.Duration
	network        policy.Policy
	secrets        []wire.Secret // what the policy's transforms set
	progress       func(Progress)
	mounts         []Mount
	source         Source
	origin         ancestor        // of a fork, or from a snapshot
	together       <-chan struct{} // closed when all that are made at once are there
	confirm        func(Plan) error
	onCreate       []hook
	onResume       []hook
	withoutResume  bool
	given          change  // what of it was set by an option that Update takes
	problems       []error // of options that can't even be stored
}

// change is a set of what Update can change.
type change int

const (
	changeNetwork change = 1 << (iota + 16)
)

const (
	changeTags change = 1 << iota
	changeCPUs
	changeMemory
	changeTimeout
	changeStopTimeout
	changeEnv
	changePorts
	changeMounts
	changeCommand
)

type hook = func(context.Context, *Sandbox) error

type createOption func(*settings)

func (o createOption) applyCreate(s *settings) { o(s) }

type makeOption func(*settings)

func (o makeOption) applyCreate(s *settings) { o(s) }
func (o makeOption) applyFork(s *settings)   { o(s) }

// changeOption is an option that Update takes, too: it has to tell what was set.
type changeOption struct {
	what  change
	apply func(*settings)
}

func (o changeOption) applyCreate(s *settings) { o.apply(s) }

func (o changeOption) applyFork(s *settings) { o.applyUpdate(s) }

func (o changeOption) applyUpdate(s *settings) {
	s.given |= o.what
	o.apply(s)
}

type getOption func(*settings)

func (o getOption) applyGet(s *settings) { o(s) }

type lifecycleOption func(*settings)

func (o lifecycleOption) applyCreate(s *settings) { o(s) }
func (o lifecycleOption) applyFork(s *settings)   { o(s) }
func (o lifecycleOption) applyGet(s *settings)    { o(s) }

type progressOption func(Progress)

func (o progressOption) applyCreate(s *settings)       { s.progress = o }
func (o progressOption) applyFork(s *settings)         { s.progress = o }
func (o progressOption) applyGet(s *settings)          { s.progress = o }
func (o progressOption) applySnapshot(s *snapshotting) { s.progress = o }

// WithName names the sandbox, so that others can [Get] it, and makes it persistent
// unless [WithPersistent] says otherwise. A name is 1 to 63 characters of a-z, 0-9,
// _, . and -, the first a letter or a digit, and belongs to one sandbox at a time on
// an engine. Without it the sandbox is named by its ID.
func WithName(name string) MakeOption {
	return makeOption(func(s *settings) {
		if name == "" {
			s.problems = append(s.problems, errors.New("WithName: the name is empty; leave the option out to have one made"))
		}
		s.name = name
	})
}

// WithID fixes the sandbox's ID, which names its workspace volume, agent-sandbox-<id>.
// It follows the rule of names. The ID of a deleted sandbox whose workspace was
// preserved adopts that workspace. Without it the ID is 12 random base32 characters.
func WithID(id string) MakeOption {
	return makeOption(func(s *settings) {
		if id == "" {
			s.problems = append(s.problems, errors.New("WithID: the ID is empty; leave the option out to have one made"))
		}
		s.id = id
	})
}

// WithImage sets the image, pulled when the engine does not have it. Any Linux image
// will do: it needs no shell. Default [DefaultImage]. Not together with [WithRuntime].
func WithImage(ref string) CreateOption {
	return createOption(func(s *settings) {
		if ref == "" {
			s.problems = append(s.problems, errors.New("WithImage: the image is empty"))
		}
		s.image = ref
	})
}

// WithRuntime sets the image by the identifier of a language runtime: "node20". Not
// together with [WithImage].
func WithRuntime(id string) CreateOption {
	return createOption(func(s *settings) {
		if id == "" {
			s.problems = append(s.problems, errors.New("WithRuntime: the identifier is empty"))
		}
		s.runtime = id
	})
}

// WithEnv adds environment variables that the main process and every command see.
// They override the image's and are overridden by [Cmd.Env]. Anyone who may inspect
// the container on the engine can read them.
func WithEnv(env map[string]string) ChangeOption {
	env = maps.Clone(env)
	return changeOption{changeEnv, func(s *settings) {
		if s.env == nil {
			s.env = map[string]string{}
		}
		maps.Copy(s.env, env)
	}}
}

// WithTags attaches up to 5 key-value pairs to find the sandbox by ([TagFilter]). Keys
// are not empty; keys and values are any UTF-8.
func WithTags(tags map[string]string) ChangeOption {
	tags = maps.Clone(tags)
	return changeOption{changeTags, func(s *settings) {
		if s.tags == nil {
			s.tags = map[string]string{}
		}
		maps.Copy(s.tags, tags)
	}}
}

// WithPorts publishes TCP ports of the sandbox on 127.0.0.1 of the engine's machine, at
// most 4 unless [Limits] says otherwise. Each gets a free port there, another one with
// each session: [Sandbox.Port] looks it up. What listens inside must do so on all
// addresses or the container's own, not on localhost alone; [Sandbox.DialContext]
// reaches that, too, and needs no published port.
func WithPorts(ports ...int) ChangeOption {
	ports = slices.Clone(ports)
	return changeOption{changePorts, func(s *settings) { s.ports = ports }}
}

// WithVCPUs limits the sandbox to n CPUs, which may be a fraction, and its memory to
// 2048 MiB for each unless [WithMemory] says otherwise. Default 1. More than the
// engine's machine has is refused by the engine.
func WithVCPUs[N int | float64](n N) ChangeOption {
	return changeOption{changeCPUs, func(s *settings) {
		s.vcpus = float64(n)
		if !(s.vcpus >= 0.01 && s.vcpus <= maxVCPUs) { // also NaN
			s.problems = append(s.problems, fmt.Errorf("WithVCPUs: %v CPUs; it takes 0.01 to %d", n, maxVCPUs))
			s.vcpus = 1
		}
	}}
}

// WithMemory limits the sandbox's memory, in bytes; no swap is added to it. At least
// 6 MiB. Default 2048 MiB for each virtual CPU.
func WithMemory(bytes int64) ChangeOption {
	return changeOption{changeMemory, func(s *settings) {
		s.memory = bytes
		if bytes < minMemory {
			s.problems = append(s.problems, fmt.Errorf("WithMemory: %d bytes; the engine takes at least %d", bytes, minMemory))
		}
	}}
}

// WithPidsLimit limits how many processes and threads the sandbox has at once, its own
// few included; at least 16. Default [DefaultPidsLimit].
func WithPidsLimit(n int) MakeOption {
	return makeOption(func(s *settings) {
		if n < minPids {
			s.problems = append(s.problems, fmt.Errorf("WithPidsLimit: %d; it takes at least %d", n, minPids))
		}
		s.pidsLimit = int64(n)
	})
}

// WithOCIRuntime runs the sandbox with another of the engine's container runtimes,
// such as "runsc" (gVisor): see [Health].Runtimes. One that the engine does not have is
// [ErrUnsupported]. Default: the engine's own default.
func WithOCIRuntime(name string) MakeOption {
	return makeOption(func(s *settings) {
		if name == "" {
			s.problems = append(s.problems, errors.New("WithOCIRuntime: the name is empty; leave the option out for the engine's default"))
		}
		s.ociRuntime = name
	})
}

// WithUser sets who commands and the main process run as: a name or a number, with
// an optional group after a colon, looked up inside the sandbox. The workspace is
// given to that user when it is new. Default: the image's user, else root.
func WithUser(user string) MakeOption {
	return makeOption(func(s *settings) {
		if user == "" || strings.ContainsAny(user, "\x00\n") || strings.Count(user, ":") > 1 {
			s.problems = append(s.problems, fmt.Errorf("WithUser: %q is not user or user:group", user))
		}
		s.user = user
	})
}

// WithWorkdir sets the directory that commands run in unless [Cmd.Dir] is set, an
// absolute path, made when it is missing. Default /workspace.
func WithWorkdir(dir string) MakeOption {
	return makeOption(func(s *settings) {
		if !path.IsAbs(dir) || strings.ContainsRune(dir, 0) {
			s.problems = append(s.problems, fmt.Errorf("WithWorkdir: %q is not an absolute path", dir))
		}
		s.workdir = path.Clean(dir)
	})
}

// WithCommand starts a main process with each session. Its output is the sandbox's
// log. A session outlives its main process: a sandbox is an environment, not a job.
// The first argument is the program, looked up in PATH; no shell takes part.
// [Create] fails when it can't be started.
func WithCommand(argv ...string) ChangeOption {
	argv = slices.Clone(argv)
	return changeOption{changeCommand, func(s *settings) {
		if len(argv) == 0 || argv[0] == "" {
			s.problems = append(s.problems, errors.New("WithCommand: there is no program"))
		}
		for _, a := range argv {
			if strings.ContainsRune(a, 0) {
				s.problems = append(s.problems, fmt.Errorf("WithCommand: %q contains a NUL byte", a))
			}
		}
		s.command = argv
	}}
}

// WithPersistent decides what the sandbox's files outlive. A persistent one keeps
// them from session to session until [Delete]; that is the default with [WithName].
// One that is not persistent lives as long as the handle that made it: on
// [Sandbox.Close], or 30 s after the handle's process died, the session ends and
// everything the sandbox owns goes.
func WithPersistent(persistent bool) MakeOption {
	return makeOption(func(s *settings) { s.persistent = &persistent })
}

// WithTimeout ends each session d after its start, gracefully, whether or not the
// program that started it is still there. The sandbox is stopped, not deleted, unless
// it is not persistent. 0, the default, is no timeout; the unit is the millisecond,
// and a fraction of one is an error.
func WithTimeout(d time.Duration) ChangeOption {
	return changeOption{changeTimeout, func(s *settings) {
		if d < 0 || d%time.Millisecond != 0 {
			s.problems = append(s.problems, fmt.Errorf("WithTimeout: %v is not a whole number of milliseconds from 0 up", d))
		}
		s.timeout = d
	}}
}

// WithStopTimeout sets what processes get between SIGTERM and SIGKILL when a session
// ends, in whole seconds. Default 30 s.
func WithStopTimeout(d time.Duration) ChangeOption {
	return changeOption{changeStopTimeout, func(s *settings) {
		if d < time.Second || d%time.Second != 0 {
			s.problems = append(s.problems, fmt.Errorf("WithStopTimeout: %v is not a whole number of seconds from 1 up", d))
		}
		s.stopTimeout = d
	}}
}

// WithProgress calls fn with what a long call is doing: pulling an image, above all.
// Calls come one at a time, from other goroutines than the caller's, none after the
// call has returned. fn must not block.
func WithProgress(fn func(Progress)) ProgressOption { return progressOption(fn) }

// OnCreate calls fn once, with the new sandbox running, before [Create] or
// [GetOrCreate] returns and before any other caller gets the sandbox. When it fails
// or panics the sandbox is removed. Several are called in the order given.
func OnCreate(fn func(context.Context, *Sandbox) error) MakeOption {
	return makeOption(func(s *settings) {
		if fn != nil {
			s.onCreate = append(s.onCreate, fn)
		}
	})
}

// OnResume calls fn each time this handle starts the sandbox again: in [Get], in
// [Sandbox.Start] or on a first command. fn may use the sandbox. When it fails the
// call that resumed fails; the session goes on.
func OnResume(fn func(context.Context, *Sandbox) error) LifecycleOption {
	return lifecycleOption(func(s *settings) {
		if fn != nil {
			s.onResume = append(s.onResume, fn)
		}
	})
}

// WithoutResume makes [Get] leave a stopped sandbox as it is.
func WithoutResume() GetOption {
	return getOption(func(s *settings) { s.withoutResume = true })
}

// Progress is one step of a long call.
type Progress struct {
	// Step is what is being done: "image", "guest", "container", "copy", "source", "commit", "start".
	Step string
	// Text says more, for people; it may be empty.
	Text string
	// Current and Total count bytes. Total is 0 while it is not known.
	Current, Total int64
	// Files counts what was copied, in the steps "copy" and "source".
	Files int64
}

func createSettings(opts []CreateOption) *settings {
	s := &settings{}
	for _, o := range opts {
		if o != nil {
			o.applyCreate(s)
		}
	}
	return s
}

// check completes the settings with their defaults and returns every complaint.
func (s *settings) check() error {
	problems := slices.Clone(s.problems)
	bad := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }

	if s.persistent == nil {
		named := s.name != ""
		s.persistent = &named
	}
	if s.id == "" {
		s.id = record.NewID()
	} else if !record.ValidName(s.id) {
		bad("ID %q: it takes %s", s.id, record.NameRule)
	} else if record.ReservedID(s.id) {
		bad("ID %q: it begins or ends like the name of another kind of object", s.id)
	}
	if s.name == "" {
		s.name = s.id
	} else if !record.ValidName(s.name) {
		bad("name %q: it takes %s", s.name, record.NameRule)
	}
	if s.image != "" && s.runtime != "" {
		bad("image %q and runtime %q cannot be used together", s.image, s.runtime)
	}
	if s.runtime != "" {
		image, known := runtimes[s.runtime]
		if !known {
			bad("runtime %q is not known; there is %s", s.runtime, strings.Join(slices.Sorted(maps.Keys(runtimes)), ", "))
		}
		s.image = image
	}
	if from, is := s.source.(fromSnapshot); is && (s.image != "" || s.runtime != "") {
		bad("WithSource: %v brings its own image; leave WithImage and WithRuntime out", from)
	}
	if s.image == "" {
		s.image = DefaultImage
	}
	problems = append(problems, s.checkChanges()...)
	if s.source != nil {
		problems = append(problems, s.source.check(s)...)
	}
	if s.vcpus == 0 {
		s.vcpus = DefaultVCPUs
	}
	if s.memory == 0 {
		s.memory = int64(s.vcpus * float64(MemoryPerVCPU))
	}
	if s.pidsLimit == 0 {
		s.pidsLimit = DefaultPidsLimit
	}
	if s.workdir == "" {
		s.workdir = Workspace
	}
	if s.stopTimeout == 0 {
		s.stopTimeout = DefaultStopTimeout
	}
	if s.network.Mode == "" {
		s.network.Mode = policy.AllowAll
	}
	if len(problems) > 0 {
		return classify(ErrInvalidArgument, errors.Join(problems...))
	}
	return nil
}

// checkChanges checks what Create and Update have in common. It completes the mounts.
func (s *settings) checkChanges() (problems []error) {
	for _, k := range slices.Sorted(maps.Keys(s.env)) {
		if err := checkEnv(k, s.env[k]); err != nil {
			problems = append(problems, err)
		}
	}
	problems = append(problems, s.checkTags()...)
	limit := cmp.Or(s.maxPorts, maxPorts)
	if len(s.ports) > limit {
		problems = append(problems, fmt.Errorf("WithPorts: %d ports; there may be %d", len(s.ports), limit))
	}
	for i, p := range s.ports {
		if p < 1 || p > 65535 {
			problems = append(problems, fmt.Errorf("WithPorts: %d is not a port: it takes 1 to 65535", p))
		} else if slices.Contains(s.ports[:i], p) {
			problems = append(problems, fmt.Errorf("WithPorts: %d is there twice", p))
		}
	}
	var wrong []error
	s.mounts, wrong = resolveMounts(s.mounts)
	return append(problems, wrong...)
}

func (s *settings) checkTags() (problems []error) {
	if len(s.tags) > maxTags {
		problems = append(problems, fmt.Errorf("%d tags; there may be %d", len(s.tags), maxTags))
	}
	for k, v := range s.tags {
		if k == "" || !utf8.ValidString(k) || !utf8.ValidString(v) {
			problems = append(problems, fmt.Errorf("tag %q=%q: a key is not empty, and both are UTF-8", k, v))
		}
	}
	return problems
}

// checkEnv never repeats a value: it may be a secret.
func checkEnv(key, value string) error {
	switch {
	case key == "" || strings.ContainsAny(key, "=\x00"):
		return fmt.Errorf("environment variable %q: a key is not empty and has no = and no NUL", key)
	case strings.ContainsRune(value, 0):
		return fmt.Errorf("environment variable %q: the value contains a NUL byte", key)
	case len(key)+1+len(value)+1 > maxEnvValue:
		return fmt.Errorf("environment variable %q: the value is %d bytes long; Linux takes less than 128 KiB", key, len(value))
	}
	return nil
}

// checkName is for every name or ID that a caller passes in: the Docker client cleans
// paths, so "../containers/x" would be another object of another kind.
func checkName(nameOrID string) error {
	if !record.ValidName(nameOrID) {
		return invalid("%q is not a sandbox's name or ID: it takes %s", nameOrID, record.NameRule)
	}
	return nil
}
