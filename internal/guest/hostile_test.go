//go:build linux

package guest_test

import (
	"context"
	"crypto/ed25519"
	"io"
	"testing"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/guesttest"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// running returns a call on a command, or on what the guest says is one.
func running(name string, do func(ctx context.Context, p *guest.Process) error) guesttest.Call {
	return guesttest.On(name, func(ctx context.Context, c *guest.Conn) error {
		p, err := c.Exec(ctx, wire.Exec{Args: []string{"true"}, Stdin: true})
		if err != nil {
			return err
		}
		defer context.AfterFunc(ctx, func() { p.Close() })()
		return do(ctx, p)
	})
}

// second returns the error of a call with a result.
func second[T any](_ T, err error) error { return err }

// hostileMemory bounds what all calls below hold at once, each to several guests: the window of
// a channel is 2 MiB, at both ends, and a message in parts has at most 32 MiB.
const hostileMemory = 512 << 20

// Whatever a guest says, each call returns soon after its context, and holds little.
func TestCallsOfAHostileGuestEnd(t *testing.T) {
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	calls := []guesttest.Call{
		running("Wait", func(ctx context.Context, p *guest.Process) error { return second(p.Wait()) }),
		running("Stdout", func(ctx context.Context, p *guest.Process) error { return second(io.Copy(io.Discard, p.Stdout())) }),
		running("Stderr", func(ctx context.Context, p *guest.Process) error { return second(io.Copy(io.Discard, p.Stderr())) }),
		running("Stdin", func(ctx context.Context, p *guest.Process) error { return second(p.Stdin().Write(make([]byte, 8<<20))) }),
		running("Close of Stdin", func(ctx context.Context, p *guest.Process) error { return p.Stdin().Close() }),
		running("Signal", func(ctx context.Context, p *guest.Process) error { return p.Signal(ctx, 15, false) }),
		running("Resize", func(ctx context.Context, p *guest.Process) error { return p.Resize(ctx, wire.Size{Rows: 1, Cols: 1}) }),
		running("Close", func(ctx context.Context, p *guest.Process) error {
			p.Close()
			return second(p.Wait())
		}),
		guesttest.On("Exec of a detached command", func(ctx context.Context, c *guest.Conn) error {
			return second(c.Exec(ctx, wire.Exec{Args: []string{"true"}, Detached: true}))
		}),
		guesttest.On("Attach", func(ctx context.Context, c *guest.Conn) error { return second(c.Attach(ctx, "id")) }),
		guesttest.On("Kill of a detached command", func(ctx context.Context, c *guest.Conn) error {
			p, err := c.AttachQuietly(ctx, "id")
			if err != nil {
				return err
			}
			defer p.Close()
			return p.Signal(ctx, 9, true)
		}),
		guesttest.On("Processes", func(ctx context.Context, c *guest.Conn) error {
			all, err := c.Processes(ctx)
			if len(all) > wire.MaxProcesses {
				t.Errorf("%d processes", len(all))
			}
			return err
		}),
		guesttest.On("Control", func(ctx context.Context, c *guest.Conn) error {
			return second(c.Control(ctx, key, wire.Control{Op: wire.OpStatus}))
		}),
		guesttest.On("Hook", func(ctx context.Context, c *guest.Conn) error {
			done, stop, err := c.Hook(ctx, key, wire.Hook{Version: 1, Patterns: []string{"x"}}, func(context.Context, wire.HookRequest) wire.HookReply { return wire.HookReply{} })
			if err != nil {
				return err
			}
			defer stop()
			select {
			case <-done:
				return guest.ErrConnectionLost
			case <-ctx.Done():
				return ctx.Err()
			}
		}),
		guesttest.On("DialContext", func(ctx context.Context, c *guest.Conn) error {
			conn, err := c.DialContext(ctx, "tcp", "localhost:1")
			if err != nil {
				return err
			}
			defer conn.Close()
			_, _ = conn.LocalAddr().String(), conn.RemoteAddr().String()
			conn.SetDeadline(time.Now().Add(100 * time.Millisecond))
			_, err = io.Copy(conn, io.LimitReader(conn, 1<<20))
			return err
		}),
		guesttest.On("DialContext of a socket", func(ctx context.Context, c *guest.Conn) error {
			conn, err := c.DialContext(ctx, "unix", "/socket")
			if err != nil {
				return err
			}
			conn.SetDeadline(time.Now())
			defer conn.Close()
			return second(conn.Read(make([]byte, 1)))
		}),
		guesttest.On("PortListens", func(ctx context.Context, c *guest.Conn) error { return second(c.PortListens(ctx, 1)) }),
		guesttest.OnFiles("Info", func(ctx context.Context, f *guest.Files) error { return second(f.Info(ctx, "x", true)) }),
		guesttest.OnFiles("Open and ReadAt", func(ctx context.Context, f *guest.Files) error {
			h, _, err := f.Open(ctx, "x", wire.FlagRead, 0)
			if err == nil {
				_, err = f.ReadAt(ctx, h, make([]byte, 1<<20), 0)
			}
			return err
		}),
		guesttest.OnFiles("ReadAll", func(ctx context.Context, f *guest.Files) error {
			_, _, _, err := f.ReadAll(ctx, "x")
			return err
		}),
		guesttest.OnFiles("ReadDir", func(ctx context.Context, f *guest.Files) error {
			list, h, err := f.ReadDir(ctx, "x")
			for n := len(list); err == nil && h != 0 && n < 100_000; n += len(list) {
				list, h, err = f.ReadMore(ctx, h)
			}
			return err
		}),
		guesttest.OnFiles("Replace", func(ctx context.Context, f *guest.Files) error {
			return f.Replace(ctx, "x", make([]byte, 1<<20), 0o600)
		}),
		guesttest.OnFiles("Readlink", func(ctx context.Context, f *guest.Files) error { return second(f.Readlink(ctx, "x")) }),
		guesttest.OnFiles("MkdirTemp", func(ctx context.Context, f *guest.Files) error { return second(f.MkdirTemp(ctx, "x", "y")) }),
		guesttest.OnFiles("CloseHandle", func(ctx context.Context, f *guest.Files) error { return f.CloseHandle(ctx, 1) }),
	}
	guesttest.Run(t, guesttest.Lies(), hostileMemory, calls)
}
