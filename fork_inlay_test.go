package sandbox_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
)

// S3, S3.1, X25: of a source that is known to have few files of its own the forks start
// beside their copy, and have all of it nevertheless.
func TestForkBesideItsCopyHasEverything(t *testing.T) {
	t.Parallel()
	c := newClient(t)
	source := grow(t, c)
	first := forked(t, c, source.Name())
	if first.LaidIn() || !c.KnowsSmallLayer(source.ID()) {
		t.Fatalf("the first fork was laid in: %v; its source is known: %v", first.LaidIn(), c.KnowsSmallLayer(source.ID()))
	}
	second := forked(t, c, source.Name())
	if !second.LaidIn() {
		t.Error("the second fork was made as the first")
	}
	wantSameFiles(t, source, second, true)
	wantOwnWays(t, source, second, "/etc/b", "/usr/share/doc/new", "/workspace/tree/empty")
	// Its own fork, and that of a source that is stopped.
	c.SawSmallLayer(second.ID())
	third := forked(t, c, second.Name())
	wantSameFiles(t, second, third, true)
	fourth := forkedStopped(t, c, source, true)
	if !third.LaidIn() || !fourth.LaidIn() {
		t.Errorf("laid in: the fork's fork %v, that of a stopped source %v", third.LaidIn(), fourth.LaidIn())
	}
}

// What is mounted in a fork, and its source has not, is not in the way of what that has
// there, nor touched.
func TestForkBesideItsCopyHasOtherMounts(t *testing.T) {
	t.Parallel()
	c := newClient(t)
	source := createWith(t, c, nil)
	run(t, source, "sh", "-ec", "rm -r /usr/share/doc /usr/share/info; mkdir /usr/share/doc; echo new >/usr/share/doc/new; mkdir -p '/a b/c'; touch '/a b/c/hidden' '/a b/seen'; chmod 700 '/a b/c'")
	dir := host(t, map[string]string{"f": "x"})
	var mounts []sandbox.Mount
	for _, target := range []string{"/usr/share/doc/m/n", "/usr/share/info/m", "/a b/c"} {
		mounts = append(mounts, sandbox.Mount{Source: dir, Target: target, Mode: sandbox.RW})
	}
	var seen []string
	for range 2 {
		fork := forked(t, c, source.Name(), sandbox.WithMounts(mounts...))
		seen = append(seen, run(t, fork, "sh", "-c", "find /usr/share/doc /usr/share/info '/a b' -printf '%p %m %U:%G\n' | sort"))
		if fork.LaidIn() != (len(seen) == 2) {
			t.Errorf("fork %d is laid in: %v", len(seen), fork.LaidIn())
		}
	}
	if diff := cmp.Diff(strings.Split(seen[0], "\n"), strings.Split(seen[1], "\n")); diff != "" {
		t.Errorf("files (-copied +laid in):\n%s", diff)
	}
	if !strings.Contains(seen[1], "/a b/c/f") || strings.Contains(seen[1], "hidden") || !strings.Contains(seen[1], "doc/new") {
		t.Errorf("the fork has\n%s", seen[1])
	}
}

// The files are there before the session begins: before its main process, and before PID 1
// writes its own.
func TestForkBesideItsCopyBeginsWithItsFiles(t *testing.T) {
	t.Parallel()
	c := newClient(t)
	secret := sandbox.WithNetworkPolicy(sandbox.NetworkPolicy{
		Allow:     []string{"good.lab.test"},
		Transform: map[string]sandbox.Transform{"good.lab.test": {SetHeaders: sandbox.Headers{"X": "y"}}},
	})
	source := createWith(t, c, nil, secret)
	const bundle = "/etc/agent-sandbox-ca.pem"
	run(t, source, "sh", "-c", "echo b >/etc/b; cp "+bundle+" /etc/theirs")
	c.SawSmallLayer(source.ID())
	fork := forked(t, c, source.Name(), secret, sandbox.WithCommand("sh", "-c", "cat /etc/b >/workspace/seen; exec sleep 1000"))
	if !fork.LaidIn() {
		t.Error("it was not laid in")
	}
	eventually(t, "the main process has run", func() bool { return run(t, fork, "sh", "-c", "cat /workspace/seen || true") == "b" })
	if run(t, fork, "sh", "-c", "cmp -s /etc/theirs "+bundle+" && echo same || echo other") != "other" {
		t.Error("it trusts its source's authority instead of its own")
	}
}

// A source that has grown since is copied as one that is not known.
func TestForkOfASourceThatHasGrown(t *testing.T) {
	t.Parallel()
	c := newClient(t)
	source := createWith(t, c, nil)
	run(t, source, "sh", "-c", "head -c 8M /dev/urandom >/var/big")
	c.SawSmallLayer(source.ID())
	fork := forked(t, c, source.Name())
	if fork.LaidIn() || c.KnowsSmallLayer(source.ID()) {
		t.Errorf("8 MiB were laid in: %v; they are still small: %v", fork.LaidIn(), c.KnowsSmallLayer(source.ID()))
	}
	if a, b := run(t, source, "sha256sum", "/var/big"), run(t, fork, "sha256sum", "/var/big"); a != b {
		t.Errorf("the source has %s and the fork %s", a, b)
	}
	forked(t, c, source.Name())
	if c.KnowsSmallLayer(source.ID()) {
		t.Error("8 MiB became small")
	}
}

// A copy that is held up does not cost the session its lease: that starts anew.
func TestForkBesideItsCopyThatIsLate(t *testing.T) {
	t.Parallel()
	proxy := enginetest.NewProxy(t)
	c := newClient(t, sandbox.WithHost(proxy.Host()))
	source := createWith(t, c, nil)
	c.SawSmallLayer(source.ID())
	proxy.ArmAt("/pause", enginetest.Cancel, func() { time.Sleep(7 * time.Second) })
	fork := forked(t, c, source.Name())
	if !proxy.Fired() || fork.LaidIn() {
		t.Errorf("held up: %v; its session waited for its files: %v", proxy.Fired(), fork.LaidIn())
	}
	run(t, fork, "true")
	run(t, source, "true")
}
