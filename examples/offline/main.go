// Offline runs a server in a sandbox without network access: it answers on its port, and its
// outgoing connections are blocked and recorded.
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
)

// The server answers requests, and tries to report each of them to another machine.
const server = `
require('http').createServer(async (req, res) => {
  let report = 'told 192.0.2.99';
  try { await fetch('http://192.0.2.99/seen?' + req.url) } catch (e) { report = 'could tell nobody: ' + e.cause.code }
  res.end('6*7 is ' + 6*7 + '; ' + report + '\n');
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
	at, err := sb.Port(ctx, 3000) // on the loopback interface of this machine
	if err != nil {
		return err
	}
	resp, err := http.Get(fmt.Sprintf("http://%s/", at))
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	fmt.Printf("it says: %s", answer)

	return showBlocked(ctx, sb)
}

// showBlocked waits until the sandbox's list has what was blocked, which takes a second or two, and
// prints it.
func showBlocked(ctx context.Context, sb *sandbox.Sandbox) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for again := time.Tick(100 * time.Millisecond); ; {
		list, err := sb.Egress(ctx)
		if err != nil {
			return err
		}
		found := false
		for _, e := range list {
			if !e.Allowed {
				fmt.Printf("blocked: %s to %s port %d, %d times\n", e.Protocol, e.Address, e.Port, e.Count)
				found = true
			}
		}
		if found {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("nothing was blocked: %w", ctx.Err())
		case <-again:
		}
	}
}
