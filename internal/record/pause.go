package record

import (
	"context"
	"strings"
)

// paused ends the name of a marker whose holder has paused a sandbox, or is about to. Names
// of sandboxes are lower-case, so none ends in it.
const paused = ".P"

// PauseNonce returns a nonce for [TryPause].
func PauseNonce(r Sandbox) string { return r.Nonce + "." + NewNonce() }

// TryPause claims the marker that lets one process at a time pause the sandbox r, or fails
// with a *HeldError. When its holder dies, whoever finds the marker unpauses the sandbox.
func TryPause(ctx context.Context, v Volumes, r Sandbox, nonce, holder string) (*Claim, error) {
	return TryClaim(ctx, v, r.Name+paused, nonce, holder)
}

// FindPause returns the pause marker of the sandbox of that name, if there is one.
func FindPause(ctx context.Context, v Volumes, name string) (m Marker, found bool, err error) {
	return FindMarker(ctx, v, name+paused)
}

// Pauses returns the name and creation nonce of the sandbox that a marker's holder has
// paused. ok is false for other markers.
func (m Marker) Pauses() (name, of string, ok bool) {
	name, ok = strings.CutSuffix(m.Name, paused)
	of, _, _ = strings.Cut(m.Nonce, ".")
	return name, of, ok
}

// DropPause removes a marker of TryPause, after use or when TryPause failed: the marker may
// exist all the same.
func DropPause(ctx context.Context, v Volumes, r Sandbox, nonce string) error {
	return Drop(ctx, v, r.Name+paused, nonce)
}
