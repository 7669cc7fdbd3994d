//go:build linux

package copytree

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/trees"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// treeOf is everything that a copy keeps of each name in a tree, a line each. Sockets and
// devices are not in it.
func treeOf(t *testing.T, dir string) map[string]string {
	t.Helper()
	first := map[uint64]string{} // names of files that have several
	all := map[string]string{}
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		var st unix.Stat_t
		if err == nil {
			err = unix.Lstat(name, &st)
		}
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, name)
		line := fmt.Sprintf("%o %d:%d %d.%09d", st.Mode, st.Uid, st.Gid, st.Mtim.Sec, st.Mtim.Nsec)
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFSOCK, unix.S_IFCHR, unix.S_IFBLK:
			return nil
		case unix.S_IFLNK:
			target, err := os.Readlink(name)
			all[rel] = line + " to " + target
			return err
		case unix.S_IFREG:
			content, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			line += fmt.Sprintf(" %d bytes %x, %d blocks", st.Size, sha256.Sum256(content), st.Blocks)
		}
		if st.Nlink > 1 && !d.IsDir() {
			if first[st.Ino] == "" {
				first[st.Ino] = rel
			}
			line += " same as " + first[st.Ino]
		}
		list := make([]byte, 4096)
		if n, err := unix.Llistxattr(name, list); err == nil {
			keys := strings.FieldsFunc(string(list[:n]), func(r rune) bool { return r == 0 })
			slices.Sort(keys)
			for _, key := range keys {
				value := make([]byte, 4096)
				n, err := unix.Lgetxattr(name, key, value)
				line += fmt.Sprintf(" %s=%q,%v", key, value[:max(n, 0)], err)
			}
		}
		all[rel] = line
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// What a copy keeps, a feature each, whichever way the tree comes.
func TestCopierKeeps(t *testing.T) {
	if os.Getuid() != 0 {
		t.Fatal("the owners of files are given away, which takes root")
	}
	at := time.Unix(981_173_106, 123_456_789)
	write := func(dir, name, content string) error {
		return os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644)
	}
	for _, tt := range []struct {
		what    string
		fill    func(dir string) error
		skipped []string
	}{
		{what: "permissions", fill: func(dir string) error {
			for i, mode := range []uint32{0, 0o400, 0o640, 0o777, 0o4755, 0o2755, 0o1644} {
				name := fmt.Sprint(i)
				if err := write(dir, name, "x"); err != nil {
					return err
				}
				if err := unix.Chmod(filepath.Join(dir, name), mode); err != nil {
					return err
				}
			}
			return unix.Chmod(dir, 0o1711)
		}},
		{what: "owners", fill: func(dir string) error {
			if err := write(dir, "f", "x"); err != nil {
				return err
			}
			if err := os.Symlink("f", filepath.Join(dir, "l")); err != nil {
				return err
			}
			for i, name := range []string{"f", "l", "."} {
				if err := os.Lchown(filepath.Join(dir, name), 12345+i, 54321+i); err != nil {
					return err
				}
			}
			return nil
		}},
		{what: "times to the nanosecond", fill: func(dir string) error {
			if err := os.Mkdir(filepath.Join(dir, "d"), 0o755); err != nil {
				return err
			}
			if err := write(dir, "d/f", "x"); err != nil {
				return err
			}
			if err := os.Symlink("f", filepath.Join(dir, "d/l")); err != nil {
				return err
			}
			times := []unix.Timespec{unix.NsecToTimespec(at.UnixNano()), unix.NsecToTimespec(at.UnixNano() + 1)}
			for _, name := range []string{"d/l", "d/f", "d", "."} {
				if err := unix.UtimesNanoAt(unix.AT_FDCWD, filepath.Join(dir, name), times, unix.AT_SYMLINK_NOFOLLOW); err != nil {
					return err
				}
			}
			return nil
		}},
		{what: "links as they are", fill: func(dir string) error {
			for name, to := range map[string]string{"out": "../../../x", "absolute": "/etc/passwd", "dangling": "nowhere", "odd": "a\nb\xff", "long": strings.Repeat("l", 4000)} {
				if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
					return err
				}
			}
			return nil
		}},
		{what: "hard links", fill: func(dir string) error {
			for _, d := range []string{"a", "b/c"} {
				if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
					return err
				}
			}
			if err := write(dir, "a/f", "one"); err != nil {
				return err
			}
			if err := os.Symlink("x", filepath.Join(dir, "a/l")); err != nil {
				return err
			}
			for _, names := range [][2]string{{"a/f", "a/g"}, {"a/f", "b/c/h"}, {"a/l", "b/l"}} {
				if err := os.Link(filepath.Join(dir, names[0]), filepath.Join(dir, names[1])); err != nil {
					return err
				}
			}
			return nil
		}},
		{what: "extended attributes", fill: func(dir string) error {
			if err := write(dir, "f", "x"); err != nil {
				return err
			}
			for _, x := range [][3]string{{"f", "user.a", "value"}, {"f", "user.empty", ""}, {"f", "security.x", "a\x00b"},
				{"f", "security.capability", "\x01\x00\x00\x02\x00\x20\x00\x00" + strings.Repeat("\x00", 12)}, {".", "user.dir", "too"}} {
				if err := unix.Setxattr(filepath.Join(dir, x[0]), x[1], []byte(x[2]), 0); err != nil {
					return err
				}
			}
			return nil
		}},
		{what: "holes", fill: func(dir string) error {
			for name, size := range map[string]int64{"middle": 16 << 20, "nothing": 1 << 20, "small": 32 << 10} {
				f, err := os.Create(filepath.Join(dir, name))
				if err != nil {
					return err
				}
				if name == "middle" {
					_, err = f.WriteAt([]byte("data"), 5<<20)
				}
				if err == nil {
					err = f.Truncate(size)
				}
				f.Close()
				if err != nil {
					return err
				}
			}
			return nil
		}},
		{what: "sizes around every way to copy", fill: func(dir string) error {
			for _, size := range []int{0, 1, smallFile - 1, smallFile, bufferSize, bufferSize + 1, 1 << 20, 1<<20 + 1} {
				if err := write(dir, fmt.Sprint(size), string(bytes.Repeat([]byte("abcdefg\n"), size/8+1)[:size])); err != nil {
					return err
				}
			}
			return nil
		}},
		{what: "names of every kind", fill: func(dir string) error {
			for _, name := range []string{".git", "new\nline", "\xff\xfe", "ü", " ", "-rf", "back\\slash", strings.Repeat("n", 255)} {
				if err := write(dir, name, name); err != nil {
					return err
				}
			}
			return nil
		}},
		{what: "empty directories and deep ones", fill: func(dir string) error {
			if err := os.Mkdir(filepath.Join(dir, "empty"), 0o700); err != nil {
				return err
			}
			return os.MkdirAll(filepath.Join(dir, strings.Repeat("deep/", 300)), 0o755)
		}},
		{what: "more files than one worker takes at once", fill: func(dir string) error {
			for i := range 3*entriesPerTask + 1 {
				if err := write(dir, fmt.Sprint(i), fmt.Sprint(i)); err != nil {
					return err
				}
			}
			return nil
		}},
		{what: "a pipe, and no socket or device", skipped: []string{"device: a device", "socket: a socket"}, fill: func(dir string) error {
			if err := unix.Mkfifo(filepath.Join(dir, "pipe"), 0o640); err != nil {
				return err
			}
			if err := unix.Mknod(filepath.Join(dir, "device"), unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3))); err != nil {
				return err
			}
			return unix.Mknod(filepath.Join(dir, "socket"), unix.S_IFSOCK|0o600, 0)
		}},
	} {
		t.Run(tt.what, func(t *testing.T) {
			src := t.TempDir()
			if err := tt.fill(src); err != nil {
				t.Fatal(err)
			}
			want := treeOf(t, src)
			for way, copyTo := range map[string]func(to string) (skipped []string, err error){
				"beside": func(to string) ([]string, error) {
					c := newCopier()
					err := c.run(wire.Copy{Jobs: []wire.CopyJob{{From: src, To: to}}})
					return lines(c.losses), err
				},
				"over another tree": func(to string) ([]string, error) {
					// What is left in it is removed, and nothing new inherits its group and its ACL.
					acl := "\x02\x00\x00\x00" + "\x01\x00\x07\x00\xff\xff\xff\xff" + "\x02\x00\x07\x00\x05\x00\x00\x00" +
						"\x04\x00\x07\x00\xff\xff\xff\xff" + "\x10\x00\x07\x00\xff\xff\xff\xff" + "\x20\x00\x07\x00\xff\xff\xff\xff"
					err := errors.Join(os.Chown(to, 7, 8), os.Chmod(to, fs.ModeSetgid|0o777), unix.Setxattr(to, "user.left", []byte("x"), 0),
						unix.Setxattr(to, "system.posix_acl_default", []byte(acl), 0), write(to, "left", "x"))
					if err != nil {
						return nil, err
					}
					c := newCopier()
					job := wire.CopyJob{From: src, To: to, Again: true}
					err = errors.Join(c.clear(job), c.run(wire.Copy{Jobs: []wire.CopyJob{job}}))
					return lines(c.losses), err
				},
				"streamed": func(to string) ([]string, error) {
					var stream bytes.Buffer
					out := trees.New(t.Context(), &stream)
					if err := out.Send(0, src); err != nil {
						return nil, err
					}
					if err := out.Close(); err != nil {
						return nil, err
					}
					return lines(out.Losses), newCopier().receive(&stream, []wire.CopyJob{{To: to}})
				},
			} {
				to := t.TempDir()
				defer unix.Umask(unix.Umask(0)) // as runCopy has it
				skipped, err := copyTo(to)
				if err != nil {
					t.Errorf("%s: %v", way, err)
				}
				slices.Sort(skipped)
				if diff := cmp.Diff(tt.skipped, skipped); diff != "" {
					t.Errorf("%s: skipped (-want +got):\n%s", way, diff)
				}
				if diff := cmp.Diff(want, treeOf(t, to)); diff != "" {
					t.Errorf("%s (-source +copy):\n%s", way, diff)
				}
			}
			if diff := cmp.Diff(want, treeOf(t, src)); diff != "" {
				t.Errorf("the source (-before +after):\n%s", diff)
			}
		})
	}
}

// A job without a target says whether its file is the one that is meant, whoever owns it.
func TestCopierOnlyChecksWithoutATarget(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "f")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	identity := func(name string) wire.Identity {
		var st unix.Stat_t
		if err := unix.Stat(name, &st); err != nil {
			t.Fatal(err)
		}
		st.Uid++ // in another user namespace
		return identify(&st)
	}
	here, is := identity(dir), identity(file)
	boot, dev := here, here
	boot.Boot, dev.Dev = "another", here.Dev+1
	c := newCopier()
	jobs := []wire.CopyJob{{From: dir, Is: &here}, {From: file, Is: &is}, {From: dir, Is: &is}, {From: dir, Is: &boot}, {From: dir, Is: &dev}}
	if err := c.run(wire.Copy{Jobs: jobs}); err != nil || !slices.Equal(c.elsewhere, []int{2, 3, 4}) {
		t.Errorf("elsewhere are %v, %v, want 2, 3 and 4", c.elsewhere, err)
	}
	c = newCopier()
	if err := c.run(wire.Copy{Jobs: []wire.CopyJob{{From: file + "x", Is: &is}}}); err == nil {
		t.Error("a check of a file that is missing succeeds")
	}
}

// lines has a line for each loss.
func lines(losses wire.Losses) (list []string) {
	for _, l := range losses.First {
		list = append(list, string(l.Path)+": "+l.Reason)
	}
	return list
}

// ways are the two ways of a tree to a target.
func ways(t *testing.T, src string) map[string]func(to wire.CopyJob) (wire.Losses, error) {
	return map[string]func(to wire.CopyJob) (wire.Losses, error){
		"beside": func(to wire.CopyJob) (wire.Losses, error) {
			c := newCopier()
			to.From = src
			err := c.run(wire.Copy{Jobs: []wire.CopyJob{to}})
			return c.losses, err
		},
		"streamed": func(to wire.CopyJob) (wire.Losses, error) {
			var stream bytes.Buffer
			out := trees.New(t.Context(), &stream)
			if err := errors.Join(out.Send(0, src), out.Close()); err != nil {
				return out.Losses, err
			}
			c := newCopier()
			err := c.receive(&stream, []wire.CopyJob{to})
			return c.losses, err
		},
	}
}

// The kernel tells no size of files in /proc, and another one of those in /sys. cp -r is the reference.
func TestCopierCopiesWhatTheKernelMakesUp(t *testing.T) {
	for _, src := range []string{"/proc/sys/kernel/keys", "/sys/kernel/cgroup"} {
		ref := filepath.Join(t.TempDir(), "ref")
		if out, err := exec.Command("cp", "-r", src, ref).CombinedOutput(); err != nil {
			t.Fatalf("cp: %v, %s", err, out)
		}
		for way, copyTo := range ways(t, src) {
			to := t.TempDir()
			losses, err := copyTo(wire.CopyJob{To: to})
			diff, _ := exec.Command("diff", "-r", ref, to).CombinedOutput()
			if err != nil || losses.Count > 0 || len(diff) > 0 {
				t.Errorf("%s, %s: %v, losses %q; cp's differs:\n%s", src, way, err, lines(losses), diff)
			}
		}
	}
}

// An owner that the user namespace of the target has no ID for, as an engine without root has few, becomes root, and is reported.
func TestOwnersBeyondTheUserNamespaceBecomeRoot(t *testing.T) {
	if to := os.Getenv("COPY_TO"); to != "" { // in the namespace
		unix.Umask(0)
		c := newCopier()
		err := c.receive(os.Stdin, []wire.CopyJob{{To: to}})
		for _, line := range lines(c.losses) {
			fmt.Println(line)
		}
		if err != nil {
			t.Fatal(err)
		}
		return
	}
	src, to := t.TempDir(), t.TempDir()
	for _, name := range []string{"f", "setuid", "known"} {
		if err := os.WriteFile(filepath.Join(src, name), []byte(name), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	err := errors.Join(os.Mkdir(filepath.Join(src, "d"), 0o750), os.Symlink("f", filepath.Join(src, "l")), unix.Mkfifo(filepath.Join(src, "p"), 0o640))
	for name, owner := range map[string][2]int{"f": {200_000, 1}, "setuid": {200_000, 200_000}, "d": {1, 200_000}, "l": {200_000, 1}, "p": {200_000, 1}, "known": {65_535, 1}} {
		err = errors.Join(err, os.Lchown(filepath.Join(src, name), owner[0], owner[1]))
	}
	if err := errors.Join(err, unix.Chmod(filepath.Join(src, "setuid"), 0o6755)); err != nil {
		t.Fatal(err)
	}
	var stream bytes.Buffer
	out := trees.New(t.Context(), &stream)
	if err := errors.Join(out.Send(0, src), out.Close()); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestOwnersBeyondTheUserNamespaceBecomeRoot$")
	cmd.Env, cmd.Stdin = append(os.Environ(), "COPY_TO="+to), &stream
	ids := []syscall.SysProcIDMap{{Size: 65_536}}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER, UidMappings: ids, GidMappings: ids}
	said, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	for name, want := range map[string]string{"f": "100640 0:0", "setuid": "100755 0:0", "d": "40750 0:0", "l": "120777 0:0", "p": "10640 0:0", "known": "100640 65535:1"} {
		var st unix.Stat_t
		err := unix.Lstat(filepath.Join(to, name), &st)
		if got := fmt.Sprintf("%o %d:%d", st.Mode, st.Uid, st.Gid); err != nil || got != want {
			t.Errorf("%s is %s, %v, want %s", name, got, err, want)
		}
		if reported := strings.Contains(string(said), name+": its owner "); reported != (name != "known") {
			t.Errorf("the report has %s: %v\n%s", name, reported, said)
		}
	}
}

// The files of a new owner have no rights of the old one, and the copy says so of each, whichever way
// the tree comes.
func TestCopierReportsTheBitsThatItTakesAway(t *testing.T) {
	src := t.TempDir()
	for name, mode := range map[string]uint32{"plain": 0o755, "setuid": 0o4755, "setgid": 0o2755, "both": 0o6711} {
		file := filepath.Join(src, name)
		if err := errors.Join(os.WriteFile(file, []byte("x"), 0o755), unix.Chmod(file, mode)); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{"both: its setuid and setgid bits", "setgid: its setgid bit", "setuid: its setuid bit"}
	for way, copyTo := range ways(t, src) {
		got, err := copyTo(wire.CopyJob{To: t.TempDir(), Owner: &wire.Owner{UID: 1000, GID: 1000}})
		list := lines(got)
		if slices.Sort(list); err != nil || !slices.Equal(list, want) || got.Count != 3 {
			t.Errorf("%s: %d losses: %q, %v, want %q", way, got.Count, list, err, want)
		}
	}
}

// However many losses there are, a report of them stays small.
func TestLossesAreBounded(t *testing.T) {
	var short, long wire.Losses
	for i := range 3000 {
		short.Add(0, fmt.Sprint(i), "x")
		long.Add(0, strings.Repeat("x", 4000), "x")
	}
	if short.Count != 3000 || len(short.First) != 1000 || long.Count != 3000 || len(long.First) > 100 {
		t.Errorf("of 3000 losses %d and %d are listed, and %d and %d counted", len(short.First), len(long.First), short.Count, long.Count)
	}
}

// A directory that is another one than the caller meant is not copied, and one that is
// copied into is not copied.
func TestCopierCopiesNothingElse(t *testing.T) {
	src, to := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(src, "f"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Stat(src, &st); err != nil {
		t.Fatal(err)
	}
	other := identify(&st)
	other.Ino++
	c := newCopier()
	if err := c.run(wire.Copy{Jobs: []wire.CopyJob{{From: src, To: to, Is: &other}}}); err != nil || !slices.Equal(c.elsewhere, []int{0}) {
		t.Errorf("a copy of another directory than meant: %v, elsewhere are %v, want the job", err, c.elsewhere)
	}
	if list, err := os.ReadDir(to); len(list) > 0 || err != nil {
		t.Errorf("it made %v, %v", list, err)
	}
	inside := filepath.Join(src, "inside")
	if err := os.Mkdir(inside, 0o755); err != nil {
		t.Fatal(err)
	}
	c = newCopier()
	err := c.run(wire.Copy{Jobs: []wire.CopyJob{{From: src, To: inside}}})
	if e := toCopyError(err); err == nil || string(e.Path) != "inside" {
		t.Errorf("a copy of a directory into itself: %v, want an error that names it", err)
	}
}

// What goes wrong is said of the file that it went wrong with.
func TestCopierNamesWhatItCouldNotCopy(t *testing.T) {
	src := t.TempDir()
	if err := os.MkdirAll(filepath.Join(src, "a/b"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(src, "a/b/f"), []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	to := t.TempDir()
	if err := os.MkdirAll(filepath.Join(to, "a/b/f"), 0o755); err != nil { // is in the way, once the directories are made again
		t.Fatal(err)
	}
	err := newCopier().run(wire.Copy{Jobs: []wire.CopyJob{{From: src, To: to}}})
	if e := toCopyError(err); err == nil || string(e.Path) != "a" || e.Changed || !strings.Contains(e.Message, syscall.EEXIST.Error()) {
		t.Errorf("a copy into what is not empty: %+v, want that a exists", e)
	}
}

// A stream that ends early, or says what no sender does, is an error and writes nothing
// outside of its jobs.
func TestReceiverRefusesWhatNoSenderSends(t *testing.T) {
	src := t.TempDir()
	if err := os.WriteFile(filepath.Join(src, "f"), bytes.Repeat([]byte("x"), 5000), 0o644); err != nil {
		t.Fatal(err)
	}
	var stream bytes.Buffer
	out := trees.New(t.Context(), &stream)
	if err := out.Send(0, src); err != nil {
		t.Fatal(err)
	}
	whole := stream.Bytes()
	if len(whole)%512 != 0 {
		t.Fatalf("a stream of %d bytes does not end with a block", len(whole))
	}
	for n := 0; n < len(whole); n += 512 { // between two headers, as between one and its extension, and in the middle of each block
		for _, cut := range []int{n, n + 7} {
			if err := newCopier().receive(bytes.NewReader(whole[:cut]), []wire.CopyJob{{To: t.TempDir()}}); err == nil {
				t.Errorf("a stream cut after %d bytes of %d: no error", cut, len(whole))
			}
		}
	}
	if err := newCopier().receive(bytes.NewReader(whole), []wire.CopyJob{{To: t.TempDir()}}); err != nil {
		t.Errorf("the whole stream: %v", err)
	}
	if err := newCopier().receive(bytes.NewReader(whole), []wire.CopyJob{{To: t.TempDir()}, {To: t.TempDir()}}); err == nil {
		t.Error("a stream without one of its jobs: no error")
	}
	outside := t.TempDir()
	file := func(name string) *tar.Header { return &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644} }
	for what, headers := range map[string][]*tar.Header{
		"a job that there is not": {file("1/f")},
		"a job below nought":      {file("-1/f")},
		"no job":                  {file("f")},
		"more parts than it has":  {{Typeflag: tar.TypeReg, Name: "0/f", PAXRecords: map[string]string{wire.TreeSparse: "100;0,100"}}},
		"half a part":             {{Typeflag: tar.TypeReg, Name: "0/f", PAXRecords: map[string]string{wire.TreeSparse: "100;0"}}},
		"parts that are none":     {{Typeflag: tar.TypeReg, Name: "0/f", PAXRecords: map[string]string{wire.TreeSparse: "100;-1,5"}}},
		"a link on the way":       {{Typeflag: tar.TypeSymlink, Name: "0/l", Linkname: outside}, file("0/l/f")},
		"a device":                {{Typeflag: tar.TypeChar, Name: "0/d", Devmajor: 1, Devminor: 3}},
	} {
		var stream bytes.Buffer
		w := tar.NewWriter(&stream)
		for _, h := range headers {
			h.Format = tar.FormatPAX
			if err := w.WriteHeader(h); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if err := newCopier().receive(&stream, []wire.CopyJob{{To: t.TempDir()}}); err == nil {
			t.Errorf("a stream with %s: no error", what)
		}
	}
	if list, err := os.ReadDir(outside); len(list) > 0 || err != nil {
		t.Errorf("outside there is %v, %v", list, err)
	}
}

// A file that has grown or shrunk since it was looked at is copied as it is now.
func TestCopierCopiesAFileOfOneMoment(t *testing.T) {
	dir := t.TempDir()
	for what, was := range map[string]int64{"grown": 1000, "shrunk": 300_000, "grown from nothing": 0} {
		from, to := filepath.Join(dir, what), filepath.Join(dir, what+" copy")
		want := bytes.Repeat([]byte("0123456789"), 10_000)
		if err := os.WriteFile(from, want, 0o644); err != nil {
			t.Fatal(err)
		}
		src, err := os.Open(from)
		if err != nil {
			t.Fatal(err)
		}
		defer src.Close()
		dst, err := os.Create(to)
		if err != nil {
			t.Fatal(err)
		}
		defer dst.Close()
		var st unix.Stat_t
		if err := unix.Fstat(int(src.Fd()), &st); err != nil {
			t.Fatal(err)
		}
		st.Size = was
		w := &worker{copier: newCopier(), buf: make([]byte, bufferSize)}
		err = w.contents(int(src.Fd()), int(dst.Fd()), &st)
		if got, e := os.ReadFile(to); err != nil || e != nil || !bytes.Equal(got, want) || st.Size != int64(len(want)) || w.bytes.Load() != int64(len(want)) {
			t.Errorf("%s: contents = %v, and the copy has %d bytes, want %d; %d are counted", what, err, len(got), len(want), w.bytes.Load())
		}
	}
}
