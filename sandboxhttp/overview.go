package sandboxhttp

import (
	"net/http"

	"github.com/seed-1a2d6d8f/sandbox"
)

// WithPreviewDomain says below which domain a [Preview] serves the web servers in sandboxes, on the
// same port, so that the page at /ui links to them. Default: the page has no such links.
func WithPreviewDomain(domain string) Option {
	domain = canonHost(domain)
	return func(c *config) { c.previewDomain = domain }
}

// usage answers with what the listed sandboxes use.
func (h *handler) usage(w http.ResponseWriter, r *http.Request) error {
	o, err := listOptions(r.URL.Query())
	if err != nil {
		return err
	}
	got, err := h.client.ListUsage(r.Context(), o)
	if err != nil {
		return err
	}
	answer(w, http.StatusOK, got)
	return nil
}

// defaultsAnswer is the JSON of the defaults.
type defaultsAnswer struct {
	sandbox.Defaults
	HostFiles     bool   `json:"hostFiles"`
	PreviewDomain string `json:"previewDomain,omitempty"`
}

func (h *handler) defaults(w http.ResponseWriter, r *http.Request) error {
	got, err := h.client.GetDefaults(r.Context())
	if err != nil {
		return err
	}
	answer(w, http.StatusOK, defaultsAnswer{got, h.hostFiles, h.previewDomain})
	return nil
}
