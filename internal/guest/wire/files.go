package wire

import (
	"encoding/binary"
	"errors"
	"io"
	"math"
	"time"
)

// The verb files serves the file system to one client, as the user it runs as, on
// standard input and output. Both ways go frames: a length (4 bytes, big endian, of
// what follows), the number of the request (4 bytes), one byte, and the rest. In a
// request the byte is the operation, in a reply FileOK or FileFailed. Requests are
// carried out at the same time and answered in any order.
//
// SFTP would do for less than this: its third version, the one in use, has whole
// seconds, no errors but five, no permissions at creation, and no one request that
// reads a file or that replaces one whole.
const VerbFiles = "files"

// Verbs that carry trees, as package archive has them. Their argument is a path.
const (
	VerbPack   = "pack"   // writes an archive of it to standard output
	VerbUnpack = "unpack" // makes it of the archive on standard input; writes a Unpacked
)

// File operations, with what the request holds and, after the colon, what the reply
// of a success does. A reply that begins with a handle begins with 0 when there is
// none. A failure holds the error number as Linux counts.
const (
	FileLstat     = iota + 1 // path: info, ctime
	FileStat                 // path: info, ctime
	FileOpen                 // path, flags, permissions: handle, info
	FileRead                 // handle, offset or -1, length: bytes; fewer is the end
	FileWrite                // handle, offset or -1, bytes: count, and after -1 the offset if the file has one
	FileClose                // handle
	FileFstat                // handle: info, ctime
	FileFtruncate            // handle, size
	FileSync                 // handle
	FileReadAll              // path: handle when there is more, info, bytes
	FileReplace              // path, permissions, bytes
	FileBegin                // path, permissions: handle of what is to replace path
	FileCommit               // handle, which is closed by it
	FileReadDir              // path: handle when there is more, infos
	FileReadMore             // handle of a directory: handle when there is more, infos
	FileMkdir                // path, permissions
	FileMkdirAll             // path, permissions
	FileMkdirTemp            // directory, pattern: path
	FileRemove               // path
	FileRemoveAll            // path
	FileRename               // from, to
	FileSymlink              // target, path
	_                        // was a hard link: other numbers stay
	FileReadlink             // path: target
	FileChmod                // path, permissions
	FileChown                // path, uid or -1, gid or -1
	FileLchown               // path, uid or -1, gid or -1
	FileChtimes              // path, atime, mtime, each after whether it counts
	FileTruncate             // path, size
)

// What a reply says first.
const (
	FileOK     = 0
	FileFailed = 1
)

// Flags of FileOpen; Linux has its own numbers, which differ by architecture.
const (
	FlagRead = 1 << iota
	FlagWrite
	FlagAppend
	FlagCreate
	FlagExclusive
	FlagTruncate
	FlagSync
)

const (
	// MaxFileData is the most bytes of a file in one frame.
	MaxFileData = 256 << 10
	// maxFileFrame is the most bytes of a frame after its length.
	maxFileFrame = MaxFileData + 64<<10
	// FileHeader is how much of a frame comes before the rest, the length included.
	FileHeader = 9
)

// FileInfo tells of a file as stat(2) does. In a directory Name is the entry's. Of entries that stat failed for, such as those of a
// directory that the user may list and not search, only the name and the type are known: Ino and Nlink are 0, and Size is the errno,
// where a guest of before knew only EACCES and has 0.
type FileInfo struct {
	Name         string
	Mode         uint32 // st_mode, type and permissions
	Size         int64
	Mtime, Atime time.Time
	UID, GID     uint32
	Nlink        uint64
	Dev, Ino     uint64
	Ctime        time.Time // of the replies that have it, else zero
}

// Pack appends the parts of a message: all integers as varints, strings and bytes
// after their length.
type Pack []byte

// NewFrame begins a frame; End ends it.
func NewFrame(size int) Pack { return make(Pack, FileHeader, FileHeader+size) }

// End fills in the beginning of a frame that NewFrame began.
func (p Pack) End(id uint32, kind byte) []byte {
	binary.BigEndian.PutUint32(p, uint32(len(p)-4))
	binary.BigEndian.PutUint32(p[4:], id)
	p[8] = kind
	return p
}

// Uint appends a number.
func (p *Pack) Uint(n uint64) { *p = binary.AppendUvarint(*p, n) }

// Int appends a number that may be negative.
func (p *Pack) Int(n int64) { *p = binary.AppendVarint(*p, n) }

// String appends a string.
func (p *Pack) String(s string) {
	p.Uint(uint64(len(s)))
	*p = append(*p, s...)
}

// Bytes appends bytes.
func (p *Pack) Bytes(b []byte) {
	p.Uint(uint64(len(b)))
	*p = append(*p, b...)
}

// farTime stands before the seconds and nanoseconds of a time that nanoseconds alone don't reach.
const (
	farTime = math.MinInt64
	second  = int64(time.Second)
)

// Time appends a time: its nanoseconds since 1970, if they fit.
func (p *Pack) Time(t time.Time) {
	if sec := t.Unix(); sec > math.MinInt64/second && sec < math.MaxInt64/second {
		p.Int(t.UnixNano())
		return
	}
	p.Int(farTime)
	p.Int(t.Unix())
	p.Int(int64(t.Nanosecond()))
}

// Info appends what is known of a file.
func (p *Pack) Info(i FileInfo) {
	p.String(i.Name)
	p.Uint(uint64(i.Mode))
	p.Int(i.Size)
	p.Time(i.Mtime)
	p.Time(i.Atime)
	p.Uint(uint64(i.UID))
	p.Uint(uint64(i.GID))
	p.Uint(i.Nlink)
	p.Uint(i.Dev)
	p.Uint(i.Ino)
}

// Stat appends what is known of a file, with its ctime.
func (p *Pack) Stat(i FileInfo) {
	p.Info(i)
	p.Time(i.Ctime)
}

// ErrFrame says that a message is not what its kind must be.
var ErrFrame = errors.New("malformed message")

// Unpack takes a message apart in the order Pack put it together. What is missing
// reads as zero; Err tells.
type Unpack struct {
	rest []byte
	bad  bool
}

// NewUnpack reads b, which it keeps.
func NewUnpack(b []byte) *Unpack { return &Unpack{rest: b} }

// Err is ErrFrame when something was missing or out of range.
func (u *Unpack) Err() error {
	if u.bad {
		return ErrFrame
	}
	return nil
}

// More says whether something is left.
func (u *Unpack) More() bool { return !u.bad && len(u.rest) > 0 }

func (u *Unpack) fail() {
	u.bad = true
	u.rest = nil
}

// Uint takes a number.
func (u *Unpack) Uint() uint64 {
	n, size := binary.Uvarint(u.rest)
	if size <= 0 {
		u.fail()
		return 0
	}
	u.rest = u.rest[size:]
	return n
}

// uint32 takes a number of 32 bits.
func (u *Unpack) uint32() uint32 {
	n := u.Uint()
	if n > 1<<32-1 {
		u.fail()
		return 0
	}
	return uint32(n)
}

// Int takes a number that may be negative.
func (u *Unpack) Int() int64 {
	n, size := binary.Varint(u.rest)
	if size <= 0 {
		u.fail()
		return 0
	}
	u.rest = u.rest[size:]
	return n
}

// Bytes takes bytes, which stay part of the message.
func (u *Unpack) Bytes() []byte {
	n := u.Uint()
	if n > uint64(len(u.rest)) {
		u.fail()
		return nil
	}
	b := u.rest[:n:n]
	u.rest = u.rest[n:]
	return b
}

// String takes a string.
func (u *Unpack) String() string { return string(u.Bytes()) }

// Time takes a time.
func (u *Unpack) Time() time.Time {
	if ns := u.Int(); ns != farTime {
		return time.Unix(0, ns)
	}
	sec, ns := u.Int(), u.Int()
	return time.Unix(sec, ns)
}

// Info takes what is known of a file.
func (u *Unpack) Info() FileInfo {
	i := FileInfo{
		Name: u.String(), Mode: u.uint32(), Size: u.Int(), Mtime: u.Time(), Atime: u.Time(),
		UID: u.uint32(), GID: u.uint32(), Nlink: u.Uint(), Dev: u.Uint(), Ino: u.Uint(),
	}
	if i.Size < 0 {
		u.fail()
	}
	return i
}

// Stat takes what is known of a file, with its ctime if the guest's version has that.
func (u *Unpack) Stat() FileInfo {
	i := u.Info()
	if u.More() {
		i.Ctime = u.Time()
	}
	return i
}

// ReadFrame reads one frame. The message is the caller's.
func ReadFrame(r io.Reader) (id uint32, kind byte, message []byte, err error) {
	var head [FileHeader]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, 0, nil, err
	}
	size := binary.BigEndian.Uint32(head[:])
	if size < FileHeader-4 || size > maxFileFrame {
		return 0, 0, nil, ErrFrame
	}
	message = make([]byte, size-(FileHeader-4))
	if _, err := io.ReadFull(r, message); err != nil {
		return 0, 0, nil, io.ErrUnexpectedEOF
	}
	return binary.BigEndian.Uint32(head[4:]), head[8], message, nil
}

// Unpacked is what unpack says in the end.
type Unpacked struct {
	Files, Dirs, Bytes, More int64
	Skipped                  []Skipped
	// Failed says that it failed, with what follows.
	Failed     bool
	Path, Text string
	Errno      uint32
}

// Skipped is what was not kept of a file, and why.
type Skipped struct{ Path, Reason string }

// MaxUnpacked bounds a Unpacked on its way, in bytes, and MaxSkipped the list in it.
const (
	MaxUnpacked = 16 << 20
	MaxSkipped  = 1000
)

// Pack appends all of c.
func (c *Unpacked) Pack(p *Pack) {
	for _, n := range [...]int64{c.Files, c.Dirs, c.Bytes, c.More} {
		p.Int(n)
	}
	failed := uint64(0)
	if c.Failed {
		failed = 1
	}
	p.Uint(failed)
	p.String(c.Path)
	p.String(c.Text)
	p.Uint(uint64(c.Errno))
	for _, s := range c.Skipped {
		p.String(s.Path)
		p.String(s.Reason)
	}
}

// ReadUnpacked reads what Pack wrote.
func ReadUnpacked(b []byte) (c Unpacked, err error) {
	u := NewUnpack(b)
	c.Files, c.Dirs, c.Bytes, c.More = u.Int(), u.Int(), u.Int(), u.Int()
	c.Failed = u.Uint() != 0
	c.Path, c.Text, c.Errno = u.String(), u.String(), u.uint32()
	for u.More() && len(c.Skipped) < MaxSkipped {
		c.Skipped = append(c.Skipped, Skipped{u.String(), u.String()})
	}
	if c.Files < 0 || c.Dirs < 0 || c.Bytes < 0 || c.More < 0 || c.Errno > 4095 || u.More() {
		u.fail()
	}
	return c, u.Err()
}
