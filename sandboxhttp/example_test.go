package sandboxhttp_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/sandboxhttp"
)

// A program's own users: who may do what is up to the program.
func ExampleHandler() {
	client, err := sandbox.NewClient()
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	authorize := func(r *http.Request, a sandboxhttp.Action) error {
		if a.Changes && r.Header.Get("X-Key") != "key-of-alice" {
			return errors.New("only Alice may do that")
		}
		return nil
	}
	server := httptest.NewServer(http.StripPrefix("/api", sandboxhttp.Handler(client, sandboxhttp.WithAuthorize(authorize))))
	defer server.Close()

	resp, err := http.Post(server.URL+"/api/sandboxes", "application/json", strings.NewReader(`{"name": "build-42"}`))
	if err != nil {
		log.Fatal(err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Print(resp.StatusCode, " ", string(answer))
	// Output:
	// 403 {"error":{"code":"forbidden","message":"only Alice may do that"}}
}

func ExampleWithToken() {
	client, err := sandbox.NewClient()
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	handler := sandboxhttp.Handler(client, sandboxhttp.WithToken("a long random text"))

	request := httptest.NewRequest("GET", "/health", nil)
	request.Header.Set("Authorization", "Bearer a long random text")
	for _, r := range []*http.Request{httptest.NewRequest("GET", "/health", nil), request} {
		answer := httptest.NewRecorder()
		handler.ServeHTTP(answer, r)
		fmt.Println(answer.Code)
	}
	// Output:
	// 401
	// 200
}

// The log of a sandbox, for a browser's EventSource, below a path of the program.
func ExampleLogsHandler() {
	client, err := sandbox.NewClient()
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	mux := http.NewServeMux()
	mux.Handle("GET /sandboxes/{name}/logs", sandboxhttp.LogsHandler(client))
	server := httptest.NewServer(mux)
	defer server.Close()

	sb, err := client.Create(context.Background(), sandbox.WithCommand("echo", "hello"), sandbox.OnCreate(func(ctx context.Context, sb *sandbox.Sandbox) error {
		for line, err := range sb.Logs(ctx, sandbox.LogOptions{Follow: true}) {
			fmt.Println("in Go:", line.Text)
			return err
		}
		return nil
	}))
	if err != nil {
		log.Fatal(err)
	}
	defer sb.Close()
	resp, err := http.Get(server.URL + "/sandboxes/" + sb.Name() + "/logs?follow=0")
	if err != nil {
		log.Fatal(err)
	}
	defer resp.Body.Close()
	events, err := io.ReadAll(resp.Body)
	if err != nil {
		log.Fatal(err)
	}
	for line := range strings.Lines(string(events)) {
		if data, ok := strings.CutPrefix(line, "data: hello"); ok {
			fmt.Print("over HTTP: hello", data)
		}
	}
	// Output:
	// in Go: hello
	// over HTTP: hello
}

// A web server in a sandbox, which needs no published port: http://3000-NAME.localhost:8080.
func ExamplePreview() {
	ctx := context.Background()
	client, err := sandbox.NewClient()
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	sb, err := client.Create(ctx, sandbox.WithCommand("node", "-e", `require("http").createServer((_, res) => res.end("from inside\n")).listen(3000)`))
	if err != nil {
		log.Fatal(err)
	}
	defer sb.Close()
	if err := sb.WaitPort(ctx, 3000); err != nil {
		log.Fatal(err)
	}
	server := httptest.NewServer(sandboxhttp.Preview(client, sandboxhttp.WithoutAuthorization()))
	defer server.Close()

	request, err := http.NewRequest("GET", server.URL, nil)
	if err != nil {
		log.Fatal(err)
	}
	request.Host = "3000-" + sb.Name() + ".localhost"
	resp, err := http.DefaultClient.Do(request)
	if err != nil {
		log.Fatal(err)
	}
	defer resp.Body.Close()
	page, err := io.ReadAll(resp.Body)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Print(string(page))
	// Output: from inside
}
