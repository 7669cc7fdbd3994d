//go:build linux

package sshserver

import (
	"bytes"
	"math/rand/v2"
	"sync"
	"testing"
)

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
