//go:build linux

package copytree

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/trees"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

// send writes the trees of the jobs to w, as receive takes them.
func send(spec *wire.Copy, w io.Writer) error {
	if err := chooseLayers(spec); err != nil {
		return fmt.Errorf("find layers: %w", err)
	}
	buffered := bufio.NewWriterSize(w, bufferSize)
	to := trees.New(context.Background(), buffered)
	for i, job := range spec.Jobs {
		err := syncFileSystem(job.Sync)
		switch {
		case err != nil:
		case job.Layer:
			err = to.SendLayer(i, job.From, job.Omit)
		default:
			err = to.Send(i, job.From)
		}
		if err != nil {
			return err
		}
	}
	if err := to.Close(); err != nil {
		return err
	}
	_, err := buffered.WriteString(wire.SendEnd)
	return errors.Join(err, buffered.Flush())
}
