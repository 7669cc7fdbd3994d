package lifecycle_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

func init() {
	// updater sets one thing in a sandbox to numbers, from one on, until it is killed,
	// and says each that was set.
	harness.AddRole("updater", func(args []string) error {
		ctx := context.Background()
		c, err := harness.Open()
		if err != nil {
			return err
		}
		sb, err := c.Get(ctx, args[0], sandbox.WithoutResume())
		if err != nil {
			return err
		}
		n, err := strconv.Atoi(args[2])
		if err != nil {
			return err
		}
		for ; ; n++ {
			if err := sb.Update(ctx, setTo(args[1], n)); err != nil {
				return fmt.Errorf("update %d of %s: %w", n, args[1], err)
			}
			fmt.Println(n)
		}
	})
}

// updated are the things that updaters set, each its own. Those from sealed on share one
// field of the record, which nobody can read there.
var updated = []string{"tags", "timeout", "stop timeout", "ports", "command", "A", "B", "C"}

const sealed = 5

func setTo(what string, n int) sandbox.UpdateOption {
	switch what {
	case "tags":
		return sandbox.WithTags(map[string]string{"n": strconv.Itoa(n)})
	case "timeout":
		return sandbox.WithTimeout(time.Hour + time.Duration(n)*time.Millisecond)
	case "stop timeout":
		return sandbox.WithStopTimeout(time.Duration(n) * time.Second)
	case "ports":
		return sandbox.WithPorts(n)
	case "command":
		return sandbox.WithCommand("sleep", strconv.Itoa(n))
	}
	return sandbox.WithEnv(map[string]string{what: strconv.Itoa(n)})
}

// revised is what the latest revision of a sandbox says: its number, and those that were
// set.
type revised struct {
	n       int
	numbers []int // of updated, up to sealed
}

// latest reads the latest revision as it is stored.
func latest(t *testing.T, eng *engine.Engine, id string) (last revised) {
	t.Helper()
	all, err := eng.ListVolumes(t.Context(), "agent-sandbox.role=revision", "agent-sandbox.id="+id)
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range all {
		n, err := strconv.Atoi(v.Name[strings.LastIndex(v.Name, "-")+1:])
		if err != nil {
			t.Fatalf("a revision called %q", v.Name)
		}
		if n <= last.n {
			continue
		}
		var c struct {
			Tags    map[string]string
			Timeout int `json:"timeout_ms"`
			Stop    int `json:"stop_timeout_ms"`
			Ports   []int
			Command []string
		}
		if err := json.Unmarshal([]byte(v.Labels["agent-sandbox.record"]), &c); err != nil {
			t.Fatalf("%s: %v", v.Name, err)
		}
		last = revised{n, make([]int, sealed)}
		last.numbers[0], _ = strconv.Atoi(c.Tags["n"])
		last.numbers[1] = max(0, c.Timeout-int(time.Hour.Milliseconds()))
		last.numbers[2] = c.Stop / 1000
		if len(c.Ports) > 0 {
			last.numbers[3] = c.Ports[0]
		}
		if len(c.Command) > 1 {
			last.numbers[4], _ = strconv.Atoi(c.Command[1])
		}
	}
	return last
}

// Of updates by eight processes, one of which is killed in the middle of
// them time and again, none that succeeded is lost, and they come one after the other.
func TestUpdatersThatAreKilledLoseNothing(t *testing.T) {
	t.Parallel()
	updaters(t, 2*time.Second)
}

// The same for a minute.
func TestUpdatersThatAreKilledLoseNothingSoak(t *testing.T) {
	harness.Soak(t)
	updaters(t, time.Minute)
}

func updaters(t *testing.T, length time.Duration) {
	sb, eng := harness.NewSandbox(t, sandbox.WithName(harness.UniqueName(t))), harness.NewEngine(t)
	if _, err := sb.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	said := make([]atomic.Int64, len(updated)) // the last number that each has set
	var died atomic.Int64
	var all sync.WaitGroup
	running, finish := context.WithCancel(t.Context())
	defer finish()
	for i, what := range updated {
		all.Go(func() {
			for running.Err() == nil {
				cmd := harness.Process(t, "updater", sb.Name(), what, fmt.Sprint(said[i].Load()+1))
				out, err := cmd.StdoutPipe()
				if err == nil {
					err = cmd.Start()
				}
				if err != nil {
					t.Error(err)
					return
				}
				living, kill := context.WithCancel(running)
				killed := context.AfterFunc(living, func() { cmd.Process.Kill() })
				for s, first := bufio.NewScanner(out), true; s.Scan(); first = false {
					if n := said[i].Add(1); s.Text() != fmt.Sprint(n) {
						t.Errorf("the updater of %s said %q, want %d", what, s.Text(), n)
					}
					if i == 0 && first { // this one dies all the time
						time.AfterFunc(rand.N(1500*time.Millisecond), kill)
					}
				}
				if killed() {
					t.Errorf("the updater of %s ended by itself", what)
					finish()
				}
				cmd.Wait()
				kill()
				died.Add(1)
			}
		})
	}
	end := time.Now().Add(length)
	var was revised
	seen := 0
	begun := func() bool {
		for i := range said {
			if said[i].Load() == 0 {
				return false
			}
		}
		return true
	}
	for running.Err() == nil && (time.Now().Before(end) || !begun()) {
		now := latest(t, eng, sb.ID())
		if now.n < was.n {
			t.Errorf("revision %d came after %d", now.n, was.n)
		}
		for i := range was.numbers {
			if now.numbers[i] < was.numbers[i] {
				t.Errorf("revision %d has %s at %d, and %d had it at %d", now.n, updated[i], now.numbers[i], was.n, was.numbers[i])
			}
		}
		if now.n > was.n {
			seen++
		}
		was = now
		time.Sleep(50 * time.Millisecond)
	}
	finish()
	all.Wait()
	was = latest(t, eng, sb.ID())
	// What was killed may have made one more than it said.
	last := func(i int) (n int, ok func(int) bool) {
		n = int(said[i].Load())
		return n, func(got int) bool { return got == n || got == n+1 }
	}
	sum := 0
	for i := range updated {
		n, _ := last(i)
		sum += n
	}
	t.Logf("%d updates by %d processes, %d revisions, of which %d were seen", sum, died.Load(), was.n, seen)
	if was.n < sum || was.n > sum+int(died.Load()) {
		t.Errorf("%d revisions for %d updates by %d processes", was.n, sum, died.Load())
	}
	// The environment is for the next session to tell, which needs a bit of time.
	harness.Update(t, sb, sandbox.WithTimeout(time.Hour), sandbox.WithStopTimeout(time.Second))
	if _, err := sb.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i, what := range updated {
		var got int
		if i < sealed {
			got = was.numbers[i]
		} else {
			got, _ = strconv.Atoi(harness.Run(t, sb, "sh", "-c", "echo $"+what))
		}
		if n, ok := last(i); !ok(got) {
			t.Errorf("%s: %d, and %d was said last", what, got, n)
		}
	}

	volumes, err := eng.ListVolumes(t.Context(), "agent-sandbox.id="+sb.ID())
	if err != nil {
		t.Error(err)
	}
	for _, v := range volumes {
		if !strings.Contains(v.Name, ".rev-") && v.Name != "agent-sandbox-"+sb.ID() {
			t.Errorf("a stray volume: %s", v.Name)
		}
	}
}

// A new timeout is for the sessions to come, whoever starts them; the
// running session is not shortened.
func TestUpdatedTimeoutCountsFromTheNextSession(t *testing.T) {
	t.Parallel()
	sb := harness.NewSandbox(t, sandbox.WithName(harness.UniqueName(t)), sandbox.WithTimeout(time.Hour))
	harness.Update(t, sb, sandbox.WithTimeout(12*time.Second))
	st := harness.Inspect(t, sb.Name())
	if got := st.ExpiresAt.Sub(st.StartedAt); got != time.Hour {
		t.Errorf("the running session expires %v after its start, want the hour it had", got)
	}
	if _, err := sb.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := harness.Process(t, "inside", sb.Name(), "true").Run(); err != nil {
		t.Fatalf("another process: %v", err)
	}
	end, at := ended(t, sb.Name())
	if took := at.Sub(end.StartedAt); end.Reason != "timeout" || took < 11*time.Second {
		t.Errorf("the next session ended by %q after %v, want timeout after 12s", end.Reason, took)
	}

	harness.Update(t, sb, sandbox.WithTimeout(0))
	if _, err := sb.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if st := harness.Inspect(t, sb.Name()); !st.ExpiresAt.IsZero() || st.State != sandbox.StateRunning {
		t.Errorf("with the timeout taken away it is %s and expires at %v", st.State, st.ExpiresAt)
	}
}

// A session that somebody started with other tools, too, gets what was set, as
// soon as one of us comes by.
func TestUpdatedTimeoutReachesASessionOthersStarted(t *testing.T) {
	t.Parallel()
	sb := harness.NewSandbox(t, sandbox.WithName(harness.UniqueName(t)))
	if _, err := sb.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	harness.Update(t, sb, sandbox.WithTimeout(12*time.Second))
	if err := harness.NewEngine(t).StartContainer(t.Context(), "agent-sandbox-"+sb.Name()); err != nil {
		t.Fatal(err)
	}
	other, err := harness.NewClient(t).Get(t.Context(), sb.Name())
	if err != nil {
		t.Fatal(err)
	}
	defer other.Detach()
	if st, _ := ended(t, sb.Name()); st.Reason != "timeout" {
		t.Errorf("it ended by %q, want timeout", st.Reason)
	}
}

// Updates that the running session of one sandbox has at once.
func TestUpdatesOfARunningSandbox(t *testing.T) {
	t.Parallel()
	sb := harness.NewSandbox(t, sandbox.WithName(harness.UniqueName(t)), sandbox.WithTags(map[string]string{"color": "red", "size": "s"}),
		sandbox.WithVCPUs(0.5), sandbox.WithMemory(128<<20), sandbox.WithTimeout(time.Hour))
	for _, test := range []struct {
		what string
		test func(*testing.T, *sandbox.Sandbox)
	}{
		{"tags", testUpdatedTags}, {"limits", testUpdatedLimits}, {"extensions add up", testExtensionsAddUp},
		{"concurrent policies", testConcurrentPolicyUpdates}, {"an old policy", testOldVersionIsRefused},
	} {
		t.Run(test.what, func(t *testing.T) { test.test(t, sb) })
	}
}

// Tags are replaced, found by, and taken away.
func testUpdatedTags(t *testing.T, sb *sandbox.Sandbox) {
	for _, want := range []map[string]string{{"color": "blue"}, {"a": "1", "b": ""}, nil} {
		harness.Update(t, sb, sandbox.WithTags(want))
		if got := harness.Inspect(t, sb.Name()).Tags; !maps.Equal(got, want) {
			t.Errorf("Inspect after Update: tags %v, want %v", got, want)
		}
		list, err := harness.NewClient(t).List(t.Context(), sandbox.ListOptions{Prefix: sb.Name()})
		if err != nil || len(list) != 1 || !maps.Equal(list[0].Tags, want) {
			t.Errorf("List after Update: %+v, %v; want tags %v", list, err, want)
		}
		list, err = harness.NewClient(t).List(t.Context(), sandbox.ListOptions{Prefix: sb.Name(), Tags: map[string]string{"color": "red"}})
		if err != nil || len(list) != 0 {
			t.Errorf("List by a tag it had before: %+v, %v", list, err)
		}
	}
}

// Limits change in the running session, with what goes with them.
func testUpdatedLimits(t *testing.T, sb *sandbox.Sandbox) {
	limits := func() (cpus, memory int64) {
		t.Helper()
		got, err := harness.NewEngine(t).InspectContainer(t.Context(), "agent-sandbox-"+sb.Name())
		if err != nil {
			t.Fatal(err)
		}
		return got.NanoCPUs, got.Memory
	}
	harness.Update(t, sb, sandbox.WithMemory(256<<20))
	if cpus, memory := limits(); cpus != 5e8 || memory != 256<<20 {
		t.Errorf("limits %d and %d, want half a CPU and 256 MiB", cpus, memory)
	}
	if st := harness.Inspect(t, sb.Name()); st.Usage == nil || st.Usage.MemoryLimit != 256<<20 {
		t.Errorf("the session's memory limit: %+v, want 256 MiB", st.Usage)
	}
	harness.Update(t, sb, sandbox.WithVCPUs(1))
	if cpus, memory := limits(); cpus != 1e9 || memory != sandbox.MemoryPerVCPU {
		t.Errorf("limits %d and %d, want a CPU and its memory", cpus, memory)
	}
	// What the engine refuses changes nothing else either.
	err := sb.Update(t.Context(), sandbox.WithVCPUs(4096), sandbox.WithTags(map[string]string{"x": "y"}))
	if !errors.Is(err, sandbox.ErrInvalidArgument) {
		t.Errorf("Update to 4096 CPUs: %v, want ErrInvalidArgument", err)
	}
	if cpus, _ := limits(); cpus != 1e9 || len(harness.Inspect(t, sb.Name()).Tags) != 0 {
		t.Errorf("after a refused update: %d CPUs, tags %v", cpus, harness.Inspect(t, sb.Name()).Tags)
	}
}

// Limits that the engine could not change because the session ended at that moment are those of the
// next session. A memory limit below what the session uses is the caller's mistake, and changes nothing.
func TestLimitsThatTheEngineDoesNotChange(t *testing.T) {
	t.Parallel()
	name, eng := harness.UniqueName(t), harness.NewEngine(t)
	owner := harness.NewSandbox(t, sandbox.WithName(name), sandbox.WithVCPUs(0.5), sandbox.WithMemory(256<<20), harness.Quick)
	refuse := make(chan func(), 1)
	c := harness.NewClient(t, sandbox.WithHost(harness.InFront(t, func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodPost || !strings.HasSuffix(r.URL.Path, "/update") {
			return false
		}
		select {
		case first := <-refuse:
			first()
			harness.Refuse(w, "runc did not terminate successfully")
			return true
		default:
			return false
		}
	}, nil)))
	sb, err := c.Get(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	defer sb.Detach()
	check := func(when string, cpus, memory int64) {
		t.Helper()
		got, err := eng.InspectContainer(t.Context(), "agent-sandbox-"+name)
		if err != nil || got.NanoCPUs != cpus || got.Memory != memory {
			t.Errorf("%s the limits are %d and %d, %v, want %d and %d", when, got.NanoCPUs, got.Memory, err, cpus, memory)
		}
	}

	harness.Run(t, owner, "sh", "-c", "head -c 40000000 /dev/zero >/dev/shm/file")
	refuse <- func() {}
	err = sb.Update(t.Context(), sandbox.WithVCPUs(0.25), sandbox.WithMemory(24<<20))
	if !errors.Is(err, sandbox.ErrInvalidArgument) || !strings.Contains(err.Error(), "uses") || strings.Contains(err.Error(), "runc") {
		t.Errorf("Update to less memory than is used = %v, want ErrInvalidArgument", err)
	}
	check("after that", 5e8, 256<<20)

	stop := func() {
		if _, err := owner.Stop(t.Context()); err != nil {
			t.Error(err)
		}
	}
	for i, end := range map[int64]func(){1: stop, 2: func() { stop(); _ = harness.Second(owner.Start(t.Context())) }} {
		if _, err := owner.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		refuse <- end
		harness.Update(t, sb, sandbox.WithVCPUs(float64(i)/4), sandbox.WithMemory(i*64<<20))
		check("after a session that ended", i*250e6, i*64<<20)
	}
}

// Limits that the engine refuses while the session goes on are refused at once: nothing waits for the session's end.
func TestLimitsThatTheEngineRefuses(t *testing.T) {
	t.Parallel()
	var asked atomic.Int32
	c := harness.NewClient(t, sandbox.WithHost(harness.InFront(t, func(w http.ResponseWriter, r *http.Request) bool {
		asked.Add(1)
		if strings.HasSuffix(r.URL.Path, "/update") {
			harness.Refuse(w, "no such controller")
			return true
		}
		return false
	}, nil)))
	sb := harness.CreateWith(t, c, nil)
	asked.Store(0)
	if err := sb.Update(t.Context(), sandbox.WithMemory(1<<30), sandbox.WithTags(map[string]string{"k": "v"})); err == nil || !strings.Contains(err.Error(), "no such controller") {
		t.Errorf("Update = %v, want the engine's error", err)
	}
	if n := asked.Load(); n > 30 {
		t.Errorf("it made %d calls of the engine, want no wait", n)
	}
	if st := harness.Inspect(t, sb.Name()); len(st.Tags) != 0 || st.State != sandbox.StateRunning {
		t.Errorf("afterwards it is %s, with tags %v", st.State, st.Tags)
	}
}

// What Update can't change does not compile there; what it can is checked first.
func TestUpdateTakesOnlyWhatCanChange(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]any{
		"WithImage": sandbox.WithImage, "WithName": sandbox.WithName, "WithID": sandbox.WithID,
		"WithUser": sandbox.WithUser, "WithPidsLimit": sandbox.WithPidsLimit, "OnCreate": sandbox.OnCreate,
	} {
		if reflect.TypeOf(o).Out(0).Implements(reflect.TypeFor[sandbox.UpdateOption]()) {
			t.Errorf("%s is an UpdateOption", name)
		}
	}
	if reflect.TypeOf(sandbox.WithoutTag).Out(0).Implements(reflect.TypeFor[sandbox.CreateOption]()) {
		t.Error("WithoutTag is a CreateOption")
	}
	if !reflect.TypeOf(sandbox.WithTags).Out(0).Implements(reflect.TypeFor[sandbox.UpdateOption]()) {
		t.Error("WithTags is no UpdateOption")
	}
	sb := harness.Shared(t)
	six := map[string]string{"1": "", "2": "", "3": "", "4": "", "5": "", "6": ""}
	err := sb.Update(t.Context(), sandbox.WithTags(six), sandbox.WithTimeout(-1), sandbox.WithMemory(1), sandbox.WithStopTimeout(0),
		sandbox.WithEnv(map[string]string{"A": "\xff"}))
	for _, complaint := range []string{"6 tags", "WithTimeout", "WithMemory", "WithStopTimeout", `variable "A"`} {
		if !errors.Is(err, sandbox.ErrInvalidArgument) || !strings.Contains(err.Error(), complaint) {
			t.Errorf("Update with five mistakes: %v, without %q", err, complaint)
		}
	}
}

// Updates of different things at the same time all hold.
func TestConcurrentUpdatesNeverMix(t *testing.T) {
	t.Parallel()
	sb := harness.NewSandbox(t, sandbox.WithName(harness.UniqueName(t)))
	updates := []sandbox.UpdateOption{
		sandbox.WithTags(map[string]string{"by": "first"}), sandbox.WithTimeout(time.Hour), sandbox.WithStopTimeout(7 * time.Second),
	}
	var all sync.WaitGroup
	for _, o := range updates {
		other, err := harness.NewClient(t).Get(t.Context(), sb.Name())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { other.Detach() })
		all.Go(func() {
			for range harness.Rounds(3, 10) {
				if err := other.Update(t.Context(), o); err != nil {
					t.Errorf("Update: %v", err)
				}
			}
		})
	}
	all.Wait()
	if _, err := sb.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := sb.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	st := harness.Inspect(t, sb.Name())
	if st.ExpiresAt.Sub(st.StartedAt) != time.Hour || st.Tags["by"] != "first" {
		t.Errorf("after all updates: tags %v, expires %v after the start", st.Tags, st.ExpiresAt.Sub(st.StartedAt))
	}
	if n := len(revisions(t, sb.ID())); n < 1 {
		t.Errorf("%d revisions are kept", n)
	}
	if _, err := sb.Delete(t.Context(), sandbox.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if left := revisions(t, sb.ID()); len(left) > 0 {
		t.Errorf("after Delete there are still %v", left)
	}
	remove := context.WithoutCancel(t.Context())
	if err := harness.NewEngine(t).RemoveVolume(remove, "agent-sandbox-"+sb.ID(), false); err != nil {
		t.Error(err)
	}
}

func revisions(t *testing.T, id string) []engine.Volume {
	t.Helper()
	vols, err := harness.NewEngine(t).ListVolumes(t.Context(), "agent-sandbox.role=revision", "agent-sandbox.id="+id)
	if err != nil {
		t.Fatal(err)
	}
	return vols
}

// A sandbox that is gone can't be changed, and nothing is left of the try.
func TestUpdateOfADeletedSandboxLeavesNothing(t *testing.T) {
	t.Parallel()
	sb := harness.NewSandbox(t, sandbox.WithName(harness.UniqueName(t)))
	if _, err := harness.NewClient(t).Delete(t.Context(), sb.Name(), sandbox.DeleteOptions{Volumes: true}); err != nil {
		t.Fatal(err)
	}
	if err := sb.Update(t.Context(), sandbox.WithTimeout(time.Hour)); !errors.Is(err, sandbox.ErrNotFound) {
		t.Errorf("Update: %v, want ErrNotFound", err)
	}
	if err := sb.ExtendTimeout(t.Context(), time.Hour); !errors.Is(err, sandbox.ErrNotFound) {
		t.Errorf("ExtendTimeout: %v, want ErrNotFound", err)
	}
	if left := revisions(t, sb.ID()); len(left) > 0 {
		t.Errorf("it left %v", left)
	}
	sb.Close()
	if err := sb.Update(t.Context()); !errors.Is(err, sandbox.ErrClosed) {
		t.Errorf("Update of a closed handle: %v, want ErrClosed", err)
	}
}
