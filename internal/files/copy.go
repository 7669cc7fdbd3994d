package files

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
	"github.com/seed-1a2d6d8f/sandbox/internal/errdefs"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
	"github.com/seed-1a2d6d8f/sandbox/internal/lifecycle"
)

// CopyIn is [Sandbox.CopyIn] as the user.
func (f *View) CopyIn(ctx context.Context, hostPath, inside string, opts archive.Options) (archive.Report, error) {
	to := inside
	if strings.HasSuffix(inside, "/") {
		abs, err := filepath.Abs(hostPath)
		if err != nil {
			return archive.Report{}, f.failLink(ctx, "copy in", hostPath, inside, err)
		}
		to = inside + filepath.Base(abs)
	}
	report, err := f.copyIn(ctx, to, func(w io.Writer) (archive.Report, error) {
		return archive.Pack(ctx, w, hostPath, opts)
	})
	return report, f.failLink(ctx, "copy in", hostPath, inside, err)
}

// CopyInFS is [Sandbox.CopyInFS] as the user.
func (f *View) CopyInFS(ctx context.Context, fsys fs.FS, inside string, opts archive.Options) (archive.Report, error) {
	to := strings.TrimRight(inside, "/")
	if to == "" && inside != "" {
		to = "/"
	}
	if x, is := fsys.(*sandboxFS); is {
		fsys = x.anyNames()
	}
	report, err := f.copyIn(ctx, to, func(w io.Writer) (archive.Report, error) {
		return archive.PackFS(ctx, w, fsys, opts)
	})
	return report, f.failLink(ctx, "copy in", ".", inside, err)
}

// CopyInTar is [Sandbox.CopyInTar] as the user.
func (f *View) CopyInTar(ctx context.Context, r io.Reader, inside string, opts archive.Options) (archive.Report, error) {
	to := strings.TrimRight(inside, "/")
	if to == "" && inside != "" {
		to = "/"
	}
	var lost archive.Report
	report, err := f.copyIn(ctx, to, func(w io.Writer) (packed archive.Report, err error) {
		packed, err = archive.PackForeign(ctx, w, r, opts)
		lost.Skipped, lost.More = packed.Skipped, packed.More
		return packed, malformed(err)
	})
	lost.Append(report)
	report.Skipped, report.More = lost.Skipped, lost.More
	if _, refused := errors.AsType[*refusal](err); refused {
		err = errdefs.Classify(errdefs.InvalidArgument, err)
	}
	return report, f.failLink(ctx, "copy in", "tar", inside, err)
}

// malformed returns the error of an archive of others: one of its form is the caller's.
func malformed(err error) error {
	_, entry := errors.AsType[*archive.EntryError](err)
	_, truncated := errors.AsType[*archive.TruncatedError](err)
	if entry || truncated || errors.Is(err, archive.ErrFormat) {
		return errdefs.Invalid("%v", err)
	}
	return err
}

// CopyOutTar is [Sandbox.CopyOutTar] as the user.
func (f *View) CopyOutTar(ctx context.Context, inside string, w io.Writer, opts archive.Options) (archive.Report, error) {
	report, err := f.copyOutTar(ctx, inside, w, opts)
	return report, f.failLink(ctx, "copy out", inside, "tar", err)
}

func (f *View) copyOutTar(ctx context.Context, inside string, w io.Writer, opts archive.Options) (report archive.Report, err error) {
	from, err := f.abs(inside)
	if err != nil {
		return report, err
	}
	info, err := f.Stat(ctx, from)
	if err != nil {
		return report, err
	}
	if !info.IsDir() {
		return report, &fs.PathError{Op: "open", Path: inside, Err: guest.Errno(enotdir)}
	}
	report, err = archive.TarFS(ctx, w, sandboxFS{ctx: ctx, f: f, root: strings.TrimRight(from, "/")}.anyNames(), opts)
	if large := tooLarge(err); large != nil {
		err = large
	}
	return report, err
}

// enotdir is ENOTDIR of Linux.
const enotdir = 20

// copyGrace is how long the guest may clean up after a copy that failed. Tests shorten it.
var copyGrace = 5 * time.Second

// verbResult is how a verb of the guest ended.
type verbResult struct {
	exit    wire.Exit
	waitErr error
	stderr  string // its beginning
}

// runVerb runs a verb of the guest on a path, as the user, and stream with its other streams.
// The verb is killed when grace has passed since the end of ctx. The error is that of stream,
// or of the start if there is no result.
func (f *View) runVerb(ctx context.Context, conn *guest.Conn, verb, path string, stdin bool, grace time.Duration, stream func(*guest.Process) error) (*verbResult, error) {
	p, err := conn.Exec(ctx, wire.Exec{Path: wire.Self, Args: []string{wire.Program, verb, path}, User: f.user, Stdin: stdin})
	if err != nil {
		return nil, err
	}
	defer p.Close()
	// Also once the verb has ended: a guest that says so need not end its streams.
	returned := make(chan struct{})
	defer close(returned)
	defer context.AfterFunc(ctx, func() {
		select {
		case <-returned:
		case <-time.After(grace):
			p.Close()
		}
	})()
	stderr := drain(p.Stderr())
	err = stream(p)
	var r verbResult
	r.exit, r.waitErr = p.Wait()
	r.stderr = <-stderr
	return &r, err
}

// failure returns why the verb did not end by itself, or nil.
func (r *verbResult) failure(ctx context.Context, conn *guest.Conn) error {
	switch {
	case ctx.Err() != nil:
		return errdefs.Cancelled(ctx)
	case r.waitErr != nil:
		return r.waitErr
	case r.exit.Signal != 0:
		return killed(ctx, conn, r.exit)
	}
	return nil
}

func (f *View) copyIn(ctx context.Context, inside string, pack func(io.Writer) (archive.Report, error)) (report archive.Report, err error) {
	to, err := f.abs(inside)
	if err != nil {
		return report, err
	}
	if err := f.h.CheckUsable(); err != nil {
		return report, err
	}
	conn, err := f.h.Connect(ctx)
	if err != nil {
		return report, err
	}
	return f.copyTo(ctx, conn, to, pack)
}

// copyTo copies what pack packs into a running sandbox.
func (f *View) copyTo(ctx context.Context, conn *guest.Conn, to string, pack func(io.Writer) (archive.Report, error)) (report archive.Report, err error) {
	var out []byte
	// When ctx ends so does the archive, and the guest removes what it has created.
	r, packErr := f.runVerb(ctx, conn, wire.VerbUnpack, to, true, copyGrace, func(p *guest.Process) error {
		read := make(chan []byte, 1)
		go func() {
			b, _ := io.ReadAll(io.LimitReader(p.Stdout(), wire.MaxUnpacked))
			read <- b
		}()
		_, err := pack(p.Stdin())
		p.Stdin().Close()
		out = <-read
		return err
	})
	if r == nil {
		return report, packErr
	}
	if err := r.failure(ctx, conn); err != nil {
		return report, err
	}
	got, err := wire.ReadUnpacked(out)
	switch {
	case tooLarge(packErr) != nil:
		return report, tooLarge(packErr)
	case packErr != nil && !errors.Is(packErr, io.ErrClosedPipe):
		return report, packErr
	case err == nil && got.Failed:
		return report, ofTarget(remoteError(&archive.RemoteError{Path: got.Path, Errno: int(got.Errno), Text: got.Text}), to)
	case err != nil || r.exit.Code != 0 || packErr != nil:
		return report, fmt.Errorf("the copy in the sandbox exited with code %d: %q", r.exit.Code, r.stderr)
	}
	report = archive.Report{Files: got.Files, Dirs: got.Dirs, Bytes: got.Bytes, More: got.More}
	for _, s := range got.Skipped {
		report.Skip(s.Path, s.Reason)
	}
	return report, nil
}

// maxRemotePath bounds a path in the sandbox's error: it is PATH_MAX of Linux.
const maxRemotePath = 4096

// killed returns why a verb was killed: most often the session has ended, and with it the
// connection a moment later.
func killed(ctx context.Context, conn *guest.Conn, exit wire.Exit) error {
	select {
	case <-conn.Done():
		return conn.Err()
	case <-ctx.Done():
		return errdefs.Cancelled(ctx)
	case <-time.After(copyGrace):
		return fmt.Errorf("the copy in the sandbox was killed: %v", guest.HostSignal(exit.Signal))
	}
}

// drain reads to the end and returns the beginning.
func drain(r io.Reader) <-chan string {
	start := make(chan string, 1)
	go func() {
		var b bytes.Buffer
		io.CopyN(&b, r, 4096)
		io.Copy(io.Discard, r)
		start <- strings.TrimSpace(b.String())
	}()
	return start
}

// remoteError returns the error of a copy in the sandbox as package os would.
func remoteError(r *archive.RemoteError) error {
	var err error = &refusal{errdefs.Printable(errdefs.Cut(r.Text, maxShown))}
	if r.Errno != 0 {
		err = guest.Errno(r.Errno)
	}
	if r.Special {
		err = errdefs.Classify(errdefs.InvalidArgument, err)
	}
	if r.Path == "" {
		return err
	}
	return &fs.PathError{Op: "copy", Path: errdefs.Printable(errdefs.Cut(r.Path, maxRemotePath)), Err: err}
}

// ofTarget returns an error about an unfinished file as one about the target that it was to become.
func ofTarget(err error, target string) error {
	var name string
	var cause error
	switch e := err.(type) {
	case *fs.PathError:
		name, cause = e.Path, e.Err
	case *os.LinkError:
		name, cause = e.Old, e.Err
	}
	if !strings.HasPrefix(filepath.Base(name), archive.Unfinished) {
		return err
	}
	return &fs.PathError{Op: "copy", Path: target, Err: cause}
}

// A refusal is an error of the guest that is not the kernel's: an entry of an archive that would
// leave its directory, by its name or through a link that is there.
type refusal struct{ text string }

func (e *refusal) Error() string { return e.text }

// tooLarge returns the error of a tree beyond the limits of a copy, or nil.
func tooLarge(err error) error {
	var limit *archive.LimitError
	var entry *archive.EntryError // of its name
	switch {
	case errors.As(err, &entry):
		return fmt.Errorf("%w: %w", errdefs.TooLarge, entry)
	case !errors.As(err, &limit):
		return nil
	}
	option := "CopyOptions.MaxEntries"
	if limit.What == "bytes" {
		option = "CopyOptions.MaxBytes"
	}
	return fmt.Errorf("%w: at %s there are more than %d %s: see %s", errdefs.TooLarge, errdefs.Printable(errdefs.Cut(limit.Entry, maxShown)), limit.Limit, limit.What, option)
}

// maxShown bounds a name in a message, in bytes.
const maxShown = 256

// CopyOut is [Sandbox.CopyOut] as the user.
func (f *View) CopyOut(ctx context.Context, inside, hostPath string, opts archive.Options) (archive.Report, error) {
	report, err := f.copyOut(ctx, inside, hostPath, opts)
	return report, f.failLink(ctx, "copy out", inside, hostPath, err)
}

func (f *View) copyOut(ctx context.Context, inside, hostPath string, opts archive.Options) (report archive.Report, err error) {
	from, err := f.abs(inside)
	if err != nil {
		return report, err
	}
	if hostPath == "" {
		return report, fs.ErrNotExist
	}
	if os.IsPathSeparator(hostPath[len(hostPath)-1]) {
		base := path.Base(from)
		if base == "/" || base == "." || base == ".." {
			return report, errdefs.Invalid("%q has no name to have in a directory", inside)
		}
		hostPath += base
	}
	if err := f.h.CheckUsable(); err != nil {
		return report, err
	}
	conn, err := f.h.ConnectRunning(ctx)
	if errors.Is(err, lifecycle.ErrNoSession) {
		st, err := f.stopped(ctx)
		if err != nil {
			return report, err
		}
		return st.copyOut(ctx, from, hostPath, opts)
	}
	if err != nil {
		return report, err
	}
	return f.copyFrom(ctx, conn, from, hostPath, opts)
}

// copyFrom copies a file or tree out of a running sandbox.
func (f *View) copyFrom(ctx context.Context, conn *guest.Conn, from, hostPath string, opts archive.Options) (report archive.Report, err error) {
	opts.Complete = true
	r, err := f.runVerb(ctx, conn, wire.VerbPack, from, false, 0, func(p *guest.Process) (err error) {
		if report, err = archive.Unpack(ctx, p.Stdout(), hostPath, archive.Hostile, opts); err != nil {
			p.Close()
		}
		return ofTarget(err, hostPath)
	})
	var remote *archive.RemoteError
	switch {
	case r == nil:
		return report, err
	case ctx.Err() != nil:
		return archive.Report{}, errdefs.Cancelled(ctx)
	case errors.As(err, &remote):
		return archive.Report{}, remoteError(remote)
	case tooLarge(err) != nil:
		return report, tooLarge(err)
	case !errors.Is(err, io.ErrUnexpectedEOF):
		return report, err
	case r.stderr != "" && (r.waitErr != nil || r.exit.Signal == 0):
		return archive.Report{}, fmt.Errorf("%w: stderr: %q", err, r.stderr)
	}
	if failure := r.failure(ctx, conn); failure != nil {
		return archive.Report{}, failure
	}
	return report, err
}
