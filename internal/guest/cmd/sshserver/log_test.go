//go:build linux

package sshserver

import (
	"bytes"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// Every frame is one write that the kernel keeps together, and the frames of a line
// are the line.
func TestJobLogFramesAreWhole(t *testing.T) {
	t.Parallel()
	// In packets a read returns one write.
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_DIRECT|unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fds[0])
	defer unix.Close(fds[1])
	l := &containerLog{out: [2]int{fds[1], fds[1]}, head: wire.LogMark + "id "}
	lines := []string{"a", "", strings.Repeat("x", 4096), strings.Repeat("y", 20000), "cr\r", "no end"}
	ring := newRing()
	go func() {
		// In small pieces, so that frames are filled bit by bit.
		for all := []byte(strings.Join(lines, "\n")); len(all) > 0; {
			n := min(len(all), 1000)
			ring.write(streamOut, all[:n])
			all = all[n:]
		}
		ring.close()
	}()
	done := make(chan struct{})
	go func() { l.follow(ring); close(done) }()
	var got []string
	var line []byte
	buf := make([]byte, 2*wire.MaxLogFrame)
	for len(got) < len(lines) {
		n, err := unix.Read(fds[0], buf)
		if err != nil {
			t.Fatal(err)
		}
		text, ok := bytes.CutPrefix(buf[:n], []byte(l.head))
		if !ok || n > wire.MaxLogFrame || !bytes.HasSuffix(text, []byte("\n")) || bytes.Count(text, []byte("\n")) != 1 {
			t.Fatalf("a write of %d bytes: %.40q", n, buf[:n])
		}
		line = append(line, text[2:len(text)-1]...)
		if text[0] == wire.LogWhole {
			got = append(got, string(line))
			line = line[:0]
		}
	}
	<-done
	lines[4] = "cr"
	for i := range lines {
		if got[i] != lines[i] {
			t.Errorf("line %d has %d bytes, want %d", i, len(got[i]), len(lines[i]))
		}
	}
}

// Frames are cut between characters, wherever these are and however they come.
func TestJobLogFramesKeepCharactersWhole(t *testing.T) {
	t.Parallel()
	for seed := range uint64(200) {
		g := rand.New(rand.NewPCG(seed, 34))
		var want strings.Builder
		for size := 4000 + g.IntN(12000); want.Len() < size; {
			want.WriteString([]string{"a", "é", "€", "😀", strings.Repeat("ß", g.IntN(3000))}[g.IntN(5)])
		}
		var fds [2]int
		if err := unix.Pipe2(fds[:], unix.O_DIRECT|unix.O_CLOEXEC); err != nil {
			t.Fatal(err)
		}
		l := &containerLog{out: [2]int{fds[1], fds[1]}, head: wire.LogMark + "id "}
		for all := []byte(want.String() + "\n"); len(all) > 0; {
			n := min(len(all), 1+g.IntN(5000))
			l.add(0, all[:n])
			all = all[n:]
		}
		unix.Close(fds[1])
		var got []byte
		buf := make([]byte, 2*wire.MaxLogFrame)
		for {
			n, err := unix.Read(fds[0], buf)
			if err != nil {
				t.Fatal(err)
			}
			if n == 0 {
				break
			}
			text := buf[len(l.head)+2 : n-1]
			if !utf8.Valid(text) || n > wire.MaxLogFrame {
				t.Errorf("seed %d: a frame of %d bytes ends with %q and begins with %q", seed, n, text[max(0, len(text)-8):], text[:min(8, len(text))])
			}
			got = append(got, text...)
		}
		unix.Close(fds[0])
		if string(got) != want.String() {
			t.Errorf("seed %d: of %d bytes the frames have %d, or others", seed, want.Len(), len(got))
		}
	}
}

// The beginning of a line is written though the rest does not come, and the end of the line, or of the output, ends it.
func TestAQuestionIsInTheLogBeforeItsAnswer(t *testing.T) {
	t.Parallel()
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_DIRECT|unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fds[1])
	frames := os.NewFile(uintptr(fds[0]), "frames")
	defer frames.Close()
	frames.SetReadDeadline(time.Now().Add(5 * time.Minute))
	l := &containerLog{out: [2]int{fds[1], fds[1]}, head: wire.LogMark + "id "}
	ring := newRing()
	done := make(chan struct{})
	go func() { l.follow(ring); close(done) }()
	for _, step := range []struct{ write, want string }{
		{"no\n\r\xc3", ". no"}, {"\xa9 [y/N] \xe2\x82", "+ \ré [y/N] "}, {"\xac\r", "+ €"}, {"\n", ". "}, {"last", "+ last"}, {"", ". "},
	} {
		if ring.write(streamOut, []byte(step.write)); step.write == "" {
			ring.close()
		}
		buf := make([]byte, wire.MaxLogFrame)
		n, err := frames.Read(buf)
		if err != nil {
			t.Fatalf("after %q: %v", step.write, err)
		}
		if got := string(bytes.TrimPrefix(buf[:n], []byte(l.head))); got != step.want+"\n" {
			t.Errorf("after %q: frame %q, want %q", step.write, got, step.want)
		}
	}
	<-done
}

func TestBytesThatAreNoCharactersAreNotHeldBack(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int{
		"": 0, "abc": 3, "aé": 3, "a\xc3": 1, "a\xe2\x82": 1, "\xf0\x9f\x98": 0, "a\xf0\x9f\x98\x80": 5, "a\x80\x80\x80\x80": 5, "a\xff": 2, "\xc3\xc3": 1,
	} {
		if got := wholeRunes([]byte(text)); got != want {
			t.Errorf("wholeRunes(%q) = %d, want %d", text, got, want)
		}
	}
}

func TestOnlyPlainIDsAreLogged(t *testing.T) {
	t.Parallel()
	for id, want := range map[string]bool{
		"abc-1.2_x": true, "": false, "a b": false, "a\nb": false, "é": false,
		strings.Repeat("a", wire.MaxLogID): true, strings.Repeat("a", wire.MaxLogID+1): false,
	} {
		if got := loggable(id); got != want {
			t.Errorf("loggable(%q) = %v", id, got)
		}
	}
}
