package sandbox_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/seed-1a2d6d8f/sandbox"
)

// A policy that lists nothing allows nothing, and the ready ones are what they are called.
func TestPoliciesPrintAsTheyAreParsed(t *testing.T) {
	t.Parallel()
	for want, p := range map[string]sandbox.NetworkPolicy{
		"allow-all":   sandbox.AllowAll(),
		"public-only": sandbox.PublicOnly(),
		"deny-all":    sandbox.DenyAll(),
		"allow=*.example.com,xn--bcher-kva.example subnets.allow=10.0.0.0/8,fd00::1/128 subnets.deny=10.1.0.0/16 resolve-into=192.168.0.0/16": {
			Allow:       []string{"BÜCHER.example.", "*.Example.com", "*.example.com"},
			Subnets:     sandbox.Subnets{Allow: []string{"10.1.2.3/8", "fd00::1"}, Deny: []string{"10.1.0.0/17", "10.1.128.0/17"}},
			ResolveInto: []string{"192.168.0.0/16"},
		},
	} {
		if got := p.String(); got != want || fmt.Sprint(p) != want {
			t.Errorf("String: %q, want %q", got, want)
		}
		back, err := sandbox.ParseNetworkPolicy(want)
		if err != nil || back.String() != want {
			t.Errorf("ParseNetworkPolicy(%q) = %v, %v", want, back, err)
		}
		text, err := json.Marshal(map[string]any{"network": p})
		if err != nil || string(text) != fmt.Sprintf("{%q:%q}", "network", want) {
			t.Errorf("as JSON: %s, %v", text, err)
		}
	}
	if got := (sandbox.NetworkPolicy{}).String(); got != "deny-all" {
		t.Errorf("the zero policy is %q, want deny-all", got)
	}
	ready := sandbox.AllowAll()
	ready.Subnets.Deny = []string{"10.0.0.0/8"}
	if err := ready.Check(); !errors.Is(err, sandbox.ErrInvalidArgument) {
		t.Errorf("allow-all with a list: %v, want ErrInvalidArgument", err)
	}
}

// Every mistake of a policy is named before anything is made, with those of the other
// options; an engine is not even looked for.
func TestPolicyMistakesAreAllNamed(t *testing.T) {
	t.Parallel()
	c := newClient(t, sandbox.WithHost("unix:///nowhere.sock"))
	_, err := c.Create(t.Context(), sandbox.WithName("Bad"), sandbox.WithNetworkPolicy(sandbox.NetworkPolicy{
		Allow:       []string{"a b", "10.0.0.1", ""},
		Subnets:     sandbox.Subnets{Allow: []string{"10.0.0.0/40"}, Deny: []string{"all"}},
		ResolveInto: []string{"x"},
		Transform: map[string]sandbox.Transform{
			"*":           {},
			"t.example":   {SetHeaders: sandbox.Headers{"Bad Header": "s3cret", "Host": "s3cret", "X": "s3cret\r\nY: 1"}},
			"T.example.":  {},
			"u.example":   {SetHeaders: sandbox.Headers{"X": strings.Repeat("s3cret", 20000)}},
			"v..example":  {},
			"w.example":   {SetHeaders: sandbox.Headers{"X": "s3cret "}},
			"many.exampl": {SetHeaders: many(17)},
		},
	}))
	for _, complaint := range []string{
		`"Bad"`, `"a b"`, `"10.0.0.1"`, `""`, `"10.0.0.0/40"`, `"all"`, `"x"`, `"*"`, `"Bad Header"`, `"Host"`, `"X"`, "control character",
		`"T.example." and "t.example"`, "65536", `"v..example"`, "a space", "17 headers",
	} {
		if !errors.Is(err, sandbox.ErrInvalidArgument) || !strings.Contains(err.Error(), complaint) {
			t.Errorf("Create: %v, want ErrInvalidArgument with %s", err, complaint)
		}
	}
	if strings.Contains(err.Error(), "s3cret") {
		t.Errorf("the error tells a secret: %v", err)
	}
	if _, err := c.Get(t.Context(), "x", sandbox.WithTransform(map[string]sandbox.Transform{"a.example": {SetHeaders: sandbox.Headers{"": ""}}})); !errors.Is(err, sandbox.ErrInvalidArgument) {
		t.Errorf("Get with a bad transform: %v, want ErrInvalidArgument", err)
	}
	if _, err := sandbox.ParseNetworkPolicy("deny"); !errors.Is(err, sandbox.ErrInvalidArgument) {
		t.Errorf("ParseNetworkPolicy: %v, want ErrInvalidArgument", err)
	}
}

func many(n int) sandbox.Headers {
	h := sandbox.Headers{}
	for i := range n {
		h[fmt.Sprintf("X-%d", i)] = "s3cret"
	}
	return h
}

// What a transform sets is not printed, however one tries.
func TestTransformsPrintNoSecret(t *testing.T) {
	t.Parallel()
	p := sandbox.NetworkPolicy{Transform: map[string]sandbox.Transform{"api.example": {SetHeaders: sandbox.Headers{"Authorization": "s3cret"}}}}
	var out bytes.Buffer
	for _, v := range []any{
		p, &p, p.Transform, p.Transform["api.example"], p.Transform["api.example"].SetHeaders, []any{p}, struct{ P sandbox.NetworkPolicy }{p},
		sandbox.Status{Network: p}, sandbox.WithNetworkPolicy(p),
	} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%d", "%x", "%X", "%t", "%T"} {
			fmt.Fprintf(&out, verb+"\n", v)
		}
		text, err := json.Marshal(v)
		fmt.Fprintln(&out, string(text), err)
		slog.New(slog.NewTextHandler(&out, nil)).Info("x", "v", v)
		slog.New(slog.NewJSONHandler(&out, nil)).Info("x", "v", v)
	}
	all := out.String()
	for _, form := range []string{"s3cret", fmt.Sprintf("%x", "s3cret"), fmt.Sprintf("%X", "s3cret"), "115 51", "czNjcmV0"} {
		if i := strings.Index(all, form); i >= 0 {
			t.Errorf("printed: %s", all[max(0, i-200):i+20])
		}
	}
	if !strings.Contains(all, "Authorization") || !strings.Contains(all, "transform=api.example") {
		t.Error("names of headers are printed nowhere: was anything?")
	}
}
