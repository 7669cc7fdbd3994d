package security_test

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/internal/store"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// fifo is a named pipe.
func fifo(name string) harness.TarMember {
	return harness.TarMember{Header: tar.Header{Typeflag: tar.TypeFifo, Name: name, Mode: 0o644}}
}

// The engine opens the account files of a container at each start, and a start that blocks holds
// a lock that every later call for the container needs.
func TestAccountFilesNeverBlockTheEngine(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		what    string
		members []harness.TarMember
		opts    []sandbox.CreateOption
		want    string // of the error; empty for none
	}{
		{what: "none"},
		{what: "regular", members: []harness.TarMember{harness.TarFile("etc/passwd", "root:x:0:0::/:\n")}},
		{what: "links to regular", members: []harness.TarMember{harness.TarLink("etc/passwd", "../usr/link"), harness.TarLink("usr/link", "real"), harness.TarFile("usr/real", "root:x:0:0::/:\n")}},
		{what: "dangling", members: []harness.TarMember{harness.TarLink("etc/group", "none")}},
		{what: "pipe", members: []harness.TarMember{fifo("etc/passwd")}, want: "/etc/passwd (p"},
		{what: "pipe for groups", members: []harness.TarMember{fifo("etc/group")}, want: "/etc/group (p"},
		{what: "link to a pipe", members: []harness.TarMember{harness.TarLink("etc/passwd", "../usr/link"), harness.TarLink("usr/link", "p"), fifo("usr/p")}, want: "/etc/passwd (p"},
		{what: "link to a terminal", members: []harness.TarMember{harness.TarLink("etc/passwd", "../dev/ptmx")}, want: "to /dev/ptmx"},
		{what: "large", members: []harness.TarMember{harness.TarFile("etc/passwd", strings.Repeat("\n", 5<<20))}, want: "5242880 bytes"},
		{what: "link into a mount that hides a pipe", members: []harness.TarMember{harness.TarLink("etc/passwd", "../workspace/p"), fifo("workspace/p")},
			opts: []sandbox.CreateOption{sandbox.WithSource(sandbox.Dir(harness.HostDir(t, map[string]string{"p": "root:x:0:0::/:\n"})))}, want: "/etc/passwd (p"},
		{what: "link into a mount", members: []harness.TarMember{harness.TarLink("etc/passwd", "../workspace/p"), harness.TarFile("workspace/p", "root:x:0:0::/:\n")},
			opts: []sandbox.CreateOption{sandbox.WithSource(sandbox.Dir(harness.HostDir(t, map[string]string{"p": "root:x:0:0::/:\n"})))}, want: "in the mount at /workspace"},
		{what: "link below a mount that passes a pipe", members: []harness.TarMember{harness.TarLink("etc/passwd", "../workspace/link"), harness.TarLink("workspace/link", "../opt/p"), harness.TarFile("opt/p", "root:x:0:0::/:\n")},
			want: "in the mount at /workspace"},
	} {
		t.Run(tt.what, func(t *testing.T) {
			t.Parallel()
			ref, c, name := image(t, tt.members...), harness.NewClient(t), harness.UniqueName(t)
			harness.Remove(t, c, name)
			ctx, cancel := context.WithTimeout(t.Context(), harness.CallBound)
			defer cancel()
			sb, err := c.Create(ctx, append(tt.opts, sandbox.WithImage(ref), harness.Quick, sandbox.WithName(name))...)
			if tt.want == "" {
				if err != nil {
					t.Fatalf("Create: %v", err)
				}
				defer sb.Detach()
				sound(t, sb)
				return
			}
			if err == nil && tt.what == "link below a mount that passes a pipe" && harness.NewEngine(t).Podman() {
				defer sb.Detach() // Podman says where a link leads at last, and reads the file before it mounts anything
				sound(t, sb)
				return
			}
			if !errors.Is(err, sandbox.ErrInvalidArgument) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Create: got %v, want ErrInvalidArgument with %q", err, tt.want)
			}
			if left := harness.Objects(t, harness.NewEngine(t), harness.Named(name)); len(left) > 0 {
				t.Errorf("left %q", left)
			}
		})
	}
}

// Root inside replaces an account file while the sandbox runs.
func TestAnAccountFileReplacedFromInside(t *testing.T) {
	t.Parallel()
	sb := harness.CreateWith(t, harness.NewClient(t), nil)
	for what, replace := range map[string]string{
		"pipe": "mkfifo /etc/passwd", "large": "truncate -s 1G /etc/passwd", "link": "mkfifo /srv/p && ln -s ../srv/p /etc/passwd", "terminal": "ln -s /dev/ptmx /etc/passwd",
	} {
		t.Run(what, func(t *testing.T) {
			harness.Run(t, sb, "sh", "-c", "rm /etc/passwd && "+replace)
			ctx, cancel := context.WithTimeout(t.Context(), harness.CallBound)
			defer cancel()
			if _, err := sb.Stop(ctx); err != nil {
				t.Fatalf("Stop: %v", err)
			}
			if _, err := sb.Start(ctx); err != nil {
				t.Fatalf("Start: %v", err)
			}
			if got := harness.Run(t, sb, "id", "-un"); got != "root" {
				t.Errorf("the user is %q", got)
			}
		})
	}
}

// A container that the engine does not answer for costs one sweep its time, and nobody else's
// sandbox its sweep. It is in the engine's list alone, so that no other client finds it.
func TestASandboxThatTheEngineDoesNotAnswerFor(t *testing.T) {
	t.Parallel()
	name, id := harness.UniqueName(t), strings.Repeat("f00d", 16)
	labels := record.Base(record.RoleSandbox, record.NewNonce(), time.Now())
	labels[record.Name], labels[record.ID], labels[record.Persistent] = name, record.NewID(), "false"
	entry, err := json.Marshal(map[string]any{"Id": id, "Names": []string{"/" + record.ContainerName(name)}, "State": "exited", "Labels": labels, "Created": time.Now().Unix()})
	if err != nil {
		t.Fatal(err)
	}
	var asked atomic.Int32
	ctx, giveUp := context.WithCancel(t.Context())
	defer giveUp()
	host := harness.InFront(t, func(_ http.ResponseWriter, r *http.Request) bool {
		if strings.Contains(r.URL.Path, "/containers/"+id) {
			asked.Add(1)
			time.AfterFunc(2*time.Second, giveUp) // longer than a sweep blames no object for
			<-r.Context().Done()
			return true
		}
		return false
	}, func(r *http.Response) error {
		if !strings.HasSuffix(r.Request.URL.Path, "/containers/json") {
			return nil
		}
		body, err := io.ReadAll(r.Body)
		r.Body.Close()
		if rest, is := bytes.CutPrefix(bytes.TrimSpace(body), []byte("[")); is {
			if body = slices.Concat([]byte("["), entry); len(bytes.TrimSpace(rest)) > 1 {
				body = append(body, ',')
			}
			body = append(body, rest...)
		}
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
		r.Header.Set("Content-Length", strconv.Itoa(len(body)))
		return err
	})
	st := harness.NewStore(t, host)
	for range 2 {
		all, err := st.List(t.Context())
		if err != nil || !slices.ContainsFunc(all.Containers, func(c store.Listed) bool { return c.Container.ID == id }) {
			t.Fatalf("List: %v", err)
		}
		st.Sweep(ctx, all, nil)
		ctx = t.Context()
	}
	if n := asked.Load(); n != 1 {
		t.Errorf("the engine was asked %d times for what it did not answer", n)
	}
}
