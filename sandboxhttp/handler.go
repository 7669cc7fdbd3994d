package sandboxhttp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
)

// Handler serves the sandboxes of a client's engine, in JSON:
//
//	GET    /health                    whether the engine answers; 503 if not
//	GET    /sandboxes                 list; ?status=running&prefix=a&tag=key=value, status and tag may be repeated
//	GET    /sandboxes/{name}          details, as Inspect returns them
//	GET    /sandboxes/{name}/logs     log, see LogsHandler
//	POST   /sandboxes/{name}/start    start the session
//	POST   /sandboxes/{name}/stop     stop the session
//	DELETE /sandboxes/{name}          delete; ?preserveVolume=false deletes its volumes too
//	GET    /volumes                   the volumes of sandboxes, with their sizes
//	GET    /volumes/orphans           those that no sandbox uses
//
// {name} is a name or an ID. An error is {"error": text} with the status of
// [sandbox.Error].StatusCode: 404 "Sandbox not found", 400 for an invalid argument, 503 if
// the engine is unavailable. Sizes are in bytes, durations in milliseconds, times in RFC
// 3339.
//
// There is no call to create sandboxes: the platform decides which options a caller may
// choose. Mount the handler below a prefix with [http.StripPrefix].
//
// Requests of browsers from pages of other origins, and for hosts other than this machine,
// get 403: see [WithCrossOriginProtection] and [WithHosts].
func Handler(client *sandbox.Client, opts ...Option) http.Handler {
	mux := http.NewServeMux()
	h := handler{client}
	mux.HandleFunc("GET /health", h.health)
	mux.HandleFunc("GET /sandboxes", h.list)
	mux.HandleFunc("GET /sandboxes/{name}", h.inspect)
	mux.Handle("GET /sandboxes/{name}/logs", logsHandler(client))
	mux.HandleFunc("POST /sandboxes/{name}/start", h.start)
	mux.HandleFunc("POST /sandboxes/{name}/stop", h.stop)
	mux.HandleFunc("DELETE /sandboxes/{name}", h.delete)
	mux.HandleFunc("GET /volumes", h.volumes(client.ListVolumes))
	mux.HandleFunc("GET /volumes/orphans", h.volumes(client.OrphanedVolumes))
	return guarded(jsonErrors{mux}, opts)
}

// jsonErrors serves a mux, whose own refusals (404, 405) it turns to JSON.
type jsonErrors struct{ *http.ServeMux }

func (m jsonErrors) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	refuse, pattern := m.Handler(r)
	if pattern != "" {
		m.ServeMux.ServeHTTP(w, r)
		return
	}
	refusal := refusal{header: w.Header()}
	refuse.ServeHTTP(&refusal, r)
	fail(w, refusal.code, http.StatusText(refusal.code))
}

// A refusal keeps the status and the header of an answer.
type refusal struct {
	header http.Header
	code   int
}

func (r *refusal) Header() http.Header         { return r.header }
func (r *refusal) WriteHeader(code int)        { r.code = code }
func (r *refusal) Write(b []byte) (int, error) { return len(b), nil }

type handler struct{ client *sandbox.Client }

// details is the JSON of one sandbox.
type details struct {
	sandbox.Info
	Reason       string         `json:"reason,omitempty"`
	StartedAt    time.Time      `json:"startedAt,omitzero"`
	UptimeMS     int64          `json:"uptimeMs"`
	ExpiresAt    time.Time      `json:"expiresAt,omitzero"`
	Usage        *sandbox.Usage `json:"usage"`
	Workspace    workspace      `json:"workspace"`
	Network      string         `json:"network"` // see sandbox.ParseNetworkPolicy
	LogsEndpoint string         `json:"logsEndpoint"`
}

type workspace struct {
	Volume    string `json:"volume"`
	SizeBytes int64  `json:"sizeBytes"` // negative if unknown
	Size      string `json:"size"`
	Warning   string `json:"warning,omitempty"`
}

func detailsOf(st sandbox.Status) details {
	return details{
		Info: st.Info, Reason: st.Reason, StartedAt: st.StartedAt, UptimeMS: st.Uptime.Milliseconds(),
		ExpiresAt: st.ExpiresAt, Usage: st.Usage, LogsEndpoint: st.LogsEndpoint,
		Workspace: workspace{st.Workspace.Name, st.Workspace.SizeBytes, st.Workspace.Size, st.Workspace.Warning},
		Network:   st.Network.String(),
	}
}

func (h handler) health(w http.ResponseWriter, r *http.Request) {
	got, err := h.client.CheckHealth(r.Context())
	if err != nil {
		failWith(w, err)
		return
	}
	code := http.StatusOK
	if !got.Healthy {
		code = http.StatusServiceUnavailable
	}
	answer(w, code, map[string]any{
		"healthy": got.Healthy, "version": got.Version, "apiVersion": got.APIVersion, "guidance": got.Guidance,
	})
}

func (h handler) list(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	var opts []sandbox.ListOption
	for _, s := range q["status"] {
		opts = append(opts, sandbox.StatusFilter(sandbox.State(s)))
	}
	for _, s := range q["tag"] {
		key, value, ok := strings.Cut(s, "=")
		if !ok {
			fail(w, http.StatusBadRequest, "tag="+strconv.Quote(s)+" is not key=value")
			return
		}
		opts = append(opts, sandbox.TagFilter(key, value))
	}
	if q.Has("prefix") {
		opts = append(opts, sandbox.NamePrefix(q.Get("prefix")))
	}
	for _, key := range slices.Sorted(maps.Keys(q)) {
		if !slices.Contains([]string{"status", "tag", "prefix"}, key) {
			fail(w, http.StatusBadRequest, "unknown parameter "+strconv.Quote(key)+": use status, tag or prefix")
			return
		}
	}
	got, err := h.client.List(r.Context(), opts...)
	if err != nil {
		failWith(w, err)
		return
	}
	answer(w, http.StatusOK, got)
}

func (h handler) inspect(w http.ResponseWriter, r *http.Request) {
	st, err := h.client.Inspect(r.Context(), r.PathValue("name"))
	if err != nil {
		failWith(w, err)
		return
	}
	answer(w, http.StatusOK, detailsOf(st))
}

func (h handler) start(w http.ResponseWriter, r *http.Request) {
	sb, err := h.client.Get(r.Context(), r.PathValue("name"))
	if err != nil {
		failWith(w, err)
		return
	}
	sb.Detach()
	answer(w, http.StatusOK, map[string]sandbox.State{"status": sandbox.StateRunning})
}

func (h handler) stop(w http.ResponseWriter, r *http.Request) {
	sb, err := h.client.Get(r.Context(), r.PathValue("name"), sandbox.WithoutResume())
	if err != nil {
		failWith(w, err)
		return
	}
	defer sb.Detach()
	state, err := sb.Stop(r.Context())
	if err != nil {
		failWith(w, err)
		return
	}
	answer(w, http.StatusOK, map[string]sandbox.State{"status": state})
}

func (h handler) delete(w http.ResponseWriter, r *http.Request) {
	preserve, err := preserves(r.URL.Query())
	if err != nil {
		fail(w, http.StatusBadRequest, err.Error())
		return
	}
	report, err := h.client.Delete(r.Context(), r.PathValue("name"), sandbox.PreserveVolumes(preserve))
	volumes := slices.Concat([]sandbox.VolumeOutcome{}, report.Volumes) // an array even if it is empty
	if err == nil {
		answer(w, http.StatusOK, map[string]any{"volumes": volumes})
		return
	}
	code, text := explain(err)
	answer(w, code, map[string]any{"error": text, "volumes": volumes})
}

// preserves reads the parameter preserveVolume=true|false, or volumes=preserve|delete, which
// says the same.
func preserves(q url.Values) (bool, error) {
	for key, values := range q {
		words := map[string][2]string{"preserveVolume": {"true", "false"}, "volumes": {"preserve", "delete"}}
		word, known := words[key]
		switch {
		case !known:
			return false, fmt.Errorf("unknown parameter %q: use preserveVolume", key)
		case len(q) > 1 || len(values) > 1:
			return false, fmt.Errorf("%s is given with another parameter, or twice", key)
		case values[0] == word[1]:
			return false, nil
		case values[0] != word[0]:
			return false, fmt.Errorf("%s=%q is neither %s nor %s", key, values[0], word[0], word[1])
		}
	}
	return true, nil
}

func (h handler) volumes(list func(context.Context) ([]sandbox.Volume, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		got, err := list(r.Context())
		if err != nil {
			failWith(w, err)
			return
		}
		answer(w, http.StatusOK, got)
	}
}

// explain returns the status and text of an error.
func explain(err error) (code int, text string) {
	code, text = http.StatusInternalServerError, err.Error()
	if e := (*sandbox.Error)(nil); errors.As(err, &e) {
		code = e.StatusCode()
	}
	if errors.Is(err, sandbox.ErrNotFound) {
		text = sandbox.ErrNotFound.Error()
	}
	return code, text
}

// failWith answers with the status and text of an error.
func failWith(w http.ResponseWriter, err error) {
	code, text := explain(err)
	fail(w, code, text)
}

func fail(w http.ResponseWriter, code int, text string) {
	answer(w, code, map[string]string{"error": text})
}

func answer(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	json.NewEncoder(w).Encode(v) // fails only if the client has disconnected
}
