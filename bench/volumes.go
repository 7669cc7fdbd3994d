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

// rwcopy compares the time that a copied mount adds to Create with cp -a of the same tree, in
// the file cache. The engine copies it itself or, if streamed, through this process, as for a
// remote engine.
func rwcopy(tree copied, streamed bool) func(context.Context, *rig) (float64, error) {
	return func(ctx context.Context, r *rig) (float64, error) { return r.rwcopy(ctx, tree, streamed) }
}

// copied is a tree to copy.
type copied struct {
	what string
	fill func(dir string) error
}

var (
	small = copied{"10,000 files of 4 KiB", files10k}
	goSrc = copied{"the Go installation's src", func(dir string) error {
		root, err := exec.Command("go", "env", "GOROOT").Output()
		if err != nil {
			return err
		}
		return exec.Command("cp", "-a", filepath.Join(strings.TrimSpace(string(root)), "src"), dir).Run()
	}}
	gibibyte = copied{"8 files of 128 MiB", func(dir string) error {
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
	}}
)

// tree creates the tree in a directory that is removed at the end. Not before: creating files
// soon after many were deleted is slow.
func (r *rig) tree(t copied) (string, error) {
	if !r.local {
		return "", errors.New("the comparison with cp needs an engine on this machine")
	}
	top, err := os.MkdirTemp("", "bench")
	if err != nil {
		return "", err
	}
	r.dirs = append(r.dirs, top)
	tree := filepath.Join(top, "tree")
	if err := os.Mkdir(tree, 0o755); err != nil {
		return "", err
	}
	return tree, t.fill(tree)
}

func (r *rig) rwcopy(ctx context.Context, t copied, streamed bool) (_ float64, err error) {
	tree, err := r.tree(t)
	if err != nil {
		return 0, err
	}
	source, how := tree, "a copy of "
	if streamed {
		// A path that only this process can resolve.
		was, err := os.Getwd()
		if err == nil {
			err = os.Chdir(filepath.Dir(tree))
		}
		if err != nil {
			return 0, err
		}
		defer func() { err = errors.Join(err, os.Chdir(was)) }()
		source, how = "/proc/self/cwd/tree", "a copy through this process of "
	}
	return r.beyondCreate(ctx, how+t.what, tree, func() error {
		_, err := r.create(ctx, sandbox.WithMounts(sandbox.Mount{Source: source, Target: "/tree"}))
		return err
	})
}

// beyondCreate compares the time that create, which makes a sandbox with a tree, takes longer
// than a plain Create with cp -a of that tree.
func (r *rig) beyondCreate(ctx context.Context, what, tree string, create func() error) (float64, error) {
	if _, err := r.warm(ctx); err != nil {
		return 0, err
	}
	var plain, with, cps, ratios samples
	for round := range 5 {
		if ctx.Err() != nil {
			return 0, context.Cause(ctx)
		}
		var took [3]float64
		ways := []func() error{
			func() error { return second(r.create(ctx)) },
			create,
			func() error {
				return exec.CommandContext(ctx, "cp", "-a", tree, filepath.Join(filepath.Dir(tree), fmt.Sprint(round))).Run()
			},
		}
		for i := range ways {
			i = (i + round) % len(ways)
			// Don't let the next one wait for writes of the one before.
			err := exec.CommandContext(ctx, "sync").Run()
			if err != nil {
				return 0, err
			}
			if took[i], err = milliseconds(ways[i]); err != nil {
				return 0, err
			}
		}
		if round == 0 {
			continue // warm-up
		}
		plain, with, cps = append(plain, took[0]), append(with, took[1]), append(cps, took[2])
		ratios = append(ratios, (took[1]-took[0])/took[2])
	}
	note("%s: %v ms, Create alone %v ms, cp -a %v ms; ratios %v", what, with, plain, cps, ratios)
	return ratios.median(), nil
}

// listVolumes500 compares a list of 500 volumes with the engine's lists of volumes and
// containers and its disk usage, one after the other.
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
	// One round: the engine's disk usage takes a minute, hundreds of times what ours does.
	ours, theirs, ratios, err := pairs(ctx, 0, 1,
		timed(func() error { return second(r.client.ListVolumes(ctx)) }),
		timed(func() error {
			for _, path := range []string{"/volumes", "/containers/json?all=1", "/system/df?type=volume"} {
				var v any
				if err := r.api.call(ctx, "GET", path, nil, &v); err != nil {
					return err
				}
			}
			return nil
		}))
	if err != nil {
		return 0, err
	}
	note("500 volumes: listed in %v ms, by the engine's own calls in %v ms", ours, theirs)
	return ratios.median(), nil
}
