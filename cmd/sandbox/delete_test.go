package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// details is "inspect NAME".
func details(t *testing.T, name string) (st sandbox.Status) {
	t.Helper()
	if err := json.Unmarshal([]byte(mustCall(t, "inspect", name)), &st); err != nil {
		t.Fatal(err)
	}
	return st
}

// listed is one volume of "volume list".
func listed(t *testing.T, name string) sandbox.Volume {
	t.Helper()
	var all []sandbox.Volume
	if err := json.Unmarshal([]byte(mustCall(t, "volume", "list", "--json")), &all); err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(all, func(v sandbox.Volume) bool { return v.Name == name })
	if i < 0 {
		t.Fatalf("volume list does not have %s", name)
	}
	return all[i]
}

// lines are the lines of a report, in any order.
func sameLines(t *testing.T, what, got string, want ...string) {
	t.Helper()
	lines := strings.Split(strings.TrimSuffix(got, "\n"), "\n")
	slices.Sort(lines)
	slices.Sort(want)
	if diff := cmp.Diff(want, lines); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// A mounted directory from its copy to the deletion of the volume.
func TestVolumesFromMountToDeletion(t *testing.T) {
	enginetest.Need(t)
	t.Parallel()
	dir, shown := harness.HostDir(t, map[string]string{"file": "host\n"}), harness.HostDir(t, map[string]string{"file": "shown\n"})
	first, second, third := harness.UniqueName(t), harness.UniqueName(t), harness.UniqueName(t)
	removeAtEnd(t, first, second, third)

	mustCall(t, "create", "--name", first, "--mount", dir+":/copy", "--mount", shown+":/read:ro", "--mount", shown+":/write:rw", "-y")
	st := details(t, first)
	workspace := st.Workspace.Name
	if workspace != "agent-sandbox-"+st.ID {
		t.Errorf("the workspace is %s", workspace)
	}
	var copied string
	for _, m := range st.Settings.Mounts { // in the order given
		copied += m.Volume
	}
	script := "cat /copy/file /read/file; echo inside >/copy/file; echo inside >/write/file; touch /read/new 2>&1"
	code, out, _ := call(t.Context(), "", "exec", first, "--", "sh", "-c", script)
	if code == 0 || !strings.HasPrefix(out, "host\nshown\n") || !strings.Contains(out, "Read-only file system") {
		t.Errorf("in the mounts: code %d, %q", code, out)
	}
	for file, want := range map[string]string{filepath.Join(dir, "file"): "host\n", filepath.Join(shown, "file"): "inside\n"} {
		if b, err := os.ReadFile(file); err != nil || string(b) != want {
			t.Errorf("%s has %q, %v, want %q", file, b, err, want)
		}
	}
	if v := listed(t, copied); v.Source != dir || v.CreatedBy != "rwcopy" || !v.InUse || !slices.Equal(v.Sandboxes, []string{first}) || time.Since(v.CreatedAt) > time.Hour {
		t.Errorf("volume list has %+v", v)
	}
	code, _, errOut := call(t.Context(), "", "volume", "delete", copied)
	if code != codeFailed || !strings.Contains(errOut, "Volume is in use by running sandbox") || !strings.Contains(errOut, first) || !strings.Contains(errOut, "see sandbox volume list") {
		t.Errorf("volume delete of a running sandbox: code %d, %q", code, errOut)
	}
	sameLines(t, "delete", mustCall(t, "delete", first), "volume "+workspace+": preserved", "volume "+copied+": preserved")
	if v := listed(t, copied); v.Source != dir || !v.Orphaned || len(v.Sandboxes) > 0 {
		t.Errorf("volume list has after the deletion %+v", v)
	}
	rows := strings.Split(mustCall(t, "volume", "list"), "\n")
	if i := slices.IndexFunc(rows, func(row string) bool { return strings.HasPrefix(row, copied) }); i < 0 || !slices.Contains(strings.Fields(rows[i]), "orphaned") {
		t.Errorf("volume list = %q, want a row of %s with the word orphaned", rows, copied)
	}

	code, _, errOut = call(t.Context(), "", "create", "--name", second, "--volume", "agent-sandbox-none:/data", "-y")
	if code != codeFailed || !strings.Contains(errOut, "agent-sandbox-none") || !strings.Contains(errOut, "see sandbox volume list") {
		t.Errorf("create with a volume that is not there: code %d, %q", code, errOut)
	}
	mustCall(t, "create", "--name", second, "--volume", copied+":/data", "--volume", workspace+":/old:ro", "-y")
	code, out, _ = call(t.Context(), "", "exec", second, "--", "sh", "-c", "cat /data/file; echo again >/data/file; touch /old/new 2>&1")
	if code == 0 || !strings.HasPrefix(out, "inside\n") || !strings.Contains(out, "Read-only file system") {
		t.Errorf("in the attached volumes: code %d, %q", code, out)
	}
	mustCall(t, "create", "--name", third, "--volume", copied+":/data", "-y")
	table := mustCall(t, "volume", "list")
	names := []string{second, third}
	slices.Sort(names)
	if header, _, _ := strings.Cut(table, "\n"); !slices.Equal(strings.Fields(header), []string{"NAME", "ROLE", "SIZE", "SHARED", "CREATED", "SOURCE", "STATUS", "SANDBOXES"}) || !strings.Contains(table, strings.Join(names, ",")) {
		t.Errorf("volume list = %q", table)
	}
	mustCall(t, "stop", second, third)
	code, _, errOut = call(t.Context(), "", "volume", "delete", copied)
	if code != codeFailed || !strings.Contains(errOut, "volume "+copied+" is referenced by sandboxes "+strings.Join(names, ", ")) {
		t.Errorf("volume delete of stopped sandboxes: code %d, %q", code, errOut)
	}
	own := details(t, second).Workspace.Name
	sameLines(t, "delete --delete-volumes of one of two", mustCall(t, "delete", "--delete-volumes", second),
		"volume "+own+": deleted", "volume "+workspace+": deleted", "volume "+copied+": preserved (still referenced by "+third+")")

	own = details(t, third).Workspace.Name
	sameLines(t, "volume delete --force", mustCall(t, "volume", "delete", "--force", copied),
		"sandbox "+third+": deleted", "volume "+own+": preserved", "volume "+copied+": deleted")
	var done []map[string]any
	if err := json.Unmarshal([]byte(mustCall(t, "volume", "rm", "--json", own)), &done); err != nil || fmt.Sprint(done) != fmt.Sprintf("[map[name:%s volumes:[map[name:%[1]s status:deleted]]]]", own) {
		t.Errorf("volume rm --json = %v, %v", done, err)
	}
	if code, _, errOut := call(t.Context(), "", "volume", "delete", own, copied); code != codeFailed || strings.Count(errOut, sandbox.ErrVolumeNotFound.Error()) != 2 || strings.Count(errOut, "see sandbox volume list") != 1 {
		t.Errorf("volume delete of two that are gone: code %d, %q", code, errOut)
	}
}

// A volume that can't be deleted is one line of the report, and of no harm to
// the others.
func TestDeletionThatFailsInPart(t *testing.T) {
	enginetest.Need(t)
	t.Parallel()
	eng := harness.NewEngine(t)
	dir := harness.HostDir(t, map[string]string{"file": "host\n"})
	text, asJSON := harness.UniqueName(t), harness.UniqueName(t)
	removeAtEnd(t, text, asJSON)
	for _, name := range []string{text, asJSON} {
		mustCall(t, "create", "--name", name, "--mount", dir+":/copy", "-y")
		st := details(t, name)
		own, copied := st.Workspace.Name, st.Settings.Mounts[0].Volume
		foreign, err := eng.CreateContainer(t.Context(), engine.ContainerSpec{
			Name: "foreign-" + st.ID, Image: sandbox.DefaultImage, NetworkMode: "none", Mounts: []engine.Mount{{Type: "volume", Source: copied, Target: "/held"}},
		})
		if err != nil {
			t.Fatal(err)
		}
		remove := func() {
			if err := eng.RemoveContainer(context.Background(), foreign, true); err != nil {
				t.Error(err)
			}
		}
		args := []string{"-q", "delete", "--delete-volumes", name}
		if name == asJSON {
			args = append(args, "--json")
		}
		code, out, errOut := call(t.Context(), "", args...)
		if code != codeFailed || !strings.Contains(errOut, copied) {
			t.Errorf("%v: code %d, %q", args, code, errOut)
		}
		if name == asJSON {
			var done []deletion
			if err := json.Unmarshal([]byte(out), &done); err != nil || len(done) != 1 || done[0].Name != name || len(done[0].Volumes) != 2 {
				t.Errorf("%v = %s, %v", args, out, err)
			} else if i := slices.IndexFunc(done[0].Volumes, func(o sandbox.VolumeOutcome) bool { return o.Name == copied }); i < 0 ||
				done[0].Volumes[i].Status != "delete-failed" || done[0].Volumes[i].Reason == "" || done[0].Volumes[1-i].Status != "deleted" {
				t.Errorf("%v = %s", args, out)
			}
		} else {
			rest, is := strings.CutPrefix(out, "volume "+own+": deleted\n")
			if reason, failed := strings.CutPrefix(rest, "volume "+copied+": delete failed: "); !is || !failed || strings.Count(reason, "\n") != 1 || !strings.Contains(reason, "foreign-"+st.ID) {
				t.Errorf("%v = %q", args, out)
			}
		}
		if code, _, errOut := call(t.Context(), "", "inspect", name); code != codeFailed || !strings.Contains(errOut, fmt.Sprintf("there is no sandbox %q; see sandbox list", name)) {
			t.Errorf("inspect of what was deleted: code %d, %q", code, errOut)
		}
		if v := listed(t, copied); v.Source != dir || !v.Orphaned {
			t.Errorf("the volume that stays is listed as %+v", v)
		}
		remove()
		if got, want := mustCall(t, "volume", "delete", copied), "volume "+copied+": deleted\n"; got != want {
			t.Errorf("volume delete = %q, want %q", got, want)
		}
	}
}

// A volume that somebody else created is not attached, whatever its name.
func TestVolumeOfOthersIsNotTracked(t *testing.T) {
	foreign := enginetest.NewForeign(t)
	code, _, errOut := call(t.Context(), "", "create", "--volume", foreign.Volume+":/x", "-y")
	if code != codeFailed || !strings.Contains(errOut, "volume "+foreign.Volume+" is not tracked") {
		t.Errorf("create --volume %s: code %d, %q, want %d and \"not tracked\"", foreign.Volume, code, errOut, codeFailed)
	}
}

// Of several names those that fail don't stop the others.
func TestSeveralNamesCollectFailures(t *testing.T) {
	enginetest.Need(t)
	t.Parallel()
	name := harness.UniqueName(t)
	removeAtEnd(t, name)
	mustCall(t, "create", "--name", name)
	code, out, errOut := call(t.Context(), "", "stop", "--json", "none-1", name, "../x")
	var done []map[string]any
	if err := json.Unmarshal([]byte(out), &done); err != nil || fmt.Sprint(done) != "[map[name:"+name+" status:stopped]]" {
		t.Errorf("stop --json = %s, %v", out, err)
	}
	if code != codeUsage || !strings.Contains(errOut, `"none-1": Sandbox not found`) || !strings.Contains(errOut, `"../x"`) || !strings.Contains(errOut, `there is no sandbox "none-1"; see sandbox list`) {
		t.Errorf("stop: code %d, %q", code, errOut)
	}
	code, out, errOut = call(t.Context(), "", "start", "--json", "none-1", name)
	if code != codeFailed || !strings.Contains(out, `"status": "running"`) || !strings.Contains(errOut, "none-1") || details(t, name).State != sandbox.StateRunning {
		t.Errorf("start: code %d, %q, %q", code, out, errOut)
	}
	code, out, errOut = call(t.Context(), "", "rm", "none-1", name, "none-2")
	if code != codeFailed || strings.Count(out, ": preserved\n") != 1 || strings.Count(errOut, "see sandbox list") != 2 {
		t.Errorf("rm: code %d, %q, %q", code, out, errOut)
	}
	volume := strings.TrimSuffix(strings.TrimPrefix(out, "sandbox "+name+": deleted\nvolume "), ": preserved\n")
	var report sandbox.CleanupReport
	out = mustCall(t, "volume", "cleanup", "--json", "--yes", "--name", volume, "--role", "workspace", "--min-age", "0s")
	if err := json.Unmarshal([]byte(out), &report); err != nil || !slices.Equal(report.Removed, []string{volume}) || report.DryRun || !strings.Contains(out, `"failed": []`) {
		t.Errorf("volume cleanup --json = %s, %v", out, err)
	}
	if got := mustCall(t, "volume", "cleanup", "--yes", "--name", volume); got != "freed 0 B\n" {
		t.Errorf("a cleanup of nothing = %q", got)
	}
}
