package engine_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
)

// What goes in arrives.
func TestArchiveGoesInAndComesOut(t *testing.T) {
	t.Parallel()
	e, ctx := open(t), t.Context()
	v := volume(t, e)
	id, _ := create(t, e, engine.ContainerSpec{Mounts: []engine.Mount{{Type: "volume", Source: v.Name, Target: "/data"}}})
	if err := e.CopyTo(ctx, id, "/data", bytes.NewReader(tarball(file{"a.txt", 0o640, "hello"}))); err != nil {
		t.Fatalf("CopyTo: %v", err)
	}
	st, err := e.StatPath(ctx, id, "/data/a.txt")
	if err != nil || st.Name != "a.txt" || st.Size != 5 || st.Mode != 0o640 || !st.Mtime.Equal(time.Unix(1e9, 0)) || st.LinkTarget != "" {
		t.Errorf("StatPath = %+v, %v", st, err)
	}
	if st, err := e.StatPath(ctx, id, "/data"); err != nil || !st.Mode.IsDir() {
		t.Errorf("StatPath of a directory = %+v, %v", st, err)
	}
	rc, st, err := e.CopyFrom(ctx, id, "/data/a.txt")
	if err != nil || st.Size != 5 {
		t.Fatalf("CopyFrom = %+v, %v", st, err)
	}
	defer rc.Close()
	tr := tar.NewReader(rc)
	if h, err := tr.Next(); err != nil || h.Name != "a.txt" {
		t.Fatalf("CopyFrom's archive: %+v, %v", h, err)
	}
	if got := readAll(t, tr); got != "hello" {
		t.Errorf("CopyFrom = %q, want hello", got)
	}
}

func TestMissingPathIsNotFound(t *testing.T) {
	t.Parallel()
	e := open(t)
	id, _ := create(t, e, engine.ContainerSpec{})
	_, err := e.StatPath(t.Context(), id, "/no/such")
	wantClass(t, "StatPath", err, engine.ErrNotFound)
	_, _, err = e.CopyFrom(t.Context(), id, "/no/such")
	wantClass(t, "CopyFrom", err, engine.ErrNotFound)
	wantClass(t, "CopyTo", e.CopyTo(t.Context(), id, "/no/such", bytes.NewReader(tarball())), engine.ErrNotFound)
	// Larger than what fits in the sockets: the engine answers before it has
	// read it all.
	big := io.LimitReader(zeros{}, 64<<20)
	wantClass(t, "CopyTo of much", e.CopyTo(t.Context(), id, "/no/such", big), engine.ErrNotFound)
}

func TestArchiveReadersOwnErrorComesBack(t *testing.T) {
	t.Parallel()
	e := open(t)
	id, _ := create(t, e, engine.ContainerSpec{})
	mine := errors.New("my disk is gone")
	src := io.MultiReader(bytes.NewReader(tarball(file{"tmp/a", 0o644, "x"})[:1024]), broken{mine})
	err := e.CopyTo(t.Context(), id, "/", src)
	if !errors.Is(err, mine) || errors.Is(err, engine.ErrUnavailable) {
		t.Errorf("CopyTo = %v, want the reader's own error", err)
	}
	err = e.ImportImage(t.Context(), never(t), broken{mine}, nil)
	if !errors.Is(err, mine) || errors.Is(err, engine.ErrUnavailable) {
		t.Errorf("ImportImage = %v, want the reader's own error", err)
	}
}

type broken struct{ err error }

func (b broken) Read([]byte) (int, error) { return 0, b.err }

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// The reply of an engine that makes mounts with Go's os.Root, to a look at a container one of whose mounts' targets is a link.
func TestMountAtALinkThatTheEngineDoesNotFollowIsInvalid(t *testing.T) {
	t.Parallel()
	for message, want := range map[string]error{
		"mkdirat data: statat data: path escapes from parent": engine.ErrInvalid,
		"mkdirat dangling: file exists":                       engine.ErrInvalid,
		"openat run/lock: not a directory":                    engine.ErrInvalid,
		"mkdirat data: no space left on device":               nil,
		"openat data: permission denied":                      nil,
	} {
		host := fakeEngine(t, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusInternalServerError)
			fmt.Fprintf(w, `{"message":%q}`, message)
		})
		e := openAt(t, host)
		_, statErr := e.StatPath(t.Context(), "x", "/etc/passwd")
		_, _, fromErr := e.CopyFrom(t.Context(), "x", "/etc/passwd")
		toErr := e.CopyTo(t.Context(), "x", "/etc", strings.NewReader(""))
		for call, err := range map[string]error{"StatPath": statErr, "CopyFrom": fromErr, "CopyTo": toErr} {
			if err == nil || !strings.Contains(err.Error(), message) || errors.Is(err, engine.ErrInvalid) != (want != nil) {
				t.Errorf("%s = %v, want class %v", call, err, want)
			}
		}
		own := errors.New(message)
		if err := e.CopyTo(t.Context(), "x", "/etc", broken{own}); !errors.Is(err, own) || errors.Is(err, engine.ErrInvalid) {
			t.Errorf("CopyTo = %v, want the reader's own error", err)
		}
	}
}
