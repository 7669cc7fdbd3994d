package sandboxhttp_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/sandboxhttp"
	"github.com/seed-1a2d6d8f/sandbox/sandboxtest"
)

// devServer answers with what it was asked, echoes WebSockets (small unmasked frames back), and
// sends an event for each change of a file, as servers for development do.
const devServer = `
const http = require("http"), fs = require("fs"), crypto = require("crypto");
http.createServer((req, res) => {
	if (req.url == "/reload") {
		res.writeHead(200, {"Content-Type": "text/event-stream"});
		res.write("data: ready\n\n");
		fs.watchFile("/workspace/page", {interval: 20}, () => res.write("data: reload\n\n"));
		return;
	}
	if (req.url == "/bare") {
		res.sendDate = false;
		return res.end("<html></html>");
	}
	if (req.url == "/duplex") return req.pipe(res);
	if (req.url == "/cookies") res.setHeader("Set-Cookie", ["a=1; Domain=localhost; Path=/", "b=2; HttpOnly", "agent-sandbox-preview=x", "j={\"x\":1}; Domain =localhost"]);
	let body = "";
	req.on("data", d => body += d).on("end", () => res.end(JSON.stringify({method: req.method, url: req.url, headers: req.headers, trailers: req.trailers, body})));
}).on("upgrade", (req, socket, head) => {
	if (req.url == "/chooses") {
		socket.write("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n");
		socket.write(head);
		return socket.pipe(socket);
	}
	const key = crypto.createHash("sha1").update(req.headers["sec-websocket-key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest("base64");
	socket.write("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: " + key + "\r\n\r\n");
	socket.on("data", f => {
		const n = f[1] & 127, mask = f.subarray(2, 6), text = f.subarray(6, 6 + n).map((b, i) => b ^ mask[i % 4]);
		socket.write(Buffer.concat([Buffer.from([f[0], n]), text]));
	}).on("error", () => {});
}).on("checkContinue", (req, res) => res.writeHead(417).end()).listen(3000, "127.0.0.1");
`

// A previewer serves a Preview, to a client that resolves every name to it.
type previewer struct {
	t      *testing.T
	client *http.Client
	port   string
}

func newPreviewer(t *testing.T, opts ...sandboxhttp.PreviewOption) previewer {
	t.Helper()
	return newPreviewerOn(t, "tcp", opts...)
}

func newPreviewerOn(t *testing.T, network string, opts ...sandboxhttp.PreviewOption) previewer {
	t.Helper()
	c, err := sandbox.NewClient()
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(sandboxhttp.Preview(c, opts...))
	if network == "unix" {
		s.Listener.Close()
		if s.Listener, err = net.Listen(network, filepath.Join(t.TempDir(), "s")); err != nil {
			t.Fatal(err)
		}
	}
	s.Start()
	at := s.Listener.Addr().String()
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, at)
	}}
	t.Cleanup(func() { transport.CloseIdleConnections(); s.Close(); c.Close() })
	port := "80"
	if network == "tcp" {
		_, port, _ = net.SplitHostPort(at)
	}
	return previewer{t, &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}, port}
}

func (p previewer) url(host, path string) string { return "http://" + host + ":" + p.port + path }

func (p previewer) send(method, host, path, body string, header ...string) (*http.Response, string) {
	p.t.Helper()
	req, err := http.NewRequestWithContext(p.t.Context(), method, p.url(host, path), strings.NewReader(body))
	if err != nil {
		p.t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := p.client.Do(req)
	if err != nil {
		p.t.Fatal(err)
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	if err != nil {
		p.t.Fatal(err)
	}
	return resp, string(got)
}

// getRaw sends a request whose target package url would encode.
func (p previewer) getRaw(host, target string) (*http.Response, string) {
	p.t.Helper()
	conn, err := net.Dial("tcp", "127.0.0.1:"+p.port)
	if err != nil {
		p.t.Fatal(err)
	}
	defer conn.Close()
	io.WriteString(conn, "GET "+target+" HTTP/1.1\r\nHost: "+host+"\r\n\r\n")
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		p.t.Fatal(err)
	}
	got, err := io.ReadAll(resp.Body)
	if err != nil {
		p.t.Fatal(err)
	}
	return resp, string(got)
}

type echo struct {
	Method, URL, Body string
	Headers           map[string]string
}

func echoOf(t *testing.T, body string) (e echo) {
	t.Helper()
	if err := json.Unmarshal([]byte(body), &e); err != nil {
		t.Fatalf("%v in %s", err, body)
	}
	return e
}

func TestPreview(t *testing.T) {
	enginetest.Need(t)
	t.Parallel()
	sb := sandboxtest.New(t, sandbox.WithPersistent(true), sandbox.WithCommand("node", "-e", devServer))
	if err := sb.WaitPort(t.Context(), 3000); err != nil {
		t.Fatal(err)
	}
	host := "3000-" + sb.Name() + ".localhost"

	t.Run("Refusals", func(t *testing.T) {
		for _, test := range []struct {
			host, path string
			opts       []sandboxhttp.PreviewOption
			header     []string
			status     int
			text       string
		}{
			{host, "/", nil, nil, 403, "WithAuthorize"},
			{host, "/", open, nil, 200, "GET"},
			{strings.ToUpper(host), "/", open, nil, 200, "GET"},
			{"3000-" + sb.Name() + ".evil.test", "/", open, nil, 404, "PORT-NAME.localhost"},
			{"localhost", "/", open, nil, 404, "PORT-NAME.localhost"},
			{"127.0.0.1", "/", open, nil, 404, "PORT-NAME.localhost"},
			{"0-x.localhost", "/", open, nil, 404, "PORT-NAME"},
			{"03000-x.localhost", "/", open, nil, 404, "PORT-NAME"},
			{"70000-x.localhost", "/", open, nil, 404, "PORT-NAME"},
			{"3000-.localhost", "/", open, nil, 404, "PORT-NAME"},
			{sb.Name() + ".localhost", "/", open, nil, 404, "PORT-NAME"},
			{"3000-no-such-sandbox.localhost", "/", open, nil, 404, "Sandbox not found"},
			{"3001-" + sb.Name() + ".localhost", "/", open, nil, 502, "port 3001"},
			{"3000-" + sb.Name() + ".p.example", "/", append(open, sandboxhttp.WithDomain("P.example.")), nil, 200, "GET"},
			{host, "/", append(open, sandboxhttp.WithDomain("p.example")), nil, 404, "p.example"},
		} {
			p := newPreviewer(t, test.opts...)
			if resp, got := p.send("GET", test.host, test.path, "", test.header...); resp.StatusCode != test.status || !strings.Contains(got, test.text) {
				t.Errorf("GET %s: %s %s, want %d %q", test.host, resp.Status, got, test.status, test.text)
			}
		}
	})
	t.Run("Requests", func(t *testing.T) {
		p := newPreviewer(t, open...)
		resp, got := p.send("POST", host, "/a%2Fb?x=1;y", "body", "X-Forwarded-For", "192.0.2.7", "Origin", p.url(host, ""))
		e := echoOf(t, got)
		if resp.StatusCode != 200 || e.Method != "POST" || e.URL != "/a%2Fb?x=1;y" || e.Body != "body" || e.Headers["host"] != host+":"+p.port || e.Headers["x-forwarded-for"] != "127.0.0.1" {
			t.Errorf("inside it is %+v", e)
		}
		for _, origin := range []string{"https://evil.test", "http://4000-" + sb.Name() + ".localhost:" + p.port, "null"} {
			if resp, got := p.send("POST", host, "/", "", "Origin", origin); resp.StatusCode != 403 || !strings.Contains(got, "WithCrossOriginProtection") {
				t.Errorf("a page of %s: %s %s, want 403", origin, resp.Status, got)
			}
		}
		resp, _ = p.send("GET", host, "/cookies", "")
		if set := resp.Header["Set-Cookie"]; !slices.Equal(set, []string{"a=1; Path=/", "b=2; HttpOnly", `j={"x":1}`}) {
			t.Errorf("cookies for the browser are %q", set)
		}
		resp, _ = p.send("GET", host, "/bare", "")
		if resp.Header["Content-Type"] != nil || resp.Header["Date"] != nil {
			t.Errorf("headers that the server did not send: %v", resp.Header)
		}
		for _, query := range []string{"", "?a=1;b=2&c=3", "?q=100%", "?z=1&a=2", "?a=%2F&b=%zz", "?;", "?&&", "?a=b=c", "?access_token=of-the-app;x"} {
			for _, method := range []string{"GET", "POST"} {
				if _, got := p.send(method, host, "/q"+query, ""); echoOf(t, got).URL != "/q"+query {
					t.Errorf("%s /q%s arrives as %s", method, query, got)
				}
			}
		}
	})
	t.Run("Paths", func(t *testing.T) {
		p := newPreviewer(t, open...)
		for path, want := range map[string]string{
			"/group%2Fproject/x":           "/group%2Fproject/x",
			"/group%2fproject/x|y":         "/group%2fproject/x%7Cy",
			"/a%2Bb%26c%3Bd%40/{id}^\"q\"": "/a%2Bb%26c%3Bd%40/%7Bid%7D%5E%22q%22",
			"//%41%25%3F//c\xc3\xbc[]!'*":  "//%41%25%3F//c%C3%BC[]!'*",
		} {
			_, got := p.getRaw(host, path)
			if url := echoOf(t, got).URL; url != want {
				t.Errorf("%q arrives as %q, want %q", path, url, want)
			}
		}
	})
	t.Run("Bodies", func(t *testing.T) {
		p := newPreviewer(t, open...)
		conn, err := net.Dial("tcp", "127.0.0.1:"+p.port)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		io.WriteString(conn, "PUT / HTTP/1.1\r\nHost: "+host+"\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n")
		if got, err := bufio.NewReader(conn).ReadString('\n'); got != "HTTP/1.1 417 Expectation Failed\r\n" {
			t.Errorf("a server that refuses a body by its head: %q, %v", got, err)
		}
		const size = 5 << 20
		req, _ := http.NewRequestWithContext(t.Context(), "POST", p.url(host, "/duplex"), io.LimitReader(zeros{}, size))
		resp, err := p.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if n, err := io.Copy(io.Discard, resp.Body); n != size || err != nil {
			t.Errorf("a server that answers while it reads returned %d of %d bytes, %v", n, size, err)
		}
		req, _ = http.NewRequestWithContext(t.Context(), "POST", p.url(host, "/"), io.LimitReader(zeros{}, 3))
		req.Trailer = http.Header{"Sum": {"7"}}
		resp, err = p.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if got, err := io.ReadAll(resp.Body); err != nil || !strings.Contains(string(got), `"trailers":{"sum":"7"}`) {
			t.Errorf("with a trailer the server sees %s, %v", got, err)
		}
	})
	t.Run("LiveReload", func(t *testing.T) {
		p := newPreviewer(t, open...)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		req, _ := http.NewRequestWithContext(ctx, "GET", p.url(host, "/reload"), nil)
		resp, err := p.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		for s, ready := bufio.NewScanner(resp.Body), false; ; {
			if !s.Scan() {
				t.Fatalf("the stream ended: %v", s.Err())
			}
			if s.Text() == "data: reload" && ready {
				break
			}
			if s.Text() == "data: ready" {
				ready = true
				sandboxtest.Run(t, sb, "sh", "-c", "echo changed > page")
			}
		}
	})
	t.Run("WebSocket", func(t *testing.T) {
		p := newPreviewer(t, open...)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		conn, _, err := websocket.Dial(ctx, p.url(host, "/ws"), &websocket.DialOptions{HTTPClient: p.client, HTTPHeader: http.Header{"Origin": {p.url(host, "")}}})
		if err != nil {
			t.Fatal(err)
		}
		defer conn.CloseNow()
		for _, text := range []string{"one", "two"} {
			if err := conn.Write(ctx, websocket.MessageText, []byte(text)); err != nil {
				t.Fatal(err)
			}
			if _, got, err := conn.Read(ctx); err != nil || string(got) != text {
				t.Errorf("the echo of %s is %s, %v", text, got, err)
			}
		}
		if _, resp, err := websocket.Dial(ctx, p.url(host, "/ws"), &websocket.DialOptions{HTTPClient: p.client, HTTPHeader: http.Header{"Origin": {"https://evil.test"}}}); err == nil || resp.StatusCode != 403 {
			t.Errorf("a WebSocket of another page: %v, %v, want 403", resp, err)
		}
	})
	t.Run("Upgrades", func(t *testing.T) {
		p := newPreviewer(t, open...)
		upgrade := func(path, offers, early string) (conn *net.TCPConn, r *bufio.Reader, resp *http.Response) {
			c, err := net.Dial("tcp", "127.0.0.1:"+p.port)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { c.Close() })
			io.WriteString(c, "GET "+path+" HTTP/1.1\r\nHost: "+host+"\r\nConnection: Upgrade\r\nUpgrade: "+offers+"\r\n\r\n"+early)
			r = bufio.NewReader(c)
			if resp, err = http.ReadResponse(r, nil); err != nil {
				t.Fatal(err)
			}
			return c.(*net.TCPConn), r, resp
		}
		// Several offers, of which the server chooses one, and what the client sends before the answer.
		for offers, early := range map[string]string{"foo, websocket": "", "foo\r\nUpgrade: websocket": "", "WebSocket, foo": "early"} {
			conn, r, resp := upgrade("/chooses", offers, early)
			if resp.StatusCode != 101 || resp.Header.Get("Upgrade") != "websocket" {
				t.Errorf("%q: %s %v", offers, resp.Status, resp.Header)
				continue
			}
			io.WriteString(conn, " and late")
			conn.CloseWrite()
			if got, err := io.ReadAll(r); err != nil || string(got) != early+" and late" {
				t.Errorf("%q: the echo is %q, %v, want %q", offers, got, err, early+" and late")
			}
		}
		if _, r, resp := upgrade("/plain", "h2c", ""); resp.StatusCode != 200 {
			t.Errorf("h2c: %s, want an answer by HTTP/1.1", resp.Status)
		} else if got, err := io.ReadAll(io.LimitReader(r, resp.ContentLength)); err == nil && strings.Contains(string(got), "h2c") {
			t.Errorf("the server sees %s", got)
		}
	})
	t.Run("Credentials", func(t *testing.T) {
		p := newPreviewer(t, sandboxhttp.WithToken("s3cret"))
		if resp, got := p.send("GET", host, "/", ""); resp.StatusCode != 401 {
			t.Errorf("without the token: %s %s", resp.Status, got)
		}
		_, got := p.send("GET", host, "/x", "", "Authorization", "Bearer s3cret", "Cookie", `list=1,2; json={"x":1}; sp=a b; agent-sandbox-preview=old`)
		if e := echoOf(t, got); e.Headers["authorization"] != "" || e.Headers["cookie"] != `list=1,2; json={"x":1}; sp=a b` {
			t.Errorf("the sandbox sees %+v", e.Headers)
		}
		// A browser with the token in its address gets a cookie for this host.
		jar, err := cookiejar.New(nil)
		if err != nil {
			t.Fatal(err)
		}
		p.client.Jar = jar
		resp, got := p.send("GET", host, "/page?z=1;y&a=100%&access_token=s3cret", "")
		if to := resp.Header.Get("Location"); resp.StatusCode != 303 || to != "/page?z=1;y&a=100%" || strings.Contains(got+resp.Header.Get("Set-Cookie"), "s3cret") {
			t.Errorf("with the token in the address: %s to %q, %v", resp.Status, to, resp.Header)
		}
		resp, _ = p.getRaw(host, "/a%2Fb|?access_token=s3cret")
		if to := resp.Header.Get("Location"); resp.StatusCode != 303 || to != "/a%2Fb%7C" {
			t.Errorf("with the token in the address: %s to %q", resp.Status, to)
		}
		resp, got = p.send("GET", host, "/page?a=b", "", "Authorization", "Bearer of-the-app")
		if e := echoOf(t, got); resp.StatusCode != 200 || e.URL != "/page?a=b" || e.Headers["cookie"] != "" || e.Headers["authorization"] != "Bearer of-the-app" {
			t.Errorf("with the cookie: %s %+v", resp.Status, e)
		}
		at, _ := url.Parse(p.url(host, "/"))
		cookie := jar.Cookies(at)[0]
		p.client.Jar = nil
		for other, status := range map[string]int{host: 200, "3001-" + sb.Name() + ".localhost": 401} {
			if resp, got := p.send("GET", other, "/", "", "Cookie", cookie.String()); resp.StatusCode != status {
				t.Errorf("the cookie at %s: %s %s, want %d", other, resp.Status, got, status)
			}
		}
		if resp, _ := p.send("GET", host, "//evil.test/?access_token=s3cret", ""); strings.HasPrefix(resp.Header.Get("Location"), "//") {
			t.Errorf("redirected to %q", resp.Header.Get("Location"))
		}
		// fn decides, and keeps from the sandbox what it does not want it to see.
		p = newPreviewer(t, sandboxhttp.WithAuthorize(func(r *http.Request, a sandboxhttp.Action) error {
			if want := (sandboxhttp.Action{Name: "preview", Sandbox: sb.Name(), Port: 3000, Changes: true}); a != want {
				t.Errorf("asked for %+v, want %+v", a, want)
			}
			if r.Header.Get("X-Key") != "k" {
				return errors.New("no key")
			}
			r.Header.Del("X-Key")
			return nil
		}))
		if resp, got := p.send("GET", host, "/", ""); resp.StatusCode != 403 || !strings.Contains(got, "no key") {
			t.Errorf("without a key: %s %s", resp.Status, got)
		}
		_, got = p.send("GET", host, "/", "", "X-Key", "k")
		if e := echoOf(t, got); e.Headers["x-key"] != "" {
			t.Errorf("the sandbox sees %+v", e.Headers)
		}
	})
	t.Run("BehindAProxy", func(t *testing.T) {
		const token = "s3cret"
		for name, test := range map[string]struct {
			proxies    []netip.Prefix
			socket     bool
			proto      string
			wantProto  string
			wantFor    string
			wantCookie string
		}{
			"trusted":         {local, false, "https", "https", "203.0.113.9, 198.51.100.1, 127.0.0.1", "__Host-agent-sandbox-preview"},
			"of a WebSocket":  {local, false, "wss", "wss", "203.0.113.9, 198.51.100.1, 127.0.0.1", "__Host-agent-sandbox-preview"},
			"without TLS":     {local, false, "http", "http", "203.0.113.9, 198.51.100.1, 127.0.0.1", "agent-sandbox-preview"},
			"unclear":         {local, false, "https, http", "http", "203.0.113.9, 198.51.100.1, 127.0.0.1", "agent-sandbox-preview"},
			"silent":          {local, false, "", "http", "203.0.113.9, 198.51.100.1, 127.0.0.1", "agent-sandbox-preview"},
			"by a socket":     {elsewhere, true, "https", "https", "203.0.113.9, 198.51.100.1", "__Host-agent-sandbox-preview"},
			"elsewhere":       {elsewhere, false, "https", "http", "127.0.0.1", "agent-sandbox-preview"},
			"none":            {nil, false, "https", "http", "127.0.0.1", "agent-sandbox-preview"},
			"none, by socket": {nil, true, "https", "http", "", "agent-sandbox-preview"},
		} {
			opts := []sandboxhttp.PreviewOption{sandboxhttp.WithToken(token), sandboxhttp.WithTrustedProxies(test.proxies...)}
			p := newPreviewer(t, opts...)
			if test.socket {
				p = newPreviewerOn(t, "unix", opts...)
			}
			header := []string{"X-Forwarded-For", "203.0.113.9, 198.51.100.1", "X-Forwarded-Proto", test.proto}
			if test.proto == "" {
				header = header[:2]
			}
			resp, _ := p.send("GET", host, "/?access_token="+token, "", header...)
			cookies := resp.Cookies()
			if len(cookies) != 1 || cookies[0].Name != test.wantCookie || cookies[0].Secure != strings.HasPrefix(test.wantCookie, "__Host-") {
				t.Errorf("%s: the cookie is %v, want %s", name, cookies, test.wantCookie)
				continue
			}
			resp, got := p.send("GET", host, "/", "", append(header, "Cookie", cookies[0].Name+"="+cookies[0].Value)...)
			if e := echoOf(t, got); resp.StatusCode != 200 || e.Headers["x-forwarded-proto"] != test.wantProto || e.Headers["x-forwarded-for"] != test.wantFor || e.Headers["x-forwarded-host"] != host+":"+p.port {
				t.Errorf("%s: %s, inside it is %+v, want %q and %q", name, resp.Status, e.Headers, test.wantProto, test.wantFor)
			}
		}
	})
	t.Run("Stopped", func(t *testing.T) {
		p, resumes := newPreviewer(t, open...), newPreviewer(t, append(open, sandboxhttp.WithResume())...)
		p.send("GET", host, "/", "") // connects
		if _, err := sb.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
		if resp, got := p.send("GET", host, "/", ""); resp.StatusCode != 409 || !strings.Contains(got, "not_running") {
			t.Errorf("of a stopped sandbox: %s %s, want 409", resp.Status, got)
		}
		if st, err := sb.Status(t.Context()); err != nil || st.State != sandbox.StateStopped {
			t.Errorf("a preview has started it: %v, %v", st.State, err)
		}
		for resp, got := resumes.send("GET", host, "/", ""); resp.StatusCode != 200; resp, got = resumes.send("GET", host, "/", "") {
			if resp.StatusCode != 502 { // until the server inside listens
				t.Fatalf("with WithResume: %s %s", resp.Status, got)
			}
			time.Sleep(20 * time.Millisecond)
		}
	})
}

var local, elsewhere = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}

var open = []sandboxhttp.PreviewOption{sandboxhttp.WithoutAuthorization()}[:1:1]
