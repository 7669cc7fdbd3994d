// Http-server embeds the HTTP API in a program that has users of its own: each of them may use the
// sandboxes whose names begin with theirs, and sees no others.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/sandboxhttp"
)

// users are the keys of the users. A real program looks up its sessions.
var users = map[string]string{"key-of-alice": "alice", "key-of-bob": "bob"}

// ofUser are the operations on one sandbox that users have. Creating is not one of them: a user
// could choose any name, image and network policy.
var ofUser = []string{"inspectSandbox", "startSandbox", "stopSandbox", "exec", "openTerminal", "readLogs", "readFile", "writeFile", "listFiles"}

func authorize(r *http.Request, a sandboxhttp.Action) error {
	user, known := users[r.Header.Get("X-Key")]
	if !known {
		return errors.New("who are you?")
	}
	for _, name := range ofUser {
		if a.Name == name && strings.HasPrefix(a.Sandbox, user+"-") {
			return nil
		}
	}
	return fmt.Errorf("%s may not call %s", user, a.Name)
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	l, err := net.Listen("tcp", "127.0.0.1:8080")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("serving http://%s/api/sandboxes/\n", l.Addr())
	if err := run(ctx, l); err != nil {
		log.Fatal(err)
	}
}

// run serves until ctx ends.
func run(ctx context.Context, l net.Listener) error {
	client, err := sandbox.NewClient()
	if err != nil {
		return err
	}
	defer client.Close()
	mux := http.NewServeMux()
	mux.Handle("/api/", http.StripPrefix("/api", sandboxhttp.Handler(client, sandboxhttp.WithAuthorize(authorize))))
	server := &http.Server{
		Handler:           mux,
		ReadHeaderTimeout: 10 * time.Second,
		// Requests end with the program: a log that is followed has no other end.
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		return server.Shutdown(last)
	}
}
