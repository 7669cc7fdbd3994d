package sandboxhttp

import (
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"net/netip"
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
//	DELETE /sandboxes/{name}          delete; ?volumes=delete deletes its volumes too
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
	return guarded(mux, opts)
}

type handler struct{ client *sandbox.Client }

// info is the JSON of a sandbox in a list.
type info struct {
	ID        string            `json:"id"`
	Name      string            `json:"name"`
	Status    sandbox.State     `json:"status"`
	Image     string            `json:"image"`
	CreatedAt time.Time         `json:"createdAt"`
	Location  string            `json:"location"`
	Tags      map[string]string `json:"tags,omitempty"`
}

func infoOf(i sandbox.Info) info {
	return info{i.ID, i.Name, i.State, i.Image, i.CreatedAt, i.Location, i.Tags}
}

// details is the JSON of one sandbox.
type details struct {
	info
	Reason       string                    `json:"reason,omitempty"`
	StartedAt    time.Time                 `json:"startedAt,omitzero"`
	UptimeMS     int64                     `json:"uptimeMs"`
	ExpiresAt    time.Time                 `json:"expiresAt,omitzero"`
	Ports        map[uint16]netip.AddrPort `json:"ports,omitempty"`
	Usage        *usage                    `json:"usage"`
	Workspace    workspace                 `json:"workspace"`
	Network      string                    `json:"network"` // see sandbox.ParseNetworkPolicy
	LogsEndpoint string                    `json:"logsEndpoint"`
}

type usage struct {
	CPUPercent      float64 `json:"cpuPercent"`
	MemoryBytes     int64   `json:"memoryBytes"`
	MemoryLimit     int64   `json:"memoryLimit"`
	Processes       int     `json:"processes"`
	NetworkReceived int64   `json:"networkReceived"`
	NetworkSent     int64   `json:"networkSent"`
}

type workspace struct {
	Volume    string `json:"volume"`
	SizeBytes int64  `json:"sizeBytes"` // negative if unknown
	Size      string `json:"size"`
	Warning   string `json:"warning,omitempty"`
}

func detailsOf(st sandbox.Status) details {
	d := details{
		info: infoOf(st.Info), Reason: st.Reason, StartedAt: st.StartedAt, UptimeMS: st.Uptime.Milliseconds(),
		ExpiresAt: st.ExpiresAt, Ports: st.Ports, LogsEndpoint: st.LogsEndpoint,
		Workspace: workspace{st.Workspace.Name, st.Workspace.SizeBytes, st.Workspace.Size, st.Workspace.Warning},
		Network:   st.Network.String(),
	}
	if u := st.Usage; u != nil {
		d.Usage = &usage{u.CPUPercent, u.MemoryBytes, u.MemoryLimit, u.Processes, u.NetworkReceived, u.NetworkSent}
	}
	return d
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
	all := []info{}
	for _, i := range got {
		all = append(all, infoOf(i))
	}
	answer(w, http.StatusOK, all)
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

// outcome is the JSON of a volume of a deleted sandbox.
type outcome struct {
	Name   string `json:"name"`
	Status string `json:"status"`
	Reason string `json:"reason,omitempty"`
}

func (h handler) delete(w http.ResponseWriter, r *http.Request) {
	var opts []sandbox.DeleteOption
	switch v := r.URL.Query().Get("volumes"); v {
	case "", "preserve":
	case "delete":
		opts = append(opts, sandbox.PreserveVolumes(false))
	default:
		fail(w, http.StatusBadRequest, "volumes="+strconv.Quote(v)+" is neither delete nor preserve")
		return
	}
	report, err := h.client.Delete(r.Context(), r.PathValue("name"), opts...)
	volumes := []outcome{}
	for _, o := range report.Volumes {
		volumes = append(volumes, outcome{o.Name, o.Status, o.Reason})
	}
	if err == nil {
		answer(w, http.StatusOK, map[string]any{"volumes": volumes})
		return
	}
	code, text := explain(err)
	answer(w, code, map[string]any{"error": text, "volumes": volumes})
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
