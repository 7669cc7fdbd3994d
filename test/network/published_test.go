package network_test

import (
	"bytes"
	"context"
	"testing"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// A published port answers the engine's machine, and no neighbour, whether the engine
// forwards connections by its proxy or by the kernel alone.
func TestPublishedPortAnswersTheMachineAlone(t *testing.T) {
	t.Parallel()
	for _, proxy := range []string{"--userland-proxy=true", "--userland-proxy=false"} {
		t.Run(proxy, func(t *testing.T) {
			t.Parallel()
			d := enginetest.NewDaemon(t, "--iptables=true", proxy)
			eng, err := engine.Open(t.Context(), engine.Options{Host: d.Host()})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { eng.Close() })
			content, err := harness.BuildPrograms("probe")
			if err != nil {
				t.Fatal(err)
			}
			const image = "sandbox-test-probe"
			if err := eng.ImportImage(t.Context(), image, bytes.NewReader(content), nil); err != nil {
				t.Fatal(err)
			}
			sb, err := harness.NewClient(t, sandbox.WithHost(d.Host())).Create(t.Context(), sandbox.WithImage(image),
				sandbox.WithPorts(3000), sandbox.WithCommand("/probe", "listen", "3000"))
			if err != nil {
				t.Fatalf("Create: %v", err)
			}
			t.Cleanup(func() { sb.Close() })
			if err := sb.WaitPort(t.Context(), 3000); err != nil {
				t.Fatalf("WaitPort: %v", err)
			}
			published, err := sb.Port(t.Context(), 3000)
			if err != nil {
				t.Fatalf("Port: %v", err)
			}
			got, err := eng.InspectContainer(t.Context(), record.ContainerName(sb.Name()))
			if err != nil {
				t.Fatal(err)
			}
			direct := got.IP.String() + ":3000"
			for _, tt := range []struct {
				network, to string
				answers     bool
			}{
				{"host", published.String(), true},
				{"host", direct, true},
				{"bridge", direct, false},
			} {
				for _, policy := range []string{"allow-all", "deny-all"} {
					setPolicy(t, sb, "%s", policy)
					if o := tryIn(t, eng, image, tt.network, tried{"port", "tcp", tt.to, ""}); (o.Err == "") != tt.answers {
						t.Errorf("%s: from %s to %s: %+v; want an answer: %v", policy, tt.network, tt.to, o, tt.answers)
					}
				}
			}
		})
	}
}

// tryIn makes an attempt from a container that is no sandbox.
func tryIn(t *testing.T, eng *engine.Engine, image, network string, a tried) outcome {
	t.Helper()
	id, err := eng.CreateContainer(t.Context(), engine.ContainerSpec{
		Name: "probe-" + record.NewID(), Image: image, Entrypoint: []string{"/probe", "listen", "0"}, NetworkMode: network,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer eng.RemoveContainer(context.Background(), id, true)
	if err := eng.StartContainer(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	return attemptIn(t, eng, id, a)[a.Name]
}
