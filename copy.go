package sandbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/archive"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// CopyReport tells what a copy carried, and what it could not keep.
type CopyReport struct {
	Files       int64 // files and links
	Directories int64
	Bytes       int64 // of the files' content; holes are not carried
	// Skipped are files that were left out (sockets, devices, pipes, what vanished
	// meanwhile) and files that lost something (a setuid bit, an extended attribute),
	// the first 1,000 of them.
	Skipped []Skipped
	// More is how many there were beyond those.
	More int64
}

// Skipped is what was not kept of one file.
type Skipped struct {
	Path   string // relative to the tree; "." is what was copied itself
	Reason string
}

func (s Skipped) String() string { return s.Path + ": " + s.Reason }

// CopyStatus is how far a copy is.
type CopyStatus struct {
	Name  string // of what was carried last, relative to the tree
	Files int64
	Bytes int64
}

// A CopyOption configures a copy.
type CopyOption func(*copySettings)

type copySettings struct {
	progress func(CopyStatus)
}

// WithCopyProgress calls fn after each file and now and then within large ones, one
// call at a time, none after the copy has returned. fn must not block.
func WithCopyProgress(fn func(CopyStatus)) CopyOption {
	return func(s *copySettings) { s.progress = fn }
}

func copyOptions(opts []CopyOption) archive.Options {
	var s copySettings
	for _, o := range opts {
		if o != nil {
			o(&s)
		}
	}
	if s.progress == nil {
		return archive.Options{}
	}
	return archive.Options{Progress: func(name string, r *archive.Report) {
		s.progress(CopyStatus{Name: strings.TrimPrefix(name, "./"), Files: r.Files, Bytes: r.Bytes})
	}}
}

func reportOf(r archive.Report) CopyReport {
	out := CopyReport{Files: r.Files, Directories: r.Dirs, Bytes: r.Bytes, More: r.More}
	for _, s := range r.Skipped {
		out.Skipped = append(out.Skipped, Skipped{strings.TrimPrefix(s.Path, "./"), s.Reason})
	}
	return out
}

// CopyIn copies a file or tree of this machine into the sandbox. inside names the copy
// itself; with a slash at its end, the directory to put it into under its own name.
// What is missing above is made. It keeps permissions, modification times to the
// nanosecond, symbolic and hard links, holes and extended attributes that users make,
// and follows no link but hostPath itself; the copy belongs to the sandbox's user.
//
// A copy that is new appears whole or not at all, and so does each file of a tree that
// is merged into a directory there is. Sockets, devices and pipes are left out; the
// report says what was not kept. It streams, in constant memory but for what is
// remembered of each directory and hard link.
func (s *Sandbox) CopyIn(ctx context.Context, hostPath, inside string, opts ...CopyOption) (CopyReport, error) {
	return s.files().CopyIn(ctx, hostPath, inside, opts...)
}

// CopyInFS is [Sandbox.CopyIn] of a file system of package [io/fs]: an embed.FS, a
// zip file, another sandbox's [Sandbox.FS].
func (s *Sandbox) CopyInFS(ctx context.Context, fsys fs.FS, inside string, opts ...CopyOption) (CopyReport, error) {
	return s.files().CopyInFS(ctx, fsys, inside, opts...)
}

// CopyOut copies a file or tree of the sandbox to this machine, as [Sandbox.CopyIn]
// does the other way: hostPath names the copy itself, or with a slash at its end the
// directory to put it into. The copy belongs to this program's user.
//
// The sandbox is not trusted: nothing outside of hostPath is written, whatever it
// says, and setuid and setgid bits are taken off. Links are kept as they are, so a
// program that later follows them may be led out of the copy. A device, pipe or
// socket is refused; within a tree it is left out, as the report says.
//
// Of a stopped sandbox it reads without starting it, as root.
func (s *Sandbox) CopyOut(ctx context.Context, inside, hostPath string, opts ...CopyOption) (CopyReport, error) {
	return s.files().CopyOut(ctx, inside, hostPath, opts...)
}

// CopyIn is [Sandbox.CopyIn] as the user.
func (f *Files) CopyIn(ctx context.Context, hostPath, inside string, opts ...CopyOption) (CopyReport, error) {
	to := inside
	if strings.HasSuffix(inside, "/") {
		abs, err := filepath.Abs(hostPath)
		if err != nil {
			return CopyReport{}, f.failTwo(ctx, "copy in", hostPath, inside, err)
		}
		to = inside + filepath.Base(abs)
	}
	report, err := f.copyIn(ctx, to, func(w io.Writer) (archive.Report, error) {
		return archive.Pack(ctx, w, hostPath, copyOptions(opts))
	})
	return report, f.failTwo(ctx, "copy in", hostPath, inside, err)
}

// CopyInFS is [Sandbox.CopyInFS] as the user.
func (f *Files) CopyInFS(ctx context.Context, fsys fs.FS, inside string, opts ...CopyOption) (CopyReport, error) {
	report, err := f.copyIn(ctx, strings.TrimRight(inside, "/"), func(w io.Writer) (archive.Report, error) {
		return archive.PackFS(ctx, w, fsys, copyOptions(opts))
	})
	return report, f.failTwo(ctx, "copy in", ".", inside, err)
}

// verb starts a verb of the guest on a path, as the user.
func (f *Files) verb(ctx context.Context, conn *guest.Conn, verb, path string, stdin bool) (*guest.Process, error) {
	return conn.Exec(ctx, wire.Exec{Args: []string{wire.Path, verb, path}, User: f.user, Stdin: stdin})
}

// copyGrace is what the other side gets to clean up after a copy that failed.
const copyGrace = 5 * time.Second

func (f *Files) copyIn(ctx context.Context, inside string, pack func(io.Writer) (archive.Report, error)) (CopyReport, error) {
	to, err := f.abs(inside)
	if err != nil {
		return CopyReport{}, err
	}
	if err := f.s.usable(); err != nil {
		return CopyReport{}, err
	}
	conn, err := f.s.connect(ctx)
	if err != nil {
		return CopyReport{}, err
	}
	p, err := f.verb(ctx, conn, wire.VerbUnpack, to, true)
	if err != nil {
		return CopyReport{}, err
	}
	defer p.Close()
	// When ctx ends the archive breaks off and the other side removes what it has
	// made; one that does not answer is killed.
	defer context.AfterFunc(ctx, func() {
		select {
		case <-p.Done():
		case <-time.After(copyGrace):
			p.Close()
		}
	})()
	said := make(chan []byte, 1)
	go func() {
		b, _ := io.ReadAll(io.LimitReader(p.Stdout(), wire.MaxUnpacked))
		said <- b
	}()
	stderr := drain(p.Stderr())
	_, packErr := pack(p.Stdin())
	p.Stdin().Close()
	out := <-said
	exit, waitErr := p.Wait()
	complaint := <-stderr

	var broken *archive.RemoteError
	got, err := wire.ReadUnpacked(out)
	if err == nil && got.Failed {
		broken = &archive.RemoteError{Path: got.Path, Errno: int(got.Errno), Text: got.Text}
	}
	switch {
	case ctx.Err() != nil:
		return CopyReport{}, cancelled(ctx)
	case waitErr != nil:
		return CopyReport{}, waitErr
	case exit.Signal != 0:
		return CopyReport{}, killed(ctx, conn, exit)
	case packErr != nil && !errors.Is(packErr, io.ErrClosedPipe):
		return CopyReport{}, packErr
	case broken != nil:
		return CopyReport{}, remoteError(broken)
	case err != nil || exit.Code != 0 || packErr != nil:
		return CopyReport{}, fmt.Errorf("the copy inside ended with exit code %d: %q", exit.Code, complaint)
	}
	report := archive.Report{Files: got.Files, Dirs: got.Dirs, Bytes: got.Bytes, More: got.More}
	for _, s := range got.Skipped {
		report.Skip(s.Path, s.Reason)
	}
	return reportOf(report), nil
}

// killed says why the other side of a copy was killed: with its session, most often,
// whose connection ends a moment later.
func killed(ctx context.Context, conn *guest.Conn, exit wire.Exit) error {
	select {
	case <-conn.Done():
		return conn.Err()
	case <-ctx.Done():
		return cancelled(ctx)
	case <-time.After(copyGrace):
		return fmt.Errorf("the copy inside was killed: %v", hostSignal(exit.Signal))
	}
}

// drain reads to the end and returns the beginning.
func drain(r io.Reader) <-chan string {
	said := make(chan string, 1)
	go func() {
		var b bytes.Buffer
		io.CopyN(&b, r, 4096)
		io.Copy(io.Discard, r)
		said <- strings.TrimSpace(b.String())
	}()
	return said
}

// remoteError is what went wrong inside, as package os would have said it here.
func remoteError(r *archive.RemoteError) error {
	err := errors.New(r.Text)
	if r.Errno != 0 {
		err = guest.Errno(r.Errno)
	}
	if r.Special {
		err = classify(ErrInvalidArgument, err)
	}
	if r.Path == "" {
		return err
	}
	return &fs.PathError{Op: "copy", Path: r.Path, Err: err}
}

// CopyOut is [Sandbox.CopyOut] as the user.
func (f *Files) CopyOut(ctx context.Context, inside, hostPath string, opts ...CopyOption) (CopyReport, error) {
	report, err := f.copyOut(ctx, inside, hostPath, copyOptions(opts))
	return reportOf(report), f.failTwo(ctx, "copy out", inside, hostPath, err)
}

func (f *Files) copyOut(ctx context.Context, inside, hostPath string, opts archive.Options) (archive.Report, error) {
	from, err := f.abs(inside)
	if err != nil {
		return archive.Report{}, err
	}
	if hostPath == "" {
		return archive.Report{}, fs.ErrNotExist
	}
	if os.IsPathSeparator(hostPath[len(hostPath)-1]) {
		base := path.Base(from)
		if base == "/" || base == "." || base == ".." {
			return archive.Report{}, invalid("%q has no name to have in a directory", inside)
		}
		hostPath = filepath.Join(hostPath, base)
	}
	if err := f.s.usable(); err != nil {
		return archive.Report{}, err
	}
	conn, err := f.s.linked(ctx)
	if errors.Is(err, errNoSession) {
		st, err := f.s.still(ctx)
		if err != nil {
			return archive.Report{}, err
		}
		return st.copyOut(ctx, from, hostPath, opts)
	}
	if err != nil {
		return archive.Report{}, err
	}
	p, err := f.verb(ctx, conn, wire.VerbPack, from, false)
	if err != nil {
		return archive.Report{}, err
	}
	defer p.Close()
	defer context.AfterFunc(ctx, func() { p.Close() })()
	stderr := drain(p.Stderr())
	opts.Complete = true
	report, err := archive.Unpack(ctx, p.Stdout(), hostPath, archive.Hostile, opts)
	if err != nil {
		p.Close()
	} else {
		_, err = io.Copy(io.Discard, p.Stdout())
	}
	exit, waitErr := p.Wait()
	complaint := <-stderr
	var remote *archive.RemoteError
	switch {
	case ctx.Err() != nil:
		return archive.Report{}, cancelled(ctx)
	case errors.As(err, &remote):
		return archive.Report{}, remoteError(remote)
	case errors.Is(err, io.ErrUnexpectedEOF) && waitErr == nil && exit.Signal != 0:
		return archive.Report{}, killed(ctx, conn, exit)
	case errors.Is(err, io.ErrUnexpectedEOF) && complaint != "":
		return archive.Report{}, fmt.Errorf("%w: it said %q", err, complaint)
	case errors.Is(err, io.ErrUnexpectedEOF) && waitErr != nil:
		return archive.Report{}, waitErr
	}
	return report, err
}
