package sandboxhttp_test

import (
	"fmt"
	"net/http"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"golang.org/x/sync/errgroup"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// With as many running sandboxes as SANDBOX_MANY says, how long the overview takes to be complete, and how
// long a round of usage takes.
func TestManySandboxesOnThePage(t *testing.T) {
	n, err := strconv.Atoi(os.Getenv("SANDBOX_MANY"))
	if err != nil || n < 1 {
		t.Skip("SANDBOX_MANY is no number of sandboxes")
	}
	c := harness.NewClient(t)
	all := make([]*sandbox.Sandbox, n)
	t.Cleanup(func() {
		var closing errgroup.Group
		closing.SetLimit(8)
		for _, sb := range all {
			if sb != nil {
				closing.Go(sb.Close)
			}
		}
		if err := closing.Wait(); err != nil {
			t.Error(err)
		}
	})
	var creating errgroup.Group
	creating.SetLimit(8)
	for i := range all {
		creating.Go(func() (err error) {
			all[i], err = c.Create(t.Context(), sandbox.WithName(fmt.Sprintf("many-%d", i)), sandbox.WithPersistent(false), sandbox.WithStopTimeout(time.Second))
			return err
		})
	}
	if err := creating.Wait(); err != nil {
		t.Fatal(err)
	}
	a := newAPI(t)
	for _, path := range []string{"/sandboxes?prefix=many-", "/usage?prefix=many-"} {
		var took []time.Duration
		for range 5 {
			began := time.Now()
			resp := a.send("GET", path, nil)
			resp.Body.Close()
			took = append(took, time.Since(began).Round(time.Millisecond))
		}
		t.Logf("GET %s with %d sandboxes: %v", path, n, took)
	}
	address := pageOf(t, "many-", func(*http.Request) {})
	for range 3 {
		tb := newTab(t)
		began := time.Now()
		tb.do("open", chromedp.Navigate(address))
		tb.await(fmt.Sprintf("document.querySelectorAll('#list tr').length === %d && document.querySelector('[data-total=Sandboxes] strong').innerText === '%[1]d'", n))
		complete := time.Since(began)
		tb.await(fmt.Sprintf(`[...document.querySelectorAll('#list .memory .value')].filter(v => /[KMG]B$/.test(v.innerText)).length === %d`, n))
		t.Logf("the overview was complete after %v, with the usage of each after %v", complete.Round(time.Millisecond), time.Since(began).Round(time.Millisecond))
	}
}
