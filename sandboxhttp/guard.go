package sandboxhttp

import (
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/seed-1a2d6d8f/sandbox"
)

// An Option configures [Handler], [LogsHandler] and [Preview].
type Option func(*config)

func (o Option) applyPreview(c *config) { o(c) }

// config is what the options set.
type config struct {
	bound     sandbox.MakeOption // of sources and images; may be nil
	origins   *http.CrossOriginProtection
	hosts     []string
	authorize []func(*http.Request, Action) error // all must permit
	token     *token                              // one of them, if it is that of WithToken
	unchecked bool
	hostFiles bool
	pools     map[string]*sandbox.Pool // by image
	maxUpload int64
	domain    string // of Preview
	resume    bool   // of Preview
	proxies   []netip.Prefix

	previewDomain string // of the Preview that the page links to
}

func newConfig() *config { return &config{origins: http.NewCrossOriginProtection()} }

func configured(opts []Option) *config {
	c := newConfig()
	for _, o := range opts {
		o(c)
	}
	return c
}

// WithHosts adds host names under which the handler is served, without ports, such as
// "sandboxes.example.com". Requests for other hosts get status 403, so that a web page can't
// reach the handler through a name of its own that resolves to this machine's address.
// Default: names of the loopback interface ("localhost" and names ending in ".localhost")
// and IP addresses, which are always accepted.
func WithHosts(hosts ...string) Option {
	hosts = slices.Clone(hosts)
	return func(c *config) {
		for _, h := range hosts {
			c.hosts = append(c.hosts, canonHost(h))
		}
	}
}

// WithCrossOriginProtection replaces the check of requests that browsers send from pages of
// other origins, for example by one that trusts an origin. Default:
// [http.NewCrossOriginProtection], which refuses all of them but GET and HEAD, with status
// 403. WebSockets are checked as if they were a POST. Its deny handler is not used. p must
// not be nil, and not be changed while the handler is in use.
func WithCrossOriginProtection(p *http.CrossOriginProtection) Option {
	return func(c *config) { c.origins = p }
}

// A guard refuses requests that a browser sends for pages of others.
type guard struct {
	*config
	next http.Handler
}

func (g guard) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	// A request that no server of package http received is the program's own, as in a test. Checks of load
	// balancers name any host, or none by HTTP/1.0, and get no facts.
	checked := r.Context().Value(http.LocalAddrContextKey) != nil && r.URL.Path != alivePath
	if host := canonHost(r.Host); checked && !isLocal(host) && !slices.Contains(g.hosts, host) {
		refuse(w, http.StatusForbidden, "host "+strconv.Quote(r.Host)+" is not allowed: list it with --allow-host of \"sandbox serve\", or sandboxhttp.WithHosts")
		return
	}
	if err := g.checkOrigin(r); err != nil {
		refuse(w, http.StatusForbidden, err.Error()+": trust its origin with sandboxhttp.WithCrossOriginProtection")
		return
	}
	g.next.ServeHTTP(w, r)
}

// checkOrigin fails if the request is one that a browser sends for a page of another origin. A
// page can't read the answer to a GET across origins, but it can use a WebSocket, which begins
// as one.
func (c *config) checkOrigin(r *http.Request) error {
	if r.Header.Get("Upgrade") != "" {
		upgrade := *r
		upgrade.Method = http.MethodPost
		r = &upgrade
	}
	return c.origins.Check(r)
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
