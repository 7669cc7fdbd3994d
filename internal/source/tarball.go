package source

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/bzip2"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync/atomic"

	"github.com/klauspost/compress/zstd"

	"github.com/seed-1a2d6d8f/sandbox/internal/archive"
	"github.com/seed-1a2d6d8f/sandbox/internal/errdefs"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/trees"
)

// The defaults, which the root package documents under the same names.
const (
	DefaultTarballBytes   int64 = 8 << 30
	DefaultTarballEntries       = 1 << 16

	// maxRedirects is no more than browsers and curl follow.
	maxRedirects = 10
	// maxZstdWindow is that of zstd --long=27, and the zstd program's own limit.
	maxZstdWindow = 128 << 20
)

// Tarball is an archive, plain or compressed. The root package documents its fields.
type Tarball struct {
	URL, Path  string
	Reader     io.Reader
	Strip      int
	MaxBytes   int64
	MaxEntries int
}

// String returns where the archive is, without the parts of a URL that may be secret: user,
// query and fragment.
func (t Tarball) String() string {
	switch {
	case t.URL != "":
		u, err := url.Parse(t.URL)
		if err != nil {
			return "tarball of a URL that can't be read"
		}
		return "tarball " + displayURL(u)
	case t.Path != "":
		return "tarball " + t.Path
	}
	return "tarball of a reader"
}

// Check implements [Source].
func (t Tarball) Check() (problems []error) {
	bad := func(format string, args ...any) { problems = append(problems, fmt.Errorf("Tarball: "+format, args...)) }
	given := 0
	for _, is := range []bool{t.URL != "", t.Path != "", t.Reader != nil} {
		if is {
			given++
		}
	}
	if given != 1 {
		bad("one of URL, Path and Reader says where it is, and %d do", given)
	}
	if t.URL != "" {
		u, err := url.Parse(t.URL)
		switch {
		case err != nil:
			bad("the URL can't be read") // the error repeats it
		case u.Scheme != "http" && u.Scheme != "https":
			bad("scheme %q: a URL is http or https; a file has a Path", u.Scheme)
		case u.Hostname() == "":
			bad("the URL has no host")
		}
	}
	if t.Path != "" {
		if info, err := os.Stat(t.Path); err != nil {
			bad("%w", err)
		} else if !info.Mode().IsRegular() {
			bad("%s is not a file", t.Path)
		}
	}
	if t.Strip < 0 || t.MaxBytes < 0 || t.MaxEntries < 0 {
		bad("Strip %d, MaxBytes %d, MaxEntries %d: none is negative", t.Strip, t.MaxBytes, t.MaxEntries)
	}
	return problems
}

// Ready implements [Source].
func (t Tarball) Ready() error { return nil }

// Fill implements [Source].
func (t Tarball) Fill(ctx context.Context, to Target) error {
	return t.read(ctx, to.Bounds(), func(ctx context.Context, tree io.Reader, limits archive.Limits) error {
		var report archive.Report
		err := to.Stream(ctx, t.String(), func(w *trees.Writer) (err error) {
			report, err = w.Archive(0, tree, to.Place(), t.Strip, limits)
			return err
		})
		if err == nil {
			to.LeftOut(report)
		}
		return err
	})
}

// read opens the archive for unpack, and explains its errors.
func (t Tarball) read(ctx context.Context, from *Bounds, unpack func(ctx context.Context, tree io.Reader, limits archive.Limits) error) error {
	// Reading ends with this call, even if the caller's reader blocks.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	raw, err := t.open(ctx, from)
	if err != nil {
		return err
	}
	defer raw.Close()
	src := &tracked{r: raw}
	head := bufio.NewReaderSize(src, 256<<10)
	first, err := head.Peek(512)
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("%v: %w", t, err)
	}
	first = bytes.Clone(first)
	tree, err := decompress(head, src)
	if err != nil {
		return t.refused(err, first)
	}
	defer tree.Close()
	limits := archive.Limits{Bytes: cmp.Or(t.MaxBytes, DefaultTarballBytes), Entries: int64(cmp.Or(t.MaxEntries, DefaultTarballEntries))}
	if err := unpack(ctx, tree, limits); err != nil {
		return t.refused(err, first)
	}
	return nil
}

// refused explains the error of an archive.
func (t Tarball) refused(err error, first []byte) error {
	var entry *archive.EntryError
	var limit *archive.LimitError
	var truncated *archive.TruncatedError
	switch {
	case errors.As(err, &limit):
		field := "MaxEntries"
		if limit.What == "bytes" {
			field = "MaxBytes"
		}
		err = errdefs.Classify(errdefs.InvalidArgument, fmt.Errorf("%w: %s of Tarball raises that", err, field))
	case errors.As(err, &entry), errors.As(err, &truncated):
		err = errdefs.Classify(errdefs.InvalidArgument, err)
	case errors.Is(err, archive.ErrFormat):
		what := archive.Sniff(first)
		switch {
		case what == "compressed with bzip2": // which is read
		case strings.HasPrefix(what, "compressed with "):
			err = fmt.Errorf("it is %s: gzip, bzip2 and zstd are read, others have to be decompressed before: %w", what, err)
		case what != "":
			err = fmt.Errorf("it is %s: %w", what, err)
		}
		err = errdefs.Classify(errdefs.InvalidArgument, err)
	}
	return fmt.Errorf("%v: %w", t, err)
}

func (t Tarball) open(ctx context.Context, from *Bounds) (io.ReadCloser, error) {
	switch {
	case t.URL != "":
		return t.fetch(ctx, from)
	case t.Path != "":
		return os.Open(t.Path)
	}
	// A pipe can be closed while a read blocks; the caller's reader can't.
	pr, pw := io.Pipe()
	context.AfterFunc(ctx, func() { pr.CloseWithError(errdefs.Cancelled(ctx)) })
	go func() {
		_, err := io.Copy(pw, t.Reader)
		pw.CloseWithError(err)
	}()
	return pr, nil
}

// fetch gets the URL. Its errors contain neither that URL nor one of a redirect.
func (t Tarball) fetch(ctx context.Context, from *Bounds) (io.ReadCloser, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, t.URL, nil)
	if err != nil {
		return nil, errdefs.Invalid("the URL can't be read")
	}
	if user := req.URL.User; user != nil {
		password, _ := user.Password()
		req.URL.User = nil
		req.SetBasicAuth(user.Username(), password)
	}
	transport := http.DefaultTransport
	idle := func() {}
	if t, is := transport.(*http.Transport); is {
		own := t.Clone()
		own.DisableCompression = true // the archive is decompressed by its content
		transport, idle = from.transport(own), own.CloseIdleConnections
	} else if from != nil {
		return nil, errTransport
	}
	client := &http.Client{Transport: transport, CheckRedirect: func(next *http.Request, via []*http.Request) error {
		switch last := via[len(via)-1].URL; {
		case len(via) > maxRedirects:
			return fmt.Errorf("more than %d redirects", maxRedirects)
		case next.URL.Scheme != "https" && next.URL.Scheme != "http":
			return fmt.Errorf("a redirect to scheme %q", next.URL.Scheme)
		case last.Scheme == "https" && next.URL.Scheme != "https":
			return errors.New("a redirect from https to http")
		}
		return nil
	}}
	resp, err := client.Do(req)
	if err != nil {
		idle()
		if u, ok := errors.AsType[*url.Error](err); ok {
			err = u.Err
		}
		switch {
		case ctx.Err() != nil:
			err = errdefs.Cancelled(ctx)
		case !errors.Is(err, errdefs.InvalidArgument): // not permitted
			err = &errdefs.Remote{Err: err, Text: "the server can't be reached, or its answer is not HTTP"}
		}
		return nil, fmt.Errorf("get %v: %w", t, err)
	}
	if resp.StatusCode != http.StatusOK {
		resp.Body.Close()
		idle()
		return nil, fmt.Errorf("get %v: status %d %s", t, resp.StatusCode, http.StatusText(resp.StatusCode))
	}
	return closing{resp.Body, func() error { err := resp.Body.Close(); idle(); return err }}, nil
}

// closing is a reader with a close function.
type closing struct {
	io.Reader
	close func() error
}

func (c closing) Close() error { return c.close() }

// tracked remembers a read error.
type tracked struct {
	r   io.Reader
	err atomic.Pointer[error]
}

func (o *tracked) Read(p []byte) (int, error) {
	n, err := o.r.Read(p)
	if err != nil && err != io.EOF {
		o.err.Store(&err)
	}
	return n, err
}

// decompress undoes the compression that the first bytes indicate.
func decompress(r *bufio.Reader, src *tracked) (io.ReadCloser, error) {
	head, _ := r.Peek(4)
	switch {
	case bytes.HasPrefix(head, []byte("\x1f\x8b")):
		z, err := gzip.NewReader(r)
		if err != nil {
			return nil, (&decompressor{src: src}).classify(err)
		}
		z.Multistream(false)
		return closing{&decompressor{r: &gzipMembers{r, z}, src: src}, z.Close}, nil
	case bytes.Equal(head, []byte("\x28\xb5\x2f\xfd")), len(head) == 4 && head[0]&0xf0 == 0x50 && bytes.Equal(head[1:], []byte("\x2a\x4d\x18")):
		z, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(maxZstdWindow))
		if err != nil {
			return nil, (&decompressor{src: src}).classify(err)
		}
		return closing{&decompressor{r: z, src: src}, func() error { z.Close(); return nil }}, nil
	}
	if bytes.HasPrefix(head, []byte("BZh")) {
		return io.NopCloser(&decompressor{r: bzip2.NewReader(&bzip2Streams{r: r}), src: src}), nil
	}
	return io.NopCloser(r), nil
}

// gzipMembers reads a series of gzip members. As for gzip, anything else behind one is the end.
type gzipMembers struct {
	r *bufio.Reader
	z *gzip.Reader // of one member
}

func (m *gzipMembers) Read(p []byte) (n int, err error) {
	for n == 0 && err == nil {
		if n, err = m.z.Read(p); err != io.EOF {
			continue
		}
		next, failed := m.r.Peek(10)
		switch {
		case failed != nil && failed != io.EOF:
			return n, failed
		case failed != nil, !bytes.HasPrefix(next, []byte("\x1f\x8b\x08")):
			return n, io.EOF
		}
		err = m.z.Reset(m.r)
		m.z.Multistream(false)
	}
	return n, err
}

// bzip2Streams is a series of bzip2 streams, which end where something else follows one: package bzip2 would report that.
type bzip2Streams struct {
	r      *bufio.Reader
	hi, lo uint64 // the last 16 bytes
}

func (s *bzip2Streams) ReadByte() (byte, error) {
	if s.between() {
		next, err := s.r.Peek(4)
		switch {
		case err != nil && err != io.EOF:
			return 0, err
		case err != nil, !bytes.HasPrefix(next, []byte("BZh")), next[3] < '1', next[3] > '9':
			return 0, io.EOF
		}
	}
	b, err := s.r.ReadByte()
	if err == nil {
		s.hi, s.lo = s.hi<<8|s.lo>>56, s.lo<<8|uint64(b)
	}
	return b, err
}

// between reports whether a stream may have ended. It ends with 48 bits that no block begins with, a checksum of 32 bits, and up to
// 7 bits of padding.
func (s *bzip2Streams) between() bool {
	const end, mask = 0x177245385090, 1<<48 - 1
	for padding := range 8 {
		if (s.hi<<(32-padding)|s.lo>>(32+padding))&mask == end {
			return true
		}
	}
	return false
}

// Read is not used: package bzip2 reads byte by byte.
func (s *bzip2Streams) Read([]byte) (int, error) { return 0, errors.ErrUnsupported }

// decompressor reads decompressed data, and attributes errors to the stream or its
// compression.
type decompressor struct {
	r   io.Reader
	src *tracked
}

func (s *decompressor) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	return n, s.classify(err)
}

func (s *decompressor) classify(err error) error {
	switch {
	case err == nil, err == io.EOF:
		return err
	case s.src.err.Load() != nil:
		return *s.src.err.Load()
	case errors.Is(err, io.ErrUnexpectedEOF) && s.r == nil:
		return &archive.TruncatedError{Where: "before its first entry"}
	case errors.Is(err, io.ErrUnexpectedEOF):
		return err
	}
	return fmt.Errorf("%w: its compression: %w", archive.ErrFormat, err)
}

// displayURL returns a URL without the parts that may be secret.
func displayURL(u *url.URL) string {
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path, RawPath: u.RawPath}).String()
}
