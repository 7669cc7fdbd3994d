package mcpserver

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// A call that takes long says that it goes on, if the agent asked for it, until it ends.
func TestLongCallsSendProgress(t *testing.T) {
	if progressInterval != 10*time.Second {
		t.Errorf("the interval is %v, want 10 s", progressInterval)
	}
	defer func(was time.Duration) { progressInterval = was }(progressInterval)
	progressInterval = time.Millisecond
	server := mcp.NewServer(&mcp.Implementation{Name: "test", Version: "1"}, nil)
	enough := make(chan struct{})
	add(server, "wait", "Wait", "Wait.", readOnly, noSchema, func(ctx context.Context, _ None) (None, error) {
		select {
		case <-enough:
			return None{}, nil
		case <-ctx.Done():
			return None{}, ctx.Err()
		}
	})
	server.AddReceivingMiddleware((&Server{}).progress)
	here, there := mcp.NewInMemoryTransports()
	served, err := server.Connect(t.Context(), there, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer served.Wait()
	var mu sync.Mutex // more may come after the call
	var got []float64
	client := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, &mcp.ClientOptions{
		ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) {
			mu.Lock()
			defer mu.Unlock()
			if got = append(got, r.Params.Progress); len(got) == 3 {
				close(enough)
			}
		},
	})
	session, err := client.Connect(t.Context(), here, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	params := &mcp.CallToolParams{Name: "wait"}
	params.SetProgressToken("token")
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	if result, err := session.CallTool(ctx, params); err != nil || result.IsError {
		t.Fatalf("the call: %v, %v", result, err)
	}
	mu.Lock()
	defer mu.Unlock()
	for i := 1; i < 3; i++ {
		if got[i] <= got[i-1] {
			t.Errorf("progress %v does not increase", got)
		}
	}
}
