package ssh_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/sync/errgroup"

	"github.com/seed-1a2d6d8f/sandbox/test/harness"
)

const patience = 5 * time.Minute

// A session is a channel for one command, whose events are recorded as they come.
type session struct {
	ssh.Channel
	t *testing.T
	*server
	requests <-chan *ssh.Request
	done     sync.WaitGroup
	mu       sync.Mutex
	events   []string
	stdout   bytes.Buffer
	stderr   bytes.Buffer
	changed  chan struct{}
}

func newSession(t *testing.T, server *server, client *ssh.Client) *session {
	t.Helper()
	ch, requests, err := client.OpenChannel("session", nil)
	if err != nil {
		t.Fatalf("%s: %v", server.name, err)
	}
	return &session{Channel: ch, t: t, server: server, requests: requests, changed: make(chan struct{}, 1)}
}

// ask sends a request and returns whether it was granted.
func (s *session) ask(kind string, payload any) bool {
	s.t.Helper()
	var body []byte
	if payload != nil {
		body = ssh.Marshal(payload)
	}
	ok, err := s.SendRequest(kind, true, body)
	if err != nil {
		s.t.Fatalf("%s: %s: %v", s.name, kind, err)
	}
	return ok
}

func (s *session) event(format string, args ...any) {
	s.mu.Lock()
	s.events = append(s.events, fmt.Sprintf(format, args...))
	s.mu.Unlock()
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// start runs a command, or the shell, and records what comes.
func (s *session) start(command string) {
	s.t.Helper()
	granted := command == "" && s.ask("shell", nil) || command != "" && s.ask("exec", struct{ Command string }{command})
	if !granted {
		s.t.Fatalf("%s: %q was refused", s.name, command)
	}
	s.done.Go(func() {
		var both sync.WaitGroup
		copyTo := func(to *bytes.Buffer, from io.Reader) {
			buf := make([]byte, 4096)
			for {
				n, err := from.Read(buf)
				s.mu.Lock()
				to.Write(buf[:n])
				s.mu.Unlock()
				if err != nil {
					return
				}
				s.event("")
			}
		}
		both.Go(func() { copyTo(&s.stdout, s.Channel) })
		both.Go(func() { copyTo(&s.stderr, s.Channel.Stderr()) })
		both.Wait()
		s.event("eof")
	})
	s.done.Go(func() {
		for r := range s.requests {
			switch r.Type {
			case "exit-status":
				s.event("exit-status %d", binary.BigEndian.Uint32(r.Payload))
			case "exit-signal":
				n := binary.BigEndian.Uint32(r.Payload)
				s.event("exit-signal %s", r.Payload[4:4+n])
			}
			if r.WantReply {
				r.Reply(false, nil)
			}
		}
	})
}

// until waits for an event or for that text on stdout.
func (s *session) until(what string) {
	s.t.Helper()
	deadline := time.After(patience)
	for {
		s.mu.Lock()
		found := strings.Contains(s.stdout.String(), what)
		for _, e := range s.events {
			found = found || e == what
		}
		s.mu.Unlock()
		if found {
			return
		}
		select {
		case <-s.changed:
		case <-deadline:
			s.t.Fatalf("%s: after %v there is no %q: events %q, stdout %q", s.name, patience, what, s.events, &s.stdout)
		}
	}
}

// end waits for the end of the channel, and returns all that was seen.
func (s *session) end() string {
	s.t.Helper()
	ended := make(chan struct{})
	go func() {
		s.done.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(patience):
		s.event("no end")
		s.Channel.Close()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var events []string
	for _, e := range s.events {
		if e != "" && e != "eof" {
			events = append(events, e)
		}
	}
	return fmt.Sprintf("%s\nstdout %q\nstderr %q", strings.Join(events, ", "), &s.stdout, &s.stderr)
}

// terminal requests a terminal with encoded modes.
func (s *session) terminal(modes string) {
	s.t.Helper()
	if !s.ask("pty-req", struct {
		Term                      string
		Cols, Rows, Width, Height uint32
		Modes                     string
	}{"vt220", 111, 33, 999, 777, modes}) {
		s.t.Fatalf("%s: no terminal", s.name)
	}
}

// A sessionCase is what a client does with one session, and what it sees.
type sessionCase struct {
	name string
	do   func(*session) string
}

// quiet runs a command with that input.
func quiet(command, input string) sessionCase {
	return sessionCase{fmt.Sprintf("%q with %d bytes of input", command, len(input)), func(s *session) string {
		s.start(command)
		io.WriteString(s, input) // the command may have ended
		s.CloseWrite()
		return s.end()
	}}
}

func onTerminal(command, modes string) sessionCase {
	return sessionCase{fmt.Sprintf("%q on a terminal with modes %x", command, modes), func(s *session) string {
		s.terminal(modes)
		s.start(command)
		return s.end()
	}}
}

const show = `echo "$SSH_CLIENT/$SSH_CONNECTION/$USER/$LOGNAME/$HOME/$SHELL/${TERM-}/$0/$-"; case ${SSH_TTY-none} in none) echo no tty;; $(tty)) echo right tty;; *) echo wrong;; esac; id -un; id -G; pwd; umask`

const winsize = `perl -e 'ioctl(STDOUT, 0x5413, $size = "") or die; print join(" ", unpack("S4", $size)), "\n"'`

func sessionCases(user string) []sessionCase {
	cases := []sessionCase{
		quiet("exit 7", ""), quiet("true", "unread"), quiet("no-such", ""), quiet("/etc/passwd", ""), quiet("if", ""), quiet("echo out; echo err >&2; exit 255", ""),
		quiet(show, ""), onTerminal(show, ""), quiet(`echo "x$FROM_RC"; shopt -q login_shell && echo login`, ""),
		quiet("cat", strings.Repeat("0123456789", 50_000)), quiet("head -c 3; echo; sleep 0.2", strings.Repeat("y\n", 1<<20)),
		quiet("exec <&-; sleep 0.2; echo done", strings.Repeat("z", 4<<20)), quiet("cat >&2", "to stderr"), quiet("read x; echo $x; exit 4", "no newline"),
		onTerminal("stty -g; stty -a", ""), onTerminal(winsize, ""), onTerminal("tty >/dev/null && echo yes; exit 9", ""), onTerminal("echo a; echo b >&2", ""),
		onTerminal("sleep 0.1 & exit 3", ""), onTerminal("kill -9 $$", ""), onTerminal("kill -HUP 0; sleep 5", ""),
		quiet(`test "$(cut -d' ' -f6 /proc/$$/stat)" = $$ && echo own session || echo another`, ""), quiet(`sleep 1000 & until pkill -x sleep -s 0; do :; done; wait $!; echo $?`, ""),
		{"an empty command", func(s *session) string {
			return fmt.Sprint(s.ask("exec", struct{ Command string }{""}))
		}},
		{"a terminal without a type", func(s *session) string {
			ok := s.ask("pty-req", struct {
				Term                      string
				Cols, Rows, Width, Height uint32
				Modes                     string
			}{})
			s.start("echo $TERM")
			return fmt.Sprint(ok, s.end())
		}},
		{"a shell that reads its commands", func(s *session) string {
			s.start("")
			io.WriteString(s, "echo $-; echo $((6*7))\nexit 5\n")
			return s.end()
		}},
		{"output that is closed early", func(s *session) string {
			s.start("exec >&- 2>&-; read x; exit 6")
			s.until("eof")
			io.WriteString(s, "go on\n")
			return s.end()
		}},
		{"a background process that holds the output", func(s *session) string {
			s.start(`(until rm go-on-` + s.server.name + `; do sleep 0.01; done 2>/dev/null; echo late) & echo first; exit 3`)
			s.until("exit-status 3")
			s.until("first")
			s.server.run(s.t, "touch /root/go-on-"+s.server.name)
			return s.end()
		}},
		{"a client that reads no more", func(s *session) string {
			s.start("yes")
			s.until("y\n")
			s.SendRequest("eow@openssh.com", false, nil)
			return s.end()[:30] // how much it wrote depends
		}},
		{"a command that goes on when nobody reads its stdout", func(s *session) string {
			s.start(`trap "" PIPE; echo ready; read x; while echo more; do sleep 0.01; done 2>/dev/null; exit 8`)
			s.until("ready")
			s.SendRequest("eow@openssh.com", false, nil)
			io.WriteString(s, "go\n")
			return strings.ReplaceAll(s.end(), `more\n`, "") // it may come before what was sent first
		}},
		{"two terminals and two commands", func(s *session) string {
			s.terminal("")
			s.start("read x; echo one")
			seen := fmt.Sprint(s.ask("exec", struct{ Command string }{"echo two"}), s.ask("shell", nil))
			io.WriteString(s, "go\n")
			return seen + s.end()
		}},
		{"break and window-change", func(s *session) string {
			s.terminal("")
			s.start(`stty -ignbrk brkint; trap "stty size; exit 2" WINCH; echo ready; while :; do sleep 0.02; done`)
			s.until("ready")
			ok := s.ask("break", struct{ Length uint32 }{100})
			s.ask("window-change", struct{ Cols, Rows, Width, Height uint32 }{77, 22, 0, 0})
			return fmt.Sprint(ok, s.end())
		}},
		{"a window-change before the command", func(s *session) string {
			s.terminal("")
			ok := s.ask("window-change", struct{ Cols, Rows, Width, Height uint32 }{77, 22, 5, 6})
			s.start(winsize)
			return fmt.Sprint(ok, s.end())
		}},
		{"odd requests", func(s *session) string {
			seen := fmt.Sprint(s.ask("no-such-request", nil), s.ask("subsystem", struct{ Name string }{"netconf"}),
				s.ask("env", struct{ Name, Value string }{"LC_FRUIT", "plum"}), s.ask("signal", struct{ Name string }{"TERM"}))
			s.start("echo $LC_FRUIT")
			return seen + s.end()
		}},
	}
	for _, signal := range []string{"HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE", "ALRM", "TERM", "XCPU", "SYS", "VTALRM", "RTMIN"} {
		cases = append(cases, quiet("ulimit -c 0; kill -"+signal+" $$; sleep 1", ""))
		if user != "root" && slices.Contains([]string{"HUP", "INT", "KILL", "TERM", "USR1", "USR2", "TRAP", "BUS"}, signal) { // sshd passes none on to root
			cases = append(cases, sessionCase{"signal " + signal, func(s *session) string {
				s.start("ulimit -c 0; echo ready; exec sleep 1000")
				s.until("ready")
				if !s.ask("signal", struct{ Name string }{signal}) {
					s.ask("signal", struct{ Name string }{"KILL"})
				}
				return s.end()
			}})
		}
	}
	return cases
}

// generatedModes are terminal modes of known and unknown kinds with arbitrary values.
func generatedModes(seed uint64) string {
	g := rand.New(rand.NewPCG(seed, 34))
	var modes []byte
	mode := func(opcode byte, value uint32) {
		modes = binary.BigEndian.AppendUint32(append(modes, opcode), value)
	}
	for opcode := byte(1); opcode < 128; opcode++ {
		switch {
		case g.IntN(3) > 0 || opcode == 90 || opcode == 91: // sizes of characters would garble the answer
		case opcode < 30:
			mode(opcode, []uint32{3, 8, 21, 127, 255, 0, 300}[g.IntN(7)])
		case opcode == 70: // so that lines end alike
		default:
			mode(opcode, uint32(g.IntN(3)))
		}
	}
	for _, speed := range []byte{128, 129} {
		mode(speed, []uint32{9600, 38400, 115200}[seed%3])
	}
	return string(append(modes, 0))
}

func TestSessionsAreAsSSHDsAre(t *testing.T) {
	t.Parallel()
	ours, sshd := servers(t)
	harness.Run(t, ours.sb, "sh", "-c", "echo export FROM_RC=1 >/root/.bashrc; chown node /root; chmod 755 /root")
	for _, user := range []string{"root", "node"} {
		clients := []*ssh.Client{sshd.connect(t, user), ours.connect(t, user)}
		cases := sessionCases(user)
		for _, seed := range harness.Seeds(20, 2000) {
			cases = append(cases, onTerminal("stty -g; stty -a", generatedModes(seed)))
		}
		for _, seed := range harness.Seeds(40, 2000) {
			rnd := rand.New(rand.NewPCG(seed, 35))
			cases = append(cases, quiet(harness.RandomScript(rnd), []string{"", "a\nb\n", "no end", strings.Repeat("0123456789\n", 30_000)}[rnd.IntN(4)]))
		}
		// sshd takes five seconds to end some terminals: they end together.
		seen := make([][2]string, len(cases))
		var all errgroup.Group
		all.SetLimit(40)
		for n, c := range cases {
			for i, s := range []*server{sshd, ours} {
				all.Go(func() error {
					seen[n][i] = c.do(newSession(t, s, clients[i]))
					return nil
				})
			}
		}
		all.Wait()
		for n, c := range cases {
			if seen[n][0] != seen[n][1] {
				t.Errorf("user %s, %s\nsshd %s\nours %s", user, c.name, seen[n][0], seen[n][1])
			}
		}
	}
	// A session begins elsewhere if the user can't enter its directory.
	warning := regexp.MustCompile(`(Could not chdir to home directory /root: P|sandbox: directory \\"/root\\": p)ermission denied(; this session begins in \\"/\\")?`)
	clients := []*ssh.Client{sshd.connect(t, "node"), ours.connect(t, "node")}
	ours.run(t, "chown root /root; chmod 700 /root")
	for _, c := range []sessionCase{quiet("pwd", ""), onTerminal("pwd", "")} {
		var seen [2]string
		for i, s := range []*server{sshd, ours} {
			seen[i] = warning.ReplaceAllString(c.do(newSession(t, s, clients[i])), "<warning>")
		}
		if seen[0] != seen[1] || !strings.Contains(seen[0], "<warning>") {
			t.Errorf("in a directory that can't be entered, %s\nsshd %s\nours %s", c.name, seen[0], seen[1])
		}
	}
	for i, s := range []*server{sshd, ours} {
		r := newRawSFTP(t, s.name, clients[i])
		r.begin()
		if got := r.request(fxRealpath, new(packet).text(".")); !strings.Contains(got, `"/"`) {
			t.Errorf("%s: SFTP in a directory that can't be entered begins in %s, want /", s.name, got)
		}
	}
}

// A command whose client leaves without a goodbye runs its trap, whatever its shell writes before, and lives on if it ignores SIGHUP.
func TestCommandsHearThatTheClientLeaves(t *testing.T) {
	t.Parallel()
	ours, sshd := servers(t)
	for i, script := range []string{
		`trap 'touch hup%d; exit' HUP; echo ready; while :; do sleep .1; done`, `trap 'touch hup%d' EXIT; trap 'exit 1' HUP; echo ready; while :; do sleep .1; done`,
		`trap 'touch hup%d; exit' HUP; echo ready; sleep 1000 & wait`, `trap 'touch hup%d; exit' HUP; echo ready; while :; do echo more; sleep .1; done`,
	} {
		client := ours.connect(t, "root")
		s := newSession(t, ours, client)
		s.start(fmt.Sprintf(script, i))
		s.until("ready\n")
		client.Close()
		harness.WaitForFile(t, ours.sb, fmt.Sprintf("/root/hup%d", i))
	}
	const outlive = `while [ $parent = "$(cut -d" " -f4 /proc/$$/stat)" ]; do sleep .1; done; touch $0`
	for _, s := range []*server{sshd, ours} {
		for i, script := range []string{`export parent=$PPID; trap "" HUP; echo ready; exec sh -c '%s' %s`, `export parent=$PPID; exec 3>&1; exec nohup sh -c 'echo ready >&3; %s' %s >/dev/null 2>&1`} {
			for _, terminal := range []bool{false, true} {
				file := fmt.Sprintf("/root/lived-%s-%d-%t", s.name, i, terminal)
				client := s.connect(t, "root")
				session := newSession(t, s, client)
				if terminal {
					session.terminal("")
				}
				session.start(fmt.Sprintf(script, outlive, file))
				session.until("ready")
				client.Close()
				harness.WaitForFile(t, s.sb, file)
			}
		}
	}
}

// What sshd does for a login, and how many sessions it has, is no part of a sandbox: rows of docs/differences.md.
func TestLoginsAreNotAsSSHDs(t *testing.T) {
	t.Parallel()
	ours, sshd := servers(t)
	harness.Run(t, ours.sb, "sh", "-c", `mkdir -p /root/.ssh; echo "touch /root/rc" >/root/.ssh/rc; echo OF_FILE=yes >/root/.ssh/environment; echo "message of the day" >/etc/motd`)
	for _, s := range []*server{sshd, ours} {
		differs := s == ours
		client := s.connect(t, "root")
		if got := quiet(`echo "<$OF_FILE>"`, "").do(newSession(t, s, client)); strings.Contains(got, "<>") != differs {
			t.Errorf("%s: ~/.ssh/environment: %s", s.name, got)
		}
		shell := newSession(t, s, client)
		shell.terminal("")
		shell.start("")
		io.WriteString(shell, "exit\n")
		if got := shell.end(); !strings.Contains(got, "message of the day") != differs {
			t.Errorf("%s: /etc/motd: %s", s.name, got)
		}
		if got := s.run(t, "rm /root/rc 2>/dev/null && echo ran || echo no"); (got == "no") != differs {
			t.Errorf("%s: ~/.ssh/rc: %s", s.name, got)
		}
		refused := false
		for n := range 101 { // sshd's configuration has 100
			_, requests, err := client.OpenChannel("session", nil)
			if err == nil {
				go ssh.DiscardRequests(requests)
			} else if refused = true; n < 90 {
				t.Errorf("%s: session %d: %v", s.name, n, err)
				break
			}
		}
		if refused == differs {
			t.Errorf("%s: of 101 sessions one is refused: %t", s.name, refused)
		}
	}
}
