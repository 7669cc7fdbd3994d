package sandbox

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/archive"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
)

// still reads the files of a sandbox without a session, through the engine: as root,
// with times to the second in what comes as an archive.
type still struct {
	eng *engine.Engine
	id  string
}

func (s *Sandbox) still(ctx context.Context) (*still, error) {
	got, err := s.current(ctx)
	if err != nil {
		return nil, err
	}
	return &still{eng: s.eng, id: got.ID}, nil
}

// missing says in package fs's terms that there is no such path: that the sandbox
// is there was seen before.
func missing(err error) error {
	if errors.Is(err, engine.ErrNotFound) {
		return fmt.Errorf("%w: %w", fs.ErrNotExist, err)
	}
	return err
}

// resolve looks at a path and returns the one it leads to. The engine follows links
// as if the sandbox's root were its own.
func (st *still) resolve(ctx context.Context, path string, follow bool) (string, engine.PathStat, error) {
	for range 40 {
		got, err := st.eng.StatPath(ctx, st.id, path)
		if err != nil {
			return "", got, missing(err)
		}
		if !follow || got.Mode&fs.ModeSymlink == 0 {
			return path, got, nil
		}
		if path = got.LinkTarget; !strings.HasPrefix(path, "/") {
			return "", got, fmt.Errorf("%w: a link that leads nowhere", fs.ErrNotExist)
		}
	}
	return "", engine.PathStat{}, errors.New("too many levels of symbolic links")
}

func (st *still) stat(ctx context.Context, path string, follow bool) (*fileInfo, error) {
	_, got, err := st.resolve(ctx, path, follow)
	if err != nil {
		return nil, err
	}
	return stillInfo(got), nil
}

// stream opens the archive of a path at its first entry. The caller closes it.
func (st *still) stream(ctx context.Context, path string) (io.ReadCloser, *tar.Reader, *tar.Header, error) {
	rc, _, err := st.eng.CopyFrom(ctx, st.id, path)
	if err != nil {
		return nil, nil, nil, missing(err)
	}
	tr := tar.NewReader(rc)
	hdr, err := tr.Next()
	if err != nil {
		rc.Close()
		return nil, nil, nil, err
	}
	return rc, tr, hdr, nil
}

func (st *still) readlink(ctx context.Context, path string) (string, error) {
	rc, _, hdr, err := st.stream(ctx, path)
	if err != nil {
		return "", err
	}
	defer rc.Close()
	if hdr.Typeflag != tar.TypeSymlink {
		return "", invalid("it is no symbolic link")
	}
	return hdr.Linkname, nil
}

func notRegular(m fs.FileMode) error {
	if m.IsDir() {
		return invalid("it is a directory")
	}
	return classify(ErrNotRunning, fmt.Errorf("%v is no regular file", m))
}

func (st *still) readFile(ctx context.Context, path string) ([]byte, error) {
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
	return io.ReadAll(tr)
}

// readDir takes the entries of one directory out of the archive of the tree below it:
// the engine has no other way to tell them.
func (st *still) readDir(ctx context.Context, dir string) ([]fs.DirEntry, error) {
	real, got, err := st.resolve(ctx, dir, true)
	if err != nil {
		return nil, err
	}
	if !got.Mode.IsDir() {
		return nil, invalid("it is not a directory")
	}
	rc, tr, hdr, err := st.stream(ctx, real)
	if err != nil {
		return nil, err
	}
	defer rc.Close()
	top := strings.TrimSuffix(hdr.Name, "/") + "/"
	list := []fs.DirEntry{}
	seen := map[string]bool{}
	for {
		hdr, err := tr.Next()
		if err == io.EOF {
			return list, nil
		}
		if err != nil {
			return nil, err
		}
		name, ok := strings.CutPrefix(strings.TrimSuffix(hdr.Name, "/"), top)
		if !ok && top == "//" {
			name, ok = strings.TrimPrefix(strings.TrimSuffix(hdr.Name, "/"), "/"), true
		}
		if !ok || name == "" || name == "." || name == ".." || strings.Contains(name, "/") || seen[name] {
			continue
		}
		seen[name] = true
		info := hdr.FileInfo()
		list = append(list, &fileInfo{
			name: name, size: info.Size(), mode: info.Mode(), mtime: info.ModTime(),
			sys: FileStat{UID: uint32(hdr.Uid), GID: uint32(hdr.Gid)},
		})
	}
}

func (st *still) copyOut(ctx context.Context, from, host string, opts archive.Options) (archive.Report, error) {
	real, got, err := st.resolve(ctx, from, true)
	if err != nil {
		return archive.Report{}, err
	}
	if !got.Mode.IsRegular() && !got.Mode.IsDir() {
		return archive.Report{}, &fs.PathError{Op: "copy", Path: from, Err: fmt.Errorf("%w but %v", archive.ErrSpecial, got.Mode.Type())}
	}
	rc, _, err := st.eng.CopyFrom(ctx, st.id, real)
	if err != nil {
		return archive.Report{}, missing(err)
	}
	defer rc.Close()
	opts.Strip = 1
	report, err := archive.Unpack(ctx, rc, host, archive.Hostile, opts)
	if err == nil {
		// The end of the archive is not yet the end of the reply, which tells of a cut one.
		_, err = io.Copy(io.Discard, rc)
	}
	return report, err
}

// stillFile is an open file of a sandbox without a session. It keeps the engine's
// stream while it is read in order.
type stillFile struct {
	st   *still
	path string
	info *fileInfo

	mu     sync.Mutex
	closed bool
	body   io.Reader
	at     int64
	end    func()
	idle   *time.Timer
}

// stillIdle is how long a stream is kept that nobody reads: while it is open the
// engine lets nobody start the sandbox.
const stillIdle = 300 * time.Millisecond

func (st *still) open(ctx context.Context, name string) (*stillFile, error) {
	real, got, err := st.resolve(ctx, name, true)
	if err != nil {
		return nil, err
	}
	if !got.Mode.IsRegular() && !got.Mode.IsDir() {
		return nil, notRegular(got.Mode)
	}
	info := stillInfo(got)
	info.name = path.Base(name)
	return &stillFile{st: st, path: real, info: info}, nil
}

func (f *stillFile) entries() ([]fs.DirEntry, error) {
	return f.st.readDir(context.Background(), f.path)
}

func (f *stillFile) readAt(b []byte, off int64) (int, error) {
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
		if err := f.begin(); err != nil {
			return 0, err
		}
	}
	n, err := io.CopyN(io.Discard, f.body, off-f.at)
	f.at += n
	if err != nil {
		f.let()
		return 0, err
	}
	got, err := io.ReadFull(f.body, b)
	f.at += int64(got)
	if err == io.ErrUnexpectedEOF {
		err = io.EOF
	}
	if err != nil {
		f.let()
		return got, err
	}
	f.idle = time.AfterFunc(stillIdle, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.let()
	})
	return got, nil
}

func (f *stillFile) begin() error {
	f.let()
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
		f.let()
		return notRegular(hdr.FileInfo().Mode())
	}
	return nil
}

// let lets go of the stream.
func (f *stillFile) let() {
	if f.end != nil {
		f.end()
	}
	f.body, f.end = nil, nil
}

func (f *stillFile) close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	if f.idle != nil {
		f.idle.Stop()
	}
	f.let()
	return nil
}
