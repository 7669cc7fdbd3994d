package engine

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/distribution/reference"
	"github.com/docker/docker/api/types/registry"
)

// RegistryAuth are credentials for a registry: a name and password, or a token.
type RegistryAuth struct{ Username, Password, IdentityToken, RegistryToken string }

// hubKey is the docker command's key for the credentials of Docker Hub.
const hubKey = "https://index.docker.io/v1/"

// helperTimeout bounds a credential helper, which may ask a service of its own.
const helperTimeout = 10 * time.Second

var helperRE = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]*$`)

// credentials are those found for one pull.
type credentials struct {
	header string // for the engine, or empty
	host   string // of the registry
	tried  string // for people: where they are from, or why there are none
}

// explain adds to the error of a pull which registry refused what.
func (c credentials) explain(err error) error {
	if err == nil || c.host == "" || errors.Is(err, ErrUnavailable) || errors.Is(err, ErrInvalid) {
		return err
	}
	text := fmt.Sprintf("%v (registry %s; %s)", err, c.host, c.tried)
	for _, class := range []error{ErrNotFound, ErrForbidden} {
		if errors.Is(err, class) {
			return &classed{class: class, text: text, err: err}
		}
	}
	var cancel *canceled
	if errors.As(err, &cancel) {
		return err
	}
	return &plainError{text: text, err: err}
}

// dockerConfig are the fields of the docker command's configuration with credentials.
type dockerConfig struct {
	Auths map[string]struct {
		Auth, IdentityToken, RegistryToken, Username, Password string
	}
	CredsStore  string
	CredHelpers map[string]string
}

// Registry returns the host of the registry that an image is pulled from, "" for the engine's own
// default and for an image ID.
func Registry(ref string) string {
	named, err := reference.ParseNormalizedNamed(ref)
	if err != nil || reference.Domain(named) == "docker.io" {
		return ""
	}
	u := url.URL{Host: reference.Domain(named)}
	return u.Hostname()
}

// findAuth returns the credentials for ref's registry: those of the program, else those that the
// docker command would use. A credential helper that fails is no error yet: images that anybody
// may pull need none.
func (e *Engine) findAuth(ctx context.Context, ref string) (credentials, error) {
	named, err := reference.ParseNormalizedNamed(ref)
	if err != nil {
		return credentials{}, nil // an image ID, without registry
	}
	c := credentials{host: reference.Domain(named)}
	if e.registryAuth != nil {
		own, err := e.registryAuth(ctx, c.host)
		if err != nil {
			return c, fmt.Errorf("credentials for registry %s: %w", c.host, err)
		}
		if own != (RegistryAuth{}) {
			c.tried = "with the program's credentials"
			return c, c.encode(own, c.host)
		}
	}
	file := filepath.Join(configDir(), "config.json")
	var config dockerConfig
	if err := readJSON(file, &config); err != nil {
		// The registry may not need any.
		c.tried = "without credentials: " + file + " can't be read"
		return c, nil
	}
	var failed error
	if helper, key := config.helper(c.host); helper != "" {
		found, err := askHelper(ctx, helper, key)
		if ctx.Err() != nil {
			return c, ctx.Err()
		}
		if err == nil && found != (RegistryAuth{}) {
			c.tried = "with the credentials of docker-credential-" + helper
			return c, c.encode(found, key)
		}
		failed = err
	}
	plain, key, err := config.plain(c.host)
	switch {
	case err != nil:
		return c, err
	case plain != (RegistryAuth{}):
		c.tried = "with the credentials in " + file
		return c, c.encode(plain, key)
	case failed != nil:
		c.tried = "without credentials: " + failed.Error()
	default:
		c.tried = "without credentials: docker login has stored none"
	}
	return c, nil
}

func (c *credentials) encode(a RegistryAuth, server string) (err error) {
	c.header, err = registry.EncodeAuthConfig(registry.AuthConfig{
		Username: a.Username, Password: a.Password, IdentityToken: a.IdentityToken, RegistryToken: a.RegistryToken, ServerAddress: server,
	})
	return err
}

// keys returns the keys of a registry among those of a configuration, the best one first: its
// own, then in order.
func keys[V any](of map[string]V, host string) []string {
	var all []string
	for _, key := range slices.Sorted(maps.Keys(of)) {
		if registryHost(key) == registryHost(host) {
			all = append(all, key)
		}
	}
	for _, own := range []string{host, serverKey(host)} {
		if i := slices.Index(all, own); i > 0 {
			all = slices.Insert(slices.Delete(all, i, i+1), 0, own)
		}
	}
	return all
}

// serverKey returns the docker command's key for a registry.
func serverKey(host string) string {
	if registryHost(host) == registryHost(hubKey) {
		return hubKey
	}
	return host
}

// helper returns the credential helper for a registry, if there is one, and what it calls the
// registry.
func (c dockerConfig) helper(host string) (name, key string) {
	for _, key := range keys(c.CredHelpers, host) {
		return c.CredHelpers[key], serverKey(host)
	}
	return c.CredsStore, serverKey(host)
}

// plain returns the credentials that the configuration itself has for a registry.
func (c dockerConfig) plain(host string) (found RegistryAuth, key string, err error) {
	for _, key := range keys(c.Auths, host) {
		a := c.Auths[key]
		found := RegistryAuth{a.Username, a.Password, a.IdentityToken, a.RegistryToken}
		if a.Auth != "" {
			b, err := base64.StdEncoding.DecodeString(a.Auth)
			user, password, ok := strings.Cut(strings.TrimRight(string(b), "\x00"), ":")
			if err != nil || !ok {
				return RegistryAuth{}, "", invalid("malformed credentials for %s in the docker configuration", host)
			}
			found.Username, found.Password = user, password
		}
		if found.Username == "" && found.IdentityToken == "" && found.RegistryToken == "" {
			continue // stored by a credential helper
		}
		return found, key, nil
	}
	return RegistryAuth{}, "", nil
}

// tokenUser is the name that a helper gives to an identity token.
const tokenUser = "<token>"

// askHelper runs a credential helper of the docker command. It returns nothing, and no error, if
// the helper has nothing for the registry.
func askHelper(ctx context.Context, name, key string) (RegistryAuth, error) {
	if !helperRE.MatchString(name) {
		return RegistryAuth{}, fmt.Errorf("the docker configuration names a credential helper %q", name)
	}
	program := "docker-credential-" + name
	ctx, cancel := context.WithTimeout(ctx, helperTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "get")
	cmd.Stdin = strings.NewReader(key)
	cmd.SysProcAttr = ownSession() // no terminal to ask at
	cmd.WaitDelay = time.Second    // its children may keep the output open
	var out bytes.Buffer
	cmd.Stdout = &capped{to: &out, left: 1 << 20}
	err := cmd.Run()
	var answer struct{ Username, Secret string }
	switch {
	case err != nil && ctx.Err() != nil:
		return RegistryAuth{}, fmt.Errorf("%s did not answer within %v", program, helperTimeout)
	case err != nil && strings.Contains(out.String(), "credentials not found"): // the protocol has no other sign
		return RegistryAuth{}, nil
	case err != nil:
		return RegistryAuth{}, fmt.Errorf("%s: %w", program, err) // without its output, which may have secrets
	case json.Unmarshal(out.Bytes(), &answer) != nil:
		return RegistryAuth{}, fmt.Errorf("%s gave no credentials in JSON", program)
	case answer.Username == tokenUser:
		return RegistryAuth{IdentityToken: answer.Secret}, nil
	}
	return RegistryAuth{Username: answer.Username, Password: answer.Secret}, nil
}

// capped drops what exceeds a size.
type capped struct {
	to   *bytes.Buffer
	left int
}

func (c *capped) Write(b []byte) (int, error) {
	n := min(len(b), c.left)
	c.to.Write(b[:n])
	c.left -= n
	return len(b), nil
}

// registryHost returns the host of a key of "auths", which may be a URL.
func registryHost(key string) string {
	if key == hubKey || key == "docker.io" || key == "registry-1.docker.io" {
		return "index.docker.io"
	}
	if _, rest, ok := strings.Cut(key, "://"); ok {
		key = rest
	}
	host, _, _ := strings.Cut(key, "/")
	return host
}
