package sandbox

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/trees"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
)

// A helper is a container of the guest's own image that does something for us on the
// engine's machine.
type helper struct {
	c      *Client
	eng    *engine.Engine
	nonce  string // of the operation that it is for
	undo   undo
	report *reporter
}

// spec is a helper that runs the guest, read-only files apart from what is mounted. It has
// no network, and none that the engine would have to write down: that takes longest with
// the mode "none", and is what an engine can lock up over.
func (h *helper) spec() engine.ContainerSpec {
	return engine.ContainerSpec{
		Name: record.HelperName(record.NewNonce()), Image: h.c.knownGuest().image, Labels: helperLabels(h.eng, h.nonce),
		Entrypoint: []string{wire.Path}, User: "0:0", NetworkDisabled: true,
	}
}

// create creates a helper, and first the image it needs when somebody removed that.
func (h *helper) create(ctx context.Context, spec engine.ContainerSpec) (string, error) {
	id, err := createContainer(ctx, h.eng, &h.undo, spec, h.nonce)
	var missing *engine.NoImageError
	if !errors.As(err, &missing) {
		return id, err
	}
	h.c.setGuest(guestVolume{})
	if _, err := h.c.ensureGuest(ctx, h.eng, h.report); err != nil {
		return "", err
	}
	return createContainer(ctx, h.eng, &h.undo, spec, h.nonce)
}

// errNoHelper says that a helper could not be begun at all.
var errNoHelper = errors.New("no helper")

// follow runs a helper and hands the lines that it says to line, until that returns true.
// Nobody waits for the helper's exit, because every container's exit waits for the
// engine's disk: it says when it has finished, and goes by itself. What feed writes, which
// may be nil, is the helper's input; when it fails so does the helper.
func (h *helper) follow(ctx context.Context, spec engine.ContainerSpec, feed func(io.Writer) error, line func([]byte) (bool, error)) error {
	return h.converse(ctx, spec, feed != nil, feed, func(text []byte, _ io.Writer) (bool, error) { return line(text) })
}

// converse is follow with a helper that line may answer, when it has an input.
func (h *helper) converse(ctx context.Context, spec engine.ContainerSpec, input bool, feed func(io.Writer) error, line func([]byte, io.Writer) (bool, error)) error {
	for began := time.Now(); ; {
		err := h.once(ctx, spec, input, feed, line)
		if !errors.Is(err, engine.ErrBusy) || time.Since(began) > busyTime {
			return err
		}
		// It was not started, and the engine may have removed it.
		e := engine.Insist(ctx, func() error { return removeContainer(ctx, h.eng, spec.Name, h.nonce) })
		if e = errors.Join(e, pause(ctx, stillThere)); e != nil {
			return errors.Join(e, err)
		}
		spec.Name = record.HelperName(record.NewNonce())
	}
}

// once is one try of converse.
func (h *helper) once(ctx context.Context, spec engine.ContainerSpec, input bool, feed func(io.Writer) error, line func([]byte, io.Writer) (bool, error)) (err error) {
	refused := func(err error) error {
		if ctx.Err() != nil || errors.Is(err, engine.ErrUnavailable) {
			return err
		}
		return fmt.Errorf("%w: %w", errNoHelper, err)
	}
	spec.AutoRemove, spec.OpenStdin = true, input
	seccomp, err := h.eng.TrustedSeccomp(ctx)
	if err != nil {
		return refused(err)
	}
	spec.SecurityOpt = slices.DeleteFunc([]string{"label=disable", seccomp}, func(s string) bool { return s == "" })
	id, err := h.create(ctx, spec)
	if err != nil {
		return refused(err)
	}
	out, err := h.eng.Attach(ctx, id, input)
	if err != nil {
		return refused(err)
	}
	defer out.Close()
	defer context.AfterFunc(ctx, func() { out.Close() })()
	// The engine takes some milliseconds more to say that a helper runs than that takes
	// to say something.
	started := make(chan error, 1)
	go func() {
		err := h.eng.StartContainer(ctx, id)
		if err != nil {
			out.Close()
		}
		started <- err
	}()
	if feed == nil {
		err := h.listen(ctx, id, out, line)
		if e := <-started; e != nil {
			return refused(e)
		}
		return err
	}
	if err := <-started; err != nil {
		return refused(err)
	}
	fed := make(chan error, 1)
	go func() {
		err := feed(out)
		if err != nil {
			out.Close()
		}
		fed <- err
	}()
	defer func() {
		out.Close()
		// A stream that breaks is the helper's or the connection's end, of which we have
		// heard already.
		var stream *trees.StreamError
		if e := <-fed; e != nil && !errors.As(e, &stream) && ctx.Err() == nil {
			err = e
		}
	}()
	return h.listen(ctx, id, out, line)
}

// listen hands the lines that a helper says to line, until that returns true.
func (h *helper) listen(ctx context.Context, id string, out *engine.Output, line func([]byte, io.Writer) (bool, error)) error {
	lines := bufio.NewReader(out)
	for {
		text, err := lines.ReadBytes('\n')
		switch {
		case err == nil:
			if done, err := line(text, out); done || err != nil {
				return err
			}
		case ctx.Err() != nil:
			return cancelled(ctx)
		case !errors.Is(err, io.EOF):
			return err
		default:
			return h.broken(ctx, id, strings.TrimSpace(out.Stderr()))
		}
	}
}

// broken says why a helper's output ended before it had finished.
func (h *helper) broken(ctx context.Context, id, stderr string) error {
	got, err := h.eng.InspectContainer(ctx, id)
	switch {
	case err == nil && got.State == engine.StateExited:
		return fmt.Errorf("the helper ended early: %s %s", ended(got), stderr)
	case stderr != "":
		return fmt.Errorf("the helper ended early: %s", stderr)
	case err == nil || errors.Is(err, engine.ErrNotFound):
		return classify(ErrEngineUnavailable, errors.New("the connection to a helper was lost"))
	}
	return err
}
