package store

import "github.com/seed-1a2d6d8f/sandbox/internal/engine"

// The states of a sandbox.
const (
	Creating = "creating"
	Running  = "running"
	Paused   = "paused"
	Stopped  = "stopped"
	Failed   = "error"
)

// StateOf returns the state of a sandbox for that of its container.
func StateOf(container string) string {
	switch container {
	case engine.StateCreated:
		return Creating
	case engine.StateRunning, engine.StateRestarting:
		return Running
	case engine.StatePaused:
		return Paused
	case engine.StateExited, engine.StateRemoving:
		return Stopped
	}
	return Failed
}
