package transfer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/trees"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
	"github.com/seed-1a2d6d8f/sandbox/internal/machine"
	"github.com/seed-1a2d6d8f/sandbox/internal/trace"
)

// Stream runs the jobs from the trees of k's engine to those of another one, through this program. No
// process of the sandbox may run. to is for the helper there.
func (k *Copier) Stream(ctx context.Context, to *Copier, jobs []Job) (err error) {
	ctx, span := trace.Start(ctx, trace.Copy)
	defer span.End(&err)
	send, receive := wire.Copy{Send: true}, wire.Copy{Stream: true}
	reader, writer := k.newSpec(), to.newSpec()
	source, target := newJobMounts(k.Helper, &reader, &send), newJobMounts(to.Helper, &writer, &receive)
	for i, t := range jobs {
		if t.From == (Tree{}) || t.To == (Tree{}) {
			return ErrNoLayer
		}
		read := wire.CopyJob{From: fillFrom(i), Layer: t.Layer, Omit: t.omit}
		source.from(i, t, &read)
		source.add(t, read)
		write := wire.CopyJob{To: fillTo(i), Layer: t.Layer, Again: t.Again}
		target.to(t, &write)
		target.add(t, write)
	}
	if err := errors.Join(source.finish(), target.finish()); err != nil {
		return err
	}
	k.undoSources(jobs)
	var last wire.Copied
	err = k.Helper.Read(ctx, reader, func(r io.Reader) error {
		return to.Helper.Run(ctx, writer, func(w io.Writer) error { return pass(w, r) }, func(line []byte) (bool, error) {
			last = wire.Copied{}
			if err := json.Unmarshal(line, &last); err != nil {
				return false, err
			}
			to.Helper.Report.Report(machine.Progress{Step: "copy", Current: last.Bytes, Files: last.Files})
			return last.Done, nil
		})
	})
	switch {
	case err != nil:
		return err
	case last.Error != nil && last.Error.NoLayer:
		return fmt.Errorf("%w: %w", ErrNoLayer, last.Error)
	case last.Error != nil:
		return fmt.Errorf("copy %s: %s: %w", jobs[last.Error.Job].What, path.Join("/", string(last.Error.Path)), last.Error)
	}
	reportCopied(to.Helper, to.name, "copy", reportOf(last, func(job int) string { return jobs[job].place() }))
	return k.checkSources(ctx)
}

// errCut is the error of a helper that has not sent everything.
var errCut = errors.New("the stream of files ended early")

// pass copies what a helper sends to the one that receives it.
func pass(w io.Writer, r io.Reader) error {
	buf, tail := make([]byte, 256<<10), []byte(nil)
	for {
		n, err := r.Read(buf)
		if n > 0 {
			if _, err := w.Write(buf[:n]); err != nil {
				return &trees.StreamError{Err: err}
			}
			tail = append(tail, buf[:n]...)
			tail = append([]byte(nil), tail[max(0, len(tail)-len(wire.SendEnd)):]...)
		}
		switch {
		case err == io.EOF && string(tail) == wire.SendEnd:
			return nil
		case err == io.EOF:
			return errCut
		case err != nil:
			return err
		}
	}
}
