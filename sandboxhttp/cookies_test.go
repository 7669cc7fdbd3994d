package sandboxhttp_test

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-1a2d6d8f/sandbox/sandboxhttp"
)

// browserCookie reads a line of Set-Cookie as RFC 6265bis has browsers do, section 5.6. domain is the
// last Domain attribute.
func browserCookie(line string) (pair, domain string, attributes []string) {
	if i := strings.IndexAny(line, "\x00\n\r"); i >= 0 { // as older ones do
		line = line[:i]
	}
	parts := strings.Split(line, ";")
	name, value, named := strings.Cut(parts[0], "=")
	if !named {
		name, value = "", parts[0]
	}
	trim := func(s string) string { return strings.Trim(s, " \t") }
	if pair = trim(value); trim(name) != "" {
		pair = trim(name) + "=" + pair
	}
	for _, part := range parts[1:] {
		key, value, _ := strings.Cut(part, "=")
		if key = strings.ToLower(trim(key)); key == "domain" {
			domain = trim(value)
		} else {
			attributes = append(attributes, key+"="+trim(value))
		}
	}
	return pair, domain, attributes
}

// No spelling of Domain is left, whatever else a line has, and what is left is what was set.
func TestNoCookieOfAnAnswerIsForOtherHosts(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ line, want string }{
		{"a=1; Domain=localhost; Path=/", "a=1; Path=/"},
		{"b=2; HttpOnly", "b=2; HttpOnly"},
		{"sid=evil; Domain =preview.example", "sid=evil"},
		{"sid=evil; Domain=\tpreview.example", "sid=evil"},
		{`sid=evil; Domain="preview.example"`, "sid=evil"},
		{"sid=evil;\tdOmAiN\t=\tpreview.example\t;secure", "sid=evil; Secure"},
		{"sid=evil;domain=preview.example;domain=", "sid=evil"},
		{`j={"x":1}; samesite=lax`, `j={"x":1}; SameSite=lax`},
		{"list=1,2; Expires=Wed, 09 Jun 2021 10:18:14 GMT; Max-Age=-1", "list=1,2; Expires=Wed, 09 Jun 2021 10:18:14 GMT; Max-Age=-1"},
		{"sp=a b; uml=x", "sp=a b"},
		{"uml=\u00fc; Partitioned; Priority=High; Unknown=1", "uml=\u00fc; Partitioned; Priority=High"},
		{"raw=\xff", "raw=\xff"},
		{`q="a;Domain=preview.example"`, `q="a`},
		{"alone", "alone"},
		{"=alone", "alone"},
		{"==a", "==a"},
		{"", ""},
		{";Domain=x", ""},
		{"a=1;\x0bDomain=preview.example", ""},
		{"a=1\x00; Domain=preview.example", ""},
		{"agent-sandbox-preview=x", ""},
		{" agent-sandbox-preview =x", ""},
		{"=agent-sandbox-preview=x", ""},
		{"__Host-agent-sandbox-preview=x; Secure; Path=/", ""},
		{"__host-Agent-Sandbox-Preview=x; Secure; Path=/", ""},
		{"__Host-own=x; Secure; Path=/", "__Host-own=x; Secure; Path=/"},
	} {
		if got := sandboxhttp.HostCookie(tt.line); got != tt.want {
			t.Errorf("%q becomes %q, want %q", tt.line, got, tt.want)
		}
	}
	random := rand.New(rand.NewPCG(6265, 1))
	parts := []string{"a", "=", "=", ";", ";", " ", "\t", "Domain", "domain", "DOMAIN", "preview.example", `"`, ",", "Path", "/", "Secure", "\u00a0", "\xff", "\x0b", "\x01", "agent-sandbox-preview", "Max-Age", "1"}
	for range 200_000 {
		line := ""
		for range 1 + random.IntN(14) {
			line += parts[random.IntN(len(parts))]
		}
		got := sandboxhttp.HostCookie(line)
		before, _, had := browserCookie(line)
		after, domain, has := browserCookie(got)
		lost := slices.DeleteFunc(slices.Clone(had), func(a string) bool {
			key, _, _ := strings.Cut(a, "=")
			return !slices.Contains([]string{"path", "secure", "max-age"}, key)
		})
		if domain != "" || got != "" && (after != before || !slices.Equal(lost, has)) || strings.HasPrefix(after, "agent-sandbox-preview=") {
			t.Fatalf("%q becomes %q: %q, domain %q, %q; want %q, %q", line, got, after, domain, has, before, lost)
		}
	}
}

func TestOtherCookiesOfARequestAreAsTheyWere(t *testing.T) {
	t.Parallel()
	odd := "plain=1; list=1,2; json={\"x\":1}; uml=\u00fc; sp=a b"
	for _, tt := range []struct{ have, want []string }{
		{[]string{odd}, []string{odd}},
		{[]string{odd + "; agent-sandbox-preview=x"}, []string{odd}},
		{[]string{"agent-sandbox-preview=x; " + odd}, []string{odd}},
		{[]string{"a=1; agent-sandbox-preview=x;b=2"}, []string{"a=1;b=2"}},
		{[]string{"__Host-agent-sandbox-preview=x; a=1"}, []string{"a=1"}},
		{[]string{"agent-sandbox-preview=x"}, nil},
		{[]string{"agent-sandbox-preview=x", "a=1"}, []string{"a=1"}},
		{[]string{"my-agent-sandbox-preview=x;; ;a"}, []string{"my-agent-sandbox-preview=x;; ;a"}},
		{nil, nil},
	} {
		if diff := cmp.Diff(tt.want, sandboxhttp.WithoutPreviewCookie(tt.have)); diff != "" {
			t.Errorf("%q (-want +got): %s", tt.have, diff)
		}
	}
}

func TestAQueryLosesTheTokenAlone(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ have, want string }{
		{"access_token=s3cret", ""}, {"a=1;b=2&access_token=s3cret&q=100%", "a=1;b=2&q=100%"}, {"z=1&a=2", "z=1&a=2"},
		{"access_token=of-the-app&b", "access_token=of-the-app&b"}, {"%61ccess_token=s%33cret&a", "a"}, {"&&a", "&&a"}, {"", ""},
	} {
		if got := sandboxhttp.WithoutToken("s3cret", tt.have); got != tt.want {
			t.Errorf("%q becomes %q, want %q", tt.have, got, tt.want)
		}
	}
}
