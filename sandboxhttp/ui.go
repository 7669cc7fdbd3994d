package sandboxhttp

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"net/http"
	"path"
	"strings"
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

// The page is the document, and files in a directory that is named after their contents, so that a browser may
// keep them for ever.
var page = newPage()

type pageContent struct {
	version string
	policy  string
	files   map[string][]byte // by name; index.html is the document
}

// newPage reads the page, and puts the loader into the document, which has the names of what it loads.
func newPage() *pageContent {
	entries, err := pageFiles.ReadDir("ui")
	if err != nil {
		panic(err) // they are in this program
	}
	p := &pageContent{files: map[string][]byte{}}
	var loaded []string
	sum := sha256.New()
	for _, e := range entries {
		content, err := pageFiles.ReadFile("ui/" + e.Name())
		if err != nil {
			panic(err)
		}
		p.files[e.Name()] = content
		sum.Write(content)
		if ext := path.Ext(e.Name()); e.Name() != loader && (ext == ".js" || ext == ".css") {
			loaded = append(loaded, e.Name())
		}
	}
	p.version = base64.RawURLEncoding.EncodeToString(sum.Sum(nil)[:9])
	script := string(p.files[loader])
	text := strings.NewReplacer("{{.Version}}", p.version, "{{.Files}}", strings.Join(loaded, " "), "{{.Loader}}", script).Replace(string(p.files[document]))
	p.files[document] = []byte(text)
	// The page loads from and connects to nothing but this server, and runs nothing that is not in a file of it:
	// what a sandbox said can't become a script, whatever the page does with it.
	allowed := sha256.Sum256([]byte(script))
	p.policy = "default-src 'none'; script-src 'self' 'sha256-" + base64.StdEncoding.EncodeToString(allowed[:]) + "'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
		"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
	return p
}

// The document, and what it loads the other files with.
const document, loader = "index.html", "load.js"

// pageAction is the name of the Action for the page's files.
const pageAction = "page"

// routePage adds the page. Its files are in this repository for everyone to read: WithToken does
// not protect them. Functions of WithAuthorize may refuse them.
func (h *handler) routePage(mux *http.ServeMux) {
	for pattern, serve := range map[string]func(http.ResponseWriter, *http.Request) error{
		"GET /{$}": openRoot, "GET /ui": openPage, "GET /ui/{$}": servePage, "GET /ui/{version}/{file}": servePage,
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

// openRoot redirects browsers to the page. For other clients there is nothing at the root.
func openRoot(w http.ResponseWriter, r *http.Request) error {
	if !strings.Contains(r.Header.Get("Accept"), "text/html") {
		return &statusError{http.StatusNotFound, "not_found", http.StatusText(http.StatusNotFound)}
	}
	protect(w.Header())
	w.Header().Set("Vary", "Accept")
	w.Header().Set("Location", prefix(r)+"/ui/")
	w.WriteHeader(http.StatusFound)
	return nil
}

func servePage(w http.ResponseWriter, r *http.Request) error {
	name, cache := document, "no-cache"
	if version := r.PathValue("version"); version != "" {
		name, cache = r.PathValue("file"), "public, max-age=31536000, immutable"
		if version != page.version {
			name = ""
		}
	}
	content, ok := page.files[name]
	if !ok {
		return &statusError{http.StatusNotFound, "not_found", http.StatusText(http.StatusNotFound)}
	}
	h := w.Header()
	protect(h)
	h.Set("Content-Type", pageTypes[path.Ext(name)])
	h.Set("Content-Security-Policy", page.policy)
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Cache-Control", cache)
	h.Set("ETag", `"`+page.version+`"`)
	http.ServeContent(w, r, name, time.Time{}, bytes.NewReader(content))
	return nil
}
