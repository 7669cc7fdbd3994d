package files

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/crypto/ssh"

	"github.com/seed-1a2d6d8f/sandbox/internal/archive"
	"github.com/seed-1a2d6d8f/sandbox/internal/errdefs"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/guesttest"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
	"github.com/seed-1a2d6d8f/sandbox/internal/lifecycle"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// view returns a view with limits, and without a sandbox.
func view() *View {
	return &View{
		sys:    func(*Stat) any { return nil },
		limits: lifecycle.Limits{ReadFile: 8 << 20, ReadDir: 10_000},
	}
}

// hostileMemory bounds what all calls below hold at once, each to several guests, with the
// limits above.
const hostileMemory = 512 << 20

// destination is a directory with a file that has another name outside of it.
type destination struct{ t *testing.T }

func (d destination) dir() string {
	d.t.Helper()
	parent := d.t.TempDir()
	dest := filepath.Join(parent, "dest")
	err := errors.Join(os.Mkdir(dest, 0o755), os.WriteFile(filepath.Join(parent, "outside"), []byte("alive"), 0o644),
		os.Link(filepath.Join(parent, "outside"), filepath.Join(dest, "inside")), os.WriteFile(filepath.Join(dest, "secret"), []byte("alive"), 0o600))
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() {
		for _, name := range []string{filepath.Join(parent, "outside"), filepath.Join(dest, "secret")} {
			if b, err := os.ReadFile(name); string(b) != "alive" {
				d.t.Errorf("%s holds %q, %v", name, b, err)
			}
		}
		if list, _ := os.ReadDir(parent); len(list) != 2 {
			d.t.Errorf("outside of the destination there is %v", list)
		}
		filepath.WalkDir(dest, func(name string, e fs.DirEntry, err error) error {
			if err == nil && e.Type().IsRegular() && e.Name() != "secret" {
				if b, _ := os.ReadFile(name); string(b) == "alive" && e.Name() != "inside" {
					d.t.Errorf("%s has the content of another file", name)
				}
			}
			return nil
		})
	})
	return dest
}

// archiveOf returns a stream of headers without its end; the content of a file is zeros.
func archiveOf(t *testing.T, headers ...*tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range headers {
		h.Format = tar.FormatPAX
		err := w.WriteHeader(h)
		if h.Size < 1<<20 {
			w.Write(make([]byte, h.Size))
			err = errors.Join(err, w.Flush())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return b.Bytes()
}

func note(kind, path, text string) *tar.Header {
	return &tar.Header{Typeflag: tar.TypeXGlobalHeader, PAXRecords: map[string]string{
		"AGENTSANDBOX.note": kind, "AGENTSANDBOX.path": path, "AGENTSANDBOX.text": text,
	}}
}

// lies are those of every guest, and streams of trees that lie.
func lies(t *testing.T) []guesttest.Lie {
	top := &tar.Header{Name: ".", Typeflag: tar.TypeDir, Mode: 0o755}
	file := func(name string, size int64) *tar.Header {
		return &tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Size: size}
	}
	link := func(name, to string) *tar.Header {
		return &tar.Header{Name: name, Typeflag: tar.TypeLink, Linkname: to}
	}
	dir := func(name string) *tar.Header { return &tar.Header{Name: name, Typeflag: tar.TypeDir, Mode: 0o755} }
	zeros := make([]byte, 32<<10)
	head, evil := archiveOf(t, top), guesttest.Evil
	all := guesttest.Lies()
	for name, data := range map[string][2][]byte{
		"content without an end":            {archiveOf(t, top, file("./f", 1<<40)), zeros},
		"a single file without an end":      {archiveOf(t, file(".", 1<<40)), zeros},
		"directories without an end":        {head, archiveOf(t, dir("./"+strings.Repeat("d/", 1000)))},
		"files without an end":              {head, archiveOf(t, file("./a", 0), file("./b", 5), file("./c", 0))},
		"links without an end":              {archiveOf(t, top, file("./f", 1)), archiveOf(t, link("./l", "./f"))},
		"notes without an end":              {head, archiveOf(t, note("skipped", "./"+evil+strings.Repeat("p", 20<<10), strings.Repeat("t", 20<<10)))},
		"notes of nothing":                  {head, archiveOf(t, note("unknown", "", ""))},
		"attributes without an end":         {head, archiveOf(t, &tar.Header{Name: "./d", Typeflag: tar.TypeDir, PAXRecords: map[string]string{"SCHILY.xattr.user.x": strings.Repeat("v", 60<<10)}})},
		"zeros after the end":               {archiveOf(t, top, note("end", "", "")), zeros},
		"nothing":                           {nil, nil},
		"a name longer than a path":         {archiveOf(t, top, dir("./"+strings.Repeat("d/", 3000))), zeros},
		"a part of a header":                {head[:300], nil},
		"a part of a file":                  {archiveOf(t, top, file("./f", 5))[:len(head)+600], nil},
		"no end":                            {archiveOf(t, top, file("./f", 5)), nil},
		"a name that leads out":             {archiveOf(t, top, file("./../outside", 5)), zeros},
		"an absolute name":                  {archiveOf(t, top, file("/outside", 5)), zeros},
		"a link to a file that was there":   {archiveOf(t, top, link("./public", "./secret")), zeros},
		"a link that leads out":             {archiveOf(t, top, link("./public", "./../outside")), zeros},
		"a note about another file":         {archiveOf(t, top, note("shrunk", "./inside", "0")), zeros},
		"a note about a file outside":       {archiveOf(t, top, file("./f", 5), note("shrunk", "./../outside", "0")), zeros},
		"a failure":                         {archiveOf(t, top, note("failed", evil, evil)), zeros},
		"a refusal":                         {archiveOf(t, note("refused", evil, evil)), zeros},
		"a negative size":                   {bytes.ReplaceAll(archiveOf(t, top, file("./f", 0o4321)), []byte("00000004321"), []byte("-0000004321")), zeros},
		"a report without an end":           {nil, []byte{0}},
		"a report of texts":                 {report(evil), nil},
		"a report of a failure with a text": {failure(evil), nil},
		"a report of negative numbers":      {[]byte{1, 1, 1, 1}, nil},
	} {
		all = append(all, guesttest.Lie{Name: "copy: " + name, Open: guesttest.Stream(data[0], data[1])})
	}
	return all
}

// report is what unpack says of a copy with many remarks.
func report(text string) []byte {
	c := wire.Unpacked{Files: 1}
	for range 1000 {
		c.Skipped = append(c.Skipped, wire.Skipped{Path: text + strings.Repeat("p", 15<<10), Reason: text})
	}
	var p wire.Pack
	c.Pack(&p)
	return p
}

// failure is what unpack says of a copy that failed.
func failure(text string) []byte {
	c := wire.Unpacked{Failed: true, Path: text + strings.Repeat("p", 15<<10), Text: text}
	var p wire.Pack
	c.Pack(&p)
	return p
}

// said returns err, and the first thing that a report says.
func said(r archive.Report, err error) error {
	if len(r.Skipped) == 0 {
		return err
	}
	first := r.Skipped[0]
	if len(first.Path) > 4*4096 || len(first.Reason) > 4*256 {
		return errors.New(guesttest.Evil) // fails the test
	}
	return fmt.Errorf("%v, %s: %s", err, first.Path, first.Reason)
}

// Whatever a guest says, each call returns soon after its context, holds little, and changes
// nothing outside of its destination.
func TestFilesOfAHostileGuest(t *testing.T) {
	defer func(was time.Duration) { copyGrace = was }(copyGrace)
	copyGrace = 100 * time.Millisecond
	f := view()
	limits := archive.Limits{Bytes: 1 << 20, Entries: 1000}
	much := make([]byte, 16<<20) // more than is on the way without being read
	at := destination{t}
	out := func(ctx context.Context, c *guest.Conn, to string, o archive.Options) error {
		return said(f.copyFrom(ctx, c, "/x", to, o))
	}
	in := func(ctx context.Context, c *guest.Conn, data fs.FS) error {
		return said(f.copyTo(ctx, c, "/x", func(w io.Writer) (archive.Report, error) { return archive.PackFS(ctx, w, data, archive.Options{}) }))
	}
	open := func(name string, do func(file *File) error) guesttest.Call {
		return guesttest.OnFiles(name, func(ctx context.Context, srv *guest.Files) error {
			file := &File{f: f, name: "x"}
			if err := file.open(ctx, srv, "/x", wire.FlagRead|wire.FlagWrite, 0); err != nil {
				return err
			}
			file.end(context.DeadlineExceeded) // otherwise a call lasts until Close
			do(file)                           // its error asks the engine for a reason
			return nil
		})
	}
	calls := []guesttest.Call{
		guesttest.OnFiles("ReadFile", func(ctx context.Context, srv *guest.Files) error {
			b, err := readAll(ctx, srv, "/x", f.limits.ReadFile)
			if int64(len(b)) > f.limits.ReadFile {
				return errors.New(guesttest.Evil) // fails the test
			}
			return err
		}),
		guesttest.OnFiles("ReadDir", func(ctx context.Context, srv *guest.Files) error {
			var list []wire.FileInfo
			err := eachEntry(ctx, srv, "/x", f.limits.ReadDir, func(i wire.FileInfo) { list = append(list, i) })
			if len(list) > f.limits.ReadDir {
				return errors.New(guesttest.Evil) // fails the test
			}
			return err
		}),
		open("Read", func(file *File) error { _, err := file.Read(make([]byte, 1<<20)); return err }),
		open("ReadDir of a file", func(file *File) error { _, err := file.ReadDir(-1); return err }),
		open("Close", func(file *File) error { return file.Close() }),
		guesttest.On("CopyOut", func(ctx context.Context, c *guest.Conn) error {
			return out(ctx, c, filepath.Join(at.dir(), "fresh"), archive.Options{Limits: limits})
		}),
		guesttest.On("CopyOut into a directory", func(ctx context.Context, c *guest.Conn) error {
			return out(ctx, c, at.dir(), archive.Options{Limits: limits})
		}),
		guesttest.On("CopyOut of much", func(ctx context.Context, c *guest.Conn) error {
			return out(ctx, c, filepath.Join(at.dir(), "fresh"), archive.Options{Limits: archive.Limits{Bytes: 8 << 30, Entries: 1 << 16}})
		}),
		guesttest.On("CopyIn", func(ctx context.Context, c *guest.Conn) error {
			return in(ctx, c, fstest.MapFS{"f": {Data: []byte("x")}})
		}),
		guesttest.On("CopyIn of much", func(ctx context.Context, c *guest.Conn) error {
			return in(ctx, c, fstest.MapFS{"f": {Data: much}})
		}),
	}
	guesttest.Run(t, lies(t), hostileMemory, calls)
}

// The limits hold without the end of a context, too.
func TestFilesEndAtTheirLimits(t *testing.T) {
	t.Parallel()
	f := view()
	for _, lie := range lies(t) {
		want := map[string]string{
			"file server: no end":                 "Limits.ReadFile",
			"file server: no end, no size":        "Limits.ReadFile",
			"file server: entries without an end": "Limits.ReadDir",
			"copy: content without an end":        "CopyOptions.MaxBytes",
			"copy: a single file without an end":  "CopyOptions.MaxBytes",
			"copy: directories without an end":    "CopyOptions.MaxEntries",
			"copy: files without an end":          "CopyOptions.MaxEntries",
			"copy: notes without an end":          "CopyOptions.MaxBytes",
			"copy: attributes without an end":     "names and attributes",
			"copy: a name longer than a path":     "its name has",
		}[lie.Name]
		if want == "" {
			continue
		}
		t.Run(lie.Name, func(t *testing.T) {
			t.Parallel()
			c, err := guest.Dial(t.Context(), guesttest.Serve(t, lie.Open))
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if strings.HasPrefix(lie.Name, "copy") {
				_, err = f.copyFrom(t.Context(), c, "/x", filepath.Join(destination{t}.dir(), "x"), archive.Options{Limits: archive.Limits{Bytes: 1 << 20, Entries: 1000}})
			} else {
				var srv *guest.Files
				if srv, err = c.Files(t.Context(), ""); err != nil {
					t.Fatal(err)
				}
				if strings.Contains(want, "ReadFile") {
					_, err = readAll(t.Context(), srv, "/x", f.limits.ReadFile)
				} else {
					err = eachEntry(t.Context(), srv, "/x", f.limits.ReadDir, func(wire.FileInfo) {})
				}
			}
			if !errors.Is(err, errdefs.TooLarge) || !strings.Contains(err.Error(), want) {
				t.Errorf("the error is %v, want TooLarge with %s", err, want)
			}
		})
	}
}

// Close ends a read that waits, whatever the guest does: with the error of a closed file, also if the guest has closed it before
// it looks at the read.
func TestCloseEndsAReadThatWaits(t *testing.T) {
	t.Parallel()
	for what, late := range map[string]func(id uint32) []byte{
		"that is never answered": func(uint32) []byte { return nil },
		"of a file that the guest has closed": func(id uint32) []byte {
			p := wire.NewFrame(1)
			p.Uint(ebadf)
			return p.End(id, wire.FileFailed)
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			testCloseEndsARead(t, late)
		})
	}
}

// testCloseEndsARead closes a file that is being read. late answers the read, right before Close is answered.
func testCloseEndsARead(t *testing.T, late func(id uint32) []byte) {
	reading := make(chan struct{})
	var read uint32
	open := func(nc ssh.NewChannel) {
		guesttest.Frames(func(id uint32, op byte, _ int64) []byte {
			switch op {
			case wire.FileOpen:
				return guesttest.Frame(id, func(p *wire.Pack) {
					p.Uint(1)
					p.Info(wire.FileInfo{Mode: 0o010644}) // a pipe
				})
			case wire.FileRead:
				read = id
				close(reading)
			case wire.FileClose:
				return append(late(read), guesttest.Frame(id, func(*wire.Pack) {})...)
			}
			return nil
		})(nc)
	}
	c, err := guest.Dial(t.Context(), guesttest.Serve(t, open))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	srv, err := c.Files(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	file := &File{f: view(), name: "x"}
	if err := file.open(t.Context(), srv, "/x", wire.FlagRead, 0); err != nil {
		t.Fatal(err)
	}
	result := make(chan error, 1)
	go func() {
		_, err := file.Read(make([]byte, 10))
		result <- err
	}()
	<-reading
	if err := file.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	select {
	case err := <-result:
		if !errors.Is(err, fs.ErrClosed) {
			t.Errorf("Read: %v, want ErrClosed", err)
		}
	case <-time.After(5 * time.Minute):
		t.Error("Read still waits after Close")
	}
}
