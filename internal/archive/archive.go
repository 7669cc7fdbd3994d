// Package archive packs directory trees into tar streams and unpacks them, between host
// and sandbox in both directions. Neither side trusts the other: the packer follows no
// link out of its tree, and the unpacker writes nothing outside its destination, whatever
// the stream contains.
//
// The streams are in PAX format, for nanoseconds and names of any bytes and length. Records
// of our own add what tar can't express: holes, files that were skipped, and the end of a
// complete stream.
package archive

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/seed-1a2d6d8f/sandbox/internal/errdefs"
)

// Our own records. Notes are in global headers, which other readers ignore.
const (
	recordSparse = "AGENTSANDBOX.sparse" // real size, then offset and length of each piece of data
	recordNote   = "AGENTSANDBOX.note"   // one of the note… kinds
	recordPath   = "AGENTSANDBOX.path"
	recordText   = "AGENTSANDBOX.text"
	recordErrno  = "AGENTSANDBOX.errno"
	recordXattr  = "SCHILY.xattr."
)

const (
	noteSkipped = "skipped" // path was skipped, or part of it; text is the reason
	noteShrunk  = "shrunk"  // only the first text bytes of path are content, the rest is padding
	noteFailed  = "failed"  // the packing side failed
	noteRefused = "refused" // the packing side failed because path is a special file
	noteEnd     = "end"     // the stream is complete
)

// A Skip is a file that was skipped, or part of it, such as an attribute, and the reason. Both
// texts are [errdefs.Printable] and bounded.
type Skip struct{ Path, Reason string }

// A Report counts what was copied.
type Report struct {
	Files   int64 // all but directories
	Dirs    int64
	Bytes   int64 // of content
	Skipped []Skip
	More    int64  // skipped beyond those in Skipped
	Below   string // the directory that paths in Skipped begin with, or ""
}

// Bounds of the memory that a hostile tree can use for a report.
const (
	maxSkipped = 1000
	maxReason  = 256
)

// Skip adds an entry to Skipped, or counts it in More.
func (r *Report) Skip(path, reason string) {
	if len(r.Skipped) >= maxSkipped {
		r.More++
		return
	}
	path = strings.TrimPrefix(path, "./")
	if r.Below != "" {
		path = strings.TrimSuffix(r.Below, "/") + strings.TrimSuffix("/"+strings.TrimPrefix(path, "/"), "/")
	}
	r.Skipped = append(r.Skipped, Skip{printable(path, maxPath), printable(reason, maxReason)})
}

// Append adds the entries of another report, and not its counts of what was copied.
func (r *Report) Append(o Report) {
	n := min(len(o.Skipped), maxSkipped-len(r.Skipped))
	r.Skipped = append(r.Skipped, o.Skipped[:n]...)
	r.More += o.More + int64(len(o.Skipped)-n)
}

// PrivilegedBits names the bits of a mode, as a tar header has it, by which a program gets the
// rights of its file's owner or group; "" if there is none.
func PrivilegedBits(mode int64) string {
	switch mode & 0o6000 {
	case 0o6000:
		return "its setuid and setgid bits"
	case 0o4000:
		return "its setuid bit"
	case 0o2000:
		return "its setgid bit"
	}
	return ""
}

// printable returns the beginning of a text of the stream, for reports and errors.
func printable(text string, n int) string { return errdefs.Printable(errdefs.Cut(text, n)) }

// Options are common to packing and unpacking.
type Options struct {
	// Progress is called after each entry and within large files, by one goroutine,
	// with the entry's name and the current report, which it must not keep.
	Progress func(name string, r *Report)
	// Complete says that the stream is from Pack: it must end with the note that it is
	// complete.
	Complete bool
	// Strip is the number of leading elements to remove from names.
	Strip int
	// Limits bound what is copied. With any of them, names have at most maxPath bytes.
	// Beyond them the error is a *[LimitError] or an *[EntryError].
	Limits Limits
}

func (o *Options) progress(name string, r *Report) {
	if o.Progress != nil {
		o.Progress(printable(name, maxPath), r)
	}
}

// ErrFormat means that a stream is malformed.
var ErrFormat = errors.New("malformed archive")

// ErrSpecial means that a file is not a regular file, a directory or a link.
var ErrSpecial = errors.New("it is neither a file nor a directory")

// RemoteError is an error of the other side.
type RemoteError struct {
	Path    string
	Errno   int // a Linux errno, 0 if the error was not the kernel's
	Text    string
	Special bool // it is ErrSpecial
}

func (e *RemoteError) Error() string { return fmt.Sprintf("%s: %s", e.Path, e.Text) }

// Is matches ErrSpecial.
func (e *RemoteError) Is(target error) bool { return e.Special && target == ErrSpecial }

// Remote describes an error for the other side.
func Remote(err error) *RemoteError {
	r := &RemoteError{Text: err.Error(), Special: errors.Is(err, ErrSpecial)}
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		r.Path, r.Text = p.Path, p.Err.Error()
	}
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		r.Errno, r.Text = int(errno), errno.Error()
	}
	return r
}

// Special names the kind of a special file.
func Special(m fs.FileMode) string {
	switch {
	case m&fs.ModeNamedPipe != 0:
		return "a named pipe"
	case m&fs.ModeSocket != 0:
		return "a socket"
	case m&fs.ModeDevice != 0:
		return "a device"
	}
	return "a special file"
}

// splitTarget splits a path into the directory, up to its separator, and the name there. Nothing but slashes and dots at the end
// is cleaned: "link/.." is where the kernel goes, the parent of what the link leads to.
func splitTarget(target string) (dir, base string) {
	for {
		dir, base = filepath.Split(target)
		volume := filepath.VolumeName(dir)
		above := strings.TrimRightFunc(dir[len(volume):], func(r rune) bool { return r < 128 && os.IsPathSeparator(uint8(r)) })
		if base != "" && base != "." || above == "" {
			return dir, base
		}
		target = volume + above
	}
}

// maxLinks is what the kernel follows.
const maxLinks = 40

// follow resolves symbolic links in the last element of a path. It returns the path of the file, and its info or nil if there is no
// such file. The path of a directory or a special file is returned unchanged.
func follow(name string) (string, fs.FileInfo, error) {
	info, err := os.Stat(name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) || err == nil && !info.Mode().IsRegular() {
		return name, info, err
	}
	at := name
	for range maxLinks {
		is, err := os.Lstat(at)
		switch {
		case errors.Is(err, fs.ErrNotExist) && info == nil:
			return at, nil, nil
		case err == nil && is.Mode()&fs.ModeSymlink != 0:
			link, err := os.Readlink(at)
			if err != nil {
				return "", nil, err
			}
			if !filepath.IsAbs(link) {
				dir, _ := filepath.Split(at)
				link = dir + link
			}
			at = link
			continue
		case err == nil && info != nil && os.SameFile(info, is):
			return at, info, nil
		}
		break
	}
	// The kernel's own links, as in /proc/self/fd, have texts that are no paths.
	return "", nil, &fs.PathError{Op: "copy", Path: name, Err: errors.New("it is a link to a file that has no name, or changed meanwhile")}
}

// openParent opens the directory of a file, and returns the file's name there.
func openParent(file string) (root *into, base string, err error) {
	dir, base := filepath.Split(file)
	root, err = openInto(cmp.Or(dir, "."))
	return root, base, err
}

func refuseSpecial(path string, m fs.FileMode) error {
	return &fs.PathError{Op: "copy", Path: path, Err: fmt.Errorf("%w but %s", ErrSpecial, Special(m))}
}

// clean validates a name of a stream and strips its leading elements. The destination
// itself is ".".
func clean(name string, strip, most int) (string, error) {
	if len(name) > most {
		return "", &EntryError{name, fmt.Sprintf("its name has %d bytes, more than %d", len(name), most)}
	}
	name = strings.TrimSuffix(name, "/")
	if strip == 0 && name != "." {
		trimmed, ok := strings.CutPrefix(name, "./")
		if !ok {
			return "", fmt.Errorf("%w: name %q", ErrFormat, name)
		}
		name = trimmed
	}
	for ; strip > 0; strip-- {
		_, rest, ok := strings.Cut(name, "/")
		if !ok {
			rest = "."
		}
		name = rest
	}
	if name == "." {
		return name, nil
	}
	for part := range strings.SplitSeq(name, "/") {
		if part == "" || part == "." || part == ".." || len(part) > 255 || strings.IndexByte(part, 0) >= 0 {
			return "", fmt.Errorf("%w: name %q", ErrFormat, name)
		}
	}
	return name, nil
}

// maxName bounds names without [Limits]. A tree may be deeper than PATH_MAX, but not
// unlimited.
const maxName = 64 << 10
