package main

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/bound"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
)

const labName = "bench.test"

// outside is test/network/testdata/lab in a container: a web server that sandboxes reach by a name, and a
// DNS server for that name.
type outside struct {
	eng       *engine.Engine
	image, id string
	addr      netip.Addr
	client    *sandbox.Client // its sandboxes use this DNS server
}

func (r *rig) outside(ctx context.Context) (o *outside, err error) {
	o = &outside{image: "sandbox-bench-lab:" + r.id}
	if o.eng, err = engine.Open(ctx, engine.Options{}); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, o.close())
		}
	}()
	dir, err := os.MkdirTemp("", "bench")
	if err != nil {
		return o, err
	}
	defer os.RemoveAll(dir)
	// By import path, so that it works in any directory.
	build := exec.CommandContext(ctx, "go", "build", "-o", filepath.Join(dir, "lab"), "github.com/seed-1a2d6d8f/sandbox/test/network/testdata/lab")
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+runtime.GOARCH)
	if out, err := build.CombinedOutput(); err != nil {
		return o, fmt.Errorf("%w\n%s", err, out)
	}
	content, err := os.ReadFile(filepath.Join(dir, "lab"))
	if err != nil {
		return o, err
	}
	var image bytes.Buffer
	w := tar.NewWriter(&image)
	w.WriteHeader(&tar.Header{Name: "lab", Mode: 0o755, Size: int64(len(content))})
	w.Write(content)
	if err := w.Close(); err != nil {
		return o, err
	}
	if err := o.eng.ImportImage(ctx, o.image, &image, nil); err != nil {
		return o, err
	}
	config, err := json.Marshal(map[string]any{"Names": map[string][]netip.Addr{labName: {netip.IPv4Unspecified()}}})
	if err != nil {
		return o, err
	}
	o.id, err = o.eng.CreateContainer(ctx, engine.ContainerSpec{
		Name: "sandbox-bench-lab-" + r.id, Image: o.image, Entrypoint: []string{"/lab", "serve", string(config)}, NetworkMode: "bridge",
	})
	if err != nil {
		return o, err
	}
	if err := o.eng.StartContainer(ctx, o.id); err != nil {
		return o, err
	}
	got, err := o.eng.InspectContainer(ctx, o.id)
	if err != nil {
		return o, err
	}
	o.addr = got.IP
	o.client, err = sandbox.NewClient(sandbox.WithDNS(o.addr))
	return o, err
}

func (o *outside) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var errs []error
	if o.id != "" {
		errs = append(errs, o.eng.RemoveContainer(ctx, o.id, true))
	}
	if err := o.eng.RemoveImage(ctx, o.image, true); !errors.Is(err, engine.ErrNotFound) {
		errs = append(errs, err)
	}
	if o.client != nil {
		errs = append(errs, o.client.Close())
	}
	return errors.Join(append(errs, o.eng.Close())...)
}

// byName is a policy that permits connections to the outside through PID 1.
func (o *outside) byName() sandbox.NetworkPolicy {
	return sandbox.NetworkPolicy{Allow: []string{labName}, ResolveInto: []string{o.addr.String()}}
}

// two creates a sandbox that reaches the outside through PID 1, and one that does directly.
func (o *outside) two(ctx context.Context, r *rig) (proxied, direct *sandbox.Sandbox, err error) {
	if proxied, err = o.client.Create(ctx, r.tags(), sandbox.WithNetworkPolicy(o.byName())); err != nil {
		return nil, nil, err
	}
	direct, err = o.client.Create(ctx, r.tags())
	return proxied, direct, err
}

// createPolicy compares the creation of a sandbox, until the first command's exit, with a
// policy of names and with the default policy.
func createPolicy(ctx context.Context, r *rig) (float64, error) {
	o, err := r.outside(ctx)
	if err != nil {
		return 0, err
	}
	defer o.close()
	create := func(p sandbox.NetworkPolicy) func() (float64, error) {
		return used(ctx, func() (*sandbox.Sandbox, error) {
			return o.client.Create(ctx, r.tags(), quick, sandbox.WithNetworkPolicy(p))
		})
	}
	ours, theirs, ratios, err := pairs(ctx, 1, 7, create(o.byName()), create(sandbox.AllowAll()))
	if err != nil {
		return 0, err
	}
	note("create: %v ms to the first command's exit under names, %v ms under allow-all", ours, theirs)
	return ratios.median(), nil
}

// policyUpdate measures an Update of a running session's policy, until it is enforced.
func policyUpdate(ctx context.Context, r *rig) (float64, error) {
	sb, err := r.create(ctx)
	if err != nil {
		return 0, err
	}
	to := func(p sandbox.NetworkPolicy) func() (float64, error) {
		return timed(func() error { return sb.Update(ctx, sandbox.WithNetworkPolicy(p)) })
	}
	names, none, _, err := pairs(ctx, 2, 15, to(sandbox.NetworkPolicy{Allow: []string{"*.example.com", "example.org"}}), to(sandbox.DenyAll()))
	if err != nil {
		return 0, err
	}
	note("update of the policy: %v ms to names, %v ms to deny-all", names, none)
	return append(names, none...).median(), nil
}

// tlsConnect measures how much longer a new TLS connection takes by name through PID 1,
// including the lookup, than directly to the address.
func tlsConnect(ctx context.Context, r *rig) (float64, error) {
	o, err := r.outside(ctx)
	if err != nil {
		return 0, err
	}
	defer o.close()
	proxied, direct, err := o.two(ctx, r)
	if err != nil {
		return 0, err
	}
	const each = 20
	program := fmt.Sprintf(`
		const tls = require("tls");
		const once = () => new Promise((done, bad) => {
			const began = performance.now();
			const c = tls.connect({host: %q, port: 443, servername: %q, rejectUnauthorized: false}, () => {
				c.destroy(); done(performance.now() - began);
			}).on("error", bad);
		});
		(async () => {
			await once();
			const all = [];
			for (let i = 0; i < %d; i++) all.push(await once());
			console.log(all.sort((a, b) => a - b)[%d]);
		})()`, o.addr, labName, each, each/2)
	measure := func(sb *sandbox.Sandbox) func() (float64, error) {
		return func() (float64, error) {
			out, err := sb.Command(ctx, "node", "-e", program).Output()
			if err != nil {
				return 0, err
			}
			return strconv.ParseFloat(strings.TrimSpace(string(out)), 64)
		}
	}
	through, past, _, err := pairs(ctx, 1, 9, measure(proxied), measure(direct))
	if err != nil {
		return 0, err
	}
	note("a TLS connection: %v ms through PID 1, %v ms directly", through, past)
	return through.median() - past.median(), nil
}

// throughput compares the throughput of one HTTP response through PID 1 and directly.
func throughput(ctx context.Context, r *rig) (float64, error) {
	const size = 1 << 30
	o, err := r.outside(ctx)
	if err != nil {
		return 0, err
	}
	defer o.close()
	proxied, direct, err := o.two(ctx, r)
	if err != nil {
		return 0, err
	}
	measure := func(sb *sandbox.Sandbox) func() (float64, error) {
		return func() (float64, error) {
			out, err := sb.Command(ctx, "curl", "-sf", "-o", "/dev/null", "-w", "%{speed_download} %{size_download}",
				"--resolve", fmt.Sprintf("%s:80:%s", labName, o.addr), fmt.Sprintf("http://%s/bytes/%d", labName, size)).Output()
			if err != nil {
				return 0, err
			}
			var speed, n float64
			if _, err := fmt.Sscan(string(out), &speed, &n); err != nil || n != size {
				return 0, fmt.Errorf("curl printed %q: %w", out, err)
			}
			return speed / 1e6, nil
		}
	}
	through, past, ratios, err := pairs(ctx, 1, 5, measure(proxied), measure(direct))
	if err != nil {
		return 0, err
	}
	note("1 GiB by HTTP: %v MB/s through PID 1, %v MB/s directly", through, past)
	return ratios.median(), nil
}

// rssPID1 measures the resident memory of PID 1 with a policy of names, once it stands still after a
// first connection.
func rssPID1(ctx context.Context, r *rig) (float64, error) {
	o, err := r.outside(ctx)
	if err != nil {
		return 0, err
	}
	defer o.close()
	var all samples
	for range 5 {
		sb, err := o.client.Create(ctx, r.tags(), sandbox.WithNetworkPolicy(o.byName()))
		if err != nil {
			return 0, err
		}
		if err := sb.Command(ctx, "curl", "-skf", "-o", "/dev/null", "https://"+labName+"/").Run(); err != nil {
			return 0, err
		}
		var kib, before float64
		if err := bound.Poll(ctx, time.Second, func() (bool, error) {
			out, err := sb.Command(ctx, "sed", "-n", `s/^VmRSS:\s*\([0-9]*\) kB$/\1/p`, "/proc/1/status").Output()
			if err != nil {
				return false, err
			}
			before = kib
			kib, err = strconv.ParseFloat(strings.TrimSpace(string(out)), 64)
			return kib == before, err
		}); err != nil {
			return 0, err
		}
		all = append(all, kib/1024)
	}
	note("PID 1 at rest: %v MiB resident", all)
	return all.median(), nil
}
