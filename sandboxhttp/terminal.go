package sandboxhttp

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"
)

// terminalRequest is the first message of a terminal.
type terminalRequest struct {
	execRequest
	size
}

// size is the size of a terminal.
type size struct {
	Rows uint16 `json:"rows"`
	Cols uint16 `json:"cols"`
}

// A terminal's messages: of the client text messages are JSON, first a terminalRequest, later a
// size; binary ones are input. Of the server binary ones are output and text ones an execEvent:
// "started", and at the end "exit" or "failed".
func (h *handler) terminal(w http.ResponseWriter, r *http.Request) error {
	if !strings.EqualFold(r.Header.Get("Upgrade"), "websocket") {
		w.Header().Set("Upgrade", "websocket")
		return &statusError{http.StatusUpgradeRequired, "upgrade_required", "a terminal is a WebSocket"}
	}
	return h.use(r, func(sb *handle) error {
		// The origin was checked with that of other requests.
		conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{InsecureSkipVerify: true})
		if err != nil {
			return nil // it has answered
		}
		conn.SetReadLimit(maxBody)
		var helpers sync.WaitGroup
		defer helpers.Wait()
		ctx, cancel := context.WithCancelCause(r.Context())
		defer cancel(nil)
		defer conn.CloseNow()
		event := runTerminal(ctx, cancel, &helpers, sb, conn)
		// Also if the server ends, which ends ctx.
		last, end := context.WithTimeout(context.WithoutCancel(ctx), lastTimeout)
		defer end()
		if sendEvent(last, conn, event) == nil {
			conn.Close(websocket.StatusNormalClosure, "")
		}
		return nil
	})
}

// lastTimeout bounds the last message of a terminal.
const lastTimeout = 10 * time.Second

// runTerminal runs a command on a terminal, and returns how it ended. The helpers end with ctx
// and the connection.
func runTerminal(ctx context.Context, cancel context.CancelCauseFunc, helpers *sync.WaitGroup, sb *handle, conn *websocket.Conn) execEvent {
	var req terminalRequest
	if err := readFirst(ctx, conn, &req); err != nil {
		return exited(err)
	}
	if req.Stdin != "" || req.Detached || req.Wait {
		return exited(invalid("a terminal's command takes no stdin, detached or wait: input is sent in binary messages"))
	}
	if err := req.checkEnv(); err != nil {
		return exited(err)
	}
	cmd, err := req.cmd(ctx, sb)
	if err != nil {
		return exited(err)
	}
	cmd.TTY = true
	if req.Rows > 0 && req.Cols > 0 {
		cmd.Resize(req.Rows, req.Cols)
	}
	input, stdin := io.Pipe()
	defer input.Close()
	started := make(chan struct{})
	cmd.Stdin = input
	cmd.Stdout = writerFunc(func(b []byte) (int, error) {
		<-started
		if err := sendMessage(ctx, conn, websocket.MessageBinary, b); err != nil {
			cancel(err)
			return 0, err
		}
		return len(b), nil
	})
	if err := cmd.Start(); err != nil {
		close(started)
		return exited(err)
	}
	if err := sendEvent(ctx, conn, execEvent{Event: "started"}); err != nil {
		cancel(err)
	}
	close(started)
	helpers.Go(func() {
		err := readMessages(ctx, conn, stdin, func(to size) { cmd.Resize(to.Rows, to.Cols) })
		stdin.CloseWithError(err)
		cancel(err) // the client has gone
	})
	helpers.Go(func() { cancel(pingUntil(ctx, conn)) })
	return exited(cmd.Wait())
}

// readFirst reads the first message.
func readFirst(ctx context.Context, conn *websocket.Conn, req *terminalRequest) error {
	ctx, cancel := context.WithTimeout(ctx, bodyTimeout)
	defer cancel()
	kind, data, err := conn.Read(ctx)
	if err != nil {
		return err
	}
	if kind != websocket.MessageText {
		return invalid("the first message is the command, as a text message in JSON")
	}
	return unmarshal(data, req)
}

// readMessages copies input until the connection ends.
func readMessages(ctx context.Context, conn *websocket.Conn, stdin io.Writer, resize func(size)) error {
	for {
		kind, data, err := conn.Read(ctx)
		if err != nil {
			return err
		}
		if kind == websocket.MessageText {
			var to size
			if err := unmarshal(data, &to); err != nil {
				return err
			}
			resize(to)
			continue
		}
		// A command that reads no input makes the client wait.
		if _, err := stdin.Write(data); err != nil && !errors.Is(err, io.ErrClosedPipe) {
			return err
		}
	}
}

// pingUntil keeps proxies from closing an idle connection, and returns when the connection fails or ctx ends. It is what
// notices that the client has gone while a command reads no input, and nobody reads the connection.
func pingUntil(ctx context.Context, conn *websocket.Conn) error {
	tick := time.NewTicker(heartbeat)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
			wait, cancel := context.WithTimeout(ctx, heartbeat)
			err := conn.Ping(wait)
			cancel()
			// The answer is not read while a command reads no input: that it is late means nothing.
			if err != nil && !errors.Is(err, context.DeadlineExceeded) {
				return err
			}
		}
	}
}

func sendMessage(ctx context.Context, conn *websocket.Conn, kind websocket.MessageType, data []byte) error {
	ctx, cancel := context.WithTimeout(ctx, stallTimeout)
	defer cancel()
	return conn.Write(ctx, kind, data)
}

func sendEvent(ctx context.Context, conn *websocket.Conn, e execEvent) error {
	data, err := json.Marshal(e)
	if err != nil {
		return err
	}
	return sendMessage(ctx, conn, websocket.MessageText, data)
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }
