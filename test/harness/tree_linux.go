package harness

import (
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TreeOfEverything makes a tree with every kind of thing in it.
func TreeOfEverything(t *testing.T) string {
	t.Helper()
	dir := HostDir(t, map[string]string{
		"plain": "x", "empty": "", ".hidden/.git/config": "c", "sub/deep/er/file": strings.Repeat("y", 300_000),
		"odd\nname": "n", "not utf8 \xff": "u", "sp ace/ünï": "s", strings.Repeat("l", 200): "long",
		"first": "two names", "xattr": "a", "capable": "b", "setuid": "s", "owned": "o",
	})
	do := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	in := func(name string) string { return filepath.Join(dir, name) }
	do(os.Mkdir(in("void"), 0o711))
	do(os.Link(in("first"), in("sub/second")))
	for name, to := range map[string]string{
		"link": "plain", "dangling": "nowhere", "absolute": "/etc/passwd", "escaping": "../../../x", "sub/up": "../../y", "todir": "sub",
	} {
		do(os.Symlink(to, in(name)))
	}
	do(syscall.Mkfifo(in("fifo"), 0o640))
	do(syscall.Mknod(in("device"), syscall.S_IFCHR|0o600, 1<<8|3))
	l, err := net.Listen("unix", in("socket"))
	do(err)
	t.Cleanup(func() { l.Close() })
	do(syscall.Setxattr(in("xattr"), "user.key", []byte("value"), 0))
	do(syscall.Setxattr(in("sub"), "user.dir", []byte("too"), 0))
	sparse, err := os.Create(in("sparse"))
	do(err)
	_, err = sparse.WriteAt([]byte("middle"), 5<<20)
	do(err)
	do(sparse.Truncate(16 << 20))
	do(sparse.Close())
	do(os.Chown(in("owned"), 12345, 54321))
	do(os.Lchown(in("link"), 1234, 4321))
	do(os.Chown(in("sub/deep"), 7, 8))
	do(os.Chmod(in("setuid"), fs.ModeSetuid|0o755))
	do(os.Chmod(in("void"), fs.ModeSticky|fs.ModeSetgid|0o751))
	do(os.Chmod(in("plain"), 0o000))
	// The directories last, since everything above moves their times; the deepest first.
	for i, name := range []string{"plain", "empty", "sub/deep/er/file", "sub/deep/er", "sub/deep", "void", "."} {
		at := time.Unix(1_000_000_000+int64(i), 123_456_789)
		do(os.Chtimes(in(name), at, at))
	}
	do(os.Chmod(dir, 0o750))
	return dir
}
