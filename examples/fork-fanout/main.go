// Fork-fanout prepares a project once, takes a snapshot, and tries eight variants of a build
// in parallel, each in a sandbox of its own. The best one is kept under a name.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/seed-1a2d6d8f/sandbox"
)

const variants = 8

func main() {
	log.SetFlags(0)
	if err := run(context.Background()); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) (err error) {
	// Install and build, once. The files are in the workspace and outside of it.
	base, err := sandbox.Create(ctx)
	if err != nil {
		return err
	}
	defer base.Close()
	prepare := `mkdir -p /opt/tool && echo 'process.stdout.write(require("zlib").deflateSync(require("fs").readFileSync("input"), {level: +process.argv[2]}))' >/opt/tool/pack.js
		node -e 'for (let i = 0; i < 20000; i++) console.log(i, i * i % 9973)' >input`
	if err := base.Command(ctx, "sh", "-ec", prepare).Run(); err != nil {
		return err
	}
	snap, err := base.Snapshot(ctx, sandbox.SnapshotOptions{Name: "prepared"})
	if err != nil {
		return err
	}
	fmt.Printf("prepared once: snapshot %s has %d bytes\n", snap.ID, snap.SizeBytes)

	// Try in parallel.
	type try struct {
		sb    *sandbox.Sandbox
		level int
		size  int
	}
	tries := make([]try, variants)
	defer func() {
		for _, t := range tries {
			if t.sb != nil {
				err = errors.Join(err, t.sb.Close()) // which deletes it, since it has no name
			}
		}
		err = errors.Join(err, sandbox.DeleteSnapshot(ctx, snap.ID))
	}()
	g, gctx := errgroup.WithContext(ctx)
	for i := range tries {
		t := &tries[i]
		t.level = i + 2
		g.Go(func() (err error) {
			if t.sb, err = sandbox.Create(gctx, sandbox.WithSource(sandbox.FromSnapshot(snap.ID))); err != nil {
				return err
			}
			out, err := t.sb.Command(gctx, "sh", "-ec", fmt.Sprintf("node /opt/tool/pack.js %d >packed; wc -c <packed", t.level)).Output()
			if err != nil {
				return err
			}
			_, err = fmt.Sscan(strings.TrimSpace(string(out)), &t.size)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}

	best := slices.MinFunc(tries, func(a, b try) int { return cmp.Compare(a.size, b.size) })
	fmt.Printf("level %d is the best of %d: %d bytes\n", best.level, variants, best.size)
	kept, err := best.sb.Fork(ctx, sandbox.WithName("fork-fanout-best"))
	if err != nil {
		return err
	}
	defer kept.Close()
	out, err := kept.Command(ctx, "sh", "-c", "ls -l packed; ls /opt/tool").Output()
	fmt.Printf("kept as %s:\n%s", kept.Name(), out)
	if err != nil {
		return err
	}
	// Leave this out to continue with it.
	_, err = kept.Delete(ctx, sandbox.DeleteOptions{Volumes: true})
	return err
}
