package sandbox

import (
	"context"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest"
	"github.com/seed-1a2d6d8f/sandbox/internal/lifecycle"
	"github.com/seed-1a2d6d8f/sandbox/internal/machine"
	"github.com/seed-1a2d6d8f/sandbox/internal/plan"
)

// CloseDefaultClient closes the package's own client, so that a test can look for
// goroutines.
func CloseDefaultClient() error { return defaultClient().Close() }

// StateOf is the state for one of the engine's own words.
func StateOf(word string) State { return stateOf(word) }

// Forest is what SnapshotTree makes of its nodes.
func Forest(nodes []*SnapshotNode) []*SnapshotNode { return forest(nodes) }

// LimitsOf returns what options add up to: CPUs, and memory in bytes.
func LimitsOf(opts ...CreateOption) (vcpus float64, memory int64, err error) {
	s := &settings{}
	apply(opts, func(o CreateOption) { o.applyCreate(s) })
	err = s.Complete()
	return s.VCPUs, s.Memory, err
}

// PlanOf returns what options of Create set.
func PlanOf(opts ...CreateOption) plan.Sandbox {
	s := &settings{}
	apply(opts, func(o CreateOption) { o.applyCreate(s) })
	return s.Sandbox
}

// ForkOf returns what options of Fork set.
func ForkOf(opts ...ForkOption) plan.Sandbox {
	s := &settings{}
	apply(opts, func(o ForkOption) { o.applyFork(s) })
	return s.Sandbox
}

// UpdateOf returns what options of Update set.
func UpdateOf(opts ...UpdateOption) plan.Sandbox {
	s := &settings{}
	apply(opts, func(o UpdateOption) { o.applyUpdate(s) })
	return s.Sandbox
}

// SettingsOf are the settings of a sandbox.
func SettingsOf(p *plan.Sandbox) Settings { return settingsOf(p) }

// VolumeOfSize is a volume of so many bytes, as it is listed.
func VolumeOfSize(n int64) (v Volume) {
	v.setSize(machine.Size{Own: n})
	return v
}

// CommandOf returns the Cmd of a command that runs, of a sandbox without an engine.
func CommandOf(ctx context.Context, p *guest.Process, detached bool) *Cmd {
	return &Cmd{killed: make(chan struct{}), h: new(lifecycle.Handle), ctx: ctx, Path: p.Started().Exec.Path, Detached: detached, attached: p}
}

// OutputOf is [Cmd.CombinedOutput] with a limit.
func OutputOf(c *Cmd, limit int64) ([]byte, error) {
	out := boundedOutput{limit: limit}
	c.Stdout, c.Stderr = &out, &out
	err := c.Run()
	return out.buf.Bytes(), err
}
