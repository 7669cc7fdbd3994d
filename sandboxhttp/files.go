package sandboxhttp

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"mime"
	"net/http"
	"os"
	"path"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/seed-1a2d6d8f/sandbox"
)

// DefaultMaxUpload, 8 GiB, bounds a file or an archive that is written without [WithMaxUpload].
const DefaultMaxUpload = sandbox.DefaultCopyBytes

// WithMaxUpload bounds the file or the archive that a request writes, in bytes. Longer ones get status
// 413; the sandbox keeps the file that it had, and of an archive what was written so far. Default [DefaultMaxUpload].
func WithMaxUpload(bytes int64) Option {
	return func(c *config) { c.maxUpload = bytes }
}

// A fileSystem is what *sandbox.Sandbox and *sandbox.Files have in common, as far as it is served.
type fileSystem interface {
	Open(ctx context.Context, name string) (*sandbox.File, error)
	WriteFrom(ctx context.Context, name string, r io.Reader, perm fs.FileMode) (int64, error)
	ReadDir(ctx context.Context, name string) ([]fs.DirEntry, error)
	Lstat(ctx context.Context, name string) (fs.FileInfo, error)
	Readlink(ctx context.Context, name string) (string, error)
	MkdirAll(ctx context.Context, name string, perm fs.FileMode) error
	Chmod(ctx context.Context, name string, mode fs.FileMode) error
	Remove(ctx context.Context, name string) error
	RemoveAll(ctx context.Context, name string) error
	Rename(ctx context.Context, from, to string) error
	CopyInTar(ctx context.Context, r io.Reader, inside string, o sandbox.CopyOptions) (sandbox.CopyReport, error)
	CopyOutTar(ctx context.Context, inside string, w io.Writer, o sandbox.CopyOptions) (sandbox.CopyReport, error)
}

// filesOf returns the files of a sandbox as the user of a request, and the path it names.
func filesOf(r *http.Request, sb *handle) (files fileSystem, name string, err error) {
	q := r.URL.Query()
	name = q.Get("path")
	if name == "" {
		return nil, "", invalid("path is missing")
	}
	user := q.Get("user")
	if user == "" {
		return sb.Sandbox, name, nil
	}
	return sb.FilesAs(user), name, nil
}

// useFiles calls fn with the files of the sandbox of a request.
func (h *handler) useFiles(r *http.Request, fn func(files fileSystem, name string) error) error {
	sb, err := h.handles.get(r.Context(), r.PathValue("name"))
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		err = readable(err)
	}
	if err != nil {
		return err
	}
	defer sb.done()
	files, name, err := filesOf(r, sb)
	if err != nil {
		return err
	}
	return sb.checked(fn(files, name))
}

func (h *handler) readFile(w http.ResponseWriter, r *http.Request) error {
	return h.useFiles(r, func(files fileSystem, name string) error {
		f, err := files.Open(r.Context(), name)
		if err != nil {
			return err
		}
		defer f.Close()
		// Close ends a read that blocks.
		defer context.AfterFunc(r.Context(), func() { f.Close() })()
		info, err := f.Stat()
		if err != nil {
			return err
		}
		if !info.Mode().IsRegular() {
			return invalid("%q is not a regular file", name)
		}
		header := w.Header()
		// Whatever a sandbox wrote, no browser shows it as a page of this server.
		header.Set("Content-Type", "application/octet-stream")
		header.Set("Content-Disposition", mime.FormatMediaType("attachment", map[string]string{"filename": path.Base(name)}))
		header.Set("Content-Security-Policy", "sandbox")
		header.Set("Cache-Control", "no-cache")
		protect(header)
		out := &patient{ResponseWriter: w, control: http.NewResponseController(w)}
		defer out.control.SetWriteDeadline(time.Time{})
		return serveFile(out, r, f, info)
	})
}

// serveFile answers with the content of a file. The size of one that the kernel makes up, as in /proc
// and /sys, says nothing: one that can be read at once has the length that was read, and one that is
// longer than its size is sent without a length.
func serveFile(w http.ResponseWriter, r *http.Request, f *sandbox.File, info fs.FileInfo) error {
	head := make([]byte, 256<<10)
	n, err := io.ReadFull(f, head)
	head = head[:n]
	switch {
	case err == io.EOF, err == io.ErrUnexpectedEOF:
		if info.Size() == int64(n) {
			tag(w.Header(), info)
		}
		http.ServeContent(w, withoutTimes(r), "", info.ModTime(), bytes.NewReader(head))
	case err != nil:
		return err
	case info.Size() > int64(n):
		tag(w.Header(), info)
		http.ServeContent(w, withoutTimes(r), "", info.ModTime(), f)
	case r.Method != http.MethodHead:
		if _, err := io.Copy(w, io.MultiReader(bytes.NewReader(head), f)); err != nil {
			panic(http.ErrAbortHandler) // so that the client sees that this is not all
		}
	}
	return nil
}

// tag gives a file's content an ETag. Whatever a program does with the file's name, size and times, its
// inode or its ctime is another one after a change, but for two within a tick of the kernel's clock (1 to 10 ms). Files of a stopped sandbox have neither, and get no ETag.
func tag(header http.Header, info fs.FileInfo) {
	if st, ok := info.Sys().(*sandbox.FileStat); ok && !st.Ctime.IsZero() {
		header.Set("ETag", fmt.Sprintf(`"%x-%x-%x-%x-%x"`, st.Dev, st.Inode, info.Size(), info.ModTime().UnixNano(), st.Ctime.UnixNano()))
	}
}

// withoutTimes returns a request without conditions that say "unchanged" by the time of a file alone: it may
// have changed within the second, and an older file may have taken its place.
func withoutTimes(r *http.Request) *http.Request {
	r = r.Clone(r.Context())
	r.Header.Del("If-Modified-Since")
	if r.Header.Get("If-Unmodified-Since") != "" { // it may have changed all the same
		r.Header.Del("Range")
	}
	if since := r.Header.Get("If-Range"); since != "" && !strings.Contains(since, `"`) {
		r.Header.Del("Range")
	}
	return r
}

// patient is a response that waits for a slow client for as long as it reads anything.
type patient struct {
	http.ResponseWriter
	control *http.ResponseController
	failed  bool // it has an error in place of the content
}

// WriteHeader answers with an error in JSON where package http answers with a text, or with nothing.
func (p *patient) WriteHeader(status int) {
	text := ""
	switch status {
	case http.StatusRequestedRangeNotSatisfiable:
		text = "the file has no such range"
	case http.StatusPreconditionFailed:
		text = "the file is not as the request requires"
	default:
		p.ResponseWriter.WriteHeader(status)
		return
	}
	p.failed = true
	p.Header().Del("Content-Disposition")
	refuse(p.ResponseWriter, status, text)
}

func (p *patient) Write(b []byte) (int, error) {
	if p.failed {
		return len(b), nil
	}
	// Not every ResponseWriter has deadlines; the server's own remain.
	_ = p.control.SetWriteDeadline(time.Now().Add(stallTimeout))
	return p.ResponseWriter.Write(b)
}

// ReadFrom reads from the sandbox in pieces that are worth a round trip.
func (p *patient) ReadFrom(r io.Reader) (int64, error) {
	return io.CopyBuffer(struct{ io.Writer }{p}, struct{ io.Reader }{r}, make([]byte, 256<<10))
}

// fileEntry is the JSON of an entry of a directory.
type fileEntry struct {
	Name string `json:"name"`
	// NameBase64 is the name if that is not UTF-8: Name then has U+FFFD in place of some bytes.
	NameBase64 []byte `json:"nameBase64,omitempty"`
	// Type is "file", "directory", "symlink" or "other".
	Type string `json:"type"`
	*fileFacts
	// Error says why the entry has no facts: the user may not search the directory, for example.
	Error *failure `json:"error,omitempty"`
}

// fileFacts are what a stat says of a file.
type fileFacts struct {
	SizeBytes  int64     `json:"sizeBytes"`
	Mode       string    `json:"mode"` // of permissions, octal
	ModifiedAt time.Time `json:"modifiedAt"`
	UID        uint32    `json:"uid"`
	GID        uint32    `json:"gid"`
}

func (h *handler) listFiles(w http.ResponseWriter, r *http.Request) error {
	return h.useFiles(r, func(files fileSystem, name string) error {
		entries, err := files.ReadDir(r.Context(), name)
		if err != nil {
			return err
		}
		list := make([]fileEntry, 0, len(entries))
		for _, e := range entries {
			entry := fileEntry{Name: e.Name(), Type: typeOf(e.Type())}
			if !utf8.ValidString(entry.Name) {
				entry.NameBase64 = []byte(entry.Name)
			}
			if info, err := e.Info(); err != nil {
				_, f := explain(err)
				entry.Error = &f
			} else {
				entry.fileFacts = &fileFacts{SizeBytes: info.Size(), Mode: fmt.Sprintf("%04o", info.Mode().Perm()), ModifiedAt: info.ModTime()}
				if st, ok := info.Sys().(*sandbox.FileStat); ok {
					entry.UID, entry.GID = st.UID, st.GID
				}
			}
			list = append(list, entry)
		}
		answer(w, http.StatusOK, list)
		return nil
	})
}

func typeOf(mode fs.FileMode) string {
	switch {
	case mode.IsRegular():
		return "file"
	case mode.IsDir():
		return "directory"
	case mode&fs.ModeSymlink != 0:
		return "symlink"
	}
	return "other"
}

// written is the JSON of an answer to a file's writing.
type written struct {
	Path      string `json:"path"`
	SizeBytes int64  `json:"sizeBytes"`
}

// writeFile writes a file as sandbox.Sandbox.WriteFile does: it has either its old content or all of
// the new.
func (h *handler) writeFile(w http.ResponseWriter, r *http.Request) error {
	mode, err := modeOf(r)
	if err != nil {
		return err
	}
	limit := cmp.Or(h.maxUpload, DefaultMaxUpload)
	return h.useFiles(r, func(files fileSystem, name string) error {
		ctx := r.Context()
		target, old, err := destination(ctx, files, name)
		if err != nil {
			return err
		}
		status, perm := http.StatusCreated, fs.FileMode(0o644)
		if old != nil {
			status = http.StatusOK
		}
		if mode != 0 {
			perm = mode
		}
		if err := files.MkdirAll(ctx, dirOf(target), 0o755); err != nil {
			return err
		}
		body := newUpload(w, r, limit)
		n, err := files.WriteFrom(ctx, target, body, perm)
		err = cmp.Or(body.failed, err)
		if err == nil && mode != 0 { // whatever the umask, and the file that there was
			err = files.Chmod(ctx, target, mode)
		}
		if err != nil {
			return uploadError(err, "file")
		}
		answer(w, status, written{name, n})
		return nil
	})
}

// modeOf returns the permissions that a request asks for, or 0.
func modeOf(r *http.Request) (fs.FileMode, error) {
	text := r.URL.Query().Get("mode")
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(text, 8, 32)
	if err != nil || n == 0 || n > 0o777 {
		return 0, invalid("mode=%q is not an octal number from 001 to 777", text)
	}
	return fs.FileMode(n), nil
}

// maxLinks is how many symbolic links the name of a file leads through at most, as on Linux.
const maxLinks = 40

// destination returns the file that a name leads to, and its info unless it is new.
func destination(ctx context.Context, files fileSystem, name string) (string, fs.FileInfo, error) {
	for range maxLinks {
		info, err := files.Lstat(ctx, name)
		switch {
		case errors.Is(err, fs.ErrNotExist) && !strings.HasSuffix(name, "/"):
			return name, nil, nil
		case err != nil:
			return "", nil, err
		case info.Mode().IsRegular():
			return name, info, nil
		case info.Mode()&fs.ModeSymlink == 0:
			return "", nil, invalid("%q is not a regular file", name)
		}
		to, err := files.Readlink(ctx, name)
		if err != nil {
			return "", nil, err
		}
		if !path.IsAbs(to) {
			to = dirOf(name) + to
		}
		name = to
	}
	return "", nil, invalid("%q leads through too many links", name)
}

// dirOf returns the directory of a name, with a slash. It is not cleaned: what is before ".." may
// be a link.
func dirOf(name string) string {
	if i := strings.LastIndexByte(name, '/'); i >= 0 {
		return name[:i+1]
	}
	return "./"
}

// An upload is the body of a request, bounded in its size and in the time for which it stalls.
type upload struct {
	io.Reader
	control *http.ResponseController
	failed  error // why it did not come to its end
}

func newUpload(w http.ResponseWriter, r *http.Request, limit int64) *upload {
	return &upload{Reader: http.MaxBytesReader(w, r.Body, limit), control: http.NewResponseController(w)}
}

func (u *upload) Read(b []byte) (int, error) {
	_ = u.control.SetReadDeadline(time.Now().Add(stallTimeout))
	n, err := u.Reader.Read(b)
	switch {
	case errors.Is(err, io.EOF): // after another error see decode
		_ = u.control.SetReadDeadline(time.Time{})
	case errors.Is(err, os.ErrDeadlineExceeded):
		err = errStalled
	case err != nil && !errors.As(err, new(*http.MaxBytesError)): // it broke off, or its chunks are malformed
		err = invalid("read the body: %v", err)
	}
	if err != nil && !errors.Is(err, io.EOF) {
		u.failed = err
	}
	return n, err
}
