// Offline runs a server in a sandbox that has no network: it answers on its port, and
// whatever it tries to reach is blocked and on record.
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http"

	"github.com/seed-1a2d6d8f/sandbox"
)

// The server does its work, and would like to tell somebody about it.
const server = `
require('http').createServer(async (req, res) => {
  let told = 'told 192.0.2.99';
  try { await fetch('http://192.0.2.99/seen?' + req.url) } catch (e) { told = 'could tell nobody: ' + e.cause.code }
  res.end('6*7 is ' + 6*7 + '; ' + told + '\n');
}).listen(3000);
`

func main() {
	log.SetFlags(0)
	if err := run(context.Background()); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) error {
	sb, err := sandbox.Create(ctx,
		sandbox.WithNetworkPolicy(sandbox.DenyAll()),
		sandbox.WithPorts(3000),
		sandbox.WithCommand("node", "-e", server))
	if err != nil {
		return err
	}
	defer sb.Close()

	if err := sb.WaitPort(ctx, 3000); err != nil {
		return err
	}
	at, err := sb.Port(ctx, 3000) // on this machine, open to programs on it
	if err != nil {
		return err
	}
	resp, err := http.Get(fmt.Sprintf("http://%s/", at))
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	said, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	fmt.Printf("it says: %s", said)

	list, err := sb.Egress(ctx)
	if err != nil {
		return err
	}
	for _, e := range list {
		if !e.Allowed {
			fmt.Printf("blocked: %s to %s port %d, %d times\n", e.Protocol, e.Address, e.Port, e.Count)
		}
	}
	return nil
}
