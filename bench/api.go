package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
)

// api makes plain calls to the engine, for comparison with the library: it must not waste
// time.
type api struct {
	dial    func(context.Context) (net.Conn, error)
	http    *http.Client
	version string
}

func newAPI(host, version string) (*api, error) {
	network, addr, _ := strings.Cut(host, "://")
	if network != "unix" && network != "tcp" {
		return nil, fmt.Errorf("the engine is at %s: the comparison needs unix:// or tcp://", host)
	}
	dial := func(ctx context.Context) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, network, addr)
	}
	transport := &http.Transport{
		DialContext:         func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
		MaxIdleConnsPerHost: 128,
		DisableCompression:  true,
	}
	return &api{dial, &http.Client{Transport: transport}, version}, nil
}

func (a *api) url(path string) string { return "http://engine/v" + a.version + path }

// call makes one call; in and out are JSON and may be nil.
func (a *api) call(ctx context.Context, method, path string, in, out any) error {
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, a.url(path), body)
	if err != nil {
		return err
	}
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := a.http.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	switch {
	case err != nil:
		return err
	case resp.StatusCode >= 400:
		return fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, bytes.TrimSpace(b))
	case out == nil:
		return nil
	}
	return json.Unmarshal(b, out)
}

// exec runs a command to its exit: create, start with its output attached, inspect. It
// discards the output and returns its size.
func (a *api) exec(ctx context.Context, container string, argv ...string) (size int64, err error) {
	var exec struct {
		ID       string `json:"Id"`
		Running  bool
		ExitCode int
	}
	spec := map[string]any{"AttachStdout": true, "AttachStderr": true, "Cmd": argv}
	if err := a.call(ctx, "POST", "/containers/"+container+"/exec", spec, &exec); err != nil {
		return 0, err
	}
	if size, err = a.attach(ctx, exec.ID); err != nil {
		return size, err
	}
	exec.Running = true
	for exec.Running { // the engine may notice the exit late
		if err := a.call(ctx, "GET", "/exec/"+exec.ID+"/json", nil, &exec); err != nil {
			return size, err
		}
	}
	if exec.ExitCode != 0 {
		return size, fmt.Errorf("%v: exit code %d", argv, exec.ExitCode)
	}
	return size, nil
}

// attach starts an exec and reads its output to the end.
func (a *api) attach(ctx context.Context, id string) (size int64, err error) {
	conn, err := a.dial(ctx)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	const body = `{"Detach":false,"Tty":false}`
	_, err = fmt.Fprintf(conn, "POST /v%s/exec/%s/start HTTP/1.1\r\nHost: engine\r\nContent-Type: application/json\r\n"+
		"Connection: Upgrade\r\nUpgrade: tcp\r\nContent-Length: %d\r\n\r\n%s", a.version, id, len(body), body)
	if err != nil {
		return 0, err
	}
	in := bufio.NewReaderSize(conn, 1<<20)
	resp, err := http.ReadResponse(in, nil)
	if err != nil {
		return 0, err
	}
	if resp.StatusCode != http.StatusSwitchingProtocols {
		return 0, fmt.Errorf("start exec: %s", resp.Status)
	}
	var header [8]byte // stream, three zeros, length of what follows
	for {
		if _, err := io.ReadFull(in, header[:]); errors.Is(err, io.EOF) {
			return size, nil
		} else if err != nil {
			return size, err
		}
		n, err := in.Discard(int(binary.BigEndian.Uint32(header[4:])))
		size += int64(n)
		if err != nil {
			return size, err
		}
	}
}

// byHandLabel marks the objects made with plain calls.
const byHandLabel = "agent-sandbox-bench"

// twin is a container as the library creates it, to be created with plain calls.
type twin struct {
	config    map[string]any
	host      map[string]any
	workspace string
	options   map[string]string // of the workspace's volume: Podman's has none
}

// twinOf returns the twin of a sandbox's container.
func (r *rig) twinOf(ctx context.Context, name string) (twin, error) {
	var got struct {
		Config, HostConfig map[string]any
		Mounts             []struct{ Name, Destination string }
	}
	if err := r.api.call(ctx, "GET", "/containers/"+name+"/json", nil, &got); err != nil {
		return twin{}, err
	}
	t := twin{config: got.Config, host: got.HostConfig}
	for _, m := range got.Mounts {
		if m.Destination == "/workspace" {
			t.workspace = m.Name
		}
	}
	t.config["Labels"] = map[string]string{byHandLabel: r.id}
	delete(t.config, "Hostname")
	if t.host["NanoCpus"] != 0.0 { // Podman tells the same limit in these, too, and takes only one
		delete(t.host, "CpuPeriod")
		delete(t.host, "CpuQuota")
	}
	// Nobody renews its lease, without which the session would end, and its workspace is another volume
	// than the one that PID 1 would look for.
	argv, _ := t.config["Entrypoint"].([]any)
	if len(argv) != 3 || t.workspace == "" {
		return twin{}, fmt.Errorf("container %s does not have the entrypoint or mounts that this program expects", name)
	}
	var volume struct{ Options map[string]string }
	if err := r.api.call(ctx, "GET", "/volumes/"+t.workspace, nil, &volume); err != nil {
		return twin{}, err
	}
	t.options = volume.Options
	var boot map[string]any
	if err := json.Unmarshal(fmt.Append(nil, argv[2]), &boot); err != nil {
		return twin{}, err
	}
	delete(boot, "lease")
	delete(boot, "mounts")
	text, err := json.Marshal(boot)
	if err != nil {
		return twin{}, err
	}
	argv[2] = string(text)
	return t, nil
}

// make creates the twin with a volume of its own and starts it: three calls. It may be called concurrently.
func (t twin) make(ctx context.Context, a *api, label, name string) error {
	volume := map[string]any{
		"Name": name, "Labels": map[string]string{byHandLabel: label},
		"Driver": "local", "DriverOpts": t.options,
	}
	if err := a.call(ctx, "POST", "/volumes/create", volume, nil); err != nil {
		return err
	}
	host, spec := maps.Clone(t.host), maps.Clone(t.config)
	mounts, _ := host["Mounts"].([]any)
	mounts = slices.Clone(mounts)
	for i, m := range mounts {
		if m, ok := m.(map[string]any); ok && m["Target"] == "/workspace" {
			m = maps.Clone(m)
			m["Source"] = name
			mounts[i] = m
		}
	}
	host["Mounts"], spec["HostConfig"] = mounts, host
	var made struct {
		ID string `json:"Id"`
	}
	if err := a.call(ctx, "POST", "/containers/create?name="+name, spec, &made); err != nil {
		return err
	}
	return a.call(ctx, "POST", "/containers/"+made.ID+"/start", nil, nil)
}

// removeByHand removes the objects that this run made with plain calls.
func (r *rig) removeByHand(ctx context.Context) error {
	filter := url.QueryEscape(fmt.Sprintf(`{"label":["%s=%s"]}`, byHandLabel, r.id))
	var containers []struct {
		ID string `json:"Id"`
	}
	if err := r.api.call(ctx, "GET", "/containers/json?all=1&filters="+filter, nil, &containers); err != nil {
		return err
	}
	var g errgroup.Group
	g.SetLimit(4)
	for _, c := range containers {
		g.Go(func() error { return r.api.call(ctx, "DELETE", "/containers/"+c.ID+"?force=1&v=1", nil, nil) })
	}
	errs := []error{g.Wait()}
	var volumes struct{ Volumes []struct{ Name string } }
	if err := r.api.call(ctx, "GET", "/volumes?filters="+filter, nil, &volumes); err != nil {
		return errors.Join(append(errs, err)...)
	}
	for _, v := range volumes.Volumes {
		errs = append(errs, r.api.call(ctx, "DELETE", "/volumes/"+v.Name, nil, nil))
	}
	r.api.http.CloseIdleConnections()
	return errors.Join(errs...)
}
