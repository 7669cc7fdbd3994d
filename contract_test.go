package sandbox_test

import (
	"context"
	"io"
	"io/fs"
	"iter"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
)

// The package's names are a contract. What does not compile here breaks programs that
// other people have written.
var (
	_ func(context.Context, ...sandbox.CreateOption) (*sandbox.Sandbox, error)                 = sandbox.Create
	_ func(context.Context, string, ...sandbox.GetOption) (*sandbox.Sandbox, error)            = sandbox.Get
	_ func(context.Context, string, ...sandbox.CreateOption) (*sandbox.Sandbox, error)         = sandbox.GetOrCreate
	_ func(context.Context, string, ...sandbox.ForkOption) (*sandbox.Sandbox, error)           = sandbox.Fork
	_ func(context.Context, sandbox.ListOptions) ([]sandbox.Info, error)                       = sandbox.List
	_ func(context.Context, string) (sandbox.Status, error)                                    = sandbox.Inspect
	_ func(context.Context, string, sandbox.DeleteOptions) (sandbox.DeleteReport, error)       = sandbox.Delete
	_ func(context.Context) ([]sandbox.Volume, error)                                          = sandbox.ListVolumes
	_ func(context.Context) ([]sandbox.Volume, error)                                          = sandbox.OrphanedVolumes
	_ func(context.Context, string, sandbox.DeleteVolumeOptions) (sandbox.DeleteReport, error) = sandbox.DeleteVolume
	_ func(context.Context, sandbox.CleanupOptions) (sandbox.CleanupReport, error)             = sandbox.CleanupOrphanedVolumes
	_ func(context.Context, string) error                                                      = sandbox.DeleteSnapshot
	_ func(context.Context, string) (sandbox.Snapshot, error)                                  = sandbox.GetSnapshot
	_ func(context.Context) ([]*sandbox.SnapshotNode, error)                                   = sandbox.SnapshotTree
	_ func(context.Context) (sandbox.Health, error)                                            = sandbox.CheckHealth
	_ func(...sandbox.ClientOption) (*sandbox.Client, error)                                   = sandbox.NewClient
	_ func(string) (sandbox.Mount, error)                                                      = sandbox.ParseMount
	_ func(string) (sandbox.Mount, error)                                                      = sandbox.ParseVolumeMount
)

var _ interface {
	ID() string
	Name() string
	Status(context.Context) (sandbox.Status, error)
	Start(context.Context) (sandbox.State, error)
	Stop(context.Context) (sandbox.State, error)
	Update(context.Context, ...sandbox.UpdateOption) error
	ExtendTimeout(context.Context, time.Duration) error
	Delete(context.Context, sandbox.DeleteOptions) (sandbox.DeleteReport, error)
	Close() error
	Detach() error
	Snapshot(context.Context, sandbox.SnapshotOptions) (sandbox.Snapshot, error)
	Rollback(context.Context, string) error
	Fork(context.Context, ...sandbox.ForkOption) (*sandbox.Sandbox, error)
	ForkN(context.Context, int, ...sandbox.ForkOption) ([]sandbox.ForkResult, error)
	Command(context.Context, string, ...string) *sandbox.Cmd
	Process(context.Context, string) (*sandbox.Cmd, error)
	Processes(context.Context) ([]sandbox.ProcessInfo, error)
	FS() fs.FS
	ReadFile(context.Context, string) ([]byte, error)
	WriteFile(context.Context, string, []byte, fs.FileMode) error
	MkdirAll(context.Context, string, fs.FileMode) error
	Remove(context.Context, string) error
	RemoveAll(context.Context, string) error
	Rename(context.Context, string, string) error
	Stat(context.Context, string) (fs.FileInfo, error)
	Symlink(context.Context, string, string) error
	Chmod(context.Context, string, fs.FileMode) error
	Chown(context.Context, string, int, int) error
	Open(context.Context, string) (*sandbox.File, error)
	Create(context.Context, string) (*sandbox.File, error)
	CopyIn(context.Context, string, string, sandbox.CopyOptions) (sandbox.CopyReport, error)
	CopyOut(context.Context, string, string, sandbox.CopyOptions) (sandbox.CopyReport, error)
	DialContext(context.Context, string, string) (net.Conn, error)
	Port(context.Context, int) (netip.AddrPort, error)
	WaitPort(context.Context, int) error
	Logs(context.Context, sandbox.LogOptions) iter.Seq2[sandbox.LogLine, error]
} = (*sandbox.Sandbox)(nil)

var _ interface {
	Run() error
	Start() error
	Wait() error
	Output() ([]byte, error)
	CombinedOutput() ([]byte, error)
	StdinPipe() (io.WriteCloser, error)
	StdoutPipe() (io.ReadCloser, error)
	StderrPipe() (io.ReadCloser, error)
	Signal(os.Signal) error
	Kill() error
	Resize(rows, cols uint16) error
	ID() string
	String() string
} = (*sandbox.Cmd)(nil)

// callSites is compiled and never called.
func callSites(ctx context.Context, log *slog.Logger, r io.Reader) {
	each := func(context.Context, *sandbox.Sandbox) error { return nil }
	sandbox.NewClient(sandbox.WithHost("unix:///var/run/docker.sock"), sandbox.WithLogger(log), sandbox.WithLimits(sandbox.Limits{Ports: 15}))
	sb, _ := sandbox.Create(ctx,
		sandbox.WithName("build-42"), sandbox.WithID("id"), sandbox.WithImage("image"), sandbox.WithRuntime("node20"), sandbox.WithEmulation(),
		sandbox.WithSource(sandbox.Git{URL: "https://example.com/x.git", Revision: "main", Depth: 1, Username: "u", Password: "p"}),
		sandbox.WithSource(sandbox.Tarball{URL: "https://example.com/x.tar.gz"}), sandbox.WithSource(sandbox.Tarball{Path: "x.tar"}),
		sandbox.WithSource(sandbox.Tarball{Reader: r}), sandbox.WithSource(sandbox.FromSnapshot("id")), sandbox.WithSource(sandbox.Dir("src")),
		sandbox.WithPorts(3000, 8080), sandbox.WithTimeout(10*time.Minute), sandbox.WithVCPUs(2), sandbox.WithMemory(1<<30),
		sandbox.WithNetworkPolicy(sandbox.AllowAll()), sandbox.WithNetworkPolicy(sandbox.DenyAll()), sandbox.WithNetworkPolicy(sandbox.PublicOnly()),
		sandbox.WithNetworkPolicy(sandbox.NetworkPolicy{
			Allow:   []string{"*.example.com"},
			Subnets: sandbox.Subnets{Allow: []string{"192.0.2.0/24"}, Deny: []string{"198.51.100.0/24"}},
		}),
		sandbox.WithEnv(map[string]string{"K": "v"}), sandbox.WithTags(map[string]string{"k": "v"}), sandbox.WithPersistent(true),
		sandbox.WithMounts(sandbox.Mount{Source: "/src", Target: "/dst", Mode: sandbox.RWCopy}, sandbox.Mount{Volume: "v", Target: "/v", Mode: sandbox.RO}),
		sandbox.WithUser("node"), sandbox.WithWorkdir("/workspace"), sandbox.WithCommand("sleep", "1"), sandbox.WithProgress(func(sandbox.Progress) {}),
		sandbox.WithStopTimeout(time.Second), sandbox.OnCreate(each), sandbox.OnResume(each),
	)
	defer sb.Close()
	sandbox.Get(ctx, "build-42", sandbox.WithoutResume(), sandbox.OnResume(each))
	sandbox.Fork(ctx, "build-42", sandbox.WithName("fork"), sandbox.WithVCPUs(4), sandbox.WithEnv(nil), sandbox.WithTags(nil), sandbox.WithPorts(3000),
		sandbox.WithTimeout(time.Minute), sandbox.WithNetworkPolicy(sandbox.DenyAll()), sandbox.WithPersistent(false))
	sandbox.List(ctx, sandbox.ListOptions{States: []sandbox.State{sandbox.StateRunning}, Tags: map[string]string{"k": "v"}, Prefix: "x"})
	sandbox.Delete(ctx, "build-42", sandbox.DeleteOptions{Volumes: true, Snapshots: true})
	sandbox.DeleteVolume(ctx, "v", sandbox.DeleteVolumeOptions{Force: true})
	sandbox.ListSnapshots(ctx, sandbox.ListSnapshotsOptions{})
	sandbox.Prune(ctx)
	sb.Update(ctx, sandbox.WithVCPUs(2), sandbox.WithTags(nil), sandbox.WithTimeout(time.Hour), sandbox.WithNetworkPolicy(sandbox.DenyAll()), sandbox.WithPorts(3000))
	sb.Logs(ctx, sandbox.LogOptions{Tail: 100, Follow: true, Since: time.Now()})

	cmd := sb.Command(ctx, "node", "-e", "1")
	cmd.Path, cmd.Args, cmd.Env, cmd.Dir = "node", []string{"node"}, []string{"K=v"}, "/"
	cmd.Stdin, cmd.Stdout, cmd.Stderr = r, io.Discard, io.Discard
	cmd.User, cmd.TTY, cmd.Timeout, cmd.Detached = "root", true, time.Second, true
	exit := &sandbox.ExitError{}
	_, _, _ = exit.ExitCode(), exit.Signal, exit.Stderr

	_ = sandbox.Info{ID: "", Name: "", State: sandbox.StateRunning, Image: "", CreatedAt: time.Time{}, Location: "", Tags: nil}
	var s sandbox.Status
	_, _, _, _, _, _, _, _, _, _ = s.Info, s.Reason, s.StartedAt, s.EndedAt, s.Uptime, s.ExpiresAt, s.Usage, s.Workspace, s.Ports, s.LogsEndpoint
	var v sandbox.Volume
	_, _, _, _, _, _, _, _, _, _, _ = v.Name, v.Role, v.SizeBytes, v.Size, v.Sandboxes, v.CreatedAt, v.CreatedBy, v.Source, v.InUse, v.Orphaned, v.Warning
	_ = sandbox.DeleteReport{Volumes: []sandbox.VolumeOutcome{{Name: "", Status: "", Reason: ""}}}.String()
	var c sandbox.CleanupReport
	_, _, _, _ = c.Removed, c.FreedBytes, c.Failed, c.String()
	var h sandbox.Health
	_, _, _, _ = h.Healthy, h.Version, h.APIVersion, h.Guidance
	var l sandbox.LogLine
	_, _, _, _ = l.Stream, l.Time, l.Text, l.Command
	var snap sandbox.Snapshot
	_, _, _, _, _ = snap.ID, snap.Name, snap.Sandbox, snap.CreatedAt, snap.SizeBytes
	_ = []error{
		sandbox.ErrNotFound, sandbox.ErrExists, sandbox.ErrVolumeInUse, sandbox.ErrVolumeNotFound, sandbox.ErrSnapshotNotFound, sandbox.ErrInvalidArgument,
		sandbox.ErrEngineUnavailable, sandbox.ErrImageNotFound, sandbox.ErrForeign, sandbox.ErrUnsupported, sandbox.ErrClosed, sandbox.ErrNotRunning, sandbox.ErrTimeout, sandbox.ErrTooLarge,
	}
	_ = (&sandbox.Error{Op: "", Name: "", Err: nil}).StatusCode()
}

var _ = callSites
