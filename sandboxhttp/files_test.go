package sandboxhttp_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/sandboxtest"
)

// breakOff sends a part of the content that a request announces, and returns the status of the answer.
func (a api) breakOff(path string) int {
	a.t.Helper()
	at, err := url.Parse(a.url + path)
	if err != nil {
		a.t.Fatal(err)
	}
	conn, err := net.Dial("tcp", at.Host)
	if err != nil {
		a.t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "PUT %s HTTP/1.1\r\nHost: %s\r\nContent-Length: 10\r\n\r\npart", at.RequestURI(), at.Host)
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		a.t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		a.t.Fatal(err)
	}
	defer resp.Body.Close()
	got, _ := io.ReadAll(resp.Body)
	openAPI(a.t).check(a.t, "PUT", strings.SplitN(path, "?", 2)[0], resp.StatusCode, resp.Header.Get("Content-Type"), got)
	return resp.StatusCode
}

func (a api) testFiles(sb *sandbox.Sandbox) {
	t := a.t
	files := "/sandboxes/" + sb.Name() + "/files"
	put := func(path string, body io.Reader, status int, header ...string) {
		t.Helper()
		resp := a.send("PUT", files+"?path="+path, body, header...)
		defer resp.Body.Close()
		got, _ := io.ReadAll(resp.Body)
		if resp.StatusCode != status {
			t.Errorf("PUT %s: %s %s, want %d", path, resp.Status, got, status)
		}
		openAPI(t).check(t, "PUT", files, resp.StatusCode, resp.Header.Get("Content-Type"), got)
	}
	get := func(path string, status int, header ...string) (string, http.Header) {
		t.Helper()
		resp := a.send("GET", files+"?path="+path, nil, header...)
		defer resp.Body.Close()
		got, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != status {
			t.Errorf("GET %s: %s %.100s, %v, want %d", path, resp.Status, got, err, status)
		}
		openAPI(t).check(t, "GET", files, resp.StatusCode, resp.Header.Get("Content-Type"), got)
		return string(got), resp.Header
	}
	large := make([]byte, 5<<20+1)
	rand.Read(large)
	large[0] = 0
	put("a/b/large", bytes.NewReader(large), 201)
	if got, _ := get("/workspace/a/b/large", 200); got != string(large) {
		t.Errorf("a file of %d bytes came back as one of %d, or another", len(large), len(got))
	}
	if got, _ := get("a/b/large", 206, "Range", "bytes=1000000-1000002"); got != string(large[1000000:1000003]) {
		t.Errorf("a range is %q", got)
	}
	for status, header := range map[int][]string{416: {"Range", "bytes=9000000-"}, 412: {"If-Unmodified-Since", "Mon, 02 Jan 2006 15:04:05 GMT"}} {
		if got, header := get("a/b/large", status, header...); !strings.HasPrefix(got, `{"error":{"code":`) || header.Get("Content-Disposition") != "" {
			t.Errorf("with %v: %s, want an error", header, got)
		}
	}

	// An unchanged file is known by its ETag, one that has changed by no time.
	put("same", strings.NewReader("content"), 201)
	for _, path := range []string{"same", "a/b/large"} {
		for _, change := range []string{
			"printf x | dd of=$0 conv=notrunc",                            // within the second
			"cp -p $0 r; printf y | dd of=$0 conv=notrunc; touch -r r $0", // with the old time
			"cp -p $0 r; printf z | dd of=r conv=notrunc; touch -d 2001-01-01 r; mv r $0",
		} {
			was, header := get(path, 200)
			same, modified := header.Get("ETag"), header.Get("Last-Modified")
			get(path, 304, "If-None-Match", same, "If-Modified-Since", "Mon, 02 Jan 2006 15:04:05 GMT")
			get(path, 412, "If-Match", `"another"`)
			if got, _ := get(path, 206, "If-Range", same, "Range", "bytes=1-2"); got != was[1:3] {
				t.Errorf("a range of %s is %q, want %q", path, got, was[1:3])
			}
			sandboxtest.Run(t, sb, "sh", "-c", "exec 2>/dev/null; "+change+"; rm -f r", path)
			for _, condition := range [][]string{{"If-None-Match", same}, {"If-Modified-Since", modified}, {"If-Range", same, "Range", "bytes=1-2"}, {"If-Range", modified, "Range", "bytes=1-2"}} {
				if got, _ := get(path, 200, condition...); len(got) != len(was) || got == was {
					t.Errorf("%s with %q after %s: %d bytes, want %d other ones", path, condition, change, len(got), len(was))
				}
			}
		}
	}
	sandboxtest.Run(t, sb, "rm", "same")

	put("page.html&mode=0600", strings.NewReader("<script>alert(1)</script>"), 201)
	got, header := get("page.html", 200)
	if got != "<script>alert(1)</script>" || header.Get("Content-Type") != "application/octet-stream" || !strings.HasPrefix(header.Get("Content-Disposition"), "attachment") || header.Get("X-Content-Type-Options") != "nosniff" {
		t.Errorf("a page: %q with %v: a browser would show it", got, header)
	}
	// A link is followed, a hard link's other name and the permissions stay, and all is new or old.
	sandboxtest.Run(t, sb, "sh", "-c", "mkdir -p d; ln -s ../page.html d/link; ln page.html other; ln -s new dangling; mkfifo pipe")
	put("d/link", strings.NewReader("second"), 200)
	if got := sandboxtest.Run(t, sb, "sh", "-c", "cat page.html other; stat -c %a page.html; stat -c %F d/link; ls -A . d"); got != "second<script>alert(1)</script>600\nsymbolic link\n.:\na\nd\ndangling\nother\npage.html\npipe\n\nd:\nlink\n" {
		t.Errorf("after a write through a link:\n%s", got)
	}
	put("dangling", strings.NewReader("x"), 201)
	put("nobodys&user=1000", strings.NewReader("x"), 403)
	put("d", strings.NewReader("x"), 400)
	put("pipe", strings.NewReader("x"), 400)
	put("new/", strings.NewReader("x"), 400)
	put("", strings.NewReader("x"), 400)
	// What would change the file otherwise than the client expects is refused.
	for _, header := range [][]string{{"Content-Range", "bytes 0-0/2"}, {"If-None-Match", "*"}, {"If-Match", "*"}, {"If-Unmodified-Since", "Mon, 02 Jan 2006 15:04:05 GMT"}} {
		put("page.html", strings.NewReader("x"), 400, header...)
	}
	put("page.html", strings.NewReader("x"), 415, "Content-Encoding", "gzip")
	put("page.html", strings.NewReader("second"), 200, "Content-Encoding", "identity")
	// So is a body that breaks off, or has malformed chunks.
	for _, body := range []string{"Content-Length: 100\r\n\r\nx", "Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\nzz\r\n"} {
		for _, kind := range []string{"files", "archive"} {
			address, prefix, _ := strings.Cut(strings.TrimPrefix(a.url, "http://"), "/")
			conn, err := net.Dial("tcp", address)
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(conn, "PUT /%s/sandboxes/%s/%s?path=page.html HTTP/1.1\r\nHost: localhost\r\n%s", prefix, sb.Name(), kind, body)
			conn.(*net.TCPConn).CloseWrite()
			resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil || resp.StatusCode != 400 {
				t.Errorf("PUT of %s with %q: %v, %v, want 400", kind, body, resp, err)
			}
			conn.Close()
		}
	}
	if got, _ := get("page.html", 200); got != "second" {
		t.Errorf("after what was refused: %q", got)
	}
	get("pipe", 400)
	get("d", 400)
	get("none", 404)
	get("../../etc/../etc/hostname", 200)
	put("zeros", io.LimitReader(zeros{}, 8<<20+1), 413)
	get("zeros", 404)

	// Of a request that breaks off no part is kept.
	for _, path := range []string{"page.html", "part"} {
		if status := a.breakOff(files + "?path=" + path); status != 400 {
			t.Errorf("PUT %s that breaks off: %d, want 400", path, status)
		}
	}
	get("part", 404)
	if got, _ := get("page.html", 200); got != "second" {
		t.Errorf("after a PUT that broke off it is %q, want the old content", got)
	}

	// What the kernel makes up has the length that can be read, whatever its size.
	for _, path := range []string{"/proc/version", "/proc/filesystems", "/sys/kernel/mm/transparent_hugepage/enabled", "/proc/self/cmdline", "/proc/kallsyms", "/proc/sys/kernel/ostype"} {
		if strings.HasPrefix(path, "/sys") && sandboxtest.Run(t, sb, "sh", "-c", "ls "+path+" 2>/dev/null || true") == "" {
			continue // of another kernel
		}
		want := sandboxtest.Run(t, sb, "sh", "-c", "cat "+path+" | wc -c")
		got, header := get(path, 200, "If-Modified-Since", "Fri, 01 Jan 2100 00:00:00 GMT")
		if header.Get("ETag") != "" {
			t.Errorf("%s has the ETag %s: it would be the same after a change", path, header.Get("ETag"))
		}
		if n := fmt.Sprintln(len(got)); n != want && path != "/proc/self/cmdline" || got == "" {
			t.Errorf("%s has %d bytes, want %s", path, len(got), want)
		}
		if length := header.Get("Content-Length"); length != "" && length != fmt.Sprint(len(got)) {
			t.Errorf("%s has %d bytes and Content-Length %s", path, len(got), length)
		}
	}
	put("empty", strings.NewReader(""), 201)
	if got, header := get("empty", 200); got != "" || header.Get("Content-Length") != "0" {
		t.Errorf("an empty file: %q, %v", got, header)
	}
	// A file that shrinks while it is read does not end as if it were whole.
	sandboxtest.Run(t, sb, "truncate", "-s", "64M", "shrinks")
	resp := a.send("GET", files+"?path=shrinks", nil)
	_, err := io.ReadFull(resp.Body, make([]byte, 1000))
	sandboxtest.Run(t, sb, "truncate", "-s", "1M", "shrinks")
	if n, readErr := io.Copy(io.Discard, resp.Body); err != nil || !errors.Is(readErr, io.ErrUnexpectedEOF) {
		t.Errorf("a file that shrinks: %v, then %d bytes, %v, want ErrUnexpectedEOF", err, n, readErr)
	}
	resp.Body.Close()
	sandboxtest.Run(t, sb, "rm", "shrinks")
	// A file keeps its owner and permissions, and one that is mounted is written in place.
	sandboxtest.Run(t, sb, "sh", "-c", "echo old >owned; chown 1000:1000 owned; chmod 640 owned; echo old >set; chmod 755 set")
	put("owned", strings.NewReader("new"), 200)
	put("set&mode=0700", strings.NewReader("new"), 200)
	put("open&mode=0666", strings.NewReader("new"), 201)
	if got := sandboxtest.Run(t, sb, "sh", "-c", "stat -c '%u:%g %a' owned set open; cat owned; rm owned set open empty"); got != "1000:1000 640\n0:0 700\n0:0 666\nnew" {
		t.Errorf("after writes: %s", got)
	}
	for _, path := range []string{"/etc/hosts", "/etc/resolv.conf", "/etc/hostname"} {
		was, _ := get(path, 200)
		put(path, strings.NewReader(was+"# more\n"), 200)
		if got, _ := get(path, 200); got != was+"# more\n" {
			t.Errorf("%s is %q after a write", path, got)
		}
		put(path, strings.NewReader(was), 200)
	}

	// A client that gives up leaves nothing of its file.
	ctx, cancel := context.WithCancel(t.Context())
	sent, body := io.Pipe()
	req, err := http.NewRequestWithContext(ctx, "PUT", a.url+files+"?path=half", sent)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		resp, err := http.DefaultClient.Do(req)
		if err == nil {
			resp.Body.Close()
		}
		ended <- err
	}()
	body.Write(make([]byte, 4<<20))
	body.Write(make([]byte, 4<<20))
	cancel()
	body.Close()
	if err := <-ended; err == nil {
		t.Error("half a file was written")
	}
	for left := "?"; left != ""; time.Sleep(20 * time.Millisecond) {
		left = sandboxtest.Run(t, sb, "sh", "-c", "ls -A | grep -e upload -e half || true")
	}

	var list []struct {
		Name, Type, Mode string
		SizeBytes        int64
	}
	a.call("GET", files+"/list?path=/workspace", "", 200, &list)
	var names []string
	for _, e := range list {
		names = append(names, e.Name+" "+e.Type)
		if e.Name == "page.html" && (e.Mode != "0600" || e.SizeBytes != 6) {
			t.Errorf("the entry of page.html: %+v", e)
		}
	}
	if want := []string{"a directory", "d directory", "dangling symlink", "new file", "other file", "page.html file", "pipe other"}; !slices.Equal(names, want) {
		t.Errorf("the workspace has %q, want %q", names, want)
	}
	var f failure
	a.call("GET", files+"/list?path=page.html", "", 400, &f)
	a.call("GET", files+"/list?path=none", "", 404, &f)
	if f.Error.Code != "file_not_found" {
		t.Errorf("list of a directory that is not there: %+v", f)
	}
	a.call("GET", files+"/list?path=/root&user=1000", "", 403, &f)
	// A name that is not UTF-8 has its bytes, by which the file can be reached.
	sandboxtest.Run(t, sb, "sh", "-c", `mkdir bytes; cd bytes; printf 1 >"$(printf 'a\376')"; printf 2 >"$(printf 'a\377')"; printf 3 >ä`)
	var odd []struct {
		Name       string
		NameBase64 []byte
	}
	a.call("GET", files+"/list?path=bytes", "", 200, &odd)
	content := map[string]string{}
	for _, e := range odd {
		name := e.Name
		if e.NameBase64 != nil {
			name = string(e.NameBase64)
		}
		content[name], _ = get("bytes/"+url.QueryEscape(name), 200)
	}
	if want := map[string]string{"a\xfe": "1", "a\xff": "2", "ä": "3"}; !maps.Equal(content, want) {
		t.Errorf("by the names of %+v there are %q, want %q", odd, content, want)
	}
	// Who may list a directory and not search it gets names and types.
	sandboxtest.Run(t, sb, "sh", "-c", "mkdir -m 444 names; touch names/f; mkdir names/d")
	var named []struct {
		Name, Type string
		SizeBytes  *int64
		Error      *struct{ Code, Message string }
	}
	for user, code := range map[string]string{"1000": "permission_denied", "0": ""} {
		named = nil
		if a.call("GET", files+"/list?path=names&user="+user, "", 200, &named); len(named) != 2 {
			t.Fatalf("entries for user %s: %+v", user, named)
		}
		for i, want := range []string{"d directory", "f file"} {
			if e := named[i]; e.Name+" "+e.Type != want || (e.Error == nil) != (code == "") || e.Error != nil && e.Error.Code != code || (e.SizeBytes == nil) != (code != "") {
				t.Errorf("the entry of %s for user %s: %+v, %+v", want, user, e, e.Error)
			}
		}
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}
