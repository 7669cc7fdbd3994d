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
	"sync"
	"time"
)

const (
	childArg  = "hold-sandboxes"
	sandboxes = 100
	readings  = 11
)

// rss100: the resident memory of a program that holds 100 sandboxes, each with its
// connection. Another process holds them, since this one has a past.
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
	// Whoever is killed while making a sandbox leaves it half made.
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
	hold.Close() // and it ends, leaving them to be removed
	if err := cmd.Wait(); err != nil {
		return 0, err
	}
	if len(rss) < readings {
		return 0, fmt.Errorf("%d of %d readings came", len(rss), readings)
	}
	note("%d sandboxes: the client's resident memory is %v MiB", sandboxes, rss)
	return rss.median(), nil
}

// child makes the sandboxes, uses each, and prints its own resident memory once a
// second until its input ends.
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
	var (
		mu     sync.Mutex
		wg     sync.WaitGroup
		failed error
	)
	for range sandboxes {
		wg.Go(func() {
			sb, err := r.create(ctx)
			if err == nil {
				err = sb.Command(ctx, "true").Run()
			}
			if err != nil {
				mu.Lock()
				defer mu.Unlock()
				failed = err
			}
		})
	}
	wg.Wait()
	if failed != nil {
		return failed
	}
	files, _ := os.ReadDir("/proc/self/fd")
	note("%d sandboxes made and used in %.1f s; before them %.1f MiB resident, with them %d files open",
		sandboxes, time.Since(began).Seconds(), before, len(files))
	for ctx.Err() == nil {
		mib, err := resident()
		if err != nil {
			return err
		}
		fmt.Println(mib)
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
		}
	}
	return nil
}

// resident returns this process's resident memory in MiB.
func resident() (float64, error) {
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if kb, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			n, err := strconv.ParseFloat(strings.Fields(kb)[0], 64)
			return n / 1024, err
		}
	}
	return 0, fmt.Errorf("/proc/self/status has no VmRSS")
}
