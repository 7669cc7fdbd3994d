//go:build linux

package sshserver

import (
	"net"
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

func FuzzDecodeDirect(f *testing.F) {
	f.Add(true, ssh.Marshal(struct {
		Host       string
		Port       uint32
		Origin     string
		OriginPort uint32
	}{"::1", 3000, "127.0.0.1", 50000}))
	f.Add(false, ssh.Marshal(struct {
		Path, Reserved string
		Reserved2      uint32
	}{"/run/x.sock", "", 0}))
	f.Add(true, []byte{0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, tcp bool, extra []byte) {
		kind, network := channelDirectUnix, "unix"
		if tcp {
			kind, network = channelDirectTCP, "tcp"
		}
		req, err := decodeDirect(kind, extra)
		if err != nil {
			return
		}
		if req.Network != network {
			t.Errorf("%s: network %q", kind, req.Network)
		}
		if _, _, err := net.SplitHostPort(req.Address); tcp && err != nil && !strings.ContainsAny(req.Address, "[]") {
			t.Errorf("address %q: %v", req.Address, err)
		}
	})
}

func FuzzSessionRequests(f *testing.F) {
	f.Add("pty-req", ssh.Marshal(struct {
		Term                      string
		Cols, Rows, Width, Height uint32
		Modes                     string
	}{"xterm", 1 << 31, 24, 0, 0, "\x01\x00\x00\x00\x03\x00"}))
	f.Add("env", ssh.Marshal(struct{ Name, Value string }{"A", "b"}))
	f.Add("env", ssh.Marshal(struct{ Name, Value string }{"A=B\x00", "b"}))
	f.Add("env", ssh.Marshal(struct{ Name, Value string }{"A\nB", "b"}))
	f.Add("env", ssh.Marshal(struct{ Name, Value string }{"A=B", "c"}))
	f.Add("window-change", make([]byte, 16))
	f.Add("signal", ssh.Marshal(struct{ Text string }{"TERM"}))
	f.Add("subsystem", ssh.Marshal(struct{ Text string }{"netconf"}))
	f.Fuzz(func(t *testing.T, kind string, payload []byte) {
		if kind == "shell" || kind == "exec" || kind == "subsystem" && string(payload[min(4, len(payload)):]) == wire.VerbSFTP {
			return // these start something
		}
		v := &sshSession{server: &server{}}
		_, then := v.request(kind, payload)
		if then != nil || v.cmd != nil {
			t.Errorf("%s started something", kind)
		}
		for _, kv := range v.env {
			if name, _, ok := strings.Cut(kv, "="); !ok || name == "" || strings.ContainsAny(name, "\r\n") || strings.IndexByte(kv, 0) >= 0 {
				t.Errorf("environment %q", kv)
			}
		}
		if v.tty != nil && strings.IndexByte(v.tty.term, 0) >= 0 {
			t.Errorf("terminal %q", v.tty.term)
		}
	})
}
