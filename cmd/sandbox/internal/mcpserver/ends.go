package mcpserver

import (
	"bytes"
	"encoding/json"
	"io"
	"sync"
	"time"
)

// ends are the two directions of a connection. The end of the input comes after the answers to what it asked:
// the protocol's library drops requests that it has read and not begun.
type ends struct {
	in           io.Reader
	out          io.WriteCloser
	disconnected func()        // is called when the input has ended
	answered     chan struct{} // of size 1: says that asked has become less

	mu                sync.Mutex
	asked             map[string]bool // IDs of requests that are not answered
	request, response []byte          // the beginnings of the next lines
}

// answerTimeout bounds the wait for answers to an agent that has closed its side, and may not read them.
const answerTimeout = 5 * time.Second

func (e *ends) Read(p []byte) (int, error) {
	n, err := e.in.Read(p)
	e.note(&e.request, p[:n], func(id string, isRequest bool) {
		if isRequest {
			e.asked[id] = true
		}
	})
	if err != nil {
		e.disconnected()
		for timeout := time.After(answerTimeout); e.waits(); {
			select {
			case <-e.answered:
			case <-timeout:
				return n, err
			}
		}
	}
	return n, err
}

func (e *ends) Write(p []byte) (int, error) {
	n, err := e.out.Write(p)
	e.note(&e.response, p[:n], func(id string, isRequest bool) {
		if !isRequest {
			delete(e.asked, id)
			select {
			case e.answered <- struct{}{}:
			default: // it has been said
			}
		}
	})
	return n, err
}

// Close leaves the input, which is the caller's, open.
func (e *ends) Close() error { return e.out.Close() }

// note calls fn for the messages with an ID that are complete.
func (e *ends) note(rest *[]byte, p []byte, fn func(id string, isRequest bool)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	*rest = append(*rest, p...)
	for {
		line, after, complete := bytes.Cut(*rest, []byte("\n"))
		if !complete {
			return
		}
		*rest = after
		var message struct {
			ID     json.RawMessage `json:"id"`
			Method string          `json:"method"`
		}
		if json.Unmarshal(line, &message) == nil && len(message.ID) > 0 {
			fn(string(message.ID), message.Method != "")
		}
	}
}

func (e *ends) waits() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.asked) > 0
}
