//go:build linux

package proc

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"io"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
)

// States of sockets, as /proc/net/tcp has them.
const (
	TCPEstablished = "01"
	TCPListen      = "0A"
)

// FindTCP reports whether match accepts one of the TCP sockets in a state, of both families, in
// this network namespace. A machine without IPv6 has one table; the error is that of a machine
// with none.
func FindTCP(state string, match func(local, remote netip.AddrPort) bool) (found bool, err error) {
	read := false
	for _, table := range [...]string{"/proc/net/tcp", "/proc/net/tcp6"} {
		f, e := os.Open(table)
		if e != nil {
			err = e
			continue
		}
		read = true
		found = ScanTCP(f, state, match)
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

// ScanTCP is FindTCP for a table as /proc/net/tcp has it: a heading, then lines of
// "sl local_address rem_address st …", numbers in hexadecimal.
func ScanTCP(table io.Reader, state string, match func(local, remote netip.AddrPort) bool) bool {
	for sc := bufio.NewScanner(table); sc.Scan(); {
		f := strings.Fields(sc.Text())
		if len(f) < 4 || f[3] != state {
			continue
		}
		local, ok := tableAddr(f[1])
		remote, also := tableAddr(f[2])
		if ok && also && match(local, remote) {
			return true
		}
	}
	return false
}

// tableAddr reads an address of such a table: words of four bytes in this machine's order, and the
// port.
func tableAddr(text string) (at netip.AddrPort, ok bool) {
	host, port, _ := strings.Cut(text, ":")
	n, err := strconv.ParseUint(port, 16, 16)
	if err != nil {
		return at, false
	}
	b, err := hex.DecodeString(host)
	if err != nil || len(b)%4 != 0 {
		return at, false
	}
	for word := range slices.Chunk(b, 4) {
		binary.BigEndian.PutUint32(word, binary.NativeEndian.Uint32(word))
	}
	a, ok := netip.AddrFromSlice(b)
	return netip.AddrPortFrom(a.Unmap(), uint16(n)), ok
}

// A Mount is a line of /proc/self/mountinfo.
type Mount struct {
	Root    string   // of the mount, within its file system
	At      string   // where it is mounted
	Options []string // of the mount
	Kind    string   // of the file system
	// Super are the options of the file system, not split and as the kernel escapes them: those of
	// an overlay have escaped commas.
	Super string
}

// Mounts returns the mounts of this process, in the order in which they were made.
func Mounts() ([]Mount, error) {
	text, err := os.ReadFile("/proc/self/mountinfo")
	return ParseMounts(string(text)), err
}

// ParseMounts reads a table as /proc/self/mountinfo has it.
func ParseMounts(text string) (table []Mount) {
	for line := range strings.Lines(text) {
		on, super, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " - ")
		f := strings.Fields(on) // ID, parent, device, root, mount point, options
		if len(f) < 6 {
			continue
		}
		m := Mount{Root: unescape.Replace(f[3]), At: unescape.Replace(f[4]), Options: strings.Split(f[5], ",")}
		if f := strings.Fields(super); len(f) == 3 {
			m.Kind, m.Super = f[0], f[2]
		}
		table = append(table, m)
	}
	return table
}

// unescape replaces the characters that the kernel escapes in mountinfo.
var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
