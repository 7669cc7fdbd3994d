//go:build linux

package copytree

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/cmd/proc"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

const (
	// challengeTime bounds the wait for PID 1's challenge, and holdTime that for its hold: it
	// may be paused, or hold for somebody else.
	challengeTime = 3 * time.Second
	holdTime      = 20 * time.Second
	// releaseTime bounds the wait for PID 1 to say what has run.
	releaseTime = 20 * time.Second
	// offers is how often a hold is offered whose connection PID 1 closes before the request.
	offers = 3
)

// holder is a hold of the processes of the sandbox in whose network namespace this process is.
type holder struct {
	conn net.Conn
	r    *bufio.Reader
	stop chan struct{} // closed when no more beats are to be sent
}

// readLine decodes a line of PID 1's, which has until timeout.
func (h *holder) readLine(timeout time.Duration, v any) error {
	h.conn.SetReadDeadline(time.Now().Add(timeout))
	line, err := wire.ReadLine(h.r, wire.MaxFriendLine)
	if err != nil {
		return err
	}
	return json.Unmarshal(line, v)
}

// dialHold connects to PID 1 and returns its challenge.
func dialHold() (*holder, []byte, error) {
	conn, err := proc.ConnectControl()
	if err != nil {
		return nil, nil, err
	}
	h := &holder{conn: conn, r: bufio.NewReader(conn), stop: make(chan struct{})}
	var hello wire.Challenge
	if err := h.readLine(challengeTime, &hello); err != nil {
		conn.Close()
		return nil, nil, err
	}
	return h, hello.Nonce, nil
}

// errLost is the error of a connection that PID 1 has closed before it held.
var errLost = errors.New("PID 1 closed the connection")

// begin sends the request and waits until the processes are held.
func (h *holder) begin(request []byte) error {
	if _, err := h.conn.Write(request); err != nil {
		return errLost
	}
	go func() {
		tick := time.NewTicker(wire.HoldSilence / 5)
		defer tick.Stop()
		for {
			select {
			case <-h.stop:
				return
			case <-tick.C:
				io.WriteString(h.conn, wire.HoldBeat)
			}
		}
	}()
	var reply wire.Reply
	err := h.readLine(holdTime, &reply)
	switch {
	case errors.Is(err, io.EOF):
		err = errLost
	case err == nil && reply.Error != "":
		err = errors.New(reply.Error)
	case err == nil && !reply.Held:
		err = errors.New("PID 1 does not hold them")
	}
	if err != nil {
		h.close()
	}
	return err
}

// release ends the hold, and returns what has run meanwhile.
func (h *holder) release() (moved string) {
	defer h.close()
	var reply wire.Reply
	_, err := io.WriteString(h.conn, wire.HoldRelease)
	if err == nil {
		err = h.readLine(releaseTime, &reply)
	}
	if err != nil {
		return fmt.Sprintf("the hold was lost: %v", err)
	}
	return reply.Moved
}

func (h *holder) close() {
	close(h.stop)
	h.conn.Close()
}

// orders are the lines on standard input, without beats.
type orders chan []byte

// readOrders ends this process at the end of standard input, or when its caller is silent: nobody
// wants the copy any more, and PID 1 ends the hold with the connection.
func readOrders() orders {
	lines := make(orders)
	silence := time.AfterFunc(wire.HoldSilence, func() {
		fmt.Fprintf(os.Stderr, "copy: the caller was silent for %v\n", wire.HoldSilence)
		os.Exit(1)
	})
	go func() {
		for r := bufio.NewReader(os.Stdin); ; {
			line, err := r.ReadBytes('\n')
			if err != nil {
				os.Exit(1)
			}
			silence.Reset(wire.HoldSilence)
			if string(line) != wire.CopyBeat {
				lines <- line
			}
		}
	}()
	return lines
}

// await prints that the copy is ready and waits for the order to begin. It returns a hold, or nil
// if the copy is to begin without one.
func (o orders) await(hold bool, out *json.Encoder) (*holder, error) {
	ready := wire.Copied{Ready: true}
	for try := 1; ; try++ {
		var h *holder
		var err error
		if hold && ready.Unheld == "" {
			if h, ready.Challenge, err = dialHold(); err != nil {
				ready.Unheld = fmt.Sprintf("PID 1: %v", err)
			}
		}
		if err := out.Encode(ready); err != nil {
			return nil, err
		}
		request := <-o
		if len(request) <= 1 {
			if h != nil {
				h.close()
			}
			return nil, nil
		}
		if h == nil {
			return nil, errors.New("copy: a request for a hold without a challenge")
		}
		if err = h.begin(request); err == nil {
			return h, nil
		}
		ready.Challenge = nil
		if err != errLost || try == offers {
			ready.Unheld = err.Error()
		}
	}
}
