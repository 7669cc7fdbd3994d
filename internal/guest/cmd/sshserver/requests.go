//go:build linux

package sshserver

import (
	"encoding/json"
	"sync"
	"syscall"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/cmd/proc"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// obey carries out the client's requests until the channel ends. It holds answering until
// it has replied: the reply to a signal that ends the command must come before its exit.
func obey(c *proc.Command, reqs <-chan *ssh.Request, answering *sync.Mutex) {
	for r := range reqs {
		ok := false
		answering.Lock()
		switch r.Type {
		case wire.RequestSignal:
			var sig wire.Signal
			if json.Unmarshal(r.Payload, &sig) == nil {
				ok = c.Signal(syscall.Signal(sig.Number), sig.Tree)
			}
		case wire.RequestResize:
			var size wire.Size
			if ok = json.Unmarshal(r.Payload, &size) == nil; ok {
				c.Resize(size)
			}
		case wire.RequestClose:
			var closed wire.Close
			ok = json.Unmarshal(r.Payload, &closed) == nil && c.CloseOutput(closed.Stream)
		}
		if r.WantReply {
			r.Reply(ok, nil)
		}
		answering.Unlock()
	}
}

// exitNotice is how long after a command's end its client learns of it, if the output has not ended.
const exitNotice = 50 * time.Millisecond

// announceExit tells the client that the command has ended, unless its output soon has, too: the
// client may read no output. It returns once done is closed, at the latest.
func announceExit(c *proc.Command, ch ssh.Channel, done <-chan struct{}) {
	select {
	case <-c.Exited():
	case <-done:
		return
	}
	notice := time.NewTimer(exitNotice)
	defer notice.Stop()
	select {
	case <-notice.C:
		sendRequest(ch, wire.RequestExited, c.Exit())
	case <-done:
	}
}

// sendRequest sends a request to the client, in parts if it is large.
func sendRequest(ch ssh.Channel, kind string, v any) error {
	payload, err := json.Marshal(v)
	if err != nil {
		return err
	}
	for len(payload) > wire.MaxPart {
		if _, err := ch.SendRequest(wire.RequestPart, false, payload[:wire.MaxPart]); err != nil {
			return err
		}
		payload = payload[wire.MaxPart:]
	}
	_, err = ch.SendRequest(kind, false, payload)
	return err
}

// parts holds the pieces of exec requests that are too large for a packet.
type parts struct {
	mu   sync.Mutex
	size int
	held map[string][]byte
}

func (p *parts) receive(reqs <-chan *ssh.Request) {
	for r := range reqs {
		ok := r.Type == wire.RequestPart && p.add(r.Payload)
		if r.WantReply {
			r.Reply(ok, nil)
		}
	}
}

const refSize = 8 // a big-endian uint64

func (p *parts) add(payload []byte) bool {
	if len(payload) < refSize {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	ref, part := string(payload[:refSize]), payload[refSize:]
	if p.size+len(part) > wire.MaxParts {
		p.size -= len(p.held[ref])
		delete(p.held, ref)
		return false
	}
	p.size += len(part)
	p.held[ref] = append(p.held[ref], part...)
	return true
}

func (p *parts) take(ref string) []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	whole := p.held[ref]
	p.size -= len(whole)
	delete(p.held, ref)
	return whole
}
