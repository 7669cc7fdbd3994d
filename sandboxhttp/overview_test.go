package sandboxhttp_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/sandboxhttp"
	"github.com/seed-1a2d6d8f/sandbox/sandboxtest"
)

func TestUsageOfAllSandboxes(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	sb, stopped := sandboxtest.New(t, sandbox.WithMemory(512<<20)), sandboxtest.New(t)
	if _, err := stopped.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	var all map[string]struct {
		MemoryBytes, MemoryLimit int64
		Processes                int
	}
	a.call("GET", "/usage?prefix="+sb.Name(), "", 200, &all)
	if u := all[sb.ID()]; len(all) != 1 || u.MemoryBytes <= 0 || u.MemoryLimit != 512<<20 || u.Processes < 1 {
		t.Errorf("the usage is %+v", all)
	}
	a.call("GET", "/usage?prefix="+stopped.Name(), "", 200, &all)
	if _, has := all[stopped.ID()]; has {
		t.Errorf("the usage of a stopped sandbox is %+v", all)
	}
	a.call("GET", "/usage?status=runing", "", 400, nil)
}

func TestDefaultsAreThoseOfACreation(t *testing.T) {
	t.Parallel()
	a := newAPI(t, sandboxhttp.WithPreviewDomain("Preview.test."))
	sb := sandboxtest.New(t)
	var d struct {
		Settings      sandbox.Settings
		Runtimes      map[string]string
		Images        []string
		MaxPorts      int
		HostFiles     bool
		PreviewDomain string
	}
	a.call("GET", "/defaults", "", 200, &d)
	st, err := sb.Summary(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if *d.Settings.Image != st.Image || *d.Settings.VCPUs != *st.Settings.VCPUs || *d.Settings.MemoryBytes != *st.Settings.MemoryBytes || *d.Settings.Workdir != *st.Settings.Workdir ||
		d.Settings.Network.String() != st.Network.String() {
		t.Errorf("the defaults are %+v, those of a sandbox %+v", d.Settings, st.Settings)
	}
	if has := strings.Join(d.Images, " "); !strings.Contains(has, sandbox.DefaultImage) || strings.Contains(has, "agent-sandbox-guest") {
		t.Errorf("the images are %q", d.Images)
	}
	if d.Runtimes["node22"] == "" || d.MaxPorts != 4 || d.HostFiles || d.PreviewDomain != "preview.test" {
		t.Errorf("the defaults are %+v", d)
	}
}

func TestProgressOfACreation(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	create := func(body string) (events []map[string]any) {
		t.Helper()
		resp := a.send("POST", "/sandboxes", strings.NewReader(body), "Content-Type", "application/json", "Accept", "application/x-ndjson")
		defer resp.Body.Close()
		for d := json.NewDecoder(resp.Body); ; {
			var e map[string]any
			if d.Decode(&e) != nil {
				return events
			}
			events = append(events, e)
		}
	}
	name := "progress-" + strings.ToLower(t.Name()[4:8])
	a.remove(name)
	events := create(`{"name":"` + name + `"}`)
	if len(events) == 0 {
		t.Fatal("there are no events")
	}
	last := events[len(events)-1]
	if made, _ := last["sandbox"].(map[string]any); last["event"] != "created" || made["name"] != name {
		t.Errorf("the last event is %v", last)
	}
	steps := 0
	for _, e := range events {
		if p, _ := e["progress"].(map[string]any); p["step"] != nil {
			steps++
		}
	}
	if steps == 0 {
		t.Errorf("there is no step among %v", events)
	}
	events = create(`{"name":"` + name + `"}`)
	if failed, _ := events[len(events)-1]["error"].(map[string]any); failed["code"] != "exists" || events[len(events)-1]["status"] != 409.0 {
		t.Errorf("creating it again: %v", events)
	}
}
