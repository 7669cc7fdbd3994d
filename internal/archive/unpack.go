package archive

import (
	"archive/tar"
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Trust says whether privileges in a stream are honored.
type Trust int

const (
	// Hostile streams come from a sandbox: setuid and setgid bits are dropped.
	Hostile Trust = iota
	// Friendly streams are the caller's own.
	Friendly
)

const (
	writers  = 4         // goroutines that write small files
	queued   = 16        // small files in memory that wait for a writer
	maxSmall = 256 << 10 // bytes of a small file

	maxRemoteText = 512 // bytes of the other side's error
)

// Unpack makes target the file or tree of the stream, and missing directories above it. A
// target that does not exist appears at the end, complete. A directory is merged with the
// stream's: each file is replaced atomically, and files that the stream does not have
// stay. Directories that were there keep their owner, permissions and extended attributes.
// Directories and other files never replace each other. Whatever the stream
// contains, nothing outside of target is touched: no path in it is resolved through a link,
// and no file that was there before is opened or linked to.
//
// Unpack reads r to its end.
func Unpack(ctx context.Context, r io.Reader, target string, trust Trust, opts Options) (Report, error) {
	u := &unpacker{
		ctx: ctx, opts: opts, trust: trust, tally: opts.Limits.tally(), longest: maxName,
		seed: maphash.MakeSeed(), carried: map[uint64]struct{}{},
	}
	if opts.Limits != (Limits{}) {
		u.longest = maxPath
	}
	in := &counted{r: r, most: u.tally.stream()}
	u.tr = tar.NewReader(bufio.NewReaderSize(in, bufSize))
	err := u.run(target)
	if err == nil {
		var n int64
		if n, err = io.Copy(io.Discard, io.LimitReader(in, maxTrailer+1)); n > maxTrailer {
			err = fmt.Errorf("%w: more than %d bytes after its end", ErrFormat, maxTrailer)
		}
	}
	if errors.Is(err, errTooLong) {
		err = &LimitError{u.at, "bytes", u.tally.Bytes}
	}
	return u.report, err
}

type unpacker struct {
	ctx    context.Context
	opts   Options
	trust  Trust
	tr     *tar.Reader
	ended  bool
	report Report

	tally   tally
	longest int     // of names, in bytes
	at      string  // the name of the last entry
	shrunk  *string // the name of the last entry, while a note about its size may follow

	dest  string // the target
	top   *into  // the tree's top directory
	fresh bool   // the target did not exist
	cut   *int64 // the size of a single file that shrank

	// carried are the files of this stream, to which hard links may lead: hashes of their
	// names with a seed that the other side can't know, so that many take little memory.
	carried map[uint64]struct{}
	seed    maphash.Seed

	dirs  map[string]*dirState // directories that exist below top, and are no links
	order []string             // their names, as they were added
	cur   *dirRef[*into]       // the directory of the last entry
	curAt string

	mu      sync.Mutex
	failed  error
	working sync.WaitGroup
	jobs    chan job
	busy    sync.WaitGroup
}

// dirState has the attributes that a directory gets at the end.
type dirState struct {
	hdr *tar.Header // nil: keep those it has
	was bool        // it was there before the copy
}

// attributes returns a copy of what a directory's header says of its attributes. The header
// itself would keep all that came with it in memory.
func (u *unpacker) attributes(hdr *tar.Header) (*tar.Header, error) {
	kept := &tar.Header{Mode: hdr.Mode, ModTime: hdr.ModTime}
	size := 0
	for key, value := range hdr.PAXRecords {
		if strings.HasPrefix(key, recordXattr) {
			if kept.PAXRecords == nil {
				kept.PAXRecords = map[string]string{}
			}
			kept.PAXRecords[strings.Clone(key)] = strings.Clone(value)
			size += len(key) + len(value)
		}
	}
	return kept, u.tally.keep(hdr.Name, size)
}

type job struct {
	dir  *dirRef[*into]
	base string
	name string
	hdr  *tar.Header
	data []byte
}

func (u *unpacker) run(target string) error {
	hdr, name, err := u.next()
	if err != nil {
		return err
	}
	if name != "." {
		return fmt.Errorf("%w: it begins with %q", ErrFormat, name)
	}
	u.dest = target
	dir, base := splitTarget(target)
	if err := os.MkdirAll(cmp.Or(dir, "."), 0o755); err != nil {
		return err
	}
	full, there, err := follow(dir + base)
	if err != nil {
		return err
	}
	switch hdr.Typeflag {
	case tar.TypeDir:
		return u.tree(full, there, hdr)
	case tar.TypeReg:
		return u.single(full, there, hdr)
	}
	return &fs.PathError{Op: "copy", Path: target, Err: fmt.Errorf("%w: it begins with neither a file nor a directory", ErrFormat)}
}

// next returns the next entry, and handles the notes before it.
func (u *unpacker) next() (*tar.Header, string, error) {
	for {
		if err := context.Cause(u.ctx); err != nil {
			return nil, "", err
		}
		hdr, err := u.tr.Next()
		if err == io.EOF {
			if u.opts.Complete && !u.ended {
				return nil, "", io.ErrUnexpectedEOF
			}
			return nil, "", io.EOF
		}
		if errors.Is(err, tar.ErrHeader) {
			err = fmt.Errorf("%w: %w", ErrFormat, err)
		}
		if err != nil {
			return nil, "", err
		}
		if hdr.Typeflag == tar.TypeXGlobalHeader {
			if err := u.note(hdr.PAXRecords); err != nil {
				return nil, "", err
			}
			continue
		}
		if u.ended {
			return nil, "", fmt.Errorf("%w: data after its end", ErrFormat)
		}
		u.at, u.shrunk = hdr.Name, nil
		name, err := clean(hdr.Name, u.opts.Strip, u.longest)
		if err == nil {
			err = u.tally.entry(hdr.Name)
		}
		if err == nil {
			err = u.tally.content(hdr.Name, hdr.Size)
		}
		return hdr, name, err
	}
}

func (u *unpacker) note(r map[string]string) error {
	if !u.opts.Complete {
		return nil // the stream is not from Pack
	}
	switch r[recordNote] {
	case noteEnd:
		u.ended = true
	case noteFailed, noteRefused:
		errno, err := strconv.Atoi(r[recordErrno])
		if err != nil || errno < 0 || errno > 4095 {
			errno = 0
		}
		return &RemoteError{
			Path: printable(r[recordPath], maxPath), Errno: errno, Text: printable(r[recordText], maxRemoteText),
			Special: r[recordNote] == noteRefused,
		}
	case noteSkipped:
		u.skip(r[recordPath], r[recordText])
	case noteShrunk:
		return u.shrink(r[recordPath], r[recordText])
	}
	return nil
}

// shrink truncates the file that the stream has just carried to its content, without the
// padding. Pack sends the note right behind the file, and the file is a new one: no other
// name leads to it.
func (u *unpacker) shrink(name, text string) error {
	size, err := strconv.ParseInt(text, 10, 64)
	if err != nil || size < 0 {
		return fmt.Errorf("%w: invalid size", ErrFormat)
	}
	if u.shrunk == nil || name != *u.shrunk {
		return fmt.Errorf("%w: a note about %q, which is not the file before it", ErrFormat, shown(name))
	}
	u.shrunk = nil
	u.skip(name, "it shrank while it was copied")
	if u.top == nil {
		u.cut = &size
		return nil
	}
	if name, err = clean(name, u.opts.Strip, u.longest); err != nil {
		return err
	}
	u.busy.Wait()
	if err := u.err(); err != nil {
		return err
	}
	dir, base, err := u.parent(name)
	if err != nil {
		return err
	}
	return named(truncate(dir.root, base, size), name)
}

// truncate cuts a file that was just created, unless something else has taken its place.
func truncate(root *into, base string, size int64) error {
	info, err := root.Lstat(base)
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() || info.Size() < size {
		return fmt.Errorf("%w: it can't have shrunk", ErrFormat)
	}
	f, _, err := OpenFile(root.OpenFile, base, os.O_WRONLY, info)
	if errors.Is(err, ErrChanged) {
		err = fmt.Errorf("%w: it can't have shrunk", ErrFormat)
	}
	if err != nil {
		return err
	}
	err = errors.Join(f.Truncate(size), setTimes(f, root, base, info.ModTime()))
	return errors.Join(err, f.Close())
}

// single makes target a file.
func (u *unpacker) single(target string, there fs.FileInfo, hdr *tar.Header) error {
	if there != nil && !there.Mode().IsRegular() {
		return &fs.PathError{Op: "copy", Path: u.dest, Err: errors.New("it is " + kind(there.Mode()) + ", and a file would replace it")}
	}
	root, base, err := openParent(target)
	if err != nil {
		return err
	}
	defer root.Close()
	temp := tempName()
	f, err := root.OpenFile(temp, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	err = u.fill(f, ".", hdr)
	if err == nil {
		u.shrunk = &hdr.Name
		_, _, err = u.next() // only notes may follow
		if err == io.EOF {
			err = nil
		} else if err == nil {
			err = fmt.Errorf("%w: entries after a single file", ErrFormat)
		}
	}
	if err == nil && u.cut != nil {
		if info, e := f.Stat(); e != nil || info.Size() < *u.cut {
			err = errors.Join(fmt.Errorf("%w: it can't have shrunk", ErrFormat), e)
		} else {
			err = f.Truncate(*u.cut)
		}
	}
	if err == nil {
		u.setAttrs(f, root, temp, ".", hdr)
	}
	if e := f.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = u.install(root, temp, base, ".", hdr)
	}
	if err != nil {
		root.Remove(temp)
		return err
	}
	u.report.Files++
	u.opts.progress(".", &u.report)
	return nil
}

func kind(m fs.FileMode) string {
	if m.IsDir() {
		return "a directory"
	}
	return Special(m)
}

// tree makes target a directory.
func (u *unpacker) tree(target string, there fs.FileInfo, hdr *tar.Header) (err error) {
	if hdr, err = u.attributes(hdr); err != nil {
		return err
	}
	if there != nil && !there.IsDir() {
		return &fs.PathError{Op: "copy", Path: u.dest, Err: errors.New("it is no directory, and one would replace it")}
	}
	parent, base, err := openParent(target)
	if err != nil {
		return err
	}
	defer parent.Close()
	temp := ""
	if there != nil {
		u.top, err = openInto(target)
	} else {
		u.fresh, temp = true, tempName()
		if err = parent.Mkdir(temp, 0o700); err == nil {
			u.top, err = openBelow(parent, temp)
		}
	}
	if err != nil {
		return err
	}
	if !u.fresh {
		hdr = nil
	}
	u.dirs = map[string]*dirState{".": {hdr, !u.fresh}}
	u.order = []string{"."}
	u.report.Dirs++
	u.start()
	err = u.entries()
	if e := u.stop(); err == nil {
		err = e
	}
	if err == nil {
		err = u.finishDirs()
	}
	u.top.Close()
	if !u.fresh {
		return err
	}
	if err == nil {
		err = u.appear(parent, temp, base)
	}
	if err != nil {
		return errors.Join(err, removeTree(parent, temp))
	}
	return nil
}

// appear gives a new tree its name.
func (u *unpacker) appear(parent *into, temp, base string) error {
	err := parent.Rename(temp, base)
	if err == nil {
		return nil
	}
	if _, gone := parent.Lstat(base); gone == nil {
		return &fs.PathError{Op: "copy", Path: u.dest, Err: errMeanwhile}
	}
	return err
}

// errMeanwhile is about a target that did not exist when the copy began.
var errMeanwhile = fmt.Errorf("%w: something else, such as another copy, was put there during the copy: repeat it to merge them", fs.ErrExist)

// removeTree removes a tree, including directories without write permission.
func removeTree(parent *into, name string) error {
	err := parent.Remove(name)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	dir, e := openBelow(parent, name)
	if e != nil {
		return err
	}
	dir.Chmod(".", 0o700)
	var names []string
	list, err := dir.OpenFile(".", os.O_RDONLY, 0)
	if err == nil {
		names, err = list.Readdirnames(-1)
		list.Close() // a deep tree has many
	}
	for _, below := range names {
		err = errors.Join(err, removeTree(dir, below))
	}
	dir.Close()
	return cmp.Or(err, parent.Remove(name))
}

func (u *unpacker) start() {
	u.jobs = make(chan job, queued)
	for range writers {
		u.working.Go(func() {
			for j := range u.jobs {
				if u.err() == nil {
					u.fail(u.file(j.dir, j.base, j.name, j.hdr, j.data))
				}
				j.dir.release()
				putBuffer(j.data)
				u.busy.Done()
			}
		})
	}
}

func (u *unpacker) stop() error {
	close(u.jobs)
	u.working.Wait()
	if u.cur != nil {
		u.cur.release()
		u.cur = nil
	}
	return u.err()
}

func (u *unpacker) err() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.failed
}

func (u *unpacker) fail(err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.failed == nil {
		u.failed = err
	}
}

func (u *unpacker) entries() error {
	for {
		hdr, name, err := u.next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if err := u.err(); err != nil {
			return err
		}
		if err := u.entry(hdr, name); err != nil {
			return err
		}
		u.opts.progress(name, &u.report)
	}
}

// parent returns the directory of an entry, and makes it if the stream left it out.
func (u *unpacker) parent(name string) (*dirRef[*into], string, error) {
	if err := context.Cause(u.ctx); err != nil {
		return nil, "", err // one name may have many directories
	}
	dir, base := path.Split(name)
	if dir = strings.TrimSuffix(dir, "/"); dir == "" {
		dir = "."
	}
	if u.cur != nil && u.curAt == dir {
		return u.cur, base, nil
	}
	if u.dirs[dir] == nil {
		if err := u.mkdir(dir, nil); err != nil {
			return nil, "", err
		}
		if u.cur != nil && u.curAt == dir {
			return u.cur, base, nil
		}
	}
	root, err := openBelow(u.top, dir)
	if err != nil {
		return nil, "", named(err, dir)
	}
	if u.cur != nil {
		u.cur.release()
	}
	u.cur, u.curAt = newDirRef(root), dir
	return u.cur, base, nil
}

// mkdir makes a directory, or adopts an existing one. Without a header the stream has no entry
// for it so far.
func (u *unpacker) mkdir(name string, hdr *tar.Header) (err error) {
	if hdr != nil {
		hdr, err = u.attributes(hdr)
	} else {
		err = u.tally.entry(name)
	}
	if err != nil {
		return err
	}
	if have := u.dirs[name]; have != nil {
		if hdr != nil && !have.was {
			have.hdr = hdr
		}
		return nil
	}
	if err := u.tally.keep(name, len(name)); err != nil {
		return err
	}
	dir, base, err := u.parent(name)
	if err != nil {
		return err
	}
	err = dir.root.Mkdir(base, 0o700)
	was := errors.Is(err, fs.ErrExist)
	if was {
		u.busy.Wait()
		info, e := dir.root.Lstat(base)
		if e != nil {
			return named(e, name)
		}
		if !info.IsDir() {
			return &fs.PathError{Op: "copy", Path: printable(name, maxPath), Err: errors.New("it is not a directory at the destination, and a directory would replace it")}
		}
		err, hdr = nil, nil
	} else if err == nil && hdr == nil {
		hdr = &tar.Header{Mode: 0o755, ModTime: time.Now()}
	}
	if err != nil {
		return named(err, name)
	}
	name = strings.Clone(name) // it may be part of a longer string
	u.dirs[name] = &dirState{hdr, was}
	u.order = append(u.order, name)
	u.report.Dirs++
	return nil
}

// named wraps an error with the entry's name.
func named(err error, name string) error {
	if err == nil {
		return nil
	}
	return &fs.PathError{Op: "write", Path: printable(name, maxPath), Err: linkBare(bare(err))}
}

func linkBare(err error) error {
	if l, ok := errors.AsType[*os.LinkError](err); ok {
		return l.Err
	}
	return err
}

func (u *unpacker) entry(hdr *tar.Header, name string) error {
	if name == "." {
		if hdr.Typeflag != tar.TypeDir {
			return fmt.Errorf("%w: the top of a tree is not a directory", ErrFormat)
		}
		return u.mkdir(name, hdr)
	}
	switch hdr.Typeflag {
	case tar.TypeDir:
		return u.mkdir(name, hdr)
	case tar.TypeReg, tar.TypeSymlink, tar.TypeLink:
	case tar.TypeFifo, tar.TypeChar, tar.TypeBlock:
		u.skip(name, Special(hdr.FileInfo().Mode()))
		return nil
	default:
		u.skip(name, fmt.Sprintf("an entry of type %q", hdr.Typeflag))
		return nil
	}
	if u.dirs[name] != nil {
		return &fs.PathError{Op: "copy", Path: printable(name, maxPath), Err: errors.New("it is a directory, and something else would replace it")}
	}
	dir, base, err := u.parent(name)
	if err != nil {
		return err
	}
	u.report.Files++
	defer func() {
		u.carried[maphash.String(u.seed, name)] = struct{}{}
		if hdr.Typeflag == tar.TypeReg {
			u.shrunk = &hdr.Name
		}
	}()
	switch {
	case hdr.Typeflag == tar.TypeSymlink:
		return named(u.symlink(dir.root, base, name, hdr), name)
	case hdr.Typeflag == tar.TypeLink:
		return u.link(dir.root, base, name, hdr)
	case hdr.Size > maxSmall || hdr.PAXRecords[recordSparse] != "":
		return u.file(dir, base, name, hdr, nil)
	}
	data := getBuffer(hdr.Size)
	if _, err := io.ReadFull(u.tr, data); err != nil {
		return err
	}
	u.report.Bytes += hdr.Size
	u.busy.Add(1)
	u.jobs <- job{dir: dir.hold(), base: base, name: name, hdr: hdr, data: data}
	return nil
}

// replace creates a file at base. If one may exist, it creates the new one under a
// temporary name and renames it, so that the old one is replaced atomically.
func (u *unpacker) replace(root *into, base, name string, hdr *tar.Header, create func(name string) error) error {
	if u.fresh {
		err := create(base)
		if !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	if info, err := root.Lstat(base); err == nil && info.IsDir() {
		return errors.New("it is a directory, and something else would replace it")
	}
	temp := tempName()
	err := create(temp)
	if err == nil {
		err = u.install(root, temp, base, name, hdr)
	}
	if err != nil || !u.fresh {
		// Renaming a hard link onto another name of the same file leaves both.
		if e := root.Remove(temp); err == nil && e != nil && !errors.Is(e, fs.ErrNotExist) {
			err = e
		}
	}
	return err
}

// install gives a file the name that it is to have. A mount point, as /etc/hosts is one in a sandbox, can only be written in place.
func (u *unpacker) install(root *into, temp, base, name string, hdr *tar.Header) error {
	err := root.Rename(temp, base)
	if u.trust == Hostile || !errors.Is(err, syscall.EBUSY) {
		return err
	}
	from, link := openRegular(root, temp, os.O_RDONLY)
	if link != nil {
		return err
	}
	defer from.Close()
	to, err := openRegular(root, base, os.O_WRONLY)
	if err != nil {
		return err
	}
	if err = to.Truncate(0); err == nil {
		_, err = io.Copy(to, from)
	}
	if err == nil {
		u.setAttrs(to, root, base, name, hdr)
	}
	return errors.Join(err, to.Close(), root.Remove(temp))
}

func openRegular(root *into, name string, flag int) (*os.File, error) {
	info, err := root.Lstat(name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, refuseSpecial(name, info.Mode())
	}
	f, _, err := OpenFile(root.OpenFile, name, flag, info)
	return f, err
}

func (u *unpacker) symlink(root *into, base, name string, hdr *tar.Header) error {
	u.waitIfExists(root, base)
	return u.replace(root, base, name, hdr, func(at string) error {
		if err := root.Symlink(hdr.Linkname, at); err != nil {
			return err
		}
		return setLinkTimes(root, at, hdr.ModTime)
	})
}

// waitIfExists waits for the writers if base exists: a stream may name a file twice, and
// one of them may still be writing it.
func (u *unpacker) waitIfExists(root *into, base string) {
	if _, err := root.Lstat(base); err == nil {
		u.busy.Wait()
	}
}

func (u *unpacker) link(root *into, base, name string, hdr *tar.Header) error {
	old, err := clean(hdr.Linkname, u.opts.Strip, u.longest)
	if err != nil {
		return err
	}
	if _, carried := u.carried[maphash.String(u.seed, old)]; !carried {
		return fmt.Errorf("%w: %q is a link to %q, which is not in the archive", ErrFormat, shown(name), shown(hdr.Linkname))
	}
	u.busy.Wait()
	if err := u.err(); err != nil {
		return err
	}
	// Through the top: the two names may be in different directories.
	prefix := path.Dir(name)
	return named(u.replace(root, base, name, hdr, func(temp string) error {
		return u.top.Link(old, path.Join(prefix, temp))
	}), name)
}

// file writes a regular file from data or, if that is nil, from the stream.
func (u *unpacker) file(dir *dirRef[*into], base, name string, hdr *tar.Header, data []byte) error {
	err := u.replace(dir.root, base, name, hdr, func(at string) error {
		perm := fs.FileMode(hdr.Mode & 0o777)
		if hdr.Mode&0o200 == 0 {
			perm |= 0o200
		}
		f, err := dir.root.OpenFile(at, os.O_CREATE|os.O_EXCL|os.O_WRONLY, perm)
		if err != nil {
			return err
		}
		if data != nil {
			_, err = f.Write(data)
		} else {
			err = u.fill(f, name, hdr)
		}
		if err == nil {
			u.setAttrs(f, dir.root, at, name, hdr)
		}
		return errors.Join(err, f.Close())
	})
	var remote *RemoteError
	if err == nil || errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, &remote) || u.ctx.Err() != nil {
		return err
	}
	return named(err, name)
}

// zeros are what holes read as.
var zeros [bufSize]byte

// fill copies a file's content from the stream. One that is not from Pack has no holes: what is zero becomes one.
func (u *unpacker) fill(f *os.File, name string, hdr *tar.Header) error {
	size, pieces := hdr.Size, []Piece{{0, hdr.Size}}
	if record := hdr.PAXRecords[recordSparse]; record != "" && u.opts.Complete {
		var err error
		if size, pieces, err = ParseSparse(record, hdr.Size); err != nil {
			return err
		}
		if err := u.tally.content(hdr.Name, size-hdr.Size); err != nil { // its holes
			return err
		}
	}
	buf := make([]byte, min(bufSize, max(hdr.Size, 1)))
	next, written := u.report.Bytes+step, int64(0)
	for _, piece := range pieces {
		for at, end := piece.Offset, piece.Offset+piece.Length; at < end; {
			if err := context.Cause(u.ctx); err != nil {
				return err
			}
			part := buf[:min(int64(len(buf)), end-at)]
			if _, err := io.ReadFull(u.tr, part); err != nil {
				return err
			}
			if u.opts.Complete || !bytes.Equal(part, zeros[:len(part)]) {
				if _, err := f.WriteAt(part, at); err != nil {
					return err
				}
				written = at + int64(len(part))
			}
			at += int64(len(part))
			if u.report.Bytes += int64(len(part)); u.report.Bytes > next {
				next += step
				u.opts.progress(name, &u.report)
			}
		}
	}
	if written < size {
		return f.Truncate(size)
	}
	return nil
}

// setAttrs sets the permissions, extended attributes and time of a file or directory.
// Attributes come first: setting one takes write permission, even for the owner.
func (u *unpacker) setAttrs(f *os.File, root *into, at, name string, hdr *tar.Header) {
	u.setXattrs(f, name, hdr)
	u.setMode(f, name, hdr)
	err := setTimes(f, root, at, hdr.ModTime)
	if sec := hdr.ModTime.Unix(); err == nil && (sec < 0 || sec >= 1<<31) {
		err = stored(f, hdr.ModTime)
	}
	if err != nil {
		u.skip(name, "its time: "+bare(err).Error())
	}
}

// stored returns an error if a file's time is another: where a file system can't store a time, the
// kernel takes the nearest one that it can.
func stored(f *os.File, t time.Time) error {
	info, err := f.Stat()
	if err == nil && info.ModTime().Unix() != t.Unix() {
		err = fmt.Errorf("the file system can't store the year %d", t.UTC().Year())
	}
	return err
}

func (u *unpacker) skip(name, reason string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.report.Skip(name, reason)
}

func (u *unpacker) setMode(f *os.File, name string, hdr *tar.Header) {
	want := fs.FileMode(hdr.Mode & 0o777)
	for _, bit := range [...]struct {
		tar  int64
		mode fs.FileMode
		text string
	}{{0o4000, fs.ModeSetuid, "its setuid bit"}, {0o2000, fs.ModeSetgid, "its setgid bit"}, {0o1000, fs.ModeSticky, ""}} {
		switch {
		case hdr.Mode&bit.tar == 0:
		case u.trust == Hostile && bit.text != "":
			u.skip(name, bit.text)
		default:
			want |= bit.mode
		}
	}
	info, err := f.Stat()
	if err == nil && info.Mode()&^fs.ModeType == want {
		return
	}
	if err == nil {
		err = f.Chmod(want)
	}
	if err != nil {
		u.skip(name, "its permissions: "+bare(err).Error())
	}
}

func (u *unpacker) setXattrs(f *os.File, name string, hdr *tar.Header) {
	for key, value := range hdr.PAXRecords {
		key, ok := strings.CutPrefix(key, recordXattr)
		if !ok {
			continue
		}
		// Other namespaces hold privileges: capabilities, access lists, labels.
		err := errors.New("not copied")
		if strings.HasPrefix(key, "user.") {
			err = setXattr(f, key, value)
		}
		if err != nil {
			u.skip(name, "extended attribute "+key+": "+err.Error())
		}
	}
}

// finishDirs sets the attributes of directories, innermost first: they had to be writable
// until now, and new files in them changed their times.
func (u *unpacker) finishDirs() error {
	for i := len(u.order) - 1; i >= 0; i-- {
		if err := context.Cause(u.ctx); err != nil {
			return err
		}
		name := u.order[i]
		hdr := u.dirs[name].hdr
		if hdr == nil {
			continue
		}
		f, err := u.top.OpenFile(name, os.O_RDONLY|openNonblock, 0)
		if err != nil {
			return named(err, name)
		}
		if info, err := f.Stat(); err == nil && info.IsDir() {
			u.setAttrs(f, u.top, name, name, hdr)
		}
		f.Close()
	}
	return nil
}

// tempName returns a name for an unfinished file.
func tempName() string {
	var b [8]byte
	rand.Read(b[:])
	return Unfinished + hex.EncodeToString(b[:])
}

// Unfinished begins the names of unfinished files.
const Unfinished = ".agent-sandbox-"
