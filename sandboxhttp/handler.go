package sandboxhttp

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/seed-1a2d6d8f/sandbox"
)

// Handler serves the sandboxes of a client's engine, in JSON:
//
//	GET    /openapi.json                    this API as an OpenAPI 3.1 document, with all fields
//	GET    /health                          whether the engine answers; 503 if not
//	GET    /healthz                         200 while the server runs, without a token and without facts
//	GET    /events                          what happens to sandboxes, as Server-Sent Events; ?tag=key=value&prefix=a&denied=true
//	GET    /network/check                   whether ?policy= allows ?host= and &port=
//	POST   /prune                           remove leftovers of crashed programs
//	GET    /defaults                        what is created without settings, and images and runtimes to choose from
//	GET    /usage                           CPU, memory and network of all sandboxes with a session, by ID; selected as in the list
//	GET    /sandboxes                       list; ?status=running&prefix=a&tag=key=value, status and tag may be repeated
//	POST   /sandboxes                       create; with "Accept: application/x-ndjson" its steps, as lines of JSON
//	GET    /sandboxes/{name}                details and settings, as Inspect returns them
//	PATCH  /sandboxes/{name}                update the settings
//	DELETE /sandboxes/{name}                delete; ?preserveVolume=false deletes its volumes too, ?snapshots=true its snapshots
//	POST   /sandboxes/{name}/start          start the session
//	POST   /sandboxes/{name}/stop           stop the session
//	POST   /sandboxes/{name}/extend         prolong the session by {"durationMs": n}
//	POST   /sandboxes/{name}/fork           fork; {"count": n} makes n
//	POST   /sandboxes/{name}/snapshots      take a snapshot
//	POST   /sandboxes/{name}/rollback       make the files those of a snapshot
//	POST   /sandboxes/{name}/move           take a stopped one to another node of the swarm
//	POST   /sandboxes/{name}/exec           run a command; its output in NDJSON or as Server-Sent Events, or with {"wait": true} in one object
//	GET    /sandboxes/{name}/terminal       run a command on a terminal, over a WebSocket
//	GET    /sandboxes/{name}/processes      detached commands
//	POST   /sandboxes/{name}/processes/{process}/signal
//	                                        send {"signal": "TERM"}; without one kill all that it started
//	GET    /sandboxes/{name}/network/check  whether the sandbox's policy allows ?host= and &port=
//	GET    /sandboxes/{name}/egress         what the session tried to reach
//	GET    /sandboxes/{name}/logs           log, see LogsHandler
//	GET    /sandboxes/{name}/files          content of the file ?path=
//	PUT    /sandboxes/{name}/files          write the file ?path=, from the body
//	DELETE /sandboxes/{name}/files          remove the file or empty directory ?path=; &recursive=true a tree
//	GET    /sandboxes/{name}/files/list     entries of the directory ?path=
//	POST   /sandboxes/{name}/files/mkdir    make the directory ?path=, and missing ones above it
//	POST   /sandboxes/{name}/files/rename   rename ?path= to &to=
//	GET    /sandboxes/{name}/archive        the directory ?path= as a tar archive
//	PUT    /sandboxes/{name}/archive        write a tar archive into the directory ?path=
//	GET    /snapshots                       list; ?sandbox=a&name=b
//	GET    /snapshots/tree                  snapshots and sandboxes, each below the one it came from
//	GET    /snapshots/{id}                  one snapshot
//	DELETE /snapshots/{id}                  delete it
//	GET    /nodes                           the nodes of the client's swarm, see sandbox.WithSwarm
//	GET    /volumes                         the volumes of sandboxes, with their sizes
//	GET    /volumes/orphans                 those that no sandbox uses
//	POST   /volumes/cleanup                 delete these
//	DELETE /volumes/{name}                  delete a volume; ?force=true deletes the sandboxes that use it, too
//
// {name} of a sandbox is its name or ID. The fields are those that the results of package
// sandbox have in JSON: sizes are in bytes, durations in milliseconds, times in RFC 3339. An
// error is {"error": {"code": "not_found", "message": "Sandbox not found"}}, with the status
// of [sandbox.Error].StatusCode: 404 if there is no such sandbox, 400 for an invalid argument
// and for unknown parameters and fields, 503 if the engine is unavailable. Bodies of requests
// are JSON of at most 1 MiB, except files and archives; one that does not come within 30 s, or a file of which
// nothing comes for five minutes, gets 408.
//
// A sandbox that is created is persistent unless the request says otherwise; one that is not
// is removed when its session ends. A command ends when its client disconnects, or reads
// nothing for five minutes; a detached one continues. Handles are kept open for ten seconds
// after a request: close the client later than that, or its last connections end with it. With a
// handle end the processes that its commands left in the background; those of a detached one don't.
//
// GET / redirects browsers to /ui/. That is a page for a browser, which uses this API. With [WithToken] it takes the token from
// the fragment of its address, /ui/#token=TOKEN, or asks for it.
//
// Mount the handler below a prefix with [http.StripPrefix]: links in answers have the prefix.
// It needs the authorisation of [WithAuthorize] or [WithToken] for everything but the reads
// listed by [Action.Changes]. Requests of browsers from pages of other origins, and for hosts
// other than this machine, get 403: see [WithCrossOriginProtection] and [WithHosts].
func Handler(client *sandbox.Client, opts ...Option) http.Handler {
	c := configured(opts)
	h := &handler{config: c, client: client, handles: newHandles(client)}
	mux := http.NewServeMux()
	for _, r := range h.routes() {
		mux.Handle(r.method+" "+r.path, h.serve(r))
	}
	h.routePage(mux)
	return guard{c, jsonErrors{mux}}
}

type handler struct {
	*config
	client  *sandbox.Client
	handles *handles
}

// A route is one operation of the API. The OpenAPI document describes it by its name.
type route struct {
	method, path, name string
	changes            bool     // see Action
	query              []string // the parameters that it knows
	serve              func(http.ResponseWriter, *http.Request) error
}

func (h *handler) routes() []route {
	return []route{
		{"GET", "/openapi.json", "openapi", false, nil, serveOpenAPI},
		{"GET", "/health", "health", false, nil, h.health},
		{"GET", alivePath, aliveAction, false, nil, serveAlive},
		{"GET", "/events", "watchSandboxes", false, []string{"tag", "prefix", "denied"}, h.events},
		{"GET", "/network/check", "checkNetwork", false, []string{"policy", "host", "port"}, h.checkNetwork},
		{"POST", "/prune", "prune", true, nil, h.prune},
		{"GET", "/defaults", "getDefaults", false, nil, h.defaults},
		{"GET", "/usage", "listUsage", false, []string{"status", "tag", "prefix"}, h.usage},
		{"GET", "/sandboxes", "listSandboxes", false, []string{"status", "tag", "prefix"}, h.list},
		{"POST", "/sandboxes", "createSandbox", true, nil, h.create},
		{"GET", "/sandboxes/{name}", "inspectSandbox", false, nil, h.inspect},
		{"PATCH", "/sandboxes/{name}", "updateSandbox", true, nil, h.update},
		{"DELETE", "/sandboxes/{name}", "deleteSandbox", true, []string{"preserveVolume", "snapshots"}, h.delete},
		{"POST", "/sandboxes/{name}/start", "startSandbox", true, nil, h.start},
		{"POST", "/sandboxes/{name}/stop", "stopSandbox", true, nil, h.stop},
		{"POST", "/sandboxes/{name}/extend", "extendTimeout", true, nil, h.extend},
		{"POST", "/sandboxes/{name}/fork", "forkSandbox", true, nil, h.fork},
		{"POST", "/sandboxes/{name}/snapshots", "takeSnapshot", true, nil, h.takeSnapshot},
		{"POST", "/sandboxes/{name}/rollback", "rollbackSandbox", true, nil, h.rollback},
		{"POST", "/sandboxes/{name}/move", "moveSandbox", true, nil, h.move},
		{"POST", "/sandboxes/{name}/exec", "exec", true, nil, h.exec},
		{"GET", "/sandboxes/{name}/terminal", "openTerminal", true, nil, h.terminal},
		{"GET", "/sandboxes/{name}/processes", "listProcesses", false, nil, h.processes},
		{"POST", "/sandboxes/{name}/processes/{process}/signal", "signalProcess", true, nil, h.signal},
		{"GET", "/sandboxes/{name}/network/check", "checkSandboxNetwork", false, []string{"host", "port"}, h.checkSandboxNetwork},
		{"GET", "/sandboxes/{name}/egress", "listEgress", false, nil, h.egress},
		{"GET", "/sandboxes/{name}/logs", "readLogs", false, logsQuery, serveLogs(h.client)},
		{"GET", "/sandboxes/{name}/files", "readFile", true, []string{"path", "user"}, h.readFile},
		{"PUT", "/sandboxes/{name}/files", "writeFile", true, []string{"path", "user", "mode"}, h.writeFile},
		{"GET", "/sandboxes/{name}/files/list", "listFiles", true, []string{"path", "user"}, h.listFiles},
		{"DELETE", "/sandboxes/{name}/files", "removeFile", true, []string{"path", "user", "recursive"}, h.removeFile},
		{"POST", "/sandboxes/{name}/files/mkdir", "makeDirectory", true, []string{"path", "user", "mode"}, h.makeDirectory},
		{"POST", "/sandboxes/{name}/files/rename", "renameFile", true, []string{"path", "user", "to"}, h.renameFile},
		{"GET", "/sandboxes/{name}/archive", "readArchive", true, []string{"path", "user"}, h.readArchive},
		{"PUT", "/sandboxes/{name}/archive", "writeArchive", true, []string{"path", "user"}, h.writeArchive},
		{"GET", "/snapshots", "listSnapshots", false, []string{"sandbox", "name"}, h.listSnapshots},
		{"GET", "/snapshots/tree", "snapshotTree", false, nil, h.snapshotTree},
		{"GET", "/snapshots/{id}", "inspectSnapshot", false, nil, h.inspectSnapshot},
		{"DELETE", "/snapshots/{id}", "deleteSnapshot", true, nil, h.deleteSnapshot},
		{"GET", "/nodes", "listNodes", false, nil, list(h.client.Nodes)},
		{"GET", "/volumes", "listVolumes", false, nil, h.volumes(h.client.ListVolumes)},
		{"GET", "/volumes/orphans", "listOrphans", false, nil, h.volumes(h.client.OrphanedVolumes)},
		{"POST", "/volumes/cleanup", "cleanupVolumes", true, nil, h.cleanup},
		{"DELETE", "/volumes/{name}", "deleteVolume", true, []string{"force"}, h.deleteVolume},
	}
}

// serve authorises a request, and checks its parameters.
func (h *handler) serve(route route) http.Handler {
	ofVolume := strings.HasPrefix(route.path, "/volumes/")
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		action := Action{Name: route.name, Sandbox: r.PathValue("name"), Snapshot: r.PathValue("id"), Changes: route.changes}
		if ofVolume {
			action.Volume, action.Sandbox = action.Sandbox, ""
		}
		if err := h.check(r, action); err != nil {
			fail(w, err)
			return
		}
		if err := h.checkQuery(r, route.query); err != nil {
			fail(w, err)
			return
		}
		if err := checkHeader(r); err != nil {
			fail(w, err)
			return
		}
		if err := route.serve(w, r); err != nil {
			fail(w, err)
		}
	})
}

// checkQuery fails if a request has another parameter than these and the token's.
func (c *config) checkQuery(r *http.Request, known []string) error {
	if c.token != nil && r.Method == http.MethodGet {
		known = append(slices.Clip(known), tokenParameter)
	}
	return checkQuery(r, known...)
}

// prefix returns the part of the request's path that was removed by http.StripPrefix.
func prefix(r *http.Request) string {
	asked, err := url.ParseRequestURI(r.RequestURI)
	if err != nil {
		return "" // it came from no server
	}
	before, ok := strings.CutSuffix(asked.EscapedPath(), r.URL.EscapedPath())
	if !ok {
		return ""
	}
	return before
}

// jsonErrors serves a mux, whose own refusals (404, 405) it turns to JSON.
type jsonErrors struct{ *http.ServeMux }

func (m jsonErrors) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	refused, pattern := m.Handler(r)
	if pattern != "" {
		m.ServeMux.ServeHTTP(w, r)
		return
	}
	kept := refusal{header: w.Header()}
	refused.ServeHTTP(&kept, r)
	if kept.status < 400 { // to a path without "//" and the like
		w.WriteHeader(kept.status)
		return
	}
	refuse(w, kept.status, http.StatusText(kept.status))
}

// A refusal keeps the status and the header of an answer.
type refusal struct {
	header http.Header
	status int
}

func (r *refusal) Header() http.Header         { return r.header }
func (r *refusal) WriteHeader(status int)      { r.status = status }
func (r *refusal) Write(b []byte) (int, error) { return len(b), nil }

func (h *handler) health(w http.ResponseWriter, r *http.Request) error {
	got, err := h.client.CheckHealth(r.Context())
	if err != nil {
		return err
	}
	status := http.StatusOK
	if !got.Healthy {
		status = http.StatusServiceUnavailable
	}
	answer(w, status, got)
	return nil
}

// list answers with what a call that takes no arguments lists.
func list[T any](call func(context.Context) ([]T, error)) func(http.ResponseWriter, *http.Request) error {
	return func(w http.ResponseWriter, r *http.Request) error {
		got, err := call(r.Context())
		if err != nil {
			return err
		}
		answerList(w, got)
		return nil
	}
}

// answerList answers with an array, which is empty and not null if there are no items.
func answerList[T any](w http.ResponseWriter, items []T) {
	answer(w, http.StatusOK, append([]T{}, items...))
}
