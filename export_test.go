package sandbox

import "github.com/seed-1a2d6d8f/sandbox/internal/engine"

// CloseDefaultClient lets go of the package's own client, so that a test can look for
// goroutines.
func CloseDefaultClient() error { return defaultClient().Close() }

// Reason is why a session ended that left such a container.
func Reason(code int, oom bool, engineError string) string {
	return reason(engine.Container{State: engine.StateExited, ExitCode: code, OOMKilled: oom, Error: engineError})
}
