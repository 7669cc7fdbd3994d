package eino_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/cloudwego/eino/adk/filesystem"
	gocmp "github.com/google/go-cmp/cmp"

	"github.com/seed-1a2d6d8f/sandbox/adapters/eino"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

type filesystemExecute = filesystem.ExecuteRequest

const root = "/workspace/compared"

var (
	dirs  = []string{root, root + "/d", root + "/d/e", root + "/none", ""}
	names = []string{"a.txt", "b.go", "c", "x y.txt", "ä.go"}
	words = []string{"one", "two", "a.c", "[x]", "ä", "\t", "'\"$", "%d"}
)

func pick(r *rand.Rand, from []string) string { return from[r.IntN(len(from))] }

func text(r *rand.Rand) string {
	var s strings.Builder
	for range r.IntN(12) {
		s.WriteString(pick(r, words))
		if r.IntN(3) == 0 {
			s.WriteByte('\n')
		}
	}
	return s.String()
}

// op makes one call of any backend. what says which one.
func op(r *rand.Rand) (what string, do func(context.Context, filesystem.Backend) (any, error)) {
	file := path.Join(pick(r, dirs[:3]), pick(r, names))
	switch dir := pick(r, dirs[:4]); r.IntN(10) {
	case 0, 1, 2:
		req := &filesystem.WriteRequest{FilePath: file, Content: text(r)}
		return fmt.Sprintf("Write%+v", *req), func(ctx context.Context, b filesystem.Backend) (any, error) { return nil, b.Write(ctx, req) }
	case 3, 4:
		req := &filesystem.EditRequest{FilePath: file, OldString: pick(r, append(words, "")), NewString: text(r), ReplaceAll: r.IntN(2) == 0}
		return fmt.Sprintf("Edit%+v", *req), func(ctx context.Context, b filesystem.Backend) (any, error) { return nil, b.Edit(ctx, req) }
	case 5, 6:
		req := &filesystem.ReadRequest{FilePath: file, Offset: r.IntN(8) - 1, Limit: r.IntN(6) - 1}
		return fmt.Sprintf("Read%+v", *req), func(ctx context.Context, b filesystem.Backend) (any, error) { return b.Read(ctx, req) }
	case 7:
		req := &filesystem.LsInfoRequest{Path: pick(r, []string{dir, dir + "/", file})}
		return fmt.Sprintf("LsInfo%+v", *req), func(ctx context.Context, b filesystem.Backend) (any, error) { return sorted(b.LsInfo(ctx, req)) }
	case 8:
		req := &filesystem.GrepRequest{Pattern: pick(r, words), Path: file}
		if r.IntN(2) == 0 {
			req.Path, req.Glob = dir, pick(r, []string{"", "*.go", "[ab]*", "?"})
		}
		return fmt.Sprintf("GrepRaw%+v", *req), func(ctx context.Context, b filesystem.Backend) (any, error) {
			m, err := b.GrepRaw(ctx, req)
			slices.SortFunc(m, func(x, y filesystem.GrepMatch) int {
				return cmp.Or(strings.Compare(x.Path, y.Path), x.Line-y.Line)
			})
			return m, err
		}
	default:
		pattern := pick(r, []string{"*", "*.go", "[^c]*", "x y.*", "["})
		return "GlobInfo " + pattern + " " + dir, func(ctx context.Context, b filesystem.Backend) (any, error) {
			req := &filesystem.GlobInfoRequest{Pattern: pattern, Path: dir}
			if _, ours := b.(*eino.Backend); ours { // see docs/agents.md
				req.Pattern = "**/" + pattern
			}
			infos, err := b.GlobInfo(ctx, req)
			infos = slices.DeleteFunc(infos, func(f filesystem.FileInfo) bool { return slices.Contains(dirs, f.Path) })
			return sorted(infos, err)
		}
	}
}

func sorted(infos []filesystem.FileInfo, err error) ([]filesystem.FileInfo, error) {
	slices.SortFunc(infos, func(x, y filesystem.FileInfo) int { return strings.Compare(x.Path, y.Path) })
	return infos, err
}

// The same calls, of the framework's backend in memory and of ours.
func TestBackendIsLikeTheFrameworks(t *testing.T) {
	t.Parallel()
	sb := harness.NewSandbox(t)
	succeeded := map[string]int{}
	for _, seed := range harness.Seeds(1, 30) {
		t.Logf("seed %d", seed)
		r := rand.New(rand.NewPCG(seed, 0))
		for range 3 {
			if err := errors.Join(sb.RemoveAll(t.Context(), root), sb.MkdirAll(t.Context(), root+"/d/e", 0o755)); err != nil {
				t.Fatal(err)
			}
			compare(t, r, filesystem.NewInMemoryBackend(), eino.NewBackend(sb, eino.Options{}), succeeded)
		}
	}
	for _, kind := range []string{"Write", "Edit", "Read", "LsInfo", "GrepRaw", "GlobInfo"} {
		if succeeded[kind] < 5 {
			t.Errorf("%d calls of %s succeeded, want some: %v", succeeded[kind], kind, succeeded)
		}
	}
}

// compare makes calls of both backends, few enough that the files stay small.
func compare(t *testing.T, r *rand.Rand, theirs, ours filesystem.Backend, succeeded map[string]int) {
	t.Helper()
	for i := range 500 {
		what, do := op(r)
		want, wantErr := do(t.Context(), theirs)
		got, err := do(t.Context(), ours)
		kind, _, _ := strings.Cut(strings.ReplaceAll(what, "{", " "), " ")
		if wantErr == nil && err != nil && fmt.Sprint(want) == "[]" && (strings.Contains(err.Error(), "no such file") || strings.Contains(err.Error(), "syntax error")) {
			continue // in memory, what does not exist is empty, and there a pattern is not looked at
		}
		if kind == "LsInfo" && wantErr == nil && err == nil { // a directory in memory is one that has files
			got = slices.DeleteFunc(got.([]filesystem.FileInfo), func(f filesystem.FileInfo) bool {
				return slices.Contains(dirs, f.Path) && !slices.Contains(want.([]filesystem.FileInfo), f)
			})
		}
		if (err == nil) != (wantErr == nil) || fmt.Sprintf("%#v", got) != fmt.Sprintf("%#v", want) && !empty(got, want) {
			t.Fatalf("call %d, %s: %v, want %v (-want +got):\n%s", i, what, err, wantErr, gocmp.Diff(want, got))
		}
		if err == nil {
			succeeded[kind]++
		}
	}
}

// empty reports whether both have nothing.
func empty(x, y any) bool { return fmt.Sprint(x) == "[]" && fmt.Sprint(y) == "[]" }
