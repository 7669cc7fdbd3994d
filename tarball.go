package sandbox

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync/atomic"

	"github.com/klauspost/compress/zstd"

	"github.com/seed-1a2d6d8f/sandbox/internal/archive"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/trees"
)

const (
	// DefaultTarballBytes is how large the files of a [Tarball] may be together unless it
	// says otherwise: 8 GiB, which every source tree we know of fits into and most disks
	// survive.
	DefaultTarballBytes int64 = 8 << 30
	// DefaultTarballEntries is how many entries a [Tarball] may have unless it says
	// otherwise.
	DefaultTarballEntries = 1 << 16

	// maxRedirects is what browsers and curl bear, too, or less.
	maxRedirects = 10
	// maxZstdWindow is what zstd's own --long=27 makes, and refuses to go beyond.
	maxZstdWindow = 128 << 20
)

// Tarball is a [Source]: a tar archive, plain or compressed with gzip or zstd, which its
// first bytes tell. One of URL, Path and Reader says where it is.
//
// Everything is checked on its way, before it gets near the sandbox. An entry with .. in
// its name, one that would be written through a link of the archive, one beyond the
// limits, a stream that breaks off, and what is no archive at all, such as a page that
// says why there is none: each fails the call with [ErrInvalidArgument] and is named.
// Absolute names are below the workspace. Of several entries with one name the last one
// counts. Devices are left out, as [Progress] says.
//
// Files belong to the sandbox's user, whoever they belong to in the archive. Permissions
// without setuid and setgid, times, links and extended attributes that users make are
// kept; holes become zeros.
type Tarball struct {
	// URL is http or https, fetched by this program with its proxies. A user and password
	// in it are told to its host alone. Up to 10 redirects are followed, none from https
	// to http. Only the context bounds how long it takes.
	URL string
	// Path is a file of this machine.
	Path string
	// Reader is read once, to its end, and not closed. A read that never returns outlives
	// a call whose context ends.
	Reader io.Reader
	// Strip is how many leading elements are taken off each name, as with tar's own
	// --strip-components; an archive that a forge makes of a repository has 1 to take off.
	// Entries that have no more elements than that are left out.
	Strip int
	// MaxBytes is how large all files may be together, holes included. 0 is
	// [DefaultTarballBytes].
	MaxBytes int64
	// MaxEntries is how many entries there may be, and directories that the archive leaves
	// out. 0 is [DefaultTarballEntries].
	MaxEntries int
}

// String says where the archive is, without what is secret in a URL: user, query and
// fragment.
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

// GoString is String: a URL may have secrets.
func (t Tarball) GoString() string { return t.String() }

// LogValue is String.
func (t Tarball) LogValue() slog.Value { return slog.StringValue(t.String()) }

// displayURL is a URL without what may be secret.
func displayURL(u *url.URL) string {
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path, RawPath: u.RawPath}).String()
}

func (t Tarball) check(*settings) (problems []error) {
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
			bad("%s is no file", t.Path)
		}
	}
	if t.Strip < 0 || t.MaxBytes < 0 || t.MaxEntries < 0 {
		bad("Strip %d, MaxBytes %d, MaxEntries %d: none is negative", t.Strip, t.MaxBytes, t.MaxEntries)
	}
	return problems
}

func (t Tarball) prepare(context.Context, *build) error { return nil }

func (t Tarball) fill(ctx context.Context, f *filler) error {
	return t.read(ctx, func(ctx context.Context, tree io.Reader, limits archive.Limits) error {
		var report archive.Report
		err := f.send(ctx, []fill{f.workspace(t.String())}, func(to *trees.Writer) (err error) {
			report, err = to.Archive(0, tree, t.Strip, limits)
			return err
		})
		if err == nil {
			f.leftOut(report)
		}
		return err
	})
}

// read opens the archive for unpack, and says what is wrong with it.
func (t Tarball) read(ctx context.Context, unpack func(ctx context.Context, tree io.Reader, limits archive.Limits) error) error {
	// What reads ends with the call, also where the reader does not.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	raw, err := t.open(ctx)
	if err != nil {
		return err
	}
	defer raw.Close()
	src := &origin{r: raw}
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

// refused says what is wrong with an archive.
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
		err = classify(ErrInvalidArgument, fmt.Errorf("%w: %s of Tarball raises that", err, field))
	case errors.As(err, &entry), errors.As(err, &truncated):
		err = classify(ErrInvalidArgument, err)
	case errors.Is(err, archive.ErrFormat):
		if what := archive.Sniff(first); what != "" {
			err = fmt.Errorf("it is %s: %w", what, err)
		}
		err = classify(ErrInvalidArgument, err)
	}
	return fmt.Errorf("%v: %w", t, err)
}

func (t Tarball) open(ctx context.Context) (io.ReadCloser, error) {
	switch {
	case t.URL != "":
		return t.fetch(ctx)
	case t.Path != "":
		return os.Open(t.Path)
	}
	// Who reads from us can be told to stop; the caller's reader can't.
	pr, pw := io.Pipe()
	context.AfterFunc(ctx, func() { pr.CloseWithError(cancelled(ctx)) })
	go func() {
		_, err := io.Copy(pw, t.Reader)
		pw.CloseWithError(err)
	}()
	return pr, nil
}

// fetch gets a URL. No error repeats it, or one that it leads to.
func (t Tarball) fetch(ctx context.Context) (io.ReadCloser, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, t.URL, nil)
	if err != nil {
		return nil, invalid("the URL can't be read")
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
		own.DisableCompression = true // the archive's own is ours to undo
		transport, idle = own, own.CloseIdleConnections
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
		if ctx.Err() != nil {
			err = cancelled(ctx)
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

// closing is a reader and what ends it.
type closing struct {
	io.Reader
	close func() error
}

func (c closing) Close() error { return c.close() }

// origin knows whether it failed itself.
type origin struct {
	r   io.Reader
	err atomic.Pointer[error]
}

func (o *origin) Read(p []byte) (int, error) {
	n, err := o.r.Read(p)
	if err != nil && err != io.EOF {
		o.err.Store(&err)
	}
	return n, err
}

// decompress undoes the compression that the first bytes tell of.
func decompress(r *bufio.Reader, src *origin) (io.ReadCloser, error) {
	head, _ := r.Peek(4)
	switch {
	case bytes.HasPrefix(head, []byte("\x1f\x8b")):
		z, err := gzip.NewReader(r)
		if err != nil {
			return nil, (&squeezed{src: src}).blame(err)
		}
		return closing{&squeezed{r: z, src: src}, z.Close}, nil
	case bytes.Equal(head, []byte("\x28\xb5\x2f\xfd")), len(head) == 4 && head[0]&0xf0 == 0x50 && bytes.Equal(head[1:], []byte("\x2a\x4d\x18")):
		z, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(maxZstdWindow))
		if err != nil {
			return nil, (&squeezed{src: src}).blame(err)
		}
		return closing{&squeezed{r: z, src: src}, func() error { z.Close(); return nil }}, nil
	}
	return io.NopCloser(r), nil
}

// squeezed reads what was compressed, and says whose fault an error is.
type squeezed struct {
	r     io.Reader
	src   *origin
	began bool
}

func (s *squeezed) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	s.began = s.began || n > 0
	return n, s.blame(err)
}

func (s *squeezed) blame(err error) error {
	switch {
	case err == nil, err == io.EOF:
		return err
	case s.src.err.Load() != nil:
		return *s.src.err.Load()
	case errors.Is(err, io.ErrUnexpectedEOF) && s.r == nil:
		return &archive.TruncatedError{Where: "before its first entry"}
	case errors.Is(err, io.ErrUnexpectedEOF):
		return err
	case s.began && errors.Is(err, gzip.ErrHeader):
		return io.EOF // what was compressed is whole; others call it trailing garbage
	}
	return fmt.Errorf("%w: its compression: %w", archive.ErrFormat, err)
}

// leftOut tells of what a copy of an archive left out.
func (f *filler) leftOut(report archive.Report) {
	if len(report.Skipped) == 0 {
		return
	}
	var names []string
	for i, s := range report.Skipped {
		if i == 10 {
			names = append(names, "…")
			break
		}
		names = append(names, fmt.Sprintf("%q (%s)", s.Path, s.Reason))
	}
	text := fmt.Sprintf("left out %d entries: %s", int64(len(report.Skipped))+report.More, strings.Join(names, ", "))
	f.c.log.Warn("not everything was copied", "sandbox", f.rec.Name, "what", text)
	f.report.report(Progress{Step: f.step, Text: text, Current: report.Bytes, Files: report.Files})
}
