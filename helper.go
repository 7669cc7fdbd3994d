package sandbox

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest"
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

// spec is a helper that runs the guest, read-only files apart from what is mounted.
func (h *helper) spec() engine.ContainerSpec {
	return engine.ContainerSpec{
		Name: record.HelperName(record.NewNonce()), Image: h.c.knownGuest().image, Labels: helperLabels(h.eng, h.nonce),
		Entrypoint: []string{wire.Path}, User: "0:0", NetworkMode: "none",
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
func (h *helper) follow(ctx context.Context, spec engine.ContainerSpec, feed func(io.Writer) error, line func([]byte) (bool, error)) (err error) {
	refused := func(err error) error {
		if ctx.Err() != nil || errors.Is(err, engine.ErrUnavailable) {
			return err
		}
		return fmt.Errorf("%w: %w", errNoHelper, err)
	}
	spec.AutoRemove, spec.OpenStdin = true, feed != nil
	// The engine's own network is joined a tenth of a second sooner than none is made,
	// and our program has no use for either.
	spec.NetworkMode = "host"
	spec.SecurityOpt = append(spec.SecurityOpt, "label=disable")
	id, err := h.create(ctx, spec)
	if err != nil {
		return refused(err)
	}
	out, err := h.eng.Attach(ctx, id, feed != nil)
	if err != nil {
		return refused(err)
	}
	defer out.Close()
	defer context.AfterFunc(ctx, func() { out.Close() })()
	if err := h.eng.StartContainer(ctx, id); err != nil {
		return refused(err)
	}
	if feed != nil {
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
			// A stream that breaks is the helper's or the connection's end, of which we
			// have heard already.
			var stream *guest.StreamError
			if e := <-fed; e != nil && !errors.As(e, &stream) && ctx.Err() == nil {
				err = e
			}
		}()
	}
	lines := bufio.NewReader(out)
	for {
		text, err := lines.ReadBytes('\n')
		switch {
		case err == nil:
			if done, err := line(text); done || err != nil {
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
