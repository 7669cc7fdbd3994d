package engine_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/user"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/docker/docker/client"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"

	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
)

// clean takes everything that selects an engine out of the environment, and
// gives the test a Docker configuration of its own.
func clean(t *testing.T) (configDir string) {
	t.Helper()
	for _, key := range []string{"DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH", "DOCKER_API_VERSION"} {
		t.Setenv(key, "")
	}
	dir := t.TempDir()
	t.Setenv("DOCKER_CONFIG", dir)
	return dir
}

func write(t *testing.T, name, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func addContext(t *testing.T, dir, name, host string) (id string) {
	t.Helper()
	sum := sha256.Sum256([]byte(name))
	id = hex.EncodeToString(sum[:])
	write(t, filepath.Join(dir, "contexts", "meta", id, "meta.json"),
		fmt.Sprintf(`{"Name":%q,"Metadata":{},"Endpoints":{"docker":{"Host":%q,"SkipTLSVerify":false}}}`, name, host))
	return id
}

func TestOpenAgreesOnAVersion(t *testing.T) {
	t.Parallel()
	e := open(t)
	i, err := e.Info(t.Context())
	if err != nil {
		t.Fatalf("Info: %v", err)
	}
	arch, err := e.Arch(t.Context())
	if err != nil || arch != i.Arch || (arch != "amd64" && arch != "arm64") {
		t.Errorf("Arch = %q, %v, and Info says %q", arch, err, i.Arch)
	}
	if i.APIVersion == "" || i.APIVersion != e.APIVersion() || i.Version == "" || i.MaxAPIVersion == "" || i.OSType != "linux" || i.OS == "" ||
		i.Kernel == "" || i.NCPU < 1 || i.MemTotal < 1<<20 || i.StorageDriver == "" || len(i.Runtimes) == 0 || i.DefaultRuntime == "" || i.CgroupVersion == "" {
		t.Errorf("Info = %+v", i)
	}
	if got := time.Until(e.Now()).Abs(); got > 2*time.Second {
		t.Errorf("an engine of this machine is %v off", got)
	}
}

func TestArchIsAskedForOnce(t *testing.T) {
	enginetest.Need(t)
	t.Parallel()
	p := enginetest.NewProxy(t)
	e := openAt(t, p.Host())
	p.Arm(0, enginetest.None, nil)
	for range 3 {
		if _, err := e.Arch(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if p.Count() != 1 {
		t.Errorf("Arch three times made %d calls: %q", p.Count(), p.Calls())
	}
}

func TestOpenFindsTheEngine(t *testing.T) {
	enginetest.Need(t)
	p := enginetest.NewProxy(t)
	const nowhere = "unix:///nonexistent/docker.sock"
	for name, arrange := range map[string]func(dir string) string{
		"the given host": func(string) string { t.Setenv("DOCKER_HOST", nowhere); return p.Host() },
		"DOCKER_HOST before a context": func(dir string) string {
			t.Setenv("DOCKER_HOST", p.Host())
			t.Setenv("DOCKER_CONTEXT", "other")
			addContext(t, dir, "other", nowhere)
			return ""
		},
		"DOCKER_CONTEXT before the current one": func(dir string) string {
			addContext(t, dir, "mine", p.Host())
			addContext(t, dir, "other", nowhere)
			write(t, filepath.Join(dir, "config.json"), `{"currentContext":"other"}`)
			t.Setenv("DOCKER_CONTEXT", "mine")
			return ""
		},
		"the current context": func(dir string) string {
			addContext(t, dir, "my ../ context", p.Host())
			write(t, filepath.Join(dir, "config.json"), `{"currentContext":"my ../ context","auths":{}}`)
			return ""
		},
	} {
		t.Run(name, func(t *testing.T) {
			host := arrange(clean(t))
			if name == "the given host" {
				t.Setenv("DOCKER_HOST", nowhere)
			}
			p.Arm(0, enginetest.None, nil)
			e := openAt(t, host)
			if p.Count() == 0 || e.Host() != p.Host() || e.Location() != "local" {
				t.Errorf("opened %q at %q, want %q", e.Host(), e.Location(), p.Host())
			}
		})
	}
}

// As for the docker command, a configuration without content selects no context. Nor do files of the working
// directory where there is no HOME.
func TestNothingSelectedIsTheDefaultSocket(t *testing.T) {
	for name, arrange := range map[string]func(t *testing.T, config string){
		"no file":    func(*testing.T, string) {},
		"empty file": func(t *testing.T, config string) { write(t, config, "") },
		"blank file": func(t *testing.T, config string) { write(t, config, " \n") },
		"broken file, and the default context by name": func(t *testing.T, config string) {
			write(t, config, `{"currentCon`)
			t.Setenv("DOCKER_CONTEXT", "default")
		},
		"no HOME": func(t *testing.T, config string) {
			write(t, config, `{"currentCon`)
			t.Chdir(filepath.Dir(config))
			for _, key := range []string{"HOME", "USERPROFILE", "home", "DOCKER_CONFIG"} {
				t.Setenv(key, "")
			}
			me, err := user.Current()
			if err != nil {
				t.Fatal(err)
			}
			if _, err := os.Stat(filepath.Join(me.HomeDir, ".docker", "config.json")); err == nil {
				t.Setenv("DOCKER_CONTEXT", "default") // this user's own may select one
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			arrange(t, filepath.Join(clean(t), "config.json"))
			e, err := engine.Open(t.Context(), engine.Options{})
			if err == nil {
				defer e.Close()
				if e.Host() != client.DefaultDockerHost {
					t.Errorf("opened %s, want %s", e.Host(), client.DefaultDockerHost)
				}
			} else if !strings.Contains(err.Error(), "the default socket ("+client.DefaultDockerHost+")") {
				t.Errorf("Open: %v, want the default socket", err)
			}
		})
	}
}

func TestUnreachableEngineSaysWhatWasTriedAndWhatToDo(t *testing.T) {
	for _, c := range []struct {
		name    string
		arrange func(t *testing.T, dir string)
		host    string
		want    []string
	}{
		{"no socket", func(t *testing.T, _ string) { t.Setenv("DOCKER_HOST", "unix:///nonexistent/docker.sock") }, "",
			[]string{"DOCKER_HOST", "unix:///nonexistent/docker.sock", "no such file", "start", "set DOCKER_HOST"}},
		{"nobody listens", func(t *testing.T, _ string) { t.Setenv("DOCKER_HOST", "tcp://127.0.0.1:1") }, "",
			[]string{"DOCKER_HOST", "tcp://127.0.0.1:1", "refused", "start"}},
		{"missing context", func(t *testing.T, dir string) {
			write(t, filepath.Join(dir, "config.json"), `{"currentContext":"gone"}`)
		}, "", []string{"DOCKER_HOST: not set", `Docker context "gone"`, "config.json", "no such context", "docker context ls"}},
		{"broken configuration", func(t *testing.T, dir string) {
			write(t, filepath.Join(dir, "config.json"), `{"currentCon`)
		}, "", []string{"DOCKER_HOST: not set", "config.json", "Repair that file", "DOCKER_CONTEXT=default"}},
		{"unreadable configuration", func(t *testing.T, dir string) {
			if err := os.Mkdir(filepath.Join(dir, "config.json"), 0o700); err != nil {
				t.Fatal(err)
			}
		}, "", []string{"config.json", "let this user read it", "DOCKER_CONTEXT=default"}},
		{"dead context", func(t *testing.T, dir string) {
			t.Setenv("DOCKER_CONTEXT", "dead")
			addContext(t, dir, "dead", "unix:///nonexistent/other.sock")
		}, "", []string{"DOCKER_HOST: not set", `Docker context "dead" (DOCKER_CONTEXT)`, "/nonexistent/other.sock"}},
		{"given host", func(*testing.T, string) {}, "unix:///nonexistent/given.sock", []string{"given host", "/nonexistent/given.sock"}},
		{"nonsense", func(t *testing.T, _ string) { t.Setenv("DOCKER_HOST", "nonsense") }, "", []string{"DOCKER_HOST", "nonsense", "unix://"}},
		{"another scheme", func(t *testing.T, _ string) { t.Setenv("DOCKER_HOST", "foo://x") }, "", []string{"foo://x", "unknown scheme"}},
		{"a pipe", func(t *testing.T, _ string) { t.Setenv("DOCKER_HOST", "npipe:////./pipe/docker") }, "", []string{"npipe:", "Windows only"}},
		{"ssh", func(t *testing.T, _ string) { t.Setenv("DOCKER_HOST", "ssh://nobody@127.0.0.1:1") }, "",
			[]string{`"ssh -p 1 nobody@127.0.0.1 docker version"`}},
		{"password", func(t *testing.T, _ string) { t.Setenv("DOCKER_HOST", "tcp://me:hunter2@127.0.0.1:1") }, "", []string{"127.0.0.1:1"}},
		{"no TLS files", func(t *testing.T, dir string) {
			t.Setenv("DOCKER_HOST", "tcp://127.0.0.1:1")
			t.Setenv("DOCKER_TLS_VERIFY", "1")
			t.Setenv("DOCKER_CERT_PATH", filepath.Join(dir, "none"))
		}, "", []string{"TLS files", "ca.pem"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.arrange(t, clean(t))
			_, err := engine.Open(t.Context(), engine.Options{Host: c.host})
			wantClass(t, "Open", err, engine.ErrUnavailable)
			var u *engine.UnreachableError
			if !errors.As(err, &u) || len(u.Tried) == 0 || len(u.Advice) == 0 {
				t.Fatalf("Open = %#v, want an UnreachableError", err)
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("Open = %q, want it to mention %q", err, want)
				}
			}
			if slices.Contains([]string{"nonsense", "another scheme", "a pipe"}, c.name) && strings.Contains(err.Error(), "systemctl") {
				t.Errorf("Open = %q, as if the engine did not run", err)
			}
			if strings.Contains(err.Error(), "hunter2") {
				t.Errorf("Open tells the password: %q", err)
			}
		})
	}
}

// Rootless engines of two users of a machine are two, and so are those that a proxy has under two paths.
func TestKeysTellEnginesApart(t *testing.T) {
	t.Parallel()
	seen := map[string]string{}
	for _, host := range []string{
		"unix:///run/a.sock", "unix:///run/b.sock", "ssh://alice@host", "ssh://bob@host", "ssh://host", "ssh://host:2222", "ssh://alice@host/run/b.sock",
		"tcp://host:1", "tcp://host:2", "tcp://host:1/a", "tcp://host:1/b", "https://host:1",
	} {
		key, err := engine.KeyOf(host)
		if other, is := seen[key]; is || err != nil {
			t.Errorf("%s has the key of %s, %v", host, other, err)
		}
		seen[key] = host
	}
}

func TestMalformedHostIsInvalid(t *testing.T) {
	for _, host := range []string{
		"nonsense", "ftp://x", "unix://", "tcp://", "ssh://-oProxyCommand=x", "ssh://-l@x", "ssh://me:pass@x", "ssh://x/a;b",
		"ssh://x?q=1", "ssh://x:99999", "tcp://x?y=1", "tcp://a b", "ssh://a b", "ssh://$(x)",
	} {
		_, err := engine.Open(t.Context(), engine.Options{Host: host})
		wantClass(t, fmt.Sprintf("Open(%q)", host), err, engine.ErrInvalid)
	}
}

func TestSilentEngineIsUnavailable(t *testing.T) {
	enginetest.Need(t)
	t.Parallel()
	p := enginetest.NewProxy(t)
	p.Stall(1)
	_, err := engine.Open(t.Context(), engine.Options{Host: p.Host(), DialTimeout: 200 * time.Millisecond})
	wantClass(t, "Open", err, engine.ErrUnavailable)

	p.Stall(1)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err = engine.Open(ctx, engine.Options{Host: p.Host()})
	wantClass(t, "Open with a deadline of the caller's", err, context.DeadlineExceeded)
}

func TestAnotherServiceIsNoEngine(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})}
	done := make(chan struct{})
	go func() { defer close(done); _ = srv.Serve(ln) }()
	t.Cleanup(func() { _ = srv.Close(); <-done })
	_, err = engine.Open(t.Context(), engine.Options{Host: "tcp://" + ln.Addr().String()})
	wantClass(t, "Open", err, engine.ErrUnavailable)
	if err == nil || !strings.Contains(err.Error(), "does not speak the Docker API") {
		t.Errorf("Open = %v", err)
	}
}

func TestClockFollowsTheEngine(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var ahead time.Duration
	set := func(d time.Duration) { mu.Lock(); defer mu.Unlock(); ahead = d }
	host := fakeEngine(t, func(w http.ResponseWriter, _ *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		w.Header().Set("Date", time.Now().Add(ahead).UTC().Format(http.TimeFormat))
		_, _ = io.WriteString(w, `{"Name":"v"}`)
	})
	e := openAt(t, host)
	offset := func() time.Duration {
		t.Helper()
		if _, err := e.InspectVolume(t.Context(), "v"); err != nil {
			t.Fatal(err)
		}
		return time.Until(e.Now())
	}
	for _, c := range []struct{ ahead, want time.Duration }{{0, 0}, {time.Second, 0}, {time.Hour, time.Hour}, {-time.Minute, -time.Minute}, {0, 0}} {
		set(c.ahead)
		if got := offset(); (got - c.want).Abs() > 10*time.Second {
			t.Errorf("an engine %v ahead: Now is off by %v", c.ahead, got)
		}
	}
	set(time.Hour)
	before := offset()
	set(time.Hour + time.Second)
	if after := offset(); (after - before).Abs() > 500*time.Millisecond {
		t.Errorf("Now jumped from %v to %v for a second's difference", before, after)
	}
}

func TestTLS(t *testing.T) {
	enginetest.Need(t)
	dir := clean(t)
	ca, server, _ := certificates(t, dir)
	pool := x509.NewCertPool()
	pool.AddCert(ca)
	host := tlsProxy(t, &tls.Config{Certificates: []tls.Certificate{server}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert})

	_, err := engine.Open(t.Context(), engine.Options{Host: host})
	wantClass(t, "Open without TLS", err, engine.ErrUnavailable)
	t.Setenv("DOCKER_CERT_PATH", dir)
	for _, verify := range []string{"1", ""} {
		t.Setenv("DOCKER_TLS_VERIFY", verify)
		e := openAt(t, host)
		if want := strings.TrimPrefix(host, "tcp://"); e.Location() != want {
			t.Errorf("Location = %q, want %q", e.Location(), want)
		}
		id, _ := start(t, e, engine.ContainerSpec{})
		roundTrip(t, e, id)
	}
	// Another authority's client, and no client at all.
	other := t.TempDir()
	certificates(t, other)
	t.Setenv("DOCKER_TLS_VERIFY", "1")
	t.Setenv("DOCKER_CERT_PATH", other)
	_, err = engine.Open(t.Context(), engine.Options{Host: host})
	wantClass(t, "Open with another authority", err, engine.ErrUnavailable)

	// A context carries its own files.
	t.Setenv("DOCKER_TLS_VERIFY", "")
	t.Setenv("DOCKER_CERT_PATH", "")
	config := clean(t)
	id := addContext(t, config, "remote", host)
	for _, name := range []string{"ca.pem", "cert.pem", "key.pem"} {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(config, "contexts", "tls", id, "docker", name), string(b))
	}
	t.Setenv("DOCKER_CONTEXT", "remote")
	openAt(t, "")
}

// roundTrip sends a stdin through an exec and back, with its end.
func roundTrip(t *testing.T, e *engine.Engine, id string) {
	t.Helper()
	st := execute(t, e, id, engine.ExecSpec{Argv: []string{"/tool", "cat"}, Stdin: true})
	if _, err := io.WriteString(st, "there and back"); err != nil {
		t.Fatalf("Write: %v", err)
	}
	if err := st.CloseWrite(); err != nil {
		t.Fatalf("CloseWrite: %v", err)
	}
	if got := readAll(t, st); got != "there and back" {
		t.Errorf("read %q", got)
	}
	if code, err := st.ExitCode(t.Context()); code != 0 || err != nil {
		t.Errorf("ExitCode = %d, %v", code, err)
	}
}

// certificates writes ca.pem, cert.pem and key.pem to dir.
func certificates(t *testing.T, dir string) (ca *x509.Certificate, server, client tls.Certificate) {
	t.Helper()
	make := func(template, parent *x509.Certificate, signer *ecdsa.PrivateKey) (tls.Certificate, *ecdsa.PrivateKey) {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		if signer == nil {
			signer, parent = key, template
		}
		der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
		if err != nil {
			t.Fatal(err)
		}
		leaf, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, key
	}
	template := func(n int64) *x509.Certificate {
		return &x509.Certificate{
			SerialNumber: big.NewInt(n), Subject: pkix.Name{CommonName: fmt.Sprint(n)},
			NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
			IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		}
	}
	root := template(1)
	root.IsCA, root.BasicConstraintsValid, root.KeyUsage = true, true, x509.KeyUsageCertSign
	authority, signer := make(root, nil, nil)
	server, _ = make(template(2), authority.Leaf, signer)
	client, key := make(template(3), authority.Leaf, signer)
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{
		"ca.pem":   {Type: "CERTIFICATE", Bytes: authority.Leaf.Raw},
		"cert.pem": {Type: "CERTIFICATE", Bytes: client.Leaf.Raw},
		"key.pem":  {Type: "PRIVATE KEY", Bytes: der},
	} {
		write(t, filepath.Join(dir, name), string(pem.EncodeToMemory(block)))
	}
	return authority.Leaf, server, client
}

// tlsProxy puts TLS in front of the engine.
func tlsProxy(t *testing.T, cfg *tls.Config) (host string) {
	t.Helper()
	ln, err := tls.Listen("tcp", "127.0.0.1:0", cfg)
	if err != nil {
		t.Fatal(err)
	}
	var g sync.WaitGroup
	g.Go(func() {
		for {
			down, err := ln.Accept()
			if err != nil {
				return
			}
			g.Go(func() {
				defer down.Close()
				up, err := dialEngine()
				if err != nil {
					return
				}
				defer up.Close()
				relay(down, up)
			})
		}
	})
	t.Cleanup(func() { _ = ln.Close(); g.Wait() })
	return "tcp://" + ln.Addr().String()
}

// relay copies both ways until the engine's side ends.
func relay(down io.ReadWriteCloser, up net.Conn) {
	var g sync.WaitGroup
	g.Go(func() {
		_, _ = io.Copy(up, down)
		_ = up.(interface{ CloseWrite() error }).CloseWrite()
	})
	_, _ = io.Copy(down, up)
	_ = down.Close()
	_ = up.Close()
	g.Wait()
}

const (
	sshArgsFile   = "ENGINETEST_SSH_ARGS"
	sshSocket     = "ENGINETEST_SSH_HOST"
	sshHandshakes = "ENGINETEST_SSH_HANDSHAKES" // a directory, with a file for each handshake
	sshRefusals   = "ENGINETEST_SSH_REFUSALS"   // a directory, with a file for each handshake to refuse
	sshConfig     = "ENGINETEST_SSH_CONFIG"     // what -G prints; "fail" has it fail
	sshMaster     = "ENGINETEST_SSH_MASTER"     // "bind" has masters fail to bind, "wait" to connect
)

// fakeSSH is this test binary, called ssh: it notes its arguments and is the
// far side's "docker system dial-stdio".
func fakeSSH() int {
	f, err := os.OpenFile(os.Getenv(sshArgsFile), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return 1
	}
	args := strings.Join(os.Args[1:], " ")
	fmt.Fprintln(f, args)
	_ = f.Close()
	_, socket, master := strings.Cut(args, "ControlMaster=yes -o ControlPath=")
	switch config := os.Getenv(sshConfig); {
	case os.Args[1] == "-G" && config == "fail":
		return 255
	case os.Args[1] == "-G":
		fmt.Println("controlmaster false\n" + config)
		return 0
	case master && os.Getenv(sshMaster) == "bind":
		fmt.Fprintf(os.Stderr, "unix_listener: cannot bind to path %s.x: Operation not supported\n", strings.Fields(socket)[0])
		return 255
	case master && os.Getenv(sshMaster) == "wait":
		_, _ = io.Copy(io.Discard, os.Stdin)
		return 255
	}
	if !fakeHandshake(os.Getenv(sshHandshakes), os.Getenv(sshRefusals)) {
		fmt.Fprintln(os.Stderr, "kex_exchange_identification: Connection closed by remote host")
		return 255
	}
	if os.Getenv(sshSocket) == "" {
		fmt.Fprintln(os.Stderr, "me@example.com: Permission denied (publickey).")
		return 255
	}
	network, addr, _ := strings.Cut(os.Getenv(sshSocket), "://")
	up, err := net.Dial(network, addr)
	if err != nil {
		return 1
	}
	go func() {
		_, _ = io.Copy(up, os.Stdin)
		_ = up.(interface{ CloseWrite() error }).CloseWrite()
	}()
	_, _ = io.Copy(os.Stdout, up)
	return 0
}

// fakeHandshake is as a server does it that accepts four handshakes at once.
func fakeHandshake(dir, refusals string) bool {
	if refusals != "" {
		left, _ := os.ReadDir(refusals)
		if len(left) > 0 {
			_ = os.Remove(filepath.Join(refusals, left[0].Name()))
			return false
		}
	}
	if dir == "" {
		return true
	}
	f, err := os.CreateTemp(dir, "")
	if err != nil {
		return false
	}
	defer os.Remove(f.Name())
	_ = f.Close()
	now, err := os.ReadDir(dir)
	if err != nil || len(now) > 4 {
		return false
	}
	time.Sleep(100 * time.Millisecond) // so that others overlap with it
	return true
}

// withSSH makes this test binary the program ssh, and returns the file with its arguments.
func withSSH(t *testing.T, host string) (args string) {
	clean(t)
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(self, filepath.Join(dir, "ssh")); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+string(os.PathListSeparator)+os.Getenv("PATH"))
	args = filepath.Join(dir, "args")
	t.Setenv(sshArgsFile, args)
	t.Setenv(sshSocket, host)
	return args
}

// started is with which arguments ssh was started, of those with word in them. Directories of
// sockets are called DIR.
func started(t *testing.T, args, word string) (lines []string) {
	t.Helper()
	b, err := os.ReadFile(args)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if strings.Contains(line, word) {
			lines = append(lines, socketDir.ReplaceAllString(strings.TrimSpace(line), "=DIR/s"))
		}
	}
	return lines
}

var socketDir = regexp.MustCompile(`=\S*/sandbox-ssh-\d+/s`)

// socketDirs gives the test a directory for those of control sockets, whose name is short.
func socketDirs(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "s")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	t.Setenv("TMPDIR", dir)
	return dir
}

// answersTogether is an engine that answers a call when so many have arrived.
func answersTogether(t *testing.T, calls int) (host string) {
	all, mu := make(chan struct{}), sync.Mutex{}
	return fakeEngine(t, func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		if calls--; calls == 0 {
			close(all)
		}
		mu.Unlock()
		select {
		case <-all:
		case <-r.Context().Done():
		}
		fmt.Fprint(w, `{"Name":"v"}`)
	})
}

// A server that accepts four handshakes at once refuses none of sixteen connections.
func TestSSHHandshakesAreBounded(t *testing.T) {
	const calls = 16
	args := withSSH(t, answersTogether(t, calls))
	t.Setenv(sshHandshakes, t.TempDir())
	e := openAt(t, "ssh://example.com")
	g, ctx := errgroup.WithContext(t.Context())
	for range calls {
		g.Go(func() error { _, err := e.InspectVolume(ctx, "v"); return err })
	}
	if err := g.Wait(); err != nil {
		t.Errorf("InspectVolume: %v", err)
	}
	if n := len(started(t, args, "ControlMaster=no")); n < calls || n > calls+1 {
		t.Errorf("ssh was started %d times for a session, want once for each connection", n)
	}
	if n := len(started(t, args, "ControlMaster=yes")); n < 2 || n > 3 {
		t.Errorf("ssh was started %d times for a master, want 3 times at most", n)
	}
	if n := e.SSHSessions(); slices.Max(n) > 8 {
		t.Errorf("masters have %d sessions, want 8 at most", n)
	}
}

// Many calls at once that are soon answered share a few connections: a handshake begins only if a
// call still waits for a connection.
func TestCallsOverSSHShareConnections(t *testing.T) {
	const calls = 64
	args := withSSH(t, fakeEngine(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"Name":"v"}`) }))
	t.Setenv(sshHandshakes, t.TempDir())
	e := openAt(t, "ssh://example.com")
	var g errgroup.Group
	for range calls {
		g.Go(func() error { _, err := e.InspectVolume(t.Context(), "v"); return err })
	}
	if err := g.Wait(); err != nil {
		t.Fatalf("InspectVolume: %v", err)
	}
	for deadline := time.Now().Add(5 * time.Minute); ; time.Sleep(10 * time.Millisecond) {
		stacks := make([]byte, 4<<20)
		if stacks = stacks[:runtime.Stack(stacks, true)]; !bytes.Contains(stacks, []byte("dialConnFor")) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the transport still dials")
		}
	}
	if n := len(started(t, args, "")); n > calls/4 {
		t.Errorf("ssh was started %d times for %d calls, want at most %d", n, calls, calls/4)
	}
}

func TestRefusedSSHHandshakeIsRepeated(t *testing.T) {
	args := withSSH(t, answersTogether(t, 1))
	refusals := t.TempDir()
	for i := range 3 {
		if err := os.WriteFile(filepath.Join(refusals, fmt.Sprint(i)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv(sshRefusals, refusals)
	e := openAt(t, "ssh://example.com")
	if _, err := e.InspectVolume(t.Context(), "v"); err != nil {
		t.Errorf("InspectVolume: %v", err)
	}
	// A server that wants another key is asked once.
	t.Setenv(sshSocket, "")
	before := len(started(t, args, "dial-stdio"))
	_, err := engine.Open(t.Context(), engine.Options{Host: "ssh://example.com"})
	wantClass(t, "Open without a key", err, engine.ErrUnavailable)
	if n := len(started(t, args, "dial-stdio")) - before; n != 1 {
		t.Errorf("ssh was started %d times for a server that wants another key, want once", n)
	}
}

func TestSSH(t *testing.T) {
	enginetest.Need(t)
	real := realHost
	if real == "" {
		real = "unix:///var/run/docker.sock"
	}
	args := withSSH(t, real)

	e := openAt(t, "ssh://me@example.com:2222")
	if e.Host() != "ssh://example.com:2222" || e.Location() != "example.com:2222" {
		t.Errorf("Host %q, Location %q", e.Host(), e.Location())
	}
	id, _ := start(t, e, engine.ContainerSpec{})
	roundTrip(t, e, id)
	openAt(t, "ssh://example.com/run/user/1000/docker.sock")

	const options = "-o ConnectTimeout=10 -o ServerAliveInterval=6 -o ServerAliveCountMax=2 -o "
	const master, session = options + "ControlMaster=yes -o ControlPath=DIR/s -o ControlPersist=no -T ", options + "ControlMaster=no -o ControlPath=DIR/s -T "
	const first, last = "-l me -p 2222 -- example.com", "-- example.com docker --host unix:///run/user/1000/docker.sock system dial-stdio"
	lines := started(t, args, "")
	if diff := cmp.Diff([]string{"-G " + first, master + first + " docker system dial-stdio", session + first + " docker system dial-stdio"}, lines[:3]); diff != "" {
		t.Errorf("ssh's arguments (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"-G -- example.com", master + last, session + last}, lines[len(lines)-3:]); diff != "" {
		t.Errorf("ssh's arguments (-want +got):\n%s", diff)
	}

	t.Setenv(sshSocket, "")
	_, err := engine.Open(t.Context(), engine.Options{Host: "ssh://me@example.com"})
	wantClass(t, "Open", err, engine.ErrUnavailable)
	if err == nil || !strings.Contains(err.Error(), "Permission denied (publickey)") {
		t.Errorf("Open = %v, want ssh's own words", err)
	}
	t.Setenv("PATH", t.TempDir())
	_, err = engine.Open(t.Context(), engine.Options{Host: "ssh://me@example.com"})
	wantClass(t, "Open without an ssh", err, engine.ErrUnavailable)
}
