package wire

import (
	"bytes"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestInfoSurvivesItsFrame(t *testing.T) {
	t.Parallel()
	want := FileInfo{Name: "a\xff\n", Mode: 0o104755, Size: 1 << 40, Mtime: time.Unix(0, -1), Atime: time.Unix(1<<40, 7), UID: 1<<32 - 2, GID: 7, Nlink: 3, Dev: 1 << 60, Ino: 9}
	p := NewFrame(64)
	p.Info(want)
	p.Bytes([]byte("rest"))
	id, kind, message, err := ReadFrame(bytes.NewReader(p.End(77, FileOK)))
	if id != 77 || kind != FileOK || err != nil {
		t.Fatalf("ReadFrame: %d, %d, %v", id, kind, err)
	}
	u := NewUnpack(message)
	if diff := cmp.Diff(want, u.Info()); diff != "" {
		t.Error(diff)
	}
	if got := u.Bytes(); string(got) != "rest" || u.More() || u.Err() != nil {
		t.Errorf("then %q, more %v, %v", got, u.More(), u.Err())
	}
}

// A reply has the ctime, that of an earlier version has none, and who does not know it does not meet it.
func TestTheCtimeIsAnAddition(t *testing.T) {
	t.Parallel()
	without := FileInfo{Name: "x", Mode: 0o100644, Mtime: time.Unix(1, 0), Atime: time.Unix(2, 0)}
	with := without
	with.Ctime = time.Unix(3, 4)
	var old, now Pack
	old.Info(with)
	now.Stat(with)
	for _, tt := range []struct {
		message Pack
		read    func(*Unpack) FileInfo
		want    FileInfo
	}{{now, (*Unpack).Stat, with}, {old, (*Unpack).Stat, without}, {now, (*Unpack).Info, without}} {
		u := NewUnpack(tt.message)
		if diff := cmp.Diff(tt.want, tt.read(u)); diff != "" || u.Err() != nil {
			t.Errorf("%v\n%s", u.Err(), diff)
		}
	}
}

func TestWhatIsMissingIsAnError(t *testing.T) {
	t.Parallel()
	for _, b := range []string{"", "\x05abcd", "\xff", "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"} {
		u := NewUnpack([]byte(b))
		if got := u.String(); got != "" || u.Err() == nil || u.More() {
			t.Errorf("a string of %q: %q, %v", b, got, u.Err())
		}
	}
}

func TestAReportHasABoundedList(t *testing.T) {
	t.Parallel()
	for n, ok := range map[int]bool{MaxSkipped: true, MaxSkipped + 1: false} {
		var p Pack
		(&Unpacked{Skipped: make([]Skipped, n)}).Pack(&p)
		if got, err := ReadUnpacked(p); (err == nil) != ok || len(got.Skipped) > MaxSkipped {
			t.Errorf("a list of %d: %d are read, %v", n, len(got.Skipped), err)
		}
	}
}

func FuzzReadFrame(f *testing.F) {
	p := NewFrame(64)
	p.Info(FileInfo{Name: "x"})
	f.Add(p.End(1, FileOK))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0})
	f.Add([]byte{0, 0, 0, 0, 0, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		r := bytes.NewReader(b)
		for {
			_, _, message, err := ReadFrame(r)
			if err != nil {
				return
			}
			if len(message) > len(b) {
				t.Fatalf("a message of %d bytes in %d", len(message), len(b))
			}
			for u := NewUnpack(message); u.More(); {
				if i := u.Info(); u.Err() == nil && i.Size < 0 {
					t.Fatalf("size %d", i.Size)
				}
			}
		}
	})
}

func FuzzReadUnpacked(f *testing.F) {
	var p Pack
	(&Unpacked{Files: 3, Failed: true, Path: "x", Text: "y", Errno: 28, Skipped: []Skipped{{"a", "b"}}}).Pack(&p)
	f.Add([]byte(p))
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := ReadUnpacked(b)
		if len(got.Skipped) > MaxSkipped {
			t.Fatalf("a list of %d", len(got.Skipped))
		}
		if err != nil {
			return
		}
		var again Pack
		got.Pack(&again)
		if back, err := ReadUnpacked(again); err != nil || !cmp.Equal(got, back) {
			t.Fatalf("%+v, again %+v, %v", got, back, err)
		}
	})
}
