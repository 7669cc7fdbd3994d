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

// Volume is a volume as the engine has it.
type Volume struct {
	Name       string
	Driver     string
	Mountpoint string // on the engine's machine
	Labels     map[string]string
	Options    map[string]string
	CreatedAt  time.Time // to the second, and moved by writes to the volume's root
	Size       int64     // bytes, -1 when the engine was not asked
}

// CreateVolume makes a local volume and returns it as the engine has it: when
// the name exists already, labels are those of whoever came first and not the
// ones given. That is how a nonce in the labels makes it a compare-and-swap.
//
// The volume carries the driver option size=0, which changes nothing but that
// "docker volume prune" leaves it alone; an engine that refuses the option
// gets none.
func (e *Engine) CreateVolume(ctx context.Context, name string, labels map[string]string) (Volume, error) {
	if err := checkName("volume", name); err != nil {
		return Volume{}, err
	}
	o := volume.CreateOptions{Name: name, Driver: "local", Labels: labels, DriverOpts: map[string]string{"size": "0"}}
	v, err := e.cli.VolumeCreate(ctx, o)
	if err = e.fail(ctx, err); err != nil && refusesOption(err) {
		o.DriverOpts = nil
		v, err = e.cli.VolumeCreate(ctx, o)
		err = e.fail(ctx, err)
	}
	if err != nil {
		return Volume{}, err
	}
	return toVolume(&v), nil
}

// Overlay says which directories on the engine's machine a volume shows one over the
// other: Lower, which is never written to, and Upper, which takes what is written. Upper
// and Work are empty at first, on one file system and of no other volume.
type Overlay struct{ Lower, Upper, Work string }

// CreateOverlay is [Engine.CreateVolume] of a volume that shows o. Whether the engine can
// is known when a container first uses it. The engine keeps none of the directories from
// being removed.
func (e *Engine) CreateOverlay(ctx context.Context, name string, labels map[string]string, o Overlay) (Volume, error) {
	if err := checkName("volume", name); err != nil {
		return Volume{}, err
	}
	for _, dir := range []string{o.Lower, o.Upper, o.Work} {
		if !path.IsAbs(dir) || strings.ContainsAny(dir, ",:\\") {
			return Volume{}, invalid("directory %q of an overlay: want an absolute path without comma and colon", dir)
		}
	}
	// redirect_dir lets directories of Lower be renamed, and index keeps their hard links
	// and refuses a second use of Upper.
	v, err := e.cli.VolumeCreate(ctx, volume.CreateOptions{Name: name, Driver: "local", Labels: labels, DriverOpts: map[string]string{
		"type": "overlay", "device": "overlay",
		"o": "lowerdir=" + o.Lower + ",upperdir=" + o.Upper + ",workdir=" + o.Work + ",redirect_dir=on,index=on",
	}})
	if err != nil {
		return Volume{}, e.fail(ctx, err)
	}
	return toVolume(&v), nil
}

// refusesOption reports whether err may be about an option: an answer of the
// engine's, a plain 500 on the old ones, and not about the name.
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

// ListVolumes lists the volumes that carry every one of labels ("key" or
// "key=value"), ordered by name.
func (e *Engine) ListVolumes(ctx context.Context, labels ...string) ([]Volume, error) {
	l, err := e.cli.VolumeList(ctx, volume.ListOptions{Filters: labelFilter(labels)})
	if err != nil {
		return nil, e.fail(ctx, err)
	}
	out := make([]Volume, 0, len(l.Volumes))
	for _, v := range l.Volumes {
		if v != nil {
			out = append(out, toVolume(v))
		}
	}
	slices.SortFunc(out, func(a, b Volume) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// RemoveVolume removes a volume. One that a container uses, running or not,
// is [ErrConflict], with force too; force makes a missing one no error.
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

// parseTime reads the engine's times. The zero time of an engine, a year 1,
// is Go's zero time.
func parseTime(s string) time.Time {
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		return time.Time{}
	}
	return t
}
