package sandboxhttp

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"net/http"
	"strings"
)

// An Action is what a request asks for.
type Action struct {
	// Name is the operation, by its operationId in the OpenAPI document: "createSandbox",
	// "exec", "listVolumes" …; of [Preview] it is "preview", of the page at /ui "page".
	Name string
	// Sandbox is the name or ID of the sandbox in the request's path or host, Volume and
	// Snapshot those of the others; empty if there is none. They were not validated.
	Sandbox, Volume, Snapshot string
	// Port is the port inside of [Preview]; otherwise 0.
	Port int
	// Changes says that the action changes or runs something, or reads or transfers files: what
	// is refused without authorisation.
	Changes bool
}

// WithAuthorize calls fn for each request, before anything else of it is read. If fn returns
// an error the request is refused with its text, and with the status that a method
// StatusCode() int of it returns, or 403. Of several functions all must permit. fn is called
// concurrently.
//
// With [Preview] the request goes on to the sandbox: fn removes from its header what the
// sandbox must not see, such as the credentials.
//
// An Action names what is in the request's path. A body names other things: a snapshot to roll back
// to or to create from, volumes to mount, an ID whose workspace is adopted. Lists show everybody's.
// Where users must not reach each other's, fn refuses "rollbackSandbox", "createSandbox" with a source,
// mounts or an ID, and lists, or the program reads the body before the handler does.
//
// Default: actions without [Action.Changes] are permitted, others are refused with 403.
func WithAuthorize(fn func(*http.Request, Action) error) Option {
	return func(c *config) { c.authorize = append(c.authorize, fn) }
}

// WithoutAuthorization permits every request, for a handler behind something that
// authenticates clients, or on a socket that only its owner can open. The checks of hosts
// and origins remain.
func WithoutAuthorization() Option {
	return func(c *config) { c.unchecked = true }
}

// WithToken refuses requests without this token, with status 401. The token is in the header
// "Authorization: Bearer TOKEN". A GET may have it in the parameter access_token instead, for
// EventSource and WebSocket in browsers, which can't set headers. With [Preview], where the
// address is that of a page, such a GET is redirected to the same address without the
// parameter, and gets a cookie that is valid for this one host. The sandbox sees neither the
// token nor the cookie. An empty token refuses everything, except the files of the page at
// /ui and /healthz, which never need the token.
func WithToken(secret string) Option {
	t := &token{sum: sha256.Sum256([]byte(secret)), empty: secret == ""}
	return func(c *config) {
		c.token = t
		c.authorize = append(c.authorize, t.authorize)
	}
}

// tokenParameter is the parameter for the token, by RFC 6750.
const tokenParameter = "access_token"

// A token compares what requests have with the token, in constant time.
type token struct {
	sum   [sha256.Size]byte
	empty bool
}

func (t *token) is(secret string) bool {
	sum := sha256.Sum256([]byte(secret))
	return subtle.ConstantTimeCompare(sum[:], t.sum[:]) == 1 && !t.empty
}

func (t *token) authorize(r *http.Request, a Action) error {
	scheme, secret, given := strings.Cut(r.Header.Get("Authorization"), " ")
	switch {
	case a.Name == pageAction, a.Name == aliveAction:
		return nil
	case given && strings.EqualFold(scheme, "Bearer") && t.is(secret):
		return nil
	case r.Method == http.MethodGet && t.is(r.URL.Query().Get(tokenParameter)):
		return nil
	}
	if a.Port > 0 { // a preview
		for _, c := range r.CookiesNamed(cookieFor(r)) {
			if hmac.Equal([]byte(c.Value), []byte(t.pass(canonHost(r.Host)))) && !t.empty {
				return nil
			}
		}
	}
	return errUnauthorized
}

var errUnauthorized = &statusError{http.StatusUnauthorized, "unauthorized", "the token is missing or wrong: send it as \"Authorization: Bearer TOKEN\""}

var errNoAuthorization = &statusError{
	http.StatusForbidden, "forbidden",
	"the server has no authorisation, so it refuses what changes or runs something or reads files: see sandboxhttp.WithAuthorize, WithToken and WithoutAuthorization",
}

// check returns an error unless the request is authorised.
func (c *config) check(r *http.Request, a Action) error {
	for _, permit := range c.authorize {
		if err := permit(r, a); err != nil {
			return &refusedError{err}
		}
	}
	if a.Changes && len(c.authorize) == 0 && !c.unchecked {
		return errNoAuthorization
	}
	return nil
}

// A refusedError is what a function of WithAuthorize returned.
type refusedError struct{ error }

func (e *refusedError) Unwrap() error { return e.error }

// StatusCode is that of the function's error, by default 403.
func (e *refusedError) StatusCode() int {
	if own, ok := statusOf(e.error); ok {
		return own
	}
	return http.StatusForbidden
}
