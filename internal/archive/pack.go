package archive

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Unsized is how many bytes a file may have that has no size and yet content, as those in /proc.
const Unsized = 64 << 20

const (
	smallFile = 128 << 10 // bytes; files up to this size are read ahead of the stream
	readers   = 4         // goroutines that read ahead
	ahead     = 64        // entries read ahead
	bufSize   = 256 << 10
	step      = 8 << 20 // bytes between progress reports within a file
)

// Pack writes the file or tree at source to w as a stream that Unpack reads. It follows a
// link at source itself and no other. A file that vanishes meanwhile is skipped; of one
// that shrinks the rest is packed; of one that grows only the original size. A file without
// a size, as those in /proc are, is read to its end.
func Pack(ctx context.Context, w io.Writer, source string, opts Options) (Report, error) {
	p := newPacker(ctx, w, opts)
	err := p.source(source)
	return p.finish(err)
}

// PackFS is Pack for an [fs.FS]. Links are kept if it is an [fs.ReadLinkFS]. What has no time gets
// that of the call, and in file systems without owners, such as embed.FS, the owner may write. Names
// that are not UTF-8 are skipped, unless it is [AnyNames].
func PackFS(ctx context.Context, w io.Writer, fsys fs.FS, opts Options) (Report, error) {
	p := newPacker(ctx, w, opts)
	p.began = time.Now()
	err := p.fsys(fsys)
	return p.finish(err)
}

type packer struct {
	ctx    context.Context
	opts   Options
	buf    *bufio.Writer
	tw     *tar.Writer
	report Report
	tally  tally
	links  map[FileID]string // the first name of each file with hard links
	began  time.Time         // of an fs.FS: when the call began
	plain  bool              // for programs of others, which know no notes
}

func newPacker(ctx context.Context, w io.Writer, opts Options) *packer {
	p := &packer{ctx: ctx, opts: opts, buf: bufio.NewWriterSize(w, bufSize), tally: opts.Limits.tally(), links: map[FileID]string{}}
	p.tw = tar.NewWriter(p.buf)
	return p
}

// finish ends the stream with a note that it is complete, or why not.
func (p *packer) finish(err error) (Report, error) {
	if err == nil {
		err = p.note(noteEnd, "", strconv.FormatInt(p.report.Files, 10), 0)
	} else if _, lost := errors.AsType[*streamError](err); !lost && p.tw.Flush() == nil {
		r, kind := Remote(err), noteFailed
		if r.Special {
			kind = noteRefused
		}
		p.note(kind, r.Path, r.Text, r.Errno)
	}
	if err == nil {
		err = p.tw.Close()
	}
	if e := p.buf.Flush(); err == nil {
		err = e
	}
	if lost, ok := errors.AsType[*streamError](err); ok {
		err = lost.err
	}
	return p.report, err
}

// streamError is an error of the stream itself: nothing more can be written to it.
type streamError struct{ err error }

func (e *streamError) Error() string { return e.err.Error() }
func (e *streamError) Unwrap() error { return e.err }

func stream(err error) error {
	if err == nil {
		return nil
	}
	return &streamError{err}
}

func (p *packer) note(kind, path, text string, errno int) error {
	if p.plain {
		return nil
	}
	records := map[string]string{recordNote: kind}
	for key, v := range map[string]string{recordPath: path, recordText: text} {
		if v != "" {
			records[key] = v
		}
	}
	if errno != 0 {
		records[recordErrno] = strconv.Itoa(errno)
	}
	return stream(p.tw.WriteHeader(&tar.Header{Typeflag: tar.TypeXGlobalHeader, PAXRecords: records, Format: tar.FormatPAX}))
}

func (p *packer) skip(path, reason string) error {
	p.report.Skip(path, reason)
	return p.note(noteSkipped, path, reason, 0)
}

// source packs the file or tree at a path.
func (p *packer) source(source string) error {
	info, err := os.Stat(source)
	if err != nil {
		return err
	}
	switch {
	case info.IsDir():
		root, err := os.OpenRoot(source)
		if err != nil {
			return err
		}
		return p.tree(root)
	case !info.Mode().IsRegular():
		return refuseSpecial(source, info.Mode())
	}
	file, was, err := follow(source)
	if err != nil {
		return err
	}
	e := &entry{name: ".", info: was}
	e.open(os.OpenFile, file)
	defer e.close()
	return p.write(e)
}

// An entry is a file of the tree. load fills in the fields after loaded.
type entry struct {
	dir  *dirRef[*os.Root] // nil: of a single file
	base string
	name string // in the stream

	loaded chan struct{}
	info   fs.FileInfo
	link   string
	file   *os.File // open, if too large to be read ahead
	data   []byte
	xattrs map[string]string
	odd    []string // names of extended attributes to report as skipped
	err    error
}

// dirRef is an open directory, closed when the last of its entries releases it.
type dirRef[R io.Closer] struct {
	root R
	mu   sync.Mutex
	refs int
}

func newDirRef[R io.Closer](root R) *dirRef[R] { return &dirRef[R]{root: root, refs: 1} }

func (d *dirRef[R]) hold() *dirRef[R] {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.refs++
	return d
}

func (d *dirRef[R]) release() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.refs--; d.refs == 0 {
		d.root.Close()
	}
}

// tree packs a directory and closes it. One goroutine walks, others read ahead, and the
// caller's writes the entries in the order of the walk.
func (p *packer) tree(root *os.Root) error {
	ctx, cancel := context.WithCancel(p.ctx)
	order := make(chan *entry, ahead)
	todo := make(chan *entry, ahead)
	var work sync.WaitGroup
	for range readers {
		work.Go(func() {
			for e := range todo {
				e.load()
				close(e.loaded)
			}
		})
	}
	var walkErr error
	work.Go(func() {
		w := &walker{ctx: ctx, order: order, todo: todo}
		top := newDirRef(root)
		if walkErr = w.emit(top, ".", "."); walkErr == nil {
			walkErr = w.walk(top, "")
		}
		top.release()
		close(todo)
		close(order)
	})
	var err error
	for e := range order {
		<-e.loaded
		if err == nil {
			if err = p.write(e); err != nil {
				cancel()
			}
		}
		e.close()
	}
	cancel()
	work.Wait()
	if err == nil {
		err = walkErr
	}
	if err == nil {
		err = context.Cause(p.ctx)
	}
	return err
}

type walker struct {
	ctx         context.Context
	order, todo chan<- *entry
}

func (w *walker) emit(dir *dirRef[*os.Root], base, name string) error {
	e := &entry{dir: dir.hold(), base: base, name: name, loaded: make(chan struct{})}
	select {
	case w.order <- e:
		w.todo <- e
		return nil
	case <-w.ctx.Done():
		dir.release()
		return context.Cause(w.ctx)
	}
}

func (w *walker) walk(dir *dirRef[*os.Root], prefix string) error {
	f, err := dir.root.Open(".")
	if err != nil {
		return &fs.PathError{Op: "open", Path: "./" + prefix, Err: bare(err)}
	}
	defer f.Close()
	for {
		list, err := f.ReadDir(1024)
		slices.SortFunc(list, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
		for _, d := range list {
			if err := w.entry(dir, prefix, d); err != nil {
				return err
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return &fs.PathError{Op: "readdir", Path: "./" + prefix, Err: bare(err)}
		}
	}
}

func (w *walker) entry(dir *dirRef[*os.Root], prefix string, d fs.DirEntry) error {
	name := prefix + d.Name()
	if err := w.emit(dir, d.Name(), "./"+name); err != nil || !d.IsDir() {
		return err
	}
	was, err := dir.root.Lstat(d.Name())
	var sub *os.Root
	if err == nil {
		sub, err = OpenDir(dir.root, d.Name(), was)
	}
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, ErrChanged) {
		return nil // load reports it
	}
	if err != nil {
		return &fs.PathError{Op: "open", Path: "./" + name, Err: bare(err)}
	}
	ref := newDirRef(sub)
	defer ref.release()
	return w.walk(ref, name+"/")
}

// bare removes the path that package os adds to an error; callers add a better one.
func bare(err error) error {
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		return p.Err
	}
	return err
}

// load stats the entry and opens it.
func (e *entry) load() {
	if e.info, e.err = e.dir.root.Lstat(e.base); e.err != nil {
		return
	}
	mode := e.info.Mode()
	switch {
	case mode&fs.ModeSymlink != 0:
		e.link, e.err = e.dir.root.Readlink(e.base)
		return
	case !mode.IsRegular() && !mode.IsDir():
		return
	}
	e.open(e.dir.root.OpenFile, e.base)
}

// open opens the file that info is of, or reads it if it is small. Of a directory it reads the attributes.
func (e *entry) open(open func(string, int, fs.FileMode) (*os.File, error), name string) {
	f, now, err := OpenFile(open, name, os.O_RDONLY, e.info)
	if err != nil {
		e.err = err
		return
	}
	e.info = now
	e.xattrs, e.odd = getXattrs(f)
	if now.IsDir() {
		f.Close()
		return
	}
	size := now.Size()
	if size > smallFile {
		e.file = f
		return
	}
	if size == 0 {
		e.data, e.err = ReadUnsized(f)
		f.Close()
		return
	}
	e.data = getBuffer(size)
	n, err := io.ReadFull(f, e.data)
	f.Close()
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		err = nil
	}
	e.data, e.err = e.data[:n], err
}

// ErrEndless is about a file without a size that has more than [Unsized] bytes.
var ErrEndless = fmt.Errorf("it has no size, and more than %d bytes", Unsized)

// readToEnd reads a file without a size to its end.
func readToEnd(r io.Reader) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, Unsized+1))
	if err == nil && len(data) > Unsized {
		err = ErrEndless
	}
	return data, err
}

func (e *entry) close() {
	if e.file != nil {
		e.file.Close()
	}
	if e.dir != nil {
		e.dir.release()
	}
	putBuffer(e.data)
	e.data = nil
}

// buffers recycles the content of small files: trees have tens of thousands.
var buffers sync.Pool

func getBuffer(size int64) []byte {
	if b, ok := buffers.Get().(*[]byte); ok && int64(cap(*b)) >= size {
		return (*b)[:size]
	}
	return make([]byte, size)
}

func putBuffer(b []byte) {
	if cap(b) > 0 {
		buffers.Put(&b)
	}
}

// write adds an entry to the stream.
func (p *packer) write(e *entry) error {
	if err := context.Cause(p.ctx); err != nil {
		return err
	}
	switch {
	case errors.Is(e.err, fs.ErrNotExist):
		return p.skip(e.name, "it vanished while it was copied")
	case errors.Is(e.err, ErrChanged):
		return p.skip(e.name, ErrChanged.Error())
	case e.err != nil:
		return &fs.PathError{Op: "read", Path: e.name, Err: bare(e.err)}
	}
	if err := p.count(e); err != nil {
		return err
	}
	mode := e.info.Mode()
	hdr := p.header(e.name, e.info)
	for key, v := range e.xattrs {
		if hdr.PAXRecords == nil {
			hdr.PAXRecords = map[string]string{}
		}
		hdr.PAXRecords[recordXattr+key] = v
	}
	for _, key := range e.odd {
		if err := p.skip(e.name, "extended attribute "+key); err != nil {
			return err
		}
	}
	switch {
	case mode.IsDir():
		hdr.Typeflag = tar.TypeDir
		if err := stream(p.tw.WriteHeader(hdr)); err != nil {
			return err
		}
		p.report.Dirs++
	case mode&fs.ModeSymlink != 0:
		if hdr.Typeflag, hdr.Linkname = tar.TypeSymlink, e.link; p.again(e, hdr) {
			hdr.Typeflag = tar.TypeLink
		}
		if err := stream(p.tw.WriteHeader(hdr)); err != nil {
			return err
		}
		p.report.Files++
	case !mode.IsRegular():
		return p.skip(e.name, Special(mode))
	default:
		if err := p.regular(e, hdr); err != nil {
			return err
		}
		p.report.Files++
	}
	p.opts.progress(e.name, &p.report)
	return nil
}

// count counts an entry against the limits.
func (p *packer) count(e *entry) error {
	err := p.tally.entry(e.name)
	if err == nil && e.info.Mode().IsRegular() {
		err = p.tally.content(e.name, max(e.info.Size(), int64(len(e.data))))
	}
	return err
}

func (p *packer) header(name string, info fs.FileInfo) *tar.Header {
	hdr := &tar.Header{Name: name, Mode: ModeBits(info.Mode()), ModTime: info.ModTime(), Format: tar.FormatPAX}
	if !p.began.IsZero() {
		p.complete(hdr, info)
	}
	if hdr.ModTime.Nanosecond() == 0 && len(name) < 100 {
		hdr.Format = tar.FormatUnknown // the shortest one that fits
	}
	return hdr
}

// noDOSTime is what package archive/zip makes of a file without a time.
var noDOSTime = time.Date(1979, time.November, 30, 0, 0, 0, 0, time.UTC)

// complete adds what a file system of package fs leaves out: times, and permissions that its files
// have once they are written. A file system of real files has a Sys, and its permissions are kept.
func (p *packer) complete(hdr *tar.Header, info fs.FileInfo) {
	if hdr.ModTime.IsZero() || hdr.ModTime.Equal(noDOSTime) {
		hdr.ModTime = p.began
	}
	_, archived := info.Sys().(interface{ FileInfo() fs.FileInfo }) // a header of package zip or tar
	switch {
	case info.Sys() != nil && !archived:
	case info.IsDir(): // who may list it may enter it
		hdr.Mode |= 0o700 | hdr.Mode&0o444>>2
	case hdr.Mode == 0:
		hdr.Mode = 0o644
	default:
		hdr.Mode |= 0o200
	}
}

// again reports whether a file is in the stream by another of its names, to which the header then
// links.
func (p *packer) again(e *entry, hdr *tar.Header) bool {
	id, several := Identify(e.info)
	if !several {
		return false
	}
	first, is := p.links[id]
	if is {
		hdr.Linkname = first
	} else {
		p.links[id] = e.name
	}
	return is
}

func (p *packer) regular(e *entry, hdr *tar.Header) error {
	hdr.Typeflag = tar.TypeReg
	if p.again(e, hdr) {
		hdr.Typeflag, hdr.PAXRecords = tar.TypeLink, nil
		return stream(p.tw.WriteHeader(hdr))
	}
	if e.file == nil {
		hdr.Size = int64(len(e.data))
		if err := stream(p.tw.WriteHeader(hdr)); err != nil {
			return err
		}
		p.report.Bytes += hdr.Size
		_, err := p.tw.Write(e.data)
		return stream(err)
	}
	size := e.info.Size()
	pieces := Pieces(e.file, e.info)
	if !Whole(pieces, size) {
		if hdr.PAXRecords == nil {
			hdr.PAXRecords = map[string]string{}
		}
		hdr.PAXRecords[recordSparse] = SparseRecord(size, pieces)
		hdr.Format = tar.FormatPAX
	}
	for _, piece := range pieces {
		hdr.Size += piece.Length
	}
	if err := stream(p.tw.WriteHeader(hdr)); err != nil {
		return err
	}
	return p.content(e.name, hdr.Size, pieces, e.file.ReadAt)
}

// content writes the pieces of a file, which read returns. Where the file has shrunk it
// writes padding, and a note that says so. An archive for programs that know no notes ends there.
func (p *packer) content(name string, size int64, pieces []Piece, read func(part []byte, at int64) (int, error)) error {
	buf := make([]byte, min(bufSize, size))
	shrunk, next := int64(-1), p.report.Bytes+step
	for _, piece := range pieces {
		for at := piece.Offset; at < piece.Offset+piece.Length; {
			if err := context.Cause(p.ctx); err != nil {
				return stream(err) // a note can't interrupt a file's content
			}
			part := buf[:min(int64(len(buf)), piece.Offset+piece.Length-at)]
			n := 0
			if shrunk < 0 {
				var err error
				n, err = read(part, at)
				if err == io.EOF && n < len(part) {
					if shrunk = at + int64(n); p.plain {
						return stream(&fs.PathError{Op: "read", Path: name, Err: ErrChanged})
					}
				} else if err != nil && err != io.EOF {
					return stream(&fs.PathError{Op: "read", Path: name, Err: bare(err)})
				}
			}
			clear(part[n:])
			if _, err := p.tw.Write(part); err != nil {
				return stream(err)
			}
			at += int64(len(part))
			if p.report.Bytes += int64(len(part)); p.report.Bytes > next {
				next += step
				p.opts.progress(name, &p.report)
			}
		}
	}
	if shrunk < 0 {
		return nil
	}
	p.report.Skip(name, "it shrank while it was copied")
	return p.note(noteShrunk, name, strconv.FormatInt(shrunk, 10), 0)
}

// fsys packs an fs.FS, one file after the other: it may not be safe for concurrent use.
func (p *packer) fsys(fsys fs.FS) error {
	return fs.WalkDir(fsys, ".", func(name string, d fs.DirEntry, err error) error {
		if cause := context.Cause(p.ctx); cause != nil {
			return cause
		}
		if !ValidPath(name) { // a sandbox chooses the names of its files
			return &fs.PathError{Op: "read", Path: printable(name, maxPath), Err: fs.ErrInvalid}
		}
		stream := "./" + name
		if name == "." {
			stream = name
		}
		if _, opens := fsys.(AnyNames); !opens && !fs.ValidPath(name) {
			return p.unnameable(stream, d)
		}
		if err != nil {
			if errors.Is(err, fs.ErrNotExist) && name != "." {
				return p.skip(stream, "it vanished while it was copied")
			}
			return err
		}
		return p.fsEntry(fsys, name, stream, d)
	})
}

// unopened handles an error of a file that the file system listed.
func (p *packer) unopened(name, streamName string, d fs.DirEntry, err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return p.skip(streamName, "it vanished while it was copied")
	case errors.Is(err, fs.ErrInvalid) && !fs.ValidPath(name):
		return p.unnameable(streamName, d)
	}
	return err
}

// AnyNames is implemented by a file system that may open files of each [ValidPath].
type AnyNames interface{ AnyNames() }

// ValidPath is [fs.ValidPath], which also accepts names that are not UTF-8.
func ValidPath(name string) bool { return fs.ValidPath(strings.ToValidUTF8(name, "_")) }

// unnameable skips a file, or a directory with all it has, of a name that a file system lists and does not open.
func (p *packer) unnameable(name string, d fs.DirEntry) error {
	err := p.tally.entry(name)
	if err == nil {
		err = p.skip(name, "its name is not UTF-8")
	}
	if err == nil && d.IsDir() {
		err = fs.SkipDir
	}
	return err
}

func (p *packer) fsEntry(fsys fs.FS, name, streamName string, d fs.DirEntry) error {
	info, err := d.Info()
	if errors.Is(err, fs.ErrNotExist) {
		return p.skip(streamName, "it vanished while it was copied")
	}
	if err != nil {
		return err
	}
	if info, err = p.unprivileged(streamName, info); err != nil {
		return err
	}
	e := &entry{name: streamName, info: info}
	switch mode := info.Mode(); {
	case mode&fs.ModeSymlink != 0:
		if e.link, err = fs.ReadLink(fsys, name); err != nil {
			return p.unopened(name, streamName, d, err)
		}
	case mode.IsRegular():
		f, err := fsys.Open(name)
		if err != nil {
			return p.unopened(name, streamName, d, err)
		}
		defer f.Close()
		if p.plain { // a file of a sandbox may have no end
			defer context.AfterFunc(p.ctx, func() { f.Close() })()
		}
		return p.fsFile(e, f)
	}
	return p.write(e)
}

// unprivileged is info without setuid and setgid bits, which it reports: the copy has another owner, whose
// rights they would give away, and nothing says where a file system has them from.
func (p *packer) unprivileged(name string, info fs.FileInfo) (fs.FileInfo, error) {
	bits := PrivilegedBits(ModeBits(info.Mode()))
	if bits == "" || !info.IsDir() && !info.Mode().IsRegular() {
		return info, nil
	}
	return unprivileged{info}, p.skip(name, bits)
}

type unprivileged struct{ fs.FileInfo }

func (u unprivileged) Mode() fs.FileMode { return u.FileInfo.Mode() &^ (fs.ModeSetuid | fs.ModeSetgid) }

func (p *packer) fsFile(e *entry, f fs.File) error {
	if err := p.count(e); err != nil {
		return err
	}
	hdr := p.header(e.name, e.info)
	hdr.Typeflag, hdr.Size = tar.TypeReg, e.info.Size()
	var from io.Reader = f
	if hdr.Size == 0 || p.plain && hdr.Size <= smallFile { // it may have more, or less, as in /proc and /sys
		data, err := p.small(e.name, f, hdr.Size)
		if err != nil {
			return &fs.PathError{Op: "read", Path: e.name, Err: bare(err)}
		}
		from, hdr.Size = bytes.NewReader(data), int64(len(data))
	}
	if err := stream(p.tw.WriteHeader(hdr)); err != nil {
		return err
	}
	err := p.content(e.name, hdr.Size, []Piece{{0, hdr.Size}}, func(part []byte, _ int64) (int, error) {
		return fill(from, part)
	})
	if err != nil {
		return err
	}
	p.report.Files++
	p.opts.progress(e.name, &p.report)
	return nil
}

// small reads a file of at most smallFile bytes, or of one without a size up to [Unsized]. What it has beyond its
// size is left.
func (p *packer) small(name string, f io.Reader, size int64) ([]byte, error) {
	if size > 0 {
		data := make([]byte, size)
		n, err := fill(f, data)
		if err == io.EOF {
			err = nil
		}
		return data[:n], err
	}
	data, err := readToEnd(f)
	if err == nil {
		err = p.tally.content(name, int64(len(data)))
	}
	return data, err
}

// fill reads until b is full or r ends. Other than by [io.ReadFull], io.ErrUnexpectedEOF is an error of r's.
func fill(r io.Reader, b []byte) (n int, err error) {
	for more := 0; n < len(b) && err == nil; n += more {
		more, err = r.Read(b[n:])
	}
	return n, err
}
