package engine

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"os/user"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"github.com/docker/docker/client"
	"github.com/docker/go-connections/tlsconfig"
)

// endpoint is the parsed address of an engine.
type endpoint struct {
	scheme string
	addr   string // socket path, or host:port
	url    *url.URL
	tls    *tls.Config
}

// parseHost parses the value of DOCKER_HOST.
func parseHost(host string) (endpoint, error) {
	scheme, rest, ok := strings.Cut(host, "://")
	if !ok || rest == "" {
		return endpoint{}, invalid("engine host %q: want unix://, npipe://, tcp://, http://, https:// or ssh:// and an address", redact(host))
	}
	switch scheme {
	case "unix", "npipe":
		return endpoint{scheme: scheme, addr: rest, url: &url.URL{Scheme: scheme, Path: rest}}, nil
	case "tcp", "http", "https", "ssh":
	default:
		return endpoint{}, invalid("engine host %q: unknown scheme %q", redact(host), scheme)
	}
	u, err := url.Parse(host)
	if err != nil || u.Hostname() == "" {
		// The parser's error would repeat a password.
		return endpoint{}, invalid("engine host %q is not a URL with a host", redact(host))
	}
	ep := endpoint{scheme: scheme, addr: u.Host, url: u}
	if scheme == "ssh" {
		_, err := parseSSH(u)
		return ep, err
	}
	if u.RawQuery != "" || u.Fragment != "" {
		return ep, invalid("engine host %q has a query or fragment", redact(host))
	}
	return ep, nil
}

// withTLS adds cfg and the default port.
func (ep endpoint) withTLS(cfg *tls.Config) endpoint {
	switch ep.scheme {
	case "https":
		if cfg == nil {
			cfg = &tls.Config{MinVersion: tls.VersionTLS12}
		}
	case "http":
		cfg = nil
	case "tcp":
	default:
		return ep
	}
	ep.tls = cfg
	if ep.url.Port() == "" {
		port := map[string]string{"http": "80", "https": "443", "tcp": "2375"}[ep.scheme]
		if ep.scheme == "tcp" && cfg != nil {
			port = "2376"
		}
		ep.addr = net.JoinHostPort(ep.url.Hostname(), port)
	}
	return ep
}

func (ep endpoint) local() bool { return ep.scheme == "unix" || ep.scheme == "npipe" }

func (ep endpoint) display() string {
	if ep.scheme == "ssh" && ep.url.Path != "/" {
		return "ssh://" + ep.addr + ep.url.Path
	}
	return ep.scheme + "://" + ep.addr
}

func (ep endpoint) location() string {
	if ep.local() {
		return "local"
	}
	return ep.addr
}

func (ep endpoint) hostname() string { return ep.url.Hostname() }

// path is the prefix of the API's paths.
func (ep endpoint) path() string {
	if ep.local() || ep.scheme == "ssh" {
		return "/"
	}
	return ep.url.Path
}

func (ep endpoint) httpScheme() string {
	if ep.tls != nil {
		return "https"
	}
	return "http"
}

// httpHost is the Host header; for sockets it is a dummy.
func (ep endpoint) httpHost() string {
	if ep.local() || ep.scheme == "ssh" {
		return client.DummyHost
	}
	return ep.addr
}

// clientHost is the endpoint in the form of the Docker client.
func (ep endpoint) clientHost() string {
	switch {
	case ep.local():
		return ep.display()
	case ep.scheme == "ssh":
		return "tcp://" + client.DummyHost
	}
	return "tcp://" + ep.addr + strings.TrimSuffix(ep.url.Path, "/")
}

// idleConns is the number of idle connections to keep. Each one over ssh is a process, which
// costs round trips to start again.
const idleConns = 32

// redact removes credentials from a host that may not even be a URL.
func redact(host string) string {
	scheme, rest, ok := strings.Cut(host, "://")
	if !ok {
		scheme, rest = "", host
	} else {
		scheme += "://"
	}
	if scheme == "unix://" || scheme == "npipe://" {
		return host
	}
	if i := strings.LastIndexByte(rest, '@'); i >= 0 {
		rest = rest[i+1:]
	}
	return scheme + rest
}

// place is an address where an engine may be.
type place struct {
	source   string
	endpoint endpoint
	host     string
	err      error // why it can't be used
}

var errUnset = errors.New("not set")

// places lists the sources of an address, in order. The last one is the one to use: if a
// caller names an engine there is no fallback to another.
func places(host string) ([]place, error) {
	if host != "" {
		p := fromEnv("the given host", host)
		if errors.Is(p.err, ErrInvalid) {
			return nil, p.err
		}
		return []place{p}, nil
	}
	if host := os.Getenv(client.EnvOverrideHost); host != "" {
		return []place{fromEnv("DOCKER_HOST", host)}, nil
	}
	all := []place{{source: "DOCKER_HOST", err: errUnset}}
	name, source, err := currentContext()
	switch {
	case err != nil:
		return append(all, place{source: source, err: err}), nil
	case name != "":
		return append(all, fromContext(fmt.Sprintf("Docker context %q (%s)", name, source), name)), nil
	}
	all = append(all, place{source: source, err: errors.New("no context selected")})
	return append(all, fromEnv("the default socket", client.DefaultDockerHost)), nil
}

// fromEnv is the place host, with the TLS settings of the environment.
func fromEnv(source, host string) place {
	p := place{source: source, host: redact(host)}
	ep, err := parseHost(host)
	if err != nil {
		p.err = err
		return p
	}
	var cfg *tls.Config
	if ep.scheme == "tcp" || ep.scheme == "https" {
		verify := os.Getenv(client.EnvTLSVerify) != ""
		dir := os.Getenv(client.EnvOverrideCertPath)
		if dir == "" && verify {
			dir = configDir()
		}
		if dir != "" {
			if cfg, err = loadTLS(dir, !verify); err != nil {
				p.err = err
				return p
			}
		}
	}
	p.endpoint = ep.withTLS(cfg)
	p.host = p.endpoint.display()
	return p
}

// loadTLS reads ca.pem, cert.pem and key.pem from dir. Each may be missing.
func loadTLS(dir string, skipVerify bool) (*tls.Config, error) {
	o := tlsconfig.Options{InsecureSkipVerify: skipVerify, ExclusiveRootPools: true}
	for name, field := range map[string]*string{"ca.pem": &o.CAFile, "cert.pem": &o.CertFile, "key.pem": &o.KeyFile} {
		file := filepath.Join(dir, name)
		switch _, err := os.Stat(file); {
		case err == nil:
			*field = file
		case !errors.Is(err, fs.ErrNotExist):
			return nil, fmt.Errorf("TLS files: %w", err)
		}
	}
	if o.CAFile == "" && o.CertFile == "" && o.KeyFile == "" {
		return nil, fmt.Errorf("TLS files: %s has no ca.pem, cert.pem or key.pem: %w", dir, fs.ErrNotExist)
	}
	cfg, err := tlsconfig.Client(o)
	if err != nil {
		return nil, fmt.Errorf("TLS files of %s: %w", dir, err)
	}
	return cfg, nil
}

// configDir is the docker command's configuration directory.
func configDir() string {
	if dir := os.Getenv("DOCKER_CONFIG"); dir != "" {
		return dir
	}
	home, err := os.UserHomeDir()
	if err != nil { // services often have no HOME
		if u, err := user.Current(); err == nil {
			home = u.HomeDir
		}
	}
	// Never below the working directory, whose files may be anybody's.
	return filepath.Join(cmp.Or(home, "/"), ".docker")
}

// errConfig is the error of a configuration that may select a context: no other engine takes its place.
var errConfig = errors.New("it can't be read")

// currentContext returns the name of the selected context, "" for none, and where it was
// selected.
func currentContext() (name, source string, err error) {
	if name := os.Getenv("DOCKER_CONTEXT"); name != "" {
		return notDefault(name), "DOCKER_CONTEXT", nil
	}
	file := filepath.Join(configDir(), "config.json")
	source = "the Docker context in " + file
	var config struct{ CurrentContext string }
	if err := readJSON(file, &config); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", source, fmt.Errorf("%w: %w", errConfig, err)
	}
	return notDefault(config.CurrentContext), source, nil
}

// notDefault maps "default", which means no context, to "".
func notDefault(name string) string {
	if name == "default" {
		return ""
	}
	return name
}

func fromContext(source, name string) place {
	p := place{source: source}
	// The store names directories by the digest of the context's name.
	sum := sha256.Sum256([]byte(name))
	id := hex.EncodeToString(sum[:])
	var meta struct {
		Endpoints map[string]struct {
			Host          string
			SkipTLSVerify bool
		}
	}
	file := filepath.Join(configDir(), "contexts", "meta", id, "meta.json")
	if err := readJSON(file, &meta); err != nil {
		p.err = fmt.Errorf("no such context: %w", err)
		return p
	}
	docker, ok := meta.Endpoints["docker"]
	if !ok || docker.Host == "" {
		p.err = fmt.Errorf("%s has no docker endpoint", file)
		return p
	}
	p.host = redact(docker.Host)
	ep, err := parseHost(docker.Host)
	if err != nil {
		p.err = err
		return p
	}
	var cfg *tls.Config
	dir := filepath.Join(configDir(), "contexts", "tls", id, "docker")
	if _, err := os.Stat(dir); err == nil {
		if cfg, err = loadTLS(dir, docker.SkipTLSVerify); err != nil {
			p.err = err
			return p
		}
	} else if docker.SkipTLSVerify {
		cfg = &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: true}
	}
	p.endpoint = ep.withTLS(cfg)
	p.host = p.endpoint.display()
	return p
}

// readJSON reads a file of the docker command's. As there, one that is empty has no fields.
func readJSON(file string, v any) error {
	b, err := os.ReadFile(file)
	if err != nil || len(bytes.TrimSpace(b)) == 0 {
		return err
	}
	if err := json.Unmarshal(b, v); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	return nil
}

// Attempt is one address that [Open] tried, or a source without one.
type Attempt struct {
	Source string // such as "DOCKER_HOST"
	Host   string // without credentials; empty if the source has none
	Err    error  // why it could not be used
}

// UnreachableError lists the addresses tried, and advice. It matches [ErrUnavailable].
type UnreachableError struct {
	Tried  []Attempt
	Advice []string
}

// Error lists every address tried, and then the advice.
func (e *UnreachableError) Error() string {
	var b strings.Builder
	b.WriteString("no Docker Engine answers; tried ")
	for i, a := range e.Tried {
		if i > 0 {
			b.WriteString("; ")
		}
		b.WriteString(a.Source)
		if a.Host != "" {
			b.WriteString(" (" + a.Host + ")")
		}
		b.WriteString(": " + a.Err.Error())
	}
	for _, advice := range e.Advice {
		b.WriteString(". " + advice)
	}
	return b.String()
}

// Unwrap returns the class and the error of each attempt.
func (e *UnreachableError) Unwrap() []error {
	errs := []error{ErrUnavailable}
	for _, a := range e.Tried {
		errs = append(errs, a.Err)
	}
	return errs
}

func unreachable(places []place) error {
	e := new(UnreachableError)
	for _, p := range places {
		e.Tried = append(e.Tried, Attempt{Source: p.source, Host: p.host, Err: unclassed(p.err)})
	}
	last := places[len(places)-1]
	e.Advice = advice(last.endpoint, last.err)
	return e
}

// unclassed removes the class of err: the whole is ErrUnavailable only, and the attempt
// names its host already.
func unclassed(err error) error {
	var c *classed
	switch {
	case !errors.As(err, &c):
		return err
	case c.class == ErrUnavailable:
		return c.err
	}
	return opaque(err.Error())
}

func advice(ep endpoint, err error) []string {
	var a []string
	switch {
	case errors.Is(err, errConfig):
		a = append(a, "Repair that file, or let this user read it; DOCKER_CONTEXT=default is the default socket, whatever the file says")
	case errors.Is(err, fs.ErrPermission) && ep.scheme == "unix":
		a = append(a, fmt.Sprintf("You may not open %s: join its group (usually \"sudo usermod -aG docker $USER\", then log in again), or run as a user who may", ep.addr))
	case errors.Is(err, fs.ErrNotExist) && ep.scheme == "unix":
		a = append(a, fmt.Sprintf("There is no socket at %s: install and start Docker Engine (%s)", ep.addr, startCommand()))
	case errors.Is(err, fs.ErrNotExist) && ep.scheme == "":
		a = append(a, "See \"docker context ls\" for the contexts that there are")
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, fs.ErrNotExist):
		a = append(a, "Nothing listens there: start the engine ("+startCommand()+")")
	case errors.Is(err, errNotAnEngine):
		a = append(a, "Check the address: another service answers at it")
	case errors.Is(err, ErrInvalid), errors.Is(err, errNoPipes): // the error says what is wrong with the address
	case ep.scheme == "ssh":
		a = append(a, fmt.Sprintf("Check that \"%s docker version\" works without a prompt", ep.sshCommand()))
	default:
		a = append(a, "Is the engine running? ("+startCommand()+")")
	}
	return append(a, "To use another engine set DOCKER_HOST, select a Docker context, or give the host explicitly")
}

// sshCommand is how ssh is called by hand.
func (ep endpoint) sshCommand() string {
	command := "ssh "
	if port := ep.url.Port(); port != "" {
		command += "-p " + port + " "
	}
	if user := ep.url.User.Username(); user != "" {
		command += user + "@"
	}
	return command + ep.url.Hostname()
}

func startCommand() string {
	if runtime.GOOS == "linux" {
		return `"sudo systemctl start docker"`
	}
	return "start Docker Desktop"
}
