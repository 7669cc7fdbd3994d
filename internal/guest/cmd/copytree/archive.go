//go:build linux

package copytree

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"runtime/debug"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed-1a2d6d8f/sandbox/internal/archive"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// Pack writes an archive of a file or tree to standard output.
func Pack(args []string) error {
	if len(args) != 1 {
		return errors.New("pack: one path")
	}
	debug.SetGCPercent(400)
	_, err := archive.Pack(context.Background(), os.Stdout, args[0], archive.Options{})
	return err
}

// Unpack extracts the archive on standard input to a path, setuid bits and all: it is the
// caller's own. An incomplete archive leaves nothing behind, and neither does SIGTERM.
func Unpack(args []string) error {
	if len(args) != 1 {
		return errors.New("unpack: one path")
	}
	debug.SetGCPercent(400)
	unix.Umask(0) // permissions are the archive's
	// Only a descriptor that does not block can be given up in the middle of a read.
	unix.SetNonblock(unix.Stdin, true)
	in := os.NewFile(uintptr(unix.Stdin), "archive")
	ctx, term := signal.NotifyContext(context.Background(), unix.SIGTERM)
	defer context.AfterFunc(ctx, func() { in.SetReadDeadline(time.Unix(1, 0)) })()
	report, err := archive.Unpack(ctx, in, args[0], archive.Friendly, archive.Options{Complete: true})
	if err != nil && ctx.Err() != nil {
		term() // from here on SIGTERM ends this process
		unix.Kill(os.Getpid(), unix.SIGTERM)
		time.Sleep(time.Second)
		return err
	}
	said := wire.Unpacked{Files: report.Files, Dirs: report.Dirs, Bytes: report.Bytes, More: report.More}
	for _, s := range report.Skipped {
		said.Skipped = append(said.Skipped, wire.Skipped(s))
	}
	if err != nil {
		r := archive.Remote(err)
		said.Failed, said.Path, said.Text, said.Errno = true, r.Path, r.Text, uint32(r.Errno)
	}
	var out wire.Pack
	said.Pack(&out)
	_, writeErr := os.Stdout.Write(out)
	return errors.Join(err, writeErr)
}
