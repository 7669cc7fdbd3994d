package engine

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/mount"
	"github.com/docker/go-connections/nat"
)

// ContainerSpec describes a container to create. Zero values mean the defaults of the image
// or the engine.
type ContainerSpec struct {
	Name       string
	Image      string
	Hostname   string
	User       string
	WorkingDir string
	Entrypoint []string // nil means the image's; empty and not nil means none
	Cmd        []string
	Env        []string // KEY=value
	Labels     map[string]string

	NanoCPUs   int64 // billionths of a CPU
	Memory     int64 // bytes
	MemorySwap int64 // bytes, memory and swap together; -1 unlimited
	PidsLimit  int64
	Storage    int64 // bytes, of the container's own layer; few storage drivers support it

	GPUs []string // "all", indexes or UUIDs, or names of the Container Device Interface

	Mounts         []Mount
	Tmpfs          map[string]string // path to mount options
	ReadonlyRootfs bool

	CapAdd, CapDrop []string
	SecurityOpt     []string

	StopSignal  string
	StopTimeout time.Duration // to the second, rounded up

	// MachineUsers turns off the remapping of users for this container, because only the
	// machine's root can see some attributes. NetworkMode "host" implies it.
	MachineUsers bool

	// Warn, which may be nil, is called with each warning of the engine's, such as that it
	// does not enforce a limit.
	Warn func(string)

	NetworkMode     string
	NetworkDisabled bool
	Ports           []uint16 // TCP, published on 127.0.0.1 at ephemeral ports
	DNS             []string

	Runtime     string
	AutoRemove  bool
	LogMaxSize  string // such as "10m"; not empty selects the json-file driver
	LogMaxFiles int
	OpenStdin   bool // closed when the first client that attaches detaches
}

// Mount is one mount of a container to create.
type Mount struct {
	Type         string // "volume", "bind" or "tmpfs"
	Source       string // volume name, or path on the engine's machine
	Target       string
	ReadOnly     bool
	NoCopy       bool // do not fill an empty volume from the image
	VolumeLabels map[string]string
}

// Container is a container as the engine describes it. Lists leave out Env, Cmd, User,
// WorkingDir, ExitCode, OOMKilled, Error, Pid, StartedAt, FinishedAt and limits.
type Container struct {
	ID      string
	Name    string // without the leading slash
	Image   string // as it was requested
	ImageID string
	Labels  map[string]string

	Env, Cmd, Entrypoint []string
	User, WorkingDir     string
	Hostname             string

	State      string // created, running, paused, restarting, removing, exited or dead
	ExitCode   int
	OOMKilled  bool
	Error      string
	Pid        int // on the engine's machine
	CreatedAt  time.Time
	StartedAt  time.Time // zero: never
	FinishedAt time.Time

	Mounts      []MountPoint
	Ports       map[uint16]netip.AddrPort // published TCP ports; none while stopped
	IP          netip.Addr                // on the default bridge
	NetworkMode string
	Runtime     string

	NanoCPUs, Memory, PidsLimit int64
	AutoRemove                  bool

	// Upper is the directory of the container's own layer on the engine's machine, in the
	// format of overlayfs; change it only while the container is stopped. Merged is set for
	// storage drivers outside of the kernel, while the container runs: syncing it writes
	// buffered changes to Upper. Both are empty with other storage drivers.
	Upper, Merged string
}

// MountPoint is one mount of a container.
type MountPoint struct {
	Type   string
	Name   string // of the volume
	Source string
	Target string
	RW     bool
}

// Resources are the limits that can change while a container runs. Zero leaves a limit
// unchanged.
type Resources struct {
	NanoCPUs, Memory, MemorySwap, PidsLimit int64
}

// Filter selects containers. Zero selects all, in any state.
type Filter struct {
	Labels []string // has all of these, each "key" or "key=value"
	Volume string   // mounts this volume
	Names  []string // has one of these names
}

// CreateContainer creates a container and returns its ID. A name that is
// taken is [ErrConflict]; a missing image is [ErrNotFound] and a
// [*NoImageError].
func (e *Engine) CreateContainer(ctx context.Context, s ContainerSpec) (string, error) {
	if s.Name != "" {
		if err := checkName("container", s.Name); err != nil {
			return "", err
		}
	}
	if err := CheckImage(s.Image); err != nil {
		return "", err
	}
	if err := checkMounts(s.Mounts); err != nil {
		return "", err
	}
	config, host := s.config()
	if e.podman.Load() {
		forPodman(host)
	}
	r, err := e.cli.ContainerCreate(ctx, config, host, nil, nil, s.Name)
	if err = e.fail(ctx, err); err == nil {
		if s.Warn != nil {
			for _, w := range r.Warnings {
				s.Warn(w)
			}
		}
		return r.ID, nil
	}
	if !errors.Is(err, ErrNotFound) {
		return "", misplacedDir(err, s.WorkingDir)
	}
	// The missing object may also be a network or a runtime.
	if _, inspectErr := e.InspectImage(ctx, s.Image); errors.Is(inspectErr, ErrNotFound) {
		return "", &classed{class: ErrNotFound, text: "no such image " + quote(s.Image), err: errors.Join(&NoImageError{Ref: s.Image}, err)}
	}
	return "", err
}

// misplacedDir returns err as an [ErrInvalid] if it says that the image has a file where a container's
// working directory is to be, or above it. The engine has its own path of it.
func misplacedDir(err error, dir string) error {
	if err == nil || hasClass(err) || !strings.HasSuffix(err.Error(), "not a directory") {
		return err
	}
	_, name, made := strings.Cut(strings.TrimSuffix(err.Error(), " is not a directory"), "Cannot mkdir: ")
	if !made {
		_, name, _ = strings.Cut(strings.TrimSuffix(err.Error(), ": not a directory"), " /")
	}
	for at := path.Clean(dir); at != "/" && at != "."; at = path.Dir(at) {
		if strings.HasSuffix("/"+name, at) {
			return &classed{class: ErrInvalid, err: err, text: "the image has a file at the working directory " + quote(dir) + ", or above it: choose another directory or image"}
		}
	}
	return err
}

func checkMounts(mounts []Mount) error {
	for _, m := range mounts {
		switch {
		case m.Target == "":
			return invalid("mount of %q has no target", m.Source)
		case m.Type == "volume" && m.Source != "":
			if err := checkName("volume", m.Source); err != nil {
				return err
			}
		case m.Type == "volume", m.Type == "bind", m.Type == "tmpfs":
		default:
			return invalid("mount at %q: unknown type %q", m.Target, m.Type)
		}
	}
	return nil
}

func (s *ContainerSpec) config() (*container.Config, *container.HostConfig) {
	config := &container.Config{
		Image: s.Image, Hostname: s.Hostname, User: s.User, WorkingDir: s.WorkingDir,
		Entrypoint: s.Entrypoint, Cmd: s.Cmd, Env: s.Env, Labels: s.Labels,
		StopSignal: s.StopSignal, OpenStdin: s.OpenStdin, StdinOnce: s.OpenStdin, NetworkDisabled: s.NetworkDisabled,
		// The image's health check would run with all of the container's capabilities.
		Healthcheck: &container.HealthConfig{Test: []string{"NONE"}},
	}
	if s.StopTimeout > 0 {
		config.StopTimeout = seconds(s.StopTimeout)
	}
	host := &container.HostConfig{
		AutoRemove: s.AutoRemove, NetworkMode: container.NetworkMode(s.NetworkMode),
		CapAdd: s.CapAdd, CapDrop: s.CapDrop, SecurityOpt: s.SecurityOpt,
		Runtime: s.Runtime, Tmpfs: s.Tmpfs, ReadonlyRootfs: s.ReadonlyRootfs, DNS: s.DNS,
		Resources: s.resources().docker(),
	}
	// A core file may go to a directory of the engine's machine. The kernel ignores the limit
	// for a pattern that begins with "|", but passes it to that program, and
	// systemd-coredump stores nothing if it is 0.
	host.Ulimits = []*container.Ulimit{{Name: "core"}}
	if s.Storage != 0 {
		host.StorageOpt = map[string]string{"size": strconv.FormatInt(s.Storage, 10)}
	}
	host.DeviceRequests = gpuRequests(s.GPUs)
	if s.MachineUsers || s.NetworkMode == "host" {
		host.UsernsMode = "host"
	}
	if s.LogMaxSize != "" {
		host.LogConfig = container.LogConfig{Type: "json-file", Config: map[string]string{"max-size": s.LogMaxSize}}
		if s.LogMaxFiles > 0 {
			host.LogConfig.Config["max-file"] = strconv.Itoa(s.LogMaxFiles)
		}
	}
	for _, m := range s.Mounts {
		host.Mounts = append(host.Mounts, m.docker())
	}
	if len(s.Ports) > 0 {
		config.ExposedPorts, host.PortBindings = nat.PortSet{}, nat.PortMap{}
		for _, p := range s.Ports {
			port := nat.Port(strconv.Itoa(int(p)) + "/tcp")
			config.ExposedPorts[port] = struct{}{}
			host.PortBindings[port] = []nat.PortBinding{{HostIP: "127.0.0.1"}}
		}
	}
	return config, host
}

// gpuRequests returns what "docker run" sends for --gpus and, for names of the Container Device
// Interface, for --device.
func gpuRequests(names []string) (requests []container.DeviceRequest) {
	var plain, cdi []string
	for _, name := range names {
		if strings.Contains(name, "=") {
			cdi = append(cdi, name)
		} else {
			plain = append(plain, name)
		}
	}
	gpu := [][]string{{"gpu"}}
	switch {
	case slices.Equal(plain, []string{"all"}):
		requests = append(requests, container.DeviceRequest{Count: -1, Capabilities: gpu})
	case len(plain) > 0:
		requests = append(requests, container.DeviceRequest{DeviceIDs: plain, Capabilities: gpu})
	}
	if len(cdi) > 0 {
		requests = append(requests, container.DeviceRequest{Driver: "cdi", DeviceIDs: cdi})
	}
	return requests
}

// missingGPUs returns err as an [ErrUnsupported] if the engine can't give a container its GPUs.
func missingGPUs(err error) error {
	if err == nil || hasClass(err) {
		return err
	}
	text := err.Error()
	if !strings.Contains(text, "could not select device driver") && !strings.Contains(text, "CDI device injection failed") {
		return err
	}
	return &classed{class: ErrUnsupported, err: err, text: "the engine has no such GPU for containers: install the vendor's container toolkit on its machine"}
}

func (s *ContainerSpec) resources() Resources {
	return Resources{NanoCPUs: s.NanoCPUs, Memory: s.Memory, MemorySwap: s.MemorySwap, PidsLimit: s.PidsLimit}
}

func (r Resources) docker() container.Resources {
	d := container.Resources{NanoCPUs: r.NanoCPUs, Memory: r.Memory, MemorySwap: r.MemorySwap}
	if r.PidsLimit != 0 {
		d.PidsLimit = &r.PidsLimit
	}
	return d
}

// docker converts m. The engine's older "binds" would create a missing path on its machine.
func (m Mount) docker() mount.Mount {
	d := mount.Mount{Type: mount.Type(m.Type), Source: m.Source, Target: m.Target, ReadOnly: m.ReadOnly}
	if m.Type == "volume" && (m.NoCopy || m.VolumeLabels != nil) {
		d.VolumeOptions = &mount.VolumeOptions{NoCopy: m.NoCopy, Labels: m.VolumeLabels}
	}
	return d
}

func seconds(d time.Duration) *int {
	n := int(math.Ceil(d.Seconds()))
	return &n
}

// InspectContainer finds a container by name or ID. The engine also accepts a prefix of an
// ID, so compare the result with what you meant.
func (e *Engine) InspectContainer(ctx context.Context, ref string) (Container, error) {
	if err := checkName("container", ref); err != nil {
		return Container{}, err
	}
	r, err := e.cli.ContainerInspect(ctx, ref)
	if err != nil {
		return Container{}, e.fail(ctx, err)
	}
	c := inspected(&r)
	if e.podman.Load() {
		c.dockers()
	}
	return c, nil
}

func inspected(r *container.InspectResponse) Container {
	var c Container
	if b := r.ContainerJSONBase; b != nil {
		c.ID, c.Name, c.ImageID = b.ID, strings.TrimPrefix(b.Name, "/"), b.Image
		c.CreatedAt = parseTime(b.Created)
		if s := b.State; s != nil {
			c.State, c.ExitCode, c.OOMKilled, c.Error, c.Pid = s.Status, s.ExitCode, s.OOMKilled, s.Error, s.Pid
			c.StartedAt, c.FinishedAt = parseTime(s.StartedAt), parseTime(s.FinishedAt)
		}
		if h := b.HostConfig; h != nil {
			c.NanoCPUs, c.Memory, c.AutoRemove = h.NanoCPUs, h.Memory, h.AutoRemove
			c.NetworkMode, c.Runtime = string(h.NetworkMode), h.Runtime
			if h.PidsLimit != nil {
				c.PidsLimit = *h.PidsLimit
			}
		}
	}
	if k := r.Config; k != nil {
		c.Image, c.Labels, c.Env, c.Cmd, c.Entrypoint = k.Image, k.Labels, k.Env, k.Cmd, k.Entrypoint
		c.User, c.WorkingDir, c.Hostname = k.User, k.WorkingDir, k.Hostname
	}
	if n := r.NetworkSettings; n != nil {
		c.Ports = publishedPorts(n.Ports)
		for _, network := range n.Networks {
			if ip, err := netip.ParseAddr(network.IPAddress); err == nil {
				c.IP = ip
			}
		}
	}
	c.Mounts = mountPoints(r.Mounts)
	c.Upper, c.Merged = layerOf(r)
	return c
}

// layerOf returns Container.Upper and Merged.
func layerOf(r *container.InspectResponse) (upper, merged string) {
	if r.ContainerJSONBase == nil {
		return "", ""
	}
	switch d := r.GraphDriver; d.Name {
	case "fuse-overlayfs", "overlay": // Podman's overlay may be either's
		upper, merged = d.Data["UpperDir"], d.Data["MergedDir"]
	case "overlay2":
		upper = d.Data["UpperDir"]
	}
	if !path.IsAbs(upper) {
		return "", ""
	}
	return upper, merged
}

// publishedPorts returns the addresses of published TCP ports.
func publishedPorts(ports nat.PortMap) map[uint16]netip.AddrPort {
	out := map[uint16]netip.AddrPort{}
	for port, bindings := range ports {
		if port.Proto() != "tcp" {
			continue
		}
		for _, b := range bindings {
			ip, err := netip.ParseAddr(b.HostIP)
			n, portErr := strconv.ParseUint(b.HostPort, 10, 16)
			if err == nil && portErr == nil && n != 0 {
				out[uint16(port.Int())] = netip.AddrPortFrom(ip, uint16(n))
				break
			}
		}
	}
	return out
}

func mountPoints(mounts []container.MountPoint) []MountPoint {
	out := make([]MountPoint, 0, len(mounts))
	for _, m := range mounts {
		out = append(out, MountPoint{Type: string(m.Type), Name: m.Name, Source: m.Source, Target: m.Destination, RW: m.RW})
	}
	return out
}

// ListContainers lists the containers that f selects, in any state, sorted by name. It takes
// one call.
func (e *Engine) ListContainers(ctx context.Context, f Filter) ([]Container, error) {
	args := labelFilter(f.Labels)
	if f.Volume != "" {
		if err := checkName("volume", f.Volume); err != nil {
			return nil, err
		}
		args.Add("volume", f.Volume)
	}
	for _, name := range f.Names {
		if err := checkName("container", name); err != nil {
			return nil, err
		}
		// The filter is a pattern, which matches parts of names too.
		args.Add("name", "^/?"+regexp.QuoteMeta(name)+"$")
	}
	l, err := e.cli.ContainerList(ctx, container.ListOptions{All: true, Filters: args})
	if err != nil {
		return nil, e.fail(ctx, err)
	}
	out := make([]Container, 0, len(l))
	for i := range l {
		c := summarised(&l[i])
		if e.podman.Load() {
			c.dockers()
		}
		// The engine's volume filter also matches mount paths.
		if f.Volume != "" && !slices.ContainsFunc(c.Mounts, func(m MountPoint) bool { return m.Name == f.Volume }) {
			continue
		}
		if len(f.Names) > 0 && !slices.Contains(f.Names, c.Name) || !hasLabels(c.Labels, f.Labels) {
			continue
		}
		out = append(out, c)
	}
	slices.SortFunc(out, func(a, b Container) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

func summarised(s *container.Summary) Container {
	c := Container{
		ID: s.ID, Image: s.Image, ImageID: s.ImageID, Labels: s.Labels, State: s.State,
		CreatedAt: time.Unix(s.Created, 0), Mounts: mountPoints(s.Mounts),
		NetworkMode: s.HostConfig.NetworkMode, Ports: map[uint16]netip.AddrPort{},
	}
	for _, name := range s.Names {
		// A name with another slash is a link of another container.
		if name = strings.TrimPrefix(name, "/"); !strings.Contains(name, "/") {
			c.Name = name
		}
	}
	for _, p := range s.Ports {
		if ip, err := netip.ParseAddr(p.IP); err == nil && p.PublicPort != 0 && p.Type == "tcp" {
			c.Ports[p.PrivatePort] = netip.AddrPortFrom(ip, p.PublicPort)
		}
	}
	return c
}

// StartContainer starts a container. It is no error if it already runs. [ErrBusy] is
// temporary: every starting container has, for fractions of a second, a copy of all mounts
// of the engine's machine, and an overlay volume can't be mounted again until the last copy
// of its previous mount is gone.
func (e *Engine) StartContainer(ctx context.Context, id string) error {
	return missingGPUs(misplacedMount(linkedMount(busyVolume(e.onContainer(ctx, id, func() error { return e.cli.ContainerStart(ctx, id, container.StartOptions{}) })))))
}

// misplacedMount returns err as an [ErrInvalid] if it says that a mount and what the image has at its
// target are of different kinds.
func misplacedMount(err error) error {
	if err == nil || hasClass(err) {
		return err
	}
	text := err.Error()
	mounting := strings.Contains(text, "mount ") && strings.Contains(text, "flags: 0x") && strings.HasSuffix(text, ": not a directory")
	if !mounting && !strings.Contains(text, "mount a directory onto a file") {
		return err
	}
	// The engine's path has the container's root directory in it.
	at := ""
	if _, target, is := strings.Cut(text, "/merged/"); is {
		target, _, _ = strings.Cut(strings.TrimSuffix(target, ": not a directory"), ", flags")
		at = fmt.Sprintf(" %q", "/"+target)
	}
	return &classed{class: ErrInvalid, err: err, text: "at the target" + at + " of a mount the image has a file where the mount is a directory, or the reverse: choose another target"}
}

// busyVolume returns err as an [ErrBusy] if it is one.
func busyVolume(err error) error {
	if err != nil && !hasClass(err) && strings.Contains(err.Error(), "mount local volume") && strings.Contains(err.Error(), "device or resource busy") {
		return &classed{class: ErrBusy, err: err, text: err.Error() + ": if it persists, " +
			"a process on the engine's machine keeps a copy of this mount, such as a container that mounts the machine's root: stop it"}
	}
	return err
}

// StopContainer sends the container its stop signal, and kills it after grace, rounded up to
// whole seconds. A negative grace means the container's own. It is no error if the container
// does not run.
func (e *Engine) StopContainer(ctx context.Context, id string, grace time.Duration) error {
	err := e.StopToRemove(ctx, id, grace)
	if err == nil {
		// An engine of version 26 replies before its list knows. An inspection waits for that,
		// and what it says of a container that has stopped does not matter.
		_, _ = e.cli.ContainerInspect(ctx, id)
	}
	return err
}

// StopToRemove is [Engine.StopContainer] for a container that is removed next: when it returns,
// a list may still report that the container runs.
func (e *Engine) StopToRemove(ctx context.Context, id string, grace time.Duration) error {
	var o container.StopOptions
	if grace >= 0 {
		o.Timeout = seconds(grace)
	}
	return e.onContainer(ctx, id, func() error { return e.cli.ContainerStop(ctx, id, o) })
}

// KillContainer sends a signal, such as "SIGKILL", to the container's PID 1. It fails with
// [ErrConflict] if the container does not run.
func (e *Engine) KillContainer(ctx context.Context, id, signal string) error {
	return e.onContainer(ctx, id, func() error { return e.cli.ContainerKill(ctx, id, signal) })
}

// PauseContainer freezes every process of the container. The caller has made known to those who
// start execs in it ([ExecSpec]) that it will.
func (e *Engine) PauseContainer(ctx context.Context, id string) error {
	return e.onContainer(ctx, id, func() error {
		if locks, err := e.PauseLocks(ctx); err != nil {
			return err
		} else if locks {
			if err := e.awaitStarts(ctx, id); err != nil {
				return err
			}
		}
		return e.cli.ContainerPause(ctx, id)
	})
}

// UnpauseContainer undoes [Engine.PauseContainer].
func (e *Engine) UnpauseContainer(ctx context.Context, id string) error {
	return e.onContainer(ctx, id, func() error { return e.cli.ContainerUnpause(ctx, id) })
}

// RenameContainer renames the container. A name that is taken is [ErrConflict].
func (e *Engine) RenameContainer(ctx context.Context, id, name string) error {
	if err := checkName("container", name); err != nil {
		return err
	}
	return e.onContainer(ctx, id, func() error { return e.cli.ContainerRename(ctx, id, name) })
}

// UpdateContainer changes the container's limits.
func (e *Engine) UpdateContainer(ctx context.Context, id string, r Resources) error {
	return e.onContainer(ctx, id, func() error {
		_, err := e.cli.ContainerUpdate(ctx, id, container.UpdateConfig{Resources: r.docker()})
		return err
	})
}

// RemoveContainer removes a container and its anonymous volumes; named ones stay. force
// kills it first; without it a running container is [ErrConflict]. If another call is
// already removing it, the error is a [*RemovalInProgressError].
func (e *Engine) RemoveContainer(ctx context.Context, id string, force bool) error {
	err := e.onContainer(ctx, id, func() error {
		return e.cli.ContainerRemove(ctx, id, container.RemoveOptions{Force: force, RemoveVolumes: true})
	})
	if !errors.Is(err, ErrConflict) {
		return err
	}
	c, inspectErr := e.InspectContainer(ctx, id)
	switch {
	case errors.Is(inspectErr, ErrNotFound):
		// The other removal has completed.
		return inspectErr
	case inspectErr == nil && c.State == container.StateRemoving:
		return &classed{class: ErrConflict, text: err.Error(), err: errors.Join(&RemovalInProgressError{Ref: id}, err)}
	}
	return err
}

func (e *Engine) onContainer(ctx context.Context, id string, call func() error) error {
	if err := checkName("container", id); err != nil {
		return err
	}
	return e.fail(ctx, call())
}
