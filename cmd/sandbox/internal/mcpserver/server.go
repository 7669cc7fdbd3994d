// Package mcpserver offers sandboxes to an agent as tools of the Model Context Protocol. What the
// agent may ask for is limited by [Options].
package mcpserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/sandboxtools"
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
	Pool        int           // sandboxes with the defaults that run already, beside Sandboxes
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
	pool   *sandbox.Pool // set by Run; nil without Options.Pool

	mu        sync.Mutex
	sandboxes map[string]*member
	snapshots map[string]string // names of their sandboxes, by ID
	making    int               // sandboxes that are being made
	taking    int               // and snapshots
	gone      bool              // the agent is; what is made from now on is removed at once
	settled   chan struct{}     // closed when the agent is gone and nothing is being made
}

// member is a sandbox with its tools, which mu guards.
type member struct {
	*sandbox.Sandbox
	tools []sandboxtools.Tool
}

// New returns a server that makes sandboxes with the client, which stays the caller's.
func New(client *sandbox.Client, limits Options) *Server {
	return &Server{client: client, limits: limits, sandboxes: map[string]*member{}, snapshots: map[string]string{}, settled: make(chan struct{})}
}

// Run serves one agent, whose messages it reads from in and answers to out, until in ends or ctx does.
// Then it cancels the calls that run, removes all that it made, and returns the names of what is
// left: what was to be kept, or could not be removed. It does not wait long for answers that the agent
// does not read: those calls end with the program. A line of in that is no message, or is longer than
// 16 MiB, is answered with an error.
func (s *Server) Run(ctx context.Context, in io.Reader, out io.WriteCloser) (left []string, err error) {
	server := mcp.NewServer(&mcp.Implementation{Name: "sandbox", Title: "Linux sandboxes", Version: "v0.1.0"}, &mcp.ServerOptions{
		Instructions: fmt.Sprintf(`Isolated Linux environments. Make one with "sandbox_create", run commands in it with "bash", delete it with "sandbox_delete" when it is not needed any more. `+
			`Its working directory is /workspace. There are at most %d at a time, and each one ends after %v.`, s.limits.Sandboxes, s.limits.Lifetime),
		Capabilities: &mcp.ServerCapabilities{Tools: &mcp.ToolCapabilities{}}, // the list never changes
	})
	if s.limits.Pool > 0 {
		if err := s.openPool(ctx); err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, s.pool.Close()) }()
	}
	s.addSandboxTools(server)
	if err := s.addToolsOfSandboxes(server); err != nil {
		return nil, err
	}
	connected, disconnect := context.WithCancel(ctx)
	defer disconnect()
	server.AddReceivingMiddleware(during(connected), s.progress)
	served := make(chan error, 1)
	go func() {
		defer disconnect()
		// It ends by itself after the end of its input.
		e := newEnds(in, out, disconnect)
		served <- server.Run(ctx, &mcp.IOTransport{Reader: unclosed{e}, Writer: e, MaxLineLength: -1}) // e bounds them
	}()
	<-connected.Done()
	left, err = s.close(context.WithoutCancel(ctx))
	select {
	case end := <-served:
		if !errors.Is(end, context.Canceled) {
			err = errors.Join(end, err)
		}
	case <-ctx.Done():
	case <-time.After(answerTimeout):
	}
	return left, err
}

// unclosed is the input of an agent, which is the caller's.
type unclosed struct{ io.Reader }

func (unclosed) Close() error { return nil }

// during returns middleware that cancels the context of each call of a tool when ctx ends.
func during(ctx context.Context) mcp.Middleware {
	return func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(call context.Context, method string, req mcp.Request) (mcp.Result, error) {
			if _, is := req.(*mcp.CallToolRequest); !is {
				return next(call, method, req)
			}
			call, cancel := context.WithCancel(call)
			defer cancel()
			defer context.AfterFunc(ctx, cancel)()
			return next(call, method, req)
		}
	}
}

// close ends the sessions and removes what is not to be kept, and what is being made meanwhile.
func (s *Server) close(ctx context.Context) (left []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, cleanupTimeout)
	defer cancel()
	s.mu.Lock()
	s.gone = true
	s.settle()
	s.mu.Unlock()
	left, err = s.clear(ctx)
	select {
	case <-s.settled:
	case <-ctx.Done():
		return left, errors.Join(err, errors.New("a sandbox or a snapshot was still being made"))
	}
	more, e := s.clear(ctx)
	left = append(left, more...)
	slices.Sort(left)
	return left, errors.Join(err, e)
}

// settle closes settled once the agent is gone and nothing is being made. The caller holds mu.
func (s *Server) settle() {
	if s.gone && s.making+s.taking == 0 {
		close(s.settled)
	}
}

// clear takes the sandboxes and snapshots that there are off the lists, and removes those that are not
// to be kept, all at once.
func (s *Server) clear(ctx context.Context) (left []string, err error) {
	s.mu.Lock()
	sandboxes, snapshots := s.sandboxes, s.snapshots
	s.sandboxes, s.snapshots = map[string]*member{}, map[string]string{}
	s.mu.Unlock()
	var (
		ends sync.WaitGroup
		mu   sync.Mutex
		errs []error
	)
	end := func(what string, remove func() error) {
		err := remove()
		mu.Lock()
		defer mu.Unlock()
		if errs = append(errs, err); err != nil || s.limits.Keep {
			left = append(left, what)
		}
	}
	for name, sb := range sandboxes {
		remove := sb.Close
		if s.limits.Keep {
			remove = sb.Detach
		}
		ends.Go(func() { end("sandbox "+name, remove) })
	}
	for id := range snapshots {
		ends.Go(func() {
			end("snapshot "+id, func() error {
				if s.limits.Keep {
					return nil
				}
				err := s.client.DeleteSnapshot(ctx, id)
				if errors.Is(err, sandbox.ErrSnapshotNotFound) {
					return nil
				}
				return err
			})
		})
	}
	ends.Wait()
	slices.Sort(left)
	return left, errors.Join(errs...)
}

// reserve counts one more sandbox that is being made. The caller calls admit afterwards.
func (s *Server) reserve(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone {
		return errGone
	}
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
		s.sandboxes[sb.Name()] = &member{sb, sandboxtools.New(sb, s.toolOptions())}
	}
	s.settle()
}

// errGone is the error of calls that come after the agent's end.
var errGone = errors.New("the server ends")

// forgetEnded closes the handles of sandboxes that are gone, such as at the end of their lifetime,
// and returns the others. The caller holds mu.
func (s *Server) forgetEnded(ctx context.Context) ([]sandbox.Info, error) {
	all, err := s.client.List(ctx, sandbox.ListOptions{})
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
func (s *Server) get(name string) (*member, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sb, ok := s.sandboxes[name]
	if name == "" {
		return nil, errors.New("the argument sandbox is missing: it is the name of a sandbox, see the tool \"sandbox_list\"")
	}
	if !ok {
		return nil, fmt.Errorf("there is no sandbox %q: see the tool \"sandbox_list\"", name)
	}
	return sb, nil
}

// bounds are the settings of each sandbox, made or forked, that no agent chooses.
func (s *Server) bounds() sandbox.Settings {
	return sandbox.Settings{Persistent: &s.limits.Keep, Timeout: &s.limits.Lifetime}
}
