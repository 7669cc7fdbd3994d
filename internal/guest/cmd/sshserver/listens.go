//go:build linux

package sshserver

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/cmd/proc"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
	"github.com/seed-1a2d6d8f/sandbox/internal/policy"
)

// serveListens answers whether anything listens on a TCP port, by the kernel's tables: some
// servers would take a connection for the only one that they wait for.
func serveListens(nc ssh.NewChannel) {
	var req wire.Listens
	if err := json.Unmarshal(nc.ExtraData(), &req); err != nil || req.Port == 0 {
		rejectDial(nc, &wire.DialError{Kind: wire.DialMalformed, Message: "malformed request"})
		return
	}
	if open, err := listening(req.Port); err != nil {
		// There is no such table here: connect after all.
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", net.JoinHostPort("localhost", strconv.Itoa(int(req.Port))))
		if err != nil {
			rejectDial(nc, dialError(err))
			return
		}
		conn.Close()
	} else if !open {
		rejectDial(nc, &wire.DialError{Kind: wire.DialRefused, Message: fmt.Sprintf("nothing listens on port %d", req.Port)})
		return
	}
	if ch, reqs, err := nc.Accept(); err == nil {
		go ssh.DiscardRequests(reqs)
		ch.Close()
	}
}

// listening looks for the port in the kernel's tables. PID 1's own listeners do not count.
func listening(port uint16) (found bool, err error) {
	return proc.FindTCP(proc.TCPListen, func(local, _ netip.AddrPort) bool {
		own := port == policy.ProxyPort || port == policy.DNSPort
		return local.Port() == port && !(own && (local.Addr() == netip.AddrFrom4([4]byte{127, 0, 0, 1}) || local.Addr() == netip.IPv6Loopback()))
	})
}
