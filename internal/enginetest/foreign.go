package enginetest

import (
	"archive/tar"
	"bytes"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// ForeignLabel marks the foreign objects that carry a label at all: the
// image, its containers, which inherit it, and all volumes but the first.
const ForeignLabel = "enginetest.foreign"

// Foreign is a handful of objects that are not ours, under names that look
// as if they were.
type Foreign struct {
	Suffix string // unique to this call
	Name   string // a sandbox name whose container name is taken: container agent-sandbox-<Name>
	Volume string // agent-sandbox-foreign<suffix>: without labels, with a file in it
	// Volumes are all of them; among them are a pending marker's name and one
	// called like the container Victim.
	Volumes []string
	// Containers are all of them, created and never started. They mount Volume.
	Containers []string
	Victim     string // a container to aim "../containers/…" at
	Image      string

	facts map[string]string
}

// NewForeign makes foreign objects. When the test ends they are checked to be
// untouched, and removed.
func NewForeign(t testing.TB) *Foreign {
	t.Helper()
	Need(t)
	suffix := strings.ToLower(rand.Text()[:10])
	f := &Foreign{
		Suffix: suffix,
		Name:   "foreign" + suffix,
		Volume: "agent-sandbox-foreign" + suffix,
		Victim: "victim" + suffix,
		Image:  "enginetest-foreign:" + suffix,
	}
	f.Volumes = []string{f.Volume, "agent-sandbox-pending.foreign" + suffix, "agent-sandbox-foreign" + suffix + ".rev-1", f.Victim}
	f.Containers = []string{"agent-sandbox-" + f.Name, f.Victim, "agent-sandbox-guest-foreign" + suffix}
	t.Cleanup(func() { f.remove(t) })

	must(t, "import the foreign image", func() error {
		_, err := do(t, http.MethodPost, "/images/create"+query("fromSrc", "-", "repo", "enginetest-foreign", "tag", suffix,
			"changes", "LABEL "+ForeignLabel+"="+suffix), "application/x-tar", tarOf("who", "foreign image "+suffix))
		return err
	})
	for i, name := range f.Volumes {
		body := map[string]any{"Name": name}
		if i > 0 {
			// All but the first carry labels, which are not ours.
			body["Labels"] = map[string]string{ForeignLabel: suffix}
		}
		must(t, "create the foreign volume "+name, func() error { return post(t, "/volumes/create", body) })
	}
	for _, name := range f.Containers {
		body := map[string]any{
			"Image": f.Image, "Cmd": []string{"/never"},
			"HostConfig": map[string]any{"Mounts": []map[string]any{{"Type": "volume", "Source": f.Volume, "Target": "/data"}}},
		}
		must(t, "create the foreign container "+name, func() error { return post(t, "/containers/create"+query("name", name), body) })
	}
	must(t, "write a foreign file", func() error {
		_, err := do(t, http.MethodPut, "/containers/"+f.Victim+"/archive"+query("path", "/data"), "application/x-tar", tarOf("keep", f.content()))
		return err
	})
	var err error
	if f.facts, err = f.look(t); err != nil {
		t.Fatalf("look at the foreign objects: %v", err)
	}
	return f
}

func (f *Foreign) content() string { return "nobody else's business " + f.Suffix }

// Check fails the test where a foreign object is not as it was made.
func (f *Foreign) Check(t testing.TB) {
	t.Helper()
	now, err := f.look(t)
	if err != nil {
		t.Errorf("a foreign object was touched: %v", err)
		return
	}
	if diff := cmp.Diff(f.facts, now); diff != "" {
		t.Errorf("foreign objects were touched (-as made +now):\n%s", diff)
	}
}

// look gathers what must not change.
func (f *Foreign) look(t testing.TB) (map[string]string, error) {
	t.Helper()
	facts := map[string]string{}
	for _, name := range f.Containers {
		var c struct {
			ID, Name, Created string
			State             struct{ Status, StartedAt string }
			Config            struct{ Labels map[string]string }
			Mounts            []struct{ Name, Destination string }
		}
		if err := get(t, "/containers/"+name+"/json", &c); err != nil {
			return nil, err
		}
		facts["container "+name] = fmt.Sprintf("%+v", c)
	}
	for _, name := range f.Volumes {
		var v struct {
			Name, CreatedAt, Mountpoint string
			Labels, Options             map[string]string
		}
		if err := get(t, "/volumes/"+name, &v); err != nil {
			return nil, err
		}
		if name == f.Volume {
			v.CreatedAt = "" // its directory's change time, which our file moved
		}
		facts["volume "+name] = fmt.Sprintf("%+v", v)
	}
	var i struct {
		ID       string
		RepoTags []string
	}
	if err := get(t, "/images/"+f.Image+"/json", &i); err != nil {
		return nil, err
	}
	facts["image "+f.Image] = fmt.Sprintf("%+v", i)
	file, err := do(t, http.MethodGet, "/containers/"+f.Victim+"/archive"+query("path", "/data/keep"), "", nil)
	if err != nil {
		return nil, err
	}
	tr := tar.NewReader(bytes.NewReader(file))
	if _, err := tr.Next(); err != nil {
		return nil, err
	}
	content, err := io.ReadAll(tr)
	facts["file keep"] = string(content)
	return facts, err
}

func (f *Foreign) remove(t testing.TB) {
	t.Helper()
	if f.facts != nil {
		f.Check(t)
	}
	var paths []string
	for _, name := range f.Containers {
		paths = append(paths, "/containers/"+name+"?force=1")
	}
	for _, name := range f.Volumes {
		paths = append(paths, "/volumes/"+name)
	}
	paths = append(paths, "/images/"+f.Image+"?force=1")
	for _, path := range paths {
		_, err := do(t, http.MethodDelete, path, "", nil)
		var r *refusal
		if err != nil && (!errors.As(err, &r) || r.status != http.StatusNotFound) {
			t.Errorf("remove a foreign object: %v", err)
		}
	}
}

func must(t testing.TB, what string, f func() error) {
	t.Helper()
	if err := f(); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

func post(t testing.TB, path string, body any) error {
	t.Helper()
	b, err := json.Marshal(body)
	if err != nil {
		return err
	}
	_, err = do(t, http.MethodPost, path, "application/json", b)
	return err
}

func tarOf(name, content string) []byte {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	// Writing to memory fails only for a name or size that tar cannot hold.
	_ = w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(content))})
	_, _ = w.Write([]byte(content))
	_ = w.Close()
	return b.Bytes()
}
