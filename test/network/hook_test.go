package network_test

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// signature covers what a server needs to check of a request.
func signature(key, method, host, path, id, body string) string {
	mac := hmac.New(sha256.New, []byte(key))
	fmt.Fprintf(mac, "%s %s %s %s %s", method, host, path, id, body)
	return hex.EncodeToString(mac.Sum(nil))
}

// signer returns a Transform.Do that signs requests.
func signer(key string) func(*http.Request) error {
	return func(r *http.Request) error {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return err
		}
		sum := sha256.Sum256(body)
		r.Header.Del("X-Inside")
		r.Header.Set("Authorization", signature(key, r.Method, r.URL.Host, r.URL.Path, r.Header.Get("X-Key-Id"), hex.EncodeToString(sum[:])))
		return nil
	}
}

const signedName = "api.good.lab.test"

// curl sends a request from inside, and returns its status and what the server saw.
func curl(t *testing.T, sb *sandbox.Sandbox, path string, args ...string) (status string, s seenByServer) {
	t.Helper()
	out := harness.Run(t, sb, append([]string{"curl", "-sS", "-w", "\n%{http_code}", "https://" + signedName + path}, args...)...)
	lines := strings.Fields(out) // the answer has no other spaces
	text, status := lines[0], lines[len(lines)-1]
	if status == "200" {
		if err := json.Unmarshal([]byte(text), &s); err != nil {
			t.Errorf("%s: %q: %v", path, out, err)
		}
	}
	return status, s
}

// isSigned reports whether a request that a server saw has the signature of the key.
func isSigned(s seenByServer, key, method string) bool {
	return s.Header.Get("Authorization") == signature(key, method, signedName, s.Path, s.Header.Get("X-Key-Id"), s.Body)
}

// The lab's client, with its authority and a log.
func signingClient(t *testing.T, l *lab, log io.Writer) *sandbox.Client {
	t.Helper()
	ca, err := l.ask(t.Context(), "/ca")
	if err != nil {
		t.Fatal(err)
	}
	return l.client(t, sandbox.WithAuthorities(ca), sandbox.WithLogger(slog.New(slog.NewTextHandler(log, nil))))
}

// lockedBuffer is a log that several goroutines write.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func TestRequestsAreSignedByTheCaller(t *testing.T) {
	t.Parallel()
	l := theLab(t)
	key := "key-" + record.NewID() + record.NewID()
	log := new(lockedBuffer)
	c := signingClient(t, l, log)
	sign := signer(key)
	hang := make(chan struct{})
	release := sync.OnceFunc(func() { close(hang) })
	defer release()
	do := func(r *http.Request) error {
		switch r.URL.Path {
		case "/error":
			return errors.New(key)
		case "/panic":
			panic(key)
		case "/hang":
			<-hang
		case "/method":
			r.Method = http.MethodPut
		case "/url":
			r.URL.Path = "/other"
		case "/host":
			r.Host = "evil.lab.test"
		case "/framing":
			r.Header.Set("Transfer-Encoding", key)
		case "/newline":
			r.Header.Set("X-Header", key+"\n")
		case "/many":
			for i := range 17 {
				r.Header.Set(fmt.Sprint("X-", i), key)
			}
		case "/unread":
			r.Header.Set("Authorization", "unread")
			r.Body = io.NopCloser(strings.NewReader("another"))
			return nil
		}
		return sign(r)
	}
	policy := sandbox.NetworkPolicy{Transform: map[string]sandbox.Transform{signedName: {SetHeaders: sandbox.Headers{"X-Key-Id": "id"}, Do: do}}}
	sb, err := c.Create(t.Context(), sandbox.WithName(harness.UniqueName(t)), sandbox.WithNetworkPolicy(policy), sandbox.WithStopTimeout(time.Second))
	if err != nil {
		t.Fatalf("Create: %v", err)
	}
	harness.Remove(t, c, sb.Name())
	t.Cleanup(func() { sb.Close() })

	long := "head -c 600000 /dev/zero | curl -sS -w '\n%{http_code}' --data-binary @- https://" + signedName
	check := func(when string) {
		t.Helper()
		for _, test := range []struct {
			method string
			args   []string
		}{
			{"GET", []string{"-H", "Authorization: mine", "-H", "X-Inside: 1"}},
			{"POST", []string{"-d", "some text"}},
			{"PUT", []string{"-X", "PUT", "-H", "Transfer-Encoding: chunked", "-d", "in chunks"}},
			{"GET", []string{"--http1.1"}},
		} {
			status, s := curl(t, sb, "/x", test.args...)
			if status != "200" || !isSigned(s, key, test.method) || s.Header.Get("X-Key-Id") != "id" || s.Header.Get("X-Inside") != "" {
				t.Errorf("%s: %s %q: status %s, the server saw %+v", when, test.method, test.args, status, s)
			}
		}
	}
	check("at first")
	hung := make(chan string, 1)
	go func() {
		out, err := sb.Command(t.Context(), "curl", "-sS", "-o", "/dev/null", "-w", "%{http_code}", "https://"+signedName+"/hang").Output()
		hung <- fmt.Sprint(string(out), err)
	}()
	hits := l.watch(t, sb)
	for _, path := range []string{"/error", "/panic", "/method", "/url", "/host", "/framing", "/newline", "/many"} {
		if status, _ := curl(t, sb, path); status != "502" {
			t.Errorf("%s: status %s, want 502", path, status)
		}
	}
	if got := harness.Run(t, sb, "sh", "-c", long+"/x; true"); !strings.HasSuffix(got, "502") {
		t.Errorf("a long body that is read: %q, want 502", got)
	}
	if got := hits(); len(got) > 0 {
		t.Errorf("%q arrived of requests that were refused", got)
	}
	got := harness.Run(t, sb, "sh", "-c", long+"/unread")
	zeros := sha256.Sum256(make([]byte, 600000))
	if !strings.HasSuffix(got, "\n200") || !strings.Contains(got, hex.EncodeToString(zeros[:])) || !strings.Contains(got, `"unread"`) {
		t.Errorf("a long body that is not read: %q", got)
	}
	check("after refusals")
	if got := <-hung; got != "503<nil>" {
		t.Errorf("one that hangs: %s, want 503", got)
	}
	release()
	tried, err := sb.Egress(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if i := slices.IndexFunc(tried, func(e sandbox.Egress) bool { return e.Rule == "transform" }); i < 0 || tried[i].Allowed || tried[i].Name != signedName || tried[i].Count != 10 {
		t.Errorf("Egress: %+v; want 10 requests that a transform did not let pass", tried)
	}
	if text := log.String(); strings.Contains(text, key) || !strings.Contains(text, "it panicked") {
		t.Errorf("the log: %s", text)
	}

	// An update has functions of its own, and one without any ends what they are for.
	if err := sb.Update(t.Context(), sandbox.WithNetworkPolicy(sandbox.NetworkPolicy{Transform: map[string]sandbox.Transform{signedName: {Do: signer("new")}}})); err != nil {
		t.Fatal(err)
	}
	if status, s := curl(t, sb, "/x"); status != "200" || !isSigned(s, "new", "GET") {
		t.Errorf("after an update: status %s, %+v", status, s)
	}
	if _, err := sb.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if status, s := curl(t, sb, "/x"); status != "200" || !isSigned(s, "new", "GET") {
		t.Errorf("in the next session of the handle: status %s, %+v", status, s)
	}
}

func init() {
	// signer signs the requests of a sandbox until it is killed.
	harness.AddRole("signer", func(args []string) error {
		c, err := harness.Open(sandbox.WithAuthorities([]byte(os.Getenv("SIGNER_CA"))))
		if err != nil {
			return err
		}
		_, err = c.Get(context.Background(), args[0], sandbox.WithTransform(map[string]sandbox.Transform{signedName: {Do: signer(args[1])}}))
		if err != nil {
			return err
		}
		fmt.Println("ready")
		select {}
	})
}

// Without its callers nothing is signed, and nothing is sent.
func TestRequestsAreRefusedWithoutTheirSigner(t *testing.T) {
	t.Parallel()
	l := theLab(t)
	ca, err := l.ask(t.Context(), "/ca")
	if err != nil {
		t.Fatal(err)
	}
	c := signingClient(t, l, io.Discard)
	maker, err := c.Create(t.Context(), sandbox.WithName(harness.UniqueName(t)), sandbox.WithStopTimeout(time.Second),
		sandbox.WithNetworkPolicy(sandbox.NetworkPolicy{Transform: map[string]sandbox.Transform{signedName: {Do: signer("maker")}}}))
	if err != nil {
		t.Fatal(err)
	}
	harness.Remove(t, c, maker.Name())
	if err := maker.Detach(); err != nil {
		t.Fatal(err)
	}
	sb, err := c.Get(t.Context(), maker.Name())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { sb.Close() })
	unsigned := func(when string) {
		t.Helper()
		hits := l.watch(t, sb)
		harness.Eventually(t, when+" requests are refused", func() bool {
			status, s := curl(t, sb, "/x")
			if status == "200" && s.Header.Get("Authorization") == "" {
				t.Fatalf("%s: sent without a signature: %+v", when, s)
			}
			return status == "503"
		})
		hits()
	}
	signedBy := func(key string) {
		t.Helper()
		if status, s := curl(t, sb, "/x"); status != "200" || !isSigned(s, key, "GET") {
			t.Errorf("with the signer %s: status %s, %+v", key, status, s)
		}
	}
	unsigned("after Detach")
	start := func(key string) (kill func()) {
		t.Helper()
		cmd := harness.Process(t, "signer", sb.Name(), key)
		cmd.Env = append(cmd.Environ(), "SIGNER_CA="+string(ca))
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		kill = sync.OnceFunc(func() {
			cmd.Process.Kill()
			cmd.Wait()
		})
		t.Cleanup(kill)
		if _, err := io.ReadFull(out, make([]byte, 5)); err != nil {
			t.Fatalf("the signer %s: %v", key, err)
		}
		return kill
	}
	first := start("first")
	signedBy("first")
	second := start("second")
	signedBy("second") // the latest
	second()
	harness.Eventually(t, "the first one stands in", func() bool {
		status, s := curl(t, sb, "/x")
		return status == "200" && isSigned(s, "first", "GET")
	})
	first()
	unsigned("after the signers were killed")
	start("third")
	signedBy("third")
}
