// Package archive carries trees as tar streams, out of a directory and into one,
// between host and sandbox and both ways. Neither side trusts the other: what packs
// follows no link out of its tree, and what unpacks writes nowhere but below its
// destination, whatever the stream says.
//
// The streams are PAX: nanoseconds, names of any bytes and length, and in records of
// our own what tar has no word for: holes, what could not be carried, and that the
// stream is complete.
package archive

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// Our own records. Those of notes stand in global headers, which other readers skip.
const (
	recordSparse = "AGENTSANDBOX.sparse" // real size, then offset and length of each piece of data
	recordNote   = "AGENTSANDBOX.note"   // one of the note… kinds
	recordPath   = "AGENTSANDBOX.path"
	recordText   = "AGENTSANDBOX.text"
	recordErrno  = "AGENTSANDBOX.errno"
	recordXattr  = "SCHILY.xattr."
)

const (
	noteSkipped = "skipped" // path was not carried, or not all of it: text
	noteShrunk  = "shrunk"  // path is only text bytes long: the rest of it is padding
	noteFailed  = "failed"  // the packing side gave up
	noteRefused = "refused" // as failed: path is a special file
	noteEnd     = "end"     // the stream is complete
)

// A Skip is what was not kept of a file, and why.
type Skip struct{ Path, Reason string }

// A Report tells what was carried.
type Report struct {
	Files   int64 // all but directories
	Dirs    int64
	Bytes   int64 // of content
	Skipped []Skip
	More    int64 // skipped and not listed
}

// maxSkipped bounds what a hostile tree can make us remember.
const maxSkipped = 1000

// Skip adds to the report.
func (r *Report) Skip(path, reason string) {
	if len(r.Skipped) >= maxSkipped {
		r.More++
		return
	}
	if len(reason) > 256 {
		reason = reason[:256]
	}
	r.Skipped = append(r.Skipped, Skip{path, reason})
}

// Options are both sides' own.
type Options struct {
	// Progress is called after each entry and within large files, by one goroutine,
	// with the entry's name and the report as it is; it must not keep it.
	Progress func(name string, r *Report)
	// Complete says that the stream is ours: it must say at its end that it is whole.
	Complete bool
	// Strip is how many elements names begin with that are not the destination's.
	Strip int
}

func (o *Options) progress(name string, r *Report) {
	if o.Progress != nil {
		o.Progress(name, r)
	}
}

// ErrFormat says that a stream is not what it must be.
var ErrFormat = errors.New("malformed archive")

// ErrSpecial says that a file is none of a regular file, a directory and a link.
var ErrSpecial = errors.New("it is neither a file nor a directory")

// RemoteError is what the other side failed with.
type RemoteError struct {
	Path  string
	Errno int // as Linux counts; 0 when it was nothing of the kernel's
	Text  string
	// Special is ErrSpecial.
	Special bool
}

func (e *RemoteError) Error() string { return fmt.Sprintf("%s: %s", e.Path, e.Text) }

// Is knows ErrSpecial.
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

// special says what kind of special file a mode is.
func special(m fs.FileMode) string {
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

// openParent opens the directory that a file is in, or will be, and returns its name
// there. A link at the end is followed.
func openParent(file string) (root *os.Root, base string, err error) {
	if real, err := filepath.EvalSymlinks(file); err == nil {
		file = real
	}
	dir, base := filepath.Split(file)
	if dir == "" {
		dir = "."
	}
	root, err = os.OpenRoot(dir)
	return root, base, err
}

func refuseSpecial(path string, m fs.FileMode) error {
	return &fs.PathError{Op: "copy", Path: path, Err: fmt.Errorf("%w but %s", ErrSpecial, special(m))}
}

// clean takes a name of a stream apart from what stands before the destination's own
// part of it. The destination itself is ".".
func clean(name string, strip int) (string, error) {
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
	if len(name) > maxName {
		return "", fmt.Errorf("%w: a name of %d bytes", ErrFormat, len(name))
	}
	return name, nil
}

// maxName bounds names: a tree may be deeper than a path can be long, but not without
// end.
const maxName = 64 << 10
