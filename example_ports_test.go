package sandbox_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"

	"golang.org/x/crypto/ssh"

	"github.com/seed-1a2d6d8f/sandbox"
)

// serve is a program that answers HTTP on port 3000.
const serve = `require("http").createServer((q, s) => s.end("hello")).listen(3000)`

// A server inside is reached through the handle's own connection: no port need be
// published, and nobody else can reach it.
func ExampleSandbox_DialContext() {
	ctx := context.Background()
	sb, err := sandbox.Create(ctx, sandbox.WithCommand("node", "-e", serve))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sb.Close()

	if err := sb.WaitPort(ctx, 3000); err != nil {
		fmt.Println(err)
		return
	}
	web := &http.Client{Transport: &http.Transport{DialContext: sb.DialContext}}
	defer web.CloseIdleConnections()
	resp, err := web.Get("http://localhost:3000/")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%s\n", body)
	// Output: hello
}

// A published port is for who has no handle: another program, a browser.
func ExampleSandbox_Port() {
	ctx := context.Background()
	sb, err := sandbox.Create(ctx,
		sandbox.WithPorts(3000),
		sandbox.WithCommand("node", "-e", serve))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sb.Close()

	if err := sb.WaitPort(ctx, 3000); err != nil {
		fmt.Println(err)
		return
	}
	at, err := sb.Port(ctx, 3000)
	if err != nil {
		fmt.Println(err)
		return
	}
	resp, err := http.Get("http://" + at.String())
	if err != nil {
		fmt.Println(err)
		return
	}
	resp.Body.Close()
	fmt.Println(at.Addr(), resp.Status)
	// Output: 127.0.0.1 200 OK
}

// Any SSH client uses the connection as its transport; the server asks for no key.
func ExampleSandbox_SSH() {
	ctx := context.Background()
	sb, err := sandbox.Get(ctx, existing())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sb.Detach()
	conn, err := sb.SSH(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer conn.Close()
	// The host key is not checked: the connection is the engine's, and nobody else's.
	c, channels, requests, err := ssh.NewClientConn(conn, sb.Name(), &ssh.ClientConfig{HostKeyCallback: ssh.InsecureIgnoreHostKey()})
	if err != nil {
		fmt.Println(err)
		return
	}
	client := ssh.NewClient(c, channels, requests)
	defer client.Close()
	session, err := client.NewSession()
	if err != nil {
		fmt.Println(err)
		return
	}
	out, err := session.Output("echo over SSH")
	fmt.Printf("%s%v\n", out, err)
	// Output:
	// over SSH
	// <nil>
}

// If the main process fails before it listens, WaitPort returns that at once.
func ExampleSandbox_WaitPort() {
	ctx := context.Background()
	sb, err := sandbox.Create(ctx, sandbox.WithCommand("sh", "-c", "exit 3"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sb.Close()

	err = sb.WaitPort(ctx, 3000)
	exit, ok := errors.AsType[*sandbox.ExitError](err)
	if !ok {
		fmt.Println(err)
		return
	}
	fmt.Println(exit.ExitCode())
	// Output: 3
}
