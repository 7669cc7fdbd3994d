package sandbox_test

import (
	"slices"
	"testing"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/claim"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// A program that is killed during a fork may leave a helper that it has created and not started.
// The helper holds volumes that others could not delete.
func TestPruneRemovesAHelperThatWasNeverStarted(t *testing.T) {
	t.Parallel()
	fake := enginetest.NewFake(t)
	nonce, began := record.NewNonce(), time.Now().Add(-time.Minute)
	marker := record.Base(record.RolePending, nonce, began)
	marker[record.Name] = "dead"
	marker[record.Until] = began.Add(claim.Lease).Format(time.RFC3339Nano)
	fake.AddVolume("agent-sandbox-pending.dead", marker)
	helper := record.Base(record.RoleHelper, nonce, began)
	helper[record.Until] = began.Add(5 * time.Minute).Format(time.RFC3339Nano)
	name := record.HelperName(nonce)
	fake.AddContainer(name, enginetest.FakeContainer{ID: "helper", State: "created", Labels: helper, Volumes: map[string]string{"/v": "v"}})

	report, err := harness.Unconnected(t, sandbox.WithHost(fake.Host())).Prune(t.Context())
	if err != nil {
		t.Fatalf("Prune = %v, %v", report, err)
	}
	calls, _ := fake.Take()
	if !slices.Contains(calls, "DELETE /containers/helper") || fake.HasVolume("agent-sandbox-pending.dead") {
		t.Errorf("Prune = %v, want the helper and its creator's marker removed; calls %q", report, calls)
	}
}
