// Secret lets a sandbox use a token that it can't read: PID 1 of the sandbox sets it in
// outgoing requests to one name.
package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"log"
	"strings"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/examples/internal/outside"
)

func main() {
	log.SetFlags(0)
	if err := run(context.Background()); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) error {
	token := rand.Text()
	// An API in a container, so that this runs without the internet. A real one needs none
	// of WithDNS, WithAuthorities and ResolveInto.
	api, err := outside.Start(ctx, "api.test", fmt.Sprintf(
		`const ok = req.headers.authorization === 'Bearer %s'; res.statusCode = ok ? 200 : 401; res.end(ok ? 'hello, ada' : 'unauthorized')`, token))
	if err != nil {
		return err
	}
	defer api.Close()
	client, err := sandbox.NewClient(sandbox.WithDNS(api.Addr), sandbox.WithAuthorities(api.Authority))
	if err != nil {
		return err
	}
	defer client.Close()

	sb, err := client.Create(ctx, sandbox.WithNetworkPolicy(sandbox.NetworkPolicy{
		Transform: map[string]sandbox.Transform{
			"api.test": {SetHeaders: sandbox.Headers{"Authorization": "Bearer " + token}},
		},
		ResolveInto: []string{api.Addr.String()},
	}))
	if err != nil {
		return err
	}
	defer sb.Close()

	// The token is neither in this command nor anywhere inside.
	out, err := sb.Command(ctx, "curl", "-sS", "https://api.test/me").Output()
	if err != nil {
		return err
	}
	fmt.Printf("the API says: %s\n", out)

	out, err = sb.Command(ctx, "sh", "-c", "env; cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null; true").Output()
	if err != nil {
		return err
	}
	fmt.Printf("the token is in what can be read inside: %v\n", strings.Contains(string(out), token))

	// A server with another name gets no token: the connection is blocked.
	err = sb.Command(ctx, "curl", "-sS", "-k", "--connect-to", "evil.test:443:"+api.Addr.String()+":443", "https://evil.test/").Run()
	fmt.Printf("another name: %v\n", err)
	return nil
}
