package sandboxhttp_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/sandboxhttp"
	"github.com/seed-1a2d6d8f/sandbox/sandboxtest"
)

// ownPage reads a log and uses a terminal, with the token, and shows the page of another origin.
const ownPage = `<script>
const seen = {}, base = "/v1/sandboxes/%[1]s", token = "access_token=s3cret";
const log = new EventSource(base + "/logs?" + token);
const both = [
	new Promise(done => log.addEventListener("stdout", e => { seen.log = e.data; log.close(); done(); })),
	new Promise(done => {
		const terminal = new WebSocket("ws://" + location.host + base + "/terminal?" + token);
		let text = "";
		terminal.onopen = () => terminal.send(JSON.stringify({command: ["sh", "-c", "echo from the terminal; exit 4"]}));
		terminal.onmessage = async e => {
			if (e.data instanceof Blob) text += await e.data.text();
			else if (JSON.parse(e.data).event == "exit") { seen.exit = JSON.parse(e.data).exitCode; }
		};
		terminal.onclose = () => setTimeout(() => { seen.terminal = text; done(); }, 100);
	}),
];
Promise.all(both).then(() => fetch("/seen", {method: "POST", body: JSON.stringify(seen)})).then(() => location = "%[2]s");
</script>`

// otherPage tries the same from another origin, and to stop the sandbox.
const otherPage = `<script>
const seen = {}, base = "%[2]s/v1/sandboxes/%[1]s", token = "access_token=s3cret";
Promise.all([
	new Promise(done => {
		const terminal = new WebSocket(base.replace("http", "ws") + "/terminal?" + token);
		terminal.onopen = () => { seen.opened = true; done(); };
		terminal.onerror = () => { seen.refused = true; done(); };
	}),
	fetch(base + "/stop", {method: "POST", mode: "no-cors", headers: {}}).then(r => seen.stop = r.type, e => seen.stop = "" + e),
	fetch(base + "?" + token).then(r => r.text(), e => "error").then(text => seen.read = text),
]).then(() => fetch("/seen", {method: "POST", body: JSON.stringify(seen)}));
</script>`

// A browser's EventSource and WebSocket work on a page of the same origin, and not on others.
func TestPagesOfABrowser(t *testing.T) {
	enginetest.Need(t)
	t.Parallel()
	sb := sandboxtest.New(t, sandbox.WithCommand("sh", "-c", "echo of the log; exec sleep 1000"))
	c, err := sandbox.NewClient()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	type report struct {
		Log, Terminal, Stop, Read string
		Exit                      int
		Opened, Refused           bool
	}
	seen := make(chan report, 2)
	see := func(w http.ResponseWriter, r *http.Request) {
		var got report
		if err := json.NewDecoder(r.Body).Decode(&got); err != nil {
			t.Errorf("the page says: %v", err)
		}
		seen <- got
	}
	show := func(mux *http.ServeMux, page string, args ...any) {
		mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			fmt.Fprintf(w, page, args...)
		})
		mux.HandleFunc("POST /seen", see)
	}
	own, other := http.NewServeMux(), http.NewServeMux()
	ownServer, otherServer := httptest.NewServer(own), httptest.NewServer(other)
	defer ownServer.Close()
	defer otherServer.Close()
	show(own, ownPage, sb.Name(), otherServer.URL)
	show(other, otherPage, sb.Name(), ownServer.URL)
	// The token of every request is right: what refuses those of the other page is its origin.
	own.Handle("/v1/", http.StripPrefix("/v1", withToken(sandboxhttp.Handler(c, sandboxhttp.WithToken("s3cret")))))

	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	browse(t, ownServer.URL)
	for _, check := range []func(report){
		func(r report) {
			if r.Log != "of the log" || r.Terminal != "from the terminal\r\n" || r.Exit != 4 {
				t.Errorf("the page of the same origin saw %+v", r)
			}
		},
		func(r report) {
			if r.Opened || !r.Refused || r.Read != "error" {
				t.Errorf("the page of another origin saw %+v", r)
			}
		},
	} {
		select {
		case r := <-seen:
			check(r)
		case <-ctx.Done():
			t.Fatal("the browser has not come")
		}
	}
	if st, err := sb.Status(t.Context()); err != nil || st.State != sandbox.StateRunning {
		t.Errorf("after the page of another origin the sandbox is %s, %v", st.State, err)
	}
}

// withToken gives requests that have no token the right one.
func withToken(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !r.URL.Query().Has("access_token") {
			r.Header.Set("Authorization", "Bearer s3cret")
		}
		next.ServeHTTP(w, r)
	})
}
