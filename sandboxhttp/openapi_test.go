package sandboxhttp_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/sandboxhttp"
)

// A document is the OpenAPI document as the handler serves it.
type document struct {
	Paths map[string]map[string]json.RawMessage
	raw   []byte

	mu      sync.Mutex
	schemas map[string]*jsonschema.Schema // by pointer
}

type operation struct {
	OperationID string
	Parameters  []struct{ Name, In string }
	RequestBody *struct {
		Required bool
		Content  map[string]json.RawMessage
	}
	Responses map[string]struct {
		Ref     string `json:"$ref"`
		Content map[string]struct{ Schema json.RawMessage }
	}
}

var served = sync.OnceValues(func() (*document, error) {
	c, err := sandbox.NewClient(sandbox.WithHost("unix:///nowhere.sock"))
	if err != nil {
		return nil, err
	}
	defer c.Close()
	w := httptest.NewRecorder()
	sandboxhttp.Handler(c).ServeHTTP(w, httptest.NewRequest("GET", "/openapi.json", nil))
	d := &document{raw: w.Body.Bytes(), schemas: map[string]*jsonschema.Schema{}}
	if w.Code != http.StatusOK {
		return nil, fmt.Errorf("GET /openapi.json: %d %s", w.Code, w.Body)
	}
	return d, json.Unmarshal(d.raw, d)
})

func openAPI(t *testing.T) *document {
	t.Helper()
	d, err := served()
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// operations are those of a path, by their methods.
func (d *document) operations(t *testing.T, path string) map[string]operation {
	t.Helper()
	all := map[string]operation{}
	for method, raw := range d.Paths[path] {
		if method == "parameters" {
			continue
		}
		var op operation
		if err := json.Unmarshal(raw, &op); err != nil {
			t.Fatalf("%s %s: %v", method, path, err)
		}
		all[strings.ToUpper(method)] = op
	}
	return all
}

// schema returns the schema at a pointer into the document.
func (d *document) schema(t *testing.T, pointer ...string) *jsonschema.Schema {
	t.Helper()
	escape := strings.NewReplacer("~", "~0", "/", "~1", "{", "%7B", "}", "%7D")
	at := "https://api.test/openapi.json#"
	for _, p := range pointer {
		at += "/" + escape.Replace(p)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if have := d.schemas[at]; have != nil {
		return have
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(d.raw))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	if err := c.AddResource("https://api.test/openapi.json", value); err != nil {
		t.Fatal(err)
	}
	got, err := c.Compile(at)
	if err != nil {
		t.Fatalf("the schema at %s: %v", at, err)
	}
	d.schemas[at] = got
	return got
}

// template returns the path of the document that a request's path is one of.
func (d *document) template(path string) (template string) {
	path, _, _ = strings.Cut(path, "?")
	for candidate := range d.Paths {
		if matches(candidate, path) && (template == "" || !strings.Contains(candidate, "{")) {
			template = candidate
		}
	}
	return template
}

// accepts fails t unless the document describes the JSON of this request, which the handler took.
func (d *document) accepts(t *testing.T, method, path, body string) {
	t.Helper()
	template := d.template(path)
	declared := d.operations(t, template)[method].RequestBody
	switch {
	case body == "" && (declared == nil || !declared.Required):
		return
	case body == "" || declared == nil || declared.Content["application/json"] == nil:
		t.Errorf("%s %s takes the body %q: in the document it is %+v", method, path, body, declared)
		return
	}
	value, err := jsonschema.UnmarshalJSON(strings.NewReader(body))
	if err == nil {
		err = d.schema(t, "paths", template, strings.ToLower(method), "requestBody", "content", "application/json", "schema").Validate(value)
	}
	if err != nil {
		t.Errorf("%s %s: the handler takes this body, the document does not: %v\n%s", method, path, err, body)
	}
}

// check fails t unless the document describes this answer.
func (d *document) check(t *testing.T, method, path string, status int, kind string, body []byte) {
	t.Helper()
	template := d.template(path)
	op, ok := d.operations(t, template)[method]
	if !ok {
		return // no route: the answer is the mux's
	}
	key := fmt.Sprint(status)
	answer, ok := op.Responses[key]
	if !ok {
		key = "default"
		answer = op.Responses[key]
	}
	at := []string{"paths", template, strings.ToLower(method), "responses", key}
	if name, ok := strings.CutPrefix(answer.Ref, "#/components/responses/"); ok {
		at = []string{"components", "responses", name}
		answer.Content = map[string]struct{ Schema json.RawMessage }{"application/json": {json.RawMessage("{}")}}
	}
	kind, _, _ = strings.Cut(kind, ";")
	content, ok := answer.Content[kind]
	switch {
	case !ok && len(answer.Content) == 0 && len(body) == 0:
		return
	case !ok:
		t.Errorf("%s %s: %d is %q: the document has no such answer", method, path, status, kind)
		return
	case content.Schema == nil || kind == "text/event-stream":
		return
	}
	schema := d.schema(t, append(at, "content", kind, "schema")...)
	lines := [][]byte{body}
	if kind == "application/x-ndjson" {
		lines = bytes.Split(bytes.TrimSpace(body), []byte("\n"))
	}
	for _, line := range lines {
		value, err := jsonschema.UnmarshalJSON(bytes.NewReader(line))
		if err == nil {
			err = schema.Validate(value)
		}
		if err != nil {
			t.Errorf("%s %s: %d: %v\n%s", method, path, status, err, line)
		}
	}
}

// matches reports whether a path is one of a template.
func matches(template, path string) bool {
	want, got := strings.Split(template, "/"), strings.Split(path, "/")
	return slices.EqualFunc(want, got, func(w, g string) bool { return w == g || strings.HasPrefix(w, "{") && g != "" })
}

func TestTheDocumentHasTheRoutesOfTheHandler(t *testing.T) {
	t.Parallel()
	d := openAPI(t)
	var got []sandboxhttp.Route
	for path := range d.Paths {
		for method, op := range d.operations(t, path) {
			r := sandboxhttp.Route{Method: method, Path: path, Name: op.OperationID}
			for _, p := range op.Parameters {
				if p.In == "query" {
					r.Query = append(r.Query, p.Name)
				}
			}
			got = append(got, r)
		}
	}
	want := sandboxhttp.Routes()
	for _, all := range [][]sandboxhttp.Route{got, want} {
		for i := range all {
			slices.Sort(all[i].Query)
		}
		slices.SortFunc(all, func(a, b sandboxhttp.Route) int { return strings.Compare(a.Path+a.Method, b.Path+b.Method) })
	}
	if diff := cmp.Diff(want, got); diff != "" || len(want) < 20 {
		t.Errorf("routes of the handler (-) and of the document (+):\n%s", diff)
	}
}

func TestTheSchemasCompile(t *testing.T) {
	t.Parallel()
	d := openAPI(t)
	var doc struct {
		Components struct{ Schemas map[string]json.RawMessage }
	}
	if err := json.Unmarshal(d.raw, &doc); err != nil {
		t.Fatal(err)
	}
	for name := range doc.Components.Schemas {
		d.schema(t, "components", "schemas", name)
	}
}
