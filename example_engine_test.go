package sandbox_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"

	"github.com/seed-1a2d6d8f/sandbox"
)

// A client has an engine, a log and limits of its own. It connects with its first call.
func ExampleNewClient() {
	client, err := sandbox.NewClient(
		sandbox.WithHost("ssh://builder@engine.example.com"),
		sandbox.WithLogger(slog.New(slog.NewTextHandler(os.Stderr, nil))),
		sandbox.WithLimits(sandbox.Limits{Ports: 15}))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(client.Close())
	// Output: <nil>
}

// A program has the credentials of one registry. For others those of the docker command are used.
func ExampleWithRegistryAuth() {
	client, err := sandbox.NewClient(sandbox.WithRegistryAuth(func(ctx context.Context, host string) (sandbox.RegistryAuth, error) {
		if host != "ghcr.io" {
			return sandbox.RegistryAuth{}, nil
		}
		token, err := os.ReadFile("/run/secrets/ghcr") // it may be a new one at each pull
		return sandbox.RegistryAuth{Username: "builder", Password: string(token)}, err
	}))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(client.Close())
	// Output: <nil>
}

// Programs of a team name its images, which one place knows.
func ExampleWithRuntimes() {
	ctx := context.Background()
	client, err := sandbox.NewClient(sandbox.WithRuntimes(map[string]string{"web": "node:20-bookworm"}))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()
	sb, err := client.Create(ctx, sandbox.WithRuntime("web"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sb.Close()
	st, err := sb.Status(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(*st.Settings.Runtime, "is", st.Image)
	// Output: web is node:20-bookworm
}

// An engine that can't be used is a result with advice, and no error.
func ExampleCheckHealth() {
	h, err := sandbox.CheckHealth(context.Background())
	if err != nil {
		fmt.Println(err)
		return
	}
	if !h.Healthy {
		fmt.Println(h.Guidance)
		return
	}
	fmt.Println(h.Healthy, h.Version != "")
	// Output: true true
}

// What an engine lacks is known before a sandbox needs it.
func ExampleCheckSupport() {
	support, err := sandbox.CheckSupport(context.Background())
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(support.NetworkPolicy == nil || errors.Is(support.NetworkPolicy, sandbox.ErrUnsupported))
	// Output: true
}

// A service removes leftovers at its start rather than some time later. What it removes depends
// on the engine, so this example is only compiled.
func ExamplePrune() {
	report, err := sandbox.Prune(context.Background())
	if err != nil {
		fmt.Println(err)
	}
	fmt.Println(report)
}
