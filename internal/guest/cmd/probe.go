//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// runProbe prints what a helper sees of the engine's network.
func runProbe() error {
	var p wire.Probe
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return err
	}
	for _, a := range addrs {
		if f, err := netip.ParsePrefix(a.String()); err == nil && !f.Addr().IsLoopback() {
			p.Addresses = append(p.Addresses, f.Addr().Unmap().WithZone(""))
		}
	}
	if text, err := os.ReadFile("/etc/resolv.conf"); err == nil {
		p.Servers = nameservers(string(text))
	} else if !os.IsNotExist(err) {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(p)
}

// runTry prints whether the kernel can put a policy in force, which it does for this
// container alone, and whether files in a directory can share blocks.
func runTry(args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("%s takes a directory", wire.VerbTry)
	}
	var a wire.Abilities
	all := ruleset{mark: 1, ports: []uint16{1}, dns: true, proxy: true, log: true}
	if err := all.install(); err != nil {
		a.Policy = err.Error()
	}
	if err := reflink(args[0]); err != nil {
		a.Reflink = err.Error()
	}
	return json.NewEncoder(os.Stdout).Encode(a)
}

// reflink clones a file in dir that has no name.
func reflink(dir string) error {
	var files [2]*os.File
	for i := range files {
		fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
		if err != nil {
			return &os.PathError{Op: "make a file", Path: dir, Err: err}
		}
		files[i] = os.NewFile(uintptr(fd), dir)
		defer files[i].Close()
	}
	if _, err := files[0].Write(make([]byte, 64<<10)); err != nil {
		return err
	}
	return os.NewSyscallError("clone a file", unix.IoctlFileClone(int(files[1].Fd()), int(files[0].Fd())))
}

// nameservers are the DNS servers that the text of a resolv.conf names. One on a link of
// its own (fe80::1%eth0) keeps its zone.
func nameservers(text string) []netip.Addr {
	var list []netip.Addr
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 2 || fields[0] != "nameserver" {
			continue
		}
		if a, err := netip.ParseAddr(fields[1]); err == nil && len(list) < wire.MaxUpstream {
			list = append(list, a.Unmap())
		}
	}
	return list
}
