package files_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// randomPair makes two random trees, of which the second is to be merged into the first.
func randomPair(t *testing.T, seed uint64) (old, src string) {
	t.Helper()
	rnd := rand.New(rand.NewPCG(seed, 7))
	old, src = filepath.Join(t.TempDir(), "old"), filepath.Join(t.TempDir(), "src")
	for _, dir := range []string{old, src} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		harness.RandomTree(t, rnd, dir)
		harness.Shell(t, `find "$0" -type p -delete`, dir) // the report lists those
	}
	return old, src
}

// sameMerge compares what a copy made with what cp made of the same. Directories that were there
// before are as they were, of any time; cp gives them the source's attributes.
func sameMerge(t *testing.T, what, cp, got, before string) {
	t.Helper()
	was := map[string]string{} // the modes of directories
	for line := range strings.Lines(before) {
		if f := strings.Split(line, "|"); f[1] == "d" {
			was[f[0]] = f[2]
		}
	}
	lines := func(list string, mode func(name, is string) string) (out []string) {
		for line := range strings.Lines(list) {
			if f := strings.Split(line, "|"); was[f[0]] != "" {
				line = strings.Join([]string{f[0], f[1], mode(f[0], f[2]), f[5]}, "|")
			}
			out = append(out, line)
		}
		return out
	}
	want := lines(cp, func(name, _ string) string { return was[name] })
	if diff := cmp.Diff(want, lines(got, func(_, is string) string { return is })); diff != "" {
		t.Errorf("%s (-cp +copy):\n%s", what, diff)
	}
}

// conflicts are what would replace another kind: the name, and what cp and a copy say of it.
func conflicts(t *testing.T, src, dst string) (found [][3]string) {
	t.Helper()
	err := filepath.WalkDir(src, func(file string, d fs.DirEntry, err error) error {
		if err != nil || file == src {
			return err
		}
		name, _ := filepath.Rel(src, file)
		there, err := os.Lstat(filepath.Join(dst, name))
		switch {
		case err != nil || there.IsDir() == d.IsDir():
			return nil
		case d.IsDir():
			found = append(found, [3]string{name, "cannot overwrite non-directory", "it is not a directory at the destination, and a directory would replace it"})
			return fs.SkipDir
		}
		found = append(found, [3]string{name, "cannot overwrite directory", "it is a directory, and something else would replace it"})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// cp -a is the reference of copies of trees, new ones and merges.
func TestCopiesAreAsCpMakesThem(t *testing.T) {
	t.Parallel()
	for _, seed := range harness.Seeds(2, 100) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			sb := harness.Shared(t)
			old, src := randomPair(t, seed)
			ref, inside := filepath.Join(t.TempDir(), "ref"), fmt.Sprintf("cp%d", seed)
			for _, dir := range []string{ref, ref + ".old"} {
				if out, err := exec.Command("cp", "-a", old, dir).CombinedOutput(); err != nil {
					t.Fatalf("%v, %s", err, out)
				}
			}
			before := tree(t, ref)
			if _, err := sb.CopyIn(t.Context(), old, inside, sandbox.CopyOptions{}); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(before, treeInside(t, sb, inside)); diff != "" {
				t.Fatalf("a new copy (-cp +CopyIn):\n%s", diff)
			}
			// cp goes on behind what it can't replace, CopyIn stops there: without that both copy all.
			if conflicts := conflicts(t, src, ref); len(conflicts) > 0 {
				out, _ := exec.Command("cp", "-aT", "--remove-destination", src, ref).CombinedOutput()
				_, err := sb.CopyIn(t.Context(), src, inside, sandbox.CopyOptions{})
				found := false
				for _, c := range conflicts {
					found = found || err != nil && (strings.HasSuffix(err.Error(), "copy "+c[0]+": "+c[2]) || strings.HasSuffix(err.Error(), "copy "+strconv.Quote(c[0])+": "+c[2]))
					if !strings.Contains(string(out), c[1]) {
						t.Errorf("cp: %s, want that it %s %q", out, c[1], c[0])
					}
					harness.Shell(t, `rm -r "$0"`, filepath.Join(src, c[0]))
				}
				if !found || strings.Count(string(out), "cannot overwrite") != len(conflicts) || strings.Count(string(out), "cp: ") != len(conflicts) {
					t.Fatalf("CopyIn: %v; cp: %s, want %q", err, out, conflicts)
				}
				inside += "again"
				if _, err := sb.CopyIn(t.Context(), old, inside, sandbox.CopyOptions{}); err != nil {
					t.Fatal(err)
				}
				harness.Shell(t, `rm -r "$0"; mv "$0.old" "$0"`, ref)
			}
			if out, err := exec.Command("cp", "-aT", "--remove-destination", src, ref).CombinedOutput(); err != nil {
				t.Fatalf("%v, %s", err, out)
			}
			_, err := sb.CopyIn(t.Context(), src, inside, sandbox.CopyOptions{})
			if err != nil {
				t.Fatalf("CopyIn: %v", err)
			}
			sameMerge(t, "CopyIn", tree(t, ref), treeInside(t, sb, inside), before)

			// And back, over the old tree on this machine.
			if _, err := sb.CopyIn(t.Context(), src, inside+"src", sandbox.CopyOptions{}); err != nil {
				t.Fatal(err)
			}
			if _, err := sb.CopyOut(t.Context(), inside+"src", old, sandbox.CopyOptions{}); err != nil {
				t.Fatalf("CopyOut: %v", err)
			}
			sameMerge(t, "CopyOut", withoutPrivileges(tree(t, ref)), withoutPrivileges(tree(t, old)), withoutPrivileges(before))
		})
	}
}

// withoutPrivileges is a tree without setuid and setgid bits, which CopyOut drops.
func withoutPrivileges(list string) string {
	var out strings.Builder
	for line := range strings.Lines(list) {
		f := strings.Split(line, "|")
		if mode, err := strconv.ParseUint(f[2], 8, 32); err == nil && f[1] != "l" {
			f[2] = strconv.FormatUint(mode&0o1777, 8)
		}
		out.WriteString(strings.Join(f, "|"))
	}
	return out.String()
}

// docker cp of the contents of a directory is the reference of targets: directories that are there or
// not, by links, with dots and slashes.
func TestCopiesGoWhereDockerCpPutsThem(t *testing.T) {
	t.Parallel()
	c := harness.NewClient(t)
	sb := harness.CreateWith(t, c, nil)
	_, src := randomPair(t, 99)
	targets := []string{"/.", "/dir", "/link/", "/link/sub", "/dir/../new", "/dangling", "/dangling2"}
	if harness.Soaking() {
		targets = append(targets, "/", "/dir/", "/dir/.", "/link", "/dir/../dir", "/new", "/dir/new/", "//dir//sub")
	}
	prepare := `mkdir -p "$0/dir/sub"; chmod 1777 "$0"; chmod 711 "$0/dir"; ln -s dir "$0/link"; ln -s link/gone "$0/dangling"; ln -s dangling "$0/dangling2"`
	look := strings.Replace(describeScript, `|%T@|`, `||`, 1)
	for i, to := range targets {
		ref, ours := fmt.Sprintf("/ref%d", i), fmt.Sprintf("/our%d", i)
		for _, dir := range []string{ref, ours} {
			harness.Run(t, sb, "sh", "-ec", prepare, dir)
		}
		if out, err := exec.CommandContext(t.Context(), "docker", "cp", src+"/.", "agent-sandbox-"+sb.Name()+":"+ref+to).CombinedOutput(); err != nil {
			t.Fatalf("docker cp to %q: %v, %s", to, err, out)
		}
		target := ours + to
		if to != "/" && to != "" {
			target = strings.TrimSuffix(target, "/") // with a slash the copy gets the source's name
		}
		if _, err := sb.CopyIn(t.Context(), src, strings.TrimSuffix(target, "/"), sandbox.CopyOptions{}); err != nil {
			t.Errorf("CopyIn to %q: %v", to, err)
			continue
		}
		if diff := cmp.Diff(withoutPrivileges(harness.Run(t, sb, "sh", "-ec", look, ref)), withoutPrivileges(harness.Run(t, sb, "sh", "-ec", look, ours))); diff != "" {
			t.Errorf("to %q (-docker cp +CopyIn):\n%s", to, diff)
		}

		// And out again, by the same ways.
		here := t.TempDir()
		for _, dir := range []string{"theirs", "mine"} {
			harness.Shell(t, prepare, filepath.Join(here, dir))
		}
		if err := exec.CommandContext(t.Context(), "docker", "cp", "agent-sandbox-"+sb.Name()+":"+ours+"/.", filepath.Join(here, "theirs")+to).Run(); (err != nil) != (to == "/link/") {
			t.Fatalf("docker cp to %q: %v, want an error of a link with a slash alone", to, err)
		} else if err != nil {
			continue
		}
		if _, err := sb.CopyOut(t.Context(), ours, strings.TrimSuffix(filepath.Join(here, "mine")+to, "/"), sandbox.CopyOptions{}); err != nil {
			t.Errorf("CopyOut to %q: %v", to, err)
			continue
		}
		if diff := cmp.Diff(withoutPrivileges(hereWithoutTimes(t, filepath.Join(here, "theirs"))), withoutPrivileges(hereWithoutTimes(t, filepath.Join(here, "mine")))); diff != "" {
			t.Errorf("to %q (-docker cp +CopyOut):\n%s", to, diff)
		}
	}
}

// docker cp of a file is the reference of targets that are links, whatever they lead to.
func TestCopiesOfAFileGoWhereDockerCpPutsThem(t *testing.T) {
	t.Parallel()
	c := harness.NewClient(t)
	sb := harness.CreateWith(t, c, nil)
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("new"), 0o640); err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	prepare := fmt.Sprintf(`mkdir -p "$0/dir"; cd "$0"; echo old >old; mkfifo fifo; ln -s old link; ln -s ../old dir/link; ln -s dir/link link2; ln -s dir/gone dangling
		ln -s dangling dangling2; ln -s none/gone nowhere; ln -s fifo special; ln -s /proc/self/fd/%d pipe; ln -s loop loop; ln -s dir to-dir`, w.Fd())
	look := strings.Replace(describeScript, `|%T@|`, `||`, 1)
	errs := map[string]*regexp.Regexp{ // of the others is none
		"nowhere": regexp.MustCompile(`no such file or directory$`), "loop": regexp.MustCompile(`too many levels of symbolic links$`),
		"fifo": regexp.MustCompile(`it is a named pipe, and a file would replace it$`), "special": regexp.MustCompile(`it is a named pipe, and a file would replace it$`), "pipe": regexp.MustCompile(`it is a named pipe, and a file would replace it$`),
	}
	for i, to := range []string{"new", "old", "link", "link2", "dangling", "dangling2", "nowhere", "fifo", "special", "pipe", "loop"} {
		ref, ours := fmt.Sprintf("/ref%d", i), fmt.Sprintf("/our%d", i)
		here := t.TempDir()
		harness.Run(t, sb, "sh", "-c", "printf new >/file; chmod 640 /file")
		for _, dir := range []string{ref, ours} {
			harness.Run(t, sb, "sh", "-ec", prepare, dir)
			harness.Shell(t, prepare, here+dir)
		}
		docker := func(from, to string) error { return exec.CommandContext(t.Context(), "docker", "cp", from, to).Run() }
		if slices.Contains([]string{"fifo", "special", "pipe", "loop"}, to) {
			docker = func(string, string) error { return errors.New("refused") } // it would replace some of them
		}
		box := "agent-sandbox-" + sb.Name() + ":"
		if to != "pipe" { // of this program
			refErr := docker(file, box+ref+"/"+to)
			_, err := sb.CopyIn(t.Context(), file, ours+"/"+to, sandbox.CopyOptions{})
			if want := errs[to]; want == nil && (err != nil || refErr != nil) || want != nil && (refErr == nil || !want.MatchString(fmt.Sprint(err))) {
				t.Errorf("CopyIn to %s: %v; docker cp: %v", to, err, refErr)
			}
			if diff := cmp.Diff(harness.Run(t, sb, "sh", "-ec", look, ref), harness.Run(t, sb, "sh", "-ec", look, ours)); diff != "" {
				t.Errorf("CopyIn to %s (-docker cp +CopyIn):\n%s", to, diff)
			}
		}
		refErr := docker(box+"/file", here+ref+"/"+to)
		_, err := sb.CopyOut(t.Context(), "/file", here+ours+"/"+to, sandbox.CopyOptions{})
		if want := errs[to]; want == nil && (err != nil || refErr != nil) || want != nil && (refErr == nil || !want.MatchString(fmt.Sprint(err))) {
			t.Errorf("CopyOut to %s: %v; docker cp: %v", to, err, refErr)
		}
		if diff := cmp.Diff(hereWithoutTimes(t, here+ref), hereWithoutTimes(t, here+ours)); diff != "" {
			t.Errorf("CopyOut to %s (-docker cp +CopyOut):\n%s", to, diff)
		}
	}
}

// cp, in directories that mkdir -p makes, is the reference of ".." behind links: it leads where the kernel goes.
func TestDotDotBehindALinkIsTheKernels(t *testing.T) {
	t.Parallel()
	sb := harness.NewSandbox(t)
	src := filepath.Join(t.TempDir(), "src")
	prepare := `mkdir -p "$0/at/srv/deep/x" "$0/at/work"; cd "$0"; mkdir tree; printf x >tree/in; printf f >file; ln -s ../srv/deep/x at/work/la; printf old >at/srv/deep/f; mkdir at/srv/deep/t; ln -s la at/work/lb`
	harness.Shell(t, prepare, src)
	look := strings.Replace(describeScript, `|%T@|`, `||`, 1)
	cp := `cd "$0"; case "$2" in */..) cp -a "$1/." "$2" ;; *) mkdir -p "$(dirname "$2")"; cp -aT "$1" "$2" ;; esac`
	for i, to := range []string{"la/../f", "la/../new", "lb/../new", "la/../t", "la/../../new/deep", "la/..", "la/../", "la/.././.", "la/y/../z", "none/../new", "la/../f/../new"} {
		for _, what := range []string{"file", "tree"} {
			if strings.HasPrefix(to, "la/..") && strings.Trim(to, "la/.") == "" && what == "file" || to == "la/../f" && what == "tree" || to == "la/../t" && what == "file" {
				continue // cp has another error, or puts it in
			}
			dir := fmt.Sprintf("/%s%d", what, i)
			harness.Run(t, sb, "sh", "-ec", prepare, "/ref"+dir)
			harness.Run(t, sb, "sh", "-ec", prepare, "/our"+dir)
			ref := sb.Command(t.Context(), "sh", "-ec", cp, "/ref"+dir, what, "at/work/"+to)
			refErr := ref.Run()
			_, err := sb.CopyIn(t.Context(), src+"/"+what, strings.TrimSuffix("/our"+dir+"/at/work/"+to, "/"), sandbox.CopyOptions{})
			if fails := to == "la/../f/../new"; (err != nil) != fails || (refErr != nil) != fails {
				t.Errorf("CopyIn of a %s to %s: %v; cp: %v", what, to, err, refErr)
			}
			if diff := cmp.Diff(harness.Run(t, sb, "sh", "-ec", look, "/ref"+dir), harness.Run(t, sb, "sh", "-ec", look, "/our"+dir)); diff != "" {
				t.Errorf("CopyIn of a %s to %s (-cp +CopyIn):\n%s", what, to, diff)
			}

			here := t.TempDir()
			harness.Shell(t, prepare, here+"/ref")
			harness.Shell(t, prepare, here+"/our")
			refErr = exec.Command("sh", "-ec", cp, here+"/ref", what, "at/work/"+to).Run()
			_, err = sb.CopyOut(t.Context(), "/ref"+dir+"/"+what, strings.TrimSuffix(here+"/our/at/work/"+to, "/"), sandbox.CopyOptions{})
			if fails := to == "la/../f/../new"; (err != nil) != fails || (refErr != nil) != fails {
				t.Errorf("CopyOut of a %s to %s: %v; cp: %v", what, to, err, refErr)
			}
			if diff := cmp.Diff(hereWithoutTimes(t, here+"/ref"), hereWithoutTimes(t, here+"/our")); diff != "" {
				t.Errorf("CopyOut of a %s to %s (-cp +CopyOut):\n%s", what, to, diff)
			}
		}
	}
	to := t.TempDir()
	harness.Shell(t, prepare, to)
	if _, err := sb.CopyOut(t.Context(), "/ref/file0/file", to+"/at/work/la/../", sandbox.CopyOptions{}); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(to + "/at/srv/deep/file"); err != nil || string(got) != "f" {
		t.Errorf("CopyOut into la/../: %q, %v", got, err)
	}
}

// What tar extracts of CopyOutTar's archive is the tree, whatever its files are called. So is a copy of the sandbox's FS; what a stopped
// sandbox, or another file system, does not open by its name is reported.
func TestCopyOutTarHasTheTree(t *testing.T) {
	t.Parallel()
	c := harness.NewClient(t)
	sb, other := harness.CreateWith(t, c, nil), harness.NewSandbox(t)
	harness.Run(t, sb, "sh", "-ec", fullTree+`; mkdir "$(printf 'd\351r')"; echo x >"$(printf 'd\351r/caf\351.txt')"; printf s >"$(printf 'd\351r/ok')"; printf s >'a\b'; printf s >-rf; printf s >' '; printf s >...`, "/workspace/full")
	script := strings.Replace(strings.Replace(describeScript, "|%T@|", "||", 1), "|%n|", "||", 1)
	inside := func(sb *sandbox.Sandbox, dir string) string {
		return withoutPrivileges(harness.Run(t, sb, "sh", "-ec", script, dir))
	}
	lines := func(list string, keep func(name, kind string) bool) (kept []string) {
		for line := range strings.Lines(list) {
			if f := strings.SplitN(line, "|", 3); keep(f[0], f[1]) {
				kept = append(kept, strings.TrimSuffix(line, "\n"))
			}
		}
		return kept
	}
	full := inside(sb, "full")
	check := func(state string, keep func(name, kind string) bool, left ...sandbox.Skipped) {
		want := lines(full, keep)
		left = append([]sandbox.Skipped{{Path: "a/ü", Reason: "its setuid bit"}}, left...)
		var b bytes.Buffer
		report, err := sb.CopyOutTar(t.Context(), "full", &b, sandbox.CopyOptions{})
		if diff := cmp.Diff(left, report.Skipped); diff != "" || err != nil {
			t.Errorf("%s, CopyOutTar: %v, skipped (-want +got):\n%s", state, err, diff)
		}
		dir := t.TempDir()
		extract := exec.Command("tar", "-xpC", dir)
		extract.Stdin = &b
		describe(t, extract)
		if diff := cmp.Diff(want, lines(withoutPrivileges(describe(t, exec.Command("sh", "-ec", script, dir))), anything)); diff != "" {
			t.Errorf("%s (-tree +CopyOutTar):\n%s", state, diff)
		}
		sub, err := fs.Sub(sb.FS(), "workspace/full")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := other.CopyInFS(t.Context(), sub, state, sandbox.CopyOptions{}); err != nil {
			t.Errorf("%s, CopyInFS: %v", state, err)
		}
		if diff := cmp.Diff(want, lines(inside(other, state), anything)); diff != "" {
			t.Errorf("%s (-tree +CopyInFS):\n%s", state, diff)
		}
	}
	check("running", anything)
	here := filepath.Join(t.TempDir(), "here")
	if _, err := sb.CopyOut(t.Context(), "full", here, sandbox.CopyOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := sb.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	const why = "its name is not UTF-8"
	check("stopped", func(name, kind string) bool { return kind == "d" || utf8.ValidString(filepath.Base(name)) },
		sandbox.Skipped{Path: `"a/\xff\xfe"`, Reason: why}, sandbox.Skipped{Path: `"d\xe9r/caf\xe9.txt"`, Reason: why})
	report, err := other.CopyInFS(t.Context(), os.DirFS(here), "here", sandbox.CopyOptions{})
	if diff := cmp.Diff([]sandbox.Skipped{{Path: `"a/\xff\xfe"`, Reason: why}, {Path: `"d\xe9r"`, Reason: why}}, report.Skipped); diff != "" || err != nil {
		t.Errorf("CopyInFS of files of this machine: %v, skipped (-want +got):\n%s", err, diff)
	}
	want := lines(full, func(name, _ string) bool { return utf8.ValidString(name) })
	if diff := cmp.Diff(want, lines(inside(other, "here"), anything)); diff != "" {
		t.Errorf("CopyInFS of files of this machine (-tree +copy):\n%s", diff)
	}
}

func anything(string, string) bool { return true }

// The engine's archives have no holes.
func TestHolesOfAStoppedSandboxStayHoles(t *testing.T) {
	t.Parallel()
	c := harness.NewClient(t)
	sb := harness.CreateWith(t, c, nil)
	harness.Run(t, sb, "sh", "-ec", `mkdir d; cd d; truncate -s 50M hole middle end; echo x >>end; printf x | dd of=middle bs=1 seek=20000000 conv=notrunc status=none; echo x | dd of=start conv=notrunc status=none; truncate -s 50000001 start
		ln middle again; : >nothing; head -c 300000 /dev/urandom >full; touch -d 2001-01-01 . *`)
	look := strings.Replace(describeScript, `|%n|`, `||`, 1)
	want := harness.Run(t, sb, "sh", "-ec", look, "d")
	if _, err := sb.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	to := t.TempDir()
	if _, err := sb.CopyOut(t.Context(), "d", to+"/d", sandbox.CopyOptions{}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, describe(t, exec.Command("sh", "-ec", look, to+"/d"))); diff != "" {
		t.Errorf("(-sandbox +copy):\n%s", diff)
	}
	if _, err := sb.CopyOut(t.Context(), "d/middle", to+"/", sandbox.CopyOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"d/hole", "d/middle", "d/end", "d/start", "middle"} {
		var st unix.Stat_t
		if err := unix.Stat(filepath.Join(to, name), &st); err != nil || st.Size < 50_000_000 || st.Blocks*512 > 1<<20 {
			t.Errorf("%s of %d bytes takes %d, %v", name, st.Size, st.Blocks*512, err)
		}
	}
}

func hereWithoutTimes(t *testing.T, dir string) string {
	t.Helper()
	return describe(t, exec.Command("sh", "-ec", strings.Replace(describeScript, `|%T@|`, `||`, 1), dir))
}

// docker cp and cp -r leave a directory that is there as it is; so do copies, whatever their source
// is and wherever they go.
func TestCopiesLeaveDirectoriesThatAreThere(t *testing.T) {
	t.Parallel()
	sb := harness.NewSandbox(t)
	private := filepath.Join(t.TempDir(), "private")
	harness.Shell(t, `mkdir -m 700 "$0"; mkdir -m 700 "$0/sub"; echo x >"$0/sub/f"; touch -d 2001-01-01 "$0/sub" "$0"`, private)
	dirs := `stat -c '%n %a %u:%g' / /tmp /usr /usr/local /usr/local/bin /workspace /workspace/sub /etc`
	harness.Run(t, sb, "sh", "-ec", `mkdir -m 711 /workspace/sub /tmp/sub /usr/local/bin/sub; chown 1000:5 /workspace/sub; mkdir /private; cp -a /etc/hostname /tmp/hosts`)
	before := harness.Run(t, sb, "sh", "-c", dirs)
	embed := fstest.MapFS{"sub/g": {}}
	for _, to := range []string{"/tmp", "/usr/local/bin", "/workspace", ".", "./", "/.", "/tmp/.", "/usr/./local/bin"} {
		target := to
		if to == "./" {
			target = "."
		}
		if _, err := sb.CopyIn(t.Context(), private, target, sandbox.CopyOptions{}); err != nil {
			t.Errorf("CopyIn to %q: %v", target, err)
		}
		if _, err := sb.CopyInFS(t.Context(), embed, to, sandbox.CopyOptions{}); err != nil {
			t.Errorf("CopyInFS to %q: %v", to, err)
		}
	}
	for _, to := range []string{"/", "//", "/./"} {
		if _, err := sb.CopyInFS(t.Context(), embed, to, sandbox.CopyOptions{}); err != nil {
			t.Errorf("CopyInFS to %q: %v", to, err)
		}
	}
	if _, err := sb.CopyIn(t.Context(), private, "/", sandbox.CopyOptions{}); err != nil { // under its own name
		t.Error(err)
	}
	if diff := cmp.Diff(before, harness.Run(t, sb, "sh", "-c", dirs)); diff != "" {
		t.Errorf("directories that were there (-before +after):\n%s", diff)
	}
	if got := harness.Run(t, sb, "sh", "-c", "ls /sub /tmp/sub /private/sub"); got != "/private/sub:\nf\n\n/sub:\nf\ng\n\n/tmp/sub:\nf\ng" {
		t.Errorf("copied: %q", got)
	}
	// As another user, in a directory of his own, from embedded files.
	node := sb.FilesAs("node")
	if _, err := node.CopyInFS(t.Context(), fstest.MapFS{"project/sub/f": {Mode: 0o444}}, "/home/node/p", sandbox.CopyOptions{}); err != nil {
		t.Fatal(err)
	}
	cmd := sb.Command(t.Context(), "sh", "-ec", "cd ~/p; touch new project/new project/sub/new; echo y >>project/sub/f; find . -not -newermt 1971-01-01; rm -r project")
	cmd.User = "node"
	if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("in what was embedded: %v, %s", err, out)
	}
}

// Who may search a directory, or write to it, need not be allowed to list it. cp is the reference of copies from and to such
// directories, of their files and of the trees in them.
func TestCopiesInDirectoriesThatCanNotBeListedAreAsCpMakesThem(t *testing.T) {
	t.Parallel()
	sb := harness.Shared(t)
	node := sb.FilesAs("node")
	src := filepath.Join(t.TempDir(), "src")
	harness.Shell(t, `mkdir -p "$0/sub/deep" "$0/new"; cd "$0"; echo f >f; echo g >sub/g; echo h >sub/deep/h; ln -s f link; ln f hard; ln f sub/hard; echo n >new/n; touch -hd 2001-01-01 f link new/n new sub/g sub/deep/h sub/deep sub .`, src)
	harness.Run(t, sb, "sh", "-ec", `for i in cp copy; do
		mkdir -pm 777 /unlisted/out; mkdir -p /unlisted/$i/theirs/sub /unlisted/$i/drop/sub /unlisted/$i/given; cd /unlisted/$i
		chown node given; echo old >drop/f; chown node drop/f; chmod 733 drop drop/sub . ; chmod 711 theirs; done`)
	if _, err := sb.CopyIn(t.Context(), src, "/unlisted/copy/theirs", sandbox.CopyOptions{}); err != nil {
		t.Fatal(err)
	}
	harness.Run(t, sb, "sh", "-ec", "cd /unlisted; cp -a copy/theirs/. cp/theirs; cp -a copy/theirs src; chmod 755 src; touch -d 2001-01-01 src/sub src")
	before := treeInside(t, sb, "/unlisted/cp")
	for _, to := range []string{"drop", "given", "new", "file"} {
		from := src
		if to == "file" {
			from = filepath.Join(src, "f")
		}
		if _, err := node.CopyIn(t.Context(), from, "/unlisted/copy/"+to, sandbox.CopyOptions{}); err != nil {
			t.Errorf("CopyIn to %s: %v", to, err)
		}
	}
	// cp fails to give the directories of others the attributes of the source's, and copies what is in them.
	cp := sb.Command(t.Context(), "sh", "-c", `cd /unlisted/cp; for to in drop given new; do cp -aT --remove-destination /unlisted/src $to; done; cp -a /unlisted/src/f file
		cd ../copy; for from in new theirs/sub theirs/f; do cp -a $from /unlisted/out; done`)
	cp.User = "node"
	said, err := cp.CombinedOutput()
	if err != nil {
		t.Fatalf("cp: %v, %s", err, said)
	}
	sameMerge(t, fmt.Sprintf("CopyIn, where cp said %q", said), treeInside(t, sb, "/unlisted/cp"), treeInside(t, sb, "/unlisted/copy"), before)

	out := filepath.Join(t.TempDir(), "out")
	if err := os.Mkdir(out, 0o777); err != nil {
		t.Fatal(err)
	}
	for _, from := range []string{"new", "theirs/sub", "theirs/f"} {
		if _, err := node.CopyOut(t.Context(), "/unlisted/copy/"+from, out+"/", sandbox.CopyOptions{}); err != nil {
			t.Errorf("CopyOut of %s: %v", from, err)
		}
	}
	sameMerge(t, "CopyOut", treeInside(t, sb, "/unlisted/out"), tree(t, out), "|d|755|")
}

// A mount point can't be replaced: as by cp -a and WriteFile, it gets the content, and the attributes.
func TestCopiesOntoMountPointsAreAsCpMakesThem(t *testing.T) {
	t.Parallel()
	sb := harness.NewSandbox(t)
	dir := filepath.Join(t.TempDir(), "etc")
	harness.Shell(t, `mkdir "$0"; cd "$0"; echo 127.0.0.1 here >hosts; chmod 640 hosts; echo other >resolv.conf; ln hosts hard; touch -d 2001-01-01 hosts resolv.conf`, dir)
	if _, err := sb.CopyIn(t.Context(), dir, "/ref", sandbox.CopyOptions{}); err != nil {
		t.Fatal(err)
	}
	look := `cd /etc; stat -c '%n %a %Y %s %U' hosts resolv.conf; cat hosts resolv.conf; grep -c ' /etc/hosts ' /proc/self/mountinfo; ls -A | grep agent-sandbox || true`
	want := harness.Run(t, sb, "sh", "-ec", "cp -a /ref/hosts /ref/resolv.conf /etc; "+look)
	archived := func() io.Reader {
		out, err := exec.CommandContext(t.Context(), "tar", "-C", dir, "-cf", "-", "hard", "hosts", "resolv.conf").Output()
		if err != nil {
			t.Fatal(err)
		}
		return bytes.NewReader(out)
	}
	each := func(copy func(name string) error) error { return errors.Join(copy("hosts"), copy("resolv.conf")) }
	for how, copy := range map[string]func() error{
		"CopyIn of files": func() error {
			return each(func(name string) error {
				return harness.Second(sb.CopyIn(t.Context(), dir+"/"+name, "/etc/"+name, sandbox.CopyOptions{}))
			})
		},
		"CopyIn into a directory": func() error {
			return each(func(name string) error {
				return harness.Second(sb.CopyIn(t.Context(), dir+"/"+name, "/etc/", sandbox.CopyOptions{}))
			})
		},
		"CopyIn of a tree": func() error { return harness.Second(sb.CopyIn(t.Context(), dir, "/etc", sandbox.CopyOptions{})) },
		"CopyInFS": func() error {
			return harness.Second(sb.CopyInFS(t.Context(), os.DirFS(dir), "/etc", sandbox.CopyOptions{}))
		},
		"CopyInTar": func() error {
			return harness.Second(sb.CopyInTar(t.Context(), archived(), "/etc", sandbox.CopyOptions{}))
		},
	} {
		harness.Run(t, sb, "sh", "-c", "cd /etc; echo old and longer than the new one >hosts; echo old >resolv.conf; chmod 644 hosts resolv.conf")
		if err := copy(); err != nil {
			t.Errorf("%s: %v", how, err)
		}
		if diff := cmp.Diff(want, harness.Run(t, sb, "sh", "-ec", look)); diff != "" {
			t.Errorf("%s (-cp +copy):\n%s", how, diff)
		}
	}
}

// Whatever a sandbox holds, running or stopped: a directory of this machine keeps its permissions.
func TestCopyOutLeavesDirectoriesOfThisMachine(t *testing.T) {
	t.Parallel()
	c := harness.NewClient(t)
	sb := harness.CreateWith(t, c, nil)
	harness.Run(t, sb, "sh", "-ec", `mkdir -p out/sub/deep; echo x >out/sub/deep/f; chmod 0 out/sub/deep; chmod 777 out; chmod 1777 out/sub; touch -d 2001-01-01 out out/sub out/sub/deep`)
	check := func(how string) {
		to := filepath.Join(t.TempDir(), "to")
		harness.Shell(t, `mkdir -m 700 "$0" "$0/sub"; chown 12:34 "$0/sub"; chmod 2700 "$0/sub"`, to)
		if _, err := sb.CopyOut(t.Context(), "out", to, sandbox.CopyOptions{}); err != nil {
			t.Fatalf("%s: %v", how, err)
		}
		var st unix.Stat_t
		for name, want := range map[string]string{".": "40700 0:0", "sub": "42700 12:34", "sub/deep": "40000 0:34"} {
			if err := unix.Stat(filepath.Join(to, name), &st); err != nil {
				t.Fatal(err)
			}
			if got := fmt.Sprintf("%o %d:%d", st.Mode, st.Uid, st.Gid); got != want {
				t.Errorf("%s: %s is %s, want %s", how, name, got, want)
			}
			if year := time.Unix(st.Mtim.Unix()).Year(); (year == 2001) != (name == "sub/deep") {
				t.Errorf("%s: %s is of %d", how, name, year)
			}
		}
	}
	check("running")
	if _, err := sb.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	check("stopped")
}

// The kernel tells no size of what is in /proc.
func TestFilesInProcAreCopied(t *testing.T) {
	t.Parallel()
	sb := harness.Shared(t)
	to := t.TempDir()
	for _, name := range []string{"/proc/version", "/proc/cpuinfo", "/proc/1/limits", "/proc/meminfo", "/sys/fs/cgroup/memory/memory.stat", "/sys/kernel/mm/transparent_hugepage/enabled"} {
		want := harness.Run(t, sb, "cat", name)
		if _, err := sb.CopyOut(t.Context(), name, to+"/", sandbox.CopyOptions{}); err != nil {
			t.Errorf("CopyOut(%s): %v", name, err)
			continue
		}
		if b, err := os.ReadFile(filepath.Join(to, filepath.Base(name))); err != nil || strings.Count(strings.TrimSpace(string(b)), "\n") != strings.Count(want, "\n") {
			t.Errorf("%s: %q, %v, want %q", name, b, err, want)
		}
	}
	if _, err := sb.CopyIn(t.Context(), "/proc/cpuinfo", "cpuinfo", sandbox.CopyOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := harness.Run(t, sb, "cat", "cpuinfo"); !strings.Contains(got, "processor") {
		t.Errorf("CopyIn(/proc/cpuinfo): %q", got)
	}
	sys, err := fs.Sub(sb.FS(), "proc/sys/kernel/random")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := sb.CopyInFS(t.Context(), sys, "random", sandbox.CopyOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := harness.Run(t, sb, "cat", "random/poolsize"); got == "" {
		t.Error("CopyInFS of /proc/sys/kernel/random: an empty file")
	}
}

// File systems store more years than nanoseconds since 1970 reach.
func TestTimesOfAnyYearAreKept(t *testing.T) {
	t.Parallel()
	sb := harness.Shared(t)
	harness.Run(t, sb, "mkdir", "years")
	fsys := fstest.MapFS{}
	for _, year := range []int{1, 1677, 1678, 1901, 1969, 1970, 2038, 2106, 2262, 2263, 2500, 9999} {
		when := time.Date(year, 3, 4, 5, 6, 7, 89, time.UTC)
		fsys[fmt.Sprint(year)] = &fstest.MapFile{ModTime: when}
		name := fmt.Sprintf("years/%d.t", year)
		harness.Write(t, sb, name, "")
		if err := sb.Chtimes(t.Context(), name, when.Add(time.Hour), when); err != nil {
			t.Errorf("Chtimes to %d: %v", year, err)
		}
	}
	if _, err := sb.CopyInFS(t.Context(), fsys, "years", sandbox.CopyOptions{}); err != nil {
		t.Fatal(err)
	}
	for name, file := range fsys {
		for _, suffix := range []string{"", ".t"} {
			info, err := sb.Stat(t.Context(), "years/"+name+suffix)
			if err != nil {
				t.Fatal(err)
			}
			if !info.ModTime().Equal(file.ModTime) {
				t.Errorf("%s%s is of %v", name, suffix, info.ModTime().UTC())
			}
			if at := info.Sys().(*sandbox.FileStat).Atime; suffix != "" && !at.Equal(file.ModTime.Add(time.Hour)) {
				t.Errorf("%s%s was read at %v", name, suffix, at.UTC())
			}
			if got := harness.Run(t, sb, "date", "-u", "-r", "years/"+name+suffix, "+%Y"); strings.TrimLeft(got, "0") != name {
				t.Errorf("%s%s inside is of %s", name, suffix, got)
			}
		}
	}
}

// A file has no place in a directory's, and no name of its own there.
func TestCopyOfAFileOverADirectoryIsAnError(t *testing.T) {
	t.Parallel()
	sb := harness.Shared(t)
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, to := range []string{"/.", ".", "/tmp", "/tmp/."} {
		if _, err := sb.CopyIn(t.Context(), file, to, sandbox.CopyOptions{}); err == nil || !strings.Contains(err.Error(), "it is a directory") || errors.Is(err, fs.ErrNotExist) {
			t.Errorf("CopyIn of a file to %q: %v", to, err)
		}
	}
}

// A sandbox that is stopped is read through the engine. Its errors are the kernel's all the same.
func TestErrorsOfAStoppedSandboxAreTheKernels(t *testing.T) {
	t.Parallel()
	c := harness.NewClient(t)
	sb := harness.CreateWith(t, c, nil)
	harness.Run(t, sb, "sh", "-ec", `echo x >f; ln -s nowhere dangling; ln -s loop loop; ln -s loop/x below; mkdir d; ln -s d to-d; ln -s f to-f
		mkdir -p srv/deep/er; ln -s srv/deep/er to-deep; ln -s ../deep srv/up; echo f of srv >srv/deep/f; echo g of srv >srv/f`)
	calls := func() map[string]string {
		errs := map[string]string{}
		for _, name := range []string{"none", "none/x", "d/none", "dangling", "loop", "below", "f/x", "f/", "to-f/x", "d", "to-d", "f",
			"to-deep/../f", "to-deep/../../f", "to-deep/..", "to-deep/../", "none/../f", "f/../f", "f/..", "loop/../f", "srv/up/../f", "../workspace/../../workspace/f", "...", "d/..x"} {
			for call, err := range map[string]error{
				"ReadFile": harness.Second(sb.ReadFile(t.Context(), name)), "Stat": harness.Second(sb.Stat(t.Context(), name)),
				"Lstat": harness.Second(sb.Lstat(t.Context(), name)), "ReadDir": harness.Second(sb.ReadDir(t.Context(), name)),
				"Open": harness.Second(sb.Open(t.Context(), name)), "CopyOut": harness.Second(sb.CopyOut(t.Context(), name, filepath.Join(t.TempDir(), "to"), sandbox.CopyOptions{})),
			} {
				class := fmt.Sprint(err)
				for _, known := range []error{fs.ErrNotExist, syscall.ELOOP, syscall.ENOTDIR, syscall.EISDIR} {
					if errors.Is(err, known) {
						class = known.Error()
					}
				}
				if err != nil && (strings.Contains(err.Error(), "http") || strings.Contains(err.Error(), "merged")) {
					t.Errorf("%s(%s): %v", call, name, err)
				}
				if call == "Lstat" && (name == "loop" || name == "below") {
					continue // the engine resolves a link before it tells what it is
				}
				errs[call+" "+name] = class
			}
			content, _ := sb.ReadFile(t.Context(), name)
			errs["content of "+name] = string(content)
			if f, err := sb.Open(t.Context(), name); err == nil {
				info, err := f.Stat()
				errs["name of "+name] = fmt.Sprint(info.Name(), err, f.Close())
			}
		}
		return errs
	}
	want := calls()
	if _, err := sb.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, calls()); diff != "" {
		t.Errorf("(-running +stopped):\n%s", diff)
	}
	report, err := sb.CopyOut(t.Context(), ".", filepath.Join(t.TempDir(), "all"), sandbox.CopyOptions{})
	if err != nil || len(report.Skipped) != 1 || !strings.Contains(report.Skipped[0].Reason, "fractions of seconds") {
		t.Errorf("CopyOut: %+v, %v; want that it says what a stopped sandbox's copy lacks", report, err)
	}
}
