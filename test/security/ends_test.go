package security_test

import (
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// PID 1 says at the end of a session whether the sandbox's files lead the next start to where this one led. If they do, the
// start takes no look of its own. Each row is a session of one sandbox: what it does, how it ends, what PID 1 says of that.
func TestTheEndOfASessionSaysWhatItLeaves(t *testing.T) {
	t.Parallel()
	proxy := enginetest.NewProxy(t)
	c := harness.NewClient(t, sandbox.WithHost(proxy.Host()))
	sb := harness.CreateWith(t, c, []sandbox.Mount{{Source: harness.HostDir(t, map[string]string{"own": ""}), Target: "/place/data"}})
	harness.Update(t, sb, sandbox.WithStopTimeout(harness.GoneBound)) // an end takes what it takes
	stop := func() {
		if _, err := sb.Stop(t.Context()); err != nil {
			t.Fatalf("Stop: %v", err)
		}
	}
	for _, tt := range []struct {
		does  string
		late  string // and once it is to end
		end   func()
		plain bool
		next  string // the start's error, empty if it succeeds
	}{
		{does: "true", plain: true},
		{does: "mkdir -p /place/tools /etc/more && echo more >> /etc/passwd && mv /etc/shadow /etc/shadow.old; test -e /etc/shadow.old", plain: true},
		{late: "mkdir -p /place/late", plain: true},
		{late: "mv /place /place.late && mkdir -p /place/data"},
		{does: "true", end: func() {
			enginetest.Post(t, "/containers/"+record.ContainerName(sb.Name())+"/kill", nil)
			gone(t, sb)
		}},
		{does: "mv /place /place.old && mkdir -p /place/data"}, // the mount is in /place.old
		{does: "rm /etc/group && mkfifo /etc/group"},           // a start replaces it
		{does: "truncate -s 64M /etc/passwd"},                  // the same
		{does: "mv /place /place.away && ln -s /place.away /place", next: "/place is a symbolic link"},
	} {
		if tt.end == nil {
			tt.end = stop
		}
		session := func() (plain bool) {
			if tt.late == "" {
				harness.Run(t, sb, "sh", "-c", tt.does)
			} else {
				tt.does = tt.late
				stays(t, sb, "sh", "-c", "trap '"+tt.late+"; exit' TERM; touch /run/ready; while :; do sleep 0.1; done")
			}
			tt.end()
			_, plain = wire.EndCode(harness.Raw(t, sb).State.ExitCode)
			before := len(proxy.Requests())
			_, err := sb.Start(t.Context())
			if tt.next == "" && err != nil || tt.next != "" && (err == nil || !strings.Contains(err.Error(), tt.next)) {
				t.Fatalf("%s: the next start: %v, want %q", tt.does, err, tt.next)
			}
			looked := false
			for _, call := range proxy.Requests()[before:] {
				looked = looked || strings.HasPrefix(call, "POST /containers/create")
			}
			if looked == plain {
				t.Errorf("%s: PID 1 said %t, and a helper looked: %t, want %t: %q", tt.does, plain, looked, !plain, proxy.Requests()[before:])
			}
			if tt.next == "" {
				harness.Run(t, sb, "test", "-e", "/place/data/own")
			}
			return plain
		}
		plain := session()
		// On a busy machine PID 1 may not live to see the last process end, and says nothing then.
		for try := 1; tt.plain && !plain && try < 10; try++ {
			t.Logf("%s: PID 1 did not say that the files are in place", tt.does)
			plain = session()
		}
		if plain != tt.plain {
			t.Errorf("%s: PID 1 said %t, want %t", tt.does, plain, tt.plain)
		}
	}
}

// gone waits until the engine says that the container of a sandbox has ended.
func gone(t *testing.T, sb *sandbox.Sandbox) {
	t.Helper()
	harness.Eventually(t, "the session has ended", func() bool { return harness.Raw(t, sb).State.Status == "exited" })
}

// stays runs a command that makes the file /run/ready, and ends when the session is to end.
func stays(t *testing.T, sb *sandbox.Sandbox, argv ...string) {
	t.Helper()
	harness.Run(t, sb, "rm", "-rf", "/run/ready")
	if err := sb.Command(t.Context(), argv[0], argv[1:]...).Start(); err != nil {
		t.Fatal(err)
	}
	harness.WaitForFile(t, sb, "/run/ready")
}

// A process swaps a mount's parent for a link, and for another directory, for some moments longer than the session is to last.
// Whatever it leaves, the next start has the mount in its place, or is refused.
func TestFilesThatMoveUntilTheEnd(t *testing.T) {
	t.Parallel()
	c := harness.NewClient(t)
	create := func() *sandbox.Sandbox {
		return harness.CreateWith(t, c, []sandbox.Mount{{Source: harness.HostDir(t, map[string]string{"own": ""}), Target: "/place/data"}})
	}
	// One process, since others would end at SIGTERM between two steps.
	const swap = `$SIG{TERM} = sub { $end = 1 }; mkdir "/tmp/else"; mkdir "/tmp/else/data"; open STDERR, ">", "/run/error"; mkdir "/run/ready";
		my @steps = (sub { rename "/place", "/place.old" }, sub { symlink "/tmp/else", "/place" }, sub { unlink "/place" },
			sub { mkdir "/place"; mkdir "/place/data" }, sub { rmdir "/place/data"; rmdir "/place" }, sub { rename "/place.old", "/place" });
		for (;;) { for (@steps) { $_->() or die "a step failed: $!"; exit if $end && $n++ == $ARGV[0] } }`
	sb := create()
	first := rand.IntN(6)
	for n := range harness.Rounds(3, 120) {
		if !harness.Soaking() {
			n = (first + 2*n) % 6 // every other step
		}
		n += 6 // the steps after SIGTERM
		stays(t, sb, "perl", "-e", swap, strconv.Itoa(n))
		if _, err := sb.Stop(t.Context()); err != nil {
			t.Fatalf("Stop: %v", err)
		}
		_, plain := wire.EndCode(harness.Raw(t, sb).State.ExitCode)
		if _, err := sb.Start(t.Context()); err != nil {
			if plain || !refusal(err) {
				t.Fatalf("Start: %v, and PID 1 found the files in place: %t", err, plain)
			}
			sb = create() // the files of the other stay as they are
			continue
		}
		if got := harness.Run(t, sb, "sh", "-c", "cat /run/error; ls /place/data; grep -c ' /place/data ' /proc/self/mountinfo; rm -rf /place.old"); got != "own\n1" {
			t.Fatalf("the mount has %q, and PID 1 had found the files in place: %t", got, plain)
		}
	}
}
