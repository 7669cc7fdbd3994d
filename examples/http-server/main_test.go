package main

import (
	"context"
	"crypto/rand"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/sandboxtest"
)

func TestUsersUseTheirOwnSandboxes(t *testing.T) {
	enginetest.Need(t)
	name := strings.ToLower(rand.Text()[:8])
	sb := sandboxtest.New(t, sandbox.WithName("alice-"+name))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, l) }()
	for _, test := range []struct {
		method, path, key, body string
		status                  int
		text                    string
	}{
		{"GET", sb.Name(), "key-of-alice", "", 200, `"status":"running"`},
		{"POST", sb.Name() + "/exec", "key-of-alice", `{"command": ["echo", "hello"]}`, 200, `"text":"hello\n"`},
		{"GET", sb.Name(), "key-of-bob", "", 403, "bob may not call inspectSandbox"},
		{"GET", sb.Name(), "", "", 403, "who are you?"},
		{"GET", sb.ID(), "key-of-alice", "", 403, "may not"},
		{"DELETE", sb.Name(), "key-of-alice", "", 403, "may not call deleteSandbox"},
		{"GET", "", "key-of-alice", "", 403, "may not call listSandboxes"},
	} {
		path := strings.TrimSuffix("/api/sandboxes/"+test.path, "/")
		req, err := http.NewRequestWithContext(t.Context(), test.method, "http://"+l.Addr().String()+path, strings.NewReader(test.body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-Key", test.key)
		req.Header.Set("Content-Type", "application/json")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		got, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != test.status || !strings.Contains(string(got), test.text) {
			t.Errorf("%s %s with %q: %s %s, want %d %s", test.method, path, test.key, resp.Status, got, test.status, test.text)
		}
	}
	stop()
	if err := <-ended; err != nil {
		t.Errorf("the server ended with %v", err)
	}
}
