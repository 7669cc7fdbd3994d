//go:build linux

package pid1

import (
	"os"
	"testing"
)

func TestPendingClientsAreFew(t *testing.T) {
	t.Parallel()
	var all clients
	one := func(pid int32) *client {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		w.Close()
		g := &client{conn: r, pid: pid}
		t.Cleanup(func() { r.Close() })
		return g
	}
	owner := one(1)
	all.add(owner)
	for range maxPendingPerProcess {
		if all.full(2) {
			t.Fatal("full too early")
		}
		all.add(one(2))
	}
	if !all.full(2) || all.full(1) {
		t.Error("one process can take all places")
	}
	all.promote(owner)
	for i := range int32(1000) {
		all.add(one(100 + i))
	}
	if len(all.pending) > maxPending || len(all.authenticated) != 1 || all.authenticated[0] != owner {
		t.Errorf("%d pending, %d authenticated", len(all.pending), len(all.authenticated))
	}
	all.remove(owner)
	if len(all.authenticated) != 0 {
		t.Error("a connection that was removed is still registered")
	}
}
