package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"github.com/seed-1a2d6d8f/sandbox"
)

// source creates a sandbox to fork, with 100 files and those that the script creates.
func (r *rig) source(ctx context.Context, script string, opts ...sandbox.CreateOption) (*sandbox.Sandbox, error) {
	sb, err := r.create(ctx, opts...)
	if err != nil {
		return nil, err
	}
	return sb, sb.Command(ctx, "sh", "-ec", "for i in $(seq 100); do head -c 4096 /dev/urandom >$i; done; "+script).Run()
}

// outsideToo gives a sandbox files outside of its workspace.
const outsideToo = "mkdir /opt/tool; cp -r . /opt/tool; echo 1 >/etc/tool.conf"

// forkSmall compares forks of one running sandbox with a hundred files, until the first command's
// exit, with an empty sandbox.
func forkSmall(ctx context.Context, r *rig) (float64, error) {
	return r.forkVsCreate(ctx, "fork", func(script string) (func() (*sandbox.Sandbox, error), error) {
		source, err := r.source(ctx, script)
		return func() (*sandbox.Sandbox, error) { return source, nil }, err
	})
}

// forkFirst is forkSmall for the first fork of each of several sandboxes.
func forkFirst(ctx context.Context, r *rig) (float64, error) {
	return r.forkVsCreate(ctx, "first fork", func(script string) (func() (*sandbox.Sandbox, error), error) {
		return func() (*sandbox.Sandbox, error) { return r.source(ctx, script) }, nil
	})
}

// forkVsCreate compares forks with an empty sandbox. sources returns what returns the source of each. The
// result is the greater median, of sources with files in the workspace alone and outside, too.
func (r *rig) forkVsCreate(ctx context.Context, what string, sources func(script string) (func() (*sandbox.Sandbox, error), error)) (ratio float64, err error) {
	if _, err := r.warm(ctx); err != nil {
		return 0, err
	}
	for _, script := range []string{outsideToo, "true"} {
		where := "100 files in the workspace"
		if script == outsideToo {
			where += " and as many outside"
		}
		source, err := sources(script)
		if err != nil {
			return 0, err
		}
		ours, theirs, ratios, err := pairs(ctx, 1, 5, func() (float64, error) {
			from, err := source()
			if err != nil {
				return 0, err
			}
			return used(ctx, func() (*sandbox.Sandbox, error) { return r.client.Fork(ctx, from.Name(), r.tags()) })()
		}, used(ctx, func() (*sandbox.Sandbox, error) { return r.create(ctx) }))
		if err != nil {
			return 0, err
		}
		note("%s of %s: %v ms to the first command's exit, an empty sandbox %v ms, ratios %v", what, where, ours, theirs, ratios)
		ratio = max(ratio, ratios.median())
	}
	return ratio, nil
}

// forkGoSrc compares the time that a fork of a running sandbox with Go's source in its
// workspace takes longer than Create with cp -a of that source.
func forkGoSrc(ctx context.Context, r *rig) (float64, error) {
	tree, err := r.tree(goSrc)
	if err != nil {
		return 0, err
	}
	source, err := r.create(ctx, sandbox.WithSource(sandbox.Dir(tree)))
	if err != nil {
		return 0, err
	}
	return r.beyondCreate(ctx, "fork of "+goSrc.what, tree, func() error {
		_, err := r.client.Fork(ctx, source.Name(), r.tags())
		return err
	})
}

// createFromSnapshot compares a sandbox from a snapshot of 1 GiB, until the first command's
// exit, with an empty sandbox.
func createFromSnapshot(ctx context.Context, r *rig) (float64, error) {
	if _, err := r.warm(ctx); err != nil {
		return 0, err
	}
	var ratio float64
	for _, script := range []string{outsideToo, "true"} {
		source, err := r.source(ctx, script+"; head -c 1G /dev/urandom >big")
		if err != nil {
			return 0, err
		}
		snap, err := source.Snapshot(ctx, sandbox.SnapshotOptions{})
		if err != nil {
			return 0, err
		}
		r.snapshots = append(r.snapshots, snap.ID)
		ours, theirs, ratios, err := pairs(ctx, 1, 5,
			used(ctx, func() (*sandbox.Sandbox, error) {
				return r.create(ctx, sandbox.WithSource(sandbox.FromSnapshot(snap.ID)))
			}),
			used(ctx, func() (*sandbox.Sandbox, error) { return r.create(ctx) }))
		if err != nil {
			return 0, err
		}
		what, how := "1 GiB", "sharing its files"
		if script == outsideToo {
			what += " and 100 files outside of the workspace"
		}
		all, err := r.client.ListSnapshots(ctx, sandbox.ListSnapshotsOptions{Sandbox: source.Name()})
		if err != nil {
			return 0, err
		}
		if len(all) != 1 || len(all[0].Volumes) == 0 {
			how = "with a copy of its files, because this engine mounts no overlays"
		}
		note("from a snapshot of %s, %s: %v ms to the first command's exit, an empty sandbox %v ms, ratios %v", what, how, ours, theirs, ratios)
		ratio = ratios.median() // the figure is the last one, with only the workspace
	}
	return ratio, nil
}

// fork8 compares ForkN of eight with one fork.
func fork8(ctx context.Context, r *rig) (float64, error) {
	source, err := r.source(ctx, outsideToo)
	if err != nil {
		return 0, err
	}
	eight, one, ratios, err := pairs(ctx, 1, 5,
		rested(ctx, func() error { return second(r.client.ForkN(ctx, source.Name(), 8, r.tags())) }),
		rested(ctx, func() error { return second(r.client.Fork(ctx, source.Name(), r.tags())) }))
	if err != nil {
		return 0, err
	}
	note("ForkN of eight: %v ms, one fork %v ms", eight, one)
	return ratios.median(), nil
}

// commitSkipped counts the commits of a fork of a sandbox that has changed no file of its
// image. The client does not get UpperDir, the directory of a container's layer: with it the
// library never commits.
func commitSkipped(ctx context.Context, r *rig) (commits float64, err error) {
	count, err := r.count("UpperDir")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, count.close()) }()
	for _, script := range []string{outsideToo, "true"} {
		source, err := r.source(ctx, script)
		if err != nil {
			return 0, err
		}
		before := count.now()
		if _, err := count.client.Fork(ctx, source.Name(), r.tags()); err != nil {
			return 0, err
		}
		calls := 0
		for call, n := range count.now() {
			calls += n - before[call]
		}
		const commit = "POST /commit"
		commits = float64(count.now()[commit] - before[commit])
		what := "nothing outside of its workspace"
		if script == outsideToo {
			what = "100 files outside of its workspace"
		}
		note("fork of a sandbox with %s: %d calls, of them %.0f commits", what, calls, commits)
	}
	return commits, nil
}

// forkPause measures the longest time that a program in the source could not write to a file
// during a fork. It is that of a small source; that of one with 1 GiB is reported beside it.
func forkPause(ctx context.Context, r *rig) (float64, error) {
	source, err := r.source(ctx, outsideToo)
	if err != nil {
		return 0, err
	}
	longest, stop, err := longestStall(ctx, source)
	if err != nil {
		return 0, err
	}
	defer stop()
	forked, created, _, err := pairs(ctx, 1, 9,
		during(longest, func() error { return second(r.client.Fork(ctx, source.Name(), r.tags())) }),
		during(longest, func() error { return second(r.create(ctx)) }))
	if err != nil {
		return 0, err
	}
	note("the source's longest stall while it is forked: %v ms, while another sandbox is created %v ms", forked, created)
	return forked.median(), r.noteLargePause(ctx)
}

// forkPauseVsEngine compares the longest stall of a small source during a fork with that during a
// pause and unpause by the engine.
func forkPauseVsEngine(ctx context.Context, r *rig) (float64, error) {
	source, err := r.source(ctx, outsideToo)
	if err != nil {
		return 0, err
	}
	longest, stop, err := longestStall(ctx, source)
	if err != nil {
		return 0, err
	}
	defer stop()
	paused := func() error {
		for _, verb := range []string{"pause", "unpause"} {
			if err := r.api.call(ctx, http.MethodPost, "/containers/"+container(source)+"/"+verb, nil, nil); err != nil {
				return err
			}
		}
		return nil
	}
	forked, bare, ratios, err := pairs(ctx, 1, 9,
		during(longest, func() error { return second(r.client.Fork(ctx, source.Name(), r.tags())) }), during(longest, paused))
	if err != nil {
		return 0, err
	}
	note("the source's longest stall while it is forked: %v ms, while the engine pauses and unpauses it %v ms", forked, bare)
	return ratios.median(), nil
}

// noteLargePause reports the longest stalls of a source with 1 GiB.
func (r *rig) noteLargePause(ctx context.Context) error {
	tree, err := r.tree(gibibyte)
	if err != nil {
		return err
	}
	source, err := r.create(ctx, sandbox.WithSource(sandbox.Dir(tree)))
	if err != nil {
		return err
	}
	longest, stop, err := longestStall(ctx, source)
	if err != nil {
		return err
	}
	defer stop()
	stall := during(longest, func() error {
		sb, err := r.client.Fork(ctx, source.Name(), r.tags())
		if err != nil {
			return err
		}
		return second(sb.Delete(ctx, sandbox.DeleteOptions{Volumes: true}))
	})
	var stalls samples
	for range 5 {
		ms, err := stall()
		if err != nil {
			return err
		}
		stalls = append(stalls, ms)
	}
	note("the longest stall of a source with 1 GiB while it is forked: %v ms", stalls)
	return nil
}

// during measures the longest stall while do runs.
func during(longest func() (float64, error), do func() error) func() (float64, error) {
	return func() (float64, error) {
		if _, err := longest(); err != nil {
			return 0, err
		}
		if err := do(); err != nil {
			return 0, err
		}
		return longest()
	}
}

// longestStall starts a program in a sandbox that writes to a file all the time. longest
// returns the longest time, in ms since its last call, that a write took; stop ends the
// program.
func longestStall(ctx context.Context, sb *sandbox.Sandbox) (longest func() (float64, error), stop func(), err error) {
	const program = `
		const fs = require("fs"), f = fs.openSync("/workspace/log", "a");
		let last = performance.now(), longest = 0;
		process.stdin.on("data", () => { console.log(longest); longest = 0; });
		(function write() {
			fs.writeSync(f, "x");
			const now = performance.now();
			longest = Math.max(longest, now - last); last = now;
			setTimeout(write, 0);
		})();`
	writer := sb.Command(ctx, "node", "-e", program)
	in, err := writer.StdinPipe()
	if err != nil {
		return nil, nil, err
	}
	pipe, err := writer.StdoutPipe()
	if err != nil {
		return nil, nil, err
	}
	if err := writer.Start(); err != nil {
		return nil, nil, err
	}
	stop = func() {
		writer.Kill()
		writer.Wait()
	}
	out := bufio.NewReader(pipe)
	longest = func() (float64, error) {
		if _, err := io.WriteString(in, "?"); err != nil {
			return 0, err
		}
		line, err := out.ReadString('\n')
		if err != nil {
			return 0, err
		}
		return strconv.ParseFloat(strings.TrimSpace(line), 64)
	}
	return longest, stop, nil
}

// counted counts a client's calls to the engine.
type counted struct {
	*front

	mu    sync.Mutex
	calls map[string]int // by method and path, without names
}

// count returns a client whose calls are counted. The field hidden is renamed in replies, as
// if the engine did not have it.
func (r *rig) count(hidden string) (*counted, error) {
	c := &counted{calls: map[string]int{}}
	var err error
	c.front, err = r.inFront(func(resp *http.Response) error {
		c.add(resp.Request)
		if resp.StatusCode != http.StatusOK || !strings.HasSuffix(resp.Request.URL.Path, "/json") {
			return nil
		}
		text, err := io.ReadAll(resp.Body)
		text = bytes.ReplaceAll(text, []byte(`"`+hidden+`"`), []byte(`"`+strings.Repeat("x", len(hidden))+`"`))
		resp.Body = io.NopCloser(bytes.NewReader(text))
		return err
	})
	return c, err
}

func (c *counted) add(req *http.Request) {
	var path []string
	for i, part := range strings.Split(req.URL.Path, "/") {
		if i != 1 && i != 3 { // version and name
			path = append(path, part)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls[req.Method+" "+strings.Join(path, "/")]++
}

func (c *counted) now() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.calls)
}
