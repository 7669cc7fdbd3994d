package wire_test

import (
	"encoding/json"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// A client that signs a request sees the bytes that the server gets, also those that are not UTF-8, and
// a server gets the headers that a client sets.
func TestHeadersKeepTheirBytes(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(9, 3))
	text := func() string {
		b := make([]byte, random.IntN(8))
		for i := range b {
			b[i] = []byte{'a', ' ', 0xe9, 0xff, 0xc3, 0xa9, '"', '<', '\t'}[random.IntN(9)]
		}
		return string(b)
	}
	for range 2000 {
		header := map[string][]string{"X-A": {text(), text()}, "X-B": {text()}}
		request := wire.HookRequest{ID: random.Uint64(), Pattern: "*.example.com", Method: "POST", URL: "https://a.example.com/?" + text(), Host: "a.example.com", Header: header, Body: []byte(text() + "x"), More: true}
		reply := wire.HookReply{ID: random.Uint64(), Header: map[string][]string{"X-A": {text()}, "X-Gone": nil}, Failed: true, Late: true}
		secret := wire.Secret{Pattern: "*.example.com", Headers: map[string]string{"X-A": text(), "X-B": text()}, Hook: true}
		var gotSecret wire.Secret
		var gotRequest wire.HookRequest
		var gotReply wire.HookReply
		for from, to := range map[any]any{&request: &gotRequest, &reply: &gotReply, &secret: &gotSecret} {
			line, err := json.Marshal(from)
			if err == nil {
				err = json.Unmarshal(line, to)
			}
			if err != nil {
				t.Fatalf("%s: %v", line, err)
			}
		}
		if diff := cmp.Diff(request, gotRequest) + cmp.Diff(reply, gotReply) + cmp.Diff(secret, gotSecret); diff != "" {
			t.Fatalf("changed: %s", diff)
		}
	}
}
