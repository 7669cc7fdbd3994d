package guest_test

import (
	"encoding/json"
	"os/exec"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
)

func TestTrySaysWhatCannotBeHad(t *testing.T) {
	t.Parallel()
	try := func(attr *syscall.SysProcAttr) (a wire.Abilities) {
		t.Helper()
		cmd := exec.Command(binary, wire.VerbTry, "/proc") // where nobody makes a file
		cmd.SysProcAttr = attr
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(out, &a); err != nil {
			t.Fatalf("%q: %v", out, err)
		}
		return a
	}
	a := try(&syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET})
	if a.Policy != "" {
		t.Errorf("with a network of its own root can have no policy: %s", a.Policy)
	}
	if a.Reflink == "" {
		t.Error("files in /proc can share blocks")
	}
	a = try(&syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET, Credential: &syscall.Credential{Uid: 65534, Gid: 65534}})
	if a.Policy == "" {
		t.Error("who may change nothing about the network can have a policy")
	}
}
