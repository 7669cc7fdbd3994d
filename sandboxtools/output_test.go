package sandboxtools

import (
	"bytes"
	"strings"
	"testing"
	"unicode/utf8"
)

// Of what is written the beginning and the end are kept, however it is cut into pieces.
func FuzzOutputKeepsBothEnds(f *testing.F) {
	f.Add([]byte("0123456789abcdef"), uint8(8), uint8(3))
	f.Add([]byte("short"), uint8(8), uint8(1))
	f.Add(bytes.Repeat([]byte("xyz"), 100), uint8(7), uint8(50))
	f.Fuzz(func(t *testing.T, data []byte, limit, piece uint8) {
		keep, step := int(limit)+2, int(piece)+1
		var reported []byte
		o := &output{max: keep, report: func(p []byte) { reported = append(reported, p...) }}
		for rest := data; len(rest) > 0; {
			n := min(step, len(rest))
			if got, err := o.Write(rest[:n]); got != n || err != nil {
				t.Fatalf("Write = %d, %v", got, err)
			}
			rest = rest[n:]
		}
		text, omitted := o.text()
		want, missing := valid(data), int64(0)
		if len(data) > keep {
			missing = int64(len(data) - keep)
			want = valid(data[:keep/2]) + "\n[...]\n" + valid(data[len(data)-(keep-keep/2):])
		}
		if text != want || omitted != missing || !bytes.Equal(reported, data) {
			t.Errorf("%q in pieces of %d, keeping %d: %q without %d; want %q without %d", data, step, keep, text, omitted, want, missing)
		}
	})
}

func TestTextIsCutBetweenCharacters(t *testing.T) {
	const text = "aä€🙂"
	for n := range len(text) + 1 {
		got, err := lines("f", text[:n], true)
		if err != nil || !utf8.ValidString(got.Text) || !strings.HasPrefix(text, got.Text) || len(got.Text) < n-3 {
			t.Errorf("%d bytes: %q, %v", n, got.Text, err)
		}
	}
	if _, err := lines("f", "a\xff\xfe", true); err == nil {
		t.Error("no error for a file that is not text")
	}
}
