package exec_test

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// records is a log in JSON that several goroutines write.
type records struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (r *records) Write(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.b.Write(b)
}

func TestAuditHasEachCommandAndNoSecret(t *testing.T) {
	t.Parallel()
	log := new(records)
	c := harness.NewClient(t, sandbox.WithAudit(slog.New(slog.NewJSONHandler(log, nil))))
	secret := "secret-" + record.NewID()
	sb, err := c.Create(t.Context(), harness.Quick, sandbox.WithEnv(map[string]string{"SECRET": secret}))
	if err != nil {
		t.Fatal(err)
	}
	defer sb.Close()
	cmd := sb.Command(t.Context(), "sh", "-c", "cat; exit 3", secret)
	cmd.Stdin, cmd.User, cmd.Env = strings.NewReader(secret), "65534", []string{"OTHER=" + secret}
	if out, err := cmd.Output(); string(out) != secret || harness.ExitCode(err) != 3 {
		t.Fatalf("%q, %v", out, err)
	}
	harness.Run(t, sb, "true")
	if err := sb.Command(t.Context(), "no-such-program", secret).Run(); err == nil {
		t.Fatal("it ran")
	}
	ctx, cancel := context.WithCancel(t.Context())
	hung := sb.Command(ctx, "sleep", "1000")
	if err := hung.Start(); err != nil {
		t.Fatal(err)
	}
	cancel()
	hung.Wait()
	work := sb.Command(t.Context(), "echo", "done")
	work.Detached = true
	if err := work.Run(); err != nil {
		t.Fatal(err)
	}

	type entry struct {
		Level, Msg, Sandbox, ID, Command, User, Program string
		Args, In, Out                                   int
		Duration                                        int64
		Detached                                        bool
		Exit                                            *int
		Error                                           string
	}
	log.mu.Lock()
	defer log.mu.Unlock()
	if strings.Contains(log.b.String(), secret) {
		t.Errorf("the log has the secret: %s", &log.b)
	}
	var got []entry
	for line := range strings.Lines(log.b.String()) {
		var e entry
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatal(err)
		}
		if e.Level != "INFO" || e.Msg != "command" || e.Sandbox != sb.Name() || e.ID != sb.ID() || e.Command == "" || e.Duration <= 0 {
			t.Errorf("%s", line)
		}
		got = append(got, e)
	}
	if len(got) != 5 {
		t.Fatalf("%d records, want 5: %+v", len(got), got)
	}
	for i, want := range []entry{
		{Program: "sh", Args: 3, User: "65534", In: len(secret), Out: len(secret), Exit: new(3)},
		{Program: "true", User: "root", Exit: new(0)},
		{Program: "no-such-program", Args: 1, User: "root", Error: "not_exist"},
		{Program: "sleep", Args: 1, User: "root", Error: "canceled"},
		{Program: "echo", Args: 1, User: "root", Out: 5, Detached: true, Exit: new(0)},
	} {
		e := got[i]
		if e.Program != want.Program || e.Args != want.Args || e.User != want.User || e.In != want.In || e.Out != want.Out || e.Detached != want.Detached ||
			e.Error != want.Error || (e.Exit == nil) != (want.Exit == nil) || e.Exit != nil && *e.Exit != *want.Exit {
			t.Errorf("record %d: %+v, want %+v", i, e, want)
		}
	}
	if _, err := sandbox.NewClient(sandbox.WithAudit(nil)); err == nil {
		t.Error("WithAudit(nil) is taken")
	}
}
