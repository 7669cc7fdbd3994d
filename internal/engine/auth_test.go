package engine_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
)

const helperSecret = "s3cr3t-of-the-helper"

// withHelpers makes credential helpers of the docker command, and a configuration.
func withHelpers(t *testing.T, config string, helpers map[string]string) {
	t.Helper()
	dir := t.TempDir()
	for name, script := range helpers {
		if err := os.WriteFile(filepath.Join(dir, "docker-credential-"+name), []byte("#!/bin/sh\n"+script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir+string(os.PathListSeparator)+os.Getenv("PATH"))
	t.Setenv("DOCKER_CONFIG", dir)
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
}

// pulls is an engine that refuses every pull, and the credentials that it was sent.
func pulls(t *testing.T) (host string, sent func() (engine.RegistryAuth, bool)) {
	var header string
	host = fakeEngine(t, func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.Path, "/images/create") {
			header = r.Header.Get("X-Registry-Auth")
			_, _ = io.WriteString(w, `{"errorDetail":{"code":401,"message":"unauthorized"},"error":"unauthorized"}`)
			return
		}
		w.WriteHeader(http.StatusInternalServerError)
	})
	return host, func() (a engine.RegistryAuth, ok bool) {
		b, err := base64.URLEncoding.DecodeString(header)
		return a, err == nil && json.Unmarshal(b, &a) == nil
	}
}

func TestCredentialHelpersAreRun(t *testing.T) {
	answer := func(user, check string) string {
		return fmt.Sprintf(`read -r host; [ "$1 $host" = "get %s" ] || { echo "credentials not found in native keychain"; exit 1; }; echo '{"ServerURL":"x","Username":%q,"Secret":%q}'`, check, user, helperSecret)
	}
	withHelpers(t, `{"credsStore":"store","credHelpers":{"one.example.com":"one","token.example.com:5000":"token","bad.example.com":"../bad","gone.example.com":"gone","broken.example.com":"broken","noise.example.com":"noise"},
		"auths":{"https://two.example.com/v1/":{"username":"other","password":"p"},"two.example.com":{"username":"exact","password":"p"},"http://two.example.com":{"username":"third","password":"p"},"bad.example.com":{},"gone.example.com":{}}}`,
		map[string]string{
			"one":    answer("one", "one.example.com"),
			"token":  answer("<token>", "token.example.com:5000"),
			"store":  answer("hub", "https://index.docker.io/v1/"),
			"broken": "echo " + helperSecret + "; echo " + helperSecret + " >&2; exit 3",
			"noise":  "echo " + helperSecret,
		})
	host, sent := pulls(t)
	e := openAt(t, host)
	for ref, want := range map[string]struct {
		auth engine.RegistryAuth
		text string
	}{
		"one.example.com/x":        {engine.RegistryAuth{Username: "one", Password: helperSecret}, "with the credentials of docker-credential-one"},
		"token.example.com:5000/x": {engine.RegistryAuth{IdentityToken: helperSecret}, "registry token.example.com:5000; with the credentials of docker-credential-token"},
		"x:1":                      {engine.RegistryAuth{Username: "hub", Password: helperSecret}, "registry docker.io; with the credentials of docker-credential-store"},
		"two.example.com/x":        {engine.RegistryAuth{Username: "exact", Password: "p"}, "with the credentials in "},
		"bad.example.com/x":        {engine.RegistryAuth{}, `without credentials: the docker configuration names a credential helper "../bad"`},
		"gone.example.com/x":       {engine.RegistryAuth{}, "without credentials: docker-credential-gone: "},
		"broken.example.com/x":     {engine.RegistryAuth{}, "without credentials: docker-credential-broken: exit status 3"},
		"noise.example.com/x":      {engine.RegistryAuth{}, "without credentials: docker-credential-noise gave no credentials"},
		"none.example.com/x":       {engine.RegistryAuth{}, "without credentials: docker login has stored none"},
	} {
		err := e.PullImage(t.Context(), ref, nil)
		wantClass(t, "PullImage", err, engine.ErrForbidden)
		if got, _ := sent(); got != want.auth {
			t.Errorf("PullImage(%q) sent %+v, want %+v", ref, got, want.auth)
		}
		if err == nil || !strings.Contains(err.Error(), want.text) || strings.Contains(err.Error(), helperSecret) {
			t.Errorf("PullImage(%q) = %v, want %q and no secret", ref, err, want.text)
		}
	}
}

func TestProgramsCredentialsComeFirst(t *testing.T) {
	withHelpers(t, `{"auths":{"one.example.com":{"username":"file","password":"p"},"two.example.com":{"username":"file","password":"p"}}}`, nil)
	host, sent := pulls(t)
	own := errors.New("no credentials today")
	e, err := engine.Open(t.Context(), engine.Options{Host: host, RegistryAuth: func(_ context.Context, host string) (a engine.RegistryAuth, err error) {
		switch host {
		case "one.example.com":
			a = engine.RegistryAuth{Username: "program", Password: helperSecret}
		case "docker.io":
			err = own
		}
		return a, err
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	for ref, want := range map[string]string{"one.example.com/x": "program", "two.example.com/x": "file"} {
		err := e.PullImage(t.Context(), ref, nil)
		if got, _ := sent(); got.Username != want || strings.Contains(err.Error(), helperSecret) {
			t.Errorf("PullImage(%q) = %v and sent the name %q, want %q", ref, err, got.Username, want)
		}
	}
	if err := e.PullImage(t.Context(), "x", nil); !errors.Is(err, own) || !strings.Contains(err.Error(), "docker.io") {
		t.Errorf("PullImage = %v, want the program's own error and the registry", err)
	}
}
