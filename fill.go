package sandbox

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/trees"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
)

// A fill copies a directory of this machine into a new volume of ours.
type fill struct {
	dir, volume string
	role        string // of the volume; empty is a copy's
	owner       string // who gets everything, as user[:group]; empty keeps the owners
}

// Where a helper has them.
func fillFrom(i int) string { return "/copy/from/" + strconv.Itoa(i) }
func fillTo(i int) string   { return "/copy/to/" + strconv.Itoa(i) }

// filler fills the volumes of one build. Its helpers carry the build's nonce.
type filler struct {
	helper
	rec   record.Sandbox
	image string       // the sandbox's
	guest engine.Mount // in which it has our program
	user  string       // the sandbox's
	step  string       // of the progress it reports
}

// run fills every volume. What the engine can see as we do it copies itself; the rest
// goes through this process. Both ways give the same.
func (f *filler) run(ctx context.Context, fills []fill) error {
	if len(fills) == 0 {
		return nil
	}
	ids, how := f.choose(fills)
	if how == beside {
		var err error
		if fills, err = f.beside(ctx, fills, ids); err != nil || len(fills) == 0 {
			return err
		}
	}
	return f.stream(ctx, fills)
}

type way int

const (
	through way = iota // this process
	beside             // the engine, from the directory itself
)

// choose decides how the volumes are filled. The engine may be on another machine, in a
// virtual one, or see other files under the same path than this process does. So unless
// we know better already its helper is told which directories they have to be, and
// copies no other.
func (f *filler) choose(fills []fill) ([]wire.Identity, way) {
	if f.c.isApart() {
		return nil, through
	}
	ids := make([]wire.Identity, len(fills))
	for i, fill := range fills {
		id, err := identify(fill.dir)
		if err != nil {
			return nil, through // which says what is wrong with it
		}
		ids[i] = id
	}
	return ids, beside
}

func (c *Client) isApart() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.apart
}

func (c *Client) setApart() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.apart = true
}

// spec is a helper that has the volumes to fill.
func (f *filler) spec(fills []fill) engine.ContainerSpec {
	spec := f.helper.spec()
	spec.Labels[record.ID], spec.Labels[record.Name] = f.rec.ID, f.rec.Name
	for i, fill := range fills {
		spec.Mounts = append(spec.Mounts, engine.Mount{Type: "volume", Source: fill.volume, Target: fillTo(i), NoCopy: true,
			VolumeLabels: f.rec.VolumeLabels(cmp.Or(fill.role, record.RoleRWCopy))})
		if fill.owner != "" && fill.owner != "0:0" {
			// The image knows its users.
			spec.Image = f.image
			spec.Mounts = append(spec.Mounts, f.guest)
		}
	}
	return spec
}

// beside has the engine copy from the directories themselves, and returns what has to go
// the other way.
func (f *filler) beside(ctx context.Context, fills []fill, ids []wire.Identity) (rest []fill, err error) {
	spec := f.spec(fills)
	var told wire.Copy
	for i, fill := range fills {
		spec.Mounts = append(spec.Mounts, engine.Mount{Type: "bind", Source: fill.dir, Target: fillFrom(i), ReadOnly: true})
		told.Jobs = append(told.Jobs, wire.CopyJob{From: fillFrom(i), To: fillTo(i), Is: &ids[i], Owner: fill.owner})
	}
	last, err := f.copy(ctx, spec, told, nil)
	if errors.Is(err, errNoHelper) {
		// There is no such directory, or this engine shows none to a container.
		f.c.log.Debug("the engine does not copy itself", "sandbox", f.rec.Name, "error", err)
		return fills, f.undo.run(ctx) // of a helper that was made and can't be started
	}
	if err != nil {
		return nil, err
	}
	if last.Error != nil {
		return nil, copyFailed(fills, last.Error)
	}
	f.skipped(last)
	if last.Boot != ids[0].Boot {
		f.c.setApart()
	}
	for _, i := range last.Elsewhere {
		rest = append(rest, fills[i])
	}
	return rest, nil
}

// stream has a helper make the trees of what this process reads.
func (f *filler) stream(ctx context.Context, fills []fill) error {
	return f.send(ctx, fills, func(to *trees.Writer) error {
		for i, fill := range fills {
			if err := to.Send(i, fill.dir); err != nil {
				return err
			}
		}
		return nil
	})
}

// send has a helper make the trees of what is written to it.
func (f *filler) send(ctx context.Context, fills []fill, write func(*trees.Writer) error) error {
	told := wire.Copy{Stream: true}
	for i, fill := range fills {
		told.Jobs = append(told.Jobs, wire.CopyJob{To: fillTo(i), Owner: fill.owner})
	}
	var to *trees.Writer
	last, err := f.copy(ctx, f.spec(fills), told, func(w io.Writer) error {
		buffered := bufio.NewWriterSize(w, 256<<10)
		to = trees.New(ctx, buffered)
		if err := write(to); err != nil {
			return err
		}
		if err := to.Close(); err != nil {
			return err
		}
		if err := buffered.Flush(); err != nil {
			return &trees.StreamError{Err: err}
		}
		return nil
	})
	if err != nil {
		return err
	}
	if last.Error != nil {
		return copyFailed(fills, last.Error)
	}
	last.Skipped = to.Skipped
	for _, name := range to.Names {
		last.Names = append(last.Names, []byte(name))
	}
	f.skipped(last)
	return nil
}

// copy runs a helper that copies, and returns the last thing it says.
func (f *filler) copy(ctx context.Context, spec engine.ContainerSpec, told wire.Copy, feed func(io.Writer) error) (last wire.Copied, err error) {
	arg, err := json.Marshal(told)
	if err != nil {
		return last, err
	}
	spec.Entrypoint = append(spec.Entrypoint, wire.VerbCopy, string(arg))
	err = f.follow(ctx, spec, feed, func(line []byte) (bool, error) {
		last = wire.Copied{}
		if err := json.Unmarshal(line, &last); err != nil {
			return false, err
		}
		f.report.report(Progress{Step: f.step, Current: last.Bytes, Files: last.Files})
		return last.Done, nil
	})
	if err == nil && last.Error != nil && ctx.Err() != nil {
		err = cancelled(ctx) // which is why its input broke off
	}
	return last, err
}

func copyFailed(fills []fill, e *wire.CopyError) error {
	file := filepath.Join(fills[e.Job].dir, filepath.FromSlash(string(e.Path)))
	return &fs.PathError{Op: "copy", Path: file, Err: e}
}

// skipped tells of what a copy left out.
func (f *filler) skipped(last wire.Copied) {
	text := skippedText(last)
	if text == "" {
		return
	}
	f.c.log.Warn("not everything was copied", "sandbox", f.rec.Name, "what", text)
	f.report.report(Progress{Step: f.step, Text: text, Current: last.Bytes, Files: last.Files})
}

// skippedText says what a copy left out, if anything.
func skippedText(last wire.Copied) string {
	var parts []string
	if last.Skipped > 0 {
		names := make([]string, len(last.Names))
		for i, n := range last.Names {
			names[i] = strconv.Quote(string(n))
		}
		if int64(len(names)) < last.Skipped {
			names = append(names, "…")
		}
		parts = append(parts, fmt.Sprintf("skipped %d sockets and devices: %s", last.Skipped, strings.Join(names, ", ")))
	}
	if last.Xattrs > 0 {
		parts = append(parts, fmt.Sprintf("%d extended attributes were not taken", last.Xattrs))
	}
	return strings.Join(parts, "; ")
}
