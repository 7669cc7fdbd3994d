package engine

import (
	"context"
	"io"
	"strconv"
	"time"

	"github.com/docker/docker/api/types/container"
)

// LogSpec says what part of a container's log to read.
type LogSpec struct {
	Tail           int  // last lines; zero means all, negative none but new ones
	Follow         bool // go on until the container stops
	Stdout, Stderr bool // neither means both
	Timestamps     bool // RFC 3339 with nanoseconds before each line
	Since          time.Time
}

// Logs streams what the container's main process wrote, in the engine's
// frames of stdout and stderr (see [Demux]), raw where the container has a
// TTY. ctx bounds the stream; the caller closes it.
func (e *Engine) Logs(ctx context.Context, id string, s LogSpec) (io.ReadCloser, error) {
	if err := checkName("container", id); err != nil {
		return nil, err
	}
	both := !s.Stdout && !s.Stderr
	o := container.LogsOptions{
		ShowStdout: s.Stdout || both, ShowStderr: s.Stderr || both,
		Timestamps: s.Timestamps, Follow: s.Follow, Tail: "all",
	}
	switch {
	case s.Tail > 0:
		o.Tail = strconv.Itoa(s.Tail)
	case s.Tail < 0:
		o.Tail = "0"
	}
	if !s.Since.IsZero() {
		o.Since = s.Since.UTC().Format(time.RFC3339Nano)
	}
	rc, err := e.cli.ContainerLogs(ctx, id, o)
	if err != nil {
		return nil, e.fail(ctx, err)
	}
	return &reply{ctx: ctx, e: e, rc: rc}, nil
}
