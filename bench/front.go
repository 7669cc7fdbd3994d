package main

import (
	"errors"
	"net"
	"net/http"
	"net/http/httputil"
	"os"
	"path/filepath"

	"github.com/seed-1a2d6d8f/sandbox"
)

// front is a client of the engine, and a proxy between them that changes replies.
type front struct {
	client *sandbox.Client
	host   string
	server *http.Server
	dir    string
}

func (r *rig) inFront(change func(*http.Response) error) (*front, error) {
	dir, err := os.MkdirTemp("", "bench")
	if err != nil {
		return nil, err
	}
	f := &front{dir: dir, host: "unix://" + filepath.Join(dir, "s")}
	l, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	f.server = &http.Server{Handler: &httputil.ReverseProxy{
		Rewrite:        func(p *httputil.ProxyRequest) { p.Out.URL.Scheme, p.Out.URL.Host = "http", "engine" },
		Transport:      r.api.http.Transport,
		FlushInterval:  -1,
		ModifyResponse: change,
	}}
	go f.server.Serve(l)
	if f.client, err = sandbox.NewClient(sandbox.WithHost(f.host)); err != nil {
		return nil, errors.Join(err, f.close())
	}
	return f, nil
}

func (f *front) close() error {
	var err error
	if f.client != nil {
		err = f.client.Close()
	}
	return errors.Join(err, f.server.Close(), os.RemoveAll(f.dir))
}
