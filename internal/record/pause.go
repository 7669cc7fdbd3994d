package record

import "strings"

// paused ends the name of a marker whose holder has paused a sandbox, or is about to. Names
// of sandboxes are lower-case, so none ends in it.
const paused = ".P"

// PauseNonce returns a nonce for a PauseMarker.
func PauseNonce(r Sandbox) string { return r.Nonce + "." + NewNonce() }

// PauseMarker is the name of the marker of whoever has paused the sandbox of that name.
func PauseMarker(name string) string { return name + paused }

// Pauses returns the name and creation nonce of the sandbox that a marker's holder has
// paused. ok is false for other markers.
func (m Marker) Pauses() (name, of string, ok bool) {
	name, ok = strings.CutSuffix(m.Name, paused)
	of, _, _ = strings.Cut(m.Nonce, ".")
	return name, of, ok
}
