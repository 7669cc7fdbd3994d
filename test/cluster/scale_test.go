package cluster_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// scaled is what ci/scale sets.
var scaled = os.Getenv("SANDBOX_SCALE") != ""

// The managers' store with the entries of many sandboxes, and a client of a swarm of many nodes: the
// table in the log is that of docs/cluster.md. The nodes are simulated: the managers' list has each of
// the real ones many times, with IDs and names of its own, and their engines answer for all.
func TestSwarmsOfManyNodes(t *testing.T) {
	nodes(t, 3)
	sizes := []int{10}
	if scaled {
		sizes = []int{10, 100, 1000}
	}
	own := manager(t)
	var made []string
	t.Cleanup(func() { removeEntries(t, made) })
	var table strings.Builder
	for _, n := range sizes {
		// 100 sandboxes a node, up to what a small machine's store takes.
		entries := min(100*n, 10_000)
		began, add := time.Now(), entries-len(made)
		made = append(made, addEntries(t, add, len(made))...)
		rate := "–"
		if add > 0 {
			rate = fmt.Sprintf("%.0f/s", float64(add)/time.Since(began).Seconds())
		}
		c := manyNodes(t, n)
		median := func(fn func() error) time.Duration {
			t.Helper()
			var all []time.Duration
			for range 5 {
				began := time.Now()
				if err := fn(); err != nil {
					t.Fatalf("%d nodes: %v", n, err)
				}
				all = append(all, time.Since(began))
			}
			slices.Sort(all)
			return all[2]
		}
		ctx := t.Context()
		if got, err := c.Nodes(ctx); err != nil || len(got) != n { // which connects
			t.Fatalf("Nodes: %d, %v, want %d", len(got), err, n)
		}
		name := harness.UniqueName(t)
		fmt.Fprintf(&table, "\n| %d | %d | %s | %v | %v | %v | %v | %v | %d MiB |", n, entries, rate,
			median(func() error { return harness.Second(own.FindEntry(ctx, made[0])) }).Round(100*time.Microsecond),
			median(func() error {
				return harness.Second(own.ListEntries(ctx, record.Filter(record.Role, record.RoleEntry)))
			}).Round(time.Millisecond),
			median(func() error {
				sb, err := c.Create(ctx, small(name)...)
				if err == nil {
					_, err = sb.Delete(ctx, sandbox.DeleteOptions{Volumes: true})
				}
				return err
			}).Round(time.Millisecond),
			median(func() error { return harness.Second(c.List(ctx, sandbox.ListOptions{})) }).Round(time.Millisecond),
			median(func() error { return harness.Second(c.Nodes(ctx)) }).Round(time.Millisecond), memoryOf(t, 1)>>20)
	}
	t.Logf("medians of 5\n| nodes | entries | entries created, 8 at once | one entry by name | all entries | Create and Delete | List | Nodes | manager's memory |\n|---|---|---|---|---|---|---|---|---|%s", table.String())
}

// addEntries creates entries of sandboxes that nobody has, 8 at once.
func addEntries(t *testing.T, n, from int) (names []string) {
	t.Helper()
	own := manager(t)
	all, err := own.Nodes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var creates errgroup.Group
	creates.SetLimit(8)
	for i := range n {
		name := fmt.Sprintf("scale-%d", from+i)
		// Young ones are left alone by sweeps.
		en := record.Entry{Name: name, ID: name, Nonce: record.NewNonce(), Node: all[i%len(all)].ID, Host: all[i%len(all)].Hostname, CreatedAt: own.Now().Add(time.Hour)}
		names = append(names, record.EntryName(name))
		creates.Go(func() error { return own.CreateEntry(t.Context(), record.EntryName(name), en.Labels()) })
	}
	if err := creates.Wait(); err != nil {
		t.Fatal(err)
	}
	return names
}

func removeEntries(t *testing.T, names []string) {
	t.Helper()
	ctx := context.Background()
	own, err := engine.Open(ctx, engine.Options{Host: addresses[0]})
	if err != nil {
		t.Error(err)
		return
	}
	defer own.Close()
	list, err := own.ListEntries(ctx, record.Filter(record.Role, record.RoleEntry))
	if err != nil {
		t.Error(err)
	}
	ours := map[string]bool{}
	for _, name := range names {
		ours[name] = true
	}
	var removals errgroup.Group
	removals.SetLimit(8)
	for _, en := range list {
		if ours[en.Name] {
			removals.Go(func() error { return own.RemoveEntry(ctx, en.ID) })
		}
	}
	if err := removals.Wait(); err != nil {
		t.Error(err)
	}
}

// manyNodes returns a client of a swarm of n nodes.
func manyNodes(t *testing.T, n int) *sandbox.Client {
	t.Helper()
	target, err := url.Parse("http" + strings.TrimPrefix(addresses[0], "tcp"))
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(target)
	proxy.ModifyResponse = func(r *http.Response) error {
		if !strings.HasSuffix(r.Request.URL.Path, "/nodes") {
			return nil
		}
		var real []map[string]any
		if err := json.NewDecoder(r.Body).Decode(&real); err != nil {
			return err
		}
		r.Body.Close()
		var all []map[string]any
		for i := range n {
			all = append(all, simulated(real[i%len(real)], i, i >= len(real)))
		}
		text, err := json.Marshal(all)
		r.Body, r.ContentLength = io.NopCloser(strings.NewReader(string(text))), int64(len(text))
		r.Header.Set("Content-Length", strconv.Itoa(len(text)))
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: proxy}
	go server.Serve(l)
	t.Cleanup(func() { server.Close() })
	return harness.NewClient(t, sandbox.WithHost("tcp://"+l.Addr().String()), sandbox.WithSwarm(sandbox.WithNodeHost(func(n sandbox.Node) string { return "tcp://" + n.Addr + ":2375" })))
}

// simulated returns a node like a real one, as the i-th.
func simulated(real map[string]any, i int, other bool) map[string]any {
	if !other {
		return real
	}
	text, err := json.Marshal(real)
	if err != nil {
		return nil
	}
	var node map[string]any
	if json.Unmarshal(text, &node) != nil {
		return nil
	}
	node["ID"] = fmt.Sprintf("simulated%016d", i)
	node["Description"].(map[string]any)["Hostname"] = fmt.Sprintf("simulated%d", i)
	return node
}

// memoryOf is the resident memory of a node's engine.
func memoryOf(t *testing.T, node int) int64 {
	t.Helper()
	pid, err := os.ReadFile(filepath.Join(os.Getenv("SANDBOX_CLUSTER_DIR"), strconv.Itoa(node), "pid"))
	if err != nil {
		t.Fatal(err)
	}
	status, err := os.ReadFile("/proc/" + strings.TrimSpace(string(pid)) + "/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if kib, is := strings.CutPrefix(line, "VmRSS:"); is {
			n, _ := strconv.ParseInt(strings.Fields(kib)[0], 10, 64)
			return n << 10
		}
	}
	return 0
}
