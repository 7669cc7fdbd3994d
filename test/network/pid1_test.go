package network_test

import (
	"bytes"
	"context"
	"io"
	"maps"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// attacker is testdata/attack, built for the sandbox.
var attacker = sync.OnceValues(func() ([]byte, error) { return harness.BuildProgram("attack", runtime.GOARCH) })

const attackPath = "/usr/local/bin/attack"

// putAttacker puts the attacker into the sandbox.
func putAttacker(t *testing.T, sb *sandbox.Sandbox) {
	t.Helper()
	bin, err := attacker()
	if err != nil {
		t.Fatalf("build the attacker: %v", err)
	}
	cmd := sb.Command(t.Context(), "sh", "-c", "cat > "+attackPath+" && chmod 755 "+attackPath)
	cmd.Stdin = bytes.NewReader(bin)
	if err := cmd.Run(); err != nil {
		t.Fatalf("put the attacker in: %v", err)
	}
}

// attack returns what became of each attempt: "done", or "refused" and why.
func attack(t *testing.T, sb *sandbox.Sandbox, args ...string) map[string]string {
	t.Helper()
	out, err := sb.Command(t.Context(), attackPath, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("attack %q: %v\n%s", args, err, out)
	}
	return verdicts(t, string(out))
}

func verdicts(t *testing.T, out string) map[string]string {
	t.Helper()
	got := map[string]string{}
	for line := range strings.Lines(out) {
		what, how, ok := strings.Cut(strings.TrimSpace(line), ": ")
		if !ok || how != "done" && !strings.HasPrefix(how, "refused") {
			t.Fatalf("the attacker said %q", line)
		}
		got[what] = how
	}
	return got
}

// Root inside can't get at PID 1 in any way, which still ends the session.
func TestRootInsideDoesNotGetAtPID1(t *testing.T) {
	t.Parallel()
	sb := harness.NewSandbox(t, sandbox.WithNewPrivileges(), sandbox.WithTimeout(time.Hour))
	putAttacker(t, sb)
	began := harness.Status(t, sb).StartedAt
	for what, attacks := range map[string]func(*testing.T, *sandbox.Sandbox){
		"signals": signalsDoNotReachPID1, "looks": rootCannotLookIntoPID1, "capabilities": rootCannotRegainCapabilities, "control socket": controlSocketObeysNobody,
	} {
		t.Run(what, func(t *testing.T) {
			attacks(t, sb)
			if st := harness.Status(t, sb); st.State != sandbox.StateRunning || !st.StartedAt.Equal(began) {
				t.Errorf("after the attack it is %+v; want the session of %v", st, began)
			}
			if got := harness.Run(t, sb, "echo", "ok"); got != "ok" {
				t.Errorf("a command says %q", got)
			}
		})
	}
	// Its own exit, and not the engine's when the grace is over.
	ctx, cancel := context.WithTimeout(t.Context(), harness.CallBound)
	defer cancel()
	if _, err := sb.Stop(ctx); err != nil {
		t.Errorf("Stop: %v", err)
	}
	if code, _ := wire.EndCode(harness.Raw(t, sb).State.ExitCode); code != wire.CodeStopped {
		t.Errorf("exit code of PID 1: %d, want %d", code, wire.CodeStopped)
	}
}

// PID 1 outlives every signal from inside.
func signalsDoNotReachPID1(t *testing.T, sb *sandbox.Sandbox) {
	t.Helper()
	for _, user := range []string{"root", "node"} {
		cmd := sb.Command(t.Context(), attackPath, "signals", "1")
		cmd.User = user
		out, err := cmd.Output()
		if err != nil {
			t.Errorf("the attack: %v", err)
		}
		sent, _ := strconv.Atoi(strings.TrimSpace(strings.TrimPrefix(string(out), "sent ")))
		// Root may send them, or the attack is none.
		if user == "root" && sent < 3*64 {
			t.Errorf("%q: want at least 192 sent by root", out)
		}
	}
	// The positive control: they end another.
	victim := sb.Command(t.Context(), "sleep", "1000")
	if err := victim.Start(); err != nil {
		t.Fatalf("Start: %v", err)
	}
	if out, err := sb.Command(t.Context(), attackPath, "signals", strconv.Itoa(victim.Pid())).Output(); err != nil || !strings.HasPrefix(string(out), "sent ") {
		t.Errorf("the attack on another process: %q, %v", out, err)
	}
	if err := victim.Wait(); harness.ExitCode(err) <= 128 {
		t.Errorf("it outlived the attack: %v", err)
	}
}

// Root inside can neither look into PID 1 nor take it over. The same attack
// on an ordinary process works.
func rootCannotLookIntoPID1(t *testing.T, sb *sandbox.Sandbox) {
	t.Helper()
	// Nobody may do these in a container, to anyone, on engines of this age; the
	// guest's own tests make the attempts where no profile of the engine's forbids them.
	never := []string{"proc-stack", "proc-map_files", "kcmp", "pidfd_getfd", "process_vm_readv"}
	victim := sb.Command(t.Context(), attackPath, "wait")
	out, err := victim.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := victim.Start(); err != nil {
		t.Fatalf("Start: %v", err)
	}
	defer victim.Kill()
	if _, err := out.Read(make([]byte, 16)); err != nil { // it is in its final form
		t.Fatal(err)
	}
	onPID1 := attack(t, sb, "pry", "1")
	onOther := attack(t, sb, "pry", strconv.Itoa(victim.Pid()))
	if len(onPID1) < 30 || len(onPID1) != len(onOther) {
		t.Errorf("%d attempts on PID 1, %d on another; want the same, many", len(onPID1), len(onOther))
	}
	for _, what := range slices.Sorted(maps.Keys(onPID1)) {
		if onPID1[what] == "done" {
			t.Errorf("%s of PID 1: done; want it refused", what)
		}
		if onOther[what] != "done" && !slices.Contains(never, what) {
			t.Errorf("%s of another process: %s; the attempt proves nothing", what, onOther[what])
		}
	}
}

// Root inside can't get what PID 1 has.
func rootCannotRegainCapabilities(t *testing.T, sb *sandbox.Sandbox) {
	t.Helper()
	got := attack(t, sb, "gain")
	// What root may do, so that the attempt is a real one.
	allowed := []string{"make-setuid", "make-filecap", "make-filecap-allowed"}
	for _, what := range slices.Sorted(maps.Keys(got)) {
		if want := slices.Contains(allowed, what); (got[what] == "done") != want {
			t.Errorf("%s: %s; want it done: %v", what, got[what], want)
		}
	}
	if len(got) < 35 {
		t.Errorf("%d attempts: %v", len(got), got)
	}
	// The files made: a set-user-ID root program, and one with a capability that
	// sandboxes have, work; one with NET_ADMIN does not even start.
	asNode := func(name string) (string, error) {
		cmd := sb.Command(t.Context(), "/tmp/attack.d/"+name, "caps")
		cmd.User = "node"
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	out, err := asNode("setuid")
	if eff := capability(t, out, "CapEff"); err != nil || eff == 0 || eff&forbiddenCaps != 0 {
		t.Errorf("set-user-ID root has %x, %v; want capabilities, and none of %x", eff, err, forbiddenCaps)
	}
	out, err = asNode("filecap-allowed")
	if eff := capability(t, out, "CapEff"); err != nil || eff != 1<<5 {
		t.Errorf("with the file capability KILL it has %x, %v; want it", eff, err)
	}
	if out, err := asNode("filecap"); err == nil && capability(t, out, "CapEff")&forbiddenCaps != 0 {
		t.Errorf("with the file capability NET_ADMIN it got it:\n%s", out)
	}
}

// The positive control of the one above: where the capabilities are there, the same
// attempts succeed.
func TestAttemptsAtCapabilitiesAreRealOnes(t *testing.T) {
	t.Parallel()
	bin, err := attacker()
	if err != nil {
		t.Fatalf("build the attacker: %v", err)
	}
	eng := harness.NewEngine(t)
	id := harness.StartContainer(t, eng, engine.ContainerSpec{
		Name: "attacked-" + record.NewID(), Image: sandbox.DefaultImage, Entrypoint: []string{"sleep", "1000"},
		CapAdd: []string{"NET_ADMIN", "NET_RAW", "MKNOD", "SYS_ADMIN"}, SecurityOpt: []string{"seccomp=unconfined", "apparmor=unconfined"}, NetworkMode: "none", Tmpfs: map[string]string{"/.agent-sandbox": "exec"},
	})
	do := func(in []byte, argv ...string) string {
		t.Helper()
		s, err := eng.Exec(t.Context(), id, engine.ExecSpec{Argv: argv, Stdin: true})
		if err != nil {
			t.Fatalf("%q: %v", argv, err)
		}
		defer s.Close()
		if _, err := s.Write(in); err != nil {
			t.Errorf("%q: %v", argv, err)
		}
		s.CloseWrite()
		out, err := io.ReadAll(s)
		if err != nil {
			t.Fatalf("%q: %v", argv, err)
		}
		return string(out)
	}
	do(bin, "sh", "-c", "cat > "+attackPath+" && chmod 755 "+attackPath+" && touch /.agent-sandbox/guest")
	got := verdicts(t, do(nil, attackPath, "gain"))
	never := []string{"core_pattern", "ip_forward", "sysrq"} // mounted read-only, or not there
	if users := strings.Fields(do(nil, "cat", "/proc/self/uid_map")); users[1] != "0" {
		never = append(never, "mknod-mem") // nor in a user namespace of its own
	}
	for _, what := range slices.Sorted(maps.Keys(got)) {
		if got[what] != "done" && !slices.Contains(never, what) {
			t.Errorf("%s: %s; the attempt proves nothing", what, got[what])
		}
	}
	if len(got) < 35 {
		t.Errorf("%d attempts: %v", len(got), got)
	}
}

// forbiddenCaps are NET_ADMIN, NET_RAW and MKNOD.
const forbiddenCaps = 1<<12 | 1<<13 | 1<<27

var capRE = regexp.MustCompile(`(?m)^(Cap\w+):\s*([0-9a-f]+)$`)

// capability returns one set of /proc/self/status.
func capability(t *testing.T, status, set string) uint64 {
	t.Helper()
	for _, m := range capRE.FindAllStringSubmatch(status, -1) {
		if m[1] == set {
			n, err := strconv.ParseUint(m[2], 16, 64)
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Errorf("no %s in %q", set, status)
	return ^uint64(0)
}

// No kind of process has them, or could ever.
func TestNoProcessInsideHasForbiddenCapabilities(t *testing.T) {
	t.Parallel()
	const show = "grep ^Cap /proc/self/status"
	sb := harness.NewSandbox(t, sandbox.WithCommand("sh", "-c", show+" > main; mv main main.done"))
	found := map[string]string{}
	for kind, set := range map[string]func(c *sandbox.Cmd){
		"a command":         func(*sandbox.Cmd) {},
		"on a terminal":     func(c *sandbox.Cmd) { c.TTY = true },
		"detached":          func(c *sandbox.Cmd) { c.Detached = true },
		"another's":         func(c *sandbox.Cmd) { c.User = "node" },
		"root by its group": func(c *sandbox.Cmd) { c.User = "0:1000" },
	} {
		cmd := sb.Command(t.Context(), "sh", "-c", show)
		set(cmd)
		out, err := cmd.Output()
		if err != nil {
			t.Errorf("%s: %v", kind, err)
		}
		found[kind] = strings.ReplaceAll(string(out), "\r", "")
	}
	harness.WaitForFile(t, sb, "main.done")
	found["the main process"] = harness.Run(t, sb, "cat", "main.done")
	// And of those that serve it: every process but PID 1.
	pids := strings.Fields(harness.Run(t, sb, "sh", "-c", "cd /proc; echo [0-9]*"))
	for _, pid := range pids {
		if out, err := sb.Command(t.Context(), "grep", "^Cap", "/proc/"+pid+"/status").Output(); err == nil && pid != "1" {
			found["process "+pid] = string(out)
		}
	}
	if len(found) < 8 {
		t.Errorf("found only %q", slices.Sorted(maps.Keys(found)))
	}
	for kind, status := range found {
		for _, set := range []string{"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"} {
			if got := capability(t, status, set); got&forbiddenCaps != 0 {
				t.Errorf("%s: %s is %x, with some of %x", kind, set, got, uint64(forbiddenCaps))
			}
		}
	}
	// PID 1 has NET_ADMIN, or there would be nothing to keep from the others.
	if got := capability(t, harness.Run(t, sb, "grep", "^Cap", "/proc/1/status"), "CapEff"); got&(1<<12) == 0 {
		t.Errorf("PID 1 has %x, without NET_ADMIN", got)
	}
}

// Who does not have the key can't talk PID 1 into anything.
func controlSocketObeysNobody(t *testing.T, sb *sandbox.Sandbox) {
	t.Helper()
	got := attack(t, sb, "control", wire.ControlSocket)
	if len(got) < 8 {
		t.Errorf("%d attempts: %v", len(got), got)
	}
	for what, how := range got {
		if how == "done" {
			t.Errorf("%s: done; want it refused", what)
		}
	}
	// The key itself is nowhere inside.
	key := harness.Raw(t, sb).Config.Labels["agent-sandbox.control-key"]
	if key == "" {
		t.Fatal("there is no control key on the container")
	}
	out, err := sb.Command(t.Context(), "sh", "-c", "cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ 2>/dev/null; true").Output()
	if err != nil || !bytes.Contains(out, []byte("guest")) || bytes.Contains(out, []byte(key)) {
		t.Errorf("command lines and environments inside (%d bytes, %v) tell the key", len(out), err)
	}
}
