package engine

import (
	"encoding/base64"
	"path/filepath"
	"strings"

	"github.com/distribution/reference"
	"github.com/docker/docker/api/types/registry"
)

// hubKey is the docker command's key for the credentials of Docker Hub.
const hubKey = "https://index.docker.io/v1/"

// registryAuth returns the header with the credentials for ref's registry, or "" if the
// docker command's configuration has none in plain text. It runs no credential helpers.
func registryAuth(ref string) (string, error) {
	named, err := reference.ParseNormalizedNamed(ref)
	if err != nil {
		return "", nil // an image ID, without registry
	}
	host := reference.Domain(named)
	var config struct {
		Auths map[string]struct {
			Auth, IdentityToken, RegistryToken, Username, Password string
		}
	}
	// Without a readable file, pull without credentials: the registry may not need any.
	if err := readJSON(filepath.Join(configDir(), "config.json"), &config); err != nil {
		return "", nil
	}
	for key, a := range config.Auths {
		if registryHost(key) != registryHost(host) {
			continue
		}
		c := registry.AuthConfig{
			Username: a.Username, Password: a.Password, ServerAddress: key,
			IdentityToken: a.IdentityToken, RegistryToken: a.RegistryToken,
		}
		if a.Auth != "" {
			b, err := base64.StdEncoding.DecodeString(a.Auth)
			user, password, ok := strings.Cut(strings.TrimRight(string(b), "\x00"), ":")
			if err != nil || !ok {
				return "", invalid("malformed credentials for %s in the docker configuration", host)
			}
			c.Username, c.Password = user, password
		}
		if c.Username == "" && c.IdentityToken == "" && c.RegistryToken == "" {
			continue // stored by a credential helper
		}
		return registry.EncodeAuthConfig(c)
	}
	return "", nil
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
