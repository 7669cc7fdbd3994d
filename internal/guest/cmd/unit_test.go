//go:build linux

package main

import (
	"bufio"
	"bytes"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func text(s string) func() io.ReadCloser {
	return func() io.ReadCloser { return io.NopCloser(strings.NewReader(s)) }
}

func TestResolveUser(t *testing.T) {
	t.Parallel()
	passwd := "\n# comment\nbroken\nroot:x:0:0:root:/root:/bin/sh\nann:x:1000:1000::/home/ann:/bin/sh\n" +
		"42:x:7:7::/home/number:\nbad:x:-1:0::/:\nhuge:x:99999999999:0::/:\nnohome:x:9:9:::\n:x:11:11::/:\nann:x:2:2::/second:\n"
	group := "root:x:0:\nstaff:x:50:ann,bob\nwheel:x:10:bob,ann\nann:x:1000:\nbad:x:x:ann\n77:x:78:\n"
	for _, tt := range []struct {
		spec string
		want identity
		fail bool
	}{
		{spec: "", want: identity{name: "root", home: "/root", shell: "/bin/sh"}},
		{spec: "0", want: identity{name: "root", home: "/root", shell: "/bin/sh"}},
		{spec: "ann", want: identity{uid: 1000, gid: 1000, groups: []uint32{50, 10}, name: "ann", home: "/home/ann", shell: "/bin/sh"}},
		{spec: "1000", want: identity{uid: 1000, gid: 1000, groups: []uint32{50, 10}, name: "ann", home: "/home/ann", shell: "/bin/sh"}},
		{spec: "ann:", want: identity{uid: 1000, gid: 1000, groups: []uint32{50, 10}, name: "ann", home: "/home/ann", shell: "/bin/sh"}},
		{spec: "ann:staff", want: identity{uid: 1000, gid: 50, name: "ann", home: "/home/ann", shell: "/bin/sh"}},
		{spec: "ann:51", want: identity{uid: 1000, gid: 51, name: "ann", home: "/home/ann", shell: "/bin/sh"}},
		{spec: "ann:77", want: identity{uid: 1000, gid: 78, name: "ann", home: "/home/ann", shell: "/bin/sh"}},
		{spec: "42", want: identity{uid: 7, gid: 7, name: "42", home: "/home/number"}},
		{spec: "nohome", want: identity{uid: 9, gid: 9, name: "nohome", home: "/"}},
		{spec: "5555", want: identity{uid: 5555, home: "/"}},
		{spec: "5555:6", want: identity{uid: 5555, gid: 6, home: "/"}},
		{spec: ":50", want: identity{gid: 50, name: "root", home: "/root", shell: "/bin/sh"}},
		{spec: "bad", fail: true},
		{spec: "huge", fail: true},
		{spec: "nobody", fail: true},
		{spec: "ann:nogroup", fail: true},
		{spec: "-1", fail: true},
		{spec: "4294967295", fail: true},
		{spec: "4294967296", fail: true},
		{spec: "0:4294967295", fail: true},
	} {
		got, err := resolveUser(tt.spec, text(passwd), text(group))
		if (err != nil) != tt.fail {
			t.Errorf("%q: error %v", tt.spec, err)
		}
		if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(identity{})); diff != "" && !tt.fail {
			t.Errorf("%q (-want +got):\n%s", tt.spec, diff)
		}
	}
}

func TestAccountFilesMayBeAnything(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo")
	if err := unix.Mkfifo(fifo, 0o644); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink("/dev/zero", link); err != nil {
		t.Fatal(err)
	}
	huge := filepath.Join(dir, "huge")
	if err := os.WriteFile(huge, []byte("first:x:5:5::/:\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(huge, 1<<40); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{fifo, link, dir, filepath.Join(dir, "missing"), huge} {
		open := func() io.ReadCloser { return accounts(path) }
		id, err := resolveUser("1234", open, open)
		if err != nil || id.uid != 1234 {
			t.Errorf("%s: %+v, %v", path, id, err)
		}
	}
	if id, err := resolveUser("first", func() io.ReadCloser { return accounts(huge) }, text("")); err != nil || id.uid != 5 {
		t.Errorf("first line of a huge file: %+v, %v", id, err)
	}
}

func FuzzResolveUser(f *testing.F) {
	f.Add("ann:staff", "ann:x:1:2::/home:\n", "staff:x:50:ann\n")
	f.Add("0", "::::::\n", ":::\n")
	f.Fuzz(func(t *testing.T, spec, passwd, group string) {
		id, err := resolveUser(spec, text(passwd), text(group))
		if err != nil {
			return
		}
		if id.uid == 1<<32-1 || id.gid == 1<<32-1 || id.home == "" {
			t.Errorf("%q: %+v", spec, id)
		}
		for _, g := range id.groups {
			if g == 1<<32-1 {
				t.Errorf("%q: %+v", spec, id)
			}
		}
	})
}

func FuzzDecodeExec(f *testing.F) {
	for _, req := range []wire.Exec{
		{Args: []string{"a", "\xff"}, Env: []string{"A=\xfe"}, Dir: "/x\xfd", User: "u", ID: "i"},
		{Args: []string{"a"}, TTY: true, Size: wire.Size{Rows: 1, Cols: 2}, Timeout: 5, Stdin: true},
	} {
		b, _ := json.Marshal(req)
		f.Add(b)
	}
	f.Add([]byte(`{"args":[{"bytes":"AA=="}],"dir":{"bytes":null},"timeout":-1}`))
	f.Add([]byte("#12345678"))
	f.Fuzz(func(t *testing.T, extra []byte) {
		req, refused := decodeExec(extra, &parts{held: map[string][]byte{}})
		if refused != nil {
			return
		}
		// What is understood survives another trip.
		b, err := json.Marshal(req)
		if err != nil {
			t.Fatalf("%+v: %v", req, err)
		}
		var again wire.Exec
		if err := json.Unmarshal(b, &again); err != nil {
			t.Fatalf("%s: %v", b, err)
		}
		c, err := json.Marshal(again)
		if err != nil || !bytes.Equal(b, c) {
			t.Errorf("%s became %s (%v)", b, c, err)
		}
		environment(req.Env, identity{}, true)
	})
}

func FuzzParseStat(f *testing.F) {
	f.Add([]byte("1 (a) S 0 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 9 10 11 12 13 14\n"))
	f.Add([]byte("1 (a) R 1 (b)) Z 0 1 1"))
	f.Fuzz(func(t *testing.T, line []byte) { parseStat(1, line) })
}

func TestParseStatIgnoresTheName(t *testing.T) {
	t.Parallel()
	line := "77 (x) S 1 2 3) Z 5 6 7 0 -1 4194560 1 2 3 4 5 6 7 8 9 10 11 12 99 14 15\n"
	got, ok := parseStat(77, []byte(line))
	want := proc{pid: 77, ppid: 5, pgrp: 6, sid: 7, state: 'Z', start: 99}
	if !ok || got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestClosure(t *testing.T) {
	t.Parallel()
	table := []proc{
		{pid: 9, ppid: 8, state: 'S'}, {pid: 8, ppid: 7, state: 'Z'}, {pid: 7, ppid: 1, state: 'S'},
		{pid: 6, ppid: 1, sid: 7, state: 'S'}, {pid: 5, ppid: 6, state: 'R'}, {pid: 4, ppid: 1, state: 'S'},
	}
	var got []int
	for _, p := range closure(table, func(p proc) bool { return p.pid == 7 || p.sid == 7 }) {
		got = append(got, p.pid)
	}
	if diff := cmp.Diff([]int{9, 7, 6, 5}, got); diff != "" {
		t.Errorf("closure (-want +got):\n%s", diff)
	}
}

// session without PID 1's powers, enough to answer requests.
func newSession(t testing.TB, key ed25519.PublicKey) *session {
	known := make(chan struct{})
	close(known)
	return &session{conf: wire.Init{ControlKey: key}, deadline: &deadlines{fd: -1, lease: after(time.Hour)}, gate: idleGate(), mainKnown: known}
}

type talk struct {
	net.Conn
	r *bufio.Reader
}

// dialControl speaks to a session over a pipe.
func talkTo(t *testing.T, s *session) talk {
	a, b := net.Pipe()
	var done sync.WaitGroup
	done.Go(func() {
		s.control(b, func() {})
		b.Close()
	})
	t.Cleanup(func() {
		a.Close()
		done.Wait()
	})
	return talk{a, bufio.NewReader(a)}
}

func (c talk) read(t *testing.T, v any) error {
	t.Helper()
	line, err := c.r.ReadBytes('\n')
	if err != nil {
		return err
	}
	return json.Unmarshal(line, v)
}

func sign(key ed25519.PrivateKey, nonce []byte, req wire.Control) []byte {
	payload, _ := json.Marshal(req)
	line, _ := json.Marshal(wire.Signed{Payload: payload, Signature: ed25519.Sign(key, append(bytes.Clone(nonce), payload...))})
	return append(line, '\n')
}

func TestReplayedRequestIsRefused(t *testing.T) {
	t.Parallel()
	public, private, _ := ed25519.GenerateKey(nil)
	s := newSession(t, public)
	first := talkTo(t, s)
	var hello wire.Challenge
	if err := first.read(t, &hello); err != nil {
		t.Fatal(err)
	}
	request := sign(private, hello.Nonce, wire.Control{Op: wire.OpStatus})
	var reply wire.Reply
	first.Write(request)
	if err := first.read(t, &reply); err != nil || reply.Error != "" || bytes.Equal(reply.Nonce, hello.Nonce) {
		t.Fatalf("the request itself: %+v, %v", reply, err)
	}
	// On the same connection, and on another.
	second := talkTo(t, s)
	second.read(t, &hello)
	for i, conn := range []talk{first, second} {
		reply = wire.Reply{}
		conn.Write(request)
		if err := conn.read(t, &reply); err != nil || reply.Error != "wrong signature" || reply.Nonce != nil {
			t.Errorf("replay %d: %+v, %v", i, reply, err)
		}
		if err := conn.read(t, &reply); err == nil {
			t.Errorf("replay %d: the connection goes on", i)
		}
	}
	// The next one on a connection is signed for the nonce of the last reply.
	third := talkTo(t, s)
	third.read(t, &hello)
	nonce := hello.Nonce
	for range 3 {
		reply = wire.Reply{}
		third.Write(sign(private, nonce, wire.Control{Op: wire.OpStatus}))
		if err := third.read(t, &reply); err != nil || reply.Error != "" {
			t.Fatalf("%+v, %v", reply, err)
		}
		nonce = reply.Nonce
	}
}

func TestControlLinesAreBounded(t *testing.T) {
	t.Parallel()
	for _, n := range []int{wire.MaxControlLine, wire.MaxControlLine + 1, 10 * wire.MaxControlLine} {
		line := strings.Repeat("x", n-1) + "\n"
		got, err := readLine(bufio.NewReaderSize(strings.NewReader(line), 16), wire.MaxControlLine)
		if fits := n <= wire.MaxControlLine; fits != (err == nil) || fits && string(got) != line {
			t.Errorf("a line of %d bytes: %d, %v", n, len(got), err)
		}
	}
	if _, err := readLine(bufio.NewReader(strings.NewReader("no end")), wire.MaxControlLine); !errors.Is(err, io.EOF) {
		t.Errorf("a line without end: %v", err)
	}
}

func FuzzVerify(f *testing.F) {
	public, private, _ := ed25519.GenerateKey(rngReader{})
	nonce := make([]byte, wire.NonceSize)
	f.Add(sign(private, nonce, wire.Control{Op: wire.OpLease, Lease: 1}))
	f.Add([]byte(`{"payload":"e30=","signature":"AA=="}`))
	f.Add([]byte("{}"))
	good := sign(private, nonce, wire.Control{Op: wire.OpLease, Lease: 1})
	f.Fuzz(func(t *testing.T, line []byte) {
		req, err := verify(public, nonce, line)
		if err == nil && (req.Op != wire.OpLease || req.Lease != 1) {
			t.Errorf("%q was taken as %+v, though only %q was signed", line, req, good)
		}
	})
}

// rngReader makes keys the same in every run.
type rngReader struct{}

func (rngReader) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = byte(i)
	}
	return len(b), nil
}

func TestDeadlinesComeFromTheEarlier(t *testing.T) {
	t.Parallel()
	d := &deadlines{fd: -1, lease: after(time.Hour), timeout: after(2 * time.Hour)}
	left := func() (lease, timeout time.Duration) {
		var reply wire.Reply
		d.tell(&reply)
		return reply.LeaseLeft, reply.TimeLeft
	}
	d.renew(time.Minute) // never shortens
	if lease, _ := left(); lease < 59*time.Minute {
		t.Errorf("a renewal shortened the lease to %v", lease)
	}
	d.renew(1<<63 - 1)
	if lease, timeout := left(); lease < maxWait-time.Hour || timeout < time.Hour {
		t.Errorf("left %v and %v", lease, timeout)
	}
	d.release()
	if lease, timeout := left(); lease != 0 || timeout == 0 || d.check() != 0 {
		t.Errorf("left %v and %v, check %d", lease, timeout, d.check())
	}
	d.timeout = 1
	if code := d.check(); code != wire.CodeTimeout {
		t.Errorf("check: %d", code)
	}
	d.timeout, d.lease = 0, 1
	if code := d.check(); code != 0 {
		t.Errorf("check: %d, without a last chance", code)
	}
	d.lease = 1
	if code := d.check(); code != wire.CodeLease {
		t.Errorf("check: %d", code)
	}
}

func TestRingKeepsTheEnd(t *testing.T) {
	t.Parallel()
	r := newRing()
	var all [3][]byte // by stream
	var order []byte
	rng := rand.New(rand.NewPCG(1, 2))
	slow := r.follow()
	noise := make([]byte, 300_000)
	for i := range noise {
		noise[i] = byte(rng.Uint32())
	}
	for len(order) < 2*ringBytes {
		stream := byte(1 + rng.IntN(2))
		p := noise[rng.IntN(200_000):][:1+rng.IntN(100_000)]
		r.write(stream, p)
		all[stream] = append(all[stream], p...)
		order = append(order, p...)
		if r.memory > ringMemory {
			t.Fatalf("it takes %d bytes", r.memory)
		}
	}
	r.close()
	var got [3][]byte
	var gotOrder []byte
	for {
		stream, data, ok := slow.next()
		if !ok {
			break
		}
		got[stream] = append(got[stream], data...)
		gotOrder = append(gotOrder, data...)
	}
	if len(gotOrder) != ringBytes || slow.dropped != int64(len(order)-ringBytes) {
		t.Errorf("kept %d, dropped %d of %d", len(gotOrder), slow.dropped, len(order))
	}
	if !bytes.HasSuffix(order, gotOrder) || !bytes.HasSuffix(all[1], got[1]) || !bytes.HasSuffix(all[2], got[2]) {
		t.Error("what was kept is not the end of what was written")
	}
}

func TestRingOfTinyPiecesIsBounded(t *testing.T) {
	t.Parallel()
	r := newRing()
	for i := range 200_000 {
		r.write(byte(1+i%2), []byte{byte(i)})
	}
	if size := r.size(); size > ringMemory+chunkMax {
		t.Errorf("it takes %d bytes", size)
	}
	f := r.follow()
	r.close()
	n := int64(0)
	for {
		_, data, ok := f.next()
		if !ok {
			break
		}
		n += int64(len(data))
	}
	if n+f.dropped != 200_000 || n < 10_000 {
		t.Errorf("kept %d and dropped %d", n, f.dropped)
	}
}

func TestRingFollowersRunAlong(t *testing.T) {
	t.Parallel()
	r := newRing()
	var wg sync.WaitGroup
	for range 3 {
		f := r.follow()
		wg.Go(func() {
			n := int64(0)
			for {
				_, data, ok := f.next()
				if !ok {
					break
				}
				n += int64(len(data))
			}
			if n+f.dropped != 100*100_000 {
				t.Errorf("%d read and %d dropped", n, f.dropped)
			}
		})
	}
	quitter := r.follow()
	wg.Go(func() {
		for {
			if _, _, ok := quitter.next(); !ok {
				return
			}
		}
	})
	quitter.cancel()
	for range 100 {
		r.write(streamOut, make([]byte, 100_000))
	}
	r.close()
	wg.Wait()
}

func TestPartsAreBounded(t *testing.T) {
	t.Parallel()
	p := &parts{held: make(map[string][]byte)}
	part := make([]byte, 8+wire.MaxPart)
	n := 0
	for p.add(part) {
		n++
	}
	if n*wire.MaxPart > wire.MaxParts || p.size != 0 || len(p.held) != 0 {
		t.Errorf("%d parts taken, %d bytes held after that", n, p.size)
	}
	p.add([]byte("aaaaaaaa1"))
	p.add([]byte("bbbbbbbbx"))
	p.add([]byte("aaaaaaaa2"))
	if got := string(p.take("aaaaaaaa")); got != "12" || p.size != 1 {
		t.Errorf("took %q, %d bytes left", got, p.size)
	}
	if p.add([]byte("short")) || p.take("zzzzzzzz") != nil {
		t.Error("nonsense was taken")
	}
}

func TestStrangersAreFew(t *testing.T) {
	t.Parallel()
	var all guests
	one := func(pid int32) *guest {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		w.Close()
		g := &guest{conn: r, pid: pid}
		t.Cleanup(func() { r.Close() })
		return g
	}
	owner := one(1)
	all.add(owner)
	for range maxOfOne {
		if all.crowded(2) {
			t.Fatal("crowded too early")
		}
		all.add(one(2))
	}
	if !all.crowded(2) || all.crowded(1) {
		t.Error("one process can take all places")
	}
	all.befriend(owner)
	for i := range int32(1000) {
		all.add(one(100 + i))
	}
	if len(all.strangers) > maxStrangers || len(all.friends) != 1 || all.friends[0] != owner {
		t.Errorf("%d strangers, %d friends", len(all.strangers), len(all.friends))
	}
	all.remove(owner)
	if len(all.friends) != 0 {
		t.Error("a friend who left is remembered")
	}
}

func TestBadgesAreDistinctAndRest(t *testing.T) {
	t.Parallel()
	var b badges
	seen := map[badge]bool{}
	for range maxBadges {
		got := b.take()
		if got <= childOOMScore || got > 1000 || seen[got] {
			t.Fatalf("badge %d", got)
		}
		seen[got] = true
	}
	if b.take() != 0 {
		t.Error("more badges than there are")
	}
	b.release(childOOMScore + 5)
	if got := b.take(); got != childOOMScore+5 {
		t.Errorf("got %d", got)
	}
	b.release(0)
}

func TestReaperFindsWhatEndedEarly(t *testing.T) {
	// Not parallel: it collects every child of this process.
	r := newReaper()
	for range 20 {
		c, err := r.start(func() (int, error) {
			pid, err := syscall.ForkExec("/bin/sh", []string{"sh", "-c", "exit 3"}, &syscall.ProcAttr{})
			for err == nil {
				p, ok := process(pid)
				if !ok || p.dead() {
					break
				}
				time.Sleep(time.Millisecond)
			}
			r.reap()
			return pid, err
		})
		if err != nil {
			t.Fatal(err)
		}
		<-c.done
		if got := c.exit(); got.Code != 3 {
			t.Errorf("exit %+v", got)
		}
		if err := r.signal(c, unix.SIGKILL); err != unix.ESRCH {
			t.Errorf("signal: %v", err)
		}
	}
	if len(r.known) != 0 || len(r.early) != 0 {
		t.Errorf("left over: %v, %v", r.known, r.early)
	}
	if _, err := r.start(func() (int, error) { return 0, fmt.Errorf("no") }); err == nil {
		t.Error("start: no error")
	}
}
