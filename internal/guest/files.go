package guest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"sync"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// Files is a connection to the file system of a sandbox, as one user: the kernel inside
// checks that user's permissions. Its methods may be called from any number of goroutines.
// ctx bounds each call; a call that it interrupts may still take effect. Errors of the
// kernel inside are those of [Errno].
type Files struct {
	p       *Process
	conn    *Conn
	out     io.Writer
	sending chan struct{} // a mutex for out that a context can give up on

	mu    sync.Mutex
	last  uint32
	calls map[uint32]*fileCall
	err   error
	done  chan struct{}
}

type fileCall struct {
	op    byte
	reply chan fileReply
}

type fileReply struct {
	kind    byte
	message []byte
}

// Files starts the file server as a user, in the form of wire.Exec.
func (c *Conn) Files(ctx context.Context, user string) (*Files, error) {
	p, err := c.Exec(ctx, wire.Exec{Path: wire.Self, Args: []string{wire.Program, wire.VerbFiles}, User: user, Stdin: true})
	if err != nil {
		return nil, err
	}
	f := &Files{
		p: p, conn: c, out: p.Stdin(), sending: make(chan struct{}, 1),
		calls: map[uint32]*fileCall{}, done: make(chan struct{}),
	}
	if !c.spawn(func() { io.Copy(io.Discard, p.Stderr()) }) || !c.spawn(f.listen) {
		p.Close()
		return nil, ErrConnectionLost
	}
	return f, nil
}

// Close ends the server, which closes its open files and drops replacements that were not
// committed. It does not wait.
func (f *Files) Close() error { return f.p.Close() }

// Done is closed when the server has ended, for whatever reason.
func (f *Files) Done() <-chan struct{} { return f.done }

// listen delivers replies to their callers until the stream ends.
func (f *Files) listen() {
	r := bufio.NewReaderSize(f.p.Stdout(), 64<<10)
	for {
		id, kind, message, err := wire.ReadFrame(r)
		if err != nil {
			f.p.Close()
			f.end(err)
			return
		}
		f.mu.Lock()
		call := f.calls[id]
		delete(f.calls, id)
		f.mu.Unlock()
		if call == nil {
			continue // an unknown ID
		}
		select {
		case call.reply <- fileReply{kind, message}:
		default:
			f.orphan(call, fileReply{kind, message})
		}
	}
}

// end fails all calls, including later ones.
func (f *Files) end(err error) {
	switch {
	case errors.Is(err, ErrConnectionLost):
	case errors.Is(err, wire.ErrFrame):
		err = fmt.Errorf("%w: file server: %w", ErrConnectionLost, err)
	default:
		err = fmt.Errorf("%w: the file server ended", ErrConnectionLost)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = err
	close(f.done)
}

// orphan closes the file that a call opened after its caller gave up.
func (f *Files) orphan(call *fileCall, r fileReply) {
	if r.kind != wire.FileOK {
		return
	}
	switch call.op {
	case wire.FileOpen, wire.FileReadAll, wire.FileBegin, wire.FileReadDir:
		if h := wire.NewUnpack(r.message).Uint(); h != 0 {
			f.conn.spawn(func() { f.CloseHandle(context.Background(), Handle(h)) })
		}
	}
}

// sendTimeout bounds the rest of a send whose caller gave up. After it the server is
// closed: half a frame leaves the stream unusable.
const sendTimeout = 5 * time.Second

func (f *Files) send(ctx context.Context, frame []byte) error {
	select {
	case f.sending <- struct{}{}:
		defer func() { <-f.sending }()
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-f.done:
		return f.err
	}
	if ctx.Done() != nil {
		written := make(chan struct{})
		defer close(written)
		defer context.AfterFunc(ctx, func() {
			select {
			case <-written:
			case <-time.After(sendTimeout):
				f.p.Close()
			}
		})()
	}
	if _, err := f.out.Write(frame); err != nil {
		// listen gets the cause; wait for it.
		select {
		case <-f.done:
			return f.err
		case <-time.After(time.Second):
			return fmt.Errorf("%w: %w", ErrConnectionLost, err)
		}
	}
	return nil
}

// call makes a request and waits for its reply.
func (f *Files) call(ctx context.Context, op byte, body wire.Pack) (*wire.Unpack, error) {
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	call := &fileCall{op: op, reply: make(chan fileReply, 1)}
	f.mu.Lock()
	if f.err != nil {
		f.mu.Unlock()
		return nil, f.err
	}
	for taken := true; taken; _, taken = f.calls[f.last] {
		f.last++
	}
	id := f.last
	f.calls[id] = call
	f.mu.Unlock()
	if err := f.send(ctx, body.End(id, op)); err != nil {
		f.mu.Lock()
		delete(f.calls, id)
		f.mu.Unlock()
		return nil, err
	}
	select {
	case r := <-call.reply:
		return r.open()
	case <-ctx.Done():
		select {
		case call.reply <- fileReply{kind: wire.FileFailed}: // now it is full, and listen calls orphan
			return nil, context.Cause(ctx)
		case r := <-call.reply:
			return r.open()
		}
	case <-f.done:
		select {
		case r := <-call.reply:
			return r.open()
		default:
			return nil, f.err
		}
	}
}

func (r fileReply) open() (*wire.Unpack, error) {
	u := wire.NewUnpack(r.message)
	if r.kind == wire.FileOK {
		return u, nil
	}
	n := u.Uint()
	if u.Err() != nil || n == 0 || n > 4095 {
		return nil, fmt.Errorf("%w: %w", ErrConnectionLost, wire.ErrFrame)
	}
	return nil, Errno(int(n))
}

// malformed returns the error of a malformed reply, if it is one.
func malformed(u *wire.Unpack) error {
	if err := u.Err(); err != nil {
		return fmt.Errorf("%w: the file server's reply: %w", ErrConnectionLost, err)
	}
	return nil
}

func request(path string, more ...int64) wire.Pack {
	p := wire.NewFrame(len(path) + 24)
	p.String(path)
	for _, n := range more {
		p.Int(n)
	}
	return p
}

// Handle is an open file of the server.
type Handle uint64

// Info stats a file; follow says whether to follow a link.
func (f *Files) Info(ctx context.Context, path string, follow bool) (wire.FileInfo, error) {
	op := byte(wire.FileLstat)
	if follow {
		op = wire.FileStat
	}
	u, err := f.call(ctx, op, request(path))
	if err != nil {
		return wire.FileInfo{}, err
	}
	i := u.Stat()
	return i, malformed(u)
}

// Open opens a file, with flags of package wire.
func (f *Files) Open(ctx context.Context, path string, flags int, perm fs.FileMode) (Handle, wire.FileInfo, error) {
	u, err := f.call(ctx, wire.FileOpen, request(path, int64(flags), int64(linuxMode(perm))))
	if err != nil {
		return 0, wire.FileInfo{}, err
	}
	h, i := Handle(u.Uint()), u.Info()
	return h, i, malformed(u)
}

func (h Handle) request(more ...int64) wire.Pack {
	p := wire.NewFrame(32)
	p.Uint(uint64(h))
	for _, n := range more {
		p.Int(n)
	}
	return p
}

// CloseHandle closes a file, or drops a replacement of Begin.
func (f *Files) CloseHandle(ctx context.Context, h Handle) error {
	_, err := f.call(ctx, wire.FileClose, h.request())
	return err
}

// Fstat stats an open file.
func (f *Files) Fstat(ctx context.Context, h Handle) (wire.FileInfo, error) {
	u, err := f.call(ctx, wire.FileFstat, h.request())
	if err != nil {
		return wire.FileInfo{}, err
	}
	i := u.Stat()
	return i, malformed(u)
}

// Ftruncate changes the size of an open file.
func (f *Files) Ftruncate(ctx context.Context, h Handle, size int64) error {
	_, err := f.call(ctx, wire.FileFtruncate, h.request(size))
	return err
}

// Sync flushes an open file to disk.
func (f *Files) Sync(ctx context.Context, h Handle) error {
	_, err := f.call(ctx, wire.FileSync, h.request())
	return err
}

// Stream is the offset for files without offsets: pipes, terminals.
const Stream = -1

// ahead is the number of concurrent requests of one read or write.
const ahead = 8

// ReadAt fills b from off. It returns fewer bytes only with io.EOF or another error.
func (f *Files) ReadAt(ctx context.Context, h Handle, b []byte, off int64) (int, error) {
	if len(b) <= wire.MaxFileData || off == Stream {
		return f.readChunk(ctx, h, b[:min(len(b), wire.MaxFileData)], off)
	}
	return chunks(b, func(part []byte, at int) (int, error) { return f.readChunk(ctx, h, part, off+int64(at)) })
}

func (f *Files) readChunk(ctx context.Context, h Handle, b []byte, off int64) (int, error) {
	u, err := f.call(ctx, wire.FileRead, h.request(off, int64(len(b))))
	if err != nil {
		return 0, err
	}
	data := u.Bytes()
	if err := malformed(u); err != nil || len(data) > len(b) {
		return 0, errors.Join(ErrConnectionLost, err)
	}
	n := copy(b, data)
	if n < len(b) && (off != Stream || n == 0) {
		return n, io.EOF
	}
	return n, nil
}

// WriteAt writes b at off.
func (f *Files) WriteAt(ctx context.Context, h Handle, b []byte, off int64) (int, error) {
	write := func(part []byte, at int) (int, error) {
		n, _, err := f.writeChunk(ctx, h, part, off+int64(at))
		return n, err
	}
	if len(b) <= wire.MaxFileData {
		return write(b, 0)
	}
	return chunks(b, write)
}

// Append writes b to a file that is open to append, or to one without offsets. It returns the offset after
// what was written, and Stream if there is none.
func (f *Files) Append(ctx context.Context, h Handle, b []byte) (n int, end int64, err error) {
	for end = Stream; ; { // not concurrently: order matters
		did, at, err := f.writeChunk(ctx, h, b[n:min(len(b), n+wire.MaxFileData)], Stream)
		if did > 0 {
			n, end = n+did, at
		}
		if err != nil || n == len(b) {
			return n, end, err
		}
	}
}

// writeChunk also returns the offset that a file opened to append has then, or Stream.
func (f *Files) writeChunk(ctx context.Context, h Handle, b []byte, off int64) (n int, end int64, err error) {
	p := wire.NewFrame(len(b) + 32)
	p.Uint(uint64(h))
	p.Int(off)
	p.Bytes(b)
	u, err := f.call(ctx, wire.FileWrite, p)
	if err != nil {
		return 0, Stream, err
	}
	did := u.Uint()
	if end = Stream; u.More() {
		end = u.Int()
	}
	if err := malformed(u); err != nil || did > uint64(len(b)) || end < Stream {
		return 0, Stream, errors.Join(ErrConnectionLost, err)
	}
	if int(did) < len(b) {
		return int(did), end, io.ErrShortWrite
	}
	return int(did), end, nil
}

// chunks calls do for parts of b, ahead at a time. It returns the length of the part of b
// before the first error, and that error.
func chunks(b []byte, do func(part []byte, at int) (int, error)) (int, error) {
	type result struct {
		n   int
		err error
	}
	var results []chan result
	total, failed := 0, error(nil)
	take := func() {
		r := <-results[0]
		results = results[1:]
		if failed == nil {
			total, failed = total+r.n, r.err
		}
	}
	for at := 0; at < len(b) && failed == nil; at += wire.MaxFileData {
		if len(results) == ahead {
			take()
		}
		done := make(chan result, 1)
		results = append(results, done)
		part := b[at:min(len(b), at+wire.MaxFileData)]
		go func() {
			n, err := do(part, at)
			done <- result{n, err}
		}()
	}
	for len(results) > 0 {
		take()
	}
	return total, failed
}

// ReadAll opens a file and returns its beginning, and a handle if there is more.
func (f *Files) ReadAll(ctx context.Context, path string) ([]byte, Handle, wire.FileInfo, error) {
	u, err := f.call(ctx, wire.FileReadAll, request(path))
	if err != nil {
		return nil, 0, wire.FileInfo{}, err
	}
	h, i, b := Handle(u.Uint()), u.Info(), u.Bytes()
	return b, h, i, malformed(u)
}

// Replace replaces the whole content of a file, atomically.
func (f *Files) Replace(ctx context.Context, path string, data []byte, perm fs.FileMode) error {
	if len(data) <= wire.MaxFileData {
		p := wire.NewFrame(len(path) + len(data) + 24)
		p.String(path)
		p.Int(int64(linuxMode(perm)))
		p.Bytes(data)
		_, err := f.call(ctx, wire.FileReplace, p)
		return err
	}
	h, err := f.begin(ctx, path, perm)
	if err != nil {
		return err
	}
	if _, err = f.WriteAt(ctx, h, data, 0); err == nil {
		err = f.commit(ctx, h)
	}
	if err != nil {
		f.conn.spawn(func() { f.CloseHandle(context.Background(), h) })
	}
	return err
}

// replaceSize is what ReplaceFrom writes in one round trip.
const replaceSize = 1 << 20

// ReplaceFrom is Replace with what r has up to its end.
func (f *Files) ReplaceFrom(ctx context.Context, path string, r io.Reader, perm fs.FileMode) (total int64, err error) {
	h, err := f.begin(ctx, path, perm)
	if err != nil {
		return 0, err
	}
	defer func() {
		if err != nil {
			f.conn.spawn(func() { f.CloseHandle(context.Background(), h) })
		}
	}()
	for buf := make([]byte, replaceSize); ; {
		n, end := ReadFull(r, buf)
		if end != nil && end != io.EOF {
			return total, end
		}
		did, err := f.WriteAt(ctx, h, buf[:n], total)
		total += int64(did)
		switch {
		case err != nil:
			return total, err
		case end != nil:
			return total, f.commit(ctx, h)
		}
	}
}

// ReadFull is [io.ReadFull] that returns [io.EOF] if r ends before b is full. An
// [io.ErrUnexpectedEOF] is r's own: its content broke off.
func ReadFull(r io.Reader, b []byte) (n int, err error) {
	for n < len(b) && err == nil {
		var more int
		more, err = r.Read(b[n:])
		n += more
	}
	if n == len(b) {
		err = nil
	}
	return n, err
}

// begin opens an empty file, which commit moves to path.
func (f *Files) begin(ctx context.Context, path string, perm fs.FileMode) (Handle, error) {
	u, err := f.call(ctx, wire.FileBegin, request(path, int64(linuxMode(perm))))
	if err != nil {
		return 0, err
	}
	h := Handle(u.Uint())
	return h, malformed(u)
}

// commit replaces the file of begin's path with the new one.
func (f *Files) commit(ctx context.Context, h Handle) error {
	_, err := f.call(ctx, wire.FileCommit, h.request())
	return err
}

// ReadDir returns entries of a directory, unsorted, with the information of lstat, and a
// handle for ReadMore if there are more.
func (f *Files) ReadDir(ctx context.Context, path string) ([]wire.FileInfo, Handle, error) {
	return infos(f.call(ctx, wire.FileReadDir, request(path)))
}

// ReadMore continues a ReadDir. It returns the same handle, or 0 at the end: the server has
// closed it then.
func (f *Files) ReadMore(ctx context.Context, h Handle) ([]wire.FileInfo, Handle, error) {
	return infos(f.call(ctx, wire.FileReadMore, h.request()))
}

func infos(u *wire.Unpack, err error) ([]wire.FileInfo, Handle, error) {
	if err != nil {
		return nil, 0, err
	}
	h := Handle(u.Uint())
	if h != 0 && !u.More() {
		return nil, 0, fmt.Errorf("%w: file server: no entries, and more to come", ErrConnectionLost)
	}
	var list []wire.FileInfo
	for u.More() {
		i := u.Info()
		if !entryName(i.Name) {
			return nil, 0, fmt.Errorf("%w: file server: invalid entry name %q", ErrConnectionLost, i.Name)
		}
		list = append(list, i)
	}
	return list, h, malformed(u)
}

// entryName reports whether a name can be that of a directory entry.
func entryName(name string) bool {
	return name != "" && name != "." && name != ".." && len(name) <= 255 && !strings.ContainsAny(name, "/\x00")
}

// simple makes a request whose reply has no content.
func (f *Files) simple(ctx context.Context, op byte, p wire.Pack) error {
	_, err := f.call(ctx, op, p)
	return err
}

func two(a, b string) wire.Pack {
	p := wire.NewFrame(len(a) + len(b) + 8)
	p.String(a)
	p.String(b)
	return p
}

// Mkdir makes a directory.
func (f *Files) Mkdir(ctx context.Context, path string, perm fs.FileMode) error {
	return f.simple(ctx, wire.FileMkdir, request(path, int64(linuxMode(perm))))
}

// MkdirAll makes a directory and its missing parents.
func (f *Files) MkdirAll(ctx context.Context, path string, perm fs.FileMode) error {
	return f.simple(ctx, wire.FileMkdirAll, request(path, int64(linuxMode(perm))))
}

// MkdirTemp makes a new directory, as os.MkdirTemp does.
func (f *Files) MkdirTemp(ctx context.Context, dir, pattern string) (string, error) {
	u, err := f.call(ctx, wire.FileMkdirTemp, two(dir, pattern))
	if err != nil {
		return "", err
	}
	name := u.String()
	return name, malformed(u)
}

// Remove removes a file or an empty directory.
func (f *Files) Remove(ctx context.Context, path string) error {
	return f.simple(ctx, wire.FileRemove, request(path))
}

// RemoveAll removes a tree. It is no error if there is none.
func (f *Files) RemoveAll(ctx context.Context, path string) error {
	return f.simple(ctx, wire.FileRemoveAll, request(path))
}

// Rename renames a file, and replaces an existing one.
func (f *Files) Rename(ctx context.Context, from, to string) error {
	return f.simple(ctx, wire.FileRename, two(from, to))
}

// Symlink makes path a symbolic link to target.
func (f *Files) Symlink(ctx context.Context, target, path string) error {
	return f.simple(ctx, wire.FileSymlink, two(target, path))
}

// Readlink returns the target of a symbolic link.
func (f *Files) Readlink(ctx context.Context, path string) (string, error) {
	u, err := f.call(ctx, wire.FileReadlink, request(path))
	if err != nil {
		return "", err
	}
	target := u.String()
	return target, malformed(u)
}

// Chmod changes permissions, following links.
func (f *Files) Chmod(ctx context.Context, path string, mode fs.FileMode) error {
	return f.simple(ctx, wire.FileChmod, request(path, int64(linuxMode(mode))))
}

// Chown changes the owner and group; -1 leaves one unchanged. follow says whether to follow
// a link.
func (f *Files) Chown(ctx context.Context, path string, uid, gid int, follow bool) error {
	op := byte(wire.FileLchown)
	if follow {
		op = wire.FileChown
	}
	return f.simple(ctx, op, request(path, int64(uid), int64(gid)))
}

// Chtimes changes the times; a zero time leaves one unchanged.
func (f *Files) Chtimes(ctx context.Context, path string, atime, mtime time.Time) error {
	req := request(path)
	for _, t := range []time.Time{atime, mtime} {
		if t.IsZero() {
			req.Int(0)
			req.Int(0)
		} else {
			req.Int(1)
			req.Time(t)
		}
	}
	return f.simple(ctx, wire.FileChtimes, req)
}

// Truncate changes the size of a file.
func (f *Files) Truncate(ctx context.Context, path string, size int64) error {
	return f.simple(ctx, wire.FileTruncate, request(path, size))
}

// linuxMode converts permissions to Linux mode bits.
func linuxMode(m fs.FileMode) uint32 {
	mode := uint32(m.Perm())
	if m&fs.ModeSetuid != 0 {
		mode |= 0o4000
	}
	if m&fs.ModeSetgid != 0 {
		mode |= 0o2000
	}
	if m&fs.ModeSticky != 0 {
		mode |= 0o1000
	}
	return mode
}

// GoMode converts st_mode of Linux.
func GoMode(m uint32) fs.FileMode {
	mode := fs.FileMode(m & 0o777)
	switch m & 0o170000 {
	case 0o040000:
		mode |= fs.ModeDir
	case 0o120000:
		mode |= fs.ModeSymlink
	case 0o010000:
		mode |= fs.ModeNamedPipe
	case 0o140000:
		mode |= fs.ModeSocket
	case 0o060000:
		mode |= fs.ModeDevice
	case 0o020000:
		mode |= fs.ModeDevice | fs.ModeCharDevice
	case 0o100000:
	default:
		mode |= fs.ModeIrregular
	}
	if m&0o4000 != 0 {
		mode |= fs.ModeSetuid
	}
	if m&0o2000 != 0 {
		mode |= fs.ModeSetgid
	}
	if m&0o1000 != 0 {
		mode |= fs.ModeSticky
	}
	return mode
}
