package ssh_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// filesOfTest is a directory with a file of each kind that a request can meet.
const filesOfTest = `set -e; umask 022
rm -rf /tmp/t; mkdir /tmp/t; cd /tmp/t; chown "$1" .
echo first >a; mkdir -p d/e empty locked; echo x >d/x; ln -s a la; ln -s d ld; ln -s nowhere dangling; ln -s loop loop; ln -s ../t/d/x d/up; ln a hard
mkfifo fifo; echo secret >locked/f; chmod 700 locked; printf 0123456789 >digits; mkdir full; touch full/ü full/"two words"
chmod 640 digits; : >nothing; mkdir sticky; chmod 1777 sticky; echo root >sticky/roots; chown -h "$1" a d d/e d/x d/up la ld dangling digits empty nothing full full/*
touch -h -d '2001-02-03 04:05:06' a la d/x digits full/*; touch -h -d '2001-02-03 04:05:06' d ld full . `

// tree is what has become of it: all that can be seen of files but the times that the test itself makes.
const tree = `cd /tmp/t && find . -printf '%p %y %m %U:%G %n %l %s\n' | sed 's/^\(.* d .*\) [0-9]*$/\1/' | sort
find . -type f -exec sh -c 'for f; do echo "$f: $(od -An -c "$f" | head -c 400)"; done' sh {} + | sort
find . ! -newermt '2020-01-01' -printf '%p %T+\n' -o -newermt '2030-01-01' -printf '%p %T+\n' | sort`

// A step is one generated request, with handles by name.
type step struct {
	what string
	do   func(*rawSFTP) string
}

// generator makes requests, the same ones for the same seed.
type generator struct{ *rand.Rand }

func pick[T any](g generator, of ...T) T { return of[g.IntN(len(of))] }

func (g generator) path() string {
	names := []string{"a", "d", "d/e", "d/x", "la", "ld", "ld/x", "dangling", "loop", "d/up", "hard", "digits", "empty", "nothing", "locked", "locked/f",
		"full", "full/ü", "full/two words", "sticky", "sticky/roots", "new", "new2", "d/new", "new/below", "a/below", "no/such", "", ".", "..", "./a", "d/../a",
		"d/", "a/", "//tmp/t/a", strings.Repeat("n", 256), strings.Repeat("d/../", 900) + "a"}
	name := pick(g, names...)
	if g.IntN(3) == 0 && name != "" && name[0] != '/' {
		return "/tmp/t/" + name
	}
	return name
}

// relative is a path that our server and sshd start at the same directory for.
func (g generator) file() string {
	name := g.path()
	if name == "" || strings.HasPrefix(name, "/") {
		return name
	}
	return "/tmp/t/" + name
}

func (g generator) attrs() attrs {
	a := attrs{size: pick[uint64](g, 0, 3, 20), perm: pick[uint32](g, 0o644, 0o600, 0o755, 0o4755, 0o1777, 0o100640, 0),
		uid: pick[uint32](g, 0, 1000), gid: pick[uint32](g, 0, 1000), atime: 1000000000, mtime: pick[uint32](g, 1100000000, 1200000000, 1<<31+5)}
	a.flags = pick[uint32](g, 0, hasSize, hasPerm, hasTimes, hasIDs, hasPerm|hasTimes, hasSize|hasPerm|hasTimes|hasIDs)
	return a
}

const handles = 4

func (g generator) handle() string { return fmt.Sprint("h", g.IntN(handles)) }

// next is one request.
func (g generator) next() step {
	request := func(what string, kind byte, p *packet) step {
		return step{what, func(r *rawSFTP) string { return r.request(kind, p) }}
	}
	one := func(what string, kind byte) step {
		path := g.file()
		return request(fmt.Sprintf("%s %.60q", what, path), kind, new(packet).text(path))
	}
	switch g.IntN(24) {
	case 0, 1:
		flags := pick[uint32](g, 1, 2, 3, 2|4, 2|4|8, 2|8, 2|8|16, 2|8|32, 1|2|8, 0, 1|16, 2|16, 4|8, 1|4, 8|32|1)
		path, a, as := g.file(), g.attrs(), g.handle()
		a.flags &= hasPerm
		if strings.Contains(path, "fifo") {
			path = "/tmp/t/a"
		}
		return step{fmt.Sprintf("open %s %.60q flags %x attrs %+v", as, path, flags, a), func(r *rawSFTP) string {
			r.close(as)
			return r.open(as, fxOpen, new(packet).text(path).u32(flags).attrs(a))
		}}
	case 2, 3:
		h, off, data := g.handle(), pick[uint64](g, 0, 1, 5, 30), pick(g, "", "x", "some text", strings.Repeat("long ", 20))
		return step{fmt.Sprintf("write %s at %d %q", h, off, data), func(r *rawSFTP) string {
			return r.request(fxWrite, new(packet).text(r.opened[h]).u64(off).text(data))
		}}
	case 4, 5:
		h, off, size := g.handle(), pick[uint64](g, 0, 1, 5, 30, 1<<40), pick[uint32](g, 0, 1, 4, 100, 1<<20)
		return step{fmt.Sprintf("read %s at %d, %d bytes", h, off, size), func(r *rawSFTP) string {
			return r.request(fxRead, new(packet).text(r.opened[h]).u64(off).u32(size))
		}}
	case 6:
		h := g.handle()
		return step{"fstat " + h, func(r *rawSFTP) string { return r.request(fxFstat, new(packet).text(r.opened[h])) }}
	case 7:
		h, a := g.handle(), g.attrs()
		return step{fmt.Sprintf("fsetstat %s %+v", h, a), func(r *rawSFTP) string {
			return r.request(fxFsetstat, new(packet).text(r.opened[h]).attrs(a))
		}}
	case 8:
		h := g.handle()
		return step{"close " + h, func(r *rawSFTP) string {
			defer delete(r.opened, h)
			return r.request(fxClose, new(packet).text(r.opened[h]))
		}}
	case 9:
		return one("lstat", fxLstat)
	case 10:
		return one("stat", fxStat)
	case 11:
		return one("remove", fxRemove)
	case 12:
		return one("rmdir", fxRmdir)
	case 13:
		return one("readlink", fxReadlink)
	case 14, 15:
		return one("realpath", fxRealpath)
	case 16:
		path, a := g.file(), g.attrs()
		return request(fmt.Sprintf("setstat %.60q %+v", path, a), fxSetstat, new(packet).text(path).attrs(a))
	case 17:
		path, a := g.file(), g.attrs()
		a.flags &= hasPerm
		return request(fmt.Sprintf("mkdir %.60q %+v", path, a), fxMkdir, new(packet).text(path).attrs(a))
	case 18, 19:
		target, link := g.path(), g.file()
		return request(fmt.Sprintf("symlink %.60q %.60q", target, link), fxSymlink, new(packet).text(target).text(link))
	case 20:
		from, to := g.file(), g.file()
		return request(fmt.Sprintf("rename %.60q %.60q", from, to), fxRename, new(packet).text(from).text(to))
	case 21:
		path := g.file()
		return step{fmt.Sprintf("list %.60q", path), func(r *rawSFTP) string { return r.list(path) }}
	default:
		return g.extension()
	}
}

// extension is a request of OpenSSH's.
func (g generator) extension() step {
	extended := func(what string, p *packet) step {
		return step{what, func(r *rawSFTP) string { return r.request(fxExtended, p) }}
	}
	from, to := g.file(), g.file()
	h, h2 := g.handle(), g.handle()
	switch g.IntN(10) {
	case 0:
		return extended(fmt.Sprintf("posix-rename %.60q %.60q", from, to), new(packet).text("posix-rename@openssh.com").text(from).text(to))
	case 1:
		return extended(fmt.Sprintf("hardlink %.60q %.60q", from, to), new(packet).text("hardlink@openssh.com").text(from).text(to))
	case 2:
		return step{"fsync " + h, func(r *rawSFTP) string {
			return r.request(fxExtended, new(packet).text("fsync@openssh.com").text(r.opened[h]))
		}}
	case 3:
		a := g.attrs()
		return extended(fmt.Sprintf("lsetstat %.60q %+v", from, a), new(packet).text("lsetstat@openssh.com").text(from).attrs(a))
	case 4:
		path := pick(g, from, "~", "~/", "~/x", "~node", "~node/x", "~nobody-here", "~root/../tmp", "~/.")
		return extended(fmt.Sprintf("expand-path %.60q", path), new(packet).text("expand-path@openssh.com").text(path))
	case 5, 6:
		off, size, at := pick[uint64](g, 0, 2, 50), pick[uint64](g, 0, 3, 100), pick[uint64](g, 0, 4)
		return step{fmt.Sprintf("copy-data %s at %d, %d bytes, to %s at %d", h, off, size, h2, at), func(r *rawSFTP) string {
			return r.request(fxExtended, new(packet).text("copy-data").text(r.opened[h]).u64(off).u64(size).text(r.opened[h2]).u64(at))
		}}
	case 7:
		user := pick(g, "root", "node", "nobody-here", "")
		return extended(fmt.Sprintf("home-directory %q", user), new(packet).text("home-directory").text(user))
	case 8:
		ids := func(all ...uint32) string {
			p := new(packet)
			for _, id := range all {
				p.u32(id)
			}
			return p.String()
		}
		users, groups := ids(0, 1000, 12345), ids(pick[uint32](g, 0, 1000, 4321))
		return extended("users-groups-by-id", new(packet).text("users-groups-by-id@openssh.com").text(users).text(groups))
	default:
		return extended("unknown extension", new(packet).text("no-such@openssh.com").text(from))
	}
}

func (r *rawSFTP) close(h string) {
	if handle, ok := r.opened[h]; ok {
		r.request(fxClose, new(packet).text(handle))
		delete(r.opened, h)
	}
}

// list lists a directory to its end.
func (r *rawSFTP) list(path string) string {
	if got := r.open("list", fxOpendir, new(packet).text(path)); got != "handle" {
		return got
	}
	defer r.close("list")
	var all []string
	for {
		got := r.request(fxReaddir, new(packet).text(r.opened["list"]))
		names, ok := strings.CutPrefix(got, "names ")
		if !ok {
			return sortedLines(all) + "\n" + got
		}
		all = append(all, strings.Split(names, "\n")...)
	}
}

func TestSFTPAnswersAsSSHDDoes(t *testing.T) {
	t.Parallel()
	ours, sshd := servers(t)
	for _, user := range []string{"root", "node"} {
		both := map[*server]*rawSFTP{}
		for _, s := range []*server{ours, sshd} {
			both[s] = newRawSFTP(t, s.name, s.connect(t, user))
		}
		if diff := cmp.Diff(both[sshd].begin(), both[ours].begin()); diff != "" {
			t.Errorf("extensions (-sshd +ours):\n%s", diff)
		}
		// A difference on purpose: sshd's server opens its own pipes, and could read its replies itself.
		for _, path := range []string{"/dev/stdin", "/dev/stdout", "/proc/self/fd/0", "/proc/self/fd/1"} {
			open := func(s *server) string {
				defer both[s].close("own")
				return both[s].open("own", fxOpen, new(packet).text(path).u32(1).attrs(attrs{}))
			}
			if got, want := open(ours), open(sshd); !strings.HasPrefix(got, "status ") || want != "handle" {
				t.Errorf("open %s: %s, sshd: %s; want an error, and a handle of sshd", path, got, want)
			}
		}
		for _, seed := range harness.Seeds(8, 500) {
			compareSFTP(t, sshd, ours, both[sshd], both[ours], user, seed)
		}
	}
}

// shortCopy reports whether a copy-data request met the one difference on purpose: sshd says that it succeeded when the source has fewer
// bytes than were asked for, or can't be read.
func shortCopy(sshd, ours string) bool {
	return strings.Contains(sshd, ": copy-data ") && strings.HasSuffix(sshd, `"Success"`) && strings.Contains(ours, ": status ")
}

func compareSFTP(t *testing.T, sshd, ours *server, base, mine *rawSFTP, user string, seed uint64) {
	t.Helper()
	const steps = 150
	var trees [2]string
	var replies [2][]string
	for i, r := range []*rawSFTP{base, mine} {
		harness.Run(t, sshd.sb, "sh", "-c", filesOfTest, "sh", user)
		g := generator{rand.New(rand.NewPCG(seed, 34))}
		for n := range steps {
			s := g.next()
			replies[i] = append(replies[i], fmt.Sprintf("%d: %s: %s", n, s.what, s.do(r)))
		}
		for h := range handles {
			r.close(fmt.Sprint("h", h))
		}
		trees[i] = harness.Run(t, sshd.sb, "sh", "-c", tree)
	}
	for n := range steps {
		if replies[0][n] != replies[1][n] && !shortCopy(replies[0][n], replies[1][n]) {
			t.Errorf("user %s, seed %d:\nsshd %s\nours %s", user, seed, replies[0][n], replies[1][n])
			break
		}
	}
	if diff := cmp.Diff(strings.Split(trees[0], "\n"), strings.Split(trees[1], "\n")); diff != "" {
		t.Errorf("user %s, seed %d: files (-sshd +ours):\n%s", user, seed, diff)
	}
}
