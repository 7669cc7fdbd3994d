package record_test

import (
	"encoding/json"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/seed-1a2d6d8f/sandbox/internal/record"
)

func sample() record.Sandbox {
	return record.Sandbox{
		ID: "abc123", Name: "build-42", Nonce: record.NewNonce(), Persistent: true,
		CreatedAt:  time.Date(2026, 3, 1, 12, 0, 0, 123456789, time.UTC),
		Tags:       map[string]string{"a": "", "clé=x": "väl=ue", "id": "tag, not ours"},
		ControlKey: []byte(strings.Repeat("k", 32)),
		Settings: record.SandboxSettings{Image: "node:20-bookworm", User: "node", Workdir: "/w",
			Command: []string{"a b", "\n"}, TimeoutMS: 300000, StopTimeoutMS: 30000},
	}
}

// Other tools read timeouts as whole milliseconds.
func TestTimeoutsAreLabelledInMilliseconds(t *testing.T) {
	labels, err := sample().Labels()
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal([]byte(labels[record.Settings]), &got); err != nil {
		t.Fatal(err)
	}
	if got["timeout_ms"] != 300000.0 || got["stop_timeout_ms"] != 30000.0 {
		t.Errorf("the record says %v", got)
	}
}

func TestLabelsRoundTrip(t *testing.T) {
	want := sample()
	labels, err := want.Labels()
	if err != nil {
		t.Fatal(err)
	}
	got, ok := record.Decode(labels)
	if !ok {
		t.Fatalf("Decode(%v) says it is not a sandbox", labels)
	}
	if d := cmp.Diff(want, got, cmpopts.IgnoreFields(record.Sandbox{}, "Revision")); d != "" {
		t.Errorf("Decode(Labels(r)) (-want +got):\n%s", d)
	}
}

// A record of an older schema has an ID and a name and nothing else; one of a
// newer schema has labels nobody knows.
func TestOtherSchemasStayReadable(t *testing.T) {
	old := map[string]string{record.Managed: "true", record.ID: "abc123", record.Name: "x"}
	newer, _ := sample().Labels()
	newer["agent-sandbox.future"] = "?"
	newer["agent-sandbox.schema"] = "99"
	for name, labels := range map[string]map[string]string{"old": old, "newer": newer} {
		got, ok := record.Decode(labels)
		if !ok || got.Problem != nil || !got.Persistent {
			t.Errorf("%s: Decode = %+v, %v; want a readable persistent sandbox", name, got, ok)
		}
	}
}

// The engine merges the labels of an image into those of a container. Only what the record
// lists is a tag.
func TestLabelsOfAnImageAreNoTags(t *testing.T) {
	image := map[string]string{
		"agent-sandbox.tag.tenant": "acme", "agent-sandbox.tag.a": "theirs", record.By: "forged", record.After: "forged", "theirs": "kept",
	}
	for name, want := range map[string]map[string]string{"no tags": nil, "tags": sample().Tags} {
		r := sample()
		r.Tags = want
		ours, err := r.Labels()
		if err != nil {
			t.Fatal(err)
		}
		merged := maps.Clone(image)
		maps.Copy(merged, ours)
		got, ok := record.Decode(merged)
		if !ok || !maps.Equal(got.Tags, want) || got.By != "" || got.Previous != "" {
			t.Errorf("%s: Decode = tags %v, by %q, after %q, %v; want tags %v", name, got.Tags, got.By, got.Previous, ok, want)
		}
		record.Mask(ours, image)
		if v, set := ours["agent-sandbox.tag.tenant"]; v != "" || !set {
			t.Errorf("%s: Mask leaves the image's tag to the engine", name)
		}
		if _, set := ours["theirs"]; set || name == "tags" && ours["agent-sandbox.tag.a"] != "" {
			t.Errorf("%s: Mask changes other labels: %v", name, ours)
		}
	}
	none := map[string]string{record.Managed: "true", record.ID: "abc123", record.Name: "x", record.Settings: "{}", "agent-sandbox.tag.a": "1"}
	if got, _ := record.Decode(none); got.Tags != nil {
		t.Errorf("Decode of a record without a list of tags: %v", got.Tags)
	}
}

// One damaged label leaves the sandbox readable, and says which it is.
func TestDamagedLabelIsNamed(t *testing.T) {
	whole, _ := sample().Labels()
	for _, key := range []string{record.Settings, record.CreatedAt, record.ControlKey} {
		labels := maps.Clone(whole)
		labels[key] = "{not it"
		got, ok := record.Decode(labels)
		if !ok || got.Name != "build-42" {
			t.Errorf("damaged %s: Decode = %+v, %v; want the sandbox", key, got, ok)
		}
		if got.Problem == nil || !strings.Contains(got.Problem.Error(), key) {
			t.Errorf("damaged %s: Problem = %v; want it named", key, got.Problem)
		}
	}
}

func TestForeignLabelsAreNotASandbox(t *testing.T) {
	whole, _ := sample().Labels()
	for _, change := range []func(map[string]string){
		func(l map[string]string) { delete(l, record.Managed) },
		func(l map[string]string) { l[record.Managed] = "false" },
		func(l map[string]string) { l[record.Role] = record.RoleHelper },
		func(l map[string]string) { delete(l, record.Name) },
		func(l map[string]string) { delete(l, record.ID) },
	} {
		labels := maps.Clone(whole)
		change(labels)
		if r, ok := record.Decode(labels); ok {
			t.Errorf("Decode(%v) = %+v; want not a sandbox", labels, r)
		}
	}
}

func TestLabelsAreBounded(t *testing.T) {
	r := sample()
	r.Tags = map[string]string{"big": strings.Repeat("x", record.MaxLabels)}
	if _, err := r.Labels(); err == nil {
		t.Error("Labels() of 64 KiB and more: no error")
	}
}

func TestValidName(t *testing.T) {
	for name, want := range map[string]bool{
		"a": true, "0": true, "a..b": true, "a_b-c.d": true, strings.Repeat("a", 63): true,
		"": false, "A": false, "ä": false, "-a": false, ".a": false, "_a": false, "a/b": false,
		"../containers/x": false, "a b": false, "a:b": false, "a\n": false, strings.Repeat("a", 64): false,
	} {
		if got := record.ValidName(name); got != want {
			t.Errorf("ValidName(%q) = %v, want %v", name, got, want)
		}
	}
}

func TestReservedIDsAreThoseOfOtherObjects(t *testing.T) {
	for _, object := range []string{record.GuestName("abc"), "agent-sandbox-pending.x", "agent-sandbox-snap-1", record.WorkspaceName("x") + ".rev-1"} {
		id := strings.TrimPrefix(object, "agent-sandbox-")
		if !record.ReservedID(id) {
			t.Errorf("ReservedID(%q) = false, but %q is another kind of object", id, object)
		}
	}
	if record.ReservedID(record.NewID()) || record.ReservedID("abc123") {
		t.Error("an ordinary ID is reserved")
	}
}

func FuzzDecode(f *testing.F) {
	whole, _ := sample().Labels()
	f.Add(whole[record.Settings], whole[record.CreatedAt], whole[record.ControlKey])
	f.Add("{", "yesterday", "!")
	f.Fuzz(func(t *testing.T, settings, at, key string) {
		r, ok := record.Decode(map[string]string{record.Managed: "true", record.ID: "i", record.Name: "n",
			record.Settings: settings, record.CreatedAt: at, record.ControlKey: key})
		if !ok || r.Name != "n" {
			t.Errorf("Decode = %+v, %v", r, ok)
		}
	})
}
