package files

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"sync"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/errdefs"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// File is an open file in a sandbox, used as [os.File] is: it reads, writes, seeks and
// lists. The context it was opened with bounded only that; a call that blocks, on a
// pipe say, ends with [File.Close]. Nothing is buffered, so each Read and Write asks
// the sandbox once (wrap small ones in package bufio); [io.Copy] moves large pieces.
//
// It is of no use once the session it was opened in has ended. Whoever opened it
// closes it. It is safe for concurrent use, Read, Write and Seek one at a time.
type File struct {
	f       *View
	name    string
	srv     *guest.Files
	h       guest.Handle
	stopped *stoppedFile // of a stopped sandbox; then srv is nil
	info    *fileInfo    // as it was when it was opened
	appends bool

	// life bounds the calls of an open file, which have no context, and end ends them.
	life context.Context
	end  context.CancelCauseFunc

	seek sync.Mutex // held by what uses off or entries
	off  int64
	dir  *dirState

	mu     sync.Mutex
	closed bool
}

type dirState struct {
	entries []fs.DirEntry
	ended   bool
}

func (f *File) open(ctx context.Context, srv *guest.Files, path string, flags int, perm fs.FileMode) error {
	h, info, err := srv.Open(ctx, path, flags, perm)
	if err != nil {
		return err
	}
	f.srv, f.h, f.info = srv, h, f.f.liveInfo(baseName(f.name), info)
	f.life, f.end = context.WithCancelCause(context.Background())
	return nil
}

// Name returns the name that the file was opened by.
func (f *File) Name() string { return f.name }

// checkOpen fails if the file is closed.
func (f *File) checkOpen(op string) error {
	if f.isClosed() {
		return f.fail(op, fs.ErrClosed)
	}
	return nil
}

func (f *File) isClosed() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.closed
}

// ebadf is EBADF of Linux: of a file that is not open for the call, or that Close has closed before the sandbox got the call.
const ebadf = 9

func (f *File) fail(op string, err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	if errors.Is(err, guest.Errno(ebadf)) && f.isClosed() {
		err = fs.ErrClosed
	}
	return f.f.fail(context.Background(), op, f.name, err)
}

// stream reports whether the file has no offsets.
func (f *File) stream() bool {
	return f.info.mode&(fs.ModeNamedPipe|fs.ModeCharDevice|fs.ModeSocket) != 0
}

func (f *File) readAt(b []byte, off int64) (int, error) {
	if f.stopped != nil {
		return f.stopped.readAt(b, off)
	}
	return f.srv.ReadAt(f.life, f.h, b, off)
}

// Read reads up to len(b) bytes; at the end of the file it returns [io.EOF].
func (f *File) Read(b []byte) (int, error) {
	if err := f.checkOpen("read"); err != nil {
		return 0, err
	}
	if len(b) == 0 {
		return 0, nil
	}
	f.seek.Lock()
	defer f.seek.Unlock()
	n, err := f.readNext(b)
	return n, f.fail("read", err)
}

func (f *File) readNext(b []byte) (int, error) {
	if f.stream() {
		return f.readAt(b, guest.Stream)
	}
	n, err := f.readAt(b, f.off)
	f.off += int64(n)
	if n > 0 && err == io.EOF {
		err = nil
	}
	return n, err
}

// ReadAt reads len(b) bytes from off; fewer come with an error, at the end of the
// file [io.EOF].
func (f *File) ReadAt(b []byte, off int64) (int, error) {
	if err := f.checkOpen("read"); err != nil {
		return 0, err
	}
	if off < 0 {
		return 0, f.fail("read", errdefs.Invalid("negative offset %d", off))
	}
	if len(b) == 0 {
		return 0, nil
	}
	n, err := f.readAt(b, off)
	return n, f.fail("read", err)
}

// copySize is the buffer size of io.Copy.
const copySize = 8 * wire.MaxFileData

// WriteTo copies the rest of the file to w. It is what [io.Copy] uses.
func (f *File) WriteTo(w io.Writer) (total int64, err error) {
	if err := f.checkOpen("read"); err != nil {
		return 0, err
	}
	f.seek.Lock()
	defer f.seek.Unlock()
	size := int64(copySize)
	if !f.stream() {
		size = min(size, max(f.info.size-f.off+1, 32<<10))
	}
	buf := make([]byte, size)
	for {
		n, err := f.readNext(buf)
		if n > 0 {
			did, werr := w.Write(buf[:n])
			total += int64(did)
			if werr != nil {
				return total, werr
			}
		}
		if err == io.EOF {
			return total, nil
		}
		if err != nil {
			return total, f.fail("read", err)
		}
	}
}

// Write writes b at the file's offset, or at its end when it was opened to append.
func (f *File) Write(b []byte) (int, error) {
	if err := f.checkOpen("write"); err != nil {
		return 0, err
	}
	f.seek.Lock()
	defer f.seek.Unlock()
	n, err := f.writeNext(b)
	return n, f.fail("write", err)
}

func (f *File) writeNext(b []byte) (int, error) {
	switch {
	case f.stopped != nil:
		return 0, fs.ErrPermission // it was opened to read
	case f.appends || f.stream():
		n, end, err := f.srv.Append(f.life, f.h, b)
		if end != guest.Stream {
			f.off = end
		}
		return n, err
	}
	n, err := f.srv.WriteAt(f.life, f.h, b, f.off)
	f.off += int64(n)
	return n, err
}

// WriteString is Write of a string.
func (f *File) WriteString(s string) (int, error) { return f.Write([]byte(s)) }

// WriteAt writes b at off. A file opened to append does not take it.
func (f *File) WriteAt(b []byte, off int64) (int, error) {
	if err := f.checkOpen("write"); err != nil {
		return 0, err
	}
	switch {
	case off < 0:
		return 0, f.fail("write", errdefs.Invalid("negative offset %d", off))
	case f.appends:
		return 0, f.fail("write", errdefs.Invalid("WriteAt on a file opened to append"))
	case f.stopped != nil:
		return 0, f.fail("write", fs.ErrPermission)
	}
	n, err := f.srv.WriteAt(f.life, f.h, b, off)
	return n, f.fail("write", err)
}

// ReadFrom writes what r holds. It is what [io.Copy] uses.
func (f *File) ReadFrom(r io.Reader) (total int64, err error) {
	if err := f.checkOpen("write"); err != nil {
		return 0, err
	}
	f.seek.Lock()
	defer f.seek.Unlock()
	size := int64(copySize)
	if l, ok := r.(interface{ Len() int }); ok {
		size = min(size, int64(l.Len())+1)
	}
	buf := make([]byte, size)
	for {
		n, rerr := guest.ReadFull(r, buf)
		did, err := f.writeNext(buf[:n])
		total += int64(did)
		switch {
		case err != nil:
			return total, f.fail("write", err)
		case rerr == io.EOF:
			return total, nil
		case rerr != nil:
			return total, rerr
		}
	}
}

// Seek sets the offset for Read and Write.
func (f *File) Seek(offset int64, whence int) (int64, error) {
	if err := f.checkOpen("seek"); err != nil {
		return 0, err
	}
	f.seek.Lock()
	defer f.seek.Unlock()
	switch whence {
	case io.SeekStart:
	case io.SeekCurrent:
		offset += f.off
	case io.SeekEnd:
		info, err := f.stat()
		if err != nil {
			return 0, f.fail("seek", err)
		}
		offset += info.size
	default:
		return 0, f.fail("seek", errdefs.Invalid("whence is %d", whence))
	}
	switch {
	case f.stream():
		return 0, f.fail("seek", errors.ErrUnsupported)
	case offset < 0:
		return 0, f.fail("seek", errdefs.Invalid("the offset would be %d", offset))
	}
	if f.info.mode.IsDir() {
		if offset != 0 {
			return 0, f.fail("seek", errors.ErrUnsupported)
		}
		return 0, f.fail("seek", f.rewind())
	}
	f.off = offset
	return offset, nil
}

// rewind makes ReadDir start over.
func (f *File) rewind() error {
	f.dir = nil
	if f.stopped != nil {
		return nil
	}
	return errors.ErrUnsupported
}

func (f *File) stat() (*fileInfo, error) {
	if f.stopped != nil {
		return f.info, nil
	}
	got, err := f.srv.Fstat(f.life, f.h)
	if err != nil {
		return nil, err
	}
	return f.f.liveInfo(f.info.name, got), nil
}

// Stat returns the info of the open file.
func (f *File) Stat() (fs.FileInfo, error) {
	if err := f.checkOpen("stat"); err != nil {
		return nil, err
	}
	info, err := f.stat()
	if err != nil {
		return nil, f.fail("stat", err)
	}
	return info, nil
}

// ReadDir lists a directory in no order: the next n entries or, with n of 0 or less,
// all that are left. At the end of the directory, with n over 0, the error is
// [io.EOF].
func (f *File) ReadDir(n int) ([]fs.DirEntry, error) {
	if err := f.checkOpen("readdir"); err != nil {
		return nil, err
	}
	f.seek.Lock()
	defer f.seek.Unlock()
	if f.dir == nil {
		f.dir = &dirState{}
	}
	d := f.dir
	for !d.ended && (n <= 0 || len(d.entries) < n) {
		if err := f.moreEntries(d); err != nil {
			return nil, f.fail("readdir", err)
		}
		if limit := f.f.limits.ReadDir; n <= 0 && len(d.entries) > limit {
			d.entries = nil
			return nil, f.fail("readdir", tooManyEntries(limit))
		}
	}
	if n <= 0 || n > len(d.entries) {
		if n > 0 && len(d.entries) == 0 {
			return nil, io.EOF
		}
		n = len(d.entries)
	}
	list := append(make([]fs.DirEntry, 0, n), d.entries[:n]...) // not nil
	d.entries = d.entries[n:]
	return list, nil
}

func (f *File) moreEntries(d *dirState) error {
	if f.stopped != nil {
		list, err := f.stopped.entries()
		d.entries, d.ended = list, true
		return err
	}
	infos, h, err := f.srv.ReadMore(f.life, f.h)
	if err != nil {
		return err
	}
	d.ended = h == 0
	for _, i := range infos {
		d.entries = append(d.entries, f.f.entry(i))
	}
	return nil
}

// Truncate changes the file's size.
func (f *File) Truncate(size int64) error {
	if err := f.checkOpen("truncate"); err != nil {
		return err
	}
	if f.stopped != nil {
		return f.fail("truncate", fs.ErrPermission)
	}
	return f.fail("truncate", f.srv.Ftruncate(f.life, f.h, size))
}

// Sync flushes what was written to the disk of the engine's machine.
func (f *File) Sync() error {
	if err := f.checkOpen("sync"); err != nil || f.stopped != nil {
		return err
	}
	return f.fail("sync", f.srv.Sync(f.life, f.h))
}

// Close closes the file. Reads and writes that wait end with an error. It takes at most 5 s:
// in a sandbox that is paused for longer the file is closed when that goes on.
func (f *File) Close() error {
	f.mu.Lock()
	if f.closed {
		f.mu.Unlock()
		return f.fail("close", fs.ErrClosed)
	}
	f.closed = true
	f.mu.Unlock()
	if f.stopped != nil {
		return f.fail("close", f.stopped.close())
	}
	closed := make(chan error, 1)
	go func() { closed <- f.srv.CloseHandle(context.Background(), f.h) }()
	var err error
	select {
	case err = <-closed:
	case <-time.After(closeTimeout):
	}
	f.end(fs.ErrClosed)
	return f.fail("close", err)
}

// closeTimeout bounds Close. The file of a guest that does not answer for so long is closed
// when it goes on, or with its connection.
const closeTimeout = 5 * time.Second
