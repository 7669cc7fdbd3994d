package store

import (
	"testing"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
)

// The error of a volume that is in use says which sandboxes' helpers hold it. Nobody knows these by
// the IDs and names of their containers.
func TestTransientUsersAreNamedBySandbox(t *testing.T) {
	t.Parallel()
	of := func(role, name string) map[string]string {
		l := record.Base(role, record.NewNonce(), time.Now())
		l[record.Name] = name
		return l
	}
	u := volumeUsers{transient: []engine.Container{
		{ID: "0123456789ab", Name: record.HelperName(record.NewNonce()), State: engine.StateCreated, Labels: of(record.RoleHelper, "a")},
		{ID: "123456789abc", Name: record.HelperName(record.NewNonce()), State: engine.StateExited, Labels: of(record.RoleHelper, "")},
		{ID: "23456789abcd", Name: record.UnfinishedName("b"), State: engine.StateCreated, Labels: of(record.RoleSandbox, "b")},
	}}
	const want = "a helper container of sandbox a (created), a helper container (exited), container agent-sandbox-b.U of sandbox b (created)"
	if got := u.transients(); got != want {
		t.Errorf("transients() = %q, want %q", got, want)
	}
}
