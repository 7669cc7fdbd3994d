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

// listening looks for the port in the kernel's tables.
func listening(port uint16) (found bool, err error) {
	return proc.FindTCP(proc.TCPListen, func(local, _ netip.AddrPort) bool { return local.Port() == port })
}
