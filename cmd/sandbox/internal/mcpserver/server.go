// Package mcpserver offers sandboxes to an agent as tools of the Model Context Protocol. What the
// agent may ask for is limited by [Options].
package mcpserver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/seed-1a2d6d8f/sandbox"
)

// Options limit what an agent may ask for. Requests beyond a limit are errors that name it.
type Options struct {
	Images   []string                // the first is the default
	Networks []sandbox.NetworkPolicy // the first is the default
	Mounts   []string                // as in sandbox.ParseMount; a sandbox has those that the agent names
	Remote   bool                    // sources of mounts are directories of the engine's machine

	VCPUs       float64       // of one sandbox
	Memory      int64         // of one sandbox, in bytes
	Sandboxes   int           // at one time
	Snapshots   int           // at one time
	Lifetime    time.Duration // of one sandbox
	CommandTime time.Duration // of one command
	Output      int           // bytes of text in one result, and in its progress messages

	// Keep leaves what was made: sandboxes are stopped at the end of their lifetime and not
	// deleted, snapshots stay.
	Keep bool
}

// cleanupTimeout bounds the removal of what was made.
const cleanupTimeout = time.Minute

// Server has the sandboxes and snapshots that one agent made. It reaches no others.
type Server struct {
	client *sandbox.Client
	limits Options

	mu        sync.Mutex
	sandboxes map[string]*sandbox.Sandbox
	snapshots map[string]string // names of their sandboxes, by ID
	making    int               // sandboxes that are being made
	taking    int               // and snapshots
}

// New returns a server that makes sandboxes with the client, which stays the caller's.
func New(client *sandbox.Client, limits Options) *Server {
	return &Server{client: client, limits: limits, sandboxes: map[string]*sandbox.Sandbox{}, snapshots: map[string]string{}}
}

// Run serves one agent until it disconnects or ctx ends. Then it removes all that it made, and
// returns the names of what is left: what was to be kept, or could not be removed.
func (s *Server) Run(ctx context.Context, t mcp.Transport) (left []string, err error) {
	server := mcp.NewServer(&mcp.Implementation{Name: "sandbox", Title: "Linux sandboxes", Version: "v0.1.0"}, &mcp.ServerOptions{
		Instructions: fmt.Sprintf(`Isolated Linux environments. Make one with "create", run commands in it with "exec", delete it when it is not needed any more. `+
			`Commands start in /workspace. There are at most %d at a time, and each one ends after %v.`, s.limits.Sandboxes, s.limits.Lifetime),
		Capabilities: &mcp.ServerCapabilities{},
	})
	s.addSandboxTools(server)
	s.addFileTools(server)
	err = server.Run(ctx, t)
	if ctx.Err() != nil {
		err = nil // the end that was asked for
	}
	left, cleanup := s.close(context.WithoutCancel(ctx))
	return left, errors.Join(err, cleanup)
}

// close ends the sessions and removes what is not to be kept.
func (s *Server) close(ctx context.Context) (left []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, cleanupTimeout)
	defer cancel()
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for name, sb := range s.sandboxes {
		end := sb.Close
		if s.limits.Keep {
			end = sb.Detach
		}
		err := end()
		if errs = append(errs, err); err != nil || s.limits.Keep {
			left = append(left, "sandbox "+name)
		}
	}
	for id := range s.snapshots {
		if !s.limits.Keep {
			err := s.client.DeleteSnapshot(ctx, id)
			if err == nil || errors.Is(err, sandbox.ErrSnapshotNotFound) {
				continue
			}
			errs = append(errs, err)
		}
		left = append(left, "snapshot "+id)
	}
	slices.Sort(left)
	return left, errors.Join(errs...)
}

// reserve counts one more sandbox that is being made. The caller calls admit afterwards.
func (s *Server) reserve(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.sandboxes)+s.making >= s.limits.Sandboxes {
		if _, err := s.forgetEnded(ctx); err != nil {
			return err
		}
	}
	if n := len(s.sandboxes) + s.making; n >= s.limits.Sandboxes {
		return fmt.Errorf("there are %d sandboxes, which is the limit: delete one", n)
	}
	s.making++
	return nil
}

// admit adds a sandbox that was made; nil if that failed.
func (s *Server) admit(sb *sandbox.Sandbox) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.making--
	if sb != nil {
		s.sandboxes[sb.Name()] = sb
	}
}

// forgetEnded closes the handles of sandboxes that are gone, such as at the end of their lifetime,
// and returns the others. The caller holds mu.
func (s *Server) forgetEnded(ctx context.Context) ([]sandbox.Info, error) {
	all, err := s.client.List(ctx)
	if err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(i sandbox.Info) bool {
		sb, ok := s.sandboxes[i.Name]
		return !ok || sb.ID() != i.ID
	})
	for name, sb := range s.sandboxes {
		if !slices.ContainsFunc(all, func(i sandbox.Info) bool { return i.Name == name }) {
			delete(s.sandboxes, name)
			err = errors.Join(err, sb.Detach())
		}
	}
	return all, err
}

// get returns a sandbox that this server made.
func (s *Server) get(name string) (*sandbox.Sandbox, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sb, ok := s.sandboxes[name]
	if !ok {
		return nil, fmt.Errorf("there is no sandbox %q: see the tool \"sandboxes\"", name)
	}
	return sb, nil
}

// options are those of each sandbox, made or forked.
func (s *Server) options() []sandbox.ChangeOption {
	return []sandbox.ChangeOption{sandbox.WithPersistent(s.limits.Keep), sandbox.WithTimeout(s.limits.Lifetime)}
}
