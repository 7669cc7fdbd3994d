package harness

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
)

// schemaTypes are the types that both vendors take in strict schemas.
var schemaTypes = []string{"object", "array", "string", "integer", "number", "boolean", "null"}

// schemaWords are the keywords that both take. They refuse, or ignore, bounds of numbers, lengths and patterns.
var schemaWords = []string{"type", "description", "properties", "required", "additionalProperties", "items", "enum"}

// CheckStrict returns what OpenAI or Anthropic would refuse in the schema of a tool's arguments if the
// tool is strict: OpenAI takes objects with additionalProperties false whose properties are all
// required, 10 levels deep; Anthropic at most 16 properties of several types in one request. nullable
// is the number of those.
func CheckStrict(schema json.RawMessage) (nullable int, err error) {
	var root map[string]any
	d := json.NewDecoder(bytes.NewReader(schema))
	if err := d.Decode(&root); err != nil {
		return 0, err
	}
	if root["type"] != "object" {
		return 0, fmt.Errorf("the root is %v, want an object", root["type"])
	}
	return checkStrict("root", root, 1)
}

func checkStrict(at string, s map[string]any, depth int) (nullable int, err error) {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf(at+": "+format, args...))
	}
	if depth > 10 {
		bad("it is %d levels deep", depth)
	}
	for word := range s {
		if !slices.Contains(schemaWords, word) {
			bad("the keyword %q is not in the subset", word)
		}
	}
	var kinds []string
	switch t := s["type"].(type) {
	case string:
		kinds = []string{t}
	case []any:
		nullable++
		for _, one := range t {
			kinds = append(kinds, fmt.Sprint(one))
		}
		if len(kinds) != 2 || kinds[1] != "null" {
			bad("the types %v are not one and null", kinds)
		}
	default:
		bad("there is no type")
	}
	for _, kind := range kinds {
		if !slices.Contains(schemaTypes, kind) {
			bad("the type %q is not in the subset", kind)
		}
	}
	if slices.Contains(kinds, "object") {
		properties, _ := s["properties"].(map[string]any)
		var required []string
		list, _ := s["required"].([]any)
		for _, name := range list {
			required = append(required, fmt.Sprint(name))
		}
		slices.Sort(required)
		if s["additionalProperties"] != false {
			bad("additionalProperties is not false")
		}
		if all := slices.Sorted(maps.Keys(properties)); !slices.Equal(all, required) {
			bad("the properties are %v, those required %v", all, required)
		}
		for name, p := range properties {
			below, _ := p.(map[string]any)
			n, err := checkStrict(at+"."+name, below, depth+1)
			nullable, errs = nullable+n, append(errs, err)
		}
	}
	if slices.Contains(kinds, "array") {
		if len(kinds) > 1 {
			bad("an array that may be null is no plain array")
		}
		items, _ := s["items"].(map[string]any)
		n, err := checkStrict(at+"[]", items, depth+1)
		nullable, errs = nullable+n, append(errs, err)
	}
	return nullable, errors.Join(errs...)
}
