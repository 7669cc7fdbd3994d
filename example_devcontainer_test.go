package sandbox_test

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/seed-1a2d6d8f/sandbox"
)

// The five fields of a devcontainer.json that most projects have.
func ExampleCreate_devcontainer() {
	const file = `{
		"image": "node:20-bookworm",
		"containerEnv": {"CI": "true"},
		"forwardPorts": [3000],
		"remoteUser": "node",
		"postCreateCommand": "npm init --yes >/dev/null && echo created by $(whoami)"
	}`
	var dev struct {
		Image             string
		ContainerEnv      map[string]string
		ForwardPorts      []int
		RemoteUser        string
		PostCreateCommand string
	}
	if err := json.Unmarshal([]byte(file), &dev); err != nil {
		fmt.Println(err)
		return
	}
	created := func(ctx context.Context, sb *sandbox.Sandbox) error {
		out, err := sb.Command(ctx, "sh", "-c", dev.PostCreateCommand).Output()
		fmt.Printf("%s", out)
		return err
	}
	ctx := context.Background()
	sb, err := sandbox.Create(ctx,
		sandbox.WithImage(dev.Image),
		sandbox.WithEnv(dev.ContainerEnv),
		sandbox.WithPorts(dev.ForwardPorts...),
		sandbox.WithUser(dev.RemoteUser),
		sandbox.OnCreate(created))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sb.Close()
	out, err := sb.Command(ctx, "sh", "-c", "echo $CI; ls").Output()
	fmt.Printf("%s%v\n", out, err)
	// Output:
	// created by node
	// true
	// package.json
	// <nil>
}
