package sandboxhttp_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/sandboxtest"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

func (a api) testExec(sb *sandbox.Sandbox) {
	t := a.t
	got := a.exec(sb.Name(), `{"command": ["sh", "-c", "cat; pwd; echo $A; echo err >&2; id -u; exit 7"], "stdin": "in\n", "env": {"A": "b c"}, "workdir": "/tmp", "user": "1000"}`, 200)
	last := got[len(got)-1]
	if got[0].Event != "started" || last.Event != "exit" || last.ExitCode != 7 || outputOf(got, "stdout") != "in\n/tmp\nb c\n1000\n" || outputOf(got, "stderr") != "err\n" {
		t.Errorf("events are %+v", got)
	}
	// Text is whole characters, whatever the pieces; what is none comes in base64.
	got = a.exec(sb.Name(), `{"command": ["sh", "-c", "printf '\\303'; sleep 0.2; printf '\\244x'; sleep 0.2; printf '\\377\\000'; printf '\\342\\202' >&2"]}`, 200)
	if out := outputOf(got, "stdout"); out != "äx\xff\x00" {
		t.Errorf("stdout is %q", out)
	}
	for _, e := range got {
		if strings.ContainsRune(e.Text, '\uFFFD') || e.Base64 != nil && utf8.Valid(e.Base64) {
			t.Errorf("event %+v: bytes are lost, or a character is not text", e)
		}
	}
	for body, want := range map[string]execEvent{
		`{"command": ["sh", "-c", "kill -9 $$"]}`:           {Event: "exit", ExitCode: 137, Signal: 9},
		`{"command": ["sleep", "1000"], "timeoutMs": 100}`:  {Event: "exit", ExitCode: 137, Signal: 9, TimedOut: true},
		`{"command": ["true"]}`:                             {Event: "exit"},
		`{"command": ["sh", "-c", "sleep 1000 & echo hi"]}`: {Event: "exit"},
	} {
		got := a.exec(sb.Name(), body, 200)
		if last := got[len(got)-1]; last.Event != want.Event || last.ExitCode != want.ExitCode || last.Signal != want.Signal || last.TimedOut != want.TimedOut {
			t.Errorf("%s ends with %+v, want %+v", body, last, want)
		}
	}
	sandboxtest.Run(t, sb, "sh", "-c", "echo true >/tmp/neither; chmod +x /tmp/neither")
	for body, want := range map[string]string{
		`{"command": ["no-such-program"]}`:             "command_not_found",
		`{"command": []}`:                              "invalid_argument",
		`{"command": ["/tmp/neither"]}`:                "invalid_argument", // a binary nor a script
		`{"command": ["true"], "user": "nobody-here"}`: "invalid_argument",
	} {
		var f failure
		if a.call("POST", "/sandboxes/"+sb.Name()+"/exec", body, 400, &f); f.Error.Code != want {
			t.Errorf("%s: %+v, want %s", body, f, want)
		}
	}

	// As curl shows it, live: each event comes before the next line is written.
	ctx, cancel := context.WithTimeout(t.Context(), harness.CallBound)
	defer cancel()
	cmd := exec.CommandContext(ctx, "curl", "-sN", "-H", "Accept: text/event-stream", "-H", "Content-Type: application/json", "-d",
		`{"command": ["sh", "-c", "for i in 1 2 3; do echo $i; until rm go$i 2>/dev/null; do sleep 0.02; done; done"]}`, a.url+"/sandboxes/"+sb.Name()+"/exec")
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	events, stop := eventsOf(out)
	defer stop()
	want := []string{`started {"event":"started"}`, `stdout {"event":"stdout","text":"1\n"}`, `stdout {"event":"stdout","text":"2\n"}`, `stdout {"event":"stdout","text":"3\n"}`, `exit {"event":"exit","exitCode":0}`}
	for i, w := range want {
		e, ok := <-events
		if got := e.kind + " " + e.data; !ok || got != w {
			t.Fatalf("curl: event %d is %s, want %s", i, got, w)
		}
		if i > 0 && i < 4 {
			sandboxtest.Run(t, sb, "touch", "go"+string('0'+rune(i)))
		}
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("curl: %v", err)
	}
}

// eventsOf reads Server-Sent Events one by one.
func eventsOf(r io.Reader) (<-chan event, func()) {
	all, done := make(chan event), make(chan struct{})
	go func() {
		defer close(all)
		var e event
		eachLine(r, func(line string) bool {
			key, value, _ := strings.Cut(line, ": ")
			switch key {
			case "event":
				e.kind = value
			case "data":
				e.data = value
			case "":
				select {
				case all <- e:
				case <-done:
					return false
				}
				e = event{}
			}
			return true
		})
	}()
	return all, func() { close(done) }
}

func (a api) testDetached(sb *sandbox.Sandbox) {
	t := a.t
	got := a.exec(sb.Name(), `{"command": ["sh", "-c", "echo from afar; exit 5"], "detached": true}`, 202)
	if len(got) != 1 || got[0].ID == "" {
		t.Fatalf("detached: %+v", got)
	}
	process, err := sb.Process(t.Context(), got[0].ID)
	if err != nil {
		t.Fatal(err)
	}
	process.Wait()
	var list []struct {
		ID       string
		ExitCode *int
	}
	a.call("GET", "/sandboxes/"+sb.Name()+"/processes", "", 200, &list)
	if i := slices.IndexFunc(list, func(p struct {
		ID       string
		ExitCode *int
	}) bool {
		return p.ID == got[0].ID
	}); i < 0 || list[i].ExitCode == nil || *list[i].ExitCode != 5 {
		t.Errorf("processes: %+v, want %s with exit code 5", list, got[0].ID)
	}
	log := func(id, query string) (lines []string) {
		resp := a.send("GET", "/sandboxes/"+sb.Name()+"/logs?command="+id+query, nil)
		defer resp.Body.Close()
		all, _ := events(t, resp.Body, 0)
		for _, e := range all {
			lines = append(lines, e.data)
		}
		return lines
	}
	// The engine may write the line after the command has ended.
	harness.Eventually(t, "its log", func() bool {
		return slices.Equal(log(got[0].ID, "&follow=0"), []string{"from afar", "running"})
	})
	// What another command has written since does not count.
	other := a.exec(sb.Name(), `{"command": ["seq", "20"], "detached": true}`, 202)
	harness.Eventually(t, "the log of another command", func() bool { return len(log(other[0].ID, "&follow=0")) == 21 })
	if lines := log(got[0].ID, "&follow=0&tail=1"); !slices.Equal(lines, []string{"from afar", "running"}) {
		t.Errorf("the last line of the first command: %q", lines)
	}
	resp := a.send("GET", "/sandboxes/"+sb.Name()+"/logs?tail=2&command="+other[0].ID, nil)
	defer resp.Body.Close()
	if all, _ := events(t, resp.Body, 2); len(all) != 2 || all[0].data != "19" || all[1].data != "20" {
		t.Errorf("the last lines of the other command, which are followed: %+v", all)
	}
	var tried []struct{ Protocol string }
	a.call("GET", "/sandboxes/"+sb.Name()+"/egress", "", 200, &tried)
}

// A command whose client has gone ends.
func (a api) testDisconnect(sb *sandbox.Sandbox) {
	t := a.t
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, "POST", a.url+"/sandboxes/"+sb.Name()+"/exec", strings.NewReader(`{"command": ["sh", "-c", "echo $$; exec sleep 1000"]}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var e execEvent
	for d := json.NewDecoder(resp.Body); e.Event != "stdout"; {
		if err := d.Decode(&e); err != nil {
			t.Fatal(err)
		}
	}
	pid := strings.TrimSpace(e.Text)
	if out, err := sb.Command(t.Context(), "test", "-e", "/proc/"+pid).CombinedOutput(); err != nil {
		t.Fatalf("process %q: %v %s", pid, err, out)
	}
	cancel()
	awaitEnd(t, sb, pid)
}

// awaitEnd waits until there is no such process.
func awaitEnd(t *testing.T, sb *sandbox.Sandbox, pid string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), harness.CallBound)
	defer cancel()
	for sb.Command(ctx, "test", "-e", "/proc/"+pid).Run() == nil {
		time.Sleep(20 * time.Millisecond)
	}
	if ctx.Err() != nil {
		t.Errorf("process %s is there two minutes after its client has gone", pid)
	}
}

// A command that the kernel kills for memory, or that ends with its session, says so in its last event,
// and a detached one in the list.
func TestExecSaysWhatEndedTheCommand(t *testing.T) {
	enginetest.Need(t)
	t.Parallel()
	a, sb := newAPI(t), sandboxtest.New(t, sandbox.WithMemory(64<<20))
	const fill = `["dd", "if=/dev/zero", "of=/dev/null", "bs=256M", "count=1"]`
	got := a.exec(sb.Name(), `{"command": `+fill+`}`, 200)
	if last := got[len(got)-1]; last.Event != "exit" || last.ExitCode != 137 || last.Signal != 9 || !last.OutOfMemory || last.Error.Code != "" {
		t.Errorf("a command that was killed for memory ends with %+v", last)
	}
	var started execEvent
	a.call("POST", "/sandboxes/"+sb.Name()+"/exec", `{"command": `+fill+`, "detached": true}`, 202, &started)
	harness.Eventually(t, "the list says that the command was killed for memory", func() bool {
		var list []struct {
			ID          string
			Running     bool
			OutOfMemory bool
		}
		a.call("GET", "/sandboxes/"+sb.Name()+"/processes", "", 200, &list)
		return len(list) == 1 && list[0].ID == started.ID && !list[0].Running && list[0].OutOfMemory
	})

	// In another sandbox: the engine does not tell the end of a session that had to be killed, after a
	// command was killed for memory, from a session that was killed for memory.
	sb = sandboxtest.New(t, sandbox.WithStopTimeout(time.Second))
	ended := make(chan execEvent, 2)
	for _, command := range []string{"exec sleep 1000", "trap 'sleep 1000' TERM; while :; do sleep 0.1; done"} {
		go func() {
			got := a.exec(sb.Name(), `{"command": ["sh", "-c", "`+command+`"]}`, 200)
			ended <- got[len(got)-1]
		}()
	}
	harness.Eventually(t, "two commands run", func() bool {
		out, err := sb.Command(t.Context(), "sh", "-c", "cat /proc/[0-9]*/cmdline").Output()
		return err == nil && strings.Contains(string(out), "1000") && strings.Contains(string(out), "trap")
	})
	if _, err := sb.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		last := <-ended
		if last.Error.Code != "session_lost" || !strings.Contains(last.Error.Message, "stopped") {
			t.Errorf("a command whose session was stopped ends with %+v, want session_lost", last)
		}
	}
}
