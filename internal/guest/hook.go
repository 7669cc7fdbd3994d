package guest

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// Hook decides on requests of the sandbox, see wire.OpHook, until the connection ends, or close
// is called. decide is called for up to wire.MaxHooks requests at a time and must return soon
// after its context ended, which it does with the connection and after wire.HookTime. ctx bounds
// the call only. done is closed when no more requests are decided on.
func (c *Conn) Hook(ctx context.Context, key ed25519.PrivateKey, hook wire.Hook, decide func(context.Context, wire.HookRequest) wire.HookReply) (done <-chan struct{}, stop func(), err error) {
	payload, err := json.Marshal(wire.Control{Op: wire.OpHook, Hook: &hook})
	if err != nil {
		return nil, nil, fmt.Errorf("guest: hook: %w", err)
	}
	conn, err := c.connectControl(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("guest: hook: %w", err)
	}
	reply, err := c.request(ctx, conn, key, payload)
	if err == nil && reply.Error != "" {
		err = errors.New(reply.Error)
	}
	if err != nil {
		go conn.ch.Close()
		return nil, nil, fmt.Errorf("guest: hook: %w", err)
	}
	ended := make(chan struct{})
	if !c.spawn(func() {
		defer close(ended)
		conn.decideAll(c.life, decide)
	}) {
		conn.ch.Close()
		return nil, nil, ErrConnectionLost
	}
	return ended, func() { go conn.ch.Close() }, nil
}

// decideAll answers requests until the connection ends.
func (conn *controlConn) decideAll(ctx context.Context, decide func(context.Context, wire.HookRequest) wire.HookReply) {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	defer conn.ch.Close()
	slots := make(chan struct{}, wire.MaxHooks)
	var writing sync.Mutex
	for {
		var req wire.HookRequest
		if readControl(conn.r, &req) != nil {
			return
		}
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return
		}
		running.Go(func() {
			defer func() { <-slots }()
			one, cancel := context.WithTimeout(ctx, wire.HookTime)
			defer cancel()
			reply := decide(one, req)
			reply.ID = req.ID
			writing.Lock()
			defer writing.Unlock()
			if writeControl(conn.ch, reply) != nil {
				conn.ch.Close()
			}
		})
	}
}

func writeControl(w io.Writer, v any) error {
	line, err := json.Marshal(v)
	if err == nil {
		_, err = w.Write(append(line, '\n'))
	}
	return err
}
