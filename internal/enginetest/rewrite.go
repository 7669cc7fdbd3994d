package enginetest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
)

// A machine of another kernel has another boot ID than the one that it stands in for.
const otherBootID = "00000000-0000-4000-8000-000000000000"

// HideLayers makes the engine one that shows no container's own files on its disk: its
// descriptions of containers don't say where they are, and its storage driver has them in no
// directories.
func (p *Proxy) HideLayers() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hideLayers = true
}

// RefuseOverlays makes the engine one that can't mount an overlay: containers with a
// volume that is one are made, and do not start.
func (p *Proxy) RefuseOverlays() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuseOverlays = true
}

// PartNetworks makes the engine one where no container gets the network namespace of another: a
// helper does not reach PID 1 of a sandbox, whose processes thus can't be held.
func (p *Proxy) PartNetworks() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.partNetworks = true
}

// FilterNothing makes the engine one where no container can filter its network, as under an OCI
// runtime without nftables.
func (p *Proxy) FilterNothing() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.filterNothing = true
}

// TellOfMemoryLate makes the engine one that does not know yet, in the first n descriptions of it, that a container has run out of
// memory: the runtime reports its end, and why, independently.
func (p *Proxy) TellOfMemoryLate(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.memoryLate = n
}

// RunElsewhere makes the engine one of another machine: no directory is the one that a
// client means, and helpers tell another boot ID. Arguments and output of containers
// that have this machine's are rewritten.
func (p *Proxy) RunElsewhere() {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		p.t.Fatalf("the boot ID: %v", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.bootID = strings.TrimSpace(string(id))
}

var (
	adminRE   = regexp.MustCompile(`("CapAdd":\[[^]]*)"(?:CAP_)?NET_ADMIN"`)
	joinRE    = regexp.MustCompile(`"NetworkMode":"container:[^"]*"`)
	infoRE    = regexp.MustCompile(`^(/v[0-9.]+)?/info$`)
	inspectRE = regexp.MustCompile(`^(/v[0-9.]+)?/containers/[^/]+/json$`)
	useRE     = regexp.MustCompile(`^(?:/v[0-9.]+)?/containers/([^/]+)/(start|archive)$`)
)

// request rewrites a request, and returns the reply to it that the engine is not even
// asked for, if there is one.
func (p *Proxy) request(req *http.Request) (refusal *http.Response, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refuseOverlays && req.Method != http.MethodGet && req.Method != http.MethodHead {
		if m := useRE.FindStringSubmatch(req.URL.Path); m != nil && slices.Contains(p.overlaid, m[1]) {
			return refuse(req, "error while mounting volume: no such device"), nil
		}
	}
	if !p.refuseOverlays && !p.partNetworks && !p.filterNothing && p.bootID == "" || req.Method != http.MethodPost || !strings.HasSuffix(req.URL.Path, "/create") || req.Body == nil {
		return nil, nil
	}
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return nil, err
	}
	var made struct {
		Name       string
		DriverOpts map[string]string
	}
	if strings.HasSuffix(req.URL.Path, "/volumes/create") && json.Unmarshal(body, &made) == nil {
		p.overlays = slices.DeleteFunc(p.overlays, func(name string) bool { return name == made.Name })
		if made.DriverOpts["type"] == "overlay" {
			p.overlays = append(p.overlays, made.Name)
		}
	}
	if p.bootID != "" && strings.HasSuffix(req.URL.Path, "/containers/create") {
		body = bytes.ReplaceAll(body, []byte(p.bootID), []byte(otherBootID))
	}
	if p.partNetworks && strings.HasSuffix(req.URL.Path, "/containers/create") {
		body = joinRE.ReplaceAll(body, []byte(`"NetworkMode":"none"`))
	}
	if p.filterNothing && strings.HasSuffix(req.URL.Path, "/containers/create") {
		body = adminRE.ReplaceAll(body, []byte(`$1"CHOWN"`)) // which all have
	}
	req.Body = io.NopCloser(bytes.NewReader(body))
	req.ContentLength = int64(len(body))
	if p.refuseOverlays && strings.HasSuffix(req.URL.Path, "/containers/create") {
		var made struct {
			HostConfig struct{ Mounts []struct{ Source string } }
		}
		if json.Unmarshal(body, &made) == nil && slices.ContainsFunc(made.HostConfig.Mounts, func(m struct{ Source string }) bool {
			return slices.Contains(p.overlays, m.Source)
		}) {
			p.overlaidRequests = append(p.overlaidRequests, req)
		}
	}
	return nil, nil
}

// reply rewrites the reply to a request.
func (p *Proxy) reply(req *http.Request, resp *http.Response) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var hide func(map[string]json.RawMessage) error
	if p.hideLayers && resp.StatusCode == http.StatusOK && req.Method == http.MethodGet {
		switch {
		case inspectRE.MatchString(req.URL.Path):
			hide = hideLayer
		case infoRE.MatchString(req.URL.Path):
			hide = hideDriver
		}
	}
	if p.memoryLate > 0 && hide == nil && resp.StatusCode == http.StatusOK && inspectRE.MatchString(req.URL.Path) {
		hide = p.hideMemory
	}
	i := slices.Index(p.overlaidRequests, req)
	if hide == nil && i < 0 {
		return nil
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	_ = resp.Body.Close()
	if i >= 0 {
		p.overlaidRequests = slices.Delete(p.overlaidRequests, i, i+1)
		var made struct{ ID string }
		if json.Unmarshal(body, &made) == nil && made.ID != "" {
			p.overlaid = append(p.overlaid, made.ID)
		}
	}
	if hide != nil {
		var reply map[string]json.RawMessage
		if err = json.Unmarshal(body, &reply); err == nil {
			err = hide(reply)
		}
		if err == nil {
			body, err = json.Marshal(reply)
		}
		if err != nil {
			return err
		}
	}
	resp.Body, resp.ContentLength, resp.TransferEncoding = io.NopCloser(bytes.NewReader(body)), int64(len(body)), nil
	resp.Header.Set("Content-Length", fmt.Sprint(len(body)))
	return nil
}

// hideDriver changes the description of an engine.
func hideDriver(info map[string]json.RawMessage) error {
	info["Driver"] = json.RawMessage(`"vfs"`)
	return nil
}

// hideMemory changes the description of a container that ran out of memory.
func (p *Proxy) hideMemory(container map[string]json.RawMessage) error {
	var state map[string]any
	if err := json.Unmarshal(container["State"], &state); err != nil {
		return err
	}
	if state["OOMKilled"] != true {
		return nil
	}
	p.memoryLate--
	state["OOMKilled"] = false
	var err error
	container["State"], err = json.Marshal(state)
	return err
}

// hideLayer changes the description of a container.
func hideLayer(container map[string]json.RawMessage) error {
	var driver struct {
		Name string
		Data map[string]string
	}
	if err := json.Unmarshal(container["GraphDriver"], &driver); err != nil {
		return err
	}
	for _, dir := range []string{"LowerDir", "MergedDir", "UpperDir", "WorkDir"} {
		delete(driver.Data, dir)
	}
	var err error
	container["GraphDriver"], err = json.Marshal(driver)
	return err
}

// refuse is an error of the engine's.
func refuse(req *http.Request, message string) *http.Response {
	body, _ := json.Marshal(map[string]string{"message": message})
	return &http.Response{
		StatusCode: http.StatusInternalServerError, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Request: req, Close: true,
		Header: http.Header{"Content-Type": {"application/json"}}, ContentLength: int64(len(body)), Body: io.NopCloser(bytes.NewReader(body)),
	}
}

// output is what a container says, as one elsewhere says it.
func (p *Proxy) output(from io.Reader) io.Reader {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.bootID == "" {
		return from
	}
	return &replacer{from: from, old: []byte(p.bootID), new: []byte(otherBootID)}
}

// A replacer replaces one text by another of the same length where it comes in one piece.
// It holds nothing back: somebody may wait for each byte.
type replacer struct {
	from     io.Reader
	old, new []byte
}

func (r *replacer) Read(b []byte) (int, error) {
	n, err := r.from.Read(b)
	copy(b, bytes.ReplaceAll(b[:n], r.old, r.new))
	return n, err
}
