package mcpserver

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// ends are the two directions of a connection. The protocol's library ends it after the first line that is no
// message, and drops requests that it has read and not begun: of the input it gets valid messages alone, one on
// each line, and its end after the answers to what was asked.
type ends struct {
	in           *bufio.Reader
	out          io.WriteCloser
	disconnected func()        // is called when the input has ended
	answered     chan struct{} // of size 1: says that there is less to wait for
	ready        []byte        // messages that have not been passed on yet

	writing sync.Mutex // held during the write of a line

	mu       sync.Mutex
	asked    map[jsonrpc.ID]bool // requests that are not answered
	refusals int                 // errors that are not written yet
	response []byte              // the beginning of the next line
}

func newEnds(in io.Reader, out io.WriteCloser, disconnected func()) *ends {
	return &ends{in: bufio.NewReaderSize(in, 64<<10), out: out, disconnected: disconnected, answered: make(chan struct{}, 1), asked: map[jsonrpc.ID]bool{}}
}

const (
	// answerTimeout bounds the wait for answers to an agent that has closed its side, and may not read them.
	answerTimeout = 5 * time.Second
	// maxMessage bounds a line of the input, in bytes.
	maxMessage = 16 << 20
	// idWithin is how far from either end of a longer line its ID is looked for.
	idWithin = 1 << 10
)

func (e *ends) Read(p []byte) (int, error) {
	for len(e.ready) == 0 {
		line, long, err := e.line()
		if line = bytes.TrimSpace(line); len(line) > 0 {
			e.ready = e.accept(line, long)
		}
		if err != nil && len(e.ready) == 0 {
			e.disconnected()
			for timeout := time.After(answerTimeout); e.waits(); {
				select {
				case <-e.answered:
				case <-timeout:
					return 0, err
				}
			}
			return 0, err
		}
	}
	n := copy(p, e.ready)
	e.ready = e.ready[n:]
	return n, nil
}

// line reads a line. Of one that is too long it returns the beginning and the end.
func (e *ends) line() (line []byte, long bool, err error) {
	for {
		part, err := e.in.ReadSlice('\n')
		line = append(line, part...)
		if long = long || len(line) > maxMessage; long && len(line) > 2*idWithin {
			line = slices.Delete(line, idWithin, len(line)-idWithin)
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return line, long, err
		}
	}
}

// accept returns the messages of a line, and answers with an error to what is none.
func (e *ends) accept(line []byte, long bool) (messages []byte) {
	switch {
	case long:
		e.refuse(outerID(line), jsonrpc.CodeInvalidRequest, fmt.Sprintf("the message has more than %d bytes, which is the limit: send less at a time", maxMessage))
		return nil
	case !json.Valid(line):
		e.refuse(nil, jsonrpc.CodeParseError, "the line is not one JSON value")
		return nil
	}
	all := []json.RawMessage{line}
	if line[0] == '[' { // a batch, of which each request has an answer of its own
		_ = json.Unmarshal(line, &all) // it is valid
	}
	if len(all) == 0 {
		e.refuse(nil, jsonrpc.CodeInvalidRequest, "the batch is empty")
	}
	for _, one := range all {
		message, err := jsonrpc.DecodeMessage(one)
		if err != nil {
			var of struct{ ID json.RawMessage }
			_ = json.Unmarshal(one, &of) // none if it is no object
			e.refuse(of.ID, jsonrpc.CodeInvalidRequest, err.Error())
			continue
		}
		if request, is := message.(*jsonrpc.Request); is && request.IsCall() {
			e.mu.Lock()
			e.asked[request.ID] = true
			e.mu.Unlock()
		}
		messages = append(append(messages, one...), '\n')
	}
	return messages
}

// The ID of a message follows its first members, or is the last member. In a string its quotes would be escaped.
var (
	idAtBegin = regexp.MustCompile(`^\{(?:\s*"(?:jsonrpc|method)"\s*:\s*"[^"\\]*"\s*,)*\s*"id"\s*:\s*("(?:[^"\\]|\\.)*"|-?\d+)\s*,`)
	idAtEnd   = regexp.MustCompile(`,\s*"id"\s*:\s*("(?:[^"\\]|\\.)*"|-?\d+)(?:\s*,\s*"(?:jsonrpc|method)"\s*:\s*"[^"\\]*")*\s*\}$`)
)

// outerID returns the ID of a message by its beginning and its end, or nil.
func outerID(line []byte) json.RawMessage {
	for _, at := range []*regexp.Regexp{idAtBegin, idAtEnd} {
		if found := at.FindSubmatch(line); found != nil {
			return found[1]
		}
	}
	return nil
}

// refuse answers with an error, and does not wait until the agent reads it. An id that is none becomes null.
func (e *ends) refuse(id json.RawMessage, code int, text string) {
	var value any
	err := json.Unmarshal(id, &value)
	if err == nil {
		_, err = jsonrpc.MakeID(value)
	}
	if err != nil {
		id = nil
	}
	body, _ := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": id, "error": map[string]any{"code": code, "message": text}}) // of valid parts
	e.mu.Lock()
	e.refusals++
	e.mu.Unlock()
	go func() {
		_, _ = e.write(append(body, '\n')) // an agent that is gone is noticed by the end of its input
		e.mu.Lock()
		e.refusals--
		e.mu.Unlock()
		e.less()
	}()
}

func (e *ends) write(p []byte) (int, error) {
	e.writing.Lock()
	defer e.writing.Unlock()
	return e.out.Write(p)
}

func (e *ends) Write(p []byte) (int, error) {
	n, err := e.write(p)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.response = append(e.response, p[:n]...)
	for {
		line, after, complete := bytes.Cut(e.response, []byte("\n"))
		if !complete {
			return n, err
		}
		e.response = after
		message, decoded := jsonrpc.DecodeMessage(line)
		if response, is := message.(*jsonrpc.Response); decoded == nil && is {
			delete(e.asked, response.ID)
			e.less()
		}
	}
}

// less says that there is less to wait for.
func (e *ends) less() {
	select {
	case e.answered <- struct{}{}:
	default: // it has been said
	}
}

// Close leaves the input, which is the caller's, open.
func (e *ends) Close() error { return e.out.Close() }

func (e *ends) waits() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.asked)+e.refusals > 0
}
