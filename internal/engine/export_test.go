package engine

import (
	"context"
	"io"
	"net"
	"runtime"
	"testing"
	"time"

	"github.com/docker/docker/api/types"
)

// SetContainerd has the engine believe that its containerd is of that version.
func (e *Engine) SetContainerd(version string) {
	e.version.Store(&types.Version{Arch: runtime.GOARCH, Components: []types.ComponentVersion{{Name: "containerd", Version: version}}})
}

// ContainerdLocks says what the engine believes of a containerd.
func ContainerdLocks(version string) bool {
	return containerdLocks(types.Version{Components: []types.ComponentVersion{{Name: "Engine", Version: "20.10.24"}, {Name: "containerd", Version: version}}})
}

// KeyOf is the Key of the engine at a host.
func KeyOf(host string) (string, error) {
	ep, err := parseHost(host)
	return (&Engine{ep: ep}).Key(), err
}

// Instructions are those of an import.
var Instructions = instructions

// SetStartBound changes how long a pause waits for a start, until the test ends.
func SetStartBound(t *testing.T, d time.Duration) {
	was := startBound
	t.Cleanup(func() { startBound = was })
	startBound = d
}

// Dial makes a connection as calls do.
func (e *Engine) Dial(ctx context.Context) (net.Conn, error) { return e.dialRaw(ctx) }

// SSHSessions is how many sessions the masters of an engine behind ssh have, with those that wait
// for one.
func (e *Engine) SSHSessions() (all []int) {
	e.ssh.mu.Lock()
	defer e.ssh.mu.Unlock()
	for _, m := range e.ssh.masters {
		all = append(all, m.sessions)
	}
	return all
}

// NewDemux reads frames from r. stderr may be nil.
func NewDemux(r io.Reader, stderr io.Writer) io.Reader { return newDemux(r, stderr) }

// ExportContainer streams all files of a container.
func (e *Engine) ExportContainer(ctx context.Context, id string) (io.ReadCloser, error) {
	return e.exportContainer(ctx, id)
}
