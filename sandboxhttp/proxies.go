package sandboxhttp

import (
	"context"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"slices"
	"strings"
)

// WithTrustedProxies names the addresses of proxies in front of [Preview], such as one that has TLS. Of
// their requests X-Forwarded-Proto is passed on if it is http, https, ws or wss, and X-Forwarded-For with the
// proxy's address added; for https and wss the cookie of [WithToken] is one for TLS alone. Such a proxy must set
// or remove both headers itself, or its clients choose them. With any address, whoever connects by a Unix
// socket counts as a proxy, too. Default: none; the headers say what this server's own connection is.
func WithTrustedProxies(proxies ...netip.Prefix) PreviewOption {
	proxies = slices.Clone(proxies)
	return previewOption(func(c *config) { c.proxies = append(c.proxies, proxies...) })
}

// viaKey is of a request's context, for a [via].
type viaKey struct{}

// via is what a trusted proxy says of the connection to its client.
type via struct{ proto, clients string }

// trust adds to a request what a trusted proxy says, if it comes from one.
func (c *config) trust(r *http.Request) *http.Request {
	if len(c.proxies) == 0 {
		return r
	}
	if _, socket := r.Context().Value(http.LocalAddrContextKey).(*net.UnixAddr); !socket {
		peer, err := netip.ParseAddrPort(r.RemoteAddr)
		address := peer.Addr().Unmap().WithZone("")
		if err != nil || !slices.ContainsFunc(c.proxies, func(p netip.Prefix) bool { return p.Contains(address) }) {
			return r
		}
	}
	v := via{clients: strings.Join(r.Header["X-Forwarded-For"], ", ")}
	if said := r.Header["X-Forwarded-Proto"]; len(said) == 1 && slices.Contains([]string{"http", "https", "ws", "wss"}, said[0]) {
		v.proto = said[0]
	}
	return r.WithContext(context.WithValue(r.Context(), viaKey{}, v))
}

// overTLS reports whether a client's connection has TLS, here or at a trusted proxy.
func overTLS(r *http.Request) bool {
	v, _ := r.Context().Value(viaKey{}).(via)
	return r.TLS != nil || v.proto == "https" || v.proto == "wss"
}

// forward sets the headers that say whose request it is.
func forward(pr *httputil.ProxyRequest) {
	pr.SetXForwarded()
	v, _ := pr.In.Context().Value(viaKey{}).(via)
	if v.clients != "" {
		chain := append([]string{v.clients}, pr.Out.Header["X-Forwarded-For"]...)
		pr.Out.Header.Set("X-Forwarded-For", strings.Join(chain, ", "))
	}
	if v.proto != "" {
		pr.Out.Header.Set("X-Forwarded-Proto", v.proto)
	}
}
