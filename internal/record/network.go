package record

import "time"

// Network is a network policy. Versions count from 1, which is the policy that the
// sandbox was made with; each change is one more, so that PID 1 can tell which is later.
type Network struct {
	Policy  string `json:"policy"` // in its textual form
	Version int64  `json:"version"`
}

// Network is the network policy that counts. One of a sandbox from before there were
// any is empty.
func (r Sandbox) Network() Network {
	if n := r.Revision.Changes.Network; n != nil {
		return *n
	}
	return Network{Policy: r.Settings.Network, Version: 1}
}

// Unbegun reports whether the session that started then may wait for somebody to begin
// it, with a main process that is held back until then. Whoever makes a sandbox begins its
// first session; later ones are noted.
func (r Sandbox) Unbegun(started time.Time) bool {
	s := r.Revision.Changes.Session
	return len(r.Settings.Command) > 0 && r.Settings.Network != "" && (s == nil || !s.StartedAt.Equal(started))
}
