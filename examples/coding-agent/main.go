// Coding-agent lets a model mend a project until its tests pass. The model has the tools of package
// sandboxtools in a sandbox that can reach nobody. After each of its turns the tests run in a fork, so
// that what they leave behind is not in the project; a turn after which more of them fail is rolled
// back. The model is a recorded conversation here: put a client of yours in its place, see docs/agents.md.
package main

import (
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log"
	"slices"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/sandboxtools"
)

// project has a mistake, and conversation.json a model that finds it at the second try.
//
//go:embed project conversation.json
var files embed.FS

// A turn is what the model says, and the tools that it calls then.
type turn struct {
	Says  string `json:"says"`
	Calls []struct {
		Tool  string          `json:"tool"`
		Input json.RawMessage `json:"input"`
	} `json:"calls"`
}

func main() {
	log.SetFlags(0)
	if err := run(context.Background()); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) (err error) {
	text, err := files.ReadFile("conversation.json")
	if err != nil {
		return err
	}
	var conversation []turn
	if err := json.Unmarshal(text, &conversation); err != nil {
		return err
	}
	project, err := fs.Sub(files, "project")
	if err != nil {
		return err
	}
	sb, err := sandbox.Create(ctx,
		sandbox.WithNetworkPolicy(sandbox.DenyAll()),
		sandbox.WithTimeout(10*time.Minute), // which holds when this program is killed, too
		sandbox.WithMemory(512<<20))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, sb.Close()) }() // which deletes it, since it has no name
	if _, err := sb.CopyInFS(ctx, project, "/workspace", sandbox.CopyOptions{}); err != nil {
		return err
	}
	a := &agent{sb: sb, tools: sandboxtools.New(sb, sandboxtools.Options{CommandTime: time.Minute})}
	if a.failed, err = a.test(ctx); err != nil {
		return err
	}
	fmt.Printf("%d tests fail\n", a.failed)
	for _, t := range conversation {
		if a.failed == 0 {
			break
		}
		if err := a.take(ctx, t); err != nil {
			return err
		}
	}
	if a.failed > 0 {
		return errors.New("the model gave up")
	}
	mended, err := sb.ReadFile(ctx, "sum.js")
	if err != nil {
		return err
	}
	fmt.Printf("sum.js is now:\n%s", mended)
	return nil
}

type agent struct {
	sb     *sandbox.Sandbox
	tools  []sandboxtools.Tool
	failed int // tests that fail
}

// take carries a turn out, and takes it back if more tests fail than before.
func (a *agent) take(ctx context.Context, t turn) (err error) {
	fmt.Printf("model: %s\n", t.Says)
	before, err := a.sb.Snapshot(ctx, sandbox.SnapshotOptions{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, sandbox.DeleteSnapshot(ctx, before.ID)) }()
	for _, c := range t.Calls {
		i := slices.IndexFunc(a.tools, func(tool sandboxtools.Tool) bool { return tool.Name == c.Tool })
		if i < 0 {
			return fmt.Errorf("there is no tool %q", c.Tool)
		}
		// What the model reads of the call. An error is the sandbox's, and nothing for a model.
		answer, _, err := a.tools[i].Answer(ctx, c.Input)
		if err != nil {
			return err
		}
		fmt.Printf("  %s %s\n%s\n", c.Tool, c.Input, answer)
	}
	failed, err := a.test(ctx)
	if err != nil {
		return err
	}
	if failed > a.failed {
		fmt.Printf("  %d tests fail: the turn is taken back\n", failed)
		return a.sb.Rollback(ctx, before.ID)
	}
	fmt.Printf("  %d tests fail\n", failed)
	a.failed = failed
	return nil
}

// test runs the tests in a fork of the sandbox, and returns how many fail.
func (a *agent) test(ctx context.Context) (failed int, err error) {
	fork, err := a.sb.Fork(ctx)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, fork.Close()) }()
	cmd := fork.Command(ctx, "node", "test.js")
	cmd.Timeout = time.Minute
	err = cmd.Run()
	if exit, ok := errors.AsType[*sandbox.ExitError](err); ok {
		return exit.ExitCode(), nil
	}
	return 0, err
}
