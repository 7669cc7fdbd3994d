package sandboxhttp_test

import (
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/sandboxhttp"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// The answers to requests that copy say what was left out, and later ones do not.
func TestAnswersReportWhatWasLeftOut(t *testing.T) {
	enginetest.Need(t)
	t.Parallel()
	dir := harness.HostDir(t, map[string]string{"f": "x"})
	l, err := net.Listen("unix", filepath.Join(dir, "sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	a := newAPI(t, sandboxhttp.WithHostFiles())
	name := harness.UniqueName(t)
	a.remove(name)
	var answer struct{ Copied *sandbox.CopyReport }
	a.call("POST", "/sandboxes", `{"name": "`+name+`", "source": {"directory": "`+dir+`"}}`, 201, &answer)
	want := &sandbox.CopyReport{Files: 1, Directories: 1, Bytes: 1, Skipped: []sandbox.Skipped{{Path: "/workspace/sock", Reason: "a socket"}}}
	if diff := cmp.Diff(want, answer.Copied); diff != "" {
		t.Errorf("create (-want +got):\n%s", diff)
	}
	answer.Copied = nil
	if a.call("GET", "/sandboxes/"+name, "", 200, &answer); answer.Copied != nil {
		t.Errorf("details have %+v", answer.Copied)
	}
	a.exec(name, `{"command": ["sh", "-c", "node -e 'require(\"net\").createServer().listen(\"/srv/s\", () => process.kill(process.pid, 9))'; true"]}`, 200)
	var snap sandbox.Snapshot
	a.call("POST", "/sandboxes/"+name+"/snapshots", "{}", 201, &snap)
	if snap.Copied == nil || len(snap.Copied.Skipped) != 1 || !strings.HasPrefix(snap.Copied.Skipped[0].String(), "/srv/s: a socket") {
		t.Errorf("the snapshot has %+v", snap.Copied)
	}
	a.call("DELETE", "/snapshots/"+snap.ID, "", 204, nil)
}
