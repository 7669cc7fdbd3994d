package sandbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
)

// A CleanupOption narrows [CleanupOrphanedVolumes].
type CleanupOption func(*cleanup)

type cleanup struct {
	roles, names []string // nil is any; empty is none
	minAge       time.Duration
	dryRun       bool
	confirm      func([]Volume) error
	problems     []error
}

// CleanupRoles keeps the clean-up to volumes of these roles, such as "rwcopy"; without
// any, to none.
func CleanupRoles(roles ...string) CleanupOption {
	roles = slices.Clone(roles)
	return func(c *cleanup) {
		for _, r := range roles {
			if r != "workspace" && r != "rwcopy" && r != "fork" {
				c.problems = append(c.problems, invalid("role %q; there is workspace, rwcopy, fork", r))
			}
		}
		c.roles = append(append([]string{}, c.roles...), roles...)
	}
}

// CleanupNames keeps the clean-up to volumes of these names; without any, to none.
func CleanupNames(names ...string) CleanupOption {
	names = slices.Clone(names)
	return func(c *cleanup) {
		for _, n := range names {
			if err := checkVolume(n); err != nil {
				c.problems = append(c.problems, classify(ErrInvalidArgument, err))
			}
		}
		c.names = append(append([]string{}, c.names...), names...)
	}
}

// CleanupMinAge keeps the clean-up to volumes that were made at least so long ago.
func CleanupMinAge(d time.Duration) CleanupOption {
	return func(c *cleanup) {
		if d < 0 {
			c.problems = append(c.problems, invalid("CleanupMinAge: %v is negative", d))
		}
		c.minAge = d
	}
}

// CleanupDryRun makes the clean-up report what it would remove, and remove nothing.
func CleanupDryRun() CleanupOption {
	return func(c *cleanup) { c.dryRun = true }
}

// CleanupConfirm asks fn before anything is removed, with what is about to be. When it
// returns an error nothing is, and the call returns that error.
func CleanupConfirm(fn func([]Volume) error) CleanupOption {
	return func(c *cleanup) { c.confirm = fn }
}

func (c *cleanup) wants(v Volume, now time.Time) bool {
	return v.Orphaned &&
		(c.roles == nil || slices.Contains(c.roles, v.Role)) &&
		(c.names == nil || slices.Contains(c.names, v.Name)) &&
		now.Sub(v.CreatedAt) >= c.minAge
}

// CleanupReport tells what a clean-up did.
type CleanupReport struct {
	// Removed are the names of the volumes that are gone, or would be after a dry run.
	Removed []string
	// FreedBytes is what their files had; those of unknown size count nothing.
	FreedBytes int64
	// Failed are those that could not be removed, and why.
	Failed []VolumeOutcome
	DryRun bool
}

// String returns one line for each volume.
func (r CleanupReport) String() string {
	var lines []string
	for _, name := range r.Removed {
		status := VolumeDeleted
		if r.DryRun {
			status = "would be deleted"
		}
		lines = append(lines, VolumeOutcome{Name: name, Status: status}.String())
	}
	for _, o := range r.Failed {
		lines = append(lines, o.String())
	}
	return strings.Join(lines, "\n")
}

// OrphanedVolumes is [OrphanedVolumes] on the client's engine.
func (c *Client) OrphanedVolumes(ctx context.Context) ([]Volume, error) {
	eng, err := c.engine(ctx)
	if err != nil {
		return nil, fail("list orphaned volumes", "", err)
	}
	orphans, err := c.orphans(ctx, eng, &cleanup{})
	return orphans, fail("list orphaned volumes", "", err)
}

// orphans returns the orphaned volumes that are wanted, with their sizes.
func (c *Client) orphans(ctx context.Context, eng *engine.Engine, want *cleanup) ([]Volume, error) {
	all, err := look(ctx, eng)
	if err != nil {
		return nil, err
	}
	now := eng.Now()
	orphans := slices.DeleteFunc(all.list(eng, nil), func(v Volume) bool { return !want.wants(v, now) })
	if len(orphans) == 0 {
		return orphans, nil
	}
	is := func(v engine.Volume) bool {
		return slices.ContainsFunc(orphans, func(o Volume) bool { return o.Name == v.Name })
	}
	sizes := c.sizes(ctx, eng, slices.DeleteFunc(all.volumes, func(v engine.Volume) bool { return !is(v) }))
	if ctx.Err() != nil {
		return nil, cancelled(ctx)
	}
	for i, v := range orphans {
		if n, known := sizes[v.Name]; known {
			orphans[i].setSize(n)
		}
	}
	return orphans, nil
}

// CleanupOrphanedVolumes is [CleanupOrphanedVolumes] on the client's engine.
func (c *Client) CleanupOrphanedVolumes(ctx context.Context, opts ...CleanupOption) (CleanupReport, error) {
	var want cleanup
	for _, o := range opts {
		if o != nil {
			o(&want)
		}
	}
	report := CleanupReport{Removed: []string{}, Failed: []VolumeOutcome{}, DryRun: want.dryRun}
	if err := errors.Join(want.problems...); err != nil {
		return report, fail("clean up volumes", "", err)
	}
	eng, err := c.engine(ctx)
	if err != nil {
		return report, fail("clean up volumes", "", err)
	}
	return report, fail("clean up volumes", "", c.cleanUp(ctx, eng, &want, &report))
}

func (c *Client) cleanUp(ctx context.Context, eng *engine.Engine, want *cleanup, report *CleanupReport) error {
	orphans, err := c.orphans(ctx, eng, want)
	if err != nil {
		return err
	}
	if want.confirm != nil {
		if err := want.confirm(slices.Clone(orphans)); err != nil {
			return fmt.Errorf("not confirmed: %w", err)
		}
	}
	var errs []error
	for _, v := range orphans {
		var err error
		if !want.dryRun {
			err = removeUnused(ctx, eng, v.Name)
		}
		switch {
		case errors.Is(err, ErrVolumeNotFound):
			continue // somebody else's doing, and what was wanted
		case err != nil:
			report.Failed = append(report.Failed, VolumeOutcome{v.Name, VolumeDeleteFailed, err.Error()})
			errs = append(errs, fmt.Errorf("volume %s: %w", v.Name, err))
			if ctx.Err() != nil {
				return errors.Join(errs...)
			}
			continue
		}
		report.Removed = append(report.Removed, v.Name)
		report.FreedBytes += max(v.SizeBytes, 0)
	}
	return errors.Join(errs...)
}
