package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/sandboxhttp"
)

// serveFlags are the flags of serve.
type serveFlags struct {
	listen, socket string
	tokenFile      string
	public         bool
	hosts          []string
	hostFiles      bool
	domain         string
	resume, asJSON bool
	sources        []string
	proxies        []string
	pools          map[string]int
}

func (a *app) serveCommand() *cobra.Command {
	var f serveFlags
	c := &cobra.Command{
		Use:   "serve",
		Short: "Serve the sandboxes over HTTP, to clients with a token",
		Long: `Serve the sandboxes over HTTP, until it is interrupted. Each request needs the token, as the header "Authorization: Bearer TOKEN"; a GET may have it
in the parameter access_token. /openapi.json describes the API. /ui is a page for a browser; its
address, as it is printed, has the token. Without --token-file and the variable SANDBOX_TOKEN the token is
a new one, which is printed once and kept nowhere else; one that was given is not printed.

Web servers in sandboxes are served at http://PORT-NAME.localhost, with the port of this server. The
first request of a browser has the token in the parameter access_token.

Who has the token can do everything with the sandboxes. Connections are not encrypted: for other
machines put a TLS proxy in front of it, and list its names with --allow-host and its address with
--trusted-proxy.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) (err error) {
			from, err := prefixes("source-address", f.sources)
			proxies, err2 := prefixes("trusted-proxy", f.proxies)
			if err := errors.Join(err, err2); err != nil {
				return usageError{err}
			}
			if err := f.checkNames(c); err != nil {
				return err
			}
			token, given, err := f.token()
			if err != nil {
				return err
			}
			l, err := f.listener(c.Context())
			if err != nil {
				return err
			}
			pools, closePools, err := f.newPools(c.Context(), a)
			if err != nil {
				return errors.Join(err, l.Close())
			}
			defer func() { err = errors.Join(err, closePools()) }()
			if err := f.announce(a.stdout, l.Addr(), token, given); err != nil {
				return errors.Join(err, l.Close())
			}
			return serveUntil(c.Context(), l, f.handler(a, token, from, proxies, pools))
		},
	}
	c.Flags().StringVar(&f.listen, "listen", "127.0.0.1:8274", "the address, of the loopback interface; port 0 is any free one")
	c.Flags().StringVar(&f.socket, "socket", "", "a Unix socket instead, which only its owner can open")
	c.Flags().StringVar(&f.tokenFile, "token-file", "", "read the token from this file, rather than from SANDBOX_TOKEN, or a new one")
	c.Flags().BoolVar(&f.public, "public", false, "permit a --listen address that other machines can reach")
	c.Flags().StringSliceVar(&f.hosts, "allow-host", nil, "a host name under which clients reach the server, beside those of the loopback interface")
	c.Flags().BoolVar(&f.hostFiles, "host-files", false, "permit requests to mount and copy files of this machine and the engine's")
	c.Flags().StringSliceVar(&f.sources, "source-address", nil, "a prefix of addresses, beside public ones, from which requests may get repositories, archives and images")
	c.Flags().StringVar(&f.domain, "preview-domain", "localhost", "the domain below which web servers in sandboxes are served")
	c.Flags().BoolVar(&f.resume, "preview-resume", false, "let a request to a web server start the session of its sandbox")
	c.Flags().StringSliceVar(&f.proxies, "trusted-proxy", nil, "a prefix of addresses of TLS proxies, whose X-Forwarded-Proto and X-Forwarded-For web servers in sandboxes get")
	c.Flags().StringToIntVar(&f.pools, "pool", nil, "keep this many sandboxes of an image running, for requests to create one")
	c.MarkFlagsMutuallyExclusive("listen", "socket")
	jsonFlag(c, &f.asJSON)
	return c
}

// minToken is the shortest token that is accepted, in bytes.
const minToken = 16

// token returns the token of --token-file or SANDBOX_TOKEN, or a new one.
func (f *serveFlags) token() (token string, given bool, err error) {
	from := "SANDBOX_TOKEN"
	token = os.Getenv(from)
	if f.tokenFile != "" {
		from = "--token-file " + f.tokenFile
		text, err := os.ReadFile(f.tokenFile)
		if err != nil {
			return "", false, err
		}
		token = strings.TrimSpace(string(text))
	} else if token == "" {
		return rand.Text(), false, nil
	}
	if len(token) < minToken || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", false, usagef("%s: a token has at least %d characters of ASCII, and no space", from, minToken)
	}
	return token, true, nil
}

// hostName is a name as browsers send it, which is in ASCII.
var hostName = regexp.MustCompile(`^(?i:[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?\.)*(?i:[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)$`)

// checkNames fails for names that no request can have, which would serve nobody.
func (f *serveFlags) checkNames(c *cobra.Command) error {
	if err := checkEmpty(c, "token-file", "socket", "allow-host", "preview-domain"); err != nil {
		return err
	}
	for _, host := range f.hosts {
		name := host
		if before, port, err := net.SplitHostPort(host); err == nil {
			if _, err := strconv.ParseUint(port, 10, 16); err == nil {
				name = before
			}
		}
		if _, err := netip.ParseAddr(strings.Trim(name, "[]")); err != nil && !hostName.MatchString(strings.TrimSuffix(name, ".")) {
			return usagef("--allow-host %q is not the name of a host, such as sandboxes.example.com", host)
		}
	}
	if _, err := netip.ParseAddr(f.domain); err == nil || !hostName.MatchString(f.domain) {
		return usagef("--preview-domain %q is not a domain, such as apps.example.com, without a port", f.domain)
	}
	return nil
}

// prefixes returns the addresses of a flag.
func prefixes(flag string, texts []string) (all []netip.Prefix, err error) {
	for _, text := range texts {
		p, e := netip.ParsePrefix(text)
		if e != nil {
			if a, addrErr := netip.ParseAddr(text); addrErr == nil {
				p, e = netip.PrefixFrom(a, a.BitLen()), nil
			}
		}
		if e != nil {
			e = fmt.Errorf("--%s %s is not a prefix, such as 10.0.0.0/8", flag, text)
		}
		all, err = append(all, p), errors.Join(err, e)
	}
	return all, err
}

// newPools returns the pools, by their image, and what closes them.
func (f *serveFlags) newPools(ctx context.Context, a *app) (pools map[string]*sandbox.Pool, closeAll func() error, err error) {
	pools = map[string]*sandbox.Pool{}
	closeAll = func() (err error) {
		for _, p := range pools {
			err = errors.Join(err, p.Close())
		}
		return err
	}
	for image, size := range f.pools {
		if pools[image], err = a.client.NewPool(ctx, size, sandbox.WithImage(image)); err != nil {
			delete(pools, image)
			return nil, nil, errors.Join(fmt.Errorf("--pool %s=%d: %w", image, size, err), closeAll())
		}
	}
	return pools, closeAll, nil
}

// listener opens the socket. Nothing but --public opens it to other machines.
func (f *serveFlags) listener(ctx context.Context) (net.Listener, error) {
	var config net.ListenConfig
	if f.socket != "" {
		if err := removeStale(f.socket); err != nil {
			return nil, err
		}
		l, err := config.Listen(ctx, "unix", f.socket)
		if err != nil {
			return nil, err
		}
		// Until then the token keeps others out.
		if err := os.Chmod(f.socket, 0o600); err != nil {
			return nil, errors.Join(err, l.Close())
		}
		return l, nil
	}
	address, err := net.ResolveTCPAddr("tcp", f.listen)
	if err != nil {
		return nil, usagef("--listen %s: %w", f.listen, err)
	}
	if !address.IP.IsLoopback() && !f.public {
		return nil, usagef("--listen %s is not a loopback address: other machines could reach it, see --public", f.listen)
	}
	return config.Listen(ctx, "tcp", address.String())
}

// removeStale removes the socket of a server that has died.
func removeStale(path string) error {
	info, err := os.Lstat(path)
	if err != nil || info.Mode().Type() != os.ModeSocket {
		return nil // none, or what Listen complains about
	}
	conn, err := net.Dial("unix", path)
	if err == nil {
		conn.Close()
		return fmt.Errorf("--socket %s: another server uses it", path)
	}
	return os.Remove(path)
}

// announce prints the address, the token and the address of the page. The token is in the fragment
// of that, which browsers don't send. A token that was given is not printed.
func (f *serveFlags) announce(w io.Writer, at net.Addr, token string, given bool) error {
	address := "http://" + at.String()
	page := address + "/ui/#token=" + token
	if given {
		page = address + "/ui/"
	}
	if f.socket != "" { // browsers open none
		address, page = "unix://"+f.socket, ""
	}
	if f.asJSON {
		v := map[string]string{"address": address}
		if !given {
			v["token"] = token
		}
		if page != "" {
			v["page"] = page
		}
		return printJSON(w, v)
	}
	text := fmt.Sprintf("address  %s\n", graphic(address))
	if !given {
		text += "token    " + token + "\n"
	}
	if page != "" {
		text += "page     " + page + "\n"
	}
	_, err := io.WriteString(w, text)
	return err
}

// handler serves the API, and below the domain the web servers in sandboxes.
func (f *serveFlags) handler(a *app, token string, from, proxies []netip.Prefix, pools map[string]*sandbox.Pool) http.Handler {
	opts := []sandboxhttp.Option{
		sandboxhttp.WithToken(token), sandboxhttp.WithHosts(f.hosts...), sandboxhttp.WithSourceAddresses(from...), sandboxhttp.WithPools(pools), sandboxhttp.WithPreviewDomain(f.domain),
	}
	if f.hostFiles {
		opts = append(opts, sandboxhttp.WithHostFiles())
	}
	api := sandboxhttp.Handler(a.client, opts...)
	previewOpts := []sandboxhttp.PreviewOption{sandboxhttp.WithToken(token), sandboxhttp.WithDomain(f.domain), sandboxhttp.WithTrustedProxies(proxies...)}
	if f.resume {
		previewOpts = append(previewOpts, sandboxhttp.WithResume())
	}
	preview := sandboxhttp.Preview(a.client, previewOpts...)
	suffix := "." + strings.ToLower(f.domain)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host := r.Host
		if name, _, err := net.SplitHostPort(host); err == nil {
			host = name
		}
		// A page of a sandbox gets nothing but the sandbox's own server below its host.
		if strings.HasSuffix(strings.TrimSuffix(strings.ToLower(host), "."), suffix) {
			preview.ServeHTTP(w, r)
			return
		}
		api.ServeHTTP(w, r)
	})
}

const (
	// serveGrace is how long requests may go on after the first signal, endTimeout how long they
	// have to end then.
	serveGrace = 3 * time.Second
	endTimeout = 15 * time.Second
)

// serveUntil serves until ctx ends, and returns when all requests have ended.
func serveUntil(ctx context.Context, l net.Listener, handler http.Handler) error {
	requests, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	var running sync.WaitGroup // also those that have taken over their connection
	server := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			running.Add(1)
			defer running.Done()
			handler.ServeHTTP(w, r)
		}),
		BaseContext:       func(net.Listener) context.Context { return requests },
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          log.New(io.Discard, "", 0), // what clients do wrong
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	defer time.AfterFunc(serveGrace, cancel).Stop()
	last, end := context.WithTimeout(context.WithoutCancel(ctx), serveGrace+endTimeout)
	defer end()
	if err := server.Shutdown(last); err != nil {
		return errors.Join(err, server.Close())
	}
	all := make(chan struct{})
	go func() {
		running.Wait()
		close(all)
	}()
	select {
	case <-all:
		return nil
	case <-last.Done():
		return errors.New("a request has not ended")
	}
}
