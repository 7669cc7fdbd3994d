package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/seed-1a2d6d8f/sandbox"
)

// httpDial: requests per second to a server inside by DialContext, against the same by
// a published port: 16 clients that keep their connections.
func httpDial(ctx context.Context, r *rig) (float64, error) {
	const clients, each = 16, 60
	sb, err := r.client.Create(ctx, sandbox.WithTags(map[string]string{tag: r.id}), sandbox.WithPorts(3000),
		sandbox.WithCommand("node", "-e", `require("http").createServer((q, s) => s.end("x".repeat(1024))).listen(3000)`))
	if err != nil {
		return 0, err
	}
	if err := sb.WaitPort(ctx, 3000); err != nil {
		return 0, err
	}
	at, err := sb.Port(ctx, 3000)
	if err != nil {
		return 0, err
	}
	rate := func(dial func(context.Context, string, string) (net.Conn, error), url string) func() (float64, error) {
		web := &http.Client{Transport: &http.Transport{DialContext: dial, MaxIdleConnsPerHost: clients}}
		return func() (float64, error) {
			var failed atomic.Pointer[error]
			took, _ := milliseconds(func() error {
				var wg sync.WaitGroup
				for range clients {
					wg.Go(func() {
						for range each {
							if err := get(ctx, web, url); err != nil {
								failed.Store(&err)
								return
							}
						}
					})
				}
				wg.Wait()
				return nil
			})
			if err := failed.Load(); err != nil {
				return 0, *err
			}
			return clients * each / took * 1000, nil
		}
	}
	ours, theirs, ratios, err := pairs(ctx, 3, 15,
		rate(sb.DialContext, "http://localhost:3000/"),
		rate(new(net.Dialer).DialContext, fmt.Sprintf("http://%s/", at)))
	if err != nil {
		return 0, err
	}
	note("HTTP with %d clients: %v requests per second by DialContext, %v by the published port", clients, ours, theirs)
	return ratios.median(), nil
}

// pourDial: bytes per second that a server inside sends by DialContext, against the
// same by a published port.
func pourDial(ctx context.Context, r *rig) (float64, error) {
	const size = 256 << 20
	sb, err := r.client.Create(ctx, sandbox.WithTags(map[string]string{tag: r.id}), sandbox.WithPorts(3000),
		sandbox.WithCommand("node", "-e", fmt.Sprintf(`
			const b = Buffer.alloc(1 << 20);
			require("net").createServer(c => {
				let left = %d;
				const more = () => { while (left > 0) { left -= b.length; if (!c.write(b)) return c.once("drain", more) } c.end() };
				more();
			}).listen(3000)`, size)))
	if err != nil {
		return 0, err
	}
	if err := sb.WaitPort(ctx, 3000); err != nil {
		return 0, err
	}
	at, err := sb.Port(ctx, 3000)
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
					err = fmt.Errorf("%d bytes came, not %d", n, size)
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
