package fork_test

import (
	"strconv"
	"strings"
	"testing"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// A writer adds the same numbers to a file in the workspace and to one outside
// of it, the first always first. Each fork taken meanwhile holds one moment: the files are
// equal, or the first is ahead by the number that was being written.
func TestForksOfABusySandboxHoldOneMoment(t *testing.T) {
	t.Parallel()
	forksOfABusySandbox(t, 2)
}

func TestForksOfABusySandboxHoldOneMomentSoak(t *testing.T) {
	harness.Soak(t)
	forksOfABusySandbox(t, 20)
}

// lockstep writes the numbers, and how many milliseconds at the most lay between two.
const lockstep = `
	const fs = require('fs'); const a = fs.openSync('/workspace/n', 'a'), b = fs.openSync('/var/n', 'a');
	const nap = new Int32Array(new SharedArrayBuffer(4)); let last = performance.now(), stall = 0;
	for (let i = 1; ; i++) {
		fs.writeSync(a, i + '\n'); fs.writeSync(b, i + '\n');
		if (i === 1) console.log('on');
		if (i % 16 === 0) Atomics.wait(nap, 0, 0, 1);
		const now = performance.now();
		if (now - last > stall) { fs.writeFileSync('/tmp/stall.new', String(stall = now - last)); fs.renameSync('/tmp/stall.new', '/tmp/stall'); }
		last = performance.now();
	}`

func forksOfABusySandbox(t *testing.T, n int) {
	t.Helper()
	c := harness.NewClient(t)
	source := harness.CreateWith(t, c, nil)
	writer := source.Command(t.Context(), "node", "-e", lockstep)
	out, err := writer.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := writer.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 2)); err != nil {
		t.Fatal(err)
	}
	stall := func() float64 {
		ms, err := strconv.ParseFloat(harness.Run(t, source, "cat", "/tmp/stall"), 64)
		if err != nil {
			t.Fatal(err)
		}
		return ms
	}
	harness.Eventually(t, "the writer is under way", func() bool {
		written, err := strconv.Atoi(harness.Run(t, source, "tail", "-n", "1", "/var/n"))
		return err == nil && written > 1000
	})
	alone := stall()
	last := ""
	for i := range n {
		fork := forked(t, c, source.Name(), sandbox.WithPersistent(false))
		got := harness.Run(t, fork, "sh", "-c", "tail -n 1 /workspace/n; tail -n 1 /var/n; cmp -n $(stat -c %s /var/n) /workspace/n /var/n; echo $(( $(wc -l </workspace/n) - $(wc -l </var/n) ))")
		lines := strings.Fields(got)
		if len(lines) != 3 || lines[2] != "0" && lines[2] != "1" || lines[0] == last {
			t.Errorf("fork %d holds %q after %q, want equal files, or the first ahead by one", i, lines, last)
		}
		if len(lines) > 0 {
			last = lines[0]
		}
		if _, err := fork.Delete(t.Context(), sandbox.DeleteOptions{Volumes: true}); err != nil {
			t.Error(err)
		}
	}
	t.Logf("the writer's longest stall was %.1f ms before the forks, and %.1f ms in the end", alone, stall())
	if err := writer.Kill(); err != nil {
		t.Errorf("the writer goes on until it is killed: %v", err)
	}
	writer.Wait()
}
