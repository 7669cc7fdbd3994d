package mcpserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/sandboxtools"
)

var (
	no       = false
	readOnly = mcp.ToolAnnotations{ReadOnlyHint: true, OpenWorldHint: &no}
	adds     = mcp.ToolAnnotations{DestructiveHint: &no, OpenWorldHint: &no}
	changes  = mcp.ToolAnnotations{OpenWorldHint: &no}
)

// Schemas of the tools' arguments, within the strict subsets of the vendors as in package sandboxtools:
// what may be left out may be null, and lists may be empty.
const (
	noSchema       = `{"type":"object","properties":{},"required":[],"additionalProperties":false}`
	sandboxSchema  = `{"type":"object","properties":{"sandbox":{"type":"string","description":"the name"}},"required":["sandbox"],"additionalProperties":false}`
	rollbackSchema = `{"type":"object","properties":{"sandbox":{"type":"string","description":"the name"},
		"snapshot":{"type":"string","description":"the ID of a snapshot"}},"required":["sandbox","snapshot"],"additionalProperties":false}`
	killSchema = `{"type":"object","properties":{"sandbox":{"type":"string","description":"the name"},
		"id":{"type":"string","description":"the id that the tool bash returned"}},"required":["sandbox","id"],"additionalProperties":false}`
	createSchema = `{"type":"object","properties":{
		"image":{"type":["string","null"],"description":"one of the images of the description"},
		"network":{"type":["string","null"],"description":"one of the network policies of the description"},
		"mounts":{"type":"array","items":{"type":"string"},"description":"directories to mount, in the form that the description lists"},
		"vcpus":{"type":["number","null"],"description":"the number of CPUs"},
		"memoryBytes":{"type":["integer","null"],"description":"the memory limit"},
		"env":{"type":"array","items":{"type":"string"},"description":"environment variables of all commands, as NAME=value"}},
		"required":["image","network","mounts","vcpus","memoryBytes","env"],"additionalProperties":false}`
)

// add makes a tool of fn. An error of fn is the result of the call, for the agent to read.
func add[In, Out any](server *mcp.Server, name, title, description string, hints mcp.ToolAnnotations, schema string, fn func(context.Context, In) (Out, error)) {
	server.AddTool(&mcp.Tool{Name: name, Title: title, Description: description, Annotations: &hints, InputSchema: json.RawMessage(schema)},
		func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			var in In
			if err := decode(req.Params.Arguments, &in); err != nil {
				return failed(fmt.Errorf("the arguments of the tool %s: %w", name, err)), nil
			}
			out, err := fn(ctx, in)
			if err != nil {
				return failed(err), nil
			}
			text, err := json.Marshal(out)
			if err != nil {
				return nil, err
			}
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: string(text)}}, StructuredContent: out}, nil
		})
}

func decode(args json.RawMessage, in any) error {
	if len(args) == 0 {
		return nil
	}
	d := json.NewDecoder(strings.NewReader(string(args)))
	d.DisallowUnknownFields()
	return d.Decode(in)
}

func failed(err error) *mcp.CallToolResult {
	return &mcp.CallToolResult{IsError: true, Content: []mcp.Content{&mcp.TextContent{Text: err.Error()}}}
}

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
	add(server, "sandbox_create", "Create a sandbox", fmt.Sprintf("Create a sandbox. Images: %s. Network policies: %s. Mounts: %s. At most %g CPUs and %d bytes of memory. The first of each list is the default, except for mounts.",
		strings.Join(l.Images, ", "), strings.Join(networks, "; "), mounts, l.VCPUs, l.Memory), adds, createSchema, s.create)
	add(server, "sandbox_list", "List sandboxes and snapshots", "List the sandboxes and the snapshots.", readOnly, noSchema, s.list)
	add(server, "sandbox_egress", "List attempted connections", "List the connections and lookups that a sandbox attempted, allowed or blocked by its network policy.", readOnly, sandboxSchema, s.egress)
	add(server, "sandbox_fork", "Fork a sandbox", "Create a sandbox with the current files of another one. Processes are not copied.", adds, sandboxSchema, s.fork)
	add(server, "sandbox_snapshot", "Take a snapshot", "Keep the current files of a sandbox, for the tool \"sandbox_rollback\".", adds, sandboxSchema, s.snapshot)
	add(server, "sandbox_rollback", "Roll back to a snapshot", "Make the files of a sandbox those of a snapshot. Its processes end, and its shell begins anew.", changes, rollbackSchema, s.rollback)
	add(server, "sandbox_kill", "End a command in the background", "End a command that the tool \"bash\" started in the background, with all processes that it started.", changes, killSchema, s.kill)
	add(server, "sandbox_delete", "Delete a sandbox", "Delete a sandbox with its files.", changes, sandboxSchema, s.remove)
}

// In is the input of a tool for one sandbox.
type In struct {
	Sandbox string `json:"sandbox"`
}

// Named is a sandbox that was made or changed.
type Named struct {
	Name string `json:"name"`
	// LeftOut has a line for each file that was not copied as it was.
	LeftOut []string `json:"leftOut,omitempty"`
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

// Create is the input of the tool "sandbox_create".
type Create struct {
	Image       string   `json:"image,omitempty"`
	Network     string   `json:"network,omitempty"`
	Mounts      []string `json:"mounts,omitempty"`
	VCPUs       float64  `json:"vcpus,omitempty"`
	MemoryBytes float64  `json:"memoryBytes,omitempty"`
	Env         []string `json:"env,omitempty"`
}

func (s *Server) create(ctx context.Context, in Create) (Named, error) {
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
	set.Env = map[string]string{}
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
	memory := l.Memory
	if in.MemoryBytes != 0 {
		memory = int64(in.MemoryBytes)
	}
	if in.MemoryBytes < 0 || in.MemoryBytes > float64(l.Memory) || in.MemoryBytes != math.Trunc(in.MemoryBytes) {
		errs = append(errs, fmt.Errorf("%s bytes of memory are not allowed: %d is the limit", strconv.FormatFloat(in.MemoryBytes, 'f', -1, 64), l.Memory))
	}
	for i, entry := range in.Env {
		name, value, ok := strings.Cut(entry, "=")
		if !ok { // perhaps a secret that lost its name
			errs = append(errs, fmt.Errorf("entry %d of env is not NAME=value", i))
		}
		set.Env[name] = value
	}
	set.VCPUs, set.MemoryBytes = &in.VCPUs, &memory
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

func (s *Server) fork(ctx context.Context, in In) (Named, error) {
	sb, err := s.get(in.Sandbox)
	if err != nil {
		return Named{}, err
	}
	return s.make(ctx, func() (*sandbox.Sandbox, error) { return sb.Fork(ctx, sandbox.WithSettings(s.bounds())) })
}

// None is the input of a tool that needs none.
type None struct{}

// List is the result of the tool "sandbox_list".
type List struct {
	Sandboxes []Listed          `json:"sandboxes"`
	Snapshots map[string]string `json:"snapshots"`
}

// Listed describes a sandbox.
type Listed struct {
	Name      string    `json:"name"`
	Status    string    `json:"status"`
	Image     string    `json:"image"`
	CreatedAt time.Time `json:"createdAt"`
}

func (s *Server) list(ctx context.Context, _ None) (List, error) {
	ctx, cancel := context.WithTimeout(ctx, s.limits.CommandTime)
	defer cancel()
	s.mu.Lock()
	defer s.mu.Unlock()
	all, err := s.forgetEnded(ctx)
	list := List{Sandboxes: []Listed{}, Snapshots: maps.Clone(s.snapshots)}
	for _, i := range all {
		list.Sandboxes = append(list.Sandboxes, Listed{Name: i.Name, Status: string(i.State), Image: i.Image, CreatedAt: i.CreatedAt})
	}
	return list, err
}

// Attempts is the result of the tool "sandbox_egress".
type Attempts struct {
	Attempts []Attempt `json:"attempts"`
}

// Attempt is one kind of connection or lookup that the sandbox attempted.
type Attempt struct {
	Name     string    `json:"name,omitempty"`
	Address  string    `json:"address,omitempty"`
	Port     uint16    `json:"port,omitempty"`
	Protocol string    `json:"protocol"`
	Rule     string    `json:"rule"`
	Allowed  bool      `json:"allowed"`
	Failure  string    `json:"failure,omitempty"`
	Count    int64     `json:"count"`
	Last     time.Time `json:"last"`
}

func (s *Server) egress(ctx context.Context, in In) (Attempts, error) {
	out := Attempts{Attempts: []Attempt{}}
	sb, err := s.get(in.Sandbox)
	if err != nil {
		return out, err
	}
	ctx, cancel := context.WithTimeout(ctx, s.limits.CommandTime)
	defer cancel()
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

// Snapshot is the result of the tool "sandbox_snapshot".
type Snapshot struct {
	ID      string   `json:"id"`
	LeftOut []string `json:"leftOut,omitempty"`
}

func (s *Server) snapshot(ctx context.Context, in In) (Snapshot, error) {
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

// Rollback is the input of the tool "sandbox_rollback".
type Rollback struct {
	Sandbox  string `json:"sandbox"`
	Snapshot string `json:"snapshot"`
}

func (s *Server) rollback(ctx context.Context, in Rollback) (Named, error) {
	sb, err := s.get(in.Sandbox)
	if err != nil {
		return Named{}, err
	}
	s.mu.Lock()
	_, ok := s.snapshots[in.Snapshot]
	s.mu.Unlock()
	if !ok {
		return Named{}, fmt.Errorf("there is no snapshot %q: see the tool \"sandbox_list\"", in.Snapshot)
	}
	if err := sb.Rollback(ctx, in.Snapshot); err != nil {
		return Named{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	sb.tools = sandboxtools.New(sb.Sandbox, s.toolOptions())
	return Named{Name: sb.Name()}, nil
}

// Kill is the input of the tool "sandbox_kill".
type Kill struct {
	Sandbox string `json:"sandbox"`
	ID      string `json:"id"`
}

func (s *Server) kill(ctx context.Context, in Kill) (None, error) {
	sb, err := s.get(in.Sandbox)
	if err != nil {
		return None{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, s.limits.CommandTime)
	defer cancel()
	cmd, err := sb.Process(ctx, in.ID)
	if errors.Is(err, sandbox.ErrProcessNotFound) {
		return None{}, fmt.Errorf("no command with the id %q runs in the background", in.ID)
	}
	if err != nil {
		return None{}, err
	}
	return None{}, cmd.Kill()
}

func (s *Server) remove(ctx context.Context, in In) (None, error) {
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
