package engine

import (
	"context"
	"errors"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/volume"
)

// Volume is a volume as the engine describes it.
type Volume struct {
	Name       string
	Driver     string
	Mountpoint string // on the engine's machine
	Labels     map[string]string
	Options    map[string]string
	CreatedAt  time.Time // to the second; writes to the volume's root change it on older engines
	Size       int64     // bytes, -1 if the engine was not asked
}

// CreateVolume makes a local volume and returns it. If the name exists, it returns the
// existing volume with its labels: with a nonce in the labels it is a compare-and-swap.
//
// The volume has the driver option size=0, whose only effect is that "docker volume prune"
// skips the volume. If the engine rejects the option, the volume is made without; so it is by
// Podman, which would mount a volume that has options.
//
// An engine with a full disk may make a volume and fail to store its labels. Without them nobody
// knows the volume, and it would keep its name for ever: it is removed, and made again if an
// earlier call has left it.
func (e *Engine) CreateVolume(ctx context.Context, name string, labels map[string]string) (Volume, error) {
	if err := checkName("volume", name); err != nil {
		return Volume{}, err
	}
	v, err := e.createVolume(ctx, name, labels)
	if IsInternal(err) && len(labels) > 0 {
		if left, e2 := e.InspectVolume(ctx, name); e2 == nil && left.lacksLabels() {
			err = errors.Join(err, e.RemoveVolume(ctx, name, true))
		}
		return v, err
	}
	if err == nil && len(labels) > 0 && v.lacksLabels() {
		if err := e.RemoveVolume(ctx, name, true); err != nil {
			return v, err
		}
		return e.createVolume(ctx, name, labels)
	}
	return v, err
}

// lacksLabels reports whether a volume was made by [Engine.CreateVolume], as its option tells, and
// has none of the labels that it was to get.
func (v Volume) lacksLabels() bool { return len(v.Labels) == 0 && v.Options["size"] == "0" }

// createVolume is CreateVolume without a look at what was made.
func (e *Engine) createVolume(ctx context.Context, name string, labels map[string]string) (Volume, error) {
	o := volume.CreateOptions{Name: name, Driver: "local", Labels: labels, DriverOpts: map[string]string{"size": "0"}}
	if e.podman.Load() {
		o.DriverOpts = nil
	}
	v, err := e.cli.VolumeCreate(ctx, o)
	if err = e.fail(ctx, err); err != nil && refusesOption(err) {
		o.DriverOpts = nil
		v, err = e.cli.VolumeCreate(ctx, o)
		err = e.fail(ctx, err)
	}
	if err != nil {
		return Volume{}, err
	}
	return e.created(ctx, v, labels)
}

// created is the volume that a create replied with. After its own start an engine leaves the
// labels of a volume that existed out of the reply until somebody inspects that volume. So a
// reply without labels is not believed.
func (e *Engine) created(ctx context.Context, v volume.Volume, labels map[string]string) (Volume, error) {
	if len(v.Labels) == 0 && len(labels) > 0 {
		return e.InspectVolume(ctx, v.Name)
	}
	return toVolume(&v), nil
}

// Overlay are the directories of an overlay mount on the engine's machine. Lower is never
// written to; changes go to Upper. Upper and Work must be empty at first, on one file system,
// and used by no other volume.
type Overlay struct{ Lower, Upper, Work string }

// CreateOverlay is [Engine.CreateVolume] for a volume that is an overlay mount. Whether the
// engine supports it shows when a container first uses it. The engine does not protect the
// directories from removal.
func (e *Engine) CreateOverlay(ctx context.Context, name string, labels map[string]string, o Overlay) (Volume, error) {
	if err := checkName("volume", name); err != nil {
		return Volume{}, err
	}
	for _, dir := range []string{o.Lower, o.Upper, o.Work} {
		if !path.IsAbs(dir) || strings.ContainsAny(dir, ",:\\") {
			return Volume{}, invalid("overlay directory %q: want an absolute path without comma, colon or backslash", dir)
		}
	}
	// redirect_dir allows renames of directories in Lower. index preserves hard links, and
	// rejects an Upper that is in use.
	v, err := e.cli.VolumeCreate(ctx, volume.CreateOptions{Name: name, Driver: "local", Labels: labels, DriverOpts: map[string]string{
		"type": "overlay", "device": "overlay",
		"o": "lowerdir=" + o.Lower + ",upperdir=" + o.Upper + ",workdir=" + o.Work + ",redirect_dir=on,index=on",
	}})
	if err != nil {
		return Volume{}, e.fail(ctx, err)
	}
	return e.created(ctx, v, labels)
}

// Overlay returns the directories of a volume that [Engine.CreateOverlay] has made.
func (v Volume) Overlay() (o Overlay, is bool) {
	for option := range strings.SplitSeq(v.Options["o"], ",") {
		key, dir, _ := strings.Cut(option, "=")
		switch key {
		case "lowerdir":
			o.Lower = dir
		case "upperdir":
			o.Upper = dir
		case "workdir":
			o.Work = dir
		}
	}
	return o, v.Options["type"] == "overlay" && path.IsAbs(o.Lower) && path.IsAbs(o.Upper)
}

// refusesOption reports whether err may be about an option. Older engines answer 500.
func refusesOption(err error) bool {
	return errors.Is(err, ErrInvalid) || !hasClass(err)
}

// InspectVolume finds a volume by its exact name.
func (e *Engine) InspectVolume(ctx context.Context, name string) (Volume, error) {
	if err := checkName("volume", name); err != nil {
		return Volume{}, err
	}
	v, err := e.cli.VolumeInspect(ctx, name)
	if err != nil {
		return Volume{}, e.fail(ctx, err)
	}
	return toVolume(&v), nil
}

// ListVolumes lists the volumes that have all of labels ("key" or "key=value"), sorted by
// name.
func (e *Engine) ListVolumes(ctx context.Context, labels ...string) ([]Volume, error) {
	l, err := e.cli.VolumeList(ctx, volume.ListOptions{Filters: labelFilter(labels)})
	if err != nil {
		return nil, e.fail(ctx, err)
	}
	out := make([]Volume, 0, len(l.Volumes))
	for _, v := range l.Volumes {
		if v != nil && hasLabels(v.Labels, labels) {
			out = append(out, toVolume(v))
		}
	}
	slices.SortFunc(out, func(a, b Volume) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// RemoveVolume removes a volume. A volume that a container uses, running or not, is
// [ErrConflict], with force too. With force a missing one is no error.
func (e *Engine) RemoveVolume(ctx context.Context, name string, force bool) error {
	if err := checkName("volume", name); err != nil {
		return err
	}
	return e.fail(ctx, e.cli.VolumeRemove(ctx, name, force))
}

func labelFilter(labels []string) filters.Args {
	f := filters.NewArgs()
	for _, l := range labels {
		f.Add("label", l)
	}
	return f
}

// hasLabels reports whether an object has all of wanted. Lists check that again: Podman 4 takes
// several filters of volumes as any of them.
func hasLabels(labels map[string]string, wanted []string) bool {
	for _, w := range wanted {
		key, value, exact := strings.Cut(w, "=")
		if got, ok := labels[key]; !ok || exact && got != value {
			return false
		}
	}
	return true
}

func toVolume(v *volume.Volume) Volume {
	out := Volume{
		Name: v.Name, Driver: v.Driver, Mountpoint: v.Mountpoint, Labels: v.Labels, Options: v.Options,
		CreatedAt: parseTime(v.CreatedAt), Size: -1,
	}
	if v.UsageData != nil {
		out.Size = v.UsageData.Size
	}
	return out
}

// parseTime parses the engine's times; an invalid one is zero.
func parseTime(s string) time.Time {
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		return time.Time{}
	}
	return t
}
