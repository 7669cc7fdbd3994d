package enginetest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
)

// State is what an engine held at a moment.
type State struct {
	objects map[string]object // by kind and ID
}

type object struct {
	kind, id, name, detail string
	labels                 map[string]string
}

func (o object) String() string {
	s := o.kind + " " + o.name
	if o.detail != "" {
		s += " (" + o.detail + ")"
	}
	return s
}

// Option says what [Take] looks at.
type Option func(object) bool

// ManagedOnly looks at our own objects only, those that carry
// agent-sandbox.managed=true.
func ManagedOnly() Option { return WithLabel("agent-sandbox.managed=true") }

// IgnoreGuest leaves out the cached guest image and volume.
func IgnoreGuest() Option {
	return func(o object) bool { return o.labels["agent-sandbox.role"] != "guest" }
}

// WithLabel looks only at objects that carry label, "key" or "key=value".
// Networks count too.
func WithLabel(label string) Option {
	key, value, has := strings.Cut(label, "=")
	return func(o object) bool {
		v, ok := o.labels[key]
		return ok && (!has || v == value)
	}
}

// WithoutLabel leaves out objects that carry the label's key.
func WithoutLabel(key string) Option {
	return func(o object) bool { _, ok := o.labels[key]; return !ok }
}

// Take lists the engine's containers in any state, volumes, networks and
// images. Every option must hold for an object to count.
func Take(t testing.TB, opts ...Option) State {
	t.Helper()
	s, err := take(t, opts)
	if err != nil {
		t.Fatalf("list what the engine holds: %v", err)
	}
	return s
}

func take(t testing.TB, opts []Option) (State, error) {
	s := State{objects: map[string]object{}}
	add := func(o object) {
		for _, keep := range opts {
			if !keep(o) {
				return
			}
		}
		s.objects[o.kind+"/"+o.id] = o
	}
	var containers []struct {
		ID     string
		Names  []string
		State  string
		Labels map[string]string
	}
	if err := get(t, "/containers/json?all=1", &containers); err != nil {
		return s, err
	}
	for _, c := range containers {
		add(object{"container", c.ID, strings.TrimPrefix(strings.Join(c.Names, ","), "/"), c.State, c.Labels})
	}
	var volumes struct {
		Volumes []struct {
			Name   string
			Labels map[string]string
		}
	}
	if err := get(t, "/volumes", &volumes); err != nil {
		return s, err
	}
	for _, v := range volumes.Volumes {
		add(object{"volume", v.Name, v.Name, "", v.Labels})
	}
	var networks []struct {
		ID, Name, Driver string
		Labels           map[string]string
	}
	if err := get(t, "/networks", &networks); err != nil {
		return s, err
	}
	for _, n := range networks {
		add(object{"network", n.ID, n.Name, n.Driver, n.Labels})
	}
	var images []struct {
		ID       string
		RepoTags []string
		Labels   map[string]string
	}
	if err := get(t, "/images/json", &images); err != nil {
		return s, err
	}
	for _, i := range images {
		slices.Sort(i.RepoTags)
		add(object{"image", i.ID, strings.Join(i.RepoTags, ","), i.ID, i.Labels})
	}
	return s, nil
}

// Diff says what is different in now, a line for each object: "+" for one
// that came, "-" for one that went, "~" for one that has changed.
func (s State) Diff(now State) []string {
	var out []string
	for key, o := range now.objects {
		was, ok := s.objects[key]
		switch {
		case !ok:
			out = append(out, "+ "+o.String())
		case was.String() != o.String():
			out = append(out, "~ "+was.String()+" is now "+o.String())
		}
	}
	for key, o := range s.objects {
		if _, ok := now.objects[key]; !ok {
			out = append(out, "- "+o.String())
		}
	}
	slices.SortFunc(out, func(a, b string) int { return strings.Compare(a[2:], b[2:]) })
	return out
}

// Lines names everything in s.
func (s State) Lines() []string {
	var out []string
	for o := range maps.Values(s.objects) {
		out = append(out, o.String())
	}
	slices.Sort(out)
	return out
}

// Leftovers names what the engine holds within opts, without a test: for
// TestMain, after the last one.
func Leftovers(opts ...Option) ([]string, error) {
	s, err := take(mainTB{}, opts)
	return s.Lines(), err
}

// mainTB stands in for a test where there is none.
type mainTB struct{ testing.TB }

func (mainTB) Helper()                           {}
func (mainTB) Context() context.Context          { return context.Background() }
func (mainTB) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }

// Get reads what the real engine itself says at path, such as
// "/containers/x/json", into v.
func Get(t testing.TB, path string, v any) {
	t.Helper()
	must(t, "GET "+path, func() error { return get(t, path, v) })
}

// Post asks the real engine for something that the library never does.
func Post(t testing.TB, path string, body any) {
	t.Helper()
	must(t, "POST "+path, func() error { return post(t, path, body) })
}

func get(t testing.TB, path string, v any) error {
	t.Helper()
	b, err := do(t, http.MethodGet, path, "", nil)
	if err != nil {
		return err
	}
	return json.Unmarshal(b, v)
}

// do makes a call to the real engine and returns the reply's body.
func do(t testing.TB, method, path, contentType string, body []byte) ([]byte, error) {
	t.Helper()
	// Not the test's own context, which is over when its clean-up runs.
	req, err := http.NewRequestWithContext(context.WithoutCancel(t.Context()), method, "http://engine"+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	resp, err := httpClient(t).Do(req)
	if err != nil {
		return nil, fmt.Errorf("is an engine running? %w", err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode >= 400 {
		return b, &refusal{method: method, path: path, status: resp.StatusCode, text: strings.TrimSpace(string(b))}
	}
	return b, nil
}

type refusal struct {
	method, path string
	status       int
	text         string
}

func (r *refusal) Error() string {
	return fmt.Sprintf("%s %s: %d %s", r.method, r.path, r.status, r.text)
}

func query(kv ...string) string {
	q := url.Values{}
	for i := 0; i+1 < len(kv); i += 2 {
		q.Add(kv[i], kv[i+1])
	}
	return "?" + q.Encode()
}
