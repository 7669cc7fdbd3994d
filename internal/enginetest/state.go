package enginetest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
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

// IgnoreGuest leaves out what stays on an engine: the cached guest image and volume, and the
// volume that says when the last sweep was.
func IgnoreGuest() Option {
	return func(o object) bool {
		return o.labels["agent-sandbox.role"] != "guest" && o.labels["agent-sandbox.role"] != "sweep"
	}
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

// OfNames looks only at what belongs to sandboxes whose names begin so.
func OfNames(prefix string) Option {
	return func(o object) bool { return strings.HasPrefix(o.labels["agent-sandbox.name"], prefix) }
}

// Take lists the engine's containers in any state, volumes, networks and
// images. Every option must hold for an object to count.
func Take(t testing.TB, opts ...Option) State {
	t.Helper()
	Need(t)
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

// hung is longer than any call takes that an engine answers at all.
const hung = 5 * time.Minute

// Watch ends this program when the engine locks up, as those up to 20.10.26 can
// (moby#46661): they answer, but what has to do with networks waits for ever, and so
// would every test. It is for TestMain, until stop is called.
func Watch() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	client := httpClient(mainTB{}) // before tests set DOCKER_HOST to what is no engine
	var asking sync.WaitGroup
	asking.Go(func() {
		const patience = 2 * time.Minute
		if lockedUp(ctx, client, 20*time.Second, patience) {
			fmt.Fprintf(os.Stderr, "the engine has locked up: for %v it has not said what networks it has\n", patience)
			os.Exit(1)
		}
	})
	return func() {
		cancel()
		asking.Wait()
	}
}

// lockedUp asks every so often, until ctx ends, and reports whether the engine ever let
// the patience of the one who asks run out. One that is down does not.
func lockedUp(ctx context.Context, client *http.Client, every, patience time.Duration) bool {
	ask := func() error {
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://engine/networks", nil)
		if err != nil {
			return err
		}
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		return resp.Body.Close()
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-tick.C:
			if errors.Is(ask(), context.DeadlineExceeded) && ctx.Err() == nil {
				return true
			}
		}
	}
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
	Need(t)
	must(t, "GET "+path, func() error { return get(t, path, v) })
}

// Connections listens to the engine until the test ends. The function it returns tells
// when a container that was started since got its address in the engine's default
// network: before its first instruction, and after the one that had the address before
// was gone, by the clock of the engine's machine.
func Connections(t testing.TB) func(container string) time.Time {
	t.Helper()
	Need(t)
	path := "/events" + query("filters", `{"type":["network"],"event":["connect"]}`)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://engine"+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := httpClient(t).Do(req)
	if err != nil {
		t.Fatalf("GET %s: %v", path, err)
	}
	connected, ended := map[string]chan time.Time{}, make(chan struct{})
	var mu sync.Mutex
	of := func(id string) chan time.Time {
		mu.Lock()
		defer mu.Unlock()
		if connected[id] == nil {
			connected[id] = make(chan time.Time, 1)
		}
		return connected[id]
	}
	go func() {
		defer close(ended)
		defer resp.Body.Close()
		for d := json.NewDecoder(resp.Body); ; {
			var e struct {
				Actor    struct{ Attributes map[string]string }
				TimeNano int64
			}
			if d.Decode(&e) != nil {
				return // the test is over, or a caller hears of it
			}
			select {
			case of(e.Actor.Attributes["container"]) <- time.Unix(0, e.TimeNano):
			default:
			}
		}
	}()
	t.Cleanup(func() { <-ended })
	return func(container string) time.Time {
		t.Helper()
		var got struct{ ID string }
		Get(t, "/containers/"+container+"/json", &got)
		select {
		case at := <-of(got.ID):
			return at
		case <-ended:
			t.Fatal("the engine has ended its events")
		case <-time.After(time.Minute):
			t.Fatalf("the engine tells of no network that %s was connected to", container)
		}
		return time.Time{}
	}
}

// AddressTaken reports whether a container in the engine's default network has the address.
func AddressTaken(t testing.TB, addr string) bool {
	t.Helper()
	var got struct {
		Containers map[string]struct{ IPv4Address string }
	}
	Get(t, "/networks/bridge", &got)
	for _, c := range got.Containers {
		if a, _, _ := strings.Cut(c.IPv4Address, "/"); a == addr {
			return true
		}
	}
	return false
}

// Post asks the real engine for something that the library never does.
func Post(t testing.TB, path string, body any) {
	t.Helper()
	Need(t)
	must(t, "POST "+path, func() error { return post(t, path, body) })
}

// Exited waits until a container has ended, and returns its exit code.
func Exited(t testing.TB, id string) int {
	t.Helper()
	var ended struct{ StatusCode int }
	reply, err := do(t, http.MethodPost, "/containers/"+id+"/wait", "", nil)
	if err == nil {
		err = json.Unmarshal(reply, &ended)
	}
	if err != nil {
		t.Fatalf("wait for container %s: %v", id, err)
	}
	return ended.StatusCode
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
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), hung)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, "http://engine"+path, bytes.NewReader(body))
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
