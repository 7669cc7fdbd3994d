package claim

import (
	"context"

	"github.com/seed-1a2d6d8f/sandbox/internal/record"
)

// TryPause claims the marker that lets one process at a time pause the sandbox r, or fails
// with a *TakenError. When its holder dies, whoever finds the marker unpauses the sandbox.
func TryPause(ctx context.Context, v Volumes, r record.Sandbox, nonce, holder string) (*Claim, error) {
	return Try(ctx, v, record.PauseMarker(r.Name), nonce, holder)
}

// FindPause returns the pause marker of the sandbox of that name, if there is one.
func FindPause(ctx context.Context, v Volumes, name string) (m record.Marker, found bool, err error) {
	return FindMarker(ctx, v, record.PauseMarker(name))
}

// DropPause removes a marker of TryPause, after use or when TryPause failed: the marker may
// exist all the same.
func DropPause(ctx context.Context, v Volumes, r record.Sandbox, nonce string) error {
	return Drop(ctx, v, record.PauseMarker(r.Name), nonce, "")
}
