package sandboxhttp

import (
	"context"
	"errors"
	"net/http"

	"github.com/seed-1a2d6d8f/sandbox"
)

func (h *handler) listSnapshots(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	o := sandbox.ListSnapshotsOptions{Sandbox: q.Get("sandbox"), Name: q.Get("name")}
	return list(func(ctx context.Context) ([]sandbox.Snapshot, error) { return h.client.ListSnapshots(ctx, o) })(w, r)
}

func (h *handler) snapshotTree(w http.ResponseWriter, r *http.Request) error {
	return list(h.client.SnapshotTree)(w, r)
}

func (h *handler) inspectSnapshot(w http.ResponseWriter, r *http.Request) error {
	got, err := h.client.GetSnapshot(r.Context(), r.PathValue("id"))
	if errors.Is(err, sandbox.ErrInvalidArgument) {
		err = &sandbox.Error{Op: "get snapshot", Err: sandbox.ErrSnapshotNotFound} // as for any snapshot that is not there
	}
	if err != nil {
		return err
	}
	answer(w, http.StatusOK, got)
	return nil
}

func (h *handler) deleteSnapshot(w http.ResponseWriter, r *http.Request) error {
	if err := h.client.DeleteSnapshot(r.Context(), r.PathValue("id")); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

type snapshotRequest struct {
	Name     string `json:"name"`
	ExpiryMS int64  `json:"expiryMs"`
	KeepLast int    `json:"keepLast"`
}

func (h *handler) takeSnapshot(w http.ResponseWriter, r *http.Request) error {
	var req snapshotRequest
	if err := decode(w, r, &req); err != nil {
		return err
	}
	expiry, err := duration("expiryMs", req.ExpiryMS)
	if err != nil {
		return err
	}
	o := sandbox.SnapshotOptions{Name: req.Name, Expiry: expiry, KeepLast: req.KeepLast}
	return h.use(r, func(sb *handle) error {
		snapshot, err := sb.Snapshot(r.Context(), o)
		if err != nil {
			return err
		}
		w.Header().Set("Location", prefix(r)+"/snapshots/"+snapshot.ID)
		answer(w, http.StatusCreated, snapshot)
		return nil
	})
}

type rollbackRequest struct {
	Snapshot string `json:"snapshot"`
}

func (h *handler) rollback(w http.ResponseWriter, r *http.Request) error {
	var req rollbackRequest
	if err := decode(w, r, &req); err != nil {
		return err
	}
	return h.use(r, func(sb *handle) error {
		if err := sb.Rollback(r.Context(), req.Snapshot); err != nil {
			return err
		}
		return answerStatus(w, r, http.StatusOK, sb.Sandbox)
	})
}
