package wire

import "time"

// ChannelProcesses lists the detached commands: the guest writes JSON of []Process, and closes the
// channel. Only the keeper serves it; no extra data.
const ChannelProcesses = "processes@agent-sandbox"

// ProcessesFile is where a keeper records detached commands, in the container's own layer, so that
// their exit codes outlive the session. It is JSON of []Process without their arguments, which may
// be secret.
const ProcessesFile = Dir + "-processes"

// Bounds of a list of processes. Longer texts are cut.
const (
	MaxProcesses     = 256
	MaxProcessesSize = 2 << 20 // of the JSON
	MaxProcessArgs   = 16
	MaxProcessText   = 256
)

// Process is a detached command. It runs if it is Live; without an Exit it is not known how it ended.
type Process struct {
	ID      string    `json:"id"`
	Sandbox string    `json:"sandbox"` // as in Exec
	Path    string    `json:"path"`
	Args    []string  `json:"args,omitempty"` // of this session
	Dir     string    `json:"dir,omitempty"`
	User    string    `json:"user,omitempty"`
	Started time.Time `json:"started"`
	Ended   time.Time `json:"ended,omitzero"`
	Live    bool      `json:"live,omitempty"`
	Exit    *Exit     `json:"exit,omitempty"`
}
