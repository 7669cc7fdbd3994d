package lifecycle_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// traces has the spans and durations of all tests of this program from the first call on.
var traces = sync.OnceValues(func() (*tracetest.InMemoryExporter, *metric.ManualReader) {
	spans, reader := tracetest.NewInMemoryExporter(), metric.NewManualReader()
	otel.SetTracerProvider(trace.NewTracerProvider(trace.WithSyncer(spans)))
	otel.SetMeterProvider(metric.NewMeterProvider(metric.WithReader(reader)))
	return spans, reader
})

func attributes(s tracetest.SpanStub) map[string]string {
	all := map[string]string{}
	for _, a := range s.Attributes {
		all[string(a.Key)] = a.Value.String()
	}
	return all
}

func TestCallsAndTheirWaitsAreTraced(t *testing.T) {
	spans, reader := traces()
	ctx, root := otel.Tracer("test").Start(t.Context(), "root")
	secret := "secret-" + record.NewID() + record.NewID()
	c := harness.NewClient(t)
	name := harness.UniqueName(t)
	harness.Remove(t, c, name)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	refused := errors.New("not with " + secret)
	sb, err := c.Create(ctx, sandbox.WithName(name), harness.Quick,
		sandbox.WithEnv(map[string]string{"SECRET": secret}), sandbox.WithCommand("sh", "-c", "exec sleep 1000 #"+secret),
		sandbox.WithTags(map[string]string{"tag": secret}),
		sandbox.WithNetworkPolicy(sandbox.NetworkPolicy{Transform: map[string]sandbox.Transform{
			"example.com": {SetHeaders: sandbox.Headers{"Authorization": secret}, Do: func(*http.Request) error { return refused }},
		}}),
		sandbox.OnCreate(func(context.Context, *sandbox.Sandbox) error { return nil }))
	must(err)
	defer sb.Close()
	cmd := sb.Command(ctx, "sh", "-c", "cat; exit 3", secret)
	cmd.Env, cmd.Stdin = []string{"OTHER=" + secret}, strings.NewReader(secret)
	if out, err := cmd.Output(); harness.ExitCode(err) != 3 || !bytes.Contains(out, []byte(secret)) {
		t.Fatalf("Output: %q, %v", out, err)
	}
	work := sb.Command(ctx, "sleep", "1000")
	work.Detached = true
	must(work.Start())
	must(harness.Second(sb.Status(ctx)))
	must(sb.Update(ctx, sandbox.WithEnv(map[string]string{"SECRET": secret + "2"})))
	fork, err := c.Fork(ctx, name, sandbox.WithName(name+"-fork"), harness.Quick)
	must(err)
	harness.Remove(t, c, fork.Name())
	must(fork.Close())
	must(harness.Second(c.Delete(ctx, fork.Name(), sandbox.PreserveVolumes(false))))
	must(harness.Second(sb.Stop(ctx)))
	must(harness.Second(sb.Start(ctx)))
	_, err = c.Get(ctx, name+"-none")
	if !errors.Is(err, sandbox.ErrNotFound) {
		t.Errorf("Get of none: %v", err)
	}
	_, err = c.Create(ctx, sandbox.WithName(name+"-refused"), sandbox.WithConfirm(func(sandbox.Plan) error { return refused }))
	if !errors.Is(err, refused) {
		t.Errorf("Create that is refused: %v", err)
	}
	root.End()

	got := map[string][]tracetest.SpanStub{}
	byID := map[string]tracetest.SpanStub{}
	for _, s := range spans.GetSpans() {
		if s.SpanContext.TraceID() == root.SpanContext().TraceID() {
			got[s.Name] = append(got[s.Name], s)
			byID[s.SpanContext.SpanID().String()] = s
		}
		if text := fmt.Sprintf("%+v", s); strings.Contains(text, secret) {
			t.Errorf("a span has the secret: %s", text)
		}
	}
	// within reports whether a span is in one of a call, at any depth.
	within := func(s tracetest.SpanStub, call string) bool {
		for ok := true; ok; s, ok = byID[s.Parent.SpanID().String()] {
			if s.Name == call {
				return true
			}
		}
		return false
	}
	for _, want := range []struct{ wait, in string }{
		{"sandbox.create", "root"}, {"sandbox.wait.slot", "sandbox.create"}, {"sandbox.wait.connect", "sandbox.create"}, {"sandbox.wait.hook", "sandbox.create"},
		{"sandbox.command", "root"}, {"sandbox.status", "root"}, {"sandbox.update", "root"},
		{"sandbox.fork", "root"}, {"sandbox.wait.copy", "sandbox.fork"}, {"sandbox.wait.slot", "sandbox.fork"}, {"sandbox.hold", "sandbox.fork"},
		{"sandbox.stop", "root"}, {"sandbox.start", "root"}, {"sandbox.get", "root"},
	} {
		if !slices.ContainsFunc(got[want.wait], func(s tracetest.SpanStub) bool { return within(s, want.in) }) {
			t.Errorf("there is no span %s in %s", want.wait, want.in)
		}
	}
	find := func(name string, i int) (tracetest.SpanStub, map[string]string) {
		t.Helper()
		if len(got[name]) <= i {
			t.Fatalf("there are %d spans %s", len(got[name]), name)
		}
		return got[name][i], attributes(got[name][i])
	}
	s, a := find("sandbox.create", 0)
	if a["sandbox.name"] != name || a["sandbox.id"] != sb.ID() || a["container.id"] == "" || a["container.image.name"] != sandbox.DefaultImage || s.Status.Code == codes.Error {
		t.Errorf("the span of Create: %v, %v", a, s.Status)
	}
	if s, a = find("sandbox.create", 1); a["error.type"] != "_OTHER" || s.Status.Code != codes.Error {
		t.Errorf("the span of a Create that is refused: %v, %v", a, s.Status)
	}
	if s, a = find("sandbox.command", 0); a["process.exit.code"] != "3" || a["error.type"] != "exit" || a["sandbox.name"] != name || s.EndTime.Sub(s.StartTime) <= 0 {
		t.Errorf("the span of a command: %v", a)
	}
	if s, a = find("sandbox.get", 0); a["error.type"] != "sandbox_not_found" || s.Status.Code != codes.Error {
		t.Errorf("the span of a Get of none: %v, %v", a, s.Status)
	}

	var all metricdata.ResourceMetrics
	must(reader.Collect(t.Context(), &all))
	text := fmt.Sprintf("%+v", all)
	if strings.Contains(text, secret) {
		t.Error("a metric has the secret")
	}
	operations := map[string]bool{}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			h, is := m.Data.(metricdata.Histogram[float64])
			if !is || m.Name != "sandbox.operation.duration" {
				continue
			}
			for _, p := range h.DataPoints {
				op, _ := p.Attributes.Value("sandbox.operation")
				operations[op.AsString()] = p.Count > 0 && p.Sum < time.Hour.Seconds()
			}
		}
	}
	if !operations["sandbox.create"] || !operations["sandbox.wait.slot"] || !operations["sandbox.command"] {
		t.Errorf("durations of %v", operations)
	}
}
