//go:build linux

package sftpserver

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// session is one client's. Its requests are carried out one after the other.
type session struct {
	out     *bufio.Writer
	last    uint32
	handles map[string]*handle
	data    []byte // of the latest read
}

// operation carries out a request, whose number has been read of it already.
type operation func(*session, *unpack) (*reply, error)

var operations = map[byte]operation{
	typeOpen:     (*session).open,
	typeClose:    (*session).close,
	typeRead:     (*session).read,
	typeWrite:    (*session).write,
	typeLstat:    statBy(unix.Lstat),
	typeStat:     statBy(unix.Stat),
	typeFstat:    (*session).fstat,
	typeSetstat:  setstat,
	typeFsetstat: (*session).fsetstat,
	typeOpendir:  (*session).opendir,
	typeReaddir:  (*session).readdir,
	typeRemove:   change(unix.Unlink),
	typeMkdir:    mkdir,
	typeRmdir:    change(unix.Rmdir),
	typeRealpath: realpath,
	typeRename:   changeTwo(rename),
	typeReadlink: readlink,
	typeSymlink:  changeTwo(unix.Symlink), // the target comes first, as OpenSSH has it, not the draft
	typeExtended: (*session).extended,
}

// Run serves requests on standard input, as whoever runs it, until it ends. Relative paths begin where the process was started.
func Run() error {
	s := &session{out: bufio.NewWriterSize(os.Stdout, 64<<10), handles: map[string]*handle{}, data: make([]byte, 4+maxData)}
	in := bufio.NewReaderSize(flushing{os.Stdin, s.out}, 64<<10)
	packet := make([]byte, maxPacket)
	for {
		var size [4]byte
		if _, err := io.ReadFull(in, size[:]); err != nil {
			if err == io.EOF {
				return nil
			}
			return err
		}
		n := binary.BigEndian.Uint32(size[:])
		if n == 0 || n > maxPacket {
			return fmt.Errorf("%w of %d bytes", errMalformed, n)
		}
		if _, err := io.ReadFull(in, packet[:n]); err != nil {
			return err
		}
		if err := s.serve(packet[0], &unpack{rest: packet[1:n]}); err != nil {
			return err
		}
	}
}

// flushing is an input that flushes the output before it may wait: replies to requests that have come together leave together.
type flushing struct {
	io.Reader
	out *bufio.Writer
}

func (f flushing) Read(b []byte) (int, error) {
	if err := f.out.Flush(); err != nil {
		return 0, err
	}
	return f.Reader.Read(b)
}

// serve carries out one request and replies. Its error ends the session.
func (s *session) serve(kind byte, u *unpack) error {
	if kind == typeInit {
		return s.send(greeting())
	}
	id := u.uint32()
	do, known := operations[kind]
	if !known {
		do = func(*session, *unpack) (*reply, error) { return nil, statusUnsupported }
	}
	r, err := do(s, u)
	if u.err != nil {
		return u.err
	}
	if r == nil || err != nil {
		r = statusReply(err)
	}
	return s.send(r.kind, binary.BigEndian.AppendUint32(nil, id), r.pack)
}

func statusReply(err error) *reply {
	code := statusOK
	if err != nil {
		code = statusOf(err)
	}
	text := code.Error()
	if own, ok := errors.AsType[refusal](err); ok {
		text = own.text
	}
	r := newReply(typeStatus)
	r.uint32(uint32(code))
	r.string(text)
	r.string("") // the language
	return r
}

func (s *session) send(kind byte, parts ...[]byte) error {
	size := 1
	for _, p := range parts {
		size += len(p)
	}
	s.out.Write(append(binary.BigEndian.AppendUint32(nil, uint32(size)), kind))
	var err error
	for _, p := range parts {
		_, err = s.out.Write(p)
	}
	return err
}

// greeting is the reply to the first packet: the version and the extensions.
func greeting() (byte, []byte) {
	var p pack
	p.uint32(version)
	for _, name := range slices.Sorted(maps.Keys(extensions)) {
		p.string(name)
		p.string(extensions[name].version)
	}
	return typeVersion, p
}
