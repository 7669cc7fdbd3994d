package lifecycle

import (
	"archive/tar"
	"context"
	"errors"
	"slices"

	"github.com/seed-1a2d6d8f/sandbox/internal/bound"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/internal/store"
)

// Processes lists the detached commands of the sandbox, the oldest first: from its guest if it runs,
// otherwise from the record in its files.
func (h *Handle) Processes(ctx context.Context) ([]wire.Process, error) {
	if err := h.CheckUsable(); err != nil {
		return nil, err
	}
	got, err := h.awaitUnpaused(ctx)
	if err != nil {
		return nil, err
	}
	var all []wire.Process
	err = ErrNoSession
	if got.State == engine.StateRunning {
		var conn *guest.Conn
		if conn, err = h.ConnectRunning(ctx); err == nil {
			err = bound.Within(ctx, connectTimeout, "the guest did not answer", func(ctx context.Context) (err error) {
				all, err = conn.Processes(ctx)
				return err
			})
		}
		if errors.Is(err, guest.ErrConnectionLost) {
			err = h.ExplainLost(ctx, err)
		}
	}
	if errors.Is(err, ErrNoSession) {
		all, err = h.recordedProcesses(ctx, got)
	}
	seen := map[string]bool{}
	return slices.DeleteFunc(all, func(p wire.Process) bool {
		drop := p.Sandbox != h.Record().ID || !record.ValidName(p.ID) || seen[p.ID]
		seen[p.ID] = true
		return drop
	}), err
}

// recordedProcesses reads the record of a sandbox without a session.
func (h *Handle) recordedProcesses(ctx context.Context, got engine.Container) ([]wire.Process, error) {
	if err := h.c.Machine.CheckStopped(ctx, got); err != nil {
		return nil, err
	}
	rc, tr, hdr, err := h.c.Engine.OpenArchive(ctx, got.ID, wire.ProcessesFile)
	if errors.Is(err, engine.ErrNotFound) {
		if _, err := h.Current(ctx); err != nil {
			return nil, err
		}
		return nil, nil
	}
	if err != nil {
		return nil, store.Classify(err)
	}
	defer rc.Close()
	if hdr.Typeflag != tar.TypeReg {
		return nil, nil // root inside has replaced it
	}
	all, err := guest.ReadProcesses(tr)
	for i := range all {
		all[i].Live = false
	}
	return all, err
}
