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
	disconnected func() // is called when the input has ended

	mu                sync.Mutex
	asked             map[string]bool // IDs of requests that are not answered
	request, response []byte          // the beginnings of the next lines
}

const (
	// answerTimeout bounds the wait for answers to an agent that has closed its side, and may not read them.
	answerTimeout = 5 * time.Second
	// answerEvery is how often it is looked whether there are some.
	answerEvery = 5 * time.Millisecond
)

func (e *ends) Read(p []byte) (int, error) {
	n, err := e.in.Read(p)
	e.note(&e.request, p[:n], func(id string, isRequest bool) {
		if isRequest {
			e.asked[id] = true
		}
	})
	if err != nil {
		e.disconnected()
		for end := time.Now().Add(answerTimeout); e.waits() && time.Now().Before(end); {
			time.Sleep(answerEvery)
		}
	}
	return n, err
}

func (e *ends) Write(p []byte) (int, error) {
	n, err := e.out.Write(p)
	e.note(&e.response, p[:n], func(id string, isRequest bool) {
		if !isRequest {
			delete(e.asked, id)
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
