// Probe is what tests of network policies run inside a sandbox: it tries ways out.
//
//	probe try               read Attempts from standard input as JSON, make all, print Outcomes
//	probe spin ADDRESS...   try to get out to the addresses for ever
//	probe flood KIND ...    exhaust what there is, see flood.go
//	probe hold KIND ...     keep a connection and tell of it, see hold
//	probe listen PORT...    send back what comes, over TCP and UDP
//	probe count             listen, print the addresses as JSON, and for each line of input the number of connections
//	probe tamper KIND ADDRESS   change the network with NET_ADMIN, see tamper.go
package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"
)

// Attempt is one way out.
type Attempt struct {
	Name string
	Kind string // see attempts
	To   string // address and port
	As   string // SNI, Host, or the name to look up
}

// Outcome is what came of it. Err is empty where something came back.
type Outcome struct {
	Name string
	Got  string
	Err  string
	Took time.Duration
}

// patience bounds an attempt.
const patience = 6 * time.Second

func main() {
	log.SetFlags(0)
	if len(os.Args) < 2 {
		log.Fatal("what?")
	}
	switch os.Args[1] {
	case "try":
		var all []Attempt
		if err := json.NewDecoder(os.Stdin).Decode(&all); err != nil {
			log.Fatal(err)
		}
		json.NewEncoder(os.Stdout).Encode(try(all))
	case "spin":
		spin(os.Args[2:])
	case "flood":
		flood(os.Args[2:])
	case "hold":
		hold(os.Args[2:])
	case "listen":
		listen(os.Args[2:])
	case "count":
		count()
	case "tamper":
		tamper(os.Args[2], os.Args[3])
	default:
		log.Fatalf("%q", os.Args)
	}
}

func try(all []Attempt) []Outcome {
	out := make([]Outcome, len(all))
	var wg sync.WaitGroup
	places := make(chan struct{}, 48)
	for i, a := range all {
		wg.Go(func() {
			places <- struct{}{}
			defer func() { <-places }()
			out[i].Name = a.Name
			f := attempts[a.Kind]
			if f == nil {
				log.Fatalf("there is no %q", a.Kind)
			}
			began := time.Now()
			got, err := f(a)
			out[i].Took = time.Since(began)
			if out[i].Got = got; err != nil {
				out[i].Err = fmt.Sprintf("%v", err)
			}
		})
	}
	wg.Wait()
	return out
}

var dialer = net.Dialer{Timeout: patience}

// attempts are the ways out there are.
var attempts = map[string]func(Attempt) (string, error){
	"tls":       func(a Attempt) (string, error) { return web(a, "https", dialer, "http/1.1") },
	"h2":        func(a Attempt) (string, error) { return web(a, "https", dialer, "h2") },
	"http":      func(a Attempt) (string, error) { return web(a, "http", dialer) },
	"fragments": fragments,
	"postgres":  postgres,
	"tcp":       func(a Attempt) (string, error) { return exchange("tcp", a, dialer) },
	"ssh":       ssh,
	"udp":       func(a Attempt) (string, error) { return exchange("udp", a, dialer) },
	"icmp":      icmp,
	"dns":       func(a Attempt) (string, error) { return lookUp("udp", a) },
	"dns-tcp":   func(a Attempt) (string, error) { return lookUp("tcp", a) },
	"dns-txt":   func(a Attempt) (string, error) { return ask("udp", a.To, a.As, dnsmessage.TypeTXT) },
	"dns-https": func(a Attempt) (string, error) { return ask("udp", a.To, a.As, dnsmessage.Type(65)) },
	"dns-tls":   func(a Attempt) (string, error) { return lookUp("tls", a) },
	"resolve": func(a Attempt) (string, error) {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		got, err := (&net.Resolver{PreferGo: true}).LookupHost(ctx, a.As)
		return strings.Join(got, ","), err
	},
	// As a program does: the name is looked up by what /etc says, and connected to.
	"fetch": func(a Attempt) (string, error) {
		client := http.Client{Timeout: patience, Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}}
		return get(&client, a.As)
	},
	"fetch-verified": func(a Attempt) (string, error) {
		client := http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true, ForceAttemptHTTP2: true}}
		return get(&client, a.As)
	},
	"tcp-device":  func(a Attempt) (string, error) { return exchange("tcp", a, bound("eth0")) },
	"tcp-on":      func(a Attempt) (string, error) { return exchange("tcp", a, bound(a.As)) },
	"tcp-lo":      func(a Attempt) (string, error) { return exchange("tcp", a, bound("lo")) },
	"udp-device":  func(a Attempt) (string, error) { return exchange("udp", a, bound("eth0")) },
	"tcp-mark":    func(a Attempt) (string, error) { return exchange("tcp", a, marked) },
	"packet":      func(a Attempt) (string, error) { return "", packet(a.To, false) },
	"packet-past": func(a Attempt) (string, error) { return "", packet(a.To, true) },
	"raw":         func(a Attempt) (string, error) { return "", raw(a.To) },
	"freebind":    freebind,
	"as-nobody":   asNobody,
	"sctp":        func(a Attempt) (string, error) { return "", socketTo(a.To, unix.SOCK_STREAM, unix.IPPROTO_SCTP) },
	"udplite":     func(a Attempt) (string, error) { return "", socketTo(a.To, unix.SOCK_DGRAM, unix.IPPROTO_UDPLITE) },
	"fastopen":    fastOpen,
	"xdp": func(Attempt) (string, error) {
		fd, err := unix.Socket(unix.AF_XDP, unix.SOCK_RAW, 0)
		if err == nil {
			unix.Close(fd)
		}
		return "", err
	},
	"vsock": func(Attempt) (string, error) {
		fd, err := unix.Socket(unix.AF_VSOCK, unix.SOCK_STREAM, 0)
		if err == nil {
			err = unix.Connect(fd, &unix.SockaddrVM{CID: unix.VMADDR_CID_HOST, Port: 22})
			unix.Close(fd)
		}
		return "", err
	},
}

func web(a Attempt, scheme string, d net.Dialer, protocols ...string) (string, error) {
	client := http.Client{Timeout: patience, Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return d.DialContext(ctx, "tcp", a.To) },
		DialTLSContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&tls.Dialer{NetDialer: &d, Config: &tls.Config{ServerName: a.As, InsecureSkipVerify: true, NextProtos: protocols}}).DialContext(ctx, "tcp", a.To)
		},
		ForceAttemptHTTP2: true, DisableKeepAlives: true,
	}}
	host := a.As
	if host == "" {
		host = a.To
	}
	return get(&client, scheme+"://"+host+"/")
}

func get(client *http.Client, url string) (string, error) {
	resp, err := client.Get(url)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err == nil && resp.StatusCode != http.StatusOK {
		err = errors.New(resp.Status)
	}
	return resp.Proto + " " + strings.TrimSpace(string(b)), err
}

// exchange sends something and waits for it to come back.
func exchange(network string, a Attempt, d net.Dialer) (string, error) {
	c, err := d.Dial(network, a.To)
	if err != nil {
		return "", err
	}
	defer c.Close()
	return said(c, "hello "+a.Name+"\n")
}

func said(c net.Conn, what string) (string, error) {
	c.SetDeadline(time.Now().Add(patience / 3))
	if _, err := io.WriteString(c, what); err != nil {
		return "", err
	}
	buf := make([]byte, 1000)
	n, err := c.Read(buf)
	return string(buf[:n]), err
}

func bound(device string) net.Dialer {
	d := dialer
	d.Control = onSocket(func(fd int) error { return unix.SetsockoptString(fd, unix.SOL_SOCKET, unix.SO_BINDTODEVICE, device) })
	return d
}

var marked = net.Dialer{Timeout: patience, Control: onSocket(func(fd int) error {
	return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, 1)
})}

func onSocket(f func(fd int) error) func(_, _ string, c syscall.RawConn) error {
	return func(_, _ string, c syscall.RawConn) (err error) {
		if e := c.Control(func(fd uintptr) { err = f(int(fd)) }); e != nil {
			return e
		}
		return err
	}
}

// fragments sends a ClientHello a few bytes at a time, and goes on when it is answered.
func fragments(a Attempt) (string, error) {
	c, err := dialer.Dial("tcp", a.To)
	if err != nil {
		return "", err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	s := tls.Client(dribble{c}, &tls.Config{ServerName: a.As, InsecureSkipVerify: true})
	if err := s.Handshake(); err != nil {
		return "", err
	}
	return s.ConnectionState().PeerCertificates[0].Subject.CommonName, nil
}

type dribble struct{ net.Conn }

func (d dribble) Write(b []byte) (n int, err error) {
	for n < len(b) && err == nil {
		var m int
		m, err = d.Conn.Write(b[n:min(n+400, len(b))])
		n += m
		time.Sleep(5 * time.Millisecond)
	}
	return n, err
}

func postgres(a Attempt) (string, error) {
	c, err := dialer.Dial("tcp", a.To)
	if err != nil {
		return "", err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	c.Write(binary.BigEndian.AppendUint32([]byte{0, 0, 0, 8}, 80877103))
	var yes [1]byte
	if _, err := io.ReadFull(c, yes[:]); err != nil {
		return "", err
	}
	if yes[0] != 'S' {
		return "", fmt.Errorf("it said %q", yes)
	}
	s := tls.Client(c, &tls.Config{ServerName: a.As, InsecureSkipVerify: true})
	if err := s.Handshake(); err != nil {
		return "", err
	}
	return said(s, "select 1\n")
}

func ssh(a Attempt) (string, error) {
	c, err := dialer.Dial("tcp", a.To)
	if err != nil {
		return "", err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience / 2))
	line, err := bufio.NewReader(c).ReadString('\n')
	return line, err
}

func icmp(a Attempt) (string, error) {
	to, err := netip.ParseAddr(a.To)
	if err != nil {
		return "", err
	}
	family, proto, kind := unix.AF_INET, unix.IPPROTO_ICMP, byte(8)
	if to.Is6() {
		family, proto, kind = unix.AF_INET6, unix.IPPROTO_ICMPV6, 128
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM, proto)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 2})
	if err := unix.Sendto(fd, []byte{kind, 0, 0, 0, 0, 1, 0, 1, 'h', 'i'}, 0, sockaddr(netip.AddrPortFrom(to, 0))); err != nil {
		return "", err
	}
	n, _, err := unix.Recvfrom(fd, make([]byte, 100), 0)
	return fmt.Sprint(n, " bytes"), err
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}

func lookUp(network string, a Attempt) (string, error) {
	return ask(network, a.To, a.As, dnsmessage.TypeA)
}

func ask(network, server, name string, kind dnsmessage.Type) (string, error) {
	n, err := dnsmessage.NewName(name + ".")
	if err != nil {
		return "", err
	}
	m := dnsmessage.Message{Header: dnsmessage.Header{ID: 7, RecursionDesired: true}, Questions: []dnsmessage.Question{{Name: n, Type: kind, Class: dnsmessage.ClassINET}}}
	b, err := m.Pack()
	if err != nil {
		return "", err
	}
	var c net.Conn
	if network == "tls" {
		c, err = tls.DialWithDialer(&dialer, "tcp", server, &tls.Config{InsecureSkipVerify: true})
	} else {
		c, err = dialer.Dial(network, server)
	}
	if err != nil {
		return "", err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	buf := make([]byte, 1<<16)
	if network == "udp" {
		c.Write(b)
		size, err := c.Read(buf)
		if err != nil {
			return "", err
		}
		buf = buf[:size]
	} else {
		c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(b))), b...))
		var size [2]byte
		if _, err := io.ReadFull(c, size[:]); err != nil {
			return "", err
		}
		buf = buf[:binary.BigEndian.Uint16(size[:])]
		if _, err := io.ReadFull(c, buf); err != nil {
			return "", err
		}
	}
	if err := m.Unpack(buf); err != nil {
		return "", err
	}
	var got []string
	for _, r := range m.Answers {
		switch body := r.Body.(type) {
		case *dnsmessage.AResource:
			got = append(got, netip.AddrFrom4(body.A).String())
		case *dnsmessage.TXTResource:
			got = append(got, body.TXT...)
		case *dnsmessage.CNAMEResource:
			got = append(got, body.CNAME.String())
		default:
			got = append(got, r.Header.Type.String())
		}
	}
	if m.RCode != dnsmessage.RCodeSuccess {
		return "", fmt.Errorf("%v", m.RCode)
	}
	if len(got) == 0 {
		return "", errors.New("no answer in it")
	}
	return strings.Join(got, ","), nil
}

// datagram is an IPv4 datagram of UDP from this host's own address.
func datagram(to netip.AddrPort) []byte {
	b := make([]byte, 20+8+5)
	b[0], b[8], b[9] = 0x45, 64, unix.IPPROTO_UDP
	binary.BigEndian.PutUint16(b[2:], uint16(len(b)))
	addrs, _ := net.InterfaceAddrs()
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Is4() && !p.Addr().IsLoopback() {
			copy(b[12:16], p.Addr().AsSlice())
			break
		}
	}
	copy(b[16:20], to.Addr().AsSlice())
	sum := uint32(0)
	for i := 0; i < 20; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum>>16 > 0 {
		sum = sum&0xffff + sum>>16
	}
	binary.BigEndian.PutUint16(b[10:], ^uint16(sum))
	binary.BigEndian.PutUint16(b[20:], 4000)
	binary.BigEndian.PutUint16(b[22:], to.Port())
	binary.BigEndian.PutUint16(b[24:], 13)
	copy(b[28:], "frame")
	return b
}

// packet sends a frame of its own making to everybody on eth0, past also says past
// the queue.
func packet(to string, past bool) error {
	dst, err := netip.ParseAddrPort(to)
	if err != nil {
		return err
	}
	const ip = unix.ETH_P_IP>>8 | unix.ETH_P_IP<<8&0xff00
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM, ip)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if past {
		if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_QDISC_BYPASS, 1); err != nil {
			return err
		}
	}
	dev, err := net.InterfaceByName("eth0")
	if err != nil {
		return err
	}
	link := &unix.SockaddrLinklayer{Protocol: ip, Ifindex: dev.Index, Halen: 6, Addr: [8]byte{255, 255, 255, 255, 255, 255}}
	return unix.Sendto(fd, datagram(dst), 0, link)
}

func raw(to string) error {
	dst, err := netip.ParseAddrPort(to)
	if err != nil {
		return err
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_RAW)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Sendto(fd, datagram(dst), 0, &unix.SockaddrInet4{Addr: dst.Addr().As4()})
}

func socketTo(to string, kind, proto int) error {
	dst, err := netip.ParseAddrPort(to)
	if err != nil {
		return err
	}
	fd, err := unix.Socket(unix.AF_INET, kind, proto)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &unix.Timeval{Sec: 1})
	if err := unix.Connect(fd, sockaddr(dst)); err != nil {
		return err
	}
	_, err = unix.Write(fd, []byte("hello"))
	return err
}

// fastOpen sends data with the very first packet.
func fastOpen(a Attempt) (string, error) {
	dst, err := netip.ParseAddrPort(a.To)
	if err != nil {
		return "", err
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 2})
	if err := unix.Sendto(fd, []byte("hello"), unix.MSG_FASTOPEN, sockaddr(dst)); err != nil {
		return "", err
	}
	buf := make([]byte, 100)
	n, err := unix.Read(fd, buf)
	if err == nil && n == 0 {
		err = io.EOF
	}
	return string(buf[:max(n, 0)]), err
}

// freebind takes the remote's address, sends itself a datagram in its name, and has the
// kernel believe that what it then sends to the remote is an answer. It does so for
// ports that are published, and others.
func freebind(a Attempt) (string, error) {
	dst, err := netip.ParseAddrPort(a.To)
	if err != nil {
		return "", err
	}
	local := netip.IPv6Loopback()
	addrs, _ := net.InterfaceAddrs()
	for _, x := range addrs {
		if p, err := netip.ParsePrefix(x.String()); err == nil && p.Addr().Is6() && !p.Addr().Is4In6() && p.Addr().IsGlobalUnicast() {
			local = p.Addr()
		}
	}
	if local.IsLoopback() {
		return "", errors.New("this host has no address in IPv6")
	}
	forge := func(port uint16) error {
		spoofed, err := unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM, 0)
		if err != nil {
			return err
		}
		defer unix.Close(spoofed)
		if err := unix.SetsockoptInt(spoofed, unix.SOL_IPV6, unix.IPV6_FREEBIND, 1); err != nil {
			return err
		}
		if err := unix.Bind(spoofed, sockaddr(dst)); err != nil {
			return err
		}
		honest, err := unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM, 0)
		if err != nil {
			return err
		}
		defer unix.Close(honest)
		if err := unix.Bind(honest, sockaddr(netip.AddrPortFrom(local, port))); err != nil {
			return err
		}
		unix.Sendto(spoofed, []byte("forged"), 0, sockaddr(netip.AddrPortFrom(local, port)))
		time.Sleep(20 * time.Millisecond)
		return unix.Sendto(honest, []byte("an answer"), 0, sockaddr(dst))
	}
	return "", errors.Join(forge(3000), forge(4000))
}

// asNobody is tcp by another user.
func asNobody(a Attempt) (got string, err error) {
	runtime.LockOSThread() // and never unlocked: the thread ends with it
	if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, 65534, 65534, 65534); e != 0 {
		return "", e
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	dst, err := netip.ParseAddrPort(a.To)
	if err != nil {
		return "", err
	}
	for _, o := range []int{unix.SO_SNDTIMEO, unix.SO_RCVTIMEO} {
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, o, &unix.Timeval{Sec: 2})
	}
	if err := unix.Connect(fd, sockaddr(dst)); err != nil {
		return "", err
	}
	if _, err := unix.Write(fd, []byte("hello")); err != nil {
		return "", err
	}
	buf := make([]byte, 100)
	n, err := unix.Read(fd, buf)
	if err == nil && n == 0 {
		err = io.EOF
	}
	return string(buf[:max(n, 0)]), err
}
