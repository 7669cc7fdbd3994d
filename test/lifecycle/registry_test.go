package lifecycle_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// The image of a registry that requires credentials is pulled with those of the docker command's
// configuration or of the program. Not parallel: the configuration is found by the environment.
func TestRegistryThatRequiresCredentials(t *testing.T) {
	secret, wrong := "secret-"+record.NewID(), "wrong-"+record.NewID()
	hub, eng := harness.NewRegistry(t, "user", secret), harness.NewEngine(t)
	// helper is a credential helper of the docker command that knows the registry.
	helper := func(secret string) string {
		return fmt.Sprintf("#!/bin/sh\nread -r host; [ \"$1 $host\" = %q ] || { echo credentials not found in native keychain; exit 1; }\n"+
			`echo '{"ServerURL":%q,"Username":"user","Secret":%q}'`, "get "+hub.Host, hub.Host, secret)
	}
	own := func(secret string) sandbox.ClientOption {
		return sandbox.WithRegistryAuth(func(_ context.Context, host string) (sandbox.RegistryAuth, error) {
			if host != hub.Host {
				return sandbox.RegistryAuth{}, fmt.Errorf("asked for %q", host)
			}
			return sandbox.RegistryAuth{Username: "user", Password: secret}, nil
		})
	}
	for _, test := range []struct {
		name, config string
		opts         []sandbox.ClientOption
		want         string // in the error; none if it is empty
	}{
		{name: "anonymous", config: `{}`, want: "without credentials: docker login has stored none"},
		{name: "helper", config: fmt.Sprintf(`{"credHelpers": {%q: "right"}}`, hub.Host)},
		{name: "store", config: `{"credsStore": "right"}`},
		{name: "helper for another", config: `{"credHelpers": {"example.com": "right"}}`, want: "without credentials"},
		{name: "wrong helper", config: fmt.Sprintf(`{"credHelpers": {%q: "wrong"}}`, hub.Host), want: "with the credentials of docker-credential-wrong"},
		{name: "program", config: `{"credsStore": "wrong"}`, opts: []sandbox.ClientOption{own(secret)}},
		{name: "wrong program", config: `{"credsStore": "right"}`, opts: []sandbox.ClientOption{own(wrong)}, want: "with the program's credentials"},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			for name, text := range map[string]string{
				"config.json": test.config, "docker-credential-right": helper(secret), "docker-credential-wrong": helper(wrong),
			} {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o700); err != nil {
					t.Fatal(err)
				}
			}
			t.Setenv("DOCKER_CONFIG", dir)
			t.Setenv("PATH", dir+string(os.PathListSeparator)+os.Getenv("PATH"))
			var log bytes.Buffer
			c := harness.NewClient(t, append(test.opts, sandbox.WithLogger(slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))))...)
			name, ref := harness.UniqueName(t), hub.Ref(t)
			harness.Remove(t, c, name)
			ctx, _, ended := waiting(t)
			sb, err := c.Create(ctx, sandbox.WithName(name), sandbox.WithImage(ref), harness.Quick)
			if test.want == "" {
				if err != nil {
					t.Fatalf("Create = %v, want the image of a registry that requires credentials", err)
				}
				sb.Close()
			} else {
				if !errors.Is(err, sandbox.ErrImageNotFound) || !strings.Contains(err.Error(), hub.Host) || !strings.Contains(err.Error(), test.want) {
					t.Errorf("Create = %v, want ErrImageNotFound, %s and %q", err, hub.Host, test.want)
				}
				if left := harness.Objects(t, eng, harness.Named(name)); len(left) > 0 {
					t.Errorf("a Create whose pull is refused leaves %q", left)
				}
				if _, err := eng.InspectImage(t.Context(), ref); !errors.Is(err, engine.ErrNotFound) {
					t.Errorf("InspectImage after a pull that is refused = %v, want ErrNotFound", err)
				}
			}
			pulls := ended("sandbox.wait.pull")
			if len(pulls) != 1 {
				t.Fatalf("there are %d spans of pulls in Create, want 1", len(pulls))
			}
			if got := attributes(pulls[0]); got["container.image.name"] != ref || (got["error.type"] != "") != (test.want != "") {
				t.Errorf("the span of the pull has %v", got)
			}
			for _, s := range []string{secret, wrong} {
				if text := fmt.Sprintf("%v %+v %#v", err, err, err); strings.Contains(text, s) {
					t.Errorf("the error has the secret: %s", text)
				}
				if strings.Contains(log.String(), s) {
					t.Errorf("the log has the secret: %s", &log)
				}
			}
		})
	}
}
