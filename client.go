package sandbox

import (
	"cmp"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/bound"
	"github.com/seed-1a2d6d8f/sandbox/internal/cluster"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/errdefs"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
	"github.com/seed-1a2d6d8f/sandbox/internal/lifecycle"
	"github.com/seed-1a2d6d8f/sandbox/internal/machine"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/internal/store"
	"github.com/seed-1a2d6d8f/sandbox/internal/trace"
)

// A Client creates and finds sandboxes on one Docker Engine, or, with [WithSwarm], on those of a
// swarm. It is safe for concurrent use. The package's functions use a default client, for the
// engine that DOCKER_HOST or the current Docker context selects.
type Client struct {
	host   string
	log    *slog.Logger
	audit  *slog.Logger // may be nil
	limits Limits
	own    machine.Options

	runtimes map[string]string // of WithRuntimes

	registryAuth func(context.Context, string) (engine.RegistryAuth, error) // may be nil

	swarm *cluster.Options // of WithSwarm; nil without

	connecting bound.Semaphore // held while connecting

	mu      sync.Mutex
	engines *cluster.Engines // nil until connected
	closed  bool
}

// Limits bound what one client creates, and what a sandbox can make this program hold in
// memory. See [CopyOptions] for what [Sandbox.CopyOut] writes.
type Limits struct {
	// Creates bounds how many sandboxes the engine creates, fills and starts at once for the
	// client; further calls wait. Pulls of images, reads of a source and [OnCreate]
	// don't count, so a hook may create sandboxes itself.
	// Creating is bound by the engine's CPUs: above three times their number, calls only
	// wait longer. Default: three times the engine's CPUs, at least 2 and at most 16.
	Creates int
	// Ports bounds how many ports one sandbox may publish, see [WithPorts]. Default 4.
	Ports int
	// ReadFile bounds the file that one [Sandbox.ReadFile] returns, in bytes. Beyond it the
	// error is [ErrTooLarge]. Default [DefaultReadFile]. [Sandbox.Open] reads files of any
	// size.
	ReadFile int64
	// Output bounds what one [Cmd.Output] or [Cmd.CombinedOutput] returns, in bytes. Default
	// [DefaultOutput].
	Output int64
	// ReadDir bounds the entries that one [Sandbox.ReadDir] or [File.ReadDir] returns. Beyond
	// it the error is [ErrTooLarge]. Default [DefaultReadDir]. [File.ReadDir] with a positive
	// n reads directories of any size.
	ReadDir int
}

// The defaults of [Limits]. They are far beyond what programs read at once, and bound the
// memory that a hostile sandbox can take: for ReadDir it is about 500 bytes for each entry.
const (
	// DefaultReadFile is 256 MiB.
	DefaultReadFile int64 = 256 << 20
	// DefaultOutput is 256 MiB.
	DefaultOutput int64 = 256 << 20
	// DefaultReadDir is 262,144.
	DefaultReadDir = 1 << 18
)

// NewClient returns a client. It does not connect: the first call that needs the engine
// does, and fails with [ErrEngineUnavailable] if there is none. The caller closes the
// client.
func NewClient(opts ...ClientOption) (*Client, error) {
	c := &Client{log: slog.New(slog.DiscardHandler), connecting: bound.NewSemaphore(1)}
	for _, o := range opts {
		if err := o(c); err != nil {
			return nil, fail("client", "", err)
		}
	}
	return c, nil
}

// Close closes the client's connections, and ends the removal of leftovers in the background.
// Sandboxes continue to run. Close the client's handles first; they can't be used afterwards.
func (c *Client) Close() error {
	c.mu.Lock()
	engines := c.engines
	c.engines, c.closed = nil, true
	c.mu.Unlock()
	if engines == nil {
		return nil
	}
	return engines.Close()
}

// connect returns the connection to the engine, or to those of the swarm. The first caller opens
// it. Errors are not cached: the engine may become available.
func (c *Client) connect(ctx context.Context) (*cluster.Engines, error) {
	if engines, err := c.connected(); engines != nil || err != nil {
		return engines, err
	}
	leave, err := c.connecting.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	if engines, err := c.connected(); engines != nil || err != nil {
		return engines, err
	}
	eng, err := engine.Open(ctx, engine.Options{Host: c.host, RegistryAuth: c.registryAuth})
	if err != nil {
		return nil, err
	}
	engines, err := c.enginesOf(ctx, eng)
	if err != nil {
		return nil, errors.Join(err, eng.Close())
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, errors.Join(ErrClosed, engines.Close())
	}
	c.engines = engines
	return engines, nil
}

// enginesOf returns the engine at the client's address, or those of its swarm.
func (c *Client) enginesOf(ctx context.Context, eng *engine.Engine) (*cluster.Engines, error) {
	if c.swarm == nil {
		return cluster.One(c.on(eng, nil)), nil
	}
	o := *c.swarm
	o.On, o.Engine = c.on, engine.Options{RegistryAuth: c.registryAuth}
	return cluster.Swarm(ctx, eng, o)
}

// on returns the client of one engine.
func (c *Client) on(eng *engine.Engine, shared store.Cluster) *lifecycle.Client {
	l := lifecycle.New(machine.New(&store.Store{Engine: eng, Log: c.log, Cluster: shared}, c.own), c.limits.Ports, lifecycle.Limits{
		ReadFile: cmp.Or(c.limits.ReadFile, DefaultReadFile), Output: cmp.Or(c.limits.Output, DefaultOutput),
		ReadDir: cmp.Or(c.limits.ReadDir, DefaultReadDir),
	})
	l.Runtimes, l.Audit = c.runtimes, c.audit
	return l
}

// ownEngine returns the client of the engine at the client's address.
func (c *Client) ownEngine(ctx context.Context) (*lifecycle.Client, error) {
	e, err := c.connect(ctx)
	if err != nil {
		return nil, err
	}
	return e.Own(), nil
}

// withSandbox calls fn with the client of the engine that has the sandbox, see [cluster.Engines.On].
func (c *Client) withSandbox(ctx context.Context, nameOrID string, fn func(*lifecycle.Client) error) error {
	e, err := c.connect(ctx)
	if err != nil {
		return err
	}
	return e.On(ctx, nameOrID, fn)
}

// withVolume calls fn with the client of the engine that has the volume, see [cluster.Engines.Holding].
func (c *Client) withVolume(ctx context.Context, name string, fn func(*lifecycle.Client) error) error {
	e, err := c.connect(ctx)
	if err != nil {
		return err
	}
	return e.Holding(ctx, name, fn)
}

// eachEngine calls fn with the client of each engine, at the same time, and adds what it returns to
// all. If there is an error, all has what the other engines returned.
func eachEngine[T any](ctx context.Context, c *Client, fn func(context.Context, *lifecycle.Client) ([]T, error)) (all []T, missing []cluster.Missing, err error) {
	e, err := c.connect(ctx)
	if err != nil {
		return nil, nil, err
	}
	all = []T{}
	var mu sync.Mutex
	missing, err = e.Each(ctx, func(ctx context.Context, l *lifecycle.Client) error {
		some, err := fn(ctx, l)
		mu.Lock()
		defer mu.Unlock()
		all = append(all, some...)
		return err
	})
	return all, missing, err
}

func (c *Client) connected() (*cluster.Engines, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, ErrClosed
	}
	return c.engines, nil
}

var defaultClient = sync.OnceValue(func() *Client {
	c, _ := NewClient() // only options can fail
	return c
})

// A ClientOption configures [NewClient].
type ClientOption func(*Client) error

// WithHost selects the engine: unix:///path, tcp://host:port (TLS by DOCKER_TLS_VERIFY
// and DOCKER_CERT_PATH) or ssh://user@host, which runs "docker system dial-stdio" there.
// Default: DOCKER_HOST, then the current Docker context, then the platform's default
// socket.
func WithHost(host string) ClientOption {
	return func(c *Client) error {
		if host == "" {
			return errdefs.Invalid("WithHost: the host is empty")
		}
		c.host = host
		return nil
	}
}

// WithLogger logs events that no call returns, such as resumed sessions, sweeps and lost
// connections. Default: nothing is logged.
func WithLogger(log *slog.Logger) ClientOption {
	return func(c *Client) error {
		if log == nil {
			return errdefs.Invalid("WithLogger: the logger is nil")
		}
		c.log = log
		return nil
	}
}

// WithAudit logs each command of the client's handles when [Cmd.Wait] returns, or when the command
// could not be started. The record "command" of level Info has the sandbox's name and ID, the
// command's ID and user, its program and the number of its arguments, whether it is detached, its
// exit code or the class of the error ("canceled", "sandbox_is_not_running" …), its duration from
// Start, and the bytes of its input and output that were copied. Arguments can contain secrets, so the
// record has none, and neither the environment nor the input and the output.
//
// A command is not in the log if nobody waited for it, or if this program ended first. Calls on
// files, connections and SSH sessions are not commands. Default: nothing is logged.
func WithAudit(log *slog.Logger) ClientOption {
	return func(c *Client) error {
		if log == nil {
			return errdefs.Invalid("WithAudit: the logger is nil")
		}
		c.audit = log
		return nil
	}
}

// WithLimits sets the client's limits. A zero field keeps its default.
func WithLimits(l Limits) ClientOption {
	return func(c *Client) error {
		if min(l.Creates, l.Ports, l.ReadDir) < 0 || min(l.ReadFile, l.Output) < 0 {
			return errdefs.Invalid("WithLimits: %+v: a limit is negative", l)
		}
		c.limits, c.own.Creates = l, l.Creates
		return nil
	}
}

// WithRuntimes adds identifiers for [WithRuntime], each with its image. They take precedence
// over the identifiers of the package. An identifier follows the rules for names of sandboxes.
func WithRuntimes(images map[string]string) ClientOption {
	images = maps.Clone(images)
	return func(c *Client) error {
		for id, image := range images {
			if !record.ValidName(id) {
				return errdefs.Invalid("WithRuntimes: identifier %q: use %s", id, record.NameRule)
			}
			if image == "" {
				return errdefs.Invalid("WithRuntimes: %q has no image", id)
			}
		}
		c.runtimes = images
		return nil
	}
}

// WithDNS sets the DNS servers of the sessions that this client starts: up to 8
// addresses, tried in this order. They may be private; the sandbox itself still can't
// connect to them. Default: the servers that the engine gives to containers.
func WithDNS(servers ...netip.Addr) ClientOption {
	return func(c *Client) error {
		if len(servers) == 0 || len(servers) > wire.MaxUpstream {
			return errdefs.Invalid("WithDNS: %d servers: use 1 to %d", len(servers), wire.MaxUpstream)
		}
		for _, a := range servers {
			if !a.IsValid() || a.Zone() != "" || a.IsUnspecified() || a.IsMulticast() || a.Is4In6() {
				return errdefs.Invalid("WithDNS: %q can't be a DNS server", a)
			}
		}
		c.own.DNS = slices.Clone(servers)
		return nil
	}
}

// WithAuthorities adds certificate authorities, in PEM and at most 512 KiB, for servers
// that get requests changed by a [Transform]: PID 1 of the sandbox is the TLS client then, and
// verifies the server. Default: the public authorities, which are always trusted.
func WithAuthorities(pem []byte) ClientOption {
	return func(c *Client) error {
		if len(pem) > maxAuthorities || !x509.NewCertPool().AppendCertsFromPEM(pem) {
			return errdefs.Invalid("WithAuthorities: %d bytes are not certificates in PEM, or more than %d bytes", len(pem), maxAuthorities)
		}
		c.own.Authorities = string(pem)
		return nil
	}
}

// RegistryAuth are credentials for a registry of images: Username and Password, or a token.
// Printed, they are hidden.
type RegistryAuth struct{ Username, Password, IdentityToken, RegistryToken string }

// String returns a text without the credentials.
func (RegistryAuth) String() string { return "credentials for a registry" }

// GoString returns String.
func (a RegistryAuth) GoString() string { return a.String() }

// LogValue returns String.
func (a RegistryAuth) LogValue() slog.Value { return slog.StringValue(a.String()) }

// WithRegistryAuth sets the credentials for pulls of images. The client calls fn before each
// pull with the registry's host, such as "ghcr.io", with its port if it has one; Docker Hub is
// "docker.io". The call fails if fn does. fn may be called concurrently. The credentials are sent to
// the engine only.
//
// Default, and for the zero RegistryAuth: the credentials of the docker command on this machine.
// These are what docker login stored in its configuration, or in the credential helpers that the
// configuration names (docker-credential-…). The helpers are run, for up to 10 s each.
func WithRegistryAuth(fn func(ctx context.Context, host string) (RegistryAuth, error)) ClientOption {
	return func(c *Client) error {
		if fn == nil {
			return errdefs.Invalid("WithRegistryAuth: the function is nil")
		}
		c.registryAuth = func(ctx context.Context, host string) (engine.RegistryAuth, error) {
			a, err := fn(ctx, host)
			return engine.RegistryAuth(a), err
		}
		return nil
	}
}

// Several times the size of all public authorities.
const maxAuthorities = 512 << 10

// Health reports whether an engine can be used, and describes it.
type Health struct {
	Healthy bool `json:"healthy"`
	// Host is the address of the engine, without credentials.
	Host string `json:"host"`
	// Version is the engine's version, APIVersion the negotiated version of its API.
	Version    string `json:"version,omitempty"`
	APIVersion string `json:"apiVersion,omitempty"`
	// OS, Arch (as GOARCH), Kernel, CPUs and Memory (in bytes) describe the engine's
	// machine.
	OS            string   `json:"os,omitempty"`
	Arch          string   `json:"arch,omitempty"`
	Kernel        string   `json:"kernel,omitempty"`
	CPUs          int      `json:"cpus,omitempty"`
	Memory        int64    `json:"memoryBytes,omitempty"`
	StorageDriver string   `json:"storageDriver,omitempty"`
	CgroupVersion string   `json:"cgroupVersion,omitempty"`
	Runtimes      []string `json:"runtimes,omitempty"`
	Rootless      bool     `json:"rootless,omitempty"`
	// Warnings are about versions and settings of the engine's machine that may be a way out of
	// sandboxes. SECURITY.md has the list, as of this package's release.
	Warnings []Warning `json:"warnings,omitempty"`
	// Guidance says, for an engine that is not healthy, what was tried and what to do.
	Guidance string `json:"guidance,omitempty"`
}

// A Warning is about something on the engine's machine that may be a way out of sandboxes. It
// refuses nothing: distributions fix old versions without changing their numbers.
type Warning struct {
	// Subject is the component that the warning is about: "engine", "Docker Desktop",
	// "containerd", "runc" or "kernel"; or "seccomp", for the engine's settings.
	Subject string `json:"subject"`
	// Advisories have numbers such as "CVE-2024-21626". Nil for a setting.
	Advisories []string `json:"advisories,omitempty"`
	// Text says which version has the problem, which one is fixed, and what of it reaches a sandbox.
	Text string `json:"text"`
}

// CheckHealth checks whether the engine can be used, for at most 5 s. If it can't, the
// result has Guidance and the error is nil. The only error is the error of ctx.
func CheckHealth(ctx context.Context) (Health, error) { return defaultClient().CheckHealth(ctx) }

// CheckHealth is [CheckHealth] on the client's engine.
func (c *Client) CheckHealth(ctx context.Context) (_ Health, err error) {
	ctx, span := trace.Start(ctx, "sandbox.check_health")
	defer span.End(&err)
	ask, cancel := context.WithTimeout(ctx, healthTimeout)
	defer cancel()
	h, err := c.health(ask)
	switch {
	case ctx.Err() != nil:
		return Health{}, fail("check health", "", errdefs.Cancelled(ctx))
	case err == nil:
		h.Healthy = true
		return h, nil
	}
	h.Guidance = guidance(h, err)
	return h, nil
}

// healthTimeout bounds CheckHealth, so that a hung engine is an answer too.
const healthTimeout = 5 * time.Second

func (c *Client) health(ctx context.Context) (Health, error) {
	h := Health{Host: c.host}
	l, err := c.ownEngine(ctx)
	if err != nil {
		return h, err
	}
	h.Host = l.Engine.Host()
	// Concurrently: an engine that lists its networks slowly has not locked up.
	networks := make(chan error, 1)
	go func() { networks <- l.Engine.CheckNetworks(ctx) }()
	i, err := l.Engine.Info(ctx)
	if err != nil {
		return h, err
	}
	h.Version, h.APIVersion = i.Version, i.APIVersion
	h.OS, h.Arch, h.Kernel, h.CPUs, h.Memory = i.OS, i.Arch, i.Kernel, i.NCPU, i.MemTotal
	h.StorageDriver, h.CgroupVersion, h.Runtimes, h.Rootless = i.StorageDriver, i.CgroupVersion, i.Runtimes, i.Rootless
	if i.OSType != "" && i.OSType != "linux" {
		return h, fmt.Errorf("the engine runs %s containers; sandboxes need Linux: switch it to Linux containers", i.OSType)
	}
	warnings, err := l.Engine.Warnings(ctx, i)
	if err != nil {
		return h, err
	}
	for _, w := range warnings {
		h.Warnings = append(h.Warnings, Warning(w))
	}
	if err := <-networks; errors.Is(err, context.DeadlineExceeded) {
		return h, fmt.Errorf("the engine answers but does not list its networks, and will start no container: " +
			"it has locked up, as engines up to 20.10.26 can (moby#46661). Restart it")
	} else if err != nil {
		return h, err
	}
	return h, nil
}

// guidance says what to do about err. If the connection failed, the error of engine says
// so in detail.
func guidance(h Health, err error) string {
	var unreachable *engine.UnreachableError
	if errors.As(err, &unreachable) {
		return unreachable.Error()
	}
	var b strings.Builder
	where := h.Host
	if where == "" {
		where = "the engine that DOCKER_HOST or the current Docker context names"
	}
	if errors.Is(err, context.DeadlineExceeded) {
		fmt.Fprintf(&b, "%s did not answer within %v: it may be hung: check the daemon's log, then restart it", where, healthTimeout)
	} else {
		fmt.Fprintf(&b, "%s: %v", where, err)
	}
	b.WriteString(". To use another engine set DOCKER_HOST; a local one needs permission to open its socket (group docker)")
	return b.String()
}

// Support reports which features an engine supports. A nil field is a supported feature;
// any other is an [ErrUnsupported] with the reason.
type Support struct {
	// NetworkPolicy is for network policies in the engine's default OCI runtime. Without it
	// sandboxes can be created only with an [WithOCIRuntime] that enforces them.
	NetworkPolicy error
	// Reflink is for copies that share blocks with their source on the disk that holds
	// the engine's volumes. Without it, forks and copies of large files take the time and
	// the space of all their bytes.
	Reflink error
	// Limits is for limits of CPUs, memory and processes. Without it, or without CPUs alone, as
	// its text says, a sandbox has none, and options that set one fail.
	Limits error
	// Layers is for copies of files outside of volumes on the engine's disk. Without it a fork, a
	// snapshot or an update commits these files to an image. A commit takes 5 s for a gigabyte and
	// cuts times to seconds.
	Layers error
	// SharedFiles is for volumes that share the files of their snapshot, as overlays. Without it
	// these are copied. An engine is taken to support it until one could not be mounted.
	SharedFiles error
	// Runtimes are the names that [WithOCIRuntime] accepts.
	Runtimes []string
}

// MarshalJSON encodes an unsupported feature as its reason, and leaves out the others.
func (s Support) MarshalJSON() ([]byte, error) {
	reason := func(err error) string {
		if err == nil {
			return ""
		}
		return err.Error()
	}
	return json.Marshal(struct {
		NetworkPolicy string   `json:"networkPolicy,omitempty"`
		Reflink       string   `json:"reflink,omitempty"`
		Limits        string   `json:"limits,omitempty"`
		Layers        string   `json:"layers,omitempty"`
		SharedFiles   string   `json:"sharedFiles,omitempty"`
		Runtimes      []string `json:"runtimes"`
	}{reason(s.NetworkPolicy), reason(s.Reflink), reason(s.Limits), reason(s.Layers), reason(s.SharedFiles), s.Runtimes})
}

// CheckSupport tests which features the engine supports. Of an engine on which sandboxes are known
// not to work, such as Podman 4, the error is an [ErrUnsupported] with the reason.
func CheckSupport(ctx context.Context) (Support, error) { return defaultClient().CheckSupport(ctx) }

// CheckSupport is [CheckSupport] on the client's engine. It runs a container for some
// tenths of a second and caches the result for 10 minutes.
func (c *Client) CheckSupport(ctx context.Context) (_ Support, err error) {
	ctx, span := trace.Start(ctx, "sandbox.check_support")
	defer span.End(&err)
	defer wrap(&err, "check support", "")
	return c.support(ctx)
}

func (c *Client) support(ctx context.Context) (Support, error) {
	l, err := c.ownEngine(ctx)
	if err != nil {
		return Support{}, err
	}
	i, err := l.Engine.Info(ctx)
	if err != nil {
		return Support{}, err
	}
	if err := i.CheckVersion(); err != nil {
		return Support{}, err
	}
	can, err := l.Machine.Abilities(ctx, "")
	if err != nil {
		return Support{}, err
	}
	limits := machine.Limits(ctx, l.Engine, DefaultVCPUs)
	if limits != nil && !errors.Is(limits, ErrUnsupported) {
		return Support{}, limits
	}
	return Support{
		NetworkPolicy: can.Policy, Reflink: can.Reflink, Limits: limits,
		Layers: machine.Layers(i.StorageDriver), SharedFiles: l.Machine.SharedFiles(), Runtimes: i.Runtimes,
	}, nil
}

// Prune removes leftovers from the engine: what crashed programs left, images of failed updates and
// deleted snapshots, and the guest programs of other versions of this package that no sandbox uses.
// It does so at once, while clients remove what crashed programs left in the background. It keeps
// every sandbox that is persistent or may still have a handle, its volumes, and this version's
// guest. The error joins the failures.
func Prune(ctx context.Context) (PruneReport, error) { return defaultClient().Prune(ctx) }

// Prune is [Prune] on the client's engine.
func (c *Client) Prune(ctx context.Context) (report PruneReport, err error) {
	ctx, span := trace.Start(ctx, "sandbox.prune")
	defer span.End(&err)
	defer wrap(&err, "prune", "")
	report = PruneReport{Removed: []string{}, Failed: []string{}}
	var mu sync.Mutex
	var errs []error
	note := func(object string, err error) {
		mu.Lock()
		defer mu.Unlock()
		if err != nil {
			report.Failed = append(report.Failed, fmt.Sprintf("%s: %v", object, err))
			errs = append(errs, fmt.Errorf("%s: %w", object, err))
			return
		}
		report.Removed = append(report.Removed, object)
	}
	e, err := c.connect(ctx)
	if err != nil {
		return report, err
	}
	missing, err := e.Each(ctx, func(ctx context.Context, l *lifecycle.Client) error {
		all, err := l.Store.List(ctx)
		if err != nil {
			return err
		}
		l.Store.Sweep(ctx, all, note)
		return errors.Join(l.Machine.PruneGuests(ctx, all.Volumes, note), l.Store.PruneLayers(ctx, all, note))
	})
	if err == nil {
		err = e.Prune(ctx, note)
	}
	slices.Sort(report.Removed)
	slices.Sort(report.Failed)
	return report, errors.Join(append(errs, err, cluster.Unanswered(missing))...)
}

// PruneReport lists what [Prune] removed and what it could not remove.
type PruneReport struct {
	// Removed names the objects, sorted: "sandbox x", "volume y", "image z".
	Removed []string `json:"removed"`
	// Failed names the objects that could not be removed, each with the reason.
	Failed []string `json:"failed"`
}

// String returns one line for each object.
func (r PruneReport) String() string {
	lines := make([]string, 0, len(r.Removed)+len(r.Failed))
	for _, o := range r.Removed {
		lines = append(lines, o+": removed")
	}
	return strings.Join(append(lines, r.Failed...), "\n")
}
