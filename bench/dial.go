package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"

	"github.com/seed-1a2d6d8f/sandbox"
)

// httpDial compares requests per second to a server inside, by DialContext and by a published
// port, with 16 clients that keep their connections.
func httpDial(ctx context.Context, r *rig) (float64, error) {
	const clients, each = 16, 60
	sb, at, err := r.server(ctx, `require("http").createServer((q, s) => s.end("x".repeat(1024))).listen(3000)`)
	if err != nil {
		return 0, err
	}
	requests := func(dial func(context.Context, string, string) (net.Conn, error), url string) func() (float64, error) {
		web := &http.Client{Transport: &http.Transport{DialContext: dial, MaxIdleConnsPerHost: clients}}
		return rate(clients, each, func() error { return get(ctx, web, url) })
	}
	ours, theirs, ratios, err := pairs(ctx, 3, 15,
		requests(sb.DialContext, "http://localhost:3000/"),
		requests(new(net.Dialer).DialContext, fmt.Sprintf("http://%s/", at)))
	if err != nil {
		return 0, err
	}
	note("HTTP with %d clients: %v requests per second by DialContext, %v by the published port", clients, ours, theirs)
	return ratios.median(), nil
}

// server creates a sandbox that runs a Node program, and waits until that listens on port
// 3000, which is published at the address returned.
func (r *rig) server(ctx context.Context, program string) (*sandbox.Sandbox, netip.AddrPort, error) {
	sb, err := r.client.Create(ctx, r.tags(), sandbox.WithPorts(3000), sandbox.WithCommand("node", "-e", program))
	if err != nil {
		return nil, netip.AddrPort{}, err
	}
	if err := sb.WaitPort(ctx, 3000); err != nil {
		return nil, netip.AddrPort{}, err
	}
	at, err := sb.Port(ctx, 3000)
	return sb, at, err
}

// bulkDial compares the throughput of a server inside, by DialContext and by a published
// port.
func bulkDial(ctx context.Context, r *rig) (float64, error) {
	const size = 256 << 20
	sb, at, err := r.server(ctx, fmt.Sprintf(`
		const b = Buffer.alloc(1 << 20);
		require("net").createServer(c => {
			let left = %d;
			const more = () => { while (left > 0) { left -= b.length; if (!c.write(b)) return c.once("drain", more) } c.end() };
			more();
		}).listen(3000)`, size))
	if err != nil {
		return 0, err
	}
	speed := func(dial func(context.Context, string, string) (net.Conn, error), address string) func() (float64, error) {
		return func() (float64, error) {
			took, err := milliseconds(func() error {
				conn, err := dial(ctx, "tcp", address)
				if err != nil {
					return err
				}
				defer conn.Close()
				n, err := io.Copy(io.Discard, conn)
				if err == nil && n != size {
					err = fmt.Errorf("got %d bytes, want %d", n, size)
				}
				return err
			})
			return size / 1e6 / (took / 1000), err
		}
	}
	ours, theirs, ratios, err := pairs(ctx, 1, 7, speed(sb.DialContext, "localhost:3000"), speed(new(net.Dialer).DialContext, at.String()))
	if err != nil {
		return 0, err
	}
	note("256 MiB from a server inside: %v MB/s by DialContext, %v by the published port", ours, theirs)
	return ratios.median(), nil
}

func get(ctx context.Context, web *http.Client, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := web.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return err
}
