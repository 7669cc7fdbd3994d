package lifecycle_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// oneSlot is a client that creates one sandbox at a time.
func oneSlot(t *testing.T, opts ...sandbox.ClientOption) *sandbox.Client {
	return harness.NewClient(t, append(opts, sandbox.WithLimits(sandbox.Limits{Creates: 1}))...)
}

// soon bounds a call that would otherwise wait for the end of the test.
func soon(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), harness.CallBound)
	t.Cleanup(cancel)
	return ctx
}

// createAnother creates one more sandbox while the client creates one.
func createAnother(t *testing.T, c *sandbox.Client, during string) {
	t.Helper()
	sb, err := c.Create(soon(t))
	if err != nil {
		t.Errorf("Create during %s: %v", during, err)
		return
	}
	if err := sb.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
}

func TestHookCreatesAndForksWithOneSlot(t *testing.T) {
	t.Parallel()
	c := oneSlot(t)
	sb, err := c.Create(soon(t), sandbox.OnCreate(func(ctx context.Context, sb *sandbox.Sandbox) error {
		createAnother(t, c, "OnCreate")
		fork, err := c.Fork(ctx, sb.Name())
		if err != nil {
			return err
		}
		return fork.Close()
	}))
	if err != nil {
		t.Fatalf("Create: %v", err)
	}
	sb.Close()
}

func TestPullTakesNoSlot(t *testing.T) {
	t.Parallel()
	pulling, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	host := harness.InFront(t, func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.HasSuffix(r.URL.Path, "/images/create") {
			return false
		}
		once.Do(func() { close(pulling) })
		<-release
		harness.Refuse(w, "the registry does not answer")
		return true
	}, nil)
	c := oneSlot(t, sandbox.WithHost(host))
	result := make(chan error, 1)
	go func() {
		_, err := c.Create(t.Context(), sandbox.WithImage("localhost:1/slow:"+harness.UniqueName(t)))
		result <- err
	}()
	<-pulling
	createAnother(t, c, "a pull")
	close(release)
	if err := <-result; !errors.Is(err, sandbox.ErrImageNotFound) {
		t.Errorf("Create of an image that can't be pulled = %v, want ErrImageNotFound", err)
	}
}

func TestSourceTakesNoSlot(t *testing.T) {
	t.Parallel()
	c := oneSlot(t)
	r, w := io.Pipe()
	result := make(chan error, 1)
	go func() {
		// With a main process the session starts after the source has been read.
		sb, err := c.Create(t.Context(), sandbox.WithCommand("sleep", "1h"), sandbox.WithSource(sandbox.Tarball{Reader: r}))
		if err == nil {
			err = sb.Close()
		}
		result <- err
	}()
	archive := harness.Tar(t, harness.TarFile("a", "a"))
	if _, err := w.Write(archive[:512]); err != nil { // which returns when it is being read
		t.Fatal(err)
	}
	createAnother(t, c, "the read of a source")
	w.Write(archive[512:])
	w.Close()
	if err := <-result; err != nil {
		t.Errorf("Create with the source: %v", err)
	}
}

func TestWaitForASlotIsReported(t *testing.T) {
	t.Parallel()
	creating, held := make(chan struct{}), make(chan struct{})
	release := sync.OnceFunc(func() { close(held) })
	var once sync.Once
	host := harness.InFront(t, func(w http.ResponseWriter, r *http.Request) bool {
		if strings.HasSuffix(r.URL.Path, "/containers/create") && strings.Contains(r.URL.RawQuery, "first") {
			once.Do(func() { close(creating) })
			<-held
		}
		return false
	}, nil)
	defer release()
	c := oneSlot(t, sandbox.WithHost(host))
	steps := func(onWait func()) (sandbox.CreateOption, func() []string) {
		var mu sync.Mutex
		var all []string
		return sandbox.WithProgress(func(p sandbox.Progress) {
			mu.Lock()
			defer mu.Unlock()
			if all = append(all, p.Step); p.Step == "wait" {
				onWait()
			}
		}), func() []string { mu.Lock(); defer mu.Unlock(); return all }
	}
	first, firstSteps := steps(func() {})
	result := make(chan error, 1)
	go func() {
		sb, err := c.Create(t.Context(), sandbox.WithName("first-"+harness.UniqueName(t)), sandbox.WithPersistent(false), first)
		if err == nil {
			err = sb.Close()
		}
		result <- err
	}()
	<-creating
	second, secondSteps := steps(release)
	sb, err := c.Create(soon(t), second)
	if err != nil {
		t.Fatalf("Create beside another one: %v", err)
	}
	sb.Close()
	if err := <-result; err != nil {
		t.Errorf("the other Create: %v", err)
	}
	if got := firstSteps(); slices.Index(got, "wait") == 0 {
		t.Errorf("Create that waits for nobody reported %q", got)
	}
	if got := secondSteps(); len(got) == 0 || got[0] != "wait" || !slices.Contains(got, "start") {
		t.Errorf("Create beside another one reported %q, want wait before the rest", got)
	}
}
