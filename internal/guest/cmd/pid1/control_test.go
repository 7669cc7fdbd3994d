//go:build linux

package pid1

import (
	"bufio"
	"bytes"
	"crypto/ed25519"
	"encoding/json"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/cmd/egress"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/cmd/proc"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// offline is a network without a policy.
type offline struct{}

func (offline) Begin(*wire.Begin) *egress.Refusal { return nil }
func (offline) InForce() <-chan struct{}          { return nil }
func (offline) Network() *wire.Network            { return &wire.Network{} }
func (offline) Log() *wire.EgressLog              { return &wire.EgressLog{} }
func (offline) Changed() <-chan error             { return nil }
func (offline) Connections() int64                { return 0 }

func (offline) Hook(egress.HookConn, *bufio.Reader, *wire.Hook) {}

func (offline) Cut() {}

// session without PID 1's powers, enough to answer requests.
func newSession(t testing.TB, key ed25519.PublicKey) *session {
	known := make(chan struct{})
	close(known)
	return &session{conf: wire.Init{ControlKey: key}, deadline: &deadlines{fd: -1, lease: after(time.Hour)}, egress: offline{}, mainKnown: known}
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
		s.control(b, proc.ID{}, func() {}, func() {})
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
