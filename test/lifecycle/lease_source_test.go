package lifecycle_test

import (
	"archive/tar"
	"bytes"
	"io"
	"testing"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// slowly is a reader that ends so much later.
type slowly struct {
	r     io.Reader
	after time.Duration
}

func (s *slowly) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	if err == io.EOF {
		time.Sleep(s.after)
	}
	return n, err
}

// A sandbox that lives as long as its handle does so from when there is one: a source may
// take longer than the handle's lease.
func TestSourceMayTakeLongerThanALeaseSoak(t *testing.T) {
	harness.Soak(t)
	t.Parallel()
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	w.WriteHeader(&tar.Header{Name: "f", Mode: 0o644, Size: 1})
	w.Write([]byte("x"))
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	c := harness.NewClient(t)
	sb, err := c.Create(t.Context(), sandbox.WithSource(sandbox.Tarball{Reader: &slowly{&archive, 45 * time.Second}}))
	if err != nil {
		t.Fatalf("Create from a slow source: %v", err)
	}
	defer sb.Close()
	if out := harness.Run(t, sb, "cat", "f"); out != "x" {
		t.Errorf("the file has %q", out)
	}
}
