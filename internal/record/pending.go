package record

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"
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
func takeoverName(name string) string        { return markerName(name) + ".T" }
func isMarkerName(object, name string) bool  { return object == markerName(name) }
func isRenewalName(object, name string) bool { return strings.HasPrefix(object, markerName(name)+".R") }

// renewalNames are the names of a marker's renewals, which are used in turn, so that readers
// find them without a list. No other marker of that name has the same.
func renewalNames(name, nonce string) [2]string {
	sum := sha256.Sum256([]byte(nonce))
	of := encoding.EncodeToString(sum[:])[:12]
	return [2]string{markerName(name) + ".R0-" + of, markerName(name) + ".R1-" + of}
}

// A Marker says that a sandbox of that name is being made or deleted, by whom and until
// when. When its holder dies, the objects with its nonce are removed.
//
// With Of, the nonce of an existing sandbox, that sandbox is being changed, and nothing is
// removed.
type Marker struct {
	Name, Nonce, Holder string
	Of                  string
	Deletes             bool   // the sandbox exists and is being deleted
	By                  string // the deletion, of several that have the sandbox's nonce
	Until               time.Time
}

// HeldError reports that another process holds the marker.
type HeldError struct{ Marker Marker }

func (e *HeldError) Error() string {
	verb := "made"
	switch {
	case e.Marker.Of != "":
		verb = "changed"
	case e.Marker.Deletes:
		verb = "deleted"
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
	lost chan struct{} // closed when the lease was not renewed in time

	mu      sync.Mutex
	valid   time.Time // when the lease was last known to be ours
	renewed bool      // there may be renewals

	dropping bool // Drop has been called
}

func markerLabels(role string, m Marker, now time.Time) map[string]string {
	l := Base(role, m.Nonce, now)
	l[Name], l[Holder] = m.Name, m.Holder
	l[Until] = m.Until.UTC().Format(time.RFC3339Nano)
	if m.Of != "" {
		l[Of] = m.Of
	}
	if m.Deletes {
		l[Deletes], l[By] = "true", m.By
	}
	return l
}

func decodeMarker(labels map[string]string) Marker {
	// A time that can't be read counts as expired.
	until, _ := time.Parse(time.RFC3339Nano, labels[Until])
	return Marker{Name: labels[Name], Nonce: labels[Nonce], Holder: labels[Holder], Of: labels[Of], By: labels[By], Until: until,
		Deletes: labels[Deletes] == "true"}
}

// TryClaim makes the marker for name, or fails with a *HeldError when another process has it
// or a *ForeignError when a foreign object has its name. holder is for people to read.
// After any other error the marker may exist: Drop it by its nonce.
func TryClaim(ctx context.Context, v Volumes, name, nonce, holder string) (*Claim, error) {
	return claim(ctx, v, Marker{Name: name, Nonce: nonce, Holder: holder})
}

// TryDelete is TryClaim for the deletion by of the sandbox r with its volumes: when the holder
// dies, what has the nonce of r is removed. It takes over from a creator of r.
func TryDelete(ctx context.Context, v Volumes, r Sandbox, by, holder string) (*Claim, error) {
	return claim(ctx, v, Marker{Name: r.Name, Nonce: r.Nonce, Holder: holder, Deletes: true, By: by})
}

// TryHold is TryClaim for a change of the sandbox r, which is kept when the holder dies.
func TryHold(ctx context.Context, v Volumes, r Sandbox, nonce, holder string) (*Claim, error) {
	return claim(ctx, v, Marker{Name: r.Name, Nonce: nonce, Holder: holder, Of: r.Nonce})
}

func claim(ctx context.Context, v Volumes, m Marker) (*Claim, error) {
	now, began := v.Now(), time.Now()
	made := began
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
	if got.Labels[Nonce] != nonce || got.Labels[Deletes] == "true" && got.Labels[By] != m.By {
		return nil, &HeldError{decodeMarker(got.Labels)}
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	c := &Claim{v: v, m: m, made: made, stop: cancel, lost: make(chan struct{}), valid: began}
	c.done.Go(func() { c.renew(ctx) })
	return c, nil
}

// renew renews the lease, three times as often as it ends, until ctx ends or the lease is lost.
func (c *Claim) renew(ctx context.Context) {
	tick := time.NewTicker(Lease / 3)
	defer tick.Stop()
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if c.lapsed() {
			close(c.lost)
			return
		}
		// A failed renewal is retried at the next tick, well before the lease ends.
		c.renewOnce(ctx, renewalNames(c.m.Name, c.m.Nonce)[n%2])
	}
}

// renewOnce makes a new renewal in the place of the last but one.
func (c *Claim) renewOnce(ctx context.Context, name string) {
	ctx, cancel := context.WithTimeout(ctx, Lease/3)
	defer cancel()
	now, began := c.v.Now(), time.Now()
	m := c.m
	m.Until = now.Add(Lease)
	c.mu.Lock()
	c.renewed = true
	c.mu.Unlock()
	if remove(ctx, c.v, name) != nil {
		return
	}
	labels := markerLabels(RolePending, m, now)
	got, err := c.v.CreateVolume(ctx, name, labels)
	if err != nil || got.Labels[Until] != labels[Until] {
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
	var done sync.WaitGroup
	done.Go(func() {
		select {
		case <-c.lost:
			cancel(ErrLost)
		case <-ctx.Done():
		}
	})
	return ctx, func() {
		cancel(nil)
		done.Wait()
	}
}

// Commit removes the marker: from here on the sandbox exists for everyone. It fails if the
// lease was not renewed in time: then another process may be removing the sandbox.
func (c *Claim) Commit(ctx context.Context) error {
	c.Stop()
	if c.lapsed() {
		return ErrLost
	}
	marker := markerName(c.m.Name)
	// A marker whose first lease has not run out is certainly ours.
	fresh := c.fresh()
	if !fresh {
		got, err := c.v.InspectVolume(ctx, marker)
		switch {
		case errors.Is(err, engine.ErrNotFound):
			return ErrLost
		case err != nil:
			return err
		case got.Labels[Nonce] != c.m.Nonce:
			return &HeldError{decodeMarker(got.Labels)}
		}
	}
	err := c.v.RemoveVolume(ctx, marker, false)
	switch {
	case errors.Is(err, engine.ErrNotFound) && fresh:
		return ErrLost // somebody removed it by hand
	case err != nil && !errors.Is(err, engine.ErrNotFound):
		// The engine may have removed it and the reply been lost.
		check, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
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
	c.mu.Lock()
	renewed := c.renewed
	c.mu.Unlock()
	if !renewed {
		return nil // none was due yet
	}
	return dropRenewals(ctx, c.v, c.m)
}

// Drop removes the marker of name if it carries nonce.
func Drop(ctx context.Context, v Volumes, name, nonce string) error {
	m := Marker{Name: name, Nonce: nonce}
	got, err := v.InspectVolume(ctx, markerName(name))
	if err == nil && Is(got.Labels, RolePending) && got.Labels[Nonce] == nonce {
		m = decodeMarker(got.Labels)
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

func dropRenewals(ctx context.Context, v Volumes, m Marker) error {
	var errs []error
	for _, name := range renewalNames(m.Name, m.Nonce) {
		errs = append(errs, remove(ctx, v, name))
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
		// Renewals are separate volumes; look for them only now that they matter.
		vols, err := findRenewals(ctx, v, m)
		if err != nil {
			return m, false, err
		}
		for _, vol := range vols {
			m.renew(vol)
		}
	}
	return m, true, nil
}

// FindClaims returns the markers with the nonce, of whatever name.
func FindClaims(ctx context.Context, v Volumes, nonce string) ([]Marker, error) {
	vols, err := v.ListVolumes(ctx, Filter(Role, RolePending), Filter(Nonce, nonce))
	return Markers(vols), err
}

func findRenewals(ctx context.Context, v Volumes, m Marker) (vols []engine.Volume, err error) {
	for _, name := range renewalNames(m.Name, m.Nonce) {
		vol, err := v.InspectVolume(ctx, name)
		if err == nil {
			vols = append(vols, vol)
		} else if !errors.Is(err, engine.ErrNotFound) {
			return nil, err
		}
	}
	return vols, nil
}

// renew takes the time from a volume that is a renewal of the marker.
func (m *Marker) renew(vol engine.Volume) {
	if Is(vol.Labels, RolePending) && isRenewalName(vol.Name, m.Name) && vol.Labels[Nonce] == m.Nonce {
		if r := decodeMarker(vol.Labels); r.Until.After(m.Until) {
			m.Until = r.Until
		}
	}
}

// Expired reports whether the marker's lease has run out.
func (m Marker) Expired(now time.Time) bool { return now.After(m.Until) }

// Markers returns the markers among vols, a list of all managed volumes.
func Markers(vols []engine.Volume) []Marker {
	var ms []Marker
	at := map[string]int{} // in ms, by name: it has one volume
	for _, vol := range vols {
		if Is(vol.Labels, RolePending) && isMarkerName(vol.Name, vol.Labels[Name]) {
			m := decodeMarker(vol.Labels)
			at[m.Name] = len(ms)
			ms = append(ms, m)
		}
	}
	for _, vol := range vols {
		if i, marked := at[vol.Labels[Name]]; marked {
			ms[i].renew(vol)
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
		if !Is(vol.Labels, RolePending, RoleTakeover) {
			continue
		}
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

// A Watch tells holders that died from those whose lease only seems to have ended because the
// engine's clock was set. It is safe for concurrent use.
type Watch struct {
	mu   sync.Mutex
	seen map[string]sighting
}

// sighting is when an expired marker was first seen with that end of its lease.
type sighting struct{ until, at time.Time }

// ConfirmAfter is how long an expired marker has to be watched, without a renewal, until its
// holder counts as dead: longer than a living one takes to renew it. Only tests change it.
var ConfirmAfter = 12 * time.Second

// Dead reports whether the holder of an expired marker is dead: this process saw the marker
// expired ConfirmAfter ago, by its own clock, and it has not been renewed since. The first call
// for a marker is false.
func (w *Watch) Dead(m Marker, now time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	key := m.Name + " " + m.Nonce
	if !m.Expired(now) {
		delete(w.seen, key)
		return false
	}
	if got, ok := w.seen[key]; ok && got.until.Equal(m.Until) {
		return time.Since(got.at) >= ConfirmAfter
	}
	if w.seen == nil {
		w.seen = map[string]sighting{}
	}
	// Those of markers that are gone.
	maps.DeleteFunc(w.seen, func(_ string, got sighting) bool { return time.Since(got.at) > time.Hour })
	w.seen[key] = sighting{m.Until, time.Now()}
	return false
}

// TakeOverTime bounds a takeover. It is shorter than the lease of its own, after which another
// process may do the same at the same time. Only tests change it.
var TakeOverTime = Lease * 2 / 3

// ErrLimit is the error of what the engine does not do within a limit of this package's.
var ErrLimit = errors.New("the engine did not finish that")

// within calls fn with a context that ends after limit, and reports that end as ErrLimit.
func within(ctx context.Context, limit time.Duration, fn func(context.Context) error) error {
	own, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := fn(own)
	if errors.Is(err, context.DeadlineExceeded) && own.Err() != nil && ctx.Err() == nil {
		return fmt.Errorf("%w within %v", ErrLimit, limit)
	}
	return err
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
		err = errors.Join(err, within(context.WithoutCancel(ctx), 10*time.Second, func(ctx context.Context) error {
			if got, err := v.InspectVolume(ctx, lock); err != nil || got.Labels[Nonce] != nonce {
				return nil
			}
			return remove(ctx, v, lock)
		}))
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
	if err != nil || !found || m.Nonce != dead.Nonce || !m.Expired(v.Now()) || m.Until.After(dead.Until) {
		return err
	}
	return within(ctx, TakeOverTime, func(ctx context.Context) error {
		if err := cleanUp(ctx); err != nil {
			return err
		}
		return Drop(ctx, v, dead.Name, dead.Nonce)
	})
}

func remove(ctx context.Context, v Volumes, name string) error {
	if err := v.RemoveVolume(ctx, name, false); err != nil && !errors.Is(err, engine.ErrNotFound) {
		return err
	}
	return nil
}
