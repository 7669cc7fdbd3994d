package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/seed-1a2d6d8f/sandbox/internal/bound"
)

const (
	childArg  = "hold-sandboxes"
	sandboxes = 100
	readings  = 5
)

// rss100 measures the resident memory of a program with 100 sandboxes, each connected. It is
// a child process, because this one has allocated for other figures.
func rss100(ctx context.Context, r *rig) (float64, error) {
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	cmd := exec.CommandContext(ctx, self, childArg, r.id)
	cmd.Stderr = os.Stderr
	hold, err := cmd.StdinPipe()
	if err != nil {
		return 0, err
	}
	// A killed child would leave half-created sandboxes: end its input instead.
	cmd.Cancel = hold.Close
	cmd.WaitDelay = time.Minute
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	var rss samples
	for lines := bufio.NewScanner(out); len(rss) < readings && lines.Scan(); {
		if mib, err := strconv.ParseFloat(lines.Text(), 64); err == nil {
			rss = append(rss, mib)
		}
	}
	hold.Close() // the child ends; rig.remove deletes its sandboxes
	if err := cmd.Wait(); err != nil {
		return 0, err
	}
	if len(rss) < readings {
		return 0, fmt.Errorf("got %d of %d readings", len(rss), readings)
	}
	note("%d sandboxes: the client's resident memory is %v MiB", sandboxes, rss)
	return rss.median(), nil
}

// child creates the sandboxes, uses each, and prints its own resident memory once a second
// until its input ends.
func child(ctx context.Context, id string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	r, err := newRig(ctx)
	if err != nil {
		return err
	}
	r.id = id
	before, err := resident()
	if err != nil {
		return err
	}
	began := time.Now()
	var g errgroup.Group
	for range sandboxes {
		g.Go(func() error {
			sb, err := r.create(ctx)
			if err != nil {
				return err
			}
			return sb.Command(ctx, "true").Run()
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	files, _ := os.ReadDir("/proc/self/fd")
	note("%d sandboxes created and used in %.1f s; before them %.1f MiB resident, with them %d open files",
		sandboxes, time.Since(began).Seconds(), before, len(files))
	for ctx.Err() == nil {
		mib, err := resident()
		if err != nil {
			return err
		}
		fmt.Println(mib)
		if bound.Sleep(ctx, time.Second) != nil {
			break
		}
	}
	return nil
}

// resident returns this process's resident memory in MiB.
func resident() (float64, error) { return procMiB(os.Getpid(), "status", "VmRSS:") }

// procMiB returns the value of a line of a file in /proc, in MiB.
func procMiB(pid int, file, key string) (float64, error) {
	name := fmt.Sprintf("/proc/%d/%s", pid, file)
	text, err := os.ReadFile(name)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if kb, ok := strings.CutPrefix(line, key); ok {
			n, err := strconv.ParseFloat(strings.Fields(kb)[0], 64)
			return n / 1024, err
		}
	}
	return 0, fmt.Errorf("%s has no %s", name, key)
}
