package sandboxhttp

import (
	"slices"
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

// HostCookie, WithoutPreviewCookie and WithoutToken are how Preview changes cookies and queries.
var (
	HostCookie           = hostCookie
	WithoutPreviewCookie = withoutPreviewCookie
)

// WithoutToken returns a query without the token.
func WithoutToken(secret, query string) string {
	return configured([]Option{WithToken(secret)}).token.without(query)
}
