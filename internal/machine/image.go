package machine

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/errdefs"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/accounts"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
)

// maxLinks is how many symbolic links a path may lead through, as in the kernel.
const maxLinks = 40

// A way is how a path leads through the files of a container without mounts.
type way struct {
	name  string
	to    string   // the same file's path without symbolic links
	links []string // symbolic links on the way
	// inside is the mount point that the way leads below, or nothing. The rest of the way is in
	// what is mounted there.
	inside string
	found  bool
	stat   engine.PathStat // of what is found
}

// A view reads the files of a container that never runs, or in which no session can have changed
// where something is mounted. The engine's calls for that are safe for such containers only: for
// others an engine resolves mount points by links that a session may have made, some on the
// engine's own machine.
type view struct {
	m     *Machine
	id    string  // of the container, empty until one is needed
	image string  // of which the container is; what is read of it is cached if that is not empty
	own   *Helper // removes the container
}

// imageView returns a view of an image, given by its ID. The caller closes it.
func (m *Machine) imageView(id string) *view {
	return &view{m: m, image: id, own: m.NewHelper(record.NewNonce(), &Reporter{})}
}

// close removes the container. What fails is left for a sweep.
func (v *view) close(ctx context.Context) {
	if err := v.own.Undo.Run(ctx); err != nil {
		v.m.Log.Warn("a container that was made to look at an image is left for the next sweep", "error", err)
	}
}

// container returns the container to look at. It has no mounts but volumes that the image declares.
func (v *view) container(ctx context.Context) (id string, err error) {
	if v.id == "" {
		spec := v.own.Spec()
		spec.Image = v.image
		v.id, err = v.m.Store.CreateContainer(ctx, &v.own.Undo, spec, v.own.Nonce)
	}
	return v.id, err
}

// viewed is what a view has found at a path.
type viewed struct {
	found bool
	stat  engine.PathStat
	link  string // where a symbolic link leads, as it is stored
}

// at looks at a path without symbolic links on the way.
func (v *view) at(ctx context.Context, name string) (got viewed, err error) {
	key := [2]string{v.image, name}
	if known, ok := v.m.facts.imagePaths.Load(key); ok && v.image != "" {
		return known.(viewed), nil
	}
	id, err := v.container(ctx)
	if err != nil {
		return got, err
	}
	got.stat, err = v.m.Engine.StatPath(ctx, id, name)
	switch {
	case errors.Is(err, engine.ErrNotFound):
		if _, err := v.m.Engine.InspectContainer(ctx, id); err != nil {
			return got, err // it was removed
		}
	case err != nil:
		return got, err
	default:
		got.found = true
		if got.link, err = v.readlink(ctx, id, name, got.stat); err != nil {
			return got, fmt.Errorf("read the symbolic link %s: %w", name, err)
		}
	}
	if v.image != "" {
		v.m.facts.imagePaths.Store(key, got)
	}
	return got, nil
}

// readlink returns where a symbolic link leads. Podman says where that is at last, and its archive
// has what is there.
func (v *view) readlink(ctx context.Context, id, name string, stat engine.PathStat) (string, error) {
	switch {
	case v.m.Engine.Podman() && path.IsAbs(stat.LinkTarget) && stat.LinkTarget != name:
		return stat.LinkTarget, nil
	case stat.Mode&fs.ModeSymlink == 0:
		return "", nil
	}
	rc, _, hdr, err := v.m.Engine.OpenArchive(ctx, id, name)
	if err != nil {
		return "", err
	}
	defer rc.Close()
	if hdr.Typeflag != tar.TypeSymlink || hdr.Linkname == "" {
		return "", errors.New("the engine describes it as another file in its archive")
	}
	return hdr.Linkname, nil
}

// way resolves a path, one element after the other, up to a mount point.
func (v *view) way(ctx context.Context, name string, points []string) (way, error) {
	w := way{name: name, to: "/", found: true}
	rest := strings.Split(name, "/")
	for len(rest) > 0 {
		element := rest[0]
		rest = rest[1:]
		if element == "" || element == "." {
			continue
		}
		if element == ".." {
			w.to = path.Dir(w.to)
			continue
		}
		at := path.Join(w.to, element)
		if len(rest) > 0 && slices.Contains(points, at) {
			w.inside, w.found = at, false
			return w, w.end(at, rest)
		}
		got, err := v.at(ctx, at)
		switch {
		case err != nil:
			return w, err
		case !got.found:
			w.found = false
			return w, w.end(at, rest)
		case got.link != "":
			if w.links = append(w.links, at); len(w.links) > maxLinks {
				return w, errdefs.Invalid("%s leads through more than %d symbolic links", name, maxLinks)
			}
			if path.IsAbs(got.link) {
				w.to = "/"
			}
			rest = append(strings.Split(got.link, "/"), rest...)
			continue
		case !got.stat.Mode.IsDir() && strings.Join(rest, "") != "":
			return w, errdefs.Invalid("%s: %s is not a directory", name, at)
		}
		w.to, w.stat = at, got.stat
	}
	return w, nil
}

// end appends to a way what is not looked at.
func (w *way) end(at string, rest []string) error {
	if slices.Contains(rest, "..") {
		return errdefs.Invalid("%s leads by a symbolic link above %s, which does not exist yet", w.name, at)
	}
	w.to = path.Join(at, path.Join(rest...))
	return nil
}

// accounts opens the account files, an empty one in place of each that is missing. have has those
// that are known; read errors are joined to err.
func (v *view) accounts(ctx context.Context, have map[string][]byte, err *error) (passwd, group func() io.ReadCloser) {
	open := func(name string) func() io.ReadCloser {
		return func() io.ReadCloser {
			text, known := have[name]
			if !known {
				var e error
				if text, e = v.readAccounts(ctx, name); e != nil {
					*err = errors.Join(*err, fmt.Errorf("read %s: %w", name, e))
				}
			}
			return io.NopCloser(strings.NewReader(string(text)))
		}
	}
	return open(wire.PasswdFile), open(wire.GroupFile)
}

// readAccounts reads an account file.
func (v *view) readAccounts(ctx context.Context, name string) ([]byte, error) {
	w, err := v.way(ctx, name, nil)
	if err != nil || !w.found {
		return nil, err
	}
	if err := w.checkAccounts(); err != nil {
		return nil, err
	}
	id, err := v.container(ctx)
	if err != nil {
		return nil, err
	}
	rc, tr, hdr, err := v.m.Engine.OpenArchive(ctx, id, w.to)
	if err != nil {
		return nil, err
	}
	defer rc.Close()
	if hdr.Typeflag != tar.TypeReg {
		return nil, errNotAccounts
	}
	return io.ReadAll(io.LimitReader(tr, accounts.MaxSize))
}

// checkAccounts fails if an account file is one that the engine must not open.
func (w *way) checkAccounts() error {
	// The runtime mounts its own file systems there, in which a read may block for good.
	for _, dir := range []string{"/dev/", "/proc/", "/sys/"} {
		if strings.HasPrefix(w.to, dir) {
			return errdefs.Invalid("%s is a symbolic link to %s: %w", w.name, w.to, errNotAccounts)
		}
	}
	if w.found && (!w.stat.Mode.IsRegular() || w.stat.Size > accounts.MaxSize) {
		return errdefs.Invalid("%s (%v, %d bytes, at %s): %w", w.name, w.stat.Mode, w.stat.Size, w.to, errNotAccounts)
	}
	return nil
}

// errNotAccounts is the error of an account file that the engine must not open.
var errNotAccounts = errors.New("the engine reads this file at each start, so it must be a regular file of at most 4 MiB")
