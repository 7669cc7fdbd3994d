package machine

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/fault"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/accounts"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
	"github.com/seed-1a2d6d8f/sandbox/internal/plan"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
)

// The files that the engine opens, as its own user, at each start and exec of a container.
const (
	passwdFile = "/etc/passwd"
	groupFile  = "/etc/group"
)

// maxLinks is how many symbolic links a path may lead through, as in the kernel.
const maxLinks = 40

// OwnLayer is what is known of the files that a container has of its own, which spares a start
// most of its checks.
type OwnLayer struct {
	Pristine bool     // there are none
	Plain    []string // paths to which they have no symbolic link, nor a special file there
}

// PathsToCheck returns the paths that a start checks in a container with these mounts.
func PathsToCheck(mounts []record.Mount) []string {
	paths := []string{passwdFile, groupFile, record.Workspace}
	for _, m := range mounts {
		paths = append(paths, m.Target)
	}
	return paths
}

// pathStats reads file information of a container that does not run, with all that is mounted
// in it.
type pathStats struct {
	m     *Machine
	got   engine.Container
	layer OwnLayer
	seen  map[string]engine.PathStat
}

// asImage reports whether a path is as in the container's image. A directory of a plain path may
// not be, but is one.
func (p *pathStats) asImage(name string) bool {
	if slices.ContainsFunc(p.got.Mounts, func(m engine.MountPoint) bool { return strings.HasPrefix(name, m.Target+"/") }) {
		return false
	}
	return p.layer.Pristine || slices.ContainsFunc(p.layer.Plain, func(path string) bool { return path == name || strings.HasPrefix(path, name+"/") })
}

// isGuestOf reports whether a target is the guest's own in a container that has not been
// started: its name is random, so nothing in the image refers to it.
func isGuestOf(got engine.Container, target string) bool {
	return strings.HasPrefix(target, wire.Dir) && target != wire.Dir && got.StartedAt.IsZero()
}

// stat describes a path without following it. found is false if nothing is there.
func (p *pathStats) stat(ctx context.Context, name string) (at engine.PathStat, found bool, err error) {
	key := [2]string{p.got.ImageID, name}
	if p.asImage(name) {
		if known, ok := p.m.imagePaths.Load(key); ok {
			at = known.(engine.PathStat)
			if at.Mode&fs.ModeSymlink == 0 || p.layer.Pristine {
				return at, true, nil
			}
			p.layer.Plain = nil // the link may be gone, and where it leads was not looked at
		}
	}
	at, known := p.seen[name]
	if !known {
		at, err = p.m.Engine.StatPath(ctx, p.got.ID, name)
		switch {
		case errors.Is(err, engine.ErrNotFound):
			at, err = engine.PathStat{}, nil
		case errors.Is(err, engine.ErrInvalid):
			err = fault.Invalid("%w", err)
		}
		if err != nil {
			return at, false, err
		}
	}
	p.seen[name], found = at, at.Name != ""
	if found && p.layer.Pristine && p.asImage(name) { // a path that is not found may be that of a container that is gone
		p.m.imagePaths.Store(key, at)
	}
	return at, found, nil
}

// resolve follows symbolic links and returns the final path of name and a description of the file.
func (p *pathStats) resolve(ctx context.Context, name string) (to string, at engine.PathStat, found bool, err error) {
	to = name
	for range maxLinks {
		next := ""
		for end := 1; end <= len(to) && next == ""; end++ {
			if end < len(to) && to[end] != '/' {
				continue
			}
			if at, found, err = p.stat(ctx, to[:end]); err != nil || !found {
				return to, at, false, err
			}
			if at.Mode&fs.ModeSymlink == 0 {
				continue
			}
			if !path.IsAbs(at.LinkTarget) {
				return to, at, false, fault.Invalid("%s is a symbolic link that the engine does not resolve", to[:end])
			}
			next = path.Join(at.LinkTarget, to[end:])
		}
		if next == "" {
			return to, at, true, nil
		}
		to = next
	}
	return to, at, false, fault.Invalid("%s leads through more than %d symbolic links", name, maxLinks)
}

// checkFiles fails if files of a container would mislead its start. The engine follows the
// symbolic links in its mounts' targets, and opens its account files: a link could have
// something mounted over the guest, and a named pipe would block the engine. Nothing of the
// container runs yet, so nothing in it can change the result. The looks are one after another:
// for each of them the engine mounts what the container will have, and looks at one time see
// each other's mounts come and go.
func (m *Machine) checkFiles(ctx context.Context, got engine.Container, layer OwnLayer) error {
	p := &pathStats{m, got, layer, map[string]engine.PathStat{}}
	if err := p.checkTargets(ctx); err != nil {
		return err
	}
	for name, rootOnly := range map[string]string{passwdFile: "root:x:0:0:root:/root:/bin/sh\n", groupFile: "root:x:0:\n"} {
		_, _, err := p.accountFile(ctx, name)
		if errors.Is(err, errNotAccounts) && !layer.Pristine {
			// A session has left it, and only a session could change it.
			m.Log.Warn("an account file is replaced by one that lists root only", "container", got.Name, "error", err)
			err = p.replace(ctx, name, rootOnly)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// replace replaces an account file, which may be a symbolic link.
func (p *pathStats) replace(ctx context.Context, name, content string) error {
	dir, _, _, err := p.resolve(ctx, path.Dir(name))
	if err != nil {
		return err
	}
	if err := p.m.Engine.CopyTo(ctx, p.got.ID, dir, bytes.NewReader(guestTar(entry{path.Base(name), 0o644, []byte(content)}))); err != nil {
		return fmt.Errorf("replace %s: %w", name, err)
	}
	clear(p.seen)
	p.layer = OwnLayer{}
	_, _, err = p.accountFile(ctx, name)
	return err
}

// errNotAccounts is the error of an account file that the engine must not open.
var errNotAccounts = errors.New("the engine reads this file at each start, so it has to be a regular one of at most 4 MiB")

// checkTargets checks that no mount's target leads to where none may be.
func (p *pathStats) checkTargets(ctx context.Context) error {
	used := map[string]string{}
	for _, m := range p.got.Mounts {
		if isGuestOf(p.got, m.Target) {
			continue
		}
		own := strings.HasPrefix(m.Target, wire.Dir)
		to, _, found, err := p.resolve(ctx, m.Target)
		if err != nil {
			return err
		}
		if !found { // the engine creates every target before it looks
			return fault.Invalid("mount target %s is hidden by another mount, which leads above it by a symbolic link", m.Target)
		}
		if to != m.Target {
			err = plan.CheckTarget(to)
			if own {
				err = errors.New("the sandbox's own program is mounted there")
			}
			if err != nil {
				return fault.Invalid("mount target %s is a symbolic link to %s: %w", m.Target, to, err)
			}
		}
		if other, is := used[to]; is {
			return fault.Invalid("mount targets %s and %s are, by a symbolic link, the same directory", m.Target, other)
		}
		used[to] = m.Target
	}
	return nil
}

// accountFile returns the path that an account file is at. found is false if there is none.
func (p *pathStats) accountFile(ctx context.Context, name string) (to string, found bool, err error) {
	to, at, found, err := p.resolve(ctx, name)
	if err != nil {
		return to, false, err
	}
	// The engine opens what is below a mount, so that what is mounted says nothing.
	if i := slices.IndexFunc(p.got.Mounts, func(m engine.MountPoint) bool { return to == m.Target || strings.HasPrefix(to, m.Target+"/") }); i >= 0 {
		return to, false, fault.Invalid("%s is in the mount at %s: the engine reads this file before it mounts anything", name, p.got.Mounts[i].Target)
	}
	// The runtime mounts its own file systems there, in which a read may block for good.
	if strings.HasPrefix(to, "/dev/") || strings.HasPrefix(to, "/proc/") || strings.HasPrefix(to, "/sys/") {
		return to, false, fault.Invalid("%s is a symbolic link to %s: %w", name, to, errNotAccounts)
	}
	if found && (!at.Mode.IsRegular() || at.Size > accounts.MaxSize) {
		return to, false, fault.Invalid("%s (%v, %d bytes): %w", name, at.Mode, at.Size, errNotAccounts)
	}
	return to, found, nil
}

// LookupOwner resolves user[:group] against the account files of a container that does not run
// and whose files are as in its image.
func (m *Machine) LookupOwner(ctx context.Context, container, user string) (wire.Owner, error) {
	if slices.Contains([]string{"", "0", "root", "0:0", "root:root"}, user) {
		return wire.Owner{}, nil
	}
	return m.lookup(ctx, container, user, OwnLayer{Pristine: true})
}

// CheckUser fails if commands can't run as user[:group] in a container that does not run. IDs need
// not be listed in it, and take no call to the engine.
func (m *Machine) CheckUser(ctx context.Context, container, user string, layer OwnLayer) error {
	none := func() io.ReadCloser { return io.NopCloser(strings.NewReader("")) }
	if _, err := accounts.Resolve(user, none, none); err == nil {
		return nil
	}
	_, err := m.lookup(ctx, container, user, layer)
	return err
}

// lookup resolves user[:group] against the account files of a container that does not run.
func (m *Machine) lookup(ctx context.Context, container, user string, layer OwnLayer) (wire.Owner, error) {
	got, err := m.Engine.InspectContainer(ctx, container)
	if err != nil {
		return wire.Owner{}, err
	}
	p := &pathStats{m, got, layer, map[string]engine.PathStat{}}
	open := func(name string) func() io.ReadCloser {
		return func() io.ReadCloser {
			f, e := p.open(ctx, name)
			if e != nil {
				err = errors.Join(err, e)
				return io.NopCloser(strings.NewReader(""))
			}
			return &watched{f, name, &err}
		}
	}
	found, unknown := accounts.Resolve(user, open(passwdFile), open(groupFile))
	if err != nil {
		return wire.Owner{}, err
	}
	if unknown != nil {
		return wire.Owner{}, fault.Invalid("%w; use one that it has, or a numeric ID", unknown)
	}
	return wire.Owner{UID: found.UID, GID: found.GID}, nil
}

// A watched file keeps the error of a read that broke off. Who reads the lines of an account file
// takes that for its end.
type watched struct {
	io.ReadCloser
	name string
	err  *error
}

func (w *watched) Read(b []byte) (int, error) {
	n, err := w.ReadCloser.Read(b)
	if err != nil && err != io.EOF {
		*w.err = errors.Join(*w.err, fmt.Errorf("read %s: %w", w.name, err))
	}
	return n, err
}

// open opens an account file, an empty one if there is none.
func (p *pathStats) open(ctx context.Context, name string) (io.ReadCloser, error) {
	to, found, err := p.accountFile(ctx, name)
	if err != nil || !found {
		return io.NopCloser(strings.NewReader("")), err
	}
	rc, tr, hdr, err := p.m.Engine.OpenArchive(ctx, p.got.ID, to)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	if hdr.Typeflag != tar.TypeReg {
		rc.Close()
		return nil, fmt.Errorf("read %s: not a regular file", name)
	}
	return struct {
		io.Reader
		io.Closer
	}{tr, rc}, nil
}
