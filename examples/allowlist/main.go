// Allowlist installs an untrusted package in a sandbox that can connect to the registry only.
// Other connections of the package's install script are blocked, and listed at the end.
package main

import (
	"context"
	"fmt"
	"log"
	"os"

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
	// A registry in a container, so that this runs without the internet. With the real one,
	// Allow: []string{"registry.npmjs.org"} is enough.
	registry, err := outside.Start(ctx, "registry.test", npm())
	if err != nil {
		return err
	}
	defer registry.Close()
	client, err := sandbox.NewClient(sandbox.WithDNS(registry.Addr))
	if err != nil {
		return err
	}
	defer client.Close()

	sb, err := client.Create(ctx, sandbox.WithNetworkPolicy(sandbox.NetworkPolicy{
		Allow:       []string{"registry.test"},
		ResolveInto: []string{registry.Addr.String()}, // a private address: names may not resolve to it otherwise
	}))
	if err != nil {
		return err
	}
	defer sb.Close()

	install := sb.Command(ctx, "npm", "install", "--foreground-scripts", "--no-audit", "--no-fund", "--no-update-notifier",
		"--registry", "http://registry.test", "nice-sum")
	install.Stdout, install.Stderr = os.Stdout, os.Stderr
	if err := install.Run(); err != nil {
		return err
	}
	out, err := sb.Command(ctx, "node", "-p", "require('nice-sum')(40, 2)").Output()
	if err != nil {
		return err
	}
	fmt.Printf("the package works: %s", out)

	list, err := sb.Egress(ctx)
	if err != nil {
		return err
	}
	for _, e := range list {
		what := "blocked"
		if e.Allowed {
			what = "allowed"
		}
		host := e.Name
		if e.Address.IsValid() {
			host = fmt.Sprintf("%s %s:%d", e.Name, e.Address, e.Port)
		}
		fmt.Printf("%s: %s %s (%s), %d times\n", what, e.Protocol, host, e.Rule, e.Count)
	}
	return nil
}
