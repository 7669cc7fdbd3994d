package sandbox_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
)

// A program follows what a server inside writes, until it has seen enough.
func ExampleSandbox_Logs() {
	ctx := context.Background()
	sb, err := sandbox.Create(ctx, sandbox.WithCommand("sh", "-c", "echo listening; echo careful >&2; exec sleep 1000"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sb.Close()
	for line, err := range sb.Logs(ctx, sandbox.LogOptions{Tail: 100, Follow: true}) {
		if err != nil {
			fmt.Println(err)
			return
		}
		if line.Stream == sandbox.Stdout {
			fmt.Println(line.Text)
			break
		}
	}
	// Output: listening
}

// Settings can be read back, and those that wait for the next session are named.
func ExampleSettings() {
	ctx := context.Background()
	sb, err := sandbox.Create(ctx, sandbox.WithTimeout(time.Hour), sandbox.WithEnv(map[string]string{"TOKEN": "secret"}))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sb.Close()
	if err := sb.Update(ctx, sandbox.WithTimeout(time.Minute)); err != nil {
		fmt.Println(err)
		return
	}
	st, err := sb.Status(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	set := st.Settings
	fmt.Println(*set.VCPUs, *set.MemoryBytes>>20, *set.Workdir, st.Env, *set.Timeout, st.Pending)
	// Output: 1 2048 /workspace [TOKEN] 1m0s [timeout]
}

// A program takes the settings of its sandboxes from a file.
func ExampleWithSettings() {
	ctx := context.Background()
	file := `{"command": ["sleep", "infinity"], "env": {"LANG": "C"}, "network": "deny-all", "timeoutMs": 60000}`
	var set sandbox.Settings
	if err := json.Unmarshal([]byte(file), &set); err != nil {
		fmt.Println(err)
		return
	}
	sb, err := sandbox.Create(ctx, sandbox.WithSettings(set))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sb.Close()
	st, err := sb.Summary(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(st.Settings.Command, st.Env, st.Network, *st.Settings.Timeout)
	// Output: [sleep infinity] [LANG] deny-all 1m0s
}

// A platform gives a sandbox more room, another label and more time, while it runs.
// What is wrong with an update whatever the sandbox is needs no engine to be found.
func ExampleClient_CheckUpdate() {
	client, err := sandbox.NewClient()
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()
	err = client.CheckUpdate(sandbox.WithPorts(70000))
	fmt.Println(errors.Is(err, sandbox.ErrInvalidArgument), err)
	// Output: true sandbox: update: Invalid argument: WithPorts: 70000 is not a port: use 1 to 65535
}

func ExampleSandbox_Update() {
	ctx := context.Background()
	sb, err := sandbox.Create(ctx, sandbox.WithTimeout(time.Minute), sandbox.WithMemory(128<<20))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sb.Close()
	err = sb.Update(ctx, sandbox.WithMemory(256<<20), sandbox.WithTags(map[string]string{"plan": "large"}))
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := sb.ExtendTimeout(ctx, time.Hour); err != nil {
		fmt.Println(err)
		return
	}
	st, err := sb.Status(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(st.Usage.MemoryLimit>>20, "MiB", st.Tags["plan"], st.ExpiresAt.Sub(st.StartedAt))
	// Output: 256 MiB large 1h1m0s
}

// Single settings are taken away, and a sandbox that turned out well is kept.
func ExampleWithoutEnv() {
	ctx := context.Background()
	sb, err := sandbox.Create(ctx, sandbox.WithEnv(map[string]string{"DEBUG": "1", "LANG": "C"}),
		sandbox.WithTags(map[string]string{"trial": "yes"}))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sandbox.Delete(ctx, sb.ID(), sandbox.DeleteOptions{Volumes: true})
	defer sb.Close() // keeps it
	err = sb.Update(ctx, sandbox.WithPersistent(true), sandbox.WithoutEnv("DEBUG"), sandbox.WithoutTag("trial"))
	if err != nil {
		fmt.Println(err)
		return
	}
	st, err := sb.Status(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(*st.Settings.Persistent, st.Env, st.Tags)
	// Output: true [LANG] map[]
}

// The mounts of one sandbox are given to another: a copy is shared as the volume that it became.
func ExampleMount_Kind() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "project")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	first, err := sandbox.Create(ctx, sandbox.WithMounts(sandbox.Mount{Source: dir, Target: "/project"}))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer first.Close()
	second, err := sandbox.Create(ctx, sandbox.WithMounts(first.Mounts()...))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer second.Close()
	fmt.Println(first.Mounts()[0].Kind(), second.Mounts()[0].Kind())
	// Output: copy volume
}

// A source without files of its own outside of volumes is forked with another image.
func ExampleFork_image() {
	ctx := context.Background()
	sb, err := sandbox.Create(ctx, sandbox.WithImage("node:20-bookworm"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sb.Close()
	if err := sb.WriteFile(ctx, "main.js", []byte("console.log(1)"), 0o644); err != nil {
		fmt.Println(err)
		return
	}
	fork, err := sandbox.Fork(ctx, sb.Name(), sandbox.WithImage(sandbox.DefaultImage))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer fork.Close()
	text, err := fork.ReadFile(ctx, "main.js")
	fmt.Println(string(text), err)
	// Output: console.log(1) <nil>
}

// Whoever comes back finds the detached commands, and how those ended that did, also after the
// session.
func ExampleSandbox_Processes() {
	ctx := context.Background()
	sb, err := sandbox.Create(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sb.Close()
	cmd := sb.Command(ctx, "sh", "-c", "exit 3")
	cmd.Detached = true
	cmd.Run() // its error is the exit code
	if _, err := sb.Stop(ctx); err != nil {
		fmt.Println(err)
		return
	}
	list, err := sb.Processes(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, p := range list {
		fmt.Println(p.ID == cmd.ID(), p.Path, p.Running, *p.ExitCode)
	}
	// Output: true sh false 3
}

// A platform pays for sessions that are used: this one ends ten minutes after the last command,
// and the next one resumes it.
func ExampleWithIdleTimeout() {
	ctx := context.Background()
	name := example("idle")
	sb, err := sandbox.GetOrCreate(ctx, name, sandbox.WithIdleTimeout(10*time.Minute))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sandbox.Delete(ctx, name, sandbox.DeleteOptions{Volumes: true})
	defer sb.Close()
	if err := sb.Command(ctx, "true").Run(); err != nil {
		fmt.Println(err)
		return
	}
	st, err := sb.Status(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(*st.Settings.IdleTimeout, time.Until(st.IdleExpiresAt).Round(time.Minute))

	// A server that a command has left inside need not keep it.
	if err := sb.Update(ctx, sandbox.WithIdleTimeout(time.Minute), sandbox.IgnoreDetached()); err != nil {
		fmt.Println(err)
	}
	// Output: 10m0s 10m0s
}

// Who runs what is in a log of its own. Arguments and environments are not.
func ExampleWithAudit() {
	audit := &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		switch a.Key { // what is the same in each run
		case slog.LevelKey, slog.MessageKey, "user", "program", "args", "exit":
			return a
		}
		return slog.Attr{}
	}}
	client, err := sandbox.NewClient(sandbox.WithAudit(slog.New(slog.NewTextHandler(os.Stdout, audit))))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()
	ctx := context.Background()
	sb, err := client.Create(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sb.Close()
	if err := sb.Command(ctx, "sh", "-c", "exit 0").Run(); err != nil {
		fmt.Println(err)
	}
	// Output: level=INFO msg=command user=root program=sh args=2 exit=0
}

// Any logger of package slog will do.
func ExampleWithAudit_json() {
	client, err := sandbox.NewClient(sandbox.WithAudit(slog.New(slog.NewJSONHandler(os.Stderr, nil))))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()
	// Output:
}

// Stop keeps the files, and Start goes on with them.
func ExampleSandbox_Stop() {
	ctx := context.Background()
	sb, err := sandbox.Create(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sb.Close()
	if err := sb.WriteFile(ctx, "notes", []byte("kept"), 0o644); err != nil {
		fmt.Println(err)
		return
	}
	stopped, err := sb.Stop(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	started, err := sb.Start(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	notes, err := sb.ReadFile(ctx, "notes")
	fmt.Println(stopped, started, string(notes), err)
	// Output: stopped running kept <nil>
}

// Start of a running sandbox changes nothing.
func ExampleSandbox_Start() {
	ctx := context.Background()
	sb, err := sandbox.Get(ctx, existing())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sb.Detach()
	fmt.Println(sb.Start(ctx))
	// Output: running <nil>
}

// A job that takes longer than expected gets another hour.
func ExampleSandbox_ExtendTimeout() {
	ctx := context.Background()
	sb, err := sandbox.Create(ctx, sandbox.WithTimeout(time.Hour))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sb.Close()
	if err := sb.ExtendTimeout(ctx, time.Hour); err != nil {
		fmt.Println(err)
		return
	}
	st, err := sb.Status(ctx)
	fmt.Println(time.Until(st.ExpiresAt) > 90*time.Minute, err)
	// Output: true <nil>
}

// Inspect looks at a sandbox without resuming it.
func ExampleInspect() {
	ctx := context.Background()
	st, err := sandbox.Inspect(ctx, existing())
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(st.State, st.Image, st.Workspace.SizeBytes >= 0, st.LogsEndpoint == "/sandboxes/"+st.ID+"/logs")
	// Output: running node:20-bookworm true true
}

// A program that ends leaves the session running for the next one.
func ExampleSandbox_Detach() {
	ctx := context.Background()
	sb, err := sandbox.Get(ctx, existing())
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := sb.Detach(); err != nil {
		fmt.Println(err)
	}
	err = sb.Command(ctx, "true").Run()
	fmt.Println(errors.Is(err, sandbox.ErrClosed))
	// Output: true
}

// A status says how a session goes, and after its end why it ended. It resumes nothing.
func ExampleSandbox_Summary() {
	ctx := context.Background()
	sb, err := sandbox.Create(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sb.Close()

	st, err := sb.Summary(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(st.State, st.Usage == nil)
	// Output: running true
}

func ExampleSandbox_Status() {
	ctx := context.Background()
	name := example("status")
	defer forget(name)
	sb, err := sandbox.Create(ctx, sandbox.WithName(name), sandbox.WithTimeout(time.Hour))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sb.Close()

	st, err := sb.Status(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(st.State, st.Usage.MemoryLimit>>20, time.Until(st.ExpiresAt) > 50*time.Minute)
	if _, err := sb.Stop(ctx); err != nil {
		fmt.Println(err)
		return
	}
	st, err = sb.Status(ctx)
	fmt.Println(st.State, st.Reason, st.Uptime, st.Usage == nil, err)
	// Output:
	// running 2048 true
	// stopped stopped 0s true <nil>
}

// Without DeleteOptions.Volumes the volumes stay, and another sandbox can mount them.
func ExampleSandbox_Delete() {
	ctx := context.Background()
	sb, err := sandbox.Create(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sb.Close()

	report, err := sb.Delete(ctx, sandbox.DeleteOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, v := range report.Volumes {
		fmt.Println(v.Name == "agent-sandbox-"+sb.ID(), v.Status)
		if _, err := sandbox.DeleteVolume(ctx, v.Name, sandbox.DeleteVolumeOptions{}); err != nil {
			fmt.Println(err)
		}
	}
	_, err = sb.Delete(ctx, sandbox.DeleteOptions{})
	fmt.Println(errors.Is(err, sandbox.ErrNotFound))
	// Output:
	// true preserved
	// true
}

// A dashboard lists the sandboxes after an EventSync, and then follows the events.
func ExampleWatch() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	for event, err := range sandbox.Watch(ctx, sandbox.WatchOptions{}) {
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(event.Kind)
		break
	}
	// Output: sync
}
