package store

import (
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// The states of a sandbox.
const (
	Creating = "creating"
	Running  = "running"
	Paused   = "paused"
	Stopped  = "stopped"
	Failed   = "error"
)

// StateOf returns the state of a sandbox for that of its container. Podman's lists have words of
// its own, for which its inspections say what Docker would.
func StateOf(container string) string {
	switch container {
	case engine.StateCreated, "initialized":
		return Creating
	case engine.StateRunning, engine.StateRestarting, "stopping":
		return Running
	case engine.StatePaused:
		return Paused
	case engine.StateExited, engine.StateRemoving, "stopped":
		return Stopped
	}
	return Failed
}

// codeRuntime is the exit code of PID 1 when Go's runtime ends it: at SIGTERM before PID 1 handles
// that, which is a stop, or in a crash, which prints the stacks to the sandbox's log. While PID 1
// starts the code does not tell the two apart, and nearly all are stops.
const codeRuntime = 2

// ReasonOf says why a session ended, by the exit code of PID 1.
func ReasonOf(got engine.Container) string {
	code, _ := wire.EndCode(got.ExitCode)
	switch {
	case got.OOMKilled && got.ExitCode == 137:
		return "out of memory"
	case code == wire.CodeTimeout:
		return "timeout"
	case code == wire.CodeIdle:
		return "idle timeout"
	case code == wire.CodeLease:
		return "abandoned"
	case code == wire.CodeChanged:
		return "network changed"
	case code == wire.CodeStopped, got.ExitCode == 137 && got.Error == "",
		got.ExitCode == codeRuntime && got.Error == "" && !got.StartedAt.IsZero() && got.FinishedAt.Sub(got.StartedAt) < startingTime:
		return "stopped"
	}
	return got.Ended()
}
