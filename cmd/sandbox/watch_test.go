package main

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

func TestWatchPrintsLines(t *testing.T) {
	enginetest.Need(t)
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	noteFlags([]string{"watch", "--json", "--denied", "--tag", "a=b", "--prefix", "w"})
	out, w := io.Pipe()
	ended := make(chan int, 1)
	go func() {
		ended <- run(ctx, []string{"watch", "--json", "--denied", "--tag", "watch=lines", "--prefix", ""}, strings.NewReader(""), w, io.Discard)
		w.Close()
	}()
	lines := bufio.NewScanner(out)
	next := func() (e sandbox.Event) {
		t.Helper()
		if !lines.Scan() {
			t.Fatalf("the output ended: %v", lines.Err())
		}
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			t.Fatalf("%v in %s", err, lines.Bytes())
		}
		return e
	}
	if e := next(); e.Kind != sandbox.EventSync {
		t.Errorf("the first event is %+v", e)
	}
	sb := harness.NewSandbox(t, sandbox.WithTags(map[string]string{"watch": "lines"}))
	if e := next(); e.Kind != sandbox.EventCreated || e.Name != sb.Name() {
		t.Errorf("the second event is %+v", e)
	}
	cancel()
	go io.Copy(io.Discard, out)
	if code := <-ended; code != codeInterrupted {
		t.Errorf("the exit code is %d, want %d", code, codeInterrupted)
	}
}

// A server that is started again has the token that its clients know, and prints none.
func TestServeWithAGivenToken(t *testing.T) {
	enginetest.Need(t)
	t.Parallel()
	secret := "given-" + strings.Repeat("x", 20)
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(secret+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := serving(t, "--listen", "127.0.0.1:0", "--token-file", file)
	if s.Token != "" || strings.Contains(s.Page, secret) {
		t.Errorf("it prints the token: %+v", s)
	}
	s.Token = secret
	if got := s.curl("-o", os.DevNull, "-w", "%{http_code}", s.Address+"/sandboxes"); got != "200" {
		t.Errorf("with the token of the file: %s", got)
	}
	if resp, err := http.Get(s.Address + "/sandboxes"); err != nil || resp.Body.Close() != nil || resp.StatusCode != http.StatusUnauthorized {
		t.Errorf("without the token: %+v, %v", resp, err)
	}
	for _, text := range []string{"", "short", "sixteen letters and a space"} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if code, out, errOut := call(t.Context(), "", "serve", "--listen", "127.0.0.1:0", "--token-file", file); code != codeUsage || out != "" || text != "" && strings.Contains(errOut, text) {
			t.Errorf("with the token %q: code %d, %q, %q", text, code, out, errOut)
		}
	}
}
