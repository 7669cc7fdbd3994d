package sandboxhttp_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/sandboxhttp"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// Requests get sandboxes of the pool of their image, unless they want what those can't get.
func TestCreateFromAPool(t *testing.T) {
	t.Parallel()
	c := harness.NewClient(t)
	p, err := c.NewPool(t.Context(), 1, harness.Quick)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Errorf("Pool.Close: %v", err)
		}
	})
	s := httptest.NewServer(sandboxhttp.Handler(c, sandboxhttp.WithoutAuthorization(), sandboxhttp.WithPools(map[string]*sandbox.Pool{sandbox.DefaultImage: p})))
	t.Cleanup(s.Close)
	for _, test := range []struct {
		body   string
		handed int // by the pool, in all
	}{
		{`{"env": {"A": "1"}, "network": "deny-all", "timeoutMs": 3600000}`, 1},
		{`{"image": "` + sandbox.DefaultImage + `", "tags": {"k": "v"}}`, 2},
		{`{"pidsLimit": 100}`, 2},
		{`{"command": ["sleep", "100"]}`, 2},
		{`{"name": "` + harness.UniqueName(t) + `"}`, 3},
	} {
		harness.Eventually(t, "the pool is full", func() bool { return p.Stats().Ready == 1 })
		resp, err := http.Post(s.URL+"/sandboxes", "application/json", strings.NewReader(test.body))
		if err != nil {
			t.Fatal(err)
		}
		var made struct{ ID, Name string }
		err = json.NewDecoder(resp.Body).Decode(&made)
		resp.Body.Close()
		if err != nil || resp.StatusCode != http.StatusCreated {
			t.Fatalf("POST %s: %s, %v", test.body, resp.Status, err)
		}
		harness.Remove(t, c, made.Name)
		if got := p.Stats(); got.HandedOver != test.handed || got.Created != 0 {
			t.Errorf("after POST %s the pool has handed over %d and created %d in the ordinary way, want %d and none", test.body, got.HandedOver, got.Created, test.handed)
		}
		if st := harness.Inspect(t, made.Name); !*st.Settings.Persistent {
			t.Errorf("POST %s: the sandbox is not persistent", test.body)
		}
	}
}
