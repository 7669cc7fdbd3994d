// Package plan has the settings of a sandbox. It checks them, completes them with defaults,
// lets a fork inherit them, and merges those of an update. It opens no connection.
package plan

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"golang.org/x/net/http/httpguts"

	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/errdefs"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
	"github.com/seed-1a2d6d8f/sandbox/internal/policy"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/internal/source"
)

// The defaults, which the root package documents under the same names.
const (
	DefaultImage             = "node:20-bookworm"
	DefaultVCPUs             = 1
	MemoryPerVCPU      int64 = 2048 << 20
	DefaultStopTimeout       = record.DefaultStopTimeout
	DefaultPidsLimit         = 4096

	// MinMemory is what a session takes where the kernel gives programs huge pages unasked: of 8 sandboxes
	// with 20 MiB all began, with 18 MiB 5. runc has 12 MiB then, before PID 1 begins. Elsewhere 8 MiB are enough.
	MinMemory = 24 << 20

	maxTags     = 5
	maxPorts    = 4
	maxEnvValue = 128 << 10 // Linux' MAX_ARG_STRLEN: longer ones start nothing
)

// runtimes are the images of the runtimes that every client knows: Docker's official ones, on
// Debian 12.
var runtimes = map[string]string{
	"debian":     "debian:bookworm",
	"go1.26":     "golang:1.26-bookworm",
	"node20":     "node:20-bookworm",
	"node22":     "node:22-bookworm",
	"node24":     "node:24-bookworm",
	"python3.12": "python:3.12-bookworm",
	"python3.13": "python:3.13-bookworm",
}

// A Sandbox is the settings of a sandbox to create or to change.
type Sandbox struct {
	Name, ID       string
	Image, Runtime string
	Runtimes       map[string]string // the client's: images by runtime
	User, Workdir  string
	Command        []string
	Env            map[string]string
	Tags           map[string]string
	Ports          []int
	MaxPorts       int // the client's limit; 0 is the default
	VCPUs          float64
	Memory         int64
	Persistent     *bool
	PidsLimit      int64
	OCIRuntime     string
	Emulated       bool     // the image may be for another platform than the engine's
	NewPrivileges  bool     // for commands of users other than root
	StorageBytes   int64    // limit of the container's own layer; 0 is none
	GPUs           []string // see CheckGPUs
	Pooled         bool     // it is to wait in a pool
	Timeout        time.Duration
	StopTimeout    time.Duration
	Idle           record.Idle
	Network        policy.Policy
	Secrets        []Secret // what the policy's transforms set
	Mounts         []record.Mount
	Source         source.Source // of the workspace's first files, or nil
	From           *source.Bounds
	Snapshot       string   // ID of the snapshot it is made from, or empty
	Placement      []string // constraints on the node of a swarm, see [Matches]
	GivenID        bool     // the ID is the caller's choice

	Without     Removals
	KeepSession bool // an update never ends a session, not even to apply a network policy

	Given    Change  // what of it was set by an option that can also change a sandbox
	Problems []error // of options that can't even be stored
}

// Secret is what a transform does, with the function that decides on each request if Hook is set.
type Secret struct {
	Sent wire.Secret // to PID 1
	Do   func(*http.Request) error
}

// Numbered returns a copy for the nth of several sandboxes, or for the only one if n is 0.
func (s Sandbox) Numbered(n int) *Sandbox {
	if s.Name != "" && n > 0 {
		s.Name = fmt.Sprintf("%s-%d", s.Name, n)
	}
	return &s
}

// Published returns the ports to publish.
func (s *Sandbox) Published() []uint16 {
	var ports []uint16
	for _, p := range s.Ports {
		ports = append(ports, uint16(p))
	}
	return ports
}

// PortLimit is how many ports may be published.
func (s *Sandbox) PortLimit() int { return cmp.Or(s.MaxPorts, maxPorts) }

// AllRuntimes returns the images of the runtimes that the client knows.
func (s *Sandbox) AllRuntimes() map[string]string {
	all := maps.Clone(runtimes)
	maps.Copy(all, s.Runtimes)
	return all
}

// MemoryOf is the memory limit of a sandbox that has only one of CPUs.
func MemoryOf(vcpus float64) int64 { return max(int64(vcpus*float64(MemoryPerVCPU)), MinMemory) }

// Complete fills in the defaults and returns all problems at once.
func (s *Sandbox) Complete() error {
	problems := slices.Concat(s.Problems, s.completeNames(), s.completeImage(), s.checkChanges(), checkPlacement(s.Placement))
	if s.Source != nil {
		problems = append(problems, s.Source.Check()...)
	}
	s.Mounts = attachCopies(s.Mounts, nil)
	s.VCPUs = cmp.Or(s.VCPUs, DefaultVCPUs)
	s.Memory = cmp.Or(s.Memory, MemoryOf(s.VCPUs))
	s.PidsLimit = cmp.Or(s.PidsLimit, DefaultPidsLimit)
	s.Workdir = cmp.Or(s.Workdir, record.Workspace)
	s.StopTimeout = cmp.Or(s.StopTimeout, DefaultStopTimeout)
	s.Network.Mode = cmp.Or(s.Network.Mode, policy.AllowAll)
	return invalid(problems)
}

// CheckUpdate returns all problems of settings that are to change a sandbox.
func (s *Sandbox) CheckUpdate() error {
	return invalid(append(s.Problems, s.checkChanges()...))
}

func invalid(problems []error) error {
	if len(problems) == 0 {
		return nil
	}
	return errdefs.Classify(errdefs.InvalidArgument, errors.Join(problems...))
}

func (s *Sandbox) completeNames() (problems []error) {
	if s.Persistent == nil {
		s.Persistent = new(s.Name != "")
	}
	s.GivenID = s.ID != ""
	switch {
	case s.ID == "":
		s.ID = record.NewID()
	case !record.ValidName(s.ID):
		problems = append(problems, fmt.Errorf("ID %q: use %s", s.ID, record.NameRule))
	case record.ReservedID(s.ID):
		problems = append(problems, fmt.Errorf("ID %q: it begins or ends like the name of another kind of object", s.ID))
	}
	if s.Name == "" {
		s.Name = s.ID
	} else if !record.ValidName(s.Name) {
		problems = append(problems, fmt.Errorf("name %q: use %s", s.Name, record.NameRule))
	}
	return problems
}

func (s *Sandbox) completeImage() (problems []error) {
	if s.Image != "" && s.Runtime != "" {
		problems = append(problems, fmt.Errorf("image %q and runtime %q cannot be used together", s.Image, s.Runtime))
	}
	if s.Runtime != "" {
		all := s.AllRuntimes()
		image, known := all[s.Runtime]
		if !known {
			problems = append(problems, fmt.Errorf("runtime %q is not known: use one of %s", s.Runtime, strings.Join(slices.Sorted(maps.Keys(all)), ", ")))
		}
		s.Image = image
	}
	if s.Snapshot != "" {
		if s.Image != "" || s.Runtime != "" {
			problems = append(problems, fmt.Errorf("WithSource: snapshot %s brings its own image; leave WithImage and WithRuntime out", s.Snapshot))
		}
	}
	if record.IsOwnImage(engine.Repository(s.Image)) {
		problems = append(problems, fmt.Errorf("WithImage: %q is an image of this library's own; for a snapshot's files use WithSource(FromSnapshot(id))", s.Image))
	}
	s.Image = cmp.Or(s.Image, DefaultImage)
	if err := engine.CheckImage(s.Image); err != nil {
		problems = append(problems, err)
	}
	return problems
}

// checkChanges checks the settings that creates and updates have in common. It completes the
// mounts.
func (s *Sandbox) checkChanges() (problems []error) {
	for _, k := range slices.Sorted(maps.Keys(s.Env)) {
		if err := CheckEnv(k, s.Env[k]); err != nil {
			problems = append(problems, err)
		} else if !utf8.ValidString(k) || !utf8.ValidString(s.Env[k]) { // the engine would replace the other bytes
			problems = append(problems, fmt.Errorf("environment variable %q: key and value must be UTF-8; field Env of a Cmd takes others", k))
		}
	}
	problems = append(problems, s.checkTags()...)
	if s.Idle.IgnoreDetached && !s.Has(Idle) {
		problems = append(problems, errors.New("IgnoreDetached: it needs WithIdleTimeout"))
	}
	if limit := s.PortLimit(); len(s.Ports) > limit {
		problems = append(problems, fmt.Errorf("WithPorts: %d ports: use at most %d", len(s.Ports), limit))
	}
	for i, p := range s.Ports {
		if p < 1 || p > 65535 {
			problems = append(problems, fmt.Errorf("WithPorts: %d is not a port: use 1 to 65535", p))
		} else if p == policy.ProxyPort || p == policy.DNSPort {
			problems = append(problems, fmt.Errorf("WithPorts: port %d is taken in every sandbox, by PID 1: use another one", p))
		} else if slices.Contains(s.Ports[:i], p) {
			problems = append(problems, fmt.Errorf("WithPorts: duplicate port %d", p))
		}
	}
	var wrong []error
	s.Mounts, wrong = completeMounts(s.Mounts)
	return slices.Concat(problems, wrong, s.checkRemovals())
}

func (s *Sandbox) checkTags() (problems []error) {
	if len(s.Tags) > maxTags {
		problems = append(problems, fmt.Errorf("%d tags: use at most %d", len(s.Tags), maxTags))
	}
	for k, v := range s.Tags {
		if k == "" || !utf8.ValidString(k) || !utf8.ValidString(v) {
			problems = append(problems, fmt.Errorf("tag %q=%q: a key is not empty, and both are UTF-8", k, v))
		}
	}
	return problems
}

// CheckEnv checks an environment variable. Its errors never contain the value, which may be a
// secret.
func CheckEnv(key, value string) error {
	switch {
	case key == "" || strings.ContainsAny(key, "=\x00\r\n"):
		return fmt.Errorf("environment variable %q: a key is not empty and has no =, line break or NUL", key)
	case strings.ContainsRune(value, 0):
		return fmt.Errorf("environment variable %q: the value contains a NUL byte", key)
	case len(key)+1+len(value)+1 > maxEnvValue:
		return fmt.Errorf("environment variable %q: the value is %d bytes long; Linux takes less than 128 KiB: %w", key, len(value), syscall.E2BIG)
	}
	return nil
}

// CheckHeader checks a header that a transform sets. Its errors never contain the value, which is a
// secret.
func CheckHeader(key, value string) error {
	switch {
	case !httpguts.ValidHeaderFieldName(key):
		return fmt.Errorf("%q is not the name of a header", key)
	case slices.Contains(framing, strings.ToLower(key)):
		return fmt.Errorf("header %q is controlled by the connection and can't be set", key)
	case !httpguts.ValidHeaderFieldValue(value):
		return fmt.Errorf("header %q: the value has a control character", key)
	case strings.TrimSpace(value) != value:
		return fmt.Errorf("header %q: the value begins or ends with a space", key)
	}
	return nil
}

// framing lists the headers that delimit a message or select its server.
var framing = []string{"host", "content-length", "transfer-encoding", "connection", "upgrade", "te", "trailer", "keep-alive", "proxy-connection"}

// maxGPUs bounds the names of GPUs, and maxGPUName the bytes of each: CDI has no bounds of its own.
const (
	maxGPUs    = 64
	maxGPUName = 256
)

// CheckGPUs returns the problem of names of GPUs: "all" alone, indexes or UUIDs, and names of the
// Container Device Interface, which have a "=".
func CheckGPUs(names []string) error {
	if len(names) == 0 || len(names) > maxGPUs {
		return fmt.Errorf("%d names: use 1 to %d", len(names), maxGPUs)
	}
	for i, name := range names {
		outside := func(r rune) bool {
			return !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || strings.ContainsRune("._:/=-", r))
		}
		switch {
		case name == "" || len(name) > maxGPUName || strings.ContainsFunc(name, outside):
			return fmt.Errorf("%q is no name of a GPU: use all, an index, a UUID, or a name such as nvidia.com/gpu=0", errdefs.Cut(name, maxGPUName))
		case name == "all" && len(names) > 1:
			return errors.New("all stands alone")
		case slices.Contains(names[:i], name):
			return fmt.Errorf("%s is there twice", name)
		}
	}
	return nil
}
