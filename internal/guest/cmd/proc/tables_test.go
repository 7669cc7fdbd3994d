//go:build linux

package proc

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
)

func TestScanTCPTellsListenersFromConnections(t *testing.T) {
	t.Parallel()
	const table = `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000:0BB8 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1 0 100 0 0 10 0
   1: 0100007F:1F90 0100007F:C350 01 00000000:00000000 00:00000000 00000000     0        0 2 1 0 20 4 30 10 -1
   2: 00000000000000000000000001000000:C350 00000000000000000000000000000000:0000 0A
`
	of := func(port uint16) func(local, _ netip.AddrPort) bool {
		return func(local, _ netip.AddrPort) bool { return local.Port() == port }
	}
	for port, want := range map[uint16]bool{3000: true, 8080: false, 50000: true, 80: false, 0: false} {
		if got := ScanTCP(strings.NewReader(table), TCPListen, of(port)); got != want {
			t.Errorf("a listener at port %d: %v, want %v", port, got, want)
		}
	}
	var from netip.AddrPort
	ScanTCP(strings.NewReader(table), TCPEstablished, func(_, remote netip.AddrPort) bool { from = remote; return true })
	if want := netip.MustParseAddrPort("127.0.0.1:50000"); from != want {
		t.Errorf("the connection is from %v, want %v", from, want)
	}
}

// What is not a table yields nothing, or less.
func FuzzTables(f *testing.F) {
	f.Add(" sl\n 0: 00000000:0BB8 00000000:0000 0A\n")
	f.Add("0A 0A 0A 0A\n:::: :::: :::: 0A")
	f.Add("902 900 8:1 /var/lib/docker/volumes/box/_data /work\\040space rw,relatime master:3 - ext4 /dev/vda rw\n")
	f.Fuzz(func(t *testing.T, text string) {
		ScanTCP(strings.NewReader(text), TCPListen, func(local, remote netip.AddrPort) bool {
			if !local.IsValid() || !remote.IsValid() {
				t.Errorf("%q has a socket from %v to %v", text, local, remote)
			}
			return false
		})
		if slices.ContainsFunc(ParseMounts(text), func(m Mount) bool { return m.At == "" || len(m.Options) == 0 }) {
			t.Errorf("%q has a mount at no place", text)
		}
	})
}
