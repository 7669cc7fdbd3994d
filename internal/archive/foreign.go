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

// Limits bound a stream. A field of 0 is unlimited.
type Limits struct {
	Bytes   int64 // of all files together, holes included
	Entries int64 // files and directories, those without an entry of their own included
}

// tally returns a tally of a stream.
func (l Limits) tally() tally {
	return tally{Limits: Limits{cmp.Or(l.Bytes, math.MaxInt64), cmp.Or(l.Entries, math.MaxInt64)}}
}

// stream bounds the bytes of a whole stream.
func (l Limits) stream() int64 {
	return min(l.Bytes, math.MaxInt64/4) + min(l.Entries, math.MaxInt64/4/overhead)*overhead + maxTrailer
}

// names bounds the bytes of names, and of what else is kept of an entry.
func (l Limits) names() int64 {
	return nameBytes + nameShare*min(l.Entries, math.MaxInt64/4/nameShare)
}

// tally counts a stream against its limits.
type tally struct {
	Limits
	entries, bytes, names int64
}

// entry counts an entry, or a directory that has none.
func (t *tally) entry(name string) error {
	if t.entries++; t.entries > t.Entries {
		return &LimitError{name, "entries", t.Limits.Entries}
	}
	return nil
}

// content counts a file's size.
func (t *tally) content(name string, size int64) error {
	if t.bytes += size; t.bytes > t.Bytes || t.bytes < 0 {
		return &LimitError{name, "bytes", t.Limits.Bytes}
	}
	return nil
}

// keep counts bytes that are kept until the end.
func (t *tally) keep(name string, size int) error {
	if t.names += int64(size); t.names > t.Limits.names() {
		return &EntryError{name, fmt.Sprintf("the names and attributes before it have more than %d bytes for each entry that is allowed", nameShare)}
	}
	return nil
}

// LimitError reports an archive beyond its Limits.
type LimitError struct {
	Entry string // the first one beyond the limit
	What  string // "bytes" or "entries"
	Limit int64
}

func (e *LimitError) Error() string {
	return fmt.Sprintf("entry %q: the archive holds more than %d %s", shown(e.Entry), e.Limit, e.What)
}

// TruncatedError reports an archive that ends early. It matches io.ErrUnexpectedEOF.
type TruncatedError struct{ Where string }

func (e *TruncatedError) Error() string        { return "the archive breaks off " + e.Where }
func (e *TruncatedError) Is(target error) bool { return target == io.ErrUnexpectedEOF }

// EntryError reports an invalid entry.
type EntryError struct{ Entry, Reason string }

func (e *EntryError) Error() string { return fmt.Sprintf("entry %q: %s", shown(e.Entry), e.Reason) }

// shown shortens a name for messages.
func shown(name string) string {
	if len(name) > 200 {
		return name[:200] + "…"
	}
	return name
}

// A ForeignEntry is a validated entry: its name and the target of a hard link are within
// the tree, no element of either is a link, and its parent directories came before it.
type ForeignEntry struct {
	*tar.Header
	Name, Link string // clean paths from the tree's top; Link is the target of a hard link
	Replaces   bool   // an earlier entry had this name, and was no directory
	Implied    bool   // a parent directory without an entry of its own so far
}

// FromForeign reads a tar archive that somebody else made and calls take with each entry and
// a reader for its content. strip is the number of leading elements to remove from names, of
// which "." is one, as for tar; entries with no more elements are dropped. Devices are skipped
// and reported, with their paths below below.
//
// An invalid entry ends the call with an error before it is taken: one with .. in its name,
// one below a link in the archive, or one beyond the limits. Absolute names are relative to
// the tree's top. The archive must have an end marker.
func FromForeign(ctx context.Context, r io.Reader, below string, strip int, limits Limits, take func(ForeignEntry, io.Reader) error) (Report, error) {
	f := &foreign{ctx: ctx, strip: strip, tally: limits.tally(), take: take, report: Report{Below: below}, kinds: map[string]byte{".": tar.TypeDir}}
	f.in = &counted{r: r, most: f.tally.stream()}
	err := f.run()
	return f.report, err
}

type foreign struct {
	ctx    context.Context
	in     *counted
	strip  int
	tally  tally // dropped entries count too
	take   func(ForeignEntry, io.Reader) error
	report Report
	kinds  map[string]byte // the type of each entry taken so far
	first  string          // the first entry's name
}

// counted counts the bytes read, and fails with errTooLong after most.
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
	// overhead is the average that an entry may take beside its content: headers, their
	// extensions and padding.
	overhead = 4 << 10
	// maxTrailer bounds the padding after the end marker. Writers usually add 10 KiB.
	maxTrailer = 1 << 20
	endMarker  = 1024 // bytes, all zero
)

func (f *foreign) run() error {
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
				return &TruncatedError{fmt.Sprintf("after entry %q, without an end marker", shown(last))}
			}
			return f.end()
		}
		if err != nil {
			return f.broken(err, last)
		}
		decodeXattrs(hdr)
		last, f.first = hdr.Name, cmp.Or(f.first, hdr.Name)
		if err := f.tally.entry(hdr.Name); err != nil {
			return err
		}
		err = f.entry(tr, hdr)
		if err == nil {
			_, err = io.Copy(io.Discard, tr) // the rest that take did not read
		}
		if err != nil {
			return f.broken(err, last)
		}
	}
}

// xattrEscapes are those of GNU tar, in names that PAX records can't have.
var xattrEscapes = strings.NewReplacer("%3D", "=", "%25", "%")

// decodeXattrs undoes GNU tar's escapes in the names of extended attributes.
func decodeXattrs(hdr *tar.Header) {
	if len(hdr.PAXRecords) == 0 {
		return
	}
	decoded := make(map[string]string, len(hdr.PAXRecords))
	for key, value := range hdr.PAXRecords {
		if name, is := strings.CutPrefix(key, recordXattr); is {
			key = recordXattr + xattrEscapes.Replace(name)
		}
		decoded[key] = value
	}
	hdr.PAXRecords = decoded
}

// broken turns an error of the tar reader into one that names the cause and the place.
func (f *foreign) broken(err error, last string) error {
	var taker *takerError
	switch {
	case errors.As(err, &taker):
		return taker.err
	case errors.Is(err, errTooLong):
		return &LimitError{last, "bytes", f.tally.Bytes}
	case errors.Is(err, io.ErrUnexpectedEOF) && f.in.err != nil && last == "":
		return &TruncatedError{"before its first entry"}
	case errors.Is(err, io.ErrUnexpectedEOF) && last == "":
		return fmt.Errorf("%w: it is not a tar archive: %w", ErrFormat, err)
	case errors.Is(err, io.ErrUnexpectedEOF):
		return &TruncatedError{fmt.Sprintf("at entry %q", shown(last))}
	case f.in.err != nil && errors.Is(err, f.in.err):
		return err // the source failed, not the archive
	case errors.Is(err, tar.ErrHeader) && last == "":
		return fmt.Errorf("%w: it is not a tar archive", ErrFormat)
	case strings.HasPrefix(err.Error(), "archive/tar: "): // package tar does not export them all
		return fmt.Errorf("%w: after entry %q: %w", ErrFormat, shown(last), err)
	}
	return err
}

// takerError is an error of take, not of the archive.
type takerError struct{ err error }

func (e *takerError) Error() string { return e.err.Error() }

// content notes whether reading an entry's content failed, even if take hides it.
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

// deliver calls take with an entry.
func (f *foreign) deliver(e ForeignEntry, r io.Reader) error {
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

// end reads the rest of the stream: checksums of decompressors and HTTP bodies are verified
// at its end.
func (f *foreign) end() error {
	if f.strip > 0 && f.tally.entries > 0 && len(f.kinds) == 1 {
		return &EntryError{f.first, fmt.Sprintf("the archive is empty without the first %d elements of each name", f.strip)}
	}
	n, err := io.Copy(io.Discard, io.LimitReader(f.in, maxTrailer+1))
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return &TruncatedError{"after its last entry"}
	}
	if n > maxTrailer || errors.Is(err, errTooLong) {
		return fmt.Errorf("%w: more than %d bytes after its end", ErrFormat, maxTrailer)
	}
	return err
}

func (f *foreign) entry(tr *tar.Reader, hdr *tar.Header) error {
	// Skipped entries count too: reading over a hole of any size takes time.
	if err := f.tally.content(hdr.Name, hdr.Size); err != nil {
		return err
	}
	if !f.supported(hdr) {
		return nil
	}
	name, err := f.name(hdr.Name, hdr.Name)
	if err == nil && name == "" && hdr.Typeflag != tar.TypeDir {
		f.report.Skip(hdr.Name, "its name has no more elements than are removed")
	}
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
	if hdr.Typeflag == tar.TypeSymlink && hdr.Linkname == "" {
		return &EntryError{hdr.Name, "it is a symbolic link to nothing"}
	}
	if err := f.parents(e); err != nil {
		return err
	}
	switch had, there := f.kinds[name]; {
	case there && had == tar.TypeDir && hdr.Typeflag == tar.TypeDir:
		return f.deliver(e, nil) // for its attributes
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
		kind, ok := f.kinds[e.Link]
		if ok && kind != tar.TypeDir && e.Link == name {
			return nil // it is itself
		}
		if !ok || kind == tar.TypeDir {
			return &EntryError{hdr.Name, fmt.Sprintf("it is a hard link to %q, which is not a file that comes before it in the archive", hdr.Linkname)}
		}
	}
	if err := f.remember(e); err != nil {
		return err
	}
	if hdr.Typeflag == tar.TypeDir {
		f.report.Dirs++
		return f.deliver(e, nil)
	}
	f.report.Files++
	f.report.Bytes += hdr.Size
	return f.deliver(e, tr)
}

// supported reports whether an entry is of a kind to take. Others are skipped, and reported
// if they are files.
func (f *foreign) supported(hdr *tar.Header) bool {
	skip := func(reason string) {
		name, err := f.name(hdr.Name, hdr.Name)
		if err != nil || name == "" {
			name = hdr.Name
		}
		f.report.Skip(name, reason)
	}
	switch hdr.Typeflag {
	case tar.TypeReg:
		if hdr.Size == 0 && strings.HasSuffix(hdr.Name, "/") {
			hdr.Typeflag = tar.TypeDir // as before POSIX, whatever its type
		}
	case tar.TypeDir, tar.TypeSymlink, tar.TypeLink, tar.TypeFifo:
	case tar.TypeGNUSparse, tar.TypeCont:
		hdr.Typeflag = tar.TypeReg
	case typeDumpDir:
		hdr.Typeflag = tar.TypeDir // its content is a list of names
	case tar.TypeXGlobalHeader, typeVolume:
		return false
	case tar.TypeChar, tar.TypeBlock:
		skip(Special(hdr.FileInfo().Mode()))
		return false
	case typeMultiVolume:
		skip("the rest of a file of another volume")
		return false
	case typeSolarisHeader, typeSolarisACL:
		skip(fmt.Sprintf("metadata of type %q", hdr.Typeflag))
		return false
	default: // POSIX: a file
		skip(fmt.Sprintf("its type %q: it is a file here", hdr.Typeflag))
		hdr.Typeflag = tar.TypeReg
	}
	return true
}

// Types of entries that package tar has no names for.
const (
	typeDumpDir       = 'D' // a directory of an incremental archive of GNU tar
	typeMultiVolume   = 'M' // the continuation of a file, of GNU tar
	typeVolume        = 'V' // the label of a volume, of GNU tar
	typeSolarisHeader = 'X' // records for the next entry
	typeSolarisACL    = 'A'
)

// parents delivers the parent directories that had no entry yet.
func (f *foreign) parents(e ForeignEntry) error {
	dir := path.Dir(e.Name)
	kind, there := f.kinds[dir]
	if there && kind == tar.TypeDir {
		return nil
	}
	if there {
		return &EntryError{e.Header.Name, fmt.Sprintf("%q is not a directory in the archive: nothing is written through a link", dir)}
	}
	// Implied directories count too: one long name can imply a thousand.
	if err := f.tally.entry(e.Header.Name); err != nil {
		return err
	}
	implied := ForeignEntry{
		Header: &tar.Header{Typeflag: tar.TypeDir, Name: e.Header.Name, Mode: 0o755, ModTime: time.Now()},
		Name:   dir, Implied: true,
	}
	if err := f.parents(implied); err != nil {
		return err
	}
	if err := f.remember(implied); err != nil {
		return err
	}
	f.report.Dirs++
	return f.deliver(implied, nil)
}

// remember records a taken entry, within a bound on memory.
func (f *foreign) remember(e ForeignEntry) error {
	if e.Replaces {
		f.kinds[e.Name] = e.Typeflag
		return nil
	}
	if err := f.tally.keep(e.Header.Name, len(e.Name)); err != nil {
		return err
	}
	f.kinds[strings.Clone(e.Name)] = e.Typeflag // it may be part of a longer string
	return nil
}

const (
	nameBytes = 1 << 20 // of all names, plus
	nameShare = 256     // for each entry that the limits allow
)

const (
	maxDepth = 1000 // elements of a name
	maxPath  = 4096 // PATH_MAX of Linux
)

// name validates a name of the archive and strips it: "." is the tree itself, "" is a name
// without elements after stripping.
func (f *foreign) name(name, entry string) (string, error) {
	bad := func(reason string) (string, error) { return "", &EntryError{entry, reason} }
	if len(name) > maxPath {
		return bad(fmt.Sprintf("its name has %d bytes", len(name)))
	}
	if strings.IndexByte(name, 0) >= 0 {
		return bad("its name has a NUL byte")
	}
	var parts []string
	strip, last := f.strip, name
	for part := range strings.SplitSeq(name, "/") {
		last = part
		switch {
		case part == "":
			continue
		case part == "..":
			return bad("its name has .. in it, which leads outside")
		case len(part) > 255:
			return bad(fmt.Sprintf("an element of its name has %d bytes", len(part)))
		}
		if strip > 0 {
			strip--
			continue
		}
		if part != "." {
			parts = append(parts, part)
		}
	}
	switch {
	case len(parts) > maxDepth:
		return bad(fmt.Sprintf("it is %d directories deep", len(parts)))
	case len(parts) > 0:
		return strings.Join(parts, "/"), nil
	case strip > 0 || f.strip > 0 && last != "":
		return "", nil
	}
	return ".", nil
}

// Sniff guesses from its first bytes what a stream is that turned out to be no tar archive;
// "" is unknown.
func Sniff(first []byte) string {
	for _, m := range []struct{ magic, what string }{
		{"PK\x03\x04", "a zip archive"}, {"BZh", "compressed with bzip2"}, {"\xfd7zXZ\x00", "compressed with xz"},
		{"7z\xbc\xaf\x27\x1c", "a 7z archive"}, {"LZIP", "compressed with lzip"}, {"\x1f\x9d", "compressed with compress"},
		{"\x5d\x00\x00", "compressed with lzma"}, {"\x89LZO\x00\r\n\x1a\n", "compressed with lzop"}, {"\x04\x22\x4d\x18", "compressed with lz4"},
		{"Rar!\x1a\x07", "a rar archive"},
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
