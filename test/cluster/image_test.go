package cluster_test

import (
	"context"
	"errors"
	"net"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// An image that no registry gives gets from the node that has it to the one that a sandbox is placed
// on, once for all who create there at the same time.
func TestImageIsCopiedToTheNode(t *testing.T) {
	nodes(t, 3)
	c, ctx, own := client(t, 0), t.Context(), manager(t)
	tag := harness.SmallImage(t, "LABEL copied=yes") // on node1
	byID, err := own.InspectImage(ctx, harness.SmallImage(t, "LABEL copied=by-id"))
	if err != nil {
		t.Fatal(err)
	}
	for node, ref := range map[string]string{"node2": tag, "node3": byID.ID} {
		at := engineOf(t, node)
		t.Cleanup(func() {
			if err := at.RemoveImage(context.Background(), ref, false); err != nil {
				t.Errorf("RemoveImage of %s on %s: %v", ref, node, err)
			}
		})
		if _, err := at.InspectImage(ctx, ref); !errors.Is(err, engine.ErrNotFound) {
			t.Fatalf("%s has %s: %v", node, ref, err)
		}
		var copies atomic.Int32
		var creates sync.WaitGroup
		for range 4 {
			name := harness.UniqueName(t)
			harness.Remove(t, c, name)
			creates.Go(func() {
				sb, err := c.Create(ctx, small(name, sandbox.WithImage(ref), sandbox.WithPlacement("node.hostname=="+node),
					sandbox.WithProgress(func(p sandbox.Progress) {
						if strings.HasPrefix(p.Text, "copying ") {
							copies.Add(1)
						}
					}))...)
				if err != nil {
					t.Errorf("Create with %s on %s: %v", ref, node, err)
					return
				}
				defer sb.Detach()
				// A fork, and a new container, are of the same image.
				if err := sb.Update(ctx, sandbox.WithEnv(map[string]string{"A": "b"})); err != nil {
					t.Errorf("Update with %s: %v", ref, err)
				}
				fork := harness.UniqueName(t)
				harness.Remove(t, c, fork)
				if sb, err := c.Fork(ctx, name, sandbox.WithName(fork)); err != nil {
					t.Errorf("Fork with %s: %v", ref, err)
				} else {
					sb.Detach()
				}
			})
		}
		creates.Wait()
		if n := copies.Load(); n != 1 {
			t.Errorf("%s was copied %d times to %s, want once", ref, n, node)
		}
		if img, err := at.InspectImage(ctx, ref); err != nil || img.Labels["copied"] == "" {
			t.Errorf("%s on %s: %v, labels %v", ref, node, err, img.Labels)
		}
	}
	nowhere := "nothing-has-this-image:" + harness.UniqueName(t)
	if _, err := c.Create(ctx, sandbox.WithImage(nowhere)); !errors.Is(err, sandbox.ErrImageNotFound) || !strings.Contains(err.Error(), "no other node has it") {
		t.Errorf("Create with an image of no node: %v, want ErrImageNotFound that says so", err)
	}
}

// An image that one node pulled by its digest has no digest after a copy. It is found by its ID, and
// copied once.
func TestImageIsCopiedByDigest(t *testing.T) {
	nodes(t, 2)
	c, ctx, own, other := client(t, 0), t.Context(), manager(t), engineOf(t, "node2")
	image := harness.NewRegistry(t)
	server := httptest.NewUnstartedServer(image)
	server.Listener.Close()
	var err error
	if server.Listener, err = net.Listen("tcp", "10.77.0.254:0"); err != nil {
		t.Fatal(err)
	}
	server.Start()
	defer server.Close()
	ref := strings.TrimPrefix(server.URL, "http://") + "/copied@" + image.Digest()
	if err := own.PullImage(ctx, ref, nil); err != nil {
		t.Fatal(err)
	}
	img, err := own.InspectImage(ctx, ref)
	if err != nil {
		t.Fatal(err)
	}
	server.Close()
	for _, eng := range []*engine.Engine{own, other} {
		t.Cleanup(func() {
			if err := eng.RemoveImage(context.Background(), img.ID, false); err != nil {
				t.Errorf("RemoveImage: %v", err)
			}
		})
	}
	copies := 0
	for range 2 {
		name := harness.UniqueName(t)
		harness.Remove(t, c, name)
		sb, err := c.Create(ctx, small(name, sandbox.WithImage(ref), sandbox.WithPlacement("node.hostname==node2"), sandbox.WithProgress(func(p sandbox.Progress) {
			if strings.HasPrefix(p.Text, "copying ") {
				copies++
			}
		}))...)
		if err != nil {
			t.Fatalf("Create with an image by its digest: %v", err)
		}
		if err := sb.Update(ctx, sandbox.WithEnv(map[string]string{"A": "b"})); err != nil {
			t.Errorf("Update: %v", err)
		}
		if _, err := sb.Delete(ctx, sandbox.DeleteOptions{Volumes: true}); err != nil {
			t.Error(err)
		}
	}
	if copies != 1 {
		t.Errorf("it was copied %d times, want once", copies)
	}
}

// engineOf is the engine of the node of that name, beside the library.
func engineOf(t *testing.T, node string) *engine.Engine {
	t.Helper()
	eng, err := engine.Open(t.Context(), engine.Options{Host: hostOf(sandbox.Node{Name: node})})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { eng.Close() })
	return eng
}
