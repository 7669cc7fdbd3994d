package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

var updateMCP = flag.Bool("update-mcp", false, "write what \"sandbox mcp\" lists to testdata/mcp.json")

// The error of a call without a required argument names the argument.
func TestAgentIsToldWhichArgumentIsMissing(t *testing.T) {
	t.Parallel()
	a := newAgent(t)
	for tool, args := range map[string]object{"bash": {"command": "true"}, "read": {"path": "x", "sandbox": nil}, "glob": nil, "sandbox_fork": nil, "sandbox_delete": {}} {
		if _, failed := a.call(tool, args); !strings.Contains(failed, "the argument sandbox is missing") {
			t.Errorf("%s %v: %q", tool, args, failed)
		}
	}
	if _, failed := a.call("bash", object{"sandbox": 5, "command": "true"}); !strings.Contains(failed, "the argument sandbox of the tool bash: ") || !strings.Contains(failed, "number") {
		t.Errorf("a number as name: %q", failed)
	}
}

// The tools that an agent gets are in testdata/mcp.json, and within the strict subsets of both vendors.
func TestToolsOfAgents(t *testing.T) {
	t.Parallel()
	list, err := newAgent(t).session.ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	nullable := 0
	for _, tool := range list.Tools {
		schema, err := json.Marshal(tool.InputSchema)
		if err != nil {
			t.Fatal(err)
		}
		if tool.Title == "" {
			t.Errorf("%s has no title", tool.Name)
		}
		if text := string(schema); strings.Contains(text, `"array","null"`) || strings.Contains(text, `"null","array"`) || strings.Contains(text, `"object","null"`) || strings.Contains(text, `"null","object"`) {
			t.Errorf("%s: lists or objects may be null, which some models' servers refuse: %s", tool.Name, text)
		}
		n, err := harness.CheckStrict(schema)
		if nullable += n; err != nil {
			t.Errorf("%s: %v\n%s", tool.Name, err, schema)
		}
	}
	if len(list.Tools) > 20 || nullable > 16 {
		t.Errorf("%d tools with %d properties that may be null: Anthropic takes 20 and 16", len(list.Tools), nullable)
	}
	got, err := json.MarshalIndent(list.Tools, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	got = append(got, '\n')
	const golden = "testdata/mcp.json"
	if *updateMCP {
		if err := os.WriteFile(golden, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("the tools (-want +got; see -update-mcp):\n%s", cmp.Diff(string(want), string(got)))
	}
}
