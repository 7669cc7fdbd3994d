package fork_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// remove changes an image as a layer can say only by marks of the storage driver: it replaces a
// directory, renames one, and deletes one and a file. The new file gets a time, since fuse-overlayfs
// shows the one of its creation for a while after it was written.
const remove = `rm -r /usr/share/doc; mkdir /usr/share/doc; echo new >/usr/share/doc/new; touch -d "2020-01-02 03:04:05.123456789" /usr/share/doc/new
mv /usr/share/perl5 /srv/renamed; rm -r /usr/share/zoneinfo/Europe; rm /etc/motd`

// everything lists all files outside of volumes, with the contents of those that remove leaves.
const everything = `find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path '/.agent-sandbox*' -o -path /.dockerenv -o -path /run/.containerenv \
	-o -path /etc/hosts -o -path /etc/hostname -o -path /etc/resolv.conf -o -path /etc/mtab \) -prune -o ! -type d -printf '%p|%y|%m|%U:%G|%T@|%l|%s\n' -o -printf '%p|d|%m|%U:%G\n' | LC_ALL=C sort
find /usr/share/doc /srv -type f -exec sha256sum {} + | LC_ALL=C sort`

// What a container's own layer says by marks is the same in a fork, in a sandbox from a snapshot
// and after an update, and no engine that keeps layers in directories has to commit it, or to pause
// it: a pause that meets an exec can be for good.
func TestMarksOfALayerAreKept(t *testing.T) {
	t.Parallel()
	proxy := enginetest.NewProxy(t)
	c := harness.NewClient(t, sandbox.WithHost(proxy.Host()))
	source := harness.CreateWith(t, c, nil)
	harness.Run(t, source, "sh", "-ec", remove)
	list := func(sb *sandbox.Sandbox) []string {
		return strings.Split(harness.Run(t, sb, "sh", "-ec", everything), "\n")
	}
	want := list(source)
	proxy.Arm(0, enginetest.None, nil)
	same := func(what string, sb *sandbox.Sandbox) {
		t.Helper()
		if diff := cmp.Diff(want, list(sb)); diff != "" {
			t.Errorf("files of %s (-source +copy):\n%s", what, diff)
		}
	}

	same("a fork", forked(t, c, source.Name()))
	same("one of several forks", forkedN(t, c, source.Name(), 1)[0])
	snapshot := harness.SnapshotOf(t, c, source, sandbox.SnapshotOptions{})
	same("a sandbox from a snapshot", harness.CreateWith(t, c, nil, fromSnap(snapshot)))

	if _, err := source.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	same("a fork of a stopped sandbox", forked(t, c, source.Name()))
	harness.Update(t, source, sandbox.WithPorts(3000))
	if _, err := source.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	same("the sandbox itself after an update", source)
	for _, call := range proxy.Calls() {
		if strings.HasSuffix(call, "/commit") || strings.HasSuffix(call, "/pause") {
			t.Errorf("the engine was asked for %q", call)
		}
	}
}

// A sandbox that pretends to be another one, by the name of the other's guest, does not get its
// files into forks of that.
func TestForkIgnoresWhoPretendsToBeItsSource(t *testing.T) {
	t.Parallel()
	c, source := harness.NewClient(t), stock(t)
	other := harness.CreateWith(t, c, nil)
	guest := harness.Run(t, source, "sh", "-c", "echo /.agent-sandbox-*")
	harness.Run(t, other, "sh", "-ec", `mkdir "$1"; echo other >/etc/b`, "sh", guest)
	if got := harness.Run(t, forked(t, c, source.Name()), "cat", "/etc/b"); got != "b" {
		t.Errorf("the fork has the file of %q", got)
	}
}
