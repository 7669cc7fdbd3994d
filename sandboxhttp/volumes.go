package sandboxhttp

import (
	"context"
	"net/http"

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
	var opts []sandbox.DeleteVolumeOption
	if force {
		opts = append(opts, sandbox.Force())
	}
	report, err := h.client.DeleteVolume(r.Context(), r.PathValue("name"), opts...)
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
	opts := []sandbox.CleanupOption{sandbox.CleanupMinAge(age)}
	if req.Names != nil {
		opts = append(opts, sandbox.CleanupNames(req.Names...))
	}
	if req.Roles != nil {
		opts = append(opts, sandbox.CleanupRoles(req.Roles...))
	}
	if req.DryRun {
		opts = append(opts, sandbox.CleanupDryRun())
	}
	report, err := h.client.CleanupOrphanedVolumes(r.Context(), opts...)
	if err == nil {
		answer(w, http.StatusOK, report)
		return nil
	}
	code, f := explain(err)
	answer(w, code, struct {
		failed
		sandbox.CleanupReport
	}{failed{f}, report})
	return nil
}
