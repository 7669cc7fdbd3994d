package enginetest

import (
	"context"
	"time"
)

// LockedUp asks the engine of DOCKER_HOST.
func LockedUp(ctx context.Context, every, patience time.Duration) bool {
	return lockedUp(ctx, httpClient(mainTB{}), every, patience)
}
