package volumes_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

func init() {
	// bind makes a sandbox with a directory of its own mount namespace, which the engine sees another
	// one for, and prints the error.
	harness.AddRole("bind", func(args []string) error {
		name, dir := args[0], args[1]
		if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, ""); err != nil {
			return err
		}
		c, err := harness.Open()
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = c.Create(context.Background(), sandbox.WithName(name), harness.Quick,
			sandbox.WithMounts(sandbox.Mount{Source: dir, Target: "/data", Mode: sandbox.RO}))
		if !errors.Is(err, sandbox.ErrInvalidArgument) {
			return fmt.Errorf("Create: %w, want ErrInvalidArgument", err)
		}
		fmt.Println(err)
		return nil
	})
}

// refusesBind checks that a call failed because the engine sees another directory.
func refusesBind(t *testing.T, call string, err error) {
	t.Helper()
	if !errors.Is(err, sandbox.ErrInvalidArgument) || !strings.Contains(err.Error(), "/data") || !strings.Contains(err.Error(), "Mount.Remote") {
		t.Errorf("%s: %v, want ErrInvalidArgument that says what to do", call, err)
	}
}

// A bind mount is of what the caller sees at the path, whatever the engine has there.
func TestBindMountIsOfTheCallersDirectory(t *testing.T) {
	t.Parallel()
	dir := harness.HostDir(t, map[string]string{"f": "the engine's"})
	t.Run("in another mount namespace", func(t *testing.T) {
		t.Parallel()
		c, name := harness.NewClient(t), harness.UniqueName(t)
		harness.Remove(t, c, name)
		cmd := harness.Process(t, "bind", name, dir)
		cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
		out, err := cmd.Output()
		if err != nil || !strings.Contains(string(out), "Mount.Remote") {
			t.Errorf("%s%v", out, err)
		}
		if left := harness.Objects(t, harness.NewEngine(t), harness.Named(name)); len(left) > 0 {
			t.Errorf("left: %q", left)
		}
	})
	t.Run("on another machine", func(t *testing.T) {
		t.Parallel()
		for _, mode := range []sandbox.MountMode{sandbox.RO, sandbox.RW} {
			c, name := harness.NewClient(t, harness.Behind(t, harness.Elsewhere)), harness.UniqueName(t)
			harness.Remove(t, c, name)
			m := sandbox.Mount{Source: dir, Target: "/data", Mode: mode}
			for range 2 { // the second time it is known
				_, err := c.Create(t.Context(), sandbox.WithName(name), sandbox.WithMounts(m))
				refusesBind(t, "Create", err)
			}
			m.Remote = true
			sb := harness.CreateWith(t, c, []sandbox.Mount{m})
			if got := harness.Read(t, sb, "/data/f"); got != "the engine's" {
				t.Errorf("the file of a remote mount is %q", got)
			}
			again, err := harness.NewClient(t).Get(t.Context(), sb.Name())
			if err != nil {
				t.Fatal(err)
			}
			defer again.Detach()
			if got := again.Mounts(); len(got) != 1 || got[0] != m {
				t.Errorf("mounts %+v, want %+v", got, m)
			}
		}
	})
	t.Run("of this machine", func(t *testing.T) {
		t.Parallel()
		link := filepath.Join(t.TempDir(), "link")
		if err := os.Symlink(dir, link); err != nil {
			t.Fatal(err)
		}
		sb := harness.CreateWith(t, harness.NewClient(t), []sandbox.Mount{
			{Source: dir, Target: "/ro", Mode: sandbox.RO}, {Source: link, Target: "/rw", Mode: sandbox.RW},
			{Source: filepath.Join(dir, "f"), Target: "/file", Mode: sandbox.RO}, {Source: "/", Target: "/host", Mode: sandbox.RO},
		})
		for _, name := range []string{"/ro/f", "/rw/f", "/file", "/host" + dir + "/f"} {
			if got := harness.Run(t, sb, "cat", name); got != "the engine's" {
				t.Errorf("%s is %q", name, got)
			}
		}
	})
}

// A mount that a sandbox has is not compared again, since whoever uses the sandbox may be on another
// machine; a new one is.
func TestBindMountThatASandboxHasStays(t *testing.T) {
	t.Parallel()
	here, elsewhere := harness.NewClient(t), harness.NewClient(t, harness.Behind(t, harness.Elsewhere))
	m := sandbox.Mount{Source: harness.HostDir(t, map[string]string{"f": "x"}), Target: "/data", Mode: sandbox.RW}
	sb := harness.CreateWith(t, here, []sandbox.Mount{m})
	if _, err := sb.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	harness.Update(t, sb, sandbox.WithPorts(3000))
	there, err := elsewhere.Get(t.Context(), sb.Name())
	if err != nil {
		t.Fatalf("Get of a changed sandbox from another machine: %v", err)
	}
	defer there.Detach()
	name := harness.UniqueName(t)
	for _, n := range []string{name, name + "-1"} {
		harness.Remove(t, here, n)
	}
	fork, err := elsewhere.Fork(t.Context(), sb.Name(), sandbox.WithName(name), harness.Quick)
	if err != nil {
		t.Fatalf("Fork from another machine: %v", err)
	}
	defer fork.Detach()
	if got := harness.Read(t, fork, "/data/f"); got != "x" {
		t.Errorf("the file of the fork's mount is %q", got)
	}
	forks, err := elsewhere.ForkN(t.Context(), sb.Name(), 1, sandbox.WithName(name), harness.Quick)
	if err != nil {
		t.Fatalf("ForkN from another machine: %v", err)
	}
	for _, f := range forks {
		if f.Err != nil {
			t.Fatalf("ForkN from another machine: %v", f.Err)
		}
		defer f.Sandbox.Detach()
	}

	added := sandbox.Mount{Source: t.TempDir(), Target: "/data2", Mode: sandbox.RO}
	if _, err := there.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	harness.Update(t, there, sandbox.WithMounts(m, added))
	_, err = there.Start(t.Context())
	refusesBind(t, "Start with another mount from another machine", err)
	if _, err := here.Get(t.Context(), sb.Name()); err != nil {
		t.Errorf("Get from this machine: %v", err)
	}
}

// The engine makes no directory for a source that is missing, and nothing is left; a colon in
// a source's name is no separator in a Mount.
func TestBindMountOfOddSources(t *testing.T) {
	t.Parallel()
	c, eng := harness.NewClient(t), harness.NewEngine(t)
	for _, mode := range []sandbox.MountMode{sandbox.RO, sandbox.RW} {
		name, missing := harness.UniqueName(t), filepath.Join(t.TempDir(), "none")
		harness.Remove(t, c, name)
		_, err := c.Create(t.Context(), sandbox.WithName(name), sandbox.WithMounts(sandbox.Mount{Source: missing, Target: "/data", Mode: mode}))
		if !errors.Is(err, sandbox.ErrInvalidArgument) || !strings.Contains(err.Error(), missing) {
			t.Errorf("Create with a %s mount of what is missing = %v", mode, err)
		}
		if _, err := os.Stat(missing); err == nil {
			t.Errorf("the refused %s mount made %s", mode, missing)
		}
		if left := harness.Objects(t, eng, harness.Named(name)); len(left) > 0 {
			t.Errorf("left of it: %q", left)
		}
	}
	colon := filepath.Join(t.TempDir(), "a:b", "c:ro")
	if err := errors.Join(os.MkdirAll(colon, 0o755), os.WriteFile(filepath.Join(colon, "f"), []byte("x"), 0o644)); err != nil {
		t.Fatal(err)
	}
	if _, err := sandbox.ParseMount(colon + ":/data"); !errors.Is(err, sandbox.ErrInvalidArgument) {
		t.Errorf("ParseMount of a source with colons = %v", err)
	}
	sb := harness.CreateWith(t, c, []sandbox.Mount{
		{Source: colon, Target: "/ro", Mode: sandbox.RO}, {Source: colon, Target: "/rw", Mode: sandbox.RW}, {Source: colon, Target: "/copy"},
	})
	if got := harness.Run(t, sb, "sh", "-c", "cat /ro/f /copy/f; echo y >/rw/f; cat /ro/f /copy/f; touch /ro/g 2>/dev/null || echo read-only"); got != "xxy\nxread-only" {
		t.Errorf("the mounts of a source with colons have %q", got)
	}
}

// A file system below a mount whose server is gone fails by itself: what is beside it is listed, as by package os.
func TestDeadFileSystemHidesNothingElse(t *testing.T) {
	t.Parallel()
	dir := harness.HostDir(t, map[string]string{"before": "b", "dead/hidden": "h", "living": "l"})
	server, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	dead := filepath.Join(dir, "dead")
	if err := syscall.Mount("dead", dead, "fuse", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", server.Fd())); err != nil {
		t.Fatal(errors.Join(err, server.Close()))
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dead, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	if err := server.Close(); err != nil {
		t.Fatal(err)
	}
	describe := func(list []fs.DirEntry, err error) string {
		if err != nil {
			t.Errorf("ReadDir: %v", err)
		}
		text := ""
		for _, d := range list {
			_, err := d.Info()
			var errno syscall.Errno
			errors.As(err, &errno)
			text += fmt.Sprintf("%s %v %d\n", d.Name(), d.IsDir(), errno)
		}
		return text
	}
	sb := harness.CreateWith(t, harness.NewClient(t), []sandbox.Mount{{Source: dir, Target: "/data", Mode: sandbox.RO}})
	want := describe(os.ReadDir(dir))
	if got := describe(sb.ReadDir(t.Context(), "/data")); got != want || !strings.Contains(want, fmt.Sprintf("dead true %d", syscall.ENOTCONN)) {
		t.Errorf("ReadDir:\n%s\npackage os:\n%s", got, want)
	}
}

func init() {
	// copy makes a sandbox with a copy of a directory, and prints the error.
	harness.AddRole("copy", func(args []string) error {
		c, err := harness.Open(sandbox.WithHost(args[0]))
		if err != nil {
			return err
		}
		defer c.Close()
		sb, err := c.Create(context.Background(), sandbox.WithName(args[1]), harness.Quick, sandbox.WithMounts(sandbox.Mount{Source: args[2], Target: "/data"}))
		if err == nil {
			sb.Detach()
		}
		fmt.Println(errors.Is(err, fs.ErrPermission), err)
		return nil
	})
}

// A file or a directory that the caller may not read is named, and nothing is left.
func TestCopyOfWhatCannotBeRead(t *testing.T) {
	t.Parallel()
	eng := harness.NewEngine(t)
	for _, unreadable := range []string{"d/f", "d"} {
		// Nobody can neither enter the test's directories nor run what is in them.
		dir, err := os.MkdirTemp("", "nb")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.RemoveAll(dir) })
		src, program := filepath.Join(dir, "src"), filepath.Join(dir, "program")
		path := filepath.Join(src, unreadable)
		proxy := enginetest.NewProxy(t)
		proxy.RunElsewhere()
		socket := strings.TrimPrefix(proxy.Host(), "unix://")
		name := harness.UniqueName(t)
		harness.Remove(t, harness.NewClient(t), name)
		cmd := harness.Process(t, "copy", proxy.Host(), name, src)
		binary, err := os.ReadFile(cmd.Path)
		err = errors.Join(err, os.Chmod(dir, 0o755), os.MkdirAll(filepath.Join(src, "d"), 0o755), os.WriteFile(filepath.Join(src, "d/f"), []byte("x"), 0o644),
			os.Chmod(path, 0), os.WriteFile(program, binary, 0o755), os.Chmod(filepath.Dir(socket), 0o755), os.Chmod(socket, 0o666))
		if err != nil {
			t.Fatal(err)
		}
		cmd.Path, cmd.Dir = program, "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		out, err := cmd.Output()
		if err != nil || !strings.HasPrefix(string(out), "true ") || !strings.Contains(string(out), path+": permission denied") {
			t.Errorf("Create with a copy of an unreadable %s printed %q, %v; want fs.ErrPermission that names it", unreadable, out, err)
		}
		if left := harness.Objects(t, eng, harness.Named(name)); len(left) > 0 {
			t.Errorf("left of it: %q", left)
		}
	}
}
