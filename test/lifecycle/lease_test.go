package lifecycle_test

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// A renewal of a lease meets a pause, which is over by the time that anybody looks: the sandbox
// keeps its lease. The pause is what a proxy makes of the engine's replies.
func TestLeaseOutlivesAPauseThatIsOver(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var name string
	armed, refused, paused, after := false, false, 0, 0
	host := harness.InFront(t, func(w http.ResponseWriter, r *http.Request) bool {
		mu.Lock()
		defer mu.Unlock()
		if !armed || !strings.HasSuffix(r.URL.Path, "/exec") {
			return false
		}
		if refused {
			after++
			return false
		}
		refused = true
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusConflict)
		io.WriteString(w, `{"message": "Container is paused, unpause the container before exec"}`)
		return true
	}, func(r *http.Response) error {
		mu.Lock()
		defer mu.Unlock()
		// Two inspections follow the refusal, before and after the look for a marker.
		if !refused || paused == 2 || !strings.HasSuffix(r.Request.URL.Path, "/containers/"+name+"/json") {
			return nil
		}
		paused++
		body, err := io.ReadAll(r.Body)
		r.Body.Close()
		body = bytes.Replace(body, []byte(`"Status":"running","Running":true,"Paused":false`), []byte(`"Status":"paused","Running":true,"Paused":true`), 1)
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
		r.Header.Del("Content-Length")
		return err
	})
	p := enginetest.NewProxyTo(t, host)
	sb, err := harness.NewClient(t, sandbox.WithHost(p.Host())).Create(t.Context(), harness.Quick)
	if err != nil {
		t.Fatal(err)
	}
	defer sb.Close()
	harness.Run(t, sb, "true")
	mu.Lock()
	name, armed = record.ContainerName(sb.Name()), true
	mu.Unlock()
	p.CloseAll() // so that the next renewal connects again
	harness.Eventually(t, "the renewals go on", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return after > 0
	})
	mu.Lock()
	defer mu.Unlock()
	if paused != 2 {
		t.Errorf("%d inspections saw a pause, want 2", paused)
	}
}

// A read of the settings that began before a change on the same handle does not undo it.
func TestHandleKeepsTheLatestSettings(t *testing.T) {
	t.Parallel()
	p := enginetest.NewProxy(t)
	c := harness.NewClient(t, sandbox.WithHost(p.Host()))
	sb := harness.CreateWith(t, c, nil)
	harness.Run(t, sb, "true")
	harness.Update(t, sb, sandbox.WithTags(map[string]string{"a": "b"}))
	// The last call of a search for revisions that the handle does not know.
	p.ArmAt(record.WorkspaceName(sb.ID())+".rev-2", enginetest.Cancel, func() {
		if err := sb.Update(t.Context(), sandbox.WithEnv(map[string]string{"LATEST": "yes"})); err != nil {
			t.Errorf("Update: %v", err)
		}
	})
	st, err := sb.Status(t.Context())
	if err != nil || !p.Fired() {
		t.Fatalf("Status = %+v, %v; its calls: %q", st, err, p.Calls())
	}
	if got := harness.Run(t, sb, "sh", "-c", "echo $LATEST"); got != "yes" {
		t.Errorf("after the update a command has LATEST=%q, want yes", got)
	}
}

// A sandbox that could not be stopped or deleted still lives as long as its handle.
func TestLeaseIsKeptAfterAFailedStopOrDelete(t *testing.T) {
	t.Parallel()
	for name, x := range map[string]struct {
		refuse string
		end    func(*testing.T, *sandbox.Sandbox) error
	}{
		"Stop": {"/stop", func(t *testing.T, sb *sandbox.Sandbox) error { _, err := sb.Stop(t.Context()); return err }},
		"Delete": {"/volumes/agent-sandbox-guest-", func(t *testing.T, sb *sandbox.Sandbox) error {
			_, err := sb.Delete(t.Context(), sandbox.DeleteOptions{})
			return err
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var refuse atomic.Bool
			host := harness.InFront(t, func(w http.ResponseWriter, r *http.Request) bool {
				if !refuse.Load() || !strings.Contains(r.URL.Path, x.refuse) {
					return false
				}
				harness.Refuse(w, "the disk does not answer")
				return true
			}, nil)
			c, eng := harness.NewClient(t, sandbox.WithHost(host)), harness.NewEngine(t)
			sb, err := c.Create(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer sb.Close()
			refuse.Store(true)
			if err := x.end(t, sb); err == nil {
				t.Fatalf("%s succeeded", name)
			}
			refuse.Store(false)
			left, renewals := time.Duration(0), 0
			harness.Eventually(t, "the lease is renewed", func() bool {
				reply, err := harness.AskPID1(t.Context(), eng, sb.Name(), wire.Control{Op: wire.OpStatus})
				if err != nil {
					t.Fatalf("the session: %v", err)
				}
				if left != 0 && reply.LeaseLeft > left {
					renewals++
				}
				left = reply.LeaseLeft
				time.Sleep(200 * time.Millisecond)
				return renewals >= 2 // the first may have been on its way
			})
		})
	}
}
