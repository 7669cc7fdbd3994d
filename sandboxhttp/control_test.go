package sandboxhttp_test

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/sandboxhttp"
	"github.com/seed-1a2d6d8f/sandbox/sandboxtest"
)

type execResult struct {
	ExitCode, Signal           int
	Stdout, Stderr             string
	StdoutBase64, StderrBase64 []byte
	DroppedBytes               int64
	TimedOut                   bool
}

// One object has all of a short command.
func (a api) testWait(sb *sandbox.Sandbox) {
	run := func(body string) (r execResult) {
		a.t.Helper()
		a.call("POST", "/sandboxes/"+sb.Name()+"/exec", body, 200, &r)
		return r
	}
	if r := run(`{"wait": true, "stdin": "in", "command": ["sh", "-c", "cat; echo err >&2; exit 3"]}`); r.ExitCode != 3 || r.Stdout != "in" || r.Stderr != "err\n" {
		a.t.Errorf("a command: %+v", r)
	}
	if r := run(`{"wait": true, "command": ["sh", "-c", "printf '\\377'; kill -9 $$"]}`); r.ExitCode != 137 || r.Signal != 9 || r.Stdout != "" || string(r.StdoutBase64) != "\xff" {
		a.t.Errorf("a killed command that writes no text: %+v", r)
	}
	if r := run(`{"wait": true, "timeoutMs": 200, "command": ["sleep", "1000"]}`); !r.TimedOut {
		a.t.Errorf("a command beyond its time: %+v", r)
	}
	if r := run(`{"wait": true, "command": ["sh", "-c", "head -c 20000000 /dev/zero | tr '\\0' x; printf end"]}`); len(r.Stdout) != sandbox.KeptOutput || r.DroppedBytes != 20_000_003-sandbox.KeptOutput || !strings.HasSuffix(r.Stdout, "xend") {
		a.t.Errorf("of much output %d bytes are kept and %d dropped", len(r.Stdout), r.DroppedBytes)
	}
	// 8 MiB are no multiple of the three bytes.
	if r := run(`{"wait": true, "command": ["node", "-e", "process.stdout.write('€'.repeat(3e6))"]}`); r.Stdout != strings.Repeat("€", sandbox.KeptOutput/3) || r.StdoutBase64 != nil || r.DroppedBytes != 9_000_000-sandbox.KeptOutput/3*3 {
		a.t.Errorf("of much text %d bytes are kept, %d in base64, and %d dropped", len(r.Stdout), len(r.StdoutBase64), r.DroppedBytes)
	}
	a.call("POST", "/sandboxes/"+sb.Name()+"/exec", `{"wait": true, "detached": true, "command": ["true"]}`, 400, nil)
	a.call("POST", "/sandboxes/"+sb.Name()+"/exec", `{"wait": true, "command": ["no-such-program"]}`, 400, nil)
}

// tarOf is an archive of these entries.
func tarOf(t *testing.T, entries ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range entries {
		content := h.Gname // which no archive here needs
		h.Gname, h.Size = "", int64(len(content))
		if err := errors.Join(w.WriteHeader(&h), second(w.Write([]byte(content)))); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func second(_ int, err error) error { return err }

func (a api) testArchive(sb *sandbox.Sandbox) {
	t, at := a.t, "/sandboxes/"+sb.Name()+"/archive?path="
	put := func(path string, archive []byte, status int, v any) {
		t.Helper()
		resp := a.send("PUT", at+path, bytes.NewReader(archive), "Content-Type", "application/x-tar")
		defer resp.Body.Close()
		got, _ := io.ReadAll(resp.Body)
		openAPI(t).check(t, "PUT", at+path, resp.StatusCode, resp.Header.Get("Content-Type"), got)
		if resp.StatusCode != status {
			t.Errorf("PUT an archive to %s: %s %s, want %d", path, resp.Status, got, status)
		}
		if v != nil && json.Unmarshal(got, v) != nil {
			t.Errorf("PUT an archive to %s: %s", path, got)
		}
	}
	var report sandbox.CopyReport
	put("tree/sub", tarOf(t,
		tar.Header{Typeflag: tar.TypeReg, Name: "a/run.sh", Mode: 0o4755, Gname: "echo hello"},
		tar.Header{Typeflag: tar.TypeLink, Name: "again", Linkname: "a/run.sh"},
		tar.Header{Typeflag: tar.TypeSymlink, Name: "link", Linkname: "/etc/passwd"},
		tar.Header{Typeflag: tar.TypeChar, Name: "device", Mode: 0o644},
	), 200, &report)
	if report.Files != 3 || len(report.Skipped) != 2 {
		t.Errorf("the report of an archive: %+v, want 3 files, and the device and the setuid bit left out", report)
	}
	if got := sandboxtest.Run(t, sb, "sh", "-c", "cd tree/sub; stat -c '%a %h %U' a/run.sh; sh again; readlink link; ls"); got != "755 2 root\nhello\n/etc/passwd\na\nagain\nlink\n" {
		t.Errorf("from an archive:\n%s", got)
	}
	put("tree", tarOf(t, tar.Header{Typeflag: tar.TypeReg, Name: "sub/a/run.sh", Mode: 0o644, Gname: "new"}), 200, nil)
	// Nothing is written outside of the directory, or through a link of the archive or the sandbox.
	put("tree", tarOf(t, tar.Header{Typeflag: tar.TypeReg, Name: "../out", Mode: 0o644}), 400, nil)
	put("tree", tarOf(t, tar.Header{Typeflag: tar.TypeSymlink, Name: "up", Linkname: ".."}, tar.Header{Typeflag: tar.TypeReg, Name: "up/out", Mode: 0o644}), 400, nil)
	sandboxtest.Run(t, sb, "ln", "-s", "..", "tree/parent")
	put("tree", tarOf(t, tar.Header{Typeflag: tar.TypeReg, Name: "parent/out", Mode: 0o644}), 400, nil)
	put("tree", []byte("no archive"), 400, nil)
	put("tree", tarOf(t, tar.Header{Typeflag: tar.TypeReg, Name: "half", Mode: 0o644, Gname: strings.Repeat("x", 5000)})[:2000], 400, nil)
	put("tree", tarOf(t, tar.Header{Typeflag: tar.TypeReg, Name: "huge", Mode: 0o644, Gname: strings.Repeat("x", 8<<20+1)}), 413, nil)
	if got := sandboxtest.Run(t, sb, "sh", "-c", "rm tree/parent tree/up 2>/dev/null; find . -name out -o -name half -o -name huge; cat tree/sub/a/run.sh"); got != "new" {
		t.Errorf("after archives that were refused: %q", got)
	}

	sandboxtest.Run(t, sb, "sh", "-c", `mkfifo tree/pipe; chmod 700 tree/sub; chmod 6755 tree/sub/again; printf x >"$(printf 'tree/caf\351')"`)
	resp := a.send("GET", at+"tree", nil)
	defer resp.Body.Close()
	var names []string
	for r := tar.NewReader(resp.Body); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		content, _ := io.ReadAll(r)
		names = append(names, fmt.Sprintf("%s %o %s%s", h.Name, h.Mode, h.Linkname, content))
	}
	slices.Sort(names)
	want := []string{"./ 755 ", "./caf\xe9 644 x", "./sub 700 ", "./sub/a 755 ", "./sub/a/run.sh 644 new", "./sub/again 755 echo hello", "./sub/link 777 /etc/passwd"}
	if resp.StatusCode != 200 || resp.Header.Get("Content-Type") != "application/x-tar" || !slices.Equal(trimSlashes(names), trimSlashes(want)) {
		t.Errorf("GET an archive: %s %q\n%q, want\n%q", resp.Status, resp.Header, names, want)
	}
	// What a HEAD asks for is not packed, which for this user would fail in the middle and end the connection.
	sandboxtest.Run(t, sb, "sh", "-c", "mkdir -m 755 half; head -c 3000000 /dev/zero >half/a; echo >half/z; chmod 0 half/z")
	a.heads(at+"half&user=node", "/healthz")
	resp = a.send("HEAD", at+"none", nil)
	resp.Body.Close()
	if resp.StatusCode != 404 {
		t.Errorf("HEAD of an archive that is not there: %s", resp.Status)
	}
	a.call("GET", at+"none", "", 404, nil)
	a.call("GET", at+"tree/sub/a/run.sh", "", 400, nil)

	// The files of this directory are shorter than their sizes.
	const untrue = "/sys/devices/system/cpu/vulnerabilities"
	resp = a.send("GET", at+untrue, nil)
	defer resp.Body.Close()
	var content strings.Builder
	for r := tar.NewReader(resp.Body); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err == nil && h.Typeflag == tar.TypeReg {
			_, err = io.Copy(&content, r)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if want := sandboxtest.Run(t, sb, "sh", "-c", "LC_ALL=C; cat "+untrue+"/*"); content.String() != want || want == "" {
		t.Errorf("an archive of %s has %q, want %q", untrue, content.String(), want)
	}
	// An archive that a file shrinks during does not end as if it were whole.
	sandboxtest.Run(t, sb, "sh", "-c", "mkdir shrinks; truncate -s 64M shrinks/f")
	resp = a.send("GET", at+"shrinks", nil)
	defer resp.Body.Close()
	_, err := io.ReadFull(resp.Body, make([]byte, 2000))
	sandboxtest.Run(t, sb, "truncate", "-s", "1M", "shrinks/f")
	if n, readErr := io.Copy(io.Discard, resp.Body); err != nil || !errors.Is(readErr, io.ErrUnexpectedEOF) {
		t.Errorf("an archive of a file that shrinks: %v, then %d bytes, %v, want ErrUnexpectedEOF", err, n, readErr)
	}
	sandboxtest.Run(t, sb, "rm", "-r", "shrinks")
}

func trimSlashes(names []string) (trimmed []string) {
	for _, n := range names {
		trimmed = append(trimmed, strings.Replace(n, "/ ", " ", 1))
	}
	return trimmed
}

func (a api) testFileChanges(sb *sandbox.Sandbox) {
	t, at := a.t, "/sandboxes/"+sb.Name()+"/files"
	a.call("POST", at+"/mkdir?path=made/deep&mode=0700", "", 204, nil)
	a.call("POST", at+"/rename?path=made/deep&to=made/moved", "", 204, nil)
	if got := sandboxtest.Run(t, sb, "sh", "-c", "stat -c '%a %F' made/moved"); got != "700 directory\n" {
		t.Errorf("made and moved: %s", got)
	}
	a.call("POST", at+"/rename?path=made/none&to=x", "", 404, nil)
	a.call("POST", at+"/rename?path=made", "", 400, nil)
	a.call("DELETE", at+"?path=made/none", "", 404, nil)
	// What the kernel refuses is the client's.
	for _, r := range []struct {
		method, query string
		status        int
		code          string
	}{
		{"POST", "/rename?path=made&to=/dev/shm/made", 400, "invalid_argument"}, // another device
		{"POST", "/rename?path=made&to=made/moved/x", 400, "invalid_argument"},  // into itself
		{"POST", "/rename?path=/etc/hostname&to=/etc/other", 409, "busy"},       // a mount
		{"DELETE", "?path=/etc/hostname", 409, "busy"},                          // the same
		{"DELETE", "?path=/workspace", 409, "busy"},                             // the same
		{"DELETE", "?path=.", 400, "invalid_argument"},                          // which can't be removed by this name
		{"POST", "/mkdir?path=/sys/kernel/x", 403, "permission_denied"},         // a read-only file system
		{"DELETE", "?path=made", 409, "file_exists"},                            // it is not empty
	} {
		var f failure
		if a.call(r.method, at+r.query, "", r.status, &f); f.Error.Code != r.code {
			t.Errorf("%s %s: %+v, want %s", r.method, r.query, f, r.code)
		}
	}
	a.call("DELETE", at+"?path=made&user=1000&recursive=true", "", 403, nil)
	a.call("DELETE", at+"?path=made/moved", "", 204, nil)
	sandboxtest.Run(t, sb, "sh", "-c", "mkdir -p made/full/of; echo x >made/full/of/files")
	a.call("DELETE", at+"?path=made&recursive=true", "", 204, nil)
	a.call("GET", at+"/list?path=made", "", 404, nil)
}

func (a api) testControl(sb *sandbox.Sandbox) {
	t, at := a.t, "/sandboxes/"+sb.Name()
	start := func() string {
		var e struct{ ID string }
		a.call("POST", at+"/exec", `{"detached": true, "command": ["sleep", "1000"]}`, 202, &e)
		return e.ID
	}
	for body, signal := range map[string]int{`{"signal": "sigusr1"}`: 10, "": 9} {
		id := start()
		a.call("POST", at+"/processes/"+id+"/signal", `{"signal": "NOPE"}`, 400, nil)
		a.call("POST", at+"/processes/"+id+"/signal", body, 204, nil)
		cmd, err := sb.Process(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		cmd.Wait()
		list, err := sb.Processes(t.Context())
		if i := slices.IndexFunc(list, func(p sandbox.ProcessInfo) bool { return p.ID == id }); err != nil || i < 0 || list[i].Signal != signal {
			t.Errorf("after the request %q: %+v, %v, want signal %d", body, list, err, signal)
		}
		var f failure
		if a.call("POST", at+"/processes/"+id+"/signal", body, 409, &f); f.Error.Code != "process_done" || !strings.Contains(f.Error.Message, "already finished") {
			t.Errorf("the request %q about a command that has ended: %+v", body, f)
		}
	}
	a.call("POST", at+"/processes/abcdefghij23/signal", "", 404, nil)
	a.call("POST", at+"/extend", `{"durationMs": 0}`, 400, nil)
	a.call("POST", at+"/extend", `{"durationMs": 60000}`, 200, nil) // it has no timeout
	for path, want := range map[string]bool{
		at + "/network/check?host=example.com": true, "/network/check?policy=deny-all&host=example.com": false,
		"/network/check?policy=allow%3D*.example.com&host=a.example.com&port=80": true,
	} {
		var v struct {
			Allowed bool
			Rule    string
		}
		if a.call("GET", path, "", 200, &v); v.Allowed != want || v.Rule == "" {
			t.Errorf("GET %s: %+v, want %v", path, v, want)
		}
	}
	a.call("GET", "/network/check?policy=nonsense&host=a", "", 400, nil)
	a.call("GET", "/network/check?policy=deny-all&host=a&port=x", "", 400, nil)
	var report struct{ Removed, Failed []string }
	if a.call("POST", "/prune", "", 200, &report); report.Removed == nil || report.Failed == nil {
		t.Errorf("prune: %+v, want arrays", report)
	}
}

// A balancer asks without the token, and learns nothing; a browser at the root gets the page.
func TestNobodyNeedsTheTokenToSeeThatItRuns(t *testing.T) {
	t.Parallel()
	c, err := sandbox.NewClient(sandbox.WithHost("unix:///nowhere.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	h := sandboxhttp.Handler(c, sandboxhttp.WithToken("secret"))
	get := func(path, accept string) *httptest.ResponseRecorder {
		// As by a server, to an HTTP/1.0 request without a Host.
		r := httptest.NewRequestWithContext(context.WithValue(t.Context(), http.LocalAddrContextKey, &net.TCPAddr{}), "GET", path, nil)
		if r.Host = "localhost"; path == "/healthz" {
			r.Host = ""
		}
		r.Header.Set("Accept", accept)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w
	}
	if w := get("/healthz", "*/*"); w.Code != http.StatusOK || w.Body.String() != "{\"ok\":true}\n" {
		t.Errorf("/healthz without the token: %d %s", w.Code, w.Body)
	}
	if w := get("/health", "*/*"); w.Code != http.StatusUnauthorized {
		t.Errorf("/health without the token: %d %s", w.Code, w.Body)
	}
	if w := get("/", "text/html,*/*;q=0.8"); w.Code != http.StatusFound || w.Header().Get("Location") != "/ui/" {
		t.Errorf("a browser at the root: %d, %v", w.Code, w.Header())
	}
	if w := get("/", "*/*"); w.Code != http.StatusNotFound || w.Header().Get("Content-Type") != "application/json" {
		t.Errorf("another client at the root: %d %s", w.Code, w.Body)
	}
}
