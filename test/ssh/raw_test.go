package ssh_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
)

// Packet types of SFTP version 3 (draft-ietf-secsh-filexfer-02).
const (
	fxInit = 1 + iota
	fxVersion
	fxOpen
	fxClose
	fxRead
	fxWrite
	fxLstat
	fxFstat
	fxSetstat
	fxFsetstat
	fxOpendir
	fxReaddir
	fxRemove
	fxMkdir
	fxRmdir
	fxRealpath
	fxStat
	fxRename
	fxReadlink
	fxSymlink
)

const (
	fxStatus = 101 + iota
	fxHandle
	fxData
	fxName
	fxAttrs
	fxExtended      = 200
	fxExtendedReply = 201
)

// packet is the rest of a request, after its number.
type packet struct{ bytes.Buffer }

func (p *packet) u32(n uint32) *packet {
	p.Write(binary.BigEndian.AppendUint32(nil, n))
	return p
}

func (p *packet) u64(n uint64) *packet {
	p.Write(binary.BigEndian.AppendUint64(nil, n))
	return p
}

func (p *packet) text(s string) *packet {
	p.u32(uint32(len(s)))
	p.WriteString(s)
	return p
}

// timeOfDay is how the line about a file says that it is recent.
var timeOfDay = regexp.MustCompile(`[A-Z][a-z][a-z] [ \d]\d \d\d:\d\d`)

// attrs are the attributes of a file in a request or a reply.
type attrs struct {
	flags          uint32
	size           uint64
	uid, gid, perm uint32
	atime, mtime   uint32
}

const (
	hasSize = 1 << iota
	hasIDs
	hasPerm
	hasTimes
)

func (p *packet) attrs(a attrs) *packet {
	p.u32(a.flags)
	if a.flags&hasSize != 0 {
		p.u64(a.size)
	}
	if a.flags&hasIDs != 0 {
		p.u32(a.uid).u32(a.gid)
	}
	if a.flags&hasPerm != 0 {
		p.u32(a.perm)
	}
	if a.flags&hasTimes != 0 {
		p.u32(a.atime).u32(a.mtime)
	}
	return p
}

// rawSFTP is a client that shows replies as they are.
type rawSFTP struct {
	t      *testing.T
	name   string
	in     io.WriteCloser
	out    io.Reader
	last   uint32
	vague  time.Time // times later than this are the test's own
	opened map[string]string
}

func newRawSFTP(t *testing.T, name string, client *ssh.Client) *rawSFTP {
	t.Helper()
	session, err := client.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { session.Close() })
	r := &rawSFTP{t: t, name: name, vague: time.Now().Add(-24 * time.Hour), opened: map[string]string{}}
	if r.in, err = session.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if r.out, err = session.StdoutPipe(); err != nil {
		t.Fatal(err)
	}
	if err := session.RequestSubsystem("sftp"); err != nil {
		t.Fatalf("%s: sftp: %v", name, err)
	}
	return r
}

// send sends a packet, and returns the next one.
func (r *rawSFTP) send(kind byte, body []byte) (byte, []byte) {
	r.t.Helper()
	msg := binary.BigEndian.AppendUint32(nil, uint32(len(body)+1))
	if _, err := r.in.Write(append(append(msg, kind), body...)); err != nil {
		r.t.Fatalf("%s: request %d: %v", r.name, kind, err)
	}
	return r.receive()
}

func (r *rawSFTP) receive() (byte, []byte) {
	r.t.Helper()
	var size [4]byte
	if _, err := io.ReadFull(r.out, size[:]); err != nil {
		r.t.Fatalf("%s: no reply: %v", r.name, err)
	}
	reply := make([]byte, binary.BigEndian.Uint32(size[:]))
	if _, err := io.ReadFull(r.out, reply); err != nil {
		r.t.Fatalf("%s: half a reply: %v", r.name, err)
	}
	return reply[0], reply[1:]
}

// begin returns the extensions that the server has.
func (r *rawSFTP) begin() map[string]string {
	r.t.Helper()
	kind, body := r.send(fxInit, binary.BigEndian.AppendUint32(nil, 3))
	u := unpack{body}
	if version := u.u32(); kind != fxVersion || version != 3 {
		r.t.Fatalf("%s: version %d by packet %d", r.name, version, kind)
	}
	extensions := map[string]string{}
	for len(u.b) > 0 {
		name := u.text()
		extensions[name] = u.text()
	}
	return extensions
}

// request sends a request, and returns the reply as text.
func (r *rawSFTP) request(kind byte, p *packet) string {
	r.t.Helper()
	got, u := r.reply(kind, p)
	return r.describe(got, u)
}

func (r *rawSFTP) reply(kind byte, p *packet) (byte, unpack) {
	r.t.Helper()
	r.last++
	got, body := r.send(kind, append(binary.BigEndian.AppendUint32(nil, r.last), p.Bytes()...))
	u := unpack{body}
	if id := u.u32(); id != r.last {
		r.t.Fatalf("%s: reply to %d, want %d", r.name, id, r.last)
	}
	return got, u
}

// open keeps a handle by a name of the caller's.
func (r *rawSFTP) open(as string, kind byte, p *packet) string {
	r.t.Helper()
	got, u := r.reply(kind, p)
	if got != fxHandle {
		return r.describe(got, u)
	}
	r.opened[as] = u.text()
	return "handle"
}

func (r *rawSFTP) describe(kind byte, u unpack) string {
	switch kind {
	case fxStatus:
		code := u.u32()
		return fmt.Sprintf("status %d %q", code, u.text())
	case fxHandle:
		return "handle"
	case fxData:
		return fmt.Sprintf("data %q", u.text())
	case fxAttrs:
		return "attrs " + r.attributes(&u)
	case fxName:
		var names []string
		for n := u.u32(); n > 0; n-- {
			name, long := u.text(), u.text()
			names = append(names, fmt.Sprintf("%q %q %s", name, timeOfDay.ReplaceAllString(long, "now"), r.attributes(&u)))
		}
		return "names " + strings.Join(names, "\n")
	case fxExtendedReply:
		return fmt.Sprintf("extended %q", u.b)
	}
	return fmt.Sprintf("packet %d: %q", kind, u.b)
}

func (r *rawSFTP) attributes(u *unpack) string {
	flags := u.u32()
	text := fmt.Sprintf("%x", flags)
	directory := false
	var size uint64
	if flags&hasSize != 0 {
		size = u.u64()
	}
	if flags&hasIDs != 0 {
		text += fmt.Sprintf(" %d:%d", u.u32(), u.u32())
	}
	if flags&hasPerm != 0 {
		perm := u.u32()
		text += fmt.Sprintf(" %o", perm)
		directory = perm&0o170000 == 0o040000
	}
	if flags&hasSize != 0 && !directory {
		text += fmt.Sprintf(" %d bytes", size)
	}
	if flags&hasTimes != 0 {
		for range 2 {
			if at := u.u32(); int64(at) > r.vague.Unix() && int64(at) < r.vague.Add(48*time.Hour).Unix() {
				text += " now"
			} else {
				text += fmt.Sprintf(" %d", at)
			}
		}
	}
	return text
}

// unpack reads a reply.
type unpack struct{ b []byte }

func (u *unpack) u32() uint32 {
	if len(u.b) < 4 {
		u.b = nil
		return 0
	}
	n := binary.BigEndian.Uint32(u.b)
	u.b = u.b[4:]
	return n
}

func (u *unpack) u64() uint64 {
	high := uint64(u.u32())
	return high<<32 | uint64(u.u32())
}

func (u *unpack) text() string {
	n := min(int(u.u32()), len(u.b))
	s := string(u.b[:n])
	u.b = u.b[n:]
	return s
}

func sortedLines(lines []string) string {
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}
