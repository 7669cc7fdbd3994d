package engine_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
)

func frame(stream byte, payload string) string {
	h := make([]byte, 8)
	h[0] = stream
	binary.BigEndian.PutUint32(h[4:], uint32(len(payload)))
	return string(h) + payload
}

func TestDemux(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 200_000)
	for _, c := range []struct {
		name, in, out, err string
		end                error
	}{
		{"nothing", "", "", "", nil},
		{"both", frame(1, "a") + frame(2, "b") + frame(1, "c"), "ac", "b", nil},
		{"empty frames", frame(1, "") + frame(2, "") + frame(1, "c") + frame(1, ""), "c", "", nil},
		{"longer than the buffer", frame(1, long) + frame(2, long), long, long, nil},
		{"cut in a header", frame(1, "a") + "\x01\x00", "a", "", io.ErrUnexpectedEOF},
		{"cut in stdout", frame(1, "abc")[:10], "ab", "", io.ErrUnexpectedEOF},
		{"cut in stderr", frame(2, "abc")[:10], "", "ab", io.ErrUnexpectedEOF},
	} {
		for _, wrap := range []func(io.Reader) io.Reader{
			func(r io.Reader) io.Reader { return r }, iotest.HalfReader, iotest.DataErrReader,
		} {
			var stderr buffer
			out, err := io.ReadAll(engine.NewDemux(wrap(strings.NewReader(c.in)), &stderr))
			if string(out) != c.out || string(stderr) != c.err || !errors.Is(err, c.end) {
				t.Errorf("%s: %d bytes of stdout, %d of stderr, %v; want %d, %d, %v",
					c.name, len(out), len(stderr), err, len(c.out), len(c.err), c.end)
			}
		}
	}
}

func TestDemuxRefusesOtherFrames(t *testing.T) {
	t.Parallel()
	for _, in := range []string{frame(4, "x"), "\x01\x00\x01\x00\x00\x00\x00\x01x"} {
		if _, err := io.ReadAll(engine.NewDemux(strings.NewReader(in), nil)); err == nil {
			t.Errorf("Demux of %q: no error", in)
		}
	}
	var refused *engine.StatusError
	_, err := io.ReadAll(engine.NewDemux(strings.NewReader(frame(1, "a")+frame(3, "engine trouble")), nil))
	if !errors.As(err, &refused) || refused.Message != "engine trouble" {
		t.Errorf("Demux = %v, want the engine's error", err)
	}
}

func TestDemuxAllocatesNothingPerFrame(t *testing.T) {
	in := []byte(strings.Repeat(frame(1, "some output")+frame(2, "e"), 1000))
	p := make([]byte, 4096)
	n := testing.AllocsPerRun(10, func() {
		d := engine.NewDemux(bytes.NewReader(in), nil)
		for {
			if _, err := d.Read(p); err != nil {
				return
			}
		}
	})
	if n > 10 {
		t.Errorf("%v allocations for 2000 frames", n)
	}
}

// FuzzDemux holds Demux against a reader of frames written the slow way.
func FuzzDemux(f *testing.F) {
	f.Add([]byte(frame(1, "a")+frame(2, "b")), uint8(3))
	f.Add([]byte(frame(1, "abc")[:9]), uint8(1))
	f.Add([]byte(frame(3, "x")), uint8(200))
	f.Add([]byte{1, 0, 0, 0, 255, 255, 255, 255, 1}, uint8(8))
	f.Fuzz(func(t *testing.T, in []byte, size uint8) {
		var stderr buffer
		d := engine.NewDemux(iotest.HalfReader(bytes.NewReader(in)), &stderr)
		var out []byte
		var err error
		for p := make([]byte, int(size)+1); err == nil; {
			var n int
			n, err = d.Read(p)
			out = append(out, p[:n]...)
			if n == 0 && err == nil {
				t.Fatal("Read returned nothing, and no error")
			}
		}
		wantOut, wantErr, clean := slowly(in)
		if !bytes.Equal(out, wantOut) || !bytes.Equal(stderr, wantErr) || (err == io.EOF) != clean {
			t.Errorf("Demux(%x) = %q, %q, %v; want %q, %q, clean end %v", in, out, stderr, err, wantOut, wantErr, clean)
		}
	})
}

func slowly(in []byte) (out, errs []byte, clean bool) {
	for len(in) > 0 {
		if len(in) < 8 || in[1]|in[2]|in[3] != 0 || in[0] > 2 {
			return out, errs, false
		}
		size := uint64(binary.BigEndian.Uint32(in[4:8]))
		stream, rest := in[0], in[8:]
		cut := size > uint64(len(rest))
		if cut {
			size = uint64(len(rest))
		}
		if stream == 2 {
			errs = append(errs, rest[:size]...)
		} else {
			out = append(out, rest[:size]...)
		}
		if cut {
			return out, errs, false
		}
		in = rest[size:]
	}
	return out, errs, true
}
