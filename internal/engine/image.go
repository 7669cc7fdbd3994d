package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"

	"github.com/docker/docker/api/types/image"
)

// Image is an image as the engine describes it. Lists have only ID, Tags, Labels and Size.
type Image struct {
	ID              string
	Tags            []string
	Labels          map[string]string
	Env             []string
	Cmd, Entrypoint []string
	User            string
	WorkingDir      string
	Volumes         []string // the directories that it declares as volumes, sorted
	Arch, OS        string
	Layers          int
	Size            int64
	Ref             string // that it was inspected by
}

// PullEvent reports the progress of a pull.
type PullEvent struct {
	Layer          string // short digest; empty for the whole pull
	Status         string // the engine's text, such as "Downloading"
	Current, Total int64  // bytes; zero if they don't apply
}

// InspectImage finds an image by reference or ID.
func (e *Engine) InspectImage(ctx context.Context, ref string) (Image, error) {
	if err := CheckImage(ref); err != nil {
		return Image{}, err
	}
	r, err := e.cli.ImageInspect(ctx, ref)
	if err != nil {
		return Image{}, e.fail(ctx, err)
	}
	i := Image{ID: r.ID, Tags: e.tags(r.RepoTags), Arch: r.Architecture, OS: r.Os, Layers: len(r.RootFS.Layers), Size: r.Size, Ref: ref}
	if c := r.Config; c != nil {
		i.Labels, i.Env, i.Cmd, i.Entrypoint, i.User, i.WorkingDir = c.Labels, c.Env, c.Cmd, c.Entrypoint, c.User, c.WorkingDir
		i.Volumes = slices.Sorted(maps.Keys(c.Volumes))
	}
	return i, nil
}

// tags returns the tags of an image as Docker writes them.
func (e *Engine) tags(tags []string) []string {
	if e.podman.Load() {
		for i, t := range tags {
			tags[i] = shortTag(t)
		}
	}
	return tags
}

// listTries is how often images are listed of which one is removed at the moment.
const listTries = 5

// ListImages lists the images that have all of labels ("key" or "key=value").
func (e *Engine) ListImages(ctx context.Context, labels ...string) ([]Image, error) {
	var l []image.Summary
	for try := 1; ; try++ {
		var err error
		l, err = e.cli.ImageList(ctx, image.ListOptions{Filters: labelFilter(labels)})
		if err == nil {
			break
		}
		// With containerd's image store an image that is removed meanwhile is 404.
		if err = e.fail(ctx, err); !errors.Is(err, ErrNotFound) || try == listTries {
			return nil, err
		}
	}
	out := make([]Image, 0, len(l))
	for _, s := range l {
		if !hasLabels(s.Labels, labels) {
			continue
		}
		tags := slices.DeleteFunc(s.RepoTags, func(t string) bool { return t == "<none>:<none>" })
		out = append(out, Image{ID: s.ID, Tags: e.tags(tags), Labels: s.Labels, Size: s.Size})
	}
	return out, nil
}

// PullImage pulls an image for the engine's own platform, and reports to progress, which may
// be nil. Credentials for the registry are those of [Options.RegistryAuth], else those of the
// docker command's configuration and credential helpers. An image that its registry does not have is [ErrNotFound]; one without
// access for this caller is [ErrForbidden] or, with most registries, [ErrNotFound] too.
func (e *Engine) PullImage(ctx context.Context, ref string, progress func(PullEvent)) error {
	if err := CheckImage(ref); err != nil {
		return err
	}
	auth, err := e.findAuth(ctx, ref)
	if err != nil {
		if ctxErr := ctx.Err(); ctxErr != nil {
			err = e.fail(ctx, ctxErr)
		}
		return err
	}
	return hidden(auth.explain(e.pull(ctx, ref, auth.header, progress)))
}

// A pullError is the error of a pull. Its text may be an answer of the registry, and name files of this
// machine.
type pullError struct{ err error }

func (e *pullError) Error() string { return e.err.Error() }
func (e *pullError) Unwrap() error { return e.err }

// Public is the text without what the registry said.
func (e *pullError) Public() string {
	switch {
	case errors.Is(e.err, ErrNotFound):
		return "the registry has no such image, or does not show it to this server"
	case errors.Is(e.err, ErrForbidden):
		return "the registry denies access"
	case errors.Is(e.err, ErrUnavailable):
		return "the engine or the registry is unavailable"
	}
	return "the engine could not get it from the registry"
}

// hidden returns the error of a pull as a [*pullError], unless the caller has cancelled it.
func hidden(err error) error {
	var cancel *canceled
	if err == nil || errors.As(err, &cancel) {
		return err
	}
	return &pullError{err}
}

func (e *Engine) pull(ctx context.Context, ref, auth string, progress func(PullEvent)) error {
	body, err := e.cli.ImagePull(ctx, ref, image.PullOptions{RegistryAuth: auth})
	if err == nil {
		defer body.Close()
		err = readProgress(body, progress)
	}
	if err = e.fail(ctx, err); err == nil || hasClass(err) {
		return err
	}
	// The stream has no status, and older engines answer 500 to an unknown manifest. Their
	// inspect call to the registry keeps the status.
	_, why := e.cli.DistributionInspect(ctx, ref, auth)
	for _, class := range []error{ErrNotFound, ErrForbidden} {
		if errors.Is(e.fail(ctx, why), class) {
			return &classed{class: class, text: err.Error(), err: err}
		}
	}
	return err
}

// ImportImage makes an image of one layer from a tar archive. changes are Dockerfile
// instructions such as `LABEL a=b`. If tar is an io.Closer it is closed when the engine has
// read it, or stopped reading.
func (e *Engine) ImportImage(ctx context.Context, ref string, tar io.Reader, changes []string) error {
	if err := CheckImage(ref); err != nil {
		return err
	}
	query := url.Values{"fromSrc": {"-"}, "repo": {ref}, "changes": changes}
	src := newSource(tar)
	resp, err := e.call(ctx, http.MethodPost, "/images/create", query, "application/x-tar", src)
	if err == nil {
		defer resp.Body.Close()
		err = readProgress(resp.Body, nil)
	}
	return e.fail(ctx, src.blame(err))
}

// LoadImage loads an archive of images in the format of "docker save". An image's ID follows
// from its content, so loading one twice changes nothing. If tar is an io.Closer it is closed
// when the engine has read it, or stopped reading.
func (e *Engine) LoadImage(ctx context.Context, tar io.Reader) error {
	src := newSource(tar)
	resp, err := e.call(ctx, http.MethodPost, "/images/load", url.Values{"quiet": {"1"}}, "application/x-tar", src)
	if err == nil {
		defer resp.Body.Close()
		err = readProgress(resp.Body, nil)
	}
	return e.fail(ctx, src.blame(err))
}

// SaveImage returns an image as an archive that [Engine.LoadImage] takes. By its tag it has that one when
// it is loaded; otherwise it is without a name, also if it was pulled by a digest. The caller closes it.
func (e *Engine) SaveImage(ctx context.Context, ref string) (io.ReadCloser, error) {
	if err := CheckImage(ref); err != nil {
		return nil, err
	}
	tar, err := e.cli.ImageSave(ctx, []string{ref})
	return tar, e.fail(ctx, err)
}

// RemoveImage removes a tag of an image, and the image if ref is its last tag or its ID. An
// image that a container uses is [ErrConflict]; with force, only if the container runs.
func (e *Engine) RemoveImage(ctx context.Context, ref string, force bool) error {
	if err := CheckImage(ref); err != nil {
		return err
	}
	_, err := e.cli.ImageRemove(ctx, ref, image.RemoveOptions{Force: force, PruneChildren: true})
	if err = e.fail(ctx, err); err == nil || hasClass(err) {
		return err
	}
	// When another call has just removed the image, engines up to at least 20.10 answer with
	// an internal error.
	if _, inspectErr := e.InspectImage(ctx, ref); errors.Is(inspectErr, ErrNotFound) {
		return &classed{class: ErrNotFound, text: "no such image " + quote(ref), err: err}
	}
	return err
}

// readProgress reads a stream of JSON messages to its end. The HTTP status is always 200; a
// failure is one of the messages.
func readProgress(r io.Reader, progress func(PullEvent)) error {
	dec := json.NewDecoder(r)
	for {
		var m struct {
			ID             string
			Status         string
			ProgressDetail struct{ Current, Total int64 }
			Error          string
			ErrorDetail    struct {
				Code    int
				Message string
			}
		}
		switch err := dec.Decode(&m); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		if m.Error != "" || m.ErrorDetail.Message != "" {
			if m.ErrorDetail.Message == "" {
				m.ErrorDetail.Message = m.Error
			}
			return &StatusError{Status: m.ErrorDetail.Code, Message: m.ErrorDetail.Message}
		}
		if progress != nil {
			progress(PullEvent{Layer: m.ID, Status: m.Status, Current: m.ProgressDetail.Current, Total: m.ProgressDetail.Total})
		}
	}
}

// source is a request's body that keeps its reader's error, which would otherwise look like
// a broken connection.
type source struct {
	r   io.Reader
	err chan error // holds at most one
}

func newSource(r io.Reader) *source { return &source{r: r, err: make(chan error, 1)} }

func (s *source) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	if err != nil && err != io.EOF {
		select {
		case s.err <- err:
		default:
		}
	}
	return n, err
}

func (s *source) Close() error {
	if c, ok := s.r.(io.Closer); ok {
		return c.Close()
	}
	return nil
}

// blame returns the reader's error if it made the call fail.
func (s *source) blame(err error) error {
	if err == nil {
		return nil
	}
	select {
	case own := <-s.err:
		return &sourceError{err: own}
	default:
		return err
	}
}

// sourceError is an error of a body's reader.
type sourceError struct{ err error }

func (e *sourceError) Error() string { return fmt.Sprintf("read archive: %v", e.err) }
func (e *sourceError) Unwrap() error { return e.err }
