package archive

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"path"
	"strings"
	"time"
)

// Limits bound what an archive of others may hold.
type Limits struct {
	Bytes   int64 // of all files together, holes included
	Entries int64
}

// LimitError says that an archive holds too much.
type LimitError struct {
	Entry string // at which it was seen
	What  string // "bytes" or "entries"
	Limit int64
}

func (e *LimitError) Error() string {
	return fmt.Sprintf("entry %q: the archive holds more than %d %s", shown(e.Entry), e.Limit, e.What)
}

// TruncatedError says that an archive ends before its end. It matches
// io.ErrUnexpectedEOF.
type TruncatedError struct{ Where string }

func (e *TruncatedError) Error() string        { return "the archive breaks off " + e.Where }
func (e *TruncatedError) Is(target error) bool { return target == io.ErrUnexpectedEOF }

// EntryError says which entry of an archive can't be taken.
type EntryError struct{ Entry, Reason string }

func (e *EntryError) Error() string { return fmt.Sprintf("entry %q: %s", shown(e.Entry), e.Reason) }

// shown is a name that people can bear to read.
func shown(name string) string {
	if len(name) > 200 {
		return name[:200] + "…"
	}
	return name
}

// A ForeignEntry is an entry that has been checked: its name and what it is a hard link to
// are below the tree, without a link on the way, and everything above it came before.
type ForeignEntry struct {
	*tar.Header
	Name, Link string // clean, from the tree's top; Link is of a hard link
	Replaces   bool   // an earlier entry of this name, which is no directory
	Implied    bool   // a directory that the archive left out, or has not come to
}

// FromForeign reads a tar archive that somebody else made and calls take with each entry
// that makes a file, which may read the file's content. Strip is how many elements names
// begin with that are not the tree's; entries that consist of them alone are left out.
// What is neither file, directory nor link is left out and reported.
//
// Nothing is taken of an entry that is not as it must be: one with .. in its name, one
// below a link of the archive itself, and whatever goes beyond the limits. Absolute names
// are the tree's. The archive has to come to its own end.
func FromForeign(ctx context.Context, r io.Reader, strip int, limits Limits, take func(ForeignEntry, io.Reader) error) (Report, error) {
	f := &foreign{ctx: ctx, in: &counted{r: r}, strip: strip, limits: limits, take: take, kinds: map[string]byte{".": tar.TypeDir}}
	err := f.run()
	return f.report, err
}

type foreign struct {
	ctx    context.Context
	in     *counted
	strip  int
	limits Limits
	take   func(ForeignEntry, io.Reader) error
	report Report
	kinds  map[string]byte // what was taken under each name
	first  string          // name of an entry
	seen   int64
	bytes  int64
	names  int64 // bytes of the names in kinds
}

// counted counts what was read, and ends when there is more than there may be.
type counted struct {
	r    io.Reader
	n    int64
	most int64
	err  error // of the reader itself
}

var errTooLong = errors.New("too long")

func (c *counted) Read(p []byte) (int, error) {
	if c.n >= c.most {
		return 0, errTooLong
	}
	n, err := c.r.Read(p)
	c.n += int64(n)
	if err != nil && err != io.EOF {
		c.err = err
	}
	return n, err
}

const (
	// overhead is what an entry may take beside its content: headers, their extensions
	// and padding, 4 KiB on average.
	overhead = 4 << 10
	// maxTrailer is what may follow the end of an archive: padding, of which writers make
	// 10 KiB usually.
	maxTrailer = 1 << 20
	endMarker  = 1024 // zeros
)

func (f *foreign) run() error {
	f.in.most = min(f.limits.Bytes, math.MaxInt64/4) + min(f.limits.Entries, math.MaxInt64/4/overhead)*overhead + maxTrailer
	tr := tar.NewReader(f.in)
	last := ""
	for {
		if err := context.Cause(f.ctx); err != nil {
			return err
		}
		began := f.in.n
		hdr, err := tr.Next()
		if err == io.EOF {
			if f.in.n == 0 {
				return fmt.Errorf("%w: it is empty", ErrFormat)
			}
			if f.in.n-began < endMarker {
				return &TruncatedError{fmt.Sprintf("after entry %q, without an end of its own", shown(last))}
			}
			return f.end()
		}
		if err != nil {
			return f.broken(err, last)
		}
		last, f.first = hdr.Name, cmp.Or(f.first, hdr.Name)
		if f.seen++; f.seen > f.limits.Entries {
			return &LimitError{hdr.Name, "entries", f.limits.Entries}
		}
		err = f.entry(tr, hdr)
		if err == nil {
			_, err = io.Copy(io.Discard, tr) // of what was left out
		}
		if err != nil {
			return f.broken(err, last)
		}
	}
}

// broken says what ended the archive.
func (f *foreign) broken(err error, last string) error {
	var taker *takerError
	switch {
	case errors.As(err, &taker):
		return taker.err
	case errors.Is(err, errTooLong):
		return &LimitError{last, "bytes", f.limits.Bytes}
	case errors.Is(err, io.ErrUnexpectedEOF) && f.in.err != nil && last == "":
		return &TruncatedError{"before its first entry"}
	case errors.Is(err, io.ErrUnexpectedEOF) && last == "":
		return fmt.Errorf("%w: it is not a tar archive: %w", ErrFormat, err)
	case errors.Is(err, io.ErrUnexpectedEOF):
		return &TruncatedError{fmt.Sprintf("at entry %q", shown(last))}
	case f.in.err != nil && errors.Is(err, f.in.err):
		return err // not the archive's own doing
	case errors.Is(err, tar.ErrHeader) && last == "":
		return fmt.Errorf("%w: it is not a tar archive", ErrFormat)
	case errors.Is(err, tar.ErrHeader):
		return fmt.Errorf("%w: after entry %q: %w", ErrFormat, shown(last), err)
	}
	return err
}

// takerError is of who takes the entries, and says nothing about the archive.
type takerError struct{ err error }

func (e *takerError) Error() string { return e.err.Error() }

// content tells whether reading it failed.
type content struct {
	r   io.Reader
	err error
}

func (c *content) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	if err != nil && err != io.EOF {
		c.err = err
	}
	return n, err
}

// hand gives an entry away.
func (f *foreign) hand(e ForeignEntry, r io.Reader) error {
	if r == nil {
		if err := f.take(e, nil); err != nil {
			return &takerError{err}
		}
		return nil
	}
	c := &content{r: r}
	if err := f.take(e, c); err != nil && c.err == nil {
		return &takerError{err}
	}
	return c.err
}

// end reads what is left: whoever compresses and sends it checks there that it is whole.
func (f *foreign) end() error {
	if f.strip > 0 && f.seen > 0 && len(f.kinds) == 1 {
		return &EntryError{f.first, fmt.Sprintf("nothing of the archive is left when %d elements of each name are taken off", f.strip)}
	}
	n, err := io.Copy(io.Discard, io.LimitReader(f.in, maxTrailer+1))
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return &TruncatedError{"after its last entry"}
	}
	if n > maxTrailer || errors.Is(err, errTooLong) {
		return fmt.Errorf("%w: it goes on for more than %d bytes after its end", ErrFormat, maxTrailer)
	}
	return err
}

func (f *foreign) entry(tr *tar.Reader, hdr *tar.Header) error {
	// Also of what is left out: a hole of any size is read over, and that takes its time.
	if f.bytes += hdr.Size; f.bytes > f.limits.Bytes || f.bytes < 0 {
		return &LimitError{hdr.Name, "bytes", f.limits.Bytes}
	}
	if hdr.Typeflag == tar.TypeGNUSparse {
		hdr.Typeflag = tar.TypeReg
	}
	switch hdr.Typeflag {
	case tar.TypeReg, tar.TypeDir, tar.TypeSymlink, tar.TypeLink, tar.TypeFifo:
	case tar.TypeXGlobalHeader:
		return nil
	case tar.TypeChar, tar.TypeBlock:
		f.report.Skip(hdr.Name, special(hdr.FileInfo().Mode()))
		return nil
	default:
		f.report.Skip(hdr.Name, fmt.Sprintf("an entry of type %q", hdr.Typeflag))
		return nil
	}
	name, err := f.name(hdr.Name, hdr.Name)
	if err != nil || name == "" {
		return err
	}
	if name == "." {
		if hdr.Typeflag != tar.TypeDir && f.strip == 0 {
			return &EntryError{hdr.Name, "it would replace the tree itself"}
		}
		return nil
	}
	e := ForeignEntry{Header: hdr, Name: name}
	if err := f.above(e); err != nil {
		return err
	}
	switch had, there := f.kinds[name]; {
	case there && had == tar.TypeDir && hdr.Typeflag == tar.TypeDir:
		return f.hand(e, nil) // its attributes, which the archive comes to again
	case there && had == tar.TypeDir:
		return &EntryError{hdr.Name, "it is a directory already"}
	case there && hdr.Typeflag == tar.TypeDir:
		return &EntryError{hdr.Name, "it is there already and no directory"}
	case there:
		e.Replaces = true
	}
	if hdr.Typeflag == tar.TypeLink {
		if e.Link, err = f.name(hdr.Linkname, hdr.Name); err != nil {
			return err
		}
		if kind, ok := f.kinds[e.Link]; !ok || kind == tar.TypeDir || e.Link == name {
			return &EntryError{hdr.Name, fmt.Sprintf("it is a hard link to %q, which is no file of the archive before it", hdr.Linkname)}
		}
	}
	if err := f.keep(e); err != nil {
		return err
	}
	if hdr.Typeflag == tar.TypeDir {
		f.report.Dirs++
		return f.hand(e, nil)
	}
	f.report.Files++
	f.report.Bytes += hdr.Size
	return f.hand(e, tr)
}

// above has the directories that an entry is in.
func (f *foreign) above(e ForeignEntry) error {
	dir := path.Dir(e.Name)
	kind, there := f.kinds[dir]
	if there && kind == tar.TypeDir {
		return nil
	}
	if there {
		return &EntryError{e.Header.Name, fmt.Sprintf("%q is no directory in the archive: nothing is written through a link", dir)}
	}
	// A name may be as deep as it is long, and each level is a directory to make.
	if f.seen++; f.seen > f.limits.Entries {
		return &LimitError{e.Header.Name, "entries", f.limits.Entries}
	}
	implied := ForeignEntry{
		Header: &tar.Header{Typeflag: tar.TypeDir, Name: e.Header.Name, Mode: 0o755, ModTime: time.Now()},
		Name:   dir, Implied: true,
	}
	if err := f.above(implied); err != nil {
		return err
	}
	if err := f.keep(implied); err != nil {
		return err
	}
	f.report.Dirs++
	return f.hand(implied, nil)
}

// keep remembers what was taken, which must not take all memory.
func (f *foreign) keep(e ForeignEntry) error {
	if e.Replaces {
		f.kinds[e.Name] = e.Typeflag
		return nil
	}
	if f.names += int64(len(e.Name)); f.names > nameBytes+nameShare*min(f.limits.Entries, math.MaxInt64/4/nameShare) {
		return &EntryError{e.Header.Name, fmt.Sprintf("the names of the archive are longer than %d bytes on average", nameShare)}
	}
	f.kinds[e.Name] = e.Typeflag
	return nil
}

const (
	nameBytes = 1 << 20 // whatever there is
	nameShare = 256     // and for each entry that there may be
)

const (
	maxDepth = 1000 // directories that a name leads through
	maxPath  = 4096 // Linux' PATH_MAX
)

// name makes a name of an archive one of the tree: "" for what is not of it, "." for the
// tree itself.
func (f *foreign) name(name, entry string) (string, error) {
	bad := func(reason string) (string, error) { return "", &EntryError{entry, reason} }
	if len(name) > maxPath {
		return bad(fmt.Sprintf("a name of %d bytes", len(name)))
	}
	if strings.IndexByte(name, 0) >= 0 {
		return bad("a name with a NUL byte")
	}
	var parts []string
	for part := range strings.SplitSeq(name, "/") {
		switch {
		case part == "" || part == ".":
			continue
		case part == "..":
			return bad("it is outside of the archive: its name has .. in it")
		case len(part) > 255:
			return bad(fmt.Sprintf("a file's name of %d bytes", len(part)))
		}
		parts = append(parts, part)
	}
	switch {
	case len(parts) > maxDepth:
		return bad(fmt.Sprintf("it is %d directories deep", len(parts)))
	case len(parts) == 0:
		return ".", nil
	case len(parts) <= f.strip:
		return "", nil
	}
	return strings.Join(parts[f.strip:], "/"), nil
}

// Sniff says what a stream that should be a tar archive is instead, as far as its first
// bytes tell; "" when they don't.
func Sniff(first []byte) string {
	for _, m := range []struct{ magic, what string }{
		{"PK\x03\x04", "a zip archive"}, {"BZh", "compressed with bzip2"}, {"\xfd7zXZ\x00", "compressed with xz"},
		{"7z\xbc\xaf\x27\x1c", "a 7z archive"}, {"LZIP", "compressed with lzip"}, {"\x1f\x9d", "compressed with compress"},
	} {
		if bytes.HasPrefix(first, []byte(m.magic)) {
			return m.what
		}
	}
	text := bytes.ToLower(bytes.TrimSpace(bytes.TrimPrefix(first, []byte("\xef\xbb\xbf"))))
	for _, tag := range []string{"<!doctype html", "<html", "<head", "<body"} {
		if bytes.HasPrefix(text, []byte(tag)) {
			return "an HTML page"
		}
	}
	switch {
	case bytes.HasPrefix(text, []byte("<?xml")), bytes.HasPrefix(text, []byte("<error")):
		return "an XML document"
	case bytes.HasPrefix(text, []byte("{")), bytes.HasPrefix(text, []byte("[")):
		return "a JSON document"
	}
	return ""
}
