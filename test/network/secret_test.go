package network_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// seenByServer is testdata/lab's Seen.
type seenByServer struct {
	At, SNI, Host, Path, Proto string
	Body                       string
	Header                     http.Header
}

func served(t *testing.T, o outcome) (s seenByServer) {
	t.Helper()
	_, text, _ := strings.Cut(o.Got, " ")
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		t.Errorf("%+v: %v", o, err)
	}
	return s
}

// Secrets: a token that the sandbox can use and cannot read. It reaches the server it is
// for, verified, and nobody else; it is nowhere inside, and nowhere on the engine.
func TestSecretIsUsedAndNotSeen(t *testing.T) {
	t.Parallel()
	l := theLab(t)
	token := "token-" + record.NewID() + record.NewID()
	ca, err := l.ask(t.Context(), "/ca")
	if err != nil {
		t.Fatal(err)
	}
	c := l.client(t, sandbox.WithAuthorities(ca))
	policy := sandbox.NetworkPolicy{
		Allow:     []string{"a.wild.lab.test"},
		Transform: map[string]sandbox.Transform{"*.good.lab.test": {SetHeaders: sandbox.Headers{"Authorization": "Bearer " + token}}},
	}
	sb, err := c.Create(t.Context(), sandbox.WithName(harness.UniqueName(t)), sandbox.WithNetworkPolicy(policy), sandbox.WithStopTimeout(time.Second),
		sandbox.WithCommand("sh", "-c", "echo begun; exec sleep 1000"))
	if err != nil {
		t.Fatalf("Create: %v", err)
	}
	harness.Remove(t, c, sb.Name())
	t.Cleanup(func() { sb.Detach() })
	l.putProbe(t, sb)
	on := func(a netip.Addr, port uint16) string { return netip.AddrPortFrom(a, port).String() }
	attempts := []tried{
		{"by its name", "fetch-verified", "", "https://api.good.lab.test/"}, {"8443", "fetch-verified", "", "https://api.good.lab.test:8443/"},
		{"without TLS", "fetch", "", "http://api.good.lab.test/"}, {"another host", "fetch", "", "https://a.wild.lab.test/"},
		{"other address", "tls", on(l.evil, 443), "api.good.lab.test"}, {"wrong certificate", "fetch", "", "https://wrong.good.lab.test/"},
		{"not allowed", "tls", on(l.evil, 443), "evil.lab.test"}, {"Postgres", "postgres", on(l.good, 5432), "api.good.lab.test"},
	}
	check := func(when string) {
		t.Helper()
		hits := l.watch(t, sb)
		got := l.try(t, sb, attempts...)
		for name, proto := range map[string]string{"by its name": "HTTP/2.0", "8443": "HTTP/2.0", "other address": ""} {
			s := served(t, got[name])
			if auth := s.Header.Values("Authorization"); !slices.Equal(auth, []string{"Bearer " + token}) || !strings.HasPrefix(s.At, l.good.String()+":") || s.Host == "" || proto != "" && s.Proto != proto {
				t.Errorf("%s: %s: the server saw %+v; want the token", when, name, s)
			}
		}
		if s := served(t, got["another host"]); s.Header.Get("Authorization") != "" || s.SNI != "a.wild.lab.test" {
			t.Errorf("%s: a host without a transform saw %+v", when, s)
		}
		for _, name := range []string{"without TLS", "wrong certificate", "not allowed", "Postgres"} {
			if got[name].Err == "" {
				t.Errorf("%s: %s: %+v; want it refused", when, name, got[name])
			}
		}
		for _, hit := range hits() {
			if hit != "tcp "+on(l.good, 443) && hit != "tcp "+on(l.good, 8443) {
				t.Errorf("%s: %s arrived", when, hit)
			}
		}
	}
	check("at first")
	// As tools do that know nothing of us; a header that the sandbox sets itself is
	// replaced.
	for name, argv := range map[string][]string{
		"curl": {"curl", "-sSf", "-H", "Authorization: mine", "https://api.good.lab.test/"},
		// With the bundle alone, after the system's tool has written it anew.
		"curl after update-ca-certificates": {"sh", "-c", `update-ca-certificates >/dev/null 2>&1 && env -u SSL_CERT_FILE -u CURL_CA_BUNDLE curl -sSf -H "Authorization: mine" https://api.good.lab.test/`},
		"node":                              {"node", "-e", `fetch("https://api.good.lab.test/", {headers: {authorization: "mine"}}).then(r => r.text()).then(console.log)`},
	} {
		if out := harness.Run(t, sb, argv...); !strings.Contains(out, token) || strings.Contains(out, "mine") {
			t.Errorf("%s got %q; the server is to see the token", name, out)
		}
	}

	// The lab's server answers with what it saw, so that the token has been inside: what
	// follows is about a session in which no server was so unkind.
	if _, err := sb.Stop(t.Context()); err != nil {
		t.Fatalf("Stop: %v", err)
	}
	sent := l.watchStart(t)
	if _, err := sb.Start(t.Context()); err != nil {
		t.Fatalf("Start: %v", err)
	}
	look := `cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null; env; cat /proc/1/mem 2>/dev/null; true`
	cmd := sb.Command(t.Context(), "sh", "-c", look)
	out, err := cmd.CombinedOutput()
	if err != nil || len(out) < 100 || bytes.Contains(out, []byte(token)) {
		t.Errorf("inside, %d bytes of environments and command lines have the token, %v", len(out), err)
	}
	// In files; the last word proves that grep was at work.
	find := sb.Command(t.Context(), "sh", "-c", `read T; grep -rlF "$T" /etc /tmp /root /home /workspace /run /var /usr/local /opt /srv /.agent-sandbox* 2>/dev/null; grep -rlF "begun" /proc/self/cmdline`)
	find.Stdin = strings.NewReader(token + "\n")
	if out, err := find.Output(); err != nil || string(out) != "/proc/self/cmdline\n" {
		t.Errorf("files with the token: %q, %v", out, err)
	}
	container := record.ContainerName(sb.Name())
	var everything json.RawMessage
	enginetest.Get(t, "/containers/"+container+"/json", &everything)
	volumes := json.RawMessage{}
	enginetest.Get(t, "/volumes", &volumes)
	logs, err := harness.NewEngine(t).Logs(t.Context(), container, engine.LogSpec{})
	if err != nil {
		t.Fatal(err)
	}
	logged, err := io.ReadAll(logs)
	logs.Close()
	if err != nil || !bytes.Contains(logged, []byte("begun")) {
		t.Errorf("the logs are %q, %v", logged, err)
	}
	st, err := json.Marshal(harness.Status(t, sb))
	if err != nil {
		t.Fatal(err)
	}
	for what, text := range map[string][]byte{"inspect": everything, "volumes": volumes, "logs": logged, "status": st, "the policy": []byte(policy.String())} {
		if len(text) == 0 || bytes.Contains(text, []byte(token)) {
			t.Errorf("%s: %d bytes with the token", what, len(text))
		}
	}
	if got := sent(sb); len(got) > 0 {
		t.Errorf("%q arrived", got)
	}

	// Who resumes it and does not have the secret opens nothing; who supplies it does.
	if _, err := sb.Stop(t.Context()); err != nil {
		t.Fatalf("Stop: %v", err)
	}
	stranger, err := l.client(t).Get(t.Context(), sb.Name())
	if err != nil {
		t.Fatalf("Get: %v", err)
	}
	t.Cleanup(func() { stranger.Detach() })
	got := l.arrivals(t, "resumed without the secret", stranger, attempts[:3])
	for name, o := range got {
		if o.Err == "" {
			t.Errorf("without the secret: %s: %+v", name, o)
		}
	}
	again := l.client(t, sandbox.WithAuthorities(ca))
	owner, err := again.Get(t.Context(), sb.Name(), sandbox.WithTransform(policy.Transform))
	if err != nil {
		t.Fatalf("Get with the secret: %v", err)
	}
	t.Cleanup(func() { owner.Detach() })
	check("supplied again")

	// And an authority that the owner did not name signs for nobody.
	plain := l.client(t)
	other, err := plain.Create(t.Context(), sandbox.WithImage(l.image), sandbox.WithNetworkPolicy(policy))
	if err != nil {
		t.Fatalf("Create: %v", err)
	}
	harness.Remove(t, plain, other.Name())
	t.Cleanup(func() { other.Detach() })
	name := record.NewID() + ".good.lab.test"
	if got := l.try(t, other, tried{"unknown authority", "tls", on(l.good, 443), name}); got["unknown authority"].Err == "" || l.heard(t, "host="+name) || !l.heard(t, "dns "+name) {
		t.Errorf("a server of an unknown authority: %+v", got)
	}
}

// heard reports whether a server of the lab was told that.
func (l *lab) heard(t *testing.T, what string) bool {
	t.Helper()
	b, err := l.ask(t.Context(), "/heard")
	if err != nil {
		t.Fatalf("ask the lab: %v", err)
	}
	return bytes.Contains(b, []byte(" "+what))
}

// putProbe puts the probe into a sandbox of another image.
func (l *lab) putProbe(t *testing.T, sb *sandbox.Sandbox) {
	t.Helper()
	id, err := l.eng.CreateContainer(t.Context(), engine.ContainerSpec{Name: "probe-" + record.NewID(), Image: l.image, Entrypoint: []string{"/probe"}, NetworkMode: "none"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.eng.RemoveContainer(t.Context(), id, true)
	from, _, err := l.eng.CopyFrom(t.Context(), id, "/probe")
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	cmd := sb.Command(t.Context(), "tar", "-x", "--no-same-owner", "-C", "/")
	cmd.Stdin = from
	if err := cmd.Run(); err != nil {
		t.Fatalf("put the probe in: %v", err)
	}
}
