package source_test

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/archive"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/trees"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
	"github.com/seed-1a2d6d8f/sandbox/internal/source"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// workspace is a target on this machine, which the guest's verb copy fills.
type workspace struct {
	dir     string
	guest   string
	report  archive.Report
	remarks []string
}

func (w *workspace) Dir(context.Context, string) error { return errors.ErrUnsupported }
func (*workspace) Bounds() *source.Bounds              { return nil }

func (w *workspace) Report(text string)       { w.remarks = append(w.remarks, text) }
func (w *workspace) LeftOut(r archive.Report) { w.report = r }
func (w *workspace) Place() string            { return "" }

func (w *workspace) Stream(ctx context.Context, _ string, write func(*trees.Writer) error) error {
	order, err := json.Marshal(wire.Copy{Stream: true, Jobs: []wire.CopyJob{{To: w.dir, Owner: &wire.Owner{}}}})
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, w.guest, wire.VerbCopy, string(order))
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	to := trees.New(ctx, in)
	err = write(to)
	if err == nil {
		err = to.Close()
	}
	err = errors.Join(err, in.Close(), cmd.Wait())
	if err == nil && strings.Contains(out.String(), `"error":`) {
		err = fmt.Errorf("the guest: %s", out.String())
	}
	return err
}

// guestProgram is the guest, as it is embedded.
var guestProgram string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "guest")
	if err != nil {
		panic(err)
	}
	guestProgram = filepath.Join(dir, "guest")
	b, err := guest.Binary(runtime.GOARCH)
	if err == nil {
		err = os.WriteFile(guestProgram, b, 0o755)
	}
	code := 1
	if err == nil {
		code = m.Run()
	}
	if err = errors.Join(err, os.RemoveAll(dir)); err != nil {
		panic(err)
	}
	os.Exit(code)
}

// fill makes a workspace of an archive, and describes it.
func fill(t *testing.T, b []byte, strip int) (string, *workspace, error) {
	t.Helper()
	w := &workspace{dir: filepath.Join(t.TempDir(), "ours"), guest: guestProgram}
	if err := os.Mkdir(w.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	err := source.Tarball{Reader: bytes.NewReader(b), Strip: strip}.Fill(t.Context(), w)
	return listing(t, w.dir), w, err
}

// extractors are the references, with everything but owners.
var extractors = map[string][]string{
	"tar":    {"tar", "-x", "-p", "--no-same-owner", "--xattrs", "--delay-directory-restore", "--warning=no-timestamp"},
	"bsdtar": {"bsdtar", "-x", "-p", "--no-same-owner"},
}

// extract has a program extract an archive.
func extract(t *testing.T, program string, b []byte, strip int) (string, error) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "theirs")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(filepath.Dir(dir), "archive")
	if err := os.WriteFile(file, b, 0o644); err != nil {
		t.Fatal(err)
	}
	args := append(slices.Clone(extractors[program]), fmt.Sprintf("--strip-components=%d", strip), "-C", dir, "-f", file)
	cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
	cmd.Env = append(os.Environ(), "LC_ALL=C.UTF-8")
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, out)
	}
	return listing(t, dir), err
}

// classes are what errors of the programs and of a Tarball can be.
var classes = map[string]*regexp.Regexp{
	"..":      regexp.MustCompile(`(?i)(name|path) contains '\.\.'|has \.\. in it`),
	"link":    regexp.MustCompile(`Cannot hard link to|Hard-link target|Can't create '.*': Operation not permitted|it is a hard link to`),
	"below":   regexp.MustCompile(`Not a directory|through (a link|symlink)`),
	"kind":    regexp.MustCompile(`Cannot open: File exists|Can't replace existing|replace the tree itself|empty or unreadable filename`),
	"long":    regexp.MustCompile(`File name too long|of its name has \d+ bytes|its name has \d+ bytes`),
	"garbage": regexp.MustCompile(`trailing garbage|unexpected end of file|unknown header|unsupported format|(?i)zstd decompression failed|its compression|breaks off after its last entry|Truncated input file`),
	"header":  regexp.MustCompile(`Skipping to next header|Unrecognized archive format|not look like a tar archive|[Mm]alformed`),
	"target":  regexp.MustCompile(`Cannot create symlink to|symbolic link to nothing`),
	"name":    regexp.MustCompile(`can't be converted`),
}

// classOf is the class of an error, or of several of a program, as one is that they share with like.
func classOf(err, like error) (class string) {
	if err == nil {
		return ""
	}
	for name, re := range classes {
		switch is := re.MatchString(err.Error()); {
		case is && like != nil && re.MatchString(like.Error()):
			return name
		case is:
			class = name
		}
	}
	return cmp.Or(class, err.Error())
}

// listing describes a tree. What was made just now has the time "now", and privileges are left out:
// no source keeps them.
func listing(t *testing.T, dir string) string {
	t.Helper()
	var lines []string
	inodes := map[uint64]string{}
	err := filepath.WalkDir(dir, func(file string, d os.DirEntry, err error) error {
		if err != nil || file == dir {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(file, &st); err != nil {
			return err
		}
		name, _ := filepath.Rel(dir, file)
		mtime := time.Unix(st.Mtim.Unix()).UTC()
		at := mtime.Format(time.RFC3339Nano)
		if age := time.Since(mtime); age > -time.Hour && age < time.Hour {
			at = "now"
		}
		line := fmt.Sprintf("%q %v %04o %s", name, d.Type(), st.Mode&0o1777, at)
		switch d.Type() {
		case os.ModeSymlink:
			to, _ := os.Readlink(file)
			line = fmt.Sprintf("%q link to %q %s", name, to, at)
		case 0:
			b, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			line += fmt.Sprintf(" %d bytes %x", len(b), sum(b))
			names, value := make([]byte, 1000), make([]byte, 100)
			n, err := unix.Llistxattr(file, names)
			if err != nil {
				return err
			}
			for _, attr := range slices.Sorted(strings.SplitSeq(string(names[:n]), "\x00")) {
				if strings.HasPrefix(attr, "user.") {
					n, _ := unix.Lgetxattr(file, attr, value)
					line += fmt.Sprintf(" %q=%q", attr, value[:max(n, 0)])
				}
			}
		}
		if !d.IsDir() && st.Nlink > 1 {
			if first := inodes[st.Ino]; first != "" {
				line += " is " + first
			}
			inodes[st.Ino] = name
		}
		lines = append(lines, line)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func sum(b []byte) uint32 {
	h := uint32(2166136261)
	for _, c := range b {
		h = (h ^ uint32(c)) * 16777619
	}
	return h
}

// strips is how many elements names may lose, and one: so many that no two become the same.
func strips(t *testing.T, dir string) int {
	t.Helper()
	seen := map[string]bool{}
	names, err := filepath.Glob(filepath.Join(dir, "*", "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if base := filepath.Base(name); seen[base] {
			return 2
		} else {
			seen[base] = true
		}
	}
	return 3
}

// beforeThe70s are times with a fraction of a second that bsdtar adds where it is to be taken off.
var beforeThe70s = regexp.MustCompile(` 19[0-6][0-9]-\S*\.\d+Z`)

// What tar programs write and extract becomes the same workspace.
func TestTarballsAreAsTarExtractsThem(t *testing.T) {
	t.Parallel()
	for _, seed := range harness.Seeds(2, 40) {
		rnd := rand.New(rand.NewPCG(seed, 34))
		dir := filepath.Join(t.TempDir(), "top")
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		harness.RandomTree(t, rnd, dir)
		harness.Shell(t, `cd "$0"/..; echo second >extra; tar -cf extra.tar extra`, dir)
		for name, command := range map[string]string{
			"gnu":         `tar -C "$0" --format=gnu -cf - .`,
			"oldgnu":      `tar -C "$0" --format=oldgnu -cf - .`,
			"pax":         `tar -C "$0" --format=pax --xattrs -cf - .`,
			"ustar":       `tar -C "$0" --format=ustar -cf - .`,
			"v7":          `tar -C "$0" --format=v7 -cf - .`,
			"sparse gnu":  `tar -C "$0" --format=gnu --sparse -cf - .`,
			"sparse 0.0":  `tar -C "$0" --format=pax --sparse --sparse-version=0.0 -cf - .`,
			"sparse 0.1":  `tar -C "$0" --format=pax --sparse --sparse-version=0.1 -cf - .`,
			"sparse 1.0":  `tar -C "$0" --format=pax --sparse --sparse-version=1.0 -cf - .`,
			"incremental": `tar -C "$0" --format=gnu --listed-incremental=/dev/null -cf - .`,
			"labelled":    `tar -C "$0" --format=gnu --label=volume -cf - .`,
			"named":       `tar -C "$0/.." --format=gnu -cf - top`,
			"absolute":    `tar -P --transform 's,^,/,' -C "$0/.." --format=gnu -cf - top`,
			"no dirs":     `cd "$0"; find . ! -type d -print0 | tar --null --no-recursion --format=gnu -cf - -T -`,
			"small":       `tar -C "$0" -b 1 --format=gnu -cf - .`,
			"garbage":     `tar -C "$0" --format=gnu -cf - .; head -c 5000 /dev/urandom`,
			"two":         `tar -C "$0" --format=gnu -cf - .; cp "$0"/../extra.tar /dev/stdout`,
			"gzip":        `tar -C "$0" --format=gnu -czf - .`,
			"gzip parts":  `tar -C "$0" --format=gnu -cf - . | { head -c 1000 | gzip; gzip; }`,
			"bzip2":       `tar -C "$0" --format=gnu -cjf - .`,
			"gzip, byte":  `tar -C "$0" --format=gnu -czf - .; echo`,
			"gzip, short": `tar -C "$0" --format=gnu -czf - .; printf garbage`,
			"gzip, long":  `tar -C "$0" --format=gnu -czf - .; head -c 5000 /dev/urandom`,
			"gzip, zeros": `tar -C "$0" --format=gnu -czf - .; head -c 10240 /dev/zero`,
			"gzip, magic": `tar -C "$0" --format=gnu -czf - .; printf '\037\213\010'`,
			"bzip2 parts": `tar -C "$0" --format=gnu -cf - . | { head -c 1000 | bzip2; bzip2; }`,
			"bzip2, byte": `tar -C "$0" --format=gnu -cjf - .; echo`,
			"bzip2, long": `tar -C "$0" --format=gnu -cjf - .; head -c 5000 /dev/urandom`,
			"bzip2, BZ":   `tar -C "$0" --format=gnu -cjf - .; printf BZh0`,
			"zstd parts":  `tar -C "$0" --format=gnu -cf - . | { head -c 1000 | zstd; zstd; }`,
			"zstd, byte":  `tar -C "$0" --format=gnu -cf - . | zstd; echo`,
			"zstd, long":  `tar -C "$0" --format=gnu -cf - . | zstd; printf 'garbage of some length'`,
			"bsd ustar":   `bsdtar -C "$0" --format=ustar -cf - .`,
			"bsd pax":     `bsdtar -C "$0" --format=pax -cf - .`,
			"bsd gnutar":  `bsdtar -C "$0" --format=gnutar -cf - .`,
			"bsd v7":      `bsdtar -C "$0" --format=v7tar -cf - .`,
		} {
			for strip := range strips(t, dir) {
				t.Run(fmt.Sprintf("%d %s strip %d", seed, name, strip), func(t *testing.T) {
					t.Parallel()
					b, _ := exec.CommandContext(t.Context(), "sh", "-c", command, dir).Output() // what a format can't store is left out
					got, _, err := fill(t, b, strip)
					if err != nil && strip == 0 && !strings.HasPrefix(name, "zstd, ") {
						t.Fatalf("Tarball: %v", err)
					}
					for program := range extractors {
						level := strip
						if name == "absolute" && program == "bsdtar" && strip > 0 {
							level++ // its slash is an element there
						}
						want, theirErr := extract(t, program, b, level)
						theirs, ours := classOf(theirErr, err), classOf(err, theirErr)
						switch row := program + ": " + theirs + ", Tarball: " + ours; {
						case want == "" && err != nil && strings.Contains(err.Error(), "empty without"), theirs == ours && err != nil:
							continue // tar extracts the rest, Tarball nothing
						case program == "bsdtar" && ours == "link" && strip > 0:
							continue // to a file that is stripped, which bsdtar leaves out
						case row == "tar: garbage, Tarball: " && strings.HasPrefix(name, "gzip, "), row == "bsdtar: name, Tarball: ":
						case theirs != ours:
							t.Errorf("%s: %v; Tarball: %v", program, theirErr, err)
						}
						have := got
						if program == "bsdtar" {
							want, have = beforeThe70s.ReplaceAllString(want, " before"), beforeThe70s.ReplaceAllString(have, " before")
						}
						if diff := gocmp.Diff(strings.Split(want, "\n"), strings.Split(have, "\n")); diff != "" {
							t.Errorf("(-%s +Tarball):\n%s", program, diff)
						}
					}
				})
			}
		}
	}
}

// member is an entry with a time, and content if it has a size.
func member(kind byte, name, content, link string) harness.TarMember {
	m := harness.TarMember{Header: tar.Header{Typeflag: kind, Name: name, Linkname: link, Mode: 0o640, ModTime: time.Unix(1e9, 0)}, Content: content}
	if kind == tar.TypeDir || kind == 'D' {
		m.Mode = 0o750
	}
	return m
}

// relabel changes the type of an archive's first entry.
func relabel(b []byte, kind byte) []byte {
	b[156] = kind
	copy(b[148:], "        ")
	n := 0
	for _, c := range b[:512] {
		n += int(c)
	}
	copy(b[148:], fmt.Sprintf("%06o\x00 ", n))
	return b
}

// inPieces is an archive of a file of so many pieces of a block, between holes of one, as old GNU tar writes it.
func inPieces(t *testing.T, n int) []byte {
	m := member(tar.TypeReg, "pieces", strings.Repeat("x", n*512), "")
	m.Format = tar.FormatGNU
	b := harness.Tar(t, m)
	var list []byte
	for i := range n {
		list = fmt.Appendf(list, "%011o\x00%011o\x00", 2*i*512, 512)
	}
	const entry, first, further = 24, 4, 21
	copy(b[386:], list[:first*entry])
	b[482] = 1
	copy(b[483:], fmt.Sprintf("%011o\x00", (2*n-1)*512))
	var blocks []byte
	for rest := range slices.Chunk(list[first*entry:], further*entry) {
		block := make([]byte, 512)
		copy(block, rest)
		block[504] = 1
		blocks = append(blocks, block...)
	}
	blocks[len(blocks)-8] = 0
	return slices.Concat(relabel(b, 'S')[:512], blocks, b[512:])
}

// signed gives an archive's first entry the checksum that some programs of old calculated, of signed bytes.
func signed(b []byte) []byte {
	copy(b[148:], "        ")
	n := 0
	for _, c := range b[:512] {
		n += int(int8(c))
	}
	copy(b[148:], fmt.Sprintf("%06o\x00 ", n))
	return b
}

// The attributes of the directory that an archive is of become those of the directory that a program extracts it into, but not those
// of a workspace.
func TestWorkspacesKeepTheirAttributes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	harness.Shell(t, `echo f >"$0"/f`, dir)
	for _, file := range []string{dir, filepath.Join(dir, "f")} {
		if err := unix.Setxattr(file, "user.top", []byte("theirs"), 0); err != nil {
			t.Fatal(err)
		}
	}
	b, err := exec.CommandContext(t.Context(), "tar", "-C", dir, "--format=pax", "--xattrs", "-cf", "-", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	attribute := func(file string) string {
		value := make([]byte, 100)
		n, _ := unix.Lgetxattr(file, "user.top", value)
		return string(value[:max(n, 0)])
	}
	_, w, err := fill(t, b, 0)
	if err != nil || attribute(w.dir) != "" || attribute(filepath.Join(w.dir, "f")) != "theirs" {
		t.Errorf("Tarball: %v; the workspace has %q, a file %q", err, attribute(w.dir), attribute(filepath.Join(w.dir, "f")))
	}
	for program, command := range extractors {
		into := t.TempDir()
		cmd := exec.CommandContext(t.Context(), command[0], append(slices.Clone(command[1:]), "-C", into, "-f", "-")...)
		cmd.Stdin = bytes.NewReader(b)
		if out, err := cmd.CombinedOutput(); err != nil || attribute(into) != "theirs" {
			t.Errorf("%s: %v, %s; the directory has %q, which docs/differences.md denies", program, err, out, attribute(into))
		}
	}
}

// Archives that no program writes today, and tar extracts. Where a Tarball differs it is for the
// reason given, which docs/differences.md has in a table.
func TestOddTarballsAreAsTarExtractsThem(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/differences.md")
	if err != nil {
		t.Fatal(err)
	}
	_, docs, _ := strings.Cut(string(text), "\n## tar\n")
	const file, dir, symlink, link = tar.TypeReg, tar.TypeDir, tar.TypeSymlink, tar.TypeLink
	f := func(name string) harness.TarMember { return member(file, name, "content of "+name, "") }
	all := func(m ...harness.TarMember) []byte { return harness.Tar(t, m...) }
	for name, x := range map[string]struct {
		archive []byte
		strip   int
		differs string // from GNU tar: a row
		bsd     string // from bsdtar
	}{
		"contiguous":               {all(member(tar.TypeCont, "c", "cont", ""), f("d")), 0, "", ""},
		"type NUL":                 {relabel(all(f("v7"), f("d")), 0), 0, "", ""},
		"a file with a slash":      {relabel(all(member(dir, "d/", "", ""), f("d/f")), tar.TypeReg), 0, "", ""},
		"an empty file":            {nil, 0, "", "nothing at all"},
		"an empty file, gzip":      {[]byte("\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\x03\x00\x00\x00\x00\x00\x00\x00\x00\x00"), 0, "nothing at all", "nothing at all"},
		"type NUL, a slash":        {relabel(all(member(dir, "v7/", "", ""), f("v7/d")), 0), 0, "", ""},
		"an unknown type":          {relabel(all(f("z"), f("d")), 'Z'), 0, "", ""},
		"an unknown type, small":   {relabel(all(f("z"), f("d")), 'q'), 0, "", ""},
		"dump directory":           {all(member('D', "d", "Yf\x00\x00", ""), f("d/f")), 0, "", ""},
		"a volume's label":         {all(member('V', "label", "", ""), f("d")), 0, "", ""},
		"a volume's rest":          {all(member('M', "rest", "rest", ""), f("d")), 0, "part of a file", "part of a file"},
		"a device":                 {all(member(tar.TypeChar, "null", "", ""), f("d")), 0, "devices", "devices"},
		"the same twice":           {all(f("a"), member(file, "a", "second", "")), 0, "", ""},
		"a directory twice":        {all(member(dir, "d/", "", ""), f("d/f"), func() harness.TarMember { m := member(dir, "d", "", ""); m.Mode = 0o711; return m }()), 0, "", ""},
		"a link replaces":          {all(f("a"), member(symlink, "a", "", "b"), f("b")), 0, "", ""},
		"a file replaces a link":   {all(member(symlink, "a", "", "b"), f("b"), f("a")), 0, "", ""},
		"a directory for a file":   {all(f("a"), member(dir, "a/", "", ""), f("a/b")), 0, "another kind in its place", "another kind in its place"},
		"a file for a directory":   {all(member(dir, "a/", "", ""), f("a")), 0, "another kind in its place", "another kind in its place"},
		"below a file":             {all(f("a"), f("a/b")), 0, "", ""},
		"below a link":             {all(member(dir, "d/", "", ""), member(symlink, "l", "", "d"), f("l/f")), 0, "below a link", ""},
		"below a link outside":     {all(member(symlink, "l", "", "/nowhere"), f("l/f")), 0, "", ""},
		"a hard link":              {all(f("a"), member(link, "b", "", "a")), 0, "", ""},
		"a hard link to ./":        {all(f("a"), member(link, "b", "", "./a")), 0, "", ""},
		"a hard link, absolute":    {all(f("/a"), member(link, "/b", "", "/a")), 0, "", ""},
		"a hard link to itself":    {all(f("a"), member(link, "a", "", "a")), 0, "", "a hard link to itself"},
		"a hard link to a link":    {all(member(symlink, "a", "", "x"), member(link, "b", "", "a")), 0, "", ""},
		"a hard link forward":      {all(member(link, "b", "", "a"), f("a")), 0, "", ""},
		"a hard link to a dir":     {all(member(dir, "a/", "", ""), member(link, "b", "", "a")), 0, "", ""},
		"a hard link replaces":     {all(f("a"), f("b"), member(link, "b", "", "a")), 0, "", ""},
		"a hard link stripped":     {all(f("top/a"), member(link, "top/b", "", "top/a")), 1, "", ""},
		"a hard link lost":         {all(f("a"), member(link, "top/b", "", "a")), 1, "", "a hard link to what Strip drops"},
		"a link stripped":          {all(member(symlink, "top/b", "", "top/a"), f("top/a")), 1, "", ""},
		"..":                       {all(f("ok"), f("a/../b")), 0, "", ""},
		".. first":                 {all(f("ok"), f("../b")), 0, "", ""},
		"absolute":                 {all(f("/a"), f("//b"), member(dir, "/c/", "", "")), 0, "", ""},
		"absolute stripped":        {all(f("/top/a"), f("//top/b")), 1, "", "Strip of absolute names"},
		"slashes":                  {all(f("a//b"), f("./a/./c"), member(dir, "d//", "", "")), 0, "", ""},
		"slashes stripped":         {all(f("./a/./c"), f("././d"), f("g/h/"+strings.Repeat("i/", 60)+"j"), member(dir, "d/", "", "")), 1, "", ""},
		"slashes stripped twice":   {all(f("a/b/x"), f("./a/./c"), f("././d"), f("f/./g")), 2, "", ""},
		"the top":                  {all(member(dir, "./", "", ""), f("./a")), 0, "", ""},
		"the top stripped":         {all(member(dir, "top/", "", ""), f("top/a")), 1, "", ""},
		"the top is a file":        {all(f("ok"), member(file, ".", "", "")), 0, "", ""},
		"a pipe":                   {all(member(tar.TypeFifo, "p", "", ""), f("d")), 0, "", ""},
		"global records":           {all(harness.TarMember{Header: tar.Header{Typeflag: tar.TypeXGlobalHeader, PAXRecords: map[string]string{"comment": "x"}}}, f("d")), 0, "", ""},
		"no end":                   {all(f("a"))[:1024], 0, "no end marker", "no end marker"},
		"one block of an end":      {all(f("a"))[:1536], 0, "no end marker", "no end marker"},
		"an end and more":          {append(all(f("a")), all(f("b"))...), 0, "", ""},
		"little behind the end":    {append(all(f("a")), bytes.Repeat([]byte("x"), 500<<10)...), 0, "", ""},
		"much behind the end":      {append(all(f("a")), bytes.Repeat([]byte("x"), 2<<20)...), 0, "more than 1 MiB after the end marker", "more than 1 MiB after the end marker"},
		"a block of zeros":         {slices.Concat(all(f("a"))[:1024], make([]byte, 512), all(f("b"))), 0, "no end marker", "no end marker"},
		"empty":                    {all(), 0, "", ""},
		"a hard link with content": {slices.Concat(all(f("a"))[:1024], relabel(all(member(file, "b", "content", "a")), link)), 0, "", "a hard link with content"},
		"a hard link chain":        {all(f("a"), member(link, "b", "", "a"), member(link, "c", "", "b"), f("a")), 0, "", ""},
		"dots":                     {all(f("..."), f("..a"), f("b.."), f(". "), f("..../...")), 0, "", ""},
		"a long element":           {all(f("ok"), f(strings.Repeat("n", 256))), 0, "", ""},
		"the longest element":      {all(f(strings.Repeat("n", 255)), f("d/"+strings.Repeat("n", 255))), 0, "", ""},
		"a deep name":              {all(f("ok"), f(strings.Repeat("d/", 1001)+"f")), 0, "more than 1,000 directories deep", "more than 1,000 directories deep"},
		"no name":                  {all(f("ok"), f("")), 0, "", ""},
		"a slash":                  {all(f("ok"), member(dir, "/", "", "")), 0, "", ""},
		"a link to nothing":        {all(f("ok"), member(symlink, "l", "", "")), 0, "", "a symbolic link to nothing"},
		"a closed directory":       {all(func() harness.TarMember { m := member(dir, "d/", "", ""); m.Mode = 0; return m }(), f("d/f"), member(dir, "d/e/", "", "")), 0, "", ""},
		"huge owners": {all(func() harness.TarMember {
			m := f("a")
			m.Uid, m.Gid, m.Format = 1<<32-2, 1<<32-2, tar.FormatPAX
			return m
		}()), 0, "", ""},
		"an old time of GNU's": {all(func() harness.TarMember {
			m := f("a")
			m.ModTime, m.Format = time.Unix(-1e9, 0), tar.FormatGNU
			return m
		}()), 0, "", ""},
		"global times":      {all(harness.TarMember{Header: tar.Header{Typeflag: tar.TypeXGlobalHeader, PAXRecords: map[string]string{"mtime": "1.5"}}}, f("d")), 0, "records of a global header", ""},
		"global path":       {all(harness.TarMember{Header: tar.Header{Typeflag: tar.TypeXGlobalHeader, PAXRecords: map[string]string{"path": "other"}}}, f("d")), 0, "records of a global header", ""},
		"global attribute":  {all(harness.TarMember{Header: tar.Header{Typeflag: tar.TypeXGlobalHeader, PAXRecords: map[string]string{"SCHILY.xattr.user.a": "b"}}}, f("d")), 0, "", ""},
		"a broken checksum": {slices.Concat(all(f("a"))[:1024], make([]byte, 100), all(f("b"))[100:]), 0, "", "a damaged header behind an entry"},
		"a broken first":    {slices.Concat([]byte("x"), all(f("a"))[1:]), 0, "", ""},
		"a broken record": {slices.Replace(slices.Clone(all(func() harness.TarMember {
			m := f("a")
			m.Format, m.PAXRecords = tar.FormatPAX, map[string]string{"comment": "x"}
			return m
		}())), 512, 514, 'z', 'z'), 0, "", ""},
		"a file in pieces":       {inPieces(t, 1000), 0, "", ""},
		"too many pieces":        {slices.Concat(all(f("a"))[:1024], inPieces(t, 44_000)), 0, "more than 43,000 pieces", "more than 43,000 pieces"},
		"a signed checksum":      {signed(all(func() harness.TarMember { m := f("\xfc\xfc"); m.Format = tar.FormatGNU; return m }())), 0, "", ""},
		"Solaris records":        {slices.Concat(relabel(all(member(file, "x", "10 path=b\n", "")), 'X')[:1024], all(f("a"))), 0, "records of Solaris (type X)", "records of Solaris (type X)"},
		"old long names":         {slices.Concat(relabel(all(member(file, "x", "Rename a to b\n", "")), 'N')[:1024], all(f("a"))), 0, "", ""},
		"a file twice, closed":   {all(func() harness.TarMember { m := f("a"); m.Mode = 0; return m }(), member(file, "a", "more", "")), 0, "", ""},
		"a link twice":           {all(member(symlink, "l", "", "a"), member(symlink, "l", "", "b")), 0, "", ""},
		"a pipe twice":           {all(member(tar.TypeFifo, "p", "", ""), member(tar.TypeFifo, "p", "", ""), f("p")), 0, "", ""},
		"a directory for a link": {all(member(dir, "d/", "", ""), member(symlink, "l", "", "d"), member(dir, "l/", "", ""), f("ok")), 0, "another kind in its place", "another kind in its place"},
		"attributes": {all(func() harness.TarMember {
			m := f("a")
			m.Format, m.PAXRecords = tar.FormatPAX, map[string]string{"SCHILY.xattr.user.100%25": "1", "SCHILY.xattr.user.%2525%41": "2", "SCHILY.xattr.user.plain": "3", "SCHILY.xattr.user.empty": ""}
			return m
		}()), 0, "", "a % in the name of an attribute"},
		"times": {all(func() (m []harness.TarMember) {
			for i, year := range []int{1, 1600, 1678, 1901, 1969, 1970, 2038, 2106, 2262, 2263, 2445} {
				h := f(fmt.Sprint(i))
				h.ModTime, h.Format = time.Date(year, 1, 1, 0, 0, 0, 5, time.UTC), tar.FormatPAX
				d := member(dir, fmt.Sprintf("d%d/", i), "", "")
				d.ModTime, d.Format = h.ModTime, h.Format
				l := member(symlink, fmt.Sprintf("l%d", i), "", "x")
				l.ModTime, l.Format = h.ModTime, h.Format
				m = append(m, h, d, l)
			}
			return m
		}()...), 0, "", "fractions of seconds before 1970"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, w, err := fill(t, x.archive, x.strip)
			if name == "too many pieces" && !errors.Is(err, sandbox.ErrInvalidArgument) {
				t.Errorf("Tarball: %v, want ErrInvalidArgument", err)
			}
			if name == "attributes" && len(w.report.Skipped) > 0 {
				t.Errorf("the report is %+v", w.report)
			}
			if said := strings.Contains(fmt.Sprint(w.report), "it is a file here"); said != (strings.HasPrefix(name, "an unknown type") || name == "old long names") {
				t.Errorf("the report is %+v", w.report)
			}
			for program, row := range map[string]string{"tar": x.differs, "bsdtar": x.bsd} {
				if row != "" && !strings.Contains(docs, "\n| "+row+" |") {
					t.Errorf("docs/differences.md has no row %q", row)
				}
				want, theirErr := extract(t, program, x.archive, x.strip)
				theirs, ours := classOf(theirErr, err), classOf(err, theirErr)
				if same := theirs == ours && (want == got || err != nil); same != (row == "") {
					t.Errorf("%s: %v; Tarball: %v, %v; differs %q (-%s +Tarball):\n%.5000s", program, theirErr, err, w.report.Skipped, row, program, gocmp.Diff(want, got))
				}
			}
		})
	}
}

// What GNU tar's --auto-compress makes of every suffix is read, or refused by the compression's name.
func TestCompressionsOfTarAreReadOrNamed(t *testing.T) {
	t.Parallel()
	dir := harness.HostDir(t, map[string]string{"f": "x"})
	plain, err := exec.CommandContext(t.Context(), "tar", "-C", dir, "-cf", "-", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	want, err := extract(t, "tar", plain, 0)
	if err != nil {
		t.Fatal(err)
	}
	for suffix, compression := range map[string]string{"gz": "", "tgz": "", "bz2": "", "zst": "", "xz": "xz"} {
		file := filepath.Join(t.TempDir(), "a.tar."+suffix)
		harness.Shell(t, `tar -C "$0" -caf `+file+` .`, dir)
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		got, _, err := fill(t, b, 0)
		switch {
		case compression == "":
			if err != nil || got != want {
				t.Errorf("%s: %v, %q, want %q", suffix, err, got, want)
			}
		case !errors.Is(err, sandbox.ErrInvalidArgument) || !strings.Contains(err.Error(), "it is compressed with "+compression+": gzip, bzip2 and zstd are read"):
			t.Errorf("%s: %v", suffix, err)
		}
	}
	// As lzma, lzip, lzop, lz4 and compress begin, which may not be here.
	for compression, magic := range map[string]string{"lzma": "\x5d\x00\x00\x80\x00", "lzip": "LZIP\x01", "lzop": "\x89LZO\x00\r\n\x1a\n", "lz4": "\x04\x22\x4d\x18", "compress": "\x1f\x9d\x90"} {
		if _, _, err := fill(t, append([]byte(magic), plain...), 0); !errors.Is(err, sandbox.ErrInvalidArgument) || !strings.Contains(err.Error(), "it is compressed with "+compression) {
			t.Errorf("%s: %v", compression, err)
		}
	}
}
