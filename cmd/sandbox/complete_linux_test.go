package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/creack/pty"
)

// The script for bash is clean in shellcheck.
func TestBashCompletionIsCleanInShellcheck(t *testing.T) {
	t.Parallel()
	for _, flags := range [][]string{nil, {"--no-descriptions"}} {
		check := exec.Command("shellcheck", "--shell=bash", "--enable=quote-safe-variables", "-")
		check.Stdin = strings.NewReader(mustCall(t, append([]string{"completion", "bash"}, flags...)...))
		if out, err := check.CombinedOutput(); err != nil {
			t.Errorf("shellcheck, which ci/clients installs: %v\n%s", err, out)
		}
	}
}

// What a real bash is given for the words of a line, which it separates in another way than the program.
func TestBashCompletesWords(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		line  string // | is the cursor
		words string // that the program is called with
		reply string
		want  string // what completes the line, each in brackets
		opts  string // of compopt
	}{
		{"sandbox st|", "<st>", "start\tStart\nstop\tStop\nstatus\n:4", "[start  (Start)][stop  (Stop)][status]", ""},
		{"sandbox sto|", "<sto>", "stop\tStop\n:4", "[stop]", ""},
		{"sandbox  start   |", "<start><>", "a\nb\n:4", "[a][b]", ""},
		{"sandbox start b| c", "<start><b>", "a\nbox\n:4", "[box]", ""},
		{"sandbox start bo|x c", "<start><bo>", "box\n:4", "[box]", ""},
		{"sandbox ls --format=j|", "<ls><--format=j>", "--format=json\n:4", "[json]", ""},
		{"sandbox ls --format=|", "<ls><--format=>", "--format=json\n:4", "[json]", ""},
		{"sandbox cp bo|", "<cp><bo>", "box:\n:2", "[box:]", "-o nospace -o default "},
		{"sandbox cp box:/tm|", "<cp><box:/tm>", ":0", "", "-o default "},
		{"sandbox run --image node:2|", "<run><--image><node:2>", "node:20\nnode:22\n:4", "[20][22]", ""},
		{"sandbox run --env A=b:c x|", "<run><--env><A=b:c><x>", ":0", "", "-o default "},
		{"sandbox rm '$(touch x)' |", "<rm><'$(touch x)'><>", "a\n:4", "[a]", ""},
		{"sandbox start x|", "<start><x>", "x\n:1", "", ""},
	} {
		t.Run(tt.line, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			file := func(name string) string {
				text, err := os.ReadFile(filepath.Join(dir, name))
				if err != nil && !os.IsNotExist(err) {
					t.Error(err)
				}
				return string(text)
			}
			for name, text := range map[string]string{
				"sandbox": "#!/bin/sh\nshift\nprintf '<%s>' \"$@\" >words\ncat reply\n",
				"reply":   tt.reply + "\n",
				"rc": `. ./script
					compopt() { printf '%s ' "$@" >>opts; }
					seen() { _sandbox; [ ${#COMPREPLY[@]} = 0 ] || printf '[%s]' "${COMPREPLY[@]}" >all; : >done; }
					complete -F seen sandbox
					PS1='ready '`,
				"script": mustCall(t, "completion", "bash"),
			} {
				writeProgram(t, filepath.Join(dir, name), text)
			}
			bash := exec.CommandContext(t.Context(), "bash", "--noprofile", "--rcfile", "rc", "-i")
			bash.Dir, bash.Env = dir, []string{"PATH=" + dir + ":" + os.Getenv("PATH"), "HOME=" + dir, "TERM=dumb"}
			tty, err := pty.Start(bash)
			if err != nil {
				t.Fatal(err)
			}
			drained := make(chan struct{})
			go func() {
				defer close(drained)
				buf := make([]byte, 1024)
				for {
					if _, err := tty.Read(buf); err != nil {
						return
					}
				}
			}()
			before, after, _ := strings.Cut(tt.line, "|")
			const left, tab = "\x02", "\t"
			if _, err := tty.WriteString(before + after + strings.Repeat(left, len(after)) + tab); err != nil {
				t.Error(err)
			}
			for until := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
				if _, err := os.Stat(filepath.Join(dir, "done")); err == nil {
					break
				}
				if time.Now().After(until) {
					t.Fatal("bash has completed nothing for a minute")
				}
			}
			if words, all, opts := file("words"), file("all"), file("opts"); words != tt.words || all != tt.want || opts != tt.opts {
				t.Errorf("the program gets %s, bash %s with %q; want %s, %s with %q", words, all, opts, tt.words, tt.want, tt.opts)
			}
			bash.Process.Kill()
			bash.Wait()
			tty.Close()
			<-drained
		})
	}
}
