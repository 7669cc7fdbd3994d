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
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// traces has the spans and durations of all tests of this program from the first call on.
var traces = sync.OnceValues(func() (*tracetest.InMemoryExporter, *metric.ManualReader) {
	spans, reader := tracetest.NewInMemoryExporter(), metric.NewManualReader()
	otel.SetTracerProvider(trace.NewTracerProvider(trace.WithSyncer(spans), trace.WithSpanProcessor(begun{})))
	otel.SetMeterProvider(metric.NewMeterProvider(metric.WithReader(reader)))
	return spans, reader
})

// begun notes the names of spans when they begin, of each trace.
type begun struct{}

var begunSpans sync.Map

func (begun) OnStart(_ context.Context, s trace.ReadWriteSpan) {
	begunSpans.Store(s.SpanContext().TraceID().String()+" "+s.Name(), true)
}
func (begun) OnEnd(trace.ReadOnlySpan)         {}
func (begun) Shutdown(context.Context) error   { return nil }
func (begun) ForceFlush(context.Context) error { return nil }

// waiting begins a trace. began waits until a span of that name begins in it, and ended returns
// those that have ended.
func waiting(t *testing.T) (ctx context.Context, began func(name string), ended func(name string) []tracetest.SpanStub) {
	spans, _ := traces()
	ctx, root := otel.Tracer("test").Start(t.Context(), "root")
	id := root.SpanContext().TraceID()
	t.Cleanup(func() { root.End() })
	began = func(name string) {
		t.Helper()
		harness.Eventually(t, "a span "+name+" has begun", func() bool { _, ok := begunSpans.Load(id.String() + " " + name); return ok })
	}
	return ctx, began, func(name string) (found []tracetest.SpanStub) {
		for _, s := range spans.GetSpans() {
			if s.SpanContext.TraceID() == id && s.Name == name {
				found = append(found, s)
			}
		}
		return found
	}
}

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
	must(harness.Second(c.Delete(ctx, fork.Name(), sandbox.DeleteOptions{Volumes: true})))
	must(harness.Second(sb.Stop(ctx)))
	must(harness.Second(sb.Start(ctx)))
	_, err = c.Get(ctx, name+"-none")
	if !errors.Is(err, sandbox.ErrNotFound) {
		t.Errorf("Get of none: %v", err)
	}
	_, err = c.Create(ctx, sandbox.WithName(name+"-refused"), harness.Quick, sandbox.OnCreate(func(context.Context, *sandbox.Sandbox) error { return refused }))
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

const waitForOther = "sandbox.wait.other"

func TestWaitForAnothersCreationIsTraced(t *testing.T) {
	ctx, began, ended := waiting(t)
	name := harness.UniqueName(t)
	c := harness.NewClient(t)
	harness.Remove(t, c, name)
	there, proceed := make(chan struct{}), make(chan struct{})
	reached, release := sync.OnceFunc(func() { close(there) }), sync.OnceFunc(func() { close(proceed) })
	defer release()
	var create sync.WaitGroup
	create.Go(func() {
		defer reached()
		sb, err := c.Create(t.Context(), sandbox.WithName(name), harness.Quick, sandbox.OnCreate(func(context.Context, *sandbox.Sandbox) error {
			reached()
			<-proceed
			return nil
		}))
		if err != nil {
			t.Errorf("Create: %v", err)
			return
		}
		sb.Detach()
	})
	<-there
	var get sync.WaitGroup
	get.Go(func() {
		sb, err := harness.NewClient(t).Get(ctx, name)
		if err != nil {
			t.Errorf("Get of what is being created: %v", err)
			return
		}
		sb.Detach()
	})
	began(waitForOther)
	if got := ended(waitForOther); len(got) > 0 {
		t.Errorf("the wait has ended before the creation: %v", got)
	}
	release()
	create.Wait()
	get.Wait()
	waits, gets := ended(waitForOther), ended("sandbox.get")
	if len(waits) != 1 || len(gets) != 1 || waits[0].Parent.SpanID() != gets[0].SpanContext.SpanID() || attributes(waits[0])["sandbox.name"] != name {
		t.Errorf("the spans of the wait are %+v, want one of %s in %+v", waits, name, gets)
	}
}

func TestWaitForAnothersPauseIsTraced(t *testing.T) {
	ctx, began, ended := waiting(t)
	p := enginetest.NewProxy(t)
	harness.WithoutHolds(p)
	c, forker := harness.NewClient(t), harness.NewClient(t, sandbox.WithHost(p.Host()))
	sb := harness.CreateWith(t, c, nil, sandbox.WithImage(harness.SmallImage(t)))
	there, proceed := make(chan struct{}), make(chan struct{})
	reached, release := sync.OnceFunc(func() { close(there) }), sync.OnceFunc(func() { close(proceed) })
	defer release()
	p.ArmAt("/unpause", enginetest.Cancel, func() {
		reached()
		<-proceed
	})
	copyCtx, _, copyEnded := waiting(t)
	var fork sync.WaitGroup
	name := harness.UniqueName(t)
	harness.Remove(t, c, name)
	fork.Go(func() {
		defer reached()
		fork, err := forker.Fork(copyCtx, sb.Name(), sandbox.WithName(name))
		if err != nil {
			t.Errorf("Fork: %v", err)
			return
		}
		fork.Detach()
	})
	<-there
	var egress sync.WaitGroup
	egress.Go(func() {
		if _, err := sb.Egress(ctx); err != nil {
			t.Errorf("Egress while the sandbox is paused for a fork: %v", err)
		}
	})
	began(waitForOther)
	release()
	fork.Wait()
	egress.Wait()
	waits, calls := ended(waitForOther), ended("sandbox.egress")
	if len(waits) != 1 || len(calls) != 1 || waits[0].Parent.SpanID() != calls[0].SpanContext.SpanID() || attributes(waits[0])["sandbox.name"] != sb.Name() {
		t.Errorf("the spans of the wait are %+v, want one of %s in %+v", waits, sb.Name(), calls)
	}
	if got := copyEnded("sandbox.wait.pause"); len(got) != 1 || attributes(got[0])["sandbox.name"] != sb.Name() {
		t.Errorf("the spans of the pause are %+v, want one", got)
	}
	if got := copyEnded(waitForOther); len(got) > 0 {
		t.Errorf("the forker has waited for others: %+v", got)
	}
}
