// Package guesttest is a hostile guest for tests: it speaks the guest's protocol and lies in
// every message.
package guesttest

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"io"
	"maps"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// Evil is a text that a terminal or a log obeys. No error of the client may have it.
const Evil = "\x1b]0;owned\a\nlevel=error msg=forged"

// A Lie is what a hostile guest does with each channel that its client opens.
type Lie struct {
	Name string
	Open func(ssh.NewChannel)
}

// Serve returns the client's end of a connection to a guest that calls open, in a goroutine
// for each, with the channels that the client opens. open returns when the channel fails. The
// guest ends with the test.
func Serve(t testing.TB, open func(ssh.NewChannel)) net.Conn {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	near, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	far, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	side := &freezing{Conn: far, closed: make(chan struct{})}
	var all sync.WaitGroup
	all.Go(func() {
		sc, chans, reqs, err := wire.ServerConn(side)
		if err != nil {
			return // the client left
		}
		all.Go(func() { answer(reqs, true) })
		for nc := range chans {
			all.Go(func() { open(opened{nc, side}) })
		}
		sc.Wait()
	})
	t.Cleanup(func() {
		side.Close()
		near.Close()
		all.Wait()
	})
	return near
}

// freezing is the guest's end of a connection, which it can stop to read.
type freezing struct {
	net.Conn
	frozen atomic.Bool
	once   sync.Once
	closed chan struct{}
}

func (f *freezing) Read(b []byte) (int, error) {
	n, err := f.Conn.Read(b)
	if f.frozen.Load() {
		<-f.closed
		return 0, net.ErrClosed
	}
	return n, err
}

func (f *freezing) Close() error {
	f.once.Do(func() { close(f.closed) })
	return f.Conn.Close()
}

// opened is a channel that the client opens.
type opened struct {
	ssh.NewChannel
	side *freezing
}

// freeze lets the guest read nothing more from the client, on any channel.
func freeze(nc ssh.NewChannel) { nc.(opened).side.frozen.Store(true) }

// Frozen returns what reads nothing more from the client, on any channel, and then does as lie.
func Frozen(lie func(ssh.NewChannel)) func(ssh.NewChannel) {
	return func(nc ssh.NewChannel) {
		freeze(nc)
		lie(nc)
	}
}

// answer replies to requests.
func answer(reqs <-chan *ssh.Request, ok bool) {
	for r := range reqs {
		if r.WantReply {
			r.Reply(ok, nil)
		}
	}
}

// accept accepts a channel and leaves its requests without an answer.
func accept(nc ssh.NewChannel) (ssh.Channel, bool) {
	ch, reqs, err := nc.Accept()
	if err != nil {
		return nil, false
	}
	go func() {
		for range reqs {
		}
	}()
	return ch, true
}

// Start accepts a command and reports that it runs, or a dial and reports that it is connected.
func Start(nc ssh.NewChannel) (ssh.Channel, bool) {
	ch, ok := accept(nc)
	if !ok {
		return nil, false
	}
	switch nc.ChannelType() {
	case wire.ChannelDial:
		_, err := ch.SendRequest(wire.RequestDialed, false, []byte(`{"local":"127.0.0.1:1","remote":"127.0.0.1:2"}`))
		return ch, err == nil
	case wire.ChannelExec, wire.ChannelProcess:
		_, err := ch.SendRequest(wire.RequestStarted, false, []byte(`{"pid":5}`))
		return ch, err == nil
	}
	return ch, true
}

// Stream returns what runs each command with that output, and never ends it. Without again
// the output ends there.
func Stream(once, again []byte) func(ssh.NewChannel) {
	return func(nc ssh.NewChannel) {
		ch, ok := Start(nc)
		if !ok {
			return
		}
		go io.Copy(io.Discard, ch)
		_, err := ch.Write(once)
		for err == nil && len(again) > 0 {
			_, err = ch.Write(again)
		}
		if err == nil {
			ch.CloseWrite()
		}
	}
}

// Frames returns what answers each request of the file server with raw bytes. asked is the
// length that a FileRead asks for.
func Frames(reply func(id uint32, op byte, asked int64) []byte) func(ssh.NewChannel) {
	return func(nc ssh.NewChannel) {
		ch, ok := Start(nc)
		if !ok {
			return
		}
		for {
			id, op, body, err := wire.ReadFrame(ch)
			if err != nil {
				return
			}
			asked := int64(0)
			if u := wire.NewUnpack(body); op == wire.FileRead {
				_, _, asked = u.Uint(), u.Int(), u.Int()
			}
			if _, err := ch.Write(reply(id, op, asked)); err != nil {
				return
			}
		}
	}
}

// Frame returns a successful reply.
func Frame(id uint32, body func(*wire.Pack)) []byte {
	p := wire.NewFrame(64)
	body(&p)
	return p.End(id, wire.FileOK)
}

// reject returns what refuses each channel with a message.
func reject(message string) func(ssh.NewChannel) {
	return func(nc ssh.NewChannel) { nc.Reject(ssh.Prohibited, message) }
}

// says returns what accepts each channel, sends requests on it, and then nothing more.
func says(requests ...ssh.Request) func(ssh.NewChannel) {
	return func(nc ssh.NewChannel) {
		ch, ok := accept(nc)
		if !ok {
			return
		}
		for _, r := range requests {
			ch.SendRequest(r.Type, false, r.Payload)
		}
	}
}

// request is a request of the guest.
func request(kind, payload string) ssh.Request {
	return ssh.Request{Type: kind, Payload: []byte(payload)}
}

// repeat returns what accepts each channel and calls send until it fails.
func repeat(send func(ssh.Channel) error) func(ssh.NewChannel) {
	return func(nc ssh.NewChannel) {
		ch, ok := Start(nc)
		if !ok {
			return
		}
		go io.Copy(io.Discard, ch)
		for send(ch) == nil {
		}
	}
}

func flood(kind string, reply bool, payload []byte) func(ssh.NewChannel) {
	return repeat(func(ch ssh.Channel) error {
		_, err := ch.SendRequest(kind, reply, payload)
		return err
	})
}

// entry is a directory entry.
func entry(p *wire.Pack, name string, size int64) {
	p.Info(wire.FileInfo{Name: name, Mode: 0o100644, Size: size})
}

// Lies returns every lie, for every call.
func Lies() []Lie {
	started, exit := request(wire.RequestStarted, `{"pid":5}`), request(wire.RequestExit, `{"code":0}`)
	evil, _ := json.Marshal(Evil)
	long := strings.Repeat(Evil, 3000)
	zeros := make([]byte, 32<<10)
	lines := []byte(strings.Repeat(`{"nonce":"AAAA","error":`+string(evil)+"}\n", 100))
	lies := []Lie{
		{"never answers an open", func(ssh.NewChannel) {}},
		{"refuses with a text", reject(Evil)},
		{"refuses with a long text", reject(long)},
		{"refuses with null", reject("null")},
		{"refuses with truncated JSON", reject(`{"kind":"other","mess`)},
		{"refuses with another type", reject(`{"kind":7,"message":[]}`)},
		{"refuses with a kind of its own", reject(`{"kind":"x","message":` + string(evil) + `}`)},
		{"refuses a directory", reject(`{"kind":"directory","message":` + string(evil) + `}`)},
		{"refuses a name", reject(`{"kind":"unknown-name","name":` + string(evil) + `}`)},
		{"refuses an address", reject(`{"kind":"malformed","message":` + string(evil) + `}`)},
		{"accepts and is silent", says()},
		{"accepts and closes", func(nc ssh.NewChannel) {
			if ch, ok := accept(nc); ok {
				ch.Close()
			}
		}},
		{"starts and is silent", says(started)},
		{"starts twice", says(started, started, started)},
		{"exits before it starts", says(exit, exit)},
		{"exits twice", says(started, exit, exit)},
		{"exits with a negative code", says(started, request(wire.RequestExit, `{"code":-1}`))},
		{"exits with a code that is none", says(started, request(wire.RequestExit, `{"code":4294967296}`))},
		{"exits with a signal that is none", says(started, request(wire.RequestExit, `{"code":1,"signal":-9,"dropped":-1}`))},
		{"starts with a negative PID", says(request(wire.RequestStarted, `{"pid":-5}`))},
		{"starts with truncated JSON", says(request(wire.RequestStarted, `{"pid":`))},
		{"starts with a command of its own", says(request(wire.RequestStarted, `{"pid":5,"exec":{"path":`+string(evil)+`,"args":[`+string(evil)+`]}}`), request(wire.RequestExit, `{"code":1}`))},
		{"connects with texts as addresses", says(request(wire.RequestDialed, `{"local":`+string(evil)+`,"remote":`+string(evil)+`}`))},
		{"connects with truncated JSON", says(request(wire.RequestDialed, `{"local":`), request(wire.RequestDialEnd, `[`))},
		{"floods both streams", repeat(func(ch ssh.Channel) error {
			if _, err := ch.Write(zeros); err != nil {
				return err
			}
			_, err := ch.Stderr().Write(zeros)
			return err
		})},
		{"floods lines", Stream(nil, lines)},
		{"sends a line without an end", Stream(nil, []byte(strings.Repeat("x", 32<<10)))},
		{"sends truncated JSON", Stream([]byte(`{"nonce":"AAAA`), nil)},
		{"sends a challenge that is none", Stream([]byte(`{"nonce":"AAAA"}`+"\n"), nil)},
		{"floods unknown requests", flood("unknown", false, zeros)},
		{"floods requests that want an answer", flood("unknown", true, nil)},
		{"floods parts", flood(wire.RequestPart, false, make([]byte, wire.MaxPart))},
		{"floods starts", flood(wire.RequestStarted, false, []byte(`{"pid":5}`))},
		{"reads nothing once a channel is opened", Frozen(func(ssh.NewChannel) {})},
		{"reads nothing once it has accepted", Frozen(says())},
		{"reads nothing once it has started", Frozen(says(started))},
		{"reads nothing once it has ended", Frozen(says(started, exit))},
		{"reads nothing and floods", Frozen(Stream(nil, zeros))},
		{"reads nothing and wants answers", Frozen(flood("unknown", true, nil))},
		{"dials back", func(nc ssh.NewChannel) { nc.Reject(ssh.ConnectionFailed, "") }},
	}
	return append(lies, fileLies()...)
}

// fileLies are those of a file server.
func fileLies() (lies []Lie) {
	frames := map[string]func(id uint32, op byte, asked int64) []byte{
		"a huge frame":       func(id uint32, op byte, asked int64) []byte { return []byte("\xff\xff\xff\xff\x00\x00\x00\x00\x00") },
		"a frame of nothing": func(id uint32, op byte, asked int64) []byte { return []byte("\x00\x00\x00\x00\x00\x00\x00\x00\x00") },
		"a frame that ends":  func(id uint32, op byte, asked int64) []byte { return binary.BigEndian.AppendUint32(nil, 1000) },
		"another ID":         func(id uint32, op byte, asked int64) []byte { return Frame(id+1, func(*wire.Pack) {}) },
		"each answer twice":  func(id uint32, op byte, asked int64) []byte { b := honest(id, op); return append(b, b...) },
		"an empty answer":    func(id uint32, op byte, asked int64) []byte { return Frame(id, func(*wire.Pack) {}) },
		"a kind of its own":  func(id uint32, op byte, asked int64) []byte { p := wire.NewFrame(9); return p.End(id, 77) },
		"an error of no kind": func(id uint32, op byte, asked int64) []byte {
			p := wire.NewFrame(9)
			p.Uint(0)
			return p.End(id, wire.FileFailed)
		},
		"an error too high": func(id uint32, op byte, asked int64) []byte {
			p := wire.NewFrame(9)
			p.Uint(1 << 40)
			return p.End(id, wire.FileFailed)
		},
		"numbers too large": func(id uint32, op byte, asked int64) []byte {
			return Frame(id, func(p *wire.Pack) { *p = append(*p, strings.Repeat("\xff", 100)...) })
		},
		"a string too long": func(id uint32, op byte, asked int64) []byte { return Frame(id, func(p *wire.Pack) { p.Uint(1 << 62) }) },
		"more than was asked": func(id uint32, op byte, asked int64) []byte {
			return Frame(id, func(p *wire.Pack) { p.Bytes(make([]byte, wire.MaxFileData)) })
		},
		"a negative size": func(id uint32, op byte, asked int64) []byte { return endlessFile(id, op, asked, -1) },
		"no end":          func(id uint32, op byte, asked int64) []byte { return endlessFile(id, op, asked, 1<<62) },
		"no end, no size": func(id uint32, op byte, asked int64) []byte { return endlessFile(id, op, asked, 0) },
		"entries without an end": func(id uint32, op byte, asked int64) []byte {
			return Frame(id, func(p *wire.Pack) {
				p.Uint(1)
				for range 2000 {
					entry(p, "entry", 0)
				}
			})
		},
		"no entries without an end": func(id uint32, op byte, asked int64) []byte { return Frame(id, func(p *wire.Pack) { p.Uint(1) }) },
		"entries that lead out": func(id uint32, op byte, asked int64) []byte {
			return Frame(id, func(p *wire.Pack) {
				p.Uint(0)
				entry(p, "../../outside"+Evil, 1)
			})
		},
	}
	for name, reply := range frames {
		lies = append(lies, Lie{"file server: " + name, Frames(reply)})
	}
	return lies
}

// honest is a reply that some operation takes.
func honest(id uint32, op byte) []byte {
	return Frame(id, func(p *wire.Pack) {
		switch op {
		case wire.FileRead:
			p.Bytes([]byte("x"))
		case wire.FileReadAll:
			p.Uint(0)
			entry(p, "", 1)
			p.Bytes([]byte("x"))
		case wire.FileOpen:
			p.Uint(1)
			entry(p, "", 1)
		case wire.FileLstat, wire.FileStat, wire.FileFstat:
			entry(p, "", 1)
		default:
			p.Uint(1)
		}
	})
}

// endlessFile answers as if each file had a size, or said it had, and never ended.
func endlessFile(id uint32, op byte, asked, size int64) []byte {
	return Frame(id, func(p *wire.Pack) {
		switch op {
		case wire.FileReadAll:
			p.Uint(1)
			entry(p, "", size)
			p.Bytes(make([]byte, wire.MaxFileData))
		case wire.FileRead:
			p.Bytes(make([]byte, asked))
		case wire.FileOpen:
			p.Uint(1)
			entry(p, "", size)
		default:
			p.Uint(1)
		}
	})
}

// A Call is a call of the client on a connection of its own.
type Call struct {
	Name string
	Do   func(ctx context.Context, rw net.Conn) error
}

const (
	callTime = 200 * time.Millisecond // of a call's context
	callEnd  = time.Minute            // by which it has returned, however slow the machine is
)

// batch is how many lies run at the same time: most only wait.
const batch = 8

// Run makes all calls to hostile guests, one for each call and lie, with contexts that end soon.
// It fails the test if a call does not return, or returns an error that is not printable, or if
// the calls to a batch of guests take more memory than that.
func Run(t *testing.T, lies []Lie, memory int64, calls []Call) {
	slices.SortFunc(lies, func(a, b Lie) int { return strings.Compare(a.Name, b.Name) })
	for some := range slices.Chunk(lies, batch) {
		t.Run(some[0].Name, func(t *testing.T) { run(t, some, memory, calls) })
	}
}

func run(t *testing.T, lies []Lie, memory int64, calls []Call) {
	before := heap()
	var peak int64
	done := make(chan string, len(lies)*len(calls))
	left := map[string]bool{}
	for _, lie := range lies {
		for _, c := range calls {
			name, rw := lie.Name+": "+c.Name, Serve(t, lie.Open)
			left[name] = true
			go func() {
				ctx, cancel := context.WithTimeout(t.Context(), callTime)
				defer cancel()
				if err := c.Do(ctx, rw); err != nil && strings.ContainsAny(err.Error(), "\x1b\a\n") {
					t.Errorf("%s: the error is %.300q", name, err)
				}
				done <- name
			}()
		}
	}
	late, sample := time.After(callEnd), time.NewTicker(callTime)
	defer sample.Stop()
	for len(left) > 0 {
		select {
		case name := <-done:
			delete(left, name)
		case <-sample.C:
			peak = max(peak, heap()-before)
		case <-late:
			t.Fatalf("after %v these have not returned: %v", callEnd, slices.Sorted(maps.Keys(left)))
		}
	}
	if peak = max(peak, heap()-before); peak > memory {
		t.Errorf("the calls held %d bytes, want at most %d", peak, memory)
	}
	t.Logf("%d bytes at most", peak)
}

// heap is the memory in use once garbage is gone.
func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// On returns a call on the connection to a hostile guest, which it closes.
func On(name string, do func(ctx context.Context, c *guest.Conn) error) Call {
	return Call{Name: name, Do: func(ctx context.Context, rw net.Conn) error {
		c, err := guest.Dial(context.WithoutCancel(ctx), rw)
		if err != nil {
			return err
		}
		defer c.Close()
		return do(ctx, c)
	}}
}

// OnFiles returns a call of a file server, or of what the guest says is one.
func OnFiles(name string, do func(ctx context.Context, f *guest.Files) error) Call {
	return On(name, func(ctx context.Context, c *guest.Conn) error {
		f, err := c.Files(ctx, "")
		if err != nil {
			return err
		}
		defer f.Close()
		return do(ctx, f)
	})
}
