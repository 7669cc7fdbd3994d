package sandboxhttp_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// A pane is one of tmux's, in which a program runs whose output is kept.
type pane struct {
	t      *testing.T
	dir    string
	output string // the file that has it
	parts  []part
}

// A part of the output, for a screen of a size.
type part struct {
	Cols, Rows int
	From       int64  // in the output
	Output     string // in base64
}

// newPane runs a command in a pane of 80 columns and 24 lines, for a terminal like the page's.
func newPane(t *testing.T, command string) *pane {
	t.Helper()
	dir, err := os.MkdirTemp("", "pane") // t.TempDir is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	p := &pane{t: t, dir: dir, output: filepath.Join(dir, "output"), parts: []part{{Cols: 80, Rows: 24}}}
	if err := os.WriteFile(p.output, nil, 0o600); err != nil { // pipe-pane does not wait until its command has made it
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.tmux("kill-server")
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	p.tmux("new-session", "-d", "-x", "80", "-y", "24", "sh")
	p.tmux("set-option", "-g", "default-terminal", "xterm-256color")
	p.tmux("set-option", "-g", "status", "off")
	p.tmux("set-option", "-g", "remain-on-exit", "on")
	// The window that counts begins once all of its output is kept.
	p.tmux("new-window", "-k", "-t", ":1", "cat >/dev/null; "+command)
	p.tmux("pipe-pane", "-O", "cat >>"+p.output)
	p.tmux("send-keys", "C-d")
	return p
}

func (p *pane) tmux(args ...string) string {
	p.t.Helper()
	cmd := exec.CommandContext(p.t.Context(), "tmux", append([]string{"-f", "/dev/null", "-S", filepath.Join(p.dir, "s")}, args...)...)
	if args[0] == "kill-server" {
		cmd = exec.Command("tmux", "-S", filepath.Join(p.dir, "s"), "kill-server") // at the end of the test
	}
	cmd.Env = append(slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "TMUX") }), "LANG=C.UTF-8", "LC_ALL=C.UTF-8", "HOME="+p.dir, "TERM=xterm-256color", "SHELL=/bin/sh")
	out, err := cmd.CombinedOutput()
	if err != nil {
		p.t.Fatalf("tmux %q: %v %s", args, err, out)
	}
	return string(out)
}

// shown is a screen's text and the place of its cursor.
type shown struct {
	Screen []string
	Cursor []int
}

// screen returns what tmux shows.
func (p *pane) screen() (s shown) {
	p.t.Helper()
	s.Screen = strings.Split(strings.TrimRight(p.tmux("capture-pane", "-p"), "\n"), "\n")
	s.Cursor = make([]int, 2)
	fmt.Sscan(p.tmux("display-message", "-p", "#{cursor_x} #{cursor_y}"), &s.Cursor[0], &s.Cursor[1])
	return s
}

// resize changes the size of the screen. The program must be idle.
func (p *pane) resize(cols, rows int) {
	p.t.Helper()
	info, err := os.Stat(p.output)
	if err != nil {
		p.t.Fatal(err)
	}
	p.parts = append(p.parts, part{Cols: cols, Rows: rows, From: info.Size()})
	p.tmux("resize-window", "-x", fmt.Sprint(cols), "-y", fmt.Sprint(rows))
}

// page returns what the page's terminal shows of all output.
func (p *pane) page(tb *tab) shown {
	p.t.Helper()
	output, err := os.ReadFile(p.output)
	if err != nil {
		p.t.Fatal(err)
	}
	for i := range p.parts {
		to := int64(len(output))
		if i+1 < len(p.parts) {
			to = p.parts[i+1].From
		}
		p.parts[i].Output = base64.StdEncoding.EncodeToString(output[p.parts[i].From:to])
	}
	parts, err := json.Marshal(p.parts)
	if err != nil {
		p.t.Fatal(err)
	}
	got := eval[shown](tb, fmt.Sprintf(`(() => {
		const decoder = new TextDecoder(), parts = %s, s = new Screen(parts[0].Cols, parts[0].Rows), parser = new Parser(s);
		for (const {Cols, Rows, Output} of parts) {
			if (Cols !== s.cols || Rows !== s.rows) s.resize(Cols, Rows);
			parser.write(decoder.decode(Uint8Array.from(atob(Output), c => c.charCodeAt(0)), {stream: true}));
		}
		return {screen: s.text().map(line => line.trimEnd()), cursor: [s.x + (s.wrapping ? 1 : 0), s.y]};
	})()`, parts))
	for len(got.Screen) > 1 && got.Screen[len(got.Screen)-1] == "" {
		got.Screen = got.Screen[:len(got.Screen)-1]
	}
	return got
}

// same waits until the page's terminal, given all output, shows what tmux shows, with a text in it.
func (p *pane) same(tb *tab, step, text string) {
	p.t.Helper()
	var want, got shown
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		before := p.screen()
		got = p.page(tb)
		if want = p.screen(); fmt.Sprint(before) != fmt.Sprint(want) {
			continue // it still draws
		}
		for i := range want.Screen {
			want.Screen[i] = strings.TrimRight(want.Screen[i], " ")
		}
		if slices.Equal(got.Screen, want.Screen) && slices.Equal(got.Cursor, want.Cursor) && strings.Contains(strings.Join(got.Screen, "\n"), text) {
			return
		}
	}
	p.t.Fatalf("%s: a minute later the page's terminal and tmux differ, or %q is not there.\nPage, cursor at %v:\n%s\ntmux, cursor at %v:\n%s",
		step, text, got.Cursor, strings.Join(got.Screen, "\n"), want.Cursor, strings.Join(want.Screen, "\n"))
}

// Programs that draw on the whole screen look as they do in another terminal, after each step.
func TestProgramsLookAsInAnotherTerminal(t *testing.T) {
	t.Parallel()
	text := filepath.Join(t.TempDir(), "text")
	var lines strings.Builder
	for i := range 300 {
		fmt.Fprintf(&lines, "line %d\tafter a tab, %s 日本語 ✓ é\n", i+1, strings.Repeat("and so on ", i%13))
	}
	if err := os.WriteFile(text, []byte(lines.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	type step struct {
		keys []string // "resize" changes the size
		text string   // that is on the screen then
	}
	for _, test := range []struct {
		name, command string
		steps         []step
	}{
		{"vim", "vim -u NONE -N -n -i NONE " + text, []step{
			{nil, "line 1"},
			{[]string{":syntax on", "Enter", ":set number hlsearch ruler", "Enter"}, "  1 line 1"},
			{[]string{"G"}, "300 line 300"},
			{[]string{"C-b", "C-y", "C-y", "dd", "5x", "P"}, "line 2"},
			{[]string{"/tab", "Enter", "n", "n"}, "line 290"},
			{[]string{"gg", "O", "wide 漢字 text", "Escape", "0", "x", "u"}, "wide 漢字 text"},
			{[]string{":split", "Enter", ":vsplit", "Enter", "C-e", "C-e", "C-e"}, "line 5"},
			{[]string{"resize"}, "line 5"},
			{[]string{":set nowrap", "Enter", "zL", "V", "j", "j"}, "VISUAL LINE"},
			{[]string{"Escape", ":only", "Enter", ":e!", "Enter", "dG", "i", "last", "Escape"}, "last"},
			{keys: []string{":q!", "Enter"}},
		}},
		{"less", "less " + text, []step{
			{nil, "line 1"},
			{[]string{"Space", "j", "j", "k"}, "line 1"},
			{[]string{"G"}, "line 300"},
			{[]string{"g", "/line 4[0-9]", "Enter", "n"}, "line 4"},
			{[]string{"-S", "Enter", "Right", "Left"}, "line 4"},
			{[]string{"resize"}, "line 4"},
			{[]string{"h"}, "SUMMARY OF LESS COMMANDS"},
			{[]string{"q", "u", "b"}, "line 2"},
			{keys: []string{"q"}},
		}},
		{"htop", "htop -d 600", []step{
			{nil, "F1Help"},
			{[]string{"Down", "Down", "F5"}, "F5List"},
			{[]string{"F6"}, "PID"},
			{[]string{"Escape", "F2"}, "Setup"},
			{keys: []string{"Escape", "F10"}},
		}},
		{"tmux", "tmux -f /dev/null -L " + fmt.Sprint("page", os.Getpid()) + " new-session 'PS1=inner: sh' \\; set-option -g assume-paste-time 0", []step{
			{nil, "inner:"},
			{[]string{"seq 40", "Enter"}, "40"},
			{[]string{"C-b", "%", "PS1=right: sh", "Enter", "seq 100 130", "Enter"}, "130"},
			{[]string{"C-b", "\"", "printf '\\033[1;31mred 日本\\033[0m\\n'", "Enter"}, "red 日本"},
			{[]string{"resize"}, "red 日本"},
			{[]string{"C-b", "["}, "[0/"},
			{[]string{"q", "C-b", "o"}, "inner:"},
			{[]string{"clear", "Enter", "echo clean", "Enter"}, "clean"},
			{[]string{"C-b", ":"}, "clean"},
			{keys: []string{"kill-server", "Enter"}},
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			tb := emulatorTab(t)
			p := newPane(t, "echo begin; "+strings.Replace(test.command, "tmux ", "TMUX= tmux ", 1)+"; echo the end; cat")
			for i, s := range test.steps {
				for _, key := range s.keys {
					if key == "resize" {
						p.resize(100, 30)
						continue
					}
					p.tmux("send-keys", "--", key)
				}
				if i == len(test.steps)-1 {
					break // the program ends
				}
				p.same(tb, fmt.Sprint(test.name, " after ", s.keys), s.text)
			}
			// What the programs had covered is there again. tmux moves it when the size changes meanwhile.
			for end := time.Now().Add(time.Minute); ; time.Sleep(200 * time.Millisecond) {
				got := p.page(tb)
				if n := len(got.Screen); n <= 3 && got.Screen[0] == "begin" && got.Screen[n-1] == "the end" { // tmux says that it has ended
					break
				} else if time.Now().After(end) {
					t.Fatalf("after the end of %s the page shows\n%s", test.name, strings.Join(got.Screen, "\n"))
				}
			}
		})
	}
}
