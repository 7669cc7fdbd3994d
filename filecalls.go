package sandbox

import (
	"context"
	"io/fs"
	"time"
)

// ReadFile returns the whole content of a file. A small one costs one round trip.
func (s *Sandbox) ReadFile(ctx context.Context, name string) ([]byte, error) {
	return s.files().ReadFile(ctx, name)
}

// WriteFile makes data the whole content of a file, or leaves everything as it was:
// other processes see the old content or the new, also when this program or the
// session dies in the middle. perm, before the umask (022), is for a file that is new.
// One that exists keeps its permissions and, where the user may give files away, its
// owner; it is replaced by another, so the directory must be writable, its other hard
// links keep the old content, and extended attributes go. A symbolic link is
// followed. A device, a pipe and a mount point, such as /etc/hosts, are written in
// place.
func (s *Sandbox) WriteFile(ctx context.Context, name string, data []byte, perm fs.FileMode) error {
	return s.files().WriteFile(ctx, name, data, perm)
}

// Mkdir makes a directory; perm is before the umask (022).
func (s *Sandbox) Mkdir(ctx context.Context, name string, perm fs.FileMode) error {
	return s.files().Mkdir(ctx, name, perm)
}

// MkdirAll makes a directory and those above it that are missing. That it exists is
// no error.
func (s *Sandbox) MkdirAll(ctx context.Context, name string, perm fs.FileMode) error {
	return s.files().MkdirAll(ctx, name, perm)
}

// MkdirTemp makes a new directory in dir, /tmp when that is empty, and returns its
// path. Its name is the pattern with a random string in the place of the last *, or
// at its end. The caller removes it.
func (s *Sandbox) MkdirTemp(ctx context.Context, dir, pattern string) (string, error) {
	return s.files().MkdirTemp(ctx, dir, pattern)
}

// Remove removes a file, a link or an empty directory.
func (s *Sandbox) Remove(ctx context.Context, name string) error {
	return s.files().Remove(ctx, name)
}

// RemoveAll removes a file or a tree, following no link. That there is none is no
// error. What was removed before it failed or ctx ended stays removed.
func (s *Sandbox) RemoveAll(ctx context.Context, name string) error {
	return s.files().RemoveAll(ctx, name)
}

// Rename moves a file or directory, replacing a file of the new name. It does not
// cross mounts: the workspace is one, and so is each [WithMounts].
func (s *Sandbox) Rename(ctx context.Context, oldname, newname string) error {
	return s.files().Rename(ctx, oldname, newname)
}

// Symlink makes name a symbolic link to target, which is stored as it is and need not
// exist.
func (s *Sandbox) Symlink(ctx context.Context, target, name string) error {
	return s.files().Symlink(ctx, target, name)
}

// Readlink returns the target of a symbolic link.
func (s *Sandbox) Readlink(ctx context.Context, name string) (string, error) {
	return s.files().Readlink(ctx, name)
}

// Chmod changes permissions, setuid, setgid and sticky bit, following links.
func (s *Sandbox) Chmod(ctx context.Context, name string, mode fs.FileMode) error {
	return s.files().Chmod(ctx, name, mode)
}

// Chown changes owner and group, by the sandbox's own numbers, following links; -1
// leaves one as it is.
func (s *Sandbox) Chown(ctx context.Context, name string, uid, gid int) error {
	return s.files().Chown(ctx, name, uid, gid)
}

// Lchown is Chown of a symbolic link itself.
func (s *Sandbox) Lchown(ctx context.Context, name string, uid, gid int) error {
	return s.files().Lchown(ctx, name, uid, gid)
}

// Chtimes changes the times of access and modification, to the nanosecond where the
// file system has it. A zero time leaves one as it is.
func (s *Sandbox) Chtimes(ctx context.Context, name string, atime, mtime time.Time) error {
	return s.files().Chtimes(ctx, name, atime, mtime)
}

// Truncate changes the size of a file.
func (s *Sandbox) Truncate(ctx context.Context, name string, size int64) error {
	return s.files().Truncate(ctx, name, size)
}

// Stat tells of a file, following links. Sys of the result is a *[FileStat].
func (s *Sandbox) Stat(ctx context.Context, name string) (fs.FileInfo, error) {
	return s.files().Stat(ctx, name)
}

// Lstat is Stat that tells of a symbolic link itself.
func (s *Sandbox) Lstat(ctx context.Context, name string) (fs.FileInfo, error) {
	return s.files().Lstat(ctx, name)
}

// ReadDir returns the entries of a directory by name, each with what Lstat tells. Of
// a stopped sandbox it costs reading the whole tree below.
func (s *Sandbox) ReadDir(ctx context.Context, name string) ([]fs.DirEntry, error) {
	return s.files().ReadDir(ctx, name)
}

// Open opens a file or directory to read it. ctx bounds opening alone; the caller
// closes the file.
func (s *Sandbox) Open(ctx context.Context, name string) (*File, error) {
	return s.files().Open(ctx, name)
}

// Create makes a file or empties the one there is, to read and write it.
func (s *Sandbox) Create(ctx context.Context, name string) (*File, error) {
	return s.files().Create(ctx, name)
}

// OpenFile opens a file with the flags of package os; perm, before the umask (022),
// is for one that is new. Opening a pipe does not wait for its other end. ctx bounds
// opening alone; the caller closes the file.
func (s *Sandbox) OpenFile(ctx context.Context, name string, flag int, perm fs.FileMode) (*File, error) {
	return s.files().OpenFile(ctx, name, flag, perm)
}
