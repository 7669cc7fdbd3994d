package sandboxhttp

import (
	"bytes"
	"encoding"
	"encoding/json"
	flags "flag"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-1a2d6d8f/sandbox"
)

var updateSchemas = flags.Bool("update-schemas", false, "write the schemas of the Go types to openapi.json")

// A schemaSource is the Go type of a schema.
type schemaSource struct {
	of      reflect.Type
	request bool     // Go does not say which of its fields are required: the document does
	without []string // fields that are refused, or that no answer has
}

func answerOf[T any](without ...string) schemaSource {
	return schemaSource{reflect.TypeFor[T](), false, without}
}

func requestOf[T any](without ...string) schemaSource {
	return schemaSource{reflect.TypeFor[T](), true, without}
}

// sources are the types of the document's schemas.
var sources = map[string]schemaSource{
	"State": answerOf[sandbox.State](), "NetworkPolicy": answerOf[sandbox.NetworkPolicy](),
	"Failure": answerOf[failure](), "Error": answerOf[failed](),
	"Health": answerOf[sandbox.Health](), "Warning": answerOf[sandbox.Warning](), "Alive": answerOf[alive](), "Node": answerOf[sandbox.NodeStatus](),
	"Settings":        answerOf[sandbox.Settings]("name", "id", "image", "env", "tags", "network"), // which a status has itself
	"DefaultSettings": answerOf[sandbox.Settings]("name", "id", "runtime", "ociRuntime", "user", "storageBytes", "newPrivileges", "gpus", "command", "env", "tags", "ports", "mounts", "ignoreDetached"),
	"Defaults":        answerOf[defaultsAnswer](),
	"Mount":           requestOf[sandbox.Mount](),
	"Sandbox":         answerOf[sandbox.Status]("source", "reason", "startedAt", "endedAt", "uptimeMs", "expiresAt", "idleExpiresAt", "workspace", "volumes", "usage", "network", "env", "egress", "copied", "logsEndpoint"),
	"SandboxDetails":  answerOf[sandbox.Status](), "StateAnswer": answerOf[state](), "Usage": answerOf[sandbox.Usage](),
	"CopyReport": answerOf[sandbox.CopyReport](), "CreateEvent": answerOf[createEvent](), "Event": answerOf[sandbox.Event](),
	"Volume": answerOf[sandbox.Volume](), "VolumeOutcome": answerOf[sandbox.VolumeOutcome](),
	"DeleteReport": answerOf[sandbox.DeleteReport](), "DeleteFailure": answerOf[deleteFailure](),
	"CleanupReport": answerOf[sandbox.CleanupReport](), "CleanupFailure": answerOf[cleanupAnswer](),
	"PruneReport": answerOf[sandbox.PruneReport](), "PruneFailure": answerOf[pruneAnswer](),
	"MoveReport": answerOf[sandbox.MoveReport](),
	"Snapshot":   answerOf[sandbox.Snapshot](), "SnapshotNode": answerOf[sandbox.SnapshotNode]("copied"),
	"Process": answerOf[sandbox.ProcessInfo](), "ExecEvent": answerOf[execEvent](), "ExecResult": answerOf[execResult](),
	"Egress": answerOf[sandbox.Egress](), "Verdict": answerOf[verdict](),
	"File": answerOf[fileEntry](), "Written": answerOf[written](),

	"Source": requestOf[sourceRequest](), "CreateRequest": requestOf[createRequest](), "ForkRequest": requestOf[forkRequest](),
	"UpdateRequest":   requestOf[updateRequest]("name", "id", "image", "runtime", "ociRuntime", "user", "workdir", "pidsLimit", "storageBytes", "newPrivileges", "gpus"),
	"SnapshotRequest": requestOf[snapshotRequest](), "RollbackRequest": requestOf[rollbackRequest](), "MoveRequest": requestOf[moveRequest](), "CleanupRequest": requestOf[cleanupRequest](),
	"ExecRequest": requestOf[execRequest](), "TerminalRequest": requestOf[terminalRequest]("stdin", "detached", "wait"),
	"SignalRequest": requestOf[signalRequest](), "ExtendRequest": requestOf[extendRequest](),
}

// An object is a JSON object with its order.
type object []member

type member struct {
	key   string
	value any // an object, an array, or what encoding/json makes of a scalar
}

func (o object) get(key string) any {
	for _, m := range o {
		if m.key == key {
			return m.value
		}
	}
	return nil
}

func (o object) object(key string) object {
	got, _ := o.get(key).(object)
	return got
}

// readValue reads a value, of which objects keep their order.
func readValue(d *json.Decoder) any {
	token, err := d.Token()
	if err != nil {
		panic(err)
	}
	switch token {
	case json.Delim('{'):
		o := object{}
		for d.More() {
			key, _ := d.Token()
			o = append(o, member{key.(string), readValue(d)})
		}
		d.Token()
		return o
	case json.Delim('['):
		a := []any{}
		for d.More() {
			a = append(a, readValue(d))
		}
		d.Token()
		return a
	}
	return token
}

// text is a value as the document has it: on one line where that is short, or a list of words.
func text(v any, indent string) string {
	const width = 150
	open, shut, items := "{", "}", []string{}
	switch v := v.(type) {
	case object:
		for _, m := range v {
			items = append(items, text(m.key, "")+": "+text(m.value, indent+"  "))
		}
	case []any:
		open, shut = "[", "]"
		for _, each := range v {
			items = append(items, text(each, indent+"  "))
		}
	default:
		var b bytes.Buffer
		e := json.NewEncoder(&b)
		e.SetEscapeHTML(false)
		if err := e.Encode(v); err != nil {
			panic(err)
		}
		return strings.TrimSpace(b.String())
	}
	line := open + strings.Join(items, ", ") + shut
	if words := open == "[" && !strings.ContainsAny(line, "{\n"); words || len(indent)+len(line) < width && !strings.Contains(line, "\n") {
		return line
	}
	inner := "\n" + indent + "  "
	return open + inner + strings.Join(items, ","+inner) + "\n" + indent + shut
}

var (
	durations    = reflect.TypeFor[time.Duration]()
	times        = reflect.TypeFor[time.Time]()
	marshalsText = reflect.TypeFor[encoding.TextMarshaler]()
)

// A property is a field of an object as it is in JSON.
type property struct {
	name    string
	of      reflect.Type
	omitted bool // if it is empty
}

// properties are the fields of a struct. A duration that has no name in JSON is there in milliseconds.
func properties(t reflect.Type) (all []property) {
	for _, f := range reflect.VisibleFields(t) {
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		of := f.Type
		if of.Kind() == reflect.Pointer {
			of = of.Elem()
		}
		p := property{name, f.Type, strings.Contains(options, "omit")}
		if name == "-" && of == durations {
			p = property{strings.ToLower(f.Name[:1]) + f.Name[1:] + "Ms", reflect.TypeFor[int64](), f.Type != of}
		}
		// A field of an embedded pointer is there only with the pointer.
		for i := 1; i < len(f.Index); i++ {
			p.omitted = p.omitted || t.FieldByIndex(f.Index[:i]).Type.Kind() == reflect.Pointer
		}
		if name != "" && p.name != "-" && !slices.ContainsFunc(all, func(have property) bool { return have.name == p.name }) {
			all = append(all, p)
		}
	}
	return all
}

// schemaOf returns the schema of a type. What Go does not say is kept from the document: descriptions,
// the values and the bounds of a field, whether an array may be null, and what is required beyond it.
func schemaOf(s schemaSource, have object, top bool) object {
	t := s.of
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if either, ok := have.get("anyOf").([]any); ok { // or null
		first, _ := either[0].(object)
		return object{{"anyOf", append([]any{schemaOf(s, first, top)}, either[1:]...)}}
	}
	var made object
	if name := schemaName(t, have); name != "" && !top {
		made = object{{"$ref", "#/components/schemas/" + name}}
		return kept(made, have)
	}
	within := func(of reflect.Type, key string) object {
		return schemaOf(schemaSource{of: of, request: s.request}, have.object(key), false)
	}
	switch {
	case t.Kind() == reflect.String && have.get("enum") != nil:
	case t == times:
		made = object{{"type", "string"}, {"format", "date-time"}}
	case t.Kind() == reflect.String, t.Kind() != reflect.Map && reflect.PointerTo(t).Implements(marshalsText):
		made = object{{"type", "string"}}
	case t == reflect.TypeFor[[]byte]():
		made = object{{"type", "string"}, {"contentEncoding", "base64"}}
	case t.Kind() == reflect.Bool:
		made = object{{"type", "boolean"}}
	case t.Kind() == reflect.Float64:
		made = object{{"type", "number"}}
	case t.Kind() == reflect.Slice:
		made = object{{"type", "array"}, {"items", within(t.Elem(), "items")}}
	case t.Kind() == reflect.Map:
		made = object{{"type", "object"}, {"additionalProperties", within(t.Elem(), "additionalProperties")}}
	case t.Kind() == reflect.Struct:
		made = structOf(s, t, have)
	case t.ConvertibleTo(reflect.TypeFor[int64]()):
		made = object{{"type", "integer"}}
	default:
		panic("no schema for " + t.String())
	}
	return kept(made, have)
}

func structOf(s schemaSource, t reflect.Type, have object) object {
	old, required, fields := have.object("properties"), []any{}, object{}
	was, _ := have.get("required").([]any)
	for _, p := range properties(t) {
		if slices.Contains(s.without, p.name) {
			continue
		}
		fields = append(fields, member{p.name, schemaOf(schemaSource{of: p.of, request: s.request}, old.object(p.name), false)})
		if slices.Contains(was, any(p.name)) || !s.request && !p.omitted {
			required = append(required, p.name)
		}
	}
	made := object{{"type", "object"}, {"properties", fields}}
	if len(required) > 0 {
		made = append(made, member{"required", required})
	}
	return append(made, member{"additionalProperties", false})
}

// kept returns a schema with what the document says beyond it.
func kept(made, have object) object {
	for _, m := range have {
		if slices.Contains([]string{"description", "enum", "minimum", "minItems", "minProperties", "maxProperties"}, m.key) {
			made = append(made, m)
		}
	}
	return made
}

// schemaName is the name of a type's schema: where a type has several, that which the document names there.
func schemaName(t reflect.Type, have object) (first string) {
	ref, _ := have.get("$ref").(string)
	for name, s := range sources {
		if s.of != t {
			continue
		}
		if ref == "#/components/schemas/"+name {
			return name
		}
		if first == "" || name < first {
			first = name
		}
	}
	return first
}

// The schemas of openapi.json are those of the Go types. With -update-schemas they become so.
func TestTheSchemasAreThoseOfTheTypes(t *testing.T) {
	doc, ok := readValue(json.NewDecoder(bytes.NewReader(openAPI))).(object)
	if !ok {
		t.Fatal("openapi.json is no object")
	}
	have := doc.object("components").object("schemas")
	var want object
	for _, m := range have {
		s, ok := sources[m.key]
		if !ok {
			t.Errorf("the document has a schema %s of no type", m.key)
			continue
		}
		old, _ := m.value.(object)
		want = append(want, member{m.key, schemaOf(s, old, true)})
	}
	for _, name := range slices.Sorted(maps.Keys(sources)) {
		if have.get(name) == nil {
			want = append(want, member{name, schemaOf(sources[name], nil, true)})
		}
	}
	const begin = "\n    \"schemas\": "
	before, _, found := strings.Cut(string(openAPI), begin)
	if !found {
		t.Fatal("openapi.json has no schemas")
	}
	made := before + begin + text(want, "    ") + "\n  }\n}\n"
	if !*updateSchemas {
		if diff := cmp.Diff(made, string(openAPI)); diff != "" {
			t.Errorf("the schemas of the Go types (-) and openapi.json (+); make generate writes them:\n%s", diff)
		}
		return
	}
	if err := os.WriteFile("openapi.json", []byte(made), 0o644); err != nil {
		t.Fatal(err)
	}
}
