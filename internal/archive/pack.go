package archive

import (
	"archive/tar"
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
)

const (
	smallFile = 128 << 10 // read ahead of the stream
	readers   = 4         // who does that
	ahead     = 64        // entries
	bufSize   = 256 << 10
	step      = 8 << 20 // bytes between reports of progress within a file
)

// Pack writes the file or tree at source to w as a stream that Unpack reads. A link
// at source itself is followed, no other is. A file that vanishes meanwhile is
// skipped, one that shrinks is carried as far as it goes, one that grows as it was.
func Pack(ctx context.Context, w io.Writer, source string, opts Options) (Report, error) {
	p := newPacker(ctx, w, opts)
	err := p.source(source)
	return p.finish(err)
}

// PackFS is Pack of a file system of package fs, whose links stay links when it knows
// them (fs.ReadLinkFS).
func PackFS(ctx context.Context, w io.Writer, fsys fs.FS, opts Options) (Report, error) {
	p := newPacker(ctx, w, opts)
	err := p.fsys(fsys)
	return p.finish(err)
}

type packer struct {
	ctx    context.Context
	opts   Options
	buf    *bufio.Writer
	tw     *tar.Writer
	report Report
	links  map[fileID]string // of files with several names
}

// fileID identifies a file among those of one tree.
type fileID struct{ dev, ino uint64 }

func newPacker(ctx context.Context, w io.Writer, opts Options) *packer {
	p := &packer{ctx: ctx, opts: opts, buf: bufio.NewWriterSize(w, bufSize), links: map[fileID]string{}}
	p.tw = tar.NewWriter(p.buf)
	return p
}

// finish ends the stream, saying that it is whole or why it is not.
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

// streamError is of the stream, not of what it carries.
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
	root, base, err := openParent(source)
	if err != nil {
		return err
	}
	d := newDirRef(root)
	defer d.release()
	e := &entry{dir: d, base: base, name: "."}
	e.load()
	return p.write(e)
}

// An entry is a file of the tree, looked at ahead of its turn.
type entry struct {
	dir  *dirRef
	base string
	name string // in the stream

	loaded chan struct{}
	info   fs.FileInfo
	link   string
	file   *os.File // of what is too large to be read ahead
	data   []byte
	xattrs map[string]string
	odd    []string // names of extended attributes that are not carried
	err    error
}

// dirRef is an open directory that several entries use.
type dirRef struct {
	root *os.Root
	mu   sync.Mutex
	refs int
}

func newDirRef(root *os.Root) *dirRef { return &dirRef{root: root, refs: 1} }

func (d *dirRef) hold() *dirRef {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.refs++
	return d
}

func (d *dirRef) release() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.refs--; d.refs == 0 {
		d.root.Close()
	}
}

// tree packs a directory, which it closes: one goroutine walks, some read, and the
// caller's writes in the order of the walk.
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

func (w *walker) emit(dir *dirRef, base, name string) error {
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

func (w *walker) walk(dir *dirRef, prefix string) error {
	f, err := dir.root.Open(".")
	if err != nil {
		return &fs.PathError{Op: "open", Path: "./" + prefix, Err: bare(err)}
	}
	for {
		list, err := f.ReadDir(1024)
		slices.SortFunc(list, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
		for _, d := range list {
			name := prefix + d.Name()
			if err := w.emit(dir, d.Name(), "./"+name); err != nil {
				f.Close()
				return err
			}
			if !d.IsDir() {
				continue
			}
			sub, err := openDir(dir.root, d.Name())
			if err != nil {
				if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errSwapped) {
					continue // load says what became of it
				}
				f.Close()
				return &fs.PathError{Op: "open", Path: "./" + name, Err: bare(err)}
			}
			ref := newDirRef(sub)
			err = w.walk(ref, name+"/")
			ref.release()
			if err != nil {
				f.Close()
				return err
			}
		}
		if err == io.EOF {
			return f.Close()
		}
		if err != nil {
			f.Close()
			return &fs.PathError{Op: "readdir", Path: "./" + prefix, Err: bare(err)}
		}
	}
}

var errSwapped = errors.New("it was replaced while it was copied")

// openDir opens a directory and not what a link in its place leads to.
func openDir(root *os.Root, name string) (*os.Root, error) {
	was, err := root.Lstat(name)
	if err != nil {
		return nil, err
	}
	sub, err := root.OpenRoot(name)
	if err != nil {
		return nil, err
	}
	now, err := sub.Stat(".")
	if err != nil || !os.SameFile(was, now) {
		sub.Close()
		return nil, errors.Join(errSwapped, err)
	}
	return sub, nil
}

// bare takes off the path that package os put around an error: ours says more.
func bare(err error) error {
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		return p.Err
	}
	return err
}

// load looks at the entry and reads it if it is small.
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
	f, err := e.dir.root.OpenFile(e.base, os.O_RDONLY|openNonblock, 0)
	if err != nil {
		e.err = err
		return
	}
	now, err := f.Stat()
	if err == nil && !os.SameFile(e.info, now) {
		err = errSwapped
	}
	if err != nil {
		f.Close()
		e.err = err
		return
	}
	e.info = now
	e.xattrs, e.odd = getXattrs(f)
	if mode.IsDir() {
		f.Close()
		return
	}
	size := now.Size()
	if size > smallFile {
		e.file = f
		return
	}
	e.data = buffer(size)
	n, err := io.ReadFull(f, e.data)
	f.Close()
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		err = nil
	}
	e.data, e.err = e.data[:n], err
}

func (e *entry) close() {
	if e.file != nil {
		e.file.Close()
	}
	e.dir.release()
	done(e.data)
	e.data = nil
}

// small has buffers of small files that are done with: of ten thousand files each one
// would be the collector's.
var small sync.Pool

func buffer(size int64) []byte {
	if b, ok := small.Get().(*[]byte); ok && int64(cap(*b)) >= size {
		return (*b)[:size]
	}
	return make([]byte, size)
}

func done(b []byte) {
	if cap(b) > 0 {
		small.Put(&b)
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
	case errors.Is(e.err, errSwapped):
		return p.skip(e.name, errSwapped.Error())
	case e.err != nil:
		return &fs.PathError{Op: "read", Path: e.name, Err: bare(e.err)}
	}
	mode := e.info.Mode()
	hdr := header(e.name, e.info)
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
		hdr.Typeflag, hdr.Linkname = tar.TypeSymlink, e.link
		if err := stream(p.tw.WriteHeader(hdr)); err != nil {
			return err
		}
		p.report.Files++
	case !mode.IsRegular():
		return p.skip(e.name, special(mode))
	default:
		if err := p.regular(e, hdr); err != nil {
			return err
		}
		p.report.Files++
	}
	p.opts.progress(e.name, &p.report)
	return nil
}

func header(name string, info fs.FileInfo) *tar.Header {
	mode := info.Mode()
	hdr := &tar.Header{Name: name, Mode: int64(mode.Perm()), ModTime: info.ModTime(), Format: tar.FormatPAX}
	if hdr.ModTime.Nanosecond() == 0 && len(name) < 100 {
		hdr.Format = tar.FormatUnknown // the shortest that holds it
	}
	if mode&fs.ModeSetuid != 0 {
		hdr.Mode |= 0o4000
	}
	if mode&fs.ModeSetgid != 0 {
		hdr.Mode |= 0o2000
	}
	if mode&fs.ModeSticky != 0 {
		hdr.Mode |= 0o1000
	}
	return hdr
}

func (p *packer) regular(e *entry, hdr *tar.Header) error {
	hdr.Typeflag = tar.TypeReg
	if id, several := identify(e.info); several {
		if first, ok := p.links[id]; ok {
			hdr.Typeflag, hdr.Linkname, hdr.PAXRecords = tar.TypeLink, first, nil
			return stream(p.tw.WriteHeader(hdr))
		}
		p.links[id] = e.name
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
	pieces := []piece{{0, size}}
	if holes, ok := dataPieces(e.file, e.info); ok {
		pieces = holes
		if hdr.PAXRecords == nil {
			hdr.PAXRecords = map[string]string{}
		}
		hdr.PAXRecords[recordSparse] = sparseRecord(size, pieces)
		hdr.Format = tar.FormatPAX
	}
	for _, piece := range pieces {
		hdr.Size += piece.length
	}
	if err := stream(p.tw.WriteHeader(hdr)); err != nil {
		return err
	}
	return p.content(e, pieces)
}

// content copies the pieces of a large file. What is no longer there is padded, and
// said.
func (p *packer) content(e *entry, pieces []piece) error {
	buf := make([]byte, bufSize)
	shrunk, next := int64(-1), p.report.Bytes+step
	for _, piece := range pieces {
		for at := piece.offset; at < piece.offset+piece.length; {
			if err := context.Cause(p.ctx); err != nil {
				return stream(err) // in the middle of a file nothing more can be said
			}
			part := buf[:min(int64(len(buf)), piece.offset+piece.length-at)]
			n := 0
			if shrunk < 0 {
				var err error
				n, err = e.file.ReadAt(part, at)
				if err == io.EOF && n < len(part) {
					shrunk = at + int64(n)
				} else if err != nil && err != io.EOF {
					return stream(&fs.PathError{Op: "read", Path: e.name, Err: bare(err)})
				}
			}
			clear(part[n:])
			if _, err := p.tw.Write(part); err != nil {
				return stream(err)
			}
			at += int64(len(part))
			if p.report.Bytes += int64(len(part)); p.report.Bytes > next {
				next += step
				p.opts.progress(e.name, &p.report)
			}
		}
	}
	if shrunk < 0 {
		return nil
	}
	p.report.Skip(e.name, "it shrank while it was copied")
	return p.note(noteShrunk, e.name, strconv.FormatInt(shrunk, 10), 0)
}

// fsys packs a file system of package fs, one file after the other: nothing is known
// of what it can do at once.
func (p *packer) fsys(fsys fs.FS) error {
	return fs.WalkDir(fsys, ".", func(name string, d fs.DirEntry, err error) error {
		if cause := context.Cause(p.ctx); cause != nil {
			return cause
		}
		stream := "./" + name
		if name == "." {
			stream = name
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

func (p *packer) fsEntry(fsys fs.FS, name, streamName string, d fs.DirEntry) error {
	info, err := d.Info()
	if errors.Is(err, fs.ErrNotExist) {
		return p.skip(streamName, "it vanished while it was copied")
	}
	if err != nil {
		return err
	}
	e := &entry{name: streamName, info: info}
	switch mode := info.Mode(); {
	case mode&fs.ModeSymlink != 0:
		if e.link, err = fs.ReadLink(fsys, name); err != nil {
			return err
		}
	case mode.IsRegular():
		f, err := fsys.Open(name)
		if errors.Is(err, fs.ErrNotExist) {
			return p.skip(streamName, "it vanished while it was copied")
		}
		if err != nil {
			return err
		}
		defer f.Close()
		return p.fsFile(e, f)
	}
	return p.write(e)
}

func (p *packer) fsFile(e *entry, f fs.File) error {
	hdr := header(e.name, e.info)
	if hdr.Mode == 0 {
		hdr.Mode = 0o644 // a file system that knows no permissions
	}
	hdr.Typeflag, hdr.Size = tar.TypeReg, e.info.Size()
	if err := stream(p.tw.WriteHeader(hdr)); err != nil {
		return err
	}
	buf := make([]byte, min(bufSize, max(hdr.Size, 1)))
	left, next := hdr.Size, p.report.Bytes+step
	for left > 0 {
		n, err := f.Read(buf[:min(int64(len(buf)), left)])
		if n > 0 {
			if _, err := p.tw.Write(buf[:n]); err != nil {
				return stream(err)
			}
			left -= int64(n)
			if p.report.Bytes += int64(n); p.report.Bytes > next {
				next += step
				p.opts.progress(e.name, &p.report)
			}
		}
		if cause := context.Cause(p.ctx); cause != nil {
			return stream(cause)
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return stream(err)
		}
	}
	if left > 0 {
		if _, err := io.CopyN(p.tw, zeros{}, left); err != nil {
			return stream(err)
		}
		p.report.Skip(e.name, "it shrank while it was copied")
		if err := p.note(noteShrunk, e.name, strconv.FormatInt(hdr.Size-left, 10), 0); err != nil {
			return err
		}
	}
	p.report.Files++
	p.opts.progress(e.name, &p.report)
	return nil
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

// piece is a part of a file that is data and not a hole.
type piece struct{ offset, length int64 }

// maxPieces bounds the list of them; a file with more is carried whole.
const maxPieces = 4096

func sparseRecord(size int64, pieces []piece) string {
	b := strconv.AppendInt(nil, size, 10)
	for _, p := range pieces {
		b = append(b, ';')
		b = strconv.AppendInt(b, p.offset, 10)
		b = append(b, ',')
		b = strconv.AppendInt(b, p.length, 10)
	}
	return string(b)
}

// parseSparse reads the record; the pieces are in order, within the file, and stored
// bytes together.
func parseSparse(record string, stored int64) (size int64, pieces []piece, err error) {
	bad := fmt.Errorf("%w: list of holes", ErrFormat)
	list := strings.Split(record, ";")
	if len(list) > maxPieces+1 {
		return 0, nil, bad
	}
	if size, err = strconv.ParseInt(list[0], 10, 64); err != nil || size < 0 {
		return 0, nil, bad
	}
	end, sum := int64(0), int64(0)
	for _, text := range list[1:] {
		a, b, ok := strings.Cut(text, ",")
		offset, err1 := strconv.ParseInt(a, 10, 64)
		length, err2 := strconv.ParseInt(b, 10, 64)
		if !ok || err1 != nil || err2 != nil || offset < end || length < 0 || length > size || offset > size-length {
			return 0, nil, bad
		}
		end = offset + length
		sum += length
		pieces = append(pieces, piece{offset, length})
	}
	if sum != stored {
		return 0, nil, bad
	}
	return size, pieces, nil
}

// within joins a directory of the stream and a name.
func within(dir, name string) string { return path.Join(dir, name) }
