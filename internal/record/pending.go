package record

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
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

// Names of sandboxes are lower-case, so an upper-case letter after the last dot can't
// be part of one.
func markerName(name string) string          { return objects + "pending." + name }
func renewalName(name string, n int) string  { return markerName(name) + ".R" + strconv.Itoa(n) }
func takeoverName(name string) string        { return markerName(name) + ".T" }
func isMarkerName(object, name string) bool  { return object == markerName(name) }
func isRenewalName(object, name string) bool { return strings.HasPrefix(object, markerName(name)+".R") }

// A Marker says that a sandbox of that name is being made or deleted, by whom and until
// when. When its holder dies, the objects with its nonce are removed.
//
// With Of, the nonce of an existing sandbox, that sandbox is being changed, and nothing is
// removed.
type Marker struct {
	Name, Nonce, Holder string
	Of                  string
	Until               time.Time
}

// HeldError reports that another process holds the marker.
type HeldError struct{ Marker Marker }

func (e *HeldError) Error() string {
	verb := "made"
	if e.Marker.Of != "" {
		verb = "changed"
	}
	return fmt.Sprintf("%q is being %s by %s", e.Marker.Name, verb, cmp.Or(e.Marker.Holder, "another process"))
}

// ForeignError reports an object that is not ours but has a name of ours.
type ForeignError struct{ Kind, Object string }

func (e *ForeignError) Error() string {
	return fmt.Sprintf("%s %q exists and was not made by this library: remove or rename it", e.Kind, e.Object)
}

// A Claim is a held marker. Its lease is renewed until Commit or Drop.
type Claim struct {
	v    Volumes
	m    Marker
	made time.Time // by this process's clock
	stop context.CancelFunc
	done sync.WaitGroup

	dropping bool // Drop has been called
}

func markerLabels(role string, m Marker, now time.Time) map[string]string {
	l := Base(role, m.Nonce, now)
	l[Name], l[Holder] = m.Name, m.Holder
	l[Until] = m.Until.UTC().Format(time.RFC3339Nano)
	if m.Of != "" {
		l[Of] = m.Of
	}
	return l
}

func decodeMarker(labels map[string]string) Marker {
	// A time that can't be read counts as expired.
	until, _ := time.Parse(time.RFC3339Nano, labels[Until])
	return Marker{Name: labels[Name], Nonce: labels[Nonce], Holder: labels[Holder], Of: labels[Of], Until: until}
}

// TryClaim makes the marker for name, or fails with a *HeldError when another process has it
// or a *ForeignError when a foreign object has its name. holder is for people to read.
// After any other error the marker may exist: Drop it by its nonce.
func TryClaim(ctx context.Context, v Volumes, name, nonce, holder string) (*Claim, error) {
	return claim(ctx, v, Marker{Name: name, Nonce: nonce, Holder: holder})
}

// TryHold is TryClaim for a change of the sandbox r, which is kept when the holder dies.
func TryHold(ctx context.Context, v Volumes, r Sandbox, nonce, holder string) (*Claim, error) {
	return claim(ctx, v, Marker{Name: r.Name, Nonce: nonce, Holder: holder, Of: r.Nonce})
}

func claim(ctx context.Context, v Volumes, m Marker) (*Claim, error) {
	now, made := v.Now(), time.Now()
	m.Until = now.Add(Lease)
	name, nonce := m.Name, m.Nonce
	labels := markerLabels(RolePending, m, now)
	got, err := v.CreateVolume(ctx, markerName(name), labels)
	if err != nil && !errors.Is(err, engine.ErrUnavailable) && ctx.Err() == nil {
		// An engine may refuse to make a volume that another call makes, and not return that one.
		if there, e := v.InspectVolume(ctx, markerName(name)); e == nil {
			got, err = there, nil
		}
	}
	if err != nil {
		return nil, err
	}
	if got.Labels[Until] != labels[Until] {
		made = time.Time{} // an earlier marker with this nonce
	}
	if !Is(got.Labels, RolePending) {
		return nil, &ForeignError{"volume", got.Name}
	}
	if got.Labels[Nonce] != nonce {
		return nil, &HeldError{decodeMarker(got.Labels)}
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	c := &Claim{v: v, m: m, made: made, stop: cancel}
	c.done.Go(func() { c.renew(ctx) })
	return c, nil
}

func (c *Claim) renew(ctx context.Context) {
	tick := time.NewTicker(Lease / 3)
	defer tick.Stop()
	for n := 1; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now := c.v.Now()
		m := c.m
		m.Until = now.Add(Lease)
		// A failed renewal is retried at the next tick, well before the lease ends.
		if _, err := c.v.CreateVolume(ctx, renewalName(m.Name, n), markerLabels(RolePending, m, now)); err == nil && n > 1 {
			c.v.RemoveVolume(ctx, renewalName(m.Name, n-1), false)
		}
	}
}

// Commit removes the marker: from here on the sandbox exists for everyone. It fails if the
// lease expired and another process took over.
func (c *Claim) Commit(ctx context.Context) error {
	c.Stop()
	marker := markerName(c.m.Name)
	// A marker whose first lease has not run out is certainly ours.
	fresh := c.fresh()
	if !fresh {
		got, err := c.v.InspectVolume(ctx, marker)
		switch {
		case errors.Is(err, engine.ErrNotFound):
			return errLostClaim
		case err != nil:
			return err
		case got.Labels[Nonce] != c.m.Nonce:
			return &HeldError{decodeMarker(got.Labels)}
		}
	}
	err := c.v.RemoveVolume(ctx, marker, false)
	switch {
	case errors.Is(err, engine.ErrNotFound) && fresh:
		return errLostClaim // somebody removed it by hand
	case err != nil && !errors.Is(err, engine.ErrNotFound):
		// The engine may have removed it and the reply been lost.
		check, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		if _, e := c.v.InspectVolume(check, marker); !errors.Is(e, engine.ErrNotFound) {
			return err
		}
	}
	return nil
}

var errLostClaim = errors.New("lost the claim on the name: it was not renewed in time")

// Drop removes the marker without a Commit. After an error it may be called again.
func (c *Claim) Drop(ctx context.Context) error {
	c.Stop()
	// After a lost reply the name may be another's already.
	if c.dropping || !c.fresh() {
		return Drop(ctx, c.v, c.m.Name, c.m.Nonce)
	}
	c.dropping = true
	return remove(ctx, c.v, markerName(c.m.Name))
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
	if c.fresh() {
		return nil // none was due yet
	}
	return dropRenewals(ctx, c.v, c.m.Name, c.m.Nonce)
}

// Drop removes the marker of name if it carries nonce.
func Drop(ctx context.Context, v Volumes, name, nonce string) error {
	got, err := v.InspectVolume(ctx, markerName(name))
	if err == nil && Is(got.Labels, RolePending) && got.Labels[Nonce] == nonce {
		err = v.RemoveVolume(ctx, got.Name, false)
	}
	if err != nil && !errors.Is(err, engine.ErrNotFound) {
		return err
	}
	return dropRenewals(ctx, v, name, nonce)
}

func dropRenewals(ctx context.Context, v Volumes, name, nonce string) error {
	vols, err := v.ListVolumes(ctx, Filter(Role, RolePending), Filter(Name, name))
	if err != nil {
		return err
	}
	var errs []error
	for _, vol := range vols {
		if isRenewalName(vol.Name, name) && vol.Labels[Nonce] == nonce {
			if err := v.RemoveVolume(ctx, vol.Name, false); err != nil && !errors.Is(err, engine.ErrNotFound) {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

// FindMarker returns the marker of name, if there is one.
func FindMarker(ctx context.Context, v Volumes, name string) (m Marker, found bool, err error) {
	got, err := v.InspectVolume(ctx, markerName(name))
	if errors.Is(err, engine.ErrNotFound) {
		return m, false, nil
	}
	if err != nil {
		return m, false, err
	}
	if !Is(got.Labels, RolePending) {
		return m, false, &ForeignError{"volume", got.Name}
	}
	m = decodeMarker(got.Labels)
	if m.Expired(v.Now()) {
		// Renewals are separate volumes; list them only now that they matter.
		vols, err := v.ListVolumes(ctx, Filter(Role, RolePending), Filter(Name, name))
		if err != nil {
			return m, false, err
		}
		m = renewed(m, vols)
	}
	return m, true, nil
}

// Expired reports whether the marker's lease has run out.
func (m Marker) Expired(now time.Time) bool { return now.After(m.Until) }

func renewed(m Marker, vols []engine.Volume) Marker {
	for _, vol := range vols {
		if isRenewalName(vol.Name, m.Name) && vol.Labels[Nonce] == m.Nonce {
			if r := decodeMarker(vol.Labels); r.Until.After(m.Until) {
				m.Until = r.Until
			}
		}
	}
	return m
}

// Markers returns the markers among vols, a list of all managed volumes.
func Markers(vols []engine.Volume) []Marker {
	var ms []Marker
	for _, vol := range vols {
		if m := decodeMarker(vol.Labels); Is(vol.Labels, RolePending) && isMarkerName(vol.Name, m.Name) {
			ms = append(ms, renewed(m, vols))
		}
	}
	return ms
}

// ExpiredLeftovers returns the names of expired renewals without a marker, and of expired takeovers.
func ExpiredLeftovers(vols []engine.Volume, now time.Time) []string {
	held := map[string]bool{}
	for _, m := range Markers(vols) {
		held[m.Name+" "+m.Nonce] = true
	}
	var names []string
	for _, vol := range vols {
		m := decodeMarker(vol.Labels)
		if !m.Expired(now) {
			continue
		}
		switch {
		case Is(vol.Labels, RolePending) && isRenewalName(vol.Name, m.Name) && !held[m.Name+" "+m.Nonce],
			Is(vol.Labels, RoleTakeover) && vol.Name == takeoverName(m.Name):
			names = append(names, vol.Name)
		}
	}
	return slices.Sorted(slices.Values(names))
}

// TakeOver removes what a dead creator left: it calls cleanUp, which removes the objects
// with the marker's nonce, and then removes the marker. One caller at a time does so for a
// name. For the others, and if the marker has changed meanwhile, TakeOver does nothing and
// returns nil: look again.
func TakeOver(ctx context.Context, v Volumes, dead Marker, nonce, holder string, cleanUp func(context.Context) error) (err error) {
	now := v.Now()
	mine := Marker{Name: dead.Name, Nonce: nonce, Holder: holder, Until: now.Add(Lease)}
	lock := takeoverName(dead.Name)
	defer func() {
		// The lock may exist even if the reply was lost; don't leave it until its lease ends.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		if got, e := v.InspectVolume(ctx, lock); e == nil && got.Labels[Nonce] == nonce {
			err = errors.Join(err, remove(ctx, v, lock))
		}
	}()
	got, err := v.CreateVolume(ctx, lock, markerLabels(RoleTakeover, mine, now))
	if err != nil {
		return err
	}
	if got.Labels[Nonce] != nonce {
		if Is(got.Labels, RoleTakeover) && decodeMarker(got.Labels).Expired(now) {
			return remove(ctx, v, lock)
		}
		return nil
	}
	m, found, err := FindMarker(ctx, v, dead.Name)
	if err != nil || !found || m.Nonce != dead.Nonce || !m.Expired(v.Now()) {
		return err
	}
	// Stay within our own lease: after it another process may clean up at the same time.
	ctx, cancel := context.WithTimeout(ctx, Lease*2/3)
	defer cancel()
	if err := cleanUp(ctx); err != nil {
		return err
	}
	return Drop(ctx, v, dead.Name, dead.Nonce)
}

func remove(ctx context.Context, v Volumes, name string) error {
	if err := v.RemoveVolume(ctx, name, false); err != nil && !errors.Is(err, engine.ErrNotFound) {
		return err
	}
	return nil
}
