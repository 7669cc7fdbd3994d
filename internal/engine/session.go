package engine

import "fmt"

// HasSession reports whether the container has been started and has not ended since: it
// runs, or is paused.
func (c Container) HasSession() bool {
	return c.State == StateRunning || c.State == StatePaused
}

// Ended says for people how the container's last run ended.
func (c Container) Ended() string {
	switch {
	case c.Error != "":
		return c.Error
	case c.OOMKilled:
		return "out of memory"
	}
	return fmt.Sprintf("exit code %d", c.ExitCode)
}
