package main

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"

	"github.com/seed-1a2d6d8f/sandbox"
)

// archive makes one call of the engine's archive API: it unpacks tar in path or, if tar is
// nil, reads path. It returns the size of the response.
func (a *api) archive(ctx context.Context, container, path string, tar []byte) (int64, error) {
	method, body := "GET", io.Reader(nil)
	if tar != nil {
		method, body = "PUT", bytes.NewReader(tar)
	}
	req, err := http.NewRequestWithContext(ctx, method, a.url("/containers/"+container+"/archive?path="+url.QueryEscape(path)), body)
	if err != nil {
		return 0, err
	}
	if tar != nil {
		req.Header.Set("Content-Type", "application/x-tar")
	}
	resp, err := a.http.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	n, err := io.Copy(io.Discard, resp.Body)
	if resp.StatusCode >= 400 {
		err = fmt.Errorf("%s %s: %s", method, path, resp.Status)
	}
	return n, err
}

func block(size int) []byte {
	b := make([]byte, size)
	rand.Read(b)
	return b
}

// read4K compares reading a file of 4 KiB with the engine's archive of it.
func read4K(ctx context.Context, r *rig) (float64, error) {
	sb, err := r.warm(ctx)
	if err != nil {
		return 0, err
	}
	const name = "/workspace/read-4k"
	if err := sb.WriteFile(ctx, name, block(4096), 0o644); err != nil {
		return 0, err
	}
	ours, theirs, ratios, err := pairs(ctx, 5, 40,
		timed(func() error {
			b, err := sb.ReadFile(ctx, name)
			if err == nil && len(b) != 4096 {
				err = fmt.Errorf("%d bytes", len(b))
			}
			return err
		}),
		timed(func() error {
			n, err := r.api.archive(ctx, container(sb), name, nil)
			if err == nil && n < 4096 {
				err = fmt.Errorf("%d bytes", n)
			}
			return err
		}))
	if err != nil {
		return 0, err
	}
	note("read 4 KiB: ReadFile takes %v ms, the engine's archive %v ms", ours, theirs)
	return ratios.median(), nil
}

// write4K compares an atomic write of a new file of 4 KiB with the engine unpacking one.
func write4K(ctx context.Context, r *rig) (float64, error) {
	sb, err := r.warm(ctx)
	if err != nil {
		return 0, err
	}
	data, n := block(4096), 0
	var packed bytes.Buffer
	w := tar.NewWriter(&packed)
	err = errors.Join(w.WriteHeader(&tar.Header{Name: "write-4k-theirs", Mode: 0o644, Size: 4096}), second(w.Write(data)), w.Close())
	if err != nil {
		return 0, err
	}
	ours, theirs, ratios, err := pairs(ctx, 5, 40,
		func() (float64, error) {
			n++
			name := "/workspace/write-4k-" + strconv.Itoa(n)
			return milliseconds(func() error { return sb.WriteFile(ctx, name, data, 0o644) })
		},
		timed(func() error { return second(r.api.archive(ctx, container(sb), "/workspace", packed.Bytes())) }))
	if err != nil {
		return 0, err
	}
	note("write 4 KiB: WriteFile takes %v ms, the engine's archive %v ms", ours, theirs)
	return ratios.median(), nil
}

func second[T any](_ T, err error) error { return err }

// copyRig returns a sandbox with all of the machine's CPUs, and a directory on the machine.
// Nothing is deleted before the end: on ext4, creating files soon after is many times slower.
func (r *rig) copyRig(ctx context.Context, fill func(dir string) error) (sb *sandbox.Sandbox, dir string, done func(), err error) {
	if !r.local {
		return nil, "", nil, errors.New("the comparison with cp needs an engine on this machine")
	}
	if dir, err = os.MkdirTemp("", "bench"); err != nil {
		return nil, "", nil, err
	}
	done = func() { os.RemoveAll(dir) }
	if err = fill(filepath.Join(dir, "src")); err == nil {
		sb, err = r.client.Create(ctx, r.tags(), sandbox.WithVCPUs(r.facts.NCPU))
	}
	if err != nil {
		done()
		return nil, "", nil, err
	}
	return sb, dir, done, exec.Command("sync").Run()
}

// A copying is a copy of files into a sandbox, or out of it. Both comparisons of one use the same rounds.
type copying struct {
	what   string
	fill   func(string) error
	rounds int
	out    bool
}

var (
	in10k   = copying{"10,000 files in", files10k, 4, false}
	out10k  = copying{"10,000 files out", files10k, 3, true}
	in1GiB  = copying{"1 GiB in", file1GiB, 3, false}
	out1GiB = copying{"1 GiB out", file1GiB, 3, true}
)

func dockerCP(ctx context.Context, from, to string) error {
	if out, err := exec.CommandContext(ctx, "docker", "cp", from, to).CombinedOutput(); err != nil {
		return fmt.Errorf("docker cp: %w: %s", err, out)
	}
	return nil
}

// files10k makes 10,000 files of 4 KiB in 100 directories.
func files10k(dir string) error {
	for d := range 100 {
		sub := filepath.Join(dir, strconv.Itoa(d))
		if err := os.MkdirAll(sub, 0o755); err != nil {
			return err
		}
		for f := range 100 {
			if err := os.WriteFile(filepath.Join(sub, strconv.Itoa(f)), block(4096), 0o644); err != nil {
				return err
			}
		}
	}
	return nil
}

func file1GiB(name string) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	b := block(1 << 20)
	for i := 0; i < 1024 && err == nil; i++ {
		_, err = f.Write(b)
	}
	return errors.Join(err, f.Close())
}

// copyTimes are what the library, docker cp and cp -a on the host take, in milliseconds.
type copyTimes struct{ ours, docker, host samples }

// vsHostCopy compares with cp -a between two directories of the machine, the least that a copy costs.
func (c copying) vsHostCopy(ctx context.Context, r *rig) (float64, error) {
	got, err := c.times(ctx, r)
	return ratios(got.ours, got.host).median(), err
}

// vsDockerCopy compares with docker cp, which is what a user would take instead of the library.
func (c copying) vsDockerCopy(ctx context.Context, r *rig) (float64, error) {
	got, err := c.times(ctx, r)
	return ratios(got.ours, got.docker).median(), err
}

// times measures once in a run.
func (c copying) times(ctx context.Context, r *rig) (copyTimes, error) {
	got, known := r.copied[c.what]
	if known {
		return got, nil
	}
	got, err := c.measure(ctx, r)
	if err == nil {
		r.copied[c.what] = got
	}
	return got, err
}

func (c copying) measure(ctx context.Context, r *rig) (t copyTimes, err error) {
	sb, dir, done, err := r.copyRig(ctx, c.fill)
	if err != nil {
		return t, err
	}
	defer done()
	src, n := filepath.Join(dir, "src"), 0
	ways := []func(to string) error{
		func(to string) error { return second(sb.CopyIn(ctx, src, to, sandbox.CopyOptions{})) },
		func(to string) error { return dockerCP(ctx, src, container(sb)+":"+sandbox.Workspace+"/"+to) },
	}
	if c.out {
		inside := sandbox.Workspace + "/src"
		if _, err := sb.CopyIn(ctx, src, inside, sandbox.CopyOptions{}); err != nil {
			return t, err
		}
		ways = []func(to string) error{
			func(to string) error {
				return second(sb.CopyOut(ctx, inside, filepath.Join(dir, to), sandbox.CopyOptions{}))
			},
			func(to string) error { return dockerCP(ctx, container(sb)+":"+inside, filepath.Join(dir, to)) },
		}
	}
	ways = append(ways, func(to string) error {
		return exec.CommandContext(ctx, "cp", "-a", src, filepath.Join(dir, to)).Run()
	})
	var each []func() (float64, error)
	for _, way := range ways {
		each = append(each, func() (float64, error) {
			n++
			return milliseconds(func() error { return way(strconv.Itoa(n)) })
		})
	}
	got, err := rounds(ctx, 0, c.rounds, each...)
	if err != nil {
		return t, err
	}
	t = copyTimes{got[0], got[1], got[2]}
	note("%s: %v ms, docker cp %v ms, cp -a on the host %v ms", c.what, t.ours, t.docker, t.host)
	return t, nil
}
