package source

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/seed-1a2d6d8f/sandbox/internal/errdefs"
	"github.com/seed-1a2d6d8f/sandbox/internal/policy"
)

// Bounds are the addresses that sources and images may come from: public ones, and those of Also.
// nil permits all.
type Bounds struct{ Also []netip.Prefix }

// nonPublic knows which addresses are not public.
var nonPublic = sync.OnceValues(func() (*policy.Rules, error) { return policy.Policy{Mode: policy.DenyAll}.Compile() })

// permits returns an error unless an address is one of the bounds. The error does not repeat the
// address: to whom a name is all that he knows, it may be a secret.
func (b *Bounds) permits(host string, a netip.Addr) error {
	a = a.Unmap().WithZone("")
	if slices.ContainsFunc(b.Also, func(p netip.Prefix) bool { return p.Contains(a) }) {
		return nil
	}
	rules, err := nonPublic()
	if err == nil && rules.Addr(a) == policy.Protected {
		err = errdefs.Invalid("%s has an address that is not public, from which no source or image is permitted (see WithSourceAddresses)", host)
	}
	return err
}

// Resolve returns the addresses of a host, all of which are permitted. Without bounds it returns none.
func (b *Bounds) Resolve(ctx context.Context, host string) ([]netip.Addr, error) {
	if b == nil {
		return nil, nil
	}
	host = strings.Trim(host, "[]")
	found, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		if ctx.Err() != nil {
			return nil, errdefs.Cancelled(ctx)
		}
		return nil, fmt.Errorf("the host %s was not found", host) // the error names the DNS server
	}
	for i, a := range found {
		if err := b.permits(host, a); err != nil {
			return nil, err
		}
		found[i] = a.Unmap()
	}
	return found, nil
}

// transport returns t with a check of each address that it connects to, whatever name, redirect or
// later answer of a DNS server led there. A proxy of the caller's may have any address: for a
// request that it sends, the host's addresses as this machine sees them are checked.
func (b *Bounds) transport(t *http.Transport) *http.Transport {
	if b == nil {
		return t
	}
	var proxies sync.Map // addresses, as they are dialled
	if choose := t.Proxy; choose != nil {
		t.Proxy = func(r *http.Request) (*url.URL, error) {
			proxy, err := choose(r)
			if err != nil || proxy == nil {
				return proxy, err
			}
			if _, err := b.Resolve(r.Context(), r.URL.Hostname()); err != nil {
				return nil, err
			}
			proxies.Store(hostPort(proxy), true)
			return proxy, nil
		}
	}
	t.DialTLSContext = nil
	t.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		var d net.Dialer
		if _, is := proxies.Load(address); !is {
			host, _, err := net.SplitHostPort(address)
			if err != nil {
				return nil, err
			}
			d.Control = func(_, address string, _ syscall.RawConn) error {
				at, err := netip.ParseAddrPort(address)
				if err != nil {
					return err
				}
				return b.permits(host, at.Addr())
			}
		}
		return d.DialContext(ctx, network, address)
	}
	return t
}

// hostPort returns the address of a proxy as a transport dials it.
func hostPort(proxy *url.URL) string {
	port := proxy.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443", "socks5": "1080", "socks5h": "1080"}[proxy.Scheme]
	}
	return net.JoinHostPort(proxy.Hostname(), port)
}

// errTransport is the error of a caller who has replaced [http.DefaultTransport].
var errTransport = errors.New("http.DefaultTransport is not a *http.Transport, so that addresses can't be bounded")
