package record

import (
	"cmp"
	"time"
)

// Workspace is where a sandbox's workspace volume is mounted.
const Workspace = "/workspace"

// The modes of a [Mount].
const (
	RO     = "ro"
	RW     = "rw"
	RWCopy = "rwcopy"
)

// DefaultStopTimeout is what processes get between SIGTERM and SIGKILL where a record says
// nothing else.
const DefaultStopTimeout = 30 * time.Second

// Grace is what the sandbox's processes get between SIGTERM and SIGKILL.
func (r Sandbox) Grace() time.Duration { return cmp.Or(r.StopTimeout(), DefaultStopTimeout) }
