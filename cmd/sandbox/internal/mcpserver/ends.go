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
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// ends are the two directions of a connection. The protocol's library ends it after the first line that is no
// message, and drops requests that it has read and not begun: of the input it gets valid messages alone, one on
// each line, and its end after the answers to what was asked. It makes 64-bit integers of the IDs of requests, and
// doesn't answer those that have the ID of one that runs: it gets IDs of ours, and the agent its own.
type ends struct {
	in           *bufio.Reader
	out          io.WriteCloser
	disconnected func()        // is called when the input has ended
	answered     chan struct{} // of size 1: says that there is less to wait for
	ready        []byte        // messages that have not been passed on yet

	writing sync.Mutex // held during the write of a line

	mu       sync.Mutex
	asked    map[int64]json.RawMessage // the agent's IDs of the requests that are not answered, by ours
	last     int64                     // our last ID
	refusals int                       // errors that are not written yet
	response []byte                    // the beginning of the next line
}

func newEnds(in io.Reader, out io.WriteCloser, disconnected func()) *ends {
	return &ends{in: bufio.NewReaderSize(in, 64<<10), out: out, disconnected: disconnected, answered: make(chan struct{}, 1), asked: map[int64]json.RawMessage{}}
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
		if line = bytes.TrimSpace(bytes.TrimPrefix(line, []byte("\ufeff"))); len(line) > 0 { // PowerShell begins a pipe with the mark
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
		e.refuse(nil, jsonrpc.CodeParseError, "the line is not one JSON value: each message is one line, in UTF-8")
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
		passed, err := e.pass(one)
		if err != nil {
			var of struct{ ID json.RawMessage }
			_ = json.Unmarshal(one, &of) // none if it is no object
			e.refuse(of.ID, jsonrpc.CodeInvalidRequest, err.Error())
			continue
		}
		messages = append(messages, passed...)
	}
	return messages
}

// pass returns the lines that the library gets for a message: one, or for a cancellation one for each request with the ID.
func (e *ends) pass(one json.RawMessage) (lines []byte, err error) {
	var (
		message map[string]json.RawMessage
		method  string
	)
	if err := json.Unmarshal(one, &message); err != nil || message == nil {
		return nil, errors.New("a message is a JSON object")
	}
	id, hasID := message["id"]
	if _, asks := message["method"]; !asks { // an answer
		_, err := jsonrpc.DecodeMessage(one)
		return append(one, '\n'), err
	}
	if json.Unmarshal(message["method"], &method) != nil {
		return nil, errors.New("the method is not a string")
	}
	switch {
	case hasID && !isID(id):
		return nil, errors.New("the ID of a request is a string or a number")
	case hasID && strings.HasPrefix(method, "notifications/"):
		return nil, fmt.Errorf("%q is a notification, which has no ID", method)
	case method == "notifications/cancelled":
		return e.cancellations(message), nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if hasID {
		message["id"] = strconv.AppendInt(nil, e.last+1, 10)
	}
	lines, _ = json.Marshal(message) // of valid parts
	if _, err := jsonrpc.DecodeMessage(lines); err != nil {
		return nil, err
	}
	if hasID {
		e.last++
		e.asked[e.last] = id
	}
	return append(lines, '\n'), nil
}

func isID(id json.RawMessage) bool {
	return len(id) > 0 && (id[0] == '"' || id[0] == '-' || id[0] >= '0' && id[0] <= '9')
}

// cancellations returns the message of a cancellation with the ID of each request that it means. There may be none.
func (e *ends) cancellations(message map[string]json.RawMessage) (lines []byte) {
	var params map[string]json.RawMessage
	_ = json.Unmarshal(message["params"], &params) // nothing without an ID
	meant := params["requestId"]
	e.mu.Lock()
	defer e.mu.Unlock()
	for ours, id := range e.asked {
		if bytes.Equal(id, meant) {
			params["requestId"] = strconv.AppendInt(nil, ours, 10)
			message["params"], _ = json.Marshal(params) // of valid parts
			line, _ := json.Marshal(message)
			lines = append(append(lines, line...), '\n')
		}
	}
	return lines
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
	if !isID(id) {
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
	e.mu.Lock()
	e.response = append(e.response, p...)
	var lines []byte
	var answered []int64
	for {
		line, after, complete := bytes.Cut(e.response, []byte("\n"))
		if !complete {
			break
		}
		e.response = after
		line, ours := e.answer(line)
		lines, answered = append(append(lines, line...), '\n'), append(answered, ours)
	}
	e.mu.Unlock()
	var err error
	if len(lines) > 0 {
		_, err = e.write(lines)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, ours := range answered {
		delete(e.asked, ours)
	}
	e.less()
	return len(p), err
}

// answer returns a line of the library, of an answer with the agent's ID and a code that the protocol has, and our ID of the request.
func (e *ends) answer(line []byte) ([]byte, int64) {
	var message map[string]json.RawMessage
	if json.Unmarshal(line, &message) != nil || message["method"] != nil {
		return line, 0
	}
	ours, _ := strconv.ParseInt(string(message["id"]), 10, 64)
	id, ok := e.asked[ours]
	if !ok {
		return line, 0
	}
	message["id"] = id
	var failure map[string]json.RawMessage
	if _ = json.Unmarshal(message["error"], &failure); string(failure["code"]) == "0" { // of the library's errors that have none
		failure["code"] = strconv.AppendInt(nil, jsonrpc.CodeInvalidRequest, 10)
		message["error"], _ = json.Marshal(failure) // of valid parts
	}
	line, _ = json.Marshal(message)
	return line, ours
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
