package sandbox_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
)

// A command line's --mount and --volume.
func ExampleParseMount() {
	copied, err := sandbox.ParseMount("/home/me/project:/project")
	if err != nil {
		fmt.Println(err)
		return
	}
	attached, err := sandbox.ParseVolumeMount("agent-sandbox-abc123:/data:ro")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(copied)
	fmt.Println(attached)
	_, err = sandbox.ParseMount("/home/me/project:/project:readonly")
	fmt.Println(errors.Is(err, sandbox.ErrInvalidArgument))
	// Output:
	// /project: rwcopy snapshot of /home/me/project
	// /data: existing volume agent-sandbox-abc123 (ro)
	// true
}

// The mode of a volume is read-write unless it is given.
func ExampleParseVolumeMount() {
	m, err := sandbox.ParseVolumeMount("agent-sandbox-abc123:/data")
	fmt.Println(m.Volume, m.Target, m.Mode, err)
	// Output: agent-sandbox-abc123 /data rw <nil>
}

// A volume is found with its size and its users.
func ExampleListVolumes() {
	ctx := context.Background()
	volumes, err := sandbox.ListVolumes(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, v := range volumes {
		if v.Name == "agent-sandbox-abc123" {
			fmt.Println(v.Size, v.Sandboxes, v.State(), v.Warning)
		}
	}
	// Output:
}

// A deletion preserves the volumes of a sandbox. They are found, and deleted, later.
func ExampleOrphanedVolumes() {
	ctx := context.Background()
	sb, err := sandbox.Create(ctx, sandbox.WithName(example("orphans")))
	if err != nil {
		fmt.Println(err)
		return
	}
	report, err := sb.Delete(ctx, sandbox.DeleteOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	workspace := report.Volumes[0].Name
	orphans, err := sandbox.OrphanedVolumes(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, v := range orphans {
		if v.Name == workspace {
			fmt.Println(v.State(), v.Size)
		}
	}
	if _, err := sandbox.DeleteVolume(ctx, workspace, sandbox.DeleteVolumeOptions{}); err != nil {
		fmt.Println(err)
	}
	// Output: orphaned 0 B
}

// While a sandbox mounts it, a volume stays, unless Force deletes the sandbox, too.
func ExampleDeleteVolume() {
	ctx := context.Background()
	sb, err := sandbox.Create(ctx, sandbox.WithName(example("force")))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sb.Close()
	workspace := "agent-sandbox-" + sb.ID()
	_, err = sandbox.DeleteVolume(ctx, workspace, sandbox.DeleteVolumeOptions{})
	fmt.Println(errors.Is(err, sandbox.ErrVolumeInUse))
	report, err := sandbox.DeleteVolume(ctx, workspace, sandbox.DeleteVolumeOptions{Force: true})
	fmt.Println(len(report.Sandboxes), report.Volumes[0].Status, err)
	// Output:
	// true
	// 1 deleted <nil>
}

// What would be removed is shown first, and then removed if someone agrees.
func ExampleCleanupOrphanedVolumes() {
	ctx := context.Background()
	old := sandbox.CleanupOptions{MinAge: 90 * 24 * time.Hour, Roles: []string{"rwcopy", "fork"}, DryRun: true}
	report, err := sandbox.CleanupOrphanedVolumes(ctx, old)
	if err != nil {
		fmt.Println(err)
		return
	}
	agreed := len(report.Removed) == 0
	old.DryRun = false
	old.Confirm = func([]sandbox.Volume) error {
		if !agreed {
			return errors.New("nobody has agreed")
		}
		return nil
	}
	report, err = sandbox.CleanupOrphanedVolumes(ctx, old)
	fmt.Println(report.FreedBytes, len(report.Failed), err)
	// Output: 0 0 <nil>
}
