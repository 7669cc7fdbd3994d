// Package trees writes directories as the stream that the guest's verb copy takes.
package trees

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/archive"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// A Writer sends directories to the verb copy, as the stream of wire.Copy.Stream: what arrives
// is what the verb would have copied itself.
type Writer struct {
	ctx    context.Context
	w      *tar.Writer
	buf    []byte
	links  map[archive.FileID]string // first names of files with several
	layer  bool                      // see SendLayer
	omit   []string                  // names that are not sent, with their job
	Losses wire.Losses               // sockets and devices of directories
}

const (
	// smallFile is read as a whole before any of it is sent, so that one that is being
	// written to can be read again.
	smallFile = 1 << 20
	attempts  = 3
)

// New sends to w.
func New(ctx context.Context, w io.Writer) *Writer {
	return &Writer{ctx: ctx, w: tar.NewWriter(w), buf: make([]byte, smallFile), links: map[archive.FileID]string{}}
}

// Send sends dir as the tree of a job. An error about a file of it is an *fs.PathError
// with the file's path, one about the stream a *StreamError.
func (t *Writer) Send(job int, dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	info, err := root.Stat(".")
	if err != nil {
		return errors.Join(err, root.Close())
	}
	clear(t.links) // no link leads from one tree into another
	return t.dir(root, info, strconv.Itoa(job), dir)
}

// SendLayer is Send for a container's own layer, without the names in omit. What marks that a file of the
// image is gone, or a directory's contents, is sent like files.
func (t *Writer) SendLayer(job int, dir string, omit []string) error {
	t.layer = true
	for _, name := range omit {
		t.omit = append(t.omit, strconv.Itoa(job)+"/"+name)
	}
	defer func() { t.layer, t.omit = false, nil }()
	return t.Send(job, dir)
}

// Archive sends what a tar archive of others holds as the tree of a job, checked entry by
// entry. Of its files' attributes only permissions without setuid and setgid, times and
// the extended attributes of users are taken. Paths in the report are below below.
func (t *Writer) Archive(job int, r io.Reader, below string, strip int, limits archive.Limits) (archive.Report, error) {
	top := strconv.Itoa(job)
	dirs := map[string]*tar.Header{top: {Mode: 0o755, ModTime: time.Now()}}
	order := []string{top}
	if err := t.header(&tar.Header{Typeflag: tar.TypeDir, Name: top + "/", Mode: 0o700}); err != nil {
		return archive.Report{}, err
	}
	lost := archive.Report{Below: below}
	report, err := archive.FromForeign(t.ctx, r, below, strip, limits, func(e archive.ForeignEntry, content io.Reader) error {
		h := &tar.Header{
			Typeflag: e.Typeflag, Name: top + "/" + e.Name, Linkname: e.Linkname, Size: e.Size,
			Mode: e.Mode & 0o1777, ModTime: e.ModTime, PAXRecords: userXattrs(e.PAXRecords),
		}
		if bits := archive.PrivilegedBits(e.Mode); bits != "" && e.Typeflag != tar.TypeLink && e.Typeflag != tar.TypeSymlink {
			lost.Skip(e.Name, bits)
		}
		for key := range e.PAXRecords {
			if name, is := strings.CutPrefix(key, wire.TreeXattr); is {
				if _, kept := h.PAXRecords[key]; !kept {
					lost.Skip(e.Name, "extended attribute "+name)
				}
			}
		}
		if e.Replaces {
			h.PAXRecords[wire.TreeReplace] = "1"
		}
		switch e.Typeflag {
		case tar.TypeDir:
			had := dirs[h.Name] != nil
			dirs[h.Name] = h
			if had {
				return nil
			}
			order = append(order, h.Name)
			return t.header(&tar.Header{Typeflag: tar.TypeDir, Name: h.Name + "/", Mode: 0o700})
		case tar.TypeLink:
			h.Linkname = top + "/" + e.Link
		case tar.TypeReg:
			if err := t.header(h); err != nil {
				return err
			}
			return t.copy(content, h.Size)
		}
		return t.header(h)
	})
	report.Append(lost)
	if err != nil {
		return report, err
	}
	for _, name := range slices.Backward(order) {
		h := dirs[name]
		h.Typeflag, h.Name = tar.TypeDir, name+"/"
		if h.PAXRecords == nil {
			h.PAXRecords = map[string]string{}
		}
		h.PAXRecords[wire.TreeEnd] = "1"
		if err := t.header(h); err != nil {
			return report, err
		}
	}
	return report, nil
}

// copy sends content of a known size. What goes wrong with reading it is not the stream's.
func (t *Writer) copy(r io.Reader, size int64) error {
	for left := size; left > 0; {
		if t.ctx.Err() != nil {
			return t.ctx.Err()
		}
		n, err := r.Read(t.buf[:min(left, int64(len(t.buf)))])
		if n > 0 {
			if err := t.data(t.buf[:n]); err != nil {
				return err
			}
			left -= int64(n)
		}
		if err != nil && left > 0 {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return err
		}
	}
	return nil
}

// userXattrs are those that are no privilege.
func userXattrs(records map[string]string) map[string]string {
	kept := map[string]string{}
	for key, value := range records {
		if name, is := strings.CutPrefix(key, wire.TreeXattr); is && strings.HasPrefix(name, "user.") && !strings.ContainsAny(name, "=\x00") {
			kept[key] = value
		}
	}
	return kept
}

// Close ends the stream.
func (t *Writer) Close() error {
	if err := t.w.Close(); err != nil {
		return &StreamError{err}
	}
	return nil
}

// withPath adds the file to an error, unless it has the path of that or of a file below it.
func withPath(file string, err error) error {
	var stream *StreamError
	var p *fs.PathError
	switch {
	case errors.As(err, &stream), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case errors.As(err, &p) && (p.Path == file || strings.HasPrefix(p.Path, file+string(os.PathSeparator))):
		return err
	case p != nil && errors.Is(err, archive.ErrChanged):
		err = fmt.Errorf("%w: %w", archive.ErrChanged, p.Err)
	case p != nil:
		err = p.Err
	}
	return &fs.PathError{Op: "copy", Path: file, Err: err}
}

// StreamError is about where everything goes, not about what does.
type StreamError struct{ Err error }

func (e *StreamError) Error() string { return e.Err.Error() }
func (e *StreamError) Unwrap() error { return e.Err }

// dropTrusted removes those extended attributes that only privileged processes may see. Of overlayfs'
// own in a layer it keeps what hides or finds files of the image. Where a file was copied up from
// means nothing on another disk.
func (t *Writer) dropTrusted(had map[string]string) map[string]string {
	maps.DeleteFunc(had, func(key, _ string) bool {
		name, trusted := strings.CutPrefix(key, wire.TreeXattr+"trusted.")
		mark, overlay := strings.CutPrefix(name, "overlay.")
		return trusted && !(t.layer && overlay && mark != "origin" && mark != "impure")
	})
	return had
}

// dir sends an open directory, and closes it. Its attributes come after everything in
// it, because that changes its times.
func (t *Writer) dir(root *os.Root, info fs.FileInfo, name, file string) (err error) {
	defer func() {
		err = errors.Join(err, root.Close())
	}()
	self, err := root.Open(".")
	if err != nil {
		return withPath(file, err)
	}
	defer self.Close()
	entries, err := self.ReadDir(-1)
	if err != nil {
		return withPath(file, err)
	}
	had := xattrs(self)
	if err := t.header(&tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: 0o700}); err != nil {
		return err
	}
	for _, e := range entries {
		if t.ctx.Err() != nil {
			return t.ctx.Err()
		}
		sub := file + string(os.PathSeparator) + e.Name()
		if slices.Contains(t.omit, name+"/"+e.Name()) {
			continue
		}
		if err := t.entry(root, e.Name(), name+"/"+e.Name(), sub); err != nil {
			return withPath(sub, err)
		}
	}
	h := attributes(info)
	h.Typeflag, h.Name = tar.TypeDir, name+"/"
	h.PAXRecords = t.dropTrusted(had)
	h.PAXRecords[wire.TreeEnd] = "1"
	return t.header(h)
}

func (t *Writer) header(h *tar.Header) error {
	h.Format = tar.FormatPAX
	if err := t.w.WriteHeader(h); err != nil {
		return &StreamError{err}
	}
	return nil
}

func (t *Writer) data(p []byte) error {
	if _, err := t.w.Write(p); err != nil {
		return &StreamError{err}
	}
	return nil
}

// attributes are what every kind of file has.
func attributes(info fs.FileInfo) *tar.Header {
	h := &tar.Header{Mode: archive.ModeBits(info.Mode()), ModTime: info.ModTime()}
	owner(info, h)
	return h
}

// entry sends one name of a directory.
func (t *Writer) entry(dir *os.Root, base, name, file string) error {
	info, err := dir.Lstat(base)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %w", archive.ErrChanged, err)
	}
	if err != nil {
		return err
	}
	h := attributes(info)
	h.Name = name
	switch kind := info.Mode().Type(); kind {
	case fs.ModeDir:
		sub, err := archive.OpenDir(dir, base, info)
		if err != nil {
			return err
		}
		return t.dir(sub, info, name, file)
	case 0, fs.ModeSymlink, fs.ModeNamedPipe:
		if id, several := archive.Identify(info); several {
			if first, sent := t.links[id]; sent {
				h.Typeflag, h.Linkname = tar.TypeLink, first
				return t.header(h)
			}
			t.links[id] = name
		}
		switch kind {
		case fs.ModeSymlink:
			h.Typeflag = tar.TypeSymlink
			if h.Linkname, err = dir.Readlink(base); err != nil {
				return err
			}
			return t.header(h)
		case fs.ModeNamedPipe:
			h.Typeflag = tar.TypeFifo
			return t.header(h)
		}
		return t.regular(dir, base, info, h)
	}
	if t.layer && isWhiteout(info) {
		h.Typeflag = tar.TypeChar
		return t.header(h)
	}
	top, rel, _ := strings.Cut(name, "/")
	job, err := strconv.Atoi(top)
	if err != nil {
		return err
	}
	t.Losses.Add(job, rel, archive.Special(info.Mode()))
	return nil
}

// regular sends a file as it is at one moment.
func (t *Writer) regular(dir *os.Root, base string, info fs.FileInfo, h *tar.Header) error {
	f, now, err := archive.OpenFile(dir.OpenFile, base, os.O_RDONLY, info)
	if err != nil {
		return err
	}
	defer f.Close()
	for try := 1; ; try++ {
		*h = *attributesOf(now, h)
		h.Typeflag, h.PAXRecords = tar.TypeReg, t.dropTrusted(xattrs(f))
		size := now.Size()
		if size > smallFile {
			return t.large(f, now, h)
		}
		data, err := t.content(f, size)
		if err != nil {
			return err
		}
		after, err := f.Stat()
		if err != nil {
			return err
		}
		n := int64(len(data))
		same := after.Size() == size && after.ModTime().Equal(now.ModTime())
		if grew := n >= size && after.Size() > size; !same && !(grew && try == attempts) {
			if try == attempts {
				return archive.ErrChanged
			}
			now = after
			continue
		}
		pieces := []archive.Piece{{Length: n}}
		if n == size {
			pieces = archive.Pieces(f, now)
		}
		return t.pieces(h, n, pieces, func(p archive.Piece) error { return t.data(data[p.Offset : p.Offset+p.Length]) })
	}
}

// content reads a small file. Those that the kernel makes up have no size, as in /proc, or another, as in /sys.
func (t *Writer) content(f *os.File, size int64) ([]byte, error) {
	if size == 0 {
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			return nil, err
		}
		return archive.ReadUnsized(f)
	}
	n, err := io.ReadFull(io.NewSectionReader(f, 0, size), t.buf[:size])
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		err = nil
	}
	return t.buf[:n], err
}

func attributesOf(info fs.FileInfo, h *tar.Header) *tar.Header {
	n := attributes(info)
	n.Name = h.Name
	return n
}

// large sends a file as it is read. One that only ever grows is sent as long as it was.
func (t *Writer) large(f *os.File, info fs.FileInfo, h *tar.Header) error {
	err := t.pieces(h, info.Size(), archive.Pieces(f, info), func(p archive.Piece) error {
		r := io.NewSectionReader(f, p.Offset, p.Length)
		for left := p.Length; left > 0; {
			if t.ctx.Err() != nil {
				return t.ctx.Err()
			}
			n, err := r.Read(t.buf[:min(left, int64(len(t.buf)))])
			if n == 0 {
				if err == nil || errors.Is(err, io.EOF) {
					err = archive.ErrChanged
				}
				return err
			}
			if err := t.data(t.buf[:n]); err != nil {
				return err
			}
			left -= int64(n)
		}
		return nil
	})
	if err != nil {
		return err
	}
	after, err := f.Stat()
	if err != nil {
		return err
	}
	if after.Size() < info.Size() || after.Size() == info.Size() && !after.ModTime().Equal(info.ModTime()) {
		return archive.ErrChanged
	}
	return nil
}

// pieces sends a header and the parts of a file that are data.
func (t *Writer) pieces(h *tar.Header, size int64, pieces []archive.Piece, send func(archive.Piece) error) error {
	h.Size = size
	if !archive.Whole(pieces, size) {
		h.PAXRecords[wire.TreeSparse] = archive.SparseRecord(size, pieces)
		h.Size = 0
		for _, p := range pieces {
			h.Size += p.Length
		}
	}
	if err := t.header(h); err != nil {
		return err
	}
	for _, p := range pieces {
		if err := send(p); err != nil {
			return err
		}
	}
	return nil
}
