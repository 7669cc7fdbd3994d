package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// A server is the program as "sandbox serve", in a process of its own.
type server struct {
	t              *testing.T
	cmd            *exec.Cmd
	Address, Token string
	Page           string
	rest           chan string // what it prints after that
}

func serving(t *testing.T, args ...string) *server {
	t.Helper()
	noteFlags(append([]string{"serve", "--json"}, args...))
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	s := &server{t: t, cmd: exec.Command(self, append([]string{"serve", "--json"}, args...)...), rest: make(chan string, 1)}
	s.cmd.Env = append(os.Environ(), asProgram+"=1")
	s.cmd.Stderr = os.Stderr
	out, err := s.cmd.StdoutPipe()
	if err == nil {
		err = s.cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if s.cmd.ProcessState == nil {
			s.cmd.Process.Kill()
			s.cmd.Wait()
		}
	})
	d := json.NewDecoder(out)
	if err := d.Decode(s); err != nil || s.Address == "" {
		t.Fatalf("sandbox serve %q: %v, %+v", args, err, s)
	}
	go func() {
		rest, _ := io.ReadAll(io.MultiReader(d.Buffered(), out))
		s.rest <- string(rest)
	}()
	return s
}

// curl runs curl, with the token, and returns what it prints.
func (s *server) curl(args ...string) string {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), harness.CallBound)
	defer cancel()
	cmd := exec.CommandContext(ctx, "curl", append([]string{"-sS", "-H", "Authorization: Bearer " + s.Token}, args...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		s.t.Errorf("curl %q: %v", args, err)
	}
	return string(out)
}

// end sends a signal, and waits until the server has ended.
func (s *server) end(sig os.Signal) {
	s.t.Helper()
	s.cmd.Process.Signal(sig)
	rest := <-s.rest
	if err := s.cmd.Wait(); err != nil || strings.TrimSpace(rest) != "" {
		s.t.Errorf("after %v: %v; it printed %q", sig, err, rest)
	}
}

func TestServeWithCurl(t *testing.T) {
	enginetest.Need(t)
	t.Parallel()
	s := serving(t, "--listen", "127.0.0.1:0")
	sb := harness.NewSandbox(t, sandbox.WithPersistent(true), sandbox.WithCommand("sh", "-c",
		"i=1; while [ $i -le 150 ]; do echo line $i; i=$((i+1)); done; until rm go 2>/dev/null; do sleep 0.02; done; echo live; echo trouble >&2; head -c 5000 /dev/zero >f; until rm over 2>/dev/null; do sleep 0.02; done; exec sleep 1000"))
	at := s.Address + "/sandboxes/" + sb.Name()

	var list []struct{ ID, Name, Status, CreatedAt, Location string }
	if err := json.Unmarshal([]byte(s.curl(s.Address+"/sandboxes?status=running&prefix="+sb.Name())), &list); err != nil || len(list) != 1 || list[0].ID != sb.ID() || list[0].Location != "local" || list[0].Status != "running" || list[0].CreatedAt == "" {
		t.Errorf("C5.1: %+v, %v", list, err)
	}
	if got := s.curl("-w", "%{http_code}", s.Address+"/sandboxes?status=runing"); !strings.Contains(got, "runing") || !strings.HasSuffix(got, "400") {
		t.Errorf("C5.2: the list of an unknown status is %s, want 400", got)
	}
	type details struct {
		Status, LogsEndpoint string
		UptimeMS             int64
		Usage                *struct{ MemoryLimit int64 }
		Workspace            struct{ Size string }
	}
	var one, stopped details
	if err := json.Unmarshal([]byte(s.curl(at)), &one); err != nil || one.Status != "running" || one.UptimeMS <= 0 || one.Usage == nil || one.LogsEndpoint != "/sandboxes/"+sb.ID()+"/logs" || one.Workspace.Size == "" {
		t.Errorf("C6.1, V5.1: %+v, %v", one, err)
	}
	for _, name := range []string{"no-such-sandbox", "UPPER", "..%2fx"} {
		if got, want := s.curl("-w", "%{http_code}", s.Address+"/sandboxes/"+name), `{"error":{"code":"not_found","message":"Sandbox not found"}}`+"\n404"; got != want {
			t.Errorf("C6.2: GET %s is %s, want %s", name, got, want)
		}
	}
	for read := 0; read < 150; time.Sleep(20 * time.Millisecond) {
		read = 0
		for range sb.Logs(t.Context(), sandbox.LogOptions{}) {
			read++
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), harness.CallBound)
	defer cancel()
	tail := exec.CommandContext(ctx, "curl", "-sSN", s.Address+one.LogsEndpoint+"?tail=100&access_token="+s.Token)
	out, err := tail.StdoutPipe()
	if err == nil {
		err = tail.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	// The program waits for the test after its first 150 lines, and after the last two: these come
	// while it runs.
	var lines []string
	var text strings.Builder
	for r := bufio.NewScanner(out); len(lines) < 102 && r.Scan(); {
		fmt.Fprintln(&text, r.Text())
		if data, ok := strings.CutPrefix(r.Text(), "data: "); ok {
			if lines = append(lines, data); len(lines) == 100 {
				harness.Run(t, sb, "touch", "go")
			}
		}
	}
	if len(lines) != 102 || lines[0] != "line 51" || lines[99] != "line 150" {
		t.Errorf("C7.2: %d lines, from %q, want 102 from line 51", len(lines), lines[:min(1, len(lines))])
	}
	for _, want := range []string{`event: stdout\nid: \S+\ndata: line 51\n\n`, `event: stdout\nid: \S+\ndata: live\n`, `event: stderr\nid: \S+\ndata: trouble\n`} {
		if !regexp.MustCompile(`(?m)^` + want).MatchString(text.String()) {
			t.Errorf("C7.1: the stream is %q, want the event %s", text.String(), want)
		}
	}
	harness.Run(t, sb, "touch", "over")
	tail.Process.Kill()
	tail.Wait()
	if got := s.curl(s.Address + "/health"); !strings.Contains(got, `"healthy":true`) || !strings.Contains(got, `"version":"`) {
		t.Errorf("C8.1: %s", got)
	}
	workspace := "agent-sandbox-" + sb.ID()
	type volume struct {
		Name, Size, CreatedAt string
		SizeBytes             int64
		Sandboxes             []string
		Orphaned              bool
	}
	volumeIn := func(path string) (v volume) {
		t.Helper()
		var all []volume
		if err := json.Unmarshal([]byte(s.curl(s.Address+path)), &all); err != nil {
			t.Errorf("GET %s: %v", path, err)
		}
		if i := slices.IndexFunc(all, func(v volume) bool { return v.Name == workspace }); i >= 0 {
			v = all[i]
		}
		return v
	}
	if v := volumeIn("/volumes"); v.SizeBytes < 5000 || !strings.HasSuffix(v.Size, " KB") || !slices.Equal(v.Sandboxes, []string{sb.Name()}) || v.CreatedAt == "" || v.Orphaned {
		t.Errorf("V3.1: the workspace is %+v", v)
	}
	if got := s.curl("-X", "DELETE", "-w", "%{http_code}", s.Address+"/volumes/"+workspace); !strings.Contains(got, "Volume is in use by running sandbox") || !strings.HasSuffix(got, "409") {
		t.Errorf("V4.2: %s", got)
	}
	if got := s.curl("-X", "POST", at+"/stop"); got != `{"status":"stopped"}`+"\n" {
		t.Errorf("stop: %s", got)
	}
	if err := json.Unmarshal([]byte(s.curl(at)), &stopped); err != nil || stopped.Status != "stopped" || stopped.UptimeMS != 0 || stopped.Usage != nil || stopped.LogsEndpoint != one.LogsEndpoint {
		t.Errorf("C6.1 of a stopped sandbox: %+v, %v", stopped, err)
	}
	if got := s.curl("-X", "DELETE", at+"?preserveVolume=true"); !strings.Contains(got, `{"name":"`+workspace+`","status":"preserved"`) {
		t.Errorf("C4.1: %s", got)
	}
	orphan := volumeIn("/volumes")
	if !orphan.Orphaned || len(orphan.Sandboxes) > 0 {
		t.Errorf("V3.2: the workspace is %+v, want it orphaned", orphan)
	}
	if v := volumeIn("/volumes/orphans"); v.Name == "" {
		t.Errorf("V6.1: the workspace is not among the orphans")
	}
	var freed struct {
		Removed    []string
		FreedBytes int64
	}
	if err := json.Unmarshal([]byte(s.curl("--json", `{"names": ["`+workspace+`"]}`, s.Address+"/volumes/cleanup")), &freed); err != nil || !slices.Equal(freed.Removed, []string{workspace}) || freed.FreedBytes != orphan.SizeBytes {
		t.Errorf("V6.2: %+v, %v, want %d bytes freed", freed, err, orphan.SizeBytes)
	}
	s.end(syscall.SIGTERM)
}

// What a request creates of an image with a pool was running before the request.
func TestServeHandsOverFromItsPool(t *testing.T) {
	enginetest.Need(t)
	t.Parallel()
	s := serving(t, "--listen", "127.0.0.1:0", "--pool", sandbox.DefaultImage+"=1")
	for deadline := time.Now().Add(harness.CallBound); ; time.Sleep(100 * time.Millisecond) {
		asked := time.Now()
		var made struct {
			Name      string
			CreatedAt time.Time
			Tags      map[string]string
		}
		reply := s.curl("-X", "POST", "-H", "Content-Type: application/json", "-d", `{"image":"`+sandbox.DefaultImage+`","tags":{"of":"a pool"}}`, s.Address+"/sandboxes")
		if err := json.Unmarshal([]byte(reply), &made); err != nil || made.Tags["of"] != "a pool" {
			t.Fatalf("POST /sandboxes: %s, %v", reply, err)
		}
		s.curl("-X", "DELETE", s.Address+"/sandboxes/"+made.Name+"?preserveVolume=false")
		if made.CreatedAt.Before(asked) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("every sandbox was made after it was asked for")
		}
	}
	s.end(syscall.SIGTERM)
}

func TestServeWithoutAnEngineSaysWhatToDo(t *testing.T) {
	t.Parallel()
	s := serving(t, "--listen", "127.0.0.1:0", "--host", "unix:///nowhere.sock")
	got := s.curl("-w", "%{http_code}", s.Address+"/health")
	if !strings.Contains(got, `"healthy":false`) || !strings.Contains(got, `"guidance":"`) || !strings.Contains(got, "unix:///nowhere.sock") || !strings.Contains(got, "DOCKER_HOST") || !strings.HasSuffix(got, "503") {
		t.Errorf("GET /health: %s, want 503 with the host that was tried and what to do", got)
	}
	s.end(syscall.SIGTERM)
}

// Without the token, and under another name, nothing is to be had.
func TestServeRefuses(t *testing.T) {
	enginetest.Need(t)
	t.Parallel()
	s := serving(t, "--listen", "127.0.0.1:0")
	_, port, _ := net.SplitHostPort(strings.TrimPrefix(s.Address, "http://"))
	if s.Page != s.Address+"/ui/#token="+s.Token {
		t.Errorf("the page is at %s", s.Page)
	}
	for _, test := range []struct{ path, host, token, want string }{
		{"/sandboxes", "localhost", "Bearer " + s.Token, "200 OK"},
		{"/sandboxes", "localhost", "", "401 Unauthorized"},
		{"/sandboxes", "localhost", "Bearer " + s.Token[1:], "401 Unauthorized"},
		{"/sandboxes", "rebound.test:" + port, "Bearer " + s.Token, "403 Forbidden"},
		{"/sandboxes", "3000-x.localhost:" + port, "Bearer " + s.Token, "404 Not Found"}, // a preview
		{"/sandboxes", "3000-x.localhost:" + port, "", "401 Unauthorized"},
		{"/sandboxes", "x.localhost:" + port, "Bearer " + s.Token, "404 Not Found"},
		{"/ui/", "localhost", "", "200 OK"},
		{"/ui/", "rebound.test", "", "403 Forbidden"},
		{"/ui/", "3000-x.localhost:" + port, "", "401 Unauthorized"},
	} {
		req, err := http.NewRequestWithContext(t.Context(), "GET", s.Address+test.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = test.host
		if test.token != "" {
			req.Header.Set("Authorization", test.token)
		}
		t.Cleanup(http.DefaultClient.CloseIdleConnections)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.Status != test.want {
			t.Errorf("GET %s of %s with %.8q: %s, want %s", test.path, test.host, test.token, resp.Status, test.want)
		}
	}
	// The token does not help a page of another origin.
	for origin, want := range map[string]string{s.Address: "404", "https://evil.test": "403", "null": "403"} {
		if got := s.curl("-X", "POST", "-H", "Origin: "+origin, "-o", "/dev/null", "-w", "%{http_code}", s.Address+"/sandboxes/no-such-sandbox/stop"); got != want {
			t.Errorf("POST from a page of %s: %s, want %s", origin, got, want)
		}
	}
	for _, args := range [][]string{{"--listen", "0.0.0.0:0"}, {"--listen", ":0"}, {"--listen", "[::]:0"}, {"--listen", "192.0.2.1:0"}, {"--listen", "nonsense"}, {"--source-address", "nonsense"}, {"--socket", "x", "--listen", "127.0.0.1:0"}} {
		ctx, cancel := context.WithTimeout(t.Context(), harness.CallBound)
		code, out, errOut := call(ctx, "", append([]string{"serve"}, args...)...)
		cancel()
		if code == 0 || out != "" || errOut == "" {
			t.Errorf("serve %q: code %d, %q, %q, want it refused", args, code, out, errOut)
		}
	}
	// The process shows the token to nobody.
	if runtime.GOOS == "linux" {
		for _, file := range []string{"cmdline", "environ"} {
			text, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", s.cmd.Process.Pid, file))
			if err != nil || strings.Contains(string(text), s.Token) {
				t.Errorf("%s has the token, or %v", file, err)
			}
		}
	}
	s.end(os.Interrupt)
}

// A server gets repositories, archives and images from public addresses, and from those it is given.
func TestServeGetsSourcesFromPermittedAddresses(t *testing.T) {
	enginetest.Need(t)
	t.Parallel()
	archive := harness.Tar(t, harness.TarFile("f", "content"))
	var requests atomic.Int64
	source := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		requests.Add(1)
		w.Write(archive)
	}))
	defer source.Close()
	create := func(s *server) string {
		return s.curl("-H", "Content-Type: application/json", "-d", `{"source": {"tarball": {"url": "`+source.URL+`"}}}`, s.Address+"/sandboxes")
	}
	if got := create(serving(t, "--listen", "127.0.0.1:0")); !strings.Contains(got, "not public") || requests.Load() > 0 {
		t.Errorf("a source at %s: %s, and %d requests, want it refused", source.URL, got, requests.Load())
	}
	var made struct{ Name string }
	got := create(serving(t, "--listen", "127.0.0.1:0", "--source-address", "10.0.0.0/8,127.0.0.1"))
	if err := json.Unmarshal([]byte(got), &made); err != nil || made.Name == "" {
		t.Fatalf("a source at a permitted address: %s, %v", got, err)
	}
	removeAtEnd(t, made.Name)
}

// A server on a socket ends what runs when it ends, and takes the socket of one that was killed.
func TestServeOnASocketEndsItsCommands(t *testing.T) {
	enginetest.Need(t)
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "s")
	killed := serving(t, "--socket", socket)
	killed.cmd.Process.Kill()
	killed.cmd.Wait()
	s := serving(t, "--socket", socket)
	if info, err := os.Stat(socket); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket: %v, %v, want it for its owner alone", info.Mode(), err)
	}
	if code, _, errOut := call(t.Context(), "", "serve", "--socket", socket); code == 0 || !strings.Contains(errOut, "another server") {
		t.Errorf("a second server on the socket: code %d, %q", code, errOut)
	}
	sb := harness.NewSandbox(t)
	curl := exec.Command("curl", "-sSN", "--unix-socket", socket, "-H", "Authorization: Bearer "+s.Token, "--json", `{"command": ["sh", "-c", "echo $$; exec sleep 1000"]}`,
		"http://localhost/sandboxes/"+sb.Name()+"/exec")
	out, err := curl.StdoutPipe()
	if err == nil {
		err = curl.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	var last string
	r := bufio.NewScanner(out)
	for !strings.Contains(last, "stdout") && r.Scan() {
		last = r.Text()
	}
	s.end(syscall.SIGTERM)
	for r.Scan() {
		last = r.Text()
	}
	curl.Wait()
	if !strings.Contains(last, `"failed"`) || !strings.Contains(last, `"canceled"`) {
		t.Errorf("the last event is %s, want that the command was ended", last)
	}
	harness.Eventually(t, "no command runs", func() bool {
		return harness.Run(t, sb, "sh", "-c", "grep -lsz '^sleep$' /proc/[0-9]*/cmdline | wc -l") == "0"
	})
	if _, err := os.Stat(socket); err == nil {
		t.Error("the socket is still there")
	}
}

// What the flags permit is refused without them.
func TestServePermitsWhatItsFlagsSay(t *testing.T) {
	enginetest.Need(t)
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "page"), []byte("of the host"), 0o644); err != nil {
		t.Fatal(err)
	}
	c := harness.NewClient(t)
	open := serving(t, "--listen", "0.0.0.0:0", "--public", "--allow-host", "sandboxes.test", "--host-files", "--preview-domain", "apps.test", "--preview-resume", "--trusted-proxy", "192.0.2.0/24,127.0.0.1")
	closed := serving(t, "--listen", "127.0.0.1:0")
	at := func(s *server) string {
		_, port, _ := net.SplitHostPort(strings.TrimPrefix(s.Address, "http://"))
		return "http://127.0.0.1:" + port
	}
	for s, want := range map[*server][2]string{open: {"200", "201"}, closed: {"403", "403"}} {
		if got := s.curl("-o", "/dev/null", "-w", "%{http_code}", "-H", "Host: sandboxes.test", at(s)+"/sandboxes"); got != want[0] {
			t.Errorf("for sandboxes.test: %s, want %s", got, want[0])
		}
		name := harness.UniqueName(t)
		harness.Remove(t, c, name)
		order := fmt.Sprintf(`{"name": %q, "mounts": [{"source": %q, "target": "/srv/files"}], "command": ["node", "-e", %q]}`, name, dir,
			"require('http').createServer((q, r) => r.end(require('fs').readFileSync('/srv/files/page') + ' by ' + q.headers['x-forwarded-proto'])).listen(3000)")
		if got := s.curl("-w", "\n%{http_code}", "--json", order, at(s)+"/sandboxes"); !strings.HasSuffix(got, want[1]) {
			t.Fatalf("a mount of a directory here: %s, want %s", got, want[1])
		}
		if s == closed {
			continue
		}
		if got := s.curl("-X", "POST", "-o", "/dev/null", "-w", "%{http_code}", at(s)+"/sandboxes/"+name+"/stop"); got != "200" {
			t.Fatalf("stop: %s", got)
		}
		harness.Eventually(t, "the server in the sandbox answers", func() bool {
			return s.curl("-H", "Host: 3000-"+name+".apps.test", "-H", "X-Forwarded-Proto: https", at(s)+"/") == "of the host by https"
		})
	}
	open.end(syscall.SIGTERM)
	closed.end(syscall.SIGTERM)
}

// inPage reads a log and uses a terminal from the server's own page. A container that starts changes
// the machine's interfaces, for which browsers give up new connections.
const inPage = `(async (name, token) => {
	const base = "/sandboxes/" + name, access = "access_token=" + token, seen = {text: ""};
	await new Promise(done => {
		const log = new EventSource(base + "/logs?tail=1&" + access);
		log.addEventListener("stdout", e => { seen.log = e.data; log.close(); done(); });
	});
	for (let tries = 0; seen.exit === undefined && tries < 10; tries++) await new Promise(done => {
		const terminal = new WebSocket("ws://" + location.host + base + "/terminal?" + access);
		terminal.binaryType = "arraybuffer";
		terminal.onopen = () => terminal.send(JSON.stringify({command: ["sh", "-c", "echo from the terminal; exit 4"]}));
		terminal.onmessage = e => {
			if (e.data instanceof ArrayBuffer) seen.text += new TextDecoder().decode(e.data);
			else seen.exit = JSON.parse(e.data).exitCode;
		};
		terminal.onclose = done;
	});
	return JSON.stringify(seen);
})(%q, %q)`

// Logs and a terminal by a browser's EventSource and WebSocket.
func TestServeInABrowser(t *testing.T) {
	enginetest.Need(t)
	t.Parallel()
	browser, err := exec.LookPath("chromium")
	if err != nil {
		t.Fatal("there is no chromium; ci/clients installs it")
	}
	sb := harness.NewSandbox(t, sandbox.WithCommand("sh", "-c", "echo of the log; exec sleep 1000"))
	s := serving(t, "--listen", "127.0.0.1:0")
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	ctx, cancel = chromedp.NewExecAllocator(ctx, append(slices.Clone(chromedp.DefaultExecAllocatorOptions[:]), chromedp.ExecPath(browser), chromedp.NoSandbox,
		chromedp.WSURLReadTimeout(2*time.Minute))...)
	defer cancel()
	ctx, cancel = chromedp.NewContext(ctx)
	defer cancel()
	if err := chromedp.Do(ctx, chromedp.Navigate(s.Page)); err != nil {
		t.Fatal(err)
	}
	seen, err := chromedp.Run(ctx, chromedp.Evaluate[string](fmt.Sprintf(inPage, sb.Name(), s.Token), chromedp.EvalAwaitPromise))
	if want := `{"text":"from the terminal\r\n","log":"of the log","exit":4}`; err != nil || seen != want {
		t.Errorf("the page saw %s, %v, want %s", seen, err, want)
	}
	chromedp.Cancel(ctx)
	s.end(syscall.SIGTERM)
}
