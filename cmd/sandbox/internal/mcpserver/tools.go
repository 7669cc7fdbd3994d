package mcpserver

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/seed-1a2d6d8f/sandbox"
)

// add makes a tool of fn. An error of fn is the result of the call, for the agent to read.
func add[In, Out any](server *mcp.Server, name, description string, hints mcp.ToolAnnotations, fn func(context.Context, *mcp.CallToolRequest, In) (Out, error)) {
	mcp.AddTool(server, &mcp.Tool{Name: name, Description: description, Annotations: &hints},
		func(ctx context.Context, req *mcp.CallToolRequest, in In) (*mcp.CallToolResult, Out, error) {
			out, err := fn(ctx, req, in)
			return nil, out, err
		})
}

var (
	no       = false
	readOnly = mcp.ToolAnnotations{ReadOnlyHint: true, OpenWorldHint: &no}
	adds     = mcp.ToolAnnotations{DestructiveHint: &no, OpenWorldHint: &no}
	changes  = mcp.ToolAnnotations{OpenWorldHint: &no}
)

func (s *Server) addSandboxTools(server *mcp.Server) {
	l := s.limits
	var networks []string
	for _, n := range l.Networks {
		networks = append(networks, n.String())
	}
	mounts := "none"
	if len(l.Mounts) > 0 {
		mounts = strings.Join(l.Mounts, ", ")
	}
	add(server, "create", fmt.Sprintf("Create a sandbox. Images: %s. Network policies: %s. Mounts: %s. At most %g CPUs and %d bytes of memory. The first of each list is the default, except for mounts.",
		strings.Join(l.Images, ", "), strings.Join(networks, "; "), mounts, l.VCPUs, l.Memory), adds, s.create)
	add(server, "sandboxes", "List the sandboxes.", readOnly, s.list)
	add(server, "exec", fmt.Sprintf("Run a shell command in a sandbox and wait for it, %v at most. The result has its exit code and output, of which the middle is left out if it is longer than %d bytes. "+
		`A detached one goes on after the call: see the tool "logs".`, l.CommandTime, l.Output), changes, s.exec)
	add(server, "logs", "Read the output of detached commands.", readOnly, s.logs)
	add(server, "egress", "List the connections and lookups that a sandbox attempted, allowed or blocked by its network policy.", readOnly, s.egress)
	add(server, "fork", "Create a sandbox with the current files of another one. Processes are not copied.", adds, s.fork)
	add(server, "snapshot", "Keep the current files of a sandbox, for the tool \"rollback\".", adds, s.snapshot)
	add(server, "rollback", "Make the files of a sandbox those of a snapshot. Its processes end.", changes, s.rollback)
	add(server, "delete", "Delete a sandbox with its files.", changes, s.remove)
}

// In is the input of a tool for one sandbox.
type In struct {
	Sandbox string `json:"sandbox" jsonschema:"the name"`
}

// Named is a sandbox that was made or changed.
type Named struct {
	Name string `json:"name"`
	// LeftOut has a line for each file that was not copied as it was.
	LeftOut []string `json:"leftOut,omitempty" jsonschema:"files of the mounts or of the other sandbox that were left out or changed, and why"`
}

// leftOut returns a line for each of the first files that were not copied as they were.
func leftOut(report sandbox.CopyReport) (lines []string) {
	for _, skipped := range report.Skipped[:min(len(report.Skipped), maxLeftOut)] {
		lines = append(lines, skipped.String())
	}
	if n := int64(len(report.Skipped)-len(lines)) + report.More; n > 0 {
		lines = append(lines, fmt.Sprintf("and %d more", n))
	}
	return lines
}

// maxLeftOut bounds what a model has to read.
const maxLeftOut = 20

// Create is the input of the tool "create".
type Create struct {
	Image       string            `json:"image,omitempty"`
	Network     string            `json:"network,omitempty" jsonschema:"the network policy"`
	Mounts      []string          `json:"mounts,omitempty" jsonschema:"directories to mount, in the form that the description lists"`
	VCPUs       float64           `json:"vcpus,omitempty" jsonschema:"the number of CPUs"`
	MemoryBytes int64             `json:"memoryBytes,omitempty"`
	Env         map[string]string `json:"env,omitempty" jsonschema:"environment variables of all commands"`
}

func (s *Server) create(ctx context.Context, _ *mcp.CallToolRequest, in Create) (Named, error) {
	set, err := s.settings(in)
	if err != nil {
		return Named{}, err
	}
	return s.make(ctx, func() (*sandbox.Sandbox, error) {
		if s.pool != nil && *set.Image == s.limits.Images[0] && len(set.Mounts) == 0 {
			return s.pool.Create(ctx, sandbox.WithSettings(s.changes(in, set)))
		}
		return s.client.Create(ctx, sandbox.WithSettings(set))
	})
}

// openPool sets the pool, of sandboxes with the defaults.
func (s *Server) openPool(ctx context.Context) error {
	set, err := s.settings(Create{})
	if err != nil {
		return err
	}
	set.Persistent = nil // until it is handed over
	s.pool, err = s.client.NewPool(ctx, s.limits.Pool, sandbox.WithSettings(set))
	return err
}

// changes returns those of the settings that a sandbox of the pool does not have.
func (s *Server) changes(in Create, set sandbox.Settings) sandbox.Settings {
	live := sandbox.Settings{Env: set.Env}
	if in.Network != "" {
		live.Network = set.Network
	}
	if in.VCPUs != 0 {
		live.VCPUs = set.VCPUs
	}
	if in.MemoryBytes != 0 {
		live.MemoryBytes = set.MemoryBytes
	}
	if s.limits.Keep {
		live.Persistent = set.Persistent
	}
	return live
}

// settings returns the settings that were asked for, which are within the limits or an error.
func (s *Server) settings(in Create) (sandbox.Settings, error) {
	l := s.limits
	set := s.bounds()
	var errs []error
	if in.Image == "" {
		in.Image = l.Images[0]
	}
	if !slices.Contains(l.Images, in.Image) {
		errs = append(errs, fmt.Errorf("the image %q is not allowed: choose from %s", in.Image, strings.Join(l.Images, ", ")))
	}
	set.Image, set.Network = &in.Image, &l.Networks[0]
	if in.Network != "" {
		asked, err := sandbox.ParseNetworkPolicy(in.Network)
		i := slices.IndexFunc(l.Networks, func(n sandbox.NetworkPolicy) bool { return n.String() == asked.String() })
		if err != nil || i < 0 {
			errs = append(errs, fmt.Errorf("the network policy %q is not allowed: choose from those of the tool's description", in.Network))
		} else {
			set.Network = &l.Networks[i]
		}
	}
	for _, spec := range in.Mounts {
		if !slices.Contains(l.Mounts, spec) {
			errs = append(errs, fmt.Errorf("the mount %q is not allowed: choose from those of the tool's description", spec))
			continue
		}
		m, err := sandbox.ParseMount(spec)
		m.Remote = s.limits.Remote && m.Mode != sandbox.RWCopy
		set.Mounts, errs = append(set.Mounts, m), append(errs, err)
	}
	if in.VCPUs == 0 {
		in.VCPUs = min(sandbox.DefaultVCPUs, l.VCPUs)
	}
	if in.VCPUs < 0 || in.VCPUs > l.VCPUs {
		errs = append(errs, fmt.Errorf("%g CPUs are not allowed: %g is the limit", in.VCPUs, l.VCPUs))
	}
	if in.MemoryBytes == 0 {
		in.MemoryBytes = l.Memory
	}
	if in.MemoryBytes < 0 || in.MemoryBytes > l.Memory {
		errs = append(errs, fmt.Errorf("%d bytes of memory are not allowed: %d is the limit", in.MemoryBytes, l.Memory))
	}
	set.VCPUs, set.MemoryBytes, set.Env = &in.VCPUs, &in.MemoryBytes, in.Env
	return set, errors.Join(errs...)
}

// make makes one more sandbox.
func (s *Server) make(ctx context.Context, fn func() (*sandbox.Sandbox, error)) (Named, error) {
	if err := s.reserve(ctx); err != nil {
		return Named{}, err
	}
	sb, err := fn()
	s.admit(sb)
	if err != nil {
		return Named{}, err
	}
	return Named{sb.Name(), leftOut(sb.Copied())}, nil
}

func (s *Server) fork(ctx context.Context, _ *mcp.CallToolRequest, in In) (Named, error) {
	sb, err := s.get(in.Sandbox)
	if err != nil {
		return Named{}, err
	}
	return s.make(ctx, func() (*sandbox.Sandbox, error) { return sb.Fork(ctx, sandbox.WithSettings(s.bounds())) })
}

// None is the input of a tool that needs none.
type None struct{}

// List is the result of the tool "sandboxes".
type List struct {
	Sandboxes []Listed          `json:"sandboxes"`
	Snapshots map[string]string `json:"snapshots" jsonschema:"the sandbox of each snapshot, by the snapshot's ID"`
}

// Listed describes a sandbox.
type Listed struct {
	Name      string    `json:"name"`
	Status    string    `json:"status"`
	Image     string    `json:"image"`
	CreatedAt time.Time `json:"createdAt"`
}

func (s *Server) list(ctx context.Context, _ *mcp.CallToolRequest, _ None) (List, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all, err := s.forgetEnded(ctx)
	list := List{Sandboxes: []Listed{}, Snapshots: maps.Clone(s.snapshots)}
	for _, i := range all {
		list.Sandboxes = append(list.Sandboxes, Listed{Name: i.Name, Status: string(i.State), Image: i.Image, CreatedAt: i.CreatedAt})
	}
	return list, err
}

// Exec is the input of the tool "exec".
type Exec struct {
	Sandbox   string `json:"sandbox"`
	Command   string `json:"command" jsonschema:"for sh -c"`
	Workdir   string `json:"workdir,omitempty" jsonschema:"default /workspace"`
	Stdin     string `json:"stdin,omitempty"`
	TimeoutMS int64  `json:"timeoutMs,omitempty" jsonschema:"kill the command after this many milliseconds"`
	Detached  bool   `json:"detached,omitempty" jsonschema:"do not wait for the command"`
}

// Executed is the result of the tool "exec".
type Executed struct {
	ExitCode int    `json:"exitCode"`
	Output   string `json:"output" jsonschema:"stdout and stderr, in the order written"`
	Omitted  int64  `json:"omittedBytes,omitempty" jsonschema:"bytes that are missing in the middle of the output"`
	TimedOut bool   `json:"timedOut,omitempty"`
	// OutOfMemory is that of sandbox.ExitError.
	OutOfMemory bool   `json:"outOfMemory,omitempty" jsonschema:"the kernel killed the command, or a process of it, for memory"`
	SessionLost string `json:"sessionLost,omitempty" jsonschema:"why the session ended during the command, with all its processes"`
	ID          string `json:"id,omitempty" jsonschema:"the ID of a detached command"`
}

func (s *Server) exec(ctx context.Context, req *mcp.CallToolRequest, in Exec) (Executed, error) {
	sb, err := s.get(in.Sandbox)
	if err != nil {
		return Executed{}, err
	}
	limit := s.limits.CommandTime
	if in.TimeoutMS < 0 || in.TimeoutMS > limit.Milliseconds() {
		return Executed{}, fmt.Errorf("a timeout of %d ms is not allowed: %d is the limit", in.TimeoutMS, limit.Milliseconds())
	}
	if in.TimeoutMS > 0 {
		limit = time.Duration(in.TimeoutMS) * time.Millisecond
	}
	cmd := sb.Command(ctx, "sh", "-c", in.Command)
	cmd.Dir = in.Workdir
	if in.Stdin != "" {
		cmd.Stdin = strings.NewReader(in.Stdin)
	}
	if in.Detached {
		cmd.Detached = true
		if err := cmd.Start(); err != nil {
			return Executed{}, err
		}
		return Executed{ID: cmd.ID()}, nil
	}
	out := &output{max: s.limits.Output, report: s.reporter(ctx, req)}
	cmd.Stdout, cmd.Stderr, cmd.Timeout = out, out, limit
	err = cmd.Run()
	var exit *sandbox.ExitError
	if err != nil && !errors.As(err, &exit) {
		return Executed{}, err
	}
	result := Executed{TimedOut: errors.Is(err, sandbox.ErrTimeout)}
	if exit != nil {
		result.ExitCode, result.OutOfMemory = exit.ExitCode(), exit.OutOfMemory
		if errors.Is(exit, sandbox.ErrSessionLost) {
			result.SessionLost = exit.Unwrap().Error()
		}
	}
	result.Output, result.Omitted = out.text()
	return result, nil
}

// Logs is the input of the tool "logs".
type Logs struct {
	Sandbox string `json:"sandbox"`
	Command string `json:"command,omitempty" jsonschema:"the ID of one command; default all"`
	Tail    int    `json:"tail,omitempty" jsonschema:"the number of lines at the end, default 100"`
}

// Text is a result that is text.
type Text struct {
	Text    string `json:"text"`
	Omitted int64  `json:"omittedBytes,omitempty" jsonschema:"bytes that are missing in the middle of the text"`
}

func (s *Server) logs(ctx context.Context, _ *mcp.CallToolRequest, in Logs) (Text, error) {
	sb, err := s.get(in.Sandbox)
	if err != nil {
		return Text{}, err
	}
	if in.Tail <= 0 {
		in.Tail = 100
	}
	o := sandbox.LogOptions{Tail: in.Tail}
	if in.Command != "" {
		o.Tail = 0 // the lines of one command are selected here
	}
	out := &output{max: s.limits.Output}
	var last []string
	for line, err := range sb.Logs(ctx, o) {
		if err != nil {
			return Text{}, err
		}
		switch {
		case in.Command == "":
			fmt.Fprintln(out, line.Text)
		case line.Command == in.Command:
			if last = append(last, line.Text); len(last) > in.Tail {
				last = last[1:]
			}
		}
	}
	for _, line := range last {
		fmt.Fprintln(out, line)
	}
	var text Text
	text.Text, text.Omitted = out.text()
	return text, nil
}

// Attempts is the result of the tool "egress".
type Attempts struct {
	Attempts []Attempt `json:"attempts"`
}

// Attempt is one kind of connection or lookup that the sandbox attempted.
type Attempt struct {
	Name     string    `json:"name,omitempty"`
	Address  string    `json:"address,omitempty"`
	Port     uint16    `json:"port,omitempty"`
	Protocol string    `json:"protocol"`
	Rule     string    `json:"rule" jsonschema:"what decided"`
	Allowed  bool      `json:"allowed"`
	Failure  string    `json:"failure,omitempty" jsonschema:"why an allowed connection did not come about"`
	Count    int64     `json:"count"`
	Last     time.Time `json:"last"`
}

func (s *Server) egress(ctx context.Context, _ *mcp.CallToolRequest, in In) (Attempts, error) {
	out := Attempts{Attempts: []Attempt{}}
	sb, err := s.get(in.Sandbox)
	if err != nil {
		return out, err
	}
	all, err := sb.Egress(ctx)
	for _, e := range all {
		a := Attempt{Name: e.Name, Port: e.Port, Protocol: e.Protocol, Rule: e.Rule, Allowed: e.Allowed, Failure: e.Failure, Count: e.Count, Last: e.Last}
		if e.Address.IsValid() {
			a.Address = e.Address.String()
		}
		out.Attempts = append(out.Attempts, a)
	}
	return out, err
}

// Snapshot is the result of the tool "snapshot".
type Snapshot struct {
	ID      string   `json:"id"`
	LeftOut []string `json:"leftOut,omitempty" jsonschema:"files that are not in the snapshot, or are changed, and why"`
}

func (s *Server) snapshot(ctx context.Context, _ *mcp.CallToolRequest, in In) (Snapshot, error) {
	sb, err := s.get(in.Sandbox)
	if err != nil {
		return Snapshot{}, err
	}
	if err := s.reserveSnapshot(); err != nil {
		return Snapshot{}, err
	}
	var o sandbox.SnapshotOptions
	if !s.limits.Keep {
		o.Expiry = s.limits.Lifetime // if this program is killed
	}
	snap, err := sb.Snapshot(ctx, o)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taking--
	defer s.settle()
	if err != nil {
		return Snapshot{}, err
	}
	s.snapshots[snap.ID] = sb.Name()
	return Snapshot{snap.ID, leftOut(*snap.Copied)}, nil
}

// reserveSnapshot counts one more snapshot that is being taken. The caller calls settle afterwards.
func (s *Server) reserveSnapshot() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone {
		return errGone
	}
	if n := len(s.snapshots) + s.taking; n >= s.limits.Snapshots {
		return fmt.Errorf("there are %d snapshots, which is the limit", n)
	}
	s.taking++
	return nil
}

// Rollback is the input of the tool "rollback".
type Rollback struct {
	Sandbox  string `json:"sandbox"`
	Snapshot string `json:"snapshot" jsonschema:"the ID of a snapshot"`
}

func (s *Server) rollback(ctx context.Context, _ *mcp.CallToolRequest, in Rollback) (Named, error) {
	sb, err := s.get(in.Sandbox)
	if err != nil {
		return Named{}, err
	}
	s.mu.Lock()
	_, ok := s.snapshots[in.Snapshot]
	s.mu.Unlock()
	if !ok {
		return Named{}, fmt.Errorf("there is no snapshot %q: see the tool \"sandboxes\"", in.Snapshot)
	}
	if err := sb.Rollback(ctx, in.Snapshot); err != nil {
		return Named{}, err
	}
	return Named{Name: sb.Name()}, nil
}

func (s *Server) remove(ctx context.Context, _ *mcp.CallToolRequest, in In) (None, error) {
	sb, err := s.get(in.Sandbox)
	if err != nil {
		return None{}, err
	}
	if _, err := sb.Delete(ctx, sandbox.DeleteOptions{Volumes: true}); err != nil && !errors.Is(err, sandbox.ErrNotFound) {
		return None{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.sandboxes, in.Sandbox)
	return None{}, sb.Detach()
}
