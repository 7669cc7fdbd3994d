//go:build linux

package sftpserver

import (
	"encoding/binary"
	"errors"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Types of packets (draft-ietf-secsh-filexfer-02).
const (
	typeInit     = 1
	typeVersion  = 2
	typeOpen     = 3
	typeClose    = 4
	typeRead     = 5
	typeWrite    = 6
	typeLstat    = 7
	typeFstat    = 8
	typeSetstat  = 9
	typeFsetstat = 10
	typeOpendir  = 11
	typeReaddir  = 12
	typeRemove   = 13
	typeMkdir    = 14
	typeRmdir    = 15
	typeRealpath = 16
	typeStat     = 17
	typeRename   = 18
	typeReadlink = 19
	typeSymlink  = 20

	typeStatus        = 101
	typeHandle        = 102
	typeData          = 103
	typeName          = 104
	typeAttrs         = 105
	typeExtended      = 200
	typeExtendedReply = 201
)

// Flags of an open request.
const (
	openRead = 1 << iota
	openWrite
	openAppend
	openCreate
	openTruncate
	openExclusive
)

// Flags of attributes: which of them there are.
const (
	attrSize     = 1 << 0
	attrOwner    = 1 << 1
	attrPerm     = 1 << 2
	attrTimes    = 1 << 3
	attrExtended = 1 << 31
)

const (
	version   = 3
	maxPacket = 256 << 10
	maxData   = maxPacket - 1024 // of a read or a write
)

// status is the code of a reply that tells success or an error. It is an error itself.
type status uint32

const (
	statusOK status = iota
	statusEOF
	statusNoFile
	statusDenied
	statusFailure
	statusBadMessage
	_ // no connection
	_ // connection lost
	statusUnsupported
)

var statusTexts = [...]string{
	"Success", "End of file", "No such file", "Permission denied", "Failure", "Bad message", "No connection", "Connection lost",
	"Operation unsupported",
}

func (s status) Error() string { return statusTexts[s] }

// A refusal is a status with a text of its own.
type refusal struct {
	status
	text string
}

func (r refusal) Error() string { return r.text }

func (r refusal) Unwrap() error { return r.status }

// statusOf is the code for an error.
func statusOf(err error) status {
	if s, ok := errors.AsType[status](err); ok {
		return s
	}
	errno, _ := errors.AsType[syscall.Errno](err)
	switch errno {
	case unix.ENOENT, unix.ENOTDIR, unix.EBADF, unix.ELOOP:
		return statusNoFile
	case unix.EPERM, unix.EACCES, unix.EFAULT:
		return statusDenied
	case unix.ENAMETOOLONG, unix.EINVAL:
		return statusBadMessage
	case unix.ENOSYS:
		return statusUnsupported
	}
	return statusFailure
}

// errMalformed ends the session: what follows can't be read.
var errMalformed = errors.New("malformed request")

// unpack reads the fields of a request. After an error it returns zeros.
type unpack struct {
	rest []byte
	err  error
}

func (u *unpack) take(n int) []byte {
	if n > len(u.rest) {
		u.err, u.rest = errMalformed, nil
		return nil
	}
	field := u.rest[:n]
	u.rest = u.rest[n:]
	return field
}

func (u *unpack) uint32() uint32 {
	if b := u.take(4); b != nil {
		return binary.BigEndian.Uint32(b)
	}
	return 0
}

func (u *unpack) uint64() uint64 {
	if b := u.take(8); b != nil {
		return binary.BigEndian.Uint64(b)
	}
	return 0
}

// bytes returns a part of the request, which the next one overwrites.
func (u *unpack) bytes() []byte { return u.take(int(u.uint32())) }

// string reads a name or a path, which the kernel would take for a shorter one with a NUL in it.
func (u *unpack) string() string {
	s := string(u.bytes())
	if strings.IndexByte(s, 0) >= 0 {
		u.err = errMalformed
	}
	return s
}

// attributes are those of a file that a request sets.
type attributes struct {
	flags        uint32
	size         uint64
	uid, gid     uint32
	perm         uint32
	atime, mtime uint32
}

func (u *unpack) attributes() (a attributes) {
	a.flags = u.uint32()
	if a.flags&attrSize != 0 {
		a.size = u.uint64()
	}
	if a.flags&attrOwner != 0 {
		a.uid, a.gid = u.uint32(), u.uint32()
	}
	if a.flags&attrPerm != 0 {
		a.perm = u.uint32()
	}
	if a.flags&attrTimes != 0 {
		a.atime, a.mtime = u.uint32(), u.uint32()
	}
	if a.flags&attrExtended != 0 {
		for n := u.uint32(); n > 0 && u.err == nil; n-- {
			u.bytes()
			u.bytes()
		}
	}
	return a
}

// mode is the mode of a new file or directory.
func (a attributes) mode(usual uint32) uint32 {
	if a.flags&attrPerm != 0 {
		return a.perm & 0o7777
	}
	return usual
}

func (a attributes) times() []unix.Timespec {
	return []unix.Timespec{{Sec: int64(a.atime)}, {Sec: int64(a.mtime)}}
}

// pack builds a reply.
type pack []byte

func (p *pack) uint32(n uint32) { *p = binary.BigEndian.AppendUint32(*p, n) }

func (p *pack) uint64(n uint64) { *p = binary.BigEndian.AppendUint64(*p, n) }

func (p *pack) string(s string) {
	p.uint32(uint32(len(s)))
	*p = append(*p, s...)
}

func (p *pack) stat(st *unix.Stat_t) {
	p.uint32(attrSize | attrOwner | attrPerm | attrTimes)
	p.uint64(uint64(st.Size))
	p.uint32(st.Uid)
	p.uint32(st.Gid)
	p.uint32(st.Mode)
	p.uint32(uint32(st.Atim.Sec))
	p.uint32(uint32(st.Mtim.Sec))
}

// reply is what answers a request, without the request's number. Where there is none, and no error, the answer is success.
type reply struct {
	kind byte
	pack
}

func newReply(kind byte) *reply { return &reply{kind: kind} }

// nameReply is the reply with one name and nothing about its file.
func nameReply(name string) *reply {
	r := newReply(typeName)
	r.uint32(1)
	r.string(name)
	r.string(name)
	r.uint32(0)
	return r
}
