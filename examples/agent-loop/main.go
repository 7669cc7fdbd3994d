// Agent-loop lets a model work on a program until its tests pass. Each step is a command in a
// sandbox that can reach nobody, with limits of time and output. A step after which more tests
// fail is taken back. The model is a list of commands here; put yours in its place.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"testing/fstest"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
)

// A model returns the next command, given what it sees of the one before; "" if it gives up.
type model func(seen string) string

func main() {
	log.SetFlags(0)
	commands := []string{"cat add.js", "rm add.js", "sed -i 's/a - b/a + b/' add.js", ""}
	err := loop(context.Background(), func(string) string {
		defer func() { commands = commands[1:] }()
		return commands[0]
	})
	if err != nil {
		log.Fatal(err)
	}
}

var project = fstest.MapFS{
	"add.js": {Data: []byte("exports.add = (a, b) => a - b\n")},
	"test.js": {Data: []byte(`let failed = 0
const check = (test) => { try { if (!test()) failed++ } catch { failed++ } }
check(() => require('./add').add(0, 0) === 0)
check(() => require('./add').add(2, 3) === 5)
process.exit(failed)
`)},
}

func loop(ctx context.Context, next model) (err error) {
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
	failed, _, err := run(ctx, sb, "node test.js")
	if err != nil {
		return err
	}
	for seen := fmt.Sprintf("%d tests fail", failed); failed > 0; {
		command := next(seen)
		if command == "" {
			return errors.New("the model gave up")
		}
		if failed, seen, err = step(ctx, sb, command, failed); err != nil {
			return err
		}
		fmt.Printf("$ %s\n%s\n", command, seen)
	}
	return nil
}

// step runs a command, and takes it back if more tests fail than before. It returns the number of
// tests that fail, and what the model sees.
func step(ctx context.Context, sb *sandbox.Sandbox, command string, before int) (failed int, seen string, err error) {
	snap, err := sb.Snapshot(ctx, sandbox.SnapshotOptions{})
	if err != nil {
		return 0, "", err
	}
	defer func() { err = errors.Join(err, sandbox.DeleteSnapshot(ctx, snap.ID)) }()
	code, out, err := run(ctx, sb, command)
	if err != nil {
		return 0, "", err
	}
	failed, _, err = run(ctx, sb, "node test.js")
	if err != nil {
		return 0, "", err
	}
	seen = fmt.Sprintf("%sexit code %d, %d tests fail", out, code, failed)
	if failed > before {
		return before, seen + ": taken back", sb.Rollback(ctx, snap.ID)
	}
	return failed, seen, nil
}

// run returns the exit code of a command, and the beginning of its output.
func run(ctx context.Context, sb *sandbox.Sandbox, command string) (code int, out string, err error) {
	var text beginning
	cmd := sb.Command(ctx, "sh", "-c", command)
	cmd.Stdout, cmd.Stderr, cmd.Timeout = &text, &text, time.Minute
	var exit *sandbox.ExitError
	if err = cmd.Run(); errors.As(err, &exit) {
		return exit.ExitCode(), string(text), nil
	}
	return 0, string(text), err
}

// beginning keeps the first 4 KiB of what is written to it.
type beginning []byte

func (b *beginning) Write(p []byte) (int, error) {
	*b = append(*b, p[:min(len(p), 4<<10-len(*b))]...)
	return len(p), nil
}
