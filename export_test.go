package sandbox

import "github.com/seed-1a2d6d8f/sandbox/internal/engine"

// CloseDefaultClient closes the package's own client, so that a test can look for
// goroutines.
func CloseDefaultClient() error { return defaultClient().Close() }

// Reason is why a session ended that left such a container.
func Reason(code int, oom bool, engineError string) string {
	return reason(engine.Container{State: engine.StateExited, ExitCode: code, OOMKilled: oom, Error: engineError})
}

// StateOf is the state for one of the engine's own words.
func StateOf(word string) State { return stateOf(word) }

// LimitsOf returns what options add up to: CPUs, and memory in bytes.
func LimitsOf(opts ...CreateOption) (vcpus float64, memory int64, err error) {
	s := &settings{}
	apply(opts, func(o CreateOption) { o.applyCreate(s) })
	err = s.Complete()
	return s.VCPUs, s.Memory, err
}

// VolumeOfSize is a volume of so many bytes, as it is listed.
func VolumeOfSize(n int64) (v Volume) {
	v.setSize(n)
	return v
}
