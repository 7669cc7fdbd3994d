package sandbox

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// A Client makes and finds sandboxes on one Docker Engine. It is safe for concurrent
// use. The package's functions use a client of their own, for the engine that
// DOCKER_HOST or the current Docker context names.
type Client struct {
	host   string
	log    *slog.Logger
	limits Limits

	connecting gate // held while the engine is connected to
	placing    gate // held while the guest is placed

	machine, bridge seen[wire.Probe] // of the engine's network
	able            seen[wire.Abilities]
	dns             []netip.Addr // see WithDNS
	authorities     string       // see WithAuthorities

	mu     sync.Mutex
	eng    *engine.Engine
	guest  guestVolume     // known to be on the engine
	proven map[string]bool // OCI runtimes that have enforced a network policy
	apart  bool            // the engine is known to run under another kernel
	// commits makes forks by the engine's commit where a copy on its disk would do.
	commits   bool
	noOverlay bool // the engine is known to mount no overlays
	// smallLayers are sandboxes whose layer was small when it was last copied, by ID.
	smallLayers map[string]bool
	sizing      sizing
	closed      bool
	swept       time.Time // when this client last swept
	places      gate      // one for each sandbox that may be in the making
}

// Limits are a client's own bounds on what it makes.
type Limits struct {
	// Creates bounds how many sandboxes are being made at once; more wait. Creating
	// is bound by the engine's CPUs: beyond three times their number only the waiting
	// grows. Default: three times the engine's CPUs, at least 2 and at most 16.
	Creates int
	// Ports bounds how many ports one sandbox may publish, see [WithPorts]. Default 4.
	Ports int
}

// A ClientOption configures [NewClient].
type ClientOption func(*Client) error

// WithHost names the engine: unix:///path, tcp://host:port (TLS by DOCKER_TLS_VERIFY
// and DOCKER_CERT_PATH) or ssh://user@host, which runs "docker system dial-stdio"
// there. Default: DOCKER_HOST, then the current Docker context, then the platform's
// default socket.
func WithHost(host string) ClientOption {
	return func(c *Client) error {
		if host == "" {
			return invalid("WithHost: the host is empty")
		}
		c.host = host
		return nil
	}
}

// WithLogger lets the client tell of what it can't return: a resumed session, a sweep,
// a lost connection. Default: nothing is logged.
func WithLogger(log *slog.Logger) ClientOption {
	return func(c *Client) error {
		if log == nil {
			return invalid("WithLogger: the logger is nil")
		}
		c.log = log
		return nil
	}
}

// WithLimits sets the client's limits; a zero field keeps its default.
func WithLimits(l Limits) ClientOption {
	return func(c *Client) error {
		if l.Creates < 0 || l.Ports < 0 {
			return invalid("WithLimits: %+v: a limit is not negative", l)
		}
		c.limits = l
		return nil
	}
}

// WithDNS names the DNS servers that the sandboxes this client makes, and the sessions it
// begins, look names up at: up to 8 addresses, asked in this order. They may be private,
// and still are none that a sandbox reaches by itself. Default: those that the engine
// gives to containers.
func WithDNS(servers ...netip.Addr) ClientOption {
	return func(c *Client) error {
		if len(servers) == 0 || len(servers) > wire.MaxUpstream {
			return invalid("WithDNS: %d servers: it takes 1 to %d", len(servers), wire.MaxUpstream)
		}
		for _, a := range servers {
			if !a.IsValid() || a.Zone() != "" || a.IsUnspecified() || a.IsMulticast() || a.Is4In6() {
				return invalid("WithDNS: %q can't be a DNS server", a)
			}
		}
		c.dns = slices.Clone(servers)
		return nil
	}
}

// maxAuthorities bounds what a session is told of certificates: several times what the
// public authorities have in all.
const maxAuthorities = 512 << 10

// WithAuthorities adds certificates of authorities, in PEM and 512 KiB at most, for the
// servers that a [Transform] is meant for, which is where the sandbox's PID 1 is the
// client and verifies the server. Default: the public ones, which count in any case.
func WithAuthorities(pem []byte) ClientOption {
	return func(c *Client) error {
		if len(pem) > maxAuthorities || !x509.NewCertPool().AppendCertsFromPEM(pem) {
			return invalid("WithAuthorities: %d bytes that are not certificates in PEM, or more than %d", len(pem), maxAuthorities)
		}
		c.authorities = string(pem)
		return nil
	}
}

// NewClient returns a client. It does not connect: the first call that needs the
// engine does, and fails with [ErrEngineUnavailable] when there is none. The caller
// closes it.
func NewClient(opts ...ClientOption) (*Client, error) {
	c := &Client{log: slog.New(slog.DiscardHandler), connecting: newGate(), placing: newGate(),
		machine: seen[wire.Probe]{looking: newGate()}, bridge: seen[wire.Probe]{looking: newGate()}, able: seen[wire.Abilities]{looking: newGate()}}
	for _, o := range opts {
		if err := o(c); err != nil {
			return nil, fail("client", "", err)
		}
	}
	return c, nil
}

// Close lets go of the client's connections. Sandboxes go on; handles made by the
// client are of no use any more and should be closed first.
func (c *Client) Close() error {
	c.mu.Lock()
	eng := c.eng
	c.eng, c.closed = nil, true
	c.mu.Unlock()
	if eng == nil {
		return nil
	}
	return eng.Close()
}

// engine returns the connection, made by the first caller. A failure is not kept: the
// engine may come up.
func (c *Client) engine(ctx context.Context) (*engine.Engine, error) {
	if eng, err := c.connected(); eng != nil || err != nil {
		return eng, err
	}
	leave, err := c.connecting.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	if eng, err := c.connected(); eng != nil || err != nil {
		return eng, err
	}
	eng, err := engine.Open(ctx, engine.Options{Host: c.host})
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, errors.Join(ErrClosed, eng.Close())
	}
	c.eng = eng
	return eng, nil
}

func (c *Client) connected() (*engine.Engine, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, ErrClosed
	}
	return c.eng, nil
}

// A gate lets one in at a time, and those who wait can give up.
type gate chan struct{}

func newGate() gate { return make(gate, 1) }

func (g gate) enter(ctx context.Context) (leave func(), err error) {
	select {
	case g <- struct{}{}:
		return func() { <-g }, nil
	case <-ctx.Done():
		return nil, cancelled(ctx)
	}
}

var defaultClient = sync.OnceValue(func() *Client {
	c, _ := NewClient() // without options nothing can be wrong
	return c
})

// holder says who we are to people who read a pending marker.
var holder = sync.OnceValue(func() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("process %d on %s", os.Getpid(), host)
})

// Create makes a new sandbox and starts its session. It returns when the sandbox can
// be used; the handle is the caller's to [Sandbox.Close]. When it fails nothing is
// left behind, also when ctx ended in the middle.
//
// Without options it is an unnamed, not persistent sandbox of [DefaultImage] with one
// CPU and 2048 MiB. A name that is taken is [ErrExists].
func Create(ctx context.Context, opts ...CreateOption) (*Sandbox, error) {
	return defaultClient().Create(ctx, opts...)
}

// Get returns a handle on the sandbox of that name, or else of that ID, and resumes
// it when it is stopped ([WithoutResume] does not). It waits for a sandbox that is
// still being made. [ErrNotFound] when there is none.
func Get(ctx context.Context, nameOrID string, opts ...GetOption) (*Sandbox, error) {
	return defaultClient().Get(ctx, nameOrID, opts...)
}

// GetOrCreate returns the sandbox of that name, resumed, and makes it when there is
// none: of any number of callers in any number of processes one creates it and calls
// OnCreate, and the others wait and get the same sandbox. Options that only matter to
// making it are ignored when it exists.
func GetOrCreate(ctx context.Context, name string, opts ...CreateOption) (*Sandbox, error) {
	return defaultClient().GetOrCreate(ctx, name, opts...)
}

// Inspect tells of a sandbox without resuming it.
func Inspect(ctx context.Context, nameOrID string) (Status, error) {
	return defaultClient().Inspect(ctx, nameOrID)
}

// List tells of all sandboxes on the engine, the newest first, then by name, in two
// engine calls whatever their number. It removes what crashed programs left behind.
func List(ctx context.Context, opts ...ListOption) ([]Info, error) {
	return defaultClient().List(ctx, opts...)
}

// Delete removes a sandbox for good: its session is stopped gracefully, its container
// removed, its name free. Volumes are preserved unless [PreserveVolumes] says
// otherwise; the report tells what became of each, also beside an error.
func Delete(ctx context.Context, nameOrID string, opts ...DeleteOption) (DeleteReport, error) {
	return defaultClient().Delete(ctx, nameOrID, opts...)
}

// ListVolumes tells of the volumes that hold sandboxes' files, by name: those of
// sandboxes that are there, and those that deleted ones left. Sizes take the engine a
// look at every file of every volume it has.
func ListVolumes(ctx context.Context) ([]Volume, error) {
	return defaultClient().ListVolumes(ctx)
}

// OrphanedVolumes tells of the volumes that no sandbox mounts. It changes nothing.
func OrphanedVolumes(ctx context.Context) ([]Volume, error) {
	return defaultClient().OrphanedVolumes(ctx)
}

// DeleteVolume deletes a volume of [ListVolumes] for good. While sandboxes mount it,
// running or not, that is [ErrVolumeInUse] unless [Force] says otherwise; a container
// that is not a sandbox always keeps it. The report tells what became of it, and of the
// other volumes of sandboxes that were deleted with it.
func DeleteVolume(ctx context.Context, name string, opts ...DeleteVolumeOption) (DeleteReport, error) {
	return defaultClient().DeleteVolume(ctx, name, opts...)
}

// CleanupOrphanedVolumes removes the volumes of [OrphanedVolumes] for good: also those
// that a deletion preserved. Options narrow it. One that can't be removed does not keep
// the others; the report tells of each, also beside an error.
func CleanupOrphanedVolumes(ctx context.Context, opts ...CleanupOption) (CleanupReport, error) {
	return defaultClient().CleanupOrphanedVolumes(ctx, opts...)
}

// A place is one among the sandboxes being made. Whoever waits for something else in the
// meantime may leave it and enter again.
type place struct {
	c    *Client
	eng  *engine.Engine
	left func() // nil outside
}

// enter waits for a place.
func (p *place) enter(ctx context.Context) error {
	c := p.c
	c.mu.Lock()
	places := c.places
	c.mu.Unlock()
	if places == nil {
		n := c.limits.Creates
		if n == 0 {
			info, err := p.eng.Info(ctx)
			if err != nil {
				return err
			}
			n = min(max(3*info.NCPU, 2), 16)
		}
		c.mu.Lock()
		if c.places == nil {
			c.places = make(gate, n)
		}
		places = c.places
		c.mu.Unlock()
	}
	var err error
	p.left, err = places.enter(ctx)
	return err
}

// leave gives the place to the next one. It may be called often.
func (p *place) leave() {
	if p.left != nil {
		p.left()
		p.left = nil
	}
}
