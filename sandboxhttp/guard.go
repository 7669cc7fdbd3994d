package sandboxhttp

import (
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// An Option configures [Handler] and [LogsHandler].
type Option func(*guard)

// WithHosts adds host names under which the handler is served, without ports, such as
// "sandboxes.example.com". Requests for other hosts get status 403, so that a web page can't
// reach the handler through a name of its own that resolves to this machine's address.
// Default: names of the loopback interface ("localhost" and names ending in ".localhost")
// and IP addresses, which are always accepted.
func WithHosts(hosts ...string) Option {
	hosts = slices.Clone(hosts)
	return func(g *guard) {
		for _, h := range hosts {
			g.hosts = append(g.hosts, canonHost(h))
		}
	}
}

// WithCrossOriginProtection replaces the check of requests that browsers send from pages of
// other origins, for example by one that trusts an origin. Default:
// [http.NewCrossOriginProtection], which refuses all of them but GET and HEAD, with status
// 403. Its deny handler is not used. p must not be nil, and not be changed while the handler
// is in use.
func WithCrossOriginProtection(p *http.CrossOriginProtection) Option {
	return func(g *guard) { g.origins = p }
}

// A guard refuses requests that a browser sends for pages of others.
type guard struct {
	origins *http.CrossOriginProtection
	hosts   []string
	next    http.Handler
}

func guarded(next http.Handler, opts []Option) http.Handler {
	g := &guard{origins: http.NewCrossOriginProtection(), next: next}
	for _, o := range opts {
		o(g)
	}
	return g
}

func (g *guard) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	// A request that no server of package http received is the program's own, as in a test.
	received := r.Context().Value(http.LocalAddrContextKey) != nil
	if host := canonHost(r.Host); received && !isLocal(host) && !slices.Contains(g.hosts, host) {
		fail(w, http.StatusForbidden, "host "+strconv.Quote(r.Host)+" is not allowed: list it with sandboxhttp.WithHosts")
		return
	}
	if err := g.origins.Check(r); err != nil {
		fail(w, http.StatusForbidden, err.Error()+": trust its origin with sandboxhttp.WithCrossOriginProtection")
		return
	}
	g.next.ServeHTTP(w, r)
}

// canonHost returns a host without its port, brackets and final dot, in lower case.
func canonHost(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	} else if name, ok := strings.CutPrefix(host, "["); ok {
		host = strings.TrimSuffix(name, "]")
	}
	return strings.TrimSuffix(strings.ToLower(host), ".")
}

// isLocal reports whether no DNS server can have led a browser to this machine by the name.
func isLocal(host string) bool {
	_, err := netip.ParseAddr(host)
	return err == nil || host == "localhost" || strings.HasSuffix(host, ".localhost")
}
