package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
)

// crowdSize is the number of sandboxes in a crowd: 1000, or CROWD of the environment.
func crowdSize() int {
	if n, err := strconv.Atoi(os.Getenv("CROWD")); err == nil && n > 0 {
		return n
	}
	return 1000
}

// gather creates a crowd of sandboxes with plain calls: containers with the labels of
// sandboxes and a volume each. They are never started, which makes no difference to a list
// and saves minutes. A sweep removes them after five.
func (r *rig) gather(ctx context.Context) error {
	if r.crowd {
		return nil
	}
	sb, err := r.warm(ctx)
	if err != nil {
		return err
	}
	same, err := r.twinOf(ctx, container(sb))
	if err != nil {
		return err
	}
	began := time.Now()
	var g errgroup.Group
	g.SetLimit(4)
	for i := range crowdSize() {
		rec := r.stranger(i)
		g.Go(func() error {
			labels, err := rec.Labels()
			if err != nil {
				return err
			}
			labels[byHandLabel] = r.id
			volume := rec.VolumeLabels(record.RoleWorkspace)
			volume[byHandLabel] = r.id
			spec := map[string]any{
				"Image": same.config["Image"], "Cmd": []string{"true"}, "Labels": labels,
				"HostConfig": map[string]any{"NetworkMode": "none", "Mounts": []any{map[string]any{
					"Type": "volume", "Source": record.WorkspaceName(rec.ID), "Target": sandbox.Workspace,
					"VolumeOptions": map[string]any{"NoCopy": true, "Labels": volume},
				}}},
			}
			return r.api.call(ctx, "POST", "/containers/create?name="+record.ContainerName(rec.Name), spec, nil)
		})
	}
	r.crowd = true
	err = g.Wait()
	note("%d sandboxes created with plain calls in %v", crowdSize(), time.Since(began).Round(time.Second))
	return err
}

// stranger is the record of a sandbox of a crowd.
func (r *rig) stranger(i int) record.Sandbox {
	return record.Sandbox{
		ID: record.NewID(), Name: fmt.Sprintf("crowd-%s-%d", r.id, i), Nonce: record.NewNonce(), CreatedAt: time.Now(),
		Persistent: true, Tags: map[string]string{"crowd": r.id}, ControlKey: make([]byte, 32),
		Settings: record.SandboxSettings{Image: sandbox.DefaultImage, Workdir: sandbox.Workspace},
	}
}

// get1000 compares finding a sandbox by its name among a thousand with finding it nearly
// alone. The two can't be paired, since the thousand can't come and go.
func get1000(ctx context.Context, r *rig) (float64, error) {
	if r.crowd {
		return 0, fmt.Errorf("the crowd exists already: measure this figure before others that need it")
	}
	sb, err := r.warm(ctx)
	if err != nil {
		return 0, err
	}
	get := func() (samples, error) {
		var all samples
		for range 120 {
			took, err := milliseconds(func() error {
				got, err := r.client.Get(ctx, sb.Name(), sandbox.WithoutResume())
				if err != nil {
					return err
				}
				return got.Detach()
			})
			if err != nil {
				return nil, err
			}
			all = append(all, took)
		}
		return all[20:], nil
	}
	few, err := get()
	if err != nil {
		return 0, err
	}
	if err := r.gather(ctx); err != nil {
		return 0, err
	}
	many, err := get()
	if err != nil {
		return 0, err
	}
	note("get: %v ms beside %d others, %v ms before", many, crowdSize(), few)
	return many.median() / few.median(), nil
}

// list1000 compares a list of a thousand sandboxes with the two calls to the engine that it
// takes, including decoding the replies.
func list1000(ctx context.Context, r *rig) (float64, error) {
	if err := r.gather(ctx); err != nil {
		return 0, err
	}
	const managed = "filters=%7B%22label%22%3A%5B%22agent-sandbox.managed%3Dtrue%22%5D%7D"
	ours, theirs, ratios, err := pairs(ctx, 2, 15,
		timed(func() error {
			got, err := r.client.List(ctx)
			if err == nil && len(got) < crowdSize() {
				err = fmt.Errorf("a list of %d sandboxes, want more than %d", len(got), crowdSize())
			}
			return err
		}),
		timed(func() error {
			var volumes struct {
				Volumes []struct {
					Name       string
					Driver     string
					Mountpoint string
					Labels     map[string]string
					Options    map[string]string
				}
			}
			if err := r.api.call(ctx, "GET", "/volumes?"+managed, nil, &volumes); err != nil {
				return err
			}
			var containers []struct {
				ID     string `json:"Id"`
				Names  []string
				Image  string
				State  string
				Labels map[string]string
				Mounts []struct{ Type, Name, Source, Destination string }
			}
			return r.api.call(ctx, "GET", "/containers/json?all=1&"+managed, nil, &containers)
		}))
	if err != nil {
		return 0, err
	}
	note("list of %d: %v ms, the engine's two calls %v ms", crowdSize(), ours, theirs)
	return ratios.median(), nil
}
