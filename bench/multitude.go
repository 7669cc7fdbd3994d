package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
)

// multitudeSize is how many sandboxes a multitude has, each with three volumes: its workspace
// and two revisions.
const multitudeSize = 10_000

// multitude are sandboxes that a proxy adds to the engine's lists, because an engine takes long
// to create and remove as many.
//
// So the figures show what the library does about ten thousand others: whether it lists them,
// and what it makes of a list. They don't show how long an engine takes for a call about one
// object among many, or for a list: replies are ready, which leaves more of the time to the
// library. Only a filter costs what it costs an engine (see pick).
type multitude struct {
	containers, volumes []object
}

// An object is an element of a list.
type object struct {
	labels map[string]string
	text   json.RawMessage
}

// multitude returns ten thousand sandboxes that look like one of the engine's.
func (r *rig) multitude(ctx context.Context) (*multitude, error) {
	sb, err := r.warm(ctx)
	if err != nil {
		return nil, err
	}
	filter := url.QueryEscape(fmt.Sprintf(`{"label":["%s=%s"]}`, record.ID, sb.ID()))
	var containers []map[string]any
	if err := r.api.call(ctx, "GET", "/containers/json?all=1&filters="+filter, nil, &containers); err != nil {
		return nil, err
	}
	var volume map[string]any
	if err := r.api.call(ctx, "GET", "/volumes/"+record.WorkspaceName(sb.ID()), nil, &volume); err != nil {
		return nil, err
	}
	if len(containers) != 1 {
		return nil, fmt.Errorf("sandbox %q has %d containers", sb.Name(), len(containers))
	}
	c := containers[0]
	mounts, _ := c["Mounts"].([]any)
	m := &multitude{}
	for i := range multitudeSize {
		rec := r.stranger(i)
		labels, err := rec.Labels()
		if err != nil {
			return nil, err
		}
		workspace := record.WorkspaceName(rec.ID)
		c["Id"], c["Names"], c["Labels"] = fmt.Sprintf("%064x", i), []string{"/" + record.ContainerName(rec.Name)}, labels
		for _, mount := range mounts {
			if mount, ok := mount.(map[string]any); ok && mount["Destination"] == sandbox.Workspace {
				mount["Name"] = workspace
			}
		}
		m.containers = append(m.containers, newObject(c, labels))
		volume["Name"], volume["Labels"] = workspace, rec.VolumeLabels(record.RoleWorkspace)
		m.volumes = append(m.volumes, newObject(volume, rec.VolumeLabels(record.RoleWorkspace)))
		for rev := 1; rev <= 2; rev++ {
			l := record.Base(record.RoleRevision, record.NewNonce(), rec.CreatedAt)
			l[record.ID], l[record.Name], l[record.Of], l[record.Settings] = rec.ID, rec.Name, rec.Nonce, `{"tags": {"a": "b"}}`
			volume["Name"], volume["Labels"] = fmt.Sprintf("%s.rev-%d", workspace, rev), l
			m.volumes = append(m.volumes, newObject(volume, l))
		}
	}
	return m, nil
}

// stranger is the record of a sandbox of a multitude.
func (r *rig) stranger(i int) record.Sandbox {
	return record.Sandbox{
		ID: record.NewID(), Name: fmt.Sprintf("crowd-%s-%d", r.id, i), Nonce: record.NewNonce(), CreatedAt: time.Now(),
		Persistent: true, Tags: map[string]string{"crowd": r.id}, ControlKey: make([]byte, 32),
		Settings: record.SandboxSettings{Image: sandbox.DefaultImage, Workdir: sandbox.Workspace},
	}
}

func newObject(v map[string]any, labels map[string]string) object {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err) // it came from JSON
	}
	return object{labels, text}
}

// among returns a client of an engine that has the multitude, too; of the same engine, through
// a proxy as well, if m is nil.
func (r *rig) among(m *multitude) (*front, error) {
	return r.inFront(func(resp *http.Response) error {
		_, path, _ := strings.Cut(strings.TrimPrefix(resp.Request.URL.Path, "/"), "/")
		if m == nil || resp.StatusCode != http.StatusOK || path != "containers/json" && path != "volumes" {
			return nil
		}
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			return err
		}
		// The engine's list has the others' elements first.
		objects, open := m.containers, "["
		if path == "volumes" {
			objects, open = m.volumes, `"Volumes":[`
		}
		before, after, _ := bytes.Cut(text, []byte(open))
		var all bytes.Buffer
		all.Write(before)
		all.WriteString(open)
		for i, o := range pick(objects, resp.Request.URL.Query().Get("filters")) {
			if i > 0 {
				all.WriteByte(',')
			}
			all.Write(o.text)
		}
		if all.Len() > len(before)+len(open) && !bytes.HasPrefix(after, []byte("]")) {
			all.WriteByte(',')
		}
		all.Write(after)
		resp.Body, resp.ContentLength = io.NopCloser(&all), int64(all.Len())
		resp.Header.Set("Content-Length", fmt.Sprint(all.Len()))
		return nil
	})
}

// pick returns the objects that pass a list's filters. It takes out those that don't one by
// one, as the engine does with volumes: a filter that few pass costs most.
func pick(objects []object, filters string) []object {
	var f map[string]map[string]bool
	if json.Unmarshal([]byte(filters), &f) != nil || len(f) == 0 {
		return objects
	}
	objects = slices.Clone(objects)
	for i := 0; i < len(objects); {
		if objects[i].passes(f) {
			i++
		} else {
			objects = slices.Delete(objects, i, i+1)
		}
	}
	return objects
}

// passes reports whether an object passes filters. None passes others than those of labels:
// names and volumes of containers.
func (o object) passes(filters map[string]map[string]bool) bool {
	for kind, wants := range filters {
		for want := range wants {
			key, value, has := strings.Cut(want, "=")
			if got, ok := o.labels[key]; kind != "label" || !ok || has && got != value {
				return false
			}
		}
	}
	return true
}

// createAt10k compares the creation of a sandbox, until the first command's exit, on an engine
// with ten thousand others and on one without.
func createAt10k(ctx context.Context, r *rig) (float64, error) {
	return r.at10k(ctx, "create, to the first command's exit", 11, func(c *sandbox.Client) func() (float64, error) {
		return used(ctx, func() (*sandbox.Sandbox, error) { return c.Create(ctx, r.tags(), quick) })
	})
}

// getAt10k compares finding a sandbox by its name on an engine with ten thousand others and on
// one without.
func getAt10k(ctx context.Context, r *rig) (float64, error) {
	sb, err := r.warm(ctx)
	if err != nil {
		return 0, err
	}
	return r.at10k(ctx, "get", 100, func(c *sandbox.Client) func() (float64, error) {
		return timed(func() error {
			got, err := c.Get(ctx, sb.Name(), sandbox.WithoutResume())
			if err != nil {
				return err
			}
			return got.Detach()
		})
	})
}

// at10k compares what do measures among ten thousand others and without them.
func (r *rig) at10k(ctx context.Context, what string, rounds int, do func(*sandbox.Client) func() (float64, error)) (float64, error) {
	m, err := r.multitude(ctx)
	if err != nil {
		return 0, err
	}
	among, err := r.among(m)
	if err != nil {
		return 0, err
	}
	defer among.close()
	alone, err := r.among(nil)
	if err != nil {
		return 0, err
	}
	defer alone.close()
	many, few, ratios, err := pairs(ctx, 3, rounds, do(among.client), do(alone.client))
	if err != nil {
		return 0, err
	}
	note("%s: %v ms beside %d others, %v ms without them", what, many, multitudeSize, few)
	return ratios.median(), nil
}

// list10k compares a list of ten thousand sandboxes with the two lists of the engine that it
// needs, decoded by Docker's client.
func list10k(ctx context.Context, r *rig) (float64, error) {
	m, err := r.multitude(ctx)
	if err != nil {
		return 0, err
	}
	among, err := r.among(m)
	if err != nil {
		return 0, err
	}
	defer among.close()
	eng, err := engine.Open(ctx, engine.Options{Host: among.host})
	if err != nil {
		return 0, err
	}
	defer eng.Close()
	managed := record.Filter(record.Managed, "true")
	ours, theirs, ratios, err := pairs(ctx, 1, 9,
		timed(func() error {
			got, err := among.client.List(ctx, sandbox.ListOptions{})
			if err == nil && len(got) < multitudeSize {
				err = fmt.Errorf("a list of %d sandboxes, want more than %d", len(got), multitudeSize)
			}
			return err
		}),
		timed(func() error {
			if _, err := eng.ListVolumes(ctx, managed); err != nil {
				return err
			}
			return second(eng.ListContainers(ctx, engine.Filter{Labels: []string{managed}}))
		}))
	if err != nil {
		return 0, err
	}
	note("list of %d: %v ms, the engine's two calls %v ms", multitudeSize, ours, theirs)
	return ratios.median(), nil
}
