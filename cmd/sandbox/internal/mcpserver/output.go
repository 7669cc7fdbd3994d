package mcpserver

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

const (
	// outputInterval is the least time between two progress messages with a command's output.
	outputInterval = 250 * time.Millisecond
	// outputText is the most output in one progress message.
	outputText = 4 << 10
)

// progressInterval is the time between two progress messages of a call, whatever it does. Tests change it.
var progressInterval = 10 * time.Second

// progressKey is the key of a call's *progress in its context.
type progressKey struct{}

// progress sends the progress messages of one call.
type progress struct {
	session *mcp.ServerSession
	token   any
	began   time.Time
	max     int // bytes of output in all messages

	mu      sync.Mutex
	sent    int
	pending []byte
	last    time.Time
}

// progress is middleware: calls of tools send progress messages, if the agent asked for them.
func (s *Server) progress(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		call, ok := req.(*mcp.CallToolRequest)
		if !ok || call.Params.GetProgressToken() == nil {
			return next(ctx, method, req)
		}
		p := &progress{session: call.Session, token: call.Params.GetProgressToken(), began: time.Now(), max: s.limits.Output}
		ctx, cancel := context.WithCancel(context.WithValue(ctx, progressKey{}, p))
		var ticks sync.WaitGroup
		defer ticks.Wait()
		defer cancel()
		ticks.Go(func() {
			t := time.NewTicker(progressInterval)
			defer t.Stop()
			for {
				select {
				case <-ctx.Done():
					return
				case <-t.C:
					p.send(ctx, "")
				}
			}
		})
		return next(ctx, method, req)
	}
}

// send sends a message. An agent that does not read it is noticed by the result, which it does not read either.
func (p *progress) send(ctx context.Context, text string) {
	_ = p.session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: p.token, Progress: time.Since(p.began).Seconds(), Message: text})
}

// report sends a command's output as progress messages: a few a second, and all of them together no
// more than a result's text.
func report(ctx context.Context, output []byte) {
	p, ok := ctx.Value(progressKey{}).(*progress)
	if !ok {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if free := outputText - len(p.pending); free > 0 {
		p.pending = append(p.pending, output[:min(free, len(output))]...)
	}
	if time.Since(p.last) < outputInterval || p.sent+len(p.pending) > p.max {
		return
	}
	p.send(ctx, strings.ToValidUTF8(string(p.pending), "\uFFFD"))
	p.last, p.sent, p.pending = time.Now(), p.sent+len(p.pending), p.pending[:0]
}
