package trpc

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"trpc.group/trpc-go/trpc-agent-go/codeexecutor"

	"github.com/seed-1a2d6d8f/sandbox"
)

const (
	maxFile    = 4 << 20 // bytes of a file that are collected
	maxCollect = 64 << 20
	maxFiles   = 100 // in the result of CollectOutputs
	maxID      = 64
)

// CreateWorkspace creates a directory with the framework's layout, in a sandbox of its own if the
// executor is of [NewIsolated].
func (e *Executor) CreateWorkspace(ctx context.Context, execID string, _ codeexecutor.WorkspacePolicy) (codeexecutor.Workspace, error) {
	sb, name := e.shared, "ws_"+safe(execID)
	if e.create != nil {
		var err error
		if sb, err = e.create(ctx); err != nil {
			return codeexecutor.Workspace{}, err
		}
		name += "_" + sb.Name() // each one is of another sandbox
	}
	ctx, cancel := context.WithTimeout(ctx, e.o.FileTime)
	defer cancel()
	err := sb.MkdirAll(ctx, e.o.Root, 0o755)
	ws := codeexecutor.Workspace{ID: execID}
	if err == nil {
		ws.Path, err = sb.MkdirTemp(ctx, e.o.Root, name+"_*")
	}
	if err == nil {
		err = (&call{ctx: ctx, sb: sb, ws: ws}).layout()
	}
	if e.create == nil {
		return ws, err
	}
	if err != nil {
		return ws, errors.Join(err, sb.Close())
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.own[ws.Path] = sb
	return ws, nil
}

// safe is an ID as a part of a file's name.
func safe(id string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' {
			return r
		}
		return '_'
	}, id[:min(len(id), maxID)])
}

// Cleanup removes a workspace, and closes its sandbox if it has one of its own.
func (e *Executor) Cleanup(ctx context.Context, ws codeexecutor.Workspace) error {
	if ws.Path == "" {
		return nil
	}
	c, err := e.begin(ctx, ws)
	if err != nil {
		return err
	}
	defer c.done()
	if e.create == nil {
		return c.sb.RemoveAll(c.ctx, ws.Path)
	}
	e.mu.Lock()
	delete(e.own, ws.Path)
	e.mu.Unlock()
	return c.sb.Close()
}

// layout makes the directories of a workspace, and its metadata.
func (c *call) layout() error {
	for _, dir := range []string{codeexecutor.DirSkills, codeexecutor.DirWork, codeexecutor.DirRuns, codeexecutor.DirOut} {
		if err := c.sb.MkdirAll(c.ctx, c.dir(dir), 0o755); err != nil {
			return err
		}
	}
	_, err := c.sb.Stat(c.ctx, c.dir(codeexecutor.MetaFileName))
	if errors.Is(err, fs.ErrNotExist) {
		return c.save(codeexecutor.NewWorkspaceMetadata())
	}
	return err
}

func (c *call) save(md codeexecutor.WorkspaceMetadata) error {
	md.UpdatedAt = time.Now()
	text, err := json.MarshalIndent(md, "", "  ")
	if err != nil {
		return err
	}
	return c.sb.WriteFile(c.ctx, c.dir(codeexecutor.MetaFileName), text, 0o600)
}

// change changes the metadata. What the sandbox has broken is replaced.
func (c *call) change(change func(md *codeexecutor.WorkspaceMetadata) error) error {
	return codeexecutor.WithWorkspaceMetadataLock(c.ctx, c.ws.Path, func(context.Context) error {
		md := codeexecutor.NewWorkspaceMetadata()
		text, size, err := c.read(c.dir(codeexecutor.MetaFileName), maxFile)
		switch {
		case errors.Is(err, fs.ErrNotExist), err == nil && size > int64(len(text)):
		case err != nil:
			return err
		default:
			if json.Unmarshal(text, &md) != nil {
				md = codeexecutor.NewWorkspaceMetadata()
			}
		}
		if err := change(&md); err != nil {
			return err
		}
		return c.save(md)
	})
}

var errNotRegular = errors.New("is not a regular file")

// read reads the beginning of a regular file, and returns its size.
func (c *call) read(name string, limit int) ([]byte, int64, error) {
	f, err := c.sb.Open(c.ctx, name)
	if err != nil {
		return nil, 0, err
	}
	defer f.Close()
	defer context.AfterFunc(c.ctx, func() { f.Close() })()
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s %w", name, errNotRegular)
	}
	if err != nil {
		return nil, 0, err
	}
	text, err := io.ReadAll(io.LimitReader(f, int64(limit)))
	if err != nil && c.ctx.Err() != nil {
		err = context.Cause(c.ctx)
	}
	return text, max(info.Size(), int64(len(text))), err
}

// PutFiles writes files, and makes the directories that they are in.
func (e *Executor) PutFiles(ctx context.Context, ws codeexecutor.Workspace, files []codeexecutor.PutFile) error {
	c, err := e.begin(ctx, ws)
	if err != nil {
		return err
	}
	defer c.done()
	for _, f := range files {
		if err := c.put(f); err != nil {
			return err
		}
	}
	return nil
}

func (c *call) put(f codeexecutor.PutFile) error {
	if f.Path == "" {
		return errors.New("empty file path")
	}
	name, err := c.inside(f.Path)
	if err != nil {
		return err
	}
	if err := c.sb.MkdirAll(c.ctx, path.Dir(name), 0o755); err != nil {
		return err
	}
	mode := fs.FileMode(cmp.Or(f.Mode, codeexecutor.DefaultScriptFileMode)).Perm()
	return c.sb.WriteFile(c.ctx, name, f.Content, mode)
}

// StageDirectory copies a directory of this machine into the workspace: see [sandbox.Sandbox.CopyIn].
// Links stay links, and none is followed here. With ReadOnly nobody but root may write to the copy.
func (e *Executor) StageDirectory(ctx context.Context, ws codeexecutor.Workspace, src, to string, o codeexecutor.StageOptions) error {
	c, err := e.begin(ctx, ws)
	if err != nil {
		return err
	}
	defer c.done()
	dest, err := c.inside(to)
	if err != nil {
		return err
	}
	switch info, err := os.Stat(src); {
	case src == "":
		return errors.New("the path of the directory to stage is empty")
	case err != nil:
		return err
	case !info.IsDir():
		return fmt.Errorf("%s is not a directory", src)
	}
	if _, err := c.sb.CopyIn(c.ctx, src, dest, sandbox.CopyOptions{}); err != nil || !o.ReadOnly {
		return err
	}
	return c.readOnly(dest)
}

func (c *call) readOnly(dir string) error {
	all, err := c.sb.ReadDir(c.ctx, dir)
	if err != nil {
		return err
	}
	for _, e := range all {
		name := path.Join(dir, e.Name())
		switch info, err := e.Info(); {
		case err != nil:
			return err
		case e.IsDir():
			err = c.readOnly(name)
			if err != nil {
				return err
			}
		case e.Type().IsRegular():
			if err := c.sb.Chmod(c.ctx, name, info.Mode().Perm()&^0o222); err != nil {
				return err
			}
		}
	}
	info, err := c.sb.Stat(c.ctx, dir)
	if err != nil {
		return err
	}
	return c.sb.Chmod(c.ctx, dir, info.Mode().Perm()&^0o222)
}

// StageInputs copies or links inputs into the workspace, and records them in its metadata. Files of this
// machine are copied, never linked.
func (e *Executor) StageInputs(ctx context.Context, ws codeexecutor.Workspace, specs []codeexecutor.InputSpec) error {
	c, err := e.begin(ctx, ws)
	if err != nil {
		return err
	}
	defer c.done()
	if err := c.layout(); err != nil {
		return err
	}
	return c.change(func(md *codeexecutor.WorkspaceMetadata) error {
		for _, spec := range specs {
			record, err := c.stage(spec, md.Inputs)
			if err != nil {
				return err
			}
			record.Timestamp = time.Now()
			md.Inputs = append(md.Inputs, record)
		}
		return nil
	})
}

// stage stages one input.
func (c *call) stage(spec codeexecutor.InputSpec, staged []codeexecutor.InputRecord) (codeexecutor.InputRecord, error) {
	r := codeexecutor.InputRecord{From: spec.From, To: strings.TrimSpace(spec.To), Mode: cmp.Or(strings.ToLower(strings.TrimSpace(spec.Mode)), "copy")}
	scheme, rest, _ := strings.Cut(spec.From, "://")
	var version *int
	var err error
	base := rest
	if scheme == "artifact" {
		if base, version, err = codeexecutor.ParseArtifactRef(rest); err != nil {
			return r, err
		}
	}
	r.To = cmp.Or(r.To, path.Join(codeexecutor.DirWork, "inputs", path.Base(base)))
	to, err := c.inside(r.To)
	if err != nil {
		return r, err
	}
	r.Resolved = rest
	switch scheme {
	case "artifact":
		r.Resolved = base
		if version == nil && spec.Pin {
			version = pinned(staged, base, r.To)
		}
		data, _, actual, err := codeexecutor.LoadArtifactHelper(c.ctx, base, version)
		if err != nil {
			return r, err
		}
		r.Version = &actual
		return r, c.put(codeexecutor.PutFile{Path: r.To, Content: data})
	case "host":
		return r, c.host(rest, to, r.Mode == "link")
	case "skill":
		rest = path.Join(codeexecutor.DirSkills, rest)
		r.Resolved = c.dir(rest)
		fallthrough
	case "workspace":
		from, err := c.inside(rest)
		if err != nil {
			return r, err
		}
		return r, c.copy(from, to, r.Mode == "link")
	}
	return r, fmt.Errorf("unsupported input: %s", spec.From)
}

// pinned is the version of an artifact that was staged before.
func pinned(staged []codeexecutor.InputRecord, name, to string) *int {
	for i := len(staged) - 1; i >= 0; i-- {
		if r := staged[i]; r.To == to && r.Version != nil && r.Resolved == name {
			return r.Version
		}
	}
	return nil
}

// host copies a file of this machine to a path, or what a directory has into the path's directory, as the
// framework does. In place of a link the directory itself is at the path.
func (c *call) host(from, to string, link bool) error {
	info, err := os.Stat(from)
	switch {
	case err != nil:
		return err
	case link:
		if err := c.sb.RemoveAll(c.ctx, to); err != nil {
			return err
		}
	case info.IsDir():
		to = path.Dir(to)
	}
	if from, err = filepath.EvalSymlinks(from); err == nil {
		_, err = c.sb.CopyIn(c.ctx, from, to, sandbox.CopyOptions{})
	}
	return err
}

// copy copies or links files within the workspace.
func (c *call) copy(from, to string, link bool) error {
	var info fs.FileInfo
	var err error
	if !link {
		info, err = c.sb.Stat(c.ctx, from)
	}
	if err == nil {
		err = c.sb.MkdirAll(c.ctx, path.Dir(to), 0o755)
	}
	switch {
	case err != nil:
		return err
	case link:
		if err := c.sb.RemoveAll(c.ctx, to); err != nil {
			return err
		}
		return c.sb.Symlink(c.ctx, from, to)
	case info.IsDir():
		files, err := fs.Sub(c.sb.FS(), strings.TrimPrefix(from, "/"))
		if err == nil {
			_, err = c.sb.CopyInFS(c.ctx, files, to, sandbox.CopyOptions{})
		}
		return err
	case !info.Mode().IsRegular():
		return fmt.Errorf("%s %w", from, errNotRegular)
	}
	f, err := c.sb.Open(c.ctx, from)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = c.sb.WriteFrom(c.ctx, to, f, info.Mode().Perm())
	return err
}

// gone reports whether a file was removed or replaced after it was found.
func gone(err error) bool { return errors.Is(err, errNotRegular) || errors.Is(err, fs.ErrNotExist) }

// Collect returns the regular files that match, under the names that links lead to, of each the first 4
// MiB. Files outside of the workspace are left out, and wildcards don't go through links to directories. It is an error if they have more than 64 MiB.
func (e *Executor) Collect(ctx context.Context, ws codeexecutor.Workspace, patterns []string) ([]codeexecutor.File, error) {
	c, err := e.begin(ctx, ws)
	if err != nil {
		return nil, err
	}
	defer c.done()
	var files []codeexecutor.File
	seen, free := map[string]bool{}, maxCollect
	err = c.glob(patterns, func(_, real string) error {
		if seen[real] {
			return nil
		}
		seen[real] = true
		data, size, err := c.read(c.dir(real), maxFile)
		if gone(err) {
			return nil
		}
		if free -= len(data); err == nil && free < 0 {
			err = fmt.Errorf("the files have more than %d bytes: %w", maxCollect, sandbox.ErrTooLarge)
		}
		if err != nil {
			return err
		}
		files = append(files, codeexecutor.File{Name: real, Content: string(data), MIMEType: http.DetectContentType(data), SizeBytes: size, Truncated: size > int64(len(data))})
		return nil
	})
	if err != nil {
		return nil, err
	}
	return files, nil
}

// CollectOutputs returns the regular files that match, within the spec's limits, saves them if it says so,
// and records them in the metadata. If that fails the error is [codeexecutor.ErrPartialOutputCommit].
func (e *Executor) CollectOutputs(ctx context.Context, ws codeexecutor.Workspace, spec codeexecutor.OutputSpec) (codeexecutor.OutputManifest, error) {
	c, err := e.begin(ctx, ws)
	if err != nil {
		return codeexecutor.OutputManifest{}, err
	}
	defer c.done()
	if err := c.layout(); err != nil {
		return codeexecutor.OutputManifest{}, err
	}
	files, each, free := maxFiles, int64(maxFile), int64(maxCollect)
	if spec.MaxFiles > 0 {
		files = spec.MaxFiles
	}
	if spec.MaxFileBytes > 0 {
		each = min(each, spec.MaxFileBytes)
	}
	if spec.MaxTotalBytes > 0 {
		free = spec.MaxTotalBytes
	}
	var out codeexecutor.OutputManifest
	record := codeexecutor.OutputRecord{Globs: spec.Globs}
	err = c.glob(spec.Globs, func(name, real string) error {
		if len(out.Files) == files || free <= 0 {
			out.LimitsHit = true
			return errEnough
		}
		ref, n, err := c.collect(name, real, int(min(each, free)), spec)
		if gone(err) {
			return nil
		}
		if err != nil {
			return err
		}
		if free -= n; ref.SavedAs != "" {
			record.SavedAs, record.Versions = append(record.SavedAs, ref.SavedAs), append(record.Versions, ref.Version)
		}
		out.LimitsHit = out.LimitsHit || ref.Truncated || free <= 0
		out.Files = append(out.Files, ref)
		return nil
	})
	if err != nil && !errors.Is(err, errEnough) {
		return codeexecutor.OutputManifest{}, err
	}
	err = c.change(func(md *codeexecutor.WorkspaceMetadata) error {
		record.LimitsHit, record.Timestamp = out.LimitsHit, time.Now()
		md.Outputs = append(md.Outputs, record)
		return nil
	})
	if err != nil {
		err = fmt.Errorf("%w: %w", codeexecutor.ErrPartialOutputCommit, err)
	}
	return out, err
}

// collect returns one file, and how many bytes of it.
func (c *call) collect(name, real string, limit int, spec codeexecutor.OutputSpec) (codeexecutor.FileRef, int64, error) {
	data, size, err := c.read(c.dir(real), limit)
	if err != nil {
		return codeexecutor.FileRef{}, 0, err
	}
	ref := codeexecutor.FileRef{Name: name, MIMEType: http.DetectContentType(data), SizeBytes: size, Truncated: size > int64(len(data))}
	if spec.Inline {
		ref.Content = string(data)
	}
	if spec.Save {
		if ref.Truncated {
			return ref, 0, fmt.Errorf("cannot save truncated output file: %s", name)
		}
		ref.SavedAs = spec.NameTemplate + name
		ref.Version, err = codeexecutor.SaveArtifactHelper(c.ctx, ref.SavedAs, data, ref.MIMEType)
	}
	return ref, int64(len(data)), err
}
