package guest

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/seed-1a2d6d8f/sandbox/internal/errdefs"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// A name for which no DNS server answered is the error of package net, as a name that nobody has is.
func TestDialOfANameThatNobodyAnswersForIsADNSError(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	resolver := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}}
	var want, got *net.DNSError
	if _, err := (&net.Dialer{Resolver: resolver}).DialContext(ctx, "tcp", "nobody.example:80"); !errors.As(err, &want) {
		t.Fatalf("package net: %v", err)
	}
	text, _ := json.Marshal(wire.DialError{Kind: wire.DialTimeout, Message: want.Error(), Name: want.Name})
	if err := decodeDialError(string(text)); !errors.As(err, &got) || got.Name != want.Name || got.IsTimeout != want.IsTimeout || got.IsNotFound != want.IsNotFound {
		t.Errorf("got %v, want as package net: %v", err, want)
	}
}

func FuzzDecodeDialError(f *testing.F) {
	for _, e := range []wire.DialError{
		{Kind: wire.DialRefused, Message: "x"}, {Kind: wire.DialUnknownName, Name: "y"}, {Kind: wire.DialMalformed}, {Kind: "news"},
	} {
		text, _ := json.Marshal(e)
		f.Add(string(text))
	}
	f.Add("null")
	f.Add("administratively prohibited")
	f.Fuzz(func(t *testing.T, message string) {
		err := decodeDialError(message)
		if err == nil {
			t.Fatalf("%q is no error", message)
		}
		if text := err.Error(); errdefs.Printable(text) != text {
			t.Errorf("%q: the error is %q", message, text)
		}
	})
}

// FuzzDialedRequests feeds a dialled connection what a guest may say about it.
func FuzzDialedRequests(f *testing.F) {
	first, _ := json.Marshal(wire.Dialed{Local: "127.0.0.1:1", Remote: "[::1]:2"})
	end, _ := json.Marshal(wire.DialEnd{Kind: wire.DialReset})
	f.Add(wire.RequestDialed, first, wire.RequestDialEnd, end)
	f.Add(wire.RequestDialEnd, end, wire.RequestDialed, []byte("null"))
	f.Add(wire.RequestDialed, []byte(`{"local":"nonsense"}`), wire.RequestDialed, first)
	f.Fuzz(func(t *testing.T, kind1 string, payload1 []byte, kind2 string, payload2 []byte) {
		d := &dialed{ready: make(chan struct{}), reported: make(chan struct{}), over: make(chan struct{})}
		reqs := make(chan *ssh.Request, 2)
		reqs <- &ssh.Request{Type: kind1, Payload: payload1}
		reqs <- &ssh.Request{Type: kind2, Payload: payload2}
		close(reqs)
		d.listen(reqs)
		<-d.ready
		<-d.reported
		<-d.over
		if d.first != nil {
			for _, at := range []string{d.first.Local, d.first.Remote} {
				if text := endpoint("tcp", at).String() + endpoint("unix", at).String(); errdefs.Printable(text) != text {
					t.Errorf("the address is %q", text)
				}
			}
		}
	})
}
