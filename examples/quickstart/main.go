// Quickstart runs a small report in a sandbox: it copies a data file and a Node program in,
// runs the program with streaming output, reads the result back, and lists what is left on
// the engine: the cached image and guest.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
)

const data = `station,month,mm
Bergen,january,254
Bergen,july,148
Oslo,january,49
Oslo,july,81
Tromsø,january,95
Tromsø,july,77
`

const program = `
const fs = require('fs');
const [, ...rows] = fs.readFileSync('rain.csv', 'utf8').trim().split('\n').map(l => l.split(','));
const total = {};
for (const [station, month, mm] of rows) {
  console.log('read ' + station + ', ' + month);
  total[station] = (total[station] || 0) + Number(mm);
}
const [wettest, mm] = Object.entries(total).sort((a, b) => b[1] - a[1])[0];
fs.writeFileSync('result.json', JSON.stringify({ wettest, mm, node: process.version }));
`

func main() {
	log.SetFlags(0)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) (err error) {
	began := time.Now()
	sb, err := sandbox.Create(ctx, sandbox.WithProgress(func(p sandbox.Progress) {
		log.Printf("%-9s %s", p.Step, p.Text)
	}))
	if err != nil {
		return err
	}
	// The sandbox has no name, so closing this handle deletes it.
	defer func() {
		if e := sb.Close(); err == nil {
			err = e
		}
		if err == nil {
			err = show(ctx)
		}
	}()
	log.Printf("sandbox %s after %v", sb.Name(), time.Since(began).Round(time.Millisecond))

	for name, content := range map[string]string{"rain.csv": data, "report.js": program} {
		put := sb.Command(ctx, "tee", name)
		put.Stdin = strings.NewReader(content)
		if err := put.Run(); err != nil {
			return err
		}
	}

	node := sb.Command(ctx, "node", "report.js")
	node.Stdout, node.Stderr = os.Stdout, os.Stderr
	if err := node.Run(); err != nil {
		return err
	}

	out, err := sb.Command(ctx, "cat", "result.json").Output()
	if err != nil {
		return err
	}
	var result struct {
		Wettest, Node string
		MM            int
	}
	if err := json.Unmarshal(out, &result); err != nil {
		return fmt.Errorf("result.json: %w", err)
	}
	fmt.Printf("Node %s says: %s is the wettest, %d mm in the two months\n", result.Node, result.Wettest, result.MM)
	return nil
}

// show lists what is left on the engine, with the docker command.
func show(ctx context.Context) error {
	left, err := sandbox.List(ctx, sandbox.ListOptions{})
	if err != nil {
		return err
	}
	fmt.Printf("\nsandboxes on the engine: %d\n", len(left))
	for _, i := range left {
		fmt.Printf("  %s, %s, created %v\n", i.Name, i.State, i.CreatedAt.Format(time.DateTime))
	}
	if _, err := exec.LookPath("docker"); err != nil {
		fmt.Println("(there is no docker command here to ask the engine itself)")
		return nil
	}
	// The library labels everything it creates.
	const ours = "label=agent-sandbox.managed=true"
	for _, args := range [][]string{
		{"ps", "--all", "--filter", ours},
		{"volume", "ls", "--filter", ours}, // the guest: the program that runs in every sandbox
		{"image", "ls"},
	} {
		fmt.Println("\n$ docker", strings.Join(args, " "))
		docker := exec.CommandContext(ctx, "docker", args...)
		docker.Stdout, docker.Stderr = os.Stdout, os.Stderr
		if err := docker.Run(); err != nil {
			return fmt.Errorf("docker %s: %w", args[0], err)
		}
	}
	return nil
}
