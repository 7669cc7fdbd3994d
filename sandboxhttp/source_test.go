package sandboxhttp_test

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/internal/gittest"
	"github.com/seed-1a2d6d8f/sandbox/sandboxhttp"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// secret is what servers say in the tests.
const secret = "INTERNAL-SECRET"

// speaking returns the address of a TCP server that says something to everybody.
func speaking(t *testing.T, text string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			fmt.Fprint(conn, text)
			conn.Close()
		}
	}()
	return l.Addr().String()
}

// Whoever may choose the server of a source or image can't read what the server answers.
func TestAnswersOfOtherServersAreNotRepeated(t *testing.T) {
	enginetest.Need(t)
	t.Parallel()
	a := newAPI(t)
	var hosts []string
	for _, answer := range []func(w http.ResponseWriter, r *http.Request){
		func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, secret+" one\n"+secret+" two", http.StatusNotFound)
		},
		func(w http.ResponseWriter, _ *http.Request) { http.Error(w, secret, http.StatusInternalServerError) },
		func(w http.ResponseWriter, _ *http.Request) { http.Error(w, secret, http.StatusForbidden) },
		func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, secret) },
		func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("WWW-Authenticate", `Bearer realm="http://`+secret+`.invalid/",service="`+secret+`"`)
			w.WriteHeader(401)
			fmt.Fprintf(w, `{"errors":[{"code":"UNAUTHORIZED","message":%q,"detail":%q}]}`, secret, secret)
		},
		func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(404)
			fmt.Fprintf(w, `{"errors":[{"code":"MANIFEST_UNKNOWN","message":%q,"detail":%q}]}`, secret, secret)
		},
		func(w http.ResponseWriter, r *http.Request) { // git's own form
			w.Header().Set("Content-Type", "application/x-git-upload-pack-advertisement")
			text := "ERR " + secret + "\n"
			fmt.Fprintf(w, "001e# service=git-upload-pack\n0000%04x%s", len(text)+4, text)
		},
		func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/x-git-upload-pack-advertisement")
			fmt.Fprint(w, secret)
		},
		func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "x://"+secret)
			w.WriteHeader(302)
		},
	} {
		server := httptest.NewServer(http.HandlerFunc(answer))
		t.Cleanup(server.Close)
		hosts = append(hosts, strings.TrimPrefix(server.URL, "http://"))
	}
	hosts = append(hosts, speaking(t, "SSH-2.0-"+secret+"\r\n"), speaking(t, "HTTP/1.1 200 OK\r\n"+secret+"\r\n\r\n"), speaking(t, "HTTP/1.1 404 "+secret+"\r\n\r\n"), "127.0.0.1:1", secret+".invalid")
	first := rand.IntN(2)
	for i, host := range hosts {
		git := []string{ // one of them in a plain run
			fmt.Sprintf(`{"source": {"git": {"url": "http://%s/e/repo"}}}`, host),
			fmt.Sprintf(`{"source": {"git": {"url": "http://%s/e/repo", "revision": "main", "depth": 1}}}`, host),
		}
		if !harness.Soaking() {
			n := (first + i) % len(git)
			git = git[n : n+1]
		}
		for _, body := range append(git,
			fmt.Sprintf(`{"source": {"tarball": {"url": "http://%s/e/a.tar"}}}`, host),
			fmt.Sprintf(`{"image": "%s/x:1"}`, strings.ToLower(host)),
		) {
			resp := a.send("POST", "/sandboxes", strings.NewReader(body), "Content-Type", "application/json")
			got, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if err != nil {
				t.Fatal(err)
			}
			var made struct{ Name string }
			if resp.StatusCode == 201 && json.Unmarshal(got, &made) == nil { // to git it is an empty repository
				a.remove(made.Name)
			}
			text := strings.ReplaceAll(string(got), host, "HOST")
			for _, no := range []string{secret, secret[:4], "config.json", "remote:", "/tmp/"} {
				if strings.Contains(text, no) {
					t.Errorf("server %d, %s: the answer has %q: %s", i, body, no, got)
				}
			}
		}
	}
}

// With bounds nothing but the servers within them sees a connection.
func TestSourcesAndImagesComeFromPermittedAddresses(t *testing.T) {
	enginetest.Need(t)
	t.Parallel()
	var connections atomic.Int64
	counting := func(at string, handler http.Handler) (port string) {
		l, err := net.Listen("tcp", at+":0")
		if err != nil {
			t.Fatal(err)
		}
		server := &httptest.Server{Listener: l, Config: &http.Server{Handler: handler, ConnState: func(_ net.Conn, s http.ConnState) {
			if s == http.StateNew {
				connections.Add(1)
			}
		}}}
		server.Start()
		t.Cleanup(server.Close)
		_, port, _ = net.SplitHostPort(l.Addr().String())
		return port
	}
	archive := harness.Tar(t, harness.TarFile("f", "content"))
	port := counting("", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Write(archive) }))

	public := newAPI(t, sandboxhttp.WithSourceAddresses())
	first := rand.IntN(3)
	for i, host := range []string{
		"127.0.0.1", "localhost", "LOCALHOST.", "0.0.0.0", "[::1]", "[::]", "[::ffff:127.0.0.1]", "[64:ff9b::7f00:1]", "[2002:7f00:1::]", "127.1", "2130706433", "0x7f000001", "0177.0.0.1",
		"10.0.0.1", "172.17.0.1", "192.168.1.1", "100.64.0.1", "169.254.169.254", "[fe80::1]", "[fd00::1]", "224.0.0.1",
	} {
		bodies := []string{`{"source": {"git": {"url": "http://%s/e/repo"}}}`, `{"source": {"tarball": {"url": "http://%s/a.tar"}}}`}
		if !strings.ContainsAny(host, "[LO") { // else there is no such reference
			bodies = append(bodies, `{"image": "%s/x:1"}`)
		}
		if !harness.Soaking() { // one of them
			n := (first + i) % len(bodies)
			bodies = bodies[n : n+1]
		}
		for _, body := range bodies {
			body = fmt.Sprintf(body, host+":"+port)
			resp := public.send("POST", "/sandboxes", strings.NewReader(body), "Content-Type", "application/json")
			text, _ := io.ReadAll(resp.Body)
			resp.Body.Close()
			if resp.StatusCode < 400 { // there need not be such a name
				t.Errorf("%s: %d %s", body, resp.StatusCode, text)
			}
		}
	}
	if n := connections.Load(); n > 0 {
		t.Fatalf("%d connections to addresses that are not permitted", n)
	}

	a := newAPI(t, sandboxhttp.WithSourceAddresses(netip.MustParsePrefix("127.0.0.2/32")))
	repo := gittest.New(t).HTTP(t, "", "", nil)
	_, gitPort, _ := net.SplitHostPort(strings.TrimPrefix(repo.URL, "http://"))
	var outside atomic.Int64
	forbidden := counting("127.0.0.1", http.HandlerFunc(func(http.ResponseWriter, *http.Request) { outside.Add(1) }))
	redirect := counting("127.0.0.2", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://127.0.0.1:"+forbidden+r.URL.RequestURI(), http.StatusFound)
	}))
	relay := counting("127.0.0.2", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		req, _ := http.NewRequest(r.Method, "http://127.0.0.1:"+gitPort+r.URL.RequestURI(), r.Body)
		req.Header, req.ContentLength = r.Header, r.ContentLength
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			panic(err)
		}
		defer resp.Body.Close()
		w.Header().Set("Content-Type", resp.Header.Get("Content-Type"))
		w.WriteHeader(resp.StatusCode)
		io.Copy(w, resp.Body)
	}))
	for _, tt := range []struct {
		body   string
		status int
	}{
		{`{"source": {"tarball": {"url": "http://127.0.0.2:` + port + `/a.tar"}}}`, 201},
		{`{"source": {"git": {"url": "http://127.0.0.2:` + relay + `/repo.git"}}}`, 201},
		{`{"source": {"tarball": {"url": "http://127.0.0.2:` + redirect + `/a.tar"}}}`, 400},
		{`{"source": {"git": {"url": "http://127.0.0.2:` + redirect + `/repo.git"}}}`, 500},
	} {
		var got struct{ Name string }
		if resp := a.call("POST", "/sandboxes", tt.body, tt.status, &got); resp.StatusCode == 201 {
			a.remove(got.Name)
		}
	}
	if n := outside.Load(); n > 0 {
		t.Errorf("%d redirects led to an address that is not permitted", n)
	}
}
