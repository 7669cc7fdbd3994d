package claim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/bound"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
)

// Lease is how long a pending marker is valid without renewal. Its holder renews it three
// times as often: a dead holder is detected within this time, while a pull or an OnCreate
// may take any time.
const Lease = 30 * time.Second

// Volumes is the part of the engine that this package uses.
type Volumes interface {
	CreateVolume(ctx context.Context, name string, labels map[string]string) (engine.Volume, error)
	InspectVolume(ctx context.Context, name string) (engine.Volume, error)
	ListVolumes(ctx context.Context, labels ...string) ([]engine.Volume, error)
	RemoveVolume(ctx context.Context, name string, force bool) error
	// Now returns the time of the engine's clock, by which all machines judge leases.
	Now() time.Time
}

// TakenError reports that another process has the marker.
type TakenError struct{ Marker record.Marker }

func (e *TakenError) Error() string {
	verb := "made"
	switch {
	case e.Marker.Moves():
		verb = "moved"
	case e.Marker.Of != "":
		verb = "changed"
	case e.Marker.Deletes:
		verb = "deleted"
	}
	return fmt.Sprintf("%q is being %s by %s", e.Marker.Name, verb, cmp.Or(e.Marker.Holder, "another process"))
}

// A Claim is a held marker. Its lease is renewed until Commit or Drop.
type Claim struct {
	v    Volumes
	m    record.Marker
	made time.Time // by this process's clock
	stop context.CancelFunc
	done sync.WaitGroup
	held context.Context // ends when the lease was not renewed in time
	lose context.CancelFunc

	mu    sync.Mutex
	valid time.Time // when the lease was last known to be ours

	renewed  atomic.Bool // there may be renewals
	dropping bool        // Drop has been called
}

// Try makes the marker for name, or fails with a *TakenError when another process has it
// or a *ForeignError when a foreign object has its name. holder is for people to read.
// After any other error the marker may exist: Drop it by its nonce.
func Try(ctx context.Context, v Volumes, name, nonce, holder string) (*Claim, error) {
	return claim(ctx, v, record.Marker{Name: name, Nonce: nonce, Holder: holder})
}

// TryDelete is Try for the deletion by of the sandbox r with its volumes: when the holder
// dies, what has the nonce of r is removed. It takes over from a creator of r.
func TryDelete(ctx context.Context, v Volumes, r record.Sandbox, by, holder string) (*Claim, error) {
	return claim(ctx, v, record.Marker{Name: r.Name, Nonce: r.Nonce, Holder: holder, Deletes: true, By: by})
}

// TryChange is Try for a change of the sandbox r, which is kept when the holder dies.
func TryChange(ctx context.Context, v Volumes, r record.Sandbox, nonce, holder string) (*Claim, error) {
	return claim(ctx, v, record.Marker{Name: r.Name, Nonce: nonce, Holder: holder, Of: r.Nonce})
}

// TryMoveAway is TryChange for a move of the sandbox r from node, the engine's own, to another one.
func TryMoveAway(ctx context.Context, v Volumes, r record.Sandbox, nonce, node, holder string) (*Claim, error) {
	return claim(ctx, v, record.Marker{Name: r.Name, Nonce: nonce, Holder: holder, Of: r.Nonce, From: r.Nonce, Node: node})
}

// TryMoveHere is Try for a sandbox that has another nonce, from, on the node that it is moved from.
func TryMoveHere(ctx context.Context, v Volumes, name, nonce, from, node, holder string) (*Claim, error) {
	return claim(ctx, v, record.Marker{Name: name, Nonce: nonce, Holder: holder, From: from, Node: node})
}

func claim(ctx context.Context, v Volumes, m record.Marker) (*Claim, error) {
	now, began := v.Now(), time.Now()
	made := began
	m.Until = now.Add(Lease)
	name, nonce := m.Name, m.Nonce
	labels := m.Labels(record.RolePending, now)
	got, err := v.CreateVolume(ctx, record.MarkerName(name), labels)
	if err != nil && !errors.Is(err, engine.ErrUnavailable) && ctx.Err() == nil {
		// An engine may refuse to make a volume that another call makes, and not return that one.
		if there, e := v.InspectVolume(ctx, record.MarkerName(name)); e == nil {
			got, err = there, nil
		}
	}
	if err != nil {
		return nil, err
	}
	if got.Labels[record.Until] != labels[record.Until] {
		made = time.Time{} // an earlier marker with this nonce
	}
	if !record.Is(got.Labels, record.RolePending) {
		return nil, &record.ForeignError{Kind: "volume", Object: got.Name}
	}
	if got.Labels[record.Nonce] != nonce || got.Labels[record.Deletes] == "true" && got.Labels[record.By] != m.By {
		return nil, &TakenError{record.DecodeMarker(got.Labels)}
	}
	m.By = got.Labels[record.By] // none, if a deletion takes over from a creator
	c := &Claim{v: v, m: m, made: made, valid: began}
	c.held, c.lose = context.WithCancel(context.WithoutCancel(ctx))
	ctx, c.stop = context.WithCancel(context.WithoutCancel(ctx))
	c.done.Go(func() { c.renew(ctx) })
	return c, nil
}

// renew renews the lease, three times as often as it ends, until ctx ends or the lease is lost.
func (c *Claim) renew(ctx context.Context) {
	tick := time.NewTicker(Lease / 3)
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if c.lapsed() {
			c.lose()
			return
		}
		// A failed renewal is retried at the next tick, well before the lease ends.
		c.renewOnce(ctx, record.RenewalNames(c.m.Name, c.m.Nonce)[n%2])
	}
}

// renewOnce makes a new renewal in the place of the last but one.
func (c *Claim) renewOnce(ctx context.Context, name string) {
	ctx, cancel := context.WithTimeout(ctx, Lease/3)
	defer cancel()
	now, began := c.v.Now(), time.Now()
	m := c.m
	m.Until = now.Add(Lease)
	c.renewed.Store(true)
	_ = remove(ctx, c.v, name) // what is still there is returned by the creation
	labels := m.Labels(record.RolePending, now)
	got, err := c.v.CreateVolume(ctx, name, labels)
	if err != nil || got.Labels[record.Until] != labels[record.Until] {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.valid = began
}

// lapsed reports whether the lease may end before anything else is done under it. It goes by
// two clocks of this machine: one does not advance while the machine sleeps, and the other
// can be set.
func (c *Claim) lapsed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	return max(now.Sub(c.valid), now.Round(0).Sub(c.valid.Round(0))) > Lease-5*time.Second
}

// ErrLost is the error of a claim that was not renewed in time: another process may have taken
// over, and be removing what was made under it.
var ErrLost = errors.New("lost the claim on the name: it was not renewed in time")

// Bind returns a context that also ends when the claim is lost, with the cause ErrLost. The
// caller calls release.
func (c *Claim) Bind(ctx context.Context) (_ context.Context, release func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(c.held, func() { cancel(ErrLost) })
	return ctx, func() {
		stop()
		cancel(nil)
	}
}

// Commit removes the marker: from here on the sandbox exists for everyone. It fails if the
// lease was not renewed in time: then another process may be removing the sandbox.
func (c *Claim) Commit(ctx context.Context) error {
	c.Stop()
	if c.lapsed() {
		return ErrLost
	}
	marker := record.MarkerName(c.m.Name)
	// A marker whose first lease has not run out is certainly ours.
	fresh := c.fresh()
	if !fresh {
		got, err := c.v.InspectVolume(ctx, marker)
		switch {
		case errors.Is(err, engine.ErrNotFound):
			return ErrLost
		case err != nil:
			return err
		case got.Labels[record.Nonce] != c.m.Nonce || got.Labels[record.By] != c.m.By:
			return &TakenError{record.DecodeMarker(got.Labels)}
		}
	}
	err := c.v.RemoveVolume(ctx, marker, false)
	switch {
	case errors.Is(err, engine.ErrNotFound) && fresh:
		return ErrLost // somebody removed it by hand
	case err != nil && !errors.Is(err, engine.ErrNotFound):
		// The engine may have removed it and the reply been lost.
		check, cancel := bound.Outlive(ctx, 10*time.Second)
		defer cancel()
		if _, e := c.v.InspectVolume(check, marker); !errors.Is(e, engine.ErrNotFound) {
			return err
		}
	}
	if c.lapsed() {
		return ErrLost // the marker may have been removed after another process had begun to clean up
	}
	return nil
}

// Drop removes the marker without a Commit. After an error it may be called again.
func (c *Claim) Drop(ctx context.Context) error {
	c.Stop()
	// After a lost reply the name may be another's already.
	if c.dropping || !c.fresh() {
		return Drop(ctx, c.v, c.m.Name, c.m.Nonce, c.m.By)
	}
	c.dropping = true
	return remove(ctx, c.v, record.MarkerName(c.m.Name))
}

// fresh reports whether the marker was made so short a time ago that no renewal was due and no
// other process could take it over, by the clock of this process and by the engine's.
func (c *Claim) fresh() bool {
	return time.Since(c.made) < Lease/3 && c.v.Now().Before(c.m.Until.Add(Lease/3-Lease))
}

// Stop ends the renewals and waits for them. It may be called more than once.
func (c *Claim) Stop() {
	c.stop()
	c.done.Wait()
}

// DropRenewals removes the renewals that Commit leaves. Without their marker they mean
// nothing, so this may fail: the sweep removes them later.
func (c *Claim) DropRenewals(ctx context.Context) error {
	if !c.renewed.Load() {
		return nil // none was due yet
	}
	return dropRenewals(ctx, c.v, c.m)
}

// Drop removes the marker of name if it carries nonce, and that of a deletion if it is the deletion by,
// which is empty for others: a deletion has the nonce of whoever created what it deletes.
func Drop(ctx context.Context, v Volumes, name, nonce, by string) error {
	m := record.Marker{Name: name, Nonce: nonce}
	got, err := v.InspectVolume(ctx, record.MarkerName(name))
	if err == nil && record.Is(got.Labels, record.RolePending) && got.Labels[record.Nonce] == nonce {
		if m = record.DecodeMarker(got.Labels); m.By != by {
			return nil // and its renewals have the same names
		}
		err = v.RemoveVolume(ctx, got.Name, false)
	}
	if err != nil && !errors.Is(err, engine.ErrNotFound) {
		return err
	}
	if age := v.Now().Sub(m.Until.Add(-Lease)); age >= 0 && age < Lease/6 {
		return nil // no renewal was due yet
	}
	return dropRenewals(ctx, v, m)
}

func dropRenewals(ctx context.Context, v Volumes, m record.Marker) error {
	var errs []error
	for _, name := range record.RenewalNames(m.Name, m.Nonce) {
		errs = append(errs, remove(ctx, v, name))
	}
	return errors.Join(errs...)
}

// FindMarker returns the marker of name, if there is one.
func FindMarker(ctx context.Context, v Volumes, name string) (m record.Marker, found bool, err error) {
	got, err := v.InspectVolume(ctx, record.MarkerName(name))
	if errors.Is(err, engine.ErrNotFound) {
		return m, false, nil
	}
	if err != nil {
		return m, false, err
	}
	if !record.Is(got.Labels, record.RolePending) {
		return m, false, &record.ForeignError{Kind: "volume", Object: got.Name}
	}
	m = record.DecodeMarker(got.Labels)
	if m.Expired(v.Now()) {
		// Renewals are separate volumes; look for them only now that they matter.
		vols, err := findRenewals(ctx, v, m)
		if err != nil {
			return m, false, err
		}
		for _, vol := range vols {
			m.Renew(vol.Name, vol.Labels)
		}
	}
	return m, true, nil
}

// FindClaims returns the markers with the nonce, of whatever name.
func FindClaims(ctx context.Context, v Volumes, nonce string) ([]record.Marker, error) {
	vols, err := v.ListVolumes(ctx, record.Filter(record.Role, record.RolePending), record.Filter(record.Nonce, nonce))
	return Markers(vols), err
}

func findRenewals(ctx context.Context, v Volumes, m record.Marker) (vols []engine.Volume, err error) {
	for _, name := range record.RenewalNames(m.Name, m.Nonce) {
		vol, err := v.InspectVolume(ctx, name)
		if err == nil {
			vols = append(vols, vol)
		} else if !errors.Is(err, engine.ErrNotFound) {
			return nil, err
		}
	}
	return vols, nil
}

func remove(ctx context.Context, v Volumes, name string) error {
	if err := v.RemoveVolume(ctx, name, false); err != nil && !errors.Is(err, engine.ErrNotFound) {
		return err
	}
	return nil
}
