package engine

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/image"
)

// Change is one path that differs between a container and its image.
type Change struct {
	Path string
	Kind ChangeKind
}

// ChangeKind is the kind of a Change.
type ChangeKind int

// The kinds, as the engine numbers them.
const (
	Modified ChangeKind = iota
	Added
	Deleted
)

// DiffContainer lists the differences between a container and its image, including mount
// points but not the files mounted there. The engine walks the container's own layer, and
// with some storage drivers the whole image.
func (e *Engine) DiffContainer(ctx context.Context, id string) ([]Change, error) {
	var diff []container.FilesystemChange
	err := e.onContainer(ctx, id, func() (err error) {
		// Not the client's: it drops the cause of a truncated reply.
		return e.get(ctx, "/containers/"+id+"/changes", &diff)
	})
	if err != nil {
		return nil, err
	}
	out := make([]Change, 0, len(diff))
	for _, c := range diff {
		out = append(out, Change{Path: c.Path, Kind: ChangeKind(c.Kind)})
	}
	return out, nil
}

// exportContainer streams all files of a container as a tar archive, except those of mounts.
// ctx bounds the stream. The caller closes it.
func (e *Engine) exportContainer(ctx context.Context, id string) (io.ReadCloser, error) {
	if err := checkName("container", id); err != nil {
		return nil, err
	}
	rc, err := e.cli.ContainerExport(ctx, id)
	if err != nil {
		return nil, e.fail(ctx, err)
	}
	return &reply{ctx: ctx, e: e, rc: rc}, nil
}

// TagImage adds a tag to an image, and removes it from any other.
func (e *Engine) TagImage(ctx context.Context, source, ref string) error {
	if err := errors.Join(CheckImage(source), CheckImage(ref)); err != nil {
		return err
	}
	return e.fail(ctx, e.cli.ImageTag(ctx, source, ref))
}

// CommitContainer makes the image ref: the container's image with one more layer, the
// changes that DiffContainer lists. Its settings are those of the container's image, plus
// labels, without the container's own environment and labels. Equal layers on equal images
// make the same image ID.
//
// The container is not paused. The engine truncates times to seconds, and drops sockets and
// extended attributes other than security.capability; a gigabyte takes about 5 s. If the call
// is interrupted, an image with labels may be left, with the name ref or without.
func (e *Engine) CommitContainer(ctx context.Context, id, ref string, labels map[string]string) (Image, error) {
	b, err := e.baseOf(ctx, id)
	if err != nil {
		return Image{}, err
	}
	if err := CheckImage(ref); err != nil {
		return Image{}, err
	}
	r, err := e.cli.ContainerCommit(ctx, id, container.CommitOptions{Reference: ref, Config: b.commitConfig(labels)})
	if err != nil {
		return Image{}, e.fail(ctx, err)
	}
	return e.replaceConfig(ctx, r.ID, ref, b.image, labels)
}

// FlattenContainer is [Engine.CommitContainer] with all files in one layer. They pass
// through this process. It calls lost with each setting that the image could not be given.
func (e *Engine) FlattenContainer(ctx context.Context, id, ref string, labels map[string]string, lost func(setting string)) (Image, error) {
	b, err := e.baseOf(ctx, id)
	if err != nil {
		return Image{}, err
	}
	files, err := e.exportContainer(ctx, id)
	if err != nil {
		return Image{}, err
	}
	defer files.Close()
	settings, without := instructions(b.image, labels)
	if err := e.ImportImage(ctx, ref, files, settings); err != nil {
		return Image{}, err
	}
	made, err := e.InspectImage(ctx, ref)
	if err != nil {
		return Image{}, err
	}
	got, err := e.replaceConfig(ctx, made.ID, ref, b.image, labels)
	if err == nil && got.ID == made.ID {
		for _, setting := range without {
			lost(setting)
		}
	}
	return got, err
}

// instructions are the settings of an image and labels, as a Dockerfile has them: engines that
// can't load an image without its layers keep what the import makes. A value with a line break
// can't be written in that way: without are the settings that have one.
func instructions(of image.InspectResponse, labels map[string]string) (lines, without []string) {
	add := func(instruction string, words ...string) {
		key := words[0]
		for i, w := range words {
			if strings.ContainsAny(w, "\r\n") {
				without = append(without, instruction+" "+quote(key))
				return
			}
			// Variables would be expanded.
			words[i] = `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, `$`, `\$`).Replace(w) + `"`
		}
		lines = append(lines, instruction+" "+strings.Join(words, "="))
	}
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		add("LABEL", k, labels[k])
	}
	c := of.Config
	if c == nil {
		return lines, without
	}
	for _, kv := range c.Env {
		if k, v, ok := strings.Cut(kv, "="); ok {
			add("ENV", k, v)
		}
	}
	if c.User != "" {
		add("USER", c.User)
	}
	if c.WorkingDir != "" {
		add("WORKDIR", c.WorkingDir)
	}
	list := func(instruction string, argv []string) {
		if text, err := json.Marshal(argv); err == nil && argv != nil {
			lines = append(lines, instruction+" "+string(text))
		}
	}
	list("ENTRYPOINT", c.Entrypoint) // takes away a CMD before it
	list("CMD", c.Cmd)
	for _, port := range slices.Sorted(maps.Keys(c.ExposedPorts)) {
		lines = append(lines, "EXPOSE "+port)
	}
	if len(c.Volumes) > 0 {
		list("VOLUME", slices.Sorted(maps.Keys(c.Volumes)))
	}
	return lines, without
}

// base is a container's settings and the image that it was made from.
type base struct {
	container *container.Config
	image     image.InspectResponse
}

func (e *Engine) baseOf(ctx context.Context, id string) (b base, err error) {
	if err := checkName("container", id); err != nil {
		return b, err
	}
	got, err := e.cli.ContainerInspect(ctx, id)
	if err != nil {
		return b, e.fail(ctx, err)
	}
	b.container = got.Config
	if b.image, err = e.cli.ImageInspect(ctx, got.Image); err != nil {
		return b, e.fail(ctx, err)
	}
	return b, nil
}

// commitConfig returns the settings for a commit: those of the image, and labels. The
// engine adds missing labels and variables of the container, so those are set to "".
func (b base) commitConfig(labels map[string]string) *container.Config {
	c := &container.Config{Labels: map[string]string{}}
	if b.container != nil {
		for k := range b.container.Labels {
			c.Labels[k] = ""
		}
	}
	if i := b.image.Config; i != nil {
		maps.Copy(c.Labels, i.Labels)
		c.Env = slices.Clone(i.Env)
		c.User, c.WorkingDir, c.Cmd, c.Entrypoint = i.User, i.WorkingDir, i.Cmd, i.Entrypoint
	}
	maps.Copy(c.Labels, labels)
	if b.container != nil {
		for _, kv := range b.container.Env {
			key, _, _ := strings.Cut(kv, "=")
			if !slices.ContainsFunc(c.Env, func(s string) bool { return strings.HasPrefix(s, key+"=") }) {
				c.Env = append(c.Env, key+"=")
			}
		}
	}
	return c
}

// replaceConfig replaces the image id, named ref, with one of the same layers and the
// settings of another image. The image of a commit also contains the settings of its
// container, whose environment may be secret. An engine that can't load an image without its
// layers keeps id.
func (e *Engine) replaceConfig(ctx context.Context, id, ref string, of image.InspectResponse, labels map[string]string) (Image, error) {
	made, err := e.cli.ImageInspect(ctx, id)
	if err != nil {
		return Image{}, e.fail(ctx, err)
	}
	archive, err := configArchive(made, of, ref, labels)
	if err != nil {
		return Image{}, err
	}
	if err := e.LoadImage(ctx, bytes.NewReader(archive)); err != nil {
		if errors.Is(err, ErrUnavailable) || done(ctx) != nil {
			return Image{}, err
		}
		return e.InspectImage(ctx, ref)
	}
	got, err := e.InspectImage(ctx, ref)
	if err != nil || got.ID == id {
		return got, err
	}
	if err := e.RemoveImage(ctx, id, false); err != nil && !errors.Is(err, ErrNotFound) && !errors.Is(err, ErrConflict) {
		return Image{}, err
	}
	return got, nil
}

// configArchive returns an archive in the format of "docker save" without layers. The engine
// reads a layer from the archive only if it does not have it.
func configArchive(made, of image.InspectResponse, ref string, labels map[string]string) ([]byte, error) {
	config := map[string]any{
		"architecture": made.Architecture, "os": made.Os,
		"rootfs": map[string]any{"type": "layers", "diff_ids": made.RootFS.Layers},
	}
	if made.Variant != "" {
		config["variant"] = made.Variant
	}
	settings := map[string]any{}
	if of.Config != nil {
		b, err := json.Marshal(of.Config)
		if err != nil {
			return nil, err
		}
		if err := json.Unmarshal(b, &settings); err != nil {
			return nil, err
		}
	}
	all := map[string]string{}
	if of.Config != nil {
		maps.Copy(all, of.Config.Labels)
	}
	maps.Copy(all, labels)
	settings["Labels"] = all
	config["config"] = settings

	layers := make([]string, len(made.RootFS.Layers))
	for i := range layers {
		layers[i] = "none"
	}
	text, err := json.Marshal(config)
	if err != nil {
		return nil, err
	}
	manifest, err := json.Marshal([]any{map[string]any{"Config": "config.json", "RepoTags": []string{ref}, "Layers": layers}})
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range []struct {
		name string
		body []byte
	}{{"config.json", text}, {"manifest.json", manifest}} {
		h := &tar.Header{Name: f.name, Mode: 0o644, Size: int64(len(f.body)), ModTime: time.Unix(0, 0)}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.body); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}
