package sandbox

import (
	"cmp"
	"context"
	"io"
	"io/fs"
	"strings"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/archive"
	"github.com/seed-1a2d6d8f/sandbox/internal/errdefs"
	"github.com/seed-1a2d6d8f/sandbox/internal/files"
	"github.com/seed-1a2d6d8f/sandbox/internal/lifecycle"
	"github.com/seed-1a2d6d8f/sandbox/internal/source"
	"github.com/seed-1a2d6d8f/sandbox/internal/trace"
)

// Files is the file system of a sandbox with the permissions of one of its users, which
// the kernel inside enforces. [Sandbox] has the same methods, for the sandbox's own user
// (see [WithUser]); [Sandbox.FilesAs] is for another user.
//
// Names are paths inside, relative to [WithWorkdir]. Links in them are followed inside
// the sandbox, never on this machine. Every error wraps an [*fs.PathError] (with two
// names an [*os.LinkError]) that contains the path and the kernel's error, for
// [fs.ErrNotExist], [fs.ErrExist] and [fs.ErrPermission]. Contexts bound the call; a
// change that was interrupted may have been made.
//
// Calls that change files resume a stopped persistent sandbox. Calls that only read do
// not: they read through the engine, as root, which is slow.
//
// It is safe for concurrent use.
type Files struct{ fileCalls }

// FilesAs returns the sandbox's file system with the permissions of a user, in the form
// of [WithUser]. If the sandbox has no such user the first call returns
// [ErrInvalidArgument].
func (s *Sandbox) FilesAs(user string) *Files { return &Files{newFileCalls(s.h, user)} }

// fileCalls are the methods that [Sandbox] and [Files] have in common.
type fileCalls struct {
	view *files.View
	name string // the sandbox's
}

func newFileCalls(h *lifecycle.Handle, user string) fileCalls {
	sys := func(s *files.Stat) any { stat := FileStat(*s); return &stat }
	return fileCalls{files.NewView(h, user, sys), h.Record().Name}
}

// failed wraps an error of package files once. Other errors, such as those of a caller's
// reader or writer, are returned unchanged.
func failed(sandbox string, err error) error {
	if f, is := err.(*files.Failure); is {
		return fail(f.Op, sandbox, f.Err)
	}
	return err
}

func (c fileCalls) fail(err *error) { *err = failed(c.name, *err) }

// ReadFile returns the whole content of a file. A small file takes one round trip. If the
// file is larger than [Limits].ReadFile, 256 MiB by default, the error is [ErrTooLarge]; use
// Open for such files, and for pipes and devices, which may have no end.
func (c fileCalls) ReadFile(ctx context.Context, name string) (_ []byte, err error) {
	defer c.fail(&err)
	return c.view.ReadFile(ctx, name)
}

// WriteFile writes a whole file atomically: other processes see either the old content or
// the new, even if this program or the session dies during the call. perm, before the
// umask (022), applies to a new file. An existing file keeps its permissions, without setuid and setgid
// bits unless the user is root, and, if the user may change them, its owner and its group. It is replaced by a new file: the directory must be
// writable, other hard links keep the old content, and extended attributes are lost.
// Symbolic links are followed. Devices, pipes, mount points, such as /etc/hosts, files in /proc and /sys, and files of
// other users in directories with the sticky bit, such as /tmp, are written in place.
func (c fileCalls) WriteFile(ctx context.Context, name string, data []byte, perm fs.FileMode) (err error) {
	defer c.fail(&err)
	return c.view.WriteFile(ctx, name, data, perm)
}

// WriteFrom is WriteFile with what r has up to its end, in constant memory. If r fails, the file is
// as it was, unless it is one that is written in place.
func (c fileCalls) WriteFrom(ctx context.Context, name string, r io.Reader, perm fs.FileMode) (n int64, err error) {
	defer c.fail(&err)
	return c.view.WriteFrom(ctx, name, r, perm)
}

// Mkdir creates a directory; perm is before the umask (022).
func (c fileCalls) Mkdir(ctx context.Context, name string, perm fs.FileMode) (err error) {
	defer c.fail(&err)
	return c.view.Mkdir(ctx, name, perm)
}

// MkdirAll creates a directory and its missing parents. If it exists that is no error.
func (c fileCalls) MkdirAll(ctx context.Context, name string, perm fs.FileMode) (err error) {
	defer c.fail(&err)
	return c.view.MkdirAll(ctx, name, perm)
}

// MkdirTemp creates a new directory in dir, /tmp if that is empty, and returns its path.
// The name is the pattern with its last *, or its end, replaced by a random string. The
// caller removes the directory.
func (c fileCalls) MkdirTemp(ctx context.Context, dir, pattern string) (_ string, err error) {
	defer c.fail(&err)
	return c.view.MkdirTemp(ctx, dir, pattern)
}

// Remove removes a file, a link or an empty directory.
func (c fileCalls) Remove(ctx context.Context, name string) (err error) {
	defer c.fail(&err)
	return c.view.Remove(ctx, name)
}

// RemoveAll removes a file or a tree, without following links. If there is none that is
// no error. If it fails or ctx ends, files already removed stay removed.
func (c fileCalls) RemoveAll(ctx context.Context, name string) (err error) {
	defer c.fail(&err)
	return c.view.RemoveAll(ctx, name)
}

// Rename moves a file or directory. It replaces an existing file. It does not cross
// mounts: the workspace is one, and so is each of [WithMounts].
func (c fileCalls) Rename(ctx context.Context, oldname, newname string) (err error) {
	defer c.fail(&err)
	return c.view.Rename(ctx, oldname, newname)
}

// Symlink creates a symbolic link to target, which is stored unchanged and need not
// exist.
func (c fileCalls) Symlink(ctx context.Context, target, name string) (err error) {
	defer c.fail(&err)
	return c.view.Symlink(ctx, target, name)
}

// Readlink returns the target of a symbolic link.
func (c fileCalls) Readlink(ctx context.Context, name string) (_ string, err error) {
	defer c.fail(&err)
	return c.view.Readlink(ctx, name)
}

// Chmod changes the permissions and the setuid, setgid and sticky bits. It follows links.
func (c fileCalls) Chmod(ctx context.Context, name string, mode fs.FileMode) (err error) {
	defer c.fail(&err)
	return c.view.Chmod(ctx, name, mode)
}

// Chown changes the owner and group, by number inside the sandbox; -1 keeps one. It
// follows links.
func (c fileCalls) Chown(ctx context.Context, name string, uid, gid int) (err error) {
	defer c.fail(&err)
	return c.view.Chown(ctx, name, uid, gid)
}

// Lchown is Chown of a symbolic link itself.
func (c fileCalls) Lchown(ctx context.Context, name string, uid, gid int) (err error) {
	defer c.fail(&err)
	return c.view.Lchown(ctx, name, uid, gid)
}

// Chtimes changes the times of access and modification, to the nanosecond if the file
// system supports that. A zero time keeps one.
func (c fileCalls) Chtimes(ctx context.Context, name string, atime, mtime time.Time) (err error) {
	defer c.fail(&err)
	return c.view.Chtimes(ctx, name, atime, mtime)
}

// Truncate changes the size of a file.
func (c fileCalls) Truncate(ctx context.Context, name string, size int64) (err error) {
	defer c.fail(&err)
	return c.view.Truncate(ctx, name, size)
}

// Stat describes a file. It follows links. Sys of the result is a *[FileStat].
func (c fileCalls) Stat(ctx context.Context, name string) (_ fs.FileInfo, err error) {
	defer c.fail(&err)
	return c.view.Stat(ctx, name)
}

// Lstat is Stat of a symbolic link itself.
func (c fileCalls) Lstat(ctx context.Context, name string) (_ fs.FileInfo, err error) {
	defer c.fail(&err)
	return c.view.Lstat(ctx, name)
}

// ReadDir returns the entries of a directory by name, with their Lstat. Where that fails, as in a directory that the user may
// list and not search, or for a mount whose server is gone, they have names and types alone, and their Info is the error. In a stopped
// sandbox it reads the whole tree below, and times have whole seconds. If there are more than
// [Limits].ReadDir, 262,144 by default, the error is [ErrTooLarge].
func (c fileCalls) ReadDir(ctx context.Context, name string) (_ []fs.DirEntry, err error) {
	defer c.fail(&err)
	return c.view.ReadDir(ctx, name)
}

// Open opens a file or directory for reading. ctx bounds only the opening. The caller
// closes the file.
func (c fileCalls) Open(ctx context.Context, name string) (_ *File, err error) {
	defer c.fail(&err)
	return c.file(c.view.Open(ctx, name))
}

// Create creates or truncates a file and opens it for reading and writing. ctx bounds
// only the opening. The caller closes the file.
func (c fileCalls) Create(ctx context.Context, name string) (_ *File, err error) {
	defer c.fail(&err)
	return c.file(c.view.Create(ctx, name))
}

// OpenFile opens a file with the flags of package os; perm, before the umask (022),
// applies to a new file. Other flags, such as syscall.O_NOFOLLOW, are an [ErrInvalidArgument].
// Opening a pipe does not wait for its other end. ctx bounds only the opening. The caller closes
// the file.
func (c fileCalls) OpenFile(ctx context.Context, name string, flag int, perm fs.FileMode) (_ *File, err error) {
	defer c.fail(&err)
	return c.file(c.view.OpenFile(ctx, name, flag, perm))
}

func (c fileCalls) file(f *files.File, err error) (*File, error) {
	if err != nil {
		return nil, err
	}
	return &File{f, c.name}, nil
}

// FS returns the sandbox's file system, from its root directory, for package [io/fs]:
// FS().Open("etc/hosts"). It implements the interfaces of package fs for files,
// directories, links and sub-trees. As package fs has it, names that are not UTF-8 are listed and
// can't be opened. No context bounds its calls, only the handle's end.
// They follow links inside the sandbox and fail with an [*fs.PathError].
func (c fileCalls) FS() fs.FS { return c.view.FS() }

// CopyReport counts what a copy transferred, and lists what it could not preserve. See
// [Sandbox.CopyIn], [Sandbox.CopyOut] and [Sandbox.Copied].
type CopyReport struct {
	Files       int64 `json:"files"` // files and links
	Directories int64 `json:"directories"`
	Bytes       int64 `json:"bytes"` // of the files' content, without holes
	// Skipped lists the first 1,000 files that were left out (sockets, devices, pipes,
	// files that vanished during the copy, entries of an archive of unknown types) or lost
	// something (a setuid bit, an extended attribute). Paths and reasons are cut, to 4,096 and 256 bytes, and then quoted as Go
	// strings if they have anything but graphic characters.
	Skipped []Skipped `json:"skipped,omitempty"`
	// More counts those beyond the first 1,000.
	More int64 `json:"more,omitempty"`
}

// Skipped says what was not preserved of one file.
type Skipped struct {
	// Path is relative to the tree, and "." the tree itself. In [Sandbox.Copied] it is
	// absolute, in the sandbox. See [CopyReport.Skipped].
	Path   string `json:"path"`
	Reason string `json:"reason"`
}

func (s Skipped) String() string { return s.Path + ": " + s.Reason }

// CopyStatus is the progress of a copy.
type CopyStatus struct {
	Name  string `json:"name"` // the latest file, relative to the tree; quoted like those of [CopyReport.Skipped]
	Files int64  `json:"files"`
	Bytes int64  `json:"bytes"`
}

// CopyOptions configure a copy.
type CopyOptions struct {
	// MaxBytes bounds the total size of all files, including holes. Beyond it the copy fails with
	// [ErrTooLarge]. 0 is [DefaultCopyBytes] for CopyOut and no limit for copies into a sandbox.
	MaxBytes int64
	// MaxEntries bounds the files and directories, including those that are left out and reported.
	// Beyond it the copy fails with [ErrTooLarge]. 0 is [DefaultCopyEntries] for CopyOut and no
	// limit for copies into a sandbox.
	MaxEntries int
	// Progress, if not nil, is called after each file and periodically within large ones, one call
	// at a time, and not after the copy has returned. It must not block.
	Progress func(CopyStatus)
}

const (
	// DefaultCopyBytes, 8 GiB as for a [Tarball], bounds a [Sandbox.CopyOut] without
	// [CopyOptions.MaxBytes].
	DefaultCopyBytes int64 = source.DefaultTarballBytes
	// DefaultCopyEntries, 1,048,576, bounds a [Sandbox.CopyOut] without
	// [CopyOptions.MaxEntries]. It is more than for a Tarball: the modules of a project alone
	// may be a hundred thousand files.
	DefaultCopyEntries = 1 << 20
)

// options returns the options in the form that package archive takes. Limits that are not set are
// zero.
func (o CopyOptions) options() (archive.Options, error) {
	if o.MaxBytes < 0 || o.MaxEntries < 0 {
		return archive.Options{}, errdefs.Invalid("CopyOptions: MaxBytes %d, MaxEntries %d: neither is negative", o.MaxBytes, o.MaxEntries)
	}
	out := archive.Options{Limits: archive.Limits{Bytes: o.MaxBytes, Entries: int64(o.MaxEntries)}}
	if o.Progress != nil {
		out.Progress = func(name string, r *archive.Report) {
			o.Progress(CopyStatus{Name: strings.TrimPrefix(name, "./"), Files: r.Files, Bytes: r.Bytes})
		}
	}
	return out, nil
}

// bounded is options with the default limits.
func (o CopyOptions) bounded() (archive.Options, error) {
	set, err := o.options()
	set.Limits.Bytes = cmp.Or(set.Limits.Bytes, DefaultCopyBytes)
	set.Limits.Entries = cmp.Or(set.Limits.Entries, DefaultCopyEntries)
	return set, err
}

func reportOf(r archive.Report) CopyReport {
	out := CopyReport{Files: r.Files, Directories: r.Dirs, Bytes: r.Bytes, More: r.More}
	for _, s := range r.Skipped {
		out.Skipped = append(out.Skipped, Skipped(s))
	}
	return out
}

// copied makes a copy with the options that options returns.
func (c fileCalls) copied(op string, options func() (archive.Options, error), do func(archive.Options) (archive.Report, error)) (CopyReport, error) {
	set, err := options()
	if err != nil {
		return CopyReport{}, fail(op, c.name, err)
	}
	report, err := do(set)
	return reportOf(report), failed(c.name, err)
}

// CopyIn copies a file or tree of this machine into the sandbox. inside is the path of
// the copy; if it ends with a slash, the directory that gets the copy under its own name.
// Missing parents are created. Permissions, modification times to the nanosecond,
// symbolic and hard links, holes and user extended attributes are kept. No link is
// followed except hostPath and inside themselves. The copy belongs to the sandbox's user.
//
// A new copy appears atomically, and so does each file of a tree that is merged into an
// existing directory. A new tree fails if something else is put there meanwhile, such as another
// copy: repeated, it is merged. Directories that exist keep their permissions, owner and attributes,
// and get the time of the change. A file without a size, as in /proc, is read up to 64 MiB.
// A mount point, such as /etc/hosts, is written in place. Sockets, devices and pipes are left out. The
// report lists what was not preserved. Data is streamed; memory is used only for each directory and
// hard link.
func (c fileCalls) CopyIn(ctx context.Context, hostPath, inside string, o CopyOptions) (_ CopyReport, err error) {
	ctx, span := trace.Start(ctx, "sandbox.copy_in", trace.Name(c.name))
	defer span.End(&err)
	return c.copied("copy in", o.options, func(set archive.Options) (archive.Report, error) { return c.view.CopyIn(ctx, hostPath, inside, set) })
}

// CopyInFS is [Sandbox.CopyIn] from a file system of package [io/fs]: an embed.FS, a zip
// file, another sandbox's [Sandbox.FS]. "/" is the sandbox's root directory. A file without a time
// gets the time of the call. File systems that have no owners, such as embed.FS, have no
// permissions to keep either: as with [os.CopyFS], the owner may write all files, and enter all
// directories. Setuid and setgid bits are dropped, as by os.CopyFS, and reported. Files whose names
// are not UTF-8 are copied from a sandbox's FS; others do not open them, and they are reported.
func (c fileCalls) CopyInFS(ctx context.Context, fsys fs.FS, inside string, o CopyOptions) (_ CopyReport, err error) {
	ctx, span := trace.Start(ctx, "sandbox.copy_in", trace.Name(c.name))
	defer span.End(&err)
	return c.copied("copy in", o.options, func(set archive.Options) (archive.Report, error) { return c.view.CopyInFS(ctx, fsys, inside, set) })
}

// CopyOut copies a file or tree of the sandbox to this machine, by the rules of
// [Sandbox.CopyIn]: hostPath is the path of the copy; if it ends with a slash, the
// directory that gets the copy under its own name. The copy belongs to this program's
// user.
//
// The sandbox is not trusted: nothing outside of hostPath is written, and setuid and
// setgid bits are removed. Links are kept unchanged, so a program that follows them later
// may leave the copy. Files that are there already are replaced, never opened, changed or
// linked to. A device, pipe or socket is refused; within a tree it is left out and reported.
// The copy has at most 8 GiB and 1,048,576 entries unless the options say
// otherwise; names relative to the tree have at most 4,096 bytes.
// Beyond that it fails with [ErrTooLarge]. In errors, names that have anything but graphic
// characters are quoted as Go strings.
//
// A stopped sandbox is read as root, without starting it. Times then have whole seconds, and there
// are no extended attributes and no sockets: the report has an entry for that about the tree itself.
func (c fileCalls) CopyOut(ctx context.Context, inside, hostPath string, o CopyOptions) (_ CopyReport, err error) {
	ctx, span := trace.Start(ctx, "sandbox.copy_out", trace.Name(c.name))
	defer span.End(&err)
	return c.copied("copy out", o.bounded, func(set archive.Options) (archive.Report, error) { return c.view.CopyOut(ctx, inside, hostPath, set) })
}

// CopyInTar is [Sandbox.CopyIn] of what a tar archive has: inside becomes its top directory, or is
// merged with it. r is read to the end marker. The archive is not compressed, and its
// owners, setuid and setgid bits, extended attributes and devices are left out. One with ".." in a
// name, or with a name below a link, is an [ErrInvalidArgument]. The limits are those of [Sandbox.CopyOut].
// After an error, files of a tree that was merged may have been written.
func (c fileCalls) CopyInTar(ctx context.Context, r io.Reader, inside string, o CopyOptions) (_ CopyReport, err error) {
	ctx, span := trace.Start(ctx, "sandbox.copy_in", trace.Name(c.name))
	defer span.End(&err)
	return c.copied("copy in", o.bounded, func(set archive.Options) (archive.Report, error) { return c.view.CopyInTar(ctx, r, inside, set) })
}

// CopyOutTar writes a directory of the sandbox as a tar archive. Its names begin with "./", and none
// has a "..". Permissions, times and symbolic links are kept; a file with several names is written
// under each, and holes are written out. Devices, pipes and sockets, and setuid and setgid bits, are
// left out and reported. The limits are those of [Sandbox.CopyOut]. An archive without its end marker
// is not complete: the error says why. A file that shrinks meanwhile, which only padding could make fit
// its header, is such an error. Nothing is written if there is no such directory. A sandbox that is
// stopped is read without starting it, file by file, which is slow.
func (c fileCalls) CopyOutTar(ctx context.Context, inside string, w io.Writer, o CopyOptions) (_ CopyReport, err error) {
	ctx, span := trace.Start(ctx, "sandbox.copy_out", trace.Name(c.name))
	defer span.End(&err)
	return c.copied("copy out", o.bounded, func(set archive.Options) (archive.Report, error) { return c.view.CopyOutTar(ctx, inside, w, set) })
}

// FileStat is what the Sys method of a file's [fs.FileInfo] returns, as a pointer.
type FileStat struct {
	UID   uint32 `json:"uid"` // numeric, of users inside the sandbox
	GID   uint32 `json:"gid"`
	Nlink uint64 `json:"nlink"` // hard links; 0 if the sandbox was stopped
	// Dev and Inode identify the file within the session; 0 if the sandbox was stopped.
	Dev   uint64    `json:"dev"`
	Inode uint64    `json:"inode"`
	Atime time.Time `json:"atime"`
	// Ctime is when the content or the inode last changed, which nothing but a change sets. It is zero in entries of
	// a directory, if the sandbox was stopped, and in a session that a version without this field has started.
	Ctime time.Time `json:"ctime"`
}

// File is an open file in a sandbox, used like [os.File]. The context it was opened with
// bounded only the opening; [File.Close] ends a call that blocks, for example on a pipe.
// Nothing is buffered: each Read and Write takes one round trip (use package bufio for
// small ones); [io.Copy] moves large pieces.
//
// A File can't be used after its session has ended. The caller that opened it closes it.
// It is safe for concurrent use; Read, Write and Seek run one at a time.
type File struct {
	f       *files.File
	sandbox string
}

func (f *File) fail(err *error) { *err = failed(f.sandbox, *err) }

// Name returns the name that the file was opened with.
func (f *File) Name() string { return f.f.Name() }

// Read reads up to len(b) bytes. At the end of the file it returns [io.EOF].
func (f *File) Read(b []byte) (_ int, err error) {
	defer f.fail(&err)
	return f.f.Read(b)
}

// ReadAt reads len(b) bytes from off. If there are fewer it returns an error, [io.EOF] at
// the end of the file.
func (f *File) ReadAt(b []byte, off int64) (_ int, err error) {
	defer f.fail(&err)
	return f.f.ReadAt(b, off)
}

// WriteTo copies the rest of the file to w. [io.Copy] uses it.
func (f *File) WriteTo(w io.Writer) (_ int64, err error) {
	defer f.fail(&err)
	return f.f.WriteTo(w)
}

// Write writes b at the file's offset, or at its end if the file was opened to append.
func (f *File) Write(b []byte) (_ int, err error) {
	defer f.fail(&err)
	return f.f.Write(b)
}

// WriteString is Write of a string.
func (f *File) WriteString(s string) (_ int, err error) {
	defer f.fail(&err)
	return f.f.WriteString(s)
}

// WriteAt writes b at off. It fails for a file opened to append.
func (f *File) WriteAt(b []byte, off int64) (_ int, err error) {
	defer f.fail(&err)
	return f.f.WriteAt(b, off)
}

// ReadFrom writes all data of r. [io.Copy] uses it.
func (f *File) ReadFrom(r io.Reader) (_ int64, err error) {
	defer f.fail(&err)
	return f.f.ReadFrom(r)
}

// Seek sets the offset for Read and Write. To list a directory again, open it again: of a
// directory in a running sandbox the error is [errors.ErrUnsupported].
func (f *File) Seek(offset int64, whence int) (_ int64, err error) {
	defer f.fail(&err)
	return f.f.Seek(offset, whence)
}

// Stat describes the open file.
func (f *File) Stat() (_ fs.FileInfo, err error) {
	defer f.fail(&err)
	return f.f.Stat()
}

// ReadDir lists a directory in no particular order: the next n entries, or all remaining
// ones if n is 0 or less. At the end of the directory, with n over 0, the error is
// [io.EOF].
func (f *File) ReadDir(n int) (_ []fs.DirEntry, err error) {
	defer f.fail(&err)
	return f.f.ReadDir(n)
}

// Truncate changes the file's size.
func (f *File) Truncate(size int64) (err error) {
	defer f.fail(&err)
	return f.f.Truncate(size)
}

// Sync writes the file's data to the disk of the engine's machine.
func (f *File) Sync() (err error) {
	defer f.fail(&err)
	return f.f.Sync()
}

// Close closes the file. Blocked reads and writes return an error. Close waits at most 30 s
// for the sandbox.
func (f *File) Close() (err error) {
	defer f.fail(&err)
	return f.f.Close()
}
