package record

import (
	"context"
	"strings"
)

// A marker that its name ends so says that its holder has paused a sandbox, or is about
// to. Names of sandboxes are lower-case, so it is no sandbox's.
const paused = ".P"

// PauseNonce returns a nonce for [TryPause].
func PauseNonce(r Sandbox) string { return r.Nonce + "." + NewNonce() }

// TryPause makes the marker of who pauses the sandbox r, or fails with a *HeldError: one
// at a time does. When its holder dies, whoever finds the marker unpauses the sandbox.
func TryPause(ctx context.Context, v Volumes, r Sandbox, nonce, holder string) (*Claim, error) {
	return TryClaim(ctx, v, r.Name+paused, nonce, holder)
}

// LookPause returns the marker of who has paused the sandbox of that name, if there is one.
func LookPause(ctx context.Context, v Volumes, name string) (m Marker, found bool, err error) {
	return Look(ctx, v, name+paused)
}

// Pauses returns the name of the sandbox that a marker's holder has paused, and the nonce
// that one was made with.
func (m Marker) Pauses() (name, of string, ok bool) {
	name, ok = strings.CutSuffix(m.Name, paused)
	of, _, _ = strings.Cut(m.Nonce, ".")
	return name, of, ok
}

// DropPause removes a marker of TryPause that may have been made all the same when
// TryPause failed, or that its holder has done with.
func DropPause(ctx context.Context, v Volumes, r Sandbox, nonce string) error {
	return Drop(ctx, v, r.Name+paused, nonce)
}
