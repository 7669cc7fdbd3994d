package sandboxhttp

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
)

// A PreviewOption configures [Preview]. Each [Option] is one.
type PreviewOption interface{ applyPreview(*config) }

type previewOption func(*config)

func (o previewOption) applyPreview(c *config) { o(c) }

// WithDomain sets the domain below which sandboxes have their hosts. Default "localhost", whose
// subdomains browsers resolve to their own machine. Give it a domain of its own, without pages
// that matter: code in sandboxes serves everything below it.
func WithDomain(domain string) PreviewOption {
	domain = canonHost(domain)
	return previewOption(func(c *config) { c.domain = domain })
}

// WithResume lets requests start the session of a stopped sandbox. Default: they get status 409.
func WithResume() PreviewOption {
	return previewOption(func(c *config) { c.resume = true })
}

// Preview serves the web servers in sandboxes: a request for the host <port>-<name>.<domain>,
// such as 3000-build.localhost, goes to the port inside, which need not be published. WebSockets
// and streams work. <name> is the sandbox's name or ID.
//
// Every request needs the authorisation of [WithAuthorize], for the action "preview", or
// [WithToken]; requests of browsers from pages of other origins, also other previews, are
// refused as by [Handler]. Errors of this handler are JSON, as there: 404 if there is no such
// sandbox, 409 if it is stopped, see [WithResume], and 502 if nothing listens on the port.
//
// The server inside sees the host that the browser asked for, and no header that says who
// the client is, except X-Forwarded-Host, X-Forwarded-Proto and X-Forwarded-For, see [WithTrustedProxies]. Queries, cookies and
// trailers arrive as they were sent, and so do paths, but bytes that URLs can't have, such as a quote, are
// percent-encoded. Cookies that it sets are for its own host alone, with the
// attributes Expires, Max-Age, Path, Secure, HttpOnly, SameSite, Partitioned and Priority. A script in
// a page can set cookies for the whole domain all the same, so for other previews, too, unless the
// domain is on the public suffix list, as browsers take "localhost" to be.
func Preview(client *sandbox.Client, opts ...PreviewOption) http.Handler {
	c := newConfig()
	c.domain = "localhost"
	for _, o := range opts {
		o.applyPreview(c)
	}
	p := &preview{config: c}
	if c.resume {
		p.handles = newHandles(client)
	} else {
		p.handles = newHandles(client, sandbox.NeverResume())
	}
	return p
}

type preview struct {
	*config
	handles *handles
}

// target returns the port and the sandbox of a host.
func (p *preview) target(host string) (port int, name string, ok bool) {
	label, ok := strings.CutSuffix(canonHost(host), "."+p.domain)
	if !ok {
		return 0, "", false
	}
	number, name, ok := strings.Cut(label, "-")
	n, err := strconv.ParseUint(number, 10, 16)
	return int(n), name, ok && err == nil && n > 0 && name != "" && number[0] != '0'
}

func (p *preview) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	port, name, ok := p.target(r.Host)
	if !ok {
		refuse(w, http.StatusNotFound, "host "+strconv.Quote(r.Host)+" is not PORT-NAME."+p.domain)
		return
	}
	r = p.trust(r)
	if err := p.checkOrigin(r); err != nil {
		refuse(w, http.StatusForbidden, err.Error()+": trust its origin with sandboxhttp.WithCrossOriginProtection")
		return
	}
	if p.token != nil && p.admit(w, r) {
		return
	}
	trailer := r.Trailer // the server sets its values there once the body is read
	// What fn of WithAuthorize removes from the header is removed from what the sandbox gets.
	r = r.Clone(r.Context())
	if err := p.check(r, Action{Name: "preview", Sandbox: name, Port: port, Changes: true}); err != nil {
		fail(w, err)
		return
	}
	if p.token != nil {
		p.token.hide(r)
	}
	sb, err := p.handles.get(r.Context(), name)
	if err != nil {
		fail(w, readable(err))
		return
	}
	defer sb.done()
	if p.resume {
		if _, err := sb.Start(r.Context()); err != nil {
			fail(w, err)
			return
		}
	}
	proxy := httputil.ReverseProxy{
		Rewrite: func(pr *httputil.ProxyRequest) {
			pr.Out.URL.RawPath = escapeInvalid(pr.In.URL.RawPath)
			pr.SetURL(&url.URL{Scheme: "http", Host: net.JoinHostPort("localhost", strconv.Itoa(port))})
			pr.Out.URL.RawQuery = pr.In.URL.RawQuery // without it parameters that Go can't parse are missing
			// On a connection that goes on, a refused body would have to be sent all the same.
			pr.Out.Close = pr.In.Header.Get("Expect") != ""
			pr.Out.Trailer = trailer
			pr.Out.Host = pr.In.Host
			offerUpgrade(pr.Out.Header, pr.In.Header["Upgrade"])
			forward(pr)
		},
		Transport:     sb.transport(r),
		FlushInterval: -1, // pages reload by streams of events
		ModifyResponse: func(answer *http.Response) error {
			addNothing(w, answer)
			chooseUpgrade(answer)
			return keepCookies(answer)
		},
		ErrorLog: log.New(io.Discard, "", 0),
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			if _, own := statusOf(err); own && !errors.As(err, new(*net.OpError)) {
				fail(w, err)
				return
			}
			fail(w, &statusError{http.StatusBadGateway, "bad_gateway", "port " + strconv.Itoa(port) + " of the sandbox: " + err.Error()})
		},
	}
	// Some servers answer while they still read.
	_ = http.NewResponseController(w).EnableFullDuplex() // HTTP/2 always has it
	proxy.ServeHTTP(upgrader{w}, r)
}

// addNothing keeps package http from adding headers to an answer that has none of that name: a
// Content-Type, which it takes from the body, and a Date.
func addNothing(w http.ResponseWriter, answer *http.Response) {
	for _, name := range []string{"Content-Type", "Date"} {
		if _, has := answer.Header[name]; !has {
			w.Header()[name] = nil
		}
	}
}

// escapeInvalid percent-encodes those bytes of a path that a URL can't have. With one of them package
// url would ignore the RawPath and encode the Path, where %2F has become a slash.
func escapeInvalid(rawPath string) string {
	var valid strings.Builder
	for i := range len(rawPath) {
		c := rawPath[i : i+1]
		if c != "%" {
			c = (&url.URL{Path: c, RawPath: c}).EscapedPath()
		}
		valid.WriteString(c)
	}
	return valid.String()
}

// transportIdle is how long a connection to a server inside is kept for the next request: less than
// the 5 s that Node and others keep theirs.
const transportIdle = 4 * time.Second

// transport returns the connections to the servers inside. A request that can't be repeated gets a
// new one: the server could be closing any other.
func (s *handle) transport(r *http.Request) *http.Transport {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	if s.inside == nil {
		s.inside, s.single = s.newTransport(), s.newTransport()
		s.single.MaxIdleConnsPerHost = -1
	}
	bare := r.Body == nil || r.Body == http.NoBody || r.ContentLength == 0
	if bare && (r.Method == http.MethodGet || r.Method == http.MethodHead || r.Method == http.MethodOptions) {
		return s.inside
	}
	return s.single
}

func (s *handle) newTransport() *http.Transport {
	return &http.Transport{
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			return s.DialContext(ctx, network, address)
		},
		DisableCompression: true,
		IdleConnTimeout:    transportIdle,
		// Of a body whose client expects the server's 100 (Continue).
		ExpectContinueTimeout: time.Second,
	}
}

// previewCookie is the cookie of a browser that has shown the token. Over TLS its name has the prefix
// by which browsers keep other hosts from setting it.
const (
	previewCookie       = "agent-sandbox-preview"
	securePreviewCookie = "__Host-" + previewCookie
)

// cookieFor returns the name of the cookie for a request.
func cookieFor(r *http.Request) string {
	if overTLS(r) {
		return securePreviewCookie
	}
	return previewCookie
}

// isPreviewCookie reports whether a cookie of that name could be taken for ours.
func isPreviewCookie(name string) bool {
	return strings.EqualFold(name, previewCookie) || strings.EqualFold(name, securePreviewCookie)
}

// pass returns the value of the cookie for a host: it is of no use for another one.
func (t *token) pass(host string) string {
	mac := hmac.New(sha256.New, t.sum[:])
	mac.Write([]byte(host))
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// admit redirects a browser that shows the token in the address, and gives it the cookie; then
// it returns true. The token stays in no address that the sandbox's pages can read.
func (p *preview) admit(w http.ResponseWriter, r *http.Request) bool {
	if r.Method != http.MethodGet || r.Header.Get("Upgrade") != "" || !p.token.is(r.URL.Query().Get(tokenParameter)) {
		return false
	}
	http.SetCookie(w, &http.Cookie{
		Name: cookieFor(r), Value: p.token.pass(canonHost(r.Host)), Path: "/",
		HttpOnly: true, SameSite: http.SameSiteLaxMode, Secure: overTLS(r),
	})
	to := url.URL{Path: r.URL.Path, RawPath: escapeInvalid(r.URL.RawPath), RawQuery: p.token.without(r.URL.RawQuery)}
	if strings.HasPrefix(to.Path, "//") {
		to.Path, to.RawPath = "/", "" // it would be another host
	}
	protect(w.Header())
	w.Header().Set("Cache-Control", "no-store")
	http.Redirect(w, r, to.String(), http.StatusSeeOther)
	return true
}

// hide removes the token and the cookie from a request.
func (t *token) hide(r *http.Request) {
	if scheme, secret, _ := strings.Cut(r.Header.Get("Authorization"), " "); strings.EqualFold(scheme, "Bearer") && t.is(secret) {
		r.Header.Del("Authorization")
	}
	if lines := withoutPreviewCookie(r.Header["Cookie"]); len(lines) > 0 {
		r.Header["Cookie"] = lines
	} else {
		r.Header.Del("Cookie")
	}
	r.URL.RawQuery = t.without(r.URL.RawQuery)
}

// without returns a query without the token, and otherwise as it is.
func (t *token) without(query string) string {
	var rest []string
	for part := range strings.SplitSeq(query, "&") {
		if values, err := url.ParseQuery(part); err == nil && t.is(values.Get(tokenParameter)) {
			continue
		}
		rest = append(rest, part)
	}
	return strings.Join(rest, "&")
}
