// Lab is the world outside, for tests of network policies: servers of every kind on
// addresses of its own, and a log of every packet that reaches it.
//
//	lab serve CONFIG         serve, with a Config as JSON, until killed
//	lab route add|del GATEWAY ADDRESS...
//
// The second is run in the network of the engine's machine, which is to forward to the
// lab what sandboxes send to its addresses.
package main

import (
	"encoding/json"
	"fmt"
	"log"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Config is what the lab is told.
type Config struct {
	Addrs []netip.Addr            // its own, beside those that the engine gives it
	Names map[string][]netip.Addr // what its DNS server says: "*." is any name below, 0.0.0.0 the address that the engine gives
	Sniff bool                    // log packets
}

// lostPackets is among the hits, with the time when it was noticed, if the kernel had no room for packets.
const lostPackets = "lost"

// controlPort is where the tests ask what was seen.
const controlPort = 7000

func main() {
	log.SetFlags(0)
	var err error
	switch {
	case len(os.Args) == 3 && os.Args[1] == "serve":
		var c Config
		if err = json.Unmarshal([]byte(os.Args[2]), &c); err == nil {
			err = serve(c)
		}
	case len(os.Args) >= 5 && os.Args[1] == "route":
		err = routes(os.Args[2], os.Args[3], os.Args[4:])
	default:
		err = fmt.Errorf("%q", os.Args)
	}
	if err != nil {
		log.Fatal(err)
	}
}

// lab is what runs.
type lab struct {
	Config
	ca   *authority
	ring *ring // nil unless packets are logged

	mu    sync.Mutex
	hits  map[string]time.Time    // when the last came of "SOURCE PROTOCOL DESTINATION", see sniff
	asked map[netip.AddrPort]bool // who connected to ask what was seen
	heard []string                // what servers were told, "SOURCE WHAT"
}

func serve(c Config) error {
	ca, err := newAuthority()
	if err != nil {
		return err
	}
	l := &lab{Config: c, ca: ca, hits: map[string]time.Time{}, asked: map[netip.AddrPort]bool{}}
	given := own()
	for _, a := range c.Addrs {
		if err := addAddress(a); err != nil {
			return fmt.Errorf("add %s: %w", a, err)
		}
	}
	for name, addrs := range l.Names {
		for i, a := range addrs {
			if a.IsUnspecified() {
				l.Names[name][i] = given[0]
			}
		}
	}
	if c.Sniff {
		if err := l.sniff(); err != nil {
			return fmt.Errorf("sniff: %w", err)
		}
	}
	if err := l.tcp(); err != nil {
		return err
	}
	go l.udp()

	mux := http.NewServeMux()
	mux.HandleFunc("/hits", func(w http.ResponseWriter, r *http.Request) {
		// Packets are seen in their order: when those of this request were, all earlier
		// ones were.
		me := netip.MustParseAddrPort(r.RemoteAddr)
		me = netip.AddrPortFrom(me.Addr().Unmap(), me.Port())
		l.mu.Lock()
		defer l.mu.Unlock()
		for try := 0; l.Sniff && !l.asked[me] && try < 5000; try++ {
			l.mu.Unlock()
			time.Sleep(time.Millisecond)
			l.mu.Lock()
		}
		if l.Sniff && !l.asked[me] {
			http.Error(w, "the sniffer does not keep up", http.StatusServiceUnavailable)
			return
		}
		if l.Sniff {
			if lost, err := l.ring.lost(); err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			} else if lost {
				l.hits[lostPackets] = time.Now()
			}
		}
		json.NewEncoder(w).Encode(l.hits)
	})
	mux.HandleFunc("/heard", func(w http.ResponseWriter, _ *http.Request) {
		l.mu.Lock()
		defer l.mu.Unlock()
		json.NewEncoder(w).Encode(l.heard)
	})
	mux.HandleFunc("/ca", func(w http.ResponseWriter, _ *http.Request) { w.Write(l.ca.pem) })
	return http.ListenAndServe(fmt.Sprint(":", controlPort), mux)
}

// hear notes what a server was told. The oldest half makes room.
func (l *lab) hear(from net.Addr, format string, args ...any) {
	host, _, _ := net.SplitHostPort(from.String())
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.heard) >= 20000 {
		l.heard = append([]string(nil), l.heard[len(l.heard)/2:]...)
	}
	l.heard = append(l.heard, host+" "+fmt.Sprintf(format, args...))
}

// lookUp returns the addresses of a name.
func (l *lab) lookUp(name string) ([]netip.Addr, bool) {
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	if a, ok := l.Names[name]; ok {
		return a, true
	}
	for rest := name; ; {
		_, below, ok := strings.Cut(rest, ".")
		if !ok {
			return nil, false
		}
		if a, ok := l.Names["*."+below]; ok {
			return a, true
		}
		rest = below
	}
}

// own are the addresses that the lab has now.
func own() []netip.Addr {
	var all []netip.Addr
	addrs, _ := net.InterfaceAddrs()
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil && !p.Addr().IsLoopback() {
			all = append(all, p.Addr())
		}
	}
	return all
}

// sniff notes the packets that arrive for one of the lab's addresses, each when the
// kernel had it: of TCP those that open a connection as "tcp", and those with content as
// "tcp+"; ICMP by its type.
func (l *lab) sniff() error {
	r, err := newRing()
	if err != nil {
		return err
	}
	go func() {
		mine, looked := map[netip.Addr]bool{}, time.Time{}
		for {
			at, begin, err := r.next()
			if err != nil {
				log.Fatal("sniff: ", err)
			}
			if time.Since(looked) > 50*time.Millisecond {
				looked = time.Now()
				for _, a := range own() {
					mine[a] = true
				}
			}
			what, src, dst := packet(begin)
			if what == "" || !mine[dst] || mine[src.Addr()] {
				continue
			}
			l.mu.Lock()
			if strings.HasSuffix(what, fmt.Sprint(":", controlPort)) {
				l.asked[src] = true
			} else {
				l.hits[src.Addr().String()+" "+what] = at
			}
			l.mu.Unlock()
		}
	}()
	l.ring = r
	return nil
}

func packet(b []byte) (what string, from netip.AddrPort, dst netip.Addr) {
	if len(b) < 20 {
		return
	}
	var proto byte
	var src netip.Addr
	switch {
	case b[0]>>4 == 4:
		src, dst = netip.AddrFrom4([4]byte(b[12:16])), netip.AddrFrom4([4]byte(b[16:20]))
		proto = b[9]
		head, total := int(b[0]&15)*4, int(b[2])<<8|int(b[3])
		b = b[:min(total, len(b))] // what follows pads the frame
		b = b[min(head, len(b)):]
	case b[0]>>4 == 6 && len(b) >= 40:
		src, dst = netip.AddrFrom16([16]byte(b[8:24])), netip.AddrFrom16([16]byte(b[24:40]))
		proto = b[6]
		b = b[40:]
	default:
		return
	}
	port := func() string { return netip.AddrPortFrom(dst, uint16(b[2])<<8|uint16(b[3])).String() }
	switch {
	case proto == unix.IPPROTO_TCP && len(b) >= 14:
		switch {
		case b[13]&0x12 == 2: // SYN without ACK
			what = "tcp " + port()
		case len(b) > int(b[12]>>4)*4:
			what = "tcp+ " + port()
		default:
			return // it ends a connection, or says what it has got
		}
	case proto == unix.IPPROTO_UDP && len(b) >= 4:
		what = "udp " + port()
	case proto == unix.IPPROTO_ICMPV6 && len(b) > 0 && b[0] >= 130 && b[0] <= 137:
		return // how neighbours find one another
	case (proto == unix.IPPROTO_ICMP || proto == unix.IPPROTO_ICMPV6) && len(b) > 0:
		what = "icmp" + strconv.Itoa(int(b[0])) + " " + dst.String()
	default:
		what = "ip" + strconv.Itoa(int(proto)) + " " + dst.String()
	}
	from = netip.AddrPortFrom(src, 0)
	if len(b) >= 2 {
		from = netip.AddrPortFrom(src, uint16(b[0])<<8|uint16(b[1]))
	}
	return what, from, dst
}

// addAddress gives eth0 an address.
func addAddress(a netip.Addr) error {
	dev, err := net.InterfaceByName("eth0")
	if err != nil {
		return err
	}
	family := byte(unix.AF_INET)
	if a.Is6() {
		family = unix.AF_INET6
	}
	body := []byte{family, byte(a.BitLen()), 0, unix.RT_SCOPE_UNIVERSE}
	body = append(body, native(uint32(dev.Index))...)
	body = append(body, attr(unix.IFA_LOCAL, a.AsSlice())...)
	body = append(body, attr(unix.IFA_ADDRESS, a.AsSlice())...)
	return rtnetlink(unix.RTM_NEWADDR, netlink.Create|netlink.Replace, body)
}

// routes has the machine send the addresses to the lab, or no more.
func routes(verb, gateway string, to []string) error {
	via, err := netip.ParseAddr(gateway)
	if err != nil {
		return err
	}
	for _, s := range to {
		a, err := netip.ParseAddr(s)
		if err != nil {
			return err
		}
		body := []byte{unix.AF_INET, byte(a.BitLen()), 0, 0, unix.RT_TABLE_MAIN, unix.RTPROT_STATIC, unix.RT_SCOPE_UNIVERSE, unix.RTN_UNICAST, 0, 0, 0, 0}
		body = append(body, attr(unix.RTA_DST, a.AsSlice())...)
		body = append(body, attr(unix.RTA_GATEWAY, via.AsSlice())...)
		kind, flags := netlink.HeaderType(unix.RTM_NEWROUTE), netlink.Create|netlink.Excl
		if verb == "del" {
			kind, flags = unix.RTM_DELROUTE, 0
		}
		if err := rtnetlink(kind, flags, body); err != nil {
			return fmt.Errorf("%s %s via %s: %w", verb, a, via, err)
		}
	}
	return nil
}

func rtnetlink(kind netlink.HeaderType, flags netlink.HeaderFlags, body []byte) error {
	conn, err := netlink.Dial(unix.NETLINK_ROUTE, nil)
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = conn.Execute(netlink.Message{Header: netlink.Header{Type: kind, Flags: netlink.Request | netlink.Acknowledge | flags}, Data: body})
	return err
}

func attr(kind uint16, value []byte) []byte {
	b, err := netlink.MarshalAttributes([]netlink.Attribute{{Type: kind, Data: value}})
	if err != nil {
		panic(err)
	}
	return b
}
