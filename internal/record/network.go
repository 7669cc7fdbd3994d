package record

import "time"

// Network is a network policy with its version: 1 for the policy that the sandbox was
// made with, and one more for each change, so that PID 1 can tell which is later.
type Network struct {
	Policy  string `json:"policy"` // in its textual form
	Version int64  `json:"version"`
}

// Network returns the current network policy, an empty one if the record has none.
func (r Sandbox) Network() Network {
	if n := r.Revision.Changes.Network; n != nil {
		return *n
	}
	return Network{Policy: r.Settings.Network, Version: 1}
}

// StartPending reports whether PID 1 of the session that started then may still hold the main
// process back, until a client releases it. Whoever makes a sandbox releases its first
// session; a revision records the release of later ones.
func (r Sandbox) StartPending(started time.Time) bool {
	s := r.Revision.Changes.Session
	return len(r.Settings.Command) > 0 && r.Settings.Network != "" && (s == nil || !s.StartedAt.Equal(started))
}
