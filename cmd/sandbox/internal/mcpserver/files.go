package mcpserver

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/seed-1a2d6d8f/sandbox/sandboxtools"
)

// titles are for people who confirm calls of the tools of package sandboxtools.
var titles = map[string]string{
	"bash": "Run a command", "read": "Read a file", "write": "Write a file", "edit": "Edit a file", "glob": "Find files by name", "grep": "Search in files",
	"fetch": "Request a page of a server inside",
}

// addToolsOfSandboxes adds the tools of package sandboxtools, with the sandbox as one more argument.
func (s *Server) addToolsOfSandboxes(server *mcp.Server) error {
	for _, tool := range sandboxtools.New(nil, s.toolOptions()) {
		var schema struct {
			Type       string                     `json:"type"`
			Properties map[string]json.RawMessage `json:"properties"`
			Required   []string                   `json:"required"`
			Additional bool                       `json:"additionalProperties"`
		}
		if err := json.Unmarshal(tool.Schema, &schema); err != nil {
			return err
		}
		schema.Properties["sandbox"] = json.RawMessage(`{"type":"string","description":"the name"}`)
		schema.Required = append([]string{"sandbox"}, schema.Required...)
		hints := changes
		if tool.ReadOnly {
			hints = readOnly
		}
		server.AddTool(&mcp.Tool{Name: tool.Name, Title: titles[tool.Name], Description: tool.Description, Annotations: &hints, InputSchema: schema},
			func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
				out, err := s.callTool(ctx, tool.Name, req.Params.Arguments)
				if err != nil {
					return failed(err), nil
				}
				return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: out.Text}}, StructuredContent: out}, nil
			})
	}
	return nil
}

// callTool calls a tool of one sandbox.
func (s *Server) callTool(ctx context.Context, tool string, args json.RawMessage) (sandboxtools.Result, error) {
	var all map[string]json.RawMessage
	var name string
	if err := decode(args, &all); err != nil {
		return sandboxtools.Result{}, fmt.Errorf("the arguments of the tool %s: %w", tool, err)
	}
	if all["sandbox"] != nil {
		if err := json.Unmarshal(all["sandbox"], &name); err != nil {
			return sandboxtools.Result{}, fmt.Errorf("the argument sandbox of the tool %s: %w", tool, err)
		}
	}
	sb, err := s.get(name)
	if err != nil {
		return sandboxtools.Result{}, err
	}
	delete(all, "sandbox")
	rest, err := json.Marshal(all)
	if err != nil {
		return sandboxtools.Result{}, err
	}
	s.mu.Lock()
	i := slices.IndexFunc(sb.tools, func(t sandboxtools.Tool) bool { return t.Name == tool })
	one := sb.tools[i]
	s.mu.Unlock()
	return one.Call(ctx, rest)
}

func (s *Server) toolOptions() sandboxtools.Options {
	return sandboxtools.Options{CommandTime: s.limits.CommandTime, Output: s.limits.Output, Report: report}
}
