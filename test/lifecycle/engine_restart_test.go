package lifecycle_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/claim"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// outages are the ways in which an engine goes.
var outages = []struct {
	what string
	down func(*enginetest.Daemon)
	// graceful: sessions end first.
	graceful bool
}{
	{"stopped", (*enginetest.Daemon).Stop, true},
	{"killed", (*enginetest.Daemon).Kill, false},
	{"crashed with the machine", (*enginetest.Daemon).Crash, false},
}

// promptly bounds what tells of an engine that is gone. Nothing waits for it to come back.
const promptly = 5 * time.Minute

// lostEngine tells of what needed an engine that went, or a session that went with it.
func lostEngine(err error) bool {
	return errors.Is(err, sandbox.ErrEngineUnavailable) || errors.Is(err, sandbox.ErrNotRunning)
}

// within returns what fn does, and fails the test when that takes long.
func within[T any](t *testing.T, what string, fn func() T) (got T) {
	t.Helper()
	result := make(chan T, 1)
	go func() { result <- fn() }()
	select {
	case got = <-result:
	case <-time.After(promptly):
		t.Fatalf("%s: it has not returned after %v", what, promptly)
	}
	return got
}

// ownEngine is an engine of the test's own, and an image on it that has [resident] in it
// and nothing else.
func ownEngine(t *testing.T) (*enginetest.Daemon, sandbox.CreateOption) {
	t.Helper()
	d := enginetest.NewDaemon(t)
	content, err := resident()
	if err != nil {
		t.Fatal(err)
	}
	const image = "sandbox-test-resident"
	if err := engineAt(t, d.Host()).ImportImage(t.Context(), image, bytes.NewReader(content), nil); err != nil {
		t.Fatal(err)
	}
	return d, sandbox.WithImage(image)
}

var resident = sync.OnceValues(func() ([]byte, error) { return harness.BuildPrograms("resident") })

// An engine goes and comes back, in each of the ways. One serves all of these tests, since its start takes long.
func TestEngineThatGoesAndComesBack(t *testing.T) {
	t.Parallel()
	d, image := ownEngine(t)
	for _, outage := range outages {
		t.Run("sandboxes outlive it when it is "+outage.what, func(t *testing.T) { outlive(t, d, image, outage.down, outage.graceful) })
	}
	// What is known of volumes does not depend on how the engine went: a plain run has one of the ways.
	one := rand.IntN(len(outages))
	for i, outage := range outages {
		if harness.Soaking() || i == one {
			t.Run("a sandbox is created after it was "+outage.what, func(t *testing.T) { createAfter(t, d, image, outage.down) })
		}
	}
	t.Run("a creation outlives it", func(t *testing.T) { createOutlives(t, d, image) })
}

// After its own start an engine does not know the labels of a volume that no container
// mounts until it is asked for them: neither the guest's, when there is no sandbox, nor a
// marker's.
func createAfter(t *testing.T, d *enginetest.Daemon, image sandbox.CreateOption, down func(*enginetest.Daemon)) {
	ctx := t.Context()
	create := func() { // by a client that does not know the guest yet
		t.Helper()
		sb, err := harness.NewClient(t, sandbox.WithHost(d.Host())).Create(ctx, image, harness.Quick)
		if err != nil {
			t.Fatalf("Create: %v", err)
		}
		if err := sb.Close(); err != nil {
			t.Fatalf("Close: %v", err)
		}
	}
	create() // and all that is left is the guest's volume
	eng := engineAt(t, d.Host())
	name, nonce := harness.UniqueName(t), record.NewNonce()
	mine, err := claim.Try(ctx, eng, name, nonce, "the test")
	if err != nil {
		t.Fatal(err)
	}
	mine.Stop()

	down(d)
	d.Start()
	create()
	var held *claim.TakenError
	if _, err := claim.Try(ctx, eng, name, record.NewNonce(), "another"); !errors.As(err, &held) {
		t.Errorf("a claim of a name that is claimed: %v, want a TakenError", err)
	}
	if err := claim.Drop(ctx, eng, name, nonce, ""); err != nil {
		t.Error(err)
	}
}

// The engine goes and comes back, under a session with all that can be open to
// it. Handles tell, and nothing is lost.
func outlive(t *testing.T, d *enginetest.Daemon, image sandbox.CreateOption, down func(*enginetest.Daemon), graceful bool) {
	ctx, own := t.Context(), sandbox.WithHost(d.Host())
	c := harness.NewClient(t, own)

	// A volume that was kept from another sandbox, and one that is a copy of a directory.
	dir := harness.HostDir(t, map[string]string{"f": "original"})
	first := harness.CreateWith(t, c, []sandbox.Mount{{Source: dir, Target: "/data"}}, image)
	kept := harness.CopiedVolume(t, first, "/data")
	if _, err := first.Delete(ctx, sandbox.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	sb := harness.CreateWith(t, c, []sandbox.Mount{{Source: dir, Target: "/copy"}, {Volume: kept, Target: "/kept"}}, image,
		sandbox.WithTags(map[string]string{"as": "made"}), sandbox.WithTimeout(time.Hour), sandbox.WithPorts(3000),
		sandbox.WithEnv(map[string]string{"MADE": "with"}), sandbox.WithCommand("/resident", "serve"))
	temporary, err := c.Create(ctx, image, harness.Quick)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { temporary.Detach() })
	tags := map[string]string{"as": "updated"}
	harness.Update(t, sb, sandbox.WithTags(tags), sandbox.WithTimeout(2*time.Hour))
	if err := harness.PutFiles(ctx, sb, "before"); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"/copy/f", "/kept/f"} {
		if err := sb.WriteFile(ctx, name, []byte("changed"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	files, err := harness.ReadFiles(ctx, sb)
	if err != nil {
		t.Fatal(err)
	}

	// What is open to the session.
	lines := make(chan string, 10)
	followed := make(chan error, 1)
	go func() {
		var last error
		for l, err := range sb.Logs(ctx, sandbox.LogOptions{Follow: true}) {
			if last = err; err == nil {
				lines <- l.Text
			}
		}
		followed <- last
	}()
	for _, want := range []string{"main", "listening"} {
		if got := within(t, "the log", func() string { return <-lines }); got != want {
			t.Errorf("the main process says %q, want %q", got, want)
		}
	}
	conn, err := sb.DialContext(ctx, "tcp", "127.0.0.1:3000")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	io.WriteString(conn, "echo\n")
	if got, err := bufio.NewReader(conn).ReadString('\n'); got != "echo\n" {
		t.Fatalf("the server says %q, %v", got, err)
	}
	cmd := sb.Command(ctx, "/resident", "stay")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if got, err := bufio.NewReader(out).ReadString('\n'); got != "ready\n" {
		t.Fatalf("the command says %q, %v", got, err)
	}

	down(d)

	if err := within(t, "Wait", cmd.Wait); !lostEngine(err) {
		t.Errorf("Wait: %v, want ErrEngineUnavailable or ErrNotRunning", err)
	}
	// An engine that has the time to end the session may even tell that it has.
	if err := within(t, "Logs", func() error { return <-followed }); !lostEngine(err) && (err != nil || !graceful) {
		t.Errorf("Logs: %v, want ErrEngineUnavailable", err)
	}
	if err := within(t, "Read", func() error { _, err := conn.Read(make([]byte, 1)); return err }); err == nil {
		t.Error("Read on a connection to a session that is over: no error")
	}
	for what, call := range map[string]func() error{
		"Run":      func() error { return sb.Command(ctx, "/resident", "env").Run() },
		"ReadFile": func() error { _, err := sb.ReadFile(ctx, "file"); return err },
		"Dial":     func() error { _, err := sb.DialContext(ctx, "tcp", "127.0.0.1:3000"); return err },
		"Status":   func() error { _, err := sb.Status(ctx); return err },
		"Update":   func() error { return sb.Update(ctx, sandbox.WithTags(nil)) },
		"Get":      func() error { _, err := c.Get(ctx, sb.Name()); return err },
		"List":     func() error { _, err := c.List(ctx, sandbox.ListOptions{}); return err },
	} {
		if err := within(t, what, call); !errors.Is(err, sandbox.ErrEngineUnavailable) {
			t.Errorf("%s without an engine: %v, want ErrEngineUnavailable", what, err)
		}
	}
	if h, err := c.CheckHealth(ctx); h.Healthy || h.Guidance == "" {
		t.Errorf("CheckHealth without an engine: %+v, %v", h, err)
	}
	back := time.Now()
	d.Start()

	// What there is to see before anybody resumes it.
	var info []sandbox.Info
	harness.Eventually(t, "the sandbox is stopped", func() bool {
		info, err = c.List(ctx, sandbox.ListOptions{Prefix: sb.Name()})
		return err == nil && len(info) == 1 && info[0].State == sandbox.StateStopped
	})
	if !maps.Equal(info[0].Tags, tags) || info[0].ID != sb.ID() {
		t.Errorf("List: %+v", info)
	}
	st, err := c.Inspect(ctx, sb.ID())
	if err != nil || st.State != sandbox.StateStopped || st.Reason == "" || st.Usage != nil || st.StartedAt.After(back) {
		t.Errorf("Inspect: %+v, %v", st, err)
	}
	t.Logf("it ended by %q", st.Reason)

	var resumed int
	other, err := harness.NewClient(t, own).Get(ctx, sb.Name(), sandbox.OnResume(func(context.Context, *sandbox.Sandbox) error {
		resumed++
		return nil
	}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { other.Detach() })
	if resumed != 1 {
		t.Errorf("OnResume was called %d times, want once", resumed)
	}
	for what, h := range map[string]*sandbox.Sandbox{"the handle from before": sb, "a new one": other} {
		if got, err := harness.ReadFiles(ctx, h); err != nil || got != files {
			t.Errorf("%s: the files were\n%s\nand are\n%s\n%v", what, files, got, err)
		}
		if got := harness.Run(t, h, "/resident", "env", "MADE"); got != "with" {
			t.Errorf("%s: the environment has %q", what, got)
		}
		for _, name := range []string{"/copy/f", "/kept/f"} {
			if b, err := h.ReadFile(ctx, name); err != nil || string(b) != "changed" {
				t.Errorf("%s: %s is %q, %v", what, name, b, err)
			}
		}
		if got := h.Mounts(); len(got) != 2 || got[1].Volume != kept {
			t.Errorf("%s: mounts %v", what, got)
		}
	}
	st, err = sb.Status(ctx)
	if err != nil || st.State != sandbox.StateRunning || !maps.Equal(st.Tags, tags) || st.Usage == nil {
		t.Errorf("Status: %+v, %v", st, err)
	}
	if got := st.ExpiresAt.Sub(st.StartedAt); got != 2*time.Hour || st.StartedAt.Before(back.Add(-time.Second)) {
		t.Errorf("the new session began at %v, after %v, and expires %v later, want the 2h that were set", st.StartedAt, back, got)
	}
	if _, err := sb.Port(ctx, 3000); err != nil {
		t.Error(err)
	}
	if err := sb.WaitPort(ctx, 3000); err != nil {
		t.Error(err)
	}
	var log []string
	for l, err := range other.Logs(ctx, sandbox.LogOptions{}) {
		if err != nil {
			t.Fatal(err)
		}
		log = append(log, l.Text)
	}
	if want := []string{"main", "listening", "main", "listening"}; !slices.Equal(log, want) {
		t.Errorf("the log has %q, want that of both sessions", log)
	}

	// A sandbox that is not persistent had one session.
	if err := temporary.Command(ctx, "/resident", "env").Run(); !errors.Is(err, sandbox.ErrNotRunning) && !errors.Is(err, sandbox.ErrNotFound) {
		t.Errorf("a command in a sandbox that is not persistent: %v, want ErrNotRunning", err)
	}
	if err := temporary.Close(); err != nil {
		t.Error(err)
	}
	if _, err := sb.Delete(ctx, sandbox.DeleteOptions{Volumes: true}); err != nil {
		t.Error(err)
	}
	if _, err := c.CleanupOrphanedVolumes(ctx, sandbox.CleanupOptions{}); err != nil {
		t.Error(err)
	}
	eng := engineAt(t, d.Host())
	harness.Eventually(t, "nothing is left", func() bool {
		left := harness.Objects(t, eng, record.Filter(record.Managed, "true"))
		return !slices.ContainsFunc(left, func(o string) bool { return !strings.Contains(o, "-guest-") && !strings.Contains(o, "-sweep.") })
	})
}

// engineAt is a connection to that engine beside the library.
func engineAt(t *testing.T, host string) *engine.Engine {
	t.Helper()
	eng, err := engine.Open(t.Context(), engine.Options{Host: host})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { eng.Close() })
	return eng
}

// Whatever a Create was about when the engine went, it ends, and what it did
// not make is gone after a sweep.
func createOutlives(t *testing.T, d *enginetest.Daemon, image sandbox.CreateOption) {
	c := harness.NewClient(t, sandbox.WithHost(d.Host()))
	// This one places the guest, if no other has, and those after it have nothing but themselves to make.
	sb, err := c.Create(t.Context(), image, harness.Quick)
	if err == nil {
		err = sb.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	calls := creators(t, d, image, nil, nil)[0].calls
	t.Logf("calls: %q", calls)

	var failed []string
	tried, offset := 0, rand.IntN(4)
	for i, outage := range outages[:2] {
		t.Run(outage.what, func(t *testing.T) {
			var stops []int // in a plain run every second call meets one of the outages, and the others do in another run
			for k := range calls {
				if harness.Soaking() || (k+offset)%4 == 2*i {
					stops = append(stops, k)
				}
			}
			tried += len(stops)
			for n, made := range creators(t, d, image, stops, outage.down) {
				k := stops[n]
				if made.err == nil {
					if _, err := c.Delete(t.Context(), made.name, sandbox.DeleteOptions{Volumes: true}); err != nil {
						t.Errorf("Delete: %v", err)
					}
					continue
				}
				// Whose call meets the engine that came back learns that it ended the session.
				if !lostEngine(made.err) {
					t.Errorf("the engine went at call %d, %s: %v, want ErrEngineUnavailable or ErrNotRunning", k+1, calls[k], made.err)
				}
				failed = append(failed, made.name)
			}
		})
	}
	if len(failed) < tried/4 {
		t.Errorf("%d of %d failed, want a quarter of them at least", len(failed), tried)
	}
	// Who was in the middle left markers that speak for it until their leases end.
	l := &harness.Late{}
	for _, name := range failed {
		l.Add(name)
	}
	l.Check(t, c, engineAt(t, d.Host()))
}

// creation1 is what became of one Create.
type creation1 struct {
	name  string
	calls []string
	err   error
}

// creators starts a Create for each of stops and holds it before that call, ends and restarts the
// engine, and returns the results. Without stops it returns that of one Create without an interruption.
func creators(t *testing.T, d *enginetest.Daemon, image sandbox.CreateOption, stops []int, down func(*enginetest.Daemon)) []creation1 {
	t.Helper()
	n := len(stops)
	made := make([]creation1, max(n, 1))
	var there, all sync.WaitGroup
	gone, back := make(chan struct{}), make(chan struct{})
	for i := range made {
		proxy := enginetest.NewProxyTo(t, d.Host())
		c := harness.NewClient(t, sandbox.WithHost(proxy.Host()))
		there.Add(1)
		at := sync.OnceFunc(there.Done)
		if n > 0 {
			proxy.Arm(stops[i]+1, enginetest.Cancel, func() { at(); <-gone })
		}
		made[i].name = harness.UniqueName(t)
		all.Go(func() {
			sb, err := c.Create(t.Context(), sandbox.WithName(made[i].name), image, harness.Quick)
			early := false // it has made fewer calls than another one, which swept, too
			if n > 0 {
				select {
				case <-gone:
				default:
					early = true
				}
			}
			at()
			made[i].err, made[i].calls = err, proxy.Calls()
			if (sb == nil) != (err != nil) {
				t.Errorf("Create: a handle %v, %v", sb, err)
			}
			if sb == nil {
				return
			}
			defer sb.Detach()
			if early {
				return // the engine may go at any moment of a command
			}
			if n > 0 {
				<-back
			}
			if err := sb.Command(t.Context(), "/resident", "env").Run(); err != nil {
				t.Errorf("a command in what was made: %v", err)
			}
		})
	}
	within(t, "reaching their calls", func() bool { there.Wait(); return true })
	func() {
		defer close(back)
		if n > 0 {
			down(d)
			close(gone)
			d.Start()
		}
	}()
	all.Wait()
	return made
}

// Root fills the disk, its own and the engine's, to the last byte. The
// session ends on time, others see why, and what is deleted makes room for others.
func TestRootInsideCannotOutliveTheTimeoutOnAFullDisk(t *testing.T) {
	t.Parallel()
	d, image := ownEngine(t)
	c := harness.NewClient(t, sandbox.WithHost(d.Host()))
	const timeout = 30 * time.Second
	sb, err := c.Create(t.Context(), sandbox.WithName(harness.UniqueName(t)), sandbox.WithTimeout(timeout), image, harness.Quick)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { sb.Detach() })
	d.Limit(64 << 20)
	cmd := sb.Command(t.Context(), "/resident", "fill", "/workspace/full", "/full")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if got, err := bufio.NewReader(out).ReadString('\n'); got != "full\n" || d.Free() > 1<<20 {
		t.Fatalf("the command says %q, %v, and %d bytes are free", got, err, d.Free())
	}
	if err := cmd.Wait(); !errors.Is(err, sandbox.ErrNotRunning) {
		t.Errorf("Wait: %v, want ErrNotRunning", err)
	}
	took := time.Since(harness.Status(t, sb).StartedAt)
	st, err := c.Inspect(t.Context(), sb.Name())
	if err != nil || st.State != sandbox.StateStopped || st.Reason != "timeout" {
		t.Errorf("Inspect: %s, %q, %v; want stopped by timeout", st.State, st.Reason, err)
	}
	// The stop timeout is 1s.
	if took < timeout || took > timeout+time.Minute {
		t.Errorf("it ended %v after its start, want %v and a grace of 1s", took, timeout)
	}
	if _, err := c.Delete(t.Context(), sb.Name(), sandbox.DeleteOptions{Volumes: true}); err != nil {
		t.Fatalf("Delete on a full disk: %v", err)
	}
	next, err := c.Create(t.Context(), image, harness.Quick)
	if err != nil {
		t.Fatalf("Create once there is room: %v", err)
	}
	if err := next.Close(); err != nil {
		t.Error(err)
	}
}
