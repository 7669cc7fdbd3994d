package engine

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/image"
)

// Change is one path of a container that is not as its image has it.
type Change struct {
	Path string
	Kind ChangeKind
}

// ChangeKind is what became of a path.
type ChangeKind int

// The kinds, as the engine numbers them.
const (
	Modified ChangeKind = iota
	Added
	Deleted
)

// DiffContainer lists what differs between a container and its image, mount points
// included and what is mounted there not. It takes the engine a walk through the
// container's own layer, and with some storage drivers through the whole image.
func (e *Engine) DiffContainer(ctx context.Context, id string) ([]Change, error) {
	var diff []container.FilesystemChange
	err := e.onContainer(ctx, id, func() (err error) {
		// Not the client's: it drops the cause of a reply that breaks off.
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

// ExportContainer streams all files of a container as a tar archive, without what is
// mounted in it. ctx bounds the stream. The caller closes it.
func (e *Engine) ExportContainer(ctx context.Context, id string) (io.ReadCloser, error) {
	if err := checkName("container", id); err != nil {
		return nil, err
	}
	rc, err := e.cli.ContainerExport(ctx, id)
	if err != nil {
		return nil, e.fail(ctx, err)
	}
	return &reply{ctx: ctx, e: e, rc: rc}, nil
}

// TagImage gives an image one more tag. One that another image has is taken from it.
func (e *Engine) TagImage(ctx context.Context, source, ref string) error {
	if err := errors.Join(checkImage(source), checkImage(ref)); err != nil {
		return err
	}
	return e.fail(ctx, e.cli.ImageTag(ctx, source, ref))
}

// CommitContainer makes the image ref: the container's image with one more layer, which
// is what DiffContainer tells of. Its settings are those of the container's image, and
// labels with it; nothing of the container's own environment or labels gets into it.
// Committing equal layers to equal images makes equal images, of one ID.
//
// The container is not paused for it. The engine keeps times to the second, of extended
// attributes only security.capability, and no sockets; a gigabyte takes it about 5 s. While it is
// being made, and when the connection breaks, an image with labels may be left that ref
// names, or nothing.
func (e *Engine) CommitContainer(ctx context.Context, id, ref string, labels map[string]string) (Image, error) {
	of, err := e.imageOf(ctx, id)
	if err != nil {
		return Image{}, err
	}
	if err := checkImage(ref); err != nil {
		return Image{}, err
	}
	config := of.blank(labels)
	r, err := e.cli.ContainerCommit(ctx, id, container.CommitOptions{Reference: ref, Config: config})
	if err != nil {
		return Image{}, e.fail(ctx, err)
	}
	return e.reword(ctx, r.ID, ref, of.image, labels)
}

// FlattenContainer is [Engine.CommitContainer] with all the files in one layer. They pass
// through this process.
func (e *Engine) FlattenContainer(ctx context.Context, id, ref string, labels map[string]string) (Image, error) {
	of, err := e.imageOf(ctx, id)
	if err != nil {
		return Image{}, err
	}
	files, err := e.ExportContainer(ctx, id)
	if err != nil {
		return Image{}, err
	}
	var changes []string
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		changes = append(changes, fmt.Sprintf("LABEL %q=%q", k, labels[k]))
	}
	if err := e.ImportImage(ctx, ref, files, changes); err != nil {
		return Image{}, err
	}
	made, err := e.InspectImage(ctx, ref)
	if err != nil {
		return Image{}, err
	}
	return e.reword(ctx, made.ID, ref, of.image, labels)
}

// origin is a container's settings and those of the image that it was made from.
type origin struct {
	container *container.Config
	image     image.InspectResponse
}

func (e *Engine) imageOf(ctx context.Context, id string) (o origin, err error) {
	if err := checkName("container", id); err != nil {
		return o, err
	}
	got, err := e.cli.ContainerInspect(ctx, id)
	if err != nil {
		return o, e.fail(ctx, err)
	}
	o.container = got.Config
	if o.image, err = e.cli.ImageInspect(ctx, got.Image); err != nil {
		return o, e.fail(ctx, err)
	}
	return o, nil
}

// blank is what a commit can be told of the settings to keep. The engine adds those of
// the container that are missing, so what is not to be told is there and empty.
func (o origin) blank(labels map[string]string) *container.Config {
	c := &container.Config{Labels: map[string]string{}}
	if o.container != nil {
		for k := range o.container.Labels {
			c.Labels[k] = ""
		}
	}
	if i := o.image.Config; i != nil {
		maps.Copy(c.Labels, i.Labels)
		c.Env = slices.Clone(i.Env)
		c.User, c.WorkingDir, c.Cmd, c.Entrypoint = i.User, i.WorkingDir, i.Cmd, i.Entrypoint
	}
	maps.Copy(c.Labels, labels)
	if o.container != nil {
		for _, kv := range o.container.Env {
			key, _, _ := strings.Cut(kv, "=")
			if !slices.ContainsFunc(c.Env, func(s string) bool { return strings.HasPrefix(s, key+"=") }) {
				c.Env = append(c.Env, key+"=")
			}
		}
	}
	return c
}

// reword puts in the place of image id, which ref names, one with the same layers and the
// settings of another. An engine that takes no image in without its layers keeps id.
//
// It is there because a commit's image tells, beside its settings, those of the container
// it was made from, with the environment that may be secret.
func (e *Engine) reword(ctx context.Context, id, ref string, of image.InspectResponse, labels map[string]string) (Image, error) {
	made, err := e.cli.ImageInspect(ctx, id)
	if err != nil {
		return Image{}, e.fail(ctx, err)
	}
	archive, err := bare(made, of, ref, labels)
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

// bare is an archive as "docker save" makes it of an image whose layers the engine has:
// it looks for a layer in the archive only when it has none of that content.
func bare(made, of image.InspectResponse, ref string, labels map[string]string) ([]byte, error) {
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
