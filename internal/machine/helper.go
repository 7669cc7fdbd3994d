package machine

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/bound"
	"github.com/seed-1a2d6d8f/sandbox/internal/claim"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/errdefs"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/trees"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/internal/store"
)

// A Helper runs our program in containers of the guest's image, on the engine's machine.
type Helper struct {
	Machine *Machine
	Nonce   string     // of the operation that it serves
	Undo    store.Undo // removes the containers
	Report  *Reporter
}

// NewHelper returns a helper for the operation with that nonce.
func (m *Machine) NewHelper(nonce string, report *Reporter) *Helper {
	return &Helper{Machine: m, Nonce: nonce, Report: report}
}

// query runs a helper that prints one line of JSON, and decodes it into answer, after the guest's
// volume was checked.
func (m *Machine) query(ctx context.Context, adjust func(*engine.ContainerSpec), answer any) error {
	if _, err := m.EnsureGuest(ctx, &Reporter{}); err != nil {
		return err
	}
	return m.ask(ctx, adjust, answer)
}

// ask is query for a helper that does without the guest's volume.
func (m *Machine) ask(ctx context.Context, adjust func(*engine.ContainerSpec), answer any) error {
	h := m.NewHelper(record.NewNonce(), &Reporter{})
	spec := h.Spec()
	image, err := m.guestImage(ctx)
	if err != nil {
		return err
	}
	spec.Image = image // which create places if it is missing
	adjust(&spec)
	defer h.claimIfLong(ctx)()
	for try := 1; ; try++ {
		err = h.Run(ctx, spec, nil, func(line []byte) (bool, error) { return true, json.Unmarshal(line, answer) })
		if try == maxAsks || !errors.Is(err, errLost) || ctx.Err() != nil {
			break
		}
		spec.Name = record.HelperName(record.NewNonce())
	}
	if err != nil {
		err = errors.Join(err, h.Undo.Run(ctx))
	}
	return err
}

// maxAsks is how often ask starts a helper whose answer is lost: the engine gives up what a container has
// written if it can't read it within 2 s after the container's end (handleContainerExit in moby's
// daemon/monitor.go), as on a machine that does much else.
const maxAsks = 3

// claimAfter is when a helper without another marker gets one of its own: well before sweeps
// remove it (see store.HelperLabels). To size terabytes of files takes longer.
var claimAfter = time.Minute

// claimIfLong claims the helper's containers if the helper takes long. The caller calls release
// when it has finished. Without the claim, which may fail, a sweep of another program removes
// them.
func (h *Helper) claimIfLong(ctx context.Context) (release func()) {
	ctx, cancel := context.WithCancel(ctx)
	var held sync.WaitGroup
	held.Go(func() {
		if bound.Sleep(ctx, claimAfter) != nil {
			return
		}
		name := record.HelperMarker(h.Nonce)
		mine, err := engine.RetryCall(ctx, func() (*claim.Claim, error) {
			return claim.Try(ctx, h.Machine.Engine, name, h.Nonce, store.Holder())
		})
		if err == nil {
			<-ctx.Done()
			mine.Stop()
		}
		// A claim that failed may have made the marker.
		own, end := bound.Outlive(ctx, store.CloseMargin)
		defer end()
		if err := engine.Retry(own, func() error { return claim.Drop(own, h.Machine.Engine, name, h.Nonce, "") }); err != nil {
			h.Machine.Log.Warn("a helper's marker is left for the next sweep", "marker", name, "error", err)
		}
	})
	return func() {
		cancel()
		held.Wait()
	}
}

// Limits of helpers, which read files that tenants made. A copy takes a few MiB and a thread for
// each CPU; the page cache counts, too, and gives way.
const (
	helperMemory = 1 << 30
	helperPids   = 1024
)

// Spec returns a container that runs the guest as root, without a network. Networking is
// disabled rather than of mode "none": then the engine writes no network state, which takes
// long and can lock it up. Of root's capabilities it has those that reading and writing files of
// any owner takes.
func (h *Helper) Spec() engine.ContainerSpec {
	return engine.ContainerSpec{
		Name: record.HelperName(record.NewNonce()), Image: h.Machine.knownGuest().image, Labels: h.Machine.Store.HelperLabels(h.Nonce),
		Entrypoint: []string{wire.Path}, User: "0:0", NetworkDisabled: true, ReadonlyRootfs: true,
		CapDrop: []string{"ALL"}, CapAdd: []string{"CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "SETFCAP"},
		Memory: helperMemory, MemorySwap: helperMemory, PidsLimit: helperPids,
	}
}

// create creates a helper's container, and the image if it was removed meanwhile.
func (h *Helper) create(ctx context.Context, spec engine.ContainerSpec) (string, error) {
	id, err := h.Machine.Store.CreateContainer(ctx, &h.Undo, spec, h.Nonce)
	var missing *engine.NoImageError
	if !errors.As(err, &missing) {
		return id, err
	}
	h.Machine.setGuest(Guest{})
	if _, err := h.Machine.EnsureGuest(ctx, h.Report); err != nil {
		return "", err
	}
	return h.Machine.Store.CreateContainer(ctx, &h.Undo, spec, h.Nonce)
}

// ErrHelperNotStarted is the error of a helper that could not be started at all.
var ErrHelperNotStarted = errors.New("helper not started")

// Run runs a helper and calls line with each line it prints, until line returns true. feed,
// which may be nil, writes its input; when feed fails, so does Run.
//
// Run does not wait for the helper's exit, because a container's exit waits for the engine's
// disk: the helper prints that it has finished, and the engine removes it when it exits.
func (h *Helper) Run(ctx context.Context, spec engine.ContainerSpec, feed func(io.Writer) error, line func([]byte) (bool, error)) error {
	return h.RunInteractive(ctx, spec, feed != nil, feed, func(text []byte, _ io.Writer) (bool, error) { return line(text) })
}

// RunInteractive is Run where line may also write to the helper, if that has an input.
func (h *Helper) RunInteractive(ctx context.Context, spec engine.ContainerSpec, input bool, feed func(io.Writer) error, line func([]byte, io.Writer) (bool, error)) error {
	return h.again(ctx, spec, func(spec engine.ContainerSpec) error { return h.runOnce(ctx, spec, input, feed, line) })
}

// Read runs a helper and calls read with what it prints, which need not be lines.
func (h *Helper) Read(ctx context.Context, spec engine.ContainerSpec, read func(io.Reader) error) error {
	return h.again(ctx, spec, func(spec engine.ContainerSpec) error {
		id, out, err := h.attach(ctx, spec, false)
		if err != nil {
			return notStarted(ctx, err)
		}
		defer out.Close()
		defer context.AfterFunc(ctx, func() { out.Close() })()
		if err := ifRemoved(h.Machine.Engine.StartContainer(ctx, id)); err != nil {
			return notStarted(ctx, err)
		}
		err = read(out)
		if said := strings.TrimSpace(out.Stderr()); err != nil && said != "" && ctx.Err() == nil {
			err = fmt.Errorf("%w: the helper said: %s", err, said)
		}
		return err
	})
}

// again runs a helper, again as long as it could not be started because its container was removed or
// the engine was busy.
func (h *Helper) again(ctx context.Context, spec engine.ContainerSpec, run func(engine.ContainerSpec) error) error {
	began, removals := time.Now(), 0
	for {
		err := run(spec)
		switch {
		case errors.Is(err, errRemoved) && removals < 3 && ctx.Err() == nil:
			removals++
		case errors.Is(err, engine.ErrBusy) && time.Since(began) <= busyTimeout:
		default:
			return err
		}
		// The container was not started, and the engine may have removed it.
		e := engine.Retry(ctx, func() error { return h.Machine.Store.RemoveContainer(ctx, spec.Name, h.Nonce) })
		if e = errors.Join(e, bound.Sleep(ctx, store.PollEvery)); e != nil {
			return errors.Join(e, err)
		}
		spec.Name = record.HelperName(record.NewNonce())
	}
}

// runOnce is one try of RunInteractive.
func (h *Helper) runOnce(ctx context.Context, spec engine.ContainerSpec, input bool, feed func(io.Writer) error, line func([]byte, io.Writer) (bool, error)) error {
	id, out, err := h.attach(ctx, spec, input)
	if err != nil {
		return notStarted(ctx, err)
	}
	defer out.Close()
	defer context.AfterFunc(ctx, func() { out.Close() })()
	start := closeOnError(out, func() error { return ifRemoved(h.Machine.Engine.StartContainer(ctx, id)) })
	if feed == nil {
		// The helper may print its line some milliseconds before the start call returns.
		err := h.readLines(ctx, id, out, line)
		if e := <-start; e != nil {
			return notStarted(ctx, e)
		}
		return err
	}
	if err := <-start; err != nil {
		return notStarted(ctx, err)
	}
	fed := closeOnError(out, func() error { return feed(out) })
	err = h.readLines(ctx, id, out, line)
	out.Close()
	// A broken stream is the end of the helper or the connection, which readLines reports.
	var stream *trees.StreamError
	if e := <-fed; e != nil && !errors.As(e, &stream) && ctx.Err() == nil {
		err = e
	}
	return err
}

// attach creates a helper's container and attaches to it.
func (h *Helper) attach(ctx context.Context, spec engine.ContainerSpec, input bool) (id string, out *engine.Output, err error) {
	spec.AutoRemove, spec.OpenStdin = true, input
	may := engine.Trusted{Unmounts: slices.ContainsFunc(spec.Mounts, func(m engine.Mount) bool { return m.Target == LayersDir })}
	switch {
	case strings.HasPrefix(spec.NetworkMode, "container:"): // a sandbox's, for its PID 1
		may.Sockets = engine.LocalSockets
	case !spec.NetworkDisabled, slices.Contains(spec.CapAdd, "NET_ADMIN"):
		may.Sockets = engine.AllSockets
	}
	seccomp, err := h.Machine.Engine.TrustedSeccomp(ctx, may)
	if err != nil {
		return "", nil, err
	}
	spec.SecurityOpt = slices.DeleteFunc([]string{"label=disable", "no-new-privileges", seccomp}, func(s string) bool { return s == "" })
	if id, err = h.create(ctx, spec); err == nil {
		out, err = h.Machine.Engine.Attach(ctx, id, input)
		err = ifRemoved(err)
	}
	return id, out, err
}

// errRemoved is the error of a helper whose container was removed before it was started: to a
// sweep, one that waits for long is the leftover of a program that was killed.
var errRemoved = errors.New("the helper's container was removed before it started")

// ifRemoved returns the error of a call for a container that exists unless somebody removed it.
func ifRemoved(err error) error {
	if errors.Is(err, engine.ErrNotFound) {
		return fmt.Errorf("%w: %w", errRemoved, err)
	}
	return err
}

// notStarted classifies the error of a helper that did not start. What the engine finds wrong with it, such
// as a namespace or a layer that has gone meanwhile, is no argument of a caller.
func notStarted(ctx context.Context, err error) error {
	if ctx.Err() != nil || errors.Is(err, engine.ErrUnavailable) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrHelperNotStarted, engine.OwnMistake(err))
}

// closeOnError runs fn in the background and closes out if it fails, which ends readLines.
func closeOnError(out *engine.Output, fn func() error) <-chan error {
	result := make(chan error, 1)
	go func() {
		err := fn()
		if err != nil {
			out.Close()
		}
		result <- err
	}()
	return result
}

// readLines calls line with each line that a helper prints, until line returns true.
func (h *Helper) readLines(ctx context.Context, id string, out *engine.Output, line func([]byte, io.Writer) (bool, error)) error {
	lines := bufio.NewReader(out)
	for {
		text, err := lines.ReadBytes('\n')
		switch {
		case err == nil:
			if done, err := line(text, out); done || err != nil {
				return err
			}
		case ctx.Err() != nil:
			return errdefs.Cancelled(ctx)
		case !errors.Is(err, io.EOF):
			return err
		default:
			return h.exitError(ctx, id, strings.TrimSpace(out.Stderr()))
		}
	}
}

// errLost is the error of a helper whose output ended, and nobody knows why.
var errLost = errors.New("the connection to a helper was lost")

// exitError returns why a helper's output ended before it had finished.
func (h *Helper) exitError(ctx context.Context, id, stderr string) error {
	got, err := h.Machine.Engine.InspectContainer(ctx, id)
	failed := got.ExitCode != 0 || got.Error != "" || stderr != "" // else it has printed all
	switch {
	case err == nil && got.State == engine.StateExited && failed:
		return fmt.Errorf("the helper ended early: %s %s", got.Ended(), stderr)
	case stderr != "":
		return fmt.Errorf("the helper ended early: %s", stderr)
	case err == nil || errors.Is(err, engine.ErrNotFound):
		return errdefs.Classify(errdefs.EngineUnavailable, errLost)
	}
	return err
}
