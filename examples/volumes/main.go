// Volumes copies a project into a sandbox's volume and changes it there, deletes the sandbox
// but keeps the volume, attaches it to another sandbox, and cleans up.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/seed-1a2d6d8f/sandbox"
)

func main() {
	if err := run(context.Background()); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) (err error) {
	project, err := os.MkdirTemp("", "project")
	if err != nil {
		return err
	}
	defer os.RemoveAll(project)
	readme := filepath.Join(project, "README")
	if err := os.WriteFile(readme, []byte("on the host\n"), 0o644); err != nil {
		return err
	}

	// The directory is copied into a volume of the sandbox.
	first, err := sandbox.Create(ctx, sandbox.WithName("volumes-first"),
		sandbox.WithMounts(sandbox.Mount{Source: project, Target: "/project"}))
	if err != nil {
		return err
	}
	volume := first.Mounts()[0].Volume
	defer func() {
		// Clean up, whatever happens.
		for _, name := range []string{"volumes-first", "volumes-second"} {
			if _, e := sandbox.Delete(ctx, name, sandbox.DeleteOptions{Volumes: true}); e != nil && !errors.Is(e, sandbox.ErrNotFound) {
				err = errors.Join(err, e)
			}
		}
		report, e := sandbox.CleanupOrphanedVolumes(ctx, sandbox.CleanupOptions{Select: func(v sandbox.Volume) bool { return v.Name == volume || v.Name == "agent-sandbox-"+first.ID() }})
		fmt.Println(report)
		err = errors.Join(err, e)
	}()
	if err := first.Command(ctx, "sh", "-c", "echo changed inside > /project/README").Run(); err != nil {
		return err
	}
	text, err := os.ReadFile(readme)
	if err != nil {
		return err
	}
	fmt.Printf("the file on the host still says: %s", text)

	// Delete keeps the volumes, and reports them.
	report, err := first.Delete(ctx, sandbox.DeleteOptions{})
	if err != nil {
		return err
	}
	fmt.Println(report)
	orphans, err := sandbox.OrphanedVolumes(ctx)
	if err != nil {
		return err
	}
	for _, v := range orphans {
		if v.Name == volume {
			fmt.Printf("orphaned: a copy of %s, %s\n", v.Source, v.Size)
		}
	}

	// Any sandbox can attach it.
	second, err := sandbox.Create(ctx, sandbox.WithName("volumes-second"),
		sandbox.WithMounts(sandbox.Mount{Volume: volume, Target: "/project", Mode: sandbox.RO}))
	if err != nil {
		return err
	}
	defer second.Close()
	out, err := second.Command(ctx, "cat", "/project/README").Output()
	if err != nil {
		return err
	}
	fmt.Printf("the file in the volume says: %s", out)
	return nil
}
