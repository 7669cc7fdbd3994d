package security_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// Whoever runs a program in a sandbox, and however it was started, the kernel's doors are closed: all
// families of sockets but four, namespaces, and the calls that no sandbox has use for.
func TestTheSurfaceOfTheKernelIsSmall(t *testing.T) {
	t.Parallel()
	members := []harness.TarMember{harness.TarFile("etc/passwd", "root:x:0:0::/:\nann:x:1234:2345::/:\n"), surface(t, "bin/surface", runtime.GOARCH)}
	programs := []string{"/bin/surface"}
	var foreign string // what this kernel does not run
	if runtime.GOARCH == "amd64" {
		narrow := surface(t, "bin/surface32", "386")
		members = append(members, narrow)
		if runs(t, narrow.Content) {
			programs = append(programs, "/bin/surface32")
		} else {
			foreign = "/bin/surface32"
		}
	}
	ref := image(t, members...)
	if foreign != "" { // some virtual machines' kernels have no 32-bit programs, and so nobody has what is behind their calls
		sb := harness.NewSandbox(t, harness.Quick, sandbox.WithImage(ref))
		if err := sb.Command(t.Context(), foreign, "nothing").Run(); !errors.Is(err, syscall.ENOEXEC) {
			t.Errorf("%s in a sandbox, which the machine itself does not run: %v, want %v", foreign, err, syscall.ENOEXEC)
		}
	}
	for _, program := range programs {
		sb := harness.NewSandbox(t, harness.Quick, sandbox.WithImage(ref), sandbox.WithCommand(program))
		for name, run := range map[string]func() (string, error){
			"root": func() (string, error) { return output(sb.Command(t.Context(), program)) },
			"a user": func() (string, error) {
				cmd := sb.Command(t.Context(), program)
				cmd.User = "ann"
				return output(cmd)
			},
			"docker exec":      func() (string, error) { return engineExec(t, sb, program) },
			"the main process": func() (string, error) { return logged(t.Context(), sb) },
		} {
			t.Run(program+" by "+name, func(t *testing.T) {
				text, err := run()
				if err != nil {
					t.Fatal(err)
				}
				checkSurface(t, text, strings.HasSuffix(program, "32"))
			})
		}
	}
}

// surface is a program of testdata under a name.
func surface(t *testing.T, name, arch string) harness.TarMember {
	t.Helper()
	b, err := harness.BuildProgram("surface", arch)
	if err != nil {
		t.Fatal(err)
	}
	m := harness.TarFile(name, string(b))
	m.Mode = 0o755
	return m
}

// runs reports whether the machine runs a program, which it is to do outside of any sandbox.
func runs(t *testing.T, program string) bool {
	t.Helper()
	path := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(path, []byte(program), 0o755); err != nil {
		t.Fatal(err)
	}
	err := exec.Command(path, "nothing").Run()
	if err != nil && !errors.Is(err, syscall.ENOEXEC) {
		t.Fatal(err)
	}
	return err == nil
}

func output(cmd *sandbox.Cmd) (string, error) {
	text, err := cmd.Output()
	return string(text), err
}

// logged returns what the main process has printed until it said that this is all.
func logged(ctx context.Context, sb *sandbox.Sandbox) (string, error) {
	var b strings.Builder
	for line, err := range sb.Logs(ctx, sandbox.LogOptions{Follow: true}) {
		if err != nil || line.Text == "that is all" {
			return b.String(), err
		}
		fmt.Fprintln(&b, line.Text)
	}
	return b.String(), io.ErrUnexpectedEOF
}

// engineExec runs a program as "docker exec" does.
func engineExec(t *testing.T, sb *sandbox.Sandbox, argv ...string) (string, error) {
	s, err := harness.NewEngine(t).Exec(t.Context(), record.ContainerName(sb.Name()), engine.ExecSpec{Argv: argv})
	if err != nil {
		return "", err
	}
	defer s.Close()
	text, err := io.ReadAll(s)
	return string(text), err
}

// checkSurface reads what the program of testdata found.
func checkSurface(t *testing.T, text string, socketcalls bool) {
	t.Helper()
	allowed := []string{"1", "2", "10", "16"}
	got := map[string]string{}
	for line := range strings.Lines(text) {
		if line == "that is all\n" {
			continue
		}
		what, how, ok := strings.Cut(strings.TrimSpace(line), "\t")
		if !ok {
			t.Fatalf("it printed %q", line)
		}
		got[what] = how
		f := strings.Fields(what)
		call, family := strings.Join(f[:max(1, len(f)-2)], " "), f[max(0, len(f)-2)]
		want := "EPERM"
		switch {
		case what == "clone3":
			want = "ENOSYS" // programs go on with clone, whose flags a filter reads
		case socketcalls && (call == "socket" || call == "socketpair"): // the family is in memory
			want = "ENOSYS"
		case (call == "socket" || call == "direct socket" || call == "x32 socket") && slices.Contains(allowed, family), call == "socketpair" && family == "1":
			continue
		}
		if how != want {
			t.Errorf("%s: %s, want %s", what, how, want)
		}
	}
	for _, open := range []string{"1 stream", "1 dgram", "1 seqpacket", "2 stream", "2 dgram", "10 stream", "10 dgram", "16 raw", "16 dgram"} {
		if how := got["direct socket "+open]; how != "allowed" {
			t.Errorf("direct socket %s: %q", open, how)
		}
	}
	if n := len(got); n < 800 {
		t.Errorf("%d things were tried", n)
	}
	if how := got["socketpair 1 stream"]; how != "allowed" && !socketcalls {
		t.Errorf("a pair of Unix sockets: %q", how)
	}
}
