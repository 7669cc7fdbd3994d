package sandbox_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"testing"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/guesttest"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// A command of a guest that lies about its end and its output ends with its context, and its
// output with its limit.
func TestCommandsOfAHostileGuestEnd(t *testing.T) {
	const limit = 1 << 20
	command := func(name string, detached bool, do func(c *sandbox.Cmd) error) guesttest.Call {
		return guesttest.Call{Name: name, Do: func(ctx context.Context, rw net.Conn) error {
			conn, err := guest.Dial(context.WithoutCancel(ctx), rw)
			if err != nil {
				return err
			}
			defer conn.Close()
			p, err := conn.Exec(ctx, wire.Exec{Path: "program" + guesttest.Evil, Args: []string{"x"}, Stdin: true})
			if err != nil {
				return nil
			}
			return do(sandbox.CommandOf(ctx, p, detached))
		}}
	}
	var calls []guesttest.Call
	// That of a detached command has a channel of its own, which the tests of package guest try.
	calls = append(calls, command("Kill", false, func(c *sandbox.Cmd) error { return c.Kill() }))
	for name, detached := range map[string]bool{"": false, " of a detached command": true} {
		calls = append(calls,
			command("Run"+name, detached, func(c *sandbox.Cmd) error { return c.Run() }),
			command("Output"+name, detached, func(c *sandbox.Cmd) error {
				out, err := sandbox.OutputOf(c, limit)
				if len(out) > limit || len(out) == limit && !errors.Is(err, sandbox.ErrTooLarge) {
					t.Errorf("%d bytes of output, %v", len(out), err)
				}
				return err
			}),
			command("StdoutPipe"+name, detached, func(c *sandbox.Cmd) error {
				r, err := c.StdoutPipe()
				if err == nil {
					err = c.Start()
				}
				if err == nil {
					io.Copy(io.Discard, r)
					err = c.Wait()
				}
				return err
			}),
			command("Signal"+name, detached, func(c *sandbox.Cmd) error { return c.Signal(os.Interrupt) }),
			command("Resize"+name, detached, func(c *sandbox.Cmd) error { return c.Resize(1, 1) }),
		)
	}
	// With others the guest's connection fails, and the engine is asked why.
	lies := slices.DeleteFunc(guesttest.Lies(), func(l guesttest.Lie) bool {
		return !slices.Contains([]string{
			"exits twice", "starts and is silent", "starts with a command of its own", "floods both streams", "floods starts",
			"reads nothing once it has started", "reads nothing once it has ended", "reads nothing and floods",
		}, l.Name)
	})
	guesttest.Run(t, lies, 256<<20, calls)
}
