package enginetest

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Daemon is an engine of a test's own, which may end and begin again as the one that
// everybody uses may not. It shares nothing with that: it has mounts, a network,
// processes and cgroups of its own, and its files are in memory. All of it goes with the
// test, and with the test's process however that ends.
type Daemon struct {
	t      testing.TB
	dir    string
	keeper *exec.Cmd
	orders io.WriteCloser
	said   *bufio.Reader
}

// daemonVar tells this program that it is to keep a daemon, and daemonArgs with which
// further arguments.
const (
	daemonVar  = "ENGINETEST_DAEMON"
	daemonArgs = "ENGINETEST_DAEMON_ARGS"
)

func init() {
	dir := os.Getenv(daemonVar)
	if dir == "" {
		return
	}
	if err := keep(dir); err != nil {
		fmt.Fprintln(os.Stderr, "keep an engine:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// NewDaemon returns an engine that is up and has nothing. It takes root and the engine's
// own program: without them the test fails. args are further arguments of the program,
// which has no iptables without "--iptables=true".
func NewDaemon(t testing.TB, args ...string) *Daemon {
	t.Helper()
	Need(t)
	program, err := exec.LookPath("dockerd")
	if err != nil {
		program, err = exec.LookPath("/usr/sbin/dockerd") // not in everybody's path
	}
	if err != nil || os.Geteuid() != 0 {
		t.Fatalf("an engine of the test's own needs root and dockerd (%v)", err)
	}
	// As NewProxyTo does.
	dir, err := os.MkdirTemp("", "ed")
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	d := &Daemon{t: t, dir: dir, keeper: exec.Command(self)}
	d.keeper.Env = append(os.Environ(), "PATH="+os.Getenv("PATH")+":"+filepath.Dir(program), daemonVar+"="+dir, daemonArgs+"="+strings.Join(args, " "))
	d.keeper.Stderr = os.Stderr
	d.keeper.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWIPC}
	if d.orders, err = d.keeper.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := d.keeper.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	d.said = bufio.NewReader(out)
	if err := d.keeper.Start(); err != nil {
		t.Fatalf("start an engine of the test's own: %v", err)
	}
	t.Cleanup(d.remove)
	d.Start()
	return d
}

// Host is the engine's address, as DOCKER_HOST takes it.
func (d *Daemon) Host() string { return "unix://" + filepath.Join(d.dir, socketFile) }

// Start starts the engine, and returns when it answers.
func (d *Daemon) Start() {
	d.t.Helper()
	d.order("start")
	client := clientTo(d.t, d.Host())
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(20 * time.Millisecond) {
		resp, err := client.Get("http://engine/_ping")
		if err == nil {
			_ = resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return
			}
			err = errors.New(resp.Status)
		}
		if time.Now().After(deadline) {
			d.t.Fatalf("the engine of the test's own does not answer: %v\n%s", err, d.log())
		}
	}
}

// Stop asks the engine to end, and returns when it has. It stops its containers first.
func (d *Daemon) Stop() { d.t.Helper(); d.order("stop") }

// Kill kills the engine's process, and returns when it is gone. Its containers run on.
func (d *Daemon) Kill() { d.t.Helper(); d.order("kill") }

// Crash kills all there is at once, the processes in containers too, as when the power
// fails. What was written stays.
func (d *Daemon) Crash() { d.t.Helper(); d.order("crash") }

// Limit leaves room for so many bytes on the engine's disk.
func (d *Daemon) Limit(room int64) { d.t.Helper(); d.order(fmt.Sprint("limit ", room)) }

// LimitFiles bounds the files that the engine may have open.
func (d *Daemon) LimitFiles(n int) { d.t.Helper(); d.order(fmt.Sprint("files ", n)) }

// Free is how many bytes there is room for.
func (d *Daemon) Free() (room int64) {
	d.t.Helper()
	must(d.t, "look at the disk of an engine of the test's own", func() error {
		var at unix.Statfs_t
		err := unix.Statfs(fmt.Sprintf("/proc/%d/root%s", d.keeper.Process.Pid, filepath.Join(d.dir, memoryDir)), &at)
		room = int64(at.Bavail) * at.Bsize
		return err
	})
	return room
}

// order has the keeper do something, and returns when it is done.
func (d *Daemon) order(what string) {
	d.t.Helper()
	if _, err := fmt.Fprintln(d.orders, what); err != nil {
		d.t.Fatalf("%s an engine of the test's own: %v", what, err)
	}
	if line, err := d.said.ReadString('\n'); err != nil || line != "done\n" {
		d.t.Fatalf("%s an engine of the test's own: %q, %v\n%s", what, line, err, d.log())
	}
}

// log is the end of what the engine has said.
func (d *Daemon) log() string {
	b, _ := os.ReadFile(filepath.Join(d.dir, logFile))
	return string(b[max(0, len(b)-4<<10):])
}

// remove ends all of it, and checks that nothing is left.
func (d *Daemon) remove() {
	if d.t.Failed() {
		d.t.Logf("the engine of the test's own said at last:\n%s", d.log())
	}
	_ = d.orders.Close()
	if err := d.keeper.Wait(); err != nil {
		d.t.Errorf("end an engine of the test's own: %v", err)
	}
	if left := cgroups(d.dir); len(left) > 0 {
		d.t.Errorf("an engine of the test's own left cgroups: %q", left)
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil || strings.Contains(string(mounts), d.dir) {
		d.t.Errorf("an engine of the test's own left mounts, %v:\n%s", err, mounts)
	}
	if _, err := os.Stat(d.dir); !errors.Is(err, fs.ErrNotExist) {
		d.t.Errorf("an engine of the test's own left %s: %v", d.dir, err)
		_ = os.RemoveAll(d.dir)
	}
}

// What is in a daemon's directory.
const (
	socketFile = "s"
	logFile    = "log"
	configFile = "config"
	memoryDir  = "m" // seen by the daemon alone
)

// keep is PID 1 of the daemon's namespaces: it carries out orders, and ends all when
// nobody is left to give any.
func keep(dir string) error {
	reap := make(chan os.Signal, 1)
	signal.Notify(reap, syscall.SIGCHLD)
	if err := furnish(dir); err != nil {
		return err
	}
	orders := make(chan string)
	go func() {
		for s := bufio.NewScanner(os.Stdin); s.Scan(); {
			orders <- s.Text()
		}
		close(orders)
	}()
	var daemon int                              // its process, while there is one
	var awaited func(daemon int, all bool) bool // whether the order under way is carried out
	for {
		select {
		case what, more := <-orders:
			if !more {
				return clear(dir)
			}
			awaited = func(daemon int, _ bool) bool { return daemon == 0 }
			switch what {
			case "start":
				pid, err := startDaemon(dir)
				if err != nil {
					return err
				}
				daemon = pid
				awaited = func(int, bool) bool { return true }
			case "stop":
				signalTo(daemon, unix.SIGTERM)
			case "kill":
				signalTo(daemon, unix.SIGKILL)
			case "crash":
				signalTo(-1, unix.SIGKILL)
				awaited = func(_ int, all bool) bool { return all }
			default:
				verb, value, _ := strings.Cut(what, " ")
				change := func() error { return limit(filepath.Join(dir, memoryDir), value) }
				if verb == "files" {
					change = func() error { return limitFiles(daemon, value) }
				}
				if err := change(); err != nil {
					return err
				}
				awaited = func(int, bool) bool { return true }
			}
		case <-reap:
		}
		all := false
		for {
			pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil)
			if pid == daemon && pid > 0 {
				daemon = 0
			}
			if all = errors.Is(err, unix.ECHILD); pid <= 0 {
				break
			}
		}
		if awaited != nil && awaited(daemon, all) {
			awaited = nil
			fmt.Println("done")
		}
	}
}

func signalTo(pid int, sig syscall.Signal) {
	if pid != 0 {
		_ = unix.Kill(pid, sig)
	}
}

// furnish makes the namespaces fit for a daemon.
func furnish(dir string) error {
	memory := filepath.Join(dir, memoryDir)
	if err := os.Mkdir(memory, 0o711); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, configFile), []byte("{}"), 0o600); err != nil {
		return err
	}
	for _, m := range []struct {
		what, where string
		flags       uintptr
	}{
		{"", "/", unix.MS_REC | unix.MS_PRIVATE}, // or what is mounted here were seen outside
		{"proc", "/proc", 0},
		{"tmpfs", memory, 0},
		{"tmpfs", "/run", 0}, // where the sockets of other daemons are
	} {
		if err := unix.Mount(m.what, m.where, m.what, m.flags, ""); err != nil {
			return fmt.Errorf("mount %q on %s: %w", m.what, m.where, err)
		}
	}
	if err := release(); err != nil {
		return err
	}
	// The network namespace has a loopback interface, which is down.
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	lo.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	return unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, lo)
}

// release lets go of overlays of other engines, which they could not mount again as long
// as a copy of the mount is here.
func release() error {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(mounts)) {
		mount, kind, _ := strings.Cut(line, " - ")
		fields := strings.Fields(mount)
		if at := fields[4]; strings.HasPrefix(kind, "overlay ") && at != "/" {
			// Below another that went before it is gone already.
			if err := unix.Unmount(at, unix.MNT_DETACH); err != nil && err != unix.EINVAL && err != unix.ENOENT {
				return fmt.Errorf("let go of %s: %w", at, err)
			}
		}
	}
	return nil
}

// limit leaves so much room in a tmpfs.
func limit(dir, room string) error {
	n, err := strconv.ParseInt(room, 10, 64)
	if err != nil {
		return err
	}
	var at unix.Statfs_t
	if err := unix.Statfs(dir, &at); err != nil {
		return err
	}
	size := int64(at.Blocks-at.Bfree)*at.Bsize + n
	return unix.Mount("", dir, "", unix.MS_REMOUNT, fmt.Sprintf("size=%d", size))
}

func limitFiles(pid int, text string) error {
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return err
	}
	return unix.Prlimit(pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: n, Max: n}, nil)
}

func startDaemon(dir string) (pid int, err error) {
	log, err := os.OpenFile(filepath.Join(dir, logFile), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return 0, err
	}
	defer log.Close()
	at := func(name string) string { return filepath.Join(dir, name) }
	cmd := exec.Command("dockerd", "--config-file", at(configFile), "--host", "unix://"+at(socketFile),
		"--data-root", at(memoryDir+"/data"), "--exec-root", at(memoryDir+"/exec"), "--pidfile", at(memoryDir+"/pid"),
		"--cgroup-parent", cgroupOf(dir), "--exec-opt", "native.cgroupdriver=cgroupfs", "--iptables=false")
	cmd.Args = append(cmd.Args, strings.Fields(os.Getenv(daemonArgs))...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = slices.DeleteFunc(os.Environ(), func(kv string) bool { return strings.HasPrefix(kv, daemonVar+"=") })
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	pid = cmd.Process.Pid
	return pid, cmd.Process.Release() // keep reaps it
}

// clear ends all that runs here, and removes what would be left of it.
func clear(dir string) error {
	signalTo(-1, unix.SIGKILL)
	for {
		if _, err := unix.Wait4(-1, nil, 0, nil); errors.Is(err, unix.ECHILD) {
			break
		}
	}
	if err := unix.Unmount(filepath.Join(dir, memoryDir), unix.MNT_DETACH); err != nil {
		return err
	}
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	// The kernel takes a moment to see that a cgroup is empty.
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		var errs []error
		for _, c := range slices.Backward(cgroups(dir)) { // from the leaves up
			if err := unix.Rmdir(c); err != nil && !errors.Is(err, unix.ENOENT) {
				errs = append(errs, fmt.Errorf("remove %s: %w", c, err))
			}
		}
		if len(errs) == 0 || time.Now().After(deadline) {
			return errors.Join(errs...)
		}
	}
}

// cgroupOf is the cgroup above those of a daemon's containers.
func cgroupOf(dir string) string { return "/enginetest-" + filepath.Base(dir) }

// cgroups are those of a daemon, in every hierarchy, each before those in it.
func cgroups(dir string) (found []string) {
	const root = "/sys/fs/cgroup"
	tops := []string{filepath.Join(root, cgroupOf(dir))}
	hierarchies, _ := os.ReadDir(root)
	for _, h := range hierarchies {
		tops = append(tops, filepath.Join(root, h.Name(), cgroupOf(dir)))
	}
	for _, top := range tops {
		_ = filepath.WalkDir(top, func(name string, e fs.DirEntry, err error) error {
			if err == nil && e.IsDir() {
				found = append(found, name)
			}
			return nil
		})
	}
	return found
}
