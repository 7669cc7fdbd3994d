package sandbox

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// An inlay is the layer of a fork's source on its way into a session that was started
// beside the copy. Nothing may write to a layer that is in use from outside: it is laid
// into the session from inside, before that begins.
//
// It goes through this process, and is for small layers. Which ones are is known of
// sources that have been forked before: whoever forks one a hundred times has them all but
// the first start 0.1 s sooner. One that has grown too large is made anew, without.
type inlay struct {
	laying gate
	layer  []byte // nil while it is to come
	laid   bool
}

// put has the layer be there.
func (l *inlay) put(layer []byte) {
	l.laying <- struct{}{}
	l.layer = layer
	<-l.laying
}

// smallLayer and smallFiles bound what is known to be small: half of what can be packed,
// since it may grow, where each file takes 2 KiB beside its contents.
const (
	smallLayer = wire.MaxLayer / 4
	smallFiles = wire.MaxLayer / 4 / 2048
)

// knownLayers is how many sources a client remembers.
const knownLayers = 1000

// sawLayer has the client remember whether the layer of a sandbox is small.
func (c *Client) sawLayer(id string, small bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !small {
		delete(c.smallLayers, id)
		return
	}
	if c.smallLayers == nil || len(c.smallLayers) >= knownLayers {
		c.smallLayers = map[string]bool{}
	}
	c.smallLayers[id] = true
}

func (c *Client) layerIsSmall(id string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.smallLayers[id]
}

// lay lays the inlay in once, by the guest at the other end of conn.
func (s *Sandbox) lay(ctx context.Context, conn *guest.Conn) error {
	l := s.inlay
	if l == nil {
		return nil
	}
	leave, err := l.laying.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	if l.laid {
		return nil
	}
	if l.layer == nil {
		return errors.New("the container's files are still to come")
	}
	last, err := s.unpackLayer(ctx, conn, l.layer)
	if err != nil {
		return fmt.Errorf("the container's files: %w", err)
	}
	l.laid, l.layer = true, nil
	if text := skippedText(last); text != "" {
		s.c.log.Warn("not everything was copied", "sandbox", s.rec.Name, "what", text)
	}
	return nil
}

func (s *Sandbox) unpackLayer(ctx context.Context, conn *guest.Conn, layer []byte) (last wire.Copied, err error) {
	told, err := json.Marshal(wire.Copy{Stream: true, Jobs: []wire.CopyJob{{To: "/", Layer: true}}})
	if err != nil {
		return last, err
	}
	p, err := conn.Exec(ctx, wire.Exec{Args: []string{wire.Path, wire.VerbCopy, string(told)}, User: "0:0", Stdin: true})
	if err != nil {
		return last, err
	}
	defer p.Close()
	defer context.AfterFunc(ctx, func() { p.Close() })()
	complaint := drain(p.Stderr())
	go func() {
		io.Copy(p.Stdin(), bytes.NewReader(layer))
		p.Stdin().Close()
	}()
	out := json.NewDecoder(p.Stdout())
	for err == nil && !last.Done {
		last = wire.Copied{}
		err = out.Decode(&last)
	}
	switch {
	case ctx.Err() != nil:
		return last, cancelled(ctx)
	case conn.Err() != nil:
		return last, conn.Err()
	case err != nil:
		return last, fmt.Errorf("%w: %q", err, <-complaint)
	case last.Error != nil:
		return last, fmt.Errorf("/%s: %w", last.Error.Path, last.Error)
	}
	return last, nil
}
