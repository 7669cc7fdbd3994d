package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"
)

// spin tries to get out from the first instruction on, without a moment's rest, by TCP
// and by UDP. A line on standard output tells of a first round, and is the last.
func spin(to []string) {
	var addrs []netip.AddrPort
	for _, s := range to {
		addrs = append(addrs, netip.MustParseAddrPort(s))
	}
	hello := []byte("hello")
	for round := 0; ; round++ {
		for _, a := range addrs {
			for _, kind := range []int{unix.SOCK_STREAM, unix.SOCK_DGRAM} {
				fd, err := unix.Socket(unix.AF_INET, kind|unix.SOCK_NONBLOCK, 0)
				if err != nil {
					continue
				}
				unix.Connect(fd, sockaddr(a))
				unix.Write(fd, hello)
				if round < 200 {
					unix.Write(fd, hello)
				}
				unix.Close(fd)
			}
		}
		if round == 0 {
			fmt.Println("round")
		}
		if round > 200 {
			time.Sleep(time.Millisecond) // the start is over
		}
	}
}

// flood does a kind of harm: flood KIND SECONDS COUNT ADDRESS NAME. It goes on until it
// has begun so often, all at once where it can, and for so many seconds at least. It
// prints how often it began.
func flood(args []string) {
	if len(args) != 5 {
		log.Fatalf("%q", args)
	}
	seconds, _ := strconv.Atoi(args[1])
	count, _ := strconv.Atoi(args[2])
	to, name := args[3], args[4]
	began := time.Now()
	var begun atomic.Int64
	var last atomic.Pointer[error]
	over, end := context.WithTimeout(context.Background(), 2*time.Minute)
	go func() {
		for begun.Load() < int64(count) || time.Since(began) < time.Duration(seconds)*time.Second {
			time.Sleep(50 * time.Millisecond)
		}
		end()
	}()
	var limit unix.Rlimit
	unix.Getrlimit(unix.RLIMIT_NOFILE, &limit)
	limit.Cur = limit.Max
	unix.Setrlimit(unix.RLIMIT_NOFILE, &limit)

	kinds := map[string]func(net.Conn){
		// Connections that say nothing.
		"silent": func(c net.Conn) { io.Copy(io.Discard, c) },
		// The hello of a TLS client, a byte at a time.
		"slow": func(c net.Conn) {
			for _, b := range append([]byte{22, 3, 1, 64, 0, 1, 0, 63, 252, 3, 3}, make([]byte, 1<<14)...) {
				if _, err := c.Write([]byte{b}); err != nil {
					return
				}
				time.Sleep(100 * time.Millisecond)
			}
		},
		// Hellos that do not end, of up to a megabyte each.
		"big": func(c net.Conn) {
			record := append([]byte{22, 3, 1, 64, 0}, make([]byte, 1<<14)...)
			copy(record[5:], []byte{1, 255, 255, 255, 3, 3})
			for range 64 {
				if _, err := c.Write(record); err != nil {
					return
				}
				record[5], record[6], record[7] = 0, 0, 0
			}
			io.Copy(io.Discard, c)
		},
		// Requests whose headers do not end.
		"headers": func(c net.Conn) {
			io.WriteString(c, "GET / HTTP/1.1\r\nX: 1\r\n")
			line := "X-" + strings.Repeat("a", 1000) + ": " + strings.Repeat("b", 15000) + "\r\n"
			for range 64 {
				if _, err := io.WriteString(c, line); err != nil {
					return
				}
			}
			io.Copy(io.Discard, c)
		},
		// Real connections to a name that is allowed, that stay.
		"open": func(c net.Conn) {
			s := tls.Client(c, &tls.Config{ServerName: name, InsecureSkipVerify: true})
			if s.Handshake() == nil {
				io.Copy(io.Discard, s)
			}
		},
	}
	var wg sync.WaitGroup
	if do := kinds[args[0]]; do != nil {
		for range count {
			wg.Go(func() {
				for over.Err() == nil {
					c, err := net.DialTimeout("tcp", to, time.Second)
					if err != nil {
						last.Store(&err)
						time.Sleep(10 * time.Millisecond)
						continue
					}
					begun.Add(1)
					stop := context.AfterFunc(over, func() { c.Close() })
					do(c)
					stop()
					c.Close()
					time.Sleep(10 * time.Millisecond)
				}
			})
		}
	} else if args[0] == "dns" {
		for i := range count {
			wg.Go(func() {
				c, err := net.Dial("udp", to)
				if err != nil {
					log.Fatal(err)
				}
				defer c.Close()
				go io.Copy(io.Discard, c)
				for over.Err() == nil {
					ask := fmt.Sprintf("x%d.%s.", rand.Uint64(), name)
					if i%2 == 0 {
						ask = fmt.Sprintf("x%d.tunnel.test.", rand.Uint64())
					}
					m := dnsmessage.Message{Header: dnsmessage.Header{ID: uint16(rand.Uint32())}, Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(ask), Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}}}
					b, _ := m.Pack()
					c.Write(b)
					c.Write(b[:len(b)/2])
					begun.Add(1)
				}
			})
		}
	} else {
		log.Fatalf("there is no %q", args[0])
	}
	wg.Wait()
	if err := last.Load(); err != nil {
		log.Print(*err)
	}
	fmt.Println(begun.Load())
}

// hold keeps connections: each of KIND,ADDRESS,NAME in args. For each line on standard
// input it sends that through all, and prints a line with what came back, or "gone".
func hold(args []string) {
	var conns []net.Conn
	for _, a := range args {
		part := strings.SplitN(a, ",", 3)
		c, err := net.DialTimeout("tcp", part[1], patience)
		if err != nil {
			log.Fatal(err)
		}
		if part[0] == "tls" {
			s := tls.Client(c, &tls.Config{ServerName: part[2], InsecureSkipVerify: true})
			if err := s.Handshake(); err != nil {
				log.Fatal(err)
			}
			c = s
		}
		conns = append(conns, c)
	}
	fmt.Println("held")
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		var got []string
		for _, c := range conns {
			s, err := said(c, in.Text()+"\n")
			if err != nil {
				s = "gone"
			}
			got = append(got, strings.TrimSpace(s))
		}
		fmt.Println(strings.Join(got, " "))
	}
}

func listen(ports []string) {
	for _, p := range ports {
		tcp, err := net.Listen("tcp", ":"+p)
		if err != nil {
			log.Fatal(err)
		}
		udp, err := net.ListenPacket("udp", ":"+p)
		if err != nil {
			log.Fatal(err)
		}
		go func() {
			for {
				c, err := tcp.Accept()
				if err != nil {
					log.Fatal(err)
				}
				go func() {
					defer c.Close()
					io.Copy(c, c)
				}()
			}
		}()
		go func() {
			buf := make([]byte, 1000)
			for {
				if n, from, err := udp.ReadFrom(buf); err == nil {
					udp.WriteTo(buf[:n], from)
				}
			}
		}()
	}
	fmt.Println("listening")
	select {}
}

// count listens for TCP at all addresses of the machine but loopback, echoes what comes, and says
// how many connections have come.
func count() {
	listener, err := net.Listen("tcp4", ":0")
	if err != nil {
		log.Fatal(err)
	}
	var accepted atomic.Int64
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				log.Fatal(err)
			}
			accepted.Add(1)
			go func() {
				defer c.Close()
				io.Copy(c, c)
			}()
		}
	}()
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		log.Fatal(err)
	}
	var at []netip.AddrPort
	port := netip.MustParseAddrPort(listener.Addr().String()).Port()
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Is4() && !p.Addr().IsLoopback() {
			at = append(at, netip.AddrPortFrom(p.Addr(), port))
		}
	}
	out := json.NewEncoder(os.Stdout)
	out.Encode(at)
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		out.Encode(accepted.Load())
	}
}
