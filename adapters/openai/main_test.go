package openai_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"

	"github.com/seed-1a2d6d8f/sandbox/sandboxtools"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }

var limits = sandboxtools.Options{Output: harness.ToolOutput, CommandTime: harness.CallBound}

// object is JSON that a server writes.
type object = map[string]any

func writeJSON(w http.ResponseWriter, body any) {
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(body)
}

// client is the vendor's client of a server that is a handler.
func client(t *testing.T, h http.HandlerFunc) *openai.Client {
	srv := httptest.NewTLSServer(h)
	t.Cleanup(srv.Close)
	c := openai.NewClient(option.WithBaseURL(srv.URL), option.WithAPIKey("key"), option.WithMaxRetries(0), option.WithHTTPClient(srv.Client()))
	return &c
}
