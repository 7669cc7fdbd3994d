package network_test

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed-1a2d6d8f/sandbox"
	"github.com/seed-1a2d6d8f/sandbox/internal/bound"
	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/enginetest"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

// lab is the world outside: a container with servers of all kinds, at addresses from
// documentation's ranges, to which the engine's machine forwards. It logs every packet
// that reaches it, so "blocked" means that nothing arrived.
type lab struct {
	eng   *engine.Engine
	image string // of the lab and of its probe, and nothing else
	id    string // of the container
	at    string // where it tells what it saw

	good, evil, dns netip.Addr // public addresses
	private         netip.Addr // on the bridge, as sandboxes are
	undo            []func(context.Context) error
}

var (
	labOnce sync.Once
	labUp   *lab
	labErr  error
)

// theLab is shared by all tests of a run. Each looks at what its own sandboxes send.
func theLab(t testing.TB) *lab {
	t.Helper()
	enginetest.Need(t)
	labOnce.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
		defer cancel()
		labUp = &lab{}
		labErr = labUp.start(ctx)
	})
	if labErr != nil {
		t.Fatalf("the lab: %v", labErr)
	}
	return labUp
}

func init() {
	harness.AtEnd(func() {
		if labUp == nil {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
		defer cancel()
		for _, f := range slices.Backward(labUp.undo) {
			if err := f(ctx); err != nil && !errors.Is(err, engine.ErrNotFound) {
				fmt.Fprintln(os.Stderr, "clear up the lab:", err)
			}
		}
	})
}

// hostile adds to an archive of programs what could mislead the library: every policy is tried
// in sandboxes of such an image.
func hostile(programs []byte) ([]byte, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for r := tar.NewReader(bytes.NewReader(programs)); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, err
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := io.Copy(w, r); err != nil {
			return nil, err
		}
	}
	const script = "#!/probe\n"
	for _, h := range []tar.Header{
		{Typeflag: tar.TypeSymlink, Name: ".agent-sandbox", Linkname: "opt/g", Mode: 0o777},
		{Typeflag: tar.TypeReg, Name: "opt/g/guest", Mode: 0o4755, Size: int64(len(script))},
		{Typeflag: tar.TypeSymlink, Name: "workspace", Linkname: "srv/work", Mode: 0o777},
		{Typeflag: tar.TypeSymlink, Name: "copy", Linkname: ".agent-sandbox", Mode: 0o777},
		{Typeflag: tar.TypeSymlink, Name: "etc/passwd", Linkname: "../srv/none", Mode: 0o777},
	} {
		if err := w.WriteHeader(&h); err != nil {
			return nil, err
		}
		if h.Size > 0 {
			io.WriteString(w, script)
		}
	}
	err := w.Close()
	return b.Bytes(), err
}

func (l *lab) start(ctx context.Context) (err error) {
	if l.eng, err = engine.Open(ctx, engine.Options{}); err != nil {
		return err
	}
	l.undo = append(l.undo, func(context.Context) error { return l.eng.Close() })
	content, err := harness.BuildPrograms("lab", "probe")
	if err != nil {
		return err
	}
	l.image = "sandbox-test-lab:" + record.NewID()
	l.undo = append(l.undo, func(ctx context.Context) error { return l.eng.RemoveImage(ctx, l.image, true) })
	if content, err = hostile(content); err != nil {
		return err
	}
	if err := l.eng.ImportImage(ctx, l.image, bytes.NewReader(content), []string{
		"LABEL agent-sandbox.by=forged agent-sandbox.tag.tenant=acme agent-sandbox.until=2000-01-01T00:00:00Z",
		"ENV GODEBUG=netdns=cgo GOTRACEBACK=crash LD_PRELOAD=/opt/g/guest", "VOLUME /opt/kept",
	}); err != nil {
		return err
	}
	// Other runs have labs on the same machine.
	at := uint32(198)<<24 | 51<<16 | 100<<8 | rand.Uint32N(60)*4 + 4
	addr := func(n uint32) netip.Addr {
		n += at
		return netip.AddrFrom4([4]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)})
	}
	l.good, l.evil, l.dns = addr(0), addr(1), addr(2)
	self := netip.IPv4Unspecified()
	config, err := json.Marshal(map[string]any{
		"Addrs": []netip.Addr{l.good, l.evil, l.dns}, "Sniff": true,
		"Names": map[string][]netip.Addr{
			"good.lab.test": {l.good}, "*.good.lab.test": {l.good}, "cname.good.lab.test": {l.good},
			"*.wild.lab.test": {l.good}, "wild.lab.test": {l.evil}, "evil.lab.test": {l.evil}, "wrong.good.lab.test": {l.good},
			"meta.wild.lab.test":    {netip.MustParseAddr("169.254.169.254")},
			"host.wild.lab.test":    {netip.MustParseAddr("172.17.0.1")},
			"engine.wild.lab.test":  {netip.MustParseAddr("127.0.0.11")},
			"self.wild.lab.test":    {netip.MustParseAddr("127.0.0.1")},
			"mapped.wild.lab.test":  {netip.MustParseAddr("::ffff:169.254.169.254")},
			"private.wild.lab.test": {self},
		},
	})
	if err != nil {
		return err
	}
	l.id, err = l.run(ctx, engine.ContainerSpec{NetworkMode: "bridge", CapAdd: []string{"NET_ADMIN", "NET_RAW"}, Ports: []uint16{7000}}, "serve", string(config))
	if err != nil {
		return err
	}
	got, err := l.eng.InspectContainer(ctx, l.id)
	if err != nil {
		return err
	}
	l.at, l.private = "http://"+got.Ports[7000].String(), got.IP
	for try := 0; ; try++ {
		if _, err = l.seen(ctx); err == nil {
			break
		}
		if try == 200 {
			return fmt.Errorf("it does not answer: %w", err)
		}
		time.Sleep(50 * time.Millisecond)
	}
	return l.route(ctx)
}

// run starts a container of the lab's image.
func (l *lab) run(ctx context.Context, spec engine.ContainerSpec, args ...string) (string, error) {
	spec.Name, spec.Image, spec.Entrypoint = "sandbox-test-lab-"+record.NewID(), l.image, append([]string{"/lab"}, args...)
	l.undo = append(l.undo, func(ctx context.Context) error { return l.eng.RemoveContainer(ctx, spec.Name, true) })
	id, err := l.eng.CreateContainer(ctx, spec)
	if err != nil {
		return "", err
	}
	return id, l.eng.StartContainer(ctx, id)
}

// route has the machine forward to the lab what sandboxes send to its addresses.
func (l *lab) route(ctx context.Context) error {
	change := func(ctx context.Context, verb string) error {
		args := []string{"route", verb, l.private.String()}
		for _, a := range []netip.Addr{l.good, l.evil, l.dns} {
			args = append(args, a.String())
		}
		id, err := l.run(ctx, engine.ContainerSpec{NetworkMode: "host", CapAdd: []string{"NET_ADMIN"}}, args...)
		if err != nil {
			return err
		}
		err = bound.Poll(ctx, 20*time.Millisecond, func() (bool, error) {
			c, err := l.eng.InspectContainer(ctx, id)
			if err == nil && c.ExitCode != 0 {
				err = fmt.Errorf("route %s: exit code %d", verb, c.ExitCode)
			}
			return c.State == engine.StateExited, err
		})
		return errors.Join(err, l.eng.RemoveContainer(ctx, id, true))
	}
	l.undo = append(l.undo, func(ctx context.Context) error { return change(ctx, "del") })
	return change(ctx, "add")
}

// ask reads what the lab has to tell.
func (l *lab) ask(ctx context.Context, what string) ([]byte, error) {
	client := http.Client{Timeout: 2 * time.Minute, Transport: &http.Transport{DisableKeepAlives: true}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, l.at+what, nil)
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = errors.New(resp.Status)
	}
	return b, err
}

// seen returns when the last packet of each kind came: "SOURCE KIND DESTINATION".
func (l *lab) seen(ctx context.Context) (hits map[string]time.Time, err error) {
	b, err := l.ask(ctx, "/hits")
	if err == nil {
		err = json.Unmarshal(b, &hits)
	}
	return hits, err
}

// look is seen, for a test.
func (l *lab) look(t *testing.T) map[string]time.Time {
	t.Helper()
	hits, err := l.seen(t.Context())
	if err != nil {
		t.Fatalf("ask the lab: %v", err)
	}
	return hits
}

// watch begins to look at what a sandbox that runs sends: the function returns the
// packets since then, "KIND DESTINATION", sorted, each once. What PID 1 asks its DNS
// server is not among them, nor is what comes through connections that were open before:
// PID 1 may yet have to pass on the last of them.
func (l *lab) watch(t *testing.T, sb *sandbox.Sandbox) func() []string {
	t.Helper()
	all := l.watchOpen(t, sb)
	return func() []string {
		t.Helper()
		return slices.DeleteFunc(all(), func(what string) bool { return strings.HasPrefix(what, "tcp+ ") })
	}
}

// watchOpen is watch with the connections that are open: "tcp+".
func (l *lab) watchOpen(t *testing.T, sb *sandbox.Sandbox) func() []string {
	t.Helper()
	before := l.look(t)
	return func() []string {
		t.Helper()
		return l.sent(t, sb, func(key string, last time.Time) bool { return last.After(before[key]) })
	}
}

// watchStart is watch for a sandbox that is yet to start, and has no address. Others may
// have had the one it gets, and nothing that they sent counts.
func (l *lab) watchStart(t *testing.T) func(*sandbox.Sandbox) []string {
	t.Helper()
	connected := enginetest.Connections(t)
	return func(sb *sandbox.Sandbox) []string {
		t.Helper()
		at := connected(record.ContainerName(sb.Name()))
		return l.sent(t, sb, func(_ string, last time.Time) bool { return last.After(at) })
	}
}

// sent are the packets that have come from a sandbox's addresses, of those that count.
func (l *lab) sent(t *testing.T, sb *sandbox.Sandbox, counts func(key string, last time.Time) bool) (got []string) {
	t.Helper()
	return l.from(t, l.addresses(t, sb), counts)
}

// from are the packets that have come from some addresses, of those that count.
func (l *lab) from(t *testing.T, sources []string, counts func(key string, last time.Time) bool) (got []string) {
	t.Helper()
	late := map[string]bool{}
	for key, last := range l.look(t) {
		if key == "lost" && counts(key, last) {
			t.Error("packets were lost, maybe among them some that count")
		}
		source, what, _ := strings.Cut(key, " ")
		if !slices.Contains(sources, source) {
			continue
		}
		// The kernel says that a port is unreachable if an answer comes when the socket that asked has gone,
		// whenever that asked.
		if asked, err := netip.ParseAddrPort(strings.TrimPrefix(what, "udp ")); err == nil {
			late["icmp3 "+asked.Addr().String()], late["icmp1 "+asked.Addr().String()] = true, true
		}
		if counts(key, last) && !strings.HasSuffix(what, " "+l.dns.String()+":53") {
			got = append(got, what)
		}
	}
	got = slices.DeleteFunc(got, func(what string) bool { return late[what] })
	slices.Sort(got)
	return got
}

// addresses are those that the sandbox has.
func (l *lab) addresses(t *testing.T, sb *sandbox.Sandbox) (all []string) {
	t.Helper()
	return containerAddresses(t, record.ContainerName(sb.Name()))
}

func containerAddresses(t *testing.T, container string) (all []string) {
	t.Helper()
	var got struct {
		NetworkSettings struct {
			Networks map[string]struct{ IPAddress, GlobalIPv6Address, MacAddress string }
		}
	}
	enginetest.Get(t, "/containers/"+container+"/json", &got)
	for _, n := range got.NetworkSettings.Networks {
		for _, a := range []string{n.IPAddress, n.GlobalIPv6Address} {
			if a != "" {
				all = append(all, a)
			}
		}
		if n.GlobalIPv6Address != "" {
			all = append(all, linkLocal(t, n.MacAddress).String())
		}
	}
	if len(all) == 0 {
		t.Errorf("%s has no address", container)
	}
	return all
}

// asked reports whether a DNS server of the lab was asked for the name, or one below.
func (l *lab) asked(t *testing.T, name string) bool {
	t.Helper()
	b, err := l.ask(t.Context(), "/heard")
	if err != nil {
		t.Fatalf("ask the lab: %v", err)
	}
	return bytes.Contains(b, []byte(" dns "+name+".")) || bytes.Contains(b, []byte("."+name+"."))
}

// client is one whose sandboxes ask the lab for names.
func (l *lab) client(t *testing.T, opts ...sandbox.ClientOption) *sandbox.Client {
	return harness.NewClient(t, append(opts, sandbox.WithDNS(l.dns))...)
}

// sandbox makes a sandbox of the lab's image, which has the probe in it and little else.
func (l *lab) sandbox(t *testing.T, opts ...sandbox.CreateOption) *sandbox.Sandbox {
	t.Helper()
	c := l.client(t)
	sb, err := c.Create(t.Context(), append([]sandbox.CreateOption{sandbox.WithImage(l.image)}, opts...)...)
	if err != nil {
		t.Fatalf("Create: %v", err)
	}
	harness.Remove(t, c, sb.Name())
	t.Cleanup(func() { sb.Detach() })
	return sb
}

// tried is testdata/probe's Attempt.
type tried struct{ Name, Kind, To, As string }

// outcome is testdata/probe's.
type outcome struct {
	Name, Got, Err string
	Took           time.Duration
}

// try makes the attempts inside, all at once, and returns what each one says.
func (l *lab) try(t *testing.T, sb *sandbox.Sandbox, attempts ...tried) map[string]outcome {
	t.Helper()
	in, err := json.Marshal(attempts)
	if err != nil {
		t.Fatal(err)
	}
	cmd := sb.Command(t.Context(), "/probe", "try")
	cmd.Stdin = bytes.NewReader(in)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("the probe: %v", err)
	}
	return outcomes(t, out)
}

func outcomes(t *testing.T, out []byte) map[string]outcome {
	t.Helper()
	var list []outcome
	if err := json.Unmarshal(out, &list); err != nil {
		t.Fatalf("the probe says %q: %v", out, err)
	}
	got := map[string]outcome{}
	for _, o := range list {
		got[o.Name] = o
	}
	return got
}

// held are connections kept inside by "probe hold".
type held struct {
	t   *testing.T
	in  io.WriteCloser
	out *bufio.Scanner
}

// hold keeps connections open inside; each is KIND,ADDRESS,NAME.
func (l *lab) hold(t *testing.T, sb *sandbox.Sandbox, conns ...string) *held {
	t.Helper()
	cmd := sb.Command(t.Context(), "/probe", append([]string{"hold"}, conns...)...)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatalf("hold connections: %v", err)
	}
	t.Cleanup(func() { in.Close(); cmd.Wait() })
	h := &held{t, in, bufio.NewScanner(out)}
	if !h.out.Scan() || h.out.Text() != "held" {
		t.Fatalf("hold %q: %q %s", conns, h.out.Text(), stderr.String())
	}
	return h
}

// say sends a word through all of them and returns what came back, or "gone".
func (h *held) say(word string) string {
	h.t.Helper()
	if _, err := io.WriteString(h.in, word+"\n"); err != nil || !h.out.Scan() {
		h.t.Fatalf("the connections are lost: %v", err)
	}
	return h.out.Text()
}

// networkPolicy is one of lists, or ready.
func networkPolicy(t *testing.T, text string) sandbox.NetworkPolicy {
	t.Helper()
	p, err := sandbox.ParseNetworkPolicy(text)
	if err != nil {
		t.Fatal(err)
	}
	return p
}
