package conform

import (
	"errors"
	"io"
	"net"
	"net/url"
	"sync"
)

// A proxy passes connections on to an engine until they are cut.
type proxy struct {
	net.Listener
	network, address string

	mu    sync.Mutex
	conns map[net.Conn]bool
	wg    sync.WaitGroup
}

// newProxy returns a proxy on loopback of the engine at a host, in the form of
// [sandbox.Health.Host].
func newProxy(host string) (*proxy, error) {
	u, err := url.Parse(host)
	if err != nil {
		return nil, err
	}
	p := &proxy{conns: map[net.Conn]bool{}}
	switch u.Scheme {
	case "unix":
		p.network, p.address = "unix", u.Path
	default:
		return nil, missing("a connection to " + u.Scheme + ":// can't be cut in between")
	}
	if p.Listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		return nil, err
	}
	p.wg.Go(p.serve)
	return p, nil
}

func (p *proxy) serve() {
	for {
		in, err := p.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial(p.network, p.address)
		if err != nil {
			in.Close()
			continue
		}
		p.mu.Lock()
		p.conns[in], p.conns[out] = true, true
		p.mu.Unlock()
		p.wg.Go(func() { p.pass(in, out) })
		p.wg.Go(func() { p.pass(out, in) })
	}
}

// pass copies one direction, and ends that alone: an exec's stream is closed half by half.
func (p *proxy) pass(to, from net.Conn) {
	_, err := io.Copy(to, from)
	if half, ok := to.(interface{ CloseWrite() error }); ok && err == nil {
		_ = half.CloseWrite()
		return
	}
	to.Close()
	from.Close()
}

// cut ends every connection.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		c.Close()
	}
	clear(p.conns)
}

func (p *proxy) Close() error {
	err := p.Listener.Close()
	p.cut()
	p.wg.Wait()
	if errors.Is(err, net.ErrClosed) {
		err = nil
	}
	return err
}
