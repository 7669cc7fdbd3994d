package engine

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"time"

	"github.com/docker/docker/api/types/container"
)

// PathStat describes a path in a container.
type PathStat struct {
	Name       string
	Size       int64
	Mode       fs.FileMode
	Mtime      time.Time
	LinkTarget string // resolved by the engine, within the container
}

// CopyTo unpacks an uncompressed tar archive into dir, which must exist, of a container in
// any state. It fails rather than replace a directory with a file or the reverse. The engine
// holds the container's lock meanwhile, which blocks inspect, exec and kill: do not stream
// slowly into a running container.
//
// An error of tar is returned unchanged; what was read before it may have been unpacked. If
// tar is an io.Closer it is closed when the engine has read it, or stopped reading.
func (e *Engine) CopyTo(ctx context.Context, containerID, dir string, tar io.Reader) error {
	if err := checkName("container", containerID); err != nil {
		return err
	}
	query := url.Values{"path": {dir}, "noOverwriteDirNonDir": {"true"}}
	src := newSource(tar)
	// With another content type the engine may unpack nothing and still answer 200.
	resp, err := e.call(ctx, http.MethodPut, "/containers/"+containerID+"/archive", query, "application/x-tar", src)
	if err != nil {
		return e.explainMissing(ctx, containerID, dir, e.fail(ctx, src.blame(misplacedMount(linkedMount(err)))))
	}
	_, err = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	return e.fail(ctx, err)
}

// StatPath stats a path in a container in any state. It does not follow a symbolic link in
// the last element. If the container does not run the engine mounts its volumes for the call,
// so that it may fail with [ErrBusy].
func (e *Engine) StatPath(ctx context.Context, containerID, path string) (PathStat, error) {
	if err := checkName("container", containerID); err != nil {
		return PathStat{}, err
	}
	s, err := e.cli.ContainerStatPath(ctx, containerID, path)
	if err = pathError(e.fail(ctx, err)); err == nil || hasClass(err) || ctx.Err() != nil {
		return toStat(s), e.explainMissing(ctx, containerID, path, err)
	}
	// The reply to a HEAD request has no message.
	rc, got, err := e.CopyFrom(ctx, containerID, path)
	if err != nil {
		return got, busyVolume(err)
	}
	return got, rc.Close()
}

// explainMissing returns an [ErrNotFound] of a path as an [ErrInvalid] if the engine finds no path in
// the container, not even the root: to look into one that does not run it makes all mounts, and what
// a mount is of may be gone.
func (e *Engine) explainMissing(ctx context.Context, containerID, path string, err error) error {
	if !errors.Is(err, ErrNotFound) {
		return err
	}
	if _, root := e.cli.ContainerStatPath(ctx, containerID, "/"); root == nil {
		// The reply to a HEAD request has no message, and the client makes one up.
		return &classed{class: ErrNotFound, text: "there is no " + quote(path) + " in the container", err: err}
	} else if !errors.Is(e.fail(ctx, root), ErrNotFound) {
		return err
	}
	got, gone := e.InspectContainer(ctx, containerID)
	if gone != nil {
		return err
	}
	rc, _, cause := e.cli.CopyFromContainer(ctx, containerID, "/")
	if rc != nil {
		_ = rc.Close()
	}
	if cause == nil {
		return err
	}
	text := "the engine can't make the container's mounts: " + plain(cause)
	var sources []string
	for _, m := range got.Mounts {
		if m.Type == "bind" {
			sources = append(sources, quote(m.Source))
		}
	}
	if len(sources) > 0 {
		text += ": look whether these are still on its machine: " + strings.Join(sources, ", ")
	}
	return &classed{class: ErrInvalid, text: text, err: cause}
}

// linkedMount returns err as an [ErrInvalid] if it says that the engine makes no mount where a
// symbolic link leads to an absolute path or to nothing. Since the fix of CVE-2026-41568 an engine
// makes the mounts of a container that does not run by Go's os.Root, whose errors these are, before
// it looks at any of its files.
func linkedMount(err error) error {
	if err == nil || hasClass(err) {
		return err
	}
	text := err.Error()
	has := func(words string) bool { return strings.Contains(text, words) }
	switch {
	case has("mkdirat ") && (has("path escapes from parent") || has("file exists")):
		text = "a mount's target is a symbolic link, or below one, that this engine does not follow (" + text + "): mount at the path that it leads to"
	case has("openat ") && (has("path escapes from parent") || has("not a directory")):
		text = "a mount's target is below a symbolic link that this engine does not follow, or below a file (" + text + "): mount elsewhere"
	default:
		return err
	}
	return &classed{class: ErrInvalid, err: err, text: text}
}

// pathError returns the error of a path in a container as the kernel's. The engine's text has the
// path on its own machine.
func pathError(err error) error {
	if err == nil || hasClass(err) {
		return err
	}
	switch text := err.Error(); {
	case strings.Contains(text, "lstat ") && strings.HasSuffix(text, ": not a directory"):
		return syscall.ENOTDIR
	case strings.Contains(text, "too many links"):
		return syscall.ELOOP
	}
	return err
}

// CopyFrom streams path as a tar archive, whose root entry is the last element of path. ctx
// bounds the stream. The caller closes it, and soon: until then the engine holds the
// container's lock.
func (e *Engine) CopyFrom(ctx context.Context, containerID, path string) (io.ReadCloser, PathStat, error) {
	if err := checkName("container", containerID); err != nil {
		return nil, PathStat{}, err
	}
	rc, s, err := e.cli.CopyFromContainer(ctx, containerID, path)
	if err != nil {
		if rc != nil {
			_ = rc.Close()
		}
		return nil, PathStat{}, e.explainMissing(ctx, containerID, path, pathError(misplacedMount(linkedMount(e.fail(ctx, err)))))
	}
	return &reply{ctx: ctx, e: e, rc: rc}, toStat(s), nil
}

// OpenArchive is [Engine.CopyFrom] with the archive read up to its first entry, path itself.
func (e *Engine) OpenArchive(ctx context.Context, containerID, path string) (io.ReadCloser, *tar.Reader, *tar.Header, error) {
	rc, _, err := e.CopyFrom(ctx, containerID, path)
	if err != nil {
		return nil, nil, nil, err
	}
	tr := tar.NewReader(rc)
	hdr, err := tr.Next()
	if err != nil {
		_ = rc.Close()
		return nil, nil, nil, err
	}
	return rc, tr, hdr, nil
}

func toStat(s container.PathStat) PathStat {
	return PathStat{Name: s.Name, Size: s.Size, Mode: s.Mode, Mtime: s.Mtime, LinkTarget: s.LinkTarget}
}

// reply is a reply's body that classifies errors. It keeps the request's context to tell a
// cancelled stream from a broken one.
type reply struct {
	ctx context.Context
	e   *Engine
	rc  io.ReadCloser
}

func (r *reply) Read(p []byte) (int, error) {
	n, err := r.rc.Read(p)
	if err != nil && err != io.EOF {
		err = r.e.fail(r.ctx, err)
	}
	return n, err
}

func (r *reply) Close() error { return r.rc.Close() }
