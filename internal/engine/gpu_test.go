package engine_test

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
)

// The requests for GPUs are those of "docker run" with --gpus and --device.
func TestRequestsForGPUs(t *testing.T) {
	t.Parallel()
	var got struct {
		HostConfig struct {
			DeviceRequests []map[string]any
		}
	}
	host := fakeEngine(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got.HostConfig.DeviceRequests = nil
		if strings.HasSuffix(r.URL.Path, "/containers/create") {
			if err := json.Unmarshal(body, &got); err != nil {
				t.Error(err)
			}
		}
		w.WriteHeader(http.StatusCreated)
		io.WriteString(w, `{"Id":"x"}`)
	})
	e := openAt(t, host)
	gpu := []any{[]any{"gpu"}}
	for _, test := range []struct {
		names []string
		want  []map[string]any
	}{
		{nil, nil},
		{[]string{"all"}, []map[string]any{{"Driver": "", "Count": -1.0, "DeviceIDs": nil, "Capabilities": gpu, "Options": nil}}},
		{[]string{"0", "GPU-1"}, []map[string]any{{"Driver": "", "Count": 0.0, "DeviceIDs": []any{"0", "GPU-1"}, "Capabilities": gpu, "Options": nil}}},
		{[]string{"nvidia.com/gpu=0", "1"}, []map[string]any{
			{"Driver": "", "Count": 0.0, "DeviceIDs": []any{"1"}, "Capabilities": gpu, "Options": nil},
			{"Driver": "cdi", "Count": 0.0, "DeviceIDs": []any{"nvidia.com/gpu=0"}, "Capabilities": nil, "Options": nil},
		}},
	} {
		if _, err := e.CreateContainer(t.Context(), engine.ContainerSpec{Image: "x", GPUs: test.names}); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(test.want, got.HostConfig.DeviceRequests); diff != "" {
			t.Errorf("the requests for %q (-want +got):\n%s", test.names, diff)
		}
	}
}
