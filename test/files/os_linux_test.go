package files_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/test/files/steps"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// osCall is a call of package os, see testdata/oscalls.
type osCall struct {
	Op, Name, Other string
	N, M            int64
}

// kinds makes files of every kind, some of them root's.
const kinds = `mkdir -p "$0"; cd "$0"; chown 1000:1000 .
	printf content >file; printf ro >readonly; printf no >secret; printf r >roots; mkdir -p dir/sub empty locked sticky; printf x >dir/x; printf l >locked/l; printf s >sticky/s
	ln file hard; ln -s file link; ln -s dir dirlink; ln -s nowhere dangling; ln -s loop loop; ln -s ../file dir/up; mkfifo pipe
	chown -hR 1000:1000 .; chmod 444 readonly; chmod 0 secret; chown 0:0 roots sticky sticky/s; chmod 600 roots; chmod 1777 sticky; chmod 555 locked; chmod 2775 dir
	touch -d 2001-01-01 file dir dir/x`

var osNames = []string{
	"file", "readonly", "secret", "roots", "hard", "link", "dirlink", "dangling", "loop", "dir", "dir/x", "dir/sub", "dir/up", "empty", "locked", "locked/l", "locked/new",
	"sticky", "sticky/s", "sticky/new", "none", "none/x", "file/x", "dirlink/x", "dirlink/new", "dangling/x", "loop/x", "new", "new/deep", "dir/../file", "none/../file",
	"link/", "dir/", "file/", "new/", ".", "dir/.", "dir/..", "//file", "./file", "", strings.Repeat("n", 255), strings.Repeat("n", 256), strings.Repeat("d/", 2050) + "x",
	"/proc/version", "/proc/none", "/proc/self", "/dev/full", "/dev/null", "/sys/none", "/", "/root", "/root/x", "/etc/passwd",
}

// randomCalls are calls whose outcome depends on nothing but those before.
func randomCalls(rnd *rand.Rand, n int) (calls []osCall) {
	ops := []string{"ReadFile", "WriteFile", "WriteFrom", "Mkdir", "MkdirAll", "Remove", "RemoveAll", "Rename", "Symlink", "Readlink", "Chmod", "Chown", "Lchown", "Chtimes", "Truncate", "Stat", "Lstat", "ReadDir", "OpenFile", "OpenFile", "Use", "Use"}
	flags := []int{os.O_RDONLY, os.O_WRONLY, os.O_RDWR, os.O_RDWR | os.O_CREATE, os.O_WRONLY | os.O_CREATE | os.O_EXCL, os.O_RDWR | os.O_TRUNC, os.O_RDWR | os.O_APPEND, os.O_RDWR | os.O_CREATE | os.O_APPEND, os.O_WRONLY | os.O_CREATE | os.O_TRUNC}
	modes := []int64{0o644, 0o600, 0o777, 0o755, 0, 0o4755, 0o2700, 0o1777, 0o111}
	regular := []string{"file", "readonly", "hard", "link", "dir/x", "new", "dir/new", "sticky/s"}
	for len(calls) < n {
		c := osCall{Op: ops[rnd.IntN(len(ops))], Name: osNames[rnd.IntN(len(osNames))], Other: osNames[rnd.IntN(len(osNames))], N: modes[rnd.IntN(len(modes))]}
		if rnd.IntN(12) == 0 {
			c.Name = "pipe"
		}
		switch c.Op {
		case "Chown", "Lchown":
			c.N, c.M = []int64{-1, 0, 1000, 7}[rnd.IntN(4)], []int64{-1, 0, 1000, 7}[rnd.IntN(4)]
		case "Chtimes":
			c.N, c.M = rnd.Int64N(1<<33)-1<<31, rnd.Int64N(1<<33)-1<<31
		case "Truncate":
			c.N = []int64{0, 3, 10000, -1}[rnd.IntN(4)]
		case "Use":
			c.Name = regular[rnd.IntN(len(regular))]
			c.Other = randomSteps(rnd)
			fallthrough
		case "OpenFile":
			c.N, c.M = int64(flags[rnd.IntN(len(flags))]), modes[rnd.IntN(len(modes))]
		}
		if !unfit(c) {
			calls = append(calls, c)
		}
	}
	return calls
}

// randomSteps are steps on an open file, see [steps.Use].
func randomSteps(rnd *rand.Rand) string {
	var steps []string
	for range 1 + rnd.IntN(12) {
		kind := "rrcwwwft0112"[rnd.IntN(12)]
		n := rnd.IntN(12)
		if (kind == '1' || kind == '2') && rnd.IntN(2) == 0 {
			n = -n
		}
		steps = append(steps, fmt.Sprintf("%c%d", kind, n))
	}
	return strings.Join(steps, " ")
}

// unfit reports whether a call would change what all tests share, or differs on purpose: see the
// table in docs/differences.md.
func unfit(c osCall) bool {
	outside := func(name string) bool { return strings.HasPrefix(name, "/") && !strings.HasPrefix(name, "//") }
	changes := c.Op != "ReadFile" && c.Op != "Stat" && c.Op != "Lstat" && c.Op != "ReadDir" && c.Op != "Readlink" && (c.Op != "OpenFile" || c.N != int64(os.O_RDONLY))
	switch {
	case outside(c.Name) && changes && c.Name != "/dev/full" && c.Name != "/sys/none" && c.Name != "/proc/none":
		return true
	case outside(c.Name) && (c.Op == "Chmod" || c.Op == "Chown" || c.Op == "Lchown" || c.Op == "Chtimes" || strings.HasPrefix(c.Op, "Re") && changes):
		return true
	case c.Op == "Rename" && outside(c.Other), c.Name == "dir/.." && changes, c.Name == "." && changes:
		return true
	case c.Name == "/proc/self", (c.Name == "/" || c.Name == "/root") && c.Op != "Readlink", c.Name == "/proc/version" && strings.HasSuffix(c.Op, "tat"):
		return true // changes while the test runs
	case (c.Op == "Rename" || c.Op == "Symlink") && (c.Name == "pipe" || c.Other == "pipe"):
		return true // it has one name, for the next line
	case c.Name == "pipe" && (c.Op == "OpenFile" || c.Op == "ReadFile" || strings.HasPrefix(c.Op, "Write")):
		return true // an open does not wait for the other end
	case c.Name == "/proc/none" && strings.HasPrefix(c.Op, "Write"):
		return true // that nobody may make it comes first, or that it can't be there
	case c.Op == "Symlink" && strings.HasPrefix(c.Other, "/"):
		return true // later calls would go there
	case c.Name == "/dev/full" && c.Op == "ReadFile":
		return true // it has no end
	case c.Op == "Rename" && c.Other == "":
		return true // which of two errors comes first
	case c.Name == "" && (c.Op == "RemoveAll" || c.Op == "Truncate" && c.N < 0):
		return true
	}
	return false
}

func osClass(err error) string {
	var errno syscall.Errno
	switch {
	case err == nil:
		return ""
	case errors.As(err, &errno):
		return errno.Error()
	}
	for _, known := range []error{io.EOF, fs.ErrExist, fs.ErrNotExist, fs.ErrPermission, fs.ErrInvalid} {
		if errors.Is(err, known) {
			return known.Error()
		}
	}
	if errors.Is(err, sandbox.ErrInvalidArgument) {
		return syscall.EINVAL.Error()
	}
	return "another error"
}

func describeInfo(info fs.FileInfo, err error) (string, error) {
	if err != nil {
		return "", err
	}
	st, size := info.Sys().(*sandbox.FileStat), info.Size()
	if info.IsDir() {
		size = 0
	}
	return fmt.Sprintf("%s %v %d of %d:%d %d names", info.Name(), info.Mode(), size, st.UID, st.GID, st.Nlink), nil
}

// callSandbox carries out a call by the sandbox's files.
func callSandbox(t *testing.T, f *sandbox.Files, c osCall) (string, error) {
	ctx := t.Context()
	mode := fs.FileMode(c.N & 0o777)
	for bit, m := range map[int64]fs.FileMode{0o4000: fs.ModeSetuid, 0o2000: fs.ModeSetgid, 0o1000: fs.ModeSticky} {
		if c.N&bit != 0 {
			mode |= m
		}
	}
	switch c.Op {
	case "ReadFile":
		b, err := f.ReadFile(ctx, c.Name)
		return string(b), err
	case "WriteFile":
		return "", f.WriteFile(ctx, c.Name, []byte("written"), mode)
	case "WriteFrom":
		_, err := f.WriteFrom(ctx, c.Name, strings.NewReader("written"), mode)
		return "", err
	case "Mkdir":
		return "", f.Mkdir(ctx, c.Name, mode)
	case "MkdirAll":
		return "", f.MkdirAll(ctx, c.Name, mode)
	case "Remove":
		return "", f.Remove(ctx, c.Name)
	case "RemoveAll":
		return "", f.RemoveAll(ctx, c.Name)
	case "Rename":
		return "", f.Rename(ctx, c.Name, c.Other)
	case "Symlink":
		return "", f.Symlink(ctx, c.Other, c.Name)
	case "Readlink":
		return f.Readlink(ctx, c.Name)
	case "Chmod":
		return "", f.Chmod(ctx, c.Name, mode)
	case "Chown":
		return "", f.Chown(ctx, c.Name, int(c.N), int(c.M))
	case "Lchown":
		return "", f.Lchown(ctx, c.Name, int(c.N), int(c.M))
	case "Chtimes":
		return "", f.Chtimes(ctx, c.Name, time.Unix(c.N, 5), time.Unix(c.M, 7))
	case "Truncate":
		return "", f.Truncate(ctx, c.Name, c.N)
	case "Stat":
		return describeInfo(f.Stat(ctx, c.Name))
	case "Lstat":
		return describeInfo(f.Lstat(ctx, c.Name))
	case "ReadDir":
		list, err := f.ReadDir(ctx, c.Name)
		var names []string
		for _, d := range list {
			names = append(names, d.Name()+" "+d.Type().String())
		}
		return strings.Join(names, ","), err
	case "OpenFile":
		return openSandbox(t, f, c)
	case "Use":
		open, err := f.OpenFile(ctx, c.Name, int(c.N), fs.FileMode(c.M))
		if err != nil {
			return "", err
		}
		defer open.Close()
		return steps.Use(open, c.Other, osClass), nil
	}
	return "", errors.New("no such call")
}

func openSandbox(t *testing.T, files *sandbox.Files, c osCall) (string, error) {
	f, err := files.OpenFile(t.Context(), c.Name, int(c.N), fs.FileMode(c.M))
	if err != nil {
		return "", err
	}
	defer f.Close()
	b := make([]byte, 5)
	n, readErr := f.Read(b)
	m, writeErr := f.Write([]byte("new"))
	return fmt.Sprintf("read %q %s, wrote %d %s", b[:n], osClass(readErr), m, osClass(writeErr)), nil
}

// Package os itself is the reference: it makes the same calls inside, as the same user.
func TestFileCallsAreAsThoseOfPackageOS(t *testing.T) {
	t.Parallel()
	sb := harness.NewSandbox(t)
	program, err := harness.BuildProgram("oscalls", runtime.GOARCH)
	if err != nil {
		t.Fatal(err)
	}
	if err := sb.WriteFile(t.Context(), "/usr/local/bin/oscalls", program, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, seed := range harness.Seeds(2, 60) {
		for _, user := range []string{"root", "node"} {
			t.Run(fmt.Sprintf("%s %d", user, seed), func(t *testing.T) {
				t.Parallel()
				ref, ours := fmt.Sprintf("/tmp/ref-%s-%d/in", user, seed), fmt.Sprintf("/tmp/our-%s-%d/in", user, seed) // links can lead to their parents
				for _, dir := range []string{ref, ours} {
					harness.Run(t, sb, "sh", "-ec", kinds, dir)
				}
				calls := []osCall{{Op: "MkdirAll", Name: "made/sticky", N: 0o1777}, {Op: "Mkdir", Name: "made/special", N: 0o7777},
					{Op: "MkdirAll", Name: "listed/dir", N: 0o755}, {Op: "Symlink", Name: "listed/link", Other: "x"}, {Op: "Chmod", Name: "listed", N: 0o444}, {Op: "ReadDir", Name: "listed"},
					{Op: "WriteFile", Name: "made/program", N: 0o755}, {Op: "Chmod", Name: "made/program", N: 0o6755}, {Op: "WriteFile", Name: "made/program", N: 0o755}, {Op: "Stat", Name: "made/program"},
					{Op: "WriteFile", Name: "loop/."}, {Op: "WriteFile", Name: "none/"}, {Op: "WriteFile", Name: "none/x/"}, {Op: "WriteFile", Name: "file/x/"}, {Op: "WriteFile", Name: "none/."}, {Op: "WriteFile", Name: "secret/."},
					{Op: "Use", Name: "file", N: int64(os.O_RDWR | os.O_APPEND), Other: "w300000 r3 0299999 r9 01 w0 r2 c0 w300000 1-2 r3 f50 t5 w2"}}
				calls = append(calls, randomCalls(rand.New(rand.NewPCG(seed, 1)), 300)...)
				want := callOS(t, sb, user, ref, calls)
				for i, c := range calls {
					value, err := callSandbox(t, sb.FilesAs(user), c.in(ours))
					if got := value + "|" + osClass(err); got != strings.ReplaceAll(want[i], ref, ours) {
						t.Fatalf("call %d, %+v: %q (%v), package os: %q", i, c, got, err, want[i])
					}
				}
				look := strings.Replace(describeScript, `|%T@|`, `|%U|%G|`, 1)
				if diff := cmp.Diff(harness.Run(t, sb, "sh", "-ec", look, ref), harness.Run(t, sb, "sh", "-ec", look, ours)); diff != "" {
					t.Errorf("afterwards (-os +sandbox):\n%s", diff)
				}
			})
		}
	}
}

// in returns the call with its paths below a directory.
func (c osCall) in(dir string) osCall {
	for _, name := range []*string{&c.Name, &c.Other} {
		if *name != "" && (!strings.HasPrefix(*name, "/") || strings.HasPrefix(*name, "//")) && (name == &c.Name || c.Op == "Rename") {
			*name = dir + "/" + *name
		}
	}
	return c
}

// callOS has the program inside make the calls, and returns the result of each.
func callOS(t *testing.T, sb *sandbox.Sandbox, user, dir string, calls []osCall) (results []string) {
	t.Helper()
	var in bytes.Buffer
	for _, c := range calls {
		if err := json.NewEncoder(&in).Encode(c.in(dir)); err != nil {
			t.Fatal(err)
		}
	}
	cmd := sb.Command(t.Context(), "oscalls")
	cmd.User, cmd.Stdin = user, &in
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var result string
		if err := d.Decode(&result); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		results = append(results, result)
	}
	if len(results) != len(calls) {
		t.Fatalf("%d results of %d calls", len(results), len(calls))
	}
	return results
}
