//go:build linux

package sshserver

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"

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

// listening looks for the port in the tables of both families. A machine without IPv6 has
// only one.
func listening(port uint16) (found bool, err error) {
	read := false
	for _, table := range [...]string{"/proc/net/tcp", "/proc/net/tcp6"} {
		f, e := os.Open(table)
		if e != nil {
			err = e
			continue
		}
		read = true
		found = findListener(f, port)
		f.Close()
		if found {
			return true, nil
		}
	}
	if read {
		err = nil
	}
	return false, err
}

// findListener reads a table as /proc/net/tcp has it: a heading, then lines of
// "sl local_address rem_address st …", numbers in hexadecimal, 0A for LISTEN.
func findListener(table io.Reader, port uint16) bool {
	const stateListen = "0A"
	want := fmt.Sprintf("%04X", port)
	sc := bufio.NewScanner(table)
	for sc.Scan() {
		f := strings.Fields(sc.Text())
		if len(f) < 4 || f[3] != stateListen {
			continue
		}
		if _, p, ok := strings.Cut(f[1], ":"); ok && p == want {
			return true
		}
	}
	return false
}
