package exec_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// What a user other than root starts can't become root by a setuid program, whichever way it
// is started; WithNewPrivileges lets it. Root is not concerned.
func TestUsersGainNoPrivileges(t *testing.T) {
	t.Parallel()
	const flag = `grep -o "NoNewPrivs:.*" /proc/self/status | tr -dc 01; /usr/local/bin/setuid-id -u`
	const main = "(" + flag + ") > /tmp/main.part 2>&1; mv /tmp/main.part /tmp/main; sleep 1000"
	const confined, root, free = "11000\n", "00\n", "00\n"
	for name, test := range map[string]struct {
		opts     []sandbox.CreateOption
		commands map[string]string // what commands of each user say
		main     string            // what the main process says
	}{
		"a user":                  {[]sandbox.CreateOption{sandbox.WithUser("node")}, map[string]string{"": confined, "root": root}, confined},
		"a user by number":        {[]sandbox.CreateOption{sandbox.WithUser("1000:1000")}, map[string]string{"": confined}, confined},
		"root":                    {nil, map[string]string{"": root, "node": confined}, root},
		"a user, with the option": {[]sandbox.CreateOption{sandbox.WithUser("node"), sandbox.WithNewPrivileges()}, map[string]string{"": free}, free},
		"root, with the option":   {[]sandbox.CreateOption{sandbox.WithNewPrivileges()}, map[string]string{"node": free}, root},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			opts := append(test.opts, sandbox.WithName(harness.UniqueName(t)), harness.Quick, sandbox.WithCommand("sh", "-c", "while ! test -e /tmp/go; do sleep 0.05; done; "+main))
			sb := harness.NewSandbox(t, opts...)
			setup := sb.Command(t.Context(), "sh", "-c", "cp /usr/bin/id /usr/local/bin/setuid-id && chmod 4755 /usr/local/bin/setuid-id && touch /tmp/go")
			setup.User = "root"
			if err := setup.Run(); err != nil {
				t.Fatal(err)
			}
			output := func(cmd *sandbox.Cmd) string {
				t.Helper()
				out, err := cmd.Output()
				if err != nil {
					t.Fatal(err)
				}
				return string(out)
			}
			shell := func(user, script string) *sandbox.Cmd {
				cmd := sb.Command(t.Context(), "sh", "-c", script)
				cmd.User = user
				return cmd
			}
			for user, want := range test.commands {
				for range 2 { // also where the thread for confined commands exists
					if got := output(shell(user, flag)); got != want {
						t.Errorf("a command of %q says %q, want %q", user, got, want)
					}
				}
				if got := output(shell(user, "sh -c '"+flag+"'")); got != want {
					t.Errorf("a child of a command of %q says %q, want %q", user, got, want)
				}
				tty := shell(user, flag)
				tty.TTY = true
				if got := strings.ReplaceAll(output(tty), "\r", ""); got != want {
					t.Errorf("a command of %q on a terminal says %q, want %q", user, got, want)
				}
				detached := shell(user, "("+flag+") > /tmp/detached"+user)
				detached.Detached = true
				if err := detached.Run(); err != nil {
					t.Fatal(err)
				}
				if got := harness.Read(t, sb, "/tmp/detached"+user); got != want {
					t.Errorf("a detached command of %q says %q, want %q", user, got, want)
				}
			}
			harness.WaitForFile(t, sb, "/tmp/main")
			if got := harness.Read(t, sb, "/tmp/main"); got != test.main {
				t.Errorf("the main process says %q, want %q", got, test.main)
			}
			fork, err := harness.NewClient(t).Fork(t.Context(), sb.Name())
			if err != nil {
				t.Fatal(err)
			}
			harness.Remove(t, harness.NewClient(t), fork.Name())
			t.Cleanup(func() { fork.Detach() })
			sb = fork
			for user, want := range test.commands {
				if got := output(shell(user, flag)); got != want {
					t.Errorf("in a fork a command of %q says %q, want %q", user, got, want)
				}
			}
		})
	}
}

// A sandbox can't have the kernel write core files.
func TestCoreFilesAreLimited(t *testing.T) {
	t.Parallel()
	sb := harness.Shared(t)
	for _, limit := range []string{"-S", "-H"} {
		if got := harness.Run(t, sb, "sh", "-c", "ulimit "+limit+" -c"); got != "0" {
			t.Errorf("ulimit %s -c: %s, want 0", limit, got)
		}
	}
	if err := sb.Command(t.Context(), "sh", "-c", "ulimit -c 1").Run(); err == nil {
		t.Error("root raises the limit of core dumps")
	}
}

// The limit of a container's own layer is refused where the storage driver has none.
func TestStorageSizeNeedsAStorageDriverWithQuotas(t *testing.T) {
	t.Parallel()
	info, err := harness.NewEngine(t).Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := harness.Nowhere(t).Create(t.Context(), sandbox.WithStorageSize(1)); !errors.Is(err, sandbox.ErrInvalidArgument) {
		t.Errorf("Create with a byte of storage: %v, want ErrInvalidArgument", err)
	}
	if info.StorageDriver != "fuse-overlayfs" && info.StorageDriver != "vfs" {
		return // whether it works is up to the engine's disk
	}
	_, err = harness.NewClient(t).Create(t.Context(), sandbox.WithStorageSize(1<<30))
	if !errors.Is(err, sandbox.ErrUnsupported) || !strings.Contains(err.Error(), info.StorageDriver) {
		t.Errorf("Create with a limit of storage: %v, want ErrUnsupported naming %s", err, info.StorageDriver)
	}
}

// A GPU that the engine can't give is said so, and leaves nothing.
func TestGPUsThatTheEngineHasNot(t *testing.T) {
	t.Parallel()
	if _, err := harness.Nowhere(t).Create(t.Context(), sandbox.WithGPUs("all", "0")); !errors.Is(err, sandbox.ErrInvalidArgument) || !strings.Contains(err.Error(), "WithGPUs: all stands alone") {
		t.Errorf("Create with all GPUs and another: %v, want ErrInvalidArgument", err)
	}
	c := harness.NewClient(t)
	for _, names := range [][]string{{"all"}, {"GPU-that-nobody-has"}, {"example.com/gpu=none"}} {
		name := harness.UniqueName(t)
		sb, err := c.Create(t.Context(), sandbox.WithName(name), sandbox.WithGPUs(names...))
		if err == nil {
			sb.Close()
			if names[0] == "all" {
				continue // this machine has GPUs
			}
		}
		if !errors.Is(err, sandbox.ErrUnsupported) {
			t.Errorf("Create with GPUs %q: %v, want ErrUnsupported", names, err)
		}
		if _, err := c.Inspect(t.Context(), name); !errors.Is(err, sandbox.ErrNotFound) {
			t.Errorf("after Create with GPUs %q: Inspect = %v", names, err)
		}
	}
}
