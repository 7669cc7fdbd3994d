package lifecycle

import (
	"context"
	"fmt"
	"sync"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest"
)

// fileServers are a handle's file servers in the sandbox, by user.
type fileServers struct {
	mu     sync.Mutex
	byUser map[string]fileServer
}

type fileServer struct {
	conn  *guest.Conn
	files *guest.Files
}

func (c *fileServers) get(user string, conn *guest.Conn) *guest.Files {
	c.mu.Lock()
	defer c.mu.Unlock()
	have := c.byUser[user]
	if have.files == nil || have.conn != conn {
		return nil
	}
	select {
	case <-have.files.Done():
		return nil
	default:
		return have.files
	}
}

func (c *fileServers) put(user string, conn *guest.Conn, files *guest.Files) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byUser == nil {
		c.byUser = map[string]fileServer{}
	}
	c.byUser[user] = fileServer{conn, files}
}

// FileServer returns the user's file server, and starts it if there is none. With resume a
// stopped sandbox is started; without, the error is ErrNoSession.
func (h *Handle) FileServer(ctx context.Context, user string, resume bool) (*guest.Files, error) {
	if err := h.CheckUsable(); err != nil {
		return nil, err
	}
	connect := h.ConnectRunning
	if resume {
		connect = h.Connect
	}
	conn, err := connect(ctx)
	if err != nil {
		return nil, err
	}
	if have := h.servers.get(user, conn); have != nil {
		return have, nil
	}
	got, err := h.share(ctx, fmt.Sprintf("files %p %s", conn, user), connectTimeout, func(ctx context.Context) (any, error) {
		if have := h.servers.get(user, conn); have != nil {
			return have, nil
		}
		files, err := conn.Files(ctx, user)
		if err != nil {
			return nil, err
		}
		h.servers.put(user, conn, files)
		return files, nil
	})
	if err != nil {
		return nil, err
	}
	return got.(*guest.Files), nil
}
