package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
)

// copySmall, copyGo and copyGiB: what a copied mount adds to Create, against the
// machine's own cp -a of the same tree, which has been read before.
func copySmall(ctx context.Context, r *rig) (float64, error) {
	return r.rwcopy(ctx, "10,000 files of 4 KiB", func(dir string) error {
		content := make([]byte, 4096)
		for i := range 10_000 {
			sub := filepath.Join(dir, fmt.Sprint(i/100))
			if i%100 == 0 {
				if err := os.Mkdir(sub, 0o755); err != nil {
					return err
				}
			}
			rand.Read(content)
			if err := os.WriteFile(filepath.Join(sub, fmt.Sprint(i%100)), content, 0o644); err != nil {
				return err
			}
		}
		return nil
	})
}

func copyGo(ctx context.Context, r *rig) (float64, error) {
	return r.rwcopy(ctx, "the Go installation's src", func(dir string) error {
		root, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
		if err != nil {
			return err
		}
		return exec.CommandContext(ctx, "cp", "-a", filepath.Join(strings.TrimSpace(string(root)), "src"), dir).Run()
	})
}

func copyGiB(ctx context.Context, r *rig) (float64, error) {
	return r.rwcopy(ctx, "8 files of 128 MiB", func(dir string) error {
		for i := range 8 {
			f, err := os.Create(filepath.Join(dir, fmt.Sprint(i)))
			if err != nil {
				return err
			}
			_, err = io.CopyN(f, rand.Reader, 128<<20)
			if err := errors.Join(err, f.Close()); err != nil {
				return err
			}
		}
		return nil
	})
}

// rwcopy returns the ratio, and tells of the pieces.
func (r *rig) rwcopy(ctx context.Context, what string, fill func(dir string) error) (float64, error) {
	if !r.local {
		return 0, errors.New("cp can be compared with on the engine's own machine alone")
	}
	top, err := os.MkdirTemp("", "bench")
	if err != nil {
		return 0, err
	}
	// Not now: creating files soon after many were deleted is slow, and here alone.
	r.rubbish = append(r.rubbish, top)
	tree := filepath.Join(top, "tree")
	if err := os.Mkdir(tree, 0o755); err != nil {
		return 0, err
	}
	if err := fill(tree); err != nil {
		return 0, err
	}
	if _, err := r.warm(ctx); err != nil {
		return 0, err
	}
	var plain, mounted, copied, ratios samples
	for round := range 8 {
		if ctx.Err() != nil {
			return 0, context.Cause(ctx)
		}
		var took [3]float64
		ways := []func() error{
			func() error { _, err := r.create(ctx); return err },
			func() error {
				_, err := r.client.Create(ctx, sandbox.WithTags(map[string]string{tag: r.id}), sandbox.WithStopTimeout(2*time.Second),
					sandbox.WithMounts(sandbox.Mount{Source: tree, Target: "/tree"}))
				return err
			},
			func() error {
				return exec.CommandContext(ctx, "cp", "-a", tree, filepath.Join(top, fmt.Sprint(round))).Run()
			},
		}
		for i := range ways {
			i = (i + round) % len(ways)
			if took[i], err = milliseconds(ways[i]); err != nil {
				return 0, err
			}
		}
		if round == 0 {
			continue // warm-up
		}
		plain, mounted, copied = append(plain, took[0]), append(mounted, took[1]), append(copied, took[2])
		ratios = append(ratios, (took[1]-took[0])/took[2])
	}
	note("%s: Create %v ms, with the copy %v ms, cp -a %v ms; ratios %v", what, plain, mounted, copied, ratios)
	return ratios.median(), nil
}

// listVolumes500: a list of 500 volumes, against the engine's own lists of volumes and
// containers and its disk usage one after the other.
func listVolumes500(ctx context.Context, r *rig) (float64, error) {
	if _, err := r.warm(ctx); err != nil {
		return 0, err
	}
	for i := range 500 {
		labels := map[string]string{"agent-sandbox.managed": "true", "agent-sandbox.role": "workspace", "agent-sandbox.id": fmt.Sprint(r.id, i),
			"agent-sandbox.created-at": time.Now().Format(time.RFC3339Nano), byHandLabel: r.id}
		if err := r.api.call(ctx, "POST", "/volumes/create",
			map[string]any{"Name": fmt.Sprintf("agent-sandbox-bench-%s-%d", r.id, i), "Labels": labels, "DriverOpts": map[string]string{"size": "0"}}, nil); err != nil {
			return 0, err
		}
	}
	ours, theirs, ratios, err := pairs(ctx, 2, 9,
		func() (float64, error) {
			return milliseconds(func() error { _, err := r.client.ListVolumes(ctx); return err })
		},
		func() (float64, error) {
			return milliseconds(func() error {
				for _, path := range []string{"/volumes", "/containers/json?all=1", "/system/df?type=volume"} {
					var v any
					if err := r.api.call(ctx, "GET", path, nil, &v); err != nil {
						return err
					}
				}
				return nil
			})
		})
	if err != nil {
		return 0, err
	}
	note("500 volumes: listed in %v ms, by the engine's own calls in %v ms", ours, theirs)
	return ratios.median(), nil
}
