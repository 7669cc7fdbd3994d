package conform

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
)

var checks = []check{
	{"create", shared, prints("echo it runs", "it runs\n")},
	{"create: a name that is taken", shared, takenName},
	{"get or create, concurrently", nil, getOrCreate},
	{"list and status", shared, listAndStatus},
	{"list: by tags and state, after a stop", nil, listFilters},
	{"commands: input, output, exit code", shared, commands},
	{"commands: environment, directory, user", shared, commandSettings},
	{"commands: home directory of another user", shared, homeOfUser},
	{"commands: signals and time limits", shared, signals},
	{"commands: terminal", shared, terminal},
	{"commands: detached, with a log", shared, detached},
	{"main process", with(sandbox.WithCommand("sh", "-c", "echo first; echo second >&2; exec sleep 600")), mainProcess},
	{"files: write, read, rename, remove", shared, files},
	{"files: copy in and out", shared, copies},
	{"files of a stopped sandbox", shared, stoppedFiles},
	{"volumes: copy of a directory", nil, copiedDirectory},
	{"volumes: copy of a private directory", nil, privateDirectory},
	{"volumes: copy of an empty directory over one of the image", shared, emptyDirectory},
	{"volumes: directory of this machine", nil, boundDirectory},
	{"volumes: attached to another sandbox", shared, attachedVolume},
	{"stop and resume", with(), stopAndResume},
	{"timeout", with(sandbox.WithTimeout(2 * time.Second)), timeout},
	{"timeout: extended", nil, extendedTimeout},
	{"timeout: idle", with(sandbox.WithIdleTimeout(2 * time.Second)), idleTimeout},
	{"fork of a running sandbox", marked, forkRunning},
	{"fork of a stopped sandbox", marked, forkStopped},
	{"three forks of one moment", marked, forkN},
	{"fork: attributes of the volumes' own directories", nil, forkRoots},
	{"snapshot and create from it", saved, snapshot},
	{"rollback", saved, rollback},
	{"prune leaves what is in use or foreign", saved, prune},
	{"update: limits and environment", with(), updateLimits},
	{"update: mounts and ports", marked, updateContainer},
	{"limits: memory", with(sandbox.WithMemory(128 << 20)), memoryLimit},
	{"limits: processes", with(sandbox.WithPidsLimit(64)), pidsLimit},
	{"ports: dial", serving(sandbox.WithNetworkPolicy(sandbox.DenyAll())), dial},
	{"ports: published", serving(sandbox.WithPorts(8080)), publishedPort},
	{"ports: another one if it is taken at a resume", with(sandbox.WithPorts(8080)), takenPort},
	{"network: deny all", nil, denyAll},
	{"network: allowed subnets", with(sandbox.WithNetworkPolicy(sandbox.NetworkPolicy{Subnets: sandbox.Subnets{Allow: []string{outside + "/32"}}})), allowedSubnets},
	{"network: names", with(sandbox.WithNetworkPolicy(sandbox.NetworkPolicy{Allow: []string{"allowed.invalid"}})), names},
	{"network: policy changed while it runs", with(), changedPolicy},
	{"kernel surface", shared, kernelSurface},
	{"connection lost", shared, connectionLost},
	{"delete with volumes", with(), deleteWithVolumes},
	{"delete, concurrently", with(), deletes},
}

func takenName(ctx context.Context, r *run, sb *sandbox.Sandbox) error {
	second, err := r.client.Create(ctx, slices.Concat(r.opts, []sandbox.CreateOption{sandbox.WithName(sb.Name())})...)
	if err == nil {
		r.closers = append(r.closers, second.Detach)
	}
	if !errors.Is(err, sandbox.ErrExists) {
		return fmt.Errorf("a second Create of the name %s: %w", sb.Name(), orNil(err))
	}
	return expect(ctx, sb, "echo here", "here\n")
}

func getOrCreate(ctx context.Context, r *run, _ *sandbox.Sandbox) error {
	name := r.name()
	var wg sync.WaitGroup
	ids, errs := make([]string, 4), make([]error, 4)
	for i := range ids {
		wg.Go(func() {
			sb, err := r.client.GetOrCreate(ctx, name, r.opts...)
			if err == nil {
				ids[i], err = sb.ID(), sb.Detach()
			}
			errs[i] = err
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if slices.Sort(ids); ids[0] != ids[3] {
		return fmt.Errorf("four concurrent calls returned different sandboxes: %q", ids)
	}
	return nil
}

func listAndStatus(ctx context.Context, r *run, sb *sandbox.Sandbox) error {
	infos, err := r.client.List(ctx, sandbox.ListOptions{Prefix: r.prefix})
	if err != nil {
		return err
	}
	i := slices.IndexFunc(infos, func(i sandbox.Info) bool { return i.ID == sb.ID() })
	if i < 0 || infos[i].State != sandbox.StateRunning {
		return fmt.Errorf("the list does not tell that %s is running: %+v", sb.Name(), infos)
	}
	st, err := sb.Status(ctx)
	if err != nil {
		return err
	}
	if st.Usage == nil {
		r.note = "the usage of resources is not known"
	} else if st.Usage.Processes < 1 || st.Usage.MemoryBytes < 1 {
		return fmt.Errorf("the status does not tell the usage of a running session: %s, %+v", st.State, st.Usage)
	}
	if st.State != sandbox.StateRunning {
		return fmt.Errorf("the status says that it is %s", st.State)
	}
	if st.Workspace.SizeBytes < 0 {
		return errors.New("the status does not tell the size of the workspace")
	}
	return nil
}

func listFilters(ctx context.Context, r *run, _ *sandbox.Sandbox) error {
	value := r.name()
	sb, err := r.create(ctx, sandbox.WithTags(map[string]string{"conform": value, "empty": ""}))
	if err != nil {
		return err
	}
	other, err := r.create(ctx, sandbox.WithTags(map[string]string{"conform": value}))
	if err != nil {
		return err
	}
	for _, each := range []*sandbox.Sandbox{sb, other} {
		if _, err := each.Stop(ctx); err != nil {
			return err
		}
		// At once: some engines' lists hear of a stop after their reply to it.
		infos, err := r.client.List(ctx, sandbox.ListOptions{Tags: map[string]string{"conform": value}, States: []sandbox.State{sandbox.StateStopped}})
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(infos, func(i sandbox.Info) bool { return i.ID == each.ID() }) {
			return fmt.Errorf("right after Stop the list does not tell that %s is stopped: %+v", each.Name(), infos)
		}
	}
	infos, err := r.client.List(ctx, sandbox.ListOptions{Tags: map[string]string{"conform": value, "empty": ""}})
	if err == nil && (len(infos) != 1 || infos[0].ID != sb.ID()) {
		err = fmt.Errorf("a list by two tags has not %s alone: %+v", sb.Name(), infos)
	}
	return err
}

func commands(ctx context.Context, r *run, sb *sandbox.Sandbox) error {
	cmd := sb.Command(ctx, "sh", "-c", "cat; echo problem >&2; exit 7")
	var stdout, stderr bytes.Buffer
	big := strings.Repeat("sixteen bytes ok", 1<<16)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(big), &stdout, &stderr
	err := cmd.Run()
	var exit *sandbox.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 7 {
		return fmt.Errorf("a command that exits with 7 returned: %w", orNil(err))
	}
	if stdout.String() != big || stderr.String() != "problem\n" {
		return fmt.Errorf("of 1 MiB of input %d bytes came back, and on stderr %q", stdout.Len(), stderr.String())
	}
	return nil
}

// orNil makes a nil error printable.
func orNil(err error) error {
	if err == nil {
		return errors.New("no error")
	}
	return err
}

func commandSettings(ctx context.Context, r *run, sb *sandbox.Sandbox) error {
	cmd := sb.Command(ctx, "sh", "-c", `echo "$KEY $(pwd) $(id -u)"`)
	cmd.Env, cmd.Dir, cmd.User = []string{"KEY=value"}, "/tmp", "65534:65534"
	out, err := cmd.Output()
	if want := "value /tmp 65534\n"; err == nil && string(out) != want {
		err = fmt.Errorf("a command printed %q instead of %q", out, want)
	}
	return err
}

// homeOfUser compares HOME with the account of a user that is not root.
func homeOfUser(ctx context.Context, r *run, sb *sandbox.Sandbox) error {
	account, err := shell(ctx, sb, `while IFS=: read -r name _ id _ _ home _; do [ "$id" = 0 ] || [ "$home" = /root ] || { echo "$name:$home"; break; }; done </etc/passwd`)
	if err != nil {
		return err
	}
	user, home, ok := strings.Cut(strings.TrimSpace(account), ":")
	if !ok {
		return missing("the image has no user but root")
	}
	cmd := sb.Command(ctx, "sh", "-c", `echo "$HOME $(id -un)"`)
	cmd.User = user
	out, err := cmd.Output()
	if want := home + " " + user + "\n"; err == nil && string(out) != want {
		err = fmt.Errorf("a command of another user printed %q for its home directory and name instead of %q", out, want)
	}
	return err
}

func signals(ctx context.Context, r *run, sb *sandbox.Sandbox) error {
	cmd := sb.Command(ctx, "sh", "-c", "trap 'exit 3' HUP; echo ready; while :; do sleep 0.1; done")
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	if _, err := io.ReadFull(out, make([]byte, len("ready\n"))); err != nil {
		return err
	}
	if err := cmd.Signal(syscall.SIGHUP); err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, out)
	var exit *sandbox.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 3 {
		return fmt.Errorf("a command that exits with 3 on SIGHUP returned: %w", orNil(err))
	}
	limited := sb.Command(ctx, "sleep", "600")
	limited.Timeout = time.Second
	if err := limited.Run(); !errors.Is(err, sandbox.ErrTimeout) {
		return fmt.Errorf("a command with a time limit of 1 s returned: %w", orNil(err))
	}
	return nil
}

func terminal(ctx context.Context, r *run, sb *sandbox.Sandbox) error {
	cmd := sb.Command(ctx, "stty", "size")
	var out bytes.Buffer
	cmd.TTY, cmd.Stdout = true, &out
	if err := cmd.Resize(30, 100); err != nil {
		return err
	}
	if err := cmd.Run(); err != nil {
		return err
	}
	if got := strings.TrimSpace(out.String()); got != "30 100" {
		return fmt.Errorf("the terminal has the size %q instead of \"30 100\"", got)
	}
	return nil
}

func detached(ctx context.Context, r *run, sb *sandbox.Sandbox) error {
	cmd := sb.Command(ctx, "sh", "-c", "echo one; echo two >&2; exit 4")
	cmd.Detached = true
	if err := cmd.Start(); err != nil {
		return err
	}
	again, err := sb.Process(ctx, cmd.ID())
	if err != nil {
		return err
	}
	out, err := again.Output()
	var exit *sandbox.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 4 || string(out) != "one\n" {
		return fmt.Errorf("a detached command's output was %q, its result: %w", out, orNil(err))
	}
	return nil
}

func mainProcess(ctx context.Context, r *run, sb *sandbox.Sandbox) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	var lines []string
	for line, err := range sb.Logs(ctx, sandbox.LogOptions{Follow: true}) {
		if err != nil {
			return fmt.Errorf("after the log's lines %q: %w", lines, err)
		}
		if lines = append(lines, line.Stream+" "+line.Text); len(lines) == 2 {
			break
		}
	}
	if slices.Sort(lines); !slices.Equal(lines, []string{"stderr second", "stdout first"}) {
		return fmt.Errorf("the log has %q", lines)
	}
	return nil
}

func files(ctx context.Context, r *run, sb *sandbox.Sandbox) error {
	dir, err := sb.MkdirTemp(ctx, "/workspace", "files-*")
	if err != nil {
		return err
	}
	name := dir + "/a file"
	if err := sb.WriteFile(ctx, name, []byte("content"), 0o640); err != nil {
		return err
	}
	when := time.Date(2001, 2, 3, 4, 5, 6, 789, time.UTC)
	if err := errors.Join(sb.Chtimes(ctx, name, when, when), sb.Rename(ctx, name, dir+"/b"), sb.Symlink(ctx, "b", dir+"/link")); err != nil {
		return err
	}
	info, err := sb.Stat(ctx, dir+"/link")
	if err != nil {
		return err
	}
	if info.Mode() != 0o640 || info.Size() != 7 || !info.ModTime().Equal(when) {
		return fmt.Errorf("the file has mode %v, %d bytes and the time %v", info.Mode(), info.Size(), info.ModTime())
	}
	got, err := sb.ReadFile(ctx, dir+"/link")
	if err == nil && string(got) != "content" {
		err = fmt.Errorf("the file has %q", got)
	}
	if err := errors.Join(err, sb.RemoveAll(ctx, dir)); err != nil {
		return err
	}
	if _, err := sb.Stat(ctx, dir); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("a removed directory: %w", orNil(err))
	}
	return nil
}

// tempDir makes a directory of this machine, which the run removes at its end.
func (r *run) tempDir() (dir string, err error) {
	dir, err = os.MkdirTemp("", "conform-*")
	r.closers = append(r.closers, func() error { return os.RemoveAll(dir) })
	return dir, err
}

// tree is tempDir with a file, a link and a program, which everybody may read.
func (r *run) tree() (dir string, err error) {
	dir, err = r.tempDir()
	if err == nil {
		err = errors.Join(os.Chmod(dir, 0o755), os.Mkdir(filepath.Join(dir, "sub"), 0o755),
			os.WriteFile(filepath.Join(dir, "sub", "file"), []byte("from outside\n"), 0o644),
			os.WriteFile(filepath.Join(dir, "program"), []byte("#!/bin/sh\necho ran\n"), 0o755),
			os.Symlink("sub/file", filepath.Join(dir, "link")))
	}
	return dir, err
}

func copies(ctx context.Context, r *run, sb *sandbox.Sandbox) error {
	dir, err := r.tree()
	if err != nil {
		return err
	}
	if _, err := sb.CopyIn(ctx, dir, "/workspace/in", sandbox.CopyOptions{}); err != nil {
		return err
	}
	if err := expect(ctx, sb, "cd /workspace/in && cat link && ./program && echo changed >sub/file", "from outside\nran\n"); err != nil {
		return err
	}
	out := filepath.Join(dir, "out")
	if _, err := sb.CopyOut(ctx, "/workspace/in", out, sandbox.CopyOptions{}); err != nil {
		return err
	}
	got, err := os.ReadFile(filepath.Join(out, "link"))
	if err == nil && string(got) != "changed\n" {
		err = fmt.Errorf("what came back has %q", got)
	}
	return errors.Join(err, sb.RemoveAll(ctx, "/workspace/in"))
}

func stoppedFiles(ctx context.Context, r *run, sb *sandbox.Sandbox) error {
	if err := sb.WriteFile(ctx, "/workspace/kept", []byte("kept"), 0o600); err != nil {
		return err
	}
	if _, err := sb.Stop(ctx); err != nil {
		return err
	}
	still, err := r.client.Get(ctx, sb.Name(), sandbox.WithoutResume())
	if err != nil {
		return err
	}
	got, err := still.ReadFile(ctx, "/workspace/kept")
	if err == nil && string(got) != "kept" {
		err = fmt.Errorf("the file has %q", got)
	}
	return errors.Join(err, still.Detach(), sb.Remove(ctx, "/workspace/kept"))
}

func copiedDirectory(ctx context.Context, r *run, _ *sandbox.Sandbox) error {
	dir, err := r.tree()
	if err != nil {
		return err
	}
	sb, err := r.create(ctx, sandbox.WithMounts(sandbox.Mount{Source: dir, Target: "/srv/data"}))
	if err != nil {
		return err
	}
	if err := expect(ctx, sb, "cd /srv/data && cat link && ./program && echo changed >sub/file && ls", "from outside\nran\nlink\nprogram\nsub\n"); err != nil {
		return err
	}
	got, err := os.ReadFile(filepath.Join(dir, "sub", "file"))
	if err == nil && string(got) != "from outside\n" {
		err = fmt.Errorf("a change inside changed the original: %q", got)
	}
	return err
}

// privateDirectory copies what only its owner may read, as [os.MkdirTemp] makes it.
func privateDirectory(ctx context.Context, r *run, _ *sandbox.Sandbox) error {
	dir, err := r.tempDir()
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "file"), []byte("private\n"), 0o600); err != nil {
		return err
	}
	sb, err := r.create(ctx, sandbox.WithMounts(sandbox.Mount{Source: dir, Target: "/srv/data"}))
	if err != nil {
		return err
	}
	return expect(ctx, sb, "cat /srv/data/file; stat -c %a /srv/data /srv/data/file", "private\n700\n600\n")
}

func emptyDirectory(ctx context.Context, r *run, sb *sandbox.Sandbox) error {
	target, err := shell(ctx, sb, `for d in /usr/share/*/; do [ -z "$(ls -A "$d")" ] || { echo "${d%/}"; break; }; done`)
	if err != nil {
		return err
	}
	if target = strings.TrimSpace(target); target == "" {
		return missing("the image has no directory in /usr/share")
	}
	dir, err := r.tempDir()
	if err != nil {
		return err
	}
	over, err := r.create(ctx, sandbox.WithMounts(sandbox.Mount{Source: dir, Target: target}))
	if err != nil {
		return err
	}
	return expect(ctx, over, "ls -A "+target, "")
}

func boundDirectory(ctx context.Context, r *run, _ *sandbox.Sandbox) error {
	dir, err := r.tree()
	if err != nil {
		return err
	}
	sb, err := r.create(ctx, sandbox.WithMounts(sandbox.Mount{Source: dir, Target: "/srv/data", Mode: sandbox.RO}))
	if errors.Is(err, sandbox.ErrInvalidArgument) {
		return missing("the engine does not see this machine's directories: " + err.Error())
	}
	if err != nil {
		return err
	}
	return expect(ctx, sb, "cat /srv/data/link; touch /srv/data/new 2>/dev/null || echo read-only", "from outside\nread-only\n")
}

func attachedVolume(ctx context.Context, r *run, one *sandbox.Sandbox) error {
	if err := one.WriteFile(ctx, "/workspace/shared", []byte("by one"), 0o644); err != nil {
		return err
	}
	st, err := one.Status(ctx)
	if err != nil {
		return err
	}
	two, err := r.create(ctx, sandbox.WithMounts(sandbox.Mount{Volume: st.Workspace.Name, Target: "/srv/one"}))
	if err != nil {
		return err
	}
	return expect(ctx, two, "cat /srv/one/shared && rm /srv/one/shared", "by one")
}

func stopAndResume(ctx context.Context, r *run, sb *sandbox.Sandbox) error {
	if _, err := shell(ctx, sb, "echo workspace >/workspace/a; mkdir -p /srv/b; echo layer >/srv/b/c"); err != nil {
		return err
	}
	var wg sync.WaitGroup
	states, errs := make([]sandbox.State, 2), make([]error, 2)
	for i := range errs {
		wg.Go(func() { states[i], errs[i] = sb.Stop(ctx) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if states[0] != sandbox.StateStopped || states[1] != sandbox.StateStopped {
		return fmt.Errorf("after two calls of Stop it is %q", states)
	}
	return expect(ctx, sb, "cat /workspace/a /srv/b/c", "workspace\nlayer\n")
}

func timeout(ctx context.Context, r *run, sb *sandbox.Sandbox) error {
	return r.ends(ctx, sb, "timeout")
}

// ends waits for the end of a session, which has that reason.
func (r *run) ends(ctx context.Context, sb *sandbox.Sandbox, reason string) error {
	for {
		st, err := r.client.Inspect(ctx, sb.Name())
		if err != nil {
			return err
		}
		if st.State == sandbox.StateStopped {
			if st.Reason != reason {
				return fmt.Errorf("the session ended because of %q instead of %q", st.Reason, reason)
			}
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("a session that ends within seconds is %s: %w", st.State, context.Cause(ctx))
		case <-time.After(200 * time.Millisecond):
		}
	}
}

func extendedTimeout(ctx context.Context, r *run, _ *sandbox.Sandbox) error {
	const first, more = 5 * time.Second, 3 * time.Second
	sb, err := r.create(ctx, sandbox.WithTimeout(first))
	if err != nil {
		return err
	}
	if err := sb.ExtendTimeout(ctx, more); err != nil {
		return err
	}
	st, err := sb.Status(ctx)
	if err != nil {
		return err
	}
	if got := st.ExpiresAt.Sub(st.StartedAt); got != first+more {
		return fmt.Errorf("the session of %v, extended by %v, lasts %v", first, more, got)
	}
	limited := sb.Command(ctx, "sleep", "600")
	err = limited.Run() // the session's end ends it
	if took := time.Since(st.StartedAt); took < first+more/2 {
		return fmt.Errorf("the session ended after %v: %w", took, orNil(err))
	}
	return r.ends(ctx, sb, "timeout")
}

func idleTimeout(ctx context.Context, r *run, sb *sandbox.Sandbox) error {
	if err := expect(ctx, sb, "sleep 4; echo used", "used\n"); err != nil {
		return err
	}
	return r.ends(ctx, sb, "idle timeout")
}

// mark makes files of every kind that a fork has to have: in the workspace and outside, with
// modes, times and links. Of the image's it removes a file, replaces a directory by one with a
// file of its own, and renames a directory.
const mark = `set -e
echo workspace >/workspace/file; ln -s file /workspace/link; chmod 600 /workspace/file
mkdir -p /srv/deep/er; echo layer >/srv/deep/er/file; chmod 711 /srv/deep; chown 1234:5678 /srv/deep/er/file
touch -d '2001-02-03 04:05:06.789' /srv/deep/er/file
for f in /etc/*; do case $f in *passwd*|*group*|*host*|*resolv*|*shadow*) continue;; esac
  if [ -f "$f" ] && [ ! -L "$f" ]; then rm "$f"; echo "$f" >/workspace/removed; break; fi
done
replaced= renamed=
for d in /usr/share/*/; do
  [ "$(ls "$d" | wc -l)" -gt 1 ] || continue
  if [ -z "$replaced" ]; then replaced=$d; rm -r "$d"; mkdir "$d"; echo alone >"$d/new"
  elif [ -z "$renamed" ]; then renamed=$d; mv "$d" /srv/renamed; break; fi
done
echo "$replaced $renamed" >/workspace/directories`

// look prints what mark made.
const look = `cat /workspace/link /srv/deep/er/file; stat -c '%a %u:%g' /workspace/file /srv/deep /srv/deep/er/file
stat -c %y /srv/deep/er/file | cut -c 1-23; [ -e "$(cat /workspace/removed)" ] && echo back || echo gone
read replaced renamed </workspace/directories; ls $replaced; ls /srv/renamed; ls -d $renamed 2>/dev/null || echo renamed`

// seenIn compares what look prints in a copy with what it prints in the original.
func (r *run) seenIn(ctx context.Context, copied *sandbox.Sandbox, want string) error {
	got, err := shell(ctx, copied, look)
	if err != nil || got == want {
		return err
	}
	if strings.ReplaceAll(want, ".789", ".000") == got {
		r.note = "times of files outside of volumes have whole seconds"
		return nil
	}
	return fmt.Errorf("the copy has\n%sinstead of\n%s", got, want)
}

// An original is a sandbox with the files of mark, which checks share. One that changes it takes it
// away from the run for as long as it is not as it was.
type original struct {
	sb   *sandbox.Sandbox
	want string // what look prints there
	snap *sandbox.Snapshot
}

// marked returns the original.
func marked(ctx context.Context, r *run) (*sandbox.Sandbox, error) {
	if r.original == nil {
		sb, err := r.create(ctx)
		if err != nil {
			return nil, err
		}
		if _, err := shell(ctx, sb, mark); err != nil {
			return nil, err
		}
		want, err := shell(ctx, sb, look)
		if err != nil {
			return nil, err
		}
		r.original = &original{sb: sb, want: want}
	}
	return r.original.sb, nil
}

// saved returns the original, of which there is a snapshot.
func saved(ctx context.Context, r *run) (*sandbox.Sandbox, error) {
	if _, err := marked(ctx, r); err != nil {
		return nil, err
	}
	if r.original.snap == nil {
		snap, err := r.original.sb.Snapshot(ctx, sandbox.SnapshotOptions{})
		if err != nil {
			return nil, err
		}
		r.snapshots = append(r.snapshots, snap.ID)
		r.original.snap = &snap
	}
	return r.original.sb, nil
}

// createFrom creates a sandbox with the files and settings of a snapshot.
func (r *run) createFrom(ctx context.Context, snap *sandbox.Snapshot) (*sandbox.Sandbox, error) {
	sb, err := r.client.Create(ctx, sandbox.WithName(r.name()), sandbox.WithSource(sandbox.FromSnapshot(snap.ID)))
	if err == nil {
		r.closers = append(r.closers, sb.Detach)
	}
	return sb, err
}

func (r *run) fork(ctx context.Context, source string) (*sandbox.Sandbox, error) {
	fork, err := r.client.Fork(ctx, source, sandbox.WithName(r.name()))
	if err == nil {
		r.closers = append(r.closers, fork.Detach)
	}
	return fork, err
}

func forkRunning(ctx context.Context, r *run, sb *sandbox.Sandbox) error {
	want := r.original.want
	fork, err := r.fork(ctx, sb.Name())
	if err != nil {
		return err
	}
	if err := r.seenIn(ctx, fork, want); err != nil {
		return err
	}
	if _, err := shell(ctx, fork, "echo other >/workspace/file; echo other >/srv/deep/er/file"); err != nil {
		return err
	}
	return expect(ctx, sb, look, want)
}

func forkStopped(ctx context.Context, r *run, sb *sandbox.Sandbox) error {
	want := r.original.want
	if _, err := sb.Stop(ctx); err != nil {
		return err
	}
	fork, err := r.fork(ctx, sb.Name())
	if err != nil {
		return err
	}
	if err := r.seenIn(ctx, fork, want); err != nil {
		return err
	}
	st, err := r.client.Inspect(ctx, sb.Name())
	if err == nil && st.State != sandbox.StateStopped {
		err = fmt.Errorf("the source is %s after its fork", st.State)
	}
	return err
}

func forkN(ctx context.Context, r *run, sb *sandbox.Sandbox) error {
	want := r.original.want
	forks, err := r.client.ForkN(ctx, sb.Name(), 3)
	for _, fork := range forks {
		if fork.Sandbox == nil {
			err = errors.Join(err, fork.Err)
			continue
		}
		r.names = append(r.names, fork.Sandbox.Name())
		r.closers = append(r.closers, fork.Sandbox.Detach)
		err = errors.Join(err, r.seenIn(ctx, fork.Sandbox, want))
	}
	return err
}

// forkRoots compares the directories that the volumes of a fork are with those of its source.
func forkRoots(ctx context.Context, r *run, _ *sandbox.Sandbox) error {
	dir, err := r.tree()
	if err != nil {
		return err
	}
	sb, err := r.create(ctx, sandbox.WithMounts(sandbox.Mount{Source: dir, Target: "/srv/data"}))
	if err != nil {
		return err
	}
	const attributes = "stat -c '%n %a %u:%g %y' /workspace /srv/data"
	want, err := shell(ctx, sb, `set -e; for d in /workspace /srv/data; do touch $d/file; chmod 2750 $d; chown 1234:5678 $d; touch -d '2001-02-03 04:05:06.789' $d; done; `+attributes)
	if err != nil {
		return err
	}
	fork, err := r.fork(ctx, sb.Name())
	if err != nil {
		return err
	}
	return expect(ctx, fork, attributes, want)
}

func rollback(ctx context.Context, r *run, _ *sandbox.Sandbox) error {
	o := r.original
	r.original = nil
	if _, err := shell(ctx, o.sb, "rm -r /workspace/* /srv/deep; echo later >/workspace/later; echo later >/srv/later"); err != nil {
		return err
	}
	if err := o.sb.Rollback(ctx, o.snap.ID); err != nil {
		return err
	}
	if err := r.seenIn(ctx, o.sb, o.want); err != nil {
		return err
	}
	if err := expect(ctx, o.sb, "ls /workspace/later /srv/later 2>/dev/null; true", ""); err != nil {
		return err
	}
	r.original = o
	return nil
}

// prune removes leftovers, of others as well, and looks for what has to stay.
func prune(ctx context.Context, r *run, _ *sandbox.Sandbox) error {
	o := r.original
	if _, err := o.sb.Stop(ctx); err != nil {
		return err
	}
	foreign := r.prefix + "-foreign"
	remove, exists, err := foreignVolume(ctx, r.host, foreign)
	if err != nil {
		return err
	}
	report, err := r.client.Prune(ctx)
	there, existsErr := exists()
	if err := errors.Join(err, existsErr, remove()); err != nil {
		return err
	}
	if !there {
		return fmt.Errorf("the volume %s, which is no sandbox's, is gone; removed: %q", foreign, report.Removed)
	}
	for _, object := range report.Removed {
		if strings.Contains(object, o.sb.ID()) || strings.Contains(object, o.sb.Name()) || strings.Contains(object, o.snap.ID) {
			return fmt.Errorf("%s was removed, which is in use", object)
		}
	}
	if err := r.seenIn(ctx, o.sb, o.want); err != nil {
		return fmt.Errorf("the sandbox afterwards: %w", err)
	}
	again, err := r.createFrom(ctx, o.snap)
	if err != nil {
		return fmt.Errorf("the snapshot afterwards: %w", err)
	}
	return r.seenIn(ctx, again, o.want)
}

func snapshot(ctx context.Context, r *run, _ *sandbox.Sandbox) error {
	o := r.original
	r.original = nil
	if _, err := shell(ctx, o.sb, "echo later >/workspace/file"); err != nil {
		return err
	}
	again, err := r.createFrom(ctx, o.snap)
	if err != nil {
		return err
	}
	if err := r.seenIn(ctx, again, o.want); err != nil {
		return err
	}
	if _, err := again.Stop(ctx); err != nil {
		return err
	}
	if err := r.seenIn(ctx, again, o.want); err != nil {
		return err
	}
	_, err = shell(ctx, o.sb, "echo workspace >/workspace/file")
	if err == nil {
		r.original = o
	}
	return err
}

func updateLimits(ctx context.Context, r *run, sb *sandbox.Sandbox) error {
	const memory = 768 << 20
	if err := sb.Update(ctx, sandbox.WithMemory(memory), sandbox.WithEnv(map[string]string{"KEY": "new"})); err != nil {
		return err
	}
	if err := expect(ctx, sb, `echo "$KEY"`, "new\n"); err != nil {
		return err
	}
	st, err := sb.Status(ctx)
	if err == nil && (st.Usage == nil || st.Usage.MemoryLimit != memory) {
		err = fmt.Errorf("after the update the session's usage is %+v", st.Usage)
	}
	return err
}

func updateContainer(ctx context.Context, r *run, sb *sandbox.Sandbox) error {
	dir, err := r.tree()
	if err != nil {
		return err
	}
	want := r.original.want
	r.original = nil
	if err := sb.Update(ctx, sandbox.WithPorts(8080), sandbox.WithMounts(sandbox.Mount{Source: dir, Target: "/srv/late"})); err != nil {
		return err
	}
	if _, err := sb.Stop(ctx); err != nil {
		return err
	}
	if err := r.seenIn(ctx, sb, want); err != nil {
		return err
	}
	if _, err := sb.Port(ctx, 8080); err != nil {
		return err
	}
	return expect(ctx, sb, "cat /srv/late/link", "from outside\n")
}

func memoryLimit(ctx context.Context, r *run, sb *sandbox.Sandbox) error {
	// tail keeps the whole of its input, which has no line end.
	_, err := shell(ctx, sb, "head -c 400000000 /dev/zero | tail >/dev/null")
	if err == nil {
		return errors.New("a process has 400 MB under a limit of 128 MiB")
	}
	return r.limited(err)
}

// limited checks the error of a command that exceeded a limit.
func (r *run) limited(err error) error {
	switch {
	case errors.As(err, new(*sandbox.ExitError)):
		return nil
	case errors.Is(err, sandbox.ErrNotRunning): // gVisor's kernel is one of the processes
		r.note = "a sandbox that exceeds it ends"
		return nil
	}
	return err
}

func pidsLimit(ctx context.Context, r *run, sb *sandbox.Sandbox) error {
	out, err := sb.Command(ctx, "sh", "-c", "for i in $(seq 100); do sleep 20 & done; ls -d /proc/[0-9]* | wc -l").CombinedOutput()
	if err == nil && !bytes.Contains(bytes.ToLower(out), []byte("fork")) {
		return fmt.Errorf("a hundred processes started under a limit of 64: %s", out)
	}
	return r.limited(err)
}

// server is a command that serves HTTP on port 8080 with the file index.html.
const server = `cd /workspace && echo hello >index.html
if command -v python3 >/dev/null; then exec python3 -m http.server 8080
elif command -v node >/dev/null; then exec node -e 'require("http").createServer((q,s)=>s.end("hello\n")).listen(8080)'
elif command -v busybox >/dev/null; then exec busybox httpd -f -p 8080
else exit 99; fi`

// serve creates a sandbox with a server on port 8080.
func (r *run) serve(ctx context.Context, opts ...sandbox.CreateOption) (*sandbox.Sandbox, error) {
	sb, err := r.create(ctx, opts...)
	if err != nil {
		return nil, err
	}
	_, err = shell(ctx, sb, "command -v python3 || command -v node || command -v busybox")
	if errors.As(err, new(*sandbox.ExitError)) {
		return nil, missing("the image has none of python3, node, busybox to serve HTTP with")
	}
	if err != nil {
		return nil, err
	}
	cmd := sb.Command(ctx, "sh", "-c", server)
	cmd.Detached = true
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return sb, sb.WaitPort(ctx, 8080)
}

// hello reads the page of a server.
func hello(conn net.Conn, err error) error {
	if err != nil {
		return err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.WriteString(conn, "GET / HTTP/1.0\r\n\r\n"); err != nil {
		return err
	}
	page, err := io.ReadAll(conn)
	if err == nil && !bytes.Contains(page, []byte("hello")) {
		err = fmt.Errorf("the server said %q", page)
	}
	return err
}

func dial(ctx context.Context, r *run, sb *sandbox.Sandbox) error {
	return hello(sb.DialContext(ctx, "tcp", "127.0.0.1:8080"))
}

func publishedPort(ctx context.Context, r *run, sb *sandbox.Sandbox) error {
	address, err := sb.Port(ctx, 8080)
	if err != nil {
		return err
	}
	if !address.Addr().IsLoopback() {
		return fmt.Errorf("the port is published at %s", address)
	}
	if u, err := url.Parse(r.host); err != nil || u.Scheme != "unix" && u.Scheme != "npipe" {
		return missing("the port is published on the engine's machine, which is another one")
	}
	return hello(new(net.Dialer).DialContext(ctx, "tcp", address.String()))
}

// takenPort stops a sandbox, takes its published port, and resumes it.
func takenPort(ctx context.Context, r *run, sb *sandbox.Sandbox) error {
	address, err := sb.Port(ctx, 8080)
	if err != nil {
		return err
	}
	if u, err := url.Parse(r.host); err != nil || u.Scheme != "unix" && u.Scheme != "npipe" {
		return missing("the port is published on the engine's machine, which is another one")
	}
	if _, err := sb.Stop(ctx); err != nil {
		return err
	}
	taken, err := net.Listen("tcp", address.String())
	if err != nil {
		return err
	}
	defer taken.Close()
	if err := expect(ctx, sb, "echo resumed", "resumed\n"); err != nil {
		return err
	}
	again, err := sb.Port(ctx, 8080)
	if err == nil && again == address {
		err = fmt.Errorf("the port is still published at %s, which is taken", again)
	}
	return err
}

// The addresses are of the blocks for documentation (RFC 5737): nobody answers there.
const (
	outside      = "203.0.113.7"
	otherOutside = "198.51.100.7"
)

// needs fails unless the image has the programs.
func needs(ctx context.Context, sb *sandbox.Sandbox, programs ...string) error {
	for _, p := range programs {
		_, err := shell(ctx, sb, "command -v "+p)
		if errors.As(err, new(*sandbox.ExitError)) {
			return missing("the image lacks " + p)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// attempt connects from inside to an address.
func attempt(ctx context.Context, sb *sandbox.Sandbox, address string) error {
	if err := needs(ctx, sb, "bash", "timeout"); err != nil {
		return err
	}
	_, err := shell(ctx, sb, "timeout 2 bash -c 'exec 3<>/dev/tcp/"+address+"/80' 2>/dev/null; true")
	return err
}

// blocked fails unless the session's PID 1 has blocked connections to that address, and those alone.
func (r *run) blocked(ctx context.Context, sb *sandbox.Sandbox, address string) error {
	if r.offline {
		r.note = "attempts are not recorded"
		return nil
	}
	return told(ctx, sb, "a blocked connection to "+address+", and no other", func(egress []sandbox.Egress) bool {
		return len(egress) == 1 && egress[0].Address.String() == address && !egress[0].Allowed
	})
}

// told waits until the session tells what was asked, for its kernel's reports take a moment.
func told(ctx context.Context, sb *sandbox.Sandbox, what string, is func([]sandbox.Egress) bool) error {
	for try := 0; ; try++ {
		egress, err := sb.Egress(ctx)
		if err != nil {
			return err
		}
		if is(egress) {
			return nil
		}
		if try == 40 {
			return fmt.Errorf("the session does not tell of %s: %+v", what, egress)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

func denyAll(ctx context.Context, r *run, _ *sandbox.Sandbox) error {
	if _, err := r.use(ctx); err != nil { // now it is known whether sandboxes have a network
		return err
	}
	sb, err := r.create(ctx, sandbox.WithNetworkPolicy(sandbox.DenyAll()))
	if err != nil {
		return err
	}
	if err := attempt(ctx, sb, outside); err != nil {
		return err
	}
	return r.blocked(ctx, sb, outside)
}

func allowedSubnets(ctx context.Context, r *run, sb *sandbox.Sandbox) error {
	if err := errors.Join(attempt(ctx, sb, outside), attempt(ctx, sb, otherOutside)); err != nil {
		return err
	}
	return r.blocked(ctx, sb, otherOutside)
}

func names(ctx context.Context, r *run, sb *sandbox.Sandbox) error {
	if err := needs(ctx, sb, "getent", "timeout"); err != nil {
		return err
	}
	if _, err := shell(ctx, sb, "timeout 20 getent hosts denied.invalid; true"); err != nil {
		return err
	}
	return told(ctx, sb, "the lookup of a name that is not allowed", func(egress []sandbox.Egress) bool {
		return slices.ContainsFunc(egress, func(e sandbox.Egress) bool { return e.Name == "denied.invalid" && !e.Allowed })
	})
}

func changedPolicy(ctx context.Context, r *run, sb *sandbox.Sandbox) error {
	policies := []sandbox.NetworkPolicy{sandbox.DenyAll()}
	if r.offline {
		policies = []sandbox.NetworkPolicy{sandbox.AllowAll(), sandbox.DenyAll()}
	}
	for _, p := range policies {
		if err := sb.Update(ctx, sandbox.WithNetworkPolicy(p)); err != nil {
			return err
		}
	}
	if err := attempt(ctx, sb, outside); err != nil {
		return err
	}
	return r.blocked(ctx, sb, outside)
}

// connectionLost cuts every connection to the engine while a command runs.
func connectionLost(ctx context.Context, r *run, sb *sandbox.Sandbox) (err error) {
	p, err := newProxy(r.host)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	c, err := sandbox.NewClient(sandbox.WithHost("tcp://" + p.Addr().String()))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	through, err := c.Get(ctx, sb.Name())
	if errors.Is(err, sandbox.ErrNotFound) {
		return missing("the sandbox is on another node than the client's own engine")
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, through.Detach()) }()
	cmd := through.Command(ctx, "sleep", "600")
	if err := cmd.Start(); err != nil {
		return err
	}
	p.cut()
	if err := cmd.Wait(); !errors.Is(err, sandbox.ErrEngineUnavailable) {
		return fmt.Errorf("a command whose connection was cut returned: %w", orNil(err))
	}
	return expect(ctx, through, "echo again", "again\n")
}

func deleteWithVolumes(ctx context.Context, r *run, sb *sandbox.Sandbox) error {
	st, err := sb.Status(ctx)
	if err != nil {
		return err
	}
	if _, err := sb.Delete(ctx, sandbox.DeleteOptions{Volumes: true}); err != nil {
		return err
	}
	if _, err := r.client.Inspect(ctx, sb.Name()); !errors.Is(err, sandbox.ErrNotFound) {
		return fmt.Errorf("a deleted sandbox: %w", orNil(err))
	}
	volumes, err := r.client.ListVolumes(ctx)
	if err == nil && slices.ContainsFunc(volumes, func(v sandbox.Volume) bool { return v.Name == st.Workspace.Name }) {
		err = fmt.Errorf("volume %s is still there", st.Workspace.Name)
	}
	return err
}

func deletes(ctx context.Context, r *run, sb *sandbox.Sandbox) error {
	errs := make([]error, 4)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() { _, errs[i] = r.client.Delete(ctx, sb.Name(), sandbox.DeleteOptions{Volumes: true}) })
	}
	wg.Wait()
	succeeded := 0
	for _, err := range errs {
		if err == nil {
			succeeded++
		} else if !errors.Is(err, sandbox.ErrNotFound) {
			return err
		}
	}
	if succeeded != 1 {
		return fmt.Errorf("of four concurrent Deletes %d succeeded instead of 1: %w", succeeded, orNil(errors.Join(errs...)))
	}
	return nil
}
