package sandboxhttp

import (
	"reflect"
	"slices"
	"strings"
	"time"
)

// HandleIdle is how long a handle is kept.
const HandleIdle = handleIdle

// ShortTimeouts has clients that stall be given up soon, until restore is called. Nothing may be
// served when either is called.
func ShortTimeouts(d time.Duration) (restore func()) {
	body, stall, beat := bodyTimeout, stallTimeout, heartbeat
	bodyTimeout, stallTimeout, heartbeat = d, d, d/4
	return func() { bodyTimeout, stallTimeout, heartbeat = body, stall, beat }
}

// A Route is what the document says of an operation.
type Route struct {
	Method, Path, Name string
	Query              []string
}

// Routes are those of the handler.
func Routes() (all []Route) {
	for _, r := range (&handler{config: newConfig()}).routes() {
		all = append(all, Route{r.method, r.path, r.name, slices.Clone(r.query)})
	}
	return all
}

// Requests are the fields of the JSON of requests, and of answers that are not of package sandbox,
// by the name of their schema.
func Requests() map[string][]string {
	// A terminal refuses two fields of a command.
	terminal := slices.DeleteFunc(fields[terminalRequest](), func(name string) bool { return name == "stdin" || name == "detached" })
	// An update refuses what can't be changed.
	update := slices.DeleteFunc(fields[updateRequest](), func(name string) bool {
		return slices.Contains([]string{"name", "id", "image", "runtime", "ociRuntime", "user", "workdir", "pidsLimit", "storageBytes", "newPrivileges"}, name)
	})
	return map[string][]string{
		"CreateRequest": fields[createRequest](), "ForkRequest": fields[forkRequest](), "UpdateRequest": update,
		"SnapshotRequest": fields[snapshotRequest](), "RollbackRequest": fields[rollbackRequest](), "CleanupRequest": fields[cleanupRequest](),
		"ExecRequest": fields[execRequest](), "TerminalRequest": terminal, "ExecEvent": fields[execEvent](), "Source": fields[sourceRequest](),
		"File": fields[fileEntry](), "Written": fields[written](), "Failure": fields[failure](), "Error": fields[failed](), "StateAnswer": fields[state](),
	}
}

func fields[T any]() (names []string) {
	for _, f := range reflect.VisibleFields(reflect.TypeFor[T]()) {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" && name != "-" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// HostCookie, WithoutPreviewCookie and WithoutToken are how Preview changes cookies and queries.
var (
	HostCookie           = hostCookie
	WithoutPreviewCookie = withoutPreviewCookie
)

// WithoutToken returns a query without the token.
func WithoutToken(secret, query string) string {
	return configured([]Option{WithToken(secret)}).token.without(query)
}
