package sandboxhttp

import (
	"context"
	"net/http"
	"slices"

	"github.com/seed-1a2d6d8f/sandbox"
)

func (h *handler) volumes(call func(context.Context) ([]sandbox.Volume, error)) func(http.ResponseWriter, *http.Request) error {
	return list(call)
}

func (h *handler) deleteVolume(w http.ResponseWriter, r *http.Request) error {
	force, err := flag(r, "force", false)
	if err != nil {
		return err
	}
	report, err := h.client.DeleteVolume(r.Context(), r.PathValue("name"), sandbox.DeleteVolumeOptions{Force: force})
	answerReport(w, report, err)
	return nil
}

type cleanupRequest struct {
	Names    []string `json:"names"`
	Roles    []string `json:"roles"`
	MinAgeMS int64    `json:"minAgeMs"`
	DryRun   bool     `json:"dryRun"`
}

func (h *handler) cleanup(w http.ResponseWriter, r *http.Request) error {
	var req cleanupRequest
	if err := decode(w, r, &req); err != nil {
		return err
	}
	age, err := duration("minAgeMs", req.MinAgeMS)
	if err != nil {
		return err
	}
	report, err := h.client.CleanupOrphanedVolumes(r.Context(), sandbox.CleanupOptions{
		Roles: req.Roles, MinAge: age, DryRun: req.DryRun,
		// An empty list, unlike one that is absent, selects nothing.
		Select: func(v sandbox.Volume) bool {
			return (req.Names == nil || slices.Contains(req.Names, v.Name)) && (req.Roles == nil || slices.Contains(req.Roles, v.Role))
		},
	})
	code, f := explained(err)
	answer(w, code, cleanupAnswer{f, report})
	return nil
}

// cleanupAnswer is the report of a cleanup, with the error if there is one.
type cleanupAnswer struct {
	*failed
	sandbox.CleanupReport
}
