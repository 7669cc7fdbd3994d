package security_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// A tenant is root in a session, who arranges files for the next one. What fails is left as it is.
type tenant struct {
	t  *testing.T
	sb *sandbox.Sandbox
}

func (x tenant) away(name string) { x.sb.Rename(x.t.Context(), name, name+".old") }
func (x tenant) dir(name string)  { x.sb.MkdirAll(x.t.Context(), name, 0o755) }
func (x tenant) link(to, name string) {
	x.sb.Remove(x.t.Context(), name)
	x.sb.Symlink(x.t.Context(), to, name)
}
func (x tenant) file(name string) { x.sb.WriteFile(x.t.Context(), name, []byte("text"), 0o644) }
func (x tenant) fifo(name string) {
	x.sb.Remove(x.t.Context(), name)
	x.sb.Command(x.t.Context(), "/bin/evil", "fifo", name).Run()
}

// shadow makes a target, as all mounts together show it, a directory below a deeper one, and, as the engine sees it before that
// is mounted, a link that leads elsewhere.
func (x tenant) shadow(target, deeper, to string) {
	parent, name := path.Dir(target), path.Base(target)
	x.away(parent)
	x.dir(path.Join(deeper, name)) // in what is mounted there
	above := path.Dir(deeper)
	x.away(above)
	x.dir(deeper) // in the container's own layer
	x.link(to, path.Join(deeper, name))
	x.link(deeper, parent)
}

// guestOf returns the directory of the guest in a sandbox's present container, which every session knows.
func guestOf(t *testing.T, sb *sandbox.Sandbox) string {
	return path.Dir(harness.Raw(t, sb).Config.Entrypoint[0])
}

// upwards is an absolute path as one that begins in the root's third level or above.
func upwards(to string) string { return "../../../../../.." + to }

// Root inside moves a mount's parent away and leads it, by a link that only the engine sees, over the guest or another place.
func TestATargetThatOnlyTheEngineSeesElsewhere(t *testing.T) {
	t.Parallel()
	ref := image(t)
	for where, to := range map[string]string{"the guest": "", "accounts": "/etc", "devices": "/dev", "processes": "/proc"} {
		for _, way := range harness.EveryNth(2, []string{"absolute", "relative"}) {
			t.Run(where+", "+way, func(t *testing.T) {
				t.Parallel()
				c := harness.NewClient(t)
				sb := harness.CreateWith(t, c, []sandbox.Mount{{Source: evilDir(t), Target: "/data/repo"}, {Source: harness.HostDir(t, nil), Target: "/home/node/.cache/pip"}}, sandbox.WithImage(ref))
				if to == "" {
					to = guestOf(t, sb)
				}
				if way == "relative" {
					to = upwards(to)
				}
				tenant{t, sb}.shadow("/data/repo", "/home/node/.cache/pip", to)
				volume := harness.CopiedVolume(t, sb, "/data/repo")
				t.Cleanup(func() {
					if _, err := c.DeleteVolume(context.Background(), volume, sandbox.DeleteVolumeOptions{}); err != nil {
						t.Errorf("DeleteVolume: %v", err)
					}
				})
				snap := harness.SnapshotOf(t, c, sb, sandbox.SnapshotOptions{})
				for what, next := range map[string]func(name string) (*sandbox.Sandbox, error){
					"restart": func(string) (*sandbox.Sandbox, error) { return restart(t, sb) },
					"update": func(string) (*sandbox.Sandbox, error) {
						harness.Update(t, sb, sandbox.WithEnv(map[string]string{"A": "b"}))
						return restart(t, sb)
					},
					"fork": func(name string) (*sandbox.Sandbox, error) {
						return c.Fork(t.Context(), sb.Name(), sandbox.WithName(name))
					},
					"snapshot": func(name string) (*sandbox.Sandbox, error) {
						return c.Create(t.Context(), sandbox.WithName(name), harness.Quick, sandbox.WithSource(sandbox.FromSnapshot(snap.ID)))
					},
				} {
					name := harness.UniqueName(t)
					harness.Remove(t, c, name)
					got, err := next(name)
					if got != nil {
						name = got.Name()
						defer got.Detach()
					}
					neverEvil(t, name)
					if !errors.Is(err, sandbox.ErrInvalidArgument) || !strings.Contains(err.Error(), "no mount follows it") && !notFollowed(err) {
						t.Errorf("%s: %v, want ErrInvalidArgument", what, err)
					}
				}
				// The files are not lost.
				harness.Update(t, sb, sandbox.WithoutMount("/data/repo"))
				if _, err := restart(t, sb); err != nil {
					t.Errorf("without the mount: %v", err)
				} else if got := harness.Run(t, sb, "/bin/evil", "true"); got != "" {
					t.Errorf("a command says %q", got)
				}
			})
		}
	}
}

// An account file is a regular one for whoever sees all mounts, and a pipe for the engine, which opens it before it mounts
// anything.
func TestAnAccountFileThatOnlyTheEngineSeesAsAPipe(t *testing.T) {
	t.Parallel()
	for what, arrange := range map[string]func(*testing.T, *sandbox.Client) *sandbox.Sandbox{
		"in the layer below a mount": func(t *testing.T, c *sandbox.Client) *sandbox.Sandbox {
			sb := harness.CreateWith(t, c, []sandbox.Mount{{Source: harness.HostDir(t, nil), Target: "/data/repo"}}, sandbox.WithImage(image(t)))
			x := tenant{t, sb}
			x.file("/opt/passwd")
			x.link("/opt/passwd", "/data/repo/link")
			x.away("/data")
			x.dir("/data/repo")
			x.fifo("/data/repo/link")
			x.link("/data/repo/link", "/etc/passwd")
			return sb
		},
		"in the image below the workspace": func(t *testing.T, c *sandbox.Client) *sandbox.Sandbox {
			sb := harness.CreateWith(t, c, nil, sandbox.WithImage(image(t, fifo("workspace/link"))))
			x := tenant{t, sb}
			x.file("/opt/passwd")
			x.link("/opt/passwd", "/workspace/link")
			x.link("/workspace/link", "/etc/passwd")
			return sb
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			c := harness.NewClient(t)
			sb := arrange(t, c)
			ctx, cancel := context.WithTimeout(t.Context(), harness.CallBound)
			defer cancel()
			if _, err := sb.Stop(ctx); err != nil {
				t.Fatal(err)
			}
			if _, err := sb.Start(ctx); err != nil && !errors.Is(err, sandbox.ErrInvalidArgument) {
				t.Errorf("Start: %v", err)
			}
			answers(t, sb.Name())
		})
	}
}

// answers fails if the engine does not answer for a sandbox's container.
func answers(t *testing.T, name string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), harness.CallBound)
	defer cancel()
	if _, err := harness.NewEngine(t).InspectContainer(ctx, record.ContainerName(name)); err != nil && !errors.Is(err, engine.ErrNotFound) {
		t.Errorf("the engine does not answer for the container: %v", err)
	}
}

// machineMounts returns the mounts of the engine's machine but those that the engine makes for containers, and those that other
// tests make below their own directories. containerd mounts a layer in the directory for temporary files while it looks into it.
func machineMounts(t *testing.T, own string) string {
	t.Helper()
	var info struct{ DockerRootDir string }
	enginetest.Get(t, "/info", &info)
	all, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for line := range strings.Lines(string(all)) {
		if f := strings.Fields(line); (strings.HasPrefix(f[4], os.TempDir()+"/Test") || strings.HasPrefix(f[4], os.TempDir()+"/containerd-mount")) && f[4] != own {
			continue
		} else if !strings.HasPrefix(f[4], info.DockerRootDir+"/") && !strings.Contains(f[4], "/netns/") && !strings.Contains(f[4], "/storage/") && f[4] != info.DockerRootDir {
			lines = append(lines, strings.Join(f[3:], " "))
		}
	}
	return strings.Join(lines, "\n")
}

// The library's own calls for a stopped sandbox make and end no mount of the engine's machine, wherever the tenant's links lead.
func TestTheMachinesMountsStay(t *testing.T) {
	t.Parallel()
	ref, c := image(t), harness.NewClient(t)
	victim := t.TempDir()
	if err := unix.Mount("victim", victim, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(victim, unix.MNT_DETACH) })
	sb := harness.CreateWith(t, c, []sandbox.Mount{{Source: harness.HostDir(t, nil), Target: "/data/repo"}, {Source: harness.HostDir(t, nil), Target: "/home/node/.cache/pip"}}, sandbox.WithImage(ref))
	harness.Write(t, sb, "/workspace/file", "text")
	tenant{t, sb}.shadow("/data/repo", "/home/node/.cache/pip", victim)
	if _, err := sb.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	before := machineMounts(t, victim)
	if !strings.Contains(before, victim) {
		t.Fatal("the test sees other mounts than the engine")
	}
	for range harness.Rounds(2, 100) {
		sb.Start(t.Context())
		sb.ReadFile(t.Context(), "/workspace/file")
		sb.ReadFile(t.Context(), "/data/repo/file")
		sb.Processes(t.Context())
		if now := machineMounts(t, victim); now != before {
			t.Fatalf("the machine's mounts were\n%s\nand are\n%s", before, now)
		}
	}
}

// Starts and stops of a sandbox with mounts leave the machine's mounts as they are.
func TestStartsLeaveTheMachinesMounts(t *testing.T) {
	t.Parallel()
	sb := harness.CreateWith(t, harness.NewClient(t), []sandbox.Mount{
		{Source: harness.HostDir(t, map[string]string{"sub/f": ""}), Target: "/data"}, {Source: harness.HostDir(t, nil), Target: "/data/sub"}, {Source: t.TempDir(), Target: "/home/node/.cache/pip", Mode: sandbox.RW},
	}, sandbox.WithImage(image(t)))
	before := machineMounts(t, "")
	for i := range harness.Rounds(2, 500) {
		if _, err := restart(t, sb); err != nil {
			t.Fatalf("start %d: %v", i, err)
		}
		if now := machineMounts(t, ""); now != before {
			t.Fatalf("before start %d the machine's mounts were\n%s\nand are\n%s", i, before, now)
		}
	}
}

// A scene is a sandbox with random mounts, in which a hostile session has arranged files.
type scene struct {
	*testing.T
	*rand.Rand
	c    *sandbox.Client
	sb   *sandbox.Sandbox
	name string
	was  []string // what was done, for a failure

	snaps []string
}

func pick[T any](r *rand.Rand, all ...T) T { return all[r.IntN(len(all))] }

func (s *scene) note(format string, args ...any) { s.was = append(s.was, fmt.Sprintf(format, args...)) }

// images are what scenes are of, made once.
var images = sync.OnceValue(func() [][]harness.TarMember {
	return [][]harness.TarMember{
		nil,
		{harness.TarLink("data", "srv/data"), harness.TarFile("srv/data/own", ""), harness.TarLink("var/run", "../run"), harness.TarFile("run/own", ""), harness.TarLink("etc/passwd", "../opt/passwd"), harness.TarFile("opt/passwd", "root:x:0:0::/:\n")},
		{fifo("workspace/link"), harness.TarFile("home/node/.cache/pip/own", ""), harness.TarLink("a", "home/node")},
	}
})

// mounts returns random mounts, and what they are, for people.
func (s *scene) mounts() (all []sandbox.Mount, text string) {
	targets := []string{"/data/repo", "/home/node/.cache/pip", "/a/b", "/a/b/c/d", "/workspace/x", "/workspace/x/y/z", "/srv", "/data", "/var/run/lock/x", "/opt/one/two/three"}
	s.Shuffle(len(targets), func(i, j int) { targets[i], targets[j] = targets[j], targets[i] })
	for _, target := range targets[:1+s.IntN(5)] {
		m := sandbox.Mount{Source: evilDir(s.T), Target: target, Mode: pick(s.Rand, sandbox.RWCopy, sandbox.RWCopy, sandbox.RW, sandbox.RO)}
		all = append(all, m)
		text += fmt.Sprintf(" %s(%s)", target, m.Mode)
	}
	return all, text
}

// arrange lets the tenant do a few hostile things.
func (s *scene) arrange(targets []string) {
	x := tenant{s.T, s.sb}
	destination := func() string {
		to := pick(s.Rand, guestOf(s.T, s.sb), guestOf(s.T, s.sb), "/etc", "/proc", "/dev", "/", "/workspace", "/nowhere/yet", "/etc/passwd", pick(s.Rand, targets...))
		return pick(s.Rand, to, upwards(to))
	}
	for range 1 + s.IntN(3) {
		target := pick(s.Rand, targets...)
		switch s.IntN(6) {
		case 0, 1:
			deeper, to := pick(s.Rand, targets...), destination()
			if deeper == target || path.Dir(target) == "/" {
				continue
			}
			s.note("shadow %s by %s to %s", target, deeper, to)
			x.shadow(target, deeper, to)
		case 2:
			at, to := path.Dir(target), destination()
			if at == "/" || at == "/workspace" {
				continue
			}
			s.note("%s is a link to %s", at, to)
			x.away(at)
			x.link(to, at)
		case 3:
			at := path.Dir(target)
			kind := pick(s.Rand, "file", "pipe", "nothing", "chain")
			s.note("%s is a %s", at, kind)
			x.away(at)
			switch kind {
			case "file":
				x.file(at)
			case "pipe":
				x.fifo(at)
			case "chain":
				x.link("/tmp/1", at)
				x.link("/tmp/2", "/tmp/1")
				x.link(destination(), "/tmp/2")
			}
		case 4:
			at, to := pick(s.Rand, "/etc/passwd", "/etc/group", "/etc/hosts", "/etc"), destination()
			s.note("%s is a link to %s", at, to)
			x.away(at)
			x.link(to, at)
		case 5:
			at := path.Join(target, "link")
			s.note("/etc/passwd is a pipe below the mount at %s", target)
			x.file("/opt/passwd")
			x.link("/opt/passwd", at)
			x.away(path.Dir(target))
			x.dir(target)
			x.fifo(at)
			x.link(at, "/etc/passwd")
		}
	}
}

// next makes the sandbox's next session, or another sandbox of its files.
func (s *scene) next() (*sandbox.Sandbox, error) {
	ctx, name := s.Context(), harness.UniqueName(s.T)
	harness.Remove(s.T, s.c, name)
	switch pick(s.Rand, "restart", "restart", "update", "fork", "fork of many", "snapshot", "rollback") {
	case "update":
		s.note("update")
		harness.Update(s.T, s.sb, sandbox.WithEnv(map[string]string{"A": name}))
	case "fork":
		s.note("fork")
		return s.c.Fork(ctx, s.name, sandbox.WithName(name))
	case "fork of many":
		s.note("forks")
		forks, err := s.c.ForkN(ctx, s.name, 2)
		for _, f := range forks {
			if f.Sandbox != nil {
				harness.Remove(s.T, s.c, f.Sandbox.Name())
				defer f.Sandbox.Detach()
				s.check(f.Sandbox, nil)
			}
			err = errors.Join(err, f.Err)
		}
		return nil, err
	case "snapshot":
		s.note("snapshot")
		snap, err := s.sb.Snapshot(ctx, sandbox.SnapshotOptions{})
		if err != nil {
			return nil, err
		}
		s.snaps = append(s.snaps, snap.ID)
		return s.c.Create(ctx, sandbox.WithName(name), harness.Quick, sandbox.WithSource(sandbox.FromSnapshot(snap.ID)))
	case "rollback":
		s.note("rollback")
		snap, err := s.sb.Snapshot(ctx, sandbox.SnapshotOptions{})
		if err != nil {
			return nil, err
		}
		s.snaps = append(s.snaps, snap.ID)
		if err := s.sb.Rollback(ctx, snap.ID); err != nil {
			return nil, err
		}
	default:
		s.note("restart")
	}
	if _, err := s.sb.Stop(ctx); err != nil {
		return s.sb, err
	}
	_, err := s.sb.Start(ctx)
	return s.sb, err
}

// check looks at what the engine has really started: all mounts are where they were to be, or nothing has run.
func (s *scene) check(sb *sandbox.Sandbox, err error) {
	if sb == nil {
		return
	}
	answers(s.T, sb.Name())
	neverEvil(s.T, sb.Name())
	if err != nil {
		return
	}
	table, err := sb.ReadFile(s.Context(), "/proc/self/mountinfo")
	if err != nil {
		// PID 1 may have ended the session by itself.
		if got := harness.Inspect(s.T, sb.Name()); got.State == sandbox.StateRunning {
			s.Errorf("%s runs and does not answer: %v", sb.Name(), err)
		}
		return
	}
	got, err := harness.NewEngine(s.T).InspectContainer(s.Context(), record.ContainerName(sb.Name()))
	if err != nil {
		s.Fatal(err)
	}
	at := map[string]string{} // the volume or directory that is mounted at a path
	for line := range strings.Lines(string(table)) {
		f := strings.Fields(line)
		at[f[4]] = f[3]
	}
	for _, m := range got.Mounts {
		root, mounted := at[m.Target]
		switch {
		case !mounted:
			s.Errorf("nothing is mounted at %s", m.Target)
		case m.Type == "volume" && strings.HasSuffix(root, "/_data") && !strings.HasSuffix(root, "/"+m.Name+"/_data"):
			s.Errorf("at %s is %s, want volume %s", m.Target, root, m.Name)
		}
		for where, root := range at {
			if m.Type == "volume" && strings.HasSuffix(root, "/"+m.Name+"/_data") && where != m.Target {
				s.Errorf("volume %s of %s is at %s", m.Name, m.Target, where)
			}
		}
	}
	if out, err := sb.Command(s.Context(), "/bin/evil", "true").CombinedOutput(); err != nil {
		var missing *fs.PathError
		if !errors.As(err, &missing) {
			s.Logf("a command: %v, %q", err, out)
		}
	}
}

// Whatever mounts a sandbox has, and whatever a session does to the files that they are in, the next session has each mount in
// its place, or does not begin. SANDBOX_SEED repeats one scene.
func TestMountsOfRandomScenes(t *testing.T) {
	t.Parallel()
	var refs []string
	for _, members := range images() {
		refs = append(refs, image(t, members...))
	}
	for _, seed := range harness.EveryNth(3, harness.Seeds(24, 2000)) {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			t.Parallel()
			s := &scene{T: t, Rand: rand.New(rand.NewPCG(seed, 0)), c: harness.NewClient(t), name: harness.UniqueName(t)}
			t.Cleanup(func() {
				if t.Failed() {
					t.Logf("SANDBOX_SEED=%d: %s", seed, strings.Join(s.was, "; "))
				}
			})
			s.play(refs)
		})
	}
}

func (s *scene) play(refs []string) {
	s.Cleanup(func() { // when all that is made of them is gone
		for _, id := range s.snaps {
			if err := s.c.DeleteSnapshot(context.Background(), id); err != nil {
				s.Errorf("DeleteSnapshot: %v", err)
			}
		}
	})
	i := s.IntN(len(refs))
	mounts, text := s.mounts()
	s.note("image %d with%s", i, text)
	harness.Remove(s.T, s.c, s.name)
	var err error
	s.sb, err = s.c.Create(s.Context(), sandbox.WithName(s.name), sandbox.WithImage(refs[i]), harness.Quick, sandbox.WithMounts(mounts...))
	if err != nil {
		if !errors.Is(err, sandbox.ErrInvalidArgument) {
			s.Errorf("Create: %v", err)
		}
		neverEvil(s.T, s.name)
		return
	}
	defer s.sb.Detach()
	s.check(s.sb, nil)
	for range 2 {
		var targets []string
		for _, m := range s.sb.Mounts() {
			targets = append(targets, m.Target)
		}
		s.arrange(targets)
		sb, err := s.next()
		s.note("%v", err)
		if err != nil && !refusal(err) {
			s.Errorf("neither as planned nor refused: %v", err)
		}
		if sb != nil && sb != s.sb {
			defer sb.Detach()
		}
		s.check(sb, err)
		if err != nil && (sb == nil || sb == s.sb) {
			return
		}
	}
}

// refusal reports whether an error is one that says why a session does not begin.
func refusal(err error) bool {
	return errors.Is(err, sandbox.ErrInvalidArgument) || errors.Is(err, sandbox.ErrNotRunning)
}
