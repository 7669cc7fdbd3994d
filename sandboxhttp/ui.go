package sandboxhttp

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"net/http"
	"path"
	"time"
)

// pageFiles are the page at /ui. It uses the same API as other clients.
//
//go:embed ui
var pageFiles embed.FS

// pageTypes are the content types of the page's files. Those of package mime depend on the machine.
var pageTypes = map[string]string{
	".html": "text/html; charset=utf-8",
	".css":  "text/css; charset=utf-8",
	".js":   "text/javascript; charset=utf-8",
	".svg":  "image/svg+xml",
}

// pagePolicy lets the page load and connect to nothing but this server, and run nothing that is
// not in a file of it: what a sandbox said can't become a script, whatever the page does with it.
const pagePolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// pageAction is the name of the Action for the page's files.
const pageAction = "page"

// routePage adds the page. Its files are in this repository for everyone to read: WithToken does
// not protect them. Functions of WithAuthorize may refuse them.
func (h *handler) routePage(mux *http.ServeMux) {
	for pattern, serve := range map[string]func(http.ResponseWriter, *http.Request) error{
		"GET /ui": openPage, "GET /ui/{$}": servePage, "GET /ui/{file}": servePage,
	} {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			err := h.check(r, Action{Name: pageAction})
			if err == nil {
				err = serve(w, r)
			}
			if err != nil {
				fail(w, err)
			}
		})
	}
}

// openPage redirects to the directory, to which the page's links are relative.
func openPage(w http.ResponseWriter, r *http.Request) error {
	protect(w.Header())
	w.Header().Set("Location", prefix(r)+"/ui/")
	w.WriteHeader(http.StatusPermanentRedirect)
	return nil
}

func servePage(w http.ResponseWriter, r *http.Request) error {
	name := cmp.Or(r.PathValue("file"), "index.html")
	content, err := pageFiles.ReadFile("ui/" + name)
	if err != nil {
		return &statusError{http.StatusNotFound, "not_found", http.StatusText(http.StatusNotFound)}
	}
	sum := sha256.Sum256(content)
	h := w.Header()
	protect(h)
	h.Set("Content-Type", pageTypes[path.Ext(name)])
	h.Set("Content-Security-Policy", pagePolicy)
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Cache-Control", "no-cache")
	h.Set("ETag", `"`+base64.RawURLEncoding.EncodeToString(sum[:12])+`"`)
	http.ServeContent(w, r, name, time.Time{}, bytes.NewReader(content))
	return nil
}
