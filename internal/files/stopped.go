package files

import (
	"archive/tar"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/seed-1a2d6d8f/sandbox/internal/archive"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/errdefs"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest"
)

// stopped reads the files of a sandbox without a session, through the engine and as root. The
// times in archives are in whole seconds.
type stopped struct {
	f   *View
	eng *engine.Engine
	id  string
}

func (f *View) stopped(ctx context.Context) (*stopped, error) {
	got, err := f.h.Current(ctx)
	if err != nil {
		return nil, err
	}
	if err := f.h.Client().Machine.CheckStopped(ctx, got); err != nil {
		return nil, err
	}
	return &stopped{f: f, eng: f.h.Client().Engine, id: got.ID}, nil
}

// notExist returns the error for a missing path, in which the engine's is of no use. That the sandbox
// exists was checked before.
func notExist(err error) error {
	if errors.Is(err, engine.ErrNotFound) {
		return fs.ErrNotExist
	}
	return err
}

// resolve returns the path that a path leads to, and its info. The engine follows links as if
// the sandbox's root were its own.
func (st *stopped) resolve(ctx context.Context, path string, follow bool) (string, engine.PathStat, error) {
	for range 40 {
		got, err := st.eng.StatPath(ctx, st.id, path)
		if err != nil {
			return "", got, notExist(err)
		}
		if !follow || got.Mode&fs.ModeSymlink == 0 {
			return path, got, nil
		}
		if path = got.LinkTarget; !strings.HasPrefix(path, "/") {
			return "", got, fmt.Errorf("%w: dangling link", fs.ErrNotExist)
		}
	}
	return "", engine.PathStat{}, syscall.ELOOP
}

// withoutDots returns a path without "..", which the engine would take off together with what is before it: behind a link the kernel
// goes to the parent of what the link leads to.
func (st *stopped) withoutDots(ctx context.Context, name string) (string, error) {
	done := ""
	for _, part := range strings.Split(name, "/")[1:] {
		if part != ".." {
			done += "/" + part
			continue
		}
		real, got, err := st.resolve(ctx, cmp.Or(done, "/"), true)
		if err != nil {
			return "", err
		}
		if !got.Mode.IsDir() {
			return "", errdefs.Classify(errdefs.InvalidArgument, syscall.ENOTDIR)
		}
		done = strings.TrimSuffix(path.Dir(path.Clean(real)), "/")
	}
	return cmp.Or(done, "/"), nil
}

func (st *stopped) stat(ctx context.Context, path string, follow bool) (*fileInfo, error) {
	_, got, err := st.resolve(ctx, path, follow)
	if err != nil {
		return nil, err
	}
	return st.f.stoppedInfo(got), nil
}

// stream opens the archive of a path at its first entry. The caller closes it.
func (st *stopped) stream(ctx context.Context, path string) (io.ReadCloser, *tar.Reader, *tar.Header, error) {
	rc, tr, hdr, err := st.eng.OpenArchive(ctx, st.id, path)
	return rc, tr, hdr, notExist(nameless(path, err))
}

// nameless explains the error of an archive that has no entry: to look for a file the engine passes its name on as JSON, which has
// nothing but UTF-8.
func nameless(name string, err error) error {
	if err == io.EOF && !utf8.ValidString(name) {
		return errdefs.Classify(errdefs.NotRunning, fmt.Errorf("%w: of a stopped sandbox the engine reads no file whose name is not UTF-8: start it", fs.ErrInvalid))
	}
	return err
}

func (st *stopped) readlink(ctx context.Context, path string) (string, error) {
	rc, _, hdr, err := st.stream(ctx, path)
	if err != nil {
		return "", err
	}
	defer rc.Close()
	if hdr.Typeflag != tar.TypeSymlink {
		return "", errdefs.Invalid("not a symbolic link")
	}
	return hdr.Linkname, nil
}

func notRegular(m fs.FileMode) error {
	if m.IsDir() {
		return errdefs.Classify(errdefs.InvalidArgument, syscall.EISDIR)
	}
	return errdefs.Classify(errdefs.NotRunning, fmt.Errorf("%v is not a regular file", m))
}

func (st *stopped) readFile(ctx context.Context, path string) ([]byte, error) {
	real, got, err := st.resolve(ctx, path, true)
	if err != nil {
		return nil, err
	}
	if !got.Mode.IsRegular() {
		return nil, notRegular(got.Mode)
	}
	rc, tr, hdr, err := st.stream(ctx, real)
	if err != nil {
		return nil, err
	}
	defer rc.Close()
	if hdr.Typeflag != tar.TypeReg {
		return nil, notRegular(hdr.FileInfo().Mode())
	}
	if limit := st.f.limits.ReadFile; hdr.Size > limit {
		return nil, tooLargeToRead(hdr.Size, limit)
	}
	data, err := io.ReadAll(tr)
	return data, brokenOff(err)
}

// brokenOff explains the error of an archive that ends within a file. The engine ends it there if the file has become shorter.
func brokenOff(err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%w: the engine's archive of the stopped sandbox broke off, as a file was changed or the connection was lost: repeat the call", err)
	}
	return err
}

// readDir picks the entries of a directory from the archive of its whole tree: the engine
// offers no other way.
func (st *stopped) readDir(ctx context.Context, dir string) ([]fs.DirEntry, error) {
	real, got, err := st.resolve(ctx, dir, true)
	if err != nil {
		return nil, err
	}
	if !got.Mode.IsDir() {
		return nil, errdefs.Classify(errdefs.InvalidArgument, syscall.ENOTDIR)
	}
	rc, tr, hdr, err := st.stream(ctx, real)
	if err != nil {
		return nil, err
	}
	defer rc.Close()
	top := strings.TrimSuffix(hdr.Name, "/") + "/"
	list := []fs.DirEntry{}
	seen := map[string]*fileInfo{}
	var links []*fileInfo
	for {
		hdr, err := tr.Next()
		if err == io.EOF {
			rc.Close() // the engine does nothing else with the container until then
			return list, st.measure(ctx, real, links)
		}
		if err != nil {
			return nil, brokenOff(err)
		}
		name, ok := strings.CutPrefix(strings.TrimSuffix(hdr.Name, "/"), top)
		if !ok && top == "//" {
			name, ok = strings.TrimPrefix(strings.TrimSuffix(hdr.Name, "/"), "/"), true
		}
		if !ok || name == "" || name == "." || name == ".." || strings.Contains(name, "/") || seen[name] != nil {
			continue
		}
		name = strings.Clone(name) // it may be part of a longer string
		if limit := st.f.limits.ReadDir; len(list) == limit {
			return nil, tooManyEntries(limit)
		}
		info := &fileInfo{
			name: name, size: hdr.Size, mode: hdr.FileInfo().Mode(), mtime: hdr.ModTime,
			sys: st.f.sys, stat: Stat{UID: uint32(hdr.Uid), GID: uint32(hdr.Gid)},
		}
		switch first := seen[strings.TrimPrefix(hdr.Linkname, top)]; {
		case hdr.Typeflag == tar.TypeSymlink:
			info.size = int64(len(hdr.Linkname))
		case hdr.Typeflag == tar.TypeLink && first != nil:
			info.size, info.mode = first.size, first.mode
		case hdr.Typeflag == tar.TypeLink:
			links = append(links, info)
		}
		seen[name] = info
		list = append(list, info)
	}
}

// measure asks for the size of files of a directory. An archive has it at the first of a file's names, which may be anywhere below.
func (st *stopped) measure(ctx context.Context, dir string, links []*fileInfo) error {
	for _, info := range links {
		got, err := st.eng.StatPath(ctx, st.id, strings.TrimSuffix(dir, "/")+"/"+info.name)
		if err != nil {
			return notExist(err)
		}
		info.size, info.mode = got.Size, got.Mode
	}
	return nil
}

func (st *stopped) copyOut(ctx context.Context, from, host string, opts archive.Options) (archive.Report, error) {
	from, err := st.withoutDots(ctx, from)
	if err != nil {
		return archive.Report{}, err
	}
	real, got, err := st.resolve(ctx, from, true)
	if err != nil {
		return archive.Report{}, err
	}
	if !got.Mode.IsRegular() && !got.Mode.IsDir() {
		return archive.Report{}, &fs.PathError{Op: "copy", Path: from, Err: fmt.Errorf("%w but %v", archive.ErrSpecial, got.Mode.Type())}
	}
	rc, _, err := st.eng.CopyFrom(ctx, st.id, real)
	if err != nil {
		return archive.Report{}, notExist(err)
	}
	defer rc.Close()
	opts.Strip = 1
	// Only the end of the reply shows that it is complete; Unpack reads to it.
	report, err := archive.Unpack(ctx, rc, host, archive.Hostile, opts)
	err = ofTarget(brokenOff(nameless(real, err)), host)
	if large := tooLarge(err); large != nil {
		err = large
	}
	if err == nil {
		report.Skip(".", "the sandbox is stopped: fractions of seconds of times, extended attributes and sockets are not copied")
	}
	return report, err
}

// stoppedFile is an open file of a sandbox without a session. It keeps the engine's stream for
// sequential reads.
type stoppedFile struct {
	st   *stopped
	path string
	info *fileInfo

	mu     sync.Mutex
	closed bool
	body   io.Reader
	at     int64
	end    func()
	idle   *time.Timer
}

// stoppedIdle is how long an idle stream is kept: while it is open the engine lets nobody
// start the sandbox.
const stoppedIdle = 300 * time.Millisecond

func (st *stopped) open(ctx context.Context, name string) (*stoppedFile, error) {
	real, got, err := st.resolve(ctx, name, true)
	if err != nil {
		return nil, err
	}
	if !got.Mode.IsRegular() && !got.Mode.IsDir() {
		return nil, notRegular(got.Mode)
	}
	if got.Mode.IsRegular() && !utf8.ValidString(real) { // then it may not be found
		rc, _, _, err := st.stream(ctx, real)
		if err != nil {
			return nil, err
		}
		rc.Close()
	}
	return &stoppedFile{st: st, path: real, info: st.f.stoppedInfo(got)}, nil
}

func (f *stoppedFile) entries() ([]fs.DirEntry, error) {
	return f.st.readDir(context.Background(), f.path)
}

func (f *stoppedFile) readAt(b []byte, off int64) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.closed:
		return 0, fs.ErrClosed
	case f.info.mode.IsDir():
		return 0, notRegular(f.info.mode)
	case off >= f.info.size:
		return 0, io.EOF
	}
	if f.idle != nil {
		f.idle.Stop()
	}
	if f.body == nil || off < f.at {
		if err := f.openStream(); err != nil {
			return 0, err
		}
	}
	n, err := io.CopyN(io.Discard, f.body, off-f.at)
	f.at += n
	if err != nil {
		f.closeStream()
		return 0, brokenOff(err)
	}
	got, err := guest.ReadFull(f.body, b)
	f.at += int64(got)
	if err != nil {
		f.closeStream()
		return got, brokenOff(err)
	}
	f.idle = time.AfterFunc(stoppedIdle, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.closeStream()
	})
	return got, nil
}

func (f *stoppedFile) openStream() error {
	f.closeStream()
	ctx, cancel := context.WithCancel(context.Background())
	rc, tr, hdr, err := f.st.stream(ctx, f.path)
	if err != nil {
		cancel()
		return err
	}
	f.body, f.at = tr, 0
	f.end = func() {
		cancel()
		rc.Close()
	}
	if hdr.Typeflag != tar.TypeReg {
		f.closeStream()
		return notRegular(hdr.FileInfo().Mode())
	}
	return nil
}

// closeStream closes the engine's stream.
func (f *stoppedFile) closeStream() {
	if f.end != nil {
		f.end()
	}
	f.body, f.end = nil, nil
}

func (f *stoppedFile) close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	if f.idle != nil {
		f.idle.Stop()
	}
	f.closeStream()
	return nil
}
