package trpc_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"trpc.group/trpc-go/trpc-agent-go/artifact"
	"trpc.group/trpc-go/trpc-agent-go/artifact/inmemory"
	"trpc.group/trpc-go/trpc-agent-go/codeexecutor"
	"trpc.group/trpc-go/trpc-agent-go/codeexecutor/local"

	"github.com/seed-1a2d6d8f/sandbox/adapters/trpc"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

var (
	places = []string{"a.txt", "out/b.txt", "out/d/c.bin", "work/x y", "skills/s/run.sh", "src/ä.md", "work/inputs/i", "out"}
	globs  = []string{"**", "out/**", "$OUTPUT_DIR/*.txt", "${WORK_DIR}/*", "*", "*/*.{txt,md}", "out/d/../*.txt", "../*", "/a.txt", "[", ".", "skills/s/*", "work/inputs/link/*", "none/**"}
	texts  = []string{"", "one\n", "\x00\x01binary\xff", "<html><body>", strings.Repeat("long ", 300)}
	ids    = []string{"artifact://text", "artifact://text@0", "artifact://none", "artifact://@x", "workspace://a.txt", "workspace://out", "workspace://none", "skill://s/run.sh", "skill://s", "http://x", "noslash"}
)

func pick(r *rand.Rand, from []string) string { return from[r.IntN(len(from))] }

// op makes one call of any engine. what says which one.
func op(r *rand.Rand, host string) (what string, do func(context.Context, codeexecutor.Engine, codeexecutor.Workspace) (any, error)) {
	place := pick(r, places)
	switch r.IntN(12) {
	case 0, 1, 2:
		f := codeexecutor.PutFile{Path: pick(r, append(places, "../e", "/abs", "")), Content: []byte(pick(r, texts)), Mode: []uint32{0, 0o600, 0o755}[r.IntN(3)]}
		return fmt.Sprintf("PutFiles %q %d %o", f.Path, len(f.Content), f.Mode), func(ctx context.Context, e codeexecutor.Engine, ws codeexecutor.Workspace) (any, error) {
			return nil, e.FS().PutFiles(ctx, ws, []codeexecutor.PutFile{f})
		}
	case 3:
		o := codeexecutor.StageOptions{ReadOnly: r.IntN(4) == 0}
		src, to := pick(r, []string{host, host, host + "/none", ""}), pick(r, []string{"skills/s", "work/staged", "", "out"})
		if src != host {
			to = "work/nothing" // the framework makes the directory, which then is there for other calls
		}
		if to == "" {
			o.ReadOnly = false // the framework fails for a link that leads nowhere
		}
		return fmt.Sprintf("StageDirectory %q %q %v", strings.TrimPrefix(src, host), to, o), func(ctx context.Context, e codeexecutor.Engine, ws codeexecutor.Workspace) (any, error) {
			return nil, e.FS().StageDirectory(ctx, ws, src, to, o)
		}
	case 4, 5:
		in := codeexecutor.InputSpec{From: pick(r, append(ids, "host://"+host)), To: pick(r, []string{"", place, "work/inputs/link"}), Mode: pick(r, []string{"", "copy", " Link "}), Pin: r.IntN(2) == 0}
		if strings.HasPrefix(in.From, "host://") {
			in.Mode = "" // ours has no links to this machine
		}
		if in.From == "workspace://out" || in.From == "skill://s" {
			in.To = "work/copied" // the framework's copy of a directory into itself does not end
		}
		if in.Mode == " Link " {
			// Where no wildcard goes through it. The framework leaves directories of copies that failed, which
			// a link could lead to.
			in.To, in.From = "work/inputs/link", pick(r, []string{"workspace://a.txt", "workspace://out"})
		}
		return fmt.Sprintf("StageInputs %+v", in), func(ctx context.Context, e codeexecutor.Engine, ws codeexecutor.Workspace) (any, error) {
			return nil, e.FS().StageInputs(ctx, ws, []codeexecutor.InputSpec{in})
		}
	case 6, 7:
		patterns := []string{pick(r, globs), pick(r, globs)}[:1+r.IntN(2)]
		return fmt.Sprintf("Collect %q", patterns), func(ctx context.Context, e codeexecutor.Engine, ws codeexecutor.Workspace) (any, error) {
			return collected(e.FS().Collect(ctx, ws, patterns))
		}
	case 8, 9:
		spec := codeexecutor.OutputSpec{Globs: []string{pick(r, globs), pick(r, globs)}, MaxFiles: r.IntN(4), MaxFileBytes: int64(r.IntN(3)) * 600, MaxTotalBytes: int64(r.IntN(3)) * 900,
			Inline: r.IntN(2) == 0, Save: r.IntN(3) == 0, NameTemplate: pick(r, []string{"", "p/"})}
		if spec.Save && spec.Globs[1] == "[" {
			slices.Reverse(spec.Globs) // before it refuses a pattern, the framework saves what those before it match; ours saves nothing
		}
		if spec.MaxTotalBytes > 0 {
			spec.Globs = spec.Globs[:1] // the framework goes on with the next one, without bytes
		}
		return fmt.Sprintf("CollectOutputs %+v", spec), func(ctx context.Context, e codeexecutor.Engine, ws codeexecutor.Workspace) (any, error) {
			out, err := e.FS().CollectOutputs(ctx, ws, spec)
			out.Files = slices.DeleteFunc(out.Files, func(f codeexecutor.FileRef) bool { return f.Name == codeexecutor.MetaFileName })
			if slices.Contains(spec.Globs, "**") || slices.Contains(spec.Globs, "*") {
				return nil, nil // metadata with times counts
			}
			if len(out.Files) == spec.MaxFiles {
				out.LimitsHit = false // with the framework also if what is left are directories
			}
			return out, err
		}
	default:
		spec := codeexecutor.RunProgramSpec{Cmd: "sh", Cwd: pick(r, []string{"", "work", "new/dir"}), Stdin: pick(r, texts), Env: map[string]string{"A": "b c"}, CleanEnv: r.IntN(2) == 0, Timeout: time.Minute}
		script := pick(r, []string{"cat; exit 3", "echo $A $1; echo err >&2", "pwd | sed s,$WORKSPACE_DIR,WS,; ls $SKILLS_DIR $WORK_DIR $OUTPUT_DIR | grep -c ws_", "echo >>$WORKSPACE_DIR/a.txt; ln -sf ../a.txt $WORK_DIR/link.txt", "rm -rf $OUTPUT_DIR; mkdir $OUTPUT_DIR; echo new >$OUTPUT_DIR/n", "test -d $RUN_DIR && echo run >$RUN_DIR/f; ls $RUN_DIR"})
		spec.Args = []string{"-c", script, "sh", "arg 1"}
		if r.IntN(8) == 0 {
			spec.Cmd, spec.CleanEnv = "no-such-program", false
		}
		return fmt.Sprintf("RunProgram %s %q in %q, clean %t", spec.Cmd, script, spec.Cwd, spec.CleanEnv), func(ctx context.Context, e codeexecutor.Engine, ws codeexecutor.Workspace) (any, error) {
			res, err := e.Runner().RunProgram(ctx, ws, spec)
			if res.Duration = 0; res.ExitCode == -1 {
				res.Stderr = "" // ours says what is wrong
			}
			return res, err
		}
	}
}

// collected are files in order, without what differs from run to run.
func collected(files []codeexecutor.File, err error) (any, error) {
	files = slices.DeleteFunc(files, func(f codeexecutor.File) bool {
		return f.Name == codeexecutor.MetaFileName || strings.HasPrefix(f.Name, codeexecutor.DirRuns+"/")
	})
	slices.SortFunc(files, func(a, b codeexecutor.File) int { return strings.Compare(a.Name, b.Name) })
	return files, err
}

// The same calls, of the framework's local engine and of ours.
func TestEngineIsLikeTheFrameworks(t *testing.T) {
	t.Parallel()
	sb := harness.NewSandbox(t)
	host := t.TempDir()
	for name, mode := range map[string]os.FileMode{"h.txt": 0o644, "sub/run.sh": 0o755} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(filepath.Join(host, name)), 0o755), os.WriteFile(filepath.Join(host, name), []byte("of the host"), mode)); err != nil {
			t.Fatal(err)
		}
	}
	engines := []codeexecutor.Engine{local.New(local.WithWorkDir(t.TempDir())).Engine(), trpc.New(sb, trpc.Options{}).Engine()}
	succeeded := map[string]int{}
	for _, seed := range harness.Seeds(1, 30) {
		t.Logf("seed %d", seed)
		r := rand.New(rand.NewPCG(seed, 0))
		for range 6 {
			compare(t, r, engines, host, succeeded)
		}
	}
	for _, kind := range []string{"PutFiles", "StageDirectory", "StageInputs", "Collect", "CollectOutputs", "RunProgram"} {
		if succeeded[kind] == 0 {
			t.Errorf("%d calls of %s succeeded, want some: %v", succeeded[kind], kind, succeeded)
		}
	}
}

// compare makes calls in one workspace of each engine.
func compare(t *testing.T, r *rand.Rand, engines []codeexecutor.Engine, host string, succeeded map[string]int) {
	t.Helper()
	var ws [2]codeexecutor.Workspace
	var ctx [2]context.Context
	for i, e := range engines {
		var err error
		if ws[i], err = e.Manager().CreateWorkspace(t.Context(), "a/b", codeexecutor.WorkspacePolicy{}); err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(path.Base(ws[i].Path), "ws_a_b_") || ws[i].ID != "a/b" {
			t.Errorf("workspace %+v", ws[i])
		}
		ctx[i] = codeexecutor.WithArtifactSession(codeexecutor.WithArtifactService(t.Context(), inmemory.NewService()), artifact.SessionInfo{AppName: "a", UserID: "u", SessionID: "s"})
		if _, err := codeexecutor.SaveArtifactHelper(ctx[i], "text", []byte("of an artifact"), "text/plain"); err != nil {
			t.Fatal(err)
		}
	}
	var log []string
	for i := range 40 {
		what, do := op(r, host)
		log = append(log, what)
		want, wantErr := do(ctx[0], engines[0], ws[0])
		got, err := do(ctx[1], engines[1], ws[1])
		if (err == nil) != (wantErr == nil) || err == nil && !gocmp.Equal(want, got) {
			t.Fatalf("%s\n%v, want %v (-want +got):\n%s", strings.Join(log, "\n"), err, wantErr, gocmp.Diff(want, got))
		}
		if kind, _, _ := strings.Cut(what, " "); err == nil {
			succeeded[kind]++
		}
		if i%4 != 0 {
			continue
		}
		wantTree, wantErr := collected(engines[0].FS().Collect(ctx[0], ws[0], []string{"**"}))
		tree, err := collected(engines[1].FS().Collect(ctx[1], ws[1], []string{"**"}))
		if err != nil || wantErr != nil || !gocmp.Equal(wantTree, tree) {
			t.Fatalf("%s\nall files afterwards: %v, want %v (-want +got):\n%s", strings.Join(log, "\n"), err, wantErr, gocmp.Diff(wantTree, tree))
		}
	}
	for i, e := range engines {
		if err := e.Manager().Cleanup(t.Context(), ws[i]); err != nil {
			t.Error(err)
		}
	}
}
