//go:build linux

package pid1

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/cmd/proc"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

func TestConnectionsFromOutside(t *testing.T) {
	t.Parallel()
	own := []netip.Addr{netip.MustParseAddr("172.17.0.2"), netip.MustParseAddr("fd99::2"), netip.MustParseAddr("fe80::2"), netip.MustParseAddr("127.0.0.1")}
	const heading = "  sl  local_address rem_address   st tx_queue rx_queue\n"
	for name, test := range map[string]struct {
		line string
		want bool
	}{
		"none":                         {"", false},
		"established":                  {"   0: 020011AC:0BB8 010011AC:D431 01 00000000:00000000", true},
		"over IPv6":                    {"   0: 0000000000000000FFFF0000020011AC:0BB8 0000000000000000FFFF0000010011AC:D431 01 0", true},
		"that only listens":            {"   0: 00000000:0BB8 00000000:0000 0A 00000000:00000000", false},
		"to another port":              {"   0: 020011AC:0BB9 010011AC:D431 01 00000000:00000000", false},
		"of a client":                  {"   0: 020011AC:D431 010011AC:0BB8 01 00000000:00000000", false},
		"from loopback":                {"   0: 0200007F:0BB8 0100007F:D431 01 00000000:00000000", false},
		"from loopback to the network": {"   0: 020011AC:0BB8 0500007F:D431 01 00000000:00000000", false},
		"to loopback":                  {"   0: 0100007F:0BB8 020011AC:D431 01 00000000:00000000", false},
		"from loopback, mapped":        {"   0: 0000000000000000FFFF00000200007F:0BB8 0000000000000000FFFF00000100007F:D431 01 0", false},
		"from IPv6 loopback":           {"   0: 000080FE00000000000000000200000A:0BB8 00000000000000000000000001000000:D431 01 0", false},
		"from another own address":     {"   0: 000080FE000000000000000002000000:0BB8 000099FD000000000000000002000000:D431 01 0", false},
		"from a neighbour":             {"   0: 000099FD000000000000000002000000:0BB8 000099FD000000000000000001000000:D431 01 0", true},
		"from inside":                  {"   0: 020011AC:0BB8 020011AC:D431 01 00000000:00000000", false},
		"that has ended":               {"   0: 020011AC:0BB8 010011AC:D431 06 00000000:00000000", false},
		"of a line too short":          {"   0: 020011AC:0BB8", false},
	} {
		if got := proc.ScanTCP(strings.NewReader(heading+test.line+"\n"), proc.TCPEstablished, outside([]uint16{80, 3000}, own)); got != test.want {
			t.Errorf("a connection %s: %v, want %v", name, got, test.want)
		}
	}
}

// fakeUse is what is known of the uses of a session.
type fakeUse struct {
	last time.Duration
	now  bool
}

func (f *fakeUse) latest(bool, bool) (time.Duration, bool) { return f.last, f.now }

func TestIdleTimeCountsFromTheLastUse(t *testing.T) {
	t.Parallel()
	const idle = 80 * time.Second
	uses := &fakeUse{}
	d := &deadlines{fd: -1, uses: uses}
	d.startIdle(wire.Idle{Timeout: idle})
	began := d.idleFrom
	if d.look != began+idle/idleLooks {
		t.Fatalf("the first look is %v after the start, want %v", d.look-began, idle/idleLooks)
	}
	at := d.look
	look := func() bool {
		at = d.look
		return d.isIdle(at)
	}
	uses.now = true
	for range 3 * idleLooks {
		if look() {
			t.Fatal("a session in use is idle")
		}
	}
	uses.now, uses.last = false, at+time.Second
	for range idleLooks {
		if look() {
			t.Fatalf("idle %v after the last use", at-uses.last)
		}
	}
	if look(); at != uses.last+idle || !d.isIdle(at) {
		t.Errorf("idle at %v after the last use, want %v", at-uses.last, idle)
	}
	// A use in the future, and looks that come late.
	d.startIdle(wire.Idle{Timeout: idle})
	uses.last = 1 << 62
	if look(); d.idleFrom != at {
		t.Errorf("the time counts from %v after the look", d.idleFrom-at)
	}
	uses.last = 0
	from := d.idleFrom
	if d.isIdle(d.look + time.Hour) {
		t.Error("idle after a freeze")
	}
	if d.idleFrom != from+time.Hour {
		t.Errorf("the freeze counts as %v", d.idleFrom-from)
	}
}

func TestShortIdleTimeout(t *testing.T) {
	t.Parallel()
	d := &deadlines{fd: -1, uses: &fakeUse{}}
	d.startIdle(wire.Idle{Timeout: time.Millisecond})
	if d.look != d.idleFrom+time.Millisecond || !d.isIdle(d.look) {
		t.Errorf("looked at after %v", d.look-d.idleFrom)
	}
	d.startIdle(wire.Idle{Timeout: 1<<63 - 1})
	if d.look < proc.BootTime() || d.isIdle(d.look) || d.look < d.idleFrom {
		t.Errorf("looked at %v", d.look)
	}
	d.startIdle(wire.Idle{})
	if d.look != 0 {
		t.Errorf("looked at without a timeout")
	}
}
