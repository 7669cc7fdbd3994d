package sandboxhttp

import "net/http"

type moveRequest struct {
	Node string `json:"node"`
}

func (h *handler) move(w http.ResponseWriter, r *http.Request) error {
	var req moveRequest
	if err := decode(w, r, &req); err != nil {
		return err
	}
	return h.use(r, func(sb *handle) error {
		report, err := h.client.Move(r.Context(), sb.ID(), req.Node)
		if err != nil {
			return err
		}
		sb.forget() // it is for the first node
		answer(w, http.StatusOK, report)
		return nil
	})
}
