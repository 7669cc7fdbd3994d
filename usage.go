package sandbox

import (
	"context"
	"maps"
	"slices"

	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/lifecycle"
	"github.com/seed-1a2d6d8f/sandbox/internal/plan"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/internal/trace"
)

// ListUsage returns what the sandboxes that o selects use now, by ID. It measures up to 256 sandboxes at
// the same time, a tenth of a second each if the client has not measured it in the last 30 s, and counts no
// files. Sandboxes without a session, those whose session ends meanwhile, and those of engines without
// cgroups are left out.
func ListUsage(ctx context.Context, o ListOptions) (map[string]Usage, error) {
	return defaultClient().ListUsage(ctx, o)
}

// ListUsage is [ListUsage] on the client's engine. In a swarm nodes that do not answer are left out.
func (c *Client) ListUsage(ctx context.Context, o ListOptions) (_ map[string]Usage, err error) {
	ctx, span := trace.Start(ctx, "sandbox.list_usage")
	defer span.End(&err)
	defer wrap(&err, "list usage", "")
	if err := o.check(); err != nil {
		return nil, err
	}
	each, _, err := eachEngine(ctx, c, o.usage)
	if err != nil {
		return nil, err
	}
	all := map[string]Usage{}
	for _, some := range each {
		maps.Copy(all, some)
	}
	return all, nil
}

// usage measures the sandboxes of one engine.
func (o ListOptions) usage(ctx context.Context, l *lifecycle.Client) ([]map[string]Usage, error) {
	containers := map[string]string{} // IDs of containers, by those of sandboxes
	err := o.each(ctx, l, func(i Info, got engine.Container) {
		if got.HasSession() {
			containers[i.ID] = got.ID
		}
	})
	if err != nil {
		return nil, err
	}
	measured, err := l.Machine.UsageOfEach(ctx, slices.Collect(maps.Values(containers)))
	if err != nil {
		return nil, err
	}
	all := map[string]Usage{}
	for id, container := range containers {
		if u, ok := measured[container]; ok {
			all[id] = Usage(u)
		}
	}
	return []map[string]Usage{all}, nil
}

// Defaults are what a client creates without options, and what it can create from.
type Defaults struct {
	// Settings are those of a sandbox with a name that is created without options.
	Settings Settings `json:"settings"`
	// Runtimes are the identifiers for [WithRuntime], with their images.
	Runtimes map[string]string `json:"runtimes"`
	// Images are the tags of the images that the engine has, sorted, without those of this package. In a
	// swarm they are those of the client's own engine.
	Images []string `json:"images"`
	// OCIRuntimes are the names for [WithOCIRuntime] that the engine knows, sorted.
	OCIRuntimes []string `json:"ociRuntimes"`
	// MaxPorts is how many ports a sandbox may publish, see [Limits].
	MaxPorts int `json:"maxPorts"`
}

// GetDefaults returns the defaults, for programs that ask people for settings. It takes two engine calls.
func GetDefaults(ctx context.Context) (Defaults, error) { return defaultClient().GetDefaults(ctx) }

// GetDefaults is [GetDefaults] of a client: with its limits and runtimes, and its engine's images.
func (c *Client) GetDefaults(ctx context.Context) (_ Defaults, err error) {
	ctx, span := trace.Start(ctx, "sandbox.get_defaults")
	defer span.End(&err)
	defer wrap(&err, "get defaults", "")
	l, err := c.ownEngine(ctx)
	if err != nil {
		return Defaults{}, err
	}
	images, err := l.Engine.ListImages(ctx)
	if err != nil {
		return Defaults{}, err
	}
	info, err := l.Engine.Info(ctx)
	if err != nil {
		return Defaults{}, err
	}
	p := &plan.Sandbox{Persistent: new(true), MaxPorts: c.limits.Ports, Runtimes: c.runtimes}
	if err := p.Complete(); err != nil {
		return Defaults{}, err
	}
	set := settingsOf(p)
	set.Image, set.Network = new(p.Image), new(AllowAll())
	d := Defaults{Settings: set, Runtimes: p.AllRuntimes(), Images: []string{}, OCIRuntimes: slices.Sorted(slices.Values(info.Runtimes)), MaxPorts: p.PortLimit()}
	for _, i := range images {
		for _, tag := range i.Tags {
			if !record.IsOwnImage(engine.Repository(tag)) {
				d.Images = append(d.Images, tag)
			}
		}
	}
	slices.Sort(d.Images)
	return d, nil
}
