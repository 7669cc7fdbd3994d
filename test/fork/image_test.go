package fork_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// A fork takes another image, with the source's volumes, while the source has no files of its own
// outside of volumes.
func TestForkTakesAnotherImage(t *testing.T) {
	t.Parallel()
	byCommit(t, func(t *testing.T, c *sandbox.Client, _ bool) {
		image := harness.SmallImage(t, "ENV FROM=other")
		source := harness.CreateWith(t, c, []sandbox.Mount{{Source: harness.HostDir(t, map[string]string{"file": "a"}), Target: "/opt/some/copy"}},
			sandbox.WithEnv(map[string]string{"A": "1", "B": "2"}), sandbox.WithTags(map[string]string{"k": "v"}), sandbox.WithWorkdir("/work/here"))
		harness.Write(t, source, "/workspace/file", "w")
		harness.Write(t, source, "/opt/some/copy/file", "c")
		wantFiles := func(what string, fork *sandbox.Sandbox) {
			t.Helper()
			if got := harness.Read(t, fork, "/workspace/file") + harness.Read(t, fork, "/opt/some/copy/file"); got != "wc" {
				t.Errorf("%s: its volumes have %q, want w and c", what, got)
			}
			if _, err := fork.Stat(t.Context(), "/bin/sh"); err == nil {
				t.Errorf("%s has the source's image", what)
			}
			st := harness.Status(t, fork)
			if st.Image != image || fmt.Sprint(st.Env, st.Tags) != "[B] map[]" || st.Settings.User != nil {
				t.Errorf("%s is of %s, with the variables %v, the tags %v and the user %v", what, st.Image, st.Env, st.Tags, st.Settings.User)
			}
		}
		wantFiles("Fork", forked(t, c, source.Name(), sandbox.WithImage(image), sandbox.WithoutEnv("A"), sandbox.WithoutTag("k")))
		wantFiles("ForkN", forkedN(t, c, source.Name(), 1, sandbox.WithImage(image), sandbox.WithoutEnv("A"), sandbox.WithoutTag("k"))[0])

		for i := range 7 {
			harness.Write(t, source, fmt.Sprintf("/srv/file%d", i), "own")
		}
		wantRefused := func(call string, err error) {
			t.Helper()
			if !errors.Is(err, sandbox.ErrInvalidArgument) || !strings.Contains(err.Error(), "8 paths") || !strings.Contains(err.Error(), "/srv/file0") || strings.Contains(err.Error(), "/srv/file6") {
				t.Errorf("%s of a source with files of its own: %v; want how many, and the first", call, err)
			}
		}
		_, err := c.Fork(t.Context(), source.Name(), sandbox.WithImage(image))
		wantRefused("Fork", err)
		_, err = c.ForkN(t.Context(), source.Name(), 2, sandbox.WithImage(image))
		wantRefused("ForkN", err)
	})
}
