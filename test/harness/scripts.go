package harness

import (
	"math/rand/v2"
	"strings"
)

// RandomScript is a script for sh of a few steps that read, write and change their own streams. The last one may end it by a signal.
func RandomScript(rnd *rand.Rand) string {
	steps := []string{
		"echo out", "echo err >&2", "printf 'no end'", "printf 'err, no end' >&2", `printf '\377\0\r\n'`, "printf ünï", "seq 3", "head -c 300000 /dev/zero", "head -c 70000 /dev/zero >&2",
		"cat", "cat >&2", "head -c 3", `read l; echo "$? $l"`, `read l && echo "$l"`, "wc -c", "exec <&-", "exec >&-", "exec 2>&-", "exec 3>&1 >&2 2>&3",
		"(exit 3); echo $?", "set -e; false", "trap '' PIPE", "trap 'echo trapped; exit 6' EXIT", "(sleep 0.1; echo later)", "sleep 0.1", "cd /tmp; pwd", "id -u; id -g", "umask",
		"echo $0 $#", `echo "${VALUE-none}"`, "test -t 0; echo $?; test -t 1; echo $?", "sh -c 'echo inner; exit 5'; echo $?", "echo piped | cat", "ulimit -n >/dev/null",
		"sleep 1000 >/dev/null 2>&1 </dev/null & :",
	}
	ends := []string{"exit 0", "exit 3", "exit 255", "exit 256", "kill -9 $$", "kill -TERM $$", "kill -PIPE $$", "kill -USR1 $$", "exec true", "exec cat", "exec sleep 0.1", "exec no-such-program 2>/dev/null", "no-such-program 2>/dev/null"}
	var script []string
	for range 1 + rnd.IntN(4) {
		script = append(script, steps[rnd.IntN(len(steps))])
	}
	if rnd.IntN(2) == 0 {
		script = append(script, ends[rnd.IntN(len(ends))])
	}
	return strings.Join(script, "; ")
}
