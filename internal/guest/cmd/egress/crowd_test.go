//go:build linux

package egress

import (
	"bufio"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/net/dns/dnsmessage"
)

// listen serves connections to an address of the world with f, one goroutine each.
func (l *lab) listen(addr string, f func(*net.TCPConn)) {
	l.t.Helper()
	var listener net.Listener
	var err error
	l.outside.do(func() { listener, err = net.Listen("tcp", addr) })
	if err != nil {
		l.t.Fatal(err)
	}
	var conns sync.WaitGroup
	var mu sync.Mutex
	var all []net.Conn
	conns.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			all = append(all, conn)
			mu.Unlock()
			conns.Go(func() { defer conn.Close(); f(conn.(*net.TCPConn)) })
		}
	})
	l.t.Cleanup(func() {
		listener.Close()
		mu.Lock()
		for _, c := range all {
			c.Close()
		}
		mu.Unlock()
		conns.Wait()
	})
}

// request is what a client of a.example.com sends first.
const request = "GET / HTTP/1.1\r\nHost: a.example.com\r\n\r\n"

// greetAll answers a request and waits for the client's end.
func greetAll(conn *net.TCPConn) {
	if req, err := http.ReadRequest(bufio.NewReader(conn)); err == nil {
		fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(req.Host), req.Host)
	}
	io.Copy(io.Discard, conn)
}

func (l *lab) flows() int {
	l.enforcer.proxy.mu.Lock()
	defer l.enforcer.proxy.mu.Unlock()
	return len(l.enforcer.proxy.flows)
}

func (l *lab) eventually(what string, is func() bool) {
	l.t.Helper()
	for deadline := time.Now().Add(5 * time.Minute); !is(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			l.t.Fatalf("%s: not after a minute", what)
		}
	}
}

func (l *lab) setMaxFlows(n int) {
	l.enforcer.proxy.mu.Lock()
	defer l.enforcer.proxy.mu.Unlock()
	l.enforcer.proxy.max = n
}

// decisions returns the log without times and counts.
func (l *lab) decisions() (all []string) {
	for _, e := range l.enforcer.log.entries().Entries {
		all = append(all, fmt.Sprintf("%s %s %d %s %s %v %s", e.Name, e.Address, e.Port, e.Protocol, e.Rule, e.Allowed, e.Failure))
	}
	slices.Sort(all)
	return all
}

func TestAddressesAreInTheOrderOfRFC8305(t *testing.T) {
	t.Parallel()
	addrs := func(text string) (all []netip.Addr) {
		for _, a := range strings.Fields(text) {
			all = append(all, netip.MustParseAddr(a))
		}
		return all
	}
	for _, tt := range []struct{ have, chosen, want string }{
		{"::1 ::2 ::3 ::4 1.1.1.1", "::9", "::1 1.1.1.1 ::2 ::3 ::4"},
		{"::1 ::2 ::3 ::4 1.1.1.1", "1.1.1.1", "1.1.1.1 ::1 ::2 ::3 ::4"},
		{"1.1.1.1 1.1.1.2 1.1.1.3 1.1.1.4 1.1.1.5", "1.1.1.5", "1.1.1.5 1.1.1.1 1.1.1.2 1.1.1.3 1.1.1.4"},
		{"1.1.1.1 1.1.1.2 ::1 ::2", "::2", "::2 1.1.1.1 ::1 1.1.1.2"},
		{"1.1.1.1 1.1.1.1 ::1 ::1", "9.9.9.9", "1.1.1.1 ::1"},
		{"1.1.1.1", "::1", "1.1.1.1"},
		{"", "::1", ""},
	} {
		if got, want := fmt.Sprint(inOrder(addrs(tt.have), addrs(tt.chosen)[0])), fmt.Sprint(addrs(tt.want)); got != want {
			t.Errorf("inOrder(%s, %s) = %s, want %s", tt.have, tt.chosen, got, want)
		}
	}
}

// An address counts that comes later than those of the other family, if nothing listens at these.
func TestALateAddressIsTried(t *testing.T) {
	l := newLab(t)
	l.mu.Lock()
	l.names["late.example.com"] = []string{alphaAddr, alpha6}
	l.mu.Unlock()
	l.listen(alphaAddr+":7001", greetAll)
	l.begin(1, parse(t, "allow=late.example.com"))
	for range 3 {
		if got := l.http(alphaAddr+":7001", "GET / HTTP/1.1\r\nHost: late.example.com\r\n\r\n"); got != "late.example.com" {
			t.Errorf("got %q", got)
		}
	}
	want := []string{"late.example.com 203.0.113.1 7001 tcp late.example.com true "}
	if diff := cmp.Diff(want, l.decisions()); diff != "" {
		t.Errorf("the log (-want +got):\n%s", diff)
	}
}

// Whatever the addresses of a name are, and whichever of them the client chose, it reaches the
// server if any of them does, and the address it chose if that does.
func TestANameIsReachedIfAnyOfItsAddressesIs(t *testing.T) {
	l := newLab(t)
	const port = 7001
	kinds := map[string][]string{"serves": {alphaAddr, alpha6}, "refuses": nil, "silent": nil}
	l.outside.ip("route add blackhole 203.0.113.32/27")
	l.outside.ip("route add blackhole 2001:db8:2::/64")
	l.enforcer.patience = 3 * time.Second
	for i := range 6 {
		refuses4, refuses6 := fmt.Sprintf("203.0.113.%d", 20+i), fmt.Sprintf("2001:db8:1::%x", 0x20+i)
		l.outside.ip("addr add " + refuses4 + "/32 dev out0")
		l.outside.ip("addr add " + refuses6 + "/128 dev out0 nodad")
		kinds["refuses"] = append(kinds["refuses"], refuses4, refuses6)
		kinds["silent"] = append(kinds["silent"], fmt.Sprintf("203.0.113.%d", 40+i), fmt.Sprintf("2001:db8:2::%x", 0x20+i))
	}
	for _, addr := range kinds["serves"] {
		l.listen(net.JoinHostPort(addr, fmt.Sprint(port)), greetAll)
		l.serveTLS(net.JoinHostPort(addr, fmt.Sprint(port+1)), &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, addr) })})
	}
	l.begin(1, parse(t, "allow=a.example.com transform=secret.example.com"), withSecret(l, "secret.example.com"))
	transformed := func(addr string) string {
		return fetch(l.clientTo(addr, false), get(fmt.Sprintf("https://secret.example.com:%d/", port+1)))
	}
	random := rand.New(rand.NewPCG(8305, 1))
	type world struct{ addrs []string }
	worlds := []world{
		{[]string{kinds["silent"][1], kinds["silent"][3], kinds["silent"][5], kinds["silent"][7], alphaAddr}},     // four AAAA without a way
		{[]string{kinds["refuses"][0], kinds["refuses"][2], kinds["refuses"][4], kinds["refuses"][6], alphaAddr}}, // the fifth answers
		{[]string{kinds["refuses"][1], kinds["refuses"][3], kinds["refuses"][5], kinds["refuses"][7], alpha6}},    // of the other family
		{[]string{kinds["silent"][0], kinds["silent"][2], kinds["silent"][4], kinds["silent"][6], alphaAddr}},     // four silent ones
		{slices.Concat(kinds["refuses"], []string{alphaAddr})},                                                    // many
	}
	for range 12 {
		addrs := []string{kinds["serves"][random.IntN(2)]}
		for range random.IntN(8) {
			of := kinds[[]string{"serves", "refuses", "silent"}[random.IntN(3)]]
			addrs = append(addrs, of[random.IntN(len(of))])
		}
		random.Shuffle(len(addrs), func(i, j int) { addrs[i], addrs[j] = addrs[j], addrs[i] })
		worlds = append(worlds, world{addrs})
	}
	for _, w := range worlds {
		l.mu.Lock()
		l.names["a.example.com"], l.names["secret.example.com"] = w.addrs, w.addrs
		l.mu.Unlock()
		l.enforcer.resolver.forget()
		chosen := w.addrs[random.IntN(len(w.addrs))]
		began := time.Now()
		got := l.http(net.JoinHostPort(chosen, fmt.Sprint(port)), request)
		took := time.Since(began)
		last := l.enforcer.log.entries().Entries[0]
		reached := last.Address.String()
		if got != "a.example.com" || last.Failure != "" || !slices.Contains(kinds["serves"], reached) || slices.Contains(kinds["serves"], chosen) && reached != chosen {
			t.Errorf("%v by %s: %q from %s %q", w.addrs, chosen, got, reached, last.Failure)
		}
		// One after another, the silent ones would take longer than there is.
		if took > l.enforcer.patience {
			t.Errorf("%v by %s: took %v", w.addrs, chosen, took)
		}
		if got := transformed(chosen); !slices.Contains(kinds["serves"], got) || slices.Contains(kinds["serves"], chosen) && got != chosen {
			t.Errorf("%v by %s, transformed: from %q", w.addrs, chosen, got)
		}
	}
	// Without one that answers the log says why.
	for _, tt := range []struct {
		addrs []string
		want  string
	}{
		{kinds["refuses"][:3], failedRefused}, {nil, failedLookup}, {[]string{kinds["silent"][0], kinds["refuses"][1]}, failedRefused}, {kinds["silent"][:2], failedTimeout},
	} {
		l.mu.Lock()
		l.names["a.example.com"], l.names["secret.example.com"] = tt.addrs, tt.addrs
		l.mu.Unlock()
		l.enforcer.resolver.forget()
		if got := l.http(net.JoinHostPort(otherAddr, fmt.Sprint(port)), request); got != refusedText {
			t.Errorf("%v: %q", tt.addrs, got)
		}
		if last := l.enforcer.log.entries().Entries[0]; !last.Allowed || last.Rule != "a.example.com" || last.Failure != tt.want {
			t.Errorf("%v: the log says %+v, want failure %q", tt.addrs, last, tt.want)
		}
		if got := transformed(otherAddr); !strings.Contains(got, "the server can't be reached") {
			t.Errorf("%v, transformed: %q", tt.addrs, got)
		}
		if last := l.enforcer.log.entries().Entries[0]; !last.Allowed || last.Rule != "secret.example.com" || last.Failure != tt.want {
			t.Errorf("%v, transformed: the log says %+v, want failure %q", tt.addrs, last, tt.want)
		}
	}
}

// A connection that its client has closed ends, whatever the server does, and so the names of
// others stay in reach.
func TestConnectionsThatTheirClientsClosedMakeRoom(t *testing.T) {
	l := newLab(t)
	// How long the kernel of a client knows a connection that it has closed.
	forget := func(seconds string) {
		l.inside.do(func() {
			if err := os.WriteFile("/proc/sys/net/ipv4/tcp_fin_timeout", []byte(seconds), 0); err != nil {
				t.Error(err)
			}
		})
	}
	forget("1")
	l.listen(alphaAddr+":7001", func(conn *net.TCPConn) { // it never closes
		io.Copy(io.Discard, conn)
		<-t.Context().Done()
	})
	l.listen(alphaAddr+":7002", greetAll)
	l.begin(1, parse(t, "allow=a.example.com"))
	open := func() net.Conn {
		conn, err := l.inside.dial("tcp", alphaAddr+":7001")
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(conn, request)
		return conn
	}
	half := func() int {
		l.enforcer.proxy.mu.Lock()
		defer l.enforcer.proxy.mu.Unlock()
		return len(l.enforcer.proxy.halves)
	}
	const places = 8
	l.setMaxFlows(places)
	for range places {
		open().Close()
	}
	l.eventually("they end by themselves", func() bool { return l.flows() == 0 })
	// One that is still there is not taken for closed.
	waiting := open().(*net.TCPConn)
	defer waiting.Close()
	waiting.CloseWrite()
	l.eventually("the proxy hears of its end", func() bool { return half() == 1 })
	gone := open()
	l.eventually("another is open", func() bool { return l.flows() == 2 })
	gone.Close()
	l.eventually("the closed one ends", func() bool { return l.flows() == 1 })
	if half() != 1 {
		t.Error("the one that waits for an answer has ended")
	}
	waiting.Close()
	l.eventually("it ends", func() bool { return l.flows() == 0 })
	// A full table makes room before that.
	forget("60")
	for range places {
		open().Close()
	}
	l.eventually("the proxy hears of their end", func() bool { return half() == places })
	if got := l.http(alphaAddr+":7002", request); got != "a.example.com" {
		t.Errorf("with a full table: %q", got)
	}
}

// What both sides have sent arrives, whoever closes first and however slowly it is read.
func TestTheEndOfAConnectionLosesNothing(t *testing.T) {
	l := newLab(t)
	l.inside.do(func() { os.WriteFile("/proc/sys/net/ipv4/tcp_fin_timeout", []byte("1"), 0) })
	const size = 24 << 20
	body := make([]byte, size)
	got, goOn := make(chan int64, 1), make(chan struct{})
	l.listen(alphaAddr+":7001", func(conn *net.TCPConn) { // an upload by a client that has gone long ago
		<-goOn
		n, _ := io.Copy(io.Discard, conn)
		got <- n
	})
	l.listen(alphaAddr+":7002", func(conn *net.TCPConn) { // an answer after the client's end
		io.Copy(io.Discard, conn)
		conn.Write(body)
	})
	l.listen(alphaAddr+":7003", func(conn *net.TCPConn) { // and a server that has gone
		http.ReadRequest(bufio.NewReader(conn))
		conn.Write(body)
	})
	l.begin(1, parse(t, "allow=a.example.com"))

	up, err := l.inside.dial("tcp", alphaAddr+":7001")
	if err != nil {
		t.Fatal(err)
	}
	io.WriteString(up, request)
	up.SetWriteDeadline(time.Now().Add(2 * time.Second))
	sent, _ := up.Write(body) // what fits
	up.Close()
	for port, closes := range map[string]bool{"7002": true, "7003": false} {
		down, err := l.inside.dial("tcp", alphaAddr+":"+port)
		if err != nil {
			t.Fatal(err)
		}
		defer down.Close()
		io.WriteString(down, request)
		if closes {
			down.(*net.TCPConn).CloseWrite()
		}
		n, err := io.Copy(io.Discard, down)
		if n != size || err != nil {
			t.Errorf("%s: received %d of %d, %v", port, n, size, err)
		}
	}
	close(goOn)
	if n := <-got; n != int64(sent+len(request)) {
		t.Errorf("the server received %d of %d", n, sent+len(request))
	}
}

// Connections beyond the places wait for one, and none is denied.
func TestACrowdWaitsForPlaces(t *testing.T) {
	l := newLab(t)
	l.listen(alphaAddr+":7001", greetAll)
	l.begin(1, parse(t, "allow=a.example.com"))
	burst := func(n int) map[string]int {
		var all sync.WaitGroup
		var mu sync.Mutex
		results := map[string]int{}
		for range n {
			all.Go(func() {
				said := "dial"
				var conn net.Conn
				var err error
				l.inside.aside(func() { conn, err = net.Dial("tcp", alphaAddr+":7001") })
				if err == nil {
					defer conn.Close()
					conn.SetDeadline(time.Now().Add(5 * time.Minute))
					io.WriteString(conn, request)
					if resp, err := http.ReadResponse(bufio.NewReader(conn), nil); err != nil {
						said = errText(err)
					} else {
						said = resp.Status
					}
				}
				mu.Lock()
				defer mu.Unlock()
				results[said]++
			})
		}
		all.Wait()
		return results
	}
	l.setMaxFlows(600)
	if diff := cmp.Diff(map[string]int{"200 OK": 500}, burst(500)); diff != "" {
		t.Errorf("a burst with places for all: %s", diff)
	}
	l.eventually("they end", func() bool { return l.flows() == 0 })
	l.setMaxFlows(20)
	if diff := cmp.Diff(map[string]int{"200 OK": 100}, burst(100)); diff != "" {
		t.Errorf("a burst with few places: %s", diff)
	}
	l.eventually("they end", func() bool { return l.flows() == 0 })
	// Silent ones make room, and the log does not say that the policy refused them.
	l.setMaxFlows(4)
	for range 4 {
		conn, err := l.inside.dial("tcp", alphaAddr+":7001")
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	l.eventually("they have the places", func() bool { return l.flows() == 4 })
	if got := l.http(alphaAddr+":7001", request); got != "a.example.com" {
		t.Errorf("beside silent ones: %q", got)
	}
	want := []string{" 203.0.113.1 7001 tcp busy false ", "a.example.com 203.0.113.1 7001 tcp a.example.com true "}
	late := " 203.0.113.1 7001 tcp name false " // of those that are silent for helloTime, where all this took so long
	l.eventually("it is in the log", func() bool {
		return slices.Equal(slices.DeleteFunc(l.decisions(), func(d string) bool { return d == late }), want)
	})
}

// Where all places are in use for longer than a connection waits it is reset, and the log says why.
func TestConnectionsWithoutAPlaceAreBusy(t *testing.T) {
	l := newLab(t)
	arrived, goOn := make(chan struct{}), make(chan struct{})
	l.listen(alphaAddr+":7001", func(conn *net.TCPConn) {
		http.ReadRequest(bufio.NewReader(conn))
		arrived <- struct{}{}
		<-goOn
		io.WriteString(conn, "HTTP/1.1 204 No Content\r\n\r\n")
	})
	l.begin(1, parse(t, "allow=a.example.com"))
	said := make(chan string, 2)
	for range 2 {
		go func() { said <- l.http(alphaAddr+":7001", request) }()
		<-arrived
	}
	l.eventually("they have the places", func() bool { return l.flows() == 2 })
	l.enforcer.patience = 500 * time.Millisecond
	l.setMaxFlows(2)
	if got := l.http(alphaAddr+":7001", request); got != refusedText {
		t.Errorf("without a place: %q", got)
	}
	close(goOn)
	for range 2 {
		if got := <-said; got == refusedText {
			t.Errorf("with a place: %q", got)
		}
	}
	want := []string{" 203.0.113.1 7001 tcp busy false ", "a.example.com 203.0.113.1 7001 tcp a.example.com true "}
	if diff := cmp.Diff(want, l.decisions()); diff != "" {
		t.Errorf("the log (-want +got):\n%s", diff)
	}
}

// The documentation has the numbers of the code.
func TestLimitsOfConnectionsAreDocumented(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../../../docs/limits.md")
	if err != nil {
		t.Fatal(err)
	}
	all := strings.Join(strings.Fields(string(text)), " ")
	for _, want := range []string{
		fmt.Sprintf("serves %d,%03d connections by name at a time, %d of them to transformed names, each with %d requests", maxFlows/1000, maxFlows%1000, maxInjected, maxStreams),
		fmt.Sprintf("More wait for up to %d s", int(busyTime.Seconds())),
		fmt.Sprintf("when its client has said nothing for %d s", int(speakTime.Seconds())),
		fmt.Sprintf("A connection by name whose client says nothing for %d s is reset", int(helloTime.Seconds())),
		fmt.Sprintf("a silent server a reset after %d s", int(dialTime.Seconds())),
	} {
		if !strings.Contains(all, want) {
			t.Errorf("docs/limits.md does not say %q", want)
		}
	}
}

// What is not allowed, does not listen, does not answer, and what there was no room for differ in
// the log, although a client can't tell them apart.
func TestTheLogTellsFailuresApart(t *testing.T) {
	l := newLab(t)
	l.outside.ip("route add blackhole 203.0.113.99")
	l.enforcer.patience = time.Second
	l.mu.Lock()
	l.names["silent.example.com"], l.names["none.example.com"] = []string{"203.0.113.99"}, nil
	l.mu.Unlock()
	l.begin(1, parse(t, "allow=*.example.com transform=secret.example.com"), withSecret(l, "secret.example.com"))
	web := func(host, addr string) string {
		return l.http(addr, "GET / HTTP/1.1\r\nHost: "+host+"\r\nConnection: close\r\n\r\n")
	}
	said := map[string]string{
		"a server":         web("a.example.com", alphaAddr+":80"),
		"closed port":      web("a.example.com", alphaAddr+":81"),
		"silent":           web("silent.example.com", alphaAddr+":80"),
		"no address":       web("none.example.com", alphaAddr+":80"),
		"not listed":       web("evil.test", alphaAddr+":80"),
		"protected":        web("meta.example.com", alphaAddr+":80"),
		"transformed":      fetch(l.client(false), get("https://secret.example.com:8444/")),
		"transformed, not": fetch(l.client(false), get("https://secret.example.com:81/")),
	}
	want := []string{
		"a.example.com 203.0.113.1 80 tcp *.example.com true ",
		"a.example.com 203.0.113.1 81 tcp *.example.com true refused",
		"evil.test 203.0.113.1 80 tcp name false ",
		"meta.example.com 169.254.169.254 80 tcp protected false ",
		"none.example.com invalid IP 80 tcp *.example.com true lookup",
		"secret.example.com 203.0.113.1 81 tcp secret.example.com true refused",
		"secret.example.com invalid IP 81 tcp secret.example.com true ",
		"secret.example.com invalid IP 8444 tcp secret.example.com true ",
		"silent.example.com 203.0.113.99 80 tcp *.example.com true timeout",
	}
	if diff := cmp.Diff(want, l.decisions()); diff != "" {
		t.Errorf("the log (-want +got):\n%s%v", diff, said)
	}
}

// The kernel says by itself that a client has gone which asked for a name. That is no attempt of a
// program's.
func TestTheLogHasNoMessagesOfTheKernelsOwn(t *testing.T) {
	l := newLab(t)
	if l.enforcer.noLog {
		t.Fatal("the kernel does not tell what it refuses")
	}
	l.begin(1, parse(t, "allow=a.example.com"))
	for range 20 {
		conn, err := l.inside.dial("udp", otherAddr+":53")
		if err != nil {
			t.Fatal(err)
		}
		b := dnsmessage.NewBuilder(nil, dnsmessage.Header{ID: 7})
		b.StartQuestions()
		b.Question(dnsmessage.Question{Name: dnsmessage.MustNewName("evil.test."), Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET})
		message, _ := b.Finish()
		conn.Write(message)
		conn.Close()
	}
	l.lookup(resolverIP, "evil.test", dnsmessage.TypeA) // is answered after them
	l.udp(otherAddr + ":9000")                          // and this is in the log after what they caused
	l.eventually("the log has what was refused", func() bool {
		return slices.Contains(l.decisions(), " "+otherAddr+" 9000 udp name false ")
	})
	for _, d := range l.decisions() {
		if strings.Contains(d, " icmp ") {
			t.Errorf("the log has %q", d)
		}
	}
}
