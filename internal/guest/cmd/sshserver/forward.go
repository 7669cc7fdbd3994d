//go:build linux

package sshserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

const (
	// dialTimeout bounds a dial whose client sets no deadline.
	dialTimeout = 2 * time.Minute
	// lingerTime is for data that is unsent when the client closes.
	lingerTime = 10 * time.Second
	// maxForwards bounds the connections of one server.
	maxForwards = 4096
)

// forwards counts the connections of this process.
var forwards atomic.Int64

// dial connects the client to the address in its request.
func (s *server) dial(nc ssh.NewChannel) {
	var req wire.Dial
	if err := json.Unmarshal(nc.ExtraData(), &req); err != nil {
		rejectDial(nc, &wire.DialError{Kind: wire.DialMalformed, Message: fmt.Sprintf("malformed request: %v", err)})
		return
	}
	s.connect(nc, req, true)
}

// direct is dial for OpenSSH: ssh -L, -W and -D.
func (s *server) direct(nc ssh.NewChannel) {
	req, err := decodeDirect(nc.ChannelType(), nc.ExtraData())
	if err != nil {
		nc.Reject(ssh.ConnectionFailed, err.Error())
		return
	}
	s.connect(nc, req, false)
}

// Channel types of RFC 4254 and of OpenSSH.
const (
	channelDirectTCP  = "direct-tcpip"
	channelDirectUnix = "direct-streamlocal@openssh.com"
)

func decodeDirect(kind string, extra []byte) (wire.Dial, error) {
	if kind == channelDirectUnix {
		var msg struct {
			Path      string
			Reserved  string
			Reserved2 uint32
		}
		if err := ssh.Unmarshal(extra, &msg); err != nil {
			return wire.Dial{}, errors.New("malformed request")
		}
		return wire.Dial{Network: "unix", Address: msg.Path}, nil
	}
	var msg struct {
		Host       string
		Port       uint32
		Origin     string
		OriginPort uint32
	}
	if err := ssh.Unmarshal(extra, &msg); err != nil || msg.Port > 65535 {
		return wire.Dial{}, errors.New("malformed request")
	}
	return wire.Dial{Network: "tcp", Address: net.JoinHostPort(msg.Host, strconv.Itoa(int(msg.Port)))}, nil
}

// connect dials before it accepts, so that a client has its answer in one round trip. A
// client of this module (ours) also gets the addresses and the reason of a failure.
func (s *server) connect(nc ssh.NewChannel, req wire.Dial, ours bool) {
	refused := checkDial(req)
	if refused == nil && forwards.Add(1) > maxForwards {
		forwards.Add(-1)
		refused = &wire.DialError{Kind: wire.DialOther, Message: fmt.Sprintf("%d connections are open", maxForwards)}
	}
	if refused != nil {
		rejectDial(nc, refused)
		return
	}
	defer forwards.Add(-1)
	s.use.begin()
	defer s.use.end()
	ctx, cancel := context.WithTimeout(context.Background(), dialTimeout)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, req.Network, req.Address)
	if err != nil {
		if refused = dialError(err); !ours {
			nc.Reject(ssh.ConnectionFailed, refused.Message)
			return
		}
		rejectDial(nc, refused)
		return
	}
	defer conn.Close()
	ch, reqs, err := nc.Accept()
	if err != nil {
		return
	}
	f := &forward{ch: ch, conn: conn.(halfCloser), ours: ours}
	if ours {
		sendRequest(ch, wire.RequestDialed, wire.Dialed{Local: conn.LocalAddr().String(), Remote: conn.RemoteAddr().String()})
	}
	f.run(reqs)
}

func checkDial(req wire.Dial) *wire.DialError {
	switch req.Network {
	case "tcp", "tcp4", "tcp6":
		return nil
	case "unix":
		if req.Address != "" {
			return nil
		}
		return &wire.DialError{Kind: wire.DialMalformed, Message: "the socket has no path"}
	}
	return &wire.DialError{Kind: wire.DialMalformed, Message: fmt.Sprintf("unknown network %q", req.Network)}
}

func rejectDial(nc ssh.NewChannel, why *wire.DialError) {
	text, _ := json.Marshal(why)
	nc.Reject(ssh.ConnectionFailed, string(text))
}

var dialKinds = map[unix.Errno]string{
	unix.ECONNREFUSED:  wire.DialRefused,
	unix.ECONNRESET:    wire.DialReset,
	unix.EPIPE:         wire.DialReset,
	unix.ETIMEDOUT:     wire.DialTimeout,
	unix.EHOSTUNREACH:  wire.DialNoHost,
	unix.ENETUNREACH:   wire.DialNoNetwork,
	unix.EADDRNOTAVAIL: wire.DialNoAddress,
	unix.ENOENT:        wire.DialNotFound,
	unix.EACCES:        wire.DialPermission,
	unix.EPERM:         wire.DialPermission,
}

// dialError turns an error of package net into a kind that is the same on every system.
func dialError(err error) *wire.DialError {
	e := &wire.DialError{Kind: wire.DialOther, Message: err.Error()}
	var errno unix.Errno
	var dns *net.DNSError
	var address *net.AddrError
	switch {
	case errors.As(err, &errno):
		e.Message = errno.Error()
		if kind, ok := dialKinds[errno]; ok {
			e.Kind = kind
		}
	case errors.As(err, &dns):
		e.Message, e.Name, e.Kind = dns.Error(), dns.Name, wire.DialUnknownName
		if dns.IsTimeout {
			e.Kind = wire.DialTimeout
		}
	case errors.As(err, &address):
		e.Kind = wire.DialMalformed
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		e.Kind = wire.DialTimeout
	}
	return e
}

// halfCloser is a connection whose directions end one by one.
type halfCloser interface {
	net.Conn
	CloseWrite() error
}

// forward copies between a channel and a connection inside.
type forward struct {
	ch   ssh.Channel
	conn halfCloser
	ours bool
}

// run returns when both directions have ended.
func (f *forward) run(reqs <-chan *ssh.Request) {
	defer f.ch.Close()
	in := make(chan struct{})
	go func() {
		defer close(in)
		f.copyIn()
	}()
	go func() {
		ssh.DiscardRequests(reqs)
		// The client closed the channel and reads no more; what it wrote before may
		// still be unsent.
		f.conn.SetReadDeadline(time.Unix(1, 0))
		f.conn.SetWriteDeadline(time.Now().Add(lingerTime))
	}()
	f.copyOut()
	<-in
}

// copyIn ends with the client's data. When the server inside stops reading, what it sends
// is still copied, and copyOut reports how it ended.
func (f *forward) copyIn() {
	buf := forwardBuffers.Get().(*[forwardSize]byte)
	defer forwardBuffers.Put(buf)
	if _, err := io.CopyBuffer(struct{ io.Writer }{f.conn}, struct{ io.Reader }{f.ch}, buf[:]); err == nil {
		f.conn.CloseWrite()
	}
}

func (f *forward) copyOut() {
	buf := forwardBuffers.Get().(*[forwardSize]byte)
	defer forwardBuffers.Put(buf)
	for {
		n, err := f.conn.Read(buf[:wire.PacketData])
		if n > 0 {
			if _, err := f.ch.Write(buf[:n]); err != nil {
				return // the client is gone
			}
		}
		switch {
		case err == nil:
		case errors.Is(err, io.EOF):
			f.reportEnd("")
			f.ch.CloseWrite()
			return
		default:
			f.reportEnd(dialError(err).Kind)
			f.ch.Close()
			return
		}
	}
}

func (f *forward) reportEnd(kind string) {
	if f.ours {
		sendRequest(f.ch, wire.RequestDialEnd, wire.DialEnd{Kind: kind})
	}
}
