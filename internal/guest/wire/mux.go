package wire

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"sync"

	"golang.org/x/crypto/ssh"
)

// Greeting is the first line of the guest's server. Before it there may be messages of others,
// such as the OCI runtime.
const (
	Greeting       = GreetingPrefix + "1\n"
	GreetingPrefix = "agent-sandbox-guest "
)

// A connection to the guest has the channels and requests of SSH, with their flow control, and
// none of its encryption: the stream is that of an exec, which belongs to whoever starts it,
// so neither side has a key that the other knows. It takes no round trip to set up.
//
// Package ssh has such connections for the control socket of OpenSSH ("proxy mode"), where
// the far side is a server. The near side and the far one are the same after the first two
// packets, which do not get on the stream here: each side reads the answers that it expects.

// ClientConn connects to the guest's server at the other end of conn, once that has sent its
// greeting. It fails if too much comes before the greeting.
func ClientConn(conn net.Conn) (ssh.Conn, <-chan ssh.NewChannel, <-chan *ssh.Request, error) {
	out := newBacklog(conn)
	r := bufio.NewReaderSize(out, clientBuffer)
	for before := 0; ; {
		line, err := r.ReadSlice('\n')
		if string(line) == Greeting {
			sc, chans, reqs, err := mux(out, r)
			if err != nil {
				return nil, nil, nil, err
			}
			return &clientConn{sc, out}, chans, reqs, nil
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return nil, nil, nil, err
		}
		if before += len(line); before > maxBeforeGreeting {
			return nil, nil, nil, fmt.Errorf("no greeting in the first %d bytes", before)
		}
	}
}

// ServerConn greets the client at the other end of conn.
func ServerConn(conn net.Conn) (ssh.Conn, <-chan ssh.NewChannel, <-chan *ssh.Request, error) {
	if _, err := io.WriteString(conn, Greeting); err != nil {
		return nil, nil, nil, err
	}
	return mux(conn, bufio.NewReaderSize(conn, serverBuffer))
}

const (
	clientBuffer      = 512      // for the headers of packets: an exec's stream has a buffer of its own
	serverBuffer      = 64 << 10 // what a pipe holds: it takes one read
	maxBeforeGreeting = 64 << 10
)

// PacketData is the most data of a packet that takes 32 KiB with its headers: eight pages of a pipe, and the
// buffer with which the engine reads. A write on a channel should have no more.
const PacketData = 32<<10 - 14

func mux(conn net.Conn, r *bufio.Reader) (ssh.Conn, <-chan ssh.NewChannel, <-chan *ssh.Request, error) {
	return ssh.NewControlClientConn(&packets{Conn: conn, r: r, answers: bytes.NewReader([]byte{
		0, 0, 0, 8, 0, 0, 0, 1, 0, 0, 0, 4, // hello, version 4
		0, 0, 0, 8, 0x80, 0, 0, 0xf, 0, 0, 0, 0, // request 0, for proxy mode, is granted
	}), requests: 2, owed: map[uint32]uint32{}})
}

// packets is a stream of packets. Those that are written while others are take one call together.
type packets struct {
	net.Conn
	r       *bufio.Reader
	answers *bytes.Reader // to requests, which are not sent
	left    int           // bytes of the packet that is being read

	writing sync.Mutex // held while something is written

	mu       sync.Mutex // of what follows: package ssh writes from any goroutine
	requests int
	owed     map[uint32]uint32 // by channel of the other side: window that was read and is not reported yet
	next     *batch            // not written yet, nil without one
	spare    []byte
}

// batch is packets that are written together, by whoever wrote the first of them.
type batch struct {
	packets []byte
	written chan struct{} // closed once err is set; nil if there is one packet
	err     error
}

// minPacket is the length of what follows a packet's length: at least the length of its padding,
// and its type, without which package ssh panics.
const minPacket = 2

func (p *packets) Read(b []byte) (int, error) {
	if p.answers.Len() > 0 {
		return p.answers.Read(b)
	}
	if p.left == 0 {
		length, err := p.r.Peek(4)
		if err != nil {
			return 0, err
		}
		n := binary.BigEndian.Uint32(length)
		if n < minPacket || n > maxPacket {
			return 0, fmt.Errorf("a packet of %d bytes", n)
		}
		p.left = 4 + int(n)
	}
	n, err := p.r.Read(b[:min(len(b), p.left)])
	p.left -= n
	return n, err
}

// maxPacket is package ssh's.
const maxPacket = 256 << 10

// alone is the size from which a packet is not copied for a batch: half of the buffer with which the engine
// reads.
const alone = 16 << 10

// Write writes a packet, and returns when the kernel has it. Each write on an exec's stream wakes up a chain of
// processes, which costs more than the bytes of a small packet.
func (p *packets) Write(b []byte) (int, error) {
	if p.skip(b) {
		return len(b), nil
	}
	if len(b) >= alone {
		p.writing.Lock()
		defer p.writing.Unlock()
		return p.Conn.Write(b)
	}
	if err := p.write(b); err != nil {
		return 0, err
	}
	return len(b), nil
}

// skip reports whether a packet is not to be sent.
func (p *packets) skip(b []byte) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.requests > 0 {
		p.requests--
		return true
	}
	return len(b) >= closeSize && !p.due(b)
}

// write writes a packet in the next batch.
func (p *packets) write(b []byte) error {
	p.mu.Lock()
	if one := p.next; one != nil {
		one.packets = append(one.packets, b...)
		if one.written == nil {
			one.written = make(chan struct{})
		}
		p.mu.Unlock()
		<-one.written
		return one.err
	}
	one := &batch{packets: append(p.spare, b...)}
	p.next, p.spare = one, nil
	p.mu.Unlock()

	runtime.Gosched() // to those who are about to write, too
	p.writing.Lock()
	p.mu.Lock()
	p.next = nil
	p.mu.Unlock()
	_, one.err = p.Conn.Write(one.packets)
	p.writing.Unlock()

	p.mu.Lock()
	defer p.mu.Unlock()
	if cap(one.packets) <= alone {
		p.spare = one.packets[:0]
	}
	if one.written != nil {
		close(one.written)
	}
	return one.err
}

// Packets of SSH: a type, the channel of the other side, and for windowAdjust bytes to add.
const (
	windowAdjust = 93
	channelClose = 97
	closeSize    = 4 + 1 + 1 + 4
	adjustSize   = closeSize + 4
)

// windowStep is how much of a channel's window, an eighth, is given back at a time. Package ssh does so after
// each read of a fast stream, and each time costs as much as a small command.
const windowStep = 256 << 10

// due reports whether a packet is to be sent now. It adds what is owed to one that gives back a part of a window.
func (p *packets) due(b []byte) bool {
	channel := binary.BigEndian.Uint32(b[6:])
	switch {
	case b[5] == channelClose:
		delete(p.owed, channel)
	case b[5] == windowAdjust && len(b) == adjustSize:
		n := p.owed[channel] + binary.BigEndian.Uint32(b[closeSize:])
		if n < windowStep {
			p.owed[channel] = n
			return false
		}
		delete(p.owed, channel)
		binary.BigEndian.PutUint32(b[closeSize:], n)
	}
	return true
}
